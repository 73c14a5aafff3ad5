/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * backward_kv as a whole: which kernels its branches have, its workspace, and the order of its
 * launches. First, on its own: a caller's selection is sorted, for backward_q as well, and
 * inverted. The gate MLP's pass is a part of its own, too. Then, group by group of KV heads: dK and
 * dV of every branch, phi, and their sums.
 */
#include "variants/backward/kv.h"

#include "base/math.h"

#include "variants/backward/backward.h"
#include "variants/select/sort.h"

/* ---- kernels ---- */

/* Words of shared memory of backward_dkv_ranges: a thousand rows, of a token and its keys each. */
#define RANGE_WORDS 2048

/* Blocks of at most 32 keys would leave half of wgmma's 64 empty. */
static int32_t block_keys(const nsai_model *m) {
  int32_t keys = nsai_padded_dim(m->select_block);
  return keys > 32 ? NSAI_DKV_TILE_KEYS : keys;
}

/* One branch's kernel: through tensor maps where it can be. Lists and window then have persistent CTAs. Beside
 * a CTA for each tile they took, in ms of a burst of the whole backward pass with saved outputs (H200, D 128,
 * correlated inputs unless said otherwise; items by blocks):
 *
 *   tokens, heads           a CTA a tile  persistent
 *   4k, 64/4                1.67          1.48
 *   8k, 64/4                3.36          3.17
 *   64k, 64/4               44.97         43.90
 *   64k, 64/4, random       59.1          57.2
 *   32k, 64/8               19.93         19.39
 *   32k, 64/16              22.08         22.00
 *   16k, 16/16              4.10          4.06
 *   32k, 64/4, D 64         12.90         12.06
 *   32k, 64/4, Dk 192       23.25         22.42
 */
static void specify_branch(const nsai_request *r, bool wgmma, const nsai_dkv_use *plain,
                           const nsai_dkv_use *boxed, nsai_kernel_spec *spec) {
  if (wgmma && nsai_dkv_tma_fits(r, boxed))
    nsai_dkv_tma_specify(r, boxed, spec);
  else
    nsai_dkv_mainloop_specify(r, wgmma, plain, spec);
}

/* Plans of so many tokens have persistent CTAs that take items by their first tokens: the rows of nearby tokens,
 * which they then read at a time, come from L2 more often. Fewer tokens have rows that L2 holds as a whole. ms
 * of the whole backward pass, burst and sustained (H200, 64/4 heads, D 128, saved outputs, correlated inputs
 * unless said otherwise):
 *
 *   tokens                    8k             16k            64k            64k, random    128k
 *   by blocks                 3.17 / 3.33    7.06 / 7.67    44.3 / 47.9    55.8 / 59.1    135.9 / 140.8
 *   by first tokens, of 512                                 43.8 / 47.2    55.3 / 58.7    136.0 / 142.7
 *   of 256                    3.17 / 3.28    6.96 / 7.49    44.0 / 47.4    55.8 / 58.4    136.5 / 139.7
 *   of 128                                                  44.9 / 48.0
 *
 * (Another machine than above. Items by blocks have 256, of 64k tokens and more 1024.) With all rows from L2
 * 64k would take 43.2 for 45.0, and 16k 6.94 for 7.12. Shorter items span fewer tokens, but store more sums: at
 * 64k a model of L2 that holds 25 MB of rows reads 27 GB from HBM by blocks, and 24, 22 and 19 by first tokens,
 * of 512, 256 and 128. */
#define LEAST_ORDERED_TOKENS 8192
#define LONG_TOKENS 131072 /* from here on items are by blocks again, and long */

static bool orders_items(const nsai_problem *p) {
  return p->max_tokens >= LEAST_ORDERED_TOKENS && p->max_tokens < LONG_TOKENS;
}

/* Tokens of an item of persistent CTAs: shorter items are shared out more evenly, but each loads keys, and
 * stores sums that are to be added. Few numbers, because each is a kernel of its own. */
static int32_t item_tokens(const nsai_problem *p) {
  if (p->max_tokens < 32768) return 256;
  return p->max_tokens < LONG_TOKENS ? 512 : NSAI_DKV_ITEM_TOKENS;
}

