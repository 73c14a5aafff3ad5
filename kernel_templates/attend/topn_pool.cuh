// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What the consumers and the selectors of attend_compressed_topn_sm90 share: the plan, the tiles, and pooled
// probabilities in a scratch between them.
//
// With m = l/d and r = l'/d, selection block j takes the keys j*r - (m-1) + x, x in [0, r+m-1), with
// the weights min(x+1, m, r+m-1-x): a trapezoid (here divided by m, which changes no order). A lane
// has 32 adjacent keys of each of its two rows (tma_load_interleaved()), so that pooling takes no exchange
// between lanes but of the m - 1 keys at the borders. With the sum of a block's own r keys at hand,
// which the softmax needs as well, a block costs 2 (m - 1) further instructions.
//
// Scratch of a CTA, with N the tiles of 128 keys of the longest sequence:
//   Piece [N][8 warps][parts]   pooled probabilities of 16 rows and 32 blocks, fp32, up to the factor
//                               2^(reference - LSE) of the row
//   f32 [128]                   LSE of the rows
//   u64 [tokens][N * 128/r]     lists of candidates: keys of core/topn.cuh, by ascending index
#pragma once
#include "attend/mainloop_sm90.cuh"
#include "core/topn.cuh"

// What the flash loop sees: it does not know of the selectors.
template <class C> struct KernelTraits;
template <class C> struct FlashConfig : C {
  static constexpr int kThreads = 384;
  static constexpr int kSharedBytes = C::kSharedBytes - KernelTraits<C>::kTopnBytes;
};

template <class C> struct KernelTraits {
  static constexpr int kWarps = 8;                            // of consumers
  static constexpr int kSelectors = 4;                        // warps
  static constexpr int kOverlap = C::kBlock / C::kStride;     // m
  static constexpr int kRatio = C::kSelectBlock / C::kStride; // r
  static constexpr int kTileBlocks = C::kKeys / kRatio;
  static constexpr int kLaneBlocks = kTileBlocks / 4; // of a row
  static constexpr int kVector = kLaneBlocks < 4 ? kLaneBlocks : 4;
  static constexpr int kVectors = kLaneBlocks / kVector;
  // Consumer warps that share tokens: a unit of the selectors' work.
  static constexpr int kWorkItemWarps = C::kGroupPadded > 16 ? C::kGroupPadded / 16 : 1;
  static constexpr int kWorkItemTokens = C::kGroupPadded < 16 ? 16 / C::kGroupPadded : 1;
  static constexpr int kWorkItems = kWarps / kWorkItemWarps;
  static constexpr int kMine = ceil_div(kWorkItems, kSelectors); // of a selector: every fourth
  static constexpr int kTokens = kMine * kWorkItemTokens;        // of a selector
  // 512 threads have 128 registers each, which are divided anew.
  static constexpr bool kNarrow = C::kHeadDimV <= 64 && !kSplitP<C>; // consumers need fewer
  static constexpr int kConsumerRegisters = kNarrow ? 176 : 200;
  static constexpr int kSelectorRegisters = kNarrow ? 104 : 72;
  static constexpr int kProducerRegisters = kNarrow ? 56 : 40;
  static_assert(2 * kConsumerRegisters + kSelectorRegisters + kProducerRegisters <= 4 * 128,
                "what the launch got");

  // What a selector takes at a time: a consumer warp's 16 rows of 32 blocks, or of all of a tile.
  static constexpr int kBlocks = kTileBlocks < 32 ? kTileBlocks : 32;
  static constexpr int kParts = kTileBlocks / kBlocks;
  static constexpr int kPairs = 4 / kParts;            // lanes of a quad whose blocks a piece has
  static constexpr int kGroupPitch = kPairs * kVector; // floats
  // Of row 8 * half + group: [half][kVectors][8 groups][kPairs][kVector blocks], where vector v of a
  // group lies in the place of group ^ v: a lane each, they are read without bank conflicts.
  struct __align__(16) Piece {
    float pooled[16 * kBlocks];
    float references[16]; // by row
  };
  static constexpr int kSwizzle = kVectors < 8 ? kVectors - 1 : 7;
  struct __align__(16) ExchangeBuffer {
    union {
      Piece pieces[C::kDepth][kMine]; // one of each unit at a time
      u64 queue[kQueue];              // core/topn.cuh: once the pieces have been read
    };
    float scales[kMine][16];   // of the pieces' rows
    u32 greatest[kTokens][32]; // order among the unforced candidates of each lane
    u32 bar[kTokens];          // an order that as many of them as are free to choose have reached
    u32 listed[kTokens];       // candidates that could be among the best so far
    u64 full[C::kDepth];       // pieces
  };
  struct __align__(16) TopnStorage {
    ExchangeBuffer exchange_buffers[kSelectors];
    int read[kWorkItems]; // tiles of keys that the selectors have done with
    u64 scored;           // consumers to selectors: a tile of queries
  };
  static constexpr int kTopnBytes = sizeof(TopnStorage);

  static_assert(C::kRows == 128 && C::kKeys == kInterleavedRows, "two warpgroups, spread keys");
  static_assert(C::kThreads == 512, "producer, consumers, selectors");
  static_assert(C::kBlock % C::kStride == 0 && C::kSelectBlock % C::kStride == 0 &&
                    C::kBlock <= C::kSelectBlock,
                "the weights are a trapezoid of strides");
  static_assert(32 % kRatio == 0, "a lane has whole selection blocks");
  static_assert(4 <= C::kGroupPadded && C::kGroupPadded <= 64, "a warp has four tokens at most");
  static_assert(kOverlap <= 4, "keys of the tile before are held in registers");
};

