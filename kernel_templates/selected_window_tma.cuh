// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// selected_window_tma: the selected branch and the window's in one pass over tiles of tokens (sm_90a):
// the lists on mma.sync, the window on wgmma.
//
//   O_sel[t, h] = sum over keys p in list[t, g], p <= t, of softmax_p(scale q[t, h] . k[p, g]) v[p, g]
//   O_win[t, h] = the same over keys t - w < p <= t, with keys and values of their own or the same
//
//   q     [T, Hq, Dk], k [tokens, Hkv, Dk], v [tokens, Hkv, Dv]
//   lists [T, Hkv, n] blocks of l' tokens, or [T, Hkv, n, 2] token ranges: ascending, disjoint, -1
//
// Grid: persistent; tiles and ring as in common/union_ring.cuh, consumers and Config as in
// common/union_mma.cuh, the window as in common/union_window.cuh: a stage of it comes before each
// kEvery of the lists.
//
// Where lists differ their loads take the time. With the window before the lists (selected by mma.sync,
// its sum in registers) a forward of random lists took 23.2 ms at 64k against 23.5 by two kernels (H200,
// bf16, 64/4 heads, D 128, window 512), the window's 2.8 ms beside nothing; every other block of threads
// half a tile behind changed nothing. So the window's products stand between the lists' loads here, and
// both branches' O in registers. In this form it was checked, but not timed yet.
#pragma once
#include "common/union_mma.cuh"

// Eight tokens' lists have 91 blocks at random, their window nine stages: these end before those do.
constexpr int kEvery = 6;

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    selected_window_tma(const __grid_constant__ NsaiSelectedWindow p) {
  ring_attend<Config, kEvery>(p, [&](const unsigned char *shared) { consume<Config>(p, shared); });
}
