/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Launches of kernels that read packed tensors or a cache, by the plan's problem
 * (data/source.cuh). Of the packed form's struct, what says where sequences, k and v lie is not read
 * with a cache.
 */
#ifndef NSAI_RUN_SOURCE_H
#define NSAI_RUN_SOURCE_H

#include "params/kv_cache.h"
#include "run/cached.h"

nsa_status nsai_launch_importance(const nsai_run *run, nsai_role role, uint64_t grid,
                                  const NsaiImportance *p);
nsa_status nsai_launch_select(const nsai_run *run, uint64_t grid, const NsaiSelect *p);
nsa_status nsai_launch_sort(const nsai_run *run, uint64_t grid, const NsaiSortSelection *p);

/* With a cache alone: K and V of `pair`, and those of the selected branch. */
nsa_status nsai_launch_cached_attend(const nsai_run *run, nsai_role role, uint64_t grid,
                                     const NsaiCachePair *pair, const NsaiAttend *p);
nsa_status nsai_launch_cached_selected(const nsai_run *run, uint64_t grid,
                                       const NsaiAttendSelected *p);

#endif /* NSAI_RUN_SOURCE_H */
