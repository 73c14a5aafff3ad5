/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The launches of backward_q. First, on its own: an f32 d_o is rounded. Later: the statistics of
 * every query row, which backward_kv reads as well, then dQ.
 */
#include "variants/backward/q.h"

#include "base/math.h"
#include "variants/backward/backward.h"

static nsai_kernel_spec element_spec(const nsai_problem *p, const char *entry) {
  nsai_kernel_spec spec = { .entry = entry,
                            .dtype = p->model.dtype,
                            .threads = NSAI_BACKWARD_ELEMENT_THREADS,
                            .compile_cost = 100 };
  nsai_constant_add(&spec, "kHeadDimV", p->model.head_dim_v);
  return spec;
}

void nsai_q_specify(const nsai_problem *p, nsai_kernel_spec kernel[NSAI_Q_KERNELS]) {
  kernel[NSAI_Q_ROUND] = element_spec(p, "backward_round_do");
  nsai_constant_add(&kernel[NSAI_Q_ROUND], "kMinBlocks", 4);
  if (p->recompute == NSAI_RECOMPUTE_ALWAYS) return;
  kernel[NSAI_Q_SAVED] = element_spec(p, "backward_row_stats_saved");
  nsai_gate_add(&kernel[NSAI_Q_SAVED], p);
  nsai_constant_add(&kernel[NSAI_Q_SAVED], "kMinBlocks", 4);
}

static nsa_status round_d_o(const nsai_run *run, const nsai_kernel *kernel) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_tensor *d_o = &run->grads->d_o;
  if (d_o->dtype != NSA_F32) return NSA_OK;
  const NsaiBackwardRound p = { .d_o = nsai_view(d_o),
                                .out = nsai_backward_d_o(run).data,
                                .tokens = (int)run->sizes.tokens,
                                .heads = m->heads };
  return nsai_launch_elements(run, kernel, run->sizes.tokens * p.heads * m->head_dim_v / 4, &p);
}

/* Where the gradient of the gates goes. Those of the gate MLP are of its logits, and wait in the
 * workspace for the products. */
static NsaiGradient gate_gradient(const nsai_run *run) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_gate *out = &run->grads->d_gate;
  if (m->gate != NSAI_GATE_MLP) return nsai_backward_gradient(run, &out->value);
  if (!nsai_wants_gate(out)) return (NsaiGradient){ .is_float = 1 };
  return (NsaiGradient){ .view = nsai_buffer_view(run, run->plan->workspace.d_logits, m->heads,
                                                  NSA_BRANCHES),
                         .is_float = 1 };
}

static NsaiBackwardQ rows_params(const nsai_run *run) {
  const NsaiAttendSelected selected = nsai_backward_lists(run);
  NsaiBackwardQ p = { .seq = nsai_compressed_sequences(run),
                      .q = nsai_view(&run->io->q),
                      .d_o = nsai_backward_d_o(run),
                      .lists = selected.lists,
                      .list_token_stride = selected.list_token_stride,
                      .list_head_stride = selected.list_head_stride,
                      .statistics = nsai_buffer_at(run, run->plan->workspace.row_statistics),
                      .d_q = nsai_backward_gradient(run, &run->grads->d_q),
                      .d_gate = gate_gradient(run),
                      .scale = (float)nsai_run_scale(run),
                      .scale_log2 = nsai_run_scale_log2(run),
                      .kv_heads = run->plan->problem.model.kv_heads,
                      .branches = run->branches };
  p.gate = nsai_backward_gate(run, &p.gate_float);
  for (int branch = 0; branch < NSA_BRANCHES; branch++) {
    if (!nsai_run_has(run, branch)) continue;
    p.k[branch] = nsai_backward_keys(run, branch, 0);
    p.v[branch] = nsai_backward_keys(run, branch, 1);
  }
  return p;
}

/* The branches whose output and LSE the caller has kept, if they are to be read. */
static uint32_t saved_branches(const nsai_run *run) {
  const nsa_io *io = run->io;
  uint32_t saved = 0;
  if (run->plan->problem.recompute == NSAI_RECOMPUTE_ALWAYS) return 0;
  for (int branch = 0; branch < NSA_BRANCHES; branch++)
    if (nsai_run_has(run, branch) && nsai_present(&io->o_branch[branch]) &&
        nsai_present(&io->lse[branch]))
      saved |= 1u << branch;
  return saved;
}

/* Those that do not run. */
static uint32_t absent_branches(const nsai_run *run) {
  return ~run->branches & ((1u << NSA_BRANCHES) - 1);
}

