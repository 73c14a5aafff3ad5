/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * append_gemm: new tokens, then phi linear or mlp of the blocks that they complete.
 */
#include "variants/compress/phi.h"

#include "base/math.h"
#include "variants/kv_cache/append_mean.h"

enum { APPEND = NSAI_PHI_KERNELS, SCATTER, KERNELS };
enum { K_CMP = NSAI_PHI_BUFFERS, V_CMP, BUFFERS }; /* dtype [rows, Hkv, D]: entries to scatter */

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  if (!nsai_phi_has_weights(&p->model)) nsai_refuse(reasons, "model.compress.phi has no weights");
}

static void specify_gather(const nsai_problem *p, int32_t dim, nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = "kv_cache_gather_entries",
                              .dtype = p->model.dtype,
                              .threads = NSAI_ELEMENTWISE_THREADS };
  nsai_constant_add(spec, "kHeadDim", dim);
  nsai_constant_add(spec, "kRawCodes", p->kv_dtype == NSA_E4M3);
  nsai_append_add_cache(p, spec);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  nsai_append_specify(p, &kernel[APPEND]); /* it makes no entries here */
  specify_gather(p, p->model.head_dim_qk, &kernel[NSAI_PHI_GATHER_K]);
  if (!p->model.keys_only) specify_gather(p, p->model.head_dim_v, &kernel[NSAI_PHI_GATHER_V]);
  nsai_phi_specify(p, true, kernel);
  kernel[SCATTER] = (nsai_kernel_spec){ .entry = "kv_cache_scatter_entries",
                                        .dtype = p->model.dtype,
                                        .threads = NSAI_APPEND_THREADS };
  nsai_constant_add(&kernel[SCATTER], "kHeadDimQk", p->model.head_dim_qk);
  nsai_constant_add(&kernel[SCATTER], "kHeadDimV", p->model.keys_only ? 0 : p->model.head_dim_v);
  nsai_constant_add(&kernel[SCATTER], "kEntryCodes", p->cmp_dtype == NSA_E4M3);
  nsai_append_add_cache(p, &kernel[SCATTER]);
}

/* Rows of the products: data/new_entries.cuh. */
static int64_t product_rows(const nsai_model *m, int64_t tokens, int64_t seqs) {
  return tokens / m->stride + seqs;
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  const nsai_model *m = &r->problem->model;
  const int64_t rows = product_rows(m, r->problem->max_tokens, r->problem->max_seqs);
  (void)kernel;
  nsai_phi_workspace(m, rows, out->bytes);
  out->bytes[K_CMP] = NSAI_PRODUCT(rows, m->kv_heads, m->head_dim_qk, 2);
  if (!m->keys_only) out->bytes[V_CMP] = NSAI_PRODUCT(rows, m->kv_heads, m->head_dim_v, 2);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_io *io = run->io;
  const NsaiRanksAppend params = nsai_append_params(run);
  const NsaiAppend append = params.append.indexed.normed.coded.append;
  const int64_t rows = product_rows(m, run->sizes.tokens, run->sizes.num_seqs);
  const NsaiView k_rows = nsai_buffer_view(run, form->buffer[K_CMP], m->kv_heads, m->head_dim_qk);
  const NsaiView v_rows = nsai_buffer_view(run, form->buffer[V_CMP], m->kv_heads, m->head_dim_v);
  const nsai_phi_pass k = { &io->phi.k,     &io->kv.k[0], &append,          k_rows,
                            m->head_dim_qk, rows,         NSAI_PHI_GATHER_K };
  const nsai_phi_pass v = { &io->phi.v,    &io->kv.v[0], &append,          v_rows,
                            m->head_dim_v, rows,         NSAI_PHI_GATHER_V };
  const NsaiCodedScatterEntries scatter = { .scatter = { .batch = nsai_entry_batch(run),
                                                         .slot_mapping = append.slot_mapping,
                                                         .entries = nsai_cache_entries(&io->kv),
                                                         .k = k_rows.data,
                                                         .v = v_rows.data,
                                                         .kv_heads = m->kv_heads },
                                            .scales = nsai_entry_scales(run) };
  (void)span;
  NSAI_TRY(nsai_launch(run->queue, &form->kernel[APPEND], (uint64_t)run->sizes.tokens, 1, &params));
  NSAI_TRY(nsai_phi_enqueue(run, form, &k));
  if (!m->keys_only) NSAI_TRY(nsai_phi_enqueue(run, form, &v));
  return nsai_launch(run->queue, &form->kernel[SCATTER], (uint64_t)rows, 1, &scatter);
}

const nsai_variant nsai_append_gemm = {
  .name = "append_gemm",
  .stage = NSAI_STAGE_APPEND,
  .why = "new tokens; linear and mlp of what they complete through cuBLASLt",
  .kernels = KERNELS,
  .takes_codes = true,
  .buffers = BUFFERS,
  .needs_gemm = true,
  .legal = legal,
  .specify = specify,
  .workspace = workspace,
  .enqueue = enqueue,
};
