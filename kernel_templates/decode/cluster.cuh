// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_cluster: a decode step in one launch, for few tokens (sm_90 and later). A cluster of
// kCluster CTAs per token and KV head does the work of decode_split_kv_compressed,
// decode_split_kv_select, decode_split_kv_attend and decode_split_kv_combine:
//
//   compressed  each CTA takes a range of the compressed keys, each warp a run of it: O, reference
//               and sum, and probabilities pooled per selection block (decode/cluster/pool.cuh)
//   lse         each CTA sends its references and sums to all CTAs
//   top-n       each CTA sends the importance of its own selection blocks to all CTAs; each CTA
//               then finds the n_free best (decode/cluster/topn.cuh)
//   raw keys    the window, during the search, and then the selected blocks
//               (decode/cluster/keys.cuh)
//   reduce      each CTA sends slices of every branch's O to their owners, which apply the gates
//               and store the outputs (decode/cluster/reduce.cuh)
//
//   q [T, Hq, Dk], compressed entries, K and V of the selected and the window branch -> o
//   [T, Hq, Dv], idx [T, Hkv, n], lse and o_branch if wanted
//
// Grid: x = T * kCluster, y = kv_heads.
//
// CTA: kWarps consumer warps attend to the keys of all three branches in steps
// (decode/cluster/consumer.cuh) and wait for nothing but keys. The producer warps copy the keys
// (decode/cluster/producer.cuh), search, and exchange statistics and weights with other CTAs.
//
// Synchronisation: one barrier of the whole cluster, so that all CTAs have started before anything
// is sent. After that each kind of message (statistics, candidates, slices) has its own buffer and
// mbarrier at the receiver, and no CTA receives anything after its last wait, so that it may exit.
//
// Bound by the chain of waits (length and block table, keys, two exchanges, selected blocks, one
// exchange) and by instructions: every warp executes most of them once, and they depend on each
// other.
//
// Config: those of decode/mainloop.cuh, decode/work.cuh, decode/cluster/schedule.cuh,
// decode/cluster/ranges.cuh and decode/cluster/reduce.cuh; kMostBlocks (most selection blocks of a
// CTA), kMinBlocks, kSharedBytes.
#pragma once
#include "core/barrier.cuh"
#include "core/cluster.cuh"
#include "core/launch.cuh"
#include "core/topn.cuh"
#include "data/cache_rows.cuh"
#include "decode/cluster/consumer.cuh"
#include "decode/cluster/keys.cuh"
#include "decode/cluster/pool.cuh"
#include "decode/cluster/producer.cuh"
#include "decode/cluster/ranges.cuh"
#include "decode/cluster/reduce.cuh"
#include "decode/cluster/schedule.cuh"
#include "decode/cluster/topn.cuh"
#include "decode/mainloop.cuh"
#include "decode/work.cuh"
#include "params/kv_cache.h"

static_assert(Config::kCluster % 2 == 0, "find_lse() splits the CTAs between two halves of a warp");
static_assert(Config::kScanRows == 16 && Config::kGroupPadded <= 16,
              "a token's heads are one m16 tile");

using Stream = ClusterStream<Config>;
static_assert(!Stream::kQShared, "Q must fit into registers");

// Barriers. Fed by other CTAs: statistics of each branch; candidates; slices of the early branches,
// which need no search; slices of the late branch. Fed by this CTA: sums of each branch; pooled
// values; the list; weights of early and of late slices; the pipeline's stages.
enum {
  kStats,
  kCandidates = kStats + NSAI_BRANCH_COUNT,
  kEarlySlices,
  kSlices,
  kSummed,
  kPooled = kSummed + NSAI_BRANCH_COUNT,
  kListed,
  kWeighed,
  kStageBarriers = kWeighed + 2,
  kBarriers = kStageBarriers + StageBarriers<Config>::kCount
};
template <class C> constexpr NSAI_DEVICE int arrivals(int i) {
  return i < kSummed          ? 1
         : i < kListed        ? kConsumerThreads<C>
         : i < kStageBarriers ? kProducerThreads<C>
                              : StageBarriers<C>::arrivals(i - kStageBarriers);
}
constexpr int kLate = 1 << kSelected, kEarly = 7 & ~kLate; // branches

