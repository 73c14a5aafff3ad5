/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A tuning's results: events in, texts out.
 */
#include "support/cmocka_all.h"

#include "cli/json_check.h"
#include "cli/tune_print.h"

#include <math.h>

static char text[1 << 16];

static nsai_tune_subject subject = { .file = "a \"b\".yaml" };

static const char *print(nsai_tune_format format, const nsai_tune_results *results) {
  nsai_writer out = nsai_writer_open(text, sizeof text);
  assert_int_equal(nsai_tune_print(&out, format, &subject, results), NSA_OK);
  assert_true(out.used < sizeof text);
  if (format == NSAI_TUNE_JSON) assert_true(nsai_json_valid(text, out.used));
  return text;
}

static void add_event(nsai_tune_results *results, nsa_tune_event event) {
  char stage[64], candidate[128];
  event.struct_size = (uint32_t)sizeof event;
  if (event.stage) event.stage = strcpy(stage, event.stage);
  if (event.candidate) event.candidate = strcpy(candidate, event.candidate);
  nsai_tune_results_add(results, &event);
  memset(stage, '?', sizeof stage); /* the copy must not look at them */
  memset(candidate, '?', sizeof candidate);
}

#define ADD(results, ...) add_event(results, (nsa_tune_event){ __VA_ARGS__ })

/* A problem with the times of its forward and of dense attention. */
static void add_length(nsai_tune_results *results, const char *problem, int64_t tokens,
                       double forward, double dense) {
  ADD(results, .kind = NSA_TUNE_PROBLEM, .problem = problem, .tokens = tokens);
  ADD(results, .kind = NSA_TUNE_BASELINE, .candidate = "forward", .ms = forward);
  ADD(results, .kind = NSA_TUNE_BASELINE, .candidate = "dense", .ms = dense);
  ADD(results, .kind = NSA_TUNE_BASELINE, .candidate = "dense_gemm",
      .ms = dense * (tokens > 5000 ? 2 : 0.5));
  ADD(results, .kind = NSA_TUNE_DONE);
}

static void add_stage(nsai_tune_results *results) {
  ADD(results, .kind = NSA_TUNE_PROBLEM, .problem = "fwd:h4/2:ov=low:len4096", .tokens = 4096,
      .ms = 1500);
  ADD(results, .kind = NSA_TUNE_TIMED, .stage = "attend_window", .candidate = "mma rows=64",
      .ms = 2, .spread = 0.01);
  ADD(results, .kind = NSA_TUNE_TIMED, .stage = "attend_window", .candidate = "mma rows=128",
      .ms = 1.5, .spread = 0.02);
  ADD(results, .kind = NSA_TUNE_REFUSED, .stage = "attend_window", .candidate = "mma rows=256",
      .note = "spills, a lot");
  ADD(results, .kind = NSA_TUNE_WRONG, .stage = "attend_window", .candidate = "mma rows=32",
      .note = "row 7: \"nan\"");
  ADD(results, .kind = NSA_TUNE_CHOSEN, .stage = "attend_window", .candidate = "mma rows=128",
      .ms = 1.5, .gain = 0.25);
  ADD(results, .kind = NSA_TUNE_BASELINE, .candidate = "forward", .ms = 4, .spread = 0.005);
  ADD(results, .kind = NSA_TUNE_DONE, .note = "the budget is spent");
}

static void test_text(void **state) {
  nsai_tune_results results = { 0 };
  add_stage(&results);
  assert_string_equal(print(NSAI_TUNE_TEXT, &results),
                      "a \"b\".yaml\n\n"
                      "fwd:h4/2:ov=low:len4096 at 4096 tokens\n"
                      "  stage             candidate            ms    spread  heuristic     gain\n"
                      "  attend_window     mma rows=128      1.500     2.0 %      2.000   25.0 %\n"
                      "  whole                    ms    spread\n"
                      "  forward               4.000     0.5 %\n"
                      "  2 timed, 1 refused, 1 wrong\n"
                      "  wrong: attend_window mma rows=32: row 7: \"nan\"\n"
                      "  the budget is spent\n\n");
  nsai_tune_results_fini(&results);
}

