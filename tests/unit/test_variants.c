/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The choice of variants over the shipped configurations and random models on every
 * architecture: complete, within the limits, and written as one well-formed unit a kernel.
 */
#include "support/config.h"
#include "support/init.h"

#include "compile/templates.h"
#include "driver/arch.h"
#include "plan/plan.h"
#include "plan/spec.h"
#include "variants/compress/phi.h"

#include <glob.h>

#define PORTABLE_SHARED_BYTES (99 * 1024)
#define UNIT_BYTES 4096 /* what plan/kernel_set.c has room for */

static void check_unit(const nsai_kernel_spec *spec, const nsai_problem *problem, char *text) {
  nsai_writer w = nsai_writer_open(text, UNIT_BYTES);
  nsai_kernel_unit(spec, problem, &w);
  char include[96];
  const nsai_template *file = nsai_template_of(spec->entry);
  snprintf(include, sizeof include, "};\n\n#include \"%s\"\n", file ? file->name : "no file");
  if (w.used >= UNIT_BYTES || strncmp(text, "// ", 3) != 0 || !strstr(text, "struct Config {") ||
      strcmp(text + w.used - strlen(include), include) != 0)
    fail_msg("bad unit: %s", text);
}

static void check_spec(const nsai_kernel_spec *spec, const nsai_problem *problem) {
  if (spec->threads < 32 || spec->threads > 1024 || spec->threads % 32)
    fail_msg("%s: %d threads", spec->entry, spec->threads);
  bool hopper = spec->tma_box_keys || strstr(spec->entry, "_sm90"); /* sm_90a alone */
  if (spec->shared_bytes > (hopper ? 227u * 1024 : PORTABLE_SHARED_BYTES))
    fail_msg("%s: %u bytes of shared memory", spec->entry, spec->shared_bytes);
  if (spec->constant_count <= 0 || spec->constant_count >= NSAI_MAX_CONSTANTS)
    fail_msg("%s: %d constants", spec->entry, spec->constant_count);
  for (int i = 0; i < spec->constant_count; i++) {
    if (spec->constants[i].value < INT32_MIN || spec->constants[i].value > INT32_MAX)
      fail_msg("%s: %s is no int", spec->entry, spec->constants[i].name);
    for (int k = 0; k < i; k++)
      if (!strcmp(spec->constants[i].name, spec->constants[k].name))
        fail_msg("%s: %s twice", spec->entry, spec->constants[i].name);
  }
  char text[UNIT_BYTES], other[UNIT_BYTES];
  check_unit(spec, problem, text);
  /* Capacities are never in a unit: the same code serves every length. */
  nsai_problem longer = *problem;
  longer.max_tokens += 1000;
  longer.max_seqs++;
  check_unit(spec, &longer, other);
  assert_string_equal(text, other);
}

/* Buffers lie one after the other, aligned, within the total. */
static void check_workspace(const nsai_problem *problem, const nsai_target *target,
                            const nsai_choice *choice) {
  nsai_workspace l;
  assert_int_equal(nsai_workspace_make(problem, choice, target, &l), NSA_OK);
  nsai_buffer all[NSAI_MAX_BUFFERS + 16] = { l.k_cmp,      l.v_cmp,        l.lse,   l.partial,
                                             l.importance, l.idx,          l.lists, l.gate_logits,
                                             l.gemm,       l.partial_units };
  uint64_t sum = 0;
  memcpy(&all[10], l.buffers, sizeof l.buffers);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (!all[i].bytes) continue;
    uint64_t end = all[i].offset + all[i].bytes;
    if (all[i].offset % NSAI_WORKSPACE_ALIGN || end > l.total || end < all[i].offset)
      fail_msg("buffer %zu: offset %llu", i, (unsigned long long)all[i].offset);
    for (size_t k = 0; k < i; k++)
      if (all[k].bytes && all[i].offset < all[k].offset + all[k].bytes && all[k].offset < end)
        fail_msg("buffers %zu and %zu overlap", i, k);
    sum += (all[i].bytes + NSAI_WORKSPACE_ALIGN - 1) / NSAI_WORKSPACE_ALIGN * NSAI_WORKSPACE_ALIGN;
  }
  assert_true(sum == l.total);
}

