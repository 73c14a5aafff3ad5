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
//   late     window and chosen blocks, dealt over the warps of all blocks: common/decode_late.cuh
//   gather   slices of O to their owners; gates, outputs: common/decode_gather.cuh
//
// Grid   x = T * kv_heads * kCluster.
// Waits  for the cluster: all blocks have begun before anything is sent, and have done with the scan's O
//        before slices are, which come to its place. Else for what comes alone: stats, candidates,
//        slices; and nothing comes behind them, so that a block may end.
// Bound  by the chain of waits: length, list of pages, keys, two exchanges, blocks, one exchange.
//
// Config: those of common/key_stream.cuh, common/decode.cuh, decode_late.cuh and decode_gather.cuh;
// kPageSize (P; 0: none), kKeptBlocks (whose pooled values lie in shared memory), kMostBlocks (of a
// thread block), kMinBlocks, kSharedBytes.
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

static_assert((Config::kCluster * Config::kWarps & (Config::kCluster * Config::kWarps - 1)) == 0,
              "steps are dealt over powers of two");
static_assert(Config::kScanRows == 16 && Config::kGroupPadded <= 16, "a token's heads are one m16 tile");

using Stream = KeyStream<Config, 1>;
constexpr int kRingBytes = Config::kStages * Stream::kStageBytes; // of a warp
constexpr int kFreePlaces = kFreeBlocks<Config> > 0 ? kFreeBlocks<Config> : 1;
static_assert(!Stream::kQShared, "Q lies in registers");
static_assert(16 * Gather<Config>::kPitch * 4 <= kRingBytes, "late O takes the ring's place");

