/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "fusing.h"

#include "plan/spec.h"
#include "variants/attend/compressed.h"

bool fusing_topn, fusing_both;
uint64_t fusing_rival_scratch;

static bool sensible_topn(const nsai_problem *p, const nsai_target *t) {
  (void)p, (void)t;
  return fusing_topn;
}

static void legal_any(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)p, (void)t, (void)reasons;
}

static nsai_tiles choose_warps(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  (void)p, (void)t;
  *by = NSAI_BY_DEFAULT;
  return (nsai_tiles){ { [NSAI_TILE_WARPS] = 4 } };
}

static void fit_any(const nsai_problem *p, const nsai_target *t, const nsai_tiles *tiles,
                    nsai_reasons *reasons) {
  (void)p, (void)t, (void)tiles, (void)reasons;
}

static double cost_same(const nsai_problem *p, const nsai_target *t, const nsai_tiles *tiles) {
  (void)p, (void)t, (void)tiles;
  return 1;
}

static const nsai_space warps = {
  1, { { NSAI_TILE_WARPS, { 2, 4 }, "more than one candidate" } }, choose_warps, fit_any, cost_same
};

enum { KERNEL, KERNELS };
enum { SCRATCH, BUFFERS };
enum { SCRATCH_BYTES, NUMBERS }; /* of a CTA */

static void specify(const char *entry, const nsai_request *r, nsai_kernel_spec kernel[]) {
  kernel[KERNEL] = (nsai_kernel_spec){ .entry = entry,
                                       .threads = 32 * r->tiles->of[NSAI_TILE_WARPS],
                                       .tile_tokens = 1,
                                       .ctas_per_sm = FUSING_PER_SM };
  nsai_constant_add(&kernel[KERNEL], "kMinBlocks", 1);
}

static void specify_topn(const nsai_request *r, nsai_kernel_spec kernel[]) {
  specify("made_up_topn", r, kernel);
}

static void specify_rival(const nsai_request *r, nsai_kernel_spec kernel[]) {
  specify("made_up_rival", r, kernel);
}

static void take_scratch(const nsai_request *r, int64_t bytes, nsai_form_sizes *out) {
  out->number[SCRATCH_BYTES] = bytes;
  out->bytes[SCRATCH] = bytes * FUSING_PER_SM * r->target->sms;
}

static void workspace_topn(const nsai_request *r, const nsai_kernel_spec kernel[],
                           nsai_form_sizes *out) {
  take_scratch(r, FUSING_SCRATCH, out);
}

static void workspace_rival(const nsai_request *r, const nsai_kernel_spec kernel[],
                            nsai_form_sizes *out) {
  const int64_t each = (int64_t)fusing_rival_scratch * r->problem->max_kv_len;
  take_scratch(r, fusing_rival_scratch ? each : FUSING_SCRATCH, out);
}

/* As attend_compressed_topn_sm90 does. */
static nsa_status enqueue_topn(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *kernel = &form->kernel[KERNEL];
  NsaiCompressedTopn p = { .attend.attend = nsai_compressed_params(run, kernel),
                           .scratch = nsai_buffer_at(run, form->buffer[SCRATCH]),
                           .scratch_bytes = form->number[SCRATCH_BYTES] };
  if (nsai_run_selects(run)) {
    nsa_tensor idx = nsai_index_tensor(run);
    p.idx = idx.data;
    p.idx_token_stride = idx.stride[0];
    p.idx_head_stride = idx.stride[1];
  }
  return nsai_launch_tiles(run, kernel, &p);
}

static void legal_fusing_both(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)p, (void)t;
  if (!fusing_both) nsai_refuse(reasons, "no test asks for it");
}

static void specify_both(const nsai_request *r, nsai_kernel_spec kernel[]) {
  kernel[KERNEL] = (nsai_kernel_spec){ .entry = "made_up_both",
                                       .threads = 32 * r->tiles->of[NSAI_TILE_WARPS],
                                       .tile_tokens = 4,
                                       .tma_box_keys = 64 };
  nsai_constant_add(&kernel[KERNEL], "kMinBlocks", 1);
}

static const nsai_variant made_up_topn = {
  .name = "made_up_topn",
  .stage = NSAI_STAGE_ATTEND_COMPRESSED,
  .why = "a test of three stages",
  .fuses = 1u << NSAI_STAGE_IMPORTANCE | 1u << NSAI_STAGE_SELECT,
  .kernels = KERNELS,
  .buffers = BUFFERS,
  .numbers = NUMBERS,
  .legal = legal_any,
  .sensible = sensible_topn,
  .space = &warps,
  .specify = specify_topn,
  .workspace = workspace_topn,
  .enqueue = enqueue_topn,
};

static const nsai_variant made_up_rival = {
  .name = "made_up_rival",
  .stage = NSAI_STAGE_ATTEND_COMPRESSED,
  .why = "a test of what is no default",
  .fuses = 1u << NSAI_STAGE_IMPORTANCE | 1u << NSAI_STAGE_SELECT,
  .kernels = KERNELS,
  .buffers = BUFFERS,
  .numbers = NUMBERS,
  .legal = legal_any,
  .space = &warps,
  .specify = specify_rival,
  .workspace = workspace_rival,
  .enqueue = enqueue_topn,
};

#define DECLARE(name) extern const nsai_variant nsai_##name
DECLARE(compress_mean);
DECLARE(attend_compressed_sm80);
DECLARE(importance_sm80);
DECLARE(select_topn);
DECLARE(attend_selected_dense_sm80);
DECLARE(attend_selected_sm80);
DECLARE(attend_selected_window_sm90);
DECLARE(attend_window_sm80);
DECLARE(dense_sm80);

static nsa_status enqueue_both(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  return nsai_attend_selected_window_sm90.enqueue(run, form, span);
}

static const nsai_variant made_up_both = {
  .name = "made_up_both",
  .stage = NSAI_STAGE_ATTEND_SELECTED,
  .why = "a test of two stages",
  .fuses = 1u << NSAI_STAGE_ATTEND_WINDOW,
  .kernels = KERNELS,
  .legal = legal_fusing_both,
  .space = &warps,
  .specify = specify_both,
  .enqueue = enqueue_both,
};

const nsai_variant *const nsai_variants[] = {
  &nsai_compress_mean,
  &made_up_topn,
  &nsai_attend_compressed_sm80,
  &made_up_rival,
  &nsai_importance_sm80,
  &nsai_select_topn,
  &nsai_attend_selected_dense_sm80,
  &nsai_attend_selected_sm80,
  &made_up_both,
  &nsai_attend_window_sm80,
  &nsai_dense_sm80,
  NULL,
};
