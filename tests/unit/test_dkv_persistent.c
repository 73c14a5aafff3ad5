/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The persistent kernels of the rows of backward_kv: which models have them, and what is made of them.
 * tests/emulator runs them.
 */
#include "support/config.h"
#include "support/init.h"

#include "plan/spec.h"
#include "plan/variant.h"
#include "variants/backward/kv.h"

#include <nsa/nsa.h>

#define NAME "backward_kv_sm90"
#define SELECTED "backward_dkv_selected_persistent"
#define WINDOW "backward_dkv_window_persistent"

static const nsai_target hopper = { .arch = "sm_90a", .shared_bytes = 227 << 10, .sms = 132 };

/* The row's view of a model of 2 KV heads. */
typedef struct view {
  int reasons;
  char text[2048]; /* the reasons */
  const nsai_variant *row;
  nsai_kernel_spec spec[NSAI_MAX_FORM_KERNELS];
  nsai_form_sizes sizes;
} view;

static void look_at(view *v, const char *model, int64_t tokens, int32_t selection,
                    const nsai_target *target) {
  char yaml[512];
  nsai_problem p;
  nsai_candidate own;
  memset(v, 0, sizeof *v);
  snprintf(yaml, sizeof yaml, "nsa: 1\nmodel: {kv_heads: 2, %s}\n", model);
  nsai_config *config = load(&REQUEST(.text = yaml));
  nsa_problem asked = INIT(nsa_problem, .op = NSA_OP_BACKWARD, .max_tokens = tokens, .max_seqs = 1,
                           .selection = selection);
  if (nsai_problem_resolve(config, &asked, &p) != NSA_OK) fail_msg("%s", nsa_last_error());
  nsai_reasons reasons = { nsai_writer_open(v->text, sizeof v->text), 0 };
  assert_true(nsai_candidate_parse(NAME, NSAI_STAGE_BACKWARD_KV, &own));
  v->row = own.variant;
  nsai_variant_reasons(config, &p, target, own.variant, &reasons);
  v->reasons = reasons.count;
  const nsai_request request = { &p, target, &own.tiles, false };
  if (!v->reasons) {
    v->row->specify(&request, v->spec);
    v->row->workspace(&request, v->spec, &v->sizes);
  }
  nsai_config_destroy(config);
}

static void look(view *v, const char *model, int64_t tokens, int32_t selection) {
  look_at(v, model, tokens, selection, &hopper);
}

static const nsai_kernel_spec *find(const view *v, const char *entry) {
  for (int i = 0; i < v->row->kernels; i++)
    if (v->spec[i].entry && !strcmp(v->spec[i].entry, entry)) return &v->spec[i];
  return NULL;
}

static int64_t constant(const nsai_kernel_spec *s, const char *name) {
  for (int i = 0; i < s->constant_count; i++)
    if (!strcmp(s->constants[i].name, name)) return s->constants[i].value;
  fail_msg("%s has no %s", s->entry, name);
  return 0;
}

static void test_models(void **state) {
  static const struct {
    const char *model;
    int32_t selection;
    bool lists, window;
  } cases[] = {
    { "heads: 32, head_dim: 128", NSA_SELECT_TOPN, true, true },
    { "heads: 32, head_dim: 128", NSA_SELECT_BLOCKS, true, true },
    { "heads: 128, head_dim: 64, dtype: fp16", NSA_SELECT_TOPN, true, true },
    { "heads: 32, head_dim: 128, window: 0", NSA_SELECT_TOPN, true, false },
    { "heads: 2, head_dim: 128, select: {count: 0}", NSA_SELECT_TOPN, false, true },
    { "heads: 2, head_dim: 128", NSA_SELECT_RANGES, false, true },
    { "heads: 16, head_dim_qk: 192, head_dim_v: 128", NSA_SELECT_TOPN, true, true },
    { "heads: 16, head_dim: 128", NSA_SELECT_TOPN, false,
      true }, /* boxes of 8 heads are too many */
    { "heads: 128, head_dim: 144", NSA_SELECT_TOPN, false, false }, /* stages of 32 rows */
    { "heads: 48, head_dim: 128", NSA_SELECT_TOPN, false, false },  /* no power of two */
    { "heads: 32, head_dim: 192", NSA_SELECT_TOPN, false, false },  /* too wide */
    { "heads: 32, head_dim: 128, select: {block: 32}", NSA_SELECT_TOPN, false, true },
    { "heads: 32, head_dim: 128, window: 0", NSA_SELECT_RANGES, false, false },
  };
  view v;
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    look(&v, cases[i].model, 4096, cases[i].selection);
    const bool any = cases[i].lists || cases[i].window;
    if (v.reasons || (find(&v, SELECTED) != NULL) != cases[i].lists ||
        (find(&v, WINDOW) != NULL) != cases[i].window ||
        (find(&v, "backward_clear") != NULL) != any)
      fail_msg("%s: %s", cases[i].model, v.text);
    assert_int_equal(v.sizes.bytes[NSAI_DKV_COUNTERS], any ? 2 * 4 : 0); /* all heads at once */
  }
}

