// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The keys of one warp of decode_flow: steps of 16, first of the scan, then of the window, then of the
// chosen blocks, through a ring of kStages stages that does not run dry between them. Lanes 0 to 15 find a
// step's rows of K, lanes 16 to 31 those of V.
//
// Config: those of common/key_stream.cuh, kSelectBlock (l'), kPageSize (P; 0: none), kRing (the window's
// pair lies in rings), kCluster.
#pragma once
#include "common/barrier.cuh"
#include "common/cached.cuh"
#include "common/decode.cuh"
#include "common/flash.cuh"
#include "common/key_stream.cuh"
#include "common/params_cache.h"
#include "common/tile.cuh"

template <class C> struct FlowRing {
  using K = Tile<kStepKeys, padded_dim(C::kHeadDimQk)>;
  using V = Tile<kStepKeys, padded_dim(C::kHeadDimV)>;
  static constexpr bool kQShared = false;
  static constexpr int kO = padded_dim(C::kHeadDimV) / 8;
  static constexpr int kSteps = padded_dim(C::kHeadDimQk) / 16;
  static constexpr int kStageBytes = K::kBytes + V::kBytes;
  static constexpr int kBytes = (C::kStages * kStageBytes + 127) / 128 * 128; // of a warp
};

// ---- which steps

// Raw keys of a branch, and this warp's steps of them: `slot`, slot + kSlots, ... Where warp 0 has something
// to search, it takes what its ring holds, and the others what is left.
template <class C> struct FlowShare {
  static constexpr int kSlots = C::kCluster * C::kWarps, kOthers = kSlots - C::kCluster;
  int keys;
  int slot, count;
  bool shifts; // the steps behind the first kStages of each warp are the other warps'
  NSAI_DEVICE FlowShare(int keys, int slot, bool searches) : keys(keys), slot(slot), shifts(searches) {
    const int steps = ceil_div(keys, kStepKeys);
    if (!shifts || steps <= kFirst) {
      count = number_of(steps, slot, kSlots);
    } else {
      count = C::kStages + (slot < C::kCluster ? 0 : number_of(steps - kFirst, slot - C::kCluster, kOthers));
    }
  }
  // Number of step i.
  NSAI_DEVICE int step(int i) const {
    return shifts && i >= C::kStages ? kFirst + slot - C::kCluster + (i - C::kStages) * kOthers
                                     : slot + i * kSlots;
  }

private:
  static constexpr int kFirst = C::kStages * kSlots;
  static NSAI_DEVICE int number_of(int steps, int slot, int slots) {
    return slot < steps ? (steps - 1 - slot) / slots + 1 : 0;
  }
};

// The warp's steps: those of the scan from `begin` on, of the window, of the chosen blocks.
template <class C> struct FlowSteps {
  const NsaiDecode &p;
  int group;
  CachedRows<C::kPageSize> rows;
  int begin, scanned;
  int visible; // compressed keys
  FlowShare<C> window;
  int window_first; // its key 0
  FlowShare<C> chosen;
  const int *sList;
  int known; // steps that may be asked for: before the list is there, none of the chosen blocks

  NSAI_DEVICE int window_end() const { return scanned + window.count; }
  NSAI_DEVICE int all() const { return window_end() + chosen.count; }
  // Step i's number within its branch.
  NSAI_DEVICE int number(int i) const {
    if (i < scanned) return begin + i;
    return i < window_end() ? window.step(i - scanned) : chosen.step(i - window_end());
  }
  // The lane's row of step i, of K or V; of a key that does not exist that of the last one, which is
  // masked. nullptr: the step is not known.
  NSAI_DEVICE const u16 *at(int i, int lane) const {
    if (i >= known) return nullptr;
    const bool scans = i < scanned, late = i >= window_end();
    const NsaiCachePair &pair = scans ? p.entries : late ? p.selected : p.window;
    const NsaiCacheTensor &x = lane < kStepKeys ? pair.k : pair.v;
    const int keys = scans ? visible : late ? chosen.keys : window.keys;
    const int key = min(number(i) * kStepKeys + lane % kStepKeys, keys - 1);
    int page, slot;
    if (scans) {
      const CachedRows<C::kPageSize / C::kStride> entries = { rows.list, rows.row, 0 };
      const int index = entry_index<C::kBlock, C::kStride>(key);
      page = entries.page(index), slot = entries.slot(index);
    } else if (C::kRing > 0 && !late) {
      const CachedRows<0> ring = { nullptr, rows.row, p.window.ring };
      page = ring.page(window_first + key), slot = ring.slot(window_first + key);
    } else {
      int index = window_first + key;
      if (late) index = sList[key / C::kSelectBlock] * C::kSelectBlock + key % C::kSelectBlock;
      page = rows.page(index), slot = rows.slot(index);
    }
    return (const u16 *)x.data + group * x.head_stride + row_offset(x, page, slot);
  }
};

