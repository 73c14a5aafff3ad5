/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A cache in e4m3 on the CPU device, through the public API. The expected codes, entries and rows are
 * computed here, in double, from the rules in kv_cache.h: codes by a table of all 256 values, tokens
 * found by the layout's rules, attention over code * scale. Nothing of it is the library's.
 */
#include "support/cmocka_all.h"

#include "base/float16.h"
#include "kv_fixture.h"

#include <math.h>

/* ---- codes ---- */

#define NAN_CODE 0x7f

/* The value of a code by the definition of the format. */
static double value_of(uint8_t code) {
  int exponent = code >> 3 & 15, mantissa = code & 7;
  double magnitude = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
  if ((code & NAN_CODE) == NAN_CODE) magnitude = NAN;
  return code & 0x80 ? -magnitude : magnitude;
}

/* The code nearest to x, of two the even one; at most 448. */
static uint8_t code_of(double x) {
  const double magnitude = fabs(x);
  int low = 0, high = 0x7e; /* values ascend with the codes of one sign */
  if (isnan(x)) return NAN_CODE;
  if (magnitude >= value_of(0x7e)) return (uint8_t)(0x7e | (signbit(x) ? 0x80 : 0));
  while (high - low > 1) {
    int middle = (low + high) / 2;
    if (value_of((uint8_t)middle) <= magnitude)
      low = middle;
    else
      high = middle;
  }
  double below = magnitude - value_of((uint8_t)low), above = value_of((uint8_t)high) - magnitude;
  bool up = above < below || (above == below && low & 1);
  return (uint8_t)((up ? high : low) | (signbit(x) ? 0x80 : 0));
}

/* ---- where everything lies ---- */

typedef enum part { RAW, ENTRY } part;

/* The element at `position` of sequence s: a token of a pair, or the entry whose last token it is. */
static int64_t find(const kv_fixture *w, const nsa_tensor *t, part what, int pair, int32_t s,
                    int64_t position, int64_t head) {
  const int64_t size = w->options.page_size, row = w->options.slots ? KV_SEQS - s : s;
  int64_t at[2] = { row, position };
  if (w->options.ring && what == RAW && pair == NSA_WIN)
    at[1] = position % KV_RING;
  else if (size > 0)
    at[0] = w->page[s][position / size], at[1] = position % size;
  if (what == ENTRY) at[1] /= w->model.stride;
  return at[0] * t->stride[0] + at[1] * t->stride[1] + head * t->stride[2];
}

static double scale_at(const nsa_tensor *scale, int64_t head) {
  if (!scale->data) return 1;
  return (double)toy_floats(scale)[scale->shape[0] == 1 ? 0 : head];
}

/* A stored number, without a scale. */
static double stored(const nsa_tensor *t, int64_t at) {
  if (t->dtype == NSA_E4M3) return value_of(((const uint8_t *)t->data)[at]);
  if (t->dtype == NSA_F32) return (double)toy_floats(t)[at];
  uint32_t bits = (uint32_t)((const uint16_t *)t->data)[at] << 16; /* bf16 */
  float value;
  memcpy(&value, &bits, sizeof value);
  return (double)value;
}

static bool is_k(const nsa_kv *kv, const nsa_tensor *t) {
  return t == &kv->k[0] || t == &kv->k[1] || t == &kv->k[2] || t == &kv->k_cmp;
}

/* The scale that the values of a tensor of the cache have. */
static double scale_of(const kv_fixture *w, const nsa_tensor *t, int64_t head) {
  const nsa_io *io = &w->scales;
  const bool k = is_k(&w->cache, t);
  if (t->dtype != NSA_E4M3) return 1;
  if (t == &w->k_idx) return scale_at(&io->k_idx_scale, 0);
  for (int pair = 0; pair < NSA_BRANCHES; pair++)
    if (t == &w->cache.k[pair] || t == &w->cache.v[pair])
      return scale_at(k ? &io->k_scale[pair] : &io->v_scale[pair], head);
  const nsa_tensor *own = k ? &io->k_cmp_scale : &io->v_cmp_scale;
  return scale_at(own->data ? own : k ? &io->k_scale[0] : &io->v_scale[0], head);
}

