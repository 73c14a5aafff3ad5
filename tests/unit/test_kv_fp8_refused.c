/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What a cache in e4m3 refuses on the CPU device: bad scales, tensors of other dtypes, problems.
 */
#include "support/cmocka_all.h"

#include "kv_fixture.h"

#include <math.h>

static void refuse_scales(kv_call *c, const char *text) {
  kv_fixture *w = c->fixture;
  machine_expect("append", nsa_kv_append(w->append, &w->exec, &c->batch, &c->io), NSA_E_ARG, text);
  machine_expect("prefill", nsa_prefill(w->prefill, &w->exec, &c->batch, &c->io), NSA_E_ARG, text);
  machine_expect("decode", nsa_decode(w->decode, &w->exec, &c->batch, &c->io), NSA_E_ARG, text);
}

static void test_bad_scales(void **state) {
  static const int32_t length = 5, zero = 0;
  static const float bad[] = { 0, -1, NAN, INFINITY };
  const kv_options options = { .page_size = 16,
                               .kv_codes = true,
                               .cmp_codes = true,
                               .head_scales = true,
                               .model = { "model.head_dim_qk=32" } };
  kv_fixture w;
  kv_call c;
  kv_init(&w, &(machine_request){ 0 }, &options, 1, &length);
  kv_call_init(&c, &w, &length, &zero);
  const struct {
    const char *name;
    nsa_tensor *t;
  } scales[] = { { "io.k_scale[0]", &c.io.k_scale[0] },
                 { "io.v_scale[0]", &c.io.v_scale[0] },
                 { "io.k_cmp_scale", &c.io.k_cmp_scale },
                 { "io.v_cmp_scale", &c.io.v_cmp_scale } };
  for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
    nsa_tensor *t = scales[i].t, good = *t;
    char text[80];
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
      float was = toy_floats(t)[1];
      toy_floats(t)[1] = bad[k];
      snprintf(text, sizeof text, "%s[1] is %g, expected a positive, finite number", scales[i].name,
               (double)bad[k]);
      refuse_scales(&c, text);
      toy_floats(t)[1] = was;
    }
    t->shape[0] = 3;
    snprintf(text, sizeof text, "%s has shape[0] = 3, expected 1, or 2", scales[i].name);
    refuse_scales(&c, text);
    *t = good;
    t->dtype = NSA_BF16;
    snprintf(text, sizeof text, "%s has dtype bf16, expected f32", scales[i].name);
    refuse_scales(&c, text);
    *t = good;
    t->ndim = 2;
    snprintf(text, sizeof text, "%s has 2 dimensions", scales[i].name);
    refuse_scales(&c, text);
    *t = good;
  }
  c.io.k_scale[1] = c.io.k_scale[0];
  refuse_scales(&c, "io.k_scale[1] is given, but the model does not read pair 1");
  kv_call_free(&c);
  kv_free(&w);
}

