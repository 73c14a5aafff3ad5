/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/inputs.h"

#include "base/float16.h"
#include "run/check_tensor.h"
#include "verify/parallel.h"

#include <math.h>
#include <stdlib.h>

/* Streams of random numbers; branch and head are added to them. */
enum {
  STREAM_Q = 1000,
  STREAM_SHARED = 2000,
  STREAM_K = 3000,
  STREAM_NOISE = 4000,
  STREAM_V = 5000,
  STREAM_INDEX_Q = 6000,
  STREAM_K_IDX = 7000,
  STREAM_INDEX_NOISE = 8000
};

/* Correlated inputs. With these constants the free selections of adjacent tokens overlap by r
 * between 0.75 and 0.80 at 64k tokens with the dimensions of the speed targets (group size 16,
 * Dk 128, l 32, d 16, 16 blocks of 64, 3 forced). This is measured over all rows, including the
 * early ones with few candidates. Traces of trained models have 0.6 to 0.8. Unit-variance noise
 * has r = 0.06 there. */
#define QUERY_AR 0.975f
#define HEAD_SHARE 0.5f     /* of a query's variance, common to the heads of a group */
#define LOGIT_STD 2.0       /* of compressed logits */
#define KEY_CORRELATION 0.9 /* between neighbouring compressed keys */
#define KEY_NOISE 0.25      /* share of white noise in a raw key's variance */
#define LARGE_SCALE 6.0f    /* of q and of k: raw logits of standard deviation 36 */
#define TINY_SCALE 0x1p-10f

nsa_tensor nsai_verify_tensor(int32_t dtype, int32_t ndim, const int64_t *shape) {
  nsa_tensor t = { .ndim = ndim, .dtype = dtype };
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    t.shape[i] = shape[i];
    t.stride[i] = stride;
    stride *= shape[i] ? shape[i] : 1;
  }
  return t;
}

size_t nsai_verify_tensor_bytes(const nsa_tensor *t) {
  return (size_t)(t->shape[0] * t->stride[0]) * (size_t)nsai_dtype_bytes(t->dtype);
}

nsa_status nsai_verify_tensor_alloc(int32_t dtype, int32_t ndim, const int64_t *shape,
                                    nsa_tensor *out) {
  *out = nsai_verify_tensor(dtype, ndim, shape);
  out->data = calloc(nsai_verify_tensor_bytes(out) + 1, 1);
  return out->data ? NSA_OK
                   : nsai_fail_nomem("a tensor of the reference", nsai_verify_tensor_bytes(out));
}

float nsai_verify_load(const nsa_tensor *t, int64_t offset) {
  if (t->dtype == NSA_F32) return ((const float *)t->data)[offset];
  if (t->dtype == NSA_E4M3) return nsai_float_from_e4m3(((const uint8_t *)t->data)[offset]);
  uint16_t bits = ((const uint16_t *)t->data)[offset];
  return t->dtype == NSA_BF16 ? nsai_float_from_bf16(bits) : nsai_float_from_f16(bits);
}

double nsai_verify_at(const nsa_tensor *t, int64_t row, int64_t head, int64_t i) {
  return (double)nsai_verify_load(t, row * t->stride[0] + head * t->stride[1] + i);
}

void nsai_verify_store(const nsa_tensor *t, int64_t offset, float value) {
  if (t->dtype == NSA_F32)
    ((float *)t->data)[offset] = value;
  else if (t->dtype == NSA_E4M3)
    ((uint8_t *)t->data)[offset] = nsai_e4m3_from_float(value);
  else
    ((uint16_t *)t->data)[offset] =
        t->dtype == NSA_BF16 ? nsai_bf16_from_float(value) : nsai_f16_from_float(value);
}

void nsai_verify_copy_rows(const nsa_tensor *to, const nsa_tensor *from, int64_t skip,
                           int64_t rows) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t h = 0; h < from->shape[1]; h++)
      for (int64_t i = 0; i < from->shape[2]; i++)
        nsai_verify_store(to, r * to->stride[0] + h * to->stride[1] + i,
                          (float)nsai_verify_at(from, r + skip, h, i));
}

