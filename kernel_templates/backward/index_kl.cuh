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
// Config: Element, kHeadDimQk, kIndexDim, kGroup, kGroupPadded, kKeys, kRows, kStages (1 to 3), kWarps
// (kKeys / 16), kWgmma, kKeyRegisters, kEntries (most tokens of an item), kSelectBlock (l'), kThreads,
// kMinBlocks, kSharedBytes.
#pragma once
#include "backward/index_kl_items.cuh"
#include "backward/index_kl_teacher.cuh"
#include "backward/products.cuh"
#include "core/launch.cuh"

// ---- copies

// What a thread knows of a stage before it can store it: log-sum-exps of rows, and of the tile's tokens.
template <class Config> struct StageWords {
  static constexpr int kPerThread = ceil_div(Config::kRows, Config::kThreads);
  float lse[kPerThread];
  float student;
  int seen;
};

// The tokens of an item, in stages.
template <class Config> struct TokenStages {
  using F = IndexKlTraits<Config>;
  const NsaiIndexKl &p;
  const IndexItem &at;
  const u32 *sEntries; // [item.count]
  int first_key;       // of the round
  u32 base;

  NSAI_DEVICE int count() const { return ceil_div(at.item.count, F::kTokens) * F::kParts; }
  NSAI_DEVICE int token(int i) const {
    return IndexItem::token(p, sEntries[min(i, at.item.count - 1)]);
  }

  // Starts the copies of stage n; of a tile's first stage with its index queries.
  NSAI_DEVICE void start(int n, StageWords<Config> &words) const {
    const int tile = n / F::kParts, part = n % F::kParts, first = tile * F::kTokens;
    const int first_row = part * Config::kRows,
              first_head = (p.head_begin + at.head) * Config::kGroup;
    auto entry_of = [&](int row) { return first + (first_row + row) / Config::kGroupPadded; };
    auto head_of = [&](int row) { return (first_row + row) % Config::kGroupPadded; };
    auto present = [&](int row) {
      return entry_of(row) < at.item.count && head_of(row) < Config::kGroup;
    };
    load_tile<typename F::Q, Config::kRows, Config::kHeadDimQk, Config::kThreads>(
        F::q(base, n), [&](int row, const u16 *&from) {
          const int head = first_head + min(head_of(row), Config::kGroup - 1);
          from = (const u16 *)p.q.data + token(entry_of(row)) * p.q.token_stride +
                 head * p.q.head_stride;
          return present(row);
        });
#pragma unroll
    for (int i = 0; i < StageWords<Config>::kPerThread; ++i) {
      const int row = threadIdx.x + i * Config::kThreads;
      words.lse[i] = kPlusInf; // P = 0
      if (row < Config::kRows && present(row))
        words.lse[i] = p.lse[token(entry_of(row)) * p.lse_token_stride +
                             (first_head + head_of(row)) * p.lse_head_stride];
    }
    if (part) return;
    load_tile<typename F::IndexQ, F::kTokens, Config::kIndexDim, Config::kThreads>(
        F::index_q(base, tile), [&](int row, const u16 *&from) {
          from = index_query(p, token(first + row), at.head);
          return first + row < at.item.count;
        });
    const int i = first + threadIdx.x;
    words.seen = 0;
    words.student = 0.0f;
    if (threadIdx.x < F::kTokens && i < at.item.count) {
      words.seen = at.seen(token(i), first_key);
      words.student = p.row_lse[(long long)at.head * p.chunk_tokens + entry_token(sEntries[i])];
    }
  }

  // Stores the words of stage n, whose loads the step between has hidden.
  NSAI_DEVICE void finish(int n, const StageWords<Config> &words) const {
#pragma unroll
    for (int i = 0; i < StageWords<Config>::kPerThread; ++i) {
      const int row = threadIdx.x + i * Config::kThreads;
      if (row < Config::kRows)
        store_shared_word(F::lse(base, n) + 4 * row,
                          __float_as_uint(fmaf(words.lse[i], kLog2e, -p.teacher_shift)));
    }
    if (n % F::kParts || threadIdx.x >= F::kTokens) return;
    constexpr float kShift = 8.0f;
    static_assert(NSAI_INDEX_KL_UNIT == 1 << 8, "kShift is its logarithm");
    store_shared_pair(F::tokens(base, n / F::kParts) + 8 * threadIdx.x,
                      make_uint2(__float_as_uint(words.student - kShift), (u32)words.seen));
  }
};

// ---- the index

