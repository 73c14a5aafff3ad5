/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Reading records: libyaml's events are pulled one by one, by functions in the shape of the text.
 * Whatever does not belong where it stands ends the reading at once, so that nesting is bounded by
 * the shape, far below libyaml's quadratic cases.
 */
#include "record_impl.h"

#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* Longer than any key and stage. */
#define KEY_CHARS 40

/* Far more than devices times problems that anybody tunes. */
#define MAX_RECORDS 10000

typedef struct reader {
  yaml_parser_t parser;
  yaml_event_t event; /* the current one, when `held` */
  bool held;
  bool ended;        /* the document, by a line "..." */
  locale_t locale;   /* "C": numbers have a point */
  nsa_status status; /* of the first failure */
  char *fault;
} reader;

/* ---- events ---- */

static bool refuse_at(reader *r, size_t line, const char *format, va_list args) {
  size_t used = (size_t)snprintf(r->fault, NSAI_RECORD_FAULT_CHARS, "line %zu: ", line + 1);
  vsnprintf(r->fault + used, NSAI_RECORD_FAULT_CHARS - used, format, args);
  r->status = NSA_E_CACHE;
  return false;
}

/* Ends the reading at the current event. Returns false, as the readers do. */
NSAI_PRINTF(2, 3) static bool refuse(reader *r, const char *format, ...) {
  va_list args;
  va_start(args, format);
  refuse_at(r, r->event.start_mark.line, format, args);
  va_end(args);
  return false;
}

static bool out_of_memory(reader *r) {
  snprintf(r->fault, NSAI_RECORD_FAULT_CHARS, "needs more memory than there is");
  r->status = NSA_E_NOMEM;
  return false;
}

NSAI_PRINTF(2, 3) static bool refuse_syntax(reader *r, const char *format, ...) {
  const yaml_parser_t *p = &r->parser;
  if (p->error == YAML_MEMORY_ERROR) return out_of_memory(r);
  va_list args;
  va_start(args, format);
  refuse_at(r, p->error == YAML_READER_ERROR ? p->mark.line : p->problem_mark.line, format, args);
  va_end(args);
  return false;
}

/* What makes an event more than plain data; NULL: nothing. */
static const char *extra_of(const yaml_event_t *event) {
  const yaml_char_t *anchor = NULL, *tag = NULL;
  switch (event->type) {
  case YAML_ALIAS_EVENT: return "an alias";
  case YAML_SCALAR_EVENT:
    anchor = event->data.scalar.anchor;
    tag = event->data.scalar.tag;
    if (strlen((const char *)event->data.scalar.value) != event->data.scalar.length)
      return "a NUL character";
    break;
  case YAML_SEQUENCE_START_EVENT:
    anchor = event->data.sequence_start.anchor;
    tag = event->data.sequence_start.tag;
    break;
  case YAML_MAPPING_START_EVENT:
    anchor = event->data.mapping_start.anchor;
    tag = event->data.mapping_start.tag;
    break;
  case YAML_DOCUMENT_START_EVENT:
    if (event->data.document_start.version_directive ||
        event->data.document_start.tag_directives.start !=
            event->data.document_start.tag_directives.end)
      return "a directive";
    break;
  default: break;
  }
  return anchor ? "an anchor" : tag ? "a tag" : NULL;
}

/* Goes to the next event. */
static bool next(reader *r) {
  if (r->held) yaml_event_delete(&r->event);
  r->held = yaml_parser_parse(&r->parser, &r->event);
  if (!r->held)
    return refuse_syntax(r, "not YAML: %s", r->parser.problem ? r->parser.problem : "unreadable");
  const char *extra = extra_of(&r->event);
  return extra ? refuse(r, "%s is not allowed", extra) : true;
}

/* Goes to the next event, which must be of the given type. */
static bool expect(reader *r, yaml_event_type_t type, const char *what) {
  if (!next(r)) return false;
  return r->event.type == type || refuse(r, "expected %s", what);
}

static const char *scalar(const reader *r) { return (const char *)r->event.data.scalar.value; }

/* Goes to the next key of a mapping. False: the mapping is at its end, or a failure. */
static bool next_key(reader *r, char key[KEY_CHARS]) {
  if (!next(r) || r->event.type == YAML_MAPPING_END_EVENT) return false;
  if (r->event.type != YAML_SCALAR_EVENT) return refuse(r, "expected a key");
  if (r->event.data.scalar.length >= KEY_CHARS) return refuse(r, "a key that is too long");
  memcpy(key, scalar(r), r->event.data.scalar.length + 1);
  return true;
}

