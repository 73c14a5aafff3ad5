// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_pipelined: a decode step with one new token per sequence in one launch, for many sequences
// (compiled for sm_90 and later; the host offers it on sm_90 only, where it was measured).
//
//   o = sum over branches b of gate_b O_b,   O_b = softmax over the branch's keys of (scale * q .
//   k) v
//
//   q [T, Hq, Dk], compressed entries, K and V of the selected and the window branch -> o
//   [T, Hq, Dv], idx [T, Hkv, n], lse and o_branch if wanted
//
// Grid: x = T * kv_heads * kCluster. A cluster of kCluster CTAs takes one token and KV head.
//
// CTA: kWarps consumer warps share the compressed keys, the window and the selected blocks. Each
// has its own producer warp, which looks up and copies its keys and keeps its pipeline filled from
// one branch to the next (decode/pipelined/pipeline.cuh): copies in flight hide the waits between
// branches. (In an earlier design consumers copied their own keys. They never waited for a key, but
// were bound by instructions.)
//
//   compressed       O, reference and sum, and probabilities pooled per selection block
//                    (decode/compressed_scan.cuh)
//   top-n            once all warps have finished the compressed keys, each warp computes the
//                    importance of a piece of the selection blocks and goes on with the window;
//                    warp 0 of each CTA, which has no window, searches them
//                    (decode/pipelined/weights.cuh)
//   window-selected  the last blocks of the window are always selected. If the two branches share K
//                    and V, these blocks are read once, after the rest of the window, and O
//                    continues into the selected branch
//   reduce           O of all warps and branches, gates, outputs (decode/pipelined/reduce.cuh). The
//                    producers add up the compressed and window branches while the last selected
//                    blocks are in flight; all warps add up the selected branch
//
// Bound by memory: 2 (Dk + Dv) bytes per key.
//
// Config: those of decode/pipelined/pipeline.cuh, decode/pipelined/weights.cuh and
// decode/pipelined/reduce.cuh, kWindow (w), kWindowSelectedBlocks (selection blocks that are read
// once for window and selected branch), kMostBlocks (most selection blocks of a CTA), kKvHeads,
// kThreads, kMinBlocks, kSharedBytes.
#pragma once
#include "core/barrier.cuh"
#include "core/cluster.cuh"
#include "core/launch.cuh"
#include "core/wgmma.cuh"
#include "data/cache_rows.cuh"
#include "decode/cluster/ranges.cuh"
#include "decode/compressed_scan.cuh"
#include "decode/pipelined/branches.cuh"
#include "decode/pipelined/shared.cuh"
#include "decode/work.cuh"
#include "params/kv_cache.h"

// The rounds of a consumer warp: its compressed keys; the window until all warps have finished
// those; the rest of the window; the window-selected blocks; the other selected blocks.
enum { kScan, kUntilScanned, kRestOfWindow, kWindowSelected, kChosen, kRounds };

// Per thread; the launch gives each thread 128. (NVRTC 13.0, D 128: consumers need 190.)
constexpr int kProducerRegisters = 64, kConsumerRegisters = 192;
static_assert(Config::kThreads == 64 * Config::kWarps && Config::kWarps % 4 == 0,
              "producers and consumers are whole warpgroups, equally many");
static_assert(Config::kWindowSelectedBlocks == 0 ||
                  (Config::kWindowSelectedBlocks == Config::kSelectLocal && Config::kRing == 0 &&
                   Config::kWindowSelectedBlocks * Config::kSelectBlock <= Config::kWindow),
              "window-selected blocks are always selected and lie in the window");

// ---- start

// Prefetches the block table to L2: its address does not depend on the sequence's length.
template <class C> NSAI_DEVICE void prefetch_list(const NsaiDecode &p, int s, int rank) {
  constexpr int kLineInts = 32; // ints in 128 bytes
  if constexpr (C::kPageSize > 0) {
    if (!p.batch.page_starts) {
      const int width = ceil_div(p.batch.max_kv_len, C::kPageSize);
      const int *list = p.batch.pages + s * p.batch.page_list_stride;
// Not unrolled: code that runs once is bound by instruction fetch.
#pragma unroll 1
      for (int i = (rank * C::kThreads + (int)threadIdx.x) * kLineInts; i < width;
           i += C::kCluster * C::kThreads * kLineInts)
        prefetch_line(list + i);
    }
  }
}

