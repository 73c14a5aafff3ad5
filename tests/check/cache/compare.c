/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/compare.h"
#include "base/float16.h"
#include "scenario.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- runs on the GPU ---- */

static nsa_status enqueue(chk_scenario *sc) {
  nsa_batch batch = chk_cache_batch(sc, true, false);
  nsa_io io = chk_cache_io(sc, true);
  nsa_exec exec = sc->gpu_exec;
  exec.branches = sc->branches;
  NSAI_TRY(chk_cache_append(sc, true));
  return chk_cache_attend(sc, sc->gpu_attend, &exec, &batch, &io);
}

static nsa_status capture(chk_scenario *sc) {
  const nsai_driver *driver = sc->device->driver;
  nsai_cu_graph graph = NULL;
  NSAI_TRY(
      NSAI_CUDA(driver, cuStreamBeginCapture(sc->device->stream, NSAI_CU_CAPTURE_THREAD_LOCAL)));
  nsa_status status = enqueue(sc);
  nsa_status ended = NSAI_CUDA(driver, cuStreamEndCapture(sc->device->stream, &graph));
  if (!status) status = ended;
  if (!status) status = NSAI_CUDA(driver, cuGraphInstantiateWithFlags(&sc->graph, graph, 0));
  if (graph) driver->cuGraphDestroy(graph);
  return status;
}

nsa_status chk_cache_run_gpu(chk_scenario *sc) {
  if (!sc->options.graph || !sc->device->driver) return enqueue(sc);
  if (!sc->graph) NSAI_TRY(capture(sc));
  return NSAI_CUDA(sc->device->driver, cuGraphLaunch(sc->graph, sc->device->stream));
}

/* ---- values ---- */

static double value(const nsa_tensor *t, const uint8_t *data, int64_t at) {
  if (t->dtype == NSA_F32) return (double)((const float *)(const void *)data)[at];
  uint16_t bits = ((const uint16_t *)(const void *)data)[at];
  return (double)(t->dtype == NSA_F16 ? nsai_float_from_f16(bits) : nsai_float_from_bf16(bits));
}

double chk_cache_value(const chk_cache_tensor *t, int64_t at) {
  return value(&t->view, chk_cache_fetched(t), at);
}

#define FAIL(sc, ...)                                                                              \
  do {                                                                                             \
    if (!(sc)->result->failure[0])                                                                 \
      snprintf((sc)->result->failure, sizeof(sc)->result->failure, __VA_ARGS__);                   \
  } while (0)

void chk_cache_check_guards(chk_scenario *sc, const nsai_verify_buffer *b, const char *name) {
  for (size_t i = 0; i < NSAI_VERIFY_GUARD; i++)
    if (b->image[i] != 0xff || b->image[NSAI_VERIFY_GUARD + b->bytes + i] != 0xff)
      FAIL(sc, "%s: written %s it", name, b->image[i] != 0xff ? "before" : "behind");
}

/* ---- caches ---- */

static void compare_raw(chk_scenario *sc, int what) {
  const chk_cache_tensor *t = &sc->tensor[what];
  chk_cache_check_guards(sc, &t->gpu, "cache");
  int64_t at;
  if (chk_cache_same(sc, what, 0, (int64_t)(t->bytes / 2), &at)) return;
  FAIL(sc, "cache tensor %d differs at element %lld (row %lld): %g, expected %g", what,
       (long long)at, (long long)(at / t->view.stride[0]), chk_cache_stored(sc, what, at),
       value(&t->view, t->host, at));
}

/* Sums in fp32 and in float64 may round to neighbouring values. */
void chk_cache_compare_entries(chk_scenario *sc, int what, int64_t first, int64_t count) {
  chk_cache_tensor *t = &sc->tensor[what];
  double least = sc->options.model.phi == NSAI_PHI_MEAN ? 1e-5 : 2e-4; /* for sums that cancel */
  for (int64_t i = first; i < first + count; i++) {
    double error = chk_cache_entry_error(sc, what, i, least);
    if (error > sc->result->entry) sc->result->entry = error;
    if (!(error <= 1)) {
      FAIL(sc, "entry tensor %d differs at element %lld (row %lld): %g, expected %g", what,
           (long long)i, (long long)(i / t->view.stride[0]), chk_cache_stored(sc, what, i),
           value(&t->view, t->host, i));
      return;
    }
  }
  for (int64_t i = first; i < first + count; i++) chk_cache_take(sc, what, i);
}

static void compare_all_entries(chk_scenario *sc, int what) {
  chk_cache_check_guards(sc, &sc->tensor[what].gpu, "entries");
  chk_cache_compare_entries(sc, what, 0, (int64_t)sc->tensor[what].bytes / 2);
}

