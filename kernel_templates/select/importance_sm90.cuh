// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// select_importance_sm90: what select/importance.cuh computes, on wgmma (sm_90a).
//
//   I[t, g, j] = sum over the group's heads h and compressed blocks i of w(i, j) * P[t, h, i]
//   P[t, h, i] = 2^(scale_log2 * q[t, h] . kc[i, g]  -  lse[t, h] * log2(e)), 0 where t does not see i
//   with kMaxPool the maximum over i with w(i, j) > 0 of the sum over h of P[t, h, i]
//
//   q [T, Hq, Dk], kc [rows, Hkv, Dk] or a cache's entries, lse f32 [T, Hq]
//   -> importance f32 [tokens, Hkv, blocks] (for select_topn)
//
// Output: every j <= t / l' of the tokens in [token_begin, token_end). A token's result is
// bit-identical in every chunk of tokens and wherever its rows lie. It differs in rounding from that of
// select_importance, which serves probed rows.
//
// Grid: x = kv_heads * tiles, group-major, long tiles first (select/token_tile.cuh).
//
// CTA: that of select/scores_sm90.cuh, whose consumers exponentiate a tile of scores, sum heads, pool
// and store. Lanes that hold the heads of a token add them up by halves: each is left with the token's
// sums of 4 adjacent keys, a chunk.
//
// Measured on an H200, 64k tokens of configs/models/minicpm4.yaml, with the pass over the coarse keys
// by mma.sync (select_normalizer): 256 rows 3.66 ms, 192 4.15, twice 128 3.73; select_importance 4.35.
//
// Config: kSelectBlock (l'), kMaxPool; those of select/scores_sm90.cuh.
#pragma once
#include "core/launch.cuh"
#include "core/pipeline.cuh"
#include "core/softmax.cuh"
#include "core/topn.cuh"
#include "core/types.cuh"
#include "core/wgmma.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"
#include "select/importance_keys.cuh"
#include "select/scores_sm90.cuh"
#include "select/token_tile.cuh"

template <class C> struct KernelTraits {
  static constexpr int kTokens = 16 / C::kGroupPadded;        // of a warp
  static constexpr int kOverlap = C::kBlock / C::kStride;     // m
  static constexpr int kRatio = C::kSelectBlock / C::kStride; // r
  static constexpr int kTileBlocks = C::kKeys / kRatio;
  static constexpr int kChunkKeys = 4;
  static constexpr int kChunkBlocks = kRatio < kChunkKeys ? kChunkKeys / kRatio : 1;
  static constexpr int kBlockChunks = kRatio > kChunkKeys ? kRatio / kChunkKeys : 1;
  static constexpr int kBorder = kOverlap > 1 ? kOverlap - 1 : 1;

  static_assert(C::kBlock % C::kStride == 0 && C::kSelectBlock % C::kStride == 0 &&
                    C::kBlock <= C::kSelectBlock,
                "the weights are a trapezoid of strides");
  static_assert(32 % kRatio == 0, "a lane's keys are whole selection blocks, or a part of one");
  static_assert(kOverlap <= 4, "the last keys of the block before lie in one chunk");
};

// ---- consumers

// Turns the scores of row r into P; `bias` is -lse in base 2.
template <class C>
NSAI_DEVICE void exponentiate(float (&s)[16][4], int r, float scale_log2, float bias, int seen) {
#pragma unroll
  for (int k = 0; k < 32; ++k) {
    float &x = s[k / 2][2 * r + k % 2];
    x = exp2_approx(__fmaf_rn(x, scale_log2, bias));
  }
  if (seen < 32)
#pragma unroll
    for (int k = 0; k < 32; ++k)
      if (k >= seen) s[k / 2][2 * r + k % 2] = 0.0f;
}

