/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "decode/ranks.h"

#include "csv.h"
#include "decode/reads.h"
#include "plan/plan.h"
#include "ranks_cell.h"
#include "verify/cache_tensors.h"

#include <sys/mman.h>

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
  bench_ranks_cell cell; /* first: bench_ranks_cell_meet gets it */
  task *t;
  int64_t number; /* of the cell */
  int64_t context, batch;
  nsai_trial_plan fill, append, decode;
  int32_t unit_tokens;
  nsai_verify_cache caches;
  step_times us;
} cell_run;

static int32_t size_of(const cell_run *r) { return r->t->team.shared->size; }

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
  FILE *out = r->t->team.out;
  fprintf(out, "decode %8lld tokens batch %4lld %2d ranks ", (long long)r->context,
          (long long)r->batch, size_of(r));
  if (note) {
    fprintf(out, "%s\n", note);
    return;
  }
  fprintf(out, "%9.4g us %9.4g with append", us->total_us, us->append_us);
  if (size_of(r) > 1 && one->total_us > 0)
    fprintf(out, "  %5.2f x %5.2f x", bench_team_ratio(one->total_us, us->total_us),
            bench_team_ratio(one->append_us, us->append_us));
  bench_ranks_cell_end_line(&r->cell, gather_bytes(r), us->gather_us);
}

static void write_line(const cell_run *r, const step_times *us, const step_times *one,
                       const char *note) {
  const bench_decode_options *o = &r->t->o->decode;
  FILE *csv = r->t->team.csv;
  bench_csv_begin(csv, r->t->o->commit, chk_plans_device(r->cell.plans)->name, &o->c);
  fprintf(csv, ",%d,%d,%lld,%lld,%d,%d,%s,%s,%lld", size_of(r), r->unit_tokens,
          (long long)r->context, (long long)r->batch, o->q_len, o->page_size,
          bench_cached_dtype_name(o->dtypes.kv), bench_cached_dtype_name(o->dtypes.cmp),
          (long long)r->caches.options.copies);
  bench_csv_known(csv, 5, us->total_us * 1e-3);
  bench_csv_known(csv, 5, us->append_us * 1e-3);
  bench_csv_known(csv, 4, bench_team_ratio(one->total_us, us->total_us));
  bench_csv_known(csv, 4, bench_team_ratio(one->append_us, us->append_us));
  bench_ranks_cell_end_csv(&r->cell, gather_bytes(r), us->gather_us, note);
}

