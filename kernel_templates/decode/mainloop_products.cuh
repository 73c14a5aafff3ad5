// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The products of decode/mainloop.cuh: loading Q, and multiplying it with a stage by mma.sync or,
// for panels, by wgmma. Codes are converted to fp16 where they are used, and then Q and P are fp16 as
// well (core/code_fragments.cuh).
#pragma once
#include "core/code_fragments.cuh"
#include "core/mma.cuh"
#include "core/softmax.cuh"
#include "decode/consumer_groups.cuh"
#include "decode/panel_stage.cuh"

// 16 rows of Q of a warp: A fragments, or the address for ldmatrix. For panels: the address of all
// of the warpgroup's rows.
template <class S, bool kCoded = S::kCoded> struct Queries {
  u32 fragment[S::kQShared ? 1 : S::kSteps][4];
  u32 address;
  NSAI_DEVICE float scaled(float scale_log2) const { return scale_log2; }
};
template <class S> struct Queries<S, true> {
  u32 fragment[S::kQShared ? 1 : S::kSteps][4];
  u32 address;
  float unit; // of the warp's rows
  NSAI_DEVICE float scaled(float scale_log2) const { return scale_log2 * unit; }
};

// The CTA's rows of Q: row r is head r % kGroupPadded of token r / kGroupPadded, for `tokens`
// tokens from row `first` of q on. Other rows are zero.
template <class C> struct QueryRows {
  const NsaiView &q;
  int first, tokens, group;
  NSAI_DEVICE bool present(int row) const {
    return row % C::kGroupPadded < C::kGroup && row / C::kGroupPadded < tokens;
  }
  NSAI_DEVICE const u16 *at(int row) const { // [Dk], `row` must be present
    return (const u16 *)q.data + (first + row / C::kGroupPadded) * q.token_stride +
           (group * C::kGroup + row % C::kGroupPadded) * q.head_stride;
  }
};

template <class C, int kSteps>
NSAI_DEVICE void load_row_fragments(u32 (&rQ)[kSteps][4], const QueryRows<C> &rows, int first,
                                    int lane) {
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

// Loads 16 rows of Q to registers; with codes in their order, in fp16.
template <class C, class S>
NSAI_DEVICE void load_register_queries(Queries<S> &queries, const QueryRows<C> &rows, int first,
                                       int lane) {
  if constexpr (S::kCoded) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + 8 * half + lane / 4;
      const bool present = rows.present(row);
      load_code_query(queries.fragment, present ? rows.at(row) : nullptr, present, half);
    }
    queries.unit = convert_queries<typename C::Element>(queries.fragment);
  } else {
    load_row_fragments<C>(queries.fragment, rows, first, lane);
  }
}

// Starts the copy of chunk `i` of the rows of Q into tile Q.
template <class C, class Q> NSAI_DEVICE void copy_query(u32 sQ, const QueryRows<C> &rows, int i) {
  const int row = i / Q::kChunks, chunk = i % Q::kChunks;
  const bool present = rows.present(row) && chunk * 8 < C::kHeadDimQk;
  copy_async_16(sQ + Q::offset(row, chunk), present ? rows.at(row) + chunk * 8 : rows.q.data,
                present);
}

// Loads the warp's rows of Q. Copies to shared memory are still in flight on return: stream_keys()
// waits for them after it has requested the first keys. All threads take part.
template <class C, class S>
NSAI_DEVICE Queries<S> load_row_queries(typename S::Shared &shared, const S &at,
                                        const QueryRows<C> &rows) {
  using Q = typename S::Q;
  Queries<S> queries = {};
  if constexpr (S::kQShared && S::kCoded) {
    const u32 sQ = shared_address(shared.keys);
    const int first = 16 * at.row_tile;
    queries.unit = copy_code_query<typename C::Element, Q, S::kSteps>(
        sQ, first, at.consumer_group == 0, [&](int half) {
          const int row = first + 8 * half + at.lane / 4;
          return rows.present(row) ? rows.at(row) : nullptr;
        });
    queries.address = sQ + Q::offset(16 * at.row_tile + at.lane % 16, at.lane / 16);
    copy_async_commit(); // stream_keys() counts a group
  } else if constexpr (S::kQShared) {
    const u32 sQ = shared_address(shared.keys);
    for (int i = threadIdx.x; i < S::kRows * Q::kChunks; i += C::kThreads)
      copy_query<C, Q>(sQ, rows, i);
    copy_async_commit();
    queries.address = S::kPanels ? sQ + at.row_tile / 4 * 64 * kPanelPitch // the warpgroup's rows
                                 : sQ + Q::offset(16 * at.row_tile + at.lane % 16, at.lane / 16);
  } else {
    load_register_queries<C>(queries, rows, 16 * at.row_tile, at.lane);
  }
  return queries;
}

