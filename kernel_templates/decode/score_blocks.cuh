// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The importance of one token's blocks by compressed keys, computed by a cluster of CTAs for itself: what
// select_normalizer and select_importance do in launches of their own.
//
//   z[h] = log2 of the sum over coarse keys i of 2^(scale_log2 * q[h] . kn[i])
//   P[i] = sum over heads h of 2^(scale_log2 * q[h] . kc[i] - z[h])
//   I[j] = the sum of w(i, j) * P[i], or with kMaxPool the greatest P[i], over the compressed keys i that
//          share a token with block j (select/importance.cuh)
//
// Each warp that scores streams coarse keys and then compressed keys of its own through one pipeline of
// steps of 16 keys. Statistics of the coarse keys pass through distributed shared memory between the two;
// meanwhile compressed keys arrive. Each warp sends the importance of its blocks to all CTAs.
//
// The order of sums depends on the size of the cluster, as that of decode_split_kv on its splits.
//
// Config: Element, kHeadDimQk, kGroup, kGroupPadded, kWarps, kThreads, kStages, kCluster, kPageSize,
// kBlock (l), kStride (d), kNormBlock and kNormStride (of coarse keys), kSelectBlock (l'), kSelectLocal,
// kMostBlocks, kMaxPool.
#pragma once
#include "core/barrier.cuh"
#include "core/cluster.cuh"
#include "core/softmax.cuh"
#include "data/cache_rows.cuh"
#include "data/read_counter.cuh"
#include "decode/mainloop.cuh"
#include "decode/stream_token.cuh"
#include "params/kv_cache.h"

template <class C> struct BlockScores {
  using Stream = KeyStream<C, 1, false>;                      // of which only K is used
  static constexpr int kRatio = C::kSelectBlock / C::kStride; // r
  static constexpr int kOverlap = C::kBlock / C::kStride;     // m
  static constexpr int kHistory = kOverlap - 1;
  static constexpr int kBlocks = kStepKeys / kRatio; // of a step
  // Where a CTA has many warps, most of them score while the others attend.
  static constexpr int kCtaWarps = C::kWarps > 4 && C::kCluster > 1 ? C::kWarps * 3 / 4 : C::kWarps;
  static constexpr int kThreads = 32 * kCtaWarps;
  static constexpr int kWarps = C::kCluster * kCtaWarps;
  static_assert(kBlocks * kRatio == kStepKeys, "steps end with blocks");
  static_assert(kOverlap <= kRatio, "the weights are a trapezoid of strides");
  static_assert(!Stream::kQShared, "Q lies in registers");
};

template <class C> struct __align__(128) BlockScoresShared {
  float importance[C::kMostBlocks];     // [blocks]; those before the last local ones
  float2 parts[C::kCluster][16];        // reference and sum of the rows, of each CTA's coarse keys
  float2 stats[C::kWarps][16];          // the same of each warp's
  float sums[C::kWarps][2 * kStepKeys]; // P of the keys before a step, and of the step's
  u64 parts_received, importance_received; // mbarriers
};

// ---- steps

// Which steps of coarse keys, and which of compressed keys, a warp takes. Compressed keys begin a step early
// where sums of the keys before belong to the first block.
struct ScoreSteps {
  int coarse_begin, coarse, fine_begin, fine, pooled_begin;
};
template <class C> NSAI_DEVICE ScoreSteps find_score_steps(int coarse_keys, int blocks, int warp) {
  using B = BlockScores<C>;
  const int coarse = ceil_div(coarse_keys, kStepKeys), fine = ceil_div(blocks, B::kBlocks);
  const int coarse_each = ceil_div(coarse, B::kWarps), fine_each = ceil_div(fine, B::kWarps);
  ScoreSteps x;
  x.coarse_begin = min(warp * coarse_each, coarse);
  x.coarse = min(coarse_each, coarse - x.coarse_begin);
  x.pooled_begin = min(warp * fine_each, fine);
  const int pooled = min(fine_each, fine - x.pooled_begin);
  const bool early = B::kHistory > 0 && x.pooled_begin > 0 && pooled > 0;
  x.fine_begin = x.pooled_begin - early;
  x.fine = pooled + early;
  return x;
}

// The row of the key of each lane, as copy_keys() takes it.
struct LaneRows {
  const u16 *mine;
  NSAI_DEVICE const u16 *of(int lane, int column) const {
    return (const u16 *)__shfl_sync(kAllLanes, (u64)mine, lane) + column;
  }
};

