/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * From records to decisions.
 */
#include "tune.h"

#include <math.h>
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

/* The search for the nearest record. */
typedef struct recall {
  const nsa_ctx *ctx;
  const char *key;
  int64_t tokens;
  nsai_record *best;
  double distance; /* of lengths: |log(ratio)| */
  bool failed;     /* out of memory */
} recall;

static bool same_device(const nsa_ctx *ctx, const nsai_record *r) {
  return !strcmp(r->device, ctx->device.name) && !strcmp(r->arch, ctx->target.arch) &&
         r->sms == ctx->device.sm_count;
}

static bool visit(void *user, const nsai_record_item *item) {
  recall *r = user;
  const nsai_record *record = item->record;
  size_t length = strlen(r->key);
  if (!record || item->hidden || !same_device(r->ctx, record)) return true;
  if (strncmp(record->problem, r->key, length) || record->bucket < 1) return true;
  if (strspn(record->problem + length, "0123456789") != strlen(record->problem + length))
    return true;
  double distance = fabs(log((double)record->bucket / (double)r->tokens));
  if (r->best && distance >= r->distance) return true;
  nsai_record_destroy(r->best);
  r->best = NULL;
  r->distance = distance;
  r->failed = nsai_record_copy(record, &r->best) != NSA_OK;
  return !r->failed;
}

static nsai_record *nearest(nsa_ctx *ctx, const nsai_problem *problem, int32_t overlap) {
  char key[512];
  nsai_problem asked = *problem;
  nsai_writer text = nsai_writer_open(key, sizeof key);
  recall r = { .ctx = ctx, .key = key, .tokens = problem->max_kv_len };
  asked.overlap = overlap;
  nsai_tune_key(&asked, 0, &text);
  if (text.used >= sizeof key) return NULL;
  /* Out of memory is no reason to fail a plan: it is made as without a record. */
  if (nsai_records_each(ctx->records, visit, &r) != NSA_OK || r.failed) {
    nsai_record_destroy(r.best);
    return NULL;
  }
  return r.best;
}

/* Once a context: timings of other versions may have other winners. */
static void warn_of_age(nsa_ctx *ctx, const nsai_record *record) {
  nsai_record now = { 0 };
  nsai_tune_environment(ctx, &now);
  bool old = strcmp(now.library, record->library) || strcmp(now.templates, record->templates) ||
             strcmp(now.driver, record->driver);
  pthread_mutex_lock(&ctx->lock);
  bool say = old && !ctx->warned_record;
  ctx->warned_record |= old;
  pthread_mutex_unlock(&ctx->lock);
  if (say)
    nsai_log(&ctx->logger, NSA_LOG_WARN, "tune",
             "a record was measured with library %s, driver %s, other than now (%s, %s) or with "
             "other kernels: it is used; `nsa-autotune tune` measures anew",
             record->library, record->driver, now.library, now.driver);
}

/* Candidates that this library does not know decide nothing. */
static void decide(const nsai_record *record, nsai_decisions *out) {
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    const nsai_timing *t = nsai_record_chosen(record, nsai_stage_name((nsai_stage)s));
    nsai_candidate candidate;
    if (t && nsai_candidate_parse(t->candidate, (nsai_stage)s, &candidate))
      out->stage[s] = candidate;
  }
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
  int32_t other = problem->overlap == NSA_OVERLAP_HIGH ? NSA_OVERLAP_LOW : NSA_OVERLAP_HIGH;
  nsai_record *record = nearest(ctx, problem, problem->overlap);
  bool exact = record != NULL;
  if (!record && problem->op == NSA_OP_FORWARD) record = nearest(ctx, problem, other);
  if (!record) {
    nsai_write(&why, "no record of this device and problem: nsa_tune makes one");
    return;
  }
  warn_of_age(ctx, record);
  decide(record, out);
  nsai_write(&why, "record of %lld tokens%s, level %s, %s", (long long)record->bucket,
             exact ? "" : " with the other overlap", record->level, record->date);
  nsai_record_destroy(record);
}

bool nsai_tune_is_recorded(nsa_ctx *ctx, const nsai_problem *problem) {
  nsai_record *record = nearest(ctx, problem, problem->overlap);
  double ratio = record ? (double)record->bucket / (double)problem->max_kv_len : 0;
  nsai_record_destroy(record);
  return ratio >= 0.5 && ratio <= 2;
}
