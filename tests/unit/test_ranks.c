/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_forward and nsa_backward over ranks that are threads on the CPU device, beside one run of all
 * tokens: the same bits of every output and gradient of query rows; gradients of K, V and weights to
 * 1e-6; the same bits again in every run. Ranks also play hosts, whose bytes are counted. And what is
 * refused.
 */
#include "support/cmocka_all.h"

#include "base/duration.h"
#include "gradients.h"
#include "plan/plan.h"
#include "ranks/comm.h"
#include "ranks/shard.h"
#include "run/check_ranks.h"

#include <math.h>
#include <pthread.h>
#include <unistd.h>

#define MOST_RANKS 16
#define MOST_OWNED 128
#define GATE_CHANNELS 24
#define ALIGNMENT 16

static const int32_t lengths[] = { 203, 37, 0, 130, 3 };
#define SEQS 5
#define TOKENS 373
#define LONGEST 203

/* A transport between a rank and its loopback communicator, which counts, and at some call fails. */
enum { WIRE_FAILS = 1, WIRE_STALLS = 2 };
typedef struct wire {
  nsa_comm *inner;
  int32_t rank;
  int32_t host_ranks; /* by which it counts */
  int32_t calls;
  bool runs;                /* not nsa_comm_agree, in which each rank tells all others */
  uint64_t inside, between; /* bytes sent */
  bool strays;              /* sends to another index on another host */
  int32_t fault, at_call;   /* WIRE_*, in this call, from 1 on */
} wire;

/* A model, and what is cut into ranks. */
typedef struct world {
  machine_request request;
  nsa_ctx *ctx;
  toy toy; /* all tokens in one place */
  nsa_grads grads;
  nsa_shard *shard;
  int32_t ranks, layout, alignment;
  nsa_plan *forward, *backward;
  const nsa_piece *given;
  int64_t given_count;
  nsa_comm *comms[MOST_RANKS];
  int32_t host_ranks; /* 0: found; all share this host */
  bool wired;         /* by wires */
  int32_t counted;    /* which take so many ranks for a host */
  wire wires[MOST_RANKS];
  int32_t timeout_ms;
  bool accumulate;
} world;

/* One rank: a thread. */
typedef struct rank_state {
  world *w;
  int32_t rank;
  nsa_io io;
  nsa_grads grads;
  void *owned[MOST_OWNED];
  int owned_count;
  nsa_status status;
  char error[256];
} rank_state;

/* ---- all tokens in one place ---- */

static void make_gate(world *w) {
  toy *t = &w->toy;
  const int32_t dtype = t->model.dtype;
  const int64_t out = t->model.heads * 3, h = w->request.gate_hidden;
  if (w->request.gate != NSAI_GATE_MLP) return;
  t->io.gate = (nsa_gate){ .x = toy_tensor(t, dtype, 2, t->tokens, GATE_CHANNELS, 0),
                           .w2 = toy_tensor(t, dtype, 2, h ? h : GATE_CHANNELS, out, 0),
                           .b2 = toy_tensor(t, dtype, 1, out, 0, 0) };
  toy_randomize(t, &t->io.gate.x);
  toy_randomize(t, &t->io.gate.w2);
  toy_randomize(t, &t->io.gate.b2);
  if (!h) return;
  t->io.gate.w1 = toy_tensor(t, dtype, 2, GATE_CHANNELS, h, 0);
  t->io.gate.b1 = toy_tensor(t, dtype, 1, h, 0, 0);
  toy_randomize(t, &t->io.gate.w1);
  toy_randomize(t, &t->io.gate.b1);
}

static void make_entries(world *w) {
  toy *t = &w->toy;
  int32_t blocks[SEQS], all = 0;
  if (w->request.phi != NSAI_PHI_EXTERNAL) return;
  if (w->request.per_branch) t->io.kv.k[0] = t->io.kv.v[0] = (nsa_tensor){ 0 }; /* not read */
  for (int s = 0; s < SEQS; s++)
    all += blocks[s] = (int32_t)nsai_block_count(&t->model, lengths[s]);
  t->batch.cu_cmp = toy_offsets(t, SEQS, blocks);
  t->io.kv.k_cmp = toy_tensor(t, t->model.dtype, 3, all, t->model.kv_heads, t->model.head_dim_qk);
  t->io.kv.v_cmp = toy_tensor(t, t->model.dtype, 3, all, t->model.kv_heads, t->model.head_dim_v);
  toy_randomize(t, &t->io.kv.k_cmp);
  toy_randomize(t, &t->io.kv.v_cmp);
}

static nsa_problem problem_of(const world *w, int32_t op) {
  return INIT(nsa_problem, .op = op, .max_tokens = TOKENS, .max_seqs = SEQS,
              .selection = w->request.selection,
              .index_lse = w->request.indexed && op == NSA_OP_FORWARD);
}

static void run_whole(world *w) {
  const int32_t ops[] = { NSA_OP_FORWARD, NSA_OP_BACKWARD };
  for (int i = 0; i < 2; i++) {
    const nsa_problem problem = problem_of(w, ops[i]);
    nsa_plan *plan = machine_plan(w->ctx, &problem);
    nsa_exec exec = NSA_EXEC_INIT;
    machine_add_workspace(plan, &exec);
    machine_expect("whole",
                   i ? nsa_backward(plan, &exec, &w->toy.batch, &w->toy.io, &w->grads)
                     : nsa_forward(plan, &exec, &w->toy.batch, &w->toy.io),
                   NSA_OK, NULL);
    free(exec.workspace);
    nsa_plan_destroy(plan);
  }
}

