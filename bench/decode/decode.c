/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "decode/decode.h"

#include "decode/reads.h"
#include "time_launch.h"
#include "verify/cache_tensors.h"

#include <nsa/ranks.h>

#include <string.h>

#define REPLAYS 7

const char *const bench_decode_part_names[BENCH_DECODE_PARTS] = { "total", "cmp",    "sel",
                                                                  "win",   "append", "dense" };

/* ---- plans ----------------------------------------------------------------------------------- */

nsa_problem bench_decode_problem(int32_t op, const bench_decode_options *options, int64_t context,
                                 int64_t batch, bool whole) {
  nsa_problem p = NSA_PROBLEM_INIT;
  p.op = op;
  p.page_size = options->page_size;
  p.max_kv_len = context;
  p.max_seqs = whole ? 1 : (int32_t)batch;
  p.max_q_len = whole ? 0 : options->q_len;
  p.max_tokens = whole ? context : batch * options->q_len;
  p.overlap = options->c.overlap ? NSA_OVERLAP_HIGH : NSA_OVERLAP_LOW;
  bench_cached_set(&options->dtypes, &p);
  return p;
}

static nsa_status make_plan(nsa_ctx *ctx, int32_t op, const bench_decode_options *options,
                            const bench_decode_cell *cell, bool whole, nsa_plan **out) {
  const nsa_problem p = bench_decode_problem(op, options, cell->context, cell->batch, whole);
  return nsa_plan_create(ctx, &p, NULL, NULL, out);
}

/* ---- times ----------------------------------------------------------------------------------- */

static nsa_status enqueue(void *user) {
  const bench_decode_steps *s = user;
  for (int64_t copy = 0; copy < s->caches->options.copies; copy++) {
    nsa_batch batch = nsai_verify_cache_batch(s->caches, copy);
    nsa_exec append = s->exec;
    append.branches = 0;
    append.comm = NULL;
    if (s->append) NSAI_TRY(nsa_kv_append(s->append, &append, &batch, &s->caches->io));
    NSAI_TRY(nsa_decode(s->decode, &s->exec, &batch, &s->caches->io));
  }
  return NSA_OK;
}

static nsa_status replay(bench_decode_steps *s, nsai_cu_graph_exec graph) {
  const nsai_verify_device *device = s->caches->device;
  return graph ? NSAI_CUDA(device->driver, cuGraphLaunch(graph, device->stream)) : enqueue(s);
}

nsa_status bench_decode_time(bench_decode_steps *s, double *us) {
  const nsai_verify_device *device = s->caches->device;
  double ms[REPLAYS];
  nsai_cu_graph_exec graph = NULL;
  nsai_verify_timer timer;
  nsa_status status;
  NSAI_TRY(nsai_verify_timer_create(device, &timer));
  if (device->driver && s->captures)
    NSAI_TRY_TO(done, nsai_verify_device_capture(device, enqueue, s, &graph));
  for (int i = -1; i < REPLAYS; i++) {
    if (s->meet) NSAI_TRY_TO(done, s->meet(s->user));
    NSAI_TRY_TO(done, nsai_verify_timer_start(device, &timer));
    NSAI_TRY_TO(done, replay(s, graph));
    NSAI_TRY_TO(done, nsai_verify_timer_stop(device, &timer));
    if (s->exec.comm) NSAI_TRY_TO(done, nsa_comm_wait(s->exec.comm, device->stream, 0));
    NSAI_TRY_TO(done, nsai_verify_timer_read(device, &timer, &ms[i < 0 ? 0 : i]));
  }
  *us = 1e3 * chk_median(ms, REPLAYS) / (double)s->caches->options.copies;
done:
  if (graph) device->driver->cuGraphExecDestroy(graph);
  nsai_verify_timer_destroy(device, &timer);
  return status;
}

/* ---- a cell ---------------------------------------------------------------------------------- */

typedef struct step_plans {
  nsa_plan *fill, *append, *decode, *counted, *dense;
} step_plans;

static void destroy_plans(step_plans *p) {
  nsa_plan_destroy(p->fill);
  nsa_plan_destroy(p->append);
  nsa_plan_destroy(p->decode);
  nsa_plan_destroy(p->counted);
  nsa_plan_destroy(p->dense);
}

static nsa_status make_plans(const bench_decode_contexts *c, const bench_decode_options *options,
                             const bench_decode_cell *cell, step_plans *p) {
  NSAI_TRY(make_plan(c->timed, NSA_OP_APPEND, options, cell, true, &p->fill));
  NSAI_TRY(make_plan(c->timed, NSA_OP_APPEND, options, cell, false, &p->append));
  NSAI_TRY(make_plan(c->timed, NSA_OP_DECODE, options, cell, false, &p->decode));
  NSAI_TRY(make_plan(c->counting, NSA_OP_DECODE, options, cell, false, &p->counted));
  return c->dense ? make_plan(c->dense, NSA_OP_DECODE, options, cell, false, &p->dense) : NSA_OK;
}

