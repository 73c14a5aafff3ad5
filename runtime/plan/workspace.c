/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The workspace of a plan, from its capacities.
 */
#include "plan/plan.h"

#include "variants/decode/decode.h"

#include "params/attention.h"

#include <string.h>

/* Importance of all tokens at once would be T * Hkv * S/l' floats: 1 GB at 64k and 4 KV heads, 275
 * GB at 1M. So tokens go through importance and top-n in chunks of this many bytes: large enough to
 * fill the GPU for milliseconds, small beside the outputs. */
#define IMPORTANCE_CHUNK_BYTES ((int64_t)512 << 20)

/* Partial sums of dK and dV: at 64k tokens and D 128 a KV head has 220 MB. In pieces of this many bytes
 * the launches last milliseconds. */
#define GRADIENT_CHUNK_BYTES ((int64_t)1 << 30)

/* Few tiles of compressed keys have many query rows each: they are cut until there are so many blocks
 * of threads, several for each place on the largest devices, so that unequal ones even out. */
#define COMPRESSED_BLOCKS 2048
#define MOST_SPLITS 32
#define COMPRESSED_KEYS 128 /* of a tile */
#define RANGE_KEYS 64       /* of a tile of a caller's ranges */

/* At least so many runs where the caller brings ranges: all tokens may see the first tile of keys, and few
 * the others. */
#define LEAST_RANGE_SPLITS 4

/* Features of tokens and their gradients on their way through the gate's first layer. */
#define GATE_CHUNK_BYTES ((int64_t)256 << 20)

/* Chunks are whole tiles of query tokens: no kernel tile has more. */
#define CHUNK_STEP 128

static int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static nsai_buffer take(nsai_workspace *workspace, int64_t bytes) {
  nsai_buffer buffer = { workspace->total, (uint64_t)bytes };
  workspace->total += (uint64_t)round_up(bytes, NSAI_WORKSPACE_ALIGN);
  return buffer;
}

int64_t nsai_chunk_tokens(int64_t budget, int64_t bytes, int64_t tokens) {
  int64_t fit = budget / bytes / CHUNK_STEP * CHUNK_STEP;
  if (fit < CHUNK_STEP) fit = CHUNK_STEP;
  int64_t all = round_up(tokens, CHUNK_STEP);
  return fit < all ? fit : all;
}

/* Whether runs compress K and V: those over a cache find its entries made. */
static bool makes_blocks(const nsai_problem *problem) {
  return problem->model.phi != NSAI_PHI_EXTERNAL && !nsai_problem_is_cached(problem);
}

bool nsai_needs_gemm(const nsai_choice *choice) {
  for (int i = 0; i < choice->form_count; i++)
    if (choice->forms[i].variant->needs_gemm) return true;
  return false;
}

static void reserve_importance(nsai_workspace *out, const nsai_problem *p) {
  const nsai_model *m = &p->model;
  out->importance_columns = round_up(nsai_select_block_count(m, p->max_kv_len), 4);
  out->chunk_tokens = nsai_chunk_tokens(IMPORTANCE_CHUNK_BYTES,
                                        m->kv_heads * out->importance_columns * 4, p->max_tokens);
  if (!nsai_problem_selects_all(p))
    out->importance = take(out, out->chunk_tokens * m->kv_heads * out->importance_columns * 4);
}

static void reserve_selection(nsai_workspace *out, const nsai_problem *p,
                              const nsai_choice *choice) {
  const nsai_model *m = &p->model;
  int64_t lists = p->max_tokens * m->kv_heads * m->select_count * 4;
  if (p->selection == NSA_SELECT_OWN) {
    if (!nsai_is_fused(choice, NSAI_STAGE_IMPORTANCE)) reserve_importance(out, p);
    out->idx = take(out, lists);
  } else {
    out->lists = take(out, p->selection == NSA_SELECT_RANGES ? 2 * lists : lists);
  }
}

