// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_cluster: a decode step in one launch, for few tokens (sm_90 and up). What decode_scan, _select,
// _attend and _combine do, by a cluster of kCluster blocks for each token and KV head:
//
//   scan     every block a stretch of the compressed keys, every warp a run of it: O, reference and sum,
//            and what the scores weigh in each selection block (common/decode_scan.cuh)
//   lse      references and sums go to all blocks
//   top-n    importance of the block's own selection blocks; its n_free best go to all blocks, each of
//            which ranks all that came
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
//        instructions, of which every warp runs most once.
//
// Config: those of common/key_stream.cuh, common/decode.cuh, decode_ring.cuh and decode_gather.cuh;
// kPageSize (P; 0: none), kListPages (of a list that lies in shared memory), kKeptBlocks (whose pooled
// values lie there), kMostBlocks (of a thread block), kMinBlocks, kSharedBytes.
#pragma once
#include "common/barrier.cuh"
#include "common/cached.cuh"
#include "common/cluster.cuh"
#include "common/decode.cuh"
#include "common/decode_gather.cuh"
#include "common/decode_late.cuh"
#include "common/decode_ring.cuh"
#include "common/decode_scan.cuh"
#include "common/few_best.cuh"
#include "common/key_stream.cuh"
#include "common/launch.cuh"
#include "common/params_cache.h"
#include "common/topn.cuh"

static_assert(Config::kCluster % 2 == 0, "candidates come in pairs, stats in halves");
static_assert(Config::kScanRows == 16 && Config::kGroupPadded <= 16, "a token's heads are one m16 tile");

using Stream = KeyStream<Config, 1>;
constexpr int kFreePlaces = kFreeBlocks<Config> > 0 ? kFreeBlocks<Config> : 1;
static_assert(!Stream::kQShared, "Q lies in registers");

struct SharedPlan {
  unsigned char ring[Config::kStages][Config::kWarps][Stream::kStageBytes];
  unsigned char q[Stream::Q::kBytes];
  RingDesk<Config> desk;
  Gather<Config>::Received received;
  __align__(16) Slice<Config>::Weights weights;
  __align__(16) float pool[Config::kWarps][16][kPoolPitch];
  float pooled[Config::kKeptBlocks][16];
  u64 keys[Config::kMostBlocks + 2];    // importance of the block's own selection blocks
  float spills[Config::kWarps + 1][16]; // into the block's first run, and behind each
  u64 candidates[Config::kCluster * kFreePlaces];
  u64 told[32], best[32]; // of this block, of all
  u64 least; // of what may be among the best
  u64 barriers[3]; // of what comes from other blocks: stats, candidates, slices
  int list[Config::kSelectCount + 1];
  int pages[Config::kListPages];
};
static_assert(sizeof(SharedPlan) <= Config::kSharedBytes &&
                  Config::kSharedBytes < sizeof(SharedPlan) + 128,
              "the host's formula for shared memory");

// ---- the compressed keys

// How they fall to the blocks of the cluster.
template <class C> struct Stretch {
  int each;  // quanta of a run
  int runs;  // of a block
  int begin, end; // quanta of this warp
  int blocks; // selection blocks that are pooled, in all
  int first_block, extent; // of this block's
};

template <class C>
NSAI_DEVICE Stretch<C> find_stretch(int visible, int rank, int warp) {
  const int quanta = ceil_div(visible, Decode<C>::kQuantum);
  Stretch<C> x;
  x.each = max(1, ceil_div(quanta, C::kCluster * C::kWarps));
  x.runs = ceil_div(ceil_div(quanta, x.each), C::kCluster);
  const int run = rank * x.runs + warp;
  x.begin = warp < x.runs ? min(run * x.each, quanta) : 0;
  x.end = warp < x.runs ? min(x.begin + x.each, quanta) : 0;
  x.blocks = quanta * Decode<C>::kQuantumBlocks;
  x.extent = x.runs * x.each * Decode<C>::kQuantumBlocks;
  x.first_block = rank * x.extent;
  return x;
}

