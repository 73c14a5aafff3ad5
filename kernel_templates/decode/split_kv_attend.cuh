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
//        tokens; the first window_splits parts take the window before, which needs nothing of decode_split_kv_select
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
#include "core/launch.cuh"
#include "data/cache_rows.cuh"
#include "decode/mainloop.cuh"
#include "decode/mainloop_splits.cuh"
#include "decode/merged_keys.cuh"
#include "decode/raw_keys.cuh"
#include "decode/work.cuh"
#include "params/kv_cache.h"

constexpr int kTileTiles = Config::kScanRows / 16;
constexpr int kListTiles = Config::kRanges ? (Config::kGroupPadded + 15) / 16 : kTileTiles;

// Of a token's ranges: the number of a range's first key among all keys, and the steps from there to its
// position.
struct KeyRun {
  int first, offset;
};

struct RunsShared {
  KeyRun runs[Config::kSelectCount + 1]; // the one behind the last begins at all
};

template <class C, bool kRanges> struct ListsShared { using Type = MergedListStorage<C>; };
template <class C> struct ListsShared<C, true> { using Type = RunsShared; };

struct SharedStorage {
  union {
    KeyStream<Config, kTileTiles>::Shared tile;
    KeyStream<Config, kListTiles>::Shared listed;
    int lists[Config::kRanges ? 1 : MergedListStorage<Config>::kEntries]; // done with when Q comes
  };
  ListsShared<Config, Config::kRanges>::Type of;
};
static_assert(sizeof(SharedStorage) <= Config::kSharedBytes &&
                  Config::kSharedBytes < sizeof(SharedStorage) + 128,
              "the host's formula for shared memory");

struct RangesOfToken : EveryKey {
  const KeyRun *sRuns; // ascending, none empty
  int count;
  NSAI_DEVICE int index(int i) const {
    int run = 0;
#pragma unroll
    for (int half = 128; half; half /= 2) // 256 ranges at most
      if (run + half < count && sRuns[run + half].first <= i) run += half;
    return i + sRuns[run].offset;
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
      for (int delta = 1; delta < 32; delta *= 2) {
        const int before = __shfl_up_sync(~0u, sum, delta);
        if (lane >= delta) sum += before;
      }
      const int first = keys + sum - length;
      if (exists) sRuns[i + lane] = KeyRun{ first, begin - first };
      count += __popc(__ballot_sync(~0u, exists));
      keys += __shfl_sync(~0u, sum, 31);
    }
  if (threadIdx.x == 0) sRuns[C::kSelectCount] = KeyRun{ keys, count };
  __syncthreads(); // the runs are there
  return sRuns[C::kSelectCount].offset;
}

// Stages of a branch's keys that a CTA takes, as many of them as there are.
struct Share {
  int begin, count;
};

template <class S> NSAI_DEVICE int count_stages(int keys) { return ceil_div(keys, S::kStageKeys); }

NSAI_DEVICE Share even_share(int stages, int split, int splits) {
  const int each = ceil_div(stages, splits);
  return Share{ split * each, each };
}

// Part `part` of `parts` of a list, the first `window_splits` of which also have a part of the window each:
// such that all have the same of both.
NSAI_DEVICE Share share_beside_window(int stages, int split, int splits, int window_stages,
                                      int window_splits) {
  if (window_splits == 0 || window_splits == splits) return even_share(stages, split, splits);
  const int beside =
      max(ceil_div(stages + window_stages, splits) - ceil_div(window_stages, window_splits), 0);
  if (split < window_splits) return Share{ split * beside, beside };
  const int each = ceil_div(max(stages - window_splits * beside, 0), splits - window_splits);
  return Share{ window_splits * beside + (split - window_splits) * each, each };
}