/* ---- white ----------------------------------------------------------------------------------- */

typedef struct white {
  const nsa_tensor *t;
  uint64_t key;
  float scale;
  int constant; /* 1: every row of dimension 0 is the same */
} white;

/* Fills index `row` of the first dimension. */
static void white_row(void *user, int64_t row) {
  const white *w = user;
  const nsa_tensor *t = w->t;
  int64_t n1 = t->ndim > 1 ? t->shape[t->ndim - 1] : 1, n0 = t->ndim > 2 ? t->shape[1] : 1;
  uint64_t counter = w->constant ? 0 : (uint64_t)(row * n0 * n1);
  for (int64_t i = 0; i < n0; i++) {
    int64_t offset = row * t->stride[0] + (t->ndim > 2 ? i * t->stride[1] : 0);
    for (int64_t j = 0; j < n1; j++, counter++)
      nsai_verify_store(t, offset + j, w->scale * nsai_verify_normal(w->key, counter));
  }
}

static void fill_white(const nsai_verify_inputs *in, uint64_t stream, float scale, int constant,
                       const nsa_tensor *t) {
  white w = { t, nsai_verify_key(in->seed, stream), scale, constant };
  nsai_verify_parallel(in->threads, t->shape[0], white_row, &w);
}

void nsai_verify_fill_normal(const nsai_verify_inputs *in, uint64_t stream, float scale,
                             const nsa_tensor *t) {
  fill_white(in, stream, scale, 0, t);
}

/* ---- correlated ------------------------------------------------------------------------------ */

/* x[t] = level * (smooth * process[t] + rough * other[t]), per head and channel. `process` is
 * AR(1) with coefficient `a`, `other` is AR(1) with coefficient `b` (0: white). */
typedef struct process {
  const nsa_tensor *t;
  uint64_t seed, stream, other_stream;
  float a, b, smooth, rough, level;
  int32_t heads_per_process; /* number of heads that share `process` */
} process;

/* Heads that have memory of their own; with stride 0 all of them are one. */
static int64_t stored_heads(const nsa_tensor *t) { return t->stride[1] ? t->shape[1] : 1; }

static void process_head(void *user, int64_t head) {
  const process *p = user;
  const nsa_tensor *t = p->t;
  int64_t dim = t->shape[2];
  uint64_t key = nsai_verify_key(p->seed, p->stream + (uint64_t)(head / p->heads_per_process));
  uint64_t other_key = nsai_verify_key(p->seed, p->other_stream + (uint64_t)head);
  float x[NSAI_MAX_HEAD_DIM] = { 0 }, y[NSAI_MAX_HEAD_DIM] = { 0 };
  float fresh_x = sqrtf(1 - p->a * p->a), fresh_y = sqrtf(1 - p->b * p->b);
  for (int64_t row = 0; row < t->shape[0]; row++) {
    int64_t offset = row * t->stride[0] + head * t->stride[1];
    for (int64_t c = 0; c < dim; c++) {
      uint64_t counter = (uint64_t)(row * dim + c);
      float nx = nsai_verify_normal(key, counter), ny = nsai_verify_normal(other_key, counter);
      /* The first token draws from the stationary distribution. */
      x[c] = row ? p->a * x[c] + fresh_x * nx : nx;
      y[c] = row ? p->b * y[c] + fresh_y * ny : ny;
      nsai_verify_store(t, offset + c, p->level * (p->smooth * x[c] + p->rough * y[c]));
    }
  }
}

/* Covariance of two means over l values of an AR(1) of variance 1, `shift` values apart. */
static double mean_covariance(double b, int32_t l, int32_t shift) {
  double sum = 0;
  for (int32_t lag = -(l - 1); lag <= l - 1; lag++)
    sum += (l - abs(lag)) * pow(b, abs(lag + shift));
  return sum / l / l;
}

