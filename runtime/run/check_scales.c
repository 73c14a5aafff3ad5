/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "run/check_scales.h"

#include "run/check_tensor.h"

#include <math.h>
#include <stdio.h>

/* Why a scale may not be given: the plan has no such codes. */
static nsa_status refuse(const nsai_check *check, const char *name, const char *field) {
  if (!nsai_problem_is_cached(check->problem))
    return nsai_fail(NSA_E_ARG, "%s is given, but %s has no cache: leave it out", name,
                     nsai_op_name(check->problem->op));
  return nsai_fail(
      NSA_E_ARG,
      "%s is given, but the plan's problem.%s is the model's dtype: set it to NSA_E4M3, "
      "or leave the scale out",
      name, field);
}

static nsa_status check_values(const nsai_check *check, const nsa_tensor *t, const char *name) {
  if (check->driver || check->level == NSAI_CHECK_OFF) return NSA_OK;
  const float *scale = t->data;
  for (int64_t i = 0; i < t->shape[0]; i++)
    if (!(scale[i] > 0) || isinf(scale[i]))
      return nsai_fail(NSA_E_ARG, "%s[%lld] is %g, expected a positive, finite number", name,
                       (long long)i, (double)scale[i]);
  return NSA_OK;
}

/* The scale of the index keys, which have one head. */
static nsa_status check_index_scale(const nsai_check *check, const nsa_io *io) {
  static const char name[] = "io.k_idx_scale";
  const nsa_tensor *t = &io->k_idx_scale;
  const nsai_tensor_spec spec = { name, 1, { 1 }, NSAI_DTYPE_F32 };
  if (!nsai_present(t)) return NSA_OK;
  if (check->problem->model.by != NSAI_BY_INDEX)
    return nsai_fail(NSA_E_ARG,
                     "%s is given, but model.select.by is compressed, and the model has no index: "
                     "leave it out",
                     name);
  if (!check->problem->cmp_dtype) return refuse(check, name, "cmp_dtype");
  NSAI_TRY(nsai_check_tensor(check, t, &spec));
  return check_values(check, t, name);
}

/* One for all KV heads, or one for each. */
static nsa_status check_scale(const nsai_check *check, const nsa_tensor *t, const char *name) {
  const int64_t heads = check->problem->model.kv_heads;
  if (t->ndim == 1 && t->shape[0] != 1 && t->shape[0] != heads)
    return nsai_fail(NSA_E_ARG,
                     "%s has shape[0] = %lld, expected 1, or %lld for a scale of each KV head",
                     name, (long long)t->shape[0], (long long)heads);
  const nsai_tensor_spec spec = { name, 1, { t->shape[0] }, NSAI_DTYPE_F32 };
  NSAI_TRY(nsai_check_tensor(check, t, &spec));
  return check_values(check, t, name);
}

nsa_status nsai_check_scales(const nsai_check *check, const nsa_io *io) {
  const nsai_problem *p = check->problem;
  const nsa_tensor *const raw[2] = { io->k_scale, io->v_scale };
  const nsa_tensor *const entries[2] = { &io->k_cmp_scale, &io->v_cmp_scale };
  char name[24];
  for (int side = 0; side < 2; side++) {
    for (int pair = 0; pair < NSA_BRANCHES; pair++) {
      const nsa_tensor *t = &raw[side][pair];
      if (!nsai_present(t)) continue;
      snprintf(name, sizeof name, "io.%c_scale[%d]", "kv"[side], pair);
      if (!p->kv_dtype) return refuse(check, name, "kv_dtype");
      if (!nsai_reads_pair(&p->model, pair))
        return nsai_fail(NSA_E_ARG,
                         "%s is given, but the model does not read pair %d: leave it out", name,
                         pair);
      NSAI_TRY(check_scale(check, t, name));
    }
    if (!nsai_present(entries[side])) continue;
    snprintf(name, sizeof name, "io.%c_cmp_scale", "kv"[side]);
    if (!nsai_compresses(&p->model))
      return nsai_check_no_entries(&p->model, entries[side], side, name);
    if (!p->cmp_dtype) return refuse(check, name, "cmp_dtype");
    NSAI_TRY(nsai_check_no_entries(&p->model, entries[side], side, name));
    NSAI_TRY(check_scale(check, entries[side], name));
  }
  return check_index_scale(check, io);
}
