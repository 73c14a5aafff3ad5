/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * index_kl as a whole. The caller's lists are sorted, but in a warm-up, where all blocks are listed.
 * Then, for each chunk of tokens, they are inverted, and for as many KV heads at a time as the
 * workspace has room for: the log-sum-exps of the index, the kernel over keys, and the sums of its
 * partial results. Sums that go on in the next launch wait in the workspace.
 */
#include "variants/backward/index_kl.h"

#include "base/math.h"
#include "params/index_kl.h"
#include "variants/backward/backward.h"
#include "variants/select/sort.h"

#include <math.h>
#include <string.h>

#define LOG2E 1.44269504088896340736

/* ---- kernels ---- */

/* Tokens of an item: as in backward_kv. */
#define ITEM_TOKENS 1024

#define MOST_KEYS 128 /* of a block that a CTA holds: rows of Q are read once for all of them */
#define MOST_ROWS 64  /* of Q in a stage: their scores are 32 registers */
#define TILE_TOKENS 16

/* Sizes of backward_index_kl and backward_index_kl_pipelined. */
typedef struct kl_tiles {
  bool wgmma, registers; /* registers: they hold K */
  bool pipelined;
  int32_t keys, rows, stages;
} kl_tiles;

static uint32_t shared_bytes(const nsai_model *m, const kl_tiles *s) {
  return (uint32_t)nsai_smem_index_kl(s->wgmma, s->registers, s->keys, s->rows, s->stages,
                                      s->pipelined ? 2 : 1, ITEM_TOKENS, m->head_dim_qk,
                                      m->index_dim);
}

/* K [32 keys of a warp, Dk] or, of a warpgroup's, 16; dK [16, Di], scores, and what else the loop
 * holds: more, where fewer threads copy a stage (NVRTC 13.0: 4 warps spilled 80 bytes). */
static bool holds_keys(const nsai_model *m, const kl_tiles *s) {
  if (!s->wgmma && s->keys < MOST_KEYS) return false;
  const int32_t keys = nsai_padded_dim(m->head_dim_qk) / (s->wgmma ? 4 : 2);
  return keys + nsai_padded_dim(m->index_dim) / 2 + s->rows / 2 + 60 <= 255;
}

/* Keys of a round: of the block, or as many as a CTA holds. */
static int32_t round_keys(const nsai_model *m, bool wgmma) {
  int32_t keys = wgmma ? 64 : 16;
  const int32_t most = m->index_dim > 128 ? MOST_KEYS / 2 : MOST_KEYS; /* wider sums of dK spill */
  while (keys < m->select_block && keys < most) keys *= 2;
  return keys;
}

/* Sizes of backward_index_kl_pipelined, which takes rounds of MOST_KEYS keys, and at least two stages to
 * a tile. False where it is of no use, where a kernel of the plan has spilled, and with narrow
 * heads. */
static bool choose_pipeline(const nsai_model *m, const nsai_target *t, kl_tiles *s) {
  const int32_t all = TILE_TOKENS * nsai_padded_group(m);
  if (t->register_fallback || m->select_block <= MOST_KEYS / 2 || all < MOST_ROWS) return false;
  if (m->head_dim_qk <= 32) return false;
  *s = (kl_tiles){ .wgmma = true,
                   .registers = true,
                   .pipelined = true,
                   .keys = MOST_KEYS,
                   .rows = all / 2 < MOST_ROWS ? all / 2 : MOST_ROWS };
  for (s->stages = 6; s->stages > 3; s->stages--)
    if (shared_bytes(m, s) <= nsai_backward_most_shared(true, t)) return true;
  return false;
}

