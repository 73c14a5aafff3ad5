/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * From records to decisions. Stages that a winner covers have decisions of their own all the same:
 * nsai_choose follows them where it is not the winner that serves.
 */
#include "tune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nsai_tune_key(const nsai_problem *problem, int64_t tokens, nsai_writer *out) {
  nsai_problem_add_geometry(out, problem);
  if (problem->op == NSA_OP_FORWARD)
    nsai_write(out, ":ov=%s", problem->overlap == NSA_OVERLAP_HIGH ? "high" : "low");
  if (problem->deterministic) nsai_write(out, ":det");
  if (problem->parity) nsai_write(out, ":parity");
  nsai_write(out, ":len");
  if (tokens) nsai_write(out, "%lld", (long long)tokens);
}

/* The search: of each stage, the nearest record whose winner can serve here. */
typedef struct recall {
  nsa_ctx *ctx;
  const nsai_problem *problem;
  const char *key;
  nsai_decisions *out;
  double distance[NSAI_STAGE_COUNT]; /* of lengths: |log(ratio)| */
  int64_t tokens[NSAI_STAGE_COUNT];  /* of the record that decides; 0: none */
  char level[16], date[32];          /* of the nearest of all */
  double nearest;
  bool complete; /* the nearest came to its end */
  bool old;      /* one that decides is of another environment */
  char library[32], driver[32];
} recall;

static bool same_device(const nsa_ctx *ctx, const nsai_record *r) {
  return !strcmp(r->device, ctx->device.name) && !strcmp(r->arch, ctx->target.arch) &&
         r->sms == ctx->device.sm_count;
}

static bool is_of_key(const recall *r, const nsai_record *record) {
  size_t length = strlen(r->key);
  const char *tokens = record->problem + length;
  return !strncmp(record->problem, r->key, length) && record->bucket > 0 && *tokens &&
         strspn(tokens, "0123456789") == strlen(tokens);
}

/* Whether a candidate of a record, which may be another library's or another length's, is one
 * here. */
static bool serves(const recall *r, const nsai_timing *t, nsai_stage stage, nsai_candidate *out) {
  nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
  if (!nsai_candidate_parse(t->candidate, stage, out)) return false;
  nsai_variant_judge(r->ctx->config, r->problem, &r->ctx->target, out->variant, &reasons);
  nsai_tiles_judge(out->variant, r->problem, &r->ctx->target, &out->tiles, &reasons);
  return !reasons.count;
}

/* Where the winner covers further stages and cannot serve here, the fastest that covers none. */
static bool serves_apart(const recall *r, const nsai_record *record, nsai_stage stage,
                         nsai_candidate *out) {
  const nsai_timing *winner = nsai_record_chosen(record, nsai_stage_name(stage));
  nsai_candidate one;
  int32_t count;
  double best = (double)INFINITY;
  if (!nsai_candidate_parse(winner->candidate, stage, &one) || !one.variant->covers) return false;
  const nsai_timing *t = nsai_record_stage(record, nsai_stage_name(stage), &count);
  for (int32_t i = 0; i < count; i++) {
    bool timed = t[i].rounds && (t[i].state == NSAI_TIMING_OK || t[i].state == NSAI_TIMING_DROPPED);
    if (!timed || t[i].ms >= best || !serves(r, &t[i], stage, &one) || one.variant->covers)
      continue;
    best = t[i].ms;
    *out = one;
  }
  return isfinite(best);
}

static bool visit(void *user, const nsai_record_item *item) {
  recall *r = user;
  const nsai_record *record = item->record;
  bool decides = false;
  if (!record || item->hidden || !same_device(r->ctx, record) || !is_of_key(r, record)) return true;
  double distance = fabs(log((double)record->bucket / (double)r->problem->max_kv_len));
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    const nsai_timing *t = nsai_record_chosen(record, nsai_stage_name((nsai_stage)s));
    nsai_candidate candidate;
    if (!t || (r->tokens[s] && distance >= r->distance[s])) continue;
    if (!serves(r, t, (nsai_stage)s, &candidate) &&
        !serves_apart(r, record, (nsai_stage)s, &candidate))
      continue;
    r->out->stage[s] = candidate;
    r->distance[s] = distance;
    r->tokens[s] = record->bucket;
    decides = true;
  }
  if (!decides || (r->level[0] && distance >= r->nearest)) return true;
  r->nearest = distance;
  r->complete = record->complete;
  snprintf(r->level, sizeof r->level, "%s", record->level);
  snprintf(r->date, sizeof r->date, "%s", record->date);
  snprintf(r->library, sizeof r->library, "%s", record->library);
  snprintf(r->driver, sizeof r->driver, "%s", record->driver);
  r->old = !nsai_tune_is_current(r->ctx, record);
  return true;
}

