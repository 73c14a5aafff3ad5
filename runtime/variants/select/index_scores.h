/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernel select_index_scores, for index_scores_sm80 and for decode steps.
 */
#ifndef NSAI_VARIANTS_SELECT_INDEX_SCORES_H
#define NSAI_VARIANTS_SELECT_INDEX_SCORES_H

#include "plan/spec.h"
#include "run/params.h"

/* The tiles that the heuristic of index_scores_sm80 chooses. */
nsai_tiles nsai_index_scores_tiles(const nsai_problem *problem, const nsai_target *target);

/* `probe`: of the rows that io.probe_rows names. */
void nsai_index_scores_specify(const nsai_problem *problem, const nsai_tiles *tiles, bool probe,
                               nsai_kernel_spec *spec);

/* Importance of the span's tokens into the workspace, or of the probed rows into the caller's
 * tensor. */
nsa_status nsai_index_scores_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                                     const nsai_span *span);
nsa_status nsai_index_probe_enqueue(const nsai_run *run, const nsai_kernel *kernel);

#endif /* NSAI_VARIANTS_SELECT_INDEX_SCORES_H */
