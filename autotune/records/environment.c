/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What a record was measured with: the device, and the versions of library, kernels, driver and
 * compiler.
 */
#include "records/decide.h"

#include <stdio.h>
#include <string.h>

/* Everything except the compiler. */
static void describe_environment(const nsa_ctx *ctx, nsai_record *r) {
  const nsai_device *d = &ctx->device;
  snprintf(r->device, sizeof r->device, "%s", d->name);
  snprintf(r->arch, sizeof r->arch, "%s", ctx->target.arch);
  r->sms = d->sm_count;
  snprintf(r->library, sizeof r->library, "%d.%d.%d", NSA_VERSION_MAJOR, NSA_VERSION_MINOR,
           NSA_VERSION_PATCH);
  snprintf(r->templates, sizeof r->templates, "%.32s",
           nsai_compiler_templates_digest(ctx->compiler));
  snprintf(r->driver, sizeof r->driver, "%d.%d", d->driver_version / 1000,
           d->driver_version % 1000 / 10);
}

bool nsai_tune_is_current(const nsa_ctx *ctx, const nsai_record *record) {
  nsai_record now = { 0 };
  describe_environment(ctx, &now);
  return !strcmp(now.library, record->library) && !strcmp(now.templates, record->templates) &&
         !strcmp(now.driver, record->driver);
}

void nsai_tune_environment(const nsa_ctx *ctx, nsai_record *r) {
  nsai_kernel_key key;
  nsai_compile_request request = { .name = "none", .source = "", .arch = ctx->target.arch };
  describe_environment(ctx, r);
  /* the compiler stays unknown */
  if (nsai_compiler_key(ctx->compiler, &request, &key) != NSA_OK) return;
  snprintf(r->compiler, sizeof r->compiler, "%.63s", key.compiler_id);
  nsai_kernel_key_fini(&key);
}