/* The first that fits: many keys, then two stages, then many rows. */
static kl_tiles choose_tiles(const nsai_model *m, const nsai_target *t, bool wgmma) {
  const int32_t all = TILE_TOKENS * nsai_padded_group(m);
  int32_t wide = round_keys(m, wgmma) > 32 && m->index_dim <= 128 ? MOST_ROWS : MOST_ROWS / 2;
  /* NVRTC 13.0 for sm_90a spills 8 bytes with 32 rows. */
  if (m->index_dim > 128 && m->head_dim_qk > 64 && !strcmp(t->arch, "sm_90a")) wide = MOST_ROWS / 4;
  const int32_t most = all < wide ? all : wide, least = wgmma ? 64 : 16;
  kl_tiles s = { .wgmma = wgmma };
  if (wgmma && choose_pipeline(m, t, &s)) return s;
  s = (kl_tiles){ .wgmma = wgmma };
  for (s.keys = round_keys(m, wgmma); s.keys >= least; s.keys /= 2)
    for (s.stages = 2; s.stages > 0; s.stages--)
      for (s.rows = most >> t->register_fallback; s.rows >= 16; s.rows /= 2) {
        s.registers = holds_keys(m, &s);
        if (shared_bytes(m, &s) <= nsai_backward_most_shared(wgmma, t)) return s;
      }
  return (kl_tiles){ .wgmma = wgmma, .keys = least, .rows = 16, .stages = 1 };
}

static void specify_items(const nsai_request *r, bool wgmma, nsai_kernel_spec *spec) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  const kl_tiles s = choose_tiles(m, r->target, wgmma);
  *spec =
      (nsai_kernel_spec){ .entry =
                              s.pipelined ? "backward_index_kl_pipelined" : "backward_index_kl",
                          .dtype = m->dtype,
                          .threads = 2 * s.keys + (s.pipelined ? 128 : 0), /* 16 keys to a warp */
                          .shared_bytes = shared_bytes(m, &s),
                          .tile_tokens = ITEM_TOKENS,
                          .tma_box_heads = s.pipelined ? m->heads / m->kv_heads : 0,
                          .tma_box_tokens = s.pipelined,
                          .compile_cost = 700 };
  nsai_group_add(spec, p);
  nsai_constant_add(spec, "kHeadDimQk", m->head_dim_qk);
  nsai_constant_add(spec, "kIndexDim", m->index_dim);
  nsai_constant_add(spec, "kSelectBlock", m->select_block);
  nsai_constant_add(spec, "kKeys", s.keys);
  nsai_constant_add(spec, "kRows", s.rows);
  nsai_constant_add(spec, "kStages", s.stages);
  nsai_constant_add(spec, "kMeans", s.pipelined ? 2 : 1);
  nsai_constant_add(spec, "kWarps", s.keys / 16);
  nsai_constant_add(spec, "kWgmma", s.wgmma);
  nsai_constant_add(spec, "kKeyRegisters", s.registers);
  nsai_constant_add(spec, "kEntries", ITEM_TOKENS);
  nsai_constant_add(spec, "kMinBlocks", 1);
}

/* A kernel of the index alone. */
static nsai_kernel_spec index_spec(const nsai_model *m, const char *entry, int32_t threads) {
  nsai_kernel_spec spec = {
    .entry = entry, .dtype = m->dtype, .threads = threads, .compile_cost = 100
  };
  nsai_constant_add(&spec, "kIndexDim", m->index_dim);
  nsai_constant_add(&spec, "kSelectBlock", m->select_block);
  nsai_constant_add(&spec, "kSelectCount", m->select_count);
  return spec;
}

#define LSE_WARPS 4

void nsai_index_kl_lse_specify(const nsai_model *m, nsai_kernel_spec *spec) {
  int32_t keys = 32; /* a slice of scores */
  while (keys < m->select_block && keys < MOST_KEYS) keys *= 2;
  *spec = index_spec(m, "backward_index_kl_lse", 32 * LSE_WARPS);
  spec->shared_bytes = (uint32_t)nsai_smem_index_kl_lse(keys, m->index_dim);
  nsai_constant_add(spec, "kKeys", keys);
  nsai_constant_add(spec, "kWarps", LSE_WARPS);
  nsai_constant_add(spec, "kMinBlocks", 3);
}

static nsai_kernel_spec element_spec(const nsai_model *m, const char *entry) {
  nsai_kernel_spec spec = index_spec(m, entry, NSAI_BACKWARD_ELEMENT_THREADS);
  nsai_constant_add(&spec, "kMinBlocks", 4);
  return spec;
}

