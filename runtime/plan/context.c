/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Making a context, and what every call asks of it.
 */
#include "plan/context.h"

#include "base/struct.h"
#include "plan/kernel_set.h"
#include "plan/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static nsa_status check_options(const nsa_options *o) {
  if (o->yaml_len && !o->yaml_text)
    return nsai_fail(NSA_E_ARG,
                     "options.yaml_len is %zu without options.yaml_text: give the text, or 0",
                     o->yaml_len);
  if (o->device && o->arch)
    return nsai_fail(
        NSA_E_ARG,
        "options.device is \"%s\" and options.arch is \"%s\": give one of them; a device "
        "has its own architecture",
        o->device, o->arch);
  if (o->log_level < NSA_NONE || o->log_level > NSA_LOG_TRACE)
    return nsai_fail(
        NSA_E_ARG,
        "options.log_level is %d: give NSA_LOG_ERROR to NSA_LOG_TRACE (%d), NSA_NONE for "
        "no log, or 0 for what runtime.log_level says",
        o->log_level, NSA_LOG_TRACE);
  return NSA_OK;
}

static nsa_status load_config(const char *path, const char *text_name, const nsa_options *o,
                              nsai_config **out) {
  static const nsai_struct_type type = { "options.model", "NSA_MODEL_INIT", sizeof(nsa_model) };
  nsa_model room;
  const void *model = NULL;
  if (o->model) NSAI_TRY(nsai_struct_in(&type, o->model, &room, &model));
  nsai_config_request request = { .path = path,
                                  .text = o->yaml_text,
                                  .length = o->yaml_len,
                                  .name = text_name,
                                  .model = model,
                                  .device = o->device,
                                  .overrides = o->overrides,
                                  .variant = nsai_variant_name_at,
                                  .need_model = true };
  return nsai_config_load(&request, out);
}

/* An architecture is compiled for; the CPU device has nothing to compile. */
static nsa_status check_arch(const nsa_ctx *ctx, const nsa_options *o) {
  if (!o->arch || strcmp(ctx->config->runtime.device, "cpu")) return NSA_OK;
  return nsai_fail(NSA_E_ARG,
                   "options.arch is \"%s\", but runtime.device is cpu, which has no kernels to "
                   "compile: give one of them (NSA_DEVICE is runtime.device, too)",
                   o->arch);
}

/* Lays the profile of a device over the configuration. It can name variants and a log level, too,
 * and what does not fit together with it is warned about, unless that was so without it. */
static nsa_status apply_profile(nsa_ctx *ctx, const nsa_options *o, const char *arch,
                                const char *name, const char *uuid) {
  nsai_config *c = ctx->config;
  const char *before = c->warnings;
  NSAI_TRY(nsai_config_apply_device(c, arch, name, uuid));
  if (!o->log_level) ctx->logger.level = c->runtime.log_level;
  if (!strstr(before, c->warnings))
    nsai_log_lines(&ctx->logger, NSA_LOG_WARN, "config", c->warnings);
  return NSA_OK;
}

/* The device, or what stands for it; fills ctx->target. */
static nsa_status open_device(nsa_ctx *ctx, const nsa_options *o) {
  const nsai_config *c = ctx->config;
  if (o->arch) {
    NSAI_TRY(nsai_device_init_arch(o->arch, &ctx->device));
  } else {
    const nsai_driver *driver = NULL;
    NSAI_TRY(nsai_driver_open(c->runtime.driver_path, &ctx->logger, &driver));
    NSAI_TRY(nsai_device_init(driver, c->runtime.device, &ctx->device));
  }
  return apply_profile(ctx, o, ctx->device.arch->name, o->arch ? NULL : ctx->device.name,
                       o->arch ? NULL : ctx->device.uuid);
}

/* Limits come from the device; without one, from the configuration's device section, else from the
 * architecture. */
static void set_target(nsa_ctx *ctx) {
  const nsai_config *c = ctx->config;
  ctx->target = (nsai_target){ .arch = ctx->device.arch->name,
                               .device = ctx->deviceless ? NULL : ctx->device.name,
                               .shared_bytes = (uint32_t)ctx->device.shared_bytes,
                               .sms = ctx->device.sm_count };
  if (ctx->deviceless && c->device.smem_per_block)
    ctx->target.shared_bytes = (uint32_t)c->device.smem_per_block;
  if (ctx->deviceless && c->device.sms) ctx->target.sms = (int32_t)c->device.sms;
}

static nsa_status open_tools(nsa_ctx *ctx) {
  const nsai_config *c = ctx->config;
  nsai_compiler_options compiler = { .nvrtc_path = c->runtime.nvrtc_path,
                                     .templates_dir = c->runtime.templates_dir,
                                     .dump_dir = c->runtime.dump_dir,
                                     .driver_version = ctx->device.driver_version,
                                     .logger = &ctx->logger };
  nsai_cache_options cache = { .dir = c->runtime.cache_dir,
                               .mode = (nsai_cache_mode)c->runtime.cache_mode,
                               .limit = c->runtime.cache_limit,
                               .logger = &ctx->logger };
  NSAI_TRY(nsai_compiler_create(&compiler, &ctx->compiler));
  NSAI_TRY(nsai_cache_open(&cache, &ctx->cache));
  const nsai_tuning *tuning = nsai_library_parts.tuning;
  if (tuning) NSAI_TRY(tuning->open(ctx, &cache, &ctx->tuning_state));
  return NSA_OK;
}

