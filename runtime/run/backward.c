/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The launch list of the backward pass: gates and compressed keys where the caller has none, the statistics
 * of every row, dQ, the gate MLP; then, for as many KV heads at a time as the workspace holds partial sums
 * of, dK and dV of every branch, phi, and their sums. Nothing is added by atomics: every run gives the same
 * bits.
 */
#include "params/backward.h"
#include "base/math.h"
#include "run/params.h"
#include "variants/attend/invert.h"
#include "variants/backward/layers.h"
#include "variants/select/sort.h"

/* One backward pass. */
typedef struct pass {
  const nsai_run *run;
  const nsai_model *model;
  const nsa_grads *grads;
  NsaiView d_o, gate; /* as the kernels read them */
  int gate_float;
  NsaiAttendSelected selected; /* seq and lists */
  NsaiInvert index;            /* of the selected branch */
} pass;

static nsa_status launch(const pass *b, nsai_role role, int64_t grid_x, uint32_t grid_y,
                         const void *params) {
  return nsai_launch(b->run->queue, &b->run->plan->kernels[role], (uint64_t)grid_x, grid_y, params);
}

static bool has_branch(const pass *b, int branch) { return b->run->branches >> branch & 1; }

static NsaiGradient gradient(const pass *b, const nsa_tensor *out) {
  return (NsaiGradient){ .view = nsai_view(out),
                         .is_float = out->dtype == NSA_F32,
                         .accumulate = (int)b->grads->accumulate };
}

/* What the kernels of the rows do with the gradient of the gates: the MLP's logits wait for the products. */
static NsaiGradient gate_gradient(const pass *b) {
  const nsa_gate *out = &b->grads->d_gate;
  nsai_buffer logits = b->run->plan->workspace.backward.layers.d_logits;
  if (b->model->gate != NSAI_GATE_MLP) return gradient(b, &out->value);
  if (!nsai_wants_gate(out)) return (NsaiGradient){ .is_float = 1 };
  return (NsaiGradient){ .view = nsai_buffer_view(b->run, logits, b->model->heads, NSA_BRANCHES),
                         .is_float = 1 };
}

static bool has_ranges(const pass *b) {
  return b->run->plan->problem.selection == NSA_SELECT_RANGES;
}

/* The pair of K and V that a branch reads. */
static int pair_of(const pass *b, int branch) { return b->model->per_branch ? branch : 0; }

static NsaiView keys_of(const pass *b, int branch, int side) {
  const nsa_kv *kv = &b->run->io->kv;
  if (branch == NSA_CMP) return nsai_compressed_view(b->run, side);
  return nsai_view(side ? &kv->v[pair_of(b, branch)] : &kv->k[pair_of(b, branch)]);
}

/* ---- query rows ---- */

static NsaiBackwardQ rows_params(const pass *b) {
  const nsai_run *run = b->run;
  NsaiBackwardQ p = { .seq = nsai_compressed_sequences(run),
                      .q = nsai_view(&run->io->q),
                      .d_o = b->d_o,
                      .gate = b->gate,
                      .lists = b->selected.lists,
                      .list_token_stride = b->selected.list_token_stride,
                      .list_head_stride = b->selected.list_head_stride,
                      .statistics = nsai_buffer_at(run, run->plan->workspace.backward.statistics),
                      .d_q = gradient(b, &b->grads->d_q),
                      .d_gate = gate_gradient(b),
                      .scale = (float)nsai_run_scale(run),
                      .scale_log2 = nsai_run_scale_log2(run),
                      .kv_heads = b->model->kv_heads,
                      .gate_float = b->gate_float,
                      .branches = run->branches };
  for (int branch = 0; branch < NSA_BRANCHES; branch++) {
    if (!has_branch(b, branch)) continue;
    p.k[branch] = keys_of(b, branch, 0);
    p.v[branch] = keys_of(b, branch, 1);
  }
  return p;
}

