/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Variants of the stage compress, and the kernels beside the gate MLP's products.
 */
#include "plan/spec.h"

#define ELEMENTWISE_THREADS                                                                        \
  256 /* memory-bound kernels: enough loads in flight at any occupancy                             \
       */

/* Config::kActivation of compress_bias_activation: the values of nsai_activation, and none. */
#define ACTIVATION_NONE 3

void nsai_legal_compress_mean(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  if (p->model.phi != NSAI_PHI_MEAN) nsai_refuse(reasons, "model.compress.phi is not mean");
}

static nsai_tiles choose_mean(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  (void)p;
  (void)t;
  *by = NSAI_BY_DEFAULT;
  return (nsai_tiles){ { [NSAI_TILE_WARPS] = ELEMENTWISE_THREADS / 32, [NSAI_TILE_CTAS] = 4 } };
}

static void fit_mean(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                     nsai_reasons *reasons) {
  int32_t chunks = (p->model.head_dim_qk + p->model.head_dim_v) / 8;
  (void)t;
  if (32 * s->of[NSAI_TILE_WARPS] < chunks)
    nsai_refuse(reasons, "%d warps do not take the %d chunks of a row of K and V",
                s->of[NSAI_TILE_WARPS], chunks);
  nsai_fit_threads(s, reasons);
}

/* Bound by memory: what matters are loads in flight. */
static double cost_mean(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  (void)p;
  (void)t;
  return 1 + 4.0 / (s->of[NSAI_TILE_WARPS] * s->of[NSAI_TILE_CTAS]);
}

const nsai_space nsai_space_compress_mean = {
  2,
  { { NSAI_TILE_WARPS, { 2, 4, 8, 16 }, "blocks of overlapping rows share the L1 of one CTA" },
    { NSAI_TILE_CTAS, { 1, 2, 4, 8 }, "loads in flight against registers" } },
  choose_mean,
  fit_mean,
  cost_mean,
};

void nsai_specify_compress_mean(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                                nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)t;
  const nsai_model *m = &p->model;
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_COMPRESS];
  *spec = (nsai_kernel_spec){ .entry = "compress_mean",
                              .dtype = m->dtype,
                              .threads = 32 * s->of[NSAI_TILE_WARPS] };
  nsai_constant_add(spec, "kHeadDimQk", m->head_dim_qk);
  nsai_constant_add(spec, "kHeadDimV", m->head_dim_v);
  nsai_constant_add(spec, "kBlock", m->block);
  nsai_constant_add(spec, "kStride", m->stride);
  nsai_constant_add(spec, "kMinBlocks", s->of[NSAI_TILE_CTAS]);
}

void nsai_legal_compress_gemm(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  if (p->model.phi == NSAI_PHI_MEAN)
    nsai_refuse(reasons, "model.compress.phi is mean: there are no weights");
}

static void specify_gather(const nsai_problem *p, int32_t dim, nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = "compress_gather_rows",
                              .dtype = p->model.dtype,
                              .threads = ELEMENTWISE_THREADS };
  nsai_constant_add(spec, "kHeadDim", dim);
  nsai_constant_add(spec, "kBlock", p->model.block);
  nsai_constant_add(spec, "kStride", p->model.stride);
  nsai_constant_add(spec, "kMinBlocks", 4);
}

/* What compress_bias_activation does with a product. */
typedef struct bias_use {
  int activation;
  bool out_float; /* f32 out, else dtype */
  bool blocks;    /* rows are compressed storage: those without a block are not written */
} bias_use;

static void specify_bias(const nsai_problem *p, bias_use use, nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = "compress_bias_activation",
                              .dtype = p->model.dtype,
                              .threads = ELEMENTWISE_THREADS };
  nsai_constant_add(spec, "kActivation", use.activation);
  nsai_constant_add(spec, "kOutFloat", use.out_float);
  nsai_constant_add(spec, "kBlocks", use.blocks);
  nsai_constant_add(spec, "kBlock", p->model.block);
  nsai_constant_add(spec, "kStride", p->model.stride);
  nsai_constant_add(spec, "kMinBlocks", 4);
}

void nsai_specify_compress_gemm(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                                nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)t;
  (void)s;
  specify_gather(p, p->model.head_dim_qk, &specs[NSAI_KERNEL_GATHER_K]);
  specify_gather(p, p->model.head_dim_v, &specs[NSAI_KERNEL_GATHER_V]);
  nsai_specify_phi(p, false, specs);
}

void nsai_specify_phi(const nsai_problem *p, bool all_exist, nsai_kernel_spec specs[NSAI_ROLES]) {
  specify_bias(p, (bias_use){ ACTIVATION_NONE, false, !all_exist }, &specs[NSAI_KERNEL_PHI_BIAS]);
  if (p->model.phi == NSAI_PHI_MLP)
    specify_bias(p, (bias_use){ (int)p->model.phi_activation, false, false },
                 &specs[NSAI_KERNEL_PHI_ACTIVATION]);
}

void nsai_specify_gate(const nsai_problem *p, nsai_kernel_spec specs[NSAI_ROLES]) {
  if (p->model.gate_hidden)
    specify_bias(p, (bias_use){ (int)p->model.gate_activation, false, false },
                 &specs[NSAI_KERNEL_GATE_ACTIVATION]);
  specify_bias(p, (bias_use){ ACTIVATION_NONE, true, false }, &specs[NSAI_KERNEL_GATE_BIAS]);
}
