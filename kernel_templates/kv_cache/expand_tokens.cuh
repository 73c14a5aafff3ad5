// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// kv_cache_expand_tokens: raw tokens of a cache, from codes to elements in the workspace, for the
// prefill kernels of the same call. A tile of queries would convert all keys that it reads, and tiles
// share most of these.
//
//   out[s, g, t, c] = Element(code[token t of sequence s, g, c])   exact, without scales
//
//   codes [pages, P, Hkv, D] or rows or rings -> out [sequences, Hkv, rows, D], for K and V
//
// Rows of the output are positions or, of a ring, positions modulo its length. Of each sequence the
// tokens from `behind` before its first new one on are written: all, or those in the windows of new
// tokens, from a multiple of a window's boxes on, as kernels multiply what stands before a window in
// its first box by 0. In a ring they do not, and older tokens may lie where newer ones belong.
//
// Grid: x = kv_heads * ceil(most tokens of a sequence / kTokens), y = sequences. A thread converts 8
// codes at a time, so that a warp writes whole sectors. Bound by HBM: 64k tokens, 4 heads of 128 and
// 128 columns are 67 MB of codes and 134 MB of elements.
//
// Config: Element, kHeadDimQk, kHeadDimV, kPageRows (tokens of a page; 0: rows or rings), kThreads,
// kMinBlocks.
#pragma once
#include "core/e4m3.cuh"
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/cache_rows.cuh"
#include "params/kv_cache.h"

static_assert(Config::kHeadDimQk % 16 == 0 && Config::kHeadDimV % 16 == 0,
              "a row of codes consists of chunks of 16 bytes");

// The first token of a sequence that is wanted.
NSAI_DEVICE int first_expanded_token(const NsaiExpandTokens &p, const Sequence &seq) {
  const int begin = max(max(seq.kv_len - seq.q_len, 0) - p.behind, 0);
  return p.to.ring ? begin : begin / NSAI_WINDOW_BOX_ROWS * NSAI_WINDOW_BOX_ROWS;
}

template <class C> NSAI_DEVICE void expand_tokens(const NsaiExpandTokens &p) {
  constexpr int kTokens = NSAI_EXPANDED_TOKENS; // of a CTA
  constexpr int kPiecesK = C::kHeadDimQk / 8, kPieces = kPiecesK + C::kHeadDimV / 8;
  constexpr int kUnroll = 8; // loads in flight per thread

  // ---- coordinates
  const int s = blockIdx.y, head = blockIdx.x % p.kv_heads;
  const Sequence seq = load_cached_sequence(p.batch, s);
  const int first = first_expanded_token(p, seq) + blockIdx.x / p.kv_heads * kTokens;
  const int end = min(seq.kv_len, first + kTokens);
  const auto from = find_rows<C::kPageRows>(p.batch, s, p.from.ring);
  const CachedRows<0> to = { nullptr, s, p.to.ring };
  if (first >= end) return;

  // ---- convert
  // Piece i of the CTA: of a token's row of K, or of V. Those behind the last token repeat pieces of it.
  struct Place {
    bool exists, is_v;
    int token, piece; // eight codes of the row
  };
  auto place = [&](int i) {
    const int token = first + i / kPieces, piece = i % kPieces;
    const bool is_v = piece >= kPiecesK;
    return Place{ token < end, is_v, min(token, end - 1), is_v ? piece - kPiecesK : piece };
  };
#pragma unroll 1
  for (int begin = threadIdx.x; begin < kTokens * kPieces; begin += kUnroll * C::kThreads) {
    int page[kUnroll];
    uint2 codes[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) page[i] = from.page(place(begin + i * C::kThreads).token);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const Place at = place(begin + i * C::kThreads);
      const NsaiCacheTensor &x = at.is_v ? p.from.v : p.from.k;
      const u16 *gX = (const u16 *)x.data + row_offset(x, page[i], from.slot(at.token));
      codes[i] = ((const uint2 *)(gX + head * x.head_stride))[at.piece];
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const Place at = place(begin + i * C::kThreads);
      const NsaiCacheTensor &x = at.is_v ? p.to.v : p.to.k;
      if (!at.exists || begin + i * C::kThreads >= kTokens * kPieces) continue;
      u16 *gTo = (u16 *)x.data + row_offset(x, to.page(at.token), to.slot(at.token));
      ((Chunk *)(gTo + head * x.head_stride))[at.piece] =
          expand_eight<typename C::Element>(codes[i]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    kv_cache_expand_tokens(const __grid_constant__ NsaiExpandTokens p) {
  begin_kernel();
  expand_tokens<Config>(p);
}
