// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_single_cta: a decode step in one launch, for batches that fill the device with one CTA per
// tile of tokens and KV head.
//
//   o = sum over branches b of gate_b O_b,   O_b = softmax over the branch's keys of (scale * q .
//   k) v
//
//   q [T, Hq, Dk], compressed entries, K and V of the selected and the window branch -> o
//   [T, Hq, Dv], idx [T, Hkv, n], lse and o_branch if wanted
//
// Grid: x = tiles * kv_heads. A CTA does the work of decode_split_kv_compressed,
// decode_split_kv_select, decode_split_kv_attend and decode_split_kv_combine for all keys of its
// tile. Its only intermediate results in global memory are pooled values and carries, which it
// reads back from L2.
//
// CTA: consumer groups of warps (decode/mainloop.cuh). Every second CTA computes its window after
// the selection, the others before the compressed branch. CTAs thus do not all search at the same
// time, and some always stream keys. Branches are added in the order in which they are computed;
// the first two give the same bits in either order.
//
// Bound by memory: 2 (Dk + Dv) bytes per key.
//
// Config: those of decode/compressed_scan.cuh and decode/topn_token.cuh, kWindow (w), kRing (the
// window's K and V lie in a ring buffer), kRawCodes (raw K and V are codes), kGate, kMinBlocks,
// kSharedBytes.
#pragma once
#include "core/epilogue.cuh"
#include "core/launch.cuh"
#include "data/cache_rows.cuh"
#include "decode/compressed_scan.cuh"
#include "decode/mainloop.cuh"
#include "decode/mainloop_splits.cuh"
#include "decode/merged_keys.cuh"
#include "decode/raw_keys.cuh"
#include "decode/topn_token.cuh"
#include "decode/work.cuh"
#include "params/kv_cache.h"

constexpr int kTokenTiles = (Config::kGroupPadded + 15) / 16;
constexpr int kListed = Config::kSelectCount > 0 ? Config::kSelectCount : 1;
template <class C> using WindowStream = KeyStream<C, C::kScanRows / 16, (bool)C::kRawCodes>;
template <class C> using TokenStream = KeyStream<C, kTokenTiles, (bool)C::kRawCodes>;

struct NoSearch {};
template <class C, bool kSearches> struct SearchShared { using type = SelectShared<C>; };
template <class C> struct SearchShared<C, false> { using type = NoSearch; };

struct SharedStorage {
  union { // used one after the other
    ScanStream<Config>::Shared scan;
    WindowStream<Config>::Shared window;
    TokenStream<Config>::Shared token;
    SearchShared<Config, (Config::kSelectCount > 0)>::type search;
  };
  union { // lists are written after the last pooling, and merged after the last list
    ScanPool<Config> pool;
    int list[kListed];
    MergedListStorage<Config> merged;
  };
  __align__(16) float sum[Config::kScanRows][Config::kHeadDimV];
  float gate[NSAI_BRANCH_COUNT][Config::kScanRows];
  float lse[Config::kScanRows]; // of the compressed branch, base 2
};
static_assert(sizeof(SharedStorage) == Config::kSharedBytes,
              "the host computes another size of shared memory");

// A tile of tokens and a KV head.
struct WorkItem {
  int index, group;
  DecodeTile tile;
  int tokens;
  NSAI_DEVICE int first_row() const { return tile.seq.q_begin + tile.first_query; } // row of q
};

// Loads the gates of all rows and branches into shared memory and zeroes the sum.
template <class C>
NSAI_DEVICE void begin_sum(const NsaiDecode &p, SharedStorage &shared, const WorkItem &work_item) {
  for (int i = threadIdx.x; i < NSAI_BRANCH_COUNT * C::kScanRows; i += C::kThreads) {
    const int b = i / C::kScanRows, row = i % C::kScanRows;
    const int token = row / C::kGroupPadded, head = row % C::kGroupPadded;
    const OutputRow output_row = { work_item.first_row() + token,
                                   work_item.group * C::kGroup + head,
                                   token < work_item.tokens && head < C::kGroup &&
                                       (p.branches >> b & 1) };
    shared.gate[b][row] =
        output_row.present ? gate_value<C>(p.out[b], load_gate<C>(p.out[b], output_row)) : 0.0f;
  }
  for (int i = threadIdx.x; i < C::kScanRows * C::kHeadDimV; i += C::kThreads)
    (&shared.sum[0][0])[i] = 0.0f;
  __syncthreads(); // gates and zeros are written
}

