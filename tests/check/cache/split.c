/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Continuity. One nsa_prefill of complete sequences, stored in rows, must give the same as
 * nsa_prefill and nsa_decode of any pieces of them in any layout: the same blocks (except for
 * rows near the cut) and the same outputs.
 */
#include "scenario.h"

#include "verify/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DECODED 16 /* most new tokens of a sequence in a decode step */

typedef struct split {
  chk_scenario whole, parts; /* both have the same weights */
  nsa_plan *decode;
  nsai_verify_buffer workspace;
  nsa_exec exec;
  int32_t length[CHK_CACHE_MOST_SEQS];
  bool has_importance;
  chk_cache_result *result;
} split;

static void fail(split *k, const char *what, int s, int32_t position, int32_t head) {
  if (!k->result->failure[0])
    snprintf(k->result->failure, sizeof k->result->failure,
             "%s of sequence %d, t %d, head %d: whole and in pieces differ", what, s, position,
             head);
}

/* ---- the complete sequences ---- */

static nsa_status run_whole(split *k) {
  chk_scenario *v = &k->whole;
  memcpy(v->len, k->length, sizeof v->len);
  memcpy(v->q_len, k->length, sizeof v->q_len);
  v->packed = true;
  NSAI_TRY(chk_cache_prepare_call(v));
  nsa_batch batch = chk_cache_batch(v, true, false);
  nsa_io io = chk_cache_io(v, true);
  NSAI_TRY(chk_cache_append(v, false));
  NSAI_TRY(chk_cache_append(v, true));
  NSAI_TRY(nsa_prefill(v->gpu_attend, &v->gpu_exec, &batch, &io));
  for (int what = CHK_CACHE_FIRST_OUTPUT; what < CHK_CACHE_SOME; what++)
    if (v->tensor[what].host) NSAI_TRY(chk_cache_fetch(v, what));
  return chk_cache_compare_cache(v);
}

/* Computes the importance of every row on the CPU device over the same entries; used when lists
 * differ. */
static nsa_status find_importance(split *k) {
  chk_scenario *v = &k->whole;
  if (k->has_importance) return NSA_OK;
  k->has_importance = true;
  nsa_batch batch = chk_cache_batch(v, false, false);
  nsa_io io = chk_cache_io(v, false);
  io.probe_rows = chk_cache_view(v, CHK_CACHE_PROBE_ROWS, false);
  io.probe_importance = chk_cache_view(v, CHK_CACHE_PROBE, false);
  io.probe_rows.shape[0] = io.probe_importance.shape[0] = v->tokens;
  for (int64_t i = 0; i < v->tokens; i++) ((int32_t *)io.probe_rows.data)[i] = (int32_t)i;
  return nsa_prefill(v->cpu_select, &v->cpu_exec, &batch, &io);
}

/* ---- comparison ---- */

/* A row of both: its token in the complete run, and in the call. */
typedef struct place {
  int s;
  int32_t position;
  int64_t token, part;
} place;

static const int32_t *list_of(const chk_scenario *sc, int64_t token, int32_t head) {
  const chk_cache_tensor *t = &sc->tensor[CHK_CACHE_IDX];
  return (const int32_t *)(const void *)chk_cache_fetched(t) + token * t->view.stride[0] +
         head * t->view.stride[1];
}

/* Compares the selected blocks of both; blocks that differ must be near the cut. */
static nsa_status compare_lists(split *k, const place *at, int32_t head, bool *same) {
  const nsai_model *g = &k->whole.options.model;
  const chk_cache_tensor *probe = &k->whole.tensor[CHK_CACHE_PROBE];
  const int32_t *lists[2] = { list_of(&k->whole, at->token, head),
                              list_of(&k->parts, at->part, head) };
  int64_t blocks = probe->view.shape[2];
  *same = !memcmp(lists[0], lists[1], (size_t)g->select_count * 4);
  if (*same) return NSA_OK;
  k->result->near_cut++;
  if (!k->whole.device->driver) fail(k, "blocks on the CPU device", at->s, at->position, head);
  NSAI_TRY(find_importance(k));
  double *importance = malloc((size_t)blocks * sizeof *importance);
  if (!importance) return nsai_fail_nomem("importance", (size_t)blocks);
  const float *row = (const float *)(const void *)probe->host + at->token * probe->view.stride[0] +
                     head * probe->view.stride[1];
  for (int64_t i = 0; i < blocks; i++) importance[i] = (double)row[i];
  for (int i = 0; i < 2; i++)
    if (nsai_verify_selection_malformed(g, at->position, lists[i]) ||
        !(nsai_verify_selection_distance(g, at->position, lists[i], importance) <=
          NSAI_VERIFY_CUT_TOLERANCE))
      fail(k, "blocks", at->s, at->position, head);
  free(importance);
  return NSA_OK;
}

/* The limit is twice the error that either may have against the reference, and higher for a
 * single row. */
#define BOTH 2
#define ROW_LIMIT 4

