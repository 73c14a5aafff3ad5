// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Scores of queries over compressed or coarse keys on wgmma (sm_90a): what select_importance_sm90 and
// select_normalizer_sm90 share.
//
//   S [kRows, kKeys] = Q K^T of a CTA's rows, tile by tile
//
// CTA: kRows / 64 consumer warpgroups of 64 rows each and one warp that copies. Rows are token-major over
// kGroupPadded heads, so that a warp has 16 / kGroupPadded tokens. A tile of keys is interleaved: a
// lane holds 32 adjacent keys of each of its two rows (core/tma.cuh).
//
//     last warp    wait for a stage | copy K by cp.async
//     consumers    Q K^T | what the kernel does with a tile of S
//
// Four warpgroups share a multiprocessor, in one CTA or two: the products of one run beside the
// exponentials of the others, which take as long.
//
// Shared memory: nsai_smem_scores_sm90() of params/smem.h.
//
// Config: Element, kHeadDimQk, kGroup, kGroupPadded (8 or 16), kRows, kKeys (128), kStages, kThreads
// (2 kRows + 32), kMinBlocks, kSharedBytes, kBlock (l), kStride (d), kStep (0); those of
// select/token_tile.cuh and data/source.cuh.
#pragma once
#include "core/barrier.cuh"
#include "core/copy.cuh"
#include "core/pipeline.cuh"
#include "core/tma.cuh"
#include "core/types.cuh"
#include "core/wgmma.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"
#include "select/importance_keys.cuh"
#include "select/token_tile.cuh"

template <class C> struct ScoreTraits {
  static constexpr int kConsumers = C::kRows / 64; // warpgroups
  static constexpr int kConsumerThreads = 128 * kConsumers;
  static constexpr int kSteps = padded_dim(C::kHeadDimQk) / 16; // k16 steps of Q K^T
  static constexpr int kChunks = padded_dim(C::kHeadDimQk) / 8; // 16-byte chunks of a row

  static_assert(C::kRows == 64 * kConsumers && C::kKeys == kInterleavedRows,
                "warpgroups of 64 rows over tiles of interleaved keys");
  static_assert(C::kThreads == kConsumerThreads + 32, "consumers and the warp that copies");
  static_assert(C::kGroupPadded == 8 || C::kGroupPadded == 16, "a token's heads lie in one warp");
};

template <class C> struct SharedStorage {
  unsigned char q[ScoreTraits<C>::kConsumers][nsai_panel_bytes(64, C::kHeadDimQk)];
  unsigned char k[C::kStages][nsai_panel_bytes(C::kKeys, C::kHeadDimQk)];
  u64 addresses[C::kKeys]; // of the rows of a tile of keys
  u64 barriers[2 * C::kStages];
};
static_assert(sizeof(SharedStorage<Config>) == Config::kSharedBytes,
              "the host computes another size of shared memory");

// ---- copies

// Copies this warpgroup's rows of Q; zeros for padding heads and absent tokens. The caller waits.
template <class C>
NSAI_DEVICE void copy_queries(u32 sQ, const NsaiImportance &p, const TokenTile &tokens, int group,
                              int first_row) {
  using P = ScoreTraits<C>;
  const u16 *gQ = (const u16 *)p.q.data; // [T, Hq, Dk]
  for (int i = threadIdx.x % 128; i < 64 * P::kChunks; i += 128) {
    const int row = i / P::kChunks, chunk = i % P::kChunks;
    const int head = (first_row + row) % C::kGroupPadded;
    const int query = tokens.first + (first_row + row) / C::kGroupPadded;
    const bool present = head < C::kGroup && tokens.present(query) && chunk * 8 < C::kHeadDimQk;
    const u16 *from = gQ;
    if (present)
      from += (tokens.seq.q_begin + query) * p.q.token_stride +
              (group * C::kGroup + head) * p.q.head_stride + chunk * 8;
    copy_async_16(sQ + chunk / 8 * 64 * kPanelPitch + panel_offset(row, chunk), from, present);
  }
  copy_async_commit();
}

template <class C> NSAI_DEVICE u64 key_address(const PackedKeys<C> &keys, int key) {
  return (u64)(keys.gK + key * keys.k.token_stride);
}
template <class C> NSAI_DEVICE u64 key_address(const CachedKeys<C> &keys, int key) {
  const int index = entry_index<C::kBlock, C::kStride>(key);
  return (u64)((const u16 *)keys.k.data + keys.group * keys.k.head_stride +
               row_offset(keys.k, keys.rows.page(index), keys.rows.slot(index)));
}

