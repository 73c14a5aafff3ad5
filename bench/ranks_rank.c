/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks_rank.h"

#include "ranks_team.h"
#include "run/check_tensor.h"

#include <stdlib.h>

#define SUSTAINED_MS 300.0
#define MOST_LAUNCHES 3000
#define LONG_MS 1000.0 /* runs from here on take so long that a few are enough */

/* How often a run is launched. */
enum { BURSTS = 7, BURSTS_OF_LONG = 3, LEAST_LAUNCHES = 9, LEAST_OF_LONG = 3 };

/* ---- tensors --------------------------------------------------------------------------------- */

/* A backward pass needs the blocks of a forward, and with `saved` its other outputs. An index has no
 * place among a backward pass's tensors: its blocks stay any. */
static bool needs_forward(const chk_rank *r) {
  return r->c.kind == NSAI_VERIFY_BACKWARD && r->c.model.by != NSAI_BY_INDEX;
}

/* Host images are as large as the tensors, and nothing is compared. */
static void free_images(nsai_verify_tensors *d) {
  for (int slot = 0; slot < NSAI_VERIFY_SLOTS; slot++) {
    free(d->buffer[slot].image);
    d->buffer[slot].image = NULL;
  }
}

/* The plan and the memory of the forward that precedes a backward pass. */
static nsa_status prepare_forward(bench_rank *b) {
  chk_rank *r = &b->r;
  chk_ranks_problem p = *r->p;
  p.c.kind = NSAI_VERIFY_FORWARD;
  p.c.saved = 0;
  nsa_problem problem = chk_case_problem(&p.c, NSA_OP_FORWARD);
  problem.max_probe_rows = 0;
  if (r->shard)
    NSAI_TRY(chk_rank_plan(r->plans, &p, r->shard, &b->forward_plan));
  else
    NSAI_TRY(chk_plans_get_problem(r->plans, &p.c, &problem, &b->forward_plan));
  const size_t bytes = (size_t)r->data.token_capacity * (size_t)r->c.model.heads *
                       (size_t)r->c.model.head_dim_v * (size_t)nsai_dtype_bytes(r->c.model.dtype);
  NSAI_TRY(nsai_verify_device_alloc(r->device, bytes + 1, &b->o));
  return nsai_verify_tensors_workspace(&r->data, b->forward_plan.caps.workspace_bytes);
}

bool bench_rank_has_pass(const nsai_verify_case *c) {
  return !c->saved || c->model.by != NSAI_BY_INDEX;
}

nsa_status bench_rank_prepare(bench_rank *b) {
  chk_rank *r = &b->r;
  if (!bench_rank_has_pass(&r->p->c))
    return nsai_fail(NSA_E_UNSUPPORTED, "with an index the outputs are not saved here");
  if (r->device->driver)
    NSAI_TRY(nsai_verify_device_alloc(r->device, NSAI_VERIFY_FLUSH_BYTES, &b->flush));
  NSAI_TRY(chk_rank_prepare(r));
  free_images(&r->data);
  if (r->c.kind == NSAI_VERIFY_FORWARD) nsai_verify_tensors_drop_optional(&r->data);
  return needs_forward(r) ? prepare_forward(b) : NSA_OK;
}

void bench_rank_release(bench_rank *b) {
  if (b->flush) nsai_verify_device_free(b->r.device, b->flush);
  if (b->o) nsai_verify_device_free(b->r.device, b->o);
  nsa_comm_destroy(b->r.comm);
  b->r.comm = NULL;
  chk_rank_release(&b->r);
}

/* ---- before the runs ------------------------------------------------------------------------- */

static nsa_status wait(const chk_rank *r) {
  return r->comm ? nsa_comm_wait(r->comm, r->device->stream, 0)
                 : nsai_verify_device_wait(r->device, NULL);
}

/* A forward that writes into the inputs of the backward pass, which have the same shapes. */
static nsa_status run_forward(bench_rank *b) {
  chk_rank *r = &b->r;
  const int64_t o[3] = { r->data.token_capacity, r->c.model.heads, r->c.model.head_dim_v };
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_batch batch;
  nsa_io io;
  nsai_verify_tensors_io(&r->data, NSAI_VERIFY_ON_DEVICE, &batch, &io);
  io.o = nsai_verify_tensor(r->c.model.dtype, 3, o);
  io.o.data = b->o;
  exec.workspace = r->data.workspace;
  exec.workspace_bytes = r->data.workspace_bytes;
  exec.stream = r->device->stream;
  exec.branches = r->c.branches;
  exec.comm = r->comm;
  if (r->shard) {
    batch = (nsa_batch)NSA_BATCH_INIT;
    batch.num_seqs = r->p->c.num_seqs;
    batch.shard = r->shard;
  }
  NSAI_TRY(
      nsa_forward(b->forward_plan.plan, &exec, nsai_verify_tensors_batch(&r->data, &batch), &io));
  NSAI_TRY(wait(r));
  nsai_verify_device_free(r->device, b->o);
  b->o = NULL;
  return NSA_OK;
}

