/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Prints results: for people, as a JSON object, or in TAP.
 */
#ifndef CHK_RESULT_H
#define CHK_RESULT_H

#include "verify/result.h"

#include <stdbool.h>

/* Prints outcome, seconds, problem, remarks, and for a failure how to repeat it: `program`, and in
 * `arguments` the options that this needs in addition to the problem. */
void chk_result_print(FILE *out, const char *problem, const nsai_verify_result *result,
                      const char *program, const char *arguments);

/* One JSON object. */
void chk_result_json(FILE *out, const char *problem, const nsai_verify_result *result);

/* Result `number`, from 1 on, of the Test Anything Protocol. */
void chk_result_tap(FILE *out, int64_t number, const char *problem,
                    const nsai_verify_result *result);

#endif /* CHK_RESULT_H */
