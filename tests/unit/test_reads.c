/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The counters of a decode step: what the CPU device counts, that it is added, what is refused, and
 * which kernels of a GPU count.
 */
#include "support/cmocka_all.h"

#include "base/math.h"
#include "kv_fixture.h"
#include "plan/context.h"
#include "plan/plan.h"

#define COUNTS "runtime.count_reads=true"
#define SEQS 3

/* Of each sequence, KV head and branch: tokens and bytes; with gaps between the heads, which
 * stay. */
typedef struct counters {
  int64_t at[SEQS][2][4][2];
} counters;

static nsa_tensor reads_of(counters *c) {
  return (nsa_tensor){ .data = c,
                       .shape = { SEQS, 2, NSA_BRANCHES, 2 },
                       .stride = { 16, 8, 2, 1 },
                       .ndim = 4,
                       .dtype = NSA_I64 };
}

/* Tokens of the chosen blocks of row `row`, KV head `head`, up to position t. */
static int64_t chosen_tokens(const kv_call *c, int64_t row, int64_t head, int64_t t) {
  const nsai_model *g = &c->fixture->model;
  const nsa_tensor *idx = &c->io.block_idx;
  const int32_t *list = toy_ints(idx) + row * idx->stride[0] + head * idx->stride[1];
  int64_t sum = 0;
  for (int32_t i = 0; i < g->select_count; i++)
    if (list[i] >= 0)
      sum += nsai_smaller(g->select_block, t + 1 - (int64_t)list[i] * g->select_block);
  return sum;
}

/* What a call must have added, `times` over; where the compressed branch does not run, no V of
 * it. Coarse keys have no V. */
static void expect_counts(const kv_call *c, const counters *got, uint32_t branches, int64_t times) {
  const nsai_model *g = &c->fixture->model;
  const int64_t size = g->dtype == NSA_F32 ? 4 : 2, k = g->head_dim_qk * size,
                v = g->head_dim_v * size;
  int64_t row = 0;
  for (int s = 0; s < SEQS; row += c->q_len[s++])
    for (int head = 0; head < 2; head++) {
      int64_t len = c->at[s] < 0 ? 0 : c->at[s] + c->q_len[s], sel = 0, win = 0, coarse = 0;
      if (g->norm_block && len >= g->norm_block)
        coarse = (len - g->norm_block) / g->norm_stride + 1;
      for (int64_t i = 0; i < c->q_len[s] && len; i++) {
        sel += chosen_tokens(c, row + i, head, len - c->q_len[s] + i);
        win += nsai_smaller(g->window, len - c->q_len[s] + i + 1);
      }
      /* Every head ranks by the same index keys. */
      const int64_t index = g->by == NSAI_BY_INDEX && !head ? len : 0;
      const int64_t want[4][2] = {
        { nsai_block_count(g, len) + coarse + index,
          nsai_block_count(g, len) * (k + (branches >> NSA_CMP & 1 ? v : 0)) + coarse * k +
              index * g->index_dim * size },
        { branches >> NSA_SEL & 1 ? sel : 0, branches >> NSA_SEL & 1 ? sel * (k + v) : 0 },
        { branches >> NSA_WIN & 1 ? win : 0, branches >> NSA_WIN & 1 ? win * (k + v) : 0 },
        { 0, 0 }
      };
      for (int b = 0; b < 4; b++)
        for (int i = 0; i < 2; i++) assert_int_equal(got->at[s][head][b][i], times * want[b][i]);
    }
}

static const int32_t lengths[SEQS] = { 144, 70, 30 };
static const int32_t none[SEQS] = { 0, 0, 0 };

static const machine_request compressed = { 0 }, normalized = { .normalized = true };
static const machine_request indexed = { .phi = NSAI_PHI_NONE,
                                         .pool = NSAI_POOL_MAX,
                                         .indexed = true };

static void begin_with(kv_fixture *w, kv_call *c, const machine_request *request,
                       const kv_options *options, const int32_t *q_len, const int32_t *at) {
  machine_request model = *request;
  model.per_branch = options->ring;
  kv_init(w, &model, options, SEQS, lengths);
  const int32_t most = options->ring ? KV_CHUNK : KV_MAX_LEN;
  for (bool any = true; any;) {
    int32_t step[SEQS];
    any = false;
    for (int s = 0; s < SEQS; s++) {
      int32_t rest = (at[s] < 0 ? 0 : at[s]) - w->len[s];
      step[s] = rest < most ? rest : most;
      any = any || rest > 0;
    }
    kv_call_init(c, w, step, w->len);
    if (any) kv_append(c);
    kv_call_free(c);
    for (int s = 0; s < SEQS; s++) w->len[s] += step[s];
  }
  kv_call_init(c, w, q_len, at);
  kv_append(c);
}

static void begin(kv_fixture *w, kv_call *c, const kv_options *options, const int32_t *q_len,
                  const int32_t *at) {
  begin_with(w, c, &compressed, options, q_len, at);
}

static void end(kv_fixture *w, kv_call *c) {
  kv_call_free(c);
  kv_free(w);
}

static void run(kv_call *c, uint32_t branches) {
  nsa_exec *exec = &c->fixture->exec;
  nsa_io io = c->io;
  exec->branches = branches;
  for (int b = 0; b < NSA_BRANCHES; b++)
    if (!(branches >> b & 1)) io.o_branch[b] = io.lse[b] = (nsa_tensor){ 0 };
  machine_expect("decode", nsa_decode(c->fixture->decode, exec, &c->batch, &io), NSA_OK, NULL);
}