static void specify_selected(const nsai_request *r, bool wgmma,
                             nsai_kernel_spec kernel[NSAI_DKV_KERNELS]) {
  const int32_t keys = block_keys(&r->problem->model);
  const nsai_dkv_use plain = { .entry = "backward_dkv_selected",
                               .keys = keys,
                               .entries = NSAI_DKV_ITEM_TOKENS };
  const nsai_dkv_use boxed = { .entry = "backward_dkv_selected_persistent",
                               .keys = NSAI_DKV_TILE_KEYS,
                               .entries = item_tokens(r->problem),
                               .persistent = true };
  const nsai_dkv_use ranges = { .entry = "backward_dkv_ranges",
                                .keys = NSAI_DKV_TILE_KEYS,
                                .entries = RANGE_WORDS };
  nsai_kernel_spec *spec = &kernel[NSAI_DKV_SELECTED];
  nsai_sort_specify(r->problem, &kernel[NSAI_DKV_SORT]);
  if (r->problem->selection == NSA_SELECT_RANGES) {
    nsai_dkv_mainloop_specify(r, wgmma, &ranges, spec);
    return;
  }
  specify_branch(r, wgmma && keys == NSAI_DKV_TILE_KEYS, &plain, &boxed, spec);
  nsai_invert_specify(r->problem, spec->tile_tokens, &kernel[NSAI_DKV_INVERT]);
  if (spec->ctas_per_sm && orders_items(r->problem))
    nsai_invert_order_specify(r->problem, &kernel[NSAI_DKV_ORDER]);
}

static bool is_persistent(const nsai_kernel_spec kernel[NSAI_DKV_KERNELS]) {
  return kernel[NSAI_DKV_WINDOW].ctas_per_sm || kernel[NSAI_DKV_SELECTED].ctas_per_sm;
}

void nsai_dkv_specify(const nsai_request *r, bool wgmma,
                      nsai_kernel_spec kernel[NSAI_DKV_KERNELS]) {
  const nsai_model *m = &r->problem->model;
  const nsai_dkv_use compressed[] = {
    { .entry = "backward_dkv_compressed", .keys = NSAI_DKV_TILE_KEYS },
    { .entry = "backward_dkv_compressed_tma", .keys = 2 * NSAI_DKV_TILE_KEYS },
  };
  const nsai_dkv_use window[] = {
    { .entry = "backward_dkv_window", .keys = NSAI_DKV_TILE_KEYS },
    { .entry = "backward_dkv_window_persistent",
      .keys = 2 * NSAI_DKV_TILE_KEYS,
      .joins = nsai_dkv_may_join(m),
      .persistent = true },
  };
  if (nsai_compresses(m))
    specify_branch(r, wgmma, &compressed[0], &compressed[1], &kernel[NSAI_DKV_COMPRESSED]);
  if (m->window) specify_branch(r, wgmma, &window[0], &window[1], &kernel[NSAI_DKV_WINDOW]);
  if (m->select_count) specify_selected(r, wgmma, kernel);
  if (is_persistent(kernel)) nsai_backward_clear_specify(r->problem, &kernel[NSAI_DKV_CLEAR]);
  nsai_dkv_sum_specify(r->problem, &kernel[NSAI_DKV_SUM]);
  nsai_ranks_sum_specify(r->problem, &kernel[NSAI_DKV_RANKS_SUM]);
  nsai_layers_specify(r->problem, &kernel[NSAI_DKV_LAYERS]);
}

/* ---- workspace ---- */

/* Partial sums of dK and dV: at 64k tokens and D 128 a KV head has 273 MB, and four fit. In pieces of this
 * many bytes, 1.125 GiB, the launches last milliseconds. */
#define GRADIENT_CHUNK_BYTES ((int64_t)9 << 27)

/* Few tiles of compressed keys have many query rows each: they are cut until there are so many
 * CTAs, several for each place on the largest devices, so that unequal ones even out. */
#define COMPRESSED_CTAS 2048
#define MOST_SPLITS 32
#define COMPRESSED_KEYS 128 /* of a tile */
#define RANGE_KEYS 64       /* of a tile of a caller's ranges */

/* At least so many runs where the caller brings ranges: all tokens may see the first tile of keys,
 * and few the others. */
#define LEAST_RANGE_SPLITS 4

/* Runs that the query rows of so many tiles are cut into. */
static int64_t choose_splits(int64_t tiles, int64_t least) {
  return nsai_smaller(nsai_larger(COMPRESSED_CTAS / tiles, least), MOST_SPLITS);
}

