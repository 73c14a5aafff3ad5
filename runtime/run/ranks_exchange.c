/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What travels in a run over ranks, in the two levels of run/ranks.h. Two ranks list the parts between them
 * in one order, by tensor, then by the owner, then by its pieces, so that the n-th part that one sends is
 * the n-th that the other receives.
 */
#include "base/math.h"
#include "run/check_tensor.h"
#include "run/params.h"
#include "run/ranks.h"

#include <stdlib.h>
#include <string.h>

static void extend(int64_t *end, int64_t to) {
  if (to > *end) *end = to;
}

char *nsai_ranks_buffer_at(const nsai_ranks_pass *pass, nsai_buffer buffer) {
  if (!pass->room) return nsai_buffer_at(pass->run, buffer);
  const nsa_plan *plan = pass->run->plan;
  return pass->room + nsai_ranks_room_offset(&plan->problem, &plan->workspace, buffer);
}

static void set_ends(nsai_ranks_pass *pass) {
  const nsa_shard *shard = pass->shard;
  for (int32_t r = 0; r < shard->ranks; r++)
    for (int32_t i = shard->rank_begin[r]; i < shard->rank_begin[r + 1]; i++) {
      const nsa_piece *piece = &shard->pieces[i];
      const int64_t end = piece->begin + piece->length, sequences = shard->num_seqs;
      extend(&pass->end[r * sequences + piece->sequence], end);
      if (pass->hosts > 1)
        extend(&pass->host_end[r / pass->host_ranks * sequences + piece->sequence], end);
    }
}

/* The most parts of a tensor that this rank sends or receives in one exchange. */
static size_t most_parts(const nsai_ranks_pass *pass) {
  const nsa_shard *shard = pass->shard;
  const int64_t all = shard->rank_begin[shard->ranks], own = pass->pieces;
  int64_t column = 0;
  for (int32_t h = 0; h < pass->hosts; h++) {
    const int32_t *begin = &shard->rank_begin[nsai_ranks_at(pass, h, pass->index)];
    column += begin[1] - begin[0];
  }
  /* Inside the host, rows of its own column with each mate, or those of other columns. Between hosts, its
   * own rows with each, or those of the others of its column. */
  const int64_t inside = nsai_larger((pass->host_ranks - 1) * column, all - column);
  const int64_t between = nsai_larger((pass->hosts - 1) * own, column - own);
  return (size_t)nsai_larger(inside, between);
}