/* Fills `r` and its decisions; false: no record decides anything. Out of memory is no reason to fail
 * a plan: it is made as without a record. */
static bool search(nsa_ctx *ctx, const nsai_problem *problem, int32_t overlap,
                   nsai_decisions *decisions, recall *r) {
  char key[512];
  nsai_problem asked = *problem;
  nsai_writer text = nsai_writer_open(key, sizeof key);
  *r = (recall){ .ctx = ctx, .problem = problem, .key = key, .out = decisions };
  memset(decisions->stage, 0, sizeof decisions->stage);
  asked.overlap = overlap;
  nsai_tune_key(&asked, 0, &text);
  if (text.used >= sizeof key) return false;
  return nsai_records_each(ctx->records, visit, r) == NSA_OK && r->level[0];
}

/* Once a context: timings of other versions may have other winners. */
static void warn_of_age(nsa_ctx *ctx, const recall *r) {
  pthread_mutex_lock(&ctx->lock);
  bool say = r->old && !ctx->warned_record;
  ctx->warned_record |= r->old;
  pthread_mutex_unlock(&ctx->lock);
  if (!say) return;
  nsai_record now = { 0 };
  nsai_tune_environment(ctx, &now);
  nsai_log(&ctx->logger, NSA_LOG_WARN, "tune",
           "a record was measured with library %s, driver %s, other than now (%s, %s) or with "
           "other kernels: it is used; `nsa-autotune tune` measures anew",
           r->library, r->driver, now.library, now.driver);
}

/* Whether what was decided for another stage covers this one. */
static bool is_covered(const recall *r, int stage) {
  for (int s = 0; s < stage; s++) {
    const nsai_variant *v = r->out->stage[s].variant;
    if (v && nsai_covers(v, (nsai_stage)stage)) return true;
  }
  return false;
}

/* "records of 1024, 4096 tokens, level quick, 2026-11-20T...". */
static void write_why(const recall *r, bool exact, nsai_writer *why) {
  int count = 0;
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    bool told = !r->tokens[s] || is_covered(r, s);
    for (int k = 0; k < s; k++) told |= r->tokens[k] == r->tokens[s];
    if (told) continue;
    nsai_write(why, "%s%lld", count ? ", " : "record of ", (long long)r->tokens[s]);
    count++;
  }
  nsai_write(why, " tokens%s, level %s, %s", exact ? "" : " with the other overlap", r->level,
             r->date);
}

void nsai_decisions_recall(nsa_ctx *ctx, const nsai_problem *problem, nsai_decisions *out) {
  nsai_writer why = nsai_writer_open(out->why, sizeof out->why);
  memset(out->stage, 0, sizeof out->stage);
  out->why[0] = 0;
  if (!ctx->records || ctx->deviceless) {
    nsai_write(&why, "no device, so no record");
    return;
  }
  if (!ctx->config->tuning.records) {
    nsai_write(&why, "tuning.records is false: no record is asked");
    return;
  }
  recall r;
  int32_t other = problem->overlap == NSA_OVERLAP_HIGH ? NSA_OVERLAP_LOW : NSA_OVERLAP_HIGH;
  bool exact = search(ctx, problem, problem->overlap, out, &r);
  if (!exact && (problem->op != NSA_OP_FORWARD || !search(ctx, problem, other, out, &r))) {
    nsai_write(&why, "no record of this device and problem: nsa_tune makes one");
    return;
  }
  warn_of_age(ctx, &r);
  write_why(&r, exact, &why);
}

bool nsai_tune_is_recorded(nsa_ctx *ctx, const nsai_problem *problem) {
  nsai_decisions decisions;
  recall r;
  return search(ctx, problem, problem->overlap, &decisions, &r) && r.complete &&
         r.nearest <= log(2.01);
}
