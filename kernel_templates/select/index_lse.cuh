// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// select_index_lse: the log-sum-exp of an index's scores over the chosen blocks of each token and head.
//
//   lse[t, r] = log sum over the keys p <= t of the blocks lists[t, r] of exp(si qi[t, r] . ki[p])
//
//   qi [T, Hi, Di], ki [rows, 1, Di] or a cache's [pages, rows of a page, 1, Di], lists [T, Hi, n]
//   -> lse f32 [T, Hi]
//
// Blocks may come in any order; -1, blocks in the future and repeated ones do not count. A row that sees
// no key gets -inf; rows behind the last sequence are left untouched.
//
// Grid: x = tiles of kTokens tokens * Hi, the heads of a tile adjacent. A CTA has kSplits warps for each
// token, which take its blocks in turn: one in a prefill, where tokens are many and adjacent ones read
// the same keys; many in a decode step, where each warp waits for memory. Eight lanes share a key, so a
// warp has four keys in a step and kUnroll steps on their way. Bound by reading the keys, from L2.
//
// The sums of a warp's lanes, and of a token's warps, are added in one order: every run gives the same
// bits.
//
// Config: Element, kIndexDim (a multiple of 8; in codes of 16), kSelectBlock (l'), kSelectCount (n),
// kTokens, kSplits (one of both is 1), kUnroll (steps whose keys are loaded together), kThreads, kMinBlocks;
// those of data/source.cuh. 8 kSplits bytes of static shared memory.
#pragma once
#include "core/e4m3.cuh"
#include "core/launch.cuh"
#include "core/softmax.cuh"
#include "core/types.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

static_assert(Config::kThreads == 32 * Config::kTokens * Config::kSplits, "a warp has one token");
static_assert(Config::kTokens == 1 || Config::kSplits == 1, "all warps of a token end together");
static_assert(Config::kIndexDim % 8 == 0, "rows are read in units of 8 elements");

template <class C>
using IndexLseParams = typename ParamsOf<C::kCached, NsaiIndexLse, NsaiCachedIndexLse>::Type;

constexpr int kUnroll = Config::kUnroll;
constexpr int kKeyLanes = 8;              // that share a key
constexpr int kStepKeys = 32 / kKeyLanes; // of a warp
template <class C> constexpr int kLaneChunks = ceil_div(C::kIndexDim / 8, kKeyLanes);

// A softmax's sum over the keys of some lanes, in units of 2^reference.
struct RunningSum {
  float reference, sum;
  NSAI_DEVICE void add(const float (&score)[kUnroll]) {
    float most = reference;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) most = fmaxf(most, score[u]);
    sum *= exp2_approx(reference - most);
    reference = most;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum += exp2_approx(score[u] - most);
  }
  NSAI_DEVICE void add(const RunningSum &other) {
    const float most = fmaxf(reference, other.reference);
    sum = sum * exp2_approx(reference - most) + other.sum * exp2_approx(other.reference - most);
    reference = most;
  }
};

// Eight elements of a row of 16-bit elements, or of codes.
template <class C> NSAI_DEVICE Chunk load_eight(const u16 *row, int chunk) {
  if constexpr (kReadsCodes<C>)
    return expand_eight<Fp16>(*(const uint2 *)(row + 4 * chunk));
  else
    return *(const Chunk *)(row + 8 * chunk);
}

// Where the keys of a sequence lie.
template <class C> struct PackedKeys {
  const u16 *data;
  long long stride;
  NSAI_DEVICE const u16 *at(int key) const { return data + key * stride; }
};
template <class C>
NSAI_DEVICE PackedKeys<C> find_keys(const NsaiIndexLse &p, int, const Sequence &seq) {
  return PackedKeys<C>{ (const u16 *)p.k.data + seq.kv_begin * p.k.token_stride, p.k.token_stride };
}
template <class C> struct PagedKeys {
  const NsaiCacheTensor &k;
  CachedRows<C::kPageRows> rows;
  NSAI_DEVICE const u16 *at(int key) const {
    return (const u16 *)k.data + row_offset(k, rows.page(key), rows.slot(key));
  }
};
template <class C>
NSAI_DEVICE PagedKeys<C> find_keys(const NsaiCachedIndexLse &p, int s, const Sequence &) {
  return PagedKeys<C>{ p.k, find_rows<C::kPageRows>(p.batch, s, 0) };
}

// What products are multiplied by, for scores in base 2.
NSAI_DEVICE float find_scale(const NsaiIndexLse &p) { return p.scale_log2; }
NSAI_DEVICE float find_scale(const NsaiCachedIndexLse &p) {
  return p.packed.scale_log2 * scale_of(p.k_scale, 0);
}

// The part of a row's query that a lane multiplies.
template <class C> struct LaneQuery {
  float x[kLaneChunks<C>][8];
  NSAI_DEVICE static int chunk(int i) { return kKeyLanes * i + (int)threadIdx.x % kKeyLanes; }
  NSAI_DEVICE static bool has(int i) { return chunk(i) < C::kIndexDim / 8; }
  NSAI_DEVICE void load(const u16 *gQuery) {
    using E = typename C::Element;
#pragma unroll
    for (int i = 0; i < kLaneChunks<C>; ++i) {
      Chunk c = { { 0, 0, 0, 0 } };
      if (has(i)) c = *(const Chunk *)(gQuery + 8 * chunk(i));
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        x[i][2 * w] = E::low(c.w[w]);
        x[i][2 * w + 1] = E::high(c.w[w]);
      }
    }
  }
};