nsa_status nsai_context_create(const char *yaml_path, const char *text_name, const nsa_options *o,
                               nsa_ctx **out) {
  nsa_status status = NSA_OK;
  NSAI_TRY(check_options(o));
  nsa_ctx *ctx = calloc(1, sizeof *ctx);
  if (!ctx) return nsai_fail_nomem("a context", sizeof *ctx);
  ctx->pid = getpid();
  ctx->users = 1;
  ctx->deviceless = o->arch != NULL;
  nsai_logger_init(&ctx->logger, o->log, o->log_user,
                   o->log_level == NSA_NONE ? NSA_LOG_OFF : o->log_level);
  pthread_mutex_init(&ctx->lock, NULL);
  NSAI_TRY_TO(fail, load_config(yaml_path, text_name, o, &ctx->config));
  if (!o->log_level) ctx->logger.level = ctx->config->runtime.log_level;
  nsai_log_lines(&ctx->logger, NSA_LOG_WARN, "config", ctx->config->warnings);
  NSAI_TRY_TO(fail, check_arch(ctx, o));
  ctx->cpu = !strcmp(ctx->config->runtime.device, "cpu");
  if (ctx->cpu) {
    /* Profiles that ask for no device hold here, too. */
    NSAI_TRY_TO(fail, apply_profile(ctx, o, NULL, NULL, NULL));
  } else {
    NSAI_TRY_TO(fail, open_device(ctx, o));
    set_target(ctx);
    NSAI_TRY_TO(fail, open_tools(ctx));
  }
  nsai_log(&ctx->logger, NSA_LOG_INFO, "context", "%s%s%s",
           ctx->cpu ? "CPU device" : ctx->target.arch, ctx->cpu ? "" : ", ", ctx->device.name);
  *out = ctx;
  return NSA_OK;
fail:
  nsai_context_release(ctx);
  return status;
}

static void release_gemm_handle(nsa_ctx *ctx) {
  bool pushed = false;
  if (!ctx->lt_handle || nsai_context_enter(ctx, &pushed) != NSA_OK) return;
  ctx->lt->cublasLtDestroy(ctx->lt_handle);
  nsai_context_leave(ctx, pushed);
}

void nsai_context_retain(nsa_ctx *ctx) { __atomic_fetch_add(&ctx->users, 1, __ATOMIC_RELAXED); }

void nsai_context_release(nsa_ctx *ctx) {
  if (__atomic_sub_fetch(&ctx->users, 1, __ATOMIC_ACQ_REL)) return;
  /* After a fork the device belongs to the parent: only host memory is released. */
  bool owner = ctx->pid == getpid();
  if (owner) release_gemm_handle(ctx);
  nsai_kernel_set_unload(ctx, owner);
  if (owner) nsai_device_fini(&ctx->device);
  if (ctx->tuning_state) nsai_library_parts.tuning->close(ctx->tuning_state);
  nsai_cache_close(ctx->cache);
  nsai_compiler_destroy(ctx->compiler);
  nsai_config_destroy(ctx->config);
  nsai_logger_fini(&ctx->logger);
  pthread_mutex_destroy(&ctx->lock);
  free(ctx);
}

nsa_status nsai_context_check(const nsa_ctx *ctx) {
  if (!ctx) return nsai_fail(NSA_E_ARG, "the context is NULL");
  if (ctx->pid != getpid())
    return nsai_fail(
        NSA_E_FORKED,
        "the context was made before fork(), which CUDA does not survive: create contexts after "
        "fork() only, or start the child by exec (multiprocessing: \"spawn\"); "
        "`runtime.device: cpu` works in any process");
  return NSA_OK;
}

nsa_status nsai_context_enter(const nsa_ctx *ctx, bool *pushed) {
  return nsai_device_enter(&ctx->device, pushed);
}

void nsai_context_leave(const nsa_ctx *ctx, bool pushed) {
  nsai_device_leave(&ctx->device, pushed);
}

/* The lock is held and the device is current. */
static nsa_status make_gemm_handle(nsa_ctx *ctx) {
  nsai_library_query query = { .path = ctx->config->runtime.cublaslt_path,
                               .max_major = ctx->device.driver->version / 1000 };
  if (!ctx->lt) NSAI_TRY(nsai_cublaslt_open(&query, &ctx->logger, &ctx->lt));
  return NSAI_CUBLASLT(ctx->lt, cublasLtCreate(&ctx->lt_handle));
}

nsa_status nsai_context_open_gemm(nsa_ctx *ctx) {
  bool pushed = false;
  int32_t mode = NSAI_CU_CAPTURE_RELAXED; /* as in loading: another stream may be capturing */
  NSAI_TRY(nsai_context_enter(ctx, &pushed));
  ctx->device.driver->cuThreadExchangeStreamCaptureMode(&mode);
  pthread_mutex_lock(&ctx->lock);
  nsa_status status = ctx->lt_handle ? NSA_OK : make_gemm_handle(ctx);
  pthread_mutex_unlock(&ctx->lock);
  ctx->device.driver->cuThreadExchangeStreamCaptureMode(&mode);
  nsai_context_leave(ctx, pushed);
  return status;
}
