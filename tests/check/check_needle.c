/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The needle: one compressed key whose logit exceeds every other one by a margin, at many depths
 * of a long sequence of unit-variance keys, outside forced blocks and window. It must be
 * selected at every depth, and the outputs must be right; half the margin is the control.
 *
 * The case has one sequence, one query token, and mean phi.
 */
#include "check.h"

#include "verify/parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEPTHS 16
#define MARGIN 2.0
#define OWN_SHARE 0.25f /* of a query's variance; the rest is common to the heads of a group */

/* What the search for the required push needs of one KV head. */
typedef struct haystack {
  const nsai_trial_run *trial;
  nsa_tensor q, k;
  int64_t blocks; /* compressed */
  double scale;
  double *logits; /* [heads, blocks], for the keys without the needle */
} haystack;

/* Makes the queries of a group similar, so that one key can attract all of them. */
static void align_queries(const nsai_trial_run *trial, const nsa_tensor *q) {
  const nsai_model *g = &trial->c->model;
  uint64_t own = nsai_verify_key(trial->c->seed, 501),
           common = nsai_verify_key(trial->c->seed, 502);
  int32_t group = g->heads / g->kv_heads;
  for (int32_t h = 0; h < g->heads; h++)
    for (int32_t i = 0; i < g->head_dim_qk; i++)
      nsai_verify_store(q, h * q->stride[1] + i,
                        sqrtf(OWN_SHARE) *
                                nsai_verify_normal(own, (uint64_t)(h * g->head_dim_qk + i)) +
                            sqrtf(1 - OWN_SHARE) *
                                nsai_verify_normal(common,
                                                   (uint64_t)(h / group * g->head_dim_qk + i)));
}

static double dot_block(const haystack *s, int32_t head, int64_t block) {
  const nsai_model *g = &s->trial->c->model;
  int32_t kv_head = head / (g->heads / g->kv_heads);
  double sum = 0;
  for (int32_t token = 0; token < g->block; token++) {
    int64_t row = (block * g->stride + token) * s->k.stride[0] + kv_head * s->k.stride[1];
    for (int32_t i = 0; i < g->head_dim_qk; i++)
      sum += (double)nsai_verify_load(&s->q, head * s->q.stride[1] + i) *
             (double)nsai_verify_load(&s->k, row + i);
  }
  return s->scale * sum / g->block;
}

static void fill_logits(void *user, int64_t block) {
  haystack *s = user;
  for (int32_t h = 0; h < s->trial->c->model.heads; h++)
    s->logits[h * s->blocks + block] = dot_block(s, h, block);
}

/* The largest logit of blocks that share no token with the needle. */
static double largest_other(const haystack *s, int32_t head, int64_t needle) {
  const nsai_model *g = &s->trial->c->model;
  double largest = -INFINITY;
  for (int64_t i = 0; i < s->blocks; i++)
    if (llabs(i - needle) * g->stride >= g->block)
      largest = fmax(largest, s->logits[head * s->blocks + i]);
  return largest;
}

/* Moves the raw keys of compressed block `needle` along the group's mean query until its logit
 * exceeds all others by `margin` for every head. */
static void push(const haystack *s, int32_t kv_head, int64_t needle, double margin) {
  const nsai_model *g = &s->trial->c->model;
  int32_t group = g->heads / g->kv_heads;
  double direction[NSAI_MAX_HEAD_DIM] = { 0 }, amount = 0;
  for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++)
    for (int32_t i = 0; i < g->head_dim_qk; i++)
      direction[i] += (double)nsai_verify_load(&s->q, h * s->q.stride[1] + i) / group;
  for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
    double along = 0;
    for (int32_t i = 0; i < g->head_dim_qk; i++)
      along += direction[i] * (double)nsai_verify_load(&s->q, h * s->q.stride[1] + i);
    double lacking = largest_other(s, h, needle) + margin - s->logits[h * s->blocks + needle];
    amount = fmax(amount, lacking / (s->scale * along));
  }
  for (int32_t token = 0; token < g->block; token++)
    for (int32_t i = 0; i < g->head_dim_qk; i++) {
      int64_t at = (needle * g->stride + token) * s->k.stride[0] + kv_head * s->k.stride[1] + i;
      nsai_verify_store(&s->k, at, nsai_verify_load(&s->k, at) + (float)(amount * direction[i]));
    }
}

