/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Values of options of nsacheck and nsa-bench.
 */
#ifndef CHK_OPTION_H
#define CHK_OPTION_H

#include <argp.h>
#include <stdint.h>

/* Parses the number given as --`option`. If it is not a number from `least` to `most`:
 * argp_error. */
int64_t chk_option_number(const char *option, const char *value, int64_t least, int64_t most,
                          struct argp_state *state);

#endif /* CHK_OPTION_H */
