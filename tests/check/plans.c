/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Lock rule: `lock` protects both lists and the `state` of entries. The thread that found a plan
 * missing writes it; others read it after `state` has become READY.
 */
#include "plans.h"

#include "plan/variant.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFETCH_THREADS 8 /* each compiles on up to 4 threads of its own */

typedef enum entry_state { BUSY, READY } entry_state;

/* A context (problem.struct_size 0) or a plan. Freed only together with all plans. */
typedef struct entry {
  struct entry *next;
  char *yaml;
  nsa_problem problem;
  entry_state state;
  nsa_status status;
  char *error; /* of a failed creation, reported to every thread that asks for it */
  nsai_trial_plan made;
} entry;

struct chk_plans {
  chk_plans_options options;
  nsai_verify_device device;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  entry *entries; /* newest first, so that plans are destroyed before their contexts */
  const nsai_verify_case *ahead;
  int64_t ahead_count;
  atomic_llong ahead_next;
  atomic_int stop;
  pthread_t thread[PREFETCH_THREADS];
  int threads;
};

nsa_status chk_plans_create(const chk_plans_options *options, chk_plans **out) {
  nsa_status status;
  *out = NULL;
  chk_plans *plans = calloc(1, sizeof *plans);
  if (!plans) return nsai_fail_nomem("a plans", sizeof *plans);
  plans->options = *options;
  pthread_mutex_init(&plans->lock, NULL);
  pthread_cond_init(&plans->changed, NULL);
  NSAI_TRY_TO(fail, nsai_verify_device_open(options->device, &plans->device));
  *out = plans;
  return NSA_OK;
fail:
  chk_plans_destroy(plans);
  return status;
}

void chk_plans_destroy(chk_plans *plans) {
  if (!plans) return;
  atomic_store(&plans->stop, 1);
  for (int i = 0; i < plans->threads; i++) pthread_join(plans->thread[i], NULL);
  /* All plans first: a context must outlive its plans. */
  for (entry *e = plans->entries; e; e = e->next)
    if (e->problem.struct_size) nsa_plan_destroy(e->made.plan);
  while (plans->entries) {
    entry *e = plans->entries;
    plans->entries = e->next;
    if (!e->problem.struct_size) nsa_destroy(e->made.ctx);
    free(e->yaml);
    free(e->error);
    free(e);
  }
  nsai_verify_device_close(&plans->device);
  pthread_cond_destroy(&plans->changed);
  pthread_mutex_destroy(&plans->lock);
  free(plans);
}

const nsai_verify_device *chk_plans_device(const chk_plans *plans) { return &plans->device; }
const chk_plans_options *chk_plans_opts(const chk_plans *plans) { return &plans->options; }

/* ---- contexts and problems of cases ---------------------------------------------------------- */

static const char *const phi_words[] = { "mean", "linear", "mlp", "external", "none" };
static const char *const gate_words[] = { "weights", "logits", "mlp", "none" };
static const char *const act_words[] = { "relu", "silu", "gelu" };

/* Forces a row of a stage, unless the case forces another one by its name. */
static void write_row(FILE *out, const nsai_verify_case *c, nsai_stage stage, const char *name) {
  if (!c->force || c->force->stage != stage)
    fprintf(out, "    %s: %s\n", nsai_stage_name(stage), name);
}

/* Writes the rows of the variant table that a case forces. */
static void write_forced(FILE *out, const nsai_verify_case *c) {
  if (!c->mma && !c->gemm && !c->lists && !c->force) return;
  fprintf(out, "variants:\n  force:\n");
  if (c->mma) write_row(out, c, NSAI_STAGE_BACKWARD_Q, "backward_q_sm80");
  if (c->mma) write_row(out, c, NSAI_STAGE_BACKWARD_KV, "backward_kv_sm80");
  if (c->gemm) write_row(out, c, NSAI_STAGE_DENSE, "dense_gemm");
  if (c->lists) write_row(out, c, NSAI_STAGE_ATTEND_SELECTED, "attend_selected_sm80");
  if (c->force) fprintf(out, "    %s: %s\n", nsai_stage_name(c->force->stage), c->force->name);
}

void chk_device_print(int32_t device, char *text, size_t size) {
  if (device < 0)
    snprintf(text, size, "%s", device == NSAI_VERIFY_DEVICE_CPU ? "cpu" : "auto");
  else
    snprintf(text, size, "%d", device);
}

