/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-autotune quickstart: uses the library on this machine through its public API: plan, run,
 * check a property that needs no reference, and compare the time with dense attention.
 */
#include "cli/cli.h"

#include "base/duration.h"
#include "base/float16.h"
#include "base/text.h"
#include "plan/context.h"
#include "verify/device.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The dimensions of configs/h200_d128.yaml; gates as weights, so that their sum is exact. */
enum { HEADS = 64, KV_HEADS = 4, DIM = 128, BLOCK = 32, STRIDE = 16 };
enum { SELECT_BLOCK = 64, SELECT_COUNT = 16, WINDOW = 512 };
static const char model[] = "nsa: 1\n"
                            "model:\n"
                            "  heads: 64\n"
                            "  kv_heads: 4\n"
                            "  head_dim: 128\n"
                            "  compress: {block: 32, stride: 16, phi: mean}\n"
                            "  select: {block: 64, count: 16, init: 1, local: 2}\n"
                            "  window: 512\n"
                            "  gate: weights\n"
                            "  kv_sharing: shared\n"
                            "  dtype: bf16\n"
                            "serving: {max_seqs: 1}\n";
static const float gates[NSA_BRANCHES] = { 0.25f, 0.5f, 0.25f };

#define GPU_TOKENS 16384 /* long enough that the sparse forward is faster than dense attention */
#define CPU_TOKENS 512   /* takes a second on two cores */
#define LAUNCHES 9       /* the median of so many, after one for warm-up */

/* Probabilities are rounded to bf16 (2^-9 relative) before the product with V, while their sum
 * is not; the output is rounded once more. */
#define TOLERANCE 0.0078125f

typedef struct arguments {
  nsai_cli_settings settings;
  int64_t tokens; /* 0: depends on the device */
  char device[64];
} arguments;

static const struct argp_option options[] = {
  { "device", 'd', "DEVICE", 0,
    "runtime.device: auto, cpu, an ordinal (cuda:1), a PCI bus id, a UUID", 0 },
  { "tokens", 't', "N", 0, "Length of the sequence (16384 on a GPU, 512 on the CPU)", 0 },
  { 0 }
};

