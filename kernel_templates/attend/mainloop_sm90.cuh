// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Warp-specialised FlashAttention main loop on wgmma and TMA (sm_90a). attend_compressed_sm90,
// attend_window_sm90 and attend_dense_sm90 share it; they differ only in the keys that a query
// sees, which is the policy `Keys` (data/key_range.cuh).
//
//   o[t, h] = softmax over keys i in [begin(t), end(t)) of (scale * q[t, h] . k[i]) V
//
//   q [T, Hq, Dk], k [rows, Hkv, Dk], v [rows, Hkv, Dv] -> NsaiEpilogue
//
// With kCached k and v lie in a KV cache: raw tokens, of attend_window_sm90, come as boxes of pages
// (data/cached_boxes.cuh), compressed entries by cp.async (data/cached_entries.cuh). Codes become fp16
// in shared memory, before a consumer sees them, and the consumers make Q fp16 as well
// (core/code_fragments.cuh). With kExpanded another kernel has made entries of sequences with many new
// tokens fp16 before (data/expanded_entries.cuh).
//
// Grid: persistent. CTA x of any number of CTAs takes tiles x, x + grid, ... of kv_heads * tiles,
// KV head major, so that L2 holds the K and V of one head at a time. In short sequences, and with
// kHeadsAlternate, the heads of a tile are adjacent (attend/mainloop_sm90_tiles.cuh). A tile has T = kRows /
// kGroupPadded tokens; there are q_tokens / T + num_seqs, or of one packed sequence without cu_q
// ceil(q_tokens / T).
//
// CTA: kRows / 64 consumer warpgroups and one producer warpgroup. A consumer warpgroup has 64 query
// rows of one KV head, token-major: row r is head r % kGroupPadded of the query group and token r /
// kGroupPadded of the tile. In the producer warpgroup a single warp issues the TMA loads; all four
// copy entries of a cache. They run ahead into the next tile while the consumers store the current
// one.
//
// Shared memory: nsai_smem_flash_sm90() of params/smem.h. Each stage of Q, K and V has a full and
// an empty barrier.
//
// Consumer: Q K^T of a key tile is issued before P V of the previous tile, so that the tensor cores
// work on P V during the softmax:
//
//     Q K^T (0) | softmax (0) | Q K^T (1)  P V (0) | ...
//                                       softmax (1) | Q K^T (2)  P V (1) ...
//
// Alignment of base and strides: 16 bytes for q, k, v; 8 bytes for o and o_branch.
//
// Measured on an H200: bf16, 64/4 heads, D 128, separate launches. TFLOP/s count the products of
// visible pairs; a plain 8192^3 GEMM reaches 799 there, and cuDNN's dense attention 630.
//
//     dense causal      4k 0.40 ms (680)   16k 5.6 ms (785)
//     compressed 32/16  16k 0.54 ms (510)  64k 6.0 ms (735)
//     window 512        64k 2.0 ms (550; tile edges compute 10 % more)
//
// Bound: in long tiles by tensor cores and power. With three warpgroups, 80 keys take 2400 clocks,
// of which wgmma alone takes 1920. In short tiles, about 6000 clocks pass between the last P V of
// one tile and the second Q K^T of the next; a third of that is stores. At D 64 (dense 16k: 530
// TFLOP/s) by latencies around the exponentials, whose unit is busy half of the time.
//
// Tried without gain (time change in brackets): two warpgroups of 128 keys (8 % slower); three of
// 112 or 128 keys without the overlap above (3 % slower); three stages (0). Loading Q one tile
// earlier, by the same warp or another one (2 to 5 % slower: its boxes come from DRAM and delay
// those of K and V, which come from L2); prefetching Q to L2 (0). One producer each for Q, K and V
// (2 to 7 % slower; D 64 4 % faster). Issuing the first Q K^T of the next tile before the stores of
// this one (window between 1 % slower and 2 % faster, dense 3 % slower, D 64 9 % slower). Masks
// from bits, and barrier waits with a time limit (0).
//
// Config: Element, kHeadDimQk, kHeadDimV, kGroup, kGroupPadded, kRows, kKeys, kStages,
// kQueryStages, kThreads, kMinBlocks, kSharedBytes, kGate; those of data/source.cuh;
// kHeadsAlternate, which may be missing.
#pragma once
#include "attend/mainloop_sm90_producer.cuh"
#include "attend/mainloop_sm90_tiles.cuh"
#include "core/barrier.cuh"
#include "core/code_fragments.cuh"
#include "core/epilogue.cuh"
#include "core/launch.cuh"
#include "core/pipeline.cuh"
#include "core/softmax.cuh"
#include "core/tma.cuh"
#include "core/types.cuh"
#include "core/wgmma.cuh"
#include "data/key_range.cuh"
#include "data/source.cuh"
#include "params/attention.h"

