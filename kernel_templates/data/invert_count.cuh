// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// data_invert_count: the first of three kernels that turn lists of blocks into inverted lists
// (tokens per block).
//
//   counts[h, part, b] = number of tokens of the part whose list holds block b
//
//   lists [T, heads, n]; parts are runs of part_tokens tokens of the chunk [token_begin, token_end)
//
// Grid: x = heads * parts, y = ceil(blocks / kCounters). A CTA counts the blocks of its range in
// shared memory; counts do not depend on the order of the atomics. Bound by reading the lists.
//
// Config: kSelectBlock (l'), kSelectCount (n), kCounters, kThreads, kMinBlocks, kSharedBytes (0).
#pragma once
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/inverted_lists.cuh"
#include "params/attention.h"

template <class Config> NSAI_DEVICE void invert_count_part(const NsaiInvert &p) {
  __shared__ int sCounts[Config::kCounters]; // of the blocks from first_number on
  const int first_number = blockIdx.y * Config::kCounters;
  const int numbers = min(Config::kCounters, p.blocks - first_number);
  const int head = blockIdx.x / p.parts, part = blockIdx.x % p.parts;
  const int begin = p.token_begin + part * p.part_tokens;
  const int tokens = min(p.part_tokens, p.token_end - begin);
  const int *gLists = p.lists + head * p.list_head_stride; // [T, n]

  for (int b = threadIdx.x; b < numbers; b += Config::kThreads) sCounts[b] = 0;
  __syncthreads();
  TokenCursor<Config> cursor;
#pragma unroll 4
  for (int i = threadIdx.x; i < tokens * Config::kSelectCount; i += Config::kThreads) {
    const int token = begin + i / Config::kSelectCount;
    const int block = gLists[token * p.list_token_stride + i % Config::kSelectCount];
    cursor.move(p.seq, token);
    const int number = cursor.first_block + block - first_number;
    if (cursor.sees(block, p.near) && number >= 0 && number < numbers)
      atomicAdd(&sCounts[number], 1);
  }
  __syncthreads();
  int *gCounts = p.counts + (long long)blockIdx.x * p.blocks + first_number; // [numbers]
  for (int b = threadIdx.x; b < numbers; b += Config::kThreads) gCounts[b] = sCounts[b];
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    data_invert_count(const __grid_constant__ NsaiInvert p) {
  begin_kernel();
  invert_count_part<Config>(p);
}