/* Notes that the key number `index` was seen; negative: it is none. */
static bool note_key(reader *r, int index, const char *key, uint32_t *seen) {
  nsai_excerpt_text excerpt;
  if (index < 0) return refuse(r, "'%s' is no key here", nsai_excerpt(key, strlen(key), &excerpt));
  if (*seen & (UINT32_C(1) << index)) return refuse(r, "'%s' is given twice", key);
  *seen |= UINT32_C(1) << index;
  return true;
}

/* ---- values ---- */

static bool read_text(reader *r, const nsai_record_field *field, char *place) {
  if (r->event.data.scalar.length >= field->size)
    return refuse(r, "'%s' has more than %zu bytes", field->key, field->size - 1);
  memcpy(place, scalar(r), r->event.data.scalar.length + 1);
  return true;
}

static bool read_integer(reader *r, const nsai_record_field *field, int64_t *out) {
  const char *text = scalar(r), *digits = text + (*text == '-');
  errno = 0;
  *out = strtoll(text, NULL, 10);
  if (!*digits || digits[strspn(digits, "0123456789")])
    return refuse(r, "'%s' takes a whole number", field->key);
  if (errno || *out < field->min || *out > field->max)
    return refuse(r, "'%s' is out of range: %" PRId64 " to %" PRId64, field->key, field->min,
                  field->max);
  return true;
}

static bool read_int(reader *r, const nsai_record_field *field, void *place) {
  int64_t value;
  if (!read_integer(r, field, &value)) return false;
  const int32_t small = (int32_t)value;
  memcpy(place, &small, sizeof small);
  return true;
}

/* Digits, a point, an exponent; infinities and hexadecimal numbers, which strtod takes, are not. */
static bool read_real(reader *r, const nsai_record_field *field, double *out) {
  const char *text = scalar(r);
  char *end;
  *out = strtod_l(text, &end, r->locale);
  if (!*text || *end || text[strspn(text, "0123456789.eE+-")])
    return refuse(r, "'%s' takes a number", field->key);
  return true;
}

static bool read_bool(reader *r, const nsai_record_field *field, bool *out) {
  *out = strcmp(scalar(r), "true") == 0;
  return *out || strcmp(scalar(r), "false") == 0 ||
         refuse(r, "'%s' takes true or false", field->key);
}

static bool read_state(reader *r, const nsai_record_field *field, int32_t *out) {
  for (*out = 0; *out < NSAI_TIMING_STATES; ++*out)
    if (strcmp(scalar(r), nsai_timing_state_name(*out)) == 0) return true;
  return refuse(r, "'%s' takes ok, refused, wrong or dropped", field->key);
}

static bool read_pair(reader *r, const nsai_record_field *field, int32_t *out) {
  static const char what[] = "a list of two whole numbers";
  if (!expect(r, YAML_SEQUENCE_START_EVENT, what)) return false;
  for (int i = 0; i < 2; i++)
    if (!expect(r, YAML_SCALAR_EVENT, what) || !read_int(r, field, out + i)) return false;
  return expect(r, YAML_SEQUENCE_END_EVENT, what);
}

static bool read_value(reader *r, const nsai_record_field *field, void *base) {
  void *place = (char *)base + field->offset;
  int64_t *wide = place;
  if (field->type == NSAI_RECORD_PAIR) return read_pair(r, field, place);
  if (!expect(r, YAML_SCALAR_EVENT, "a value")) return false;
  switch (field->type) {
  case NSAI_RECORD_INT: return read_int(r, field, place);
  case NSAI_RECORD_LONG: return read_integer(r, field, wide);
  case NSAI_RECORD_REAL: return read_real(r, field, place);
  case NSAI_RECORD_BOOL: return read_bool(r, field, place);
  case NSAI_RECORD_STATE: return read_state(r, field, place);
  default: return read_text(r, field, place);
  }
}

static int find_field(const nsai_record_field *fields, const char *key) {
  for (int i = 0; fields[i].key; i++)
    if (strcmp(fields[i].key, key) == 0) return i;
  return -1;
}

/* Reads a mapping that has begun. */
static bool read_fields(reader *r, const nsai_record_field *fields, void *base) {
  uint32_t seen = 0;
  char key[KEY_CHARS], fault[NSAI_RECORD_FAULT_CHARS];
  while (next_key(r, key)) {
    int index = find_field(fields, key);
    if (!note_key(r, index, key, &seen) || !read_value(r, &fields[index], base)) return false;
  }
  if (r->status != NSA_OK) return false;
  for (int i = 0; fields[i].key; i++)
    if (fields[i].needed && !(seen & (UINT32_C(1) << i)))
      return refuse(r, "'%s' is missing", fields[i].key);
  return nsai_record_check_fields(fields, base, fault) || refuse(r, "%s", fault);
}

