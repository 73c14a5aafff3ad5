// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The choice of attend_compressed_topn_sm90 for groups of one head. A row's order of blocks does not
// change under the factor 2^(reference - LSE), so nothing waits for the LSE, and no importance goes
// through memory: the consumers compare pooled values as they arise and list those that may be among
// the n_free best.
//
//   bar      a value that kFree candidates of the row have reached so far, of the greatest ones of 16
//            groups of blocks: what is below is not among the kFree <= 16 best
//   entry    two adjacent blocks, of which one reaches the bar, with the reference of their row at
//            that time
//   lists    each lane of a row's quad appends to a list of its own, so that lanes need not agree
//            on places. Two copies: the selectors read one query tile's while the consumers write the
//            next one's
//
// A selector chooses for 32 rows at once, one a lane, with the best orders in registers: 128 lists of a
// tile by one warp each would take longer than the tile.
//
// Scratch of a CTA, where N is the number of 128-key tiles of the longest sequence (276 MB for 132 CTAs
// at 64k tokens):
//
//   RowEntry [2][4 N][4 lanes][128 rows]
//
// Measured on an H200, 64 heads, D 128, correlated inputs, in brackets the unfused kernels: 8k 0.58 ms
// (1.16), 64k 12.9 ms (37.1), 128k 43.5 ms (163). At 64k without the choice 10.4 ms, without lists
// 10.0 ms. The selectors' time counts: 30.5 ms with the least of 16 groups as the bar and every entry
// inserted into the best, 23.9 ms with the present bar, 12.9 ms with those above the last bar alone.
//
// Tried without gain: listing by the bar of the tile before, so that blocks are listed during the
// shuffles (64k +0.5 ms).
#pragma once
#include "attend/topn_pool.cuh"

struct __align__(16) RowEntry {
  float pooled[2]; // of two adjacent blocks; negative: not a candidate
  int block;       // the first
  float reference; // of the row when they were pooled
};

constexpr int kRowLanes = 4;               // lanes of a row
constexpr int kRowGroups = 4;              // groups of blocks of a lane
constexpr int kRowPitch = kRowLanes * 128; // entries from one of a lane to its next
constexpr float kNoCandidate = -1.0f;

// Scaled from one reference to another, a value may be off by some ulp each time.
constexpr float kBelowBar = 1 - 1.0f / 65536;

// The entries of query tile `number` of this CTA.
template <class C> NSAI_DEVICE RowEntry *row_entries(const NsaiCompressedTopn &p, int number) {
  const long long half = p.scratch_bytes / 2;
  return (RowEntry *)((u8 *)p.scratch + blockIdx.x * p.scratch_bytes + number % 2 * half);
}

// The bar of a row, given the greatest of each group of this lane's candidates. Where 13 blocks are
// enough, three lanes leave their least group out: the others reach both the greatest of the lanes'
// least ones, and the least of the lanes' second ones.
template <int kFree> NSAI_DEVICE float row_bar(const float4 &greatest) {
  const float low0 = fminf(greatest.x, greatest.y), low1 = fminf(greatest.z, greatest.w);
  float bar = fminf(low0, low1);
  if constexpr (kFree > 13) {
#pragma unroll
    for (int delta = 1; delta < kRowLanes; delta *= 2)
      bar = fminf(bar, __shfl_xor_sync(~0u, bar, delta));
    return bar;
  }
  float second =
      fminf(fmaxf(low0, low1), fminf(fmaxf(greatest.x, greatest.y), fmaxf(greatest.z, greatest.w)));
#pragma unroll
  for (int delta = 1; delta < kRowLanes; delta *= 2) {
    bar = fmaxf(bar, __shfl_xor_sync(~0u, bar, delta));
    second = fminf(second, __shfl_xor_sync(~0u, second, delta));
  }
  return fminf(bar, second);
}

// What a consumer lane knows of the lists of its two rows. Groups of more heads have none.
template <class C, bool = kSingleHead<C>> struct RowLists {};

