/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Prints what the library decides and launches: for each shipped configuration, each case of
 * launch_cases.c and each row of the variant table, on several GPUs of the fake driver. For each
 * it prints the text of nsa_explain, the bytes of workspace, and every launch of a run with its
 * parameters. launches.py compares the output of two versions of the library.
 *
 *   launches [--gpu N] [--case NAME] [CONFIG...]    from the root of the tree, or $TEST_SOURCE_ROOT
 *
 * FAKE_CUDA names the module of the fake driver. Tensors have no memory, since nothing reads
 * them here. A pointer is printed as "buffer+offset"; the workspace is "ws". A kernel's
 * parameters are printed in words of 8 bytes, "offset value" each, without those that are 0.
 */
#include "gradients.h"
#include "launch_cases.h"
#include "launch_print.h"
#include "machine.h"
#include "plan/context.h"
#include "plan/parts.h"
#include "support/init.h"

#include <nsa/backward.h>
#include <nsa/kv_cache.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Indices as in FAKE_CUDA_GPU. */
static const char *const gpus[] = {
  "90 132 232448 NVIDIA H200",
  "80 108 166912 NVIDIA A100",
  "89 128 101376 NVIDIA L40S",
  "100 148 232448 NVIDIA B200",
};

static const char *const configs[] = {
  "configs/h200_d128.yaml",       "configs/base.yaml",           "configs/models/g1_d64.yaml",
  "configs/models/g4_d128.yaml",  "configs/models/g8_d128.yaml", "configs/models/g16_d64.yaml",
  "configs/models/g16_d192.yaml",
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- tensors of a run ---- */

/* A contiguous tensor in a buffer of its own; the first negative dimension ends the shape. */
static nsa_tensor new_tensor(const char *name, int32_t dtype, const int64_t shape[NSA_MAX_DIMS]) {
  nsa_tensor t = { .dtype = dtype };
  int64_t stride = 1;
  while (t.ndim < NSA_MAX_DIMS && shape[t.ndim] >= 0) t.ndim++;
  for (int i = t.ndim - 1; i >= 0; i--) {
    t.shape[i] = shape[i];
    t.stride[i] = stride;
    stride *= shape[i];
  }
  t.data = buffer_new(name);
  return t;
}

#define TENSOR(name, dtype, ...)                                                                   \
  new_tensor(name, dtype, (const int64_t[NSA_MAX_DIMS + 1]){ __VA_ARGS__, -1 })

/* A case with its sizes filled in. */
typedef struct subject {
  const scenario *s;
  nsa_ctx *ctx;
  const nsai_model *m;
  nsa_problem problem;
  int64_t tokens, kv_tokens, max_kv_len;
  int32_t seqs, page_size, max_q_len;
  nsa_batch batch;
  nsa_io io;
  nsa_grads grads;
  nsa_kv new_kv;
} subject;

static bool is_cached(int32_t op) {
  return op == NSA_OP_PREFILL || op == NSA_OP_DECODE || op == NSA_OP_APPEND;
}

static void make_batch(subject *x) {
  nsa_batch *b = &x->batch;
  *b = (nsa_batch)NSA_BATCH_INIT;
  b->num_seqs = x->seqs;
  bool cached = is_cached(x->s->op);
  if (!cached || x->s->wants & CU_Q) b->cu_q = TENSOR("cu_q", NSA_I32, x->seqs + 1);
  if (!cached) {
    b->cu_kv = TENSOR("cu_kv", NSA_I32, x->seqs + 1);
    b->cu_cmp = TENSOR("cu_cmp", NSA_I32, x->seqs + 1);
    return;
  }
  b->kv_len = TENSOR("kv_len", NSA_I32, x->seqs);
  if (x->page_size > 0)
    b->block_table =
        TENSOR("block_table", NSA_I32, x->seqs, (x->max_kv_len + x->page_size - 1) / x->page_size);
  if (x->page_size <= 0 || x->s->window_ring) b->slots = TENSOR("slots", NSA_I32, x->seqs);
  if (x->s->op == NSA_OP_APPEND) b->slot_mapping = TENSOR("slot_mapping", NSA_I64, x->tokens);
}

/* What a cache's part is stored in: the configuration's dtype, or the model's. */
static int32_t stored(const subject *x, int32_t dtype) { return dtype ? dtype : x->m->dtype; }

/* K and V of every pair that the model reads: packed, in pages, in rows or in rings. */
static void make_kv(subject *x, nsa_kv *kv, bool cached) {
  static const char *const names[2][NSA_BRANCHES] = { { "k0", "k1", "k2" }, { "v0", "v1", "v2" } };
  const nsai_model *m = x->m;
  const int32_t raw = stored(x, x->ctx->config->serving.kv_dtype),
                compressed = stored(x, x->ctx->config->serving.cmp_dtype);
  bool paged = x->page_size > 0;
  int64_t pages = x->seqs, rows = x->max_kv_len, entries = (rows + m->stride - 1) / m->stride;
  if (paged) {
    pages = x->seqs * ((x->max_kv_len + x->page_size - 1) / x->page_size);
    rows = x->page_size;
    entries = rows / m->stride;
  }
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (b && !m->per_branch) continue;
    bool ring = x->s->window_ring && b == NSA_WIN;
    for (int side = 0; side < 2; side++) {
      int64_t dim = side ? m->head_dim_v : m->head_dim_qk;
      nsa_tensor *t = side ? &kv->v[b] : &kv->k[b];
      if (!cached)
        *t = TENSOR(names[side][b], m->dtype, x->kv_tokens, m->kv_heads, dim);
      else
        *t = TENSOR(names[side][b], raw, ring ? x->seqs : pages,
                    ring ? m->window + x->max_q_len : rows, m->kv_heads, dim);
    }
  }
  if (!cached) return;
  kv->k_cmp = TENSOR("k_cmp", compressed, pages, entries, m->kv_heads, m->head_dim_qk);
  kv->v_cmp = TENSOR("v_cmp", compressed, pages, entries, m->kv_heads, m->head_dim_v);
}

