/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A decode over a cache whose raw pages lie on several ranks. Each rank selects among all entries, which it
 * has, and attends to those of the selected blocks that it owns. One exchange of partial results follows,
 * which every rank adds up. On the GPU the variant makes the exchange, between its kernels.
 */
#include "reference/reference.h"
#include "run/params.h"
#include "run/ranks.h"

#define ALL_PROCESSORS 0 /* threads of the CPU device */

static nsa_status gather_on_host(void *user, const void *send, void *recv, uint64_t bytes) {
  return nsai_comm_all_gather(user, send, recv, bytes, NULL);
}

static nsa_status compute(const nsai_run *run) {
  const nsai_problem *p = &run->plan->problem;
  const nsai_reference_ranks ranks = { .count = p->ranks,
                                       .rank = nsai_comm_rank(run->comm),
                                       .unit_tokens = p->unit_tokens,
                                       .gather = gather_on_host,
                                       .user = run->comm };
  nsai_reference_cache cache = { .page_size = p->page_size,
                                 .window_ring = p->window_ring,
                                 .ranks = &ranks };
  NSAI_TRY(nsai_reference_cached(&p->model, &cache, p->selection, run->branches, run->batch,
                                 run->io, ALL_PROCESSORS));
  if (!nsai_present(&run->io->index_lse)) return NSA_OK;
  cache.ranks = NULL; /* index keys of all selected blocks are here */
  return nsai_reference_index_lse(&p->model, &cache, run->batch, run->io, ALL_PROCESSORS);
}

nsa_status nsai_decode_over_ranks(const nsai_run *run) {
  /* Without the selected branch nothing is exchanged. */
  nsa_status status = nsai_run_has(run, NSA_SEL) ? nsai_compare_lengths(run) : NSA_OK;
  if (!status) status = run->driver ? nsai_enqueue_decode(run) : compute(run);
  if (status) nsai_comm_fail(run->comm, nsa_last_error());
  return status;
}
