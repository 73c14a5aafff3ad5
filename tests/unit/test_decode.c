/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Append, decode and prefill on the fake GPU: what is launched for which sizes, that it fits the
 * workspace, and that nothing waits. By which rules: test_decode_rules.c.
 */
#include "support/cmocka_all.h"

#include "machine.h"
#include "params/kv_cache.h"
#include "plan/context.h"
#include "plan/plan.h"
#include "plan/spec.h"

#include <nsa/kv_cache.h>
#include <sys/mman.h>

#define PAGES 8
#define SEQS 3
#define TOKENS 6
#define WORKSPACE (64 << 20) /* never touched; twice what products ask for */

static int longest, page_size; /* that the last kernel over a cache was told */

static double note_longest(const fake_cuda_launch *launch, const void *params) {
  const char *at = params; /* the batch is the first member of each, but of those with maps */
  if (!strcmp(launch->name, "attend_selected_sm90_mma"))
    at += offsetof(NsaiCachedAttendSelectedTma, batch);
  const NsaiCacheBatch *batch = (const void *)at;
  longest = batch->max_kv_len;
  page_size = batch->page_size;
  return 1;
}

/* Tensors on the fake GPU, whose memory is the host's. */
typedef struct decode_run {
  machine m;
  nsa_plan *append, *decode;
  toy memory;
  nsa_batch batch;
  nsa_io io;
} decode_run;

static nsa_tensor paged(decode_run *r, int64_t rows, int64_t dim) {
  nsa_tensor t = toy_tensor(&r->memory, NSA_BF16, 3, PAGES, rows * 2, dim);
  t.ndim = 4;
  t.shape[1] = rows;
  t.shape[2] = 2;
  t.shape[3] = dim;
  t.stride[1] = 2 * dim;
  t.stride[2] = dim;
  t.stride[3] = 1;
  return t;
}

static nsa_plan *plan_for(decode_run *r, int32_t op, int32_t selection, int32_t probes) {
  nsa_problem p = INIT(nsa_problem, .op = op, .selection = selection, .max_probe_rows = probes,
                       .max_tokens = TOKENS, .max_kv_len = 64, .max_seqs = SEQS, .max_q_len = 4,
                       .page_size = 16);
  nsa_plan *plan = machine_plan(r->m.ctx, &p);
  return plan;
}

static nsa_plan *plan_of(decode_run *r, int32_t op) { return plan_for(r, op, NSA_SELECT_TOPN, 0); }

static void begin_model(decode_run *r, const machine_request *request) {
  memset(r, 0, sizeof *r);
  machine_init(&r->m, request);
  r->memory.model = r->m.ctx->config->model;
  r->append = plan_of(r, NSA_OP_APPEND);
  r->decode = plan_of(r, NSA_OP_DECODE);
  r->batch = INIT(nsa_batch, .num_seqs = SEQS);
  r->batch.kv_len = toy_tensor(&r->memory, NSA_I32, 1, SEQS, 0, 0);
  r->batch.block_table = toy_tensor(&r->memory, NSA_I32, 2, SEQS, 4, 0);
  r->io = (nsa_io)NSA_IO_INIT;
  r->io.kv.k[0] = paged(r, 16, 24);
  r->io.kv.v[0] = paged(r, 16, 16);
  r->io.kv.k_cmp = paged(r, 4, 24);
  r->io.kv.v_cmp = paged(r, 4, 16);
  r->io.new_kv.k[0] = toy_tensor(&r->memory, NSA_BF16, 3, TOKENS, 2, 24);
  r->io.new_kv.v[0] = toy_tensor(&r->memory, NSA_BF16, 3, TOKENS, 2, 16);
  r->io.q = toy_tensor(&r->memory, NSA_BF16, 3, TOKENS, 6, 24);
  r->io.gate.value = toy_tensor(&r->memory, NSA_BF16, 3, TOKENS, 6, 3);
  r->io.o = toy_tensor(&r->memory, NSA_BF16, 3, TOKENS, 6, 16);
  nsa_caps caps = NSA_CAPS_INIT;
  machine_expect("caps", nsa_plan_caps(r->decode, &caps), NSA_OK, NULL);
  assert_true(caps.workspace_bytes <= WORKSPACE);
  r->m.exec.workspace = aligned_alloc(256, WORKSPACE);
  r->m.exec.workspace_bytes = WORKSPACE;
  *machine_record() = (fake_cuda_state){ .retained = 1 };
}