static bool has(const nsai_choice *c, const char *entry) {
  return nsai_choice_kernel(c, entry) != NULL;
}

/* Whether the row of a stage has a kernel for the slot of its enum. */
static bool has_slot(const nsai_choice *c, nsai_stage stage, int slot) {
  const nsai_chosen_form *form = nsai_choice_form(c, stage);
  return form && c->specs[form->first_kernel + slot].entry;
}

/* The kernel each launch of a forward needs. */
static void check_kernels(const nsai_problem *p, const nsai_choice *c) {
  if (p->op == NSA_OP_DENSE) {
    assert_int_equal(c->kernel_count, 1);
    return;
  }
  const nsai_model *m = &p->model;
  bool own = m->select_count && p->selection == NSA_SELECT_TOPN;
  bool products = m->phi == NSAI_PHI_LINEAR || m->phi == NSAI_PHI_MLP;
  const bool normalizes =
      nsai_normalizes_apart(m) && ((own && !nsai_problem_selects_all(p)) || p->max_probe_rows);
  assert_true(has(c, "compress_mean") ==
              (m->phi == NSAI_PHI_MEAN || (m->norm_block && normalizes)));
  assert_true(has(c, "compress_gather_rows") == products);
  if (products)
    assert_true(has_slot(c, NSAI_STAGE_COMPRESS, NSAI_PHI_ACTIVATION) == (m->phi == NSAI_PHI_MLP));
  assert_true(has_slot(c, NSAI_STAGE_GATE, 1) == (m->gate == NSAI_GATE_MLP));
  assert_true(has_slot(c, NSAI_STAGE_GATE, 0) == (m->gate_hidden > 0));
  assert_true(has_slot(c, NSAI_STAGE_ATTEND_COMPRESSED, 0) == nsai_compresses_values(m));
  const bool wgmma = c->variant[NSAI_STAGE_IMPORTANCE] == nsai_variant_find("importance_sm90");
  assert_true(has(c, "select_normalizer") == (normalizes && !wgmma));
  assert_true(has(c, "select_normalizer_sm90") == (normalizes && wgmma));
  assert_true(has_slot(c, NSAI_STAGE_IMPORTANCE, 0) ==
              (own && !nsai_problem_selects_all(p) && !nsai_is_fused(c, NSAI_STAGE_IMPORTANCE)));
  assert_true(has_slot(c, NSAI_STAGE_IMPORTANCE, 1) == (p->max_probe_rows > 0));
  assert_true(has(c, "select_topn") == own);
  assert_true((has(c, "data_sort_blocks") || has(c, "data_sort_ranges")) ==
              (p->selection != NSA_SELECT_TOPN));
  assert_true(has_slot(c, NSAI_STAGE_ATTEND_SELECTED, 0) == (m->select_count > 0));
  assert_true(has_slot(c, NSAI_STAGE_ATTEND_WINDOW, 0) ==
              (m->window > 0 && !nsai_is_fused(c, NSAI_STAGE_ATTEND_WINDOW)));
}

static nsai_target target_of(const nsai_arch *arch) {
  return (nsai_target){ arch->name, NULL, (uint32_t)arch->shared_bytes, 0, 132 };
}

static void choose(const nsai_config *config, const nsai_problem *p, const nsai_target *target,
                   nsai_choice *out) {
  if (nsai_choose(config, p, target, NULL, NULL, out) != NSA_OK) fail_msg("%s", nsa_last_error());
}

