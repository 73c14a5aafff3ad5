/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The backward pass of the CPU device against tests/vectors: every gradient of every case.
 */
#include "support/cmocka_all.h"

#include "reference/reference.h"
#include "vector_case.h"

#include <math.h>

#define TOLERANCE 1e-5

/* A gradient of a case: what it is called there, and where the call has it. */
typedef struct gradient {
  const char *name;
  nsa_tensor *tensor;
} gradient;

typedef struct gradients {
  nsa_grads grads;
  gradient all[32];
  int count;
} gradients;

static nsa_tensor find(const vector_case *c, const char *name) {
  nsa_tensor tensor = vector_file_find(&c->file, name);
  bool weights = strstr(name, "phi") || (!strncmp(name, "d_gate.", 7) && strcmp(name, "d_gate.x"));
  return weights ? tensor : vector_file_packed(&c->file, name);
}

static int64_t count_of(const nsa_tensor *t) { return t->shape[0] * t->stride[0]; }

/* Takes an output like the vector's, where it has one. */
static void add(gradients *g, const vector_case *c, const char *name, nsa_tensor *tensor) {
  nsa_tensor want = find(c, name);
  if (!want.data) return;
  assert_true(g->count < (int)(sizeof g->all / sizeof *g->all));
  *tensor = want;
  tensor->data = vector_bytes(count_of(&want), 4);
  g->all[g->count++] = (gradient){ name, tensor };
}

static void add_all(gradients *g, const vector_case *c) {
  nsa_grads *x = &g->grads;
  bool logits = c->model.gate == NSAI_GATE_LOGITS;
  memset(g, 0, sizeof *g);
  *x = (nsa_grads)NSA_GRADS_INIT;
  x->d_o = vector_file_packed(&c->file, "d_o");
  const gradient names[] = { { "d_q", &x->d_q },
                             { "d_k", &x->d_kv.k[0] },
                             { "d_v", &x->d_kv.v[0] },
                             { "d_k_sel", &x->d_kv.k[1] },
                             { "d_v_sel", &x->d_kv.v[1] },
                             { "d_k_win", &x->d_kv.k[2] },
                             { "d_v_win", &x->d_kv.v[2] },
                             { "d_phi_k.pe", &x->d_phi.k.pe },
                             { "d_phi_k.w", &x->d_phi.k.w },
                             { "d_phi_k.w1", &x->d_phi.k.w1 },
                             { "d_phi_k.b1", &x->d_phi.k.b1 },
                             { "d_phi_k.w2", &x->d_phi.k.w2 },
                             { "d_phi_k.b2", &x->d_phi.k.b2 },
                             { "d_phi_v.pe", &x->d_phi.v.pe },
                             { "d_phi_v.w", &x->d_phi.v.w },
                             { "d_phi_v.w1", &x->d_phi.v.w1 },
                             { "d_phi_v.b1", &x->d_phi.v.b1 },
                             { "d_phi_v.w2", &x->d_phi.v.w2 },
                             { "d_phi_v.b2", &x->d_phi.v.b2 },
                             { logits ? "d_gate_logits" : "d_gates", &x->d_gate.value },
                             { "d_gate.x", &x->d_gate.x },
                             { "d_gate.w1", &x->d_gate.w1 },
                             { "d_gate.b1", &x->d_gate.b1 },
                             { "d_gate.w2", &x->d_gate.w2 },
                             { "d_gate.b2", &x->d_gate.b2 } };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    add(g, c, names[i].name, names[i].tensor);
}

static void free_all(gradients *g) {
  for (int i = 0; i < g->count; i++) free(g->all[i].tensor->data);
}

/* Every gradient that the vector file holds is compared. */
static void check_complete(const gradients *g, const vector_case *c) {
  int found = 0;
  for (int i = 0; i < c->file.tensor_count; i++)
    if (!strncmp(c->file.tensors[i].name, "d_", 2)) found++;
  assert_int_equal(found, g->count + 1); /* d_o */
}