static void world_init(world *w, const machine_request *request) {
  char yaml[1024];
  const char *const overrides[] = { request->override, NULL };
  pair pairs[MAX_PAIRS];
  nsai_model g = toy_model(request->phi);
  memset(w, 0, sizeof *w);
  w->alignment = ALIGNMENT;
  w->request = *request;
  machine_yaml(request, yaml, sizeof yaml);
  w->ctx = machine_context(yaml, overrides, false);
  g.dtype = request->dtype ? request->dtype : NSA_F32;
  g.per_branch = request->per_branch;
  g.keys_only = request->keys_only;
  g.pool = request->pool;
  if (request->indexed) g.by = NSAI_BY_INDEX, g.index_heads = 2, g.index_dim = 40;
  if (request->normalized) g.norm_block = 16, g.norm_stride = 8;
  g.gate = request->gate;
  g.gate_hidden = request->gate_hidden;
  g.gate_channels = request->gate == NSAI_GATE_MLP ? GATE_CHANNELS : 0;
  toy_init(&w->toy, &g, SEQS, lengths, lengths);
  make_gate(w);
  make_entries(w);
  if (request->indexed) w->toy.io.index_lse = toy_tensor(&w->toy, NSA_F32, 2, TOKENS, 2, 0);
  w->grads = make_grads(&w->toy, NSA_F32);
  const int count = list_pairs(&w->toy.io, &w->grads, pairs);
  for (int i = 0; i < count; i++) /* what a run adds to, if it does */
    memset(pairs[i].gradient->data, 0, (size_t)toy_count(pairs[i].gradient) * 4);
  run_whole(w);
}

static void world_free(world *w) {
  toy_free(&w->toy);
  nsa_destroy(w->ctx);
}

/* ---- cutting ---- */

/* Frameworks give no memory to a tensor without elements. */
static void *own(rank_state *s, size_t bytes) {
  if (!bytes) return NULL;
  void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
  assert_true(memory && s->owned_count < MOST_OWNED);
  memset(memory, 0xff, bytes);
  return s->owned[s->owned_count++] = memory;
}

static int64_t size_of(const nsa_tensor *t) {
  return t->dtype == NSA_F32 || t->dtype == NSA_I32 ? 4 : 2;
}

/* A row of the whole tensor for each local row, or with `back` the other way: calls fn(whole row, local
 * row, count). */
typedef void (*row_fn)(void *user, int64_t whole, int64_t local, int64_t count);
static int64_t for_rows(const world *w, int32_t rank, bool entries, row_fn fn, void *user) {
  const nsa_piece *piece;
  int32_t count;
  int64_t local = 0;
  machine_expect("pieces", nsa_shard_pieces(w->shard, rank, &piece, &count), NSA_OK, NULL);
  for (int32_t i = 0; i < count; i++) {
    const nsai_model *g = &w->toy.model;
    const int32_t *cu = toy_ints(entries ? &w->toy.batch.cu_cmp : &w->toy.batch.cu_q);
    int64_t begin = piece[i].begin, end = begin + piece[i].length;
    if (entries) begin = nsai_block_count(g, begin), end = nsai_block_count(g, end);
    if (fn && end > begin) fn(user, cu[piece[i].sequence] + begin, local, end - begin);
    local += end - begin;
  }
  return local;
}

typedef struct copy {
  const nsa_tensor *whole;
  nsa_tensor *local;
} copy;

static void copy_rows(void *user, int64_t whole, int64_t local, int64_t count) {
  const copy *c = user;
  const int64_t size = size_of(c->whole), row = c->whole->stride[0] * size;
  for (int64_t i = 0; i < count; i++)
    memcpy((char *)c->local->data + (local + i) * c->local->stride[0] * size,
           (const char *)c->whole->data + (whole + i) * row, (size_t)row);
}

/* This rank's rows of a tensor; `pad` elements lie between two of them. */
static void cut(rank_state *s, const nsa_tensor *whole, bool entries, int64_t pad,
                nsa_tensor *local) {
  *local = *whole;
  if (!whole->data) return;
  copy c = { whole, local };
  local->shape[0] = for_rows(s->w, s->rank, entries, NULL, NULL);
  local->stride[0] += pad;
  local->data = own(s, (size_t)(local->shape[0] * local->stride[0] * size_of(whole)));
  for_rows(s->w, s->rank, entries, copy_rows, &c);
}

/* An output of the shape of this rank's rows, all bits set. */
static void blank(rank_state *s, const nsa_tensor *whole, bool entries, nsa_tensor *local) {
  *local = *whole;
  if (!whole->data) return;
  local->shape[0] = for_rows(s->w, s->rank, entries, NULL, NULL);
  local->data = own(s, (size_t)(local->shape[0] * local->stride[0] * size_of(whole)));
}

static void cut_io(rank_state *s) {
  const nsa_io *from = &s->w->toy.io;
  nsa_io *io = &s->io;
  const bool given = s->w->request.selection == NSA_SELECT_BLOCKS;
  *io = *from;
  cut(s, &from->q, false, 8, &io->q);
  for (int p = 0; p < NSA_BRANCHES; p++) {
    cut(s, &from->kv.k[p], false, 16 * p, &io->kv.k[p]);
    cut(s, &from->kv.v[p], false, p ? 0 : 24, &io->kv.v[p]);
    blank(s, &from->o_branch[p], false, &io->o_branch[p]);
    blank(s, &from->lse[p], false, &io->lse[p]);
  }
  cut(s, &from->kv.k_cmp, true, 0, &io->kv.k_cmp);
  cut(s, &from->kv.v_cmp, true, 8, &io->kv.v_cmp);
  cut(s, &from->gate.value, false, 0, &io->gate.value);
  cut(s, &from->gate.x, false, 1, &io->gate.x);
  cut(s, &from->index_q, false, 0, &io->index_q);
  cut(s, &from->k_idx, false, 0, &io->k_idx);
  blank(s, &from->o, false, &io->o);
  blank(s, &from->index_lse, false, &io->index_lse);
  if (given)
    cut(s, &from->block_idx, false, 0, &io->block_idx);
  else
    blank(s, &from->block_idx, false, &io->block_idx);
}

