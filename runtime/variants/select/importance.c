/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * importance_sm80, and the importance of probed rows.
 */
#include "variants/select/importance_row.h"

#include "base/math.h"
#include "plan/context.h"

#include <math.h>

/* Tiles that end on block ends have a history. */
static uint32_t importance_shared(const nsai_model *m, const nsai_tiles *s) {
  int32_t ratio = m->select_block / m->stride, overlap = m->block / m->stride,
          group = nsai_padded_group(m), keys = s->of[NSAI_TILE_KEYS];
  int32_t tokens = group >= 32 ? 1 : 32 / group;
  int32_t history = keys % ratio == 0 && overlap <= 8 ? overlap - 1 : 0;
  return nsai_smem_importance(keys, s->of[NSAI_TILE_WARPS], tokens, history, m->head_dim_qk);
}

static nsai_tiles importance_tiles(int32_t keys, int32_t warps, int32_t ctas) {
  return (nsai_tiles){
    { [NSAI_TILE_KEYS] = keys, [NSAI_TILE_WARPS] = warps, [NSAI_TILE_CTAS] = ctas }
  };
}

/* Two CTAs per multiprocessor fit everywhere: at D 128 the scores and Q of two m16 tiles take 178
 * registers. With NVRTC 13.0 the H200's third CTA, at most 168, is the faster choice at every
 * length (tuned: 0.062 against 0.069 ms at 4k, 6.7 against 7.7 at 64k tokens). Codes take more: in
 * pages of one entry they spilled. */
static nsai_tiles choose_importance(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  *by = NSAI_BY_DEFAULT;
  if (t->register_fallback) return importance_tiles(32, 4, 1);
  if (p->model.head_dim_qk == 128 && !p->cmp_dtype && nsai_target_is(t, NSAI_H200)) {
    *by = NSAI_BY_DEVICE;
    return importance_tiles(64, 4, 3);
  }
  if (p->model.head_dim_qk > 192) return importance_tiles(32, 4, 2);
  return importance_tiles(64, 4, 2);
}

static void fit_importance(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                           nsai_reasons *reasons) {
  int32_t rows = 32 * s->of[NSAI_TILE_WARPS], group = nsai_padded_group(&p->model);
  if (rows < group) nsai_refuse(reasons, "%d rows do not hold a token of %d heads", rows, group);
  nsai_fit_shared(t, importance_shared(&p->model, s), reasons);
}

/* Q of two m16 tiles and their scores of 32 keys, and what else the loop holds. */
static double cost_importance(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  int32_t warps = s->of[NSAI_TILE_WARPS], ctas = s->of[NSAI_TILE_CTAS];
  int32_t registers = (p->model.head_dim_qk + 15) / 16 * 16 / 2 + 32 + 56;
  if (registers > nsai_register_limit(32 * warps * ctas) ||
      !nsai_holds_ctas(t, importance_shared(&p->model, s), ctas))
    return INFINITY;
  return 1 + 6.0 / s->of[NSAI_TILE_KEYS] + (warps * ctas < 8 ? 0.3 : 0);
}

static const nsai_space space = {
  3,
  { { NSAI_TILE_KEYS, { 32, 64, 128 }, "barriers against shared memory" },
    { NSAI_TILE_WARPS, { 2, 4, 8 }, "each has 32 rows and all keys of a tile" },
    { NSAI_TILE_CTAS, { 1, 2, 3, 4 }, "others fill the waits of one; registers are divided" } },
  choose_importance,
  fit_importance,
  cost_importance,
};

void nsai_importance_legal(const nsai_problem *p, nsai_reasons *reasons) {
  nsai_legal_common(p, reasons);
  if (p->model.by == NSAI_BY_INDEX)
    nsai_refuse(reasons, "model.select.by is index: take index_scores_sm90 or "
                         "index_scores_sm80");
}

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_importance_legal(p, reasons);
}

void nsai_query_rows_add(nsai_kernel_spec *spec, const nsai_problem *p, const nsai_tiles *s) {
  nsai_constant_add(spec, "kHeadDimQk", p->model.head_dim_qk);
  nsai_group_add(spec, p);
  nsai_constant_add(spec, "kRows", 32 * s->of[NSAI_TILE_WARPS]);
  nsai_constant_add(spec, "kKeys", s->of[NSAI_TILE_KEYS]);
  nsai_constant_add(spec, "kWarps", s->of[NSAI_TILE_WARPS]);
  nsai_constant_add(spec, "kMinBlocks", s->of[NSAI_TILE_CTAS]);
}

