// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_compressed_topn_sm90: compressed attention, block importance and top-n selection in one
// pass over the compressed keys (sm_90a).
//
//   o[t, h]    = softmax over blocks i with i * d + l - 1 <= t of (scale * q[t, h] . k[i]) V,
//                and its LSE (NsaiEpilogue)
//   I[t, g, j] = sum over the group's heads h and compressed blocks i of w(i, j) * P[t, h, i]
//   idx[t, g]  = the n blocks j by the rule of core/topn.cuh; weights w: attend/topn_pool.cuh
//
// During the loop P is known only up to the factor 2^(reference - LSE) of its row, because the LSE
// is known only after the last key tile. The consumers therefore pool the unscaled P in fp32 and
// store it with the row's reference in a scratch buffer of the CTA. The selectors read it from
// there once the LSE is known:
//
//   producer   warpgroup 0      TMA loads of Q, K, V; keys interleaved: tma_load_interleaved().
//                               Entries of a cache: cp.async by all its warps; with kExpanded those
//                               of sequences with many new tokens from the workspace
//   consumers  warpgroups 1, 2  Q K^T | softmax, pool, store | P V, as in attend/mainloop_sm90.cuh
//   selectors  warpgroup 3      one query tile behind: scale, sum over heads, list, choose
//
// Of a group of one head the LSE does not change the order of blocks: consumers list the best as they
// arise, nothing is pooled into the scratch buffer, and selectors choose (attend/topn_rows.cuh). With
// groups of 2 to 8 heads a selector has so many tokens that it serves them side by side
// (attend/topn_tokens.cuh).
//
// The scratch buffer has no second copy: consumers overwrite the entry of key tile i once the
// selectors have read what the previous query tile stored there. Importance is as exact as that of
// select_importance. Without p.idx the kernel skips pooling and selection.
//
// Grid, shared memory of the main loop, alignment: attend/mainloop_sm90.cuh. Scratch:
// attend/topn_pool.cuh; at r = 4 it takes 19 KB per CTA for every 128 keys of the longest sequence,
// which is 81 MB for 132 CTAs at 64k tokens.
//
// Measured on an H200: bf16, 64/4 heads, D 128, l 32, d 16, l' 64, n 16, separate launches, O in
// fp32; in brackets without lists.
//
//     8k 0.30 ms (0.22)   64k 9.2 ms (7.1)   128k 37.6 ms
//
// Back-to-back launches take 10.7 ms at 64k. The unfused kernels take 6.0, 6.7 and 0.6 ms there.
// Over a paged cache 64k takes 9.5 ms in a prefill, where packed keys take 10.2 in a forward.
//
// Bound by latencies, not by one unit: at 128k the tensor cores are busy 57 % of the time and the
// schedulers issue in 41 % of the clocks. Time in ms when the kernel stops after each step, minimum
// of five launches:
//
//                                  64k     128k
//     attend_compressed_sm90       6.2     22.9
//     this kernel, no pooling      7.05    25.6
//     + pool and store             8.5     31.3
//     + fetch and sum              9.2     34.8
//     + list and choose (all)      9.5     35.4
//
// A scratch buffer that stayed in L2 would save 0.45 and 2.1 ms of that (at 128k 42 GB go to DRAM).
// At 8k the selectors are busy 85 % of the time, two thirds of it in the choice. A cheaper choice did
// not shorten the kernel, 131 us at 4k and 318 at 8k (profiler, spread 2 %): two tokens at once with
// ranks from shared memory 137 and 316; besides, candidates of up to three key tiles in registers
// instead of lists 137 and 316; besides, gates prefetched and loaded behind the last P V 138 and 318
// (16k 856 for 826); besides, no fence before the selectors' bulk copies 137 and 317.
//
// Tried without gain: two pieces in flight per selector instead of one
// (0); keys in natural order (0: interleaving is free); 224 registers for the consumers, without
// pooling (-1 %); all exponentials before the first sum (+1 %). Earlier designs at 64k:
// 11.3 ms with cp.async for pieces, an importance row in global memory that is read again, and
// sorting; 10.3 ms with bulk copies and ranks. Three warpgroups of 64 keys with three selectors
// beside the producer in 56 registers and lists in shared memory: 8k 0.34 ms (0.37), but 64k 9.8 to
// 10.2 ms (9.5) and 128k 36.6 ms (35.4), because the consumers wait for the selectors; without
// selectors 64k took 8.3 ms with pooling and storing, and 6.5 ms without pooling. Pooling by
// another wgmma (P times a constant matrix) would use P rounded to bf16: an error of 1e-3 of a
// block's importance, against 1e-6 here.
//
// Tried and left out: pooled values in fp16, which halve the scratch buffer and its stores. With
// them alone 64k takes 8.75 ms (9.47) and 128k 33.4 ms (36.3); a buffer that stays in L2 brings
// less (8.92 and 34.1). But their error of 2^-11 exceeds the 1e-4 of docs/numerics.md, so selectors
// have to recompute the blocks within that error of the cut in fp32. By mma.sync, with Q and K from
// global memory, correlated inputs take 8.95 ms (9.30) and 34.0 ms (35.6), but random ones 12.2 ms
// (9.3) and 38.9 ms (35.2), random ones with Q divided by 10 43 ms (9.3), and equal keys 610 ms
// (9.5): the closer importance is to equal, the more blocks lie near the cut.
//
// Config: the main loop's with kRows 128, kKeys 128, kThreads 512; kBlock (l), kStride (d),
// kSelectBlock (l'), kSelectCount (n), kSelectInit, kSelectLocal, kDepth (pieces in flight per
// selector).
#pragma once
#include "attend/mainloop_sm90.cuh"
#include "attend/topn_pool.cuh"
#include "attend/topn_rows.cuh"
#include "attend/topn_warps.cuh"