/* Lists of tokens, for chunk_tokens of them. */
static void reserve_inverted(nsai_workspace *out, const nsai_problem *p, int64_t item_rows) {
  const nsai_model *m = &p->model;
  nsai_kv_workspace *kv = &out->kv;
  int64_t blocks = nsai_kv_blocks(m, p->max_kv_tokens, p->max_seqs), n = m->select_count;
  /* Parts of nsai_kv_part_tokens: of `blocks` tokens and more, or as large as they get. */
  int64_t counts = larger(kv->chunk_tokens + larger(blocks, NSAI_KV_LEAST_PART),
                          (kv->chunk_tokens / NSAI_KV_MOST_PART + 1) * blocks);
  kv->counts = take(out, m->kv_heads * counts * 4);
  kv->starts = take(out, m->kv_heads * blocks * 4);
  kv->entries = take(out, m->kv_heads * kv->chunk_tokens * n * 4);
  kv->entry_indices = take(out, m->kv_heads * kv->chunk_tokens * n * 4);
  kv->items = take(out, m->kv_heads * nsai_kv_items(m, kv->chunk_tokens, blocks, item_rows) *
                            (int64_t)sizeof(NsaiKvItem));
  kv->item_counts = take(out, m->kv_heads * 4);
}

/* In fp32 it would be the largest piece by far: 2.1 GB at 64k tokens, 64 heads and Dv 128. */
static void reserve_partial(nsai_workspace *out, const nsai_problem *p) {
  int64_t rows = p->max_tokens * p->model.heads;
  out->partial = take(out, rows * p->model.head_dim_v * 2);
  out->partial_units = take(out, rows * 4);
}

/* Bytes of the partial sums of the selected branch, for each KV head; the lists are taken here. */
static int64_t reserve_selected_back(nsai_workspace *out, const nsai_problem *p,
                                     int64_t item_rows) {
  const nsai_model *m = &p->model;
  int64_t row = (int64_t)(m->head_dim_qk + m->head_dim_v) * 4;
  bool ranges = p->selection == NSA_SELECT_RANGES;
  if (!m->select_count) return 0;
  out->lists = take(out, p->max_tokens * m->kv_heads * m->select_count * (ranges ? 8 : 4));
  if (ranges) {
    int64_t tiles = (p->max_kv_tokens / RANGE_KEYS + p->max_seqs) * m->kv_heads;
    out->backward.range_splits =
        (int32_t)smaller(larger(COMPRESSED_BLOCKS / tiles, LEAST_RANGE_SPLITS), MOST_SPLITS);
    return out->backward.range_splits * p->max_kv_tokens * row;
  }
  int64_t blocks = nsai_kv_blocks(m, p->max_kv_tokens, p->max_seqs);
  out->kv.chunk_tokens = p->max_tokens;
  reserve_inverted(out, p, item_rows);
  out->backward.starts = take(out, m->kv_heads * blocks * 4);
  return nsai_kv_items(m, p->max_tokens, blocks, item_rows) * m->select_block * row;
}

/* What one pass through layers needs. */
typedef struct layers_need {
  int64_t batch, rows;         /* of results; of phi the row of sums counts */
  int64_t in, hidden, columns; /* of the layers; hidden 0: one layer */
} layers_need;

static int64_t operand(int64_t columns) { return round_up(columns, NSAI_OPERAND_STEP); }

/* A piece that serves several passes. */
static void enlarge(nsai_buffer *buffer, int64_t bytes) {
  if (buffer->bytes < (uint64_t)bytes) buffer->bytes = (uint64_t)bytes;
}

static void need_layers(nsai_layers_workspace *l, const layers_need *n) {
  int64_t rows = n->batch * n->rows, first = n->hidden ? n->hidden : n->columns;
  int64_t widest = larger(n->hidden, n->columns);
  enlarge(&l->d_out, rows * operand(n->columns) * 2);
  enlarge(&l->d_hidden, rows * n->hidden * 4);
  enlarge(&l->d_inner, rows * operand(n->hidden) * 2);
  enlarge(&l->hidden, rows * operand(n->hidden) * 2);
  enlarge(&l->d_weights, n->batch * larger(n->in * first, n->hidden * n->columns) * 4);
  enlarge(&l->parts, n->batch * (n->rows / NSAI_COLUMN_SUM_ROWS + 1) * widest * 4);
  enlarge(&l->sums, n->batch * widest * 4);
}