void nsai_index_kl_specify(const nsai_request *r, bool wgmma, nsai_kernel_spec kernel[]) {
  const nsai_model *m = &r->problem->model;
  if (r->problem->selection == NSA_SELECT_ALL) {
    nsai_invert_all_specify(r->problem, ITEM_TOKENS, &kernel[NSAI_KL_INVERT]);
  } else {
    nsai_sort_specify(r->problem, &kernel[NSAI_KL_SORT]);
    nsai_invert_specify(r->problem, ITEM_TOKENS, &kernel[NSAI_KL_INVERT]);
  }
  nsai_index_kl_lse_specify(m, &kernel[NSAI_KL_LSE]);
  kernel[NSAI_KL_ROWS] = element_spec(m, "backward_index_kl_rows");
  specify_items(r, wgmma, &kernel[NSAI_KL_ITEMS]);
  kernel[NSAI_KL_SUM_Q] = element_spec(m, "backward_index_kl_q");
  kernel[NSAI_KL_SUM_K] = element_spec(m, "backward_index_kl_k");
}

void nsai_index_kl_legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

/* ---- workspace ---- */

/* Partial sums of d_index_q, and those of d_k_idx: a row of Di for each token, slot and head is 2.1 GB at
 * 64k tokens, 16 blocks, 4 heads and Di 128. As many tokens and heads at a time as this many bytes of
 * each hold, at least one head's. */
#define PARTIAL_BYTES ((int64_t)1 << 30)

void nsai_index_kl_workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                             nsai_form_sizes *out) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  const int64_t item_rows = kernel[NSAI_KL_ITEMS].tile_tokens, row = (int64_t)m->index_dim * 4;
  const int64_t token = m->select_count * row; /* bytes of a token and head */
  const int64_t most = nsai_smaller(p->max_tokens, NSAI_KV_MOST_TOKENS);
  const int64_t chunk = nsai_smaller(nsai_larger(PARTIAL_BYTES / token, 1), most);
  const int64_t fit = PARTIAL_BYTES / NSAI_PRODUCT(chunk, token);
  const int64_t blocks = nsai_kv_blocks(m, p->max_kv_tokens, p->max_seqs);
  const int64_t k_head =
      NSAI_PRODUCT(nsai_kv_items(m, chunk, blocks, item_rows), m->select_block, row);
  const int64_t fit_k = PARTIAL_BYTES / nsai_larger(k_head, 1);
  const int64_t heads = nsai_smaller(nsai_larger(nsai_smaller(fit, fit_k), 1), m->kv_heads);
  const int64_t entries = NSAI_PRODUCT(heads, chunk, m->select_count);
  const int64_t items = NSAI_PRODUCT(heads, nsai_kv_items(m, chunk, blocks, item_rows));
  out->number[NSAI_KL_CHUNK_TOKENS] = chunk;
  out->number[NSAI_KL_HEADS] = heads;
  nsai_invert_workspace(p, chunk, item_rows, out->bytes);
  out->bytes[NSAI_KL_ITEM_STARTS] = NSAI_PRODUCT(m->kv_heads, blocks, 4);
  out->bytes[NSAI_KL_ENTRY_LSE] = NSAI_PRODUCT(entries, 4);
  out->bytes[NSAI_KL_ROW_LSE] = NSAI_PRODUCT(heads, chunk, 4);
  out->bytes[NSAI_KL_Q_PARTIAL] = NSAI_PRODUCT(entries, row);
  out->bytes[NSAI_KL_K_PARTIAL] = NSAI_PRODUCT(items, m->select_block, row);
  out->bytes[NSAI_KL_K_SUM] = NSAI_PRODUCT(p->max_kv_tokens, row);
  out->bytes[NSAI_KL_ITEM_LOSS] = NSAI_PRODUCT(items, 4);
  out->bytes[NSAI_KL_LOSS_SUM] = sizeof(double);
}

