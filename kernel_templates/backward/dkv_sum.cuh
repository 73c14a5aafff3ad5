// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_dkv_sum: dK and dV of one pair of K and V, from the partial sums of all branches that
// read it.
//
//   d[p] = window[p] + sum over items of p's block of selected[item, p % l']
//        (ranges: + sum over splits of selected[split, p])
//        + 1 / l * sum over blocks i that cover p of sum over splits of compressed[split, i]   (phi
//        mean)
//          or sum over blocks i that cover p of k_rows[i, p - i d], v_rows[..]   (phi linear, mlp)
//   is_external: d[i] = sum over splits of compressed[split, i], 0 in rows that hold no block
//
// The terms are always added in this order, so every run gives the same bits.
//
// Grid: x = ceil(ceil(rows / kRun) * heads / kItems). A CTA takes kItems = kThreads / ((Dk + Dv) /
// 4) pairs of a head and a run of kRun rows, with one thread per four columns of K or V; left-over
// threads idle. A thread reuses its sum over compressed blocks for all rows of the run that the
// same blocks cover. Bound by HBM.
//
// Config: Element, kHeadDimQk, kHeadDimV, kBlock (l), kStride (d), kSelectBlock (l'), kRanges,
// kRun, kThreads, kMinBlocks. No shared memory.
#pragma once
#include "backward/products.cuh"
#include "core/launch.cuh"
#include "data/compressed_row.cuh"
#include "data/inverted_lists.cuh"
#include "params/backward.h"

template <class Config> struct SumTraits {
  static constexpr int kWidth = Config::kHeadDimQk + Config::kHeadDimV;
  static constexpr int kColumns = kWidth / 4;                // threads per run
  static constexpr int kItems = Config::kThreads / kColumns; // per CTA
  static_assert(kItems >= 1, "a CTA holds at least one run of a head");
};

// Sum over the splits of row `row` of the compressed branch, in this thread's columns.
template <class Config>
NSAI_DEVICE float4 compressed_sum(const NsaiBackwardSum &p, int head, long long row, int column) {
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int split = 0; split < p.splits; ++split)
    add_four(sum,
             *(const float4 *)(p.compressed +
                               (((long long)head * p.splits + split) * p.compressed_rows + row) *
                                   SumTraits<Config>::kWidth +
                               column));
  return sum;
}

// Sum over the splits of key row `row` of a selection by ranges.
template <class Config>
NSAI_DEVICE float4 ranges_sum(const NsaiBackwardSum &p, int head, long long row, int column) {
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int split = 0; split < p.range_splits; ++split)
    add_four(sum,
             *(const float4 *)(p.selected +
                               (((long long)head * p.range_splits + split) * p.window_rows + row) *
                                   SumTraits<Config>::kWidth +
                               column));
  return sum;
}

// Sum over the items of the key's block.
template <class Config>
NSAI_DEVICE float4 selected_sum(const NsaiBackwardSum &p, int head, int s, int key, int column) {
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const int list_head = p.shared_lists ? 0 : p.head_begin + head;
  const int number =
      first_block_number<Config::kSelectBlock>(p.seq, s) + key / Config::kSelectBlock;
  const int *gStarts = p.item_starts + (long long)list_head * p.blocks; // [blocks]
  const int begin = gStarts[number];
  const int end = number + 1 < p.blocks ? gStarts[number + 1] : p.item_counts[list_head];
  for (int item = begin; item < end; ++item)
    add_four(sum,
             *(const float4 *)(p.selected +
                               (((long long)head * p.item_capacity + item) * Config::kSelectBlock +
                                key % Config::kSelectBlock) *
                                   SumTraits<Config>::kWidth +
                               column));
  return sum;
}

struct BlockRange {
  int first, last; // last < first: no block
};

// The compressed blocks that cover token `key` of a sequence.
template <class Config> NSAI_DEVICE BlockRange covering_blocks(int kv_len, int key) {
  return BlockRange{ key < Config::kBlock ? 0 : (key - Config::kBlock) / Config::kStride + 1,
                     min(key / Config::kStride,
                         block_count<Config::kBlock, Config::kStride>(kv_len) - 1) };
}

// The key's gradient through phi linear or mlp.
template <class Config>
NSAI_DEVICE float4 rows_sum(const NsaiBackwardSum &p, int head, int s, int kv_len, int key,
                            int column) {
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const bool is_k = column < Config::kHeadDimQk;
  const int dim = is_k ? Config::kHeadDimQk : Config::kHeadDimV;
  const float *gRows = (is_k ? p.k_rows : p.v_rows) +
                       head * (p.compressed_rows + 1) * Config::kBlock * dim; // [rows, l, D]
  const BlockRange blocks = covering_blocks<Config>(kv_len, key);
  const long long row = packed_block_row<Config::kStride>(p.seq, s);
  for (int i = blocks.first; i <= blocks.last; ++i)
    add_four(sum, *(const float4 *)(gRows +
                                    ((row + i) * Config::kBlock + key - i * Config::kStride) * dim +
                                    (is_k ? column : column - Config::kHeadDimQk)));
  return sum;
}