// What can be asked for before the sequence's length is known: its list of pages, where it fits.
template <class C> struct PageList {
  static constexpr int kEach = C::kListPages / C::kThreads;
  const int *list; // nullptr: it stays where it is
  int width;
  int pages[kEach];
};
template <class C> NSAI_DEVICE PageList<C> load_pages(const NsaiCacheBatch &batch, int s) {
  PageList<C> x = { nullptr, 0, {} };
  if constexpr (C::kPageSize > 0) {
    const long long width = min((long long)ceil_div(batch.max_kv_len, C::kPageSize), batch.page_list_stride);
    if (batch.page_starts || width > C::kListPages) return x;
    x.list = batch.pages + s * batch.page_list_stride;
    x.width = (int)width;
#pragma unroll
    for (int i = 0; i < PageList<C>::kEach; ++i)
      if ((int)threadIdx.x + i * C::kThreads < x.width) x.pages[i] = x.list[threadIdx.x + i * C::kThreads];
  }
  return x;
}
template <class C> NSAI_DEVICE void store_pages(int *sPages, const PageList<C> &x) {
#pragma unroll
  for (int i = 0; i < PageList<C>::kEach; ++i)
    if ((int)threadIdx.x + i * C::kThreads < x.width) sPages[threadIdx.x + i * C::kThreads] = x.pages[i];
}

// Its list of pages.
template <class C> NSAI_DEVICE const int *find_pages(const NsaiCacheBatch &batch, int s) {
  return find_rows<C::kPageSize>(batch, s, 0).list;
}

// Q [16, Dk] of the token into shared memory, by all threads; heads behind the group's are zero.
template <class C> NSAI_DEVICE void copy_queries(u32 sQ, const QueryRows<C> &rows) {
  using Q = typename Stream::Q;
#pragma unroll 1
  for (int i = threadIdx.x; i < 16 * Q::kChunks; i += C::kThreads) copy_query<C, Q>(sQ, rows, i);
  copy_async_commit();
}
NSAI_DEVICE void read_queries(Queries<Stream> &queries, u32 sQ, int lane) {
  const u32 address = sQ + Stream::Q::offset(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < Stream::kSteps; ++k) ldmatrix_x4(queries.fragment[k], Stream::Q::along(address, 2 * k));
}

// What this block waits for; one thread.
enum { kStats, kCandidates, kSlices };
template <class C> NSAI_DEVICE void init_barriers(SharedPlan &shared) {
  for (int i = 0; i < 3; ++i) barrier_init(shared_address(&shared.barriers[i]), 1);
  barrier_init_fence();
}
template <class C>
NSAI_DEVICE void expect_all(SharedPlan &shared, int branches, bool searches, int told, int rank) {
  const u32 stats = C::kCluster * 16 * sizeof(float2), spills = searches && rank ? 16 * sizeof(float) : 0;
  const u32 candidates = C::kCluster * told * sizeof(u64);
  const u32 address = shared_address(shared.barriers);
  barrier_arrive_expecting(address + 8 * kStats, stats + spills);
  barrier_arrive_expecting(address + 8 * kCandidates, candidates);
  barrier_arrive_expecting(address + 8 * kSlices,
                           __popc(branches & 7) * slice_bytes<C>(rank) + __popc(branches & 6) * stats);
}

// What a warp's last key weighs in the block behind it, lane l's of row l; behind the last run to the next
// block.
template <class C>
NSAI_DEVICE void share_spill(SharedPlan &shared, const Stretch<C> &stretch, float spill, int rank, int warp,
                             int lane) {
  if (lane >= 16) return;
  shared.spills[warp + 1][lane] = spill;
  if (warp + 1 == stretch.runs && rank + 1 < C::kCluster)
    cluster_send(cluster_address(shared_address(&shared.spills[0][lane]), rank + 1), spill,
                 cluster_address(shared_address(&shared.barriers[kStats]), rank + 1));
}

