/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/compressed.h"
#include "variants/attend/expanded.h"
#include "variants/attend/flash_sm90.h"

enum { COMPRESSED, KERNELS, EXPAND = KERNELS, EXPANDED_KERNELS };
enum { K, V, EXPANDED_BUFFERS }; /* fp16 entries */

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_flash_sm90_specify(r, "attend_compressed_sm90", &kernel[COMPRESSED]);
  nsai_source_add(&kernel[COMPRESSED], r->problem, r->problem->model.stride);
  nsai_codes_add(&kernel[COMPRESSED], r->problem->cmp_dtype);
  nsai_compressed_specify(r->problem, &kernel[COMPRESSED]);
  nsai_tile_order_add(r->problem, &kernel[COMPRESSED]);
}

/* ---- the row that expands entries first ---- */

static void legal_expanded(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  nsai_flash_sm90_legal(p, t, reasons);
  nsai_legal_expanded(p, reasons);
}

static void specify_expanded(const nsai_request *r, nsai_kernel_spec kernel[]) {
  specify(r, kernel);
  nsai_expand_specify(r->problem, &kernel[EXPAND], &kernel[COMPRESSED]);
}

static void workspace_expanded(const nsai_request *r, const nsai_kernel_spec kernel[],
                               nsai_form_sizes *out) {
  (void)kernel;
  nsai_expanded_workspace(r->problem, &out->bytes[K], &out->bytes[V]);
}

static nsa_status enqueue_expanded(const nsai_run *run, const nsai_form *form,
                                   const nsai_span *span) {
  const nsai_kernel *kernel = &form->kernel[COMPRESSED];
  const NsaiExpanded expanded = nsai_expanded_entries(run, form->buffer[K], form->buffer[V]);
  if (!span->done_ahead) NSAI_TRY(nsai_expand_enqueue(run, &form->kernel[EXPAND], &expanded));
  if (span->ahead) return NSA_OK;
  const NsaiAttend p = nsai_compressed_params(run, kernel);
  return nsai_launch_expanded_attend(run, kernel, &p, &expanded);
}

const nsai_variant nsai_attend_compressed_expanded_sm90 = {
  .name = "attend_compressed_expanded_sm90",
  .stage = NSAI_STAGE_ATTEND_COMPRESSED,
  .why = "flash attention over e4m3 entries expanded before",
  .kernels = EXPANDED_KERNELS,
  .buffers = EXPANDED_BUFFERS,
  .takes_codes = true,
  .goes_ahead = true,
  .legal = legal_expanded,
  .sensible = nsai_flash_sm90_sensible,
  .space = &nsai_flash_sm90_compressed_space,
  .specify = specify_expanded,
  .workspace = workspace_expanded,
  .enqueue = enqueue_expanded,
};

const nsai_variant nsai_attend_compressed_sm90 = {
  .name = "attend_compressed_sm90",
  .stage = NSAI_STAGE_ATTEND_COMPRESSED,
  .why = "flash attention over compressed tokens, wgmma and tensor maps",
  .kernels = KERNELS,
  .takes_codes = true,
  .legal = nsai_flash_sm90_legal,
  .sensible = nsai_flash_sm90_sensible,
  .space = &nsai_flash_sm90_compressed_space,
  .specify = specify,
  .enqueue = nsai_compressed_enqueue,
};