// ---- consumers

constexpr int kConsumerBarrier = 2; // and those behind it: of a consumer warpgroup

// Issues S = Q K^T [64, kKeys] of a warpgroup.
template <class Config>
NSAI_DEVICE void multiply_qk(float (&s)[Flash<Config>::kN][4], u32 sQ, u32 sK) {
  wgmma_scores<typename Config::Element, Config::kKeys, Flash<Config>::kSteps>(s[0], sQ, sK);
}

// P of a key tile as A fragments of 16 keys each, and its rounding error where kSplitP asks for it.
template <class Config> struct Probabilities {
  static constexpr int kTerms = kSplitP<Config> ? 2 : 1;
  u32 a[kTerms][Config::kKeys / 16][4];
};

// Issues O [64, Dv] += P V.
template <class Config>
NSAI_DEVICE void multiply_pv(float (&o)[Flash<Config>::kO][4], const Probabilities<Config> &p,
                             u32 sV) {
  u64 v = wgmma_mn_major<Config::kKeys>(sV);
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < Config::kKeys / 16; ++j)
#pragma unroll
    for (int term = 0; term < Probabilities<Config>::kTerms; ++term)
      wgmma_pv<typename Config::Element, padded_dim(Config::kHeadDimV), Config::kKeys>(
          o[0], p.a[term][j], v + wgmma_mn_step(j), 1);
  wgmma_commit();
}

template <class Config>
NSAI_DEVICE void pack_probabilities(Probabilities<Config> &p,
                                    const float (&s)[Flash<Config>::kN][4]) {
#pragma unroll
  for (int j = 0; j < Config::kKeys / 16; ++j) {
    softmax_pack<typename Config::Element>(p.a[0][j], s[2 * j], s[2 * j + 1]);
    if constexpr (kSplitP<Config>)
      softmax_pack_rest<typename Config::Element>(p.a[1][j], p.a[0][j], s[2 * j], s[2 * j + 1]);
  }
}

template <int kN> NSAI_DEVICE void hold(float (&d)[kN][4]) {
#pragma unroll
  for (int j = 0; j < kN; ++j) wgmma_hold(d[j]);
}

// Converts the warp's rows of Q, which have arrived in sQ, where products take fp16, and returns their
// unit. The whole consumer warpgroup takes part. Boxes of Q also bring tokens behind the tile's
// `tokens`, and heads of the next group.
template <class Config> NSAI_DEVICE float convert_flash_query(u32 sQ, int consumer, int tokens) {
  if constexpr (!kConvertsQuery<Config>) return 1.0f;
  constexpr int kPadded = Config::kGroupPadded;
  u32 held[1][4]; // none of Q is in registers
  const int first = threadIdx.x % 128 / 32 * 16, row = consumer * 64 + first;
  const float unit =
      convert_split_queries<typename Config::Element, 0, 64, Flash<Config>::kSteps * 2>(
          held, sQ, first, [=](int i) {
            return (row + i) % kPadded < Config::kGroup && (row + i) / kPadded < tokens;
          });
  threads_sync(kConsumerBarrier + consumer, 128); // products of a warpgroup read all its rows
  return unit;
}

// Keys that the rows of a lane and of its warp see.
struct FlashRows {
  KeyRange seen[2]; // seen by rows group and group + 8
  KeyRange all;     // seen by every row of the warp
};

template <class Config, class Keys>
NSAI_DEVICE FlashRows flash_rows(const FlashTile &tile, int warp_row) {
  // Rows past the last token take the last token's position.
  auto seen_by = [&](int row) {
    return Keys::visible(tile.position +
                         min((warp_row + row) / Config::kGroupPadded, tile.tokens - 1));
  };
  FlashRows rows;
  rows.seen[0] = seen_by(threadIdx.x % 32 / 4);
  rows.seen[1] = seen_by(threadIdx.x % 32 / 4 + 8);
  rows.all = KeyRange{ warp_uniform(seen_by(15).begin), warp_uniform(seen_by(0).end) };
  return rows;
}

