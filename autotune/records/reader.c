/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "records/reader.h"

#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- events ---- */

bool nsai_reader_init(nsai_reader *r, const char *text, size_t size, char *fault) {
  *r = (nsai_reader){ .fault = fault };
  r->locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!r->locale || !yaml_parser_initialize(&r->parser)) {
    if (r->locale) freelocale(r->locale);
    return nsai_reader_out_of_memory(r);
  }
  yaml_parser_set_encoding(&r->parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, size);
  return true;
}

void nsai_reader_fini(nsai_reader *r) {
  if (r->held) yaml_event_delete(&r->event);
  yaml_parser_delete(&r->parser);
  freelocale(r->locale);
}

NSAI_PRINTF(3, 0)
static bool refuse_at(nsai_reader *r, size_t line, const char *format, va_list args) {
  size_t used = (size_t)snprintf(r->fault, NSAI_RECORD_FAULT_CHARS, "line %zu: ", line + 1);
  vsnprintf(r->fault + used, NSAI_RECORD_FAULT_CHARS - used, format, args);
  r->status = NSA_E_CACHE;
  return false;
}

bool nsai_reader_refuse(nsai_reader *r, const char *format, ...) {
  va_list args;
  va_start(args, format);
  refuse_at(r, r->event.start_mark.line, format, args);
  va_end(args);
  return false;
}

bool nsai_reader_out_of_memory(nsai_reader *r) {
  snprintf(r->fault, NSAI_RECORD_FAULT_CHARS, "needs more memory than there is");
  r->status = NSA_E_NOMEM;
  return false;
}

NSAI_PRINTF(2, 3)
static bool refuse_syntax(nsai_reader *r, const char *format, ...) {
  const yaml_parser_t *p = &r->parser;
  if (p->error == YAML_MEMORY_ERROR) return nsai_reader_out_of_memory(r);
  va_list args;
  va_start(args, format);
  refuse_at(r, p->error == YAML_READER_ERROR ? p->mark.line : p->problem_mark.line, format, args);
  va_end(args);
  return false;
}

/* A property beyond plain data that an event has (anchor, tag, alias); NULL: none. */
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

bool nsai_reader_next(nsai_reader *r) {
  if (r->held) yaml_event_delete(&r->event);
  r->held = yaml_parser_parse(&r->parser, &r->event);
  if (!r->held)
    return refuse_syntax(r, "not YAML: %s", r->parser.problem ? r->parser.problem : "unreadable");
  const char *extra = extra_of(&r->event);
  return extra ? nsai_reader_refuse(r, "%s is not allowed", extra) : true;
}

bool nsai_reader_expect(nsai_reader *r, yaml_event_type_t type, const char *what) {
  if (!nsai_reader_next(r)) return false;
  return r->event.type == type || nsai_reader_refuse(r, "expected %s", what);
}

const char *nsai_reader_scalar(const nsai_reader *r) {
  return (const char *)r->event.data.scalar.value;
}

bool nsai_reader_key(nsai_reader *r, char key[NSAI_READER_KEY_CHARS]) {
  if (!nsai_reader_next(r) || r->event.type == YAML_MAPPING_END_EVENT) return false;
  if (r->event.type != YAML_SCALAR_EVENT) return nsai_reader_refuse(r, "expected a key");
  if (r->event.data.scalar.length >= NSAI_READER_KEY_CHARS)
    return nsai_reader_refuse(r, "a key that is too long");
  memcpy(key, nsai_reader_scalar(r), r->event.data.scalar.length + 1);
  return true;
}

bool nsai_reader_note_key(nsai_reader *r, int index, const char *key, uint32_t *seen) {
  nsai_excerpt_text excerpt;
  if (index < 0)
    return nsai_reader_refuse(r, "'%s' is no key here", nsai_excerpt(key, strlen(key), &excerpt));
  if (*seen & (UINT32_C(1) << index)) return nsai_reader_refuse(r, "'%s' is given twice", key);
  *seen |= UINT32_C(1) << index;
  return true;
}

/* ---- values ---- */