/* The values of all that a sequence holds of a tensor, of one head: [tokens or blocks, dim]. */
static double *values_of(const kv_fixture *w, const nsa_tensor *t, part what, int pair, int32_t s,
                         int64_t head) {
  const nsai_model *g = &w->model;
  const int64_t dim = t->shape[3], len = w->len[s];
  const int64_t rows = what == RAW ? len : nsai_block_count(g, len);
  double *out = calloc((size_t)(rows * dim + 1), sizeof *out);
  assert_non_null(out);
  for (int64_t i = 0; i < rows; i++) {
    if (w->options.ring && what == RAW && pair == NSA_WIN && i + KV_RING < len) continue; /* gone */
    int64_t position = what == RAW ? i : i * g->stride + g->block - 1;
    int64_t at = find(w, t, what, pair, s, position, head);
    for (int64_t e = 0; e < dim; e++) out[i * dim + e] = stored(t, at + e) * scale_of(w, t, head);
  }
  return out;
}

/* ---- what an append writes ---- */

/* Every code is the one nearest to float(x / scale); where the pair has no codes, it is x. */
static void expect_raw(const kv_fixture *w, const nsa_tensor *t, const nsa_tensor *source, int pair,
                       int32_t s) {
  int64_t first = toy_ints(&w->toy.batch.cu_q)[s];
  for (int64_t i = 0; i < w->len[s]; i++) {
    if (w->options.ring && pair == NSA_WIN && i + KV_RING < w->len[s]) continue;
    for (int64_t head = 0; head < t->shape[2]; head++) {
      int64_t at = find(w, t, RAW, pair, s, i, head);
      int64_t from = (first + i) * source->stride[0] + head * source->stride[1];
      float scale = (float)scale_of(w, t, head);
      for (int64_t e = 0; e < t->shape[3]; e++) {
        float x = (float)stored(source, from + e);
        if (t->dtype == NSA_E4M3)
          assert_int_equal(((uint8_t *)t->data)[at + e], code_of((double)(x / scale)));
        else
          assert_true(stored(t, at + e) == (double)x);
      }
    }
  }
}

/* phi of a block whose values are `x` [l, dim], before it is rounded. Of a mean it is computed as the
 * contract says, but exactly; the weights are those of phi linear. */
static double phi_of(const kv_fixture *w, const nsa_phi_side *phi, const double *x, int64_t dim,
                     int64_t e, int64_t head) {
  const nsai_model *g = &w->model;
  double sum = 0;
  for (int64_t r = 0; r < g->block; r++) {
    if (g->phi == NSAI_PHI_MEAN) {
      sum += x[r * dim + e]; /* exact */
      continue;
    }
    for (int64_t i = 0; i < dim; i++) {
      double pe = stored(&phi->pe, head * phi->pe.stride[0] + r * phi->pe.stride[1] + i);
      double weight =
          stored(&phi->w, head * phi->w.stride[0] + (r * dim + i) * phi->w.stride[1] + e);
      sum += (x[r * dim + i] + pe) * weight;
    }
  }
  return g->phi == NSAI_PHI_MEAN ? sum / g->block : sum;
}

static void expect_near(const char *what, double got, double want, double bound) {
  if (got == want) return; /* -inf */
  if (!(fabs(got - want) <= bound)) fail_msg("%s is %.9g, expected %.9g", what, got, want);
}

/* An entry is a rounding of phi: as near as any value of its type, but for float32's errors. */
static void expect_entry(const nsa_tensor *t, int64_t at, double scale, double want, double terms) {
  double got = stored(t, at), slack = (fabs(want) + terms) * 1e-6;
  double error = fabs(got * scale - want);
  if (t->dtype == NSA_F32) {
    expect_near("an entry", got, want, slack);
    return;
  }
  double nearest = t->dtype == NSA_E4M3 ? value_of(code_of(want / scale)) * scale : want;
  double least = t->dtype == NSA_E4M3 ? fabs(nearest - want) : fabs(want) * 0x1p-8;
  if (!(error <= least + slack))
    fail_msg("an entry is %.9g, expected %.9g: error %.3g, %.3g at least", got * scale, want, error,
             least);
}

