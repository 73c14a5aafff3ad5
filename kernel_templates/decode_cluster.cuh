// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_cluster: a decode step in one launch, for few tokens (sm_90 and up). What decode_scan, _select,
// _attend and _combine do, by a cluster of kCluster blocks for each token and KV head:
//
//   scan     every block a stretch of the compressed keys, every warp a run of it: O, reference and sum,
//            and what the scores weigh in each selection block (common/decode_pool.cuh)
//   lse      references and sums go to all blocks
//   top-n    importance of the block's own selection blocks goes to all blocks, each of which finds the
//            n_free best; of long stretches a block tells its own best alone
//   late     window, while these are on their way, and chosen blocks: common/decode_late.cuh
//   gather   slices of every branch's O to their owners; gates, outputs: common/decode_gather.cuh
//
// A block's warps attend to keys of all three in turns: common/decode_ring.cuh.
//
// Grid   x = T * kCluster, y = kv_heads.
// Waits  for the cluster once: all blocks have begun before anything is sent. Else for what comes alone:
//        stats, candidates, slices, each to a place of its own; and nothing comes behind them, so that a
//        block may end.
// Bound  by the chain of waits: length and list of pages, keys, two exchanges, blocks, one exchange; and by
//        instructions, of which every warp runs most once and which wait for each other.
//
// Config: those of common/key_stream.cuh, common/decode.cuh, decode_turns.cuh and decode_gather.cuh;
// kKeptBlocks (whose pooled values lie in shared memory), kMostBlocks (of a thread block), kMinBlocks,
// kSharedBytes.
#pragma once
#include "common/barrier.cuh"
#include "common/cached.cuh"
#include "common/cluster.cuh"
#include "common/decode.cuh"
#include "common/decode_gather.cuh"
#include "common/decode_late.cuh"
#include "common/decode_pool.cuh"
#include "common/decode_ring.cuh"
#include "common/decode_turns.cuh"
#include "common/few_best.cuh"
#include "common/key_stream.cuh"
#include "common/launch.cuh"
#include "common/params_cache.h"
#include "common/topn.cuh"

static_assert(Config::kCluster % 2 == 0, "candidates come in pairs, stats in halves");
static_assert(Config::kScanRows == 16 && Config::kGroupPadded <= 16, "a token's heads are one m16 tile");

using Stream = KeyStream<Config, 1>;
constexpr int kFreePlaces = kFreeBlocks<Config> > 0 ? kFreeBlocks<Config> : 1;
constexpr int kToldBest = Config::kCluster * kFreePlaces; // where blocks tell no more than these
constexpr int kKeys = kToldBest + Config::kMostBlocks;
constexpr int kMostTold = kKeys / Config::kCluster;
static_assert(!Stream::kQShared, "Q lies in registers");

struct SharedPlan {
  unsigned char ring[Config::kStages][Config::kWarps][Stream::kStageBytes];
  unsigned char q[Stream::Q::kBytes];
  RingDesk<Config> desk;
  RingSides<Config> sides;
  Gather<Config>::Received received;
  __align__(16) Slice<Config>::Weights weights;
  __align__(16) float pool[Config::kWarps][16][kPoolPitch];
  float pooled[Config::kKeptBlocks][16];
  FewBest<kFreePlaces, 256> best; // few enough to be ranked one by one
  u64 keys[kKeys]; // that all blocks tell; behind them those of a block that tells its best alone
  u64 barriers[4]; // of what comes from other blocks
  float spills[Config::kWarps + 1][16]; // into the block's first run, and behind each
  int list[Config::kSelectCount + 1];
  int pages[Config::kListPages];
};
static_assert(sizeof(SharedPlan) <= Config::kSharedBytes &&
                  Config::kSharedBytes < sizeof(SharedPlan) + 128,
              "the host's formula for shared memory");

// ---- queries, barriers, spills

