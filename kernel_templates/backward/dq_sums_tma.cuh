// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_dq_sums_tma: dQ as in backward_dq_tma, with that of the compressed branch from
// backward_dkv_dq_compressed_tma, or of the selected branch, too, from backward_dq_slots
// (backward/pipelines/dq_sums.cuh). That of the other branches is added.
//
// Grid, tensors and Config: backward_dq_tma; kGroupPadded is kGroup.
#pragma once
#include "backward/pipelines/dq.cuh"
#include "backward/pipelines/dq_consumer.cuh"
#include "backward/pipelines/dq_sums.cuh"

// Adds the sums of the warpgroup's rows, if there are any.
template <class Config, int kO>
NSAI_DEVICE void add_sums(float (&dq)[kO][4], const NsaiBackwardDqSums &p, const DqTile &at) {
  using R = DqPipeline<Config>;
  const int first = at.first_query + warp_uniform(threadIdx.x / 128) * R::kBoxTokens,
            last = min(first + R::kBoxTokens, at.seq.q_len) - 1;
  if (!p.sums || first > last) return;
  if (!p.all && CompressedKeys<Config>::visible(at.seq.position(last)).end <= 0) return;
  const long long block =
      at.group * p.blocks + first_dq_block<R::kBoxTokens>(at.seq, at.s) + first / R::kBoxTokens;
  const float4 *from = (const float4 *)p.sums + block * kO * 128 + threadIdx.x % 128;
#pragma unroll
  for (int j = 0; j < kO; j += 4) {
    float4 x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = from[128 * (j + i)];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      dq[j + i][0] += x[i].x;
      dq[j + i][1] += x[i].y;
      dq[j + i][2] += x[i].z;
      dq[j + i][3] += x[i].w;
    }
    asm volatile("" ::: "memory"); // few registers are free: no more loads at a time
  }
}

template <class Config>
NSAI_DEVICE void consume_rest(const NsaiBackwardDqSums &p, const unsigned char *shared, u32 base) {
  using R = DqPipeline<Config>;
  DqStageReader<Config> reader = { shared, base, {}, 0 };
  u32 phase = 0;
  for_dq_tiles<Config>(p.q, [&](const DqTile &at) {
    barrier_wait(base + R::kRowsFull, phase); // filled by the row producer
    phase ^= 1;
    float dq[R::kColsQk / 8][4] = {}; // [64, Dk]
    multiply_stages<Config>(dq, p.q.rows, reader);
    barrier_arrive(base + R::kRowsEmpty); // released to it
    add_sums<Config>(dq, p, at);
    store_rows<Config>(p.q.rows, at, dq);
  });
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dq_sums_tma(const __grid_constant__ NsaiBackwardDqSums p) {
  run_dq_pipeline<Config, true, true>(p.q, [&](const unsigned char *shared, u32 base) {
    consume_rest<Config>(p, shared, base);
  });
}