struct SharedStorage {
  unsigned char stages[Config::kStages][Config::kWarps][Stream::kStageBytes];
  unsigned char q[Stream::Q::kBytes];
  ExchangeBuffer<Config> exchange_buffer;
  KvTensors<Config> sides;
  Reduction<Config>::Received received;
  __align__(16) Slice<Config>::Weights weights;
  __align__(16) float pool[Config::kWarps][16][kPoolPitch];
  Search<Config> search;
  u64 barriers[kBarriers];
  int pages[Config::kListPages];
};
static_assert(sizeof(SharedStorage) == Config::kSharedBytes,
              "the host computes another size of shared memory");

// ---- queries, barriers

// Copies Q [16, Dk] of the token to shared memory, by the warps that read it. Padding heads are
// zero.
template <class C> NSAI_DEVICE void copy_queries(u32 sQ, const QueryRows<C> &rows) {
  using Q = typename Stream::Q;
#pragma unroll 1
  for (int i = threadIdx.x; i < 16 * Q::kChunks; i += kConsumerThreads<C>)
    copy_query<C, Q>(sQ, rows, i);
  copy_async_commit();
}
NSAI_DEVICE void read_queries(Queries<Stream> &queries, u32 sQ, int lane) {
  const u32 address = sQ + Stream::Q::offset(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < Stream::kSteps; ++k)
    ldmatrix_x4(queries.fragment[k], Stream::Q::along(address, 2 * k));
}

// Initialises the barriers. The first lane of each producer warp takes part, with addresses that
// are compile-time offsets, before any global memory read, because the fence would wait for it.
template <class C> NSAI_DEVICE void init_barriers(SharedStorage &shared) {
#pragma unroll
  for (int producer_warp = 0; producer_warp < kProducerWarps<C>; ++producer_warp) {
    if (threadIdx.x != kConsumerThreads<C> + 32 * producer_warp) continue;
#pragma unroll
    for (int i = producer_warp; i < kBarriers; i += kProducerWarps<C>)
      barrier_init(shared_address(&shared.barriers[i]), arrivals<C>(i));
    barrier_init_fence();
  }
}
template <class C>
NSAI_DEVICE void expect_all(SharedStorage &shared, int branches, bool searches, int sent,
                            int rank) {
  const u32 stats = C::kCluster * 16 * sizeof(float2),
            carry_bytes = searches && rank ? 16 * sizeof(float) : 0;
  const u32 candidates = C::kCluster * sent * sizeof(u64);
  const u32 address = shared_address(shared.barriers);
#pragma unroll
  for (int b = 0; b < NSAI_BRANCH_COUNT; ++b)
    barrier_arrive_expecting(address + 8 * (kStats + b),
                             stats + (b == kCompressed ? carry_bytes : 0));
  barrier_arrive_expecting(address + 8 * kCandidates, candidates);
  barrier_arrive_expecting(address + 8 * kEarlySlices,
                           __popc(branches & kEarly) * slice_bytes<C>(rank));
  barrier_arrive_expecting(address + 8 * kSlices, __popc(branches & kLate) * slice_bytes<C>(rank));
}

// What a warp knows before the warps of its CTA divide the work. All but block_range is the same for
// all of them.
template <class C> struct CtaWork {
  const NsaiDecode &p;
  SharedStorage &shared;
  u32 barriers, stages;                 // shared-memory addresses
  int row, group, rank;                 // of the token, the KV head and the CTA
  int position, candidates;             // of the token; its candidate blocks
  bool scans, windows, selects;         // whether the CTA reads keys of each branch
  bool searches;                        // whether the token's list depends on importance
  const ClusterBlockRange &block_range; // of this warp
  float *pooled;                        // values of the CTA's selection blocks
};

// ---- producer warps

