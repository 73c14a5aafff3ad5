/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A gradient has the shape of its input. One of an input that the model does not read is refused,
 * with what it is about the model.
 */
#include "run/check_gradients.h"

#include "run/check_tensor.h"

#include <math.h>
#include <stdio.h>

/* A gradient and what it should be. */
typedef struct gradient {
  const nsa_tensor *tensor;
  const char *name; /* of the input */
  bool exists;
  int32_t ndim;
  int64_t shape[NSA_MAX_DIMS];
} gradient;

/* What the gradients of a group have in common: "grads.d_kv", and why one of them may not exist. */
typedef struct gradient_group {
  const char *name;
  int types;
  const char *why;
} gradient_group;

static nsa_status check_group(const nsai_check *check, const gradient_group *group,
                              const gradient *all, size_t count) {
  for (size_t i = 0; i < count; i++) {
    char name[40];
    snprintf(name, sizeof name, "%s.%s", group->name, all[i].name);
    nsai_tensor_spec e = { .name = name, .ndim = all[i].ndim, .types = group->types };
    for (int d = 0; d < all[i].ndim; d++) e.shape[d] = all[i].shape[d];
    if (nsai_present(all[i].tensor) && !all[i].exists)
      return nsai_fail(NSA_E_ARG, "%s is wanted, but %s: leave it out", name, group->why);
    NSAI_TRY(nsai_check_optional_tensor(check, all[i].tensor, &e));
    NSAI_TRY(nsai_check_tensor_memory(check, all[i].tensor, name));
  }
  return NSA_OK;
}

static nsa_status check_kv(const nsai_check *check, const nsa_kv *kv, const nsai_run_sizes *sizes) {
  const nsai_model *m = &check->problem->model;
  bool external = m->phi == NSAI_PHI_EXTERNAL;
  int64_t n = sizes->kv_tokens, c = sizes->cmp_rows, g = m->kv_heads;
  int64_t k = m->head_dim_qk, v = m->head_dim_v;
  const gradient pairs[] = { { &kv->k[0], "k[0]", nsai_reads_pair(m, 0), 3, { n, g, k } },
                             { &kv->v[0], "v[0]", nsai_reads_pair(m, 0), 3, { n, g, v } },
                             { &kv->k[1], "k[1]", nsai_reads_pair(m, 1), 3, { n, g, k } },
                             { &kv->v[1], "v[1]", nsai_reads_pair(m, 1), 3, { n, g, v } },
                             { &kv->k[2], "k[2]", nsai_reads_pair(m, 2), 3, { n, g, k } },
                             { &kv->v[2], "v[2]", nsai_reads_pair(m, 2), 3, { n, g, v } } };
  const bool values = external && !m->keys_only;
  const gradient entries[] = { { &kv->k_cmp, "k_cmp", external, 3, { c, g, k } },
                               { &kv->v_cmp, "v_cmp", values, 3, { c, g, v } } };
  const gradient_group raw = { "grads.d_kv", NSAI_DTYPE_ROWS,
                               "the model does not read this pair (model.kv_sharing, compress.phi, "
                               "select.count, window)" };
  const gradient_group compressed = {
    "grads.d_kv", NSAI_DTYPE_ROWS,
    external ? "model.compress.output is false: compressed values do not exist"
    : !nsai_compresses(m)
        ? "model.compress is none: there are no compressed keys and values"
        : "model.compress.phi is not external: its gradient goes on to the raw tokens"
  };
  NSAI_TRY(check_group(check, &raw, pairs, 6));
  return check_group(check, &compressed, entries, 2);
}

static nsa_status check_phi_side(const nsai_check *check, const nsa_phi_side *side,
                                 const char *name, int64_t dim, bool exists) {
  const nsai_model *m = &check->problem->model;
  bool linear = exists && m->phi == NSAI_PHI_LINEAR, mlp = exists && m->phi == NSAI_PHI_MLP;
  int64_t g = m->kv_heads, wide = m->block * dim, h = m->phi_hidden;
  const gradient all[] = { { &side->pe, "pe", linear || mlp, 3, { g, m->block, dim } },
                           { &side->w, "w", linear, 3, { g, wide, dim } },
                           { &side->w1, "w1", mlp, 3, { g, wide, h } },
                           { &side->b1, "b1", mlp, 2, { g, h } },
                           { &side->w2, "w2", mlp, 3, { g, h, dim } },
                           { &side->b2, "b2", mlp, 2, { g, dim } } };
  const gradient_group group = { name, NSAI_DTYPE_MODEL | NSAI_DTYPE_F32,
                                 exists ? "model.compress.phi has no such weights"
                                        : "model.compress.output is false: compressed values do "
                                          "not exist" };
  return check_group(check, &group, all, sizeof all / sizeof *all);
}

