/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Which candidates run together. A combination is one run: of every stage it has a candidate
 * that has not run yet, or a substitute once all have run. Candidates of a stage that another
 * candidate fuses wait for a combination without the fusing one.
 */
#include "tune/internal.h"

/* The position in each stage's list of candidates. */
typedef struct walk {
  int next[NSAI_STAGE_COUNT];
} walk;

/* Returns the next live candidate and moves `*at` past it. */
static measured_candidate *take_next(const candidates *c, int *at) {
  while (*at < c->count)
    if (c->item[(*at)++].alive) return &c->item[*at - 1];
  return NULL;
}

/* Whether candidates of these stages wait for a combination. */
static bool waits(const tune_task *task, const walk *w, uint32_t stages) {
  for (int i = 0; i < task->stage_count; i++) {
    int at = w->next[i];
    if (stages >> task->candidates[i].stage & 1 && take_next(&task->candidates[i], &at))
      return true;
  }
  return false;
}

static const measured_candidate *stand_in(const tune_task *task, const candidates *c,
                                          const walk *w) {
  const measured_candidate *first = &c->item[0];
  return c->unfused >= 0 && waits(task, w, first->what.variant->fuses) ? &c->item[c->unfused]
                                                                       : first;
}

/* Makes the next combination. Returns false when it would consist of substitutes only. */
static bool step(const tune_task *task, walk *w, nsai_decisions *out,
                 measured_candidate *taken[NSAI_STAGE_COUNT]) {
  uint32_t fused = 0;
  bool any = false;
  *out = (nsai_decisions){ .why = "the tuner" };
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *c = &task->candidates[i];
    taken[i] = NULL;
    if (fused >> c->stage & 1) continue;
    taken[i] = take_next(c, &w->next[i]);
    const measured_candidate *runs = taken[i] ? taken[i] : stand_in(task, c, w);
    out->stage[c->stage] = runs->what;
    fused |= runs->what.variant->fuses;
    any |= taken[i] != NULL;
  }
  return any;
}

int nsai_tune_combinations(const tune_task *task) {
  walk w = { { 0 } };
  nsai_decisions decisions;
  measured_candidate *taken[NSAI_STAGE_COUNT];
  int combinations = 0;
  while (step(task, &w, &decisions, taken)) combinations++;
  return combinations ? combinations : 1;
}

void nsai_tune_combination(const tune_task *task, int combination, nsai_decisions *out,
                           measured_candidate *taken[NSAI_STAGE_COUNT]) {
  walk w = { { 0 } };
  for (int i = 0; i <= combination; i++) (void)step(task, &w, out, taken);
}

bool nsai_tune_unfused(const tune_task *task, nsai_decisions *out,
                       measured_candidate *taken[NSAI_STAGE_COUNT]) {
  uint32_t fused = 0;
  bool differs = false;
  *out = (nsai_decisions){ .why = "the tuner" };
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *c = &task->candidates[i];
    taken[i] = NULL;
    if (fused >> c->stage & 1) continue;
    taken[i] = &c->item[c->unfused > 0 ? c->unfused : 0];
    out->stage[c->stage] = taken[i]->what;
    fused |= taken[i]->what.variant->fuses;
    differs |= c->unfused > 0;
  }
  return differs;
}

void nsai_tune_around(const tune_task *task, const measured_candidate *one, nsai_decisions *out) {
  nsai_stage stage = one->what.variant->stage;
  *out = (nsai_decisions){ .why = "the tuner" };
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *c = &task->candidates[i];
    bool unfused = c->unfused >= 0 && nsai_fuses(c->item[0].what.variant, stage);
    out->stage[c->stage] = c->item[unfused ? c->unfused : 0].what;
  }
  out->stage[stage] = one->what;
}
