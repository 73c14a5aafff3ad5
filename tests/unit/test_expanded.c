/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Prefills over compressed entries in e4m3 that are first expanded into the workspace: which rows
 * serve, what is launched, and where the entries of which sequences lie, on the GPU of the fake
 * driver.
 */
#include "support/cmocka_all.h"

#include "machine.h"
#include "params/kv_cache.h"
#include "plan/plan.h"

#include <string.h>
#include <sys/mman.h>

#define YAML                                                                                       \
  "nsa: 1\nmodel: {heads: 64, kv_heads: 4, head_dim: 128, kv_sharing: shared, gate: none}\n"       \
  "serving: {page_size: 64, cmp_dtype: e4m3}\n"
#define PAGES 64
#define LEAST 17 /* new tokens of a sequence that are worth it */
#define SEQUENCE_BYTES(tokens) ((tokens) / 16 * 4 * 128 * 2) /* of K, and of V */

static NsaiExpandEntries expand;
static NsaiExpanded read_by; /* the kernel of the compressed branch */

static double note_params(const fake_cuda_launch *launch, const void *params) {
  if (!strcmp(launch->name, "kv_cache_expand_entries")) memcpy(&expand, params, sizeof expand);
  if (!strcmp(launch->name, "attend_compressed_topn_sm90"))
    read_by = ((const NsaiExpandedCompressedTopn *)params)->expanded;
  if (!strcmp(launch->name, "attend_compressed_sm90"))
    read_by = ((const NsaiExpandedAttendTma *)params)->expanded;
  return 1;
}

typedef struct expanded_run {
  nsa_ctx *ctx;
  nsa_plan *plan;
  char dir[64];
  nsa_caps caps;
  char *memory, *next; /* addresses that nobody touches */
} expanded_run;

#define MEMORY ((size_t)64 << 30)

static void begin(expanded_run *r, const char *override) {
  memset(r, 0, sizeof *r);
  machine_reopen(&r->ctx, r->dir, &(machine_reopening){ .yaml = YAML, .extra = override });
  r->memory = mmap(NULL, MEMORY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  assert_ptr_not_equal(r->memory, MAP_FAILED);
}

static void plan(expanded_run *r, int64_t tokens, int32_t seqs, int64_t longest) {
  nsa_problem p = INIT(nsa_problem, .op = NSA_OP_PREFILL, .max_tokens = tokens, .max_seqs = seqs,
                       .max_kv_len = longest);
  nsa_plan_destroy(r->plan);
  r->plan = machine_plan(r->ctx, &p);
  r->caps = (nsa_caps)NSA_CAPS_INIT;
  machine_expect("caps", nsa_plan_caps(r->plan, &r->caps), NSA_OK, NULL);
}

static void end(expanded_run *r) {
  nsa_plan_destroy(r->plan);
  nsa_destroy(r->ctx);
  machine_remove(r->dir);
  munmap(r->memory, MEMORY);
}

static nsa_tensor tensor(expanded_run *r, int32_t dtype, int32_t ndim, const int64_t shape[4]) {
  nsa_tensor t = { .data = r->next, .ndim = ndim, .dtype = dtype };
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    t.shape[i] = shape[i];
    t.stride[i] = stride;
    stride *= shape[i];
  }
  r->next += (stride * 4 + 255) / 256 * 256;
  assert_true(r->next <= r->memory + MEMORY);
  return t;
}
#define TENSOR(r, dtype, ndim, ...) tensor(r, dtype, ndim, (const int64_t[4]){ __VA_ARGS__ })

