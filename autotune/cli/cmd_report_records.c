/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The records of the file's model, as events of the tuner, and the criteria that they decide.
 */
#include "cli/cmd_report_impl.h"

#include "tune/tune.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_ours(report *r, const nsai_record *record) {
  bool same = false;
  for (int i = 0; i < REPORT_OPS; i++) {
    size_t length = strlen(r->model[i]);
    char after = !strncmp(record->problem, r->model[i], length) ? record->problem[length] : '?';
    same |= after == ':' || !after;
  }
  if (!same) return false;
  /* Without a GPU, the first record determines the device. */
  if (!r->record_device[0])
    snprintf(r->record_device, sizeof r->record_device, "%s",
             r->device[0] ? r->device : record->device);
  bool here = !strcmp(r->record_device, record->device);
  r->elsewhere += !here;
  return here;
}

/* `timing` NULL: an event of the problem. */
static void add_event(report *r, const nsai_record *record, int32_t kind, const nsai_timing *timing,
                      double gain) {
  nsa_tune_event event = { .struct_size = (uint32_t)sizeof event,
                           .kind = kind,
                           .problem = record->problem,
                           .tokens = record->bucket,
                           .stage = timing ? timing->stage : "",
                           .candidate = timing ? timing->candidate : "",
                           .ms = timing ? timing->ms : (double)NAN,
                           .spread = timing ? timing->spread : 0,
                           .gain = gain,
                           .note = timing ? timing->note : "" };
  nsai_tune_results_add(&r->results, &event);
}

static void add_baseline(report *r, const nsai_record *record, const nsai_baseline *baseline) {
  nsai_timing whole = { .ms = baseline->ms, .spread = baseline->spread };
  snprintf(whole.candidate, sizeof whole.candidate, "%s", baseline->name);
  add_event(r, record, NSA_TUNE_BASELINE, &whole, 0);
}

/* The choice for a stage, and the heuristic's choice if it was timed, too. */
static void add_choice(report *r, const nsai_record *record, const nsai_timing *chosen) {
  double gain = (double)NAN;
  nsai_fused_time fused_time = nsai_record_fused_time(record, chosen);
  nsai_timing shown = *chosen;
  nsai_writer note = nsai_writer_open(shown.note, sizeof shown.note);
  for (int32_t i = 0; i < record->timing_count; i++) {
    const nsai_timing *t = &record->timings[i];
    if (!t->is_default || strcmp(t->stage, chosen->stage) != 0) continue;
    double heuristic = nsai_record_fused_time(record, t).ms;
    if (isfinite(heuristic) && heuristic > 0 && isfinite(fused_time.ms))
      gain = 1 - fused_time.ms / heuristic;
  }
  shown.note[0] = 0;
  nsai_fused_time_write(&fused_time, &note);
  if (isfinite(fused_time.ms)) {
    shown.ms = fused_time.ms;
    shown.spread = fused_time.spread;
  }
  add_event(r, record, NSA_TUNE_CHOSEN, &shown, gain);
}

static bool add_record(void *user, const nsai_record_item *item) {
  static const int32_t kinds[NSAI_TIMING_STATES] = { NSA_TUNE_TIMED, NSA_TUNE_REFUSED,
                                                     NSA_TUNE_WRONG, NSA_TUNE_TIMED };
  report *r = user;
  const nsai_record *record = item->record;
  char version[32];
  if (!record || item->hidden || !is_ours(r, record)) return true;
  snprintf(version, sizeof version, "%d.%d.%d", NSA_VERSION_MAJOR, NSA_VERSION_MINOR,
           NSA_VERSION_PATCH);
  r->records++;
  r->unfinished += !record->complete;
  r->outdated += strcmp(version, record->library) != 0;
  add_event(r, record, NSA_TUNE_PROBLEM, NULL, 0);
  for (int32_t i = 0; i < record->timing_count; i++) {
    const nsai_timing *t = &record->timings[i];
    if (t->state >= 0 && t->state < NSAI_TIMING_STATES) add_event(r, record, kinds[t->state], t, 0);
    if (t->chosen && !nsai_record_is_fused(record, t->stage)) add_choice(r, record, t);
  }
  for (int32_t i = 0; i < record->baseline_count; i++)
    add_baseline(r, record, &record->baselines[i]);
  if (record->complete) add_event(r, record, NSA_TUNE_DONE, NULL, 0);
  return true;
}

static void check_records(report *r) {
  if (!r->records) {
    nsai_report_check_records(r, "records", SKIPPED,
                              "none for this model%s%s; `nsa-autotune tune %s` makes them",
                              r->record_device[0] ? " on " : "", r->record_device, r->a->file);
    return;
  }
  nsai_report_check_records(r, "the records' searches came to their end",
                            r->unfinished ? FAIL : PASS, "%" PRId64 " of %" PRId64 " did",
                            r->records - r->unfinished, r->records);
  nsai_report_check_records(r, "the records are of this version", r->outdated ? FAIL : PASS,
                            "%" PRId64 " of %" PRId64 " are", r->records - r->outdated, r->records);
}

static nsa_status check_speed(report *r) {
  size_t count, same;
  nsai_tune_point *points;
  NSAI_TRY(nsai_tune_points(&r->results, &points, &count));
  for (size_t at = 0; at < count; at += same) {
    char inputs[NSAI_TUNE_INPUTS_BYTES], name[96];
    same = nsai_tune_series(points + at, count - at);
    const nsai_tune_point *last = &points[at + same - 1];
    snprintf(name, sizeof name, "sparse is faster at the longest length, %s",
             nsai_tune_inputs(last->problem, inputs));
    nsai_report_check_records(r, name, last->forward_ms < last->dense_ms ? PASS : FAIL,
                              "%.2f times as fast as %s at %" PRId64 " tokens",
                              last->dense_ms / last->forward_ms, last->dense, last->tokens);
  }
  free(points);
  return NSA_OK;
}

nsa_status nsai_report_records(report *r) {
  nsai_cli_progress silent = { 0 };
  nsai_logger logger;
  nsai_records *records = NULL;
  nsai_logger_init(&logger, nsai_cli_log, &silent, NSA_LOG_WARN);
  nsai_cache_options o = { .dir = r->config->runtime.cache_dir,
                           .mode = NSAI_CACHE_READ_ONLY,
                           .limit = r->config->runtime.cache_limit,
                           .logger = &logger,
                           .look = true };
  nsai_cache_tier_info tier = { .missing = true };
  nsa_status status = nsai_records_open(&o, &records);
  if (status == NSA_OK) status = nsai_records_each(records, add_record, r);
  bool refused = records && nsai_records_tier(records, 0, &tier) && !tier.used && !tier.missing;
  nsai_records_close(records);
  nsai_logger_fini(&logger);
  NSAI_TRY(status);
  nsai_tune_results_sort(&r->results);
  if (r->results.failed) return nsai_fail_nomem("the records", 0);
  if (refused)
    nsai_report_check_records(r, "records", FAIL, "their folder in %s cannot be used: %s",
                              tier.path, tier.state);
  else
    check_records(r);
  return check_speed(r);
}
