/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The backward pass over ranks. Each piece adds its dK and dV to fp32 sums over the tokens up to its
 * end. All ranks exchange these, whatever gradients each asks for, and every owner adds up the parts of
 * its tokens in the order of ranks, so that every run gives the same bits. Over several hosts a rank adds
 * up the parts of its host's ranks for the tokens of its column, in place of its own part, and the owner
 * adds up the hosts' in their order; sums that are cut otherwise round otherwise. Gradients of weights are
 * added up over this rank's pieces in fp32 and rounded once.
 *
 * dK and dV differ from those of one GPU as sums in fp32 do that are cut at other rows: on an H200 by
 * 1e-6 of the greatest at 4k tokens, and 1e-5 at 64k. So do calls piece by piece without ranks. Either
 * differs from float64 by 7e-4, since products take their operands in 16 bits.
 *
 * Ranks that copy (nsa_comm_options.copy_bytes) do so beside the kernels: K and V until the first kernel reads
 * them, sums while the last piece computes its dQ, if another kernel than that of the sums does so.
 *
 * The last piece of a sequence runs first: it writes the sums of all tokens that the others add to.
 */
#include "base/float16.h"
#include "base/math.h"
#include "params/backward.h"
#include "reference/reference.h"
#include "run/check_tensor.h"
#include "run/params.h"
#include "run/ranks.h"

#include <stdlib.h>

#define ALL_PROCESSORS 0 /* threads of the CPU device */

/* A gradient of K or V in a nsa_kv. */
static nsa_tensor *gradient_of(nsa_kv *kv, int item) {
  if (item == NSAI_RANKS_K_CMP) return &kv->k_cmp;
  if (item == NSAI_RANKS_V_CMP) return &kv->v_cmp;
  return item < NSAI_RANKS_V ? &kv->k[item - NSAI_RANKS_K] : &kv->v[item - NSAI_RANKS_V];
}

static nsa_tensor *weight_of(nsa_grads *grads, const nsai_ranks_weight *weight) {
  return (nsa_tensor *)((char *)grads + weight->tensor);
}

/* The fp32 sum of a weight's gradient. */
static float *weight_sum(const nsai_ranks_pass *pass, const nsai_ranks_weight *weight) {
  return (float *)((char *)nsai_buffer_at(pass->run, pass->memory->weights) + weight->offset);
}

/* ---- ordered sums ---- */

static float load(const nsa_tensor *t, int64_t at) {
  if (t->dtype == NSA_F32) return ((const float *)t->data)[at];
  const uint16_t half = ((const uint16_t *)t->data)[at];
  return t->dtype == NSA_BF16 ? nsai_float_from_bf16(half) : nsai_float_from_f16(half);
}

static void store(const nsa_tensor *t, int64_t at, double value) {
  if (t->dtype == NSA_F32)
    ((float *)t->data)[at] = (float)value;
  else
    ((uint16_t *)t->data)[at] =
        t->dtype == NSA_BF16 ? nsai_bf16_from_double(value) : nsai_f16_from_double(value);
}

/* As kernel_templates/backward/ranks_sum.cuh, on the CPU device. */
static void sum_on_host(const NsaiRanksSum *sum, const nsa_tensor *out) {
  const int64_t row_elements = (int64_t)sum->heads * sum->columns;
  for (int64_t row = 0; row < sum->rows; row++)
    for (int64_t i = 0; i < row_elements; i++) {
      const int64_t head = i / sum->columns, column = i % sum->columns;
      const int64_t at =
          row * sum->out.view.token_stride + head * sum->out.view.head_stride + column;
      double value = sum->out.accumulate ? (double)load(out, at) : 0.0, added = 0.0;
      for (int p = 0; p < sum->parts; p++)
        if (row < sum->part_rows[p]) added += (double)sum->part[p][row * row_elements + i];
      store(out, at, value + added);
    }
}

