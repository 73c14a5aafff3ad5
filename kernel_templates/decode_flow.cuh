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
// Warps  kWarps consumers, which share the compressed keys, the window and the chosen blocks, and for each a
//        producer, which finds and copies its keys and keeps its ring full from one branch to the next
//        (common/flow_ring.cuh): what a wait between two takes, the copies that are on their way then make up
//        for. (Consumers that copied as well never waited for a key: they were bound by their instructions.)
//   scan    O, reference and sum, and what the scores weigh in each selection block (common/decode_scan.cuh)
//   top-n   each warp weighs a piece of the selection blocks as soon as all have scanned, and goes on with
//           the window; warp 0 of each block, which has none, searches them (common/flow_search.cuh)
//   gather  O of all warps and branches; gates, outputs (common/flow_gather.cuh)
// Bound  by memory: 2 (Dk + Dv) bytes a key.
//
// Config: those of common/flow_ring.cuh, common/flow_search.cuh and common/flow_gather.cuh, kWindow (w),
// kKeptBlocks (whose pooled values lie in shared memory), kMostBlocks (selection blocks of a block of
// threads), kThreads, kMinBlocks, kSharedBytes.
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
#include "common/wgmma.cuh"

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

// What a block waits for beside its rings: its consumers' scans, pieces, and that O of the scans is added up;
// what other blocks send; the list, of warp 0.
enum { kScanned, kWeighed, kAdded, kStats, kCandidates, kSlices, kList, kBarriers };

struct SharedPlan {
  unsigned char ring[Config::kWarps][Ring::kBytes]; // at the end O of the chosen blocks
  WarpDesk desk[Config::kWarps]; // warp 0 has no window: in its place O of all warps' scans stays
  float pooled[Config::kKeptBlocks > 0 ? Config::kKeptBlocks : 1][16];
  __align__(16) u64 queue[32]; // of the search
  FlowReceived<Config> received;
  Places::WarpsStats stats[Places::kBranches];
  float2 scan_stats[Config::kCluster][16]; // of the blocks
  float spills[Config::kWarps + 1][16];    // into the block's first run, and behind each
  u32 gates[Places::kBranches][16];        // as they lie in memory
  u64 candidates[Config::kCluster][kBest]; // of the blocks
  u64 stages[Config::kWarps][FlowPlace<Config>::kBarriers]; // barriers of the rings
  u64 barriers[kBarriers];
  int list[Config::kSelectCount + 1];
  u32 orders[Config::kMostBlocks]; // of the block's own that are searched
};
static_assert(sizeof(SharedPlan) <= Config::kSharedBytes && Config::kSharedBytes < sizeof(SharedPlan) + 128,
              "the host's formula for shared memory");
static_assert(16 * Places::kPitch * 4 <= Ring::kBytes, "O takes the ring's place");

// What a warp does: its scan; the window until all warps have scanned, and to its end; the chosen blocks.
enum { kScan, kUntilScanned, kRestOfWindow, kChosen, kFlowRounds };

// Of a thread; the launch gives all of them 128. (NVRTC 13.0, D 128: consumers take 165, producers and what
// all do behind them 58.)
constexpr int kProducerRegisters = 72, kConsumerRegisters = 184;
static_assert(Config::kThreads == 64 * Config::kWarps && Config::kWarps % 4 == 0, "whole warpgroups of both");

// The token, and whose this thread is.
struct FlowUnit {
  int lane, warp, rank; // of the block in its cluster
  int unit, row, group;
  DecodeToken token;
  int seen, candidates; // tokens, selection blocks
  bool scans, selects, searches;
  NSAI_DEVICE bool has_window(int warp) const { return warp > 0 || !scans; }
};

// ---- begin

// What can be asked for before the sequence's length is known: its list of pages.
template <class C> NSAI_DEVICE void prefetch_list(const NsaiDecode &p, int s, int rank) {
  constexpr int kLineInts = 32; // of 128 bytes
  if constexpr (C::kPageSize > 0) {
    if (!p.batch.page_starts) {
      const int width = ceil_div(p.batch.max_kv_len, C::kPageSize);
      const int *list = p.batch.pages + s * p.batch.page_list_stride;
      for (int i = (rank * C::kThreads + (int)threadIdx.x) * kLineInts; i < width;
           i += C::kCluster * C::kThreads * kLineInts)
        prefetch_line(list + i);
    }
  }
}

