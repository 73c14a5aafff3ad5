/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tables of configurations and the complete text of their diagnostics.
 */
#ifndef NSA_TESTS_DIAG_CASE_H
#define NSA_TESTS_DIAG_CASE_H

#include "support/cmocka_all.h"

#include "base/writer.h"

#include <nsa/context.h>

/* A configuration, and everything that is said about it. A line "LINE:COLUMN: error: TEXT" of
 * `diag` stands for three: itself behind the name of the file, the line of the source, and a caret
 * under the column. All other lines are expected as they are. With an error the status is
 * NSA_E_CONFIG. */
typedef struct diag_case {
  const char *name, *yaml, *diag;
} diag_case;

static inline void write_diagnostics(nsai_writer *out, const char *yaml, const char *diag) {
  for (const char *end; *diag; diag = *end ? end + 1 : end) {
    int line = 0, column = 0;
    bool is_short = sscanf(diag, "%d:%d: ", &line, &column) == 2;
    end = diag + strcspn(diag, "\n");
    nsai_write(out, "%s%s%.*s", out->used ? "\n" : "", is_short ? "t.yaml:" : "", (int)(end - diag),
               diag);
    if (!is_short) continue;
    const char *source = yaml;
    while (--line) source = strchr(source, '\n') + 1;
    nsai_write(out, "\n    %.*s\n%*s", (int)strcspn(source, "\n"), source, column + 4, "^");
  }
}

/* `head` precedes the text of each configuration. */
static inline void run_cases(const char *head, const diag_case *cases, size_t count) {
  char yaml[4096], diag[8192], want[8192];
  for (size_t i = 0; i < count; i++) {
    nsai_writer out = nsai_writer_open(want, sizeof want);
    assert_in_range(snprintf(yaml, sizeof yaml, "%s%s", head, cases[i].yaml), 1, sizeof yaml - 1);
    write_diagnostics(&out, yaml, cases[i].diag);
    nsa_status status = nsa_config_check(yaml, 0, "t.yaml", diag, sizeof diag);
    nsa_status expected = strstr(want, " error: ") ? NSA_E_CONFIG : NSA_OK;
    if (status != expected || strcmp(diag, want) != 0)
      fail_msg("%s: status %d, expected %d\n%s\nexpected\n%s", cases[i].name, status, expected,
               diag, want);
  }
}

#define RUN(head, cases) run_cases(head, cases, sizeof cases / sizeof cases[0])

#endif /* NSA_TESTS_DIAG_CASE_H */
