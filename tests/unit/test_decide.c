/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * From records to plans, on the fake GPU: which record decides, what wins over it, what nsa_explain
 * says of it, and the public functions that carry records from process to process.
 *
 *   test_decide DIR YAML    imports standard input into the folder DIR; prints the digest
 */
#include "support/cmocka_all.h"

#include "machine.h"
#include "plan/digest.h"
#include "plan/plan.h"
#include "records/decide.h"
#include "tune/tune.h"

#include <nsa/tune.h>

#include <sys/wait.h>
#include <unistd.h>

#include "decide_fixture.h"

/* ---- which record ---- */

static void test_lengths(void **state) {
  tuning *w = *state;
  expect_window(w, 1000, LOW, "");
  save_window(w, 1000, LOW, WINDOW(32, 32));
  save_window(w, 4000, LOW, WINDOW(64, 64));
  save_window(w, 100000, LOW, WINDOW(64, 128));
  for (int i = 0; i < 2; i++) {
    expect_window(w, 1000, LOW, WINDOW(32, 32));
    expect_window(w, 4000, LOW, WINDOW(64, 64));
    expect_window(w, 65, LOW, WINDOW(32, 32)); /* shorter than all, longer than all */
    expect_window(w, 2000000, LOW, WINDOW(64, 128));
    expect_window(w, 1990, LOW, WINDOW(32, 32)); /* by ratio, not by difference */
    expect_window(w, 2010, LOW, WINDOW(64, 64));
    expect_window(w, 19900, LOW, WINDOW(64, 64));
    expect_window(w, 20100, LOW, WINDOW(64, 128));
    enter(w, NULL); /* another process: from the folder */
  }
  nsa_problem p = machine_problem(NSA_OP_FORWARD, 1990, LOW);
  expect_story(w, &p, "record of 1000 tokens, level quick, 2026-11-20T10:00:00Z");
  expect_story(w, &p,
               WINDOW(32, 32) ": chosen (record of 1000 tokens, level quick, "
                              "2026-11-20T10:00:00Z): ");
  /* Stages that the record does not know follow the rules. */
  expect_story(w, &p, ": chosen (first legal in the table; tiles by the general rule): one warp");
  p.selection = NSA_SELECT_BLOCKS; /* a problem of its own */
  expect_story(w, &p, "no record of this device and problem: nsa_tune makes one");
  assert_int_equal(w->warnings, 0);
}

static void test_overlaps(void **state) {
  tuning *w = *state;
  save_window(w, 1000, LOW, WINDOW(32, 32));
  expect_window(w, 1000, HIGH, WINDOW(32, 32));
  nsa_problem p = machine_problem(NSA_OP_FORWARD, 1000, HIGH);
  expect_story(w, &p, "record of 1000 tokens with the other overlap, level quick");
  save_window(w, 50000, HIGH, WINDOW(64, 64)); /* far away, but of the overlap */
  expect_window(w, 1000, HIGH, WINDOW(64, 64));
  expect_window(w, 1000, LOW, WINDOW(32, 32));
  expect_window(w, 1000, 0, WINDOW(32, 32)); /* is low */
}

/* ---- records of other numbers of heads ---- */

/* A record whose key has `to` where the problem's has `from`. */
static void save_changed(const tuning *w, const char *from, const char *to, int64_t tokens,
                         int32_t overlap, const char *candidate) {
  char key[384];
  nsai_record *r = new_record(w, NSA_OP_FORWARD, tokens, overlap);
  const char *at = strstr(r->problem, from);
  assert_non_null(at);
  snprintf(key, sizeof key, "%.*s%s%s", (int)(at - r->problem), r->problem, to, at + strlen(from));
  memcpy(r->problem, key, sizeof key);
  win(r, "attend_window", candidate);
  save(w, r);
}

#define SAVE_HEADS(heads, tokens, overlap, candidate)                                              \
  save_changed(w, ":h6/2:", ":" heads ":", tokens, overlap, candidate)

static void expect_decider(const tuning *w, int32_t overlap, nsai_decider expected) {
  nsa_problem p = machine_problem(NSA_OP_FORWARD, 1000, overlap);
  nsa_plan *plan = machine_plan(w->ctx, &p);
  assert_int_equal(plan->choice.decider[NSAI_STAGE_ATTEND_WINDOW], expected);
  nsa_plan_destroy(plan);
}