// Copies keys, searches, copies the selected blocks, exchanges statistics, and computes the weights
// of the slices.
template <class C>
NSAI_DEVICE void produce(const CtaWork<C> &cta, StepSchedule<C> &schedule,
                         const ScheduledRows<C> &rows, int lane, int warp) {
  const NsaiDecode &p = cta.p;
  SharedStorage &shared = cta.shared;
  const u32 barriers = cta.barriers;
  const int rank = cta.rank, row = cta.row, group = cta.group, candidates = cta.candidates;
  const bool scans = cta.scans, windows = cta.windows, selects = cta.selects,
             searches = cta.searches;
  const ClusterBlockRange &block_range = cta.block_range;
  const StageBarriers<C> stage_barriers = { barriers + 8 * kStageBarriers };
  const u32 stages = cta.stages;
  const int thread = threadIdx.x - kConsumerThreads<C>, producer_warp = warp - C::kWarps;
  SliceRow<C> slice_rows[Slice<C>::kBranchRowRounds];
  int copied = 0;
  // Recompute thread-derived values at their use instead of before the first copies: it shortens
  // the start-up.
  auto searchers = [&] { return ProducerThreads<C>{ recomputed(thread) }; };
  auto send_branch_stats = [&](int b) {
    send_stats<C>(shared.received, barriers + 8 * (kStats + b), b, rank, shared.exchange_buffer,
                  searchers().thread, barriers + 8 * (kSummed + b));
  };
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    // The search waits for the scan, so it may start while the window's last steps are not yet
    // copied.
    const int end =
        round || !searches ? schedule.all : min(schedule.all, schedule.scanned + C::kStages - 1);
#pragma unroll 1
    for (; copied < end; ++copied)
      copy_cta_step<C>(schedule, rows, stage_barriers, copied, stages, producer_warp, lane);
    if (round) break;
#pragma unroll
    for (int r = 0; r < Slice<C>::kBranchRowRounds; ++r)
      slice_rows[r] = find_slice_row<C>(p, searchers().thread, r, row, group, rank);
    const CtaBlocks<C> cta_blocks = find_cta_blocks<C>(block_range, candidates, rank);
    if (thread == 0) expect_all<C>(shared, p.branches, searches, cta_blocks.sent, rank);
    const KeySender<C> sender(searchers(), barriers + 8 * kCandidates);
    if (searches && cta_blocks.few()) {
      if (C::kCluster * cta_blocks.sent <= thread && thread < Search<C>::kAtOnce)
        shared.search.keys[thread] = 0;
      sync_producers<C>(); // the zeros are written
    }
    if (scans) send_branch_stats(kCompressed);
    if (C::kSelectCount == 0 || !p.idx) break;
    if constexpr (C::kSelectCount > 0) {
      if constexpr ((kFreeBlocks<C>) > 0)
        if (searches) {
          barrier_wait(barriers + 8 * kPooled, 0);
          cluster_receive(barriers + 8 * kStats, 0);
          send_keys<C>(sender, shared.search, shared.received.stats[kCompressed], block_range,
                       cta_blocks, cta.pooled, rank);
          list_best<C>(searchers(), shared.search, barriers + 8 * kCandidates, cta_blocks, rank);
        }
      if (producer_warp == 0) write_forced<C>(shared.search.list, candidates, lane);
      sync_producers<C>(); // the list is written
      barrier_arrive(barriers + 8 * kListed);
      schedule.chosen = chosen_keys<C>(shared_address(shared.search.list), cta.position);
      if (selects) schedule.all += max(schedule.cta_steps(schedule.chosen.limit), 1);
    }
  }
  if constexpr (C::kSelectCount > 0)
    if (p.idx && rank == 0 && producer_warp == 0)
      store_list<C>(p, shared.search.list, row, group, lane);
#pragma unroll
  for (int r = 0; r < Slice<C>::kBranchRowRounds; ++r) slice_rows[r].open();
  if (windows) send_branch_stats(kWindow);