/* Scales of a cache in e4m3: of K one for each KV head, of V one for all. */
static void make_scales(const subject *x, nsa_io *io) {
  static const char *const names[NSA_BRANCHES] = { "k0_scale", "k1_scale", "k2_scale" };
  for (int b = 0; b < NSA_BRANCHES && x->ctx->config->serving.kv_dtype; b++) {
    if (!nsai_reads_pair(x->m, b)) continue;
    io->k_scale[b] = TENSOR(names[b], NSA_F32, x->m->kv_heads);
    io->v_scale[b] = TENSOR("v_scale", NSA_F32, 1);
  }
  if (!x->ctx->config->serving.cmp_dtype) return;
  io->k_cmp_scale = TENSOR("k_cmp_scale", NSA_F32, x->m->kv_heads);
}

static void make_compressed(subject *x, nsa_kv *kv) {
  int64_t rows = x->kv_tokens / x->m->stride + 1;
  kv->k_cmp = TENSOR("k_cmp", x->m->dtype, rows, x->m->kv_heads, x->m->head_dim_qk);
  kv->v_cmp = TENSOR("v_cmp", x->m->dtype, rows, x->m->kv_heads, x->m->head_dim_v);
}

static nsa_phi_side make_phi_side(const subject *x, const char *side, int64_t dim) {
  const nsai_model *m = x->m;
  const int64_t heads = m->kv_heads, flat = m->block * dim, hidden = m->phi_hidden;
  nsa_phi_side p = { 0 };
  char name[6][8];
  static const char *const fields[] = { "pe", "w", "w1", "b1", "w2", "b2" };
  for (int i = 0; i < 6; i++) snprintf(name[i], sizeof name[i], "%s_%s", side, fields[i]);
  if (!nsai_phi_has_weights(m)) return p;
  p.pe = TENSOR(name[0], m->dtype, heads, m->block, dim);
  if (m->phi == NSAI_PHI_LINEAR) {
    p.w = TENSOR(name[1], m->dtype, heads, flat, dim);
    return p;
  }
  p.w1 = TENSOR(name[2], m->dtype, heads, flat, hidden);
  p.b1 = TENSOR(name[3], m->dtype, heads, hidden);
  p.w2 = TENSOR(name[4], m->dtype, heads, hidden, dim);
  p.b2 = TENSOR(name[5], m->dtype, heads, dim);
  return p;
}

static nsa_gate make_gate(const subject *x) {
  const nsai_model *m = x->m;
  const int64_t out = (int64_t)m->heads * 3, hidden = m->gate_hidden;
  nsa_gate g = { 0 };
  if (m->gate == NSAI_GATE_NONE) return g;
  if (m->gate != NSAI_GATE_MLP) {
    g.value = TENSOR("gate", m->dtype, x->tokens, m->heads, 3);
    return g;
  }
  g.x = TENSOR("gate_x", m->dtype, x->tokens, m->gate_channels);
  if (hidden) {
    g.w1 = TENSOR("gate_w1", m->dtype, m->gate_channels, hidden);
    g.b1 = TENSOR("gate_b1", m->dtype, hidden);
  }
  g.w2 = TENSOR("gate_w2", m->dtype, hidden ? hidden : m->gate_channels, out);
  g.b2 = TENSOR("gate_b2", m->dtype, out);
  return g;
}