nsa_status bench_rank_begin(bench_rank *b) {
  chk_rank *r = &b->r;
  const nsa_plan *plans[] = { r->plan.plan, b->forward_plan.plan };
  if (r->comm) NSAI_TRY(nsa_comm_agree(r->comm, plans, b->o ? 2 : 1, r->shard, 0));
  return b->o ? run_forward(b) : NSA_OK;
}

/* ---- times ----------------------------------------------------------------------------------- */

static nsa_status launch(const chk_rank *r, nsai_verify_timer *timer) {
  NSAI_TRY(nsai_verify_timer_start(r->device, timer));
  NSAI_TRY(chk_rank_enqueue(r));
  return nsai_verify_timer_stop(r->device, timer);
}

/* One launch on all ranks after a flush of the L2 and a pause. */
static nsa_status burst(const bench_rank *b, nsai_verify_timer *timer, double *ms) {
  const chk_rank *r = &b->r;
  if (b->flush) NSAI_TRY(nsai_verify_device_set(r->device, b->flush, 0, NSAI_VERIFY_FLUSH_BYTES));
  NSAI_TRY(nsai_verify_device_wait(r->device, NULL));
  chk_pause(r->device);
  NSAI_TRY(bench_team_meet(r->shared, r->rank));
  NSAI_TRY(launch(r, timer));
  NSAI_TRY(wait(r));
  NSAI_TRY(nsai_verify_timer_read(r->device, timer, ms));
  return bench_team_largest(r->shared, r->rank, *ms, ms);
}

/* Launches back to back; the median of the last third. */
static nsa_status sustained(const chk_rank *r, int64_t count, nsai_verify_timer *timers,
                            double *ms) {
  double values[MOST_LAUNCHES / 3 + 1];
  const int64_t kept = count / 3;
  NSAI_TRY(bench_team_meet(r->shared, r->rank));
  for (int64_t i = 0; i < count; i++) NSAI_TRY(launch(r, &timers[i]));
  NSAI_TRY(wait(r));
  for (int64_t i = 0; i < kept; i++)
    NSAI_TRY(nsai_verify_timer_read(r->device, &timers[count - kept + i], &values[i]));
  *ms = chk_median(values, kept);
  return bench_team_largest(r->shared, r->rank, *ms, ms);
}

/* The same on all ranks, whose burst is the same. */
static int64_t launches_of(double burst_ms) {
  const double wanted = SUSTAINED_MS / (burst_ms + 1e-3);
  if (burst_ms >= LONG_MS) return LEAST_OF_LONG;
  return wanted < LEAST_LAUNCHES  ? LEAST_LAUNCHES
         : wanted > MOST_LAUNCHES ? MOST_LAUNCHES
                                  : (int64_t)wanted;
}

nsa_status bench_rank_time(const bench_rank *b, chk_times *times) {
  double values[BURSTS], first;
  nsai_verify_timer *timers = calloc(MOST_LAUNCHES, sizeof *timers);
  nsa_status status = NSA_OK;
  int64_t made = 0;
  if (!timers) return nsai_fail_nomem("timers", MOST_LAUNCHES * sizeof *timers);
  NSAI_TRY_TO(done, nsai_verify_timer_create(b->r.device, &timers[made++]));
  /* The first launch loads kernels, and connects ranks. It is not counted. */
  NSAI_TRY_TO(done, burst(b, &timers[0], &first));
  const int bursts = first < LONG_MS ? BURSTS : BURSTS_OF_LONG;
  for (int i = 0; i < bursts; i++) NSAI_TRY_TO(done, burst(b, &timers[0], &values[i]));
  times->burst_ms = chk_median(values, bursts);
  const int64_t launches = launches_of(times->burst_ms);
  while (made < launches) NSAI_TRY_TO(done, nsai_verify_timer_create(b->r.device, &timers[made++]));
  NSAI_TRY_TO(done, sustained(&b->r, launches, timers, &times->sustained_ms));
done:
  for (int64_t i = 0; i < made; i++) nsai_verify_timer_destroy(b->r.device, &timers[i]);
  free(timers);
  return status;
}