// ---- the ring

// A warp's: [kStages] stages, and for each a barrier of K and one of V, in shared memory.
template <class C> struct FlowPlace {
  u32 ring, barriers;
  int done, issued; // steps
  u64 policy;

  NSAI_DEVICE FlowPlace(void *sRing, u64 *sBarriers, int lane)
      : ring(shared_address(sRing)), barriers(shared_address(sBarriers)), done(0), issued(0),
        policy(l2_policy(true)) {
    if (lane < 2 * C::kStages) barrier_init(barriers + 8 * lane, 32);
    barrier_init_fence();
    __syncwarp(); // the barriers are there
  }
  NSAI_DEVICE u32 stage(int i) const { return ring + i % C::kStages * FlowRing<C>::kStageBytes; }
  // Of K, and behind it of V.
  NSAI_DEVICE u32 barrier(int i) const { return barriers + i % C::kStages * 16; }

  // K and V of the next step, of which `from` is the lane's row.
  NSAI_DEVICE void issue_k(const u16 *from, int lane) {
    copy_rows<typename FlowRing<C>::K, C::kHeadDimQk>(stage(issued), from, 0, lane);
    barrier_arrive_after_copies(barrier(issued));
  }
  NSAI_DEVICE void issue_v(const u16 *from, int lane) {
    using R = FlowRing<C>;
    copy_rows<typename R::V, C::kHeadDimV>(stage(issued) + R::K::kBytes, from, kStepKeys, lane);
    barrier_arrive_after_copies(barrier(issued) + 8);
    ++issued;
  }

private:
  // K or V of a step into tile T; `from`: the lanes' rows from `lane_of_row_0` on.
  template <class T, int kDim>
  NSAI_DEVICE void copy_rows(u32 tile, const u16 *from, int lane_of_row_0, int lane) {
    using Lanes = CopyLanes<T, 32>;
#pragma unroll
    for (int i = 0; i < kStepKeys; i += Lanes::kPass) {
      const int row = Lanes::row(lane) + i;
      const u16 *at = (const u16 *)__shfl_sync(~0u, (u64)from, lane_of_row_0 + row) + Lanes::chunk(lane) * 8;
#pragma unroll
      for (int c = 0; c < T::kChunks; c += Lanes::kLanes) {
        const int chunk = c + Lanes::chunk(lane);
        if (c + Lanes::kLanes <= T::kChunks || chunk < T::kChunks)
          copy_async_16(tile + T::offset(row, chunk), at + c * 8, chunk * 8 < kDim, policy);
      }
    }
  }
};

// ---- products

// S [16, 16 keys] = Q K^T, as two n8 tiles. Four fragments of K at once, and two sums of each tile: nothing
// waits for every single load and product before it.
template <class C>
NSAI_DEVICE void multiply_flow_qk(float (&s)[2][4], const Queries<FlowRing<C>> &q, u32 sK, int lane) {
  using R = FlowRing<C>;
  using T = typename R::K;
  constexpr int kAtOnce = 4;
  const u32 k = sK + T::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2); // columns 0, 8 | keys 0, 8
  float sum[2][2][4] = {};