/* A winner whose time contains that of other stages says so. */
static void test_notes(void **state) {
  nsai_tune_results results = { 0 };
  ADD(&results, .kind = NSA_TUNE_PROBLEM, .problem = "fwd", .tokens = 4096);
  ADD(&results, .kind = NSA_TUNE_CHOSEN, .stage = "attend_selected", .candidate = "both", .ms = 3,
      .spread = 0.01, .gain = 0.25, .note = "fuses attend_window");
  ADD(&results, .kind = NSA_TUNE_DONE);
  print(NSAI_TUNE_TEXT, &results);
  assert_non_null(strstr(text, "3.000     1.0 %      4.000   25.0 %\n"
                               "  attend_selected: fuses attend_window\n"));
  print(NSAI_TUNE_MARKDOWN, &results);
  assert_non_null(strstr(text, "25.0 % |\n\n- attend_selected: fuses attend_window\n\n"));
  nsai_tune_results_fini(&results);
}

static void test_markdown(void **state) {
  nsai_tune_results results = { 0 };
  add_stage(&results);
  print(NSAI_TUNE_MARKDOWN, &results);
  assert_non_null(strstr(text, "## a \"b\".yaml\n\n### `fwd:h4/2:ov=low:len4096` at 4096"));
  assert_non_null(strstr(text,
                         "| stage | candidate | ms | spread | heuristic | gain |\n"
                         "|---|---|---:|---:|---:|---:|\n"
                         "| attend_window | mma rows=128 | 1.500 | 2.0 % | 2.000 | 25.0 % |\n\n"));
  assert_non_null(strstr(text, "| whole | ms | spread |\n|---|---:|---:|\n"));
  nsai_tune_results_fini(&results);
}

static void test_json(void **state) {
  nsai_tune_results results = { 0 };
  print(NSAI_TUNE_JSON, &results);
  assert_string_equal(text, "{\"file\": \"a \\\"b\\\".yaml\", \"problems\": [],\n"
                            " \"summary\": []}");
  add_stage(&results);
  ADD(&results, .kind = NSA_TUNE_PROBLEM, .problem = "x", .ms = (double)NAN);
  print(NSAI_TUNE_JSON, &results);
  assert_non_null(
      strstr(text, "\"ms\": 1.5, \"spread\": 0.02, \"heuristic_ms\": 2, \"gain\": 0.25"));
  assert_non_null(strstr(text, "\"state\": \"wrong\", \"note\": \"row 7: \\\"nan\\\"\""));
  assert_non_null(strstr(text, "\"estimate_ms\": null"));
  assert_non_null(strstr(text, "\"done\": false"));
  nsai_tune_results_fini(&results);
}

static void test_csv(void **state) {
  nsai_tune_results results = { 0 };
  add_stage(&results);
  assert_string_equal(
      print(NSAI_TUNE_CSV, &results),
      "\"a \"\"b\"\".yaml\",,,fwd:h4/2:ov=low:len4096,4096,timed,attend_window,mma "
      "rows=64,2,0.01,,,\n"
      "\"a \"\"b\"\".yaml\",,,fwd:h4/2:ov=low:len4096,4096,timed,attend_window,mma "
      "rows=128,1.5,0.02,,,"
      "\n"
      "\"a \"\"b\"\".yaml\",,,fwd:h4/2:ov=low:len4096,4096,refused,attend_window,mma "
      "rows=256,,,,,\"spills, a lot\"\n"
      "\"a \"\"b\"\".yaml\",,,fwd:h4/2:ov=low:len4096,4096,wrong,attend_window,mma "
      "rows=32,,,,,\"row "
      "7: \"\"nan\"\"\"\n"
      "\"a \"\"b\"\".yaml\",,,fwd:h4/2:ov=low:len4096,4096,chosen,attend_window,mma "
      "rows=128,1.5,0,2,0.25,\n"
      "\"a \"\"b\"\".yaml\",,,fwd:h4/2:ov=low:len4096,4096,baseline,,forward,4,0.005,,,\n");
  nsai_tune_results_fini(&results);
}

