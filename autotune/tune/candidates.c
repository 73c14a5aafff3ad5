/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Selects the candidates of each tuning level and compiles their kernels.
 */
#include "plan/kernel_set.h"
#include "plan/parts.h"
#include "tune/internal.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUICK_MOST 5    /* at most so many neighbours of a variant's heuristic choice */
#define NORMAL_MOST 20  /* at most so many of a variant, the cheapest by the cost estimate */
#define NORMAL_COST 1.6 /* at most so many times the lowest cost estimate */
#define EXHAUSTIVE_MOST 400

/* ---- candidates ---- */

/* A combination of tile sizes that fits the device, with its cost estimate. */
typedef struct option {
  nsai_tiles tiles;
  double cost;
} option;

/* All tile sizes of a variant that fit the device. */
typedef struct options {
  option item[EXHAUSTIVE_MOST];
  int count;
} options;

static int by_cost(const void *a, const void *b) {
  const option *x = a, *y = b;
  if (x->cost != y->cost) return x->cost < y->cost ? -1 : 1;
  return memcmp(&x->tiles, &y->tiles, sizeof x->tiles); /* equal costs: a fixed order */
}

static int index_of(const nsai_range *range, int32_t value) {
  for (int i = 0; i < NSAI_MAX_RANGE && range->values[i]; i++)
    if (range->values[i] == value) return i;
  return -1;
}

/* Whether two choices differ by one step in one range. */
static bool are_neighbours(const nsai_space *space, const nsai_tiles *a, const nsai_tiles *b) {
  int steps = 0;
  for (int i = 0; i < space->count; i++) {
    const nsai_range *r = &space->range[i];
    steps += abs(index_of(r, a->of[r->tile]) - index_of(r, b->of[r->tile]));
  }
  return steps == 1;
}

static void collect(const tuner *t, const nsai_variant *v, const nsai_problem *problem,
                    options *out) {
  const nsai_target *target = &t->ctx->target;
  nsai_tiles tiles = { { 0 } };
  out->count = 0;
  while (nsai_tiles_next(v->space, &tiles)) {
    nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
    nsai_tiles_reasons(v, problem, target, &tiles, &reasons);
    if (!reasons.count && out->count < EXHAUSTIVE_MOST)
      out->item[out->count++] = (option){ tiles, nsai_tiles_cost(v, problem, target, &tiles) };
  }
  qsort(out->item, (size_t)out->count, sizeof *out->item, by_cost);
}

/* Compares field by field: memcmp of the structs would compare padding. */
static bool same_candidate(const nsai_candidate *a, const nsai_candidate *b) {
  return a->variant == b->variant && !memcmp(&a->tiles, &b->tiles, sizeof a->tiles);
}

static nsa_status add(tune_task *task, candidates *c, const nsai_candidate *what) {
  for (int i = 0; i < c->count; i++)
    if (same_candidate(&c->item[i].what, what)) return NSA_OK;
  measured_candidate *grown = realloc(c->item, (size_t)(c->count + 1) * sizeof *grown);
  if (!grown) return nsai_fail_nomem("candidates", (size_t)(c->count + 1) * sizeof *grown);
  c->item = grown;
  measured_candidate *fresh = &c->item[c->count++];
  *fresh = (measured_candidate){ .what = *what, .alive = true };
  nsai_timing *timing = &fresh->timing;
  nsai_writer text = nsai_writer_open(timing->candidate, sizeof timing->candidate);
  nsai_candidate_print(what, &text);
  snprintf(timing->stage, sizeof timing->stage, "%s", nsai_stage_name(c->stage));
  const nsai_timing *known = nsai_record_find(task->record, timing->stage, timing->candidate);
  if (known) *timing = *known;
  if (what->variant->fuses && !timing->note[0]) {
    nsai_writer note = nsai_writer_open(timing->note, sizeof timing->note);
    nsai_fused_time_write(&(nsai_fused_time){ .fuses = what->variant->fuses }, &note);
  }
  timing->chosen = false;
  timing->is_default = c->count == 1;
  if (known && known->state != NSAI_TIMING_OK) fresh->alive = timing->is_default;
  return NSA_OK;
}

/* Whether a level adds an option. The options of lower levels are already in the list. */
static bool takes(int32_t level, const nsai_candidate *heuristic, const options *all,
                  const option *o) {
  if (level >= NSAI_LEVEL_EXHAUSTIVE) return true;
  if (isinf(o->cost)) return false;
  if (level == NSAI_LEVEL_QUICK)
    return are_neighbours(heuristic->variant->space, &o->tiles, &heuristic->tiles);
  return o->cost <= NORMAL_COST * all->item[0].cost;
}

