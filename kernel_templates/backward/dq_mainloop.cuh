// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The query-stationary half of the backward pass: a tile of query rows over the keys of each branch
// in turn. backward_row_stats and backward_dq share it; they differ in what they do with the
// products:
//
//   S = scale Q K^T      dU = dO V^T
//   statistics: LSE, u = sum P dU, by online softmax as in the forward pass; needs no forward
//   output
//   d_q:        dQ += scale dS K with dS = g P (dU - u), in registers over all branches
//
// Grid: x = kv_heads * tiles, KV head major; tiles as in attend/mainloop_sm80.cuh.
//
// CTA: kRows query rows of one KV head, token-major: row r is head r % kGroupPadded of the query
// group and token r / kGroupPadded of the tile. Each warp owns kRows / kWarps rows. Rows with t < 0
// are padding: zeros in the products, and gradients of 0.
//
// Keys: tiles of kKeys. In the window and compressed branch they cover the range that the tile's
// tokens see, in the selected branch the merged lists of the tokens. The keys that a row sees are
// bits of a word; a warp skips tiles of which its rows see none.
//
// Shared memory: nsai_smem_dq() of params/smem.h. With two stages the next tile is copied while one
// is computed.
//
// kWgmma: 1: the warpgroup computes each key tile as a whole (sm_90a).
//
// Config: Element, kHeadDimQk, kHeadDimV, kGroup, kGroupPadded, kRows, kKeys (16, 32, 64), kWarps,
// kWgmma, kStages (1, 2), kThreads, kMinBlocks, kSharedBytes, kGate, kBlock (l), kStride (d),
// kWindow (w; 0: no such branch), kSelectBlock (l'), kSelectCount (n; 0: no such branch), kRanges
// (1: lists of ranges).
#pragma once
#include "backward/pipelines/dq_keys.cuh"
#include "backward/products.cuh"
#include "core/launch.cuh"
#include "core/softmax.cuh"

// ---- passes: what becomes of S and dU

