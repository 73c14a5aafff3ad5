/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernel select_importance, for importance_sm80 and for decode steps.
 */
#ifndef NSAI_VARIANTS_SELECT_IMPORTANCE_H
#define NSAI_VARIANTS_SELECT_IMPORTANCE_H

#include "plan/spec.h"
#include "run/params.h"

/* The tiles that the heuristic of importance_sm80 chooses. */
nsai_tiles nsai_importance_tiles(const nsai_problem *problem, const nsai_target *target);

/* Appends the constants of select/query_rows.cuh, but for those of the keys. */
void nsai_query_rows_add(nsai_kernel_spec *spec, const nsai_problem *problem,
                         const nsai_tiles *tiles);

/* `probe`: of the rows that io.probe_rows names. */
void nsai_importance_specify(const nsai_problem *problem, const nsai_tiles *tiles, bool probe,
                             nsai_kernel_spec *spec);

/* All but the span, and where importance lies. */
NsaiImportance nsai_importance_params(const nsai_run *run, const nsa_tensor *lse);

/* Launches as many CTAs as the tokens of the span can have tiles; `keys`: of a cache. */
nsa_status nsai_importance_launch(const nsai_run *run, const nsai_kernel *kernel,
                                  const nsa_tensor *keys, const NsaiImportance *params);

/* Once the LSE is there: importance of the span's tokens into the workspace, or of the probed rows
 * into the caller's tensor. */
nsa_status nsai_importance_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                                   const nsa_tensor *lse, const nsai_span *span);
nsa_status nsai_probe_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                              const nsa_tensor *lse);

#endif /* NSAI_VARIANTS_SELECT_IMPORTANCE_H */
