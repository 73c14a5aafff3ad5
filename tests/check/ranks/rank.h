/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One rank's part of a problem: its tensors, which are rows of the whole's, its runs, and their
 * comparison with the run of one rank on the same device.
 */
#ifndef CHK_RANKS_RANK_H
#define CHK_RANKS_RANK_H

#include "plans.h"
#include "ranks/problem.h"
#include "ranks/shared.h"

#define CHK_PARTIALS 2 /* dK and dV that pass through phi */

/* The run of one rank over all tokens. Threads share one; each process has its own. */
typedef struct chk_whole {
  nsai_verify_case c, forward_case;
  nsai_trial_run trial, forward; /* forward: of a backward pass, which needs its outputs */
  /* Of an accumulating backward pass: the images of gradients before it, NULL: none */
  uint8_t *before[NSAI_VERIFY_SLOTS];
  /* Of a backward pass through phi's weights, by chk_partials_measure; NULL: not measured. For each
   * token the sum over ranks of the squares of what they add, and what the last rank adds. */
  double *squares[CHK_PARTIALS];
  float *last[CHK_PARTIALS];
} chk_whole;

/* Makes and runs it; the outputs' images then hold the results. chk_whole_destroy also
 * after a failure. */
nsa_status chk_whole_create(chk_plans *plans, const chk_ranks_problem *p, chk_whole *whole);
void chk_whole_destroy(chk_whole *whole);

/* Whether the bounds of a problem's sums on a GPU need what each rank adds, and measures it, by one
 * run for each rank. The whole's results are as before. */
bool chk_partials_matter(const chk_ranks_problem *p);
nsa_status chk_partials_measure(chk_whole *whole, const chk_ranks_problem *p);
void chk_partials_destroy(chk_whole *whole);
int chk_partials_of(int slot); /* the index of squares and last; -1: none */

/* Damage to the results of rank 0, which the comparison must find. */
typedef struct chk_ranks_damage {
  const char *name;
  int slot;
  float add, factor; /* to an element in the middle */
  int run;           /* in this run, from 0 on */
  bool lost;         /* instead: what the last rank adds is missing */
} chk_ranks_damage;

typedef struct chk_rank_options {
  int repeat;                     /* runs, all with the same bits */
  int32_t timeout_ms;             /* 0: the communicator's default */
  const chk_ranks_damage *damage; /* NULL: none */
  bool as_gpu;                    /* with a GPU's bounds on the CPU device, too */
  int serve_damage;               /* of a problem over a cache: CHK_SERVE_DAMAGE_* (serve.h) */
  int32_t peer_bytes;             /* of communicators, which must then have peer memory; 0: none */
  int32_t overlap_sms;            /* of communicators */
  int64_t copy_bytes;             /* likewise, and runs must use them */
} chk_rank_options;

typedef struct chk_rank {
  int32_t rank;
  const chk_rank_options *options;
  const chk_ranks_problem *p;
  chk_shared *shared;
  chk_plans *plans;
  const nsai_verify_device *device; /* with a stream of this rank */
  nsa_comm *comm;                   /* NULL: one rank alone, for which there is no shard either */
  /* NULL: the rank makes inputs of its own, which are the whole's in distribution. It then has the
   * memory of its tokens alone, and nothing can be compared. */
  const chk_whole *whole;
  /* Of a problem over a cache, in place of `whole` (serve.h) */
  const struct chk_serve_record *record;
  nsai_verify_result *result;

  /* set by chk_rank_prepare */
  nsai_verify_case c; /* of the rank's tokens */
  nsa_shard *shard;
  nsai_trial_plan plan;
  nsai_verify_tensors data;
  /* On a GPU: the alignment that promises one rank's bits (nsa_shard_options). 0: the problem's is a multiple of
   * it. Bits are compared in any case. */
  int64_t least_alignment;
} chk_rank;

/* An NCCL communicator of a context, whose id rank 0 makes. Every rank calls it, in a process of
 * its own, with its status so far. When a rank has failed, or rank 0 gets no id, none waits for
 * NCCL: `mine`, or NSA_E_RANKS with CHK_SHARED_OTHER. */
nsa_status chk_rank_nccl(chk_shared *shared, int32_t rank, nsa_status mine, nsa_ctx *ctx,
                         const nsa_comm_options *options, nsa_comm **comm);

/* The plan over ranks of a problem, the same on every rank. */
nsa_status chk_rank_plan(chk_plans *plans, const chk_ranks_problem *p, const nsa_shard *shard,
                         nsai_trial_plan *out);

/* Makes the shard, the plan and the tensors. chk_rank_release also after a failure. */
nsa_status chk_rank_prepare(chk_rank *r);
void chk_rank_release(chk_rank *r);

/* Enqueues the run, and waits for it. */
nsa_status chk_rank_enqueue(const chk_rank *r);
nsa_status chk_rank_execute(chk_rank *r);

/* Everything: prepares, agrees, runs `repeat` times, compares into r->result. Every rank calls it.
 */
void chk_rank_check(chk_rank *r);

/* Behind nsa_comm_agree: skips a run whose K and V the transport moves, which is no check of --copy-bytes. All ranks
 * find the same. */
bool chk_rank_misses_copies(chk_rank *r);

/* On rank 0 does options.damage, if it is of this run, to the fetched outputs. */
void chk_rank_damage(chk_rank *r, int run);

/* Compares the fetched outputs of the rank's rows with the whole's, and leaves the partial sums of
 * weights' gradients in shared memory. */
void chk_rank_compare(chk_rank *r);

/* Compares the sums of the weights' gradients of all ranks with the whole's. */
void chk_rank_compare_sums(const chk_shared *shared, const chk_ranks_problem *p,
                           const chk_whole *whole, nsai_verify_result *result);

/* Whether each row of a slot belongs to a token or to a compressed entry, or the slot holds
 * weights. */
bool chk_slot_has_rows(int slot);
bool chk_slot_has_entries(int slot);
bool chk_slot_is_sum(int slot);

/* Rows of the whole that a piece has: of tokens, or of the entries that end in it. */
typedef struct chk_rows {
  int64_t first, count;
} chk_rows;
chk_rows chk_piece_rows(const chk_ranks_problem *p, int slot, const nsa_piece *piece);

/* Elements of a view, contiguous or not, by a running number; and of one row. */
int64_t chk_view_row(const nsa_tensor *t);
int64_t chk_view_offset(const nsa_tensor *t, int64_t row, int64_t i);

#endif /* CHK_RANKS_RANK_H */
