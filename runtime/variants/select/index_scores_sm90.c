/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * index_scores_sm90. Probed rows are few: the portable kernel serves them.
 *
 * Keys of a cache in codes are expanded to the workspace once a call, as every tile of queries reads
 * them. In calls where that is not worth it, or which have more than there is room for, the portable
 * kernel reads the codes.
 */
#include "base/math.h"
#include "driver/tensor_map.h"
#include "params/kv_cache.h"
#include "plan/context.h"
#include "plan/expand.h"
#include "variants/attend/expanded_tokens.h"
#include "variants/select/importance.h"
#include "variants/select/index_scores.h"

#include <string.h>

enum { SCORES, PROBE, EXPAND, CODES, KERNELS };
enum { EXPANDED, BUFFERS };

#define CONSUMER_ROWS 64 /* of a warpgroup: what one wgmma takes */

/* ---- tiles ---- */

static uint32_t shared_bytes(const nsai_problem *p, const nsai_tiles *s) {
  return (uint32_t)nsai_smem_index_scores_sm90(s->of[NSAI_TILE_ROWS], s->of[NSAI_TILE_KEYS],
                                               s->of[NSAI_TILE_STAGES], p->model.index_dim);
}

static nsai_tiles tiles_of(int32_t rows, int32_t keys, int32_t stages) {
  return (nsai_tiles){
    { [NSAI_TILE_ROWS] = rows, [NSAI_TILE_KEYS] = keys, [NSAI_TILE_STAGES] = stages }
  };
}

/* Blocks end with tiles, or a tile holds whole ones. */
static bool divides(const nsai_model *m, int32_t keys) {
  return m->select_block % keys == 0 || (keys % m->select_block == 0 && m->select_block % 8 == 0);
}

/* More rows share each tile of keys, which come from L2: 128 rows would ask it for 5 TB/s. */
static nsai_tiles choose(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  const nsai_tiles list[] = { tiles_of(192, 128, 4), tiles_of(192, 128, 3), tiles_of(192, 128, 2),
                              tiles_of(192, 64, 3), tiles_of(128, 64, 2) };
  const int last = sizeof list / sizeof *list - 1; /* fits every width */
  int i = 0;
  *by = NSAI_BY_ARCHITECTURE;
  while (i < last && (!divides(&p->model, list[i].of[NSAI_TILE_KEYS]) ||
                      shared_bytes(p, &list[i]) > t->shared_bytes))
    i++;
  return list[i];
}

static void fit(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                nsai_reasons *reasons) {
  nsai_fit_cta(t, shared_bytes(p, s), reasons);
  if (!divides(&p->model, s->of[NSAI_TILE_KEYS]))
    nsai_refuse(reasons, "blocks of %d tokens do not end with tiles of %d keys",
                p->model.select_block, s->of[NSAI_TILE_KEYS]);
}

static double cost(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  (void)p;
  (void)t;
  return 1 + 40.0 / s->of[NSAI_TILE_ROWS] + 16.0 / s->of[NSAI_TILE_KEYS] +
         0.2 / s->of[NSAI_TILE_STAGES];
}

static const nsai_space space = {
  3,
  { { NSAI_TILE_ROWS, { 128, 192, 256 }, "rows that share a tile of keys against their registers" },
    { NSAI_TILE_KEYS, { 64, 128 }, "waits of a tile against the pipeline's room" },
    { NSAI_TILE_STAGES, { 2, 3, 4, 6 }, "how far the producer runs ahead" } },
  choose,
  fit,
  cost,
};

/* ---- keys in codes ---- */

/* Expanded keys [sequences, 1, rows, Di]. */
static NsaiCacheTensor expanded_keys(const nsai_run *run, const nsai_form *form) {
  const int64_t dim = run->plan->problem.model.index_dim;
  return (NsaiCacheTensor){ nsai_buffer_at(run, form->buffer[EXPANDED]),
                            nsai_longest_sequence(run) * dim, dim, dim };
}

static nsa_status expand(const nsai_run *run, const nsai_form *form) {
  const int64_t longest = nsai_longest_sequence(run);
  const NsaiExpandTokens p = { .batch = nsai_entry_batch(run),
                               .from.k = nsai_cache_tensor(&run->io->k_idx),
                               .to.k = expanded_keys(run, form),
                               .kv_heads = 1,
                               .behind = (int)longest };
  return nsai_launch(run->queue, &form->kernel[EXPAND],
                     (uint64_t)nsai_ceil_div(longest, NSAI_EXPANDED_TOKENS),
                     (uint32_t)run->sizes.num_seqs, &p);
}