/* The branches whose output and LSE the caller has kept, if they are to be read. */
static uint32_t saved_branches(const pass *b) {
  const nsa_io *io = b->run->io;
  uint32_t saved = 0;
  if (b->run->plan->problem.recompute == NSAI_RECOMPUTE_ALWAYS) return 0;
  for (int branch = 0; branch < NSA_BRANCHES; branch++)
    if (has_branch(b, branch) && nsai_present(&io->o_branch[branch]) &&
        nsai_present(&io->lse[branch]))
      saved |= 1u << branch;
  return saved;
}

/* Those that do not run. */
static uint32_t absent_branches(const pass *b) {
  return ~b->run->branches & ((1u << NSA_BRANCHES) - 1);
}

static nsa_status read_saved(const pass *b, uint32_t saved) {
  const nsai_run *run = b->run;
  const nsa_io *io = run->io;
  const nsai_kernel *kernel = &run->plan->kernels[NSAI_KERNEL_BACKWARD_SAVED];
  NsaiBackwardSaved p = { .seq = nsai_run_sequences(run),
                          .d_o = b->d_o,
                          .gate = b->gate,
                          .statistics =
                              nsai_buffer_at(run, run->plan->workspace.backward.statistics),
                          .d_gate = gate_gradient(b),
                          .heads = b->model->heads,
                          .gate_float = b->gate_float,
                          .saved = saved,
                          .absent = absent_branches(b) };
  for (int branch = 0; branch < NSA_BRANCHES; branch++) {
    if (!(saved >> branch & 1)) continue;
    p.o_branch[branch] = nsai_view(&io->o_branch[branch]);
    p.lse[branch] = io->lse[branch].data;
    p.lse_token_stride[branch] = io->lse[branch].stride[0];
    p.lse_head_stride[branch] = io->lse[branch].stride[1];
  }
  int64_t rows = run->sizes.tokens * p.heads, lanes = 1; /* of a row, 8 columns each */
  while (8 * lanes < b->model->head_dim_v) lanes *= 2;
  return launch(b, NSAI_KERNEL_BACKWARD_SAVED, nsai_ceil_div(rows * lanes, kernel->threads), 1, &p);
}

/* Tiles of query tokens of all KV heads. */
static int64_t row_tiles(const pass *b, nsai_role role) {
  return (int64_t)nsai_tile_count(b->run, b->run->plan->kernels[role].tile_tokens) *
         b->model->kv_heads;
}

/* Whether window and selected branch run and read one pair. */
static bool joins_branches(const pass *b) {
  return !b->model->per_branch && has_branch(b, NSA_SEL) && has_branch(b, NSA_WIN);
}

/* A kernel over query rows, which takes tensor maps and stays on the device, or does not. */
static nsa_status launch_rows(const pass *b, nsai_role role, const NsaiBackwardQ *rows) {
  const nsai_run *run = b->run;
  const nsai_kernel *kernel = &run->plan->kernels[role];
  int64_t tiles = row_tiles(b, role);
  if (!kernel->tma_box_keys) return launch(b, role, tiles, 1, rows);
  NsaiBackwardQTma p = { .rows = *rows, .tiles = (int)tiles, .joined = joins_branches(b) };
  NSAI_TRY(nsai_map_rows(run, kernel, "q", &rows->q, b->model->head_dim_qk, &p.q));
  NSAI_TRY(nsai_map_rows(run, kernel, "grads.d_o", &rows->d_o, b->model->head_dim_v, &p.d_o));
  for (int branch = 0; branch < NSA_BRANCHES; branch++) {
    const NsaiView kv[2] = { rows->k[branch], rows->v[branch] };
    int64_t keys = branch == NSA_CMP ? nsai_present_blocks(run) : run->sizes.kv_tokens;
    if (rows->branches >> branch & 1)
      NSAI_TRY(nsai_map_keys(run, kernel, kv, keys, &p.k[branch], &p.v[branch]));
  }
  return launch(b, role, tiles <= INT32_MAX ? nsai_smaller(kernel->most_blocks, tiles) : tiles, 1,
                &p);
}

