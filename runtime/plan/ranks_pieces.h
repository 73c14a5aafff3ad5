/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What a forward over ranks may do with its pieces, by its problem and its kernels: all ranks that agreed upon
 * the plan find the same.
 */
#ifndef NSAI_PLAN_RANKS_PIECES_H
#define NSAI_PLAN_RANKS_PIECES_H

#include "plan/variant.h"

/* Whether kernels can take all pieces of a rank in one run. */
bool nsai_takes_pieces(const nsai_problem *problem, const nsai_choice *choice);

/* Why raw K and V must be there before anything is computed; NULL: they may travel meanwhile. */
const char *nsai_no_overlap(const nsai_problem *problem, const nsai_choice *choice);

/* Whether the last kernel, of the selected branch, reads a pair of K and V; it may compute the window as well. */
bool nsai_awaits_pair(const nsai_problem *problem, const nsai_choice *choice, int pair);

/* Tokens of a pair before each piece that a rank needs for what comes before raw K and V: those of the blocks
 * that end in the piece, and those of the window, where a kernel of its own computes it first. */
int64_t nsai_halo_tokens(const nsai_problem *problem, const nsai_choice *choice, int pair);

#endif /* NSAI_PLAN_RANKS_PIECES_H */