/* The problem has G 3. Its own records go first; then overlap, group and length count. */
static void test_other_heads(void **state) {
  tuning *w = *state;
  nsai_problem resolved;
  nsa_problem p = machine_problem(NSA_OP_FORWARD, 1000, LOW);
  SAVE_HEADS("h40/1", 1000, LOW, WINDOW(64, 128));
  expect_window(w, 1000, LOW, WINDOW(64, 128));
  expect_decider(w, LOW, NSAI_BY_OTHER_RECORD);
  expect_story(w, &p, "\n  record of G 40, 1000 tokens, level quick, 2026-11-20T10:00:00Z\n");
  expect_story(w, &p, WINDOW(64, 128) ": chosen (record of G 40, 1000 tokens, level quick, ");
  SAVE_HEADS("h12/2", 64000, LOW, WINDOW(32, 32)); /* G 6 is nearer, whatever the length */
  expect_window(w, 1000, LOW, WINDOW(32, 32));
  SAVE_HEADS("h6/6", 1000, LOW, WINDOW(64, 64)); /* G 1 is as 9: by ratio */
  expect_window(w, 1000, LOW, WINDOW(32, 32));
  SAVE_HEADS("h12/2", 4000, LOW, WINDOW(64, 32)); /* of G 6, the nearer length */
  expect_window(w, 1000, LOW, WINDOW(64, 32));
  SAVE_HEADS("h24/8", 500000, LOW, WINDOW(64, 64)); /* G 3, with other heads */
  expect_window(w, 1000, LOW, WINDOW(64, 64));
  expect_window(w, 1000, HIGH, WINDOW(64, 64));
  p.overlap = HIGH;
  expect_story(w, &p, "record of G 3, 500000 tokens with the other overlap, level quick");
  SAVE_HEADS("h40/1", 1000, HIGH, WINDOW(64, 128)); /* far away, but of the overlap */
  expect_window(w, 1000, HIGH, WINDOW(64, 128));
  p.overlap = LOW;
  machine_expect("resolve", nsai_problem_resolve(w->ctx->config, &p, &resolved), NSA_OK, NULL);
  assert_false(nsai_tune_is_recorded(w->ctx, &resolved)); /* a first use tunes */
  save_window(w, 2000000, HIGH, WINDOW(32, 64));          /* its own, of the other overlap */
  expect_window(w, 1000, LOW, WINDOW(32, 64));
  expect_decider(w, LOW, NSAI_BY_RECORD);
  expect_story(w, &p, "record of 2000000 tokens with the other overlap, level quick");
  assert_int_equal(w->warnings, 0);
}

/* Whatever else differs makes another problem. */
static void test_other_problems(void **state) {
  static const char *const changes[][2] = {
    { "fwd:", "dense:" },   { ":bf16:", ":fp16:" },      { ":d24/16:", ":d24/24:" },
    { ":l8/4:", ":l8/8:" }, { "s16x4+1+2", "s16x5" },    { ":w20:", ":w32:" },
    { "=mean", "=linear" }, { "=weights:", "=logits:" }, { ":sel=topn:", ":sel=blocks:" },
    { ":len", ":det:len" }, { ":h6/2:", ":h0/0:" },      { ":h6/2:", ":h2/6:" },
    { ":h6/2:", ":h12/:" }, { ":h6/2:", ":x12/2:" },     { ":len", ":len6k" },
  };
  tuning *w = *state;
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
    save_changed(w, changes[i][0], changes[i][1], 1000, LOW, WINDOW(32, 32));
  expect_window(w, 1000, LOW, "");
}

/* Each stage takes the nearest group's choice that is legal here: tiles hold whole tokens. */
static void test_other_heads_legal(void **state) {
  static const char compressed[] = "attend_compressed_sm80 rows=64 keys=32 warps=2 ctas=1";
  tuning *w = *state;
  nsa_problem p = machine_problem(NSA_OP_FORWARD, 1000, LOW);
  strcpy(w->yaml, "nsa: 1\nmodel: {heads: 64, kv_heads: 1, head_dim: 64, window: 64}\n");
  enter(w, NULL);
  save_changed(w, ":h64/1:", ":h32/1:", 1000, LOW, WINDOW(32, 32)); /* a token has 64 rows */
  nsai_record *r = new_record(w, NSA_OP_FORWARD, 1000, LOW);
  memcpy(strstr(r->problem, ":h64/1:"), ":h16/1:", 7);
  win(r, "attend_window", WINDOW(64, 64));
  win(r, "attend_compressed", compressed);
  save(w, r);
  expect_window(w, 1000, LOW, WINDOW(64, 64));
  expect_choice(w, &p, NSAI_STAGE_ATTEND_COMPRESSED, compressed);
  expect_story(w, &p, "record of G 16, 1000 tokens, level quick");
  save_changed(w, ":h64/1:", ":h32/1:", 4000, LOW, WINDOW(64, 128));
  expect_window(w, 1000, LOW, WINDOW(64, 128));
  expect_choice(w, &p, NSAI_STAGE_ATTEND_COMPRESSED, compressed);
  expect_story(w, &p, "record of G 16, 1000; G 32, 4000 tokens, level quick");
}

