/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The workspace of a plan, from its capacities.
 */
#include "plan/plan.h"

#include "base/math.h"
#include "plan/expand.h"

#include <string.h>

/* Importance of all tokens at once would be T * Hkv * S/l' floats: 1 GB at 64k and 4 KV heads, 275
 * GB at 1M. So tokens go through importance and top-n in chunks of this many bytes: large enough to
 * fill the GPU for milliseconds, small beside the outputs. */
#define IMPORTANCE_CHUNK_BYTES ((int64_t)512 << 20)

/* Chunks are whole tiles of query tokens: no kernel tile has more. */
#define CHUNK_STEP 128

/* A total beyond NSAI_SIZE_MAX is refused in the end, by the name of the buffer that led there. */
static nsai_buffer take(nsai_workspace *workspace, const char *name, int64_t bytes) {
  nsai_buffer buffer = { workspace->total, (uint64_t)bytes };
  const int64_t end =
      nsai_size_add((int64_t)workspace->total, nsai_round_up(bytes, NSAI_WORKSPACE_ALIGN));
  if (end == NSAI_SIZE_MAX && !workspace->too_large) workspace->too_large = name;
  workspace->total = (uint64_t)end;
  return buffer;
}

int64_t nsai_chunk_tokens(int64_t budget, int64_t bytes, int64_t tokens) {
  int64_t fit = budget / bytes / CHUNK_STEP * CHUNK_STEP;
  if (fit < CHUNK_STEP) fit = CHUNK_STEP;
  int64_t all = nsai_round_up(tokens, CHUNK_STEP);
  return fit < all ? fit : all;
}

/* Whether runs compress K and V: those over a cache find its entries made. */
static bool makes_blocks(const nsai_problem *problem) {
  return nsai_phi_runs(&problem->model) && !nsai_problem_is_cached(problem);
}

bool nsai_needs_gemm(const nsai_choice *choice) {
  for (int i = 0; i < choice->form_count; i++)
    if (choice->forms[i].variant->needs_gemm) return true;
  return false;
}

static void reserve_importance(nsai_workspace *out, const nsai_problem *p) {
  const nsai_model *m = &p->model;
  out->importance_columns = nsai_round_up(nsai_select_block_count(m, p->max_kv_len), 4);
  out->chunk_tokens =
      nsai_chunk_tokens(IMPORTANCE_CHUNK_BYTES,
                        NSAI_PRODUCT(m->kv_heads, out->importance_columns, 4), p->max_tokens);
  if (!nsai_problem_selects_all(p))
    out->importance =
        take(out, "importance",
             NSAI_PRODUCT(out->chunk_tokens, m->kv_heads, out->importance_columns, 4));
}

/* Lists that the library makes, or sorted ones of a given selection. */
static void reserve_lists(nsai_workspace *out, const nsai_problem *p, bool made) {
  const int64_t entries = NSAI_PRODUCT(p->max_tokens, p->model.kv_heads, p->model.select_count);
  if (made)
    out->idx = take(out, "block_idx", NSAI_PRODUCT(entries, 4));
  else
    out->lists =
        take(out, "sorted lists", NSAI_PRODUCT(entries, p->selection == NSA_SELECT_RANGES ? 8 : 4));
}

/* In fp32 it would be the largest piece by far: 2.1 GB at 64k tokens, 64 heads and Dv 128. */
static void reserve_partial(nsai_workspace *out, const nsai_problem *p) {
  int64_t rows = NSAI_PRODUCT(p->max_tokens, p->model.heads);
  out->partial = take(out, "sum of the branches", NSAI_PRODUCT(rows, p->model.head_dim_v, 2));
  out->partial_units = take(out, "sum of the branches", NSAI_PRODUCT(rows, 4));
}

/* What crosses the stages of a backward pass. */
static void reserve_backward(nsai_workspace *out, const nsai_problem *p) {
  const nsai_model *m = &p->model;
  if (m->select_count) reserve_lists(out, p, false);
  if (m->gate == NSAI_GATE_MLP)
    out->d_logits =
        take(out, "gradients of the gate's logits", NSAI_PRODUCT(p->max_tokens, m->heads, 3, 4));
  out->row_statistics =
      take(out, "row statistics", NSAI_PRODUCT(NSA_BRANCHES, p->max_tokens, m->heads, 16));
}