/* Whether a gradient belongs to a rank's rows; else it is a weight's. */
static bool has_rows(const char *name, bool *entries) {
  static const char *const rows[] = { "q",    "k[0]",  "k[1]",  "k[2]",       "v[0]",  "v[1]",
                                      "v[2]", "k_cmp", "v_cmp", "gate.value", "gate.x" };
  *entries = strstr(name, "_cmp") != NULL;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (!strcmp(name, rows[i])) return true;
  return false;
}

static void cut_grads(rank_state *s) {
  nsa_grads *whole = &s->w->grads;
  pair from[MAX_PAIRS], to[MAX_PAIRS];
  s->grads = (nsa_grads)NSA_GRADS_INIT;
  s->grads.accumulate = s->w->accumulate;
  cut(s, &whole->d_o, false, 0, &s->grads.d_o);
  const int count = list_pairs(&s->w->toy.io, whole, from);
  list_pairs(&s->w->toy.io, &s->grads, to);
  for (int i = 0; i < count; i++) {
    bool entries;
    *to[i].gradient = *from[i].gradient;
    if (has_rows(from[i].name, &entries))
      blank(s, from[i].gradient, entries, to[i].gradient);
    else
      to[i].gradient->data = own(s, (size_t)toy_count(from[i].gradient) * 4);
    if (s->grads.accumulate) memset(to[i].gradient->data, 0, (size_t)toy_count(to[i].gradient) * 4);
  }
}

/* ---- ranks ---- */

static nsa_status run_rank(rank_state *s) {
  world *w = s->w;
  nsa_status status = NSA_OK;
  const nsa_plan *plans[] = { w->forward, w->backward };
  nsa_batch batch = INIT(nsa_batch, .shard = w->shard);
  w->wires[s->rank].runs = false;
  status = nsa_comm_agree(w->comms[s->rank], plans, 2, w->shard, 0);
  w->wires[s->rank].runs = true;
  for (int i = 0; i < 2 && !status; i++) {
    nsa_exec exec = INIT(nsa_exec, .comm = w->comms[s->rank]);
    machine_add_workspace(plans[i], &exec);
    status = i ? nsa_backward(plans[i], &exec, &batch, &s->io, &s->grads)
               : nsa_forward(plans[i], &exec, &batch, &s->io);
    free(exec.workspace);
  }
  return status;
}

static void *rank_thread(void *user) {
  rank_state *s = user;
  s->status = run_rank(s);
  if (s->status) snprintf(s->error, sizeof s->error, "%s", nsa_last_error());
  return NULL;
}

static void compare_rows(void *user, int64_t whole, int64_t local, int64_t count) {
  const copy *c = user;
  const int64_t size = size_of(c->whole), row = c->whole->stride[0] * size;
  for (int64_t i = 0; i < count; i++)
    if (memcmp((char *)c->local->data + (local + i) * row,
               (const char *)c->whole->data + (whole + i) * row, (size_t)row))
      fail_msg("row %lld of the whole, %lld of the rank, differs", (long long)(whole + i),
               (long long)(local + i));
}

static void same(rank_state *s, const char *what, const nsa_tensor *whole, nsa_tensor *local) {
  copy c = { whole, local };
  if (!whole->data) return;
  print_message("%s of rank %d of %d\n", what, s->rank, s->w->ranks);
  for_rows(s->w, s->rank, false, compare_rows, &c);
}

/* Adds rows, or everything, of a rank's gradient to those of all. */
static void add_rows(void *user, int64_t whole, int64_t local, int64_t count) {
  const copy *c = user;
  const int64_t row = c->whole->stride[0];
  for (int64_t i = 0; i < count * row; i++)
    toy_floats(c->whole)[whole * row + i] += toy_floats(c->local)[local * row + i];
}

static void close_to(const char *what, const nsa_tensor *got, const nsa_tensor *want) {
  double most = 0, scale = 0;
  for (int64_t i = 0; i < toy_count(want); i++) {
    const double x = toy_floats(got)[i], y = toy_floats(want)[i];
    if (!(fabs(x - y) <= most)) most = fabs(x - y);
    if (fabs(y) > scale) scale = fabs(y);
  }
  /* Softmax does not see a shift of all keys: the gradients of K's biases are rounding alone. */
  if (!(most <= 1e-6 * scale + 1e-12)) fail_msg("d_%s is off by %g of %g", what, most, scale);
}

static void check_gradients(world *w, rank_state *s) {
  pair whole[MAX_PAIRS], local[MAX_PAIRS];
  const int count = list_pairs(&w->toy.io, &w->grads, whole);
  for (int i = 0; i < count; i++) {
    bool entries;
    const bool rows = has_rows(whole[i].name, &entries);
    nsa_tensor sum = *whole[i].gradient;
    sum.data = calloc((size_t)toy_count(&sum), 4);
    assert_non_null(sum.data);
    for (int32_t r = 0; r < w->ranks; r++) {
      list_pairs(&w->toy.io, &s[r].grads, local);
      copy c = { &sum, local[i].gradient };
      if (rows)
        for_rows(w, r, entries, add_rows, &c);
      else
        add_rows(&c, 0, 0, sum.shape[0]);
      if (!strcmp(whole[i].name, "q") || !strncmp(whole[i].name, "gate.", 5))
        if (rows) same(&s[r], whole[i].name, whole[i].gradient, local[i].gradient);
    }
    close_to(whole[i].name, &sum, whole[i].gradient);
    free(sum.data);
  }
}

