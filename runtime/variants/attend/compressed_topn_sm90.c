/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * attend_compressed_topn_sm90: the compressed branch, importance and the top-n in one kernel
 * (sm_90a). attend_compressed_topn_expanded_sm90: the same over a cache in codes that another kernel
 * expands first.
 */
#include "variants/attend/compressed.h"
#include "variants/attend/expanded.h"

#include "base/math.h"

#include <string.h>

enum { TOPN, KERNELS, EXPAND = KERNELS, EXPANDED_KERNELS };
enum {
  SCRATCH,
  BUFFERS,
  K = BUFFERS,
  V,
  EXPANDED_BUFFERS
};                               /* scratch of every CTA; fp16 entries */
enum { SCRATCH_BYTES, NUMBERS }; /* of one CTA */

/* The kernel's KernelTraits. */
#define ROWS 128
#define KEYS 128
#define STAGES 2
#define THREADS 512
#define MOST_QUERIES 2 /* tiles: one that is computed, one that arrives */
#define MOST_DEPTH 2   /* pieces of a selector: one on its way */
#define LEAST_DEPTH 1
#define MOST_OVERLAP 4      /* keys of the tile before, in registers */
#define MOST_HEAD_DIM_V 128 /* O, in registers */
#define MOST_FREE 32        /* the best, in registers: one a lane */
#define MOST_ROW_FREE 16    /* of groups of one head: all in one lane */

/* Selection blocks of a tile of keys. */
static int32_t tile_blocks(const nsai_model *m) { return KEYS * m->stride / m->select_block; }

static uint32_t shared_bytes(const nsai_problem *p, int32_t queries, int32_t depth) {
  const nsai_model *m = &p->model;
  return nsai_smem_compressed_topn(queries, depth, tile_blocks(m), nsai_padded_group(m),
                                   m->head_dim_qk, m->head_dim_v, nsai_problem_is_cached(p));
}

/* What is of use and fits: Q of the next tile is worth more than a piece. */
static void choose_depths(const nsai_problem *p, const nsai_target *t, int32_t *queries,
                          int32_t *depth) {
  for (*queries = MOST_QUERIES; *queries > 1; --*queries)
    for (*depth = MOST_DEPTH; *depth >= LEAST_DEPTH; --*depth)
      if (shared_bytes(p, *queries, *depth) <= t->shared_bytes) return;
  *depth = shared_bytes(p, 1, MOST_DEPTH) <= t->shared_bytes ? MOST_DEPTH : LEAST_DEPTH;
}

/* Bytes of Scratch<Config>. */
static int64_t scratch_bytes(const nsai_problem *p) {
  const nsai_model *m = &p->model;
  uint64_t blocks = (uint64_t)tile_blocks(m);
  uint64_t candidates = (uint64_t)nsai_select_block_count(m, p->max_kv_len);
  uint64_t tiles = (candidates + blocks - 1) / blocks;
  uint64_t tokens = (uint64_t)(ROWS / nsai_padded_group(m));
  uint64_t parts = blocks > 32 ? blocks / 32 : 1;
  /* Of one head, two lists of pairs of blocks for each row: attend/topn_rows.cuh. */
  if (nsai_padded_group(m) == 1) return (int64_t)(2 * tiles * (blocks / 2) * ROWS * 16);
  uint64_t floats = ROWS + tiles * (ROWS * blocks + ROWS * parts + 2 * tokens * blocks);
  return (int64_t)((4 * floats + 255) / 256 * 256);
}

/* What the registers hold, found by compiling (NVRTC 13.0): two strides a block are twice as many
 * sums, groups that span warps need more in the selectors. */
static void check_registers(const nsai_model *m, nsai_reasons *reasons) {
  int32_t ratio = m->select_block / m->stride, overlap = m->block / m->stride;
  int32_t group = nsai_padded_group(m);
  bool wide = m->head_dim_v > 64, holds = true;
  if (ratio == 2) holds = wide ? overlap == 1 && (group == 8 || group == 16) : group <= 16;
  if (ratio != 2 && group > 16 && wide) holds = ratio == 4 && overlap <= 3;
  /* P as the sum of two bf16 (kSplitP) takes more of the consumers' registers. */
  if (ratio == 2 && m->dtype == NSA_BF16 && m->head_dim_v < 64) holds = holds && group > 4;
  if (group <= 2 && m->dtype == NSA_BF16 && m->head_dim_v < 64) holds = false;
  /* Fewer columns of Q than of O: fp16 alone spilled. */
  if (wide && m->dtype == NSA_F16 && m->head_dim_qk < m->head_dim_v) holds = false;
  if (!holds)
    nsai_refuse(reasons,
                "blocks of %d and %d strides with groups of %d heads and head_dim_v %d need more "
                "registers than there are",
                overlap, ratio, m->heads / m->kv_heads, m->head_dim_v);
}