/* The coefficient of the smooth part and the level of keys, from the required correlation of
 * compressed keys. It increases with b, so bisection finds the coefficient. */
static void key_constants(const nsai_model *g, float *a, float *level) {
  double low = 0, high = 1, variance = 1;
  int32_t shared = g->block > g->stride ? g->block - g->stride : 0;
  double noise = KEY_NOISE / g->block, common = KEY_NOISE * shared / g->block / g->block;
  for (int i = 0; i < 60; i++) {
    double b = (low + high) / 2;
    variance = (1 - KEY_NOISE) * mean_covariance(b, g->block, 0) + noise;
    double cov = (1 - KEY_NOISE) * mean_covariance(b, g->block, g->stride) + common;
    if (cov / variance < KEY_CORRELATION)
      low = b;
    else
      high = b;
  }
  *a = (float)low;
  *level = (float)(LOGIT_STD / sqrt(variance));
}

/* The scale of a fill's q and k. */
static float fill_scale(nsai_verify_fill fill) {
  return fill == NSAI_VERIFY_FILL_LARGE  ? LARGE_SCALE
         : fill == NSAI_VERIFY_FILL_TINY ? TINY_SCALE
                                         : 1;
}

void nsai_verify_fill_queries(const nsai_verify_inputs *in, const nsa_tensor *q) {
  const nsai_model *g = in->model;
  if (in->fill != NSAI_VERIFY_FILL_CORRELATED) {
    fill_white(in, STREAM_Q, fill_scale(in->fill), 0, q);
    return;
  }
  process p = { .t = q,
                .seed = in->seed,
                .stream = STREAM_SHARED,
                .other_stream = STREAM_Q,
                .a = QUERY_AR,
                .b = QUERY_AR,
                .smooth = sqrtf(HEAD_SHARE),
                .rough = sqrtf(1 - HEAD_SHARE),
                .level = 1,
                .heads_per_process = g->heads / g->kv_heads };
  nsai_verify_parallel(in->threads, stored_heads(q), process_head, &p);
}

void nsai_verify_fill_keys(const nsai_verify_inputs *in, int branch, const nsa_tensor *k) {
  uint64_t stream = STREAM_K + 100u * (uint64_t)branch;
  if (in->fill != NSAI_VERIFY_FILL_CORRELATED) {
    fill_white(in, stream, fill_scale(in->fill), in->fill == NSAI_VERIFY_FILL_CONSTANT, k);
    return;
  }
  process p = { .t = k,
                .seed = in->seed,
                .stream = stream,
                .other_stream = STREAM_NOISE + 100u * (uint64_t)branch,
                .smooth = sqrtf(1 - (float)KEY_NOISE),
                .rough = sqrtf((float)KEY_NOISE),
                .heads_per_process = 1 };
  key_constants(in->model, &p.a, &p.level);
  nsai_verify_parallel(in->threads, stored_heads(k), process_head, &p);
}

void nsai_verify_fill_values(const nsai_verify_inputs *in, int branch, const nsa_tensor *v) {
  fill_white(in, STREAM_V + 100u * (uint64_t)branch,
             in->fill == NSAI_VERIFY_FILL_TINY ? TINY_SCALE : 1, 0, v);
}

/* One tensor of the index: like queries, without a part that heads share. `noise`: share of white noise in
 * the variance, of keys alone. With it in queries, too, tokens side by side would choose other blocks: on
 * an H200 the lists of 64k tokens shared 38 % with those before instead of 77. */
static void fill_index(const nsai_verify_inputs *in, uint64_t stream, int constant, float noise,
                       const nsa_tensor *t) {
  if (in->fill != NSAI_VERIFY_FILL_CORRELATED) {
    fill_white(in, stream, fill_scale(in->fill), constant, t);
    return;
  }
  process p = { .t = t,
                .seed = in->seed,
                .stream = stream,
                .other_stream = STREAM_INDEX_NOISE + stream,
                .a = QUERY_AR,
                .smooth = sqrtf(1 - noise),
                .rough = sqrtf(noise),
                .level = 1,
                .heads_per_process = 1 };
  nsai_verify_parallel(in->threads, t->shape[1], process_head, &p);
}

