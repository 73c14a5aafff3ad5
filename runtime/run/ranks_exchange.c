/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What travels in a run over ranks. Two ranks list the parts between them in one order, by tensor and
 * then by the owner's pieces, so that the n-th part that one sends is the n-th that the other receives.
 */
#include "run/check_tensor.h"
#include "run/params.h"
#include "run/ranks.h"

#include <stdlib.h>
#include <string.h>

static void set_ends(nsai_ranks_pass *pass) {
  const nsa_shard *shard = pass->shard;
  for (int32_t r = 0; r < shard->ranks; r++)
    for (int32_t i = shard->rank_begin[r]; i < shard->rank_begin[r + 1]; i++) {
      const nsa_piece *piece = &shard->pieces[i];
      int64_t *end = &pass->end[(int64_t)r * shard->num_seqs + piece->sequence];
      const int64_t behind = piece->begin + piece->length;
      if (behind > *end) *end = behind;
    }
}

nsa_status nsai_ranks_open(const nsai_run *run, nsai_ranks_pass *out) {
  const nsa_shard *shard = run->shard;
  const int32_t rank = nsai_comm_rank(run->comm), first = shard->rank_begin[rank];
  const size_t ends = (size_t)shard->ranks * (size_t)shard->num_seqs * sizeof(int64_t);
  *out = (nsai_ranks_pass){ .run = run,
                            .shard = shard,
                            .memory = &run->plan->workspace.ranks,
                            .rank = rank,
                            .piece = &shard->pieces[first],
                            .pieces = shard->rank_begin[rank + 1] - first };
  /* K and V go from this rank to all others, and their sums back; so both lists may be the longer. */
  const size_t others = (size_t)(shard->rank_begin[shard->ranks] - out->pieces),
               own = (size_t)out->pieces * (size_t)(shard->ranks - 1);
  const size_t parts = NSAI_RANKS_TENSORS * (others > own ? others : own) * sizeof(nsa_part);
  out->end = calloc(1, ends + 1);
  out->send.part = malloc(parts + 1);
  out->recv.part = malloc(parts + 1);
  if (out->end && out->send.part && out->recv.part) {
    set_ends(out);
    return NSA_OK;
  }
  nsai_ranks_close(out);
  return nsai_fail_nomem("the parts of an exchange", ends + 2 * parts);
}

void nsai_ranks_close(nsai_ranks_pass *pass) {
  free(pass->end);
  free(pass->send.part);
  free(pass->recv.part);
  *pass = (nsai_ranks_pass){ 0 };
}

nsai_ranks_rows nsai_ranks_rows_of(const nsai_ranks_pass *pass, const nsai_ranks_tensor *tensor,
                                   const nsa_piece *piece, int64_t limit) {
  const nsai_model *m = &pass->run->plan->problem.model;
  const int64_t base = pass->shard->seq_begin[piece->sequence];
  int64_t begin = piece->begin, end = piece->begin + piece->length;
  if (end > limit) end = limit;
  if (end <= begin) return (nsai_ranks_rows){ 0 };
  if (!tensor->entries) return (nsai_ranks_rows){ .row = base + begin, .count = end - begin };
  /* A block belongs to the piece that has its last token. */
  begin = nsai_block_count(m, begin);
  end = nsai_block_count(m, end);
  return (nsai_ranks_rows){ .row = base / m->stride + begin, .count = end - begin };
}

/* ---- parts ---- */

static void add_part(nsai_part_list *list, void *data, int64_t bytes, int32_t rank) {
  if (!bytes) return;
  list->part[list->count++] = (nsa_part){ .data = data, .bytes = (uint64_t)bytes, .rank = rank };
}

static nsa_status exchange(nsai_ranks_pass *pass) {
  const nsai_run *run = pass->run;
  if (run->driver) nsai_queue_break(run->queue);
  return nsai_comm_exchange(run->comm, pass->send.part, pass->send.count, pass->recv.part,
                            pass->recv.count, run->driver ? run->queue->stream : NULL);
}

/* ---- K and V ---- */

