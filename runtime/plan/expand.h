/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Raw tokens of a cache in e4m3 that a prefill first expands to the model's dtype in the workspace
 * (kernel_templates/kv_cache/expand_tokens.cuh): how many there is room for, and when it is worth it.
 */
#ifndef NSAI_PLAN_EXPAND_H
#define NSAI_PLAN_EXPAND_H

#include "plan/problem.h"

/* In the place of a branch, whose pair of K and V is meant: the keys of an index. */
#define NSAI_INDEX_KEYS NSA_BRANCHES

/* The problem as a kernel over expanded tokens sees it: 16 bits, and no pages. */
nsai_problem nsai_expanded_problem(const nsai_problem *problem);

/* Tokens of a sequence that are expanded of the pair that a branch reads, at most, in a call of
 * `tokens` new tokens whose sequences have `longest` tokens at most: all, or those of the window where
 * that lies in rings. */
int64_t nsai_expand_length(const nsai_problem *problem, int branch, int64_t tokens,
                           int64_t longest);

/* Tokens of these that the plan has workspace for, of all sequences together. */
int64_t nsai_expand_capacity(const nsai_problem *problem, int branch);

/* The most tokens of all sequences that so many new tokens are worth expanding. */
int64_t nsai_expand_reach(int64_t tokens);

/* Whether a call expands them: if all its sequences fit, and are no more than
 * its new tokens are worth. The lengths are known on the device alone, so each counts as `longest`. */
bool nsai_expand_serves(const nsai_problem *problem, int branch, int64_t tokens, int32_t seqs,
                        int64_t longest);

#endif /* NSAI_PLAN_EXPAND_H */