/* A call of so many tokens and sequences, with cu_q. */
static void prefill(expanded_run *r, int64_t tokens, int32_t seqs, uint32_t branches) {
  nsa_batch batch = INIT(nsa_batch, .num_seqs = seqs);
  nsa_io io = NSA_IO_INIT;
  nsa_exec exec = INIT(nsa_exec, .branches = branches);
  r->next = r->memory;
  exec.workspace = r->next;
  exec.workspace_bytes = r->caps.workspace_bytes;
  r->next += (r->caps.workspace_bytes + 255) / 256 * 256;
  batch.cu_q = TENSOR(r, NSA_I32, 1, seqs + 1);
  batch.kv_len = TENSOR(r, NSA_I32, 1, seqs);
  batch.block_table = TENSOR(r, NSA_I32, 2, seqs, 1024);
  io.kv.k[0] = TENSOR(r, NSA_BF16, 4, PAGES, 64, 4, 128);
  io.kv.v[0] = TENSOR(r, NSA_BF16, 4, PAGES, 64, 4, 128);
  io.kv.k_cmp = TENSOR(r, NSA_E4M3, 4, PAGES, 4, 4, 128);
  io.kv.v_cmp = TENSOR(r, NSA_E4M3, 4, PAGES, 4, 4, 128);
  io.q = TENSOR(r, NSA_BF16, 3, tokens, 64, 128);
  io.o = TENSOR(r, NSA_BF16, 3, tokens, 64, 128);
  memset(&expand, 0, sizeof expand);
  memset(&read_by, 0, sizeof read_by);
  *machine_record() = (fake_cuda_state){ .retained = 1, .kernel = note_params };
  machine_expect("prefill", nsa_prefill(r->plan, &exec, &batch, &io), NSA_OK, NULL);
}

static bool launched(const char *name) {
  const fake_cuda_state *record = machine_record();
  for (int i = 0; i < record->launches; i++)
    if (!strcmp(record->launch[i].name, name)) return true;
  return false;
}

/* ---- which row ---- */

static void expect_row(expanded_run *r, const nsa_problem *p, const char *part) {
  machine_expect_story(r->ctx, p, part);
}

static void test_choice(void **state) {
  expanded_run r;
  begin(&r, NULL);
  nsa_problem p = INIT(nsa_problem, .op = NSA_OP_PREFILL, .max_tokens = 8192, .max_kv_len = 65536);
  expect_row(&r, &p, "attend_compressed_topn_expanded_sm90: chosen");
  p.max_kv_len = 2048; /* too short for importance in the same pass */
  expect_row(&r, &p, "attend_compressed_expanded_sm90 rows=192 keys=80 stages=2: chosen");
  p.max_kv_len = 1048576;
  expect_row(&r, &p, "attend_compressed_topn_expanded_sm90: chosen");
  p.max_kv_len = 1048592; /* another entry */
  expect_row(&r, &p, "attend_compressed_topn_sm90: chosen");
  expect_row(&r, &p,
             "the entries of a sequence of problem.max_kv_len (1048592) take more than 128 MiB");
  p.max_kv_len = 65536;
  p.cmp_dtype = NSA_NONE;
  expect_row(&r, &p, "attend_compressed_topn_sm90: chosen");
  expect_row(&r, &p, "it expands compressed entries of a cache in e4m3");
  end(&r);
}

/* ---- launches ---- */

static void expect_early(const char *names) {
  const fake_cuda_state *record = machine_record();
  machine_expect_launches(names);
  for (int i = 0; i < record->launches; i++) assert_int_equal(record->launch[i].overlaps, i > 0);
  assert_int_equal(record->waits + record->memory_calls, 0);
}

static void test_launches(void **state) {
  expanded_run r;
  begin(&r, "variants.force.attend_window=attend_window_sm90");
  plan(&r, 2048, 1, 65536);
  prefill(&r, 2048, 1, 0);
  expect_early("kv_cache_expand_entries attend_window_sm90 attend_compressed_topn_sm90 "
               "attend_selected_sm90_mma");
  /* 64 of 4096 entries a CTA, of each of 4 heads */
  assert_int_equal(machine_record()->launch[0].grid_x, 64 * 4);
  assert_int_equal(machine_record()->launch[0].grid_y, 1);
  prefill(&r, LEAST - 1, 1, 0); /* too few tokens, as the kernel of the branch finds, too */
  expect_early("attend_window_sm90 attend_compressed_topn_sm90 attend_selected_sm90_mma");
  assert_int_equal(read_by.least_tokens, LEAST);
  prefill(&r, LEAST, 1, 1u << NSA_CMP);
  expect_early("kv_cache_expand_entries attend_compressed_topn_sm90");
  prefill(&r, 2048, 1, 1u << NSA_WIN);
  expect_early("attend_window_sm90");
  plan(&r, LEAST - 1, 8, 65536); /* has no workspace for any */
  prefill(&r, LEAST - 1, 1, 1u << NSA_CMP);
  expect_early("attend_compressed_topn_sm90");
  assert_true(read_by.least_tokens >= LEAST);
  end(&r);
  begin(&r, "variants.force.attend_compressed=attend_compressed_topn_sm90");
  plan(&r, 2048, 1, 65536);
  prefill(&r, 2048, 1, 0);
  assert_false(launched("kv_cache_expand_entries"));
  end(&r);
}