/* A record of a decode step on one GPU. */
static void save_decode(const tuning *w, const nsa_problem *asked, const nsai_candidate *winner) {
  nsai_problem p;
  char text[128];
  nsai_writer out = nsai_writer_open(text, sizeof text);
  nsai_record *r = new_record(w, NSA_OP_FORWARD, asked->max_kv_len, LOW);
  machine_expect("resolve", nsai_problem_resolve(w->ctx->config, asked, &p), NSA_OK, NULL);
  nsai_writer key = nsai_writer_open(r->problem, sizeof r->problem);
  nsai_tune_key(&p, p.max_kv_len, &key);
  nsai_candidate_print(winner, &out);
  win(r, "decode", text);
  save(w, r);
}

static void expect_decode(const tuning *w, const nsa_problem *problem, const char *variant,
                          bool by_record) {
  nsa_plan *plan = machine_plan(w->ctx, problem);
  assert_string_equal(plan->choice.variant[NSAI_STAGE_DECODE]->name, variant);
  assert_int_equal(plan->choice.decider[NSAI_STAGE_DECODE] == NSAI_BY_RECORD, by_record);
  nsa_plan_destroy(plan);
}

/* Steps over ranks follow the records of one GPU, but for those whose winner is one launch. */
static void test_ranks(void **state) {
  tuning *w = *state;
  const nsa_problem one = INIT(nsa_problem, .op = NSA_OP_DECODE, .max_kv_len = 1000, .max_seqs = 1,
                               .max_q_len = 1, .page_size = 16);
  nsa_problem divided = one;
  nsai_problem p;
  nsai_decider by;
  divided.ranks = 2;
  machine_expect("resolve", nsai_problem_resolve(w->ctx->config, &one, &p), NSA_OK, NULL);
  const nsai_variant *cluster = nsai_variant_find("decode_cluster"),
                     *split = nsai_variant_find("decode_split_kv");
  save_decode(w, &one,
              &(nsai_candidate){ cluster, cluster->space->choose(&p, &w->ctx->target, &by) });
  expect_decode(w, &one, "decode_cluster", true);
  expect_decode(w, &divided, "decode_split_kv", false);
  save_decode(w, &one, &(nsai_candidate){ split, split->space->choose(&p, &w->ctx->target, &by) });
  expect_decode(w, &one, "decode_split_kv", true);
  expect_decode(w, &divided, "decode_split_kv", true);
}

/* Where its kernels cannot be had, it is left without a warning: it was only worth a try. */
static void test_other_heads_unprepared(void **state) {
  tuning *w = *state;
  nsa_problem p = machine_problem(NSA_OP_FORWARD, 1000, LOW);
  machine_expect("prepare", nsa_prepare(w->ctx, &p, 1, NULL, NULL), NSA_OK, NULL);
  SAVE_HEADS("h12/2", 1000, LOW, WINDOW(32, 32));
  enter(w, "runtime.jit=never");
  expect_decider(w, LOW, NSAI_BY_ARCHITECTURE);
  assert_int_equal(w->warnings, 0);
  save_window(w, 1000, LOW, WINDOW(32, 32));
  expect_decider(w, LOW, NSAI_BY_ARCHITECTURE);
  assert_int_equal(w->warnings, 1);
  assert_non_null(strstr(w->warning, "is not followed"));
}

/* Dense attention has one record whatever the overlap, apart from those of forwards. */
static void test_dense(void **state) {
  static const char candidate[] = "dense_sm80 rows=64 keys=32 warps=2 ctas=1";
  tuning *w = *state;
  save_window(w, 1000, LOW, WINDOW(32, 32));
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1000, HIGH);
  expect_choice(w, &p, NSAI_STAGE_DENSE, "");
  nsai_record *r = new_record(w, NSA_OP_DENSE, 1000, LOW);
  win(r, "dense", candidate);
  save(w, r);
  expect_choice(w, &p, NSAI_STAGE_DENSE, candidate);
}

