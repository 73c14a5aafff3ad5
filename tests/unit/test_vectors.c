/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The CPU device against tests/vectors: every forward output of every case, by the whole call, by
 * the rows call with its own selection, by the rows call on the vector's indices, and through a
 * cache.
 */
#include "support/cmocka_all.h"

#include "reference/reference.h"
#include "vector_case.h"

#include <math.h>

/* The vectors are float64 results stored as float32 (2^-24 = 6e-8), with room for sums. */
#define TOLERANCE 1e-5

static const char *const branch_names[NSA_BRANCHES] = { "cmp", "sel", "win" };

/* Compares got [B * Sq, heads, width] with the vector's tensor, by the norm of each (sequence,
 * head). Infinities must stand in the same places. */
static void compare(const vector_case *c, const char *what, const double *got) {
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

static void compare_tensor(const vector_case *c, const char *what, const nsa_tensor *got) {
  nsa_tensor want = vector_file_packed(&c->file, what);
  int64_t count = want.shape[0] * want.stride[0];
  assert_true(got->shape[0] * got->stride[0] == count);
  double *values = vector_bytes(count, sizeof *values);
  for (int64_t i = 0; i < count; i++) values[i] = ((const float *)got->data)[i];
  compare(c, what, values);
  free(values);
}

/* A contiguous output of the vector tensor's shape. */
static nsa_tensor output_like(const vector_case *c, const char *what) {
  nsa_tensor tensor = vector_file_packed(&c->file, what);
  assert_non_null(tensor.data);
  tensor.data = vector_bytes(tensor.shape[0] * tensor.stride[0], 4);
  return tensor;
}

static void check_whole(vector_case *c) {
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
  int32_t tokens = (int32_t)(c->seqs * c->queries), *probes = vector_bytes(tokens, sizeof *probes);
  for (int32_t i = 0; i < tokens; i++) probes[i] = i;
  io.probe_rows = vector_lengths(probes, tokens);
  assert_int_equal(nsai_reference_forward(&c->model, NSA_SELECT_TOPN, 0, &c->batch, &io, 2),
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

static void check_rows(vector_case *c, int32_t selection) {
  int64_t heads = c->model.heads, tokens = c->seqs * c->queries, count = tokens * heads;
  int64_t dim = c->model.head_dim_v, *token = vector_bytes(count, sizeof *token);
  int32_t *head = vector_bytes(count, sizeof *head);
  for (int64_t i = 0; i < count; i++) {
    token[i] = i / heads;
    head[i] = (int32_t)(i % heads);
  }
  nsai_reference_rows rows = { .count = count, .token = token, .head = head };
  rows.o = vector_bytes(count * dim, sizeof(double));
  for (int b = 0; b < NSA_BRANCHES; b++) {
    rows.o_branch[b] = vector_bytes(count * dim, sizeof(double));
    rows.lse[b] = vector_bytes(count, sizeof(double));
  }
  nsa_io io = c->io;
  io.block_idx = vector_file_packed(&c->file, "idx");
  assert_int_equal(nsai_reference_forward_rows(&c->model, selection, 0, &c->batch, &io, &rows, 2),
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

static void check_importance(vector_case *c) {
  nsa_tensor want = vector_file_packed(&c->file, "imp");
  int64_t count = want.shape[0], *tokens = vector_bytes(count, sizeof *tokens);
  double *out = vector_bytes(count * want.stride[0], sizeof *out);
  for (int64_t i = 0; i < count; i++) tokens[i] = i;
  assert_int_equal(nsai_reference_importance(&c->model, &c->batch, &c->io, count, tokens,
                                             want.shape[2], out, 2),
                   NSA_OK);
  compare(c, "imp", out);
  free(out);
  free(tokens);
}

/* Sequence s has pages s, s + B, s + 2B ...: [rows, P, heads, dim] for rows of all sequences. */
static nsa_tensor pages_for(const vector_case *c, int64_t pages, int64_t places, int64_t dim) {
  int64_t heads = c->model.kv_heads, row = heads * dim;
  nsa_tensor t = { .ndim = 4,
                   .dtype = NSA_F32,
                   .shape = { pages, places, heads, dim },
                   .stride = { places * row, row, dim, 1 } };
  t.data = vector_bytes(pages * places * row, 4);
  return t;
}

/* All tokens appended at once, then the vector's queries. */
static void check_cached(vector_case *c) {
  const nsai_model *g = &c->model;
  nsai_reference_cache cache = { .page_size = NSAI_MIN_PAGE_SIZE };
  while (cache.page_size % g->stride) cache.page_size *= 2;
  int64_t width = (c->kv_len + cache.page_size - 1) / cache.page_size, pages = width * c->seqs;
  int32_t *table = vector_bytes(pages, sizeof *table), *len = vector_bytes(c->seqs, sizeof *len);
  for (int64_t s = 0; s < c->seqs; s++) {
    len[s] = (int32_t)c->kv_len;
    for (int64_t i = 0; i < width; i++) table[s * width + i] = (int32_t)(s + i * c->seqs);
  }
  nsa_batch batch =
      INIT(nsa_batch, .num_seqs = (int32_t)c->seqs, .kv_len = vector_lengths(len, c->seqs),
           .block_table = vector_lengths(table, c->seqs));
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
  io.new_kv = c->io.kv;
  assert_int_equal(nsai_reference_append(g, &cache, &batch, &io, 2), NSA_OK);
  io.o = output_like(c, "o");
  io.lse[0] = output_like(c, "lse_cmp");
  io.block_idx = output_like(c, "idx");
  batch.cu_q = c->batch.cu_q;
  assert_int_equal(nsai_reference_cached(g, &cache, NSA_SELECT_TOPN, 0, &batch, &io, 2), NSA_OK);
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
  vector_case c;
  vector_case_load(&c, *state);
  check_whole(&c);
  check_rows(&c, NSA_SELECT_TOPN);
  check_rows(&c, NSA_SELECT_BLOCKS);
  check_importance(&c);
  check_cached(&c);
  vector_case_free(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = { VECTOR_CASES(test_case) };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
