/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Reads records with one function for each level of the text. Anything unexpected ends the
 * reading at once, so nesting is bounded by the format and never reaches libyaml's quadratic
 * cases.
 */
#include "records/reader.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Far more than devices times problems that anybody tunes. */
#define MAX_RECORDS 10000

/* ---- the record ---- */

static bool read_baselines(nsai_reader *r, nsai_record *record) {
  if (!nsai_reader_expect(r, YAML_SEQUENCE_START_EVENT, "a list of baselines")) return false;
  for (;;) {
    nsai_baseline baseline = { 0 };
    nsai_excerpt_text shown;
    if (!nsai_reader_next(r)) return false;
    if (r->event.type == YAML_SEQUENCE_END_EVENT) return true;
    if (r->event.type != YAML_MAPPING_START_EVENT)
      return nsai_reader_refuse(r, "expected a baseline");
    if (!nsai_reader_fields(r, nsai_record_baseline_fields, &baseline)) return false;
    for (int32_t i = 0; i < record->baseline_count; i++)
      if (strcmp(record->baselines[i].name, baseline.name) == 0)
        return nsai_reader_refuse(r, "the baseline '%s' is given twice",
                                  nsai_excerpt(baseline.name, strlen(baseline.name), &shown));
    if (record->baseline_count == NSAI_BASELINES_MAX)
      return nsai_reader_refuse(r, "more than %d baselines", NSAI_BASELINES_MAX);
    record->baselines[record->baseline_count++] = baseline;
  }
}

static bool read_candidates(nsai_reader *r, nsai_record *record, const char *stage) {
  if (!nsai_reader_expect(r, YAML_SEQUENCE_START_EVENT, "a list of candidates")) return false;
  for (int count = 0;; count++) {
    nsai_timing timing = { 0 };
    nsai_excerpt_text shown;
    if (!nsai_reader_next(r)) return false;
    if (r->event.type == YAML_SEQUENCE_END_EVENT)
      return count > 0 || nsai_reader_refuse(r, "the stage has no candidates");
    if (r->event.type != YAML_MAPPING_START_EVENT)
      return nsai_reader_refuse(r, "expected a candidate");
    if (!nsai_reader_fields(r, nsai_record_timing_fields, &timing)) return false;
    snprintf(timing.stage, sizeof timing.stage, "%s", stage);
    if (nsai_record_find(record, stage, timing.candidate))
      return nsai_reader_refuse(r, "the candidate '%s' is given twice",
                                nsai_excerpt(timing.candidate, strlen(timing.candidate), &shown));
    if (nsai_record_add(record, &timing) != NSA_OK) return nsai_reader_out_of_memory(r);
  }
}

static bool read_stages(nsai_reader *r, nsai_record *record) {
  char stage[NSAI_READER_KEY_CHARS], fault[NSAI_RECORD_FAULT_CHARS];
  nsai_excerpt_text shown;
  int32_t there;
  if (!nsai_reader_expect(r, YAML_MAPPING_START_EVENT, "a mapping of stages")) return false;
  while (nsai_reader_key(r, stage)) {
    nsai_excerpt(stage, strlen(stage), &shown);
    if (strlen(stage) >= sizeof record->timings->stage)
      return nsai_reader_refuse(r, "the stage '%s' has too long a name", shown.text);
    if (!nsai_record_check_stage(stage, fault)) return nsai_reader_refuse(r, "%s", fault);
    if (nsai_record_stage(record, stage, &there))
      return nsai_reader_refuse(r, "the stage '%s' is given twice", shown.text);
    if (!read_candidates(r, record, stage)) return false;
  }
  return r->status == NSA_OK;
}

static bool read_version(nsai_reader *r, const char *key) {
  if (!nsai_reader_expect(r, YAML_SCALAR_EVENT, "a number")) return false;
  return strcmp(nsai_reader_scalar(r), "1") == 0 ||
         nsai_reader_refuse(r, "'%s' is not %d: written by another version", key,
                            NSAI_RECORD_VERSION);
}

/* Indices of the keys that are not sections; the sections follow. */
enum { VERSION_KEY, BASELINES_KEY, STAGES_KEY, SECTION_KEYS };

static int find_record_key(const char *key, bool versioned) {
  if (strcmp(key, NSAI_RECORD_KEY) == 0) return versioned ? VERSION_KEY : -1;
  if (strcmp(key, "baselines") == 0) return BASELINES_KEY;
  if (strcmp(key, "stages") == 0) return STAGES_KEY;
  for (int i = 0; nsai_record_sections[i].key; i++)
    if (strcmp(nsai_record_sections[i].key, key) == 0) return SECTION_KEYS + i;
  return -1;
}

static bool read_record_key(nsai_reader *r, int index, nsai_record *record) {
  switch (index) {
  case VERSION_KEY: return read_version(r, NSAI_RECORD_KEY);
  case BASELINES_KEY: return read_baselines(r, record);
  case STAGES_KEY: return read_stages(r, record);
  default:
    return nsai_reader_expect(r, YAML_MAPPING_START_EVENT, "a mapping") &&
           nsai_reader_fields(r, nsai_record_sections[index - SECTION_KEYS].fields, record);
  }
}

/* Reads a record whose mapping has begun. `versioned`: it must contain its version. */
static bool read_record(nsai_reader *r, bool versioned, nsai_record *record) {
  uint32_t seen = 0;
  char key[NSAI_READER_KEY_CHARS], fault[NSAI_RECORD_FAULT_CHARS];
  while (nsai_reader_key(r, key)) {
    int index = find_record_key(key, versioned);
    if (!nsai_reader_note_key(r, index, key, &seen) || !read_record_key(r, index, record))
      return false;
  }
  if (r->status != NSA_OK) return false;
  if (versioned && !(seen & (1 << VERSION_KEY)))
    return nsai_reader_refuse(r, "'nsa_record: 1' is missing");
  for (int i = 0; i < 2; i++) /* device and problem */
    if (!(seen & (UINT32_C(1) << (SECTION_KEYS + i))))
      return nsai_reader_refuse(r, "'%s' is missing", nsai_record_sections[i].key);
  return nsai_record_check_flags(record, fault) || nsai_reader_refuse(r, "%s", fault);
}

