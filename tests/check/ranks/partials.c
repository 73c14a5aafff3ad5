/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What each rank adds to dK and dV, by runs of one rank over all tokens in which d_o of the other
 * ranks' tokens is 0: it then adds nothing.
 */
#include "ranks/rank.h"

#include "run/check_tensor.h"

#include <stdlib.h>
#include <string.h>

static const int slots[CHK_PARTIALS] = { NSAI_VERIFY_D_K0, NSAI_VERIFY_D_V0 };

bool chk_partials_matter(const chk_ranks_problem *p) {
  return p->c.kind == NSAI_VERIFY_BACKWARD && nsai_phi_has_weights(&p->c.model);
}

/* Uploads d_o, of this rank's tokens alone. `all`: the whole image. */
static nsa_status mask(chk_whole *whole, const chk_ranks_problem *p, const nsa_shard *shard,
                       int32_t rank, const uint8_t *all) {
  nsai_verify_tensors *d = &whole->trial.data;
  nsai_verify_buffer *buffer = &d->buffer[NSAI_VERIFY_D_O];
  const nsa_tensor t = nsai_verify_tensors_view(d, NSAI_VERIFY_D_O, NSAI_VERIFY_HOST);
  memcpy(buffer->image, all, buffer->bytes + 2 * (size_t)NSAI_VERIFY_GUARD);
  for (int32_t other = 0; other < p->ranks; other++) {
    const nsa_piece *pieces;
    int32_t count = 0;
    if (other == rank) continue;
    NSAI_TRY(nsa_shard_pieces(shard, other, &pieces, &count));
    for (int32_t i = 0; i < count; i++) {
      const chk_rows rows = chk_piece_rows(p, NSAI_VERIFY_D_O, &pieces[i]);
      for (int64_t row = rows.first; row < rows.first + rows.count; row++)
        for (int64_t j = 0; j < chk_view_row(&t); j++)
          nsai_verify_store(&t, chk_view_offset(&t, row, j), 0);
    }
  }
  return nsai_verify_buffer_upload(d->device, buffer);
}

/* Adds the squares of one rank's rows, and keeps the last rank's. */
static void add_rank(chk_whole *whole, int which) {
  const nsa_tensor t = nsai_verify_tensors_view(&whole->trial.data, slots[which], NSAI_VERIFY_HOST);
  const int64_t width = t.ndim ? chk_view_row(&t) : 0;
  nsa_tensor before = t;
  if (!whole->squares[which]) return;
  if (whole->before[slots[which]]) before.data = whole->before[slots[which]] + NSAI_VERIFY_GUARD;
  for (int64_t row = 0; row < whole->trial.data.kv_tokens; row++)
    for (int64_t i = 0; i < width; i++) {
      const int64_t at = chk_view_offset(&t, row, i);
      float x = nsai_verify_load(&t, at);
      if (before.data != t.data) x -= nsai_verify_load(&before, at);
      whole->squares[which][row] += (double)x * (double)x;
      whole->last[which][row * width + i] = x;
    }
}

static nsa_status allocate(chk_whole *whole, int which) {
  const nsai_verify_tensors *d = &whole->trial.data;
  const nsa_tensor t = nsai_verify_tensors_view(d, slots[which], NSAI_VERIFY_HOST);
  if (!nsai_verify_tensors_has(d, slots[which])) return NSA_OK;
  const size_t rows = (size_t)d->kv_tokens + 1, row = (size_t)chk_view_row(&t);
  whole->squares[which] = calloc(rows, sizeof(double));
  whole->last[which] = calloc(rows * row, sizeof(float));
  if (whole->squares[which] && whole->last[which]) return NSA_OK;
  return nsai_fail_nomem("what ranks add", rows * row * sizeof(float));
}

static nsa_status run_all(chk_whole *whole, const chk_ranks_problem *p, const nsa_shard *shard,
                          const uint8_t *all) {
  nsai_verify_tensors *d = &whole->trial.data;
  nsai_verify_buffer *buffer = &d->buffer[NSAI_VERIFY_D_O];
  for (int32_t rank = 0; rank < p->ranks; rank++) {
    NSAI_TRY(mask(whole, p, shard, rank, all));
    NSAI_TRY(nsai_trial_run_execute(&whole->trial));
    for (int which = 0; which < CHK_PARTIALS; which++) add_rank(whole, which);
  }
  memcpy(buffer->image, all, buffer->bytes + 2 * (size_t)NSAI_VERIFY_GUARD);
  NSAI_TRY(nsai_verify_buffer_upload(d->device, buffer));
  return nsai_trial_run_execute(&whole->trial);
}

nsa_status chk_partials_measure(chk_whole *whole, const chk_ranks_problem *p) {
  const nsai_verify_buffer *buffer = &whole->trial.data.buffer[NSAI_VERIFY_D_O];
  const size_t bytes = buffer->bytes + 2 * (size_t)NSAI_VERIFY_GUARD;
  nsa_shard *shard = NULL;
  for (int which = 0; which < CHK_PARTIALS; which++) NSAI_TRY(allocate(whole, which));
  uint8_t *all = malloc(bytes);
  if (!all) return nsai_fail_nomem("an image of d_o", bytes);
  memcpy(all, buffer->image, bytes);
  nsa_status status = chk_ranks_shard(p, whole->trial.plan.ctx, &shard);
  if (!status) status = run_all(whole, p, shard, all);
  nsa_shard_destroy(shard);
  free(all);
  return status;
}

void chk_partials_destroy(chk_whole *whole) {
  for (int which = 0; which < CHK_PARTIALS; which++) {
    free(whole->squares[which]);
    free(whole->last[which]);
  }
}

int chk_partials_of(int slot) {
  for (int which = 0; which < CHK_PARTIALS; which++)
    if (slots[which] == slot) return which;
  return -1;
}
