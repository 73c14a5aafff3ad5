// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// select_importance: the attention mass that the compressed branch puts on each selection block, in
// fp32.
//
//   I[t, g, j] = sum over the group's heads h and compressed blocks i of w(i, j) * P[t, h, i]
//   P[t, h, i] = 2^(scale_log2 * q[t, h] . kc[i, g]  -  lse[t, h] * log2(e))
//                where i*d + l - 1 <= t, else 0
//   w(i, j)    = strides of d that compressed block i and selection block j share
//
// With kMaxPool the greatest one counts instead of their sum:
//
//   I[t, g, j] = max over compressed blocks i with w(i, j) > 0 of the sum over heads h of P[t, h, i]
//
// With m = l/d and r = l'/d (m <= r), block j covers the compressed keys j*r - (m-1) + x, x in
// [0, r+m-1), with weights min(x+1, m, r+m-1-x): a trapezoid. (m 2, r 4: keys 4j-1 .. 4j+3, weights
// 1 2 2 2 1.)
//
//   q [T, Hq, Dk], kc [rows, Hkv, Dk], lse f32 [T, Hq] (the compressed branch's
//   or select_normalizer's)
//   -> importance f32 [tokens, Hkv, blocks] (for select_topn)
//
// Output: every j <= t / l' of the tokens in [token_begin, token_end). With kProbe: the tokens
// p.rows[0 .. num_rows), one CTA each, in output row = index in the list, all p.columns, with zeros
// where there is no candidate. A token's result is bit-identical in both forms and in every chunk
// of tokens: its sums run over the same keys in the same order wherever its rows lie, and keys that
// it does not see add exact zeros.
//
// Grid: x = kv_heads * tiles, group-major, long tiles first, over the tiles of kTokens = kRows /
// kGroupPadded tokens that can hold a token of the chunk. kProbe: num_rows tiles. kStep: a part of the
// keys for each blockIdx.y.
//
// CTA: the rows of select/query_rows.cuh. Registers: Q (Dk / 2 per thread) and a 32x32 slice of
// scores. Shared memory: nsai_smem_importance() of params/smem.h.
//
// Bound by mma.sync: 2.2 TFLOP of Q K^T in 7.5 ms at 64k tokens, D 128, G 16 on the H200.
//
// Config: Element, kHeadDimQk, kGroup, kGroupPadded, kRows, kKeys, kWarps, kThreads, kMinBlocks,
// kSharedBytes, kBlock (l), kStride (d), kSelectBlock (l'), kProbe, kMaxPool, kStep,
// kCountReads; those of data/source.cuh.
#pragma once
#include "core/copy.cuh"
#include "core/launch.cuh"
#include "core/softmax.cuh"
#include "core/tile.cuh"
#include "core/topn.cuh"
#include "core/types.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"
#include "select/importance_keys.cuh"
#include "select/query_rows.cuh"

static_assert(Config::kBlock % Config::kStride == 0 &&
                  Config::kSelectBlock % Config::kStride == 0 &&
                  Config::kBlock <= Config::kSelectBlock,
              "the weights are a trapezoid of strides");

// ---- kernel traits

