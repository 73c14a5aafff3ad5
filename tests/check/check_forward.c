/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_forward against the float64 reference: each stage on its own inputs (the compressed keys as
 * the library stored them, its own block indices), then the whole from the raw inputs.
 */
#include "check.h"

#include "compare.h"
#include "parallel.h"
#include "rows.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The problem as the reference shall see it: inputs of the case, outputs of the run. */
typedef struct oracle {
  nsai_geometry geometry;
  int32_t selection;
  uint32_t branches;
  nsa_batch batch;
  nsa_io io;
  int threads;
} oracle;

/* raw 0: phi is external, the compressed K and V are the library's own, if it made some. The CPU
 * device computes on with its float64 blocks, not with the rounded ones that it hands out. */
static oracle make_oracle(const chk_bench *bench, int raw) {
  const chk_case *c = bench->c;
  oracle o = { .geometry = c->geometry,
               .selection = c->selection,
               .branches = c->branches,
               .threads = chk_session_opts(bench->session)->threads };
  chk_data_io(&bench->data, CHK_HOST, &o.batch, &o.io);
  if (!raw && o.io.kv.k_cmp.data && bench->data.device->driver) o.geometry.phi = NSAI_PHI_EXTERNAL;
  if (chk_data_has(&bench->data, CHK_INDEX)) o.selection = NSA_SELECT_BLOCKS;
  return o;
}

static nsa_status run_oracle(const chk_bench *bench, oracle *o, nsai_reference_rows *rows) {
  return nsai_reference_forward_rows(&o->geometry, o->selection, o->branches,
                                     chk_data_batch(&bench->data, &o->batch), &o->io, rows,
                                     o->threads);
}

/* ---- compress -------------------------------------------------------------------------------- */

/* Compares the fetched k_cmp and v_cmp with the reference's, rounded to f32. */
static nsa_status judge_compressed(chk_bench *bench, chk_result *result) {
  chk_data *d = &bench->data;
  const chk_case *c = bench->c;
  oracle o = make_oracle(bench, 1);
  nsa_tensor *want[2] = { &o.io.kv.k_cmp, &o.io.kv.v_cmp }, got[2] = { *want[0], *want[1] };
  float *room[2] = { NULL, NULL };
  nsa_status status = NSA_OK;
  for (int i = 0; i < 2; i++) {
    nsa_tensor *w = want[i];
    got[i].shape[0] = w->shape[0] = d->blocks;
    w->dtype = NSA_F32;
    w->stride[1] = w->shape[2];
    w->stride[0] = w->shape[1] * w->shape[2];
    room[i] = malloc((size_t)(w->shape[0] * w->stride[0] + 1) * sizeof(float));
    w->data = room[i];
    if (!room[i]) NSAI_TRY_TO(done, nsai_fail_nomem("compressed blocks", 0));
  }
  NSAI_TRY_TO(done,
              nsai_reference_compress(&o.geometry, chk_data_batch(d, &o.batch), &o.io, o.threads));
  chk_tolerance tolerance = chk_tolerance_of(CHK_STAGE, c->geometry.dtype);
  chk_compare_tensors("k_cmp", tolerance, &got[0], want[0], result);
  chk_compare_tensors("v_cmp", tolerance, &got[1], want[1], result);
done:
  free(room[0]);
  free(room[1]);
  return status;
}

