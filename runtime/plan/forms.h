/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The forms of a stage. A plan of many batch sizes may hold several, each for the numbers of work
 * items (tiles of tokens times KV heads) that suit it. A run takes the first form that suits its
 * number; the last form suits any number.
 */
#ifndef NSAI_PLAN_FORMS_H
#define NSAI_PLAN_FORMS_H

#include "plan/variant.h"

/* The new tokens of a run over a cache. */
typedef struct nsai_step {
  int64_t tokens;
  int32_t num_seqs;
  bool packed; /* cu_q is given: sequences may have different numbers of new tokens */
} nsai_step;

/* Tiles of tokens that cover every sequence of a step. */
typedef struct nsai_step_tiles {
  int64_t tiles;
  int64_t seq_tiles; /* of every sequence; 0: tiles follow from cu_q */
} nsai_step_tiles;

nsai_step_tiles nsai_step_tiles_of(const nsai_problem *problem, const nsai_step *step,
                                   int32_t tile_tokens);

/* Most tiles of any step of the plan. */
int64_t nsai_most_step_tiles(const nsai_problem *problem, int32_t tile_tokens);

/* The form of the stage that takes the step. The stage has at least one form. */
const nsai_chosen_form *nsai_choice_form_for(const nsai_choice *choice, nsai_stage stage,
                                             const nsai_problem *problem, const nsai_target *target,
                                             const nsai_step *step);

/* Writes for nsa_explain which numbers of sequences with one new token go by which form, where the
 * stage has several: "  steps of one token: 1 to 7 sequences by decode_pipelined of 4 x 512
 * threads, 8 to 16 by decode_pipelined of 2 x 512 threads, ...". */
void nsai_forms_write(const nsai_choice *choice, nsai_stage stage, const nsai_problem *problem,
                      const nsai_target *target, nsai_writer *text);

#endif /* NSAI_PLAN_FORMS_H */
