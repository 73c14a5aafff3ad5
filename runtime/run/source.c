/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "run/source.h"

static nsa_status launch(const nsai_run *run, nsai_role role, uint64_t grid, const void *params) {
  return nsai_launch(run->queue, &run->plan->kernels[role], grid, 1, params);
}

static bool is_cached(const nsai_run *run) { return nsai_problem_is_cached(&run->plan->problem); }

nsa_status nsai_launch_importance(const nsai_run *run, nsai_role role, uint64_t grid,
                                  const NsaiImportance *p) {
  if (!is_cached(run)) return launch(run, role, grid, p);
  NsaiCachedImportance cached = { .batch = nsai_cache_batch(run),
                                  .k = nsai_cache_tensor(&run->io->kv.k_cmp),
                                  .packed = *p };
  return launch(run, role, grid, &cached);
}

nsa_status nsai_launch_select(const nsai_run *run, uint64_t grid, const NsaiSelect *p) {
  if (!is_cached(run)) return launch(run, NSAI_KERNEL_SELECT, grid, p);
  NsaiCachedSelect cached = { .batch = nsai_cache_batch(run), .packed = *p };
  return launch(run, NSAI_KERNEL_SELECT, grid, &cached);
}

nsa_status nsai_launch_sort(const nsai_run *run, uint64_t grid, const NsaiSortSelection *p) {
  if (!is_cached(run)) return launch(run, NSAI_KERNEL_SORT, grid, p);
  NsaiCachedSortSelection cached = { .batch = nsai_cache_batch(run), .packed = *p };
  return launch(run, NSAI_KERNEL_SORT, grid, &cached);
}

nsa_status nsai_launch_cached_attend(const nsai_run *run, nsai_role role, uint64_t grid,
                                     const NsaiCachePair *pair, const NsaiAttend *p) {
  NsaiCachedAttend cached = { .batch = nsai_cache_batch(run), .pair = *pair, .packed = *p };
  return launch(run, role, grid, &cached);
}

nsa_status nsai_launch_cached_selected(const nsai_run *run, uint64_t grid,
                                       const NsaiAttendSelected *p) {
  NsaiCachedAttendSelected cached = { .batch = nsai_cache_batch(run),
                                      .pair = nsai_cache_pair(run, &run->io->kv, NSA_SEL),
                                      .packed = *p };
  return launch(run, NSAI_KERNEL_ATTEND_SELECTED, grid, &cached);
}
