/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernel that sorts a caller's selection into the lists that kernels read, for the rows that
 * take one.
 */
#ifndef NSAI_VARIANTS_SELECT_SORT_H
#define NSAI_VARIANTS_SELECT_SORT_H

#include "plan/spec.h"
#include "run/params.h"

void nsai_sort_specify(const nsai_problem *problem, nsai_kernel_spec *spec);

/* Sets where the sorted lists lie, and how far apart. */
void nsai_sort_find(const nsai_run *run, NsaiAttendSelected *attend);

/* Sorts into the workspace; sets where the lists lie. */
nsa_status nsai_sort_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                             NsaiAttendSelected *attend);

#endif /* NSAI_VARIANTS_SELECT_SORT_H */
