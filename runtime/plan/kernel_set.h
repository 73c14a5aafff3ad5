/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * From kernel specs to loaded kernels: memory tier, disk cache, compiler.
 */
#ifndef NSAI_PLAN_KERNEL_SET_H
#define NSAI_PLAN_KERNEL_SET_H

#include "driver/launch.h"
#include "plan/context.h"

typedef struct nsai_kernel_request {
  const nsai_problem *problem;
  const nsai_problem *problems;  /* [count]: of each spec; NULL: `problem` is of all */
  const nsai_kernel_spec *specs; /* [count]; entry NULL: none */
  int32_t count;                 /* at most NSAI_MAX_KERNELS */
  bool may_compile;              /* else a missing kernel is NSA_E_NOT_PREPARED */
  bool ahead;       /* leaves out kernels that are refused and those that others are compiling: the
               * requests that follow see to them */
  bool temporary;   /* what is loaded for it goes with nsai_kernel_set_unload_temporary */
  bool last_resort; /* takes kernels that spill (compile/compiler.h), from the cache as well; else
                     * such a kernel of the cache is as good as missing, and refused */
  nsa_progress_fn progress;
  void *user;
  /* Out, of a failure: a kernel compiles, but not well (compile/compiler.h); other tiles may do. */
  bool refused;
} nsai_kernel_request;

/* Makes every kernel of the request: found in memory, else in the disk cache, else compiled, all
 * missing ones in parallel. `out` NULL: compiled and cached, not loaded (prepare, deviceless); else
 * the caller's to release, and untouched after a failure.
 * NSA_E_NOT_PREPARED, NSA_E_CANCELLED, errors of compiling and loading. Thread-safe. */
nsa_status nsai_kernel_set_make(nsa_ctx *ctx, nsai_kernel_request *request,
                                nsai_kernel out[NSAI_MAX_KERNELS]);

/* The kernels are used no more. They stay loaded: plans are made again. Thread-safe; does nothing
 * in a child of fork. */
void nsai_kernel_set_release(nsa_ctx *ctx, nsai_kernel kernels[NSAI_MAX_KERNELS]);

/* Unloads what was loaded on trial, is not used, and was asked for by nobody else meanwhile. The
 * device must be current. Thread-safe. */
void nsai_kernel_set_unload_temporary(nsa_ctx *ctx);

/* How many kernels of the request neither memory nor disk has. */
nsa_status nsai_kernel_set_missing(nsa_ctx *ctx, const nsai_kernel_request *request,
                                   int32_t *missing);

/* The bytes that each kernel of the request spills, by its spec; 0 also where neither memory nor disk
 * has it. */
nsa_status nsai_kernel_set_spills(nsa_ctx *ctx, const nsai_kernel_request *request,
                                  int32_t spills[NSAI_MAX_KERNELS]);

/* Forgets everything, and unloads it from the device when `unload`; called by nsa_destroy. */
void nsai_kernel_set_unload(nsa_ctx *ctx, bool unload);

#endif /* NSAI_PLAN_KERNEL_SET_H */
