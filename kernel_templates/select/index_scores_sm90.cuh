// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// select_index_scores_sm90: the index scores of select/index_scores.cuh on wgmma and TMA (sm_90a).
//
//   I[t, g, j] = scale * max of qi[t, g] . ki[p]  over  j*l' <= p < (j+1)*l', p <= t
//
// A score that is NaN counts as -inf. With kScaled the keys are elements in the workspace that were codes of
// a cache (kv_cache/expand_tokens.cuh), and their scale is a factor of I.
//
//   qi [T, Hi, Di], ki [rows, 1, Di]: one key for each token, which all heads share
//   -> importance f32 [tokens, Hi, blocks] (for select_topn, whose KV heads are the index heads)
//
// Output: every j <= t / l' of the tokens in [token_begin, token_end) that have more than n of them; of
// others any or none. A token's result is the same bits in every chunk of tokens.
//
// Grid: x = groups of kGroup heads * tiles, group-major, long tiles first, a CTA each, over the tiles
// of select/token_tile.cuh. y: parts of the blocks, any number.
//
// CTA: kRows / 64 consumer warpgroups, each of 64 rows, and one producer warpgroup, of which one warp
// asks for Q once and for tiles of kKeys keys ahead of the consumers. Keys of a cache come as boxes of
// pages (data/cached_boxes.cuh). Keys behind the sequence may be anything: they are masked.
//
// Consumer: S = Q K^T of 64 rows and kKeys keys, whose maximum along the keys of a block takes the
// registers of a lane, then its quad. While one warpgroup looks for maxima, the products of another run.
// The lanes of a quad keep a block each, and store four together. Shared memory:
// nsai_smem_index_scores_sm90() of params/smem.h.
//
// Bound by tensor cores: 2.2 TFLOP at 64k tokens, 4 heads, Di 128.
//
// Config: Element, kHeadDimQk (Di), kGroup, kGroupPadded, kRows, kKeys, kStages, kThreads, kMinBlocks,
// kSharedBytes, kBlock and kStride (1: a key is a token), kSelectBlock (l'), kSelectCount (n),
// kSelectInit, kSelectLocal, kProbe and kCountReads (0); those of data/source.cuh, kScaled among them.
#pragma once
#include "core/barrier.cuh"
#include "core/launch.cuh"
#include "core/pipeline.cuh"
#include "core/tile.cuh"
#include "core/tma.cuh"
#include "core/topn.cuh"
#include "core/types.cuh"
#include "core/wgmma.cuh"
#include "data/cached_boxes.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"
#include "params/smem.h"
#include "select/score_rows.cuh"
#include "select/token_tile.cuh"

static_assert(Config::kBlock == 1 && Config::kStride == 1, "a key is a token");
static_assert(!Config::kProbe && !Config::kCountReads, "select_index_scores does these");
static_assert(Config::kSelectBlock % Config::kKeys == 0 ||
                  (Config::kKeys % Config::kSelectBlock == 0 && Config::kSelectBlock % 8 == 0),
              "blocks end with tiles, or within them with the columns of an n8 tile");
static_assert(Config::kGroupPadded <= 64, "a token lies within a warpgroup");

template <class C> struct KernelTraits {
  static constexpr int kConsumers = C::kRows / 64;
  static constexpr int kBoxTokens = 64 / C::kGroupPadded;       // tokens of 64 rows
  static constexpr int kN = C::kKeys / 8;                       // n8 tiles of S
  static constexpr int kSteps = padded_dim(C::kHeadDimQk) / 16; // k16 steps
  static constexpr int kQueryBytes = nsai_panel_bytes(64, C::kHeadDimQk);
  static constexpr int kKeyBytes = nsai_panel_bytes(C::kKeys, C::kHeadDimQk);
  // Blocks of a tile, and n8 tiles of one of them, or of its part in the tile.
  static constexpr int kTileBlocks = C::kSelectBlock < C::kKeys ? C::kKeys / C::kSelectBlock : 1;
  static constexpr int kBlockN = kN / kTileBlocks;
  // As in attend/mainloop_sm90_tiles.cuh; four warpgroups have 96 each at the launch.
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 24;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 240 : kConsumers == 3 ? 160 : 112;
  static_assert(2 <= kConsumers && kConsumers <= 4 && kConsumers * 64 == C::kRows,
                "registers are divided between two to four consumer warpgroups");
  static_assert(C::kThreads == 128 * (kConsumers + 1),
                "consumer warpgroups and one producer warpgroup");
};

template <class C> struct SharedStorage {
  u8 q[KernelTraits<C>::kConsumers][KernelTraits<C>::kQueryBytes]; // [64, Di]
  u8 k[C::kStages][KernelTraits<C>::kKeyBytes];                    // [kKeys, Di]
  u64 barriers[2 * C::kStages];                                    // of k
  u64 q_full;
};
static_assert(sizeof(SharedStorage<Config>) == Config::kSharedBytes,
              "the host computes another size of shared memory");