template <class C> struct KernelTraits : RowTraits<C> {
  static constexpr int kWarpTokens = C::kGroupPadded > 32 ? 1 : 32 / C::kGroupPadded;
  static constexpr int kTokenWarps = C::kGroupPadded > 32 ? C::kGroupPadded / 32 : 1;
  // Tokens among the four rows of a thread, which lie 8 rows apart.
  static constexpr int kSets = C::kGroupPadded >= 32 ? 1 : C::kGroupPadded == 16 ? 2 : 4;
  // Lanes that hold heads of one token, within a column of a fragment.
  static constexpr int kHeadLanes = C::kGroupPadded < 8 ? C::kGroupPadded : 8;

  static constexpr int kOverlap = C::kBlock / C::kStride;     // m
  static constexpr int kRatio = C::kSelectBlock / C::kStride; // r
  static constexpr int kSupport = kRatio + kOverlap - 1;      // keys of one selection block
  // If key tiles end at block ends, a block needs only the last m-1 head sums of the previous tile:
  // they are kept in front of the tile's own sums. Otherwise a block's partial sum is carried from
  // tile to tile; since m <= r, at most two blocks are open at a time. The limit of 8: at G 1 and
  // Dk 256 more history would not fit beside the keys.
  static constexpr bool kAligned = C::kKeys % kRatio == 0 && kOverlap <= 8;
  static constexpr int kHistory = kAligned ? kOverlap - 1 : 0;
  static constexpr int kSumPitch = (kHistory + C::kKeys) | 1; // odd: tokens fall on different banks

  // Lanes that pool one token: as many as a tile has blocks, so that stores are contiguous.
  static constexpr int kMaxBlocks =
      kAligned ? C::kKeys / kRatio : (C::kKeys + kOverlap - 2) / kRatio + 2;
  static constexpr int kPoolLanes = kMaxBlocks > 16  ? 32
                                    : kMaxBlocks > 8 ? 16
                                    : kMaxBlocks > 4 ? 8
                                    : kMaxBlocks > 2 ? 4
                                                     : 2;
};

template <class C> struct SharedStorage {
  u8 keys[2][KeyTileOf<C>::kBytes]; // [kKeys, Dk], this tile and the next
  float sums[C::kWarps][KernelTraits<C>::kWarpTokens]
            [KernelTraits<C>::kSumPitch]; // [history + kKeys] sums of P over heads
  float carry[2][C::kWarps][KernelTraits<C>::kWarpTokens][2]; // by tile parity, ..., block parity
};
static_assert(sizeof(SharedStorage<Config>) == Config::kSharedBytes,
              "the host computes another size of shared memory");

// ---- coordinates

// Number of selection blocks to write for position t.
template <class C> NSAI_DEVICE int written_blocks(const NsaiImportance &p, int t) {
  if constexpr (C::kProbe) return p.columns;
  return candidate_count<C>(t);
}

// ---- steps

// The sum of a row's parts of the LSE, as -lse in base 2, by the four lanes that have the row. All lanes
// of the warp take part.
NSAI_DEVICE float add_splits(const NsaiStepImportance &step, const float *gLse, bool present,
                             int lane) {
  float2 sum = make_float2(kNoReference, 0.0f);
  for (int split = lane % 4; present && split < step.lse_splits; split += 4) {
    const float part = gLse[split * step.lse_split_stride] * kLog2e; // -inf: no keys
    if (part != kMinusInf) sum = add_stats(sum, make_float2(part, 1.0f));
  }
#pragma unroll
  for (int delta = 1; delta < 4; delta *= 2)
    sum = add_stats(sum, make_float2(__shfl_xor_sync(~0u, sum.x, delta),
                                     __shfl_xor_sync(~0u, sum.y, delta)));
  return sum.y == 0.0f ? kMinusInf : -(sum.x + log2_approx(sum.y));
}

// Loads the warp's rows, and -lse in base 2. Padding heads and absent tokens get zeros and -inf, so
// that P = 0.
template <class C>
NSAI_DEVICE void load_rows(const StepRowParams<C> &step, const NsaiImportance &p,
                           const TokenTile &tokens, int group, int warp, int lane,
                           u32 (&rQ)[2][KernelTraits<C>::kSteps][4], float (&bias)[2][2]) {
  load_queries<C>(p, tokens, group, warp, lane, rQ,
                  [&](int tile, int half, bool present, long long token, int query_head) {
                    if constexpr (C::kStep) {
                      const float *gLse =
                          p.lse + token * p.lse_token_stride + query_head * p.lse_head_stride;
                      bias[tile][half] = add_splits(step, gLse, present, lane);
                    } else {
                      float lse =
                          present
                              ? p.lse[token * p.lse_token_stride + query_head * p.lse_head_stride]
                              : kMinusInf;
                      bias[tile][half] = lse == kMinusInf ? kMinusInf : -lse * kLog2e;
                    }
                  });
}

