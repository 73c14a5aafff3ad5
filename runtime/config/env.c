/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "config/env.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const nsai_env_var variables[] = {
  { "NSA_CACHE_DIR", NSAI_KEY_CACHE_DIR },
  { "NSA_CACHE_MODE", NSAI_KEY_CACHE_MODE },
  { "NSA_CHECK_INPUTS", NSAI_KEY_CHECK_INPUTS },
  { "NSA_COMPILE_JOBS", NSAI_KEY_COMPILE_JOBS },
  { "NSA_CUBLASLT_PATH", NSAI_KEY_CUBLASLT_PATH },
  { "NSA_DEVICE", NSAI_KEY_DEVICE },
  { "NSA_DRIVER_PATH", NSAI_KEY_DRIVER_PATH },
  { "NSA_DUMP_DIR", NSAI_KEY_DUMP_DIR },
  { "NSA_JIT", NSAI_KEY_JIT },
  { "NSA_LOG_LEVEL", NSAI_KEY_LOG_LEVEL },
  { "NSA_NCCL_PATH", NSAI_KEY_NCCL_PATH },
  { "NSA_NVRTC_PATH", NSAI_KEY_NVRTC_PATH },
  { "NSA_RECORDS", NSAI_KEY_TUNING_RECORDS },
  { "NSA_TEMPLATES_DIR", NSAI_KEY_TEMPLATES_DIR },
  { "NSA_TUNE_LEVEL", NSAI_KEY_TUNING_LEVEL },
};
#define VARIABLES (sizeof variables / sizeof variables[0])

const nsai_env_var *nsai_env_at(size_t index) {
  return index < VARIABLES ? &variables[index] : NULL;
}

const char *nsai_env_get(const nsai_env_var *var) {
  const char *value = secure_getenv(var->name);
  return value && *value ? value : NULL;
}

/* ---- names that are none of the table ---- */

#define PREFIX "NSA_"
#define NAME_BYTES 64 /* longer than every name of the table */

/* Whether a name, up to its '=', belongs to the tests, to .ci/run or to the Python package. */
static bool is_foreign(const char *name) {
  static const char *const prefixes[] = { "NSA_CI_", "NSA_PYTHON_", "NSA_TEST_" };
  for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
    if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return true;
  return false;
}

static bool is_known(const char *name) {
  for (size_t i = 0; i < VARIABLES; i++)
    if (strcmp(variables[i].name, name) == 0) return true;
  return false;
}

/* The prefix is left out, because it would make all names alike. */
static const char *nearest_of(const char *name) {
  const char *word = name + strlen(PREFIX), *nearest = NULL;
  uint32_t least = UINT32_MAX;
  for (size_t i = 0; i < VARIABLES; i++)
    if (nsai_is_nearer(word, variables[i].name + strlen(PREFIX), &least))
      nearest = variables[i].name;
  for (size_t i = 0; i < VARIABLES && *word && !nearest; i++)
    if (strncmp(variables[i].name, name, strlen(name)) == 0) nearest = variables[i].name;
  return nearest;
}

bool nsai_env_next_stranger(nsai_env_stranger *stranger) {
  while (environ && environ[stranger->next]) {
    const char *entry = environ[stranger->next++];
    size_t length = strcspn(entry, "=");
    char name[NAME_BYTES];
    if (strncmp(entry, PREFIX, strlen(PREFIX)) != 0 || is_foreign(entry)) continue;
    if (!entry[length] || !entry[length + 1]) continue; /* empty counts as unset */
    snprintf(name, sizeof name, "%.*s", (int)length, entry);
    if (is_known(name)) continue;
    /* With raised privileges the environment counts for nothing. */
    if (length < sizeof name && !secure_getenv(name)) continue;
    stranger->name = entry;
    stranger->length = length;
    stranger->nearest = length < sizeof name ? nearest_of(name) : NULL;
    return true;
  }
  return false;
}
