/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the calls over a KV cache refuse: each tensor wrong in each way, values of the batch's
 * arrays that lead out of the cache, what does not go together; and every one of them on a GPU. A
 * refusal names what is wrong and writes nothing.
 */
#include "support/cmocka_all.h"

#include "kv_fixture.h"

static const int32_t lengths[] = { 37, 20 };

/* The three calls, by one signature. */
typedef nsa_status (*run_fn)(kv_call *c);
static nsa_status run_append(kv_call *c) {
  return nsa_kv_append(c->fixture->append, &c->fixture->exec, &c->batch, &c->io);
}
static nsa_status run_decode(kv_call *c) {
  return nsa_decode(c->fixture->decode, &c->fixture->exec, &c->batch, &c->io);
}
static nsa_status run_prefill(kv_call *c) {
  return nsa_prefill(c->fixture->prefill, &c->fixture->exec, &c->batch, &c->io);
}

static void begin(kv_fixture *w, kv_call *c, const machine_request *model,
                  const kv_options *options) {
  static const int32_t q_len[] = { 7, 3 }, at[] = { 30, 17 };
  kv_init(w, model, options, 2, lengths);
  kv_call_init(c, w, at, (const int32_t[]){ 0, 0 });
  kv_append(c);
  kv_call_free(c);
  kv_call_init(c, w, q_len, at);
}

static void end(kv_fixture *w, kv_call *c) {
  kv_call_free(c);
  kv_free(w);
}

static void refuse(kv_call *c, run_fn run, const char *name, const char *text) {
  machine_expect(name, run(c), NSA_E_ARG, text);
}

/* ---- each tensor ---- */

/* Dimensions that a check takes as they come. */
enum { FIRST_FREE = 1, SECOND_FREE = 2, BOTH_FREE = 3 };

static void corrupt(kv_call *c, run_fn run, const char *name, nsa_tensor *t, int free_dims) {
  nsa_tensor good = *t;
  char what[64];
  assert_non_null(t->data);
  snprintf(what, sizeof what, "%s is missing", name);
  t->data = NULL;
  refuse(c, run, what, name);
  *t = good;
  t->ndim--;
  snprintf(what, sizeof what, "%s has %d dimensions", name, t->ndim);
  refuse(c, run, what, what);
  *t = good;
  t->dtype = t->dtype == NSA_I32 ? NSA_I64 : NSA_BF16;
  snprintf(what, sizeof what, "%s has dtype", name);
  refuse(c, run, what, what);
  *t = good;
  for (int d = 0; d < t->ndim; d++)
    for (int64_t by = -1; by <= 1; by += 2) {
      if (free_dims >> d & 1) continue;
      t->shape[d] = good.shape[d] + by;
      snprintf(what, sizeof what, "%s has shape[%d]", name, d);
      refuse(c, run, what, what);
      *t = good;
    }
  t->stride[t->ndim - 1] = 2;
  snprintf(what, sizeof what, "%s has stride", name);
  refuse(c, run, what, what);
  *t = good;
  t->data = (char *)t->data + 1;
  snprintf(what, sizeof what, "%s.data is not aligned", name);
  refuse(c, run, what, what);
  *t = good;
}

/* The cache, under the name that a call gives it. Numbers of pages or rows, and lengths of rows,
 * come from the first tensor that has them. */
static void corrupt_cache(kv_call *c, run_fn run, const char *name, nsa_kv *kv) {
  char full[32];
  bool first = true;
  bool paged = c->fixture->options.page_size > 0;
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    nsa_tensor *sides[] = { &kv->k[pair], &kv->v[pair] };
    for (int i = 0; i < 2; i++) {
      if (!sides[i]->data) continue;
      bool ring = c->fixture->options.ring && pair == NSA_WIN;
      snprintf(full, sizeof full, "%s.%c[%d]", name, "kv"[i], pair);
      int free_dims = ring             ? (i ? 0 : BOTH_FREE)
                      : first && paged ? FIRST_FREE
                      : first          ? BOTH_FREE
                                       : 0;
      corrupt(c, run, full, sides[i], free_dims);
      first = first && ring;
    }
  }
  snprintf(full, sizeof full, "%s.k_cmp", name);
  corrupt(c, run, full, &kv->k_cmp, paged ? 0 : SECOND_FREE);
  snprintf(full, sizeof full, "%s.v_cmp", name);
  corrupt(c, run, full, &kv->v_cmp, paged ? 0 : SECOND_FREE);
}

