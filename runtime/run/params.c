/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the launches of several variants have in common: views of the caller's tensors and of the
 * workspace, grids, tensor maps, epilogues.
 */
#include "run/params.h"

#include "base/math.h"
#include "driver/tensor_map.h"
#include "plan/context.h"

#include <math.h>

#define LOG2E 1.44269504088896340736

NsaiSequences nsai_run_sequences(const nsai_run *run) {
  NsaiSequences s = { .num_seqs = run->sizes.num_seqs,
                      .q_tokens = (int)run->sizes.tokens,
                      .kv_tokens = (int)run->sizes.kv_tokens,
                      .max_kv_len = (int)run->plan->problem.max_kv_len };
  if (!run->batch) return s;
  s.cu_q = run->batch->cu_q.data;
  s.cu_kv = nsai_present(&run->batch->cu_kv) ? run->batch->cu_kv.data : run->batch->cu_q.data;
  return s;
}

nsai_step nsai_run_step(const nsai_run *run) {
  return (nsai_step){ .tokens = run->sizes.tokens,
                      .num_seqs = run->sizes.num_seqs,
                      .packed = run->batch && nsai_present(&run->batch->cu_q) };
}

NsaiView nsai_view(const nsa_tensor *t) {
  return (NsaiView){ t->data, t->stride[0], t->stride[1] };
}

NsaiView nsai_buffer_view(const nsai_run *run, nsai_buffer buffer, int64_t heads, int64_t dim) {
  return (NsaiView){ nsai_buffer_at(run, buffer), heads * dim, dim };
}

NsaiView nsai_compressed_view(const nsai_run *run, int side) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_tensor *given = side ? &run->io->kv.v_cmp : &run->io->kv.k_cmp;
  if (nsai_present(given)) return nsai_view(given);
  const nsai_workspace *l = &run->plan->workspace;
  return nsai_buffer_view(run, side ? l->v_cmp : l->k_cmp, m->kv_heads,
                          side ? m->head_dim_v : m->head_dim_qk);
}

NsaiSequences nsai_compressed_sequences(const nsai_run *run) {
  NsaiSequences s = nsai_run_sequences(run);
  if (run->batch && nsai_present(&run->io->kv.k_cmp) && nsai_present(&run->batch->cu_cmp))
    s.cu_cmp = run->batch->cu_cmp.data;
  return s;
}

int64_t nsai_compressed_rows(const nsai_run *run) {
  if (nsai_present(&run->io->kv.k_cmp)) return run->sizes.cmp_rows;
  return run->sizes.kv_tokens / run->plan->problem.model.stride + 1;
}

int64_t nsai_present_blocks(const nsai_run *run) {
  int64_t rows = nsai_compressed_rows(run);
  if (run->batch) return rows;
  return nsai_smaller(rows, nsai_block_count(&run->plan->problem.model, run->sizes.kv_tokens));
}

double nsai_run_scale(const nsai_run *run) {
  if (run->io->softmax_scale > 0) return (double)run->io->softmax_scale;
  return 1.0 / sqrt((double)run->plan->problem.model.head_dim_qk);
}

float nsai_run_scale_log2(const nsai_run *run) { return (float)(nsai_run_scale(run) * LOG2E); }

nsa_tensor nsai_compressed_lse(const nsai_run *run) {
  if (nsai_present(&run->io->lse[NSA_CMP])) return run->io->lse[NSA_CMP];
  return (nsa_tensor){ .data = nsai_buffer_at(run, run->plan->workspace.lse),
                       .stride = { run->plan->problem.model.heads, 1 } };
}

nsa_tensor nsai_index_tensor(const nsai_run *run) {
  const nsai_model *m = &run->plan->problem.model;
  if (nsai_present(&run->io->block_idx)) return run->io->block_idx;
  return (nsa_tensor){ .data = nsai_buffer_at(run, run->plan->workspace.idx),
                       .stride = { (int64_t)m->kv_heads * m->select_count, m->select_count, 1 } };
}

/* ---- grids and tensor maps ---- */

uint64_t nsai_tile_count(const nsai_run *run, int32_t tokens) {
  const nsai_run_sizes *s = &run->sizes;
  return (uint64_t)(s->packed ? s->tokens / tokens + s->num_seqs
                              : nsai_ceil_div(s->tokens, tokens));
}

