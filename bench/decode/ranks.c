/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "decode/ranks.h"

#include "csv.h"
#include "decode/reads.h"
#include "plan/plan.h"
#include "ranks/comm.h"
#include "ranks_team.h"
#include "time_launch.h"
#include "verify/cache_tensors.h"

#include <sys/mman.h>

#define TIMEOUT_MS 60000

/* Of a step: nsa_decode, and nsa_kv_append before it; and one gather of the bytes that a step gathers, on GPUs. */
typedef struct step_times {
  double total_us, append_us, gather_us;
} step_times;

typedef struct task {
  const bench_decode_ranks_options *o;
  step_times *one; /* [cells], shared with the processes: of one GPU; 0: none */
  bench_team team;
} task;

/* One rank's part of a cell. */
typedef struct cell_run {
  task *t;
  int32_t rank;
  int64_t context, batch;
  chk_plans *plans;
  nsai_trial_plan fill, append, decode;
  int32_t unit_tokens;
  nsai_verify_cache caches;
  int32_t peer_bytes; /* that the communicator is asked for */
  nsa_comm *comm;
  bool passed; /* rank 0 has counted the cell as such */
} cell_run;

/* What a rank sends to every other in a step: an output, its reference and its sum a head. */
static int64_t gather_bytes(const cell_run *r) {
  const bench_decode_options *o = &r->t->o->decode;
  const nsai_model *m = &o->c.model;
  return m->select_count ? r->batch * o->q_len * m->heads * (m->head_dim_v + 2) * 4 : 0;
}

/* ---- reports --------------------------------------------------------------------------------- */

void bench_decode_ranks_csv_header(FILE *out) {
  fputs("date,commit,device,problem,ranks,unit_tokens,S,batch,q_len,page_size,kv_dtype,cmp_dtype,"
        "copies,"
        "ms_total,ms_append,total_ratio,append_ratio,gather_bytes,ms_gather,peer_bytes,note\n",
        out);
}

static void print_line(const cell_run *r, const step_times *us, const step_times *one,
                       const char *note) {
  fprintf(r->t->team.out, "decode %8lld tokens batch %4lld %2d ranks ", (long long)r->context,
          (long long)r->batch, r->t->team.shared->size);
  if (note) {
    fprintf(r->t->team.out, "%s\n", note);
    return;
  }
  fprintf(r->t->team.out, "%9.4g us %9.4g with append", us->total_us, us->append_us);
  if (r->t->team.shared->size > 1 && one->total_us > 0)
    fprintf(r->t->team.out, "  %5.2f x %5.2f x", bench_team_ratio(one->total_us, us->total_us),
            bench_team_ratio(one->append_us, us->append_us));
  if (us->gather_us > 0)
    fprintf(r->t->team.out, "  gather of %lld bytes %6.4g us", (long long)gather_bytes(r),
            us->gather_us);
  fputs(r->peer_bytes ? " by peer memory\n" : "\n", r->t->team.out);
}

static void write_line(const cell_run *r, const step_times *us, const step_times *one,
                       const char *note) {
  const bench_decode_options *o = &r->t->o->decode;
  FILE *csv = r->t->team.csv;
  bench_csv_begin(csv, r->t->o->commit, chk_plans_device(r->plans)->name, &o->c);
  fprintf(csv, ",%d,%d,%lld,%lld,%d,%d,%s,%s,%lld", r->t->team.shared->size, r->unit_tokens,
          (long long)r->context, (long long)r->batch, o->q_len, o->page_size,
          bench_cached_dtype_name(o->dtypes.kv), bench_cached_dtype_name(o->dtypes.cmp),
          (long long)r->caches.options.copies);
  bench_csv_known(csv, 5, us->total_us * 1e-3);
  bench_csv_known(csv, 5, us->append_us * 1e-3);
  bench_csv_known(csv, 4, bench_team_ratio(one->total_us, us->total_us));
  bench_csv_known(csv, 4, bench_team_ratio(one->append_us, us->append_us));
  if (us->gather_us > 0)
    fprintf(csv, ",%lld,%.5g", (long long)gather_bytes(r), us->gather_us * 1e-3);
  else
    fputs(",,", csv);
  fprintf(csv, ",%d,", r->peer_bytes);
  if (note) bench_csv_quoted(csv, note);
  fputc('\n', csv);
}