template <class C> struct SharedStorage {
  typename Flash<FlashConfig<C>>::Shared flash;
  typename KernelTraits<C>::TopnStorage topn_storage;
};

// ---- producer

// Loads Q. One thread.
template <class C>
NSAI_DEVICE void load_query_boxes(const NsaiAttendTma &p, const FlashTile &tile,
                                  typename Flash<FlashConfig<C>>::Shared &shared,
                                  PipelineState<C::kQueryStages> queries) {
  using F = Flash<FlashConfig<C>>;
  u32 q_full = shared_address(&shared.q_full[queries.stage]);
  barrier_wait(shared_address(&shared.q_empty[queries.stage]), queries.phase ^ 1);
  barrier_arrive_expecting(q_full, sizeof shared.q[0]);
#pragma unroll
  for (int w = 0; w < F::kConsumers; ++w)
    tma_load_panels<C::kHeadDimQk>(shared_address(shared.q[queries.stage][w]), p.q, q_full, 64,
                                   tile.group * C::kGroup, tile.first_token + w * F::kBoxTokens);
}

// Loads Q and the `whole` key tiles that lie entirely within the sequence. One thread.
template <class C>
NSAI_DEVICE void load_boxes(const NsaiAttendTma &p, const FlashTile &tile, int whole,
                            typename Flash<FlashConfig<C>>::Shared &shared,
                            PipelineState<C::kQueryStages> queries,
                            PipelineState<C::kStages> keys) {
  using F = Flash<FlashConfig<C>>;
  load_query_boxes<C>(p, tile, shared, queries);
  int column_k = (int)(tile.group * p.attend.k.head_stride);
  int column_v = (int)(tile.group * p.attend.v.head_stride);
#pragma unroll 1
  for (int row = tile.first_row; whole > 0; --whole, row += C::kKeys, keys.advance()) {
    u32 k_full = shared_address(&shared.k_full[keys.stage]);
    barrier_wait(shared_address(&shared.k_empty[keys.stage]), keys.phase ^ 1);
    barrier_arrive_expecting(k_full, F::kKeyBytes);
    tma_load_interleaved<C::kHeadDimQk>(shared_address(shared.k[keys.stage]), p.k, k_full, column_k,
                                        row);
    u32 v_full = shared_address(&shared.v_full[keys.stage]);
    barrier_wait(shared_address(&shared.v_empty[keys.stage]), keys.phase ^ 1);
    barrier_arrive_expecting(v_full, F::kValueBytes);
    tma_load_interleaved<C::kHeadDimV>(shared_address(shared.v[keys.stage]), p.v, v_full, column_v,
                                       row);
  }
}

