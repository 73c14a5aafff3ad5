/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/compare.h"
#include "base/float16.h"
#include "internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the GPU's half ---- */

static nsa_status enqueue(chk_kv_scenario *w) {
  nsa_batch batch = chk_kv_batch(w, true, false);
  nsa_io io = chk_kv_io(w, true);
  nsa_exec exec = w->gpu_exec;
  exec.branches = w->branches;
  NSAI_TRY(chk_kv_append(w, true));
  return chk_kv_attend(w, w->gpu_attend, &exec, &batch, &io);
}

static nsa_status capture(chk_kv_scenario *w) {
  const nsai_driver *driver = w->device->driver;
  nsai_cu_graph graph = NULL;
  NSAI_TRY(
      NSAI_CUDA(driver, cuStreamBeginCapture(w->device->stream, NSAI_CU_CAPTURE_THREAD_LOCAL)));
  nsa_status status = enqueue(w);
  nsa_status ended = NSAI_CUDA(driver, cuStreamEndCapture(w->device->stream, &graph));
  if (!status) status = ended;
  if (!status) status = NSAI_CUDA(driver, cuGraphInstantiateWithFlags(&w->graph, graph, 0));
  if (graph) driver->cuGraphDestroy(graph);
  return status;
}

nsa_status chk_kv_run_gpu(chk_kv_scenario *w) {
  if (!w->opts.graph || !w->device->driver) return enqueue(w);
  if (!w->graph) NSAI_TRY(capture(w));
  return NSAI_CUDA(w->device->driver, cuGraphLaunch(w->graph, w->device->stream));
}

/* ---- values ---- */

static double value(const nsa_tensor *t, const uint8_t *data, int64_t at) {
  if (t->dtype == NSA_F32) return (double)((const float *)(const void *)data)[at];
  uint16_t bits = ((const uint16_t *)(const void *)data)[at];
  return (double)(t->dtype == NSA_F16 ? nsai_float_from_f16(bits) : nsai_float_from_bf16(bits));
}

double chk_kv_value(const chk_kv_tensor *t, int64_t at) {
  return value(&t->view, chk_kv_fetched(t), at);
}

#define FAIL(w, ...)                                                                               \
  do {                                                                                             \
    if (!(w)->result->failure[0])                                                                  \
      snprintf((w)->result->failure, sizeof(w)->result->failure, __VA_ARGS__);                     \
  } while (0)

void chk_kv_check_guards(chk_kv_scenario *w, const nsai_verify_buffer *b, const char *name) {
  for (size_t i = 0; i < NSAI_VERIFY_GUARD; i++)
    if (b->image[i] != 0xff || b->image[NSAI_VERIFY_GUARD + b->bytes + i] != 0xff)
      FAIL(w, "%s: written %s it", name, b->image[i] != 0xff ? "before" : "behind");
}

/* ---- caches ---- */

static void compare_raw(chk_kv_scenario *w, int what) {
  chk_kv_tensor *t = &w->tensor[what];
  const uint8_t *got = chk_kv_fetched(t);
  chk_kv_check_guards(w, &t->gpu, "cache");
  if (!memcmp(got, t->host, t->bytes)) return;
  for (size_t i = 0; i < t->bytes; i++)
    if (got[i] != t->host[i]) {
      FAIL(w, "cache tensor %d differs at byte %zu (row %lld): %02x, expected %02x", what, i,
           (long long)(i / 2 / (size_t)t->view.stride[0]), got[i], t->host[i]);
      return;
    }
}

/* Sums in fp32 and in float64 may round to neighbours. */
void chk_kv_compare_entries(chk_kv_scenario *w, int what, int64_t first, int64_t count) {
  chk_kv_tensor *t = &w->tensor[what];
  uint8_t *got = chk_kv_fetched(t);
  double unit = t->view.dtype == NSA_F16 ? 0x1p-10 : 0x1p-7;
  double least = w->opts.model.phi == NSAI_PHI_MEAN ? 1e-5 : 2e-4; /* of sums that cancel */
  for (int64_t i = first; i < first + count; i++) {
    double x = value(&t->view, got, i), want = value(&t->view, t->host, i);
    if (isnan(want) && isnan(x)) continue;
    double error = fabs(x - want) / (unit * fabs(want) + least);
    if (error > w->result->entry) w->result->entry = error;
    if (!(error <= 1)) {
      FAIL(w, "entry tensor %d differs at element %lld (row %lld): %g, expected %g", what,
           (long long)i, (long long)(i / t->view.stride[0]), x, want);
      return;
    }
  }
  memcpy(t->host + 2 * first, got + 2 * first, 2 * (size_t)count);
}

