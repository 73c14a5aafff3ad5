/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Durations as people write them: "90s", "1.5h", "1h30m". Whole milliseconds inside; locale-free.
 */
#ifndef NSAI_BASE_DURATION_H
#define NSAI_BASE_DURATION_H

#include "base/writer.h"

#include <stdint.h>

/* Reads decimal numbers, each with its unit h, m, s or ms, from the largest unit down.
 *
 * ms  receives the milliseconds, INT64_MAX when they are more than it holds.
 *
 * Returns NULL, or what to do about a text that is no duration; static storage. */
const char *nsai_duration_read(const char *text, int64_t *ms);

/* Writes `ms`, which must not be negative, as nsai_duration_read reads it. */
void nsai_duration_write(int64_t ms, nsai_writer *writer);

#endif /* NSAI_BASE_DURATION_H */
