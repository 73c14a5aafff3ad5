// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Attention of few rows over many keys of a cache, for decode_scan and decode_attend: bound by memory.
//
// A CTA has kRows = 16 * kRowTiles rows and kTeams teams of kRowTiles warps. A team runs through keys of
// its own, 16 at a time, through a ring of kStages stages of its own; a warp of it has an m16 tile of
// rows. So nothing but a team waits, and kStages - 1 steps of every team are on their way all the time:
// at D 128 with 4 teams of 3 stages 64 KB a CTA. At the end the teams' results are added up.
//
//   ring   [kTeams][kStages] { K [16, Dk] | V [16, Dv] }, then the same memory as O [kTeams][kRows, Dv]
//   Q      in registers or, where those of O leave no room, in shared memory before the ring
//   rows   each lane finds one key's row two steps ahead: page lists are read in good time
//
// Which keys a team sees, its caller says by a policy `Keys`:
//
//   int limit         keys from `limit` on do not exist
//   int index(int i)  the row of key i < limit in its sequence: common/cached.cuh
//   int begin(int r), end(int r)  keys that row `group + 8 * r` of the warp sees
//   u32 owners(int i)   where keys are not for all tokens of the rows (kOwned): whose key i is
//   void pool(s, rows)  what becomes of the probabilities of a step beside P V; pool_stage(), of a stage
//
// Config: Element, kHeadDimQk, kHeadDimV, kGroup, kGroupPadded, kWarps, kStages, kThreads, kWgmma (64 rows
// are a warpgroup's: common/panel_stage.cuh), kCountReads.
#pragma once
#include "common/cached.cuh"
#include "common/decode.cuh"
#include "common/flash.cuh"
#include "common/mma.cuh"
#include "common/panel_stage.cuh"
#include "common/product_tile.cuh"
#include "common/read_counter.cuh"
#include "common/softmax.cuh"
#include "common/tile.cuh"

// Whether Q lies in shared memory: with O it would take a thread more registers than at D 192, 48 and 96.
// (Dk 256 and Dv 192, 64 and 96, spill. NVRTC 13.0.)
template <class C>
constexpr bool kSharedQ = padded_dim(C::kHeadDimV) / 2 + padded_dim(C::kHeadDimQk) / 4 > 144;

template <class C, int kRowTiles> struct KeyStream {
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kTeams = C::kWarps / kRowTiles;
  static constexpr int kTeamThreads = 32 * kRowTiles;
  // Drafts: a team of four warps takes two steps at once, so that it waits half as often; and Q lies in
  // shared memory, so that a third CTA fits a multiprocessor.
  static constexpr bool kDrafts = kRowTiles >= 4 && C::kHeadDimQk + C::kHeadDimV <= 256;
  static constexpr bool kPanels = kDrafts && kRowTiles == 4 && C::kWgmma;
  static constexpr int kAtOnce = kDrafts ? 2 : 1; // steps of a stage
  static constexpr int kStageKeys = kAtOnce * kStepKeys;
  using K = ProductTile<kPanels, kStageKeys, padded_dim(C::kHeadDimQk)>;
  using V = ProductTile<kPanels, kStageKeys, padded_dim(C::kHeadDimV)>;
  using Q = ProductTile<kPanels, kRows, padded_dim(C::kHeadDimQk)>;
  static constexpr bool kQShared = kSharedQ<C> || kDrafts;
  static constexpr int kQBytes = kQShared ? Q::kBytes : 0;
  static constexpr int kStageBytes = K::kBytes + V::kBytes;
  static constexpr int kO = padded_dim(C::kHeadDimV) / 8;        // n8 tiles of O
  static constexpr int kSteps = padded_dim(C::kHeadDimQk) / 16;  // k16 steps of Q K^T
  static constexpr int kPitch = padded_dim(C::kHeadDimV) + 8;    // floats: rows on different banks
  static_assert(kTeams >= 1 && kTeams * kRowTiles == C::kWarps, "whole teams");
  static_assert(C::kStages >= 2, "a step arrives while another is computed");

  struct Shared {
    union { // Q and the ring are done with when O is written
      unsigned char keys[kQBytes + kTeams * C::kStages * kStageBytes]; // Q, and the ring
      float o[kTeams][kRows][kPitch];
    };
    float2 stats[kTeams][kRows]; // reference and sum
  };

  // A warp's place.
  int lane, team, row_tile;
  NSAI_DEVICE KeyStream() {
    lane = threadIdx.x % 32;
    team = kTeams == 1 ? 0 : kPanels ? warp_uniform(threadIdx.x / kTeamThreads) : threadIdx.x / kTeamThreads;
    row_tile = threadIdx.x / 32 % kRowTiles;
  }
};