#pragma unroll 1
  for (int late = 0; late < 2; ++late) {
    if (late && selects) send_branch_stats(kSelected);
    const int branches = p.branches & (late ? kLate : kEarly);
    const int sent = branches | (scans && !late ? 1 << kCompressed : 0);
#pragma unroll 1
    for (int b = 0; b < NSAI_BRANCH_COUNT; ++b)
      if (sent >> b & 1) cluster_receive(barriers + 8 * (kStats + b), 0);
    weigh_slices<C>(shared.received, shared.weights, slice_rows, branches, searchers().thread);
    barrier_arrive(barriers + 8 * (kWeighed + late));
  }
  copy_async_commit();
  copy_async_wait<0>();
}

// ---- consumer warps

// Adds up the slices that this CTA received, and stores its slice of the outputs. The early
// branches are added while others may still attend to the selected blocks.
template <class C>
NSAI_DEVICE void reduce_slices(const CtaWork<C> &cta, const SliceOutput &output) {
  const NsaiDecode &p = cta.p;
  SharedStorage &shared = cta.shared;
  float4 partial[Slice<C>::kRounds];
#pragma unroll
  for (int late = 0; late < 2; ++late) {
    barrier_wait(cta.barriers + 8 * (kWeighed + late), 0);
    cluster_receive(cta.barriers + 8 * (late ? kSlices : kEarlySlices), 0);
#pragma unroll
    for (int i = 0; i < Slice<C>::kRounds; ++i) {
      const SliceVector<C> vector(cta.rank, i);
      partial[i] = add_branches<C>(late ? partial[i] : make_float4(0, 0, 0, 0), shared.received,
                                   shared.weights, vector, p.branches & (late ? kLate : kEarly));
      if (late)
        store_vectors<C>(p, shared.received, shared.weights, output, vector, partial[i], cta.row,
                         cta.group);
    }
  }
}

// ---- the kernel body