void nsai_pooling_add(nsai_kernel_spec *spec, const nsai_problem *p, bool probe) {
  const nsai_model *m = &p->model;
  nsai_constant_add(spec, "kBlock", m->block);
  nsai_constant_add(spec, "kStride", m->stride);
  nsai_constant_add(spec, "kSelectBlock", m->select_block);
  nsai_constant_add(spec, "kProbe", probe);
  nsai_constant_add(spec, "kStep", nsai_ranks_by_step(p));
  nsai_constant_add(spec, "kCountReads", p->count_reads && !probe && nsai_ranks_by_step(p));
  nsai_constant_add(spec, "kMaxPool", m->pool == NSAI_POOL_MAX);
}

void nsai_importance_specify(const nsai_problem *p, const nsai_tiles *s, bool probe,
                             nsai_kernel_spec *spec) {
  const nsai_model *m = &p->model;
  int32_t warps = s->of[NSAI_TILE_WARPS], rows = 32 * warps;
  *spec = (nsai_kernel_spec){ .entry = "select_importance",
                              .dtype = m->dtype,
                              .threads = 32 * warps,
                              .shared_bytes = importance_shared(m, s),
                              .tile_tokens = rows / nsai_padded_group(m),
                              .compile_cost = 300 };
  nsai_query_rows_add(spec, p, s);
  nsai_pooling_add(spec, p, probe);
  nsai_source_add(spec, p, m->stride);
  nsai_codes_add(spec, p->cmp_dtype);
}

bool nsai_importance_ranks(const nsai_request *r) {
  const nsai_problem *p = r->problem;
  return p->model.select_count && p->selection == NSA_SELECT_TOPN && !r->standalone &&
         !nsai_problem_selects_all(p);
}

static bool normalizes(const nsai_request *r) {
  return nsai_normalizes_apart(&r->problem->model) &&
         (nsai_importance_ranks(r) || r->problem->max_probe_rows);
}

void nsai_importance_specify_rest(const nsai_request *r, const nsai_tiles *probe,
                                  int32_t wgmma_rows, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  if (p->max_probe_rows) nsai_importance_specify(p, probe, true, &kernel[NSAI_IMPORTANCE_PROBE]);
  if (normalizes(r))
    nsai_normalizer_specify(p, r->target, wgmma_rows, &kernel[NSAI_IMPORTANCE_NORMALIZER]);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  if (nsai_importance_ranks(r))
    nsai_importance_specify(r->problem, r->tiles, false, &kernel[NSAI_IMPORTANCE]);
  nsai_importance_specify_rest(r, r->tiles, 0, kernel);
}

void nsai_importance_workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                               nsai_form_sizes *out) {
  if (normalizes(r)) nsai_normalizer_workspace(r, &kernel[NSAI_IMPORTANCE_NORMALIZER], out->bytes);
}

nsai_tiles nsai_importance_tiles(const nsai_problem *p, const nsai_target *t) {
  nsai_decider by;
  return choose_importance(p, t, &by);
}

/* ---- launches ---- */

/* CTAs that a multiprocessor should get of a decode step, for which keys are split; fewest keys of a
 * split, for which a CTA's start and the tile before its first are worth it; and most splits, whose
 * parts of the LSE each CTA of select_importance adds up. (Guesses.) */
#define CTAS_PER_SM 2
#define LEAST_SPLIT_KEYS 128
#define MOST_SPLITS 64

int32_t nsai_key_splits(const nsai_run *run, int64_t ctas, int64_t keys) {
  const nsai_problem *p = &run->plan->problem;
  if (!nsai_ranks_by_step(p) || p->count_reads) return 1; /* each key is read and counted once */
  const int64_t room = (int64_t)CTAS_PER_SM * run->plan->ctx->target.sms;
  const int64_t wanted =
      nsai_smaller(room / nsai_larger(ctas, 1), nsai_ceil_div(keys, LEAST_SPLIT_KEYS));
  return (int32_t)nsai_larger(nsai_smaller(wanted, MOST_SPLITS), 1);
}

/* A run of T tokens has at least T / tile_tokens tiles. */
int64_t nsai_most_split_tokens(const nsai_request *r, int32_t tile_tokens) {
  const nsai_problem *p = r->problem;
  const int64_t room = (int64_t)CTAS_PER_SM * r->target->sms;
  if (!nsai_ranks_by_step(p)) return p->max_tokens;
  return nsai_larger(p->max_tokens, nsai_ceil_div(room * tile_tokens, p->model.kv_heads));
}

int64_t nsai_span_tiles(const nsai_run *run, const nsai_kernel *kernel, int64_t token_begin,
                        int64_t token_end) {
  const int32_t tile = kernel->tile_tokens;
  /* With sequences a token lies at most one tile before and num_seqs - 1 tiles behind token /
   * tile. */
  const int64_t first = nsai_larger(0, token_begin / tile - run->sizes.packed);
  const int64_t last = (token_end - 1) / tile + (run->sizes.packed ? run->sizes.num_seqs - 1 : 0);
  return last - first + 1;
}

nsai_split_lse nsai_branch_lse(const nsai_run *run) {
  return (nsai_split_lse){ .first = nsai_compressed_lse(run), .parts = 1 };
}

