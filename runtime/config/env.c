/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "config/env.h"

#include <stdlib.h>

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
