/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The environment variables of the library, in one table. Each sets one key of the
 * configuration. It takes precedence over every file but not over overrides, and has that key's
 * type and built-in value.
 */
#ifndef NSAI_CONFIG_ENV_H
#define NSAI_CONFIG_ENV_H

#include "config/config.h"

typedef struct nsai_env_var {
  const char *name; /* "NSA_CACHE_DIR" */
  nsai_key_id key;
} nsai_env_var;

/* The variable at `index`; NULL after the last. Static storage. */
const nsai_env_var *nsai_env_at(size_t index);

/* The variable's value, or NULL when it is unset or empty, or when the process runs with raised
 * privileges (for example set-user-id). Thread-safe like getenv: as long as nobody calls setenv. */
const char *nsai_env_get(const nsai_env_var *var);

/* A variable of the process that is set, begins with NSA_, and is none of the table. */
typedef struct nsai_env_stranger {
  size_t next;      /* where the search goes on; 0 at the beginning */
  const char *name; /* borrowed from the environment, up to `length` */
  size_t length;
  const char *nearest; /* the variable that was probably meant; NULL: no guess */
} nsai_env_stranger;

/* Finds the next of them; false after the last. Names that begin with NSA_TEST_, NSA_CI_ or
 * NSA_PYTHON_ belong to the tests, to .ci/run and to the package for Python, and are left alone.
 * Thread-safe like nsai_env_get. */
bool nsai_env_next_stranger(nsai_env_stranger *stranger);

#endif /* NSAI_CONFIG_ENV_H */