NsaiImportance nsai_importance_params(const nsai_run *run, const nsai_split_lse *lse) {
  return (NsaiImportance){ .seq = nsai_compressed_sequences(run),
                           .q = nsai_view(&run->io->q),
                           .k = nsai_compressed_view(run, 0),
                           .lse = lse->first.data,
                           .lse_token_stride = lse->first.stride[0],
                           .lse_head_stride = lse->first.stride[1],
                           .scale = nsai_run_scale_log2(run),
                           .kv_heads = run->plan->problem.model.kv_heads };
}

nsa_status nsai_importance_launch(const nsai_run *run, const nsai_kernel *kernel,
                                  const nsai_ranking *x, const NsaiImportance *p) {
  const uint64_t grid = (uint64_t)(x->tiles * p->kv_heads);
  if (!nsai_problem_is_cached(&run->plan->problem))
    return nsai_launch(run->queue, kernel, grid, (uint32_t)x->splits, p);
  /* A kernel that is not of a decode step takes the first member alone, and one without codes that
   * member's first. */
  NsaiStepImportance step = { .coded = { .cached = { .batch = nsai_entry_batch(run),
                                                     .k = nsai_cache_tensor(x->keys),
                                                     .packed = *p },
                                         .k_scale = nsai_entry_scales(run).k },
                              .lse_split_stride = x->lse->stride,
                              .lse_splits = x->lse->parts };
  if (run->plan->problem.count_reads) step.kv_reads = nsai_kv_reads(run);
  return nsai_launch(run->queue, kernel, grid, (uint32_t)x->splits, &step);
}

nsa_status nsai_probe_launch(const nsai_run *run, const nsai_kernel *kernel, const nsa_tensor *keys,
                             const nsai_split_lse *lse, const NsaiImportance *params) {
  const nsa_tensor *out = &run->io->probe_importance;
  NsaiImportance p = *params;
  p.importance = out->data;
  p.importance_token_stride = out->stride[0];
  p.importance_head_stride = out->stride[1];
  p.columns = (int)out->shape[2];
  p.rows = run->io->probe_rows.data;
  p.num_rows = (int)run->io->probe_rows.shape[0];
  p.token_end = (int)run->sizes.tokens;
  const nsai_ranking x = { p.num_rows, 1, keys, lse };
  return nsai_importance_launch(run, kernel, &x, &p);
}

nsa_status nsai_probe_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                              const nsai_split_lse *lse) {
  const NsaiImportance p = nsai_importance_params(run, lse);
  return nsai_probe_launch(run, kernel, &run->io->kv.k_cmp, lse, &p);
}

nsa_status nsai_importance_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                                   const nsai_split_lse *lse, const nsai_span *span) {
  const nsai_workspace *w = &run->plan->workspace;
  const nsai_problem *problem = &run->plan->problem;
  NsaiImportance p = nsai_importance_params(run, lse);
  p.importance = nsai_buffer_at(run, w->importance);
  p.importance_token_stride = p.kv_heads * w->importance_columns;
  p.importance_head_stride = w->importance_columns;
  p.token_begin = (int)span->token_begin;
  p.token_end = (int)span->token_end;
  nsai_ranking x = { .tiles = nsai_span_tiles(run, kernel, span->token_begin, span->token_end),
                     .keys = &run->io->kv.k_cmp,
                     .lse = lse };
  x.splits = nsai_key_splits(run, x.tiles * p.kv_heads,
                             nsai_block_count(&problem->model, problem->max_kv_len));
  return nsai_importance_launch(run, kernel, &x, &p);
}

nsa_status nsai_importance_run(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *normalizer = &form->kernel[NSAI_IMPORTANCE_NORMALIZER];
  const bool apart = nsai_normalizes_apart(&run->plan->problem.model);
  if (span->prepare) return apart ? nsai_normalizer_enqueue(run, normalizer, form->buffer) : NSA_OK;
  const nsai_split_lse lse =
      apart ? nsai_normalizer_lse(run, normalizer, form->buffer) : nsai_branch_lse(run);
  if (span->probe) return nsai_probe_enqueue(run, &form->kernel[NSAI_IMPORTANCE_PROBE], &lse);
  return nsai_importance_enqueue(run, &form->kernel[NSAI_IMPORTANCE], &lse, span);
}

const nsai_variant nsai_importance_sm80 = {
  .name = "importance_sm80",
  .stage = NSAI_STAGE_IMPORTANCE,
  .why = "second pass over q k^T with the known LSE, exact in fp32",
  .kernels = NSAI_IMPORTANCE_KERNELS,
  .buffers = NSAI_NORMALIZER_BUFFERS,
  .takes_codes = true,
  .stands_alone = true,
  .legal = legal,
  .space = &space,
  .specify = specify,
  .workspace = nsai_importance_workspace,
  .enqueue = nsai_importance_run,
};