static void test_bad_index_scales(void **state) {
  static const int32_t length = 5, zero = 0;
  static const float bad[] = { 0, -1, NAN, INFINITY };
  for (int codes = 0; codes < 2; codes++) {
    const kv_options options = { .page_size = 16,
                                 .cmp_codes = codes,
                                 .model = { "model.index.dim=48" } };
    kv_fixture w;
    kv_call c;
    float value = 1;
    kv_init(&w, &kv_indexed, &options, 1, &length);
    kv_call_init(&c, &w, &length, &zero);
    nsa_tensor *t = &c.io.k_idx_scale;
    *t = (nsa_tensor){
      .data = &value, .ndim = 1, .shape = { 1 }, .stride = { 1 }, .dtype = NSA_F32
    };
    if (!codes)
      refuse_scales(&c, "io.k_idx_scale is given, but the plan's problem.cmp_dtype is the model's "
                        "dtype: set it to NSA_E4M3, or leave the scale out");
    for (size_t k = 0; codes && k < sizeof bad / sizeof *bad; k++) {
      char text[80];
      value = bad[k];
      snprintf(text, sizeof text, "io.k_idx_scale[0] is %g, expected a positive, finite number",
               (double)bad[k]);
      refuse_scales(&c, text);
    }
    if (codes) {
      t->shape[0] = 2;
      refuse_scales(&c, "io.k_idx_scale has shape[0] = 2, expected [1]");
      t->shape[0] = 1;
      t->dtype = NSA_BF16;
      refuse_scales(&c, "io.k_idx_scale has dtype bf16, expected f32");
      *t = (nsa_tensor){ 0 };
      c.io.k_cmp_scale = (nsa_tensor){
        .data = &value, .ndim = 1, .shape = { 1 }, .stride = { 1 }, .dtype = NSA_F32
      };
      refuse_scales(&c, "io.k_cmp_scale is given, but model.compress is none");
    }
    kv_call_free(&c);
    kv_free(&w);
  }
  const kv_options compressed = { .page_size = 16,
                                  .cmp_codes = true,
                                  .model = { "model.head_dim_qk=32" } };
  kv_fixture w;
  kv_call c;
  kv_init(&w, &(machine_request){ 0 }, &compressed, 1, &length);
  kv_call_init(&c, &w, &length, &zero);
  c.io.k_idx_scale = c.io.k_cmp_scale;
  refuse_scales(&c, "io.k_idx_scale is given, but model.select.by is compressed");
  kv_call_free(&c);
  kv_free(&w);
}

/* Tensors and scales that do not go with the plan's dtypes. */
static void test_mixed_up(void **state) {
  static const int32_t length = 5, zero = 0;
  for (int codes = 0; codes < 4; codes++) {
    const kv_options options = { .page_size = 16,
                                 .kv_codes = codes & 1,
                                 .cmp_codes = codes & 2,
                                 .model = { "model.head_dim_qk=32" } };
    kv_fixture w;
    kv_call c;
    kv_init(&w, &(machine_request){ 0 }, &options, 1, &length);
    kv_call_init(&c, &w, &length, &zero);
    nsa_tensor *raw = &c.io.kv.v[0], *entries = &c.io.kv.k_cmp, *scale = &c.io.v_scale[0];
    nsa_tensor good = *raw;
    raw->dtype = codes & 1 ? NSA_F32 : NSA_E4M3;
    refuse_scales(&c, codes & 1
                          ? "io.kv.v[0] has not dtype e4m3, but the plan's problem.kv_dtype is "
                            "NSA_E4M3"
                          : "io.kv.v[0] has dtype e4m3, but the plan's problem.kv_dtype is the "
                            "model's dtype");
    *raw = good;
    good = *entries;
    entries->dtype = codes & 2 ? NSA_F32 : NSA_E4M3;
    refuse_scales(&c, codes & 2
                          ? "io.kv.k_cmp has not dtype e4m3, but the plan's problem.cmp_dtype "
                            "is NSA_E4M3"
                          : "io.kv.k_cmp has dtype e4m3, but the plan's problem.cmp_dtype is "
                            "the model's dtype");
    *entries = good;
    if (codes & 1) {
      good = *raw;
      raw->stride[1] += 8;
      refuse_scales(&c, "expected a multiple of 16 elements (16 bytes)");
      *raw = good;
    } else {
      *scale = (nsa_tensor){
        .data = &(float){ 1 }, .ndim = 1, .shape = { 1 }, .stride = { 1 }, .dtype = NSA_F32
      };
      refuse_scales(&c, "io.v_scale[0] is given, but the plan's problem.kv_dtype is the model's "
                        "dtype: set it to NSA_E4M3, or leave the scale out");
    }
    kv_call_free(&c);
    kv_free(&w);
  }
}

