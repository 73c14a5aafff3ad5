/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Variants of the attention stages: compressed, selected, window, dense.
 */
#include "stages.h"

#include <string.h>

void nsai_constant_add(nsai_kernel_spec *spec, const char *name, int64_t value) {
  spec->constants[spec->constant_count++] = (nsai_constant){ name, value };
}

int32_t nsai_padded_group(const nsai_geometry *model) {
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

/* Constants that every attention kernel has. */
static void add_heads(nsai_kernel_spec *spec, const nsai_problem *p) {
  const nsai_geometry *m = &p->model;
  nsai_constant_add(spec, "kHeadDimQk", m->head_dim_qk);
  nsai_constant_add(spec, "kHeadDimV", m->head_dim_v);
  nsai_constant_add(spec, "kGroup", m->heads / m->kv_heads);
  nsai_constant_add(spec, "kGroupPadded", nsai_padded_group(m));
}

/* Config::kGate: how the epilogue reads a gate. The gate MLP hands over logits. */
static void add_gate(nsai_kernel_spec *spec, const nsai_problem *p) {
  int gate = p->op == NSA_OP_DENSE ? 0 : p->model.gate == NSAI_GATE_WEIGHTS ? 1 : 2;
  nsai_constant_add(spec, "kGate", gate);
}

/* Tile sizes of the flash loop (common/flash.cuh). */
typedef struct flash_shape {
  int32_t rows, keys, warps, blocks; /* query rows, keys, warps, blocks per multiprocessor */
} flash_shape;

static uint32_t flash_shared(const nsai_geometry *m, const flash_shape *s) {
  return nsai_tile_bytes(s->rows + s->keys, m->head_dim_qk) +
         nsai_tile_bytes(s->keys, m->head_dim_v);
}

/* Up to Dv 128 a warp holds the O of two m16 tiles, so that every fragment of K and V that it reads
 * feeds two products; beyond, one. Scores of 32 keys fit beside that O on every architecture and
 * for every geometry; those of 64 keys, which are faster, just fit on sm_90 at D 128. (Found by
 * compiling random geometries, which CI goes on doing.) */
static flash_shape choose_flash(const nsai_geometry *m, const nsai_target *t) {
  bool wide = m->head_dim_qk > 192 || m->head_dim_v > 128;
  if (t->caution > 1) return (flash_shape){ 64, 32, 4, 1 };
  if (t->caution) return (flash_shape){ wide ? 64 : 128, 32, 4, 1 };
  if (wide) return (flash_shape){ 64, 64, 4, 2 };
  if (m->head_dim_v <= 64) return (flash_shape){ 128, 64, 4, 2 };
  bool fits = nsai_target_major(t) == 9 && m->head_dim_qk == 128 && m->head_dim_v == 128;
  return (flash_shape){ 128, fits ? 64 : 32, 4, 2 };
}

static void specify_flash(const nsai_problem *p, const nsai_target *t, const char *entry,
                          nsai_kernel_spec *spec) {
  flash_shape s = choose_flash(&p->model, t);
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = p->model.dtype,
                              .threads = 32 * s.warps,
                              .shared_bytes = flash_shared(&p->model, &s),
                              .tokens = s.rows / nsai_padded_group(&p->model) };
  add_heads(spec, p);
  add_gate(spec, p);
  nsai_constant_add(spec, "kRows", s.rows);
  nsai_constant_add(spec, "kKeys", s.keys);
  nsai_constant_add(spec, "kWarps", s.warps);
  nsai_constant_add(spec, "kMinBlocks", s.blocks);
}

void nsai_legal_attend_compressed_mma(const nsai_problem *p, const nsai_target *t,
                                      nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

void nsai_specify_attend_compressed_mma(const nsai_problem *p, const nsai_target *t,
                                        nsai_kernel_spec specs[NSAI_ROLES]) {
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_ATTEND_COMPRESSED];
  specify_flash(p, t, "attend_compressed_mma", spec);
  nsai_constant_add(spec, "kBlock", p->model.block);
  nsai_constant_add(spec, "kStride", p->model.stride);
}