// S [16, 16 keys] = Q K^T, as the n8 tiles s0 and s1.
template <class C, class S>
NSAI_DEVICE void multiply_step_qk(float (&s0)[4], float (&s1)[4], const Queries<S> &q, u32 sK,
                                  int lane) {
  using T = typename S::K;
  // Matrices: chunks 0, 1 | keys 0, 8.
  const u32 k = sK + T::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int c = 0; c < 4; ++c) s0[c] = s1[c] = 0.0f;
  if constexpr (S::kCoded) {
#pragma unroll
    for (int first = 0; first < S::kSteps; first += 2) { // a chunk is a step
      u32 a[4], b[2][4];                                 // Q [16, 16], K [16 keys, 32]
      load_code_keys(b, T::along(k, first));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (first + i >= S::kSteps) break;
        if constexpr (S::kQShared) {
          ldmatrix_x4(a, S::Q::along(q.address, 2 * (first + i)));
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) a[j] = q.fragment[first + i][j];
        }
        mma_m16n16k16(Fp16(), s0, s1, a, b[i]);
      }
    }
    return;
  }
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
    mma_m16n16k16(typename S::Product(), s0, s1, a, b);
  }
}

// The same with Q in registers, for steps that other warps wait for: two chains of products per n8
// tile, and kAtOnce fragments of K in flight together.
template <class C, class S, int kAtOnce>
NSAI_DEVICE void multiply_chains_qk(float (&s)[2][4], const Queries<S> &q, u32 sK, int lane) {
  using T = typename S::K;
  // Matrices: chunks 0, 1 | keys 0, 8.
  const u32 k = sK + T::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  float x[2][2][4] = {};
  if constexpr (S::kCoded) {
#pragma unroll
    for (int first = 0; first < S::kSteps; first += 2) { // a chunk is a step
      u32 b[2][4];                                       // K [16 keys, 32]
      load_code_keys(b, T::along(k, first));
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (first + i < S::kSteps)
          mma_m16n16k16(Fp16(), x[i][0], x[i][1], q.fragment[first + i], b[i]);
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) s[c / 4][c % 4] = x[0][c / 4][c % 4] + x[1][c / 4][c % 4];
    return;
  }
#pragma unroll
  for (int first = 0; first < S::kSteps; first += kAtOnce) {
    u32 b[kAtOnce][4]; // K [16 keys, 16]
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i < S::kSteps) ldmatrix_x4(b[i], T::along(k, 2 * (first + i)));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int n = 0; n < 2; ++n)
        if (first + i < S::kSteps)
          mma_m16n8k16(typename S::Product(), x[(first + i) % 2][n], q.fragment[first + i],
                       b[i][2 * n], b[i][2 * n + 1]);
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) s[c / 4][c % 4] = x[0][c / 4][c % 4] + x[1][c / 4][c % 4];
}

// O += P V with P [16, 16 keys]; kAtOnce fragments of V are in flight together.
template <class C, class S, int kAtOnce, int kO>
NSAI_DEVICE void multiply_step_pv(float (&o)[kO][4], const float (&p)[2][4], u32 sV, int lane) {
  using T = typename S::V;
  const u32 v = sV + T::offset(lane % 16, lane / 16); // matrices: keys 0, 8 | chunks 0, 1
  if constexpr (S::kCoded) {
    u32 a[4]; // P
    softmax_pack<Fp16>(a, p[0], p[1]);
#pragma unroll
    for (int first = 0; first < kO; first += 4) {
      u32 b[2][4]; // V [16 keys, 32]
      load_code_values(b, T::along(v, first / 2));
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (first + 2 * i < kO)
          mma_m16n16k16(Fp16(), o[first + 2 * i], o[first + 2 * i + 1], a, b[i]);
    }
    return;
  }
  constexpr int kTerms = kSplitP<C> ? 2 : 1;
  u32 a[2][4]; // P, and its rounding error
  softmax_pack<typename C::Element>(a[0], p[0], p[1]);
  if constexpr (kSplitP<C>) softmax_pack_rest<typename C::Element>(a[1], a[0], p[0], p[1]);
#pragma unroll
  for (int first = 0; first < kO; first += 2 * kAtOnce) {
    u32 b[kAtOnce][4]; // V [16 keys, 16]
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + 2 * i < kO) ldmatrix_x4_trans(b[i], T::along(v, first + 2 * i));
#pragma unroll
    for (int term = 0; term < kTerms; ++term)
#pragma unroll
      for (int i = 0; i < 2 * kAtOnce; ++i)
        if (first + i < kO)
          mma_m16n8k16(typename C::Element(), o[first + i], a[term], b[i / 2][i % 2 * 2],
                       b[i / 2][i % 2 * 2 + 1]);
  }
}

