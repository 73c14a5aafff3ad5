// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_split_kv_attend: the window branch and the selected branch of a decode step, split over
// keys (split-KV).
//
//   o[split, h] = sum over the split's tokens p of 2^(scale_log2 * q[h] . k_p - reference) v_p
//   p: t - w < p <= t (window); p <= t in the blocks or ranges of idx[t] (selected)
//
//   q [T, Hq, Dk], K and V of both branches in the cache,
//   idx [T, Hkv, n] (decode_split_kv_select, data_sort_blocks) or [T, Hkv, n, 2] (data_sort_ranges)
//   -> splits (decode_split_kv_combine)
//
// Grid: if tiles have several tokens, x = splits * tiles * kv_heads with the selected branch's
// splits outermost. The first window_splits of them also take a split of the window, and take it
// first: it needs nothing from decode_split_kv_select, so the two kernels overlap. If tiles have
// one token, and for ranges, the CTAs of the window come first and those of the selected branch
// follow (for ranges splits * T * kv_heads).
//
// CTA: the rows of one tile and KV head; consumer groups of one warp per 16 rows
// (decode/mainloop.cuh). The tokens of a tile share the keys of their windows and of blocks that
// several of them selected (decode/merged_keys.cuh). Ranges are never shared.
//
// Over ranks a tile's lists keep the blocks that this rank holds; all splits share these evenly.
//
// Bound by memory: 2 (Dk + Dv) bytes per key.
//
// Config: those of decode/mainloop.cuh, kSelectBlock (l'), kSelectCount (n), kRanges, kWindow (w),
// kPooled (the lists come from decode_split_kv_select), kPageSize (P; 0: no pages), kRing (the
// window's K and V lie in a ring buffer), kRawCodes (K and V are codes), kMinBlocks, kSharedBytes,
// kRanks (which may be missing).
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
template <class C> using TileStream = KeyStream<C, kTileTiles, (bool)C::kRawCodes>;
template <class C> using ListStream = KeyStream<C, kListTiles, (bool)C::kRawCodes>;

// One range of a token's selection: its first key's index among all selected keys, and the offset
// from that index to the key's position in the sequence.
struct KeyRun {
  int first, offset;
};

struct RunsShared {
  KeyRun runs[Config::kSelectCount + 1]; // the extra one is load_ranges()'s result
};

template <class C, bool kRanges> struct ListsShared { using Type = MergedListStorage<C>; };
template <class C> struct ListsShared<C, true> { using Type = RunsShared; };

struct SharedStorage {
  union {
    TileStream<Config>::Shared tile;
    ListStream<Config>::Shared listed;
    int lists[Config::kRanges ? 1 : MergedListStorage<Config>::kEntries]; // free when Q is loaded
  };
  ListsShared<Config, Config::kRanges>::Type of;
};
static_assert(sizeof(SharedStorage) == Config::kSharedBytes,
              "the host computes another size of shared memory");

struct RangesOfToken : EveryKey {
  const KeyRun *sRuns; // ascending, all non-empty
  int count;
  NSAI_DEVICE int index(int i) const {
    int run = 0;
#pragma unroll
    for (int half = 128; half; half /= 2) // at most 256 ranges
      if (run + half < count && sRuns[run + half].first <= i) run += half;
    return i + sRuns[run].offset;
  }
};
static_assert(Config::kSelectCount <= 256, "RangesOfToken::index() searches at most 256 ranges");

// Loads the ranges of idx into shared memory and returns their number. They ascend; unused ones, at
// the end, are -1. All threads take part.
template <class C> NSAI_DEVICE int load_ranges(const int *gRanges, KeyRun *sRuns) {
  const int lane = threadIdx.x % 32;
  int count = 0, keys = 0; // running totals
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
  __syncthreads(); // the runs are written
  return sRuns[C::kSelectCount].offset;
}

// The stages of a branch's keys that a CTA takes; beyond the last stage there is nothing to do.
struct Share {
  int begin, count;
};

template <class S> NSAI_DEVICE int count_stages(int keys) { return ceil_div(keys, S::kStageKeys); }

NSAI_DEVICE Share even_share(int stages, int split, int splits) {
  const int each = ceil_div(stages, splits);
  return Share{ split * each, each };
}

// The share of split `split` of `splits` of the lists. The first `window_splits` splits also have a
// share of the window; the shares are chosen so that all splits have equal work in total.
NSAI_DEVICE Share share_beside_window(int stages, int split, int splits, int window_stages,
                                      int window_splits) {
  if (window_splits == 0 || window_splits == splits) return even_share(stages, split, splits);
  const int with_window =
      max(ceil_div(stages + window_stages, splits) - ceil_div(window_stages, window_splits), 0);
  if (split < window_splits) return Share{ split * with_window, with_window };
  const int each = ceil_div(max(stages - window_splits * with_window, 0), splits - window_splits);
  return Share{ window_splits * with_window + (split - window_splits) * each, each };
}

// Attends to a CTA's share of branch kBranch for the rows `query_rows` and stores it as split `stored` of
// p.attend. `meanwhile` runs exactly once.
template <class C, int kBranch, class S, class Keys, class Rows, class Meanwhile = DoNothing>
NSAI_DEVICE void attend_share(const NsaiDecode &p, typename S::Shared &shared, const S &at,
                              const QueryRows<C> &query_rows, const NsaiCachePair &pair,
                              const Rows &lists, Keys &keys, const Share &share, int stored,
                              bool once, u64 *gKvReads, Meanwhile meanwhile = {}) {
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
  const auto queries = load_row_queries<C>(shared, at, query_rows); // [rows, Dk]
  float o[S::kO][4] = {};                                           // [16, Dv]
  SoftmaxRows rows;
  stream_keys<C>(shared, at, pair, query_rows.group, lists, keys, begin * S::kAtOnce,
                 end * S::kAtOnce, queries, o, rows,
                 branch_scale_log2<S::kCoded>(p, kBranch, query_rows.group), gKvReads, once,
                 meanwhile);
  if constexpr (S::kCoded) scale_columns(o, value_scale(p, kBranch, query_rows.group));
  store_split<C>(shared, at, o, rows, p.attend, S::kRows, row_of);
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
  NSAI_DEVICE int row() const { return tile.seq.q_begin + tile.first_query; } // row of q
  NSAI_DEVICE bool alone() const { return tokens == tile.seq.q_len; }
};

