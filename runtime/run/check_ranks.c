/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "run/check_ranks.h"

#include "base/math.h"
#include "plan/context.h"
#include "ranks/comm.h"
#include "ranks/shard.h"

/* What a batch says of sequences and caches, which the shard says, or a run over ranks has not. */
static nsa_status refuse_arrays(const nsa_batch *batch) {
  const char *name = nsai_present(&batch->cu_q)     ? "cu_q"
                     : nsai_present(&batch->cu_kv)  ? "cu_kv"
                     : nsai_present(&batch->cu_cmp) ? "cu_cmp"
                                                    : nsai_array_of_cache(batch);
  if (!name) return NSA_OK;
  return nsai_fail(NSA_E_ARG,
                   "batch.%s is given, but over ranks batch.shard says where sequences lie: "
                   "leave it out",
                   name);
}

static nsa_status check_capacity(const char *what, int64_t value, const char *name, int64_t most) {
  if (value <= most) return NSA_OK;
  return nsai_fail(
      NSA_E_ARG, "batch.shard has %s of %lld, the plan was made for at most %lld: raise problem.%s",
      what, (long long)value, (long long)most, name);
}

/* A rank sends a part of each of its pieces to each other rank, or receives one of each of theirs, for
 * every tensor that travels; lists of parts are counted in 32 bits. Over hosts no list is longer. The
 * ranks compare the largest list of any of them, so that all refuse alike. */
static nsa_status check_parts(const nsa_shard *shard) {
  const int64_t most = INT32_MAX / 2 / NSAI_RANKS_TENSORS, all = shard->rank_begin[shard->ranks];
  int64_t parts = 0;
  for (int32_t r = 0; r < shard->ranks; r++) {
    const int64_t own = shard->rank_begin[r + 1] - shard->rank_begin[r];
    parts = nsai_larger(parts, nsai_larger(all - own, own * (shard->ranks - 1)));
  }
  if (parts <= most) return NSA_OK;
  return nsai_fail(
      NSA_E_ARG,
      "batch.shard has %lld pieces, of which %d ranks exchange %lld parts of a tensor, "
      "and a run at most %lld: make it of fewer and longer pieces",
      (long long)all, shard->ranks, (long long)parts, (long long)most);
}

static nsa_status check_ranks_of(const nsai_problem *p, const nsa_shard *shard) {
  if (shard->ranks == p->ranks) return NSA_OK;
  return nsai_fail(NSA_E_ARG,
                   "batch.shard is of %d ranks, the plan of %d: make the shard with options.ranks "
                   "%d, or the plan with problem.ranks %d",
                   shard->ranks, p->ranks, p->ranks, shard->ranks);
}

static nsa_status check_sequences(const nsa_batch *batch, const nsa_shard *shard) {
  if (!batch->num_seqs || batch->num_seqs == shard->num_seqs) return NSA_OK;
  return nsai_fail(NSA_E_ARG, "batch.num_seqs is %d, batch.shard has %d sequences: leave it 0",
                   batch->num_seqs, shard->num_seqs);
}

/* What a rank has of the shard at most. */
static nsa_status check_pieces(const nsai_problem *p, const nsa_shard *shard) {
  NSAI_TRY(check_capacity("a number of sequences", shard->num_seqs, "max_seqs", p->max_seqs));
  NSAI_TRY(check_capacity("tokens of a rank", shard->max_tokens, "max_tokens", p->max_tokens));
  return check_capacity("a number of pieces", shard->max_pieces, "max_pieces", p->max_pieces);
}

