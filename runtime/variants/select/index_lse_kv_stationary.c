/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * index_lse_kv_stationary_sm80: io.index_lse of a forward by the stage of nsa_index_kl that has it. The
 * lists of blocks are inverted, and each block's keys are read once for all tokens that chose it.
 */
#include "base/math.h"
#include "params/index_kl.h"
#include "variants/attend/invert.h"
#include "variants/backward/backward.h"
#include "variants/backward/index_kl.h"
#include "variants/select/sort.h"

#include <math.h>

#define LOG2E 1.44269504088896340736

enum { SORT, INVERT, LSE = INVERT + NSAI_INVERT_KERNELS, ROWS, KERNELS };
enum { ENTRY_LSE = NSAI_INVERT_BUFFERS /* f32 [Hi, chunk tokens * n] */, BUFFERS };
enum { CHUNK_TOKENS, NUMBERS };

#define ITEM_TOKENS 1024
/* Lists and LSEs of so many chosen blocks take 110 MB: of 128k tokens with 4 heads and 16 blocks. */
#define MOST_ENTRIES ((int64_t)1 << 23)
/* Of fewer tokens the launches take longer than the other row's reads. (A guess.) */
#define LEAST_TOKENS 2048

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  nsai_legal_packed(p, reasons);
}

static bool sensible(const nsai_problem *p, const nsai_target *t) {
  (void)t;
  return p->max_tokens >= LEAST_TOKENS;
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  if (p->selection != NSA_SELECT_TOPN) nsai_sort_specify(p, &kernel[SORT]);
  nsai_invert_specify(p, ITEM_TOKENS, &kernel[INVERT]);
  nsai_index_kl_lse_specify(&p->model, &kernel[LSE]);
  kernel[ROWS] = (nsai_kernel_spec){ .entry = "backward_index_lse",
                                     .dtype = p->model.dtype,
                                     .threads = NSAI_BACKWARD_ELEMENT_THREADS,
                                     .compile_cost = 100 };
  nsai_constant_add(&kernel[ROWS], "kSelectCount", p->model.select_count);
  nsai_constant_add(&kernel[ROWS], "kMinBlocks", 4);
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  const int64_t most = MOST_ENTRIES / ((int64_t)m->index_heads * m->select_count);
  const int64_t chunk = nsai_smaller(p->max_tokens, nsai_larger(most, ITEM_TOKENS));
  (void)kernel;
  out->number[CHUNK_TOKENS] = chunk;
  nsai_invert_workspace(p, chunk, ITEM_TOKENS, out->bytes);
  out->bytes[ENTRY_LSE] = NSAI_PRODUCT(m->index_heads, chunk, m->select_count, 4);
}

/* The tokens [begin, end), whose lists `selected` has. */
static nsa_status run_chunk(const nsai_run *run, const nsai_form *form,
                            const NsaiAttendSelected *selected, int64_t begin, int64_t end) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_tensor *out = &run->io->index_lse;
  const NsaiInvert index = nsai_invert_params(run, selected, begin, end, ITEM_TOKENS, form->buffer);
  const NsaiIndexKl p = { .seq = selected->seq,
                          .index_q = nsai_view(&run->io->index_q),
                          .k_idx = nsai_view(&run->io->k_idx),
                          .lse_token_stride = out->stride[0],
                          .lse_head_stride = out->stride[1],
                          .items = index.items,
                          .item_counts = index.item_counts,
                          .entries = index.entries,
                          .entry_indices = index.entry_indices,
                          .entry_capacity = index.entry_capacity,
                          .entry_lse = nsai_buffer_at(run, form->buffer[ENTRY_LSE]),
                          .row_lse = out->data,
                          .item_capacity = index.item_capacity,
                          .blocks = index.blocks,
                          .shared_lists = !index.list_head_stride,
                          .token_begin = index.token_begin,
                          .chunk_tokens = index.token_end - index.token_begin,
                          .heads = m->index_heads,
                          .index_heads = m->index_heads,
                          .index_scale_log2 = (float)(LOG2E / sqrt((double)m->index_dim)) };
  const uint64_t items = (uint64_t)p.heads * (uint64_t)p.item_capacity;
  NSAI_TRY(nsai_invert_enqueue(run, &form->kernel[INVERT], index));
  NSAI_TRY(nsai_launch(run->queue, &form->kernel[LSE], items, 1, &p));
  return nsai_launch_elements(run, &form->kernel[ROWS], (int64_t)p.heads * p.chunk_tokens, &p);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const int64_t tokens = run->sizes.tokens, step = form->number[CHUNK_TOKENS];
  const nsa_tensor *idx = &run->io->block_idx;
  NsaiAttendSelected selected = { .seq = nsai_run_sequences(run),
                                  .lists = idx->data,
                                  .list_token_stride = idx->stride[0],
                                  .list_head_stride = idx->stride[1] };
  (void)span;
  if (run->plan->problem.selection != NSA_SELECT_TOPN) /* a caller's, in any order */
    NSAI_TRY(nsai_sort_enqueue(run, &form->kernel[SORT], &selected));
  for (int64_t begin = 0; begin < tokens; begin += step)
    NSAI_TRY(run_chunk(run, form, &selected, begin, nsai_smaller(begin + step, tokens)));
  return NSA_OK;
}

const nsai_variant nsai_index_lse_kv_stationary_sm80 = {
  .name = "index_lse_kv_stationary_sm80",
  .stage = NSAI_STAGE_INDEX_LSE,
  .why = "the log-sum-exp of an index, KV-stationary over inverted lists, mma.sync",
  .kernels = KERNELS,
  .buffers = BUFFERS,
  .numbers = NUMBERS,
  .finds_sequences_of_keys = true,
  .legal = legal,
  .sensible = sensible,
  .specify = specify,
  .workspace = workspace,
  .enqueue = enqueue,
};
