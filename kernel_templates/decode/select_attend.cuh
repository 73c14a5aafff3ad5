// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_select_attend: all that follows the importance of a decode step, in one launch: top-n, attention to
// the chosen blocks, and the sum over splits. For models that have no other branch. With kScores importance
// as well: it is the whole step.
//
//   idx = top-n of importance (core/topn.cuh)
//   o = gate * O,   O = softmax over the tokens p <= t of the blocks idx of (scale * q . k_p) v
//
//   q [T, Hq, Dk], K and V in the cache, importance f32 [tokens of the chunk, Hkv, blocks]
//   (select_importance, select_index_scores) or, with kScores, compressed and coarse keys in the cache
//   -> o [T, Hq, Dv], idx [T, Hkv, n], lse and o_branch if wanted
//
// Grid: x = (token_end - token_begin) * kCluster, y = kv_heads. A cluster of kCluster CTAs takes a token and a
// KV head. On sm_90 and later only.
//
//   score   with kScores: each warp, or with more than four most of them, takes a share of coarse and compressed
//           keys, and sends the importance of its blocks to all CTAs (decode/score_blocks.cuh)
//   select  every CTA for itself (decode/rank_blocks.cuh): sharing the search would cost an exchange, and a
//           token has few candidates
//   attend  each CTA takes a share of the chosen keys, each of its warps a part of it (decode/mainloop.cuh):
//           first of the forced blocks, beside the kernel that computes importance, or while importance is on
//           its way, or by the warps that do not score
//   reduce  each CTA adds up its warps' results and sends slices of O, with the statistics of their rows, to
//           their owners, which add up the slices in the order of the CTAs and store the outputs
//
// Synchronisation: a barrier of the whole cluster before anything is sent, so that all CTAs have started;
// mbarriers at each receiver. No CTA receives anything after its wait, so that it may exit.
//
// Bound by the chain of waits (importance, block table, keys, one exchange) and by the fetch of instructions,
// most of which run a few times; with kScores and few CTAs to a token by memory.
//
// Config: those of decode/mainloop.cuh, decode/work.cuh, decode/rank_blocks.cuh and core/epilogue.cuh;
// kPageSize, kRawCodes (K and V are codes), kCluster, kMinBlocks, kSharedBytes; kScores, and then
// those of decode/score_blocks.cuh.
#pragma once
#include "core/barrier.cuh"
#include "core/cluster.cuh"
#include "core/epilogue.cuh"
#include "core/launch.cuh"
#include "data/cache_rows.cuh"
#include "decode/mainloop.cuh"
#include "decode/mainloop_splits.cuh"
#include "decode/rank_blocks.cuh"
#include "decode/raw_keys.cuh"
#include "decode/score_blocks.cuh"
#include "decode/stream_token.cuh"
#include "decode/work.cuh"
#include "params/kv_cache.h"

static_assert(Config::kScanRows == 16 && Config::kGroupPadded <= 16,
              "a token's heads are one m16 tile");

using Stream = KeyStream<Config, 1, (bool)Config::kRawCodes>;

// Vectors of four columns of O. Those of a KV head are numbered row by row; CTA r owns the r-th slice.
template <class C> struct Slices {
  static constexpr int kRow = C::kHeadDimV / 4, kAll = C::kGroup * kRow;
  static constexpr int kEach = ceil_div(kAll, C::kCluster);
  static constexpr int kRows = (kEach + kRow - 2) / kRow + 1; // most rows that a slice touches
  static constexpr int kReceived = C::kCluster > 1 ? C::kCluster *kEach : 1;
  static constexpr int kReceivedRows = C::kCluster > 1 ? C::kCluster *kRows : 1;
  static NSAI_DEVICE int size(int rank) { return min(max(kAll - rank * kEach, 0), kEach); }
  static NSAI_DEVICE int first_row(int rank) { return rank * kEach / kRow; }
  static NSAI_DEVICE int rows(int rank) {
    return size(rank) ? (rank * kEach + size(rank) - 1) / kRow - first_row(rank) + 1 : 0;
  }
};

struct NoScores {};
template <class C, bool kScores> struct ScoresOf { using Shared = NoScores; };
template <class C> struct ScoresOf<C, true> { using Shared = BlockScoresShared<C>; };

using SelectAttendParams =
    typename ParamsOf<(bool)Config::kScores, NsaiSelectAttend, NsaiScoredAttend>::Type;
NSAI_DEVICE const NsaiSelectAttend &attend_params(const NsaiSelectAttend &params) { return params; }
NSAI_DEVICE const NsaiSelectAttend &attend_params(const NsaiScoredAttend &params) {
  return params.attend;
}

