// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Which tokens a CTA of select_importance and select_normalizer has, and how many keys they see.
//
// Config: kGroupPadded, kRows, kBlock, kStride, kProbe, kStep (a decode step); those of
// data/source.cuh.
#pragma once
#include "core/types.cuh"
#include "data/sequence.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

// The parameters of the kernels, and those that are not of a decode step.
template <class C>
using RowParams = CodedParamsOf<C, NsaiImportance, NsaiCachedImportance, NsaiCodedImportance>;
template <class C>
using StepRowParams = typename ParamsOf<C::kStep, RowParams<C>, NsaiStepImportance>::Type;

// The tokens of a CTA, as queries of one sequence: slot x holds query first + x, which is present
// if it lies in [begin, end).
struct TokenTile {
  Sequence seq;
  int s;
  int first, begin, end;
  int out_base; // row of `importance` = out_base + query
  NSAI_DEVICE bool present(int query) const { return begin <= query && query < end; }
};

template <class C, class Params>
NSAI_DEVICE TokenTile find_tokens(const Params &params, int index, int count) {
  const NsaiImportance &p = packed_of(params);
  const auto &seqs = sequences_of(params);
  if constexpr (C::kProbe) {
    int row = p.rows[index];
    int s = find_row_sequence(seqs, row);
    Sequence seq = load_sequence(seqs, s);
    int query = row - seq.q_begin;
    bool present = 0 <= query && query < seq.q_len;
    return TokenTile{ seq, s, query, query, query + present, index - query };
  } else {
    constexpr int kTokens = C::kRows / C::kGroupPadded;
    // Token x lies in tile x / kTokens - 1 or later, whatever the sequence lengths are.
    int skipped = max(0, p.token_begin / kTokens - numbers_tiles_by_sequence(seqs));
    QueryTile tile = find_query_tile<kTokens>(seqs, skipped + count - 1 - index);
    int begin = max(tile.first_query, p.token_begin - tile.seq.q_begin);
    int end = min(min(tile.first_query + kTokens, tile.seq.q_len), p.token_end - tile.seq.q_begin);
    return TokenTile{ tile.seq, tile.s, tile.first_query,
                      begin,    end,    tile.seq.q_begin - p.token_begin };
  }
}

// Number of keys, compressed or coarse, that position t sees.
template <class C> NSAI_DEVICE int visible_blocks(int t) {
  return block_count<C::kBlock, C::kStride>(t + 1);
}