/* Persistent kernels have no smaller tiles: those without tensor maps replace them. */
static void test_register_fallback(void **state) {
  nsai_target fewer = hopper;
  view v;
  (void)state;
  fewer.register_fallback = 1;
  look_at(&v, "heads: 32, head_dim: 128", 4096, NSA_SELECT_TOPN, &fewer);
  assert_int_equal(v.reasons, 0);
  assert_null(find(&v, SELECTED));
  assert_null(find(&v, WINDOW));
  assert_null(find(&v, "backward_clear"));
  assert_non_null(find(&v, "backward_dkv_window"));
  assert_int_equal(v.sizes.bytes[NSAI_DKV_COUNTERS], 0);
}

/* The kernel of the lists takes an even number of stages: room for three is not enough. */
static void test_least_stages(void **state) {
  static const char model[] = "heads: 32, head_dim: 128, window: 0";
  nsai_target smaller = hopper;
  view v;
  (void)state;
  look(&v, model, 4096, NSA_SELECT_TOPN);
  smaller.shared_bytes = find(&v, SELECTED)->shared_bytes;
  look_at(&v, model, 4096, NSA_SELECT_TOPN, &smaller);
  assert_non_null(find(&v, SELECTED));
  smaller.shared_bytes--;
  look_at(&v, model, 4096, NSA_SELECT_TOPN, &smaller);
  assert_null(find(&v, SELECTED));
}

/* The kernel, what cuts the lists, and the workspace agree about the length of items, and whether CTAs
 * take them by their first tokens. */
static void test_items(void **state) {
  static const struct {
    int64_t tokens;
    int32_t item;
    bool ordered;
  } cases[] = { { 1, 256, false },       { 8191, 256, false },    { 8192, 256, true },
                { 32767, 256, true },    { 32768, 512, true },    { 131071, 512, true },
                { 131072, 1024, false }, { 1 << 20, 1024, false } };
  view v;
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    look(&v, "heads: 32, head_dim: 128", cases[i].tokens, NSA_SELECT_TOPN);
    const nsai_kernel_spec *s = find(&v, SELECTED);
    assert_int_equal(s->tile_tokens, cases[i].item);
    assert_int_equal(constant(s, "kEntries"), cases[i].item);
    assert_int_equal(constant(find(&v, "data_invert_scan"), "kRows"), cases[i].item);
    /* The order of 2 KV heads' items. */
    const int64_t items =
        cases[i].tokens * 16 / cases[i].item + cases[i].tokens / 64 + 1; /* of a sequence */
    assert_true((find(&v, "data_invert_order") != NULL) == cases[i].ordered);
    assert_int_equal(v.sizes.bytes[NSAI_DKV_ITEM_ORDER], cases[i].ordered ? 2 * items * 4 : 0);
  }
}

/* A CTA for each item has no order. */
static void test_order_of_ctas(void **state) {
  nsai_target fewer = hopper;
  view v;
  (void)state;
  fewer.register_fallback = 1;
  look_at(&v, "heads: 32, head_dim: 128", 16384, NSA_SELECT_TOPN, &fewer);
  assert_int_equal(v.reasons, 0);
  assert_non_null(find(&v, "data_invert_scan"));
  assert_null(find(&v, "data_invert_order"));
  look(&v, "heads: 32, head_dim: 128", 16384, NSA_SELECT_RANGES);
  assert_null(find(&v, "data_invert_order"));
}

/* One CTA on a multiprocessor. Warpgroups that share keys take an even number of stages:
 * backward/pipelines/dkv_items.cuh. */
static void test_tiles(void **state) {
  int legal = 0;
  view v;
  (void)state;
  for (int dk = 16; dk <= 192; dk += 16)
    for (int dv = 16; dv <= 192; dv += 16)
      for (int group = 8; group <= 64; group *= 2) {
        char model[128];
        snprintf(model, sizeof model, "heads: %d, head_dim_qk: %d, head_dim_v: %d", 2 * group, dk,
                 dv);
        look(&v, model, 4096, NSA_SELECT_TOPN);
        const nsai_kernel_spec *const of[] = { find(&v, SELECTED), find(&v, WINDOW) };
        if (!of[0]) continue;
        assert_non_null(of[1]);
        legal++;
        for (int i = 0; i < 2; i++) {
          assert_int_equal(of[i]->ctas_per_sm, 1);
          assert_int_equal(constant(of[i], "kMinBlocks"), 1);
          assert_true(of[i]->shared_bytes <= hopper.shared_bytes);
          assert_true(constant(of[i], "kStages") >= 3);
        }
        assert_int_equal(constant(of[0], "kStages") % 2, 0);
      }
  assert_true(legal > 200);
}

/* Two counters for each group of KV heads that the workspace has sums for at a time. */
static void test_tickets(void **state) {
  view v;
  (void)state;
  look(&v, "heads: 32, head_dim: 128", 1 << 20, NSA_SELECT_TOPN);
  assert_int_equal(v.sizes.number[NSAI_DKV_HEADS], 1);
  assert_int_equal(v.sizes.bytes[NSAI_DKV_COUNTERS], 2 * 2 * 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_register_fallback),
    cmocka_unit_test(test_least_stages),
    cmocka_unit_test(test_models),
    cmocka_unit_test(test_items),
    cmocka_unit_test(test_order_of_ctas),
    cmocka_unit_test(test_tiles),
    cmocka_unit_test(test_tickets),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