static void check_problem(const nsai_config *config, const nsa_problem *asked) {
  nsai_problem p;
  nsai_choice c;
  if (nsai_problem_resolve(config, asked, &p) != NSA_OK) fail_msg("%s", nsa_last_error());
  for (int32_t a = 0; nsai_arch_at(a); a++) {
    const nsai_arch *arch = nsai_arch_at(a);
    const nsai_target target = target_of(arch);
    choose(config, &p, &target, &c);
    for (int s = 0; s < NSAI_STAGE_COUNT; s++)
      assert_true((c.variant[s] != NULL) == nsai_stage_needed(&p, (nsai_stage)s));
    for (int i = 0; i < c.kernel_count; i++)
      if (c.specs[i].entry) check_spec(&c.specs[i], &p);
    check_kernels(&p, &c);
    check_workspace(&p, &target, &c);
  }
}

/* A variant fuses stages that nsai_choose treats after its own. */
static void test_fuses(void **state) {
  for (int i = 0; nsai_variants[i]; i++)
    assert_int_equal(nsai_variants[i]->fuses & ((2u << nsai_variants[i]->stage) - 1), 0);
}

/* Both operations and every selection, short and long, with and without a probe. */
static void check_config(const nsai_config *config) {
  for (int i = 0; i < 2 * 3 * 3; i++) {
    static const int64_t tokens[] = { 100, 100000, 2000000000 };
    nsa_problem asked = INIT(nsa_problem, .max_tokens = tokens[i % 3], .max_seqs = i % 2 ? 1 : 7,
                             .selection = config->model.select_count ? i / 3 % 3 : NSA_SELECT_TOPN,
                             .max_probe_rows = i % 2 ? 0 : 5, .overlap = 1 + i % 2);
    check_problem(config, &asked);
  }
  nsa_problem dense = INIT(nsa_problem, .op = NSA_OP_DENSE, .max_tokens = 5000, .max_seqs = 1);
  check_problem(config, &dense);
}

static void test_shipped(void **state) {
  const char *root = getenv("TEST_SOURCE_ROOT");
  int checked = 0;
  if (!root) fail_msg("TEST_SOURCE_ROOT is not set: run through meson test");
  static const char *const patterns[] = { "configs/*.yaml", "configs/*/*.yaml" };
  for (int i = 0; i < 2; i++) {
    char pattern[4096];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/%s", root, patterns[i]);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t k = 0; k < found.gl_pathc; k++) {
      nsai_config *config = load(&REQUEST(.path = found.gl_pathv[k]));
      if (config->has_model) check_config(config);
      checked += config->has_model;
      nsai_config_destroy(config);
    }
    globfree(&found);
  }
  assert_true(checked >= 7);
}

static uint32_t seed = 1;
static int32_t draw(int32_t count) {
  seed =
      seed * 1664525u + 1013904223u; /* Numerical Recipes' generator: the same on every machine */
  return (int32_t)((seed >> 8) % (uint32_t)count);
}

static void random_model(char *text, size_t size) {
  static const char *const phis[] = { "mean", "linear", "mlp, hidden: 33", "external" };
  static const char *const gates[] = { "weights", "logits", "mlp, gate_mlp: {channels: 9}",
                                       "mlp, gate_mlp: {channels: 9, hidden: 4}", "none" };
  int32_t group = 1 + draw(64), kv = 1 + draw(4), stride = 1 + draw(32);
  int32_t block = stride * (1 + draw(8)), select = block + stride * draw(8), count = draw(32);
  const int32_t phi = draw(4);
  const bool shared = draw(2), selects = count > 0, normalized = selects && phi < 3 && !draw(3);
  char norm[64] = "";
  if (normalized)
    snprintf(norm, sizeof norm, ", normalizer: {block: %d, stride: %d}", stride * (1 + draw(2)) * 2,
             stride * 2);
  snprintf(text, size,
           "nsa: 1\nmodel: {heads: %d, kv_heads: %d, head_dim_qk: %d, head_dim_v: %d, compress: "
           "{block: %d, stride: %d, phi: %s%s}, select: {block: %d, count: %d, init: %d, local: "
           "%d%s%s}, "
           "window: %d, gate: %s, kv_sharing: %s, dtype: %s}\n",
           group * kv, kv, 16 + 8 * draw(31), 16 + 8 * draw(31), block, stride, phis[phi],
           selects && shared && !draw(3) ? ", output: false" : "", select, count, count / 4,
           count / 3, draw(3) ? "" : ", pool: max", norm, draw(3) * 100, gates[draw(5)],
           shared ? "shared" : "per_branch", draw(2) ? "bf16" : "fp16");
}

