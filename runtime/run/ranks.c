/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The forward over ranks, and the tensors of its pieces.
 */
#include "run/ranks.h"

#include "base/math.h"
#include "plan/ranks_pieces.h"
#include "reference/reference.h"
#include "run/check_tensor.h"
#include "run/params.h"

#define ALL_PROCESSORS 0 /* threads of the CPU device */

/* ---- pieces ---- */

void nsai_ranks_slice(nsa_tensor *t, int64_t first, int64_t count) {
  if (!nsai_present(t)) return;
  t->data = (char *)t->data + first * t->stride[0] * nsai_dtype_bytes(t->dtype);
  t->shape[0] = count;
}

nsa_tensor nsai_ranks_rows_tensor(const nsai_ranks_tensor *t, void *data, int32_t dtype,
                                  int64_t rows) {
  return (nsa_tensor){ .data = data,
                       .shape = { rows, t->heads, t->dim },
                       .stride = { (int64_t)t->heads * t->dim, t->dim, 1 },
                       .ndim = 3,
                       .dtype = dtype };
}

/* The first rows of a sequence in a gathered tensor. */
static void view_whole(const nsai_ranks_pass *pass, int item, int64_t row, int64_t rows,
                       nsa_tensor *out) {
  const nsai_ranks_tensor *t = &pass->memory->tensor[item];
  const int32_t dtype = pass->run->plan->problem.model.dtype;
  char *whole = nsai_ranks_buffer_at(pass, t->whole);
  whole += nsai_ranks_elements(t, row) * nsai_dtype_bytes(dtype);
  *out = nsai_ranks_rows_tensor(t, whole, dtype, rows);
}

/* The entries that this run made of a sequence, in the plan's own storage. */
static void view_made(const nsai_ranks_pass *pass, nsai_buffer buffer, int32_t dim, int64_t row,
                      int64_t rows, nsa_tensor *out) {
  const nsai_model *m = &pass->run->plan->problem.model;
  const nsai_ranks_tensor t = { .heads = m->kv_heads, .dim = dim };
  char *entries = nsai_ranks_buffer_at(pass, buffer);
  *out = nsai_ranks_rows_tensor(&t, entries + nsai_ranks_elements(&t, row) * 2, m->dtype, rows);
}

/* Compressed entries of the tokens [0, end) of a sequence. Made ones have one row more than there may
 * be blocks, as those of a run without ranks: products then have the same shapes. It belongs to the
 * next sequence, which is compressed later. */
static void set_entries(const nsai_ranks_pass *pass, int32_t sequence, int64_t end, nsa_io *io) {
  const nsai_model *m = &pass->run->plan->problem.model;
  const nsai_workspace *w = &pass->run->plan->workspace;
  const int64_t row = pass->shard->seq_begin[sequence] / m->stride, rows = end / m->stride + 1;
  io->kv.k_cmp = io->kv.v_cmp = (nsa_tensor){ 0 };
  if (m->phi == NSAI_PHI_EXTERNAL) {
    const int64_t blocks = nsai_block_count(m, end);
    view_whole(pass, NSAI_RANKS_K_CMP, row, blocks, &io->kv.k_cmp);
    if (!m->keys_only) view_whole(pass, NSAI_RANKS_V_CMP, row, blocks, &io->kv.v_cmp);
    return;
  }
  if (!pass->run->driver || !nsai_phi_runs(m)) return; /* the CPU device makes them by itself */
  view_made(pass, w->k_cmp, m->head_dim_qk, row, rows, &io->kv.k_cmp);
  if (!m->keys_only) view_made(pass, w->v_cmp, m->head_dim_v, row, rows, &io->kv.v_cmp);
}

/* Keys and values of the tokens [0, end) of a sequence. */
static void set_keys(const nsai_ranks_pass *pass, int32_t sequence, int64_t end, nsa_io *io) {
  const int64_t row = pass->shard->seq_begin[sequence];
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    if (pass->memory->tensor[NSAI_RANKS_K + pair].exists) {
      view_whole(pass, NSAI_RANKS_K + pair, row, end, &io->kv.k[pair]);
      view_whole(pass, NSAI_RANKS_V + pair, row, end, &io->kv.v[pair]);
    } else { /* nothing reads it, but its rows may be the only ones that tell kv_len */
      io->kv.k[pair].shape[0] = io->kv.v[pair].shape[0] = end;
    }
  }
  if (pass->memory->tensor[NSAI_RANKS_K_IDX].exists)
    view_whole(pass, NSAI_RANKS_K_IDX, row, end, &io->k_idx);
  set_entries(pass, sequence, end, io);
}

