// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_window_combine_sm90: the window branch, and beside its products the sums of the selected
// branch's partial results (sm_90a).
//
//   O_win[t, h] = sum over keys t - w < p <= t of softmax_p(scale q[t, h] . k[p, g]) v[p, g]
//   O_sel[t, h] = sum over slots i of 2^(lse[i] - LSE) partial[h, t, i], attend/combine_slots.cuh
//
// The window is bound by the tensor cores, the sums by reading `partial`, n * Dv * 2 bytes of a row
// (head, token): one kernel after the other leaves first the memory idle and then the tensor cores.
// Here warps of one CTA do both for the same tile of queries:
//
//   producers  warpgroup 0      warp 0: TMA loads of Q, K, V as in attend/mainloop_sm90.cuh
//                               warp 1: bulk copies of the rows' partial results into a ring
//   consumers  warpgroups 1, 2  the window, as in attend/mainloop_sm90.cuh
//   combiners  warpgroups 3, 4  a warp takes every eighth row: O_sel, added to the partial sum
//
// O_sel comes before O_win in the sum of the branches: the consumers wait for the combiners' part of
// a tile before they store theirs. So the ring is read from the kernel's beginning to its end, and
// only the last window waits for nothing else. Combiners are at most two tiles ahead.
//
// Measured on an H200: 64k tokens, 64 heads, D 128, n 16, correlated inputs, 16 launches by the
// profiler; in brackets attend_selected_combine + attend_window_sm90: G 1 7.5 ms (6.0 + 3.0), G 2
// 7.8 ms (6.1 + 2.6). Whole forwards before and after: G 1 64k 32.4 and 30.9 ms (31.2 on average
// over the shapes below), 16k 6.1 and 5.7; G 2 64k 36.6 and 36.1, 16k 5.8 and 5.6. Bound by memory,
// as it seems: 21.5 GB at G 1, and no shape changes the time.
//
// Tried without gain (64k, G 1 and 2): a ring of 24 rows with one stage of Q (7.5, 7.9 ms) or with
// 64 keys (7.4, 7.8); of 32 rows with both (7.7, 8.0); partial results of 2 GiB at a time (7.4, 7.6).
// Bulk copies with evict_first, a single call of combine() and consumers as a struct, in one step:
// 8.1, 7.7. On top of that the two local blocks attended by the consumers, all at once, and left out
// of the lists, 15 slots in the place of 16: attend_selected_kv_stationary_sm90 took 7.8 ms for 8.4,
// but this kernel 9.2 and 8.4, since the consumers then set the pace (whole 32.2, 36.1 ms).
//
// A run may lack either branch; its warps then exit at once.
//
// Grid: persistent, tiles as in attend/mainloop_sm90.cuh, of the query heads of `combine`. Their
// tokens are one chunk.
//
// Config: the main loop's with kRows 128 and kThreads 640; kWindow, kSelectCount (n), kRing: rows in
// the ring.
#pragma once
#include "attend/combine_slots.cuh"
#include "attend/mainloop_sm90.cuh"

template <class C> struct KernelTraits {
  static constexpr int kCombiners = 8;                                 // warps
  static constexpr int kSums = 2;                                      // tiles between the roles
  static constexpr int kRowBytes = C::kSelectCount * C::kHeadDimV * 2; // partial results of a row
  // The launch gives 640 threads 96 registers each; the warpgroups redistribute them.
  static constexpr int kProducerRegisters = 32;
  static constexpr int kConsumerRegisters = 160;
  static constexpr int kCombinerRegisters = 64;

  struct __align__(16) RingStorage {
    unsigned char rows[C::kRing][kRowBytes];
    u64 rows_full[C::kRing], rows_empty[C::kRing];
    u64 sums_full[kSums], sums_empty[kSums]; // of a tile: combiners to consumers, and back
  };

  static_assert(C::kThreads == 640 && C::kRows == 128,
                "a producer warpgroup, two of consumers and two of combiners");
  static_assert(kRowBytes % 16 == 0, "bulk copies take 16 bytes");
};

// Configuration of the main loop, which does not know about the combiners.
template <class C> struct WindowConfig : C {
  static constexpr int kThreads = 384;
  static constexpr int kSharedBytes =
      C::kSharedBytes - (int)sizeof(typename KernelTraits<C>::RingStorage);
};

template <class C> struct SharedStorage {
  typename Flash<WindowConfig<C>>::Shared window;
  typename KernelTraits<C>::RingStorage ring;
};

// Calls take(tile) for every tile of this CTA, with the KV head counted from the tensors' first.
template <class C, class Take>
NSAI_DEVICE void for_each_query_tile(const NsaiWindowCombine &p, Take take) {
  for_each_tile<WindowConfig<C>, WindowKeys<C>>(p.window, p.window.attend.seq, [&](FlashTile tile) {
    tile.group += p.combine.head_begin / C::kGroup;
    take(tile);
  });
}