static void compare_values(split *k, const place *at, int32_t head, int part, int what) {
  chk_scenario *v = &k->whole, *sc = &k->parts;
  const chk_cache_tensor *a = &v->tensor[what], *b = &sc->tensor[what];
  const nsai_model *g = &v->options.model;
  chk_cache_sums *all = &v->sums[part][at->s * g->heads + head], sum = { 0 };
  for (int32_t i = 0; i < g->head_dim_v; i++) {
    double x = chk_cache_value(a, at->token * a->view.stride[0] + head * a->view.stride[1] + i);
    double y = chk_cache_value(b, at->part * b->view.stride[0] + head * b->view.stride[1] + i);
    sum.error += (x - y) * (x - y) / (BOTH * BOTH);
    sum.norm += x * x;
  }
  all->error += sum.error;
  all->norm += sum.norm;
  nsai_verify_measure measure = part == NSA_BRANCHES ? NSAI_VERIFY_WHOLE : NSAI_VERIFY_STAGE;
  double limit = ROW_LIMIT * nsai_verify_tolerance_of(measure, g->dtype).relative;
  if (!(sqrt(sum.error) <= limit * sqrt(sum.norm))) fail(k, "outputs", at->s, at->position, head);
}

/* `branch`: or CHK_CACHE_INDEX_LSE - CHK_CACHE_LSE, of an index head. */
static void compare_lse(split *k, const place *at, int32_t head, int branch) {
  const chk_cache_tensor *a = &k->whole.tensor[CHK_CACHE_LSE + branch];
  const chk_cache_tensor *b = &k->parts.tensor[CHK_CACHE_LSE + branch];
  double x = chk_cache_value(a, at->token * a->view.stride[0] + head);
  double y = chk_cache_value(b, at->part * b->view.stride[0] + head);
  if (isinf(x) && x == y) return;
  double ratio = fabs(x - y) / (BOTH * NSAI_VERIFY_LSE_TOLERANCE * fmax(1, fabs(x)));
  if (ratio > k->result->lse) k->result->lse = ratio;
  if (!(ratio <= 1)) fail(k, "lse", at->s, at->position, head);
}

static nsa_status compare_row(split *k, const place *at) {
  const nsai_model *g = &k->whole.options.model;
  const int32_t group = g->heads / g->kv_heads;
  bool same = true;
  for (int32_t head = 0; head < g->heads; head++) {
    if (g->select_count && head % group == 0) {
      NSAI_TRY(compare_lists(k, at, head / group, &same));
      if (same && chk_cache_has_index_lse(&k->parts))
        compare_lse(k, at, head / group, CHK_CACHE_INDEX_LSE - CHK_CACHE_LSE);
    }
    k->result->rows++;
    for (int b = 0; b < NSA_BRANCHES; b++) {
      if (!(k->whole.branches >> b & 1) || (b == NSA_SEL && !same)) continue;
      compare_lse(k, at, head, b);
      compare_values(k, at, head, b, CHK_CACHE_O_BRANCH + b);
    }
    if (same) compare_values(k, at, head, NSA_BRANCHES, CHK_CACHE_O);
  }
  return NSA_OK;
}

/* ---- pieces ---- */

/* Copies the call's rows from those of the complete run. */
static nsa_status bring_rows(split *k) {
  static const int inputs[] = { CHK_CACHE_Q,           CHK_CACHE_GATE,        CHK_CACHE_FRESH_K,
                                CHK_CACHE_FRESH_K + 1, CHK_CACHE_FRESH_K + 2, CHK_CACHE_FRESH_V,
                                CHK_CACHE_FRESH_V + 1, CHK_CACHE_FRESH_V + 2, CHK_CACHE_INDEX_Q,
                                CHK_CACHE_FRESH_INDEX };
  chk_scenario *v = &k->whole, *sc = &k->parts;
  for (int what = CHK_CACHE_CU_Q; what <= CHK_CACHE_MAPPING; what++)
    NSAI_TRY(chk_cache_upload(sc, what));
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
    const chk_cache_tensor *from = &v->tensor[inputs[i]];
    size_t bytes = (size_t)from->view.stride[0] * 2, to = 0, first = 0;
    if (!from->host) continue;
    for (int s = 0; s < sc->options.seqs; first += (size_t)k->length[s++]) {
      size_t begin = first + (size_t)(sc->len[s] - sc->q_len[s]), count = (size_t)sc->q_len[s];
      memcpy(sc->tensor[inputs[i]].host + to * bytes, from->host + begin * bytes, count * bytes);
      to += count;
    }
    NSAI_TRY(chk_cache_upload(sc, inputs[i]));
  }
  return chk_cache_poison_outputs(sc);
}

static nsa_status compare_call(split *k) {
  chk_scenario *sc = &k->parts;
  place at = { 0 };
  int64_t first = 0;
  for (int what = CHK_CACHE_FIRST_OUTPUT; what < CHK_CACHE_SOME; what++)
    if (sc->tensor[what].host) NSAI_TRY(chk_cache_fetch(sc, what));
  for (at.s = 0; at.s < sc->options.seqs; first += k->length[at.s++])
    for (int32_t i = 0; i < sc->q_len[at.s]; i++, at.part++) {
      at.position = sc->len[at.s] - sc->q_len[at.s] + i;
      at.token = first + at.position;
      NSAI_TRY(compare_row(k, &at));
    }
  return NSA_OK;
}

