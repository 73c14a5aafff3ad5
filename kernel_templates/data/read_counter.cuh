// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Counts what a decode step reads from the KV cache, where it is copied, for the caller's counters
// (include/nsa/kv_cache.h). In kernels that do not count (Config::kCountReads 0) the counter is
// empty and costs nothing.
#pragma once
#include "core/types.cuh"
#include "params/kv_cache.h"

// One thread's share.
template <bool kCounts> struct ReadCounter {
  u32 tokens = 0, bytes = 0;

  // Counts a row of kDim elements, if present, of which the thread copies chunk `lane_chunk` and
  // every kLanes-th chunk after it. The lane with a row's first chunk counts the token.
  template <int kDim, int kLanes, bool kToken> NSAI_DEVICE void add(int lane_chunk, bool present) {
    if (!present) return;
    bytes += (kDim / 8 - lane_chunk + kLanes - 1) / kLanes * 16;
    if (kToken && lane_chunk == 0) ++tokens;
  }

  // Adds the warp's shares to gKvReads [tokens, bytes]; NULL: not wanted. All lanes take part.
  NSAI_DEVICE void store(u64 *gKvReads) const {
    const u32 all_tokens = __reduce_add_sync(~0u, tokens),
              all_bytes = __reduce_add_sync(~0u, bytes);
    if (!gKvReads || threadIdx.x % 32 != 0 || !all_bytes) return;
    atomicAdd(gKvReads, (u64)all_tokens);
    atomicAdd(gKvReads + 1, (u64)all_bytes);
  }
};

template <> struct ReadCounter<false> {
  template <int, int, bool> NSAI_DEVICE void add(int, bool) {}
  NSAI_DEVICE void store(u64 *) const {}
};

// The counters of one sequence, KV head and branch.
template <class C>
NSAI_DEVICE u64 *find_kv_reads(const NsaiKvReads &kv_reads, int s, int group, int branch) {
  if constexpr (!C::kCountReads) return nullptr;
  if (!kv_reads.data) return nullptr;
  return (u64 *)kv_reads.data + s * kv_reads.sequence_stride + group * kv_reads.head_stride +
         branch * kv_reads.branch_stride;
}