/* Bytes of the partial sums of the selected branch, for each KV head; sizes the lists. */
static int64_t size_selected(const nsai_problem *p, const nsai_kernel_spec kernel[],
                             nsai_form_sizes *out) {
  const nsai_model *m = &p->model;
  const int64_t item_rows = kernel[NSAI_DKV_SELECTED].tile_tokens;
  const int64_t row = (int64_t)(m->head_dim_qk + m->head_dim_v) * 4;
  if (!m->select_count) return 0;
  if (p->selection == NSA_SELECT_RANGES) {
    int64_t tiles = (p->max_kv_tokens / RANGE_KEYS + p->max_seqs) * m->kv_heads;
    out->number[NSAI_DKV_RANGE_SPLITS] = choose_splits(tiles, LEAST_RANGE_SPLITS);
    return NSAI_PRODUCT(out->number[NSAI_DKV_RANGE_SPLITS], p->max_kv_tokens, row);
  }
  int64_t blocks = nsai_kv_blocks(m, p->max_kv_tokens, p->max_seqs);
  nsai_invert_workspace(p, p->max_tokens, item_rows, out->bytes);
  out->bytes[NSAI_DKV_ITEM_STARTS] = NSAI_PRODUCT(m->kv_heads, blocks, 4);
  const int64_t items = nsai_kv_items(m, p->max_tokens, blocks, item_rows);
  if (kernel[NSAI_DKV_ORDER].entry)
    out->bytes[NSAI_DKV_ITEM_ORDER] = NSAI_PRODUCT(m->kv_heads, items, 4);
  return NSAI_PRODUCT(items, m->select_block, row);
}

static int64_t ticket_words(const nsai_model *m, int64_t heads) {
  return nsai_ceil_div(m->kv_heads, heads) * NSAI_DKV_TICKETS;
}

/* As many KV heads at a time as the budget has room for, at least one. */
static void size_heads(const nsai_request *r, const nsai_kernel_spec kernel[], int64_t most,
                       nsai_form_sizes *out) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  int64_t row = (int64_t)(m->head_dim_qk + m->head_dim_v) * 4;
  int64_t cmp_rows = nsai_compresses(m) ? p->max_kv_tokens / m->stride + 1 : 0;
  int64_t compressed = NSAI_PRODUCT(cmp_rows, row);
  int64_t window = m->window ? NSAI_PRODUCT(p->max_kv_tokens, row) : 0;
  int64_t selected = size_selected(p, kernel, out);
  int64_t layers = nsai_phi_has_weights(m) ? NSAI_PRODUCT(cmp_rows + 1, m->block, row) : 0;
  int64_t head = nsai_size_add(nsai_size_add(window, selected), nsai_size_add(compressed, layers));
  int64_t fit = GRADIENT_CHUNK_BYTES / head;
  int64_t heads = nsai_smaller(nsai_larger(fit, 1), most);
  int64_t splits = choose_splits((cmp_rows / COMPRESSED_KEYS + p->max_seqs) * heads, 1);
  out->number[NSAI_DKV_HEADS] = out->number[NSAI_DKV_COMPRESSED_HEADS] = heads;
  out->number[NSAI_DKV_SPLITS] = splits;
  out->bytes[NSAI_DKV_COMPRESSED_SUMS] = NSAI_PRODUCT(heads, splits, compressed);
  out->bytes[NSAI_DKV_SELECTED_SUMS] = NSAI_PRODUCT(heads, selected);
  out->bytes[NSAI_DKV_WINDOW_SUMS] = NSAI_PRODUCT(heads, window);
  if (is_persistent(kernel)) out->bytes[NSAI_DKV_COUNTERS] = 4 * ticket_words(m, heads);
  nsai_layers_workspace(p, heads, &out->bytes[NSAI_DKV_LAYERS_BUFFERS],
                        &out->number[NSAI_DKV_GATE_TOKENS]);
}

void nsai_dkv_workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                        nsai_form_sizes *out) {
  size_heads(r, kernel, r->problem->model.kv_heads, out);
}

/* Tiles of keys that add to the same rows follow each other at the distance of a stage. Of so many
 * stages of 64 rows the waits at the beginning, and the loads and stores of a CTA, are few. */
#define ORDERED_STAGES 256

/* With few runs, many heads make enough CTAs of them: in equal groups that have so many bytes of
 * sums at most. */
