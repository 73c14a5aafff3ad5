/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Problems: defaults from the serving section, limits, refusals, exact strings, and when the
 * selected branch is dense attention.
 */
#include "support/config.h"

#include "plan/problem.h"

#define MODEL                                                                                      \
  "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64, compress: {block: 32, stride: 16}, "       \
  "select: {block: 64, count: 4}, window: 128"

static nsai_config *load_model(const char *text) {
  return load(&REQUEST(.text = text, .need_model = true));
}

static nsai_problem resolve(const nsai_config *config, const nsa_problem *problem) {
  nsai_problem out;
  if (nsai_problem_resolve(config, problem, &out) != NSA_OK) fail_msg("%s", nsa_last_error());
  return out;
}

static void expect_capacities(const nsai_problem *p, int64_t max_tokens, int64_t max_kv_tokens,
                              int64_t max_kv_len, int32_t max_seqs) {
  assert_int_equal(p->max_tokens, max_tokens);
  assert_int_equal(p->max_kv_tokens, max_kv_tokens);
  assert_int_equal(p->max_kv_len, max_kv_len);
  assert_int_equal(p->max_seqs, max_seqs);
}

static void test_defaults(void **state) {
  nsai_config *config = load_model(
      MODEL "}\nserving: {max_tokens: 100, max_kv_tokens: 1000, max_kv_len: 500, max_seqs: 3}");
  nsa_problem asked = NSA_PROBLEM_INIT;
  nsai_problem p = resolve(config, &asked);
  assert_int_equal(p.op, NSA_OP_FORWARD);
  assert_int_equal(p.overlap, NSA_OVERLAP_LOW);
  expect_capacities(&p, 100, 1000, 500, 3);
  /* The caller's own number of tokens is that of its KV tokens, too. */
  asked.max_tokens = 400;
  p = resolve(config, &asked);
  assert_int_equal(p.max_kv_tokens, 400);
  assert_int_equal(p.max_kv_len, 400); /* never beyond all KV tokens */
  asked.max_kv_tokens = 2000;
  assert_int_equal(resolve(config, &asked).max_kv_len, 500);
  asked.max_kv_len = 2000;
  assert_int_equal(resolve(config, &asked).max_kv_len, 2000);
  nsai_config_destroy(config);
  config = load_model(MODEL "}\nserving: {max_tokens: 100, max_seqs: 1}");
  asked = (nsa_problem)NSA_PROBLEM_INIT;
  p = resolve(config, &asked);
  assert_int_equal(p.max_kv_tokens, 100);
  assert_int_equal(p.max_kv_len, 100);
  nsai_config_destroy(config);
}

/* With a cache: pages and new tokens of a decode from the serving section, where they are not
 * given. */
static void test_cached_defaults(void **state) {
  nsai_config *config =
      load_model(MODEL "}\nserving: {max_tokens: 100, max_kv_tokens: 200, max_kv_len: 150, "
                       "max_seqs: 3, max_q_len: 4, page_size: 32}");
  nsa_problem asked = NSA_PROBLEM_INIT;
  asked.op = NSA_OP_DECODE;
  nsai_problem p = resolve(config, &asked);
  assert_true(nsai_problem_is_cached(&p) && !p.window_ring);
  assert_int_equal(p.max_tokens, 12);
  assert_int_equal(p.max_q_len, 4);
  assert_int_equal(p.page_size, 32);
  assert_int_equal(p.max_kv_len, 150);
  assert_int_equal(p.max_kv_tokens, 0);
  asked.max_q_len = 16;
  asked.page_size = NSA_NONE;
  asked.window_ring = 1;
  asked.max_kv_len = 1000000; /* not bounded by what packed runs may have */
  p = resolve(config, &asked);
  assert_true(p.window_ring);
  assert_int_equal(p.max_tokens, 48);
  assert_int_equal(p.page_size, 0);
  assert_int_equal(p.max_kv_len, 1000000);
  asked = (nsa_problem)NSA_PROBLEM_INIT;
  asked.op = NSA_OP_PREFILL;
  p = resolve(config, &asked);
  assert_int_equal(p.max_tokens, 100);
  assert_int_equal(p.max_q_len, 100);
  nsai_config_destroy(config);
  config = load_model(MODEL "}\nserving: {max_kv_len: 10, max_seqs: 3}");
  asked.op = NSA_OP_DECODE;
  p = resolve(config, &asked);
  assert_int_equal(p.max_tokens, 3);
  assert_int_equal(p.max_q_len, 1);
  assert_int_equal(p.page_size, 0);
  nsai_config_destroy(config);
}

