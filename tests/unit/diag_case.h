/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tables of configurations and the complete text of their diagnostics.
 */
#ifndef NSA_TESTS_DIAG_CASE_H
#define NSA_TESTS_DIAG_CASE_H

#include "support/cmocka_all.h"

#include <nsa/context.h>

typedef struct diag_case {
  const char *name;
  const char *yaml;
  nsa_status status;
  const char *diag; /* all of it */
} diag_case;

static inline void run_cases(const diag_case *cases, size_t count) {
  char diag[8192];
  for (size_t i = 0; i < count; i++) {
    nsa_status status = nsa_config_check(cases[i].yaml, 0, "t.yaml", diag, sizeof diag);
    if (status != cases[i].status || strcmp(diag, cases[i].diag) != 0)
      fail_msg("%s: status %d, expected %d\n%s\nexpected\n%s", cases[i].name, status,
               cases[i].status, diag, cases[i].diag);
  }
}

#define RUN(cases) run_cases(cases, sizeof cases / sizeof cases[0])

#endif /* NSA_TESTS_DIAG_CASE_H */
