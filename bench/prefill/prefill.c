/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "prefill/prefill.h"

#include "base/math.h"
#include "check.h"
#include "prefill/calls.h"
#include "verify/cache_tensors.h"

#include <nsa/kv_cache.h>

#include <stdlib.h>
#include <string.h>

/* Everything that the cells of one context share. */
typedef struct prompt {
  const bench_rig *rig;
  const bench_prefill_options *options;
  const nsai_verify_device *device;
  bench_prefill_clock clock;
  nsai_verify_case c;       /* a forward, then dense attention, over the packed prompt */
  int64_t context, longest; /* tokens of the prompt and of its longest chunk */
  nsai_trial_run packed;
  nsai_verify_cache cache; /* sequence 0 is the prompt, the others decode */
  nsa_ctx *ctx;            /* of all plans */
  nsa_exec exec;           /* the caches' workspace */
  nsa_io whole;            /* the packed prompt as new tokens, and the cache */
  nsa_io mixed;            /* room for the longest chunk and a token of each row */
  nsa_tensor ends;         /* i32 [most chunks]: kv_len of each chunk */
  nsa_tensor cu_q;         /* i32 [rows + 2]: one chunk, then the rows */
} prompt;

static nsa_status enqueue_packed(const void *user) { return nsai_trial_run_enqueue(user, 0, NULL); }

/* ---- tensors --------------------------------------------------------------------------------- */

static nsa_status alloc_ints(prompt *p, int64_t count, nsa_tensor *out) {
  *out = nsai_verify_tensor(NSA_I32, 1, &count);
  return nsai_verify_cache_alloc(&p->cache, nsai_verify_tensor_bytes(out), &out->data);
}

/* Makes what the calls of all cells need beside the caches. */
static nsa_status make_tensors(prompt *p, int64_t most_chunks) {
  nsa_batch unused;
  nsa_io io;
  nsai_verify_tensors_io(&p->packed.data, NSAI_VERIFY_ON_DEVICE, &unused, &io);
  p->whole = (nsa_io)NSA_IO_INIT;
  p->whole.q = io.q;
  p->whole.o = io.o;
  p->whole.gate = io.gate;
  p->whole.kv = p->cache.cache.kv;
  p->whole.k_norm = p->cache.cache.k_norm;
  p->whole.k_idx = p->cache.cache.k_idx;
  p->whole.index_q = io.index_q;
  p->whole.new_k_idx = io.k_idx;
  for (int b = 0; b < NSA_BRANCHES; b++) {
    p->whole.new_kv.k[b] = io.kv.k[b];
    p->whole.new_kv.v[b] = io.kv.v[b];
  }
  NSAI_TRY(alloc_ints(p, most_chunks, &p->ends));
  if (!p->options->rows) return NSA_OK;
  NSAI_TRY(alloc_ints(p, p->options->rows + 2, &p->cu_q));
  p->mixed = p->whole;
  for (int i = 0; i < BENCH_PREFILL_ROW_TENSORS; i++) {
    nsa_tensor *t = bench_prefill_row_tensor(&p->mixed, i);
    if (!t->data) continue;
    t->shape[0] = p->longest + p->options->rows;
    NSAI_TRY(nsai_verify_cache_alloc(&p->cache, nsai_verify_tensor_bytes(t), &t->data));
  }
  return NSA_OK;
}

/* ---- plans ----------------------------------------------------------------------------------- */

nsa_problem bench_prefill_problem(int32_t op, const bench_prefill_options *options, int64_t context,
                                  int64_t q_len) {
  nsa_problem problem = NSA_PROBLEM_INIT;
  problem.op = op;
  problem.page_size = options->page_size;
  problem.max_kv_len = context;
  problem.max_seqs = 1;
  problem.max_q_len = (int32_t)q_len;
  problem.max_tokens = q_len;
  problem.overlap = options->c.overlap ? NSA_OVERLAP_HIGH : NSA_OVERLAP_LOW;
  bench_cached_set(&options->dtypes, &problem);
  return problem;
}