/* Of a decode step: lists, and the LSE that probed rows need. Fused kernels keep importance to
 * themselves. */
static void reserve_step(nsai_workspace *out, const nsai_problem *p) {
  const bool made = p->selection == NSA_SELECT_TOPN;
  if (p->model.select_count && made && !nsai_ranks_by_branch(&p->model)) reserve_importance(out, p);
  if (p->model.select_count) reserve_lists(out, p, made);
  if (p->max_probe_rows && nsai_ranks_by_branch(&p->model))
    out->lse = take(out, "lse", NSAI_PRODUCT(p->max_tokens, p->model.heads, 4));
}

/* Raw tokens of the pair that a branch reads, if the row that does its stage expands them. Branches that
 * share a pair share these. */
static void reserve_raw(nsai_workspace *out, const nsai_problem *p, const nsai_choice *choice,
                        nsai_stage stage, int branch) {
  const nsai_variant *v = choice->variant[stage];
  const int pair = nsai_raw_pair(&p->model, branch);
  if (!v || !v->expands_tokens || out->k_raw[pair].bytes) return;
  const int64_t rows = NSAI_PRODUCT(nsai_expand_capacity(p, branch), p->model.kv_heads);
  out->k_raw[pair] = take(out, "expanded keys", NSAI_PRODUCT(rows, p->model.head_dim_qk, 2));
  out->v_raw[pair] = take(out, "expanded values", NSAI_PRODUCT(rows, p->model.head_dim_v, 2));
}