// ---- top-n

// Importance of the selection block that is `at` blocks behind the first of this block's, from kHeads heads
// of each lane that shares it; `lse` of these.
template <class C, int kHeads>
NSAI_DEVICE float importance_of(const SharedPlan &shared, const Stretch<C> &stretch,
                                const float *pooled, int at, int lane, float inverse,
                                const float (&lse)[kHeads]) {
  const int j = stretch.first_block + at, each = stretch.each * Decode<C>::kQuantumBlocks;
  const int run = (int)(((float)(at + each) - 0.5f) * inverse); // that ends before it: (at + each - 1) / each
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

// This block's candidates: those of [begin, end) that are its own; and of how many a block tells the others.
template <class C> struct OwnBlocks {
  int begin, end, told;
};
template <class C>
NSAI_DEVICE OwnBlocks<C> own_blocks(const Stretch<C> &stretch, int candidates, int rank) {
  const int behind = rank + 1 == C::kCluster ? candidates : stretch.first_block + stretch.extent;
  const int begin = max(stretch.first_block, C::kSelectInit);
  return OwnBlocks<C>{ begin, max(min(behind, candidates - C::kSelectLocal), begin),
                       min(stretch.extent + 1, kFreeBlocks<C>) };
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

// Their keys, by all threads, and a 0 behind.
template <class C>
NSAI_DEVICE void weigh_blocks(SharedPlan &shared, const Stretch<C> &stretch, const OwnBlocks<C> &own,
                              const float *pooled) {
  constexpr int kHeads = C::kGroupPadded < 4 ? C::kGroupPadded : 4; // of a lane
  constexpr int kLanes = C::kGroupPadded / kHeads;                  // of a block
  const int lane = threadIdx.x % kLanes, count = own.end - own.begin;
  const int first = threadIdx.x / 32 * (32 / kLanes); // of the warp's
  if (first > count) return;
  const float mine = find_lse<C>(shared.received.stats[NSAI_BRANCH_COMPRESSED], threadIdx.x % 32);
  const float inverse = __fdividef(1.0f, (float)(stretch.each * Decode<C>::kQuantumBlocks));
  float lse[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) lse[h] = __shfl_sync(~0u, mine, lane * kHeads + h);
#pragma unroll 1
  for (int begin = first; begin <= count; begin += C::kThreads / kLanes) {
    const int i = begin + threadIdx.x % 32 / kLanes, at = own.begin - stretch.first_block + i;
    float x = i < count ? importance_of<C>(shared, stretch, pooled, at, lane, inverse, lse) : 0.0f;
    x = lanes_sum<kLanes>(x);
    if (lane == 0 && i <= count) shared.keys[i] = i < count ? key_of(order_of(x), own.begin + i) : 0;
  }
}

// The best of this block's to all blocks, each to its row of all blocks' of that rank.
template <class C> NSAI_DEVICE void tell_best(SharedPlan &shared, const OwnBlocks<C> &own, int rank) {
  constexpr int kFree = kFreeBlocks<C>;
  static_assert(kFewKeys<kFree, C::kThreads, C::kMostBlocks> * sizeof(u64) <= sizeof(shared.pool),
                "the few lie in its place");
  const u64 *keys = shared.keys;
  int count = own.end - own.begin;
  if (count > C::kThreads) {
    keys = (const u64 *)shared.pool;
    count = find_few<kFree, C::kThreads>(shared.keys, count, (u64 *)shared.pool, &shared.least, shared.list);
  }
  if (threadIdx.x < kFree && (int)threadIdx.x >= count) shared.told[threadIdx.x] = 0;
  find_best<kFree, C::kThreads, 0>(keys, count, [&](int place, u64 key) { shared.told[place] = key; });
  __syncthreads(); // the best are there
  const u32 barrier = shared_address(&shared.barriers[kCandidates]);
#pragma unroll 1
  for (int i = threadIdx.x; i < C::kCluster * own.told; i += C::kThreads) {
    const int place = i / C::kCluster, to = i % C::kCluster;
    const u32 address = shared_address(&shared.candidates[place * C::kCluster + rank]);
    cluster_send(cluster_address(address, to), shared.told[place], cluster_address(barrier, to));
  }
}

// The best of what all blocks sent into the list.
template <class C> NSAI_DEVICE void list_best(SharedPlan &shared, const OwnBlocks<C> &own) {
  constexpr int kFree = kFreeBlocks<C>;
  cluster_receive(shared_address(&shared.barriers[kCandidates]), 0);
  find_best<kFree, C::kThreads, C::kCluster>(shared.candidates, C::kCluster * own.told,
                                             [&](int place, u64 key) { shared.best[place] = key; });
  __syncthreads(); // the best are there
  if (threadIdx.x >= kFree) return;
  const u32 index = index_in(shared.best[threadIdx.x]);
  int place = 0;
#pragma unroll
  for (int i = 0; i < kFree; ++i) place += index_in(shared.best[i]) < index;
  shared.list[C::kSelectInit + place] = (int)index;
}

// The token's list into shared memory, where the free blocks lie already, and to the caller. One warp.
template <class C>
NSAI_DEVICE void store_list(const NsaiDecode &p, SharedPlan &shared, int candidates, int row, int group,
                            int rank, int lane) {
  write_forced<C>(shared.list, candidates, lane);
  __syncwarp(); // the list is there
  if (rank != 0) return;
  int *gOut = p.idx + row * p.idx_token_stride + group * p.idx_head_stride; // [n]
  for (int i = lane; i < C::kSelectCount; i += 32) gOut[i] = shared.list[i];
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
  if (threadIdx.x == 0) init_barriers<C>(shared);
  cluster_arrive(); // this block has begun
  const DecodeToken token = find_token(p.batch, row);
  const PageList<C> pages = load_pages<C>(p.batch, token.s);
  copy_queries<C>(shared_address(shared.q), QueryRows<C>{ p.q, row, 1, group });
  u32 gates[Slice<C>::kUnitRounds];
#pragma unroll
  for (int r = 0; r < Slice<C>::kUnitRounds; ++r) {
    const SliceUnit<C> at(p, r, row, group, rank);
    gates[r] = at.row.present ? load_gate<C>(p.out[at.b], at.row) : 0;
  }
  cluster_wait(); // all blocks have begun
  if (!token.present) return; // all blocks of the cluster
  store_pages<C>(shared.pages, pages);

  // ---- whose keys are whose ----
  const bool scans = p.branches & 1 || p.idx, windows = C::kWindow > 0 && p.branches >> 2 & 1;
  const bool selects = C::kSelectCount > 0 && p.branches >> 1 & 1;
  const int candidates = candidate_count<C>(token.position);
  const bool searches = kFreeBlocks<C> > 0 && p.idx && candidates > C::kSelectCount;
  const int visible = scans ? visible_entries<C>(token.position) : 0;
  const Stretch<C> stretch = find_stretch<C>(visible, rank, warp);
  RingTurns<C> turns;
  turns.runs = stretch.runs;
  turns.begin = stretch.begin * D::kQuantum;
  turns.end = min(stretch.end * D::kQuantum, visible);
  turns.window = window_keys<C>(token.position);
  turns.rank = rank;
  turns.scanned = scans ? stretch.each * (D::kQuantum / kStepKeys) : 0;
  turns.windowed = windows ? max(turns.turns(turns.window.limit), 1) : 0;
  turns.all = turns.scanned + turns.windowed;
  const RingRows<C> rows = { p, group, pages.list ? shared.pages : find_pages<C>(p.batch, token.s),
                             C::kPageSize == 0 || C::kRing > 0 ? find_rows<0>(p.batch, token.s, 0).row : 0 };

  const OwnBlocks<C> own = own_blocks<C>(stretch, candidates, rank);
  const int pooled_turns = (stretch.end - stretch.begin) * (D::kQuantum / kStepKeys); // of the warp
  float *pooled = stretch.extent <= C::kKeptBlocks
                      ? &shared.pooled[0][0]
                      : p.pooled + ((long long)unit * p.pooled_blocks + stretch.first_block) * 16;
  __syncthreads(); // the pages are there

  // ---- first copies; scan; chosen blocks; window, while their keys are on their way; their keys ----
  Queries<Stream> queries; // [16, Dk]
  RingSums<C> sums;
  ScanKeys<C> scanned = {};
  int done = 0; // turns
#pragma unroll 1
  for (int phase = -1; phase < 3; ++phase) {
    const int b = phase <= 0   ? NSAI_BRANCH_COMPRESSED
                  : phase == 1 ? NSAI_BRANCH_WINDOW
                               : NSAI_BRANCH_SELECTED;
    const bool counts = p.branches >> b & 1;
    const u32 slices = barriers + 8 * kSlices;
    int begin = done, end = turns.scanned;
    if (phase < 0) begin = -C::kStages, end = 0;
    if constexpr (C::kSelectCount > 0)
      if (phase == 1 && p.idx) {
        if constexpr (kFreeBlocks<C> > 0)
          if (searches) {
            tell_best<C>(shared, own, rank);
            list_best<C>(shared, own);
          }
        if (warp == 0) store_list<C>(p, shared, candidates, row, group, rank, lane);
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
          if (phase == 0 && i < pooled_turns) scanned.pool(x, sums.rows);
        },
        [&](int i) {
          if (i + 1 == end)
            send_stats<C>(shared.received, phase == 0 ? barriers + 8 * kStats : slices, b, rank, shared.desk);
        });
    done = end;
    if (phase < 0) {
      if (threadIdx.x == 0) expect_all<C>(shared, p.branches, searches, own.told, rank);
      scanned.pools = searches;
      scanned.sP = &shared.pool[warp][0][0];
      scanned.gPooled =
          pooled + (stretch.begin * D::kQuantumBlocks - stretch.first_block) * 16 + lane % 16;
      scanned.reference = kNoReference;
      copy_async_wait<C::kStages>();
      __syncthreads(); // Q is there
      read_queries(queries, shared_address(shared.q), lane);
      continue;
    }
    if (phase == 0 && searches) {
      share_spill<C>(shared, stretch, scanned.reference + log2_approx(scanned.own), rank, warp, lane);
      __syncthreads(); // pooled values and spills are there
    }
    if (counts) send_columns<C>(shared.received, slices, b, rank, sums, warp, lane);
    if (phase == 0 && searches) {
      cluster_receive(barriers + 8 * kStats, 0);
      weigh_blocks<C>(shared, stretch, own, pooled);
      __syncthreads(); // the keys are there
    }
  }

  // ---- slices ----
  if (scans) cluster_receive(barriers + 8 * kStats, 0);
  cluster_receive(barriers + 8 * kSlices, 0);
  weigh_parts<C>(p, shared.received, shared.weights, row, group, rank, gates);
  __syncthreads(); // the weights are there
#pragma unroll 1
  for (int at = threadIdx.x / Slice<C>::kLanes; at < Slice<C>::kRounds * Slice<C>::kPass;
       at += Slice<C>::kPass)
    finish_place<C>(p, shared.received, shared.weights, row, group, rank, at);
}

extern "C" __global__ void __cluster_dims__(Config::kCluster, 1, 1)
    __launch_bounds__(Config::kThreads, Config::kMinBlocks)
        decode_cluster(const __grid_constant__ NsaiDecode p) {
  begin_kernel();
  decode<Config>(p);
}