static void test_random(void **state) {
  char text[1024];
  for (int i = 0; i < 300; i++) {
    random_model(text, sizeof text);
    nsai_config *config = load(&REQUEST(.text = text));
    check_config(config);
    nsai_config_destroy(config);
  }
}

#define MODEL "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64%s}\n%s"
static const nsai_target hopper = { "sm_90a", NULL, 232448, 0 };

static char story[65536]; /* of the latest explain() */
static nsai_choice choice;

static nsa_status explain(const char *model, const char *more, const nsa_problem *asked) {
  char text[4096];
  nsai_problem p;
  snprintf(text, sizeof text, MODEL, model, more);
  nsai_config *config = load(&REQUEST(.text = text));
  if (nsai_problem_resolve(config, asked, &p) != NSA_OK) fail_msg("%s", nsa_last_error());
  nsai_writer w = nsai_writer_open(story, sizeof story);
  nsa_status status = nsai_choose(config, &p, &hopper, NULL, &w, &choice);
  assert_true(w.used < sizeof story);
  nsai_config_destroy(config);
  return status;
}

static void expect_part(const char *text, const char *part) {
  if (!strstr(text, part)) fail_msg("\"%s\" is not in:\n%s", part, text);
}

static void test_force_and_disable(void **state) {
  nsa_problem asked = INIT(nsa_problem, .max_tokens = 5000, .max_seqs = 1), dense = asked;
  dense.op = NSA_OP_DENSE;
  assert_int_equal(explain("", "", &dense), NSA_OK);
  assert_string_equal(choice.variant[NSAI_STAGE_DENSE]->name, "dense_sm90");
  expect_part(story, "dense_gemm: possible, not chosen");
  assert_int_equal(explain("", "variants: {force: {dense: dense_gemm}}", &dense), NSA_OK);
  assert_string_equal(choice.variant[NSAI_STAGE_DENSE]->name, "dense_gemm");
  expect_part(story, "dense_gemm: chosen (variants.force)");
  expect_part(story, "variants.force asks for dense_gemm");
  /* A baseline is never the choice, even where it is the only one left. */
  assert_int_equal(explain("", "variants: {disable: [dense.dense_*]}", &dense), NSA_E_UNSUPPORTED);
  /* Forced and illegal: the reason, never another variant in its place. */
  assert_int_equal(explain("", "variants: {force: {attend_selected: attend_selected_dense_sm80}}",
                           &asked),
                   NSA_E_UNSUPPORTED);
  expect_part(story, "max_kv_len 5000 is beyond 1024 tokens");
  expect_part(story, "attend_selected_sm80: no");
  assert_int_equal(explain("", "variants: {disable: [\"attend_*.*\"]}", &asked), NSA_E_UNSUPPORTED);
  expect_part(story, "matches it with \"attend_*.*\"");
}

static void nothing_against(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)p;
  (void)t;
  (void)reasons;
}

static void needs_much(const nsai_request *r, nsai_kernel_spec kernel[]) {
  kernel[0] = (nsai_kernel_spec){ .entry = "made_up",
                                  .shared_bytes = r->problem->max_seqs ? 232449 : 232448 };
}

/* Reasons against a row of this problem. */
static int count_reasons(const nsai_problem *problem, const char *expected) {
  const nsai_variant variant = { .name = "made_up",
                                 .stage = NSAI_STAGE_IMPORTANCE,
                                 .kernels = 1,
                                 .legal = nothing_against,
                                 .specify = needs_much };
  char text[512] = "";
  nsai_reasons reasons = { nsai_writer_open(text, sizeof text), 0 };
  nsai_config *config = load(&REQUEST(.text = "nsa: 1\n"));
  nsai_variant_reasons(config, problem, &hopper, &variant, &reasons);
  nsai_config_destroy(config);
  expect_part(text, expected);
  return reasons.count;
}

