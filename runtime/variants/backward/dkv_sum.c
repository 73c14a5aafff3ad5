/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The sums of what the kernels over keys left: dK and dV of every pair.
 */
#include "variants/backward/backward.h"
#include "variants/backward/kv.h"

/* Rows of k and v that a thread adds up: as many as follow each other under the same compressed
 * blocks, whose sums it holds, at most 8; 16 of small groups, which have heads enough for all
 * threads. */
static int32_t run_rows(const nsai_model *m) {
  const int32_t most = m->heads / m->kv_heads < 4 ? 16 : 8;
  return m->stride < most ? m->stride : most;
}

void nsai_dkv_sum_specify(const nsai_problem *p, nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = "backward_dkv_sum",
                              .dtype = p->model.dtype,
                              .threads = NSAI_BACKWARD_ELEMENT_THREADS,
                              .compile_cost = 200 };
  nsai_constant_add(spec, "kHeadDimQk", p->model.head_dim_qk);
  nsai_constant_add(spec, "kHeadDimV", p->model.head_dim_v);
  nsai_backward_branches_add(spec, p);
  nsai_backward_lists_add(spec, p);
  nsai_constant_add(spec, "kRun", run_rows(&p->model));
  nsai_constant_add(spec, "kMinBlocks", 2);
}

/* What the sums may read of the branches. */
static void set_partials(const nsai_dkv_pass *b, uint32_t branches, bool k, bool v,
                         NsaiBackwardSum *p) {
  const nsai_run *run = b->run;
  const nsai_buffer *buffer = b->form->buffer, *layers = &buffer[NSAI_DKV_LAYERS_BUFFERS];
  if (branches >> NSA_CMP & 1 && nsai_phi_has_weights(&run->plan->problem.model)) {
    if (k) p->k_rows = nsai_buffer_at(run, layers[NSAI_LAYERS_K_ROWS]);
    if (v) p->v_rows = nsai_buffer_at(run, layers[NSAI_LAYERS_V_ROWS]);
  } else if (branches >> NSA_CMP & 1) {
    p->compressed = nsai_buffer_at(run, nsai_dkv_compressed_sums(b));
    p->splits = (int)b->form->number[NSAI_DKV_SPLITS];
  }
  if (branches >> NSA_SEL & 1) p->selected = nsai_buffer_at(run, buffer[NSAI_DKV_SELECTED_SUMS]);
  if (branches >> NSA_WIN & 1) p->window = nsai_buffer_at(run, buffer[NSAI_DKV_WINDOW_SUMS]);
}

/* dK and dV of one pair, or of the caller's compressed blocks; `branches`: whose sums they are. */
static nsa_status sum_pair(const nsai_dkv_pass *b, const nsa_tensor *k, const nsa_tensor *v,
                           uint32_t branches, bool external) {
  const nsai_run *run = b->run;
  const nsai_model *m = &run->plan->problem.model;
  const nsai_kernel *kernel = &b->form->kernel[NSAI_DKV_SUM];
  const nsa_tensor *given = nsai_present(k) ? k : v;
  if (!nsai_present(given)) return NSA_OK;
  NsaiBackwardSum p = { .seq = nsai_compressed_sequences(run),
                        .d_k = nsai_backward_kv_gradient(run, k),
                        .d_v = nsai_backward_kv_gradient(run, v),
                        .item_starts = b->index.item_starts,
                        .item_counts = b->index.item_counts,
                        .compressed_rows = nsai_dkv_block_rows(run),
                        .window_rows = run->sizes.kv_tokens,
                        .item_capacity = b->index.item_capacity,
                        .blocks = b->index.blocks,
                        .shared_lists = !b->index.list_head_stride,
                        .rows = (int)given->shape[0],
                        .head_begin = b->head,
                        .heads = b->heads,
                        .is_external = external,
                        .range_splits = (int)b->form->number[NSAI_DKV_RANGE_SPLITS] };
  set_partials(b, branches, nsai_present(k), nsai_present(v), &p);
  int64_t columns = (m->head_dim_qk + m->head_dim_v) / 4;
  int64_t items = kernel->threads / columns, runs = nsai_ceil_div(p.rows, run_rows(m));
  return nsai_launch(run->queue, kernel, (uint64_t)nsai_ceil_div(runs * b->heads, items), 1, &p);
}

nsa_status nsai_dkv_sum_enqueue(const nsai_dkv_pass *b) {
  const nsai_model *m = &b->run->plan->problem.model;
  const nsa_kv *out = &b->run->grads->d_kv;
  const uint32_t compressed = b->run->branches & 1u << NSA_CMP;
  uint32_t raw = b->run->branches;
  if (m->phi == NSAI_PHI_EXTERNAL) raw &= ~(1u << NSA_CMP);
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    uint32_t branches = m->per_branch ? raw & 1u << pair : raw;
    NSAI_TRY(sum_pair(b, &out->k[pair], &out->v[pair], branches, false));
  }
  return sum_pair(b, &out->k_cmp, &out->v_cmp, compressed, true);
}