// Turns scores into P; `bias` is -lse in base 2.
template <class C>
NSAI_DEVICE void exponentiate(float (&rS)[2][KernelTraits<C>::kSliceTiles][4],
                              const float (&bias)[2][2], float scale_log2) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
#pragma unroll
    for (int n = 0; n < KernelTraits<C>::kSliceTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        rS[tile][n][i] = exp2_approx(__fmaf_rn(rS[tile][n][i], scale_log2, bias[tile][i / 2]));
}

// Sums P over the heads of each token into `sums` [kWarpTokens, kSumPitch] for 32 keys. A thread
// first adds its own rows of a token. Then pairs of lanes exchange halves of their values until
// each lane holds 8 / kHeadLanes keys: value x of a thread is key 8 * (x / 2) + 2 * (lane % 4) + x
// % 2.
template <class C>
NSAI_DEVICE void sum_heads(const float (&rP)[2][KernelTraits<C>::kSliceTiles][4], float *sums,
                           int lane) {
  constexpr int kValues = 2 * KernelTraits<C>::kSliceTiles;
  constexpr int kSets = KernelTraits<C>::kSets;
#pragma unroll
  for (int set = 0; set < kSets; ++set) {
    float v[kValues];
#pragma unroll
    for (int x = 0; x < kValues; ++x) {
      int n = x / 2, e = x % 2;
      if constexpr (kSets == 4)
        v[x] = rP[set / 2][n][set % 2 * 2 + e];
      else if constexpr (kSets == 2)
        v[x] = rP[set][n][e] + rP[set][n][2 + e];
      else
        v[x] = (rP[0][n][e] + rP[0][n][2 + e]) + (rP[1][n][e] + rP[1][n][2 + e]);
    }
    int first = 0; // index of v[0] among the thread's values
#pragma unroll
    for (int lanes = KernelTraits<C>::kHeadLanes / 2, width = kValues / 2; lanes > 0;
         lanes /= 2, width /= 2) {
      bool upper = lane & 4 * lanes;
      first += upper ? width : 0;
#pragma unroll
      for (int x = 0; x < width; ++x) {
        float mine = upper ? v[x + width] : v[x], other = upper ? v[x] : v[x + width];
        v[x] = mine + __shfl_xor_sync(0xffffffffu, other, 4 * lanes);
      }
    }
    float *row =
        sums + (set * (32 / kSets) + lane / 4) / C::kGroupPadded * KernelTraits<C>::kSumPitch;
#pragma unroll
    for (int x = 0; x < kValues / KernelTraits<C>::kHeadLanes; ++x) {
      int value = first + x;
      row[value / 2 * 8 + lane % 4 * 2 + value % 2] = v[x];
    }
  }
}

// Synchronises the warps that share a token.
template <class C> NSAI_DEVICE void sync_token() {
  if constexpr (KernelTraits<C>::kTokenWarps > 1)
    __syncthreads();
  else
    __syncwarp();
}

// Calls visit(token of the warp, query, block) for the blocks [first, end(query)) of the warp's
// tokens.
template <class C, class End, class Visit>
NSAI_DEVICE void for_each_block(const TokenTile &tokens, int warp, int lane, int first, End end,
                                Visit visit) {
  constexpr int kLanes = KernelTraits<C>::kPoolLanes;
  if (warp % KernelTraits<C>::kTokenWarps != 0) return; // the token's first warp pools
  for (int token = lane / kLanes; token < KernelTraits<C>::kWarpTokens; token += 32 / kLanes) {
    int query =
        tokens.first + warp / KernelTraits<C>::kTokenWarps * KernelTraits<C>::kWarpTokens + token;
    int last = end(query);
    for (int j = first + lane % kLanes; j < last; j += kLanes) visit(token, query, j);
  }
}