/* With mean phi the last sequence alone gives the bits it has in the batch. */
static nsa_status judge_alone(chk_bench *bench, chk_result *result) {
  chk_case alone = *bench->c;
  chk_bench other;
  int32_t last = alone.num_seqs - 1;
  alone.num_seqs = 1;
  alone.q_len[0] = alone.q_len[last];
  alone.kv_len[0] = alone.kv_len[last];
  int64_t rows = alone.kv_len[0], skip = bench->data.kv_tokens - rows;
  nsa_status status;
  NSAI_TRY_TO(done, chk_bench_create(bench->session, &alone, &other));
  for (int slot = CHK_K0; slot <= CHK_V0; slot += CHK_V0 - CHK_K0) {
    nsa_tensor from = chk_data_view(&bench->data, slot, CHK_HOST),
               to = chk_data_view(&other.data, slot, CHK_HOST);
    chk_copy_rows(&to, &from, skip, rows);
    NSAI_TRY_TO(done, chk_buffer_upload(bench->data.device, &other.data.buffer[slot]));
  }
  NSAI_TRY_TO(done, chk_bench_run(&other));
  for (int slot = CHK_K_CMP; slot <= CHK_V_CMP; slot++) {
    nsa_tensor batch = chk_data_view(&bench->data, slot, CHK_HOST),
               one = chk_data_view(&other.data, slot, CHK_HOST);
    int64_t first = bench->data.blocks - other.data.blocks;
    for (int64_t r = 0; r < other.data.blocks; r++)
      for (int64_t h = 0; h < one.shape[1]; h++)
        if (memcmp((uint16_t *)batch.data + (r + first) * batch.stride[0] + h * batch.stride[1],
                   (uint16_t *)one.data + r * one.stride[0] + h * one.stride[1],
                   (size_t)one.shape[2] * sizeof(uint16_t)))
          chk_fail(result, "%s block %lld of the last sequence differs when it is alone",
                   chk_slot_name(slot), (long long)r);
  }
done:
  chk_bench_destroy(&other);
  return status;
}

nsa_status chk_check_compress(chk_bench *bench, chk_result *result) {
  const chk_case *c = bench->c;
  NSAI_TRY(chk_run_intact(bench, result));
  NSAI_TRY(judge_compressed(bench, result));
  int mean = c->geometry.phi == NSAI_PHI_MEAN && c->layout != CHK_LAYOUT_PACKED;
  return mean && c->num_seqs > 1 ? judge_alone(bench, result) : NSA_OK;
}

/* ---- selection ------------------------------------------------------------------------------- */

static const int32_t *index_row(const nsa_tensor *index, int64_t t, int32_t head) {
  return (const int32_t *)index->data + t * index->stride[0] + head * index->stride[1];
}

/* Every row is well formed, whatever the importance. */
static void judge_form(chk_bench *bench, chk_result *result) {
  const chk_case *c = bench->c;
  nsa_tensor index = chk_data_view(&bench->data, CHK_INDEX, CHK_HOST);
  for (int64_t t = 0; t < bench->data.tokens; t++) {
    int32_t sequence;
    int64_t position;
    chk_data_locate(c, t, &sequence, &position);
    for (int32_t h = 0; h < c->geometry.kv_heads; h++) {
      const char *complaint =
          chk_selection_malformed(&c->geometry, position, index_row(&index, t, h));
      if (!complaint) continue;
      chk_fail(result, "block_idx token %lld (position %lld) KV head %d: %s", (long long)t,
               (long long)position, h, complaint);
      return;
    }
  }
}

/* One probed row and KV head. Returns the distance from the cut by the reference's importance. */
static double judge_row(chk_bench *bench, int64_t token, int32_t head, const float *own,
                        const double *reference, chk_result *result) {
  const nsai_geometry *g = &bench->c->geometry;
  nsa_tensor index = chk_data_view(&bench->data, CHK_INDEX, CHK_HOST);
  const int32_t *row = index_row(&index, token, head);
  int32_t sequence, exact[NSAI_MAX_SELECTED];
  int64_t position, candidates;
  chk_data_locate(bench->c, token, &sequence, &position);
  if (position < 0) return 0;
  candidates = position / g->select_block + 1;
  double *widened = malloc((size_t)candidates * sizeof *widened);
  if (!widened) return INFINITY;
  for (int64_t j = 0; j < candidates; j++) widened[j] = (double)own[j];
  nsai_reference_select_row(g, position, widened, exact);
  free(widened);
  /* The CPU device chooses by float64, of which this is the rounding. */
  int rounded = !bench->data.device->driver;
  if (!rounded && memcmp(exact, row, (size_t)g->select_count * sizeof *row))
    chk_fail(result, "block_idx token %lld KV head %d is not the top-n of its own importance",
             (long long)token, head);
  return chk_selection_distance(g, position, row, reference);
}

