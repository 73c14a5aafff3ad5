/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * From records to decisions. A record decides only among the variants that it timed. Where the
 * heuristic chooses a variant that was not a candidate of the record (at another length or group
 * size it may not have been legal), the record does not decide the stage. Stages that a winner
 * fuses have decisions of their own as well: nsai_choose uses them where the winner cannot run,
 * and ignores them where the heuristic's choice fuses the stage.
 */
#include "records/decide.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nsai_tune_key(const nsai_problem *problem, int64_t tokens, nsai_writer *out) {
  nsai_problem_add_model(out, problem);
  if (problem->op == NSA_OP_FORWARD || problem->op == NSA_OP_PREFILL)
    nsai_write(out, ":ov=%s", problem->overlap == NSA_OVERLAP_HIGH ? "high" : "low");
  if (problem->op == NSA_OP_DECODE) nsai_write(out, ":q%d", problem->max_q_len);
  if (problem->op == NSA_OP_BACKWARD && problem->recompute)
    nsai_write(out, ":%s", problem->recompute == NSAI_RECOMPUTE_ALWAYS ? "again" : "saved");
  if (problem->op == NSA_OP_DECODE && tokens) nsai_write(out, ":seq%d", problem->max_seqs);
  nsai_write(out, ":len");
  if (tokens) nsai_write(out, "%lld", (long long)tokens);
}

/* ---- keys ---- */

/* Reads digits and moves past them; false: there are none. */
static bool take_number(const char **text, int64_t *out) {
  char *end;
  if (!isdigit((unsigned char)**text)) return false;
  *out = strtoll(*text, &end, 10);
  *text = end;
  return true;
}

/* "h64/4". */
static bool take_heads(const char *part, nsai_tune_key_parts *out) {
  int64_t heads, kv_heads;
  if (*part++ != 'h' || !take_number(&part, &heads) || *part++ != '/' ||
      !take_number(&part, &kv_heads) || *part || kv_heads < 1 || heads < kv_heads ||
      heads > INT32_MAX)
    return false;
  out->heads = (int32_t)heads;
  out->kv_heads = (int32_t)kv_heads;
  return true;
}

/* "len65536", "len". */
static bool take_length(const char *part, nsai_tune_key_parts *out) {
  int64_t tokens = 0;
  if (strncmp(part, "len", 3) != 0) return false;
  part += 3;
  (void)take_number(&part, &tokens);
  if (*part) return false;
  out->tokens = tokens;
  return true;
}

/* "seq64". */
static bool take_seqs(const char *part, nsai_tune_key_parts *out) {
  int64_t seqs;
  if (strncmp(part, "seq", 3) != 0) return false;
  part += 3;
  if (!take_number(&part, &seqs) || *part || seqs < 1 || seqs > INT32_MAX) return false;
  out->seqs = (int32_t)seqs;
  return true;
}

static bool take_overlap(const char *part, nsai_tune_key_parts *out) {
  if (!strcmp(part, "ov=low"))
    out->overlap = NSA_OVERLAP_LOW;
  else if (!strcmp(part, "ov=high"))
    out->overlap = NSA_OVERLAP_HIGH;
  else
    return false;
  return true;
}

bool nsai_tune_key_parse(const char *key, nsai_tune_key_parts *out) {
  char copy[NSAI_TUNE_KEY_BYTES], *left = copy;
  nsai_writer rest = nsai_writer_open(out->rest, sizeof out->rest);
  out->heads = out->kv_heads = out->overlap = out->seqs = 0;
  out->tokens = 0;
  if (snprintf(copy, sizeof copy, "%s", key) >= (int)sizeof copy) return false;
  for (const char *part; (part = strsep(&left, ":")) != NULL;)
    if (!take_heads(part, out) && !take_length(part, out) && !take_overlap(part, out) &&
        !take_seqs(part, out))
      nsai_write(&rest, "%s%s", rest.used ? ":" : "", part);
  return out->heads > 0;
}

/* ---- the search ---- */