// LSE and u of each row.
template <class Config> struct StatisticsPass {
  using F = DqTraits<Config>;
  SoftmaxRows rows[F::kM];
  float inner[F::kM][2]; // sum of 2^(score - reference) dU over this lane's columns

  NSAI_DEVICE StatisticsPass() {}

  NSAI_DEVICE void begin(const NsaiBackwardQ &, const RowTile<Config> &, int) {
#pragma unroll
    for (int m = 0; m < F::kM; ++m) {
      rows[m] = SoftmaxRows();
      inner[m][0] = inner[m][1] = 0.0f;
    }
  }

  NSAI_DEVICE void step(const NsaiBackwardQ &p, float (&s)[F::kM][F::kN][4],
                        float (&du)[F::kM][F::kN][4], u32) {
#pragma unroll
    for (int m = 0; m < F::kM; ++m) {
      float factor[2];
      if (softmax_grow(rows[m], factor, s[m], p.scale_log2)) {
        inner[m][0] *= factor[0];
        inner[m][1] *= factor[1];
      }
#pragma unroll
      for (int j = 0; j < F::kN; ++j) softmax_exponentiate(rows[m], s[m][j], p.scale_log2);
    }
    if constexpr (Config::kWgmma) {
      wgmma_wait<0>();
      hold(du[0]);
    }
#pragma unroll
    for (int m = 0; m < F::kM; ++m)
#pragma unroll
      for (int j = 0; j < F::kN; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          inner[m][c / 2] = fmaf(s[m][j][c], du[m][j][c], inner[m][c / 2]);
  }

  NSAI_DEVICE void end(const NsaiBackwardQ &p, const RowTile<Config> &at, int branch) {
    const int heads = Config::kGroup * p.kv_heads;
#pragma unroll
    for (int m = 0; m < F::kM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = at.row(m, r), token = at.q_row(row), head = at.head(row);
        const float total = lanes_sum<4>(rows[m].sum[r]), sum = lanes_sum<4>(inner[m][r]);
        if (!at.exists(row) || threadIdx.x % 4) continue;
        RowStatistics x = { kPlusInf, 0.0f, 0.0f, 0.0f };
        if (total > 0.0f) {
          x = make_statistics<Config>(rows[m].reference[r] + log2_approx(total),
                                      read_gate<Config>(p.gate, p.gate_float, branch, token, head),
                                      sum / total);
        }
        ((RowStatistics *)p.statistics)[statistics_at(branch, p.seq.q_tokens, token, heads, head)] =
            x;
        store_gate<Config>(p.d_gate, token, head, branch, x);
      }
  }

  NSAI_DEVICE void finish(const NsaiBackwardQ &p, const RowTile<Config> &at) {
    // Gate gradients of branches that do not run are 0.
    const RowStatistics none = {};
#pragma unroll
    for (int m = 0; m < F::kM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = at.row(m, r);
        if (!at.exists(row) || threadIdx.x % 4) continue;
#pragma unroll
        for (int b = 0; b < NSAI_BRANCH_COUNT; ++b)
          if (p.absent >> b & 1) store_gate<Config>(p.d_gate, at.q_row(row), at.head(row), b, none);
      }
  }
};

// dQ over all branches.
template <class Config> struct QueryPass {
  using F = DqTraits<Config>;
  using E = typename Config::Element;
  static constexpr int kO = F::kColsQk / 8; // n8 tiles of dQ
  float dq[F::kM][kO][4];                   // [16, Dk] each
  float lse[F::kM][2], gate[F::kM][2], inner[F::kM][2];

  NSAI_DEVICE QueryPass() { clear(dq); }

  NSAI_DEVICE void begin(const NsaiBackwardQ &p, const RowTile<Config> &at, int branch) {
    const int heads = Config::kGroup * p.kv_heads;
#pragma unroll
    for (int m = 0; m < F::kM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = at.row(m, r);
        lse[m][r] = kPlusInf;
        gate[m][r] = inner[m][r] = 0.0f;
        if (!at.exists(row)) continue;
        const RowStatistics x = ((const RowStatistics *)p.statistics)[statistics_at(
            branch, p.seq.q_tokens, at.q_row(row), heads, at.head(row))];
        lse[m][r] = x.lse;
        gate[m][r] = x.gate;
        inner[m][r] = x.inner;
      }
  }

  NSAI_DEVICE void step(const NsaiBackwardQ &p, float (&s)[F::kM][F::kN][4],
                        float (&du)[F::kM][F::kN][4], u32 sK) {
    if constexpr (Config::kWgmma) {
#pragma unroll
      for (int j = 0; j < F::kN; ++j) probability(p, s[0][j], 0);
      wgmma_wait<0>();
      hold(du[0]);
#pragma unroll
      for (int j = 0; j < F::kN; ++j) score_gradient(s[0][j], du[0][j], 0);
      u32 rDS[F::kN / 2][4]; // [64, 16 keys] each
      pack_all<E>(rDS, s[0]);
      wgmma_fence();
      start_fragments<E, typename F::K>(dq[0], rDS, sK);
      wgmma_commit();
      wgmma_wait<0>();
      hold(dq[0]);
    } else {
#pragma unroll
      for (int j = 0; j < F::kN; j += 2) {
        u32 rDS[F::kM][4]; // [16, 16 keys]
#pragma unroll
        for (int m = 0; m < F::kM; ++m) {
#pragma unroll
          for (int i = j; i < j + 2; ++i) {
            probability(p, s[m][i], m);
            score_gradient(s[m][i], du[m][i], m);
          }
          softmax_pack<E>(rDS[m], s[m][j], s[m][j + 1]);
        }
        multiply_fragments<E, typename F::K>(dq, rDS, sK, 8 * j);
      }
    }
  }

  // probability: turns S into P'. score_gradient: turns P' into dS.
  NSAI_DEVICE void probability(const NsaiBackwardQ &p, float (&s)[4], int m) {
#pragma unroll
    for (int c = 0; c < 4; ++c)
      s[c] = gated_probability<Config>(s[c], p.scale_log2, lse[m][c / 2], gate[m][c / 2]);
  }
  NSAI_DEVICE void score_gradient(float (&s)[4], const float (&du)[4], int m) {
#pragma unroll
    for (int c = 0; c < 4; ++c) s[c] *= du[c] - inner[m][c / 2];
  }

  NSAI_DEVICE void end(const NsaiBackwardQ &, const RowTile<Config> &, int) {}

  NSAI_DEVICE void finish(const NsaiBackwardQ &p, const RowTile<Config> &at) {
#pragma unroll
    for (int m = 0; m < F::kM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = at.row(m, r);
        const bool exists = at.exists(row);
        const long long to =
            at.q_row(row) * p.d_q.view.token_stride + at.head(row) * p.d_q.view.head_stride;
        for_columns<Config::kHeadDimQk>(dq[m], r, p.scale, [&](int column, const float4 &x) {
          if (exists) store_gradients<E>(p.d_q, to + column, x);
        });
      }
  }
};

// ---- one branch

// Starts the copy of the keys from `first` on into a stage.
template <class Config, class Walk>
NSAI_DEVICE void load_key_tile(const NsaiBackwardQ &p, const RowTile<Config> &at, int branch,
                               long long key_row, int first, int end, int stage) {
  using F = DqTraits<Config>;
  const u32 sK = at.shared + F::kSStage + stage * F::kStageBytes, sV = sK + F::K::kBytes;
  const int left = end - first;
  const u16 *gK = (const u16 *)p.k[branch].data + (key_row + first) * p.k[branch].token_stride +
                  at.group * p.k[branch].head_stride;
  const u16 *gV = (const u16 *)p.v[branch].data + (key_row + first) * p.v[branch].token_stride +
                  at.group * p.v[branch].head_stride;
  load_tile<typename F::K, Config::kKeys, Config::kHeadDimQk, Config::kThreads>(
      sK, [&](int row, const u16 *&from) {
        from = gK + row * p.k[branch].token_stride;
        return row < left;
      });
  load_tile<typename F::V, Config::kKeys, Config::kHeadDimV, Config::kThreads>(
      sV, [&](int row, const u16 *&from) {
        from = gV + row * p.v[branch].token_stride;
        return row < left;
      });
}

// Masks scores to -inf.
template <class Config, class Bits>
NSAI_DEVICE void mask_keys(float (&s)[DqTraits<Config>::kN][4], const Bits (&bits)[2]) {
  const int column = 2 * (threadIdx.x & 3);
#pragma unroll
  for (int j = 0; j < DqTraits<Config>::kN; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (!(bits[c / 2] >> (8 * j + column + c % 2) & 1)) s[j][c] = kMinusInf;
}

template <class Config, class Pass, class Walk>
NSAI_DEVICE void run_branch(const NsaiBackwardQ &p, const RowTile<Config> &at, Pass &pass,
                            Walk &walk, int branch, long long key_row) {
  using F = DqTraits<Config>;
  using E = typename Config::Element;
  const u32 sQ = at.shared + F::kSQ, sDO = at.shared + F::kSDO;
  const int warp_row = recomputed(threadIdx.x) / 32 * F::kWarpRows;
  pass.begin(p, at, branch);
  int first = walk.next(), stage = 0;
  if (first != kNoTile)
    load_key_tile<Config, Walk>(p, at, branch, key_row, first, walk.last_key(), 0);
  copy_async_commit();
  while (first != kNoTile) {
    typename F::Bits bits[F::kM][2];
    walk.take(bits);
    const int next = walk.next();
    if (Config::kStages == 2 && next != kNoTile)
      load_key_tile<Config, Walk>(p, at, branch, key_row, next, walk.last_key(), stage ^ 1);
    copy_async_commit();
    copy_async_wait<1>();
    if constexpr (Config::kWgmma) shared_proxy_fence();
    __syncthreads(); // this tile has arrived
    typename F::Bits any = 0, all = ~(typename F::Bits)0;
#pragma unroll
    for (int m = 0; m < F::kM; ++m) {
      any |= bits[m][0] | bits[m][1];
      all &= bits[m][0] & bits[m][1];
    }
    if (Config::kWgmma || __any_sync(~0u, any != 0)) {
      const u32 sK = at.shared + F::kSStage + stage * F::kStageBytes, sV = sK + F::K::kBytes;
      float s[F::kM][F::kN][4], du[F::kM][F::kN][4]; // [16, kKeys] each
      if constexpr (Config::kWgmma) {
        wgmma_fence();
        start_rows<E, typename F::Q, typename F::K, Config::kHeadDimQk>(s[0], sQ, sK);
        wgmma_commit();
        start_rows<E, typename F::DO, typename F::V, Config::kHeadDimV>(du[0], sDO, sV);
        wgmma_commit();
        wgmma_wait<1>();
        hold(s[0]); // dU is still in flight: the pass waits for it
      } else {
        multiply_rows<E, typename F::Q, typename F::K, Config::kHeadDimQk>(s, sQ, warp_row, sK);
        multiply_rows<E, typename F::DO, typename F::V, Config::kHeadDimV>(du, sDO, warp_row, sV);
      }
      if (__any_sync(~0u, (all & F::Cursor::kAllKeys) != F::Cursor::kAllKeys)) {
#pragma unroll
        for (int m = 0; m < F::kM; ++m) mask_keys<Config>(s[m], bits[m]);
      }
      pass.step(p, s, du, sK);
    }
    __syncthreads(); // all warps have finished with it
    if (Config::kStages == 1 && next != kNoTile)
      load_key_tile<Config, Walk>(p, at, branch, key_row, next, walk.last_key(), 0);
    if (Config::kStages == 1) copy_async_commit();
    first = next;
    stage ^= Config::kStages - 1;
  }
  pass.end(p, at, branch);
}

template <class Config>
NSAI_DEVICE void load_row_tile(const NsaiBackwardQ &p, const RowTile<Config> &at) {
  using F = DqTraits<Config>;
  load_tile<typename F::Q, Config::kRows, Config::kHeadDimQk, Config::kThreads>(
      at.shared + F::kSQ, [&](int row, const u16 *&from) {
        from = (const u16 *)p.q.data + at.q_row(row) * p.q.token_stride +
               at.head(row) * p.q.head_stride;
        return at.present(row);
      });
  load_tile<typename F::DO, Config::kRows, Config::kHeadDimV, Config::kThreads>(
      at.shared + F::kSDO, [&](int row, const u16 *&from) {
        from = (const u16 *)p.d_o.data + at.q_row(row) * p.d_o.token_stride +
               at.head(row) * p.d_o.head_stride;
        return at.present(row);
      });
}

template <class Config, class Pass> NSAI_DEVICE void run_rows(const NsaiBackwardQ &p) {
  using F = DqTraits<Config>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  begin_kernel();

  // ---- coordinates
  const int tiles = gridDim.x / p.kv_heads, number = blockIdx.x % tiles;
  RowTile<Config> at;
  at.tile = find_query_tile<F::kTokens>(p.seq, tiles - 1 - number); // longest first
  at.group = blockIdx.x / tiles;
  at.tokens = min(F::kTokens, at.tile.seq.q_len - at.tile.first_query);
  if (at.tokens <= 0 || at.tile.first_query < 0) return;
  at.position = at.tile.seq.position(at.tile.first_query);
  at.shared = shared_address(shared_bytes);

  // ---- branches; the rows arrive with the first key tile
  Pass pass;
  load_row_tile<Config>(p, at);
  if (p.branches >> NSAI_BRANCH_COMPRESSED & 1) {
    RangeWalk<Config, CompressedKeys<Config>> walk(at);
    run_branch<Config>(p, at, pass, walk, NSAI_BRANCH_COMPRESSED,
                       first_block_row<Config::kStride>(p.seq, at.tile.s));
  }
  if constexpr (Config::kWindow > 0)
    if (p.branches >> NSAI_BRANCH_WINDOW & 1) {
      RangeWalk<Config, WindowKeys<Config>> walk(at);
      run_branch<Config>(p, at, pass, walk, NSAI_BRANCH_WINDOW, at.tile.seq.kv_begin);
    }
  if constexpr (Config::kSelectCount > 0)
    if (p.branches >> NSAI_BRANCH_SELECTED & 1) {
      ListWalk<Config> walk(at, p, (int *)(shared_bytes + F::kSNext));
      run_branch<Config>(p, at, pass, walk, NSAI_BRANCH_SELECTED, at.tile.seq.kv_begin);
    }
  copy_async_wait<0>(); // a CTA must not exit with cp.async in flight
  pass.finish(p, at);
}
