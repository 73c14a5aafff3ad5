// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The key pipeline of one consumer warp of decode_pipelined and its producer warp. Steps of 16 keys
// come first from the compressed branch, then from the window, the window-selected blocks and the
// other selected blocks. They pass through kStages stages without draining in between. The producer
// needs few registers: lanes 0 to 15 look up and copy a step's rows of K, lanes 16 to 31 those of
// V.
//
// Where raw K and V are codes and the entries are elements, stages hold either: the keys of the
// compressed branch come first, and Q is loaded again behind them, for products with codes.
//
// Config: those of decode/mainloop.cuh, kSelectBlock (l'), kPageSize (P; 0: no pages), kRing (the
// window's K and V lie in a ring buffer), kRawCodes, kEntryCodes (codes in both, in none, or in raw K
// and V), kCluster.
#pragma once
#include "core/barrier.cuh"
#include "core/copy_rows.cuh"
#include "core/tile.cuh"
#include "data/cache_rows.cuh"
#include "decode/mainloop.cuh"
#include "decode/work.cuh"
#include "params/kv_cache.h"

// kRaw: steps of raw keys.
template <class C, bool kRaw = false> struct PipelinedTiles {
  static constexpr bool kCoded = kRaw ? C::kRawCodes : C::kEntryCodes; // the stages hold codes
  using Product = typename ProductElement<C, kCoded>::Tag;
  static constexpr int kWordsK = nsai_row_words(kCoded, C::kHeadDimQk),
                       kWordsV = nsai_row_words(kCoded, C::kHeadDimV);
  using K = Tile<kStepKeys, padded_dim(kWordsK)>;
  using V = Tile<kStepKeys, padded_dim(kWordsV)>;
  static constexpr bool kQShared = false;
  static constexpr int kO = padded_dim(C::kHeadDimV) / 8;
  static constexpr int kSteps = padded_dim(C::kHeadDimQk) / 16;
  static constexpr int kStageBytes = K::kBytes + V::kBytes;
  // Per warp. At the end O [16, Dv] lies there, which may be larger than the codes.
  static constexpr int kOBytes = kCoded ? 64 * (padded_dim(C::kHeadDimV) + 8) : 0;
  static constexpr int kUsed =
      C::kStages * kStageBytes > kOBytes ? C::kStages *kStageBytes : kOBytes;
  static constexpr int kBytes = (kUsed + 127) / 128 * 128;
};

// The tiles of raw keys: of a type of their own only where they differ.
template <class C> using PipelinedRawTiles = PipelinedTiles<C, kRawCodesAlone<C>>;

// Whether a consumer takes two steps of codes at once: they are the bytes of one step of elements,
// whose latency the few other warps of a multiprocessor hide. Of two stages (raw codes beside entries
// in 16 bits) it would leave none to be filled meanwhile.
template <class C, class R> constexpr bool kTakesPairs = (bool)R::kCoded && (C::kStages >= 4);
// The same of the compressed branch, with the pooling of two steps at once, if the buffer that holds
// O [16, Dv] has room for their probabilities.
template <class C>
constexpr bool kScansPairs = kTakesPairs<C, PipelinedTiles<C>> &&
                             (padded_dim(C::kHeadDimV) + 8 > 2 * kStepKeys);

// ---- the steps of a warp

// Steps are dealt to the cluster's warps in turn. If there is a compressed branch, the CTAs' warps
// 0 take no step of the window.
template <class C> struct PipelinedSlots {
  static constexpr int kAll = C::kCluster * C::kWarps, kOthers = kAll - C::kCluster;
};

// Number of steps that slot `slot` of `slots` gets out of `steps`: slot, slot + slots, ...; none if
// `slot` is negative.
NSAI_DEVICE int dealt_steps(int steps, int slot, int slots) {
  return 0 <= slot && slot < steps ? (steps - 1 - slot) / slots + 1 : 0;
}

