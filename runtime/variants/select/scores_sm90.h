/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernels over select/scores_sm90.cuh, select_importance_sm90 and select_normalizer_sm90: their
 * tiles of `rows` rows, and the part of their specification that they share.
 */
#ifndef NSAI_VARIANTS_SELECT_SCORES_SM90_H
#define NSAI_VARIANTS_SELECT_SCORES_SM90_H

#include "plan/spec.h"

/* Of the fewest stages. */
uint32_t nsai_scores_sm90_bytes(const nsai_problem *problem, int32_t rows);

/* As many as fit. */
int32_t nsai_scores_sm90_stages(const nsai_problem *problem, const nsai_target *target,
                                int32_t rows);

/* All but the keys, and what becomes of scores. */
void nsai_scores_sm90_specify(const nsai_problem *problem, const nsai_target *target, int32_t rows,
                              const char *entry, nsai_kernel_spec *spec);

#endif /* NSAI_VARIANTS_SELECT_SCORES_SM90_H */
