// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_split_kv_attend: window and selected branch of a decode step, split over keys.
//
//   o[part, h] = sum over the part's tokens p of 2^(scale_log2 * q[h] . k_p - reference) v_p
//   p: t - w < p <= t; or p <= t of the blocks in idx[t]; or the ranges there
//
//   q [T, Hq, Dk], the branches' pairs of the cache, idx [T, Hkv, n] (decode_split_kv_select, data_sort_blocks) or
//   [T, Hkv, n, 2] (data_sort_ranges) -> parts (decode_split_kv_combine)
//
// Grid   x = parts * tiles * kv_heads, parts outermost, of the selected branch, where tiles are of several
//        tokens; the first window_parts parts take the window before, which needs nothing of decode_split_kv_select
//        and begins beside it. Where tiles are one token's, and where ranges are, CTAs of the window come
//        first and those of the selected branch, of ranges parts * T * kv_heads, behind.
// CTA    one tile's rows of one group, teams of a warp for 16 rows: decode/mainloop.cuh. Tokens of a tile
//        share the keys of their windows and of blocks that several have chosen (decode/merged_keys.cuh);
//        ranges are one token's.
// Bound  by memory: 2 (Dk + Dv) bytes a key.
//
// Config: those of decode/mainloop.cuh, kSelectBlock (l'), kSelectCount (n), kRanges, kWindow (w),
// kPooled (lists are decode_split_kv_select's), kPageSize (P; 0: none), kRing (the window's pair lies in rings),
// kMinBlocks, kSharedBytes.
#pragma once
#include "data/cache_rows.cuh"
#include "decode/work.cuh"
#include "decode/raw_keys.cuh"
#include "decode/merged_keys.cuh"
#include "decode/mainloop.cuh"
#include "decode/mainloop_splits.cuh"
#include "core/launch.cuh"
#include "params/kv_cache.h"

constexpr int kTileTiles = Config::kScanRows / 16;
constexpr int kListTiles = Config::kRanges ? (Config::kGroupPadded + 15) / 16 : kTileTiles;

// Of a token's ranges: the number of a range's first key among all keys, and the steps from there to its
// position.
struct KeyRun {
  int first, apart;
};

struct RunsShared {
  KeyRun runs[Config::kSelectCount + 1]; // the one behind the last begins at all
};

template <class C, bool kRanges> struct ListsShared { using Type = UnionShared<C>; };
template <class C> struct ListsShared<C, true> { using Type = RunsShared; };

struct SharedPlan {
  union {
    KeyStream<Config, kTileTiles>::Shared tile;
    KeyStream<Config, kListTiles>::Shared listed;
    int lists[Config::kRanges ? 1 : UnionShared<Config>::kEntries]; // done with when Q comes
  };
  ListsShared<Config, Config::kRanges>::Type of;
};
static_assert(sizeof(SharedPlan) <= Config::kSharedBytes &&
                  Config::kSharedBytes < sizeof(SharedPlan) + 128,
              "the host's formula for shared memory");

struct RangesOfToken : EveryKey {
  const KeyRun *sRuns; // ascending, none empty
  int count;
  NSAI_DEVICE int index(int i) const {
    int run = 0;
#pragma unroll
    for (int half = 128; half; half /= 2) // 256 ranges at most
      if (run + half < count && sRuns[run + half].first <= i) run += half;
    return i + sRuns[run].apart;
  }
};
static_assert(Config::kSelectCount <= 256, "RangesOfToken::index");

// The ranges of idx, which ascend and are none but the last ones -1, into shared memory; returns how many
// there are. Every thread takes part.
template <class C> NSAI_DEVICE int load_ranges(const int *gRanges, KeyRun *sRuns) {
  const int lane = threadIdx.x % 32;
  int count = 0, keys = 0; // so far
  if (threadIdx.x < 32)
    for (int i = 0; i < C::kSelectCount; i += 32) {
      const bool exists = i + lane < C::kSelectCount && gRanges[2 * (i + lane)] >= 0;
      const int begin = exists ? gRanges[2 * (i + lane)] : 0;
      const int length = exists ? gRanges[2 * (i + lane) + 1] - begin : 0;
      int sum = length;
#pragma unroll
      for (int apart = 1; apart < 32; apart *= 2) {
        const int before = __shfl_up_sync(~0u, sum, apart);
        if (lane >= apart) sum += before;
      }
      const int first = keys + sum - length;
      if (exists) sRuns[i + lane] = KeyRun{ first, begin - first };
      count += __popc(__ballot_sync(~0u, exists));
      keys += __shfl_sync(~0u, sum, 31);
    }
  if (threadIdx.x == 0) sRuns[C::kSelectCount] = KeyRun{ keys, count };
  __syncthreads(); // the runs are there
  return sRuns[C::kSelectCount].apart;
}

// Stages of a branch's keys that a CTA takes, as many of them as there are.
struct Share {
  int begin, count;
};

template <class S> NSAI_DEVICE int count_stages(int keys) { return ceil_div(keys, S::kStageKeys); }

NSAI_DEVICE Share even_share(int stages, int part, int parts) {
  const int each = ceil_div(stages, parts);
  return Share{ part * each, each };
}

