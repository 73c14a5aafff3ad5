/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Overrides, environment variables and a host's nsa_model, all of any contents, as layers of one
 * configuration: refused with diagnostics in valid UTF-8, or accepted, and then the dump loads again
 * to the same dump. A variable alone does what an override of its key does.
 *
 * Input: lines. "NSA_CACHE_DIR=..." sets that variable, "@1,2,..." fills the fields of a nsa_model
 * in their order, and any other line is an override.
 */
#include "config/config.h"
#include "config/env.h"
#include "config/schema.h"
#include "fuzz.h"
#include "plan/variant.h"

#include <nsa/context.h>

enum { MAX_LINES = 24 };

static char *dump(const nsai_config *config) {
  nsai_writer none = nsai_writer_open(NULL, 0);
  nsai_config_dump(config, false, &none);
  char *text = malloc(none.used + 1);
  FUZZ_REQUIRE(text != NULL);
  nsai_writer out = nsai_writer_open(text, none.used + 1);
  nsai_config_dump(config, false, &out);
  return text;
}

static void clear_environment(void) {
  for (size_t i = 0; nsai_env_at(i); i++) unsetenv(nsai_env_at(i)->name);
}

/* Returns the dump; NULL: refused. */
static char *load(nsai_config_request request) {
  static char diagnostics[256 * 1024]; /* more than 50 problems can need */
  nsai_writer writer = nsai_writer_open(diagnostics, sizeof diagnostics);
  nsai_config *config;
  request.variant = nsai_variant_name_at;
  request.skip_system_file = true;
  request.diagnostics = &writer;
  nsa_status status = nsai_config_load(&request, &config);
  FUZZ_REQUIRE(writer.used < sizeof diagnostics && nsai_utf8_valid(diagnostics, writer.used));
  FUZZ_REQUIRE((status == NSA_OK) == (config != NULL));
  if (status != NSA_OK) {
    FUZZ_REQUIRE(status == NSA_E_CONFIG || (status == NSA_E_ARG && request.model));
    FUZZ_REQUIRE(status == NSA_E_ARG || writer.used > 0);
    fuzz_check_message(nsa_last_error());
    return NULL;
  }
  char *text = dump(config);
  nsai_config_destroy(config);
  return text;
}

static void check_dump(char *text) {
  if (!text) return;
  char *again = load((nsai_config_request){ .text = text, .skip_environment = true });
  FUZZ_REQUIRE(again && strcmp(text, again) == 0);
  free(again);
  free(text);
}

static const nsai_env_var *find_variable(const char *line) {
  size_t length = strcspn(line, "=");
  for (size_t i = 0; line[length] && nsai_env_at(i); i++)
    if (strlen(nsai_env_at(i)->name) == length && !memcmp(nsai_env_at(i)->name, line, length))
      return nsai_env_at(i);
  return NULL;
}

static void set_variable(const nsai_env_var *variable, const char *line) {
  FUZZ_REQUIRE(setenv(variable->name, line + strcspn(line, "=") + 1, 1) == 0);
}

static bool is_null(const char *value) {
  return !*value || !strcmp(value, "~") || !strcmp(value, "null");
}

/* YAML's null is a text in a variable. */
static void compare(const nsai_env_var *variable, const char *line) {
  const char *value = line + strcspn(line, "=") + 1, *path = nsai_keys[variable->key].path;
  if (is_null(value)) return;
  char *override = malloc(strlen(path) + strlen(value) + 2);
  FUZZ_REQUIRE(override != NULL);
  sprintf(override, "%s=%s", path, value);
  clear_environment();
  set_variable(variable, line);
  char *by_variable = load((nsai_config_request){ 0 });
  clear_environment();
  const char *const overrides[] = { override, NULL };
  char *by_override = load((nsai_config_request){ .overrides = overrides });
  FUZZ_REQUIRE(!by_variable == !by_override);
  if (by_variable) FUZZ_REQUIRE(strcmp(by_variable, by_override) == 0);
  free(by_variable);
  free(by_override);
  free(override);
}

static void read_model(const char *line, nsa_model *out) {
  int32_t *const field[] = {
    &out->heads,         &out->kv_heads,       &out->head_dim_qk,     &out->head_dim_v,
    &out->dtype,         &out->compress_block, &out->compress_stride, &out->phi,
    &out->phi_hidden,    &out->phi_activation, &out->select_block,    &out->select_count,
    &out->select_init,   &out->select_local,   &out->window,          &out->gate,
    &out->gate_channels, &out->gate_hidden,    &out->gate_activation, &out->kv_sharing
  };
  *out = (nsa_model)NSA_MODEL_INIT;
  for (size_t i = 0; i < sizeof field / sizeof *field && *line; i++) {
    char *end;
    *field[i] = (int32_t)strtoll(line, &end, 10);
    line = end + (*end == ',');
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = fuzz_text(data, size), *rest = text, *line;
  const char *overrides[MAX_LINES + 1] = { 0 };
  const nsai_env_var *single = NULL;
  nsa_model model;
  bool has_model = false;
  int lines = 0, count = 0;
  clear_environment();
  for (; (line = strsep(&rest, "\n")) && lines < MAX_LINES; lines++) {
    const nsai_env_var *variable = find_variable(line);
    if (variable)
      set_variable(single = variable, line);
    else if (*line == '@')
      read_model(line + 1, &model), has_model = true;
    else
      overrides[count++] = line;
  }
  check_dump(
      load((nsai_config_request){ .overrides = overrides, .model = has_model ? &model : NULL }));
  if (lines == 1 && single) compare(single, text);
  clear_environment();
  free(text);
  return 0;
}