// The warps of a team. (racecheck follows no barrier of a part of a block: of two teams of two warps it
// reports rings and sums that barriers keep apart, and nothing where all warps meet in the place of these.)
template <int kTeams, int kThreads, int kTeam = 0> NSAI_DEVICE void sync_team(int team) {
  if constexpr (kThreads == 32) {
    __syncwarp();
  } else if constexpr (kTeams == 1) {
    __syncthreads();
  } else if (team == kTeam) {
    asm volatile("bar.sync %0, %1;" ::"n"(kTeam + 1), "n"(kThreads) : "memory");
  } else if constexpr (kTeam + 1 < kTeams) {
    sync_team<kTeams, kThreads, kTeam + 1>(team);
  }
}

// Where one lane's key of a stage lies.
struct KeyPlace {
  int index; // negative: there is none
  int page;
};

template <int kStageKeys, class Keys, class Rows>
NSAI_DEVICE KeyPlace find_key(const Keys &keys, const Rows &rows, int step, int limit, int lane) {
  const int i = step * kStepKeys + lane % kStageKeys;
  const int index = i < limit ? keys.index(i) : -1;
  return KeyPlace{ index, index < 0 ? 0 : rows.page(index) };
}

// K (kToken) or V of a stage into tile T; `from`: the tensor's rows of one head. All lanes take part.
template <class T, int kKeys, int kDim, int kThreads, bool kToken, class Rows, class Counter>
NSAI_DEVICE void copy_keys(u32 tile, const NsaiCacheTensor &x, const u16 *from, const Rows &rows,
                           const KeyPlace &place, int thread, u64 policy, Counter &counter) {
  using Lanes = CopyLanes<T, kThreads>;
#pragma unroll
  for (int i = 0; i < ceil_div(kKeys, Lanes::kPass); ++i) {
    const int row = Lanes::row(thread) + i * Lanes::kPass;
    const int index = __shfl_sync(~0u, place.index, row % kKeys);
    const int page = __shfl_sync(~0u, place.page, row % kKeys);
    const u16 *at = from + row_offset(x, page, rows.slot(index)) + Lanes::chunk(thread) * 8;
    if (kKeys % Lanes::kPass == 0 || row < kKeys) {
#pragma unroll
      for (int c = 0; c < T::kChunks; c += Lanes::kLanes) {
        const int chunk = c + Lanes::chunk(thread);
        if (c + Lanes::kLanes <= T::kChunks || chunk < T::kChunks)
          copy_async_16(tile + T::offset(row, chunk), at + c * 8, index >= 0 && chunk * 8 < kDim, policy);
      }
      counter.template add<kDim, Lanes::kLanes, kToken>(Lanes::chunk(thread), index >= 0);
    }
  }
}

// 16 rows of Q for a warp: A fragments, or where ldmatrix finds them; of panels where all rows lie.
template <class S> struct Queries {
  u32 fragment[S::kQShared ? 1 : S::kSteps][4];
  u32 address;
};

