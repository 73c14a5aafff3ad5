/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The ordered sum of what ranks bring for one gradient. Rows of backward_kv have the kernel where the
 * problem runs over ranks.
 */
#include "variants/backward/backward.h"
#include "variants/backward/kv.h"

void nsai_ranks_sum_specify(const nsai_problem *p, nsai_kernel_spec *spec) {
  if (!p->ranks) return;
  *spec = (nsai_kernel_spec){ .entry = "backward_ranks_sum",
                              .dtype = p->model.dtype,
                              .threads = NSAI_BACKWARD_ELEMENT_THREADS,
                              .compile_cost = 100 };
  nsai_constant_add(spec, "kMinBlocks", 4);
}

nsa_status nsai_ranks_sum_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                                  const NsaiRanksSum *sum) {
  const int64_t elements = (int64_t)sum->rows * sum->heads * sum->columns;
  return elements ? nsai_launch_elements(run, kernel, elements, sum) : NSA_OK;
}
