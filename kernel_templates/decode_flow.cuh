// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_flow: a decode step of a token a sequence in one launch, for many sequences (sm_90 and up).
//
//   o = sum over branches b of gate_b O_b,   O_b = softmax over the branch's keys of (scale * q . k) v
//
//   q [T, Hq, Dk], compressed entries, K and V of the selected and the window branch -> o [T, Hq, Dv] and
//   what else is wanted; idx [T, Hkv, n]
//
// Grid   x = T * kv_heads * kCluster. A cluster of kCluster blocks has a token and KV head.
// Warps  all stream: an equal share of the compressed keys, of the window and of the chosen blocks, through
//        a ring each that is kept full (common/flow_ring.cuh). What a wait between two branches takes, the
//        copies that are on their way then make up for.
//   scan    O, reference and sum, and what the scores weigh in each selection block (common/decode_scan.cuh)
//   top-n   each warp weighs a piece of the selection blocks, and goes on with the window while warp 0 of each
//           block searches them (common/flow_search.cuh)
//   gather  O of all warps and branches; gates, outputs (common/flow_gather.cuh)
// Bound  by memory: 2 (Dk + Dv) bytes a key.
//
// Config: those of common/flow_ring.cuh, common/flow_search.cuh and common/flow_gather.cuh, kWindow (w),
// kKeptBlocks (whose pooled values lie in shared memory), kMinBlocks, kSharedBytes.
#pragma once
#include "common/barrier.cuh"
#include "common/cached.cuh"
#include "common/cluster.cuh"
#include "common/decode.cuh"
#include "common/decode_scan.cuh"
#include "common/flow_gather.cuh"
#include "common/flow_ring.cuh"
#include "common/flow_search.cuh"
#include "common/launch.cuh"
#include "common/params_cache.h"
#include "common/warp_best.cuh"

static_assert(Config::kScanRows == 16 && Config::kGroupPadded <= 16, "a token's heads are one m16 tile");

using Ring = FlowRing<Config>;
using Places = FlowPlaces<Config>;
constexpr int kCompressed = NSAI_BRANCH_COMPRESSED, kSelected = NSAI_BRANCH_SELECTED,
              kWindow = NSAI_BRANCH_WINDOW;
constexpr int kBest = kFlowBest<Config>;

// Of a warp: probabilities to be pooled; O [16, Dv] of the scan, and then of the window.
union __align__(16) WarpDesk {
  float pool[16][kPoolPitch];
  float o[16][Places::kPitch];
};
constexpr int kDeskFloats = sizeof(WarpDesk) / 4, kRingFloats = Ring::kBytes / 4;

// What a block waits for beside its rings: its warps' pieces; from other blocks; the list, from warp 0.
enum { kWeighed, kStats, kCandidates, kList, kSlices, kBarriers };

struct SharedPlan {
  unsigned char ring[Config::kWarps][Ring::kBytes]; // at the end O of the chosen blocks
  union {
    WarpDesk desk[Config::kWarps];
    struct { // between scan and window
      u64 queue[32];
      u64 keys[Config::kWarps * sizeof(WarpDesk) / 8 - 32]; // of the block's pieces
    } search;
  };
  float pooled[Config::kKeptBlocks > 0 ? Config::kKeptBlocks : 1][16];
  FlowReceived<Config> received;
  Places::WarpsStats stats[Places::kBranches];
  float2 scan_stats[Config::kCluster][16]; // of the blocks
  float spills[Config::kWarps + 1][16];    // into the block's first run, and behind each
  u32 gates[Places::kBranches][16]; // as they lie in memory
  u64 candidates[Config::kCluster][kBest]; // of the blocks
  u64 stages[Config::kWarps][2 * Config::kStages]; // barriers of the rings
  u64 barriers[kBarriers];
  int list[Config::kSelectCount + 1];
};
static_assert(sizeof(SharedPlan) <= Config::kSharedBytes && Config::kSharedBytes < sizeof(SharedPlan) + 128,
              "the host's formula for shared memory");
static_assert(16 * Places::kPitch * 4 <= Ring::kBytes, "O takes the ring's place");

// The token, and whose this thread is.
struct FlowUnit {
  int lane, warp, rank; // of the block in its cluster
  int unit, row, group;
  DecodeToken token;
  int seen, candidates; // tokens, selection blocks
  bool selects, searches;
};

// ---- begin

// What can be asked for before the sequence's length is known: its list of pages.
template <class C> NSAI_DEVICE void prefetch_list(const NsaiDecode &p, int s, int rank) {
  constexpr int kLineInts = 32; // of 128 bytes
  if constexpr (C::kPageSize > 0) {
    if (!p.batch.page_starts) {
      const long long width =
          min((long long)ceil_div(p.batch.max_kv_len, C::kPageSize), p.batch.page_list_stride);
      const int *list = p.batch.pages + s * p.batch.page_list_stride;
      for (long long i = (rank * C::kThreads + (int)threadIdx.x) * kLineInts; i < width;
           i += C::kCluster * C::kThreads * kLineInts)
        prefetch_line(list + i);
    }
  }
}