static void test_problems(void **state) {
  static const kv_options narrow = { .page_size = 16 };
  char yaml[1024];
  nsa_plan *plan;
  uint64_t bytes[3];
  machine_yaml(&(machine_request){ 0 }, yaml, sizeof yaml);
  nsa_ctx *ctx = machine_context(yaml, NULL, false);
  nsa_problem p = INIT(nsa_problem, .op = NSA_OP_DECODE, .max_seqs = 1, .max_kv_len = 64,
                       .page_size = narrow.page_size, .kv_dtype = NSA_E4M3);
  machine_expect("24", nsa_plan_create(ctx, &p, NULL, NULL, &plan), NSA_E_ARG,
                 "problem.kv_dtype is e4m3, but model.head_dim_qk is 24");
  p.kv_dtype = NSA_BF16;
  machine_expect("bf16", nsa_plan_create(ctx, &p, NULL, NULL, &plan), NSA_E_ARG,
                 "problem.kv_dtype is 2: expected NSA_E4M3 (6), NSA_NONE");
  p.kv_dtype = 0;
  p.cmp_dtype = 7;
  machine_expect("7", nsa_plan_create(ctx, &p, NULL, NULL, &plan), NSA_E_ARG,
                 "problem.cmp_dtype is 7: expected NSA_E4M3 (6), NSA_NONE");
  nsa_destroy(ctx);
  /* From serving, and back. */
  const char *const overrides[] = { "model.head_dim_qk=32", "serving.kv_dtype=e4m3", NULL };
  ctx = machine_context(yaml, overrides, false);
  p.cmp_dtype = 0;
  machine_expect("serving", nsa_kv_page_bytes(ctx, &p, &bytes[0]), NSA_OK, NULL);
  p.cmp_dtype = NSA_E4M3;
  machine_expect("all", nsa_kv_page_bytes(ctx, &p, &bytes[1]), NSA_OK, NULL);
  p.kv_dtype = NSA_NONE;
  machine_expect("none", nsa_kv_page_bytes(ctx, &p, &bytes[2]), NSA_OK, NULL);
  assert_int_equal(bytes[0], 16 * 2 * 48 + 4 * 2 * 48 * 4);
  assert_int_equal(bytes[1], (16 + 4) * 2 * 48);
  assert_int_equal(bytes[2], 16 * 2 * 48 * 4 + 4 * 2 * 48);
  nsa_problem forward =
      INIT(nsa_problem, .op = NSA_OP_FORWARD, .max_tokens = 8, .kv_dtype = NSA_E4M3);
  machine_expect("forward", nsa_plan_create(ctx, &forward, NULL, NULL, &plan), NSA_E_ARG,
                 "problem.kv_dtype is 6, but NSA_OP_FORWARD has no cache: leave it 0");
  forward.kv_dtype = 0; /* serving's does not concern it */
  nsa_plan_destroy(machine_plan(ctx, &forward));
  char text[512];
  p.kv_dtype = NSA_E4M3;
  nsa_problem_string(ctx, &p, text, sizeof text);
  assert_non_null(strstr(text, ":raw=e4m3:entries=e4m3:"));
  nsa_destroy(ctx);
  /* Index keys: the bytes of a page, and dims that are no rows of codes. */
  machine_yaml(&kv_indexed, yaml, sizeof yaml);
  static const char *const dims[] = { "model.index.dim=48", NULL };
  ctx = machine_context(yaml, dims, false);
  p.kv_dtype = p.cmp_dtype = NSA_NONE;
  machine_expect("model", nsa_kv_page_bytes(ctx, &p, &bytes[0]), NSA_OK, NULL);
  p.cmp_dtype = NSA_E4M3;
  machine_expect("keys", nsa_kv_page_bytes(ctx, &p, &bytes[1]), NSA_OK, NULL);
  assert_int_equal(bytes[0] - bytes[1], 16 * 48 * 3);
  nsa_problem_string(ctx, &p, text, sizeof text);
  assert_non_null(strstr(text, ":index=48:keys=e4m3:"));
  nsa_destroy(ctx);
  ctx = machine_context(yaml, NULL, false);
  machine_expect("40", nsa_plan_create(ctx, &p, NULL, NULL, &plan), NSA_E_ARG,
                 "problem.cmp_dtype is e4m3, but model.index.dim is 40");
  nsa_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_bad_scales),
    cmocka_unit_test(test_bad_index_scales),
    cmocka_unit_test(test_mixed_up),
    cmocka_unit_test(test_problems),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