// The raw keys of the window and this warp's steps of them: first keys that are only in the window,
// then the window-selected blocks.
template <class C> struct PipelinedWindow {
  using Slots = PipelinedSlots<C>;
  int keys, window_selected; // number of keys of each kind
  int slot, slots, count, window_selected_count;
  NSAI_DEVICE PipelinedWindow(int keys, int window_selected, int all_slot, bool scans)
      : keys(keys), window_selected(window_selected),
        slot(scans ? all_slot - C::kCluster : all_slot),
        slots(scans ? Slots::kOthers : Slots::kAll) {
    count = dealt(ceil_div(keys, kStepKeys), scans);
    window_selected_count = dealt(steps(), scans) - count;
  }
  NSAI_DEVICE int dealt(int steps, bool scans) const {
    return scans ? dealt_steps(steps, slot, Slots::kOthers) : dealt_steps(steps, slot, Slots::kAll);
  }
  NSAI_DEVICE int steps() const {
    return ceil_div(keys, kStepKeys) + ceil_div(window_selected, kStepKeys);
  }
  NSAI_DEVICE int step(int i) const { return slot + i * slots; }
  NSAI_DEVICE int window_selected_step(int i) const { return step(i) - ceil_div(keys, kStepKeys); }
};

// The keys of the selected blocks. The first `lead` steps go to the CTAs' warps 0, which have no
// window; the others are dealt to all warps, continuing where the window's steps ended.
template <class C> struct PipelinedChosen {
  static constexpr int kSlots = PipelinedSlots<C>::kAll, kOthers = PipelinedSlots<C>::kOthers;
  // The work of warp 0 in place of the window takes as long as this many steps. (H200, 32 sequences
  // of 16k: 1 and 2 are 1 to 2 % slower, 4 is equal.)
  static constexpr int kSearchSteps = 3;
  int keys, lead, lead_count, slot, rotated, count;
  NSAI_DEVICE PipelinedChosen(int slot)
      : keys(0), lead(0), lead_count(0), slot(slot), rotated(slot), count(0) {}
  NSAI_DEVICE void set(int all, int windows, bool scans) {
    const int steps = ceil_div(all, kStepKeys);
    const int rounds = windows / kOthers, rest = windows - rounds * kOthers;
    keys = all;
    lead = scans ? min(max(rounds - kSearchSteps, 0) * C::kCluster, steps) : 0;
    lead_count = slot < C::kCluster ? dealt_steps(lead, slot, C::kCluster) : 0;
    rotated = (slot + kSlots - (scans ? C::kCluster + rest : windows) % kSlots) % kSlots;
    count = lead_count + dealt_steps(steps - lead, rotated, kSlots);
  }
  NSAI_DEVICE int step(int i) const {
    return i < lead_count ? slot + i * C::kCluster : lead + rotated + (i - lead_count) * kSlots;
  }
};

struct PipelinedRow {
  int page, slot;
};

// First step with masked keys, and its number within the segment.
struct PipelinedMask {
  int step, number;
};

// What a consumer needs to know of a segment (the steps of one branch).
struct PipelinedSegment {
  int end;  // one past its last step
  int keys; // keys of the branch
  PipelinedMask mask;
};