/* What the passes over the keys need to know of each row. */
static nsa_status find_statistics(const pass *b, NsaiBackwardQ p) {
  uint32_t saved = saved_branches(b);
  if (saved) NSAI_TRY(read_saved(b, saved));
  p.branches &= ~saved;
  p.absent = saved ? 0 : absent_branches(b);
  if (!p.branches) return NSA_OK;
  return launch_rows(b, NSAI_KERNEL_BACKWARD_STATISTICS, &p);
}

static nsa_status query_rows(const pass *b) {
  NsaiBackwardQ p = rows_params(b);
  if (!b->run->sizes.tokens) return NSA_OK; /* nor need anything be kept of them */
  NSAI_TRY(find_statistics(b, p));
  return nsai_present(&b->grads->d_q) ? launch_rows(b, NSAI_KERNEL_BACKWARD_Q, &p) : NSA_OK;
}

/* ---- keys ---- */

static bool wants_pair(const pass *b, int pair) {
  const nsa_kv *kv = &b->grads->d_kv;
  return nsai_present(&kv->k[pair]) || nsai_present(&kv->v[pair]);
}

static bool is_external(const pass *b) { return b->model->phi == NSAI_PHI_EXTERNAL; }

static bool wants_compressed(const pass *b) {
  const nsa_kv *kv = &b->grads->d_kv;
  return nsai_present(&kv->k_cmp) || nsai_present(&kv->v_cmp);
}

static bool wants_weights(const pass *b) {
  return nsai_wants_phi(&b->grads->d_phi.k) || nsai_wants_phi(&b->grads->d_phi.v);
}

/* Whether an output depends on the branch's dK and dV. */
static bool needs_branch(const pass *b, int branch) {
  if (!has_branch(b, branch)) return false;
  if (branch == NSA_CMP && is_external(b)) return wants_compressed(b);
  if (branch == NSA_CMP && wants_weights(b)) return true;
  return wants_pair(b, pair_of(b, branch));
}

/* Keys of a tile: a box of them, or 16 to a warp. */
static int64_t tile_keys(const pass *b, nsai_role role) {
  const nsai_kernel *kernel = &b->run->plan->kernels[role];
  return kernel->tma_box_keys ? kernel->tma_box_keys : kernel->threads / 32 * 16;
}

/* Tiles of keys that cover `rows` of all sequences: data/sequence.cuh. */
static int64_t key_tiles(const pass *b, nsai_role role, int64_t rows) {
  int64_t keys = tile_keys(b, role);
  return b->run->batch ? rows / keys + b->run->sizes.num_seqs : nsai_ceil_div(rows, keys);
}

/* Rows that compressed blocks of this run's sequences take: packed_block_row of data/sequence.cuh. */
static int64_t block_rows(const pass *b) { return b->run->sizes.kv_tokens / b->model->stride + 1; }

static NsaiBackwardKv keys_params(const pass *b, int branch, nsai_buffer partial, int head,
                                  int heads) {
  const nsai_run *run = b->run;
  return (NsaiBackwardKv){ .seq = nsai_compressed_sequences(run),
                           .q = nsai_view(&run->io->q),
                           .d_o = b->d_o,
                           .k = keys_of(b, branch, 0),
                           .v = keys_of(b, branch, 1),
                           .statistics =
                               nsai_buffer_at(run, run->plan->workspace.backward.statistics),
                           .partial = nsai_buffer_at(run, partial),
                           .head_begin = head,
                           .heads = heads,
                           .kv_heads = b->model->kv_heads,
                           .splits = 1,
                           .scale = (float)nsai_run_scale(run),
                           .scale_log2 = nsai_run_scale_log2(run) };
}

/* dK and dV of a branch, by a kernel that takes tensor maps or one that does not; `keys`: rows of k and v
 * that may be read. */
