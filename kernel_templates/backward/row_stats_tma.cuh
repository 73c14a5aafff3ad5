// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_row_stats_tma: the statistics of backward_row_stats, with warpgroups that share the keys
// of 128 rows (sm_90a).
//
//   S = scale Q K^T      dU = dO V^T      LSE, u = sum P dU, by online softmax
//
// q [T, Hq, Dk], d_o [T, Hq, Dv], k and v of each branch -> RowStatistics [3, T, Hq], d_gate
// [T, Hq, 3].
//
// Grid, shared memory and Config: backward/pipelines/dq.cuh; also Element, kGate. A warpgroup skips
// stages that none of its tokens sees. The exponentials overlap with dU and with the other
// warpgroup's products.
#pragma once
#include "backward/pipelines/dq.cuh"
#include "core/softmax.cuh"

// Sums of one branch over the lane's two rows.
struct BranchSums {
  SoftmaxRows rows;
  float inner[2] = { 0.0f, 0.0f }; // sum of 2^(score - reference) dU over this lane's columns
};

// Masks scores of keys that the row's token does not see to -inf.
template <class Config, int kN>
NSAI_DEVICE void mask_stage(float (&s)[kN][4], const unsigned char *shared, int stage) {
  using R = DqPipeline<Config>;
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint2 bits = *(const uint2 *)((const u64 *)(shared + R::kSBits) + stage * R::kTokens +
                                        (row + 8 * r) / Config::kGroupPadded);
    const u32 half[2] = { bits.x >> 2 * (threadIdx.x & 3), bits.y >> 2 * (threadIdx.x & 3) };
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c)
        if (!(half[j / 4] >> (8 * (j % 4) + c) & 1)) s[j][2 * r + c] = kMinusInf;
  }
}

// Stores the statistics of the rows and the gradients of their gates. All 32 lanes take part.
template <class Config>
NSAI_DEVICE void store_known(const NsaiBackwardQ &p, const DqTile &at, int branch,
                             const BranchSums &sums) {
  const int heads = Config::kGroup * p.kv_heads;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = recomputed(threadIdx.x) / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r;
    const int token_index = row / Config::kGroupPadded, index = row % Config::kGroupPadded;
    const float total = lanes_sum<4>(sums.rows.sum[r]), inner = lanes_sum<4>(sums.inner[r]);
    if (index >= Config::kGroup || token_index >= at.tokens || threadIdx.x % 4) continue;
    const int token = at.seq.q_begin + at.first_query + token_index,
              head = at.group * Config::kGroup + index;
    RowStatistics x = { kPlusInf, 0.0f, 0.0f, 0.0f };
    if (total > 0.0f && at.position + token_index >= 0)
      x = make_statistics<Config>(sums.rows.reference[r] + log2_approx(total),
                                  read_gate<Config>(p.gate, p.gate_float, branch, token, head),
                                  inner / total);
    ((RowStatistics *)p.statistics)[statistics_at(branch, p.seq.q_tokens, token, heads, head)] = x;
    store_gate<Config>(p.d_gate, token, head, branch, x);
  }
}

// Stores zero gradients for the gates of branches that do not run.
template <class Config> NSAI_DEVICE void store_absent(const NsaiBackwardQ &p, const DqTile &at) {
  const RowStatistics none = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = recomputed(threadIdx.x) / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r;
    const int token_index = row / Config::kGroupPadded, index = row % Config::kGroupPadded;
    if (index >= Config::kGroup || token_index >= at.tokens || threadIdx.x % 4) continue;
#pragma unroll
    for (int b = 0; b < NSAI_BRANCH_COUNT; ++b)
      if (p.absent >> b & 1)
        store_gate<Config>(p.d_gate, at.seq.q_begin + at.first_query + token_index,
                           at.group * Config::kGroup + index, b, none);
  }
}

