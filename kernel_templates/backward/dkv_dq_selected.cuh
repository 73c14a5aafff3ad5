// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_dkv_dq_selected: dK and dV of the selected branch as in backward_dkv_selected, and what
// each block adds to dQ of the rows that see it, in one kernel of five products (sm_90a):
//
//   S^T = K Q^T   dU^T = V dO^T   dV += P'^T dO   dQ = dS K   dK += dS^T Q
//
//   q [T, Hq, Dk], d_o [T, Hq, Dv], RowStatistics [3, T, Hq], k, v [rows, Hkv, D]
//   -> partial as in backward_dkv_selected; slots, slot_steps (params/backward.h), which
//   backward_dq_slots adds up
//
// A kernel for dQ that walks the lists of adjacent tokens multiplies whole tiles with the union of
// their lists. Of one query head 64 rows are 64 tokens, whose union has about six times the blocks
// of one list. Here no row is multiplied in vain, and S and dU are multiplied once.
//
// dQ of a row and one block lies where the row's entry lies in the inverted list, so that a tile of
// rows is contiguous and every run adds in the order of the slots. It is fp16 times a power of two
// of its own for each row. In bf16 the terms of a sum that cancel would show their rounding.
//
// CTA: one warpgroup, a block of up to 64 keys, and an item of its inverted list, 64 rows at a time.
// Rows are copied as in backward/dkv_mainloop.cuh. dS passes through shared memory as an operand of
// dQ. dQ replaces Q of its stage, from where each warp's 16 rows leave by a bulk copy while the
// next stage is computed. Two CTAs of a multiprocessor fill each other's waits.
//
// Shared memory: nsai_smem_dkv_slots() of params/smem.h.
//
// Grid: as in backward_dkv_selected, with one tile per block.
//
// Config: as in backward/dkv_mainloop.cuh, with kWgmma 1, kKeys 64, kRows 64, kStages 2 and kSplit
// 0; kHeadDimQk 64 or 128.
#pragma once
#include "backward/dkv_mainloop.cuh"
#include "backward/pipelines/dq_slots.cuh"

// The Config of the main loop that this kernel extends: the same but for the shared memory.
template <class Config> struct DkvPart : Config {
  static constexpr int kSharedBytes =
      nsai_smem_dkv(1, Config::kKeys, Config::kRows, Config::kStages, Config::kEntries,
                    Config::kHeadDimQk, Config::kHeadDimV);
};

template <class Config> struct SlotTraits : DkvTraits<DkvPart<Config>> {
  using DS = PanelTile<64, 64>; // [keys, rows]
  static constexpr int kSDS = nsai_smem_aligned(DkvPart<Config>::kSharedBytes, 1024);
  static constexpr int kSlotsBytes = kSDS + DS::kBytes;
  static constexpr int kO = Config::kHeadDimQk / 8; // n8 tiles of dQ

  static_assert(kSlotsBytes == Config::kSharedBytes,
                "the host computes another size of shared memory");
  static_assert(Config::kWgmma && Config::kKeys == 64 && Config::kRows == 64,
                "one warpgroup has dS of 64 keys and 64 rows");
  static_assert(Config::kStages == 2, "dQ leaves one stage while the other one is read");
  static_assert(Config::kHeadDimQk == 64 || Config::kHeadDimQk == 128,
                "dQ is one product, and as large as Q of its stage");
};

// Issues dQ [64 rows, Dk] = dS K.
template <class Config, int kO> NSAI_DEVICE void start_dq(float (&dq)[kO][4], u32 sDS, u32 sK) {
  const u64 a = wgmma_mn_major<64>(sDS), b = wgmma_mn_major<64>(sK);
#pragma unroll
  for (int k = 0; k < Config::kKeys / 16; ++k)
    Wgmma<typename Config::Element, 8 * kO>::template shared_as<1, 1>(&dq[0][0],
                                                                      a + wgmma_mn_step(k),
                                                                      b + wgmma_mn_step(k), k > 0);
}

// Turns dQ of the lane's two rows into fp16 of each row's own step: c [kO / 2][4] for stmatrix.
template <int kO>
NSAI_DEVICE void pack_slots(u32 (&c)[kO / 2][4], float (&step)[2], const float (&dq)[kO][4]) {
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float most0 = 0.0f, most1 = 0.0f; // two chains shorten the latency
#pragma unroll
    for (int j = 0; j < kO; ++j) {
      most0 = fmaxf(most0, fabsf(dq[j][2 * r]));
      most1 = fmaxf(most1, fabsf(dq[j][2 * r + 1]));
    }
    const SlotScale scale = slot_scale(quad_max(fmaxf(most0, most1)));
    factor[r] = scale.factor;
    step[r] = scale.step;
  }