// Hides scores s [16, 16 keys] of the keys from `present` on.
NSAI_DEVICE void hide_absent(float (&s)[2][4], int present, int lane) {
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (8 * n + lane % 4 * 2 + i % 2 >= present) s[n][i] = kMinusInf;
}

// Writes the sums of P [16, 16 keys] over rows to sSums [16 keys]. Pairs of lanes exchange halves of their
// values until each has a key.
NSAI_DEVICE void sum_rows(const float (&p)[2][4], float *sSums, int lane) {
  float v[2][2], w[2]; // [n8 tile, column], [column]
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) v[n][e] = p[n][e] + p[n][2 + e];
  const bool second = lane & 16, odd = lane & 8;
#pragma unroll
  for (int e = 0; e < 2; ++e)
    w[e] =
        (second ? v[1][e] : v[0][e]) + __shfl_xor_sync(kAllLanes, second ? v[0][e] : v[1][e], 16);
  float x = (odd ? w[1] : w[0]) + __shfl_xor_sync(kAllLanes, odd ? w[0] : w[1], 8);
  x += __shfl_xor_sync(kAllLanes, x, 4);
  if (!(lane & 4)) sSums[lane / 16 * 8 + lane % 4 * 2 + odd] = x;
}

// Pools a block of a step; sSums points to the step's first key, with those before it in front.
template <class C> NSAI_DEVICE float pool_block(const float *sSums, int block) {
  using B = BlockScores<C>;
  constexpr int kSupport = B::kRatio + B::kHistory;
  float x = 0.0f;
#pragma unroll
  for (int i = 0; i < kSupport; ++i) {
    const float sum = sSums[block * B::kRatio - B::kHistory + i];
    const float weight = (float)min(min(i + 1, B::kOverlap), kSupport - i);
    x = C::kMaxPool ? fmaxf(x, sum) : fmaf(weight, sum, x);
  }
  return x;
}

// Pools step `step` and sends its blocks to all CTAs.
template <class C>
NSAI_DEVICE void send_blocks(BlockScoresShared<C> &shared, const float *sSums, int step, int lane) {
  using B = BlockScores<C>;
  constexpr int kAtOnce = B::kBlocks % 4 == 0 ? 4 : 1, kSends = B::kBlocks / kAtOnce;
#pragma unroll
  for (int i = lane; i < kSends * C::kCluster; i += 32) {
    const int first = i % kSends * kAtOnce, to = i / kSends;
    float *sOut = &shared.importance[step * B::kBlocks + first];
    float x[kAtOnce];
#pragma unroll
    for (int b = 0; b < kAtOnce; ++b) x[b] = pool_block<C>(sSums, first + b);
    if constexpr (C::kCluster == 1) {
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) sOut[b] = x[b];
    } else {
      const u32 remote = cluster_address(shared_address(sOut), to);
      const u32 barrier = cluster_address(shared_address(&shared.importance_received), to);
      if constexpr (kAtOnce == 4)
        cluster_send(remote, make_float4(x[0], x[1], x[2], x[3]), barrier);
      else
        cluster_send(remote, x[0], barrier);
    }
  }
}

// Blocks whose importance matters: those before the last local ones.
template <class C> NSAI_DEVICE int scored_blocks(int candidates) {
  return candidates - C::kSelectLocal;
}

// Initialises the mbarriers of this CTA. One thread.
template <class C> NSAI_DEVICE void init_block_scores(BlockScoresShared<C> &shared) {
  barrier_init(shared_address(&shared.parts_received), 1);
  barrier_init(shared_address(&shared.importance_received), 1);
}

// Says how many bytes this CTA receives. One thread.
template <class C>
NSAI_DEVICE void expect_block_scores(BlockScoresShared<C> &shared, int candidates) {
  using B = BlockScores<C>;
  const int steps = ceil_div(scored_blocks<C>(candidates), B::kBlocks);
  barrier_arrive_expecting(shared_address(&shared.parts_received),
                           C::kCluster * 16 * (u32)sizeof(float2));
  barrier_arrive_expecting(shared_address(&shared.importance_received),
                           steps * B::kBlocks * (u32)sizeof(float));
}

// Whether a warp of the CTA scores.
template <class C> NSAI_DEVICE bool scores_blocks(int warp) {
  return warp < BlockScores<C>::kCtaWarps;
}

// Synchronises the threads of the CTA that score.
template <class C> NSAI_DEVICE void sync_scoring() {
  if constexpr (BlockScores<C>::kCtaWarps == C::kWarps)
    __syncthreads();
  else
    sync_some<1, BlockScores<C>::kThreads>();
}