static void check_outputs(rank_state *s) {
  const nsa_io *io = &s->w->toy.io;
  same(s, "o", &io->o, &s->io.o);
  same(s, "block_idx", &io->block_idx, &s->io.block_idx);
  same(s, "index_lse", &io->index_lse, &s->io.index_lse);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    same(s, "o_branch", &io->o_branch[b], &s->io.o_branch[b]);
    same(s, "lse", &io->lse[b], &s->io.lse[b]);
  }
}

static nsa_problem problem_over(const world *w, int32_t op) {
  nsa_problem problem = problem_of(w, op);
  problem.ranks = w->ranks;
  problem.max_tokens = nsa_shard_tokens(w->shard, -1);
  problem.max_kv_tokens = TOKENS;
  problem.max_kv_len = LONGEST;
  problem.max_pieces = nsa_shard_max_pieces(w->shard);
  return problem;
}

/* ---- wires ---- */

static nsa_status wire_exchange(void *user, const nsa_part *send, int32_t send_count,
                                const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  wire *w = user;
  if (++w->calls == w->at_call && w->fault == WIRE_FAILS) return NSA_E_IO;
  if (w->calls == w->at_call && w->fault == WIRE_STALLS)
    while (nsa_comm_check(w->inner) == NSA_OK) usleep(1000);
  for (int32_t i = 0; i < send_count && w->runs; i++) {
    const int32_t to = send[i].rank, h = w->host_ranks;
    const bool same = to / h == w->rank / h;
    *(same ? &w->inside : &w->between) += send[i].bytes;
    w->strays |= !same && to % h != w->rank % h;
  }
  return nsai_comm_exchange(w->inner, send, send_count, recv, recv_count, stream);
}

static nsa_status wire_abort(void *user) {
  nsai_comm_fail(((wire *)user)->inner, "the wire is cut");
  return NSA_OK;
}

/* Puts wires before the communicators. */
static void open_wires(world *w) {
  for (int32_t r = 0; r < w->ranks; r++) {
    const wire old = w->wires[r];
    w->wires[r] = (wire){ .inner = w->comms[r],
                          .rank = r,
                          .host_ranks = w->counted ? w->counted : w->ranks,
                          .fault = old.fault,
                          .at_call = old.at_call };
    const nsa_comm_ops ops =
        INIT(nsa_comm_ops, .rank = r, .size = w->ranks, .host_ranks = w->host_ranks,
             .user = &w->wires[r], .exchange = wire_exchange, .abort = wire_abort);
    machine_expect("nsa_comm_create", nsa_comm_create(w->ctx, &ops, NULL, &w->comms[r]), NSA_OK,
                   NULL);
  }
}

static void open_ranks(world *w) {
  const int64_t long_lengths[SEQS] = { lengths[0], lengths[1], lengths[2], lengths[3], lengths[4] };
  const nsa_shard_options options =
      INIT(nsa_shard_options, .layout = w->layout, .ranks = w->ranks, .num_seqs = SEQS,
           .lengths = long_lengths, .alignment = w->alignment, .given = w->given,
           .given_count = w->given_count);
  const nsa_comm_options brief =
      INIT(nsa_comm_options, .timeout_ms = w->timeout_ms ? w->timeout_ms : 20000,
           .host_ranks = w->host_ranks);
  machine_expect("nsa_shard_create", nsa_shard_create(w->ctx, &options, &w->shard), NSA_OK, NULL);
  const nsa_problem forward = problem_over(w, NSA_OP_FORWARD),
                    backward = problem_over(w, NSA_OP_BACKWARD);
  w->forward = machine_plan(w->ctx, &forward);
  w->backward = machine_plan(w->ctx, &backward);
  machine_expect("nsa_comm_loopback", nsa_comm_loopback(w->ctx, w->ranks, &brief, w->comms), NSA_OK,
                 NULL);
  if (w->wired) open_wires(w);
}

static void close_ranks(world *w) {
  for (int32_t r = 0; r < w->ranks; r++) nsa_comm_destroy(w->comms[r]);
  for (int32_t r = 0; w->wired && r < w->ranks; r++) nsa_comm_destroy(w->wires[r].inner);
  nsa_plan_destroy(w->forward);
  nsa_plan_destroy(w->backward);
  nsa_shard_destroy(w->shard);
}

static void run_ranks(world *w, rank_state s[MOST_RANKS]) {
  pthread_t thread[MOST_RANKS];
  for (int32_t r = 0; r < w->ranks; r++) {
    memset(&s[r], 0, sizeof s[r]);
    s[r].w = w;
    s[r].rank = r;
    cut_io(&s[r]);
    cut_grads(&s[r]);
  }
  for (int32_t r = 0; r < w->ranks; r++)
    assert_int_equal(pthread_create(&thread[r], NULL, rank_thread, &s[r]), 0);
  for (int32_t r = 0; r < w->ranks; r++) pthread_join(thread[r], NULL);
}

static void free_ranks(world *w, rank_state s[MOST_RANKS]) {
  for (int32_t r = 0; r < w->ranks; r++)
    while (s[r].owned_count) free(s[r].owned[--s[r].owned_count]);
}

