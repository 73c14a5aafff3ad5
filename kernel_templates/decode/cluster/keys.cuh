// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The raw keys of one token in decode_cluster: its window's, or those of its list of blocks.
//
// Config: kSelectBlock (l'), kSelectCount (n), kSelectInit, kSelectLocal, kWindow (w).
#pragma once
#include "core/copy.cuh"
#include "core/topn.cuh"
#include "core/types.cuh"
#include "decode/work.cuh"

struct WindowRun {
  int limit; // keys
  int first; // key 0's position
};
template <class C> struct ChosenKeys {
  int limit;  // keys
  u32 blocks; // the list, ascending, in shared memory
  NSAI_DEVICE int index(int i) const {
    return (int)load_shared_word(blocks + i / C::kSelectBlock * 4) * C::kSelectBlock +
           i % C::kSelectBlock;
  }
};

template <class C> NSAI_DEVICE WindowRun window_keys(int position) {
  const int seen = position + 1; // not above 0: a padded row
  const int limit = min(seen, C::kWindow);
  return WindowRun{ limit, seen - limit };
}

// How many there are follows of the list where the last candidate need not be in it.
template <class C> constexpr bool kLastIsChosen = C::kSelectLocal > 0;

// `blocks`: the list [n], which is read only where kLastIsChosen does not hold.
template <class C> NSAI_DEVICE ChosenKeys<C> chosen_keys(u32 blocks, int position) {
  const int candidates = candidate_count<C>(position);
  const int last = min(candidates, C::kSelectCount) - 1; // block that may end behind t
  if (last < 0) return ChosenKeys<C>{ 0, blocks };
  const int block = kLastIsChosen<C> ? candidates - 1 : (int)load_shared_word(blocks + last * 4);
  return ChosenKeys<C>{ listed_keys<C>(last + 1, block, position), blocks };
}
