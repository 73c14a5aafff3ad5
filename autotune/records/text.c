/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Writes a record as YAML: one section per subject, then one candidate per line.
 *
 *   nsa_record: 1
 *   device:
 *     name: "NVIDIA H200"
 *   ...
 *   stages:
 *     "attend_window":
 *       - {candidate: "attend_window_sm80 rows=128", state: ok, ms: 1.25, ...}
 *   # checksum: 0123456789abcdef0123456789abcdef
 *
 * All text is quoted, so that every YAML reader parses it as text.
 */
#include "records/internal.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Writes the fewest digits, at least six, that read back as the same number. */
static void write_real(double value, nsai_writer *writer) {
  char text[40];
  int digits = 6;
  do snprintf(text, sizeof text, "%.*g", digits, value);
  while (strtod(text, NULL) != value && ++digits <= 17);
  /* Replaces the locale's decimal separator, which may have several bytes, by a point. */
  size_t before = strspn(text, "-0123456789");
  size_t point = strcspn(text + before, "0123456789e");
  nsai_write_bytes(writer, text, before);
  if (point) nsai_write(writer, ".");
  nsai_write(writer, "%s", text + before + point);
}

static void write_value(const nsai_record_field *field, const void *base, nsai_writer *writer) {
  const char *place = (const char *)base + field->offset;
  switch (field->type) {
  case NSAI_RECORD_TEXT:
  case NSAI_RECORD_TOKEN: nsai_write_quoted(writer, place); break;
  case NSAI_RECORD_INT: nsai_write(writer, "%" PRId32, *(const int32_t *)place); break;
  case NSAI_RECORD_LONG: nsai_write(writer, "%" PRId64, *(const int64_t *)place); break;
  case NSAI_RECORD_PAIR:
    nsai_write(writer, "[%" PRId32 ", %" PRId32 "]", ((const int32_t *)place)[0],
               ((const int32_t *)place)[1]);
    break;
  case NSAI_RECORD_REAL: write_real(*(const double *)place, writer); break;
  case NSAI_RECORD_BOOL: nsai_write(writer, *(const bool *)place ? "true" : "false"); break;
  case NSAI_RECORD_STATE:
    nsai_write(writer, "%s", nsai_timing_state_name(*(const int32_t *)place));
    break;
  }
}

/* Writes "- {key: value, ...}", one line of a list. */
static void write_line(const nsai_record_field *fields, const void *base, int indent,
                       nsai_writer *writer) {
  nsai_write(writer, "%*s- {", indent, "");
  for (const nsai_record_field *field = fields; field->key; field++) {
    nsai_write(writer, "%s%s: ", field == fields ? "" : ", ", field->key);
    write_value(field, base, writer);
  }
  nsai_write(writer, "}\n");
}

static void write_stages(const nsai_record *record, int indent, nsai_writer *writer) {
  nsai_write(writer, "%*sstages:%s\n", indent, "", record->timing_count ? "" : " {}");
  for (int32_t i = 0; i < record->timing_count; i++) {
    const nsai_timing *timing = &record->timings[i];
    if (i == 0 || strcmp(timing->stage, timing[-1].stage) != 0) {
      nsai_write(writer, "%*s", indent + 2, "");
      nsai_write_quoted(writer, timing->stage);
      nsai_write(writer, ":\n");
    }
    write_line(nsai_record_timing_fields, timing, indent + 4, writer);
  }
}

void nsai_record_write_keys(const nsai_record *record, int indent, nsai_writer *writer) {
  for (const nsai_record_section *section = nsai_record_sections; section->key; section++) {
    bool first = section == nsai_record_sections;
    nsai_write(writer, "%*s%s:\n", first ? 0 : indent, "", section->key);
    for (const nsai_record_field *field = section->fields; field->key; field++) {
      nsai_write(writer, "%*s%s: ", indent + 2, "", field->key);
      write_value(field, record, writer);
      nsai_write(writer, "\n");
    }
  }
  nsai_write(writer, "%*sbaselines:%s\n", indent, "", record->baseline_count ? "" : " []");
  for (int32_t i = 0; i < record->baseline_count; i++)
    write_line(nsai_record_baseline_fields, &record->baselines[i], indent + 2, writer);
  write_stages(record, indent, writer);
}

void nsai_record_write(const nsai_record *record, nsai_writer *writer) {
  size_t begin = writer->used;
  nsai_write(writer, NSAI_RECORD_KEY ": %d\n", NSAI_RECORD_VERSION);
  nsai_record_write_keys(record, 0, writer);
  nsai_record_write_checksum(writer, begin);
}

/* ---- the closing line ---- */

void nsai_record_write_checksum(nsai_writer *writer, size_t begin) {
  char digits[NSAI_DIGEST_CHARS];
  /* A text that does not fit has no digest; only its length is computed. */
  bool whole = writer->used < writer->size;
  nsai_digest_hex(whole ? writer->buf + begin : "", whole ? writer->used - begin : 0, digits);
  nsai_write(writer, NSAI_RECORD_CHECKSUM "%s\n", digits);
}

nsai_record_seal nsai_record_check_seal(const char *text, size_t size) {
  const size_t label = sizeof NSAI_RECORD_CHECKSUM - 1;
  char digits[NSAI_DIGEST_CHARS];
  size_t end = size;
  if (end && text[end - 1] == '\n') end--;
  size_t line = end;
  while (line && text[line - 1] != '\n') line--;
  if (end - line < label || memcmp(text + line, NSAI_RECORD_CHECKSUM, label) != 0)
    return NSAI_SEAL_MISSING;
  nsai_digest_hex(text, line, digits);
  bool good = size - line == NSAI_RECORD_CHECKSUM_BYTES && end == size - 1 &&
              memcmp(text + line + label, digits, NSAI_DIGEST_CHARS - 1) == 0;
  return good ? NSAI_SEAL_GOOD : NSAI_SEAL_WRONG;
}
