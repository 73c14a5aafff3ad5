/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The forward over ranks with nsa_comm_options.overlap_sms or copy_bytes. Ranks exchange compressed entries
 * first, 1/d of the bytes of raw K and V, and keys of the index. Raw K and V travel in the communicator's own
 * stream, while the run's stream computes the compressed branch and chooses blocks:
 *
 *   run's stream    pack | halo | own blocks | entries | window, compressed, selection | wait | selected
 *   side stream                                        | raw K, V                     |
 *
 * (Where ranks copy, they wait in the side stream, beside `pack`, until all have come.)
 *
 * A block belongs to the piece that has its last token, whose rank makes its entry, of l - d tokens before the
 * piece. A window that a kernel of its own computes comes first, and reads w - 1 tokens before the piece. These
 * are the halo, for which pieces must be long enough. Entries must have one GPU's bits, so that only phi mean
 * makes them piece by piece: products of cuBLASLt have other bits with another number of rows.
 *
 * By the transport raw K and V are enqueued before the last kernel, not behind the fork, so that the others compute
 * already where the exchange of a host's transport blocks. A forward that chooses blocks in many chunks may then
 * fill CUDA's queue of launches, and enqueue them late. Two exchanges are waited for in the place of one, and each
 * takes a fixed time, 0.13 ms between two H200. Copy engines take no SM and no thread of NCCL: copies are
 * enqueued behind the fork.
 *
 * H200 x 2, 64 / 4 heads, D 128, 64k and 128k tokens, correlated inputs, ms of a burst: one exchange by NCCL first
 * 9.7 and 28.1, overlapped with 16 SMs left free 10.4 and 29.4, by copies 9.3 and 27.7. Where the time goes:
 * bench/results/h200-2026-11-28-ranks-timeline.txt.
 */
#include "base/math.h"
#include "plan/ranks_pieces.h"
#include "run/params.h"
#include "run/ranks.h"

static int64_t halo_of(const nsa_plan *plan, int pair) {
  return nsai_halo_tokens(&plan->problem, &plan->choice, pair);
}

int64_t nsai_ranks_longest_halo(const nsa_plan *plan) {
  int64_t most = 0;
  for (int pair = 0; pair < NSA_BRANCHES; pair++) most = nsai_larger(most, halo_of(plan, pair));
  return most;
}

/* Whether each piece but the last of a sequence has a whole halo, or all tokens so far. */
static bool holds_halos(const nsa_shard *shard, int64_t halo) {
  for (int32_t i = 0; i < shard->rank_begin[shard->ranks]; i++) {
    const nsa_piece *p = &shard->pieces[i];
    const int64_t length = shard->seq_begin[p->sequence + 1] - shard->seq_begin[p->sequence];
    if (p->begin && p->length < halo && p->begin + p->length < length) return false;
  }
  return true;
}

bool nsai_ranks_overlap(const nsa_comm *comm, const nsa_plan *plan, const nsa_shard *shard) {
  const bool copies =
      nsai_comm_room(comm, nsai_ranks_room_bytes(&plan->problem, &plan->workspace)) != NULL;
  return (copies || nsai_comm_overlap_sms(comm)) && shard->ranks > 1 &&
         !nsai_no_overlap(&plan->problem, &plan->choice) &&
         holds_halos(shard, nsai_ranks_longest_halo(plan));
}

static nsa_status compress_own(const nsai_ranks_pass *pass) {
  const nsai_model *m = &pass->run->plan->problem.model;
  for (int32_t i = 0; i < pass->pieces; i++) {
    const nsa_piece *p = &pass->piece[i];
    const int64_t begin =
        p->begin - (m->block - m->stride); /* below 0: no block ends before the piece */
    NSAI_TRY(
        nsai_ranks_compress_tokens(pass, p->sequence, nsai_larger(begin, 0), p->begin + p->length));
  }
  return NSA_OK;
}

static void add(nsai_ranks_tensors *list, const nsai_ranks_tensor *tensor) {
  if (tensor->exists) list->tensor[list->count++] = tensor;
}

/* Entries that the run makes, in the plan's own storage; none without bytes. */
static nsai_ranks_tensor made(const nsai_ranks_pass *pass, nsai_buffer buffer, int32_t dim) {
  return (nsai_ranks_tensor){ .exists = buffer.bytes > 0,
                              .entries = true,
                              .heads = pass->run->plan->problem.model.kv_heads,
                              .dim = dim,
                              .whole = buffer };
}

