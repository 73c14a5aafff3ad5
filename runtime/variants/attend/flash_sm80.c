/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/flash_sm80.h"

#include <math.h>

static nsai_tiles flash_tiles(int32_t rows, int32_t keys, int32_t warps, int32_t ctas) {
  return (nsai_tiles){ { [NSAI_TILE_ROWS] = rows,
                         [NSAI_TILE_KEYS] = keys,
                         [NSAI_TILE_WARPS] = warps,
                         [NSAI_TILE_CTAS] = ctas } };
}

static uint32_t flash_shared(const nsai_model *m, const nsai_tiles *s) {
  return nsai_smem_flash_sm80(s->of[NSAI_TILE_ROWS], s->of[NSAI_TILE_KEYS], m->head_dim_qk,
                              m->head_dim_v);
}

/* Up to Dv 128 a warp holds the O of two m16 tiles, so that every fragment of K and V that it reads
 * feeds two products; beyond, one. Scores of 32 keys fit beside that O on every architecture and
 * for every model; those of 64 keys, which are faster, just fit on sm_90 at D 128. (Found by
 * compiling random models, which CI goes on doing.) */
static nsai_tiles choose_flash(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  const nsai_model *m = &p->model;
  bool wide = m->head_dim_qk > 192 || m->head_dim_v > 128;
  *by = NSAI_BY_DEFAULT;
  if (t->register_fallback > 1) return flash_tiles(64, 32, 4, 1);
  if (t->register_fallback) return flash_tiles(wide ? 64 : 128, 32, 4, 1);
  /* A thread holds its part of the next tile of codes in registers. */
  if (nsai_problem_has_codes(p) && m->head_dim_v > 64)
    return flash_tiles(64, m->head_dim_qk > 128 || m->head_dim_v > 128 ? 32 : 64, 4, 2);
  if (wide) return flash_tiles(64, 64, 4, 2);
  if (m->head_dim_qk == 64 && m->head_dim_v == 64 && nsai_target_is(t, NSAI_H200)) {
    /* Tuned at 16k tokens, over the general choice: dense 6.34 against 7.14 ms, compressed 0.58
     * against 0.63, window 0.62 against 0.71. */
    *by = NSAI_BY_DEVICE;
    return p->op == NSA_OP_DENSE ? flash_tiles(128, 128, 4, 2) : flash_tiles(64, 64, 4, 4);
  }
  if (m->head_dim_v <= 64) return flash_tiles(128, 64, 4, 2);
  bool fits = nsai_target_major(t) == 9 && m->head_dim_qk == 128 && m->head_dim_v == 128 &&
              !nsai_problem_is_cached(p); /* where the lists of pages are looked up */
  if (fits) *by = NSAI_BY_ARCHITECTURE;
  return flash_tiles(128, fits ? 64 : 32, 4, 2);
}

static void fit_flash(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                      nsai_reasons *reasons) {
  int32_t rows = s->of[NSAI_TILE_ROWS], warps = s->of[NSAI_TILE_WARPS],
          group = nsai_padded_group(&p->model);
  if (rows % (16 * warps))
    nsai_refuse(reasons, "%d rows are no m16 tiles for each of %d warps", rows, warps);
  if (rows < group) nsai_refuse(reasons, "%d rows do not hold a token of %d heads", rows, group);
  nsai_fit_shared(t, flash_shared(&p->model, s), reasons);
}

/* O and the scores of a warp's m16 tiles, and what else the loop holds. */
static int32_t flash_registers(const nsai_model *m, const nsai_tiles *s) {
  int32_t m16 = s->of[NSAI_TILE_ROWS] / (16 * s->of[NSAI_TILE_WARPS]);
  return m16 * (nsai_padded_dim(m->head_dim_v) + s->of[NSAI_TILE_KEYS]) / 2 + 48;
}

/* Each fragment that is read from shared memory feeds as many products as a warp has m16 tiles; a
 * barrier costs the less the more keys lie between two; eight warps hide the waits. */
static double cost_flash(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  int32_t warps = s->of[NSAI_TILE_WARPS], ctas = s->of[NSAI_TILE_CTAS];
  if (flash_registers(&p->model, s) > nsai_register_limit(32 * warps * ctas) ||
      !nsai_holds_ctas(t, flash_shared(&p->model, s), ctas))
    return INFINITY;
  double m16 = s->of[NSAI_TILE_ROWS] / (16.0 * warps);
  return 1 + 0.5 / m16 + 6.0 / s->of[NSAI_TILE_KEYS] + (warps * ctas < 8 ? 0.3 : 0);
}

const nsai_space nsai_flash_sm80_space = {
  4,
  { { NSAI_TILE_ROWS, { 32, 64, 128, 256 }, "Q in shared memory; a tile is masked at its edge" },
    { NSAI_TILE_KEYS, { 32, 64, 128 }, "scores in registers against barriers" },
    { NSAI_TILE_WARPS, { 2, 4, 8 }, "m16 tiles of a warp share its fragments of K and V" },
    { NSAI_TILE_CTAS, { 1, 2, 3, 4 }, "others fill the waits of one; registers are divided" } },
  choose_flash,
  fit_flash,
  cost_flash,
};

void nsai_flash_sm80_specify(const nsai_request *r, const char *entry, nsai_kernel_spec *spec) {
  const nsai_problem *p = r->problem;
  const int32_t *tile = r->tiles->of;
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = p->model.dtype,
                              .threads = 32 * tile[NSAI_TILE_WARPS],
                              .shared_bytes = flash_shared(&p->model, r->tiles),
                              .tile_tokens = tile[NSAI_TILE_ROWS] / nsai_padded_group(&p->model),
                              .compile_cost = 700 };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_constant_add(spec, "kRows", tile[NSAI_TILE_ROWS]);
  nsai_constant_add(spec, "kKeys", tile[NSAI_TILE_KEYS]);
  nsai_constant_add(spec, "kWarps", tile[NSAI_TILE_WARPS]);
  nsai_constant_add(spec, "kMinBlocks", tile[NSAI_TILE_CTAS]);
}