static void make_selection(subject *x, nsa_io *io) {
  const nsai_model *m = x->m;
  int64_t heads = m->kv_heads, n = m->select_count;
  bool all = x->s->wants & SHARED_LISTS;
  if (x->s->selection == NSA_SELECT_RANGES)
    io->ranges = all ? TENSOR("ranges", NSA_I32, x->tokens, n, 2)
                     : TENSOR("ranges", NSA_I32, x->tokens, heads, n, 2);
  else if (x->s->selection == NSA_SELECT_BLOCKS && all)
    io->block_idx = TENSOR("block_idx", NSA_I32, x->tokens, n);
  else if (x->s->selection == NSA_SELECT_BLOCKS || x->s->op == NSA_OP_BACKWARD ||
           x->s->wants & OUTPUTS || x->s->call == CALL_SELECT)
    io->block_idx = TENSOR("block_idx", NSA_I32, x->tokens, heads, n);
}

static void make_outputs(subject *x, nsa_io *io) {
  static const char *const names[2][NSA_BRANCHES] = { { "o_cmp", "o_sel", "o_win" },
                                                      { "lse_cmp", "lse_sel", "lse_win" } };
  const nsai_model *m = x->m;
  io->o = TENSOR("o", m->dtype, x->tokens, m->heads, m->head_dim_v);
  if (!(x->s->wants & OUTPUTS)) return;
  if (x->s->op == NSA_OP_DENSE) {
    io->lse[0] = TENSOR("lse", NSA_F32, x->tokens, m->heads);
    return;
  }
  for (int b = 0; b < NSA_BRANCHES; b++) {
    io->o_branch[b] = TENSOR(names[0][b], m->dtype, x->tokens, m->heads, m->head_dim_v);
    io->lse[b] = TENSOR(names[1][b], NSA_F32, x->tokens, m->heads);
  }
}

static void make_io(subject *x) {
  const nsai_model *m = x->m;
  const scenario *s = x->s;
  nsa_io *io = &x->io;
  bool cached = is_cached(s->op);
  *io = (nsa_io)NSA_IO_INIT;
  io->q = TENSOR("q", m->dtype, x->tokens, m->heads, m->head_dim_qk);
  make_kv(x, &io->kv, cached);
  if (cached) make_scales(x, io);
  io->phi.k = make_phi_side(x, "k", m->head_dim_qk);
  io->phi.v = make_phi_side(x, "v", m->head_dim_v);
  io->gate = make_gate(x);
  make_outputs(x, io);
  if (s->op != NSA_OP_DENSE) make_selection(x, io);
  if (!cached && s->op != NSA_OP_DENSE &&
      (m->phi == NSAI_PHI_EXTERNAL || s->wants & OUTPUTS || s->call == CALL_COMPRESS))
    make_compressed(x, &io->kv);
  if (s->probe_rows) {
    int64_t blocks = nsai_select_block_count(m, x->max_kv_len);
    io->probe_rows = TENSOR("probe_rows", NSA_I32, s->probe_rows);
    io->probe_importance = TENSOR("probe", NSA_F32, s->probe_rows, m->kv_heads, blocks);
  }
  if (x->ctx->config->runtime.count_reads)
    io->kv_reads = TENSOR("kv_reads", NSA_I64, x->seqs, m->kv_heads, NSA_BRANCHES, 2);
}

static void make_gradient(const subject *x, const nsa_tensor *of, nsa_tensor *gradient) {
  char name[24];
  *gradient = *of;
  if (x->s->wants & FLOAT_GRADS) gradient->dtype = NSA_F32;
  snprintf(name, sizeof name, "d_%s", buffer_name(of->data));
  gradient->data = buffer_new(name);
}