// Rows of Q of a CTA: row r is head r % kGroupPadded of token r / kGroupPadded, of `tokens` ones from row
// `first` of q on; others are zero.
template <class C> struct QueryRows {
  const NsaiView &q;
  int first, tokens, group;
  NSAI_DEVICE bool present(int row) const {
    return row % C::kGroupPadded < C::kGroup && row / C::kGroupPadded < tokens;
  }
  NSAI_DEVICE const u16 *at(int row) const { // [Dk], of a present row
    return (const u16 *)q.data + (first + row / C::kGroupPadded) * q.token_stride +
           (group * C::kGroup + row % C::kGroupPadded) * q.head_stride;
  }
};

template <class C, int kSteps>
NSAI_DEVICE void load_row_fragments(u32 (&rQ)[kSteps][4], const QueryRows<C> &rows, int first, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + 8 * half + lane / 4;
    const bool present = rows.present(row);
    const u16 *from = present ? rows.at(row) + lane % 4 * 2 : nullptr; // [Dk]
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const bool upper = k * 16 + 8 < C::kHeadDimQk;
      rQ[k][half] = present ? *(const u32 *)(from + k * 16) : 0;
      rQ[k][half + 2] = present && upper ? *(const u32 *)(from + k * 16 + 8) : 0;
    }
  }
}

// The warp's rows of Q. Every thread takes part.
template <class C, int kRowTiles>
NSAI_DEVICE Queries<KeyStream<C, kRowTiles>>
load_row_queries(typename KeyStream<C, kRowTiles>::Shared &shared, const KeyStream<C, kRowTiles> &at,
                 const QueryRows<C> &rows) {
  using S = KeyStream<C, kRowTiles>;
  using Q = typename S::Q;
  Queries<S> queries = {};
  if constexpr (S::kQShared) {
    const u32 sQ = shared_address(shared.keys);
    for (int i = threadIdx.x; i < S::kRows * Q::kChunks; i += C::kThreads) {
      const int row = i / Q::kChunks, chunk = i % Q::kChunks;
      const bool present = rows.present(row) && chunk * 8 < C::kHeadDimQk;
      copy_async_16(sQ + Q::offset(row, chunk), present ? rows.at(row) + chunk * 8 : rows.q.data,
                    present);
    }
    copy_async_commit();
    copy_async_wait<0>();
    if constexpr (S::kPanels) shared_proxy_fence();
    __syncthreads(); // Q is there
    queries.address = S::kPanels ? sQ : sQ + Q::offset(16 * at.row_tile + at.lane % 16, at.lane / 16);
  } else {
    load_row_fragments<C>(queries.fragment, rows, 16 * at.row_tile, at.lane);
  }
  return queries;
}

// S [16, 16 keys] = Q K^T, as the n8 tiles s0 and s1.
template <class C, class S>
NSAI_DEVICE void multiply_step_qk(float (&s0)[4], float (&s1)[4], const Queries<S> &q, u32 sK, int lane) {
  using T = typename S::K;
  const u32 k = sK + T::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2); // columns 0, 8 | keys 0, 8
#pragma unroll
  for (int c = 0; c < 4; ++c) s0[c] = s1[c] = 0.0f;
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) {
    u32 a[4], b[4]; // Q [16, 16], K [16 keys, 16]
    ldmatrix_x4(b, T::along(k, 2 * step));
    if constexpr (S::kQShared) {
      ldmatrix_x4(a, S::Q::along(q.address, 2 * step));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = q.fragment[step][i];
    }
    mma_m16n8k16(typename C::Element(), s0, a, b[0], b[1]);
    mma_m16n8k16(typename C::Element(), s1, a, b[2], b[3]);
  }
}