/* Importance and choice at the probed rows. */
static nsa_status judge_selection(chk_bench *bench, chk_result *result) {
  chk_data *d = &bench->data;
  const nsai_geometry *g = &bench->c->geometry;
  oracle o = make_oracle(bench, 0);
  nsa_tensor rows = chk_data_view(d, CHK_PROBE_ROWS, CHK_HOST),
             own = chk_data_view(d, CHK_PROBE, CHK_HOST);
  int64_t blocks = d->select_blocks, per_row = g->kv_heads * blocks, swapped = 0;
  double error = 0, norm = 0, distance = 0;
  int64_t tokens[CHK_MAX_PROBES];
  for (int64_t i = 0; i < d->probe_count; i++) tokens[i] = ((const int32_t *)rows.data)[i];
  double *want = malloc((size_t)(d->probe_count * per_row + 1) * sizeof *want);
  nsa_status status = NSA_OK;
  if (!want) return nsai_fail_nomem("importance", (size_t)(d->probe_count * per_row) * 8);
  NSAI_TRY_TO(done, nsai_reference_importance(&o.geometry, chk_data_batch(d, &o.batch), &o.io,
                                              d->probe_count, tokens, blocks, want, o.threads));
  for (int64_t i = 0; i < d->probe_count; i++)
    for (int32_t h = 0; h < g->kv_heads; h++) {
      const double *reference = want + i * per_row + h * blocks;
      const float *got = (const float *)own.data + i * own.stride[0] + h * own.stride[1];
      for (int64_t j = 0; j < blocks; j++) {
        error += pow((double)got[j] - reference[j], 2);
        norm += reference[j] * reference[j];
      }
      double far = judge_row(bench, tokens[i], h, got, reference, result);
      swapped += far > 0;
      distance = fmax(distance, far);
    }
  chk_record(result, "importance", norm > 0 ? sqrt(error / norm) : sqrt(error),
             chk_tolerance_of(CHK_STAGE, g->dtype).relative);
  chk_record(result, "cut", distance, d->device->driver ? CHK_CUT_TOLERANCE : 0);
  chk_record(result, "swapped", (double)swapped, INFINITY);
done:
  free(want);
  return status;
}

nsa_status chk_check_select(chk_bench *bench, chk_result *result) {
  chk_data *d = &bench->data;
  oracle o = make_oracle(bench, 1);
  NSAI_TRY(chk_run_intact(bench, result));
  chk_data_io(d, CHK_HOST, &o.batch, &o.io);
  nsa_tensor got = o.io.block_idx, importance = chk_data_view(d, CHK_IMPORTANCE_IN, CHK_HOST);
  nsa_tensor *want = &o.io.block_idx;
  want->stride[1] = want->shape[2];
  want->stride[0] = want->shape[1] * want->shape[2];
  want->data = malloc((size_t)(want->shape[0] * want->stride[0] + 1) * sizeof(int32_t));
  if (!want->data) return nsai_fail_nomem("block indices", 0);
  nsa_status status = nsai_reference_select(&bench->c->geometry, chk_data_batch(d, &o.batch), &o.io,
                                            &importance, o.threads);
  for (int64_t t = 0; t < d->tokens && !status && result->outcome != CHK_FAILED; t++)
    for (int32_t h = 0; h < bench->c->geometry.kv_heads; h++)
      if (memcmp(index_row(&got, t, h), index_row(want, t, h),
                 (size_t)want->shape[2] * sizeof(int32_t)))
        chk_fail(result, "block_idx token %lld KV head %d differs from the rule", (long long)t, h);
  free(want->data);
  return status;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* A slot's search for NaN and inf: the lowest bad row. */
typedef struct finite_search {
  nsa_tensor t;
  int lse; /* 1: -inf is fine */
  atomic_llong bad;
} finite_search;

static void search_row(void *user, int64_t row) {
  finite_search *s = user;
  int64_t heads = s->t.ndim == 3 ? s->t.shape[1] : 1, width = s->t.shape[s->t.ndim - 1];
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < width; i++) {
      int64_t at = row * s->t.stride[0] + (s->t.ndim == 3 ? h * s->t.stride[1] : 0) + i;
      float x = chk_load(&s->t, at);
      if (isfinite(x) || (s->lse && x == -INFINITY)) continue;
      long long lowest = atomic_load(&s->bad);
      while (row < lowest && !atomic_compare_exchange_weak(&s->bad, &lowest, row)) {}
      return;
    }
}

