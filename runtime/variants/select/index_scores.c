/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * index_scores_sm80, and the index scores of probed rows.
 */
#include "variants/select/index_scores.h"

#include "base/math.h"
#include "plan/context.h"
#include "variants/select/importance.h"

#include <math.h>

enum { SCORES, PROBE, KERNELS };

/* ---- heads ---- */

/* Index heads whose rows share a tile of keys: as many as divide the heads evenly, of the rows that two
 * warps have. */
#define MOST_TILE_HEADS 64

static int32_t tile_heads(const nsai_model *m) {
  int32_t heads = m->index_heads < MOST_TILE_HEADS ? m->index_heads : MOST_TILE_HEADS;
  while (m->index_heads % heads) heads--;
  return heads;
}

static int32_t head_groups(const nsai_model *m) { return m->index_heads / tile_heads(m); }

int32_t nsai_index_padded_heads(const nsai_model *m) {
  int32_t padded = 1;
  while (padded < tile_heads(m)) padded *= 2;
  return padded;
}

/* ---- tiles ---- */

static bool reads_codes(const nsai_problem *p) { return p->cmp_dtype == NSA_E4M3; }

static uint32_t shared_bytes(const nsai_problem *p, const nsai_tiles *s) {
  return (uint32_t)nsai_smem_index_scores(s->of[NSAI_TILE_STAGES], s->of[NSAI_TILE_KEYS],
                                          nsai_row_words(reads_codes(p), p->model.index_dim));
}

static nsai_tiles tiles_of(int32_t keys, int32_t warps, int32_t stages, int32_t ctas) {
  return (nsai_tiles){ { [NSAI_TILE_KEYS] = keys,
                         [NSAI_TILE_WARPS] = warps,
                         [NSAI_TILE_STAGES] = stages,
                         [NSAI_TILE_CTAS] = ctas } };
}

/* Whether the loop over a tile's rows and blocks has no divisions but shifts, and no parts of slices. */
static bool is_plain(const nsai_model *m) {
  return tile_heads(m) == nsai_index_padded_heads(m) && m->select_block % 32 == 0;
}

/* Three CTAs of four warps leave a thread 168 registers. At Di 128 that is just enough for Q and scores
 * of two m16 tiles, and not where heads or blocks are odd (NVRTC 13.0: 3 heads spilled 20 bytes, blocks
 * of 24 208), or where keys are codes, whose fragments take more. */
static nsai_tiles choose(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  *by = NSAI_BY_DEFAULT;
  if (t->register_fallback) return tiles_of(32, 4, 2, 1);
  if (p->model.index_dim > 128) return tiles_of(32, 4, 3, 2);
  const nsai_tiles three = tiles_of(64, 4, 3, 3);
  const bool fits = p->model.index_dim <= 96 || (is_plain(&p->model) && !reads_codes(p));
  return fits && nsai_holds_ctas(t, shared_bytes(p, &three), 3) ? three : tiles_of(64, 4, 3, 2);
}

static void fit(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                nsai_reasons *reasons) {
  nsai_fit_shared(t, shared_bytes(p, s), reasons);
}

/* Q of two m16 tiles and their scores of 32 keys, and what else the loop holds. */
static double cost(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  const int32_t warps = s->of[NSAI_TILE_WARPS], ctas = s->of[NSAI_TILE_CTAS];
  const int32_t registers =
      nsai_padded_dim(p->model.index_dim) / 2 + 32 + 56 + (reads_codes(p) ? 12 : 0);
  if (registers > nsai_register_limit(32 * warps * ctas) ||
      !nsai_holds_ctas(t, shared_bytes(p, s), ctas))
    return INFINITY;
  return 1 + 6.0 / (s->of[NSAI_TILE_KEYS] * (s->of[NSAI_TILE_STAGES] - 1)) +
         (warps * ctas < 8 ? 0.3 : 0);
}

static const nsai_space space = {
  4,
  { { NSAI_TILE_KEYS, { 32, 64, 128 }, "barriers against shared memory" },
    { NSAI_TILE_WARPS, { 2, 4, 8 }, "each has 32 rows and all keys of a tile" },
    { NSAI_TILE_STAGES, { 2, 3, 4 }, "tiles on their way against shared memory" },
    { NSAI_TILE_CTAS, { 1, 2, 3, 4 }, "others fill the waits of one; registers are divided" } },
  choose,
  fit,
  cost,
};