// O += P V, P [16, 16 keys].
template <class C, class T, int kO>
NSAI_DEVICE void multiply_step_pv(float (&o)[kO][4], const float (&p)[2][4], u32 sV, int lane) {
  const u32 v = sV + T::offset(lane % 16, lane / 16); // keys 0, 8 | columns 0, 8
  u32 a[4], rest[4];
  softmax_pack<typename C::Element>(a, p[0], p[1]);
  if constexpr (kSplitP<C>) softmax_pack_rest<typename C::Element>(rest, a, p[0], p[1]);
#pragma unroll
  for (int n = 0; n < kO; n += 2) {
    u32 b[4]; // V [16 keys, 16]
    ldmatrix_x4_trans(b, T::along(v, n));
    mma_m16n8k16(typename C::Element(), o[n], a, b[0], b[1]);
    mma_m16n8k16(typename C::Element(), o[n + 1], a, b[2], b[3]);
    if constexpr (kSplitP<C>) {
      mma_m16n8k16(typename C::Element(), o[n], rest, b[0], b[1]);
      mma_m16n8k16(typename C::Element(), o[n + 1], rest, b[2], b[3]);
    }
  }
}

// S of a stage; `meanwhile` runs before or while it is computed.
template <class C, class S, class Meanwhile>
NSAI_DEVICE void multiply_stage_qk(float (&s)[2 * S::kAtOnce][4], const Queries<S> &queries, u32 sK, int lane,
                                   Meanwhile meanwhile) {
  if constexpr (S::kPanels) {
    multiply_panels_qk<C>(s, queries.address, sK, meanwhile);
  } else {
    meanwhile();
#pragma unroll
    for (int i = 0; i < S::kAtOnce; ++i)
      multiply_step_qk<C, S>(s[2 * i], s[2 * i + 1], queries, sK + i * kStepKeys * S::K::kPitch, lane);
  }
}

// O += P V of a stage, the first `steps` steps of which are the team's.
template <class C, class S, class Keys, int kO>
NSAI_DEVICE void multiply_stage_pv(float (&o)[kO][4], const float (&s)[2 * S::kAtOnce][4], u32 sV, Keys &keys,
                                   const SoftmaxRows &rows, int steps, int lane) {
  if constexpr (S::kPanels) {
    multiply_panels_pv<C>(o, s, sV, [&] { keys.pool_stage(s, rows, steps); });
  } else {
#pragma unroll
    for (int i = 0; i < S::kAtOnce; ++i) {
      float p[2][4]; // [16, 16 keys]
#pragma unroll
      for (int c = 0; c < 4; ++c) p[0][c] = s[2 * i][c], p[1][c] = s[2 * i + 1][c];
      multiply_step_pv<C, typename S::V>(o, p, sV + i * kStepKeys * S::V::kPitch, lane);
      if (S::kAtOnce == 1) keys.pool(p, rows); // while the products are on their way
    }
    if constexpr (S::kAtOnce > 1) keys.pool_stage(s, rows, steps);
  }
}

// Whose the keys of a stage are: a lane knows key lane % kStageKeys.
struct StageOwners {
  u32 mine;
  bool none, all; // of the warp's tokens
};

template <class S, class Keys>
NSAI_DEVICE StageOwners find_owners(const Keys &keys, int step, int limit, int lane) {
  if constexpr (!Keys::kOwned) return StageOwners{ 0, false, true };
  else {
    const u32 mine = keys.owners(min(step * kStepKeys + lane % S::kStageKeys, limit - 1));
    return StageOwners{ mine, !(__reduce_or_sync(~0u, mine) & keys.warp_tokens),
                        !(~__reduce_and_sync(~0u, mine) & keys.warp_tokens) };
  }
}

// Masks the scores of keys that a row's token does not own.
template <class Keys, int kN>
NSAI_DEVICE void mask_owners(float (&s)[kN][4], const Keys &keys, u32 mine, int lane) {
#pragma unroll
  for (int j = 0; j < kN; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const u32 owners = __shfl_sync(~0u, mine, 8 * j + lane % 4 * 2 + e);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (!(owners & Keys::row_token(r))) s[j][2 * r + e] = kMinusInf;
    }
}

