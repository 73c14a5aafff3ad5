/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Variants of the attention stages: compressed, selected, window, dense.
 */
#include "plan/spec.h"

#include <math.h>
#include <string.h>

void nsai_constant_add(nsai_kernel_spec *spec, const char *name, int64_t value) {
  spec->constants[spec->constant_count++] = (nsai_constant){ name, value };
}

int32_t nsai_padded_group(const nsai_model *model) {
  int32_t group = model->heads / model->kv_heads, padded = 1;
  while (padded < group) padded *= 2;
  return padded;
}

uint32_t nsai_tile_bytes(int32_t rows, int32_t dim) {
  uint32_t chunks = (uint32_t)(dim + 15) / 16 * 2;
  uint32_t pitch = 16 * (chunks % 8 == 0 ? chunks : (chunks | 1));
  return (uint32_t)rows * pitch;
}

void nsai_legal_common(const nsai_problem *p, nsai_reasons *reasons) {
  if (p->model.dtype == NSA_F32)
    nsai_refuse(
        reasons,
        "model.dtype is f32: GPU kernels take bf16 and fp16, f32 runs with runtime.device: cpu");
}

void nsai_legal_packed(const nsai_problem *p, nsai_reasons *reasons) {
  if (nsai_problem_is_cached(p))
    nsai_refuse(reasons, "keys and values lie in a cache: it reads packed tensors");
}

void nsai_source_add(nsai_kernel_spec *spec, const nsai_problem *p, int32_t stride) {
  bool cached = nsai_problem_is_cached(p);
  nsai_constant_add(spec, "kCached", cached);
  if (cached) nsai_constant_add(spec, "kPageRows", p->page_size / stride);
}

void nsai_group_add(nsai_kernel_spec *spec, const nsai_problem *p) {
  const nsai_model *m = &p->model;
  nsai_constant_add(spec, "kGroup", m->heads / m->kv_heads);
  nsai_constant_add(spec, "kGroupPadded", nsai_padded_group(m));
}

void nsai_heads_add(nsai_kernel_spec *spec, const nsai_problem *p) {
  nsai_constant_add(spec, "kHeadDimQk", p->model.head_dim_qk);
  nsai_constant_add(spec, "kHeadDimV", p->model.head_dim_v);
  nsai_group_add(spec, p);
}

/* The gate MLP hands over logits. */
void nsai_gate_add(nsai_kernel_spec *spec, const nsai_problem *p) {
  int gate = p->op == NSA_OP_DENSE ? 0 : p->model.gate == NSAI_GATE_WEIGHTS ? 1 : 2;
  nsai_constant_add(spec, "kGate", gate);
}

void nsai_blocks_add(nsai_kernel_spec *spec, const nsai_model *m) {
  nsai_constant_add(spec, "kBlock", m->block);
  nsai_constant_add(spec, "kStride", m->stride);
  nsai_constant_add(spec, "kSelectBlock", m->select_block);
  nsai_constant_add(spec, "kSelectCount", m->select_count);
  nsai_constant_add(spec, "kSelectInit", m->select_init);
  nsai_constant_add(spec, "kSelectLocal", m->select_local);
}

/* ---- the flash loop (attend/mainloop_sm80.cuh) ---- */

static nsai_tiles flash_tiles(int32_t rows, int32_t keys, int32_t warps, int32_t blocks) {
  return (nsai_tiles){ { [NSAI_TILE_ROWS] = rows,
                         [NSAI_TILE_KEYS] = keys,
                         [NSAI_TILE_WARPS] = warps,
                         [NSAI_TILE_CTAS] = blocks } };
}

static uint32_t flash_shared(const nsai_model *m, const nsai_tiles *s) {
  int32_t rows = s->of[NSAI_TILE_ROWS], keys = s->of[NSAI_TILE_KEYS];
  return nsai_tile_bytes(rows + keys, m->head_dim_qk) + nsai_tile_bytes(keys, m->head_dim_v);
}

/* Up to Dv 128 a warp holds the O of two m16 tiles, so that every fragment of K and V that it reads
 * feeds two products; beyond, one. Scores of 32 keys fit beside that O on every architecture and
 * for every geometry; those of 64 keys, which are faster, just fit on sm_90 at D 128. (Found by
 * compiling random geometries, which CI goes on doing.) */
