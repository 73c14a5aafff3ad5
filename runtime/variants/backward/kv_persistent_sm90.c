/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * backward_kv_persistent_sm90: backward_kv_sm90 with persistent CTAs for the lists and for the window,
 * which take items by tickets (backward/pipelines/dkv_items.cuh). A kernel before them clears the
 * tickets of all groups of KV heads.
 *
 * `variants.force` alone takes it: no default, and not the tuner. No GPU has run it, and it is not
 * timed in this form. A prototype took, on an H200 with 64/4 heads, D 128 and correlated inputs, in ms
 * of the kernels and of the whole pass:
 *
 *   tokens    lists            window           backward
 *   4k        .74 -> .55       .39 -> .32       1.99 -> 1.66
 *   64k       7.8 -> 7.0       6.9 -> 6.4       48.4 -> 47.7
 *
 * To be measured: these, and whether backward_q_kv_sm90 gains as much by the same kernels.
 */
#include "base/math.h"
#include "variants/backward/backward.h"
#include "variants/backward/kv.h"

enum {
  CLEAR = NSAI_DKV_KERNELS, /* backward_clear */
  KERNELS
};

enum {
  TICKETS = NSAI_DKV_BUFFERS, /* i32 [groups of KV heads, NSAI_DKV_TICKETS] */
  BUFFERS
};

/* Tokens of an item, about a 64th of all: shorter items are shared out more evenly, but each loads
 * keys, and stores sums that are to be added. Powers of two, because each number is a kernel of its
 * own. (The prototype's, which had no other.) */
#define LEAST_ITEM_TOKENS 256
#define ITEMS 64

static int32_t item_tokens(const nsai_problem *p) {
  int32_t tokens = LEAST_ITEM_TOKENS;
  while (tokens < NSAI_DKV_ITEM_TOKENS && p->max_tokens >= 2 * (int64_t)ITEMS * tokens) tokens *= 2;
  return tokens;
}

static bool has_lists(const nsai_problem *p) {
  return p->model.select_count && p->selection != NSA_SELECT_RANGES;
}

static nsai_dkv_use use_lists(const nsai_problem *p) {
  return (nsai_dkv_use){ .entry = "backward_dkv_selected_persistent",
                         .keys = NSAI_DKV_TILE_KEYS,
                         .entries = item_tokens(p),
                         .persistent = true };
}

static nsai_dkv_use use_window(const nsai_problem *p) {
  return (nsai_dkv_use){ .entry = "backward_dkv_window_persistent",
                         .keys = 2 * NSAI_DKV_TILE_KEYS,
                         .joins = nsai_dkv_may_join(&p->model),
                         .persistent = true };
}

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  const nsai_dkv_use lists = use_lists(p), window = use_window(p);
  nsai_backward_legal_sm90(p, t, reasons);
  if (!has_lists(p) && !p->model.window)
    nsai_refuse(reasons, "there are neither lists of tokens nor a window");
  if (has_lists(p) && nsai_padded_dim(p->model.select_block) <= NSAI_DKV_TILE_KEYS / 2)
    nsai_refuse(reasons, "model.select.block is %d: it takes more than %d", p->model.select_block,
                NSAI_DKV_TILE_KEYS / 2);
  const int before = reasons->count;
  if (has_lists(p)) nsai_dkv_tma_legal(p, t, &lists, reasons);
  /* Most of what forbids both would be told twice. */
  if (p->model.window && reasons->count == before) nsai_dkv_tma_legal(p, t, &window, reasons);
}

/* Not before a GPU has run it: neither the heuristic nor the tuner takes it. */
static bool sensible(const nsai_problem *p, const nsai_target *t) {
  (void)p, (void)t;
  return false;
}

/* Persistent kernels have no smaller tiles: the kernels of backward_kv_sm90 replace those that spill. */
static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const nsai_dkv_use lists = use_lists(p), window = use_window(p);
  nsai_dkv_specify(r, true, kernel);
  if (r->target->register_fallback) return;
  if (p->model.window) nsai_dkv_tma_specify(r, &window, &kernel[NSAI_DKV_WINDOW]);
  if (has_lists(p)) {
    nsai_invert_specify(p, lists.entries, &kernel[NSAI_DKV_INVERT]);
    nsai_dkv_tma_specify(r, &lists, &kernel[NSAI_DKV_SELECTED]);
  }
  nsai_backward_clear_specify(p, &kernel[CLEAR]);
}

static int64_t ticket_words(const nsai_model *m, int64_t heads) {
  return nsai_ceil_div(m->kv_heads, heads) * NSAI_DKV_TICKETS;
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  nsai_dkv_workspace(r, kernel, out);
  if (!kernel[CLEAR].entry) return;
  out->bytes[TICKETS] = 4 * ticket_words(&r->problem->model, out->number[NSAI_DKV_HEADS]);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  int *tickets = nsai_buffer_at(run, form->buffer[TICKETS]);
  const int64_t words = ticket_words(&run->plan->problem.model, form->number[NSAI_DKV_HEADS]);
  if (!form->kernel[CLEAR].function || span->prepare || span->ranks_sum || span->gate)
    return nsai_dkv_enqueue(run, form, span);
  /* In every run, and every replay of a graph: no run depends on what the one before left. */
  NSAI_TRY(nsai_backward_clear_enqueue(run, &form->kernel[CLEAR], tickets, words));
  return nsai_dkv_heads_enqueue(run, form, NULL, tickets);
}

const nsai_variant nsai_backward_kv_persistent_sm90 = {
  .name = "backward_kv_persistent_sm90",
  .stage = NSAI_STAGE_BACKWARD_KV,
  .why = "dK and dV, persistent CTAs over windows and inverted lists, wgmma: no GPU has run it yet",
  .kernels = KERNELS,
  .buffers = BUFFERS,
  .numbers = NSAI_DKV_NUMBERS,
  .legal = legal,
  .sensible = sensible,
  .specify = specify,
  .workspace = workspace,
  .enqueue = enqueue,
};
