/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "prefill/ranks.h"

#include "base/math.h"
#include "csv.h"
#include "plan/plan.h"
#include "prefill/calls.h"
#include "verify/cache_tensors.h"

#include <nsa/kv_cache.h>

#include <stdlib.h>

#define MOST_PLANS 32

enum { PROMPT, LAST }; /* times: of all chunks; of the last one alone */

/* A prompt, and the tokens of its chunks. */
typedef struct prompt {
  nsai_verify_case c;
  int64_t context, chunk;
} prompt;

typedef struct task {
  const bench_ranks_cells *cells;
  const bench_prefill_options *o;
  prompt *prompts;
  bench_ranks_times *one; /* [prompts] */
  bench_team team;
} task;

/* Chunks of one length. */
typedef struct chunk {
  int64_t tokens;   /* 0: there are none */
  nsa_shard *shard; /* NULL: one GPU */
  nsa_io io;
} chunk;

/* One rank's part of a cell. */
typedef struct cell_run {
  bench_ranks_cell cell; /* first: bench_ranks_cell_meet gets it */
  task *t;
  const prompt *of;
  bench_rig rig;
  nsai_trial_plan fill, append;
  nsai_trial_plan attend[MOST_PLANS]; /* [plan_count]: for keys_of tokens */
  int plan_count;
  nsai_verify_cache caches;
  chunk full, rest; /* rest: the prompt's last tokens, where they are fewer */
  nsa_tensor ends;  /* i32: kv_len of each chunk of the prompt */
  nsa_exec exec;
} cell_run;

static const bench_prefill_options *options_of(const cell_run *r) { return r->t->o; }
static int32_t size_of(const cell_run *r) { return r->t->team.shared->size; }

/* The tokens of a sequence for which attend[i] is made. */
static int64_t keys_of(const cell_run *r, int i) {
  return nsai_smaller(r->of->chunk << i, r->of->context);
}

static const nsa_plan *last_plan(const cell_run *r) { return r->attend[r->plan_count - 1].plan; }

/* What a rank sends in the last chunk: the bytes of each tensor that travels. Returns their number. */
static int list_gathers(const cell_run *r, int64_t bytes[NSAI_RANKS_PAGED]) {
  const nsai_ranks_pages *pages = &last_plan(r)->workspace.pages;
  int count = 0;
  for (int i = 0; i < NSAI_RANKS_PAGED; i++)
    if (pages->page_bytes[i]) bytes[count++] = pages->rank_pages * pages->page_bytes[i];
  return count;
}

/* ---- reports --------------------------------------------------------------------------------- */

void bench_prefill_ranks_csv_header(FILE *out) {
  fputs("date,commit,device,problem,ranks,unit_tokens,S,chunk,page_size,kv_dtype,cmp_dtype,"
        "cache_bytes,workspace,"
        "ms_prompt,ms_last,prompt_ratio,last_ratio,gather_bytes,ms_gather,peer_bytes,note\n",
        out);
}

static void print(void *user, bool timed) {
  const cell_run *r = user;
  const bench_ranks_times *times = &r->cell.times;
  FILE *out = r->t->team.out;
  fprintf(out, "prefill %8lld tokens chunk %8lld %2d ranks ", (long long)r->of->context,
          (long long)r->of->chunk, size_of(r));
  if (timed) fprintf(out, "%9.4g ms %9.4g last chunk", times->ms[PROMPT], times->ms[LAST]);
}

/* Of the cache's tensors; 0: there is no cache. */
static int64_t cache_bytes(cell_run *r) {
  int64_t bytes = 0;
  for (int i = 0; i < NSAI_VERIFY_CACHE_TENSORS; i++) {
    const nsa_tensor *t = nsai_verify_cache_tensor(&r->caches.cache, i);
    if (t->data) bytes += (int64_t)nsai_verify_tensor_bytes(t);
  }
  return bytes;
}

static void write_columns(void *user) {
  cell_run *r = user;
  const bench_prefill_options *o = options_of(r);
  FILE *csv = r->t->team.csv;
  bench_csv_begin(csv, r->t->cells->commit, chk_plans_device(r->cell.plans)->name, &r->of->c);
  fprintf(csv, ",%d,%d,%lld,%lld,%d,%s,%s,%lld,%llu", size_of(r),
          r->plan_count ? last_plan(r)->problem.unit_tokens : 0, (long long)r->of->context,
          (long long)r->of->chunk, o->page_size, bench_cached_dtype_name(o->dtypes.kv),
          bench_cached_dtype_name(o->dtypes.cmp), (long long)cache_bytes(r),
          (unsigned long long)r->caches.workspace_bytes);
}