struct SharedPlan {
  unsigned char ring[Config::kWarps][kRingBytes]; // at the end the warps' late O
  union {
    float pool[Config::kWarps][16][kPoolPitch];
    float o[Config::kWarps][16][Gather<Config>::kPitch]; // of the scan
    Gather<Config>::Received received;
  };
  union {
    float pooled[Config::kKeptBlocks][16];
    float4 part[Gather<Config>::kPlaces]; // of the scan, all warps
  };
  u64 keys[Config::kMostBlocks]; // importance of the block's own selection blocks
  float2 warp_stats[Config::kWarps * 16];
  float2 scan_stats[Config::kCluster * 16]; // of all blocks
  float2 own_stats[Gather<Config>::kBranches][16]; // of this block
  float factors[Config::kWarps][16];               // of the warps' O in the sums of the block
  float spills[Config::kWarps + 1][16]; // into the block's first run, and behind each
  u64 candidates[Config::kCluster * kFreePlaces];
  u64 queue[32];
  u64 barriers[3]; // of what comes from other blocks: stats, candidates, slices
  int list[Config::kSelectCount + 1];
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

// What can be asked for before the sequence's length is known: its list of pages, and the gates.
template <class C>
NSAI_DEVICE void prefetch(const NsaiDecode &p, const DecodeToken &token, int row, int group, int rank) {
  constexpr int kLineInts = 32; // of 128 bytes
  if constexpr (C::kPageSize > 0) {
    if (!p.batch.page_starts) {
      const long long width =
          min((long long)ceil_div(p.batch.max_kv_len, C::kPageSize), p.batch.page_list_stride);
      const int *list = p.batch.pages + token.s * p.batch.page_list_stride;
      for (long long i = (rank * C::kThreads + (int)threadIdx.x) * kLineInts; i < width;
           i += C::kCluster * C::kThreads * kLineInts)
        prefetch_line(list + i);
    }
  }
  if constexpr (C::kGate > 0) {
    if (threadIdx.x < C::kGroup)
      for (int b = 0; b < Gather<C>::kBranches; ++b) {
        const NsaiView &gate = p.out[b].gate;
        const long long at = row * gate.token_stride +
                             (group * C::kGroup + (int)threadIdx.x) * gate.head_stride + b;
        if (p.branches >> b & 1)
          prefetch_line((const u16 *)gate.data + (p.out[b].gate_float ? 2 * at : at));
      }
  }
}

// What this block waits for; one thread.
enum { kStats, kCandidates, kSlices };
template <class C> NSAI_DEVICE void init_barriers(SharedPlan &shared) {
  for (int i = 0; i < 3; ++i) barrier_init(shared_address(&shared.barriers[i]), 1);
  barrier_init_fence();
}
template <class C>
NSAI_DEVICE void expect_all(SharedPlan &shared, int branches, bool searches, int rank) {
  const u32 stats = C::kCluster * 16 * sizeof(float2) + (rank ? 16 * sizeof(float) : 0);
  const u32 candidates = C::kCluster * kFreePlaces * sizeof(u64);
  const u32 address = shared_address(shared.barriers);
  if (searches) {
    barrier_arrive_expecting(address + 8 * kStats, stats);
    barrier_arrive_expecting(address + 8 * kCandidates, candidates);
  }
  barrier_arrive_expecting(address + 8 * kSlices, __popc(branches & 7) * slice_bytes<C>(rank));
}

// The block's stats, and what its last key weighs in the block behind, to all that need them.
template <class C>
NSAI_DEVICE void send_stats(SharedPlan &shared, const Stretch<C> &stretch, int rank) {
  const u32 barrier = shared_address(&shared.barriers[kStats]);
  for (int i = threadIdx.x; i < 16 * C::kCluster; i += C::kThreads) {
    const int row = i % 16, to = i / 16;
    cluster_send(cluster_address(shared_address(&shared.scan_stats[16 * rank + row]), to),
                 shared.own_stats[0][row], cluster_address(barrier, to));
  }
  if (threadIdx.x < 16 && rank + 1 < C::kCluster)
    cluster_send(cluster_address(shared_address(&shared.spills[0][threadIdx.x]), rank + 1),
                 shared.spills[stretch.runs][threadIdx.x], cluster_address(barrier, rank + 1));
}

// ---- top-n

// Importance of the selection block that is `at` blocks behind the first of this block's, from kHeads heads
// of each lane that shares it; `lse` of these.
template <class C, int kHeads>
NSAI_DEVICE float importance_of(const SharedPlan &shared, const Stretch<C> &stretch,
                                const float *pooled, int at, int lane, const float (&lse)[kHeads]) {
  const int j = stretch.first_block + at, each = stretch.each * Decode<C>::kQuantumBlocks;
  const int run = (at + each - 1) / each; // that ends before it
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

// This block's candidates: those of [begin, end) that are its own.
template <class C> struct OwnBlocks {
  int begin, end;
};
template <class C>
NSAI_DEVICE OwnBlocks<C> own_blocks(const Stretch<C> &stretch, int candidates, int rank) {
  const int behind = rank + 1 == C::kCluster ? candidates : stretch.first_block + stretch.extent;
  const int begin = max(stretch.first_block, C::kSelectInit);
  return OwnBlocks<C>{ begin, max(min(behind, candidates - C::kSelectLocal), begin) };
}

// Their keys, by all threads.
template <class C>
NSAI_DEVICE void weigh_blocks(SharedPlan &shared, const Stretch<C> &stretch, const OwnBlocks<C> &own,
                              const float *pooled) {
  constexpr int kHeads = C::kGroupPadded < 4 ? C::kGroupPadded : 4; // of a lane
  constexpr int kLanes = C::kGroupPadded / kHeads;                  // of a block
  const int lane = threadIdx.x % kLanes, count = own.end - own.begin;
  const float2 all = add_stats<C::kCluster>(shared.scan_stats + threadIdx.x % 16, 16, 0, C::kCluster);
  const float mine = all.x + log2_approx(all.y); // lse of head threadIdx.x % 16
  float lse[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) lse[h] = __shfl_sync(~0u, mine, lane * kHeads + h);
#pragma unroll 1
  for (int i = threadIdx.x / kLanes; i < ceil_div(count, 32) * 32; i += C::kThreads / kLanes) {
    const int at = own.begin - stretch.first_block + i;
    float x = i < count ? importance_of<C>(shared, stretch, pooled, at, lane, lse) : 0.0f;
    x = lanes_sum<kLanes>(x);
    if (lane == 0 && i < count) shared.keys[i] = key_of(order_of(x), own.begin + i);
  }
}

// By one warp: the best of this block's to all blocks (round 0), and of what all sent into the list (1).
template <class C>
NSAI_DEVICE void find_best(SharedPlan &shared, int round, int count, int rank, int lane) {
  constexpr int kFree = kFreeBlocks<C>;
  u64 key;
  if (!round && count <= kFree) // all of them
    key = lane < count ? shared.keys[lane] : 0;
  else
    key = few_best<kFree>(round ? shared.candidates : shared.keys, round ? C::kCluster * kFree : count,
                          shared.queue, lane);
  if (lane >= kFree) return;
  if (round) {
    shared.list[C::kSelectInit + lane] = (int)index_in(key);
  } else {
    const u32 address = shared_address(&shared.candidates[rank * kFree + lane]);
    const u32 barrier = shared_address(&shared.barriers[kCandidates]);
#pragma unroll 4
    for (int to = 0; to < C::kCluster; ++to)
      cluster_send(cluster_address(address, to), key, cluster_address(barrier, to));
  }
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

// Stats of branch `b` over warps [begin, end), and these warps' factors. A thread for each
// warp and row.
template <class C>
NSAI_DEVICE void add_warps(SharedPlan &shared, int b, int begin, int end) {
  const int row = threadIdx.x % 16, warp = threadIdx.x / 16;
  if (warp >= C::kWarps || warp < begin || warp >= end) return;
  const float2 all = add_stats<C::kWarps>(shared.warp_stats + row, 16, begin, end);
  shared.factors[warp][row] = exp2_approx(shared.warp_stats[16 * warp + row].x - all.x);
  if (warp == begin) shared.own_stats[b][row] = all;
}

// Place `i` of the O of warp w of `sO`, which lie `warp_floats` apart.
template <class C> NSAI_DEVICE float4 load_place(const float *sO, int warp_floats, int w, int i) {
  const int row = i / Gather<C>::kRowPlaces, column = i % Gather<C>::kRowPlaces * 4;
  return *(const float4 *)(sO + w * warp_floats + row * Gather<C>::kPitch + column);
}

// The block's part of the compressed branch, by the threads from `first` on.
template <class C> NSAI_DEVICE void add_scan(SharedPlan &shared, int runs, int first) {
  const int thread = (int)threadIdx.x - first;
  if (thread < 0) return;
#pragma unroll 1
  for (int i = thread; i < Gather<C>::kPlaces; i += C::kThreads - first) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w)
      if (w < runs)
        sum = add_scaled(sum, shared.factors[w][i / Gather<C>::kRowPlaces],
                         load_place<C>(&shared.o[0][0][0], 16 * Gather<C>::kPitch, w, i));
    shared.part[i] = sum;
  }
}

// The block's part of all branches to the blocks of the slices.
template <class C>
NSAI_DEVICE void send_slices(SharedPlan &shared, int branches, int window_warps, int rank) {
  const u32 barrier = shared_address(&shared.barriers[kSlices]);
#pragma unroll 1
  for (int i = threadIdx.x; i < Gather<C>::kPlaces; i += C::kThreads) {
    const int head = i / Gather<C>::kRowPlaces;
    float4 x[Gather<C>::kBranches] = { shared.part[i], make_float4(0, 0, 0, 0),
                                       make_float4(0, 0, 0, 0) };
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) {
      const float factor = shared.factors[w][head];
      const float4 o = load_place<C>((const float *)shared.ring, kRingBytes / 4, w, i);
      if (w < window_warps)
        x[2] = add_scaled(x[2], factor, o);
      else
        x[1] = add_scaled(x[1], factor, o);
    }
#pragma unroll
    for (int b = 0; b < Gather<C>::kBranches; ++b)
      if (branches >> b & 1)
        send_place<C>(shared.received, barrier, b, rank, i, x[b], shared.own_stats[b][head]);
  }
}