static nsai_tiles choose_flash(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  const nsai_model *m = &p->model;
  bool wide = m->head_dim_qk > 192 || m->head_dim_v > 128;
  *by = NSAI_BY_DEFAULT;
  if (t->register_fallback > 1) return flash_tiles(64, 32, 4, 1);
  if (t->register_fallback) return flash_tiles(wide ? 64 : 128, 32, 4, 1);
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
  int32_t warps = s->of[NSAI_TILE_WARPS], blocks = s->of[NSAI_TILE_CTAS];
  if (flash_registers(&p->model, s) > nsai_register_limit(32 * warps * blocks) ||
      !nsai_holds_blocks(t, flash_shared(&p->model, s), blocks))
    return INFINITY;
  double m16 = s->of[NSAI_TILE_ROWS] / (16.0 * warps);
  return 1 + 0.5 / m16 + 6.0 / s->of[NSAI_TILE_KEYS] + (warps * blocks < 8 ? 0.3 : 0);
}

const nsai_space nsai_space_flash_sm80 = {
  4,
  { { NSAI_TILE_ROWS, { 32, 64, 128, 256 }, "Q in shared memory; a tile is masked at its edge" },
    { NSAI_TILE_KEYS, { 32, 64, 128 }, "scores in registers against barriers" },
    { NSAI_TILE_WARPS, { 2, 4, 8 }, "m16 tiles of a warp share its fragments of K and V" },
    { NSAI_TILE_CTAS, { 1, 2, 3, 4 }, "others fill the waits of one; registers are divided" } },
  choose_flash,
  fit_flash,
  cost_flash,
};

static void specify_flash(const nsai_problem *p, const nsai_tiles *s, const char *entry,
                          nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = p->model.dtype,
                              .threads = 32 * s->of[NSAI_TILE_WARPS],
                              .shared_bytes = flash_shared(&p->model, s),
                              .tile_tokens = s->of[NSAI_TILE_ROWS] / nsai_padded_group(&p->model) };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_constant_add(spec, "kRows", s->of[NSAI_TILE_ROWS]);
  nsai_constant_add(spec, "kKeys", s->of[NSAI_TILE_KEYS]);
  nsai_constant_add(spec, "kWarps", s->of[NSAI_TILE_WARPS]);
  nsai_constant_add(spec, "kMinBlocks", s->of[NSAI_TILE_CTAS]);
}

void nsai_legal_attend_compressed_sm80(const nsai_problem *p, const nsai_target *t,
                                       nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

void nsai_specify_attend_compressed_sm80(const nsai_problem *p, const nsai_target *t,
                                         const nsai_tiles *s, nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)t;
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_ATTEND_COMPRESSED];
  specify_flash(p, s, "attend_compressed_sm80", spec);
  nsai_source_add(spec, p, p->model.stride);
  nsai_constant_add(spec, "kBlock", p->model.block);
  nsai_constant_add(spec, "kStride", p->model.stride);
}

void nsai_legal_attend_window_sm80(const nsai_problem *p, const nsai_target *t,
                                   nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

/* Rings have no pages. */
static void add_window_source(nsai_kernel_spec *spec, const nsai_problem *p) {
  nsai_problem seen = *p;
  if (p->window_ring) seen.page_size = 0;
  nsai_source_add(spec, &seen, 1);
}

void nsai_specify_attend_window_sm80(const nsai_problem *p, const nsai_target *t,
                                     const nsai_tiles *s, nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)t;
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_ATTEND_WINDOW];
  specify_flash(p, s, "attend_window_sm80", spec);
  add_window_source(spec, p);
  nsai_constant_add(spec, "kWindow", p->model.window);
}

void nsai_legal_dense_sm80(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

void nsai_specify_dense_sm80(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                             nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)t;
  specify_flash(p, s, "attend_dense_sm80", &specs[NSAI_KERNEL_DENSE]);
}

void nsai_legal_selects_all(const nsai_problem *p, nsai_reasons *reasons) {
  if (nsai_problem_is_cached(p))
    nsai_legal_packed(p, reasons);
  else if (p->selection != NSA_SELECT_OWN)
    nsai_refuse(reasons, "the caller brings the selection: it may leave blocks out");
  else if (!nsai_problem_selects_all(p))
    nsai_refuse(reasons,
                "max_kv_len %lld is beyond %lld tokens (thresholds.select_dense_below, at most "
                "count * block): "
                "blocks are left out",
                (long long)p->max_kv_len, (long long)p->select_dense_below);
}

void nsai_legal_attend_selected_dense_sm80(const nsai_problem *p, const nsai_target *t,
                                           nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  nsai_legal_selects_all(p, reasons);
}

void nsai_specify_attend_selected_dense_sm80(const nsai_problem *p, const nsai_target *t,
                                             const nsai_tiles *s,
                                             nsai_kernel_spec specs[NSAI_ROLES]) {
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_ATTEND_SELECTED];
  (void)t;
  specify_flash(p, s, "attend_dense_sm80", spec);
  spec->reads_no_lists = true;
}

/* ---- attend_selected_sm80 ---- */