// Finishes a branch for rows [first, first + rows) of the work item, whose O and statistics lie in
// the consumer groups' shared memory: stores lse and o_branch if wanted and adds the gated O to the
// sum. All threads take part.
template <class C, class S>
NSAI_DEVICE void add_branch(const NsaiDecode &p, SharedStorage &shared, const WorkItem &work_item,
                            int b, int first, int rows, const typename S::Shared &stream) {
  const NsaiEpilogue &out = p.out[b];
  for (int i = threadIdx.x; i < rows * (C::kHeadDimV / 4); i += C::kThreads) {
    const int row = i / (C::kHeadDimV / 4), column = i % (C::kHeadDimV / 4) * 4;
    const ConsumerGroupSum x = add_consumer_groups<C, S>(stream, row, column);
    const int token = (first + row) / C::kGroupPadded, head = (first + row) % C::kGroupPadded;
    if (b == kCompressed && column == 0) shared.lse[row] = x.reference + log2_approx(x.total);
    if (!(p.branches >> b & 1) || head >= C::kGroup || token >= work_item.tokens) continue;
    const OutputRow output_row = { work_item.first_row() + token,
                                   work_item.group * C::kGroup + head, true };
    const float4 o = finish_four<C>(out, output_row, column, x.reference, x.total, x.o);
    if (x.total == 0.0f) continue; // a padding row, whose gate may hold anything
    const float gate = shared.gate[b][first + row];
    float4 &sum = *(float4 *)&shared.sum[first + row][column];
    // Separate products and sums (no fma): two branches then give the same bits in either order.
    sum =
        make_float4(__fadd_rn(sum.x, __fmul_rn(gate, o.x)), __fadd_rn(sum.y, __fmul_rn(gate, o.y)),
                    __fadd_rn(sum.z, __fmul_rn(gate, o.z)), __fadd_rn(sum.w, __fmul_rn(gate, o.w)));
  }
  __syncthreads(); // all threads have read the groups' results
}

// ---- branches

template <class C>
NSAI_DEVICE void scan_work_item(const NsaiDecode &p, SharedStorage &shared,
                                const WorkItem &work_item) {
  const ScanStream<C> at;
  float o[ScanStream<C>::kO][4] = {}; // [16, Dv]
  SoftmaxRows rows;
  const ConsumerGroupRuns runs =
      find_runs<C>(p, visible_entries<C>(
                          last_position<C>(work_item.tile.seq, work_item.tile.first_query)));
  scan_run<C>(p, shared.scan, shared.pool, at, work_item.tile, work_item.tokens, work_item.index,
              work_item.group, at.consumer_group, runs, o, rows);
  share_consumer_groups<C>(shared.scan, at, o, rows);
  add_branch<C, ScanStream<C>>(p, shared, work_item, kCompressed, 0, C::kScanRows, shared.scan);
}

// Attends to raw keys of a branch for `tokens` tokens from token `token` of the work item on.
template <class C, class S, class Keys, class Rows>
NSAI_DEVICE void attend_rows(const NsaiDecode &p, SharedStorage &shared, typename S::Shared &stream,
                             const WorkItem &work_item, int token, int tokens, int b,
                             const NsaiCachePair &pair, const Rows &lists, Keys &keys) {
  const S at;
  const QueryRows<C> query_rows = { p.q, work_item.first_row() + token, tokens, work_item.group };
  const auto queries = load_row_queries<C>(stream, at, query_rows); // [16, Dk]
  const int steps = ceil_div(keys.limit, kStepKeys), each = ceil_div(steps, S::kConsumerGroups);
  const int begin = min(at.consumer_group * each, steps), end = min(begin + each, steps);
  float o[S::kO][4] = {}; // [16, Dv]
  SoftmaxRows rows;
  stream_keys<C>(stream, at, pair, work_item.group, lists, keys, begin, end, queries, o, rows,
                 branch_scale_log2<S::kCoded>(p, b, work_item.group),
                 find_kv_reads<C>(p.kv_reads, work_item.tile.s, work_item.group, b),
                 tokens == work_item.tile.seq.q_len);
  if constexpr (S::kCoded) scale_columns(o, value_scale(p, b, work_item.group));
  share_consumer_groups<C>(stream, at, o, rows);
  add_branch<C, S>(p, shared, work_item, b, token * C::kGroupPadded, tokens * C::kGroupPadded,
                   stream);
}

template <class C>
NSAI_DEVICE void attend_window_work_item(const NsaiDecode &p, SharedStorage &shared,
                                         const WorkItem &work_item) {
  const WindowStream<C> at;
  const auto lists =
      find_rows<(C::kRing ? 0 : C::kPageSize)>(p.batch, work_item.tile.s, p.window.ring);
  WindowsOfTile<C> keys(work_item.tile, work_item.tokens, at.row_tile, at.lane);
  attend_rows<C, WindowStream<C>>(p, shared, shared.window, work_item, 0, work_item.tokens, kWindow,
                                  p.window, lists, keys);
}

