// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_split_kv_compressed: the compressed branch of a decode step, split over keys (split-KV),
// and the sums of its probabilities over each selection block.
//
//   o[split, row]  = sum over the split's blocks i of 2^(scale_log2 * q . kc_i - reference) vc_i
//   pooled[j, row] = log2 of the sum over blocks i of selection block j of
//                    w_own(i) 2^(scale_log2 * q . kc_i)
//
//   q [T, Hq, Dk], compressed entries [pages, P/d, Hkv, D] -> splits (decode_split_kv_combine),
//   pooled values and carries (decode_split_kv_select)
//
// decode/work.cuh explains tiles, runs of keys and carries.
//
// Grid: x = splits * tiles * kv_heads, splits outermost. A split without keys stores empty
// statistics and exits.
//
// CTA: consumer groups of kScanRows / 16 warps (decode/mainloop.cuh).
//
// Bound by memory: reads 2 (Dk + Dv) bytes per key, and writes 4 rows / r bytes per key.
//
// Config: those of decode/compressed_scan.cuh, kMinBlocks, kSharedBytes.
#pragma once
#include "core/launch.cuh"
#include "decode/compressed_scan.cuh"
#include "decode/mainloop.cuh"
#include "decode/mainloop_splits.cuh"
#include "decode/work.cuh"
#include "params/kv_cache.h"

template <class C, bool kQuads> struct ScanShared {
  typename ScanStream<C>::Shared stream;
  ScanPool<C> pool;
};
template <class C> struct ScanShared<C, true> {
  union {
    typename ScanStream<C>::Shared stream;
    ScanPool<C> pool; // empty
  };
};
using SharedStorage = ScanShared<Config, kPoolsQuads<Config>>;
static_assert(sizeof(SharedStorage) == Config::kSharedBytes,
              "the host computes another size of shared memory");

template <class C> NSAI_DEVICE void scan(const NsaiDecode &p) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage &shared = *(SharedStorage *)shared_bytes;
  const ScanStream<C> at;

  // ---- coordinates
  const int work_items = p.tiles * p.kv_heads;
  const int split = blockIdx.x / work_items, work_item = blockIdx.x % work_items,
            group = work_item % p.kv_heads;
  const DecodeTile tile = find_decode_tile<Decode<C>::kTileTokens>(p, work_item / p.kv_heads);
  const int tokens = min(Decode<C>::kTileTokens, tile.seq.q_len - tile.first_query);
  if (tokens <= 0) return;
  const ConsumerGroupRuns runs =
      find_runs<C>(p, visible_entries<C>(last_position<C>(tile.seq, tile.first_query)));
  auto row_of = [&](int row) -> long long {
    if (row >= tokens * C::kGroupPadded) return -1;
    return split_row(p.scan, C::kScanRows, work_item, split, row);
  };
  if (split * Decode<C>::kConsumerGroups * runs.each >= runs.granules) {
    store_empty_split(p.scan, C::kScanRows, C::kThreads, row_of);
    return;
  }

  // ---- keys
  float o[ScanStream<C>::kO][4] = {}; // [16, Dv]
  SoftmaxRows rows;
  scan_run<C>(p, shared.stream, shared.pool, at, tile, tokens, work_item, group,
              split * Decode<C>::kConsumerGroups + at.consumer_group, runs, o, rows);
  store_split<C>(shared.stream, at, o, rows, p.scan, C::kScanRows, row_of);
}

extern "C" __global__ void
__launch_bounds__(Config::kThreads, Config::kMinBlocks) decode_split_kv_compressed(
    const __grid_constant__ ParamsOf<Config::kEntryCodes, NsaiDecode, NsaiCodedDecode>::Type p) {
  begin_kernel();
  scan<Config>((const NsaiDecode &)p);
}
