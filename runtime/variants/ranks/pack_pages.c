/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * gather_pages: of a prefill over ranks, packs the raw pages of this rank's units and writes the batch of
 * its pieces (kernel_templates/ranks/pack_pages.cuh). Then each tensor travels (run/ranks_pages.c).
 */
#include "base/math.h"
#include "params/ranks.h"
#include "plan/spec.h"
#include "ranks/comm.h"
#include "ranks/shard.h"
#include "run/params.h"

enum { PACK, KERNELS };

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  nsai_ranks_pages pages;
  (void)t;
  nsai_legal_common(p, reasons);
  if (!nsai_problem_gathers_pages(p)) {
    nsai_refuse(reasons, "the problem is no prefill over ranks");
    return;
  }
  nsai_ranks_pages_size(p, &pages);
  const int64_t all = NSAI_PRODUCT(p->ranks, p->max_seqs, pages.rank_pages);
  if (all > INT32_MAX - p->max_pieces)
    nsai_refuse(reasons,
                "problem.max_seqs (%d) sequences of problem.max_kv_len (%lld) tokens have %lld "
                "pages, whose numbers exceed 32 bits",
                p->max_seqs, (long long)p->max_kv_len, (long long)all);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const int32_t chunk = p->kv_dtype ? 16 : 8; /* elements of 16 bytes */
  kernel[PACK] = (nsai_kernel_spec){ .entry = "ranks_pack_pages",
                                     .dtype = p->model.dtype,
                                     .threads = NSAI_PACK_THREADS };
  nsai_constant_add(&kernel[PACK], "kPageSize", p->page_size);
  nsai_constant_add(&kernel[PACK], "kRowChunksQk", p->model.head_dim_qk / chunk);
  nsai_constant_add(&kernel[PACK], "kRowChunksV", p->model.head_dim_v / chunk);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_problem *p = &run->plan->problem;
  const nsai_ranks_pages *w = &run->plan->workspace.pages;
  const int32_t rank = nsai_comm_rank(run->comm), *begin = &run->shard->rank_begin[rank];
  const int32_t pieces = begin[1] - begin[0];
  const int64_t own = run->batch->num_seqs * w->rank_pages; /* pages of this rank */
  const nsa_tensor *entries = &run->batch->entry_table;
  const int *uploaded = nsai_buffer_at(run, w->uploaded);
  int *tables = nsai_buffer_at(run, w->tables);
  NsaiPackPages params = { .batch = nsai_cache_batch(run),
                           .entry_pages = entries->data,
                           .entry_page_stride = entries->stride[0],
                           .sequence = uploaded + pieces + 1,
                           .behind = uploaded + 2 * (int64_t)pieces + 1,
                           .kv_len = tables,
                           .slots = tables + pieces,
                           .pages = tables + 2 * (int64_t)pieces,
                           .entries = tables + (2 + w->columns) * pieces,
                           .kv_heads = p->model.kv_heads,
                           .rank = rank,
                           .ranks = p->ranks,
                           .unit_pages = p->unit_tokens / p->page_size,
                           .rank_pages = (int)w->rank_pages,
                           .columns = (int)w->columns };
  (void)span;
  for (int i = 0; i < NSAI_RANKS_PAGED; i++) {
    const nsa_tensor *t = i % 2 ? &run->io->kv.v[i / 2] : &run->io->kv.k[i / 2];
    if (!w->page_bytes[i]) continue;
    params.from[i] = nsai_cache_tensor(t);
    params.to[i] = (char *)nsai_buffer_at(run, w->pool[i]) + rank * own * w->page_bytes[i];
  }
  return nsai_launch(run->queue, &form->kernel[PACK], (uint64_t)(own + pieces), 1, &params);
}

const nsai_variant nsai_gather_pages = {
  .name = "gather_pages",
  .stage = NSAI_STAGE_GATHER_PAGES,
  .why = "packs a rank's raw pages for a gather",
  .kernels = KERNELS,
  .takes_codes = true,
  .legal = legal,
  .specify = specify,
  .enqueue = enqueue,
};
