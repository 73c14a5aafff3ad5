/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks.h"

#include "csv.h"
#include "ranks/fork.h"
#include "ranks/rank.h"
#include "time_launch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BURSTS 7
#define SUSTAINED_MS 300.0
#define LEAST_LAUNCHES 9
#define MOST_LAUNCHES 3000
#define TIMEOUT_MS 60000
#define LIST_SECONDS 3600.0

/* What a rank leaves for the others in its part of shared memory. */
enum { ONE_BURST, ONE_SUSTAINED, OVER_BURST, OVER_SUSTAINED, FIGURES };

typedef struct task {
  const bench_ranks_options *options;
  const bench_cases *list;
  chk_shared *shared;
  FILE *out, *csv;
} task;

/* ---- reports --------------------------------------------------------------------------------- */

void bench_ranks_csv_header(FILE *out) {
  fputs("date,commit,device,problem,part,ranks,burst_ms,sustained_ms,burst_ratio,sustained_ratio,"
        "workspace,note\n",
        out);
}

static const char *part_of(const task *t) { return t->options->backward ? "backward" : "forward"; }

/* Rank 0 writes a line; `note` NULL: there are times. */
static void report(const task *t, const nsai_verify_case *c, const char *device,
                   const double figure[FIGURES], uint64_t workspace, const char *note) {
  const int32_t ranks = t->shared->size;
  fprintf(t->out, "%-8s %9lld tokens %-10s %2d ranks ", part_of(t),
          (long long)nsai_verify_total(c->q_len, c->num_seqs), nsai_verify_fill_name(c->fill),
          ranks);
  if (note)
    fprintf(t->out, "%s\n", note);
  else
    fprintf(t->out, "%9.4g ms %9.4g sustained  %5.2f x %5.2f x\n", figure[OVER_BURST],
            figure[OVER_SUSTAINED], figure[ONE_BURST] / figure[OVER_BURST],
            figure[ONE_SUSTAINED] / figure[OVER_SUSTAINED]);
  fflush(t->out);
  if (!t->csv) return;
  bench_csv_begin(t->csv, t->options->commit ? t->options->commit : "", device, c);
  fprintf(t->csv, ",%s,%d", part_of(t), ranks);
  bench_csv_known(t->csv, 5, note ? 0 : figure[OVER_BURST]);
  bench_csv_known(t->csv, 5, note ? 0 : figure[OVER_SUSTAINED]);
  bench_csv_known(t->csv, 4, note ? 0 : figure[ONE_BURST] / figure[OVER_BURST]);
  bench_csv_known(t->csv, 4, note ? 0 : figure[ONE_SUSTAINED] / figure[OVER_SUSTAINED]);
  fprintf(t->csv, ",%llu,", (unsigned long long)workspace);
  if (note) bench_csv_quoted(t->csv, note);
  fputc('\n', t->csv);
  fflush(t->csv);
}

/* ---- one rank -------------------------------------------------------------------------------- */

static nsa_status meet(const chk_rank *r) {
  return chk_shared_meet_now(r->shared, r->rank)
             ? NSA_OK
             : nsai_fail(NSA_E_RANKS, "another rank has failed");
}

/* The largest of a figure, over the ranks. Every rank calls it. */
static nsa_status slowest(const chk_rank *r, int at, double mine, double *out) {
  r->shared->partials[r->rank][at] = (float)mine;
  NSAI_TRY(meet(r));
  *out = 0;
  for (int32_t i = 0; i < r->shared->size; i++)
    *out = fmax(*out, (double)r->shared->partials[i][at]);
  return meet(r);
}

static nsa_status launch(const chk_rank *r, nsai_verify_timer *timer) {
  NSAI_TRY(nsai_verify_timer_start(r->device, timer));
  NSAI_TRY(chk_rank_enqueue(r));
  return nsai_verify_timer_stop(r->device, timer);
}