/* The caller's tensor of an item. */
static const nsa_tensor *given(const nsa_io *io, int item) {
  if (item == NSAI_RANKS_K_IDX) return &io->k_idx;
  if (item == NSAI_RANKS_K_CMP) return &io->kv.k_cmp;
  if (item == NSAI_RANKS_V_CMP) return &io->kv.v_cmp;
  return item < NSAI_RANKS_V ? &io->kv.k[item - NSAI_RANKS_K] : &io->kv.v[item - NSAI_RANKS_V];
}

static nsa_status copy_row(const nsai_run *run, char *to, const char *from, int64_t bytes) {
  if (!run->driver) {
    memcpy(to, from, (size_t)bytes);
    return NSA_OK;
  }
  nsai_queue_break(run->queue);
  return NSAI_CUDA(run->driver,
                   cuMemcpyDtoDAsync((nsai_cu_ptr)(uintptr_t)to, (nsai_cu_ptr)(uintptr_t)from,
                                     (size_t)bytes, run->queue->stream));
}

static nsa_status copy_on_device(const nsai_run *run, char *to, int64_t to_pitch, const char *from,
                                 int64_t from_pitch, int64_t width, int64_t rows) {
  const nsai_cu_copy_2d copy = { .from = { .type = NSAI_CU_MEMORY_DEVICE,
                                           .device = (nsai_cu_ptr)(uintptr_t)from,
                                           .pitch = (size_t)from_pitch },
                                 .to = { .type = NSAI_CU_MEMORY_DEVICE,
                                         .device = (nsai_cu_ptr)(uintptr_t)to,
                                         .pitch = (size_t)to_pitch },
                                 .width = (size_t)width,
                                 .height = (size_t)rows };
  nsai_queue_break(run->queue);
  return NSAI_CUDA(run->driver, cuMemcpy2DAsync(&copy, run->queue->stream));
}

static nsa_status copy_rows(const nsai_run *run, char *to, int64_t to_pitch, const char *from,
                            int64_t from_pitch, int64_t width, int64_t rows) {
  /* Rows without gaps are one row of any length. A pitch may not be: the copy engine takes those from
   * the width to CU_DEVICE_ATTRIBUTE_MAX_PITCH, which is 2^31 - 1. */
  if (from_pitch == to_pitch && to_pitch == width) width *= rows, rows = 1;
  if (run->driver && rows > 1 && from_pitch >= width && from_pitch <= INT32_MAX)
    return copy_on_device(run, to, to_pitch, from, from_pitch, width, rows);
  for (int64_t i = 0; i < rows; i++)
    NSAI_TRY(copy_row(run, to + i * to_pitch, from + i * from_pitch, width));
  return NSA_OK;
}

/* Copies rows of the caller's tensor to their place: all heads at once, or one after the other. */
static nsa_status pack_rows(const nsai_ranks_pass *pass, const nsai_ranks_tensor *t,
                            const nsa_tensor *local, nsai_ranks_rows rows) {
  const nsai_run *run = pass->run;
  const int64_t size = nsai_dtype_bytes(local->dtype), pitch = (int64_t)t->heads * t->dim * size;
  const bool joined = t->heads == 1 || local->stride[1] == t->dim;
  char *to = (char *)nsai_buffer_at(run, t->whole) + rows.row * pitch;
  const char *from = (const char *)local->data + rows.local * local->stride[0] * size;
  if (!rows.count) return NSA_OK;
  if (joined) return copy_rows(run, to, pitch, from, local->stride[0] * size, pitch, rows.count);
  for (int32_t h = 0; h < t->heads; h++)
    NSAI_TRY(copy_rows(run, to + h * t->dim * size, pitch, from + h * local->stride[1] * size,
                       local->stride[0] * size, t->dim * size, rows.count));
  return NSA_OK;
}

static nsa_status pack(const nsai_ranks_pass *pass, int item) {
  const nsai_ranks_tensor *t = &pass->memory->tensor[item];
  int64_t local = 0;
  for (int32_t i = 0; i < pass->pieces; i++) {
    nsai_ranks_rows rows = nsai_ranks_rows_of(pass, t, &pass->piece[i], INT64_MAX);
    rows.local = local;
    local += rows.count;
    NSAI_TRY(pack_rows(pass, t, given(pass->run->io, item), rows));
  }
  return NSA_OK;
}

