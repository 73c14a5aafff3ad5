// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What the consumers and the selectors of attend_compressed_topn_sm90 share: kernel traits, the
// loop over tiles, and the pooled probabilities in a scratch buffer between them.
//
// With m = l/d and r = l'/d, selection block j covers the compressed keys j*r - (m-1) + x, x in
// [0, r+m-1), with weights min(x+1, m, r+m-1-x): a trapezoid. Here the weights are divided by m,
// which does not change the order of blocks. A lane holds 32 adjacent keys of each of its two rows
// (tma_load_interleaved()), so lanes exchange only the m - 1 keys at the borders. The sum of a
// block's own r keys is available, because the softmax needs it too; the rest of a block costs
// 2 (m - 1) instructions.
//
// Scratch of a CTA, where N is the number of 128-key tiles of the longest sequence:
//
//   Piece [N][8 warps][parts]   pooled probabilities of 16 rows and 32 blocks, fp32, before the
//                               factor 2^(reference - LSE) of the row
//   f32 [128]                   LSE of the rows
//   u64 [tokens][N * 128/r]     lists of candidates: keys of core/topn.cuh, by ascending index
//
// Groups of one head need no LSE and no pieces: attend/topn_rows.cuh.
#pragma once
#include "attend/mainloop_sm90.cuh"
#include "core/topn.cuh"
#include "core/wgmma.cuh"

// Configuration of the main loop, which does not know about the selectors.
template <class C> struct KernelTraits;
template <class C> struct FlashConfig : C {
  static constexpr int kThreads = 384;
  static constexpr int kSharedBytes = C::kSharedBytes - KernelTraits<C>::kTopnBytes;
};

constexpr int kMostRowBlocks = 16; // free blocks of a single head

// Whether a group is one head, whose blocks attend/topn_rows.cuh chooses.
template <class C> constexpr bool kSingleHead = C::kGroupPadded == 1;