// Copies a key tile of which only `present` keys belong to the sequence. The rows behind them may
// belong to another sequence, hold NaN, or be unmapped. The whole warpgroup takes part.
template <class C>
NSAI_DEVICE void copy_present(const NsaiAttend &p, int group, int row, int present,
                              typename Flash<FlashConfig<C>>::Shared &shared,
                              PipelineState<C::kStages> keys) {
  barrier_wait(shared_address(&shared.k_empty[keys.stage]), keys.phase ^ 1);
  copy_present_interleaved<C::kHeadDimQk>(shared_address(shared.k[keys.stage]),
                                          (const u16 *)p.k.data + row * p.k.token_stride +
                                              group * p.k.head_stride,
                                          p.k.token_stride, present);
  barrier_wait(shared_address(&shared.v_empty[keys.stage]), keys.phase ^ 1);
  copy_present_interleaved<C::kHeadDimV>(shared_address(shared.v[keys.stage]),
                                         (const u16 *)p.v.data + row * p.v.token_stride +
                                             group * p.v.head_stride,
                                         p.v.token_stride, present);
  copy_async_wait<0>();
  shared_proxy_fence();
  threads_sync(1, 128); // all threads' copies have arrived
  if (threadIdx.x % 128 == 0) {
    barrier_arrive(shared_address(&shared.k_full[keys.stage]));
    barrier_arrive(shared_address(&shared.v_full[keys.stage]));
  }
}

// The keys of the packed tensors.
template <class C>
NSAI_DEVICE void produce(const NsaiCompressedTopn &p,
                         typename Flash<FlashConfig<C>>::Shared &shared) {
  PipelineState<C::kQueryStages> queries;
  PipelineState<C::kStages> keys;
  for_each<C>(p, [&](const FlashTile &tile) {
    int tiles = key_tiles<C>(tile, searches<C>(p, tile));
    if (!tiles) return;
    int whole = min(tiles, tile.rows_left / C::kKeys);
    if (threadIdx.x == 0) load_boxes<C>(p.attend, tile, whole, shared, queries, keys);
    queries.advance();
    keys.advance(whole);
    if (whole == tiles) return;
    // Wait for thread 0, which has waited for the barriers' earlier phases.
    threads_sync(1, 128);
#pragma unroll 1
    for (; whole < tiles; ++whole, keys.advance())
      copy_present<C>(p.attend.attend, tile.group, tile.first_row + whole * C::kKeys,
                      tile.rows_left - whole * C::kKeys, shared, keys);
  });
}

// The entries of a cache: two warps copy keys, two values.
template <class C>
NSAI_DEVICE void produce_cached(const TopnParams<C> &params,
                                typename Flash<FlashConfig<C>>::Shared &shared) {
  const NsaiCompressedTopn &p = packed_of(params);
  PipelineState<C::kQueryStages> queries;
  PipelineState<C::kStages> keys;
  for_each<C>(params, [&](const FlashTile &tile) {
    const int tiles = key_tiles<C>(tile, searches<C>(p, tile));
    if (!tiles) return;
    if (threadIdx.x == 0) load_query_boxes<C>(p.attend, tile, shared, queries);
    queries.advance();
    produce_entries<C, CompressedKeys<C>, InterleavedOrder>(params, tile, tiles, shared, keys);
  });
}

// ---- consumers

// Token within the tile of row lane / 4 + 8 r of a warp.
template <class C> NSAI_DEVICE int token_of_row(int warp, int r, int lane) {
  int token = (warp * 16 + r * 8) / C::kGroupPadded;
  return C::kGroupPadded < 8 ? token + lane / 4 / C::kGroupPadded : token;
}

// Number of keys that a token of the tile sees. Tokens past the last take the last token's number.
template <class C> NSAI_DEVICE int keys_seen(const FlashTile &tile, int token) {
  return CompressedKeys<C>::visible(tile.position + min(token, tile.tokens - 1)).end;
}

// Turns the scores of key tile `i` into probabilities, pools them and stores the pooled values.
// Returns true if O must be rescaled by `factor`.
template <class C>
NSAI_DEVICE bool score(float (&s)[16][4], SoftmaxRows &rows, float (&factor)[2],
                       const FlashTile &tile, int all_see, int i, float scale_log2, bool pools,
                       Border<C> &border, RowLists<C> &lists, typename KernelTraits<C>::Piece *to,
                       int lane) {
  using P = KernelTraits<C>;
  if ((i + 1) * C::kKeys > all_see) {
    const int thread = recomputed(threadIdx.x), warp = thread / 32 - 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int seen = keys_seen<C>(tile, token_of_row<C>(warp, r, thread % 32)) -
                 (i * C::kKeys + thread % 4 * 32); // relative to this lane's 32 keys
#pragma unroll
      for (int k = 0; k < 32; ++k)
        if (k >= seen) s[k / 2][2 * r + k % 2] = kMinusInf;
    }
  }
  bool grows = softmax_grow(rows, factor, s, scale_log2);
  if (grows)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int k = 0; k < P::kOverlap - 1; ++k) border.x[r][k] *= factor[r];
  if constexpr (kSingleHead<C>)
    if (pools && grows) lists.scale(factor);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sums[P::kLaneBlocks];
    exponentiate<C>(s, r, rows, sums, scale_log2);
    if (!pools) continue;
    pool<C>(s, r, sums, border, lane);
    if constexpr (kSingleHead<C>)
      list_blocks<C>(lists, sums, r, rows.reference[r], tile, i);
    else
      store_pooled<C>(sums, r, to, lane);
  }
  if (!kSingleHead<C> && pools && lane % 4 < 2)
