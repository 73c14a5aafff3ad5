// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Attention of a few query rows over many keys of a KV cache, for decode_split_kv_compressed,
// decode_split_kv_attend and decode_single_cta. Bound by memory.
//
// A CTA has kRows = 16 * kRowTiles rows and kConsumerGroups consumer groups of kRowTiles warps;
// each warp of a group has one m16 tile of rows. A consumer group streams its own keys through its
// own pipeline of kStages stages. A stage holds kStageKeys keys (16, or 32 for drafts). Only the
// warps of one group ever wait for each other, and each group keeps kStages - 1 stages in flight:
// at D 128, with 4 groups of 3 stages of 16 keys, 64 KB per CTA. At the end the groups' results are
// added up (decode/mainloop_splits.cuh).
//
//   pipeline  [kConsumerGroups][kStages] { K [keys, Dk] | V [keys, Dv] }; the memory is reused for
//             O [kConsumerGroups][kRows, Dv]
//   Q         in registers, or in shared memory before the pipeline if O leaves no room
//   rows      each lane looks up one key's row a stage before its copy, and before the copies in
//             between are issued: a block table read behind them would have to wait for them
//
// The caller describes the keys of a group by a policy `Keys`:
//
//   int limit            keys from `limit` on do not exist
//   int index(int i)     row of key i < limit in its sequence (data/cache_rows.cuh)
//   int begin(int r), end(int r)
//                        keys that row `group + 8 * r` of the warp sees
//   u32 owners(int i)    if kOwned (not every key belongs to all tokens): the tokens that own
//                        key i, the same for kOwnedKeys consecutive keys
//   void pool_stage(p, rows, steps)
//                        if kPools: uses a stage's probabilities while P V runs
//
// Config: Element, kHeadDimQk, kHeadDimV, kGroup, kGroupPadded, kWarps, kStages, kThreads, kWgmma
// (a warpgroup takes 64 rows: decode/panel_stage.cuh), kCountReads.
#pragma once
#include "core/copy_rows.cuh"
#include "core/softmax.cuh"
#include "data/cache_rows.cuh"
#include "data/key_range.cuh"
#include "data/read_counter.cuh"
#include "decode/consumer_groups.cuh"
#include "decode/mainloop_products.cuh"
#include "decode/work.cuh"

// Cache location of one lane's key in a stage.
struct KeyLocation {
  int index; // negative: no key
  int page;
};

template <int kStageKeys, class Keys, class Rows>
NSAI_DEVICE KeyLocation find_key(const Keys &keys, const Rows &rows, int step, int limit,
                                 int lane) {
  const int i = step * kStepKeys + lane % kStageKeys;
  const int index = i < limit ? keys.index(i) : -1;
  return KeyLocation{ index, index < 0 ? 0 : rows.page(index) };
}

// Addresses of the rows of K or V, of one head beginning at `head`, for the keys that the lanes
// looked up. Each lane computes the address of its own key; with wide heads, where O leaves few
// registers, it computes the addresses of the rows that it copies.
template <class Rows, bool kWide> struct KeyRows {
  const u16 *mine; // valid memory even without a key
  NSAI_DEVICE KeyRows(const NsaiCacheTensor &x, const u16 *head, const Rows &rows,
                      const KeyLocation &location)
      : mine(head + row_offset(x, location.page, rows.slot(max(location.index, 0)))) {}
  // Row of lane `lane`'s key, from `column` on. All lanes take part.
  NSAI_DEVICE const u16 *of(int lane, int column) const {
    return (const u16 *)__shfl_sync(~0u, (u64)mine, lane) + column;
  }
};
template <class Rows> struct KeyRows<Rows, true> {
  const NsaiCacheTensor &x;
  const u16 *head;
  const Rows &rows;
  const KeyLocation &mine;
  NSAI_DEVICE KeyRows(const NsaiCacheTensor &x, const u16 *head, const Rows &rows,
                      const KeyLocation &location)
      : x(x), head(head), rows(rows), mine(location) {}
  NSAI_DEVICE const u16 *of(int lane, int column) const {
    const int index = __shfl_sync(~0u, mine.index, lane), page = __shfl_sync(~0u, mine.page, lane);
    return head + row_offset(x, page, rows.slot(index)) + column;
  }
};