// Q [16, Dk] of the token into shared memory, by all threads; heads behind the group's are zero.
template <class C> NSAI_DEVICE void copy_queries(u32 sQ, const QueryRows<C> &rows) {
  using Q = typename Stream::Q;
#pragma unroll 1
  for (int i = threadIdx.x; i < 16 * Q::kChunks; i += C::kThreads)
    copy_query<C, Q>(sQ, rows, i);
  copy_async_commit();
}
NSAI_DEVICE void read_queries(Queries<Stream> &queries, u32 sQ, int lane) {
  const u32 address = sQ + Stream::Q::offset(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < Stream::kSteps; ++k) ldmatrix_x4(queries.fragment[k], Stream::Q::along(address, 2 * k));
}

// What this block waits for; one thread.
enum { kStats, kCandidates, kLateStats, kSlices, kBarriers };
template <class C> NSAI_DEVICE void init_barriers(SharedPlan &shared) {
  for (int i = 0; i < kBarriers; ++i) barrier_init(shared_address(&shared.barriers[i]), 1);
  barrier_init_fence();
}
template <class C>
NSAI_DEVICE void expect_all(SharedPlan &shared, int branches, bool searches, int told, int rank) {
  const u32 stats = C::kCluster * 16 * sizeof(float2), spills = searches && rank ? 16 * sizeof(float) : 0;
  const u32 candidates = C::kCluster * told * sizeof(u64);
  const u32 address = shared_address(shared.barriers);
  barrier_arrive_expecting(address + 8 * kStats, stats + spills);
  barrier_arrive_expecting(address + 8 * kCandidates, candidates);
  barrier_arrive_expecting(address + 8 * kLateStats, __popc(branches & 6) * stats);
  barrier_arrive_expecting(address + 8 * kSlices, __popc(branches & 7) * slice_bytes<C>(rank));
}

// What a warp's last key weighs in the block behind it; behind the last run to the next block.
template <class C>
NSAI_DEVICE void share_spill(SharedPlan &shared, const Stretch<C> &stretch, const StepPool<C> &pool, int rank,
                             int warp) {
  const bool sends = warp + 1 == stretch.runs && rank + 1 < C::kCluster;
  pool.end([&](int row, float spill) {
    shared.spills[warp + 1][row] = spill;
    if (sends)
      cluster_send(cluster_address(shared_address(&shared.spills[0][row]), rank + 1), spill,
                   cluster_address(shared_address(&shared.barriers[kStats]), rank + 1));
  });
}

// ---- top-n

// Importance of selection block j, `at` blocks behind the first of this block's, from kHeads heads of each
// lane that shares it; `lse` of these.
template <class C, int kHeads>
NSAI_DEVICE float importance_of(const SharedPlan &shared, const Stretch<C> &stretch,
                                const float *pooled, int at, int j, int lane, float inverse,
                                const float (&lse)[kHeads]) {
  const int each = stretch.each * Decode<C>::kQuantumBlocks;
  const int run = quotient_up(at, each, inverse); // that ends before it
  const bool first = j > 0 && j <= stretch.blocks && (run * each == at || j == stretch.blocks);
  const float *row = pooled + at * 16 + lane * kHeads;
  const float *spill = shared.spills[run] + lane * kHeads;
  float sum = 0.0f;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (lane * kHeads + h >= C::kGroup) continue;
    if (j < stretch.blocks) sum += exp2_approx(row[h] - lse[h]);
    if (first) sum += exp2_approx(spill[h] - lse[h]);
  }
  return sum;
}

// This block's candidates: those of [begin, end) that are its own. A block tells the others `told` keys: all
// of its own, whether they are candidates or not, or its best.
template <class C> struct OwnBlocks {
  static constexpr int kBehind = C::kSelectLocal > 0 ? 0 : 1; // candidates that have a spill alone
  int begin, end;
  int all, told;
};
template <class C>
NSAI_DEVICE OwnBlocks<C> own_blocks(const Stretch<C> &stretch, int candidates, int rank) {
  const int behind = rank + 1 == C::kCluster ? candidates : stretch.first_block + stretch.extent;
  const int begin = max(stretch.first_block, C::kSelectInit), all = stretch.extent + OwnBlocks<C>::kBehind;
  return OwnBlocks<C>{ begin, min(behind, candidates - C::kSelectLocal), all,
                       all > kMostTold ? kFreeBlocks<C> : all };
}

