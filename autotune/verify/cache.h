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

#define NSAI_VERIFY_CACHE_SEQS 64

typedef struct nsai_verify_cache_case {
  nsai_problem problem; /* of NSA_OP_DECODE or NSA_OP_PREFILL: model, page_size, max_q_len */
  nsai_verify_fill fill;
  uint64_t seed;
  int32_t seqs;                          /* 1 to NSAI_VERIFY_CACHE_SEQS */
  int32_t len[NSAI_VERIFY_CACHE_SEQS];   /* tokens of each, the new ones among them; 0: padded */
  int32_t q_len[NSAI_VERIFY_CACHE_SEQS]; /* new tokens; of a decode step all the same */
} nsai_verify_cache_case;

typedef enum nsai_verify_cache_slot {
  NSAI_VERIFY_CACHE_Q,
  NSAI_VERIFY_CACHE_GATE, /* value, or the MLP's x */
  NSAI_VERIFY_CACHE_GATE_W1,
  NSAI_VERIFY_CACHE_GATE_W2,
  NSAI_VERIFY_CACHE_K,
  NSAI_VERIFY_CACHE_V = NSAI_VERIFY_CACHE_K + NSA_BRANCHES,
  NSAI_VERIFY_CACHE_K_CMP = NSAI_VERIFY_CACHE_V + NSA_BRANCHES,
  NSAI_VERIFY_CACHE_V_CMP,
  NSAI_VERIFY_CACHE_TABLE,
  NSAI_VERIFY_CACHE_LEN,
  NSAI_VERIFY_CACHE_CU_Q,
  NSAI_VERIFY_CACHE_FIRST_OUTPUT,
  NSAI_VERIFY_CACHE_O = NSAI_VERIFY_CACHE_FIRST_OUTPUT,
  NSAI_VERIFY_CACHE_LSE,
  NSAI_VERIFY_CACHE_IDX = NSAI_VERIFY_CACHE_LSE + NSA_BRANCHES,
  NSAI_VERIFY_CACHE_SLOTS
} nsai_verify_cache_slot;

typedef struct nsai_verify_cache_setup {
  const nsai_verify_device *device;
  nsai_verify_cache_case c;
  int threads;
  int64_t tokens, blocks; /* rows of q; selection blocks of the longest sequence */
  nsa_tensor view[NSAI_VERIFY_CACHE_SLOTS]; /* data NULL; ndim 0: absent */
  nsai_verify_buffer buffer[NSAI_VERIFY_CACHE_SLOTS];
  /* The reference's answers, f32 and contiguous, on the blocks `on`: first those of its own. */
  nsa_tensor want_o, want_lse[NSA_BRANCHES], importance, topn, on;
} nsai_verify_cache_setup;

/* Makes and uploads the tensors, and asks the reference. NSA_E_NOMEM, or what the driver says. The court
 * is to be destroyed in any case. */
nsa_status nsai_verify_cache_setup_create(const nsai_verify_device *device,
                                          const nsai_verify_cache_case *c, int threads,
                                          nsai_verify_cache_setup *out);
void nsai_verify_cache_setup_destroy(nsai_verify_cache_setup *setup);

/* Runs the plan and judges what it left. Wrong results are failures in `result`; a status says that the
 * run failed, or that nothing could be judged. */
nsa_status nsai_verify_cache_check(nsai_verify_cache_setup *setup, const nsai_trial_plan *plan,
                                   nsai_verify_result *result);

#endif /* NSAI_VERIFY_CACHE_H */
