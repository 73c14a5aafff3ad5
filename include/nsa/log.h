/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Callbacks: log lines and progress of slow calls.
 */
#ifndef NSA_LOG_H
#define NSA_LOG_H

#include <nsa/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Levels are defined by what they mean to the host. */
enum {
  NSA_LOG_OFF = 0,
  NSA_LOG_ERROR = 1, /* the call fails; nsa_last_error() says the same */
  NSA_LOG_WARN =
      2, /* the call succeeds, but slower or with less than was asked for: somebody should look */
  NSA_LOG_INFO = 3,  /* rare facts: device chosen, cache folder, kernels compiled */
  NSA_LOG_DEBUG = 4, /* every decision: variant, cache hit or miss, launch list of a plan */
  NSA_LOG_TRACE = 5  /* generated sources, paths tried, compiler logs */
};

/* Called with one line of text, no newline; longer texts come line by line. `component` is the part
 * of the library ("cache", "jit", ...). May be called from any thread, from compiling threads too,
 * but never from two at once for one context. Must not call libnsa. */
typedef void (*nsa_log_fn)(void *user, int32_t level, const char *component, const char *text);

/* Called between pieces of a slow call: `done` of `total` pieces, `what` names the piece. Nonzero
 * cancels the call, which then returns NSA_E_CANCELLED and keeps what was finished. While the call
 * waits for another process that compiles the same kernels it is called every few milliseconds with
 * `what` "waiting for another process". Called on the calling thread only. */
typedef int32_t (*nsa_progress_fn)(void *user, int64_t done, int64_t total, const char *what);

#ifdef __cplusplus
}
#endif
#endif /* NSA_LOG_H */
