// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_selected_sm90_mma: attention of every token over its own selection, on mma.sync, with keys from
// the copy engine (sm_90a).
//
//   O[t, h] = sum over keys p in list[t, g], p <= t, of softmax_p(scale q[t, h] . k[p, g]) v[p, g]
//
//   q     [T, Hq, Dk], k [tokens, Hkv, Dk], v [tokens, Hkv, Dv]
//   lists [T, Hkv, n] blocks of l' tokens, or [T, Hkv, n, 2] token ranges: ascending, disjoint, -1
//
// Grid: persistent; tiles and ring as in attend/selected_pipeline.cuh, consumers and Config as in
// attend/selected_mma.cuh.
//
// Bound by reads of shared memory where lists are alike: ldmatrix of all K and V for every 16 rows
// keeps it busy for 80 % (H200, 64k tokens, 64/4 heads, D 128: 6.6 ms); by L2 where they differ
// (random lists, 11.1 ms; copies alone take 11.0). Did not help: two m16 tiles of a warp that share
// fragments (7.6 ms; a warp alone waits more than it saves); twelve warps, with steps of 32 keys
// (7.1 / 11.6); four, with two blocks (7.2 / 12.0); fewer stages (five: 8.1 / 11.6).
#pragma once
#include "attend/selected_mma.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_selected_sm90_mma(const __grid_constant__ NsaiAttendSelectedTma p) {
  attend_pipeline<Config>(p,
                          [&](const unsigned char *shared) { consume<Config>(p.attend, shared); });
}
