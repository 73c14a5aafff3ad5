/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A problem of nsarankcheck, as a struct and as one line of text: how many ranks, how tokens are
 * divided among them, and the case that they compute together.
 *
 *   ranks=4:hosts=2:split=zigzag:align=16:fwd:bf16:h4/2:...    (one line, no spaces)
 *
 * hosts, a divisor of ranks, is how many hosts the ranks play, whatever they run on; without it they are on
 * those that nsa_comm_agree finds.
 * split is zigzag, contiguous or given (pieces at random begins, by the case's seed, of random
 * ranks). align is nsa_shard_options.alignment, 0: the default. autotune/verify/case.h describes
 * the rest, a fwd or a bwd whose sequences have as many query as KV tokens.
 *
 *   ranks=4:cache:decode:seed=7:longest=600    appends and decode steps over a cache whose raw pages
 *                                              lie on 4 ranks (serve.h); cache/options.h has the fields
 */
#ifndef CHK_RANKS_PROBLEM_H
#define CHK_RANKS_PROBLEM_H

#include "cache/options.h"
#include "verify/case.h"

#include <nsa/ranks.h>

typedef struct chk_ranks_problem {
  int32_t ranks, layout; /* NSA_SHARD_* */
  int32_t hosts;         /* 0: found */
  int64_t alignment;     /* 0: the default */
  nsai_verify_case c;    /* of all tokens */
  bool is_cache;         /* instead of all these but for ranks: */
  chk_cache_case cache;
} chk_ranks_problem;

#define CHK_RANKS_TEXT (NSAI_VERIFY_CASE_TEXT + 64)

/* What the communicator of a problem is made with. */
nsa_comm_options chk_ranks_comm_options(const chk_ranks_problem *p, int32_t timeout_ms);

/* Returns 0, or -1 with a sentence in `error`. */
int chk_ranks_parse(const char *text, chk_ranks_problem *p, char *error, size_t size);
void chk_ranks_print(const chk_ranks_problem *p, char *text, size_t size);

/* A random problem for `ranks` ranks, of a random model: every phi, gate, dtype, layout, kv_sharing
 * and selection, packs of 1 to 8 sequences. With `backward` half of them are backward passes.
 * `exact`: begins of pieces may be any multiple of d, which gives one rank's bits on the CPU device
 * only. */
void chk_ranks_random(uint64_t seed, int64_t number, int32_t ranks, bool backward, bool exact,
                      chk_ranks_problem *p);

/* The same over a cache, of scenarios of `longest` tokens. */
void chk_ranks_random_cache(uint64_t seed, int64_t number, int32_t ranks, int32_t longest,
                            chk_cache_codes codes, chk_ranks_problem *p);

/* The least alignment of a case's model. */
int64_t chk_ranks_stride(const nsai_verify_case *c);

/* The fixed list, texts of cases; ends with NULL. */
extern const char *const chk_ranks_cases[];

/* The shard of a problem. */
nsa_status chk_ranks_shard(const chk_ranks_problem *p, nsa_ctx *ctx, nsa_shard **out);

#endif /* CHK_RANKS_PROBLEM_H */
