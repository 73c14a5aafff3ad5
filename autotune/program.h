/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the programs nsa-autotune, nsacheck and nsa-bench share: the arguments are parsed or the
 * program ends, and a result that did not reach standard output is a failure.
 */
#ifndef NSAI_PROGRAM_H
#define NSAI_PROGRAM_H

#include <nsa/base.h>

#include <argp.h>

/* What --version of a program prints: one line. */
#define NSAI_TEXT_OF(x) #x
#define NSAI_TEXT(x) NSAI_TEXT_OF(x)
#define NSAI_PROGRAM_VERSION(name)                                                                 \
  name " " NSAI_TEXT(NSA_VERSION_MAJOR) "." NSAI_TEXT(NSA_VERSION_MINOR) "." NSAI_TEXT(            \
      NSA_VERSION_PATCH)

/* Begins a program; `name` is that of its messages. From now on the program ends with status 1,
 * and one sentence on stderr, where something that it printed could not be written: a report
 * that was cut off must not look like a complete one. That holds for --help of argp, too, which
 * calls exit. */
void nsai_program_begin(const char *name);

/* Parses the arguments into `input`. Wrong ones end the program with `argp_err_exit_status` as argp
 * does; a failure of the parser itself, such as no memory, ends it with status 1. */
void nsai_program_parse(const struct argp *argp, int argc, char **argv, void *input);

/* The index of `word` in a NULL-terminated list: what `option` ("--op") may be. Another word ends the
 * program as a wrong argument; the message names the words, and the one that was probably meant. */
int nsai_program_word(const char *option, const char *word, const char *const *words,
                      const struct argp_state *state);

/* Brings to standard output what was printed. 0, or the errno of why that failed: of a print
 * before, whose cause is in errno still unless that is 0, or of this call. The caller reports
 * it, and the end of the program does not say it again. */
int nsai_program_flush(void);

#endif /* NSAI_PROGRAM_H */
