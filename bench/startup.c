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
 * A cold start is bound by CPU time: NVRTC compiles one kernel on a thread, the costly ones first. It
 * takes half of the CPU time on two cores, and as long as attend_compressed_topn_sm90 on more than
 * three. Milliseconds of a core for each kernel of configs/h200_d128.yaml (sm_90a, NVRTC 13.0, Xeon of
 * 2.6 GHz, least of several runs, 2026-11-28; NSA_LOG_LEVEL=debug prints them):
 *
 *   forward of 64k tokens                  backward
 *   attend_compressed_topn_sm90    950     backward_dq_sums_tma                750
 *   attend_window_sm90             480     backward_dkv_dq_compressed_tma      580
 *   attend_selected_sm90_mma       400     backward_dkv_selected_persistent    550
 *   select_topn                    130     backward_dkv_window_persistent      530
 *   compress_mean                   65     backward_row_stats_tma (not with runtime.recompute:
 *                                            never)                            490
 *   of 4k, in place of the window          8 others, of which data_invert_fill
 *   and selected_sm90_mma:                   and backward_dkv_sum 200 each     790
 *   attend_selected_window_sm90    800
 *
 * Plans on two cores that do nothing else, in alternating runs, s, in brackets s of all cores (runs hours
 * apart differ by 10 %):
 *
 *                           now           with unrolled stores
 *   forward of 64k tokens   1.13 (2.16)   1.41 (2.69)
 *   forward of 4k           1.13 (2.15)   1.32 (2.54)
 *   --train, 64k            3.1  (6.1)    3.6  (7.2)
 *
 * 4 to 8 % of a compilation is NVRTC's front end, half is its optimiser, and the rest its assembler.
 * Both follow the number of instructions, much of which ran once a tile: unrolled stores were a
 * quarter to a half of the attention kernels' instructions. Opening NVRTC takes 6 ms from the page cache.
 *
 * Tried without gain: precompiled headers (--pch, 1 % more time); --split-compile; --Ofast-compile=min
 * (4 % less, and other machine code); one asm for all wgmma of a product (5 % less, with 64 operands,
 * and other machine code); one asm that holds four registers; one copy of the first products in the
 * loop of backward_dq_tma; a heap of huge pages (GLIBC_TUNABLES).
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
