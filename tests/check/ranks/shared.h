/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Memory that the ranks of a run share, be they threads or processes: their results, the gradients
 * of weights, which are partial sums, NCCL's id, and a place to meet. It works without the
 * communicator that is under test.
 */
#ifndef CHK_RANKS_SHARED_H
#define CHK_RANKS_SHARED_H

#include "verify/result.h"

#include <nsa/ranks.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Elements of the weights' gradients that a rank can leave. Pages that nobody writes cost nothing.
 */
#define CHK_SHARED_PARTIALS ((size_t)64 << 20)

typedef struct chk_shared {
  int32_t size;
  atomic_llong arrived;            /* calls of chk_shared_meet, of all ranks */
  int64_t meetings[NSA_MAX_RANKS]; /* and of each */
  atomic_int broken;               /* a rank is gone: nobody waits for it */
  atomic_int released;             /* of faults: the stalled rank may go on */
  atomic_int named;                /* of faults: errors that name batch.kv_len and the bad rank */
  char nccl_id[NSA_NCCL_ID_BYTES];
  nsa_status status[NSA_MAX_RANKS]; /* why the rank cannot go on: no GPU, an error of a file */
  nsa_status mine[NSA_MAX_RANKS];   /* of chk_shared_all_well */
  bool passed[NSA_MAX_RANKS];       /* the process came to its end */
  long long outcomes[3];            /* of a list, counted by rank 0 */
  nsai_verify_result result[NSA_MAX_RANKS];
  float *partials[NSA_MAX_RANKS];
} chk_shared;

/* Of `size` ranks. NSA_E_NOMEM. Processes must be forked after it. */
nsa_status chk_shared_create(int32_t size, chk_shared **out);
void chk_shared_destroy(chk_shared *shared);

/* Waits until all ranks have made this call as often. False: a rank is gone, or did not come for
 * CHK_SHARED_PATIENCE seconds. */
#define CHK_SHARED_PATIENCE 240
bool chk_shared_meet(chk_shared *shared, int32_t rank);

/* The same without naps, so that the ranks go on at nearly the same time. */
bool chk_shared_meet_now(chk_shared *shared, int32_t rank);

/* The error of a rank that waited for one that has failed. */
#define CHK_SHARED_OTHER "another rank has failed"

/* Whether all ranks have come so far. Every rank calls it with its own status. */
bool chk_shared_all_well(chk_shared *shared, int32_t rank, nsa_status mine);

/* Keeps this thread's error as the reason for which `rank` cannot go on. Nobody waits for it. */
void chk_shared_stop(chk_shared *shared, int32_t rank, nsa_status status);

/* The first status[rank] that is not NSA_OK, with the text of its result. */
nsa_status chk_shared_status(const chk_shared *shared);

#endif /* CHK_RANKS_SHARED_H */