static void check_ranks(world *w, int32_t ranks, int32_t layout) {
  rank_state s[MOST_RANKS], again[MOST_RANKS];
  w->ranks = ranks;
  w->layout = layout;
  open_ranks(w);
  run_ranks(w, s);
  for (int32_t r = 0; r < ranks; r++) {
    if (s[r].status) fail_msg("rank %d: %s", r, s[r].error);
    check_outputs(&s[r]);
  }
  check_gradients(w, s);
  run_ranks(w, again);
  for (int32_t r = 0; r < ranks; r++) {
    pair a[MAX_PAIRS], b[MAX_PAIRS];
    assert_int_equal(again[r].status, NSA_OK);
    list_pairs(&w->toy.io, &s[r].grads, a);
    const int count = list_pairs(&w->toy.io, &again[r].grads, b);
    for (int i = 0; i < count; i++)
      if (a[i].gradient->data)
        assert_memory_equal(a[i].gradient->data, b[i].gradient->data,
                            (size_t)toy_count(a[i].gradient) * 4);
  }
  free_ranks(w, s);
  free_ranks(w, again);
  close_ranks(w);
}

static void check_model(const machine_request *request, int32_t ranks, int32_t layout) {
  world w;
  world_init(&w, request);
  check_ranks(&w, ranks, layout);
  w.accumulate = true;
  if (ranks == 2) check_ranks(&w, ranks, layout);
  world_free(&w);
}

static void test_ranks(void **state) {
  (void)state;
  for (int32_t ranks = 1; ranks <= MOST_RANKS; ranks += ranks < 4 ? 1 : 4)
    check_model(&(machine_request){ 0 }, ranks, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .per_branch = true }, 3, NSA_SHARD_CONTIGUOUS);
}

static void test_phi(void **state) {
  (void)state;
  check_model(&(machine_request){ .phi = NSAI_PHI_LINEAR }, 2, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .phi = NSAI_PHI_LINEAR, .per_branch = true }, 3,
              NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .phi = NSAI_PHI_MLP }, 3, NSA_SHARD_CONTIGUOUS);
  check_model(&(machine_request){ .phi = NSAI_PHI_EXTERNAL }, 2, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .phi = NSAI_PHI_EXTERNAL, .per_branch = true }, 3,
              NSA_SHARD_ZIGZAG);
}

static void test_gates(void **state) {
  (void)state;
  check_model(&(machine_request){ .gate = NSAI_GATE_LOGITS, .per_branch = true }, 2,
              NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .gate = NSAI_GATE_NONE }, 3, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .gate = NSAI_GATE_MLP, .gate_hidden = 8 }, 2, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .gate = NSAI_GATE_MLP, .phi = NSAI_PHI_MLP }, 3,
              NSA_SHARD_ZIGZAG);
}

static void test_selections(void **state) {
  (void)state;
  const machine_request indexed = { .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true };
  check_model(&indexed, 3, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .keys_only = true }, 2, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .normalized = true }, 2, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .dtype = NSA_BF16 }, 2, NSA_SHARD_ZIGZAG);
}

/* Without compressed entries pieces may begin anywhere. */
static void test_any_alignment(void **state) {
  world w;
  (void)state;
  world_init(&w,
             &(machine_request){ .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true });
  w.alignment = 5;
  check_ranks(&w, 3, NSA_SHARD_ZIGZAG);
  world_free(&w);
}

/* One KV head after the other. */
static void test_head_groups(void **state) {
  const char *const little = "thresholds.ranks_buffer_bytes=0";
  world w;
  char text[256];
  (void)state;
  check_model(&(machine_request){ .override = little }, 2, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .override = little, .phi = NSAI_PHI_MLP, .per_branch = true }, 3,
              NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .override = little, .phi = NSAI_PHI_EXTERNAL }, 2,
              NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .override = little,
                                  .phi = NSAI_PHI_NONE,
                                  .pool = NSAI_POOL_MAX,
                                  .indexed = true },
              2, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .override = little, .gate = NSAI_GATE_MLP }, 2, NSA_SHARD_ZIGZAG);
  world_init(&w, &(machine_request){ .override = little });
  w.ranks = 2;
  w.layout = NSA_SHARD_ZIGZAG;
  open_ranks(&w);
  const nsa_problem p = problem_over(&w, NSA_OP_FORWARD);
  nsa_problem_string(w.ctx, &p, text, sizeof text);
  assert_non_null(strstr(text, ":h6/2:"));
  assert_non_null(strstr(text, ":kvh1"));
  machine_expect_story(w.ctx, &p, "K and V of all ranks 59680 bytes");
  close_ranks(&w);
  world_free(&w);
}

/* ---- hosts ---- */

static const int32_t hosts_of[][2] = { { 4, 2 }, { 6, 2 },  { 6, 3 },  { 8, 2 },
                                       { 8, 4 }, { 16, 2 }, { 16, 4 }, { 16, 8 } };

/* Runs over this many ranks, as hosts of `host_ranks`. */
static void check_hosts(world *w, int32_t ranks, int32_t host_ranks, int32_t layout) {
  w->host_ranks = host_ranks;
  check_ranks(w, ranks, layout);
}

static void sum_wires(const world *w, uint64_t *inside, uint64_t *between, bool *strays) {
  *inside = *between = 0;
  *strays = false;
  for (int32_t r = 0; r < w->ranks; r++) {
    *inside += w->wires[r].inside;
    *between += w->wires[r].between;
    *strays |= w->wires[r].strays;
  }
}

