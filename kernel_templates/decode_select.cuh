// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_select: importance from what decode_scan has pooled, and the top-n by it.
//
//   lse[h]  = log2 of the sum over parts of 2^reference * sum
//   I[j]    = sum over the group's heads h of 2^(pooled[j, h] - lse[h]), and of the spill where a run
//             begins with block j
//   pooled, spills, stats of parts (decode_scan) -> idx [T, Hkv, n] (decode_attend)
//
// Grid: x = T * kv_heads, one CTA each. Each of its warps searches a piece of the row, and one searches what
// they found. A piece's importance is computed once and kept in shared memory, as far as it reaches; beyond
// kKept blocks a warp it is computed again, to the same bits. The greatest of each lane bound from below
// what can win: so 32 candidates or fewer are left of nearly every piece, which are ranked, not sorted.
//
// Config: those of common/decode.cuh, kSelectCount (n), kSelectInit, kSelectLocal, kThreads, kMinBlocks.
#pragma once
#include "common/decode.cuh"
#include "common/launch.cuh"
#include "common/params_cache.h"
#include "common/softmax.cuh"
#include "common/topn.cuh"

constexpr int kSelectWarps = Config::kThreads / 32;
constexpr int kKept = 512; // floats of a warp: 4096 blocks of 8 warps, 256k tokens where l' is 64

template <class C> struct SelectShared {
  float lse[C::kGroupPadded];
  float kept[kSelectWarps][kKept];
  u64 queue[kSelectWarps][kQueue];
  int found[kSelectWarps][Topn<C>::kFree > 0 ? Topn<C>::kFree : 1];
};

