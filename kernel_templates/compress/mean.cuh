// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// compress_mean: phi mean of K and V in one launch.
//
//   kc[row, g] = 1/l * sum over x in [0, l) of k[token + x, g]
//                token = kv_begin + i*d of block i = row - first row
//
//   k [tokens, Hkv, Dk], v [tokens, Hkv, Dv] -> k_cmp [rows, Hkv, Dk], v_cmp [rows, Hkv, Dv]
//
// The sum runs over ascending x in fp32, is multiplied by 1/l and rounded once: a block's bits
// depend on its tokens only. Rows that hold no block (i >= N(kv_len), and gaps between sequences)
// are not written.
//
// Grid: x = ceil(rows * kv_heads / kItems). A CTA takes kItems = kThreads / ((Dk + Dv) / 8) pairs
// of a row and a head; a thread averages 16 bytes of one pair's K or V, and left-over threads idle.
// Bound by HBM: adjacent rows lie in the same CTA or the next, so that the l/d reads of a token hit
// L1 and L2.
//
// Config: Element, kHeadDimQk, kHeadDimV, kBlock (l), kStride (d), kThreads, kMinBlocks. No shared
// memory.
#pragma once
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/compressed_row.cuh"
#include "params/attention.h"

static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0,
              "rows are read 16 bytes at a time");
static_assert(Config::kThreads >= (Config::kHeadDimQk + Config::kHeadDimV) / 8,
              "a CTA holds at least one row-head pair");

// Loads in flight per thread: 8 * 16 bytes * 1024 threads is far more than the 40 KB that an SM
// needs to hide the latency of HBM.
constexpr int kLoads = 8;

// The mean of kBlock chunks of 16 bytes that lie `stride` elements apart.
template <class C> NSAI_DEVICE Chunk mean(const u16 *from, long long stride) {
  float sum[8] = {};
#pragma unroll kLoads
  for (int x = 0; x < C::kBlock; ++x) {
    Chunk chunk = *(const Chunk *)(from + x * stride);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[2 * i] += C::Element::low(chunk.w[i]);
      sum[2 * i + 1] += C::Element::high(chunk.w[i]);
    }
  }
  constexpr float kInverse = 1.0f / C::kBlock;
  Chunk result;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    result.w[i] = C::Element::pack(sum[2 * i] * kInverse, sum[2 * i + 1] * kInverse);
  return result;
}

template <class C> NSAI_DEVICE void compress(const NsaiCompress &p) {
  constexpr int kChunksK = C::kHeadDimQk / 8, kChunks = kChunksK + C::kHeadDimV / 8;
  constexpr int kItems = C::kThreads / kChunks;

  // ---- coordinates
  const int item = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
  const u64 index = (u64)blockIdx.x * kItems + item;
  if (item >= kItems || index >= (u64)p.rows * p.kv_heads) return;
  const int row = (int)(index / p.kv_heads), head = (int)(index % p.kv_heads);
  const BlockRow block = find_block_row<C::kBlock, C::kStride>(p.seq, row);
  if (!block.exists) return;

  // ---- mean
  const bool is_k = chunk < kChunksK;
  const NsaiView &from = is_k ? p.k : p.v, &to = is_k ? p.k_cmp : p.v_cmp;
  const int column = (is_k ? chunk : chunk - kChunksK) * 8;
  const u16 *gX = (const u16 *)from.data + block.token * from.token_stride +
                  head * from.head_stride + column;                                  // [l, D]
  u16 *gC = (u16 *)to.data + row * to.token_stride + head * to.head_stride + column; // [D]
  *(Chunk *)gC = mean<C>(gX, from.token_stride);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    compress_mean(const __grid_constant__ NsaiCompress p) {
  begin_kernel();
  compress<Config>(p);
}
