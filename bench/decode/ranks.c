/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "decode/ranks.h"

#include "csv.h"
#include "decode/reads.h"
#include "plan/plan.h"
#include "ranks/fork.h"
#include "ranks/rank.h"
#include "verify/cache_tensors.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TIMEOUT_MS 60000
#define LIST_SECONDS 3600.0
#define OTHER "another rank has failed"

/* Of a step: nsa_decode, and nsa_kv_append before it. */
typedef struct step_times {
  double total_us, append_us;
} step_times;

typedef struct task {
  const bench_decode_ranks_options *o;
  chk_shared *shared;
  step_times *one;                /* [cells], shared with the processes: of one GPU; 0: none */
  chk_plans *plans;               /* of ranks that are threads; else each has its own */
  nsa_comm *comms[NSA_MAX_RANKS]; /* of these */
  FILE *out, *csv;
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
  nsa_comm *comm;
} cell_run;

/* ---- reports --------------------------------------------------------------------------------- */

void bench_decode_ranks_csv_header(FILE *out) {
  fputs("date,commit,device,problem,ranks,unit_tokens,S,batch,q_len,page_size,kv_dtype,cmp_dtype,"
        "copies,"
        "ms_total,ms_append,total_ratio,append_ratio,note\n",
        out);
}

static double ratio(double one, double us) { return one > 0 && us > 0 ? one / us : 0; }

static void print_line(const cell_run *r, const step_times *us, const step_times *one,
                       const char *note) {
  fprintf(r->t->out, "decode %8lld tokens batch %4lld %2d ranks ", (long long)r->context,
          (long long)r->batch, r->t->shared->size);
  if (note) {
    fprintf(r->t->out, "%s\n", note);
    return;
  }
  fprintf(r->t->out, "%9.4g us %9.4g with append", us->total_us, us->append_us);
  if (r->t->shared->size > 1 && one->total_us > 0)
    fprintf(r->t->out, "  %5.2f x %5.2f x", ratio(one->total_us, us->total_us),
            ratio(one->append_us, us->append_us));
  fputc('\n', r->t->out);
}

static void write_line(const cell_run *r, const step_times *us, const step_times *one,
                       const char *note) {
  const bench_decode_options *o = &r->t->o->decode;
  FILE *csv = r->t->csv;
  bench_csv_begin(csv, r->t->o->commit, chk_plans_device(r->plans)->name, &o->c);
  fprintf(csv, ",%d,%d,%lld,%lld,%d,%d,%s,%s,%lld", r->t->shared->size, r->unit_tokens,
          (long long)r->context, (long long)r->batch, o->q_len, o->page_size,
          bench_cached_dtype_name(o->dtypes.kv), bench_cached_dtype_name(o->dtypes.cmp),
          (long long)r->caches.options.copies);
  bench_csv_known(csv, 5, us->total_us * 1e-3);
  bench_csv_known(csv, 5, us->append_us * 1e-3);
  bench_csv_known(csv, 4, ratio(one->total_us, us->total_us));
  bench_csv_known(csv, 4, ratio(one->append_us, us->append_us));
  fputc(',', csv);
  if (note) bench_csv_quoted(csv, note);
  fputc('\n', csv);
}

/* The reason for which there is no time: a failure, rather than a lack of memory or that another rank
 * has failed. NULL: there is a time. */
static const nsai_verify_result *find_reason(const chk_shared *shared) {
  const nsai_verify_result *found = NULL;
  for (int32_t i = 0; i < shared->size; i++) {
    const nsai_verify_result *r = &shared->result[i];
    if (r->outcome == NSAI_VERIFY_PASSED) continue;
    if (!found || strstr(found->text, OTHER) ||
        (r->outcome == NSAI_VERIFY_FAILED && found->outcome == NSAI_VERIFY_SKIPPED))
      found = r;
  }
  return found;
}

static void report(const cell_run *r, int64_t cell, const step_times *us) {
  static const step_times none = { 0, 0 };
  const nsai_verify_result *reason = find_reason(r->t->shared);
  const char *note = reason ? reason->text : NULL;
  if (r->t->shared->size == 1 && !reason) r->t->one[cell] = *us;
  r->t->shared->outcomes[reason ? reason->outcome : NSAI_VERIFY_PASSED]++;
  print_line(r, us, &r->t->one[cell], note);
  fflush(r->t->out);
  if (!r->t->csv) return;
  write_line(r, note ? &none : us, &r->t->one[cell], note);
  fflush(r->t->csv);
}

