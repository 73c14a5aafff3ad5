/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Damages results of ranks, and demands that every damage is reported.
 */
#ifndef CHK_RANKS_SELF_TEST_H
#define CHK_RANKS_SELF_TEST_H

#include "ranks/runners.h"

/* On threads of the device that the options name. Prints a line for each; returns how many were not
 * noticed. */
int chk_ranks_self_test(const chk_plans_options *plans, FILE *out);

#endif /* CHK_RANKS_SELF_TEST_H */
