/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Errors inside the library: the thread-local text and trace behind nsa_last_error and
 * nsa_last_trace, and the two propagation macros.
 *
 * A failing function sets the text once, with nsai_fail, at the place that knows the cause, and so
 * empties the trace; frames above add one line of trace each through NSAI_TRY or NSAI_TRY_TO.
 */
#ifndef NSAI_BASE_ERROR_H
#define NSAI_BASE_ERROR_H

#include <nsa/base.h>
#include <stdarg.h>

#if defined(__GNUC__) || defined(__clang__)
#define NSAI_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define NSAI_COLD __attribute__((cold))
#else
#define NSAI_PRINTF(fmt, args)
#define NSAI_COLD
#endif

/* Replaces this thread's error text and returns `status`, so that `return nsai_fail(NSA_E_ARG,
 * "...")` reads well. */
nsa_status nsai_fail(nsa_status status, const char *format, ...) NSAI_PRINTF(2, 3) NSAI_COLD;

/* Appends one line "at file:line function" to this thread's trace; returns `status`. */
nsa_status nsai_trace(nsa_status status, const char *file, int line,
                      const char *function) NSAI_COLD;

/* Sets the text of a failed call to `text` without formatting (text carried over from another
 * thread). */
nsa_status nsai_fail_text(nsa_status status, const char *text) NSAI_COLD;

/* nsai_fail for a foreign call that returned `code`; the code is stored beside the text. */
nsa_status nsai_fail_foreign(nsa_status status, int code, const char *format, ...)
    NSAI_PRINTF(3, 4) NSAI_COLD;

/* The foreign code of this thread's last failure; 0: none. */
int nsai_last_foreign(void);

/* Shorthand for a failed allocation of `bytes` bytes for `what`. */
nsa_status nsai_fail_nomem(const char *what, size_t bytes) NSAI_COLD;

/* Returns from the enclosing function when `expr` is not NSA_OK. */
#define NSAI_TRY(expr)                                                                             \
  do {                                                                                             \
    nsa_status nsai_status_ = (expr);                                                              \
    if (nsai_status_ != NSA_OK) return nsai_trace(nsai_status_, __FILE__, __LINE__, __func__);     \
  } while (0)

/* Stores the status in the local `status` and jumps to `label` when `expr` is not NSA_OK. */
#define NSAI_TRY_TO(label, expr)                                                                   \
  do {                                                                                             \
    status = (expr);                                                                               \
    if (status != NSA_OK) {                                                                        \
      nsai_trace(status, __FILE__, __LINE__, __func__);                                            \
      goto label;                                                                                  \
    }                                                                                              \
  } while (0)

#endif /* NSAI_BASE_ERROR_H */