nsa_status chk_cache_compare_cache(chk_scenario *sc) {
  for (int what = CHK_CACHE_K; what <= CHK_CACHE_K_NORM; what++) {
    if (!sc->tensor[what].host) continue;
    NSAI_TRY(chk_cache_fetch(sc, what));
  }
  chk_cache_inject_cache(sc);
  for (int what = CHK_CACHE_K; what <= CHK_CACHE_K_NORM; what++) {
    if (!sc->tensor[what].host) continue;
    if (what >= CHK_CACHE_K_CMP && sc->options.model.phi != NSAI_PHI_EXTERNAL)
      compare_all_entries(sc, what);
    else
      compare_raw(sc, what);
  }
  return NSA_OK;
}

/* ---- blocks ---- */

int chk_cache_sequence_of(const chk_scenario *sc, int64_t token) {
  int s = 0;
  while (token >= sc->q_len[s]) token -= sc->q_len[s++];
  return s;
}

int64_t chk_cache_position_of(const chk_scenario *sc, int64_t token) {
  int s = 0;
  while (token >= sc->q_len[s]) token -= sc->q_len[s++];
  return sc->len[s] ? sc->len[s] - sc->q_len[s] + token : -1;
}

static void compare_row_blocks(chk_scenario *sc, int64_t token, int32_t head) {
  const nsai_model *g = &sc->options.model;
  const chk_cache_tensor *idx = &sc->tensor[CHK_CACHE_IDX], *probe = &sc->tensor[CHK_CACHE_PROBE];
  int64_t at = token * idx->view.stride[0] + head * idx->view.stride[1];
  const int32_t *got = (const int32_t *)(const void *)chk_cache_fetched(idx) + at;
  const int32_t *want = (const int32_t *)(const void *)idx->host + at;
  int64_t t = chk_cache_position_of(sc, token), blocks = probe->view.shape[2];
  const float *row = (const float *)(const void *)probe->host + token * probe->view.stride[0] +
                     head * probe->view.stride[1];
  const char *complaint = nsai_verify_selection_malformed(g, t, got);
  if (complaint)
    FAIL(sc, "blocks of token %lld (t %lld), head %d: %s", (long long)token, (long long)t, head,
         complaint);
  if (complaint || !memcmp(got, want, (size_t)g->select_count * 4)) return;
  double *importance = malloc((size_t)blocks * sizeof *importance);
  if (!importance) return;
  for (int64_t i = 0; i < blocks; i++) importance[i] = (double)row[i];
  double distance = nsai_verify_selection_distance(g, t, got, importance);
  free(importance);
  sc->result->near_cut++;
  if (!(distance <= NSAI_VERIFY_CUT_TOLERANCE))
    FAIL(sc, "blocks of token %lld (t %lld), head %d are %g from the cut", (long long)token,
         (long long)t, head, distance);
}

/* ---- outputs ---- */

static const char *const part_names[NSA_BRANCHES + 1] = { "o_cmp", "o_sel", "o_win", "o" };

/* Squares of a row's error, of its reference and of a plain computation's error. `plain` may be
 * NULL: [Dv]. */
static chk_cache_sums row_sums(const chk_scenario *sc, int what, int64_t token, int32_t head,
                               const double *plain) {
  const chk_cache_tensor *t = &sc->tensor[what];
  int64_t at = token * t->view.stride[0] + head * t->view.stride[1];
  chk_cache_sums sums = { .rows = 1 };
  for (int32_t i = 0; i < sc->options.model.head_dim_v; i++) {
    double x = value(&t->view, chk_cache_fetched(t), at + i),
           want = value(&t->view, t->host, at + i);
    sums.error += (x - want) * (x - want);
    sums.norm += want * want;
    if (plain) sums.plain += (plain[i] - want) * (plain[i] - want);
  }
  return sums;
}

static void add_sums(chk_cache_sums *to, const chk_cache_sums *x) {
  to->error += x->error;
  to->norm += x->norm;
  to->plain += x->plain;
  to->rows += x->rows;
}

/* The error divided by its limit. */
static double ratio_of(const chk_cache_sums *s, double tolerance) {
  if (!(s->norm > 0)) return s->error > 0 ? INFINITY : s->error;
  return sqrt(s->error / s->norm) / fmax(tolerance, 2 * sqrt(s->plain / s->norm));
}

/* The limit of a single row, relative to that of its sequence and head: if the values of its few
 * keys nearly cancel, its error may be several times the norm over many rows. */
#define ROW_LIMIT 4
static void compare_row(chk_scenario *sc, int part, int what, int64_t token, int32_t head,
                        const double *plain, double tolerance) {
  chk_cache_sums row = row_sums(sc, what, token, head, plain);
  chk_cache_sums *all =
      &sc->sums[part][chk_cache_sequence_of(sc, token) * sc->options.model.heads + head];
  double ratio = ratio_of(&row, tolerance);
  add_sums(all, &row);
  if (!(ratio <= ROW_LIMIT))
    FAIL(sc, "%s of token %lld (t %lld), head %d: error %.3g times its limit", part_names[part],
         (long long)token, (long long)chk_cache_position_of(sc, token), head, ratio);
}