/* ---- other ranks ----------------------------------------------------------------------------- */

static nsa_status meet(void *user) {
  const cell_run *r = user;
  return chk_shared_meet_now(r->t->shared, r->rank) ? NSA_OK : nsai_fail(NSA_E_RANKS, OTHER);
}

/* The largest of a figure, over the ranks. Every rank calls it. */
static nsa_status largest(cell_run *r, double mine, double *out) {
  chk_shared *shared = r->t->shared;
  shared->partials[r->rank][0] = (float)mine;
  NSAI_TRY(meet(r));
  *out = 0;
  for (int32_t i = 0; i < shared->size; i++) *out = fmax(*out, (double)shared->partials[i][0]);
  return meet(r);
}

/* Whether all ranks have come so far. A lack of memory is a skip. */
static bool all_well(cell_run *r, nsa_status mine) {
  double failed;
  nsai_verify_result *result = &r->t->shared->result[r->rank];
  const bool memory = mine == NSA_E_NOMEM ||
                      (mine == NSA_E_CUDA && nsai_last_foreign() == NSAI_CUDA_ERROR_OUT_OF_MEMORY);
  if (mine) (memory ? nsai_verify_skip : nsai_verify_fail)(result, "%s", nsa_last_error());
  return !largest(r, mine != NSA_OK, &failed) && failed == 0;
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* `fill`: of the appends that fill the cache of one sequence. */
static nsa_status make_plan(cell_run *r, int32_t op, bool fill, nsai_trial_plan *out) {
  const bench_decode_options *o = &r->t->o->decode;
  const int64_t prompt = r->t->shared->size > 1 ? NSAI_VERIFY_CACHE_RANKS_PROMPT : r->context;
  nsa_problem p = NSA_PROBLEM_INIT;
  p.op = op;
  p.page_size = o->page_size;
  p.max_kv_len = r->context;
  p.max_seqs = fill ? 1 : (int32_t)r->batch;
  p.max_q_len = fill ? 0 : o->q_len;
  p.max_tokens = !fill ? r->batch * o->q_len : prompt < r->context ? prompt : r->context;
  p.overlap = o->c.overlap ? NSA_OVERLAP_HIGH : NSA_OVERLAP_LOW;
  if (r->t->shared->size > 1) p.ranks = r->t->shared->size;
  bench_cached_set(&o->dtypes, &p);
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
                  ? nsai_verify_cache_copies((double)cell.expected.bytes / r->t->shared->size)
                  : 1,
    .ranks = r->unit_tokens ? r->t->shared->size : 0,
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

/* A communicator of every rank, over NCCL or, of threads, loopback. */
static nsa_status connect_ranks(cell_run *r) {
  task *t = r->t;
  nsa_comm_options options = NSA_COMM_OPTIONS_INIT;
  nsa_status status = NSA_OK;
  options.timeout_ms = TIMEOUT_MS;
  if (t->shared->size == 1) return NSA_OK;
  if (t->plans) {
    if (!r->rank) status = nsa_comm_loopback(r->decode.ctx, t->shared->size, &options, t->comms);
    if (!all_well(r, status)) return status ? status : nsai_fail(NSA_E_RANKS, OTHER);
    r->comm = t->comms[r->rank];
  } else {
    NSAI_TRY(chk_rank_nccl(t->shared, r->rank, r->decode.ctx, &options, &r->comm));
  }
  const nsa_plan *decode = r->decode.plan;
  return nsa_comm_agree(r->comm, &decode, 1, NULL, 0);
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
  NSAI_TRY(largest(r, us->total_us, &us->total_us));
  return largest(r, us->append_us, &us->append_us);
}

/* Up to the runs ranks tell each other how they are: what one has no memory for, all leave out. Behind
 * that a failure ends the list, because ranks may then wait. */
static void run_cell(cell_run *r, int64_t cell) {
  step_times us = { 0, 0 };
  nsai_verify_result *result = &r->t->shared->result[r->rank];
  *result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  if (all_well(r, prepare(r))) {
    nsa_status status = connect_ranks(r);
    if (all_well(r, status)) {
      status = time_steps(r, &us);
      if (status) nsai_verify_fail(result, "%s", nsa_last_error());
      if (status) atomic_store(&r->t->shared->broken, 1);
    }
  }
  if (!r->rank) report(r, cell, &us);
  nsa_comm_destroy(r->comm);
  nsai_verify_cache_destroy(&r->caches);
}

static void live(void *user, int32_t rank) {
  task *t = user;
  const bench_decode_options *o = &t->o->decode;
  chk_plans *plans = t->plans;
  chk_plans_options options = t->o->plans;
  chk_shared *shared = t->shared;
  if (!plans) {
    options.device = (options.device < 0 ? 0 : options.device) + rank;
    options.threads = options.threads > shared->size ? options.threads / shared->size : 1;
    shared->status[rank] = chk_plans_create(&options, &plans);
  }
  if (shared->status[rank])
    nsai_verify_skip(&shared->result[rank], "rank %d: %s", rank, nsa_last_error());
  bool go = chk_shared_meet(shared, rank);
  for (int32_t i = 0; i < shared->size; i++) go &= !shared->status[i];
  for (int i = 0; go && i < o->context_count * o->batch_count; i++) {
    cell_run r = { .t = t,
                   .rank = rank,
                   .context = o->contexts[i / o->batch_count],
                   .batch = o->batches[i % o->batch_count],
                   .plans = plans };
    run_cell(&r, i);
    go = chk_shared_meet(shared, rank);
  }
  shared->passed[rank] = go;
  if (!t->plans) chk_plans_destroy(plans);
}

/* ---- all ranks ------------------------------------------------------------------------------- */

typedef struct thread {
  task *t;
  int32_t rank;
  pthread_t id;
  bool started;
} thread;

static void *live_in_thread(void *argument) {
  thread *own = argument;
  live(own->t, own->rank);
  return NULL;
}

static nsa_status run_threads(task *t) {
  thread threads[NSA_MAX_RANKS] = { { 0 } };
  NSAI_TRY(chk_plans_create(&t->o->plans, &t->plans));
  for (int32_t i = 0; i < t->shared->size; i++) {
    threads[i].t = t;
    threads[i].rank = i;
    threads[i].started = !pthread_create(&threads[i].id, NULL, live_in_thread, &threads[i]);
    if (!threads[i].started) atomic_store(&t->shared->broken, 1);
  }
  for (int32_t i = 0; i < t->shared->size; i++)
    if (threads[i].started) pthread_join(threads[i].id, NULL);
  chk_plans_destroy(t->plans);
  t->plans = NULL;
  return NSA_OK;
}

static nsa_status run_list(task *t, int32_t ranks, int64_t *failed) {
  const bool threads = t->o->plans.device == NSAI_VERIFY_DEVICE_CPU;
  NSAI_TRY(chk_shared_create(ranks, &t->shared));
  nsa_status status =
      threads ? run_threads(t) : chk_fork_ranks(t->shared, live, t, -1, LIST_SECONDS);
  const long long *outcomes = t->shared->outcomes;
  if (!status)
    *failed += t->o->decode.context_count * t->o->decode.batch_count -
               outcomes[NSAI_VERIFY_PASSED] - outcomes[NSAI_VERIFY_SKIPPED];
  chk_shared_destroy(t->shared);
  t->shared = NULL;
  return status;
}

nsa_status bench_decode_ranks(const bench_decode_ranks_options *o, FILE *out, FILE *csv,
                              int64_t *failed) {
  task t = { .o = o, .out = out, .csv = csv };
  const size_t bytes = BENCH_SIZES * BENCH_SIZES * sizeof *t.one;
  nsa_status status = NSA_OK;
  NSAI_TRY(bench_cached_check("decode", &o->decode.c.model));
  t.one = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (t.one == MAP_FAILED) return nsai_fail_nomem("times of one GPU", bytes);
  for (int32_t ranks = 1; !status && ranks <= NSA_MAX_RANKS; ranks++)
    if (ranks == 1 || o->with[ranks]) status = run_list(&t, ranks, failed);
  munmap(t.one, bytes);
  return status;
}