/* What NSA_NONE leaves out of the serving section, and the defaults without one. */
static void test_none(void **state) {
  nsai_config *config =
      load_model(MODEL "}\nserving: {max_tokens: 100, max_kv_tokens: 200, max_kv_len: 150, "
                       "max_seqs: 3, max_q_len: 4, page_size: 32}");
  nsa_problem asked = NSA_PROBLEM_INIT;
  asked.max_kv_tokens = asked.max_kv_len = asked.max_seqs = NSA_NONE;
  nsai_problem p = resolve(config, &asked);
  expect_capacities(&p, 100, 100, 100, 1);
  asked = (nsa_problem)NSA_PROBLEM_INIT;
  asked.op = NSA_OP_DECODE;
  asked.max_q_len = asked.page_size = NSA_NONE;
  p = resolve(config, &asked);
  assert_int_equal(p.max_q_len, 1);
  assert_int_equal(p.page_size, 0);
  assert_int_equal(p.max_tokens, 3);
  asked.op = NSA_OP_PREFILL;
  assert_int_equal(resolve(config, &asked).max_q_len, 100);
  nsai_config_destroy(config);
  config = load_model(MODEL "}");
  asked = (nsa_problem)NSA_PROBLEM_INIT;
  asked.max_tokens = 7;
  p = resolve(config, &asked);
  assert_int_equal(p.max_seqs, 1);
  assert_int_equal(p.selection, NSA_SELECT_TOPN);
  assert_int_equal(p.overlap, NSA_OVERLAP_LOW);
  nsai_config_destroy(config);
}

/* NSA_E_ARG, but for a struct of no size. */
typedef struct refusal {
  nsa_problem problem;
  const char *text;
} refusal;

#define PROBLEM(...)                                                                               \
  { .struct_size = sizeof(nsa_problem), __VA_ARGS__ }
#define PACKED(...) PROBLEM(.max_seqs = 1, .max_tokens = 9, __VA_ARGS__)