// The team's steps [begin, end) of its keys onto o and rows, counted in gReads: common/read_counter.cuh.
// `once`: nobody reads these keys again soon, and L2 need not keep them. Else they drive out what the step
// has left there for its own end and for the next step: pooled values, partial results, code.
template <class C, int kRowTiles, class Keys, class Rows, int kO>
NSAI_DEVICE void stream_keys(typename KeyStream<C, kRowTiles>::Shared &shared,
                             const KeyStream<C, kRowTiles> &at, const NsaiCachePair &pair, int group,
                             const Rows &lists, Keys &keys, int begin, int end,
                             const Queries<KeyStream<C, kRowTiles>> &queries, float (&o)[kO][4],
                             SoftmaxRows &rows, float scale_log2, u64 *gReads, bool once) {
  using S = KeyStream<C, kRowTiles>;
  constexpr int kAhead = C::kStages - 1; // stages on their way while one is computed
  constexpr bool kSkips = kRowTiles > 1 && !S::kPanels; // a warpgroup's products are all its warps'
  const int thread = threadIdx.x % S::kTeamThreads;
  const u16 *gK = (const u16 *)pair.k.data + group * pair.k.head_stride;
  const u16 *gV = (const u16 *)pair.v.data + group * pair.v.head_stride;
  const u32 ring =
      shared_address(shared.keys) + S::kQBytes + at.team * C::kStages * S::kStageBytes;
  const u64 policy = l2_policy(once);
  ReadCounter<(bool)C::kCountReads> counter;
  const int limit = min(keys.limit, end * kStepKeys);
  // Keys that all rows of the warp see.
  const int all_begin = __reduce_max_sync(~0u, max(keys.begin(0), keys.begin(1)));
  const int all_end = __reduce_min_sync(~0u, min(min(keys.end(0), keys.end(1)), limit));
  // And, beside warps of other rows, where those end that some of them see.
  const int any_end = kRowTiles == 1 ? limit : __reduce_max_sync(~0u, max(keys.end(0), keys.end(1)));
  auto copy = [&](int step, const KeyPlace &place) {
    const u32 stage = ring + (step - begin) / S::kAtOnce % C::kStages * S::kStageBytes;
    if (step < end) {
      copy_keys<typename S::K, S::kStageKeys, C::kHeadDimQk, S::kTeamThreads, true>(
          stage, pair.k, gK, lists, place, thread, policy, counter);
      copy_keys<typename S::V, S::kStageKeys, C::kHeadDimV, S::kTeamThreads, false>(
          stage + S::K::kBytes, pair.v, gV, lists, place, thread, policy, counter);
    }
    copy_async_commit();
  };
  auto find = [&](int step) { return find_key<S::kStageKeys>(keys, lists, step, limit, at.lane); };

  KeyPlace place[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) place[i] = find(begin + i * S::kAtOnce);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) copy(begin + i * S::kAtOnce, place[i]);
  KeyPlace next = find(begin + kAhead * S::kAtOnce);

  for (int step = begin; step < end; step += S::kAtOnce) {
    copy_async_wait<kAhead - 1>();
    if constexpr (S::kPanels) shared_proxy_fence();
    // Everyone's part of the stage has come, and the one before is read.
    sync_team<S::kTeams, S::kTeamThreads>(at.team);
    const u32 stage = ring + (step - begin) / S::kAtOnce % C::kStages * S::kStageBytes;
    float s[2 * S::kAtOnce][4]; // [16, keys of the stage]
    auto copy_next = [&] {
      copy(step + kAhead * S::kAtOnce, next);
      next = find(step + (kAhead + 1) * S::kAtOnce);
    };
    auto find_all = [&] {
      StageOwners owners = find_owners<S>(keys, step, limit, at.lane);
      if (kRowTiles > 1 && step * kStepKeys >= any_end) owners.none = true;
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
        if (!owners.all) mask_owners(s, keys, owners.mine, at.lane);
      if (step * kStepKeys < all_begin || (step + S::kAtOnce) * kStepKeys > all_end)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          mask_row(s, r, KeyRange{ keys.begin(r), min(keys.end(r), limit) }, step * kStepKeys);
      softmax_step(rows, s, o, scale_log2);
    } else {
#pragma unroll
      for (int j = 0; j < 2 * S::kAtOnce; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) s[j][c] = 0.0f;
    }
    multiply_stage_pv<C, S>(o, s, stage + S::K::kBytes, keys, rows, end - step, at.lane);
  }
  copy_async_wait<0>();
  counter.store(gReads);
}

