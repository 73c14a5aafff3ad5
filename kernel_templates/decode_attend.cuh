// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_attend: window and selected branch of a decode step, split over keys.
//
//   o[part, h] = sum over the part's tokens p of 2^(scale_log2 * q[h] . k_p - reference) v_p
//   p: t - w < p <= t; or p <= t of the blocks in idx[t]; or the ranges there
//
//   q [T, Hq, Dk], the branches' pairs of the cache, idx [T, Hkv, n] (decode_select, sort_blocks) or
//   [T, Hkv, n, 2] (sort_ranges) -> parts (decode_combine)
//
// Grid   x = window_parts * tiles * kv_heads, then selected parts * T * kv_heads, parts outermost. Those of
//        the window need nothing of decode_select and begin beside it.
// CTA    one tile's or one token's rows of one group, teams of a warp for 16 rows: common/key_stream.cuh.
//        Tokens of a tile share their windows' keys; those of one sequence, which run side by side, find
//        each other's blocks in L2.
// Bound  by memory: 2 (Dk + Dv) bytes a key.
//
// Config: those of common/key_stream.cuh, kSelectBlock (l'), kSelectCount (n), kRanges, kWindow (w),
// kPageSize (P; 0: none), kRing (the window's pair lies in rings), kMinBlocks, kSharedBytes.
#pragma once
#include "common/cached.cuh"
#include "common/decode.cuh"
#include "common/decode_keys.cuh"
#include "common/key_stream.cuh"
#include "common/launch.cuh"
#include "common/params_cache.h"

constexpr int kTileTiles = Config::kScanRows / 16, kTokenTiles = (Config::kGroupPadded + 15) / 16;

// Of a token's ranges: the number of a range's first key among all keys, and the steps from there to its
// position.
struct KeyRun {
  int first, apart;
};