// Number of rows (head, token) of a tile; the token of row i is i / kGroup, its head i % kGroup.
template <class C> NSAI_DEVICE int row_count(const FlashTile &tile) {
  return tile.tokens * C::kGroup;
}

template <class C> NSAI_DEVICE OutputRow row_of(const FlashTile &tile, int i) {
  return OutputRow{ tile.first_token + i / C::kGroup, tile.group * C::kGroup + i % C::kGroup,
                    true };
}

// ---- producers

template <class C>
NSAI_DEVICE void produce_window(const NsaiWindowCombine &p,
                                typename Flash<WindowConfig<C>>::Shared &shared) {
  using W = WindowConfig<C>;
  using F = Flash<W>;
  const bool asks = threadIdx.x % 32 == 0;
  PipelineState<C::kQueryStages> queries;
  PipelineState<C::kStages> keys;
  for_each_query_tile<C>(p, [&](const FlashTile &tile) {
    const u32 q_full = shared_address(&shared.q_full[queries.stage]);
    barrier_wait(shared_address(&shared.q_empty[queries.stage]), queries.phase ^ 1);
    if (asks) {
      shared.tile[queries.stage] = tile;
      if (tile.begin < tile.end) {
        barrier_arrive_expecting(q_full, sizeof shared.q[0]);
#pragma unroll
        for (int w = 0; w < F::kConsumers; ++w)
          tma_load_panels<C::kHeadDimQk>(shared_address(shared.q[queries.stage][w]), p.window.q,
                                         q_full, 64, tile.group * C::kGroup,
                                         tile.first_token + w * F::kBoxTokens);
      } else {
        barrier_arrive(q_full);
      }
    }
    queries.advance();
    produce_keys<W, WindowKeys<C>>(p.window, tile, shared, keys);
  });
  barrier_wait(shared_address(&shared.q_empty[queries.stage]), queries.phase ^ 1);
  if (asks) {
    shared.tile[queries.stage].tokens = 0;
    barrier_arrive(shared_address(&shared.q_full[queries.stage]));
  }
}

template <class C>
NSAI_DEVICE void produce_rows(const NsaiWindowCombine &p,
                              typename KernelTraits<C>::RingStorage &ring) {
  constexpr int kRowBytes = KernelTraits<C>::kRowBytes;
  PipelineState<C::kRing> at;
  wait_for_kernel_before(); // it writes the partial results
  for_each_query_tile<C>(p, [&](const FlashTile &tile) {
    for (int i = 0; i < row_count<C>(tile); ++i, at.advance()) {
      const OutputRow row = row_of<C>(tile, i);
      const long long number =
          (long long)(row.head - p.combine.head_begin) * p.combine.chunk_tokens + row.token -
          p.combine.token_begin; // of `partial`
      barrier_wait(shared_address(&ring.rows_empty[at.stage]), at.phase ^ 1);
      if (threadIdx.x % 32 == 0) {
        const u32 full = shared_address(&ring.rows_full[at.stage]);
        barrier_arrive_expecting(full, kRowBytes);
        bulk_load(shared_address(ring.rows[at.stage]),
                  (const u8 *)p.combine.partial + number * kRowBytes, full, kRowBytes);
      }
      __syncwarp();
    }
  });
}

// ---- combiners

// Adds the slots of a row, which lie at sRow [n, Dv], times their weights. Slots whose bit in `seen`
// is 0 hold nothing.
template <class C>
NSAI_DEVICE void add_slots(float4 (&x)[Slots<C>::kJ], u32 sRow,
                           const float (&rWeight)[Slots<C>::kPerLane],
                           const u32 (&seen)[Slots<C>::kPerLane]) {
  using S = Slots<C>;
  constexpr int kAhead = S::kAhead < 8 ? S::kAhead : 8;
#pragma unroll
  for (int j = 0; j < S::kPerLane; ++j) {
#pragma unroll
    for (int first = 0; first < S::kCount - 32 * j && first < 32; first += kAhead) {
      uint2 rPartial[kAhead][S::kJ]; // the lane's columns
      load_slots<C>(rPartial, 32 * j + first, seen[j] >> first, [&](int slot, int column) {
        return load_shared_pair(sRow + 2 * (slot * C::kHeadDimV + row_column(column)));
      });
#pragma unroll
      for (int i = 0; i < kAhead; ++i) // slots from n on have weight 0
        add_slot<C>(x, rPartial[i], __shfl_sync(~0u, rWeight[j], (first + i) % 32));
    }
  }
}

