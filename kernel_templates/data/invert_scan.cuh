// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// data_invert_scan: computes where each part of each inverted list begins, and cuts the lists into
// chunks (`items`).
//
//   counts[h, part, b] -> sum of counts[h, earlier parts, b]
//   starts[h, b]        = sum of the lengths of the lists of blocks before b
//   item_starts[h, b]   = the same for their items, if wanted
//   items[h, ..]        : each list in runs of at most kRows entries, of about equal length and,
//                       except the last, a multiple of kTileRows; blocks ascending
//
// Grid: x = heads; one thread per block.
//
// Config: kSelectBlock (l'), kRows, kThreads (1024), kMinBlocks, kSharedBytes (0).
#pragma once
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/inverted_lists.cuh"
#include "params/attention.h"

constexpr int kTileRows = 64; // rows of an attention tile (attend/selected_kv_stationary_sm90.cuh)

struct Pair {
  int entries, items;
};

NSAI_DEVICE Pair operator+(Pair a, Pair b) {
  return Pair{ a.entries + b.entries, a.items + b.items };
}

NSAI_DEVICE Pair shuffle_up(Pair x, int delta) {
  return Pair{ __shfl_up_sync(~0u, x.entries, delta), __shfl_up_sync(~0u, x.items, delta) };
}

// Inclusive scan over the lanes of a warp.
NSAI_DEVICE Pair warp_scan(Pair x) {
#pragma unroll
  for (int delta = 1; delta < 32; delta *= 2) {
    Pair other = shuffle_up(x, delta);
    if ((int)(threadIdx.x & 31) >= delta) x = x + other;
  }
  return x;
}

// Inclusive scan over the CTA; *total: sum over all threads.
template <int kThreads> NSAI_DEVICE Pair block_scan(Pair x, Pair *total) {
  __shared__ Pair sWarps[kThreads / 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  x = warp_scan(x);
  __syncthreads(); // all threads have read sWarps of the previous call
  if (lane == 31) sWarps[warp] = x;
  __syncthreads();
  if (warp == 0) {
    Pair sum = lane < kThreads / 32 ? sWarps[lane] : Pair{ 0, 0 };
    sum = warp_scan(sum);
    if (lane < kThreads / 32) sWarps[lane] = sum;
  }
  __syncthreads();
  *total = sWarps[kThreads / 32 - 1];
  return warp ? x + sWarps[warp - 1] : x;
}

// Replaces the counts of block `b` by the sums before them; returns the length of its list.
NSAI_DEVICE int scan_parts(const NsaiInvert &p, int *gCounts, int b) {
  int length = 0;
  int part = 0;
  for (; part + 8 <= p.parts; part += 8) {
    int rCount[8]; // independent loads
#pragma unroll
    for (int i = 0; i < 8; ++i) rCount[i] = gCounts[(long long)(part + i) * p.blocks + b];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      gCounts[(long long)(part + i) * p.blocks + b] = length;
      length += rCount[i];
    }
  }
  for (; part < p.parts; ++part) {
    int *at = gCounts + (long long)part * p.blocks + b;
    int count = *at;
    *at = length;
    length += count;
  }
  return length;
}

// Writes the items of block `b`, whose list is [start, start + length).
template <class Config>
NSAI_DEVICE void write_items(const NsaiSequences &seqs, NsaiKvItem *gItems, int count, int b,
                             int start, int length) {
  if (!count) return;
  int s =
      seqs.cu_q
          ? find_sequence(seqs.num_seqs, b,
                          [&](int i) { return first_block_number<Config::kSelectBlock>(seqs, i); })
          : 0;
  const Sequence seq = load_sequence(seqs, s);
  // First key of the block within the sequence.
  const int first_key =
      (b - first_block_number<Config::kSelectBlock>(seqs, s)) * Config::kSelectBlock;
  NsaiKvItem item = {};
  item.kv_row = seq.kv_begin + first_key;
  item.keys = min(Config::kSelectBlock, seq.kv_len - first_key);
  item.shift = seq.position(-seq.q_begin) - first_key;
  const int tiles = ceil_div(length, kTileRows), each = ceil_div(tiles, count) * kTileRows;
  for (int i = 0; i < count; ++i) {
    item.begin = start + min(i * each, length);
    item.count = max(min(each, length - i * each), 0);
    gItems[i] = item;
  }
}

template <class Config> NSAI_DEVICE void invert_scan_head(const NsaiInvert &p) {
  const int head = blockIdx.x;
  int *gCounts = p.counts + (long long)head * p.parts * p.blocks;   // [parts, blocks]
  int *gStarts = p.starts + (long long)head * p.blocks;             // [blocks]
  NsaiKvItem *gItems = p.items + (long long)head * p.item_capacity; // [item_capacity]
  Pair before = { 0, 0 };                                           // sums of earlier rounds
  for (int first = 0; first < p.blocks; first += Config::kThreads) {
    const int b = first + threadIdx.x;
    const int length = b < p.blocks ? scan_parts(p, gCounts, b) : 0;
    const Pair mine = { length, ceil_div(length, Config::kRows) };
    Pair total;
    const Pair upto = before + block_scan<Config::kThreads>(mine, &total);
    if (b < p.blocks) {
      gStarts[b] = upto.entries - mine.entries;
      if (p.item_starts) p.item_starts[(long long)head * p.blocks + b] = upto.items - mine.items;
      write_items<Config>(p.seq, gItems + upto.items - mine.items, mine.items, b,
                          upto.entries - mine.entries, length);
    }
    before = before + total;
  }
  if (threadIdx.x == 0) p.item_counts[head] = before.items;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    data_invert_scan(const __grid_constant__ NsaiInvert p) {
  begin_kernel();
  invert_scan_head<Config>(p);
}
