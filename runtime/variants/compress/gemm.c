/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * compress_gemm.
 */
#include "variants/compress/phi.h"

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  if (p->model.phi == NSAI_PHI_MEAN)
    nsai_refuse(reasons, "model.compress.phi is mean: there are no weights");
}

static void specify_gather(const nsai_problem *p, int32_t dim, nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = "compress_gather_rows",
                              .dtype = p->model.dtype,
                              .threads = NSAI_ELEMENTWISE_THREADS };
  nsai_constant_add(spec, "kHeadDim", dim);
  nsai_constant_add(spec, "kBlock", p->model.block);
  nsai_constant_add(spec, "kStride", p->model.stride);
  nsai_constant_add(spec, "kMinBlocks", 4);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_model *m = &r->problem->model;
  specify_gather(r->problem, m->head_dim_qk, &kernel[NSAI_PHI_GATHER_K]);
  if (!m->keys_only) specify_gather(r->problem, m->head_dim_v, &kernel[NSAI_PHI_GATHER_V]);
  nsai_phi_specify(r->problem, false, kernel);
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  const nsai_model *m = &r->problem->model;
  (void)kernel;
  nsai_phi_workspace(m, r->problem->max_kv_tokens / m->stride + 1, out->bytes);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_io *io = run->io;
  const int64_t rows = nsai_compressed_rows(run);
  const nsai_phi_pass k = {
    &io->phi.k, &io->kv.k[0],     NULL, nsai_compressed_view(run, 0), m->head_dim_qk,
    rows,       NSAI_PHI_GATHER_K
  };
  (void)span;
  NSAI_TRY(nsai_phi_enqueue(run, form, &k));
  if (m->keys_only) return NSA_OK;
  const nsai_phi_pass v = {
    &io->phi.v, &io->kv.v[0],     NULL, nsai_compressed_view(run, 1), m->head_dim_v,
    rows,       NSAI_PHI_GATHER_V
  };
  return nsai_phi_enqueue(run, form, &v);
}

const nsai_variant nsai_compress_gemm = {
  .name = "compress_gemm",
  .stage = NSAI_STAGE_COMPRESS,
  .why = "phi linear and mlp: gathered rows through cuBLASLt",
  .kernels = NSAI_PHI_KERNELS,
  .buffers = NSAI_PHI_BUFFERS,
  .needs_gemm = true,
  .legal = legal,
  .specify = specify,
  .workspace = workspace,
  .enqueue = enqueue,
};