/* ---- plans and memory ------------------------------------------------------------------------ */

static nsa_status get_plan(cell_run *r, const nsa_problem *problem, nsai_trial_plan *out) {
  return chk_plans_get_problem(r->cell.plans, &r->of->c, problem, out);
}

/* Makes the plans of appends; `tokens`: new ones, of a chunk or of what fills the cache. */
static nsa_status make_append(cell_run *r, int64_t tokens, nsai_trial_plan *out) {
  nsa_problem p = bench_prefill_problem(NSA_OP_APPEND, options_of(r), r->of->context, tokens);
  if (size_of(r) > 1) p.ranks = size_of(r);
  return get_plan(r, &p, out);
}

static nsa_status make_shard(const cell_run *r, chunk *c) {
  nsa_shard_options o = NSA_SHARD_OPTIONS_INIT;
  if (size_of(r) == 1 || !c->tokens) return NSA_OK;
  o.ranks = size_of(r);
  o.num_seqs = 1;
  o.lengths = &c->tokens;
  return nsa_shard_create(r->append.ctx, &o, &c->shard);
}

/* Makes the plans of the attention. Those over ranks allow what a rank has of both kinds of chunks. */
static nsa_status make_attend(cell_run *r) {
  for (bool all = false; !all; r->plan_count++) {
    const int64_t keys = keys_of(r, r->plan_count);
    nsa_problem p = bench_prefill_problem(NSA_OP_PREFILL, options_of(r), keys, r->of->chunk);
    all = keys == r->of->context;
    if (r->full.shard) {
      p.ranks = size_of(r);
      p.max_tokens = nsa_shard_tokens(r->full.shard, -1);
      p.max_pieces = nsa_shard_max_pieces(r->full.shard);
    }
    if (r->rest.shard) {
      p.max_tokens = nsai_larger(p.max_tokens, nsa_shard_tokens(r->rest.shard, -1));
      p.max_pieces = (int32_t)nsai_larger(p.max_pieces, nsa_shard_max_pieces(r->rest.shard));
    }
    NSAI_TRY(get_plan(r, &p, &r->attend[r->plan_count]));
  }
  return NSA_OK;
}

static nsa_status make_caches(cell_run *r) {
  const bench_prefill_options *o = options_of(r);
  const int32_t unit_tokens = r->append.plan->problem.unit_tokens;
  const nsai_verify_cache_options options = { .model = &r->of->c.model,
                                              .fill = r->of->c.fill,
                                              .seed = r->of->c.seed,
                                              .threads = chk_plans_opts(r->cell.plans)->threads,
                                              .context = r->of->context,
                                              .batch = 1,
                                              .q_len = (int32_t)r->of->chunk,
                                              .page_size = o->page_size,
                                              .kv_dtype = o->dtypes.kv,
                                              .cmp_dtype = o->dtypes.cmp,
                                              .copies = 1, /* the clock empties the L2 */
                                              .ranks = unit_tokens ? size_of(r) : 0,
                                              .rank = r->cell.rank,
                                              .unit_tokens = unit_tokens };
  const nsai_verify_device *device = chk_plans_device(r->cell.plans);
  NSAI_TRY(nsai_verify_cache_create(device, &options, r->fill.plan, &r->caches));
  for (int i = 0; i < r->plan_count; i++)
    NSAI_TRY(nsai_verify_cache_workspace(&r->caches, r->attend[i].caps.workspace_bytes));
  NSAI_TRY(nsai_verify_cache_workspace(&r->caches, r->append.caps.workspace_bytes));
  r->exec = (nsa_exec)NSA_EXEC_INIT;
  r->exec.workspace = r->caches.workspace;
  r->exec.workspace_bytes = r->caches.workspace_bytes;
  r->exec.stream = (nsa_stream)device->stream;
  return NSA_OK;
}

static nsa_status alloc(cell_run *r, nsa_tensor *t) {
  return nsai_verify_cache_alloc(&r->caches, nsai_verify_tensor_bytes(t) + 1, &t->data);
}