void nsai_dkv_workspace_ordered(const nsai_request *r, const nsai_kernel_spec kernel[],
                                int64_t most, nsai_form_sizes *out) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  size_heads(r, kernel, most, out);
  const int64_t heads = out->number[NSAI_DKV_HEADS], groups = nsai_ceil_div(m->kv_heads, heads);
  const int64_t rows = NSAI_PRODUCT(p->max_tokens, m->heads / m->kv_heads);
  const int64_t runs = nsai_larger(rows / ((int64_t)ORDERED_STAGES * 64), 1);
  const int64_t splits = nsai_smaller(runs, out->number[NSAI_DKV_SPLITS]);
  const int64_t group = NSAI_PRODUCT(heads, splits, p->max_kv_tokens / m->stride + 1,
                                     (m->head_dim_qk + m->head_dim_v) * 4);
  const int64_t fit = nsai_larger(GRADIENT_CHUNK_BYTES / group, 1);
  const int64_t together = nsai_ceil_div(groups, nsai_ceil_div(groups, fit));
  out->number[NSAI_DKV_COMPRESSED_HEADS] = together * heads;
  out->number[NSAI_DKV_SPLITS] = splits;
  out->bytes[NSAI_DKV_COMPRESSED_SUMS] =
      NSAI_PRODUCT(nsai_smaller(together * heads, m->kv_heads), group / heads);
}

/* ---- launches ---- */

static bool wants_compressed(const nsai_run *run) {
  const nsa_kv *kv = &run->grads->d_kv;
  return nsai_present(&kv->k_cmp) || nsai_present(&kv->v_cmp);
}

static bool wants_weights(const nsai_run *run) {
  return nsai_wants_phi(&run->grads->d_phi.k) || nsai_wants_phi(&run->grads->d_phi.v);
}

bool nsai_dkv_needs(const nsai_run *run, int branch) {
  const nsa_kv *kv = &run->grads->d_kv;
  const int pair = nsai_run_pair(run, branch);
  bool external = run->plan->problem.model.phi == NSAI_PHI_EXTERNAL;
  if (!nsai_run_has(run, branch)) return false;
  if (branch == NSA_CMP && external) return wants_compressed(run);
  if (branch == NSA_CMP && wants_weights(run)) return true;
  return nsai_present(&kv->k[pair]) || nsai_present(&kv->v[pair]);
}

/* Whether the window's kernel does the selected branch within the window. */
static bool joins(const nsai_run *run, const nsai_form *form) {
  return form->kernel[NSAI_DKV_WINDOW].tma_box_keys &&
         nsai_dkv_may_join(&run->plan->problem.model) && nsai_backward_joined(run);
}

/* The pass over all heads. `makes_dq`: of the selected branch, too. */
static nsai_dkv_pass open_pass(const nsai_run *run, const nsai_form *form, bool makes_dq) {
  const nsai_problem *p = &run->plan->problem;
  nsai_dkv_pass pass = {
    .run = run, .form = form, .selected = nsai_backward_lists(run), .heads = p->model.kv_heads
  };
  if (!nsai_run_has(run, NSA_SEL) || p->selection == NSA_SELECT_RANGES) return pass;
  if (!makes_dq && !nsai_dkv_needs(run, NSA_SEL)) return pass;
  pass.index = nsai_invert_params(run, &pass.selected, 0, run->sizes.tokens,
                                  form->kernel[NSAI_DKV_SELECTED].tile_tokens, form->buffer);
  pass.index.item_starts = nsai_buffer_at(run, form->buffer[NSAI_DKV_ITEM_STARTS]);
  if (form->kernel[NSAI_DKV_ORDER].function)
    pass.item_order = nsai_buffer_at(run, form->buffer[NSAI_DKV_ITEM_ORDER]);
  if (!makes_dq && joins(run, form)) pass.index.near = p->model.window;
  return pass;
}

nsa_status nsai_dkv_lists_enqueue(const nsai_run *run, const nsai_form *form, bool makes_dq) {
  nsai_dkv_pass pass = open_pass(run, form, makes_dq);
  if (!nsai_run_has(run, NSA_SEL)) return NSA_OK;
  NSAI_TRY(nsai_sort_enqueue(run, &form->kernel[NSAI_DKV_SORT], &pass.selected));
  if (!pass.index.items) return NSA_OK;
  NSAI_TRY(nsai_invert_enqueue(run, &form->kernel[NSAI_DKV_INVERT], pass.index));
  if (!pass.item_order) return NSA_OK;
  return nsai_invert_order_enqueue(run, &form->kernel[NSAI_DKV_ORDER], &pass.index,
                                   pass.item_order);
}

static nsai_layers_pass layers_pass(const nsai_run *run, const nsai_form *form) {
  return (nsai_layers_pass){ .run = run,
                             .kernel = &form->kernel[NSAI_DKV_LAYERS],
                             .buffer = &form->buffer[NSAI_DKV_LAYERS_BUFFERS] };
}