struct SharedStorage : ScoresOf<Config, (bool)Config::kScores>::Shared {
  union {
    RankShared<Config> rank; // until the list is complete
    Stream::Shared stream;
  };
  float4 o[Slices<Config>::kReceived];         // [CTAs, vectors of a slice]
  float2 stats[Slices<Config>::kReceivedRows]; // reference and sum of a slice's rows, by CTA
  u64 received;                                // mbarrier
  int list[Config::kSelectCount];
};
static_assert(sizeof(SharedStorage) == Config::kSharedBytes,
              "the host computes another size of shared memory");

// ---- steps

// Initialises the mbarrier of this CTA's slice, and tells the cluster that the CTA has started.
template <class C> NSAI_DEVICE void begin_cluster(SharedStorage &shared, int rank) {
  if constexpr (C::kCluster > 1) {
    if (threadIdx.x == 0) {
      const u32 barrier = shared_address(&shared.received);
      barrier_init(barrier, 1);
      if constexpr (C::kScores) init_block_scores<C>(shared);
      barrier_init_fence();
      barrier_arrive_expecting(barrier,
                               C::kCluster * (Slices<C>::size(rank) * (u32)sizeof(float4) +
                                              Slices<C>::rows(rank) * (u32)sizeof(float2)));
    }
    cluster_arrive();
  }
}

// Prefetches to L2 what does not depend on the sequence's length: the queries and, where it is found without a
// load, the block table. (A step of several tokens of a sequence has no such place.)
template <class C>
NSAI_DEVICE void prefetch_start(const NsaiDecode &p, const QueryRows<C> &rows, int rank) {
  constexpr int kLine = 128;
  if constexpr (C::kPageSize > 0) {
    if (!p.batch.page_starts && !p.batch.cu_q) {
      const int width = ceil_div(p.batch.max_kv_len, C::kPageSize);
      const int *list =
          p.batch.pages + find_cached_sequence(p.batch, rows.first) * p.batch.page_list_stride;
      constexpr int kInts = kLine / (int)sizeof(int);
#pragma unroll 1
      for (int i = (rank * C::kThreads + (int)threadIdx.x) * kInts; i < width;
           i += C::kCluster * C::kThreads * kInts)
        prefetch_line(list + i);
    }
  }
  constexpr int kHeadLines = ceil_div(C::kHeadDimQk * 2, kLine);
#pragma unroll 1
  for (int i = rank * C::kThreads + threadIdx.x; i < C::kGroup * kHeadLines;
       i += C::kCluster * C::kThreads)
    if (rows.present(i / kHeadLines))
      prefetch_line(rows.at(i / kHeadLines) + i % kHeadLines * (kLine / 2));
}

// The keys of a token's blocks: first those that are known without importance, which are the forced ones or,
// of a token with n candidates at most, all; then those that are found.
struct ChosenKeys : EveryKey {
  const int *sFound; // blocks, ascending; nullptr: the known ones
  int skipped;       // tokens between the first and the last forced blocks
  NSAI_DEVICE int index(int i) const {
    const int block = i / Config::kSelectBlock;
    if (!sFound) return i + (block < Config::kSelectInit ? 0 : skipped);
    return sFound[block] * Config::kSelectBlock + i % Config::kSelectBlock;
  }
};

template <class C> NSAI_DEVICE ChosenKeys find_known(int candidates, int position) {
  constexpr int kForced = C::kSelectInit + C::kSelectLocal;
  const bool all = candidates <= C::kSelectCount;
  const int count = all ? candidates : kForced;
  const int last = all || C::kSelectLocal > 0 ? candidates - 1 : C::kSelectInit - 1;
  ChosenKeys keys;
  keys.sFound = nullptr;
  keys.skipped = (candidates - count) * C::kSelectBlock;
  keys.limit = count > 0 ? listed_keys<C>(count, last, position) : 0;
  return keys;
}

// sList [n]: complete.
template <class C>
NSAI_DEVICE ChosenKeys find_found(const int *sList, int candidates, int position) {
  constexpr int kFree = kFreeBlocks<C>;
  ChosenKeys keys;
  keys.sFound = sList + C::kSelectInit;
  keys.limit = 0;
  if constexpr (kFree > 0)
    if (needs_search<C>(candidates))
      keys.limit = listed_keys<C>(kFree, keys.sFound[kFree - 1], position);
  return keys;
}

