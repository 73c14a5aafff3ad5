/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A cache in NSA_E4M3: a value is a code times the scale of its tensor, or of its KV head. The
 * arithmetic that decides bits of the cache is that of nsa/kv_cache.h, in float32; reading a value is
 * exact.
 */
#include "reference/internal.h"
#include "reference/tensor.h"

/* The tensor that has the scales of `x`; NULL: it is no tensor of a cache. */
static const nsa_tensor *scales_of(const nsa_io *io, const nsa_tensor *x) {
  const nsa_kv *kv = &io->kv;
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    if (x == &kv->k[pair]) return &io->k_scale[pair];
    if (x == &kv->v[pair]) return &io->v_scale[pair];
  }
  if (x == &io->k_idx) return &io->k_idx_scale;
  if (x == &kv->k_cmp) return io->k_cmp_scale.data ? &io->k_cmp_scale : &io->k_scale[NSA_CMP];
  if (x == &kv->v_cmp) return io->v_cmp_scale.data ? &io->v_cmp_scale : &io->v_scale[NSA_CMP];
  return NULL;
}

double nsai_ref_scale(const nsai_ref_problem *problem, const nsa_tensor *x, int64_t head) {
  const nsa_tensor *scales = x->dtype == NSA_E4M3 ? scales_of(problem->io, x) : NULL;
  if (!scales || !scales->data) return 1;
  return ((const float *)scales->data)[scales->shape[0] == 1 ? 0 : head];
}

void nsai_ref_widen_scaled(const nsai_ref_problem *problem, const nsa_tensor *x, int64_t at,
                           int64_t head, int64_t count, double *out) {
  double scale = nsai_ref_scale(problem, x, head);
  problem->ops->widen(x->dtype, nsai_ref_at(x, at), count, out);
  for (int64_t e = 0; scale != 1 && e < count; e++) out[e] *= scale;
}

uint8_t nsai_ref_code(double value, double scale) {
  return nsai_e4m3_from_float((float)value / (float)scale);
}
