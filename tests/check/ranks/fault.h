/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Ranks that die, stall or disagree: all others must get NSA_E_RANKS within the timeout and a second,
 * and their contexts must go on. After a disagreement ranks can agree anew.
 *
 * A rank that stalled goes on when the others have given up. In one process it hears of that at once. Over NCCL it
 * may find all that they sent before they gave up, in NCCL's buffers or in its mailbox of peer memory. Its call
 * then returns NSA_OK, the results must be right, and its next call waits for the timeout in vain.
 */
#ifndef CHK_RANKS_FAULT_H
#define CHK_RANKS_FAULT_H

#include "ranks/rank.h"

typedef enum chk_fault_kind {
  CHK_FAULT_NONE, /* nothing happens: what the self-test demands to be reported */
  CHK_FAULT_KILL, /* the process ends by SIGKILL, the thread returns */
  CHK_FAULT_STALL,
  CHK_FAULT_MISMATCH,
  CHK_FAULTS,
  /* Of the self-test: all ranks make the call, and then only the bad one goes on, as one that came late. */
  CHK_FAULT_LEAVE = CHK_FAULTS
} chk_fault_kind;

extern const char *const chk_fault_names[]; /* ends with NULL */

typedef struct chk_fault {
  chk_fault_kind kind;
  bool in_agree; /* kill, stall: before nsa_comm_agree; mismatch: the plans differ. Else: before the
                  * run; the shards differ. Over a cache: in a prefill, else in a decode, whose lengths
                  * differ */
  bool is_process;
  bool sent;   /* a late rank may find what the others sent: its first call may return NSA_OK */
  int32_t bad; /* the rank */
  int32_t timeout_ms;
} chk_fault;

/* "ranks=2:fault=kill:in=agree:bad=0" */
void chk_fault_print(const chk_fault *fault, const chk_ranks_problem *p, char *text, size_t size);

/* One rank's part; every rank calls it. A killed process does not return. Over a cache: serve.h. */
void chk_fault_check(chk_rank *r, const chk_fault *fault);

#define CHK_FAULT_GRACE 1.0 /* seconds beyond the timeout */

/* Steps of it. Whether this rank is killed, and has ended if it is a process. */
bool chk_fault_kills(const chk_rank *r, const chk_fault *fault);
/* The stalled rank goes on when the others have given up. */
void chk_fault_stall(const chk_rank *r, const chk_fault *fault);
/* A call that must have failed with NSA_E_RANKS, after so many seconds of at most `most`. */
void chk_fault_demand(chk_rank *r, const chk_fault *fault, const char *call, nsa_status status,
                      double seconds, double most);
/* Likewise the first call that the fault reaches, within the timeout. True: the rank came late and the call
 * succeeded, as it may. The results must then be right, and the next call has the timeout, too. */
bool chk_fault_demand_first(chk_rank *r, const chk_fault *fault, const char *call,
                            nsa_status status, double seconds);
/* How long the next call may take. */
double chk_fault_next_seconds(const chk_fault *fault, bool succeeded);
/* Of CHK_FAULT_LEAVE: whether this rank leaves behind the first call, which must have succeeded. */
bool chk_fault_leaves(chk_rank *r, const chk_fault *fault, const char *call, nsa_status status);

/* Merges the results of all ranks, and demands what one of them must have said. */
void chk_fault_merge(const chk_shared *shared, const chk_ranks_problem *p, const chk_fault *fault,
                     nsai_verify_result *result);

/* After a fault: one rank's run in the same context gives what it gave before. */
void chk_fault_context_lives(chk_whole *whole, nsai_verify_result *result);

#endif /* CHK_RANKS_FAULT_H */
