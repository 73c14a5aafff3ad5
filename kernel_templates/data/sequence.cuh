// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Which sequence a tile of queries or a row of compressed storage belongs to, from cu_seqlens
// alone.
//
// Tiles of T tokens: sequence s owns the tile numbers from cu_q[s] / T + s on. That is room enough,
// since (b / T) - (a / T) + 1 >= ceil((b - a) / T); numbers that are left over are empty. So the
// host launches q_tokens / T + num_seqs tiles and needs no lengths. Compressed storage works the
// same way: sequence s owns the rows from cu_kv[s] / d on, since N(L) <= L / d.
#pragma once
#include "core/types.cuh"
#include "params/attention.h"

struct Sequence {
  int q_begin;  // first row of q, o, lse
  int q_len;    // queries
  int kv_begin; // first row of k, v
  int kv_len;   // keys
  // Position in the sequence of query i.
  NSAI_DEVICE int position(int i) const { return kv_len - q_len + i; }
};

// Rows of q beyond its end and keys beyond the plan's longest sequence do not exist, whatever cu_q and
// cu_kv say.
NSAI_DEVICE Sequence load_sequence(const NsaiSequences &seqs, int s) {
  if (!seqs.cu_q) return Sequence{ 0, seqs.q_tokens, 0, seqs.kv_tokens };
  int q = seqs.cu_q[s], kv = seqs.cu_kv[s];
  return Sequence{ q, min(seqs.cu_q[s + 1], seqs.q_tokens) - q, kv,
                   min(seqs.cu_kv[s + 1] - kv, seqs.max_kv_len) };
}

// The last s in [0, num_seqs) with first(s) <= x, where `first` ascends.
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
  int first_query; // of the tile, within the sequence; the tile is empty when >= seq.q_len
};

// Tile number `tile` of tiles of kTokens tokens.
template <int kTokens> NSAI_DEVICE QueryTile find_query_tile(const NsaiSequences &seqs, int tile) {
  if (!seqs.cu_q) return QueryTile{ 0, load_sequence(seqs, 0), tile * kTokens };
  int s = find_sequence(seqs.num_seqs, tile, [&](int i) { return seqs.cu_q[i] / kTokens + i; });
  return QueryTile{ s, load_sequence(seqs, s), (tile - (seqs.cu_q[s] / kTokens + s)) * kTokens };
}

// First row of sequence s where compressed blocks lie without gaps but those of rounding, whatever
// cu_blocks says of the caller's storage.
template <int kStride> NSAI_DEVICE int packed_block_row(const NsaiSequences &seqs, int s) {
  return seqs.cu_q ? seqs.cu_kv[s] / kStride : 0;
}

// The sequence that row `row` of q belongs to. A row behind the last one's counts as the last one's.
NSAI_DEVICE int find_row_sequence(const NsaiSequences &seqs, int row) {
  return seqs.cu_q ? find_sequence(seqs.num_seqs, row, [&](int i) { return seqs.cu_q[i]; }) : 0;
}

// First row of compressed storage of sequence s. It ends as packed_block_row() does, but a call of that one
// changes the registers of attend_compressed_topn_sm90, which has none to spare.
template <int kStride> NSAI_DEVICE int first_block_row(const NsaiSequences &seqs, int s) {
  if (seqs.cu_blocks) return seqs.cu_blocks[s];
  return seqs.cu_q ? seqs.cu_kv[s] / kStride : 0;
}

// N(len): whole compression blocks of a sequence of `len` tokens.
template <int kBlock, int kStride> NSAI_DEVICE int block_count(int len) {
  return len < kBlock ? 0 : (len - kBlock) / kStride + 1;
}

// A tile of keys, or of compressed blocks, of one sequence; empty when first_key lies beyond its end.
struct KeyTileAt {
  int s; // sequence
  Sequence seq;
  int first_row; // the sequence's, of what the tiles are numbered by
  int first_key; // of the tile, within the sequence
};

// Tile number `tile` of tiles of kKeys, where `first(s)` is the first row of sequence s.
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