// The warp's steps: compressed keys (numbers from `begin` on), window, window-selected blocks,
// other selected blocks.
template <class C> struct PipelinedSteps {
  const NsaiDecode &p;
  int group;
  CachedRows<C::kPageSize> rows;
  int ring_row; // row of the window's ring buffer
  int begin, scanned;
  int visible; // number of compressed keys
  PipelinedWindow<C> window;
  int window_first, window_selected_first; // position of key 0 of each kind
  PipelinedChosen<C> chosen;
  const int *sList;
  // Steps that may be copied: those of the selected blocks are unknown until the list is written.
  int known;

  NSAI_DEVICE int window_end() const { return scanned + window.count; }
  NSAI_DEVICE int window_selected_end() const {
    return window_end() + window.window_selected_count;
  }
  NSAI_DEVICE int all() const { return window_selected_end() + chosen.count; }
  // The number of step i within its branch.
  NSAI_DEVICE int number(int i) const {
    if (i < scanned) return begin + i;
    if (i < window_end()) return window.step(i - scanned);
    return i < window_selected_end() ? window.window_selected_step(i - scanned)
                                     : chosen.step(i - window_selected_end());
  }
  // The segment that ends before step `end`, of a branch with `keys` keys. Several steps at the end
  // of the compressed branch may contain missing keys; in other branches only the last step may.
  NSAI_DEVICE PipelinedSegment segment(int end, int keys) const {
    if (end > scanned)
      return PipelinedSegment{ end, keys, PipelinedMask{ end - 1, number(end - 1) } };
    return PipelinedSegment{ end, keys,
                             PipelinedMask{ visible / kStepKeys - begin, visible / kStepKeys } };
  }
  // Cache location of the lane's row in step i; a missing key takes the last key's row and is
  // masked. Reading the block table has a high latency, and nothing here depends on the result.
  NSAI_DEVICE PipelinedRow row(int i, int lane) const {
    if (i >= known) return PipelinedRow{ 0, 0 };
    const bool scans = i < scanned, late = i >= window_selected_end(),
               window_selected = !late && i >= window_end();
    const int keys = scans             ? visible
                     : late            ? chosen.keys
                     : window_selected ? window.window_selected
                                       : window.keys;
    const int key = min(number(i) * kStepKeys + lane % kStepKeys, keys - 1);
    if (scans) {
      const CachedRows<C::kPageSize / C::kStride> entries = { rows.list, rows.row, 0 };
      const int index = entry_index<C::kBlock, C::kStride>(key);
      return PipelinedRow{ entries.page(index), entries.slot(index) };
    }
    if (C::kRing > 0 && !late) {
      const CachedRows<0> ring = { nullptr, ring_row, p.window.ring };
      return PipelinedRow{ ring.page(window_first + key), ring.slot(window_first + key) };
    }
    int index = (window_selected ? window_selected_first : window_first) + key;
    if (late) index = sList[key / C::kSelectBlock] * C::kSelectBlock + key % C::kSelectBlock;
    return PipelinedRow{ rows.page(index), rows.slot(index) };
  }
  // Address of that row of K (lanes 0 to 15) or V (lanes 16 to 31).
  NSAI_DEVICE const u16 *at(int i, const PipelinedRow &row, int lane) const {
    const NsaiCachePair &pair = i < scanned                  ? p.entries
                                : i >= window_selected_end() ? p.selected
                                                             : p.window;
    const NsaiCacheTensor &x = lane < kStepKeys ? pair.k : pair.v;
    return (const u16 *)x.data + group * x.head_stride + row_offset(x, row.page, row.slot);
  }
};

// ---- the pipeline

// The pipeline of a consumer and its producer: [kStages] stages, each with four barriers: K and V
// have arrived, K and V have been read.
template <class C> struct PipelinedStages {
  static constexpr int kBarriers = 4 * C::kStages; // of 32 arrivals each
  static_assert(kBarriers <= 32, "a warp initialises them, one a lane");
  u32 base, barriers;

  NSAI_DEVICE PipelinedStages(const void *sStages, const u64 *sBarriers)
      : base(shared_address(sStages)), barriers(shared_address(sBarriers)) {}
  NSAI_DEVICE u32 stage(int i) const {
    return base + i % C::kStages * PipelinedTiles<C>::kStageBytes;
  }
  NSAI_DEVICE u32 k_full(int i) const { return barriers + i % C::kStages * 32; }
  NSAI_DEVICE u32 v_full(int i) const { return k_full(i) + 8; }
  NSAI_DEVICE u32 k_empty(int i) const { return k_full(i) + 16; }
  NSAI_DEVICE u32 v_empty(int i) const { return k_full(i) + 24; }
  // Phase of step i in its stage.
  static NSAI_DEVICE u32 phase(int i) { return i / C::kStages & 1; }
};