/* The run's sums go through the row of the table that makes dK and dV. */
static nsa_status enqueue_sum(const nsai_run *run, const NsaiRanksSum *sum, const nsa_tensor *out) {
  const nsai_span span = { .ranks_sum = sum };
  const bool fused = nsai_run_fuses(run, NSAI_STAGE_BACKWARD_KV);
  const nsai_form *form = run->driver ? nsai_plan_form(run->plan, fused ? NSAI_STAGE_BACKWARD_Q
                                                                        : NSAI_STAGE_BACKWARD_KV)
                                      : NULL;
  if (form) return form->variant->enqueue(run, form, &span);
  sum_on_host(sum, out);
  return NSA_OK;
}

/* A piece of this rank's column, on some host, whose rows begin at the local row `local` of its owner. */
typedef struct column_piece {
  const nsa_piece *piece;
  int32_t host;
  int64_t local;
} column_piece;

static float *sums_of(const nsai_ranks_pass *pass, const nsai_ranks_tensor *t, int64_t row) {
  return (float *)nsai_buffer_at(pass->run, t->sums) + nsai_ranks_elements(t, row);
}

static void add_part(NsaiRanksSum *sum, const float *part, int64_t rows) {
  sum->part[sum->parts] = part;
  sum->part_rows[sum->parts++] = (int)rows;
}

/* The parts of this host's ranks, in their order. */
static void add_ranks(const nsai_ranks_pass *pass, const nsai_ranks_tensor *t,
                      const column_piece *of, NsaiRanksSum *sum) {
  for (int32_t i = 0; i < pass->host_ranks; i++) {
    const int64_t *ends = nsai_ranks_ends(pass, nsai_ranks_at(pass, pass->host, i));
    const nsai_ranks_rows rows = nsai_ranks_rows_of(pass, t, of->piece, ends[of->piece->sequence]);
    if (rows.count)
      add_part(sum,
               i == pass->index ? sums_of(pass, t, rows.row)
                                : nsai_ranks_received_inside(pass, t, i, of->host, of->local),
               rows.count);
  }
}

/* The sums of hosts, in their order. */
static void add_hosts(const nsai_ranks_pass *pass, const nsai_ranks_tensor *t,
                      const column_piece *of, NsaiRanksSum *sum) {
  for (int32_t h = 0; h < pass->hosts; h++) {
    const int64_t *ends = nsai_ranks_host_ends(pass, h);
    const nsai_ranks_rows rows = nsai_ranks_rows_of(pass, t, of->piece, ends[of->piece->sequence]);
    if (rows.count)
      add_part(sum,
               h == pass->host ? sums_of(pass, t, rows.row)
                               : nsai_ranks_received_between(pass, t, h, of->local),
               rows.count);
  }
}

/* One gradient's rows of one piece of this rank. */
static nsa_status sum_piece(const nsai_ranks_pass *pass, const nsai_ranks_tensor *t,
                            const column_piece *of, const nsa_tensor *out) {
  const nsai_ranks_rows all = nsai_ranks_rows_of(pass, t, of->piece, INT64_MAX);
  nsa_tensor rows = *out;
  if (!all.count) return NSA_OK;
  nsai_ranks_slice(&rows, of->local, all.count);
  NsaiRanksSum sum = { .out = { .view = nsai_view(&rows),
                                .is_float = out->dtype == NSA_F32,
                                .accumulate = (int)pass->run->grads->accumulate },
                       .rows = (int)all.count,
                       .heads = t->heads,
                       .columns = t->dim };
  if (pass->hosts > 1)
    add_hosts(pass, t, of, &sum);
  else
    add_ranks(pass, t, of, &sum);
  return enqueue_sum(pass->run, &sum, &rows);
}

/* The host's sum of the rows of one piece of this column, in the place of this rank's part. Each thread
 * reads its element of all parts before it writes it. Rows behind this rank's own end were not written. */
static nsa_status sum_piece_of_host(const nsai_ranks_pass *pass, const nsai_ranks_tensor *t,
                                    const column_piece *of) {
  const int64_t *ends = nsai_ranks_host_ends(pass, pass->host);
  const nsai_ranks_rows all = nsai_ranks_rows_of(pass, t, of->piece, ends[of->piece->sequence]);
  if (!all.count) return NSA_OK;
  float *to = sums_of(pass, t, all.row);
  const nsa_tensor rows = nsai_ranks_rows_tensor(t, to, NSA_F32, all.count);
  NsaiRanksSum sum = { .out = { .view = nsai_view(&rows), .is_float = 1 },
                       .rows = (int)all.count,
                       .heads = t->heads,
                       .columns = t->dim };
  add_ranks(pass, t, of, &sum);
  if (sum.parts == 1 && sum.part[0] == to) return NSA_OK; /* nobody else adds to it */
  return enqueue_sum(pass->run, &sum, &rows);
}

