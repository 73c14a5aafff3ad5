/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Completion of a command line that a user is typing, for shells: the hidden command
 * `nsa-autotune complete WORD...`. The words are those behind "nsa-autotune"; the last one, which
 * may be empty, is the one that the user completes.
 *
 * A line of the output is a word that may stand there, a tab, and what it means. A word that ends
 * with "=" is not complete yet. The lines ":files" and ":folders" ask the shell for names of files
 * or folders.
 */
#ifndef NSAI_CLI_COMPLETE_H
#define NSAI_CLI_COMPLETE_H

#include <argp.h>
#include <stdbool.h>

/* From now on nsai_cli_parse prints what may stand behind the `count` words of a subcommand and
 * ends the program. The words are borrowed; the last one is completed. */
void nsai_complete_begin(char **words, int count);

/* Whether it has been called. */
bool nsai_complete_active(void);

/* Prints the candidate `text` if it begins with what the user has typed, `typed`. */
void nsai_complete_offer(const char *typed, const char *text, const char *help);

/* Prints what may stand at the last word of a subcommand. `tables` are its options, NULL after the
 * last; `usage` describes its other arguments, NULL: there are none. */
void nsai_complete_print(const struct argp_option *const *tables, const char *usage);

#endif /* NSAI_CLI_COMPLETE_H */
