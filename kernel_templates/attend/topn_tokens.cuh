// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What a selector of attend_compressed_topn_sm90 does where it has many tokens: groups of 2 to 8 heads.
// To list candidates as they arise, as attend/topn_warps.cuh does, takes 250 clocks for each token and
// key tile, most of which are waits. Here a selector stores the importance of a token, f32 in the
// place of its list, and keeps the greatest of each lane; once all is known, the n_free-th of these
// is a bar that few candidates reach.
#pragma once
#include "attend/topn_pool.cuh"

// Whether a selector stores the importance of its tokens.
template <class C>
constexpr bool kManyTokens = KernelTraits<C>::kTokens >= 4 && KernelTraits<C>::kTokens <= 16 &&
                             0 < Topn<C>::kFree &&Topn<C>::kFree <= 32;

constexpr float kNotCandidate = -1.0f;

// The k-th token of a selector.
template <class C> NSAI_DEVICE int token_of_selector(int selector, int k) {
  using P = KernelTraits<C>;
  return (selector + k / P::kWorkItemTokens * P::kSelectors) * P::kWorkItemTokens +
         k % P::kWorkItemTokens;
}

// The importance of a token's blocks.
template <class C> NSAI_DEVICE float *importance_of(const Scratch<C> &scratch, int token) {
  return (float *)(scratch.lists + token * scratch.columns);
}

// Stores the importance of this lane's block, the `lane`-th from `first` on, for each token: `sum`.
template <class C>
NSAI_DEVICE void
store_importance(const float (&sum)[KernelTraits<C>::kMine][KernelTraits<C>::kWorkItemTokens],
                 u32 (&greatest)[KernelTraits<C>::kTokens][32], const FlashTile &tile,
                 const Scratch<C> &scratch, int selector, int first, int lane) {
  using P = KernelTraits<C>;
  const bool edge = first < C::kSelectInit ||
                    first + P::kBlocks > candidate_count<C>(tile.position) - C::kSelectLocal;
  const int block = first + lane;
#pragma unroll
  for (int k = 0; k < P::kTokens; ++k) {
    const int token = token_of_selector<C>(recomputed(selector), k);
    float x = sum[k / P::kWorkItemTokens][k % P::kWorkItemTokens];
    if (edge) {
      const int local = candidate_count<C>(tile.position + token) - C::kSelectLocal;
      if (block < C::kSelectInit || block >= local) x = kNotCandidate;
    }
    if (P::kBlocks < 32 && lane >= P::kBlocks) continue;
    // 0: no candidate. NaN counts as 0.
    greatest[k][lane] = __float_as_uint(fmaxf(__uint_as_float(greatest[k][lane]), x));
    importance_of<C>(scratch, token)[block] = x;
  }
}

// Writes the kFree best of the blocks [begin, end) to gOut, ascending, by a pass for each. search() of
// core/topn.cuh would need registers that a selector does not have.
template <int kFree>
NSAI_DEVICE void search_slowly(int *gOut, const float *importance, int begin, int end, int lane) {
  u64 below = ~0ull;
  u32 mine[1] = { ~0u }; // lane i: the i-th best
#pragma unroll 1
  for (int i = 0; i < kFree; ++i) {
    u64 best = 0;
#pragma unroll 4
    for (int block = begin + lane; block < end; block += 32) {
      const u64 key = key_of(order_of(importance[block]), block);
      if (key < below && key > best) best = key;
    }
#pragma unroll
    for (int delta = 16; delta > 0; delta /= 2)
      best = max(best, __shfl_xor_sync(kAllLanes, best, delta));
    below = best;
    if (lane == i) mine[0] = index_in(best);
  }
  sort_warp(mine, lane);
  if (lane < kFree) gOut[lane] = (int)mine[0];
}

// Chooses the blocks of a selector's tokens. `exchange_buffer` holds the greatest of each lane.
template <class C>
NSAI_DEVICE void
choose_tokens(const NsaiCompressedTopn &p, const FlashTile &tile, const Scratch<C> &scratch,
              typename KernelTraits<C>::ExchangeBuffer &exchange_buffer, int selector, int lane) {
  using P = KernelTraits<C>;
  constexpr int kFree = Topn<C>::kFree, kEach = P::kTokens > 8 ? 2 : 4; // loads in flight of a lane
  float next[kEach];
  auto end_of = [&](int token) { // of the candidates that are not forced
    return candidate_count<C>(tile.position + token) - C::kSelectLocal;
  };
  auto list_of = [&](int token) { // [n]
    return p.idx + (tile.first_token + token) * p.idx_token_stride + tile.group * p.idx_head_stride;
  };
  auto load = [&](int token, int begin, int end) {
    const float *importance = importance_of<C>(scratch, token);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int block = begin + 32 * i + lane;
      next[i] = block < end ? importance[block] : kNotCandidate;
    }
  };
  u32 left = 0; // tokens that are searched slowly
  int token = token_of_selector<C>(selector, 0);
  if (token < tile.tokens) load(token, 0, end_of(token));
#pragma unroll 1
  for (int k = 0; k < P::kTokens; ++k) {
    token = token_of_selector<C>(selector, k);
    if (token >= tile.tokens) break;
    const int after = token_of_selector<C>(selector, k + 1); // the token after this one
    const bool more = k + 1 < P::kTokens && after < tile.tokens;
    const int candidates = candidate_count<C>(tile.position + token), end = end_of(token);
    if (!write_forced<C>(list_of(token), candidates, lane)) {
      if (more) load(after, 0, end_of(after));
      continue;
    }
    const float bar =
        __uint_as_float(order_reached(exchange_buffer.greatest[k][lane], kFree, lane));
    u64 *queue = exchange_buffer.queue;
    int queued = 0;
#pragma unroll 1
    for (int begin = 0; begin < end; begin += 32 * kEach) {
      float x[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) x[i] = next[i];
      if (begin + 32 * kEach < end)
        load(token, begin + 32 * kEach, end);
      else if (more)
        load(after, 0, end_of(after));
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const bool reaches = !(x[i] < bar); // NaN does, a forced block does not
        const u32 all = __ballot_sync(kAllLanes, reaches);
        if (!all) continue;
        if (reaches && queued <= kQueue - 32)
          queue[queued + votes_below(all, lane)] = key_of(order_of(x[i]), begin + 32 * i + lane);
        queued += __popc(all);
      }
    }
    __syncwarp(); // the queue is written
    if (queued <= 32) {
      const u64 key = lane < queued ? queue[lane] : 0;
      list_ranked<kFree>(list_of(recomputed(token)) + C::kSelectInit, key, lane);
      __syncwarp(); // all lanes have read the queue
    } else {
      left |= 1u << k;
    }
  }
  // Tokens of which many blocks are equal, or reach the bar because the best lie 32 apart.
#pragma unroll 1
  for (; left; left &= left - 1) {
    token = token_of_selector<C>(selector, __ffs(left) - 1);
    search_slowly<kFree>(list_of(token) + C::kSelectInit, importance_of<C>(scratch, token),
                         C::kSelectInit, end_of(token), lane);
  }
}