/* The record a choice comes from, and how far its problem is from this one. */
typedef struct source {
  bool there;
  bool other_heads, other_overlap;
  /* |log(ratio)|; of length and number of sequences together */
  double group_distance, length_distance;
  int32_t group, seqs;
  int64_t tokens;
} source;

/* For each stage, the nearest record whose winner can run here. */
typedef struct decision_search {
  nsa_ctx *ctx;
  const nsai_problem *problem;
  nsai_tune_key_parts asked;
  nsai_decisions *out;
  /* The heuristic's choice for each stage; for a stage that another choice fuses, its choice
   * among unfused variants. NULL: none. */
  const nsai_variant *heuristic[NSAI_STAGE_COUNT];
  source stage[NSAI_STAGE_COUNT];
  source nearest;           /* the nearest record of all; the next fields are copied from it */
  char level[16], date[32]; /* ... */
  bool complete;            /* its tuning run was completed */
  bool old;                 /* it was measured in another environment */
  char library[32], driver[32];
} decision_search;

static bool same_device(const nsa_ctx *ctx, const nsai_record *r) {
  return !strcmp(r->device, ctx->device.name) && !strcmp(r->arch, ctx->target.arch) &&
         r->sms == ctx->device.sm_count;
}

static double log_ratio(double a, double b) { return fabs(log(a / b)); }

/* Whether a record's problem differs from this one at most in heads, overlap and length; if so,
 * how far it is. */
static bool is_related(const decision_search *r, const nsai_record *record, source *out) {
  nsai_tune_key_parts key;
  if (!nsai_tune_key_parse(record->problem, &key) || !key.tokens || record->bucket < 1 ||
      strcmp(key.rest, r->asked.rest) != 0)
    return false;
  int32_t group = key.heads / key.kv_heads;
  *out = (source){
    .there = true,
    .other_heads = key.heads != r->asked.heads || key.kv_heads != r->asked.kv_heads,
    .other_overlap = key.overlap != r->asked.overlap,
    .group_distance = log_ratio(group, r->asked.heads / r->asked.kv_heads),
    .length_distance = log_ratio((double)record->bucket, (double)r->problem->max_kv_len) +
                       (key.seqs ? log_ratio(key.seqs, r->problem->max_seqs) : 0),
    .group = group,
    .seqs = key.seqs,
    .tokens = record->bucket,
  };
  return true;
}

/* Records of the same problem come first. Among those, the first difference in this order
 * decides. */
static bool is_nearer(const source *a, const source *b) {
  if (!b->there) return true;
  if (a->other_heads != b->other_heads) return b->other_heads;
  if (a->other_overlap != b->other_overlap) return b->other_overlap;
  if (a->group_distance < b->group_distance || a->group_distance > b->group_distance)
    return a->group_distance < b->group_distance;
  return a->length_distance < b->length_distance;
}

/* Whether a candidate of a record is a candidate here. The record may come from another version
 * of the library, another length or another group size. */
static bool serves(const decision_search *r, const nsai_timing *t, nsai_stage stage,
                   nsai_candidate *out) {
  nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
  if (!nsai_candidate_parse(t->candidate, stage, out)) return false;
  nsai_variant_reasons(r->ctx->config, r->problem, &r->ctx->target, out->variant, &reasons);
  nsai_tiles_reasons(out->variant, r->problem, &r->ctx->target, &out->tiles, &reasons);
  return !reasons.count;
}

/* The fastest candidate that fuses no stage, for a winner that fuses several and cannot run
 * here. */
static bool serves_unfused(const decision_search *r, const nsai_record *record, nsai_stage stage,
                           nsai_candidate *out) {
  const nsai_timing *winner = nsai_record_chosen(record, nsai_stage_name(stage));
  nsai_candidate one;
  int32_t count;
  double best = (double)INFINITY;
  if (!nsai_candidate_parse(winner->candidate, stage, &one) || !one.variant->fuses) return false;
  const nsai_timing *t = nsai_record_stage(record, nsai_stage_name(stage), &count);
  for (int32_t i = 0; i < count; i++) {
    bool timed = t[i].rounds && (t[i].state == NSAI_TIMING_OK || t[i].state == NSAI_TIMING_DROPPED);
    if (!timed || t[i].ms >= best || !serves(r, &t[i], stage, &one) || one.variant->fuses) continue;
    best = t[i].ms;
    *out = one;
  }
  return isfinite(best);
}

