/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks.h"

#include "csv.h"
#include "measure.h"
#include "ranks_cell.h"
#include "ranks_model.h"
#include "ranks_rank.h"
#include "ranks_team.h"
#include "run/ranks.h"

#include <stdlib.h>
#include <string.h>

/* A rank may launch runs of many seconds back to back, and the oldest must not seem lost. */
#define TIMEOUT_MS 240000

/* The passes over one problem; names are as in other results. */
static const bench_part forward_parts[] = { BENCH_FORWARD };
static const bench_part backward_parts[] = { BENCH_BACKWARD, BENCH_BACKWARD_SAVED };

typedef struct task {
  const bench_ranks_options *options;
  const bench_cases *list;
  const bench_part *parts;
  int part_count;
  bench_ranks_times *one; /* [list, parts], of one GPU */
  char *one_device;       /* the kind of GPU that they are of, where a file has them; else NULL */
  bench_team team;
} task;

/* A problem of the list, and a pass over it. */
typedef struct case_pass {
  const nsai_verify_case *c;
  bench_part part;
  int64_t at; /* in task.one */
} case_pass;

/* Whose times are bench_ranks_times.ms. */
enum { BURST, SUSTAINED };

/* A result, as it is reported. */
typedef struct line {
  const case_pass *pass;
  const char *device;
  bench_ranks_times times, one;
  double model_ms; /* 0: there is none */
  uint64_t workspace;
  int32_t overlap_sms; /* 0: no SMs are left free */
  uint64_t copy_bytes; /* that the run needs of the room; 0: the transport moves K and V */
  const char *note;    /* NULL: there are times */
} line;

/* ---- reports --------------------------------------------------------------------------------- */

void bench_ranks_csv_header(FILE *out) {
  fputs("date,commit,device,problem,part,ranks,burst_ms,sustained_ms,burst_ratio,sustained_ratio,"
        "model_ms,model_percent,workspace,overlap_sms,copy_bytes,note\n",
        out);
}

static void print_line(const task *t, const line *l) {
  fprintf(t->team.out, "%-10s %9lld tokens %-10s %2d ranks ", bench_part_names[l->pass->part],
          (long long)nsai_verify_total(l->pass->c->q_len, l->pass->c->num_seqs),
          nsai_verify_fill_name(l->pass->c->fill), t->team.shared->size);
  if (l->note) {
    fprintf(t->team.out, "%s\n", l->note);
    return;
  }
  fprintf(t->team.out, "%9.4g ms %9.4g sustained", l->times.ms[BURST], l->times.ms[SUSTAINED]);
  bench_ranks_print_ratios(&t->team, &l->times, &l->one);
  if (l->model_ms > 0)
    fprintf(t->team.out, "  model %9.4g ms %+.1f %%", l->model_ms,
            100 * (l->times.ms[BURST] / l->model_ms - 1));
  if (l->overlap_sms) fprintf(t->team.out, "  overlaps, %d SMs", l->overlap_sms);
  if (l->copy_bytes)
    fprintf(t->team.out, "  copies, %llu bytes", (unsigned long long)l->copy_bytes);
  fputc('\n', t->team.out);
}

static void write_line(const task *t, const line *l) {
  static const bench_ranks_times none = { 0 };
  const bench_ranks_times *times = l->note ? &none : &l->times;
  bench_csv_begin(t->team.csv, t->options->commit ? t->options->commit : "", l->device, l->pass->c);
  fprintf(t->team.csv, ",%s,%d", bench_part_names[l->pass->part], t->team.shared->size);
  bench_ranks_write_times(&t->team, times, &l->one);
  bench_csv_known(t->team.csv, 5, l->model_ms);
  fputc(',', t->team.csv);
  if (l->model_ms > 0 && times->ms[BURST] > 0)
    fprintf(t->team.csv, "%.1f", 100 * (times->ms[BURST] / l->model_ms - 1));
  fprintf(t->team.csv, ",%llu,%d,%llu,", (unsigned long long)l->workspace, l->overlap_sms,
          (unsigned long long)l->copy_bytes);
  if (l->note) bench_csv_quoted(t->team.csv, l->note);
  fputc('\n', t->team.csv);
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
                         t->one[i * t->part_count + pass->at % t->part_count].ms[BURST] };
  }
  const double tokens = (double)nsai_verify_total(pass->c->q_len, pass->c->num_seqs);
  const double one = bench_one_gpu_ms(measured, count, tokens);
  free(measured);
  NSAI_TRY(bench_ranks_count(&pass->c->model, shard, &work));
  *ms = bench_ranks_model_ms(&pass->c->model, &work, pass->part != BENCH_FORWARD, true, one);
  return NSA_OK;
}

