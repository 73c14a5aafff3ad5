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

template <class C> NSAI_DEVICE void expand_entries(const NsaiExpandEntries &p) {
  constexpr int kEntries = NSAI_EXPANDED_AT_ONCE; // of a CTA
  constexpr int kChunksK = C::kHeadDimQk / 16, kChunks = kChunksK + C::kHeadDimV / 16;
  constexpr int kUnroll = 4; // chunks in flight per thread

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

  if (first >= end) return;

  // ---- convert
  // Chunk i of the CTA: of a row of K, or of V. Those behind the last entry repeat chunks of it.
  struct Place {
    bool exists, is_v;
    int index, chunk; // the entry's index; its chunk of codes, which becomes two
  };
  auto place = [&](int i) {
    const int block = first + i / kChunks, chunk = i % kChunks;
    const bool is_v = chunk >= kChunksK;
    return Place{ block < end, is_v, entry_index<C::kBlock, C::kStride>(min(block, end - 1)),
                  is_v ? chunk - kChunksK : chunk };
  };
#pragma unroll 1
  for (int begin = threadIdx.x; begin < kEntries * kChunks; begin += kUnroll * C::kThreads) {
    int page[kUnroll];
    Chunk codes[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) page[i] = lists.page(place(begin + i * C::kThreads).index);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const Place at = place(begin + i * C::kThreads);
      const NsaiCacheTensor &x = at.is_v ? p.entries.v : p.entries.k;
      const u16 *gX = (const u16 *)x.data + row_offset(x, page[i], lists.slot(at.index));
      codes[i] = ((const Chunk *)(gX + head * x.head_stride))[at.chunk];
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const Place at = place(begin + i * C::kThreads);
      const NsaiCacheTensor &x = at.is_v ? p.to.v : p.to.k;
      if (!at.exists || begin + i * C::kThreads >= kEntries * kChunks) continue;
      u16 *gTo = (u16 *)x.data + row_offset(x, rows.page(at.index), rows.slot(at.index));
      Chunk *gOut = (Chunk *)(gTo + head * x.head_stride) + 2 * at.chunk;
      gOut[0] = expand_eight<Fp16>(make_uint2(codes[i].w[0], codes[i].w[1]));
      gOut[1] = expand_eight<Fp16>(make_uint2(codes[i].w[2], codes[i].w[3]));
    }
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    kv_cache_expand_entries(const __grid_constant__ NsaiExpandEntries p) {
  begin_kernel();
  expand_entries<Config>(p);
}
