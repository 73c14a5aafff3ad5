/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The forward over ranks with nsa_comm_options.overlap_sms. Compressed entries, 1/d of the bytes, are exchanged
 * in the place of raw K and V; these travel in a stream beside the run's, while its kernels compute the
 * compressed branch and choose blocks:
 *
 *   the run's stream   pack | rows before pieces, K and V | own blocks | entries, keys of the index |
 *   beside             .                                                                            | raw K, V
 *   the run's stream   compressed branch, selection | waits for K and V | selected branch, window
 *
 * A block belongs to the piece that has its last token: its rank needs l - d tokens before the piece. Entries
 * must have one GPU's bits, so that only phi mean makes them piece by piece: products of cuBLASLt have other
 * bits with another number of rows.
 *
 * Two exchanges are exposed in the place of one, each with its fixed time, so it pays where the bytes of
 * raw K and V take longer than that: over several hosts, or with very long sequences.
 */
#include "run/params.h"
#include "run/ranks.h"

/* Tokens of a block before its last stride. */
static int64_t halo_of(const nsai_model *m) { return m->block - m->stride; }

/* Whether what the compressed branch and the selection read can come before raw K and V. Pieces begin at
 * multiples of the alignment, so that all but the last of a sequence have at least as many tokens: a halo that
 * is no longer lies in one piece. */
static bool separates(const nsai_ranks_pass *pass) {
  const nsai_model *m = &pass->run->plan->problem.model;
  if (nsai_phi_runs(m)) return m->phi == NSAI_PHI_MEAN && pass->shard->alignment >= halo_of(m);
  return pass->memory->tensor[NSAI_RANKS_K_CMP].exists ||
         pass->memory->tensor[NSAI_RANKS_K_IDX].exists;
}

bool nsai_ranks_overlaps(const nsai_ranks_pass *pass) {
  const nsai_run *run = pass->run;
  const bool ends_with_window =
      !run->plan->problem.model.window || nsai_run_fuses(run, NSAI_STAGE_ATTEND_WINDOW);
  return nsai_comm_overlap_sms(run->comm) && pass->shard->ranks > 1 &&
         nsai_ranks_take_pieces(pass) && ends_with_window && separates(pass);
}

static nsa_status compress_own(const nsai_ranks_pass *pass) {
  const int64_t halo = halo_of(&pass->run->plan->problem.model);
  for (int32_t i = 0; i < pass->pieces; i++) {
    const nsa_piece *p = &pass->piece[i];
    NSAI_TRY(nsai_ranks_compress_tokens(pass, p->sequence, p->begin ? p->begin - halo : 0,
                                        p->begin + p->length));
  }
  return NSA_OK;
}

static void add(nsai_ranks_tensors *list, const nsai_ranks_tensor *tensor) {
  if (tensor->exists) list->tensor[list->count++] = *tensor;
}

/* Entries that runs make, in the plan's own storage. */
static nsai_ranks_tensor made(const nsai_ranks_pass *pass, nsai_buffer buffer, int32_t dim) {
  return (nsai_ranks_tensor){ .exists = buffer.bytes > 0,
                              .entries = true,
                              .heads = pass->run->plan->problem.model.kv_heads,
                              .dim = dim,
                              .whole = buffer };
}

/* What the compressed branch and the selection read. */
static nsa_status gather_early(nsai_ranks_pass *pass) {
  const nsai_model *m = &pass->run->plan->problem.model;
  const nsai_workspace *w = &pass->run->plan->workspace;
  nsai_ranks_tensors list = { 0 };
  if (nsai_phi_runs(m)) {
    const nsai_ranks_tensor k = made(pass, w->k_cmp, m->head_dim_qk);
    const nsai_ranks_tensor v = made(pass, w->v_cmp, m->head_dim_v);
    NSAI_TRY(nsai_ranks_bring_halo(pass, halo_of(m)));
    NSAI_TRY(compress_own(pass));
    add(&list, &k);
    if (!m->keys_only) add(&list, &v);
  }
  add(&list, &pass->memory->tensor[NSAI_RANKS_K_CMP]);
  add(&list, &pass->memory->tensor[NSAI_RANKS_V_CMP]);
  add(&list, &pass->memory->tensor[NSAI_RANKS_K_IDX]);
  return nsai_ranks_gather_rows(pass, &list, pass->run->queue->stream);
}

/* Raw K and V, but for those that only blocks are made of. */
static nsa_status bring_keys(void *user) {
  nsai_ranks_pass *pass = user;
  const nsai_run *run = pass->run;
  nsai_ranks_tensors list = { 0 };
  for (int pair = run->plan->problem.model.per_branch ? 1 : 0; pair < NSA_BRANCHES; pair++) {
    add(&list, &pass->memory->tensor[NSAI_RANKS_K + pair]);
    add(&list, &pass->memory->tensor[NSAI_RANKS_V + pair]);
  }
  NSAI_TRY(nsai_ranks_gather_rows(pass, &list, pass->beside));
  nsai_queue_break(run->queue);
  return nsai_comm_join(run->comm, run->queue->stream);
}

nsa_status nsai_ranks_forward_overlapped(nsai_ranks_pass *pass) {
  const nsai_run *run = pass->run;
  nsai_late_keys late = { .bring = bring_keys,
                          .user = pass,
                          .spare_sms = nsai_comm_overlap_sms(run->comm) };
  NSAI_TRY(nsai_ranks_pack(pass));
  NSAI_TRY(gather_early(pass));
  nsai_queue_break(run->queue);
  NSAI_TRY(nsai_comm_fork(run->comm, run->queue->stream, &pass->beside));
  if (pass->pieces) NSAI_TRY(nsai_ranks_run_at_once(pass, &late));
  return late.here ? NSA_OK : bring_keys(pass); /* other ranks may need this one's */
}
