/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/select/normalizer.h"

#include "base/math.h"
#include "variants/compress/mean.h"
#include "variants/select/scores_sm90.h"

nsai_mean nsai_normalizer_keys(const nsai_model *m) {
  if (m->norm_block) return (nsai_mean){ m->norm_block, m->norm_stride, 0 };
  return (nsai_mean){ m->block, m->stride, 0 };
}

/* A forward makes the coarse keys; a cache has them. */
static bool makes_keys(const nsai_problem *p) {
  return p->model.norm_block && !nsai_problem_is_cached(p);
}

/* As in packed_block_row() of data/sequence.cuh. */
static int64_t key_rows(const nsai_model *m, int64_t tokens) { return tokens / m->norm_stride + 1; }

/* The general choice of select_importance: references and sums take the registers that a third CTA
 * leaves it (NVRTC 13.0, sm_90a, D 128, a cache: 40 bytes were spilled). */
static nsai_tiles tiles_of(const nsai_problem *p, const nsai_target *t) {
  const bool few = t->register_fallback || p->model.head_dim_qk > 192;
  return (nsai_tiles){ { [NSAI_TILE_KEYS] = few ? 32 : 64,
                         [NSAI_TILE_WARPS] = 4,
                         [NSAI_TILE_CTAS] = t->register_fallback ? 1 : 2 } };
}

static void specify_mma(const nsai_problem *p, const nsai_target *t, nsai_kernel_spec *spec) {
  const nsai_model *m = &p->model;
  const nsai_tiles tiles = tiles_of(p, t);
  const int32_t warps = tiles.of[NSAI_TILE_WARPS];
  *spec =
      (nsai_kernel_spec){ .entry = "select_normalizer",
                          .dtype = m->dtype,
                          .threads = 32 * warps,
                          .shared_bytes = (uint32_t)nsai_smem_normalizer(tiles.of[NSAI_TILE_KEYS],
                                                                         m->head_dim_qk),
                          .tile_tokens = 32 * warps / nsai_padded_group(m),
                          .compile_cost = 300 };
  nsai_query_rows_add(spec, p, &tiles);
}

void nsai_normalizer_specify(const nsai_problem *p, const nsai_target *t, int32_t wgmma_rows,
                             nsai_kernel_spec kernel[]) {
  const nsai_model *m = &p->model;
  const nsai_mean keys = nsai_normalizer_keys(m);
  nsai_kernel_spec *spec = &kernel[NSAI_NORMALIZER_LSE];
  if (wgmma_rows)
    nsai_scores_sm90_specify(p, t, wgmma_rows, "select_normalizer_sm90", spec);
  else
    specify_mma(p, t, spec);
  nsai_constant_add(spec, "kBlock", keys.block);
  nsai_constant_add(spec, "kStride", keys.stride);
  nsai_constant_add(spec, "kProbe", false);
  nsai_constant_add(spec, "kStep", nsai_ranks_by_step(p));
  nsai_constant_add(spec, "kCountReads", p->count_reads);
  nsai_source_add(spec, p, keys.stride);
  /* Coarse keys are never codes. */
  nsai_codes_add(spec, m->norm_block ? 0 : p->cmp_dtype);
  if (!makes_keys(p)) return;
  const nsai_tiles mean = nsai_mean_tiles();
  nsai_mean_specify(m, &keys, &mean, &kernel[NSAI_NORMALIZER_MEAN]);
}

void nsai_normalizer_workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                               int64_t bytes[]) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  const int32_t tile = kernel[NSAI_NORMALIZER_LSE].tile_tokens;
  bytes[NSAI_NORMALIZER_OUT] = NSAI_PRODUCT(nsai_most_split_tokens(r, tile), m->heads, 4);
  if (makes_keys(p))
    bytes[NSAI_NORMALIZER_KEYS] =
        NSAI_PRODUCT(key_rows(m, p->max_kv_tokens), m->kv_heads, m->head_dim_qk, 2);
}

nsai_split_lse nsai_normalizer_lse(const nsai_run *run, const nsai_kernel kernel[],
                                   const nsai_buffer buffer[]) {
  const nsai_problem *p = &run->plan->problem;
  const nsai_mean keys = nsai_normalizer_keys(&p->model);
  const nsai_model blocks = { .block = keys.block, .stride = keys.stride };
  const int64_t tokens = run->sizes.tokens;
  const int64_t tiles = nsai_span_tiles(run, &kernel[NSAI_NORMALIZER_LSE], 0, tokens);
  return (nsai_split_lse){ .first = { .data = nsai_buffer_at(run, buffer[NSAI_NORMALIZER_OUT]),
                                      .stride = { p->model.heads, 1 } },
                           .stride = tokens * p->model.heads,
                           .parts = nsai_key_splits(run, tiles * p->model.kv_heads,
                                                    nsai_block_count(&blocks, p->max_kv_len)) };
}

/* Makes the coarse keys `made`. */
static nsa_status make_keys(const nsai_run *run, const nsai_kernel *kernel, const NsaiView *made) {
  const nsai_model *m = &run->plan->problem.model;
  const nsai_mean keys = nsai_normalizer_keys(m);
  const NsaiCompress p = { .seq = nsai_run_sequences(run),
                           .k = nsai_view(&run->io->kv.k[0]),
                           .k_cmp = *made,
                           .rows = (int)key_rows(m, run->sizes.kv_tokens),
                           .kv_heads = m->kv_heads };
  return nsai_mean_launch(run, kernel, &keys, &p);
}

nsa_status nsai_normalizer_enqueue(const nsai_run *run, const nsai_kernel kernel[],
                                   const nsai_buffer buffer[]) {
  const nsai_problem *problem = &run->plan->problem;
  const nsai_model *m = &problem->model;
  const nsai_kernel *pass = &kernel[NSAI_NORMALIZER_LSE];
  const nsai_split_lse lse = nsai_normalizer_lse(run, kernel, buffer);
  const nsai_ranking x = { nsai_span_tiles(run, pass, 0, run->sizes.tokens), lse.parts,
                           m->norm_block ? &run->io->k_norm : &run->io->kv.k_cmp, &lse };
  NsaiImportance p = nsai_importance_params(run, &lse);
  p.token_end = (int)run->sizes.tokens;
  if (makes_keys(problem)) {
    p.seq = nsai_run_sequences(run);
    p.k = nsai_buffer_view(run, buffer[NSAI_NORMALIZER_KEYS], m->kv_heads, m->head_dim_qk);
    NSAI_TRY(make_keys(run, &kernel[NSAI_NORMALIZER_MEAN], &p.k));
  }
  return nsai_importance_launch(run, pass, &x, &p);
}
