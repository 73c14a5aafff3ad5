// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// kv_cache_gather_entries: compress_gather_rows for the entries that an append completes, read from
// the KV cache.
//
//   out[g, row, x*D + c]  = x[first token of the row's entry + x, g, c], zero if the row holds none
//   out[g, rows, x*D + c] = pe[g, x, c]
//
// Of a cache of codes (core/e4m3.cuh): x = code * scale, rounded.
//
//   x [pages, P, Hkv, D], pe [Hkv, l, D] or NULL (zeros) -> out [Hkv, rows + 1, l*D] contiguous
//   (read by cuBLASLt)
//
// Grid: x = (rows + 1) * kv_heads, heads outermost; a CTA writes one row, 16 bytes per thread and
// step. Bound by HBM.
//
// Config: Element, kHeadDim, kBlock (l), kStride (d), kPageSize (P; 0: no pages), kRawCodes (x holds
// codes), kThreads, kMinBlocks.
#pragma once
#include "core/e4m3.cuh"
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/cache_rows.cuh"
#include "data/new_entries.cuh"
#include "data/source.cuh"
#include "params/kv_cache.h"

static_assert(Config::kHeadDim % 8 == 0, "rows are copied 16 bytes at a time");

// Eight columns of a row of codes, from `column` on, as elements.
template <class C> NSAI_DEVICE Chunk load_scaled(const u16 *row, int column, float scale) {
  Chunk x = expand_eight<Fp16>(*(const uint2 *)(row + column / 2)); // exact
#pragma unroll
  for (int w = 0; w < 4; ++w)
    x.w[w] =
        C::Element::pack(__fmul_rn(Fp16::low(x.w[w]), scale), __fmul_rn(Fp16::high(x.w[w]), scale));
  return x;
}

template <class C> NSAI_DEVICE void gather(const NsaiGatherEntries &p) {
  constexpr int kChunks = C::kHeadDim / 8; // per token
  constexpr int kUnroll = 4;               // loads in flight per thread

  // ---- coordinates
  const int rows = p.rows + 1, head = blockIdx.x / rows, row = blockIdx.x % rows;
  const NewEntry entry = find_new_entry<C::kBlock, C::kStride>(p.batch, p.slot_mapping, row);
  const auto lists = find_rows<C::kPageSize>(p.batch, entry.s, 0);
  const bool is_pe = row == p.rows, present = is_pe ? p.pe != nullptr : entry.exists;
  const u16 *gPe = (const u16 *)p.pe + head * p.pe_head_stride;   // [l, D]
  const u16 *gX = (const u16 *)p.x.data + head * p.x.head_stride; // [pages, P, D]
  Chunk *gOut =
      (Chunk *)p.out + ((long long)head * rows + row) * (C::kBlock * kChunks); // [l * D / 8]

  float scale = 1.0f;
  if constexpr (C::kRawCodes) scale = scale_of(((const NsaiCodedGatherEntries &)p).scale, head);

    // ---- copy
#pragma unroll kUnroll
  for (int i = threadIdx.x; i < C::kBlock * kChunks; i += C::kThreads) {
    const int x = i / kChunks, column = i % kChunks * 8, at = entry.first + x;
    Chunk chunk = {};
    if (C::kRawCodes && present && !is_pe)
      chunk = load_scaled<C>(gX + row_offset(p.x, lists.page(at), lists.slot(at)), column, scale);
    else if (present)
      chunk = *(const Chunk *)((is_pe ? gPe + x * p.pe_token_stride
                                      : gX + row_offset(p.x, lists.page(at), lists.slot(at))) +
                               column);
    gOut[i] = chunk;
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    kv_cache_gather_entries(const __grid_constant__ ParamsOf<Config::kRawCodes, NsaiGatherEntries,
                                                             NsaiCodedGatherEntries>::Type p) {
  begin_kernel();
  gather<Config>((const NsaiGatherEntries &)p);
}
