/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The keys of a record's text, in the order in which they are written, and their allowed values.
 */
#include "records/internal.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Bounds that no measurement reaches. They keep numbers exact in a double. */
#define MAX_REAL 1000000000000 /* milliseconds of about thirty years */
#define MAX_LONG (INT64_C(1) << 53)

#define TEXT(key, type, member)                                                                    \
  { key, NSAI_RECORD_TEXT, offsetof(type, member), sizeof((type *)0)->member, false, 0, 0 }
#define NAME(key, type, member)                                                                    \
  { key, NSAI_RECORD_TEXT, offsetof(type, member), sizeof((type *)0)->member, true, 0, 0 }
#define REAL(key, type, member)                                                                    \
  { key, NSAI_RECORD_REAL, offsetof(type, member), 0, false, 0, MAX_REAL }
#define BOOL(key, type, member)                                                                    \
  { key, NSAI_RECORD_BOOL, offsetof(type, member), 0, false, 0, 0 }

static const nsai_record_field device_fields[] = {
  NAME("name", nsai_record, device),
  NAME("arch", nsai_record, arch),
  { "sms", NSAI_RECORD_INT, offsetof(nsai_record, sms), 0, true, 0, INT32_MAX },
  { 0 },
};

static const nsai_record_field problem_fields[] = {
  { "key", NSAI_RECORD_TOKEN, offsetof(nsai_record, problem), sizeof((nsai_record *)0)->problem,
    true, 0, 0 },
  { "bucket", NSAI_RECORD_LONG, offsetof(nsai_record, bucket), 0, true, 0, MAX_LONG },
  { 0 },
};

static const nsai_record_field environment_fields[] = {
  TEXT("library", nsai_record, library),
  TEXT("templates", nsai_record, templates),
  TEXT("driver", nsai_record, driver),
  TEXT("compiler", nsai_record, compiler),
  { 0 },
};

static const nsai_record_field measured_fields[] = {
  TEXT("date", nsai_record, date),
  TEXT("level", nsai_record, level),
  BOOL("complete", nsai_record, complete),
  REAL("overlap_r", nsai_record, overlap_r),
  REAL("union4", nsai_record, union4),
  REAL("union8", nsai_record, union8),
  { "clock_mhz", NSAI_RECORD_PAIR, offsetof(nsai_record, clock_mhz), 0, false, 0, INT32_MAX },
  { "temperature_c", NSAI_RECORD_PAIR, offsetof(nsai_record, temperature_c), 0, false, -273,
    INT32_MAX },
  { 0 },
};

const nsai_record_section nsai_record_sections[] = {
  { "device", device_fields },
  { "problem", problem_fields },
  { "environment", environment_fields },
  { "measured", measured_fields },
  { NULL, NULL },
};

const nsai_record_field nsai_record_baseline_fields[] = {
  NAME("name", nsai_baseline, name),
  REAL("ms", nsai_baseline, ms),
  REAL("spread", nsai_baseline, spread),
  { 0 },
};

const nsai_record_field nsai_record_timing_fields[] = {
  NAME("candidate", nsai_timing, candidate),
  { "state", NSAI_RECORD_STATE, offsetof(nsai_timing, state), 0, true, 0, NSAI_TIMING_STATES - 1 },
  REAL("ms", nsai_timing, ms),
  REAL("spread", nsai_timing, spread),
  { "rounds", NSAI_RECORD_INT, offsetof(nsai_timing, rounds), 0, false, 0, INT32_MAX },
  BOOL("chosen", nsai_timing, chosen),
  BOOL("default", nsai_timing, is_default),
  TEXT("note", nsai_timing, note),
  { 0 },
};

static const nsai_record_field stage_field = {
  "stage", NSAI_RECORD_TEXT, 0, sizeof((nsai_timing *)0)->stage, true, 0, 0
};

const char *nsai_timing_state_name(int32_t state) {
  static const char *const names[NSAI_TIMING_STATES] = { "ok", "refused", "wrong", "dropped" };
  return state >= 0 && state < NSAI_TIMING_STATES ? names[state] : "?";
}

/* ---- checks ---- */

static bool check_text(const nsai_record_field *field, const char *text, char *fault) {
  const char *problem = NULL;
  const char *end = memchr(text, '\0', field->size);
  if (!end)
    problem = "is not terminated";
  else if (field->needed && end == text)
    problem = "is empty";
  else if (field->needed && !nsai_utf8_valid(text, (size_t)(end - text)))
    problem = "is not UTF-8";
  else if (field->type == NSAI_RECORD_TOKEN && strpbrk(text, " \t\r\n"))
    problem = "has spaces";
  if (problem) snprintf(fault, NSAI_RECORD_FAULT_CHARS, "'%s' %s", field->key, problem);
  return !problem;
}

