/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Order of a forward: gates, compress, attend_window where its kernel is its own, attend_compressed,
 * importance and select in chunks of tokens, attend_selected. So attend_window runs beside the end of
 * compress, and attend_compressed, whose keys are there by then, beside the end of attend_window
 * (driver/launch.h). Each branch's kernel adds its gated output in fp32 to a partial sum, which goes from one
 * to the next in 16 bits and a unit for each row (core/epilogue.cuh); the last one that runs rounds
 * into o. A stage that another stage's variant covers is part of that one's launch.
 *
 * nsa_prefill is the same over a cache, without compress: the cache has the entries.
 */
#include "run/run.h"

#include "driver/tensor_map.h"
#include "run/source.h"

#include <math.h>
#include <string.h>

#define LOG2E 1.44269504088896340736

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

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
  if (run->batch && nsai_present(&run->io->kv.k_cmp) && nsai_present(&run->batch->cu_blocks))
    s.cu_blocks = run->batch->cu_blocks.data;
  return s;
}

int64_t nsai_compressed_rows(const nsai_run *run) {
  if (nsai_present(&run->io->kv.k_cmp)) return run->sizes.cmp_rows;
  return run->sizes.kv_tokens / run->plan->problem.model.stride + 1;
}

double nsai_run_scale(const nsai_run *run) {
  if (run->io->softmax_scale > 0) return (double)run->io->softmax_scale;
  return 1.0 / sqrt((double)run->plan->problem.model.head_dim_qk);
}

float nsai_run_scale_log2(const nsai_run *run) { return (float)(nsai_run_scale(run) * LOG2E); }

uint64_t nsai_tile_count(const nsai_run *run, int32_t tokens) {
  const nsai_run_sizes *s = &run->sizes;
  return (uint64_t)(s->packed ? s->tokens / tokens + s->num_seqs : ceil_div(s->tokens, tokens));
}

/* Tiles of a kernel's grid: of tokens, times KV heads. */
static uint64_t grid_tiles(const nsai_run *run, nsai_role role) {
  return nsai_tile_count(run, run->plan->kernels[role].tile_tokens) *
         (uint64_t)run->plan->problem.model.kv_heads;
}

static nsa_status launch(const nsai_run *run, nsai_role role, uint64_t grid, const void *params) {
  return nsai_launch(run->queue, &run->plan->kernels[role], grid, 1, params);
}

/* Launches a block of threads for each tile or, of a persistent kernel, no more than the device has
 * at once. Tiles are counted in an int there: those beyond it are left to nsai_launch to refuse. */
