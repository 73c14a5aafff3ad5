/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Variants that cover further stages: when they are chosen, what that says of the stages they
 * cover, and what runs launch, on the fake GPU.
 */
#include "support/cmocka_all.h"

#include "fusing.h"
#include "machine.h"
#include "params/attention.h"
#include "plan/context.h"
#include "plan/plan.h"

/* The last params of either kernel. */
static NsaiCompressedTopn topn;
static NsaiSelectedWindow both;

static double keep_params(const fake_cuda_launch *launch, const void *params) {
  if (!strcmp(launch->name, "made_up_topn")) memcpy(&topn, params, sizeof topn);
  if (!strcmp(launch->name, "made_up_both")) memcpy(&both, params, sizeof both);
  return 1;
}

/* A machine whose blocks are really selected. */
static void begin(machine *m, const machine_request *request) {
  machine_request r = *request;
  r.gpu = true;
  if (!r.override) r.override = "thresholds.select_dense_below=0";
  machine_init(m, &r);
}

static nsa_status forward(machine *m) {
  fake_cuda_state *r = machine_record();
  *r = (fake_cuda_state){ .retained = 1, .kernel = keep_params };
  return machine_forward(m);
}

static void expect_launches(nsa_status status, const char *names) {
  machine_expect("run", status, NSA_OK, NULL);
  machine_expect_launches(names);
}

static void expect_variants(const machine *m, const char *expected) {
  nsa_caps caps = NSA_CAPS_INIT;
  machine_expect("caps", nsa_plan_caps(m->plan, &caps), NSA_OK, NULL);
  assert_string_equal(caps.variants, expected);
}

/* Fails unless nsa_explain says `part` of the machine's problem. */
static void expect_story(const machine *m, int32_t selection, const char *part) {
  nsa_problem problem = INIT(nsa_problem, .max_tokens = 64, .max_seqs = 2, .selection = selection);
  machine_expect_story(m->ctx, &problem, part);
}

static void expect_no_selection(machine *m) {
  m->toy.io.block_idx = m->toy.io.o_branch[NSA_SEL] = m->toy.io.lse[NSA_SEL] = (nsa_tensor){ 0 };
}

/* ---- made_up_topn ---- */

static void test_topn(void **state) {
  machine m;
  fusing_topn = true;
  begin(&m, &(machine_request){ 0 });
  expect_variants(&m, "compress=compress_mean attend_compressed=made_up_topn "
                      "importance=made_up_topn select=made_up_topn "
                      "attend_selected=attend_selected_sm80 attend_window=attend_window_sm80");
  expect_story(&m, 0, "    made_up_topn warps=4: chosen (first legal in the table; tiles by the");
  expect_story(&m, 0,
               "  importance:\n    done by made_up_topn of attend_compressed\n"
               "    importance_sm80: possible, not chosen (its stage is fused into another)\n");
  expect_story(&m, 0,
               "  kernel made_up_topn: 128 threads, 0 bytes of shared memory, persistent: 2 "
               "per multiprocessor\n");
  const nsai_workspace *l = &m.plan->workspace;
  const nsai_form *form = nsai_plan_form(m.plan, NSAI_STAGE_ATTEND_COMPRESSED);
  assert_int_equal(l->importance.bytes, 0);
  assert_int_equal(l->chunk_tokens, 0);
  assert_int_equal(form->buffer[0].bytes, 132 * FUSING_PER_SM * FUSING_SCRATCH);
  expect_launches(forward(&m),
                  "compress_mean attend_window_sm80 made_up_topn attend_selected_sm80");
  /* 40 tokens in two sequences, a token a tile: 42 tiles of each of 2 heads. */
  assert_int_equal(machine_record()->launch[2].grid_x, 84);
  assert_int_equal(topn.attend.attend.tiles, 84);
  assert_ptr_equal(topn.idx, m.toy.io.block_idx.data);
  assert_int_equal(topn.idx_token_stride, 2 * 4);
  assert_int_equal(topn.idx_head_stride, 4);
  assert_ptr_equal(topn.scratch, (char *)m.workspace + form->buffer[0].offset);
  assert_int_equal(topn.scratch_bytes, FUSING_SCRATCH);
  assert_non_null(topn.attend.attend.out.lse);
  machine_free(&m);
}

