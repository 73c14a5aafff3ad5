// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// How a block of decode_cluster attends to its keys, a turn of 16 keys for each of its warps at a time:
//
//   S     every warp of its own keys; maxima of all warps are exchanged, and give the turn's references
//   P     every warp of its own keys, to all warps
//   O     every warp its own columns, of the keys of all warps: so a block's O needs no sum, and little room
//
// Turns come through a ring of kStages stages, all of them on their way while the block waits: those of the
// scan, of the window, and of the chosen blocks, once these are known. Lanes 0 to 15 know where a turn's rows
// of K lie, lanes 16 to 31 those of V. All code is short, since what runs once is bound by instructions that
// have to be fetched.
//
// Config: those of common/key_stream.cuh and decode_late.cuh, kPageSize (P; 0: none), kRing (the window's
// pair lies in rings), kCluster, kWarps.
#pragma once
#include "common/cached.cuh"
#include "common/decode_late.cuh"
#include "common/key_stream.cuh"

// ---- which turns

// A block's: `scanned` of the scan, in which each of `runs` warps goes on from key `begin` to key `end` of
// its own, then `windowed` of the window, then those of the chosen blocks. Steps of raw keys are dealt over
// the cluster's blocks and then warps.
template <class C> struct RingTurns {
  int scanned, windowed;
  int all; // that are known
  int runs, begin, end;
  LateKeys<C> window, chosen;
  int rank; // of the block

  // Steps of raw keys that fall to the block, and turns that they take.
  NSAI_DEVICE int steps(int limit) const {
    return max(ceil_div(limit, kStepKeys) - rank + C::kCluster - 1, 0) / C::kCluster;
  }
  NSAI_DEVICE int turns(int limit) const { return ceil_div(steps(limit), C::kWarps); }
};

struct RingTurn {
  int branch;
  int warps; // that have keys; some, or all, of these may not exist
  int key;   // the warp's first
  int limit; // of its keys
};

template <class C> NSAI_DEVICE RingTurn find_turn(const RingTurns<C> &x, int i, int warp) {
  if (i < x.scanned) return RingTurn{ NSAI_BRANCH_COMPRESSED, x.runs, x.begin + i * kStepKeys, x.end };
  i -= x.scanned;
  const bool windows = i < x.windowed;
  if (!windows) i -= x.windowed;
  const int limit = windows ? x.window.limit : x.chosen.limit;
  return RingTurn{ windows ? NSAI_BRANCH_WINDOW : NSAI_BRANCH_SELECTED,
                   min(x.steps(limit) - i * C::kWarps, C::kWarps),
                   (x.rank + C::kCluster * (warp + C::kWarps * i)) * kStepKeys, limit };
}

// ---- where rows lie

// Of a sequence.
template <class C> struct RingRows {
  const NsaiDecode &p;
  int group;
  const int *list; // its pages
  int row;         // without pages, and in rings

  // The lane's row of a turn, of K or V; nullptr: there is none.
  NSAI_DEVICE const u16 *at(const RingTurns<C> &turns, const RingTurn &turn, int lane) const {
    const int i = turn.key + lane % kStepKeys;
    if (i >= turn.limit) return nullptr;
    const bool scans = turn.branch == NSAI_BRANCH_COMPRESSED, windows = turn.branch == NSAI_BRANCH_WINDOW;
    const int index = scans     ? entry_index<C::kBlock, C::kStride>(i)
                      : windows ? turns.window.index(i)
                                : turns.chosen.index(i);
    int page = row, slot = index;
    if (C::kRing > 0 && windows) {
      slot = CachedRows<0>{ nullptr, row, p.window.ring }.slot(index);
    } else if constexpr (C::kPageSize > 0) {
      const int rows = scans ? C::kPageSize / C::kStride : C::kPageSize;
      page = list[index / rows];
      slot = index % rows;
    }
    const NsaiCachePair &pair = scans ? p.entries : windows ? p.window : p.selected;
    const NsaiCacheTensor &x = lane < 16 ? pair.k : pair.v;
    return (const u16 *)x.data + group * x.head_stride + row_offset(x, page, slot);
  }
};

// K or V of a step into tile T; `rows`: the lanes' from `lane_of_row_0` on.
template <class T, int kDim>
NSAI_DEVICE void copy_rows(u32 tile, const u16 *rows, int lane_of_row_0, int lane) {
  using Lanes = CopyLanes<T, 32>;
#pragma unroll
  for (int i = 0; i < ceil_div(kStepKeys, Lanes::kPass); ++i) {
    const int row = Lanes::row(lane) + i * Lanes::kPass;
    const u16 *from = (const u16 *)__shfl_sync(~0u, (u64)rows, lane_of_row_0 + row % kStepKeys);
    if (kStepKeys % Lanes::kPass == 0 || row < kStepKeys)
      copy_row<T, kDim, 32>(tile, row, Lanes::chunk(lane), from + Lanes::chunk(lane) * 8,
                            from != nullptr);
  }
}

