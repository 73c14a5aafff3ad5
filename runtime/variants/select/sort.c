/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/select/sort.h"

#include "base/math.h"

void nsai_sort_specify(const nsai_problem *p, nsai_kernel_spec *spec) {
  bool ranges = p->selection == NSA_SELECT_RANGES;
  *spec = (nsai_kernel_spec){ .entry = ranges ? "data_sort_ranges" : "data_sort_blocks",
                              .dtype = p->model.dtype,
                              .threads = 128,
                              .compile_cost = 60 };
  if (!ranges) nsai_constant_add(spec, "kSelectBlock", p->model.select_block);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kMinBlocks", 1);
  nsai_constant_add(spec, "kCached", nsai_problem_is_cached(p));
}

/* The caller's selection. */
static const nsa_tensor *selection_of(const nsai_run *run) {
  bool ranges = run->plan->problem.selection == NSA_SELECT_RANGES;
  return ranges ? &run->io->ranges : &run->io->block_idx;
}

/* Whether it has the axis of KV heads. */
static bool has_heads(const nsai_run *run) {
  return selection_of(run)->ndim == (run->plan->problem.selection == NSA_SELECT_RANGES ? 4 : 3);
}

void nsai_sort_find(const nsai_run *run, NsaiAttendSelected *attend) {
  const nsai_problem *problem = &run->plan->problem;
  const nsai_model *m = &problem->model;
  int64_t length = (int64_t)m->select_count * (problem->selection == NSA_SELECT_RANGES ? 2 : 1);
  bool each = has_heads(run);
  attend->lists = nsai_buffer_at(run, run->plan->workspace.lists);
  attend->list_token_stride = (each ? m->kv_heads : 1) * length;
  attend->list_head_stride = each ? length : 0;
}

nsa_status nsai_sort_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                             NsaiAttendSelected *attend) {
  const nsai_problem *problem = &run->plan->problem;
  bool ranges = problem->selection == NSA_SELECT_RANGES, each = has_heads(run);
  const nsa_tensor *in = selection_of(run);
  NsaiSortSelection p = { .seq = nsai_run_sequences(run),
                          .in = in->data,
                          .in_token_stride = in->stride[0],
                          .in_head_stride = each ? in->stride[1] : 0,
                          .in_entry_stride = ranges ? in->stride[each ? 2 : 1] : 1,
                          .out = nsai_buffer_at(run, run->plan->workspace.lists),
                          .heads = each ? problem->model.kv_heads : 1 };
  nsai_sort_find(run, attend);
  const int64_t warps = run->sizes.tokens * p.heads;
  const uint64_t grid = (uint64_t)nsai_ceil_div(warps, kernel->threads / 32);
  if (!nsai_problem_is_cached(problem)) return nsai_launch(run->queue, kernel, grid, 1, &p);
  NsaiCachedSortSelection cached = { .batch = nsai_cache_batch(run), .packed = p };
  return nsai_launch(run->queue, kernel, grid, 1, &cached);
}