/* ---- the row ---- */

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  nsai_index_scores_legal(p, reasons);
  if (strcmp(t->arch, "sm_90a"))
    nsai_refuse(reasons, "needs wgmma and the registers' division of sm_90a, the target is %s",
                t->arch);
  if (!divides(&p->model, 64) && !divides(&p->model, 128))
    nsai_refuse(
        reasons,
        "model.select.block is %d: expected a multiple of 64, or 8, 16 or 32, so that blocks "
        "end with tiles of keys",
        p->model.select_block);
  if (p->model.by == NSAI_BY_INDEX && p->cmp_dtype &&
      nsai_expand_capacity(p, NSAI_INDEX_KEYS) < p->max_kv_len)
    nsai_refuse(
        reasons,
        "it expands index keys in e4m3, and those of a sequence of problem.max_kv_len (%lld) take "
        "more than thresholds.prefill_expand_bytes (%lld) of workspace in 16 bits, or "
        "problem.max_tokens (%lld) new tokens are too few for them",
        (long long)p->max_kv_len, (long long)p->expand_bytes, (long long)p->max_tokens);
}

/* With a compiler that needs more registers than any tiles leave, the portable kernels serve. */
static bool sensible(const nsai_problem *p, const nsai_target *t) {
  (void)p;
  return t->register_fallback < NSAI_SMALLEST_TILES;
}

static void specify_scores(const nsai_request *r, nsai_kernel_spec *spec) {
  const nsai_problem seen = nsai_expanded_problem(r->problem);
  const nsai_problem *p = r->problem->cmp_dtype ? &seen : r->problem;
  const int32_t rows = r->tiles->of[NSAI_TILE_ROWS], heads = nsai_index_padded_heads(&p->model);
  *spec = (nsai_kernel_spec){ .entry = "select_index_scores_sm90",
                              .dtype = p->model.dtype,
                              .threads = 2 * (rows + CONSUMER_ROWS),
                              .shared_bytes = shared_bytes(p, r->tiles),
                              .tile_tokens = rows / heads,
                              .tma_box_heads = heads,
                              .tma_box_tokens = CONSUMER_ROWS / heads,
                              .tma_box_keys = r->tiles->of[NSAI_TILE_KEYS],
                              .compile_cost = 400 };
  nsai_index_rows_add(spec, p);
  nsai_constant_add(spec, "kRows", rows);
  nsai_constant_add(spec, "kKeys", r->tiles->of[NSAI_TILE_KEYS]);
  nsai_constant_add(spec, "kStages", r->tiles->of[NSAI_TILE_STAGES]);
  nsai_constant_add(spec, "kMinBlocks", 1);
  nsai_constant_add(spec, "kProbe", false);
  nsai_constant_add(spec, "kCountReads", false);
  if (r->problem->cmp_dtype) nsai_constant_add(spec, "kScaled", true);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const nsai_tiles portable = nsai_index_scores_tiles(p, r->target);
  if (nsai_index_ranks(p)) specify_scores(r, &kernel[SCORES]);
  if (p->max_probe_rows) nsai_index_scores_specify(p, &portable, true, &kernel[PROBE]);
  if (!nsai_index_ranks(p) || !p->cmp_dtype) return;
  nsai_expand_tokens_specify(p, NSAI_INDEX_KEYS, &kernel[EXPAND]);
  nsai_index_scores_specify(p, &portable, false, &kernel[CODES]);
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  if (kernel[EXPAND].entry)
    out->bytes[EXPANDED] = NSAI_PRODUCT(nsai_expand_capacity(r->problem, NSAI_INDEX_KEYS),
                                        r->problem->model.index_dim, 2);
}

/* ---- launches ---- */

/* The stride of one head says nothing. */
static nsa_status map_keys(const nsai_run *run, const nsai_kernel *kernel, const NsaiView *keys,
                           NsaiTensorMap *map) {
  const nsai_model *m = &run->plan->problem.model;
  nsai_boxed k = { .name = "k_idx",
                   .view = *keys,
                   .tokens = run->sizes.kv_tokens,
                   .heads = 1,
                   .dim = m->index_dim,
                   .dtype = m->dtype,
                   .tma_box_heads = 1,
                   .tma_box_tokens = kernel->tma_box_keys };
  k.view.head_stride = m->index_dim;
  return nsai_tensor_map(run->driver, &k, map);
}

