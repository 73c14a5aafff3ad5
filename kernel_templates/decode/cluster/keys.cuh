// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The raw keys of one token in decode_cluster: those of its window, or those of its list of blocks.
//
// Config: kSelectBlock (l'), kSelectCount (n), kSelectInit, kSelectLocal, kWindow (w).
#pragma once
#include "core/copy.cuh"
#include "core/topn.cuh"
#include "core/types.cuh"
#include "decode/work.cuh"

struct WindowRun {
  int limit; // number of keys
  int first; // position of key 0
};
template <class C> struct ChosenKeys {
  int limit;  // number of keys
  u32 blocks; // shared-memory address of the list, ascending
  NSAI_DEVICE int index(int i) const {
    return (int)load_shared_word(blocks + i / C::kSelectBlock * 4) * C::kSelectBlock +
           i % C::kSelectBlock;
  }
};

template <class C> NSAI_DEVICE WindowRun window_keys(int position) {
  const int seen = position + 1; // <= 0 for a padded row
  const int limit = min(seen, C::kWindow);
  return WindowRun{ limit, seen - limit };
}

// Whether the last candidate is always selected. Otherwise the number of keys depends on the list.
template <class C> constexpr bool kLastIsChosen = C::kSelectLocal > 0;

// `blocks`: the list [n]; read only if kLastIsChosen is false.
template <class C> NSAI_DEVICE ChosenKeys<C> chosen_keys(u32 blocks, int position) {
  const int candidates = candidate_count<C>(position);
  const int last = min(candidates, C::kSelectCount) - 1; // the last block may extend beyond t
  if (last < 0) return ChosenKeys<C>{ 0, blocks };
  const int block = kLastIsChosen<C> ? candidates - 1 : (int)load_shared_word(blocks + last * 4);
  return ChosenKeys<C>{ listed_keys<C>(last + 1, block, position), blocks };
}