template <class C>
using ScoreParams =
    typename ParamsOf<C::kCached, NsaiIndexScoresTma, NsaiCachedIndexScoresTma>::Type;

// ---- the producer

// Starts the copies of tiles of keys. One warp.
template <class C>
NSAI_DEVICE void produce_keys(const NsaiIndexScoresTma &p, const TokenTile &tokens,
                              const KeyTiles &tiles, SharedStorage<C> &shared,
                              const Barriers<C::kStages> &barriers) {
  if (threadIdx.x != 0) return;
  const int row = first_block_row<C::kStride>(p.packed.seq, tokens.s);
  PipelineState<C::kStages> at;
  for (int tile = tiles.begin; tile < tiles.end; ++tile, at.advance()) {
    barriers.producer_acquire(at);
    barrier_arrive_expecting(barriers.full(at.stage), KernelTraits<C>::kKeyBytes);
    tma_load_panels<C::kHeadDimQk>(shared_address(shared.k[at.stage]), p.k, barriers.full(at.stage),
                                   C::kKeys, 0, row + tile * C::kKeys);
  }
}

template <class C>
NSAI_DEVICE void produce_keys(const NsaiCachedIndexScoresTma &p, const TokenTile &tokens,
                              const KeyTiles &tiles, SharedStorage<C> &shared,
                              const Barriers<C::kStages> &barriers) {
  using Boxes = CachedBoxes<C::kPageRows, nsai_list_box_rows(C::kPageRows, C::kKeys), C::kKeys>;
  const Boxes boxes = { find_rows<C::kPageRows>(p.batch, tokens.s, 0), 0, tokens.seq.kv_len,
                        p.pages };
  const NsaiCacheTensor one_head = {};
  PipelineState<C::kStages> at;
  int page = boxes.page_of_lane(tiles.begin * C::kKeys);
  for (int tile = tiles.begin; tile < tiles.end; ++tile, at.advance()) {
    const int here = page, first = tile * C::kKeys;
    page = boxes.page_of_lane(first + C::kKeys);
    barriers.producer_acquire(at);
    if (threadIdx.x == 0)
      barrier_arrive_expecting(barriers.full(at.stage), KernelTraits<C>::kKeyBytes);
    __syncwarp();
    boxes.template load<C::kHeadDimQk>(shared_address(shared.k[at.stage]), p.k,
                                       barriers.full(at.stage), one_head, 0, first, here);
  }
}

template <class C>
NSAI_DEVICE void produce_queries(const ScoreParams<C> &p, const TokenTile &tokens, int group,
                                 SharedStorage<C> &shared) {
  using K = KernelTraits<C>;
  const u32 q_full = shared_address(&shared.q_full);
  if (threadIdx.x != 0) return;
  barrier_arrive_expecting(q_full, sizeof shared.q);
#pragma unroll
  for (int w = 0; w < K::kConsumers; ++w)
    tma_load_panels<C::kHeadDimQk>(shared_address(shared.q[w]), p.q, q_full, 64, group * C::kGroup,
                                   tokens.seq.q_begin + tokens.first + w * K::kBoxTokens);
}

// ---- consumers

// A thread's two rows, which lie 8 rows apart.
struct RowScores {
  int visible[2];    // keys that the row sees
  int candidates[2]; // blocks to be stored; 0: the row is none
  float *out[2];     // [blocks]
  float open[2];     // greatest score of the open block, of the thread's columns
  float kept[2];     // of block x of four where lane % 4 is x
};

template <class C> NSAI_DEVICE RowScores find_score_rows(const ScoreRows &out, int warp_row) {
  RowScores rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + 8 * half + threadIdx.x % 32 / 4;
    const int head = row % C::kGroupPadded, query = out.tokens.first + row / C::kGroupPadded;
    const bool present = head < C::kGroup && out.tokens.present(query);
    const int position = out.tokens.seq.position(query);
    rows.visible[half] = visible_blocks<C>(position);
    rows.candidates[half] = present ? candidate_count<C>(position) : 0;
    rows.out[half] =
        out.at(present ? query : out.tokens.begin, out.group * C::kGroup + (present ? head : 0));
    rows.open[half] = kMinusInf;
  }
  return rows;
}

// Ends block j; all lanes of the warp take part.
NSAI_DEVICE void close_block(RowScores &rows, int j, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float best = rows.open[half];
    best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 1));
    best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 2));
    if (j % kStoreBlocks == lane % 4) rows.kept[half] = best;
    rows.open[half] = kMinusInf;
  }
}

// Stores the blocks [begin, j] of the aligned four that have j; `begin` is the first of the CTA.
NSAI_DEVICE void store_blocks(const RowScores &rows, int begin, int j, float scale, int lane) {
  const int block = j / kStoreBlocks * kStoreBlocks + lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (begin <= block && block <= j && block < rows.candidates[half])
      rows.out[half][block] = rows.kept[half] * scale;
}

// Hides the keys behind those that a row sees; `first` is the tile's first key.
template <class C>
NSAI_DEVICE void mask_scores(float (&s)[KernelTraits<C>::kN][4], const RowScores &rows, int first,
                             int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int visible = rows.visible[half] - first - lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < KernelTraits<C>::kN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (n * 8 + e >= visible) s[n][2 * half + e] = kMinusInf;
  }
}