#pragma unroll
  for (int j = 0; j < kO / 2; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float *x = &dq[2 * j + i / 2][2 * (i % 2)];
      c[j][i] = Fp16::pack(x[0] * factor[i % 2], x[1] * factor[i % 2]);
    }
}

// Leaves dQ of the warp's 16 rows in `sRows`, the memory of the stage's Q, and starts their copy.
// `first`: the tile's first row among those of p.slots; `left`: rows of the tile that exist.
template <class Config, int kO>
NSAI_DEVICE void store_slots(const NsaiBackwardDkvSlots &p, u32 first, int left, u32 sRows,
                             const u32 (&c)[kO / 2][4], const float (&step)[2]) {
  constexpr int kRowBytes = 2 * Config::kHeadDimQk;
  const int lane = recomputed(threadIdx.x) % 32,
            warp_row = (int)(recomputed(threadIdx.x) / 32) * 16;
  const int row = warp_row + lane % 16;
#pragma unroll
  for (int j = 0; j < kO / 2; ++j)
    stmatrix_x4(sRows + row * kRowBytes + 16 * row_chunk((int)first + row, 2 * j + lane / 16),
                c[j]);
  const int mine = warp_row + lane / 4 + lane % 4 * 8; // lanes 0 and 1 of a quad have one row each
  if (lane % 4 < 2 && mine < left) p.slot_steps[first + mine] = lane % 4 ? step[1] : step[0];
  shared_proxy_fence();
  __syncwarp();
  const int rows = min(left - warp_row, 16);
  if (lane == 0 && rows > 0)
    bulk_store((float *)((unsigned char *)p.slots + (long long)(first + warp_row) * kRowBytes),
               sRows + warp_row * kRowBytes, rows * kRowBytes);
  if (lane == 0) bulk_commit();
}

// dK and dV of the item's keys, zeros on entry, and dQ of its rows. K and V are on their way.
// `first`: of the item's rows among those of p.slots.
template <class Config, int kK, int kV>
NSAI_DEVICE void multiply_item(float (&dk)[kK][4], float (&dv)[kV][4],
                               const NsaiBackwardDkvSlots &all, const KeyTile &tile,
                               const ListRows<Config> &rows, u32 first, u32 base) {
  const NsaiBackwardKv &p = all.keys;
  using R = SlotTraits<Config>;
  using Part = DkvPart<Config>;
  using E = typename Config::Element;
  const int count = tile.tokens * Config::kGroup, tiles = ceil_div(count, Config::kRows);
  const int key = (int)(recomputed(threadIdx.x) / 32) * 16 + (int)(threadIdx.x & 31) / 4;
  auto stage_at = [&](int number) { return base + R::kSStage + (number & 1) * R::kStageBytes; };
  bool next_masked = load_query_rows<Part>(p, rows, tile.head, count, 0, stage_at(0));
  copy_async_commit();
#pragma unroll 1
  for (int i = 0; i < tiles; ++i) {
    const u32 stage = stage_at(i);
    copy_async_wait<0>();
    shared_proxy_fence();
    const bool masked = __syncthreads_or(next_masked); // tile i has arrived (and K and V)
    float s[R::kN][4], du[R::kN][4];                   // [64 keys, 64 rows]
    u32 rP[R::kN / 2][4], rDS[R::kN / 2][4];
    wgmma_fence();
    start_rows<E, typename R::K, typename R::Q, Config::kHeadDimQk>(s, base + R::kSK,
                                                                    stage + R::kQ);
    wgmma_commit();
    if (i + 1 < tiles) {
      if (threadIdx.x % 32 == 0) bulk_wait_read();
      __syncthreads(); // dQ of tile i - 1 has left the other stage
      next_masked = load_query_rows<Part>(p, rows, tile.head, count, i + 1, stage_at(i + 1));
    }
    copy_async_commit();
    auto start_du = [&]() {
      wgmma_fence();
      start_rows<E, typename R::V, typename R::DO, Config::kHeadDimV>(du, base + R::kSV,
                                                                      stage + R::kDO);
      wgmma_commit();
    };
    // dU overlaps with the exponentials, unless gates take the registers that it needs.
    if constexpr (kGateInLse<Config>) start_du();
    wgmma_wait<kGateInLse<Config> ? 1 : 0>();
    hold(s);
    all_probabilities<Part>(s, stage, masked, key, p.scale_log2);
    if constexpr (!kGateInLse<Config>) start_du();
    pack_all<E>(rP, s);
    wgmma_fence();
    start_fragments<E, typename R::DO>(dv, rP, stage + R::kDO);
    wgmma_commit();
    wgmma_wait<1>();
    hold(du);
#pragma unroll
    for (int j = 0; j < R::kN; ++j) score_gradients<Part>(du[j], s[j], stage, 8 * j);
    pack_all<E>(rDS, du);
    const int lane = recomputed(threadIdx.x) % 32;
    const u32 to = base + R::kSDS + R::DS::offset(threadIdx.x / 32 * 16 + lane % 16, lane / 16);
#pragma unroll
    for (int j = 0; j < R::kN / 2; ++j) stmatrix_x4(R::DS::along(to, 2 * j), rDS[j]);
    shared_proxy_fence();
    __syncthreads();    // dS of all keys is written
    float dq[R::kO][4]; // [64 rows, Dk]
    wgmma_fence();
    start_dq<Config>(dq, base + R::kSDS, base + R::kSK);
    wgmma_commit();
    start_fragments<E, typename R::Q>(dk, rDS, stage + R::kQ);
    wgmma_commit();
    wgmma_wait<1>();
    hold(dv);
    hold(dq);
    u32 rDQ[R::kO / 2][4];
    float step[2];
    pack_slots(rDQ, step, dq);
    wgmma_wait<0>();
    hold(dk);
    __syncthreads(); // all warps have finished with the stage, and with dS
    if (all.slots)
      store_slots<Config, R::kO>(all, first + i * Config::kRows, count - i * Config::kRows,
                                 stage + R::kQ, rDQ, step);
  }
  // Shared memory must outlive the copies. Of an item without rows nobody has waited for K and V.
  if (threadIdx.x % 32 == 0) bulk_wait();
  copy_async_wait<0>();
}

