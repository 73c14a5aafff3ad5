/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/backward/backward.h"

#include "base/math.h"
#include "variants/attend/invert.h"
#include "variants/select/sort.h"

#include <string.h>

/* ---- rows of the table ---- */

static void refuse_lists(const nsai_problem *p, nsai_reasons *reasons) {
  if (p->model.select_count && p->selection != NSA_SELECT_RANGES &&
      p->max_tokens > NSAI_KV_MOST_TOKENS)
    nsai_refuse(reasons, "max_tokens is %lld: lists of tokens hold at most %lld; split the batch",
                (long long)p->max_tokens, (long long)NSAI_KV_MOST_TOKENS);
}

void nsai_backward_legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  refuse_lists(p, reasons);
}

void nsai_backward_legal_sm90(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  nsai_backward_legal(p, t, reasons);
  if (strcmp(t->arch, "sm_90a")) nsai_refuse(reasons, "%s has no wgmma, sm_90a has", t->arch);
}

bool nsai_backward_sensible_sm90(const nsai_problem *p, const nsai_target *t) {
  (void)p;
  return !t->register_fallback; /* registers: the portable kernels serve */
}

/* ---- specs ---- */

void nsai_backward_branches_add(nsai_kernel_spec *spec, const nsai_problem *p) {
  const nsai_model *m = &p->model;
  nsai_constant_add(spec, "kBlock", m->block);
  nsai_constant_add(spec, "kStride", m->stride);
  nsai_constant_add(spec, "kWindow", m->window);
  nsai_constant_add(spec, "kSelectBlock", m->select_block);
  nsai_constant_add(spec, "kSelectCount", m->select_count);
}

void nsai_backward_lists_add(nsai_kernel_spec *spec, const nsai_problem *p) {
  nsai_constant_add(spec, "kRanges", p->selection == NSA_SELECT_RANGES);
}

uint32_t nsai_backward_most_shared(bool wgmma, const nsai_target *t) {
  return wgmma ? t->shared_bytes : NSAI_PORTABLE_SHARED_BYTES;
}

int32_t nsai_backward_min_ctas(const nsai_target *t) { return t->register_fallback > 1 ? 1 : 2; }

/* ---- clearing ---- */

#define CLEAR_WORDS 4 /* of a thread */

void nsai_backward_clear_specify(const nsai_problem *p, nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = "backward_clear",
                              .dtype = p->model.dtype,
                              .threads = NSAI_BACKWARD_ELEMENT_THREADS,
                              .compile_cost = 100 };
  nsai_constant_add(spec, "kMinBlocks", 4);
}

nsa_status nsai_backward_clear_enqueue(const nsai_run *run, const nsai_kernel *kernel, int *words,
                                       int64_t count) {
  const NsaiBackwardClear p = { .words = words, .count = count };
  return nsai_launch_elements(run, kernel, nsai_ceil_div(count, CLEAR_WORDS), &p);
}

/* ---- tensors of a run ---- */

NsaiView nsai_backward_d_o(const nsai_run *run) {
  const nsai_model *m = &run->plan->problem.model;
  const nsai_buffer copy = { .offset = run->plan->workspace.total };
  if (run->grads->d_o.dtype != NSA_F32) return nsai_view(&run->grads->d_o);
  return nsai_buffer_view(run, copy, m->heads, m->head_dim_v);
}

NsaiView nsai_backward_gate(const nsai_run *run, int *is_float) {
  NsaiEpilogue out = { 0 };
  nsai_set_gate(run, &out);
  *is_float = out.gate_float;
  return out.gate;
}

NsaiGradient nsai_backward_gradient(const nsai_run *run, const nsa_tensor *out) {
  return (NsaiGradient){ .view = nsai_view(out),
                         .is_float = out->dtype == NSA_F32,
                         .accumulate = (int)run->grads->accumulate };
}

NsaiGradient nsai_backward_kv_gradient(const nsai_run *run, const nsa_tensor *out) {
  NsaiGradient gradient = nsai_backward_gradient(run, out);
  if (run->piece) gradient.accumulate = run->piece->adds_kv;
  return gradient;
}

NsaiGradient nsai_backward_weight_gradient(const nsai_run *run, const nsa_tensor *out) {
  NsaiGradient gradient = nsai_backward_gradient(run, out);
  if (run->piece) gradient.accumulate = run->piece->adds_weights;
  return gradient;
}

bool nsai_wants_gate(const nsa_gate *out) {
  return nsai_present(&out->x) || nsai_present(&out->w1) || nsai_present(&out->b1) ||
         nsai_present(&out->w2) || nsai_present(&out->b2);
}

NsaiView nsai_backward_keys(const nsai_run *run, int branch, int side) {
  const nsa_kv *kv = &run->io->kv;
  const int pair = nsai_run_pair(run, branch);
  if (branch == NSA_CMP) return nsai_compressed_view(run, side);
  return nsai_view(side ? &kv->v[pair] : &kv->k[pair]);
}

bool nsai_backward_joined(const nsai_run *run) {
  return !run->plan->problem.model.per_branch && nsai_run_has(run, NSA_SEL) &&
         nsai_run_has(run, NSA_WIN);
}

NsaiAttendSelected nsai_backward_lists(const nsai_run *run) {
  NsaiAttendSelected selected = { .seq = nsai_run_sequences(run) };
  if (nsai_run_has(run, NSA_SEL)) nsai_sort_find(run, &selected);
  return selected;
}