// One thread. What is not sent, because nothing is searched, nobody waits for.
template <class C> NSAI_DEVICE void init_barriers(SharedPlan &shared, int rank) {
  const u32 address = shared_address(shared.barriers);
  barrier_init(address + 8 * kWeighed, C::kThreads);
  barrier_init(address + 8 * kStats, 1);
  barrier_init(address + 8 * kCandidates, 1);
  barrier_init(address + 8 * kList, 32);
  barrier_init(address + 8 * kSlices, 1);
  barrier_init_fence();
  if constexpr (C::kCluster > 1) {
    barrier_arrive_expecting(address + 8 * kCandidates, sizeof shared.candidates);
    barrier_arrive_expecting(address + 8 * kStats, (C::kCluster - 1) * 16 * sizeof(float2) +
                                                       (rank ? 16 * sizeof(float) : 0));
    barrier_arrive_expecting(address + 8 * kSlices, received_bytes<C>(rank));
  }
}

template <class C>
NSAI_DEVICE FlowSteps<C> find_steps(const NsaiDecode &p, const SharedPlan &shared, const FlowUnit &at,
                                    const FlowStretch &stretch) {
  constexpr int kQuantumSteps = Decode<C>::kQuantum / kStepKeys;
  const bool windows = C::kWindow > 0 && p.branches >> kWindow & 1;
  const int slot = at.rank + C::kCluster * at.warp;
  const FlowShare<C> window(windows ? min(at.seen, C::kWindow) : 0, slot, at.searches);
  const int scanned = (stretch.end - stretch.begin) * kQuantumSteps;
  return FlowSteps<C>{ p,
                       at.group,
                       find_rows<C::kPageSize>(p.batch, at.token.s, 0),
                       stretch.begin * kQuantumSteps,
                       scanned,
                       visible_entries<C>(at.token.position),
                       window,
                       at.seen - window.keys,
                       FlowShare<C>(0, slot, false),
                       shared.list,
                       scanned + window.count };
}

template <class C>
NSAI_DEVICE ScanKeys<C> find_scan_keys(SharedPlan &shared, const FlowUnit &at, const FlowStretch &stretch,
                                       int visible, float *pooled) {
  ScanKeys<C> keys = {};
  keys.ends[0] = keys.ends[1] = visible;
  keys.pools = at.searches;
  keys.sP = &shared.desk[at.warp].pool[0][0];
  keys.gPooled =
      pooled + (stretch.begin * Decode<C>::kQuantumBlocks - stretch.first_block) * 16 + at.lane % 16;
  keys.reference = kNoReference;
  return keys;
}

// ---- between the branches

// O of a branch, its stats, and what the scan's last key weighs in the block behind.
template <class C, int kO>
NSAI_DEVICE void leave_branch(SharedPlan &shared, const FlowUnit &at, int b, float (&o)[kO][4],
                              SoftmaxRows &rows, ScanKeys<C> &keys, int next_keys) {
  __syncwarp(); // what lies there is read
  share_o<C>(b == kSelected ? (float *)shared.ring[at.warp] : &shared.desk[at.warp].o[0][0], o, at.lane);
  share_stats(shared.stats[b][at.warp], rows, at.lane);
  if (b == kCompressed && at.lane < 16)
    shared.spills[at.warp + 1][at.lane] = keys.reference + log2_approx(keys.own);
#pragma unroll
  for (int j = 0; j < kO; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) o[j][c] = 0.0f;
  rows = SoftmaxRows();
  keys.pools = false;
  keys.ends[0] = keys.ends[1] = next_keys;
}

// The block's stats of the scan, and what its last key weighs in the block behind, to all that need them;
// 16 threads.
template <class C> NSAI_DEVICE void send_stats(SharedPlan &shared, const FlowUnit &at, int runs) {
  const int row = threadIdx.x, rank = at.rank;
  const float2 stats = add_stats<C::kWarps>(&shared.stats[kCompressed][0][row]);
  shared.scan_stats[rank][row] = stats;
  if (C::kCluster == 1 || !at.searches) return;
  const u32 barrier = shared_address(&shared.barriers[kStats]);
  for (int to = 0; to < C::kCluster; ++to)
    if (to != rank)
      cluster_send(cluster_address(shared_address(&shared.scan_stats[rank][row]), to), stats,
                   cluster_address(barrier, to));
  if (rank + 1 < C::kCluster)
    cluster_send(cluster_address(shared_address(&shared.spills[0][row]), rank + 1), shared.spills[runs][row],
                 cluster_address(barrier, rank + 1));
}

