/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the rows of the selected branch that read lists share. Their first two kernels are the
 * branch's own and the one that sorts a caller's lists.
 */
#ifndef NSAI_VARIANTS_ATTEND_SELECTED_H
#define NSAI_VARIANTS_ATTEND_SELECTED_H

#include "plan/spec.h"
#include "run/params.h"

enum { NSAI_SELECTED, NSAI_SELECTED_SORT, NSAI_SELECTED_KERNELS };

/* Adds what the lists are, and the kernel that sorts a caller's. */
void nsai_selected_add_lists(const nsai_problem *problem, nsai_kernel_spec kernel[]);

/* All that the branch's kernel takes but the lists. */
NsaiAttendSelected nsai_selected_params(const nsai_run *run, const nsai_kernel *kernel);

/* Sets the lists: the library's own, or a caller's, sorted. */
nsa_status nsai_selected_find_lists(const nsai_run *run, const nsai_form *form,
                                    NsaiAttendSelected *p);

#endif /* NSAI_VARIANTS_ATTEND_SELECTED_H */