static void begin_with(decode_run *r, const char *override, nsai_phi_kind phi) {
  begin_model(r, &(machine_request){ .gpu = true, .phi = phi, .override = override });
}

static void begin(decode_run *r, const char *variant, nsai_phi_kind phi) {
  char force[80], name[80];
  nsa_caps caps = NSA_CAPS_INIT;
  snprintf(force, sizeof force, "variants.force.decode=%s", variant);
  begin_with(r, force, phi);
  machine_expect("caps", nsa_plan_caps(r->decode, &caps), NSA_OK, NULL);
  snprintf(name, sizeof name, "decode=%s", variant);
  assert_non_null(strstr(caps.variants, name));
}

static void end(decode_run *r) {
  free(r->m.exec.workspace);
  nsa_plan_destroy(r->append);
  nsa_plan_destroy(r->decode);
  toy_free(&r->memory);
  machine_free(&r->m);
}

/* These kernels, each but the first of which may begin early; and nothing else. */
static void expect_launches(const char *names) {
  fake_cuda_state *r = machine_record();
  machine_expect_launches(names);
  for (int i = 0; i < r->launches; i++) assert_int_equal(r->launch[i].overlaps, i > 0);
  assert_int_equal(r->waits, 0);
  assert_int_equal(r->memory_calls, 0);
  *r = (fake_cuda_state){ .retained = 1 };
}

static void decode(decode_run *r, uint32_t branches) {
  r->m.exec.branches = branches;
  machine_expect("decode", nsa_decode(r->decode, &r->m.exec, &r->batch, &r->io), NSA_OK, NULL);
  r->m.exec.branches = 0;
}

static void test_launches(void **state) {
  decode_run r;
  begin(&r, "decode_split_kv", NSAI_PHI_MEAN);
  machine_expect("append", nsa_kv_append(r.append, &r.m.exec, &r.batch, &r.io), NSA_OK, NULL);
  assert_int_equal(machine_record()->launch[0].grid_x, TOKENS);
  expect_launches("kv_cache_append");
  decode(&r, 0);
  /* two rows, of a token's 6, a warp; 8 warps for them */
  assert_int_equal(machine_record()->launch[3].grid_x, TOKENS * 6 / 2);
  assert_int_equal(machine_record()->launch[1].grid_x, TOKENS * 2);
  expect_launches("decode_split_kv_compressed decode_split_kv_select decode_split_kv_attend "
                  "decode_split_kv_combine");
  decode(&r, 1u << NSA_CMP);
  expect_launches("decode_split_kv_compressed decode_split_kv_combine");
  decode(&r, 1u << NSA_WIN);
  expect_launches("decode_split_kv_attend decode_split_kv_combine");
  decode(&r, 1u << NSA_SEL);
  expect_launches("decode_split_kv_compressed decode_split_kv_select decode_split_kv_attend "
                  "decode_split_kv_combine");
  r.io.block_idx = toy_tensor(&r.memory, NSA_I32, 3, TOKENS, 2, 4);
  decode(&r, 1u << NSA_CMP);
  expect_launches("decode_split_kv_compressed decode_split_kv_select decode_split_kv_combine");
  end(&r);
}

/* A caller's lists are sorted, not chosen; and what a branch alone leaves out, a probe brings
 * back. */