// Returns `begin` plus the part of block j whose head sums lie in this tile or, with kMaxPool, the
// greatest of both; `start` is the index in `row` of the block's first key.
template <class C> NSAI_DEVICE float pool(const float *row, int start, float begin) {
  using P = KernelTraits<C>;
  // Distance from the first warp's sums of a token to the second warp's.
  constexpr int kSecond = P::kWarpTokens * P::kSumPitch;
  constexpr int kUnroll = P::kSupport <= 16 ? P::kSupport : 4;
  int from = P::kAligned ? 0 : max(0, -start),
      to = P::kAligned ? P::kSupport : min(P::kSupport, C::kKeys - start);
  float sum = begin;
#pragma unroll kUnroll
  for (int x = from; x < to; ++x) {
    float weight = (float)min(min(x + 1, P::kOverlap), P::kSupport - x);
    float heads = P::kTokenWarps > 1 ? row[start + x] + row[start + x + kSecond] : row[start + x];
    sum = C::kMaxPool ? fmaxf(sum, heads) : __fmaf_rn(weight, heads, sum);
  }
  return sum;
}

// ---- body

template <class C> NSAI_DEVICE void importance(const StepRowParams<C> &step) {
  const RowParams<C> &params = (const RowParams<C> &)step;
  using P = KernelTraits<C>;
  const NsaiImportance &p = packed_of(params);
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  SharedStorage<C> &shared = *(SharedStorage<C> *)shared_bytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // ---- coordinates
  const int count = gridDim.x / p.kv_heads, group = blockIdx.x / count;
  const TokenTile tokens = find_tokens<C>(params, blockIdx.x % count, count);
  if (tokens.begin >= tokens.end) {
    if constexpr (C::kProbe) { // a row outside the sequences has no candidates
      float *gRow = p.importance + blockIdx.x % count * p.importance_token_stride +
                    group * p.importance_head_stride; // [columns]
      for (int j = threadIdx.x; j < p.columns; j += C::kThreads) gRow[j] = 0;
    }
    return;
  }
  const int visible_to_all = visible_blocks<C>(tokens.seq.position(tokens.begin));
  const int visible_to_any = visible_blocks<C>(tokens.seq.position(tokens.end - 1));
  // m - 1 keys more than are visible, so that a block is pooled even if only the last visible keys
  // touch it.
  const int all_tiles = visible_to_any ? ceil_div(visible_to_any + P::kOverlap - 1, C::kKeys) : 0;
  // Tiles that are not whole blocks are not split.
  const KeyTiles tiles = P::kAligned ? find_key_tiles<C>(all_tiles) : KeyTiles{ 0, all_tiles };
  // A split computes the tile before its first one, too, for the history.
  const int first_tile = C::kStep && P::kHistory > 0 ? max(tiles.begin - 1, 0) : tiles.begin;
  if constexpr (C::kStep)
    if (blockIdx.y > 0 && (!P::kAligned || tiles.begin >= tiles.end)) return;

  float scale_log2 = p.scale;
  if constexpr (kReadsCodes<C>) scale_log2 *= scale_of(params.k_scale, group);
  const auto keys = find_keys<C>(params, tokens.s, group);     // [N, Dk]
  float *gI = p.importance + group * p.importance_head_stride; // [rows, blocks] of this group
  float *sums = &shared.sums[warp][0][0];                      // [kWarpTokens, kSumPitch]

  // ---- prologue
  if (first_tile != tiles.end)
    keys.load(shared_address(shared.keys[first_tile % 2]), first_tile * C::kKeys, visible_to_any);
  copy_async_commit();
  u32 rQ[2][P::kSteps][4]; // [32 rows, Dk]
  float bias[2][2];        // [32 rows]
  load_rows<C>(step, p, tokens, group, warp, lane, rQ, bias);
  for (int i = lane; i < P::kWarpTokens * P::kHistory; i += 32)
    sums[i / max(P::kHistory, 1) * P::kSumPitch + i % max(P::kHistory, 1)] = 0;
  for (int i = lane; i < P::kWarpTokens * 4; i += 32)
    shared.carry[i / 2 % 2][warp][i / 4][i % 2] = 0;

  // ---- key tiles
  for (int tile = first_tile; tile < tiles.end; ++tile) {
    const int first = tile * C::kKeys;
    copy_async_wait<0>();
    // All warps' copies of this tile have arrived, and all warps have finished with the other
    // buffer.
    __syncthreads();
    if (tile + 1 < tiles.end)
      keys.load(shared_address(shared.keys[(tile + 1) % 2]), first + C::kKeys, visible_to_any);
    copy_async_commit();

    const u32 sK = shared_address(shared.keys[tile % 2]); // [kKeys, Dk]
#pragma unroll
    for (int slice = 0; slice < C::kKeys; slice += 32) {
      float rS[2][P::kSliceTiles][4]; // [32 rows, 32 keys]
      scores<C>(rS, rQ, sK + slice * KeyTileOf<C>::kPitch, lane);
      exponentiate<C>(rS, bias, scale_log2);
      if (first + slice + 32 > visible_to_all) mask<C>(rS, tokens, first + slice, 0, warp, lane);
      sum_heads<C>(rS, sums + P::kHistory + slice, lane);
    }
    sync_token<C>();

    const int block = first / P::kRatio;
    const int end =
        P::kAligned ? block + P::kMaxBlocks : (first + C::kKeys + P::kOverlap - 2) / P::kRatio + 1;
    auto all = [&](int) { return end; };
    for_each_block<C>(tokens, warp, lane, block, all, [&](int token, int query, int j) {
      int start = j * P::kRatio - (P::kOverlap - 1) - (first - P::kHistory);
      bool opened = !P::kAligned && start < 0,
           closed = P::kAligned || start + P::kSupport <= C::kKeys;
      float sum = pool<C>(sums + token * P::kSumPitch, start,
                          opened ? shared.carry[tile % 2][warp][token][j % 2] : 0);
      if (!closed)
        shared.carry[(tile + 1) % 2][warp][token][j % 2] = sum;
      else if ((!C::kStep || tile >= tiles.begin) && tokens.present(query) &&
               j < written_blocks<C>(p, tokens.seq.position(query)))
        gI[(tokens.out_base + query) * p.importance_token_stride + j] = sum;
    });
    if constexpr (P::kHistory > 0) {
      sync_token<C>(); // all warps have pooled with the old history
      for (int i = lane; i < P::kWarpTokens * P::kHistory; i += 32) {
        float *row = sums + i / P::kHistory * P::kSumPitch + i % P::kHistory;
        row[0] = row[C::kKeys];
      }
    }
  }

  // ---- blocks that are still open, and those that no key has reached
  count_keys<C>(step, tokens.s, group, visible_to_any); // where they are counted there is one split
  if (tiles.end < all_tiles) return;                    // they are the last split's
  sync_token<C>();
  const int keys_seen = tiles.end * C::kKeys;
  auto written = [&](int query) {
    return tokens.present(query) ? written_blocks<C>(p, tokens.seq.position(query)) : 0;
  };
  for_each_block<C>(tokens, warp, lane, keys_seen / P::kRatio, written,
                    [&](int token, int query, int j) {
                      bool open = !P::kAligned && j * P::kRatio - (P::kOverlap - 1) < keys_seen;
                      float sum = open ? shared.carry[tiles.end % 2][warp][token][j % 2] : 0;
                      gI[(tokens.out_base + query) * p.importance_token_stride + j] = sum;
                    });
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    select_importance(const __grid_constant__ StepRowParams<Config> p) {
  begin_kernel();
  importance<Config>(p);
}
