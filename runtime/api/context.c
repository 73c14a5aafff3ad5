/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_create, nsa_destroy, nsa_config_check, nsa_config_dump, nsa_report.
 */
#include "plan/context.h"

#include "api/report.h"
#include "base/struct.h"
#include "plan/parts.h"

#include <unistd.h>

nsa_status nsa_create(const char *yaml_path, const nsa_options *options, nsa_ctx **out) {
  static const nsai_struct_type type = { "options", "NSA_OPTIONS_INIT", sizeof(nsa_options) };
  static const nsa_options defaults = NSA_OPTIONS_INIT;
  nsa_options room;
  const void *read;
  if (!out) return nsai_fail(NSA_E_ARG, "out is NULL");
  *out = NULL;
  NSAI_TRY(nsai_struct_in(&type, options ? options : &defaults, &room, &read));
  return nsai_context_create(yaml_path, NULL, read, out);
}

void nsa_destroy(nsa_ctx *ctx) {
  if (!ctx) return;
  int32_t users = __atomic_load_n(&ctx->users, __ATOMIC_RELAXED) - 1;
  if (users && ctx->pid == getpid())
    nsai_log(
        &ctx->logger, NSA_LOG_WARN, "context",
        "nsa_destroy: %d plan%s or communicator%s of the context still exist%s; it goes with the "
        "last of them",
        users, users > 1 ? "s" : "", users > 1 ? "s" : "", users > 1 ? "" : "s");
  nsai_context_release(ctx);
}

nsa_status nsa_config_check(const char *yaml, size_t len, const char *name, char *diag,
                            size_t size) {
  if (!yaml) return nsai_fail(NSA_E_ARG, "nsa_config_check: yaml is NULL: give the text to check");
  if (!diag && size)
    return nsai_fail(NSA_E_ARG,
                     "nsa_config_check: diag is NULL but size is %zu: give both or "
                     "neither",
                     size);
  nsai_writer writer = nsai_writer_open(diag, size);
  nsai_config_request request = { .text = yaml,
                                  .length = len,
                                  .name = name,
                                  .variant = nsai_variant_name_at,
                                  .skip_system_file = true,
                                  .skip_environment = true,
                                  .diagnostics = &writer };
  nsai_config *config;
  nsa_status status = nsai_config_load(&request, &config);
  nsai_config_destroy(config);
  return status;
}

size_t nsa_config_dump(const nsa_ctx *ctx, int32_t with_origin, char *buf, size_t size) {
  nsai_writer out = nsai_writer_open(buf, size);
  if (nsai_context_check(ctx) == NSA_OK) nsai_config_dump(ctx->config, with_origin != 0, &out);
  return out.used;
}

size_t nsa_report(nsa_ctx *ctx, char *buf, size_t size) {
  nsai_writer out = nsai_writer_open(buf, size);
  nsai_report_inputs inputs = { 0 };
  if (ctx && nsai_context_check(ctx) == NSA_OK) {
    inputs = nsai_report_inputs_of(ctx->config);
    inputs.cache = ctx->cache;
    inputs.found = ctx->cpu ? NULL : &ctx->device;
  }
  nsai_report_write(&inputs, true, &out);
  return out.used;
}