/* Of every tensor that travels, whatever gradients this rank asks for: other hosts wait for them. */
static nsa_status sum_host(const nsai_ranks_pass *pass) {
  const nsa_shard *shard = pass->shard;
  for (int item = 0; item < NSAI_RANKS_K_IDX; item++) {
    const nsai_ranks_tensor *t = &pass->memory->tensor[item];
    for (int32_t h = 0; h < pass->hosts && t->exists; h++) {
      const int32_t owner = nsai_ranks_at(pass, h, pass->index);
      column_piece of = { .host = h };
      for (int32_t i = shard->rank_begin[owner]; i < shard->rank_begin[owner + 1]; i++) {
        of.piece = &shard->pieces[i];
        NSAI_TRY(sum_piece_of_host(pass, t, &of));
        of.local += nsai_ranks_rows_of(pass, t, of.piece, INT64_MAX).count;
      }
    }
  }
  return NSA_OK;
}

static nsa_status sum_tensors(const nsai_ranks_pass *pass) {
  nsa_kv wanted = pass->run->grads->d_kv;
  for (int item = 0; item < NSAI_RANKS_K_IDX; item++) {
    const nsai_ranks_tensor *t = &pass->memory->tensor[item];
    const nsa_tensor *out = gradient_of(&wanted, item);
    column_piece of = { .host = pass->host };
    for (int32_t i = 0; i < pass->pieces && t->exists && nsai_present(out); i++) {
      of.piece = &pass->piece[i];
      NSAI_TRY(sum_piece(pass, t, &of, out));
      of.local += nsai_ranks_rows_of(pass, t, of.piece, INT64_MAX).count;
    }
  }
  return NSA_OK;
}

/* Rounds the sums of weights into the caller's tensors. */
static nsa_status store_weights(const nsai_ranks_pass *pass) {
  nsai_ranks_weight weights[NSAI_RANKS_MOST_WEIGHTS];
  nsa_grads grads = *pass->run->grads;
  int64_t bytes;
  const int count = nsai_ranks_weights(&pass->run->plan->problem.model, weights, &bytes);
  for (int i = 0; i < count; i++) {
    const nsai_ranks_weight *w = &weights[i];
    const nsa_tensor *out = weight_of(&grads, w);
    if (!nsai_present(out)) continue;
    NsaiRanksSum sum = { .part = { weight_sum(pass, w) },
                         .part_rows = { (int)w->shape[0] },
                         .out = { .view = { .data = out->data },
                                  .is_float = out->dtype == NSA_F32,
                                  .accumulate = (int)grads.accumulate },
                         .parts = pass->pieces > 0,
                         .rows = (int)w->shape[0],
                         .heads = (int)w->shape[1],
                         .columns = (int)w->shape[2] };
    if (w->ndim == 3) sum.out.view.token_stride = out->stride[0];
    if (w->ndim >= 2) sum.out.view.head_stride = out->stride[w->ndim - 2];
    NSAI_TRY(enqueue_sum(pass->run, &sum, out));
  }
  return NSA_OK;
}

/* ---- pieces ---- */

/* The gradients of a piece: the caller's for its rows; sums in fp32 for everything else. `sums` is the
 * first byte of those of [0, end) of its sequence, by tensor. */