// ---- a block's attention

// What its warps tell each other in a turn.
template <class C> struct RingDesk {
  static constexpr int kParts = kSplitP<C> ? 2 : 1; // of P
  Chunk p[kParts][C::kWarps][32];                   // A fragments
  float highest[16][C::kWarps];                     // scaled scores
  float sums[16][C::kWarps];
  float references[16];
};

// The warp's columns of a branch's O [16, 16 columns of each pair of n8 tiles], its references and its keys'
// share of the sums.
template <class C> struct RingSums {
  static constexpr int kPairs = padded_dim(C::kHeadDimV) / 16;
  static constexpr int kEach = ceil_div(kPairs, C::kWarps);
  float o[kEach][2][4];
  SoftmaxRows rows;
  NSAI_DEVICE void clear() {
    rows = SoftmaxRows();
#pragma unroll
    for (int j = 0; j < kEach; ++j)
#pragma unroll
      for (int c = 0; c < 8; ++c) o[j][c / 4][c % 4] = 0.0f;
  }
};

// S [16, 16 keys] = Q K^T: multiply_step_qk() in two chains of products for each n8 tile, since a turn waits
// for the last one.
template <class C>
NSAI_DEVICE void multiply_turn_qk(float (&s)[2][4], const Queries<KeyStream<C, 1>> &q, u32 sK, int lane) {
  using S = KeyStream<C, 1>;
  using T = typename S::K;
  const u32 k = sK + T::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2); // columns 0, 8 | keys 0, 8
  float x[2][2][4] = {};
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) {
    u32 b[4]; // K [16 keys, 16]
    ldmatrix_x4(b, T::along(k, 2 * step));
    mma_m16n8k16(typename C::Element(), x[step % 2][0], q.fragment[step], b[0], b[1]);
    mma_m16n8k16(typename C::Element(), x[step % 2][1], q.fragment[step], b[2], b[3]);
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) s[c / 4][c % 4] = x[0][c / 4][c % 4] + x[1][c / 4][c % 4];
}

// Row 8 r + lane / 4's maximum over the warp's scores goes to all warps.
template <class C>
NSAI_DEVICE void share_highest(RingDesk<C> &desk, const float (&s)[2][4], float scale_log2, int warp,
                               int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float top = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
    const float highest = quad_max(top) * scale_log2;
    if (lane % 4 == 0) desk.highest[8 * r + lane / 4][warp] = highest;
  }
}

// The references follow all warps' maxima, sums and O the references.
template <class C> NSAI_DEVICE void follow_highest(const RingDesk<C> &desk, RingSums<C> &sums, int lane) {
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float highest = sums.rows.reference[r];
#pragma unroll
    for (int w = 0; w < C::kWarps; w += 4) {
      const float4 x = *(const float4 *)&desk.highest[8 * r + lane / 4][w];
      highest = fmaxf(fmaxf(fmaxf(highest, x.x), fmaxf(x.y, x.z)), x.w);
    }
    factor[r] = exp2_approx(sums.rows.reference[r] - highest);
    sums.rows.reference[r] = highest;
    sums.rows.sum[r] *= factor[r];
  }
#pragma unroll
  for (int j = 0; j < RingSums<C>::kEach; ++j) softmax_rescale(sums.o[j], factor);
}

// The warp's probabilities, references and sums go to all warps.
template <class C>
NSAI_DEVICE void share_probabilities(RingDesk<C> &desk, const float (&p)[2][4], const SoftmaxRows &rows,
                                     int warp, int lane) {
  Chunk a, rest;
  softmax_pack<typename C::Element>(a.w, p[0], p[1]);
  desk.p[0][warp][lane] = a;
  if constexpr (kSplitP<C>) {
    softmax_pack_rest<typename C::Element>(rest.w, a.w, p[0], p[1]);
    desk.p[1][warp][lane] = rest;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(rows.sum[r]);
    if (lane % 4 == 0) desk.sums[8 * r + lane / 4][warp] = sum;
    if (lane % 4 == 0 && warp == 0) desk.references[8 * r + lane / 4] = rows.reference[r];
  }
}