uint64_t nsai_grid_tiles(const nsai_run *run, const nsai_kernel *kernel) {
  return nsai_tile_count(run, kernel->tile_tokens) * (uint64_t)run->plan->problem.model.kv_heads;
}

/* The largest grid of a persistent kernel. While K and V travel it leaves SMs free, but at most half. */
static uint64_t most_ctas(const nsai_run *run, const nsai_kernel *kernel) {
  const nsai_awaited_keys *keys = run->piece ? run->piece->awaited : NULL;
  const int32_t sms = run->plan->ctx->target.sms;
  if (!keys || keys->received) return (uint64_t)kernel->most_ctas;
  const int32_t left = (int32_t)nsai_larger(sms - keys->spare_sms, sms / 2);
  return (uint64_t)(kernel->most_ctas / sms * left);
}

nsa_status nsai_launch_tiles(const nsai_run *run, const nsai_kernel *kernel, const void *params) {
  uint64_t tiles = nsai_grid_tiles(run, kernel), most = most_ctas(run, kernel);
  uint64_t grid = most && most < tiles && tiles <= INT32_MAX ? most : tiles;
  return nsai_launch(run->queue, kernel, grid, 1, params);
}

nsa_status nsai_launch_elements(const nsai_run *run, const nsai_kernel *kernel, int64_t count,
                                const void *params) {
  return nsai_launch(run->queue, kernel, (uint64_t)nsai_ceil_div(count, kernel->threads), 1,
                     params);
}

nsa_status nsai_map_keys(const nsai_run *run, const nsai_kernel *kernel, const NsaiView kv[2],
                         int64_t rows, NsaiTensorMap *k_map, NsaiTensorMap *v_map) {
  const nsai_model *m = &run->plan->problem.model;
  nsa_status (*map)(const nsai_driver *, const nsai_boxed *, NsaiTensorMap *) =
      kernel->interleaved_keys ? nsai_tensor_map_interleaved : nsai_tensor_map;
  nsai_boxed k = { .name = "k",
                   .view = kv[0],
                   .tokens = rows,
                   .heads = m->kv_heads,
                   .dim = m->head_dim_qk,
                   .dtype = m->dtype,
                   .tma_box_heads = 1,
                   .tma_box_tokens = kernel->tma_box_keys,
                   .repeats = true };
  nsai_boxed v = k;
  v.name = "v";
  v.view = kv[1];
  v.dim = m->head_dim_v;
  NSAI_TRY(map(run->driver, &k, k_map));
  return map(run->driver, &v, v_map);
}

nsa_status nsai_map_rows(const nsai_run *run, const nsai_kernel *kernel, const char *name,
                         const NsaiView *view, int32_t dim, NsaiTensorMap *map) {
  const nsai_model *m = &run->plan->problem.model;
  nsai_boxed rows = { .name = name,
                      .view = *view,
                      .tokens = run->sizes.tokens,
                      .heads = m->heads,
                      .dim = dim,
                      .dtype = m->dtype,
                      .tma_box_heads = kernel->tma_box_heads,
                      .tma_box_tokens = kernel->tma_box_tokens };
  return nsai_tensor_map(run->driver, &rows, map);
}

nsa_status nsai_map_attend(const nsai_run *run, const nsai_kernel *kernel, int64_t rows,
                           NsaiAttendTma *p) {
  const NsaiView kv[2] = { p->attend.k, p->attend.v };
  const int32_t dim = run->plan->problem.model.head_dim_qk;
  NSAI_TRY(nsai_map_rows(run, kernel, "q", &p->attend.q, dim, &p->q));
  return nsai_map_keys(run, kernel, kv, rows, &p->k, &p->v);
}

nsa_status nsai_launch_attend(const nsai_run *run, const nsai_kernel *kernel, const NsaiAttend *p,
                              int64_t rows) {
  if (!kernel->tma_box_keys) return nsai_launch_tiles(run, kernel, p);
  NsaiAttendTma boxed = { .attend = *p };
  NSAI_TRY(nsai_map_attend(run, kernel, rows, &boxed));
  return nsai_launch_tiles(run, kernel, &boxed);
}

