/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The time by which candidates of one stage are compared. A candidate that fuses further stages
 * saves their separate time. So where a stage has such a candidate, each candidate is compared
 * by its own time plus the best times of those stages that a rival fuses and it does not.
 * Records keep the measured time of each candidate's own launches, not this sum.
 */
#include "tune/internal.h"

#include <math.h>
#include <string.h>

/* The time of a stage by its best candidate. All zero: the stage takes no part. */
typedef struct alone {
  double ms, spread;
  uint32_t fuses;
} alone;

static bool is_measured(const nsai_timing *t) { return t->rounds && t->state == NSAI_TIMING_OK; }

/* `all`: the stages that at least one candidate fuses. */
static nsai_fused_time compute_fused_time(const nsai_timing *timing, uint32_t fuses, uint32_t all,
                                          const alone stages[NSAI_STAGE_COUNT]) {
  nsai_fused_time out = { .ms = timing->rounds ? timing->ms : (double)INFINITY, .fuses = fuses };
  double square = timing->ms * timing->spread * timing->ms * timing->spread;
  uint32_t left = all & ~fuses;
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    if (!(left >> s & 1) || !(stages[s].ms > 0)) continue;
    out.rest |= 1u << s;
    out.ms += stages[s].ms;
    square += stages[s].ms * stages[s].spread * stages[s].ms * stages[s].spread;
    left &= ~stages[s].fuses; /* stages after this one */
  }
  out.spread = isfinite(out.ms) && out.ms > 0 ? sqrt(square) / out.ms : 0;
  return out;
}

/* ---- candidates ---- */

/* The winner if there is one, else the fastest. */
static alone best_of(const candidates *c) {
  const measured_candidate *best = NULL;
  for (int k = 0; k < c->count; k++) {
    const measured_candidate *one = &c->item[k];
    if (!is_measured(&one->timing)) continue;
    if (!best || one->timing.chosen ||
        (!best->timing.chosen && one->fused_time.ms < best->fused_time.ms))
      best = one;
  }
  if (!best) return (alone){ .ms = (double)INFINITY };
  return (alone){ best->timing.ms, best->timing.spread, best->what.variant->fuses };
}

void nsai_tune_fused_times(tune_task *task) {
  alone stages[NSAI_STAGE_COUNT] = { 0 };
  /* A fused stage comes after the stage that fuses it. */
  for (int i = task->stage_count - 1; i >= 0; i--) {
    candidates *c = &task->candidates[i];
    uint32_t all = 0;
    for (int k = 0; k < c->count; k++)
      if (is_measured(&c->item[k].timing)) all |= c->item[k].what.variant->fuses;
    for (int k = 0; k < c->count; k++)
      c->item[k].fused_time =
          compute_fused_time(&c->item[k].timing, c->item[k].what.variant->fuses, all, stages);
    stages[c->stage] = best_of(c);
  }
}

/* ---- records ---- */

static uint32_t fuses_of(const nsai_timing *timing, nsai_stage stage) {
  nsai_candidate candidate;
  return nsai_candidate_parse(timing->candidate, stage, &candidate) ? candidate.variant->fuses : 0;
}

static nsai_stage stage_of(const char *name) {
  int s = 0;
  while (s < NSAI_STAGE_COUNT && strcmp(name, nsai_stage_name((nsai_stage)s)) != 0) s++;
  return (nsai_stage)s;
}

nsai_fused_time nsai_record_fused_time(const nsai_record *record, const nsai_timing *timing) {
  alone stages[NSAI_STAGE_COUNT] = { 0 };
  nsai_stage stage = stage_of(timing->stage);
  int32_t count;
  uint32_t all = 0;
  const nsai_timing *rivals = nsai_record_stage(record, timing->stage, &count);
  for (int32_t i = 0; i < count; i++)
    if (is_measured(&rivals[i])) all |= fuses_of(&rivals[i], stage);
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    const char *name = nsai_stage_name((nsai_stage)s);
    const nsai_timing *best = nsai_record_chosen(record, name);
    if (best)
      stages[s] = (alone){ best->ms, best->spread, fuses_of(best, (nsai_stage)s) };
    else if (nsai_record_stage(record, name, &count))
      stages[s].ms = (double)INFINITY;
  }
  return compute_fused_time(timing, fuses_of(timing, stage), all, stages);
}

bool nsai_record_is_fused(const nsai_record *record, const char *stage) {
  nsai_stage fused = stage_of(stage);
  for (int s = 0; s < NSAI_STAGE_COUNT && fused < NSAI_STAGE_COUNT; s++) {
    const nsai_timing *winner = nsai_record_chosen(record, nsai_stage_name((nsai_stage)s));
    if (winner && fuses_of(winner, (nsai_stage)s) >> fused & 1) return true;
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

void nsai_fused_time_write(const nsai_fused_time *fused_time, nsai_writer *out) {
  write_stages(fused_time->fuses, "fuses ", out);
  write_stages(fused_time->rest, out->used ? "; with " : "with ", out);
}