// Head lane % 16's log-sum-exp over all blocks, in powers of two. Whole warps.
template <class C> NSAI_DEVICE float find_lse(const float2 (*sStats)[16], int lane) {
  constexpr int kHalf = C::kCluster / 2; // of the blocks, for each half of the lanes
  const float2 own = add_stats<kHalf>(&sStats[lane / 16 * kHalf][lane % 16], 16);
  const float2 other = make_float2(__shfl_xor_sync(~0u, own.x, 16), __shfl_xor_sync(~0u, own.y, 16));
  const float highest = fmaxf(own.x, other.x);
  const float total = own.y * exp2_approx(own.x - highest) + other.y * exp2_approx(other.x - highest);
  return highest + log2_approx(total);
}

// The block's keys, by all threads, to all blocks; or to where it searches its best.
template <class C>
NSAI_DEVICE void tell_keys(SharedPlan &shared, const Stretch<C> &stretch, const OwnBlocks<C> &own,
                           const float *pooled, int rank) {
  constexpr int kHeads = C::kGroupPadded < 4 ? C::kGroupPadded : 4; // of a lane
  constexpr int kLanes = C::kGroupPadded / kHeads;                  // of a block
  const int lane = threadIdx.x % kLanes;
  const int first = threadIdx.x / 32 * (32 / kLanes); // of the warp's
  if (first >= own.all) return;
  const float mine = find_lse<C>(shared.received.stats[NSAI_BRANCH_COMPRESSED], threadIdx.x % 32);
  const float inverse = __fdividef(1.0f, (float)(stretch.each * Decode<C>::kQuantumBlocks));
  float lse[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) lse[h] = __shfl_sync(~0u, mine, lane * kHeads + h);
  constexpr int kTo = ceil_div(C::kCluster, kLanes); // blocks that a lane tells
  const u32 here = shared_address(&shared.barriers[kCandidates]);
  u32 there[kTo];
#pragma unroll
  for (int i = 0; i < kTo; ++i) there[i] = cluster_address(here, min(lane + i * kLanes, C::kCluster - 1));
#pragma unroll 1
  for (int begin = first; begin < own.all; begin += C::kThreads / kLanes) {
    const int at = begin + threadIdx.x % 32 / kLanes, j = stretch.first_block + at;
    const bool counts = own.begin <= j && j < own.end;
    float x = counts ? importance_of<C>(shared, stretch, pooled, at, j, lane, inverse, lse) : 0.0f;
    x = lanes_sum<kLanes>(x);
    const u64 key = counts ? key_of(order_of(x), j) : 0;
    if (at >= own.all) continue;
    if (own.told < own.all) {
      if (lane == 0) shared.keys[kToldBest + at] = key;
      continue;
    }
    const u32 to = shared_address(&shared.keys[rank * own.told + at]) - here;
#pragma unroll
    for (int i = 0; i < kTo; ++i)
      if (lane + i * kLanes < C::kCluster) cluster_send(there[i] + to, key, there[i]);
  }
}

// The best of this block's to all blocks.
template <class C> NSAI_DEVICE void tell_best(SharedPlan &shared, const OwnBlocks<C> &own, int rank) {
  __syncthreads(); // the keys are there
  find_best<C::kThreads, kKeys>(shared.best, shared.keys + kToldBest, own.all);
  const u32 here = shared_address(&shared.barriers[kCandidates]);
#pragma unroll 1
  for (int i = threadIdx.x; i < C::kCluster * own.told; i += C::kThreads) {
    const int place = i / C::kCluster;
    const u32 there = cluster_address(here, i % C::kCluster);
    const u32 to = shared_address(&shared.keys[rank * own.told + place]) - here;
    cluster_send(there + to, shared.best.best[place], there);
  }
  __syncthreads(); // the best are read
  clear_best(shared.best);
  __syncthreads(); // all threads know it
}