// Number `i` of the block's best to all blocks.
template <class C> NSAI_DEVICE void send_best(SharedPlan &shared, const FlowUnit &at, int i, u64 key) {
  const u32 best = shared_address(&shared.candidates[at.rank][i]);
  const u32 barrier = shared_address(&shared.barriers[kCandidates]);
#pragma unroll 1
  for (int to = 0; to < C::kCluster; ++to)
    cluster_send(cluster_address(best, to), key, cluster_address(barrier, to));
}

// Every warp weighs a piece; warp 0 finds the best of the block's and, of several blocks, of what all have
// found.
template <class C>
NSAI_DEVICE void find_list(const NsaiDecode &p, SharedPlan &shared, const FlowUnit &at,
                           const FlowStretch &stretch, const float *pooled) {
  const u32 barriers = shared_address(shared.barriers);
  if constexpr (kFlowFree<C> > 0) {
    if (at.searches) {
      if constexpr (C::kCluster > 1) cluster_receive(barriers + 8 * kStats, 0);
      const FlowPiece all = find_searched<C>(stretch, at.candidates, at.rank);
      const FlowPiece piece = find_piece<C>(all, at.warp);
      weigh_piece<C>(shared.search.keys + (piece.begin - all.begin), piece, stretch, pooled, shared.spills,
                     shared.scan_stats, at.lane);
      barrier_arrive(barriers + 8 * kWeighed);
      if (stretch.extent > C::kKeptBlocks) discard_piece(pooled, piece, stretch.first_block, at.lane);
      if (at.warp != 0) return;
      barrier_wait(barriers + 8 * kWeighed, 0);
#pragma unroll 1
      for (int turn = 0; turn < (C::kCluster > 1 ? 2 : 1); ++turn) {
        if (turn) cluster_receive(barriers + 8 * kCandidates, 0);
        const BestKey best =
            warp_best<kBest>(turn ? &shared.candidates[0][0] : shared.search.keys,
                             turn ? C::kCluster * kBest : all.count, shared.search.queue, at.lane);
        if (best.place >= kBest) continue;
        if (C::kCluster > 1 && turn == 0)
          send_best<C>(shared, at, best.place, best.key);
        else
          shared.list[C::kSelectInit + best.place] = (int)index_in(best.key);
      }
    }
  }
  if (at.warp != 0) return;
  write_forced<C>(shared.list, at.candidates, at.lane);
  barrier_arrive(barriers + 8 * kList); // every lane: what it wrote of the list is there
  __syncwarp();                         // and all of it for this warp
  if (at.rank != 0) return;
  int *gOut = p.idx + at.row * p.idx_token_stride + at.group * p.idx_head_stride; // [n]
  for (int i = at.lane; i < C::kSelectCount; i += 32) gOut[i] = shared.list[i];
}

// The chosen blocks are known.
template <class C>
NSAI_DEVICE void add_chosen(FlowSteps<C> &steps, const FlowUnit &at) {
  const int count = min(at.candidates, C::kSelectCount);
  if (count == 0) return;
  // The last block may hold tokens behind the token.
  const int last = min(C::kSelectBlock, at.seen - steps.sList[count - 1] * C::kSelectBlock);
  // Steps of both branches are dealt round: these from the warp on that has the first one less.
  const int windows = ceil_div(steps.window.keys, kStepKeys), slots = FlowShare<C>::kSlots;
  const int slot = (steps.window.slot + slots - (at.searches ? 0 : windows % slots)) % slots;
  steps.chosen = FlowShare<C>((count - 1) * C::kSelectBlock + last, slot, false);
  steps.known = steps.all();
}

// ---- end

template <class C>
NSAI_DEVICE void gather(const NsaiDecode &p, SharedPlan &shared, const FlowUnit &at,
                        const float4 (&scan_o)[Places::kRounds]) {
  PlaceGates<C> gates[Places::kRounds];
#pragma unroll
  for (int r = 0; r < Places::kRounds; ++r)
    gates[r] = place_gates<C>(shared.gates, Places::of(r, at.rank));
  __syncthreads(); // O of all warps is there
#pragma unroll
  for (int r = 0; r < Places::kRounds; ++r) {
    if (!Places::exists(r)) continue;
    const int i = Places::of(r, at.rank);
    FlowSum x[Places::kBranches];
    x[kCompressed] = FlowSum{ shared.scan_stats[at.rank][i / Places::kRowPlaces], scan_o[r] };
    x[kSelected] = add_warps<C>((const float *)shared.ring, kRingFloats, shared.stats[kSelected], i);
    x[kWindow] = add_warps<C>(&shared.desk[0].o[0][0], kDeskFloats, shared.stats[kWindow], i);
    if constexpr (C::kCluster > 1) {
      const u32 barrier = shared_address(&shared.barriers[kSlices]);
      if (i / Places::kSlice != at.rank) {
        send_sums<C>(shared.received, barrier, at.rank, i, x);
        continue;
      }
      cluster_receive(barrier, 0);
      add_received<C>(shared.received, i, x);
    }
    store_sums<C>(p, at.row, at.group, i, x, gates[r]);
  }
}