// Starts the copy of K (kToken) or V of a stage into tile T, whose address comes from
// lane_address(). Only the first `present` keys exist. Lane i has looked up key i. All lanes take
// part.
template <class T, int kKeys, int kDim, int kThreads, bool kToken, class KeyRows, class Counter>
NSAI_DEVICE void copy_keys(u32 tile, const KeyRows &rows, int present, int thread, u64 policy,
                           Counter &counter) {
  using Lanes = CopyLanes<T, kThreads>;
  constexpr int kAlike = Lanes::kPass < 8 ? 8 / Lanes::kPass : 1; // passes with different swizzles
#pragma unroll
  for (int i = 0; i < ceil_div(kKeys, Lanes::kPass); ++i) {
    const int row = Lanes::row(thread) + i * Lanes::kPass;
    const int near = Lanes::row(thread) + i % kAlike * Lanes::kPass; // same swizzle as `row`
    const u32 to = tile + (u32)(i / kAlike * kAlike * Lanes::kPass * T::kPitch);
    const u16 *from = rows.of(row % kKeys, Lanes::chunk(thread) * 8);
    if (kKeys % Lanes::kPass == 0 || row < kKeys) {
#pragma unroll
      for (int c = 0; c < T::kChunks; c += Lanes::kLanes) {
        const int chunk = c + Lanes::chunk(thread);
        if (c + Lanes::kLanes <= T::kChunks || chunk < T::kChunks)
          copy_async_16(to + T::offset(near, chunk), from + c * 8,
                        row < present && chunk * 8 < kDim, policy);
      }
      counter.template add<kDim, Lanes::kLanes, kToken>(Lanes::chunk(thread), row < present);
    }
  }
}

// Which tokens own the keys of a stage; a lane knows those of key lane % kStageKeys. If kStageKeys
// divides Keys::kOwnedKeys, all keys of a stage have the same owners.
struct StageOwners {
  u32 mine;
  bool none, all; // of the warp's tokens: none owns a key; all own all keys
};
template <class S, class Keys> constexpr bool kOwnedAlike = Keys::kOwnedKeys % S::kStageKeys == 0;
// In that case a warp with a single token owns either no key or all keys of a stage.
template <class C, class S, class Keys>
constexpr bool kNoneOrAll = C::kGroupPadded % 16 == 0 && kOwnedAlike<S, Keys>;

template <class S, class Keys>
NSAI_DEVICE StageOwners find_owners(const Keys &keys, int step, int limit, int lane) {
  if constexpr (!Keys::kOwned)
    return StageOwners{ 0, false, true };
  else if constexpr (kOwnedAlike<S, Keys>) {
    const u32 mine = keys.owners(step * kStepKeys);
    return StageOwners{ mine, !(mine & keys.warp_tokens), !(~mine & keys.warp_tokens) };
  } else {
    const u32 mine = keys.owners(min(step * kStepKeys + lane % S::kStageKeys, limit - 1));
    return StageOwners{ mine, !(__reduce_or_sync(~0u, mine) & keys.warp_tokens),
                        !(~__reduce_and_sync(~0u, mine) & keys.warp_tokens) };
  }
}

// Masks the scores of keys that a row's token does not own.
template <class S, class Keys, int kN>
NSAI_DEVICE void mask_owners(float (&s)[kN][4], const Keys &keys, u32 mine, int lane) {
#pragma unroll
  for (int j = 0; j < kN; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const u32 owners =
          kOwnedAlike<S, Keys> ? mine : __shfl_sync(~0u, mine, 8 * j + lane % 4 * 2 + e);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (!(owners & Keys::row_token(r))) s[j][2 * r + e] = kMinusInf;
    }
}

// A warp's rows belong to one token and see the same keys.
template <class C> constexpr bool kRowsAlike = C::kGroupPadded % 16 == 0 && !kWideHeads<C>;

// Keys [all_begin, all_end) are seen by all rows of the warp, those from `any_end` on by none; the
// latter matters only if other warps have other rows.
struct RowRanges {
  int all_begin, all_end, any_end;
};
template <class C, int kRowTiles, class Keys>
NSAI_DEVICE RowRanges find_row_ranges(const Keys &keys, int limit) {
  constexpr bool kAlike = kRowsAlike<C>;
  RowRanges x;
  x.all_begin = __reduce_max_sync(~0u, kAlike ? keys.begin(0) : max(keys.begin(0), keys.begin(1)));
  x.all_end =
      __reduce_min_sync(~0u, kAlike ? keys.end(0) : min(min(keys.end(0), keys.end(1)), limit));
  x.any_end = kRowTiles == 1 ? limit
              : kAlike       ? x.all_end
                             : __reduce_max_sync(~0u, max(keys.end(0), keys.end(1)));
  return x;
}

struct DoNothing {
  NSAI_DEVICE void operator()() const {}
};