// Adds the keys [begin, end) of the sequence.
template <class C, class Keys>
NSAI_DEVICE void add_block(RunningSum &sum, const LaneQuery<C> &query, const Keys &keys, int begin,
                           int end, float scale) {
  using E = typename ProductConfig<C>::Element;
  const int first = (int)threadIdx.x % 32 / kKeyLanes;
  for (int step = begin; step < end; step += kUnroll * kStepKeys) {
    Chunk rK[kUnroll][kLaneChunks<C>];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const u16 *gKey = keys.at(min(step + u * kStepKeys + first, end - 1)); // [Di]
#pragma unroll
      for (int i = 0; i < kLaneChunks<C>; ++i)
        if (LaneQuery<C>::has(i)) rK[u][i] = load_eight<C>(gKey, LaneQuery<C>::chunk(i));
    }
    float score[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float dot = 0.0f;
#pragma unroll
      for (int i = 0; i < kLaneChunks<C>; ++i)
        if (LaneQuery<C>::has(i)) {
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            dot = fmaf(query.x[i][2 * w], E::low(rK[u][i].w[w]), dot);
            dot = fmaf(query.x[i][2 * w + 1], E::high(rK[u][i].w[w]), dot);
          }
        }
      dot = lanes_sum<kKeyLanes>(dot);
      score[u] = step + u * kStepKeys + first < end ? dot * scale : kMinusInf;
    }
    sum.add(score);
  }
}

// The blocks of a row that a warp takes: those of every kSplits-th slot that count.
template <class C, class Visit>
NSAI_DEVICE void for_each_block(const int *gList, int position, int split, Visit visit) {
  constexpr int kPerLane = ceil_div(C::kSelectCount, 32);
  const int lane = threadIdx.x % 32;
  int rBlock[kPerLane]; // slot 32 j + lane
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int slot = 32 * j + lane;
    rBlock[j] = slot < C::kSelectCount ? gList[slot] : -1;
  }
#pragma unroll
  for (int j = 0; j < kPerLane; ++j)
#pragma unroll 1
    for (int i = 0; i < min(32, C::kSelectCount - 32 * j); ++i) {
      const int slot = 32 * j + i, block = __shfl_sync(~0u, rBlock[j], i);
      if (slot % C::kSplits != split || block < 0 || block > position / C::kSelectBlock) continue;
      bool seen = false; // in an earlier slot
#pragma unroll
      for (int k = 0; k <= j; ++k) seen |= rBlock[k] == block && 32 * k + lane < slot;
      if (!__any_sync(~0u, seen)) visit(block);
    }
}

template <class C> NSAI_DEVICE void sum_row(const IndexLseParams<C> &params) {
  const NsaiIndexLse &p = packed_of(params);
  const auto &seqs = sequences_of(params);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tile = blockIdx.x / p.heads, head = blockIdx.x % p.heads;
  const int token = tile * C::kTokens + warp / C::kSplits, split = warp % C::kSplits;
  if (token >= seqs.q_tokens) return;
  const int s = find_row_sequence(seqs, token);
  const Sequence seq = load_sequence(seqs, s);
  if (token - seq.q_begin >= seq.q_len) return;
  const int position = seq.position(token - seq.q_begin);

  RunningSum sum = { kNoReference, 0.0f };
  if (position >= 0) {
    LaneQuery<C> query;
    query.load((const u16 *)p.q.data + token * p.q.token_stride + head * p.q.head_stride);
    const float scale = find_scale(params);
    const auto keys = find_keys<C>(params, s, seq);
    const int *gList = p.lists + token * p.list_token_stride + head * p.list_head_stride; // [n]
    for_each_block<C>(gList, position, split, [&](int block) {
      const int begin = block * C::kSelectBlock;
      add_block<C>(sum, query, keys, begin, min(begin + C::kSelectBlock, position + 1), scale);
    });
  }
#pragma unroll
  for (int other = kKeyLanes; other < 32; other *= 2)
    sum.add(RunningSum{ __shfl_xor_sync(~0u, sum.reference, other),
                        __shfl_xor_sync(~0u, sum.sum, other) });
  if constexpr (C::kSplits > 1) {
    __shared__ RunningSum sSums[C::kSplits];
    if (lane == 0) sSums[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
      for (int i = 1; i < C::kSplits; ++i) sum.add(sSums[i]);
    if (warp) return;
  }
  if (lane == 0)
    p.lse[token * p.lse_token_stride + head * p.lse_head_stride] =
        sum.sum > 0.0f ? (sum.reference + log2_approx(sum.sum)) * kLn2 : kMinusInf;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    select_index_lse(const __grid_constant__ IndexLseParams<Config> p) {
  begin_kernel();
  sum_row<Config>(p);
}
