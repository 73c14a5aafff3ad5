/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "machine.h"

#include "support/cmocka_all.h"

#include "base/writer.h"

#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

#define MAX_TOKENS 64
#define GATE_CHANNELS 24
#define INDEX_DIM 40

void machine_expect(const char *what, nsa_status got, nsa_status want, const char *text) {
  if (got != want)
    fail_msg("%s: %s, expected %s: %s", what, nsa_status_name(got), nsa_status_name(want),
             got ? nsa_last_error() : "");
  if (text && !strstr(nsa_last_error(), text))
    fail_msg("%s: the error does not say \"%s\": %s", what, text, nsa_last_error());
}

static int32_t dtype_of(const machine_request *r) {
  return r->dtype ? r->dtype : r->gpu ? NSA_BF16 : NSA_F32;
}

void machine_yaml(const machine_request *r, char *text, size_t size) {
  static const char *const names[] = { "fp16", "bf16", "f32" };
  static const char *const phis[] = { "mean", "linear", "mlp", "external", "none" };
  static const char *const gates[] = { "weights", "logits", "mlp", "none" };
  nsai_writer w = nsai_writer_open(text, size);
  nsai_write(&w,
             "nsa: 1\nmodel:\n  heads: 6\n  kv_heads: 2\n  head_dim_qk: 24\n  head_dim_v: 16\n"
             "  compress: {%sphi: %s%s%s}\n"
             "  select: {block: 16, count: 4, init: 1, local: 2%s%s%s}\n  window: 20\n  gate: %s\n",
             r->indexed ? "" : "block: 8, stride: 4, ", phis[r->phi],
             r->phi == NSAI_PHI_MLP ? ", hidden: 10, activation: gelu" : "",
             r->keys_only ? ", output: false" : "", r->pool == NSAI_POOL_MAX ? ", pool: max" : "",
             r->normalized ? ", normalizer: {block: 16, stride: 8}" : "",
             r->indexed ? ", by: index" : "", gates[r->gate]);
  if (r->indexed) nsai_write(&w, "  index: {heads: 2, dim: %d}\n", INDEX_DIM);
  if (r->gate == NSAI_GATE_MLP)
    nsai_write(&w, "  gate_mlp: {channels: %d, hidden: %d}\n", GATE_CHANNELS, r->gate_hidden);
  nsai_write(&w, "  kv_sharing: %s\n  dtype: %s\n", r->per_branch ? "per_branch" : "shared",
             names[dtype_of(r) - NSA_F16]);
  if (!r->gpu) nsai_write(&w, "runtime: {device: cpu}\n");
  assert_true(w.used < size);
}

const char *machine_module(void) {
  const char *path = getenv("FAKE_CUDA");
  if (!path) fail_msg("FAKE_CUDA is not set: run through meson test");
  return path;
}

static void *symbol(const char *name) {
  void *module = dlopen(machine_module(), RTLD_NOW | RTLD_LOCAL);
  void *address = module ? dlsym(module, name) : NULL;
  assert_non_null(address);
  dlclose(module); /* the library keeps it open */
  return address;
}

fake_cuda_state *machine_record(void) {
  fake_cuda_state *(*record)(void);
  void *address = symbol("fake_cuda_record");
  memcpy(&record, &address, sizeof record);
  return record();
}

void machine_set_current(void *context) {
  nsai_cu_context (*set)(nsai_cu_context);
  void *address = symbol("fake_cuda_set_current");
  memcpy(&set, &address, sizeof set);
  set(context);
}

void machine_overrides_init(machine_overrides *o, const char *dir, const char *extra) {
  int n = 0;
  memset(o, 0, sizeof *o);
  snprintf(o->text[n++], sizeof o->text[0], "runtime.driver_path=%s", machine_module());
  snprintf(o->text[n++], sizeof o->text[0], "runtime.nvrtc_path=%s", machine_module());
  snprintf(o->text[n++], sizeof o->text[0], "runtime.cublaslt_path=%s", machine_module());
  snprintf(o->text[n++], sizeof o->text[0], "runtime.cache_dir=%s", dir);
  for (int i = 0; i < n; i++) o->list[i] = o->text[i];
  o->list[n] = extra;
}