static void expect_entries(const kv_fixture *w, const nsa_tensor *t, const nsa_tensor *source,
                           const nsa_phi_side *phi, int32_t s) {
  const nsai_model *g = &w->model;
  int64_t dim = t->shape[3];
  for (int64_t head = 0; head < t->shape[2]; head++) {
    double *x = values_of(w, source, RAW, 0, s, head);
    for (int64_t i = 0; i < nsai_block_count(g, w->len[s]); i++) {
      int64_t at = find(w, t, ENTRY, 0, s, i * g->stride + g->block - 1, head);
      const double *block = x + i * g->stride * dim;
      /* Sums of products, and those of more than 73 codes, are not exact in float32. */
      double terms = g->phi != NSAI_PHI_MEAN ? 10 : g->block > 73 ? 1 : 0;
      for (int64_t e = 0; e < dim; e++)
        expect_entry(t, at + e, scale_of(w, t, head), phi_of(w, phi, block, dim, e, head), terms);
    }
    free(x);
  }
}

static void expect_cache(const kv_fixture *w) {
  const nsai_model *g = &w->model;
  for (int32_t s = 0; s < w->seqs; s++) {
    for (int pair = 0; pair < NSA_BRANCHES; pair++) {
      if (!nsai_reads_pair(g, pair)) continue;
      expect_raw(w, &w->cache.k[pair], &w->toy.io.kv.k[pair], pair, s);
      expect_raw(w, &w->cache.v[pair], &w->toy.io.kv.v[pair], pair, s);
    }
    expect_entries(w, &w->cache.k_cmp, &w->cache.k[0], &w->toy.io.phi.k, s);
    expect_entries(w, &w->cache.v_cmp, &w->cache.v[0], &w->toy.io.phi.v, s);
  }
}

/* ---- attention ---- */

/* One query of one head over keys `use` of [count, dims]. */
typedef struct row {
  double lse, *p; /* [count] */
  double o[NSAI_MAX_HEAD_DIM];
} row;

static row attend(const kv_fixture *w, const double *q, const double *k, const double *v,
                  int64_t count, const bool *use) {
  const int64_t dk = w->model.head_dim_qk, dv = w->model.head_dim_v;
  row r = { .lse = -INFINITY, .p = calloc((size_t)count + 1, sizeof(double)) };
  double most = -INFINITY, sum = 0;
  assert_non_null(r.p);
  for (int64_t i = 0; i < count; i++) {
    double score = 0;
    for (int64_t e = 0; e < dk; e++) score += q[e] * k[i * dk + e];
    r.p[i] = use[i] ? score / sqrt((double)dk) : -INFINITY;
    most = fmax(most, r.p[i]);
  }
  for (int64_t i = 0; i < count; i++) sum += r.p[i] = use[i] ? exp(r.p[i] - most) : 0;
  if (sum == 0) return r;
  r.lse = most + log(sum);
  for (int64_t i = 0; i < count; i++) {
    r.p[i] /= sum;
    for (int64_t e = 0; use[i] && e < dv; e++) r.o[e] += r.p[i] * v[i * dv + e];
  }
  return r;
}

/* Whether the chosen blocks are the best: forced ones, and no better one left out. */
static void expect_blocks(const nsai_model *g, const int32_t *idx, const double *importance,
                          int64_t t) {
  const int64_t last = t / g->select_block;
  double least = INFINITY;
  bool chosen[KV_MAX_LEN] = { false };
  int64_t count = 0;
  for (int64_t i = 0; i < g->select_count && idx[i] >= 0; i++, count++) chosen[idx[i]] = true;
  assert_int_equal(count, last + 1 < g->select_count ? last + 1 : g->select_count);
  for (int64_t j = 0; j <= last; j++) {
    bool forced = j < g->select_init || j > last - g->select_local;
    if (forced) assert_true(chosen[j]);
    if (chosen[j] && !forced) least = fmin(least, importance[j]);
  }
  for (int64_t j = 0; j <= last; j++)
    if (!chosen[j]) assert_true(importance[j] <= least * (1 + 1e-9) + 1e-12);
}

/* Keys and values of a (sequence, head). */
typedef struct sequence {
  double *k[NSA_BRANCHES], *v[NSA_BRANCHES]; /* entries, selected, window */
} sequence;

