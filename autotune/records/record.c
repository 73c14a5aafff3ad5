/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A record in memory: its sorted timings, its winners, and how two records are merged.
 */
#include "records/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

nsa_status nsai_record_create(nsai_record **out) {
  *out = calloc(1, sizeof **out);
  return *out ? NSA_OK : nsai_fail_nomem("a tuning record", sizeof **out);
}

void nsai_record_destroy(nsai_record *record) {
  if (!record) return;
  free(record->timings);
  free(record);
}

nsa_status nsai_record_copy(const nsai_record *record, nsai_record **out) {
  NSAI_TRY(nsai_record_create(out));
  nsai_record *copy = *out;
  *copy = *record;
  copy->timings = NULL;
  copy->timing_capacity = record->timing_count;
  if (!record->timing_count) return NSA_OK;
  size_t bytes = (size_t)record->timing_count * sizeof *copy->timings;
  copy->timings = malloc(bytes);
  if (!copy->timings) {
    nsai_record_destroy(copy);
    *out = NULL;
    return nsai_fail_nomem("the timings of a tuning record", bytes);
  }
  memcpy(copy->timings, record->timings, bytes);
  return NSA_OK;
}

/* ---- timings ---- */

static int compare(const nsai_timing *timing, const char *stage, const char *candidate) {
  int order = strcmp(timing->stage, stage);
  return order ? order : strcmp(timing->candidate, candidate);
}