static void test_counts(void **state) {
  static const kv_options cases[] = {
    { .page_size = 16, .model = { COUNTS } },
    { .page_size = 64, .hnd = true, .ring = true, .model = { COUNTS } },
    { .page_size = NSA_NONE, .slots = true, .model = { COUNTS } }
  };
  static const int32_t one[SEQS] = { 1, 1, 1 }, drafts[SEQS] = { 5, 1, 4 };
  static const int32_t places[][SEQS] = { { 138, 66, 0 }, { 139, 69, -1 }, { 100, 3, 26 } };
  static const machine_request *const models[] = { &compressed, &normalized, &indexed };
  for (size_t i = 0; i < sizeof cases / sizeof *cases * 18; i++) {
    kv_fixture w;
    kv_call c;
    counters got = { 0 };
    begin_with(&w, &c, models[i / 6 % 3], &cases[i / 18], i % 2 ? drafts : one, places[i / 2 % 3]);
    c.io.kv_reads = reads_of(&got);
    const uint32_t all = nsai_branches(&w.model);
    run(&c, all);
    expect_counts(&c, &got, all, 1);
    run(&c, all);
    expect_counts(&c, &got, all, 2);
    got = (counters){ 0 };
    run(&c, 1u << NSA_SEL | 1u << NSA_WIN);
    expect_counts(&c, &got, 1u << NSA_SEL | 1u << NSA_WIN, 1);
    c.io.kv_reads = (nsa_tensor){ 0 };
    run(&c, all); /* counts for nobody */
    expect_counts(&c, &got, 1u << NSA_SEL | 1u << NSA_WIN, 1);
    end(&w, &c);
  }
}

static void refuse(kv_call *c, const char *text) {
  c->fixture->exec.branches = 0;
  machine_expect(text, nsa_decode(c->fixture->decode, &c->fixture->exec, &c->batch, &c->io),
                 NSA_E_ARG, text);
}

static void test_refusals(void **state) {
  static const kv_options counting = { .page_size = 16, .model = { COUNTS } },
                          plain = { .page_size = 16 };
  static const int32_t one[SEQS] = { 1, 1, 1 };
  counters got = { 0 };
  kv_fixture w;
  kv_call c;
  begin(&w, &c, &counting, one, none);
  const nsa_tensor good = c.io.kv_reads = reads_of(&got);
  c.io.kv_reads.shape[0]--;
  refuse(&c, "io.kv_reads has shape[0] = 2, expected [3, 2, 3, 2]");
  c.io.kv_reads = good;
  c.io.kv_reads.shape[2]++;
  refuse(&c, "io.kv_reads has shape[2]");
  c.io.kv_reads = good;
  c.io.kv_reads.ndim = 3;
  refuse(&c, "io.kv_reads has 3 dimensions");
  c.io.kv_reads = good;
  c.io.kv_reads.dtype = NSA_I32;
  refuse(&c, "io.kv_reads has dtype i32, expected i64");
  c.io.kv_reads = good;
  c.io.kv_reads.stride[3] = 2;
  refuse(&c, "io.kv_reads has stride[3]");
  c.io.kv_reads = good;
  machine_expect("prefill", nsa_prefill(w.prefill, &w.exec, &c.batch, &c.io), NSA_E_ARG,
                 "io.kv_reads is given, but NSA_OP_PREFILL counts nothing");
  end(&w, &c);
  begin(&w, &c, &plain, one, none);
  c.io.kv_reads = good;
  refuse(&c, "io.kv_reads is given, but the plan does not count: set runtime.count_reads");
  end(&w, &c);
  machine m;
  machine_init(&m, &(machine_request){ .override = COUNTS });
  m.toy.io.kv_reads = good;
  machine_expect("forward", machine_forward(&m), NSA_E_ARG,
                 "io.kv_reads is given, but NSA_OP_FORWARD counts nothing");
  machine_free(&m);
  for (size_t i = 0; i < sizeof got / sizeof got.at[0][0][0][0]; i++)
    assert_int_equal((&got.at[0][0][0][0])[i], 0);
}

/* kCountReads of a kernel, or -1. */
static int64_t counts_of(const nsa_plan *plan, const char *entry) {
  const nsai_kernel_spec *spec = nsai_choice_kernel(&plan->choice, entry);
  for (int i = 0; i < spec->constant_count; i++)
    if (!strcmp(spec->constants[i].name, "kCountReads")) return spec->constants[i].value;
  return -1;
}

static void test_kernels(void **state) {
  for (int counts = 0; counts < 2; counts++) {
    machine m;
    machine_init(&m, &(machine_request){
                         .gpu = true,
                         .override = counts ? COUNTS : "variants.force.decode=decode_split_kv" });
    nsa_problem p =
        INIT(nsa_problem, .op = NSA_OP_DECODE, .max_kv_len = 64, .max_seqs = SEQS, .page_size = 16);
    nsa_plan *plan = machine_plan(m.ctx, &p);
    assert_int_equal(counts_of(plan, "decode_split_kv_compressed"), counts);
    assert_int_equal(counts_of(plan, "decode_split_kv_attend"), counts);
    assert_int_equal(counts_of(plan, "decode_split_kv_combine"), -1);
    nsa_plan_destroy(plan);
    machine_free(&m);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_counts),
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_kernels),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
