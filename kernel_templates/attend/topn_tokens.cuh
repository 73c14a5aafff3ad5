// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What a selector of attend_compressed_topn_sm90 does for its tokens side by side, where it has many:
// groups of up to 8 heads. One token after the other, its chains of shuffles and loads take longer
// than the consumers' key tiles (attend/topn_warps.cuh).
//
// Measured on an H200, 64k tokens of 64 heads, D 128, correlated inputs, in brackets one token after the
// other: 8 heads 9.5 ms (10.5), 4 heads 12.1 (14.4), 2 heads 18.2 (the unfused kernels: 23.6).
//
// Tried without gain: importance stored in the place of lists and searched once the bar is exact,
// which saves the votes of every key tile (8, 4, 2 heads: 10.6, 15.6, 29.2 ms).
#pragma once
#include "attend/topn_pool.cuh"

// Whether a selector serves its tokens side by side.
template <class C>
constexpr bool kManyTokens = (KernelTraits<C>::kTokens >= 4) && (KernelTraits<C>::kTokens <= 16) &&
                             (Topn<C>::kFree > 0) && (Topn<C>::kFree <= kMostRowBlocks);

// Returns an order that at least n_free candidates have reached, given the greatest order of each
// lane: the smallest of the groups' maxima. Returns 0 if there are too few groups.
template <class C> NSAI_DEVICE u32 order_reached_roughly(u32 greatest) {
  constexpr int kFree = Topn<C>::kFree;
  if constexpr (kFree == 0 || kFree > 32) return 0;
#pragma unroll
  for (int groups = 16; groups >= kFree && groups > 0; groups /= 2)
    greatest = max(greatest, __shfl_xor_sync(~0u, greatest, groups));
  return __reduce_min_sync(~0u, greatest);
}

// Lists the candidates of a key tile: this lane's block, whose importance for each token is `sum`.
template <class C>
NSAI_DEVICE void
list_tokens(const float (&sum)[KernelTraits<C>::kMine][KernelTraits<C>::kWorkItemTokens],
            const FlashTile &tile, const Scratch<C> &scratch,
            typename KernelTraits<C>::ExchangeBuffer &exchange_buffer, int selector, int block,
            int lane) {
  using P = KernelTraits<C>;
  u32 bar = 0, added = 0; // lane k: of token k
#pragma unroll
  for (int k = 0; k < P::kTokens; ++k) {
    int work_item = recomputed(selector) + k / P::kWorkItemTokens * P::kSelectors;
    int token = work_item * P::kWorkItemTokens + k % P::kWorkItemTokens;
    int local = candidate_count<C>(tile.position + token) - C::kSelectLocal;
    u32 order = order_of(sum[k / P::kWorkItemTokens][k % P::kWorkItemTokens]);
    bool wins = order >= exchange_buffer.bar[k] && lane < P::kBlocks && C::kSelectInit <= block &&
                block < local;
    u32 winners = __ballot_sync(~0u, wins);
    if (wins)
      scratch
          .lists[token * scratch.columns + exchange_buffer.listed[k] + votes_below(winners, lane)] =
          key_of(order, block);
    u32 greatest = exchange_buffer.greatest[k][lane];
    greatest = wins ? max(greatest, order) : greatest;
    exchange_buffer.greatest[k][lane] = greatest;
    u32 reached = order_reached_roughly<C>(greatest);
    if (lane == k) bar = reached, added = __popc(winners);
  }
  __syncwarp(); // all lanes have read bar and listed
  if (lane < P::kTokens) {
    exchange_buffer.bar[lane] = bar;
    exchange_buffer.listed[lane] += added;
  }
  __syncwarp(); // they are written
}

// Calls take(key) for entries lane, lane + kLanes, ... of a list of `count`, as often for all lanes of
// the warp; 0 behind the end.
template <int kLanes, class Take>
NSAI_DEVICE void for_each_key(const u64 *list, int count, int steps, Take take) {
  constexpr int kAhead = 4;
  u64 next[kAhead];
  auto load = [&](int step) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      next[i] = (step + i) * kLanes < count ? list[(step + i) * kLanes] : 0;
  };
  load(0);