nsa_status nsai_ranks_open(const nsai_run *run, nsai_ranks_pass *out) {
  const nsa_shard *shard = run->shard;
  const int32_t rank = nsai_comm_rank(run->comm), first = shard->rank_begin[rank];
  const int32_t host_ranks = nsai_comm_host_ranks(run->comm);
  *out = (nsai_ranks_pass){ .run = run,
                            .shard = shard,
                            .memory = &run->plan->workspace.ranks,
                            .rank = rank,
                            .hosts = shard->ranks / host_ranks,
                            .host_ranks = host_ranks,
                            .host = rank / host_ranks,
                            .index = rank % host_ranks,
                            .piece = &shard->pieces[first],
                            .pieces = shard->rank_begin[rank + 1] - first };
  if (run->driver)
    out->room = nsai_comm_room(run->comm,
                               nsai_ranks_room_bytes(&run->plan->problem, &run->plan->workspace));
  const int32_t lists = shard->ranks + (out->hosts > 1 ? out->hosts : 0);
  const size_t ends = (size_t)lists * (size_t)shard->num_seqs * sizeof(int64_t);
  const size_t parts = NSAI_RANKS_TENSORS * most_parts(out) * sizeof(nsa_part);
  out->end = calloc(1, ends + 1);
  out->send.part = malloc(parts + 1);
  out->recv.part = malloc(parts + 1);
  if (out->end && out->send.part && out->recv.part) {
    out->host_end = out->end + (int64_t)shard->ranks * shard->num_seqs;
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

static nsa_stream run_stream(const nsai_ranks_pass *pass) {
  return pass->run->driver ? pass->run->queue->stream : NULL;
}

static nsa_status exchange(nsai_ranks_pass *pass, nsa_stream stream) {
  const nsai_run *run = pass->run;
  if (run->driver) nsai_queue_break(run->queue);
  return nsai_comm_exchange(run->comm, pass->send.part, pass->send.count, pass->recv.part,
                            pass->recv.count, stream);
}

/* Copies to other rooms, to where at[] lies in this rank's own. Behind it the parts are there, or announced. */
static nsa_status copy(nsai_ranks_pass *pass, const nsa_part *at, nsa_stream stream) {
  nsa_comm *comm = pass->run->comm;
  nsai_queue_break(pass->run->queue);
  NSAI_TRY(nsai_comm_copy(comm, pass->send.part, at, pass->send.count, stream));
  return pass->announces ? nsai_comm_announce_copies(comm, stream) : nsai_comm_meet(comm, stream);
}

/* Rows of gathered tensors lie in the same place in all rooms. */
static nsa_status move(nsai_ranks_pass *pass, nsa_stream stream) {
  return pass->room ? copy(pass, pass->send.part, stream) : exchange(pass, stream);
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
  if (!rows.count) return NSA_OK; /* a tensor without rows may have no memory */
  char *to = nsai_ranks_buffer_at(pass, t->whole) + rows.row * pitch;
  const char *from = (const char *)local->data + rows.local * local->stride[0] * size;
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

/* The rows of all ranks: of a gathered tensor, or of its sums. */
typedef struct row_source {
  const nsai_ranks_tensor *tensor;
  char *rows;
  int64_t row_bytes;
} row_source;

/* Lists the owner's rows up to where the tokens of each sequence end. */
static void list_rows(const nsai_ranks_pass *pass, const row_source *from, int32_t owner,
                      const int64_t *ends, int32_t peer, nsai_part_list *list) {
  const nsa_shard *shard = pass->shard;
  for (int32_t i = shard->rank_begin[owner]; i < shard->rank_begin[owner + 1]; i++) {
    const nsa_piece *piece = &shard->pieces[i];
    const nsai_ranks_rows rows =
        nsai_ranks_rows_of(pass, from->tensor, piece, ends[piece->sequence]);
    add_part(list, from->rows + rows.row * from->row_bytes, rows.count * from->row_bytes, peer);
  }
}

/* This rank's rows to the hosts that need them, and those that any rank of this host needs. */
static void list_gather_between(nsai_ranks_pass *pass, const row_source *whole) {
  const int64_t *own = nsai_ranks_host_ends(pass, pass->host);
  for (int32_t h = 0; h < pass->hosts; h++) {
    const int32_t peer = nsai_ranks_at(pass, h, pass->index);
    if (h == pass->host) continue;
    list_rows(pass, whole, pass->rank, nsai_ranks_host_ends(pass, h), peer, &pass->send);
    list_rows(pass, whole, peer, own, peer, &pass->recv);
  }
}

/* The rows of this column to the ranks of this host, and those of other columns. */
static void list_gather_inside(nsai_ranks_pass *pass, const row_source *whole) {
  const int64_t *own = nsai_ranks_ends(pass, pass->rank);
  for (int32_t i = 0; i < pass->host_ranks; i++) {
    const int32_t peer = nsai_ranks_at(pass, pass->host, i);
    if (i == pass->index) continue;
    for (int32_t h = 0; h < pass->hosts; h++) {
      list_rows(pass, whole, nsai_ranks_at(pass, h, pass->index), nsai_ranks_ends(pass, peer), peer,
                &pass->send);
      list_rows(pass, whole, nsai_ranks_at(pass, h, i), own, peer, &pass->recv);
    }
  }
}

static row_source source_of(const nsai_ranks_pass *pass, const nsai_ranks_tensor *t) {
  const int64_t size = nsai_dtype_bytes(pass->run->plan->problem.model.dtype);
  return (row_source){ t, nsai_ranks_buffer_at(pass, t->whole), nsai_ranks_elements(t, 1) * size };
}

/* Lists the parts of these tensors, and exchanges them. */
static nsa_status exchange_rows(nsai_ranks_pass *pass, const nsai_ranks_tensors *list,
                                nsa_stream stream,
                                void (*add)(nsai_ranks_pass *, const row_source *)) {
  pass->send.count = pass->recv.count = 0;
  for (int i = 0; i < list->count; i++) {
    const row_source whole = source_of(pass, list->tensor[i]);
    add(pass, &whole);
  }
  return move(pass, stream);
}

nsa_status nsai_ranks_gather_rows(nsai_ranks_pass *pass, const nsai_ranks_tensors *list,
                                  nsa_stream stream) {
  if (pass->hosts > 1) NSAI_TRY(exchange_rows(pass, list, stream, list_gather_between));
  return exchange_rows(pass, list, stream, list_gather_inside);
}

static nsa_status pack_all(const nsai_ranks_pass *pass) {
  for (int item = 0; item < NSAI_RANKS_TENSORS; item++)
    if (pass->memory->tensor[item].exists) NSAI_TRY(pack(pass, item));
  return NSA_OK;
}

/* Packs while the side stream waits until all rooms are open: after a pause the first words over NVLink take 0.2 ms
 * (bench/results/h200-2026-11-28-ranks-timeline.txt). */
static nsa_status open_and_pack(nsai_ranks_pass *pass) {
  pass->announces = false;
  NSAI_TRY(nsai_ranks_fork(pass));
  nsa_status status = nsai_comm_open_rooms(pass->run->comm, pass->side);
  if (status == NSA_OK) status = pack_all(pass);
  return status ? nsai_ranks_join(pass, status) : NSA_OK;
}

nsa_status nsai_ranks_pack(nsai_ranks_pass *pass) {
  if (!pass->room) return pack_all(pass);
  NSAI_TRY(open_and_pack(pass));
  return nsai_ranks_join(pass, NSA_OK);
}

static nsai_ranks_tensors all_tensors(const nsai_ranks_pass *pass) {
  nsai_ranks_tensors all = { 0 };
  for (int item = 0; item < NSAI_RANKS_TENSORS; item++)
    if (pass->memory->tensor[item].exists) all.tensor[all.count++] = &pass->memory->tensor[item];
  return all;
}

nsa_status nsai_ranks_gather(nsai_ranks_pass *pass) {
  const nsai_ranks_tensors all = all_tensors(pass);
  NSAI_TRY(nsai_ranks_pack(pass));
  return nsai_ranks_gather_rows(pass, &all, run_stream(pass));
}

nsa_status nsai_ranks_gather_beside(nsai_ranks_pass *pass) {
  const nsai_ranks_tensors all = all_tensors(pass);
  NSAI_TRY(open_and_pack(pass));
  NSAI_TRY(nsai_ranks_fork(pass)); /* rows are in place */
  return nsai_ranks_gather_rows(pass, &all, pass->side);
}

/* ---- rows before pieces ---- */

static bool precedes(const nsa_piece *a, const nsa_piece *b) {
  return a->sequence != b->sequence ? a->sequence < b->sequence : a->begin < b->begin;
}

static bool meet(const nsa_piece *earlier, const nsa_piece *later) {
  return earlier->sequence == later->sequence && earlier->begin + earlier->length == later->begin;
}

/* Walks over the pieces of this rank and of another one in the order of sequences and positions, where pieces
 * that meet are neighbours: the later one's rank needs rows of the earlier one. */
static void list_halo(nsai_ranks_pass *pass, const row_source *whole, int64_t rows, int32_t peer) {
  const nsa_shard *shard = pass->shard;
  const nsa_piece *mine = pass->piece, *mine_end = mine + pass->pieces, *last = NULL;
  const nsa_piece *theirs = &shard->pieces[shard->rank_begin[peer]];
  const nsa_piece *theirs_end = &shard->pieces[shard->rank_begin[peer + 1]];
  while (mine < mine_end || theirs < theirs_end) {
    const bool is_mine = theirs == theirs_end || (mine < mine_end && precedes(mine, theirs));
    const nsa_piece *next = is_mine ? mine++ : theirs++;
    if (last && last->rank != next->rank && meet(last, next)) {
      const int64_t count = nsai_smaller(rows, next->begin);
      const int64_t row = shard->seq_begin[next->sequence] + next->begin - count;
      add_part(is_mine ? &pass->recv : &pass->send, whole->rows + row * whole->row_bytes,
               count * whole->row_bytes, peer);
    }
    last = next;
  }
}

nsa_status nsai_ranks_exchange_halo(nsai_ranks_pass *pass, const int64_t rows[NSA_BRANCHES],
                                    nsa_stream stream) {
  pass->send.count = pass->recv.count = 0;
  for (int item = NSAI_RANKS_K; item < NSAI_RANKS_V + NSA_BRANCHES; item++) {
    const nsai_ranks_tensor *t = &pass->memory->tensor[item];
    const int64_t count = rows[(item - NSAI_RANKS_K) % NSA_BRANCHES];
    if (!t->exists || !count) continue;
    const row_source whole = source_of(pass, t);
    for (int32_t r = 0; r < pass->shard->ranks; r++)
      if (r != pass->rank) list_halo(pass, &whole, count, r);
  }
  return move(pass, stream);
}

/* ---- sums ---- */

/* Parts of `local_rows` rows, one after the other. */
static float *received(const nsai_ranks_pass *pass, const nsai_ranks_tensor *t, int64_t part,
                       int64_t local) {
  return (float *)nsai_ranks_buffer_at(pass, t->received) +
         nsai_ranks_elements(t, part * t->local_rows + local);
}

/* The place of `other` in a list without `self`. */
static int64_t place_of(int32_t other, int32_t self) { return other < self ? other : other - 1; }

float *nsai_ranks_received_inside(const nsai_ranks_pass *pass, const nsai_ranks_tensor *t,
                                  int32_t from, int32_t host, int64_t local) {
  return received(pass, t, place_of(from, pass->index) * pass->hosts + host, local);
}

float *nsai_ranks_received_between(const nsai_ranks_pass *pass, const nsai_ranks_tensor *t,
                                   int32_t from, int64_t local) {
  return received(pass, t, place_of(from, pass->host), local);
}

/* Lists where a peer's sums of the owner's rows go: `to` is the place of its local row 0. */
static void list_received(nsai_ranks_pass *pass, const nsai_ranks_tensor *t, float *to,
                          int32_t owner, const int64_t *ends, int32_t peer) {
  const nsa_shard *shard = pass->shard;
  for (int32_t i = shard->rank_begin[owner]; i < shard->rank_begin[owner + 1]; i++) {
    const nsa_piece *piece = &shard->pieces[i];
    const nsai_ranks_rows rows = nsai_ranks_rows_of(pass, t, piece, ends[piece->sequence]);
    add_part(&pass->recv, to, nsai_ranks_elements(t, rows.count) * (int64_t)sizeof *to, peer);
    to += nsai_ranks_elements(t, nsai_ranks_rows_of(pass, t, piece, INT64_MAX).count);
  }
}

static row_source sums_of(const nsai_ranks_pass *pass, const nsai_ranks_tensor *t) {
  return (row_source){ t, nsai_buffer_at(pass->run, t->sums),
                       nsai_ranks_elements(t, 1) * (int64_t)sizeof(float) };
}

static void list_sums_inside(nsai_ranks_pass *pass, const nsai_ranks_tensor *t) {
  const row_source sums = sums_of(pass, t);
  const int64_t *own = nsai_ranks_ends(pass, pass->rank);
  for (int32_t i = 0; i < pass->host_ranks; i++) {
    const int32_t peer = nsai_ranks_at(pass, pass->host, i);
    if (i == pass->index) continue;
    for (int32_t h = 0; h < pass->hosts; h++) {
      list_rows(pass, &sums, nsai_ranks_at(pass, h, i), own, peer, &pass->send);
      list_received(pass, t, nsai_ranks_received_inside(pass, t, i, h, 0),
                    nsai_ranks_at(pass, h, pass->index), nsai_ranks_ends(pass, peer), peer);
    }
  }
}

/* The same where ranks copy: recv lists the places of what is sent, as they are on the owner. */
static void list_sums_copies(nsai_ranks_pass *pass, const nsai_ranks_tensor *t) {
  const row_source sums = sums_of(pass, t);
  const int64_t *own = nsai_ranks_ends(pass, pass->rank);
  for (int32_t r = 0; r < pass->shard->ranks; r++) {
    if (r == pass->rank) continue;
    list_rows(pass, &sums, r, own, r, &pass->send);
    list_received(pass, t, received(pass, t, place_of(pass->rank, r), 0), r, own, r);
  }
}

static void list_sums_between(nsai_ranks_pass *pass, const nsai_ranks_tensor *t) {
  const row_source sums = sums_of(pass, t);
  const int64_t *own = nsai_ranks_host_ends(pass, pass->host);
  for (int32_t h = 0; h < pass->hosts; h++) {
    const int32_t peer = nsai_ranks_at(pass, h, pass->index);
    if (h == pass->host) continue;
    list_rows(pass, &sums, peer, own, peer, &pass->send);
    list_received(pass, t, nsai_ranks_received_between(pass, t, h, 0), pass->rank,
                  nsai_ranks_host_ends(pass, h), peer);
  }
}

static nsa_status send_sums(nsai_ranks_pass *pass,
                            void (*list)(nsai_ranks_pass *, const nsai_ranks_tensor *)) {
  pass->send.count = pass->recv.count = 0;
  for (int item = 0; item < NSAI_RANKS_TENSORS; item++)
    if (pass->memory->tensor[item].exists) list(pass, &pass->memory->tensor[item]);
  NSAI_TRY(exchange(pass, run_stream(pass)));
  if (pass->run->driver) nsai_queue_break(pass->run->queue);
  return NSA_OK;
}

nsa_status nsai_ranks_send_inside(nsai_ranks_pass *pass) {
  return send_sums(pass, list_sums_inside);
}

nsa_status nsai_ranks_copy_sums(nsai_ranks_pass *pass) {
  pass->send.count = pass->recv.count = 0;
  for (int item = 0; item < NSAI_RANKS_TENSORS; item++)
    if (pass->memory->tensor[item].exists) list_sums_copies(pass, &pass->memory->tensor[item]);
  pass->announces = true;
  return copy(pass, pass->recv.part, pass->side);
}

nsa_status nsai_ranks_send_between(nsai_ranks_pass *pass) {
  return send_sums(pass, list_sums_between);
}