/* A cell counts once, by its last report. */
static void report(cell_run *r, int64_t cell, const step_times *us) {
  static const step_times none = { 0 };
  const nsai_verify_result *reason = bench_team_reason(r->t->team.shared);
  const char *note = reason ? reason->text : NULL;
  if (r->t->team.shared->size == 1 && !reason) r->t->one[cell] = *us;
  if (r->passed) r->t->team.shared->outcomes[NSAI_VERIFY_PASSED]--;
  r->passed = !reason;
  r->t->team.shared->outcomes[reason ? reason->outcome : NSAI_VERIFY_PASSED]++;
  print_line(r, us, &r->t->one[cell], note);
  if (r->t->team.csv) write_line(r, note ? &none : us, &r->t->one[cell], note);
}

/* ---- other ranks ----------------------------------------------------------------------------- */

static nsa_status meet(void *user) {
  const cell_run *r = user;
  return bench_team_meet(r->t->team.shared, r->rank);
}

/* Whether all ranks have come so far. A lack of memory is a skip. */
static bool all_well(cell_run *r, nsa_status mine) {
  nsai_verify_result *result = &r->t->team.shared->result[r->rank];
  if (mine)
    (bench_team_lacks_memory(mine) ? nsai_verify_skip : nsai_verify_fail)(result, "%s",
                                                                          nsa_last_error());
  return chk_shared_all_well(r->t->team.shared, r->rank, mine);
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* `fill`: of the appends that fill the cache of one sequence. */
static nsa_status make_plan(cell_run *r, int32_t op, bool fill, nsai_trial_plan *out) {
  const bench_decode_options *o = &r->t->o->decode;
  const int64_t prompt = r->t->team.shared->size > 1 ? NSAI_VERIFY_CACHE_RANKS_PROMPT : r->context;
  nsa_problem p = bench_decode_problem(op, o, r->context, r->batch, fill);
  if (fill && prompt < r->context) p.max_tokens = prompt;
  if (r->t->team.shared->size > 1) p.ranks = r->t->team.shared->size;
  return chk_plans_get_problem(r->plans, &o->c, &p, out);
}

static nsa_status make_caches(cell_run *r) {
  const bench_decode_options *o = &r->t->o->decode;
  const nsai_verify_device *device = chk_plans_device(r->plans);
  bench_decode_cell cell = {
    .context = r->context, .batch = r->batch, .q_len = o->q_len, .dtypes = o->dtypes
  };
  bench_decode_expect(&o->c.model, &cell, NULL, &cell.expected);
  const nsai_verify_cache_options options = {
    .model = &o->c.model,
    .fill = o->c.fill,
    .seed = o->c.seed,
    .threads = chk_plans_opts(r->plans)->threads,
    .context = r->context,
    .batch = r->batch,
    .q_len = o->q_len,
    .page_size = o->page_size,
    .kv_dtype = o->dtypes.kv,
    .cmp_dtype = o->dtypes.cmp,
    /* Each rank reads a part of the selected blocks, and everything else. */
    .copies = device->driver
                  ? nsai_verify_cache_copies((double)cell.expected.bytes / r->t->team.shared->size)
                  : 1,
    .ranks = r->unit_tokens ? r->t->team.shared->size : 0,
    .rank = r->rank,
    .unit_tokens = r->unit_tokens
  };
  return nsai_verify_cache_create(device, &options, r->fill.plan, &r->caches);
}

static nsa_status prepare(cell_run *r) {
  NSAI_TRY(make_plan(r, NSA_OP_APPEND, true, &r->fill));
  NSAI_TRY(make_plan(r, NSA_OP_APPEND, false, &r->append));
  NSAI_TRY(make_plan(r, NSA_OP_DECODE, false, &r->decode));
  r->unit_tokens = r->decode.plan->problem.unit_tokens;
  NSAI_TRY(make_caches(r));
  const uint64_t append = r->append.caps.workspace_bytes, decode = r->decode.caps.workspace_bytes;
  return nsai_verify_cache_workspace(&r->caches, append > decode ? append : decode);
}

/* A communicator of every rank, which have the same plan. */
static nsa_status connect_ranks(cell_run *r) {
  const nsa_plan *decode = r->decode.plan;
  const nsa_comm_options options = { .struct_size = sizeof options,
                                     .timeout_ms = TIMEOUT_MS,
                                     .peer_bytes = r->peer_bytes ? r->peer_bytes : -1 };
  if (r->peer_bytes && gather_bytes(r) > r->peer_bytes)
    return nsai_fail(NSA_E_ARG,
                     "a step gathers %lld bytes of every rank: give --peer-bytes as many",
                     (long long)gather_bytes(r));
  NSAI_TRY(bench_team_connect(&r->t->team, r->rank, r->decode.ctx, &options, &r->comm));
  if (!r->comm) return NSA_OK;
  NSAI_TRY(nsa_comm_agree(r->comm, &decode, 1, NULL, 0));
  if (nsai_comm_peer_bytes(r->comm) == r->peer_bytes) return NSA_OK;
  return nsai_fail(NSA_E_UNSUPPORTED, "the ranks have no peer memory: --set runtime.log_level=info "
                                      "says why");
}

static nsa_status time_steps(cell_run *r, step_times *us) {
  bench_decode_steps s = { .caches = &r->caches,
                           .decode = r->decode.plan,
                           .exec = NSA_EXEC_INIT,
                           .captures = true, /* a GPU's ranks have NCCL */
                           .meet = meet,
                           .user = r };
  s.exec.workspace = r->caches.workspace;
  s.exec.workspace_bytes = r->caches.workspace_bytes;
  s.exec.stream = (nsa_stream)chk_plans_device(r->plans)->stream;
  s.exec.comm = r->comm;
  NSAI_TRY(bench_decode_time(&s, &us->total_us));
  s.append = r->append.plan;
  NSAI_TRY(bench_decode_time(&s, &us->append_us));
  NSAI_TRY(bench_team_largest(r->t->team.shared, r->rank, us->total_us, &us->total_us));
  return bench_team_largest(r->t->team.shared, r->rank, us->append_us, &us->append_us);
}

/* Gathers by themselves, as many as a graph of steps may have. */
#define GATHERS 100
#define GATHER_REPLAYS 9

typedef struct gathers {
  const cell_run *r;
  void *memory; /* [ranks, gather_bytes] */
} gathers;

static nsa_status enqueue_gathers(void *user) {
  const gathers *g = user;
  const int64_t bytes = gather_bytes(g->r);
  for (int i = 0; i < GATHERS; i++)
    NSAI_TRY(nsai_comm_all_gather(g->r->comm, (char *)g->memory + bytes * g->r->rank, g->memory,
                                  (uint64_t)bytes,
                                  (nsa_stream)chk_plans_device(g->r->plans)->stream));
  return NSA_OK;
}

/* The median of several replays of a graph. */
static nsa_status replay_gathers(gathers *g, nsai_cu_graph_exec graph, double *us) {
  const nsai_verify_device *device = chk_plans_device(g->r->plans);
  double ms[GATHER_REPLAYS];
  nsai_verify_timer timer;
  nsa_status status = NSA_OK;
  NSAI_TRY(nsai_verify_timer_create(device, &timer));
  for (int i = -1; i < GATHER_REPLAYS; i++) {
    NSAI_TRY_TO(done, bench_team_meet(g->r->t->team.shared, g->r->rank));
    NSAI_TRY_TO(done, nsai_verify_timer_start(device, &timer));
    NSAI_TRY_TO(done, NSAI_CUDA(device->driver, cuGraphLaunch(graph, device->stream)));
    NSAI_TRY_TO(done, nsai_verify_timer_stop(device, &timer));
    NSAI_TRY_TO(done, nsa_comm_wait(g->r->comm, (nsa_stream)device->stream, 0));
    NSAI_TRY_TO(done, nsai_verify_timer_read(device, &timer, &ms[i < 0 ? 0 : i]));
  }
  *us = 1e3 * chk_median(ms, GATHER_REPLAYS) / GATHERS;
done:
  nsai_verify_timer_destroy(device, &timer);
  return status;
}

static nsa_status time_gather(cell_run *r, double *us) {
  const nsai_verify_device *device = chk_plans_device(r->plans);
  const size_t bytes = (size_t)gather_bytes(r) * (size_t)r->t->team.shared->size;
  nsai_cu_graph_exec graph = NULL;
  gathers g = { .r = r };
  nsa_status status = NSA_OK;
  if (!device->driver || !r->comm || !bytes) return NSA_OK;
  NSAI_TRY(nsai_verify_device_alloc(device, bytes, &g.memory));
  NSAI_TRY_TO(done, nsai_verify_device_set(device, g.memory, 0, bytes));
  NSAI_TRY_TO(done, nsai_verify_device_capture(device, enqueue_gathers, &g, &graph));
  NSAI_TRY_TO(done, replay_gathers(&g, graph, us));
  NSAI_TRY_TO(done, bench_team_largest(r->t->team.shared, r->rank, *us, us));
done:
  if (graph) device->driver->cuGraphExecDestroy(graph);
  nsai_verify_device_free(device, g.memory);
  return status;
}

/* Up to the runs ranks tell each other how they are: a cell that one cannot hold, all leave out. Behind
 * that a failure ends the list, because ranks may then wait. `prepared`: of this rank, so far. Returns
 * whether this rank has measured everything. */
static bool run_way(cell_run *r, int64_t cell, nsa_status prepared) {
  step_times us = { 0 };
  nsai_verify_result *result = &r->t->team.shared->result[r->rank];
  bool timed = false;
  if (all_well(r, prepared)) {
    nsa_status status = connect_ranks(r);
    if (all_well(r, status)) {
      status = time_steps(r, &us);
      if (!status) status = time_gather(r, &us.gather_us);
      if (status) nsai_verify_fail(result, "%s", nsa_last_error());
      if (status) atomic_store(&r->t->team.shared->broken, 1);
      timed = status == NSA_OK;
    }
  }
  if (!r->rank) report(r, cell, &us);
  nsa_comm_destroy(r->comm);
  r->comm = NULL;
  return timed;
}

/* By the transport and, where that is asked for, through peer memory. */
static void run_cell(cell_run *r, int64_t cell) {
  nsai_verify_result *result = &r->t->team.shared->result[r->rank];
  *result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  const bool timed = run_way(r, cell, prepare(r));
  if (timed && r->t->o->peer_bytes && r->t->team.shared->size > 1) {
    r->peer_bytes = r->t->o->peer_bytes;
    run_way(r, cell, bench_team_meet(r->t->team.shared, r->rank)); /* rank 0 has read all results */
  }
  nsai_verify_cache_destroy(&r->caches);
}

/* A cell on one rank. */
static void run(void *user, int32_t rank, chk_plans *plans, int64_t cell) {
  task *t = user;
  const bench_decode_options *o = &t->o->decode;
  cell_run r = { .t = t,
                 .rank = rank,
                 .context = o->contexts[cell / o->batch_count],
                 .batch = o->batches[cell % o->batch_count],
                 .plans = plans };
  run_cell(&r, cell);
}

/* ---- all ranks ------------------------------------------------------------------------------- */

nsa_status bench_decode_ranks(const bench_decode_ranks_options *o, FILE *out, FILE *csv,
                              int64_t *failed) {
  task t = { .o = o };
  const size_t bytes = BENCH_SIZES * BENCH_SIZES * sizeof *t.one;
  t.team = (bench_team){ .options = o->plans,
                         .count = o->decode.context_count * o->decode.batch_count,
                         .run = run,
                         .user = &t,
                         .out = out,
                         .csv = csv };
  NSAI_TRY(bench_cached_check("decode", &o->decode.c.model));
  t.one = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (t.one == MAP_FAILED) return nsai_fail_nomem("times of one GPU", bytes);
  nsa_status status = bench_team_run(&t.team, o->with, failed);
  munmap(t.one, bytes);
  return status;
}