// One token's importance, block by block.
template <class C> struct ScanImportance {
  const float *gPooled; // [blocks, kScanRows] from the token's first row on
  const float *gSpills; // [runs, kScanRows], the same
  const float *sLse;    // [kGroupPadded], base 2
  int blocks;           // that were pooled
  int each;             // of a run

  // Rows of heads that pad a group are written as the others are, and left out here.
  NSAI_DEVICE float heads(const float *row) const {
    float sum = 0.0f;
    if constexpr (C::kGroupPadded % 4 == 0) {
#pragma unroll
      for (int h = 0; h < C::kGroup; h += 4) {
        const float4 x = *(const float4 *)(row + h);
        const float each[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (h + i < C::kGroup) sum += exp2_approx(each[i] - sLse[h + i]);
      }
    } else {
#pragma unroll
      for (int h = 0; h < C::kGroup; ++h) sum += exp2_approx(row[h] - sLse[h]);
    }
    return sum;
  }
  NSAI_DEVICE float of(int j) const {
    float sum = j < blocks ? heads(gPooled + (long long)j * C::kScanRows) : 0.0f;
    const bool first = j > 0 && j <= blocks && (j % each == 0 || j == blocks);
    if (first) sum += heads(gSpills + (long long)((j - 1) / each) * C::kScanRows);
    return sum;
  }
};

// lse of the token's heads into shared memory, a warp a head.
template <class C>
NSAI_DEVICE void combine_lse(const NsaiDecode &p, const ScanRow &at, float *sLse, int warp, int lane) {
  for (int h = warp; h < C::kGroup; h += kSelectWarps) {
    float highest = kNoReference, total = 0.0f;
#pragma unroll 4
    for (int part = lane; part < p.scan.parts; part += 32) {
      const float2 stats = *(const float2 *)(p.scan.stats + part_row(p.scan, C::kScanRows, at.unit,
                                                                      part, at.row + h));
      const float higher = fmaxf(highest, stats.x);
      total = total * exp2_approx(highest - higher) + stats.y * exp2_approx(stats.x - higher);
      highest = higher;
    }
    const float higher = warp_max(highest);
    total *= exp2_approx(highest - higher);
#pragma unroll
    for (int apart = 16; apart; apart /= 2) total += __shfl_xor_sync(~0u, total, apart);
    // Without keys nothing is pooled, and no block weighs anything.
    if (lane == 0) sLse[h] = higher + log2_approx(total);
  }
}

// An order that kFree of the lanes' greatest have, less one: what is not above it cannot win.
template <int kFree> NSAI_DEVICE u32 bar_of(u32 greatest, int lane) {
  if constexpr (kFree > 32)
    return 0;
  else
    return order_reached(greatest, kFree, lane) - 1;
}

// The best of the candidates [begin, end), by their indices, to sFound [kFree]; all where it has no more.
template <class C>
NSAI_DEVICE void search_piece(const ScanImportance<C> &importance, int begin, int end, float *sKept,
                              int *sFound, u64 *sQueue, int lane) {
  constexpr int kFree = Topn<C>::kFree;
  const int count = max(end - begin, 0);
  u32 greatest = 0;
#pragma unroll 2
  for (int i = lane; i < count; i += 32) {
    const float x = importance.of(begin + i);
    if (i < kKept) sKept[i] = x;
    greatest = max(greatest, order_of(x));
  }
  __syncwarp(); // the piece is kept
  if (count <= kFree) {
    for (int i = lane; i < count; i += 32) sFound[i] = begin + i;
    return;
  }
  const u32 bar = bar_of<kFree>(greatest, lane);
  search<kFree, Topn<C>::kSlots>(
      sFound, count,
      [&](int i) {
        return key_of(order_of(i < kKept ? sKept[i] : importance.of(begin + i)), begin + i);
      },
      sQueue, lane, bar);
}

template <class C> NSAI_DEVICE void select(const NsaiDecode &p) {
  constexpr int kFree = Topn<C>::kFree;
  __shared__ SelectShared<C> shared;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // ---- coordinates ----
  const int row = blockIdx.x / p.kv_heads, group = blockIdx.x % p.kv_heads;
  const DecodeToken token = find_token(p.batch, row);
  begin_kernel(); // the batch lay there before decode_scan
  if (!token.present) return;
  int *gOut = p.idx + row * p.idx_token_stride + group * p.idx_head_stride; // [n]
  const int candidates = candidate_count<C>(token.position);
  const bool searches = candidates > C::kSelectCount && kFree > 0;
  if (warp == 0) write_forced<C>(gOut, candidates, lane);
  if (!searches) return;

  // ---- search ----
  if constexpr (kFree > 0) {
    const ScanRow at = find_scan_row<C>(p, token, group);
    const Sequence seq = load_cached_sequence(p.batch, token.s);
    const TeamRuns runs = find_runs<C>(p, visible_entries<C>(last_position<C>(seq, token.query)));
    const long long run_rows = (long long)p.scan.parts * Decode<C>::kTeams * C::kScanRows;
    const ScanImportance<C> importance = {
      p.pooled + (long long)at.unit * p.pooled_blocks * C::kScanRows + at.row,
      p.spills + at.unit * run_rows + at.row,
      shared.lse,
      runs.quanta * Decode<C>::kQuantumBlocks,
      runs.each * Decode<C>::kQuantumBlocks,
    };
    combine_lse<C>(p, at, shared.lse, warp, lane);
    __syncthreads(); // every head's lse is there
    const int first = C::kSelectInit, last = candidates - C::kSelectLocal;
    const int each = ceil_div(last - first, kSelectWarps);
    search_piece<C>(importance, first + warp * each, min(first + (warp + 1) * each, last),
                    shared.kept[warp], shared.found[warp], shared.queue[warp], lane);
    __syncthreads(); // all pieces are searched
    if (warp != 0) return;
    // Every piece has `each` candidates, but the last one that has any.
    constexpr int kMost = kFree;
    const int full = min(each, kMost);
    const int all = (last - first) / each * full + min((last - first) % each, kMost);
    auto found = [&](int i) { return shared.found[i / full][i % full]; };
    auto order = [&](int i) {
      const int piece = i / full, j = found(i), at = j - first - piece * each;
      return order_of(at < kKept ? shared.kept[piece][at] : importance.of(j));
    };
    if (all == kFree) {
      for (int i = lane; i < kFree; i += 32) gOut[C::kSelectInit + i] = found(i);
      return;
    }
    u32 greatest = 0;
    for (int i = lane; i < all; i += 32) greatest = max(greatest, order(i));
    search<kFree, Topn<C>::kSlots>(
        gOut + C::kSelectInit, all, [&](int i) { return key_of(order(i), found(i)); },
        shared.queue[0], lane, bar_of<kFree>(greatest, lane));
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    decode_select(const __grid_constant__ NsaiDecode p) {
  select<Config>(p);
}