// O += P V of the first `warps` warps, the warp's columns; `stage`: that of warp 0.
template <class C>
NSAI_DEVICE void add_values(const RingDesk<C> &desk, RingSums<C> &sums, u32 stage, int warps, int warp,
                            int lane) {
  using S = KeyStream<C, 1>;
  using T = typename S::V;
  u32 v = stage + S::K::kBytes + T::offset(lane % 16, lane / 16); // keys 0, 8 | columns 0, 8
#pragma unroll 2
  for (int w = 0; w < warps; ++w, v += S::kStageBytes) {
    const Chunk a = desk.p[0][w][lane];
#pragma unroll
    for (int j = 0; j < RingSums<C>::kEach; ++j) {
      const int pair = warp + j * C::kWarps;
      if (RingSums<C>::kPairs % C::kWarps != 0 && pair >= RingSums<C>::kPairs) break;
      u32 b[4]; // V [16 keys, 16]
      ldmatrix_x4_trans(b, T::along(v, 2 * pair));
      mma_m16n8k16(typename C::Element(), sums.o[j][0], a.w, b[0], b[1]);
      mma_m16n8k16(typename C::Element(), sums.o[j][1], a.w, b[2], b[3]);
      if constexpr (kSplitP<C>) {
        const Chunk rest = desk.p[1][w][lane];
        mma_m16n8k16(typename C::Element(), sums.o[j][0], rest.w, b[0], b[1]);
        mma_m16n8k16(typename C::Element(), sums.o[j][1], rest.w, b[2], b[3]);
      }
    }
  }
}

// The block's reference and sum of a row, once a branch's last turn has been shared.
template <class C> NSAI_DEVICE float2 block_stats(const RingDesk<C> &desk, int row) {
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < C::kWarps; w += 4) {
    const float4 x = *(const float4 *)&desk.sums[row][w];
    total += (x.x + x.y) + (x.z + x.w);
  }
  return make_float2(desk.references[row], total);
}

// Turns [begin, end) onto `sums`, but of those before `first` nothing but the copies of the turn kStages
// behind, which all have; pool(i, p) of the warp's probabilities, and shared(i) once all warps' are shared.
// begin = -kStages: the ring is empty. `stages`: of warp 0.
template <class C, class Pool, class Shared>
NSAI_DEVICE void run_turns(const RingTurns<C> &turns, const RingRows<C> &rows, RingDesk<C> &desk,
                           RingSums<C> &sums, int begin, int first, int end, u32 stages,
                           const Queries<KeyStream<C, 1>> &queries, float scale_log2, int warp, int lane,
                           Pool pool, Shared shared) {
  using S = KeyStream<C, 1>;
  constexpr int kAllBytes = C::kWarps * S::kStageBytes; // of a stage
  begin = recomputed(begin); // else the first turns get code of their own
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    const u32 stage = stages + (i + C::kStages) % C::kStages * kAllBytes;
    if (i >= first) {
      const RingTurn turn = find_turn<C>(turns, i, warp);
      float s[2][4]; // [16, 16 keys]
      copy_async_wait<C::kStages - 1>();
      __syncwarp(); // every lane's part of the warp's keys has come
#pragma unroll
      for (int c = 0; c < 8; ++c) s[c / 4][c % 4] = kMinusInf;
      if (warp < turn.warps) {
        multiply_turn_qk<C>(s, queries, stage + warp * S::kStageBytes, lane);
#pragma unroll
        for (int r = 0; r < 2; ++r) mask_row(s, r, KeyRange{ 0, turn.limit }, turn.key);
      }
      share_highest(desk, s, scale_log2, warp, lane);
      __syncthreads(); // all warps' maxima are there
      follow_highest(desk, sums, lane);
      softmax_exponentiate(sums.rows, s[0], scale_log2);
      softmax_exponentiate(sums.rows, s[1], scale_log2);
      share_probabilities(desk, s, sums.rows, warp, lane);
      __syncthreads(); // all warps' probabilities are there, and their values
      shared(i);
      pool(i, s);
      add_values(desk, sums, stage, turn.warps, warp, lane);
    }
    if (i + C::kStages < turns.all) {
      const RingTurn next = find_turn<C>(turns, i + C::kStages, warp);
      if (i >= first) __syncthreads(); // the stage is read
      if (warp < next.warps) {
        const u16 *row = rows.at(turns, next, lane);
        const u32 to = stage + warp * S::kStageBytes;
        copy_rows<typename S::K, C::kHeadDimQk>(to, row, 0, lane);
        copy_rows<typename S::V, C::kHeadDimV>(to + S::K::kBytes, row, 16, lane);
      }
    }
    copy_async_commit();
  }
}