/* Computes o from the stored branches; false: with a gate MLP the gates are unknown. */
static bool add_branches(const chk_scenario *sc, int64_t token, int32_t head, double *plain) {
  const nsai_model *g = &sc->options.model;
  const chk_cache_tensor *gate = &sc->tensor[CHK_CACHE_GATE];
  if (g->gate == NSAI_GATE_MLP) return false;
  memset(plain, 0, (size_t)g->head_dim_v * sizeof *plain);
  for (int b = 0; b < NSA_BRANCHES && chk_cache_position_of(sc, token) >= 0; b++) {
    const chk_cache_tensor *t = &sc->tensor[CHK_CACHE_O_BRANCH + b];
    if (!(sc->branches >> b & 1)) continue;
    double x = 1;
    if (g->gate != NSAI_GATE_NONE)
      x = value(&gate->view, gate->host,
                token * gate->view.stride[0] + head * gate->view.stride[1] + b);
    if (g->gate == NSAI_GATE_LOGITS) x = 1 / (1 + exp(-x));
    int64_t at = token * t->view.stride[0] + head * t->view.stride[1];
    for (int32_t i = 0; i < g->head_dim_v; i++) plain[i] += x * value(&t->view, t->host, at + i);
  }
  return true;
}

/* If a sequence's head has fewer rows, they are verified together with those of the next head:
 * when only P and O are rounded to bf16, a single row may exceed the limit, eight do not
 * (tests/unit/test_few_rows.c). */
#define LEAST_ROWS 8

void chk_cache_verify(chk_scenario *sc) {
  const nsai_model *g = &sc->options.model;
  for (int part = 0; part <= NSA_BRANCHES; part++) {
    nsai_verify_measure measure = part == NSA_BRANCHES ? NSAI_VERIFY_WHOLE : NSAI_VERIFY_STAGE;
    double *worst = part == NSA_BRANCHES ? &sc->result->o : &sc->result->branch;
    int32_t count = sc->options.seqs * g->heads;
    int64_t rest = 0; /* rows */
    for (int32_t i = 0; i < count; i++) rest += sc->sums[part][i].rows;
    chk_cache_sums group = { 0 };
    for (int32_t i = 0; i < count; i++) {
      add_sums(&group, &sc->sums[part][i]);
      rest -= sc->sums[part][i].rows;
      if ((group.rows < LEAST_ROWS || rest < LEAST_ROWS) && i + 1 < count) continue;
      double ratio = ratio_of(&group, nsai_verify_tolerance_of(measure, g->dtype).relative);
      if (ratio > *worst) *worst = ratio;
      if (!(ratio <= 1))
        FAIL(sc, "%s of %lld rows up to sequence %d, head %d: error %.3g times its limit",
             part_names[part], (long long)group.rows, i / g->heads, i % g->heads, ratio);
      group = (chk_cache_sums){ 0 };
    }
  }
}

/* `which`: a branch, or CHK_CACHE_INDEX_LSE - CHK_CACHE_LSE. */
static void compare_lse(chk_scenario *sc, int which, int64_t token, int32_t head) {
  const chk_cache_tensor *t = &sc->tensor[CHK_CACHE_LSE + which];
  int64_t at = token * t->view.stride[0] + head;
  double x = value(&t->view, chk_cache_fetched(t), at), want = value(&t->view, t->host, at);
  if ((isinf(x) && x == want) || (isnan(x) && isnan(want))) return;
  double ratio = fabs(x - want) / (NSAI_VERIFY_LSE_TOLERANCE * fmax(1, fabs(want)));
  if (ratio > sc->result->lse) sc->result->lse = ratio;
  if (!(ratio <= 1))
    FAIL(sc, "lse %d (%d: of an index) of token %lld (t %lld), head %d: %g, expected %g", which,
         CHK_CACHE_INDEX_LSE - CHK_CACHE_LSE, (long long)token,
         (long long)chk_cache_position_of(sc, token), head, x, want);
}