static nsa_status launch_keys(const pass *b, nsai_role role, int64_t grid, int64_t keys,
                              const NsaiBackwardKv *kv) {
  const nsai_run *run = b->run;
  const nsai_kernel *kernel = &run->plan->kernels[role];
  if (!kernel->tma_box_keys) return launch(b, role, grid, 1 + nsai_backward_is_split(b->model), kv);
  NsaiBackwardKvTma p = { .kv = *kv };
  const NsaiView pair[2] = { kv->k, kv->v };
  NSAI_TRY(nsai_map_rows(run, kernel, "q", &kv->q, b->model->head_dim_qk, &p.q));
  NSAI_TRY(nsai_map_rows(run, kernel, "grads.d_o", &kv->d_o, b->model->head_dim_v, &p.d_o));
  NSAI_TRY(nsai_map_keys(run, kernel, pair, keys, &p.k, &p.v));
  return launch(b, role, grid, 1, &p);
}

/* Whether the window's kernel does the selected branch within the window. */
static bool joins_keys(const pass *b) {
  return b->run->plan->kernels[NSAI_KERNEL_BACKWARD_WINDOW].tma_box_keys &&
         nsai_backward_joins(b->model) && joins_branches(b);
}

static nsa_status compressed_keys(const pass *b, int head, int heads) {
  const nsai_backward_workspace *l = &b->run->plan->workspace.backward;
  NsaiBackwardKv p = keys_params(b, NSA_CMP, l->compressed, head, heads);
  p.rows = block_rows(b);
  p.tiles = (int)key_tiles(b, NSAI_KERNEL_BACKWARD_COMPRESSED, p.rows);
  p.splits = l->splits;
  return launch_keys(b, NSAI_KERNEL_BACKWARD_COMPRESSED, (int64_t)heads * p.splits * p.tiles,
                     nsai_present_blocks(b->run), &p);
}

static nsa_status window_keys(const pass *b, int head, int heads) {
  NsaiBackwardKv p = keys_params(b, NSA_WIN, b->run->plan->workspace.backward.window, head, heads);
  p.rows = b->run->sizes.kv_tokens;
  p.tiles = (int)key_tiles(b, NSAI_KERNEL_BACKWARD_WINDOW, p.rows);
  p.lists = b->selected.lists;
  p.list_token_stride = b->selected.list_token_stride;
  p.list_head_stride = b->selected.list_head_stride;
  p.joined = b->index.near > 0;
  return launch_keys(b, NSAI_KERNEL_BACKWARD_WINDOW, (int64_t)heads * p.tiles,
                     b->run->sizes.kv_tokens, &p);
}

/* The selected branch where the caller brings ranges. */
static nsa_status ranges_keys(const pass *b, int head, int heads) {
  const nsai_backward_workspace *l = &b->run->plan->workspace.backward;
  NsaiBackwardKv p = keys_params(b, NSA_SEL, l->selected, head, heads);
  p.rows = b->run->sizes.kv_tokens;
  p.tiles = (int)key_tiles(b, NSAI_KERNEL_BACKWARD_SELECTED, p.rows);
  p.splits = l->range_splits;
  p.lists = b->selected.lists;
  p.list_token_stride = b->selected.list_token_stride;
  p.list_head_stride = b->selected.list_head_stride;
  return launch(b, NSAI_KERNEL_BACKWARD_SELECTED, (int64_t)heads * p.splits * p.tiles,
                1 + nsai_backward_is_split(b->model), &p);
}

static nsa_status selected_keys(const pass *b, int head, int heads) {
  NsaiBackwardKv p =
      keys_params(b, NSA_SEL, b->run->plan->workspace.backward.selected, head, heads);
  p.items = b->index.items;
  p.item_counts = b->index.item_counts;
  p.entries = b->index.entries;
  p.entry_capacity = b->index.entry_capacity;
  p.item_capacity = b->index.item_capacity;
  p.shared_lists = !b->index.list_head_stride;
  p.tiles = (int)nsai_ceil_div(b->model->select_block, tile_keys(b, NSAI_KERNEL_BACKWARD_SELECTED));
  return launch_keys(b, NSAI_KERNEL_BACKWARD_SELECTED, (int64_t)heads * p.item_capacity * p.tiles,
                     b->run->sizes.kv_tokens, &p);
}