static nsa_status make_plan(const prompt *p, int32_t op, int32_t seqs, int64_t q_len,
                            int64_t tokens, nsa_plan **out) {
  nsa_problem problem = bench_prefill_problem(op, p->options, p->context, q_len);
  problem.max_seqs = seqs;
  problem.max_tokens = tokens;
  return nsa_plan_create(p->ctx, &problem, NULL, NULL, out);
}

typedef struct plan_pair {
  nsa_plan *append, *attend;
} plan_pair;

static void destroy_pair(plan_pair *pair) {
  nsa_plan_destroy(pair->append);
  nsa_plan_destroy(pair->attend);
}

/* Makes the plans of steps, and enough workspace for them. `variants`: of the attention. */
static nsa_status make_pair(prompt *p, int32_t op, int32_t seqs, int64_t q_len, int64_t tokens,
                            plan_pair *out, char variants[512]) {
  NSAI_TRY(make_plan(p, NSA_OP_APPEND, seqs, q_len, tokens, &out->append));
  NSAI_TRY(make_plan(p, op, seqs, q_len, tokens, &out->attend));
  for (int i = 0; i < 2; i++) {
    nsa_caps caps = NSA_CAPS_INIT;
    NSAI_TRY(nsa_plan_caps(i ? out->attend : out->append, &caps));
    NSAI_TRY(nsai_verify_cache_workspace(&p->cache, caps.workspace_bytes));
    if (i) snprintf(variants, 512, "%s", caps.variants);
  }
  p->exec.workspace = p->cache.workspace;
  p->exec.workspace_bytes = p->cache.workspace_bytes;
  return NSA_OK;
}

static bench_prefill_step make_step(const prompt *p, const plan_pair *pair, nsa_batch batch,
                                    nsa_io io) {
  return (bench_prefill_step){ .append = pair->append,
                               .attend = pair->attend,
                               .run = nsa_prefill,
                               .exec = &p->exec,
                               .batch = batch,
                               .io = io };
}

/* ---- a cell ---------------------------------------------------------------------------------- */

typedef struct chunks {
  const prompt *p;
  const plan_pair *pair;
  int64_t tokens; /* of a chunk; the last may be shorter */
} chunks;

static nsa_status enqueue_chunks(const void *user) {
  const chunks *k = user;
  const prompt *p = k->p;
  for (int64_t i = 0, first = 0; first < p->context; first += k->tokens, i++) {
    nsa_batch batch = nsai_verify_cache_sequences(&p->cache, 0, 1);
    batch.kv_len.data = (int32_t *)p->ends.data + i;
    const bench_prefill_step s =
        make_step(p, k->pair, batch,
                  bench_prefill_take_rows(&p->whole, first,
                                          nsai_smaller(k->tokens, p->context - first)));
    NSAI_TRY(bench_prefill_enqueue_step(&s));
  }
  return NSA_OK;
}

/* The prompt comes first: from then on its sequence in the cache has the packed values. */
static nsa_status time_prompt(prompt *p, bench_prefill_cell *cell) {
  plan_pair pair = { 0 };
  const chunks k = { p, &pair, cell->chunk };
  nsa_status status;
  NSAI_TRY_TO(done,
              make_pair(p, NSA_OP_PREFILL, 1, cell->chunk, cell->chunk, &pair, cell->variants));
  p->ends.shape[0] = nsai_ceil_div(p->context, cell->chunk);
  NSAI_TRY_TO(done,
              bench_prefill_set_ints(p->device, &p->ends, cell->chunk, cell->chunk, p->context));
  NSAI_TRY_TO(done,
              bench_prefill_time(&p->clock, enqueue_chunks, &k, &cell->ms[BENCH_PREFILL_PROMPT]));
  const bench_prefill_step last =
      make_step(p, &pair, nsai_verify_cache_sequences(&p->cache, 0, 1),
                bench_prefill_take_rows(&p->whole, p->context - cell->chunk, cell->chunk));
  NSAI_TRY_TO(done, bench_prefill_time(&p->clock, bench_prefill_enqueue_step, &last,
                                       &cell->ms[BENCH_PREFILL_LAST]));
done:
  destroy_pair(&pair);
  return status;
}

