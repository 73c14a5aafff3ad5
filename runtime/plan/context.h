/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The struct behind nsa_ctx: logger, configuration, device and target, compiler, cache and tuning
 * state, and what all plans share under a lock: loaded kernels and cuBLASLt.
 */
#ifndef NSAI_PLAN_CONTEXT_H
#define NSAI_PLAN_CONTEXT_H

#include "cache/cache.h"
#include "compile/compiler.h"
#include "config/config.h"
#include "driver/cuda_api.h"
#include "driver/device.h"
#include "plan/variant.h"

#include <nsa/context.h>
#include <pthread.h>
#include <sys/types.h>

struct nsai_loaded; /* kernel_set.c: a kernel in the device's memory */

struct nsa_ctx {
  nsai_logger logger;
  nsai_config *config;
  bool cpu;        /* runtime.device: cpu */
  bool deviceless; /* options.arch: compiles for an architecture, cannot run */
  pid_t pid;       /* of the process that made it */
  int32_t users;   /* the host, each plan and communicator; changed by retain and release alone */
  nsai_device device;
  nsai_target target;
  nsai_compiler *compiler; /* NULL: CPU device */
  nsai_cache *cache;       /* NULL: CPU device */
  void *tuning_state;      /* of whoever remembers measurements (parts.h); NULL: CPU device */

  pthread_mutex_t lock;       /* guards what follows; held over loading, never over compiling */
  struct nsai_loaded *loaded; /* list; nobody but the tuner takes an entry out before the end */
  const nsai_cublaslt *lt;    /* NULL until the first plan that needs it */
  nsai_cublaslt_handle lt_handle;
  bool tuning;        /* nsa_tune is running */
  bool warned_record; /* of another environment: said once */
};

/* Makes a context by options that have this library's size. `text_name` is what messages call
 * options->yaml_text; NULL: "<text>". The caller releases it; *out is NULL before. */
nsa_status nsai_context_create(const char *yaml_path, const char *text_name,
                               const nsa_options *options, nsa_ctx **out);

/* Another user, and one less: the last one frees the context. Thread-safe. */
void nsai_context_retain(nsa_ctx *ctx);
void nsai_context_release(nsa_ctx *ctx);

/* Refuses NULL and contexts from before a fork. */
nsa_status nsai_context_check(const nsa_ctx *ctx);

/* Makes the context's device current on this thread when it is not; `*pushed` says whether leave
 * must undo it. */
nsa_status nsai_context_enter(const nsa_ctx *ctx, bool *pushed);
void nsai_context_leave(const nsa_ctx *ctx, bool pushed);

/* Opens cuBLASLt and makes the context's handle, once. Thread-safe. */
nsa_status nsai_context_open_gemm(nsa_ctx *ctx);

#endif /* NSAI_PLAN_CONTEXT_H */