static void check_model(const nsai_model *m, nsai_reasons *reasons) {
  int32_t ratio = m->select_block / m->stride, overlap = m->block / m->stride;
  int32_t group = m->heads / m->kv_heads, free = nsai_free_blocks(m);
  if (group == 1 && ratio != 4)
    nsai_refuse(reasons, "selection blocks of %d strides: with groups of one head 4 are taken",
                ratio);
  if (ratio < 2 || ratio > 32 || 32 % ratio)
    nsai_refuse(reasons,
                "selection blocks of %d strides: a thread holds 32 adjacent compressed keys, which "
                "must be whole blocks of 2 at least",
                ratio);
  if (overlap > MOST_OVERLAP)
    nsai_refuse(reasons, "compression blocks of %d strides: at most %d are taken", overlap,
                MOST_OVERLAP);
  if (m->head_dim_qk % 32 || m->head_dim_v % 32)
    nsai_refuse(reasons, "head dims %d and %d: multiples of 32 are taken", m->head_dim_qk,
                m->head_dim_v);
  if (m->head_dim_v > MOST_HEAD_DIM_V)
    nsai_refuse(reasons, "head_dim_v %d: at most %d is taken", m->head_dim_v, MOST_HEAD_DIM_V);
  if (free < 1) nsai_refuse(reasons, "every block it would choose is a forced one");
  int32_t most = group == 1 ? MOST_ROW_FREE : MOST_FREE;
  if (free > most)
    nsai_refuse(reasons, "chooses %d blocks beside the forced ones: at most %d are taken", free,
                most);
}

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  nsai_legal_common(p, reasons);
  nsai_legal_ranking(p, "attend_compressed_sm90 and importance_sm80", reasons);
  if (strcmp(t->arch, "sm_90a"))
    nsai_refuse(reasons, "needs wgmma and the registers' division of sm_90a, the target is %s",
                t->arch);
  if (p->selection != NSA_SELECT_TOPN || !p->model.select_count) {
    nsai_refuse(reasons, "the library makes no selection here");
    return;
  }
  int before = reasons->count;
  check_model(&p->model, reasons);
  if (reasons->count == before) check_registers(&p->model, reasons);
  int32_t queries, depth;
  choose_depths(p, t, &queries, &depth);
  uint32_t bytes = shared_bytes(p, queries, depth);
  nsai_fit_cta(t, bytes, reasons);
}

/* Tokens from which on it is the faster way. (H200, forwards of random / correlated lists, G 16, by
 * attend_compressed_sm90, importance_sm90 and select_topn / by this: 1.5k 0.192 / 0.184 and
 * 0.193 / 0.183 ms, 2k 0.277 / 0.262 and 0.267 / 0.255, 3k 0.462 / 0.437 and 0.421 / 0.397.) Shorter
 * ones choose every block of this model; for models that choose fewer blocks this is a guess. */
#define SHORTEST 1024

/* Tokens of a sequence up to which lists of single heads take a GiB of workspace. */
#define LONGEST_SINGLE (1 << 18)

/* Where every block is chosen there is no importance to be had for nothing. It just fits the
 * registers and has no smaller tiles for other compilers. */
static bool sensible(const nsai_problem *p, const nsai_target *t) {
  const bool fits = nsai_padded_group(&p->model) > 1 || p->max_kv_len <= LONGEST_SINGLE;
  return !t->register_fallback && !nsai_problem_selects_all(p) && p->max_kv_len > SHORTEST && fits;
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  nsai_kernel_spec *spec = &kernel[TOPN];
  int32_t group = nsai_padded_group(m), queries, depth;
  choose_depths(p, r->target, &queries, &depth);
  *spec = (nsai_kernel_spec){ .entry = "attend_compressed_topn_sm90",
                              .dtype = m->dtype,
                              .threads = THREADS,
                              .shared_bytes = shared_bytes(p, queries, depth),
                              .tile_tokens = ROWS / group,
                              .ctas_per_sm = 1,
                              .tma_box_heads = group,
                              .tma_box_tokens = ROWS / 2 / group,
                              .tma_box_keys = KEYS,
                              .interleaved_keys = true,
                              .compile_cost = 950 };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_constant_add(spec, "kRows", ROWS);
  nsai_constant_add(spec, "kKeys", KEYS);
  nsai_constant_add(spec, "kStages", STAGES);
  nsai_constant_add(spec, "kQueryStages", queries);
  nsai_constant_add(spec, "kDepth", depth);
  nsai_constant_add(spec, "kMinBlocks", 1);
  nsai_blocks_add(spec, m);
  nsai_source_add(spec, p, m->stride);
  nsai_codes_add(spec, p->cmp_dtype);
  nsai_tile_order_add(p, spec);
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  out->number[SCRATCH_BYTES] = scratch_bytes(r->problem);
  out->bytes[SCRATCH] =
      NSAI_PRODUCT(out->number[SCRATCH_BYTES], kernel[TOPN].ctas_per_sm, r->target->sms);
}