/* ---- times of one GPU from a file ------------------------------------------------------------ */

enum { DEVICE, PROBLEM, PART, BURST_MS, SUSTAINED_MS, RANKS, COLUMNS };
static const char *const columns[] = { "device",   "problem",      "part",
                                       "burst_ms", "sustained_ms", "ranks" };

/* The run of the list that a line is of; -1: none. */
static int64_t find_run(const task *t, const char *problem, const char *part) {
  char text[NSAI_VERIFY_CASE_TEXT];
  for (int64_t i = 0; i < t->list->count; i++) {
    nsai_verify_case_print(&t->list->cases[i], text, sizeof text);
    for (int k = 0; k < t->part_count && !strcmp(problem, text); k++)
      if (!strcmp(part, bench_part_names[t->parts[k]])) return i * t->part_count + k;
  }
  return -1;
}

/* Keeps the times of a line if it is of one GPU; of a run that was timed again the last one counts. */
static nsa_status read_one(void *user, char *const *value) {
  task *t = user;
  double ms[2];
  const int64_t at = find_run(t, value[PROBLEM], value[PART]);
  if (at < 0 || (*value[RANKS] && strcmp(value[RANKS], "1"))) return NSA_OK;
  NSAI_TRY(bench_csv_number(columns[BURST_MS], value[BURST_MS], &ms[BURST]));
  NSAI_TRY(bench_csv_number(columns[SUSTAINED_MS], value[SUSTAINED_MS], &ms[SUSTAINED]));
  if (!(ms[BURST] > 0)) return NSA_OK;
  if (t->one_device && strcmp(t->one_device, value[DEVICE]))
    return nsai_fail(NSA_E_ARG, "times of %s, and above of %s: keep those of one kind of GPU",
                     value[DEVICE], t->one_device);
  if (!t->one_device && !(t->one_device = strdup(value[DEVICE])))
    return nsai_fail_nomem("a device's name", strlen(value[DEVICE]));
  t->one[at].ms[BURST] = ms[BURST];
  t->one[at].ms[SUSTAINED] = ms[SUSTAINED];
  return NSA_OK;
}

static nsa_status read_one_gpu(task *t, const char *path) {
  const bench_csv_columns known = { columns, COLUMNS, RANKS };
  NSAI_TRY(bench_csv_read(path, &known, read_one, t));
  if (!t->one_device)
    return nsai_fail(NSA_E_ARG,
                     "%s has no time of one GPU for any of these problems: leave out --one-gpu, or "
                     "time them first with --ranks 1 --csv %s",
                     path, path);
  for (int64_t at = 0; at < t->list->count * t->part_count; at++) {
    char text[NSAI_VERIFY_CASE_TEXT];
    if (t->one[at].ms[BURST] > 0) continue;
    nsai_verify_case_print(&t->list->cases[at / t->part_count], text, sizeof text);
    fprintf(stderr, "nsa-bench: %s has no time of one GPU for %s of %s: its lines have no ratio\n",
            path, bench_part_names[t->parts[at % t->part_count]], text);
  }
  t->team.without_one = true;
  return NSA_OK;
}

