/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Measures how long a host waits before its first forward: nsa_create and nsa_plan_create,
 * without CUDA's own initialisation, in a new process. With an empty cache this is the cold
 * start. With a filled cache it is the warm start, in which neither NVRTC nor cuBLASLt may be
 * opened.
 *
 *   startup CONFIG TOKENS [KEY=VALUE ...]
 */
#include "driver/cuda_api.h"
#include "program.h"

#include <nsa/nsa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_OVERRIDES 16

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Whether a shared library of this name is loaded. */
static int is_loaded(const char *name) {
  char line[1024];
  int found = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps)) found |= strstr(line, name) != NULL;
  if (maps) fclose(maps);
  return found;
}

/* cuInit and the primary context: a cost of every CUDA program. */
static nsa_status init_cuda(void) {
  const nsai_driver *driver;
  nsai_cu_context context;
  nsa_status status = nsai_driver_open(NULL, NULL, &driver);
  if (status == NSA_OK) status = NSAI_CUDA(driver, cuDevicePrimaryCtxRetain(&context, 0));
  return status;
}

int main(int argc, char **argv) {
  const char *overrides[MAX_OVERRIDES + 1] = { NULL };
  nsai_program_begin("startup");
  if (argc < 3 || argc - 3 > MAX_OVERRIDES) {
    fprintf(stderr, "usage: startup CONFIG TOKENS [KEY=VALUE ...]\n");
    return 2;
  }
  for (int i = 3; i < argc; i++) overrides[i - 3] = argv[i];
  double start = now_ms();
  if (init_cuda() != NSA_OK) {
    fprintf(stderr, "%s\n", nsa_last_error());
    return 77;
  }
  nsa_options options = NSA_OPTIONS_INIT;
  nsa_problem problem = NSA_PROBLEM_INIT;
  nsa_ctx *ctx = NULL;
  nsa_plan *plan = NULL;
  options.overrides = overrides;
  problem.max_tokens = atoll(argv[2]);
  double cuda = now_ms();
  nsa_status status = nsa_create(argv[1], &options, &ctx);
  double created = now_ms();
  if (status == NSA_OK) status = nsa_plan_create(ctx, &problem, NULL, NULL, &plan);
  double planned = now_ms();
  if (status != NSA_OK)
    fprintf(stderr, "%s\n", nsa_last_error());
  else
    printf("cuda %.1f ms, nsa_create %.1f ms, nsa_plan_create %.1f ms; NVRTC %s, cuBLASLt %s\n",
           cuda - start, created - cuda, planned - created,
           is_loaded("libnvrtc.so") ? "opened" : "not opened",
           is_loaded("libcublasLt") ? "opened" : "not opened");
  nsa_plan_destroy(plan);
  nsa_destroy(ctx);
  return status == NSA_OK ? 0 : 1;
}
