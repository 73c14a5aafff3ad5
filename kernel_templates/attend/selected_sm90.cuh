// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_selected_sm90: attention of every token over its own selection (sm_90a).
//
//   O[t, h] = sum over keys p in list[t, g], p <= t, of softmax_p(scale q[t, h] . k[p, g]) v[p, g]
//
//   q     [T, Hq, Dk], k [tokens, Hkv, Dk], v [tokens, Hkv, Dv]
//   lists [T, Hkv, n] blocks of l' tokens, or [T, Hkv, n, 2] token ranges: ascending, disjoint, -1
//
// Grid: persistent; tiles and ring as in attend/selected_pipeline.cuh, consumers and Config as in
// attend/selected_wgmma.cuh.
//
// Bound by latency, and by power in long runs. H200, 64k tokens, 64/4 heads, D 128, unions of 4
// tokens of 23 blocks, three warpgroups: tensor cores busy for 59 % (64 rows by 64 keys take 840
// clocks, the products 512); of its time a warpgroup waits 15 % for Q K^T, 15 % for P V, 16 % for
// the slowest of its warps, 9 % for the next stage. 5.5 ms (6.1 in a long run); attend_selected_sm90_mma
// 6.6 (7.0). Did not help: two warpgroups with 232 registers (6.8 ms), one and two blocks (6.8);
// with those, scores of the next stage before P V of this one, so that P V runs during the softmax
// (7.5 and 7.4: stages are held longer, and the warpgroups that share them drift apart less); a
// stage less (5.8).
#pragma once
#include "attend/selected_wgmma.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_selected_sm90(const __grid_constant__ NsaiAttendSelectedTma p) {
  attend_pipeline<Config>(p, [&](const unsigned char *shared) { consume<Config>(p, shared); });
}