/* All written rows are finite, also those that are not compared. */
static void judge_finite(const chk_bench *bench, chk_result *result) {
  for (int slot = CHK_O; slot < CHK_INDEX; slot++) {
    finite_search s = { .t = chk_data_view(&bench->data, slot, CHK_HOST), .lse = slot >= CHK_LSE };
    if (!s.t.data) continue;
    atomic_init(&s.bad, INT64_MAX);
    chk_parallel(chk_session_opts(bench->session)->threads, bench->data.tokens, search_row, &s);
    if (atomic_load(&s.bad) != INT64_MAX)
      chk_fail(result, "%s token %lld is not finite", chk_slot_name(slot), atomic_load(&s.bad));
  }
}

static void judge_stages(const chk_bench *bench, const nsai_reference_rows *rows,
                         chk_result *result) {
  char name[24];
  for (int b = 0; b < NSA_BRANCHES; b++) {
    nsa_tensor lse = chk_data_view(&bench->data, CHK_LSE + b, CHK_HOST);
    nsa_tensor o = chk_data_view(&bench->data, CHK_O_BRANCH + b, CHK_HOST);
    if (!lse.data) continue;
    snprintf(name, sizeof name, "o_branch[%d]", b);
    chk_comparison x = { name, bench->c, CHK_STAGE, &o, rows, rows->o_branch[b], NULL };
    chk_compare_rows(&x, result);
    snprintf(name, sizeof name, "lse[%d]", b);
    chk_compare_lse(name, &lse, rows, rows->lse[b], result);
  }
}

nsa_status chk_judge_forward(chk_bench *bench, chk_result *result) {
  oracle own = make_oracle(bench, 0), raw = make_oracle(bench, 1);
  nsai_reference_rows stage = { 0 }, whole = { 0 };
  nsa_tensor o = chk_data_view(&bench->data, CHK_O, CHK_HOST);
  nsa_status status;
  judge_finite(bench, result);
  if (chk_data_has(&bench->data, CHK_K_CMP)) NSAI_TRY(judge_compressed(bench, result));
  if (chk_data_has(&bench->data, CHK_INDEX)) judge_form(bench, result);
  /* Indices out of range would lead the reference out of its tensors. */
  if (result->outcome == CHK_FAILED || !bench->token_count) return NSA_OK;
  if (chk_data_has(&bench->data, CHK_PROBE)) NSAI_TRY(judge_selection(bench, result));
  uint32_t outputs = 1;
  for (int b = 0; b < NSA_BRANCHES; b++)
    if (chk_data_has(&bench->data, CHK_LSE + b)) outputs |= 2u << b;
  NSAI_TRY_TO(done, chk_rows_create(bench->c, bench->tokens, bench->token_count, outputs, &stage));
  NSAI_TRY_TO(done, run_oracle(bench, &own, &stage));
  judge_stages(bench, &stage, result);
  NSAI_TRY_TO(done, chk_rows_create(bench->c, bench->tokens, bench->token_count, 1, &whole));
  NSAI_TRY_TO(done, run_oracle(bench, &raw, &whole));
  chk_comparison x = { "o", bench->c, CHK_WHOLE, &o, &whole, whole.o, stage.o };
  chk_compare_rows(&x, result);
done:
  chk_rows_destroy(&stage);
  chk_rows_destroy(&whole);
  return status;
}

nsa_status chk_check_forward(chk_bench *bench, chk_result *result) {
  NSAI_TRY(chk_run_intact(bench, result));
  return chk_judge_forward(bench, result);
}

nsa_status chk_check_dense(chk_bench *bench, chk_result *result) {
  oracle o = make_oracle(bench, 1);
  nsai_reference_rows rows = { 0 };
  nsa_status status;
  NSAI_TRY(chk_run_intact(bench, result));
  judge_finite(bench, result);
  chk_data_io(&bench->data, CHK_HOST, &o.batch, &o.io);
  NSAI_TRY_TO(done, chk_rows_create(bench->c, bench->tokens, bench->token_count, 3, &rows));
  NSAI_TRY_TO(done, nsai_reference_dense_rows(&o.geometry, chk_data_batch(&bench->data, &o.batch),
                                              &o.io, &rows, o.threads));
  chk_comparison x = { "o", bench->c, CHK_STAGE, &o.io.o, &rows, rows.o, NULL };
  chk_compare_rows(&x, result);
  chk_compare_lse("lse", &o.io.lse[0], &rows, rows.lse[0], result);
done:
  chk_rows_destroy(&rows);
  return status;
}
