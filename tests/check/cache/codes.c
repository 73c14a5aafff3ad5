/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A cache in e4m3. The cache under test has codes and scales. The CPU device, which is the reference,
 * has no codes at all: its cache holds the values code * scale in the model's dtype, which represents
 * them exactly, since random scales have at most four significant bits as codes have. So the
 * reference gets new tokens that are already rounded to codes (chk_cache_round_new), and is asked for
 * plain attention over dequantised inputs. The rounding is written here, by nsa/kv_cache.h.
 */
#include "base/float16.h"
#include "scenario.h"

#include <math.h>
#include <string.h>

#define MOST 448.0 /* the greatest value of a code */
#define NAN_CODE 0xff
#define LEAST_STEP 0x1p-9 /* between codes below 2^-5 */

/* ---- codes ---- */

static double value_of(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  double magnitude = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
  if ((code & 0x7f) == 0x7f) magnitude = NAN;
  return code & 0x80 ? -magnitude : magnitude;
}

/* The distance of neighbouring codes around x. */
static double step_at(double x) {
  int exponent;
  frexp(x, &exponent); /* 2^(exponent - 1) <= |x| */
  return fmax(LEAST_STEP, ldexp(1, exponent - 4));
}

static uint8_t code_of(float x) {
  if (isnan(x)) return NAN_CODE;
  const double magnitude = fmin(fabs((double)x), MOST), step = step_at(magnitude);
  const double rounded = rint(magnitude / step) * step; /* ties to even, as codes are */
  int exponent;
  const double mantissa = frexp(rounded, &exponent) * 16;
  int code = (int)(rounded / LEAST_STEP);
  if (rounded >= 8 * LEAST_STEP) code = (exponent + 6) * 8 + (int)mantissa - 8;
  return (uint8_t)(code | (signbit(x) ? 0x80 : 0));
}

/* ---- scales ---- */

static bool has_codes(const chk_cache_options *o, int what) {
  if (what < CHK_CACHE_K_IDX) return o->kv_codes;
  return o->cmp_codes && what <= CHK_CACHE_V_CMP;
}

int32_t chk_cache_dtype(const chk_cache_options *o, int what) {
  return has_codes(o, what) ? NSA_E4M3 : o->model.dtype;
}

/* Around what N(0, 1) needs: the greatest code is 1.75 to 50, so that some saturate. */
static float random_scale(chk_scenario *sc) {
  const uint64_t bits = chk_cache_next(sc);
  return ldexpf((float)(8 + bits % 8), -11 + (int)(bits >> 8) % 5);
}

static nsa_status make_scale(chk_scenario *sc, int what) {
  const int to = CHK_CACHE_SCALES + what;
  const bool shared = !sc->options.head_scales || what == CHK_CACHE_K_IDX;
  const int64_t heads = shared ? 1 : sc->options.model.kv_heads;
  NSAI_TRY(chk_cache_make(sc, to, NSA_F32, 1, &heads));
  for (int64_t i = 0; i < heads; i++) ((float *)(void *)sc->tensor[to].host)[i] = random_scale(sc);
  return chk_cache_upload(sc, to);
}

nsa_status chk_cache_make_scales(chk_scenario *sc) {
  for (int what = CHK_CACHE_K; what <= CHK_CACHE_V_CMP; what++) {
    const bool entries = what >= CHK_CACHE_K_IDX;
    if (!sc->tensor[what].host || !has_codes(&sc->options, what)) continue;
    if (sc->options.scales == CHK_CACHE_SCALES_NONE) continue;
    if (entries && sc->options.scales == CHK_CACHE_SCALES_RAW) continue;
    NSAI_TRY(make_scale(sc, what));
  }
  return NSA_OK;
}

static double scale_of(const chk_scenario *sc, int what, int64_t head) {
  int from = CHK_CACHE_SCALES + what;
  if (what >= CHK_CACHE_K_CMP && !sc->tensor[from].host) /* those of the first pair */
    from = CHK_CACHE_SCALES + (what == CHK_CACHE_K_CMP ? CHK_CACHE_K : CHK_CACHE_V);
  const chk_cache_tensor *t = &sc->tensor[from];
  if (!t->host) return 1;
  return (double)((const float *)(const void *)t->host)[t->view.shape[0] == 1 ? 0 : head];
}

void chk_cache_add_scales(const chk_scenario *sc, nsa_io *io) {
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    io->k_scale[pair] = chk_cache_view(sc, CHK_CACHE_SCALES + CHK_CACHE_K + pair, true);
    io->v_scale[pair] = chk_cache_view(sc, CHK_CACHE_SCALES + CHK_CACHE_V + pair, true);
  }
  io->k_idx_scale = chk_cache_view(sc, CHK_CACHE_SCALES + CHK_CACHE_K_IDX, true);
  io->k_cmp_scale = chk_cache_view(sc, CHK_CACHE_SCALES + CHK_CACHE_K_CMP, true);
  io->v_cmp_scale = chk_cache_view(sc, CHK_CACHE_SCALES + CHK_CACHE_V_CMP, true);
}

/* ---- values in the model's dtype ---- */