static void reserve_layers(nsai_workspace *out, const nsai_problem *p) {
  const nsai_model *m = &p->model;
  nsai_layers_workspace *l = &out->backward.layers;
  int64_t rows = out->cmp_rows + 1, heads = out->backward.heads, tokens = p->max_tokens;
  if (nsai_phi_has_weights(m)) {
    int64_t dim = larger(m->head_dim_qk, m->head_dim_v);
    layers_need phi = { heads, rows, m->block * dim, m->phi == NSAI_PHI_MLP ? m->phi_hidden : 0,
                        dim };
    need_layers(l, &phi);
    enlarge(&l->k_rows, heads * rows * m->block * m->head_dim_qk * 4);
    enlarge(&l->v_rows, heads * rows * m->block * m->head_dim_v * 4);
  }
  if (m->gate == NSAI_GATE_MLP) {
    layers_need gate = { 1, tokens, m->gate_channels, m->gate_hidden, (int64_t)m->heads * 3 };
    need_layers(l, &gate);
    l->gate_tokens = nsai_chunk_tokens(GATE_CHUNK_BYTES, (int64_t)m->gate_channels * 6, tokens);
    enlarge(&l->d_logits, tokens * m->heads * 3 * 4);
    enlarge(&l->x, l->gate_tokens * m->gate_channels * 2);
    enlarge(&l->d_x, l->gate_tokens * m->gate_channels * 4);
  }
  nsai_buffer *const pieces[] = { &l->d_logits,  &l->d_out,  &l->d_hidden, &l->d_inner,
                                  &l->hidden,    &l->k_rows, &l->v_rows,   &l->x,
                                  &l->d_weights, &l->d_x,    &l->parts,    &l->sums };
  for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
    if (pieces[i]->bytes) *pieces[i] = take(out, (int64_t)pieces[i]->bytes);
}

/* As many KV heads at a time as the budget has room for, at least one. */
static void reserve_backward(nsai_workspace *out, const nsai_problem *p, int64_t item_rows) {
  const nsai_model *m = &p->model;
  nsai_backward_workspace *b = &out->backward;
  int64_t row = (int64_t)(m->head_dim_qk + m->head_dim_v) * 4;
  int64_t window = m->window ? p->max_kv_tokens * row : 0, compressed = out->cmp_rows * row;
  int64_t selected = reserve_selected_back(out, p, item_rows);
  int64_t rows = nsai_phi_has_weights(m) ? (out->cmp_rows + 1) * m->block * row : 0;
  int64_t fit = GRADIENT_CHUNK_BYTES / (window + selected + compressed + rows);
  b->heads = (int32_t)smaller(larger(fit, 1), m->kv_heads);
  int64_t tiles = out->cmp_rows / COMPRESSED_KEYS + p->max_seqs;
  b->splits = (int32_t)smaller(larger(COMPRESSED_BLOCKS / (tiles * b->heads), 1), MOST_SPLITS);
  reserve_layers(out, p);
  b->statistics = take(out, NSA_BRANCHES * p->max_tokens * m->heads * 16);
  b->compressed = take(out, b->heads * b->splits * compressed);
  b->selected = take(out, b->heads * selected);
  b->window = take(out, b->heads * window);
}

/* decode_cluster: what does not fit shared memory of long sequences, and the lists. */
static void reserve_cluster(nsai_workspace *out, const nsai_problem *p) {
  const nsai_model *m = &p->model;
  int64_t units = p->max_tokens * m->kv_heads;
  if (!m->select_count) return;
  out->decode.pooled = take(out, units * nsai_decode_pooled_blocks(p) * NSAI_DECODE_ROWS * 4);
  out->idx = take(out, units * m->select_count * 4);
}

static void reserve_decode(nsai_workspace *out, const nsai_problem *p, const nsai_choice *choice,
                           int32_t sms) {
  const nsai_model *m = &p->model;
  const nsai_kernel_spec *scan = nsai_decode_scan_spec(choice->specs);
  nsai_decode_workspace *d = &out->decode;
  nsai_decode_most most = nsai_decode_most_of(p, scan, nsai_decode_attend_spec(choice->specs), sms);
  int64_t rows = nsai_decode_scan_rows(p, scan), group = m->heads / m->kv_heads;
  d->scan_o = take(out, most.scan_results * rows * m->head_dim_v * 4);
  d->scan_stats = take(out, most.scan_results * rows * 2 * 4);
  if (p->selection != NSA_SELECT_OWN) {
    reserve_selection(out, p, choice);
  } else if (m->select_count) {
    d->pooled = take(out, most.tiles * m->kv_heads * nsai_decode_pooled_blocks(p) * rows * 4);
    int64_t carries = most.scan_results * nsai_decode_scan_groups(p, scan);
    for (nsai_role role = NSAI_KERNEL_DECODE_TWO_PER_SM; role <= NSAI_KERNEL_DECODE_CLUSTER_4;
         role++)
      if (choice->specs[role].entry)
        carries = larger(carries, most.tiles * m->kv_heads *
                                      nsai_decode_scan_groups(p, &choice->specs[role]));
    d->carries = take(out, carries * rows * 4);
    out->idx = take(out, p->max_tokens * m->kv_heads * m->select_count * 4);
  }
  if (p->max_probe_rows) out->lse = take(out, p->max_tokens * m->heads * 4);
  if (!m->select_count && !m->window) return;
  d->attend_o = take(out, most.attend_results * group * m->head_dim_v * 4);
  d->attend_stats = take(out, most.attend_results * group * 2 * 4);
}

