/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What records say about a problem: the keys they are stored under, the environment they were
 * measured in, and what they decide.
 */
#ifndef NSAI_RECORDS_DECIDE_H
#define NSAI_RECORDS_DECIDE_H

#include "plan/context.h"
#include "plan/problem.h"
#include "records/record.h"

/* The records of a context; NULL: it has none (CPU device). */
nsai_records *nsai_context_records(const nsa_ctx *ctx);

/* The tuning interface of plan/parts.h. `attach` opens the records as part of a context and
 * reads them if plans will use them; `detach` closes them. */
nsa_status nsai_records_attach(nsa_ctx *ctx, const nsai_cache_options *folders, void **state);
void nsai_records_detach(void *state);

/* Appends the key under which a problem with `tokens` tokens per sequence is recorded. 0 tokens:
 * only the part before the length, which records of all lengths share. The recorded problem has
 * one sequence; a decode step has the problem's max_seqs. Only forwards and prefills have an
 * overlap. The page size of a cache is not part of the key, because the same bytes are read. Nor
 * are the outputs that a backward pass finds saved by its forward: it is timed without them. */
void nsai_tune_key(const nsai_problem *problem, int64_t tokens, nsai_writer *out);

/* A parsed key: the properties in which related problems may differ, and the rest. */
#define NSAI_TUNE_KEY_BYTES 512
typedef struct nsai_tune_key_parts {
  int32_t heads, kv_heads;
  int32_t overlap; /* NSA_OVERLAP_*; 0: the operation has none */
  int32_t seqs;    /* of a decode step; 0: another operation, or the key of all lengths */
  int64_t tokens;  /* 0: the key of all lengths */
  char rest[NSAI_TUNE_KEY_BYTES]; /* the other parts, in their order */
} nsai_tune_key_parts;

/* Parses a key; false: the text is not a key. */
bool nsai_tune_key_parse(const char *key, nsai_tune_key_parts *out);

/* What the records of the context's device decide for a problem. Each stage is decided by the
 * record of the nearest length, measured by ratio (for a decode step by length and batch
 * together), preferably with the problem's overlap. If the problem has no record, records of
 * problems that differ only in the number of heads are used: the nearest group size by ratio
 * whose choice is legal here, then the nearest length, preferably with the problem's overlap.
 * Never fails: without a record nothing is decided, and `why` says so. */
void nsai_records_decide(nsa_ctx *ctx, const nsai_problem *problem, nsai_decisions *out);

/* Fills in library, templates, driver and compiler of a record. The compiler stays "" until it
 * has been opened. */
void nsai_tune_environment(const nsa_ctx *ctx, nsai_record *record);

/* Whether a record was measured with this library, these kernels and this driver. */
bool nsai_tune_is_current(const nsa_ctx *ctx, const nsai_record *record);

/* Whether there is a complete record of the problem and its overlap at a length within a factor of
 * two. */
bool nsai_tune_is_recorded(nsa_ctx *ctx, const nsai_problem *problem);

#endif /* NSAI_RECORDS_DECIDE_H */