// Initialises the barriers. One thread. No one waits on the barriers of a search that is skipped,
// although their messages never come.
template <class C> NSAI_DEVICE void init_barriers(SharedStorage &shared, int rank) {
  const u32 address = shared_address(shared.barriers);
  for (int i = 0; i < kBarriers; ++i)
    barrier_init(address + 8 * i, i == kAdded || i == kList ? 32
                                  : i <= kAttended          ? 32 * C::kWarps
                                                            : 1);
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
NSAI_DEVICE PipelinedSteps<C> find_steps(const NsaiDecode &p, const SharedStorage &shared,
                                         const PipelinedWorkItem &at,
                                         const ClusterBlockRange &block_range) {
  constexpr int kGranuleSteps = Decode<C>::kSplitGranularity / kStepKeys;
  const bool windows = C::kWindow > 0 && p.branches >> kWindow & 1;
  const int slot = at.rank + C::kCluster * at.warp;
  const int first = max(at.seen - C::kWindow, 0);
  const int window_selected_first = max(at.candidates - at.window_selected, 0) * C::kSelectBlock;
  const int window_selected = at.window_selected ? at.seen - window_selected_first : 0;
  const PipelinedWindow<C> window(windows ? at.seen - first - window_selected : 0, window_selected,
                                  slot, at.scans);
  const int scanned = (block_range.end - block_range.begin) * kGranuleSteps;
  return PipelinedSteps<C>{ p,
                            at.group,
                            find_rows<C::kPageSize>(p.batch, at.token.s, 0),
                            C::kRing > 0 ? find_rows<0>(p.batch, at.token.s, 0).row : 0,
                            block_range.begin * kGranuleSteps,
                            scanned,
                            visible_entries<C>(at.token.position),
                            window,
                            first,
                            window_selected_first,
                            PipelinedChosen<C>(slot),
                            shared.list,
                            scanned + window.count + window.window_selected_count };
}

template <class C>
NSAI_DEVICE PipelinedScanKeys<C> find_scan_keys(SharedStorage &shared, const PipelinedWorkItem &at,
                                                const ClusterBlockRange &block_range, int visible,
                                                float *pooled) {
  PipelinedScanKeys<C> keys = {};
  keys.ends[0] = keys.ends[1] = visible;
  keys.pools = at.searches;
  keys.begin_pool(&shared.exchange_buffer[at.warp].pool[0][0],
                  find_run_pooled<C>(pooled, block_range));
  if (PipelinedScanKeys<C>::kHalves && at.lane >= 16)
    keys.gPooled += kStepKeys / PipelinedScanKeys<C>::kRatio * kPoolRows;
  return keys;
}

// ---- end

// Combines branch `b` of output vector i over the CTAs of the cluster. Returns false if another CTA
// owns the vector; its sum was sent there.
template <class C>
NSAI_DEVICE bool exchange(SharedStorage &shared, const PipelinedWorkItem &at, int sum, int b, int i,
                          PipelinedSum &x) {
  if constexpr (C::kCluster > 1) {
    const u32 barrier = shared_address(&shared.barriers[sum]);
    if (i / OutputVectors::kSlice != at.rank) {
      send_sum<C>(shared.received, barrier, at.rank, i, b, x);
      return false;
    }
    cluster_receive(barrier, 0);
    add_received<C>(shared.received, i, b, x);
  }
  return true;
}

// The sum of the compressed and the window branch, by the producer warps after their last copy. It
// replaces O of the compressed branch.
template <class C>
NSAI_DEVICE void reduce_branches(const NsaiDecode &p, SharedStorage &shared,
                                 const PipelinedWorkItem &at) {
  barrier_wait(shared_address(&shared.barriers[kAttended]), 0);
#pragma unroll 1
  for (int i = threadIdx.x - 32 * C::kWarps; i < OutputVectors::kVectors; i += 32 * C::kWarps) {
    const int vector = OutputVectors::rotated(i, at.rank);
    const int row = vector / OutputVectors::kRowVectors,
              column = vector % OutputVectors::kRowVectors * 4;
    float4 *sum =
        (float4 *)(&shared.exchange_buffer[0].o[0][0] + row * OutputVectors::kPitch + column);
    PipelinedSum scanned = { make_float2(kNoReference, 0.0f), make_float4(0, 0, 0, 0) };
    if (at.scans) scanned = PipelinedSum{ shared.scan_stats[at.rank][row], *sum };
    PipelinedSum attended = add_warps<C>(&shared.exchange_buffer[0].o[0][0], kExchangeFloats,
                                         shared.stats[kWindow], at.has_window(0) ? 0 : 1, vector);
    const bool own = exchange<C>(shared, at, kSlices, kCompressed, vector, scanned);
    if (!(exchange<C>(shared, at, kSlices, kWindow, vector, attended) && own)) continue;
    float4 x = make_float4(0, 0, 0, 0);
    x = store_branch<C>(p, at.row, at.group, vector, kCompressed, scanned, shared.gates, x);
    *sum = store_branch<C>(p, at.row, at.group, vector, kWindow, attended, shared.gates, x);
  }
}

// Adds O of the selected blocks and stores the outputs.
template <class C>
NSAI_DEVICE void reduce_selected(const NsaiDecode &p, SharedStorage &shared,
                                 const PipelinedWorkItem &at) {
  __syncthreads(); // O of all warps is written
#pragma unroll 1   // code that runs once is bound by instruction fetch
  for (int i = threadIdx.x; i < OutputVectors::kVectors; i += C::kThreads) {
    const int vector = OutputVectors::rotated(i, at.rank);
    PipelinedSum x = add_warps<C>((const float *)shared.kv_stages, kStagesFloats,
                                  shared.stats[kSelected], 0, vector);
    if (!exchange<C>(shared, at, kLastSlices, kSelected, vector, x)) continue;
    const int row = vector / OutputVectors::kRowVectors,
              column = vector % OutputVectors::kRowVectors * 4;
    const float4 sum = *(const float4 *)(&shared.exchange_buffer[0].o[0][0] +
                                         row * OutputVectors::kPitch + column);
    store_four<C>(find_row(p.out[0].o, OutputRow{ at.row, at.group * C::kGroup + row, true }) +
                      column,
                  store_branch<C>(p, at.row, at.group, vector, kSelected, x, shared.gates, sum));
  }
}

// ---- producer and consumer

// Producer: copies the keys of all steps into the pipeline.
template <class C>
NSAI_DEVICE void produce(const NsaiDecode &p, SharedStorage &shared, const PipelinedWorkItem &at,
                         PipelinedSteps<C> &steps, const PipelinedRow &ahead) {
  fill_stages<C>(steps, ahead,
                 PipelinedStages<C>(shared.kv_stages[at.warp], shared.stage_barriers[at.warp]),
                 at.lane, [&](PipelinedSteps<C> &all) {
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
  reduce_branches<C>(p, shared, at);
}

// The segment of round kChosen.
template <class C>
NSAI_DEVICE PipelinedSegment find_chosen_segment(const SharedStorage &shared,
                                                 const PipelinedWorkItem &at) {
  const PipelinedSegment &window = shared.segments[at.warp][kWindowSegment],
                         &window_selected = shared.segments[at.warp][kWindowSelectedSegment];
  const int windows = ceil_div(window.keys, kStepKeys) + ceil_div(window_selected.keys, kStepKeys);
  const PipelinedChosen<C> chosen =
      find_chosen<C>(shared.list, at, recomputed(windows)); // recomputed() avoids uniform registers
  const int end = window_selected.end + chosen.count;
  return PipelinedSegment{ end, chosen.keys,
                           PipelinedMask{ end - 1, chosen.step(chosen.count - 1) } };
}

// Consumer: round kScan where the other rounds multiply codes. `row`: of Q.
template <class C>
NSAI_DEVICE void scan_entries(const NsaiDecode &p, SharedStorage &shared,
                              const PipelinedWorkItem &at, const QueryRows<C> &row,
                              const PipelinedStages<C> &pipeline, PipelinedScanKeys<C> &keys,
                              int &done, float (&o)[Tiles::kO][4], SoftmaxRows &rows) {
  const PipelinedSegment segment = shared.segments[at.warp][kScanSegment];
  Queries<Tiles> queries; // [16, Dk]
  load_register_queries<C>(queries, row, 0, at.lane);
  keys.ends[0] = keys.ends[1] = segment.keys;
  run_steps<C, Tiles>(segment.mask, keys, pipeline, done, segment.end, 0, queries, o, rows,
                      stage_scale_log2<C>(p, kCompressed, at.group), at.lane);
  leave_branch<C, Tiles>(p, shared, at, kCompressed, o, rows, keys);
  barrier_arrive(shared_address(&shared.barriers[kScanned]));
  if constexpr (C::kCluster > 1) cluster_wait(); // all CTAs have started
}

// Consumer: O and statistics of every branch, and the list.
template <class C>
NSAI_DEVICE void consume(const NsaiDecode &p, SharedStorage &shared, const PipelinedWorkItem &at,
                         const ClusterBlockRange &block_range, const PipelinedSteps<C> &steps) {
  using R = PipelinedRawTiles<C>;
  constexpr bool kApart = kRawCodesAlone<C>; // the compressed branch takes Q in another order
  const u32 barriers = shared_address(shared.barriers);
  PipelinedSegment *segments = shared.segments[at.warp];
  if (at.lane == 0) {
    segments[kScanSegment] = steps.segment(steps.scanned, steps.visible);
    segments[kWindowSegment] = steps.segment(steps.window_end(), steps.window.keys);
    segments[kWindowSelectedSegment] =
        steps.segment(steps.window_selected_end(), steps.window.window_selected);
  }
  __syncwarp(); // the segments are written
  const u32 gate = load_gate_of<C>(p, at.row, at.group);
  const QueryRows<C> row = { p.q, at.row, 1, at.group };
  Queries<R> queries; // [16, Dk]
  if constexpr (!kApart) load_register_queries<C>(queries, row, 0, at.lane);
  keep_gate(shared.gates, gate);
  float *kept = &shared.pooled[0][0];
  PipelinedScanKeys<C> keys = find_scan_keys<C>(shared, at, block_range, steps.visible,
                                                find_pooled<C>(p, kept, at.work_item, block_range));
  const PipelinedStages<C> pipeline(shared.kv_stages[at.warp], shared.stage_barriers[at.warp]);
  float o[Tiles::kO][4] = {}; // [16, Dv]
  SoftmaxRows rows;
  int done = 0; // steps
  if constexpr (kApart) {
    scan_entries<C>(p, shared, at, row, pipeline, keys, done, o, rows);
    load_register_queries<C>(queries, row, 0, at.lane);
  }
#pragma unroll 1
  for (int round = kApart ? kUntilScanned : kScan; round < kRounds; ++round) {
    if (round == kUntilScanned && !at.scans) continue;
    PipelinedSegment segment = segments[round == kScan           ? kScanSegment
                                        : round <= kRestOfWindow ? kWindowSegment
                                                                 : kWindowSelectedSegment];
    if (round == kChosen && at.selects) {
      barrier_wait(barriers + 8 * kList, 0);
      if (p.branches >> kSelected & 1) segment = find_chosen_segment<C>(shared, at);
    }
    keys.ends[0] = keys.ends[1] = segment.keys;
    const int before = done;
    const int b = round == kScan ? kCompressed : round <= kRestOfWindow ? kWindow : kSelected;
    run_steps<C, R>(segment.mask, keys, pipeline, done, segment.end,
                    round == kUntilScanned ? barriers + 8 * kScanned : 0, queries, o, rows,
                    queries.scaled(stage_scale_log2<C>(p, b, at.group)), at.lane);
    if (round == kUntilScanned) {
      barrier_wait(barriers + 8 * kScanned, 0);
      const ClusterBlockRange again =
          find_block_range<C>(find_cluster_runs<C>(recomputed(segments[kScanSegment].keys)),
                              at.rank, at.warp);
      if constexpr ((kFreeBlocks<C>) > 0)
        if (at.searches)
          weigh_blocks<C>(shared, at, again, find_pooled<C>(p, kept, at.work_item, again));
      if constexpr (C::kSelectCount > 0)
        if (at.selects && at.warp == 0) find_list<C>(p, shared, at, again);
      continue;
    }
    if (round == kRestOfWindow && at.scans) barrier_wait(barriers + 8 * kAdded, 0);
    if (round == kWindowSelected) {
      if (done > before) add_to_window<C, R>(p, shared, at, o, rows);
      barrier_arrive(barriers + 8 * kAttended);
      continue;
    }
    leave_branch<C, R>(p, shared, at,
                       round == kScan           ? kCompressed
                       : round == kRestOfWindow ? kWindow
                                                : kSelected,
                       o, rows, keys);
    if (round != kScan) continue;
    barrier_arrive(barriers + 8 * kScanned);
    if constexpr (C::kCluster > 1) cluster_wait(); // all CTAs have started
  }
}

template <class C> NSAI_DEVICE void decode(const NsaiDecode &p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  SharedStorage &shared = *(SharedStorage *)shared_bytes;

  // ---- coordinates
  const int warp = warp_uniform(threadIdx.x / 32);
  PipelinedWorkItem at;
  at.lane = threadIdx.x % 32, at.warp = warp % C::kWarps, at.rank = cluster_rank();
  at.work_item = blockIdx.x / C::kCluster, at.row = at.work_item / C::kKvHeads,
  at.group = at.work_item % C::kKvHeads;
  if (threadIdx.x == 0) init_barriers<C>(shared, at.rank);
  if (warp < C::kWarps && at.lane < PipelinedStages<C>::kBarriers)
    barrier_init(shared_address(&shared.stage_barriers[warp][at.lane]), 32);
  barrier_init_fence();
  begin_kernel();
  const int s = find_cached_sequence(p.batch, at.row);
  at.token = find_token(load_cached_sequence(p.batch, s), at.row, s);
  prefetch_list<C>(p, s, at.rank);
  if (!at.token.present) return; // uniform over the cluster
  // ---- which keys belong to this CTA and warp
  at.scans = p.branches >> kCompressed & 1 || p.idx;
  at.seen = at.token.position + 1; // 0 for a padded row
  at.candidates = candidate_count<C>(at.token.position);
  at.selects = C::kSelectCount > 0 && p.idx;
  constexpr int kWindowChosen = 1 << kSelected | 1 << kWindow;
  at.window_selected =
      at.selects && (p.branches & kWindowChosen) == kWindowChosen ? C::kWindowSelectedBlocks : 0;
  at.searches = at.selects && needs_search<C>(at.candidates);
  const ClusterRuns runs =
      find_cluster_runs<C>(at.scans ? visible_entries<C>(at.token.position) : 0);
  const ClusterBlockRange block_range = find_block_range<C>(runs, at.rank, at.warp);
  PipelinedSteps<C> steps = find_steps<C>(p, shared, at, block_range);
  const PipelinedRow ahead = warp >= C::kWarps ? steps.row(0, at.lane) : PipelinedRow{ 0, 0 };
  __syncthreads();                                 // barriers are initialised
  if constexpr (C::kCluster > 1) cluster_arrive(); // this CTA has started

  // ---- producers and consumers
  if (warp >= C::kWarps) {
    registers_drop<kProducerRegisters>();
    produce<C>(p, shared, at, steps, ahead);
  } else {
    registers_raise<kConsumerRegisters>();
    consume<C>(p, shared, at, block_range, steps);
  }
  reduce_selected<C>(p, shared, at);
}

extern "C" __global__ void __cluster_dims__(Config::kCluster, 1, 1)
    __launch_bounds__(Config::kThreads, Config::kMinBlocks) decode_pipelined(
        const __grid_constant__ ParamsOf<Config::kRawCodes, NsaiDecode, NsaiCodedDecode>::Type p) {
  decode<Config>((const NsaiDecode &)p);
}