void nsai_ranks_piece_io(const nsai_ranks_pass *pass, const nsa_piece *piece, int64_t local,
                         nsa_io *io) {
  *io = *pass->run->io;
  nsa_tensor *const rows[] = { &io->q,           &io->o,          &io->gate.value, &io->gate.x,
                               &io->block_idx,   &io->ranges,     &io->index_q,    &io->index_lse,
                               &io->lse[0],      &io->lse[1],     &io->lse[2],     &io->o_branch[0],
                               &io->o_branch[1], &io->o_branch[2] };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    nsai_ranks_slice(rows[i], local, piece->length);
  set_keys(pass, piece->sequence, piece->begin + piece->length, io);
}

nsai_run nsai_ranks_piece_run(const nsai_ranks_pass *pass, const nsa_piece *piece, const nsa_io *io,
                              const nsai_run_piece *is) {
  nsai_run run = *pass->run;
  run.io = io;
  run.piece = is;
  run.sizes = (nsai_run_sizes){ .tokens = piece->length,
                                .kv_tokens = piece->begin + piece->length,
                                .num_seqs = 1 };
  if (nsai_present(&io->kv.k_cmp)) run.sizes.cmp_rows = io->kv.k_cmp.shape[0];
  return run;
}

nsa_status nsai_ranks_compress_tokens(const nsai_ranks_pass *pass, int32_t sequence, int64_t begin,
                                      int64_t end) {
  const int32_t stride = pass->run->plan->problem.model.stride;
  const nsai_run_piece is = { 0 };
  const nsa_piece whole = { .sequence = sequence, .length = end - begin };
  nsa_io io = *pass->run->io;
  nsa_kv *kv = &io.kv;
  set_keys(pass, sequence, end, &io);
  nsai_ranks_slice(&kv->k[0], begin, end - begin);
  nsai_ranks_slice(&kv->v[0], begin, end - begin);
  nsai_ranks_slice(&kv->k_cmp, begin / stride, kv->k_cmp.shape[0] - begin / stride);
  nsai_ranks_slice(&kv->v_cmp, begin / stride, kv->v_cmp.shape[0] - begin / stride);
  const nsai_run run = nsai_ranks_piece_run(pass, &whole, &io, &is);
  nsai_queue_break(run.queue);
  return nsai_enqueue_compress(&run);
}

nsa_status nsai_ranks_compress(const nsai_ranks_pass *pass) {
  if (!pass->run->driver || !nsai_phi_runs(&pass->run->plan->problem.model)) return NSA_OK;
  for (int32_t s = 0; s < pass->shard->num_seqs; s++) {
    const int64_t end = nsai_ranks_ends(pass, pass->rank)[s];
    if (end) NSAI_TRY(nsai_ranks_compress_tokens(pass, s, 0, end));
  }
  return NSA_OK;
}

/* ---- forward ---- */

static nsa_status run_piece(const nsai_ranks_pass *pass, const nsa_piece *piece, int64_t local) {
  const nsai_problem *p = &pass->run->plan->problem;
  const nsai_run_piece is = { 0 };
  nsa_io io;
  nsai_ranks_piece_io(pass, piece, local, &io);
  const nsai_run run = nsai_ranks_piece_run(pass, piece, &io, &is);
  if (run.driver) {
    nsai_queue_break(run.queue); /* its workspace is that of the piece before */
    return nsai_enqueue_forward(&run);
  }
  NSAI_TRY(
      nsai_reference_forward(&p->model, p->selection, run.branches, NULL, &io, ALL_PROCESSORS));
  if (!nsai_present(&io.index_lse)) return NSA_OK;
  return nsai_reference_index_lse(&p->model, NULL, NULL, &io, ALL_PROCESSORS);
}

/* ---- all pieces in one run ---- */

/* Bytes that a copy takes from pageable memory without making the host wait (CUDA programming guide,
 * asynchronous concurrent execution). */
#define UPLOAD_AT_ONCE (64 * 1024)

nsa_status nsai_ranks_upload(const nsai_run *run, void *to, const void *from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += UPLOAD_AT_ONCE) {
    const size_t left = bytes - at, part = left < UPLOAD_AT_ONCE ? left : UPLOAD_AT_ONCE;
    NSAI_TRY(NSAI_CUDA(run->driver,
                       cuMemcpyHtoDAsync((nsai_cu_ptr)(uintptr_t)to + at, (const char *)from + at,
                                         part, run->queue->stream)));
  }
  return NSA_OK;
}

