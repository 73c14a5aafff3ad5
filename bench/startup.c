/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Measures how long a host waits before its first forward: nsa_create and nsa_plan_create,
 * without CUDA's own initialisation, in a new process. With an empty cache this is the cold
 * start. With a filled cache it is the warm start, in which neither NVRTC nor cuBLASLt may be
 * opened. With --train there is also the plan of the backward, and nsa_prepare compiles the kernels
 * of both at once.
 *
 *   startup [--train] CONFIG TOKENS [KEY=VALUE ...]
 *
 * What a cold start takes, and what was tried: docs/benchmarks.md.
 */
#include "driver/cuda_api.h"
#include "program.h"

#include <nsa/nsa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define MAX_OVERRIDES 16

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Seconds of all cores that the process has used. */
static double cpu_seconds(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
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

/* Makes the plans of the forward and, where wanted, the backward. */
static nsa_status make_plans(nsa_ctx *ctx, int64_t tokens, int count, nsa_plan *plans[2]) {
  nsa_problem problems[2] = { NSA_PROBLEM_INIT, NSA_PROBLEM_INIT };
  problems[0].max_tokens = problems[1].max_tokens = tokens;
  problems[1].op = NSA_OP_BACKWARD;
  nsa_status status = count > 1 ? nsa_prepare(ctx, problems, (size_t)count, NULL, NULL) : NSA_OK;
  for (int i = 0; i < count && status == NSA_OK; i++)
    status = nsa_plan_create(ctx, &problems[i], NULL, NULL, &plans[i]);
  return status;
}

int main(int argc, char **argv) {
  const char *overrides[MAX_OVERRIDES + 1] = { NULL };
  nsai_program_begin("startup");
  const int trains = argc > 1 && !strcmp(argv[1], "--train");
  argc -= trains, argv += trains;
  if (argc < 3 || argc - 3 > MAX_OVERRIDES) {
    fprintf(stderr, "usage: startup [--train] CONFIG TOKENS [KEY=VALUE ...]\n");
    return 2;
  }
  for (int i = 3; i < argc; i++) overrides[i - 3] = argv[i];
  double start = now_ms();
  if (init_cuda() != NSA_OK) {
    fprintf(stderr, "%s\n", nsa_last_error());
    return 77;
  }
  nsa_options options = NSA_OPTIONS_INIT;
  nsa_ctx *ctx = NULL;
  nsa_plan *plans[2] = { NULL, NULL };
  options.overrides = overrides;
  double cuda = now_ms(), cpu = cpu_seconds();
  nsa_status status = nsa_create(argv[1], &options, &ctx);
  double created = now_ms();
  if (status == NSA_OK) status = make_plans(ctx, atoll(argv[2]), 1 + trains, plans);
  double planned = now_ms();
  if (status != NSA_OK)
    fprintf(stderr, "%s\n", nsa_last_error());
  else
    printf("cuda %.1f ms, nsa_create %.1f ms, %s %.1f ms; %.2f s of all cores; NVRTC %s, cuBLASLt "
           "%s\n",
           cuda - start, created - cuda, trains ? "nsa_prepare and plans" : "nsa_plan_create",
           planned - created, cpu_seconds() - cpu,
           is_loaded("libnvrtc.so") ? "opened" : "not opened",
           is_loaded("libcublasLt") ? "opened" : "not opened");
  for (int i = 0; i < 2; i++) nsa_plan_destroy(plans[i]);
  nsa_destroy(ctx);
  return status == NSA_OK ? 0 : 1;
}
