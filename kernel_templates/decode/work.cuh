// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What the kernels of a split-KV decode step agree on. They run in this order:
//
//   decode_split_kv_compressed  compressed branch, split over keys; pools probabilities per
//                               selection block and row
//   decode_split_kv_select      block importance and top-n; for a caller's lists data_sort_blocks
//                               or data_sort_ranges takes its place
//   decode_split_kv_attend      window and selected branch, split over keys
//   decode_split_kv_combine     splits into branches, gates, outputs
//
// Over ranks (Config::kRanks) decode_split_kv_attend takes the selected blocks whose raw tokens this rank
// holds, and decode_split_kv_partial combines their splits. An exchange brings the ranks' results together,
// and decode_split_kv_combine takes these for the selected branch.
//
// Tiles: kScanRows rows are kTileTokens tokens of one sequence times kGroupPadded heads,
// token-major. Drafts of one sequence thus read compressed keys, windows and blocks that they have
// in common only once. Every sequence has the same number of tiles (seq_tiles) or, if that would
// give more tiles in total, tile numbers follow from cu_q as in data/sequence.cuh.
//
// The keys of decode_split_kv_compressed come in granules: the smallest number of keys that is a
// multiple of both 16 (one step) and r (one selection block). A consumer group takes a run of
// granules, of equal length for all groups of the work item. Selection block j covers r = l'/d
// compressed keys from j * r on, and the last m - 1 keys before them, where m = l/d. Its importance
// is
//
//   I[j] = sum over heads of 2^-lse * (pooled[j] + carry of block j - 1)
//
// where the carry is what the keys of block j - 1 contribute to block j. Within a run it passes
// from block to block; the carry at the end of a run is stored in `carries`, and the reader adds it
// to the first block of the next run. Values are stored as log2, so they need no separate
// reference.
//
// Config: kGroup, kGroupPadded, kBlock (l), kStride (d), kSelectBlock (l'), kScanRows, kWarps.
#pragma once
#include "core/copy.cuh"
#include "core/e4m3.cuh"
#include "core/types.cuh"
#include "data/cache_rows.cuh"
#include "data/source.cuh"
#include "params/kv_cache.h"

// Bits of NsaiDecode::branches, and indices of its outputs. (C::kWindow is something else: the
// window's tokens.)
constexpr int kCompressed = NSAI_BRANCH_COMPRESSED, kSelected = NSAI_BRANCH_SELECTED,
              kWindow = NSAI_BRANCH_WINDOW;

constexpr int kStepKeys = 16; // keys per step of a consumer group: K of one mma of P V

constexpr NSAI_DEVICE int greatest_divisor(int a, int b) {
  return b ? greatest_divisor(b, a % b) : a;
}

// a / b rounded up, given 1 / b. Exact if a + b fits into 22 bits and the quotient into 17.
NSAI_DEVICE int quotient_up(int a, int b, float inverse) {
  return (int)(((float)(a + b) - 0.5f) * inverse);
}

template <class C> struct Decode {
  static constexpr int kRatio = C::kSelectBlock / C::kStride; // r
  static constexpr int kOverlap = C::kBlock / C::kStride;     // m
  static constexpr int kTileTokens = C::kScanRows / C::kGroupPadded;
  static constexpr int kConsumerGroups =
      C::kWarps / (C::kScanRows / 16); // of decode_split_kv_compressed
  static constexpr int kSplitGranularity =
      kRatio / greatest_divisor(kStepKeys, kRatio) * kStepKeys; // keys of a granule
  static constexpr int kGranuleBlocks = kSplitGranularity / kRatio;
  // Index of a lane's row `group + 8 * r` where per-token values are stored: 0 if both rows belong
  // to one token.
  static constexpr NSAI_DEVICE int half(int r) { return C::kGroupPadded % 16 ? r : 0; }
  static_assert(C::kScanRows % 16 == 0 && C::kScanRows % C::kGroupPadded == 0,
                "a tile holds whole tokens");
  static_assert(kOverlap <= kRatio, "a compressed block lies in at most two selection blocks");
};

// O of such heads leaves a thread few registers.
template <class C> constexpr bool kWideHeads = C::kHeadDimQk + C::kHeadDimV > 256;

// ---- scales of a cache in codes

// A kernel with codes takes an NsaiCodedDecode, which begins with an NsaiDecode.

// The scales of branch `b`. Scores are scaled with the softmax, values when O is complete.
NSAI_DEVICE float key_scale(const NsaiDecode &p, int b, int group) {
  return scale_of(((const NsaiCodedDecode &)p).scales[b].k, group);
}
NSAI_DEVICE float value_scale(const NsaiDecode &p, int b, int group) {
  return scale_of(((const NsaiCodedDecode &)p).scales[b].v, group);
}

// The softmax scale of branch `b`; kCoded: its keys are codes.
template <bool kCoded> NSAI_DEVICE float branch_scale_log2(const NsaiDecode &p, int b, int group) {
  if constexpr (kCoded) return p.scale_log2 * key_scale(p, b, group);
  return p.scale_log2;
}

// The parameters of a kernel that reads codes if kCodes; and, over ranks, those that it adds.
template <class C, bool kCodes>
using DecodeParams =
    typename ParamsOf<kOverRanks<C>, typename ParamsOf<kCodes, NsaiDecode, NsaiCodedDecode>::Type,
                      NsaiRanksDecode>::Type;
template <class C> NSAI_DEVICE const NsaiRanksDecode &over_ranks(const NsaiDecode &p) {
  static_assert(kOverRanks<C>, "the kernel takes an NsaiRanksDecode");
  return (const NsaiRanksDecode &)p;
}