static void test_refusals(void **state) {
  nsai_config *config = load_model(MODEL "}");
  nsai_config *off =
      load_model("nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64, select: {count: 0}}");
  static const refusal cases[] = {
    { { .struct_size = 0 }, "problem.struct_size is 0" },
    { PROBLEM(.op = 0), "problem.max_tokens is 0: give at least 1, or set serving.max" },
    { PROBLEM(.max_tokens = NSA_NONE), "problem.max_tokens is -1" },
    { PROBLEM(.max_seqs = -2, .max_tokens = 1), "problem.max_seqs is -2" },
    { PROBLEM(.max_seqs = 1000001, .max_tokens = 1), "at most 1000000" },
    { PROBLEM(.max_seqs = 1, .max_tokens = -1), "problem.max_tokens is -1" },
    { PROBLEM(.max_seqs = 1, .max_tokens = 2000000001), "at most 2000000000" },
    { PROBLEM(.max_seqs = 1, .max_tokens = INT64_MAX), "problem.max_tokens" },
    { PROBLEM(.max_seqs = 1, .max_tokens = INT64_MIN), "problem.max_tokens" },
    { PACKED(.max_kv_tokens = -9), "problem.max_kv_tokens is -9" },
    { PACKED(.max_kv_tokens = INT64_MAX), "problem.max_kv_tokens" },
    { PACKED(.max_kv_len = -2), "problem.max_kv_len is -2" },
    { PACKED(.op = 8), "problem.op is 8: expected 1 to 7, see include/nsa/problem.h" },
    { PACKED(.op = -1), "problem.op is -1" },
    { PACKED(.selection = 5), "problem.selection is 5: expected 1 to 4" },
    { PACKED(.selection = -1), "problem.selection is -1" },
    { PACKED(.overlap = 3), "problem.overlap is 3: expected 1 to 2" },
    { PACKED(.max_probe_rows = -1), "problem.max_probe_rows is -1" },
    { PACKED(.max_probe_rows = 10), "(9)" },
    { PACKED(.max_probe_rows = 1, .op = NSA_OP_DENSE), "NSA_OP_DENSE has no importance" },
    { PACKED(.max_probe_rows = 1, .op = NSA_OP_BACKWARD), "NSA_OP_BACKWARD has no importance" },
    { PACKED(.page_size = 64, .op = NSA_OP_BACKWARD), "but NSA_OP_BACKWARD has no cache" },
    { PACKED(.page_size = 64), "problem.page_size is 64, but NSA_OP_FORWARD has no cache" },
    { PACKED(.max_q_len = 1, .op = NSA_OP_DENSE),
      "problem.max_q_len is 1, but NSA_OP_DENSE has no cache" },
    { PACKED(.window_ring = 1), "problem.window_ring" },
    { PROBLEM(.op = NSA_OP_DECODE, .max_seqs = 1), "serving.max_kv_len" },
    { PROBLEM(.op = NSA_OP_PREFILL, .max_seqs = 1, .max_kv_len = 9), "serving.max_tokens" },
#define CACHED(...) PROBLEM(.max_seqs = 2, .max_tokens = 40, .max_kv_len = 9, __VA_ARGS__)
    { CACHED(.op = NSA_OP_APPEND, .max_kv_tokens = 9), "problem.max_kv_tokens is 9" },
    { CACHED(.op = NSA_OP_APPEND, .selection = NSA_SELECT_BLOCKS),
      "problem.selection is 2, but NSA_OP_APPEND" },
    { CACHED(.op = NSA_OP_APPEND, .max_probe_rows = 2), "problem.max_probe_rows is 2" },
    { CACHED(.op = NSA_OP_DECODE, .page_size = 24), "problem.page_size is 24" },
    { CACHED(.op = NSA_OP_DECODE, .page_size = 256), "problem.page_size is 256" },
    { CACHED(.op = NSA_OP_DECODE, .page_size = 8), "problem.page_size is 8" },
    { CACHED(.op = NSA_OP_DECODE, .page_size = -2), "problem.page_size is -2" },
    { CACHED(.op = NSA_OP_DECODE, .page_size = INT32_MIN), "problem.page_size" },
    { CACHED(.op = NSA_OP_DECODE, .max_q_len = 17), "takes 1 to 16 new tokens" },
    { CACHED(.op = NSA_OP_DECODE, .max_q_len = -2), "problem.max_q_len is -2" },
    { PROBLEM(.op = NSA_OP_DECODE, .max_kv_len = NSA_NONE), "problem.max_kv_len is 0" },
    { CACHED(.op = NSA_OP_DECODE, .max_q_len = -5), "problem.max_q_len is -5" },
    { CACHED(.op = NSA_OP_PREFILL, .max_q_len = 41), "expected 1 to problem.max_tokens (40)" },
    { CACHED(.op = NSA_OP_PREFILL, .window_ring = 2), "problem.window_ring is 2" },
    { PROBLEM(.op = NSA_OP_PREFILL, .max_seqs = 1, .max_tokens = 9, .max_kv_len = INT64_MAX),
      "problem.max_kv_len" },
  };
  nsai_problem out;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(nsai_problem_resolve(config, &cases[i].problem, &out),
                     cases[i].problem.struct_size ? NSA_E_ARG : NSA_E_VERSION);
    if (!strstr(nsa_last_error(), cases[i].text))
      fail_msg("%s is not in: %s", cases[i].text, nsa_last_error());
  }
  assert_int_equal(nsai_problem_resolve(config, NULL, &out), NSA_E_ARG);
  nsa_problem blocks = PACKED(.selection = NSA_SELECT_BLOCKS);
  assert_int_equal(nsai_problem_resolve(off, &blocks, &out), NSA_E_ARG);
  assert_non_null(strstr(nsa_last_error(), "model.select.count is 0"));
  nsa_problem ring = CACHED(.op = NSA_OP_DECODE, .window_ring = 1);
  nsai_config *others[] = {
    load_model("nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64, kv_sharing: shared}"),
    load_model("nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64, window: 0}"),
    load_model(
        "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64, compress: {block: 64, stride: 32}}"),
  };
  nsa_problem pages = CACHED(.op = NSA_OP_DECODE, .page_size = 16);
  static const char *const texts[] = { "model.kv_sharing is shared", "model.window is 0",
                                       "multiple of model.compress.stride (32)" };
  for (int i = 0; i < 3; i++) {
    assert_int_equal(nsai_problem_resolve(others[i], i < 2 ? &ring : &pages, &out), NSA_E_ARG);
    assert_non_null(strstr(nsa_last_error(), texts[i]));
    nsai_config_destroy(others[i]);
  }
  nsai_config_destroy(config);
  nsai_config_destroy(off);
}