/* Adds the candidates that are new at one level, the cheapest first. */
static nsa_status add_level(tune_task *task, candidates *c, int32_t level,
                            const nsai_candidate *heuristic, const options *all) {
  nsai_candidate what = *heuristic;
  int left = level >= NSAI_LEVEL_EXHAUSTIVE ? EXHAUSTIVE_MOST
             : level == NSAI_LEVEL_QUICK    ? QUICK_MOST
                                            : NORMAL_MOST;
  for (int i = 0; i < all->count && left; i++) {
    if (!takes(level, heuristic, all, &all->item[i])) continue;
    what.tiles = all->item[i].tiles;
    NSAI_TRY(add(task, c, &what));
    left--;
  }
  return NSA_OK;
}

static nsa_status add_variant(tuner *t, tune_task *task, candidates *c, const nsai_variant *v) {
  const nsai_problem *problem = &task->problem;
  const nsai_candidate heuristic = { v, nsai_variant_tiles(v, problem, &t->ctx->target, NULL) };
  nsa_status status = NSA_OK;
  NSAI_TRY(add(task, c, &heuristic));
  if (!v->space || t->level == NSAI_LEVEL_HEURISTIC) return NSA_OK;
  options *all = malloc(sizeof *all);
  if (!all) return nsai_fail_nomem("candidates", sizeof *all);
  collect(t, v, problem, all);
  for (int32_t level = NSAI_LEVEL_QUICK; level <= t->level && !status; level++)
    status = add_level(task, c, level, &heuristic, all);
  free(all);
  return status;
}

/* Adds the candidates that earlier calls measured, whatever their level was. */
static nsa_status add_known(tuner *t, tune_task *task, candidates *c) {
  for (int32_t i = 0; i < task->record->timing_count; i++) {
    const nsai_timing *timing = &task->record->timings[i];
    nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
    nsai_candidate what;
    if (strcmp(timing->stage, nsai_stage_name(c->stage)) || !timing->rounds) continue;
    if (!nsai_candidate_parse(timing->candidate, c->stage, &what)) continue;
    nsai_variant_reasons(t->ctx->config, &task->problem, &t->ctx->target, what.variant, &reasons);
    nsai_tiles_reasons(what.variant, &task->problem, &t->ctx->target, &what.tiles, &reasons);
    if (!reasons.count) NSAI_TRY(add(task, c, &what));
  }
  return NSA_OK;
}

/* The first live candidate that fuses no other stage. */
static int find_unfused(const candidates *c) {
  for (int k = 0; k < c->count; k++)
    if (c->item[k].alive && !c->item[k].what.variant->fuses) return k;
  return -1;
}

/* Adds the heuristic's choice first, then the other candidates of the level. */
static nsa_status add_stage(tuner *t, tune_task *task, nsai_stage stage,
                            const nsai_variant *first) {
  candidates *c = &task->candidates[task->stage_count++];
  *c = (candidates){ .stage = stage };
  NSAI_TRY(add_variant(t, task, c, first));
  for (const nsai_variant *const *row = nsai_library_parts.variants; *row; row++) {
    const nsai_variant *v = *row;
    nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
    if (v->stage != stage || v == first) continue;
    nsai_variant_reasons(t->ctx->config, &task->problem, &t->ctx->target, v, &reasons);
    bool sensible = !v->sensible || v->sensible(&task->problem, &t->ctx->target);
    if (!reasons.count && sensible) NSAI_TRY(add_variant(t, task, c, v));
  }
  NSAI_TRY(add_known(t, task, c));
  c->unfused = find_unfused(c);
  return NSA_OK;
}

/* Whether the stage needs candidates of its own: each variant that fuses it has unfused rivals. */
static bool runs_unfused(const tune_task *task, nsai_stage stage) {
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *c = &task->candidates[i];
    if (c->unfused < 0 && nsai_fuses(c->item[0].what.variant, stage)) return false;
  }
  return true;
}

static bool all_fuse(const candidates *c, nsai_stage stage) {
  for (int k = 0; k < c->count; k++)
    if (!nsai_fuses(c->item[k].what.variant, stage)) return false;
  return true;
}

