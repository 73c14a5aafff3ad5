/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The CPU device against tests/vectors: every forward output of every case, by the whole call, by
 * the rows call with its own selection, by the rows call on the vector's indices, and through a cache.
 */
#include "reference/reference.h"
#include "vector_file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The vectors are float64 results stored as float32 (2^-24 = 6e-8), with room for sums. */
#define TOLERANCE 1e-5

static const char *const branch_names[NSA_BRANCHES] = { "cmp", "sel", "win" };

/* A case as a call. */
typedef struct call {
  const char *name;
  vector_file file;
  nsai_geometry geometry;
  nsa_batch batch;
  nsa_io io;
  int64_t seqs, queries, kv_len; /* B, Sq, S */
  int32_t *cu;
} call;

static nsai_activation activation_of(const char *text) {
  if (!strcmp(text, "silu")) return NSAI_ACT_SILU;
  if (!strcmp(text, "gelu")) return NSAI_ACT_GELU;
  assert_string_equal(text, "relu");
  return NSAI_ACT_RELU;
}

static int32_t whole(const call *c, const char *key, int32_t absent) {
  return (int32_t)vector_file_number(&c->file, key, absent);
}

static void load_geometry(call *c) {
  nsai_geometry *g = &c->geometry;
  *g = (nsai_geometry){ .heads = whole(c, "Hq", 0),
                        .kv_heads = whole(c, "Hkv", 0),
                        .head_dim_qk = whole(c, "Dk", 0),
                        .head_dim_v = whole(c, "Dv", 0),
                        .block = whole(c, "l", 0),
                        .stride = whole(c, "d", 0),
                        .select_block = whole(c, "ls", 0),
                        .select_count = whole(c, "n", 0),
                        .select_init = whole(c, "n_init", -1),
                        .select_local = whole(c, "n_local", -1),
                        .window = whole(c, "w", 0),
                        .dtype = NSA_F32,
                        .phi_hidden = whole(c, "hidden", 0),
                        .phi_activation = activation_of(vector_file_text(&c->file, "act", "relu")),
                        .gate_channels = whole(c, "channels", 0),
                        .gate_hidden = whole(c, "gate_hidden", 0),
                        .gate_activation =
                            activation_of(vector_file_text(&c->file, "gate_act", "relu")) };
  g->per_branch = !strcmp(vector_file_text(&c->file, "per_branch", ""), "true");
  const char *phi = vector_file_text(&c->file, "phi", "");
  g->phi = !strcmp(phi, "mlp")      ? NSAI_PHI_MLP
           : !strcmp(phi, "linear") ? NSAI_PHI_LINEAR
                                    : NSAI_PHI_MEAN;
  const char *gate = vector_file_text(&c->file, "gate", "");
  g->gate = !strcmp(gate, "mlp")      ? NSAI_GATE_MLP
            : !strcmp(gate, "logits") ? NSAI_GATE_LOGITS
                                      : NSAI_GATE_WEIGHTS;
}

static nsa_tensor part(const call *c, const char *side, const char *name) {
  char full[32];
  snprintf(full, sizeof full, "%s.%s", side, name);
  return vector_file_find(&c->file, full);
}

static nsa_phi_side phi_side(const call *c, const char *side) {
  return (nsa_phi_side){ .pe = part(c, side, "pe"),
                         .w = part(c, side, "w"),
                         .w1 = part(c, side, "w1"),
                         .b1 = part(c, side, "b1"),
                         .w2 = part(c, side, "w2"),
                         .b2 = part(c, side, "b2") };
}