/* ---- documents ---- */

/* Reads one more record, whose mapping has begun, into the document. */
static bool append_record(nsai_reader *r, bool versioned, nsai_record_document *out) {
  size_t bytes = ((size_t)out->count + 1) * sizeof(nsai_record *);
  nsai_record **grown = realloc(out->records, bytes);
  if (!grown) return nsai_reader_out_of_memory(r);
  out->records = grown;
  if (nsai_record_create(&out->records[out->count]) != NSA_OK) return nsai_reader_out_of_memory(r);
  return read_record(r, versioned, out->records[out->count++]);
}

static bool read_list(nsai_reader *r, nsai_record_document *out) {
  if (!nsai_reader_expect(r, YAML_SEQUENCE_START_EVENT, "a list of records")) return false;
  for (;;) {
    if (!nsai_reader_next(r)) return false;
    if (r->event.type == YAML_SEQUENCE_END_EVENT) return true;
    if (r->event.type != YAML_MAPPING_START_EVENT)
      return nsai_reader_refuse(r, "expected a record");
    if (out->count == MAX_RECORDS)
      return nsai_reader_refuse(r, "more than %d records", MAX_RECORDS);
    if (!append_record(r, false, out)) return false;
    for (int32_t i = 0; i < out->count - 1; i++)
      if (nsai_record_same_key(out->records[i], out->records[out->count - 1]))
        return nsai_reader_refuse(r, "an earlier record is for the same device and problem");
  }
}

/* { nsa_records: 1, records: [...] } */
static bool read_many(nsai_reader *r, nsai_record_document *out) {
  enum { LIST_KEY = 1 };
  uint32_t seen = 0;
  char key[NSAI_READER_KEY_CHARS];
  while (nsai_reader_key(r, key)) {
    int index = strcmp(key, NSAI_RECORDS_KEY) == 0 ? VERSION_KEY
                : strcmp(key, "records") == 0      ? LIST_KEY
                                                   : -1;
    if (!nsai_reader_note_key(r, index, key, &seen)) return false;
    if (index == VERSION_KEY ? !read_version(r, NSAI_RECORDS_KEY) : !read_list(r, out))
      return false;
  }
  if (r->status != NSA_OK) return false;
  return seen == (1 << VERSION_KEY | 1 << LIST_KEY) ||
         nsai_reader_refuse(r, "'nsa_records: 1' or 'records' is missing");
}

static bool read_document(nsai_reader *r, bool many, nsai_record_document *out) {
  if (!nsai_reader_expect(r, YAML_STREAM_START_EVENT, "text") ||
      !nsai_reader_expect(r, YAML_DOCUMENT_START_EVENT, "a document, found nothing") ||
      !nsai_reader_expect(r, YAML_MAPPING_START_EVENT, "a mapping"))
    return false;
  if (!(many ? read_many(r, out) : append_record(r, true, out))) return false;
  if (!nsai_reader_expect(r, YAML_DOCUMENT_END_EVENT, "the end of the document")) return false;
  out->ended = !r->event.data.document_end.implicit;
  return nsai_reader_expect(r, YAML_STREAM_END_EVENT, "nothing more: one file holds one document");
}

void nsai_record_document_fini(nsai_record_document *document) {
  for (int32_t i = 0; i < document->count; i++) nsai_record_destroy(document->records[i]);
  free(document->records);
  *document = (nsai_record_document){ 0 };
}

nsa_status nsai_record_read(const char *text, size_t size, bool many, nsai_record_document *out,
                            char fault[NSAI_RECORD_FAULT_CHARS]) {
  nsai_reader r;
  *out = (nsai_record_document){ 0 };
  if (!nsai_reader_init(&r, text, size, fault)) return r.status;
  read_document(&r, many, out);
  nsai_reader_fini(&r);
  if (r.status != NSA_OK) nsai_record_document_fini(out);
  return r.status;
}

nsa_status nsai_record_decode(const char *text, size_t size, nsai_record **out,
                              char fault[NSAI_RECORD_FAULT_CHARS]) {
  nsai_record_document document;
  *out = NULL;
  const char *problem = NULL;
  if (size > NSAI_RECORD_MAX_BYTES) {
    problem = "larger than any record";
  } else {
    nsai_record_seal seal = nsai_record_check_seal(text, size);
    if (seal == NSAI_SEAL_MISSING) problem = "the line with the checksum is missing at the end";
    if (seal == NSAI_SEAL_WRONG) problem = "checksum mismatch";
  }
  if (problem) {
    snprintf(fault, NSAI_RECORD_FAULT_CHARS, "%s", problem);
    return NSA_E_CACHE;
  }
  nsa_status status = nsai_record_read(text, size, false, &document, fault);
  if (status != NSA_OK) return status;
  *out = document.records[0];
  document.count = 0;
  nsai_record_document_fini(&document);
  return NSA_OK;
}

nsa_status nsai_record_parse(const char *text, size_t size, nsai_record **out) {
  char fault[NSAI_RECORD_FAULT_CHARS];
  nsa_status status = nsai_record_decode(text, size, out, fault);
  return status == NSA_OK ? NSA_OK : nsai_fail(status, "the tuning record is not used: %s", fault);
}