// The best of what all blocks told into the list, ascending.
template <class C> NSAI_DEVICE void list_best(SharedPlan &shared, const OwnBlocks<C> &own) {
  constexpr int kFree = kFreeBlocks<C>;
  cluster_receive(shared_address(&shared.barriers[kCandidates]), 0);
  find_best<C::kThreads, kKeys>(shared.best, shared.keys, C::kCluster * own.told);
  if (threadIdx.x >= kFree) return;
  const u32 index = index_in(shared.best.best[threadIdx.x]);
  int place = 0;
#pragma unroll
  for (int i = 0; i < kFree; ++i) place += index_in(shared.best.best[i]) < index;
  shared.list[C::kSelectInit + place] = (int)index;
}

// The token's list to the caller. One warp.
template <class C>
NSAI_DEVICE void store_list(const NsaiDecode &p, const int *sList, int row, int group, int lane) {
  int *gOut = p.idx + row * p.idx_token_stride + group * p.idx_head_stride; // [n]
  for (int i = lane; i < C::kSelectCount; i += 32) gOut[i] = sList[i];
}

// ---- all

template <class C> NSAI_DEVICE void decode(const NsaiDecode &p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  SharedPlan &shared = *(SharedPlan *)shared_bytes;
  using D = Decode<C>;

  // ---- coordinates ----
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = cluster_rank();
  const int row = blockIdx.x / C::kCluster, group = blockIdx.y, unit = row * p.kv_heads + group;
  const u32 barriers = shared_address(shared.barriers);
  const int s = find_cached_sequence(p.batch, row);
  const DecodeToken token = find_token(p.batch, row, s);
  const PageList<C> pages = load_pages<C>(p.batch, s);
  if (threadIdx.x == 0) init_barriers<C>(shared);
  clear_best(shared.best);
  cluster_arrive(); // this block has begun
  if (threadIdx.x < 2 * NSAI_BRANCH_COUNT) shared.sides.fill(p, group, threadIdx.x);
  // What follows of the row alone, while the length is on its way. Behind the keys' copies it would wait for
  // all of them.
  copy_queries<C>(shared_address(shared.q), QueryRows<C>{ p.q, row, 1, group });
  SliceUnit units[Slice<C>::kUnitRounds];
#pragma unroll
  for (int r = 0; r < Slice<C>::kUnitRounds; ++r) units[r] = find_unit<C>(p, r, row, group, rank);
  const SliceOutput output = find_output<C>(p, row, group);
  cluster_wait(); // all blocks have begun
  if (!token.present) return; // all blocks of the cluster
  store_pages<C>(shared.pages, pages);

  // ---- whose keys are whose ----
  const bool scans = p.branches & 1 || p.idx, windows = C::kWindow > 0 && p.branches >> 2 & 1;
  const bool selects = C::kSelectCount > 0 && p.branches >> 1 & 1;
  const int visible = scans ? visible_entries<C>(token.position) : 0;
  const Runs runs = find_runs<C>(visible);
  RingTurns<C> turns;
  turns.runs = runs.runs;
  turns.first_run = rank * runs.runs;
  turns.run_keys = runs.each * D::kQuantum;
  turns.visible = visible;
  turns.window = window_keys<C>(token.position);
  turns.rank = rank;
  turns.scanned = scans ? runs.each * (D::kQuantum / kStepKeys) : 0;
  turns.windowed = windows ? max(turns.turns(turns.window.limit), 1) : 0;
  turns.all = turns.scanned + turns.windowed;
  const RingRows<C> rows = { shared.sides, pages.list ? shared.pages : find_pages<C>(p.batch, s),
                             C::kPageSize == 0 || C::kRing > 0 ? find_rows<0>(p.batch, s, 0).row : 0 };
  __syncthreads(); // the pages are there

  // ---- first copies; scan; chosen blocks; window, while their keys are on their way; their keys ----
  const int candidates = candidate_count<C>(token.position);
  const bool searches = kFreeBlocks<C> > 0 && p.idx && candidates > C::kSelectCount;
  const Stretch<C> stretch(runs, rank, warp);
  const OwnBlocks<C> own = own_blocks<C>(stretch, candidates, rank);
  // Of the warp.
  const int pooled_turns = searches ? (stretch.end - stretch.begin) * (D::kQuantum / kStepKeys) : 0;
  float *pooled = stretch.extent <= C::kKeptBlocks
                      ? &shared.pooled[0][0]
                      : p.pooled + ((long long)unit * p.pooled_blocks + stretch.first_block) * 16;
  Queries<Stream> queries; // [16, Dk]
  RingSums<C> sums;
  StepPool<C> pool;
  int done = 0; // turns
#pragma unroll 1
  for (int phase = -1; phase < 3; ++phase) {
    const int b = phase <= 0   ? NSAI_BRANCH_COMPRESSED
                  : phase == 1 ? NSAI_BRANCH_WINDOW
                               : NSAI_BRANCH_SELECTED;
    const bool counts = p.branches >> b & 1;
    int begin = done, end = turns.scanned;
    if (phase < 0) begin = -C::kStages, end = 0;
    if constexpr (C::kSelectCount > 0)
      if (phase == 1 && p.idx) {
        if constexpr (kFreeBlocks<C> > 0)
          if (searches) list_best<C>(shared, own);
        if (warp == 0) {
          write_forced<C>(shared.list, candidates, lane);
          __syncwarp(); // the list is there
          if (rank == 0) store_list<C>(p, shared.list, row, group, lane);
        }
        __syncthreads(); // the list is there
        turns.chosen = chosen_keys<C>(shared.list, token.position);
        // The ring has turns of the window alone.
        begin = min(turns.all - C::kStages, done);
        if (selects) turns.all += max(turns.turns(turns.chosen.limit), 1);
      }
    if (phase == 1) end += turns.windowed;
    if (phase == 2) end = turns.all;
    sums.clear();
    run_turns<C>(
        turns, rows, shared.desk, sums, begin, done, end, shared_address(shared.ring), queries, p.scale_log2,
        warp, lane,
        [&](int i, const float(&x)[2][4]) {
          if (phase == 0 && i < pooled_turns) pool.pool(x, sums.rows);
        },
        [&](int i) {
          if (i + 1 == end)
            send_stats<C>(shared.received, barriers + 8 * (phase == 0 ? kStats : kLateStats), b, rank,
                          shared.desk);
        });
    done = end;
    if (phase < 0) {
      if (threadIdx.x == 0) expect_all<C>(shared, p.branches, searches, own.told, rank);
      pool.begin(&shared.pool[warp][0][0],
                 pooled + (stretch.begin * D::kQuantumBlocks - stretch.first_block) * 16);
      copy_async_wait<C::kStages>();
      __syncthreads(); // Q is there
      read_queries(queries, shared_address(shared.q), lane);
      continue;
    }
    if (phase == 0 && searches) {
      share_spill<C>(shared, stretch, pool, rank, warp);
      __syncthreads(); // pooled values and spills are there
    }
    if (counts) send_columns<C>(shared.received, barriers + 8 * kSlices, b, rank, sums, warp, lane);
    if (phase == 0 && searches) {
      cluster_receive(barriers + 8 * kStats, 0);
      if constexpr (kFreeBlocks<C> > 0) {
        tell_keys<C>(shared, stretch, own, pooled, rank);
        if (own.told < own.all) tell_best<C>(shared, own, rank);
      }
    }
  }

  // ---- slices ----
  if (scans) cluster_receive(barriers + 8 * kStats, 0);
  if (p.branches & 6) cluster_receive(barriers + 8 * kLateStats, 0);
  weigh_parts<C>(shared.received, shared.weights, units);
  __syncthreads(); // the weights are there
  cluster_receive(barriers + 8 * kSlices, 0);
#pragma unroll 1
  for (int at = threadIdx.x / Slice<C>::kLanes; at < Slice<C>::kRounds * Slice<C>::kPass;
       at += Slice<C>::kPass)
    finish_place<C>(p, shared.received, shared.weights, output, row, group, rank, at);
}

extern "C" __global__ void __cluster_dims__(Config::kCluster, 1, 1)
    __launch_bounds__(Config::kThreads, Config::kMinBlocks)
        decode_cluster(const __grid_constant__ NsaiDecode p) {
  begin_kernel();
  decode<Config>(p);
}