/* Not even by mistake does a plan get a kernel that cannot be launched. */
static void test_shared_memory(void **state) {
  const nsai_problem small = { 0 }, large = { .max_seqs = 1 };
  assert_int_equal(count_reasons(&small, ""), 0);
  assert_int_equal(count_reasons(&large, "needs 232449 bytes of shared memory"), 1);
}

/* A cache in e4m3 needs a row that takes codes, whatever else it says. */
static void test_codes(void **state) {
  const nsai_problem raw = { .op = NSA_OP_DECODE, .kv_dtype = NSA_E4M3 },
                     entries = { .op = NSA_OP_DECODE, .cmp_dtype = NSA_E4M3 };
  assert_int_equal(count_reasons(&raw, "no kernel for a cache in e4m3, which problem.kv_dtype"), 1);
  assert_int_equal(count_reasons(&entries,
                                 "no kernel for a cache in e4m3, which problem.cmp_dtype"),
                   1);
  nsai_config *config =
      load(&REQUEST(.text = "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64}\n"));
  const nsai_problem p = { .model = config->model,
                           .op = NSA_OP_PREFILL,
                           .max_seqs = 1,
                           .max_tokens = 64,
                           .max_kv_len = 64,
                           .page_size = 64,
                           .max_q_len = 64,
                           .kv_dtype = NSA_E4M3 };
  for (const nsai_variant *const *row = nsai_variants; *row; row++) {
    char text[4096] = "";
    nsai_reasons reasons = { nsai_writer_open(text, sizeof text), 0 };
    nsai_variant_reasons(config, &p, &hopper, *row, &reasons);
    assert_true(!strstr(text, "it has no kernel for a cache in e4m3") == (*row)->takes_codes);
  }
  nsai_config_destroy(config);
}

/* A problem over a cache finds rows and tiles that fit on every architecture. */
static void check_coded(const nsai_config *config, const nsa_problem *asked) {
  nsai_problem p;
  nsai_choice c;
  nsai_workspace l;
  if (nsai_problem_resolve(config, asked, &p) != NSA_OK) fail_msg("%s", nsa_last_error());
  for (int32_t a = 0; nsai_arch_at(a); a++) {
    const nsai_arch *arch = nsai_arch_at(a);
    const nsai_target target = target_of(arch);
    choose(config, &p, &target, &c);
    for (int i = 0; i < c.kernel_count; i++)
      if (c.specs[i].entry && (c.specs[i].shared_bytes > (uint32_t)arch->shared_bytes ||
                               c.specs[i].constant_count >= NSAI_MAX_CONSTANTS))
        fail_msg("%s on %s: %u bytes of shared memory, %d constants", c.specs[i].entry, arch->name,
                 c.specs[i].shared_bytes, c.specs[i].constant_count);
    assert_int_equal(nsai_workspace_make(&p, &c, &target, &l), NSA_OK);
  }
}

/* Whatever the model is, append, prefill and decode take codes of raw pairs, of entries, or of both.
 */
static void test_random_codes(void **state) {
  static const int32_t ops[] = { NSA_OP_APPEND, NSA_OP_PREFILL, NSA_OP_DECODE };
  char text[1024];
  int checked = 0;
  for (int i = 0; checked < 40; i++) {
    random_model(text, sizeof text);
    nsai_config *config = load(&REQUEST(.text = text));
    const nsai_model *m = &config->model;
    if (m->head_dim_qk % NSAI_CODES_DIM_STEP || m->head_dim_v % NSAI_CODES_DIM_STEP) {
      nsai_config_destroy(config);
      continue;
    }
    for (int k = 0; k < 9; k++) {
      const nsa_problem asked =
          INIT(nsa_problem, .op = ops[k / 3], .max_tokens = 64, .max_seqs = 1 + draw(64),
               .max_kv_len = 100 + draw(100000), .max_q_len = k / 3 == 2 ? 1 + draw(4) : 0,
               .page_size = NSA_NONE, .kv_dtype = k % 3 != 2 ? NSA_E4M3 : NSA_NONE,
               .cmp_dtype = k % 3 ? NSA_E4M3 : NSA_NONE);
      check_coded(config, &asked);
    }
    nsai_config_destroy(config);
    checked++;
  }
}