/* Writes the offsets of the rank's pieces to the workspace; `room` gets the batch. */
static nsa_status upload_batch(nsai_ranks_pass *pass, nsa_batch *room) {
  const nsai_run *run = pass->run;
  const nsai_shard_batch b = nsai_shard_offsets(pass->shard, pass->rank);
  const size_t count = (size_t)b.num_seqs + 1; /* of cu_q, and of cu_kv behind it */
  int32_t *to = nsai_buffer_at(run, pass->memory->offsets);
  *room = (nsa_batch)NSA_BATCH_INIT;
  room->num_seqs = b.num_seqs;
  room->cu_q.data = to;
  room->cu_kv.data = to + count;
  nsai_queue_break(run->queue);
  if (!pass->uploaded) NSAI_TRY(nsai_ranks_upload(run, to, b.cu_q, 2 * count * sizeof *to));
  pass->uploaded = true;
  return NSA_OK;
}

/* The gathered keys of all sequences, and their entries. Kernels find entries in the workspace by themselves. */
static void set_all_keys(const nsai_ranks_pass *pass, nsa_io *io) {
  const nsai_model *m = &pass->run->plan->problem.model;
  const nsai_workspace *w = &pass->run->plan->workspace;
  const int64_t tokens = pass->shard->total_tokens, rows = tokens / m->stride + 1;
  for (int pair = 0; pair < NSA_BRANCHES; pair++)
    if (pass->memory->tensor[NSAI_RANKS_K + pair].exists) {
      view_whole(pass, NSAI_RANKS_K + pair, 0, tokens, &io->kv.k[pair]);
      view_whole(pass, NSAI_RANKS_V + pair, 0, tokens, &io->kv.v[pair]);
    }
  if (pass->memory->tensor[NSAI_RANKS_K_IDX].exists)
    view_whole(pass, NSAI_RANKS_K_IDX, 0, tokens, &io->k_idx);
  io->kv.k_cmp = io->kv.v_cmp = (nsa_tensor){ 0 };
  if (pass->room && nsai_phi_runs(m)) {
    view_made(pass, w->k_cmp, m->head_dim_qk, 0, rows, &io->kv.k_cmp);
    if (!m->keys_only) view_made(pass, w->v_cmp, m->head_dim_v, 0, rows, &io->kv.v_cmp);
  }
  if (m->phi != NSAI_PHI_EXTERNAL) return;
  view_whole(pass, NSAI_RANKS_K_CMP, 0, tokens / m->stride, &io->kv.k_cmp);
  if (!m->keys_only) view_whole(pass, NSAI_RANKS_V_CMP, 0, tokens / m->stride, &io->kv.v_cmp);
}

/* Every kernel takes all pieces at once, as a batch of sequences that share their keys. */
nsa_status nsai_ranks_run_at_once(nsai_ranks_pass *pass, nsai_awaited_keys *awaited) {
  const nsai_run_piece is = { .awaited = awaited };
  nsa_batch batch;
  nsa_io io = *pass->run->io;
  nsai_run run = *pass->run;
  set_all_keys(pass, &io);
  NSAI_TRY(upload_batch(pass, &batch));
  run.io = &io;
  run.batch = &batch;
  run.piece = &is;
  run.sizes = (nsai_run_sizes){ .tokens = pass->shard->rank_tokens[pass->rank],
                                .kv_tokens = pass->shard->total_tokens,
                                .cmp_rows = io.kv.k_cmp.shape[0],
                                .num_seqs = batch.num_seqs,
                                .packed = true };
  return nsai_enqueue_forward(&run);
}

/* Whether any piece reads compressed entries. */
static bool reads_entries(const nsai_run *run) {
  return nsai_run_has(run, NSA_CMP) || nsai_run_selects(run);
}

static nsa_status forward(nsai_ranks_pass *pass) {
  int64_t local = 0;
  const nsa_plan *plan = pass->run->plan;
  if (nsai_ranks_overlap(pass->run->comm, plan, pass->shard))
    return nsai_ranks_forward_overlapped(pass);
  NSAI_TRY(nsai_ranks_gather(pass));
  if (pass->run->driver && reads_entries(pass->run)) NSAI_TRY(nsai_ranks_compress(pass));
  if (pass->run->driver && pass->pieces > 1 && nsai_takes_pieces(&plan->problem, &plan->choice))
    return nsai_ranks_run_at_once(pass, NULL);
  for (int32_t i = 0; i < pass->pieces; i++) {
    NSAI_TRY(run_piece(pass, &pass->piece[i], local));
    local += pass->piece[i].length;
  }
  return NSA_OK;
}

nsa_status nsai_forward_over_ranks(const nsai_run *run) {
  return nsai_for_head_groups(run, forward);
}