static nsa_status check_shard(const nsai_problem *p, const nsa_shard *shard) {
  int64_t longest = 0;
  NSAI_TRY(check_ranks_of(p, shard));
  for (int32_t s = 0; s < shard->num_seqs; s++) {
    const int64_t length = shard->seq_begin[s + 1] - shard->seq_begin[s];
    if (length > longest) longest = length;
  }
  NSAI_TRY(check_pieces(p, shard));
  NSAI_TRY(check_capacity("tokens", shard->total_tokens, "max_kv_tokens", p->max_kv_tokens));
  NSAI_TRY(check_capacity("a sequence", longest, "max_kv_len", p->max_kv_len));
  NSAI_TRY(check_parts(shard));
  if (nsai_compresses(&p->model) && shard->alignment % p->model.stride)
    return nsai_fail(NSA_E_ARG,
                     "batch.shard is aligned to %lld tokens, expected a multiple of "
                     "model.compress.stride, %d: make it with a context of this model",
                     (long long)shard->alignment, p->model.stride);
  return NSA_OK;
}

static nsa_status check_no_ranks(const nsa_comm *comm, const nsa_shard *shard) {
  if (comm)
    return nsai_fail(NSA_E_ARG,
                     "exec.comm is given, but the plan has no ranks: leave it out, or make the "
                     "plan with problem.ranks");
  if (shard)
    return nsai_fail(NSA_E_ARG,
                     "batch.shard is given, but the plan has no ranks: leave it out, or make the "
                     "plan with problem.ranks");
  return NSA_OK;
}

/* The communicator of a plan over ranks. */
static nsa_status check_comm(const nsa_plan *plan, const nsa_comm *comm) {
  const nsai_problem *p = &plan->problem;
  if (!comm)
    return nsai_fail(NSA_E_ARG,
                     "exec.comm is missing: the plan was made for problem.ranks %d; give this "
                     "rank's communicator, or make a plan with problem.ranks 0",
                     p->ranks);
  if (nsai_comm_size(comm) != p->ranks)
    return nsai_fail(
        NSA_E_ARG,
        "exec.comm has %d ranks, the plan was made for problem.ranks %d: make the plan "
        "for as many ranks as the communicator has",
        nsai_comm_size(comm), p->ranks);
  const nsa_ctx *other = nsai_comm_context(comm);
  if (other->cpu != plan->ctx->cpu ||
      (!other->cpu && other->device.ordinal != plan->ctx->device.ordinal))
    return nsai_fail(NSA_E_ARG,
                     "exec.comm was made for another device than the plan: make it with a "
                     "context of the plan's device");
  return NSA_OK;
}

/* The shard of a prefill, which divides the new tokens. */
static nsa_status check_new_tokens(const nsa_plan *plan, const nsa_comm *comm,
                                   const nsa_batch *batch) {
  const nsai_problem *p = &plan->problem;
  const nsa_shard *shard = batch ? batch->shard : NULL;
  int64_t longest = 0;
  NSAI_TRY(check_comm(plan, comm));
  if (!shard)
    return nsai_fail(NSA_E_ARG,
                     "batch.shard is missing: a prefill over %d ranks needs the shard of the "
                     "call's new tokens (nsa_shard_create)",
                     p->ranks);
  if (nsai_present(&batch->cu_q))
    return nsai_fail(NSA_E_ARG, "batch.cu_q is given, but over ranks batch.shard says how many new "
                                "tokens a sequence has: leave it out");
  NSAI_TRY(check_sequences(batch, shard));
  NSAI_TRY(check_ranks_of(p, shard));
  NSAI_TRY(check_pieces(p, shard));
  for (int32_t s = 0; s < shard->num_seqs; s++)
    longest = nsai_larger(longest, shard->seq_begin[s + 1] - shard->seq_begin[s]);
  return check_capacity("new tokens of a sequence", longest, "max_q_len", p->max_q_len);
}

/* Of a cache over ranks: only a decode and a prefill exchange something. */
static nsa_status check_divided_cache(const nsa_plan *plan, const nsa_comm *comm,
                                      const nsa_batch *batch) {
  if (plan->problem.op == NSA_OP_PREFILL) return check_new_tokens(plan, comm, batch);
  if (batch && batch->shard)
    return nsai_fail(NSA_E_ARG, "batch.shard is given, but a cache over ranks has none, since "
                                "problem.unit_tokens says where its tokens lie: leave it out");
  return plan->problem.op == NSA_OP_APPEND ? NSA_OK : check_comm(plan, comm);
}

