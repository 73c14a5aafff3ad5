// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// kv_cache_scatter_entries: copies phi's results, K and V, from the rows of its GEMMs into the KV
// cache.
//
//   k [rows, Hkv, Dk], v [rows, Hkv, Dv] contiguous -> entries [pages, P/d, Hkv, D]
//
// Grid: x = rows, one CTA each; rows that hold no entry write nothing. A thread moves 16 bytes at a
// time. To a cache of codes (core/e4m3.cuh) it writes code(x / scale).
//
// Config: Element, kHeadDimQk, kHeadDimV, kBlock (l), kStride (d), kPageSize (P; 0: no pages),
// kEntryCodes (entries are codes), kThreads, kMinBlocks.
#pragma once
#include "core/e4m3.cuh"
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/cache_rows.cuh"
#include "data/new_entries.cuh"
#include "data/source.cuh"
#include "params/kv_cache.h"

template <class C> NSAI_DEVICE void scatter(const NsaiScatterEntries &p) {
  constexpr int kChunksK = C::kHeadDimQk / 8, kChunks = kChunksK + C::kHeadDimV / 8;
  const int row = blockIdx.x;
  const NewEntry entry = find_new_entry<C::kBlock, C::kStride>(p.batch, p.slot_mapping, row);
  if (!entry.exists) return;
  const auto lists = find_rows<C::kPageSize / C::kStride>(p.batch, entry.s, 0);
  const int page = lists.page(entry.index), slot = lists.slot(entry.index);
  for (int i = threadIdx.x; i < p.kv_heads * kChunks; i += C::kThreads) {
    const int head = i / kChunks, chunk = i % kChunks;
    const bool is_k = chunk < kChunksK;
    const int column = (is_k ? chunk : chunk - kChunksK) * 8,
              dim = is_k ? C::kHeadDimQk : C::kHeadDimV;
    const u16 *from =
        (const u16 *)(is_k ? p.k : p.v) + ((long long)row * p.kv_heads + head) * dim + column;
    const NsaiCacheTensor &x = is_k ? p.entries.k : p.entries.v;
    if constexpr (C::kEntryCodes) {
      const NsaiPairScales &scales = ((const NsaiCodedScatterEntries &)p).scales;
      u16 *to = (u16 *)x.data + row_offset(x, page, slot) + head * x.head_stride + column / 2;
      *(uint2 *)to = pack_eight<typename C::Element>(*(const Chunk *)from,
                                                     scale_of(is_k ? scales.k : scales.v, head));
    } else {
      *(Chunk *)((u16 *)x.data + row_offset(x, page, slot) + head * x.head_stride + column) =
          *(const Chunk *)from;
    }
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    kv_cache_scatter_entries(
        const __grid_constant__
            ParamsOf<Config::kEntryCodes, NsaiScatterEntries, NsaiCodedScatterEntries>::Type p) {
  begin_kernel();
  scatter<Config>((const NsaiScatterEntries &)p);
}