static void test_other_machines(void **state) {
  for (int i = 0; i < 4; i++) {
    tuning w = { 0 };
    nsa_problem p = machine_problem(NSA_OP_FORWARD, 1000, LOW);
    enter(&w, NULL);
    nsai_record *r = new_record(&w, NSA_OP_FORWARD, 1000, LOW);
    win(r, "attend_window", WINDOW(32, 32));
    if (i == 0) strcat(r->device, " NVL");
    if (i == 1) strcpy(r->arch, "sm_90");
    if (i == 2) r->sms--;
    save(&w, r);
    expect_window(&w, 1000, LOW, i < 3 ? "" : WINDOW(32, 32));
    if (i < 3) expect_story(&w, &p, "no record of this device and problem");
    assert_int_equal(w.warnings, 0);
    leave(&w);
  }
}

static void test_other_versions(void **state) {
  for (int i = 0; i < 4; i++) {
    tuning w = { 0 };
    enter(&w, NULL);
    nsai_record *r = new_record(&w, NSA_OP_FORWARD, 1000, LOW);
    win(r, "attend_window", WINDOW(32, 32));
    if (i == 0) strcpy(r->library, "0.0.9");
    if (i == 1) strcpy(r->driver, "12.8");
    if (i == 2) memset(r->templates, '0', strlen(r->templates));
    if (i == 3) strcpy(r->compiler, "another"); /* says nothing until one has been opened */
    save(&w, r);
    for (int k = 0; k < 3; k++) expect_window(&w, 1000 + k, LOW, WINDOW(32, 32));
    assert_int_equal(w.warnings, i < 3);
    if (i == 0) assert_non_null(strstr(w.warning, "with library 0.0.9, driver 13.0, other than"));
    if (i < 3) assert_non_null(strstr(w.warning, "`nsa-autotune tune` measures anew"));
    leave(&w);
  }
}

/* What this library does not know, or what does not fit, decides nothing; the other stages stay. */
static void test_strange_candidates(void **state) {
  static const char *const strange[] = {
    "attend_window_sm90 rows=128 keys=64",               /* unknown */
    "attend_window_sm80 rows=64 keys=64 warps=2",        /* of a library without blocks */
    "dense_sm80 rows=64 keys=32 warps=2 ctas=1",         /* of another stage */
    "attend_window_sm80 rows=32 keys=64 warps=8 ctas=1", /* does not fit */
    "attend_window_sm80 rows=64 keys=48 warps=2 ctas=1", /* none of its values */
    "attend_window_sm80",
  };
  static const char compressed[] = "attend_compressed_sm80 rows=64 keys=32 warps=2 ctas=1";
  for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
    tuning w = { 0 };
    nsa_problem p = machine_problem(NSA_OP_FORWARD, 1000, LOW);
    enter(&w, NULL);
    nsai_record *r = new_record(&w, NSA_OP_FORWARD, 1000, LOW);
    win(r, "attend_window", strange[i]);
    win(r, "attend_compressed", compressed);
    win(r, "no_such_stage", "nothing");
    save(&w, r);
    expect_choice(&w, &p, NSAI_STAGE_ATTEND_WINDOW, "");
    expect_choice(&w, &p, NSAI_STAGE_ATTEND_COMPRESSED, compressed);
    leave(&w);
  }
}

/* ---- what a record has not timed ---- */

#define COMPRESSED "attend_compressed_sm90 rows=128 keys=64 stages=2"
#define SELECT "select_topn warps=2 ctas=1"

/* A variant that is not sensible at the record's length is chosen all the same at its own; what it
 * fuses is its business, and stays decided where it is not chosen. */
