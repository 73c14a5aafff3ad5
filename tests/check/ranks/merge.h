/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One result of those of all ranks.
 */
#ifndef CHK_RANKS_MERGE_H
#define CHK_RANKS_MERGE_H

#include "verify/result.h"

/* Adds a rank's result: the worst outcome, all remarks, and of each figure the largest. */
void chk_merge(const nsai_verify_result *rank, nsai_verify_result *all);

#endif /* CHK_RANKS_MERGE_H */
