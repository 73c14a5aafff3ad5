/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "covering.h"

#include "plan/spec.h"

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

static void specify(const char *entry, const nsai_problem *p, const nsai_target *t,
                    const nsai_tiles *tiles, nsai_kernel_spec specs[NSAI_ROLES]) {
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_ATTEND_COMPRESSED];
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .threads = 32 * tiles->of[NSAI_TILE_WARPS],
                              .tile_tokens = 1,
                              .ctas_per_sm = FUSING_PER_SM,
                              .scratch_bytes = FUSING_SCRATCH };
  nsai_constant_add(spec, "kMinBlocks", 1);
  nsai_specify_standalone(p, t, specs);
}

static void specify_topn(const nsai_problem *p, const nsai_target *t, const nsai_tiles *tiles,
                         nsai_kernel_spec specs[NSAI_ROLES]) {
  specify("made_up_topn", p, t, tiles, specs);
}

static void specify_rival(const nsai_problem *p, const nsai_target *t, const nsai_tiles *tiles,
                          nsai_kernel_spec specs[NSAI_ROLES]) {
  specify("made_up_rival", p, t, tiles, specs);
  if (fusing_rival_scratch)
    specs[NSAI_KERNEL_ATTEND_COMPRESSED].scratch_bytes =
        fusing_rival_scratch * (uint64_t)p->max_kv_len;
}

static void legal_fusing_both(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)p, (void)t;
  if (!fusing_both) nsai_refuse(reasons, "no test asks for it");
}

static void specify_both(const nsai_problem *p, const nsai_target *t, const nsai_tiles *tiles,
                         nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)p, (void)t;
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_ATTEND_SELECTED];
  *spec = (nsai_kernel_spec){ .entry = "made_up_both",
                              .threads = 32 * tiles->of[NSAI_TILE_WARPS],
                              .tile_tokens = 4,
                              .tma_box_keys = 64 };
  nsai_constant_add(spec, "kMinBlocks", 1);
}

#define ROW(row_stage, row_name, function, row_space)                                              \
  {                                                                                                \
    .name = (row_name), .stage = (row_stage), .why = "as in the library", .deterministic = true,   \
    .fp32_importance = true, .legal = nsai_legal_##function, .specify = nsai_specify_##function,   \
    .space = (row_space)                                                                           \
  }

const nsai_variant nsai_variants[] = {
  ROW(NSAI_STAGE_COMPRESS, "compress_mean", compress_mean, &nsai_space_compress_mean),
  { .name = "made_up_topn",
    .stage = NSAI_STAGE_ATTEND_COMPRESSED,
    .why = "a test of three stages",
    .deterministic = true,
    .fp32_importance = true,
    .legal = legal_any,
    .sensible = sensible_topn,
    .specify = specify_topn,
    .space = &warps,
    .fuses = 1u << NSAI_STAGE_IMPORTANCE | 1u << NSAI_STAGE_SELECT },
  ROW(NSAI_STAGE_ATTEND_COMPRESSED, "attend_compressed_sm80", attend_compressed_sm80,
      &nsai_space_flash_sm80),
  { .name = "made_up_rival",
    .stage = NSAI_STAGE_ATTEND_COMPRESSED,
    .why = "a test of what is no default",
    .deterministic = true,
    .fp32_importance = true,
    .legal = legal_any,
    .specify = specify_rival,
    .space = &warps,
    .fuses = 1u << NSAI_STAGE_IMPORTANCE | 1u << NSAI_STAGE_SELECT },
  ROW(NSAI_STAGE_IMPORTANCE, "importance_sm80", importance_sm80, &nsai_space_importance),
  ROW(NSAI_STAGE_SELECT, "select_topn", select_topn, &nsai_space_select),
  ROW(NSAI_STAGE_ATTEND_SELECTED, "attend_selected_dense_sm80", attend_selected_dense_sm80,
      &nsai_space_flash_sm80),
  ROW(NSAI_STAGE_ATTEND_SELECTED, "attend_selected_sm80", attend_selected_sm80,
      &nsai_space_selected_sm80),
  { .name = "made_up_both",
    .stage = NSAI_STAGE_ATTEND_SELECTED,
    .why = "a test of two stages",
    .deterministic = true,
    .fp32_importance = true,
    .legal = legal_fusing_both,
    .specify = specify_both,
    .space = &warps,
    .fuses = 1u << NSAI_STAGE_ATTEND_WINDOW },
  ROW(NSAI_STAGE_ATTEND_WINDOW, "attend_window_sm80", attend_window_sm80, &nsai_space_flash_sm80),
  ROW(NSAI_STAGE_DENSE, "dense_sm80", dense_sm80, &nsai_space_flash_sm80),
  { 0 },
};
