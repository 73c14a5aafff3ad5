/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What rows of the stage select share: kernels that read a row of importance and write its list.
 */
#ifndef NSAI_VARIANTS_SELECT_TOPN_H
#define NSAI_VARIANTS_SELECT_TOPN_H

#include "plan/spec.h"
#include "run/params.h"

void nsai_topn_legal(const nsai_problem *problem, const nsai_target *target, nsai_reasons *reasons);

/* Tiles warps and ctas; no shared memory but static. */
void nsai_topn_specify(const nsai_request *request, const char *entry, nsai_kernel_spec *spec);

/* The tiles of select_topn_cta. */
nsai_tiles nsai_topn_cta_tiles(void);

/* Launches `grid` CTAs over the tokens of the span, with the importance of nsa_select or, in a run
 * of all stages, that of the workspace. */
nsa_status nsai_topn_launch(const nsai_run *run, const nsai_kernel *kernel, int64_t grid,
                            const nsai_span *span);

#endif /* NSAI_VARIANTS_SELECT_TOPN_H */