static nsa_status map_pages(const nsai_run *run, const nsai_kernel *kernel, const nsai_form *form,
                            bool expanded, NsaiTensorMap *map) {
  const nsai_problem *p = &run->plan->problem;
  const nsa_tensor *t = &run->io->k_idx;
  const int page_rows = expanded ? 0 : (int)p->page_size;
  nsai_boxed_pages k = { .name = "k_idx",
                         .view = expanded ? expanded_keys(run, form) : nsai_cache_tensor(t),
                         .pages = expanded ? run->sizes.num_seqs : t->shape[0],
                         .page_rows = expanded ? nsai_longest_sequence(run) : t->shape[1],
                         .heads = 1,
                         .dim = p->model.index_dim,
                         .dtype = p->model.dtype,
                         .box_rows = nsai_list_box_rows(page_rows, kernel->tma_box_keys) };
  k.view.head_stride = p->model.index_dim;
  return nsai_tensor_map_pages(run->driver, &k, map);
}

static nsa_status map_queries(const nsai_run *run, const nsai_kernel *kernel, const NsaiView *q,
                              NsaiTensorMap *map) {
  const nsai_model *m = &run->plan->problem.model;
  const nsai_boxed boxed = { .name = "index_q",
                             .view = *q,
                             .tokens = run->sizes.tokens,
                             .heads = m->index_heads,
                             .dim = m->index_dim,
                             .dtype = m->dtype,
                             .tma_box_heads = kernel->tma_box_heads,
                             .tma_box_tokens = kernel->tma_box_tokens };
  return nsai_tensor_map(run->driver, &boxed, map);
}

static nsa_status launch_scores(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *kernel = &form->kernel[SCORES];
  const bool expanded = run->plan->problem.cmp_dtype;
  const NsaiImportance p = nsai_index_scores_params(run, span);
  const uint64_t grid =
      (uint64_t)(nsai_span_tiles(run, kernel, span->token_begin, span->token_end) * p.kv_heads);
  const uint32_t splits = (uint32_t)nsai_index_splits(run, (int64_t)grid, 1);
  if (nsai_problem_is_cached(&run->plan->problem)) {
    NsaiCachedIndexScoresTma cached = { .packed = p,
                                        .batch = nsai_entry_batch(run),
                                        .pages = (int)run->io->k_idx.shape[0],
                                        .k_scale = nsai_entry_scales(run).k.data };
    if (expanded) { /* a sequence lies in the row of its number */
      cached.batch.slots = NULL;
      cached.pages = run->sizes.num_seqs;
    }
    NSAI_TRY(map_queries(run, kernel, &p.q, &cached.q));
    NSAI_TRY(map_pages(run, kernel, form, expanded, &cached.k));
    return nsai_launch(run->queue, kernel, grid, splits, &cached);
  }
  NsaiIndexScoresTma packed = { .packed = p };
  NSAI_TRY(map_queries(run, kernel, &p.q, &packed.q));
  NSAI_TRY(map_keys(run, kernel, &p.k, &packed.k));
  return nsai_launch(run->queue, kernel, grid, splits, &packed);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  if (span->prepare) return NSA_OK;
  if (span->probe) return nsai_index_probe_enqueue(run, &form->kernel[PROBE]);
  if (run->plan->problem.cmp_dtype) {
    if (!nsai_run_expands(run, NSAI_INDEX_KEYS))
      return nsai_index_scores_enqueue(run, &form->kernel[CODES], span);
    if (span->token_begin == 0) NSAI_TRY(expand(run, form)); /* the first of the chunks of tokens */
  }
  return launch_scores(run, form, span);
}

const nsai_variant nsai_index_scores_sm90 = {
  .name = "index_scores_sm90",
  .stage = NSAI_STAGE_IMPORTANCE,
  .why = "the greatest index score of each block, wgmma and tensor maps",
  .kernels = KERNELS,
  .buffers = BUFFERS,
  .takes_codes = true,
  .stands_alone = true,
  .legal = legal,
  .sensible = sensible,
  .space = &space,
  .specify = specify,
  .workspace = workspace,
  .enqueue = enqueue,
};