/* dK and dV of one pair, or of the caller's compressed blocks; `branches`: whose sums they are. */
static nsa_status sum_pair(const pass *b, const nsa_tensor *k, const nsa_tensor *v,
                           uint32_t branches, bool external, int head, int heads) {
  const nsai_run *run = b->run;
  const nsai_backward_workspace *l = &run->plan->workspace.backward;
  const nsa_tensor *given = nsai_present(k) ? k : v;
  if (!nsai_present(given)) return NSA_OK;
  NsaiBackwardSum p = { .seq = nsai_compressed_sequences(run),
                        .d_k = gradient(b, k),
                        .d_v = gradient(b, v),
                        .item_starts = b->index.item_starts,
                        .item_counts = b->index.item_counts,
                        .compressed_rows = block_rows(b),
                        .window_rows = run->sizes.kv_tokens,
                        .item_capacity = b->index.item_capacity,
                        .blocks = b->index.blocks,
                        .shared_lists = !b->index.list_head_stride,
                        .rows = (int)given->shape[0],
                        .head_begin = head,
                        .heads = heads,
                        .is_external = external,
                        .range_splits = l->range_splits };
  if (branches >> NSA_CMP & 1 && nsai_phi_has_weights(b->model)) {
    if (nsai_present(k)) p.k_rows = nsai_buffer_at(run, l->layers.k_rows);
    if (nsai_present(v)) p.v_rows = nsai_buffer_at(run, l->layers.v_rows);
  } else if (branches >> NSA_CMP & 1) {
    p.compressed = nsai_buffer_at(run, l->compressed);
    p.splits = l->splits;
  }
  if (branches >> NSA_SEL & 1) p.selected = nsai_buffer_at(run, l->selected);
  if (branches >> NSA_WIN & 1) p.window = nsai_buffer_at(run, l->window);
  int64_t columns = (b->model->head_dim_qk + b->model->head_dim_v) / 4;
  int64_t items = run->plan->kernels[NSAI_KERNEL_BACKWARD_SUM].threads / columns;
  int64_t runs = nsai_ceil_div(p.rows, nsai_sum_run(b->model));
  return launch(b, NSAI_KERNEL_BACKWARD_SUM, nsai_ceil_div(runs * heads, items), 1, &p);
}

static nsa_status sum_pairs(const pass *b, int head, int heads) {
  const nsa_kv *out = &b->grads->d_kv;
  uint32_t raw = b->run->branches & ~(is_external(b) ? 1u << NSA_CMP : 0u);
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    uint32_t branches = b->model->per_branch ? raw & 1u << pair : raw;
    NSAI_TRY(sum_pair(b, &out->k[pair], &out->v[pair], branches, false, head, heads));
  }
  uint32_t compressed = b->run->branches & 1u << NSA_CMP;
  return sum_pair(b, &out->k_cmp, &out->v_cmp, compressed, true, head, heads);
}

static nsa_status key_heads(const pass *b, int head, int heads) {
  if (needs_branch(b, NSA_CMP)) NSAI_TRY(compressed_keys(b, head, heads));
  if (nsai_phi_has_weights(b->model))
    NSAI_TRY(nsai_enqueue_phi_back(b->run, b->grads, head, heads));
  if (needs_branch(b, NSA_WIN)) NSAI_TRY(window_keys(b, head, heads));
  if (needs_branch(b, NSA_SEL))
    NSAI_TRY(has_ranges(b) ? ranges_keys(b, head, heads) : selected_keys(b, head, heads));
  return sum_pairs(b, head, heads);
}

/* ---- the whole ---- */

/* d_o as the products take it. One in f32 is rounded into the workspace, behind all that the plan lays out
 * there: plans do not know of it. */