// Exchanges the warps' statistics of coarse keys, and returns -z of the lane's rows. All threads that score take
// part.
template <class C>
NSAI_DEVICE void exchange_stats(BlockScoresShared<C> &shared, const SoftmaxRows &rows, int rank,
                                int lane, float (&bias)[2]) {
  using B = BlockScores<C>;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float total = lanes_sum<4>(rows.sum[r]);
    if (lane % 4 == 0)
      shared.stats[threadIdx.x / 32][8 * r + lane / 4] = make_float2(rows.reference[r], total);
  }
  sync_scoring<C>(); // the warps' statistics are written
  if constexpr (C::kCluster > 1) {
    cluster_wait(); // all CTAs have started
    for (int i = threadIdx.x; i < 16 * C::kCluster; i += B::kThreads) {
      const int row = i % 16, to = i / 16;
      cluster_send(cluster_address(shared_address(&shared.parts[rank][row]), to),
                   add_stats<B::kCtaWarps>(&shared.stats[0][row]),
                   cluster_address(shared_address(&shared.parts_received), to));
    }
    cluster_receive(shared_address(&shared.parts_received), 0);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = 8 * r + lane / 4;
    float2 x = C::kCluster > 1 ? make_float2(kNoReference, 0.0f)
                               : add_stats<B::kCtaWarps>(&shared.stats[0][row]);
    if constexpr (C::kCluster > 1) {
      for (int i = lane % 4; i < C::kCluster; i += 4) x = add_stats(x, shared.parts[i][row]);
#pragma unroll
      for (int delta = 1; delta < 4; delta *= 2)
        x = add_stats(x, make_float2(__shfl_xor_sync(kAllLanes, x.x, delta),
                                     __shfl_xor_sync(kAllLanes, x.y, delta)));
    }
    // Rows of padding heads have no part in the sums over heads.
    bias[r] = row >= C::kGroup || x.y == 0.0f ? kMinusInf : -(x.x + log2_approx(x.y));
  }
}

// ---- all of it