/* What crosses stages of a forward or backward pass, or a prefill. */
static void reserve_branches(nsai_workspace *out, const nsai_problem *p,
                             const nsai_choice *choice) {
  const nsai_model *m = &p->model;
  out->cmp_rows = p->max_kv_tokens / m->stride + 1;
  if (makes_blocks(p)) {
    out->k_cmp = take(out, out->cmp_rows * m->kv_heads * m->head_dim_qk * 2);
    out->v_cmp = take(out, out->cmp_rows * m->kv_heads * m->head_dim_v * 2);
  }
  if (p->op == NSA_OP_BACKWARD) {
    reserve_backward(out, p, choice->specs[NSAI_KERNEL_BACKWARD_SELECTED].tile_tokens);
    return;
  }
  out->lse = take(out, p->max_tokens * m->heads * 4);
  if (m->select_count || m->window) reserve_partial(out, p);
  if (m->select_count) reserve_selection(out, p, choice);
}

/* What a form asked for, from where the workspace ends. */
static void reserve_form(nsai_workspace *out, const nsai_problem *p, const nsai_choice *choice,
                         const nsai_target *target, const nsai_chosen_form *form) {
  const nsai_variant *v = form->variant;
  const nsai_request request = { p, target, &form->tiles, form->standalone };
  nsai_form_sizes sizes = { { 0 }, { 0 } };
  if (!v->workspace) return;
  v->workspace(&request, &choice->specs[form->first_kernel], &sizes);
  for (int i = 0; i < v->buffers; i++)
    if (sizes.bytes[i]) out->buffers[form->first_buffer + i] = take(out, sizes.bytes[i]);
  memcpy(&out->numbers[form->first_number], sizes.number,
         (size_t)v->numbers * sizeof *sizes.number);
}

/* Forms of one stage never run in the same call, so they share the same bytes. Those of different
 * stages never do: their launches overlap. */
static void reserve_forms(nsai_workspace *out, const nsai_problem *p, const nsai_choice *choice,
                          const nsai_target *target) {
  for (int i = 0, next; i < choice->form_count; i = next) {
    const nsai_stage stage = choice->forms[i].variant->stage;
    const uint64_t begin = out->total;
    uint64_t end = begin;
    for (next = i; next < choice->form_count && choice->forms[next].variant->stage == stage;
         next++) {
      out->total = begin;
      reserve_form(out, p, choice, target, &choice->forms[next]);
      if (out->total > end) end = out->total;
    }
    out->total = end;
  }
}

nsai_workspace nsai_workspace_make(const nsai_problem *p, const nsai_choice *choice,
                                   const nsai_target *target) {
  nsai_workspace out = { 0 };
  if (nsai_needs_gemm(choice)) out.gemm = take(&out, (int64_t)NSAI_GEMM_WORKSPACE_BYTES);
  if (choice->variant[NSAI_STAGE_GATE])
    out.gate_logits = take(&out, p->max_tokens * p->model.heads * 3 * 4);
  if (p->op == NSA_OP_DECODE) {
    if (choice->specs[NSAI_KERNEL_DECODE_CLUSTER].entry)
      reserve_cluster(&out, p);
    else
      reserve_decode(&out, p, choice, target->sms);
  } else if (p->op != NSA_OP_DENSE && p->op != NSA_OP_APPEND) {
    reserve_branches(&out, p, choice);
  }
  reserve_forms(&out, p, choice, target);
  return out;
}
