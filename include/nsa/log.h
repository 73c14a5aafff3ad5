/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Callbacks of the host: log lines, and the progress of slow calls.
 */
#ifndef NSA_LOG_H
#define NSA_LOG_H

#include <nsa/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Log levels say what a line means to the host. A log prints the lines up to its level. */
enum {
  NSA_LOG_OFF = 0,
  NSA_LOG_ERROR = 1, /* the call fails; nsa_last_error() says the same */
  NSA_LOG_WARN = 2,  /* the call succeeds, but slower or with less than was asked for */
  NSA_LOG_INFO = 3,  /* rare facts: the device, the cache folder, kernels that were compiled */
  NSA_LOG_DEBUG = 4, /* every decision: variants, cache hits and misses, the launches of a plan */
  NSA_LOG_TRACE = 5  /* generated sources, paths that were tried, compiler logs */
};

/* Receives one line of text without a newline. Longer texts come line by line.
 *
 * user       nsa_options.log_user.
 * level      NSA_LOG_ERROR ... NSA_LOG_TRACE.
 * component  the part of the library that speaks: "cache", "jit", ...
 *
 * Any thread may call it, also the threads that compile, but never two at once for one context.
 * It must not call libnsa. */
typedef void (*nsa_log_fn)(void *user, int32_t level, const char *component, const char *text);

/* Reports the progress of a slow call: `done` of `total` pieces are finished, and `what` names
 * the piece. A return value other than 0 cancels the call, which then returns NSA_E_CANCELLED and
 * keeps the finished pieces. While the call waits for another process that compiles the same
 * kernels, `what` is "waiting for another process", every few milliseconds. Called on the calling
 * thread.
 */
typedef int32_t (*nsa_progress_fn)(void *user, int64_t done, int64_t total, const char *what);

#ifdef __cplusplus
}
#endif
#endif /* NSA_LOG_H */