static void corrupt_batch(kv_call *c, run_fn run) {
  corrupt(c, run, "batch.kv_len", &c->batch.kv_len, 0);
  if (c->batch.block_table.data)
    corrupt(c, run, "batch.block_table", &c->batch.block_table, SECOND_FREE);
  if (!c->batch.page_indptr.data) return;
  corrupt(c, run, "batch.page_indptr", &c->batch.page_indptr, 0);
  corrupt(c, run, "batch.page_indices", &c->batch.page_indices, FIRST_FREE);
}

static void test_each_tensor(void **state) {
  static const kv_options cases[] = { { .page_size = 16 },
                                      { .page_size = 64, .hnd = true, .ring = true },
                                      { .page_size = 32, .lists = true },
                                      { .page_size = NSA_NONE, .hnd = true } };
  kv_fixture w;
  kv_call c;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    begin(&w, &c, &(machine_request){ .phi = NSAI_PHI_LINEAR, .per_branch = true }, &cases[i]);
    const run_fn attends[] = { run_decode, run_prefill };
    for (int k = 0; k < 2; k++) {
      corrupt_cache(&c, attends[k], "io.kv", &c.io.kv);
      corrupt_batch(&c, attends[k]);
      corrupt(&c, attends[k], "io.q", &c.io.q, FIRST_FREE);
      corrupt(&c, attends[k], "io.o", &c.io.o, 0);
      corrupt(&c, attends[k], "io.gate.value", &c.io.gate.value, 0);
    }
    corrupt_cache(&c, run_append, "io.kv", &c.io.kv);
    corrupt_batch(&c, run_append);
    corrupt(&c, run_append, "io.new_kv.k[0]", &c.io.new_kv.k[0], FIRST_FREE);
    corrupt(&c, run_append, "io.new_kv.v[0]", &c.io.new_kv.v[0], 0);
    corrupt(&c, run_append, "io.new_kv.k[2]", &c.io.new_kv.k[2], 0);
    corrupt(&c, run_append, "io.phi.k.w", &c.io.phi.k.w, 0);
    end(&w, &c);
  }
}

/* ---- elements that lie on each other ---- */

static void overlap(kv_call *c, run_fn run, const char *name, nsa_tensor *t, int dim,
                    int64_t stride) {
  nsa_tensor good = *t;
  char what[96];
  t->stride[dim] = stride;
  snprintf(what, sizeof what,
           "%s has stride[%d] = %lld, and its elements lie on or between each other", name, dim,
           (long long)stride);
  refuse(c, run, what, what);
  *t = good;
}

/* What an append writes, and what the others do; the cache may repeat itself where it is read. */
static void test_overlaps(void **state) {
  static const kv_options cases[] = { { .page_size = 16, .ring = true },
                                      { .page_size = 16, .hnd = true },
                                      { .page_size = NSA_NONE, .hnd = true } };
  kv_fixture w;
  kv_call c;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    begin(&w, &c, &(machine_request){ .per_branch = true }, &cases[i]);
    nsa_kv *kv = &c.io.kv;
    overlap(&c, run_append, "io.kv.k[0]", &kv->k[0], 0, 0);
    overlap(&c, run_append, "io.kv.v[0]", &kv->v[0], 0, kv->v[0].stride[0] - 1);
    overlap(&c, run_append, "io.kv.v[1]", &kv->v[1], 2, 0);
    overlap(&c, run_append, "io.kv.k[2]", &kv->k[2], cases[i].hnd ? 1 : 2, -23);
    overlap(&c, run_append, "io.kv.v_cmp", &kv->v_cmp, 1, 15);
    const run_fn attends[] = { run_decode, run_prefill };
    for (int a = 0; a < 2; a++) {
      nsa_tensor cached = c.io.kv.k[0];
      c.io.kv.k[0].stride[2] = 0; /* one head for all */
      machine_expect("one head", attends[a](&c), NSA_OK, NULL);
      c.io.kv.k[0] = cached;
      overlap(&c, attends[a], "io.o", &c.io.o, 0, 0);
      overlap(&c, attends[a], "io.o", &c.io.o, 1, 8);
      overlap(&c, attends[a], "io.lse[2]", &c.io.lse[2], 0, 5);
      overlap(&c, attends[a], "io.block_idx", &c.io.block_idx, 1, -3);
    }
    end(&w, &c);
  }
}