static void load_inputs(call *c) {
  const vector_file *f = &c->file;
  nsa_io *io = &c->io;
  *io = (nsa_io)NSA_IO_INIT;
  io->softmax_scale = (float)vector_file_number(f, "scale", 0);
  io->q = vector_file_packed(f, "q");
  io->kv.k[0] = vector_file_packed(f, "k");
  io->kv.v[0] = vector_file_packed(f, "v");
  io->kv.k[1] = vector_file_packed(f, "k_sel");
  io->kv.v[1] = vector_file_packed(f, "v_sel");
  io->kv.k[2] = vector_file_packed(f, "k_win");
  io->kv.v[2] = vector_file_packed(f, "v_win");
  io->phi = (nsa_phi){ phi_side(c, "phi_k"), phi_side(c, "phi_v") };
  io->gate.value = vector_file_packed(f, c->geometry.gate == NSAI_GATE_LOGITS ? "gate_logits" //
                                                                              : "gates");
  io->gate.x = vector_file_packed(f, "gate.x");
  io->gate.w1 = part(c, "gate", "w1");
  io->gate.b1 = part(c, "gate", "b1");
  io->gate.w2 = part(c, "gate", "w2");
  io->gate.b2 = part(c, "gate", "b2");
}

static nsa_tensor lengths(int32_t *values, int64_t count) {
  return (nsa_tensor){
    .data = values, .ndim = 1, .dtype = NSA_I32, .shape = { count }, .stride = { 1 }
  };
}

static void call_load(call *c, const char *name) {
  c->name = name;
  vector_file_read(&c->file, name);
  load_geometry(c);
  load_inputs(c);
  c->seqs = whole(c, "B", 0);
  c->queries = whole(c, "Sq", 0);
  c->kv_len = whole(c, "S", 0);
  c->cu = calloc((size_t)(2 * (c->seqs + 1)), sizeof *c->cu);
  assert_non_null(c->cu);
  for (int32_t s = 0; s <= c->seqs; s++) {
    c->cu[s] = s * (int32_t)c->queries;
    c->cu[c->seqs + 1 + s] = s * (int32_t)c->kv_len;
  }
  c->batch = (nsa_batch)NSA_BATCH_INIT;
  c->batch.num_seqs = (int32_t)c->seqs;
  c->batch.cu_q = lengths(c->cu, c->seqs + 1);
  c->batch.cu_kv = lengths(c->cu + c->seqs + 1, c->seqs + 1);
}

static void call_free(call *c) {
  free(c->cu);
  vector_file_free(&c->file);
}

static void *bytes_for(int64_t count, size_t size) {
  void *memory = malloc((size_t)count * size + 1);
  assert_non_null(memory);
  memset(memory, 0xff, (size_t)count * size + 1); /* NaN, -1: what is not written fails */
  return memory;
}

/* Compares got [B * Sq, heads, width] with the vector's tensor, by the norm of each (sequence,
 * head). Infinities must stand in the same places. */
static void compare(const call *c, const char *what, const double *got) {
  nsa_tensor want = vector_file_packed(&c->file, what);
  assert_non_null(want.data);
  int64_t heads = want.shape[1], width = want.ndim > 2 ? want.shape[2] : 1;
  for (int64_t s = 0; s < c->seqs; s++)
    for (int64_t h = 0; h < heads; h++) {
      double error = 0, norm = 0;
      for (int64_t i = 0; i < c->queries; i++)
        for (int64_t e = 0; e < width; e++) {
          int64_t at = ((s * c->queries + i) * heads + h) * width + e;
          double reference = ((const float *)want.data)[at];
          if (isinf(reference) && got[at] == reference) continue;
          error += (got[at] - reference) * (got[at] - reference);
          norm += reference * reference;
        }
      if (!(sqrt(error) <= TOLERANCE * sqrt(norm)))
        fail_msg("%s: %s of sequence %d, head %d: error %g at norm %g", c->name, what, (int)s,
                 (int)h, sqrt(error), sqrt(norm));
    }
}

static void compare_tensor(const call *c, const char *what, const nsa_tensor *got) {
  nsa_tensor want = vector_file_packed(&c->file, what);
  int64_t count = want.shape[0] * want.stride[0];
  assert_true(got->shape[0] * got->stride[0] == count);
  double *values = bytes_for(count, sizeof *values);
  for (int64_t i = 0; i < count; i++) values[i] = ((const float *)got->data)[i];
  compare(c, what, values);
  free(values);
}

/* A contiguous output of the vector tensor's shape. */
static nsa_tensor output_like(const call *c, const char *what) {
  nsa_tensor tensor = vector_file_packed(&c->file, what);
  assert_non_null(tensor.data);
  tensor.data = bytes_for(tensor.shape[0] * tensor.stride[0], 4);
  return tensor;
}