// The teams' results into shared memory. Every thread takes part.
template <class C, int kRowTiles, int kO>
NSAI_DEVICE void share_teams(typename KeyStream<C, kRowTiles>::Shared &shared,
                             const KeyStream<C, kRowTiles> &at, const float (&o)[kO][4],
                             const SoftmaxRows &rows) {
  __syncthreads(); // no team reads the ring any more
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = 16 * at.row_tile + 8 * r + at.lane / 4;
    const float sum = quad_sum(rows.sum[r]);
    if (at.lane % 4 == 0) shared.stats[at.team][row] = make_float2(rows.reference[r], sum);
    float *to = &shared.o[at.team][row][at.lane % 4 * 2];
#pragma unroll
    for (int j = 0; j < kO; ++j)
      *(float2 *)(to + 8 * j) = make_float2(o[j][2 * r], o[j][2 * r + 1]);
  }
  __syncthreads(); // the teams' results are there
}

// All teams' of four columns of a row.
struct TeamsSum {
  float reference, total;
  float4 o; // relative to `reference`
};

template <class C, int kRowTiles>
NSAI_DEVICE TeamsSum add_teams(const typename KeyStream<C, kRowTiles>::Shared &shared, int row,
                               int column) {
  constexpr int kTeams = KeyStream<C, kRowTiles>::kTeams;
  TeamsSum x = { kNoReference, 0.0f, make_float4(0, 0, 0, 0) };
#pragma unroll
  for (int team = 0; team < kTeams; ++team)
    x.reference = fmaxf(x.reference, shared.stats[team][row].x);
#pragma unroll
  for (int team = 0; team < kTeams; ++team) {
    const float2 stats = shared.stats[team][row];
    const float factor = exp2_approx(stats.x - x.reference);
    const float4 o = *(const float4 *)&shared.o[team][row][column];
    x.o = make_float4(fmaf(factor, o.x, x.o.x), fmaf(factor, o.y, x.o.y), fmaf(factor, o.z, x.o.z),
                      fmaf(factor, o.w, x.o.w));
    x.total = fmaf(factor, stats.y, x.total);
  }
  return x;
}

// Adds up the teams' results and stores rows [0, stored) of the CTA's part: row r as row place(r) of all
// parts, or nowhere, if that is negative. Every thread takes part.
template <class C, int kRowTiles, int kO, class Place>
NSAI_DEVICE void store_part(typename KeyStream<C, kRowTiles>::Shared &shared,
                            const KeyStream<C, kRowTiles> &at, const float (&o)[kO][4],
                            const SoftmaxRows &rows, const NsaiDecodeParts &to, int stored, Place place) {
  share_teams<C, kRowTiles>(shared, at, o, rows);
  for (int i = threadIdx.x; i < stored * (C::kHeadDimV / 4); i += C::kThreads) {
    const int row = i / (C::kHeadDimV / 4), column = i % (C::kHeadDimV / 4) * 4;
    const long long at_row = place(row);
    if (at_row < 0) continue;
    const TeamsSum x = add_teams<C, kRowTiles>(shared, row, column);
    *(float4 *)(to.o + at_row * C::kHeadDimV + column) = x.o;
    if (column == 0) *(float2 *)(to.stats + 2 * at_row) = make_float2(x.reference, x.total);
  }
}

// The stats of a part without keys.
template <class Place>
NSAI_DEVICE void store_no_part(const NsaiDecodeParts &to, int stored, int threads, Place place) {
  for (int row = threadIdx.x; row < stored; row += threads)
    if (place(row) >= 0) *(float2 *)(to.stats + 2 * place(row)) = make_float2(kNoReference, 0.0f);
}