/* Runs with a needle in selection block `block`; *found counts the KV heads that selected it. */
static nsa_status run_depth(nsai_trial_run *trial, haystack *s, int64_t block, double margin,
                            nsai_verify_result *result, int *found) {
  const nsai_model *g = &trial->c->model;
  nsai_verify_buffer *keys = &trial->data.buffer[NSAI_VERIFY_K0];
  int64_t needle = block * g->select_block / g->stride;
  size_t bytes = (size_t)(g->block * s->k.stride[0]) * 2;
  uint8_t *at = (uint8_t *)s->k.data + needle * g->stride * s->k.stride[0] * 2;
  uint8_t *saved = malloc(bytes);
  nsa_status status;
  *found = 0;
  if (!saved) return nsai_fail_nomem("the keys under a needle", bytes);
  memcpy(saved, at, bytes);
  for (int32_t h = 0; h < g->kv_heads; h++) push(s, h, needle, margin);
  NSAI_TRY_TO(done, nsai_verify_buffer_upload(trial->data.device, keys));
  NSAI_TRY_TO(done, nsai_trial_run_execute(trial));
  nsa_tensor index = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_INDEX, NSAI_VERIFY_HOST);
  for (int32_t h = 0; h < g->kv_heads; h++)
    for (int32_t i = 0; i < g->select_count; i++)
      *found += ((const int32_t *)index.data)[h * index.stride[1] + i] == block;
  if (margin == MARGIN) NSAI_TRY_TO(done, nsai_verify_forward(trial, NULL, result));
done:
  memcpy(at, saved, bytes);
  free(saved);
  return status;
}

nsa_status chk_check_needle(nsai_trial_run *trial, nsai_verify_result *result) {
  const nsai_model *g = &trial->c->model;
  haystack s = { .trial = trial,
                 .q = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_Q, NSAI_VERIFY_HOST),
                 .k = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_K0, NSAI_VERIFY_HOST),
                 .blocks = trial->data.blocks,
                 .scale = trial->c->softmax_scale != 0 ? (double)trial->c->softmax_scale
                                                       : 1 / sqrt((double)g->head_dim_qk) };
  int64_t kv_len = trial->c->kv_len[0], first = g->select_init;
  int64_t last = (kv_len - 1 - g->window) / g->select_block - g->select_local - 1;
  int found[2] = { 0, 0 }, runs = 0, seen;
  nsa_status status = NSA_OK;
  if (trial->c->num_seqs != 1 || trial->c->q_len[0] != 1 || last <= first ||
      g->phi != NSAI_PHI_MEAN || trial->c->layout != NSAI_VERIFY_LAYOUT_PLAIN)
    return nsai_fail(NSA_E_ARG,
                     "a needle needs q=1, mean phi, plain layout and kv beyond the window "
                     "and the forced blocks");
  s.logits = malloc((size_t)(g->heads * s.blocks) * sizeof *s.logits);
  if (!s.logits) return nsai_fail_nomem("logits", (size_t)(g->heads * s.blocks) * 8);
  align_queries(trial, &s.q);
  NSAI_TRY_TO(done,
              nsai_verify_buffer_upload(trial->data.device, &trial->data.buffer[NSAI_VERIFY_Q]));
  nsai_verify_parallel(trial->threads, s.blocks, fill_logits, &s);
  for (int depth = 0; depth < DEPTHS && result->outcome != NSAI_VERIFY_FAILED; depth++, runs++) {
    int64_t block = first + (last - first) * depth / (DEPTHS - 1);
    NSAI_TRY_TO(done, run_depth(trial, &s, block, MARGIN, result, &seen));
    found[0] += seen;
    if (seen != g->kv_heads)
      nsai_verify_fail(result, "the needle in block %lld was not chosen", (long long)block);
    NSAI_TRY_TO(done, run_depth(trial, &s, block, MARGIN / 2, result, &seen));
    found[1] += seen;
  }
  nsai_verify_note(result, "found %d of %d at %d depths; at half the margin %d", found[0],
                   runs * g->kv_heads, runs, found[1]);
  nsai_verify_add_figure(result, "missed", 1 - (double)found[0] / (runs * g->kv_heads), 0);
  nsai_verify_add_figure(result, "missed.half", 1 - (double)found[1] / (runs * g->kv_heads),
                         INFINITY);
done:
  free(s.logits);
  return status;
}
