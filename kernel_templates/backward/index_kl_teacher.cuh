// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The attention's side of backward_index_kl and backward_index_kl_pipelined: where their tiles lie in
// shared memory, the copies of query rows, and the mean probability Pm of the keys for each token, from a
// stage of query rows.
//
// Config: as in backward/index_kl.cuh. kThreads: those that share the copies.
#pragma once
#include "backward/index_kl_items.cuh"
#include "backward/products.cuh"
#include "core/softmax.cuh"

template <class Config> struct IndexKlTraits {
  static constexpr int kTokens = 16; // of a tile: the k dimension of dK
  static constexpr int kCols = padded_dim(Config::kHeadDimQk),
                       kIndexCols = padded_dim(Config::kIndexDim);
  static constexpr int kParts = kTokens * Config::kGroupPadded / Config::kRows; // stages of a tile
  // Groups of warps that share the rows of a stage; rows, and m16 tiles of keys, of a warp.
  static constexpr int kRowGroups = !Config::kWgmma && Config::kWarps >= 2 && Config::kRows >= 32 &&
                                            Config::kGroupPadded <= Config::kRows / 2
                                        ? 2
                                        : 1;
  static constexpr int kColumns = Config::kRows / kRowGroups, kN = kColumns / 8;
  static constexpr int kM = kRowGroups;
  using K = ProductTile<Config::kWgmma, Config::kKeys, kCols>;
  using Q = ProductTile<Config::kWgmma, Config::kRows, kCols>;
  using IndexK = Tile<Config::kKeys, kIndexCols>;
  using IndexQ = Tile<kTokens, kIndexCols>;
  using Scores = Tile<Config::kKeys, kTokens>;
  static constexpr int kMeanPitch = 4 * NSAI_INDEX_KL_MEAN_WORDS; // bytes: no bank conflicts

  // Shared memory layout: offsets in bytes. Those of stages are [kStages].
  static constexpr int kSQ = 0;
  static constexpr int kSK = kSQ + Config::kStages * Q::kBytes; // unless in registers
  static constexpr int kSIndexK = kSK + (Config::kKeyRegisters ? 0 : K::kBytes);
  static constexpr int kSIndexQ = kSIndexK + IndexK::kBytes; // of a tile
  static constexpr int kSMean =
      kSIndexQ + Config::kStages * IndexQ::kBytes; // f32 [kMeans, kKeys, kTokens]
  static constexpr int kMeanBytes = Config::kKeys * kMeanPitch;
  static constexpr int kSScores = kSMean + Config::kMeans * kMeanBytes;
  static constexpr int kSTokens = kSScores + Scores::kBytes; // LSE and keys seen [kTokens]
  static constexpr int kSLse = kSTokens + Config::kStages * 8 * kTokens; // f32 [kRows]
  static constexpr int kSEntries = kSLse + Config::kStages * 4 * Config::kRows;
  static constexpr int kSArrived = kSEntries + 4 * Config::kEntries; // barriers of boxes
  static constexpr int kBytes = kSArrived + (Config::kMeans > 1 ? 8 * Config::kStages : 0);
  static_assert(kBytes == Config::kSharedBytes, "the host computes another size of shared memory");
  static_assert(Config::kKeys == 16 * Config::kWarps && Config::kThreads == 32 * Config::kWarps,
                "each warp has 16 keys of the index");
  static_assert(!Config::kWgmma || Config::kKeys % 64 == 0, "a warpgroup multiplies 64 keys");
  static_assert(kTokens * Config::kGroupPadded % Config::kRows == 0 && Config::kRows % 16 == 0,
                "stages are whole");

  static NSAI_DEVICE u32 q(u32 base, int n) { return base + kSQ + n % Config::kStages * Q::kBytes; }
  static NSAI_DEVICE u32 lse(u32 base, int n) {
    return base + kSLse + n % Config::kStages * (4 * Config::kRows);
  }
  static NSAI_DEVICE u32 index_q(u32 base, int tile) {
    return base + kSIndexQ + tile % Config::kStages * IndexQ::kBytes;
  }
  static NSAI_DEVICE u32 tokens(u32 base, int tile) {
    return base + kSTokens + tile % Config::kStages * (8 * kTokens);
  }
  // Pm of a tile: address of key 0, token 0.
  static NSAI_DEVICE u32 means(u32 base, int tile) {
    return base + kSMean + tile % Config::kMeans * kMeanBytes;
  }
  static NSAI_DEVICE u32 mean(u32 means, int key, int token) {
    return means + key * kMeanPitch + 4 * token;
  }
};

// ---- copies

// What a thread knows of a stage, and of a tile's tokens, before it can store it.
template <class Config> struct StageWords {
  static constexpr int kPerThread = ceil_div(Config::kRows, Config::kThreads);
  float lse[kPerThread];
};
struct TokenWords {
  float student; // LSE of the index
  int seen;
};

