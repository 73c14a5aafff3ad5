// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What kernels over the merged lists of adjacent tokens share, whether they load keys by cp.async
// (attend/selected_sm80.cuh) or by TMA (attend/selected_pipeline.cuh): the position of a tile and
// its rows.
//
// Config: kHeadDimQk, kGroup, kGroupPadded.
#pragma once
#include "core/epilogue.cuh"
#include "core/pipeline.cuh"
#include "core/types.cuh"
#include "data/sequence.cuh"
#include "params/attention.h"

// The position of a tile.
struct TilePosition {
  Sequence seq;
  int first_query; // first query of the tile, within the sequence
  int group;       // KV head
  NSAI_DEVICE bool empty() const { return first_query < 0 || first_query >= seq.q_len; }
};

// Where row `row` of a tile belongs; rows are token-major over the padded heads.
template <class Config> NSAI_DEVICE OutputRow find_output_row(const TilePosition &at, int row) {
  int query = at.first_query + row / Config::kGroupPadded, head = row % Config::kGroupPadded;
  return OutputRow{ at.seq.q_begin + query, at.group * Config::kGroup + head,
                    head < Config::kGroup && query < at.seq.q_len };
}

// Loads A fragments of Q directly from global memory, two columns per load; the lane holds rows
// `row` and `row + 8`. Padding is zero.
template <class Config, int kSteps>
NSAI_DEVICE void load_query(u32 (&rQ)[kSteps][4], const NsaiView &q, const TilePosition &at,
                            int row) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const OutputRow output_row = find_output_row<Config>(at, row + 8 * r);
    const u16 *gRow = (const u16 *)q.data + output_row.token * q.token_stride +
                      output_row.head * q.head_stride; // [Dk]
    const u32 *gPair = (const u32 *)gRow + (threadIdx.x & 3);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      rQ[k][r] = output_row.present ? gPair[8 * k] : 0;
      rQ[k][r + 2] = output_row.present && 16 * k + 8 < Config::kHeadDimQk ? gPair[8 * k + 4] : 0;
    }
  }
}