/* Every format names the GPU, and those that its records serve. */
static void test_subject(void **state) {
  static const int32_t serves[] = { 1, 3, 0 };
  nsai_tune_results results = { 0 };
  ADD(&results, .kind = NSA_TUNE_PROBLEM, .problem = "fwd", .tokens = 64);
  ADD(&results, .kind = NSA_TUNE_PLANNED, .stage = "select", .candidate = "topn");
  const nsai_tune_subject plain = subject;
  subject.device = "Fake, H200";
  subject.arch = "sm_90a";
  subject.sms = 132;
  subject.gpu = 3;
  print(NSAI_TUNE_TEXT, &results);
  assert_ptr_equal(strstr(text, "a \"b\".yaml on cuda:3 (Fake, H200)\n\n"), text);
  print(NSAI_TUNE_JSON, &results);
  assert_non_null(strstr(text,
                         "\"gpu\": \"cuda:3\", \"device\": \"Fake, H200\", \"arch\": \"sm_90a\", "
                         "\"sms\": 132, \"serves\": [\"cuda:3\"], \"problems\""));
  subject.serves = serves;
  subject.serves_count = 3;
  print(NSAI_TUNE_MARKDOWN, &results);
  assert_ptr_equal(strstr(text,
                          "## a \"b\".yaml on cuda:3 (Fake, H200); its records also serve cuda:1, "
                          "cuda:0\n\n"),
                   text);
  print(NSAI_TUNE_JSON, &results);
  assert_non_null(strstr(text, "\"serves\": [\"cuda:1\", \"cuda:3\", \"cuda:0\"]"));
  print(NSAI_TUNE_CSV, &results);
  assert_string_equal(
      text, "\"a \"\"b\"\".yaml\",cuda:3,\"Fake, H200\",fwd,64,planned,select,topn,,,,,\n");
  subject = plain;
  nsai_tune_results_fini(&results);
}

static void test_dry_run(void **state) {
  nsai_tune_results results = { 0 };
  ADD(&results, .kind = NSA_TUNE_PROBLEM, .problem = "dense:h4", .tokens = 64, .ms = 12000);
  ADD(&results, .kind = NSA_TUNE_PLANNED, .stage = "dense", .candidate = "mma rows=64");
  assert_string_equal(print(NSAI_TUNE_TEXT, &results), "a \"b\".yaml\n\n"
                                                       "dense:h4 at 64 tokens\n"
                                                       "  dense             mma rows=64\n"
                                                       "  1 candidate, about 12 s\n\n");
  print(NSAI_TUNE_JSON, &results);
  assert_non_null(strstr(text, "\"state\": \"planned\""));
  nsai_tune_results_fini(&results);
}

static void test_summary(void **state) {
  nsai_tune_results results = { 0 };
  size_t count;
  /* Two series mixed, lengths out of order. Low overlap: 1/2 at 4096 (dense_gemm), 2 at 16384: the
   * middle of the logarithms is 8192. */
  add_length(&results, "fwd:ov=low:tok16384:len16384", 16384, 1, 2);
  add_length(&results, "fwd:ov=high:tok4096:len4096", 4096, 1, 4);
  add_length(&results, "fwd:ov=low:tok4096:len4096", 4096, 1, 1);
  nsai_tune_point *points;
  assert_int_equal(nsai_tune_points(&results, &points, &count), NSA_OK);
  assert_int_equal(count, 3);
  assert_int_equal(nsai_tune_series(points, count), 1);
  assert_true(nsai_tune_crossover(points, 1) == 0);
  assert_int_equal(nsai_tune_series(points + 1, 2), 2);
  assert_int_equal(points[1].tokens, 4096);
  assert_string_equal(points[1].dense, "dense_gemm");
  assert_string_equal(points[2].dense, "dense");
  assert_true(fabs(nsai_tune_crossover(points + 1, 2) - 8192) < 1e-6);
  assert_true(isinf(nsai_tune_crossover(points + 1, 1)));
  free(points);
  print(NSAI_TUNE_TEXT, &results);
  assert_non_null(strstr(text, "inputs ov=low\n"
                               "  better baseline      tokens  forward ms  baseline ms    ratio\n"
                               "  dense_gemm             4096       1.000        0.500     0.50\n"
                               "  dense                 16384       1.000        2.000     2.00\n"
                               "  crossover: the sparse forward is faster from about 8192 tokens "
                               "on\n\n"));
  print(NSAI_TUNE_JSON, &results);
  assert_non_null(strstr(text, "\"crossover_tokens\": 8192, \"sparse_faster\": \"from the"));
  assert_non_null(strstr(text, "\"crossover_tokens\": null, \"sparse_faster\": \"at every"));
  print(NSAI_TUNE_CSV, &results);
  assert_non_null(strstr(text, ",8192,crossover,,,,,,,from the crossover on\n"));
  nsai_tune_results_fini(&results);
}

