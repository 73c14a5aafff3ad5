// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The consumers of backward_dq_tma and backward_dq_sums_tma: a warpgroup multiplies the stages of
// backward/pipelines/dq.cuh with its rows and stores dQ.
#pragma once
#include "backward/pipelines/dq.cuh"

// Turns S of 64 keys into P' of the lane's two rows, 0 where the token does not see the key.
template <class Config, int kN>
NSAI_DEVICE void stage_probabilities(float (&s)[kN][4], const unsigned char *shared, int stage,
                                     bool partly, const RowStatistics (&x)[2], float scale_log2) {
  using R = DqPipeline<Config>;
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint2 bits =
        partly ? *(const uint2 *)((const u64 *)(shared + R::kSBits) + stage * R::kTokens +
                                  (row + 8 * r) / Config::kGroupPadded)
               : make_uint2(~0u, ~0u);
    const u32 half[2] = { bits.x >> 2 * (threadIdx.x & 3), bits.y >> 2 * (threadIdx.x & 3) };
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float e = gated_probability<Config>(s[j][2 * r + c], scale_log2, x[r].lse, x[r].gate);
        s[j][2 * r + c] = !partly || half[j / 4] >> (8 * (j % 4) + c) & 1 ? e : 0.0f;
      }
  }
}

// For a window tile that also contains selected keys: turns scores, given their dU, into the sum of
// dS of both branches. `x`, `y`: statistics of the lane's rows in the window and the selected
// branch.
template <class Config, int kN>
NSAI_DEVICE void join_branches(float (&s)[kN][4], const float (&du)[kN][4],
                               const unsigned char *shared, int stage, const RowStatistics (&x)[2],
                               const RowStatistics (&y)[2], float scale_log2) {
  using R = DqPipeline<Config>;
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = 8 * (stage * R::kTokens + (row + 8 * r) / Config::kGroupPadded);
    const uint2 bits = *(const uint2 *)(shared + R::kSBits + at),
                listed = *(const uint2 *)(shared + R::kSListed + at);
    const int shift = 2 * (threadIdx.x & 3);
    const u32 in_window[2] = { bits.x >> shift, bits.y >> shift },
              in_list[2] = { listed.x >> shift, listed.y >> shift };
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int bit = 8 * (j % 4) + c, i = 2 * r + c;
        const float a = gated_probability<Config>(s[j][i], scale_log2, x[r].lse, x[r].gate),
                    b = gated_probability<Config>(s[j][i], scale_log2, y[r].lse, y[r].gate);
        const float d = in_window[j / 4] >> bit & 1 ? a * (du[j][i] - x[r].inner) : 0.0f;
        s[j][i] = in_list[j / 4] >> bit & 1 ? fmaf(b, du[j][i] - y[r].inner, d) : d;
      }
  }
}

template <class Config>
NSAI_DEVICE void store_rows(const NsaiBackwardQ &p, const DqTile &at,
                            const float (&dq)[DqPipeline<Config>::kColsQk / 8][4]) {
  for_rows(dq, [&](int r, const float(&x)[DqPipeline<Config>::kColsQk / 8][2]) {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r;
    const int token = row / Config::kGroupPadded, head = row % Config::kGroupPadded;
    const bool exists = head < Config::kGroup && token < at.tokens;
    const bool sees = at.position + token >= 0; // false: its q and d_o may hold anything
    const long long to = (at.seq.q_begin + at.first_query + token) * p.d_q.view.token_stride +
                         (at.group * Config::kGroup + head) * p.d_q.view.head_stride;
    store_gradient_row<typename Config::Element, Config::kHeadDimQk>(p.d_q, to, exists, x, p.scale,
                                                                     !sees);
  });
}