/* A batch of the sequences that decode, and a new token of each. */
static bench_prefill_step make_rows(const prompt *p, const plan_pair *pair) {
  const int32_t rows = p->options->rows;
  nsa_io io = bench_prefill_take_rows(&p->cache.io, 1, rows);
  io.kv = p->cache.cache.kv;
  io.k_norm = p->cache.cache.k_norm;
  io.k_idx = p->cache.cache.k_idx;
  return make_step(p, pair, nsai_verify_cache_sequences(&p->cache, 1, rows), io);
}

static nsa_status time_mixed(prompt *p, bench_prefill_cell *cell) {
  const int32_t rows = p->options->rows;
  const int64_t tokens = cell->chunk + rows;
  plan_pair pair = { 0 };
  nsa_status status;
  NSAI_TRY_TO(done,
              make_pair(p, NSA_OP_PREFILL, rows + 1, cell->chunk, tokens, &pair, cell->mixed));
  /* 0, chunk, chunk + 1, ... */
  nsa_tensor cu_q = p->cu_q;
  cu_q.data = (int32_t *)cu_q.data + 1;
  cu_q.shape[0]--;
  NSAI_TRY_TO(done, nsai_verify_device_set(p->device, p->cu_q.data, 0, sizeof(int32_t)));
  NSAI_TRY_TO(done, bench_prefill_set_ints(p->device, &cu_q, cell->chunk, 1, tokens));
  bench_prefill_step s = make_step(p, &pair, nsai_verify_cache_sequences(&p->cache, 0, rows + 1),
                                   bench_prefill_take_rows(&p->mixed, 0, tokens));
  s.batch.cu_q = p->cu_q;
  const bench_prefill_step alone = make_rows(p, &pair);
  NSAI_TRY_TO(done,
              bench_prefill_copy_rows(p->device, s.io,
                                      bench_prefill_take_rows(&p->whole, p->context - cell->chunk,
                                                              cell->chunk)));
  NSAI_TRY_TO(done,
              bench_prefill_copy_rows(p->device, bench_prefill_take_rows(&s.io, cell->chunk, rows),
                                      alone.io));
  NSAI_TRY_TO(done, bench_prefill_time(&p->clock, bench_prefill_enqueue_step, &s,
                                       &cell->ms[BENCH_PREFILL_MIXED]));
  NSAI_TRY_TO(done, bench_prefill_time(&p->clock, bench_prefill_enqueue_step, &alone,
                                       &cell->ms[BENCH_PREFILL_ROWS]));
done:
  destroy_pair(&pair);
  return status;
}

/* ---- a context ------------------------------------------------------------------------------- */

static nsa_status time_decode(prompt *p, double *ms) {
  const int32_t rows = p->options->rows;
  char unused[512];
  plan_pair pair = { 0 };
  nsa_status status;
  NSAI_TRY_TO(done, make_pair(p, NSA_OP_DECODE, rows, 1, rows, &pair, unused));
  bench_prefill_step s = make_rows(p, &pair);
  s.run = nsa_decode;
  NSAI_TRY_TO(done, bench_prefill_time(&p->clock, bench_prefill_enqueue_step, &s, ms));
done:
  destroy_pair(&pair);
  return status;
}

/* Turns the packed run into one of dense attention. */
static nsa_status time_dense(prompt *p, double *ms) {
  p->c.kind = NSAI_VERIFY_DENSE;
  NSAI_TRY(chk_plans_get(p->rig->plans, &p->c, NSA_OP_DENSE, &p->packed.plan));
  NSAI_TRY(nsai_verify_tensors_workspace(&p->packed.data, p->packed.plan.caps.workspace_bytes));
  return bench_prefill_time(&p->clock, enqueue_packed, &p->packed, ms);
}