/* Times of two kinds of GPUs give no speedup. */
static nsa_status check_device(const task *t, const nsai_verify_device *device) {
  if (!t->one_device || !strcmp(t->one_device, device->name)) return NSA_OK;
  return nsai_fail(NSA_E_ARG, "%s has times of %s, and this is %s: leave out --one-gpu",
                   t->options->one_gpu, t->one_device, device->name);
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* Keeps a rank's failure for rank 0 to report. */
static void note_failure(nsa_status status, const bench_rank *b) {
  if (bench_team_lacks_memory(status) || (status && !bench_rank_has_pass(&b->r.p->c)))
    nsai_verify_skip(b->r.result, "%s", nsa_last_error());
  else if (status)
    nsai_verify_fail(b->r.result, "%s", nsa_last_error());
}

static void report(task *t, const case_pass *pass, const bench_rank *b, const chk_times *times) {
  const nsai_verify_result *reason = bench_team_reason(t->team.shared);
  line l = { .pass = pass,
             .device = b->r.device->name,
             .times = { .ms = { times->burst_ms, times->sustained_ms } },
             .workspace = b->r.plan.caps.workspace_bytes,
             .note = reason ? reason->text : NULL };
  if (b->r.comm && b->r.shard && nsai_ranks_overlap(b->r.comm, b->r.plan.plan, b->r.shard))
    l.overlap_sms = t->options->overlap_sms;
  const nsa_plan *plan = b->r.plan.plan;
  const uint64_t bytes = plan ? nsai_ranks_room_bytes(&plan->problem, &plan->workspace) : 0;
  if (b->r.comm && nsai_comm_room(b->r.comm, bytes)) l.copy_bytes = bytes;
  if (t->team.shared->size == 1 && !reason) t->one[pass->at] = l.times;
  l.one = t->one[pass->at];
  if (t->team.shared->size > 1 && b->r.shard && model_of(t, pass, b->r.shard, &l.model_ms))
    l.model_ms = 0;
  t->team.shared->outcomes[reason ? reason->outcome : NSAI_VERIFY_PASSED]++;
  print_line(t, &l);
  if (t->team.csv) write_line(t, &l);
}

/* Steps up to the runs, after each of which the ranks tell each other how they are: all leave out a run
 * for which one has too little memory. Behind them a failure ends the list, because ranks may then
 * wait. */
static nsa_status prepare(task *t, bench_rank *b, bool *all_well) {
  nsa_status status = check_device(t, b->r.device);
  if (!status) status = bench_check_cost(b->r.plans, &b->r.p->c);
  if (!status) status = bench_rank_prepare(b);
  note_failure(status, b);
  *all_well = chk_shared_all_well(b->r.shared, b->r.rank, status);
  if (!*all_well) return status;
  const nsa_comm_options options = { .struct_size = sizeof options,
                                     .timeout_ms = TIMEOUT_MS,
                                     .overlap_sms = t->options->overlap_sms,
                                     .copy_bytes = t->options->copy_bytes };
  status = bench_team_connect(&t->team, b->r.rank, b->r.plan.ctx, &options, &b->r.comm);
  note_failure(status, b);
  *all_well = chk_shared_all_well(b->r.shared, b->r.rank, status);
  return status;
}

/* A run of the list, on one rank. */
static void time_run(void *user, int32_t rank, chk_plans *plans, int64_t at) {
  static const chk_rank_options options = { 1, TIMEOUT_MS, NULL, false };
  task *t = user;
  const case_pass pass = { &t->list->cases[at / t->part_count], t->parts[at % t->part_count], at };
  chk_ranks_problem p = { .ranks = t->team.shared->size, .layout = NSA_SHARD_ZIGZAG, .c = *pass.c };
  chk_times times = { 0, 0 };
  bool all_well;
  nsai_verify_result *result = &t->team.shared->result[rank];
  *result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  p.c.kind = pass.part == BENCH_FORWARD ? NSAI_VERIFY_FORWARD : NSAI_VERIFY_BACKWARD;
  p.c.saved = pass.part == BENCH_BACKWARD_SAVED ? 2 : 0;
  bench_rank b = { .r = { .rank = rank,
                          .options = &options,
                          .p = &p,
                          .shared = t->team.shared,
                          .plans = plans,
                          .device = chk_plans_device(plans),
                          .result = result } };
  nsa_status status = prepare(t, &b, &all_well);
  if (all_well) {
    status = bench_rank_begin(&b);
    if (!status) status = bench_rank_time(&b, &times);
    if (status) nsai_verify_fail(result, "%s", nsa_last_error());
    if (status) atomic_store(&t->team.shared->broken, 1);
  }
  if (!rank) report(t, &pass, &b, &times);
  bench_rank_release(&b);
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

nsa_status bench_ranks(const bench_ranks_options *options, const bench_cases *list, FILE *out,
                       FILE *csv, int64_t *failed) {
  task t = { .options = options,
             .list = list,
             .parts = options->backward ? backward_parts : forward_parts,
             .part_count = options->backward ? 2 : 1 };
  const size_t count = (size_t)(list->count * t.part_count);
  t.team = (bench_team){ .options = options->plans,
                         .count = (int64_t)count,
                         .run = time_run,
                         .user = &t,
                         .out = out,
                         .csv = csv };
  NSAI_TRY(bench_ranks_times_create(count, &t.one));
  nsa_status status = options->one_gpu ? read_one_gpu(&t, options->one_gpu) : NSA_OK;
  if (!status) status = bench_team_run(&t.team, options->with, failed);
  free(t.one_device);
  bench_ranks_times_destroy(t.one, count);
  return status;
}
