// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// select_topn: which n selection blocks a token attends to.
//
//   candidates: j <= t / l'. Forced: j < n_init and the n_local last candidates. The rest by
//   importance descending, equal importance by lower index, until n are taken or no candidate is
//   left. Ascending, then -1.
//
//   importance f32 [tokens of the chunk, Hkv, blocks] (importance) -> idx int32 [T, Hkv, n]
//   (attend_selected)
//
// With n candidates or fewer all are listed and nothing is read. Else the n_free = n - n_init -
// n_local best of the unforced ones are searched in one streaming pass over the row:
//   best   in registers: 32 * kSlots keys in descending order over the lanes,
//          (order of importance, ~index) as u64
//   queue  in shared memory: candidates that beat the n_free-th best, appended by ballot and rank
// Where 32 or more have gathered they are sorted and merged in. So a candidate that cannot win costs a
// load, a comparison and its share of a ballot, and the sorting is paid for 32 at a time, also where
// importance rises along the row.
// Importance is >= 0, so that its bits order as integers. NaN and negative values rank below 0, by
// index among themselves: any input gives n different candidates.
//
// Grid: x = ceil((token_end - token_begin) * kv_heads / (kThreads / 32)), one warp per token and KV
// head. Tokens after the last sequence are skipped; t < 0 gives -1 throughout. Loads are 128 bytes
// a warp, kUnroll in flight. Bound by issue: about 10 instructions per 32 candidates, and 200 *
// kSlots per merge.
//
// Config: kSelectBlock (l'), kSelectCount (n), kSelectInit, kSelectLocal, kThreads, kMinBlocks.
// 1272 bytes of shared memory a warp, static.
#pragma once
#include "common/params.h"
#include "common/sequence.cuh"
#include "common/types.cuh"

static_assert(Config::kSelectInit + Config::kSelectLocal <= Config::kSelectCount,
              "forced blocks count among the n");
static_assert(0 < Config::kSelectCount && Config::kSelectCount <= 256,
              "the best are held in registers, 8 a lane at most");
static_assert(Config::kThreads % 32 == 0, "a warp per token and KV head");

constexpr u32 kAllLanes = 0xffffffffu;
constexpr int kUnroll = 4;           // loads in flight per lane
constexpr int kBatch = 32 * kUnroll; // candidates between two looks at the queue
constexpr int kQueue = 31 + kBatch;  // what is left from before, and a batch

// ---- ordering

// What importance is ordered by: 0 stands for an empty place, 1 for NaN and negatives, then x >= 0
// as its bits.
NSAI_DEVICE u32 order_of(float x) { return x >= 0 ? (__float_as_uint(x) & 0x7fffffffu) + 2 : 1; }

// Greater means better: by importance, then by lower index.
NSAI_DEVICE u64 key_of(u32 order, int index) { return (u64)order << 32 | ~(u32)index; }
NSAI_DEVICE u32 order_in(u64 key) { return (u32)(key >> 32); }
NSAI_DEVICE u32 index_in(u64 key) { return ~(u32)key; }

// One step of a bitonic network: lanes whose numbers differ in bit `lanes` compare; the lower one
// keeps the greater value where `descending`.
template <class Key> NSAI_DEVICE Key exchange(Key x, int lanes, bool descending, int lane) {
  Key other = __shfl_xor_sync(kAllLanes, x, lanes);
  bool keep_greater = ((lane & lanes) == 0) == descending;
  return (x > other) == keep_greater ? x : other;
}

// Sorts a bitonic sequence of 32.
NSAI_DEVICE u64 merge_lanes(u64 x, bool descending, int lane) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x = exchange(x, lanes, descending, lane);
  return x;
}

// Sorts any 32, ascending.
NSAI_DEVICE u64 sort_lanes(u64 x, int lane) {
#pragma unroll
  for (int size = 2; size <= 32; size *= 2)
#pragma unroll
    for (int lanes = size / 2; lanes > 0; lanes /= 2)
      x = exchange(x, lanes, (lane & size) != 0, lane);
  return x;
}

// Merges 32 keys into the descending `best`; the 32 worst of all fall out.
template <int kSlots> NSAI_DEVICE void merge_best(u64 (&best)[kSlots], u64 x, int lane) {
  x = sort_lanes(x, lane);
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    // Descending against ascending: the greater of each pair are the 32 best of both, and either
    // half is bitonic.
    u64 better = best[slot] > x ? best[slot] : x, worse = best[slot] > x ? x : best[slot];
    best[slot] = merge_lanes(better, true, lane);
    if (slot + 1 < kSlots) x = merge_lanes(worse, false, lane);
  }
}