static bool check_integer(const nsai_record_field *field, int64_t value, char *fault) {
  if (value >= field->min && value <= field->max) return true;
  snprintf(fault, NSAI_RECORD_FAULT_CHARS,
           "'%s' is out of range: %" PRId64 ", allowed are %" PRId64 " to %" PRId64, field->key,
           value, field->min, field->max);
  return false;
}

static bool check_real(const nsai_record_field *field, double value, char *fault) {
  if (isfinite(value) && value >= (double)field->min && value <= (double)field->max) return true;
  snprintf(fault, NSAI_RECORD_FAULT_CHARS, "'%s' is out of range: 0 to %" PRId64, field->key,
           field->max);
  return false;
}

static bool check_field(const nsai_record_field *field, const char *place, char *fault) {
  switch (field->type) {
  case NSAI_RECORD_TEXT:
  case NSAI_RECORD_TOKEN: return check_text(field, place, fault);
  case NSAI_RECORD_INT:
  case NSAI_RECORD_STATE: return check_integer(field, *(const int32_t *)place, fault);
  case NSAI_RECORD_LONG: return check_integer(field, *(const int64_t *)place, fault);
  case NSAI_RECORD_PAIR:
    return check_integer(field, ((const int32_t *)place)[0], fault) &&
           check_integer(field, ((const int32_t *)place)[1], fault);
  case NSAI_RECORD_REAL: return check_real(field, *(const double *)place, fault);
  case NSAI_RECORD_BOOL: break;
  }
  return true;
}

bool nsai_record_check_fields(const nsai_record_field *fields, const void *base,
                              char fault[NSAI_RECORD_FAULT_CHARS]) {
  for (; fields->key; fields++)
    if (!check_field(fields, (const char *)base + fields->offset, fault)) return false;
  return true;
}

bool nsai_record_check_stage(const char stage[32], char fault[NSAI_RECORD_FAULT_CHARS]) {
  return check_text(&stage_field, stage, fault);
}

/* At most one winner and one default per stage, counting this timing and all before it. */
static bool check_flags(const nsai_record *record, int32_t at, char *fault) {
  const nsai_timing *timing = &record->timings[at];
  for (int32_t i = at - 1; i >= 0 && strcmp(record->timings[i].stage, timing->stage) == 0; i--) {
    const nsai_timing *other = &record->timings[i];
    bool chosen = timing->chosen && other->chosen;
    if (!chosen && !(timing->is_default && other->is_default)) continue;
    nsai_excerpt_text shown;
    snprintf(fault, NSAI_RECORD_FAULT_CHARS, "the stage '%s' has two candidates that are '%s'",
             nsai_excerpt(timing->stage, strlen(timing->stage), &shown),
             chosen ? "chosen" : "default");
    return false;
  }
  return true;
}

bool nsai_record_check_flags(const nsai_record *record, char fault[NSAI_RECORD_FAULT_CHARS]) {
  for (int32_t i = 0; i < record->timing_count; i++)
    if ((record->timings[i].chosen || record->timings[i].is_default) &&
        !check_flags(record, i, fault))
      return false;
  return true;
}

static bool check(const nsai_record *record, char *fault) {
  for (const nsai_record_section *section = nsai_record_sections; section->key; section++)
    if (!nsai_record_check_fields(section->fields, record, fault)) return false;
  if (record->baseline_count < 0 || record->baseline_count > NSAI_BASELINES_MAX) {
    snprintf(fault, NSAI_RECORD_FAULT_CHARS, "'baselines' has %d entries, at most %d are allowed",
             (int)record->baseline_count, NSAI_BASELINES_MAX);
    return false;
  }
  for (int32_t i = 0; i < record->baseline_count; i++)
    if (!nsai_record_check_fields(nsai_record_baseline_fields, &record->baselines[i], fault))
      return false;
  for (int32_t i = 0; i < record->timing_count; i++)
    if (!nsai_record_check_stage(record->timings[i].stage, fault) ||
        !nsai_record_check_fields(nsai_record_timing_fields, &record->timings[i], fault))
      return false;
  return nsai_record_check_flags(record, fault);
}

nsa_status nsai_record_check(const nsai_record *record) {
  char fault[NSAI_RECORD_FAULT_CHARS];
  if (check(record, fault)) return NSA_OK;
  return nsai_fail(NSA_E_ARG, "the tuning record cannot be kept: %s", fault);
}