/* Coarse keys; and what is no part of a cache without compressed values, or without coarse keys. */
static void test_normalized(void **state) {
  static const kv_options cases[] = { { .page_size = 16 }, { .page_size = NSA_NONE, .hnd = true } };
  const run_fn calls[] = { run_decode, run_prefill, run_append };
  kv_fixture w;
  kv_call c;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    begin(&w, &c, &(machine_request){ .keys_only = true, .normalized = true }, &cases[i]);
    for (int k = 0; k < 3; k++) {
      corrupt(&c, calls[k], "io.k_norm", &c.io.k_norm, cases[i].page_size > 0 ? 0 : SECOND_FREE);
      c.io.kv.v_cmp = c.io.kv.k_cmp;
      refuse(&c, calls[k], "v_cmp", "io.kv.v_cmp is given, but model.compress.output is false");
      c.io.kv.v_cmp = (nsa_tensor){ 0 };
    }
    overlap(&c, run_append, "io.k_norm", &c.io.k_norm, 0, 0);
    if (cases[i].page_size < 0) {
      c.io.k_norm.shape[1]--;
      refuse(&c, run_decode, "few", "io.k_norm has shape[1] = 17, expected at least 18");
    }
    end(&w, &c);
    begin(&w, &c, &(machine_request){ 0 }, &cases[i]);
    c.io.k_norm = c.io.kv.k_cmp;
    for (int k = 0; k < 3; k++)
      refuse(&c, calls[k], "k_norm", "io.k_norm is given, but the model has no select.normalizer");
    end(&w, &c);
  }
}

/* Index keys and queries; what is no part of a cache without compressed keys, or without an index. */
static void test_indexed(void **state) {
  static const kv_options cases[] = { { .page_size = 16 }, { .page_size = NSA_NONE, .hnd = true } };
  const machine_request indexed = { .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true };
  const run_fn calls[] = { run_decode, run_prefill, run_append };
  kv_fixture w;
  kv_call c;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    begin(&w, &c, &indexed, &cases[i]);
    for (int k = 0; k < 3; k++) {
      corrupt(&c, calls[k], "io.k_idx", &c.io.k_idx, 0);
      c.io.k_idx.dtype = NSA_E4M3;
      refuse(&c, calls[k], "codes", "io.k_idx has dtype e4m3, but the plan's problem.cmp_dtype is");
      c.io.k_idx.dtype = NSA_F32;
      for (int side = 0; side < 2; side++) {
        nsa_tensor *t = side ? &c.io.kv.v_cmp : &c.io.kv.k_cmp;
        *t = c.io.kv.k[0];
        refuse(&c, calls[k], "entries",
               side ? "io.kv.v_cmp is given, but model.compress is none"
                    : "io.kv.k_cmp is given, but model.compress is none");
        *t = (nsa_tensor){ 0 };
      }
    }
    for (int k = 0; k < 2; k++) corrupt(&c, calls[k], "io.index_q", &c.io.index_q, 0);
    corrupt(&c, run_append, "io.new_k_idx", &c.io.new_k_idx, 0);
    overlap(&c, run_append, "io.k_idx", &c.io.k_idx, 0, 0);
    const nsa_tensor lse = c.io.lse[1];
    c.io.lse[1].data = c.io.index_q.data;
    refuse(&c, run_decode, "lse", "io.lse[1] is written, and shares memory with io.index_q");
    c.io.lse[1] = lse;
    const nsa_tensor keys = c.io.new_k_idx;
    c.io.new_k_idx.data = c.io.k_idx.data;
    refuse(&c, run_append, "keys", "io.k_idx is written, and shares memory with io.new_k_idx");
    c.io.new_k_idx = keys;
    c.io.new_kv.k_cmp = c.io.new_kv.k[0];
    refuse(&c, run_append, "new_kv", "io.new_kv.k_cmp is given, but model.compress is none: leave");
    end(&w, &c);
    begin(&w, &c, &(machine_request){ 0 }, &cases[i]);
    nsa_tensor *const all[] = { &c.io.index_q, &c.io.k_idx, &c.io.new_k_idx };
    static const char *const names[] = { "index_q", "k_idx", "new_k_idx" };
    for (int k = 0; k < 9; k++) {
      char text[96];
      *all[k / 3] = c.io.kv.k[0];
      snprintf(text, sizeof text, "io.%s is given, but model.select.by is compressed",
               names[k / 3]);
      refuse(&c, calls[k % 3], text, text);
      *all[k / 3] = (nsa_tensor){ 0 };
    }
    end(&w, &c);
  }
}

