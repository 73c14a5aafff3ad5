/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nsai_logger_init(nsai_logger *logger, nsa_log_fn fn, void *user, int32_t level) {
  logger->fn = fn;
  logger->user = user;
  logger->level = level;
  pthread_mutex_init(&logger->lock, NULL);
}

void nsai_logger_fini(nsai_logger *logger) { pthread_mutex_destroy(&logger->lock); }

int nsai_log_enabled(const nsai_logger *logger, int32_t level) {
  return logger && level <= logger->level;
}

const char *nsai_log_level_name(int32_t level) {
  static const char *const names[] = { "off", "error", "warn", "info", "debug", "trace" };
  return level >= 0 && level <= NSA_LOG_TRACE ? names[level] : "?";
}

/* Lock held. */
static void emit_locked(nsai_logger *logger, int32_t level, const char *component,
                        const char *text) {
  if (logger->fn)
    logger->fn(logger->user, level, component, text);
  else
    fprintf(stderr, "nsa: %s: %s: %s\n", nsai_log_level_name(level), component, text);
}

static void emit(nsai_logger *logger, int32_t level, const char *component, const char *text) {
  pthread_mutex_lock(&logger->lock);
  emit_locked(logger, level, component, text);
  pthread_mutex_unlock(&logger->lock);
}

void nsai_log_lines(nsai_logger *logger, int32_t level, const char *component, const char *text) {
  char line[1024]; /* longer lines are cut */
  if (!nsai_log_enabled(logger, level)) return;
  pthread_mutex_lock(&logger->lock);
  while (*text) {
    size_t length = strcspn(text, "\n");
    snprintf(line, sizeof line, "%.*s", (int)(length < sizeof line ? length : sizeof line - 1),
             text);
    emit_locked(logger, level, component, line);
    text += length + (text[length] == '\n');
  }
  pthread_mutex_unlock(&logger->lock);
}

void nsai_log(nsai_logger *logger, int32_t level, const char *component, const char *format, ...) {
  if (!nsai_log_enabled(logger, level)) return;
  char line[1024];
  va_list args;
  va_start(args, format);
  int length = vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (length < 0) return;
  if ((size_t)length < sizeof line) {
    emit(logger, level, component, line);
    return;
  }
  /* Longer than the stack buffer (for example a list of paths): format again on the heap.
   * Without memory, log the cut line. */
  char *text = malloc((size_t)length + 1);
  if (text) {
    va_start(args, format);
    vsnprintf(text, (size_t)length + 1, format, args);
    va_end(args);
  }
  emit(logger, level, component, text ? text : line);
  free(text);
}