template <class C> struct KernelTraits {
  static constexpr int kWarps = 8;                            // consumer warps
  static constexpr int kSelectors = 4;                        // selector warps
  static constexpr int kOverlap = C::kBlock / C::kStride;     // m
  static constexpr int kRatio = C::kSelectBlock / C::kStride; // r
  static constexpr int kTileBlocks = C::kKeys / kRatio;
  static constexpr int kLaneBlocks = kTileBlocks / 4; // blocks of a row in one lane
  static constexpr int kVector = kLaneBlocks < 4 ? kLaneBlocks : 4;
  static constexpr int kVectors = kLaneBlocks / kVector;
  // Consumer warps that share tokens form one work item of the selectors.
  static constexpr int kWorkItemWarps = C::kGroupPadded > 16 ? C::kGroupPadded / 16 : 1;
  static constexpr int kWorkItemTokens = C::kGroupPadded < 16 ? 16 / C::kGroupPadded : 1;
  static constexpr int kWorkItems = kWarps / kWorkItemWarps;
  static constexpr int kMine = ceil_div(kWorkItems, kSelectors); // of a selector
  static constexpr int kTokens = kMine * kWorkItemTokens;        // tokens of a selector
  // Consumer warps that wait for one counter of the selectors.
  static constexpr int kSharingWarps = kSingleHead<C> ? kWarps / kSelectors : kWorkItemWarps;
  // The launch gives 512 threads 128 registers each; the warpgroups redistribute them.
  static constexpr bool kNarrow = C::kHeadDimV <= 64 && !kSplitP<C>; // fewer registers
  static constexpr int kConsumerRegisters = kNarrow ? 176 : 200;
  static constexpr int kSelectorRegisters = kNarrow ? 104 : 72;
  static constexpr int kProducerRegisters = kNarrow ? 56 : 40;
  static_assert(2 * kConsumerRegisters + kSelectorRegisters + kProducerRegisters <= 4 * 128,
                "warpgroups may not take more registers than the launch gives");

  // A selector reads one piece at a time: 16 rows of a consumer warp and 32 blocks, or all blocks
  // of a key tile if it has fewer.
  static constexpr int kBlocks = kTileBlocks < 32 ? kTileBlocks : 32;
  static constexpr int kParts = kTileBlocks / kBlocks;
  static constexpr int kPairs = 4 / kParts;            // lanes of a quad in one piece
  static constexpr int kGroupPitch = kPairs * kVector; // floats
  // Layout of row 8 * half + group: [half][kVectors][8 groups][kPairs][kVector blocks]. Vector v of
  // group g lies at position g ^ v, so that 32 lanes with one vector each read without bank
  // conflicts.
  struct __align__(16) Piece {
    float pooled[16 * kBlocks];
    float references[16]; // by row
  };
  static constexpr int kSwizzle = kVectors < 8 ? kVectors - 1 : 7;
  struct __align__(16) ExchangeBuffer {
    union {
      Piece pieces[C::kDepth][kMine]; // one of each work item per stage
      u64 queue[kQueue];              // of core/topn.cuh; reused after the pieces were read
    };
    float scales[kMine][16];   // of the pieces' rows
    u32 greatest[kTokens][32]; // greatest order among each lane's unforced candidates
    u32 bar[kTokens];          // an order that at least n_free candidates have reached
    u32 listed[kTokens];       // candidates so far that may be among the best
    u64 full[C::kDepth];       // barriers: pieces have arrived
  };
  struct __align__(16) GroupStorage {
    ExchangeBuffer exchange_buffers[kSelectors];
    int read[kWorkItems]; // key tiles that the selectors have finished reading
    u64 scored;           // barrier, consumers to selectors: a query tile is scored
  };
  // Of single heads. A selector has the rows of two consumer warps.
  struct __align__(16) RowStorage {
    struct {
      int counts[4][C::kRows];    // entries of each lane of a row
      float references[C::kRows]; // of the rows, after the last key
      float bars[C::kRows];       // a little below their last ones
    } lists[2];                   // of a query tile and of the one before
    float4 greatest[2 * 256];     // of each consumer lane's two rows: of 4 groups of its candidates
    int chosen[kMostRowBlocks][C::kRows];
    int read[kSelectors];      // query tiles whose lists each selector has read
    u64 scored[2][kSelectors]; // barriers, consumers to a selector: the lists are complete
  };
  typedef typename ParamsOf<kSingleHead<C>, GroupStorage, RowStorage>::Type TopnStorage;
  static constexpr int kTopnBytes = sizeof(TopnStorage);

  static_assert(C::kRows == 128 && C::kKeys == kInterleavedRows,
                "two warpgroups of 64 rows over tiles of interleaved keys");
  static_assert(C::kThreads == 512, "one producer, two consumer and one selector warpgroup");
  static_assert(C::kBlock % C::kStride == 0 && C::kSelectBlock % C::kStride == 0 &&
                    C::kBlock <= C::kSelectBlock,
                "the weights are a trapezoid of strides");
  static_assert(32 % kRatio == 0, "a lane holds whole selection blocks");
  static_assert(
      (2 <= C::kGroupPadded && C::kGroupPadded <= 64) ||
          (kSingleHead<C> && kRatio == 4 && Topn<C>::kFree <= kMostRowBlocks),
      "a warp has at most eight tokens, or single heads with four pairs of blocks a lane");
  static_assert(kOverlap <= 4, "border keys of the previous tile are held in registers");
};

// ---- facts about a query tile that all roles compute

// Number of key tiles to compute. If lists are wanted, it covers all candidate blocks, whether
// visible or not: a block that no key reaches has importance 0.
template <class C> NSAI_DEVICE int key_tiles(const FlashTile &tile, bool searches) {
  if (!searches) return ceil_div(max(tile.end, 0), C::kKeys);
  int candidates = candidate_count<C>(tile.position + tile.tokens - 1);
  return ceil_div(candidates, KernelTraits<C>::kTileBlocks);
}

// Whether some token of the tile has more candidates than it may select, so that a search is
// needed.
template <class C> NSAI_DEVICE bool searches(const NsaiCompressedTopn &p, const FlashTile &tile) {
  return p.idx && candidate_count<C>(tile.position + tile.tokens - 1) > C::kSelectCount;
}

template <class C>
using TopnParams = EntryParamsOf<C, NsaiCompressedTopn, NsaiCachedCompressedTopn,
                                 NsaiCodedCompressedTopn, NsaiExpandedCompressedTopn>;

template <class C, class Take> NSAI_DEVICE void for_each(const TopnParams<C> &params, Take take) {
  for_each_tile<FlashConfig<C>, CompressedKeys<C>>(packed_of(params).attend, sequences_of(params),
                                                   take);
}

