/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Configurations that depend on nothing of the machine.
 */
#ifndef NSA_TEST_CONFIG_H
#define NSA_TEST_CONFIG_H

#include "cmocka_all.h"
#include "config/config.h"
#include "plan/variant.h"

#define REQUEST(...)                                                                               \
  ((nsai_config_request){ .variant = nsai_variant_name_at,                                         \
                          .skip_system_file = true,                                                \
                          .skip_environment = true,                                                \
                          __VA_ARGS__ })

/* Fails unless it loads; the caller destroys it. */
static inline nsai_config *load(const nsai_config_request *request) {
  nsai_config *config;
  if (nsai_config_load(request, &config) != NSA_OK) fail_msg("%s", nsa_last_error());
  return config;
}

#endif /* NSA_TEST_CONFIG_H */
