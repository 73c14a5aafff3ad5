/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Loading configurations from texts and files, for test_config.c.
 */
#ifndef TEST_CONFIG_FIXTURE_H
#define TEST_CONFIG_FIXTURE_H

#include "support/config.h"

#define MODEL "model: {heads: 64, kv_heads: 4, head_dim: 128}\n"

static inline nsai_config *load_text(const char *text, const char *const *overrides) {
  return load(&REQUEST(.text = text, .name = "t.yaml", .overrides = overrides));
}

static inline void expect_failure(const nsai_config_request *request, nsa_status expected,
                                  const char *needle) {
  nsai_config *config;
  assert_int_equal(nsai_config_load(request, &config), expected);
  assert_null(config);
  if (!strstr(nsa_last_error(), needle)) fail_msg("no '%s' in\n%s", needle, nsa_last_error());
}

/* The caller frees it. */
static inline char *dump(const nsai_config *config, bool with_origin) {
  nsai_writer none = nsai_writer_open(NULL, 0);
  nsai_config_dump(config, with_origin, &none);
  char *text = malloc(none.used + 1);
  assert_non_null(text);
  nsai_writer out = nsai_writer_open(text, none.used + 1);
  nsai_config_dump(config, with_origin, &out);
  assert_int_equal(strlen(text), none.used);
  return text;
}

static inline void expect_in_dump(const nsai_config *config, const char *needle) {
  char *text = dump(config, true);
  if (!strstr(text, needle)) fail_msg("no '%s' in\n%s", needle, text);
  free(text);
}

/* A file under a fresh folder; both are removed by remove_file. */
static char folder[] = "/tmp/nsa-test-XXXXXX";
static char file_path[64];

static inline void write_file(const char *text, mode_t mode) {
  strcpy(folder, "/tmp/nsa-test-XXXXXX");
  assert_non_null(mkdtemp(folder));
  snprintf(file_path, sizeof file_path, "%s/f.yaml", folder);
  FILE *file = fopen(file_path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
  assert_int_equal(chmod(file_path, mode), 0);
}

static inline void remove_file(void) {
  unlink(file_path);
  rmdir(folder);
}

static inline const char *source_root(void) {
  const char *root = getenv("TEST_SOURCE_ROOT");
  return root ? root : ".";
}

#endif /* TEST_CONFIG_FIXTURE_H */