// Sorts 32 * kSlots values ascending, kSlots a power of two; value slot * 32 + lane lies in
// v[slot].
template <int kSlots> NSAI_DEVICE void sort_ascending(u32 (&v)[kSlots], int lane) {
#pragma unroll
  for (int size = 2; size <= 32 * kSlots; size *= 2) {
#pragma unroll
    for (int distance = size / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        bool descending = ((slot * 32 + lane) & size) != 0;
        int other = slot ^ distance / 32;
        if (distance < 32) {
          v[slot] = exchange(v[slot], distance, descending, lane);
        } else if (slot < other) {
          u32 low = min(v[slot], v[other]), high = max(v[slot], v[other]);
          v[slot] = descending ? high : low;
          v[other] = descending ? low : high;
        }
      }
    }
  }
}

// ---- search

// The kFree best of the candidates [first, end) of a row, ascending in v; there are more than
// kFree. `queue` [kQueue] is the warp's.
template <int kFree, int kSlots>
NSAI_DEVICE void search(u32 (&v)[kSlots], const float *gI, int first, int end, u64 *queue,
                        int lane) {
  constexpr int kLast = (kFree - 1) / 32, kLane = (kFree - 1) % 32; // where the n_free-th best lies
  u64 best[kSlots] = {};
  u32 bar = 0; // its order: a later candidate, whose index is higher, must be greater to beat it
  int queued = 0;

  for (int begin = first; begin < end; begin += kBatch) {
    u32 order[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      int j = begin + 32 * i + lane;
      order[i] = j < end ? order_of(gI[j]) : 0;
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      bool wins = order[i] > bar;
      u32 winners = __ballot_sync(kAllLanes, wins);
      if (wins)
        queue[queued + __popc(winners & ((1u << lane) - 1))] =
            key_of(order[i], begin + 32 * i + lane);
      queued += __popc(winners);
    }
    const int enough = begin + kBatch < end ? 32 : 1; // to be worth a merge
    if (queued < enough) continue;
    __syncwarp(); // the queue is written
    while (queued >= enough) {
      int taken = min(queued, 32);
      queued -= taken;
      merge_best(best, lane < taken ? queue[queued + lane] : 0, lane);
    }
    __syncwarp(); // and read
    bar = order_in(__shfl_sync(kAllLanes, best[kLast], kLane));
  }

#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot)
    v[slot] = slot * 32 + lane < kFree ? index_in(best[slot]) : ~0u;
  sort_ascending(v, lane);
}

// ---- body

template <class C> NSAI_DEVICE void select(const NsaiSelect &p) {
  constexpr int kWarps = C::kThreads / 32;
  constexpr int kFree = C::kSelectCount - C::kSelectInit - C::kSelectLocal;
  __shared__ u64 queues[kWarps][kQueue];

  // ---- coordinates ----
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u64 index = (u64)blockIdx.x * kWarps + warp;
  if (index >= (u64)(p.token_end - p.token_begin) * p.kv_heads) return;
  const int token = p.token_begin + (int)(index / p.kv_heads), group = (int)(index % p.kv_heads);
  const int s =
      p.seq.cu_q ? find_sequence(p.seq.num_seqs, token, [&](int i) { return p.seq.cu_q[i]; }) : 0;
  const Sequence seq = load_sequence(p.seq, s);
  const int query = token - seq.q_begin;
  if (query < 0 || query >= seq.q_len) return;
  const int t = seq.position(query);
  const int candidates = t < 0 ? 0 : t / C::kSelectBlock + 1;
  int *gOut = p.idx + token * p.idx_token_stride + group * p.idx_head_stride; // [n]
  const float *gI = p.importance + (token - p.token_begin) * p.importance_token_stride +
                    group * p.importance_head_stride; // [candidates]

  // ---- few candidates: all of them ----
  if (candidates <= C::kSelectCount) {
    for (int i = lane; i < C::kSelectCount; i += 32) gOut[i] = i < candidates ? i : -1;
    return;
  }

  // ---- forced, free, forced: n altogether, since the forced ones cannot coincide here ----
  const int local = candidates - C::kSelectLocal; // first of the last ones
  for (int i = lane; i < C::kSelectInit; i += 32) gOut[i] = i;
  for (int i = lane; i < C::kSelectLocal; i += 32) gOut[C::kSelectInit + kFree + i] = local + i;
  if constexpr (kFree > 0) {
    constexpr int kSlots = kFree > 128 ? 8 : kFree > 64 ? 4 : kFree > 32 ? 2 : 1;
    u32 v[kSlots];
    search<kFree>(v, gI, C::kSelectInit, local, queues[warp], lane);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot)
      if (slot * 32 + lane < kFree) gOut[C::kSelectInit + slot * 32 + lane] = (int)v[slot];
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    select_topn(const __grid_constant__ NsaiSelect p) {
  select<Config>(p);
}
