// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Index keys of select_index_scores in codes (core/e4m3.cuh): tiles of words of two codes, which are
// copied like elements, half as many, and become fp16 where products take them
// (core/code_fragments.cuh). Q is fp16 as well, in units of a power of two for each 16 rows.
//
// Config: those of select/query_rows.cuh.
#pragma once
#include "core/code_fragments.cuh"
#include "core/e4m3.cuh"
#include "core/tile.cuh"
#include "core/types.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"
#include "select/importance_keys.cuh"
#include "select/query_rows.cuh"

// How keys are copied: in codes as words.
template <class C, bool kCodes = kReadsCodes<C>> struct CopiedKeysOf { using Type = C; };
template <class C> struct CopiedKeysOf<C, true> {
  struct Type : C {
    static constexpr int kHeadDimQk = C::kHeadDimQk / 2;
    static constexpr bool kCodes = false;
  };
  static_assert(C::kHeadDimQk % 16 == 0, "a row of codes consists of chunks of 16 bytes");
};
template <class C> using CopiedKeys = typename CopiedKeysOf<C>::Type;

// The elements of products: fp16, to which a code is converted by one instruction. Wide rows of Q leave no
// registers for their own conversion to it, and those of bf16 stay what they are.
template <class C, bool kWide = (C::kHeadDimQk > 128)> struct ScoreElementOf { using Type = Fp16; };
template <class C> struct ScoreElementOf<C, true> { using Type = typename C::Element; };
template <class C> using ScoreElement = typename ScoreElementOf<C>::Type;

// What the products of a row's elements are multiplied by, for each of a warp's two m16 tiles of rows.
template <class C, bool kCodes = kReadsCodes<C>> struct ScoreScale {
  const NsaiImportance &p;
  NSAI_DEVICE float of(int) const { return p.scale; }
};
template <class C> struct ScoreScale<C, true> {
  float tile[2];
  NSAI_DEVICE float of(int i) const { return tile[i]; }
};

// Loads the four rows of a thread as Q fragments, in the order of codes; zeros for padding heads and absent
// tokens. All lanes take part.
template <class C>
NSAI_DEVICE ScoreScale<C> load_code_queries(const NsaiCodedImportance &params,
                                            const TokenTile &tokens, int group, int warp, int lane,
                                            u32 (&rQ)[2][RowTraits<C>::kSteps][4]) {
  const NsaiImportance &p = packed_of(params);
  const float scale = p.scale * scale_of(params.k_scale, 0);
  ScoreScale<C> out;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 32 * warp + 16 * tile + 8 * half + lane / 4;
      const int head = row % C::kGroupPadded, query = tokens.first + row / C::kGroupPadded;
      const bool present = head < C::kGroup && tokens.present(query);
      const u16 *from = (const u16 *)p.q.data; // [T, Hi, Di]
      if (present)
        from += (tokens.seq.q_begin + query) * p.q.token_stride +
                (group * C::kGroup + head) * p.q.head_stride;
      load_code_query(rQ[tile], from, present, half);
    }
    out.tile[tile] = scale;
    if constexpr (ScoreElement<C>::kPrecision != C::Element::kPrecision)
      out.tile[tile] *= convert_queries<typename C::Element>(rQ[tile]);
  }
  return out;
}

// S = Q K^T of the warp's 32 rows and the 32 keys that begin at shared address `keys`.
template <class C>
NSAI_DEVICE void code_scores(float (&rS)[2][RowTraits<C>::kSliceTiles][4],
                             const u32 (&rQ)[2][RowTraits<C>::kSteps][4], u32 keys, int lane) {
  using Words = KeyTileOf<CopiedKeys<C>>;
  // For ldmatrix: matrices keys 0, 8, 16, 24. A chunk has the codes of a k16 step, of which a lane gets four
  // adjacent ones of a key: its part of B in the order of core/code_fragments.cuh.
  const u32 at = keys + Words::offset(lane, 0);
  clear(rS);
#pragma unroll
  for (int k = 0; k < RowTraits<C>::kSteps; ++k) {
    u32 codes[RowTraits<C>::kSliceTiles]; // 32 keys x 16 columns
    ldmatrix_x4(codes, Words::along(at, k));
#pragma unroll
    for (int n = 0; n < RowTraits<C>::kSliceTiles; ++n) {
      const uint2 rK = expand_codes(ScoreElement<C>(), codes[n]); // 8 keys x 16 columns
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
        mma_m16n8k16(ScoreElement<C>(), rS[tile][n], rQ[tile][k], rK.x, rK.y);
    }
  }
}
