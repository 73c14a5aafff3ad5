/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernel select_importance, for importance_sm80 and for decode steps; and what importance_sm80 has
 * in common with importance_sm90.
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

/* Appends what is pooled, and whether of probed rows. */
void nsai_pooling_add(nsai_kernel_spec *spec, const nsai_problem *problem, bool probe);

/* ---- launches ---- */

/* Where an LSE lies: in as many parts as the keys of a decode step were split into; else one. */
typedef struct nsai_split_lse {
  nsa_tensor first; /* f32 [T, Hq] */
  int64_t stride;   /* elements from one part to the next */
  int32_t parts;
} nsai_split_lse;

/* That of the compressed branch. */
nsai_split_lse nsai_branch_lse(const nsai_run *run);

/* Tiles of a kernel that the tokens of a span can have. */
int64_t nsai_span_tiles(const nsai_run *run, const nsai_kernel *kernel, int64_t token_begin,
                        int64_t token_end);

/* CTAs among which a decode step splits the keys of each of `ctas`: as many as the device holds at
 * once, while each has keys enough. `keys`: those that the longest sequence has. 1: no decode step. */
int32_t nsai_key_splits(const nsai_run *run, int64_t ctas, int64_t keys);

/* The most that tokens of a run times such splits of their keys can be. */
int64_t nsai_most_split_tokens(const nsai_request *request, int32_t tile_tokens);

/* All but the span, and where importance lies. */
NsaiImportance nsai_importance_params(const nsai_run *run, const nsai_split_lse *lse);

/* The grid of a launch, and what it reads beside NsaiImportance. */
typedef struct nsai_ranking {
  int64_t tiles;
  int32_t splits;
  const nsa_tensor *keys; /* of a cache */
  const nsai_split_lse *lse;
} nsai_ranking;
nsa_status nsai_importance_launch(const nsai_run *run, const nsai_kernel *kernel,
                                  const nsai_ranking *ranking, const NsaiImportance *params);

/* Of the rows that io.probe_rows names into the caller's tensor. `keys`: of a cache. */
nsa_status nsai_probe_launch(const nsai_run *run, const nsai_kernel *kernel, const nsa_tensor *keys,
                             const nsai_split_lse *lse, const NsaiImportance *params);

/* Once the LSE is there: importance of the span's tokens into the workspace, or of the probed rows
 * into the caller's tensor. */
nsa_status nsai_importance_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                                   const nsai_split_lse *lse, const nsai_span *span);
nsa_status nsai_probe_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                              const nsai_split_lse *lse);

#endif /* NSAI_VARIANTS_SELECT_IMPORTANCE_H */