#pragma unroll
    for (int part = 0; part < P::kParts; ++part)
      to[part].references[lane % 4 * 8 + lane / 4] =
          lane % 4 ? rows.reference[1] : rows.reference[0];
  return grows;
}

// Stores the LSE of a warp's rows for the selectors.
template <class C>
NSAI_DEVICE void share_lse(const Scratch<C> &scratch, const SoftmaxRows &rows, int warp, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = lanes_sum<4>(rows.sum[r]);
    // An infinite LSE gives an empty row the scale 0.
    float lse = total > 0 ? rows.reference[r] + log2_approx(total) : -kMinusInf;
    if (lane % 4 == 0) scratch.lse[warp * 16 + r * 8 + lane / 4] = lse;
  }
}

template <class C>
NSAI_DEVICE void consume(const TopnParams<C> &params, SharedStorage<C> &all, int consumer) {
  const NsaiCompressedTopn &p = packed_of(params);
  using F = Flash<FlashConfig<C>>;
  using P = KernelTraits<C>;
  using Product = ProductConfig<FlashConfig<C>>;
  typename F::Shared &shared = all.flash;
  const int lane = threadIdx.x % 32, warp = consumer * 4 + threadIdx.x / 32 % 4;
  const bool arrives = lane == 0;
  const u32 read = shared_address(&all.topn_storage.read[warp / P::kSharingWarps]);
  const Scratch<C> scratch(p);
  // Key tiles pooled before the last query tile, and in it. Of single heads: query tiles listed.
  int done = 0, last = 0;
  PipelineState<C::kQueryStages> queries;
  PipelineState<C::kStages> keys;
  auto stage_k = [&](int stage) { return shared_address(shared.k[warp_uniform(stage)]); };
  auto stage_v = [&](int stage) { return shared_address(shared.v[warp_uniform(stage)]); };

  for_each<C>(params, [&](const FlashTile &tile) {
    const bool pools = searches<C>(p, tile);
    const int tiles = key_tiles<C>(tile, pools);
    const int all_see = keys_seen<C>(tile, token_of_row<C>(warp, 0, 0)); // seen by all rows
    float o[F::kO][4] = {};                                              // [64, Dv]
    SoftmaxRows rows;

    if (tiles) {
      float scale_log2 = scale_by_keys<C>(p.attend.attend.scale_log2, params, tile.group);
      float s[16][4]; // [64, 128]
      Probabilities<Product> probabilities;
      float factor[2];
      Border<C> border = {};
      RowLists<C> lists;
      u32 sQ = shared_address(shared.q[warp_uniform(queries.stage)][consumer]);
      // Waits until the selectors have read the previous contents of tile i's piece.
      auto wait_read = [&](int i) {
        if (!kSingleHead<C> && pools && last)
          while (published(read) < done + min(i + 1, last)) {}
      };

      barrier_wait(shared_address(&shared.q_full[queries.stage]), queries.phase);
      scale_log2 *= convert_flash_query<FlashConfig<C>>(sQ, consumer, tile.tokens);
      barrier_wait(shared_address(&shared.k_full[keys.stage]), keys.phase);
      multiply_qk<Product>(s, sQ, stage_k(keys.stage)); // [64, 128]
      if constexpr (kSingleHead<C>) {
        if (pools) lists.begin(p, all.topn_storage, read, done, warp, lane);
      }
      wait_read(0);
      wgmma_wait<0>();
      hold(s);
      if (arrives) barrier_arrive(shared_address(&shared.k_empty[keys.stage]));
      score<C>(s, rows, factor, tile, all_see, 0, scale_log2, pools, border, lists,
               scratch.of(0, warp), lane);
      pack_probabilities<Product>(probabilities, s);

      for (int i = 1; i < tiles; ++i) {
        PipelineState<C::kStages> before = keys;
        keys.advance();
        barrier_wait(shared_address(&shared.k_full[keys.stage]), keys.phase);
        multiply_qk<Product>(s, sQ, stage_k(keys.stage)); // [64, 128]
        barrier_wait(shared_address(&shared.v_full[before.stage]), before.phase);
        multiply_pv<Product>(o, probabilities, stage_v(before.stage)); // [64, Dv]
        wait_read(i);

        wgmma_wait<1>(); // Q K^T is complete
        hold(s);
        if (arrives) barrier_arrive(shared_address(&shared.k_empty[keys.stage]));
        bool grows = score<C>(s, rows, factor, tile, all_see, i, scale_log2, pools, border, lists,
                              scratch.of(i, warp), lane);

        wgmma_wait<0>(); // P V is complete
        hold(o);
        if (arrives) barrier_arrive(shared_address(&shared.v_empty[before.stage]));
        if (grows) softmax_rescale(o, factor);
        pack_probabilities<Product>(probabilities, s);
      }
      barrier_arrive(shared_address(&shared.q_empty[queries.stage]));
      barrier_wait(shared_address(&shared.v_full[keys.stage]), keys.phase);
      multiply_pv<Product>(o, probabilities, stage_v(keys.stage)); // [64, Dv]

      if (pools) {
        if constexpr (kSingleHead<C>) {
          lists.share(p, all.topn_storage, rows, done, warp, lane);
          ++done;
        } else {
          share_lse(scratch, rows, warp, lane);
          global_proxy_fence();
          __syncwarp();
          if (arrives) barrier_arrive(shared_address(&all.topn_storage.scored));
          done += last;
          last = tiles;
        }
      }
      wgmma_wait<0>();
      hold(o);
      if (arrives) barrier_arrive(shared_address(&shared.v_empty[keys.stage]));
      keys.advance();
      queries.advance();
      scale_by_values<C>(o, params, tile.group);
    }
    OutputRow output_row[2];
    const int thread = recomputed(threadIdx.x);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int token = token_of_row<C>(consumer * 4 + thread / 32 % 4, r, thread % 32);
      int head = (thread / 32 % 4 * 16 + r * 8 + thread % 32 / 4) % C::kGroupPadded;
      output_row[r] = OutputRow{ tile.first_token + token, tile.group * C::kGroup + head,
                                 head < C::kGroup && token < tile.tokens };
    }
    begin_kernel(); // the partial sum comes from the previous kernel
    store_output<C>(p.attend.attend.out, p.attend.attend.kv_heads, o, rows, output_row);
  });
}

