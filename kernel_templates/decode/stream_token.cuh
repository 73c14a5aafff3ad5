// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode/mainloop.cuh for the keys of one token that all rows see, of which a warp has few steps. One loop fills
// the pipeline and computes, so that each step's code exists once: code that runs a few times is bound by
// instruction fetch. (H200, 64k tokens, MiniCPM4, one sequence: of the 3.4 us in which a CTA attends to its
// first three steps, 1.4 were gone when they ran again from the instruction cache and L2.)
//
// Config: those of decode/mainloop.cuh.
#pragma once
#include "decode/mainloop.cuh"

// Q [16, Dk] passes through a tile of the warp's own in shared memory. (A load of a fragment takes
// 16 bytes of each of eight rows, so that 32 loads of each of eight warps would keep L1 busy: a
// guess.)
template <class S> struct WarpQueries {
  using Q = typename S::Q;
  u32 tile; // shared-memory address

  // Starts the copy, as a group. All lanes take part.
  template <class C> NSAI_DEVICE void copy(const QueryRows<C> &rows, int lane) const {
#pragma unroll 1
    for (int i = lane; i < 16 * Q::kChunks; i += 32) copy_query<C, Q>(tile, rows, i);
    copy_async_commit();
  }
  // Once the copy has arrived for all lanes.
  NSAI_DEVICE void read(Queries<S> &queries, int lane) const {
    const u32 address = tile + Q::offset(lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < S::kSteps; ++k) ldmatrix_x4(queries.fragment[k], Q::along(address, 2 * k));
  }
};

// Loads the warp's queries by way of its first stage.
template <class C, class S>
NSAI_DEVICE Queries<S> load_warp_queries(typename S::Shared &shared, const S &at,
                                         const QueryRows<C> &rows) {
  Queries<S> queries;
  if constexpr (S::kCoded) {
    load_register_queries<C>(queries, rows, 0, at.lane);
  } else {
    const WarpQueries<S> through = { shared_address(shared.keys) +
                                     at.consumer_group * C::kStages * S::kStageBytes };
    static_assert(S::Q::kBytes <= S::kStageBytes, "a stage holds Q");
    through.copy(rows, at.lane);
    copy_async_wait<0>();
    __syncwarp(); // Q has arrived
    through.read(queries, at.lane);
    __syncwarp(); // Q was read
  }
  return queries;
}

// stream_keys() with Q in registers.
template <class C, class S, class Keys, class Rows, int kO>
NSAI_DEVICE void stream_token(typename S::Shared &shared, const S &at, const NsaiCachePair &pair,
                              int group, const Rows &lists, Keys &keys, int begin, int end,
                              const Queries<S> &queries, float (&o)[kO][4], SoftmaxRows &rows,
                              float scale_log2, bool once) {
  static_assert(S::kRowTiles == 1 && S::kAtOnce == 1 && !S::kQShared && !Keys::kOwned &&
                    !Keys::kPools,
                "a warp has all rows, and all see all keys");
  constexpr int kAhead = C::kStages - 1; // stages in flight during computation
  const u16 *gK = (const u16 *)pair.k.data + group * pair.k.head_stride;
  const u16 *gV = (const u16 *)pair.v.data + group * pair.v.head_stride;
  const u32 stages = shared_address(shared.keys) + at.consumer_group * C::kStages * S::kStageBytes;
  const u64 policy = l2_policy(once);
  const int limit = min(keys.limit, end * kStepKeys);
  ReadCounter<false> counter;
  const auto find = [&](int step) {
    return find_key<S::kStageKeys>(keys, lists, step, limit, at.lane);
  };

  KeyLocation next = find(begin);
  int filled = 0; // the stage that is filled next
#pragma unroll 1
  for (int step = begin - kAhead; step < end; ++step) {
    if (step >= begin) {
      copy_async_wait<kAhead - 1>();
      __syncwarp(); // the step's keys have arrived, and all lanes have read the step before
    }
    const int ahead = step + kAhead;
    if (ahead < end) {
      using From = KeyRows<Rows, kWideHeads<C>>;
      const u32 stage = lane_address(stages + filled * S::kStageBytes);
      const int present = limit - ahead * kStepKeys;
      copy_keys<typename S::K, kStepKeys, S::kWordsK, 32, true>(stage,
                                                                From(pair.k, gK, lists, next),
                                                                present, at.lane, policy, counter);
      copy_keys<typename S::V, kStepKeys, S::kWordsV, 32, false>(stage + S::K::kBytes,
                                                                 From(pair.v, gV, lists, next),
                                                                 present, at.lane, policy, counter);
    }
    copy_async_commit();
    next = find(ahead + 1);
    filled = filled + 1 == C::kStages ? 0 : filled + 1; // the step's own
    if (step < begin) continue;
    const u32 stage = stages + filled * S::kStageBytes;
    float s[2][4]; // [16, 16 keys]
    multiply_chains_qk<C, S, 4>(s, queries, stage, at.lane);
    if ((step + 1) * kStepKeys > limit)
#pragma unroll
      for (int r = 0; r < 2; ++r) mask_row(s, r, KeyRange{ 0, limit }, step * kStepKeys);
    softmax_step(rows, s, o, queries.scaled(scale_log2));
    multiply_step_pv<C, S, 4>(o, s, stage + S::K::kBytes, at.lane);
  }
  copy_async_wait<0>();
}