/* ---- capacities of rows and rings ---- */

static void test_rows(void **state) {
  const kv_options plain = { .page_size = NSA_NONE },
                   ring = { .page_size = NSA_NONE, .ring = true };
  kv_fixture w;
  kv_call c;
  begin(&w, &c, &(machine_request){ 0 }, &plain);
  nsa_kv good = c.io.kv;
  c.io.kv.k[0].shape[1] = c.io.kv.v[0].shape[1] = KV_MAX_LEN - 1;
  refuse(&c, run_decode, "short rows", "a row holds problem.max_kv_len tokens");
  c.io.kv = good;
  c.io.kv.k_cmp.shape[1]--;
  refuse(&c, run_decode, "few entries", "io.kv.k_cmp has shape[1] = 35, expected at least 36");
  c.io.kv = good;
  nsa_tensor *all[] = { &c.io.kv.k[0], &c.io.kv.v[0], &c.io.kv.k_cmp, &c.io.kv.v_cmp };
  for (int i = 0; i < 4; i++) all[i]->shape[0] = 1;
  refuse(&c, run_decode, "few rows", "io.kv has 1 rows for 2 sequences: give batch.slots");
  end(&w, &c);
  begin(&w, &c, &(machine_request){ .per_branch = true }, &ring);
  c.io.kv.k[2].shape[1] = KV_RING - 1;
  refuse(&c, run_append, "short ring", "expected at least 59: a ring holds the window");
  c.io.kv.k[2].shape[1] = KV_RING;
  c.io.kv.k[2].shape[0] = c.io.kv.v[2].shape[0] = 1;
  refuse(&c, run_append, "few rings", "io.kv has 1 rows for 2 sequences");
  end(&w, &c);
}

/* Heads before tokens as they lie in memory, and pages of another size than the plan's. */
static void test_shapes(void **state) {
  static const int32_t sizes[] = { 16, NSA_NONE };
  for (int i = 0; i < 2; i++) {
    const kv_options options = { .page_size = sizes[i], .hnd = true };
    kv_fixture w;
    kv_call c;
    begin(&w, &c, &(machine_request){ 0 }, &options);
    nsa_tensor *all[] = { &c.io.kv.k[0], &c.io.kv.v[0], &c.io.kv.k_cmp, &c.io.kv.v_cmp };
    for (int k = 0; k < 4; k++) {
      nsa_tensor good = *all[k];
      all[k]->shape[1] = good.shape[2], all[k]->shape[2] = good.shape[1];
      all[k]->stride[1] = good.stride[2], all[k]->stride[2] = good.stride[1];
      refuse(&c, run_decode, "HND",
             "has shape[1] = 2, which are its heads: where they lie before the tokens (HND), "
             "exchange the two middle dimensions");
      *all[k] = good;
      if (i) continue;
      all[k]->shape[1] *= 2;
      refuse(&c, run_prefill, "pages",
             k < 2 ? "has shape[1] = 32, expected 16: the tokens of a page, problem.page_size"
                   : "has shape[1] = 8, expected 4: the entries of a page");
      *all[k] = good;
    }
    end(&w, &c);
  }
}

/* ---- the batch ---- */