// Part `part` of `parts` of a list, the first `window_parts` of which also have a part of the window each:
// such that all have the same of both.
NSAI_DEVICE Share share_beside_window(int stages, int part, int parts, int window_stages, int window_parts) {
  if (window_parts == 0 || window_parts == parts) return even_share(stages, part, parts);
  const int beside = max(ceil_div(stages + window_stages, parts) - ceil_div(window_stages, window_parts), 0);
  if (part < window_parts) return Share{ part * beside, beside };
  const int each = ceil_div(max(stages - window_parts * beside, 0), parts - window_parts);
  return Share{ window_parts * beside + (part - window_parts) * each, each };
}

// A CTA's share of a branch for the rows of `query_rows`, as attend.parts' part `stored`; `meanwhile` runs
// once.
template <class C, int kRowTiles, class Keys, class Rows, class Meanwhile = DoNothing>
NSAI_DEVICE void attend_share(const NsaiDecode &p, typename KeyStream<C, kRowTiles>::Shared &shared,
                              const KeyStream<C, kRowTiles> &at, const QueryRows<C> &query_rows,
                              const NsaiCachePair &pair, const Rows &lists, Keys &keys, const Share &share,
                              int stored, bool once, u64 *gReads, Meanwhile meanwhile = {}) {
  using S = KeyStream<C, kRowTiles>;
  auto place = [&](int row) -> long long {
    const int token = row / C::kGroupPadded, head = row % C::kGroupPadded;
    if (!query_rows.present(row)) return -1;
    const long long unit = (long long)(query_rows.first + token) * p.kv_heads + query_rows.group;
    return part_row(p.attend, C::kGroup, unit, stored, head);
  };
  const int stages = count_stages<S>(keys.limit);
  const int first = min(share.begin, stages), last = min(first + share.count, stages);
  if (first == last) {
    meanwhile();
    store_no_part(p.attend, S::kRows, C::kThreads, place);
    return;
  }
  const int each = ceil_div(last - first, S::kTeams);
  const int begin = min(first + at.team * each, last), end = min(begin + each, last);
  const auto queries = load_row_queries<C, kRowTiles>(shared, at, query_rows); // [rows, Dk]
  float o[S::kO][4] = {};                                                     // [16, Dv]
  SoftmaxRows rows;
  stream_keys<C, kRowTiles>(shared, at, pair, query_rows.group, lists, keys, begin * S::kAtOnce,
                            end * S::kAtOnce, queries, o, rows, p.scale_log2, gReads, once, meanwhile);
  store_part<C, kRowTiles>(shared, at, o, rows, p.attend, S::kRows, place);
}

// A tile of tokens and a KV head.
template <class C> struct Unit {
  int index, group, part;
  DecodeTile tile;
  int tokens;
  NSAI_DEVICE Unit(const NsaiDecode &p, int block) {
    const int units = p.tiles * p.kv_heads;
    index = block % units;
    part = block / units;
    group = index % p.kv_heads;
    tile = find_decode_tile<Decode<C>::kTileTokens>(p, index / p.kv_heads);
    tokens = min(Decode<C>::kTileTokens, tile.seq.q_len - tile.first_query);
  }
  NSAI_DEVICE int row() const { return tile.seq.q_begin + tile.first_query; } // of q
  NSAI_DEVICE bool alone() const { return tokens == tile.seq.q_len; }
};

// Returns the stages of the whole window.
template <class C>
NSAI_DEVICE int attend_window(const NsaiDecode &p, SharedPlan &shared, const Unit<C> &unit) {
  using S = KeyStream<C, kTileTiles>;
  const S at;
  WindowsOfTile<C> keys(unit.tile, unit.tokens, at.row_tile, at.lane);
  const int stages = count_stages<S>(keys.limit);
  if (unit.part >= p.window_parts) return stages;
  const QueryRows<C> query_rows = { p.q, unit.row(), unit.tokens, unit.group };
  const auto lists = find_rows<C::kRing ? 0 : C::kPageSize>(p.batch, unit.tile.s, p.window.ring);
  attend_share<C, kTileTiles>(p, shared.tile, at, query_rows, p.window, lists, keys,
                              even_share(stages, unit.part, p.window_parts), unit.part, unit.alone(),
                              find_reads<C>(p.reads, unit.tile.s, unit.group, NSAI_BRANCH_WINDOW));
  return stages;
}

// Whether what was pooled is discarded when the first keys have been asked for, which would wait behind that:
// where registers are left. (NVRTC 13.0. H200, 32 sequences of 64k, 4 new tokens, correlated: 138.0 -> 137.0
// us.)
template <class C>
constexpr bool kDiscardsLate = C::kPooled && UnionShared<C>::kTokens > 1 && !kWideHeads<C>;

// The CTA's part of what was pooled for its tile, which decode_split_kv_select has read.
template <class C> NSAI_DEVICE void discard_tile(const NsaiDecode &p, const Unit<C> &unit) {
  const int entries = visible_entries<C>(last_position<C>(unit.tile.seq, unit.tile.first_query));
  for (int row = 0; row < C::kScanRows; row += kPoolRows)
    discard_pooled<C>(pooled_row<C>(p, unit.index, row), entries / Decode<C>::kRatio, unit.part,
                      p.attend.parts - p.window_parts);
}