/* ---- the record ---- */

static bool read_baselines(reader *r, nsai_record *record) {
  if (!expect(r, YAML_SEQUENCE_START_EVENT, "a list of baselines")) return false;
  for (;;) {
    nsai_baseline baseline = { 0 };
    nsai_excerpt_text shown;
    if (!next(r)) return false;
    if (r->event.type == YAML_SEQUENCE_END_EVENT) return true;
    if (r->event.type != YAML_MAPPING_START_EVENT) return refuse(r, "expected a baseline");
    if (!read_fields(r, nsai_record_baseline_fields, &baseline)) return false;
    for (int32_t i = 0; i < record->baseline_count; i++)
      if (strcmp(record->baselines[i].name, baseline.name) == 0)
        return refuse(r, "the baseline '%s' is given twice",
                      nsai_excerpt(baseline.name, strlen(baseline.name), &shown));
    if (record->baseline_count == NSAI_BASELINES_MAX)
      return refuse(r, "more than %d baselines", NSAI_BASELINES_MAX);
    record->baselines[record->baseline_count++] = baseline;
  }
}

static bool read_candidates(reader *r, nsai_record *record, const char *stage) {
  if (!expect(r, YAML_SEQUENCE_START_EVENT, "a list of candidates")) return false;
  for (int count = 0;; count++) {
    nsai_timing timing = { 0 };
    nsai_excerpt_text shown;
    if (!next(r)) return false;
    if (r->event.type == YAML_SEQUENCE_END_EVENT)
      return count > 0 || refuse(r, "the stage has no candidates");
    if (r->event.type != YAML_MAPPING_START_EVENT) return refuse(r, "expected a candidate");
    if (!read_fields(r, nsai_record_timing_fields, &timing)) return false;
    snprintf(timing.stage, sizeof timing.stage, "%s", stage);
    if (nsai_record_find(record, stage, timing.candidate))
      return refuse(r, "the candidate '%s' is given twice",
                    nsai_excerpt(timing.candidate, strlen(timing.candidate), &shown));
    if (nsai_record_add(record, &timing) != NSA_OK) return out_of_memory(r);
  }
}

static bool read_stages(reader *r, nsai_record *record) {
  char stage[KEY_CHARS], fault[NSAI_RECORD_FAULT_CHARS];
  nsai_excerpt_text shown;
  int32_t there;
  if (!expect(r, YAML_MAPPING_START_EVENT, "a mapping of stages")) return false;
  while (next_key(r, stage)) {
    nsai_excerpt(stage, strlen(stage), &shown);
    if (strlen(stage) >= sizeof record->timings->stage)
      return refuse(r, "the stage '%s' has too long a name", shown.text);
    if (!nsai_record_check_stage(stage, fault)) return refuse(r, "%s", fault);
    if (nsai_record_stage(record, stage, &there))
      return refuse(r, "the stage '%s' is given twice", shown.text);
    if (!read_candidates(r, record, stage)) return false;
  }
  return r->status == NSA_OK;
}

static bool read_version(reader *r, const char *key) {
  if (!expect(r, YAML_SCALAR_EVENT, "a number")) return false;
  return strcmp(scalar(r), "1") == 0 ||
         refuse(r, "'%s' is not %d: written by another version", key, NSAI_RECORD_VERSION);
}

/* Indices of the keys that are no section; the sections follow. */
enum { VERSION_KEY, BASELINES_KEY, STAGES_KEY, SECTION_KEYS };

static int find_record_key(const char *key, bool versioned) {
  if (strcmp(key, NSAI_RECORD_KEY) == 0) return versioned ? VERSION_KEY : -1;
  if (strcmp(key, "baselines") == 0) return BASELINES_KEY;
  if (strcmp(key, "stages") == 0) return STAGES_KEY;
  for (int i = 0; nsai_record_sections[i].key; i++)
    if (strcmp(nsai_record_sections[i].key, key) == 0) return SECTION_KEYS + i;
  return -1;
}

static bool read_record_key(reader *r, int index, nsai_record *record) {
  switch (index) {
  case VERSION_KEY: return read_version(r, NSAI_RECORD_KEY);
  case BASELINES_KEY: return read_baselines(r, record);
  case STAGES_KEY: return read_stages(r, record);
  default:
    return expect(r, YAML_MAPPING_START_EVENT, "a mapping") &&
           read_fields(r, nsai_record_sections[index - SECTION_KEYS].fields, record);
  }
}

