// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// select_index_scores: the importance of each selection block where an index branch chooses blocks: the
// greatest score of the block's tokens that the query sees.
//
//   I[t, g, j] = scale * max of qi[t, g] . ki[p]  over  j*l' <= p < (j+1)*l', p <= t
//
// A score that is NaN counts as -inf. Keys of a cache may be codes (select/index_code_keys.cuh), and then
// their scale is a factor of I.
//
//   qi [T, Hi, Di], ki [rows, 1, Di]: one key for each token, which all heads share
//   -> importance f32 [tokens, Hi, blocks] (for select_topn, whose KV heads are the index heads)
//
// Output: every j <= t / l' of the tokens in [token_begin, token_end) that have more than n of them; of
// others any or none, since select_topn takes all of their blocks. With kProbe: the tokens p.rows[0 ..
// num_rows), one CTA each, in output row = index in the list, all p.columns, with zeros where there is
// no candidate. A token's result is the same bits in every chunk of tokens and every split of keys.
//
// Grid: x = groups of kGroup heads * tiles, group-major, long tiles first, over the tiles of kTokens =
// kRows / kGroupPadded tokens that can hold a token of the chunk. kProbe: num_rows tiles. y: parts of the
// blocks, any number.
//
// CTA: the rows of select/query_rows.cuh, where a "KV head" is a group of index heads; p.kv_heads counts
// groups. Registers: Q (Di / 2 per thread), a 32x32 slice of scores, and for each of a thread's four
// rows the greatest score so far and that of one block in four: the lanes of a row store four blocks
// together. Shared memory: a pipeline of kStages tiles of keys.
//
// Bound by mma.sync; a decode step by memory, or by the latency of tiles.
//
// Config: Element, kHeadDimQk (Di), kGroup, kGroupPadded, kRows, kKeys, kWarps, kThreads, kMinBlocks,
// kSharedBytes, kStages, kBlock and kStride (1: a key is a token), kSelectBlock (l'), kSelectCount (n),
// kProbe, kStep, kCountReads; those of data/source.cuh.
#pragma once
#include "core/copy.cuh"
#include "core/launch.cuh"
#include "core/tile.cuh"
#include "core/topn.cuh"
#include "core/types.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"
#include "select/importance_keys.cuh"
#include "select/index_code_keys.cuh"
#include "select/query_rows.cuh"
#include "select/score_rows.cuh"

static_assert(Config::kBlock == 1 && Config::kStride == 1, "a key is a token");
static_assert(Config::kStages >= 2, "a tile is copied while another is read");

constexpr int kSliceKeys = 32; // of scores

template <class C> struct SharedStorage {
  u8 keys[C::kStages][KeyTileOf<CopiedKeys<C>>::kBytes]; // [kKeys, Di]
};
static_assert(sizeof(SharedStorage<Config>) == Config::kSharedBytes,
              "the host computes another size of shared memory");

// ---- steps

// A thread's four rows.
struct RowScores {
  float open[2][2]; // greatest score of the open block, of the thread's columns
  float kept[2][2]; // of block x of four where lane % 4 is x
};

NSAI_DEVICE void open_block(RowScores &rows) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) rows.open[tile][half] = kMinusInf;
}

// Takes in the keys [from, to) of a slice. fmaxf() ignores NaN.
template <class C, bool kWhole>
NSAI_DEVICE void add_slice(RowScores &rows, const float (&rS)[2][RowTraits<C>::kSliceTiles][4],
                           int from, int to, int lane) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
#pragma unroll
    for (int n = 0; n < RowTraits<C>::kSliceTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = n * 8 + lane % 4 * 2 + i % 2;
        if (kWhole || (from <= key && key < to))
          rows.open[tile][i / 2] = fmaxf(rows.open[tile][i / 2], rS[tile][n][i]);
      }
}

// Ends block j; all lanes of the warp take part.
NSAI_DEVICE void close_block(RowScores &rows, int j, int lane) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float best = rows.open[tile][half];
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 1));
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 2));
      if (j % kStoreBlocks == lane % 4) rows.kept[tile][half] = best;
    }
}

// Stores the blocks [begin, j] of the aligned four that have j; `begin` is the first of the CTA.
template <class C>
NSAI_DEVICE void store_blocks(const ScoreRows &out, const RowScores &rows,
                              const ScoreScale<C> &scale, int begin, int j, int warp, int lane) {
  const int block = j / kStoreBlocks * kStoreBlocks + lane % 4;
  if (block < begin || block > j) return;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 32 * warp + 16 * tile + 8 * half + lane / 4;
      const int head = row % C::kGroupPadded, query = out.tokens.first + row / C::kGroupPadded;
      if (head >= C::kGroup || !out.tokens.present(query) ||
          block >= candidate_count<C>(out.tokens.seq.position(query)))
        continue;
      out.at(query, out.group * C::kGroup + head)[block] = rows.kept[tile][half] * scale.of(tile);
    }
}