static void test_untimed_length(void **state) {
  static const char onepass[] = "attend_compressed_topn_sm90";
  tuning *w = *state;
  strcpy(w->yaml, "nsa: 1\nmodel: {heads: 32, kv_heads: 2, head_dim: 128, select: {count: 8}}\n");
  nsa_problem near = machine_problem(NSA_OP_FORWARD, 1024, LOW);
  nsa_problem far = machine_problem(NSA_OP_FORWARD, 65536, LOW);
  enter(w, NULL);
  nsai_record *r = new_record(w, NSA_OP_FORWARD, 1024, LOW);
  add(r, "attend_compressed", COMPRESSED, true);
  add(r, "select", SELECT, true);
  save(w, r);
  expect_choice(w, &near, NSAI_STAGE_ATTEND_COMPRESSED, COMPRESSED);
  expect_choice(w, &near, NSAI_STAGE_SELECT, SELECT);
  for (int s = NSAI_STAGE_ATTEND_COMPRESSED; s <= NSAI_STAGE_SELECT; s++)
    expect_choice(w, &far, (nsai_stage)s, "");
  expect_story(w, &far, "attend_compressed_topn_sm90: chosen (first legal in the table)");
  enter(w, "variants.disable=[\"*.attend_compressed_topn*\"]");
  expect_choice(w, &far, NSAI_STAGE_ATTEND_COMPRESSED, COMPRESSED);
  expect_choice(w, &far, NSAI_STAGE_SELECT, SELECT);
  enter(w, NULL);
  /* A record that has timed it decides, although it is farther away. */
  r = new_record(w, NSA_OP_FORWARD, 2000000, LOW);
  add(r, "attend_compressed", COMPRESSED, true);
  add(r, "attend_compressed", onepass, false);
  save(w, r);
  expect_choice(w, &far, NSAI_STAGE_ATTEND_COMPRESSED, COMPRESSED);
  expect_choice(w, &far, NSAI_STAGE_SELECT, SELECT);
}

/* So it is with one that is not sensible for the record's group. */
static void test_untimed_group(void **state) {
  static const char queries[] = "attend_selected_sm80 keys=32 warps=4 stages=2 ctas=1";
  tuning *w = *state;
  strcpy(w->yaml, "nsa: 1\nmodel: {heads: 64, kv_heads: 16, head_dim: 128}\n");
  nsa_problem p = machine_problem(NSA_OP_FORWARD, 65536, LOW);
  enter(w, NULL);
  for (int i = 0; i < 3; i++) {
    nsai_record *r = new_record(w, NSA_OP_FORWARD, 65536, LOW);
    memcpy(strstr(r->problem, ":h64/16:"), ":h64/04:", 8);
    add(r, "attend_selected", queries, true);
    add(r, "select", SELECT, true);
    nsai_timing t = { .state = i == 1 ? NSAI_TIMING_OK : NSAI_TIMING_REFUSED };
    strcpy(t.stage, "attend_selected");
    strcpy(t.candidate, "attend_selected_kv_stationary_sm90 rows=256 warps=4 ctas=1");
    /* Not there, there without a round, refused. */
    if (i) machine_expect("add", nsai_record_add(r, &t), NSA_OK, NULL);
    save(w, r);
    expect_choice(w, &p, NSAI_STAGE_ATTEND_SELECTED, i == 2 ? queries : "");
    if (i < 2)
      expect_story(w, &p,
                   "attend_selected_kv_stationary_sm90 rows=2048 warps=8 ctas=2: chosen (first");
  }
}

/* ---- what wins over a record ---- */

static void test_configuration_wins(void **state) {
  tuning *w = *state;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1000, LOW);
  nsai_record *r = new_record(w, NSA_OP_DENSE, 1000, LOW);
  win(r, "dense", "dense_gemm"); /* no heuristic chooses it */
  save(w, r);
  expect_choice(w, &p, NSAI_STAGE_DENSE, "dense_gemm");
  expect_story(w, &p, "dense_sm80: possible, not chosen (slower by the record)");
  enter(w, "variants.force.dense=dense_sm80");
  expect_choice(w, &p, NSAI_STAGE_DENSE, "");
  expect_story(w, &p, ": chosen (variants.force; tiles by the general rule)");
  enter(w, "variants.disable=[dense.dense_g*]");
  expect_choice(w, &p, NSAI_STAGE_DENSE, "");
  expect_story(w, &p, ": chosen (first legal in the table; tiles by the rule of the architecture)");
  enter(w, "tuning.records=false");
  expect_choice(w, &p, NSAI_STAGE_DENSE, "");
  expect_story(w, &p, "tuning.records is false: no record is asked");
  enter(w, "variants.force.dense=dense_gemm");
  expect_story(w, &p, "dense_gemm: chosen (record of 1000 tokens");
  p.max_seqs = 2; /* the record's choice is illegal here */
  enter(w, NULL);
  expect_choice(w, &p, NSAI_STAGE_DENSE, "");
}