static nsa_status read_saved(const nsai_run *run, const nsai_kernel *kernel, uint32_t saved) {
  const nsa_io *io = run->io;
  NsaiBackwardSaved p = { .seq = nsai_run_sequences(run),
                          .d_o = nsai_backward_d_o(run),
                          .statistics = nsai_buffer_at(run, run->plan->workspace.row_statistics),
                          .d_gate = gate_gradient(run),
                          .heads = run->plan->problem.model.heads,
                          .saved = saved,
                          .absent = absent_branches(run) };
  p.gate = nsai_backward_gate(run, &p.gate_float);
  for (int branch = 0; branch < NSA_BRANCHES; branch++) {
    if (!(saved >> branch & 1)) continue;
    p.o_branch[branch] = nsai_view(&io->o_branch[branch]);
    p.lse[branch] = io->lse[branch].data;
    p.lse_token_stride[branch] = io->lse[branch].stride[0];
    p.lse_head_stride[branch] = io->lse[branch].stride[1];
  }
  int64_t lanes = 1; /* of a row, 8 columns each */
  while (8 * lanes < run->plan->problem.model.head_dim_v) lanes *= 2;
  return nsai_launch_elements(run, kernel, run->sizes.tokens * p.heads * lanes, &p);
}

static nsa_status set_maps(const nsai_run *run, const nsai_kernel *kernel,
                           const NsaiBackwardQ *rows, NsaiBackwardQTma *p) {
  const nsai_model *m = &run->plan->problem.model;
  p->rows = *rows;
  p->tiles = (int)nsai_grid_tiles(run, kernel);
  p->joined = nsai_backward_joined(run);
  NSAI_TRY(nsai_map_rows(run, kernel, "q", &rows->q, m->head_dim_qk, &p->q));
  NSAI_TRY(nsai_map_rows(run, kernel, "grads.d_o", &rows->d_o, m->head_dim_v, &p->d_o));
  for (int branch = 0; branch < NSA_BRANCHES; branch++) {
    const NsaiView kv[2] = { rows->k[branch], rows->v[branch] };
    int64_t keys = branch == NSA_CMP ? nsai_present_blocks(run) : run->sizes.kv_tokens;
    if (rows->branches >> branch & 1)
      NSAI_TRY(nsai_map_keys(run, kernel, kv, keys, &p->k[branch], &p->v[branch]));
  }
  return NSA_OK;
}

/* A kernel over tiles of query rows, with tensor maps where it takes them. */
static nsa_status launch_rows(const nsai_run *run, const nsai_kernel *kernel,
                              const NsaiBackwardQ *rows) {
  NsaiBackwardQTma p = { 0 };
  if (!kernel->tma_box_keys) return nsai_launch_tiles(run, kernel, rows);
  NSAI_TRY(set_maps(run, kernel, rows, &p));
  return nsai_launch_tiles(run, kernel, &p);
}

/* What the passes over the keys need to know of each row. */
nsa_status nsai_q_statistics(const nsai_run *run, const nsai_kernel kernel[NSAI_Q_KERNELS]) {
  NsaiBackwardQ p = rows_params(run);
  uint32_t saved = saved_branches(run);
  if (saved) NSAI_TRY(read_saved(run, &kernel[NSAI_Q_SAVED], saved));
  p.branches &= ~saved;
  p.absent = saved ? 0 : absent_branches(run);
  if (!p.branches) return NSA_OK;
  NSAI_TRY(nsai_await_keys(run));
  return launch_rows(run, &kernel[NSAI_Q_STATISTICS], &p);
}

nsa_status nsai_q_prepare(const nsai_run *run, const nsai_kernel kernel[NSAI_Q_KERNELS]) {
  return round_d_o(run, &kernel[NSAI_Q_ROUND]);
}

nsa_status nsai_q_dq(const nsai_run *run, const nsai_kernel *kernel,
                     const NsaiBackwardDqSums *from) {
  NsaiBackwardQ rows = rows_params(run);
  if (!nsai_present(&run->grads->d_q)) return NSA_OK;
  if (!from) return launch_rows(run, kernel, &rows);
  NsaiBackwardDqSums p = *from;
  rows.branches &= ~(1u << NSA_CMP);
  if (from->all) rows.branches &= ~(1u << NSA_SEL);
  NSAI_TRY(set_maps(run, kernel, &rows, &p.q));
  return nsai_launch_tiles(run, kernel, &p);
}

nsa_status nsai_q_enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  if (span->prepare) return nsai_q_prepare(run, form->kernel);
  if (!run->sizes.tokens) return NSA_OK; /* nor do the keys need statistics */
  NSAI_TRY(nsai_q_statistics(run, form->kernel));
  return nsai_q_dq(run, &form->kernel[NSAI_Q_DQ], NULL);
}