static void check_whole(call *c) {
  nsa_io io = c->io;
  char name[16];
  io.o = output_like(c, "o");
  for (int b = 0; b < NSA_BRANCHES; b++) {
    snprintf(name, sizeof name, "o_%s", branch_names[b]);
    io.o_branch[b] = output_like(c, name);
    snprintf(name, sizeof name, "lse_%s", branch_names[b]);
    io.lse[b] = output_like(c, name);
  }
  io.block_idx = output_like(c, "idx");
  io.probe_importance = output_like(c, "imp");
  int32_t tokens = (int32_t)(c->seqs * c->queries), *probes = bytes_for(tokens, sizeof *probes);
  for (int32_t i = 0; i < tokens; i++) probes[i] = i;
  io.probe_rows = lengths(probes, tokens);
  assert_int_equal(nsai_reference_forward(&c->geometry, NSA_SELECT_OWN, 0, &c->batch, &io, 2),
                   NSA_OK);
  compare_tensor(c, "o", &io.o);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    snprintf(name, sizeof name, "o_%s", branch_names[b]);
    compare_tensor(c, name, &io.o_branch[b]);
    snprintf(name, sizeof name, "lse_%s", branch_names[b]);
    compare_tensor(c, name, &io.lse[b]);
    free(io.o_branch[b].data);
    free(io.lse[b].data);
  }
  compare_tensor(c, "imp", &io.probe_importance);
  nsa_tensor idx = vector_file_packed(&c->file, "idx");
  assert_memory_equal(io.block_idx.data, idx.data, (size_t)(idx.shape[0] * idx.stride[0]) * 4);
  free(io.o.data);
  free(io.block_idx.data);
  free(io.probe_importance.data);
  free(probes);
}

static void check_rows(call *c, int32_t selection) {
  int64_t heads = c->geometry.heads, tokens = c->seqs * c->queries, count = tokens * heads;
  int64_t dim = c->geometry.head_dim_v, *token = bytes_for(count, sizeof *token);
  int32_t *head = bytes_for(count, sizeof *head);
  for (int64_t i = 0; i < count; i++) {
    token[i] = i / heads;
    head[i] = (int32_t)(i % heads);
  }
  nsai_reference_rows rows = { .count = count, .token = token, .head = head };
  rows.o = bytes_for(count * dim, sizeof(double));
  for (int b = 0; b < NSA_BRANCHES; b++) {
    rows.o_branch[b] = bytes_for(count * dim, sizeof(double));
    rows.lse[b] = bytes_for(count, sizeof(double));
  }
  nsa_io io = c->io;
  io.block_idx = vector_file_packed(&c->file, "idx");
  assert_int_equal(nsai_reference_forward_rows(&c->geometry, selection, 0, &c->batch, &io, &rows,
                                               2),
                   NSA_OK);
  compare(c, "o", rows.o);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    char name[16];
    snprintf(name, sizeof name, "o_%s", branch_names[b]);
    compare(c, name, rows.o_branch[b]);
    snprintf(name, sizeof name, "lse_%s", branch_names[b]);
    compare(c, name, rows.lse[b]);
    free(rows.o_branch[b]);
    free(rows.lse[b]);
  }
  free(rows.o);
  free(token);
  free(head);
}

static void check_importance(call *c) {
  nsa_tensor want = vector_file_packed(&c->file, "imp");
  int64_t count = want.shape[0], *tokens = bytes_for(count, sizeof *tokens);
  double *out = bytes_for(count * want.stride[0], sizeof *out);
  for (int64_t i = 0; i < count; i++) tokens[i] = i;
  assert_int_equal(nsai_reference_importance(&c->geometry, &c->batch, &c->io, count, tokens,
                                             want.shape[2], out, 2),
                   NSA_OK);
  compare(c, "imp", out);
  free(out);
  free(tokens);
}

