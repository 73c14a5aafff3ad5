/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "prefill/calls.h"

#include "base/math.h"
#include "time_launch.h"

#include <nsa/kv_cache.h>

#include <stdlib.h>

#define REPEATS 7

/* ---- rows ------------------------------------------------------------------------------------ */

nsa_tensor *bench_prefill_row_tensor(nsa_io *io, int i) {
  nsa_tensor *const local[BENCH_PREFILL_LOCAL_TENSORS] = { &io->q, &io->o, &io->gate.value,
                                                           &io->index_q };
  if (i < BENCH_PREFILL_LOCAL_TENSORS) return local[i];
  if (i == BENCH_PREFILL_LOCAL_TENSORS) return &io->new_k_idx;
  const int pair = i - BENCH_PREFILL_LOCAL_TENSORS - 1;
  return pair % 2 ? &io->new_kv.v[pair / 2] : &io->new_kv.k[pair / 2];
}

size_t bench_prefill_row_bytes(const nsa_tensor *t) {
  nsa_tensor row = *t;
  row.shape[0] = 1;
  return nsai_verify_tensor_bytes(&row);
}

nsa_io bench_prefill_take_rows(const nsa_io *io, int64_t first, int64_t count) {
  nsa_io part = *io;
  for (int i = 0; i < BENCH_PREFILL_ROW_TENSORS; i++) {
    nsa_tensor *t = bench_prefill_row_tensor(&part, i);
    if (!t->data) continue;
    t->data = (char *)t->data + (size_t)first * bench_prefill_row_bytes(t);
    t->shape[0] = count;
  }
  return part;
}

nsa_status bench_prefill_copy_rows(const nsai_verify_device *device, nsa_io to, nsa_io from) {
  for (int i = 0; i < BENCH_PREFILL_ROW_TENSORS; i++) {
    const nsa_tensor *t = bench_prefill_row_tensor(&to, i), *f = bench_prefill_row_tensor(&from, i);
    if (t->data)
      NSAI_TRY(nsai_verify_device_copy(device, t->data, f->data,
                                       (size_t)f->shape[0] * bench_prefill_row_bytes(f)));
  }
  return NSA_OK;
}

nsa_status bench_prefill_set_ints(const nsai_verify_device *device, const nsa_tensor *to,
                                  int64_t first, int64_t gap, int64_t most) {
  const size_t bytes = nsai_verify_tensor_bytes(to);
  int32_t *values = malloc(bytes);
  if (!values) return nsai_fail_nomem("lengths", bytes);
  for (int64_t i = 0; i < to->shape[0]; i++)
    values[i] = (int32_t)nsai_smaller(first + i * gap, most);
  nsa_status status = nsai_verify_device_upload(device, to->data, values, bytes);
  free(values);
  return status;
}

/* ---- calls ----------------------------------------------------------------------------------- */

nsa_status bench_prefill_enqueue_step(const void *user) {
  const bench_prefill_step *s = user;
  nsa_batch attended = s->batch;
  attended.shard = s->shard;
  NSAI_TRY(nsa_kv_append(s->append, s->exec, &s->batch, &s->io));
  return s->run(s->attend, s->exec, &attended, &s->io);
}

/* ---- times ----------------------------------------------------------------------------------- */

nsa_status bench_prefill_time(const bench_prefill_clock *c, nsa_status (*enqueue)(const void *user),
                              const void *user, double *ms) {
  double values[REPEATS];
  nsai_verify_timer timer;
  nsa_status status;
  NSAI_TRY(nsai_verify_timer_create(c->device, &timer));
  for (int i = -1; i < REPEATS; i++) {
    chk_pause(c->device);
    if (c->flush)
      NSAI_TRY_TO(done, nsai_verify_device_set(c->device, c->flush, 0, NSAI_VERIFY_FLUSH_BYTES));
    if (c->meet) NSAI_TRY_TO(done, c->meet(c->user));
    NSAI_TRY_TO(done, nsai_verify_timer_start(c->device, &timer));
    NSAI_TRY_TO(done, enqueue(user));
    NSAI_TRY_TO(done, nsai_verify_timer_stop(c->device, &timer));
    if (c->comm) NSAI_TRY_TO(done, nsa_comm_wait(c->comm, (nsa_stream)c->device->stream, 0));
    NSAI_TRY_TO(done, nsai_verify_timer_read(c->device, &timer, &values[i < 0 ? 0 : i]));
  }
  *ms = chk_median(values, REPEATS);
done:
  nsai_verify_timer_destroy(c->device, &timer);
  return status;
}