// Starts the copy of K or V of a step into tile T, whose address comes from lane_address(). `from`:
// each lane's row, of so many words; lane `lane_of_row_0` holds row 0.
template <class T>
NSAI_DEVICE void copy_step(u32 tile, const u16 *from, int words, int lane_of_row_0, u64 policy,
                           int lane) {
  using Lanes = CopyLanes<T, 32>;
#pragma unroll
  for (int i = 0; i < kStepKeys; i += Lanes::kPass) {
    const int row = Lanes::row(lane) + i;
    const u16 *at =
        (const u16 *)__shfl_sync(~0u, (u64)from, lane_of_row_0 + row) + Lanes::chunk(lane) * 8;
#pragma unroll
    for (int c = 0; c < T::kChunks; c += Lanes::kLanes) {
      const int chunk = c + Lanes::chunk(lane);
      if (c + Lanes::kLanes <= T::kChunks || chunk < T::kChunks)
        copy_async_16(tile + T::offset(row, chunk), at + c * 8, chunk * 8 < words, policy);
    }
  }
}

// Copies step i into its stage, once consumers have read what lay there.
template <class C, class R>
NSAI_DEVICE void fill_stage(const PipelinedStages<C> &pipeline, int i, u32 stage, u32 phase,
                            const u16 *from, u64 policy, int lane) {
  if (i >= C::kStages) barrier_wait(pipeline.k_empty(i), phase);
  copy_step<typename R::K>(stage, from, R::kWordsK, 0, policy, lane);
  barrier_arrive_after_copies(pipeline.k_full(i));
  if (i >= C::kStages) barrier_wait(pipeline.v_empty(i), phase);
  copy_step<typename R::V>(stage + R::K::kBytes, from, R::kWordsV, kStepKeys, policy, lane);
  barrier_arrive_after_copies(pipeline.v_full(i));
}

// Producer: copies all steps in order. `ahead`: the first step's row. `add_chosen(steps)` waits for
// the list.
template <class C, class AddChosen>
NSAI_DEVICE void fill_stages(PipelinedSteps<C> &steps, PipelinedRow ahead,
                             const PipelinedStages<C> &pipeline, int lane, AddChosen add_chosen) {
  const u64 policy = l2_policy(true);
  int i = 0;
#pragma unroll 1
  for (int segment = 0; segment < 2;
       // Segment 0: everything that is known before the list. Segment 1: the selected blocks.
       ++segment) {
    if (segment) {
      add_chosen(steps);
      ahead = steps.row(i, lane);
    }
#pragma unroll 1
    for (; i < steps.known; ++i) {
      const u16 *from = steps.at(i, ahead, lane);
      const u32 stage = lane_address(pipeline.stage(i));
      const u32 phase = pipeline.phase(i) ^ 1; // phase of the stage's previous step
      ahead = steps.row(i + 1, lane);
      if (kRawCodesAlone<C> && i >= steps.scanned)
        fill_stage<C, PipelinedRawTiles<C>>(pipeline, i, stage, phase, from, policy, lane);
      else
        fill_stage<C, PipelinedTiles<C>>(pipeline, i, stage, phase, from, policy, lane);
    }
  }
}

// ---- products

// Pools the probabilities of two steps, of which the first `steps` exist.
template <class C, class Keys>
NSAI_DEVICE void pool_steps(Keys &keys, const float (&s)[4][4], const SoftmaxRows &rows,
                            int steps) {
  if (!keys.pools) return;
  if constexpr (Keys::kHalves) {
    keys.pool_halves(s, rows, steps);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i >= steps) break;
      float step[2][4]; // [16, 16 keys]
#pragma unroll
      for (int c = 0; c < 8; ++c) step[c / 4][c % 4] = s[2 * i + c / 4][c % 4];
      keys.pool(step, rows);
    }
  }
}