template <class C> NSAI_DEVICE void decode(const NsaiDecode &p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  SharedPlan &shared = *(SharedPlan *)shared_bytes;
  constexpr int kQuantumSteps = Decode<C>::kQuantum / kStepKeys;

  // ---- coordinates ----
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = cluster_rank();
  const int unit = blockIdx.x / C::kCluster, row = unit / p.kv_heads, group = unit % p.kv_heads;
  const DecodeToken token = find_token(p.batch, row);
  if (!token.present) return; // all blocks of the cluster
  if (threadIdx.x == 0) init_barriers<C>(shared);
  cluster_arrive(); // this block has begun
  prefetch<C>(p, token, row, group, rank);
  Queries<Stream> queries; // [16, Dk]
  load_row_fragments<C>(queries.fragment, QueryRows<C>{ p.q, row, 1, group }, 0, lane);

  // ---- whose keys are whose ----
  const bool scans = p.branches & 1 || p.idx;
  const int candidates = candidate_count<C>(token.position);
  const bool searches = kFreeBlocks<C> > 0 && p.idx && candidates > C::kSelectCount;
  const int visible = scans ? visible_entries<C>(token.position) : 0;
  const Stretch<C> stretch = find_stretch<C>(visible, rank, warp);
  const LateShare share = late_share<C>(p, rank, warp);
  RingSteps<C> steps;
  steps.entries = { ring_side(p.entries, group, lane),
                    find_rows<C::kPageSize / C::kStride>(p.batch, token.s, 0) };
  steps.late_rows = { ring_side(share.window ? p.window : p.selected, group, lane),
                      find_rows<C::kPageSize>(p.batch, token.s, 0),
                      find_rows<0>(p.batch, token.s, C::kRing > 0 ? p.window.ring : 0), share.window };
  steps.visible = visible;
  steps.begin = stretch.begin * kQuantumSteps;
  steps.scanned = (stretch.end - stretch.begin) * kQuantumSteps;
  steps.late = early_keys<C>(share, token.position);
  steps.log2_slots = share.log2_slots;
  const int early_count = ceil_div(steps.late.limit, kStepKeys);
  const LateSteps early = late_steps(share, 0, early_count);
  steps.first = early.first;
  steps.all = steps.scanned + early.count;
  const u32 ring = shared_address(shared.ring[warp]);

  // ---- scan ----
  float o[Stream::kO][4] = {}; // [16, Dv]
  SoftmaxRows rows;
  float *pooled = stretch.extent <= C::kKeptBlocks
                      ? &shared.pooled[0][0]
                      : p.pooled + ((long long)unit * p.pooled_blocks + stretch.first_block) * 16;
  ScanKeys<C> scanned = {};
  scanned.limit = scanned.ends[0] = scanned.ends[1] = visible;
  scanned.pools = searches;
  scanned.sP = &shared.pool[warp][0][0];
  scanned.gPooled =
      pooled + (stretch.begin * Decode<C>::kQuantumBlocks - stretch.first_block) * 16 + lane % 16;
  scanned.reference = kNoReference;
  run_steps<C>(steps, scanned, -C::kStages, steps.scanned, ring, queries, o, rows, p.scale_log2, lane);
  share_stats(&shared.warp_stats[16 * warp], rows, lane);
  if (lane < 16) shared.spills[warp + 1][lane] = scanned.reference + log2_approx(scanned.own);
  if (threadIdx.x == 0) expect_all<C>(shared, p.branches, searches, rank);
  __syncthreads(); // the warps' stats are there, and nobody pools
  add_warps<C>(shared, 0, 0, max(stretch.runs, 1));
  __syncthreads(); // the block's stats are there
  cluster_wait();  // all blocks have begun
  if (searches) send_stats<C>(shared, stretch, rank);
  if (warp < stretch.runs) share_o<C>(&shared.o[warp][0][0], o, lane);

  // ---- importance ----
  const OwnBlocks<C> own = own_blocks<C>(stretch, candidates, rank);
  if (searches) {
    cluster_receive(shared_address(&shared.barriers[kStats]), 0);
    weigh_blocks<C>(shared, stretch, own, pooled);
  }
  __syncthreads(); // the keys and the warps' O are there

  // ---- round 0: this block's best, and early keys; round 1: the list, and its free blocks ----
#pragma unroll
  for (int j = 0; j < Stream::kO; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) o[j][c] = 0.0f;
  rows = SoftmaxRows();
  int begin = steps.scanned;
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    if constexpr (kFreeBlocks<C> > 0)
      if (searches && warp == 0) {
        if (round) cluster_receive(shared_address(&shared.barriers[kCandidates]), 0);
        find_best<C>(shared, round, own.end - own.begin, rank, lane);
      }
    if (round == 0) {
      if (p.branches & 1) add_scan<C>(shared, stretch.runs, searches ? 32 : 0);
      cluster_arrive(); // this block has read what lies in the place of slices
    } else {
      if constexpr (C::kSelectCount > 0)
        if (p.idx && warp == 0) store_list<C>(p, shared, candidates, row, group, rank, lane);
      __syncthreads(); // the list is there, and the block's part of the scan
      begin = steps.all = steps.scanned = 0;
      if constexpr (kFreeBlocks<C> > 0) {
        if (searches && share.selected_warps > 0 && !share.window) {
          steps.late = free_keys<C>(shared.list + C::kSelectInit, token.position);
          const LateSteps late =
              late_steps(share, early_count, ceil_div(steps.late.limit, kStepKeys));
          steps.first = late.first;
          steps.all = late.count;
          begin = -C::kStages;
        }
      }
    }
    LateKeys<C> keys = steps.late;
    run_steps<C>(steps, keys, begin, steps.all, ring, queries, o, rows, p.scale_log2, lane);
  }
  copy_async_wait<0>();
  __syncwarp(); // the ring is read
  share_o<C>((float *)shared.ring[warp], o, lane);
  share_stats(&shared.warp_stats[16 * warp], rows, lane);
  __syncthreads(); // the warps' O are there

  // ---- slices ----
  add_warps<C>(shared, 1, share.window_warps, C::kWarps);
  add_warps<C>(shared, 2, 0, share.window_warps);
  __syncthreads(); // the late factors are there
  cluster_wait();  // there is room for slices in all blocks
  send_slices<C>(shared, p.branches, share.window_warps, rank);
  PlaceGates<C> gates[Slice<C>::kRounds];
  const int place = threadIdx.x / Slice<C>::kLanes;
#pragma unroll
  for (int r = 0; r < Slice<C>::kRounds; ++r)
    gates[r] = load_gates<C>(p, row, group, rank * Gather<C>::kSlice + place + r * Slice<C>::kPass);
  cluster_receive(shared_address(&shared.barriers[kSlices]), 0);
#pragma unroll
  for (int r = 0; r < Slice<C>::kRounds; ++r) {
    const int at = place + r * Slice<C>::kPass;
    finish_place<C>(p, shared.received, row, group, at, rank * Gather<C>::kSlice + at, gates[r]);
  }
}

extern "C" __global__ void __cluster_dims__(Config::kCluster, 1, 1)
    __launch_bounds__(Config::kThreads, Config::kMinBlocks)
        decode_cluster(const __grid_constant__ NsaiDecode p) {
  begin_kernel();
  decode<Config>(p);
}
