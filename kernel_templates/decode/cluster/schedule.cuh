// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Which keys belong to a CTA of decode_cluster, and where they lie in the cache.
//
// Compressed keys are divided into runs (decode/cluster/ranges.cuh). Raw keys, of the window and of
// the selected blocks, are dealt in steps of 16 over the CTAs and then over the warps. A CTA step
// processes one such step for each of its warps.
//
// Config: those of decode/work.cuh and keys.cuh, kPageSize (P; 0: no pages), kListPages (most pages
// of a block table in shared memory), kRing (the window's K and V lie in a ring buffer), kCluster,
// kWarps, kThreads.
#pragma once
#include "data/cache_rows.cuh"
#include "decode/cluster/keys.cuh"
#include "decode/cluster/ranges.cuh"
#include "decode/work.cuh"
#include "params/kv_cache.h"

// ---- the steps of a CTA

// First `scanned` steps over compressed keys, in which each of `runs` warps processes its own run,
// beginning with number `first_run`; then `windowed` steps of the window; then those of the
// selected blocks. Steps of raw keys are dealt over the CTAs of the cluster and then over the
// warps.
template <class C> struct StepSchedule {
  int scanned, windowed;
  int all; // that are known so far
  int runs, first_run;
  int run_keys, visible; // keys per run, in total
  WindowRun window;
  ChosenKeys<C> chosen;
  int rank; // of the CTA

  // Raw-key steps of this CTA's warps, and the CTA steps that they take.
  NSAI_DEVICE int steps(int limit) const {
    return max(ceil_div(limit, kStepKeys) - rank + C::kCluster - 1, 0) / C::kCluster;
  }
  NSAI_DEVICE int cta_steps(int limit) const { return ceil_div(steps(limit), C::kWarps); }
};

struct CtaStep {
  int branch;
  int warps;               // that have keys; some of these may be masked
  int first, each, behind; // warp 0's first key, distance between warps, warp 0's end
  int all;                 // end of all keys
  NSAI_DEVICE int key(int warp) const { return first + warp * each; }
  NSAI_DEVICE int limit(int warp) const { return min(behind + warp * each, all); }
};

// Free of branches, which would cost more than the few instructions they save. (A guess.)
template <class C> NSAI_DEVICE CtaStep find_cta_step(const StepSchedule<C> &x, int i) {
  const bool scans = i < x.scanned, windows = i < x.scanned + x.windowed;
  const int limit = scans ? x.visible : windows ? x.window.limit : x.chosen.limit;
  const int late = i - x.scanned - (windows ? 0 : x.windowed), run = x.first_run * x.run_keys;
  const int step = (x.rank + C::kCluster * C::kWarps * late) * kStepKeys;
  CtaStep cta_step;
  cta_step.branch = scans ? kCompressed : windows ? kWindow : kSelected;
  cta_step.warps = scans ? x.runs : min(x.steps(limit) - late * C::kWarps, C::kWarps);
  cta_step.first = scans ? run + i * kStepKeys : step;
  cta_step.each = scans ? x.run_keys : C::kCluster * kStepKeys;
  cta_step.behind = scans ? run + x.run_keys : step + kStepKeys;
  cta_step.all = limit;
  return cta_step;
}

// The schedule of CTA `rank` for a token at `position`, of whose compressed keys it sees `visible`.
// The list of selected blocks is not known yet; their steps are added later.
template <class C>
NSAI_DEVICE StepSchedule<C> find_schedule(const ClusterRuns &runs, int visible, int position,
                                          int rank, bool scans, bool windows) {
  StepSchedule<C> x;
  x.runs = runs.runs;
  x.first_run = rank * runs.runs;
  x.run_keys = runs.each * Decode<C>::kSplitGranularity;
  x.visible = visible;
  x.window = window_keys<C>(position);
  x.rank = rank;
  x.scanned = scans ? runs.each * (Decode<C>::kSplitGranularity / kStepKeys) : 0;
  x.windowed = windows ? max(x.cta_steps(x.window.limit), 1) : 0;
  x.all = x.scanned + x.windowed;
  return x;
}

// ---- where rows lie

// The block table of a sequence, if it fits into shared memory. It can be loaded before the
// sequence's length is known.
template <class C> struct PageList {
  static constexpr int kEach = ceil_div(C::kListPages, C::kThreads);
  const int *list; // nullptr: it stays in global memory
  int width;
  int pages[kEach];
};
template <class C> NSAI_DEVICE PageList<C> load_pages(const NsaiCacheBatch &batch, int s) {
  PageList<C> x = { nullptr, 0, {} };
  if constexpr (C::kPageSize > 0) {
    const int width = ceil_div(batch.max_kv_len, C::kPageSize);
    if (batch.page_starts || width > C::kListPages) return x;
    x.list = batch.pages + s * batch.page_list_stride;
    x.width = width;
#pragma unroll
    for (int i = 0; i < PageList<C>::kEach; ++i)
      if ((int)threadIdx.x + i * C::kThreads < x.width)
        x.pages[i] = x.list[threadIdx.x + i * C::kThreads];
  }
  return x;
}
template <class C> NSAI_DEVICE void store_pages(int *sPages, const PageList<C> &x) {
#pragma unroll
  for (int i = 0; i < PageList<C>::kEach; ++i)
    if ((int)threadIdx.x + i * C::kThreads < x.width)
      sPages[threadIdx.x + i * C::kThreads] = x.pages[i];
}