// The tokens of an item: tiles, whose rows pass by in stages. What start_*() loads, finish_*() stores
// when a step between has hidden the loads.
template <class Config> struct TokenStages {
  using F = IndexKlTraits<Config>;
  const NsaiIndexKl &p;
  const IndexItem &at;
  const u32 *sEntries; // [item.count]
  int first_key;       // of the round
  u32 base;

  NSAI_DEVICE int tiles() const { return ceil_div(at.item.count, F::kTokens); }
  NSAI_DEVICE int count() const { return tiles() * F::kParts; }
  NSAI_DEVICE int token(int i) const {
    return IndexItem::token(p, sEntries[min(i, at.item.count - 1)]);
  }

  // Starts the copies of the query rows of stage n.
  NSAI_DEVICE void start_rows(int n, StageWords<Config> &words) const {
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
  }
  NSAI_DEVICE void finish_rows(int n, const StageWords<Config> &words) const {
#pragma unroll
    for (int i = 0; i < StageWords<Config>::kPerThread; ++i) {
      const int row = threadIdx.x + i * Config::kThreads;
      if (row < Config::kRows)
        store_shared_word(F::lse(base, n) + 4 * row,
                          __float_as_uint(fmaf(words.lse[i], kLog2e, -p.teacher_shift)));
    }
  }

  // Starts the copies of a tile's index queries by kThreads threads.
  template <int kThreads>
  NSAI_DEVICE void start_index(int tile, TokenWords &words, int thread) const {
    const int first = tile * F::kTokens;
    load_tile<typename F::IndexQ, F::kTokens, Config::kIndexDim, kThreads>(
        F::index_q(base, tile),
        [&](int row, const u16 *&from) {
          from = index_query(p, token(first + row), at.head);
          return first + row < at.item.count;
        },
        thread);
    const int i = first + thread;
    words = { 0.0f, 0 };
    if (thread < F::kTokens && i < at.item.count) {
      words.seen = at.seen(token(i), first_key);
      words.student = p.row_lse[(long long)at.head * p.chunk_tokens + entry_token(sEntries[i])];
    }
  }
  NSAI_DEVICE void finish_index(int tile, const TokenWords &words, int thread) const {
    constexpr float kShift = 8.0f;
    static_assert(NSAI_INDEX_KL_UNIT == 1 << 8, "kShift is its logarithm");
    if (thread < F::kTokens)
      store_shared_pair(F::tokens(base, tile) + 8 * thread,
                        make_uint2(__float_as_uint(words.student - kShift), (u32)words.seen));
  }
};

// ---- sums over heads

// Adds up two values over a pair of lanes: the even lane gets the sum of a, the odd one that of b.
NSAI_DEVICE float exchange_sum(float a, float b) {
  const bool odd = threadIdx.x & 1;
  return (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 1);
}

// Stores or adds Pm of a key and token, of which one lane stores all parts; `means`: of the tile.
template <class Config>
NSAI_DEVICE void put_mean(u32 means, int key, int token, float x, bool adds) {
  const u32 to = IndexKlTraits<Config>::mean(means, key, token);
  if (adds) x += __uint_as_float(load_shared_word(to));
  store_shared_word(to, __float_as_uint(x));
}

// Sums of P [16 keys, columns] over the heads of each token; `key`: the lane's first, `first_row`: the
// row of the tile that column 0 is.
template <class Config, int kN>
NSAI_DEVICE void sum_heads(const float (&s)[kN][4], u32 means, int key, int first_row) {
  constexpr int kGroup = Config::kGroupPadded;
  constexpr int kTiles = kGroup >= 8 * kN ? kN : kGroup >= 8 ? kGroup / 8 : 1; // n8 tiles of a sum
  const int pair = threadIdx.x & 3;
  const bool adds = kGroup > 8 * kN && first_row % kGroup != 0;
#pragma unroll
  for (int j = 0; j < kN; j += kTiles) {
    const int row = first_row + 8 * j;
    if constexpr (kGroup == 1) {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        put_mean<Config>(means, key + c / 2 * 8, row + 2 * pair + c % 2, s[j][c], false);
    } else {
      float a = 0.0f, b = 0.0f; // of the lane's two keys
#pragma unroll
      for (int i = j; i < j + kTiles; ++i) {
        a += s[i][0] + s[i][1];
        b += s[i][2] + s[i][3];
      }
      if constexpr (kGroup == 2) {
        put_mean<Config>(means, key, row / 2 + pair, a, false);
        put_mean<Config>(means, key + 8, row / 2 + pair, b, false);
      } else {
        float x = exchange_sum(a, b);
        if constexpr (kGroup >= 8) x += __shfl_xor_sync(~0u, x, 2);
        const int token = kGroup == 4 ? row / 4 + pair / 2 : row / kGroup;
        if (kGroup == 4 || pair < 2) put_mean<Config>(means, key + pair % 2 * 8, token, x, adds);
      }
    }
  }
}

// ---- products

