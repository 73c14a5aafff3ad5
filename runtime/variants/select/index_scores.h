/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernel select_index_scores, for index_scores_sm80, for decode steps, and for probed rows; and what
 * it shares with select_index_scores_sm90.
 */
#ifndef NSAI_VARIANTS_SELECT_INDEX_SCORES_H
#define NSAI_VARIANTS_SELECT_INDEX_SCORES_H

#include "plan/spec.h"
#include "run/params.h"

/* The tiles that the heuristic of index_scores_sm80 chooses. */
nsai_tiles nsai_index_scores_tiles(const nsai_problem *problem, const nsai_target *target);

/* Those of decode steps. */
nsai_tiles nsai_index_step_tiles(const nsai_problem *problem, const nsai_target *target);

/* `probe`: of the rows that io.probe_rows names. */
void nsai_index_scores_specify(const nsai_problem *problem, const nsai_tiles *tiles, bool probe,
                               nsai_kernel_spec *spec);

/* Appends the constants of both kernels: heads, blocks, and how the selection is read. */
void nsai_index_rows_add(nsai_kernel_spec *spec, const nsai_problem *problem);

/* A group of index heads whose rows share a tile of keys, padded to a power of two. */
int32_t nsai_index_padded_heads(const nsai_model *model);

/* Whether a plan's importance row ever ranks blocks. */
bool nsai_index_ranks(const nsai_problem *problem);

/* The reasons against both rows. */
void nsai_index_scores_legal(const nsai_problem *, nsai_reasons *);

/* ---- launches ---- */

/* Of importance of the span's tokens into the workspace. */
NsaiImportance nsai_index_scores_params(const nsai_run *run, const nsai_span *span);

/* Parts that the blocks of each of `ctas` are split into, so that they fill a device that holds
 * `ctas_per_sm` of them on a multiprocessor. */
int32_t nsai_index_splits(const nsai_run *run, int64_t ctas, int32_t ctas_per_sm);

/* Importance of the span's tokens into the workspace, or of the probed rows into the caller's
 * tensor. */
nsa_status nsai_index_scores_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                                     const nsai_span *span);
nsa_status nsai_index_probe_enqueue(const nsai_run *run, const nsai_kernel *kernel);

#endif /* NSAI_VARIANTS_SELECT_INDEX_SCORES_H */