static void report(void *user, const char *note) {
  static const step_times none = { 0 };
  const cell_run *r = user;
  step_times *one = &r->t->one[r->number];
  if (size_of(r) == 1 && !note) *one = r->us;
  print_line(r, &r->us, one, note);
  if (r->t->team.csv) write_line(r, note ? &none : &r->us, one, note);
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* `fill`: of the appends that fill the cache of one sequence. */
static nsa_status make_plan(cell_run *r, int32_t op, bool fill, nsai_trial_plan *out) {
  const bench_decode_options *o = &r->t->o->decode;
  const int64_t prompt = size_of(r) > 1 ? NSAI_VERIFY_CACHE_RANKS_PROMPT : r->context;
  nsa_problem p = bench_decode_problem(op, o, r->context, r->batch, fill);
  if (fill && prompt < r->context) p.max_tokens = prompt;
  if (size_of(r) > 1) p.ranks = size_of(r);
  return chk_plans_get_problem(r->cell.plans, &o->c, &p, out);
}

static nsa_status make_caches(cell_run *r) {
  const bench_decode_options *o = &r->t->o->decode;
  const nsai_verify_device *device = chk_plans_device(r->cell.plans);
  bench_decode_cell cell = {
    .context = r->context, .batch = r->batch, .q_len = o->q_len, .dtypes = o->dtypes
  };
  bench_decode_expect(&o->c.model, &cell, NULL, &cell.expected);
  const nsai_verify_cache_options options = {
    .model = &o->c.model,
    .fill = o->c.fill,
    .seed = o->c.seed,
    .threads = chk_plans_opts(r->cell.plans)->threads,
    .context = r->context,
    .batch = r->batch,
    .q_len = o->q_len,
    .page_size = o->page_size,
    .kv_dtype = o->dtypes.kv,
    .cmp_dtype = o->dtypes.cmp,
    /* Each rank reads a part of the selected blocks, and everything else. */
    .copies =
        device->driver ? nsai_verify_cache_copies((double)cell.expected.bytes / size_of(r)) : 1,
    .ranks = r->unit_tokens ? size_of(r) : 0,
    .rank = r->cell.rank,
    .unit_tokens = r->unit_tokens
  };
  return nsai_verify_cache_create(device, &options, r->fill.plan, &r->caches);
}

static nsa_status prepare(void *user) {
  cell_run *r = user;
  NSAI_TRY(make_plan(r, NSA_OP_APPEND, true, &r->fill));
  NSAI_TRY(make_plan(r, NSA_OP_APPEND, false, &r->append));
  NSAI_TRY(make_plan(r, NSA_OP_DECODE, false, &r->decode));
  r->unit_tokens = r->decode.plan->problem.unit_tokens;
  NSAI_TRY(make_caches(r));
  const uint64_t append = r->append.caps.workspace_bytes, decode = r->decode.caps.workspace_bytes;
  return nsai_verify_cache_workspace(&r->caches, append > decode ? append : decode);
}

/* All ranks have the same plan. */
static nsa_status connect_ranks(void *user) {
  cell_run *r = user;
  const nsa_plan *decode = r->decode.plan;
  return bench_ranks_cell_connect(&r->cell,
                                  &(bench_ranks_terms){ .ctx = r->decode.ctx,
                                                        .plans = &decode,
                                                        .plan_count = 1,
                                                        .message_bytes = gather_bytes(r) });
}

static nsa_status time_steps(cell_run *r) {
  chk_shared *shared = r->t->team.shared;
  bench_decode_steps s = { .caches = &r->caches,
                           .decode = r->decode.plan,
                           .exec = NSA_EXEC_INIT,
                           .captures = true, /* a GPU's ranks have NCCL */
                           .meet = bench_ranks_cell_meet,
                           .user = &r->cell };
  s.exec.workspace = r->caches.workspace;
  s.exec.workspace_bytes = r->caches.workspace_bytes;
  s.exec.stream = (nsa_stream)chk_plans_device(r->cell.plans)->stream;
  s.exec.comm = r->cell.comm;
  NSAI_TRY(bench_decode_time(&s, &r->us.total_us));
  s.append = r->append.plan;
  NSAI_TRY(bench_decode_time(&s, &r->us.append_us));
  NSAI_TRY(bench_team_largest(shared, r->cell.rank, r->us.total_us, &r->us.total_us));
  return bench_team_largest(shared, r->cell.rank, r->us.append_us, &r->us.append_us);
}

#define GATHERS 100 /* in one graph, as many as a graph of steps may have */

static nsa_status measure(void *user) {
  cell_run *r = user;
  const int64_t bytes = gather_bytes(r);
  r->us = (step_times){ 0 };
  NSAI_TRY(time_steps(r));
  return bench_ranks_cell_gather(&r->cell,
                                 &(bench_ranks_gathers){ .bytes = &bytes,
                                                         .count = 1,
                                                         .repeats = GATHERS,
                                                         .memory = r->caches.workspace,
                                                         .memory_bytes =
                                                             r->caches.workspace_bytes },
                                 &r->us.gather_us);
}

/* A cell on one rank. */
static void run(void *user, int32_t rank, chk_plans *plans, int64_t number) {
  task *t = user;
  const bench_decode_options *o = &t->o->decode;
  cell_run r = { .cell = { .team = &t->team, .rank = rank, .plans = plans },
                 .t = t,
                 .number = number,
                 .context = o->contexts[number / o->batch_count],
                 .batch = o->batches[number % o->batch_count] };
  const bench_ranks_steps steps = { prepare, connect_ranks, measure, report, &r };
  bench_ranks_cell_run(&r.cell, &steps, t->o->peer_bytes);
  nsai_verify_cache_destroy(&r.caches);
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