static sequence load(const kv_fixture *w, int32_t s, int64_t head) {
  const nsa_kv *kv = &w->cache;
  sequence q = { .k = { values_of(w, &kv->k_cmp, ENTRY, 0, s, head) },
                 .v = { values_of(w, &kv->v_cmp, ENTRY, 0, s, head) } };
  for (int b = 1; b < NSA_BRANCHES; b++) {
    int pair = w->model.per_branch ? b : 0;
    q.k[b] = values_of(w, &kv->k[pair], RAW, pair, s, head);
    q.v[b] = values_of(w, &kv->v[pair], RAW, pair, s, head);
  }
  return q;
}

/* Adds the block sums that importance consists of, of one head. */
static void add_importance(const nsai_model *g, const double *p, int64_t blocks,
                           double *importance) {
  for (int64_t i = 0; i < blocks; i++)
    for (int64_t k = 0; k < g->block; k += g->stride)
      importance[(i * g->stride + k) / g->select_block] += p[i];
}

/* All heads of a KV head at position t, whose outputs are row `at` of `io`. */
static void expect_group(const kv_fixture *w, const nsa_io *io, int64_t at, const sequence *keys,
                         int64_t group, int64_t t, double bound) {
  const nsai_model *g = &w->model;
  const int64_t heads = g->heads / g->kv_heads, blocks = nsai_block_count(g, t + 1);
  const int32_t *idx = toy_ints(&io->block_idx) + (at * g->kv_heads + group) * g->select_count;
  double importance[KV_MAX_LEN] = { 0 };
  bool use[NSA_BRANCHES][KV_MAX_LEN] = { 0 };
  for (int64_t i = 0; i < blocks; i++) use[0][i] = true;
  for (int64_t p = 0; p <= t; p++) {
    for (int64_t i = 0; i < g->select_count; i++) use[1][p] |= idx[i] == p / g->select_block;
    use[2][p] = p > t - g->window;
  }
  for (int64_t h = group * heads; h < (group + 1) * heads; h++) {
    double q[NSAI_MAX_HEAD_DIM], sum[NSAI_MAX_HEAD_DIM] = { 0 };
    for (int64_t e = 0; e < g->head_dim_qk; e++)
      q[e] = stored(&io->q, (at * g->heads + h) * g->head_dim_qk + e);
    for (int b = 0; b < NSA_BRANCHES; b++) {
      row r = attend(w, q, keys->k[b], keys->v[b], b ? t + 1 : blocks, use[b]);
      if (!b) add_importance(g, r.p, blocks, importance);
      double gate = stored(&io->gate.value, (at * g->heads + h) * NSA_BRANCHES + b);
      expect_near("lse", stored(&io->lse[b], at * g->heads + h), r.lse, 1e-5);
      for (int64_t e = 0; e < g->head_dim_v; e++) {
        expect_near("o_branch", stored(&io->o_branch[b], (at * g->heads + h) * g->head_dim_v + e),
                    r.o[e], bound);
        sum[e] += gate * r.o[e];
      }
      free(r.p);
    }
    for (int64_t e = 0; e < g->head_dim_v; e++)
      expect_near("o", stored(&io->o, (at * g->heads + h) * g->head_dim_v + e), sum[e], 4 * bound);
  }
  expect_blocks(g, idx, importance, t);
}

/* The rows of a call that attended, over what the cache now holds. */
static void expect_call(const kv_fixture *w, const kv_call *c, double bound) {
  int64_t at = 0;
  for (int32_t s = 0; s < w->seqs; at += c->q_len[s++])
    for (int64_t head = 0; head < w->model.kv_heads; head++) {
      sequence keys = load(w, s, head);
      for (int64_t i = 0; i < c->q_len[s]; i++)
        expect_group(w, &c->io, at + i, &keys, head, c->at[s] + i, bound);
      for (int b = 0; b < NSA_BRANCHES; b++) {
        free(keys.k[b]);
        free(keys.v[b]);
      }
    }
}

/* ---- the tests ---- */

