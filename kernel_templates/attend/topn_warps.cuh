// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The selectors of attend_compressed_topn_sm90: four warps that run one query tile behind the
// consumers. They load the tile's pooled probabilities into shared memory piece by piece, scale
// them by 2^(reference - LSE), sum them over the heads of each token, and find the top-n blocks.
//
// A candidate goes on the token's list unless n_free earlier candidates are known to beat it. The
// bound is rough: it comes from each lane's greatest value. core/topn.cuh then chooses from the
// list, which has about 60 candidates at any length. A candidate that is not listed costs one
// comparison. Groups of 2 to 8 heads that choose at most 16 blocks list and choose by
// attend/topn_tokens.cuh.
#pragma once
#include "attend/topn_pool.cuh"
#include "attend/topn_tokens.cuh"

// Adds pieces over the heads of each token; this lane sums one block of each piece. `first`: index
// of the pieces' first row among the work item's rows; lse: of row lane % 16 of piece lane / 16.
template <class C>
NSAI_DEVICE void sum_heads(float (&sum)[KernelTraits<C>::kMine][KernelTraits<C>::kWorkItemTokens],
                           typename KernelTraits<C>::ExchangeBuffer &exchange_buffer,
                           const typename KernelTraits<C>::Piece (&pieces)[KernelTraits<C>::kMine],
                           float lse, int first, int lane) {
  using P = KernelTraits<C>;
  if (lane < 16 * P::kMine)
    exchange_buffer.scales[lane / 16][lane % 16] =
        exp2_approx(pieces[lane / 16].references[lane % 16] - lse);
  int pair = lane % P::kBlocks / P::kLaneBlocks, block = lane % P::kLaneBlocks;
  int vector = block / P::kVector;
  // `from` is group 0's value. rows[i] adds the offset from a group's natural position to its
  // swizzled one, for group bits i.
  const float *from =
      pieces[0].pooled + vector * 8 * P::kGroupPitch + pair * P::kVector + block % P::kVector;
  const float *rows[P::kSwizzle + 1];
#pragma unroll
  for (int i = 0; i <= P::kSwizzle; ++i)
    rows[i] = from + ((i ^ (vector & P::kSwizzle)) - i) * P::kGroupPitch;
  __syncwarp(); // the scales are written
#pragma unroll
  for (int row = 0; row < 16; ++row) {
    if ((first + row) % C::kGroupPadded >= C::kGroup) continue; // padding head
    int at = (row / 8 * P::kVectors * 8 + row % 8) * P::kGroupPitch;
#pragma unroll
    for (int u = 0; u < P::kMine; ++u) {
      float &to = sum[u][row / C::kGroupPadded % P::kWorkItemTokens];
      to = fmaf(exchange_buffer.scales[u][row],
                rows[row & P::kSwizzle][at + u * (int)(sizeof(typename P::Piece) / sizeof(float))],
                to);
    }
  }
}