// Computes dQ of the warpgroup's rows: dq [64, Dk], zeros on entry.
template <class Config, int kO>
NSAI_DEVICE void multiply_stages(float (&dq)[kO][4], const NsaiBackwardQ &p,
                                 DqStageReader<Config> &reader) {
  using R = DqPipeline<Config>;
  using E = typename Config::Element;
  const int warp = warp_uniform(threadIdx.x / 32), group = warp / 4;
  const u32 base = reader.base, sDO = base + R::kSDO + group * R::DO::kBytes;
  const DqQuery<Config> query(base);
  float s[R::kN][4], du[R::kN][4]; // [64, kKeys]
  auto stage_k = [&](int stage) {
    return base + R::kSStage + warp_uniform(stage) * R::kStageBytes;
  };
  auto start_s = [&](int stage) {
    query.start(s, stage_k(stage));
    wgmma_commit();
  };
  auto start_du = [&](int stage) {
    start_rows<E, typename R::DO, typename R::V, Config::kHeadDimV>(du, sDO,
                                                                    stage_k(stage) + R::K::kBytes);
    wgmma_commit();
  };

  reader.seen = 0;
  int now = reader.find(0x7fffffff), before = -1;
  if (now < 0) return;
  hold(dq);
  wgmma_fence();
  start_s(now);
  start_du(now);
  for (;;) {
    const u32 seen = reader.seen;
    const int row = recomputed(threadIdx.x) / 32 * 16 + threadIdx.x % 32 / 4;
    const RowStatistics *sRows =
        (const RowStatistics *)(reader.shared + R::kSStatistics) + row; // [3, kRows]
    const RowStatistics *sBranch = sRows + (seen >> R::kBranchShift & 3) * R::kRows;
    const RowStatistics x[2] = { sBranch[0], sBranch[8] };
    const u32 joined = R::kCanJoin ? ((const u32 *)(reader.shared + R::kSWindowSelected))[now] : 0;
    const bool window_selected = joined >> warp & 1;
    const bool has_rest = joined >> 4 * group & 15; // the same in the whole warpgroup
    wgmma_wait<1>();
    hold(s);               // dU and the previous dQ are still in flight
    if (window_selected) { // waits for dU
    } else if (seen >> warp & 1) {
      const bool partly = ((const u32 *)(reader.shared + R::kSPartly))[now] >> warp & 1;
      if (partly)
        stage_probabilities<Config>(s, reader.shared, now, true, x, p.scale_log2);
      else
        stage_probabilities<Config>(s, reader.shared, now, false, x, p.scale_log2);
    } else {
      clear(s);
    }
    wgmma_wait<0>();
    hold(du);
    hold(dq);
    if (before >= 0) reader.release(before);
    u32 rDS[R::kN / 2][4]; // [64, 16 keys] each
    if (window_selected) {
      const RowStatistics *sListed = sRows + NSAI_BRANCH_SELECTED * R::kRows;
      const RowStatistics y[2] = { sListed[0], sListed[8] };
      join_branches<Config>(s, du, reader.shared, now, x, y, p.scale_log2);
    } else {
#pragma unroll
      for (int j = 0; j < R::kN; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) s[j][c] *= du[j][c] - x[c / 2].inner;
    }
    pack_all<E>(rDS, s);
    if (has_rest) { // few stages have
      u32 rRest[R::kN / 2][4];
#pragma unroll
      for (int j = 0; j < R::kN / 2; ++j)
        softmax_pack_rest<E>(rRest[j], rDS[j], s[2 * j], s[2 * j + 1]);
      wgmma_fence();
      start_fragments<E, typename R::K>(dq, rRest, stage_k(now));
      wgmma_commit();
      wgmma_wait<0>();
      hold(dq);
    }
    // While this stage is held, waiting for the next must not need the stage itself: look at most
    // kStages - 1 ahead.
    int next = reader.find(R::kStages - 1);
    if (next >= 0) {
      wgmma_fence();
      start_s(next);
      start_fragments<E, typename R::K>(dq, rDS, stage_k(now));
      start_du(next);
      before = now;
    } else {
      wgmma_fence();
      start_fragments<E, typename R::K>(dq, rDS, stage_k(now));
      wgmma_commit();
      wgmma_wait<0>();
      hold(dq);
      reader.release(now);
      before = -1;
      next = reader.find(0x7fffffff);
      if (next < 0) return;
      wgmma_fence();
      start_s(next);
      start_du(next);
    }
    now = next;
  }
}