static void test_lists(void **state) {
  decode_run r;
  begin(&r, "decode_split_kv", NSAI_PHI_MEAN);
  nsa_plan *own = r.decode;
  r.decode = plan_for(&r, NSA_OP_DECODE, NSA_SELECT_BLOCKS, 0);
  r.io.block_idx = toy_tensor(&r.memory, NSA_I32, 2, TOKENS, 4, 0);
  decode(&r, 0);
  assert_int_equal(machine_record()->launch[1].grid_x, (TOKENS + 3) / 4); /* a warp a list */
  expect_launches(
      "decode_split_kv_compressed data_sort_blocks decode_split_kv_attend decode_split_kv_combine");
  decode(&r, 1u << NSA_SEL);
  expect_launches("data_sort_blocks decode_split_kv_attend decode_split_kv_combine");
  decode(&r, 1u << NSA_CMP | 1u << NSA_WIN);
  expect_launches("decode_split_kv_compressed decode_split_kv_attend decode_split_kv_combine");
  nsa_plan_destroy(r.decode);
  r.decode = plan_for(&r, NSA_OP_DECODE, NSA_SELECT_RANGES, 0);
  r.io.block_idx = (nsa_tensor){ 0 };
  r.io.ranges = toy_tensor(&r.memory, NSA_I32, 3, TOKENS, 4, 2);
  decode(&r, 0);
  expect_launches(
      "decode_split_kv_compressed data_sort_ranges decode_split_kv_attend decode_split_kv_combine");
  nsa_plan_destroy(r.decode);
  r.decode = plan_for(&r, NSA_OP_DECODE, NSA_SELECT_TOPN, 2);
  r.io.ranges = (nsa_tensor){ 0 };
  r.io.probe_rows = toy_tensor(&r.memory, NSA_I32, 1, 2, 0, 0);
  r.io.probe_importance = toy_tensor(&r.memory, NSA_F32, 3, 2, 2, 4);
  decode(&r, 1u << NSA_WIN);
  assert_int_equal(machine_record()->launch[3].grid_x, 2 * 2);
  expect_launches("decode_split_kv_compressed decode_split_kv_attend decode_split_kv_combine "
                  "select_importance");
  nsa_plan_destroy(r.decode);
  r.decode = own;
  end(&r);
}

#define RANKED "select_normalizer select_importance select_topn_cta "
#define ATTENDED "decode_split_kv_attend decode_split_kv_combine"

/* Blocks that are not ranked by the sum of the branch's own probabilities: by the kernels of a prefill,
 * whose keys are split over CTAs, and without decode_split_kv_compressed where there is no branch. */
static void test_rankings(void **state) {
  static const struct {
    machine_request model;
    const char *all, *selected;
  } cases[] = {
    { { .gpu = true, .pool = NSAI_POOL_MAX },
      "decode_split_kv_compressed " RANKED ATTENDED,
      RANKED ATTENDED },
    { { .gpu = true, .normalized = true },
      "decode_split_kv_compressed " RANKED ATTENDED,
      RANKED ATTENDED },
    { { .gpu = true, .keys_only = true, .normalized = true }, RANKED ATTENDED, RANKED ATTENDED },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    decode_run r;
    begin_model(&r, &cases[i].model);
    if (cases[i].model.normalized) r.io.k_norm = paged(&r, 2, 24);
    if (cases[i].model.keys_only) r.io.kv.v_cmp = (nsa_tensor){ 0 };
    machine_expect("append", nsa_kv_append(r.append, &r.m.exec, &r.batch, &r.io), NSA_OK, NULL);
    expect_launches("kv_cache_append");
    nsa_plan_destroy(r.decode);
    r.decode = machine_plan(r.m.ctx, &INIT(nsa_problem, .op = NSA_OP_DECODE, .max_tokens = TOKENS,
                                           .max_kv_len = 4096, .max_seqs = SEQS, .max_q_len = 4,
                                           .page_size = 16));
    nsa_caps caps = NSA_CAPS_INIT;
    machine_expect("caps", nsa_plan_caps(r.decode, &caps), NSA_OK, NULL);
    assert_true(caps.workspace_bytes <= WORKSPACE);
    *machine_record() = (fake_cuda_state){ .retained = 1 };
    decode(&r, 0);
    const int first = !cases[i].model.keys_only;
    /* 1024 compressed keys, 128 a split; 512 coarse ones */
    assert_int_equal(machine_record()->launch[first + 1].grid_y, 8);
    assert_int_equal(machine_record()->launch[first].grid_y, cases[i].model.normalized ? 4 : 8);
    assert_int_equal(machine_record()->launch[first + 2].grid_x, TOKENS * 2);
    expect_launches(cases[i].all);
    decode(&r, 1u << NSA_SEL);
    expect_launches(cases[i].selected);
    decode(&r, 1u << NSA_WIN);
    expect_launches(ATTENDED);
    nsa_plan_destroy(r.decode); /* a caller's lists: nothing is ranked */
    r.decode = plan_for(&r, NSA_OP_DECODE, NSA_SELECT_BLOCKS, 0);
    r.io.block_idx = toy_tensor(&r.memory, NSA_I32, 2, TOKENS, 4, 0);
    *machine_record() = (fake_cuda_state){ .retained = 1 };
    decode(&r, 0);
    expect_launches(cases[i].model.keys_only
                        ? "data_sort_blocks " ATTENDED
                        : "decode_split_kv_compressed data_sort_blocks " ATTENDED);
    end(&r);
  }
}