/* One launch on all ranks after a flush of the L2 and a pause. */
static nsa_status burst(const chk_rank *r, void *flush, nsai_verify_timer *timer, double *ms) {
  NSAI_TRY(nsai_verify_device_set(r->device, flush, 0, NSAI_VERIFY_FLUSH_BYTES));
  NSAI_TRY(nsai_verify_device_wait(r->device, NULL));
  chk_pause(r->device);
  NSAI_TRY(meet(r));
  NSAI_TRY(launch(r, timer));
  NSAI_TRY(nsa_comm_wait(r->comm, r->device->stream, 0));
  NSAI_TRY(nsai_verify_timer_read(r->device, timer, ms));
  return slowest(r, FIGURES, *ms, ms);
}

static nsa_status sustained(const chk_rank *r, int64_t count, nsai_verify_timer *timers,
                            double *ms) {
  double values[MOST_LAUNCHES / 3 + 1];
  const int64_t kept = count / 3;
  NSAI_TRY(meet(r));
  for (int64_t i = 0; i < count; i++) NSAI_TRY(launch(r, &timers[i]));
  NSAI_TRY(nsa_comm_wait(r->comm, r->device->stream, 0));
  for (int64_t i = 0; i < kept; i++)
    NSAI_TRY(nsai_verify_timer_read(r->device, &timers[count - kept + i], &values[i]));
  *ms = chk_median(values, kept);
  return slowest(r, FIGURES, *ms, ms);
}

static nsa_status time_ranks(const chk_rank *r, void *flush, double figure[FIGURES]) {
  double values[BURSTS], first;
  nsai_verify_timer *timers = calloc(MOST_LAUNCHES, sizeof *timers);
  nsa_status status = NSA_OK;
  int64_t count = 1;
  if (!timers) return nsai_fail_nomem("timers", MOST_LAUNCHES * sizeof *timers);
  NSAI_TRY_TO(done, nsai_verify_timer_create(r->device, &timers[0]));
  /* The first launch loads kernels and is not counted. */
  NSAI_TRY_TO(done, burst(r, flush, &timers[0], &first));
  for (int i = 0; i < BURSTS; i++) NSAI_TRY_TO(done, burst(r, flush, &timers[0], &values[i]));
  figure[OVER_BURST] = chk_median(values, BURSTS);
  const int64_t wanted = (int64_t)(SUSTAINED_MS / (figure[OVER_BURST] + 1e-3));
  const int64_t launches = wanted < LEAST_LAUNCHES  ? LEAST_LAUNCHES
                           : wanted > MOST_LAUNCHES ? MOST_LAUNCHES
                                                    : wanted;
  for (; count < launches; count++)
    NSAI_TRY_TO(done, nsai_verify_timer_create(r->device, &timers[count]));
  NSAI_TRY_TO(done, sustained(r, launches, timers, &figure[OVER_SUSTAINED]));
done:
  for (int64_t i = 0; i < count; i++) nsai_verify_timer_destroy(r->device, &timers[i]);
  free(timers);
  return status;
}

/* Times one rank, on rank 0, then all. */
static nsa_status measure(const task *t, chk_rank *r, const nsai_trial_run *one, void *flush,
                          double figure[FIGURES]) {
  chk_times times = { 0, 0 };
  const nsa_plan *plan;
  if (!r->rank) NSAI_TRY(chk_time_launch(one, 0, flush, &times));
  NSAI_TRY(slowest(r, ONE_BURST, times.burst_ms, &figure[ONE_BURST]));
  NSAI_TRY(slowest(r, ONE_SUSTAINED, times.sustained_ms, &figure[ONE_SUSTAINED]));
  if (t->shared->size == 1) {
    figure[OVER_BURST] = figure[ONE_BURST];
    figure[OVER_SUSTAINED] = figure[ONE_SUSTAINED];
    return NSA_OK;
  }
  NSAI_TRY(chk_rank_nccl(r->shared, r->rank, one->plan.ctx, TIMEOUT_MS, &r->comm));
  NSAI_TRY(chk_rank_prepare(r));
  if (!t->options->backward) nsai_verify_tensors_drop_optional(&r->data);
  plan = r->plan.plan;
  NSAI_TRY(nsa_comm_agree(r->comm, &plan, 1, r->shard, 10 * TIMEOUT_MS));
  return time_ranks(r, flush, figure);
}

