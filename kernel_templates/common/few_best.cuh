// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The kFree best of some keys in shared memory, by all threads of a block and in little code: what runs
// once is bound by instructions. Keys are those of common/topn.cuh, all different, 0 where there is none.
//
// A key's rank is how many are greater. Where there are fewer keys than threads, several share one; where
// there are more, the threads' greatest bound from below what can win.
#pragma once
#include "common/topn.cuh"
#include "common/types.cuh"

// How many of keys [count] are greater, of the pairs `first`, first + step, ...; keys[count] is readable,
// and 0 where `count` is odd. At 16 bytes.
NSAI_DEVICE int count_greater(const u64 *keys, int count, u64 key, int first, int step) {
  int greater = 0;
#pragma unroll 4
  for (int i = 2 * first; i < count; i += 2 * step) {
    const ulonglong2 x = *(const ulonglong2 *)(keys + i);
    greater += x.x > key;
    greater += x.y > key;
  }
  return greater;
}

// Calls found(rank, key) for each of the kFree greatest, in one thread. kRow > 0: the keys lie in rows, of
// kRow lists' greatest, second, ...: key (r, i) has r greater ones in its own list, and of the others' only
// those of the first kFree - r rows can keep it from winning.
template <int kFree, int kThreads, int kRow, class Found>
NSAI_DEVICE void find_best(const u64 *keys, int count, Found found) {
  const int log2_parts = count <= kThreads / 4 ? 2 : count <= kThreads / 2 ? 1 : 0; // threads of a key
  const int part = threadIdx.x & ((1 << log2_parts) - 1);
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kThreads >> log2_parts) {
    const int at = begin + (threadIdx.x >> log2_parts), row = kRow > 0 ? at / kRow : 0;
    const u64 key = at < count ? keys[at] : 0;
    const int limit = kRow > 0 ? min(count, kRow * (kFree - row)) : count;
    int rank = key ? count_greater(keys, limit, key, part, 1 << log2_parts) : 0;
#pragma unroll 1
    for (int apart = 1; apart < 1 << log2_parts; apart *= 2)
      rank += __shfl_xor_sync(kAllLanes, rank, apart);
    if (kRow > 0) rank += max(2 * row - kFree, 0); // its own list's behind these rows
    if (key && part == 0 && rank < kFree) found(rank, key);
  }
}

// Room for those of kMost keys that may be among the best: no more than kFree threads have a greatest one
// that is not below the kFree-th greatest of these.
template <int kFree, int kThreads, int kMost>
constexpr int kFewKeys = (kFree * ceil_div(kMost, kThreads) > kThreads ? kFree * ceil_div(kMost, kThreads)
                                                                       : kThreads) +
                         2;

// Where there are more than kThreads keys [count]: those that may be among the best to few [kFewKeys], at 16
// bytes; how many there are. `least` and `found` are in shared memory.
template <int kFree, int kThreads>
NSAI_DEVICE int find_few(const u64 *keys, int count, u64 *few, u64 *least, int *found) {
  u64 greatest = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) greatest = keys[i] > greatest ? keys[i] : greatest;
  few[threadIdx.x] = greatest;
  if (threadIdx.x == 0) *found = 0;
  __syncthreads(); // all threads' greatest are there
  find_best<kFree, kThreads, 0>(few, kThreads, [&](int rank, u64 key) {
    if (rank == kFree - 1) *least = key;
  });
  __syncthreads(); // the bound is there, and they are read
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads)
    if (keys[i] >= *least) few[atomicAdd(found, 1)] = keys[i];
  __syncthreads(); // the few are there
  const int all = *found;
  if (threadIdx.x == 0) few[all] = 0;
  __syncthreads(); // and what makes them even
  return all;
}