/* Every reason is listed, however many there are. */
static void test_all_reasons(void **state) {
  char more[4096];
  nsa_problem dense = INIT(nsa_problem, .max_tokens = 10, .max_seqs = 2, .op = NSA_OP_DENSE);
  nsai_writer w = nsai_writer_open(more, sizeof more);
  nsai_write(&w, "runtime: {device: cpu}\nvariants: {disable: [dense.dense_sm80");
  for (int i = 0; i < 40; i++) nsai_write(&w, ", \"dense.dense_sm%.*s*\"", i % 8, "80");
  nsai_write(&w, "]}\n");
  assert_int_equal(explain(", dtype: f32", more, &dense), NSA_E_UNSUPPORTED);
  int reasons = 0;
  for (const char *at = story; (at = strstr(at, "matches it with")); at++) reasons++;
  assert_int_equal(reasons, 46); /* dense_sm90 by those 5 that are short enough */
  expect_part(story, "model.dtype is f32: GPU kernels take bf16 and fp16");
  expect_part(story, "max_seqs is 2");
}

/* Two specs with the same code have the same unit; different ones differ. */
static void test_same_code(void **state) {
  char k[UNIT_BYTES], v[UNIT_BYTES];
  nsai_problem any = { .op = NSA_OP_FORWARD, .selection = NSA_SELECT_TOPN };
  nsa_problem asked = INIT(nsa_problem, .max_tokens = 5000, .max_seqs = 1);
  assert_int_equal(explain(", compress: {phi: linear}", "", &asked), NSA_OK);
  any.model.dtype = NSA_BF16;
  const nsai_kernel_spec *gather = nsai_choice_kernel(&choice, "compress_gather_rows");
  check_unit(&gather[0], &any, k);
  check_unit(&gather[1], &any, v);
  assert_string_equal(k, v); /* Dk = Dv */
  check_unit(nsai_choice_kernel(&choice, choice.variant[NSAI_STAGE_ATTEND_COMPRESSED]->name), &any,
             v);
  assert_string_not_equal(k, v);
}

/* ---- attend_compressed_topn_sm90 ---- */

/* The reasons against it for a model of 4 KV heads; its spec where there are none. */
static int count_topn_reasons(const char *model, nsai_kernel_spec *spec, nsai_form_sizes *sizes,
                              char *text, size_t size) {
  char yaml[512];
  snprintf(yaml, sizeof yaml, "nsa: 1\nmodel: {kv_heads: 4, %s}\n", model);
  nsai_config *config = load(&REQUEST(.text = yaml));
  nsai_problem p;
  nsa_problem asked = INIT(nsa_problem, .max_tokens = 65536, .max_seqs = 1);
  if (nsai_problem_resolve(config, &asked, &p) != NSA_OK) fail_msg("%s", nsa_last_error());
  const nsai_target t = { .arch = "sm_90a", .shared_bytes = 227 << 10, .sms = 132 };
  nsai_candidate candidate;
  nsai_reasons reasons = { nsai_writer_open(text, size), 0 };
  assert_true(nsai_candidate_parse("attend_compressed_topn_sm90", NSAI_STAGE_ATTEND_COMPRESSED,
                                   &candidate));
  nsai_variant_reasons(config, &p, &t, candidate.variant, &reasons);
  const nsai_request request = { &p, &t, &candidate.tiles, false };
  if (!reasons.count) {
    candidate.variant->specify(&request, spec);
    candidate.variant->workspace(&request, spec, sizes);
  }
  nsai_config_destroy(config);
  return reasons.count;
}

