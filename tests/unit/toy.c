/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "toy.h"

#include "support/cmocka_all.h"

#include "base/float16.h"

#include <math.h>

nsai_model toy_model(nsai_phi_kind phi) {
  return (nsai_model){ .heads = 6,
                       .kv_heads = 2,
                       .head_dim_qk = 24,
                       .head_dim_v = 16,
                       .block = 8,
                       .stride = 4,
                       .select_block = 16,
                       .select_count = 4,
                       .select_init = 1,
                       .select_local = 2,
                       .window = 20,
                       .dtype = NSA_F32,
                       .phi = phi,
                       .phi_hidden = 10,
                       .phi_activation = NSAI_ACT_GELU,
                       .gate = NSAI_GATE_WEIGHTS };
}

nsa_tensor toy_tensor(toy *t, int32_t dtype, int32_t ndim, int64_t a, int64_t b, int64_t c) {
  int64_t shape[3] = { a, b, c }, stride = 1;
  nsa_tensor tensor = { .ndim = ndim, .dtype = dtype };
  for (int i = ndim - 1; i >= 0; i--) {
    tensor.shape[i] = shape[i];
    tensor.stride[i] = stride;
    stride *= shape[i];
  }
  size_t bytes = (size_t)stride * (dtype == NSA_F32 || dtype == NSA_I32 ? 4 : 2);
  assert_true(t->owned_count < (int)(sizeof t->owned / sizeof *t->owned));
  void *memory = NULL;
  assert_int_equal(posix_memalign(&memory, 32, bytes + 1), 0); /* on the fake GPU */
  tensor.data = t->owned[t->owned_count++] = memory;
  memset(tensor.data, 0xff, bytes);
  return tensor;
}

static double uniform(toy *t) {
  t->random = t->random * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
  return (double)(t->random >> 11) * 0x1p-53 - 0.5;
}

static void randomize(toy *t, const nsa_tensor *tensor, double scale) {
  for (int64_t i = 0; i < toy_count(tensor); i++) {
    /* Three of variance 1/12 make 1/4; twice that sum has variance 1. */
    float value = (float)(2 * scale * (uniform(t) + uniform(t) + uniform(t)));
    uint16_t *half = (uint16_t *)tensor->data + i;
    switch (tensor->dtype) {
    case NSA_BF16: *half = nsai_bf16_from_float(value); break;
    case NSA_F16: *half = nsai_f16_from_float(value); break;
    default: toy_floats(tensor)[i] = value;
    }
  }
}

void toy_randomize(toy *t, const nsa_tensor *tensor) { randomize(t, tensor, 1); }

nsa_tensor toy_offsets(toy *t, int32_t count, const int32_t *lengths) {
  nsa_tensor tensor = toy_tensor(t, NSA_I32, 1, count + 1, 0, 0);
  int32_t *values = toy_ints(&tensor);
  values[0] = 0;
  for (int32_t s = 0; s < count; s++) values[s + 1] = values[s] + lengths[s];
  return tensor;
}

static nsa_tensor random_tensor(toy *t, int32_t ndim, int64_t a, int64_t b, int64_t c) {
  nsa_tensor tensor = toy_tensor(t, t->model.dtype, ndim, a, b, c);
  toy_randomize(t, &tensor);
  return tensor;
}

/* Weights [Hkv, in, out] that keep unit variance. */
static nsa_tensor weights(toy *t, int64_t in, int64_t out) {
  nsa_tensor tensor = toy_tensor(t, t->model.dtype, 3, t->model.kv_heads, in, out);
  randomize(t, &tensor, 1 / sqrt((double)in));
  return tensor;
}

static nsa_phi_side phi_side(toy *t, int64_t dim) {
  const nsai_model *g = &t->model;
  int64_t flat = g->block * dim;
  nsa_phi_side side = { 0 };
  if (nsai_phi_has_weights(g)) side.pe = random_tensor(t, 3, g->kv_heads, g->block, dim);
  if (g->phi == NSAI_PHI_LINEAR) side.w = weights(t, flat, dim);
  if (g->phi == NSAI_PHI_MLP) {
    side.w1 = weights(t, flat, g->phi_hidden);
    side.b1 = random_tensor(t, 2, g->kv_heads, g->phi_hidden, 0);
    side.w2 = weights(t, g->phi_hidden, dim);
    side.b2 = random_tensor(t, 2, g->kv_heads, dim, 0);
  }
  return side;
}