// Stores the addresses of the tile of keys from `first` on; rows behind the last key have its address,
// and are not read. One warp.
template <class C, class Keys>
NSAI_DEVICE void keep_addresses(u32 addresses, const Keys &keys, int first, int end) {
  const int lane = threadIdx.x % 32;
  __syncwarp(); // the addresses kept before have been read
#pragma unroll
  for (int row = lane; row < C::kKeys; row += 32) {
    const u64 at = end > 0 ? key_address(keys, min(first + interleaved_key(row), end - 1)) : 0;
    store_shared_pair(addresses + 8 * row, uint2{ (u32)at, (u32)(at >> 32) });
  }
  __syncwarp(); // the addresses are written
}

// Copies the tile of keys from `first` on, whose addresses were kept; keys from `end` on become zeros.
template <class C> NSAI_DEVICE void copy_keys(u32 sK, u32 addresses, int first, int end) {
  using P = ScoreTraits<C>;
  const int lane = threadIdx.x % 32, chunk = lane % 8;
#pragma unroll 2
  for (int row = lane / 8; row < C::kKeys; row += 4) {
    const uint2 at = load_shared_pair(addresses + 8 * row);
    const u16 *from = (const u16 *)((u64)at.y << 32 | at.x) + chunk * 8;
    const bool present = first + interleaved_key(row) < end;
    const u32 to = sK + panel_offset(row, chunk);
#pragma unroll
    for (int i = 0; i < panels(C::kHeadDimQk); ++i)
      if ((i + 1) * 8 <= P::kChunks || i * 8 + chunk < P::kChunks)
        copy_async_16(to + i * C::kKeys * kPanelPitch, from + i * kPanelColumns,
                      present && (i * 8 + chunk) * 8 < C::kHeadDimQk);
  }
  copy_async_commit();
}

// The warp that copies: all tiles of keys, in stages.
template <class C, class Keys>
NSAI_DEVICE void produce(SharedStorage<C> &shared, const Barriers<C::kStages> &barriers,
                         const Keys &keys, int tiles, int end) {
  const u32 addresses = shared_address(shared.addresses);
  PipelineState<C::kStages> at;
  keep_addresses<C>(addresses, keys, 0, end);
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile, at.advance()) {
    const int first = tile * C::kKeys;
    barriers.producer_acquire(at);
    copy_keys<C>(shared_address(shared.k[at.stage]), addresses, first, end);
    keep_addresses<C>(addresses, keys, first + C::kKeys, end);
    copy_async_wait<0>();
    shared_proxy_fence();
    barriers.producer_commit(at.stage);
  }
}

// ---- consumers

// Waits for the warpgroup's Q, whose copies its threads have started.
template <class C> NSAI_DEVICE void wait_queries(int consumer) {
  copy_async_wait<0>();
  shared_proxy_fence();
  threads_sync(1 + consumer, 128);
}

// S of the warpgroup's rows and the tile of keys in a stage, which is then released.
template <class C>
NSAI_DEVICE void score_tile(float (&s)[16][4], u32 sQ, SharedStorage<C> &shared,
                            const Barriers<C::kStages> &barriers,
                            const PipelineState<C::kStages> &at) {
  barriers.consumer_wait(at.stage, at.phase);
  wgmma_scores<typename C::Element, C::kKeys, ScoreTraits<C>::kSteps>(
      s[0], sQ, shared_address(shared.k[warp_uniform(at.stage)]));
  wgmma_wait<0>();
#pragma unroll
  for (int j = 0; j < 16; ++j) wgmma_hold(s[j]);
  if (threadIdx.x % 32 == 0) barriers.consumer_release(at.stage);
}

// Initialises the barriers; all threads of the CTA.
template <class C> NSAI_DEVICE Barriers<C::kStages> make_barriers(SharedStorage<C> &shared) {
  const Barriers<C::kStages> barriers = { shared_address(shared.barriers) };
  if (threadIdx.x == 0) {
    barriers.init(32, 4 * ScoreTraits<C>::kConsumers);
    barrier_init_fence();
  }
  __syncthreads(); // barriers are initialised
  return barriers;
}
