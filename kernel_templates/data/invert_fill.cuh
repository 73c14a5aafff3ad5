// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// data_invert_fill: writes the inverted lists: for each block its tokens in ascending order with
// the slot of each (data/inverted_lists.cuh), and for each token the positions of its slots in
// those lists.
//
// Grid: x = heads * parts, y = ceil(blocks / kCounters), as in data_invert_count. Each warp has a
// run of the part's tokens. It first counts them, adds the counts of the warps before it, and then
// processes token after token with one lane per slot: the blocks of one list differ, so no two
// lanes share a counter, and entries keep the order of the tokens.
//
// Entries are stored one by one. L2 merges them into lines as long as only a few heads are
// processed at a time, which is the caller's task. A third of the time goes to these 4-byte stores
// and a quarter to counting: 1.6 ms for 67 million entries (H200).
//
// Tried without gain (58 million entries, lists of correlated inputs, 1.9 ms): 16 or 8 MB of entries at
// a time in the place of 32 (2.9, 3.7 ms); streaming loads of the lists and stores of the positions
// (2.1 ms).
//
// Config: kSelectBlock (l'), kSelectCount (n), kCounters (even), kThreads, kMinBlocks,
// kSharedBytes. A part has fewer than 2^16 tokens.
#pragma once
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/inverted_lists.cuh"
#include "params/attention.h"

// Loads the lists of kAhead tokens from `first` on as block numbers, or kNoEntryIndex, kNoToken.
// Element [i][j] is slot 32 j + lane of token first + i.
template <class Config, int kAhead, int kPerLane>
NSAI_DEVICE void load_numbers(int (&rNumber)[kAhead][kPerLane], TokenCursor<Config> &cursor,
                              const NsaiInvert &p, const int *gLists, int first, int end) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int slot = 32 * j + lane;
      rNumber[i][j] = first + i < end && slot < Config::kSelectCount
                          ? gLists[(first + i) * p.list_token_stride + slot]
                          : -1;
    }
  }
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    cursor.move(p.seq, min(first + i, end - 1));
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int number = cursor.first_block + rNumber[i][j];
      const bool seen = cursor.sees(rNumber[i][j], p.near) && number < p.blocks;
      rNumber[i][j] = seen ? number : cursor.exists ? kNoEntryIndex : kNoToken;
    }
  }
}

template <class Config> NSAI_DEVICE void invert_fill_part(const NsaiInvert &p) {
  constexpr int kWarps = Config::kThreads / 32;
  constexpr int kPerLane = ceil_div(Config::kSelectCount, 32);
  constexpr int kAhead = kPerLane == 1 ? 8 : 1;  // tokens whose lists are loaded together
  extern __shared__ __align__(16) int sStarts[]; // [kCounters]: begin of this part in each list
  u16 *sRanks = (u16 *)(sStarts + Config::kCounters); // [kWarps, kCounters]: entries so far
  static_assert((sizeof(int) + kWarps * sizeof(u16)) * Config::kCounters == Config::kSharedBytes,
                "the host computes another size of shared memory");
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int head = p.head_begin + blockIdx.x / p.parts, part = blockIdx.x % p.parts;
  const int first_number = blockIdx.y * Config::kCounters;
  const int numbers = min(Config::kCounters, p.blocks - first_number);
  const int each = ceil_div(p.part_tokens, kWarps); // tokens per warp
  const int part_begin = p.token_begin + part * p.part_tokens;
  const int part_end = min(part_begin + p.part_tokens, p.token_end);
  const int begin = min(part_begin + warp * each, part_end), end = min(begin + each, part_end);
  const int *gLists = p.lists + head * p.list_head_stride; // [T, n]
  const int *gCounts = p.counts + ((long long)head * p.parts + part) * p.blocks + first_number;
  const int *gStarts = p.starts + (long long)head * p.blocks + first_number; // [numbers]
  int *gEntryIndices = p.entry_indices + head * p.entry_capacity -
                       (long long)p.token_begin * Config::kSelectCount; // [tokens, n]
  unsigned *gEntries = p.entries + (long long)head * p.entry_capacity;  // [entry_capacity]

  u16 *sRank = sRanks + warp * Config::kCounters; // of this warp

  for (int b = lane; b < Config::kCounters / 2; b += 32) ((u32 *)sRank)[b] = 0;
  __syncwarp();
  TokenCursor<Config> cursor;
#pragma unroll 4
  for (int i = lane; i < (end - begin) * Config::kSelectCount; i += 32) {
    const int token = begin + i / Config::kSelectCount;
    const int block = gLists[token * p.list_token_stride + i % Config::kSelectCount];
    cursor.move(p.seq, token);
    const int number = cursor.first_block + block - first_number;
    // Two 16-bit counters per word.
    if (cursor.sees(block, p.near) && number >= 0 && number < numbers)
      atomicAdd((u32 *)sRank + number / 2, number % 2 ? 0x10000u : 1u);
  }
  __syncthreads();
  for (int b = threadIdx.x; b < numbers; b += Config::kThreads) {
    sStarts[b] = gStarts[b] + gCounts[b];
    int before = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      u16 *at = sRanks + w * Config::kCounters + b;
      const int count = *at;
      *at = (u16)before;
      before += count;
    }
  }
  __syncthreads();

  cursor = TokenCursor<Config>{};
  int rNumber[kAhead][kPerLane];
  for (int first = begin; first < end; first += kAhead) {
    load_numbers(rNumber, cursor, p, gLists, first, end);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        const int slot = 32 * j + lane, number = rNumber[i][j] - first_number;
        int at = rNumber[i][j];
        if (at >= 0) {
          if (number < 0 || number >= numbers) continue; // in another CTA's range of blocks
          at = sStarts[number] + sRank[number]++;
          gEntries[at] = make_entry(first + i - p.token_begin, slot);
        } else if (blockIdx.y > 0) {
          continue; // left to the first range
        }
        if (first + i < end && slot < Config::kSelectCount)
          gEntryIndices[(long long)(first + i) * Config::kSelectCount + slot] = at;
      }
      __syncwarp(); // before the next token updates the counters
    }
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    data_invert_fill(const __grid_constant__ NsaiInvert p) {
  begin_kernel();
  invert_fill_part<Config>(p);
}
