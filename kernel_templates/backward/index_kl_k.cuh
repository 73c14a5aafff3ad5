// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_index_kl_k: d_k_idx and the loss, from the partial sums of a launch of backward_index_kl.
//
//   k_sum[p] += sum over heads and the items of p's block of k_partial[item, p % l']
//   loss_sum += sum over heads and items of item_loss[item], in f64
//   the last launch: d_k_idx = c / (T Hi) si / UNIT k_sum    loss = c / (T Hi) ln 2 / UNIT loss_sum
//
// A key that no query has chosen gets 0; rows behind the last sequence are left untouched.
//
// Grid: x = 1 + as many CTAs as cover the rows of k_idx * Di / 4, four adjacent columns per thread. The
// first CTA adds up the loss. Bound by reading k_partial.
//
// Config: Element, kIndexDim, kSelectBlock (l'), kThreads (a power of two), kMinBlocks. 8 kThreads bytes
// of static shared memory.
#pragma once
#include "backward/index_kl_sum.cuh"
#include "backward/products.cuh"
#include "core/launch.cuh"

// Each thread has every kThreads-th item; then halves are added to halves.
template <class Config> NSAI_DEVICE void sum_loss(const NsaiIndexKl &p) {
  __shared__ double sSums[Config::kThreads];
  double sum = 0.0;
  for (int head = 0; head < p.heads; ++head) {
    const float *gLoss = p.item_loss + (long long)head * p.item_capacity;
    const int items = p.item_counts[list_of_head(p, head)];
    for (int i = threadIdx.x; i < items; i += Config::kThreads) sum += gLoss[i];
  }
  sSums[threadIdx.x] = sum;
  for (int half = Config::kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sSums[threadIdx.x] += sSums[threadIdx.x + half];
  }
  if (threadIdx.x) return;
  sum = sSums[0] + (p.first ? 0.0 : *p.loss_sum);
  if (!p.last) {
    *p.loss_sum = sum;
  } else {
    const float loss = (float)(sum * (kLn2 / NSAI_INDEX_KL_UNIT) * row_factor(p));
    *p.loss = p.loss_accumulate ? *p.loss + loss : loss;
  }
}

// Sum over the launch's heads and the items of the key's block.
template <class Config>
NSAI_DEVICE float4 sum_items(const NsaiIndexKl &p, int s, int key, int column) {
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const int number =
      first_block_number<Config::kSelectBlock>(p.seq, s) + key / Config::kSelectBlock;
  for (int head = 0; head < p.heads; ++head) {
    const int list = list_of_head(p, head);
    const int *gStarts = p.item_starts + (long long)list * p.blocks; // [blocks]
    const int begin = gStarts[number];
    const int end = number + 1 < p.blocks ? gStarts[number + 1] : p.item_counts[list];
    for (int item = begin; item < end; ++item)
      add_four(sum, *(const float4 *)(p.k_partial +
                                      (((long long)head * p.item_capacity + item) *
                                           Config::kSelectBlock +
                                       key % Config::kSelectBlock) *
                                          Config::kIndexDim +
                                      column));
  }
  return sum;
}

template <class Config> NSAI_DEVICE void sum_keys(const NsaiIndexKl &p, long long at) {
  constexpr int kColumns = Config::kIndexDim / 4;
  if (at >= (long long)p.seq.kv_tokens * kColumns) return;
  const int row = (int)(at / kColumns), column = (int)(at % kColumns) * 4;
  const int s =
      p.seq.cu_q ? find_sequence(p.seq.num_seqs, row, [&](int i) { return p.seq.cu_kv[i]; }) : 0;
  const Sequence seq = load_sequence(p.seq, s);
  const int key = row - seq.kv_begin;
  if (key >= seq.kv_len) return;
  float4 sum = sum_items<Config>(p, s, key, column);
  float4 *gSum = (float4 *)(p.k_sum + (long long)row * Config::kIndexDim + column);
  if (!p.first) add_four(sum, *gSum);
  if (!p.last)
    *gSum = sum;
  else
    store_gradients<typename Config::Element>(p.d_k_idx, row * p.d_k_idx.view.token_stride + column,
                                              scaled(sum, gradient_factor(p)));
}

template <class Config> NSAI_DEVICE void sum_all(const NsaiIndexKl &p) {
  if (blockIdx.x > 0)
    sum_keys<Config>(p, (blockIdx.x - 1ll) * Config::kThreads + threadIdx.x);
  else if (p.loss)
    sum_loss<Config>(p);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_index_kl_k(const __grid_constant__ NsaiIndexKl p) {
  begin_kernel();
  sum_all<Config>(p);
}