// One thread. What is not sent, because nothing is searched, nobody waits for.
template <class C> NSAI_DEVICE void init_barriers(SharedPlan &shared, int rank) {
  const u32 address = shared_address(shared.barriers);
  for (int i = 0; i < kBarriers; ++i)
    barrier_init(address + 8 * i, i <= kAdded ? 32 * C::kWarps : i < kList ? 1 : 32);
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
  constexpr int kSlots = C::kCluster * C::kWarps;
  const int slot = at.rank + C::kCluster * at.warp;
  // Not warp 0's, which has the scan's end to do.
  const int first = at.scans ? C::kCluster : 0;
  const FlowShare window(windows ? min(at.seen, C::kWindow) : 0, slot - first, kSlots - first);
  const int scanned = (stretch.end - stretch.begin) * kQuantumSteps;
  return FlowSteps<C>{ p,
                       at.group,
                       find_rows<C::kPageSize>(p.batch, at.token.s, 0),
                       C::kRing > 0 ? find_rows<0>(p.batch, at.token.s, 0).row : 0,
                       stretch.begin * kQuantumSteps,
                       scanned,
                       visible_entries<C>(at.token.position),
                       window,
                       at.seen - window.keys,
                       FlowChosen<C>(slot),
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
  if (b != kWindow || at.has_window(at.warp))
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

// Of a cluster: the block's stats of the scan, and what its last key weighs in the block behind, to those
// that need them; 16 lanes.
template <class C> NSAI_DEVICE void send_stats(SharedPlan &shared, const FlowUnit &at, int runs) {
  const int row = at.lane, rank = at.rank;
  const float2 stats = add_stats<C::kWarps>(&shared.stats[kCompressed][0][row]);
  const u32 barrier = shared_address(&shared.barriers[kStats]);
  for (int to = 0; to < C::kCluster; ++to)
    if (to != rank)
      cluster_send(cluster_address(shared_address(&shared.scan_stats[rank][row]), to), stats,
                   cluster_address(barrier, to));
  if (rank + 1 < C::kCluster)
    cluster_send(cluster_address(shared_address(&shared.spills[0][row]), rank + 1), shared.spills[runs][row],
                 cluster_address(barrier, rank + 1));
}

// What all blocks' scores of head lane % 16 sum up to, base 2.
template <class C> NSAI_DEVICE float find_scan_lse(const SharedPlan &shared, const FlowUnit &at) {
  const int row = at.lane % 16;
  float2 stats = add_stats<C::kWarps>(&shared.stats[kCompressed][0][row]);
#pragma unroll
  for (int i = 0; i < C::kCluster; ++i)
    if (i != at.rank) stats = add_stats(stats, shared.scan_stats[i][row]);
  return stats.x + log2_approx(stats.y);
}

// The warp's places of O of all scans, in place of warp 0's, and their stats.
template <class C> NSAI_DEVICE void add_scans(SharedPlan &shared, const FlowUnit &at) {
  float *sO = &shared.desk[0].o[0][0];
#pragma unroll 1 // it runs once
  for (int i = at.warp * 32 + at.lane; i < Places::kPlaces; i += 32 * C::kWarps) {
    const FlowSum x = add_warps<C>(sO, kDeskFloats, shared.stats[kCompressed], 0, i);
    const int row = i / Places::kRowPlaces, column = i % Places::kRowPlaces * 4;
    *(float4 *)(sO + row * Places::kPitch + column) = x.o;
    if (column == 0) shared.scan_stats[at.rank][row] = x.stats;
  }
}

// Number `i` of the block's best to all blocks.
template <class C> NSAI_DEVICE void send_best(SharedPlan &shared, const FlowUnit &at, int i, u64 key) {
  const u32 best = shared_address(&shared.candidates[at.rank][i]);
  const u32 barrier = shared_address(&shared.barriers[kCandidates]);
#pragma unroll 1
  for (int to = 0; to < C::kCluster; ++to)
    cluster_send(cluster_address(best, to), key, cluster_address(barrier, to));
}

// What the warp's piece of the selection blocks weighs.
template <class C>
NSAI_DEVICE void weigh_blocks(SharedPlan &shared, const FlowUnit &at, const FlowStretch &stretch,
                              const float *pooled) {
  const u32 barriers = shared_address(shared.barriers);
  if constexpr (C::kCluster > 1) {
    if (at.warp == 0 && at.lane < 16) send_stats<C>(shared, at, stretch.runs);
    __syncwarp();
    cluster_receive(barriers + 8 * kStats, 0);
  }
  const FlowPiece all = find_searched<C>(stretch, at.candidates, at.rank);
  const FlowPiece piece = find_piece<C>(all, at.warp);
  weigh_piece<C>(shared.orders + (piece.begin - all.begin), piece, stretch, pooled, shared.spills,
                 find_scan_lse<C>(shared, at), at.lane);
  barrier_arrive(barriers + 8 * kWeighed);
  if (stretch.extent > C::kKeptBlocks) discard_piece(pooled, piece, stretch, at.lane);
}

// Of warp 0: the best of the block's and, where there are several, of what all blocks have found.
template <class C>
NSAI_DEVICE void find_list(const NsaiDecode &p, SharedPlan &shared, const FlowUnit &at,
                           const FlowStretch &stretch) {
  const u32 barriers = shared_address(shared.barriers);
  if constexpr (kFreeBlocks<C> > 0) {
    if (at.searches) {
      barrier_wait(barriers + 8 * kWeighed, 0); // all pieces are there
      const FlowPiece all = find_searched<C>(stretch, at.candidates, at.rank);
#pragma unroll 1
      for (int turn = 0; turn < (C::kCluster > 1 ? 2 : 1); ++turn) {
        if (turn) cluster_receive(barriers + 8 * kCandidates, 0);
        const auto key_at = [&](int i) {
          if (C::kCluster > 1 && turn) return (&shared.candidates[0][0])[i];
          return key_of(shared.orders[i], all.begin + i);
        };
        const BestKey best =
            warp_best<kBest>(key_at, turn ? C::kCluster * kBest : all.count, shared.queue, at.lane);
        if (best.place >= kBest) continue;
        if (C::kCluster > 1 && turn == 0)
          send_best<C>(shared, at, best.place, best.key);
        else
          shared.list[C::kSelectInit + best.place] = (int)index_in(best.key);
      }
    }
  }
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
  steps.chosen.set((count - 1) * C::kSelectBlock + last, ceil_div(steps.window.keys, kStepKeys), at.scans);
  steps.known = steps.all();
}

// ---- end

template <class C>
NSAI_DEVICE void gather(const NsaiDecode &p, SharedPlan &shared, const FlowUnit &at) {
  __syncthreads(); // O of all warps is there
#pragma unroll 1 // instructions that run once come late
  for (int r = 0; r < Places::kRounds; ++r) {
    if (!Places::exists(r)) continue;
    const int i = Places::of(r, at.rank);
    FlowSum x[Places::kBranches];
    const int row = i / Places::kRowPlaces, column = i % Places::kRowPlaces * 4;
    const float *sDesk = &shared.desk[0].o[0][0];
    x[kCompressed] = FlowSum{ make_float2(kNoReference, 0.0f), make_float4(0, 0, 0, 0) };
    if (at.scans)
      x[kCompressed] = FlowSum{ shared.scan_stats[at.rank][row],
                                *(const float4 *)(sDesk + row * Places::kPitch + column) };
    x[kSelected] = add_warps<C>((const float *)shared.ring, kRingFloats, shared.stats[kSelected], 0, i);
    x[kWindow] = add_warps<C>(sDesk, kDeskFloats, shared.stats[kWindow], at.has_window(0) ? 0 : 1, i);
    if constexpr (C::kCluster > 1) {
      const u32 barrier = shared_address(&shared.barriers[kSlices]);
      if (i / Places::kSlice != at.rank) {
        send_sums<C>(shared.received, barrier, at.rank, i, x);
        continue;
      }
      cluster_receive(barrier, 0);
      add_received<C>(shared.received, i, x);
    }
    store_sums<C>(p, at.row, at.group, i, x, place_gates<C>(shared.gates, i));
  }
}

// ---- halves

// The producer's: every step's keys into the ring.
template <class C>
NSAI_DEVICE void produce(const NsaiDecode &p, SharedPlan &shared, const FlowUnit &at, FlowSteps<C> &steps) {
  fill_ring<C>(steps, FlowPlace<C>(shared.ring[at.warp], shared.stages[at.warp]), at.lane,
               [&](FlowSteps<C> &all) {
                 if (!at.selects || !(p.branches >> kSelected & 1)) return;
                 barrier_wait(shared_address(&shared.barriers[kList]), 0);
                 add_chosen<C>(all, at);
               });
}

// The consumer's: O and stats of every branch, and the list.
template <class C>
NSAI_DEVICE void consume(const NsaiDecode &p, SharedPlan &shared, const FlowUnit &at,
                         const FlowStretch &stretch, FlowSteps<C> &steps) {
  const u32 barriers = shared_address(shared.barriers);
  const u32 gate = load_gate_of<C>(p, at.row, at.group);
  Queries<Ring> queries; // [16, Dk]
  load_row_fragments<C>(queries.fragment, QueryRows<C>{ p.q, at.row, 1, at.group }, 0, at.lane);
  float *pooled = stretch.extent <= C::kKeptBlocks
                      ? &shared.pooled[0][0]
                      : p.pooled + ((long long)at.unit * p.pooled_blocks + stretch.first_block) * 16;
  ScanKeys<C> keys = find_scan_keys<C>(shared, at, stretch, steps.visible, pooled);
  const FlowPlace<C> place(shared.ring[at.warp], shared.stages[at.warp]);
  float o[Ring::kO][4] = {}; // [16, Dv]
  SoftmaxRows rows;
  int done = 0; // steps
#pragma unroll 1
  for (int round = kScan; round < kFlowRounds; ++round) {
    if (round == kUntilScanned && !at.scans) continue;
    if (round == kChosen && at.selects) {
      barrier_wait(barriers + 8 * kList, 0);
      if (p.branches >> kSelected & 1) add_chosen<C>(steps, at);
      keys.ends[0] = keys.ends[1] = steps.chosen.keys;
    }
    const int end = round == kScan     ? steps.scanned
                    : round == kChosen ? steps.all()
                                       : steps.window_end();
    run_flow<C>(steps, keys, place, done, end, round == kUntilScanned ? barriers + 8 * kScanned : 0, queries,
                o, rows, p.scale_log2, at.lane);
    if (round == kUntilScanned) {
      barrier_wait(barriers + 8 * kScanned, 0);
      if constexpr (kFreeBlocks<C> > 0)
        if (at.searches) weigh_blocks<C>(shared, at, stretch, pooled);
      if constexpr (C::kSelectCount > 0)
        if (at.selects && at.warp == 0) find_list<C>(p, shared, at, stretch);
      add_scans<C>(shared, at);
      barrier_arrive(barriers + 8 * kAdded);
      continue;
    }
    if (round == kRestOfWindow && at.scans) barrier_wait(barriers + 8 * kAdded, 0);
    leave_branch<C>(shared, at,
                    round == kScan           ? kCompressed
                    : round == kRestOfWindow ? kWindow
                                             : kSelected,
                    o, rows, keys, steps.window.keys);
    if (round != kScan) continue;
    barrier_arrive(barriers + 8 * kScanned);
    keep_gate(shared.gates, gate);
    if constexpr (C::kCluster > 1) cluster_wait(); // all blocks have begun
  }
}

template <class C> NSAI_DEVICE void decode(const NsaiDecode &p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  SharedPlan &shared = *(SharedPlan *)shared_bytes;

  // ---- coordinates ----
  const int warp = warp_uniform(threadIdx.x / 32);
  FlowUnit at;
  at.lane = threadIdx.x % 32, at.warp = warp % C::kWarps, at.rank = cluster_rank();
  at.unit = blockIdx.x / C::kCluster, at.row = at.unit / p.kv_heads, at.group = at.unit % p.kv_heads;
  at.token = find_token(p.batch, at.row);
  if (!at.token.present) return; // all blocks of the cluster
  prefetch_list<C>(p, at.token.s, at.rank);
  if (threadIdx.x == 0) init_barriers<C>(shared, at.rank);
  if (warp < C::kWarps && at.lane < FlowPlace<C>::kBarriers)
    barrier_init(shared_address(&shared.stages[warp][at.lane]), 32);
  barrier_init_fence();
  __syncthreads(); // the barriers are there
  if constexpr (C::kCluster > 1) cluster_arrive(); // this block has begun

  // ---- whose keys are whose ----
  at.scans = p.branches >> kCompressed & 1 || p.idx;
  at.seen = at.token.position + 1; // 0: a padded row
  at.candidates = candidate_count<C>(at.token.position);
  at.selects = C::kSelectCount > 0 && p.idx;
  at.searches = at.selects && kFreeBlocks<C> > 0 && at.candidates > C::kSelectCount;
  const FlowStretch stretch =
      find_flow_stretch<C>(at.scans ? visible_entries<C>(at.token.position) : 0, at.rank, at.warp);
  FlowSteps<C> steps = find_steps<C>(p, shared, at, stretch);

  // ---- producers and consumers ----
  if (warp >= C::kWarps) {
    registers_drop<kProducerRegisters>();
    produce<C>(p, shared, at, steps);
  } else {
    registers_raise<kConsumerRegisters>();
    consume<C>(p, shared, at, stretch, steps);
  }
  gather<C>(p, shared, at);
}

extern "C" __global__ void __cluster_dims__(Config::kCluster, 1, 1)
    __launch_bounds__(Config::kThreads, Config::kMinBlocks)
        decode_flow(const __grid_constant__ NsaiDecode p) {
  begin_kernel();
  decode<Config>(p);
}
