/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Sizes of workspaces at the corners of every range. A plan's workspace holds at least what 128-bit
 * arithmetic says of the tensors that every such plan has, or the problem is refused.
 */
#include "support/cmocka_all.h"

#include "base/math.h"
#include "plan/problem.h"

#include <nsa/kv_cache.h>
#include <nsa/nsa.h>
#include <stdio.h>
#include <string.h>

__extension__ typedef __int128 wide;

static const int64_t corners[] = { 0,
                                   1,
                                   2,
                                   3,
                                   255,
                                   256,
                                   (int64_t)1 << 31,
                                   ((int64_t)1 << 32) + 1,
                                   (int64_t)3037000499, /* the largest whose square fits */
                                   (int64_t)3037000500,
                                   INT64_MAX / 2,
                                   INT64_MAX / 2 + 1,
                                   INT64_MAX - 255,
                                   INT64_MAX - 1,
                                   INT64_MAX };
#define CORNERS (sizeof corners / sizeof *corners)

static int64_t saturated(wide value) { return value > INT64_MAX ? INT64_MAX : (int64_t)value; }

static void test_helpers(void **state) {
  for (size_t i = 0; i < CORNERS; i++)
    for (size_t k = 0; k < CORNERS; k++) {
      const wide a = corners[i], b = corners[k];
      assert_true(nsai_size_add(corners[i], corners[k]) == saturated(a + b));
      assert_true(nsai_size_mul(corners[i], corners[k]) == saturated(a * b));
      for (size_t n = 0; n < CORNERS; n++) {
        /* Zero wins, also behind a product that does not fit. */
        const wide c = corners[n], all = a * b > INT64_MAX && c ? INT64_MAX : a * b * c;
        assert_true(NSAI_PRODUCT(corners[i], corners[k], corners[n]) == saturated(all));
      }
      if (b) assert_true(nsai_round_up(corners[i], corners[k]) >= corners[i]);
    }
  assert_true(nsai_round_up(INT64_MAX - 255, 256) == INT64_MAX);
  assert_true(nsai_round_up(INT64_MAX - 511, 256) == INT64_MAX - 511);
}

static uint64_t random_state = 7;
static int64_t pick(size_t count, const int32_t choices[]) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return choices[(random_state >> 33) % count];
}
#define PICK(...)                                                                                  \
  (int32_t) pick(sizeof((const int32_t[]){ __VA_ARGS__ }) / 4, (const int32_t[]){ __VA_ARGS__ })

/* A model of the least and the greatest values; not all are legal. */
static nsa_model draw_model(void) {
  nsa_model m = NSA_MODEL_INIT;
  m.heads = PICK(1, 16, 64, 4096);
  m.kv_heads = m.heads > 64 ? PICK(64, 4096) : PICK(1, m.heads);
  m.head_dim_qk = PICK(16, 128, 256), m.head_dim_v = PICK(16, 128, 256);
  m.compress_block = PICK(1, 32, 4096);
  m.compress_stride = PICK(1, 1, m.compress_block);
  m.phi = PICK(NSA_PHI_MEAN, NSA_PHI_LINEAR, NSA_PHI_MLP, NSA_PHI_EXTERNAL);
  if (m.phi == NSA_PHI_MLP) m.phi_hidden = PICK(8, 65536);
  m.select_block = PICK(64, 4096, 4096);
  m.select_count = PICK(NSA_NONE, 4, 256);
  if (m.select_count == NSA_NONE) m.select_init = m.select_local = NSA_NONE;
  m.window = PICK(NSA_NONE, 1, 1048576);
  m.gate = PICK(NSA_GATE_WEIGHTS, NSA_GATE_MLP);
  if (m.gate == NSA_GATE_MLP) m.gate_channels = PICK(8, 65536), m.gate_hidden = PICK(0, 65536);
  m.kv_sharing = PICK(NSA_KV_SHARED, NSA_KV_PER_BRANCH);
  return m;
}

/* Bytes that a plan needs whatever its rows are. */
static wide least_bytes(const nsa_model *m, const nsa_problem *p) {
  const wide tokens = p->max_tokens, kv_heads = m->kv_heads;
  const wide count = m->select_count > 0 ? m->select_count : 0,
             lists = tokens * kv_heads * count * 4;
  if (p->op == NSA_OP_DENSE || p->op == NSA_OP_APPEND) return 0;
  if (p->op == NSA_OP_DECODE) return lists;
  if (p->op == NSA_OP_BACKWARD) return tokens * m->heads * 16 * 3;
  wide bytes = lists + tokens * m->heads * 4;
  if (count || m->window > 0) bytes += tokens * m->heads * (2 * (wide)m->head_dim_v + 4);
  if (p->op == NSA_OP_PREFILL || m->phi == NSA_PHI_EXTERNAL) return bytes;
  const wide rows = p->max_kv_tokens / m->compress_stride + 1;
  bytes += rows * kv_heads * (m->head_dim_qk + m->head_dim_v) * 2;
  const wide dim = m->head_dim_qk > m->head_dim_v ? m->head_dim_qk : m->head_dim_v;
  if (m->phi != NSA_PHI_MEAN) bytes += (rows + 1) * kv_heads * m->compress_block * dim * 2;
  return bytes;
}

