/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Finds and opens a shared library at run time: its possible locations, and a record of every
 * path tried. Knows nothing about the contents; cuda_api.c resolves the symbols.
 */
#ifndef NSAI_DRIVER_LIBRARY_H
#define NSAI_DRIVER_LIBRARY_H

#include "base/log.h"
#include "driver/build_id.h"

#include <limits.h>

/* One library that is opened at run time. `env` and `config_key` are NULL where the user cannot
 * set the path. */
typedef struct nsai_library_spec {
  const char *what;         /* "NVRTC" */
  const char *const *names; /* file names, best first, NULL-terminated */
  const char *env;          /* variable that holds a path; it overrides the search */
  /* the key with which the user sets the path: "runtime.nvrtc_path" */
  const char *config_key;
  const char *const *folders;      /* known folders, glob(3) patterns, NULL-terminated */
  const char *const *home_folders; /* the same below $VIRTUAL_ENV, $CONDA_PREFIX, $HOME/.local */
  nsa_status missing;              /* status of a failed search */
  const char *remedy;              /* one sentence */
} nsai_library_spec;

/* Every path of one search, with the result. Fixed size, so that recording cannot fail;
 * `dropped` counts what did not fit. */
#define NSAI_TRIED_MAX 48
typedef struct nsai_tried {
  struct {
    char path[256];
    char outcome[192]; /* "opened", "no such file", the loader's own text */
  } item[NSAI_TRIED_MAX];
  int32_t count, dropped;
} nsai_tried;

typedef struct nsai_library_query {
  const char *path;  /* explicit file or folder, the only one to try; NULL: search */
  int32_t max_major; /* skip names whose ".so.N" is above it; 0: no limit */
} nsai_library_query;

/* A library that was found, and if opened its dlopen handle (never closed: functions may be in
 * use). */
typedef struct nsai_library {
  void *handle; /* NULL when only located */
  char path[PATH_MAX];
  char build_id[NSAI_BUILD_ID_CHARS]; /* "" when the file has none */
} nsai_library;

/* Opens the first candidate that the loader accepts: the explicit path; else the path in the
 * environment; else a copy that the process has already loaded, the loader's own search, the
 * known folders. `tried` is filled on success as well. Thread-safe. The error of a failed search
 * (spec->missing) names every path tried. */
nsa_status nsai_library_open(const nsai_library_spec *spec, const nsai_library_query *query,
                             nsai_tried *tried, nsai_library *out);

/* Finds the file that nsai_library_open would open, without loading it. Follows the loader's
 * search through LD_LIBRARY_PATH and the system's cache of library names. Costs microseconds. */
nsa_status nsai_library_locate(const nsai_library_spec *spec, const nsai_library_query *query,
                               nsai_tried *tried, nsai_library *out);

/* Adds one line to the record. */
void nsai_tried_add(nsai_tried *tried, const char *path, const char *outcome);

#endif /* NSAI_DRIVER_LIBRARY_H */
