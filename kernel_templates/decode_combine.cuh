// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_combine: the parts of a decode step into branches, gates and outputs.
//
//   M = max over parts of reference, c = 2^(reference - M)
//   O_b = sum of c o / sum of c sum -> o_branch,   lse_b = (M + log2(sum of c sum)) ln 2 -> lse
//   o = sum over branches of gate_b O_b
//
//   parts (decode_scan, decode_attend) -> o [T, Hq, Dv] and what else is wanted
//
// Grid: x = ceil(T * Hq / (8 / row_warps)), 8 warps; row_warps of them add up a row's parts, every
// row_warps-th each, in a fixed order. Rows behind all sequences are left alone. Bound by latency, where
// there are few rows, and by L2.
//
// Config: those of common/decode.cuh, Element, kHeadDimV, kGate, kPageSize, kThreads, kMinBlocks.
#pragma once
#include "common/decode.cuh"
#include "common/epilogue.cuh"
#include "common/launch.cuh"
#include "common/params.h"
#include "common/params_cache.h"
#include "common/softmax.cuh"

static_assert(Config::kThreads == 256, "8 warps share 8, 4, 2 or 1 rows");

constexpr int kBranches = 3, kWarps = Config::kThreads / 32;
constexpr int kJ = (Config::kHeadDimV + 127) / 128; // columns of a lane, by fours: row_column()

// A branch of one row: what a warp has of it.
struct BranchRow {
  float reference, total; // of all parts
  float4 o[kJ];           // of the warp's parts, relative to `reference`
};

// The parts of a row.
struct RowParts {
  const float *gO;     // of part 0
  const float *gStats;
  long long stride; // rows from part to part
  int count;
};

template <class C>
NSAI_DEVICE RowParts parts_of(const NsaiDecodeParts &x, int rows, long long unit, int row, int begin,
                              int end) {
  const long long at = part_row(x, rows, unit, begin, row);
  return RowParts{ x.o + at / 2 * C::kHeadDimV, x.stats + at, rows, end - begin };
}

// Reference and total of all parts; all 32 lanes take part.
NSAI_DEVICE void combine_stats(const RowParts &parts, BranchRow &out, int lane) {
  float highest = kNoReference, total = 0.0f;
#pragma unroll 4
  for (int i = lane; i < parts.count; i += 32) {
    const float2 stats = *(const float2 *)(parts.gStats + 2 * i * parts.stride);
    const float higher = fmaxf(highest, stats.x);
    total = total * exp2_approx(highest - higher) + stats.y * exp2_approx(stats.x - higher);
    highest = higher;
  }
  const float higher = warp_max(highest);
  total *= exp2_approx(highest - higher);
  highest = higher;
#pragma unroll
  for (int apart = 16; apart; apart /= 2) total += __shfl_xor_sync(~0u, total, apart);
  out.reference = highest;
  out.total = total;
}

// The warp's parts of O: those from `first` on, every `step`-th; kAtOnce of them in flight.
constexpr int kAtOnce = 8 / kJ;
template <class C>
NSAI_DEVICE void combine_parts(const RowParts &parts, BranchRow &out, int first, int step) {
#pragma unroll
  for (int j = 0; j < kJ; ++j) out.o[j] = make_float4(0, 0, 0, 0);
  for (int begin = first; begin < parts.count; begin += kAtOnce * step) {
    float2 stats[kAtOnce];
    float4 x[kAtOnce][kJ];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int part = begin + i * step;
      stats[i] = part < parts.count ? *(const float2 *)(parts.gStats + 2 * part * parts.stride)
                                    : make_float2(kNoReference, 0.0f);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float *from = parts.gO + (begin + i * step) * parts.stride * C::kHeadDimV;
#pragma unroll
      for (int j = 0; j < kJ; ++j) {
        x[i][j] = make_float4(0, 0, 0, 0); // a sum of 0: O is not written
        if (stats[i].y != 0.0f && has_row_column<C::kHeadDimV>(j))
          x[i][j] = *(const float4 *)(from + row_column(j));
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float factor = exp2_approx(stats[i].x - out.reference);
#pragma unroll
      for (int j = 0; j < kJ; ++j)
        out.o[j] = make_float4(
            fmaf(factor, x[i][j].x, out.o[j].x), fmaf(factor, x[i][j].y, out.o[j].y),
            fmaf(factor, x[i][j].z, out.o[j].z), fmaf(factor, x[i][j].w, out.o[j].w));
    }
  }
}