// Adds the values of the lane that differs in bit kLanes, of which each of the two keeps half.
template <int kLanes, int kWidth> NSAI_DEVICE void add_halves(float (&v)[32], int lane) {
  const bool upper = lane & kLanes;
#pragma unroll
  for (int x = 0; x < kWidth; ++x) {
    const float mine = upper ? v[x + kWidth] : v[x], other = upper ? v[x] : v[x + kWidth];
    v[x] = mine + __shfl_xor_sync(~0u, other, kLanes);
  }
}

// Adds up v [32 keys] over the eight lanes that hold one token's heads. Each is left with chunk
// lane / 4 in v[0] ... v[3].
NSAI_DEVICE void sum_heads(float (&v)[32], int lane) {
  add_halves<16, 16>(v, lane);
  add_halves<8, 8>(v, lane);
  add_halves<4, 4>(v, lane);
}

// The blocks of the lane's chunk, from its keys and those `before` it, last key first. A block of
// several chunks is left in all their lanes.
template <class C>
NSAI_DEVICE void pool(float (&blocks)[KernelTraits<C>::kChunkBlocks], const float (&v)[32],
                      const float (&before)[KernelTraits<C>::kBorder], int lane) {
  using P = KernelTraits<C>;
  auto key = [&](int i) { return i < 0 ? before[-1 - i] : v[i]; };
  constexpr int kKeys =
      P::kRatio < P::kChunkKeys ? P::kRatio : P::kChunkKeys; // of a block in a chunk
  const int within = lane / 4 % P::kBlockChunks * kKeys;     // the chunk's first key in its block
#pragma unroll
  for (int block = 0; block < P::kChunkBlocks; ++block) {
    float sum = 0.0f;
    // Only the block's first chunk has keys that lie before it.
#pragma unroll
    for (int i = 1; i < P::kOverlap; ++i) {
      const float x = within == 0 ? key(block * kKeys - i) : 0.0f;
      sum = C::kMaxPool ? fmaxf(sum, x) : __fmaf_rn((float)(P::kOverlap - i), x, sum);
    }
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const float x = key(block * kKeys + i);
      sum = C::kMaxPool ? fmaxf(sum, x)
                        : __fmaf_rn((float)min(P::kOverlap, P::kRatio - within - i), x, sum);
    }
#pragma unroll
    for (int chunks = 1; chunks < P::kBlockChunks; chunks *= 2) {
      const float other = __shfl_xor_sync(~0u, sum, 4 * chunks);
      sum = C::kMaxPool ? fmaxf(sum, other) : sum + other;
    }
    blocks[block] = sum;
  }
}

// What a warp knows of one of its tokens.
template <class C> struct WarpToken {
  float *gRow;                            // importance [blocks] of this KV head
  int written;                            // blocks to write
  float border[KernelTraits<C>::kBorder]; // in lane 31: the last keys of the tile before
};

// Pools a token's sums of a tile of keys and stores them.
template <class C>
NSAI_DEVICE void store_blocks(float (&v)[32], WarpToken<C> &token, int tile, int lane) {
  using P = KernelTraits<C>;
  sum_heads(v, lane);
  // Chunk c of the tile lies in lane c / 8 + c % 8 * 4.
  float before[P::kBorder] = {};
  const int source = lane >= 4 ? lane - 4 : lane ? lane + 27 : 31;
#pragma unroll
  for (int i = 0; i < P::kOverlap - 1; ++i) {
    const float last = v[P::kChunkKeys - 1 - i];
    before[i] = __shfl_sync(~0u, lane == 31 ? token.border[i] : last, source);
    token.border[i] = last;
  }
  float blocks[P::kChunkBlocks];
  pool<C>(blocks, v, before, lane);
  const int chunk = lane % 4 * 8 + lane / 4;
  if (chunk % P::kBlockChunks) return;
  const int first = tile * P::kTileBlocks + chunk / P::kBlockChunks * P::kChunkBlocks;
#pragma unroll
  for (int i = 0; i < P::kChunkBlocks; ++i)
    if (first + i < token.written) token.gRow[first + i] = blocks[i];
}

