// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Products of one stage of decode/mainloop.cuh with 64 rows by one warpgroup (sm_90a). Both
// products read the stage from shared memory once, instead of once per m16 tile of rows.
//
//   S [64, keys] = Q K^T     Q and K in shared memory
//   O [64, Dv]  += P V       P in registers: C fragments of S are A fragments
//
// Config: Element, kHeadDimQk, kHeadDimV.
#pragma once
#include "core/panel_tile.cuh"
#include "core/softmax.cuh"
#include "core/wgmma.cuh"

template <int kN> NSAI_DEVICE void hold_fragments(float (&d)[kN][4]) {
#pragma unroll
  for (int j = 0; j < kN; ++j) wgmma_hold(d[j]);
}

// S = Q K^T, complete on return; `meanwhile` runs while the product does. Q is part of a tile of
// kRows rows.
template <class C, int kRows, int kN, class Meanwhile>
NSAI_DEVICE void multiply_panels_qk(float (&s)[kN][4], u32 sQ, u32 sK, Meanwhile meanwhile) {
  constexpr int kKeys = 8 * kN;
  const u64 q = wgmma_k_major(sQ), k = wgmma_k_major(sK);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < padded_dim(C::kHeadDimQk) / 16; ++step)
    wgmma_qk<typename C::Element, kKeys>(s[0], q + wgmma_k_step<kRows>(step),
                                         k + wgmma_k_step<kKeys>(step), step > 0);
  wgmma_commit();
  meanwhile();
  wgmma_wait<0>();
  hold_fragments(s);
}

template <class C, int kN, int kO, class Meanwhile>
NSAI_DEVICE void multiply_panels_pv(float (&o)[kO][4], const float (&p)[kN][4], u32 sV,
                                    Meanwhile meanwhile) {
  constexpr int kKeys = 8 * kN, kColumns = 8 * kO;
  using Element = typename C::Element;
  const u64 v = wgmma_mn_major<kKeys>(sV);
  u32 a[kN / 2][4], rest[kSplitP<C> ? kN / 2 : 1][4]; // [64, 16 keys]
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    softmax_pack<Element>(a[i], p[2 * i], p[2 * i + 1]);
    if constexpr (kSplitP<C>) softmax_pack_rest<Element>(rest[i], a[i], p[2 * i], p[2 * i + 1]);
  }
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    wgmma_pv<Element, kColumns, kKeys>(o[0], a[i], v + wgmma_mn_step(i), 1);
    if constexpr (kSplitP<C>)
      wgmma_pv<Element, kColumns, kKeys>(o[0], rest[i], v + wgmma_mn_step(i), 1);
  }
  wgmma_commit();
  meanwhile();
  wgmma_wait<0>();
  hold_fragments(o);
}
