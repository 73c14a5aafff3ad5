// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The index's side of backward_index_kl and backward_index_kl_pipelined: dS from the index's scores and
// Pm, its products, and the copies and stores around them. `warp_key`: the first of 16 keys of a warp.
//
// Config: as in backward/index_kl.cuh.
#pragma once
#include "backward/index_kl_items.cuh"
#include "backward/index_kl_teacher.cuh"
#include "backward/products.cuh"
#include "core/softmax.cuh"

// Turns the index's scores s [16 keys, 16 tokens] of a warp into dS, and adds to the loss. Keys that a
// token does not see are 0.
template <class Config>
NSAI_DEVICE float compare(const NsaiIndexKl &p, float (&s)[2][4], u32 base, int tile,
                          int warp_key) {
  using F = IndexKlTraits<Config>;
  const int key = warp_key + (int)(threadIdx.x & 31) / 4;
  float loss = 0.0f;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int token = 8 * j + 2 * (threadIdx.x & 3);
    const Chunk about = load_shared(F::tokens(base, tile) + 8 * token); // of two tokens: LSE, seen
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint2 means = load_shared_pair(F::mean(F::means(base, tile), key + 8 * r, token));
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float mean = __uint_as_float(c ? means.y : means.x);
        const float log_pi =
            fmaf(s[j][2 * r + c], p.index_scale_log2, -__uint_as_float(about.w[2 * c]));
        const bool sees = key + 8 * r < (int)about.w[2 * c + 1];
        if (sees && mean > 0.0f) loss = fmaf(mean, log2_approx(mean) - log_pi, loss);
        s[j][2 * r + c] = sees ? exp2_approx(log_pi) - mean : 0.0f;
      }
    }
  }
  return loss;
}

// Stores dS [16 keys, 16 tokens] of a warp, as A fragments of dK.
template <class Config> NSAI_DEVICE void store_scores(const u32 (&x)[4], u32 base, int warp_key) {
  using F = IndexKlTraits<Config>;
  const int lane = threadIdx.x & 31, key = warp_key + lane / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    store_shared_word(base + F::kSScores + F::Scores::offset(key + i % 2 * 8, i / 2) + lane % 4 * 4,
                      x[i]);
}

// dQ of a tile of tokens, by kWarps warps: [16, 16] = dS [16, kKeys] Ki [kKeys, 16] at a time.
template <class Config, int kWarps>
NSAI_DEVICE void multiply_scores(const NsaiIndexKl &p, const IndexItem &at, u32 base, int tile,
                                 bool adds, int warp) {
  using F = IndexKlTraits<Config>;
  const int lane = threadIdx.x & 31;
  const u32 x_at = base + F::kSScores + F::Scores::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const u32 k_at = base + F::kSIndexK + F::IndexK::offset(lane % 16, lane / 16);
  for (int pair = warp; pair < F::kIndexCols / 16; pair += kWarps) {
    float acc[2][4]; // [16 tokens, 16]
    clear(acc);
#pragma unroll
    for (int key = 0; key < Config::kKeys; key += 16) {
      u32 x[4], rK[4];
      ldmatrix_x4_trans(x, x_at + key * F::Scores::kPitch);
      ldmatrix_x4_trans(rK, at_step<typename F::IndexK>(k_at, pair) + key * F::IndexK::kPitch);
      mma_m16n16k16(typename Config::Element(), acc[0], acc[1], x, rK);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = tile * F::kTokens + lane / 4 + 8 * r, column = 16 * pair + column_of_lane();
      float4 x = gather_four(acc[0][2 * r], acc[0][2 * r + 1], acc[1][2 * r], acc[1][2 * r + 1]);
      if (i >= at.item.count || column >= Config::kIndexDim) continue;
      float4 *to =
          (float4 *)(p.q_partial +
                     (at.head * p.entry_capacity + at.item.begin + i) * Config::kIndexDim + column);
      if (adds) {
        const float4 before = *to;
        x = make_float4(before.x + x.x, before.y + x.y, before.z + x.z, before.w + x.w);
      }
      *to = x;
    }
  }
}

// Starts the copy of the round's index keys by kThreads threads.
template <class Config, int kThreads>
NSAI_DEVICE void load_index_keys(const NsaiIndexKl &p, const IndexItem &at, int first, int keys,
                                 u32 base, int thread) {
  using F = IndexKlTraits<Config>;
  const u16 *gKeys = index_keys(p, at.item, first);
  load_tile<typename F::IndexK, Config::kKeys, Config::kIndexDim, kThreads>(
      base + F::kSIndexK,
      [&](int row, const u16 *&from) {
        from = gKeys + row * p.k_idx.token_stride;
        return row < keys;
      },
      thread);
}

// Stores dk [16 keys, Di] of a warp to k_partial.
template <class Config, int kO>
NSAI_DEVICE void store_key_sums(const NsaiIndexKl &p, const IndexItem &at, const float (&dk)[kO][4],
                                int first, int keys, int warp_key) {
  float *gKeys =
      p.k_partial +
      (((long long)at.head * p.item_capacity + at.number) * Config::kSelectBlock + first) *
          Config::kIndexDim; // [keys, Di]
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = warp_key + r * 8 + (int)(threadIdx.x & 31) / 4;
    for_columns<Config::kIndexDim>(dk, r, 1.0f, [&](int column, const float4 &x) {
      if (key < keys) *(float4 *)(gKeys + (long long)key * Config::kIndexDim + column) = x;
    });
  }
}