static void test_what_does_not_belong(void **state) {
  const kv_options options = { .page_size = 16 }, rows = { .page_size = NSA_NONE };
  kv_fixture w;
  kv_call c;
  begin(&w, &c, &(machine_request){ 0 }, &options);
  const nsa_batch good = c.batch;
  const run_fn runs[] = { run_decode, run_prefill, run_append };
  for (int i = 0; i < 3; i++) {
    c.batch.cu_kv = good.kv_len;
    refuse(&c, runs[i], "cu_kv", "batch.cu_kv is given, but batch.kv_len says");
    c.batch = good;
    c.batch.cu_cmp = good.kv_len;
    refuse(&c, runs[i], "cu_cmp", "batch.cu_cmp is given");
    c.batch = good;
    c.batch.page_indptr = good.kv_len;
    refuse(&c, runs[i], "two kinds of lists",
           "batch.block_table is given, but so are batch.page_indptr");
    c.batch.block_table.data = NULL;
    refuse(&c, runs[i], "half a kind of lists", "batch.page_indptr has shape[0]");
    c.batch = good;
    c.batch.slots = good.kv_len;
    refuse(&c, runs[i], "slots",
           "batch.slots is given, but the plan's cache has pages and no rings");
    c.batch = good;
    c.batch.cu_q.data = NULL; /* 7 and 3 tokens are 5 each */
    machine_expect("5 each", runs[i](&c), NSA_OK, NULL);
    c.batch.num_seqs = 3;
    c.batch.kv_len.shape[0] = c.batch.block_table.shape[0] = 3;
    refuse(&c, runs[i], "10 of 3", "batch.cu_q is missing, and 10 tokens are not the same number");
    c.batch = good;
    c.batch.num_seqs = KV_SEQS + 1;
    refuse(&c, runs[i], "sequences", "raise problem.max_seqs");
    c.batch.num_seqs = -1;
    refuse(&c, runs[i], "no sequence", "batch.num_seqs is -1");
    c.batch = good;
    c.batch.struct_size = 0;
    machine_expect("size", runs[i](&c), NSA_E_VERSION, "batch.struct_size");
    c.batch = good;
  }
  machine_expect("NULL batch", nsa_decode(w.decode, &w.exec, NULL, &c.io), NSA_E_ARG,
                 "NSA_OP_DECODE needs batch.kv_len");
  c.io.new_kv.k_cmp = w.cache.k_cmp;
  refuse(&c, run_append, "k_cmp", "io.new_kv.k_cmp is given, but the append makes");
  c.io.new_kv.k_cmp.data = NULL;
  w.exec.branches = 1;
  refuse(&c, run_append, "branches", "exec.branches is 0x1");
  w.exec.branches = 0;
  machine_expect("io", nsa_kv_append(w.append, &w.exec, &c.batch, NULL), NSA_E_ARG, "io is NULL");
  nsa_io least = NSA_IO_INIT; /* an append reads no more */
  least.kv = c.io.kv;
  least.new_kv = c.io.new_kv;
  machine_expect("least", nsa_kv_append(w.append, &w.exec, &c.batch, &least), NSA_OK, NULL);
  machine_expect("plan", nsa_decode(w.append, &w.exec, &c.batch, &c.io), NSA_E_ARG,
                 "made for problem.op NSA_OP_APPEND, this call runs NSA_OP_DECODE");
  machine_expect("plan", nsa_forward(w.decode, &w.exec, NULL, &c.io), NSA_E_ARG, "NSA_OP_FORWARD");
  end(&w, &c);
  begin(&w, &c, &(machine_request){ 0 }, &rows);
  c.batch.block_table = c.io.block_idx;
  refuse(&c, run_decode, "table", "batch.block_table is given, but the plan's cache has no pages");
  end(&w, &c);
}

/* A cache's arrays where there is no cache. */
static void test_forward(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ 0 });
  nsa_batch *b = &m.toy.batch;
  nsa_tensor *fields[] = { &b->kv_len,       &b->block_table, &b->page_indptr,
                           &b->page_indices, &b->slots,       &b->slot_mapping };
  static const char *const names[] = { "kv_len",       "block_table", "page_indptr",
                                       "page_indices", "slots",       "slot_mapping" };
  for (int i = 0; i < 6; i++) {
    char text[64];
    snprintf(text, sizeof text, "batch.%s is given, but NSA_OP_FORWARD has no cache", names[i]);
    *fields[i] = b->cu_q;
    machine_expect(text, nsa_forward(m.plan, &m.exec, b, &m.toy.io), NSA_E_ARG, text);
    *fields[i] = (nsa_tensor){ 0 };
  }
  m.toy.io.k_norm = m.toy.io.kv.k[0];
  machine_expect("coarse keys", nsa_forward(m.plan, &m.exec, b, &m.toy.io), NSA_E_ARG,
                 "io.k_norm is given, but NSA_OP_FORWARD has no cache");
  machine_free(&m);
}

/* ---- values ---- */

static void bad_value(kv_call *c, run_fn run, int32_t *at, int32_t value, const char *text) {
  int32_t good = *at;
  *at = value;
  refuse(c, run, text, text);
  *at = good;
}