// Computes the importance of a token's blocks, which has arrived in shared.importance once
// receive_block_scores() returns. Loads `queries` [16, Dk] for a warp that has keys, and returns whether it
// has. `stages`: shared memory of the pipelines. All threads of the cluster that score take part.
//
// One loop fills the pipeline and takes coarse and compressed keys in turn, so that each step's code exists
// once: code that runs a few times is bound by instruction fetch.
template <class C, int kBytes>
NSAI_DEVICE bool score_blocks(const NsaiScoredAttend &params, BlockScoresShared<C> &shared,
                              u32 stages, const QueryRows<C> &query_rows,
                              const CachedRows<C::kPageSize> &lists, const DecodeToken &token,
                              int group, int rank, int candidates,
                              Queries<typename BlockScores<C>::Stream> &queries) {
  using B = BlockScores<C>;
  using Stream = typename B::Stream;
  using K = typename Stream::K;
  constexpr int kMost = kBytes / K::kBytes;
  constexpr int kDepth = kMost < 8 ? kMost : 8, kAhead = kDepth - 1; // stages, and those in flight
  static_assert(kDepth >= 2, "one stage is filled while another is computed");
  const NsaiDecode &p = params.attend.coded.decode;
  const NsaiCacheTensor &fine = p.entries.k, &coarse = params.coarse;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  // ---- coordinates
  const int fine_keys = block_count<C::kBlock, C::kStride>(token.position + 1);
  const int coarse_keys = block_count<C::kNormBlock, C::kNormStride>(token.position + 1);
  const ScoreSteps at =
      find_score_steps<C>(coarse_keys, scored_blocks<C>(candidates), rank * B::kCtaWarps + warp);
  const int steps = at.coarse + at.fine;
  const CachedRows<C::kPageSize / C::kStride> fine_rows = { lists.list, lists.row, 0 };
  const CachedRows<C::kPageSize / C::kNormStride> coarse_rows = { lists.list, lists.row, 0 };
  const u64 policy = l2_policy(token.alone);
  if (C::kCluster > 1 && threadIdx.x == 0) expect_block_scores<C>(shared, candidates);

  // ---- the pipeline: coarse steps, then compressed ones
  const auto first_key = [&](int step) {
    return (step < at.coarse ? at.coarse_begin + step : at.fine_begin + step - at.coarse) *
           kStepKeys;
  };
  const auto find = [&](int step) {
    const int i = first_key(step) + lane % kStepKeys;
    KeyLocation x = { -1, 0 };
    if (step < at.coarse && i < coarse_keys) {
      x.index = entry_index<C::kNormBlock, C::kNormStride>(i);
      x.page = coarse_rows.page(x.index);
    } else if (step >= at.coarse && step < steps && i < fine_keys) {
      x.index = entry_index<C::kBlock, C::kStride>(i);
      x.page = fine_rows.page(x.index);
    }
    return x;
  };
  const u32 sKeys = stages + warp * kBytes; // [kDepth][16 keys, Dk]
  ReadCounter<false> counter;
  const auto copy = [&](int step, int stage, const KeyLocation &location) {
    if (step < steps) {
      const bool is_coarse = step < at.coarse;
      const int index = max(location.index, 0);
      const NsaiCacheTensor &x = is_coarse ? coarse : fine;
      const LaneRows rows = {
        (const u16 *)x.data + group * x.head_stride +
        row_offset(x, location.page, is_coarse ? coarse_rows.slot(index) : fine_rows.slot(index))
      };
      copy_keys<K, kStepKeys, Stream::kWordsK, 32, true>(lane_address(sKeys + stage * K::kBytes),
                                                         rows,
                                                         (is_coarse ? coarse_keys : fine_keys) -
                                                             first_key(step),
                                                         lane, policy, counter);
    }
    copy_async_commit();
  };

  // Both at once, since their parts of the block table lie in different lines.
  KeyLocation next = find(0);
  const KeyLocation first_fine = find(at.coarse);
  const WarpQueries<Stream> through = { sKeys +
                                        kAhead * K::kBytes }; // the stage that is filled last
  static_assert(Stream::Q::kBytes == K::kBytes, "a stage holds Q");
  through.copy(query_rows, lane);
  float *sSums = &shared.sums[warp][kStepKeys]; // of the step's first key
  if (lane < kStepKeys) sSums[lane - kStepKeys] = 0.0f;
  SoftmaxRows rows; // of the coarse keys
  float bias[2];    // -z
  int filled = 0;   // the stage that is filled next
#pragma unroll 1
  for (int step = -kAhead;; ++step) {
    if (step == at.coarse) exchange_stats<C>(shared, rows, rank, lane, bias);
    if (step >= steps) break;
    if (step >= 0) {
      copy_async_wait<kAhead - 1>();
      __syncwarp(); // the step's keys have arrived, and all lanes have read the step before
    }
    if (step == 0) {
      through.read(queries, lane);
      __syncwarp(); // Q was read
    }
    copy(step + kAhead, filled, next);
    next = step + kAhead + 1 == at.coarse ? first_fine : find(step + kAhead + 1);
    filled = filled + 1 == kDepth ? 0 : filled + 1; // the step's own
    if (step < 0) continue;
    float s[2][4]; // [16, 16 keys]
    multiply_chains_qk<C, Stream, 4>(s, queries, sKeys + filled * K::kBytes, lane);
    hide_absent(s, (step < at.coarse ? coarse_keys : fine_keys) - first_key(step), lane);
    if (step < at.coarse) {
      float factor[2]; // of an O that does not exist
      softmax_grow(rows, factor, s, p.scale_log2);
#pragma unroll
      for (int n = 0; n < 2; ++n) softmax_exponentiate(rows, s[n], p.scale_log2);
      continue;
    }
    const int fine_step = at.fine_begin + step - at.coarse;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = exp2_approx(fmaf(s[n][i], p.scale_log2, bias[i / 2]));
    sum_rows(s, sSums, lane);
    __syncwarp(); // the sums are written
    if (fine_step >= at.pooled_begin) send_blocks<C>(shared, sSums, fine_step, lane);
    if constexpr (B::kHistory > 0) {
      const float sum = lane < B::kHistory ? sSums[kStepKeys - B::kHistory + lane] : 0.0f;
      __syncwarp(); // the sums were read
      if (lane < B::kHistory) sSums[lane - B::kHistory] = sum;
    }
  }
  copy_async_wait<0>();
  __syncwarp(); // all lanes have finished with the pipeline
  return steps > 0;
}

template <class C> NSAI_DEVICE const float *scored_importance(const BlockScoresShared<C> &shared) {
  return shared.importance; // [blocks]
}

// Waits for the importance that the cluster's CTAs have sent.
template <class C> NSAI_DEVICE void receive_block_scores(BlockScoresShared<C> &shared) {
  if constexpr (C::kCluster > 1) cluster_receive(shared_address(&shared.importance_received), 0);
}
