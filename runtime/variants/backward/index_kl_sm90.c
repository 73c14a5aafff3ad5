/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/backward/backward.h"
#include "variants/backward/index_kl.h"

#include <string.h>

/* Panels of K and Q for wgmma, and registers of a warpgroup. */
#define MOST_DIM 128

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  const nsai_model *m = &p->model;
  nsai_index_kl_legal(p, t, reasons);
  if (strcmp(t->arch, "sm_90a")) nsai_refuse(reasons, "%s has no wgmma, sm_90a has", t->arch);
  if (m->head_dim_qk > MOST_DIM)
    nsai_refuse(reasons, "model.head_dim_qk is %d: it takes at most %d", m->head_dim_qk, MOST_DIM);
  if (m->index_dim > MOST_DIM)
    nsai_refuse(reasons, "model.index.dim is %d: it takes at most %d", m->index_dim, MOST_DIM);
}

/* Blocks of at most 32 keys would leave half of wgmma's 64 empty. */
static bool sensible(const nsai_problem *p, const nsai_target *t) {
  return p->model.select_block > 32 && nsai_backward_sensible_sm90(p, t);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_index_kl_specify(r, true, kernel);
}

const nsai_variant nsai_index_kl_sm90 = {
  .name = "index_kl_sm90",
  .stage = NSAI_STAGE_INDEX_KL,
  .why = "loss and gradients of an index, KV-stationary over inverted lists, wgmma",
  .kernels = NSAI_KL_KERNELS,
  .buffers = NSAI_KL_BUFFERS,
  .numbers = NSAI_KL_NUMBERS,
  .legal = legal,
  .sensible = sensible,
  .specify = specify,
  .workspace = nsai_index_kl_workspace,
  .enqueue = nsai_index_kl_enqueue,
  .describe = nsai_index_kl_describe,
};