static nsai_tiles selected_tiles(int32_t warps, int32_t keys, int32_t stages, int32_t blocks) {
  return (nsai_tiles){ { [NSAI_TILE_KEYS] = keys,
                         [NSAI_TILE_WARPS] = warps,
                         [NSAI_TILE_STAGES] = stages,
                         [NSAI_TILE_CTAS] = blocks } };
}

/* Whether a multiprocessor has shared memory for two blocks of a portable variant. Two rings and
 * two producer warps hide more of the latency of scattered reads than one of twice the warps. */
static bool holds_two_blocks(const nsai_target *t) {
  return t->shared_bytes >= 2 * NSAI_PORTABLE_SHARED_BYTES;
}

/* Beyond this many padded columns of Q and O together, Q lives in shared memory:
 * KernelTraits::kQueryInRegisters. */
#define SELECTED_REGISTER_COLUMNS 320

static int32_t selected_columns(const nsai_model *m) {
  return nsai_padded_dim(m->head_dim_qk) + nsai_padded_dim(m->head_dim_v);
}

/* One warp holds one m16 tile: 16 rows of O and the scores in registers, Q too up to Dk + Dv 320.
 * Nine warps get 168 registers from the compiler; where the key bits of 128 tokens (G 1) would not
 * fit beside three stages, or O needs more registers, there are five: also beside the longest Q in
 * registers where it ends within 16 columns (Dk 184, Dv 120 and 128; NVRTC 13.0). */