/* Replaces the tensors of a rank's new tokens by the rows of its pieces. Outputs' are the first ones. */
static nsa_status take_pieces(cell_run *r, chunk *c) {
  const nsa_piece *pieces;
  int32_t count;
  NSAI_TRY(nsa_shard_pieces(c->shard, r->cell.rank, &pieces, &count));
  for (int k = 0; k < BENCH_PREFILL_LOCAL_TENSORS; k++) {
    nsa_tensor *t = bench_prefill_row_tensor(&c->io, k);
    const size_t row = bench_prefill_row_bytes(t);
    const char *from = t->data;
    size_t done = 0;
    if (!from) continue;
    t->shape[0] = nsa_shard_tokens(c->shard, r->cell.rank);
    if (t == &c->io.o) continue;
    NSAI_TRY(alloc(r, t));
    for (int32_t i = 0; i < count; i++) {
      const size_t bytes = (size_t)pieces[i].length * row;
      NSAI_TRY(nsai_verify_device_copy(r->caches.device, (char *)t->data + done,
                                       from + (size_t)pieces[i].begin * row, bytes));
      done += bytes;
    }
  }
  return NSA_OK;
}

static nsa_status make_rows(cell_run *r, chunk *c) {
  c->io = bench_prefill_take_rows(&r->caches.io, 0, c->tokens);
  return c->shard ? take_pieces(r, c) : NSA_OK;
}

static nsa_status make_ends(cell_run *r) {
  const int64_t count = nsai_ceil_div(r->of->context, r->of->chunk);
  r->ends = nsai_verify_tensor(NSA_I32, 1, &count);
  NSAI_TRY(alloc(r, &r->ends));
  return bench_prefill_set_ints(r->caches.device, &r->ends, r->of->chunk, r->of->chunk,
                                r->of->context);
}

static nsa_status prepare(void *user) {
  cell_run *r = user;
  const int64_t fill = size_of(r) > 1 ? NSAI_VERIFY_CACHE_RANKS_PROMPT : NSAI_VERIFY_CACHE_PROMPT;
  NSAI_TRY(bench_check_cost(r->cell.plans, &r->of->c));
  NSAI_TRY(bench_rig_create(r->cell.plans, &r->rig));
  NSAI_TRY(make_append(r, nsai_smaller(fill, r->of->context), &r->fill));
  NSAI_TRY(make_append(r, r->of->chunk, &r->append));
  NSAI_TRY(make_shard(r, &r->full));
  NSAI_TRY(make_shard(r, &r->rest));
  NSAI_TRY(make_attend(r));
  NSAI_TRY(make_caches(r));
  NSAI_TRY(make_rows(r, &r->full));
  NSAI_TRY(make_rows(r, &r->rest));
  return make_ends(r);
}

static nsa_status connect_ranks(void *user) {
  cell_run *r = user;
  const nsa_plan *plans[MOST_PLANS];
  nsa_shard *const shards[] = { r->full.shard, r->rest.shard };
  int64_t bytes[NSAI_RANKS_PAGED], most = 0;
  for (int i = 0; i < r->plan_count; i++) plans[i] = r->attend[i].plan;
  for (int i = list_gathers(r, bytes) - 1; i >= 0; i--) most = nsai_larger(most, bytes[i]);
  return bench_ranks_cell_connect(&r->cell,
                                  &(bench_ranks_terms){ .ctx = r->append.ctx,
                                                        .plans = plans,
                                                        .plan_count = (size_t)r->plan_count,
                                                        .shards = shards,
                                                        .shard_count = r->rest.shard ? 2 : 1,
                                                        .message_bytes = most });
}

/* ---- times ----------------------------------------------------------------------------------- */

/* A chunk that ends at token `end`, whose number `kv_len` has. */
static bench_prefill_step make_step(const cell_run *r, const chunk *c, int64_t end,
                                    nsa_tensor kv_len) {
  bench_prefill_step s = { .append = r->append.plan,
                           .run = nsa_prefill,
                           .exec = &r->exec,
                           .batch = nsai_verify_cache_sequences(&r->caches, 0, 1),
                           .shard = c->shard,
                           .io = c->io };
  int plan = 0;
  while (keys_of(r, plan) < end) plan++;
  s.attend = r->attend[plan].plan;
  s.batch.kv_len = kv_len;
  return s;
}

