// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Maps tiles of queries and rows of compressed storage to sequences, from cu_seqlens only.
//
// Tiles of T tokens: sequence s owns the tile numbers from cu_q[s] / T + s on. That leaves enough
// room, because (b / T) - (a / T) + 1 >= ceil((b - a) / T); left-over numbers are empty tiles. The
// host can thus launch q_tokens / T + num_seqs tiles without knowing the lengths. Compressed
// storage works the same way: sequence s owns the rows from cu_kv[s] / d on, because N(L) <= L / d.
#pragma once
#include "core/types.cuh"
#include "params/attention.h"

struct Sequence {
  int q_begin;  // first row of q, o, lse
  int q_len;    // number of queries
  int kv_begin; // first row of k, v
  int kv_len;   // number of keys
  // Position of query i in the sequence.
  NSAI_DEVICE int position(int i) const { return kv_len - q_len + i; }
};

// Loads sequence s. Rows of q beyond the last and keys beyond the plan's longest sequence do not
// exist, whatever cu_q and cu_kv say.
NSAI_DEVICE Sequence load_sequence(const NsaiSequences &seqs, int s) {
  if (!seqs.cu_q) return Sequence{ 0, seqs.q_tokens, 0, seqs.kv_tokens };
  int q = seqs.cu_q[s], kv = seqs.cu_kv[s];
  return Sequence{ q, min(seqs.cu_q[s + 1], seqs.q_tokens) - q, kv,
                   min(seqs.cu_kv[s + 1] - kv, seqs.max_kv_len) };
}

// The last s in [0, num_seqs) with first(s) <= x, where `first` is increasing.
template <class First> NSAI_DEVICE int find_sequence(int num_seqs, int x, First first) {
  int low = 0, high = num_seqs;
  while (high - low > 1) {
    int mid = (low + high) >> 1;
    if (first(mid) <= x)
      low = mid;
    else
      high = mid;
  }
  return low;
}

struct QueryTile {
  int s; // sequence
  Sequence seq;
  int first_query; // first query of the tile; the tile is empty if it is >= seq.q_len
};

// The tile with number `tile`, for tiles of kTokens tokens.
template <int kTokens> NSAI_DEVICE QueryTile find_query_tile(const NsaiSequences &seqs, int tile) {
  if (!seqs.cu_q) return QueryTile{ 0, load_sequence(seqs, 0), tile * kTokens };
  int s = find_sequence(seqs.num_seqs, tile, [&](int i) { return seqs.cu_q[i] / kTokens + i; });
  return QueryTile{ s, load_sequence(seqs, s), (tile - (seqs.cu_q[s] / kTokens + s)) * kTokens };
}

// First row of sequence s in storage without gaps (except those of rounding), whatever cu_cmp says
// about the caller's storage.
template <int kStride> NSAI_DEVICE int packed_block_row(const NsaiSequences &seqs, int s) {
  return seqs.cu_q ? seqs.cu_kv[s] / kStride : 0;
}

// The sequence of row `row` of q; the last sequence for rows behind it.
NSAI_DEVICE int find_row_sequence(const NsaiSequences &seqs, int row) {
  return seqs.cu_q ? find_sequence(seqs.num_seqs, row, [&](int i) { return seqs.cu_q[i]; }) : 0;
}

// First row of compressed storage of sequence s. It ends like packed_block_row(), but calling that
// function changes the register allocation of attend_compressed_topn_sm90, which has none to spare.
template <int kStride> NSAI_DEVICE int first_block_row(const NsaiSequences &seqs, int s) {
  if (seqs.cu_cmp) return seqs.cu_cmp[s];
  return seqs.cu_q ? seqs.cu_kv[s] / kStride : 0;
}

// N(len): number of complete compressed blocks of a sequence of `len` tokens.
template <int kBlock, int kStride> NSAI_DEVICE int block_count(int len) {
  return len < kBlock ? 0 : (len - kBlock) / kStride + 1;
}

// A tile of keys, or of compressed blocks, of one sequence; empty if first_key lies beyond its end.
struct KeyTileAt {
  int s; // sequence
  Sequence seq;
  int first_row; // first row of the sequence in the rows that the tiles number
  int first_key; // first key of the tile, within the sequence
};

// The tile with number `tile`, for tiles of kKeys keys; `first(s)` is the first row of sequence s.
template <int kKeys, class First>
NSAI_DEVICE KeyTileAt find_tile_of_keys(const NsaiSequences &seqs, int tile, First first) {
  int s = seqs.cu_q
              ? find_sequence(seqs.num_seqs, tile, [&](int i) { return first(i) / kKeys + i; })
              : 0;
  int row = first(s);
  return KeyTileAt{ s, load_sequence(seqs, s), row, (tile - (row / kKeys + s)) * kKeys };
}

template <int kKeys> NSAI_DEVICE KeyTileAt find_key_tile(const NsaiSequences &seqs, int tile) {
  return find_tile_of_keys<kKeys>(seqs, tile, [&](int s) { return seqs.cu_q ? seqs.cu_kv[s] : 0; });
}

template <int kKeys, int kStride>
NSAI_DEVICE KeyTileAt find_block_tile(const NsaiSequences &seqs, int tile) {
  return find_tile_of_keys<kKeys>(seqs, tile,
                                  [&](int s) { return packed_block_row<kStride>(seqs, s); });
}