template <class C> NSAI_DEVICE void decode(const NsaiDecode &p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  SharedStorage &shared = *(SharedStorage *)shared_bytes;
  using D = Decode<C>;

  // ---- coordinates
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = cluster_rank();
  const int row = blockIdx.x / C::kCluster, group = blockIdx.y,
            work_item = row * p.kv_heads + group;
  const u32 barriers = shared_address(shared.barriers);
  init_barriers<C>(shared);
  const int s = find_cached_sequence(p.batch, row);
  const int kv_len = p.batch.kv_len[s];
  const PageList<C> pages = load_pages<C>(p.batch, s);
  if (warp == C::kWarps + 1) { // while these loads are in flight
    if (lane < 2 * NSAI_BRANCH_COUNT) shared.sides.fill(p, group, lane);
    clear_best(shared.search.best, lane);
  }
  cluster_arrive(); // this CTA has started
  if (!Stream::kCoded && warp < C::kWarps)
    copy_queries<C>(shared_address(shared.q), QueryRows<C>{ p.q, row, 1, group });
  const DecodeToken token =
      find_token(load_cached_sequence(p.batch, s, recomputed(kv_len)), row, s);
  if (!token.present) { // uniform over the cluster
    cluster_wait();
    return;
  }
  store_pages<C>(shared.pages, pages);

  // ---- which keys belong to this CTA
  const bool scans = p.branches >> kCompressed & 1 || p.idx;
  const bool windows = C::kWindow > 0 && p.branches >> kWindow & 1;
  const bool selects = C::kSelectCount > 0 && p.branches >> kSelected & 1;
  const int visible = scans ? visible_entries<C>(token.position) : 0;
  const ClusterRuns runs = find_cluster_runs<C>(visible);
  StepSchedule<C> schedule = find_schedule<C>(runs, visible, token.position, rank, scans, windows);
  const ScheduledRows<C> rows =
      find_scheduled_rows<C>(shared.sides, p.batch, s, pages, shared.pages);
  __syncthreads(); // the page list is stored
  // All CTAs have started long ago. All warps wait at the same point, because racecheck assumes
  // that they wait for each other here; and not earlier, where they would wait for the length.
  cluster_wait();

  const int candidates = candidate_count<C>(token.position);
  const bool searches = p.idx && needs_search<C>(candidates);
  const ClusterBlockRange block_range = find_block_range<C>(runs, rank, warp);
  float *pooled = find_pooled<C>(p, &shared.search.pooled[0][0], work_item, block_range);
  const u32 stages = shared_address(shared.stages);
  const CtaWork<C> cta = { p,       shared,  barriers,       stages,      row,
                           group,   rank,    token.position, candidates,  scans,
                           windows, selects, searches,       block_range, pooled };
  if (warp >= C::kWarps) {
    produce<C>(cta, schedule, rows, lane, warp);
    return;
  }

  // ---- consumer warps: compressed keys; window; selected blocks
  const StageBarriers<C> stage_barriers = { barriers + 8 * kStageBarriers };
  const int pooled_steps =
      searches ? (block_range.end - block_range.begin) * (D::kSplitGranularity / kStepKeys) : 0;
  Queries<Stream> queries; // [16, Dk]
  BranchAccumulator<C> sums;
  StepPool<C> pool;
  pool.begin(&shared.pool[warp][0][0], find_run_pooled<C>(pooled, block_range));
  const SliceOutput output = find_output<C>(p, row, group);
  const ColumnTargets<C> targets(shared.received, barriers, rank, warp, lane);
  if constexpr (Stream::kCoded) {
    load_register_queries<C>(queries, QueryRows<C>{ p.q, row, 1, group }, 0, lane);
  } else {
    copy_async_wait<0>();
    sync_consumers<C>(); // Q has arrived
    read_queries(queries, shared_address(shared.q), lane);
  }
  int done = 0; // steps
#pragma unroll 1
  for (int phase = 0; phase < 3; ++phase) {
    const int b = phase == 0 ? kCompressed : phase == 1 ? kWindow : kSelected;
    int end = phase == 0 ? schedule.scanned : schedule.all;
    if constexpr (C::kSelectCount > 0)
      if (phase == 2 && selects) {
        if (!kLastIsChosen<C>) barrier_wait(barriers + 8 * kListed, 0);
        schedule.chosen = chosen_keys<C>(shared_address(shared.search.list), token.position);
        end = schedule.all += max(schedule.cta_steps(schedule.chosen.limit), 1);
      }
    sums.clear();
    run_cta_steps<C>(schedule, shared.exchange_buffer, stage_barriers, sums, b, done, end, stages,
                     barriers + 8 * (kSummed + b), queries,
                     queries.scaled(stage_scale_log2<C>(p, b, group)), warp, lane,
                     [&](int i, const float(&x)[2][4]) {
                       if (phase != 0 || !searches) return;
                       if (i < pooled_steps) pool.pool(x, sums.rows);
                       if (i + 1 < end) return;
                       if (warp < block_range.runs)
                         share_carry<C>(shared.search, barriers + 8 * kStats, block_range, pool,
                                        rank, warp);
                       barrier_arrive(barriers + 8 * kPooled);
                     });
    done = end;
    if (Stream::kCoded || (kRawCodesAlone<C> && b != kCompressed)) {
      const float scale = p.branches >> b & 1 ? value_scale(p, b, group) : 0.0f;
#pragma unroll
      for (int j = 0; j < BranchAccumulator<C>::kEach; ++j) scale_columns(sums.o[j], scale);
    }
    if (p.branches >> b & 1)
      send_columns<C>(targets, shared.received, barriers, b == kSelected ? kSlices : kEarlySlices,
                      b, rank, sums, warp, lane);
  }
  reduce_slices<C>(cta, output);
}

extern "C" __global__ void __cluster_dims__(Config::kCluster, 1, 1)
    __launch_bounds__(Config::kThreads, Config::kMinBlocks) decode_cluster(
        const __grid_constant__ ParamsOf<Config::kRawCodes, NsaiDecode, NsaiCodedDecode>::Type p) {
  begin_kernel();
  decode<Config>((const NsaiDecode &)p);
}