static nsa_status exchange_halo(nsai_ranks_pass *pass) {
  const nsa_plan *plan = pass->run->plan;
  int64_t rows[NSA_BRANCHES];
  if (!nsai_ranks_longest_halo(plan)) return NSA_OK;
  for (int pair = 0; pair < NSA_BRANCHES; pair++) rows[pair] = halo_of(plan, pair);
  return nsai_ranks_exchange_halo(pass, rows, pass->run->queue->stream);
}

/* What all kernels before the selected branch's read. */
static nsa_status gather_first(nsai_ranks_pass *pass) {
  const nsai_model *m = &pass->run->plan->problem.model;
  const nsai_workspace *w = &pass->run->plan->workspace;
  const nsai_ranks_tensor k = made(pass, w->k_cmp, m->head_dim_qk);
  const nsai_ranks_tensor v = made(pass, w->v_cmp, m->head_dim_v);
  nsai_ranks_tensors list = { 0 };
  NSAI_TRY(nsai_ranks_pack(pass));
  NSAI_TRY(exchange_halo(pass));
  if (nsai_phi_runs(m)) {
    NSAI_TRY(compress_own(pass));
    add(&list, &k);
    add(&list, &v);
  }
  add(&list, &pass->memory->tensor[NSAI_RANKS_K_CMP]);
  add(&list, &pass->memory->tensor[NSAI_RANKS_V_CMP]);
  add(&list, &pass->memory->tensor[NSAI_RANKS_K_IDX]);
  return nsai_ranks_gather_rows(pass, &list, pass->run->queue->stream);
}

/* Without pairs that nothing reads any more. The halo's rows are written again, with the same bytes, while the kernel
 * of a window may read them. */
static nsa_status gather_raw(nsai_ranks_pass *pass) {
  const nsa_plan *plan = pass->run->plan;
  nsai_ranks_tensors list = { 0 };
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    if (!nsai_awaits_pair(&plan->problem, &plan->choice, pair)) continue;
    add(&list, &pass->memory->tensor[NSAI_RANKS_K + pair]);
    add(&list, &pass->memory->tensor[NSAI_RANKS_V + pair]);
  }
  pass->announces = pass->room != NULL;
  /* Copies are announced also where there are none: they are awaited. */
  return list.count || pass->room ? nsai_ranks_gather_rows(pass, &list, pass->side) : NSA_OK;
}

nsa_status nsai_ranks_fork(nsai_ranks_pass *pass) {
  const nsai_run *run = pass->run;
  nsai_queue_break(run->queue);
  return nsai_comm_fork(run->comm, run->queue->stream, &pass->side);
}

nsa_status nsai_ranks_join(const nsai_ranks_pass *pass, nsa_status status) {
  nsai_queue_break(pass->run->queue);
  const nsa_status joined = nsai_comm_join(pass->run->comm, pass->run->queue->stream);
  return status == NSA_OK ? joined : status;
}

static nsa_status receive_raw(void *user) {
  nsai_ranks_pass *pass = user;
  if (!pass->room) return nsai_ranks_join(pass, gather_raw(pass));
  NSAI_TRY(nsai_ranks_join(pass, NSA_OK));
  return nsai_comm_await_copies(pass->run->comm, pass->run->queue->stream);
}

nsa_status nsai_ranks_forward_overlapped(nsai_ranks_pass *pass) {
  const nsai_run *run = pass->run;
  nsai_awaited_keys keys = { .receive = receive_raw,
                             .user = pass,
                             .spare_sms = pass->room ? 0 : nsai_comm_overlap_sms(run->comm) };
  NSAI_TRY(gather_first(pass));
  NSAI_TRY(nsai_ranks_fork(pass));
  nsa_status status = pass->room ? gather_raw(pass) : NSA_OK;
  if (status == NSA_OK && pass->pieces) status = nsai_ranks_run_at_once(pass, &keys);
  if (keys.received) return status;
  /* This rank has no use for them. Others may need its own, and their copies must not come to a room that the next
   * run already fills. */
  return status == NSA_OK ? receive_raw(pass) : nsai_ranks_join(pass, status);
}