static void test_values(void **state) {
  static const kv_options cases[] = { { .page_size = 16 }, { .page_size = 16, .lists = true } };
  kv_fixture w;
  kv_call c;
  for (int i = 0; i < 2; i++) {
    begin(&w, &c, &(machine_request){ 0 }, &cases[i]);
    const run_fn runs[] = { run_decode, run_prefill, run_append };
    char text[80];
    for (int k = 0; k < 3; k++) {
      int32_t *len = toy_ints(&c.batch.kv_len), *cu_q = toy_ints(&c.batch.cu_q);
      bad_value(&c, runs[k], &len[1], -1, "batch.kv_len[1] is -1");
      bad_value(&c, runs[k], &len[0], KV_MAX_LEN + 1, "raise problem.max_kv_len");
      bad_value(&c, runs[k], &cu_q[0], 1, "batch.cu_q[0] is 1");
      bad_value(&c, runs[k], &cu_q[2], 11, "batch.cu_q[2] is 11");
      bad_value(&c, runs[k], &cu_q[1], -1, "batch.cu_q[1] is -1");
      int32_t *page = toy_ints(cases[i].lists ? &c.batch.page_indices : &c.batch.block_table);
      snprintf(text, sizeof text, "batch.%s: page 1 of sequence 0 is 64, expected one of",
               cases[i].lists ? "page_indices" : "block_table");
      bad_value(&c, runs[k], &page[1], KV_PAGES, text);
      bad_value(&c, runs[k], &page[2], -1, "page 2 of sequence 0 is -1");
      if (cases[i].lists) {
        int32_t *starts = toy_ints(&c.batch.page_indptr);
        bad_value(&c, runs[k], &starts[1], 2,
                  "batch.page_indptr: sequence 0 has 2 pages, its 37 tokens need 3: lengthen");
        bad_value(&c, runs[k], &starts[2], 99, "batch.page_indptr[2] is 99");
        bad_value(&c, runs[k], &starts[0], 1, "batch.page_indptr[0] is 1");
      } else {
        bad_value(&c, runs[k], &len[0], KV_MAX_LEN, "page 3 of sequence 0 is 2147483632");
        c.batch.block_table.shape[1] = 2;
        refuse(&c, runs[k], "narrow",
               "batch.block_table: sequence 0 has 2 pages, its 37 tokens need 3: widen the table, "
               "or lower batch.kv_len[0]");
        c.batch.block_table.shape[1] = KV_MAX_LIST;
      }
    }
    end(&w, &c);
  }
  static const int32_t nine[] = { 9, 1 }, at[] = { 28, 19 };
  begin(&w, &c, &(machine_request){ 0 }, &cases[0]);
  kv_call_free(&c);
  kv_call_init(&c, &w, nine, at);
  refuse(&c, run_decode, "q_len", "gives sequence 0 9 tokens, the plan was made for at most 8");
  c.batch.cu_q.data = NULL;
  machine_expect("5 each", run_decode(&c), NSA_OK, NULL);
  c.batch.num_seqs = 1;
  c.batch.kv_len.shape[0] = c.batch.block_table.shape[0] = 1;
  refuse(&c, run_decode, "q_len", "every sequence has 10 new tokens");
  end(&w, &c);
}

static void test_slots(void **state) {
  const kv_options rows = { .page_size = NSA_NONE, .slots = true },
                   rings = { .page_size = 16, .ring = true, .slots = true };
  kv_fixture w;
  kv_call c;
  begin(&w, &c, &(machine_request){ 0 }, &rows);
  bad_value(&c, run_decode, toy_ints(&c.batch.slots), KV_SEQS + 1, "batch.slots[0] is 5");
  bad_value(&c, run_decode, toy_ints(&c.batch.slots), -1, "batch.slots[0] is -1");
  bad_value(&c, run_append, toy_ints(&c.batch.slots), -1, "batch.slots[0] is -1");
  toy_ints(&c.batch.kv_len)[0] = 0; /* a padded row has none */
  toy_ints(&c.batch.slots)[0] = -1;
  machine_expect("padded", run_decode(&c), NSA_OK, NULL);
  c.batch.slots.shape[0] = 1;
  refuse(&c, run_append, "slots", "batch.slots has shape[0] = 1, expected [2]");
  c.batch.slots.dtype = NSA_I64;
  refuse(&c, run_append, "slots", "batch.slots has dtype i64, expected i32");
  end(&w, &c);
  begin(&w, &c, &(machine_request){ .per_branch = true }, &rings);
  bad_value(&c, run_decode, toy_ints(&c.batch.slots), KV_SEQS + 1,
            "batch.slots[0] is 5, expected one of io.kv's 5 rows");
  end(&w, &c);
}

