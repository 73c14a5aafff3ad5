/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * phi linear and mlp, for compress_gemm and append_gemm: gathered rows, cuBLASLt products, bias and
 * activation. A row has the kernels and buffers of phi first, behind them its own.
 */
#ifndef NSAI_VARIANTS_COMPRESS_PHI_H
#define NSAI_VARIANTS_COMPRESS_PHI_H

#include "plan/spec.h"
#include "run/params.h"

/* A caller specifies both gathers: they differ between packed tensors and a cache. */
enum { NSAI_PHI_GATHER_K, NSAI_PHI_GATHER_V, NSAI_PHI_ACTIVATION, NSAI_PHI_BIAS, NSAI_PHI_KERNELS };

/* R rows of compressed storage. */
enum {
  NSAI_PHI_ROWS,    /* dtype [Hkv, R + 1, l*D]: of K, then of V; the last row: pe */
  NSAI_PHI_PRODUCT, /* f32 [Hkv, R + 1, max(H, D)]: a product before bias and activation */
  NSAI_PHI_HIDDEN,  /* dtype [2, Hkv, R, H]: rounded, and what rounding left */
  NSAI_PHI_BUFFERS
};

#define NSAI_ELEMENTWISE_THREADS 256 /* bound by memory: enough loads in flight at any occupancy */

/* What compress_bias_activation does with a product. */
typedef struct nsai_bias_use {
  int activation; /* NSAI_ACT_*, or NSAI_NO_ACTIVATION */
  bool out_float; /* f32 out, else dtype */
  bool blocks;    /* rows are compressed storage: those without a block are not written */
} nsai_bias_use;
#define NSAI_NO_ACTIVATION 3 /* Config::kActivation behind the values of nsai_activation */

void nsai_bias_specify(const nsai_problem *problem, nsai_bias_use use, nsai_kernel_spec *spec);
nsa_status nsai_bias_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                             const NsaiBiasActivation *p);

/* The kernels behind the products, over rows that all exist or over compressed storage. */
void nsai_phi_specify(const nsai_problem *problem, bool all_exist, nsai_kernel_spec kernel[]);

void nsai_phi_workspace(const nsai_model *model, int64_t rows, int64_t bytes[NSAI_PHI_BUFFERS]);

/* One of K and V on its way through phi. */
typedef struct nsai_phi_pass {
  const nsa_phi_side *weights;
  const nsa_tensor *x;
  const NsaiAppend *append; /* x lies in a cache, and rows are what this completes; NULL: packed */
  NsaiView out;             /* compressed storage */
  int64_t dim, rows;
  int gather; /* NSAI_PHI_GATHER_K or _V */
} nsai_phi_pass;

nsa_status nsai_phi_enqueue(const nsai_run *run, const nsai_form *form, const nsai_phi_pass *pass);

#endif /* NSAI_VARIANTS_COMPRESS_PHI_H */
