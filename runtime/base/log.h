/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The logger of a context. A NULL logger is valid and silent.
 */
#ifndef NSAI_BASE_LOG_H
#define NSAI_BASE_LOG_H

#include "base/error.h"

#include <nsa/log.h>
#include <pthread.h>

typedef struct nsai_logger {
  nsa_log_fn fn; /* NULL: stderr */
  void *user;
  int32_t level;        /* lines of a higher level are dropped */
  pthread_mutex_t lock; /* held while `fn` runs, so that two threads never call it at once */
} nsai_logger;

void nsai_logger_init(nsai_logger *logger, nsa_log_fn fn, void *user, int32_t level);
void nsai_logger_fini(nsai_logger *logger);

/* Logs one line; the text must have no newline. `component` is the file's noun ("cache", "jit"). */
void nsai_log(nsai_logger *logger, int32_t level, const char *component, const char *format, ...)
    NSAI_PRINTF(4, 5);

/* Logs each line of a text, without lines of other threads in between. */
void nsai_log_lines(nsai_logger *logger, int32_t level, const char *component, const char *text);

/* Whether a line of `level` would be logged; for callers that build long texts. */
int nsai_log_enabled(const nsai_logger *logger, int32_t level);

/* "error", "warn", "info", "debug", "trace"; "off" for 0. */
const char *nsai_log_level_name(int32_t level);

#endif /* NSAI_BASE_LOG_H */
