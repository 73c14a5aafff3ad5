/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * index_lse_sm80: io.index_lse, when the blocks have been chosen.
 */
#include "base/math.h"
#include "params/kv_cache.h"
#include "plan/spec.h"
#include "run/params.h"

#include <math.h>

#define LOG2E 1.44269504088896340736

enum { LSE, KERNELS };

/* Adjacent tokens of a prefill mostly choose the same blocks, which then come from L1. */
#define CTA_TOKENS 8
/* Of a decode step, whose tokens are few: a block or two for each warp. */
#define MOST_SPLITS 16

static int32_t splits_of(const nsai_problem *p) {
  int32_t splits = 1;
  if (p->op != NSA_OP_DECODE) return 1;
  while (splits < MOST_SPLITS && splits < p->model.select_count) splits *= 2;
  return splits;
}

/* Steps of four keys on their way: a thread has 128 registers, and wide rows fill them (NVRTC 13.0: 4 steps of
 * 256 columns spilled 28 bytes). */
static int32_t unroll_of(const nsai_request *r, int32_t splits) {
  const int32_t dim = r->problem->model.index_dim;
  const int32_t steps = (dim > 128 ? 2 : splits > 1 ? 8 : 4) >> r->target->register_fallback;
  return steps > 0 ? steps : 1;
}

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const int32_t splits = splits_of(p), tokens = splits > 1 ? 1 : CTA_TOKENS;
  nsai_kernel_spec *spec = &kernel[LSE];
  *spec = (nsai_kernel_spec){ .entry = "select_index_lse",
                              .dtype = p->model.dtype,
                              .threads = 32 * tokens * splits,
                              .compile_cost = 150 };
  nsai_constant_add(spec, "kIndexDim", p->model.index_dim);
  nsai_constant_add(spec, "kSelectBlock", p->model.select_block);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kTokens", tokens);
  nsai_constant_add(spec, "kSplits", splits);
  nsai_constant_add(spec, "kUnroll", unroll_of(r, splits));
  nsai_constant_add(spec, "kMinBlocks", spec->threads > 256 ? 1 : 2);
  nsai_source_add(spec, p, 1);
  nsai_codes_add(spec, p->cmp_dtype);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_problem *problem = &run->plan->problem;
  const nsai_model *m = &problem->model;
  const nsai_kernel *kernel = &form->kernel[LSE];
  const nsa_tensor *lists = &run->io->block_idx, *out = &run->io->index_lse;
  const bool shared = lists->ndim == 2; /* all heads have one list */
  const int64_t tokens = kernel->threads / (32 * splits_of(problem));
  const uint64_t grid =
      (uint64_t)nsai_ceil_div(run->sizes.tokens, tokens) * (uint64_t)m->index_heads;
  const NsaiIndexLse p = { .seq = nsai_run_sequences(run),
                           .q = nsai_view(&run->io->index_q),
                           .k = nsai_view(&run->io->k_idx),
                           .lists = lists->data,
                           .list_token_stride = lists->stride[0],
                           .list_head_stride = shared ? 0 : lists->stride[1],
                           .lse = out->data,
                           .lse_token_stride = out->stride[0],
                           .lse_head_stride = out->stride[1],
                           .heads = m->index_heads,
                           .scale_log2 = (float)(LOG2E / sqrt((double)m->index_dim)) };
  (void)span;
  if (!nsai_problem_is_cached(problem)) return nsai_launch(run->queue, kernel, grid, 1, &p);
  const NsaiCachedIndexLse cached = { .batch = nsai_entry_batch(run),
                                      .k = nsai_cache_tensor(&run->io->k_idx),
                                      .k_scale = nsai_entry_scales(run).k,
                                      .packed = p };
  return nsai_launch(run->queue, kernel, grid, 1, &cached);
}

const nsai_variant nsai_index_lse_sm80 = {
  .name = "index_lse_sm80",
  .stage = NSAI_STAGE_INDEX_LSE,
  .why = "the log-sum-exp of an index over the chosen blocks, a warp or more for each row",
  .kernels = KERNELS,
  .takes_codes = true,
  .legal = legal,
  .specify = specify,
  .enqueue = enqueue,
};