template <class C> struct RowLists<C, true> {
  RowEntry *next[2]; // where the next entry goes
  float4 *values;    // the greatest of each group, [2][256]

  // The greatest of each group of this lane's candidates of row r.
  NSAI_DEVICE float4 &greatest(int r) const {
    return values[r * 256 + recomputed(threadIdx.x) - 128];
  }

  // Waits until the lists of the query tile before the previous one have been read.
  template <class Storage>
  NSAI_DEVICE void begin(const NsaiCompressedTopn &p, Storage &storage, u32 read, int number,
                         int warp, int lane) {
    values = storage.greatest;
    while (published(read) < number - 1) {}
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      next[r] = row_entries<C>(p, number) + lane % 4 * 128 + warp * 16 + r * 8 + lane / 4;
      greatest(r) = make_float4(0, 0, 0, 0);
    }
  }
  NSAI_DEVICE void scale(const float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float4 x = greatest(r);
      greatest(r) = make_float4(x.x * factor[r], x.y * factor[r], x.z * factor[r], x.w * factor[r]);
    }
  }
  // Hands the lists to the selector.
  template <class Storage>
  NSAI_DEVICE void share(const NsaiCompressedTopn &p, Storage &storage, const SoftmaxRows &rows,
                         int number, int warp, int lane) {
    auto &lists = storage.lists[number % 2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp * 16 + r * 8 + lane / 4;
      lists.counts[lane % 4][row] =
          (int)(next[r] - (row_entries<C>(p, number) + lane % 4 * 128 + row)) / kRowPitch;
      const float bar = row_bar<Topn<C>::kFree>(greatest(r));
      if (lane % 4 == 0) {
        lists.references[row] = rows.reference[r];
        lists.bars[row] = bar * kBelowBar;
      }
    }
    __syncwarp(); // the lists are written
    if (lane == 0)
      barrier_arrive(
          shared_address(&storage.scored[number % 2][warp / KernelTraits<C>::kSharingWarps]));
  }
};

// Lists the blocks of row r and key tile i that may be among the best.
template <class C>
NSAI_DEVICE void list_blocks(RowLists<C> &lists, float (&sums)[KernelTraits<C>::kLaneBlocks], int r,
                             float reference, const FlashTile &tile, int i) {
  using P = KernelTraits<C>;
  constexpr int kPairs = P::kLaneBlocks / 2;
  static_assert(kPairs == kRowGroups, "a pair of every key tile in each group");
  const int first = i * P::kTileBlocks + recomputed(threadIdx.x) % 4 * P::kLaneBlocks;
  if (i * P::kTileBlocks < C::kSelectInit ||
      (i + 1) * P::kTileBlocks > candidate_count<C>(tile.position) - C::kSelectLocal) {
    const int thread = recomputed(threadIdx.x);
    const int row = thread / 32 * 16 - 64 + r * 8 + thread % 32 / 4;
    const int end = // behind the last candidate that is not forced
        candidate_count<C>(tile.position + min(row, tile.tokens - 1)) - C::kSelectLocal;
#pragma unroll
    for (int b = 0; b < P::kLaneBlocks; ++b)
      if (first + b < C::kSelectInit || first + b >= end) sums[b] = kNoCandidate;
  }
  float pair[kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    pair[j] = fmaxf(sums[2 * j], sums[2 * j + 1]);
  }
  float4 greatest = lists.greatest(r);
  greatest = make_float4(fmaxf(greatest.x, pair[0]), fmaxf(greatest.y, pair[1]),
                         fmaxf(greatest.z, pair[2]), fmaxf(greatest.w, pair[3]));
  lists.greatest(r) = greatest;
  const float bar = row_bar<Topn<C>::kFree>(greatest);
#pragma unroll
  for (int j = 0; j < kPairs; ++j)
    if (!(pair[j] < bar)) { // NaN is listed
      *(float4 *)lists.next[r] =
          make_float4(sums[2 * j], sums[2 * j + 1], __int_as_float(first + 2 * j), reference);
      lists.next[r] += kRowPitch;
    }
}

// Entry k of each list of a row, k counted from 0; behind a list's end one without candidates.
NSAI_DEVICE void load_entries(float4 (&entry)[kRowLanes], const RowEntry *lists,
                              const int (&counts)[kRowLanes], int k) {
#pragma unroll
  for (int i = 0; i < kRowLanes; ++i) {
    entry[i] = make_float4(kNoCandidate, kNoCandidate, 0, 0);
    if (k >= 0 && k < counts[i]) entry[i] = *(const float4 *)(lists + k * kRowPitch + i * 128);
  }
}

// Where key s of a row lies once those that reach the row's bar have been gathered: two take the place
// of an entry.
NSAI_DEVICE u64 *gathered_key(RowEntry *lists, int s) {
  return (u64 *)(lists + s / 2 * 128) + s % 2;
}

// Writes the keys of the candidates that reach `bar` over the row's lists, and returns their number.
NSAI_DEVICE int gather_keys(RowEntry *lists, const int (&counts)[kRowLanes], float reference,
                            float bar) {
  const int most = max(max(counts[0], counts[1]), max(counts[2], counts[3]));
  int kept = 0;
  float4 ahead[kRowLanes];
  load_entries(ahead, lists, counts, 0);
#pragma unroll 1
  for (int k = 0; k < most; ++k) { // what it writes lies in entries that it has read
    float4 entry[kRowLanes];
#pragma unroll
    for (int i = 0; i < kRowLanes; ++i) entry[i] = ahead[i];
    load_entries(ahead, lists, counts, k + 1);
#pragma unroll
    for (int i = 0; i < kRowLanes; ++i) {
      const float scale = exp2_approx(entry[i].w - reference);
      const int block = __float_as_int(entry[i].z);
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        const float x = b ? entry[i].y : entry[i].x;
        if (x < 0 || x * scale < bar) continue; // NaN is kept
        *gathered_key(lists, kept) = key_of(order_of(x * scale), block + b);
        ++kept;
      }
    }
  }
  return kept;
}