void toy_outputs(toy *t, nsa_io *io, int64_t tokens) {
  const nsai_model *g = &t->model;
  io->o = toy_tensor(t, g->dtype, 3, tokens, g->heads, g->head_dim_v);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (b == NSA_CMP && !nsai_compresses_values(g)) continue;
    io->o_branch[b] = toy_tensor(t, g->dtype, 3, tokens, g->heads, g->head_dim_v);
    io->lse[b] = toy_tensor(t, NSA_F32, 2, tokens, g->heads, 0);
  }
  io->block_idx = toy_tensor(t, NSA_I32, 3, tokens, g->kv_heads, g->select_count);
}

void toy_init(toy *t, const nsai_model *model, int32_t seqs, const int32_t *q_len,
              const int32_t *kv_len) {
  memset(t, 0, sizeof *t);
  t->model = *model;
  t->batch = INIT(nsa_batch, .num_seqs = seqs);
  t->batch.cu_q = toy_offsets(t, seqs, q_len);
  t->batch.cu_kv = toy_offsets(t, seqs, kv_len);
  t->tokens = toy_ints(&t->batch.cu_q)[seqs];
  t->kv_tokens = toy_ints(&t->batch.cu_kv)[seqs];
  t->io = (nsa_io)NSA_IO_INIT;
  t->io.q = random_tensor(t, 3, t->tokens, model->heads, model->head_dim_qk);
  for (int b = 0; b < (model->per_branch ? NSA_BRANCHES : 1); b++) {
    t->io.kv.k[b] = random_tensor(t, 3, t->kv_tokens, model->kv_heads, model->head_dim_qk);
    t->io.kv.v[b] = random_tensor(t, 3, t->kv_tokens, model->kv_heads, model->head_dim_v);
  }
  t->io.phi.k = phi_side(t, model->head_dim_qk);
  if (!model->keys_only) t->io.phi.v = phi_side(t, model->head_dim_v);
  if (model->gate != NSAI_GATE_NONE)
    t->io.gate.value = random_tensor(t, 3, t->tokens, model->heads, NSA_BRANCHES);
  if (model->by == NSAI_BY_INDEX) {
    t->io.index_q = random_tensor(t, 3, t->tokens, model->index_heads, model->index_dim);
    t->io.k_idx = random_tensor(t, 3, t->kv_tokens, 1, model->index_dim);
  }
  toy_outputs(t, &t->io, t->tokens);
}

void toy_free(toy *t) {
  for (int i = 0; i < t->owned_count; i++) free(t->owned[i]);
}

nsa_tensor toy_slice(nsa_tensor tensor, int64_t begin, int64_t count) {
  int64_t size = tensor.dtype == NSA_F32 || tensor.dtype == NSA_I32 ? 4 : 2;
  tensor.data = (char *)tensor.data + begin * tensor.stride[0] * size;
  tensor.shape[0] = count;
  return tensor;
}

void toy_same(const char *what, const nsa_tensor *a, const nsa_tensor *b, int64_t rows) {
  assert_true(a->dtype == b->dtype && a->stride[0] == b->stride[0]);
  int64_t size = a->dtype == NSA_F32 || a->dtype == NSA_I32 ? 4 : 2;
  int64_t bytes = a->stride[0] * size;
  for (int64_t i = 0; i < rows; i++)
    if (memcmp((char *)a->data + i * bytes, (char *)b->data + i * bytes, (size_t)bytes))
      fail_msg("%s: row %d differs", what, (int)i);
}

void toy_same_outputs(const char *what, const nsa_io *a, const nsa_io *b, int64_t rows) {
  toy_same(what, &a->block_idx, &b->block_idx, rows);
  for (int i = 0; i < NSA_BRANCHES; i++) {
    if (!a->lse[i].data && !b->lse[i].data) continue;
    toy_same(what, &a->lse[i], &b->lse[i], rows);
    toy_same(what, &a->o_branch[i], &b->o_branch[i], rows);
  }
  toy_same(what, &a->o, &b->o, rows);
}

bool toy_selects(const toy *t, int64_t row, int64_t head, int64_t block) {
  const nsa_tensor *list = &t->io.block_idx;
  const int64_t n = t->model.select_count;
  const int64_t at = list->ndim == 2 ? row * n : (row * t->model.kv_heads + head) * n;
  for (int64_t i = 0; i < n; i++)
    if (toy_ints(list)[at + i] == block) return true;
  return false;
}
