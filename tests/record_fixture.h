/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tuning records with known content, and a store in a temporary folder, for the records' tests.
 */
#ifndef NSA_TEST_RECORD_FIXTURE_H
#define NSA_TEST_RECORD_FIXTURE_H

#include "cache_fixture.h"

#include "records/record.h"

static inline void record_must(nsa_status status) {
  if (status == NSA_OK) return;
  fprintf(stderr, "%s\n", nsa_last_error());
  abort();
}

/* Adds candidate `n` of a stage. */
static inline void record_add(nsai_record *record, const char *stage, int n) {
  nsai_timing timing = { .ms = 1.0 / (n + 3), .spread = 0.01, .rounds = 5 };
  snprintf(timing.stage, sizeof timing.stage, "%s", stage);
  snprintf(timing.candidate, sizeof timing.candidate, "%s_mma rows=%d", stage, n);
  if (nsai_record_add(record, &timing) != NSA_OK) abort();
}

/* Makes candidate `n` the winner of its stage. */
static inline void record_choose(nsai_record *record, const char *stage, int n) {
  int32_t count;
  char candidate[128];
  snprintf(candidate, sizeof candidate, "%s_mma rows=%d", stage, n);
  if (!nsai_record_find(record, stage, candidate)) abort();
  nsai_timing *timings = nsai_record_stage(record, stage, &count);
  for (int32_t i = 0; i < count; i++) timings[i].chosen = !strcmp(timings[i].candidate, candidate);
}

/* A record of problem number `n`, without timings. */
static inline nsai_record *record_make(int n) {
  nsai_record *r;
  if (nsai_record_create(&r) != NSA_OK) abort();
  strcpy(r->device, "NVIDIA H200");
  strcpy(r->arch, "sm_90a");
  r->sms = 132;
  snprintf(r->problem, sizeof r->problem, "op=forward,heads=64,bucket=%d", n);
  r->bucket = 8192;
  strcpy(r->library, "0.1.0");
  strcpy(r->templates, "0123456789abcdef0123456789abcdef");
  strcpy(r->driver, "570.86.15");
  strcpy(r->compiler, "build-id:0123456789abcdef");
  strcpy(r->date, "2026-01-02T03:04:05Z");
  strcpy(r->level, "normal");
  r->overlap_r = 0.7;
  r->union4 = 1.0 / 3;
  r->clock_mhz[0] = 1755;
  r->clock_mhz[1] = 1980;
  r->temperature_c[0] = 34;
  r->temperature_c[1] = 61;
  return r;
}

/* The same with timings of two stages, one decided. */
static inline nsai_record *record_full(int n) {
  nsai_record *r = record_make(n);
  for (int i = 0; i < 3; i++) record_add(r, "attend_window", i);
  for (int i = 0; i < 2; i++) record_add(r, "compress", i);
  record_choose(r, "attend_window", 1);
  nsai_timing *timing = nsai_record_find(r, "compress", "compress_mma rows=0");
  timing->state = NSAI_TIMING_REFUSED;
  timing->ms = timing->spread = timing->rounds = 0;
  strcpy(timing->note, "spills \"24\" bytes\n\\ \303\244");
  timing->is_default = true;
  nsai_record_set_baseline(r, "forward", 1.25, 0.01);
  nsai_record_set_baseline(r, "dense", 7e-05, 1e-300);
  return r;
}

/* The text of a record; the caller frees it. */
static inline char *record_text(const nsai_record *record, size_t *size) {
  nsai_writer writer = nsai_writer_open(NULL, 0);
  nsai_record_write(record, &writer);
  char *text = malloc(writer.used + 1);
  if (!text) abort();
  writer = nsai_writer_open(text, writer.used + 1);
  nsai_record_write(record, &writer);
  *size = writer.used;
  return text;
}

/* Whether two records have the same text. */
static inline bool record_equal(const nsai_record *a, const nsai_record *b) {
  size_t a_size, b_size;
  char *a_text = record_text(a, &a_size), *b_text = record_text(b, &b_size);
  bool equal = a_size == b_size && memcmp(a_text, b_text, a_size) == 0;
  free(a_text);
  free(b_text);
  return equal;
}

static inline nsai_records *records_open(fixture *f, nsai_cache_mode mode) {
  const nsai_cache_options options = fixture_options(f, mode);
  nsai_records *records;
  if (nsai_records_open(&options, &records) != NSA_OK) abort();
  return records;
}

/* Saves the full record of problem `n`. */
static inline void records_save(nsai_records *records, int n) {
  nsai_record *record = record_full(n);
  record_must(nsai_records_save(records, record));
  nsai_record_destroy(record);
}

/* Looks up problem `n`; NULL: not found. */
static inline nsai_record *records_find(nsai_records *records, int n) {
  nsai_record *key = record_make(n), *found;
  nsai_records_find(records, key->device, key->arch, key->sms, key->problem, &found);
  nsai_record_destroy(key);
  return found;
}

/* The number of timings of a record that was found, which is freed; -1: it was not found. */
static inline int32_t count_timings(nsai_record *found) {
  int32_t count = found ? found->timing_count : -1;
  nsai_record_destroy(found);
  return count;
}

/* Looks it up as a new process would. */
static inline nsai_record *records_find_on_disk(fixture *f, int n) {
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  nsai_record *found = records_find(records, n);
  nsai_records_close(records);
  return found;
}

/* The path of problem `n`'s file. */
static inline void record_path(const fixture *f, int n, char path[PATH_MAX]) {
  char name[NSAI_RECORD_NAME_CHARS];
  nsai_record *record = record_make(n);
  nsai_record_name(record, name);
  nsai_record_destroy(record);
  snprintf(path, PATH_MAX, "%s/tuning/%s", f->dir, name);
}

#endif /* NSA_TEST_RECORD_FIXTURE_H */