static void test_sort(void **state) {
  nsai_tune_results results = { 0 };
  nsai_tune_span span = { 0 };
  nsai_tune_results_sort(&results);
  ADD(&results, .kind = NSA_TUNE_DONE, .note = "of no problem");
  add_length(&results, "fwd:ov=low:len16384", 16384, 1, 2);
  add_length(&results, "fwd:ov=high:len8192", 8192, 3, 4);
  add_length(&results, "fwd:ov=low:len4096", 4096, 5, 6);
  nsai_tune_results_sort(&results);
  assert_int_equal(results.count, 15);
  for (int i = 0; nsai_tune_next(&results, &span); i++) {
    static const int64_t tokens[] = { 8192, 4096, 16384 };
    assert_int_equal(span.count, 5);
    assert_int_equal(span.events[0].tokens, tokens[i]);
  }
  add_length(&results, "fwd:ov=low:len64", 64, 1, 2); /* it grows as before */
  assert_int_equal(results.count, 20);
  nsai_tune_results_fini(&results);
  static const char *const steps[] = { "decode:seq16:len64", "decode:seq4:len64",
                                       "decode:seq4:len8" };
  static const int64_t lengths[] = { 64, 64, 8 };
  for (int i = 0; i < 3; i++) add_length(&results, steps[i], lengths[i], 1, 2);
  nsai_tune_results_sort(&results);
  span = (nsai_tune_span){ 0 };
  for (int i = 2; nsai_tune_next(&results, &span); i--)
    assert_string_equal(span.events[0].problem, steps[i]);
  nsai_tune_results_fini(&results);
}

static void test_series(void **state) {
  char inputs[NSAI_TUNE_INPUTS_BYTES];
  assert_true(nsai_tune_same_series("fwd:ov=low:tok8:kv8:len8:seq1", "fwd:ov=low:seq1"));
  assert_true(nsai_tune_same_series("len1", "len2"));
  assert_true(nsai_tune_same_series("decode:q1:seq4:len8", "decode:q1:seq16:len8"));
  assert_false(nsai_tune_same_series("decode:q1:seq4:len8", "decode:q4:seq4:len8"));
  assert_false(nsai_tune_same_series("fwd:ov=low:len8", "fwd:ov=high:len8"));
  assert_false(nsai_tune_same_series("fwd:kv=shared:len8", "fwd:kv=branch:len8"));
  assert_false(nsai_tune_same_series("fwd:a:len8", "fwd:ab:len8"));
  assert_false(nsai_tune_same_series("fwd:len8:det", "fwd:len8"));
  assert_string_equal(nsai_tune_inputs("fwd:ov=high:len8", inputs), "ov=high");
  assert_string_equal(nsai_tune_inputs("fwd:len8", inputs), "any");
}

static void test_json_check(void **state) {
  static const char *const good[] = { "null", " [1, -2.5e+3, \"a\\u00e9\\n\", {}] ",
                                      "{\"a\": []}" };
  static const char *const bad[] = { "",       "{",       "[1,]", "{\"a\"}", "01",
                                     "\"a",    "\"\\x\"", "nul",  "[] []",   "{\"a\": 1,}",
                                     "\"\n\"", "1.",      "nan" };
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
    assert_true(nsai_json_valid(good[i], strlen(good[i])));
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    assert_false(nsai_json_valid(bad[i], strlen(bad[i])));
  memset(text, '[', 1000);
  assert_false(nsai_json_valid(text, 1000)); /* too deep, and no overflow */
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_text),       cmocka_unit_test(test_markdown),
    cmocka_unit_test(test_json),       cmocka_unit_test(test_csv),
    cmocka_unit_test(test_dry_run),    cmocka_unit_test(test_summary),
    cmocka_unit_test(test_sort),       cmocka_unit_test(test_series),
    cmocka_unit_test(test_json_check), cmocka_unit_test(test_notes),
    cmocka_unit_test(test_subject),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