static int32_t most_decoded(const chk_scenario *sc) {
  return sc->chunk < DECODED ? sc->chunk : DECODED;
}

/* Runs a random piece of what remains of every sequence, by nsa_decode or nsa_prefill. */
static nsa_status run_piece(split *k, bool *any) {
  chk_scenario *sc = &k->parts;
  bool decodes = chk_cache_next(sc) % 2;
  int32_t most = decodes ? most_decoded(sc) : sc->chunk;
  *any = false;
  for (int s = 0; s < sc->options.seqs; s++) {
    int32_t rest = k->length[s] - sc->len[s];
    *any |= rest > 0;
    sc->q_len[s] = (int32_t)(chk_cache_next(sc) % (uint64_t)((rest < most ? rest : most) + 1));
    sc->len[s] += sc->q_len[s];
  }
  chk_cache_take_pages(sc);
  chk_cache_write_call(sc);
  if (!*any || !sc->tokens) return NSA_OK;
  NSAI_TRY(bring_rows(k));
  nsa_batch batch = chk_cache_batch(sc, true, false);
  nsa_io io = chk_cache_io(sc, true);
  NSAI_TRY(chk_cache_append(sc, true));
  NSAI_TRY(decodes ? nsa_decode(k->decode, &k->exec, &batch, &io)
                   : nsa_prefill(sc->gpu_attend, &sc->gpu_exec, &batch, &io));
  return compare_call(k);
}

/* ---- memory ---- */

static nsa_status make_decode(split *k) {
  const chk_cache_options *f = &k->parts.options;
  nsa_problem p = NSA_PROBLEM_INIT;
  nsa_caps caps = NSA_CAPS_INIT;
  p.op = NSA_OP_DECODE;
  p.max_seqs = f->seqs;
  p.max_kv_len = f->max_kv_len;
  p.max_q_len = most_decoded(&k->parts);
  p.max_tokens = (int64_t)f->seqs * p.max_q_len;
  p.page_size = f->page_size;
  p.window_ring = f->ring;
  p.index_lse = chk_cache_has_index_lse(&k->parts);
  chk_cache_set_dtypes(f, true, &p);
  NSAI_TRY(nsa_plan_create(k->parts.gpu, &p, NULL, NULL, &k->decode));
  NSAI_TRY(nsa_plan_caps(k->decode, &caps));
  NSAI_TRY(nsai_verify_buffer_create(k->parts.device, caps.workspace_bytes, 0xff, &k->workspace));
  k->exec = k->parts.gpu_exec;
  k->exec.workspace = k->workspace.device + NSAI_VERIFY_GUARD;
  k->exec.workspace_bytes = caps.workspace_bytes;
  return NSA_OK;
}

/* The complete run uses rows, in one append. */
static nsa_status create(split *k, const chk_plans_options *given) {
  chk_scenario *v = &k->whole, *sc = &k->parts;
  chk_cache_options *f = &v->options;
  f->ring = f->spread = f->hnd = f->lists = f->slots = f->mapping = false;
  f->page_size = NSA_NONE;
  f->chunk = 0;
  f->max_q_len = f->max_kv_len;
  NSAI_TRY(chk_cache_create(v, given));
  NSAI_TRY(chk_cache_create(sc, given));
  sc->packed = true;
  for (int what = CHK_CACHE_WEIGHTS; what < CHK_CACHE_TENSORS; what++) {
    if (!sc->tensor[what].host) continue;
    memcpy(sc->tensor[what].host, v->tensor[what].host, sc->tensor[what].bytes);
    NSAI_TRY(chk_cache_upload(sc, what));
  }
  for (int s = 0; s < sc->options.seqs; s++)
    k->length[s] = 1 + (int32_t)(chk_cache_next(sc) % (uint64_t)sc->options.max_kv_len);
  return make_decode(k);
}

static void destroy(split *k) {
  nsai_verify_device_wait(k->whole.device, NULL);
  nsa_plan_destroy(k->decode);
  nsai_verify_buffer_destroy(k->whole.device, &k->workspace);
  chk_cache_destroy(&k->parts);
  chk_cache_destroy(&k->whole);
}

nsa_status chk_cache_split(const nsai_verify_device *device, const chk_cache_options *options,
                           const chk_plans_options *given, int *inject, chk_cache_result *result) {
  split *k = calloc(1, sizeof *k);
  bool any = true;
  if (!k) return nsai_fail_nomem("a split", sizeof *k);
  *result = (chk_cache_result){ 0 };
  k->result = result;
  k->whole = k->parts = (chk_scenario){
    .options = *options, .device = device, .random = options->seed, .result = result
  };
  k->whole.inject = inject;
  nsa_status status = create(k, given);
  if (!status) status = run_whole(k);
  if (!status) chk_cache_inject_step(&k->whole);
  while (!status && any && !result->failure[0]) status = run_piece(k, &any);
  if (!status) chk_cache_verify(&k->whole);
  destroy(k);
  free(k);
  return status;
}