static double load(int32_t dtype, const uint8_t *data, int64_t at) {
  const uint16_t bits = ((const uint16_t *)(const void *)data)[at];
  return (double)(dtype == NSA_F16 ? nsai_float_from_f16(bits) : nsai_float_from_bf16(bits));
}

/* Stores what the dtype represents; NaN as memory that was not written. */
static void store(int32_t dtype, uint8_t *data, int64_t at, double x) {
  uint16_t bits = dtype == NSA_F16 ? nsai_f16_from_double(x) : nsai_bf16_from_double(x);
  ((uint16_t *)(void *)data)[at] = isnan(x) ? 0xffff : bits;
}

/* The head of element `at`, whichever of heads and tokens comes first in memory. */
static int64_t head_of(const nsa_tensor *t, int64_t at) {
  const int64_t outer = t->stride[1] > t->stride[2] ? t->stride[1] : t->stride[0];
  return at % outer / t->stride[2];
}

static uint8_t encode(const chk_scenario *sc, int what, int64_t head, double x) {
  return code_of((float)x / (float)scale_of(sc, what, head));
}

void chk_cache_encode(const chk_scenario *sc, int what) {
  const chk_cache_tensor *t = &sc->tensor[what];
  uint8_t *codes = chk_cache_fetched(t);
  for (int64_t i = 0; i < (int64_t)t->gpu.bytes; i++) {
    const int64_t head = head_of(&t->view, i);
    codes[i] = encode(sc, what, head, load(t->view.dtype, t->host, i));
    store(t->view.dtype, t->host, i, value_of(codes[i]) * scale_of(sc, what, head));
  }
}

double chk_cache_stored(const chk_scenario *sc, int what, int64_t at) {
  const chk_cache_tensor *t = &sc->tensor[what];
  if (!t->codes) return load(t->view.dtype, chk_cache_fetched(t), at);
  return value_of(chk_cache_fetched(t)[at]) * scale_of(sc, what, head_of(&t->view, at));
}

void chk_cache_take(chk_scenario *sc, int what, int64_t at) {
  chk_cache_tensor *t = &sc->tensor[what];
  store(t->view.dtype, t->host, at, chk_cache_stored(sc, what, at));
}

bool chk_cache_same(const chk_scenario *sc, int what, int64_t first, int64_t count,
                    int64_t *where) {
  const chk_cache_tensor *t = &sc->tensor[what];
  if (!t->codes &&
      !memcmp(chk_cache_fetched(t) + 2 * first, t->host + 2 * first, 2 * (size_t)count))
    return true;
  for (int64_t i = first; i < first + count; i++) {
    uint16_t got = ((const uint16_t *)(const void *)chk_cache_fetched(t))[t->codes ? 0 : i];
    if (t->codes) store(t->view.dtype, (uint8_t *)&got, 0, chk_cache_stored(sc, what, i));
    *where = i;
    if (got != ((const uint16_t *)(const void *)t->host)[i]) return false;
  }
  return true;
}

double chk_cache_entry_error(const chk_scenario *sc, int what, int64_t at, double least) {
  const chk_cache_tensor *t = &sc->tensor[what];
  double unit = t->view.dtype == NSA_F16 ? 0x1p-10 : 0x1p-7;
  double x = chk_cache_stored(sc, what, at), want = load(t->view.dtype, t->host, at);
  if (isnan(want) && isnan(x)) return 0;
  double bound = unit * fabs(want) + least;
  if (t->codes) {
    const double scale = scale_of(sc, what, head_of(&t->view, at));
    /* Of a saturated entry the reference has more. Half a step, and the reference's own rounding; what
     * products give has been rounded to the model's dtype before, where it may be a neighbour. */
    const bool products = sc->options.model.phi != NSAI_PHI_MEAN;
    want = fmax(-MOST * scale, fmin(MOST * scale, want));
    bound = step_at(want / scale * (1 + 2 * unit)) * scale / 2 + (products ? bound : bound / 2);
  }
  return fabs(x - want) / bound;
}

void chk_cache_round_rows(const chk_scenario *sc, int what, uint8_t *rows, int64_t count) {
  /* FRESH_V and FRESH_INDEX follow as V and K_IDX do. */
  const int cache = what - CHK_CACHE_FRESH_K + CHK_CACHE_K;
  const nsa_tensor *t = &sc->tensor[what].view;
  if (what > CHK_CACHE_FRESH_INDEX || !has_codes(&sc->options, cache)) return;
  for (int64_t i = 0; i < count * t->stride[0]; i++) {
    const int64_t head = i % t->stride[0] / t->stride[1];
    const uint8_t code = encode(sc, cache, head, load(t->dtype, rows, i));
    store(t->dtype, rows, i, value_of(code) * scale_of(sc, cache, head));
  }
}

void chk_cache_round_new(const chk_scenario *sc) {
  for (int what = CHK_CACHE_FRESH_K; what < CHK_CACHE_SELECTION; what++)
    if (sc->tensor[what].host)
      chk_cache_round_rows(sc, what, sc->tensor[what].host, sc->tensor[what].view.shape[0]);
}
