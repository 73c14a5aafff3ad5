/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Compressed entries in codes that a prefill first expands to fp16 in the workspace, where the kernel of
 * the compressed branch reads them (data/expanded_entries.cuh): the rows `*_expanded_sm90`.
 */
#ifndef NSAI_VARIANTS_ATTEND_EXPANDED_H
#define NSAI_VARIANTS_ATTEND_EXPANDED_H

#include "plan/spec.h"
#include "run/params.h"

/* Adds a reason where entries are no codes, or those of one sequence need too much workspace. */
void nsai_legal_expanded(const nsai_problem *problem, nsai_reasons *reasons);

/* Fills the spec of kv_cache_expand_entries, and adds to that of the kernel that reads its results. */
void nsai_expand_specify(const nsai_problem *problem, nsai_kernel_spec *expand,
                         nsai_kernel_spec *reader);

/* Bytes of expanded keys and values. */
void nsai_expanded_workspace(const nsai_problem *problem, int64_t *k_bytes, int64_t *v_bytes);

/* Where the entries of this run lie. */
NsaiExpanded nsai_expanded_entries(const nsai_run *run, nsai_buffer k, nsai_buffer v);

/* Enqueues kv_cache_expand_entries. */
nsa_status nsai_expand_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                               const NsaiExpanded *to);

#endif /* NSAI_VARIANTS_ATTEND_EXPANDED_H */