// Calls take(key) for the gathered keys, and for some that are 0.
template <class Take> NSAI_DEVICE void for_each_gathered(RowEntry *lists, int kept, Take take) {
  constexpr int kAhead = 4;
  u64 next[kAhead];
  auto load = [&](int s) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) next[i] = s + i < kept ? *gathered_key(lists, s + i) : 0;
  };
  load(0);
#pragma unroll 1
  for (int s = 0; s < kept; s += kAhead) {
    u64 key[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) key[i] = next[i];
    load(s + kAhead);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) take(key[i]);
  }
}

// Writes the kFree best blocks of a row to gOut, ascending, equal ones by lower index. `chosen`:
// kFree numbers in shared memory, 128 apart, of this lane alone.
template <int kFree>
NSAI_DEVICE void choose_listed(int *gOut, RowEntry *lists, const int (&counts)[kRowLanes],
                               float reference, float bar, int *chosen, int first_free) {
  const int kept = gather_keys(lists, counts, reference, bar);
  u32 best[kFree] = {}; // orders, in descending order
  for_each_gathered(lists, kept, [&](u64 key) {
    u32 order = order_in(key);
#pragma unroll
    for (int i = 0; i < kFree; ++i) {
      const u32 high = max(best[i], order);
      order = min(best[i], order);
      best[i] = high;
    }
  });
  // Those above the last of the best, and as many equal to it as there is room for. The lower
  // numbers are kept: equal ones count as behind all others.
  constexpr int kEqual = 1 << 30;
  const u32 least = max(best[kFree - 1], 1u);
  int found = 0;
  for_each_gathered(lists, kept, [&](u64 key) {
    const u32 order = order_in(key);
    if (order < least) return;
    const int number = (int)index_in(key) | (order == least ? kEqual : 0);
    if (found < kFree) {
      chosen[128 * found++] = number;
      return;
    }
    int last = 0;
    for (int i = 1; i < kFree; ++i)
      if (chosen[128 * i] > chosen[128 * last]) last = i;
    if (number < chosen[128 * last]) chosen[128 * last] = number;
  });
  // Only scores that are infinite or NaN leave too few: any blocks will do.
  const bool short_of = found < kFree;
  int list[kFree];
#pragma unroll
  for (int i = 0; i < kFree; ++i) list[i] = short_of ? first_free + i : chosen[128 * i] & ~kEqual;
#pragma unroll
  for (int round = 0; round < kFree; ++round)
#pragma unroll
    for (int i = round % 2; i + 1 < kFree; i += 2) {
      const int low = min(list[i], list[i + 1]), high = max(list[i], list[i + 1]);
      list[i] = low, list[i + 1] = high;
    }
#pragma unroll
  for (int i = 0; i < kFree; ++i) gOut[i] = list[i];
}

// A selector's warp: rows 32 * selector to 32 * selector + 31 of every query tile.
template <class C>
NSAI_DEVICE void select_rows(const TopnParams<C> &params,
                             typename KernelTraits<C>::TopnStorage &storage, int selector) {
  const NsaiCompressedTopn &p = packed_of(params);
  constexpr int kFree = Topn<C>::kFree;
  const int lane = threadIdx.x % 32, row = selector * 32 + lane;
  if (!p.idx) return;
  int searched = 0; // query tiles

  for_each<C>(params, [&](const FlashTile &tile) {
    const bool searching = searches<C>(p, tile);
    const int copy = searched % 2;
    if (searching) barrier_wait(shared_address(&storage.scored[copy][selector]), searched / 2 % 2);
    if (row < tile.tokens) {
      int *gOut = p.idx + (tile.first_token + row) * p.idx_token_stride +
                  tile.group * p.idx_head_stride; // [n]
      const int candidates = candidate_count<C>(tile.position + row);
      if (candidates <= C::kSelectCount) {
        for (int i = 0; i < C::kSelectCount; ++i) gOut[i] = i < candidates ? i : -1;
      } else {
        for (int i = 0; i < C::kSelectInit; ++i) gOut[i] = i;
        for (int i = 0; i < C::kSelectLocal; ++i)
          gOut[C::kSelectInit + kFree + i] = candidates - C::kSelectLocal + i;
        const auto &lists = storage.lists[copy];
        int counts[kRowLanes];
#pragma unroll
        for (int i = 0; i < kRowLanes; ++i) counts[i] = lists.counts[i][row];
        choose_listed<kFree>(gOut + C::kSelectInit, row_entries<C>(p, searched) + row, counts,
                             lists.references[row], lists.bars[row], &storage.chosen[0][row],
                             C::kSelectInit);
      }
    }
    if (!searching) return;
    ++searched;
    __syncwarp(); // the warp has read the lists
    if (lane == 0) publish(shared_address(&storage.read[selector]), searched);
  });
}
