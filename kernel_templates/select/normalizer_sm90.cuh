// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// select_normalizer_sm90: what select/normalizer.cuh computes, on wgmma (sm_90a), for
// select_importance_sm90.
//
//   Z[t, h] = log of the sum over keys i of exp(scale * q[t, h] . k[i, g]),  i*d + l - 1 <= t
//
//   q [T, Hq, Dk], k [rows, Hkv, Dk] or a cache's entries -> lse f32 [T, Hq], natural log; -inf where no
//   key is seen
//
// l and d are here the block and the stride of the keys that it reads.
//
// Output: the tokens in [token_begin, token_end). A token's result is bit-identical in every chunk of
// tokens and wherever its rows lie; it differs in rounding from that of select_normalizer.
//
// Grid: x = kv_heads * tiles, group-major, long tiles first (select/token_tile.cuh).
//
// CTA: that of select/scores_sm90.cuh, whose consumers add a tile of scores to the sums of their rows. A
// lane keeps references and sums of its keys of two rows; the four lanes of a row add them up at the end.
//
// Config: those of select/scores_sm90.cuh.
#pragma once
#include "core/launch.cuh"
#include "core/pipeline.cuh"
#include "core/softmax.cuh"
#include "core/types.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "select/importance_keys.cuh"
#include "select/scores_sm90.cuh"
#include "select/token_tile.cuh"

// Hides the keys behind the first `seen` of the lane's 32 from row r.
NSAI_DEVICE void mask(float (&s)[16][4], int r, int seen) {
  if (seen >= 32) return;
#pragma unroll
  for (int k = 0; k < 32; ++k)
    if (k >= seen) s[k / 2][2 * r + k % 2] = kMinusInf;
}

// Adds a tile of scores to the sums of the lane's rows.
NSAI_DEVICE void add_scores(SoftmaxRows &rows, float (&s)[16][4], float scale_log2) {
  float factor[2]; // of an O that does not exist
  softmax_grow(rows, factor, s, scale_log2);
#pragma unroll
  for (int j = 0; j < 16; ++j) softmax_exponentiate(rows, s[j], scale_log2);
}

template <class C>
NSAI_DEVICE void consume(SharedStorage<C> &shared, const Barriers<C::kStages> &barriers,
                         const NsaiImportance &p, const TokenTile &tokens, int group, int tiles) {
  const int lane = threadIdx.x % 32, consumer = warp_uniform(threadIdx.x / 128);
  const int lane_row = 64 * consumer + threadIdx.x % 128 / 32 * 16 + lane / 4;

  // ---- Q, and the keys that the lane's rows see from its first on
  const u32 sQ = shared_address(shared.q[consumer]);
  copy_queries<C>(sQ, p, tokens, group, 64 * consumer);
  int seen[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = tokens.first + (lane_row + 8 * r) / C::kGroupPadded;
    seen[r] = visible_blocks<C>(tokens.seq.position(query)) - lane % 4 * 32;
  }
  wait_queries<C>(consumer);

  // ---- tiles of keys
  SoftmaxRows rows;
  PipelineState<C::kStages> at;
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile, at.advance()) {
    float s[16][4]; // [64, 128]
    score_tile<C>(s, sQ, shared, barriers, at);
#pragma unroll
    for (int r = 0; r < 2; ++r) mask(s, r, seen[r] - tile * C::kKeys);
    add_scores(rows, s, p.scale);
  }

  // ---- LSE
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int head = (lane_row + 8 * r) % C::kGroupPadded;
    const int query = tokens.first + (lane_row + 8 * r) / C::kGroupPadded;
    const float total = lanes_sum<4>(rows.sum[r]);
    if (lane % 4 != 0 || head >= C::kGroup || !tokens.present(query)) continue;
    p.lse[(tokens.seq.q_begin + query) * p.lse_token_stride +
          (group * C::kGroup + head) * p.lse_head_stride] = softmax_lse(rows.reference[r], total);
  }
}

// ---- body

template <class C> NSAI_DEVICE void normalize(const StepRowParams<C> &params) {
  const NsaiImportance &p = packed_of(params);
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage<C> &shared = *(SharedStorage<C> *)shared_bytes;

  // ---- coordinates
  const int count = gridDim.x / p.kv_heads, group = blockIdx.x / count;
  const TokenTile tokens = find_tokens<C>(params, blockIdx.x % count, count);
  if (tokens.begin >= tokens.end) return;
  const int visible = visible_blocks<C>(tokens.seq.position(tokens.end - 1));
  const int tiles = ceil_div(visible, C::kKeys);
  const Barriers<C::kStages> barriers = make_barriers<C>(shared);
  if (threadIdx.x >= ScoreTraits<C>::kConsumerThreads)
    produce<C>(shared, barriers, find_keys<C>(params, tokens.s, group), tiles, visible);
  else
    consume<C>(shared, barriers, p, tokens, group, tiles);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    select_normalizer_sm90(const __grid_constant__ StepRowParams<Config> p) {
  begin_kernel();
  normalize<Config>(p);
}
