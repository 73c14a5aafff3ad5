/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Raw tokens in codes that a prefill first expands to the model's dtype in the workspace, where the
 * kernels for 16 bits of the selected branch and the window read them: the rows `*_expanded_sm90`.
 * Such a row also has the kernel that reads codes, for calls whose tokens do not fit or are not worth
 * it (plan/expand.h).
 */
#ifndef NSAI_VARIANTS_ATTEND_EXPANDED_TOKENS_H
#define NSAI_VARIANTS_ATTEND_EXPANDED_TOKENS_H

#include "plan/spec.h"
#include "run/expanded.h"

/* Adds a reason where raw tokens are no codes, or no call of the plan expands those that a branch reads of
 * a sequence of problem.max_kv_len. */
void nsai_legal_expanded_tokens(const nsai_problem *problem, int branch, nsai_reasons *reasons);

/* Adds to the spec of such a kernel. */
void nsai_expanded_reader_add(nsai_kernel_spec *reader);

/* Fills the spec of kv_cache_expand_tokens for the pair that a branch reads, or for NSAI_INDEX_KEYS. */
void nsai_expand_tokens_specify(const nsai_problem *problem, int branch, nsai_kernel_spec *expand);

/* Enqueues it: of the window's pair only the tokens in windows are expanded. */
nsa_status nsai_expand_tokens_enqueue(const nsai_run *run, const nsai_kernel *kernel, int branch);

#endif /* NSAI_VARIANTS_ATTEND_EXPANDED_TOKENS_H */
