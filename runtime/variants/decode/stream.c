/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/decode/stream.h"

#include "base/math.h"

#include <string.h>

bool nsai_decode_has_wgmma(const nsai_problem *p, const nsai_target *t) {
  return !strcmp(t->arch, "sm_90a") && t->register_fallback < NSAI_LAST_RESORT &&
         !nsai_problem_has_codes(p);
}

bool nsai_decode_is_plain(const nsai_problem *p) {
  const nsai_model *m = &p->model;
  return !p->count_reads && nsai_padded_group(m) % NSAI_DECODE_ROWS == 0 &&
         NSAI_DECODE_STEP % (m->select_block / m->stride) == 0;
}

bool nsai_decode_has_narrow_panels(const nsai_problem *p, const nsai_target *t) {
  const nsai_model *m = &p->model;
  return nsai_decode_has_wgmma(p, t) && !t->register_fallback && m->head_dim_qk == 128 &&
         m->head_dim_v == 128 && nsai_decode_is_plain(p) &&
         m->select_block % (2 * NSAI_DECODE_STEP) == 0;
}

/* All heads of as many drafts as fit 64 rows, or 128 of two warpgroups. Of wide heads 32, so
 * that two warps hold them: two stages of four fit no CTA of 99 KB. A warpgroup takes 64,
 * whoever is there of more than a warp's. With register_fallback wide heads have a warp's 16,
 * whose tokens each attend alone: those of many take all registers. */
int32_t nsai_decode_tile_rows(const nsai_problem *p, const nsai_target *t) {
  bool wide = nsai_decode_has_wide_heads(&p->model);
  bool pairs = nsai_decode_has_narrow_panels(p, t) && p->selection != NSA_SELECT_RANGES;
  int32_t rows = NSAI_DECODE_ROWS, group = nsai_padded_group(&p->model);
  int32_t most = (wide ? t->register_fallback ? 1 : 2 : pairs ? 8 : 4) * NSAI_DECODE_ROWS;
  while (rows < group || (rows < p->max_q_len * group && rows < most)) rows *= 2;
  return rows == 2 * NSAI_DECODE_ROWS && nsai_decode_has_wgmma(p, t) && !wide
             ? NSAI_DECODE_PANEL_ROWS
             : rows;
}

int32_t nsai_decode_tile_room(const nsai_problem *p, const nsai_target *t) {
  return nsai_decode_tile_rows(p, t) / nsai_padded_group(&p->model);
}

int32_t nsai_decode_tile_tokens(const nsai_problem *p, const nsai_target *t) {
  return (int32_t)nsai_smaller(nsai_decode_tile_room(p, t), p->max_q_len);
}

int32_t nsai_decode_token_rows(const nsai_problem *p) {
  return (int32_t)nsai_larger(nsai_padded_group(&p->model), NSAI_DECODE_ROWS);
}

nsai_tiles nsai_decode_stream_tiles(int32_t warps, int32_t stages, int32_t ctas) {
  return (nsai_tiles){
    { [NSAI_TILE_WARPS] = warps, [NSAI_TILE_STAGES] = stages, [NSAI_TILE_CTAS] = ctas }
  };
}

/* kDrafts of decode/consumer_groups.cuh: a group takes two steps at once, with Q in shared
 * memory. */
static bool has_drafts(const nsai_model *m, int32_t rows) {
  return nsai_decode_stage_steps(m, rows) > 1;
}

bool nsai_decode_has_panels(const nsai_problem *p, const nsai_target *t, int32_t rows) {
  return nsai_decode_has_wgmma(p, t) && has_drafts(&p->model, rows) &&
         rows % NSAI_DECODE_PANEL_ROWS == 0;
}

int32_t nsai_decode_stream_bytes(const nsai_problem *p, const nsai_target *t, int32_t rows,
                                 const nsai_tiles *s, int32_t dtype) {
  const nsai_model *m = &p->model;
  const bool panels = nsai_decode_has_panels(p, t, rows);
  int32_t groups = s->of[NSAI_TILE_WARPS] / (rows / NSAI_DECODE_ROWS);
  int32_t keys = NSAI_DECODE_STEP * nsai_decode_stage_steps(m, rows); /* of a stage */
  bool shared_q = nsai_decode_has_shared_q(m) || has_drafts(m, rows);
  return nsai_smem_key_stream(panels, shared_q, rows, groups, s->of[NSAI_TILE_STAGES], keys,
                              m->head_dim_qk, m->head_dim_v, dtype == NSA_E4M3);
}

int32_t nsai_decode_pool_bytes(const nsai_model *m, int32_t keys, int32_t warps) {
  const bool quads = m->select_block / m->stride == 4 && m->block / m->stride <= 2;
  return quads ? 0 : nsai_smem_scan_pool(warps, keys);
}

void nsai_decode_work_add(nsai_kernel_spec *spec, const nsai_request *r) {
  const nsai_model *m = &r->problem->model;
  nsai_group_add(spec, r->problem);
  nsai_constant_add(spec, "kBlock", m->block);
  nsai_constant_add(spec, "kStride", m->stride);
  nsai_constant_add(spec, "kSelectBlock", m->select_block);
  nsai_constant_add(spec, "kScanRows", nsai_decode_tile_rows(r->problem, r->target));
  nsai_constant_add(spec, "kWarps", r->tiles->of[NSAI_TILE_WARPS]);
}

void nsai_decode_stream_add(nsai_kernel_spec *spec, const nsai_request *r) {
  const nsai_problem *p = r->problem;
  spec->dtype = p->model.dtype;
  spec->threads = 32 * r->tiles->of[NSAI_TILE_WARPS];
  nsai_decode_work_add(spec, r);
  nsai_constant_add(spec, "kHeadDimQk", p->model.head_dim_qk);
  nsai_constant_add(spec, "kHeadDimV", p->model.head_dim_v);
  nsai_constant_add(spec, "kPageSize", p->page_size);
  nsai_constant_add(spec, "kStages", r->tiles->of[NSAI_TILE_STAGES]);
  nsai_constant_add(spec, "kMinBlocks", r->tiles->of[NSAI_TILE_CTAS]);
  nsai_constant_add(spec, "kWgmma", nsai_decode_has_wgmma(p, r->target));
  nsai_constant_add(spec, "kCountReads", p->count_reads);
}

void nsai_decode_entry_codes_add(nsai_kernel_spec *spec, const nsai_problem *p) {
  nsai_constant_add(spec, "kEntryCodes", p->cmp_dtype == NSA_E4M3);
}

void nsai_decode_raw_codes_add(nsai_kernel_spec *spec, const nsai_problem *p) {
  nsai_constant_add(spec, "kRawCodes", p->kv_dtype == NSA_E4M3);
}

void nsai_decode_legal_codes(const nsai_problem *p, nsai_reasons *reasons) {
  if (p->cmp_dtype && !p->kv_dtype)
    nsai_refuse(
        reasons,
        "problem.cmp_dtype is e4m3 and problem.kv_dtype is not, for which it has no pipeline: "
        "take decode_split_kv");
}

void nsai_decode_legal_ranks(const nsai_problem *p, nsai_reasons *reasons) {
  if (p->ranks)
    nsai_refuse(reasons,
                "problem.ranks is %d, and one launch has no place for an exchange: take "
                "decode_split_kv",
                p->ranks);
}