// Selects the token's blocks into shared.list and idx and returns their number.
template <class C>
NSAI_DEVICE int select_token(const NsaiDecode &p, SharedStorage &shared, const WorkItem &work_item,
                             int token) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int candidates =
      candidate_count<C>(work_item.tile.seq.position(work_item.tile.first_query + token));
  if (warp == 0) write_forced<C>(shared.list, candidates, lane);
  if constexpr (Topn<C>::kFree > 0) {
    if (candidates > C::kSelectCount) {
      const int last = last_position<C>(work_item.tile.seq, work_item.tile.first_query);
      const int row = token * C::kGroupPadded;
      const ScanImportance<C> importance =
          find_importance<C>(p, work_item.index, row, last, shared.lse + row);
      const auto rows = importance.load_rows(find_piece<C>(candidates, warp).begin, lane);
      search_blocks<C>(importance, rows, candidates, shared.search, shared.list, warp, lane);
      __syncthreads(); // all warps have read the pooled values
      if (token == work_item.tokens - 1)
        discard_pooled<C>(importance.gPooled - row, importance.blocks);
    }
  }
  __syncthreads(); // the list is written
  int *gOut = list_of(p, work_item.first_row() + token, work_item.group);
  for (int i = threadIdx.x; i < C::kSelectCount; i += C::kThreads) gOut[i] = shared.list[i];
  return min(candidates, C::kSelectCount);
}

template <class C>
NSAI_DEVICE void attend_selected_work_item(const NsaiDecode &p, SharedStorage &shared,
                                           const WorkItem &work_item) {
  const auto lists = find_rows<C::kPageSize>(p.batch, work_item.tile.s, 0);
  int count = 0; // of the last token
#pragma unroll 1
  for (int token = 0; token < work_item.tokens; ++token) {
    count = select_token<C>(p, shared, work_item, token);
    if (token + 1 < work_item.tokens) __syncthreads(); // all threads have read the list
  }
  if (!(p.branches >> kSelected & 1)) return;
  if constexpr (MergedListStorage<C>::kTokens == 1) {
    BlocksOfToken keys =
        find_blocks(shared.list, count, work_item.tile.seq.position(work_item.tile.first_query));
    attend_rows<C, TokenStream<C>>(p, shared, shared.token, work_item, 0, 1, kSelected, p.selected,
                                   lists, keys);
  } else {
    const TokenStream<C> at;
    const int *gLists = list_of(p, work_item.first_row(), work_item.group);
    __syncthreads(); // all lists are written
    BlocksOfTile<C> keys =
        merge_blocks<C>(work_item.tile, work_item.tokens, gLists, p.idx_token_stride, shared.merged,
                        (int *)&shared.token, at.row_tile, at.lane);
    attend_rows<C, TokenStream<C>>(p, shared, shared.token, work_item, 0, work_item.tokens,
                                   kSelected, p.selected, lists, keys);
  }
}

template <class C> NSAI_DEVICE void attend_work_item(const NsaiDecode &p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  SharedStorage &shared = *(SharedStorage *)shared_bytes;

  // ---- coordinates
  WorkItem work_item;
  work_item.index = blockIdx.x;
  work_item.group = work_item.index % p.kv_heads;
  work_item.tile = find_decode_tile<Decode<C>::kTileTokens>(p, work_item.index / p.kv_heads);
  work_item.tokens =
      min(Decode<C>::kTileTokens, work_item.tile.seq.q_len - work_item.tile.first_query);
  if (work_item.tokens <= 0) return;
  begin_sum<C>(p, shared, work_item);

  // ---- branches
  const int late = work_item.index % 2;
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    if (i == late) {
      if constexpr (C::kWindow > 0)
        if (p.branches >> kWindow & 1) attend_window_work_item<C>(p, shared, work_item);
    } else {
      if (p.idx || (p.branches >> kCompressed & 1)) scan_work_item<C>(p, shared, work_item);
      if constexpr (C::kSelectCount > 0)
        if (p.idx) attend_selected_work_item<C>(p, shared, work_item);
    }
  }

  // ---- output
  for (int i = threadIdx.x; i < work_item.tokens * C::kGroupPadded * (C::kHeadDimV / 4);
       i += C::kThreads) {
    const int row = i / (C::kHeadDimV / 4), column = i % (C::kHeadDimV / 4) * 4;
    const int head = row % C::kGroupPadded;
    if (head >= C::kGroup) continue;
    const float4 x = *(const float4 *)&shared.sum[row][column];
    const OutputRow output_row = { work_item.first_row() + row / C::kGroupPadded,
                                   work_item.group * C::kGroup + head, true };
    store_four<C>(find_row(p.out[0].o, output_row) + column, x);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    decode_single_cta(const __grid_constant__ ParamsOf<Config::kEntryCodes || Config::kRawCodes,
                                                       NsaiDecode, NsaiCodedDecode>::Type p) {
  begin_kernel();
  attend_work_item<Config>((const NsaiDecode &)p);
}
