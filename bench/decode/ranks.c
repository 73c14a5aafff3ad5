/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "decode/ranks.h"

#include "csv.h"
#include "decode/reads.h"
#include "plan/plan.h"
#include "verify/cache_tensors.h"

enum { TOTAL, APPEND }; /* times of a step: nsa_decode; nsa_kv_append before it, too */

typedef struct task {
  const bench_ranks_cells *cells;
  const bench_decode_options *o;
  bench_ranks_times *one; /* [cells] */
  bench_team team;
} task;

/* One rank's part of a cell. */
typedef struct cell_run {
  bench_ranks_cell cell; /* first: bench_ranks_cell_meet gets it */
  task *t;
  int64_t context, batch;
  nsai_trial_plan fill, append, decode;
  int32_t unit_tokens;
  nsai_verify_cache caches;
} cell_run;

static int32_t size_of(const cell_run *r) { return r->t->team.shared->size; }

/* What a rank sends to every other in a step: an output, its reference and its sum a head. */
static int64_t gather_bytes(const cell_run *r) {
  const bench_decode_options *o = r->t->o;
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

static void print(void *user, bool timed) {
  const cell_run *r = user;
  const bench_ranks_times *times = &r->cell.times;
  FILE *out = r->t->team.out;
  fprintf(out, "decode %8lld tokens batch %4lld %2d ranks ", (long long)r->context,
          (long long)r->batch, size_of(r));
  if (timed)
    fprintf(out, "%9.4g us %9.4g with append", 1e3 * times->ms[TOTAL], 1e3 * times->ms[APPEND]);
}

static void write_columns(void *user) {
  const cell_run *r = user;
  const bench_decode_options *o = r->t->o;
  FILE *csv = r->t->team.csv;
  bench_csv_begin(csv, r->t->cells->commit, chk_plans_device(r->cell.plans)->name, &o->c);
  fprintf(csv, ",%d,%d,%lld,%lld,%d,%d,%s,%s,%lld", size_of(r), r->unit_tokens,
          (long long)r->context, (long long)r->batch, o->q_len, o->page_size,
          bench_cached_dtype_name(o->dtypes.kv), bench_cached_dtype_name(o->dtypes.cmp),
          (long long)r->caches.options.copies);
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* `fill`: of the appends that fill the cache of one sequence. */
static nsa_status make_plan(cell_run *r, int32_t op, bool fill, nsai_trial_plan *out) {
  const bench_decode_options *o = r->t->o;
  const int64_t prompt = size_of(r) > 1 ? NSAI_VERIFY_CACHE_RANKS_PROMPT : r->context;
  nsa_problem p = bench_decode_problem(op, o, r->context, r->batch, fill);
  if (fill && prompt < r->context) p.max_tokens = prompt;
  if (size_of(r) > 1) p.ranks = size_of(r);
  return chk_plans_get_problem(r->cell.plans, &o->c, &p, out);
}

static nsa_status make_caches(cell_run *r) {
  const bench_decode_options *o = r->t->o;
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
  double us;
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
  NSAI_TRY(bench_decode_time(&s, &us));
  NSAI_TRY(bench_ranks_cell_set_time(&r->cell, TOTAL, us * 1e-3));
  s.append = r->append.plan;
  NSAI_TRY(bench_decode_time(&s, &us));
  return bench_ranks_cell_set_time(&r->cell, APPEND, us * 1e-3);
}

#define GATHERS 100 /* in one graph, as many as a graph of steps may have */

static nsa_status measure(void *user) {
  cell_run *r = user;
  const int64_t bytes = gather_bytes(r);
  NSAI_TRY(time_steps(r));
  return bench_ranks_cell_gather(&r->cell, &(bench_ranks_gathers){ .bytes = &bytes,
                                                                   .count = 1,
                                                                   .repeats = GATHERS,
                                                                   .memory = r->caches.workspace,
                                                                   .memory_bytes =
                                                                       r->caches.workspace_bytes });
}

/* A cell on one rank. */
static void run(void *user, int32_t rank, chk_plans *plans, int64_t number) {
  task *t = user;
  const bench_decode_options *o = t->o;
  cell_run r = { .cell = { .team = &t->team, .rank = rank, .plans = plans, .one = &t->one[number] },
                 .t = t,
                 .context = o->contexts[number / o->batch_count],
                 .batch = o->batches[number % o->batch_count] };
  const bench_ranks_steps steps = { prepare, connect_ranks, measure, print, write_columns, &r };
  bench_ranks_cell_run(&r.cell, &steps, t->cells->peer_bytes);
  nsai_verify_cache_destroy(&r.caches);
}

/* ---- all ranks ------------------------------------------------------------------------------- */

nsa_status bench_decode_ranks(const bench_ranks_cells *cells, const bench_decode_options *o,
                              FILE *out, FILE *csv, int64_t *failed) {
  const size_t count = (size_t)o->context_count * (size_t)o->batch_count;
  task t = { .cells = cells, .o = o };
  t.team = (bench_team){
    .options = cells->plans, .count = (int64_t)count, .run = run, .user = &t, .out = out, .csv = csv
  };
  NSAI_TRY(bench_cached_check("decode", &o->c.model));
  NSAI_TRY(bench_ranks_times_create(count, &t.one));
  nsa_status status = bench_team_run(&t.team, cells->with, failed);
  bench_ranks_times_destroy(t.one, count);
  return status;
}