// The work of a warpgroup on a tile of rows.
template <class Config> struct StatisticsTile {
  using R = DqPipeline<Config>;
  using E = typename Config::Element;
  const NsaiBackwardQ &p;
  const DqTile &at;
  DqStageReader<Config> &reader;
  u32 sDO;
  int branch = -1; // current branch
  u32 stored = 0;  // bit b: branch b is stored
  BranchSums sums;
  DqQuery<Config> query;

  NSAI_DEVICE StatisticsTile(const NsaiBackwardQ &params, const DqTile &tile,
                             DqStageReader<Config> &stages)
      : p(params), at(tile), reader(stages), query(stages.base) {
    sDO = reader.base + R::kSDO + warp_uniform(threadIdx.x / 128) * R::DO::kBytes;
  }

  NSAI_DEVICE u32 stage_k(int stage) const {
    return reader.base + R::kSStage + warp_uniform(stage) * R::kStageBytes;
  }
  // Issues the products of a stage.
  NSAI_DEVICE void start(float (&s)[R::kN][4], float (&du)[R::kN][4], int stage) {
    wgmma_fence();
    query.start(s, stage_k(stage));
    wgmma_commit();
    start_rows<E, typename R::DO, typename R::V, Config::kHeadDimV>(du, sDO,
                                                                    stage_k(stage) + R::K::kBytes);
    wgmma_commit();
  }

  // Stores the current branch and begins the next one.
  NSAI_DEVICE void begin_branch(int next) {
    if (branch >= 0) {
      store_known<Config>(p, at, branch, sums);
      stored |= 1u << branch;
    }
    branch = next;
    sums = BranchSums();
  }

  // Turns a stage's scores s into probabilities and adds them to the sums, while its dU is in
  // flight.
  NSAI_DEVICE void exponentiate(float (&s)[R::kN][4], int stage, bool partly) {
    float factor[2];
    if (partly) mask_stage<Config>(s, reader.shared, stage);
    if (softmax_grow(sums.rows, factor, s, p.scale_log2)) {
      sums.inner[0] *= factor[0];
      sums.inner[1] *= factor[1];
    }
#pragma unroll
    for (int j = 0; j < R::kN; ++j) softmax_exponentiate(sums.rows, s[j], p.scale_log2);
  }

  // Processes all stages of the tile.
  NSAI_DEVICE void run() {
    const int warp = warp_uniform(threadIdx.x / 32);
    float s[R::kN][4], du[R::kN][4]; // [64, kKeys] each
    reader.seen = 0;
    for (int now = reader.find(0x7fffffff); now >= 0; now = reader.find(0x7fffffff)) {
      const u32 seen = reader.seen;
      const int of = seen >> R::kBranchShift & 3;
      start(s, du, now);
      if (of != branch) begin_branch(of);
      wgmma_wait<1>();
      hold(s); // dU is still in flight
      if (seen >> warp & 1) {
        exponentiate(s, now, ((const u32 *)(reader.shared + R::kSPartly))[now] >> warp & 1);
      } else {
        clear(s);
      }
      wgmma_wait<0>();
      hold(du);
#pragma unroll
      for (int j = 0; j < R::kN; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) sums.inner[c / 2] = fmaf(s[j][c], du[j][c], sums.inner[c / 2]);
      reader.release(now);
    }
    begin_branch(-1);
#pragma unroll 1
    // Branches of which the rows see no key.
    for (int b = 0; b < NSAI_BRANCH_COUNT; ++b)
      if (p.branches >> b & ~stored >> b & 1) store_known<Config>(p, at, b, sums);
  }
};

template <class Config>
NSAI_DEVICE void find_statistics(const NsaiBackwardQTma &p, const unsigned char *shared, u32 base) {
  using R = DqPipeline<Config>;
  DqStageReader<Config> reader = { shared, base, {}, 0 };
  u32 phase = 0;
  for_dq_tiles<Config>(p, [&](const DqTile &at) {
    barrier_wait(base + R::kRowsFull, phase); // filled by the row producer
    phase ^= 1;
    {
      StatisticsTile<Config> tile(p.rows, at, reader);
      tile.run();
    }
    barrier_arrive(base + R::kRowsEmpty); // released to it
    store_absent<Config>(p.rows, at);
  });
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_row_stats_tma(const __grid_constant__ NsaiBackwardQTma p) {
  run_dq_pipeline<Config, false, false>(p, [&](const unsigned char *shared, u32 base) {
    find_statistics<Config>(p, shared, base);
  });
}
