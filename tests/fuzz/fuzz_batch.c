/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any values of a batch's arrays over a cache on the CPU device: refused as NSA_E_ARG with a text,
 * or computed, and nothing outside of the tensors is touched, which the sanitizers see.
 *
 * Input: a byte for the form of the cache, one for the sequences, one for the tokens, one for the
 * arrays that are given; then the values, each a byte below 0xf0 that stands for itself, or another
 * byte and four of an int32. What is missing is 0.
 */
#include "fuzz.h"

#include "plan/plan.h"
#include "ranks/comm_internal.h"

#include <nsa/nsa.h>
#include <stdbool.h>

#include <stdlib.h>
#include <string.h>

enum { HQ = 2, HKV = 1, DIM = 16, STRIDE = 4, P = 16, N = 6, ROWS = 3, RING = 17, MAX_LEN = 64 };
enum { ENTRY_PAGES = 4, RANKS = 2, RANK = 1 };
enum { SEQS = 3, TOKENS = 12, FORMS = 4 };

static const char model[] =
    "nsa: 1\n"
    "model: {heads: 2, kv_heads: 1, head_dim: 16, kv_sharing: per_branch, dtype: f32, window: 12,\n"
    "  compress: {block: 8, stride: 4}, select: {block: 16, count: 2, init: 1, local: 1}}\n"
    "runtime: {device: cpu}\n";

static void require(int condition) {
  if (!condition) abort();
}

/* ---- the input ---- */

typedef struct input {
  const uint8_t *data;
  size_t size;
} input;

static uint8_t take_byte(input *in) { return in->size ? (in->size--, *in->data++) : 0; }

static int32_t take_value(input *in) {
  int32_t value = take_byte(in);
  if (value < 0xf0) return value;
  uint32_t bits = 0;
  for (int i = 0; i < 4; i++) bits |= (uint32_t)take_byte(in) << 8 * i;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* ---- tensors; those of the batch last for one input ---- */

static nsa_tensor tensor(int32_t dtype, int32_t ndim, int64_t a, int64_t b, int64_t c, int64_t d) {
  nsa_tensor t = { .shape = { a, b, c, d }, .ndim = ndim, .dtype = dtype };
  int64_t count = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    t.stride[i] = count;
    count *= t.shape[i];
  }
  t.data = calloc((size_t)count + !count, dtype == NSA_I64 ? 8 : 4);
  require(t.data != NULL);
  return t;
}

static nsa_tensor take_array(input *in, int32_t dtype, int32_t ndim, int64_t a, int64_t b) {
  nsa_tensor t = tensor(dtype, ndim, a, b, 0, 0);
  for (int64_t i = 0; i < a * (ndim > 1 ? b : 1); i++)
    if (dtype == NSA_I64)
      ((int64_t *)t.data)[i] = take_value(in);
    else
      ((int32_t *)t.data)[i] = take_value(in);
  return t;
}

static nsa_tensor rows_of(nsa_tensor t, int64_t rows) {
  t.shape[0] = rows;
  return t;
}

/* ---- one form of the cache: pages, pages and rings, rows, pages over ranks ---- */

typedef struct fixture {
  bool has_pages, has_rings, has_ranks; /* over ranks there is no prefill */
  nsa_comm *comm;
  nsa_plan *append, *decode, *prefill;
  nsa_io io;
} fixture;

static nsa_plan *plan_of(nsa_ctx *ctx, const fixture *w, int32_t op) {
  nsa_problem p = NSA_PROBLEM_INIT;
  nsa_plan *plan = NULL;
  p.op = op;
  p.max_seqs = SEQS;
  p.max_tokens = TOKENS;
  p.max_q_len = 6;
  p.max_kv_len = MAX_LEN;
  p.page_size = w->has_pages ? P : NSA_NONE;
  p.window_ring = w->has_rings;
  p.ranks = w->has_ranks ? RANKS : 0;
  p.unit_tokens = w->has_ranks ? P : 0;
  require(nsa_plan_create(ctx, &p, NULL, NULL, &plan) == NSA_OK);
  return plan;
}

/* A transport that takes this rank's data for those of all. */
static nsa_status gather(void *user, const void *send, void *recv, uint64_t bytes,
                         nsa_stream stream) {
  (void)user, (void)stream;
  for (int r = 0; r < RANKS; r++) memmove((char *)recv + (uint64_t)r * bytes, send, bytes);
  return NSA_OK;
}

static nsa_status exchange(void *user, const nsa_part *send, int32_t send_count,
                           const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  (void)user, (void)send, (void)send_count, (void)recv, (void)recv_count, (void)stream;
  return NSA_E_INTERNAL;
}

static void open_comm(nsa_ctx *ctx, fixture *w) {
  nsa_comm_ops ops = NSA_COMM_OPS_INIT;
  ops.rank = RANK;
  ops.size = RANKS;
  ops.exchange = exchange;
  ops.all_gather = gather;
  require(nsa_comm_create(ctx, &ops, NULL, &w->comm) == NSA_OK);
  nsai_agreed_add(&w->comm->plans, w->decode->digest);
}