// A CTA's share of a branch for the rows of `query_rows`, as attend.parts' part `stored`; `meanwhile` runs
// once.
template <class C, int kRowTiles, class Keys, class Rows, class Meanwhile = DoNothing>
NSAI_DEVICE void attend_share(const NsaiDecode &p, typename KeyStream<C, kRowTiles>::Shared &shared,
                              const KeyStream<C, kRowTiles> &at, const QueryRows<C> &query_rows,
                              const NsaiCachePair &pair, const Rows &lists, Keys &keys,
                              const Share &share, int stored, bool once, u64 *gKvReads,
                              Meanwhile meanwhile = {}) {
  using S = KeyStream<C, kRowTiles>;
  auto row_of = [&](int row) -> long long {
    const int token = row / C::kGroupPadded, head = row % C::kGroupPadded;
    if (!query_rows.present(row)) return -1;
    const long long work_item =
        (long long)(query_rows.first + token) * p.kv_heads + query_rows.group;
    return split_row(p.attend, C::kGroup, work_item, stored, head);
  };
  const int stages = count_stages<S>(keys.limit);
  const int first = min(share.begin, stages), last = min(first + share.count, stages);
  if (first == last) {
    meanwhile();
    store_empty_split(p.attend, S::kRows, C::kThreads, row_of);
    return;
  }
  const int each = ceil_div(last - first, S::kConsumerGroups);
  const int begin = min(first + at.consumer_group * each, last), end = min(begin + each, last);
  const auto queries = load_row_queries<C, kRowTiles>(shared, at, query_rows); // [rows, Dk]
  float o[S::kO][4] = {};                                                      // [16, Dv]
  SoftmaxRows rows;
  stream_keys<C, kRowTiles>(shared, at, pair, query_rows.group, lists, keys, begin * S::kAtOnce,
                            end * S::kAtOnce, queries, o, rows, p.scale_log2, gKvReads, once,
                            meanwhile);
  store_split<C, kRowTiles>(shared, at, o, rows, p.attend, S::kRows, row_of);
}

// A tile of tokens and a KV head.
template <class C> struct WorkItem {
  int index, group, split;
  DecodeTile tile;
  int tokens;
  NSAI_DEVICE WorkItem(const NsaiDecode &p, int block) {
    const int work_items = p.tiles * p.kv_heads;
    index = block % work_items;
    split = block / work_items;
    group = index % p.kv_heads;
    tile = find_decode_tile<Decode<C>::kTileTokens>(p, index / p.kv_heads);
    tokens = min(Decode<C>::kTileTokens, tile.seq.q_len - tile.first_query);
  }
  NSAI_DEVICE int row() const { return tile.seq.q_begin + tile.first_query; } // of q
  NSAI_DEVICE bool alone() const { return tokens == tile.seq.q_len; }
};

// Returns the stages of the whole window.
template <class C>
NSAI_DEVICE int attend_window(const NsaiDecode &p, SharedStorage &shared,
                              const WorkItem<C> &work_item) {
  using S = KeyStream<C, kTileTiles>;
  const S at;
  WindowsOfTile<C> keys(work_item.tile, work_item.tokens, at.row_tile, at.lane);
  const int stages = count_stages<S>(keys.limit);
  if (work_item.split >= p.window_splits) return stages;
  const QueryRows<C> query_rows = { p.q, work_item.row(), work_item.tokens, work_item.group };
  const auto lists =
      find_rows < C::kRing ? 0 : C::kPageSize > (p.batch, work_item.tile.s, p.window.ring);
  attend_share<C, kTileTiles>(p, shared.tile, at, query_rows, p.window, lists, keys,
                              even_share(stages, work_item.split, p.window_splits), work_item.split,
                              work_item.alone(),
                              find_kv_reads<C>(p.kv_reads, work_item.tile.s, work_item.group,
                                               NSAI_BRANCH_WINDOW));
  return stages;
}

// Whether what was pooled is discarded when the first keys have been asked for, which would wait behind that:
// where registers are left. (NVRTC 13.0. H200, 32 sequences of 64k, 4 new tokens, correlated: 138.0 -> 137.0
// us.)
template <class C>
constexpr bool kDiscardsLate = C::kPooled &&MergedListStorage<C>::kTokens > 1 && !kWideHeads<C>;

// The CTA's part of what was pooled for its tile, which decode_split_kv_select has read.
template <class C>
NSAI_DEVICE void discard_tile(const NsaiDecode &p, const WorkItem<C> &work_item) {
  const int entries =
      visible_entries<C>(last_position<C>(work_item.tile.seq, work_item.tile.first_query));
  for (int row = 0; row < C::kScanRows; row += kPoolRows)
    discard_pooled<C>(pooled_row<C>(p, work_item.index, row), entries / Decode<C>::kRatio,
                      work_item.split, p.attend.splits - p.window_splits);
}