static void test_topn_legal(void **state) {
  static const struct {
    const char *model, *reason; /* NULL: it is legal */
  } cases[] = {
    { "heads: 64, head_dim: 128", NULL },
    { "heads: 64, head_dim_qk: 192, head_dim_v: 128, dtype: fp16", NULL },
    { "heads: 12, head_dim: 64", NULL },
    { "heads: 256, head_dim: 128", NULL },
    { "heads: 8, head_dim: 128", NULL },
    { "heads: 4, head_dim: 128", NULL },
    { "heads: 4, head_dim: 32", "need more registers" },
    { "heads: 4, head_dim: 128, select: {count: 19}", NULL },
    { "heads: 4, head_dim: 128, select: {count: 20}", "chooses 17 blocks" },
    { "heads: 4, head_dim: 128, select: {block: 128}", "8 strides: with groups of one head 4" },
    { "heads: 64, head_dim: 256", "head_dim_v 256: at most 128" },
    { "heads: 64, head_dim_qk: 256, head_dim_v: 128", "bytes of shared memory" },
    { "heads: 64, head_dim: 72", "multiples of 32" },
    { "heads: 64, head_dim: 128, compress: {block: 32, stride: 32}", NULL },
    { "heads: 256, head_dim: 128, compress: {block: 32, stride: 32}", "need more registers" },
    { "heads: 64, head_dim: 128, compress: {block: 64, stride: 8}", "at most 4 are taken" },
    { "heads: 64, head_dim: 128, compress: {block: 48, stride: 16}, select: {block: 48}",
      "whole blocks of 2 at least" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[2048] = "";
    nsai_kernel_spec spec = { 0 };
    nsai_form_sizes sizes = { { 0 }, { 0 } };
    int count = count_topn_reasons(cases[i].model, &spec, &sizes, text, sizeof text);
    if ((count > 0) != (cases[i].reason != NULL) ||
        (cases[i].reason && !strstr(text, cases[i].reason)))
      fail_msg("%s: %d reasons\n%s", cases[i].model, count, text);
    if (count) continue;
    assert_true(sizes.bytes[0] > 0 && sizes.bytes[0] % 256 == 0 && spec.ctas_per_sm == 1);
    assert_true(spec.interleaved_keys && spec.tma_box_heads * spec.tma_box_tokens == 64);
  }
}

/* At 64 heads: 32 tiles of keys, of each 8 pieces of 16 rows and 32 blocks with their references, a
 * row of 8 bytes a block for each of 8 tokens, and the LSE of 128 rows. */
static void test_topn_scratch(void **state) {
  char text[2048];
  nsai_kernel_spec spec = { 0 };
  nsai_form_sizes sizes = { { 0 }, { 0 } };
  assert_int_equal(count_topn_reasons("heads: 64, head_dim: 128", &spec, &sizes, text, sizeof text),
                   0);
  const int64_t each = 32 * (8 * (16 * 32 + 16) * 4 + 8 * 32 * 8) + 128 * 4;
  assert_int_equal(sizes.number[0], each);
  assert_int_equal(sizes.bytes[0], 132 * each);
  /* Of single heads two lists for each of 128 rows, of 16 pairs of blocks a tile. */
  assert_int_equal(count_topn_reasons("heads: 4, head_dim: 128", &spec, &sizes, text, sizeof text),
                   0);
  assert_int_equal(sizes.number[0], 2 * 128 * 32 * 16 * 16);
}

/* ---- select_topn_cta ---- */

/* A CTA a row is chosen where few rows are long, and a warp a row otherwise; where the compressed
 * branch does not select. */
static void test_topn_cta(void **state) {
  static const struct {
    int64_t tokens, kv_len;
    const char *row;
  } cases[] = {
    { 64, 1 << 20, "select_topn_cta" },
    { 132, 32768, "select_topn_cta" }, /* 528 rows of 512 blocks */
    { 133, 32768, "select_topn" },
    { 132, 32767, "select_topn" },
  };
  nsai_config *config =
      load(&REQUEST(.text = "nsa: 1\nmodel: {heads: 64, kv_heads: 4, head_dim: 128}\n"
                            "serving: {page_size: 64}\n"
                            "variants: {disable: [attend_compressed.*_topn_sm90]}\n"));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    nsai_problem p;
    nsai_choice c;
    nsa_problem asked = INIT(nsa_problem, .op = NSA_OP_PREFILL);
    asked.max_tokens = asked.max_q_len = cases[i].tokens;
    asked.max_kv_len = cases[i].kv_len;
    if (nsai_problem_resolve(config, &asked, &p) ||
        nsai_choose(config, &p, &hopper, NULL, NULL, &c))
      fail_msg("%s", nsa_last_error());
    assert_string_equal(c.variant[NSAI_STAGE_SELECT]->name, cases[i].row);
  }
  nsai_config_destroy(config);
}