struct SharedPlan {
  union {
    KeyStream<Config, kTileTiles>::Shared tile;
    KeyStream<Config, kTokenTiles>::Shared token;
  };
  union {
    int list[Config::kSelectCount > 0 ? Config::kSelectCount : 1];
    KeyRun runs[Config::kRanges ? Config::kSelectCount + 1 : 1]; // the one behind the last begins at all
  };
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

// The list of idx into shared memory; returns how many blocks it has. Every thread takes part.
template <class C> NSAI_DEVICE int load_list(const int *gList, int *sList) {
  int count = 0;
  for (int i = 0; i < C::kSelectCount; i += C::kThreads) {
    const int at = i + (int)threadIdx.x;
    const int block = at < C::kSelectCount ? gList[at] : -1;
    if (at < C::kSelectCount) sList[at] = block;
    count += __syncthreads_count(block >= 0);
  }
  return count;
}

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

template <bool kRanges> struct ListedKeys { using Type = BlocksOfToken; };
template <> struct ListedKeys<true> { using Type = RangesOfToken; };

// The keys of a token's list. Every thread takes part.
template <class C>
NSAI_DEVICE void find_keys(BlocksOfToken &keys, SharedPlan &shared, const DecodeToken &token,
                           const int *gList) {
  const int count = load_list<C>(gList, shared.list);
  keys = find_blocks(shared.list, count, token.position);
}

template <class C>
NSAI_DEVICE void find_keys(RangesOfToken &keys, SharedPlan &shared, const DecodeToken &token,
                           const int *gList) {
  keys.sRuns = shared.runs;
  keys.count = load_ranges<C>(gList, shared.runs);
  keys.limit = shared.runs[C::kSelectCount].first;
}

// Part `part` of `parts` of a branch, for the rows of `query_rows`, as attend.parts' part `stored`.
template <class C, int kRowTiles, class Keys, class Rows>
NSAI_DEVICE void attend_part(const NsaiDecode &p, typename KeyStream<C, kRowTiles>::Shared &shared,
                             const KeyStream<C, kRowTiles> &at, const QueryRows<C> &query_rows,
                             const NsaiCachePair &pair, const Rows &lists, Keys &keys, int part, int parts,
                             int stored, bool once, u64 *gReads) {
  using S = KeyStream<C, kRowTiles>;
  auto place = [&](int row) -> long long {
    const int token = row / C::kGroupPadded, head = row % C::kGroupPadded;
    if (!query_rows.present(row)) return -1;
    const long long unit = (long long)(query_rows.first + token) * p.kv_heads + query_rows.group;
    return part_row(p.attend, C::kGroup, unit, stored, head);
  };
  const int steps = ceil_div(keys.limit, kStepKeys), each = ceil_div(steps, parts * S::kTeams);
  const int run = part * S::kTeams + at.team;
  const int begin = min(run * each, steps), end = min(begin + each, steps);
  if (part * S::kTeams * each >= steps) {
    store_no_part(p.attend, S::kRows, C::kThreads, place);
    return;
  }
  const auto queries = load_row_queries<C, kRowTiles>(shared, at, query_rows); // [rows, Dk]
  float o[S::kO][4] = {};                                                     // [16, Dv]
  SoftmaxRows rows;
  stream_keys<C, kRowTiles>(shared, at, pair, query_rows.group, lists, keys, begin, end, queries, o, rows,
                            p.scale_log2, gReads, once);
  store_part<C, kRowTiles>(shared, at, o, rows, p.attend, S::kRows, place);
}

template <class C> NSAI_DEVICE void attend_window(const NsaiDecode &p, SharedPlan &shared, int block) {
  const KeyStream<C, kTileTiles> at;
  const int units = p.tiles * p.kv_heads, part = block / units, unit = block % units;
  const DecodeTile tile = find_decode_tile<Decode<C>::kTileTokens>(p.batch, unit / p.kv_heads);
  const int tokens = min(Decode<C>::kTileTokens, tile.seq.q_len - tile.first_query);
  if (tokens <= 0) return;
  WindowsOfTile<C> keys(tile, tokens, at.row_tile, at.lane);
  const QueryRows<C> query_rows = { p.q, tile.seq.q_begin + tile.first_query, tokens, unit % p.kv_heads };
  const auto lists = find_rows<C::kRing ? 0 : C::kPageSize>(p.batch, tile.s, p.window.ring);
  attend_part<C, kTileTiles>(p, shared.tile, at, query_rows, p.window, lists, keys, part, p.window_parts,
                             part, tokens == tile.seq.q_len,
                             find_reads<C>(p.reads, tile.s, unit % p.kv_heads, NSAI_BRANCH_WINDOW));
}

template <class C> NSAI_DEVICE void attend_selected(const NsaiDecode &p, SharedPlan &shared, int block) {
  const KeyStream<C, kTokenTiles> at;
  const int units = p.batch.q_tokens * p.kv_heads, part = block / units, unit = block % units;
  const int row = unit / p.kv_heads, group = unit % p.kv_heads;
  const DecodeToken token = find_token(p.batch, row);
  const auto lists = find_rows<C::kPageSize>(p.batch, token.s, 0);
  wait_for_kernel_before();
  let_next_kernel_begin();
  if (!token.present) return;
  const int *gList = p.idx + row * p.idx_token_stride + group * p.idx_head_stride; // [n], [n, 2]
  typename ListedKeys<C::kRanges>::Type keys;
  find_keys<C>(keys, shared, token, gList);
  const QueryRows<C> query_rows = { p.q, row, 1, group };
  attend_part<C, kTokenTiles>(p, shared.token, at, query_rows, p.selected, lists, keys, part,
                              p.attend.parts - p.window_parts, p.window_parts + part, token.alone,
                              find_reads<C>(p.reads, token.s, group, NSAI_BRANCH_SELECTED));
}

template <class C> NSAI_DEVICE void attend(const NsaiDecode &p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  SharedPlan &shared = *(SharedPlan *)shared_bytes;
  const int windows = p.window_parts * p.tiles * p.kv_heads;
  if ((int)blockIdx.x < windows) {
    if constexpr (C::kWindow > 0) attend_window<C>(p, shared, blockIdx.x);
    wait_for_kernel_before();
    let_next_kernel_begin();
  } else if constexpr (C::kSelectCount > 0) {
    attend_selected<C>(p, shared, blockIdx.x - windows);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    decode_attend(const __grid_constant__ NsaiDecode p) {
  attend<Config>(p);
}