/* A record that chose the forced variant goes on to say with which tiles. */
static void test_force_keeps_tiles(void **state) {
  tuning *w = *state;
  enter(w, "variants.force.attend_window=attend_window_sm80");
  save_window(w, 1000, LOW, WINDOW(32, 32));
  expect_window(w, 1000, LOW, WINDOW(32, 32));
}

static void test_rules(void **state) {
  tuning *w = *state;
  strcpy(w->yaml, "nsa: 1\nmodel: {heads: 4, kv_heads: 2, head_dim: 128, select: {count: 40}}\n");
  nsa_problem p = machine_problem(NSA_OP_FORWARD, 100000, LOW);
  enter(w, NULL);
  expect_story(w, &p, "on sm_90a, Fake H200\n  no record of this device and problem");
  expect_story(w, &p,
               "attend_window_sm90 rows=192 keys=80 stages=2: chosen (first legal in the "
               "table; tiles by the rule of the architecture)");
  expect_story(w, &p,
               "select_topn warps=8 ctas=4: chosen (first legal in the table; tiles by "
               "the general rule)");
}

/* ---- between processes ---- */

static void digest_of(const tuning *w, uint8_t out[16]) {
  machine_expect("digest", nsa_records_digest(w->ctx, out), NSA_OK, NULL);
}

/* An export, the caller's to free. */
static char *export(const tuning *w) {
  size_t size = nsa_records_export(w->ctx, NULL, 0);
  char *text = malloc(size + 1), small[8];
  assert_non_null(text);
  assert_true(size > sizeof small);
  assert_int_equal(nsa_records_export(w->ctx, text, size + 1), size);
  assert_int_equal(strlen(text), size);
  assert_int_equal(nsa_records_export(w->ctx, small, sizeof small), size); /* cut, and ended */
  assert_int_equal(strlen(small), sizeof small - 1);
  assert_memory_equal(small, text, sizeof small - 1);
  return text;
}

static void test_digest(void **state) {
  tuning a = { 0 }, b = { 0 };
  uint8_t empty[16], one[16], other[16];
  enter(&a, NULL);
  enter(&b, NULL);
  digest_of(&a, empty);
  digest_of(&b, other);
  assert_memory_equal(empty, other, 16);
  save_window(&a, 1000, LOW, WINDOW(32, 32));
  digest_of(&a, one);
  assert_memory_not_equal(one, empty, 16);
  nsai_record *r = new_record(&b, NSA_OP_FORWARD, 1000, LOW);
  win(r, "attend_window", WINDOW(32, 32)); /* the same choice, measured at another time */
  strcpy(r->date, "2027-01-01T00:00:00Z");
  strcpy(r->level, "exhaustive");
  r->timings[0].ms = 2;
  save(&b, r);
  digest_of(&b, other);
  assert_memory_equal(one, other, 16);
  save_window(&b, 1000, LOW, WINDOW(64, 64));
  digest_of(&b, other);
  assert_memory_not_equal(one, other, 16);
  save_window(&a, 1000, LOW, WINDOW(64, 64)); /* alike again */
  digest_of(&a, one);
  assert_memory_equal(one, other, 16);
  leave(&a);
  leave(&b);
}

/* The first field in which two plans differ as nsa_comm_agree compares them; NULL: none. */
static const char *find_difference(const tuning *a, const tuning *b) {
  nsai_agree_field of_a[NSAI_PLAN_FIELDS], of_b[NSAI_PLAN_FIELDS];
  const char *name = NULL;
  nsa_problem p = machine_problem(NSA_OP_FORWARD, 1000, LOW);
  nsa_plan *x = machine_plan(a->ctx, &p), *y = machine_plan(b->ctx, &p);
  nsai_digest_plan_fields(x, of_a);
  nsai_digest_plan_fields(y, of_b);
  for (int i = 0; i < NSAI_PLAN_FIELDS && !name; i++)
    if (memcmp(of_a[i].digest, of_b[i].digest, NSAI_DIGEST_BYTES)) name = of_a[i].name;
  assert_true(!name == !memcmp(x->digest, y->digest, NSAI_DIGEST_BYTES));
  nsa_plan_destroy(x);
  nsa_plan_destroy(y);
  return name;
}

/* Ranks compare what records lead to. Records that no plan of theirs follows may differ, though their
 * digests do. */