// What a combiner has of rows before their turn, so that it waits for none of it: of the next row all,
// of the one after it the entry indices, which say where its LSEs lie.
template <class C> struct RowsAhead {
  using S = Slots<C>;
  OutputRow next = { -1, 0, false }, after = { -1, 0, false };
  int entry_index[S::kPerLane], after_index[S::kPerLane];
  float lse[S::kPerLane];
  RowSum<S::kJ> sum;

  static NSAI_DEVICE bool is(const OutputRow &a, const OutputRow &b) {
    return a.token == b.token && a.head == b.head;
  }
  static NSAI_DEVICE void load_indices(int (&rEntryIndex)[S::kPerLane], const NsaiCombine &p,
                                       const OutputRow &row) {
    const int list_head = p.shared_lists ? 0 : row.head / C::kGroup;
    load_entry_indices<C>(rEntryIndex,
                          p.entry_indices + list_head * p.entry_capacity +
                              (long long)(row.token - p.token_begin) * C::kSelectCount);
  }
  NSAI_DEVICE void load(const NsaiCombine &p, const OutputRow &row) {
    if (!is(after, row)) load_after(p, row);
    next = row;
#pragma unroll
    for (int j = 0; j < S::kPerLane; ++j) entry_index[j] = after_index[j];
    load_slot_lses<C>(lse, entry_index,
                      p.partial_lse + (row.head - p.head_begin) * p.entry_capacity);
    load_row_sum<C>(sum, p.out, p.kv_heads, row);
  }
  NSAI_DEVICE void load_after(const NsaiCombine &p, const OutputRow &row) {
    after = row;
    load_indices(after_index, p, row);
  }
};

// One combiner warp.
template <class C> struct Combiner {
  using T = KernelTraits<C>;
  using S = Slots<C>;
  static constexpr int kStep = T::kCombiners;
  const NsaiWindowCombine &params;
  typename T::RingStorage &ring;
  int i;                      // this warp's next row of the tile
  PipelineState<C::kRing> at; // its place
  PipelineState<T::kSums> sums;
  RowsAhead<C> ahead;

  NSAI_DEVICE Combiner(const NsaiWindowCombine &p, typename T::RingStorage &storage, int number)
      : params(p), ring(storage), i(number) {
    at.advance(number);
  }

  // Combines the warp's rows of a tile. The next tile says which rows follow; where it is too short,
  // the rows ahead are guessed wrongly, and loaded in their turn.
  NSAI_DEVICE void combine(const FlashTile &tile, const FlashTile &next) {
    const NsaiCombine &p = params.combine;
    const bool arrives = threadIdx.x % 32 == 0;
    const int rows = row_count<C>(tile);
    auto row_ahead = [&](int k) {
      return k < rows ? row_of<C>(tile, k) : row_of<C>(next, min(k - rows, row_count<C>(next) - 1));
    };
    if (params.runs_window)
      barrier_wait(shared_address(&ring.sums_empty[sums.stage]), sums.phase ^ 1);
#pragma unroll 1
    for (; i < rows; i += kStep, at.advance(kStep)) {
      const OutputRow row = row_of<C>(tile, i);
      if (!ahead.is(ahead.next, row)) ahead.load(p, row);
      u32 seen[S::kPerLane];
      float rWeight[S::kPerLane];
      const RowSum<S::kJ> sum = ahead.sum;
#pragma unroll
      for (int j = 0; j < S::kPerLane; ++j) {
        seen[j] = __ballot_sync(~0u, ahead.entry_index[j] >= 0);
        rWeight[j] = ahead.lse[j];
      }
      ahead.load(p, row_ahead(i + kStep));
      ahead.load_after(p, row_ahead(i + 2 * kStep));
      const RowTotal total = weigh_slots(rWeight);

      float4 x[S::kJ]; // O: the lane's columns
#pragma unroll
      for (int j = 0; j < S::kJ; ++j) x[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      barrier_wait(shared_address(&ring.rows_full[at.stage]), at.phase);
      add_slots<C>(x, shared_address(ring.rows[at.stage]), rWeight, seen);
      // Each lane for its own reads: racecheck does not see that __syncwarp() orders those of the others,
      // for which ptxas needs no instruction. As fast as one arrival (H200, 64k, G 1).
      barrier_arrive(shared_address(&ring.rows_empty[at.stage]));
      store_row_output<C>(p.out, p.kv_heads, row, total.reference, total.sum, x, sum);
    }
    i -= rows;
    if (!params.runs_window) return;
    __syncwarp(); // the warp's rows are stored
    if (arrives) barrier_arrive(shared_address(&ring.sums_full[sums.stage]));
    sums.advance();
  }
};

template <class C>
NSAI_DEVICE void combine_rows(const NsaiWindowCombine &p,
                              typename KernelTraits<C>::RingStorage &ring, int number) {
  Combiner<C> combiner(p, ring, number);
  FlashTile before;
  before.tokens = 0;
  wait_for_kernel_before(); // it writes the partial results
  for_each_query_tile<C>(p, [&](const FlashTile &tile) {
    if (before.tokens) combiner.combine(before, tile);
    before = tile;
  });
  if (before.tokens) combiner.combine(before, before);
}

// ---- consumers

template <class C>
NSAI_DEVICE void consume_window(const NsaiWindowCombine &params, SharedStorage<C> &all,
                                int consumer) {
  using W = WindowConfig<C>;
  using F = Flash<W>;
  const NsaiAttend &p = params.window.attend;
  typename F::Shared &shared = all.window;
  typename KernelTraits<C>::RingStorage &ring = all.ring;
  const int warp_row = consumer * 64 + threadIdx.x % 128 / 32 * 16;
  PipelineState<C::kQueryStages> queries;
  PipelineState<C::kStages> keys;
  PipelineState<KernelTraits<C>::kSums> sums;
  for (;; queries.advance()) {
    barrier_wait(shared_address(&shared.q_full[queries.stage]), queries.phase);
    const FlashTile tile = shared.tile[queries.stage];
    if (!tile.tokens) return;
    OutputRow output_row[2];
    u32 gate[2]; // loaded early: the epilogue needs it
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp_row + r * 8 + threadIdx.x % 32 / 4;
      const int token = row / C::kGroupPadded, head = row % C::kGroupPadded;
      output_row[r] = OutputRow{ tile.first_token + token, tile.group * C::kGroup + head,
                                 head < C::kGroup && token < tile.tokens };
      gate[r] = load_gate<W>(p.out, output_row[r]);
    }
    float o[F::kO][4] = {}; // [64, Dv]
    SoftmaxRows softmax;
    if (tile.begin < tile.end)
      flash_multiply<W>(tile, flash_rows<W, WindowKeys<C>>(tile, warp_row), shared, consumer,
                        queries, keys, p.scale_log2, softmax, o);
    else
      barrier_arrive(shared_address(&shared.q_empty[queries.stage]));
    if (params.runs_selected)
      barrier_wait(shared_address(&ring.sums_full[sums.stage]), sums.phase);
    else
      wait_for_kernel_before(); // the partial sum comes from the previous kernel
    store_output<W>(p.out, params.combine.kv_heads, o, softmax, output_row, gate);
    if (!params.runs_selected) continue;
    __syncwarp(); // the warp has read the combiners' sums
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&ring.sums_empty[sums.stage]));
    sums.advance();
  }
}