/* The index of the first timing that is not before (stage, candidate). */
static int32_t lower_bound(const nsai_record *record, const char *stage, const char *candidate) {
  int32_t begin = 0, end = record->timing_count;
  while (begin < end) {
    int32_t middle = begin + (end - begin) / 2;
    if (compare(&record->timings[middle], stage, candidate) < 0)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

nsai_timing *nsai_record_find(const nsai_record *record, const char *stage, const char *candidate) {
  int32_t at = lower_bound(record, stage, candidate);
  if (at == record->timing_count || compare(&record->timings[at], stage, candidate) != 0)
    return NULL;
  return &record->timings[at];
}

nsa_status nsai_record_add(nsai_record *record, const nsai_timing *timing) {
  const nsai_timing copy = *timing; /* it may point into the array, which moves */
  nsai_timing *there = nsai_record_find(record, copy.stage, copy.candidate);
  if (there) {
    *there = copy;
    return NSA_OK;
  }
  if (record->timing_count == record->timing_capacity) {
    int32_t capacity = record->timing_capacity ? 2 * record->timing_capacity : 16;
    size_t bytes = (size_t)capacity * sizeof *record->timings;
    nsai_timing *timings = realloc(record->timings, bytes);
    if (!timings) return nsai_fail_nomem("the timings of a tuning record", bytes);
    record->timings = timings;
    record->timing_capacity = capacity;
  }
  int32_t at = lower_bound(record, copy.stage, copy.candidate);
  memmove(record->timings + at + 1, record->timings + at,
          (size_t)(record->timing_count - at) * sizeof *record->timings);
  record->timings[at] = copy;
  record->timing_count++;
  return NSA_OK;
}

nsai_timing *nsai_record_stage(const nsai_record *record, const char *stage, int32_t *count) {
  /* No candidate has an empty name, so this is the first of the stage. */
  int32_t begin = lower_bound(record, stage, ""), end = begin;
  while (end < record->timing_count && strcmp(record->timings[end].stage, stage) == 0) end++;
  *count = end - begin;
  return *count ? &record->timings[begin] : NULL;
}

const nsai_timing *nsai_record_chosen(const nsai_record *record, const char *stage) {
  int32_t count;
  const nsai_timing *timings = nsai_record_stage(record, stage, &count);
  for (int32_t i = 0; i < count; i++)
    if (timings[i].chosen) return &timings[i];
  return NULL;
}

static bool has_default(const nsai_record *record, const char *stage) {
  int32_t count;
  const nsai_timing *timings = nsai_record_stage(record, stage, &count);
  for (int32_t i = 0; i < count; i++)
    if (timings[i].is_default) return true;
  return false;
}

bool nsai_record_set_baseline(nsai_record *record, const char *name, double ms, double spread) {
  int32_t i = 0;
  while (i < record->baseline_count && strcmp(record->baselines[i].name, name) != 0) i++;
  if (i == NSAI_BASELINES_MAX) return false;
  nsai_baseline *baseline = &record->baselines[i];
  snprintf(baseline->name, sizeof baseline->name, "%s", name);
  baseline->ms = ms;
  baseline->spread = spread;
  if (i == record->baseline_count) record->baseline_count++;
  return true;
}

/* ---- two records ---- */

bool nsai_record_same_key(const nsai_record *a, const nsai_record *b) {
  return strcmp(a->device, b->device) == 0 && strcmp(a->arch, b->arch) == 0 && a->sms == b->sms &&
         strcmp(a->problem, b->problem) == 0;
}

bool nsai_record_same_environment(const nsai_record *a, const nsai_record *b) {
  return strcmp(a->library, b->library) == 0 && strcmp(a->templates, b->templates) == 0 &&
         strcmp(a->driver, b->driver) == 0 && strcmp(a->compiler, b->compiler) == 0;
}

/* Extends a range to include another one; two zeros mean no range. */
static void widen(int32_t range[2], const int32_t other[2]) {
  if (!other[0] && !other[1]) return;
  bool unknown = !range[0] && !range[1];
  if (unknown || other[0] < range[0]) range[0] = other[0];
  if (unknown || other[1] > range[1]) range[1] = other[1];
}

/* Adds the timings of `older`. Winners are looked up before any can come from `older`: the
 * timings of a stage are contiguous, and its winner and default are determined at the first of
 * them. */
static nsa_status merge_timings(nsai_record *record, const nsai_record *older) {
  const char *stage = NULL;
  bool take_chosen = false, take_default = false;
  for (int32_t i = 0; i < older->timing_count; i++) {
    nsai_timing timing = older->timings[i];
    if (!stage || strcmp(stage, timing.stage) != 0) {
      stage = older->timings[i].stage;
      take_chosen = !nsai_record_chosen(record, stage);
      take_default = !has_default(record, stage);
    }
    timing.chosen = timing.chosen && take_chosen;
    timing.is_default = timing.is_default && take_default;
    nsai_timing *there = nsai_record_find(record, timing.stage, timing.candidate);
    if (there) {
      /* A candidate that now fails cannot stay the winner. */
      there->chosen = there->chosen || (timing.chosen && there->state == NSAI_TIMING_OK);
      there->is_default = there->is_default || timing.is_default;
    } else {
      NSAI_TRY(nsai_record_add(record, &timing));
    }
  }
  return NSA_OK;
}

static bool has_baseline(const nsai_record *record, const char *name) {
  for (int32_t i = 0; i < record->baseline_count; i++)
    if (strcmp(record->baselines[i].name, name) == 0) return true;
  return false;
}

nsa_status nsai_record_merge(nsai_record *record, const nsai_record *older) {
  if (!nsai_record_same_key(record, older) || !nsai_record_same_environment(record, older))
    return NSA_OK;
  NSAI_TRY(merge_timings(record, older));
  for (int32_t i = 0; i < older->baseline_count; i++) {
    const nsai_baseline *baseline = &older->baselines[i];
    /* If there is no space for it, the older baseline is dropped. */
    if (!has_baseline(record, baseline->name))
      nsai_record_set_baseline(record, baseline->name, baseline->ms, baseline->spread);
  }
  widen(record->clock_mhz, older->clock_mhz);
  widen(record->temperature_c, older->temperature_c);
  record->complete = record->complete || older->complete;
  return NSA_OK;
}

void nsai_record_name(const nsai_record *record, char name[NSAI_RECORD_NAME_CHARS]) {
  nsai_digest_state state;
  char digest[NSAI_DIGEST_CHARS], sms[16];
  snprintf(sms, sizeof sms, "%d", (int)record->sms);
  nsai_digest_begin(&state);
  nsai_digest_field(&state, "device", record->device, strlen(record->device));
  nsai_digest_field(&state, "arch", record->arch, strlen(record->arch));
  nsai_digest_field(&state, "sms", sms, strlen(sms));
  nsai_digest_field(&state, "problem", record->problem, strlen(record->problem));
  nsai_digest_end(&state, digest);
  snprintf(name, NSAI_RECORD_NAME_CHARS, "%s.yaml", digest);
}