/* Parts of one gathered tensor. */
static void list_gather(nsai_ranks_pass *pass, const nsai_ranks_tensor *t) {
  const nsa_shard *shard = pass->shard;
  const int32_t dtype = pass->run->plan->problem.model.dtype;
  const int64_t row = nsai_ranks_elements(t, 1) * nsai_dtype_bytes(dtype);
  char *whole = nsai_buffer_at(pass->run, t->whole);
  for (int32_t r = 0; r < shard->ranks; r++) {
    if (r == pass->rank) continue;
    for (int32_t i = 0; i < pass->pieces; i++) {
      const nsa_piece *piece = &pass->piece[i];
      const nsai_ranks_rows rows =
          nsai_ranks_rows_of(pass, t, piece, nsai_ranks_end(pass, r, piece->sequence));
      add_part(&pass->send, whole + rows.row * row, rows.count * row, r);
    }
    for (int32_t i = shard->rank_begin[r]; i < shard->rank_begin[r + 1]; i++) {
      const nsa_piece *piece = &shard->pieces[i];
      const nsai_ranks_rows rows =
          nsai_ranks_rows_of(pass, t, piece, nsai_ranks_end(pass, pass->rank, piece->sequence));
      add_part(&pass->recv, whole + rows.row * row, rows.count * row, r);
    }
  }
}

nsa_status nsai_ranks_gather(nsai_ranks_pass *pass) {
  pass->send.count = pass->recv.count = 0;
  for (int item = 0; item < NSAI_RANKS_TENSORS; item++) {
    if (!pass->memory->tensor[item].exists) continue;
    NSAI_TRY(pack(pass, item));
    list_gather(pass, &pass->memory->tensor[item]);
  }
  return exchange(pass);
}

/* ---- sums ---- */

float *nsai_ranks_received(const nsai_ranks_pass *pass, const nsai_ranks_tensor *t, int32_t from,
                           int64_t local) {
  const int64_t part = from < pass->rank ? from : from - 1;
  return (float *)nsai_buffer_at(pass->run, t->received) +
         nsai_ranks_elements(t, part * t->local_rows + local);
}

static void list_sums(nsai_ranks_pass *pass, const nsai_ranks_tensor *t) {
  const nsa_shard *shard = pass->shard;
  const int64_t row = nsai_ranks_elements(t, 1) * (int64_t)sizeof(float);
  char *sums = nsai_buffer_at(pass->run, t->sums);
  for (int32_t r = 0; r < shard->ranks; r++) {
    int64_t local = 0;
    if (r == pass->rank) continue;
    for (int32_t i = shard->rank_begin[r]; i < shard->rank_begin[r + 1]; i++) {
      const nsa_piece *piece = &shard->pieces[i];
      const nsai_ranks_rows rows =
          nsai_ranks_rows_of(pass, t, piece, nsai_ranks_end(pass, pass->rank, piece->sequence));
      add_part(&pass->send, sums + rows.row * row, rows.count * row, r);
    }
    for (int32_t i = 0; i < pass->pieces; i++) {
      const nsa_piece *piece = &pass->piece[i];
      const nsai_ranks_rows rows =
          nsai_ranks_rows_of(pass, t, piece, nsai_ranks_end(pass, r, piece->sequence));
      add_part(&pass->recv, nsai_ranks_received(pass, t, r, local), rows.count * row, r);
      local += nsai_ranks_rows_of(pass, t, piece, INT64_MAX).count;
    }
  }
}

nsa_status nsai_ranks_send_sums(nsai_ranks_pass *pass) {
  pass->send.count = pass->recv.count = 0;
  for (int item = 0; item < NSAI_RANKS_TENSORS; item++)
    if (pass->memory->tensor[item].exists) list_sums(pass, &pass->memory->tensor[item]);
  return exchange(pass);
}
