// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What the kernels of a decode step agree on. They run one behind the other:
//
//   decode_split_kv_compressed     compressed branch, split over keys; per selection block and row what its scores
//                   weigh
//   decode_split_kv_select   importance and top-n
//   decode_split_kv_attend   window and selected branch, split over keys; of a caller's lists, which data_sort_blocks or
//                   data_sort_ranges has sorted in decode_split_kv_select's place
//   decode_split_kv_combine  parts into branches, gates, outputs
//
// Tiles: kScanRows rows are kTileTokens tokens of one sequence times kGroupPadded heads, token-major, so
// that drafts read compressed keys, windows and what they choose alike once. Every sequence has as many tile
// numbers or, where that would be more in all, they follow from cu_q as in data/sequence.cuh.
//
// Keys of decode_split_kv_compressed come in quanta: whole steps of 16 keys and whole selection blocks' worth. A team of
// warps takes a run of quanta, as long for every team of the unit. Importance of selection block j, the
// keys of which are r = l'/d from j * r on, and the last m - 1 ones before, m = l/d:
//
//   I[j] = sum over heads of 2^-lse * (pooled[j] + spill of block j - 1)
//
// A run carries the spill from block to block; what is left at its end goes to `spills`, and the reader
// adds it to the first block behind the run. Values are stored as log2, which needs no reference beside.
//
// Config: kGroup, kGroupPadded, kBlock (l), kStride (d), kSelectBlock (l'), kScanRows, kWarps.
#pragma once
#include "core/copy.cuh"
#include "core/types.cuh"
#include "data/cache_rows.cuh"
#include "params/kv_cache.h"

// Bits of NsaiDecode::branches, and indices of its outputs. (C::kWindow is another: tokens.)
constexpr int kCompressed = NSAI_BRANCH_COMPRESSED, kSelected = NSAI_BRANCH_SELECTED,
              kWindow = NSAI_BRANCH_WINDOW;

constexpr int kStepKeys = 16; // keys of one step of a team: K of one mma of P V

constexpr NSAI_DEVICE int greatest_divisor(int a, int b) {
  return b ? greatest_divisor(b, a % b) : a;
}

// a / b rounded up, given 1 / b; of what fits 22 bits, the quotient 17.
NSAI_DEVICE int quotient_up(int a, int b, float inverse) {
  return (int)(((float)(a + b) - 0.5f) * inverse);
}

template <class C> struct Decode {
  static constexpr int kRatio = C::kSelectBlock / C::kStride; // r
  static constexpr int kOverlap = C::kBlock / C::kStride;     // m
  static constexpr int kTileTokens = C::kScanRows / C::kGroupPadded;
  static constexpr int kConsumerGroups =
      C::kWarps / (C::kScanRows / 16); // of decode_split_kv_compressed's CTA
  static constexpr int kSplitGranularity =
      kRatio / greatest_divisor(kStepKeys, kRatio) * kStepKeys; // keys
  static constexpr int kGranuleBlocks = kSplitGranularity / kRatio;
  // Of a warp's row `group + 8 * r`, where both rows of a lane are one token's: the same.
  static constexpr NSAI_DEVICE int half(int r) { return C::kGroupPadded % 16 ? r : 0; }
  static_assert(C::kScanRows % 16 == 0 && C::kScanRows % C::kGroupPadded == 0,
                "a tile holds whole tokens");
  static_assert(kOverlap <= kRatio, "a compressed block lies in two selection blocks at most");
};

// O of these leaves a thread few registers.
template <class C> constexpr bool kWideHeads = C::kHeadDimQk + C::kHeadDimV > 256;

// ---- tiles

struct DecodeTile {
  Sequence seq;
  int s;
  int first_query; // of the tile; the tile is empty when >= seq.q_len
};

// The first tile of sequence s.
template <int kTokens> NSAI_DEVICE int first_tile(const NsaiDecode &p, int s) {
  if (p.seq_tiles) return s * p.seq_tiles;
  return kTokens == 1 ? p.batch.cu_q[s] : p.batch.cu_q[s] / kTokens + s;
}

template <int kTokens> NSAI_DEVICE DecodeTile find_decode_tile(const NsaiDecode &p, int tile) {
  const int s = p.seq_tiles ? tile / p.seq_tiles
                            : find_sequence(p.batch.num_seqs, tile,
                                            [&](int i) { return first_tile<kTokens>(p, i); });
  return DecodeTile{ load_cached_sequence(p.batch, s), s,
                     (tile - first_tile<kTokens>(p, s)) * kTokens };
}

// ---- one token

struct DecodeToken {
  int s, query;
  int position; // negative: it sees nothing
  bool present; // else the row lies behind all sequences
  bool alone;   // the sequence's only one of the step
};