// The gradient through phi mean of the tokens that these blocks of sequence s cover.
template <class Config>
NSAI_DEVICE float4 mean_sum(const NsaiBackwardSum &p, int head, int s, const BlockRange &blocks,
                            int column) {
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const long long row = packed_block_row<Config::kStride>(p.seq, s);
  for (int i = blocks.first; i <= blocks.last; ++i)
    add_four(sum, compressed_sum<Config>(p, head, row + i, column));
  constexpr float kInverse = 1.0f / Config::kBlock;
  return make_float4(sum.x * kInverse, sum.y * kInverse, sum.z * kInverse, sum.w * kInverse);
}

// A walk over consecutive rows of k and v.
template <class Config> struct SumCursor {
  int s = -1; // sequence
  Sequence seq;
  BlockRange blocks = { -1, -1 }; // blocks that cover the token; `mean` is their sum
  float4 mean;

  // Index of the token within its sequence; negative if the row belongs to no sequence.
  NSAI_DEVICE int key_of(const NsaiBackwardSum &p, int row) {
    if (s < 0 || row - seq.kv_begin >= seq.kv_len) {
      s = p.seq.cu_q ? find_sequence(p.seq.num_seqs, row, [&](int i) { return p.seq.cu_kv[i]; })
                     : 0;
      seq = load_sequence(p.seq, s);
      blocks.first = -1;
    }
    const int key = row - seq.kv_begin;
    return key < seq.kv_len ? key : -1;
  }

  NSAI_DEVICE float4 mean_of(const NsaiBackwardSum &p, int head, int key, int column) {
    const BlockRange now = covering_blocks<Config>(seq.kv_len, key);
    if (now.first != blocks.first || now.last != blocks.last)
      mean = mean_sum<Config>(p, head, s, now, column);
    blocks = now;
    return mean;
  }
};

// The sum for row `row` of the outputs; returns false if the row belongs to no sequence.
template <class Config>
NSAI_DEVICE bool sum_row(const NsaiBackwardSum &p, SumCursor<Config> &at, int head, int row,
                         int column, float4 &sum) {
  sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (p.is_external) {
    const BlockRow block = find_block_row<Config::kBlock, Config::kStride>(p.seq, row);
    if (block.exists)
      sum = compressed_sum<Config>(p, head,
                                   packed_block_row<Config::kStride>(p.seq, block.s) + block.block,
                                   column);
    return true;
  }
  const int key = at.key_of(p, row);
  if (key < 0) return false;
  if (p.window)
    add_four(sum,
             *(const float4 *)(p.window + (head * p.window_rows + row) * SumTraits<Config>::kWidth +
                               column));
  if (p.selected) {
    if constexpr (Config::kRanges)
      add_four(sum, ranges_sum<Config>(p, head, row, column));
    else
      add_four(sum, selected_sum<Config>(p, head, at.s, key, column));
  }
  if (column < Config::kHeadDimQk ? p.k_rows : p.v_rows)
    add_four(sum, rows_sum<Config>(p, head, at.s, at.seq.kv_len, key, column));
  if (p.compressed) add_four(sum, at.mean_of(p, head, key, column));
  return true;
}

template <class Config> NSAI_DEVICE void sum_gradients(const NsaiBackwardSum &p) {
  using F = SumTraits<Config>;
  const int item = threadIdx.x / F::kColumns, column = threadIdx.x % F::kColumns * 4;
  const u64 index = (u64)blockIdx.x * F::kItems + item;
  const u64 runs = ceil_div(p.rows, Config::kRun);
  if (item >= F::kItems || index >= runs * p.heads) return;
  const int first = (int)(index / p.heads) * Config::kRun, head = (int)(index % p.heads);
  const bool is_k = column < Config::kHeadDimQk;
  const NsaiGradient &out = is_k ? p.d_k : p.d_v;
  if (!out.view.data) return;
  SumCursor<Config> at;
#pragma unroll 1
  for (int row = first; row < min(first + Config::kRun, p.rows); ++row) {
    float4 sum;
    if (!sum_row<Config>(p, at, head, row, column, sum)) continue;
    store_gradients<typename Config::Element>(out,
                                              row * out.view.token_stride +
                                                  (p.head_begin + head) * out.view.head_stride +
                                                  (is_k ? column : column - Config::kHeadDimQk),
                                              sum);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dkv_sum(const __grid_constant__ NsaiBackwardSum p) {
  begin_kernel();
  sum_gradients<Config>(p);
}
