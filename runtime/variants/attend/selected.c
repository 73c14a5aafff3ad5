/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/selected.h"

#include "variants/select/sort.h"

void nsai_selected_add_lists(const nsai_problem *p, nsai_kernel_spec kernel[]) {
  nsai_kernel_spec *spec = &kernel[NSAI_SELECTED];
  nsai_constant_add(spec, "kSelectBlock", p->model.select_block);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kRanges", p->selection == NSA_SELECT_RANGES);
  if (p->selection != NSA_SELECT_TOPN) nsai_sort_specify(p, &kernel[NSAI_SELECTED_SORT]);
}

NsaiAttendSelected nsai_selected_params(const nsai_run *run, const nsai_kernel *kernel) {
  NsaiAttend a = nsai_attend_params(run, NSA_SEL, kernel);
  return (NsaiAttendSelected){ .seq = a.seq,
                               .q = a.q,
                               .k = a.k,
                               .v = a.v,
                               .out = a.out,
                               .scale_log2 = a.scale_log2,
                               .kv_heads = a.kv_heads,
                               .tiles = a.tiles };
}

nsa_status nsai_selected_find_lists(const nsai_run *run, const nsai_form *form,
                                    NsaiAttendSelected *p) {
  if (run->plan->problem.selection != NSA_SELECT_TOPN)
    return nsai_sort_enqueue(run, &form->kernel[NSAI_SELECTED_SORT], p);
  nsa_tensor idx = nsai_index_tensor(run);
  p->lists = idx.data;
  p->list_token_stride = idx.stride[0];
  p->list_head_stride = idx.stride[1];
  return NSA_OK;
}