nsai_tiles nsai_index_scores_tiles(const nsai_problem *p, const nsai_target *t) {
  nsai_decider by;
  return choose(p, t, &by);
}

/* Rows of a tile of a decode step: all drafts of a sequence, so that they share the keys. */
static int32_t step_rows(const nsai_problem *p) {
  const int64_t rows = (int64_t)p->max_q_len * nsai_index_padded_heads(&p->model);
  return rows > 64 ? 128 : rows > 32 ? 64 : 32;
}

/* Few rows leave most warps of a CTA without any. Instead CTAs of a warp or two each take keys of their
 * own, as many as have 200 KB on their way: HBM is the bound. Codes are half the bytes, so that tiles of
 * them have twice as many keys. (Guesses.) */
nsai_tiles nsai_index_step_tiles(const nsai_problem *p, const nsai_target *t) {
  const int32_t rows = step_rows(p);
  if (rows == 128 || t->register_fallback) return nsai_index_scores_tiles(p, t);
  const int32_t keys = reads_codes(p) && p->model.index_dim <= 128 ? 64 : 32;
  for (int32_t ctas = rows == 32 ? 8 : 4; ctas > 1; ctas--) {
    const nsai_tiles tiles = tiles_of(keys, rows / 32, 3, ctas);
    if (nsai_holds_ctas(t, shared_bytes(p, &tiles), ctas)) return tiles;
  }
  return tiles_of(32, rows / 32, 2, 1);
}

/* ---- kernels ---- */

void nsai_index_rows_add(nsai_kernel_spec *spec, const nsai_problem *p) {
  const nsai_model *m = &p->model;
  nsai_constant_add(spec, "kHeadDimQk", m->index_dim);
  nsai_constant_add(spec, "kGroup", tile_heads(m));
  nsai_constant_add(spec, "kGroupPadded", nsai_index_padded_heads(m));
  nsai_constant_add(spec, "kBlock", 1);
  nsai_constant_add(spec, "kStride", 1);
  nsai_constant_add(spec, "kSelectBlock", m->select_block);
  nsai_constant_add(spec, "kSelectCount", m->select_count);
  nsai_constant_add(spec, "kSelectInit", m->select_init);
  nsai_constant_add(spec, "kSelectLocal", m->select_local);
  nsai_source_add(spec, p, 1);
}

void nsai_index_scores_specify(const nsai_problem *p, const nsai_tiles *s, bool probe,
                               nsai_kernel_spec *spec) {
  const nsai_model *m = &p->model;
  const int32_t warps = s->of[NSAI_TILE_WARPS], rows = 32 * warps;
  *spec = (nsai_kernel_spec){ .entry = "select_index_scores",
                              .dtype = m->dtype,
                              .threads = 32 * warps,
                              .shared_bytes = shared_bytes(p, s),
                              .tile_tokens = rows / nsai_index_padded_heads(m),
                              .compile_cost = 300 };
  nsai_index_rows_add(spec, p);
  nsai_constant_add(spec, "kRows", rows);
  nsai_constant_add(spec, "kKeys", s->of[NSAI_TILE_KEYS]);
  nsai_constant_add(spec, "kWarps", warps);
  nsai_constant_add(spec, "kStages", s->of[NSAI_TILE_STAGES]);
  nsai_constant_add(spec, "kMinBlocks", s->of[NSAI_TILE_CTAS]);
  nsai_constant_add(spec, "kProbe", probe);
  nsai_constant_add(spec, "kStep", nsai_ranks_by_step(p));
  nsai_constant_add(spec, "kCountReads", p->count_reads && !probe);
  nsai_codes_add(spec, p->cmp_dtype);
}

/* ---- the row ---- */

void nsai_index_scores_legal(const nsai_problem *p, nsai_reasons *reasons) {
  nsai_legal_common(p, reasons);
  if (p->model.by != NSAI_BY_INDEX)
    nsai_refuse(reasons, "model.select.by is compressed: take importance_sm90 or importance_sm80");
}

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_index_scores_legal(p, reasons);
}

bool nsai_index_ranks(const nsai_problem *p) {
  return p->model.select_count && p->selection == NSA_SELECT_TOPN && !nsai_problem_selects_all(p);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  if (nsai_index_ranks(p)) nsai_index_scores_specify(p, r->tiles, false, &kernel[SCORES]);
  if (p->max_probe_rows) nsai_index_scores_specify(p, r->tiles, true, &kernel[PROBE]);
}