/* d_k_cmp [blocks, Hkv, Dk]: the backward pass with the compressed keys as inputs of their own. */
static nsa_tensor compressed_gradient(const vector_case *c, const nsa_io *io,
                                      const nsa_tensor *d_o) {
  nsai_model g = c->model;
  nsa_io external = *io;
  nsa_grads grads = NSA_GRADS_INIT;
  int64_t blocks = nsai_block_count(&g, c->kv_len), dims[] = { g.head_dim_qk, g.head_dim_v };
  assert_int_equal(c->seqs, 1);
  for (int i = 0; i < 2; i++) {
    nsa_tensor *t = i ? &external.kv.v_cmp : &external.kv.k_cmp;
    *t = (nsa_tensor){ .ndim = 3,
                       .dtype = NSA_F32,
                       .shape = { blocks, g.kv_heads, dims[i] },
                       .stride = { g.kv_heads * dims[i], dims[i], 1 } };
    t->data = vector_bytes(count_of(t), 4);
  }
  assert_int_equal(nsai_reference_compress(&g, &c->batch, &external, 2), NSA_OK);
  g.phi = NSAI_PHI_EXTERNAL;
  grads.d_o = *d_o;
  grads.d_kv.k_cmp = external.kv.k_cmp;
  grads.d_kv.k_cmp.data = vector_bytes(count_of(&external.kv.k_cmp), 4);
  assert_int_equal(nsai_reference_backward(&g, NSA_SELECT_TOPN, 0, &c->batch, &external, &grads, 2),
                   NSA_OK);
  free(external.kv.k_cmp.data);
  free(external.kv.v_cmp.data);
  return grads.d_kv.k_cmp;
}

/* One element of a block's d_k_cmp, or of its product with w^T. */
static double term_of(const vector_case *c, const nsa_tensor *d, int64_t row, int64_t at, bool pe) {
  const float *block = (const float *)d->data + row * d->shape[2];
  const nsa_tensor *w = &c->io.phi.k.w;
  if (!pe) return block[at];
  double sum = 0;
  int64_t head = row % d->shape[1];
  const float *weights = (const float *)w->data + head * w->stride[0] + at * w->stride[1];
  for (int64_t e = 0; e < d->shape[2]; e++) sum += (double)block[e] * weights[e];
  return sum;
}

/* Root sum of squares of what blocks add to a gradient that vanishes: a shift common to all
 * compressed keys moves no softmax. 0 for the others. */
static double terms_norm(const vector_case *c, const char *name, const nsa_io *io,
                         const nsa_tensor *d_o) {
  bool pe = !strcmp(name, "d_phi_k.pe") && c->model.phi == NSAI_PHI_LINEAR;
  if (!pe && strcmp(name, "d_phi_k.b2") != 0) return 0;
  nsa_tensor d = compressed_gradient(c, io, d_o);
  int64_t rows = d.shape[0] * d.shape[1], width = d.shape[2] * (pe ? c->model.block : 1);
  double squares = 0;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t at = 0; at < width; at++) {
      double term = term_of(c, &d, i, at, pe);
      squares += term * term;
    }
  free(d.data);
  assert_true(squares > 0);
  return sqrt(squares);
}

static void compare(const vector_case *c, const gradient *g, double least) {
  nsa_tensor want = find(c, g->name);
  const float *a = g->tensor->data, *b = want.data;
  double error = 0, norm = 0;
  for (int64_t i = 0; i < count_of(&want); i++) {
    error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    norm += (double)b[i] * b[i];
  }
  norm = sqrt(norm) > least ? sqrt(norm) : least;
  if (!(sqrt(error) <= TOLERANCE * norm))
    fail_msg("%s: %s: error %g at norm %g", c->name, g->name, sqrt(error), norm);
}

static void test_case(void **state) {
  vector_case c;
  gradients g;
  vector_case_load(&c, *state);
  add_all(&g, &c);
  check_complete(&g, &c);
  nsa_io io = c.io;
  io.block_idx = vector_file_packed(&c.file, "idx");
  assert_int_equal(nsai_reference_backward(&c.model, NSA_SELECT_TOPN, 0, &c.batch, &io, &g.grads,
                                           2),
                   NSA_OK);
  for (int i = 0; i < g.count; i++)
    compare(&c, &g.all[i], terms_norm(&c, g.all[i].name, &io, &g.grads.d_o));
  free_all(&g);
  vector_case_free(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = { VECTOR_CASES(test_case) };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