nsa_status nsai_check_shard(const nsa_plan *plan, const nsa_comm *comm, const nsa_batch *batch) {
  const nsai_problem *p = &plan->problem;
  const nsa_shard *shard = batch ? batch->shard : NULL;
  if (!p->ranks) return check_no_ranks(comm, shard);
  if (nsai_problem_divides_cache(p)) return check_divided_cache(plan, comm, batch);
  if (comm && !shard)
    return nsai_fail(NSA_E_ARG,
                     "batch.shard is missing: the plan was made for problem.ranks %d; give the "
                     "shard of nsa_shard_create, or make a plan with problem.ranks 0",
                     p->ranks);
  NSAI_TRY(check_comm(plan, comm));
  NSAI_TRY(refuse_arrays(batch));
  NSAI_TRY(check_sequences(batch, shard));
  return check_shard(p, shard);
}

nsa_status nsai_check_rank_tokens(const nsa_shard *shard, int32_t rank, int64_t tokens) {
  if (tokens == shard->rank_tokens[rank]) return NSA_OK;
  return nsai_fail(NSA_E_ARG,
                   "io.q has %lld tokens, batch.shard gives rank %d %lld: pass the rows of "
                   "nsa_shard_pieces(shard, %d), one piece after the other",
                   (long long)tokens, rank, (long long)shard->rank_tokens[rank], rank);
}

nsa_status nsai_check_ranks_io(const nsai_problem *p, const nsa_shard *shard, int32_t rank,
                               const nsa_io *io, const nsai_run_sizes *sizes) {
  const nsai_model *m = &p->model;
  const int64_t tokens = shard->rank_tokens[rank];
  int64_t entries = 0;
  NSAI_TRY(nsai_check_rank_tokens(shard, rank, sizes->tokens));
  if (sizes->kv_tokens != tokens)
    return nsai_fail(NSA_E_ARG,
                     "io.kv has %lld tokens, batch.shard gives rank %d %lld: pass the rows of "
                     "nsa_shard_pieces(shard, %d), one piece after the other; the run brings those "
                     "of other ranks",
                     (long long)sizes->kv_tokens, rank, (long long)tokens, rank);
  if (p->op == NSA_OP_FORWARD && m->by == NSAI_BY_INDEX && !nsai_present(&io->k_idx) && tokens &&
      (p->selection == NSA_SELECT_TOPN || p->index_lse))
    return nsai_fail(
        NSA_E_ARG, "io.k_idx is missing: over ranks every run of the plan gathers the keys of the "
                   "index, so that ranks need not ask for the same outputs");
  if (m->phi != NSAI_PHI_EXTERNAL) {
    if (nsai_present(&io->kv.k_cmp) || nsai_present(&io->kv.v_cmp))
      return nsai_fail(NSA_E_ARG,
                       "io.kv.k_cmp is given, but a run over ranks keeps its compressed entries in "
                       "the workspace: leave it out");
    return NSA_OK;
  }
  for (int32_t i = shard->rank_begin[rank]; i < shard->rank_begin[rank + 1]; i++) {
    const nsa_piece *piece = &shard->pieces[i];
    entries +=
        nsai_block_count(m, piece->begin + piece->length) - nsai_block_count(m, piece->begin);
  }
  if (sizes->cmp_rows != entries)
    return nsai_fail(
        NSA_E_ARG,
        "io.kv.k_cmp has %lld rows, the pieces of rank %d hold the last tokens of %lld "
        "compressed blocks: pass these blocks' entries in the order of nsa_shard_pieces(shard, %d)",
        (long long)sizes->cmp_rows, rank, (long long)entries, rank);
  return NSA_OK;
}