static void step(kv_fixture *w, const int32_t *q_len, bool decode, double bound) {
  kv_call c;
  kv_call_init(&c, w, q_len, w->len);
  kv_append(&c);
  for (int s = 0; s < w->seqs; s++) w->len[s] += q_len[s];
  expect_cache(w);
  kv_attend(&c, decode);
  expect_call(w, &c, bound);
  kv_call_free(&c);
}

#define F32_BOUND 1e-4 /* of values up to 5, stored in f32 */
#define BF16_BOUND 0.03

static void walk(const machine_request *model, const kv_options *options, double bound) {
  static const int32_t lengths[] = { 131, 70, 5, 33 };
  static const int32_t steps[][KV_SEQS] = {
    { 40, 17, 5, 0 }, { 40, 40, 0, 33 }, { 40, 5, 0, 0 }, { 8, 8, 0, 0 }, { 3, 0, 0, 0 }
  };
  kv_fixture w;
  kv_options narrow = *options;
  for (int i = 0; i < 4; i++)
    if (!narrow.model[i]) {
      narrow.model[i] = "model.head_dim_qk=32"; /* the toy's 24 is no multiple of 16 */
      break;
    }
  kv_init(&w, model, &narrow, KV_SEQS, lengths);
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) step(&w, steps[i], i > 2, bound);
  kv_free(&w);
}

static void test_layouts(void **state) {
  for (size_t i = 0; i < KV_PAGE_SIZES; i++)
    for (int bits = 0; bits < 12; bits++) {
      kv_options options = { .page_size = kv_page_sizes[i],
                             .hnd = bits & 1,
                             .lists = bits & 1 && kv_page_sizes[i] > 0,
                             .ring = bits & 2,
                             .head_scales = bits & 1,
                             .kv_codes = bits >> 2 != 1,
                             .cmp_codes = bits >> 2 != 0 };
      options.slots = options.ring || kv_page_sizes[i] < 0;
      walk(&(machine_request){ .per_branch = true }, &options, F32_BOUND);
      if (!options.ring && bits & 1) walk(&(machine_request){ 0 }, &options, F32_BOUND);
    }
}

static void test_models(void **state) {
  static const kv_options cases[] = {
    { .page_size = 16, .model = { "model.dtype=bf16" } },
    { .page_size = 16, .hnd = true, .model = { "model.dtype=bf16", "model.heads=2" } },
    { .page_size = 16, .model = { "model.compress.block=48", "model.select.block=48" } },
    { .page_size = 32, .model = { "model.compress.block=80", "model.select.block=80" } }, /* > 73 */
    { .page_size = 32, .model = { "model.compress.block=12", "model.select.block=16" } },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int codes = 1; codes < 4; codes++) {
      kv_options options = cases[i];
      options.kv_codes = codes & 1;
      options.cmp_codes = codes & 2;
      options.head_scales = i & 1;
      bool bf16 = options.model[0] && strstr(options.model[0], "bf16");
      walk(&(machine_request){ 0 }, &options, bf16 ? BF16_BOUND : F32_BOUND);
    }
}

static void test_linear(void **state) {
  for (int codes = 1; codes < 4; codes++) {
    const kv_options options = {
      .page_size = 16, .kv_codes = codes & 1, .cmp_codes = codes & 2, .head_scales = true
    };
    walk(&(machine_request){ .phi = NSAI_PHI_LINEAR, .per_branch = true }, &options,
         F32_BOUND * 100);
  }
}

/* The bytes of one of the cache's tensors. */
static size_t bytes_of(const nsa_tensor *t) {
  return (size_t)(t->shape[0] * t->stride[0]) * (t->dtype == NSA_E4M3 ? 1 : 4);
}

static void keep_or_compare(const kv_fixture *w, void *kept[9], bool keep) {
  const nsa_kv *c = &w->cache;
  const nsa_tensor *all[] = { &c->k[0], &c->v[0],  &c->k[1],  &c->v[1],  &c->k[2],
                              &c->v[2], &c->k_cmp, &c->v_cmp, &w->k_norm };
  for (int i = 0; i < 9; i++) {
    if (!all[i]->data) continue;
    if (keep) {
      kept[i] = malloc(bytes_of(all[i]));
      assert_non_null(kept[i]);
      memcpy(kept[i], all[i]->data, bytes_of(all[i]));
    } else {
      assert_memory_equal(kept[i], all[i]->data, bytes_of(all[i]));
      memset(all[i]->data, 0xff, bytes_of(all[i]));
    }
  }
}