/* Every division into hosts: results, calls, and what crosses. */
static void test_hosts(void **state) {
  const int agreements = 4; /* two of two rounds */
  world w;
  (void)state;
  world_init(&w, &(machine_request){ 0 });
  w.alignment = 4; /* 16 ranks have pieces of the two long sequences; the others live on one rank */
  w.wired = true;
  for (size_t i = 0; i < sizeof hosts_of / sizeof *hosts_of; i++) {
    const int32_t ranks = hosts_of[i][0], each = hosts_of[i][1];
    uint64_t inside, between, one_inside, one_between;
    bool strays, one_strays;
    w.counted = each;
    check_hosts(&w, ranks, each, NSA_SHARD_ZIGZAG);
    for (int32_t r = 0; r < ranks; r++) /* two levels of K, V, K, V and sums, two runs of each */
      assert_int_equal(w.wires[r].calls, agreements + 2 * 3 * 2);
    sum_wires(&w, &inside, &between, &strays);
    check_hosts(&w, ranks, ranks, NSA_SHARD_ZIGZAG);
    for (int32_t r = 0; r < ranks; r++) assert_int_equal(w.wires[r].calls, agreements + 2 * 3);
    sum_wires(&w, &one_inside, &one_between, &one_strays);
    print_message("%d ranks of %d: %llu inside, %llu between; in one level %llu, %llu\n", ranks,
                  each, (unsigned long long)inside, (unsigned long long)between,
                  (unsigned long long)one_inside, (unsigned long long)one_between);
    assert_true(!strays && one_strays);
    /* Each row goes to each other host once, and every rank receives what it did. */
    assert_true(inside + between == one_inside + one_between);
    assert_true(between * (uint64_t)each <= one_between * 21 / 20);
  }
  world_free(&w);
}

/* What else travels: pairs, entries, keys of an index; by other layouts; and by heads. */
static void test_models_over_hosts(void **state) {
  static const struct {
    machine_request request;
    int32_t ranks, host_ranks, layout;
  } cases[] = {
    { { .per_branch = true }, 6, 3, NSA_SHARD_CONTIGUOUS },
    { { .phi = NSAI_PHI_LINEAR, .per_branch = true }, 4, 2, NSA_SHARD_ZIGZAG },
    { { .phi = NSAI_PHI_MLP, .gate = NSAI_GATE_MLP }, 6, 2, NSA_SHARD_ZIGZAG },
    { { .phi = NSAI_PHI_EXTERNAL, .per_branch = true }, 8, 4, NSA_SHARD_ZIGZAG },
    { { .phi = NSAI_PHI_EXTERNAL }, 16, 4, NSA_SHARD_CONTIGUOUS },
    { { .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true }, 6, 3, NSA_SHARD_ZIGZAG },
    { { .keys_only = true }, 4, 2, NSA_SHARD_ZIGZAG },
    { { .dtype = NSA_BF16 }, 8, 2, NSA_SHARD_ZIGZAG },
    { { .override = "thresholds.ranks_buffer_bytes=0", .phi = NSAI_PHI_EXTERNAL },
      4,
      2,
      NSA_SHARD_ZIGZAG },
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    world w;
    world_init(&w, &cases[i].request);
    w.alignment = 4;
    check_hosts(&w, cases[i].ranks, cases[i].host_ranks, cases[i].layout);
    w.accumulate = true;
    check_hosts(&w, cases[i].ranks, cases[i].host_ranks, cases[i].layout);
    world_free(&w);
  }
}

/* Given pieces: a rank without any passes on what its neighbour needs, a host has none, ranks of one
 * column hold a sequence, and a sequence lies on one rank. */
static void test_given_over_hosts(void **state) {
  static const nsa_piece sparse[] = { { 0, 0, 0, 80 }, { 3, 0, 80, 60 }, { 1, 0, 140, 63 },
                                      { 3, 1, 0, 37 }, { 1, 3, 0, 64 },  { 3, 3, 64, 66 },
                                      { 0, 4, 0, 3 } };
  static const nsa_piece on_one_host[] = {
    { 2, 0, 0, 80 }, { 3, 0, 80, 123 }, { 2, 1, 0, 37 }, { 3, 3, 0, 130 }, { 3, 4, 0, 3 }
  };
  static const nsa_piece last[] = { { 0, 0, 192, 11 }, { 5, 0, 0, 192 }, { 4, 1, 0, 37 },
                                    { 4, 3, 0, 32 },   { 1, 3, 32, 98 }, { 2, 4, 0, 3 } };
  static const struct {
    const nsa_piece *pieces;
    int64_t count;
    int32_t ranks, host_ranks;
  } cases[] = { { sparse, 7, 4, 2 },      { on_one_host, 5, 4, 2 }, { last, 6, 6, 3 },
                { last, 6, 6, 2 },        { last, 6, 8, 4 },        { sparse, 7, 16, 8 },
                { on_one_host, 5, 16, 4 } };
  (void)state;
  for (int external = 0; external < 2; external++) {
    world w;
    world_init(&w, &(machine_request){ .phi = external ? NSAI_PHI_EXTERNAL : NSAI_PHI_MEAN });
    w.alignment = 4;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
      w.given = cases[i].pieces;
      w.given_count = cases[i].count;
      check_hosts(&w, cases[i].ranks, cases[i].host_ranks, NSA_SHARD_GIVEN);
    }
    world_free(&w);
  }
}

