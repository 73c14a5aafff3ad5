// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_pipelined: a decode step of a token a sequence in one launch, for many sequences (sm_90 and up).
//
//   o = sum over branches b of gate_b O_b,   O_b = softmax over the branch's keys of (scale * q . k) v
//
//   q [T, Hq, Dk], compressed entries, K and V of the selected and the window branch -> o [T, Hq, Dv] and
//   what else is wanted; idx [T, Hkv, n]
//
// Grid   x = T * kv_heads * kCluster. A cluster of kCluster blocks has a token and KV head.
// Warps  kWarps consumers, which share the compressed keys, the window and the chosen blocks, and for each a
//        producer, which finds and copies its keys and keeps its ring full from one branch to the next
//        (decode/pipelined/pipeline.cuh): what a wait between two takes, the copies that are on their way then make up
//        for. (Consumers that copied as well never waited for a key: they were bound by their instructions.)
//   scan    O, reference and sum, and what the scores weigh in each selection block (decode/compressed_scan.cuh)
//   top-n   each warp weighs a piece of the selection blocks as soon as all have scanned, and goes on with
//           the window; warp 0 of each block, which has none, searches them (decode/pipelined/weights.cuh)
//   both    the window's last blocks are chosen ones: where the branches have the same K and V they are read
//           once, behind the rest of the window, and O goes on as that of the chosen blocks
//   gather  O of all warps and branches; gates, outputs (decode/pipelined/reduce.cuh): the scan's and the
//           window's by the producers while the last chosen blocks are on their way, the others by all
// Bound  by memory: 2 (Dk + Dv) bytes a key.
//
// Config: those of decode/pipelined/pipeline.cuh, decode/pipelined/weights.cuh and decode/pipelined/reduce.cuh, kWindow (w),
// kBothBlocks (selection blocks that are window and chosen), kMostBlocks (selection blocks of a block of
// threads), kKvHeads, kThreads, kMinBlocks, kSharedBytes.
#pragma once
#include "core/barrier.cuh"
#include "data/cache_rows.cuh"
#include "core/cluster.cuh"
#include "decode/cluster/ranges.cuh"
#include "decode/work.cuh"
#include "decode/compressed_scan.cuh"
#include "decode/pipelined/branches.cuh"
#include "decode/pipelined/shared.cuh"
#include "core/launch.cuh"
#include "params/kv_cache.h"
#include "core/wgmma.cuh"

// What a warp does: its scan; the window until all warps have scanned, and to its end; what is window and
// chosen; the other chosen blocks.
enum { kScan, kUntilScanned, kRestOfWindow, kBoth, kChosen, kFlowRounds };

// Of a thread; the launch gives all of them 128. (NVRTC 13.0, D 128: consumers take 190.)
constexpr int kProducerRegisters = 64, kConsumerRegisters = 192;
static_assert(Config::kThreads == 64 * Config::kWarps && Config::kWarps % 4 == 0, "whole warpgroups of both");
static_assert(Config::kBothBlocks == 0 ||
                  (Config::kBothBlocks == Config::kSelectLocal && Config::kRing == 0 &&
                   Config::kBothBlocks * Config::kSelectBlock <= Config::kWindow),
              "blocks that are always chosen, all of them in the window");

// ---- begin