// S [16, 2 * 16 keys] of two steps of codes, whose products hide each other's latency.
template <class C, class S>
NSAI_DEVICE void multiply_pair_qk(float (&s)[4][4], const Queries<S> &q, u32 sK0, u32 sK1,
                                  int lane) {
  using T = typename S::K;
  const u32 at = T::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2); // as in multiply_chains_qk()
  clear(s);
#pragma unroll
  for (int first = 0; first < S::kSteps; first += 2) { // a chunk is a step
    u32 b[2][2][4];                                    // K [2 * 16 keys, 32]
    load_code_keys(b[0], T::along(sK0 + at, first));
    load_code_keys(b[1], T::along(sK1 + at, first));
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int step = 0; step < 2; ++step)
        if (first + i < S::kSteps)
          mma_m16n16k16(Fp16(), s[2 * step], s[2 * step + 1], q.fragment[first + i], b[step][i]);
  }
}

// O += P V of two steps of codes, with P [16, 2 * 16 keys].
template <class C, class S, int kO>
NSAI_DEVICE void multiply_pair_pv(float (&o)[kO][4], const float (&p)[4][4], u32 sV0, u32 sV1,
                                  int lane) {
  using T = typename S::V;
  const u32 at = T::offset(lane % 16, lane / 16); // as in multiply_step_pv()
  u32 a[2][4];                                    // P
#pragma unroll
  for (int step = 0; step < 2; ++step) softmax_pack<Fp16>(a[step], p[2 * step], p[2 * step + 1]);
#pragma unroll
  for (int first = 0; first < kO; first += 4) {
    u32 b[2][2][4]; // V [2 * 16 keys, 32]
    load_code_values(b[0], T::along(sV0 + at, first / 2));
    load_code_values(b[1], T::along(sV1 + at, first / 2));
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (first + 2 * i < kO)
          mma_m16n16k16(Fp16(), o[first + 2 * i], o[first + 2 * i + 1], a[step], b[step][i]);
  }
}

// S = Q K^T of a stage. `meanwhile` runs before the products or while they run.
template <class C, class S, class Meanwhile>
NSAI_DEVICE void multiply_stage_qk(float (&s)[2 * S::kAtOnce][4], const Queries<S> &queries, u32 sK,
                                   int lane, Meanwhile meanwhile) {
  if constexpr (S::kPanels) {
    multiply_panels_qk<C, S::kRows>(s, queries.address, sK, meanwhile);
  } else {
    meanwhile();
#pragma unroll
    for (int i = 0; i < S::kAtOnce; ++i)
      multiply_step_qk<C, S>(s[2 * i], s[2 * i + 1], queries, sK + i * kStepKeys * S::K::kPitch,
                             lane);
  }
}

// O += P V of a stage, of which the first `steps` steps belong to the consumer group.
template <class C, class S, class Keys, int kO>
NSAI_DEVICE void multiply_stage_pv(float (&o)[kO][4], const float (&s)[2 * S::kAtOnce][4], u32 sV,
                                   Keys &keys, const SoftmaxRows &rows, int steps, int lane) {
  if constexpr (S::kPanels) {
    multiply_panels_pv<C>(o, s, sV, [&] { keys.pool_stage(s, rows, steps); });
  } else {
#pragma unroll
    for (int i = 0; i < S::kAtOnce; ++i) {
      float p[2][4]; // [16, 16 keys]
#pragma unroll
      for (int c = 0; c < 4; ++c) p[0][c] = s[2 * i][c], p[1][c] = s[2 * i + 1][c];
      multiply_step_pv<C, S, 1>(o, p, sV + i * kStepKeys * S::V::kPitch, lane);
      if constexpr (S::kAtOnce == 1) keys.pool_stage(p, rows, 1); // while the products run
    }
    if constexpr (S::kAtOnce > 1) keys.pool_stage(s, rows, steps);
  }
}
