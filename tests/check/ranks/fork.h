/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Processes that are ranks. CUDA does not survive a fork: the parent opens no driver.
 */
#ifndef CHK_RANKS_FORK_H
#define CHK_RANKS_FORK_H

#include "plans.h"
#include "ranks/shared.h"

/* Starts shared->size processes, which call live(user, rank), and waits for them: at most
 * `seconds`, then those that are left are ended. What `live` wants to be known of it is in
 * `shared`: shared->passed[rank], that it came to its end, shared->status[rank], why it cannot go
 * on, and the results. `killed`: the rank that is expected to end itself; -1: none.
 *
 * Returns the first status[rank] that is not NSA_OK, with the text of its result; or
 * NSA_E_INTERNAL; or NSA_E_IO, when output of a process to stdout is lost. A rank that crashed or
 * hung has a failure as its result. */
nsa_status chk_fork_ranks(chk_shared *shared, void (*live)(void *user, int32_t rank), void *user,
                          int32_t killed, double seconds);

/* In a process: its plans, on GPU options->device + rank. Whether all ranks have theirs; every rank
 * calls it. chk_plans_destroy in any case. */
bool chk_fork_plans(chk_shared *shared, int32_t rank, const chk_plans_options *options,
                    chk_plans **out);

#endif /* CHK_RANKS_FORK_H */