void nsai_verify_fill_index_q(const nsai_verify_inputs *in, const nsa_tensor *index_q) {
  fill_index(in, STREAM_INDEX_Q, 0, 0, index_q);
}

void nsai_verify_fill_k_idx(const nsai_verify_inputs *in, const nsa_tensor *k_idx) {
  fill_index(in, STREAM_K_IDX, in->fill == NSAI_VERIFY_FILL_CONSTANT, (float)KEY_NOISE, k_idx);
}

/* ---- overlap --------------------------------------------------------------------------------- */

const int32_t *nsai_verify_index_row(const nsa_tensor *index, int64_t t, int64_t head) {
  return (const int32_t *)index->data + t * index->stride[0] + head * index->stride[1];
}

static int32_t is_forced(const nsai_model *g, int64_t t, int32_t block) {
  return block < g->select_init || block > t / g->select_block - g->select_local;
}

/* Number of different blocks in the ascending lists of tokens t .. t + count - 1. */
static int64_t union_size(const nsai_model *g, const nsa_tensor *index, int64_t t, int64_t head,
                          int count) {
  int32_t at[8] = { 0 };
  int64_t size = 0;
  for (;; size++) {
    int32_t least = INT32_MAX;
    for (int i = 0; i < count; i++)
      if (at[i] < g->select_count && nsai_verify_index_row(index, t + i, head)[at[i]] < least)
        least = nsai_verify_index_row(index, t + i, head)[at[i]];
    if (least == INT32_MAX) return size;
    for (int i = 0; i < count; i++)
      if (at[i] < g->select_count && nsai_verify_index_row(index, t + i, head)[at[i]] == least)
        at[i]++;
  }
}

/* The fraction of token t's free blocks that token t - 1 selects too; -1 when it has none. */
static double shared_share(const nsai_model *g, const nsa_tensor *index, int64_t t, int64_t head,
                           int64_t position) {
  const int32_t *now = nsai_verify_index_row(index, t, head),
                *before = nsai_verify_index_row(index, t - 1, head);
  int32_t free_blocks = 0, kept = 0;
  for (int32_t i = 0, j = 0; i < g->select_count; i++) {
    if (is_forced(g, position, now[i])) continue;
    free_blocks++;
    while (j < g->select_count && before[j] < now[i]) j++;
    kept += j < g->select_count && before[j] == now[i];
  }
  return free_blocks ? (double)kept / free_blocks : -1;
}

void nsai_verify_overlap_measure(const nsai_model *g, const nsa_tensor *index, int64_t first,
                                 nsai_verify_overlap *out) {
  double r = 0, u4 = 0, u8 = 0;
  int64_t pairs = 0, fours = 0, eights = 0, tokens = index->shape[0];
  *out = (nsai_verify_overlap){ 0 };
  if (g->select_count < 1) return;
  for (int64_t head = 0; head < g->kv_heads; head++)
    for (int64_t t = 1; t < tokens; t++) {
      /* A list is full when its last entry is not -1; rows after a full one are full too. */
      if (nsai_verify_index_row(index, t - 1, head)[g->select_count - 1] < 0) continue;
      out->rows++;
      double share = shared_share(g, index, t, head, first + t);
      if (share >= 0) r += share, pairs++;
      if (t % 4 == 0 && t + 4 <= tokens) u4 += (double)union_size(g, index, t, head, 4), fours++;
      if (t % 8 == 0 && t + 8 <= tokens) u8 += (double)union_size(g, index, t, head, 8), eights++;
    }
  out->r = pairs ? r / (double)pairs : 0;
  out->u4 = fours ? u4 / (double)fours : 0;
  out->u8 = eights ? u8 / (double)eights : 0;
}
