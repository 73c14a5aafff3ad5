/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Pulls libyaml's events one by one, and reads the values of a record's keys. Stricter than YAML:
 * no anchors, aliases, tags, directives or NULs, no key twice. The first failure ends the reading:
 * functions return false and leave a sentence.
 */
#ifndef NSAI_RECORDS_READER_H
#define NSAI_RECORDS_READER_H

#include "records/internal.h"

#include <locale.h>
#include <yaml.h>

typedef struct nsai_reader {
  yaml_parser_t parser;
  yaml_event_t event; /* the current one, when `held` */
  bool held;
  locale_t locale;   /* "C": numbers have a point */
  nsa_status status; /* of the first failure */
  char *fault;       /* NSAI_RECORD_FAULT_CHARS: "line 3: ..." */
} nsai_reader;

/* Starts reading a text, which is borrowed until fini; `fault` receives the first failure. False:
 * no memory, and nothing to release. */
bool nsai_reader_init(nsai_reader *r, const char *text, size_t size, char *fault);
void nsai_reader_fini(nsai_reader *r);

/* Ends the reading at the current event. Returns false. */
bool nsai_reader_refuse(nsai_reader *r, const char *format, ...) NSAI_PRINTF(2, 3);

/* Ends it for want of memory. Returns false. */
bool nsai_reader_out_of_memory(nsai_reader *r);

/* Goes to the next event. */
bool nsai_reader_next(nsai_reader *r);

/* Goes to the next event, which must be of the given type; `what` is what was expected. */
bool nsai_reader_expect(nsai_reader *r, yaml_event_type_t type, const char *what);

/* The text of the current event, a scalar. */
const char *nsai_reader_scalar(const nsai_reader *r);

/* Goes to the next key of a mapping. False: the mapping is at its end, or a failure. */
#define NSAI_READER_KEY_CHARS 40 /* longer than any key and stage */
bool nsai_reader_key(nsai_reader *r, char key[NSAI_READER_KEY_CHARS]);

/* Notes in the bit set `seen` that the key number `index` was seen; negative: it is none. */
bool nsai_reader_note_key(nsai_reader *r, int index, const char *key, uint32_t *seen);

/* Reads a mapping that has begun into the fields at `base`. */
bool nsai_reader_fields(nsai_reader *r, const nsai_record_field *fields, void *base);

#endif /* NSAI_RECORDS_READER_H */