/* `expanded`: entries that the kernel reads from the workspace; NULL: it has no such. */
static nsa_status enqueue_topn(const nsai_run *run, const nsai_form *form,
                               const NsaiExpanded *expanded) {
  const nsai_kernel *kernel = &form->kernel[TOPN];
  NsaiCompressedTopn p = { .attend.attend = nsai_compressed_params(run, kernel),
                           .scratch = nsai_buffer_at(run, form->buffer[SCRATCH]),
                           .scratch_bytes = form->number[SCRATCH_BYTES] };
  if (nsai_run_selects(run)) {
    nsa_tensor idx = nsai_index_tensor(run);
    p.idx = idx.data;
    p.idx_token_stride = idx.stride[0];
    p.idx_head_stride = idx.stride[1];
  }
  if (nsai_problem_is_cached(&run->plan->problem)) {
    /* A kernel without codes takes the first member alone, one of codes alone the first two. */
    NsaiExpandedCompressedTopn coded = { .cached = { .packed = p,
                                                     .batch = nsai_entry_batch(run),
                                                     .pair = nsai_cache_entries(&run->io->kv) },
                                         .scales = nsai_entry_scales(run) };
    if (expanded) coded.expanded = *expanded;
    NsaiAttendTma *maps = &coded.cached.packed.attend;
    NSAI_TRY(nsai_map_rows(run, kernel, "q", &maps->attend.q, run->plan->problem.model.head_dim_qk,
                           &maps->q));
    return nsai_launch_tiles(run, kernel, &coded);
  }
  NSAI_TRY(nsai_map_attend(run, kernel, nsai_present_blocks(run), &p.attend));
  return nsai_launch_tiles(run, kernel, &p);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  (void)span;
  return enqueue_topn(run, form, NULL);
}

/* ---- the row that expands entries first ---- */

static void legal_expanded(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  legal(p, t, reasons);
  nsai_legal_expanded(p, reasons);
}

static void specify_expanded(const nsai_request *r, nsai_kernel_spec kernel[]) {
  specify(r, kernel);
  nsai_expand_specify(r->problem, &kernel[EXPAND], &kernel[TOPN]);
}

static void workspace_expanded(const nsai_request *r, const nsai_kernel_spec kernel[],
                               nsai_form_sizes *out) {
  workspace(r, kernel, out);
  nsai_expanded_workspace(r->problem, &out->bytes[K], &out->bytes[V]);
}

static nsa_status enqueue_expanded(const nsai_run *run, const nsai_form *form,
                                   const nsai_span *span) {
  const NsaiExpanded expanded = nsai_expanded_entries(run, form->buffer[K], form->buffer[V]);
  if (!span->done_ahead) NSAI_TRY(nsai_expand_enqueue(run, &form->kernel[EXPAND], &expanded));
  return span->ahead ? NSA_OK : enqueue_topn(run, form, &expanded);
}

const nsai_variant nsai_attend_compressed_topn_expanded_sm90 = {
  .name = "attend_compressed_topn_expanded_sm90",
  .stage = NSAI_STAGE_ATTEND_COMPRESSED,
  .why = "compressed branch to top-n, of e4m3 entries expanded before",
  .fuses = 1u << NSAI_STAGE_IMPORTANCE | 1u << NSAI_STAGE_SELECT,
  .kernels = EXPANDED_KERNELS,
  .buffers = EXPANDED_BUFFERS,
  .numbers = NUMBERS,
  .takes_codes = true,
  .goes_ahead = true,
  .legal = legal_expanded,
  .sensible = sensible,
  .specify = specify_expanded,
  .workspace = workspace_expanded,
  .enqueue = enqueue_expanded,
};

const nsai_variant nsai_attend_compressed_topn_sm90 = {
  .name = "attend_compressed_topn_sm90",
  .stage = NSAI_STAGE_ATTEND_COMPRESSED,
  .why = "compressed branch, importance and top-n in one pass, wgmma and tensor maps",
  .fuses = 1u << NSAI_STAGE_IMPORTANCE | 1u << NSAI_STAGE_SELECT,
  .kernels = KERNELS,
  .buffers = BUFFERS,
  .numbers = NUMBERS,
  .takes_codes = true,
  .legal = legal,
  .sensible = sensible,
  .specify = specify,
  .workspace = workspace,
  .enqueue = enqueue,
};