/* A rank that is lost in any exchange of either level: every other rank says so in time. */
static void test_lost_over_hosts(void **state) {
  enum { AGREEMENT = 2, CALLS = AGREEMENT + 6, TIMEOUT_MS = 150 };
  world w;
  (void)state;
  world_init(&w, &(machine_request){ .override = "runtime.log_level=off" });
  w.alignment = 4;
  w.wired = true;
  w.ranks = 6;
  w.host_ranks = 3;
  w.layout = NSA_SHARD_ZIGZAG;
  for (int32_t fault = WIRE_FAILS; fault <= WIRE_STALLS; fault++)
    for (int32_t call = AGREEMENT + 1; call <= CALLS; call++) {
      rank_state s[MOST_RANKS];
      const int32_t lost = call % w.ranks;
      memset(w.wires, 0, sizeof w.wires);
      w.wires[lost] = (wire){ .fault = fault, .at_call = call };
      w.timeout_ms = fault == WIRE_STALLS ? TIMEOUT_MS : 20000;
      open_ranks(&w);
      const double since = nsai_seconds();
      run_ranks(&w, s);
      const double seconds = nsai_seconds() - since;
      for (int32_t r = 0; r < w.ranks; r++)
        if (s[r].status != NSA_E_RANKS || w.wires[r].calls != call)
          fail_msg("rank %d of call %d: %s, %d calls: %s", r, call, nsa_status_name(s[r].status),
                   w.wires[r].calls, s[r].error);
      if (seconds > 5) fail_msg("call %d: after %f s", call, seconds);
      free_ranks(&w, s);
      close_ranks(&w);
    }
  world_free(&w);
}

/* ---- what is refused ---- */

static void refuse_problem(world *w, const nsa_problem *problem, const char *text) {
  nsa_plan *plan;
  machine_expect(text, nsa_plan_create(w->ctx, problem, NULL, NULL, &plan), NSA_E_ARG, text);
}

static void test_problems(void **state) {
  world w;
  char text[256];
  (void)state;
  world_init(&w, &(machine_request){ 0 });
  w.ranks = 2;
  w.layout = NSA_SHARD_ZIGZAG;
  open_ranks(&w);
  nsa_problem p = problem_over(&w, NSA_OP_FORWARD);
  nsa_problem_string(w.ctx, &p, text, sizeof text);
  assert_non_null(strstr(text, ":cp2x"));
  machine_expect_story(w.ctx, &p,
                       "over 2 ranks, of the workspace: K and V of all ranks 119360 bytes");
  p.ranks = 65;
  refuse_problem(&w, &p, "problem.ranks is 65");
  p.ranks = 2;
  p.max_kv_tokens = 0;
  refuse_problem(&w, &p, "problem.max_kv_tokens is 0");
  p.max_kv_tokens = TOKENS;
  p.max_probe_rows = 1;
  refuse_problem(&w, &p, "max_probe_rows");
  p.max_probe_rows = 0;
  p.op = NSA_OP_DENSE;
  refuse_problem(&w, &p, "NSA_OP_DENSE does not run over ranks");
  p.op = NSA_OP_FORWARD;
  p.ranks = 0;
  refuse_problem(&w, &p, "problem.max_pieces");
  close_ranks(&w);
  world_free(&w);
}

static void refuse_run(const world *w, nsa_exec *exec, const nsa_batch *batch, const nsa_io *io,
                       const char *text) {
  machine_expect(text, nsa_forward(w->forward, exec, batch, io), NSA_E_ARG, text);
}

static void test_runs(void **state) {
  world w;
  rank_state s = { .w = &w };
  (void)state;
  world_init(&w, &(machine_request){ 0 });
  w.ranks = 2;
  w.layout = NSA_SHARD_ZIGZAG;
  open_ranks(&w);
  cut_io(&s);
  nsa_exec exec = INIT(nsa_exec, .comm = w.comms[0]);
  nsa_batch batch = INIT(nsa_batch, .shard = w.shard);
  machine_add_workspace(w.forward, &exec);
  refuse_run(&w, &exec, NULL, &s.io, "batch.shard is missing");
  exec.comm = NULL;
  refuse_run(&w, &exec, &batch, &s.io, "exec.comm is missing");
  exec.comm = w.comms[0];
  batch.cu_q = w.toy.batch.cu_q;
  refuse_run(&w, &exec, &batch, &s.io, "batch.cu_q");
  batch.cu_q = (nsa_tensor){ 0 };
  batch.num_seqs = 2;
  refuse_run(&w, &exec, &batch, &s.io, "batch.num_seqs is 2");
  batch.num_seqs = 0;
  refuse_run(&w, &exec, &batch, &s.io, "nsa_comm_agree");
  nsa_io io = s.io;
  io.kv.k[0].shape[0]--, io.kv.v[0].shape[0]--;
  refuse_run(&w, &exec, &batch, &io, "io.kv has");
  io = s.io;
  io.q.shape[0]--;
  machine_expect("q", nsa_forward(w.forward, &exec, &batch, &io), NSA_E_ARG, NULL);
  machine_expect("nsa_compress", nsa_compress(w.forward, &exec, &batch, &s.io), NSA_E_ARG,
                 "nsa_compress does not run over ranks");

  const nsa_problem alone = problem_of(&w, NSA_OP_FORWARD);
  nsa_plan *plan = machine_plan(w.ctx, &alone);
  nsa_exec other = INIT(nsa_exec, .comm = w.comms[0]);
  machine_add_workspace(plan, &other);
  machine_expect("comm", nsa_forward(plan, &other, NULL, &w.toy.io), NSA_E_ARG,
                 "exec.comm is given");
  other.comm = NULL;
  machine_expect("shard", nsa_forward(plan, &other, &batch, &w.toy.io), NSA_E_ARG,
                 "batch.shard is given");
  nsa_plan_destroy(plan);
  free(other.workspace);
  free(exec.workspace);
  while (s.owned_count) free(s.owned[--s.owned_count]);
  close_ranks(&w);
  world_free(&w);
}

