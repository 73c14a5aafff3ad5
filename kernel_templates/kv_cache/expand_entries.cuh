// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// kv_cache_expand_entries: compressed entries of a cache, from codes to fp16 in the workspace.
//
//   out[slot, g, i, c] = fp16(code[i-th entry of the slot's sequence, g, c])   exact, without scales
//
//   codes [pages, P/d, Hkv, D] -> out [slots, Hkv, entries, D], for K and V
//
// Which sequences have a slot: data/expanded_entries.cuh. Entries that no whole block has are neither
// read nor written.
//
// Grid: x = kv_heads * ceil(most entries of a sequence / kEntries), y = slots. A thread converts 16
// codes at a time. Bound by latencies: the entries of 64k tokens, 4 heads of 128 and 128 columns are
// 4 MB of codes.
//
// Config: kHeadDimQk, kHeadDimV, kPageRows (entries of a page; 0: no pages), kBlock (l), kStride (d),
// kThreads, kMinBlocks.
#pragma once
#include "core/e4m3.cuh"
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/expanded_entries.cuh"
#include "params/kv_cache.h"

static_assert(Config::kHeadDimQk % 16 == 0 && Config::kHeadDimV % 16 == 0,
              "a row of codes consists of chunks of 16 bytes");

// Converts chunk `chunk`, 16 codes, of a row.
NSAI_DEVICE void expand_chunk(const NsaiCacheTensor &from, long long from_row,
                              const NsaiCacheTensor &to, long long to_row, int chunk) {
  const Chunk codes = ((const Chunk *)((const u16 *)from.data + from_row))[chunk];
  Chunk *gOut = (Chunk *)((u16 *)to.data + to_row) + 2 * chunk;
  gOut[0] = expand_eight<Fp16>(make_uint2(codes.w[0], codes.w[1]));
  gOut[1] = expand_eight<Fp16>(make_uint2(codes.w[2], codes.w[3]));
}

template <class C> NSAI_DEVICE void expand_entries(const NsaiExpandEntries &p) {
  constexpr int kEntries = NSAI_EXPANDED_AT_ONCE; // of a CTA
  constexpr int kChunksK = C::kHeadDimQk / 16, kChunks = kChunksK + C::kHeadDimV / 16;
  constexpr int kUnroll = 4; // loads in flight per thread

  // ---- coordinates
  const int slot = blockIdx.y;
  const int s = expanded_sequence(p.to, p.batch, slot);
  if (expanded_slot(p.to, p.batch, s) != slot) return;
  const int head = blockIdx.x % p.kv_heads, first = blockIdx.x / p.kv_heads * kEntries;
  const int blocks =
      block_count<C::kBlock, C::kStride>(load_cached_sequence(p.batch, s).kv_len); // of s
  const int end = min(blocks, first + kEntries);
  const auto lists = find_rows<C::kPageRows>(p.batch, s, 0);
  const auto rows = expanded_rows(slot);

  // ---- convert
#pragma unroll kUnroll
  for (int i = threadIdx.x; i < kEntries * kChunks; i += C::kThreads) {
    const int block = first + i / kChunks, chunk = i % kChunks;
    if (block >= end) break;
    const int index = entry_index<C::kBlock, C::kStride>(block);
    const bool is_v = chunk >= kChunksK;
    const NsaiCacheTensor &from = is_v ? p.entries.v : p.entries.k, &to = is_v ? p.to.v : p.to.k;
    expand_chunk(from,
                 row_offset(from, lists.page(index), lists.slot(index)) + head * from.head_stride,
                 to, row_offset(to, rows.page(index), rows.slot(index)) + head * to.head_stride,
                 is_v ? chunk - kChunksK : chunk);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    kv_cache_expand_entries(const __grid_constant__ NsaiExpandEntries p) {
  begin_kernel();
  expand_entries<Config>(p);
}