// ---- body

template <class C> NSAI_DEVICE void window_combine(const NsaiWindowCombine &p) {
  using T = KernelTraits<C>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  SharedStorage<C> &shared = *(SharedStorage<C> *)shared_bytes;
  static_assert(sizeof(SharedStorage<C>) == C::kSharedBytes,
                "the host computes another size of shared memory");
  const int warp = warp_uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) {
    tma_prefetch_map(p.window.q);
    tma_prefetch_map(p.window.k);
    tma_prefetch_map(p.window.v);
    for (int i = 0; i < C::kRing; ++i) {
      barrier_init(shared_address(&shared.ring.rows_full[i]), 1);
      barrier_init(shared_address(&shared.ring.rows_empty[i]), 32); // lanes of the row's combiner
    }
    for (int i = 0; i < T::kSums; ++i) {
      barrier_init(shared_address(&shared.ring.sums_full[i]), T::kCombiners);
      barrier_init(shared_address(&shared.ring.sums_empty[i]),
                   4 * Flash<WindowConfig<C>>::kConsumers);
    }
    init_barriers<WindowConfig<C>>(shared.window);
  }
  if (!p.window.attend.early) wait_for_kernel_before();
  __syncthreads(); // barriers are initialised

  if (warp < 4) {
    registers_drop<T::kProducerRegisters>();
    if (warp == 0 && p.runs_window) produce_window<C>(p, shared.window);
    if (warp == 1 && p.runs_selected) produce_rows<C>(p, shared.ring);
    begin_kernel();
  } else if (warp < 12) {
    registers_raise<T::kConsumerRegisters>();
    if (p.runs_window) consume_window<C>(p, shared, warp / 4 - 1);
  } else {
    registers_drop<T::kCombinerRegisters>();
    if (p.runs_selected) combine_rows<C>(p, shared.ring, warp - 12);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_window_combine_sm90(const __grid_constant__ NsaiWindowCombine p) {
  window_combine<Config>(p);
}
