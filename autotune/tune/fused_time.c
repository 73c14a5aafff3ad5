/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What candidates of one stage are compared by. One that covers further stages saves the time of
 * these; so where there is such a one, each is compared by its own time and that of the stages which
 * a rival covers and it does not, as these take by their best candidates. Nothing else is changed by
 * it: a record says of each candidate what was measured of its own stage.
 */
#include "tune/internal.h"

#include <math.h>
#include <string.h>

/* What a stage takes by its best candidate. All zero: the stage takes no part. */
typedef struct alone {
  double ms, spread;
  uint32_t covers;
} alone;

static bool is_measured(const nsai_timing *t) { return t->rounds && t->state == NSAI_TIMING_OK; }

/* `all`: the stages that some candidate covers. */
static nsai_weight weigh(const nsai_timing *timing, uint32_t covers, uint32_t all,
                         const alone stages[NSAI_STAGE_COUNT]) {
  nsai_weight out = { .ms = timing->rounds ? timing->ms : (double)INFINITY, .covers = covers };
  double square = timing->ms * timing->spread * timing->ms * timing->spread;
  uint32_t left = all & ~covers;
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    if (!(left >> s & 1) || !(stages[s].ms > 0)) continue;
    out.rest |= 1u << s;
    out.ms += stages[s].ms;
    square += stages[s].ms * stages[s].spread * stages[s].ms * stages[s].spread;
    left &= ~stages[s].covers; /* stages behind this one */
  }
  out.spread = isfinite(out.ms) && out.ms > 0 ? sqrt(square) / out.ms : 0;
  return out;
}

/* ---- contests ---- */

/* The winner where there is one. */
static alone best_of(const contest *c) {
  const contender *best = NULL;
  for (int k = 0; k < c->count; k++) {
    const contender *one = &c->item[k];
    if (!is_measured(&one->timing)) continue;
    if (!best || one->timing.chosen || (!best->timing.chosen && one->weight.ms < best->weight.ms))
      best = one;
  }
  if (!best) return (alone){ .ms = (double)INFINITY };
  return (alone){ best->timing.ms, best->timing.spread, best->what.variant->covers };
}

void nsai_tune_weigh(tune_task *task) {
  alone stages[NSAI_STAGE_COUNT] = { 0 };
  /* What is covered lies behind what covers it. */
  for (int i = task->contests - 1; i >= 0; i--) {
    contest *c = &task->contest[i];
    uint32_t all = 0;
    for (int k = 0; k < c->count; k++)
      if (is_measured(&c->item[k].timing)) all |= c->item[k].what.variant->covers;
    for (int k = 0; k < c->count; k++)
      c->item[k].weight = weigh(&c->item[k].timing, c->item[k].what.variant->covers, all, stages);
    stages[c->stage] = best_of(c);
  }
}

/* ---- records ---- */

static uint32_t covers_of(const nsai_timing *timing, nsai_stage stage) {
  nsai_candidate candidate;
  return nsai_candidate_parse(timing->candidate, stage, &candidate) ? candidate.variant->covers : 0;
}

static nsai_stage stage_of(const char *name) {
  int s = 0;
  while (s < NSAI_STAGE_COUNT && strcmp(name, nsai_stage_name((nsai_stage)s)) != 0) s++;
  return (nsai_stage)s;
}

nsai_weight nsai_record_weigh(const nsai_record *record, const nsai_timing *timing) {
  alone stages[NSAI_STAGE_COUNT] = { 0 };
  nsai_stage stage = stage_of(timing->stage);
  int32_t count;
  uint32_t all = 0;
  const nsai_timing *rivals = nsai_record_stage(record, timing->stage, &count);
  for (int32_t i = 0; i < count; i++)
    if (is_measured(&rivals[i])) all |= covers_of(&rivals[i], stage);
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    const char *name = nsai_stage_name((nsai_stage)s);
    const nsai_timing *best = nsai_record_chosen(record, name);
    if (best)
      stages[s] = (alone){ best->ms, best->spread, covers_of(best, (nsai_stage)s) };
    else if (nsai_record_stage(record, name, &count))
      stages[s].ms = (double)INFINITY;
  }
  return weigh(timing, covers_of(timing, stage), all, stages);
}

bool nsai_record_is_covered(const nsai_record *record, const char *stage) {
  nsai_stage covered = stage_of(stage);
  for (int s = 0; s < NSAI_STAGE_COUNT && covered < NSAI_STAGE_COUNT; s++) {
    const nsai_timing *winner = nsai_record_chosen(record, nsai_stage_name((nsai_stage)s));
    if (winner && covers_of(winner, (nsai_stage)s) >> covered & 1) return true;
  }
  return false;
}

static void write_stages(uint32_t stages, const char *before, nsai_writer *out) {
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    if (!(stages >> s & 1)) continue;
    nsai_write(out, "%s%s", before, nsai_stage_name((nsai_stage)s));
    before = ", ";
  }
}

void nsai_weight_write(const nsai_weight *weight, nsai_writer *out) {
  write_stages(weight->covers, "covers ", out);
  write_stages(weight->rest, out->used ? "; with " : "with ", out);
}
