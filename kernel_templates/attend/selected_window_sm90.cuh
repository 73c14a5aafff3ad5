// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_selected_window_sm90: the selected branch and the window's in one pass over tiles of tokens
// (sm_90a).
//
//   O_sel[t, h] = sum over keys p in list[t, g], p <= t, of softmax_p(scale q[t, h] . k[p, g]) v[p, g]
//   O_win[t, h] = the same over keys t - w < p <= t, with keys and values of their own or the same
//
//   q     [T, Hq, Dk], k [tokens, Hkv, Dk], v [tokens, Hkv, Dv]
//   lists [T, Hkv, n] blocks of l' tokens, or [T, Hkv, n, 2] token ranges: ascending, disjoint, -1
//
// Grid: persistent; tiles and ring as in attend/selected_pipeline.cuh, consumers and Config as in
// attend/selected_wgmma.cuh, the window, which comes first, as in attend/selected_window.cuh. Until the
// window's end the kernel before may run: it makes the lists and the sum, and nothing else is read of
// it.
//
// Against two kernels it saves a launch, a tail, and of the partial sum a write and a read. H200, bf16,
// 64/4 heads, D 128, window 512, whole forwards of correlated lists, two kernels / this one: 4k 0.67 /
// 0.63 ms, 8k 1.28 / 1.23, 64k 17.5 / 17.3; of random lists 4k 0.80 / 0.74, 8k 1.60 / 1.61, 16k 3.67 /
// 3.80. The window's branch alone takes 2.4 ms at 64k, attend_window_sm90 2.1: three warpgroups of 64
// keys leave the tensor cores waiting as in attend_selected_sm90. Its sum passes through `partial` for
// want of registers: to read that at the window's end costs 0.2 ms. Did not help: P V in order (2.5 ms);
// whole stages, without a short first one (2.45); the lists on mma.sync, the window's stages before or
// between theirs, for random lists (64k 24.6 ms against 23.4 by two kernels, 4k 0.93 against 0.80).
#pragma once
#include "attend/selected_wgmma.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_selected_window_sm90(const __grid_constant__ NsaiSelectedWindow p) {
  attend_pipeline<Config>(p, [&](const unsigned char *shared) { consume<Config>(p, shared); });
}
