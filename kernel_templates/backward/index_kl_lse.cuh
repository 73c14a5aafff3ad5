// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_index_kl_lse: the log-sum-exp of the index's scores over each chosen block, by mma.sync.
//
//   entry_lse[entry] = log2 sum over the keys p <= t of the entry's block of 2^(si log2(e) qi[t] . ki[p])
//
//   index_q [T, Hi, Di], k_idx [rows, 1, Di] -> entry_lse [heads, entries]
//
// Grid: backward/index_kl_items.cuh. A CTA holds kKeys keys of its item's block, and a warp takes 16
// tokens of the list at a time, whose queries it loads into registers. Blocks of more keys take several
// rounds, of which each adds to what the round before has stored.
//
// Shared memory: nsai_smem_index_kl_lse() of params/smem.h.
//
// Config: Element, kIndexDim, kKeys (a multiple of 32), kWarps, kThreads, kMinBlocks, kSharedBytes.
#pragma once
#include "backward/index_kl_items.cuh"
#include "backward/products.cuh"
#include "core/launch.cuh"
#include "core/softmax.cuh"

template <class Config> struct LseTraits {
  static constexpr int kCols = padded_dim(Config::kIndexDim);
  static constexpr int kSteps = kCols / 16;
  static constexpr int kSlice = 32; // keys whose scores a warp holds
  using Keys = Tile<Config::kKeys, kCols>;
  static_assert(Config::kKeys % kSlice == 0, "slices are whole");
  static_assert(Keys::kBytes == Config::kSharedBytes, "the host computes another size");
};

// The running sum of a row in one lane's columns.
struct ScoreSum {
  float reference = kNoReference, sum = 0.0f;
  NSAI_DEVICE void add(const float (&x)[8]) {
    float most = reference;
#pragma unroll
    for (int i = 0; i < 8; ++i) most = fmaxf(most, x[i]);
    sum *= exp2_approx(reference - most);
    reference = most;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += exp2_approx(x[i] - most);
  }
  // Over the four lanes of the row; -inf without a key.
  NSAI_DEVICE float total() const {
    float most = reference;
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float all = lanes_sum<4>(sum * exp2_approx(reference - most));
    return all > 0.0f ? most + log2_approx(all) : kMinusInf;
  }
};

// log2(2^a + 2^b), where a is finite.
NSAI_DEVICE float add_logs(float a, float b) {
  const float most = fmaxf(a, b);
  return most + log2_approx(exp2_approx(a - most) + exp2_approx(b - most));
}

// Loads the queries of 16 entries from `first` on as A fragments; zeros behind the last.
template <class Config, int kSteps>
NSAI_DEVICE void load_index_queries(const NsaiIndexKl &p, const IndexItem &at, int first,
                                    u32 (&rQ)[kSteps][4], int (&token)[2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int i = first + lane / 4 + 8 * r;
    const bool present = i < at.item.count;
    token[r] = IndexItem::token(p, at.gEntries[min(i, at.item.count - 1)]);
    const u32 *gPair = (const u32 *)index_query(p, token[r], at.head) + lane % 4;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      rQ[k][r] = present ? gPair[8 * k] : 0;
      rQ[k][r + 2] = present && 16 * k + 8 < Config::kIndexDim ? gPair[8 * k + 4] : 0;
    }
  }
}

template <class Config> NSAI_DEVICE void sum_scores(const NsaiIndexKl &p) {
  using F = LseTraits<Config>;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  const u32 sKeys = shared_address(shared_bytes); // [kKeys, Di]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  IndexItem at;
  if (!find_item(p, at)) return;
  float *gLse = p.entry_lse + at.head * p.entry_capacity + at.item.begin; // [item.count]
  const u32 k_at = sKeys + F::Keys::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);

  for (int first = 0; first < at.item.keys; first += Config::kKeys) {
    const u16 *gKeys = index_keys(p, at.item, first);
    const int keys = min(at.item.keys - first, Config::kKeys);
    if (first) __syncthreads(); // all warps have finished with the keys before
    load_tile<typename F::Keys, Config::kKeys, Config::kIndexDim, Config::kThreads>(
        sKeys, [&](int row, const u16 *&from) {
          from = gKeys + row * p.k_idx.token_stride;
          return row < keys;
        });
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads(); // the keys have arrived
    for (int tile = 16 * warp; tile < at.item.count; tile += 16 * Config::kWarps) {
      u32 rQ[F::kSteps][4]; // [16, Di]
      int token[2];
      load_index_queries<Config>(p, at, tile, rQ, token);
      const int seen[2] = { at.seen(token[0], first), at.seen(token[1], first) };
      ScoreSum sums[2];
#pragma unroll 1
      for (int slice = 0; slice < keys; slice += F::kSlice) {
        float s[4][4]; // [16, 32]
        clear(s);
#pragma unroll
        for (int k = 0; k < F::kSteps; ++k)
#pragma unroll
          for (int n = 0; n < 4; n += 2) {
            u32 rK[4]; // [16 keys, 16]
            ldmatrix_x4(rK, at_step<typename F::Keys>(k_at, k) + (slice + 8 * n) * F::Keys::kPitch);
            mma_m16n16k16(typename Config::Element(), s[n], s[n + 1], rQ[k], rK);
          }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float x[8];
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const int key = slice + 8 * (i / 2) + 2 * (lane % 4) + i % 2;
            x[i] = key < seen[r] ? s[i / 2][2 * r + i % 2] * p.index_scale_log2 : kMinusInf;
          }
          sums[r].add(x);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = tile + lane / 4 + 8 * r;
        const float total = sums[r].total();
        if (lane % 4 || i >= at.item.count) continue;
        gLse[i] = first ? add_logs(gLse[i], total) : total;
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_index_kl_lse(const __grid_constant__ NsaiIndexKl p) {
  begin_kernel();
  sum_scores<Config>(p);
}
