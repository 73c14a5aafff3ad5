// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_index_kl: the loss of an index branch and its gradients, KV-stationary: the keys of a block
// over the tokens that have chosen it. For a token t, its index head r and the G query heads h of KV
// head r, with the log-sum-exps known:
//
//   Pm = 1/G sum over h of exp(scale q[t, h] . k[p, r] - lse[t, h])     Pi = exp(si qi . ki[p] - row_lse)
//   dS = Pi - Pm       loss = sum of Pm log2(Pm / Pi)      dQ[t] += dS ki[p]      dK[p] += dS qi[t]
//
//   q [T, Hq, Dk], k [rows, Hkv, Dk], index_q [T, Hi, Di], k_idx [rows, 1, Di], lse [T, Hq],
//   row_lse [heads, chunk_tokens]
//   -> q_partial [heads, entries, Di], k_partial [heads, items, l', Di], item_loss [heads, items]
//
// No product is wasted, however much the lists of adjacent tokens differ. Probabilities are multiplied by
// NSAI_INDEX_KL_UNIT.
//
// Grid: backward/index_kl_items.cuh. Tokens pass by in tiles of 16, with 16 * kGroupPadded rows of Q,
// token-major, of which a stage holds kRows:
//
//   each stage      S^T = K Q^T, P, sums over heads -> Pm [keys, 16] in shared memory
//   each tile       Si^T = Ki Qi^T (16 keys per warp), dS -> dK in registers, dS in shared memory
//                   dQ = dS Ki (16 columns at a time per warp) -> q_partial
//
// The first of these has G / 3 times the products of the rest. Its keys are split among kWarps warps in
// one or two groups of rows: with two, each warp has 32 keys and half of the rows, which halves what is
// read of shared memory. kWgmma: a warpgroup has 64 keys and all rows (sm_90a). With kKeyRegisters K stays
// in registers. What rows do not see is masked in dS alone.
//
// Blocks of more than kKeys keys take several rounds, which add to q_partial.
//
// Shared memory: nsai_smem_index_kl() of params/smem.h.
//
// Config: Element, kHeadDimQk, kIndexDim, kGroup, kGroupPadded, kKeys, kRows, kStages (1 to 3), kMeans
// (1), kWarps (kKeys / 16), kWgmma, kKeyRegisters, kEntries (most tokens of an item), kSelectBlock (l'),
// kThreads, kMinBlocks, kSharedBytes.
#pragma once
#include "backward/index_kl_items.cuh"
#include "backward/index_kl_student.cuh"
#include "backward/index_kl_teacher.cuh"
#include "backward/products.cuh"
#include "core/launch.cuh"

// A tile of 16 tokens whose Pm is in shared memory. All threads call it.
template <class Config>
NSAI_DEVICE float add_tile(const NsaiIndexKl &p, const IndexItem &at,
                           float (&dk)[1][IndexKlTraits<Config>::kIndexCols / 8][4], u32 base,
                           int tile, bool adds) {
  using F = IndexKlTraits<Config>;
  using E = typename Config::Element;
  const int warp_key = recomputed(threadIdx.x) / 32 * 16;
  float s[1][2][4]; // [16 keys, 16 tokens]
  multiply_rows<E, typename F::IndexK, typename F::IndexQ, Config::kIndexDim>(
      s, base + F::kSIndexK, warp_key, F::index_q(base, tile));
  const float loss = compare<Config>(p, s[0], base, tile, (int)threadIdx.x / 32 * 16);
  u32 x[1][4];
  softmax_pack<E>(x[0], s[0][0], s[0][1]);
  if (p.k_partial) multiply_fragments<E, typename F::IndexQ>(dk, x, F::index_q(base, tile), 0);
  if (p.q_partial) {
    store_scores<Config>(x[0], base, (int)threadIdx.x / 32 * 16);
    __syncthreads(); // dS of all keys
    multiply_scores<Config, Config::kWarps>(p, at, base, tile, adds, threadIdx.x / 32);
  }
  return loss;
}

