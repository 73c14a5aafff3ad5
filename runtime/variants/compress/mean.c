/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * compress_mean.
 */
#include "variants/compress/mean.h"

#include "base/math.h"

enum { MEAN, KERNELS };

#define THREADS 256 /* bound by memory: enough loads in flight at any occupancy */

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  if (p->model.phi != NSAI_PHI_MEAN) nsai_refuse(reasons, "model.compress.phi is not mean");
}

nsai_tiles nsai_mean_tiles(void) {
  return (nsai_tiles){ { [NSAI_TILE_WARPS] = THREADS / 32, [NSAI_TILE_CTAS] = 4 } };
}

static nsai_tiles choose(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  (void)p;
  (void)t;
  *by = NSAI_BY_DEFAULT;
  return nsai_mean_tiles();
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

static const nsai_space space = {
  2,
  { { NSAI_TILE_WARPS, { 2, 4, 8, 16 }, "blocks of overlapping rows share the L1 of one CTA" },
    { NSAI_TILE_CTAS, { 1, 2, 4, 8 }, "loads in flight against registers" } },
  choose,
  fit_mean,
  cost_mean,
};

void nsai_mean_specify(const nsai_model *m, const nsai_mean *mean, const nsai_tiles *tiles,
                       nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = "compress_mean",
                              .dtype = m->dtype,
                              .threads = 32 * tiles->of[NSAI_TILE_WARPS],
                              .compile_cost = 70 };
  nsai_constant_add(spec, "kHeadDimQk", m->head_dim_qk);
  nsai_constant_add(spec, "kHeadDimV", mean->dim_v);
  nsai_constant_add(spec, "kBlock", mean->block);
  nsai_constant_add(spec, "kStride", mean->stride);
  nsai_constant_add(spec, "kMinBlocks", tiles->of[NSAI_TILE_CTAS]);
}

/* That of compressed blocks; without a compressed branch there are no compressed values. */
static nsai_mean compression(const nsai_model *m) {
  return (nsai_mean){ m->block, m->stride, m->keys_only ? 0 : m->head_dim_v };
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_mean mean = compression(&r->problem->model);
  nsai_mean_specify(&r->problem->model, &mean, r->tiles, &kernel[MEAN]);
}

nsa_status nsai_mean_launch(const nsai_run *run, const nsai_kernel *kernel, const nsai_mean *mean,
                            const NsaiCompress *p) {
  const int64_t rows = (int64_t)p->rows * p->kv_heads; /* 16 bytes a thread */
  const int64_t rows_each =
      kernel->threads / ((run->plan->problem.model.head_dim_qk + mean->dim_v) / 8);
  return nsai_launch(run->queue, kernel, (uint64_t)nsai_ceil_div(rows, rows_each), 1, p);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_model *m = &run->plan->problem.model;
  const nsai_mean mean = compression(m);
  NsaiCompress p = { .seq = nsai_compressed_sequences(run),
                     .k = nsai_view(&run->io->kv.k[0]),
                     .k_cmp = nsai_compressed_view(run, 0),
                     .rows = (int)nsai_compressed_rows(run),
                     .kv_heads = m->kv_heads };
  (void)span;
  if (mean.dim_v) {
    p.v = nsai_view(&run->io->kv.v[0]);
    p.v_cmp = nsai_compressed_view(run, 1);
  }
  return nsai_mean_launch(run, &form->kernel[MEAN], &mean, &p);
}

const nsai_variant nsai_compress_mean = {
  .name = "compress_mean",
  .stage = NSAI_STAGE_COMPRESS,
  .why = "phi mean in one pass over K and V",
  .kernels = KERNELS,
  .legal = legal,
  .space = &space,
  .specify = specify,
  .enqueue = enqueue,
};