/* Whether a variant was a candidate in the record, including wrong and refused ones. */
static bool knows(const nsai_record *record, nsai_stage stage, const nsai_variant *variant) {
  int32_t count;
  const nsai_timing *t = nsai_record_stage(record, nsai_stage_name(stage), &count);
  size_t length = strlen(variant->name);
  for (int32_t i = 0; i < count; i++) {
    /* Compare names only: another version of the library may have other tile sizes. */
    bool same =
        strcspn(t[i].candidate, " ") == length && !strncmp(t[i].candidate, variant->name, length);
    if (same && (t[i].rounds || t[i].state != NSAI_TIMING_OK)) return true;
  }
  return false;
}

/* Whether the record may replace the heuristic's choice by this candidate. */
static bool may_decide(const decision_search *r, const nsai_record *record, nsai_stage stage,
                       const nsai_candidate *candidate) {
  const nsai_variant *heuristic_variant = r->heuristic[stage];
  return !heuristic_variant || heuristic_variant == candidate->variant ||
         knows(record, stage, heuristic_variant);
}

static bool visit(void *user, const nsai_record_item *item) {
  decision_search *r = user;
  const nsai_record *record = item->record;
  source from;
  bool decides = false;
  if (!record || item->hidden || !same_device(r->ctx, record) || !is_related(r, record, &from))
    return true;
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    const nsai_timing *t = nsai_record_chosen(record, nsai_stage_name((nsai_stage)s));
    nsai_candidate candidate;
    if (!t || !is_nearer(&from, &r->stage[s])) continue;
    if (!serves(r, t, (nsai_stage)s, &candidate) &&
        !serves_unfused(r, record, (nsai_stage)s, &candidate))
      continue;
    if (!may_decide(r, record, (nsai_stage)s, &candidate)) continue;
    r->out->stage[s] = candidate;
    r->stage[s] = from;
    decides = true;
  }
  if (!decides || !is_nearer(&from, &r->nearest)) return true;
  r->nearest = from;
  r->complete = record->complete;
  snprintf(r->level, sizeof r->level, "%s", record->level);
  snprintf(r->date, sizeof r->date, "%s", record->date);
  snprintf(r->library, sizeof r->library, "%s", record->library);
  snprintf(r->driver, sizeof r->driver, "%s", record->driver);
  r->old = !nsai_tune_is_current(r->ctx, record);
  return true;
}

/* Keeps records of one kind for all stages: when there are records of the problem with its
 * overlap, others are ignored. */
static void drop_weaker(decision_search *r) {
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    source *from = &r->stage[s];
    if (!from->there || (from->other_heads == r->nearest.other_heads &&
                         from->other_overlap == r->nearest.other_overlap))
      continue;
    from->there = false;
    r->out->stage[s] = (nsai_candidate){ 0 };
  }
}

/* If no variant can serve the problem, the code that makes the plan reports it. */
static void find_heuristic(decision_search *r) {
  const nsa_ctx *ctx = r->ctx;
  nsai_choice choice;
  if (nsai_choose(ctx->config, r->problem, &ctx->target, NULL, NULL, &choice) != NSA_OK) return;
  for (int i = 0; i < NSAI_STAGE_COUNT; i++) {
    nsai_stage s = (nsai_stage)i;
    bool fused = nsai_is_fused(&choice, s);
    r->heuristic[s] = fused ? nsai_choose_unfused(ctx->config, r->problem, &ctx->target, s).variant
                            : choice.variant[s];
  }
}

/* Fills `r` and its decisions; false: no record decides anything. Lack of memory does not fail
 * the plan: it is made as without a record. */
