/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks_cell.h"

#include "base/math.h"
#include "csv.h"
#include "params/ranks.h"
#include "ranks/comm.h"
#include "time_launch.h"

#include <sys/mman.h>

#define TIMEOUT_MS 60000

/* ---- other ranks ----------------------------------------------------------------------------- */

nsa_status bench_ranks_cell_meet(void *user) {
  const bench_ranks_cell *cell = user;
  return bench_team_meet(cell->team->shared, cell->rank);
}

static nsai_verify_result *result_of(const bench_ranks_cell *cell) {
  return &cell->team->shared->result[cell->rank];
}

/* Whether all ranks have come so far. A lack of memory is a skip. */
static bool all_well(bench_ranks_cell *cell, nsa_status mine) {
  if (mine)
    (bench_team_lacks_memory(mine) ? nsai_verify_skip : nsai_verify_fail)(result_of(cell), "%s",
                                                                          nsa_last_error());
  return chk_shared_all_well(cell->team->shared, cell->rank, mine);
}

nsa_status bench_ranks_cell_connect(bench_ranks_cell *cell, const bench_ranks_terms *t) {
  const nsa_comm_options options = { .struct_size = sizeof options,
                                     .timeout_ms = TIMEOUT_MS,
                                     .peer_bytes = cell->peer_bytes ? cell->peer_bytes : -1 };
  if (cell->peer_bytes && t->message_bytes > cell->peer_bytes)
    return nsai_fail(NSA_E_ARG,
                     "a call gathers %lld bytes of every rank: give --peer-bytes as many, at most "
                     "%d",
                     (long long)t->message_bytes, NSAI_GATHER_MOST);
  NSAI_TRY(bench_team_connect(cell->team, cell->rank, t->ctx, &options, &cell->comm));
  if (!cell->comm) return NSA_OK;
  NSAI_TRY(nsa_comm_agree(cell->comm, t->plans, t->plan_count, NULL, 0));
  for (int i = 0; i < t->shard_count; i++)
    NSAI_TRY(nsa_comm_agree(cell->comm, NULL, 0, t->shards[i], 0));
  if (nsai_comm_peer_bytes(cell->comm) == cell->peer_bytes) return NSA_OK;
  return nsai_fail(NSA_E_UNSUPPORTED, "the ranks have no peer memory: --set runtime.log_level=info "
                                      "says why");
}

/* ---- gathers --------------------------------------------------------------------------------- */

#define GATHER_REPLAYS 9

typedef struct gather_run {
  const bench_ranks_cell *cell;
  const bench_ranks_gathers *gathers;
} gather_run;

static nsa_status enqueue_gathers(void *user) {
  const gather_run *run = user;
  const bench_ranks_gathers *g = run->gathers;
  const nsai_verify_device *device = chk_plans_device(run->cell->plans);
  for (int i = 0; i < g->repeats * g->count; i++) {
    const int64_t bytes = g->bytes[i % g->count];
    NSAI_TRY(nsai_comm_all_gather(run->cell->comm, (char *)g->memory + bytes * run->cell->rank,
                                  g->memory, (uint64_t)bytes, (nsa_stream)device->stream));
  }
  return NSA_OK;
}

/* The median of several replays of a graph. */
static nsa_status replay_gathers(const gather_run *run, nsai_cu_graph_exec graph, double *us) {
  const bench_ranks_cell *cell = run->cell;
  const nsai_verify_device *device = chk_plans_device(cell->plans);
  double ms[GATHER_REPLAYS];
  nsai_verify_timer timer;
  nsa_status status = NSA_OK;
  NSAI_TRY(nsai_verify_timer_create(device, &timer));
  for (int i = -1; i < GATHER_REPLAYS; i++) {
    NSAI_TRY_TO(done, bench_team_meet(cell->team->shared, cell->rank));
    NSAI_TRY_TO(done, nsai_verify_timer_start(device, &timer));
    NSAI_TRY_TO(done, NSAI_CUDA(device->driver, cuGraphLaunch(graph, device->stream)));
    NSAI_TRY_TO(done, nsai_verify_timer_stop(device, &timer));
    NSAI_TRY_TO(done, nsa_comm_wait(cell->comm, (nsa_stream)device->stream, 0));
    NSAI_TRY_TO(done, nsai_verify_timer_read(device, &timer, &ms[i < 0 ? 0 : i]));
  }
  *us = 1e3 * chk_median(ms, GATHER_REPLAYS) / run->gathers->repeats;
done:
  nsai_verify_timer_destroy(device, &timer);
  return status;
}

nsa_status bench_ranks_cell_gather(bench_ranks_cell *cell, const bench_ranks_gathers *g) {
  const nsai_verify_device *device = chk_plans_device(cell->plans);
  gather_run run = { cell, g };
  nsai_cu_graph_exec graph = NULL;
  int64_t most = 0;
  double us = 0;
  nsa_status status = NSA_OK;
  cell->gather_bytes = 0;
  for (int i = 0; i < g->count; i++) {
    most = nsai_larger(most, g->bytes[i]);
    cell->gather_bytes += g->bytes[i];
  }
  if (!device->driver || !cell->comm || !most) return NSA_OK;
  if ((uint64_t)most * (uint64_t)cell->team->shared->size > g->memory_bytes)
    return nsai_fail(NSA_E_INTERNAL, "no room for gathers of %lld bytes", (long long)most);
  NSAI_TRY_TO(done, nsai_verify_device_capture(device, enqueue_gathers, &run, &graph));
  NSAI_TRY_TO(done, replay_gathers(&run, graph, &us));
  NSAI_TRY_TO(done, bench_team_largest(cell->team->shared, cell->rank, us, &cell->times.gather_us));
done:
  if (graph) device->driver->cuGraphExecDestroy(graph);
  return status;
}

