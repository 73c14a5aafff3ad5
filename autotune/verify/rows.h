/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Which token rows of a case are compared with the reference, and memory for the reference's
 * results.
 */
#ifndef NSAI_VERIFY_ROWS_H
#define NSAI_VERIFY_ROWS_H

#include "reference/reference.h"
#include "verify/case.h"

/* Ascending token rows: all of a small case; of a large one the first and last of each sequence,
 * rows at block edges, and random ones. Returns the count. The caller frees *out, which is NULL
 * when memory is exhausted or there is no token. */
int64_t nsai_verify_sample_tokens(const nsai_verify_case *c, int64_t **out);

/* Multiply-adds of the complete forward in the reference: the cost on the CPU device. */
double nsai_verify_case_cost(const nsai_verify_case *c);

/* Every head of every token, with float64 results for the outputs of the mask: bit 0 o, bit 1 + b
 * o_branch[b] and lse[b]. */
nsa_status nsai_verify_rows_create(const nsai_verify_case *c, const int64_t *tokens, int64_t count,
                                   uint32_t outputs, nsai_reference_rows *rows);
void nsai_verify_rows_destroy(nsai_reference_rows *rows);

#endif /* NSAI_VERIFY_ROWS_H */