void nsai_index_kl_describe(const nsai_form *form, nsai_writer *text) {
  nsai_write(text, "  %s: %lld tokens and %lld KV heads at a time, %llu bytes of partial results\n",
             form->variant->name, (long long)form->number[NSAI_KL_CHUNK_TOKENS],
             (long long)form->number[NSAI_KL_HEADS],
             (unsigned long long)(form->buffer[NSAI_KL_Q_PARTIAL].bytes +
                                  form->buffer[NSAI_KL_K_PARTIAL].bytes));
}

/* ---- launches ---- */

static NsaiGradient gradient(const nsai_run *run, const nsa_tensor *out) {
  return (NsaiGradient){ .view = nsai_view(out),
                         .is_float = out->dtype == NSA_F32,
                         .accumulate = (int)run->index_grads->accumulate };
}

/* What all launches have in common. */
static NsaiIndexKl common_params(const nsai_run *run, const nsai_form *form) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_io *io = run->io;
  const nsa_index_grads *grads = run->index_grads;
  const bool all = run->plan->problem.selection == NSA_SELECT_ALL; /* as nsa_dense */
  const int pair = all ? 0 : nsai_run_pair(run, NSA_SEL);
  const nsa_tensor *lse = &io->lse[all ? 0 : NSA_SEL];
  const double index_scale = 1 / sqrt((double)m->index_dim), group = m->heads / m->kv_heads;
  NsaiIndexKl p = { .seq = nsai_run_sequences(run),
                    .q = nsai_view(&io->q),
                    .k = nsai_view(&io->kv.k[pair]),
                    .index_q = nsai_view(&io->index_q),
                    .k_idx = nsai_view(&io->k_idx),
                    .lse = lse->data,
                    .lse_token_stride = lse->stride[0],
                    .lse_head_stride = lse->stride[1],
                    .entry_lse = nsai_buffer_at(run, form->buffer[NSAI_KL_ENTRY_LSE]),
                    .row_lse = nsai_buffer_at(run, form->buffer[NSAI_KL_ROW_LSE]),
                    .k_sum = nsai_buffer_at(run, form->buffer[NSAI_KL_K_SUM]),
                    .item_loss = nsai_buffer_at(run, form->buffer[NSAI_KL_ITEM_LOSS]),
                    .loss_sum = nsai_buffer_at(run, form->buffer[NSAI_KL_LOSS_SUM]),
                    .d_index_q = gradient(run, &grads->d_index_q),
                    .d_k_idx = gradient(run, &grads->d_k_idx),
                    .loss = grads->loss.data,
                    .index_heads = m->index_heads,
                    .scale_log2 = nsai_run_scale_log2(run),
                    .index_scale = (float)index_scale,
                    .index_scale_log2 = (float)(index_scale * LOG2E),
                    .teacher_shift = (float)log2(NSAI_INDEX_KL_UNIT / group),
                    .coefficient = (float)(grads->coefficient != 0 ? grads->coefficient : 1),
                    .loss_accumulate = (int)grads->accumulate };
  if (nsai_present(&grads->d_index_q))
    p.q_partial = nsai_buffer_at(run, form->buffer[NSAI_KL_Q_PARTIAL]);
  if (nsai_present(&grads->d_k_idx))
    p.k_partial = nsai_buffer_at(run, form->buffer[NSAI_KL_K_PARTIAL]);
  return p;
}

static void set_lists(NsaiIndexKl *p, const NsaiInvert *index) {
  p->items = index->items;
  p->item_counts = index->item_counts;
  p->item_starts = index->item_starts;
  p->entries = index->entries;
  p->entry_indices = index->entry_indices;
  p->entry_capacity = index->entry_capacity;
  p->item_capacity = index->item_capacity;
  p->blocks = index->blocks;
  p->shared_lists = !index->list_head_stride;
  p->token_begin = index->token_begin;
  p->chunk_tokens = index->token_end - index->token_begin;
}

/* d_k_idx and the loss; without heads, of no tokens. */
static nsa_status sum_keys(const nsai_run *run, const nsai_form *form, const NsaiIndexKl *p) {
  const nsai_kernel *kernel = &form->kernel[NSAI_KL_SUM_K];
  const int64_t columns = run->plan->problem.model.index_dim / 4;
  const int64_t elements = p->k_partial ? run->sizes.kv_tokens * columns : 0;
  if (!elements && !p->loss) return NSA_OK;
  return nsai_launch(run->queue, kernel, 1 + (uint64_t)nsai_ceil_div(elements, kernel->threads), 1,
                     p);
}