// The warp's keys of K: A fragments, or a tile in shared memory.
template <class Config> struct TeacherKeys {
  using F = IndexKlTraits<Config>;
  using E = typename Config::Element;
  static constexpr int kSteps = Config::kKeyRegisters ? F::kCols / 16 : 1;
  u32 rK[F::kM][kSteps][4]; // [16, Dk] each
  int first_key;            // of the warp, in the round

  static NSAI_DEVICE int row_group() {
    return F::kRowGroups == 1 ? 0 : recomputed(threadIdx.x) / 32 / (Config::kWarps / 2);
  }
  static NSAI_DEVICE int warp_key() {
    const int warp = recomputed(threadIdx.x) / 32;
    return 16 * F::kM * (F::kRowGroups == 1 ? warp : warp % (Config::kWarps / 2));
  }

  NSAI_DEVICE void load(const NsaiIndexKl &p, const IndexItem &at, int first, int keys, u32 base) {
    const u16 *gK = (const u16 *)p.k.data + (at.item.kv_row + first) * p.k.token_stride +
                    (p.head_begin + at.head) * p.k.head_stride; // [keys, Dk]
    if constexpr (!Config::kKeyRegisters) {
      load_tile<typename F::K, Config::kKeys, Config::kHeadDimQk, Config::kThreads>(
          base + F::kSK, [&](int row, const u16 *&from) {
            from = gK + row * p.k.token_stride;
            return row < keys;
          });
      return;
    }
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int m = 0; m < F::kM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = warp_key() + 16 * m + 8 * r + lane / 4;
        const u32 *gPair = (const u32 *)(gK + key * p.k.token_stride) + lane % 4;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          rK[m][i][r] = key < keys ? gPair[8 * i] : 0;
          rK[m][i][r + 2] = key < keys && 16 * i + 8 < Config::kHeadDimQk ? gPair[8 * i + 4] : 0;
        }
      }
  }

  // Issues S^T [64 keys, kRows] of the warpgroup.
  NSAI_DEVICE void start(float (&s)[F::kM][F::kN][4], u32 base, u32 sQ) const {
    const u64 q = wgmma_k_major(sQ);
    const u64 k = wgmma_k_major(base + F::kSK + warp_uniform(warp_key() / 64) * 64 * kPanelPitch);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < F::kCols / 16; ++i) {
      if constexpr (Config::kKeyRegisters)
        wgmma_qk<E, Config::kRows>(s[0][0], rK[0][i], q + wgmma_k_step<Config::kRows>(i), i > 0);
      else
        wgmma_qk<E, Config::kRows>(s[0][0], k + wgmma_k_step<Config::kKeys>(i),
                                   q + wgmma_k_step<Config::kRows>(i), i > 0);
    }
    wgmma_commit();
  }

  // S^T [16 kM keys, kColumns] of the warp.
  NSAI_DEVICE void multiply(float (&s)[F::kM][F::kN][4], u32 base, u32 sQ) const {
    if constexpr (Config::kWgmma) {
      start(s, base, sQ);
      wgmma_wait<0>();
      hold(s[0]);
    } else {
      const u32 sRows = sQ + row_group() * F::kColumns * F::Q::kPitch;
      if constexpr (Config::kKeyRegisters)
        multiply_held(s, sRows);
      else
        multiply_rows<E, typename F::K, typename F::Q, Config::kHeadDimQk>(s, base + F::kSK,
                                                                           warp_key(), sRows);
    }
  }

  NSAI_DEVICE void multiply_held(float (&s)[F::kM][F::kN][4], u32 sRows) const {
    const int lane = recomputed(threadIdx.x) % 32;
    const u32 q = sRows + F::Q::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    clear(s);
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
#pragma unroll
      for (int j = 0; j < F::kN; j += 2) {
        u32 rQ[4]; // [16 rows, 16]
        ldmatrix_x4(rQ, at_step<typename F::Q>(q, i) + j * 8 * F::Q::kPitch);
#pragma unroll
        for (int m = 0; m < F::kM; ++m) mma_m16n16k16(E(), s[m][j], s[m][j + 1], rK[m][i], rQ);
      }
  }

  // Pm of a stage's rows, from their scores and sLse; `first_row`: the row of the tile at which the stage
  // begins.
  NSAI_DEVICE void add_scores(float (&s)[F::kM][F::kN][4], float scale_log2, u32 sLse, u32 means,
                              int first_row) const {
    const int lane = threadIdx.x & 31, first = row_group() * F::kColumns;
    sLse += 4 * (first + lane % 4 * 2);
#pragma unroll
    for (int j = 0; j < F::kN; ++j) {
      const uint2 lse = load_shared_pair(sLse + 32 * j);
#pragma unroll
      for (int m = 0; m < F::kM; ++m)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          s[m][j][c] =
              exp2_approx(fmaf(s[m][j][c], scale_log2, -__uint_as_float(c % 2 ? lse.y : lse.x)));
    }
#pragma unroll
    for (int m = 0; m < F::kM; ++m)
      sum_heads<Config>(s[m], means, warp_key() + 16 * m + lane / 4, first_row + first);
  }

  NSAI_DEVICE void add_stage(float scale_log2, u32 base, int n) const {
    float s[F::kM][F::kN][4]; // [16 keys, kColumns]
    multiply(s, base, F::q(base, n));
    add_scores(s, scale_log2, F::lse(base, n), F::means(base, n / F::kParts),
               n % F::kParts * Config::kRows);
  }
};
