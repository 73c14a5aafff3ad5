/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What was built: version and build information.
 */
#include "compile/templates.h"

#include <pthread.h>
#include <stdio.h>

uint32_t nsa_version(void) { return NSA_VERSION; }

static char build_info[512];
static pthread_once_t build_info_once = PTHREAD_ONCE_INIT;

#ifdef __OPTIMIZE__
#define OPTIMIZED "true"
#else
#define OPTIMIZED "false"
#endif

static void write_build_info(void) {
  snprintf(build_info, sizeof build_info,
           "{\"version\": \"%d.%d.%d\", \"compiler\": \"%s\", \"optimized\": %s, "
           "\"signatures\": %s, \"templates\": \"%s\"}",
           NSA_VERSION_MAJOR, NSA_VERSION_MINOR, NSA_VERSION_PATCH, __VERSION__, OPTIMIZED,
           NSAI_SIGNATURES ? "true" : "false", nsai_embedded_digest);
}

const char *nsa_build_info(void) {
  pthread_once(&build_info_once, write_build_info);
  return build_info;
}