/* Sequences that share memory hold more tokens together than there is memory for. */
static void test_many_alike(void **state) {
  enum { SEQS = 131072, LEN = 1 << 30, HEADS = 64, DIM = 256 };
  static const char yaml[] =
      "nsa: 1\n"
      "model: {heads: 64, kv_heads: 64, head_dim: 256, window: 8,\n"
      "  compress: {block: 1, stride: 1},\n"
      "  select: {block: 16, count: 2, init: 1, local: 1}, gate: weights, kv_sharing: shared}\n"
      "runtime: {device: cpu}\n";
  static int32_t len[SEQS], slots[SEQS], cu_q[SEQS + 1];
  static uint16_t row[HEADS * DIM], o[HEADS * DIM];
  static float gates[HEADS * 3];
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_io io = NSA_IO_INIT;
  nsa_ctx *ctx = machine_context(yaml, (const char *const[]){ NULL }, false);
  nsa_problem problem = INIT(nsa_problem, .op = NSA_OP_DECODE, .max_seqs = SEQS, .max_kv_len = LEN,
                             .page_size = NSA_NONE);
  nsa_plan *plan = machine_plan(ctx, &problem);
  machine_add_workspace(plan, &exec);
  for (int s = 0; s < SEQS; s++) len[s] = LEN, cu_q[s + 1] = 1;
  nsa_batch batch =
      INIT(nsa_batch, .num_seqs = SEQS, .kv_len = (nsa_tensor){ len, { SEQS }, { 1 }, 1, NSA_I32 },
           .slots = (nsa_tensor){ slots, { SEQS }, { 1 }, 1, NSA_I32 },
           .cu_q = (nsa_tensor){ cu_q, { SEQS + 1 }, { 1 }, 1, NSA_I32 });
  io.q = io.o = (nsa_tensor){ row, { 1, HEADS, DIM }, { HEADS * DIM, DIM, 1 }, 3, NSA_BF16 };
  io.o.data = o;
  io.kv.k[0] = (nsa_tensor){ row, { 1, LEN, HEADS, DIM }, { HEADS * DIM, 0, DIM, 1 }, 4, NSA_BF16 };
  io.kv.v[0] = io.kv.k_cmp = io.kv.v_cmp = io.kv.k[0];
  io.gate.value = (nsa_tensor){ gates, { 1, HEADS, 3 }, { HEADS * 3, 3, 1 }, 3, NSA_F32 };
  machine_expect("alike", nsa_decode(plan, &exec, &batch, &io), NSA_E_NOMEM, "compressed keys");
  free(exec.workspace);
  nsa_plan_destroy(plan);
  nsa_destroy(ctx);
}

static void test_slot_mapping(void **state) {
  static const kv_options cases[] = { { .page_size = 16 }, { .page_size = NSA_NONE } };
  static const int64_t bad[] = { -2, INT64_MIN, INT64_MAX, 0 };
  for (int i = 0; i < 2; i++) {
    kv_fixture w;
    kv_call c;
    int64_t slot[10];
    begin(&w, &c, &(machine_request){ 0 }, &cases[i]);
    int64_t size = i ? KV_MAX_LEN : 16;
    for (int t = 0; t < 10; t++) {
      int s = t >= 7, at = s ? 17 + t - 7 : 30 + t;
      slot[t] = i ? s * size + at : w.page[s][at / 16] * size + at % 16;
    }
    c.batch.slot_mapping =
        (nsa_tensor){ .data = slot, .ndim = 1, .dtype = NSA_I64, .shape = { 10 }, .stride = { 1 } };
    machine_expect("good", run_append(&c), NSA_OK, NULL);
    machine_expect("not read", run_decode(&c), NSA_OK, NULL);
    for (int k = 0; k < 4; k++) {
      int64_t good = slot[8];
      slot[8] = bad[k];
      refuse(&c, run_append, "slot", "batch.slot_mapping[8] is");
      slot[8] = good;
    }
    toy_ints(&c.batch.kv_len)[1] = 2; /* 3 new tokens: the first stands before the sequence */
    refuse(&c, run_append, "before", "batch.slot_mapping[7] is");
    toy_ints(&c.batch.kv_len)[1] = 20;
    c.batch.slot_mapping.shape[0] = 9;
    refuse(&c, run_append, "shape", "batch.slot_mapping has shape[0] = 9");
    c.batch.slot_mapping.dtype = NSA_I32;
    refuse(&c, run_append, "dtype", "batch.slot_mapping has dtype i32, expected i64");
    end(&w, &c);
  }
}

