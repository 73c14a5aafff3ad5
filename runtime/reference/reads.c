/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * io.kv_reads: what a decode step reads of the cache, counted where its rows are widened.
 */
#include "reference/internal.h"
#include "reference/tensor.h"

static void add(int64_t *counter, int64_t count) {
  __atomic_fetch_add(counter, count, __ATOMIC_RELAXED); /* threads may share a sequence's counter */
}

void nsai_ref_count_reads(const nsai_ref_problem *problem, const nsai_ref_reads *reads) {
  const nsa_tensor *t = &problem->io->kv_reads;
  if (!t->data) return;
  int64_t *at = (int64_t *)t->data + nsai_ref_offset2(t, reads->sequence, reads->head) +
                reads->branch * t->stride[2];
  if (reads->is_k) add(at, reads->rows);
  add(at + 1, reads->rows * reads->dim * nsai_ref_size(reads->source));
}
