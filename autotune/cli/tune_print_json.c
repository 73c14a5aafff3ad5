/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The results of a tuning as JSON: all measurements. A number that is not finite is null.
 */
#include "base/json.h"
#include "cli/tune_print_impl.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void json_number(nsai_writer *out, const char *name, double value) {
  if (isfinite(value))
    nsai_write(out, ", \"%s\": %.6g", name, value);
  else
    nsai_write(out, ", \"%s\": null", name);
}

static void json_candidate(nsai_writer *out, const nsa_tune_event *e, const char *state,
                           bool first) {
  nsai_write_json_member(out, first ? "\n    {" : ",\n    {", "stage", e->stage);
  nsai_write_json_member(out, ", ", "candidate", e->candidate);
  if (state) nsai_write(out, ", \"state\": \"%s\"", state);
}

static void json_chosen(nsai_writer *out, const nsai_tune_span *span) {
  bool first = true;
  nsai_write(out, ",\n   \"chosen\": [");
  for (size_t i = 0; i < span->count; i++) {
    const nsa_tune_event *e = &span->events[i];
    if (e->kind != NSA_TUNE_CHOSEN) continue;
    json_candidate(out, e, NULL, first);
    json_number(out, "ms", e->ms);
    json_number(out, "spread", nsai_tune_spread(span, e));
    json_number(out, "heuristic_ms", nsai_tune_default_ms(e));
    json_number(out, "gain", e->gain);
    nsai_write(out, "}");
    first = false;
  }
  nsai_write(out, "]");
}

static void json_candidates(nsai_writer *out, const nsai_tune_span *span) {
  bool first = true;
  nsai_write(out, ",\n   \"candidates\": [");
  for (size_t i = 0; i < span->count; i++) {
    const nsa_tune_event *e = &span->events[i];
    const char *state = nsai_tune_state(e->kind);
    if (!state) continue;
    json_candidate(out, e, state, first);
    if (e->kind == NSA_TUNE_TIMED) {
      json_number(out, "ms", e->ms);
      json_number(out, "spread", e->spread);
    }
    if (e->note[0]) nsai_write_json_member(out, ", ", "note", e->note);
    nsai_write(out, "}");
    first = false;
  }
  nsai_write(out, "]");
}

static void json_baselines(nsai_writer *out, const nsai_tune_span *span) {
  bool first = true;
  nsai_write(out, ",\n   \"baselines\": [");
  for (size_t i = 0; i < span->count; i++) {
    const nsa_tune_event *e = &span->events[i];
    if (e->kind != NSA_TUNE_BASELINE) continue;
    nsai_write_json_member(out, first ? "\n    {" : ",\n    {", "name", e->candidate);
    json_number(out, "ms", e->ms);
    json_number(out, "spread", e->spread);
    nsai_write(out, "}");
    first = false;
  }
  nsai_write(out, "]");
}

void nsai_tune_json_subject(nsai_writer *out, const nsai_tune_subject *subject) {
  nsai_write_json_member(out, "{", "file", subject->file);
  if (!subject->device) return;
  nsai_write(out, ", \"gpu\": \"cuda:%d\"", subject->gpu);
  nsai_write_json_member(out, ", ", "device", subject->device);
  nsai_write_json_member(out, ", ", "arch", subject->arch);
  nsai_write(out, ", \"sms\": %d, \"serves\": [", subject->sms);
  if (!subject->serves) nsai_write(out, "\"cuda:%d\"", subject->gpu);
  for (int32_t i = 0; i < subject->serves_count; i++)
    nsai_write(out, "%s\"cuda:%d\"", i ? ", " : "", subject->serves[i]);
  nsai_write(out, "]");
}

void nsai_tune_json_problem(nsai_writer *out, const nsai_tune_span *span) {
  const nsa_tune_event *done = nsai_tune_find(span, NSA_TUNE_DONE, NULL, NULL);
  char inputs[NSAI_TUNE_INPUTS_BYTES];
  nsai_write_json_member(out, "{", "problem", span->events[0].problem);
  nsai_write(out, ", \"tokens\": %" PRId64, span->events[0].tokens);
  nsai_write_json_member(out, ", ", "inputs", nsai_tune_inputs(span->events[0].problem, inputs));
  json_number(out, "estimate_ms", span->events[0].ms);
  json_chosen(out, span);
  json_candidates(out, span);
  json_baselines(out, span);
  nsai_write(out, ",\n   \"done\": %s", done ? "true" : "false");
  nsai_write_json_member(out, ", ", "note", done ? done->note : "");
  nsai_write(out, "}");
}

void nsai_tune_json_series(nsai_writer *out, const nsai_tune_point *points, size_t count) {
  char inputs[NSAI_TUNE_INPUTS_BYTES];
  double crossover = nsai_tune_crossover(points, count);
  nsai_write_json_member(out, "{", "inputs", nsai_tune_inputs(points[0].problem, inputs));
  nsai_write(out, ", \"points\": [");
  for (size_t i = 0; i < count; i++) {
    const nsai_tune_point *p = &points[i];
    nsai_write(out, "%s\n    {\"tokens\": %" PRId64, i ? "," : "", p->tokens);
    json_number(out, "forward_ms", p->forward_ms);
    nsai_write_json_member(out, ", ", "baseline", p->dense);
    json_number(out, "baseline_ms", p->dense_ms);
    json_number(out, "ratio", p->dense_ms / p->forward_ms);
    nsai_write(out, "}");
  }
  nsai_write(out, "]");
  json_number(out, "crossover_tokens", crossover > 0 ? crossover : (double)NAN);
  nsai_write(out, ", \"sparse_faster\": \"%s\"}", nsai_tune_where_faster(crossover));
}