/* ---- reports --------------------------------------------------------------------------------- */

nsa_status bench_ranks_times_create(size_t count, bench_ranks_times **out) {
  const size_t bytes = count * sizeof **out;
  *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return *out == MAP_FAILED ? nsai_fail_nomem("times of one GPU", bytes) : NSA_OK;
}

void bench_ranks_times_destroy(bench_ranks_times *times, size_t count) {
  munmap(times, count * sizeof *times);
}

nsa_status bench_ranks_cell_set_time(bench_ranks_cell *cell, int call, double ms) {
  return bench_team_largest(cell->team->shared, cell->rank, ms, &cell->times.ms[call]);
}

void bench_ranks_print_ratios(const bench_team *team, const bench_ranks_times *times,
                              const bench_ranks_times *one) {
  if (team->shared->size > 1 && one->ms[0] > 0)
    fprintf(team->out, "  %5.2f x %5.2f x", bench_team_ratio(one->ms[0], times->ms[0]),
            bench_team_ratio(one->ms[1], times->ms[1]));
}

void bench_ranks_write_times(const bench_team *team, const bench_ranks_times *times,
                             const bench_ranks_times *one) {
  for (int i = 0; i < 2; i++) bench_csv_known(team->csv, 5, times->ms[i]);
  for (int i = 0; i < 2; i++)
    bench_csv_known(team->csv, 4, bench_team_ratio(one->ms[i], times->ms[i]));
}

static void print_line(const bench_ranks_cell *cell, const bench_ranks_steps *s, const char *note) {
  const bench_ranks_times *t = &cell->times;
  FILE *out = cell->team->out;
  s->print(s->user, !note);
  if (note) {
    fprintf(out, "%s\n", note);
    return;
  }
  bench_ranks_print_ratios(cell->team, t, cell->one);
  if (t->gather_us > 0)
    fprintf(out, "  gather of %lld bytes %6.4g us", (long long)cell->gather_bytes, t->gather_us);
  fputs(cell->peer_bytes ? " by peer memory\n" : "\n", out);
}

static void write_line(const bench_ranks_cell *cell, const bench_ranks_steps *s, const char *note) {
  static const bench_ranks_times none = { 0 };
  const bench_ranks_times *t = note ? &none : &cell->times;
  FILE *csv = cell->team->csv;
  s->write(s->user);
  bench_ranks_write_times(cell->team, t, cell->one);
  if (t->gather_us > 0)
    fprintf(csv, ",%lld,%.5g", (long long)cell->gather_bytes, t->gather_us * 1e-3);
  else
    fputs(",,", csv);
  fprintf(csv, ",%d,", cell->peer_bytes);
  if (note) bench_csv_quoted(csv, note);
  fputc('\n', csv);
}

/* A cell counts once, by its last report. */
static void report(bench_ranks_cell *cell, const bench_ranks_steps *s) {
  chk_shared *shared = cell->team->shared;
  const nsai_verify_result *reason = bench_team_reason(shared);
  if (cell->passed) shared->outcomes[NSAI_VERIFY_PASSED]--;
  cell->passed = !reason;
  shared->outcomes[reason ? reason->outcome : NSAI_VERIFY_PASSED]++;
  if (shared->size == 1 && !reason) *cell->one = cell->times;
  print_line(cell, s, reason ? reason->text : NULL);
  if (cell->team->csv) write_line(cell, s, reason ? reason->text : NULL);
}

/* ---- a cell ---------------------------------------------------------------------------------- */

/* `prepared`: of this rank, so far. Returns whether this rank has measured everything. */
static bool run_once(bench_ranks_cell *cell, const bench_ranks_steps *s, nsa_status prepared) {
  bool timed = false;
  if (all_well(cell, prepared)) {
    nsa_status status = s->connect(s->user);
    if (all_well(cell, status)) {
      cell->times = (bench_ranks_times){ 0 };
      status = s->measure(s->user);
      if (status) nsai_verify_fail(result_of(cell), "%s", nsa_last_error());
      if (status) atomic_store(&cell->team->shared->broken, 1);
      timed = status == NSA_OK;
    }
  }
  if (!cell->rank) report(cell, s);
  nsa_comm_destroy(cell->comm);
  cell->comm = NULL;
  return timed;
}

void bench_ranks_cell_run(bench_ranks_cell *cell, const bench_ranks_steps *s, int32_t peer_bytes) {
  *result_of(cell) = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  if (!run_once(cell, s, s->prepare(s->user)) || !peer_bytes || cell->team->shared->size == 1)
    return;
  cell->peer_bytes = peer_bytes;
  run_once(cell, s, bench_ranks_cell_meet(cell)); /* rank 0 has read all results */
}