static bool read_text(nsai_reader *r, const nsai_record_field *field, char *place) {
  if (r->event.data.scalar.length >= field->size)
    return nsai_reader_refuse(r, "'%s' has more than %zu bytes", field->key, field->size - 1);
  memcpy(place, nsai_reader_scalar(r), r->event.data.scalar.length + 1);
  return true;
}

static bool read_integer(nsai_reader *r, const nsai_record_field *field, int64_t *out) {
  const char *text = nsai_reader_scalar(r), *digits = text + (*text == '-');
  errno = 0;
  *out = strtoll(text, NULL, 10);
  if (!*digits || digits[strspn(digits, "0123456789")])
    return nsai_reader_refuse(r, "'%s' takes a whole number", field->key);
  if (errno || *out < field->min || *out > field->max)
    return nsai_reader_refuse(r, "'%s' is out of range: %" PRId64 " to %" PRId64, field->key,
                              field->min, field->max);
  return true;
}

static bool read_int(nsai_reader *r, const nsai_record_field *field, void *place) {
  int64_t value;
  if (!read_integer(r, field, &value)) return false;
  const int32_t small = (int32_t)value;
  memcpy(place, &small, sizeof small);
  return true;
}

/* Accepts digits, a point and an exponent. Rejects infinities and hexadecimal numbers, which
 * strtod accepts. */
static bool read_real(nsai_reader *r, const nsai_record_field *field, double *out) {
  const char *text = nsai_reader_scalar(r);
  char *end;
  *out = strtod_l(text, &end, r->locale);
  if (!*text || *end || text[strspn(text, "0123456789.eE+-")])
    return nsai_reader_refuse(r, "'%s' takes a number", field->key);
  return true;
}

static bool read_bool(nsai_reader *r, const nsai_record_field *field, bool *out) {
  *out = strcmp(nsai_reader_scalar(r), "true") == 0;
  return *out || strcmp(nsai_reader_scalar(r), "false") == 0 ||
         nsai_reader_refuse(r, "'%s' takes true or false", field->key);
}

static bool read_state(nsai_reader *r, const nsai_record_field *field, int32_t *out) {
  for (*out = 0; *out < NSAI_TIMING_STATES; ++*out)
    if (strcmp(nsai_reader_scalar(r), nsai_timing_state_name(*out)) == 0) return true;
  return nsai_reader_refuse(r, "'%s' takes ok, refused, wrong or dropped", field->key);
}

static bool read_pair(nsai_reader *r, const nsai_record_field *field, int32_t *out) {
  static const char what[] = "a list of two whole numbers";
  if (!nsai_reader_expect(r, YAML_SEQUENCE_START_EVENT, what)) return false;
  for (int i = 0; i < 2; i++)
    if (!nsai_reader_expect(r, YAML_SCALAR_EVENT, what) || !read_int(r, field, out + i))
      return false;
  return nsai_reader_expect(r, YAML_SEQUENCE_END_EVENT, what);
}

static bool read_value(nsai_reader *r, const nsai_record_field *field, void *base) {
  void *place = (char *)base + field->offset;
  int64_t *wide = place;
  if (field->type == NSAI_RECORD_PAIR) return read_pair(r, field, place);
  if (!nsai_reader_expect(r, YAML_SCALAR_EVENT, "a value")) return false;
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

bool nsai_reader_fields(nsai_reader *r, const nsai_record_field *fields, void *base) {
  uint32_t seen = 0;
  char key[NSAI_READER_KEY_CHARS], fault[NSAI_RECORD_FAULT_CHARS];
  while (nsai_reader_key(r, key)) {
    int index = find_field(fields, key);
    if (!nsai_reader_note_key(r, index, key, &seen) || !read_value(r, &fields[index], base))
      return false;
  }
  if (r->status != NSA_OK) return false;
  for (int i = 0; fields[i].key; i++)
    if (fields[i].needed && !(seen & (UINT32_C(1) << i)))
      return nsai_reader_refuse(r, "'%s' is missing", fields[i].key);
  return nsai_record_check_fields(fields, base, fault) || nsai_reader_refuse(r, "%s", fault);
}
