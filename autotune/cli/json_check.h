/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Checks whether another program's output is JSON before it becomes part of a report.
 */
#ifndef NSAI_CLI_JSON_CHECK_H
#define NSAI_CLI_JSON_CHECK_H

#include <stdbool.h>
#include <stddef.h>

/* Whether `text` is one JSON value (RFC 8259) in valid UTF-8, nested at most 64 deep. */
bool nsai_json_valid(const char *text, size_t size);

#endif /* NSAI_CLI_JSON_CHECK_H */