/* The compressed branch's dQ comes from the kernel of its dK and dV from a length on that was measured for the H200. */
static void test_backward_rows(void **state) {
  static const struct {
    const char *device;
    int64_t kv_len;
    const char *row;
  } cases[] = {
    { "NVIDIA H200", 16383, "backward_q_sm90_tma" },
    { "NVIDIA H200", 16384, "backward_q_kv_sm90" },
    { "NVIDIA H100 80GB HBM3", 32767, "backward_q_sm90_tma" },
    { "NVIDIA H100 80GB HBM3", 32768, "backward_q_kv_sm90" },
    { NULL, 32767, "backward_q_sm90_tma" },
    { NULL, 32768, "backward_q_kv_sm90" },
  };
  (void)state;
  nsai_config *config =
      load(&REQUEST(.text = "nsa: 1\nmodel: {heads: 64, kv_heads: 4, head_dim: 128}\n"));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    nsai_problem p;
    nsai_choice c;
    nsai_target target = hopper;
    nsa_problem asked = INIT(nsa_problem, .op = NSA_OP_BACKWARD);
    target.device = cases[i].device;
    asked.max_tokens = asked.max_kv_len = cases[i].kv_len;
    if (nsai_problem_resolve(config, &asked, &p) ||
        nsai_choose(config, &p, &target, NULL, NULL, &c))
      fail_msg("%s", nsa_last_error());
    assert_string_equal(c.variant[NSAI_STAGE_BACKWARD_Q]->name, cases[i].row);
  }
  nsai_config_destroy(config);
}

/* Heads whose O and Q leave nine warps of attend_selected_sm80 no registers. */
static void test_selected_registers(void **state) {
  static const struct {
    int32_t dim_qk, dim_v, warps;
  } cases[] = {
    { 192, 128, 8 }, { 184, 128, 4 }, { 184, 120, 4 }, { 184, 112, 8 }, { 176, 128, 8 }
  };
  const nsai_target ampere = { "sm_80", NULL, 163 * 1024, 0 };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    nsai_problem p = { .model = { .heads = 4,
                                  .kv_heads = 1,
                                  .head_dim_qk = cases[i].dim_qk,
                                  .head_dim_v = cases[i].dim_v } };
    nsai_decider by;
    const nsai_variant *row = nsai_variant_find("attend_selected_sm80");
    assert_int_equal(nsai_variant_tiles(row, &p, &ampere, &by).of[NSAI_TILE_WARPS], cases[i].warps);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_shipped),
    cmocka_unit_test(test_random),
    cmocka_unit_test(test_force_and_disable),
    cmocka_unit_test(test_all_reasons),
    cmocka_unit_test(test_same_code),
    cmocka_unit_test(test_shared_memory),
    cmocka_unit_test(test_codes),
    cmocka_unit_test(test_random_codes),
    cmocka_unit_test(test_fuses),
    cmocka_unit_test(test_topn_legal),
    cmocka_unit_test(test_topn_scratch),
    cmocka_unit_test(test_topn_cta),
    cmocka_unit_test(test_backward_rows),
    cmocka_unit_test(test_selected_registers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
