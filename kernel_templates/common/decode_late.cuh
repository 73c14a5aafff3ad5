// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The raw keys of one token in decode_cluster: its window's, or those of its list of blocks.
//
// Config: kSelectBlock (l'), kSelectCount (n), kSelectInit, kSelectLocal, kWindow (w).
#pragma once
#include "common/topn.cuh"
#include "common/types.cuh"

template <class C> struct LateKeys {
  int limit;
  const int *sList; // chosen blocks, ascending; nullptr: the window
  int first;        // of the window, key 0's position
  NSAI_DEVICE int index(int i) const {
    if constexpr (C::kSelectCount > 0)
      if (sList) return sList[i / C::kSelectBlock] * C::kSelectBlock + i % C::kSelectBlock;
    return first + i;
  }
};

template <class C> NSAI_DEVICE LateKeys<C> window_keys(int position) {
  const int seen = position + 1; // 0: a padded row
  const int limit = min(seen, C::kWindow);
  return LateKeys<C>{ limit, nullptr, seen - limit };
}

// `sList` [n].
template <class C> NSAI_DEVICE LateKeys<C> chosen_keys(const int *sList, int position) {
  const int last = min(candidate_count<C>(position), C::kSelectCount) - 1; // block that may end behind t
  if (last < 0) return LateKeys<C>{ 0, sList, 0 };
  const int in_last = min(C::kSelectBlock, position + 1 - sList[last] * C::kSelectBlock);
  return LateKeys<C>{ last * C::kSelectBlock + in_last, sList, 0 };
}
