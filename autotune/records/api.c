/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The public functions that carry records from one machine to another.
 */
#include "records/decide.h"

#include <nsa/tune.h>

#include <string.h>

/* Reports why a context of the CPU device has no records. */
static nsa_status refuse_cpu(void) {
  return nsai_fail(NSA_E_NO_DEVICE, "runtime.device is cpu: the reference has no variants");
}

static bool count_unreadable(void *user, const nsai_record_item *item) {
  *(int *)user += item->unreadable;
  return true;
}

/* Writes everything, or fails: a text that lacks what could not be read now would pass for complete. */
static nsa_status export_all(nsai_records *records, nsai_writer *text) {
  int unreadable = 0;
  NSAI_TRY(nsai_records_each(records, count_unreadable, &unreadable));
  if (unreadable)
    return nsai_fail(
        NSA_E_CACHE,
        "%d tuning %s could not be read: make %s readable, and call nsa_records_reload", unreadable,
        unreadable == 1 ? "record" : "records", unreadable == 1 ? "it" : "them");
  return nsai_records_export(records, text);
}

size_t nsa_records_export(nsa_ctx *ctx, char *buf, size_t size) {
  nsai_writer text = nsai_writer_open(buf, size);
  if (nsai_context_check(ctx) != NSA_OK) return text.used;
  if (!nsai_context_records(ctx)) {
    (void)refuse_cpu();
    return text.used;
  }
  if (export_all(nsai_context_records(ctx), &text) != NSA_OK) {
    text = nsai_writer_open(buf, size);
    return 0;
  }
  return text.used;
}

nsa_status nsa_records_import(nsa_ctx *ctx, const char *text, size_t size) {
  nsai_import import = { 0 };
  NSAI_TRY(nsai_context_check(ctx));
  if (!text) return nsai_fail(NSA_E_ARG, "text is NULL");
  if (!nsai_context_records(ctx)) return refuse_cpu();
  NSAI_TRY(
      nsai_records_import(nsai_context_records(ctx), text, size ? size : strlen(text), &import));
  nsai_log(&ctx->logger, NSA_LOG_INFO, "tune", "%d records imported, %d older than those here",
           import.saved, import.kept);
  return NSA_OK;
}

nsa_status nsa_records_reload(nsa_ctx *ctx) {
  NSAI_TRY(nsai_context_check(ctx));
  if (nsai_context_records(ctx)) nsai_records_reload(nsai_context_records(ctx));
  return NSA_OK;
}

nsa_status nsa_records_digest(nsa_ctx *ctx, uint8_t out[16]) {
  NSAI_TRY(nsai_context_check(ctx));
  if (!out) return nsai_fail(NSA_E_ARG, "out is NULL");
  memset(out, 0, 16);
  return nsai_context_records(ctx) ? nsai_records_digest(nsai_context_records(ctx), out) : NSA_OK;
}