static nsa_status gate_back(const nsai_run *run, const nsai_form *form) {
  nsai_layers_pass gate = layers_pass(run, form);
  gate.batch = 1;
  gate.rows = run->sizes.tokens;
  gate.gate_tokens = form->number[NSAI_DKV_GATE_TOKENS];
  return nsai_gate_back_enqueue(&gate);
}

static nsa_status phi_back(const nsai_dkv_pass *b) {
  nsai_layers_pass phi = layers_pass(b->run, b->form);
  phi.batch = b->heads;
  phi.first_head = b->head;
  phi.rows = nsai_dkv_block_rows(b->run);
  phi.compressed = nsai_dkv_compressed_sums(b);
  phi.splits = b->form->number[NSAI_DKV_SPLITS];
  return nsai_phi_back_enqueue(&phi);
}

static nsa_status enqueue_heads(const nsai_dkv_pass *b) {
  const bool wants_dq = nsai_present(&b->run->grads->d_q);
  const bool compressed = wants_dq && b->dq.sums && nsai_run_has(b->run, NSA_CMP);
  const bool selected = wants_dq && b->dq.slots;
  const bool first = b->head == b->compressed_head; /* of those that the branch has at a time */
  if (first && (compressed || nsai_dkv_needs(b->run, NSA_CMP)))
    NSAI_TRY(nsai_dkv_compressed_enqueue(b));
  if (nsai_phi_has_weights(&b->run->plan->problem.model)) NSAI_TRY(phi_back(b));
  if (nsai_dkv_needs(b->run, NSA_WIN)) NSAI_TRY(nsai_dkv_window_enqueue(b));
  if (selected || nsai_dkv_needs(b->run, NSA_SEL)) NSAI_TRY(nsai_dkv_selected_enqueue(b));
  if (selected) NSAI_TRY(nsai_dkv_slots_enqueue(b));
  return nsai_dkv_sum_enqueue(b);
}

nsai_buffer nsai_dkv_compressed_sums(const nsai_dkv_pass *b) {
  const nsai_model *m = &b->run->plan->problem.model;
  nsai_buffer sums = b->form->buffer[NSAI_DKV_COMPRESSED_SUMS];
  const int64_t before = b->head - b->compressed_head;
  sums.offset +=
      (uint64_t)NSAI_PRODUCT(before, b->form->number[NSAI_DKV_SPLITS], nsai_dkv_block_rows(b->run),
                             (m->head_dim_qk + m->head_dim_v) * 4);
  return sums;
}

/* In every run, and every replay of a graph: no run depends on what the one before left. */
static nsa_status clear_tickets(const nsai_run *run, const nsai_form *form, int **tickets) {
  const nsai_kernel *kernel = &form->kernel[NSAI_DKV_CLEAR];
  *tickets = NULL;
  if (!kernel->function) return NSA_OK;
  if (!nsai_dkv_needs(run, NSA_WIN) && !nsai_dkv_needs(run, NSA_SEL)) return NSA_OK;
  *tickets = nsai_buffer_at(run, form->buffer[NSAI_DKV_COUNTERS]);
  return nsai_backward_clear_enqueue(run, kernel, *tickets,
                                     ticket_words(&run->plan->problem.model,
                                                  form->number[NSAI_DKV_HEADS]));
}

nsa_status nsai_dkv_heads_enqueue(const nsai_run *run, const nsai_form *form,
                                  const nsai_dkv_dq *dq) {
  const int heads = run->plan->problem.model.kv_heads;
  const int most = (int)form->number[NSAI_DKV_HEADS];
  nsai_dkv_pass pass = open_pass(run, form, dq && dq->slots);
  int *tickets;
  NSAI_TRY(clear_tickets(run, form, &tickets));
  if (dq) pass.dq = *dq;
  for (int head = 0; head < heads; head += most) {
    pass.head = head;
    pass.tickets = tickets ? tickets + head / most * NSAI_DKV_TICKETS : NULL;
    pass.compressed_head = head - head % (int)form->number[NSAI_DKV_COMPRESSED_HEADS];
    pass.heads = (int)nsai_smaller(most, heads - head);
    NSAI_TRY(enqueue_heads(&pass));
  }
  return NSA_OK;
}

nsa_status nsai_dkv_enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  if (span->prepare) return nsai_dkv_lists_enqueue(run, form, false);
  if (span->ranks_sum)
    return nsai_ranks_sum_enqueue(run, &form->kernel[NSAI_DKV_RANKS_SUM], span->ranks_sum);
  if (span->gate) return gate_back(run, form);
  return nsai_dkv_heads_enqueue(run, form, NULL);
}