static nsa_status enqueue_prompt(const void *user) {
  const cell_run *r = user;
  nsa_tensor kv_len = r->ends;
  kv_len.shape[0] = 1;
  for (int64_t begin = 0; begin < r->of->context; begin += r->of->chunk) {
    const int64_t end = nsai_smaller(begin + r->of->chunk, r->of->context);
    const chunk *c = end - begin < r->of->chunk ? &r->rest : &r->full;
    const bench_prefill_step s = make_step(r, c, end, kv_len);
    NSAI_TRY(bench_prefill_enqueue_step(&s));
    kv_len.data = (int32_t *)kv_len.data + 1;
  }
  return NSA_OK;
}

static nsa_status time_calls(cell_run *r) {
  double ms;
  const bench_prefill_clock clock = { .device = r->caches.device,
                                      .flush = r->rig.flush,
                                      .comm = r->cell.comm,
                                      .meet = bench_ranks_cell_meet,
                                      .user = &r->cell };
  const bench_prefill_step last = make_step(r, &r->full, r->of->context, r->caches.lengths);
  NSAI_TRY(bench_prefill_time(&clock, enqueue_prompt, r, &ms));
  NSAI_TRY(bench_ranks_cell_set_time(&r->cell, PROMPT, ms));
  NSAI_TRY(bench_prefill_time(&clock, bench_prefill_enqueue_step, &last, &ms));
  return bench_ranks_cell_set_time(&r->cell, LAST, ms);
}

#define GATHERS 10 /* of each tensor, in one graph */

static nsa_status measure(void *user) {
  cell_run *r = user;
  int64_t bytes[NSAI_RANKS_PAGED];
  r->exec.comm = r->cell.comm;
  NSAI_TRY(time_calls(r));
  return bench_ranks_cell_gather(&r->cell, &(bench_ranks_gathers){ .bytes = bytes,
                                                                   .count = list_gathers(r, bytes),
                                                                   .repeats = GATHERS,
                                                                   .memory = r->caches.workspace,
                                                                   .memory_bytes =
                                                                       r->caches.workspace_bytes });
}

/* A cell on one rank. */
static void run(void *user, int32_t rank, chk_plans *plans, int64_t number) {
  task *t = user;
  const prompt *of = &t->prompts[number];
  cell_run r = { .cell = { .team = &t->team, .rank = rank, .plans = plans, .one = &t->one[number] },
                 .t = t,
                 .of = of,
                 .full = { .tokens = of->chunk },
                 .rest = { .tokens = of->context % of->chunk } };
  const bench_ranks_steps steps = { prepare, connect_ranks, measure, print, write_columns, &r };
  bench_ranks_cell_run(&r.cell, &steps, t->cells->peer_bytes);
  nsai_verify_cache_destroy(&r.caches);
  nsa_shard_destroy(r.full.shard);
  nsa_shard_destroy(r.rest.shard);
  bench_rig_destroy(&r.rig);
}

/* ---- all ranks ------------------------------------------------------------------------------- */

/* Appends the cells of a context. Chunks that are longer are one: the prompt in one piece. */
static void add_cells(task *t, int64_t context) {
  const bench_prefill_options *o = t->o;
  const int64_t first = t->team.count;
  for (int i = 0; i < o->chunk_count; i++) {
    const int64_t tokens = nsai_smaller(o->chunks[i], context);
    bool is_new = true;
    for (int64_t k = first; k < t->team.count; k++)
      is_new = is_new && t->prompts[k].chunk != tokens;
    if (is_new)
      t->prompts[t->team.count++] = (prompt){ bench_prefill_case(&o->c, context), context, tokens };
  }
}

nsa_status bench_prefill_ranks(const bench_ranks_cells *cells, const bench_prefill_options *o,
                               FILE *out, FILE *csv, int64_t *failed) {
  const size_t most = (size_t)o->context_count * (size_t)o->chunk_count;
  task t = { .cells = cells, .o = o };
  nsa_status status;
  t.team = (bench_team){ .options = cells->plans, .run = run, .user = &t, .out = out, .csv = csv };
  NSAI_TRY(bench_cached_check("prefill", &o->c.model));
  NSAI_TRY(bench_ranks_times_create(most, &t.one));
  t.prompts = calloc(most, sizeof *t.prompts);
  if (!t.prompts) NSAI_TRY_TO(done, nsai_fail_nomem("cells", most * sizeof *t.prompts));
  for (int i = 0; i < o->context_count; i++) add_cells(&t, o->contexts[i]);
  status = bench_team_run(&t.team, cells->with, failed);
done:
  free(t.prompts);
  bench_ranks_times_destroy(t.one, most);
  return status;
}
