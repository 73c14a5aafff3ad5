/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "run/expanded.h"

#include "driver/tensor_map.h"
#include "plan/expand.h"

int64_t nsai_expanded_length(const nsai_run *run, int branch) {
  return nsai_expand_length(&run->plan->problem, branch, run->sizes.tokens,
                            nsai_longest_sequence(run));
}

bool nsai_run_expands(const nsai_run *run, int branch) {
  return nsai_expand_serves(&run->plan->problem, branch, run->sizes.tokens, run->sizes.num_seqs,
                            nsai_longest_sequence(run));
}

static NsaiCacheTensor rows_of(const nsai_run *run, nsai_buffer buffer, int64_t length,
                               int64_t dim) {
  return (NsaiCacheTensor){ nsai_buffer_at(run, buffer),
                            run->plan->problem.model.kv_heads * length * dim, dim, length * dim };
}

NsaiCachePair nsai_expanded_pair(const nsai_run *run, int branch) {
  const nsai_problem *p = &run->plan->problem;
  const nsai_workspace *w = &run->plan->workspace;
  const int64_t length = nsai_expanded_length(run, branch);
  const int raw = nsai_raw_pair(&p->model, branch);
  return (NsaiCachePair){ .k = rows_of(run, w->k_raw[raw], length, p->model.head_dim_qk),
                          .v = rows_of(run, w->v_raw[raw], length, p->model.head_dim_v),
                          .ring = branch == NSA_WIN && p->window_ring ? (int)length : 0,
                          .pages = run->sizes.num_seqs };
}

nsai_cache_source nsai_find_source(const nsai_run *run, int branch, bool expanded) {
  nsai_cache_source source = { .batch = nsai_cache_batch(run),
                               .branch = branch,
                               .expanded = expanded };
  if (expanded) {
    source.batch.slots = NULL; /* a sequence lies in the row of its number */
    source.pair = nsai_expanded_pair(run, branch);
  } else {
    source.page_rows = (int)run->plan->problem.page_size;
    source.pair = nsai_cache_pair(run, &run->io->kv, branch);
  }
  return source;
}

nsa_status nsai_map_source(const nsai_run *run, const nsai_cache_source *source, int32_t box_rows,
                           NsaiTensorMap *k_map, NsaiTensorMap *v_map) {
  if (!source->expanded) return nsai_map_pages(run, source->branch, box_rows, k_map, v_map);
  const nsai_model *m = &run->plan->problem.model;
  nsai_boxed_pages boxed = { .name = "k",
                             .view = source->pair.k,
                             .pages = source->pair.pages,
                             .page_rows = nsai_expanded_length(run, source->branch),
                             .heads = m->kv_heads,
                             .dim = m->head_dim_qk,
                             .dtype = m->dtype,
                             .box_rows = box_rows };
  NSAI_TRY(nsai_tensor_map_pages(run->driver, &boxed, k_map));
  boxed.name = "v";
  boxed.view = source->pair.v;
  boxed.dim = m->head_dim_v;
  return nsai_tensor_map_pages(run->driver, &boxed, v_map);
}