static void compare_all_entries(chk_kv_scenario *w, int what) {
  chk_kv_check_guards(w, &w->tensor[what].gpu, "entries");
  chk_kv_compare_entries(w, what, 0, (int64_t)w->tensor[what].bytes / 2);
}

nsa_status chk_kv_compare_cache(chk_kv_scenario *w) {
  for (int what = CHK_KV_K; what <= CHK_KV_V_CMP; what++) {
    if (!w->tensor[what].host) continue;
    NSAI_TRY(chk_kv_fetch(w, what));
  }
  chk_kv_inject_cache(w);
  for (int what = CHK_KV_K; what <= CHK_KV_V_CMP; what++) {
    if (!w->tensor[what].host) continue;
    if (what >= CHK_KV_K_CMP && w->opts.model.phi != NSAI_PHI_EXTERNAL)
      compare_all_entries(w, what);
    else
      compare_raw(w, what);
  }
  return NSA_OK;
}

/* ---- blocks ---- */

int chk_kv_sequence_of(const chk_kv_scenario *w, int64_t token) {
  int s = 0;
  while (token >= w->q_len[s]) token -= w->q_len[s++];
  return s;
}

int64_t chk_kv_position_of(const chk_kv_scenario *w, int64_t token) {
  int s = 0;
  while (token >= w->q_len[s]) token -= w->q_len[s++];
  return w->len[s] ? w->len[s] - w->q_len[s] + token : -1;
}

static void compare_row_blocks(chk_kv_scenario *w, int64_t token, int32_t head) {
  const nsai_model *g = &w->opts.model;
  const chk_kv_tensor *idx = &w->tensor[CHK_KV_IDX], *probe = &w->tensor[CHK_KV_PROBE];
  int64_t at = token * idx->view.stride[0] + head * idx->view.stride[1];
  const int32_t *got = (const int32_t *)(const void *)chk_kv_fetched(idx) + at;
  const int32_t *want = (const int32_t *)(const void *)idx->host + at;
  int64_t t = chk_kv_position_of(w, token), blocks = probe->view.shape[2];
  const float *row = (const float *)(const void *)probe->host + token * probe->view.stride[0] +
                     head * probe->view.stride[1];
  const char *complaint = nsai_verify_selection_malformed(g, t, got);
  if (complaint)
    FAIL(w, "blocks of token %lld (t %lld), head %d: %s", (long long)token, (long long)t, head,
         complaint);
  if (complaint || !memcmp(got, want, (size_t)g->select_count * 4)) return;
  double *importance = malloc((size_t)blocks * sizeof *importance);
  if (!importance) return;
  for (int64_t i = 0; i < blocks; i++) importance[i] = (double)row[i];
  double distance = nsai_verify_selection_distance(g, t, got, importance);
  free(importance);
  w->result->near_cut++;
  if (!(distance <= NSAI_VERIFY_CUT_TOLERANCE))
    FAIL(w, "blocks of token %lld (t %lld), head %d are %g from the cut", (long long)token,
         (long long)t, head, distance);
}

/* ---- outputs ---- */

static const char *const part_names[NSA_BRANCHES + 1] = { "o_cmp", "o_sel", "o_win", "o" };

/* Squares of a row's error, of what its reference is and of a plain computation's error. `plain` may be
 * NULL: [Dv]. */
static chk_kv_sums row_sums(const chk_kv_scenario *w, int what, int64_t token, int32_t head,
                            const double *plain) {
  const chk_kv_tensor *t = &w->tensor[what];
  int64_t at = token * t->view.stride[0] + head * t->view.stride[1];
  chk_kv_sums sums = { .rows = 1 };
  for (int32_t i = 0; i < w->opts.model.head_dim_v; i++) {
    double x = value(&t->view, chk_kv_fetched(t), at + i), want = value(&t->view, t->host, at + i);
    sums.error += (x - want) * (x - want);
    sums.norm += want * want;
    if (plain) sums.plain += (plain[i] - want) * (plain[i] - want);
  }
  return sums;
}

static void add_sums(chk_kv_sums *to, const chk_kv_sums *x) {
  to->error += x->error;
  to->norm += x->norm;
  to->plain += x->plain;
  to->rows += x->rows;
}

/* The error over its limit. */
static double ratio_of(const chk_kv_sums *s, double tolerance) {
  if (!(s->norm > 0)) return s->error > 0 ? INFINITY : s->error;
  return sqrt(s->error / s->norm) / fmax(tolerance, 2 * sqrt(s->plain / s->norm));
}

/* A row joins its sequence's and head's; by itself, of few keys' values that nearly cancel, it may be some
 * times as far off as the norm over many. */