/* Adds the first line of the last error to the note: what it is about, and the error. */
static void note_error(bench_prefill_cell *cell, const char *about) {
  const char *text = nsa_last_error();
  const size_t used = strlen(cell->note);
  snprintf(cell->note + used, sizeof cell->note - used, "%s%s: %.*s", used ? "; " : "", about,
           (int)strcspn(text, "\n"), text);
}

/* Makes the caches, and fills them with the beginning of the prompt. */
static nsa_status make_caches(prompt *p) {
  const nsai_verify_cache_options options = {
    .model = &p->c.model,
    .fill = p->c.fill,
    .seed = p->c.seed,
    .threads = chk_plans_opts(p->rig->plans)->threads,
    .context = p->context,
    .batch = p->options->rows + 1,
    .q_len = 1,
    .page_size = p->options->page_size,
    .kv_dtype = p->options->dtypes.kv,
    .cmp_dtype = p->options->dtypes.cmp,
    .copies = 1, /* time_calls empties the L2 */
  };
  nsa_plan *fill = NULL;
  const int64_t tokens = nsai_smaller(p->context, NSAI_VERIFY_CACHE_PROMPT);
  nsa_status status = make_plan(p, NSA_OP_APPEND, 1, tokens, tokens, &fill);
  if (!status) status = nsai_verify_cache_create(p->device, &options, fill, &p->cache);
  nsa_plan_destroy(fill);
  return status;
}

/* Makes the tensors, and times what does not depend on the chunk, for the first cell. Failures of
 * dense attention and of nsa_decode are only notes. */
static nsa_status begin(prompt *p, bench_prefill_cell *cells, int count) {
  int64_t shortest = p->context;
  for (int i = 0; i < count; i++) shortest = nsai_smaller(shortest, cells[i].chunk);
  NSAI_TRY(bench_check_cost(p->rig->plans, &p->c));
  NSAI_TRY(chk_bench_create(p->rig->plans, &p->c, &p->packed));
  p->ctx = p->packed.plan.ctx;
  nsai_verify_tensors_drop_optional(&p->packed.data);
  NSAI_TRY(
      bench_prefill_time(&p->clock, enqueue_packed, &p->packed, &cells->ms[BENCH_PREFILL_FORWARD]));
  if (time_dense(p, &cells->ms[BENCH_PREFILL_DENSE])) note_error(cells, "dense");
  NSAI_TRY(make_caches(p));
  NSAI_TRY(make_tensors(p, nsai_ceil_div(p->context, shortest)));
  if (p->options->rows && time_decode(p, &cells->ms[BENCH_PREFILL_DECODE]))
    note_error(cells, "decode");
  return NSA_OK;
}

void bench_prefill_measure(const bench_rig *rig, const bench_prefill_options *options,
                           bench_prefill_cell *cells, int count) {
  const nsai_verify_device *device = chk_plans_device(rig->plans);
  prompt p = { .rig = rig,
               .options = options,
               .device = device,
               .clock = { .device = device, .flush = rig->flush },
               .c = cells->c,
               .context = cells->context,
               .longest = cells->chunk,
               .exec = NSA_EXEC_INIT };
  p.exec.stream = (nsa_stream)p.device->stream;
  nsa_status status = begin(&p, cells, count);
  if (status) note_error(cells, "prompt");
  for (int i = 1; i < count; i++) {
    memcpy(cells[i].ms, cells->ms, sizeof cells->ms);
    memcpy(cells[i].note, cells->note, sizeof cells->note);
  }
  for (bench_prefill_cell *cell = cells; cell < cells + count && !status; cell++) {
    if (time_prompt(&p, cell)) note_error(cell, "prompt");
    if (options->rows && time_mixed(&p, cell)) note_error(cell, "mixed");
  }
  nsai_verify_cache_destroy(&p.cache);
  nsai_trial_run_destroy(&p.packed);
}
