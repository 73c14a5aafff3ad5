/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernel that computes the importance of the rows that io.probe_rows names, for importance_sm80
 * and for decode steps.
 */
#ifndef NSAI_VARIANTS_SELECT_IMPORTANCE_H
#define NSAI_VARIANTS_SELECT_IMPORTANCE_H

#include "plan/spec.h"
#include "run/params.h"

/* With the tiles that the heuristic of importance_sm80 chooses. */
void nsai_probe_specify(const nsai_problem *problem, const nsai_target *target,
                        nsai_kernel_spec *spec);

/* Once the LSE of the compressed branch is there. */
nsa_status nsai_probe_enqueue(const nsai_run *run, const nsai_kernel *kernel);

#endif /* NSAI_VARIANTS_SELECT_IMPORTANCE_H */
