// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The raw keys of one token in decode_cluster, and who streams them: the first warps of every block the
// window's, the others the chosen blocks'. Steps of 16 keys are dealt over the warps of a branch of all
// blocks of the cluster, to different blocks first.
//
//   early  what follows from the length alone: the window; the forced blocks, or all blocks where none is
//          searched
//   free   the n_free blocks between the forced ones, known when they have been searched
//
// Config: kSelectBlock (l'), kSelectCount (n), kSelectInit, kSelectLocal, kWindow (w), kCluster, kWarps.
#pragma once
#include "common/decode.cuh"
#include "common/params_cache.h"
#include "common/softmax.cuh"
#include "common/topn.cuh"

// Blocks that are searched: n_free.
template <class C>
constexpr int kFreeBlocks =
    C::kSelectCount > 0 ? C::kSelectCount - C::kSelectInit - C::kSelectLocal : 0;

constexpr NSAI_DEVICE int log2_of(int x) { return x > 1 ? 1 + log2_of(x / 2) : 0; }

// ---- who

struct LateShare {
  bool window;      // else the selected branch
  int window_warps; // of every block
  int selected_warps;
  int slot, log2_slots; // this warp's among the warps of its branch in the cluster
};

template <class C> NSAI_DEVICE LateShare late_share(const NsaiDecode &p, int rank, int warp) {
  const bool windows = C::kWindow > 0 && p.branches >> 2 & 1;
  const bool selects = C::kSelectCount > 0 && p.branches >> 1 & 1;
  LateShare x;
  x.window_warps = !windows ? 0 : selects ? C::kWarps / 2 : C::kWarps;
  x.selected_warps = selects ? C::kWarps - x.window_warps : 0;
  x.window = warp < x.window_warps;
  x.slot = rank + C::kCluster * (x.window ? warp : warp - x.window_warps);
  x.log2_slots = log2_of(C::kCluster * C::kWarps) - (windows && selects);
  return x;
}

// How many of the branch's `steps` steps, the first of which is number `before`, fall to the warp; and the
// first of these.
struct LateSteps {
  int first, count;
};
NSAI_DEVICE LateSteps late_steps(const LateShare &share, int before, int steps) {
  const int first = (share.slot - before) & ((1 << share.log2_slots) - 1);
  return LateSteps{ first, first < steps ? ((steps - 1 - first) >> share.log2_slots) + 1 : 0 };
}

// ---- which keys

template <class C> struct LateKeys {
  int limit;
  const int *sList; // free blocks, ascending; nullptr: early keys
  int first;        // of early ones, key 0's position
  int gap_at, gap;  // keys from gap_at on lie `gap` further
  NSAI_DEVICE int index(int i) const {
    if constexpr (kFreeBlocks<C> > 0)
      if (sList) return sList[i / C::kSelectBlock] * C::kSelectBlock + i % C::kSelectBlock;
    return first + i + (i < gap_at ? 0 : gap);
  }
  NSAI_DEVICE int end(int) const { return limit; }
  NSAI_DEVICE void pool(const float (&)[2][4], const SoftmaxRows &) const {}
};

template <class C> NSAI_DEVICE LateKeys<C> early_keys(const LateShare &share, int position) {
  const int seen = position + 1; // 0: a padded row
  LateKeys<C> keys = { 0, nullptr, 0, 0x7fffffff, 0 };
  if (share.window) {
    keys.limit = min(seen, C::kWindow);
    keys.first = seen - keys.limit;
  } else if (share.selected_warps > 0) {
    const int candidates = candidate_count<C>(position);
    keys.limit = seen;
    if (candidates > C::kSelectCount) {
      const int local = (candidates - C::kSelectLocal) * C::kSelectBlock;
      keys.gap_at = C::kSelectInit * C::kSelectBlock;
      keys.gap = local - keys.gap_at;
      keys.limit = keys.gap_at + (C::kSelectLocal > 0 ? seen - local : 0);
    }
  }
  return keys;
}

// `sList` [n_free].
template <class C> NSAI_DEVICE LateKeys<C> free_keys(const int *sList, int position) {
  constexpr int kFree = kFreeBlocks<C>;
  // The last block may hold tokens behind t.
  const int last = min(C::kSelectBlock, position + 1 - sList[kFree - 1] * C::kSelectBlock);
  return LateKeys<C>{ (kFree - 1) * C::kSelectBlock + last, sList, 0, 0, 0 };
}
