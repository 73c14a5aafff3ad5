/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Whether a plan of nsa_decode or nsa_prefill computes the right thing over a cache, by the float64
 * reference: chosen blocks by its importance, outputs on the plan's own blocks. Sequences are ragged, one
 * of them padded; pages lie scattered; what nobody wrote is NaN; outputs and the workspace lie between red
 * zones. Compressed entries are those of the keys where phi is mean, else any numbers: they are inputs.
 *
 * Many plans may be judged on one court: the reference is asked again only for blocks that differ from
 * its own. Not thread-safe.
 */
#ifndef NSAI_VERIFY_CACHE_H
#define NSAI_VERIFY_CACHE_H

#include "plan/problem.h"
#include "verify/case.h"
#include "verify/device.h"
#include "verify/result.h"
#include "verify/trial_run.h"

#define NSAI_TRIAL_KV_SEQS 64

typedef struct nsai_trial_kv_case {
  nsai_problem problem; /* of NSA_OP_DECODE or NSA_OP_PREFILL: model, page_size, max_q_len */
  nsai_trial_fill fill;
  uint64_t seed;
  int32_t seqs;                      /* 1 to NSAI_TRIAL_KV_SEQS */
  int32_t len[NSAI_TRIAL_KV_SEQS];   /* tokens of each, the new ones among them; 0: padded */
  int32_t q_len[NSAI_TRIAL_KV_SEQS]; /* new tokens; of a decode step all the same */
} nsai_trial_kv_case;

typedef enum nsai_trial_kv_slot {
  NSAI_TRIAL_KV_Q,
  NSAI_TRIAL_KV_GATE, /* value, or the MLP's x */
  NSAI_TRIAL_KV_GATE_W1,
  NSAI_TRIAL_KV_GATE_W2,
  NSAI_TRIAL_KV_K,
  NSAI_TRIAL_KV_V = NSAI_TRIAL_KV_K + NSA_BRANCHES,
  NSAI_TRIAL_KV_K_CMP = NSAI_TRIAL_KV_V + NSA_BRANCHES,
  NSAI_TRIAL_KV_V_CMP,
  NSAI_TRIAL_KV_TABLE,
  NSAI_TRIAL_KV_LEN,
  NSAI_TRIAL_KV_CU_Q,
  NSAI_TRIAL_KV_FIRST_OUTPUT,
  NSAI_TRIAL_KV_O = NSAI_TRIAL_KV_FIRST_OUTPUT,
  NSAI_TRIAL_KV_LSE,
  NSAI_TRIAL_KV_IDX = NSAI_TRIAL_KV_LSE + NSA_BRANCHES,
  NSAI_TRIAL_KV_SLOTS
} nsai_trial_kv_slot;

typedef struct nsai_trial_kv_court {
  const nsai_trial_device *device;
  nsai_trial_kv_case c;
  int threads;
  int64_t tokens, blocks;               /* rows of q; selection blocks of the longest sequence */
  nsa_tensor view[NSAI_TRIAL_KV_SLOTS]; /* data NULL; ndim 0: absent */
  nsai_trial_buffer buffer[NSAI_TRIAL_KV_SLOTS];
  /* The reference's answers, f32 and contiguous, on the blocks `on`: first those of its own. */
  nsa_tensor want_o, want_lse[NSA_BRANCHES], importance, own, on;
} nsai_trial_kv_court;

/* Makes and uploads the tensors, and asks the reference. NSA_E_NOMEM, or what the driver says. The court
 * is to be destroyed in any case. */
nsa_status nsai_trial_kv_court_create(const nsai_trial_device *device, const nsai_trial_kv_case *c,
                                      int threads, nsai_trial_kv_court *out);
void nsai_trial_kv_court_destroy(nsai_trial_kv_court *court);

/* Runs the plan and judges what it left. Wrong results are failures in `result`; a status says that the
 * run failed, or that nothing could be judged. */
nsa_status nsai_trial_kv_judge(nsai_trial_kv_court *court, const nsai_trial_plan *plan,
                               nsai_trial_result *result);

#endif /* NSAI_VERIFY_CACHE_H */