#pragma unroll 1
  for (int step = 0; step < steps; step += kAhead) {
    u64 key[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) key[i] = next[i];
    load(step + kAhead);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) take(key[i]);
  }
}

// Chooses the blocks of all tokens of a selector: kLanes lanes a token read its list in turns.
template <class C>
NSAI_DEVICE void
choose_tokens(const NsaiCompressedTopn &p, const FlashTile &tile, const Scratch<C> &scratch,
              typename KernelTraits<C>::ExchangeBuffer &exchange_buffer, int selector, int lane) {
  using P = KernelTraits<C>;
  constexpr int kFree = Topn<C>::kFree, kLanes = 32 / P::kTokens;
  const int k = lane / kLanes, part = lane % kLanes;
  const int token = (selector + k / P::kWorkItemTokens * P::kSelectors) * P::kWorkItemTokens +
                    k % P::kWorkItemTokens;
  int *gOut = p.idx + (tile.first_token + token) * p.idx_token_stride +
              tile.group * p.idx_head_stride; // [n]
  const int candidates = candidate_count<C>(tile.position + token);
  const bool searching = token < tile.tokens && candidates > C::kSelectCount;
  if (token < tile.tokens) {
    if (!searching) {
      for (int i = part; i < C::kSelectCount; i += kLanes) gOut[i] = i < candidates ? i : -1;
    } else {
      for (int i = part; i < C::kSelectInit; i += kLanes) gOut[i] = i;
      for (int i = part; i < C::kSelectLocal; i += kLanes)
        gOut[C::kSelectInit + kFree + i] = candidates - C::kSelectLocal + i;
    }
  }
  if (!__any_sync(~0u, searching)) return;
  const int count = searching ? (int)exchange_buffer.listed[k] - part : 0; // from this lane's first
  const u64 *list = scratch.lists + token * scratch.columns + part;
  const int steps = (int)__reduce_max_sync(~0u, (u32)max(count + kLanes - 1, 0)) / kLanes;

  u32 best[kFree] = {}; // orders, in descending order
  for_each_key<kLanes>(list, count, steps, [&](u64 key) {
    u32 order = order_in(key);
    if (order <= best[kFree - 1]) return;
#pragma unroll
    for (int i = 0; i < kFree; ++i) {
      const u32 high = max(best[i], order);
      order = min(best[i], order);
      best[i] = high;
    }
  });
#pragma unroll
  for (int delta = 1; delta < kLanes; delta *= 2) {
    u32 other[kFree];
#pragma unroll
    for (int i = 0; i < kFree; ++i) other[i] = __shfl_xor_sync(~0u, best[kFree - 1 - i], delta);
#pragma unroll
    for (int i = 0; i < kFree; ++i) best[i] = max(best[i], other[i]); // the kFree best of both
#pragma unroll
    for (int round = 0; round < kFree; ++round)
#pragma unroll
      for (int i = round % 2; i + 1 < kFree; i += 2) {
        const u32 high = max(best[i], best[i + 1]), low = min(best[i], best[i + 1]);
        best[i] = high, best[i + 1] = low;
      }
  }
  // All that exceed the last of them, and the first ones equal to it while there is room.
  const u32 least = best[kFree - 1];
  int room = 0, found = 0;
#pragma unroll
  for (int i = 0; i < kFree; ++i) room += best[i] == least;
  const u32 lanes = (kLanes == 32 ? ~0u : (1u << kLanes) - 1) << k * kLanes;
  for_each_key<kLanes>(list, count, steps, [&](u64 key) {
    const u32 order = order_in(key);
    const u32 equal = __ballot_sync(~0u, order == least && key) & lanes;
    const bool fits = order == least && key && votes_below(equal, lane) < room;
    const u32 chosen = __ballot_sync(~0u, order > least || fits) & lanes;
    if (chosen >> lane & 1)
      gOut[C::kSelectInit + found + votes_below(chosen, lane)] = (int)index_in(key);
    found += __popc(chosen);
    room -= min(room, __popc(equal));
  });
}
