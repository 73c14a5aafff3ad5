/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What ranks that run a plan together must have alike: they would else wait for each other, or compute
 * other bits.
 *
 * Tuning records are compared by what they lead to: for each stage the row that does it, and its forms
 * with tiles and the number of work items from which each serves, after what a compiler refused. A
 * record (nsai_decisions) changes nothing else of a plan. The digest of all records, nsa_records_digest, is
 * not compared: it differs where ranks hold records of other problems or GPUs, which no plan
 * here follows. Nor is the version of NVRTC, which can change bits where rows and tiles are the same.
 */
#ifndef NSAI_PLAN_DIGEST_H
#define NSAI_PLAN_DIGEST_H

#include "plan/plan.h"
#include "ranks/comm.h"

/* The library, its kernel templates, the device. */
#define NSAI_COMMON_FIELDS 3

/* The members of nsai_problem that are no part of the model: X(member). */
#define NSAI_PROBLEM_FIELDS(X)                                                                     \
  X(op)                                                                                            \
  X(selection)                                                                                     \
  X(overlap)                                                                                       \
  X(max_seqs)                                                                                      \
  X(max_probe_rows)                                                                                \
  X(max_tokens)                                                                                    \
  X(max_kv_tokens)                                                                                 \
  X(max_kv_len)                                                                                    \
  X(page_size)                                                                                     \
  X(max_q_len)                                                                                     \
  X(window_ring)                                                                                   \
  X(index_lse)                                                                                     \
  X(kv_dtype)                                                                                      \
  X(cmp_dtype)                                                                                     \
  X(split_from)                                                                                    \
  X(expand_bytes)                                                                                  \
  X(select_dense_below)                                                                            \
  X(count_reads)                                                                                   \
  X(recompute)                                                                                     \
  X(ranks)                                                                                         \
  X(max_pieces)                                                                                    \
  X(unit_tokens)                                                                                   \
  X(head_groups)
#define NSAI_COUNT_ONE(member) +1

/* The model, the problem's members, the variant with its tiles of each stage, cuBLASLt's version, and whether
 * runtime.check_inputs is full. */
#define NSAI_PLAN_FIELDS (1 + (NSAI_PROBLEM_FIELDS(NSAI_COUNT_ONE)) + NSAI_STAGE_COUNT + 2)

/* What all plans of a context have in common. */
void nsai_digest_common(const nsa_ctx *ctx, nsai_agree_field out[NSAI_COMMON_FIELDS]);

/* What a plan has of its own. */
void nsai_digest_plan_fields(const nsa_plan *plan, nsai_agree_field out[NSAI_PLAN_FIELDS]);

/* Both together: nsa_plan.digest. */
void nsai_digest_plan(const nsa_plan *plan, unsigned char out[NSAI_DIGEST_BYTES]);

#endif /* NSAI_PLAN_DIGEST_H */