void nsai_legal_attend_window_mma(const nsai_problem *p, const nsai_target *t,
                                  nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

void nsai_specify_attend_window_mma(const nsai_problem *p, const nsai_target *t,
                                    nsai_kernel_spec specs[NSAI_ROLES]) {
  specify_flash(p, t, "attend_window_mma", &specs[NSAI_KERNEL_ATTEND_WINDOW]);
  nsai_constant_add(&specs[NSAI_KERNEL_ATTEND_WINDOW], "kWindow", p->model.window);
}

void nsai_legal_dense_mma(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

void nsai_specify_dense_mma(const nsai_problem *p, const nsai_target *t,
                            nsai_kernel_spec specs[NSAI_ROLES]) {
  specify_flash(p, t, "dense_mma", &specs[NSAI_KERNEL_DENSE]);
}

void nsai_legal_selected_dense_mma(const nsai_problem *p, const nsai_target *t,
                                   nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  if (p->selection != NSA_SELECT_OWN)
    nsai_refuse(reasons, "the caller brings the selection: it may leave blocks out");
  else if (!nsai_problem_selects_all(p))
    nsai_refuse(reasons,
                "max_kv_len %lld is beyond %lld tokens (thresholds.select_dense_below, at most "
                "count * block): "
                "blocks are left out",
                (long long)p->max_kv_len, (long long)p->select_dense_below);
}

void nsai_specify_selected_dense_mma(const nsai_problem *p, const nsai_target *t,
                                     nsai_kernel_spec specs[NSAI_ROLES]) {
  specify_flash(p, t, "dense_mma", &specs[NSAI_KERNEL_ATTEND_SELECTED]);
}

/* ---- attend_selected_mma ---- */

typedef struct union_shape {
  int32_t warps, keys, stages,
      blocks; /* consumer warps, keys of a tile, ring stages, blocks per multiprocessor */
} union_shape;

static int32_t padded(int32_t dim) { return (dim + 15) / 16 * 16; }

/* Whether a multiprocessor has shared memory for two blocks of a portable variant. Two rings and
 * two producer warps hide more of the latency of scattered reads than one of twice the warps. */
static bool holds_two_blocks(const nsai_target *t) {
  return t->shared_bytes >= 2 * NSAI_PORTABLE_SHARED_BYTES;
}

/* One warp holds one m16 tile: 16 rows of O and the scores in registers, Q too up to Dk + Dv 320.
 * Nine warps get 168 registers from the compiler; where the key bits of 128 tokens (G 1) would not
 * fit beside three stages, or O needs more registers, there are five. */
static union_shape choose_union(const nsai_geometry *m, const nsai_target *t) {
  int32_t columns = m->head_dim_qk + m->head_dim_v;
  bool single = m->heads == m->kv_heads;
  if (t->caution) return (union_shape){ 4, t->caution > 1 || columns > 320 ? 16 : 32, 3, 1 };
  if (m->head_dim_qk > 192 || m->head_dim_v > 128) return (union_shape){ 4, 16, 4, 1 };
  if (columns > 256) return (union_shape){ single ? 4 : 8, 32, 4, 1 };
  /* Two blocks of five consumer warps and a producer are three warps a scheduler, the most at 168
   * registers: 6 % (random) to 10 % (correlated) faster than four consumers (H200, 64k). */
  int32_t warps = nsai_padded_group(m) <= 16 ? 5 : 4; /* a block holds whole tokens */
  if (columns > 128 && holds_two_blocks(t)) return (union_shape){ warps, 64, 3, 2 };
  if (columns > 128) return (union_shape){ single ? 4 : 8, 64, 3, 1 };
  return (union_shape){ 8, 64, 4, 1 };
}

/* Bytes of the Place that the kernel keeps in shared memory, and of one ring stage's barriers and
 * end mark. */
#define UNION_PLACE_BYTES 24
#define UNION_STAGE_BYTES 20

/* Beyond this many padded columns of Q and O together, Q lives in shared memory:
 * Plan::kQueryInRegisters. */
#define UNION_REGISTER_COLUMNS 320

static uint32_t union_shared(const nsai_geometry *m, const union_shape *s) {
  int32_t columns = padded(m->head_dim_qk) + padded(m->head_dim_v),
          tokens = 16 * s->warps / nsai_padded_group(m);
  uint32_t bits = (uint32_t)(tokens * (s->keys > 32 ? 8 : 4));
  uint32_t stage =
      nsai_tile_bytes(s->keys, m->head_dim_qk) + nsai_tile_bytes(s->keys, m->head_dim_v) + bits;
  uint32_t q =
      columns > UNION_REGISTER_COLUMNS ? nsai_tile_bytes(16 * s->warps, m->head_dim_qk) : 0;
  uint32_t bytes = q + (uint32_t)s->stages * (stage + UNION_STAGE_BYTES) + UNION_PLACE_BYTES;
  return (bytes + 15) / 16 * 16;
}

/* Rows of a tile lie in an odd number of 16-byte chunks where 64 columns do not divide them, so
 * that a few head dims (Dk 136, Dv 112) need more than three stages of 64 keys may have. */
static union_shape fit_union(const nsai_geometry *m, union_shape s) {
  if (union_shared(m, &s) <= NSAI_PORTABLE_SHARED_BYTES) return s;
  return (union_shape){ s.warps, 32, 4, s.blocks };
}

void nsai_legal_attend_selected_mma(const nsai_problem *p, const nsai_target *t,
                                    nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

static void specify_sort(const nsai_problem *p, nsai_kernel_spec *spec) {
  bool ranges = p->selection == NSA_SELECT_RANGES;
  *spec = (nsai_kernel_spec){ .entry = ranges ? "sort_ranges" : "sort_blocks",
                              .dtype = p->model.dtype,
                              .threads = 128 };
  if (!ranges) nsai_constant_add(spec, "kSelectBlock", p->model.select_block);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kMinBlocks", 1);
}

void nsai_specify_attend_selected_mma(const nsai_problem *p, const nsai_target *t,
                                      nsai_kernel_spec specs[NSAI_ROLES]) {
  union_shape s = fit_union(&p->model, choose_union(&p->model, t));
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_ATTEND_SELECTED];
  *spec = (nsai_kernel_spec){ .entry = "attend_selected_mma",
                              .dtype = p->model.dtype,
                              .threads = 32 * (s.warps + 1),
                              .shared_bytes = union_shared(&p->model, &s),
                              .tokens = 16 * s.warps / nsai_padded_group(&p->model) };
  add_heads(spec, p);
  add_gate(spec, p);
  nsai_constant_add(spec, "kKeys", s.keys);
  nsai_constant_add(spec, "kWarps", s.warps);
  nsai_constant_add(spec, "kStages", s.stages);
  nsai_constant_add(spec, "kMinBlocks", s.blocks);
  nsai_constant_add(spec, "kSelectBlock", p->model.select_block);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kRanges", p->selection == NSA_SELECT_RANGES);
  if (p->selection != NSA_SELECT_OWN) specify_sort(p, &specs[NSAI_KERNEL_SORT]);
}

/* ---- sdpa_gemm ---- */

void nsai_legal_sdpa_gemm(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  if (p->max_seqs > 1)
    nsai_refuse(
        reasons,
        "max_seqs is %d: lengths are read on the device, its products need them on the host",
        p->max_seqs);
}

bool nsai_sensible_sdpa_gemm(const nsai_problem *p, const nsai_target *t) {
  (void)p;
  (void)t;
  return false; /* scores through memory: a baseline to measure against, never the choice */
}

void nsai_specify_sdpa_gemm(const nsai_problem *p, const nsai_target *t,
                            nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)t;
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_SOFTMAX];
  *spec = (nsai_kernel_spec){ .entry = "causal_softmax", .dtype = p->model.dtype, .threads = 256 };
  nsai_constant_add(spec, "kMinBlocks", 1);
}
