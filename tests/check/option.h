/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Values of options of nsacheck and nsa-bench.
 */
#ifndef CHK_OPTION_H
#define CHK_OPTION_H

#include "model/model.h"

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

/* Parses the number given as --`option`. If it is not a number from `least` to `most`:
 * argp_error. */
int64_t chk_option_number(const char *option, const char *value, int64_t least, int64_t most,
                          struct argp_state *state);

/* The ordinal of a device given as --device, or NSAI_VERIFY_DEVICE_AUTO or _CPU. Another text:
 * argp_error, with a guess at what was meant. */
int32_t chk_option_device(const char *value, struct argp_state *state);

/* The model of the configuration FILE given as --model. Of another `value`: argp_error, which says that it
 * `is_not` what the option takes. */
nsai_model chk_option_model(const char *value, const char *is_not, struct argp_state *state);

/* Marks the numbers of ranks of "2,4" or "2..16" in `with`, whose last index is `most`. */
void chk_option_ranks(const char *name, const char *value, bool *with, int64_t most,
                      struct argp_state *state);

/* Appends the numbers of "4k,128k,1M" to `out`, which holds *count of at most `most`. */
void chk_option_tokens(const char *value, int64_t *out, int *count, int most,
                       struct argp_state *state);

#endif /* CHK_OPTION_H */
