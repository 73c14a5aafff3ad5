/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * append_mean.
 */
#include "variants/kv_cache/append_mean.h"

enum { APPEND, KERNELS };

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  if (nsai_phi_has_weights(&p->model))
    nsai_refuse(reasons, "model.compress.phi has weights, whose products it lacks");
}

void nsai_append_add_cache(const nsai_problem *p, nsai_kernel_spec *spec) {
  nsai_constant_add(spec, "kBlock", p->model.block);
  nsai_constant_add(spec, "kStride", p->model.stride);
  nsai_constant_add(spec, "kPageSize", p->page_size);
  nsai_constant_add(spec, "kMinBlocks", 4);
}

void nsai_append_specify(const nsai_problem *p, nsai_kernel_spec *spec) {
  const nsai_model *m = &p->model;
  *spec = (nsai_kernel_spec){ .entry = "kv_cache_append",
                              .dtype = m->dtype,
                              .threads = NSAI_APPEND_THREADS };
  nsai_constant_add(spec, "kHeadDimQk", m->head_dim_qk);
  nsai_constant_add(spec, "kHeadDimV", m->head_dim_v);
  nsai_constant_add(spec, "kRing", p->window_ring);
  nsai_constant_add(spec, "kMean", m->phi == NSAI_PHI_MEAN);
  nsai_constant_add(spec, "kRawCodes", p->kv_dtype == NSA_E4M3);
  nsai_constant_add(spec, "kEntryCodes", nsai_compresses(m) && p->cmp_dtype == NSA_E4M3);
  nsai_constant_add(spec, "kEntryDimV", m->keys_only ? 0 : m->head_dim_v);
  nsai_constant_add(spec, "kNormBlock", m->norm_block);
  nsai_constant_add(spec, "kNormStride", m->norm_stride);
  nsai_constant_add(spec, "kIndexDim", m->index_dim);
  nsai_constant_add(spec, "kIndexCodes", m->index_dim && p->cmp_dtype == NSA_E4M3);
  if (p->ranks) nsai_constant_add(spec, "kRanks", 1);
  nsai_append_add_cache(p, spec);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_append_specify(r->problem, &kernel[APPEND]);
}

NsaiRanksAppend nsai_append_params(const nsai_run *run) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_kv *cache = &run->io->kv, *new_kv = &run->io->new_kv;
  const NsaiCacheBatch entries = nsai_entry_batch(run);
  NsaiRanksAppend out = { .entry_pages = entries.pages,
                          .entry_page_stride = entries.page_list_stride };
  NsaiIndexedAppend *indexed = &out.append.indexed;
  NsaiNormedAppend *normed = &indexed->normed;
  NsaiAppend *p = &normed->coded.append;
  *p = (NsaiAppend){ .batch = nsai_cache_batch(run),
                     .slot_mapping = run->batch->slot_mapping.data,
                     .kv_heads = m->kv_heads };
  normed->coded.entry_scales = nsai_entry_scales(run);
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    if (!nsai_reads_pair(m, pair)) continue;
    p->pairs |= 1 << pair;
    p->cache[pair] = nsai_cache_pair(run, cache, pair);
    p->k[pair] = nsai_view(&new_kv->k[pair]);
    p->v[pair] = nsai_view(&new_kv->v[pair]);
    normed->coded.scales[pair] = nsai_pair_scales(run, pair);
  }
  if (m->phi == NSAI_PHI_MEAN) p->entries = nsai_cache_entries(cache);
  if (m->norm_block) normed->norms = nsai_cache_tensor(&run->io->k_norm);
  if (m->by != NSAI_BY_INDEX) return out;
  indexed->index = nsai_cache_tensor(&run->io->k_idx);
  indexed->new_index = nsai_view(&run->io->new_k_idx);
  out.append.scale = nsai_entry_scales(run).k;
  return out;
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const NsaiRanksAppend p = nsai_append_params(run);
  (void)span;
  return nsai_launch(run->queue, &form->kernel[APPEND], (uint64_t)run->sizes.tokens, 1, &p);
}

const nsai_variant nsai_append_mean = {
  .name = "append_mean",
  .stage = NSAI_STAGE_APPEND,
  .why = "new tokens and the means that they complete, one launch",
  .kernels = KERNELS,
  .takes_codes = true,
  .legal = legal,
  .specify = specify,
  .enqueue = enqueue,
};
