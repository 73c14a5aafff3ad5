// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// gather_rows: the rows that phi linear and phi mlp multiply with their weights.
//
//   out[g, row, x*D + c] = x[token + x, g, c] + pe[g, x, c]      token = kv_begin + i*d of block i
//   = row - first row
//
//   x [tokens, Hkv, D], pe [Hkv, l, D] or NULL -> out [Hkv, rows, l*D] contiguous (read by
//   cuBLASLt)
//
// The sum is taken in fp32 and rounded once. Every element of out is written: rows that hold no
// block are zeros, so that the product may run over all rows while true counts are known on the
// device only.
//
// Grid: x = rows * kv_heads, heads outermost; the CTA writes one row of l*D elements, 16 bytes a
// thread and step. Bound by HBM writes: out is l/d times as large as x, whose overlapping reads hit
// L2.
//
// Config: Element, kHeadDim, kBlock (l), kStride (d), kThreads, kMinBlocks. No shared memory.
#pragma once
#include "common/block_row.cuh"
#include "common/params.h"
#include "common/types.cuh"

static_assert(Config::kHeadDim % 8 == 0, "rows are copied 16 bytes at a time");

// a + b, element by element.
template <class C> NSAI_DEVICE Chunk add(const Chunk &a, const Chunk &b) {
  using E = typename C::Element;
  Chunk sum;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    sum.w[i] = E::pack(E::low(a.w[i]) + E::low(b.w[i]), E::high(a.w[i]) + E::high(b.w[i]));
  return sum;
}

template <class C> NSAI_DEVICE void gather(const NsaiGatherRows &p) {
  constexpr int kChunks = C::kHeadDim / 8; // per token
  constexpr int kUnroll = 4;               // loads in flight per thread

  // ---- coordinates ----
  const int head = blockIdx.x / p.rows, row = blockIdx.x % p.rows;
  const BlockRow block = find_block_row<C::kBlock, C::kStride>(p.seq, row);
  const u16 *gX = (const u16 *)p.x.data + head * p.x.head_stride;                // [tokens, D]
  const u16 *gPe = p.pe ? (const u16 *)p.pe + head * p.pe_head_stride : nullptr; // [l, D]
  Chunk *gOut =
      (Chunk *)p.out + ((long long)head * p.rows + row) * (C::kBlock * kChunks); // [l * D / 8]

  // ---- copy ----
#pragma unroll kUnroll
  for (int i = threadIdx.x; i < C::kBlock * kChunks; i += C::kThreads) {
    int x = i / kChunks, column = i % kChunks * 8;
    Chunk chunk = {};
    if (block.exists) chunk = *(const Chunk *)(gX + (block.token + x) * p.x.token_stride + column);
    if (block.exists && gPe)
      chunk = add<C>(chunk, *(const Chunk *)(gPe + x * p.pe_token_stride + column));
    gOut[i] = chunk;
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    gather_rows(const __grid_constant__ NsaiGatherRows p) {
  gather<Config>(p);
}