static bool search(nsa_ctx *ctx, const nsai_problem *problem, nsai_decisions *decisions,
                   decision_search *r) {
  char key[NSAI_TUNE_KEY_BYTES];
  nsai_writer text = nsai_writer_open(key, sizeof key);
  *r = (decision_search){ .ctx = ctx, .problem = problem, .out = decisions };
  memset(decisions->stage, 0, sizeof decisions->stage);
  nsai_tune_key(problem, 0, &text);
  if (text.used >= sizeof key || !nsai_tune_key_parse(key, &r->asked)) return false;
  find_heuristic(r);
  if (nsai_records_each(nsai_context_records(ctx), visit, r) != NSA_OK) return false;
  drop_weaker(r);
  decisions->other_heads = r->nearest.other_heads;
  return r->nearest.there;
}

/* ---- decisions ---- */

nsai_records *nsai_context_records(const nsa_ctx *ctx) { return ctx->tuning_state; }

static bool stop_at_first(void *user, const nsai_record_item *item) {
  (void)user;
  (void)item;
  return false;
}

nsa_status nsai_records_attach(nsa_ctx *ctx, const nsai_cache_options *folders, void **state) {
  nsai_records *records = NULL;
  NSAI_TRY(nsai_records_open(folders, &records));
  /* Reads the files once, here; plans find the records in memory. If there is not enough memory
   * for them, the next plan tries again. */
  if (ctx->config->tuning.records && !ctx->deviceless)
    (void)nsai_records_each(records, stop_at_first, NULL);
  *state = records;
  return NSA_OK;
}

void nsai_records_detach(void *state) { nsai_records_close(state); }

/* Once per context: timings of other versions may have other winners. */
static void warn_of_age(nsa_ctx *ctx, const decision_search *r) {
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

/* Whether the decision for another stage fuses this one. */
static bool is_fused(const decision_search *r, int stage) {
  for (int s = 0; s < stage; s++) {
    const nsai_variant *v = r->out->stage[s].variant;
    if (v && nsai_fuses(v, (nsai_stage)stage)) return true;
  }
  return false;
}

/* "record of 1024, 4096 tokens, level quick, 2026-11-20T...", "record of G 16, 4096 tokens,
 * ...", or of decode steps "record of 64 x 4096 tokens, ...". */
static void write_why(const decision_search *r, nsai_writer *why) {
  int32_t group = 0; /* the last group size that was written */
  nsai_write(why, "record of ");
  for (int s = 0, count = 0; s < NSAI_STAGE_COUNT; s++) {
    const source *from = &r->stage[s];
    bool written = !from->there || is_fused(r, s);
    for (int k = 0; k < s; k++)
      written |= r->stage[k].there && r->stage[k].tokens == from->tokens &&
                 r->stage[k].group == from->group;
    if (written) continue;
    bool write_group = from->other_heads && from->group != group;
    nsai_write(why, "%s", !count++ ? "" : write_group ? "; " : ", ");
    if (write_group) nsai_write(why, "G %d, ", from->group);
    if (from->seqs) nsai_write(why, "%d x ", from->seqs);
    nsai_write(why, "%lld", (long long)from->tokens);
    group = from->group;
  }
  nsai_write(why, " tokens%s, level %s, %s",
             r->nearest.other_overlap ? " with the other overlap" : "", r->level, r->date);
}

void nsai_records_decide(nsa_ctx *ctx, const nsai_problem *problem, nsai_decisions *out) {
  nsai_writer why = nsai_writer_open(out->why, sizeof out->why);
  decision_search r;
  *out = (nsai_decisions){ 0 };
  if (!ctx->tuning_state || ctx->deviceless) {
    nsai_write(&why, "no device, so no record");
  } else if (!ctx->config->tuning.records) {
    nsai_write(&why, "tuning.records is false: no record is asked");
  } else if (!search(ctx, problem, out, &r)) {
    nsai_write(&why, "no record of this device and problem: nsa_tune makes one");
  } else {
    warn_of_age(ctx, &r);
    write_why(&r, &why);
  }
}

bool nsai_tune_is_recorded(nsa_ctx *ctx, const nsai_problem *problem) {
  nsai_decisions decisions;
  decision_search r;
  return search(ctx, problem, &decisions, &r) && !r.nearest.other_heads &&
         !r.nearest.other_overlap && r.complete && r.nearest.length_distance <= log(2.01);
}