/* A shard of more parts than a list counts is refused by every rank, though only one has many pieces. */
static void test_parts(void **state) {
  world w;
  int32_t begin[NSA_MAX_RANKS + 1] = { 0 };
  nsa_comm *comms[NSA_MAX_RANKS];
  const int32_t most = INT32_MAX / 2 / NSAI_RANKS_TENSORS / (NSA_MAX_RANKS - 1);
  (void)state;
  world_init(&w, &(machine_request){ 0 });
  w.ranks = NSA_MAX_RANKS;
  w.layout = NSA_SHARD_ZIGZAG;
  nsa_problem problem = problem_of(&w, NSA_OP_FORWARD);
  problem.ranks = w.ranks;
  problem.max_kv_tokens = TOKENS;
  problem.max_pieces = most + 1;
  nsa_plan *plan = machine_plan(w.ctx, &problem);
  const int64_t length = TOKENS;
  const nsa_shard_options options = INIT(nsa_shard_options, .ranks = w.ranks, .lengths = &length);
  machine_expect("shard", nsa_shard_create(w.ctx, &options, &w.shard), NSA_OK, NULL);
  machine_expect("loopback", nsa_comm_loopback(w.ctx, w.ranks, NULL, comms), NSA_OK, NULL);
  nsa_shard many = *w.shard;
  many.rank_begin = begin;
  const nsa_batch batch = INIT(nsa_batch, .shard = &many);
  for (int over = 0; over < 2; over++) {
    many.max_pieces = most + over;
    for (int32_t r = 0; r < w.ranks; r++) begin[r + 1] = most + over;
    machine_expect("parts", nsai_check_shard(plan, comms[1], &batch), over ? NSA_E_ARG : NSA_OK,
                   over ? "parts of a tensor, and a run at most" : NULL);
  }
  for (int32_t r = 0; r < w.ranks; r++) nsa_comm_destroy(comms[r]);
  nsa_plan_destroy(plan);
  nsa_shard_destroy(w.shard);
  world_free(&w);
}

/* Other ranks need this rank's keys of the index, also where it computes the window alone. */
static void test_index_keys(void **state) {
  world w;
  rank_state s = { .w = &w };
  (void)state;
  world_init(&w,
             &(machine_request){ .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true });
  w.ranks = 2;
  w.layout = NSA_SHARD_ZIGZAG;
  open_ranks(&w);
  cut_io(&s);
  nsa_exec exec = INIT(nsa_exec, .comm = w.comms[0], .branches = 1u << NSA_WIN);
  const nsa_batch batch = INIT(nsa_batch, .shard = w.shard);
  machine_add_workspace(w.forward, &exec);
  nsa_io io = s.io;
  io.o_branch[NSA_SEL] = io.lse[NSA_SEL] = io.block_idx = io.index_lse = (nsa_tensor){ 0 };
  io.o_branch[NSA_CMP] = io.lse[NSA_CMP] = (nsa_tensor){ 0 };
  refuse_run(&w, &exec, &batch, &io, "nsa_comm_agree"); /* nothing else is wrong */
  io.k_idx.shape[0]--;
  refuse_run(&w, &exec, &batch, &io, "io.k_idx has shape[0]");
  io.k_idx = s.io.k_idx;
  io.k_idx.data = s.io.o.data; /* which the run writes */
  refuse_run(&w, &exec, &batch, &io, "io.k_idx");
  io.k_idx = (nsa_tensor){ 0 };
  refuse_run(&w, &exec, &batch, &io, "io.k_idx is missing: over ranks");
  free(exec.workspace);
  while (s.owned_count) free(s.owned[--s.owned_count]);
  close_ranks(&w);
  world_free(&w);
}

/* What a d_o in f32 takes is counted in the heads that the plan has at a time. */
static void test_room_of_d_o(void **state) {
  world w;
  rank_state s = { .w = &w };
  (void)state;
  world_init(&w, &(machine_request){ .dtype = NSA_BF16,
                                     .override = "thresholds.ranks_buffer_bytes=0" });
  w.ranks = 2;
  w.layout = NSA_SHARD_ZIGZAG;
  open_ranks(&w);
  cut_io(&s);
  s.grads = (nsa_grads)NSA_GRADS_INIT;
  s.grads.d_o = s.io.o;
  s.grads.d_o.dtype = NSA_F32;
  s.grads.d_o.data = own(&s, (size_t)(s.io.o.shape[0] * s.io.o.stride[0] * 4));
  nsa_exec exec = INIT(nsa_exec, .comm = w.comms[0]);
  const nsa_batch batch = INIT(nsa_batch, .shard = w.shard);
  machine_add_workspace(w.backward, &exec);
  machine_expect("d_o", nsa_backward(w.backward, &exec, &batch, &s.io, &s.grads), NSA_E_WORKSPACE,
                 "2 for each element of d_o of the 3 heads that are computed at a time");
  free(exec.workspace);
  while (s.owned_count) free(s.owned[--s.owned_count]);
  close_ranks(&w);
  world_free(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_ranks),
    cmocka_unit_test(test_phi),
    cmocka_unit_test(test_gates),
    cmocka_unit_test(test_selections),
    cmocka_unit_test(test_head_groups),
    cmocka_unit_test(test_problems),
    cmocka_unit_test(test_runs),
    cmocka_unit_test(test_any_alignment),
    cmocka_unit_test(test_parts),
    cmocka_unit_test(test_index_keys),
    cmocka_unit_test(test_room_of_d_o),
    cmocka_unit_test(test_hosts),
    cmocka_unit_test(test_models_over_hosts),
    cmocka_unit_test(test_given_over_hosts),
    cmocka_unit_test(test_lost_over_hosts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