// ---- body

template <class C> NSAI_DEVICE void compressed_topn(const TopnParams<C> &params) {
  using P = KernelTraits<C>;
  const NsaiCompressedTopn &p = packed_of(params);
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage<C> &shared = *(SharedStorage<C> *)shared_bytes;
  static_assert(sizeof(SharedStorage<C>) == C::kSharedBytes,
                "the host computes another size of shared memory");
  const int warpgroup = warp_uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.attend.q);
    if constexpr (!C::kCached) {
      tma_prefetch_map(p.attend.k);
      tma_prefetch_map(p.attend.v);
    }
    if constexpr (kSingleHead<C>) {
      for (int i = 0; i < 2 * P::kSelectors; ++i)
        barrier_init(shared_address(
                         &shared.topn_storage.scored[i / P::kSelectors][i % P::kSelectors]),
                     P::kSharingWarps);
    } else {
      barrier_init(shared_address(&shared.topn_storage.scored), P::kWarps);
      for (int i = 0; i < P::kSelectors * C::kDepth; ++i)
        barrier_init(shared_address(
                         &shared.topn_storage.exchange_buffers[i / C::kDepth].full[i % C::kDepth]),
                     1);
    }
    init_barriers<FlashConfig<C>>(shared.flash, C::kCached ? 64 : 1);
  }
  if (threadIdx.x < P::kWarps / P::kSharingWarps) shared.topn_storage.read[threadIdx.x] = 0;
  if (!p.attend.attend.early) wait_for_kernel_before();
  __syncthreads(); // barriers are initialised

  if (warpgroup == 0) {
    registers_drop<P::kProducerRegisters>();
    if constexpr (C::kCached)
      produce_cached<C>(params, shared.flash);
    else
      produce<C>(params, shared.flash);
  } else if (warpgroup == 3) {
    registers_drop<P::kSelectorRegisters>();
    if constexpr (kSingleHead<C>)
      select_rows<C>(params, shared.topn_storage, threadIdx.x / 32 % 4);
    else
      select<C>(params, shared.topn_storage, threadIdx.x / 32 % 4);
  } else {
    registers_raise<P::kConsumerRegisters>();
    consume<C>(params, shared, warpgroup - 1);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_compressed_topn_sm90(const __grid_constant__ TopnParams<Config> p) {
  compressed_topn<Config>(p);
  wait_for_kernel_before(); // for CTAs that had no tile
}