// Kernels whose stages hold the keys of all branches in turn: whether raw K and V are codes, beside
// entries that are elements.
template <class C> constexpr bool kRawCodesAlone = C::kRawCodes && !C::kEntryCodes;
template <class C> NSAI_DEVICE float stage_scale_log2(const NsaiDecode &p, int b, int group) {
  static_assert(C::kRawCodes || !C::kEntryCodes, "entries are codes beside raw codes alone");
  if (b == kCompressed) return branch_scale_log2<(bool)C::kEntryCodes>(p, b, group);
  return branch_scale_log2<(bool)C::kRawCodes>(p, b, group);
}

// ---- tiles

struct DecodeTile {
  Sequence seq;
  int s;
  int first_query; // first query; the tile is empty if it is >= seq.q_len
};

// Number of the first tile of sequence s.
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
  int position; // negative: it sees no key
  bool present; // false: the row lies behind all sequences
  bool alone;   // the sequence has no other token in this step
};

// Row `token` of q, which belongs to the loaded sequence `seq`, number s.
NSAI_DEVICE DecodeToken find_token(const Sequence &seq, int token, int s) {
  const int query = token - seq.q_begin;
  const bool present = 0 <= query && query < seq.q_len;
  return DecodeToken{ s, query, present ? seq.position(query) : -1, present, seq.q_len == 1 };
}
NSAI_DEVICE DecodeToken find_token(const NsaiCacheBatch &batch, int token) {
  const int s = find_cached_sequence(batch, token);
  return find_token(load_cached_sequence(batch, s), token, s);
}

// The list [n] (or [n, 2] for ranges) of row `row` of q and a KV head.
NSAI_DEVICE int *list_of(const NsaiDecode &p, int row, int group) {
  return p.idx + row * p.idx_token_stride + group * p.idx_head_stride;
}

// Copies a list from shared memory to idx. One warp.
template <class C>
NSAI_DEVICE void store_list(const NsaiDecode &p, const int *sList, int row, int group, int lane) {
  int *gOut = list_of(p, row, group); // [n]
  for (int i = lane; i < C::kSelectCount; i += 32) gOut[i] = sList[i];
}

// Rows of a token's heads in the results of decode_split_kv_compressed.
struct ScanRow {
  int work_item;
  int row; // of the group's head 0
};

template <class C>
NSAI_DEVICE ScanRow find_scan_row(const NsaiDecode &p, const DecodeToken &token, int group) {
  constexpr int kTokens = Decode<C>::kTileTokens;
  // A sequence with more tokens than the plan allows would reach another sequence's tiles: clamp.
  int number = token.query / kTokens;
  if (p.seq_tiles) number = min(number, p.seq_tiles - 1);
  const int tile = first_tile<kTokens>(p, token.s) + number;
  return ScanRow{ tile * p.kv_heads + group, token.query % kTokens * C::kGroupPadded };
}

// Index of a row among the rows of all splits.
NSAI_DEVICE long long split_row(const NsaiDecodeSplits &x, int rows, long long work_item, int split,
                                int row) {
  return (work_item * x.splits + split) * rows + row;
}

// The pooled values of row `row` of a work item. The values of 16 rows lie together for every
// block, so that a warp of decode_split_kv_compressed writes whole lines.
constexpr int kPoolRows = 16;
template <class C> NSAI_DEVICE float *pooled_row(const NsaiDecode &p, int work_item, int row) {
  const long long tile = (long long)work_item * (C::kScanRows / kPoolRows) + row / kPoolRows;
  return p.pooled + tile * p.pooled_blocks * kPoolRows + row % kPoolRows;
}

// Discards pooled values of 16 rows from L2 after their last read, so that they are not written
// back to DRAM. Only whole lines; split `split` of `splits` takes its share of them. All threads
// take part. (H200, 64k tokens, us per step: 64 sequences 190 -> 184, 256 sequences 777 -> 710.)
template <class C>
NSAI_DEVICE void discard_pooled(const float *gPooled, int blocks, int split = 0, int splits = 1) {
  const u64 begin = ((u64)gPooled + 127) / 128 * 128;
  const u64 end = (u64)(gPooled + (long long)blocks * kPoolRows) / 128 * 128;
  for (u64 line = begin + (split * C::kThreads + threadIdx.x) * 128; line < end;
       line += splits * C::kThreads * 128)
    discard_line((const void *)line);
}

// ---- keys of a tile

// Number of raw keys in `count` listed blocks; the last block, number `last`, may extend beyond
// position t.
template <class C> NSAI_DEVICE int listed_keys(int count, int last, int t) {
  return (count - 1) * C::kSelectBlock + min(C::kSelectBlock, t + 1 - last * C::kSelectBlock);
}

// Number of compressed blocks that position t sees.
template <class C> NSAI_DEVICE int visible_entries(int t) {
  return block_count<C::kBlock, C::kStride>(t + 1);
}

// How the keys of a tile are divided among the consumer groups of its work item.
struct ConsumerGroupRuns {
  int granules; // total
  int each;     // per run
};

// `visible`: compressed entries that the tile's last token sees.
template <class C> NSAI_DEVICE ConsumerGroupRuns find_runs(const NsaiDecode &p, int visible) {
  const int granules = ceil_div(visible, Decode<C>::kSplitGranularity);
  return ConsumerGroupRuns{ granules,
                            max(max(p.scan.min_granules, 1),
                                ceil_div(granules, p.scan.splits * Decode<C>::kConsumerGroups)) };
}

// Position of the last token of the tile that contains query `query`.
template <class C> NSAI_DEVICE int last_position(const Sequence &seq, int query) {
  constexpr int kTokens = Decode<C>::kTileTokens;
  return seq.position(min(query / kTokens * kTokens + kTokens, seq.q_len) - 1);
}