/* Blocks that an index chooses: its keys are split over CTAs, and there is no compressed branch. */
static void test_index(void **state) {
  decode_run r;
  begin_model(&r, &(machine_request){
                      .gpu = true, .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true });
  r.io.kv.k_cmp = r.io.kv.v_cmp = (nsa_tensor){ 0 };
  r.io.index_q = toy_tensor(&r.memory, NSA_BF16, 3, TOKENS, 2, 40);
  r.io.new_k_idx = toy_tensor(&r.memory, NSA_BF16, 3, TOKENS, 1, 40);
  r.io.k_idx = paged(&r, 16, 40);
  r.io.k_idx.shape[2] = 1;
  machine_expect("append", nsa_kv_append(r.append, &r.m.exec, &r.batch, &r.io), NSA_OK, NULL);
  expect_launches("kv_cache_append");
  nsa_plan_destroy(r.decode);
  r.decode = machine_plan(r.m.ctx, &INIT(nsa_problem, .op = NSA_OP_DECODE, .max_tokens = TOKENS,
                                         .max_kv_len = 4096, .max_seqs = SEQS, .max_q_len = 4,
                                         .page_size = 16));
  *machine_record() = (fake_cuda_state){ .retained = 1 };
  decode(&r, 0);
  assert_int_equal(machine_record()->launch[0].grid_x,
                   SEQS); /* all heads and drafts share a tile */
  assert_int_equal(machine_record()->launch[0].grid_y, 4096 / 128);
  assert_int_equal(machine_record()->launch[1].grid_x, TOKENS * 2);
  expect_launches("select_index_scores select_topn_cta " ATTENDED);
  decode(&r, 1u << NSA_WIN);
  expect_launches(ATTENDED);
  nsa_plan_destroy(r.decode); /* a caller's lists: nothing is scored */
  r.decode = plan_for(&r, NSA_OP_DECODE, NSA_SELECT_BLOCKS, 0);
  r.io.block_idx = toy_tensor(&r.memory, NSA_I32, 2, TOKENS, 4, 0);
  *machine_record() = (fake_cuda_state){ .retained = 1 };
  decode(&r, 0);
  expect_launches("data_sort_blocks " ATTENDED);
  end(&r);
}

