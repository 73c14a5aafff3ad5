/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Which candidates run together. A column is one run: of every stage a contender that has had none
 * yet, or a stand-in. Contenders of a stage that another contender covers wait for a column without
 * that one.
 */
#include "tune/internal.h"

/* How far each contest has been gone through. */
typedef struct walk {
  int next[NSAI_STAGE_COUNT];
} walk;

/* The next contender alive; `*at` goes behind it. */
static contender *take_next(const contest *c, int *at) {
  while (*at < c->count)
    if (c->item[(*at)++].alive) return &c->item[*at - 1];
  return NULL;
}

/* Whether contenders of these stages wait for a column. */
static bool waits(const tune_task *task, const walk *w, uint32_t stages) {
  for (int i = 0; i < task->contests; i++) {
    int at = w->next[i];
    if (stages >> task->contest[i].stage & 1 && take_next(&task->contest[i], &at)) return true;
  }
  return false;
}

static const contender *stand_in(const tune_task *task, const contest *c, const walk *w) {
  const contender *first = &c->item[0];
  return c->apart >= 0 && waits(task, w, first->what.variant->covers) ? &c->item[c->apart] : first;
}

/* Makes the next column; false: it has stand-ins only. */
static bool step(const tune_task *task, walk *w, nsai_decisions *out,
                 contender *taken[NSAI_STAGE_COUNT]) {
  uint32_t covered = 0;
  bool any = false;
  *out = (nsai_decisions){ .why = "the tuner" };
  for (int i = 0; i < task->contests; i++) {
    const contest *c = &task->contest[i];
    taken[i] = NULL;
    if (covered >> c->stage & 1) continue;
    taken[i] = take_next(c, &w->next[i]);
    const contender *runs = taken[i] ? taken[i] : stand_in(task, c, w);
    out->stage[c->stage] = runs->what;
    covered |= runs->what.variant->covers;
    any |= taken[i] != NULL;
  }
  return any;
}

int nsai_tune_columns(const tune_task *task) {
  walk w = { { 0 } };
  nsai_decisions decisions;
  contender *taken[NSAI_STAGE_COUNT];
  int columns = 0;
  while (step(task, &w, &decisions, taken)) columns++;
  return columns ? columns : 1;
}

void nsai_tune_column(const tune_task *task, int column, nsai_decisions *out,
                      contender *taken[NSAI_STAGE_COUNT]) {
  walk w = { { 0 } };
  for (int i = 0; i <= column; i++) (void)step(task, &w, out, taken);
}

bool nsai_tune_apart(const tune_task *task, nsai_decisions *out,
                     contender *taken[NSAI_STAGE_COUNT]) {
  uint32_t covered = 0;
  bool differs = false;
  *out = (nsai_decisions){ .why = "the tuner" };
  for (int i = 0; i < task->contests; i++) {
    const contest *c = &task->contest[i];
    taken[i] = NULL;
    if (covered >> c->stage & 1) continue;
    taken[i] = &c->item[c->apart > 0 ? c->apart : 0];
    out->stage[c->stage] = taken[i]->what;
    covered |= taken[i]->what.variant->covers;
    differs |= c->apart > 0;
  }
  return differs;
}

void nsai_tune_around(const tune_task *task, const contender *one, nsai_decisions *out) {
  nsai_stage stage = one->what.variant->stage;
  *out = (nsai_decisions){ .why = "the tuner" };
  for (int i = 0; i < task->contests; i++) {
    const contest *c = &task->contest[i];
    bool apart = c->apart >= 0 && nsai_covers(c->item[0].what.variant, stage);
    out->stage[c->stage] = c->item[apart ? c->apart : 0].what;
  }
  out->stage[stage] = one->what;
}
