/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Launches of dense causal attention: the stage of its own, and the selected branch while every
 * block is chosen.
 */
#ifndef NSAI_VARIANTS_ATTEND_DENSE_H
#define NSAI_VARIANTS_ATTEND_DENSE_H

#include "plan/spec.h"
#include "run/params.h"

/* The stage dense by its first kernel. */
nsa_status nsai_dense_enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span);

#endif /* NSAI_VARIANTS_ATTEND_DENSE_H */