static void open_fixture(nsa_ctx *ctx, int form, fixture *w) {
  w->has_pages = form != 2;
  w->has_ranks = form == 3;
  w->has_rings = form == 1;
  w->append = plan_of(ctx, w, NSA_OP_APPEND);
  w->decode = plan_of(ctx, w, NSA_OP_DECODE);
  if (w->has_ranks)
    open_comm(ctx, w);
  else
    w->prefill = plan_of(ctx, w, NSA_OP_PREFILL);
  w->io = (nsa_io)NSA_IO_INIT;
  int64_t pages = w->has_pages ? N : ROWS, size = w->has_pages ? P : MAX_LEN;
  for (int b = 0; b < NSA_BRANCHES; b++) {
    bool ring = w->has_rings && b == NSA_WIN;
    for (int side = 0; side < 2; side++) {
      nsa_kv *const kv[] = { &w->io.kv, &w->io.new_kv };
      nsa_tensor *const at[] = { side ? &kv[0]->v[b] : &kv[0]->k[b],
                                 side ? &kv[1]->v[b] : &kv[1]->k[b] };
      *at[0] = tensor(NSA_F32, 4, ring ? ROWS : pages, ring ? RING : size, HKV, DIM);
      *at[1] = tensor(NSA_F32, 3, TOKENS, HKV, DIM, 0);
    }
  }
  if (w->has_ranks) pages = ENTRY_PAGES;
  w->io.kv.k_cmp = tensor(NSA_F32, 4, pages, size / STRIDE, HKV, DIM);
  w->io.kv.v_cmp = tensor(NSA_F32, 4, pages, size / STRIDE, HKV, DIM);
  w->io.q = tensor(NSA_F32, 3, TOKENS, HQ, DIM, 0);
  w->io.o = tensor(NSA_F32, 3, TOKENS, HQ, DIM, 0);
  w->io.gate.value = tensor(NSA_F32, 3, TOKENS, HQ, 3, 0);
}

static fixture *find_fixture(int form) {
  static fixture fixtures[FORMS];
  static nsa_ctx *ctx;
  nsa_options options = NSA_OPTIONS_INIT;
  options.yaml_text = model;
  if (!ctx) require(nsa_create(NULL, &options, &ctx) == NSA_OK);
  if (!fixtures[form].append) open_fixture(ctx, form, &fixtures[form]);
  return &fixtures[form];
}

/* ---- a batch ---- */

enum { GIVES_CU_Q = 1, GIVES_LISTS = 2, GIVES_SLOTS = 4, GIVES_MAPPING = 8 };

static void take_batch(input *in, const fixture *w, int32_t seqs, int64_t tokens, nsa_batch *b) {
  int given = take_byte(in), width = given >> 4 & 7;
  *b = (nsa_batch)NSA_BATCH_INIT;
  b->num_seqs = seqs;
  b->kv_len = take_array(in, NSA_I32, 1, seqs, 0);
  if (given & GIVES_CU_Q) b->cu_q = take_array(in, NSA_I32, 1, seqs + 1, 0);
  if (w->has_pages && given & GIVES_LISTS) {
    b->page_indptr = take_array(in, NSA_I32, 1, seqs + 1, 0);
    b->page_indices = take_array(in, NSA_I32, 1, width * seqs, 0);
  } else if (w->has_pages) {
    b->block_table = take_array(in, NSA_I32, 2, seqs, width);
  }
  if (w->has_ranks) b->entry_table = take_array(in, NSA_I32, 2, seqs, width);
  if (given & GIVES_SLOTS) b->slots = take_array(in, NSA_I32, 1, seqs, 0);
  if (given & GIVES_MAPPING) b->slot_mapping = take_array(in, NSA_I64, 1, tokens, 0);
}

static void free_batch(nsa_batch *b) {
  nsa_tensor *const all[] = { &b->kv_len,       &b->cu_q,  &b->page_indptr,  &b->block_table,
                              &b->page_indices, &b->slots, &b->slot_mapping, &b->entry_table };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
}

static bool names_field(const char *text) {
  return strstr(text, "batch.") || strstr(text, "problem.");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  input in = { data, size };
  const fixture *w = find_fixture(take_byte(&in) % FORMS);
  int32_t seqs = 1 + take_byte(&in) % SEQS;
  int64_t tokens = take_byte(&in) % (TOKENS + 1);
  /* The CPU device asks for it, and leaves it alone. */
  static _Alignas(256) char workspace[1 << 16];
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_batch batch;
  nsa_io io = w->io;
  exec.workspace = workspace;
  exec.workspace_bytes = sizeof workspace;
  take_batch(&in, w, seqs, tokens, &batch);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    io.new_kv.k[b] = rows_of(io.new_kv.k[b], tokens);
    io.new_kv.v[b] = rows_of(io.new_kv.v[b], tokens);
  }
  io.q = rows_of(io.q, tokens);
  io.o = rows_of(io.o, tokens);
  io.gate.value = rows_of(io.gate.value, tokens);
  exec.comm = w->comm;
  nsa_status got[] = { nsa_kv_append(w->append, &exec, &batch, &io),
                       nsa_decode(w->decode, &exec, &batch, &io), NSA_OK };
  got[2] = w->has_ranks ? got[1] : nsa_prefill(w->prefill, &exec, &batch, &io);
  for (size_t i = 0; i < sizeof got / sizeof *got; i++)
    require(got[i] == NSA_OK || (got[i] == NSA_E_ARG && names_field(nsa_last_error())));
  require(got[1] == got[2]); /* both attend, and nothing of them differs here */
  free_batch(&batch);
  return 0;
}