/* No kernel looks behind a row of the table, whatever lengths say. */
static void test_narrow_table(void **state) {
  static const struct {
    int64_t pages;
    int longest;
  } rows[] = { { 0, 0 }, { 1, 16 }, { 3, 48 }, { 4, 64 }, { 4000000000, 64 } };
  decode_run r;
  begin(&r, "decode_split_kv", NSAI_PHI_MEAN);
  nsa_plan *prefill = plan_of(&r, NSA_OP_PREFILL);
  const size_t bytes = (size_t)5 << 32; /* addresses for the widest table, none of them touched */
  void *table = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert_ptr_not_equal(table, MAP_FAILED);
  r.batch.block_table.data = table;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    r.batch.block_table.shape[1] = rows[i].pages;
    machine_record()->kernel = note_longest;
    for (int call = 0; call < 3; call++) {
      nsa_status status = call == 0   ? nsa_kv_append(r.append, &r.m.exec, &r.batch, &r.io)
                          : call == 1 ? nsa_decode(r.decode, &r.m.exec, &r.batch, &r.io)
                                      : nsa_prefill(prefill, &r.m.exec, &r.batch, &r.io);
      machine_expect("narrow", status, NSA_OK, NULL);
      assert_int_equal(longest, rows[i].longest);
    }
  }
  r.batch.page_indptr = toy_tensor(&r.memory, NSA_I32, 1, SEQS + 1, 0, 0);
  r.batch.page_indices = toy_tensor(&r.memory, NSA_I32, 1, 2, 0, 0);
  r.batch.block_table = (nsa_tensor){ 0 };
  decode(&r, 0); /* lists say themselves how many pages they have */
  assert_int_equal(longest, 64);
  assert_int_equal(page_size, 16);
  munmap(table, bytes);
  nsa_plan_destroy(prefill);
  end(&r);
}

/* ---- runtime.check_inputs: full ---- */

/* An append and a decode step: neither enqueues anything, or both do; they wait `waits` times. */
static void expect_checked(decode_run *r, nsa_status status, const char *text, int waits) {
  fake_cuda_state *record = machine_record();
  record->waits = 0;
  record->launches = 0;
  machine_expect("append", nsa_kv_append(r->append, &r->m.exec, &r->batch, &r->io), status, text);
  assert_int_equal(record->launches > 0, status == NSA_OK);
  record->launches = 0;
  machine_expect("decode", nsa_decode(r->decode, &r->m.exec, &r->batch, &r->io), status, text);
  assert_int_equal(record->launches > 0, status == NSA_OK);
  assert_int_equal(record->waits, waits);
}

/* The values that the CPU device checks are read back, but not into a capture. */
static void test_full(void **state) {
  decode_run r;
  begin_with(&r, "runtime.check_inputs=full", NSAI_PHI_MEAN);
  int32_t *len = toy_ints(&r.batch.kv_len), *page = toy_ints(&r.batch.block_table);
  for (int s = 0; s < SEQS; s++) len[s] = 17 * s;                 /* 0: a padded row */
  for (int i = 0; i < SEQS * 4; i++) page[i] = i < 6 ? i : PAGES; /* of the last, 3 pages */
  page[8] = page[9] = page[10] = 7;
  expect_checked(&r, NSA_OK, NULL, 2);
  page[9] = PAGES;
  expect_checked(&r, NSA_E_ARG, "page 1 of sequence 2 is 8, expected one of", 2);
  r.batch.block_table.shape[1] = 2; /* a row of 2 every 4 */
  expect_checked(&r, NSA_E_ARG, "sequence 2 has 2 pages, its 34 tokens need 3", 2);
  r.batch.block_table.shape[1] = 3;
  expect_checked(&r, NSA_E_ARG, "page 1 of sequence 2 is 8, expected one of", 2);
  page[9] = 7;
  expect_checked(&r, NSA_OK, NULL, 2);
  len[1] = 65;
  expect_checked(&r, NSA_E_ARG, "batch.kv_len[1] is 65", 2);
  for (int s = 0; s < SEQS; s++) len[s] = 0;
  r.batch.block_table.shape[1] = 0; /* none has a page */
  expect_checked(&r, NSA_OK, NULL, 2);
  len[1] = 1;
  expect_checked(&r, NSA_E_ARG, "sequence 1 has 0 pages, its 1 tokens need 1", 2);
  machine_record()->capturing = true;
  expect_checked(&r, NSA_OK, NULL, 0);
  machine_record()->capturing = false;
  machine_record()->broken = 700;
  machine_expect("broken", nsa_decode(r.decode, &r.m.exec, &r.batch, &r.io), NSA_E_CUDA, NULL);
  machine_record()->broken = 0;
  end(&r);
}

/* Products of the rows that an append may complete, K and then V, between gathering and
 * scattering. */