template <class C> NSAI_DEVICE void decode(const NsaiDecode &p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  SharedPlan &shared = *(SharedPlan *)shared_bytes;

  // ---- coordinates ----
  FlowUnit at;
  at.lane = threadIdx.x % 32, at.warp = threadIdx.x / 32, at.rank = cluster_rank();
  at.unit = blockIdx.x / C::kCluster, at.row = at.unit / p.kv_heads, at.group = at.unit % p.kv_heads;
  at.token = find_token(p.batch, at.row);
  if (!at.token.present) return; // all blocks of the cluster
  prefetch_list<C>(p, at.token.s, at.rank);
  load_gates<C>(p, at.row, at.group, shared.gates);
  Queries<Ring> queries; // [16, Dk]
  load_row_fragments<C>(queries.fragment, QueryRows<C>{ p.q, at.row, 1, at.group }, 0, at.lane);
  if (threadIdx.x == 0) init_barriers<C>(shared, at.rank);
  FlowPlace<C> place(shared.ring[at.warp], shared.stages[at.warp], at.lane);
  if constexpr (C::kCluster > 1) cluster_arrive(); // this block has begun

  // ---- whose keys are whose ----
  const bool scans = p.branches >> kCompressed & 1 || p.idx;
  at.seen = at.token.position + 1; // 0: a padded row
  at.candidates = candidate_count<C>(at.token.position);
  at.selects = C::kSelectCount > 0 && p.idx;
  at.searches = at.selects && kFlowFree<C> > 0 && at.candidates > C::kSelectCount;
  const FlowStretch stretch =
      find_flow_stretch<C>(scans ? visible_entries<C>(at.token.position) : 0, at.rank, at.warp);
  FlowSteps<C> steps = find_steps<C>(p, shared, at, stretch);
  float *pooled = stretch.extent <= C::kKeptBlocks
                      ? &shared.pooled[0][0]
                      : p.pooled + ((long long)at.unit * p.pooled_blocks + stretch.first_block) * 16;
  ScanKeys<C> keys = find_scan_keys<C>(shared, at, stretch, steps.visible, pooled);

  // ---- rounds: the scan; the window, as long as it keeps the ring full; what is left of it, when the list
  // is there; the chosen blocks ----
  float o[Ring::kO][4] = {}; // [16, Dv]
  SoftmaxRows rows;
  float4 scan_o[Places::kRounds]; // of all warps
#pragma unroll 1
  for (int round = 0; round < 4; ++round) {
    if (round == 2 && at.selects) {
      barrier_wait(shared_address(&shared.barriers[kList]), 0);
      if (p.branches >> kSelected & 1) add_chosen<C>(steps, at);
    }
    const int end = round == 0   ? steps.scanned
                    : round == 1 ? max(steps.window_end() - C::kStages, steps.scanned)
                    : round == 2 ? steps.window_end()
                                 : steps.all();
    run_flow<C>(steps, keys, place, end, queries, o, rows, p.scale_log2, at.lane);
    if (round == 1) continue;
    leave_branch<C>(shared, at, round == 0 ? kCompressed : round == 2 ? kWindow : kSelected, o, rows, keys,
                    round == 0 ? steps.window.keys : steps.chosen.keys);
    if (round != 0) continue;
    __syncthreads();                                // O of all warps is there
    if constexpr (C::kCluster > 1) cluster_wait(); // all blocks have begun
    if (threadIdx.x < 16) send_stats<C>(shared, at, stretch.runs);
#pragma unroll
    for (int r = 0; r < Places::kRounds; ++r)
      scan_o[r] = add_warps<C>(&shared.desk[0].o[0][0], kDeskFloats, shared.stats[kCompressed],
                               Places::of(r, at.rank))
                      .o;
    __syncthreads(); // and read
    if constexpr (C::kSelectCount > 0)
      if (at.selects) find_list<C>(p, shared, at, stretch, pooled);
  }
  gather<C>(p, shared, at, scan_o);
}

extern "C" __global__ void __cluster_dims__(Config::kCluster, 1, 1)
    __launch_bounds__(Config::kThreads, Config::kMinBlocks)
        decode_flow(const __grid_constant__ NsaiDecode p) {
  begin_kernel();
  decode<Config>(p);
}