// Turns the scores of the keys from `first` on into probabilities. Returns true if O must be
// rescaled by `factor`.
template <class Config>
NSAI_DEVICE bool flash_softmax(float (&s)[Flash<Config>::kN][4], SoftmaxRows &softmax,
                               float (&factor)[2], const FlashRows &rows, int first,
                               float scale_log2) {
  if (first < rows.all.begin || first + Config::kKeys > rows.all.end) {
    mask_row(s, 0, rows.seen[0], first);
    mask_row(s, 1, rows.seen[1], first);
  }
  bool grows = softmax_grow(softmax, factor, s, scale_log2);
#pragma unroll
  for (int j = 0; j < Flash<Config>::kN; ++j) softmax_exponentiate(softmax, s[j], scale_log2);
  return grows;
}

// Computes the unnormalised O of one tile of queries.
template <class Config>
NSAI_DEVICE void flash_multiply(const FlashTile &tile, const FlashRows &rows,
                                typename Flash<Config>::Shared &shared, int consumer,
                                const PipelineState<Config::kQueryStages> &queries,
                                PipelineState<Config::kStages> &keys, float scale_log2,
                                SoftmaxRows &softmax, float (&o)[Flash<Config>::kO][4]) {
  using F = Flash<Config>;
  using Product = ProductConfig<Config>;
  float s[F::kN][4]; // [64, kKeys]
  Probabilities<Product> probabilities;
  float factor[2];
  bool arrives = threadIdx.x % 32 == 0;
  u32 sQ = shared_address(shared.q[warp_uniform(queries.stage)][consumer]);
  auto stage_k = [&](int stage) { return shared_address(shared.k[warp_uniform(stage)]); };
  auto stage_v = [&](int stage) { return shared_address(shared.v[warp_uniform(stage)]); };

  scale_log2 *= convert_flash_query<Config>(sQ, consumer, tile.tokens);
  barrier_wait(shared_address(&shared.k_full[keys.stage]), keys.phase);
  multiply_qk<Product>(s, sQ, stage_k(keys.stage)); // [64, kKeys]
  wgmma_wait<0>();
  hold(s);
  if (arrives) barrier_arrive(shared_address(&shared.k_empty[keys.stage]));
  flash_softmax<Config>(s, softmax, factor, rows, tile.begin, scale_log2);
  pack_probabilities<Product>(probabilities, s);

  for (int first = tile.begin + Config::kKeys; first < tile.end; first += Config::kKeys) {
    PipelineState<Config::kStages> before = keys;
    keys.advance();
    barrier_wait(shared_address(&shared.k_full[keys.stage]), keys.phase);
    multiply_qk<Product>(s, sQ, stage_k(keys.stage)); // [64, kKeys]
    barrier_wait(shared_address(&shared.v_full[before.stage]), before.phase);
    multiply_pv<Product>(o, probabilities, stage_v(before.stage)); // [64, Dv]

    wgmma_wait<1>(); // Q K^T is complete
    hold(s);
    if (arrives) barrier_arrive(shared_address(&shared.k_empty[keys.stage]));
    bool grows = flash_softmax<Config>(s, softmax, factor, rows, first, scale_log2);

    wgmma_wait<0>(); // P V is complete
    hold(o);
    if (arrives) barrier_arrive(shared_address(&shared.v_empty[before.stage]));
    if (grows) softmax_rescale(o, factor);
    pack_probabilities<Product>(probabilities, s);
  }
  barrier_arrive(shared_address(&shared.q_empty[queries.stage]));

  barrier_wait(shared_address(&shared.v_full[keys.stage]), keys.phase);
  multiply_pv<Product>(o, probabilities, stage_v(keys.stage)); // [64, Dv]
  wgmma_wait<0>();
  hold(o);
  if (arrives) barrier_arrive(shared_address(&shared.v_empty[keys.stage]));
  keys.advance();
}

