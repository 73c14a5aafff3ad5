/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What records say about a problem: the keys they are found under, the environment they were
 * measured in, and what they decide.
 */
#ifndef NSAI_RECORDS_DECIDE_H
#define NSAI_RECORDS_DECIDE_H

#include "plan/context.h"
#include "plan/problem.h"
#include "records/record.h"

/* The records of a context; NULL: it has none (CPU device). */
nsai_records *nsai_context_records(const nsa_ctx *ctx);

/* The tuning of plan/parts.h: opens the records as the state of a context, and reads them once where
 * they will be asked; closes them. */
nsa_status nsai_records_attach(nsa_ctx *ctx, const nsai_cache_options *folders, void **state);
void nsai_records_detach(void *state);

/* Appends the key under which a problem at `tokens` tokens of a sequence is recorded; 0: the part before
 * the length, which records of all lengths share. It has one sequence, but for a decode step, which has
 * the problem's max_seqs. Only forwards and prefills know overlap. How a cache is paged is not in it: the
 * same bytes are read. Nor is what a backward pass finds kept of its forward: it is timed with nothing. */
void nsai_tune_key(const nsai_problem *problem, int64_t tokens, nsai_writer *out);

/* A key in parts: what problems that can learn from each other may differ in, and the rest. */
#define NSAI_TUNE_KEY_BYTES 512
typedef struct nsai_tune_key_parts {
  int32_t heads, kv_heads;
  int32_t overlap; /* NSA_OVERLAP_*; 0: the operation knows none */
  int32_t seqs;    /* of a decode step; 0: another operation, or the key of all lengths */
  int64_t tokens;  /* 0: the key of all lengths */
  char rest[NSAI_TUNE_KEY_BYTES]; /* the other parts, in their order */
} nsai_tune_key_parts;

/* Takes a key apart; false: it is none. */
bool nsai_tune_key_parse(const char *key, nsai_tune_key_parts *out);

/* What the records of the context's device say about a problem: each stage is decided by the one of
 * the nearest length, by ratio (of a decode step: of length and batch together), and preferably of the
 * problem's overlap. Where the problem has no
 * record, those of problems that differ in the number of heads alone serve, preferably of its
 * overlap: the one of the nearest group, by ratio, whose choice is legal here, and of the nearest
 * length. Never fails: without a record nothing is decided, and `why` says so. */
void nsai_records_decide(nsa_ctx *ctx, const nsai_problem *problem, nsai_decisions *out);

/* Fills what a record says about library, templates, driver and compiler; the compiler stays "" until
 * it has been opened. */
void nsai_tune_environment(const nsa_ctx *ctx, nsai_record *record);

/* Whether a record was measured with this library, these kernels and this driver. */
bool nsai_tune_is_current(const nsa_ctx *ctx, const nsai_record *record);

/* Whether there is a complete record of the problem and its overlap at a length within a factor of
 * two. */
bool nsai_tune_is_recorded(nsa_ctx *ctx, const nsai_problem *problem);

#endif /* NSAI_RECORDS_DECIDE_H */