/* Drops stages whose work every candidate of another stage fuses: they would never run. */
static void drop_fused(tune_task *task) {
  int count = 0;
  for (int i = 0; i < task->stage_count; i++) {
    bool reached = true;
    /* The stage that fuses this one comes earlier in the list and has been kept. */
    for (int k = 0; k < count; k++)
      reached &= !all_fuse(&task->candidates[k], task->candidates[i].stage);
    if (reached)
      task->candidates[count++] = task->candidates[i];
    else
      free(task->candidates[i].item);
  }
  task->stage_count = count;
}

/* No variant of its own can do this stage, so only candidates of earlier stages that fuse it
 * stay. */
static void keep_fusing(tune_task *task, nsai_stage stage) {
  for (int i = 0; i < task->stage_count; i++) {
    candidates *c = &task->candidates[i];
    int count = 0;
    if (!nsai_fuses(c->item[0].what.variant, stage)) continue;
    for (int k = 0; k < c->count; k++)
      if (nsai_fuses(c->item[k].what.variant, stage)) c->item[count++] = c->item[k];
    c->count = count;
    c->unfused = -1;
  }
  drop_fused(task);
}

/* The heuristic's choice for a stage that another stage's heuristic choice fuses. NULL: the
 * stage has no candidates of its own. */
static const nsai_variant *first_unfused(const tuner *t, tune_task *task, nsai_stage stage) {
  const nsa_ctx *ctx = t->ctx;
  if (!runs_unfused(task, stage)) return NULL;
  nsai_candidate first = nsai_choose_unfused(ctx->config, &task->problem, &ctx->target, stage);
  if (!first.variant) keep_fusing(task, stage);
  return first.variant;
}

nsa_status nsai_tune_candidates(tuner *t, tune_task *task) {
  nsai_choice choice;
  NSAI_TRY(nsai_choose(t->ctx->config, &task->problem, &t->ctx->target, NULL, NULL, &choice));
  for (int i = 0; i < NSAI_STAGE_COUNT; i++) {
    nsai_stage s = (nsai_stage)i;
    const nsai_variant *first = choice.variant[s];
    bool lists = s == NSAI_STAGE_IMPORTANCE || s == NSAI_STAGE_SELECT;
    /* When every block is selected, no importance is computed and selection is almost free. */
    if (!first || (lists && nsai_problem_selects_all(&task->problem))) continue;
    if (nsai_is_fused(&choice, s)) first = first_unfused(t, task, s);
    if (first) NSAI_TRY(add_stage(t, task, s, first));
  }
  nsai_tune_fused_times(task);
  return NSA_OK;
}

void nsai_tune_candidates_free(tune_task *task) {
  for (int i = 0; i < task->stage_count; i++) free(task->candidates[i].item);
  task->stage_count = 0;
}

/* ---- kernels ---- */

/* The compiling threads take candidates from one shared counter. They stop at the first failure
 * other than a refused candidate, and when the budget is spent. Candidates that were not reached
 * are dropped. */
typedef struct compile_pool {
  tuner *t;
  const nsai_problem *problem;
  measured_candidate **item;
  int count, needed;        /* needed: the first ones, compiled whatever the budget */
  atomic_int next, running; /* running: number of threads */
  pthread_mutex_t lock;     /* protects status and error */
  nsa_status status;
  char error[1024];
} compile_pool;

static void compile_one(compile_pool *p, measured_candidate *c) {
  nsa_ctx *ctx = p->t->ctx;
  nsai_kernel_spec specs[NSAI_MAX_FORM_KERNELS] = { 0 };
  const nsai_request of = { p->problem, &ctx->target, &c->what.tiles, false };
  nsai_kernel_request request = {
    .problem = p->problem, .specs = specs, .count = c->what.variant->kernels, .may_compile = true
  };
  c->what.variant->specify(&of, specs);
  nsa_status status = nsai_kernel_set_make(ctx, &request, NULL);
  if (!status) return;
  c->alive = false;
  if (request.refused) {
    size_t length = strcspn(nsa_last_error(), "\n");
    c->timing.state = NSAI_TIMING_REFUSED;
    snprintf(c->timing.note, sizeof c->timing.note, "%.*s", (int)length, nsa_last_error());
    return;
  }
  pthread_mutex_lock(&p->lock);
  if (!p->status) {
    p->status = status;
    snprintf(p->error, sizeof p->error, "%s", nsa_last_error());
  }
  pthread_mutex_unlock(&p->lock);
  atomic_store(&p->next, p->count);
}

