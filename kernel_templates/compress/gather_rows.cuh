// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// compress_gather_rows: gathers the rows that phi linear and phi mlp multiply with their weights.
//
//   out[g, row, x*D + c]  = x[token + x, g, c],   token = kv_begin + i*d of block i = row - first
//                         row
//   out[g, rows, x*D + c] = pe[g, x, c]
//
//   x [tokens, Hkv, D], pe [Hkv, l, D] or NULL (zeros) -> out [Hkv, rows + 1, l*D] contiguous (read
//   by cuBLASLt)
//
// pe has a row of its own, because (x + pe) W = x W + pe W avoids rounding the sum x + pe. Every
// element of out is written: rows that hold no block are zeros, so that the GEMM may run over all
// rows although the true counts are known on the device only.
//
// Grid: x = (rows + 1) * kv_heads, heads outermost; a CTA writes one row of l*D elements, 16 bytes
// per thread and step. Bound by HBM writes: out is l/d times as large as x, whose overlapping reads
// hit L2.
//
// Config: Element, kHeadDim, kBlock (l), kStride (d), kThreads, kMinBlocks. No shared memory.
#pragma once
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/compressed_row.cuh"
#include "params/attention.h"

static_assert(Config::kHeadDim % 8 == 0, "rows are copied 16 bytes at a time");

template <class C> NSAI_DEVICE void gather(const NsaiGatherRows &p) {
  constexpr int kChunks = C::kHeadDim / 8; // per token
  constexpr int kUnroll = 4;               // loads in flight per thread

  // ---- coordinates
  const int rows = p.rows + 1, head = blockIdx.x / rows, row = blockIdx.x % rows;
  const BlockRow block = find_block_row<C::kBlock, C::kStride>(p.seq, row);
  const bool is_pe = row == p.rows, present = is_pe ? p.pe != nullptr : block.exists;
  const u16 *gX = is_pe ? (const u16 *)p.pe + head * p.pe_head_stride
                        : (const u16 *)p.x.data + head * p.x.head_stride +
                              block.token * p.x.token_stride; // [l, D]
  const long long token_stride = is_pe ? p.pe_token_stride : p.x.token_stride;
  Chunk *gOut =
      (Chunk *)p.out + ((long long)head * rows + row) * (C::kBlock * kChunks); // [l * D / 8]

  // ---- copy
#pragma unroll kUnroll
  for (int i = threadIdx.x; i < C::kBlock * kChunks; i += C::kThreads) {
    int x = i / kChunks, column = i % kChunks * 8;
    Chunk chunk = {};
    if (present) chunk = *(const Chunk *)(gX + x * token_stride + column);
    gOut[i] = chunk;
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    compress_gather_rows(const __grid_constant__ NsaiGatherRows p) {
  begin_kernel();
  gather<Config>(p);
}
