// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The end of decode/mainloop.cuh: the consumer groups' results pass through shared memory, are
// added up, and are stored as one split of a work item in global memory.
#pragma once
#include "core/code_fragments.cuh"
#include "core/softmax.cuh"
#include "decode/consumer_groups.cuh"

// Writes the consumer groups' results to shared memory. All threads take part.
template <class C, class S, int kO>
NSAI_DEVICE void share_consumer_groups(typename S::Shared &shared, const S &at,
                                       const float (&o)[kO][4], const SoftmaxRows &rows) {
  __syncthreads(); // all groups have finished with the pipeline
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = 16 * at.row_tile + 8 * r + at.lane / 4;
    const float sum = lanes_sum<4>(rows.sum[r]);
    if (at.lane % 4 == 0)
      shared.results.stats[at.consumer_group][row] = make_float2(rows.reference[r], sum);
    if constexpr (S::kCoded) {
      float *to = &shared.results.o[at.consumer_group][row][at.lane % 4 * 4];
#pragma unroll
      for (int j = 0; j < kO; j += 2) *(float4 *)(to + 8 * j) = code_columns(o[j], o[j + 1], r);
      continue;
    }
    float *to = &shared.results.o[at.consumer_group][row][at.lane % 4 * 2];
#pragma unroll
    for (int j = 0; j < kO; ++j)
      *(float2 *)(to + 8 * j) = make_float2(o[j][2 * r], o[j][2 * r + 1]);
  }
  __syncthreads(); // the groups' results are written
}

// Four columns of a row, summed over all consumer groups.
struct ConsumerGroupSum {
  float reference, total;
  float4 o; // relative to `reference`
};

template <class C, class S>
NSAI_DEVICE ConsumerGroupSum add_consumer_groups(const typename S::Shared &shared, int row,
                                                 int column) {
  constexpr int kConsumerGroups = S::kConsumerGroups;
  ConsumerGroupSum x = { kNoReference, 0.0f, make_float4(0, 0, 0, 0) };
#pragma unroll
  for (int consumer_group = 0; consumer_group < kConsumerGroups; ++consumer_group)
    x.reference = fmaxf(x.reference, shared.results.stats[consumer_group][row].x);
#pragma unroll
  for (int consumer_group = 0; consumer_group < kConsumerGroups; ++consumer_group) {
    const float2 stats = shared.results.stats[consumer_group][row];
    const float factor = exp2_approx(stats.x - x.reference);
    x.o = add_scaled(x.o, factor, *(const float4 *)&shared.results.o[consumer_group][row][column]);
    x.total = fmaf(factor, stats.y, x.total);
  }
  return x;
}

// Adds up the consumer groups' results and stores rows [0, stored) of the CTA's split. Row r goes
// to row row_of(r) of the splits, or nowhere if that is negative. All threads take part.
template <class C, class S, int kO, class RowOf>
NSAI_DEVICE void store_split(typename S::Shared &shared, const S &at, const float (&o)[kO][4],
                             const SoftmaxRows &rows, const NsaiDecodeSplits &to, int stored,
                             RowOf row_of) {
  share_consumer_groups<C>(shared, at, o, rows);
  for (int i = threadIdx.x; i < stored * (C::kHeadDimV / 4); i += C::kThreads) {
    const int row = i / (C::kHeadDimV / 4), column = i % (C::kHeadDimV / 4) * 4;
    const long long at_row = row_of(row);
    if (at_row < 0) continue;
    const ConsumerGroupSum x = add_consumer_groups<C, S>(shared, row, column);
    *(float4 *)(to.o + at_row * C::kHeadDimV + column) = x.o;
    if (column == 0) *(float2 *)(to.stats + 2 * at_row) = make_float2(x.reference, x.total);
  }
}

// Stores the statistics of a split without keys.
template <class RowOf>
NSAI_DEVICE void store_empty_split(const NsaiDecodeSplits &to, int stored, int threads,
                                   RowOf row_of) {
  for (int row = threadIdx.x; row < stored; row += threads)
    if (row_of(row) >= 0) *(float2 *)(to.stats + 2 * row_of(row)) = make_float2(kNoReference, 0.0f);
}