/* ---- where entries lie ---- */

/* The slot of a sequence as data/expanded_entries.cuh finds it; -1: none. */
static int slot_of(const NsaiExpanded *to, int begin, int tokens, int s) {
  if (tokens < to->least_tokens) return -1;
  return to->by_tokens ? begin / to->least_tokens : s;
}

/* Every sequence with enough new tokens has a slot of its own, which is launched for and lies in the
 * workspace; `expanded`: how many there are. */
static void expect_slots(expanded_run *r, int64_t longest, const int *tokens, int seqs,
                         int expanded) {
  int total = 0, found = 0;
  bool taken[4096] = { false };
  for (int s = 0; s < seqs; s++) total += tokens[s];
  prefill(r, total, seqs, 0);
  assert_true(launched("kv_cache_expand_entries"));
  assert_memory_equal(&expand.to, &read_by, sizeof read_by);
  const NsaiExpanded *to = &read_by;
  const int64_t side = SEQUENCE_BYTES(longest);
  const char *first = r->memory, *last = first + r->caps.workspace_bytes;
  assert_int_equal(to->k.page_stride * 2, side);
  assert_int_equal(to->v.page_stride * 2, side);
  for (int s = 0, begin = 0; s < seqs; begin += tokens[s++]) {
    const int slot = slot_of(to, begin, tokens[s], s);
    if (slot < 0) continue;
    assert_in_range(slot, 0, machine_record()->launch[0].grid_y - 1);
    assert_false(taken[slot]);
    taken[slot] = true;
    found++;
    const char *k = (const char *)to->k.data + slot * side,
               *v = (const char *)to->v.data + slot * side;
    assert_true(k >= first && k + side <= (const char *)to->v.data);
    assert_true(v >= (const char *)to->v.data && v + side <= last);
    /* The one sequence that a slot's CTAs look at. */
    if (to->by_tokens) {
      const int row = (slot + 1) * to->least_tokens - 1;
      assert_true(row >= begin && row < begin + tokens[s]);
    }
  }
  assert_int_equal(found, expanded);
}

static void test_slots(void **state) {
  expanded_run r;
  int tokens[256];
  begin(&r, "variants.force.attend_window=attend_window_sm90");
  plan(&r, 2080, 33, 65536); /* 16 sequences of 8 MiB fit */
  for (int s = 0; s < 32; s++) tokens[s] = 1;
  tokens[32] = 2048;
  expect_slots(&r, 65536, tokens, 33, 1);
  for (int s = 0; s < 16; s++) tokens[s] = s % 2 ? 1 : 259;
  expect_slots(&r, 65536, tokens, 16, 8); /* by their numbers */
  for (int s = 0; s < 33; s++) tokens[s] = 63;
  prefill(&r, 33 * 63, 33, 0); /* 33 long ones: nothing is expanded */
  assert_int_equal(read_by.least_tokens, 33 * 63 / 17 + 1);
  for (int s = 0; s < 33; s++) tokens[s] = s % 4 ? 1 : 128;
  expect_slots(&r, 65536, tokens, 33, 9);
  plan(&r, 256, 256, 4096); /* 15 slots, by the tokens of the plan */
  for (int s = 0; s < 100; s++) tokens[s] = s % 10 ? 1 : 16;
  tokens[99] = 5;
  tokens[50] = LEAST;
  expect_slots(&r, 4096, tokens, 100, 1);
  for (int s = 0; s < 15; s++) tokens[s] = LEAST;
  tokens[15] = 1;
  expect_slots(&r, 4096, tokens, 16, 15);
  end(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_choice),
    cmocka_unit_test(test_launches),
    cmocka_unit_test(test_slots),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