// ---- body

template <class C> NSAI_DEVICE void score(const StepRowParams<C> &step) {
  const RowParams<C> &params = (const RowParams<C> &)step;
  const NsaiImportance &p = packed_of(params);
  constexpr int kBlockKeys = C::kSelectBlock;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  SharedStorage<C> &shared = *(SharedStorage<C> *)shared_bytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // ---- coordinates
  const int count = gridDim.x / p.kv_heads, group = blockIdx.x / count;
  const TokenTile tokens = find_tokens<C>(params, blockIdx.x % count, count);
  const ScoreRows out = { p, tokens, group };
  if constexpr (C::kProbe) clear_columns<C>(out);
  if (tokens.begin >= tokens.end || !is_ranked<C>(tokens)) return;
  const int visible_to_all = visible_blocks<C>(tokens.seq.position(tokens.begin));
  const int visible_to_any = visible_blocks<C>(tokens.seq.position(tokens.end - 1));
  const KeyTiles tiles = find_block_tiles<C>(visible_to_any);
  const int first_block = tiles.begin * C::kKeys / kBlockKeys;
  const int end_key = min(tiles.end * C::kKeys, visible_to_any);
  const auto keys = find_keys<CopiedKeys<C>>(params, tokens.s, 0); // [N, Di]
  // Warps of a decode step's rows may have none.
  const bool has_rows = tokens.first + 32 * warp / C::kGroupPadded < tokens.end;

  // ---- prologue
#pragma unroll
  for (int i = 0; i < C::kStages - 1; ++i) {
    if (tiles.begin + i < tiles.end)
      keys.load(shared_address(shared.keys[i]), (tiles.begin + i) * C::kKeys, visible_to_any);
    copy_async_commit();
  }
  u32 rQ[2][RowTraits<C>::kSteps][4]; // [32 rows, Di]
  const ScoreScale<C> scale = [&] {
    if constexpr (kReadsCodes<C>) {
      return load_code_queries<C>(params, tokens, group, warp, lane, rQ);
    } else {
      load_queries<C>(p, tokens, group, warp, lane, rQ, [](int, int, bool, long long, int) {});
      return ScoreScale<C>{ p };
    }
  }();
  RowScores rows;
  open_block(rows);

  // ---- key tiles
  int stage = 0;
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    copy_async_wait<C::kStages - 2>();
    // All warps' copies of this tile have arrived, and all warps have finished with the tile before,
    // whose stage is filled next.
    __syncthreads();
    const int next = stage == 0 ? C::kStages - 1 : stage - 1;
    if (tile + C::kStages - 1 < tiles.end)
      keys.load(shared_address(shared.keys[next]), (tile + C::kStages - 1) * C::kKeys,
                visible_to_any);
    copy_async_commit();

    const u32 sK = shared_address(shared.keys[stage]); // [kKeys, Di]
    stage = stage + 1 == C::kStages ? 0 : stage + 1;
    if (!has_rows) continue;
#pragma unroll
    for (int slice = 0; slice < C::kKeys; slice += kSliceKeys) {
      const int first = tile * C::kKeys + slice;
      if (first >= end_key) break;
      float rS[2][RowTraits<C>::kSliceTiles][4]; // [32 rows, 32 keys]
      const u32 sSlice = sK + slice * KeyTileOf<CopiedKeys<C>>::kPitch;
      if constexpr (kReadsCodes<C>)
        code_scores<C>(rS, rQ, sSlice, lane);
      else
        scores<C>(rS, rQ, sSlice, lane);
      if (first + kSliceKeys > visible_to_all) mask<C>(rS, tokens, first, kMinusInf, warp, lane);
      const bool ends = first + kSliceKeys >= end_key;
      const auto close = [&](int j, bool last) {
        close_block(rows, j, lane);
        open_block(rows);
        if (last || j % kStoreBlocks == kStoreBlocks - 1)
          store_blocks<C>(out, rows, scale, first_block, j, warp, lane);
      };
      if constexpr (kBlockKeys % kSliceKeys == 0) {
        add_slice<C, true>(rows, rS, 0, kSliceKeys, lane);
        if (ends || (first + kSliceKeys) % kBlockKeys == 0) close(first / kBlockKeys, ends);
      } else {
        for (int j = first / kBlockKeys; j * kBlockKeys < min(first + kSliceKeys, end_key); ++j) {
          const int end = min((j + 1) * kBlockKeys, end_key);
          add_slice<C, false>(rows, rS, j * kBlockKeys - first, end - first, lane);
          if (end <= first + kSliceKeys) close(j, end == end_key);
        }
      }
    }
  }
  count_keys<C>(step, tokens.s, group, visible_to_any); // where they are counted there is one split
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    select_index_scores(const __grid_constant__ StepRowParams<Config> p) {
  begin_kernel();
  score<Config>(p);
}
