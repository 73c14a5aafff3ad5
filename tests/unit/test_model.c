/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_model: the same configuration as the same YAML, its defaults, its place among the layers, and
 * what is refused.
 */
#include "support/cmocka_all.h"

#include "config/config.h"
#include "machine.h"

static nsa_ctx *create(const nsa_model *model, const char *yaml, const char *const *overrides) {
  nsa_ctx *ctx = NULL;
  nsa_options o =
      INIT(nsa_options, .model = model, .yaml_text = yaml, .overrides = overrides, .device = "cpu");
  machine_expect("nsa_create", nsa_create(NULL, &o, &ctx), NSA_OK, NULL);
  return ctx;
}

static void dump(const nsa_ctx *ctx, bool origin, char *text, size_t size) {
  assert_true(nsa_config_dump(ctx, origin, text, size) < size);
}

/* The model gives what the YAML text gives. */
static void expect_same(const nsa_model *model, const char *yaml) {
  static char ours[8192], theirs[8192];
  nsa_ctx *a = create(model, NULL, NULL), *b = create(NULL, yaml, NULL);
  dump(a, false, ours, sizeof ours);
  dump(b, false, theirs, sizeof theirs);
  assert_string_equal(ours, theirs);
  nsa_destroy(a);
  nsa_destroy(b);
}

static nsa_model least(void) {
  return INIT(nsa_model, .heads = 8, .kv_heads = 2, .head_dim_qk = 64);
}

static void test_same(void **state) {
  nsa_model m = least();
  expect_same(&m, "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64}\n");
  m.head_dim_v = 128;
  m.dtype = NSA_F32;
  m.compress_block = 24, m.compress_stride = 12;
  m.phi = NSA_PHI_MLP, m.phi_hidden = 99, m.phi_activation = NSA_ACT_GELU;
  m.select_block = 48, m.select_count = 7, m.select_init = 2, m.select_local = 3;
  m.window = 100;
  m.gate = NSA_GATE_MLP, m.gate_channels = 13, m.gate_hidden = 5, m.gate_activation = NSA_ACT_RELU;
  m.kv_sharing = NSA_KV_SHARED;
  m.compress_output = NSA_NONE;
  m.select_pool = NSA_POOL_MAX, m.normalizer_block = 96, m.normalizer_stride = 48;
  expect_same(
      &m, "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim_qk: 64, head_dim_v: 128, dtype: f32, "
          "compress: {block: 24, stride: 12, phi: mlp, hidden: 99, activation: gelu, "
          "output: false}, select: {block: 48, count: 7, init: 2, local: 3, pool: max, "
          "normalizer: {block: 96, stride: 48}}, window: 100, gate: mlp, "
          "gate_mlp: {channels: 13, hidden: 5, activation: relu}, kv_sharing: shared}\n");
  m = least();
  m.phi = NSA_PHI_NONE, m.select_pool = NSA_POOL_MAX, m.select_by = NSA_BY_INDEX;
  m.index_heads = 2, m.index_dim = 48;
  expect_same(&m, "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64, compress: none, "
                  "select: {by: index, pool: max}, index: {heads: 2, dim: 48}}\n");
}

