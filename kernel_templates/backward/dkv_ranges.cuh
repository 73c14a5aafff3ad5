// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_dkv_ranges: dK and dV of the selected branch for a caller's token ranges. A key is seen
// by the tokens that have a range over it.
//
//   q [T, Hq, Dk], d_o [T, Hq, Dv], RowStatistics [3, T, Hq], k, v [rows, Hkv, D], lists
//   [T, Hkv, n, 2] from data_sort_ranges -> partial [heads, splits, rows, Dk + Dv], read by
//   backward_dkv_sum
//
// A range may be as long as the sequence, so inverted lists of tokens, as for blocks
// (data/invert_fill.cuh), would grow with T * S. Instead, each key tile searches the lists of all
// tokens from its first key on, a few thousand at a time, and takes those that see it. The ranges
// of a list are disjoint: a token with several ranges in the tile becomes one row per range, and
// the rows' contributions add up. The first key tiles have the most tokens, so the tokens of a tile
// are cut into `splits` ranges of equal length; backward_dkv_sum adds their sums in order.
//
// Grid: x = heads * splits * tiles, in this order, tiles as in backward_dkv_window; y = 1 + kSplit.
// Main loop, shared memory and Config: backward/dkv_mainloop.cuh; also kSelectCount (n). kEntries
// counts words: two per row and one per warp.
#pragma once
#include "backward/dkv_mainloop.cuh"

// Tokens with a range over the tile's keys, in ascending order, as many at a time as fit into
// shared memory.
template <class Config> struct RangesRows {
  static constexpr int kBranch = NSAI_BRANCH_SELECTED;
  static constexpr int kRoom = (Config::kEntries - Config::kWarps) / 2;
  // Ranges of a list do not touch, so a tile overlaps at most one range per two keys.
  static constexpr int kMost =
      Config::kSelectCount < Config::kKeys / 2 ? Config::kSelectCount : Config::kKeys / 2;
  // Tokens per round: one per thread, if their ranges fit.
  static constexpr int kRound = Config::kThreads < kRoom / kMost ? Config::kThreads : kRoom / kMost;
  static_assert(kRound >= 1, "shared memory must have room for one token's ranges");

  const int *gLists; // of this head: [T, n, 2], ascending, then -1
  long long list_stride;
  u32 *sTokens, *sSeen; // [kRoom] each
  int *sCounts;         // [kWarps]
  Sequence seq;
  int first_key, keys;       // of the tile; first_key within the sequence
  int next_query, end_query; // queries not yet searched

  NSAI_DEVICE int token(int i) const { return (int)sTokens[i]; }
  NSAI_DEVICE u32 seen(int i) const { return sSeen[i]; }

  // Index of the list's first range that ends behind the tile's first key; kSelectCount if there is
  // none.
  NSAI_DEVICE int first_range(const int *gList) const {
    int low = 0, high = Config::kSelectCount;
    while (low < high) {
      const int mid = (low + high) / 2;
      if (gList[2 * mid] >= 0 && gList[2 * mid + 1] <= first_key)
        low = mid + 1;
      else
        high = mid;
    }
    return low;
  }

  // Whether range i of the list begins before the end of the tile.
  NSAI_DEVICE bool meets(const int *gList, int i) const {
    return i < Config::kSelectCount && gList[2 * i] >= 0 && gList[2 * i] < first_key + keys;
  }

  // Sum over all threads before this one; *total: over all threads.
  NSAI_DEVICE int sum_before(int count, int *total) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int upto = count;
#pragma unroll
    for (int delta = 1; delta < 32; delta *= 2) {
      const int other = __shfl_up_sync(~0u, upto, delta);
      if (lane >= delta) upto += other;
    }
    if (lane == 31) sCounts[warp] = upto;
    __syncthreads();
    int before = upto - count, sum = 0;
#pragma unroll
    for (int w = 0; w < Config::kWarps; ++w) {
      if (w < warp) before += sCounts[w];
      sum += sCounts[w];
    }
    *total = sum;
    __syncthreads(); // all threads have read sCounts
    return before;
  }

  // Finds the next rows; returns false if there are none. No thread may still be reading the
  // previous rows.
  NSAI_DEVICE bool next(int &count) {
    count = 0;
    while (next_query < end_query) {
      const int query = next_query + threadIdx.x, row = seq.q_begin + query;
      const int *gList = gLists + row * list_stride; // [n, 2]
      int begin = 0, number = 0;
      if (threadIdx.x < kRound && query < end_query) {
        begin = first_range(gList);
        while (meets(gList, begin + number)) ++number;
      }
      int total;
      const int at = count + sum_before(number, &total);
      if (count + total > kRoom) break; // uniform over the CTA: this round is repeated later
      for (int i = 0; i < number; ++i) {
        const int *range = gList + 2 * (begin + i);
        sTokens[at + i] = (u32)row;
        sSeen[at + i] = pack_seen(range[0] - first_key, range[1] - first_key, keys);
      }
      count += total;
      next_query += kRound;
    }
    __syncthreads(); // the rows are written
    return count > 0;
  }
};

template <class Config> NSAI_DEVICE void ranges_keys(const NsaiBackwardKv &p) {
  using F = DkvTraits<Config>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const int number = blockIdx.x % p.tiles, split = blockIdx.x / p.tiles % p.splits,
            head = blockIdx.x / p.tiles / p.splits;
  const KeyTileAt at = find_key_tile<Config::kKeys>(p.seq, number);
  RangesRows<Config> rows;
  KeyTile tile;
  rows.seq = at.seq;
  rows.first_key = at.first_key;
  tile.keys = rows.keys = min(Config::kKeys, at.seq.kv_len - at.first_key);
  if (tile.keys <= 0 || at.first_key < 0) return;
  // Query i stands at position(i); queries before the tile's first key see none of its keys.
  const int begin = max(at.first_key - at.seq.position(0), 0);
  const long long count = max(at.seq.q_len - begin, 0);
  rows.next_query = begin + (int)(count * split / p.splits);
  rows.end_query = begin + (int)(count * (split + 1) / p.splits);
  rows.gLists = p.lists + (p.head_begin + head) * p.list_head_stride;
  rows.list_stride = p.list_token_stride;
  rows.sTokens = (u32 *)(shared_bytes + F::kSEntries);
  rows.sSeen = rows.sTokens + RangesRows<Config>::kRoom;
  rows.sCounts = (int *)(rows.sSeen + RangesRows<Config>::kRoom);
  tile.head = p.head_begin + head;
  tile.key_row = at.seq.kv_begin + at.first_key;
  tile.partial =
      p.partial + (((long long)head * p.splits + split) * p.rows + tile.key_row) * F::kWidth;
  rows.next(tile.tokens);
  attend_keys<Config>(p, tile, rows, shared_address(shared_bytes));
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dkv_ranges(const __grid_constant__ NsaiBackwardKv p) {
  begin_kernel();
  ranges_keys<Config>(p);
}