template <class C>
NSAI_DEVICE void consume(SharedStorage<C> &shared, const Barriers<C::kStages> &barriers,
                         const NsaiImportance &p, const TokenTile &tokens, int group, int tiles) {
  using P = KernelTraits<C>;
  const int lane = threadIdx.x % 32, consumer = warp_uniform(threadIdx.x / 128);
  const int warp_row = 64 * consumer + threadIdx.x % 128 / 32 * 16;

  // ---- Q, and -lse in base 2 of the lane's rows
  const u32 sQ = shared_address(shared.q[consumer]);
  copy_queries<C>(sQ, p, tokens, group, 64 * consumer);
  float bias[2];
  int seen[2]; // keys that the rows' tokens see, from the lane's first on
  WarpToken<C> token[P::kTokens];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp_row + 8 * r + lane / 4, head = row % C::kGroupPadded;
    const int query = tokens.first + row / C::kGroupPadded;
    const bool present = tokens.present(query);
    float lse = kMinusInf;
    if (present && head < C::kGroup)
      lse = p.lse[(tokens.seq.q_begin + query) * p.lse_token_stride +
                  (group * C::kGroup + head) * p.lse_head_stride];
    bias[r] = lse == kMinusInf ? kMinusInf : -lse * kLog2e;
    seen[r] = visible_blocks<C>(tokens.seq.position(query)) - lane % 4 * 32;
    if (r % (2 / P::kTokens)) continue;
    WarpToken<C> &mine = token[r * P::kTokens / 2];
    mine = WarpToken<C>{ p.importance + group * p.importance_head_stride, 0, {} };
    if (!present) continue;
    mine.gRow += (tokens.out_base + query) * p.importance_token_stride;
    mine.written = candidate_count<C>(tokens.seq.position(query));
  }
  wait_queries<C>(consumer);

  // ---- tiles of keys
  PipelineState<C::kStages> at;
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile, at.advance()) {
    float s[16][4]; // [64, 128]
    score_tile<C>(s, sQ, shared, barriers, at);
#pragma unroll
    for (int r = 0; r < 2; ++r) exponentiate<C>(s, r, p.scale, bias[r], seen[r] - tile * C::kKeys);
#pragma unroll
    for (int t = 0; t < P::kTokens; ++t) {
      float v[32];
#pragma unroll
      for (int k = 0; k < 32; ++k)
        v[k] = P::kTokens == 2 ? s[k / 2][2 * t + k % 2] : s[k / 2][k % 2] + s[k / 2][2 + k % 2];
      store_blocks<C>(v, token[t], tile, lane);
    }
  }
}

// ---- body

template <class C> NSAI_DEVICE void importance(const StepRowParams<C> &params) {
  using P = KernelTraits<C>;
  const NsaiImportance &p = packed_of(params);
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage<C> &shared = *(SharedStorage<C> *)shared_bytes;

  // ---- coordinates
  const int count = gridDim.x / p.kv_heads, group = blockIdx.x / count;
  const TokenTile tokens = find_tokens<C>(params, blockIdx.x % count, count);
  if (tokens.begin >= tokens.end) return;
  const int last = tokens.seq.position(tokens.end - 1);
  const int tiles = ceil_div(candidate_count<C>(last), P::kTileBlocks);
  const Barriers<C::kStages> barriers = make_barriers<C>(shared);
  if (threadIdx.x >= ScoreTraits<C>::kConsumerThreads)
    produce<C>(shared, barriers, find_keys<C>(params, tokens.s, group), tiles,
               visible_blocks<C>(last));
  else
    consume<C>(shared, barriers, p, tokens, group, tiles);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    select_importance_sm90(const __grid_constant__ StepRowParams<Config> p) {
  begin_kernel();
  importance<Config>(p);
}