/* Every value of every enumeration. */
static void test_words(void **state) {
  static const struct {
    size_t field;
    int32_t value;
    const char *yaml;
  } cases[] = {
    { offsetof(nsa_model, phi), NSA_PHI_MEAN, "compress: {phi: mean}" },
    { offsetof(nsa_model, phi), NSA_PHI_LINEAR, "compress: {phi: linear}" },
    { offsetof(nsa_model, phi), NSA_PHI_MLP, "compress: {phi: mlp, hidden: 4}" },
    { offsetof(nsa_model, phi), NSA_PHI_EXTERNAL, "compress: {phi: external}" },
    { offsetof(nsa_model, phi_activation), NSA_ACT_RELU, "compress: {activation: relu}" },
    { offsetof(nsa_model, phi_activation), NSA_ACT_SILU, "compress: {activation: silu}" },
    { offsetof(nsa_model, phi_activation), NSA_ACT_GELU, "compress: {activation: gelu}" },
    { offsetof(nsa_model, gate), NSA_GATE_WEIGHTS, "gate: weights" },
    { offsetof(nsa_model, gate), NSA_GATE_LOGITS, "gate: logits" },
    { offsetof(nsa_model, gate), NSA_GATE_MLP, "gate: mlp, gate_mlp: {channels: 3}" },
    { offsetof(nsa_model, gate), NSA_GATE_NONE, "gate: none" },
    { offsetof(nsa_model, gate_activation), NSA_ACT_RELU, "gate_mlp: {activation: relu}" },
    { offsetof(nsa_model, gate_activation), NSA_ACT_SILU, "gate_mlp: {activation: silu}" },
    { offsetof(nsa_model, gate_activation), NSA_ACT_GELU, "gate_mlp: {activation: gelu}" },
    { offsetof(nsa_model, select_pool), NSA_POOL_SUM, "select: {pool: sum}" },
    { offsetof(nsa_model, select_pool), NSA_POOL_MAX, "select: {pool: max}" },
    { offsetof(nsa_model, select_by), NSA_BY_COMPRESSED, "select: {by: compressed}" },
    { offsetof(nsa_model, kv_sharing), NSA_KV_PER_BRANCH, "kv_sharing: per_branch" },
    { offsetof(nsa_model, kv_sharing), NSA_KV_SHARED, "kv_sharing: shared" },
    { offsetof(nsa_model, dtype), NSA_F16, "dtype: fp16" },
    { offsetof(nsa_model, dtype), NSA_BF16, "dtype: bf16" },
    { offsetof(nsa_model, dtype), NSA_F32, "dtype: f32" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char yaml[256];
    nsa_model m = least();
    memcpy((char *)&m + cases[i].field, &cases[i].value, sizeof cases[i].value);
    if (m.phi == NSA_PHI_MLP) m.phi_hidden = 4;
    if (m.gate == NSA_GATE_MLP) m.gate_channels = 3;
    snprintf(yaml, sizeof yaml, "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64, %s}\n",
             cases[i].yaml);
    expect_same(&m, yaml);
  }
}

static void test_none(void **state) {
  nsa_model m = least();
  m.window = m.select_init = m.select_local = NSA_NONE;
  expect_same(&m, "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64, window: 0, "
                  "select: {init: 0, local: 0}}\n");
  m = least();
  m.select_count = NSA_NONE;
  expect_same(&m, "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64, select: {count: 0}}\n");
}

/* Above files and text, whose model it replaces whole; below overrides. */
static void test_layers(void **state) {
  static const char *const overrides[] = { "model.window=96", NULL };
  static char text[8192];
  nsa_model m = least();
  m.select_count = 5;
  nsa_ctx *ctx =
      create(&m,
             "nsa: 1\nmodel: {heads: 4, kv_heads: 4, head_dim: 32, window: 33, gate: weights, "
             "compress: {block: 8, stride: 4}}\nserving: {max_seqs: 3}\n",
             overrides);
  dump(ctx, false, text, sizeof text);
  static const char *const wanted[] = { "  heads: 8\n",    "  window: 96\n", "  gate: logits\n",
                                        "    block: 32\n", "    count: 5\n", "  max_seqs: 3\n" };
  for (int i = 0; i < 6; i++)
    if (!strstr(text, wanted[i])) fail_msg("no %s in %s", wanted[i], text);
  dump(ctx, true, text, sizeof text);
  assert_non_null(strstr(text, "# options.model:3\n"));
  assert_non_null(strstr(text, "# override model.window\n"));
  nsa_destroy(ctx);
  m.struct_size = offsetof(nsa_model, select_count); /* of an older host: n is not known there */
  ctx = create(&m, NULL, NULL);
  dump(ctx, false, text, sizeof text);
  assert_non_null(strstr(text, "    count: 16\n"));
  nsa_destroy(ctx);
}

static void refuse(const nsa_model *m, nsa_status status, const char *text) {
  nsa_ctx *ctx = NULL;
  nsa_options o = INIT(nsa_options, .model = m, .device = "cpu");
  machine_expect(text, nsa_create(NULL, &o, &ctx), status, text);
  assert_null(ctx);
}

static void test_refusals(void **state) {
  static const struct {
    size_t field;
    int32_t value;
    nsa_status status;
    const char *text;
  } cases[] = {
#define CASE(field, value, status, text) { offsetof(nsa_model, field), value, status, text }
    CASE(struct_size, 0, NSA_E_VERSION, "options.model.struct_size is 0"),
    CASE(heads, 0, NSA_E_CONFIG, "options.model:2:1: error: model.heads: missing"),
    CASE(heads, 9, NSA_E_CONFIG, "model.kv_heads: 2 does not divide the query heads"),
    CASE(heads, -1, NSA_E_CONFIG, "options.model:3:10: error: model.heads: "),
    CASE(head_dim_qk, 0, NSA_E_CONFIG, "model.head_dim_qk: missing"),
    CASE(head_dim_v, 20, NSA_E_CONFIG, "model.head_dim_v: 20 is not a multiple of 8"),
    CASE(compress_block, NSA_NONE, NSA_E_CONFIG, "model.compress.block: "),
    CASE(compress_stride, 5, NSA_E_CONFIG, "model.compress.stride: 5 does not divide the block"),
    CASE(select_block, NSA_NONE, NSA_E_CONFIG, "model.select.block: "),
    CASE(select_count, -2, NSA_E_CONFIG, "model.select.count: "),
    CASE(window, INT32_MIN, NSA_E_CONFIG, "model.window: "),
    CASE(phi_hidden, 4, NSA_E_CONFIG, "model.compress.hidden: 4 would be ignored"),
    CASE(phi_hidden, NSA_NONE, NSA_E_CONFIG, "model.compress.hidden: "),
    CASE(gate_channels, 4, NSA_E_CONFIG, "model.gate_mlp.channels: 4 would be ignored"),
    CASE(phi, 6, NSA_E_ARG, "options.model.phi is 6"),
    CASE(phi, NSA_PHI_NONE, NSA_E_CONFIG, "model.compress.phi: none leaves nothing that chooses"),
    CASE(select_by, 3, NSA_E_ARG, "options.model.select_by is 3"),
    CASE(select_by, NSA_BY_INDEX, NSA_E_CONFIG, "model.index.heads: 0 is missing: model.select.by"),
    CASE(index_dim, 16, NSA_E_CONFIG, "model.index.dim: 16 would be ignored"),
    CASE(phi, NSA_NONE, NSA_E_ARG, "options.model.phi is -1"),
    CASE(phi_activation, 4, NSA_E_ARG, "options.model.phi_activation is 4"),
    CASE(gate, 5, NSA_E_ARG, "options.model.gate is 5"),
    CASE(gate_activation, INT32_MIN, NSA_E_ARG, "options.model.gate_activation is"),
    CASE(kv_sharing, 3, NSA_E_ARG, "options.model.kv_sharing is 3"),
    CASE(compress_output, 1, NSA_E_ARG, "options.model.compress_output is 1: expected NSA_NONE"),
    CASE(compress_output, NSA_NONE, NSA_E_CONFIG, "model.compress.output: false leaves the first"),
    CASE(select_pool, 3, NSA_E_ARG, "options.model.select_pool is 3"),
    CASE(normalizer_block, 64, NSA_E_CONFIG, "model.select.normalizer.block: 64 needs a stride"),
    CASE(dtype, NSA_I32, NSA_E_ARG, "options.model.dtype is 4"),
#undef CASE
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    nsa_model m = least();
    memcpy((char *)&m + cases[i].field, &cases[i].value, sizeof cases[i].value);
    refuse(&m, cases[i].status, cases[i].text);
  }
  /* f32 is the CPU device's alone, whoever asks for the device. */
  nsa_model m = least();
  nsa_ctx *ctx = NULL;
  m.dtype = NSA_F32;
  nsa_options o = INIT(nsa_options, .model = &m);
  machine_expect("f32", nsa_create(NULL, &o, &ctx), NSA_E_CONFIG,
                 "model.dtype: f32 is computed on the CPU device only");
}

int main(void) {
  static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_same),   cmocka_unit_test(test_words),    cmocka_unit_test(test_none),
    cmocka_unit_test(test_layers), cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