// The blocks of a tile's tokens; `window_stages`: what the first p.window_parts parts have done before.
template <class C>
NSAI_DEVICE void attend_blocks(const NsaiDecode &p, SharedPlan &shared, const Unit<C> &unit,
                               int window_stages, int window_parts) {
  using S = KeyStream<C, kTileTiles>;
  const S at;
  const auto lists = find_rows<C::kPageSize>(p.batch, unit.tile.s, 0);
  const int *gLists = list_of(p, unit.row(), unit.group); // [tokens, n]
  __syncthreads(); // nothing of the window is read any more
  BlocksOfTile<C> keys = unite_blocks<C>(unit.tile, unit.tokens, gLists, p.idx_token_stride, shared.of,
                                         shared.lists, at.row_tile, at.lane);
  const QueryRows<C> query_rows = { p.q, unit.row(), unit.tokens, unit.group };
  const Share share = share_beside_window(count_stages<S>(keys.limit), unit.part,
                                          p.attend.parts - p.window_parts, window_stages, window_parts);
  attend_share<C, kTileTiles>(p, shared.listed, at, query_rows, p.selected, lists, keys, share,
                              p.window_parts + unit.part, unit.alone(),
                              find_reads<C>(p.reads, unit.tile.s, unit.group, NSAI_BRANCH_SELECTED), [&] {
                                if constexpr (kDiscardsLate<C>) discard_tile<C>(p, unit);
                              });
}

// The ranges of a token.
template <class C> NSAI_DEVICE void attend_ranges(const NsaiDecode &p, SharedPlan &shared, int block) {
  const KeyStream<C, kListTiles> at;
  const int units = p.batch.q_tokens * p.kv_heads, part = block / units, unit = block % units;
  const int row = unit / p.kv_heads, group = unit % p.kv_heads;
  const DecodeToken token = find_token(p.batch, row);
  const auto lists = find_rows<C::kPageSize>(p.batch, token.s, 0);
  wait_for_kernel_before();
  let_next_kernel_begin();
  if (!token.present) return;
  const int *gList = list_of(p, row, group); // [n, 2]
  RangesOfToken keys;
  keys.sRuns = shared.of.runs;
  keys.count = load_ranges<C>(gList, shared.of.runs);
  keys.limit = shared.of.runs[C::kSelectCount].first;
  const QueryRows<C> query_rows = { p.q, row, 1, group };
  attend_share<C, kListTiles>(p, shared.listed, at, query_rows, p.selected, lists, keys,
                              even_share(count_stages<KeyStream<C, kListTiles>>(keys.limit), part,
                                         p.attend.parts - p.window_parts),
                              p.window_parts + part, token.alone,
                              find_reads<C>(p.reads, token.s, group, NSAI_BRANCH_SELECTED));
}

// A CTA has some of a window or some of a list.
template <class C> NSAI_DEVICE void attend_apart(const NsaiDecode &p, SharedPlan &shared) {
  const int windows = p.window_parts * p.tiles * p.kv_heads;
  if ((int)blockIdx.x < windows) {
    const Unit<C> unit(p, blockIdx.x);
    if constexpr (C::kWindow > 0)
      if (unit.tokens > 0) attend_window<C>(p, shared, unit);
    wait_for_kernel_before();
    let_next_kernel_begin();
  } else if constexpr (C::kRanges) {
    attend_ranges<C>(p, shared, blockIdx.x - windows);
  } else if constexpr (C::kSelectCount > 0) {
    const Unit<C> unit(p, blockIdx.x - windows);
    wait_for_kernel_before();
    let_next_kernel_begin();
    if (unit.tokens > 0) attend_blocks<C>(p, shared, unit, 0, 0);
  }
}

// A CTA has some of its tile's blocks and, if it is one of the first, some of the window before.
template <class C> NSAI_DEVICE void attend_together(const NsaiDecode &p, SharedPlan &shared) {
  const Unit<C> unit(p, blockIdx.x);
  int window_stages = 0;
  if constexpr (C::kWindow > 0)
    if (p.window_parts > 0 && unit.tokens > 0) window_stages = attend_window<C>(p, shared, unit);
  wait_for_kernel_before();
  let_next_kernel_begin();
  if (p.attend.parts == p.window_parts || unit.tokens <= 0) return;
  if constexpr (C::kPooled && !kDiscardsLate<C>) discard_tile<C>(p, unit);
  attend_blocks<C>(p, shared, unit, window_stages, p.window_parts);
}

template <class C> NSAI_DEVICE void attend(const NsaiDecode &p) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedPlan &shared = *(SharedPlan *)shared_bytes;
  if constexpr (UnionShared<C>::kTokens > 1 && !C::kRanges && C::kSelectCount > 0)
    attend_together<C>(p, shared);
  else
    attend_apart<C>(p, shared);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    decode_split_kv_attend(const __grid_constant__ NsaiDecode p) {
  attend<Config>(p);
}
