// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The raw keys that a token of a decode step attends to, as policies of common/key_stream.cuh: its window,
// and its selected blocks.
//
// Config: kSelectBlock (l'), kWindow (w).
#pragma once
#include "common/softmax.cuh"
#include "common/types.cuh"

struct EveryKey { // of the branch is seen by every head
  int limit;
  NSAI_DEVICE int end(int) const { return limit; }
  NSAI_DEVICE void pool(const float (&)[2][4], const SoftmaxRows &) const {}
};

struct WindowOfToken : EveryKey {
  int begin; // position of key 0
  NSAI_DEVICE int index(int i) const { return begin + i; }
};

struct BlocksOfToken : EveryKey {
  const int *sList; // ascending
  NSAI_DEVICE int index(int i) const {
    return sList[i / Config::kSelectBlock] * Config::kSelectBlock + i % Config::kSelectBlock;
  }
};

NSAI_DEVICE WindowOfToken find_window(int position) {
  WindowOfToken keys;
  keys.limit = min(position + 1, Config::kWindow);
  keys.begin = position + 1 - keys.limit;
  return keys;
}

// The first `count` blocks of sList; the last of them may hold tokens behind the token's position.
NSAI_DEVICE BlocksOfToken find_blocks(const int *sList, int count, int position) {
  BlocksOfToken keys;
  keys.sList = sList;
  keys.limit = 0;
  if (count)
    keys.limit = (count - 1) * Config::kSelectBlock +
                 min(Config::kSelectBlock, position + 1 - sList[count - 1] * Config::kSelectBlock);
  return keys;
}