static nsa_status launch_tiles(const nsai_run *run, nsai_role role, const void *params) {
  uint64_t tiles = grid_tiles(run, role), most = (uint64_t)run->plan->kernels[role].most_blocks;
  return launch(run, role, most && most < tiles && tiles <= INT32_MAX ? most : tiles, params);
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

/* Those of q, k and v. */
static nsa_status map_attend(const nsai_run *run, const nsai_kernel *kernel, int64_t rows,
                             NsaiAttendTma *p) {
  const NsaiView kv[2] = { p->attend.k, p->attend.v };
  NSAI_TRY(
      nsai_map_rows(run, kernel, "q", &p->attend.q, run->plan->problem.model.head_dim_qk, &p->q));
  return nsai_map_keys(run, kernel, kv, rows, &p->k, &p->v);
}

/* Flash attention, by a kernel that takes tensor maps or one that does not; `rows`: see map_attend. */
static nsa_status launch_attend(const nsai_run *run, nsai_role role, const NsaiAttend *p,
                                int64_t rows) {
  const nsai_kernel *kernel = &run->plan->kernels[role];
  if (!kernel->tma_box_keys) return launch_tiles(run, role, p);
  NsaiAttendTma boxed = { .attend = *p };
  NSAI_TRY(map_attend(run, kernel, rows, &boxed));
  return launch_tiles(run, role, &boxed);
}

/* Whether the stage is part of another one's launch. */
static bool is_fused(const nsai_run *run, nsai_stage stage) {
  return nsai_is_fused(&run->plan->choice, stage);
}

static bool is_cached(const nsai_run *run) { return nsai_problem_is_cached(&run->plan->problem); }

static bool has_branch(const nsai_run *run, int branch) { return run->branches >> branch & 1; }

nsa_status nsai_run_stage_event(const nsai_run *run, nsai_stage stage, bool begins) {
  if (!run->callbacks) return NSA_OK;
  nsai_queue_break(run->queue);
  return run->callbacks->on_stage(run->callbacks->user, stage, begins);
}

/* Enqueues a whole stage between its marks. */
static nsa_status staged(const nsai_run *run, nsai_stage stage,
                         nsa_status (*enqueue)(const nsai_run *)) {
  NSAI_TRY(nsai_run_stage_event(run, stage, true));
  NSAI_TRY(enqueue(run));
  return nsai_run_stage_event(run, stage, false);
}

nsa_tensor nsai_compressed_lse(const nsai_run *run) {
  if (nsai_present(&run->io->lse[NSA_CMP])) return run->io->lse[NSA_CMP];
  return (nsa_tensor){ .data = nsai_buffer_at(run, run->plan->workspace.lse),
                       .stride = { run->plan->problem.model.heads, 1 } };
}

/* The branches in the order of their kernels. The window is first, where its kernel is its own: it
 * has the least to compute beside the partial sum, which the first branch need not read. */
static const int *branch_order(const nsai_run *run) {
  static const int apart[NSA_BRANCHES] = { NSA_WIN, NSA_CMP, NSA_SEL };
  static const int together[NSA_BRANCHES] = { NSA_CMP, NSA_WIN, NSA_SEL };
  return is_fused(run, NSAI_STAGE_ATTEND_WINDOW) ? together : apart;
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

static NsaiEpilogue branch_epilogue(const nsai_run *run, int branch) {
  NsaiEpilogue out = { .gate_branch = branch };
  nsa_tensor lse = branch == NSA_CMP ? nsai_compressed_lse(run) : run->io->lse[branch];
  out.lse = lse.data;
  out.lse_token_stride = lse.stride[0];
  out.lse_head_stride = lse.stride[1];
  nsai_set_gate(run, &out);
  if (!has_branch(run, branch)) return out; /* only its LSE is wanted, by the selection */
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

static NsaiAttend attend_params(const nsai_run *run, int branch, nsai_role role) {
  int source = run->plan->problem.model.per_branch ? branch : 0;
  return (NsaiAttend){ .seq = nsai_run_sequences(run),
                       .q = nsai_view(&run->io->q),
                       .k = nsai_view(&run->io->kv.k[source]),
                       .v = nsai_view(&run->io->kv.v[source]),
                       .out = branch_epilogue(run, branch),
                       .scale_log2 = nsai_run_scale_log2(run),
                       .kv_heads = run->plan->problem.model.kv_heads,
                       .tiles = (int)grid_tiles(run, role) };
}

/* Whether the last thing enqueued is the kernel of this role. */
static bool is_behind(const nsai_run *run, nsai_role role) {
  return run->queue->last == &run->plan->kernels[role];
}

static NsaiAttend compressed_params(const nsai_run *run) {
  return (NsaiAttend){ .seq = nsai_compressed_sequences(run),
                       .q = nsai_view(&run->io->q),
                       .k = nsai_compressed_view(run, 0),
                       .v = nsai_compressed_view(run, 1),
                       .out = branch_epilogue(run, NSA_CMP),
                       .scale_log2 = nsai_run_scale_log2(run),
                       .kv_heads = run->plan->problem.model.kv_heads,
                       .tiles = (int)grid_tiles(run, NSAI_KERNEL_ATTEND_COMPRESSED),
                       .early = is_behind(run, NSAI_KERNEL_ATTEND_WINDOW) };
}

int64_t nsai_present_blocks(const nsai_run *run) {
  int64_t rows = nsai_compressed_rows(run);
  if (run->batch) return rows;
  return smaller(rows, nsai_block_count(&run->plan->problem.model, run->sizes.kv_tokens));
}

static nsa_status attend_compressed(const nsai_run *run) {
  NsaiAttend p = compressed_params(run);
  if (is_cached(run)) {
    NsaiCachePair entries = nsai_cache_entries(&run->io->kv);
    return nsai_launch_cached_attend(run, NSAI_KERNEL_ATTEND_COMPRESSED,
                                     grid_tiles(run, NSAI_KERNEL_ATTEND_COMPRESSED), &entries, &p);
  }
  return launch_attend(run, NSAI_KERNEL_ATTEND_COMPRESSED, &p, nsai_present_blocks(run));
}

static nsa_status attend_window(const nsai_run *run) {
  NsaiAttend p = attend_params(run, NSA_WIN, NSAI_KERNEL_ATTEND_WINDOW);
  if (is_cached(run)) {
    NsaiCachePair pair = nsai_cache_pair(run, &run->io->kv, NSA_WIN);
    return nsai_launch_cached_attend(run, NSAI_KERNEL_ATTEND_WINDOW,
                                     grid_tiles(run, NSAI_KERNEL_ATTEND_WINDOW), &pair, &p);
  }
  p.early = is_behind(run, NSAI_KERNEL_COMPRESS) || is_behind(run, NSAI_KERNEL_PHI_BIAS);
  return launch_attend(run, NSAI_KERNEL_ATTEND_WINDOW, &p, run->sizes.kv_tokens);
}

static NsaiImportance importance_params(const nsai_run *run) {
  nsa_tensor lse = nsai_compressed_lse(run);
  return (NsaiImportance){ .seq = nsai_compressed_sequences(run),
                           .q = nsai_view(&run->io->q),
                           .k = nsai_compressed_view(run, 0),
                           .lse = lse.data,
                           .lse_token_stride = lse.stride[0],
                           .lse_head_stride = lse.stride[1],
                           .scale_log2 = nsai_run_scale_log2(run),
                           .kv_heads = run->plan->problem.model.kv_heads };
}

nsa_tensor nsai_index_tensor(const nsai_run *run) {
  const nsai_model *m = &run->plan->problem.model;
  if (nsai_present(&run->io->block_idx)) return run->io->block_idx;
  return (nsa_tensor){ .data = nsai_buffer_at(run, run->plan->workspace.idx),
                       .stride = { (int64_t)m->kv_heads * m->select_count, m->select_count, 1 } };
}

/* Whether this run needs the library's own selection: for the branch, or because the caller asks
 * for the indices. */
static bool selects(const nsai_run *run) {
  const nsai_problem *p = &run->plan->problem;
  if (!p->model.select_count || p->selection != NSA_SELECT_OWN) return false;
  bool branch = has_branch(run, NSA_SEL) && !run->plan->selected_dense;
  return branch || nsai_present(&run->io->block_idx);
}

/* Importance and select are part of it. */
static nsa_status attend_compressed_topn(const nsai_run *run) {
  const nsai_kernel *kernel = &run->plan->kernels[NSAI_KERNEL_ATTEND_COMPRESSED];
  const nsai_choice *choice = &run->plan->choice;
  NsaiCompressedTopn p = {
    .attend.attend = compressed_params(run),
    .scratch = nsai_buffer_at(run, run->plan->workspace.scratch),
    .scratch_bytes = (long long)choice->specs[NSAI_KERNEL_ATTEND_COMPRESSED].scratch_bytes
  };
  if (selects(run)) {
    nsa_tensor idx = nsai_index_tensor(run);
    p.idx = idx.data;
    p.idx_token_stride = idx.stride[0];
    p.idx_head_stride = idx.stride[1];
  }
  if (kernel->tma_box_keys) NSAI_TRY(map_attend(run, kernel, nsai_present_blocks(run), &p.attend));
  return launch_tiles(run, NSAI_KERNEL_ATTEND_COMPRESSED, &p);
}

static nsa_status select_tokens(const nsai_run *run, const nsa_tensor *importance, int64_t begin,
                                int64_t end) {
  nsa_tensor idx = nsai_index_tensor(run);
  NsaiSelect p = { .seq = nsai_run_sequences(run),
                   .importance = importance->data,
                   .importance_token_stride = importance->stride[0],
                   .importance_head_stride = importance->stride[1],
                   .idx = idx.data,
                   .idx_token_stride = idx.stride[0],
                   .idx_head_stride = idx.stride[1],
                   .token_begin = (int)begin,
                   .token_end = (int)end,
                   .kv_heads = run->plan->problem.model.kv_heads };
  const nsai_kernel *kernel = &run->plan->kernels[NSAI_KERNEL_SELECT];
  int64_t rows = (end - begin) * p.kv_heads; /* a warp each */
  NSAI_TRY(nsai_run_stage_event(run, NSAI_STAGE_SELECT, true));
  NSAI_TRY(nsai_launch_select(run, (uint64_t)ceil_div(rows, kernel->threads / 32), &p));
  return nsai_run_stage_event(run, NSAI_STAGE_SELECT, false);
}

/* Importance and top-n, one chunk of tokens after the other through the same piece of workspace. */
static nsa_status select_blocks(const nsai_run *run) {
  const nsai_workspace *l = &run->plan->workspace;
  nsa_tensor importance = { .data = nsai_buffer_at(run, l->importance),
                            .stride = { run->plan->problem.model.kv_heads * l->importance_columns,
                                        l->importance_columns, 1 } };
  if (!l->importance.bytes) /* every block is chosen: the lists follow from the positions alone */
    return select_tokens(run, &importance, 0, run->sizes.tokens);
  NsaiImportance p = importance_params(run);
  p.importance = importance.data;
  p.importance_token_stride = importance.stride[0];
  p.importance_head_stride = importance.stride[1];
  for (int64_t begin = 0; begin < run->sizes.tokens; begin += l->chunk_tokens) {
    int64_t end = smaller(begin + l->chunk_tokens, run->sizes.tokens);
    int32_t tile = run->plan->kernels[NSAI_KERNEL_IMPORTANCE].tile_tokens;
    p.token_begin = (int)begin;
    p.token_end = (int)end;
    /* With sequences a token lies at most one tile before and num_seqs - 1 tiles behind token /
     * tile. */
    int64_t first = larger(0, begin / tile - run->sizes.packed);
    int64_t last = (end - 1) / tile + (run->sizes.packed ? run->sizes.num_seqs - 1 : 0);
    uint64_t tiles = (uint64_t)(last - first + 1);
    NSAI_TRY(nsai_run_stage_event(run, NSAI_STAGE_IMPORTANCE, true));
    NSAI_TRY(nsai_launch_importance(run, NSAI_KERNEL_IMPORTANCE, tiles * (uint64_t)p.kv_heads, &p));
    NSAI_TRY(nsai_run_stage_event(run, NSAI_STAGE_IMPORTANCE, false));
    NSAI_TRY(select_tokens(run, &importance, begin, end));
  }
  return NSA_OK;
}

nsa_status nsai_enqueue_probe(const nsai_run *run) {
  const nsa_tensor *out = &run->io->probe_importance;
  NsaiImportance p = importance_params(run);
  p.importance = out->data;
  p.importance_token_stride = out->stride[0];
  p.importance_head_stride = out->stride[1];
  p.columns = (int)out->shape[2];
  p.rows = run->io->probe_rows.data;
  p.num_rows = (int)run->io->probe_rows.shape[0];
  p.token_end = (int)run->sizes.tokens;
  return nsai_launch_importance(run, NSAI_KERNEL_PROBE, (uint64_t)p.num_rows * (uint64_t)p.kv_heads,
                                &p);
}

nsa_status nsai_sort_selection(const nsai_run *run, NsaiAttendSelected *attend) {
  const nsai_model *m = &run->plan->problem.model;
  bool ranges = run->plan->problem.selection == NSA_SELECT_RANGES;
  const nsa_tensor *in = ranges ? &run->io->ranges : &run->io->block_idx;
  bool each = in->ndim == (ranges ? 4 : 3); /* has the axis of KV heads */
  int64_t length = (int64_t)m->select_count * (ranges ? 2 : 1);
  NsaiSortSelection p = { .seq = nsai_run_sequences(run),
                          .in = in->data,
                          .in_token_stride = in->stride[0],
                          .in_head_stride = each ? in->stride[1] : 0,
                          .in_entry_stride = ranges ? in->stride[each ? 2 : 1] : 1,
                          .out = nsai_buffer_at(run, run->plan->workspace.lists),
                          .heads = each ? m->kv_heads : 1 };
  attend->lists = p.out;
  attend->list_token_stride = p.heads * length;
  attend->list_head_stride = each ? length : 0;
  const nsai_kernel *kernel = &run->plan->kernels[NSAI_KERNEL_SORT];
  uint64_t warps = (uint64_t)run->sizes.tokens * (uint64_t)p.heads;
  return nsai_launch_sort(run, (uint64_t)ceil_div((int64_t)warps, kernel->threads / 32), &p);
}

/* All but the lists. */
static NsaiAttendSelected selected_params(const nsai_run *run) {
  NsaiAttend a = attend_params(run, NSA_SEL, NSAI_KERNEL_ATTEND_SELECTED);
  return (NsaiAttendSelected){ .seq = a.seq,
                               .q = a.q,
                               .k = a.k,
                               .v = a.v,
                               .out = a.out,
                               .scale_log2 = a.scale_log2,
                               .kv_heads = a.kv_heads,
                               .tiles = a.tiles };
}

/* Sets the lists: the library's own, or those that come of sorting the caller's. */
static nsa_status find_lists(const nsai_run *run, NsaiAttendSelected *p) {
  if (run->plan->problem.selection != NSA_SELECT_OWN) return nsai_sort_selection(run, p);
  nsa_tensor idx = nsai_index_tensor(run);
  p->lists = idx.data;
  p->list_token_stride = idx.stride[0];
  p->list_head_stride = idx.stride[1];
  return NSA_OK;
}

static nsa_status attend_selected_dense(const nsai_run *run) {
  NsaiAttend p = attend_params(run, NSA_SEL, NSAI_KERNEL_ATTEND_SELECTED);
  return launch_attend(run, NSAI_KERNEL_ATTEND_SELECTED, &p, run->sizes.kv_tokens);
}

static nsa_status attend_selected(const nsai_run *run) {
  if (run->plan->selected_dense) return attend_selected_dense(run);
  NsaiAttendSelected p = selected_params(run);
  NSAI_TRY(find_lists(run, &p));
  if (is_cached(run))
    return nsai_launch_cached_selected(run, grid_tiles(run, NSAI_KERNEL_ATTEND_SELECTED), &p);
  if (run->plan->workspace.kv.rows) return nsai_enqueue_selected_kv(run, &p);
  const nsai_kernel *kernel = &run->plan->kernels[NSAI_KERNEL_ATTEND_SELECTED];
  if (!kernel->tma_box_keys) return launch_tiles(run, NSAI_KERNEL_ATTEND_SELECTED, &p);
  NsaiAttendSelectedTma boxed = { .attend = p };
  const NsaiView kv[2] = { p.k, p.v };
  NSAI_TRY(nsai_map_keys(run, kernel, kv, run->sizes.kv_tokens, &boxed.k, &boxed.v));
  return launch_tiles(run, NSAI_KERNEL_ATTEND_SELECTED, &boxed);
}

/* The window's branch is part of it, or all of it. */
static nsa_status attend_selected_window(const nsai_run *run) {
  const nsai_kernel *kernel = &run->plan->kernels[NSAI_KERNEL_ATTEND_SELECTED];
  const int64_t rows = run->sizes.kv_tokens;
  const NsaiAttend window = attend_params(run, NSA_WIN, NSAI_KERNEL_ATTEND_SELECTED);
  NsaiSelectedWindow p = {
    .selected.attend = selected_params(run),
    .window_k = window.k,
    .window_v = window.v,
    .first_branch = has_branch(run, NSA_WIN) ? NSAI_FUSED_WINDOW : NSAI_FUSED_SELECTED,
    .end_branch = has_branch(run, NSA_SEL) ? NSAI_FUSED_BRANCHES : NSAI_FUSED_SELECTED
  };
  const NsaiView window_kv[2] = { window.k, window.v };
  const NsaiView kv[2] = { p.selected.attend.k, p.selected.attend.v };
  p.out[NSAI_FUSED_WINDOW] = window.out;
  p.out[NSAI_FUSED_SELECTED] = p.selected.attend.out;
  NSAI_TRY(nsai_map_keys(run, kernel, window_kv, rows, &p.window_k_map, &p.window_v_map));
  NSAI_TRY(nsai_map_keys(run, kernel, kv, rows, &p.selected.k, &p.selected.v));
  if (has_branch(run, NSA_SEL)) NSAI_TRY(find_lists(run, &p.selected.attend));
  return launch_tiles(run, NSAI_KERNEL_ATTEND_SELECTED, &p);
}

/* The selected branch, with the window's where one kernel does both. */
static nsa_status attend_last(const nsai_run *run) {
  bool together = is_fused(run, NSAI_STAGE_ATTEND_WINDOW);
  if (!has_branch(run, NSA_SEL) && !(together && has_branch(run, NSA_WIN))) return NSA_OK;
  return staged(run, NSAI_STAGE_ATTEND_SELECTED,
                together ? attend_selected_window : attend_selected);
}

nsa_status nsai_enqueue_forward(const nsai_run *run) {
  const nsai_model *m = &run->plan->problem.model;
  bool probes = nsai_present(&run->io->probe_rows), selecting = selects(run);
  bool compressed = has_branch(run, NSA_CMP) || selecting || probes;
  bool fused = is_fused(run, NSAI_STAGE_SELECT);
  if (m->gate == NSAI_GATE_MLP) NSAI_TRY(nsai_enqueue_gate(run));
  bool made = m->phi == NSAI_PHI_EXTERNAL || is_cached(run); /* what is compressed */
  if (!made && (compressed || nsai_present(&run->io->kv.k_cmp)))
    NSAI_TRY(staged(run, NSAI_STAGE_COMPRESS, nsai_enqueue_compress));
  if (has_branch(run, NSA_WIN) && !is_fused(run, NSAI_STAGE_ATTEND_WINDOW))
    NSAI_TRY(staged(run, NSAI_STAGE_ATTEND_WINDOW, attend_window));
  if (compressed)
    NSAI_TRY(staged(run, NSAI_STAGE_ATTEND_COMPRESSED,
                    fused ? attend_compressed_topn : attend_compressed));
  if (selecting && !fused) NSAI_TRY(select_blocks(run));
  if (probes) NSAI_TRY(nsai_enqueue_probe(run));
  return attend_last(run);
}

nsa_status nsai_enqueue_compress(const nsai_run *run) {
  const nsai_model *m = &run->plan->problem.model;
  if (m->phi != NSAI_PHI_MEAN) return nsai_enqueue_phi(run);
  NsaiCompress p = { .seq = nsai_compressed_sequences(run),
                     .k = nsai_view(&run->io->kv.k[0]),
                     .v = nsai_view(&run->io->kv.v[0]),
                     .k_cmp = nsai_compressed_view(run, 0),
                     .v_cmp = nsai_compressed_view(run, 1),
                     .rows = (int)nsai_compressed_rows(run),
                     .kv_heads = m->kv_heads };
  const nsai_kernel *kernel = &run->plan->kernels[NSAI_KERNEL_COMPRESS];
  int64_t pairs = (int64_t)p.rows * m->kv_heads;
  int64_t per_block =
      kernel->threads / ((m->head_dim_qk + m->head_dim_v) / 8); /* 16 bytes a thread */
  return launch(run, NSAI_KERNEL_COMPRESS, (uint64_t)ceil_div(pairs, per_block), &p);
}

nsa_status nsai_enqueue_select(const nsai_run *run, const nsa_tensor *importance) {
  return select_tokens(run, importance, 0, run->sizes.tokens);
}

/* ---- dense ---- */

/* Unfused baseline: per group of heads and chunk of query rows a product, a softmax, a product. */
static nsa_status dense_gemm_chunk(const nsai_run *run, int64_t begin, int64_t rows, int group) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_io *io = run->io;
  int64_t keys = run->sizes.kv_tokens,
          pitch = ceil_div(keys, 8) * 8; /* 16-byte rows for cuBLASLt */
  int32_t heads = m->heads / m->kv_heads;
  float *scores = nsai_buffer_at(run, run->plan->workspace.scores);
  uint16_t *probs = nsai_buffer_at(run, run->plan->workspace.probs);
  const uint16_t *q = (const uint16_t *)io->q.data + begin * io->q.stride[0] +
                      (int64_t)group * heads * io->q.stride[1];
  const uint16_t *k = (const uint16_t *)io->kv.k[0].data + group * io->kv.k[0].stride[1];
  const uint16_t *v = (const uint16_t *)io->kv.v[0].data + group * io->kv.v[0].stride[1];
  uint16_t *o =
      (uint16_t *)io->o.data + begin * io->o.stride[0] + (int64_t)group * heads * io->o.stride[1];
  nsai_gemm qk = { .m = rows,
                   .n = keys,
                   .k = m->head_dim_qk,
                   .a_row = io->q.stride[0],
                   .b_row = io->kv.k[0].stride[0],
                   .c_row = pitch,
                   .batch = heads,
                   .a_batch = io->q.stride[1],
                   .c_batch = rows * pitch,
                   .b_transposed = true,
                   .dtype = m->dtype,
                   .c_dtype = NSA_F32 };
  nsai_gemm pv = { .m = rows,
                   .n = m->head_dim_v,
                   .k = keys,
                   .a_row = pitch,
                   .b_row = io->kv.v[0].stride[0],
                   .c_row = io->o.stride[0],
                   .batch = heads,
                   .a_batch = rows * pitch,
                   .c_batch = io->o.stride[1],
                   .dtype = m->dtype,
                   .c_dtype = m->dtype };
  void *gemm_workspace = nsai_buffer_at(run, run->plan->workspace.gemm);
  nsai_gemm_operands first = { q, k, scores, gemm_workspace, run->queue->stream };
  nsai_gemm_operands second = { probs, v, o, gemm_workspace, run->queue->stream };
  NsaiCausalSoftmax softmax = { .scores = scores,
                                .probs = probs,
                                .scale_log2 = nsai_run_scale_log2(run),
                                .heads = heads,
                                .rows = (int)rows,
                                .keys = (int)pitch,
                                .first_position = (int)(keys - run->sizes.tokens + begin) };
  const nsa_tensor *lse = &io->lse[0];
  if (nsai_present(lse)) {
    softmax.lse =
        (float *)lse->data + begin * lse->stride[0] + (int64_t)group * heads * lse->stride[1];
    softmax.lse_token_stride = lse->stride[0];
    softmax.lse_head_stride = lse->stride[1];
  }
  NSAI_TRY(nsai_gemm_run(run->plan->lt, run->plan->lt_handle, &qk, &first));
  nsai_queue_break(run->queue);
  NSAI_TRY(nsai_launch(run->queue, &run->plan->kernels[NSAI_KERNEL_SOFTMAX], (uint64_t)rows,
                       (uint32_t)heads, &softmax));
  return nsai_gemm_run(run->plan->lt, run->plan->lt_handle, &pv, &second);
}

static nsa_status enqueue_dense_gemm(const nsai_run *run) {
  int64_t step = run->plan->workspace.chunk_tokens;
  for (int group = 0; group < run->plan->problem.model.kv_heads; group++)
    for (int64_t begin = 0; begin < run->sizes.tokens; begin += step)
      NSAI_TRY(dense_gemm_chunk(run, begin, smaller(step, run->sizes.tokens - begin), group));
  return NSA_OK;
}

static nsa_status enqueue_dense(const nsai_run *run) {
  if (run->plan->workspace.scores.bytes && run->batch)
    return nsai_fail(
        NSA_E_UNSUPPORTED,
        "dense_gemm takes one sequence without a batch: its products need the lengths on "
        "the host. Pass batch NULL, or let dense_sm90 or dense_sm80 serve the plan");
  if (run->plan->workspace.scores.bytes) return enqueue_dense_gemm(run);
  NsaiEpilogue out = { .o = nsai_view(&run->io->o),
                       .lse = run->io->lse[0].data,
                       .lse_token_stride = run->io->lse[0].stride[0],
                       .lse_head_stride = run->io->lse[0].stride[1] };
  NsaiAttend p = { .seq = nsai_run_sequences(run),
                   .q = nsai_view(&run->io->q),
                   .k = nsai_view(&run->io->kv.k[0]),
                   .v = nsai_view(&run->io->kv.v[0]),
                   .out = out,
                   .scale_log2 = nsai_run_scale_log2(run),
                   .kv_heads = run->plan->problem.model.kv_heads,
                   .tiles = (int)grid_tiles(run, NSAI_KERNEL_DENSE) };
  return launch_attend(run, NSAI_KERNEL_DENSE, &p, run->sizes.kv_tokens);
}

nsa_status nsai_enqueue_dense(const nsai_run *run) {
  return staged(run, NSAI_STAGE_DENSE, enqueue_dense);
}