// The sequence's block table in global memory.
template <class C> NSAI_DEVICE const int *find_pages(const NsaiCacheBatch &batch, int s) {
  return find_rows<C::kPageSize>(batch, s, 0).list;
}

constexpr NSAI_DEVICE int floor_log2(int x) { return x > 1 ? 1 + floor_log2(x / 2) : 0; }

// K or V of a branch and head. Kept in shared memory, because the first read of kernel parameters
// has a high latency.
struct KvTensor {
  const u16 *rows;
  long long page_stride, row_stride;
};
template <class C> struct KvTensors {
  KvTensor of[NSAI_BRANCH_COUNT][2];
  int ring; // tokens of the window's ring buffer; 0: none

  // Thread i of the first six fills one tensor.
  NSAI_DEVICE void fill(const NsaiDecode &p, int group, int i) {
    const NsaiCachePair &pair = (&p.entries)[i / 2]; // pairs lie in branch order
    const NsaiCacheTensor &x = i % 2 ? pair.v : pair.k;
    of[i / 2][i % 2] = { (const u16 *)x.data + group * x.head_stride, x.page_stride, x.row_stride };
    if (i == 0) ring = p.window.ring;
  }
};

// Finds the rows of a sequence's keys.
template <class C> struct ScheduledRows {
  const KvTensors<C> &sides;
  bool shared;      // the block table lies in shared memory
  u32 sList;        // its address there
  const int *gList; // or in global memory
  int row;          // without pages, and for rings

  NSAI_DEVICE u32 page(u32 i) const {
    return shared ? load_shared_word(sList + 4 * i) : (u32)gList[i];
  }

  // Finds the lane's rows of K or V in a CTA step, for warps `warp`, warp + kWarpStep, ...; nullptr
  // if there is no key. Missing keys are looked up like the last key: without branches the lookups
  // overlap.
  template <int kEach, int kWarpStep>
  NSAI_DEVICE void find(const u16 *(&found)[kEach], const StepSchedule<C> &schedule,
                        const CtaStep &cta_step, int warp, int lane) const {
    const bool scans = cta_step.branch == kCompressed, windows = cta_step.branch == kWindow;
    bool exists[kEach];
    int index[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int owner = warp + j * kWarpStep, i = cta_step.key(owner) + lane % kStepKeys,
                limit = cta_step.limit(owner);
      exists[j] = owner < cta_step.warps && i < limit;
      index[j] = max(min(i, limit - 1), 0);
    }
    if (C::kSelectCount > 0 && cta_step.branch == kSelected) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) index[j] = max(schedule.chosen.index(index[j]), 0);
    } else {
      const int shift = scans ? entry_index<C::kBlock, C::kStride>(0) : schedule.window.first;
#pragma unroll
      for (int j = 0; j < kEach; ++j) index[j] += shift;
    }
    const KvTensor x = sides.of[cta_step.branch][lane / 16];
    const int log2_rows = scans ? floor_log2(C::kPageSize / C::kStride) : floor_log2(C::kPageSize);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      u32 page = (u32)row, slot = (u32)index[j];
      if (C::kRing > 0 && windows) {
        slot = CachedRows<0>{ nullptr, row, sides.ring }.slot(index[j]);
      } else if constexpr (C::kPageSize > 0) {
        page = 0;
        if (exists[j]) page = this->page(slot >> log2_rows);
        slot &= (1u << log2_rows) - 1;
      }
      const u64 at = (u64)(x.rows + (u64)page * x.page_stride + (u64)slot * x.row_stride);
      found[j] = (const u16 *)(at & (u64)0 - exists[j]);
    }
  }
};

// `pages` has been stored in sPages if it fits there.
template <class C>
NSAI_DEVICE ScheduledRows<C> find_scheduled_rows(const KvTensors<C> &sides,
                                                 const NsaiCacheBatch &batch, int s,
                                                 const PageList<C> &pages, const int *sPages) {
  return { sides, pages.list != nullptr, shared_address(sPages), find_pages<C>(batch, s),
           C::kPageSize == 0 || C::kRing > 0 ? find_rows<0>(batch, s, 0).row : 0 };
}