nsa_ctx *machine_context(const char *yaml, const char *const *overrides, bool gpu) {
  nsa_ctx *ctx = NULL;
  nsa_options options = INIT(nsa_options, .yaml_text = yaml, .overrides = overrides);
  if (gpu) options.device = "cuda:1";
  machine_expect("nsa_create", nsa_create(NULL, &options, &ctx), NSA_OK, NULL);
  return ctx;
}

void machine_reopen(nsa_ctx **ctx, char dir[64], const machine_reopening *how) {
  machine_overrides o;
  nsa_destroy(*ctx);
  *ctx = NULL;
  if (!dir[0]) {
    snprintf(dir, 64, "/tmp/nsa-test-machine-XXXXXX");
    assert_non_null(mkdtemp(dir));
  }
  machine_overrides_init(&o, dir, how->extra);
  nsa_options options = INIT(nsa_options, .yaml_text = how->yaml, .overrides = o.list,
                             .device = "cuda:1", .log = how->log, .log_user = how->log_user);
  machine_expect("nsa_create", nsa_create(NULL, &options, ctx), NSA_OK, NULL);
}

nsa_plan *machine_plan(nsa_ctx *ctx, const nsa_problem *problem) {
  nsa_plan *plan = NULL;
  machine_expect("nsa_plan_create", nsa_plan_create(ctx, problem, NULL, NULL, &plan), NSA_OK, NULL);
  return plan;
}

nsa_status machine_forward(const machine *m) {
  return nsa_forward(m->plan, &m->exec, &m->toy.batch, &m->toy.io);
}

void machine_expect_launches(const char *names) {
  const fake_cuda_state *r = machine_record();
  char text[FAKE_CUDA_LAUNCHES * 64];
  nsai_writer out = nsai_writer_open(text, sizeof text);
  for (int i = 0; i < r->launches && i < FAKE_CUDA_LAUNCHES; i++)
    nsai_write(&out, "%s%s", i ? " " : "", r->launch[i].name);
  if (strcmp(text, names) != 0 || r->launches > FAKE_CUDA_LAUNCHES)
    fail_msg("%d launches:\n%s\nexpected\n%s", r->launches, text, names);
}

void machine_expect_story(nsa_ctx *ctx, const nsa_problem *problem, const char *part) {
  static char story[65536];
  assert_true(nsa_explain(ctx, problem, story, sizeof story) < sizeof story);
  if (!strstr(story, part)) fail_msg("\"%s\" is not in:\n%s", part, story);
}

nsa_problem machine_problem(int32_t op, int64_t tokens, int32_t overlap) {
  return INIT(nsa_problem, .op = op, .max_tokens = tokens, .max_seqs = 1, .overlap = overlap);
}

static void make_gate(machine *m, const machine_request *r) {
  toy *t = &m->toy;
  if (r->gate != NSAI_GATE_MLP) return;
  int64_t out = t->model.heads * 3, h = r->gate_hidden;
  t->io.gate = (nsa_gate){ 0 };
  t->io.gate.x = toy_tensor(t, t->model.dtype, 2, t->tokens, GATE_CHANNELS, 0);
  t->io.gate.w2 = toy_tensor(t, t->model.dtype, 2, h ? h : GATE_CHANNELS, out, 0);
  t->io.gate.b2 = toy_tensor(t, t->model.dtype, 1, out, 0, 0);
  toy_randomize(t, &t->io.gate.x);
  toy_randomize(t, &t->io.gate.w2);
  toy_randomize(t, &t->io.gate.b2);
  if (!h) return;
  t->io.gate.w1 = toy_tensor(t, t->model.dtype, 2, GATE_CHANNELS, h, 0);
  t->io.gate.b1 = toy_tensor(t, t->model.dtype, 1, h, 0, 0);
  toy_randomize(t, &t->io.gate.w1);
  toy_randomize(t, &t->io.gate.b1);
}

static void make_compressed(machine *m, const machine_request *r) {
  static const int32_t blocks[] = { 3, 4 }; /* (17 - 8) / 4 + 1, (23 - 8) / 4 + 1 */
  toy *t = &m->toy;
  if (r->phi != NSAI_PHI_EXTERNAL) return;
  t->batch.cu_cmp = toy_offsets(t, 2, blocks);
  t->io.kv.k_cmp = toy_tensor(t, t->model.dtype, 3, 7, t->model.kv_heads, 24);
  toy_randomize(t, &t->io.kv.k_cmp);
  if (r->keys_only) return;
  t->io.kv.v_cmp = toy_tensor(t, t->model.dtype, 3, 7, t->model.kv_heads, 16);
  toy_randomize(t, &t->io.kv.v_cmp);
}