static nsa_problem draw_problem(void) {
  nsa_problem p = NSA_PROBLEM_INIT;
  static const int32_t most = 2000000000;
  p.op = PICK(NSA_OP_FORWARD, NSA_OP_DENSE, NSA_OP_PREFILL, NSA_OP_DECODE, NSA_OP_APPEND,
              NSA_OP_BACKWARD);
  p.max_tokens = PICK(1, 4096, 1 << 20, 1700000000, most - 1, most);
  p.max_kv_len = PICK(1, 4096, 1 << 20, 1700000000, most - 1, most);
  p.max_seqs = PICK(1, 1000000);
  if (p.op == NSA_OP_PREFILL || p.op == NSA_OP_DECODE || p.op == NSA_OP_APPEND)
    p.page_size = NSA_NONE;
  else
    p.max_kv_tokens = p.max_kv_len;
  return p;
}

/* `refused`, `taken`: counts of what happened. */
static void check_problem(nsa_ctx *ctx, const nsa_model *m, int *refused, int *taken) {
  const nsa_problem p = draw_problem();
  nsa_caps caps = NSA_CAPS_INIT;
  char text[8192];
  if (nsa_query(ctx, &p, &caps) != NSA_OK) return; /* a capacity that does not fit another one */
  text[0] = '\0';
  if (!caps.supported) nsa_explain(ctx, &p, text, sizeof text);
  const bool too_large = strstr(text, "the workspace needs more than 2^63 bytes") != NULL;
  const wide least = least_bytes(m, &p);
  if (caps.supported && (wide)caps.workspace_bytes < least)
    fail_msg("%llu bytes where at least %.4g are needed: %s",
             (unsigned long long)caps.workspace_bytes, (double)least, text);
  *refused += too_large;
  *taken += caps.supported;
}

static void test_corners(void **state) {
  static const char *const archs[] = { "sm_80", "sm_90a", "sm_100a", "sm_120" };
  int refused = 0, taken = 0;
  for (int i = 0; i < 1000; i++) {
    nsa_options options = NSA_OPTIONS_INIT;
    nsa_ctx *ctx;
    const nsa_model m = draw_model();
    options.model = &m;
    options.arch = archs[i % 4];
    options.log_level = NSA_NONE;
    if (nsa_create(NULL, &options, &ctx) != NSA_OK) continue; /* no legal model */
    for (int k = 0; k < 8; k++) check_problem(ctx, &m, &refused, &taken);
    nsa_destroy(ctx);
  }
  assert_true(refused > 4 && taken > 4000); /* both happened */
}

/* 4096 KV heads, blocks of 4096 tokens at a stride of 1: phi's rows alone have 1.5e19 bytes. */
static void test_phi_rows(void **state) {
  nsa_model m = NSA_MODEL_INIT;
  nsa_options options = NSA_OPTIONS_INIT;
  nsa_problem p = NSA_PROBLEM_INIT;
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_ctx *ctx;
  char text[8192];
  m.heads = m.kv_heads = 4096, m.head_dim_qk = m.head_dim_v = 256;
  m.compress_block = m.select_block = 4096, m.compress_stride = 1, m.phi = NSA_PHI_LINEAR;
  options.model = &m, options.arch = "sm_90a";
  assert_int_equal(nsa_create(NULL, &options, &ctx), NSA_OK);
  p.max_tokens = 1, p.max_kv_tokens = p.max_kv_len = 1700000000;
  assert_int_equal(nsa_query(ctx, &p, &caps), NSA_OK);
  assert_false(caps.supported);
  nsa_explain(ctx, &p, text, sizeof text);
  assert_non_null(
      strstr(text, "the workspace needs more than 2^63 bytes, compress_gemm among them"));
  assert_non_null(strstr(text, "lower problem.max_tokens, max_kv_tokens or max_kv_len"));
  p.max_kv_tokens = p.max_kv_len = 4096;
  caps = (nsa_caps)NSA_CAPS_INIT;
  assert_int_equal(nsa_query(ctx, &p, &caps), NSA_OK);
  assert_true(caps.supported && caps.workspace_bytes > (uint64_t)4097 * 4096 * 4096 * 256 * 2);
  nsa_destroy(ctx);
}

int main(void) {
  static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_helpers),
    cmocka_unit_test(test_corners),
    cmocka_unit_test(test_phi_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
