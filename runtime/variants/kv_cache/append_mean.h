/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernel that writes new tokens into a cache, for both rows of the stage append.
 */
#ifndef NSAI_VARIANTS_KV_CACHE_APPEND_MEAN_H
#define NSAI_VARIANTS_KV_CACHE_APPEND_MEAN_H

#include "plan/spec.h"
#include "run/params.h"

#define NSAI_APPEND_THREADS 128 /* K and V of 4 heads of 128, 16 bytes each */

/* With phi mean it also makes the entries that the tokens complete; and with any phi the coarse keys of
 * model.select.normalizer, or the index keys of model.select.by: index. */
void nsai_append_specify(const nsai_problem *problem, nsai_kernel_spec *spec);

/* Adds how entries and pages lie. */
void nsai_append_add_cache(const nsai_problem *problem, nsai_kernel_spec *spec);

/* A kernel that does not run over ranks takes the first member alone, one without index keys in codes that
 * member's first, and so on to NsaiAppend. */
NsaiRanksAppend nsai_append_params(const nsai_run *run);

#endif /* NSAI_VARIANTS_KV_CACHE_APPEND_MEAN_H */
