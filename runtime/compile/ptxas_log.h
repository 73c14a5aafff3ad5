/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Reads the compiler's log: what ptxas says about a kernel's resources, and the first errors.
 */
#ifndef NSAI_COMPILE_PTXAS_LOG_H
#define NSAI_COMPILE_PTXAS_LOG_H

#include <stddef.h>
#include <stdint.h>

typedef struct nsai_ptxas_figures {
  int32_t registers;    /* per thread, the largest of all functions */
  int32_t spill_bytes;  /* stores + loads, over all functions */
  int32_t stack_bytes;  /* the largest frame */
  int32_t shared_bytes; /* static, the largest */
  int32_t serial_wgmma; /* 1: a C75xx remark was found */
  int32_t starved;      /* 1: a single instruction needs more registers than a thread has (C7602) */
  char remark[512];     /* the line that reported serial_wgmma or starved */
} nsai_ptxas_figures;

/* Reads the log of a compilation with --ptxas-options=-v. Skips unknown lines. */
void nsai_ptxas_read_log(const char *log, nsai_ptxas_figures *out);

/* Copies the first error lines of a failed compilation, each with its file and line, cut at
 * `size`. Without such lines, copies the head of the log. */
void nsai_compiler_first_errors(const char *log, char *out, size_t size);

#endif /* NSAI_COMPILE_PTXAS_LOG_H */
