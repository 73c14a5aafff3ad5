/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * See option.h.
 */
#include "option.h"

#include "base/text.h"

int64_t chk_option_number(const char *option, const char *value, int64_t least, int64_t most,
                          struct argp_state *state) {
  int64_t number = least;
  if (!nsai_parse_integer(value, least, most, &number))
    argp_error(state, "--%s: '%s' is no number from %lld to %lld", option, value, (long long)least,
               (long long)most);
  return number;
}