// Attends to this CTA's split of the window, if it has one. Returns the number of stages of the
// whole window.
template <class C>
NSAI_DEVICE int attend_window(const NsaiDecode &p, SharedStorage &shared,
                              const WorkItem<C> &work_item) {
  using S = TileStream<C>;
  const S at;
  WindowsOfTile<C> keys(work_item.tile, work_item.tokens, at.row_tile, at.lane);
  const int stages = count_stages<S>(keys.limit);
  if (work_item.split >= p.window_splits) return stages;
  const QueryRows<C> query_rows = { p.q, work_item.row(), work_item.tokens, work_item.group };
  const auto lists =
      find_rows<(C::kRing ? 0 : C::kPageSize)>(p.batch, work_item.tile.s, p.window.ring);
  attend_share<C, kWindow>(p, shared.tile, at, query_rows, p.window, lists, keys,
                           even_share(stages, work_item.split, p.window_splits), work_item.split,
                           work_item.alone(),
                           find_kv_reads<C>(p.kv_reads, work_item.tile.s, work_item.group,
                                            NSAI_BRANCH_WINDOW));
  return stages;
}

// Whether pooled values are discarded from L2 after the first keys were requested, rather than
// before, where the keys would have to wait for the discard. Requires spare registers. (NVRTC 13.0.
// H200, 32 sequences of 64k, 4 new tokens, correlated lists: 138.0 -> 137.0 us per step.)
template <class C>
constexpr bool kDiscardsLate = !kWideHeads<C> && C::kPooled && (MergedListStorage<C>::kTokens > 1);

// Discards from L2 this CTA's part of the values that were pooled for its tile;
// decode_split_kv_select has read them.
template <class C>
NSAI_DEVICE void discard_tile(const NsaiDecode &p, const WorkItem<C> &work_item) {
  const int entries =
      visible_entries<C>(last_position<C>(work_item.tile.seq, work_item.tile.first_query));
  for (int row = 0; row < C::kScanRows; row += kPoolRows)
    discard_pooled<C>(pooled_row<C>(p, work_item.index, row), entries / Decode<C>::kRatio,
                      work_item.split, p.attend.splits - p.window_splits);
}

// Of the listed blocks, those that are attended to here.
template <class C> NSAI_DEVICE auto taken_blocks(const NsaiDecode &p) {
  if constexpr (kOverRanks<C>) {
    const NsaiRanksDecode &ranks = over_ranks<C>(p);
    return OwnBlocks{ ranks.unit_blocks, ranks.rank, ranks.ranks };
  } else {
    return EveryBlock{};
  }
}

// Attends to the blocks of a tile's tokens. `window_stages` is the window's work that the first
// `window_splits` splits have already done.
template <class C>
NSAI_DEVICE void attend_blocks(const NsaiDecode &p, SharedStorage &shared,
                               const WorkItem<C> &work_item, int window_stages, int window_splits) {
  using S = TileStream<C>;
  const S at;
  const auto lists = find_rows<C::kPageSize>(p.batch, work_item.tile.s, 0);
  const int *gLists = list_of(p, work_item.row(), work_item.group); // [tokens, n]
  __syncthreads(); // all warps have finished with the window
  BlocksOfTile<C> keys =
      merge_blocks<C>(work_item.tile, work_item.tokens, gLists, p.idx_token_stride, shared.of,
                      shared.lists, at.row_tile, at.lane, taken_blocks<C>(p));
  const QueryRows<C> query_rows = { p.q, work_item.row(), work_item.tokens, work_item.group };
  const Share share =
      share_beside_window(count_stages<S>(keys.limit), work_item.split,
                          p.attend.splits - p.window_splits, window_stages, window_splits);
  attend_share<C, kSelected>(p, shared.listed, at, query_rows, p.selected, lists, keys, share,
                             p.window_splits + work_item.split, work_item.alone(),
                             find_kv_reads<C>(p.kv_reads, work_item.tile.s, work_item.group,
                                              NSAI_BRANCH_SELECTED),
                             [&] {
                               if constexpr (kDiscardsLate<C>) discard_tile<C>(p, work_item);
                             });
}

// Attends to the ranges of one token, which do not run over ranks.
template <class C>
NSAI_DEVICE void attend_ranges(const NsaiDecode &p, SharedStorage &shared, int block) {
  const ListStream<C> at;
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
  attend_share<C, kSelected>(p, shared.listed, at, query_rows, p.selected, lists, keys,
                             even_share(count_stages<ListStream<C>>(keys.limit), split,
                                        p.attend.splits - p.window_splits),
                             p.window_splits + split, token.alone,
                             find_kv_reads<C>(p.kv_reads, token.s, group, NSAI_BRANCH_SELECTED));
}

// One CTA takes a split of a window or a split of a list.
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

// One CTA takes a split of its tile's blocks and, if it is among the first, a split of the window
// before that.
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
    decode_split_kv_attend(
        const __grid_constant__ DecodeParams<Config, (bool)Config::kRawCodes> p) {
  attend<Config>((const NsaiDecode &)p);
}