static void test_products(void **state) {
#define SIDE "kv_cache_gather_entries matmul compress_bias_activation "
#define MLP_SIDE SIDE "matmul matmul compress_bias_activation "
  static const char *const names[] = { "kv_cache_append " SIDE SIDE "kv_cache_scatter_entries",
                                       "kv_cache_append " MLP_SIDE MLP_SIDE
                                       "kv_cache_scatter_entries" };
  const fake_cuda_state *record = machine_record();
  for (int mlp = 0; mlp < 2; mlp++) {
    decode_run r;
    begin(&r, "decode_split_kv", mlp ? NSAI_PHI_MLP : NSAI_PHI_LINEAR);
    r.io.phi = r.m.toy.io.phi;
    machine_expect("append", nsa_kv_append(r.append, &r.m.exec, &r.batch, &r.io), NSA_OK, NULL);
    machine_expect_launches(names[mlp]);
    /* a row for every 4 tokens and one for every sequence, and pe's, of 2 heads */
    assert_int_equal(record->launch[1].grid_x, (TOKENS / 4 + SEQS + 1) * 2);
    assert_int_equal(record->launch[record->launches - 1].grid_x, TOKENS / 4 + SEQS);
    assert_int_equal(record->waits + record->memory_calls, 0);
    end(&r);
  }
}

/* One launch whatever the branches, of a cluster for each token and KV head. */
static void test_cluster(void **state) {
  decode_run r;
  begin(&r, "decode_cluster", NSAI_PHI_MEAN);
  const nsai_kernel_spec *spec = nsai_choice_kernel(&r.decode->choice, "decode_cluster");
  assert_true(spec->cluster >= 2 && spec->cluster <= 8); /* not an H200 */
  assert_int_equal(machine_record()->large_clusters, 0);
  for (uint32_t branches = 0; branches < 8; branches++) {
    decode(&r, branches);
    assert_int_equal(machine_record()->launch[0].grid_x, TOKENS * spec->cluster);
    assert_int_equal(machine_record()->launch[0].grid_y, 2);
    assert_int_equal(machine_record()->launch[0].shared_bytes, spec->shared_bytes);
    expect_launches("decode_cluster");
  }
  end(&r);
}

#define SELECTED "attend_compressed_sm90 select_importance select_topn attend_selected_sm90_mma"

/* The forward's kernels without compress, each over tiles of every sequence, with cu_q or
 * without. */
static void test_prefill(void **state) {
  static const int32_t begins[SEQS + 1] = { 0, 4, 5, 6 };
  const int32_t tile = 32; /* tokens of 3 heads, padded to 4, in 128 rows */
  decode_run r;
  begin(&r, "decode_split_kv", NSAI_PHI_MEAN);
  nsa_plan *prefill = plan_of(&r, NSA_OP_PREFILL);
  for (int packed = 0; packed < 2; packed++) {
    if (packed) {
      r.batch.cu_q = toy_tensor(&r.memory, NSA_I32, 1, SEQS + 1, 0, 0);
      memcpy(r.batch.cu_q.data, begins, sizeof begins);
    }
    machine_expect("prefill", nsa_prefill(prefill, &r.m.exec, &r.batch, &r.io), NSA_OK, NULL);
    for (int i = 0; i < 2; i++)
      assert_int_equal(machine_record()->launch[i].grid_x, 2 * (TOKENS / tile + SEQS));
    expect_launches("attend_window_sm90 " SELECTED);
  }
  r.m.exec.branches = 1u << NSA_CMP;
  machine_expect("branch", nsa_prefill(prefill, &r.m.exec, &r.batch, &r.io), NSA_OK, NULL);
  expect_launches("attend_compressed_sm90");
  r.m.exec.branches = 1u << NSA_SEL;
  machine_expect("branch", nsa_prefill(prefill, &r.m.exec, &r.batch, &r.io), NSA_OK, NULL);
  expect_launches(SELECTED);
  nsa_plan_destroy(prefill);
  end(&r);
}