// ---- one round: keys of the block over all tokens

template <class Config>
NSAI_DEVICE float run_round(const NsaiIndexKl &p, const IndexItem &at, const u32 *sEntries,
                            int first, u32 base) {
  using F = IndexKlTraits<Config>;
  constexpr int kAhead = Config::kStages > 1 ? Config::kStages - 1 : 1; // stages on their way
  const int keys = min(at.item.keys - first, Config::kKeys);
  const TokenStages<Config> stages = { p, at, sEntries, first, base };
  const int count = stages.count();
  float dk[1][F::kIndexCols / 8][4] = {}; // [16 keys, Di]
  float loss = 0.0f;
  TeacherKeys<Config> teacher;
  StageWords<Config> words;
  TokenWords token_words;
  auto start = [&](int n) {
    stages.start_rows(n, words);
    if (n % F::kParts == 0)
      stages.template start_index<Config::kThreads>(n / F::kParts, token_words, threadIdx.x);
  };
  auto finish = [&](int n) {
    stages.finish_rows(n, words);
    if (n % F::kParts == 0) stages.finish_index(n / F::kParts, token_words, threadIdx.x);
  };
  load_index_keys<Config, Config::kThreads>(p, at, first, keys, base, threadIdx.x);
  teacher.load(p, at, first, keys, base);
  for (int n = 0; n < kAhead; ++n) {
    if (n < count) {
      start(n);
      finish(n);
    }
    copy_async_commit();
  }
  for (int n = 0; n < count; ++n) {
    const int next = n + kAhead;
    copy_async_wait<kAhead - 1>();
    if constexpr (Config::kWgmma) shared_proxy_fence();
    __syncthreads(); // stage n has arrived, and all have finished with stage n - 1
    if (Config::kStages > 1 && next < count) start(next);
    if (Config::kStages > 1) copy_async_commit();
    teacher.add_stage(p.scale_log2, base, n);
    if (Config::kStages > 1 && next < count) finish(next);
    if (n % F::kParts == F::kParts - 1) {
      __syncthreads(); // Pm of the tile
      loss += add_tile<Config>(p, at, dk, base, n / F::kParts, first > 0);
    }
    if (Config::kStages == 1) {
      __syncthreads(); // all have finished with the stage
      if (next < count) {
        start(next);
        finish(next);
      }
      copy_async_commit();
    }
  }
  copy_async_wait<0>(); // a CTA must not exit with cp.async in flight
  if (!p.k_partial) return loss;
  store_key_sums<Config>(p, at, dk[0], first, keys, (int)threadIdx.x / 32 * 16);
  return loss;
}

template <class Config> NSAI_DEVICE void run_item(const NsaiIndexKl &p) {
  using F = IndexKlTraits<Config>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const u32 base = shared_address(shared_bytes);
  u32 *sEntries = (u32 *)(shared_bytes + F::kSEntries); // [kEntries]
  float *sLoss = (float *)(shared_bytes + F::kSMean);   // [kWarps], when Pm is no longer needed
  IndexItem at;
  if (!find_item(p, at)) return;
  at.item.count = min(at.item.count, Config::kEntries);
  for (int i = threadIdx.x; i < at.item.count; i += Config::kThreads) sEntries[i] = at.gEntries[i];
  float loss = 0.0f;
  for (int first = 0; first < at.item.keys; first += Config::kKeys) {
    __syncthreads(); // the entries; all have finished with the round before
    loss += run_round<Config>(p, at, sEntries, first, base);
  }
  loss = warp_sum(loss);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sLoss[threadIdx.x / 32] = loss;
  __syncthreads();
  if (threadIdx.x) return;
  for (int warp = 1; warp < Config::kWarps; ++warp) loss += sLoss[warp];
  p.item_loss[(long long)at.head * p.item_capacity + at.number] = loss;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_index_kl(const __grid_constant__ NsaiIndexKl p) {
  begin_kernel();
  run_item<Config>(p);
}
