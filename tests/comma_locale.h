/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A locale with a comma for the decimal point and points between thousands, as a host may set.
 * It is made by localedef in a folder of its own, since few machines have one.
 */
#ifndef NSA_TESTS_COMMA_LOCALE_H
#define NSA_TESTS_COMMA_LOCALE_H

#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Makes and sets the locale. False, and a line on stderr: not on this machine; the test must
 * skip. */
static inline bool comma_locale_enter(void) {
  static const char source[] = "LC_NUMERIC\n"
                               "decimal_point \"<U002C>\"\n"
                               "thousands_sep \"<U002E>\"\n"
                               "grouping 3;3\n"
                               "END LC_NUMERIC\n";
  char folder[] = "/tmp/nsa-test-locale-XXXXXX", command[256], text[16];
  if (!mkdtemp(folder)) abort();
  snprintf(command, sizeof command, "%s/source", folder);
  FILE *file = fopen(command, "w");
  if (!file || fputs(source, file) < 0 || fclose(file)) abort();
  /* -c: the other categories are missing, which is a warning. ASCII is known without a file. */
  snprintf(command, sizeof command,
           "localedef -c -i %s/source -f ANSI_X3.4-1968 %s/comma >/dev/null 2>&1", folder, folder);
  bool made = system(command) != -1;
  setenv("LOCPATH", folder, 1);
  made = made && setlocale(LC_NUMERIC, "comma");
  unsetenv("LOCPATH");
  snprintf(command, sizeof command, "rm -rf %s", folder);
  if (system(command)) abort();
  if (!made) {
    fprintf(stderr, "localedef makes no locale here: nothing is tried with a decimal comma\n");
    return false;
  }
  snprintf(text, sizeof text, "%.1f", 1.5);
  if (strcmp(text, "1,5") != 0) abort();
  return true;
}

static inline void comma_locale_leave(void) { setlocale(LC_NUMERIC, "C"); }

#endif /* NSA_TESTS_COMMA_LOCALE_H */