// Attends to this warp's share of the keys, of which the last `warps` warps of each CTA have equally many.
template <class C>
NSAI_DEVICE void attend_share(const NsaiDecode &p, SharedStorage &shared, const Stream &at,
                              const CachedRows<C::kPageSize> &lists, const Queries<Stream> &queries,
                              const DecodeToken &token, int group, int rank, int warps,
                              ChosenKeys &keys, float (&o)[Stream::kO][4], SoftmaxRows &rows) {
  const int steps = ceil_div(keys.limit, kStepKeys);
  const int each = ceil_div(steps, C::kCluster * warps);
  const int warp = at.consumer_group - (C::kWarps - warps);
  if (warp < 0) return;
  const int begin = min((rank * warps + warp) * each, steps);
  const int end = min(begin + each, steps);
  const float scale = branch_scale_log2<Stream::kCoded>(p, kSelected, group);
  if constexpr (Stream::kQShared)
    stream_keys<C>(shared.stream, at, p.selected, group, lists, keys, begin, end, queries, o, rows,
                   scale, nullptr, token.alone);
  else
    stream_token<C>(shared.stream, at, p.selected, group, lists, keys, begin, end, queries, o, rows,
                    scale, token.alone);
}

// Completes the token's list in shared.list. All threads take part.
template <class C>
NSAI_DEVICE void select_blocks(const NsaiSelectAttend &params, SharedStorage &shared, int row,
                               int group, int rank, int candidates) {
  const NsaiDecode &p = params.coded.decode;
  const float *importance; // [candidates], in global or shared memory
  if constexpr (C::kScores)
    importance = scored_importance<C>(shared);
  else
    importance = params.importance + (row - params.token_begin) * params.importance_token_stride +
                 group * params.importance_head_stride;
  __syncthreads(); // all warps have finished with the stream
  rank_blocks<C>(shared.rank, shared.list, importance, candidates);
}

// Stores the token's list, by one CTA.
template <class C>
NSAI_DEVICE void store_list(const NsaiDecode &p, const SharedStorage &shared, int row, int group,
                            int rank) {
  if (rank > 0) return;
  int *gOut = list_of(p, row, group); // [n]
#pragma unroll 1
  for (int i = threadIdx.x; i < C::kSelectCount; i += C::kThreads) gOut[i] = shared.list[i];
}

// Sends the vectors of O, with the statistics of their rows, to their owners.
template <class C> NSAI_DEVICE void send_slices(SharedStorage &shared, int rank) {
  using S = Slices<C>;
  const u32 o = shared_address(shared.o), stats = shared_address(shared.stats),
            received = shared_address(&shared.received);
  for (int i = threadIdx.x; i < S::kAll; i += C::kThreads) {
    const ConsumerGroupSum x =
        add_consumer_groups<C, Stream>(shared.stream, i / S::kRow, i % S::kRow * 4);
    const int owner = i / S::kEach, slot = rank * S::kEach + i % S::kEach;
    const u32 barrier = cluster_address(received, owner);
    cluster_send(cluster_address(o + slot * (u32)sizeof(float4), owner), x.o, barrier);
    if (i % S::kRow != 0 && i % S::kEach != 0) continue; // not the first of a row in the slice
    const int row_slot = rank * S::kRows + i / S::kRow - S::first_row(owner);
    cluster_send(cluster_address(stats + row_slot * (u32)sizeof(float2), owner),
                 make_float2(x.reference, x.total), barrier);
  }
}

// Adds up vector i of this CTA's slice, which lies in its row `row`, over the CTAs.
template <class C>
NSAI_DEVICE ConsumerGroupSum add_received(const SharedStorage &shared, int i, int row) {
  ConsumerGroupSum x = { kNoReference, 0.0f, make_float4(0, 0, 0, 0) };
#pragma unroll
  for (int r = 0; r < C::kCluster; ++r)
    x.reference = fmaxf(x.reference, shared.stats[r * Slices<C>::kRows + row].x);
#pragma unroll
  for (int r = 0; r < C::kCluster; ++r) {
    const float2 stats = shared.stats[r * Slices<C>::kRows + row];
    const float factor = exp2_approx(stats.x - x.reference);
    x.o = add_scaled(x.o, factor, shared.o[r * Slices<C>::kEach + i]);
    x.total = fmaf(factor, stats.y, x.total);
  }
  return x;
}

// Stores this CTA's slice of the outputs; of a step without the branch, zeros.
template <class C>
NSAI_DEVICE void store_slice(const NsaiDecode &p, const SharedStorage &shared, int row, int group,
                             int rank, bool attends) {
  using S = Slices<C>;
  const NsaiEpilogue &out = p.out[kSelected];
  for (int i = threadIdx.x; i < S::size(rank); i += C::kThreads) {
    const int vector = rank * S::kEach + i, head = vector / S::kRow, column = vector % S::kRow * 4;
    const OutputRow output_row = { row, group * C::kGroup + head, true };
    float4 o = make_float4(0, 0, 0, 0);
    if (attends) {
      ConsumerGroupSum x;
      if constexpr (C::kCluster > 1)
        x = add_received<C>(shared, i, head - S::first_row(rank));
      else
        x = add_consumer_groups<C, Stream>(shared.stream, head, column);
      o = finish_four<C>(out, output_row, column, x.reference, x.total, x.o);
      // An empty row may be a padding row, whose gate may hold anything.
      const float gate = x.total == 0.0f ? 0.0f : gate_value<C>(out, load_gate<C>(out, output_row));
      o = make_float4(gate * o.x, gate * o.y, gate * o.z, gate * o.w);
    }
    store_four<C>(find_row(p.out[0].o, output_row) + column, o);
  }
}