static void compare_outputs(chk_scenario *sc) {
  const nsai_model *g = &sc->options.model;
  double stage = nsai_verify_tolerance_of(NSAI_VERIFY_STAGE, g->dtype).relative;
  double whole = nsai_verify_tolerance_of(NSAI_VERIFY_WHOLE, g->dtype).relative;
  double plain[NSAI_MAX_HEAD_DIM];
  const bool indexed = chk_cache_has_index_lse(sc);
  for (int64_t token = 0; indexed && token < sc->tokens; token++)
    for (int32_t head = 0; head < g->index_heads; head++)
      compare_lse(sc, CHK_CACHE_INDEX_LSE - CHK_CACHE_LSE, token, head);
  for (int64_t token = 0; token < sc->tokens; token++)
    for (int32_t head = 0; head < g->heads; head++) {
      sc->result->rows++;
      for (int b = 0; b < NSA_BRANCHES; b++) {
        if (!(sc->branches >> b & 1)) continue;
        compare_lse(sc, b, token, head);
        compare_row(sc, b, CHK_CACHE_O_BRANCH + b, token, head, NULL, stage);
      }
      bool has_plain = add_branches(sc, token, head, plain);
      compare_row(sc, NSA_BRANCHES, CHK_CACHE_O, token, head, has_plain ? plain : NULL, whole);
    }
}

/* Computes the reference on the CPU device: its own blocks and importance, then outputs on the
 * GPU's blocks. */
static nsa_status ask_cpu(chk_scenario *sc) {
  nsa_batch batch = chk_cache_batch(sc, false, false);
  nsa_io io = chk_cache_io(sc, false);
  nsa_exec exec = sc->cpu_exec;
  exec.branches = sc->branches;
  bool selects = sc->options.model.select_count > 0 && sc->options.selection == NSA_SELECT_TOPN;
  if (selects) {
    io.probe_rows = chk_cache_view(sc, CHK_CACHE_PROBE_ROWS, false);
    io.probe_importance = chk_cache_view(sc, CHK_CACHE_PROBE, false);
    io.probe_rows.shape[0] = io.probe_importance.shape[0] = sc->tokens;
    for (int64_t i = 0; i < sc->tokens; i++) ((int32_t *)io.probe_rows.data)[i] = (int32_t)i;
    NSAI_TRY(chk_cache_attend(sc, sc->cpu_select, &exec, &batch, &io));
    for (int64_t token = 0; token < sc->tokens; token++)
      for (int32_t head = 0; head < sc->options.model.kv_heads; head++)
        compare_row_blocks(sc, token, head);
    if (sc->options.probed) chk_cache_compare_probes(sc);
    io.probe_rows = io.probe_importance = (nsa_tensor){ 0 };
    memcpy(io.block_idx.data, chk_cache_fetched(&sc->tensor[CHK_CACHE_IDX]),
           sc->tensor[CHK_CACHE_IDX].bytes);
  }
  return chk_cache_attend(sc, sc->cpu_attend, &exec, &batch, &io);
}

/* Checks the guards of an output and, if it has the call's rows, the memory after its tokens. */
static void check_output(chk_scenario *sc, const chk_cache_tensor *t, bool rows) {
  const uint8_t *data = chk_cache_fetched(t);
  size_t row = t->bytes / (size_t)t->view.shape[0];
  chk_cache_check_guards(sc, &t->gpu, "output");
  for (size_t i = row * (size_t)sc->tokens; rows && i < t->bytes; i++)
    if (data[i] != 0xff) {
      FAIL(sc, "an output's row %zu is written, there are %lld", i / row, (long long)sc->tokens);
      return;
    }
}

static nsa_status fetch_outputs(chk_scenario *sc) {
  for (int what = CHK_CACHE_FIRST_OUTPUT; what < CHK_CACHE_PROBE_ROWS; what++)
    if (sc->tensor[what].host) NSAI_TRY(chk_cache_fetch(sc, what));
  return NSA_OK;
}

nsa_status chk_cache_compare_rows(chk_scenario *sc) {
  NSAI_TRY(fetch_outputs(sc)); /* also waits for the call and returns its error */
  if (!sc->tokens) return NSA_OK;
  NSAI_TRY(ask_cpu(sc));
  compare_outputs(sc);
  return NSA_OK;
}

nsa_status chk_cache_compare_step(chk_scenario *sc) {
  if (!sc->tokens) return NSA_OK;
  NSAI_TRY(fetch_outputs(sc));
  if (sc->options.counted) NSAI_TRY(chk_cache_fetch(sc, CHK_CACHE_READS));
  NSAI_TRY(nsai_verify_buffer_fetch_guards(sc->device, &sc->workspace));
  chk_cache_inject_step(sc);
  for (int what = CHK_CACHE_FIRST_OUTPUT; what < CHK_CACHE_PROBE_ROWS; what++)
    if (sc->tensor[what].host) check_output(sc, &sc->tensor[what], what != CHK_CACHE_SOME);
  chk_cache_check_guards(sc, &sc->workspace, "workspace");
  if (sc->options.counted) chk_cache_check_guards(sc, &sc->tensor[CHK_CACHE_READS].gpu, "reads");
  /* invalid blocks could make the CPU device read anywhere */
  if (sc->result->failure[0]) return NSA_OK;
  NSAI_TRY(ask_cpu(sc));
  compare_outputs(sc);
  if (sc->options.counted) chk_cache_compare_reads(sc);
  return NSA_OK;
}