static error_t parse(int key, char *value, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
  case 'd':
    snprintf(a->device, sizeof a->device, "runtime.device=%s", value);
    nsai_cli_override(&a->settings, a->device, state);
    break;
  case 't':
    if (!nsai_parse_integer(value, 1, INT64_MAX, &a->tokens))
      argp_error(state, "--tokens: \"%s\" is not a number from 1", value);
    break;
  case ARGP_KEY_ARG: argp_error(state, "unexpected argument \"%s\"", value); break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

/* ---- the demonstration ---- */

typedef enum buffer { Q, K, V, O, GATE, WORKSPACE, BUFFERS } buffer;

typedef struct demo {
  nsa_ctx *ctx;
  nsai_verify_device device; /* the context's, on its default stream */
  nsa_plan *forward, *dense;
  int64_t tokens;
  void *memory[BUFFERS]; /* device memory */
  uint64_t workspace_bytes;
  double plan_seconds;
  int64_t compiled;
  bool pushed; /* nsai_context_enter has made the device current */
} demo;

static void demo_destroy(demo *d) {
  if (!d->ctx) return;
  for (int i = 0; i < BUFFERS; i++) nsai_verify_device_free(&d->device, d->memory[i]);
  nsa_plan_destroy(d->forward);
  nsa_plan_destroy(d->dense);
  if (!d->ctx->cpu) nsai_context_leave(d->ctx, d->pushed);
  nsa_destroy(d->ctx);
}

/* Uniform in [-sqrt 3, sqrt 3]: unit variance. The generator is xorshift64. */
static float noise(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return ((float)(*state >> 40) / 8388608.0f - 1.0f) * 1.7320508f;
}

static nsa_status fill(demo *d, buffer which, int64_t row) {
  size_t count = (size_t)(d->tokens * row);
  uint64_t state = 0x9e3779b97f4a7c15u + (uint64_t)which; /* any seed but 0 */
  uint16_t *host = malloc(count * sizeof *host);
  if (!host) return nsai_fail_nomem("a tensor", count * sizeof *host);
  for (size_t i = 0; i < count; i++)
    host[i] = nsai_bf16_from_float(which == V      ? 1.0f
                                   : which == GATE ? gates[i % NSA_BRANCHES]
                                                   : noise(&state));
  nsa_status status = nsai_verify_device_alloc(&d->device, count * sizeof *host, &d->memory[which]);
  if (status == NSA_OK)
    status = nsai_verify_device_upload(&d->device, d->memory[which], host, count * sizeof *host);
  free(host);
  return status;
}

static nsa_status make_plan(demo *d, int32_t op, nsa_plan **out) {
  nsai_cli_progress progress;
  nsa_problem p = NSA_PROBLEM_INIT;
  nsa_caps caps = NSA_CAPS_INIT;
  p.op = op;
  p.max_tokens = d->tokens;
  nsai_cli_progress_begin(&progress, "compiling");
  nsa_status status = nsa_plan_create(d->ctx, &p, nsai_cli_progress_step, &progress, out);
  nsai_cli_progress_clear(&progress);
  d->plan_seconds += nsai_seconds() - progress.started;
  d->compiled += progress.finished;
  NSAI_TRY(status);
  NSAI_TRY(nsa_plan_caps(*out, &caps));
  if (caps.workspace_bytes > d->workspace_bytes) d->workspace_bytes = caps.workspace_bytes;
  return NSA_OK;
}

static nsa_status prepare(demo *d) {
  NSAI_TRY(make_plan(d, NSA_OP_FORWARD, &d->forward));
  NSAI_TRY(make_plan(d, NSA_OP_DENSE, &d->dense));
  NSAI_TRY(fill(d, Q, HEADS * DIM));
  NSAI_TRY(fill(d, K, KV_HEADS * DIM));
  NSAI_TRY(fill(d, V, KV_HEADS * DIM));
  NSAI_TRY(fill(d, GATE, HEADS * NSA_BRANCHES));
  NSAI_TRY(fill(d, O, HEADS * DIM)); /* noise, which the run must overwrite */
  return nsai_verify_device_alloc(&d->device, d->workspace_bytes, &d->memory[WORKSPACE]);
}

static nsa_tensor tensor(const demo *d, buffer which, int64_t heads, int64_t dim) {
  return (nsa_tensor){ .data = d->memory[which],
                       .shape = { d->tokens, heads, dim },
                       .stride = { heads * dim, dim, 1 },
                       .ndim = 3,
                       .dtype = NSA_BF16 };
}

static nsa_status enqueue(const demo *d, int32_t op) {
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_io io = NSA_IO_INIT;
  exec.workspace = d->memory[WORKSPACE];
  exec.workspace_bytes = d->workspace_bytes;
  io.q = tensor(d, Q, HEADS, DIM);
  io.o = tensor(d, O, HEADS, DIM);
  io.kv.k[0] = tensor(d, K, KV_HEADS, DIM);
  io.kv.v[0] = tensor(d, V, KV_HEADS, DIM);
  io.gate.value = tensor(d, GATE, HEADS, NSA_BRANCHES);
  if (op == NSA_OP_DENSE) return nsa_dense(d->dense, &exec, NULL, &io);
  return nsa_forward(d->forward, &exec, NULL, &io);
}

/* Milliseconds of one launch. */
static nsa_status time_once(const demo *d, int32_t op, nsai_verify_timer *timer, double *ms) {
  NSAI_TRY(nsai_verify_timer_start(&d->device, timer));
  NSAI_TRY(enqueue(d, op));
  NSAI_TRY(nsai_verify_timer_stop(&d->device, timer));
  return nsai_verify_timer_read(&d->device, timer, ms);
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The median of several launches; on the CPU, whose time is seconds, of one. */
static nsa_status time_op(const demo *d, int32_t op, double *ms) {
  int launches = d->ctx->cpu ? 1 : LAUNCHES;
  nsai_verify_timer timer;
  double times[LAUNCHES];
  nsa_status status;
  NSAI_TRY_TO(done, nsai_verify_timer_create(&d->device, &timer));
  if (!d->ctx->cpu) NSAI_TRY_TO(done, time_once(d, op, &timer, ms));
  for (int i = 0; i < launches; i++) NSAI_TRY_TO(done, time_once(d, op, &timer, &times[i]));
  qsort(times, (size_t)launches, sizeof times[0], compare);
  *ms = times[launches / 2];
done:
  nsai_verify_timer_destroy(&d->device, &timer);
  return status;
}

/* With V = 1 every branch with at least one key gives 1, so an output is the sum of its gates. */
static nsa_status check_sum(const demo *d, float *largest) {
  size_t count = (size_t)d->tokens * HEADS * DIM;
  uint16_t *o = malloc(count * sizeof *o);
  if (!o) return nsai_fail_nomem("the output", count * sizeof *o);
  nsa_status status = nsai_verify_device_download(&d->device, o, d->memory[O], count * sizeof *o);
  *largest = 0;
  for (size_t i = 0; i < count && status == NSA_OK; i++) {
    bool sees_block = i / (HEADS * DIM) + 1 >= BLOCK;
    float expected = gates[NSA_SEL] + gates[NSA_WIN] + (sees_block ? gates[NSA_CMP] : 0);
    float difference = fabsf(nsai_float_from_bf16(o[i]) - expected);
    if (!isnan(*largest) && !(difference <= *largest)) *largest = difference; /* keeps a NaN */
  }
  free(o);
  NSAI_TRY(status);
  if (!(*largest <= TOLERANCE))
    return nsai_fail(NSA_E_VERIFY,
                     "the forward is wrong: with V = 1 an output differs from the sum of its gates "
                     "by %g; `nsacheck` tells which stage it is",
                     (double)*largest);
  return NSA_OK;
}

/* ---- roofline ---- */

/* Number of (query, key) pairs that a forward's three branches, or dense attention, evaluate. */
static double attended_keys(int64_t tokens, int32_t op) {
  double keys = 0;
  for (int64_t t = 0; t < tokens; t++) {
    int64_t seen = t + 1, block = t / SELECT_BLOCK;
    int64_t compressed = seen < BLOCK ? 0 : (seen - BLOCK) / STRIDE + 1;
    /* The current block is always selected, and contains tokens only up to the query. */
    int64_t selected = seen - (block < SELECT_COUNT ? 0 : block + 1 - SELECT_COUNT) * SELECT_BLOCK;
    keys += (double)(op == NSA_OP_DENSE ? seen
                                        : compressed + selected + (seen < WINDOW ? seen : WINDOW));
  }
  return keys;
}

/* Lower bound in milliseconds from the configuration's figures of the device: the operations of
 * q k^T and p v, or reading Q, K, V and writing O once; 0: a figure is missing. */
static double bound_ms(const demo *d, int32_t op) {
  const nsai_config *c = d->ctx->config;
  if (d->ctx->cpu || !(c->device.bf16_tflops > 0) || !(c->device.hbm_gbps > 0)) return 0;
  double operations = attended_keys(d->tokens, op) * HEADS * 2 * (DIM + DIM);
  double bytes = (double)d->tokens * 2 * (HEADS + KV_HEADS) * DIM * (double)sizeof(uint16_t);
  return fmax(operations / c->device.bf16_tflops * 1e-9, bytes / c->device.hbm_gbps * 1e-6);
}

static void print_roofline(const demo *d, double forward_ms, double dense_ms) {
  const nsai_config *c = d->ctx->config;
  double forward = bound_ms(d, NSA_OP_FORWARD), dense = bound_ms(d, NSA_OP_DENSE);
  if (!(forward > 0)) return;
  printf("roofline   forward %.0f %%, dense %.0f %% of %g TFLOPS and %g GB/s (%s)\n",
         100 * forward / forward_ms, 100 * dense / dense_ms, c->device.bf16_tflops,
         c->device.hbm_gbps, c->device.measured ? "measured" : "not measured");
}

/* ---- the command ---- */

static nsa_status open_demo(const arguments *a, demo *d) {
  nsai_cli_settings settings = a->settings;
  nsa_options o = NSA_OPTIONS_INIT;
  o.yaml_text = model;
  o.overrides = settings.overrides;
  nsa_status status = nsa_create(NULL, &o, &d->ctx);
  bool no_gpu = status == NSA_E_NO_DRIVER || status == NSA_E_NO_DEVICE;
  if (no_gpu && !a->device[0] && settings.count < NSAI_CLI_MAX_OVERRIDES) {
    fprintf(stderr, "no usable GPU (`nsa-autotune doctor` says why): using the CPU device\n");
    settings.overrides[settings.count++] = "runtime.device=cpu";
    status = nsa_create(NULL, &o, &d->ctx);
  }
  NSAI_TRY(status);
  d->tokens = a->tokens ? a->tokens : d->ctx->cpu ? CPU_TOKENS : GPU_TOKENS;
  if (d->ctx->cpu) return NSA_OK;
  d->device.driver = d->ctx->device.driver;
  return nsai_context_enter(d->ctx, &d->pushed);
}

static nsa_status run_demo(demo *d) {
  double forward_ms = 0, dense_ms = 0;
  float largest = 0;
  nsai_cache_tier_info tier;
  char size[32];
  printf("device     %s\n", d->ctx->cpu ? "CPU (the float64 reference)" : d->ctx->device.name);
  NSAI_TRY(prepare(d));
  printf("model      %d heads, %d KV heads, head dim %d, bf16, %" PRId64 " tokens\n", HEADS,
         KV_HEADS, DIM, d->tokens);
  printf("plans      %.2f s, %" PRId64 " kernel%s compiled, workspace %s\n", d->plan_seconds,
         d->compiled, d->compiled == 1 ? "" : "s", nsai_cli_bytes(d->workspace_bytes, size));
  NSAI_TRY(time_op(d, NSA_OP_FORWARD, &forward_ms));
  NSAI_TRY(check_sum(d, &largest));
  printf("check      V = 1 gives the sum of the gates, within %.2g\n", (double)largest);
  NSAI_TRY(time_op(d, NSA_OP_DENSE, &dense_ms));
  printf("forward    %.3f ms\ndense      %.3f ms, %.2f times the forward\n", forward_ms, dense_ms,
         dense_ms / forward_ms);
  print_roofline(d, forward_ms, dense_ms);
  if (d->ctx->cache && nsai_cache_tier(d->ctx->cache, 0, &tier))
    printf("cache      %s (%s)\n", tier.path, tier.state);
  return NSA_OK;
}

int nsai_cmd_quickstart(int argc, char **argv) {
  static const char help[] =
      "Makes plans for a model of 64 heads, runs its forward, checks it by a property, and times "
      "it beside dense attention, as shares of the device's speed too where the configuration has "
      "its figures (`nsa-autotune show device`). Without a usable GPU, and unless --device says "
      "otherwise, it uses the CPU device.";
  arguments a = { 0 };
  demo d = { 0 };
  nsai_cli_parse(argc, argv, options, parse, NULL, help, &a);
  nsai_cli_catch_interrupt();
  nsa_status status = open_demo(&a, &d);
  if (status == NSA_OK) status = run_demo(&d);
  int code = nsai_cli_exit(status);
  demo_destroy(&d);
  return code;
}