/* Coarse keys have the model's dtype, and are the means of the values that the codes stand for. */
static void expect_norms(const kv_fixture *w) {
  const nsai_model *g = &w->model;
  const int64_t size = w->options.page_size;
  for (int64_t m = 0; m * g->norm_stride + g->norm_block <= kv_length(w, 0); m++)
    for (int64_t head = 0; head < g->kv_heads; head++)
      for (int64_t e = 0; e < g->head_dim_qk; e++) {
        const int64_t first = m * g->norm_stride, last = first + g->norm_block - 1;
        const nsa_tensor *k = &w->cache.k[0], *out = &w->k_norm, *scale = &w->scales.k_scale[0];
        double mean = 0;
        for (int64_t t = first; t <= last; t++) {
          const int64_t at = w->page[0][t / size] * k->stride[0] + t % size * k->stride[1] +
                             head * k->stride[2] + e;
          mean += k->dtype == NSA_E4M3
                      ? (double)nsai_float_from_e4m3(((uint8_t *)k->data)[at]) *
                            (double)toy_floats(scale)[scale->shape[0] > 1 ? head : 0]
                      : (double)toy_floats(k)[at];
        }
        mean /= (double)g->norm_block;
        const double got = (double)toy_floats(
            out)[w->page[0][last / size] * out->stride[0] +
                 last % size / g->norm_stride * out->stride[1] + head * out->stride[2] + e];
        if (!(fabs(got - mean) <= 1e-6 * (1 + fabs(mean))))
          fail_msg("coarse key %d: %g, expected %g", (int)m, got, mean);
      }
}

/* One prefill of all tokens; then two of every split, and decoding from some on: the same bits of the
 * cache and of every row. */
static void test_every_split(void **state) {
  static const int32_t length = 75, zero = 0, one = 1;
  for (int codes = 1; codes < 4; codes++)
    for (int phi = NSAI_PHI_MEAN; phi <= NSAI_PHI_MLP; phi++) {
      const kv_options options = { .page_size = 32,
                                   .kv_codes = codes & 1,
                                   .cmp_codes = codes & 2,
                                   .model = { "model.head_dim_qk=32" } };
      void *kept[9] = { NULL };
      kv_fixture w;
      kv_call all;
      const machine_request model = { .phi = (nsai_phi_kind)phi,
                                      .per_branch = true,
                                      .normalized = phi == NSAI_PHI_MEAN };
      kv_init(&w, &model, &options, 1, &length);
      kv_call_init(&all, &w, &length, &zero);
      kv_append(&all);
      if (model.normalized) expect_norms(&w);
      kv_attend(&all, false);
      w.want = all.io;
      keep_or_compare(&w, kept, true);
      for (int32_t at = 0; at <= length; at += phi == NSAI_PHI_MEAN ? 1 : 11) {
        int32_t rest = length - at;
        w.len[0] = 0;
        if (at) kv_step(&w, &at, false);
        if (rest && at % 8)
          kv_step(&w, &rest, false);
        else
          while (w.len[0] < length) kv_step(&w, &one, true);
        keep_or_compare(&w, kept, false);
      }
      for (int i = 0; i < 9; i++) free(kept[i]);
      kv_call_free(&all);
      kv_free(&w);
    }
}