static void test_agreement(void **state) {
  tuning a = { 0 }, b = { 0 };
  uint8_t one[16], other[16];
  enter(&a, NULL);
  enter(&b, NULL);
  assert_null(find_difference(&a, &b));
  save_window(&a, 1000, LOW, WINDOW(32, 32));
  save_window(&b, 1000, LOW, WINDOW(64, 64));
  assert_string_equal(find_difference(&a, &b), "attend_window");
  save_window(&b, 1000, LOW, WINDOW(32, 32));
  assert_null(find_difference(&a, &b));
  save_window(&b, 500000, LOW, WINDOW(64, 64));
  assert_null(find_difference(&a, &b));
  digest_of(&a, one);
  digest_of(&b, other);
  assert_memory_not_equal(one, other, 16);
  leave(&a);
  leave(&b);
}

/* Another context's records are seen after a reload, by plans made then. */
static void test_reload(void **state) {
  tuning a = { 0 }, b = { 0 };
  uint8_t before[16], after[16];
  enter(&a, NULL);
  snprintf(b.dir, sizeof b.dir, "%s", a.dir);
  enter(&b, NULL);
  expect_window(&b, 1000, LOW, "");
  digest_of(&b, before);
  save_window(&a, 1000, LOW, WINDOW(32, 32));
  expect_window(&b, 1000, LOW, "");
  digest_of(&b, after);
  assert_memory_equal(before, after, 16);
  machine_expect("reload", nsa_records_reload(b.ctx), NSA_OK, NULL);
  expect_window(&b, 1000, LOW, WINDOW(32, 32));
  digest_of(&b, after);
  assert_memory_not_equal(before, after, 16);
  nsa_destroy(b.ctx);
  leave(&a);
}

static void test_import(void **state) {
  tuning a = { 0 }, b = { 0 };
  uint8_t one[16], other[16];
  enter(&a, NULL);
  enter(&b, NULL);
  save_window(&a, 1000, LOW, WINDOW(32, 32));
  save_window(&a, 4000, HIGH, WINDOW(64, 64));
  digest_of(&a, one);
  char *text = export(&a);
  size_t size = strlen(text);
  machine_expect("import", nsa_records_import(b.ctx, text, 0), NSA_OK, NULL);
  expect_window(&b, 1000, LOW, WINDOW(32, 32)); /* without a reload */
  digest_of(&b, other);
  assert_memory_equal(one, other, 16);
  machine_expect("again", nsa_records_import(b.ctx, text, size), NSA_OK, NULL);
  digest_of(&b, other);
  assert_memory_equal(one, other, 16);
  char *back = export(&b);
  assert_string_equal(text, back);
  free(back);
  leave(&b);
  enter(&b, NULL);
  digest_of(&b, one); /* of nothing */
  for (size_t keep_bytes = 0; keep_bytes < size; keep_bytes += 1 + size / 40) {
    char *cut = strndup(text, keep_bytes);
    if (keep_bytes) /* size 0 means up to the NUL */
      machine_expect("cut", nsa_records_import(b.ctx, cut, keep_bytes), NSA_E_CACHE, NULL);
    machine_expect("cut", nsa_records_import(b.ctx, cut, 0), NSA_E_CACHE, NULL);
    free(cut);
  }
  char *keys = strstr(text, "keys=64");
  assert_non_null(keys);
  keys[5] = '3';
  machine_expect("changed", nsa_records_import(b.ctx, text, 0), NSA_E_CACHE, "checksum");
  machine_expect("junk", nsa_records_import(b.ctx, "nonsense", 0), NSA_E_CACHE, NULL);
  machine_expect("a model", nsa_records_import(b.ctx, b.yaml, 0), NSA_E_CACHE, NULL);
  digest_of(&b, other); /* all or nothing */
  assert_memory_equal(one, other, 16);
  free(text);
  leave(&a);
  leave(&b);
}