nsa_status nsai_run_gemm(const nsai_run *run, const nsai_gemm *gemm, const void *a, const void *b,
                         void *c) {
  nsai_gemm_operands o = { a, b, c, nsai_buffer_at(run, run->plan->workspace.gemm),
                           run->queue->stream };
  nsai_queue_break(run->queue);
  return nsai_gemm_run(run->plan->lt, run->plan->lt_handle, gemm, &o);
}

/* ---- branches ---- */

/* The branches in the order of their kernels. The window is first, where its kernel is its own: it
 * has the least to compute beside the partial sum, which the first branch need not read. */
static const int *branch_order(const nsai_run *run) {
  static const int unfused[NSA_BRANCHES] = { NSA_WIN, NSA_CMP, NSA_SEL };
  static const int fused[NSA_BRANCHES] = { NSA_CMP, NSA_WIN, NSA_SEL };
  return nsai_run_fuses(run, NSAI_STAGE_ATTEND_WINDOW) ? fused : unfused;
}

static bool runs_before(const nsai_run *run, int branch) {
  const int *order = branch_order(run);
  for (int i = 0; order[i] != branch; i++)
    if (run->branches >> order[i] & 1) return true;
  return false;
}

static bool runs_after(const nsai_run *run, int branch) {
  const int *order = branch_order(run);
  bool seen = false;
  for (int i = 0; i < NSA_BRANCHES; i++) {
    if (seen && (run->branches >> order[i] & 1)) return true;
    seen |= order[i] == branch;
  }
  return false;
}

void nsai_set_gate(const nsai_run *run, NsaiEpilogue *out) {
  const nsai_model *m = &run->plan->problem.model;
  if (m->gate == NSAI_GATE_MLP) {
    out->gate = nsai_buffer_view(run, run->plan->workspace.gate_logits, m->heads, 3);
    out->gate_float = 1;
  } else {
    out->gate = nsai_view(&run->io->gate.value);
    out->gate_float = run->io->gate.value.dtype == NSA_F32;
  }
}

NsaiEpilogue nsai_branch_epilogue(const nsai_run *run, int branch) {
  NsaiEpilogue out = { .gate_branch = branch };
  nsa_tensor lse = branch == NSA_CMP ? nsai_compressed_lse(run) : run->io->lse[branch];
  out.lse = lse.data;
  out.lse_token_stride = lse.stride[0];
  out.lse_head_stride = lse.stride[1];
  nsai_set_gate(run, &out);
  if (!nsai_run_has(run, branch)) return out; /* the selection wants its LSE, and nothing else */
  if (nsai_present(&run->io->o_branch[branch]))
    out.o_branch = nsai_view(&run->io->o_branch[branch]);
  out.add_partial = runs_before(run, branch);
  bool last = !runs_after(run, branch);
  if (last) out.o = nsai_view(&run->io->o);
  if (out.add_partial || !last) {
    out.partial = nsai_buffer_at(run, run->plan->workspace.partial);
    out.partial_units = nsai_buffer_at(run, run->plan->workspace.partial_units);
  }
  return out;
}

int nsai_run_pair(const nsai_run *run, int branch) {
  return run->plan->problem.model.per_branch ? branch : 0;
}

NsaiAttend nsai_attend_params(const nsai_run *run, int branch, const nsai_kernel *kernel) {
  int source = nsai_run_pair(run, branch);
  return (NsaiAttend){ .seq = nsai_run_sequences(run),
                       .q = nsai_view(&run->io->q),
                       .k = nsai_view(&run->io->kv.k[source]),
                       .v = nsai_view(&run->io->kv.v[source]),
                       .out = nsai_branch_epilogue(run, branch),
                       .scale_log2 = nsai_run_scale_log2(run),
                       .kv_heads = run->plan->problem.model.kv_heads,
                       .tiles = (int)nsai_grid_tiles(run, kernel) };
}

bool nsai_run_selects(const nsai_run *run) {
  const nsai_problem *p = &run->plan->problem;
  if (!p->model.select_count || p->selection != NSA_SELECT_TOPN) return false;
  const nsai_variant *attend = run->plan->choice.variant[NSAI_STAGE_ATTEND_SELECTED];
  bool branch = nsai_run_has(run, NSA_SEL) && !(attend && attend->reads_no_lists);
  return branch || nsai_present(&run->io->block_idx);
}

bool nsai_run_is_behind(const nsai_run *run, nsai_stage stage) {
  const nsai_form *form = nsai_plan_form(run->plan, stage);
  const nsai_kernel *last = run->queue->last;
  return form && last && last >= form->kernel && last < form->kernel + form->variant->kernels;
}