// The blocks of a tile's tokens; `window_stages`: what the first p.window_splits parts have done before.
template <class C>
NSAI_DEVICE void attend_blocks(const NsaiDecode &p, SharedStorage &shared,
                               const WorkItem<C> &work_item, int window_stages, int window_splits) {
  using S = KeyStream<C, kTileTiles>;
  const S at;
  const auto lists = find_rows<C::kPageSize>(p.batch, work_item.tile.s, 0);
  const int *gLists = list_of(p, work_item.row(), work_item.group); // [tokens, n]
  __syncthreads(); // nothing of the window is read any more
  BlocksOfTile<C> keys =
      merge_blocks<C>(work_item.tile, work_item.tokens, gLists, p.idx_token_stride, shared.of,
                      shared.lists, at.row_tile, at.lane);
  const QueryRows<C> query_rows = { p.q, work_item.row(), work_item.tokens, work_item.group };
  const Share share =
      share_beside_window(count_stages<S>(keys.limit), work_item.split,
                          p.attend.splits - p.window_splits, window_stages, window_splits);
  attend_share<C, kTileTiles>(p, shared.listed, at, query_rows, p.selected, lists, keys, share,
                              p.window_splits + work_item.split, work_item.alone(),
                              find_kv_reads<C>(p.kv_reads, work_item.tile.s, work_item.group,
                                               NSAI_BRANCH_SELECTED),
                              [&] {
                                if constexpr (kDiscardsLate<C>) discard_tile<C>(p, work_item);
                              });
}

// The ranges of a token.
template <class C>
NSAI_DEVICE void attend_ranges(const NsaiDecode &p, SharedStorage &shared, int block) {
  const KeyStream<C, kListTiles> at;
  const int work_items = p.batch.q_tokens * p.kv_heads, split = block / work_items,
            work_item = block % work_items;
  const int row = work_item / p.kv_heads, group = work_item % p.kv_heads;
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
                              even_share(count_stages<KeyStream<C, kListTiles>>(keys.limit), split,
                                         p.attend.splits - p.window_splits),
                              p.window_splits + split, token.alone,
                              find_kv_reads<C>(p.kv_reads, token.s, group, NSAI_BRANCH_SELECTED));
}

// A CTA has some of a window or some of a list.
template <class C>
NSAI_DEVICE void attend_separate_branches(const NsaiDecode &p, SharedStorage &shared) {
  const int windows = p.window_splits * p.tiles * p.kv_heads;
  if ((int)blockIdx.x < windows) {
    const WorkItem<C> work_item(p, blockIdx.x);
    if constexpr (C::kWindow > 0)
      if (work_item.tokens > 0) attend_window<C>(p, shared, work_item);
    wait_for_kernel_before();
    let_next_kernel_begin();
  } else if constexpr (C::kRanges) {
    attend_ranges<C>(p, shared, blockIdx.x - windows);
  } else if constexpr (C::kSelectCount > 0) {
    const WorkItem<C> work_item(p, blockIdx.x - windows);
    wait_for_kernel_before();
    let_next_kernel_begin();
    if (work_item.tokens > 0) attend_blocks<C>(p, shared, work_item, 0, 0);
  }
}

// A CTA has some of its tile's blocks and, if it is one of the first, some of the window before.
template <class C>
NSAI_DEVICE void attend_joint_branches(const NsaiDecode &p, SharedStorage &shared) {
  const WorkItem<C> work_item(p, blockIdx.x);
  int window_stages = 0;
  if constexpr (C::kWindow > 0)
    if (p.window_splits > 0 && work_item.tokens > 0)
      window_stages = attend_window<C>(p, shared, work_item);
  wait_for_kernel_before();
  let_next_kernel_begin();
  if (p.attend.splits == p.window_splits || work_item.tokens <= 0) return;
  if constexpr (C::kPooled && !kDiscardsLate<C>) discard_tile<C>(p, work_item);
  attend_blocks<C>(p, shared, work_item, window_stages, p.window_splits);
}

template <class C> NSAI_DEVICE void attend(const NsaiDecode &p) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage &shared = *(SharedStorage *)shared_bytes;
  if constexpr (MergedListStorage<C>::kTokens > 1 && !C::kRanges && C::kSelectCount > 0)
    attend_joint_branches<C>(p, shared);
  else
    attend_separate_branches<C>(p, shared);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    decode_split_kv_attend(const __grid_constant__ NsaiDecode p) {
  attend<Config>(p);
}