// Computes the importance of a query tile and lists the candidates that may be among the best.
template <class C>
NSAI_DEVICE void find_candidates(const FlashTile &tile, const Scratch<C> &scratch,
                                 typename KernelTraits<C>::TopnStorage &topn_storage, int selector,
                                 int done, PipelineState<C::kDepth> &state) {
  using P = KernelTraits<C>;
  constexpr int kSteps = P::kParts * P::kWorkItemWarps; // pieces per work item and key tile
  const int lane = threadIdx.x % 32, tiles = key_tiles<C>(tile, true);
  typename P::ExchangeBuffer &exchange_buffer = topn_storage.exchange_buffers[selector];
#pragma unroll
  for (int k = 0; k < P::kTokens; ++k) exchange_buffer.greatest[k][lane] = 0;
  if (lane < P::kTokens) exchange_buffer.listed[lane] = exchange_buffer.bar[lane] = 0;
  float lse[P::kWorkItemWarps];
#pragma unroll
  for (int w = 0; w < P::kWorkItemWarps; ++w) {
    int work_item = selector + lane / 16 % P::kMine * P::kSelectors;
    lse[w] = scratch.lse[(work_item * P::kWorkItemWarps + w) * 16 + lane % 16];
  }

  // Loads one piece of each work item, in the order tile, part, warp.
  auto fetch = [&](int i, int step, int stage) {
    if (i >= tiles || lane != 0) return;
    u32 full = shared_address(&exchange_buffer.full[stage]);
    barrier_arrive_expecting(full, sizeof exchange_buffer.pieces[0]);
#pragma unroll
    for (int u = 0; u < P::kMine; ++u)
      bulk_load(shared_address(&exchange_buffer.pieces[stage][u]),
                scratch.of(recomputed(i), (selector + u * P::kSelectors) * P::kWorkItemWarps +
                                              step % P::kWorkItemWarps) +
                    step / P::kWorkItemWarps,
                full, sizeof(typename P::Piece));
  };
  shared_proxy_fence();
  __syncwarp(); // the union's earlier contents (the queue) have been read
  PipelineState<C::kDepth> ahead = state;
#pragma unroll
  for (int k = 0; k < C::kDepth; ++k, ahead.advance()) fetch(k / kSteps, k % kSteps, ahead.stage);
  for (int i = 0; i < tiles; ++i) {
    float sum[P::kMine][P::kWorkItemTokens];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int part = step / P::kWorkItemWarps, w = step % P::kWorkItemWarps;
      if (w == 0)
#pragma unroll
        for (int k = 0; k < P::kTokens; ++k)
          sum[k / P::kWorkItemTokens][k % P::kWorkItemTokens] = 0;
      barrier_wait(shared_address(&exchange_buffer.full[state.stage]), state.phase);
      sum_heads<C>(sum, exchange_buffer, exchange_buffer.pieces[state.stage], lse[w], w * 16, lane);
      shared_proxy_fence();
      // All lanes have read the pieces; a bulk copy may overwrite them.
      __syncwarp();
      if (part + 1 == P::kParts && w + 1 == P::kWorkItemWarps && lane < P::kMine)
        publish(shared_address(&topn_storage.read[selector + lane * P::kSelectors]), done + i + 1);
      fetch(i + (step + C::kDepth) / kSteps, (step + C::kDepth) % kSteps, state.stage);
      state.advance();
      if (w + 1 < P::kWorkItemWarps) continue;

      int block = i * P::kTileBlocks + part * P::kBlocks + lane;
      if constexpr (kManyTokens<C>) {
        list_tokens<C>(sum, tile, scratch, exchange_buffer, selector, block, lane);
        continue;
      }
#pragma unroll
      for (int k = 0; k < P::kTokens; ++k) {
        int work_item = recomputed(selector) + k / P::kWorkItemTokens * P::kSelectors;
        int token = work_item * P::kWorkItemTokens + k % P::kWorkItemTokens;
        int local = candidate_count<C>(tile.position + token) - C::kSelectLocal;
        u32 order = order_of(sum[k / P::kWorkItemTokens][k % P::kWorkItemTokens]);
        bool wins = order >= exchange_buffer.bar[k] && lane < P::kBlocks &&
                    C::kSelectInit <= block && block < local;
        u32 winners = __ballot_sync(~0u, wins);
        if (!winners) continue;
        u32 listed = exchange_buffer.listed[k];
        if (wins)
          scratch.lists[token * scratch.columns + listed + votes_below(winners, lane)] =
              key_of(order, block);
        u32 greatest = exchange_buffer.greatest[k][lane];
        if (wins) greatest = max(greatest, order);
        exchange_buffer.greatest[k][lane] = greatest;
        u32 bar = order_reached_roughly<C>(greatest);
        __syncwarp(); // all lanes have read bar and listed
        if (lane == 0) {
          exchange_buffer.bar[k] = bar;
          exchange_buffer.listed[k] = listed + __popc(winners);
        }
      }
    }
  }
  __syncwarp(); // the lists are written
}

template <class C>
NSAI_DEVICE void select(const TopnParams<C> &params,
                        typename KernelTraits<C>::TopnStorage &topn_storage, int selector) {
  using P = KernelTraits<C>;
  const NsaiCompressedTopn &p = packed_of(params);
  constexpr int kFree = Topn<C>::kFree;
  const int lane = threadIdx.x % 32;
  const Scratch<C> scratch(p);
  typename P::ExchangeBuffer &exchange_buffer = topn_storage.exchange_buffers[selector];
  PipelineState<C::kDepth> pieces;
  u32 phase = 0;
  int done = 0; // key tiles of all earlier query tiles
  if (selector >= P::kWorkItems || !p.idx) return;

  for_each<C>(params, [&](const FlashTile &tile) {
    if (searches<C>(p, tile)) {
      barrier_wait(shared_address(&topn_storage.scored), phase);
      phase ^= 1;
      find_candidates<C>(tile, scratch, topn_storage, selector, done, pieces);
      done += key_tiles<C>(tile, true);
    }
    if constexpr (kManyTokens<C>) {
      choose_tokens<C>(p, tile, scratch, exchange_buffer, selector, lane);
      return;
    }
#pragma unroll 1
    for (int k = 0; k < P::kTokens; ++k) {
      int token = (selector + k / P::kWorkItemTokens * P::kSelectors) * P::kWorkItemTokens +
                  k % P::kWorkItemTokens;
      if (token >= tile.tokens) break;
      int *gOut = p.idx + (tile.first_token + token) * p.idx_token_stride +
                  tile.group * p.idx_head_stride; // [n]
      if (!write_forced<C>(gOut, candidate_count<C>(tile.position + token), lane)) continue;
      u32 bar = 0;
      if constexpr (0 < kFree && kFree <= 32)
        bar = max(order_reached<true>(exchange_buffer.greatest[k][lane], kFree, lane), 1u) - 1;
      const u64 *list = scratch.lists + token * scratch.columns;
      if constexpr (kFree > 0)
        search<kFree, Topn<C>::kSlots, true>(
            gOut + C::kSelectInit, exchange_buffer.listed[k], [&](int i) { return list[i]; },
            exchange_buffer.queue, lane, bar);
    }
  });
}