static nsai_tiles choose_selected_tiles(const nsai_model *m, const nsai_target *t,
                                        nsai_decider *by) {
  int32_t columns = m->head_dim_qk + m->head_dim_v;
  *by = NSAI_BY_DEFAULT;
  bool single = m->heads == m->kv_heads;
  if (t->register_fallback)
    return selected_tiles(4, t->register_fallback > 1 || columns > 320 ? 16 : 32, 3, 1);
  if (m->head_dim_qk > 192 || m->head_dim_v > 128) return selected_tiles(4, 16, 4, 1);
  bool most = selected_columns(m) == SELECTED_REGISTER_COLUMNS && m->head_dim_qk % 16;
  if (columns > 256) return selected_tiles(single || most ? 4 : 8, 32, 4, 1);
  /* Two blocks of five consumer warps and a producer are three warps a scheduler, the most at 168
   * registers: 6 % (random) to 10 % (correlated) faster than four consumers (H200, 64k). */
  int32_t warps = nsai_padded_group(m) <= 16 ? 5 : 4; /* a block holds whole tokens */
  if (columns > 128 && holds_two_blocks(t)) {
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

/* Bytes of the Place that the kernel keeps in shared memory, and of one ring stage's barriers and
 * end mark. */
#define SELECTED_POSITION_BYTES 24
#define SELECTED_STAGE_BYTES 20

static uint32_t selected_shared(const nsai_model *m, const nsai_tiles *s) {
  int32_t keys = s->of[NSAI_TILE_KEYS], rows = 16 * s->of[NSAI_TILE_WARPS];
  uint32_t bits = (uint32_t)(rows / nsai_padded_group(m) * (keys > 32 ? 8 : 4));
  uint32_t stage =
      nsai_tile_bytes(keys, m->head_dim_qk) + nsai_tile_bytes(keys, m->head_dim_v) + bits;
  uint32_t q =
      selected_columns(m) > SELECTED_REGISTER_COLUMNS ? nsai_tile_bytes(rows, m->head_dim_qk) : 0;
  uint32_t bytes = q + (uint32_t)s->of[NSAI_TILE_STAGES] * (stage + SELECTED_STAGE_BYTES) +
                   SELECTED_POSITION_BYTES;
  return (bytes + 15) / 16 * 16;
}

/* Rows of a tile lie in an odd number of 16-byte chunks where 64 columns do not divide them, so
 * that a few head dims (Dk 136, Dv 112) need more than three stages of 64 keys may have. */
static nsai_tiles choose_selected(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  nsai_tiles s = choose_selected_tiles(&p->model, t, by);
  if (selected_shared(&p->model, &s) <= NSAI_PORTABLE_SHARED_BYTES) return s;
  return selected_tiles(s.of[NSAI_TILE_WARPS], 32, 4, s.of[NSAI_TILE_CTAS]);
}

static void fit_selected(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                         nsai_reasons *reasons) {
  int32_t rows = 16 * s->of[NSAI_TILE_WARPS], group = nsai_padded_group(&p->model);
  if (rows % group)
    nsai_refuse(reasons, "the %d rows of %d warps hold no whole tokens of %d heads", rows,
                s->of[NSAI_TILE_WARPS], group);
  nsai_fit_shared(t, selected_shared(&p->model, s), reasons);
}

/* O, the scores of a step, Q where it is held, and what else the loop holds. */
static int32_t selected_registers(const nsai_model *m, const nsai_tiles *s) {
  int32_t step = s->of[NSAI_TILE_KEYS] < 32 ? s->of[NSAI_TILE_KEYS] : 32;
  int32_t q =
      selected_columns(m) > SELECTED_REGISTER_COLUMNS ? 0 : nsai_padded_dim(m->head_dim_qk) / 4;
  return nsai_padded_dim(m->head_dim_v) / 2 + step / 2 + q + 40;
}

/* A ring that holds more bytes hides more of the latency of scattered reads; more consumers share
 * what one producer reads. */
static double cost_selected(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  int32_t warps = s->of[NSAI_TILE_WARPS], blocks = s->of[NSAI_TILE_CTAS];
  if (selected_registers(&p->model, s) > nsai_register_limit(32 * (warps + 1) * blocks) ||
      !nsai_holds_blocks(t, selected_shared(&p->model, s), blocks))
    return INFINITY;
  double flying = (double)blocks * s->of[NSAI_TILE_STAGES] * s->of[NSAI_TILE_KEYS];
  return 1 + 200.0 / flying + 4.0 / (warps * blocks);
}

const nsai_space nsai_space_selected_sm80 = {
  4,
  { { NSAI_TILE_KEYS, { 16, 32, 64 }, "keys of a stage: whole lines in flight against waste" },
    { NSAI_TILE_WARPS, { 2, 4, 5, 6, 8 }, "m16 tiles that share what the producer reads" },
    { NSAI_TILE_STAGES, { 2, 3, 4, 6 }, "reads in flight" },
    { NSAI_TILE_CTAS, { 1, 2, 3 }, "producers on a multiprocessor; registers are divided" } },
  choose_selected,
  fit_selected,
  cost_selected,
};

void nsai_legal_attend_selected_sm80(const nsai_problem *p, const nsai_target *t,
                                     nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

void nsai_specify_sort(const nsai_problem *p, nsai_kernel_spec *spec) {
  bool ranges = p->selection == NSA_SELECT_RANGES;
  *spec = (nsai_kernel_spec){ .entry = ranges ? "data_sort_ranges" : "data_sort_blocks",
                              .dtype = p->model.dtype,
                              .threads = 128 };
  if (!ranges) nsai_constant_add(spec, "kSelectBlock", p->model.select_block);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kMinBlocks", 1);
  nsai_constant_add(spec, "kCached", nsai_problem_is_cached(p));
}

void nsai_lists_add(nsai_kernel_spec specs[NSAI_ROLES], const nsai_problem *p) {
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_ATTEND_SELECTED];
  nsai_constant_add(spec, "kSelectBlock", p->model.select_block);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kRanges", p->selection == NSA_SELECT_RANGES);
  if (p->selection != NSA_SELECT_OWN) nsai_specify_sort(p, &specs[NSAI_KERNEL_SORT]);
}

void nsai_specify_attend_selected_sm80(const nsai_problem *p, const nsai_target *t,
                                       const nsai_tiles *s, nsai_kernel_spec specs[NSAI_ROLES]) {
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_ATTEND_SELECTED];
  int32_t warps = s->of[NSAI_TILE_WARPS];
  (void)t;
  *spec = (nsai_kernel_spec){ .entry = "attend_selected_sm80",
                              .dtype = p->model.dtype,
                              .threads = 32 * (warps + 1),
                              .shared_bytes = selected_shared(&p->model, s),
                              .tile_tokens = 16 * warps / nsai_padded_group(&p->model) };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_constant_add(spec, "kKeys", s->of[NSAI_TILE_KEYS]);
  nsai_constant_add(spec, "kWarps", warps);
  nsai_constant_add(spec, "kStages", s->of[NSAI_TILE_STAGES]);
  nsai_constant_add(spec, "kMinBlocks", s->of[NSAI_TILE_CTAS]);
  nsai_lists_add(specs, p);
  nsai_source_add(spec, p, 1);
}

/* ---- dense_gemm ---- */

void nsai_legal_dense_gemm(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  if (p->max_seqs > 1)
    nsai_refuse(
        reasons,
        "max_seqs is %d: lengths are read on the device, its products need them on the host",
        p->max_seqs);
}

bool nsai_sensible_dense_gemm(const nsai_problem *p, const nsai_target *t) {
  (void)p;
  (void)t;
  return false; /* scores through memory: a baseline to measure against, never the choice */
}

void nsai_specify_dense_gemm(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                             nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)t;
  (void)s;
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_SOFTMAX];
  *spec = (nsai_kernel_spec){ .entry = "attend_causal_softmax",
                              .dtype = p->model.dtype,
                              .threads = 256 };
  nsai_constant_add(spec, "kMinBlocks", 1);
}