/* Sequence s has pages s, s + B, s + 2B ...: [rows, P, heads, dim] for rows of all sequences. */
static nsa_tensor pages_for(const call *c, int64_t pages, int64_t places, int64_t dim) {
  int64_t heads = c->geometry.kv_heads, row = heads * dim;
  nsa_tensor t = { .ndim = 4,
                   .dtype = NSA_F32,
                   .shape = { pages, places, heads, dim },
                   .stride = { places * row, row, dim, 1 } };
  t.data = bytes_for(pages * places * row, 4);
  return t;
}

/* All tokens appended at once, then the vector's queries. */
static void check_cached(call *c) {
  const nsai_geometry *g = &c->geometry;
  nsai_reference_cache cache = { .page_size = NSAI_MIN_PAGE_SIZE };
  while (cache.page_size % g->stride) cache.page_size *= 2;
  int64_t width = (c->kv_len + cache.page_size - 1) / cache.page_size, pages = width * c->seqs;
  int32_t *table = bytes_for(pages, sizeof *table), *len = bytes_for(c->seqs, sizeof *len);
  for (int64_t s = 0; s < c->seqs; s++) {
    len[s] = (int32_t)c->kv_len;
    for (int64_t i = 0; i < width; i++) table[s * width + i] = (int32_t)(s + i * c->seqs);
  }
  nsa_batch batch = NSA_BATCH_INIT;
  batch.num_seqs = (int32_t)c->seqs;
  batch.kv_len = lengths(len, c->seqs);
  batch.block_table = lengths(table, c->seqs);
  batch.block_table.ndim = 2;
  batch.block_table.shape[1] = batch.block_table.stride[0] = width;
  batch.block_table.stride[1] = 1;
  nsa_io io = c->io;
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!nsai_reads_pair(g, b)) continue;
    io.kv.k[b] = pages_for(c, pages, cache.page_size, g->head_dim_qk);
    io.kv.v[b] = pages_for(c, pages, cache.page_size, g->head_dim_v);
  }
  io.kv.k_cmp = pages_for(c, pages, cache.page_size / g->stride, g->head_dim_qk);
  io.kv.v_cmp = pages_for(c, pages, cache.page_size / g->stride, g->head_dim_v);
  assert_int_equal(nsai_reference_append(g, &cache, &batch, &io.kv, &c->io.kv, &c->io.phi, 2),
                   NSA_OK);
  io.o = output_like(c, "o");
  io.lse[0] = output_like(c, "lse_cmp");
  io.block_idx = output_like(c, "idx");
  batch.cu_q = c->batch.cu_q;
  assert_int_equal(nsai_reference_cached(g, &cache, NSA_SELECT_OWN, 0, &batch, &io, 2), NSA_OK);
  compare_tensor(c, "o", &io.o);
  compare_tensor(c, "lse_cmp", &io.lse[0]);
  nsa_tensor idx = vector_file_packed(&c->file, "idx");
  assert_memory_equal(io.block_idx.data, idx.data, (size_t)(idx.shape[0] * idx.stride[0]) * 4);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!nsai_reads_pair(g, b)) continue;
    free(io.kv.k[b].data);
    free(io.kv.v[b].data);
  }
  void *all[] = {
    io.kv.k_cmp.data, io.kv.v_cmp.data, io.o.data, io.lse[0].data, io.block_idx.data, table, len
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void test_case(void **state) {
  call c;
  call_load(&c, *state);
  check_whole(&c);
  check_rows(&c, NSA_SELECT_OWN);
  check_rows(&c, NSA_SELECT_BLOCKS);
  check_importance(&c);
  check_cached(&c);
  call_free(&c);
}

#define CASE(name)                                                                                 \
  { #name, test_case, NULL, NULL, (void *)(uintptr_t) #name }

int main(void) {
  const struct CMUnitTest tests[] = {
    CASE(chunk),
    CASE(equal_blocks),
    CASE(gate_logits),
    CASE(gate_mlp),
    CASE(group16),
    CASE(kv_per_branch),
    CASE(linear_phi),
    CASE(mlp_gelu),
    CASE(mlp_relu),
    CASE(mlp_silu),
    CASE(odd_length),
    CASE(nothing_forced),
    CASE(shorter_than_block),
    CASE(tiny),
    CASE(wide_qk),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