/* ---- over a cache ---- */

/* How many pages a list has is known on the device alone, where find_room() asks. */
int nsai_longest_sequence(const nsai_run *run) {
  const nsai_problem *p = &run->plan->problem;
  const nsa_batch *b = run->batch;
  if (!p->page_size || nsai_present(&b->page_indptr)) return (int)p->max_kv_len;
  int64_t pages = b->block_table.shape[1], all = (p->max_kv_len + p->page_size - 1) / p->page_size;
  if (p->ranks && nsai_present(&b->entry_table))
    pages = nsai_smaller(pages, b->entry_table.shape[1]);
  return (int)(pages < all ? pages * p->page_size : p->max_kv_len);
}

NsaiCacheBatch nsai_cache_batch(const nsai_run *run) {
  const nsa_batch *b = run->batch;
  bool lists = nsai_present(&b->page_indptr);
  const nsa_tensor *pages = lists ? &b->page_indices : &b->block_table;
  return (NsaiCacheBatch){ .cu_q = b->cu_q.data,
                           .kv_len = b->kv_len.data,
                           .pages = pages->data,
                           .page_starts = lists ? b->page_indptr.data : NULL,
                           .slots = b->slots.data,
                           .page_list_stride = lists ? 0 : pages->stride[0],
                           .num_seqs = b->num_seqs,
                           .q_tokens = (int)run->sizes.tokens,
                           .q_each = (int)(run->sizes.tokens / b->num_seqs),
                           .max_kv_len = nsai_longest_sequence(run),
                           .page_size = (int)run->plan->problem.page_size };
}

NsaiCacheBatch nsai_entry_batch(const nsai_run *run) {
  NsaiCacheBatch out = nsai_cache_batch(run);
  const nsa_tensor *pages = &run->batch->entry_table;
  if (!run->plan->problem.ranks) return out;
  out.pages = pages->data;
  out.page_list_stride = pages->stride[0];
  return out;
}

NsaiCacheTensor nsai_cache_tensor(const nsa_tensor *t) {
  const int codes = t->dtype == NSA_E4M3 ? 2 : 1; /* of a word */
  return (NsaiCacheTensor){ t->data, t->stride[0] / codes, t->stride[1] / codes,
                            t->stride[2] / codes };
}

NsaiKvReads nsai_kv_reads(const nsai_run *run) {
  const nsa_tensor *t = &run->io->kv_reads;
  return (NsaiKvReads){ t->data, t->stride[0], t->stride[1], t->stride[2] };
}

static NsaiScale scale_of(const nsa_tensor *t) {
  if (!nsai_present(t)) return (NsaiScale){ 0 };
  return (NsaiScale){ t->data, t->shape[0] > 1 ? t->stride[0] : 0 };
}

NsaiPairScales nsai_pair_scales(const nsai_run *run, int branch) {
  const int source = nsai_run_pair(run, branch);
  return (NsaiPairScales){ scale_of(&run->io->k_scale[source]),
                           scale_of(&run->io->v_scale[source]) };
}

NsaiPairScales nsai_entry_scales(const nsai_run *run) {
  const nsa_io *io = run->io;
  if (run->plan->problem.model.by == NSAI_BY_INDEX)
    return (NsaiPairScales){ .k = scale_of(&io->k_idx_scale) };
  return (NsaiPairScales){
    scale_of(nsai_present(&io->k_cmp_scale) ? &io->k_cmp_scale : &io->k_scale[0]),
    scale_of(nsai_present(&io->v_cmp_scale) ? &io->v_cmp_scale : &io->v_scale[0])
  };
}

NsaiCachePair nsai_cache_pair(const nsai_run *run, const nsa_kv *kv, int branch) {
  const nsai_problem *p = &run->plan->problem;
  int source = nsai_run_pair(run, branch);
  NsaiCachePair pair = {
    .k = nsai_cache_tensor(&kv->k[source]),
    .v = nsai_cache_tensor(&kv->v[source]),
    .pages = (int)nsai_larger(kv->k[source].shape[0], kv->v[source].shape[0]),
  };
  if (p->window_ring && branch == NSA_WIN) pair.ring = (int)kv->k[source].shape[1];
  return pair;
}