#define ROW_LIMIT 4
static void compare_row(chk_kv_scenario *w, int part, int what, int64_t token, int32_t head,
                        const double *plain, double tolerance) {
  chk_kv_sums row = row_sums(w, what, token, head, plain);
  chk_kv_sums *all = &w->sums[part][chk_kv_sequence_of(w, token) * w->opts.model.heads + head];
  double ratio = ratio_of(&row, tolerance);
  add_sums(all, &row);
  if (!(ratio <= ROW_LIMIT))
    FAIL(w, "%s of token %lld (t %lld), head %d: error %.3g times its limit", part_names[part],
         (long long)token, (long long)chk_kv_position_of(w, token), head, ratio);
}

/* o from the branches as they are stored; false: with a gate MLP nobody has the gates. */
static bool add_branches(const chk_kv_scenario *w, int64_t token, int32_t head, double *plain) {
  const nsai_model *g = &w->opts.model;
  const chk_kv_tensor *gate = &w->tensor[CHK_KV_GATE];
  if (g->gate == NSAI_GATE_MLP) return false;
  memset(plain, 0, (size_t)g->head_dim_v * sizeof *plain);
  for (int b = 0; b < NSA_BRANCHES && chk_kv_position_of(w, token) >= 0; b++) {
    const chk_kv_tensor *t = &w->tensor[CHK_KV_O_BRANCH + b];
    if (!(w->branches >> b & 1)) continue;
    double x = value(&gate->view, gate->host,
                     token * gate->view.stride[0] + head * gate->view.stride[1] + b);
    if (g->gate == NSAI_GATE_LOGITS) x = 1 / (1 + exp(-x));
    int64_t at = token * t->view.stride[0] + head * t->view.stride[1];
    for (int32_t i = 0; i < g->head_dim_v; i++) plain[i] += x * value(&t->view, t->host, at + i);
  }
  return true;
}

/* Fewer rows of a sequence's head are judged together with the next head's: with nothing but P and O rounded to bf16
 * a single row may lie above the limit, eight do not (tests/unit/test_few_rows.c). */
#define LEAST_ROWS 8

void chk_kv_verify(chk_kv_scenario *w) {
  const nsai_model *g = &w->opts.model;
  for (int part = 0; part <= NSA_BRANCHES; part++) {
    nsai_verify_measure measure = part == NSA_BRANCHES ? NSAI_VERIFY_WHOLE : NSAI_VERIFY_STAGE;
    double *worst = part == NSA_BRANCHES ? &w->result->o : &w->result->branch;
    int32_t count = w->opts.seqs * g->heads;
    int64_t rest = 0; /* rows */
    for (int32_t i = 0; i < count; i++) rest += w->sums[part][i].rows;
    chk_kv_sums group = { 0 };
    for (int32_t i = 0; i < count; i++) {
      add_sums(&group, &w->sums[part][i]);
      rest -= w->sums[part][i].rows;
      if ((group.rows < LEAST_ROWS || rest < LEAST_ROWS) && i + 1 < count) continue;
      double ratio = ratio_of(&group, nsai_verify_tolerance_of(measure, g->dtype).relative);
      if (ratio > *worst) *worst = ratio;
      if (!(ratio <= 1))
        FAIL(w, "%s of %lld rows up to sequence %d, head %d: error %.3g times its limit",
             part_names[part], (long long)group.rows, i / g->heads, i % g->heads, ratio);
      group = (chk_kv_sums){ 0 };
    }
  }
}

static void compare_lse(chk_kv_scenario *w, int branch, int64_t token, int32_t head) {
  const chk_kv_tensor *t = &w->tensor[CHK_KV_LSE + branch];
  int64_t at = token * t->view.stride[0] + head;
  double x = value(&t->view, chk_kv_fetched(t), at), want = value(&t->view, t->host, at);
  if ((isinf(x) && x == want) || (isnan(x) && isnan(want))) return;
  double ratio = fabs(x - want) / (NSAI_VERIFY_LSE_TOLERANCE * fmax(1, fabs(want)));
  if (ratio > w->result->lse) w->result->lse = ratio;
  if (!(ratio <= 1))
    FAIL(w, "lse %d of token %lld (t %lld), head %d: %g, expected %g", branch, (long long)token,
         (long long)chk_kv_position_of(w, token), head, x, want);
}

