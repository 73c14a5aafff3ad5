/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Lines end where libyaml ends them (CR, LF, CRLF, NEL, LS, PS), so that its positions agree.
 */
#include "config/diag.h"

#include "base/json.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

#define MAX_NOTES 50       /* more do not fit the error text, and nobody reads them */
#define MESSAGE_BYTES 1024 /* excerpts keep messages far shorter */
/* longest part of a source line; longer lines are cut around the caret */
#define SHOWN_COLUMNS 110
#define SHOWN_BEFORE 70 /* columns kept before the caret when a line is cut */

struct nsai_problem_note {
  struct nsai_problem_note *next;
  nsai_severity severity;
  nsai_mark mark;
  const char *path; /* NULL: none */
  const char *message;
};

static int32_t source_order(const nsai_mark *mark) {
  return mark->source ? mark->source->order : -1;
}

static bool comes_before(const nsai_mark *a, const nsai_mark *b) {
  if (source_order(a) != source_order(b)) return source_order(a) < source_order(b);
  if (a->line != b->line) return a->line < b->line;
  return a->column < b->column;
}

/* Drops an incomplete UTF-8 character at the end of a text that was cut. */
static void trim_character(char *text) {
  size_t length = strlen(text), back = 0;
  uint32_t code;
  while (back < 3 && back < length && ((unsigned char)text[length - back - 1] & 0xC0) == 0x80)
    back++;
  if (back == length || !((unsigned char)text[length - back - 1] & 0x80)) return;
  size_t start = length - back - 1;
  if (nsai_utf8_step(text + start, length - start, &code) != length - start ||
      code == NSAI_UTF8_INVALID)
    text[start] = '\0';
}

void nsai_diag_add(nsai_diag *diag, nsai_severity severity, nsai_mark mark, const char *path,
                   const char *format, ...) {
  diag->count++;
  if (severity == NSAI_ERROR) diag->errors++;
  if (diag->count > MAX_NOTES) return;

  char message[MESSAGE_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  trim_character(message);
  struct nsai_problem_note *note = nsai_arena_alloc(diag->arena, sizeof *note);
  if (!note) return;
  *note = (struct nsai_problem_note){ .severity = severity, .mark = mark };
  note->message = nsai_arena_copy(diag->arena, message, strlen(message));
  note->path = path ? nsai_arena_copy(diag->arena, path, strlen(path)) : NULL;
  if (!note->message || (path && !note->path)) return;

  struct nsai_problem_note **link = &diag->notes;
  while (*link && !comes_before(&mark, &(*link)->mark)) link = &(*link)->next;
  note->next = *link;
  *link = note;
}

/* Bytes of the line break at `at`; 0: there is none. */
static size_t break_length(const nsai_source *source, size_t at) {
  const char *text = source->text + at;
  size_t left = source->length - at;
  if (text[0] == '\n') return 1;
  if (text[0] == '\r') return left > 1 && text[1] == '\n' ? 2 : 1;
  if (left > 1 && memcmp(text, "\xC2\x85", 2) == 0) return 2;
  if (left > 2 && (memcmp(text, "\xE2\x80\xA8", 3) == 0 || memcmp(text, "\xE2\x80\xA9", 3) == 0))
    return 3;
  return 0;
}

nsai_mark nsai_source_mark(const nsai_source *source, size_t offset) {
  nsai_mark mark = { source, 1, 1 };
  for (size_t at = 0; at < offset && at < source->length;) {
    uint32_t code;
    size_t step = break_length(source, at);
    mark.line += step != 0;
    mark.column = step ? 1 : mark.column + 1;
    at += step ? step : nsai_utf8_step(source->text + at, source->length - at, &code);
  }
  return mark;
}

/* The bytes [*begin, *end) of a line, counted from 1; empty after the last line. */
static void find_line(const nsai_source *source, int32_t line, size_t *begin, size_t *end) {
  size_t at = 0;
  while (line > 1 && at < source->length) {
    size_t length = break_length(source, at);
    if (length) line--;
    at += length ? length : 1;
  }
  *begin = at;
  while (at < source->length && !break_length(source, at)) at++;
  *end = at;
}

/* Writes the source line, and below it the caret. Both lines keep tabs, so that the caret is
 * aligned. */
static void write_line(const nsai_mark *mark, nsai_writer *writer) {
  const nsai_source *source = mark->source;
  size_t at, end;
  find_line(source, mark->line, &at, &end);
  int32_t first = mark->column > SHOWN_COLUMNS ? mark->column - SHOWN_BEFORE : 1;
  char padding[SHOWN_COLUMNS + 4];
  size_t padded = 0;

  nsai_write(writer, "\n    %s", first > 1 ? "..." : "");
  if (first > 1) {
    memset(padding, ' ', 3);
    padded = 3;
  }
  for (int32_t column = 1; column < first + SHOWN_COLUMNS; column++) {
    uint32_t code = ' ';
    size_t step = at < end ? nsai_utf8_step(source->text + at, end - at, &code) : 0;
    if (column >= first) {
      bool shown = code == '\t' || nsai_printable(code);
      nsai_write_bytes(writer, shown ? source->text + at : "?", shown ? step : 1);
      if (column < mark->column) padding[padded++] = code == '\t' ? '\t' : ' ';
    }
    at += step;
  }
  nsai_write(writer, "%s\n    %.*s^", at < end ? "..." : "", (int)padded, padding);
}

void nsai_diag_write(const nsai_diag *diag, nsai_writer *writer) {
  for (const struct nsai_problem_note *note = diag->notes; note; note = note->next) {
    if (note != diag->notes) nsai_write(writer, "\n");
    if (note->mark.source) {
      nsai_write(writer, "%s:", note->mark.source->name);
      if (note->mark.line) nsai_write(writer, "%d:%d:", note->mark.line, note->mark.column);
      nsai_write(writer, " ");
    }
    nsai_write(writer, "%s: ", note->severity == NSAI_ERROR ? "error" : "warning");
    if (note->path) nsai_write(writer, "%s: ", note->path);
    nsai_write(writer, "%s", note->message);
    if (note->mark.source && note->mark.line) write_line(&note->mark, writer);
  }
  if (diag->count > MAX_NOTES)
    nsai_write(writer, "\n%zu more problems are not shown", diag->count - MAX_NOTES);
}

static void write_json_note(const struct nsai_problem_note *note, nsai_writer *writer) {
  const nsai_mark *mark = &note->mark;
  nsai_write_json_member(writer, "{", "source", mark->source ? mark->source->name : NULL);
  if (mark->source && mark->line)
    nsai_write(writer, ", \"line\": %d, \"column\": %d", mark->line, mark->column);
  nsai_write_json_member(writer, ", ", "severity",
                         note->severity == NSAI_ERROR ? "error" : "warning");
  nsai_write_json_member(writer, ", ", "key", note->path);
  nsai_write_json_member(writer, ", ", "message", note->message);
  nsai_write(writer, "}");
}

void nsai_diag_write_json(const nsai_diag *diag, nsai_writer *writer) {
  nsai_write(writer, "\"errors\": %zu, \"warnings\": %zu, \"diagnostics\": [", diag->errors,
             diag->count - diag->errors);
  for (const struct nsai_problem_note *note = diag->notes; note; note = note->next) {
    nsai_write(writer, "%s\n   ", note == diag->notes ? "" : ",");
    write_json_note(note, writer);
  }
  nsai_write(writer, "]");
}
