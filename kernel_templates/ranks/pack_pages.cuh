// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// ranks_pack_pages: what a prefill over a cache on several ranks needs before and behind the gather of raw
// pages. Of this rank's units, in places that do not depend on lengths (runtime/plan/ranks_memory.h):
//
//   to[t][s, u / ranks * unit_pages + i mod unit_pages] = page i of sequence s, u = i / unit_pages
//
// And of its pieces j, sequences of a batch over the pages of all ranks:
//
//   kv_len[j]     = tokens of the sequence up to the piece's end
//   pages[j, i]   = where page i lies among those of all ranks
//   entries[j, i] = the sequence's own
//
// Pages behind kv_len are not written, nor read by anyone. Bytes are copied: elements or codes.
//
//   from [pages, P, Hkv, D] -> to [num_seqs, rank_pages, P, Hkv, D] contiguous
//
// Grid: x = num_seqs * rank_pages, a page of all tensors each, and the pieces behind them. Bound by HBM.
//
// Config: kPageSize (P), kRowChunksQk and kRowChunksV (16 bytes each, of a row of K and V), kThreads.
#pragma once
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/cache_rows.cuh"
#include "params/ranks.h"

// Tokens of a sequence that are stored.
NSAI_DEVICE int stored_tokens(const NsaiPackPages &p, int s) {
  return min(max(p.batch.kv_len[s], 0), p.batch.max_kv_len);
}

template <class Config, int kRowChunks>
NSAI_DEVICE void copy_page(const NsaiCacheTensor &from, int page, char *to, int heads) {
  constexpr int kUnroll = 4; // loads in flight per thread
  const u16 *rows = (const u16 *)from.data + page * from.page_stride;
  Chunk *out = (Chunk *)to;
  const int chunks = Config::kPageSize * heads * kRowChunks;
  for (int first = threadIdx.x; first < chunks; first += kUnroll * Config::kThreads) {
    Chunk x[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int i = first + k * Config::kThreads, row = i / kRowChunks;
      if (i < chunks)
        x[k] = *(
            (const Chunk *)(rows + row / heads * from.row_stride + row % heads * from.head_stride) +
            i % kRowChunks);
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      if (first + k * Config::kThreads < chunks) out[first + k * Config::kThreads] = x[k];
  }
}

template <class Config> NSAI_DEVICE void pack_page(const NsaiPackPages &p, int n) {
  constexpr int kRowBytes = 16;
  const int s = n / p.rank_pages, at = n % p.rank_pages;
  const int i = (at / p.unit_pages * p.ranks + p.rank) * p.unit_pages + at % p.unit_pages;
  if (i >= (stored_tokens(p, s) + Config::kPageSize - 1) / Config::kPageSize) return;
  const int page = p.batch.pages[s * p.batch.page_list_stride + i];
  const long long rows = (long long)n * Config::kPageSize * p.kv_heads;
#pragma unroll
  for (int t = 0; t < NSAI_PACKED_TENSORS; t += 2) {
    if (!p.to[t]) continue;
    copy_page<Config, Config::kRowChunksQk>(p.from[t], page,
                                            p.to[t] + rows * Config::kRowChunksQk * kRowBytes,
                                            p.kv_heads);
    copy_page<Config, Config::kRowChunksV>(p.from[t + 1], page,
                                           p.to[t + 1] + rows * Config::kRowChunksV * kRowBytes,
                                           p.kv_heads);
  }
}

template <class Config> NSAI_DEVICE void write_piece(const NsaiPackPages &p, int j) {
  const int s = p.sequence[j], end = max(stored_tokens(p, s) - p.behind[j], 0);
  if (threadIdx.x == 0) {
    p.kv_len[j] = end;
    p.slots[j] = p.batch.slots ? p.batch.slots[s] : s;
  }
  const int pages = (end + Config::kPageSize - 1) / Config::kPageSize;
  for (int i = threadIdx.x; i < pages; i += Config::kThreads) {
    const int unit = i / p.unit_pages, row = unit % p.ranks * p.batch.num_seqs + s;
    p.pages[(long long)j * p.columns + i] =
        row * p.rank_pages + unit / p.ranks * p.unit_pages + i % p.unit_pages;
    if (p.entry_pages)
      p.entries[(long long)j * p.columns + i] = p.entry_pages[s * p.entry_page_stride + i];
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    ranks_pack_pages(const __grid_constant__ NsaiPackPages p) {
  begin_kernel();
  const int pages = p.batch.num_seqs * p.rank_pages, n = blockIdx.x;
  if (n < pages)
    pack_page<Config>(p, n);
  else
    write_piece<Config>(p, n - pages);
}