static void set_gradients(const nsai_ranks_pass *pass, const nsa_piece *piece, int64_t local,
                          nsa_grads *out) {
  nsai_ranks_weight weights[NSAI_RANKS_MOST_WEIGHTS];
  const int64_t end = piece->begin + piece->length;
  const nsa_piece prefix = { .sequence = piece->sequence, .length = end };
  int64_t bytes;
  nsa_tensor *const rows[] = { &out->d_o, &out->d_q, &out->d_gate.value, &out->d_gate.x };
  *out = *pass->run->grads;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    nsai_ranks_slice(rows[i], local, piece->length);
  for (int item = 0; item < NSAI_RANKS_K_IDX; item++) {
    const nsai_ranks_tensor *t = &pass->memory->tensor[item];
    const nsai_ranks_rows at = nsai_ranks_rows_of(pass, t, &prefix, end);
    nsa_tensor *to = gradient_of(&out->d_kv, item);
    *to = (nsa_tensor){ 0 };
    if (!t->exists || !at.count) continue;
    float *sums = (float *)nsai_buffer_at(pass->run, t->sums) + nsai_ranks_elements(t, at.row);
    *to = nsai_ranks_rows_tensor(t, sums, NSA_F32, at.count);
  }
  const int count = nsai_ranks_weights(&pass->run->plan->problem.model, weights, &bytes);
  for (int i = 0; i < count; i++) {
    const nsai_ranks_weight *w = &weights[i];
    nsa_tensor *to = weight_of(out, w);
    if (!nsai_present(to)) continue;
    *to = (nsa_tensor){ .data = weight_sum(pass, w), .ndim = w->ndim, .dtype = NSA_F32 };
    for (int d = 0; d < w->ndim; d++) to->shape[d] = w->shape[3 - w->ndim + d];
    for (int64_t d = w->ndim - 1, step = 1; d >= 0; step *= to->shape[d--]) to->stride[d] = step;
  }
}

static nsa_status run_on_device(const nsai_ranks_pass *pass, const nsa_piece *piece, int64_t local,
                                const nsai_run_piece *is) {
  nsa_io io;
  nsa_grads grads;
  nsai_ranks_piece_io(pass, piece, local, &io);
  set_gradients(pass, piece, local, &grads);
  nsai_run run = nsai_ranks_piece_run(pass, piece, &io, is);
  run.grads = &grads;
  nsai_queue_break(run.queue); /* its workspace is that of the piece before */
  return nsai_enqueue_backward(&run);
}

/* ---- the CPU device ---- */

/* The reference has one flag for all gradients, so it writes those of K, V and weights beside the sums,
 * which they are then added to. `own` are its tensors and `sums` the pass's. */
static void add_tensor(const nsa_tensor *sums, const nsa_tensor *own, bool adds) {
  int64_t count = 1;
  if (!nsai_present(sums)) return;
  for (int d = 0; d < sums->ndim; d++) count *= sums->shape[d];
  float *to = sums->data;
  const float *from = own->data;
  for (int64_t i = 0; i < count; i++) to[i] = adds ? to[i] + from[i] : from[i];
}

static int64_t bytes_of(const nsa_tensor *t) {
  int64_t count = nsai_present(t) ? 4 : 0;
  for (int d = 0; d < t->ndim; d++) count *= t->shape[d];
  return count;
}

/* Moves a tensor into `room`; returns what is left of it. */
static char *move_tensor(nsa_tensor *t, char *room) {
  const int64_t bytes = bytes_of(t);
  if (nsai_present(t)) t->data = room;
  return room + bytes;
}

static nsa_status run_on_host(const nsai_ranks_pass *pass, const nsa_piece *piece, int64_t local,
                              const nsai_run_piece *is) {
  const nsai_problem *p = &pass->run->plan->problem;
  nsai_ranks_weight weights[NSAI_RANKS_MOST_WEIGHTS];
  nsa_io io;
  nsa_grads sums;
  int64_t bytes = 0, weight_bytes;
  const int count = nsai_ranks_weights(&p->model, weights, &weight_bytes);
  nsai_ranks_piece_io(pass, piece, local, &io);
  set_gradients(pass, piece, local, &sums);
  nsa_grads own = sums;
  for (int item = 0; item < NSAI_RANKS_K_IDX; item++)
    bytes += bytes_of(gradient_of(&own.d_kv, item));
  for (int i = 0; i < count; i++) bytes += bytes_of(weight_of(&own, &weights[i]));
  char *memory = calloc(1, (size_t)bytes + 1), *room = memory;
  if (!memory) return nsai_fail_nomem("the gradients of a piece", (size_t)bytes);
  for (int item = 0; item < NSAI_RANKS_K_IDX; item++)
    room = move_tensor(gradient_of(&own.d_kv, item), room);
  for (int i = 0; i < count; i++) room = move_tensor(weight_of(&own, &weights[i]), room);
  const nsa_status status = nsai_reference_backward(&p->model, p->selection, pass->run->branches,
                                                    NULL, &io, &own, ALL_PROCESSORS);
  for (int item = 0; item < NSAI_RANKS_K_IDX && !status; item++)
    add_tensor(gradient_of(&sums.d_kv, item), gradient_of(&own.d_kv, item), is->adds_kv);
  for (int i = 0; i < count && !status; i++)
    add_tensor(weight_of(&sums, &weights[i]), weight_of(&own, &weights[i]), is->adds_weights);
  free(memory);
  return status;
}

