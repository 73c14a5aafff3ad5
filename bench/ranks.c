/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks.h"

#include "csv.h"
#include "measure.h"
#include "ranks/fork.h"
#include "ranks_model.h"
#include "ranks_rank.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A rank may launch runs of many seconds back to back, and the oldest must not seem lost. */
#define TIMEOUT_MS 240000
#define LIST_SECONDS 3600.0

/* The passes over one problem; names are as in other results. */
static const bench_part forward_parts[] = { BENCH_FORWARD };
static const bench_part backward_parts[] = { BENCH_BACKWARD, BENCH_BACKWARD_SAVED };

typedef struct task {
  const bench_ranks_options *options;
  const bench_cases *list;
  const bench_part *parts;
  int part_count;
  chk_shared *shared;
  chk_times *one;   /* [list, parts], shared with the processes: of one GPU; 0: it has no time */
  chk_plans *plans; /* of ranks that are threads; else each has its own */
  nsa_comm *comms[NSA_MAX_RANKS]; /* of these */
  FILE *out, *csv;
} task;

/* A problem of the list, and a pass over it. */
typedef struct case_pass {
  const nsai_verify_case *c;
  bench_part part;
  int64_t at; /* in task.one */
} case_pass;

/* A result, as it is reported. */
typedef struct line {
  const case_pass *pass;
  const char *device;
  chk_times times, one;
  double model_ms; /* 0: there is none */
  uint64_t workspace;
  const char *note; /* NULL: there are times */
} line;

/* ---- reports --------------------------------------------------------------------------------- */

void bench_ranks_csv_header(FILE *out) {
  fputs("date,commit,device,problem,part,ranks,burst_ms,sustained_ms,burst_ratio,sustained_ratio,"
        "model_ms,model_percent,workspace,note\n",
        out);
}

static double ratio(double one, double ms) { return one > 0 && ms > 0 ? one / ms : 0; }

static void print_line(const task *t, const line *l) {
  fprintf(t->out, "%-10s %9lld tokens %-10s %2d ranks ", bench_part_names[l->pass->part],
          (long long)nsai_verify_total(l->pass->c->q_len, l->pass->c->num_seqs),
          nsai_verify_fill_name(l->pass->c->fill), t->shared->size);
  if (l->note) {
    fprintf(t->out, "%s\n", l->note);
    return;
  }
  fprintf(t->out, "%9.4g ms %9.4g sustained", l->times.burst_ms, l->times.sustained_ms);
  if (t->shared->size > 1 && l->one.burst_ms > 0)
    fprintf(t->out, "  %5.2f x %5.2f x", ratio(l->one.burst_ms, l->times.burst_ms),
            ratio(l->one.sustained_ms, l->times.sustained_ms));
  if (l->model_ms > 0)
    fprintf(t->out, "  model %9.4g ms %+.1f %%", l->model_ms,
            100 * (l->times.burst_ms / l->model_ms - 1));
  fputc('\n', t->out);
}

static void write_line(const task *t, const line *l) {
  const chk_times none = { 0, 0 }, *times = l->note ? &none : &l->times;
  bench_csv_begin(t->csv, t->options->commit ? t->options->commit : "", l->device, l->pass->c);
  fprintf(t->csv, ",%s,%d", bench_part_names[l->pass->part], t->shared->size);
  bench_csv_known(t->csv, 5, times->burst_ms);
  bench_csv_known(t->csv, 5, times->sustained_ms);
  bench_csv_known(t->csv, 4, ratio(l->one.burst_ms, times->burst_ms));
  bench_csv_known(t->csv, 4, ratio(l->one.sustained_ms, times->sustained_ms));
  bench_csv_known(t->csv, 5, l->model_ms);
  fputc(',', t->csv);
  if (l->model_ms > 0 && times->burst_ms > 0)
    fprintf(t->csv, "%.1f", 100 * (times->burst_ms / l->model_ms - 1));
  fprintf(t->csv, ",%llu,", (unsigned long long)l->workspace);
  if (l->note) bench_csv_quoted(t->csv, l->note);
  fputc('\n', t->csv);
}

/* ---- the model ------------------------------------------------------------------------------- */

/* Whether two problems differ in their one length alone. */
static bool differ_in_length(const nsai_verify_case *a, const nsai_verify_case *b) {
  return a->num_seqs == 1 && b->num_seqs == 1 && a->fill == b->fill && bench_same_model(a, b);
}

/* The model of a run of this shard from the times of one GPU in the list: its own, or those of other
 * lengths. */