static void compare_outputs(chk_kv_scenario *w) {
  const nsai_model *g = &w->opts.model;
  double stage = nsai_verify_tolerance_of(NSAI_VERIFY_STAGE, g->dtype).relative;
  double whole = nsai_verify_tolerance_of(NSAI_VERIFY_WHOLE, g->dtype).relative;
  double plain[NSAI_MAX_HEAD_DIM];
  for (int64_t token = 0; token < w->tokens; token++)
    for (int32_t head = 0; head < g->heads; head++) {
      w->result->rows++;
      for (int b = 0; b < NSA_BRANCHES; b++) {
        if (!(w->branches >> b & 1)) continue;
        compare_lse(w, b, token, head);
        compare_row(w, b, CHK_KV_O_BRANCH + b, token, head, NULL, stage);
      }
      bool has_plain = add_branches(w, token, head, plain);
      compare_row(w, NSA_BRANCHES, CHK_KV_O, token, head, has_plain ? plain : NULL, whole);
    }
}

/* What the CPU device says: blocks and importance of its own, then outputs on the GPU's blocks. */
static nsa_status ask_cpu(chk_kv_scenario *w) {
  nsa_batch batch = chk_kv_batch(w, false, false);
  nsa_io io = chk_kv_io(w, false);
  nsa_exec exec = w->cpu_exec;
  exec.branches = w->branches;
  bool selects = w->opts.model.select_count > 0 && w->opts.selection == NSA_SELECT_OWN;
  if (selects) {
    io.probe_rows = chk_kv_view(w, CHK_KV_PROBE_ROWS, false);
    io.probe_importance = chk_kv_view(w, CHK_KV_PROBE, false);
    io.probe_rows.shape[0] = io.probe_importance.shape[0] = w->tokens;
    for (int64_t i = 0; i < w->tokens; i++) ((int32_t *)io.probe_rows.data)[i] = (int32_t)i;
    NSAI_TRY(chk_kv_attend(w, w->cpu_select, &exec, &batch, &io));
    for (int64_t token = 0; token < w->tokens; token++)
      for (int32_t head = 0; head < w->opts.model.kv_heads; head++)
        compare_row_blocks(w, token, head);
    if (w->opts.probed) chk_kv_compare_probes(w);
    io.probe_rows = io.probe_importance = (nsa_tensor){ 0 };
    memcpy(io.block_idx.data, chk_kv_fetched(&w->tensor[CHK_KV_IDX]), w->tensor[CHK_KV_IDX].bytes);
  }
  return chk_kv_attend(w, w->cpu_attend, &exec, &batch, &io);
}

/* Guards of an output, and, of those that have the call's rows, what lies behind its tokens. */
static void check_output(chk_kv_scenario *w, const chk_kv_tensor *t, bool rows) {
  const uint8_t *data = chk_kv_fetched(t);
  size_t row = t->bytes / (size_t)t->view.shape[0];
  chk_kv_check_guards(w, &t->gpu, "output");
  for (size_t i = row * (size_t)w->tokens; rows && i < t->bytes; i++)
    if (data[i] != 0xff) {
      FAIL(w, "an output's row %zu is written, there are %lld", i / row, (long long)w->tokens);
      return;
    }
}

static nsa_status fetch_outputs(chk_kv_scenario *w) {
  for (int what = CHK_KV_FIRST_OUTPUT; what < CHK_KV_PROBE_ROWS; what++)
    if (w->tensor[what].host) NSAI_TRY(chk_kv_fetch(w, what));
  return NSA_OK;
}

nsa_status chk_kv_compare_rows(chk_kv_scenario *w) {
  NSAI_TRY(fetch_outputs(w)); /* and what had become of the call */
  if (!w->tokens) return NSA_OK;
  NSAI_TRY(ask_cpu(w));
  compare_outputs(w);
  return NSA_OK;
}

nsa_status chk_kv_compare_step(chk_kv_scenario *w) {
  if (!w->tokens) return NSA_OK;
  NSAI_TRY(fetch_outputs(w));
  if (w->opts.counted) NSAI_TRY(chk_kv_fetch(w, CHK_KV_READS));
  NSAI_TRY(nsai_verify_buffer_fetch_guards(w->device, &w->workspace));
  chk_kv_inject_step(w);
  for (int what = CHK_KV_FIRST_OUTPUT; what < CHK_KV_PROBE_ROWS; what++)
    if (w->tensor[what].host) check_output(w, &w->tensor[what], what != CHK_KV_SOME);
  chk_kv_check_guards(w, &w->workspace, "workspace");
  if (w->opts.counted) chk_kv_check_guards(w, &w->tensor[CHK_KV_READS].gpu, "reads");
  if (w->result->failure[0]) return NSA_OK; /* blocks may lead the CPU device anywhere */
  NSAI_TRY(ask_cpu(w));
  compare_outputs(w);
  if (w->opts.counted) chk_kv_compare_reads(w);
  return NSA_OK;
}