/* Values beyond 448 scales, infinities, ties, and NaN, whose code is NaN and whose entries are, too. */
static void test_extremes(void **state) {
  static const int32_t length = 16, zero = 0;
  const kv_options options = {
    .page_size = 16, .kv_codes = true, .cmp_codes = true, .model = { "model.head_dim_qk=32" }
  };
  kv_fixture w;
  kv_call c;
  kv_init(&w, &(machine_request){ 0 }, &options, 1, &length);
  toy_floats(&w.scales.k_scale[0])[0] = 0.5f;
  toy_floats(&w.scales.k_cmp_scale)[0] = 0.25f;
  toy_floats(&w.scales.v_scale[0])[0] = 7;
  toy_floats(&w.toy.io.kv.v[0])[0] = 10.9375f; /* 7 * 1.5625, a tie; but not times float(1 / 7) */
  static const struct {
    float x;
    uint8_t code;
  } cases[] = { { 224, 0x7e },          { 225, 0x7e }, { -1e30f, 0xfe }, { INFINITY, 0x7e },
                { -INFINITY, 0xfe },    { 0, 0 },      { -0.0f, 0x80 },  { 0x1p-10f, 1 },
                { 0x1p-11f, 0 },                         /* half the smallest code */
                { 0x1.000002p-11f, 1 },                  /* more than half */
                { 3 * 0x1p-11f, 2 },                     /* between 1 and 2 */
                { 8.5f, 0x58 | 0 },                      /* 17: a tie of 16 and 18 */
                { 9.5f, 0x5a | 0 },                      /* 19: a tie of 18 and 20 */
                { -9.0f, 0xd9 },                         /* 18 */
                { NAN, NAN_CODE },      { 216, 0x7e } }; /* 432: a tie of 416 and 448 */
  enum { COUNT = sizeof cases / sizeof *cases };
  for (int i = 0; i < COUNT; i++) toy_floats(&w.toy.io.kv.k[0])[3 * 64 + i] = cases[i].x;
  kv_call_init(&c, &w, &length, &zero);
  kv_append(&c);
  w.len[0] = length;
  expect_raw(&w, &w.cache.k[0], &w.toy.io.kv.k[0], 0, 0);
  assert_int_equal(((uint8_t *)w.cache.v[0].data)[find(&w, &w.cache.v[0], RAW, 0, 0, 0, 0)], 0x3c);
  int64_t token = find(&w, &w.cache.k[0], RAW, 0, 0, 3, 0);
  int64_t entry = find(&w, &w.cache.k_cmp, ENTRY, 0, 0, 7, 0); /* the block of tokens 0 to 7 */
  const uint8_t *codes = w.cache.k[0].data, *entries = w.cache.k_cmp.data;
  for (int i = 0; i < COUNT; i++) {
    assert_int_equal(codes[token + i], cases[i].code);
    bool is_nan = (entries[entry + i] & NAN_CODE) == NAN_CODE;
    assert_int_equal(is_nan, cases[i].code == NAN_CODE);
  }
  kv_call_free(&c);
  kv_free(&w);
}

/* Without any scale all are 1; without those of the entries, the first pair's. */
static void test_absent_scales(void **state) {
  static const int32_t length = 40, zero = 0;
  const kv_options options = { .page_size = 16,
                               .kv_codes = true,
                               .cmp_codes = true,
                               .head_scales = true,
                               .model = { "model.head_dim_qk=32" } };
  for (int without = 0; without < 2; without++) {
    kv_fixture w;
    kv_call c;
    kv_init(&w, &(machine_request){ .per_branch = true }, &options, 1, &length);
    w.scales.k_cmp_scale = w.scales.v_cmp_scale = (nsa_tensor){ 0 };
    for (int pair = 0; without && pair < NSA_BRANCHES; pair++)
      w.scales.k_scale[pair] = w.scales.v_scale[pair] = (nsa_tensor){ 0 };
    kv_call_init(&c, &w, &length, &zero);
    kv_append(&c);
    w.len[0] = length;
    expect_cache(&w);
    kv_attend(&c, false);
    expect_call(&w, &c, F32_BOUND);
    kv_call_free(&c);
    kv_free(&w);
  }
}

/* ---- index keys ---- */

/* Every key of the packed sequences as its code's value; the caller frees what they were. */
static float *round_keys(kv_fixture *w) {
  const nsa_tensor *k = &w->toy.io.k_idx;
  const size_t count = (size_t)(k->shape[0] * k->stride[0]);
  const float scale = toy_floats(&w->scales.k_idx_scale)[0];
  float *x = toy_floats(k), *kept = malloc(count * sizeof *kept);
  assert_non_null(kept);
  memcpy(kept, x, count * sizeof *kept);
  for (size_t i = 0; i < count; i++)
    x[i] = (float)(value_of(code_of((double)(x[i] / scale))) * (double)scale);
  return kept;
}