static nsa_status check_gate(const nsai_check *check, const nsa_gate *gate, int64_t tokens) {
  const nsai_model *m = &check->problem->model;
  bool mlp = m->gate == NSAI_GATE_MLP, two = mlp && m->gate_hidden > 0;
  int64_t c = m->gate_channels, h = m->gate_hidden, out = (int64_t)m->heads * NSA_BRANCHES;
  const gradient all[] = {
    { &gate->value, "value", nsai_gate_is_given(m), 3, { tokens, m->heads, NSA_BRANCHES } },
    { &gate->x, "x", mlp, 2, { tokens, c } },
    { &gate->w1, "w1", two, 2, { c, h } },
    { &gate->b1, "b1", two, 1, { h } },
    { &gate->w2, "w2", mlp, 2, { h ? h : c, out } },
    { &gate->b2, "b2", mlp, 1, { out } }
  };
  const gradient_group group = { "grads.d_gate", NSAI_DTYPE_MODEL | NSAI_DTYPE_F32,
                                 "the model does not read it (model.gate)" };
  return check_group(check, &group, all, sizeof all / sizeof *all);
}

/* runtime.recompute: never is a promise that memory has been spent; it is kept on every device. */
static nsa_status check_saved(const nsai_check *check, const nsa_io *io, int64_t tokens) {
  if (check->problem->recompute != NSAI_RECOMPUTE_NEVER || !tokens) return NSA_OK;
  for (int branch = 0; branch < NSA_BRANCHES; branch++) {
    bool has_o = nsai_present(&io->o_branch[branch]);
    if (!(check->branches >> branch & 1) || (has_o && nsai_present(&io->lse[branch]))) continue;
    return nsai_fail(NSA_E_ARG,
                     "io.%s[%d] is missing, but runtime.recompute is never: give what the forward "
                     "wrote there, or set runtime.recompute to auto",
                     has_o ? "lse" : "o_branch", branch);
  }
  return NSA_OK;
}

nsa_status nsai_check_grads(const nsai_check *check, const nsa_io *io, const nsa_grads *grads,
                            const nsai_run_sizes *sizes) {
  const nsai_model *m = &check->problem->model;
  if (grads->accumulate > 1)
    return nsai_fail(NSA_E_ARG, "grads.accumulate is %u, expected 0 or 1", grads->accumulate);
  nsai_tensor_spec d_o = {
    "grads.d_o", 3, { sizes->tokens, m->heads, m->head_dim_v }, NSAI_DTYPE_ROWS
  };
  const gradient q = { &grads->d_q, "d_q", true, 3, { sizes->tokens, m->heads, m->head_dim_qk } };
  NSAI_TRY(nsai_check_tensor(check, &grads->d_o, &d_o));
  const gradient_group queries = { "grads", NSAI_DTYPE_ROWS, "" };
  NSAI_TRY(check_group(check, &queries, &q, 1));
  NSAI_TRY(check_kv(check, &grads->d_kv, sizes));
  NSAI_TRY(check_phi_side(check, &grads->d_phi.k, "grads.d_phi.k", m->head_dim_qk, true));
  NSAI_TRY(check_phi_side(check, &grads->d_phi.v, "grads.d_phi.v", m->head_dim_v, !m->keys_only));
  NSAI_TRY(check_gate(check, &grads->d_gate, sizes->tokens));
  return check_saved(check, io, sizes->tokens);
}

nsa_status nsai_check_index_grads(const nsai_check *check, const nsa_index_grads *grads,
                                  const nsai_run_sizes *sizes) {
  const nsai_model *m = &check->problem->model;
  const nsai_tensor_spec loss = { "grads.loss", 1, { 1 }, NSAI_DTYPE_F32 };
  const gradient all[] = {
    { &grads->d_index_q, "d_index_q", true, 3, { sizes->tokens, m->index_heads, m->index_dim } },
    { &grads->d_k_idx, "d_k_idx", true, 3, { sizes->kv_tokens, 1, m->index_dim } }
  };
  const gradient_group group = { "grads", NSAI_DTYPE_ROWS, NULL };
  if (grads->accumulate > 1)
    return nsai_fail(NSA_E_ARG, "grads.accumulate is %u, expected 0 or 1", grads->accumulate);
  if (!(grads->coefficient >= 0) || isinf(grads->coefficient))
    return nsai_fail(NSA_E_ARG,
                     "grads.coefficient is %g: expected a finite number greater than 0, or 0 for 1",
                     grads->coefficient);
  NSAI_TRY(nsai_check_optional_tensor(check, &grads->loss, &loss));
  NSAI_TRY(nsai_check_tensor_memory(check, &grads->loss, loss.name));
  return check_group(check, &group, all, 2);
}