/* ---- what a GPU does ---- */

static nsa_problem gpu_problem(int32_t op) {
  nsa_problem p = INIT(nsa_problem, .op = op);
  p.max_tokens = p.max_kv_len = 64;
  p.max_seqs = 2;
  p.page_size = 16;
  return p;
}

/* The kernels of sm_90 serve a prefill, also of a window in rings; each of the others says why not. */
static void test_prefill(void **state) {
  machine m;
  char text[8192];
  nsa_caps caps = NSA_CAPS_INIT;
  machine_init(&m, &(machine_request){ .gpu = true });
  nsa_problem p = gpu_problem(NSA_OP_PREFILL);
  machine_expect("query", nsa_query(m.ctx, &p, &caps), NSA_OK, NULL);
  assert_true(caps.supported);
  assert_true(caps.workspace_bytes > 0);
  assert_string_equal(caps.variants,
                      "attend_compressed=attend_compressed_sm90 importance=importance_sm80 "
                      "select=select_topn attend_selected=attend_selected_sm90_mma "
                      "attend_window=attend_window_sm90");
  nsa_explain(m.ctx, &p, text, sizeof text);
  assert_non_null(strstr(text, "    attend_selected_kv_stationary_sm90: no\n"));
  assert_non_null(strstr(text, "      keys and values lie in a cache: it reads packed tensors\n"));
  nsa_plan *plan = machine_plan(m.ctx, &p);
  nsa_plan_destroy(plan);
  machine_free(&m);
  machine_init(&m, &(machine_request){ .gpu = true, .per_branch = true });
  p.window_ring = 1;
  machine_expect("query", nsa_query(m.ctx, &p, &caps), NSA_OK, NULL);
  assert_non_null(strstr(caps.variants, "attend_window=attend_window_sm90"));
  machine_free(&m);
}

static void test_gpu(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ .gpu = true });
  for (int32_t op = NSA_OP_PREFILL; op <= NSA_OP_APPEND; op++) {
    uint64_t bytes;
    nsa_problem p = gpu_problem(op);
    machine_expect("bytes", nsa_kv_page_bytes(m.ctx, &p, &bytes), NSA_OK, NULL);
    assert_int_equal(bytes, (16 + 4) * 160); /* bf16 */
  }
  machine_free(&m);
}

/* Heads of any width and any number of drafts have tiles. */
static void test_wide_heads(void **state) {
  static const int32_t dims[][2] = { { 256, 256 }, { 256, 192 }, { 192, 256 }, { 128, 256 } };
  for (int i = 0; i < 4 * 3; i++) {
    machine m;
    machine_overrides o;
    char yaml[400], text[4096];
    nsa_caps caps = NSA_CAPS_INIT;
    snprintf(yaml, sizeof yaml,
             "nsa: 1\nmodel: {heads: 64, kv_heads: %d, head_dim_qk: %d, head_dim_v: %d}\n",
             1 << 2 * (i / 4), dims[i % 4][0], dims[i % 4][1]);
    machine_init(&m, &(machine_request){ .gpu = true });
    machine_overrides_init(&o, m.dir, NULL);
    nsa_ctx *ctx = machine_context(yaml, o.list, true);
    for (int32_t q_len = 1; q_len <= 16; q_len *= 4) {
      nsa_problem p = gpu_problem(NSA_OP_DECODE);
      p.max_q_len = q_len;
      machine_expect("query", nsa_query(ctx, &p, &caps), NSA_OK, NULL);
      nsa_explain(ctx, &p, text, sizeof text);
      if (!caps.supported) fail_msg("%s%s", yaml, text);
    }
    nsa_destroy(ctx);
    machine_free(&m);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_normalized),
    cmocka_unit_test(test_indexed),
    cmocka_unit_test(test_each_tensor),
    cmocka_unit_test(test_overlaps),
    cmocka_unit_test(test_rows),
    cmocka_unit_test(test_shapes),
    cmocka_unit_test(test_what_does_not_belong),
    cmocka_unit_test(test_forward),
    cmocka_unit_test(test_values),
    cmocka_unit_test(test_slots),
    cmocka_unit_test(test_many_alike),
    cmocka_unit_test(test_slot_mapping),
    cmocka_unit_test(test_prefill),
    cmocka_unit_test(test_gpu),
    cmocka_unit_test(test_wide_heads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