/* One problem on one rank. */
static void run_rank(const task *t, int32_t rank, chk_plans *plans, const nsai_verify_case *c) {
  static const chk_rank_options options = { 1, TIMEOUT_MS, NULL };
  chk_ranks_problem p = { .ranks = t->shared->size, .layout = NSA_SHARD_ZIGZAG, .c = *c };
  double figure[FIGURES] = { 0 };
  void *flush = NULL;
  chk_whole whole = { 0 };
  nsai_verify_result *result = &t->shared->result[rank];
  *result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  p.c.kind = t->options->backward ? NSAI_VERIFY_BACKWARD : NSAI_VERIFY_FORWARD;
  chk_rank r = { .rank = rank,
                 .options = &options,
                 .p = &p,
                 .shared = t->shared,
                 .plans = plans,
                 .device = chk_plans_device(plans),
                 .whole = &whole,
                 .result = result };
  nsa_status status = nsai_verify_device_alloc(r.device, NSAI_VERIFY_FLUSH_BYTES, &flush);
  if (!status) status = chk_whole_create(plans, &p, &whole);
  if (!status && !t->options->backward) nsai_verify_tensors_drop_optional(&whole.trial.data);
  if (!status) status = measure(t, &r, &whole.trial, flush, figure);
  if (status) nsai_verify_fail(result, "%s", nsa_last_error());
  if (!rank) {
    const uint64_t workspace =
        (t->shared->size > 1 ? r.plan : whole.trial.plan).caps.workspace_bytes;
    report(t, c, r.device->name, figure, workspace, status ? result->text : NULL);
    t->shared->outcomes[result->outcome]++;
  }
  /* A rank that failed alone would leave the others at their next meeting. */
  if (status) atomic_store(&t->shared->broken, 1);
  nsa_comm_destroy(r.comm);
  chk_rank_release(&r);
  chk_whole_destroy(&whole);
  nsai_verify_device_free(r.device, flush);
}

static void live(void *user, int32_t rank) {
  const task *t = user;
  chk_plans *plans = NULL;
  chk_plans_options options = t->options->plans;
  chk_shared *shared = t->shared;
  options.device = (options.device < 0 ? 0 : options.device) + rank;
  shared->status[rank] = chk_plans_create(&options, &plans);
  if (shared->status[rank])
    nsai_verify_skip(&shared->result[rank], "rank %d: %s", rank, nsa_last_error());
  bool go = chk_shared_meet(shared, rank);
  for (int32_t i = 0; i < shared->size; i++) go &= !shared->status[i];
  for (int64_t i = 0; go && i < t->list->count; i++) {
    run_rank(t, rank, plans, &t->list->cases[i]);
    go = chk_shared_meet(shared, rank);
  }
  shared->passed[rank] = go;
  chk_plans_destroy(plans);
}

/* ---- the list -------------------------------------------------------------------------------- */

nsa_status bench_ranks_add(bench_cases *list, int64_t tokens) {
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
    NSAI_TRY_TO(done, bench_cases_add(list, text, NULL));
  }
done:
  bench_cases_free(&builtin);
  return status;
}

nsa_status bench_ranks(const bench_ranks_options *options, const bench_cases *list, FILE *out,
                       FILE *csv, int64_t *failed) {
  for (int32_t ranks = 1; ranks <= NSA_MAX_RANKS; ranks++) {
    task t = { options, list, NULL, out, csv };
    if (!options->with[ranks]) continue;
    NSAI_TRY(chk_shared_create(ranks, &t.shared));
    nsa_status status = chk_fork_ranks(t.shared, live, &t, -1, LIST_SECONDS);
    if (!status) *failed += list->count - t.shared->outcomes[NSAI_VERIFY_PASSED];
    for (int32_t i = 0; !status && i < ranks; i++)
      if (t.shared->result[i].outcome == NSAI_VERIFY_FAILED)
        fprintf(stderr, "nsa-bench: rank %d of %d: %s\n", i, ranks, t.shared->result[i].text);
    chk_shared_destroy(t.shared);
    if (status) return status;
  }
  return NSA_OK;
}