/* A gradient of every input that the model reads; of k_cmp and v_cmp only where phi is external. */
static void make_all_gradients(subject *x) {
  nsa_kv *d_kv = &x->grads.d_kv;
  pair pairs[MAX_PAIRS];
  x->grads = INIT(nsa_grads, .accumulate = (x->s->wants & ACCUMULATE) != 0);
  make_gradient(x, &x->io.o, &x->grads.d_o);
  int count = list_pairs(&x->io, &x->grads, pairs);
  for (int i = 0; i < count; i++) make_gradient(x, pairs[i].input, pairs[i].gradient);
  for (int b = 0; b < NSA_BRANCHES; b++)
    if (!nsai_reads_pair(x->m, b)) d_kv->k[b] = d_kv->v[b] = (nsa_tensor){ 0 };
  if (x->m->phi != NSAI_PHI_EXTERNAL) d_kv->k_cmp = d_kv->v_cmp = (nsa_tensor){ 0 };
}

/* ---- plans and runs ---- */

static void print_failure(const char *what, nsa_status status) {
  const char *text = nsa_last_error();
  printf("%s: %s: %.*s\n", what, nsa_status_name(status), (int)strcspn(text, "\n"), text);
}

static nsa_status run(subject *x, const nsa_plan *plan, const nsa_exec *exec) {
  const nsa_batch *batch = is_cached(x->s->op) || x->s->seqs ? &x->batch : NULL;
  switch (x->s->call) {
  case CALL_COMPRESS: return nsa_compress(plan, exec, batch, &x->io);
  case CALL_SELECT:
    x->io.importance = TENSOR("importance", NSA_F32, x->tokens, x->m->kv_heads,
                              nsai_select_block_count(x->m, x->max_kv_len));
    return nsa_select(plan, exec, batch, &x->io);
  default: break;
  }
  switch (x->s->op) {
  case NSA_OP_DENSE: return nsa_dense(plan, exec, batch, &x->io);
  case NSA_OP_BACKWARD: return nsa_backward(plan, exec, batch, &x->io, &x->grads);
  case NSA_OP_PREFILL: return nsa_prefill(plan, exec, batch, &x->io);
  case NSA_OP_DECODE: return nsa_decode(plan, exec, batch, &x->io);
  case NSA_OP_APPEND:
    x->kv_tokens = x->tokens;
    make_kv(x, &x->io.new_kv, false);
    return nsa_kv_append(plan, exec, batch, &x->io);
  default: return nsa_forward(plan, exec, batch, &x->io);
  }
}

/* Determines the sizes of the run that the case and the configuration leave open. */
static void find_sizes(subject *x) {
  const scenario *s = x->s;
  const nsai_config *c = x->ctx->config;
  x->seqs = s->seqs ? s->seqs : s->max_seqs ? s->max_seqs : 1;
  x->max_kv_len = s->max_kv_len ? s->max_kv_len : c->serving.max_kv_len;
  x->max_q_len = s->op == NSA_OP_DECODE ? s->max_q_len ? s->max_q_len : 1 : (int32_t)s->max_tokens;
  x->page_size = s->page_size;
  x->tokens = s->tokens                ? s->tokens
              : s->op == NSA_OP_DECODE ? (int64_t)x->seqs * x->max_q_len
              : s->max_tokens          ? s->max_tokens
                                       : c->serving.max_tokens;
  if (!is_cached(s->op) && x->max_kv_len > x->tokens && s->max_tokens)
    x->max_kv_len = s->max_tokens;
  x->kv_tokens = x->tokens;
}

static nsa_problem problem_of(const scenario *s) {
  return INIT(nsa_problem, .op = s->op, .max_tokens = s->max_tokens, .max_kv_len = s->max_kv_len,
              .max_seqs = s->max_seqs, .max_q_len = s->max_q_len, .page_size = s->page_size,
              .window_ring = s->window_ring, .selection = s->selection, .overlap = s->overlap,
              .max_probe_rows = s->probe_rows);
}

static void print_explanation(nsa_ctx *ctx, const nsa_problem *problem) {
  static char text[1 << 16];
  nsa_problem_string(ctx, problem, text, sizeof text);
  printf("problem %s\n", text);
  if (nsa_explain(ctx, problem, text, sizeof text) >= sizeof text) abort();
  printf("%s", text);
}