// Issues S = Q K^T [64, kKeys] of a warpgroup, and waits for it.
template <class C> NSAI_DEVICE void multiply(float (&s)[KernelTraits<C>::kN][4], u32 sQ, u32 sK) {
  wgmma_scores<typename C::Element, C::kKeys, KernelTraits<C>::kSteps>(s[0], sQ, sK);
  wgmma_wait<0>();
#pragma unroll
  for (int n = 0; n < KernelTraits<C>::kN; ++n) wgmma_hold(s[n]);
}

// What products are multiplied by.
template <class C> NSAI_DEVICE float score_scale(const ScoreParams<C> &params) {
  const float scale = packed_of(params).scale;
  if constexpr (kAppliesScales<C>)
    return scale * scale_of(NsaiScale{ params.k_scale, 0 }, 0);
  else
    return scale;
}

template <class C>
NSAI_DEVICE void consume(const ScoreParams<C> &params, const ScoreRows &out, const KeyTiles &tiles,
                         int keys_seen, SharedStorage<C> &shared,
                         const Barriers<C::kStages> &barriers, int consumer) {
  using K = KernelTraits<C>;
  const float scale = score_scale<C>(params);
  const int lane = threadIdx.x % 32;
  const int visible_to_all = visible_blocks<C>(out.tokens.seq.position(out.tokens.begin));
  RowScores rows = find_score_rows<C>(out, consumer * 64 + threadIdx.x % 128 / 32 * 16);
  const u32 sQ = shared_address(shared.q[consumer]); // [64, Di]
  PipelineState<C::kStages> at;
  barrier_wait(shared_address(&shared.q_full), 0);
  const int end_key = min(tiles.end * C::kKeys, keys_seen);
  const int first_block = tiles.begin * C::kKeys / C::kSelectBlock;
  for (int first = tiles.begin * C::kKeys; first < end_key; first += C::kKeys, at.advance()) {
    float s[K::kN][4]; // [64, kKeys]
    barriers.consumer_wait(at.stage, at.phase);
    multiply<C>(s, sQ, shared_address(shared.k[warp_uniform(at.stage)]));
    if (lane == 0) barriers.consumer_release(at.stage);
    if (first + C::kKeys > visible_to_all) mask_scores<C>(s, rows, first, lane);
#pragma unroll
    for (int b = 0; b < K::kTileBlocks; ++b) {
#pragma unroll
      for (int n = b * K::kBlockN; n < (b + 1) * K::kBlockN; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          rows.open[half] = fmaxf(rows.open[half], fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      // Keys that end here: those of the block, or of all.
      const int end = first + (b + 1) * (C::kKeys / K::kTileBlocks),
                j = (end - 1) / C::kSelectBlock;
      const bool last = end >= end_key;
      if (end % C::kSelectBlock != 0 && !last) continue;
      close_block(rows, j, lane);
      if (last || j % kStoreBlocks == kStoreBlocks - 1)
        store_blocks(rows, first_block, j, scale, lane);
      if (last) break;
    }
  }
}

// ---- the kernel

template <class C> NSAI_DEVICE void score(const ScoreParams<C> &params) {
  using K = KernelTraits<C>;
  const NsaiImportance &p = packed_of(params);
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage<C> &shared = *(SharedStorage<C> *)shared_bytes;

  // ---- coordinates
  const int count = gridDim.x / p.kv_heads, group = blockIdx.x / count;
  const TokenTile tokens = find_tokens<C>(params, blockIdx.x % count, count);
  if (tokens.begin >= tokens.end || !is_ranked<C>(tokens)) return;
  const int keys_seen = visible_blocks<C>(tokens.seq.position(tokens.end - 1));
  const KeyTiles tiles = find_block_tiles<C>(keys_seen);
  if (tiles.begin >= tiles.end) return;
  const Barriers<C::kStages> barriers = { shared_address(shared.barriers) };
  if (threadIdx.x == 0) {
    tma_prefetch_map(params.q);
    tma_prefetch_map(params.k);
    barriers.init(1, 4 * K::kConsumers);
    barrier_init(shared_address(&shared.q_full), 1);
    barrier_init_fence();
  }
  __syncthreads(); // barriers are initialised

  const int warpgroup = warp_uniform(threadIdx.x / 128);
  if (warpgroup == 0) {
    registers_drop<K::kProducerRegisters>();
    if (threadIdx.x >= 32) return;
    produce_queries<C>(params, tokens, group, shared);
    produce_keys<C>(params, tokens, tiles, shared, barriers);
  } else {
    registers_raise<K::kConsumerRegisters>();
    const ScoreRows out = { p, tokens, group };
    consume<C>(params, out, tiles, keys_seen, shared, barriers, warpgroup - 1);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    select_index_scores_sm90(const __grid_constant__ ScoreParams<Config> p) {
  begin_kernel();
  score<Config>(p);
}
