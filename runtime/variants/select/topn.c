/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * select_topn.
 */
#include "variants/select/topn.h"

#include "base/math.h"

enum { TOPN, KERNELS };

/* It takes fp32 importance, whatever the storage type; the configuration bounds the count. */
void nsai_topn_legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)p;
  (void)t;
  (void)reasons;
}

static nsai_tiles choose_select(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  /* The H200 at 8k to 32k tokens: 5 to 10 % faster with four warps. */
  bool four = nsai_target_is(t, NSAI_H200);
  (void)p;
  *by = four ? NSAI_BY_DEVICE : NSAI_BY_DEFAULT;
  return (nsai_tiles){ { [NSAI_TILE_WARPS] = four ? 4 : 8, [NSAI_TILE_CTAS] = 4 } };
}

static void fit_select(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                       nsai_reasons *reasons) {
  (void)p;
  (void)t;
  nsai_fit_threads(s, reasons);
}

static double cost_select(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  (void)p;
  (void)t;
  return 1 + 4.0 / (s->of[NSAI_TILE_WARPS] * s->of[NSAI_TILE_CTAS]);
}

static const nsai_space space = {
  2,
  { { NSAI_TILE_WARPS, { 2, 4, 8, 16 }, "rows of different length wait for each other in a block" },
    { NSAI_TILE_CTAS, { 1, 2, 4, 8 }, "registers of the running best against loads in flight" } },
  choose_select,
  fit_select,
  cost_select,
};

void nsai_topn_specify(const nsai_request *r, const char *entry, nsai_kernel_spec *spec) {
  const nsai_problem *p = r->problem;
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = p->model.dtype,
                              .threads = 32 * r->tiles->of[NSAI_TILE_WARPS],
                              .compile_cost = 130 };
  nsai_constant_add(spec, "kSelectBlock", p->model.select_block);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kSelectInit", p->model.select_init);
  nsai_constant_add(spec, "kSelectLocal", p->model.select_local);
  nsai_constant_add(spec, "kSigned", p->model.by == NSAI_BY_INDEX);
  nsai_constant_add(spec, "kCached", nsai_problem_is_cached(p));
  nsai_constant_add(spec, "kMinBlocks", r->tiles->of[NSAI_TILE_CTAS]);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_topn_specify(r, "select_topn", &kernel[TOPN]);
}

/* The importance that the stage before has left in the workspace. */
static nsa_tensor importance_of(const nsai_run *run) {
  const nsai_workspace *w = &run->plan->workspace;
  return (nsa_tensor){ .data = nsai_buffer_at(run, w->importance),
                       .stride = { run->plan->problem.model.kv_heads * w->importance_columns,
                                   w->importance_columns, 1 } };
}

nsa_status nsai_topn_launch(const nsai_run *run, const nsai_kernel *kernel, int64_t grid,
                            const nsai_span *span) {
  const nsa_tensor importance = run->importance ? *run->importance : importance_of(run);
  const nsa_tensor idx = nsai_index_tensor(run);
  const NsaiSelect p = { .seq = nsai_run_sequences(run),
                         .importance = importance.data,
                         .importance_token_stride = importance.stride[0],
                         .importance_head_stride = importance.stride[1],
                         .idx = idx.data,
                         .idx_token_stride = idx.stride[0],
                         .idx_head_stride = idx.stride[1],
                         .token_begin = (int)span->token_begin,
                         .token_end = (int)span->token_end,
                         .kv_heads = run->plan->problem.model.kv_heads };
  if (!nsai_problem_is_cached(&run->plan->problem))
    return nsai_launch(run->queue, kernel, (uint64_t)grid, 1, &p);
  NsaiCachedSelect cached = { .batch = nsai_cache_batch(run), .packed = p };
  return nsai_launch(run->queue, kernel, (uint64_t)grid, 1, &cached);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *kernel = &form->kernel[TOPN];
  const int64_t warps =
      (span->token_end - span->token_begin) * run->plan->problem.model.kv_heads; /* one a row */
  return nsai_topn_launch(run, kernel, nsai_ceil_div(warps, kernel->threads / 32), span);
}

const nsai_variant nsai_select_topn = {
  .name = "select_topn",
  .stage = NSAI_STAGE_SELECT,
  .why = "one warp a row, running best in registers",
  .kernels = KERNELS,
  .takes_codes = true,
  .stands_alone = true,
  .legal = nsai_topn_legal,
  .space = &space,
  .specify = specify,
  .enqueue = enqueue,
};