// What can be asked for before the sequence's length is known: its list of pages.
template <class C> NSAI_DEVICE void prefetch_list(const NsaiDecode &p, int s, int rank) {
  constexpr int kLineInts = 32; // of 128 bytes
  if constexpr (C::kPageSize > 0) {
    if (!p.batch.page_starts) {
      const int width = ceil_div(p.batch.max_kv_len, C::kPageSize);
      const int *list = p.batch.pages + s * p.batch.page_list_stride;
#pragma unroll 1 // instructions come late
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
    barrier_init(address + 8 * i, i == kAdded || i == kList ? 32 : i <= kAttended ? 32 * C::kWarps : 1);
  barrier_init_fence();
  if constexpr (C::kCluster > 1) {
    barrier_arrive_expecting(address + 8 * kCandidates, sizeof shared.candidates);
    barrier_arrive_expecting(address + 8 * kStats, (C::kCluster - 1) * 16 * sizeof(float2) +
                                                       (rank ? 16 * sizeof(float) : 0));
    barrier_arrive_expecting(address + 8 * kSlices, 2 * received_bytes<C>(rank));
    barrier_arrive_expecting(address + 8 * kLastSlices, received_bytes<C>(rank));
  }
}

template <class C>
NSAI_DEVICE FlowSteps<C> find_steps(const NsaiDecode &p, const SharedPlan &shared, const FlowUnit &at,
                                    const ClusterStretch &stretch) {
  constexpr int kQuantumSteps = Decode<C>::kQuantum / kStepKeys;
  const bool windows = C::kWindow > 0 && p.branches >> kWindow & 1;
  const int slot = at.rank + C::kCluster * at.warp;
  const int first = max(at.seen - C::kWindow, 0);
  const int both_first = max(at.candidates - at.both, 0) * C::kSelectBlock;
  const int both = at.both ? at.seen - both_first : 0;
  const FlowShare<C> window(windows ? at.seen - first - both : 0, both, slot, at.scans);
  const int scanned = (stretch.end - stretch.begin) * kQuantumSteps;
  return FlowSteps<C>{ p,
                       at.group,
                       find_rows<C::kPageSize>(p.batch, at.token.s, 0),
                       C::kRing > 0 ? find_rows<0>(p.batch, at.token.s, 0).row : 0,
                       stretch.begin * kQuantumSteps,
                       scanned,
                       visible_entries<C>(at.token.position),
                       window,
                       first,
                       both_first,
                       FlowChosen<C>(slot),
                       shared.list,
                       scanned + window.count + window.both_count };
}

template <class C>
NSAI_DEVICE ScanKeys<C> find_scan_keys(SharedPlan &shared, const FlowUnit &at, const ClusterStretch &stretch,
                                       int visible, float *pooled) {
  ScanKeys<C> keys = {};
  keys.ends[0] = keys.ends[1] = visible;
  keys.pools = at.searches;
  keys.begin_pool(&shared.desk[at.warp].pool[0][0], find_run_pooled<C>(pooled, stretch));
  return keys;
}

// ---- end

// A branch of place i over all blocks of the cluster; false: the place is another block's, which has been
// sent its part.
template <class C>
NSAI_DEVICE bool exchange(SharedPlan &shared, const FlowUnit &at, int sum, int b, int i, FlowSum &x) {
  if constexpr (C::kCluster > 1) {
    const u32 barrier = shared_address(&shared.barriers[sum]);
    if (i / Places::kSlice != at.rank) {
      send_sum<C>(shared.received, barrier, at.rank, i, b, x);
      return false;
    }
    cluster_receive(barrier, 0);
    add_received<C>(shared.received, i, b, x);
  }
  return true;
}

// The producers', when all is copied: the sum of the other branches, in place of O of the scans.
template <class C>
NSAI_DEVICE void settle(const NsaiDecode &p, SharedPlan &shared, const FlowUnit &at) {
  barrier_wait(shared_address(&shared.barriers[kAttended]), 0);
#pragma unroll 1
  for (int i = threadIdx.x - 32 * C::kWarps; i < Places::kPlaces; i += 32 * C::kWarps) {
    const int place = Places::turned(i, at.rank);
    const int row = place / Places::kRowPlaces, column = place % Places::kRowPlaces * 4;
    float4 *sum = (float4 *)(&shared.desk[0].o[0][0] + row * Places::kPitch + column);
    FlowSum scanned = { make_float2(kNoReference, 0.0f), make_float4(0, 0, 0, 0) };
    if (at.scans) scanned = FlowSum{ shared.scan_stats[at.rank][row], *sum };
    FlowSum attended = add_warps<C>(&shared.desk[0].o[0][0], kDeskFloats, shared.stats[kWindow],
                                    at.has_window(0) ? 0 : 1, place);
    const bool own = exchange<C>(shared, at, kSlices, kCompressed, place, scanned);
    if (!(exchange<C>(shared, at, kSlices, kWindow, place, attended) && own)) continue;
    float4 x = make_float4(0, 0, 0, 0);
    x = store_branch<C>(p, at.row, at.group, place, kCompressed, scanned, shared.gates, x);
    *sum = store_branch<C>(p, at.row, at.group, place, kWindow, attended, shared.gates, x);
  }
}

// O of the chosen blocks onto it.
template <class C>
NSAI_DEVICE void gather(const NsaiDecode &p, SharedPlan &shared, const FlowUnit &at) {
  __syncthreads(); // O of all warps is there
#pragma unroll 1 // instructions that run once come late
  for (int i = threadIdx.x; i < Places::kPlaces; i += C::kThreads) {
    const int place = Places::turned(i, at.rank);
    FlowSum x = add_warps<C>((const float *)shared.ring, kRingFloats, shared.stats[kSelected], 0, place);
    if (!exchange<C>(shared, at, kLastSlices, kSelected, place, x)) continue;
    const int row = place / Places::kRowPlaces, column = place % Places::kRowPlaces * 4;
    const float4 sum = *(const float4 *)(&shared.desk[0].o[0][0] + row * Places::kPitch + column);
    store_four<C>(find_row(p.out[0].o, OutputRow{ at.row, at.group * C::kGroup + row, true }) + column,
                  store_branch<C>(p, at.row, at.group, place, kSelected, x, shared.gates, sum));
  }
}

// ---- halves

// The producer's: every step's keys into the ring.
template <class C>
NSAI_DEVICE void produce(const NsaiDecode &p, SharedPlan &shared, const FlowUnit &at, FlowSteps<C> &steps,
                         const FlowRow &ahead) {
  fill_ring<C>(steps, ahead, FlowPlace<C>(shared.ring[at.warp], shared.stages[at.warp]), at.lane,
               [&](FlowSteps<C> &all) {
                 if (at.scans && at.warp == 0) {
                   barrier_wait(shared_address(&shared.barriers[kScanned]), 0);
                   add_scans<C>(shared, at);
                   barrier_arrive(shared_address(&shared.barriers[kAdded]));
                 }
                 if (!at.selects || !(p.branches >> kSelected & 1)) return;
                 barrier_wait(shared_address(&shared.barriers[kList]), 0);
                 all.chosen = find_chosen<C>(shared.list, at, all.window.steps());
                 all.known = all.all();
               });
  settle<C>(p, shared, at);
}

// What round kChosen attends to.
template <class C>
NSAI_DEVICE FlowPart find_chosen_part(const SharedPlan &shared, const FlowUnit &at) {
  const FlowPart &window = shared.parts[at.warp][kWindowPart], &both = shared.parts[at.warp][kBothPart];
  const int windows = ceil_div(window.keys, kStepKeys) + ceil_div(both.keys, kStepKeys);
  const FlowChosen<C> chosen = find_chosen<C>(shared.list, at, recomputed(windows)); // no uniform registers
  const int end = both.end + chosen.count;
  return FlowPart{ end, chosen.keys, FlowMask{ end - 1, chosen.step(chosen.count - 1) } };
}

// The consumer's: O and stats of every branch, and the list.
template <class C>
NSAI_DEVICE void consume(const NsaiDecode &p, SharedPlan &shared, const FlowUnit &at,
                         const ClusterStretch &stretch, const FlowSteps<C> &steps) {
  const u32 barriers = shared_address(shared.barriers);
  FlowPart *parts = shared.parts[at.warp];
  if (at.lane == 0) {
    parts[kScanPart] = steps.part(steps.scanned, steps.visible);
    parts[kWindowPart] = steps.part(steps.window_end(), steps.window.keys);
    parts[kBothPart] = steps.part(steps.both_end(), steps.window.both);
  }
  __syncwarp(); // they are there
  const u32 gate = load_gate_of<C>(p, at.row, at.group);
  Queries<Ring> queries; // [16, Dk]
  load_row_fragments<C>(queries.fragment, QueryRows<C>{ p.q, at.row, 1, at.group }, 0, at.lane);
  keep_gate(shared.gates, gate);
  float *kept = &shared.pooled[0][0];
  ScanKeys<C> keys =
      find_scan_keys<C>(shared, at, stretch, steps.visible, find_pooled<C>(p, kept, at.unit, stretch));
  const FlowPlace<C> place(shared.ring[at.warp], shared.stages[at.warp]);
  float o[Ring::kO][4] = {}; // [16, Dv]
  SoftmaxRows rows;
  int done = 0; // steps
#pragma unroll 1
  for (int round = kScan; round < kFlowRounds; ++round) {
    if (round == kUntilScanned && !at.scans) continue;
    FlowPart part = parts[round == kScan ? kScanPart : round <= kRestOfWindow ? kWindowPart : kBothPart];
    if (round == kChosen && at.selects) {
      barrier_wait(barriers + 8 * kList, 0);
      if (p.branches >> kSelected & 1) part = find_chosen_part<C>(shared, at);
    }
    keys.ends[0] = keys.ends[1] = part.keys;
    const int before = done;
    run_flow<C>(part.mask, keys, place, done, part.end, round == kUntilScanned ? barriers + 8 * kScanned : 0,
                queries, o, rows, p.scale_log2, at.lane);
    if (round == kUntilScanned) {
      barrier_wait(barriers + 8 * kScanned, 0);
      const ClusterStretch again =
          find_stretch<C>(find_cluster_runs<C>(recomputed(parts[kScanPart].keys)), at.rank, at.warp);
      if constexpr (kFreeBlocks<C> > 0)
        if (at.searches) weigh_blocks<C>(shared, at, again, find_pooled<C>(p, kept, at.unit, again));
      if constexpr (C::kSelectCount > 0)
        if (at.selects && at.warp == 0) find_list<C>(p, shared, at, again);
      continue;
    }
    if (round == kRestOfWindow && at.scans) barrier_wait(barriers + 8 * kAdded, 0);
    if (round == kBoth) {
      if (done > before) add_to_window<C>(shared, at, o, rows);
      barrier_arrive(barriers + 8 * kAttended);
      continue;
    }
    leave_branch<C>(shared, at,
                    round == kScan           ? kCompressed
                    : round == kRestOfWindow ? kWindow
                                             : kSelected,
                    o, rows, keys);
    if (round != kScan) continue;
    barrier_arrive(barriers + 8 * kScanned);
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
  at.unit = blockIdx.x / C::kCluster, at.row = at.unit / C::kKvHeads, at.group = at.unit % C::kKvHeads;
  if (threadIdx.x == 0) init_barriers<C>(shared, at.rank);
  if (warp < C::kWarps && at.lane < FlowPlace<C>::kBarriers)
    barrier_init(shared_address(&shared.stages[warp][at.lane]), 32);
  barrier_init_fence();
  begin_kernel();
  const int s = find_cached_sequence(p.batch, at.row);
  at.token = find_token(load_cached_sequence(p.batch, s), at.row, s);
  prefetch_list<C>(p, s, at.rank);
  if (!at.token.present) return; // all blocks of the cluster
  // ---- whose keys are whose ----
  at.scans = p.branches >> kCompressed & 1 || p.idx;
  at.seen = at.token.position + 1; // 0: a padded row
  at.candidates = candidate_count<C>(at.token.position);
  at.selects = C::kSelectCount > 0 && p.idx;
  constexpr int kWindowChosen = 1 << kSelected | 1 << kWindow;
  at.both = at.selects && (p.branches & kWindowChosen) == kWindowChosen ? C::kBothBlocks : 0;
  at.searches = at.selects && kFreeBlocks<C> > 0 && at.candidates > C::kSelectCount;
  const ClusterRuns runs = find_cluster_runs<C>(at.scans ? visible_entries<C>(at.token.position) : 0);
  const ClusterStretch stretch = find_stretch<C>(runs, at.rank, at.warp);
  FlowSteps<C> steps = find_steps<C>(p, shared, at, stretch);
  const FlowRow ahead = warp >= C::kWarps ? steps.row(0, at.lane) : FlowRow{ 0, 0 };
  __syncthreads(); // the barriers are there
  if constexpr (C::kCluster > 1) cluster_arrive(); // this block has begun

  // ---- producers and consumers ----
  if (warp >= C::kWarps) {
    registers_drop<kProducerRegisters>();
    produce<C>(p, shared, at, steps, ahead);
  } else {
    registers_raise<kConsumerRegisters>();
    consume<C>(p, shared, at, stretch, steps);
  }
  gather<C>(p, shared, at);
}

extern "C" __global__ void __cluster_dims__(Config::kCluster, 1, 1)
    __launch_bounds__(Config::kThreads, Config::kMinBlocks)
        decode_pipelined(const __grid_constant__ NsaiDecode p) {
  decode<Config>(p);
}