/* An append rounds index keys to codes. Prefill in chunks and decode steps then choose what one forward
 * over the rounded keys chooses. */
static void test_index_keys(void **state) {
  static const int32_t lengths[] = { 131, 70, 5, 33 };
  static const int32_t steps[][KV_SEQS] = {
    { 40, 17, 5, 0 }, { 40, 40, 0, 33 }, { 40, 5, 0, 0 }, { 8, 8, 0, 0 }, { 3, 0, 0, 0 }
  };
  for (size_t i = 0; i < KV_PAGE_SIZES; i++) {
    const kv_options options = { .page_size = kv_page_sizes[i],
                                 .hnd = i & 1,
                                 .lists = i & 1 && kv_page_sizes[i] > 0,
                                 .slots = kv_page_sizes[i] < 0,
                                 .cmp_codes = true,
                                 .model = { "model.index.dim=48" } };
    kv_fixture w;
    kv_init(&w, &kv_indexed, &options, KV_SEQS, lengths);
    assert_int_equal(w.k_idx.dtype, NSA_E4M3);
    float *keys = round_keys(&w);
    kv_oracle(&w);
    const nsa_tensor *k = &w.toy.io.k_idx;
    memcpy(k->data, keys, (size_t)(k->shape[0] * k->stride[0]) * sizeof *keys);
    free(keys);
    for (size_t step = 0; step < sizeof steps / sizeof *steps; step++)
      kv_step(&w, steps[step], step > 2);
    for (int s = 0; s < KV_SEQS; s++) expect_raw(&w, &w.k_idx, k, NSA_SEL, s);
    kv_free(&w);
  }
}

/* The scale multiplies the importance of probed rows, and changes no block. */
static void test_index_scale(void **state) {
  static const int32_t length = 75, zero = 0;
  const kv_options options = { .page_size = 16,
                               .cmp_codes = true,
                               .model = { "model.index.dim=48" } };
  const nsa_problem p =
      INIT(nsa_problem, .op = NSA_OP_PREFILL, .page_size = 16, .max_seqs = KV_SEQS,
           .max_tokens = KV_MAX_TOKENS, .max_kv_len = KV_MAX_LEN, .max_probe_rows = 1,
           .cmp_dtype = NSA_E4M3, .index_lse = 1);
  kv_fixture w;
  kv_call c[2];
  kv_init(&w, &kv_indexed, &options, 1, &length);
  nsa_plan *plan = machine_plan(w.ctx, &p);
  for (int i = 0; i < 2; i++) {
    kv_call_init(&c[i], &w, &length, &zero);
    if (i) toy_floats(&c[i].io.k_idx_scale)[0] *= 4; /* of the same codes */
    if (!i) kv_append(&c[i]);
    c[i].io.probe_rows = toy_tensor(&w.memory, NSA_I32, 1, 1, 0, 0);
    toy_ints(&c[i].io.probe_rows)[0] = length - 1;
    c[i].io.probe_importance = toy_tensor(&w.memory, NSA_F32, 3, 1, w.model.kv_heads,
                                          nsai_select_block_count(&w.model, KV_MAX_LEN));
    machine_expect("prefill", nsa_prefill(plan, &w.exec, &c[i].batch, &c[i].io), NSA_OK, NULL);
  }
  const nsa_tensor *idx = &c[0].io.block_idx, *importance = &c[0].io.probe_importance;
  assert_memory_equal(idx->data, c[1].io.block_idx.data, (size_t)(length * idx->stride[0]) * 4);
  for (int64_t j = 0; j < importance->stride[0]; j++)
    assert_true(toy_floats(&c[1].io.probe_importance)[j] == 4 * toy_floats(importance)[j]);
  assert_true(toy_floats(importance)[0] != 0);
  for (int i = 0; i < 2; i++) kv_call_free(&c[i]);
  nsa_plan_destroy(plan);
  kv_free(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_layouts),    cmocka_unit_test(test_models),
    cmocka_unit_test(test_linear),     cmocka_unit_test(test_every_split),
    cmocka_unit_test(test_extremes),   cmocka_unit_test(test_absent_scales),
    cmocka_unit_test(test_index_keys), cmocka_unit_test(test_index_scale),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