// Adds the other warps' O of the row onto its first warp's.
NSAI_DEVICE void gather_warps(float4 (&sO)[kWarps][kJ][32], BranchRow &out, int warp, int row_warps,
                              int lane) {
  if (row_warps == 1) return;
#pragma unroll
  for (int j = 0; j < kJ; ++j) sO[warp][j][lane] = out.o[j];
  __syncthreads(); // every warp's part is there
  if (warp % row_warps == 0)
    for (int w = 1; w < row_warps; ++w)
#pragma unroll
      for (int j = 0; j < kJ; ++j) {
        const float4 x = sO[warp + w][j][lane];
        out.o[j] = make_float4(out.o[j].x + x.x, out.o[j].y + x.y, out.o[j].z + x.z,
                               out.o[j].w + x.w);
      }
  __syncthreads(); // it is read
}

// Normalises a branch, stores what is wanted of it by itself, and adds it to the sum where it counts.
template <class C>
NSAI_DEVICE void finish_branch(const NsaiEpilogue &out, const OutputRow &row, BranchRow &branch,
                               bool counts, float4 (&sum)[kJ], int lane) {
  const float inverse = branch.total > 0.0f ? __fdividef(1.0f, branch.total) : 0.0f;
  // An empty row may be a padding row, whose gate may be anything.
  const float gate =
      branch.total == 0.0f ? 0.0f : gate_value<C>(out, load_gate<C>(out, row));
  if (out.lse && lane == 0)
    out.lse[row.token * out.lse_token_stride + row.head * out.lse_head_stride] =
        softmax_lse(branch.reference, branch.total);
#pragma unroll
  for (int j = 0; j < kJ; ++j) {
    float4 &x = branch.o[j];
    x = make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse);
    if (branch.total == 0.0f || !counts) continue;
    sum[j] = make_float4(fmaf(gate, x.x, sum[j].x), fmaf(gate, x.y, sum[j].y),
                         fmaf(gate, x.z, sum[j].z), fmaf(gate, x.w, sum[j].w));
  }
  if (out.o_branch.data) store_row_elements<C>(out.o_branch, row, branch.o);
}

template <class C> NSAI_DEVICE void combine(const NsaiDecode &p) {
  __shared__ float4 sO[kWarps][kJ][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // ---- coordinates; warps without a row go along to the barriers ----
  const int heads = C::kGroup * p.kv_heads;
  const long long index = (long long)blockIdx.x * (kWarps / p.row_warps) + warp / p.row_warps;
  const bool exists = index < (long long)p.batch.q_tokens * heads;
  const int row = exists ? (int)(index / heads) : 0, head = exists ? (int)(index % heads) : 0;
  const int group = head / C::kGroup, in_group = head % C::kGroup;
  const DecodeToken token = find_token(p.batch, row);
  const ScanRow scanned = find_scan_row<C>(p, token, group);
  const bool works = exists && token.present;
  const long long unit = (long long)row * p.kv_heads + group;
  const OutputRow place = { row, head, works };
  begin_kernel(); // the batch lay there before decode_scan

  // ---- branches in the order of the sum ----
  float4 sum[kJ];
#pragma unroll
  for (int j = 0; j < kJ; ++j) sum[j] = make_float4(0, 0, 0, 0);
  for (int b = 0; b < kBranches; ++b) {
    const bool counts = p.branches >> b & 1;
    if (!counts && !(b == 0 && p.probes)) continue;
    RowParts parts =
        b == 0   ? parts_of<C>(p.scan, C::kScanRows, scanned.unit, scanned.row + in_group, 0,
                               p.scan.parts)
        : b == 1 ? parts_of<C>(p.attend, C::kGroup, unit, in_group, p.window_parts, p.attend.parts)
                 : parts_of<C>(p.attend, C::kGroup, unit, in_group, 0, p.window_parts);
    if (!works) parts.count = 0;
    BranchRow branch;
    combine_stats(parts, branch, lane);
    combine_parts<C>(parts, branch, warp % p.row_warps, p.row_warps);
    gather_warps(sO, branch, warp, p.row_warps, lane);
    if (works && warp % p.row_warps == 0) 
      finish_branch<C>(p.out[b], place, branch, counts, sum, lane);
  }
  if (works && warp % p.row_warps == 0) store_row_elements<C>(p.out[0].o, place, sum);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    decode_combine(const __grid_constant__ NsaiDecode p) {
  combine<Config>(p);
}