/* A plan and a run on a context. */
static void print_run(nsa_ctx *ctx, const scenario *s) {
  subject x = { .s = s, .ctx = ctx, .m = &ctx->config->model, .problem = problem_of(s) };
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_plan *plan = NULL;
  print_explanation(ctx, &x.problem);
  nsa_status status = nsa_plan_create(ctx, &x.problem, NULL, NULL, &plan);
  if (status) {
    print_failure("plan", status);
    return;
  }
  nsa_plan_caps(plan, &caps);
  printf("workspace %llu bytes; %s\n", (unsigned long long)caps.workspace_bytes, caps.variants);
  buffers_forget();
  find_sizes(&x);
  /* An f32 d_o needs more than the plan's workspace. */
  nsa_exec exec = INIT(nsa_exec, .branches = s->branches, .workspace = buffer_new("ws"),
                       .workspace_bytes = BUFFER_BYTES);
  make_batch(&x);
  make_io(&x);
  if (s->op == NSA_OP_BACKWARD) make_all_gradients(&x);
  fake_cuda_state *record = machine_record();
  record->launches = record->waits = record->memory_calls = 0;
  record->kernel = print_launch;
  print_cached = is_cached(s->op);
  printf("run of %lld tokens, %d sequences\n", (long long)x.tokens, x.seqs);
  status = run(&x, plan, &exec);
  record->kernel = NULL;
  if (status) print_failure("run", status);
  printf("  %d launches, %d waits, %d memory calls, %d large clusters\n", record->launches,
         record->waits, record->memory_calls, record->large_clusters);
  record->large_clusters = 0;
  nsa_plan_destroy(plan);
}

/* Runs one case on one configuration, with one additional setting or NULL. */
static void print_case(const char *config, const scenario *s, const char *setting) {
  machine_overrides o;
  const char *list[16];
  int n = 0;
  nsa_ctx *ctx = NULL;
  printf("\n== %s: %s%s%s\n", config, s->name, setting ? ": " : "", setting ? setting : "");
  machine_overrides_init(&o, "/nonexistent", NULL);
  while (o.list[n]) list[n] = o.list[n], n++;
  list[n++] = "runtime.cache_mode=off";
  for (int i = 0; i < MAX_SETTINGS && s->set[i]; i++) list[n++] = s->set[i];
  list[n++] = setting;
  list[n] = NULL;
  nsa_options options =
      INIT(nsa_options, .overrides = list, .device = "cuda:1", .log_level = NSA_LOG_ERROR);
  nsa_status status = nsa_create(config, &options, &ctx);
  if (status)
    print_failure("context", status);
  else
    print_run(ctx, s);
  nsa_destroy(ctx);
}

static bool is_wanted(const char *only, const char *name) {
  return !only || strncmp(only, name, strlen(only)) == 0;
}

/* Forces every row of the variant table whose stage the operation has. */
static void print_forced(const char *config, const scenario *s) {
  for (const nsai_variant *const *row = nsai_library_parts.variants; *row; row++) {
    const nsai_variant *v = *row;
    char setting[128];
    nsai_problem problem = { .op = s->op ? s->op : NSA_OP_FORWARD,
                             .selection = s->selection ? s->selection : NSA_SELECT_TOPN };
    problem.model.select_count = problem.model.window = 1;
    if (!nsai_stage_needed(&problem, v->stage)) continue;
    snprintf(setting, sizeof setting, "variants.force.%s=%s", nsai_stage_name(v->stage), v->name);
    print_case(config, s, setting);
  }
}

int main(int argc, char **argv) {
  const char *only = NULL, *root = getenv("TEST_SOURCE_ROOT"), *const *list = configs;
  size_t count = COUNT(configs), first_gpu = 0, end_gpu = COUNT(gpus);
  int at = 1;
  for (; at + 1 < argc && argv[at][0] == '-'; at += 2) {
    if (!strcmp(argv[at], "--case"))
      only = argv[at + 1];
    else if (!strcmp(argv[at], "--gpu"))
      first_gpu = (size_t)atoi(argv[at + 1]), end_gpu = first_gpu + 1;
    else
      return fprintf(stderr, "launches: %s is no option\n", argv[at]), 2;
  }
  if (at < argc) list = (const char *const *)argv + at, count = (size_t)(argc - at);
  if (end_gpu > COUNT(gpus) || (root && chdir(root))) return perror("launches"), 2;
  for (size_t g = first_gpu; g < end_gpu; g++) {
    setenv("FAKE_CUDA_GPU", gpus[g], 1);
    printf("\n==== %s\n", gpus[g]);
    for (size_t c = 0; c < count; c++) {
      if (c && g > 1 && at == argc) break; /* the other GPUs run the first configuration only */
      for (const scenario *s = launch_cases; s->name; s++)
        if (is_wanted(only, s->name)) print_case(list[c], s, NULL);
      for (const scenario *s = launch_forced; c < 2 && s->name; s++)
        if (is_wanted(only, s->name)) print_forced(list[c], s);
    }
  }
  return 0;
}