/* ---- the pass ---- */

/* The pieces of a rank are ordered by sequence and position, so backwards the last of a sequence comes
 * first. */
static nsa_status run_pieces(const nsai_ranks_pass *pass, nsai_awaited_keys *keys,
                             const nsai_made_sums *sums) {
  int64_t local = pass->shard->rank_tokens[pass->rank];
  nsai_run_piece is = { .awaited = keys };
  for (int32_t i = pass->pieces - 1; i >= 0; i--) {
    const nsa_piece *piece = &pass->piece[i];
    local -= piece->length;
    is.adds_kv = i + 1 < pass->pieces && pass->piece[i + 1].sequence == piece->sequence;
    is.adds_weights = i + 1 < pass->pieces;
    is.sums = i ? NULL : sums;
    NSAI_TRY(pass->run->driver ? run_on_device(pass, piece, local, &is)
                               : run_on_host(pass, piece, local, &is));
  }
  return NSA_OK;
}

/* By the transport: before and behind all kernels. */
static nsa_status run_and_exchange(nsai_ranks_pass *pass) {
  NSAI_TRY(nsai_ranks_gather(pass));
  if (nsai_run_has(pass->run, NSA_CMP)) NSAI_TRY(nsai_ranks_compress(pass));
  NSAI_TRY(run_pieces(pass, NULL, NULL));
  NSAI_TRY(nsai_ranks_send_inside(pass));
  if (pass->hosts == 1) return NSA_OK;
  NSAI_TRY(sum_host(pass));
  return nsai_ranks_send_between(pass);
}

static nsa_status receive_keys(void *user) {
  nsai_ranks_pass *pass = user;
  NSAI_TRY(nsai_ranks_join(pass, NSA_OK));
  return nsai_run_has(pass->run, NSA_CMP) ? nsai_ranks_compress(pass) : NSA_OK;
}

static nsa_status copy_sums(void *user) {
  nsai_ranks_pass *pass = user;
  NSAI_TRY(nsai_ranks_fork(pass));
  return nsai_ranks_copy_sums(pass);
}

/* By copy engines: K and V while lists are sorted and saved statistics are read, sums while the last piece's dQ is
 * added up, where a kernel of its own does that. */
static nsa_status run_and_copy(nsai_ranks_pass *pass) {
  nsai_awaited_keys keys = { .receive = receive_keys, .user = pass };
  const nsai_made_sums sums = { .send = copy_sums, .user = pass };
  nsa_status status = nsai_ranks_gather_beside(pass);
  if (status == NSA_OK) status = run_pieces(pass, &keys, &sums);
  if (status == NSA_OK && !pass->announces) status = copy_sums(pass);
  status = nsai_ranks_join(pass, status);
  return status ? status : nsai_comm_await_copies(pass->run->comm, pass->run->queue->stream);
}

static nsa_status backward(nsai_ranks_pass *pass) {
  NSAI_TRY(pass->room ? run_and_copy(pass) : run_and_exchange(pass));
  NSAI_TRY(sum_tensors(pass));
  return store_weights(pass);
}

nsa_status nsai_backward_over_ranks(const nsai_run *run) {
  return nsai_for_head_groups(run, backward);
}