// Row `token` of q, which belongs to sequence s; `seq`: that, loaded.
NSAI_DEVICE DecodeToken find_token(const Sequence &seq, int token, int s) {
  const int query = token - seq.q_begin;
  const bool present = 0 <= query && query < seq.q_len;
  return DecodeToken{ s, query, present ? seq.position(query) : -1, present, seq.q_len == 1 };
}
NSAI_DEVICE DecodeToken find_token(const NsaiCacheBatch &batch, int token) {
  const int s = find_cached_sequence(batch, token);
  return find_token(load_cached_sequence(batch, s), token, s);
}

// The list of row `row` of q and a KV head [n], or of ranges [n, 2].
NSAI_DEVICE int *list_of(const NsaiDecode &p, int row, int group) {
  return p.idx + row * p.idx_token_stride + group * p.idx_head_stride;
}

// By one warp, from shared memory.
template <class C>
NSAI_DEVICE void store_list(const NsaiDecode &p, const int *sList, int row, int group, int lane) {
  int *gOut = list_of(p, row, group); // [n]
  for (int i = lane; i < C::kSelectCount; i += 32) gOut[i] = sList[i];
}

// Where decode_split_kv_compressed keeps a token's heads.
struct ScanRow {
  int work_item;
  int row; // of head 0 of the group
};

template <class C>
NSAI_DEVICE ScanRow find_scan_row(const NsaiDecode &p, const DecodeToken &token, int group) {
  constexpr int kTokens = Decode<C>::kTileTokens;
  int number =
      token.query / kTokens; // of more tokens than the plan's sequences have, whose is another's
  if (p.seq_tiles) number = min(number, p.seq_tiles - 1);
  const int tile = first_tile<kTokens>(p, token.s) + number;
  return ScanRow{ tile * p.kv_heads + group, token.query % kTokens * C::kGroupPadded };
}

// A row's place among those of all parts.
NSAI_DEVICE long long split_row(const NsaiDecodeSplits &x, int rows, long long work_item, int split,
                                int row) {
  return (work_item * x.splits + split) * rows + row;
}

// What was pooled for row `row` of a unit: of 16 rows all blocks lie together, so that a warp of decode_split_kv_compressed
// writes whole lines.
constexpr int kPoolRows = 16;
template <class C> NSAI_DEVICE float *pooled_row(const NsaiDecode &p, int work_item, int row) {
  const long long tile = (long long)work_item * (C::kScanRows / kPoolRows) + row / kPoolRows;
  return p.pooled + tile * p.pooled_blocks * kPoolRows + row % kPoolRows;
}

// What was pooled for 16 rows is read for the last time, and need not go to memory: whole lines of it alone,
// of which the CTA takes its part. Every thread takes part. (H200, 64k tokens: 64 sequences 190 -> 184 us,
// 256 777 -> 710 us.)
template <class C>
NSAI_DEVICE void discard_pooled(const float *gPooled, int blocks, int split = 0, int splits = 1) {
  const u64 begin = ((u64)gPooled + 127) / 128 * 128;
  const u64 end = (u64)(gPooled + (long long)blocks * kPoolRows) / 128 * 128;
  for (u64 line = begin + (split * C::kThreads + threadIdx.x) * 128; line < end;
       line += splits * C::kThreads * 128)
    discard_line((const void *)line);
}

// ---- keys of a tile

// Raw keys of `count` listed blocks, the last of which, number `last`, may hold tokens behind position t.
template <class C> NSAI_DEVICE int listed_keys(int count, int last, int t) {
  return (count - 1) * C::kSelectBlock + min(C::kSelectBlock, t + 1 - last * C::kSelectBlock);
}

// Compressed blocks that position t sees.
template <class C> NSAI_DEVICE int visible_entries(int t) {
  return block_count<C::kBlock, C::kStride>(t + 1);
}

// How a tile's keys fall to the teams of its unit.
struct ConsumerGroupRuns {
  int granules; // in all
  int each;     // of a run
};

// `visible`: entries that the tile's last token sees.
template <class C> NSAI_DEVICE ConsumerGroupRuns find_runs(const NsaiDecode &p, int visible) {
  const int granules = ceil_div(visible, Decode<C>::kSplitGranularity);
  return ConsumerGroupRuns{ granules,
                            max(max(p.scan.min_granules, 1),
                                ceil_div(granules, p.scan.splits * Decode<C>::kConsumerGroups)) };
}

// The last token of the tile that holds query `query`, as a position.
template <class C> NSAI_DEVICE int last_position(const Sequence &seq, int query) {
  constexpr int kTokens = Decode<C>::kTileTokens;
  return seq.position(min(query / kTokens * kTokens + kTokens, seq.q_len) - 1);
}
