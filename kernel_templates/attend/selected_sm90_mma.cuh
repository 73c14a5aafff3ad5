// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_selected_sm90_mma: each token attends to its own selection, on mma.sync with keys loaded
// by TMA (sm_90a).
//
//   O[t, h] = sum over keys p in list[t, g], p <= t, of softmax_p(scale q[t, h] . k[p, g]) v[p, g]
//
//   q     [T, Hq, Dk], k [tokens, Hkv, Dk], v [tokens, Hkv, Dv]
//   lists [T, Hkv, n] blocks of l' tokens, or [T, Hkv, n, 2] token ranges: ascending, disjoint, -1
//
// Grid: persistent. Tiles and pipeline: attend/selected_pipeline.cuh. Consumers and Config:
// attend/selected_mma.cuh.
//
// Bound by shared memory reads if adjacent lists are alike: ldmatrix of all K and V for every 16
// rows keeps shared memory 80 % busy (H200, 64k tokens, 64/4 heads, D 128: 6.6 ms). Bound by L2 if
// they differ (random lists: 11.1 ms, of which the copies alone take 9.8 to 11.0).
//
// Tried without gain (correlated lists / random lists): two m16 tiles per warp that share fragments
// (7.6 ms; a single warp waits more than it saves); twelve warps with steps of 32 keys
// (7.1 / 11.6); four warps with two CTAs per SM (7.2 / 12.0); fewer stages (five: 8.1 / 11.6).
//
// At 128k tokens random lists take 31.5 ms, and as much if all keys come from the lower half of the
// sequence, 34 MB a head: passes over parts of the keys that stay in L2 would save nothing.
//
// Each multiprocessor binds the copies, not L2 as a whole: without products the random
// lists take 9.8 ms, and 19.6 ms with half of the CTAs. attend_compressed_topn_sm90 of the next KV
// head on the other half would therefore take as long as one kernel after the other.
#pragma once
#include "attend/selected_mma.cuh"

extern "C" __global__ void
__launch_bounds__(Config::kThreads, Config::kMinBlocks) attend_selected_sm90_mma(
    const __grid_constant__ CodedParamsOf<Config, NsaiAttendSelectedTma,
                                          NsaiCachedAttendSelectedTma, NsaiCodedAttendSelectedTma>
        p) {
  attend_pipeline<Config>(p, [&](const unsigned char *shared) { consume<Config>(p, shared); });
}