// Turns the index's scores s [16 keys, 16 tokens] of a warp into dS, and adds to the loss. Keys that a
// token does not see are 0.
template <class Config>
NSAI_DEVICE float compare(const NsaiIndexKl &p, float (&s)[2][4], u32 base, int tile) {
  using F = IndexKlTraits<Config>;
  const int key = (int)threadIdx.x / 32 * 16 + (int)(threadIdx.x & 31) / 4;
  float loss = 0.0f;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int token = 8 * j + 2 * (threadIdx.x & 3);
    const Chunk about = load_shared(F::tokens(base, tile) + 8 * token); // of two tokens: LSE, seen
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint2 means = load_shared_pair(F::mean(base, key + 8 * r, token));
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
template <class Config> NSAI_DEVICE void store_scores(const u32 (&x)[4], u32 base) {
  using F = IndexKlTraits<Config>;
  const int lane = threadIdx.x & 31, key = (int)threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    store_shared_word(base + F::kSScores + F::Scores::offset(key + i % 2 * 8, i / 2) + lane % 4 * 4,
                      x[i]);
}

// dQ of a tile of tokens: [16, 16] = dS [16, kKeys] Ki [kKeys, 16] at a time.
template <class Config>
NSAI_DEVICE void multiply_scores(const NsaiIndexKl &p, const IndexItem &at, u32 base, int tile,
                                 bool adds) {
  using F = IndexKlTraits<Config>;
  const int lane = threadIdx.x & 31;
  const u32 x_at = base + F::kSScores + F::Scores::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const u32 k_at = base + F::kSIndexK + F::IndexK::offset(lane % 16, lane / 16);
  for (int pair = threadIdx.x / 32; pair < F::kIndexCols / 16; pair += Config::kWarps) {
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
  const float loss = compare<Config>(p, s[0], base, tile);
  u32 x[1][4];
  softmax_pack<E>(x[0], s[0][0], s[0][1]);
  if (p.k_partial) multiply_fragments<E, typename F::IndexQ>(dk, x, F::index_q(base, tile), 0);
  if (p.q_partial) {
    store_scores<Config>(x[0], base);
    __syncthreads(); // dS of all keys
    multiply_scores<Config>(p, at, base, tile, adds);
  }
  return loss;
}

// ---- one round: keys of the block over all tokens

template <class Config>
NSAI_DEVICE void load_index_keys(const NsaiIndexKl &p, const IndexItem &at, int first, int keys,
                                 u32 base) {
  using F = IndexKlTraits<Config>;
  const u16 *gKeys = index_keys(p, at.item, first);
  load_tile<typename F::IndexK, Config::kKeys, Config::kIndexDim, Config::kThreads>(
      base + F::kSIndexK, [&](int row, const u16 *&from) {
        from = gKeys + row * p.k_idx.token_stride;
        return row < keys;
      });
}

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
  load_index_keys<Config>(p, at, first, keys, base);
  teacher.load(p, at, first, keys, base);
  for (int n = 0; n < kAhead; ++n) {
    if (n < count) {
      stages.start(n, words);
      stages.finish(n, words);
    }
    copy_async_commit();
  }
  for (int n = 0; n < count; ++n) {
    const int next = n + kAhead;
    copy_async_wait<kAhead - 1>();
    if constexpr (Config::kWgmma) shared_proxy_fence();
    __syncthreads(); // stage n has arrived, and all have finished with stage n - 1
    if (Config::kStages > 1 && next < count) stages.start(next, words);
    if (Config::kStages > 1) copy_async_commit();
    teacher.add_stage(p.scale_log2, base, n);
    if (Config::kStages > 1 && next < count) stages.finish(next, words);
    if (n % F::kParts == F::kParts - 1) {
      __syncthreads(); // Pm of the tile
      loss += add_tile<Config>(p, at, dk, base, n / F::kParts, first > 0);
    }
    if (Config::kStages == 1) {
      __syncthreads(); // all have finished with the stage
      if (next < count) {
        stages.start(next, words);
        stages.finish(next, words);
      }
      copy_async_commit();
    }
  }
  copy_async_wait<0>(); // a CTA must not exit with cp.async in flight
  if (!p.k_partial) return loss;
  float *gKeys =
      p.k_partial +
      (((long long)at.head * p.item_capacity + at.number) * Config::kSelectBlock + first) *
          Config::kIndexDim; // [keys, Di]
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = (int)threadIdx.x / 32 * 16 + r * 8 + (int)(threadIdx.x & 31) / 4;
    for_columns<Config::kIndexDim>(dk[0], r, 1.0f, [&](int column, const float4 &x) {
      if (key < keys) *(float4 *)(gKeys + (long long)key * Config::kIndexDim + column) = x;
    });
  }
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