// Processes the next two steps of codes together.
template <class C, class R, class Keys, int kO>
NSAI_DEVICE void run_pair(const PipelinedMask &mask, Keys &keys, const PipelinedStages<C> &pipeline,
                          int done, const Queries<R> &queries, float (&o)[kO][4], SoftmaxRows &rows,
                          float scale_log2, int lane) {
  const u32 stage0 = pipeline.stage(done), stage1 = pipeline.stage(done + 1);
  float s[4][4]; // [16, 2 * 16 keys]
  barrier_wait(pipeline.k_full(done), pipeline.phase(done));
  barrier_wait(pipeline.k_full(done + 1), pipeline.phase(done + 1));
  multiply_pair_qk<C, R>(s, queries, stage0, stage1, lane);
  barrier_arrive(pipeline.k_empty(done));
  barrier_arrive(pipeline.k_empty(done + 1));
  if (done + 1 >= mask.step)
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      if (done + step < mask.step) continue;
      const int first = (mask.number + done + step - mask.step) * kStepKeys;
      float half[2][4]; // [16, 16 keys]
#pragma unroll
      for (int c = 0; c < 8; ++c) half[c / 4][c % 4] = s[2 * step + c / 4][c % 4];
#pragma unroll
      for (int r = 0; r < 2; ++r) mask_row(half, r, KeyRange{ 0, keys.end(0) }, first);
#pragma unroll
      for (int c = 0; c < 8; ++c) s[2 * step + c / 4][c % 4] = half[c / 4][c % 4];
    }
  softmax_step(rows, s, o, scale_log2);
  barrier_wait(pipeline.v_full(done), pipeline.phase(done));
  barrier_wait(pipeline.v_full(done + 1), pipeline.phase(done + 1));
  multiply_pair_pv<C, R>(o, s, stage0 + R::K::kBytes, stage1 + R::K::kBytes, lane);
  barrier_arrive(pipeline.v_empty(done));
  barrier_arrive(pipeline.v_empty(done + 1));
  pool_steps<C>(keys, s, rows, 2);
}

// Processes steps [done, end), accumulating onto o and rows. Stops early when the first phase of
// barrier `until` has completed (0: no barrier). R: the steps' tiles.
template <class C, class R, class Keys, int kO>
NSAI_DEVICE void run_steps(const PipelinedMask &mask, Keys &keys,
                           const PipelinedStages<C> &pipeline, int &done, int end, u32 until,
                           const Queries<R> &queries, float (&o)[kO][4], SoftmaxRows &rows,
                           float scale_log2, int lane) {
  constexpr int kAtOnce = 4; // loads in flight before the products that use them
#pragma unroll 1
  while (done < end) {
    if (until && __all_sync(~0u, barrier_passed(until, 0))) break;
    if constexpr (kTakesPairs<C, R>)
      if (done + 1 < end) {
        run_pair<C, R>(mask, keys, pipeline, done, queries, o, rows, scale_log2, lane);
        done += 2;
        continue;
      }
    const u32 stage = pipeline.stage(done), phase = pipeline.phase(done);
    float s[2][4]; // [16, 16 keys]
    barrier_wait(pipeline.k_full(done), phase);
    multiply_chains_qk<C, R, kAtOnce>(s, queries, stage, lane);
    barrier_arrive(pipeline.k_empty(done));
    if (done >= mask.step) // all rows see the same keys
#pragma unroll
      for (int r = 0; r < 2; ++r)
        mask_row(s, r, KeyRange{ 0, keys.end(0) }, (mask.number + done - mask.step) * kStepKeys);
    softmax_step(rows, s, o, scale_log2);
    barrier_wait(pipeline.v_full(done), phase);
    multiply_step_pv<C, R, kAtOnce>(o, s, stage + R::K::kBytes, lane);
    barrier_arrive(pipeline.v_empty(done));
    ++done;
    if constexpr (kScansPairs<C>) {
      const float pair[4][4] = { // [16, 2 * 16 keys], of which the second 16 do not exist
                                 { s[0][0], s[0][1], s[0][2], s[0][3] },
                                 { s[1][0], s[1][1], s[1][2], s[1][3] }
      };
      pool_steps<C>(keys, pair, rows, 1);
    } else {
      keys.pool(s, rows);
    }
  }
}
