/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The calls that nsa-bench prefill times, on one GPU and over ranks: an append and the attention of its
 * new tokens, rows of their tensors, and how they are timed.
 */
#ifndef BENCH_PREFILL_CALLS_H
#define BENCH_PREFILL_CALLS_H

#include "verify/device.h"

#include <nsa/ranks.h>

/* ---- rows ---- */

/* The tensors of a call that have a row for each new token. The first of them have, over ranks, a row for
 * each new token of the rank. */
#define BENCH_PREFILL_LOCAL_TENSORS 4
#define BENCH_PREFILL_ROW_TENSORS (BENCH_PREFILL_LOCAL_TENSORS + 1 + 2 * NSA_BRANCHES)
nsa_tensor *bench_prefill_row_tensor(nsa_io *io, int index);

/* The bytes of one row. */
size_t bench_prefill_row_bytes(const nsa_tensor *t);

/* The call's tensors, cut to `count` rows from `first` on. */
nsa_io bench_prefill_take_rows(const nsa_io *io, int64_t first, int64_t count);

/* Copies the rows of `from` to those of `to`, on the device. The outputs do no harm. */
nsa_status bench_prefill_copy_rows(const nsai_verify_device *device, nsa_io to, nsa_io from);

/* Writes first + i * gap, at most `most`, to the elements of an i32 tensor on the device. */
nsa_status bench_prefill_set_ints(const nsai_verify_device *device, const nsa_tensor *to,
                                  int64_t first, int64_t gap, int64_t most);

/* ---- calls ---- */

/* An append, and the attention of the new tokens. */
typedef struct bench_prefill_step {
  const nsa_plan *append, *attend;
  nsa_status (*run)(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                    const nsa_io *io);
  const nsa_exec *exec; /* of both: an append over ranks does not read its communicator */
  nsa_batch batch;
  nsa_shard *shard; /* over ranks: of the attention; else NULL */
  nsa_io io;
} bench_prefill_step;

/* `user` is a bench_prefill_step. */
nsa_status bench_prefill_enqueue_step(const void *user);

/* ---- times ---- */

/* Where calls are timed, and with whom. */
typedef struct bench_prefill_clock {
  const nsai_verify_device *device;
  void *flush;                    /* bench_rig's */
  nsa_comm *comm;                 /* of calls over ranks; else NULL */
  nsa_status (*meet)(void *user); /* NULL: nobody. Ranks then begin together */
  void *user;
} bench_prefill_clock;

/* The median of several runs of what `enqueue` enqueues, in milliseconds. The first run is a
 * warm-up. A run follows a pause and an L2 flush as a burst of time_launch.h does, but does not
 * wait for the flush: meanwhile the host enqueues the calls, so that the time of short calls is
 * that of the device. */
nsa_status bench_prefill_time(const bench_prefill_clock *clock,
                              nsa_status (*enqueue)(const void *user), const void *user,
                              double *ms);

#endif /* BENCH_PREFILL_CALLS_H */