template <class Config> NSAI_DEVICE void run_item(const NsaiBackwardDkvSlots &p) {
  using R = SlotTraits<Config>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  u32 *sEntries = (u32 *)(shared_bytes + R::kSEntries); // [kEntries]
  const u32 base = shared_address(shared_bytes);
  const NsaiBackwardKv &kv = p.keys;
  ListRows<Config> rows;
  KeyTile tile;
  if (!find_rows<Config>(kv, rows, tile)) return;
  const long long list = kv.shared_lists ? 0 : tile.head; // entries of the item's head
  const long long entry = (tile.head - kv.head_begin) * kv.entry_capacity +
                          (rows.entries - (kv.entries + list * kv.entry_capacity));
  const u32 first = (u32)(entry * Config::kGroup);
  for (int i = threadIdx.x; i < tile.tokens; i += Config::kThreads) sEntries[i] = rows.entries[i];
  __syncthreads();
  rows.entries = sEntries;
  load_tile<typename R::K, Config::kKeys, Config::kHeadDimQk, Config::kThreads>(
      base + R::kSK, [&](int row, const u16 *&from) {
        from = (const u16 *)kv.k.data + (tile.key_row + row) * kv.k.token_stride +
               tile.head * kv.k.head_stride;
        return row < tile.keys;
      });
  load_tile<typename R::V, Config::kKeys, Config::kHeadDimV, Config::kThreads>(
      base + R::kSV, [&](int row, const u16 *&from) {
        from = (const u16 *)kv.v.data + (tile.key_row + row) * kv.v.token_stride +
               tile.head * kv.v.head_stride;
        return row < tile.keys;
      });
  float dk[R::kColsQk / 8][4] = {}, dv[R::kColsV / 8][4] = {}; // [64, Dk], [64, Dv]
  multiply_item<Config>(dk, dv, p, tile, rows, first, base);
  find_rows<Config>(kv, rows, tile); // again: the loop has no registers for what follows
  store_partial<DkvPart<Config>, Config::kHeadDimQk>(tile, 0, dk, kv.scale);
  store_partial<DkvPart<Config>, Config::kHeadDimV>(tile, Config::kHeadDimQk, dv, 1.0f);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dkv_dq_selected(const __grid_constant__ NsaiBackwardDkvSlots p) {
  begin_kernel();
  run_item<Config>(p);
}
