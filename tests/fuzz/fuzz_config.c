/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any bytes as a configuration: refused with diagnostics in valid UTF-8, or accepted, and then the
 * dump loads again to the same dump.
 */
#include "base/text.h"
#include "base/writer.h"
#include "config/config.h"
#include "fuzz.h"
#include "plan/variant.h"

#include <stdlib.h>
#include <string.h>

static void require(int condition) {
  if (!condition) abort();
}

static char *dump(const nsai_config *config) {
  nsai_writer none = nsai_writer_open(NULL, 0);
  nsai_config_dump(config, false, &none);
  char *text = malloc(none.used + 1);
  require(text != NULL);
  nsai_writer out = nsai_writer_open(text, none.used + 1);
  nsai_config_dump(config, false, &out);
  require(out.used == none.used);
  return text;
}

static nsa_status load(const char *text, size_t length, nsai_config **out) {
  static char diagnostics[256 * 1024]; /* more than 50 problems can need */
  nsai_writer writer = nsai_writer_open(diagnostics, sizeof diagnostics);
  nsai_config_request request = { .variant = nsai_variant_name_at,
                                  .text = text,
                                  .length = length,
                                  .skip_system_file = true,
                                  .skip_environment = true,
                                  .diagnostics = &writer };
  nsa_status status = nsai_config_load(&request, out);
  require(writer.used < sizeof diagnostics && nsai_utf8_valid(diagnostics, writer.used));
  require(status == NSA_OK || writer.used > 0);
  return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  nsai_config *config, *again;
  /* A length of 0 would mean "up to the NUL", which `data` does not have. */
  nsa_status status = load(size ? (const char *)data : "", size, &config);
  if (status != NSA_OK) {
    require(status == NSA_E_CONFIG && config == NULL);
    return 0;
  }
  char *first = dump(config);
  require(load(first, 0, &again) == NSA_OK);
  char *second = dump(again);
  require(strcmp(first, second) == 0);
  nsai_config_destroy(again);
  if (nsai_config_apply_device(config, "sm_90a", "NVIDIA H200", NULL) != NSA_OK)
    require(strlen(nsa_last_error()) > 0);
  nsai_config_destroy(config);
  free(first);
  free(second);
  return 0;
}