/* What crosses stages of a forward or backward pass, or a prefill. */
static void reserve_branches(nsai_workspace *out, const nsai_problem *p,
                             const nsai_choice *choice) {
  const nsai_model *m = &p->model;
  out->cmp_rows = p->max_kv_tokens / m->stride + 1;
  if (makes_blocks(p)) {
    out->k_cmp =
        take(out, "compressed keys", NSAI_PRODUCT(out->cmp_rows, m->kv_heads, m->head_dim_qk, 2));
    if (nsai_compresses_values(m))
      out->v_cmp = take(out, "compressed values",
                        NSAI_PRODUCT(out->cmp_rows, m->kv_heads, m->head_dim_v, 2));
  }
  if (p->op == NSA_OP_BACKWARD) {
    reserve_backward(out, p);
    return;
  }
  if (nsai_compresses_values(m))
    out->lse = take(out, "lse", NSAI_PRODUCT(p->max_tokens, m->heads, 4));
  if (m->select_count || m->window) reserve_partial(out, p);
  reserve_raw(out, p, choice, NSAI_STAGE_ATTEND_SELECTED, NSA_SEL);
  reserve_raw(out, p, choice, NSAI_STAGE_ATTEND_WINDOW, NSA_WIN);
  if (!m->select_count) return;
  bool made = p->selection == NSA_SELECT_TOPN;
  if (made && !nsai_is_fused(choice, NSAI_STAGE_IMPORTANCE)) reserve_importance(out, p);
  reserve_lists(out, p, made);
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
    if (sizes.bytes[i]) out->buffers[form->first_buffer + i] = take(out, v->name, sizes.bytes[i]);
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

/* What a run over ranks holds beside a piece's workspace. */
static void reserve_ranks(nsai_workspace *out, const nsai_problem *p) {
  if (!p->ranks || nsai_problem_is_cached(p)) return;
  nsai_ranks_memory_size(p, &out->ranks);
  for (int i = 0; i < NSAI_RANKS_TENSORS; i++) {
    nsai_ranks_tensor *t = &out->ranks.tensor[i];
    t->whole = take(out, "K and V of all ranks", (int64_t)t->whole.bytes);
    t->sums = take(out, "sums of dK and dV of all ranks", (int64_t)t->sums.bytes);
    t->received = take(out, "sums of dK and dV from other ranks", (int64_t)t->received.bytes);
  }
  out->ranks.offsets = take(out, "offsets of pieces", (int64_t)out->ranks.offsets.bytes);
  out->ranks.weights = take(out, "sums of gradients of weights", (int64_t)out->ranks.weights.bytes);
}

/* What a prefill over ranks holds beside the workspace of one rank's. */
static void reserve_pages(nsai_workspace *out, const nsai_problem *p) {
  if (!nsai_problem_gathers_pages(p)) return;
  nsai_ranks_pages_size(p, &out->pages);
  for (int i = 0; i < NSAI_RANKS_PAGED; i++)
    out->pages.pool[i] = take(out, "raw pages of all ranks", (int64_t)out->pages.pool[i].bytes);
  out->pages.uploaded = take(out, "pieces", (int64_t)out->pages.uploaded.bytes);
  out->pages.tables = take(out, "tables of pieces", (int64_t)out->pages.tables.bytes);
}

static nsa_status check_total(const nsai_problem *p, const nsai_workspace *w) {
  if (!w->too_large) return NSA_OK;
  return nsai_fail(NSA_E_UNSUPPORTED,
                   "the workspace needs more than 2^63 bytes, %s among them: lower %s",
                   w->too_large,
                   nsai_problem_is_cached(p) ? "problem.max_kv_len, max_seqs or max_q_len"
                                             : "problem.max_tokens, max_kv_tokens or max_kv_len");
}

nsa_status nsai_workspace_make(const nsai_problem *p, const nsai_choice *choice,
                               const nsai_target *target, nsai_workspace *out) {
  memset(out, 0, sizeof *out);
  if (nsai_needs_gemm(choice))
    out->gemm = take(out, "cuBLASLt", (int64_t)NSAI_GEMM_WORKSPACE_BYTES);
  if (choice->variant[NSAI_STAGE_GATE])
    out->gate_logits =
        take(out, "logits of the gates", NSAI_PRODUCT(p->max_tokens, p->model.heads, 3, 4));
  if (nsai_problem_splits(p))
    reserve_step(out, p);
  else if (p->op == NSA_OP_INDEX_KL && p->selection != NSA_SELECT_ALL)
    reserve_lists(out, p, false);
  else if (p->op != NSA_OP_INDEX_KL && p->op != NSA_OP_DENSE && p->op != NSA_OP_APPEND)
    reserve_branches(out, p, choice);
  reserve_forms(out, p, choice, target);
  reserve_ranks(out, p);
  reserve_pages(out, p);
  return check_total(p, out);
}

nsa_status nsai_workspace_make_cpu(const nsai_problem *p, nsai_workspace *out) {
  memset(out, 0, sizeof *out);
  out->lse = take(out, "lse", NSAI_PRODUCT(nsai_larger(p->max_tokens, 1), p->model.heads, 4));
  reserve_ranks(out, p);
  return check_total(p, out);
}

/* ---- a room ---- */

/* A walk over the buffers of a room, in their order, to the one that has this place in the workspace. */
typedef struct room_walk {
  nsai_buffer wanted; /* bytes 0: none */
  uint64_t offset;    /* of it, or of the end */
  bool found;
} room_walk;

static void walk_past(room_walk *walk, nsai_buffer buffer) {
  if (walk->found || !buffer.bytes) return;
  walk->found = walk->wanted.bytes && buffer.offset == walk->wanted.offset;
  if (!walk->found)
    walk->offset += (uint64_t)nsai_round_up((int64_t)buffer.bytes, NSAI_WORKSPACE_ALIGN);
}

static room_walk walk_room(const nsai_problem *problem, const nsai_workspace *w,
                           nsai_buffer wanted) {
  room_walk walk = { .wanted = wanted };
  for (int item = 0; item < NSAI_RANKS_TENSORS; item++)
    if (w->ranks.tensor[item].exists) {
      walk_past(&walk, w->ranks.tensor[item].whole);
      walk_past(&walk, w->ranks.tensor[item].received);
    }
  if (!nsai_phi_runs(&problem->model)) return walk;
  walk_past(&walk, w->k_cmp);
  walk_past(&walk, w->v_cmp);
  return walk;
}

uint64_t nsai_ranks_room_bytes(const nsai_problem *problem, const nsai_workspace *workspace) {
  const bool gathers = problem->op == NSA_OP_FORWARD || problem->op == NSA_OP_BACKWARD;
  if (problem->ranks < 2 || !gathers) return 0;
  return walk_room(problem, workspace, (nsai_buffer){ 0 }).offset;
}

uint64_t nsai_ranks_room_offset(const nsai_problem *problem, const nsai_workspace *workspace,
                                nsai_buffer buffer) {
  return walk_room(problem, workspace, buffer).offset;
}