void chk_write_config(FILE *out, const nsai_model *g, int32_t device, const char *cache_dir) {
  char word[16];
  fprintf(out, "nsa: 1\nmodel:\n  heads: %d\n  kv_heads: %d\n  head_dim_qk: %d\n  head_dim_v: %d\n",
          g->heads, g->kv_heads, g->head_dim_qk, g->head_dim_v);
  fprintf(out, "  compress:\n    phi: %s\n", phi_words[g->phi]);
  if (nsai_compresses(g)) fprintf(out, "    block: %d\n    stride: %d\n", g->block, g->stride);
  if (g->keys_only) fprintf(out, "    output: false\n");
  if (g->phi == NSAI_PHI_MLP)
    fprintf(out, "    hidden: %d\n    activation: %s\n", g->phi_hidden,
            act_words[g->phi_activation]);
  fprintf(out, "  select:\n    block: %d\n    count: %d\n    init: %d\n    local: %d\n",
          g->select_block, g->select_count, g->select_init, g->select_local);
  if (g->pool == NSAI_POOL_MAX) fprintf(out, "    pool: max\n");
  if (g->norm_block)
    fprintf(out, "    normalizer: {block: %d, stride: %d}\n", g->norm_block, g->norm_stride);
  if (g->by == NSAI_BY_INDEX)
    fprintf(out, "    by: index\n  index: {heads: %d, dim: %d}\n", g->index_heads, g->index_dim);
  fprintf(out, "  window: %d\n  gate: %s\n", g->window, gate_words[g->gate]);
  if (g->gate == NSAI_GATE_MLP)
    fprintf(out, "  gate_mlp:\n    channels: %d\n    hidden: %d\n    activation: %s\n",
            g->gate_channels, g->gate_hidden, act_words[g->gate_activation]);
  fprintf(out, "  kv_sharing: %s\n  dtype: %s\nruntime:\n", g->per_branch ? "per_branch" : "shared",
          g->dtype == NSA_F16 ? "fp16" : "bf16");
  chk_device_print(device, word, sizeof word);
  fprintf(out, "  device: %s\n", word);
  if (cache_dir)
    fprintf(out, "  cache_dir: \"%s\"\n", cache_dir);
  else
    fprintf(out, "  cache_mode: off\n");
}

char *chk_case_yaml(const nsai_verify_case *c, int32_t device, const char *cache_dir) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  chk_write_config(out, &c->model, device, cache_dir);
  if (c->recompute)
    fprintf(out, "  recompute: %s\n", c->recompute == NSAI_RECOMPUTE_NEVER ? "never" : "always");
  write_forced(out, c);
  /* Without memory the text would be cut off. */
  bool failed = ferror(out);
  if (!fclose(out) && !failed) return text;
  free(text);
  return NULL;
}

char *chk_plans_yaml(const chk_plans *plans, const nsai_verify_case *c) {
  const bool cpu = plans->options.device == NSAI_VERIFY_DEVICE_CPU;
  return chk_case_yaml(c, cpu ? NSAI_VERIFY_DEVICE_CPU : plans->device.ordinal,
                       plans->options.cache_dir);
}

int32_t chk_case_op(const nsai_verify_case *c) {
  if (c->kind == NSAI_VERIFY_BACKWARD) return NSA_OP_BACKWARD;
  if (c->kind == NSAI_VERIFY_INDEX_KL) return NSA_OP_INDEX_KL;
  return c->kind == NSAI_VERIFY_DENSE ? NSA_OP_DENSE : NSA_OP_FORWARD;
}

nsa_problem chk_case_problem(const nsai_verify_case *c, int32_t op) {
  nsa_problem p = NSA_PROBLEM_INIT;
  int64_t slack = c->no_batch ? 0 : c->slack, longest = 1;
  for (int32_t s = 0; s < c->num_seqs; s++)
    if (c->kv_len[s] > longest) longest = c->kv_len[s];
  p.op = op;
  p.max_tokens = nsai_verify_total(c->q_len, c->num_seqs) + slack;
  p.max_kv_tokens = nsai_verify_total(c->kv_len, c->num_seqs) + slack;
  if (p.max_tokens < 1) p.max_tokens = 1;
  if (p.max_kv_tokens < 1) p.max_kv_tokens = 1;
  p.max_kv_len = longest;
  p.max_seqs = c->num_seqs;
  p.overlap = c->overlap ? NSA_OVERLAP_HIGH : NSA_OVERLAP_LOW;
  if (op == NSA_OP_DENSE) return p;
  p.selection = c->selection;
  p.index_lse = op == NSA_OP_FORWARD && c->index_lse;
  if (op == NSA_OP_FORWARD && c->selection == NSA_SELECT_TOPN && c->model.select_count)
    p.max_probe_rows =
        (int32_t)(p.max_tokens < NSAI_VERIFY_MAX_PROBES ? p.max_tokens : NSAI_VERIFY_MAX_PROBES);
  return p;
}

