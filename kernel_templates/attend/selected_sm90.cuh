// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_selected_sm90: each token attends to its own selection, on wgmma and TMA (sm_90a).
//
//   O[t, h] = sum over keys p in list[t, g], p <= t, of softmax_p(scale q[t, h] . k[p, g]) v[p, g]
//
//   q     [T, Hq, Dk], k [tokens, Hkv, Dk], v [tokens, Hkv, Dv]
//   lists [T, Hkv, n] blocks of l' tokens, or [T, Hkv, n, 2] token ranges: ascending, disjoint, -1
//
// Grid: persistent. Tiles and pipeline: attend/selected_pipeline.cuh. Consumers and Config:
// attend/selected_wgmma.cuh.
//
// Bound by latency, and by power in long runs. H200, 64k tokens, 64/4 heads, D 128, merged lists of
// 4 tokens with 23 blocks, three warpgroups: tensor cores are busy 59 % of the time (64 rows by 64
// keys take 840 clocks, the products alone 512). A warpgroup spends 15 % of its time waiting for Q
// K^T, 15 % for P V, 16 % for the slowest of its warps, and 9 % for the next stage. 5.5 ms (6.1 in
// a long run); attend_selected_sm90_mma takes 6.6 ms (7.0).
//
// Tried without gain: two warpgroups with 232 registers (6.8 ms), with one and two CTAs per SM
// (6.8); with those, scores of the next stage before P V of this one, so that P V overlaps with the
// softmax (7.5 and 7.4: stages are held longer, and the warpgroups that share them drift apart
// less); one stage fewer (5.8).
//
// The order of the warpgroups' products is not what binds. attend_selected_window_sm90 at 64k, with
// equal lists for all tokens of a tile: 6.67 ms; P V of a stage issued together with Q K^T of the
// next one 6.63 ms; the same in turns of the three warpgroups by named barriers 6.54 ms. With lists
// as they are: 8.28 ms; both products together 8.45 ms; in turns by a lock in shared memory 9.25
// ms.
#pragma once
#include "attend/selected_wgmma.cuh"

extern "C" __global__ void
__launch_bounds__(Config::kThreads, Config::kMinBlocks) attend_selected_sm90(
    const __grid_constant__ CodedParamsOf<Config, NsaiAttendSelectedTma,
                                          NsaiCachedAttendSelectedTma, NsaiCodedAttendSelectedTma>
        p) {
  attend_pipeline<Config>(p, [&](const unsigned char *shared) { consume<Config>(p, shared); });
}
