// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// select_normalizer: the log-sum-exp by which select_importance normalises, where the compressed
// branch does not give it: over coarse keys, or over the compressed keys of a model without that
// branch.
//
//   Z[t, h] = log of the sum over keys i of exp(scale * q[t, h] . k[i, g]),  i*d + l - 1 <= t
//
//   q [T, Hq, Dk], k [rows, Hkv, Dk] -> lse f32 [T, Hq], natural log; -inf where no key is seen
//
// l and d are here the block and the stride of the keys that it reads. It takes the parameters of
// select_importance, whose `lse` is its output and whose `importance` it leaves alone.
//
// Output: the tokens in [token_begin, token_end). A token's result is bit-identical in every chunk of
// tokens of a run: its sums run over the same keys in the same order, and keys that it does not see
// add exact zeros. (In decode the number of parts below depends on the batch.)
//
// Grid: as of select_importance. With kStep a part of the keys for each blockIdx.y, and of Z, which
// select_importance adds up.
//
// CTA: the rows of select/query_rows.cuh. Registers: Q (Dk / 2 per thread), a 32x32 slice of scores,
// and four references and sums. Bound by mma.sync; a decode step by memory, or by the latency of
// tiles.
//
// Config: those of select/query_rows.cuh, kMinBlocks, kSharedBytes.
#pragma once
#include "core/copy.cuh"
#include "core/launch.cuh"
#include "core/softmax.cuh"
#include "core/tile.cuh"
#include "core/types.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"
#include "select/importance_keys.cuh"
#include "select/query_rows.cuh"

static_assert(!Config::kProbe, "it serves probed rows by serving all");

template <class C> struct SharedStorage {
  u8 keys[2][KeyTileOf<C>::kBytes]; // [kKeys, Dk], this tile and the next
};
static_assert(sizeof(SharedStorage<Config>) == Config::kSharedBytes,
              "the host computes another size of shared memory");

// Adds a slice of 32 keys to the sums of the warp's rows.
template <class C>
NSAI_DEVICE void add_scores(SoftmaxRows (&rows)[2], float (&rS)[2][RowTraits<C>::kSliceTiles][4],
                            float scale_log2) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    float factor[2]; // of an O that does not exist
    softmax_grow(rows[tile], factor, rS[tile], scale_log2);
#pragma unroll
    for (int n = 0; n < RowTraits<C>::kSliceTiles; ++n)
      softmax_exponentiate(rows[tile], rS[tile][n], scale_log2);
  }
}

// Stores the LSE of the warp's rows that are present.
template <class C>
NSAI_DEVICE void store_rows(const NsaiImportance &p, float *gLse, const TokenTile &tokens,
                            int group, int warp, int lane, const SoftmaxRows (&rows)[2]) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 32 * warp + 16 * tile + 8 * half + lane / 4;
      const int head = row % C::kGroupPadded, query = tokens.first + row / C::kGroupPadded;
      const float total = lanes_sum<4>(rows[tile].sum[half]);
      if (lane % 4 != 0 || head >= C::kGroup || !tokens.present(query)) continue;
      const long long token = tokens.seq.q_begin + query;
      gLse[token * p.lse_token_stride + (group * C::kGroup + head) * p.lse_head_stride] =
          softmax_lse(rows[tile].reference[half], total);
    }
}

template <class C> NSAI_DEVICE void normalize(const StepRowParams<C> &step) {
  const RowParams<C> &params = (const RowParams<C> &)step;
  const NsaiImportance &p = packed_of(params);
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  SharedStorage<C> &shared = *(SharedStorage<C> *)shared_bytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // ---- coordinates
  const int count = gridDim.x / p.kv_heads, group = blockIdx.x / count;
  const TokenTile tokens = find_tokens<C>(params, blockIdx.x % count, count);
  if (tokens.begin >= tokens.end) return;
  const int visible_to_all = visible_blocks<C>(tokens.seq.position(tokens.begin));
  const int visible_to_any = visible_blocks<C>(tokens.seq.position(tokens.end - 1));
  const KeyTiles tiles = find_key_tiles<C>(ceil_div(visible_to_any, C::kKeys));
  float scale_log2 = p.scale;
  if constexpr (kReadsCodes<C>) scale_log2 *= scale_of(params.k_scale, group);
  const auto keys = find_keys<C>(params, tokens.s, group); // [N, Dk]

  // ---- prologue
  if (tiles.begin < tiles.end)
    keys.load(shared_address(shared.keys[tiles.begin % 2]), tiles.begin * C::kKeys, visible_to_any);
  copy_async_commit();
  u32 rQ[2][RowTraits<C>::kSteps][4]; // [32 rows, Dk]
  load_queries<C>(p, tokens, group, warp, lane, rQ, [](int, int, bool, long long, int) {});
  SoftmaxRows rows[2]; // [32 rows]

  // ---- key tiles
  for (int tile = tiles.begin; tile < tiles.end; ++tile) {
    const int first = tile * C::kKeys;
    copy_async_wait<0>();
    // All warps' copies of this tile have arrived, and all warps have finished with the other
    // buffer.
    __syncthreads();
    if (tile + 1 < tiles.end)
      keys.load(shared_address(shared.keys[(tile + 1) % 2]), first + C::kKeys, visible_to_any);
    copy_async_commit();

    const u32 sK = shared_address(shared.keys[tile % 2]); // [kKeys, Dk]
#pragma unroll
    for (int slice = 0; slice < C::kKeys; slice += 32) {
      float rS[2][RowTraits<C>::kSliceTiles][4]; // [32 rows, 32 keys]
      scores<C>(rS, rQ, sK + slice * KeyTileOf<C>::kPitch, lane);
      if (first + slice + 32 > visible_to_all)
        mask<C>(rS, tokens, first + slice, kMinusInf, warp, lane);
      add_scores<C>(rows, rS, scale_log2);
    }
  }
  float *gLse = p.lse; // [T, Hq]
  if constexpr (C::kStep) gLse += blockIdx.y * step.lse_split_stride;
  store_rows<C>(p, gLse, tokens, group, warp, lane, rows);
  count_keys<C>(step, tokens.s, group, visible_to_any);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    select_normalizer(const __grid_constant__ StepRowParams<Config> p) {
  begin_kernel();
  normalize<Config>(p);
}