static void expect_text(const char *model, nsa_problem asked, const char *want) {
  char text[512];
  nsai_config *config = load_model(model);
  nsai_problem p = resolve(config, &asked);
  nsai_writer w = nsai_writer_open(text, sizeof text);
  nsai_problem_add_string(&w, &p);
  assert_string_equal(text, want);
  nsai_config_destroy(config);
}

/* The strings stand in caches and records: a change here is a change of format. */
static void test_strings(void **state) {
  nsa_problem small = PROBLEM(.max_seqs = 2, .max_tokens = 100, .max_kv_tokens = 1000);
  expect_text(MODEL "}", small,
              "fwd:bf16:h8/2:d64/64:l32/16:s64x4+1+2:w128:phi=mean:kv=branch:gate=logits:sel=topn:"
              "ov=low:tok100:kv1000:len1000:seq2");
  nsa_problem marked = PROBLEM(.max_seqs = 1, .max_tokens = 100, .overlap = NSA_OVERLAP_HIGH,
                               .max_probe_rows = 5, .selection = NSA_SELECT_RANGES);
  expect_text("nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim_qk: 192, head_dim_v: 128, "
              "compress: {phi: mlp, hidden: 99, activation: gelu}, gate: mlp, "
              "gate_mlp: {channels: 7, hidden: 3, activation: relu}, kv_sharing: shared, "
              "dtype: fp16}",
              marked,
              "fwd:fp16:h8/2:d192/128:l32/16:s64x16+1+2:w512:phi=mlp,99,gelu:kv=shared:"
              "gate=mlp,7,3,relu:sel=ranges:ov=high:tok100:kv100:len100:seq1:probe5");
  expect_text(MODEL ", gate: none}", small,
              "fwd:bf16:h8/2:d64/64:l32/16:s64x4+1+2:w128:phi=mean:kv=branch:gate=none:sel=topn:"
              "ov=low:tok100:kv1000:len1000:seq2");
  expect_text("nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64, kv_sharing: shared, "
              "compress: {output: false}}",
              small,
              "fwd:bf16:h8/2:d64/64:l32/16:s64x16+1+2:w512:phi=mean:kv=shared:gate=logits:sel=topn:"
              "cmp=keys:ov=low:tok100:kv1000:len1000:seq2");
  expect_text("nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64, kv_sharing: shared, "
              "select: {pool: max, normalizer: {block: 128, stride: 64}}}",
              small,
              "fwd:bf16:h8/2:d64/64:l32/16:s64x16+1+2:w512:phi=mean:kv=shared:gate=logits:sel=topn:"
              "pool=max:norm=128/64:ov=low:tok100:kv1000:len1000:seq2");
  expect_text(
      "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64, kv_sharing: shared, compress: none, "
      "select: {by: index, pool: max}, index: {heads: 2, dim: 32}}",
      small,
      "fwd:bf16:h8/2:d64/64:s64x16+1+2:w512:phi=none:kv=shared:gate=logits:sel=topn:"
      "pool=max:index=32:ov=low:tok100:kv1000:len1000:seq2");
  nsa_problem dense = PROBLEM(.max_seqs = 1, .max_tokens = 64, .op = NSA_OP_DENSE);
  expect_text(MODEL "}", dense, "dense:bf16:h8/2:d64/64:ov=low:tok64:kv64:len64:seq1");
  nsa_problem backward = PROBLEM(.max_seqs = 1, .max_tokens = 64, .op = NSA_OP_BACKWARD);
  expect_text(MODEL "}", backward,
              "backward:bf16:h8/2:d64/64:l32/16:s64x4+1+2:w128:phi=mean:kv=branch:gate=logits:"
              "sel=topn:ov=low:tok64:kv64:len64:seq1");
  nsa_problem decode = PROBLEM(.max_seqs = 3, .max_kv_len = 70000, .op = NSA_OP_DECODE,
                               .page_size = 64, .window_ring = 1, .max_q_len = 2);
  expect_text(MODEL "}", decode,
              "decode:bf16:h8/2:d64/64:l32/16:s64x4+1+2:w128:phi=mean:kv=branch:gate=logits:"
              "sel=topn:ov=low:tok6:q2:page64:ring:len70000:seq3");
  decode.window_ring = 0;
  decode.kv_dtype = decode.cmp_dtype = NSA_E4M3;
  expect_text(MODEL "}", decode,
              "decode:bf16:h8/2:d64/64:l32/16:s64x4+1+2:w128:phi=mean:kv=branch:gate=logits:"
              "sel=topn:raw=e4m3:entries=e4m3:ov=low:tok6:q2:page64:len70000:seq3");
  decode.window_ring = 1;
  decode.kv_dtype = decode.cmp_dtype = 0;
  expect_text(MODEL "}\nserving: {cmp_dtype: e4m3}", decode,
              "decode:bf16:h8/2:d64/64:l32/16:s64x4+1+2:w128:phi=mean:kv=branch:gate=logits:"
              "sel=topn:entries=e4m3:ov=low:tok6:q2:page64:ring:len70000:seq3");
  expect_text(MODEL "}\nruntime: {count_reads: true}", decode,
              "decode:bf16:h8/2:d64/64:l32/16:s64x4+1+2:w128:phi=mean:kv=branch:gate=logits:"
              "sel=topn:ov=low:tok6:q2:page64:ring:len70000:seq3:reads");
}