template <class Config, class Keys, class Params>
NSAI_DEVICE void flash_consume(const Params &params, typename Flash<Config>::Shared &shared,
                               int consumer) {
  using F = Flash<Config>;
  const NsaiAttendTma &p = packed_of(params);
  int warp_row = consumer * 64 + threadIdx.x % 128 / 32 * 16;
  PipelineState<Config::kQueryStages> queries;
  PipelineState<Config::kStages> keys;
  for (;; queries.advance()) {
    barrier_wait(shared_address(&shared.q_full[queries.stage]), queries.phase);
    FlashTile tile = shared.tile[queries.stage];
    if (!tile.tokens) return;
    OutputRow output_row[2];
    u32 gate[2]; // loaded early: the epilogue needs it
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int row = warp_row + r * 8 + threadIdx.x % 32 / 4;
      int token = row / Config::kGroupPadded, head = row % Config::kGroupPadded;
      output_row[r] = OutputRow{ tile.first_token + token, tile.group * Config::kGroup + head,
                                 head < Config::kGroup && token < tile.tokens };
      gate[r] = load_gate<Config>(p.attend.out, output_row[r]);
    }
    float o[F::kO][4] = {}; // [64, Dv]
    SoftmaxRows softmax;
    if (tile.begin < tile.end) {
      flash_multiply<Config>(tile, flash_rows<Config, Keys>(tile, warp_row), shared, consumer,
                             queries, keys,
                             scale_by_keys<Config>(p.attend.scale_log2, params, tile.group),
                             softmax, o);
      scale_by_values<Config>(o, params, tile.group);
    } else {
      barrier_arrive(shared_address(&shared.q_empty[queries.stage]));
    }
    wait_for_kernel_before(); // the partial sum comes from the previous kernel
    store_output<Config>(p.attend.out, p.attend.kv_heads, o, softmax, output_row, gate);
  }
}

// ---- the kernel

// `arrivals`: of the threads that fill a stage of keys. kExpands: codes arrive on barriers first.
template <class Config, bool kExpands = false>
NSAI_DEVICE void init_barriers(typename Flash<Config>::Shared &shared, int arrivals = 1) {
  constexpr int kConsumerWarps = 4 * Flash<Config>::kConsumers;
  for (int i = 0; i < Config::kQueryStages; ++i) {
    barrier_init(shared_address(&shared.q_full[i]), 1);
    // All lanes arrive. One lane per warp would suffice, but racecheck does not follow that.
    barrier_init(shared_address(&shared.q_empty[i]), 32 * kConsumerWarps);
  }
  for (int i = 0; i < Config::kStages; ++i) {
    barrier_init(shared_address(&shared.k_full[i]), arrivals);
    barrier_init(shared_address(&shared.k_empty[i]), kConsumerWarps);
    barrier_init(shared_address(&shared.v_full[i]), arrivals);
    barrier_init(shared_address(&shared.v_empty[i]), kConsumerWarps);
    if constexpr (kExpands)
      for (int side = 0; side < 2; ++side) barrier_init(code_barrier<Config>(shared, side, i), 32);
  }
  barrier_init_fence();
}

template <class Config>
using FlashParams = EntryParamsOf<Config, NsaiAttendTma, NsaiCachedAttendTma, NsaiCodedAttendTma,
                                  NsaiExpandedAttendTma>;

template <class Config, class Keys>
NSAI_DEVICE void flash_attend(const FlashParams<Config> &params) {
  using F = Flash<Config>;
  const NsaiAttendTma &p = packed_of(params);
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  typename F::Shared &shared = *(typename F::Shared *)shared_bytes;
  int warpgroup = warp_uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.q);
    if (!kCachedEntries<Config, Keys>) {
      tma_prefetch_map(p.k);
      tma_prefetch_map(p.v);
    }
    constexpr int kExpand = kExpanders<Config, Keys>;
    init_barriers<Config, (kExpand > 0)>(shared, kCachedEntries<Config, Keys> ? 64
                                                 : kExpand                    ? 32 * kExpand
                                                                              : 1);
  }
  if (!p.attend.early) wait_for_kernel_before();
  __syncthreads(); // barriers are initialised

  if (warpgroup == 0) {
    registers_drop<F::kProducerRegisters>();
    // Lets the next kernel begin even if this CTA has no tile.
    if (!kCachedEntries<Config, Keys> && threadIdx.x >= 32) begin_kernel();
    if (kCachedEntries<Config, Keys> || threadIdx.x < 32)
      flash_produce<Config, Keys>(params, shared);
    if constexpr (kExpanders<Config, Keys>)
      if (threadIdx.x >= 32) flash_expand<Config, Keys>(params, shared, threadIdx.x / 32 - 1);
    if (kCachedEntries<Config, Keys>) begin_kernel();
  } else {
    registers_raise<F::kConsumerRegisters>();
    flash_consume<Config, Keys>(params, shared, warpgroup - 1);
  }
}
