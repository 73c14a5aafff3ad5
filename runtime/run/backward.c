/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Order of the stages of the backward pass: gates, and compressed keys where the caller has none;
 * lists; statistics of every query row and dQ; the gate MLP; dK and dV, with phi. Nothing is added
 * by atomics: every run gives the same bits.
 */
#include "run/params.h"

/* A part of a stage outside of the stage's events: every row does it alike, and the tuner does not
 * time it. */
static nsa_status enqueue_part(const nsai_run *run, nsai_stage stage, const nsai_span *part) {
  const nsai_form *form = nsai_plan_form(run->plan, stage);
  return form->variant->enqueue(run, form, part);
}

nsa_status nsai_enqueue_backward(const nsai_run *run) {
  const nsai_span whole = { .token_end = run->sizes.tokens };
  const nsai_span prepare = { .prepare = true }, gate = { .gate = true };
  NSAI_TRY(enqueue_part(run, NSAI_STAGE_BACKWARD_Q, &prepare));
  NSAI_TRY(nsai_enqueue_gates(run));
  if (nsai_run_has(run, NSA_CMP) && !nsai_present(&run->io->kv.k_cmp))
    NSAI_TRY(nsai_enqueue_compress(run));
  const bool fused = nsai_run_fuses(run, NSAI_STAGE_BACKWARD_KV);
  const nsai_stage keys = fused ? NSAI_STAGE_BACKWARD_Q : NSAI_STAGE_BACKWARD_KV;
  if (!fused) NSAI_TRY(nsai_enqueue_stage(run, NSAI_STAGE_BACKWARD_KV, &prepare));
  if (!nsai_plan_form(run->plan, NSAI_STAGE_BACKWARD_Q)->variant->awaits_keys)
    NSAI_TRY(nsai_await_keys(run));
  NSAI_TRY(nsai_enqueue_stage(run, NSAI_STAGE_BACKWARD_Q, &whole));
  if (run->plan->problem.model.gate == NSAI_GATE_MLP) NSAI_TRY(enqueue_part(run, keys, &gate));
  return fused ? NSA_OK : nsai_enqueue_stage(run, NSAI_STAGE_BACKWARD_KV, &whole);
}