/* Coarse keys end in pages evenly. */
static void test_normalizer_pages(void **state) {
  nsai_config *config = load_model("nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64, "
                                   "select: {normalizer: {block: 128, stride: 64}}}");
  nsai_problem p;
  for (int32_t page = 16; page <= 128; page *= 2) {
    const nsa_problem asked =
        PROBLEM(.op = NSA_OP_DECODE, .max_seqs = 1, .max_kv_len = 300, .page_size = page);
    if (page >= 64)
      assert_int_equal(nsai_problem_resolve(config, &asked, &p), NSA_OK);
    else
      assert_int_equal(nsai_problem_resolve(config, &asked, &p), NSA_E_ARG);
    const char *text = "expected a multiple of model.select.normalizer.stride (64)";
    if (page < 64) assert_non_null(strstr(nsa_last_error(), text));
  }
  nsai_config_destroy(config);
}

static bool selects_all(const char *model, int64_t kv_len, int32_t selection, int32_t op) {
  nsai_config *config = load_model(model);
  nsa_problem asked =
      PROBLEM(.max_seqs = 1, .max_tokens = kv_len, .selection = selection, .op = op);
  nsai_problem p = resolve(config, &asked);
  bool all = nsai_problem_selects_all(&p);
  nsai_config_destroy(config);
  return all;
}

