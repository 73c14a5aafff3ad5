/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "support/cmocka_all.h"

#include "plan/plan.h"
#include "ranks/comm.h"
#include "ranks_fixture.h"

#include <math.h>
#include <pthread.h>
#include <unistd.h>

#define GATE_CHANNELS 24
#define ALIGNMENT 16

static const int32_t lengths[] = { 203, 37, 0, 130, 3 };

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

nsa_problem world_problem(const world *w, int32_t op) {
  return INIT(nsa_problem, .op = op, .max_tokens = TOKENS, .max_seqs = SEQS,
              .selection = w->request.selection,
              .index_lse = w->request.indexed && op == NSA_OP_FORWARD);
}

static void run_whole(world *w) {
  const int32_t ops[] = { NSA_OP_FORWARD, NSA_OP_BACKWARD };
  for (int i = 0; i < 2; i++) {
    const nsa_problem problem = world_problem(w, ops[i]);
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

void world_init(world *w, const machine_request *request) {
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

void world_free(world *w) {
  toy_free(&w->toy);
  nsa_destroy(w->ctx);
}

/* ---- cutting ---- */

/* Frameworks give no memory to a tensor without elements. */
void *rank_own(rank_state *s, size_t bytes) {
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
  local->data = rank_own(s, (size_t)(local->shape[0] * local->stride[0] * size_of(whole)));
  for_rows(s->w, s->rank, entries, copy_rows, &c);
}

/* An output of the shape of this rank's rows, all bits set. */
static void blank(rank_state *s, const nsa_tensor *whole, bool entries, nsa_tensor *local) {
  *local = *whole;
  if (!whole->data) return;
  local->shape[0] = for_rows(s->w, s->rank, entries, NULL, NULL);
  local->data = rank_own(s, (size_t)(local->shape[0] * local->stride[0] * size_of(whole)));
}

void rank_cut_io(rank_state *s) {
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
      to[i].gradient->data = rank_own(s, (size_t)toy_count(from[i].gradient) * 4);
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

nsa_problem world_problem_over(const world *w, int32_t op) {
  nsa_problem problem = world_problem(w, op);
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

void world_open(world *w) {
  const int64_t long_lengths[SEQS] = { lengths[0], lengths[1], lengths[2], lengths[3], lengths[4] };
  const nsa_shard_options options =
      INIT(nsa_shard_options, .layout = w->layout, .ranks = w->ranks, .num_seqs = SEQS,
           .lengths = long_lengths, .alignment = w->alignment, .given = w->given,
           .given_count = w->given_count);
  const nsa_comm_options brief =
      INIT(nsa_comm_options, .timeout_ms = w->timeout_ms ? w->timeout_ms : 20000,
           .host_ranks = w->host_ranks);
  machine_expect("nsa_shard_create", nsa_shard_create(w->ctx, &options, &w->shard), NSA_OK, NULL);
  const nsa_problem forward = world_problem_over(w, NSA_OP_FORWARD),
                    backward = world_problem_over(w, NSA_OP_BACKWARD);
  w->forward = machine_plan(w->ctx, &forward);
  w->backward = machine_plan(w->ctx, &backward);
  machine_expect("nsa_comm_loopback", nsa_comm_loopback(w->ctx, w->ranks, &brief, w->comms), NSA_OK,
                 NULL);
  if (w->wired) open_wires(w);
}

void world_close(world *w) {
  for (int32_t r = 0; r < w->ranks; r++) nsa_comm_destroy(w->comms[r]);
  for (int32_t r = 0; w->wired && r < w->ranks; r++) nsa_comm_destroy(w->wires[r].inner);
  nsa_plan_destroy(w->forward);
  nsa_plan_destroy(w->backward);
  nsa_shard_destroy(w->shard);
}

void world_run(world *w, rank_state s[MOST_RANKS]) {
  pthread_t thread[MOST_RANKS];
  for (int32_t r = 0; r < w->ranks; r++) {
    memset(&s[r], 0, sizeof s[r]);
    s[r].w = w;
    s[r].rank = r;
    rank_cut_io(&s[r]);
    cut_grads(&s[r]);
  }
  for (int32_t r = 0; r < w->ranks; r++)
    assert_int_equal(pthread_create(&thread[r], NULL, rank_thread, &s[r]), 0);
  for (int32_t r = 0; r < w->ranks; r++) pthread_join(thread[r], NULL);
}

void world_release(world *w, rank_state s[MOST_RANKS]) {
  for (int32_t r = 0; r < w->ranks; r++)
    while (s[r].owned_count) free(s[r].owned[--s[r].owned_count]);
}

void world_check(world *w, int32_t ranks, int32_t layout) {
  rank_state s[MOST_RANKS], again[MOST_RANKS];
  w->ranks = ranks;
  w->layout = layout;
  world_open(w);
  world_run(w, s);
  for (int32_t r = 0; r < ranks; r++) {
    if (s[r].status) fail_msg("rank %d: %s", r, s[r].error);
    check_outputs(&s[r]);
  }
  check_gradients(w, s);
  world_run(w, again);
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
  world_release(w, s);
  world_release(w, again);
  world_close(w);
}