/* The first kernel of a stage, to change. */
static nsai_kernel *kernel_of(machine *m, nsai_stage stage) {
  return &m->plan->kernels[nsai_choice_form(&m->plan->choice, stage)->first_kernel];
}

/* No more blocks of threads than the device has at once; the kernel knows of all tiles. */
static void test_persistent(void **state) {
  machine m;
  fusing_topn = true;
  begin(&m, &(machine_request){ 0 });
  nsai_kernel *kernel = kernel_of(&m, NSAI_STAGE_ATTEND_COMPRESSED);
  assert_int_equal(kernel->most_ctas, 132 * FUSING_PER_SM);
  assert_int_equal(kernel_of(&m, NSAI_STAGE_ATTEND_SELECTED)->most_ctas, 0);
  static const int32_t most[] = { 0, 10, 84, 85 };
  static const uint32_t grids[] = { 84, 10, 84, 84 };
  for (int i = 0; i < 4; i++) {
    kernel->most_ctas = most[i];
    machine_expect("run", forward(&m), NSA_OK, NULL);
    assert_int_equal(machine_record()->launch[2].grid_x, grids[i]);
    assert_int_equal(topn.attend.attend.tiles, 84);
  }
  machine_free(&m);
}

/* What a run does not want is not asked of the kernel. */
static void test_topn_in_part(void **state) {
  machine m;
  fusing_topn = true;
  begin(&m, &(machine_request){ .max_probe_rows = 2 });
  m.toy.io.importance = toy_tensor(&m.toy, NSA_F32, 3, m.toy.tokens, 2, 4);
  *machine_record() = (fake_cuda_state){ .retained = 1 };
  expect_launches(nsa_select(m.plan, &m.exec, &m.toy.batch, &m.toy.io), "select_topn");
  static const int32_t ends[] = { 39, 0 };
  m.toy.io.probe_rows = toy_offsets(&m.toy, 1, ends);
  m.toy.io.probe_importance = toy_tensor(&m.toy, NSA_F32, 3, 2, 2, 4);
  expect_launches(
      forward(&m),
      "compress_mean attend_window_sm80 made_up_topn select_importance attend_selected_sm80");
  m.toy.io.probe_rows = m.toy.io.probe_importance = (nsa_tensor){ 0 };
  m.exec.branches = 1u << NSA_CMP | 1u << NSA_WIN; /* the caller still asks for the blocks */
  m.toy.io.o_branch[NSA_SEL] = m.toy.io.lse[NSA_SEL] = (nsa_tensor){ 0 };
  expect_launches(forward(&m), "compress_mean attend_window_sm80 made_up_topn");
  assert_non_null(topn.idx);
  expect_no_selection(&m);
  expect_launches(forward(&m), "compress_mean attend_window_sm80 made_up_topn");
  assert_null(topn.idx);
  m.exec.branches = 0; /* the blocks go into the workspace */
  expect_launches(forward(&m),
                  "compress_mean attend_window_sm80 made_up_topn attend_selected_sm80");
  assert_ptr_equal(topn.idx, (char *)m.workspace + m.plan->workspace.idx.offset);
  machine_free(&m);
}

/* ---- made_up_both ---- */

static void begin_both(machine *m) {
  fusing_topn = false;
  fusing_both = true;
  begin(m, &(machine_request){ .override = "variants.force.attend_selected=made_up_both",
                               .per_branch = true });
}

