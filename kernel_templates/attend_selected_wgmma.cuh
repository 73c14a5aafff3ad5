// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_selected_wgmma: attention of every token over its own selection (sm_90a).
//
//   O[t, h] = sum over keys p in list[t, g], p <= t, of softmax_p(scale q[t, h] . k[p, g]) v[p, g]
//
//   q     [T, Hq, Dk], k [tokens, Hkv, Dk], v [tokens, Hkv, Dv]
//   lists [T, Hkv, n] blocks of l' tokens, or [T, Hkv, n, 2] token ranges: ascending, disjoint, -1
//
// Grid: persistent; tiles and ring as in common/union_ring.cuh. A consumer warpgroup has 64 rows,
// 64 / kGroupPadded adjacent tokens, and multiplies the union of their blocks: rows whose token
// does not see a key have P = 0. All warpgroups of a block share the stages; one whose tokens see
// none of a stage's keys releases it untouched. What one warpgroup waits for, the others fill, so
// that the loop is in order: Q K^T, softmax, P V.
//
// Bound by latency, and by power in long runs. H200, 64k tokens, 64/4 heads, D 128, unions of 4
// tokens of 23 blocks, three warpgroups: tensor cores busy for 59 % (64 rows by 64 keys take 840
// clocks, the products 512); of its time a warpgroup waits 15 % for Q K^T, 15 % for P V, 16 % for
// the slowest of its warps, 9 % for the next stage. 5.5 ms (6.1 in a long run); attend_selected_tma
// 6.6 (7.0). Did not help: two warpgroups with 232 registers (6.8 ms), one and two blocks (6.8);
// with those, scores of the next stage before P V of this one, so that P V runs during the softmax
// (7.5 and 7.4: stages are held longer, and the warpgroups that share them drift apart less); a
// stage less (5.8).
//
// Config: Element, kGate, and common/union_ring.cuh's.
// kSharedBytes = Plan::kBytes.
#pragma once
#include "common/softmax.cuh"
#include "common/union_ring.cuh"

template <class Config> struct Plan : UnionRing<Config> {
  using R = UnionRing<Config>;
  // Columns of Q in registers, as fragments, the others in shared memory: all panels for which
  // there are registers beside O, the scores and what else the loop holds. What is read from shared
  // memory for every tile of keys, Q and K, takes as long as the products that it feeds.
  static constexpr int kOthers = R::kColsV / 2 + R::kKeys / 2 + (kSplitP<Config> ? 16 : 0) + 44;
  static constexpr int kFree = (R::kConsumerRegisters - kOthers) / 16;
  static constexpr int kQueryPanels = panels(Config::kHeadDimQk);
  static constexpr int kHeldPanels = kFree < 0 ? 0 : kFree < kQueryPanels ? kFree : kQueryPanels;
  static constexpr int kQuerySteps = R::kColsQk / 16; // of 16 columns
  static constexpr int kHeldSteps = kHeldPanels * 4 < kQuerySteps ? kHeldPanels * 4 : kQuerySteps;
  static constexpr int kQBytes = (kQueryPanels - kHeldPanels) * 64 * kPanelPitch;
  static constexpr int kSQ = (R::kEnd + 1023) / 1024 * 1024; // [kWarpgroups], or nothing
  static constexpr int kBytes = kQBytes ? kSQ + R::kWarpgroups * kQBytes : R::kEnd;
  static_assert(kBytes == Config::kSharedBytes, "the host computes another size");
};

// S = Q K^T: rS [64, kKeys] of the warpgroup, issued. Of Q: rQ what is held, sQ the other columns.
template <class Config, int kHeld>
NSAI_DEVICE void multiply_qk(float (&rS)[Config::kKeys / 8][4], const u32 (&rQ)[kHeld][4], u32 sQ,
                             u32 sK) {
  using S = Plan<Config>;
  using Element = typename Config::Element;
  const u64 q = wgmma_k_major(sQ), k = wgmma_k_major(sK);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < S::kQuerySteps; ++i) {
    const u64 k_step = k + wgmma_k_step<S::kKeys>(i);
    if (i < S::kHeldSteps)
      wgmma_qk<Element, S::kKeys>(rS[0], rQ[i < kHeld ? i : 0], k_step, i > 0);
    else
      wgmma_qk<Element, S::kKeys>(rS[0], q + wgmma_k_step<64>(i - S::kHeldSteps), k_step, i > 0);
  }
  wgmma_commit();
}

// P of a stage in fragments of 16 keys, and what its rounding left.
template <class Config> struct Probabilities {
  static constexpr int kParts = kSplitP<Config> ? 2 : 1;
  u32 a[kParts][Config::kKeys / 16][4];
};

// O += P V: rO [64, Dv], issued.
template <class Config, int kO>
NSAI_DEVICE void multiply_pv(float (&rO)[kO][4], const Probabilities<Config> &rP, u32 sV) {
  using S = Plan<Config>;
  const u64 v = wgmma_mn_major<S::kKeys>(sV);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < S::kKeys / 16; ++k)
#pragma unroll
    for (int part = 0; part < Probabilities<Config>::kParts; ++part)
      wgmma_pv<typename Config::Element, S::kColsV, S::kKeys>(rO[0], rP.a[part][k],
                                                              v + wgmma_mn_step(k), 1);
  wgmma_commit();
}

