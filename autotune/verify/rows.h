/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Which token rows of a case are held against the reference, and room for its answers.
 */
#ifndef NSAI_VERIFY_ROWS_H
#define NSAI_VERIFY_ROWS_H

#include "reference/reference.h"
#include "verify/case.h"

/* Ascending token rows: all of a small case; of a large one the first and last of each sequence,
 * rows at block edges, and random ones. Returns the count; *out is the caller's to free, NULL when
 * memory is out or there is no token. */
int64_t nsai_verify_sample_tokens(const nsai_verify_case *c, int64_t **out);

/* Multiply-adds of the whole forward in the reference: what the CPU device would need. */
double nsai_verify_case_cost(const nsai_verify_case *c);

/* Every head of every token, with float64 results for the outputs of the mask: bit 0 o, bit 1 + b
 * o_branch[b] and lse[b]. */
nsa_status nsai_verify_rows_create(const nsai_verify_case *c, const int64_t *tokens, int64_t count,
                                   uint32_t outputs, nsai_reference_rows *rows);
void nsai_verify_rows_destroy(nsai_reference_rows *rows);

#endif /* NSAI_VERIFY_ROWS_H */