static nsa_status model_of(const task *t, const case_pass *pass, const nsa_shard *shard,
                           double *ms) {
  bench_ranks_work work;
  bench_one_gpu *measured = calloc((size_t)t->list->count, sizeof *measured);
  int64_t count = 0;
  *ms = 0;
  if (!measured) return nsai_fail_nomem("times of one GPU", (size_t)t->list->count);
  for (int64_t i = 0; i < t->list->count; i++) {
    const nsai_verify_case *c = &t->list->cases[i];
    if (c != pass->c && !differ_in_length(c, pass->c)) continue;
    measured[count++] =
        (bench_one_gpu){ (double)nsai_verify_total(c->q_len, c->num_seqs),
                         t->one[i * t->part_count + pass->at % t->part_count].burst_ms };
  }
  const double tokens = (double)nsai_verify_total(pass->c->q_len, pass->c->num_seqs);
  const double one = bench_one_gpu_ms(measured, count, tokens);
  free(measured);
  NSAI_TRY(bench_ranks_count(&pass->c->model, shard, &work));
  *ms = bench_ranks_model_ms(&pass->c->model, &work, pass->part != BENCH_FORWARD, one);
  return NSA_OK;
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* A communicator of every rank, over NCCL or, of threads, loopback. */
static nsa_status connect_ranks(task *t, bench_rank *b) {
  nsa_comm_options options = NSA_COMM_OPTIONS_INIT;
  nsa_status status = NSA_OK;
  if (t->shared->size == 1) return NSA_OK;
  options.timeout_ms = TIMEOUT_MS;
  if (!t->plans) return chk_rank_nccl(t->shared, b->r.rank, b->r.plan.ctx, &options, &b->r.comm);
  if (!b->r.rank) status = nsa_comm_loopback(b->r.plan.ctx, t->shared->size, &options, t->comms);
  if (!bench_rank_all_well(b, status))
    return status ? status : nsai_fail(NSA_E_RANKS, "rank 0 made no communicator");
  b->r.comm = t->comms[b->r.rank];
  return NSA_OK;
}

static bool lacks_memory(nsa_status status) {
  return status == NSA_E_NOMEM ||
         (status == NSA_E_CUDA && nsai_last_foreign() == NSAI_CUDA_ERROR_OUT_OF_MEMORY);
}

/* Keeps a rank's failure for rank 0 to report. */
static void note_failure(nsa_status status, const bench_rank *b) {
  if (lacks_memory(status) || (status && !bench_rank_has_pass(&b->r.p->c)))
    nsai_verify_skip(b->r.result, "%s", nsa_last_error());
  else if (status)
    nsai_verify_fail(b->r.result, "%s", nsa_last_error());
}

/* How much a rank's result tells of why there is no time: a failure more than a lack of memory, unless
 * it is that another rank has failed. */
static int weight(const nsai_verify_result *result) {
  if (result->outcome == NSAI_VERIFY_SKIPPED) return 1;
  if (result->outcome != NSAI_VERIFY_FAILED) return 0;
  return strstr(result->text, BENCH_RANK_OTHER) ? 2 : 3;
}

/* The result that tells most; NULL: there is a time. */
static const nsai_verify_result *find_reason(const chk_shared *shared) {
  const nsai_verify_result *found = &shared->result[0];
  for (int32_t i = 1; i < shared->size; i++)
    if (weight(&shared->result[i]) > weight(found)) found = &shared->result[i];
  return weight(found) ? found : NULL;
}

static void report(task *t, const case_pass *pass, const bench_rank *b, const chk_times *times) {
  const nsai_verify_result *reason = find_reason(t->shared);
  line l = { .pass = pass,
             .device = b->r.device->name,
             .times = *times,
             .workspace = b->r.plan.caps.workspace_bytes,
             .note = reason ? reason->text : NULL };
  if (t->shared->size == 1 && !reason) t->one[pass->at] = *times;
  l.one = t->one[pass->at];
  if (t->shared->size > 1 && b->r.shard && model_of(t, pass, b->r.shard, &l.model_ms))
    l.model_ms = 0;
  t->shared->outcomes[reason ? reason->outcome : NSAI_VERIFY_PASSED]++;
  print_line(t, &l);
  fflush(t->out);
  if (!t->csv) return;
  write_line(t, &l);
  fflush(t->csv);
}

/* Steps up to the runs, after each of which the ranks tell each other how they are: what one has no
 * memory for, all leave out. Behind them a failure ends the list, because ranks may then wait. */
static nsa_status prepare(task *t, bench_rank *b, bool *all_well) {
  nsa_status status = bench_check_cost(b->r.plans, &b->r.p->c);
  if (!status) status = bench_rank_prepare(b);
  note_failure(status, b);
  *all_well = bench_rank_all_well(b, status);
  if (!*all_well) return status;
  status = connect_ranks(t, b);
  note_failure(status, b);
  *all_well = bench_rank_all_well(b, status);
  return status;
}

static void time_run(task *t, int32_t rank, chk_plans *plans, const case_pass *pass) {
  static const chk_rank_options options = { 1, TIMEOUT_MS, NULL, false };
  chk_ranks_problem p = { .ranks = t->shared->size, .layout = NSA_SHARD_ZIGZAG, .c = *pass->c };
  chk_times times = { 0, 0 };
  bool all_well;
  nsai_verify_result *result = &t->shared->result[rank];
  *result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  p.c.kind = pass->part == BENCH_FORWARD ? NSAI_VERIFY_FORWARD : NSAI_VERIFY_BACKWARD;
  p.c.saved = pass->part == BENCH_BACKWARD_SAVED ? 2 : 0;
  bench_rank b = { .r = { .rank = rank,
                          .options = &options,
                          .p = &p,
                          .shared = t->shared,
                          .plans = plans,
                          .device = chk_plans_device(plans),
                          .result = result } };
  nsa_status status = prepare(t, &b, &all_well);
  if (all_well) {
    status = bench_rank_begin(&b);
    if (!status) status = bench_rank_time(&b, &times);
    if (status) nsai_verify_fail(result, "%s", nsa_last_error());
    if (status) atomic_store(&t->shared->broken, 1);
  }
  if (!rank) report(t, pass, &b, &times);
  bench_rank_release(&b);
}

static void live(void *user, int32_t rank) {
  task *t = user;
  chk_plans *plans = t->plans;
  chk_plans_options options = t->options->plans;
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
  for (int64_t i = 0; go && i < t->list->count * t->part_count; i++) {
    const case_pass pass = { &t->list->cases[i / t->part_count], t->parts[i % t->part_count], i };
    time_run(t, rank, plans, &pass);
    go = chk_shared_meet(shared, rank);
  }
  shared->passed[rank] = go;
  if (!t->plans) chk_plans_destroy(plans);
}

/* ---- ranks that are threads ------------------------------------------------------------------ */

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
  chk_plans_options options = t->options->plans;
  options.threads = options.threads > t->shared->size ? options.threads / t->shared->size : 1;
  NSAI_TRY(chk_plans_create(&options, &t->plans));
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

/* ---- the list -------------------------------------------------------------------------------- */

nsa_status bench_ranks_add(bench_cases *list, int64_t tokens, const char *filter) {
  bench_cases builtin = { 0 };
  nsa_status status;
  NSAI_TRY_TO(done, bench_cases_parse(&builtin, bench_problem_text, "problems.txt", NULL));
  for (int correlated = 0; correlated < 2; correlated++) {
    char text[NSAI_VERIFY_CASE_TEXT];
    nsai_verify_case c = builtin.cases[0];
    c.q_len[0] = c.kv_len[0] = tokens;
    c.fill = correlated ? NSAI_VERIFY_FILL_CORRELATED : NSAI_VERIFY_FILL_RANDOM;
    c.overlap = correlated;
    nsai_verify_case_print(&c, text, sizeof text);
    NSAI_TRY_TO(done, bench_cases_add(list, text, filter));
  }
done:
  bench_cases_free(&builtin);
  return status;
}

/* The list over so many ranks. */
static nsa_status run_list(task *t, int32_t ranks, int64_t *failed) {
  const bool threads = t->options->plans.device == NSAI_VERIFY_DEVICE_CPU;
  NSAI_TRY(chk_shared_create(ranks, &t->shared));
  nsa_status status =
      threads ? run_threads(t) : chk_fork_ranks(t->shared, live, t, -1, LIST_SECONDS);
  const long long *outcomes = t->shared->outcomes;
  if (!status)
    *failed += t->list->count * t->part_count - outcomes[NSAI_VERIFY_PASSED] -
               outcomes[NSAI_VERIFY_SKIPPED];
  for (int32_t i = 0; !status && i < ranks; i++)
    if (t->shared->result[i].outcome == NSAI_VERIFY_FAILED)
      fprintf(stderr, "nsa-bench: rank %d of %d: %s\n", i, ranks, t->shared->result[i].text);
  chk_shared_destroy(t->shared);
  t->shared = NULL;
  return status;
}

nsa_status bench_ranks(const bench_ranks_options *options, const bench_cases *list, FILE *out,
                       FILE *csv, int64_t *failed) {
  task t = { .options = options,
             .list = list,
             .parts = options->backward ? backward_parts : forward_parts,
             .part_count = options->backward ? 2 : 1,
             .out = out,
             .csv = csv };
  const size_t bytes = (size_t)(list->count * t.part_count) * sizeof *t.one;
  nsa_status status = NSA_OK;
  t.one = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (t.one == MAP_FAILED) return nsai_fail_nomem("times of one GPU", bytes);
  for (int32_t ranks = 1; !status && ranks <= NSA_MAX_RANKS; ranks++)
    if (ranks == 1 || options->with[ranks]) status = run_list(&t, ranks, failed);
  munmap(t.one, bytes);
  return status;
}