// ---- body

template <class C> NSAI_DEVICE void select_attend(const SelectAttendParams &all_params) {
  const NsaiSelectAttend &params = attend_params(all_params);
  const NsaiDecode &p = params.coded.decode;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  SharedStorage &shared = *(SharedStorage *)shared_bytes;
  const Stream at;

  // ---- coordinates
  const int rank = C::kCluster > 1 ? cluster_rank() : 0, group = blockIdx.y;
  const int row = params.token_begin + (int)blockIdx.x / C::kCluster;
  begin_cluster<C>(shared, rank);
  if constexpr (C::kScores) begin_kernel();
  const QueryRows<C> query_rows = { p.q, row, 1, group };
  if constexpr (C::kScores) prefetch_start<C>(p, query_rows, rank);
  const DecodeToken token = find_token(p.batch, row);
  const auto lists = find_rows<C::kPageSize>(p.batch, token.s, 0);
  const bool attends = token.present && p.branches >> kSelected & 1;
  const int candidates = candidate_count<C>(token.position);

  // ---- score
  const bool scores =
      C::kScores && p.idx && needs_search<C>(candidates); // uniform over the cluster
  int attending = C::kWarps;                              // warps that attend to the known blocks
  bool has_queries = false;
  Queries<Stream> queries; // [16, Dk]
  if constexpr (C::kScores) {
    using B = BlockScores<C>;
    const bool scoring = scores && scores_blocks<C>(at.consumer_group);
    if (scores && B::kCtaWarps < C::kWarps) attending = C::kWarps - B::kCtaWarps;
    if (scoring) {
      Queries<typename B::Stream> loaded;
      const bool are_loaded =
          score_blocks<C, C::kStages * Stream::kStageBytes>(all_params, shared,
                                                            shared_address(shared.stream.keys),
                                                            query_rows, lists, token, group, rank,
                                                            candidates, loaded);
      if constexpr (!Stream::kCoded) queries = loaded, has_queries = are_loaded;
    } else if (C::kCluster > 1) {
      cluster_wait(); // all CTAs have started
    }
    if (!token.present) return; // uniform over the cluster
  }
  if constexpr (!Stream::kQShared)
    if (attends && !has_queries) queries = load_warp_queries<C>(shared.stream, at, query_rows);

  // ---- attend to the known blocks, select, attend to the found ones; in one loop, so that its code has
  // been fetched when importance is there
  if (p.idx) list_forced<C>(shared.list, candidates);
  float o[Stream::kO][4] = {}; // [16, Dv]
  SoftmaxRows rows;
#pragma unroll 1
  for (int late = 0; late < 2; ++late) {
    if (late) {
      if constexpr (C::kScores) {
        if (scores) receive_block_scores<C>(shared);
      } else {
        wait_for_kernel_before(); // importance
        let_next_kernel_begin();
        if constexpr (C::kCluster > 1) cluster_wait(); // all CTAs have started
        if (!token.present) return;                    // uniform over the cluster
      }
      if (p.idx) {
        select_blocks<C>(params, shared, row, group, rank, candidates);
        store_list<C>(p, shared, row, group, rank);
      }
    }
    if (!attends) continue;
    if constexpr (Stream::kQShared)
      queries = load_row_queries<C>(shared.stream, at, query_rows); // where shared.rank was
    ChosenKeys keys = late ? find_found<C>(shared.list, candidates, token.position)
                           : find_known<C>(candidates, token.position);
    attend_share<C>(p, shared, at, lists, queries, token, group, rank,
                    late ? (int)C::kWarps : attending, keys, o, rows);
  }

  // ---- reduce
  if (attends) {
    if constexpr (Stream::kCoded) scale_columns(o, value_scale(p, kSelected, group));
    share_consumer_groups<C>(shared.stream, at, o, rows);
    if constexpr (C::kCluster > 1) {
      send_slices<C>(shared, rank);
      cluster_receive(shared_address(&shared.received), 0);
    }
  }
  store_slice<C>(p, shared, row, group, rank, attends);
}

extern "C" __global__ void __cluster_dims__(Config::kCluster, 1, 1)
    __launch_bounds__(Config::kThreads, Config::kMinBlocks)
        decode_select_attend(const __grid_constant__ SelectAttendParams p) {
  select_attend<Config>(p);
}