/* ---- making ---------------------------------------------------------------------------------- */

static nsa_status make_context(chk_plans *plans, const char *yaml, nsa_ctx **out) {
  nsa_options options = NSA_OPTIONS_INIT;
  options.yaml_text = yaml;
  options.overrides = plans->options.overrides;
  return nsa_create(plans->options.config, &options, out);
}

static nsa_status obtain(chk_plans *plans, const char *yaml, const nsa_problem *problem,
                         nsai_trial_plan *out);

/* Fills a new entry; the caller holds no lock. */
static nsa_status make(chk_plans *plans, entry *e) {
  if (!e->problem.struct_size) return make_context(plans, e->yaml, &e->made.ctx);
  nsa_problem none = { 0 };
  nsai_trial_plan context;
  NSAI_TRY(obtain(plans, e->yaml, &none, &context));
  e->made.ctx = context.ctx;
  NSAI_TRY(nsa_plan_create(context.ctx, &e->problem, NULL, NULL, &e->made.plan));
  e->made.caps = (nsa_caps)NSA_CAPS_INIT;
  return nsa_plan_caps(e->made.plan, &e->made.caps);
}

/* Finds or makes the context (problem->struct_size 0) or the plan. */
static nsa_status obtain(chk_plans *plans, const char *yaml, const nsa_problem *problem,
                         nsai_trial_plan *out) {
  pthread_mutex_lock(&plans->lock);
  entry *e = plans->entries;
  while (e && (strcmp(e->yaml, yaml) || memcmp(&e->problem, problem, sizeof *problem))) e = e->next;
  if (!e) {
    e = calloc(1, sizeof *e);
    char *copy = strdup(yaml);
    if (!e || !copy) {
      pthread_mutex_unlock(&plans->lock);
      free(e);
      free(copy);
      return nsai_fail_nomem("a plans entry", sizeof *e);
    }
    e->yaml = copy;
    e->problem = *problem;
    e->next = plans->entries;
    plans->entries = e;
    pthread_mutex_unlock(&plans->lock);
    e->status = make(plans, e);
    if (e->status) e->error = strdup(nsa_last_error());
    pthread_mutex_lock(&plans->lock);
    e->state = READY;
    pthread_cond_broadcast(&plans->changed);
  }
  while (e->state != READY) pthread_cond_wait(&plans->changed, &plans->lock);
  pthread_mutex_unlock(&plans->lock);
  *out = e->made;
  return e->status ? nsai_fail_text(e->status, e->error ? e->error : "(no memory for the text)")
                   : NSA_OK;
}

nsa_status chk_plans_get(chk_plans *plans, const nsai_verify_case *c, int32_t op,
                         nsai_trial_plan *out) {
  const nsa_problem problem = chk_case_problem(c, op);
  return chk_plans_get_problem(plans, c, &problem, out);
}

nsa_status chk_plans_get_problem(chk_plans *plans, const nsai_verify_case *c,
                                 const nsa_problem *problem, nsai_trial_plan *out) {
  char *yaml = chk_plans_yaml(plans, c);
  if (!yaml) return nsai_fail_nomem("a configuration", 1024);
  nsa_status status = obtain(plans, yaml, problem, out);
  free(yaml);
  return status;
}

/* ---- prefetch -------------------------------------------------------------------------------- */

static void *prefetch(void *argument) {
  chk_plans *plans = argument;
  if (nsai_verify_device_enter(&plans->device)) return NULL;
  while (!atomic_load(&plans->stop)) {
    int64_t i = atomic_fetch_add(&plans->ahead_next, 1);
    if (i >= plans->ahead_count) break;
    nsai_trial_plan unused;
    const nsai_verify_case *c = &plans->ahead[i];
    /* The entry stores a failure; the thread that runs the case reports it. */
    (void)chk_plans_get(plans, c, chk_case_op(c), &unused);
  }
  return NULL;
}

void chk_plans_prefetch(chk_plans *plans, const nsai_verify_case *cases, int64_t count) {
  plans->ahead = cases;
  plans->ahead_count = count;
  int wanted = plans->options.threads / 2;
  if (wanted > PREFETCH_THREADS) wanted = PREFETCH_THREADS;
  if (!plans->device.driver) wanted = 0; /* the CPU device compiles nothing */
  for (; plans->threads < wanted; plans->threads++)
    if (pthread_create(&plans->thread[plans->threads], NULL, prefetch, plans)) return;
}