static void test_arguments(void **state) {
  tuning w = { 0 };
  uint8_t digest[16];
  static const uint8_t zero[16];
  char text[64] = "x";
  enter(&w, NULL);
  machine_expect("ctx", nsa_records_import(NULL, "", 0), NSA_E_ARG, NULL);
  machine_expect("ctx", nsa_records_reload(NULL), NSA_E_ARG, NULL);
  machine_expect("ctx", nsa_records_digest(NULL, digest), NSA_E_ARG, NULL);
  machine_expect("ctx", nsa_tune(NULL, NULL, 0, NULL), NSA_E_ARG, NULL);
  assert_int_equal(nsa_records_export(NULL, text, sizeof text), 0);
  assert_string_equal(text, "");
  assert_int_equal(nsa_records_export(NULL, NULL, 0), 0);
  machine_expect("text", nsa_records_import(w.ctx, NULL, 0), NSA_E_ARG, "text is NULL");
  machine_expect("out", nsa_records_digest(w.ctx, NULL), NSA_E_ARG, "out is NULL");
  leave(&w);

  nsa_ctx *cpu = NULL;
  machine_yaml(&(machine_request){ 0 }, w.yaml, sizeof w.yaml);
  nsa_options options = INIT(nsa_options, .yaml_text = w.yaml);
  machine_expect("cpu", nsa_create(NULL, &options, &cpu), NSA_OK, NULL);
  assert_int_equal(nsa_records_export(cpu, text, sizeof text), 0);
  assert_string_equal(text, "");
  assert_non_null(strstr(nsa_last_error(), "runtime.device is cpu"));
  machine_expect("import", nsa_records_import(cpu, "", 0), NSA_E_NO_DEVICE,
                 "runtime.device is cpu");
  machine_expect("reload", nsa_records_reload(cpu), NSA_OK, NULL);
  machine_expect("digest", nsa_records_digest(cpu, digest), NSA_OK, NULL);
  assert_memory_equal(digest, zero, 16);
  nsa_destroy(cpu);
}

/* The child's side of test_processes. */
static int import_standard_input(const char *dir, const char *yaml) {
  static char text[1 << 20];
  uint8_t digest[16];
  tuning w = { 0 };
  snprintf(w.dir, sizeof w.dir, "%s", dir);
  snprintf(w.yaml, sizeof w.yaml, "%s", yaml);
  enter(&w, NULL);
  size_t size = fread(text, 1, sizeof text - 1, stdin);
  if (nsa_records_import(w.ctx, text, size) || nsa_records_digest(w.ctx, digest)) return 1;
  for (int i = 0; i < 16; i++) printf("%02x", digest[i]);
  nsa_destroy(w.ctx);
  return 0;
}

/* One exports, another imports into an empty folder of its own: their digests agree. */
static void test_processes(void **state) {
  tuning *w = *state;
  uint8_t digest[16];
  char expected[33], got[64] = "", dir[] = "/tmp/nsa-test-decide-XXXXXX";
  int to[2], from[2], status = 0;
  save_window(w, 1000, LOW, WINDOW(32, 32));
  save_window(w, 4000, HIGH, WINDOW(64, 64));
  char *text = export(w);
  digest_of(w, digest);
  for (int i = 0; i < 16; i++) snprintf(expected + 2 * i, 3, "%02x", digest[i]);
  assert_non_null(mkdtemp(dir));
  assert_int_equal(pipe(to) | pipe(from), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    dup2(to[0], 0);
    dup2(from[1], 1);
    close(to[0]), close(to[1]), close(from[0]), close(from[1]);
    execl("/proc/self/exe", "test_decide", dir, w->yaml, (char *)NULL);
    _exit(127);
  }
  close(to[0]), close(from[1]);
  assert_int_equal(write(to[1], text, strlen(text)), strlen(text));
  close(to[1]);
  ssize_t length = read(from[0], got, sizeof got - 1);
  close(from[0]);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_true(length > 0);
  assert_string_equal(got, expected);
  free(text);
  machine_remove(dir);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
    DECIDE_TEST(test_lengths),
    DECIDE_TEST(test_overlaps),
    DECIDE_TEST(test_other_heads),
    DECIDE_TEST(test_other_problems),
    DECIDE_TEST(test_other_heads_legal),
    DECIDE_TEST(test_ranks),
    DECIDE_TEST(test_other_heads_unprepared),
    DECIDE_TEST(test_dense),
    cmocka_unit_test(test_other_machines),
    cmocka_unit_test(test_other_versions),
    cmocka_unit_test(test_strange_candidates),
    DECIDE_TEST(test_untimed_length),
    DECIDE_TEST(test_untimed_group),
    DECIDE_TEST(test_configuration_wins),
    DECIDE_TEST(test_force_keeps_tiles),
    DECIDE_TEST(test_rules),
    cmocka_unit_test(test_digest),
    cmocka_unit_test(test_agreement),
    cmocka_unit_test(test_reload),
    cmocka_unit_test(test_import),
    cmocka_unit_test(test_arguments),
    DECIDE_TEST(test_processes),
  };
  if (argc == 3) return import_standard_input(argv[1], argv[2]);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
