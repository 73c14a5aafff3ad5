/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * JSON strings for reports.
 */
#ifndef NSAI_BASE_JSON_H
#define NSAI_BASE_JSON_H

#include "base/writer.h"

/* Appends a JSON string with its quotes; NULL becomes null. Bytes that are not UTF-8 become
 * U+FFFD. */
void nsai_write_json(nsai_writer *writer, const char *text);

/* Appends the member `"name": text` of an object behind `before`: "{" or ", ". */
void nsai_write_json_member(nsai_writer *writer, const char *before, const char *name,
                            const char *text);

#endif /* NSAI_BASE_JSON_H */