/* The window's sum comes after the compressed branch's and before the last. */
static void test_both(void **state) {
  machine m;
  begin_both(&m);
  expect_variants(&m, "compress=compress_mean attend_compressed=attend_compressed_sm80 "
                      "importance=importance_sm80 select=select_topn "
                      "attend_selected=made_up_both attend_window=made_up_both");
  expect_launches(forward(&m), "compress_mean attend_compressed_sm80 select_topn made_up_both");
  const nsa_io *io = &m.toy.io;
  const NsaiEpilogue *window = &both.out[NSAI_FUSED_WINDOW];
  const NsaiEpilogue *selected = &both.out[NSAI_FUSED_SELECTED];
  assert_int_equal(both.first_branch, NSAI_FUSED_WINDOW);
  assert_int_equal(both.end_branch, NSAI_FUSED_BRANCHES);
  assert_ptr_equal(both.selected.attend.v.data, io->kv.v[NSA_SEL].data);
  assert_ptr_equal(both.window_v.data, io->kv.v[NSA_WIN].data);
  assert_ptr_equal(both.selected.attend.lists, io->block_idx.data);
  assert_int_equal(both.selected.attend.tiles, 24); /* (40 / 4 + 2) of each head */
  assert_true(window->add_partial && window->partial && !window->o.data);
  assert_true(selected->add_partial);
  assert_ptr_equal(selected->o.data, io->o.data);
  assert_int_equal(window->gate_branch, NSA_WIN);
  assert_int_equal(selected->gate_branch, NSA_SEL);
  machine_free(&m);
  fusing_both = false;
}

/* One of the two branches alone, or neither. */
static void test_both_in_part(void **state) {
  machine m;
  begin_both(&m);
  m.exec.branches = 1u << NSA_WIN;
  memset(m.toy.io.o_branch, 0, sizeof m.toy.io.o_branch);
  memset(m.toy.io.lse, 0, sizeof m.toy.io.lse);
  expect_no_selection(&m);
  expect_launches(forward(&m), "made_up_both");
  assert_int_equal(both.first_branch, NSAI_FUSED_WINDOW);
  assert_int_equal(both.end_branch, NSAI_FUSED_SELECTED);
  assert_ptr_equal(both.out[NSAI_FUSED_WINDOW].o.data, m.toy.io.o.data);
  assert_false(both.out[NSAI_FUSED_WINDOW].add_partial);
  m.exec.branches = 1u << NSA_SEL;
  expect_launches(forward(&m), "compress_mean attend_compressed_sm80 select_topn made_up_both");
  assert_int_equal(both.first_branch, NSAI_FUSED_SELECTED);
  assert_int_equal(both.end_branch, NSAI_FUSED_BRANCHES);
  assert_ptr_equal(both.out[NSAI_FUSED_SELECTED].o.data, m.toy.io.o.data);
  assert_false(both.out[NSAI_FUSED_SELECTED].add_partial);
  m.exec.branches = 1u << NSA_WIN | 1u << NSA_SEL;
  expect_launches(forward(&m), "compress_mean attend_compressed_sm80 select_topn made_up_both");
  assert_false(both.out[NSAI_FUSED_WINDOW].add_partial);
  assert_true(both.out[NSAI_FUSED_SELECTED].add_partial);
  m.exec.branches = 1u << NSA_CMP;
  expect_launches(forward(&m), "compress_mean attend_compressed_sm80");
  machine_free(&m);
  fusing_both = false;
}

/* Without a window nothing runs it. */
static void test_no_window(void **state) {
  machine m;
  fusing_topn = false;
  fusing_both = true;
  begin(&m, &(machine_request){ .override = "model.window=0" });
  expect_story(&m, 0, "made_up_both: no\n      it fuses attend_window, which is not run here\n");
  machine_free(&m);
  fusing_both = false;
}

/* ---- when it is not chosen ---- */

static void expect_refusal(const char *override, int32_t selection, const char *reason) {
  machine m;
  char text[256];
  fusing_topn = true;
  begin(&m, &(machine_request){ .override = override, .selection = selection });
  assert_false(nsai_is_fused(&m.plan->choice, NSAI_STAGE_IMPORTANCE));
  assert_false(nsai_is_fused(&m.plan->choice, NSAI_STAGE_SELECT));
  snprintf(text, sizeof text, "    made_up_topn: no\n      %s", reason);
  expect_story(&m, selection, text);
  machine_free(&m);
}