/* ---- launches ---- */

static const nsai_split_lse no_lse = { .parts = 1 };

/* All but the span, and where importance lies. */
static NsaiImportance params_of(const nsai_run *run) {
  const nsai_model *m = &run->plan->problem.model;
  return (NsaiImportance){ .seq = nsai_run_sequences(run),
                           .q = nsai_view(&run->io->index_q),
                           .k = nsai_view(&run->io->k_idx),
                           .scale = (float)(1.0 / sqrt((double)m->index_dim)),
                           .kv_heads = head_groups(m) };
}

nsa_status nsai_index_probe_enqueue(const nsai_run *run, const nsai_kernel *kernel) {
  const NsaiImportance p = params_of(run);
  return nsai_probe_launch(run, kernel, &run->io->k_idx, &no_lse, &p);
}

NsaiImportance nsai_index_scores_params(const nsai_run *run, const nsai_span *span) {
  const nsai_workspace *w = &run->plan->workspace;
  NsaiImportance p = params_of(run);
  p.importance = nsai_buffer_at(run, w->importance);
  p.importance_token_stride = run->plan->problem.model.index_heads * w->importance_columns;
  p.importance_head_stride = w->importance_columns;
  p.token_begin = (int)span->token_begin;
  p.token_end = (int)span->token_end;
  return p;
}

/* What a CTA's start costs, in keys. (Guesses.) Tiles of tokens of a long prefill see unequal numbers of
 * keys, and their many CTAs even out by themselves. */
#define STEP_START_KEYS 128
#define PREFILL_START_KEYS 512
#define MOST_ROUNDS 8

int32_t nsai_index_splits(const nsai_run *run, int64_t ctas, int32_t ctas_per_sm) {
  const nsai_problem *p = &run->plan->problem;
  const int64_t start = nsai_ranks_by_step(p) ? STEP_START_KEYS : PREFILL_START_KEYS;
  const int64_t places = nsai_larger((int64_t)run->plan->ctx->target.sms * ctas_per_sm, 1);
  const int64_t most = nsai_larger(p->max_kv_len / start, 1);
  int64_t best = 1, least = INT64_MAX;
  if (p->count_reads) return 1; /* each key is read and counted once */
  /* The most splits that so many rounds of CTAs take. */
  for (int64_t rounds = 1; rounds <= MOST_ROUNDS; rounds++) {
    const int64_t splits =
        nsai_larger(nsai_smaller(rounds * places / nsai_larger(ctas, 1), most), 1);
    const int64_t keys = nsai_ceil_div(ctas * splits, places) * (p->max_kv_len / splits + start);
    if (keys < least) best = splits, least = keys;
  }
  return (int32_t)best;
}

nsa_status nsai_index_scores_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                                     const nsai_span *span) {
  const NsaiImportance p = nsai_index_scores_params(run, span);
  const nsai_problem *problem = &run->plan->problem;
  const nsai_target *target = &run->plan->ctx->target;
  const nsai_tiles tiles = nsai_ranks_by_step(problem) ? nsai_index_step_tiles(problem, target)
                                                       : nsai_index_scores_tiles(problem, target);
  nsai_ranking x = { .tiles = nsai_span_tiles(run, kernel, span->token_begin, span->token_end),
                     .keys = &run->io->k_idx,
                     .lse = &no_lse };
  x.splits = nsai_index_splits(run, x.tiles * p.kv_heads, tiles.of[NSAI_TILE_CTAS]);
  return nsai_importance_launch(run, kernel, &x, &p);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  if (span->prepare) return NSA_OK;
  if (span->probe) return nsai_index_probe_enqueue(run, &form->kernel[PROBE]);
  return nsai_index_scores_enqueue(run, &form->kernel[SCORES], span);
}

const nsai_variant nsai_index_scores_sm80 = {
  .name = "index_scores_sm80",
  .stage = NSAI_STAGE_IMPORTANCE,
  .why = "the greatest index score of each block, mma.sync",
  .kernels = KERNELS,
  .takes_codes = true,
  .stands_alone = true,
  .legal = legal,
  .space = &space,
  .specify = specify,
  .enqueue = enqueue,
};