/* Allocates the workspace of the plan that needs most. */
static nsa_status make_workspace(nsai_verify_cache *w, const step_plans *p, nsa_exec *exec) {
  const nsa_plan *all[] = { p->append, p->decode, p->counted, p->dense };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    nsa_caps caps = NSA_CAPS_INIT;
    if (!all[i]) continue;
    NSAI_TRY(nsa_plan_caps(all[i], &caps));
    if (caps.workspace_bytes > exec->workspace_bytes) exec->workspace_bytes = caps.workspace_bytes;
  }
  exec->stream = (nsa_stream)w->device->stream;
  NSAI_TRY(nsai_verify_cache_workspace(w, exec->workspace_bytes));
  exec->workspace = w->workspace;
  return NSA_OK;
}

/* Counting comes first: the warm-up replay overwrites what the counting kernels leave in L2. */
static nsa_status measure_parts(nsai_verify_cache *w, const step_plans *p,
                                bench_decode_cell *cell) {
  static const bench_decode_part part_of[NSA_BRANCHES] = {
    [NSA_CMP] = BENCH_DECODE_CMP, [NSA_SEL] = BENCH_DECODE_SEL, [NSA_WIN] = BENCH_DECODE_WIN
  };
  const nsai_model *g = w->options.model;
  bench_decode_steps s = {
    .caches = w, .decode = p->decode, .exec = NSA_EXEC_INIT, .captures = true
  };
  NSAI_TRY(make_workspace(w, p, &s.exec));
  NSAI_TRY(bench_decode_count(w, p->counted, &s.exec, cell));
  NSAI_TRY(bench_decode_time(&s, &cell->us[BENCH_DECODE_TOTAL]));
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!nsai_has_branch(g, b)) continue;
    s.exec.branches = 1u << b;
    NSAI_TRY(bench_decode_time(&s, &cell->us[part_of[b]]));
  }
  if (p->dense) {
    s.decode = p->dense;
    s.exec.branches = 1u << NSA_WIN;
    NSAI_TRY(bench_decode_time(&s, &cell->us[BENCH_DECODE_DENSE]));
  }
  s.decode = p->decode;
  s.append = p->append;
  s.exec.branches = 0;
  return bench_decode_time(&s, &cell->us[BENCH_DECODE_STEP]);
}

nsa_status bench_decode_measure(chk_plans *plans, const bench_decode_contexts *contexts,
                                const bench_decode_options *options, bench_decode_cell *cell) {
  const nsai_model *g = &options->c.model;
  nsa_caps caps = NSA_CAPS_INIT;
  step_plans p = { 0 };
  nsai_verify_cache caches = { 0 };
  nsa_status status;
  bench_decode_expect(g, cell, NULL, &cell->expected);
  const double element = options->dtypes.kv == NSA_E4M3 ? 1 : 2;
  cell->dense_bytes = element * (double)(cell->batch * cell->context * g->kv_heads) *
                      (g->head_dim_qk + g->head_dim_v);
  const nsai_verify_device *device = chk_plans_device(plans);
  NSAI_TRY_TO(done, make_plans(contexts, options, cell, &p));
  NSAI_TRY_TO(done, nsa_plan_caps(p.decode, &caps));
  memcpy(cell->variants, caps.variants, sizeof cell->variants);
  const nsai_verify_cache_options cache_options = {
    .model = g,
    .fill = options->c.fill,
    .seed = options->c.seed,
    .threads = chk_plans_opts(plans)->threads,
    .context = cell->context,
    .batch = cell->batch,
    .q_len = cell->q_len,
    .page_size = options->page_size,
    .kv_dtype = options->dtypes.kv,
    .cmp_dtype = options->dtypes.cmp,
    .copies = device->driver ? nsai_verify_cache_copies((double)cell->expected.bytes) : 1
  };
  NSAI_TRY_TO(done, nsai_verify_cache_create(device, &cache_options, p.fill, &caches));
  cell->copies = caches.options.copies;
  NSAI_TRY_TO(done, measure_parts(&caches, &p, cell));
done:
  nsai_verify_cache_destroy(&caches);
  destroy_plans(&p);
  if (status) {
    const char *text = nsa_last_error();
    snprintf(cell->note, sizeof cell->note, "%.*s", (int)strcspn(text, "\n"), text);
  }
  return status;
}