static void test_refusals(void **state) {
  expect_refusal("variants.force.select=select_topn", 0,
                 "it fuses select, for which variants.force asks for select_topn\n");
  expect_refusal("variants.force.attend_compressed=attend_compressed_sm80", 0,
                 "variants.force asks for attend_compressed_sm80\n");
  expect_refusal("variants.disable=[\"*.made_up*\"]", 0, "variants.disable matches it");
  expect_refusal(NULL, NSA_SELECT_BLOCKS,
                 "it fuses importance, which is not run here\n"
                 "      it fuses select, which is not run here\n");
  /* A fused stage cannot be forced to the variant that fuses it. */
  char yaml[1024];
  nsa_ctx *ctx;
  machine_yaml(&(machine_request){ 0 }, yaml, sizeof yaml);
  strcat(yaml, "variants: {force: {select: made_up_topn}}\n");
  nsa_options options = INIT(nsa_options, .yaml_text = yaml);
  machine_expect("force", nsa_create(NULL, &options, &ctx), NSA_E_CONFIG,
                 "no variant 'made_up_topn'; stage select has select_topn");
}

/* ---- decisions ---- */

static nsai_candidate candidate(const char *text, nsai_stage stage) {
  nsai_candidate c;
  if (!nsai_candidate_parse(text, stage, &c)) fail_msg("no candidate: %s", text);
  return c;
}

static void choose(const machine *m, const nsai_decisions *decisions, nsai_choice *out) {
  machine_expect("choose",
                 nsai_choose(m->ctx->config, &m->plan->problem, &m->ctx->target, decisions, NULL,
                             out),
                 NSA_OK, NULL);
}

/* A decision for the fusing variant takes its stages, whatever was decided for them; one for a
 * separate variant leaves them to what was decided. */
static void test_decisions(void **state) {
  machine m;
  nsai_choice c;
  nsai_decisions d = { .why = "a test" };
  fusing_topn = true;
  begin(&m, &(machine_request){ 0 });
  d.stage[NSAI_STAGE_SELECT] = candidate("select_topn warps=2 ctas=1", NSAI_STAGE_SELECT);
  d.stage[NSAI_STAGE_ATTEND_COMPRESSED] =
      candidate("made_up_topn warps=2", NSAI_STAGE_ATTEND_COMPRESSED);
  choose(&m, &d, &c);
  for (int s = NSAI_STAGE_ATTEND_COMPRESSED; s <= NSAI_STAGE_SELECT; s++) {
    assert_string_equal(c.variant[s]->name, "made_up_topn");
    assert_int_equal(c.tiles[s].of[NSAI_TILE_WARPS], 2);
    assert_int_equal(c.decider[s], NSAI_BY_RECORD);
  }
  d.stage[NSAI_STAGE_ATTEND_COMPRESSED] =
      candidate("attend_compressed_sm80 rows=64 keys=64 warps=2 ctas=1",
                NSAI_STAGE_ATTEND_COMPRESSED);
  choose(&m, &d, &c);
  assert_string_equal(c.variant[NSAI_STAGE_ATTEND_COMPRESSED]->name, "attend_compressed_sm80");
  assert_string_equal(c.variant[NSAI_STAGE_IMPORTANCE]->name, "importance_sm80");
  assert_int_not_equal(c.decider[NSAI_STAGE_IMPORTANCE], NSAI_BY_RECORD);
  assert_string_equal(c.variant[NSAI_STAGE_SELECT]->name, "select_topn");
  assert_int_equal(c.tiles[NSAI_STAGE_SELECT].of[NSAI_TILE_WARPS], 2);
  /* The heuristic's choice apart from it. */
  nsai_candidate apart = nsai_choose_unfused(m.ctx->config, &m.plan->problem, &m.ctx->target,
                                             NSAI_STAGE_ATTEND_COMPRESSED);
  assert_string_equal(apart.variant->name, "attend_compressed_sm80");
  machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_topn),         cmocka_unit_test(test_persistent),
    cmocka_unit_test(test_topn_in_part), cmocka_unit_test(test_both),
    cmocka_unit_test(test_both_in_part), cmocka_unit_test(test_no_window),
    cmocka_unit_test(test_refusals),     cmocka_unit_test(test_decisions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
