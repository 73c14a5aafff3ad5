/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/selected.h"

#include <math.h>

static nsai_tiles selected_tiles(int32_t warps, int32_t keys, int32_t stages, int32_t ctas) {
  return (nsai_tiles){ { [NSAI_TILE_KEYS] = keys,
                         [NSAI_TILE_WARPS] = warps,
                         [NSAI_TILE_STAGES] = stages,
                         [NSAI_TILE_CTAS] = ctas } };
}

/* Whether a multiprocessor has shared memory for two CTAs of a portable variant. Two rings and
 * two producer warps hide more of the latency of scattered reads than one of twice the warps. */
static bool holds_two_ctas(const nsai_target *t) {
  return t->shared_bytes >= 2 * NSAI_PORTABLE_SHARED_BYTES;
}

static int32_t selected_columns(const nsai_model *m) {
  return nsai_padded_dim(m->head_dim_qk) + nsai_padded_dim(m->head_dim_v);
}

/* One warp holds one m16 tile: 16 rows of O and the scores in registers, Q too up to Dk + Dv 320.
 * Nine warps get 168 registers from the compiler; where the key bits of 128 tokens (G 1) would not
 * fit beside three stages, or O needs more registers, there are five: also beside the longest Q in
 * registers where it ends within 16 columns (Dk 184, Dv 120 and 128; NVRTC 13.0). */
static nsai_tiles choose_selected_tiles(const nsai_problem *p, const nsai_target *t,
                                        nsai_decider *by) {
  const nsai_model *m = &p->model;
  int32_t columns = m->head_dim_qk + m->head_dim_v;
  *by = NSAI_BY_DEFAULT;
  bool single = m->heads == m->kv_heads;
  if (t->register_fallback)
    return selected_tiles(4, t->register_fallback > 1 || columns > 320 ? 16 : 32, 3, 1);
  if (m->head_dim_qk > 192 || m->head_dim_v > 128) return selected_tiles(4, 16, 4, 1);
  bool most = selected_columns(m) == NSAI_SELECTED_REGISTER_COLUMNS && m->head_dim_qk % 16;
  /* Consumers convert codes; 168 registers are too few for it there. (NVRTC 13.0.) */
  if (p->kv_dtype && columns > 128 && nsai_target_major(t) >= 10)
    return selected_tiles(4, columns > 256 ? 32 : 64, 3, 1);
  if (columns > 256) return selected_tiles(single || most ? 4 : 8, 32, 4, 1);
  /* Two CTAs of five consumer warps and a producer are three warps a scheduler, the most at 168
   * registers: 6 % (random) to 10 % (correlated) faster than four consumers (H200, 64k). */
  int32_t warps = nsai_padded_group(m) <= 16 ? 5 : 4; /* a CTA holds whole tokens */
  if (columns > 128 && holds_two_ctas(t)) {
    *by = NSAI_BY_ARCHITECTURE;
    return selected_tiles(warps, 64, 3, 2);
  }
  if (columns > 128) return selected_tiles(single ? 4 : 8, 64, 3, 1);
  if (nsai_target_is(t, NSAI_H200)) {
    /* Tuned at D 64, 16k tokens: 1.23 against 1.72 ms of the general choice. */
    *by = NSAI_BY_DEVICE;
    return selected_tiles(4, 64, 4, 2);
  }
  return selected_tiles(8, 64, 4, 1);
}

static uint32_t selected_shared(const nsai_problem *p, const nsai_tiles *s) {
  const nsai_model *m = &p->model;
  int32_t warps = s->of[NSAI_TILE_WARPS], tokens = 16 * warps / nsai_padded_group(m);
  return nsai_smem_selected_sm80(warps, s->of[NSAI_TILE_KEYS], s->of[NSAI_TILE_STAGES], tokens,
                                 m->head_dim_qk, m->head_dim_v, p->kv_dtype == NSA_E4M3);
}

/* Rows of a tile lie in an odd number of 16-byte chunks where 64 columns do not divide them, so
 * that a few head dims (Dk 136, Dv 112) need more than three stages of 64 keys may have. */
static nsai_tiles choose_selected(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  nsai_tiles s = choose_selected_tiles(p, t, by);
  if (selected_shared(p, &s) <= NSAI_PORTABLE_SHARED_BYTES) return s;
  return selected_tiles(s.of[NSAI_TILE_WARPS], 32, 4, s.of[NSAI_TILE_CTAS]);
}