NsaiCachePair nsai_cache_entries(const nsa_kv *kv) {
  return (NsaiCachePair){ .k = nsai_cache_tensor(&kv->k_cmp), .v = nsai_cache_tensor(&kv->v_cmp) };
}

static nsai_boxed_pages boxed_pages(const nsai_run *run, const char *name, const nsa_tensor *t,
                                    int32_t dim, int32_t box_rows) {
  const nsai_model *m = &run->plan->problem.model;
  return (nsai_boxed_pages){ .name = name,
                             .view = nsai_cache_tensor(t),
                             .pages = t->shape[0],
                             .page_rows = t->shape[1],
                             .heads = m->kv_heads,
                             /* Codes are copied as words of two. */
                             .dim = nsai_row_words(t->dtype == NSA_E4M3, dim),
                             .dtype = m->dtype,
                             .box_rows = box_rows };
}

nsa_status nsai_map_pages(const nsai_run *run, int branch, int32_t box_rows, NsaiTensorMap *k_map,
                          NsaiTensorMap *v_map) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_kv *kv = &run->io->kv;
  int source = nsai_run_pair(run, branch);
  const nsai_boxed_pages k = boxed_pages(run, "k", &kv->k[source], m->head_dim_qk, box_rows);
  const nsai_boxed_pages v = boxed_pages(run, "v", &kv->v[source], m->head_dim_v, box_rows);
  NSAI_TRY(nsai_tensor_map_pages(run->driver, &k, k_map));
  return nsai_tensor_map_pages(run->driver, &v, v_map);
}

/* Of what a branch reads: its pair or, of NSA_CMP, the entries. */
static NsaiPairScales branch_scales(const nsai_run *run, int branch) {
  return branch == NSA_CMP ? nsai_entry_scales(run) : nsai_pair_scales(run, branch);
}

/* Of what a branch reads, likewise. */
static NsaiCacheBatch branch_batch(const nsai_run *run, int branch) {
  return branch == NSA_CMP ? nsai_entry_batch(run) : nsai_cache_batch(run);
}

/* Raw tokens are read through tensor maps; entries are not. */
static nsa_status launch_cached_tma(const nsai_run *run, const nsai_kernel *kernel,
                                    const NsaiCachePair *pair, const NsaiAttend *p, int branch,
                                    const NsaiExpanded *expanded) {
  /* A kernel that applies no scales takes the first member alone, one of codes alone the first two. */
  NsaiExpandedAttendTma coded = {
    .cached = { .packed.attend = *p, .batch = branch_batch(run, branch), .pair = *pair },
    .scales = branch_scales(run, branch)
  };
  if (expanded) coded.expanded = *expanded;
  NsaiAttendTma *maps = &coded.cached.packed;
  const int32_t dim = run->plan->problem.model.head_dim_qk;
  NSAI_TRY(nsai_map_rows(run, kernel, "q", &p->q, dim, &maps->q));
  if (branch != NSA_CMP)
    NSAI_TRY(nsai_map_pages(run, branch, NSAI_WINDOW_BOX_ROWS, &maps->k, &maps->v));
  return nsai_launch_tiles(run, kernel, &coded);
}

nsa_status nsai_launch_cached_attend(const nsai_run *run, const nsai_kernel *kernel, int branch,
                                     const NsaiAttend *p) {
  const nsa_kv *kv = &run->io->kv;
  const NsaiCachePair pair =
      branch == NSA_CMP ? nsai_cache_entries(kv) : nsai_cache_pair(run, kv, branch);
  if (kernel->tma_box_keys) return launch_cached_tma(run, kernel, &pair, p, branch, NULL);
  /* A kernel without codes takes the first member alone. */
  NsaiCodedAttend coded = {
    .cached = { .batch = branch_batch(run, branch), .pair = pair, .packed = *p },
    .scales = branch_scales(run, branch)
  };
  return nsai_launch(run->queue, kernel, nsai_grid_tiles(run, kernel), 1, &coded);
}

nsa_status nsai_launch_expanded_attend(const nsai_run *run, const nsai_kernel *kernel,
                                       const NsaiAttend *p, const NsaiExpanded *expanded) {
  const NsaiCachePair pair = nsai_cache_entries(&run->io->kv);
  return launch_cached_tma(run, kernel, &pair, p, NSA_CMP, expanded);
}
