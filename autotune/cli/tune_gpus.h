/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tuning several GPUs of a host in one call.
 *
 * Records belong to a kind of GPU: name, architecture and number of multiprocessors
 * (nsai_record_same_key). One GPU of each kind is tuned, and its records serve all of the kind. The
 * GPUs are tuned one after the other, because a search on a second one would disturb the times of the
 * first: it compiles and computes references on every core of the host, and a thread that
 * launches late lengthens what events measure. Equal GPUs do not share a search either. They would
 * compile the same kernels for every length, and the longest length alone takes most of the device's
 * time, so that little would be saved.
 *
 * Each GPU is tuned in a process of its own: a run that fails may leave a process without a working
 * driver for any GPU.
 */
#ifndef NSAI_CLI_TUNE_GPUS_H
#define NSAI_CLI_TUNE_GPUS_H

#include "base/error.h"

#include <stdbool.h>

#define NSAI_TUNE_MAX_GPUS 64 /* more than any host has */

typedef struct nsai_tune_gpu {
  int32_t ordinal; /* its number among the visible ones */
  char name[128], arch[16];
  int32_t sms;
  nsa_status status; /* NSA_OK: it can be used */
  char why[1024];    /* else why not */
} nsai_tune_gpu;

/* The GPUs of one call, each once, in the order in which they were named. */
typedef struct nsai_tune_gpus {
  nsai_tune_gpu gpu[NSAI_TUNE_MAX_GPUS];
  int32_t count, usable;
  bool all; /* every visible GPU: those that cannot be used are left out */
} nsai_tune_gpus;

/* Whether a value of --device means several GPUs: "all", or names with commas between. */
bool nsai_tune_gpus_several(const char *devices);

/* What is wrong with such a value; NULL: nothing. */
const char *nsai_tune_gpus_refuse(const char *devices);

/* Finds the GPUs of such a value, in a child: this process does not open the driver. Names on stderr
 * those that cannot be used. Of "all", GPUs that the library has no kernels for are left out; any
 * other that cannot be used is a failure.
 *
 * driver_path  `runtime.driver_path`
 * out          in memory of nsai_child_memory, zeroed
 *
 * Returns an exit code; a failure has been reported. After one the others can be tuned where
 * out->usable is not 0. */
int nsai_tune_gpus_find(const char *devices, const char *driver_path, nsai_tune_gpus *out);

/* Tunes on one GPU, in a process of its own, and returns an exit code; what failed has been reported.
 * `serves`: the ordinals of all GPUs of its kind, `gpu` among them. `*status`: what the tuner
 * returned. */
typedef int (*nsai_tune_gpu_fn)(void *user, int32_t gpu, const int32_t *serves, int32_t count,
                                nsa_status *status);

/* Calls `tune` for one GPU of each kind, and names on stderr what begins and what failed. Where the
 * device fails or is gone, or the process dies, the next GPU of the kind takes its place. Only an interruption
 * keeps the other kinds from their turn. Returns the exit code of the last that failed. `file` is for
 * messages. */
int nsai_tune_gpus_each(const nsai_tune_gpus *gpus, const char *file, nsai_tune_gpu_fn tune,
                        void *user);

#endif /* NSAI_CLI_TUNE_GPUS_H */