/* A prefill of few tokens over what counts as a long context takes the kernels of a step. */
static void test_split_prefill(void **state) {
  decode_run r;
  begin_with(&r, "thresholds.prefill_split_from=64", NSAI_PHI_MEAN);
  nsa_plan *prefill = plan_of(&r, NSA_OP_PREFILL);
  nsa_caps caps = NSA_CAPS_INIT;
  machine_expect("caps", nsa_plan_caps(prefill, &caps), NSA_OK, NULL);
  assert_string_equal(caps.variants, "decode=decode_cluster"); /* of few items */
  assert_true(caps.workspace_bytes <= WORKSPACE);
  machine_expect("prefill", nsa_prefill(prefill, &r.m.exec, &r.batch, &r.io), NSA_OK, NULL);
  expect_launches("decode_cluster");
  nsa_plan_destroy(prefill);
  prefill = plan_for(&r, NSA_OP_PREFILL, NSA_SELECT_TOPN, 2); /* probed */
  for (int tokens = TOKENS; tokens >= SEQS; tokens -= SEQS) {
    r.io.q.shape[0] = r.io.gate.value.shape[0] = r.io.o.shape[0] = tokens;
    machine_expect("prefill", nsa_prefill(prefill, &r.m.exec, &r.batch, &r.io), NSA_OK, NULL);
    expect_launches("decode_split_kv_compressed decode_split_kv_select decode_split_kv_attend "
                    "decode_split_kv_combine");
  }
  machine_expect("decode", nsa_decode(prefill, &r.m.exec, &r.batch, &r.io), NSA_E_ARG,
                 "the plan was made for problem.op NSA_OP_PREFILL");
  r.io.kv_reads = toy_tensor(&r.memory, NSA_F32, 3, 1, 1, 1);
  machine_expect("prefill", nsa_prefill(prefill, &r.m.exec, &r.batch, &r.io), NSA_E_ARG,
                 "NSA_OP_PREFILL counts nothing");
  nsa_plan_destroy(prefill);
  end(&r);
}

/* Where kernels may not be compiled, those of the prefill serve unless those of the step are there. */
static void test_split_prefill_packed(void **state) {
  static const char *const extras[] = { "thresholds.prefill_split_from=0", "runtime.jit=never",
                                        "runtime.jit=on_demand", "runtime.jit=never" };
  static const char *const rows[] = { "attend_compressed=", "attend_compressed=", "decode=",
                                      "decode=" };
  char yaml[1024], dir[64] = "";
  nsa_ctx *ctx = NULL;
  nsa_problem p = INIT(nsa_problem, .op = NSA_OP_PREFILL, .max_tokens = TOKENS, .max_kv_len = 32768,
                       .max_seqs = SEQS, .page_size = 16);
  machine_yaml(&(machine_request){ .gpu = true }, yaml, sizeof yaml);
  strncat(yaml, "thresholds: {prefill_split_from: 32768}\n", sizeof yaml - strlen(yaml) - 1);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    nsa_caps caps = NSA_CAPS_INIT;
    machine_reopen(&ctx, dir, &(machine_reopening){ .yaml = yaml, .extra = extras[i] });
    machine_expect("query", nsa_query(ctx, &p, &caps), NSA_OK, NULL);
    assert_int_equal(caps.missing_kernels > 0, i % 2 == 0);
    nsa_plan *plan = machine_plan(ctx, &p);
    machine_expect("caps", nsa_plan_caps(plan, &caps), NSA_OK, NULL);
    if (strncmp(caps.variants, rows[i], strlen(rows[i])) != 0)
      fail_msg("%s: %s", extras[i], caps.variants);
    nsa_plan_destroy(plan);
  }
  nsa_destroy(ctx);
  machine_remove(dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_launches),
    cmocka_unit_test(test_cluster),
    cmocka_unit_test(test_rankings),
    cmocka_unit_test(test_index),
    cmocka_unit_test(test_lists),
    cmocka_unit_test(test_narrow_table),
    cmocka_unit_test(test_full),
    cmocka_unit_test(test_products),
    cmocka_unit_test(test_prefill),
    cmocka_unit_test(test_split_prefill),
    cmocka_unit_test(test_split_prefill_packed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