static void *compile_thread(void *argument) {
  compile_pool *p = argument;
  for (int i; (i = atomic_fetch_add(&p->next, 1)) < p->count;) {
    p->item[i]->alive = true;
    compile_one(p, p->item[i]);
  }
  atomic_fetch_sub(&p->running, 1);
  return NULL;
}

#define MOST_THREADS 16
#define POLL_US 20000

/* Number of compiling threads: runtime.compile_jobs, else one per processor. Each thread holds
 * one or two kernels in memory at a time. */
static int compile_threads(const tuner *t, int count) {
  long wanted = t->ctx->config->runtime.compile_jobs;
  if (!wanted) wanted = sysconf(_SC_NPROCESSORS_ONLN);
  if (wanted > MOST_THREADS) wanted = MOST_THREADS;
  if (wanted > count) wanted = count;
  return wanted < 1 ? 1 : (int)wanted;
}

static nsa_status run_pool(compile_pool *p) {
  pthread_t thread[MOST_THREADS];
  int started = 0, wanted = compile_threads(p->t, p->count);
  nsa_status status = NSA_OK;
  atomic_store(&p->running, wanted);
  while (started < wanted && !pthread_create(&thread[started], NULL, compile_thread, p)) started++;
  atomic_fetch_sub(&p->running, wanted - started);
  if (!started) {
    atomic_store(&p->running, 1);
    compile_thread(p);
  }
  while (atomic_load(&p->running) > 0) {
    usleep(POLL_US);
    if (!status) status = nsai_tune_poll(p->t, "compiling");
    /* Compilations that have begun are finished and kept. */
    bool spent = nsai_tune_spent(p->t) && atomic_load(&p->next) >= p->needed;
    if (status || spent) atomic_store(&p->next, p->count);
  }
  for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
  if (status) return status;
  return p->status ? nsai_fail_text(p->status, p->error) : NSA_OK;
}

/* Where the compiler refuses the heuristic's choice, the next candidate replaces it. The first
 * candidate of a stage is the reference for the others, and it runs while other stages are
 * measured. */
static nsa_status stand_in(tune_task *task) {
  for (int i = 0; i < task->stage_count; i++) {
    candidates *c = &task->candidates[i];
    int k = 0;
    while (k < c->count && !c->item[k].alive) k++;
    if (k == c->count)
      return nsai_fail(NSA_E_COMPILE, "this compiler refuses every candidate of %s: %s",
                       nsai_stage_name(c->stage), c->item[0].timing.note);
    measured_candidate refused = c->item[0];
    c->item[0] = c->item[k];
    c->item[k] = refused;
    c->unfused = find_unfused(c);
  }
  return NSA_OK;
}

/* Collects the heuristic's choices, or all the others. A candidate counts as dropped until a
 * thread takes it. */
static void collect_work(tune_task *task, bool heuristic, compile_pool *p) {
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *c = &task->candidates[i];
    for (int k = 0; k < c->count; k++) {
      if (!c->item[k].alive || (!k || k == c->unfused) != heuristic) continue;
      c->item[k].alive = false;
      p->item[p->count++] = &c->item[k];
    }
  }
}

nsa_status nsai_tune_compile(tuner *t, tune_task *task) {
  /* verification reads importance: compile its kernel as well */
  nsai_problem probed = task->problem;
  compile_pool p = { .t = t, .problem = &probed };
  int count = 0;
  if (probed.op == NSA_OP_FORWARD && probed.selection == NSA_SELECT_TOPN) probed.max_probe_rows = 1;
  nsa_status status = NSA_OK;
  for (int i = 0; i < task->stage_count; i++) count += task->candidates[i].count;
  p.item = calloc((size_t)count + 1, sizeof(measured_candidate *));
  if (!p.item) return nsai_fail_nomem("candidates", (size_t)count * sizeof(measured_candidate *));
  /* The heuristic's choices come first: they are needed whatever the budget. */
  collect_work(task, true, &p);
  p.needed = p.count;
  collect_work(task, false, &p);
  pthread_mutex_init(&p.lock, NULL);
  status = run_pool(&p);
  pthread_mutex_destroy(&p.lock);
  for (int i = 0; i < p.count && !status; i++)
    if (p.item[i]->timing.state == NSAI_TIMING_REFUSED)
      nsai_tune_emit(t, NSA_TUNE_REFUSED, task, p.item[i], p.item[i]->timing.note);
  free(p.item);
  return status ? status : stand_in(task);
}