static nsa_status take_d_o(pass *b) {
  const nsai_run *run = b->run;
  const nsa_tensor *d_o = &b->grads->d_o;
  uint64_t needed = run->plan->workspace.total + nsai_d_o_bytes(b->model, run->sizes.tokens);
  b->d_o = nsai_view(d_o);
  if (d_o->dtype != NSA_F32) return NSA_OK;
  if (!run->workspace || run->workspace_bytes < needed)
    return nsai_fail(NSA_E_WORKSPACE,
                     "grads.d_o is f32, and is rounded in the workspace: exec.workspace has %llu "
                     "bytes, %llu are needed, caps.workspace_bytes and 2 for each element of d_o; "
                     "give more, or a d_o in the model's dtype",
                     (unsigned long long)run->workspace_bytes, (unsigned long long)needed);
  NsaiBackwardRound p = { .d_o = b->d_o,
                          .out = run->workspace + run->plan->workspace.total,
                          .tokens = (int)run->sizes.tokens,
                          .heads = b->model->heads };
  int64_t dim = b->model->head_dim_v, threads = run->sizes.tokens * p.heads * dim / 4;
  b->d_o = (NsaiView){ p.out, p.heads * dim, dim };
  return launch(b, NSAI_KERNEL_BACKWARD_ROUND,
                nsai_ceil_div(threads, run->plan->kernels[NSAI_KERNEL_BACKWARD_ROUND].threads), 1,
                &p);
}

static nsa_status make_gates(pass *b) {
  NsaiEpilogue out = { 0 };
  NSAI_TRY(nsai_enqueue_gates(b->run));
  nsai_set_gate(b->run, &out);
  b->gate = out.gate;
  b->gate_float = out.gate_float;
  return NSA_OK;
}

/* Inverting them is a part of the stage backward_kv. */
static nsa_status make_lists(pass *b) {
  const nsai_run *run = b->run;
  b->selected.seq = nsai_run_sequences(run);
  if (!has_branch(b, NSA_SEL)) return NSA_OK;
  NSAI_TRY(nsai_sort_enqueue(run, &run->plan->kernels[NSAI_KERNEL_SORT], &b->selected));
  if (!needs_branch(b, NSA_SEL) || has_ranges(b)) return NSA_OK;
  NSAI_TRY(nsai_run_stage_event(run, NSAI_STAGE_BACKWARD_KV, true));
  const nsai_kv_workspace *kv = &run->plan->workspace.kv;
  const nsai_buffer lists[] = { kv->counts,        kv->starts, kv->entries,
                                kv->entry_indices, kv->items,  kv->item_counts };
  b->index =
      nsai_invert_params(run, &b->selected, 0, run->sizes.tokens,
                         run->plan->kernels[NSAI_KERNEL_BACKWARD_SELECTED].tile_tokens, lists);
  b->index.item_starts = nsai_buffer_at(run, run->plan->workspace.backward.starts);
  if (joins_keys(b)) b->index.near = b->model->window;
  NSAI_TRY(nsai_invert_enqueue(run, &run->plan->kernels[NSAI_KERNEL_INVERT_COUNT], b->index));
  return nsai_run_stage_event(run, NSAI_STAGE_BACKWARD_KV, false);
}

nsa_status nsai_enqueue_backward(const nsai_run *run) {
  const nsa_grads *grads = run->grads;
  pass b = { .run = run, .model = &run->plan->problem.model, .grads = grads };
  NSAI_TRY(take_d_o(&b));
  NSAI_TRY(make_gates(&b));
  if (has_branch(&b, NSA_CMP) && !nsai_present(&run->io->kv.k_cmp)) {
    NSAI_TRY(nsai_enqueue_compress(run));
  }
  NSAI_TRY(make_lists(&b));
  NSAI_TRY(nsai_run_stage_event(run, NSAI_STAGE_BACKWARD_Q, true));
  NSAI_TRY(query_rows(&b));
  NSAI_TRY(nsai_run_stage_event(run, NSAI_STAGE_BACKWARD_Q, false));
  if (b.model->gate == NSAI_GATE_MLP) NSAI_TRY(nsai_enqueue_gate_back(run, grads));
  NSAI_TRY(nsai_run_stage_event(run, NSAI_STAGE_BACKWARD_KV, true));
  for (int head = 0; head < b.model->kv_heads; head += run->plan->workspace.backward.heads)
    NSAI_TRY(key_heads(&b, head,
                       (int)nsai_smaller(run->plan->workspace.backward.heads,
                                         b.model->kv_heads - head)));
  return nsai_run_stage_event(run, NSAI_STAGE_BACKWARD_KV, false);
}