static void make_toy(machine *m, const machine_request *r) {
  static const int32_t lengths[] = { 17, 23 };
  nsai_model g = toy_model(r->phi);
  g.dtype = dtype_of(r);
  g.per_branch = r->per_branch;
  g.keys_only = r->keys_only;
  g.pool = r->pool;
  if (r->indexed) g.by = NSAI_BY_INDEX, g.index_heads = 2, g.index_dim = INDEX_DIM;
  if (r->normalized) g.norm_block = 16, g.norm_stride = 8;
  g.gate = r->gate;
  g.gate_hidden = r->gate_hidden;
  g.gate_channels = r->gate == NSAI_GATE_MLP ? GATE_CHANNELS : 0;
  g.gate_activation = NSAI_ACT_SILU;
  toy_init(&m->toy, &g, 2, lengths, lengths);
  make_gate(m, r);
  make_compressed(m, r);
  if (r->selection == NSA_SELECT_RANGES) m->toy.io.block_idx = (nsa_tensor){ 0 };
  if (r->op == NSA_OP_DENSE) {
    memset(m->toy.io.o_branch, 0, sizeof m->toy.io.o_branch);
    m->toy.io.lse[1] = m->toy.io.lse[2] = (nsa_tensor){ 0 };
  }
}

void machine_add_workspace(const nsa_plan *plan, nsa_exec *exec) {
  nsa_caps caps = NSA_CAPS_INIT;
  machine_expect("nsa_plan_caps", nsa_plan_caps(plan, &caps), NSA_OK, NULL);
  if (!caps.workspace_bytes) return; /* some rows of a GPU need none */
  exec->workspace = aligned_alloc(caps.workspace_align, caps.workspace_bytes); /* never touched */
  assert_non_null(exec->workspace);
  exec->workspace_bytes = caps.workspace_bytes;
}

void machine_init(machine *m, const machine_request *r) {
  char yaml[1024];
  machine_overrides gpu;
  const char *const cpu[] = { r->override, NULL };
  memset(m, 0, sizeof *m);
  m->gpu = r->gpu;
  snprintf(m->dir, sizeof m->dir, "/tmp/nsa-test-machine-XXXXXX");
  assert_non_null(mkdtemp(m->dir));
  machine_yaml(r, yaml, sizeof yaml);
  machine_overrides_init(&gpu, m->dir, r->override);
  if (r->also) {
    assert_non_null(r->override);
    gpu.list[5] = r->also; /* the last but one is NULL */
  }
  m->ctx = machine_context(yaml, r->gpu ? gpu.list : cpu, r->gpu);
  nsa_problem problem = INIT(nsa_problem, .op = r->op, .max_tokens = MAX_TOKENS, .max_seqs = 2,
                             .selection = r->selection, .max_probe_rows = r->max_probe_rows);
  m->plan = machine_plan(m->ctx, &problem);
  m->exec = (nsa_exec)NSA_EXEC_INIT;
  machine_add_workspace(m->plan, &m->exec);
  m->workspace = m->exec.workspace;
  make_toy(m, r);
}

void machine_free(machine *m) {
  nsa_plan_destroy(m->plan);
  nsa_destroy(m->ctx);
  toy_free(&m->toy);
  free(m->workspace);
  machine_remove(m->dir);
}

void machine_remove(const char *dir) {
  char path[512], inner[1024];
  DIR *outer = opendir(dir);
  for (const struct dirent *item; outer && (item = readdir(outer)) != NULL;) {
    if (!strcmp(item->d_name, ".") || !strcmp(item->d_name, "..")) continue;
    snprintf(path, sizeof path, "%s/%s", dir, item->d_name);
    DIR *below = opendir(path);
    for (const struct dirent *file; below && (file = readdir(below)) != NULL;) {
      snprintf(inner, sizeof inner, "%s/%s", path, file->d_name);
      unlink(inner);
    }
    if (below) closedir(below);
    if (rmdir(path)) unlink(path);
  }
  if (outer) closedir(outer);
  rmdir(dir);
}
