/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * See option.h.
 */
#include "option.h"

#include "base/text.h"
#include "config/config.h"
#include "config/schema.h"
#include "verify/device.h"

#include <string.h>

int64_t chk_option_number(const char *option, const char *value, int64_t least, int64_t most,
                          struct argp_state *state) {
  int64_t number = least;
  if (!nsai_parse_integer(value, least, most, &number))
    argp_error(state, "--%s: '%s' is no number from %lld to %lld", option, value, (long long)least,
               (long long)most);
  return number;
}

int32_t chk_option_device(const char *value, struct argp_state *state) {
  int32_t device = NSAI_VERIFY_DEVICE_AUTO;
  if (nsai_verify_device_parse(value, &device) == 0) return device;
  char guess[256];
  nsai_writer out = nsai_writer_open(guess, sizeof guess);
  nsai_device_suggest(value, &out);
  argp_error(state, "--device: '%s' is neither auto, cpu nor an ordinal%s", value, guess);
  return device;
}

nsai_model chk_option_model(const char *value, const char *is_not, struct argp_state *state) {
  nsai_config *config = NULL;
  nsai_model model = { 0 };
  const nsai_config_request request = {
    .path = value, .skip_environment = true, .skip_system_file = true, .need_model = true
  };
  if (nsai_config_load(&request, &config) != NSA_OK)
    argp_error(state, "--model: '%s' is %s: %s", value, is_not, nsa_last_error());
  else
    model = config->model;
  nsai_config_destroy(config);
  return model;
}

void chk_option_ranks(const char *name, const char *value, bool *with, int64_t most,
                      struct argp_state *state) {
  char copy[256], *save = NULL;
  snprintf(copy, sizeof copy, "%s", value);
  for (char *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
    char *dots = strstr(word, "..");
    if (dots) *dots = '\0';
    const int64_t first = chk_option_number(name, word, 1, most, state);
    const int64_t last = dots ? chk_option_number(name, dots + 2, first, most, state) : first;
    for (int64_t i = first; i <= last; i++) with[i] = true;
  }
}

void chk_option_tokens(const char *value, int64_t *out, int *count, int most,
                       struct argp_state *state) {
  char copy[256], *save = NULL;
  snprintf(copy, sizeof copy, "%s", value);
  for (char *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
    char *last = word + strlen(word) - 1;
    const int64_t unit = *last == 'k' ? 1 << 10 : *last == 'M' ? 1 << 20 : 1;
    if (unit > 1) *last = '\0';
    if (*count == most) argp_error(state, "too many --tokens");
    out[(*count)++] = unit * chk_option_number("tokens", word, 0, ((int64_t)1 << 22) / unit, state);
  }
}