static nsa_status launch_items(const nsai_run *run, const nsai_kernel *kernel, uint64_t items,
                               const NsaiIndexKl *p) {
  if (!kernel->tma_box_heads) return nsai_launch(run->queue, kernel, items, 1, p);
  NsaiIndexKlTma boxes = { .kl = *p };
  NSAI_TRY(nsai_map_rows(run, kernel, "q", &p->q, run->plan->problem.model.head_dim_qk, &boxes.q));
  return nsai_launch(run->queue, kernel, items, 1, &boxes);
}

/* The KV heads of one launch. */
static nsa_status run_heads(const nsai_run *run, const nsai_form *form, const NsaiIndexKl *p) {
  const nsai_kernel *kernel = form->kernel;
  const uint64_t items = (uint64_t)p->heads * (uint64_t)p->item_capacity;
  const int64_t rows = (int64_t)p->heads * p->chunk_tokens;
  const int64_t columns = run->plan->problem.model.index_dim / 4;
  NSAI_TRY(nsai_launch(run->queue, &kernel[NSAI_KL_LSE], items, 1, p));
  NSAI_TRY(nsai_launch_elements(run, &kernel[NSAI_KL_ROWS], rows, p));
  NSAI_TRY(launch_items(run, &kernel[NSAI_KL_ITEMS], items, p));
  if (p->q_partial) NSAI_TRY(nsai_launch_elements(run, &kernel[NSAI_KL_SUM_Q], rows * columns, p));
  return sum_keys(run, form, p);
}

/* The tokens [begin, end). */
static nsa_status run_chunk(const nsai_run *run, const nsai_form *form,
                            const NsaiAttendSelected *selected, int64_t begin, int64_t end,
                            NsaiIndexKl p) {
  const int32_t kv_heads = run->plan->problem.model.kv_heads;
  const int32_t heads = (int32_t)form->number[NSAI_KL_HEADS];
  NsaiInvert index = nsai_invert_params(run, selected, begin, end,
                                        form->kernel[NSAI_KL_ITEMS].tile_tokens, form->buffer);
  index.item_starts = nsai_buffer_at(run, form->buffer[NSAI_KL_ITEM_STARTS]);
  set_lists(&p, &index);
  NSAI_TRY((run->plan->problem.selection == NSA_SELECT_ALL
                ? nsai_invert_all_enqueue
                : nsai_invert_enqueue)(run, &form->kernel[NSAI_KL_INVERT], index));
  for (p.head_begin = 0; p.head_begin < kv_heads; p.head_begin += heads) {
    p.heads = kv_heads - p.head_begin < heads ? kv_heads - p.head_begin : heads;
    p.first = begin == 0 && p.head_begin == 0;
    p.last = end == run->sizes.tokens && p.head_begin + p.heads == kv_heads;
    NSAI_TRY(run_heads(run, form, &p));
  }
  return NSA_OK;
}

nsa_status nsai_index_kl_enqueue(const nsai_run *run, const nsai_form *form,
                                 const nsai_span *span) {
  const int64_t tokens = run->sizes.tokens, step = form->number[NSAI_KL_CHUNK_TOKENS];
  NsaiIndexKl p = common_params(run, form);
  NsaiAttendSelected selected = { .seq = p.seq };
  (void)span;
  if (!tokens) {
    p.first = p.last = 1;
    return sum_keys(run, form, &p);
  }
  if (run->plan->problem.selection != NSA_SELECT_ALL)
    NSAI_TRY(nsai_sort_enqueue(run, &form->kernel[NSAI_KL_SORT], &selected));
  for (int64_t begin = 0; begin < tokens; begin += step)
    NSAI_TRY(run_chunk(run, form, &selected, begin, nsai_smaller(begin + step, tokens), p));
  return NSA_OK;
}