// ---- what all roles know of a tile of queries

// Tiles of keys to be computed. Where there are lists to be made these are as many as have blocks to
// choose from, seen or not: what no key has reached has importance 0.
template <class C> NSAI_DEVICE int key_tiles(const FlashTile &tile, bool searches) {
  if (!searches) return ceil_div(max(tile.end, 0), C::kKeys);
  int candidates = candidate_count<C>(tile.position + tile.tokens - 1);
  return ceil_div(candidates, KernelTraits<C>::kTileBlocks);
}

// Whether a token of the tile has more candidates than it may choose.
template <class C> NSAI_DEVICE bool searches(const NsaiCompressedTopn &p, const FlashTile &tile) {
  return p.idx && candidate_count<C>(tile.position + tile.tokens - 1) > C::kSelectCount;
}

template <class C, class Take> NSAI_DEVICE void for_each(const NsaiCompressedTopn &p, Take take) {
  for_each_tile<FlashConfig<C>, CompressedKeys<C>>(p.attend, take);
}

// This CTA's part of the scratch.
template <class C> struct Scratch {
  typename KernelTraits<C>::Piece *pieces;
  float *lse; // of the rows, in powers of two
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
  // Of a consumer warp's rows.
  NSAI_DEVICE typename KernelTraits<C>::Piece *of(int tile, int warp) const {
    return pieces + ((long long)tile * KernelTraits<C>::kWarps + warp) * KernelTraits<C>::kParts;
  }
};

// ---- pooling

// Of a lane's two rows, the last m - 1 keys of the tile before, last first.
template <class C> struct Border {
  float x[2][KernelTraits<C>::kOverlap > 1 ? KernelTraits<C>::kOverlap - 1 : 1];
};

// x, in a register of its own: what the next products overwrite is not kept from them (C7511).
NSAI_DEVICE float copied(float x) {
  float y;
  asm volatile("mov.b32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Scores of row r become probabilities and join its sum; `sums` are those of the lane's blocks.
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

// Makes the trapezoids of row r of the sums over its blocks, 1/m of them, and stores them.
template <class C>
NSAI_DEVICE void pool(const float (&p)[16][4], int r, float (&sums)[KernelTraits<C>::kLaneBlocks],
                      Border<C> &border, typename KernelTraits<C>::Piece *to, int lane) {
  using P = KernelTraits<C>;
  constexpr float kShareOfStride = 1.0f / P::kOverlap;
  auto key = [&](int i) { return p[i / 2][2 * r + i % 2]; }; // of the lane's 32
  float left[P::kOverlap > 1 ? P::kOverlap - 1 : 1];         // keys -1, -2, ...
#pragma unroll
  for (int i = 0; i < P::kOverlap - 1; ++i) {
    float last = key(31 - i);
    left[i] =
        __shfl_sync(~0u, lane % 4 == 3 ? border.x[r][i] : last, (lane & 28) | ((lane + 3) & 3));
    border.x[r][i] = copied(last);
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