template <class Config, int kN>
NSAI_DEVICE void pack_probabilities(Probabilities<Config> &rP, const float (&rS)[kN][4]) {
  using Element = typename Config::Element;
#pragma unroll
  for (int k = 0; k < kN / 2; ++k) {
    softmax_pack<Element>(rP.a[0][k], rS[2 * k], rS[2 * k + 1]);
    if constexpr (kSplitP<Config>)
      softmax_pack_rest<Element>(rP.a[1][k], rP.a[0][k], rS[2 * k], rS[2 * k + 1]);
  }
}

template <int kN> NSAI_DEVICE void hold(float (&d)[kN][4]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) wgmma_hold(d[i]);
}

template <class Config>
NSAI_DEVICE void consume(const NsaiAttendSelected &p, const unsigned char *shared) {
  using S = Plan<Config>;
  const int lane = threadIdx.x % 32, warp = warp_uniform(threadIdx.x / 32), group = warp / 4;
  const u32 base = shared_address(shared);
  const u32 sQ = base + S::kSQ + group * S::kQBytes; // [64, columns that are not held]
  const int row = 16 * warp + lane / 4;              // this lane's rows: row, row + 8
  RingStep<S::kStages> step;
  auto release = [&](int stage) { // for the producers
    barrier_arrive(base + S::kEmpty + 8 * stage);
  };

  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    // ---- queries
    u32 rQ[S::kHeldSteps ? S::kHeldSteps : 1][4]; // [64, columns that are held]
    {
      const Place at = find_place<Config>(p, tile);
      if (at.empty()) continue;
      const OutputRow place[2] = { place_row<Config>(at, row), place_row<Config>(at, row + 8) };
      prefetch_output<Config>(p.out, p.kv_heads, place);
      if constexpr (S::kHeldSteps > 0) load_query<Config>(rQ, p.q, at, row);
      if constexpr (S::kQBytes > 0) {
        threads_sync(1 + group, 128); // nobody multiplies by the tile before any more
        copy_query<Config, 64, S::kHeldPanels>(sQ, 16 * (warp % 4), p.q, at, 16 * warp);
        threads_sync(1 + group, 128); // all four warps' rows are there
      }
    }
    float rO[S::kColsV / 8][4] = {}; // [64, Dv]
    SoftmaxRows rows;

    // ---- keys
    int s = warp_uniform(step.stage);
    barrier_wait(base + S::kFull + 8 * s, step.parity); // by the producers
    u32 seen = ring_word<Config>(shared, S::kSSeen, s);
    for (;;) {
      const int now = s;
      const bool needed = seen >> (4 * group) & 15, last = seen & S::kLast;
      step.advance();
      s = warp_uniform(step.stage);
      if (needed) {
        float rS[S::kKeys / 8][4]; // [64, kKeys]
        Probabilities<Config> rP;  // [64, kKeys]
        multiply_qk<Config>(rS, rQ, sQ, base + S::kSK + now * S::kKBytes);
        wgmma_wait<0>();
        hold(rS);
        if (seen >> warp & 1) {
          if (ring_word<Config>(shared, S::kSPartly, now) >> warp & 1)
            mask_scores<Config>(rS, shared, now, warp);
          softmax_step(rows, rS, rO, p.scale_log2);
          pack_probabilities(rP, rS);
        } else {
          rP = {};
        }
        multiply_pv<Config>(rO, rP, base + S::kSV + now * S::kVBytes);
        // The next stage is looked for while P V runs.
        const bool ready = !last && barrier_test(base + S::kFull + 8 * s, step.parity);
        wgmma_wait<0>();
        hold(rO);
        release(now);
        if (last) break;
        if (!ready) barrier_wait(base + S::kFull + 8 * s, step.parity); // by the producers
      } else { // no token of the warpgroup sees these keys
        release(now);
        if (last) break;
        barrier_wait(base + S::kFull + 8 * s, step.parity); // by the producers
      }
      seen = ring_word<Config>(shared, S::kSSeen, s);
    }

    // ---- end of a tile
    const Place at = find_place<Config>(p, tile);
    const OutputRow place[2] = { place_row<Config>(at, row), place_row<Config>(at, row + 8) };
    store_output<Config>(p.out, p.kv_heads, rO, rows, place);
  }
}

// ---- body ----

template <class Config> NSAI_DEVICE void attend_selected(const NsaiAttendSelectedTma &p) {
  using S = Plan<Config>;
  extern __shared__ __align__(1024) unsigned char shared[];
  if (threadIdx.x == 0) ring_init<Config>(p, shared_address(shared));
  begin_kernel();
  __syncthreads(); // barriers are there
  const int warp = warp_uniform(threadIdx.x / 32);
  if (warp >= S::kWarps) {
    registers_drop<S::kProducerRegisters>();
    if (warp < S::kWarps + S::kProducers) ring_produce<Config>(p, shared, warp - S::kWarps);
  } else {
    registers_raise<S::kConsumerRegisters>();
    consume<Config>(p.attend, shared);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_selected_wgmma(const __grid_constant__ NsaiAttendSelectedTma p) {
  attend_selected<Config>(p);
}