/* Reads a record whose mapping has begun; `versioned`: it must say its version. */
static bool read_record(reader *r, bool versioned, nsai_record *record) {
  uint32_t seen = 0;
  char key[KEY_CHARS], fault[NSAI_RECORD_FAULT_CHARS];
  while (next_key(r, key)) {
    int index = find_record_key(key, versioned);
    if (!note_key(r, index, key, &seen) || !read_record_key(r, index, record)) return false;
  }
  if (r->status != NSA_OK) return false;
  if (versioned && !(seen & (1 << VERSION_KEY))) return refuse(r, "'nsa_record: 1' is missing");
  for (int i = 0; i < 2; i++) /* device and problem */
    if (!(seen & (UINT32_C(1) << (SECTION_KEYS + i))))
      return refuse(r, "'%s' is missing", nsai_record_sections[i].key);
  return nsai_record_check_flags(record, fault) || refuse(r, "%s", fault);
}

/* ---- documents ---- */

/* Reads one more record, whose mapping has begun, into the document. */
static bool append_record(reader *r, bool versioned, nsai_record_document *out) {
  size_t bytes = ((size_t)out->count + 1) * sizeof(nsai_record *);
  nsai_record **grown = realloc(out->records, bytes);
  if (!grown) return out_of_memory(r);
  out->records = grown;
  if (nsai_record_create(&out->records[out->count]) != NSA_OK) return out_of_memory(r);
  return read_record(r, versioned, out->records[out->count++]);
}

static bool read_list(reader *r, nsai_record_document *out) {
  if (!expect(r, YAML_SEQUENCE_START_EVENT, "a list of records")) return false;
  for (;;) {
    if (!next(r)) return false;
    if (r->event.type == YAML_SEQUENCE_END_EVENT) return true;
    if (r->event.type != YAML_MAPPING_START_EVENT) return refuse(r, "expected a record");
    if (out->count == MAX_RECORDS) return refuse(r, "more than %d records", MAX_RECORDS);
    if (!append_record(r, false, out)) return false;
    for (int32_t i = 0; i < out->count - 1; i++)
      if (nsai_record_same_key(out->records[i], out->records[out->count - 1]))
        return refuse(r, "an earlier record is for the same device and problem");
  }
}

/* { nsa_records: 1, records: [...] } */
static bool read_many(reader *r, nsai_record_document *out) {
  enum { LIST_KEY = 1 };
  uint32_t seen = 0;
  char key[KEY_CHARS];
  while (next_key(r, key)) {
    int index = strcmp(key, NSAI_RECORDS_KEY) == 0 ? VERSION_KEY
                : strcmp(key, "records") == 0      ? LIST_KEY
                                                   : -1;
    if (!note_key(r, index, key, &seen)) return false;
    if (index == VERSION_KEY ? !read_version(r, NSAI_RECORDS_KEY) : !read_list(r, out))
      return false;
  }
  if (r->status != NSA_OK) return false;
  return seen == (1 << VERSION_KEY | 1 << LIST_KEY) ||
         refuse(r, "'nsa_records: 1' or 'records' is missing");
}

static bool read_document(reader *r, bool many, nsai_record_document *out) {
  if (!expect(r, YAML_STREAM_START_EVENT, "text") ||
      !expect(r, YAML_DOCUMENT_START_EVENT, "a document, found nothing") ||
      !expect(r, YAML_MAPPING_START_EVENT, "a mapping"))
    return false;
  if (!(many ? read_many(r, out) : append_record(r, true, out))) return false;
  if (!expect(r, YAML_DOCUMENT_END_EVENT, "the end of the document")) return false;
  out->ended = !r->event.data.document_end.implicit;
  return expect(r, YAML_STREAM_END_EVENT, "nothing more: one file holds one document");
}

void nsai_record_document_fini(nsai_record_document *document) {
  for (int32_t i = 0; i < document->count; i++) nsai_record_destroy(document->records[i]);
  free(document->records);
  *document = (nsai_record_document){ 0 };
}

nsa_status nsai_record_read(const char *text, size_t size, bool many, nsai_record_document *out,
                            char fault[NSAI_RECORD_FAULT_CHARS]) {
  reader r = { .fault = fault };
  *out = (nsai_record_document){ 0 };
  r.locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!r.locale || !yaml_parser_initialize(&r.parser)) {
    if (r.locale) freelocale(r.locale);
    out_of_memory(&r);
    return r.status;
  }
  yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, size);
  read_document(&r, many, out);
  if (r.held) yaml_event_delete(&r.event);
  yaml_parser_delete(&r.parser);
  freelocale(r.locale);
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
