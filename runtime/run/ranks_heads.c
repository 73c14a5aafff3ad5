/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A run over ranks by groups of KV heads: the plan is one of a group's heads, and the run takes the
 * groups one after the other through the same workspace.
 */
#include "run/check_tensor.h"
#include "run/ranks.h"

/* A group: KV heads [first, first + kv_heads), and `each` query heads for each of them. */
typedef struct head_group {
  int64_t first, kv_heads, each;
} head_group;

/* Keeps the elements [first, first + count) of a dimension. */
static void keep(nsa_tensor *t, int dimension, int64_t first, int64_t count) {
  if (!nsai_present(t)) return;
  t->data = (char *)t->data + first * t->stride[dimension] * nsai_dtype_bytes(t->dtype);
  t->shape[dimension] = count;
}

static void keep_query_heads(nsa_tensor *t, const head_group *g) {
  keep(t, 1, g->first * g->each, g->kv_heads * g->each);
}

static void keep_kv_heads(nsa_tensor *t, const head_group *g) { keep(t, 1, g->first, g->kv_heads); }

static void keep_kv(nsa_kv *kv, const head_group *g) {
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    keep_kv_heads(&kv->k[pair], g);
    keep_kv_heads(&kv->v[pair], g);
  }
  keep_kv_heads(&kv->k_cmp, g);
  keep_kv_heads(&kv->v_cmp, g);
}

static void keep_phi(nsa_phi_side *side, const head_group *g) {
  nsa_tensor *const weights[] = { &side->pe, &side->w, &side->w1, &side->b1, &side->w2, &side->b2 };
  for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
    keep(weights[i], 0, g->first, g->kv_heads);
}

static void keep_io(nsa_io *io, const head_group *g) {
  keep_query_heads(&io->q, g);
  keep_query_heads(&io->o, g);
  keep_query_heads(&io->gate.value, g);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    keep_query_heads(&io->o_branch[b], g);
    keep_query_heads(&io->lse[b], g);
  }
  keep_kv(&io->kv, g);
  keep_phi(&io->phi.k, g);
  keep_phi(&io->phi.v, g);
  if (io->block_idx.ndim == 3) keep_kv_heads(&io->block_idx, g); /* else one list for all heads */
  if (io->ranges.ndim == 4) keep_kv_heads(&io->ranges, g);
  keep_kv_heads(&io->index_q, g); /* one query head of the index for each KV head */
  keep_kv_heads(&io->index_lse, g);
}

static void keep_grads(nsa_grads *grads, const head_group *g) {
  keep_query_heads(&grads->d_o, g);
  keep_query_heads(&grads->d_q, g);
  keep_query_heads(&grads->d_gate.value, g);
  keep_kv(&grads->d_kv, g);
  keep_phi(&grads->d_phi.k, g);
  keep_phi(&grads->d_phi.v, g);
}

static nsa_status run_group(nsai_ranks_pass *pass, const nsai_run *whole, const head_group *g,
                            nsa_status (*fn)(nsai_ranks_pass *)) {
  nsa_io io = *whole->io;
  nsa_grads grads;
  nsai_run run = *whole;
  keep_io(&io, g);
  run.io = &io;
  if (whole->grads) {
    grads = *whole->grads;
    keep_grads(&grads, g);
    run.grads = &grads;
  }
  pass->run = &run;
  return fn(pass);
}

nsa_status nsai_for_head_groups(const nsai_run *run, nsa_status (*fn)(nsai_ranks_pass *)) {
  const nsai_problem *p = &run->plan->problem;
  head_group group = { .kv_heads = p->model.kv_heads, .each = p->model.heads / p->model.kv_heads };
  nsai_ranks_pass pass;
  nsa_status status = nsai_ranks_open(run, &pass);
  for (int32_t i = 0; i < p->head_groups && !status; i++) {
    status = run_group(&pass, run, &group, fn);
    group.first += group.kv_heads;
  }
  if (status) nsai_comm_fail(run->comm, nsa_last_error());
  nsai_ranks_close(&pass);
  return status;
}
