/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The cases that `launches` prints: plans, and a run of each.
 */
#ifndef TEST_LAUNCH_CASES_H
#define TEST_LAUNCH_CASES_H

#include <stdint.h>

/* Additions of a case to the smallest run. */
enum {
  OUTPUTS = 1,     /* every optional output; backward: o_branch, lse, k_cmp and v_cmp as inputs */
  FLOAT_GRADS = 2, /* d_o and the gradients in f32 */
  ACCUMULATE = 4,
  CU_Q = 8,         /* with a cache: cu_q is given */
  SHARED_LISTS = 16 /* one selection for all KV heads */
};

typedef enum call { CALL_OP, CALL_COMPRESS, CALL_SELECT } call;

#define MAX_SETTINGS 4

/* A plan, a run of it, and settings of the configuration. 0: as in the configuration; for the
 * run: as the plan. */
typedef struct scenario {
  const char *name;
  int32_t op;
  int64_t max_tokens, max_kv_len;
  int32_t max_seqs, max_q_len, page_size, window_ring;
  int32_t selection, overlap, probe_rows;
  int64_t tokens; /* of the run */
  int32_t seqs;   /* of the run; packed operations: 0 means no batch */
  uint32_t branches, wants;
  call call;
  const char *set[MAX_SETTINGS];
} scenario;

/* Both end with a case without a name. */
extern const scenario launch_cases[];
extern const scenario
    launch_forced[]; /* whose stages are forced to each row of the variant table */

#endif /* TEST_LAUNCH_CASES_H */