/* 4 blocks of 64 tokens: exact up to 256, whatever is asked for. */
static void test_selects_all(void **state) {
  assert_true(selects_all(MODEL "}", 256, NSA_SELECT_TOPN, NSA_OP_FORWARD));
  assert_false(selects_all(MODEL "}", 257, NSA_SELECT_TOPN, NSA_OP_FORWARD));
  assert_false(selects_all(MODEL "}", 256, NSA_SELECT_BLOCKS, NSA_OP_FORWARD));
  assert_false(selects_all(MODEL "}", 256, NSA_SELECT_TOPN, NSA_OP_DENSE));
#define BELOW(n) MODEL "}\nthresholds: {select_dense_below: " #n "}"
  assert_false(selects_all(BELOW(100000), 257, NSA_SELECT_TOPN, NSA_OP_FORWARD));
  assert_true(selects_all(BELOW(100), 100, NSA_SELECT_TOPN, NSA_OP_FORWARD));
  assert_false(selects_all(BELOW(100), 101, NSA_SELECT_TOPN, NSA_OP_FORWARD));
  assert_false(selects_all(BELOW(0), 1, NSA_SELECT_TOPN, NSA_OP_FORWARD));
}

/* 64 heads in groups of 16: a tile of 128 rows has 8 tokens. */
#define MODEL_64                                                                                   \
  "nsa: 1\nmodel: {heads: 64, kv_heads: 4, head_dim: 128}\nserving: {page_size: 64}\n"
#define FROM(n) MODEL_64 "thresholds: {prefill_split_from: " #n "}\n"
#define WIDE FROM(32768)

static bool splits(const char *yaml, int64_t tokens, int32_t seqs, int64_t longest, int32_t op) {
  nsai_config *config = load(&REQUEST(.text = yaml));
  nsa_problem asked =
      PROBLEM(.op = op, .max_tokens = tokens, .max_seqs = seqs, .max_kv_len = longest);
  nsai_problem p = resolve(config, &asked);
  nsai_config_destroy(config);
  return nsai_problem_splits(&p);
}

/* Tiles times KV heads below 66, 64 tokens at most, long contexts. */
static void test_splits(void **state) {
  assert_true(splits(WIDE, 64, 1, 32768, NSA_OP_PREFILL)); /* 8 tiles of 4 heads */
  assert_false(splits(WIDE, 65, 1, 32768, NSA_OP_PREFILL));
  assert_false(splits(WIDE, 64, 1, 32767, NSA_OP_PREFILL));
  assert_false(splits(WIDE, 64, 1, 32768, NSA_OP_APPEND));
  assert_true(splits(WIDE, 8, 1, 1, NSA_OP_DECODE));
  assert_true(splits(WIDE, 64, 8, 65536, NSA_OP_PREFILL));  /* 16 tiles: 8 and one a sequence */
  assert_false(splits(WIDE, 64, 9, 65536, NSA_OP_PREFILL)); /* 17 */
  assert_false(splits(FROM(0), 64, 1, 65536, NSA_OP_PREFILL));
  assert_true(splits(FROM(auto), 64, 1, 8192, NSA_OP_PREFILL));
  assert_true(splits(MODEL_64, 64, 1, 8192, NSA_OP_PREFILL));
  assert_false(splits(MODEL_64, 64, 1, 8191, NSA_OP_PREFILL));
  assert_true(splits(FROM(100), 64, 1, 100, NSA_OP_PREFILL));
  assert_false(splits(FROM(100), 64, 1, 99, NSA_OP_PREFILL));
  assert_false(splits(WIDE "variants: {disable: [dense.*]}", 64, 1, 65536, NSA_OP_PREFILL));
  assert_false(splits(WIDE "variants: {force: {attend_window: attend_window_sm80}}", 64, 1, 65536,
                      NSA_OP_PREFILL));
  assert_true(
      splits(WIDE "variants: {force: {append: append_mean}}", 64, 1, 65536, NSA_OP_PREFILL));
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_defaults),    cmocka_unit_test(test_cached_defaults),
    cmocka_unit_test(test_none),        cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_strings),     cmocka_unit_test(test_normalizer_pages),
    cmocka_unit_test(test_selects_all), cmocka_unit_test(test_splits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
