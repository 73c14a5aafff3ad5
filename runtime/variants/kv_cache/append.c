/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Variants of the stage append: new tokens into a KV cache, and the compressed entries that follow.
 */
#include "plan/spec.h"

#define GATHER_THREADS 256 /* as compress_gather_rows has */
#define APPEND_THREADS 128 /* K and V of 4 heads of 128, 16 bytes each */

void nsai_legal_append_mean(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  if (nsai_phi_has_weights(&p->model))
    nsai_refuse(reasons, "model.compress.phi has weights, whose products it lacks");
}

void nsai_legal_append_gemm(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  if (!nsai_phi_has_weights(&p->model)) nsai_refuse(reasons, "model.compress.phi has no weights");
}

static void add_cache(const nsai_problem *p, nsai_kernel_spec *spec) {
  nsai_constant_add(spec, "kBlock", p->model.block);
  nsai_constant_add(spec, "kStride", p->model.stride);
  nsai_constant_add(spec, "kPageSize", p->page_size);
  nsai_constant_add(spec, "kMinBlocks", 4);
}

void nsai_specify_append_mean(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                              nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)t;
  (void)s;
  const nsai_model *m = &p->model;
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_KV_APPEND];
  *spec = (nsai_kernel_spec){ .entry = "kv_cache_append",
                              .dtype = m->dtype,
                              .threads = APPEND_THREADS };
  nsai_constant_add(spec, "kHeadDimQk", m->head_dim_qk);
  nsai_constant_add(spec, "kHeadDimV", m->head_dim_v);
  nsai_constant_add(spec, "kRing", p->window_ring);
  nsai_constant_add(spec, "kMean", m->phi == NSAI_PHI_MEAN);
  add_cache(p, spec);
}

static void specify_gather_entries(const nsai_problem *p, int32_t dim, nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = "kv_cache_gather_entries",
                              .dtype = p->model.dtype,
                              .threads = GATHER_THREADS };
  nsai_constant_add(spec, "kHeadDim", dim);
  add_cache(p, spec);
}

void nsai_specify_append_gemm(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                              nsai_kernel_spec specs[NSAI_ROLES]) {
  nsai_kernel_spec *scatter = &specs[NSAI_KERNEL_SCATTER];
  nsai_specify_append_mean(p, t, s, specs); /* the tokens; it makes no entries here */
  specify_gather_entries(p, p->model.head_dim_qk, &specs[NSAI_KERNEL_GATHER_K]);
  specify_gather_entries(p, p->model.head_dim_v, &specs[NSAI_KERNEL_GATHER_V]);
  nsai_specify_phi(p, true, specs);
  *scatter = (nsai_kernel_spec){ .entry = "kv_cache_scatter_entries",
                                 .dtype = p->model.dtype,
                                 .threads = APPEND_THREADS };
  nsai_constant_add(scatter, "kHeadDimQk", p->model.head_dim_qk);
  nsai_constant_add(scatter, "kHeadDimV", p->model.head_dim_v);
  add_cache(p, scatter);
}
