// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_selected_window_sm90: the selected branch and the window branch in one pass over tiles of
// tokens, on wgmma and TMA (sm_90a).
//
//   O_sel[t, h] = sum over keys p <= t in list[t, g] of softmax_p(scale q[t, h] . k[p, g]) v[p, g]
//   O_win[t, h] = the same over keys t - w < p <= t; the branches may share k and v
//
//   q     [T, Hq, Dk], k [tokens, Hkv, Dk], v [tokens, Hkv, Dv]
//   lists [T, Hkv, n] blocks of l' tokens, or [T, Hkv, n, 2] token ranges: ascending, disjoint, -1
//
// Grid: persistent. Tiles and pipeline: attend/selected_pipeline.cuh. Consumers and Config:
// attend/selected_wgmma.cuh. The window comes first (attend/selected_window.cuh). Until the window
// is done, the previous kernel may still run: only its lists and its partial sum are read.
//
// Compared with two kernels this saves a launch, a tail effect, and one write and one read of the
// partial sum. H200, bf16, 64/4 heads, D 128, window 512, whole forward passes, two kernels / this
// one: correlated lists 4k 0.67 / 0.63 ms, 8k 1.28 / 1.23, 64k 17.5 / 17.3; random lists 4k 0.80 /
// 0.74, 8k 1.60 / 1.61, 16k 3.67 / 3.80.
//
// The window branch alone takes 2.4 ms at 64k, and attend_window_sm90 takes 2.1: three warpgroups
// of 64 keys leave the tensor cores waiting, as in attend_selected_sm90. Its sum passes through
// `partial` for lack of registers; reading it at the window's end costs 0.2 ms.
//
// Tried without gain: P V in order (2.5 ms); whole stages without a short first one (2.45); the
// lists on mma.sync with the window's stages before or between theirs, for random lists (64k
// 24.6 ms against 23.4 with two kernels, 4k 0.93 against 0.80).
#pragma once
#include "attend/selected_wgmma.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_selected_window_sm90(
        const __grid_constant__ CodedParamsOf<Config, NsaiSelectedWindow, NsaiCachedSelectedWindow,
                                              NsaiCodedSelectedWindow>
            p) {
  attend_pipeline<Config>(p, [&](const unsigned char *shared) { consume<Config>(p, shared); });
}
