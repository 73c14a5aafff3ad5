// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// How a warp combines the partial results of a row (head, token), one for each slot of the token's
// list, into the row's output:
//
//   LSE = log2 sum over slots i of 2^lse[i]
//   O   = sum over slots i of 2^(lse[i] - LSE) partial[i]
//
// Lane l holds slots l, l + 32, ... of the LSEs, and groups of four columns of the results. A slot
// whose block the token does not see holds no result and is not read.
//
// Config: Element, kHeadDimV, kSelectCount (n).
#pragma once
#include "core/epilogue.cuh"
#include "core/types.cuh"
#include "data/inverted_lists.cuh"

template <class Config> struct Slots {
  static constexpr int kCount = Config::kSelectCount;
  static constexpr int kPerLane = ceil_div(kCount, 32);       // slots of a lane
  static constexpr int kJ = ceil_div(Config::kHeadDimV, 128); // groups of four columns of a lane
  static constexpr int kAhead = 16 / kJ < kCount ? 16 / kJ : kCount; // slots loaded together
};

// Loads the entry indices of a token's slots, gEntryIndices [n]; those that do not exist become
// kNoEntryIndex.
template <class Config>
NSAI_DEVICE void load_entry_indices(int (&rEntryIndex)[Slots<Config>::kPerLane],
                                    const int *gEntryIndices) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int j = 0; j < Slots<Config>::kPerLane; ++j)
    rEntryIndex[j] =
        32 * j + lane < Config::kSelectCount ? gEntryIndices[32 * j + lane] : kNoEntryIndex;
}

// Loads the slots' LSEs, -inf for those that are not seen. gLse [entries of the list's head].
template <class Config>
NSAI_DEVICE void load_slot_lses(float (&rLse)[Slots<Config>::kPerLane],
                                const int (&rEntryIndex)[Slots<Config>::kPerLane],
                                const float *gLse) {
#pragma unroll
  for (int j = 0; j < Slots<Config>::kPerLane; ++j)
    rLse[j] = rEntryIndex[j] >= 0 ? gLse[rEntryIndex[j]] : kMinusInf;
}

// The reference and the sum of a row's probabilities relative to it.
struct RowTotal {
  float reference, sum;
};

// Turns the slots' LSEs into their weights in O.
template <int kPerLane> NSAI_DEVICE RowTotal weigh_slots(float (&rLse)[kPerLane]) {
  float highest = kNoReference, total = 0.0f;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) highest = fmaxf(highest, rLse[j]);
  highest = warp_max(highest);
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    rLse[j] = exp2_approx(rLse[j] - highest);
    total += rLse[j];
  }
  total = warp_sum(total);
  const float inverse = inverse_of(total);
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) rLse[j] *= inverse;
  return RowTotal{ highest, total };
}

// Adds `weight` times one slot's row, in the lane's columns.
template <class Config, int kJ>
NSAI_DEVICE void add_slot(float4 (&x)[kJ], const uint2 (&rPartial)[kJ], float weight) {
  using E = typename Config::Element;
#pragma unroll
  for (int j = 0; j < kJ; ++j) {
    x[j].x = fmaf(weight, E::low(rPartial[j].x), x[j].x);
    x[j].y = fmaf(weight, E::high(rPartial[j].x), x[j].y);
    x[j].z = fmaf(weight, E::low(rPartial[j].y), x[j].z);
    x[j].w = fmaf(weight, E::high(rPartial[j].y), x[j].w);
  }
}

// Loads kAhead slots from slot `first` on; load(slot, j) loads the lane's group j of columns of one.
// Slots whose bit in `seen`, counted from `first`, is 0 become zeros.
template <class Config, int kAhead, int kJ, class Load>
NSAI_DEVICE void load_slots(uint2 (&rPartial)[kAhead][kJ], int first, u32 seen, Load load) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
#pragma unroll
    for (int j = 0; j < kJ; ++j) {
      rPartial[i][j] = make_uint2(0, 0);
      if ((seen >> i & 1) && has_row_column<Config::kHeadDimV>(j))
        rPartial[i][j] = load(first + i, j);
    }
  }
}