// Processes steps [begin, end) of the consumer group's keys, accumulating onto o and rows; reads
// are counted in gKvReads (data/read_counter.cuh). All threads of the CTA call it directly after
// load_row_queries(), for whose copies it waits, even those of groups without steps. `meanwhile`
// runs after the first keys were requested. `once`: no other CTA reads these keys soon, so L2
// should not keep them. Otherwise they would evict what the step has left in L2 for later: pooled
// values, partial results, code.
template <class C, class S, class Keys, class Rows, int kO, class Meanwhile = DoNothing>
NSAI_DEVICE void stream_keys(typename S::Shared &shared, const S &at, const NsaiCachePair &pair,
                             int group, const Rows &lists, Keys &keys, int begin, int end,
                             const Queries<S> &queries, float (&o)[kO][4], SoftmaxRows &rows,
                             float scale_log2, u64 *gKvReads, bool once, Meanwhile meanwhile = {}) {
  constexpr int kRowTiles = S::kRowTiles;
  constexpr int kAhead = C::kStages - 1; // stages in flight during computation
  // Whether a warp may skip a stage. A wgmma needs all its warps, and pooling needs every stage of
  // a run.
  constexpr bool kSkips = kRowTiles > 1 && !S::kPanels && !Keys::kPools;
  const int thread = threadIdx.x % S::kConsumerGroupThreads;
  const u16 *gK = (const u16 *)pair.k.data + group * pair.k.head_stride;
  const u16 *gV = (const u16 *)pair.v.data + group * pair.v.head_stride;
  const u32 stages =
      shared_address(shared.keys) + S::kQBytes + at.consumer_group * C::kStages * S::kStageBytes;
  const u64 policy = l2_policy(once);
  ReadCounter<(bool)C::kCountReads> counter;
  const int limit = min(keys.limit, end * kStepKeys);
  const RowRanges ranges = find_row_ranges<C, kRowTiles>(keys, limit);
  auto copy = [&](int step, const KeyLocation &location) {
    const u32 stage =
        lane_address(stages + (step - begin) / S::kAtOnce % C::kStages * S::kStageBytes);
    if (step < end) {
      using From = KeyRows<Rows, kWideHeads<C>>;
      const int present = limit - step * kStepKeys;
      copy_keys<typename S::K, S::kStageKeys, S::kWordsK, S::kConsumerGroupThreads, true>(
          stage, From(pair.k, gK, lists, location), present, thread, policy, counter);
      copy_keys<typename S::V, S::kStageKeys, S::kWordsV, S::kConsumerGroupThreads, false>(
          stage + S::K::kBytes, From(pair.v, gV, lists, location), present, thread, policy,
          counter);
    }
    copy_async_commit();
  };
  auto find = [&](int step) { return find_key<S::kStageKeys>(keys, lists, step, limit, at.lane); };

  KeyLocation location[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) location[i] = find(begin + i * S::kAtOnce);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) copy(begin + i * S::kAtOnce, location[i]);
  KeyLocation next = find(begin + kAhead * S::kAtOnce);
  meanwhile();
  if constexpr (S::kQShared) {
    copy_async_wait<kAhead>(); // Q, which all groups have copied
    if constexpr (S::kPanels) shared_proxy_fence();
    __syncthreads(); // Q has arrived
  }

  for (int step = begin; step < end; step += S::kAtOnce) {
    copy_async_wait<kAhead - 1>();
    if constexpr (S::kPanels) shared_proxy_fence();
    // All warps' copies of this stage have arrived, and all warps have read the previous stage.
    sync_consumer_group<S::kConsumerGroups, S::kConsumerGroupThreads>(at.consumer_group);
    const u32 stage = stages + (step - begin) / S::kAtOnce % C::kStages * S::kStageBytes;
    float s[2 * S::kAtOnce][4]; // [16, keys of the stage]
    auto copy_next = [&] {
      if constexpr (kWideHeads<C>) {
        copy(step + kAhead * S::kAtOnce, next);
        next = find(step + (kAhead + 1) * S::kAtOnce);
      } else {
        const KeyLocation now = next;
        next = find(step + (kAhead + 1) * S::kAtOnce);
        copy(step + kAhead * S::kAtOnce, now);
      }
    };
    auto find_all = [&] {
      StageOwners owners = find_owners<S>(keys, step, limit, at.lane);
      if (kRowTiles > 1 && step * kStepKeys >= ranges.any_end) owners.none = true;
      return owners;
    };
    StageOwners owners;
    if constexpr (kSkips) {
      owners = find_all();
      if (owners.none) {
        copy_next();
        continue;
      }
    }
    multiply_stage_qk<C, S>(s, queries, stage, at.lane, copy_next);
    if constexpr (!kSkips) owners = find_all();
    const bool none = kRowTiles > 1 && owners.none;
    if (!none) {
      if constexpr (Keys::kOwned)
        if (!kNoneOrAll<C, S, Keys> && !owners.all) mask_owners<S>(s, keys, owners.mine, at.lane);
      const int stage_end = (step + S::kAtOnce) * kStepKeys;
      if (step * kStepKeys < ranges.all_begin || stage_end > ranges.all_end ||
          (kRowsAlike<C> && stage_end > limit))
#pragma unroll
        for (int r = 0; r < 2; ++r)
          mask_row(s, r, KeyRange{ keys.begin(r), min(keys.end(r), limit) }, step * kStepKeys);
      softmax_step(rows, s, o, queries.scaled(scale_log2));
    } else {
      clear(s);
    }
    multiply_stage_pv<C, S>(o, s, stage + S::K::kBytes, keys, rows, end - step, at.lane);
  }
  copy_async_wait<0>();
  counter.store(gKvReads);
}