// This CTA's part of the scratch buffer.
template <class C> struct Scratch {
  typename KernelTraits<C>::Piece *pieces;
  float *lse; // of the rows, base-2 exponents
  u64 *lists;
  int columns; // of a list
  NSAI_DEVICE explicit Scratch(const NsaiCompressedTopn &p) {
    int candidates = candidate_count<C>(p.attend.attend.seq.max_kv_len - 1);
    int tiles = ceil_div(candidates, KernelTraits<C>::kTileBlocks);
    pieces = (typename KernelTraits<C>::Piece *)((u8 *)p.scratch + blockIdx.x * p.scratch_bytes);
    lse = (float *)(pieces + (long long)tiles * KernelTraits<C>::kWarps * KernelTraits<C>::kParts);
    lists = (u64 *)(lse + C::kRows);
    columns = tiles * KernelTraits<C>::kTileBlocks;
  }
  // Pieces of a consumer warp's rows in key tile `tile`.
  NSAI_DEVICE typename KernelTraits<C>::Piece *of(int tile, int warp) const {
    return pieces + ((long long)tile * KernelTraits<C>::kWarps + warp) * KernelTraits<C>::kParts;
  }
};

// ---- pooling

// The last m - 1 keys of the previous key tile for each of the lane's two rows, last key first.
template <class C> struct Border {
  float x[2][KernelTraits<C>::kOverlap > 1 ? KernelTraits<C>::kOverlap - 1 : 1];
};

// Turns the scores of row r into probabilities and adds them to its sum. `sums` receives the sums
// of the lane's blocks.
template <class C>
NSAI_DEVICE void exponentiate(float (&s)[16][4], int r, SoftmaxRows &rows,
                              float (&sums)[KernelTraits<C>::kLaneBlocks], float scale_log2) {
  constexpr int kRatio = KernelTraits<C>::kRatio;
#pragma unroll
  for (int block = 0; block < KernelTraits<C>::kLaneBlocks; ++block) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kRatio; ++i) {
      float &x = s[(block * kRatio + i) / 2][2 * r + (block * kRatio + i) % 2];
      x = exp2_approx(fmaf(x, scale_log2, -rows.reference[r]));
      sum = i ? sum + x : x;
    }
    sums[block] = sum;
  }
#pragma unroll
  for (int block = 0; block < KernelTraits<C>::kLaneBlocks; ++block) rows.sum[r] += sums[block];
}

// Completes the block sums of row r to trapezoids (divided by m).
template <class C>
NSAI_DEVICE void pool(const float (&p)[16][4], int r, float (&sums)[KernelTraits<C>::kLaneBlocks],
                      Border<C> &border, int lane) {
  using P = KernelTraits<C>;
  constexpr float kShareOfStride = 1.0f / P::kOverlap;
  auto key = [&](int i) { return p[i / 2][2 * r + i % 2]; }; // of the lane's 32 keys
  float left[P::kOverlap > 1 ? P::kOverlap - 1 : 1];         // keys -1, -2, ...
#pragma unroll
  for (int i = 0; i < P::kOverlap - 1; ++i) {
    float last = key(31 - i);
    left[i] =
        __shfl_sync(~0u, lane % 4 == 3 ? border.x[r][i] : last, (lane & 28) | ((lane + 3) & 3));
    border.x[r][i] = wgmma_copy(last);
  }
#pragma unroll
  for (int block = 0; block < P::kLaneBlocks; ++block) {
#pragma unroll
    for (int i = 1; i < P::kOverlap; ++i) {
      float before = block ? key(block * P::kRatio - i) : left[i - 1];
      float end = key(block * P::kRatio + P::kRatio - i);
      sums[block] = fmaf((P::kOverlap - i) * kShareOfStride, before - end, sums[block]);
    }
  }
}

// Stores the pooled values of row r for the selectors.
template <class C>
NSAI_DEVICE void store_pooled(const float (&sums)[KernelTraits<C>::kLaneBlocks], int r,
                              typename KernelTraits<C>::Piece *to, int lane) {
  using P = KernelTraits<C>;
#pragma unroll
  for (int v = 0; v < P::kVectors; ++v) {
    int group = lane / 4 ^ (v & P::kSwizzle), pair = lane % 4;
    float *at = to[pair / P::kPairs].pooled + ((r * P::kVectors + v) * 8 + group) * P::kGroupPitch +
                pair % P::kPairs * P::kVector;
    if constexpr (P::kVector == 4)
      *(float4 *)at = make_float4(sums[4 * v], sums[4 * v + 1], sums[4 * v + 2], sums[4 * v + 3]);
    else if constexpr (P::kVector == 2)
      *(float2 *)at = make_float2(sums[0], sums[1]);
    else
      *at = sums[0];
  }
}
