/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Durations as people write them: "90s", "1.5h", "1h30m". Stored as whole milliseconds;
 * independent of the locale. And the clock that measures them.
 */
#ifndef NSAI_BASE_DURATION_H
#define NSAI_BASE_DURATION_H

#include "base/writer.h"

#include <stdint.h>

/* Reads decimal numbers, each with a unit (h, m, s or ms), from the largest unit to the
 * smallest.
 *
 * ms  receives the milliseconds; INT64_MAX if they exceed its range.
 *
 * Returns NULL, or advice about a text that is not a duration (static storage). */
const char *nsai_duration_read(const char *text, int64_t *ms);

/* Writes `ms`, which must not be negative, in the format of nsai_duration_read. */
void nsai_duration_write(int64_t ms, nsai_writer *writer);

/* Seconds of the monotonic clock. */
double nsai_seconds(void);

#endif /* NSAI_BASE_DURATION_H */