#pragma unroll
  for (int first = 0; first < R::kSteps; first += kAtOnce) {
    u32 b[kAtOnce][4]; // K [16 keys, 16]
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i < R::kSteps) ldmatrix_x4(b[i], T::along(k, 2 * (first + i)));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int n = 0; n < 2; ++n)
        if (first + i < R::kSteps)
          mma_m16n8k16(typename C::Element(), sum[i % 2][n], q.fragment[first + i], b[i][2 * n],
                       b[i][2 * n + 1]);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int c = 0; c < 4; ++c) s[n][c] = sum[0][n][c] + sum[1][n][c];
}

// O += P V, P [16, 16 keys].
template <class C, int kO>
NSAI_DEVICE void multiply_flow_pv(float (&o)[kO][4], const float (&p)[2][4], u32 sV, int lane) {
  using T = typename FlowRing<C>::V;
  constexpr int kAtOnce = 4;
  const u32 v = sV + T::offset(lane % 16, lane / 16); // keys 0, 8 | columns 0, 8
  u32 a[4], rest[4];
  softmax_pack<typename C::Element>(a, p[0], p[1]);
  if constexpr (kSplitP<C>) softmax_pack_rest<typename C::Element>(rest, a, p[0], p[1]);
#pragma unroll
  for (int first = 0; first < kO; first += 2 * kAtOnce) {
    u32 b[kAtOnce][4]; // V [16 keys, 16]
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + 2 * i < kO) ldmatrix_x4_trans(b[i], T::along(v, first + 2 * i));
#pragma unroll
    for (int i = 0; i < 2 * kAtOnce; ++i) {
      if (first + i >= kO) continue;
      const u32(&x)[4] = b[i / 2];
      mma_m16n8k16(typename C::Element(), o[first + i], a, x[i % 2 * 2], x[i % 2 * 2 + 1]);
      if constexpr (kSplitP<C>)
        mma_m16n8k16(typename C::Element(), o[first + i], rest, x[i % 2 * 2], x[i % 2 * 2 + 1]);
    }
  }
}

// Steps up to `end` onto o and rows, and the ring full of what is known. K of a step is asked for as soon as
// that of the step in its place is read, V the same; what else a step costs is done behind.
template <class C, class Keys, int kO>
NSAI_DEVICE void run_flow(const FlowSteps<C> &steps, Keys &keys, FlowPlace<C> &place, int end,
                          const Queries<FlowRing<C>> &queries, float (&o)[kO][4], SoftmaxRows &rows,
                          float scale_log2, int lane) {
  using R = FlowRing<C>;
  const u16 *ahead = steps.at(place.issued, lane); // lists of pages come from far away
#pragma unroll 1
  while (place.done < end || place.issued < min(steps.known, place.done + C::kStages)) {
    const bool fills = place.issued < min(steps.known, place.done + C::kStages); // a place that is free
    const bool issues = place.issued < steps.known;
    const u32 stage = place.stage(place.done), barrier = place.barrier(place.done);
    const u32 parity = place.done / C::kStages & 1;
    float s[2][4] = {}; // [16, 16 keys]
    if (!fills) {
      barrier_wait(barrier, parity);
      multiply_flow_qk<C>(s, queries, stage, lane);
      __syncwarp(); // K is read
    }
    if (issues) place.issue_k(ahead, lane);
    if (!fills) {
      const int first = steps.number(place.done) * kStepKeys;
      if (first + kStepKeys > keys.end(0)) // all rows see the same keys
#pragma unroll
        for (int r = 0; r < 2; ++r) mask_row(s, r, KeyRange{ 0, keys.end(0) }, first);
      softmax_step(rows, s, o, scale_log2);
      barrier_wait(barrier + 8, parity);
      multiply_flow_pv<C>(o, s, stage + R::K::kBytes, lane);
      __syncwarp(); // V is read
      ++place.done;
    }
    if (issues) place.issue_v(ahead, lane);
    if (!fills) keys.pool(s, rows);
    if (issues) ahead = steps.at(place.issued, lane);
  }
}