static void fit_selected(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                         nsai_reasons *reasons) {
  int32_t rows = 16 * s->of[NSAI_TILE_WARPS], group = nsai_padded_group(&p->model);
  if (rows % group)
    nsai_refuse(reasons, "the %d rows of %d warps hold no whole tokens of %d heads", rows,
                s->of[NSAI_TILE_WARPS], group);
  nsai_fit_shared(t, selected_shared(p, s), reasons);
}

/* O, the scores of a step, Q where it is held, and what else the loop holds. */
static int32_t selected_registers(const nsai_model *m, const nsai_tiles *s) {
  int32_t step = s->of[NSAI_TILE_KEYS] < 32 ? s->of[NSAI_TILE_KEYS] : 32;
  int32_t q = selected_columns(m) > NSAI_SELECTED_REGISTER_COLUMNS
                  ? 0
                  : nsai_padded_dim(m->head_dim_qk) / 4;
  return nsai_padded_dim(m->head_dim_v) / 2 + step / 2 + q + 40;
}

/* A ring that holds more bytes hides more of the latency of scattered reads; more consumers share
 * what one producer reads. */
static double cost_selected(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  int32_t warps = s->of[NSAI_TILE_WARPS], ctas = s->of[NSAI_TILE_CTAS];
  if (selected_registers(&p->model, s) > nsai_register_limit(32 * (warps + 1) * ctas) ||
      !nsai_holds_ctas(t, selected_shared(p, s), ctas))
    return INFINITY;
  double flying = (double)ctas * s->of[NSAI_TILE_STAGES] * s->of[NSAI_TILE_KEYS];
  return 1 + 200.0 / flying + 4.0 / (warps * ctas);
}

static const nsai_space space = {
  4,
  { { NSAI_TILE_KEYS, { 16, 32, 64 }, "keys of a stage: whole lines in flight against waste" },
    { NSAI_TILE_WARPS, { 2, 4, 5, 6, 8 }, "m16 tiles that share what the producer reads" },
    { NSAI_TILE_STAGES, { 2, 3, 4, 6 }, "reads in flight" },
    { NSAI_TILE_CTAS, { 1, 2, 3 }, "producers on a multiprocessor; registers are divided" } },
  choose_selected,
  fit_selected,
  cost_selected,
};

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const nsai_tiles *s = r->tiles;
  nsai_kernel_spec *spec = &kernel[NSAI_SELECTED];
  int32_t warps = s->of[NSAI_TILE_WARPS];
  *spec = (nsai_kernel_spec){ .entry = "attend_selected_sm80",
                              .dtype = p->model.dtype,
                              .threads = 32 * (warps + 1),
                              .shared_bytes = selected_shared(p, s),
                              .tile_tokens = 16 * warps / nsai_padded_group(&p->model),
                              .compile_cost = 400 };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_constant_add(spec, "kKeys", s->of[NSAI_TILE_KEYS]);
  nsai_constant_add(spec, "kWarps", warps);
  nsai_constant_add(spec, "kStages", s->of[NSAI_TILE_STAGES]);
  nsai_constant_add(spec, "kMinBlocks", s->of[NSAI_TILE_CTAS]);
  nsai_selected_add_lists(p, kernel);
  nsai_source_add(spec, p, 1);
  nsai_codes_add(spec, p->kv_dtype);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *kernel = &form->kernel[NSAI_SELECTED];
  NsaiAttendSelected p = nsai_selected_params(run, kernel);
  (void)span;
  NSAI_TRY(nsai_selected_find_lists(run, form, &p));
  if (!nsai_problem_is_cached(&run->plan->problem)) return nsai_launch_tiles(run, kernel, &p);
  /* A kernel without codes takes the first member alone. */
  NsaiCodedAttendSelected coded = { .cached = { .batch = nsai_cache_batch(run),
                                                .pair = nsai_cache_pair(run, &run->io->kv, NSA_SEL),
                                                .packed = p },
                                    .scales = nsai_pair_scales(run, NSA_SEL) };
  return nsai_launch(run->queue, kernel, nsai_grid_tiles(run, kernel), 1, &coded);
}

const nsai_variant nsai_attend_selected_sm80 = {
  .name = "attend_selected_sm80",
  .stage = NSAI_STAGE_ATTEND_SELECTED,
  .why = "merged list of adjacent tokens' blocks, mma.sync",
  .kernels = NSAI_SELECTED_KERNELS,
  .takes_codes = true,
  .legal = legal,
  .space = &space,
  .specify = specify,
  .enqueue = enqueue,
};
