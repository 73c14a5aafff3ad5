/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Properties that need no reference. "Same" means the same bits.
 */
#include "check.h"

#include "verify/compare.h"
#include "verify/parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A second trial run of the same case or a changed one. */
static nsa_status twin(const nsai_trial_run *trial, const nsai_verify_case *c,
                       nsai_trial_run *out) {
  return chk_bench_create(trial->plans, c, out);
}

/* Fails at the first output in which two fetched runs differ. */
static void same_outputs(const nsai_trial_run *a, const nsai_trial_run *b,
                         nsai_verify_result *result, const char *what) {
  for (int slot = NSAI_VERIFY_FIRST_OUTPUT; slot < NSAI_VERIFY_SLOTS; slot++) {
    if (!nsai_verify_tensors_has(&a->data, slot) || !nsai_verify_tensors_has(&b->data, slot))
      continue;
    int64_t row = nsai_verify_tensors_difference(&a->data, &b->data, slot);
    if (row >= 0)
      nsai_verify_fail(result, "%s: %s differs from row %lld on", what, nsai_verify_slot_name(slot),
                       (long long)row);
  }
}

static nsa_status upload(nsai_trial_run *trial, int slot) {
  return nsai_verify_buffer_upload(trial->data.device, &trial->data.buffer[slot]);
}

/* ---- the same again -------------------------------------------------------------------------- */

static nsa_status check_repeat(nsai_trial_run *trial, nsai_trial_run *other,
                               nsai_verify_result *result) {
  NSAI_TRY(nsai_trial_run_execute(trial));
  for (int i = 0; i < 3; i++) {
    NSAI_TRY(nsai_trial_run_execute(other));
    same_outputs(trial, other, result, "run again");
  }
  return NSA_OK;
}

/* Two concurrent runs of one plan, each with its own workspace, outputs and stream. */
static nsa_status check_streams(nsai_trial_run *trial, nsai_trial_run *other,
                                nsai_verify_result *result) {
  const nsai_verify_device *device = trial->data.device;
  nsai_cu_stream stream[2] = { NULL, NULL };
  nsai_trial_run *both[2] = { trial, other };
  nsa_status status = NSA_OK;
  nsai_trial_run alone;
  NSAI_TRY_TO(done, twin(trial, trial->c, &alone));
  NSAI_TRY_TO(done, nsai_trial_run_execute(&alone));
  for (int i = 0; i < 2; i++) {
    NSAI_TRY_TO(done, nsai_verify_tensors_poison(&both[i]->data));
    if (device->driver)
      NSAI_TRY_TO(done, NSAI_CUDA(device->driver,
                                  cuStreamCreate(&stream[i], NSAI_CU_STREAM_NON_BLOCKING)));
  }
  NSAI_TRY_TO(done, nsai_verify_device_wait(device, NULL));
  for (int round = 0; round < 4; round++)
    for (int i = 0; i < 2; i++)
      NSAI_TRY_TO(done, nsai_trial_run_enqueue(both[i], trial->c->branches, stream[i]));
  for (int i = 0; i < 2; i++) {
    NSAI_TRY_TO(done, nsai_verify_device_wait(device, stream[i]));
    NSAI_TRY_TO(done, nsai_verify_tensors_fetch(&both[i]->data));
    same_outputs(&alone, both[i], result, "two runs at once");
  }
done:
  for (int i = 0; i < 2; i++)
    if (stream[i]) device->driver->cuStreamDestroy(stream[i]);
  nsai_trial_run_destroy(&alone);
  return status;
}

/* ---- causality ------------------------------------------------------------------------------- */

/* Writes other numbers into the first `rows` rows or the remaining rows of a [T, H, D] image. */
static void scramble(nsai_trial_run *trial, int slot, int64_t from, int64_t rows) {
  nsa_tensor t = nsai_verify_tensors_view(&trial->data, slot, NSAI_VERIFY_HOST);
  if (!t.data) return;
  for (int64_t r = from; r < rows; r++)
    for (int64_t h = 0; h < t.shape[1]; h++)
      for (int64_t i = 0; i < t.shape[2]; i++)
        nsai_verify_store(
            &t, r * t.stride[0] + h * t.stride[1] + i,
            3 * nsai_verify_normal(12345, (uint64_t)((r * t.shape[1] + h) * t.shape[2] + i)));
}

/* The outputs of a token must not depend on later tokens: one sequence, q_len == kv_len. */
static nsa_status check_future(nsai_trial_run *trial, nsai_trial_run *other,
                               nsai_verify_result *result) {
  int64_t tokens = trial->data.tokens;
  NSAI_TRY(nsai_trial_run_execute(trial));
  for (int64_t cut = tokens - 1; cut > 0; cut = cut * 3 / 4) {
    for (int slot = NSAI_VERIFY_Q; slot <= NSAI_VERIFY_K_IDX; slot++) {
      if (slot > NSAI_VERIFY_V2 && slot < NSAI_VERIFY_INDEX_Q) continue;
      scramble(other, slot, cut, tokens);
      if (other->data.buffer[slot].device) NSAI_TRY(upload(other, slot));
    }
    NSAI_TRY(nsai_trial_run_execute(other));
    const int slots[] = {
      NSAI_VERIFY_O,   NSAI_VERIFY_O_BRANCH, NSAI_VERIFY_O_BRANCH + 1, NSAI_VERIFY_O_BRANCH + 2,
      NSAI_VERIFY_LSE, NSAI_VERIFY_LSE + 1,  NSAI_VERIFY_LSE + 2,      NSAI_VERIFY_INDEX
    };
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
      if (!nsai_verify_tensors_has(&trial->data, slots[i])) continue;
      int64_t row = nsai_verify_tensors_difference(&trial->data, &other->data, slots[i]);
      if (row >= 0 && row < cut)
        nsai_verify_fail(result, "%s row %lld depends on tokens from %lld on",
                         nsai_verify_slot_name(slots[i]), (long long)row, (long long)cut);
    }
  }
  return NSA_OK;
}

/* ---- caller's blocks, values, gates ---------------------------------------------------------- */

static nsa_status check_permute(nsai_trial_run *trial, nsai_trial_run *other,
                                nsai_verify_result *result) {
  nsa_tensor index = nsai_verify_tensors_view(&other->data, NSAI_VERIFY_INDEX_IN, NSAI_VERIFY_HOST);
  int64_t heads = index.ndim == 3 ? index.shape[1] : 1, n = index.shape[index.ndim - 1];
  nsai_verify_random random = { nsai_verify_key(trial->c->seed, 99), 0 };
  NSAI_TRY(nsai_trial_run_execute(trial));
  for (int64_t t = 0; t < trial->data.tokens; t++)
    for (int64_t h = 0; h < heads; h++) {
      int32_t *row =
          (int32_t *)index.data + t * index.stride[0] + (index.ndim == 3 ? h * index.stride[1] : 0);
      for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = nsai_verify_pick(&random, 0, i);
        int32_t swap = row[i];
        row[i] = row[j];
        row[j] = swap;
      }
    }
  NSAI_TRY(upload(other, NSAI_VERIFY_INDEX_IN));
  NSAI_TRY(nsai_trial_run_execute(other));
  same_outputs(trial, other, result, "blocks in another order");
  return NSA_OK;
}

/* Multiplies the written rows of a host image by `factor`. */
static void scale_image(const nsai_trial_run *trial, int slot, float factor) {
  nsa_tensor t = nsai_verify_tensors_view(&trial->data, slot, NSAI_VERIFY_HOST);
  int64_t rows = slot < NSAI_VERIFY_FIRST_OUTPUT ? trial->data.kv_tokens : trial->data.tokens;
  for (int64_t r = 0; t.data && r < rows; r++)
    for (int64_t h = 0; h < t.shape[1]; h++)
      for (int64_t i = 0; i < t.shape[2]; i++) {
        int64_t at = r * t.stride[0] + h * t.stride[1] + i;
        nsai_verify_store(&t, at, factor * nsai_verify_load(&t, at));
      }
}

/* Doubled values must give exactly doubled outputs, since powers of two do not affect rounding. */
static nsa_status check_scale_v(nsai_trial_run *trial, nsai_trial_run *other,
                                nsai_verify_result *result) {
  NSAI_TRY(nsai_trial_run_execute(trial));
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!nsai_verify_tensors_has(&other->data, NSAI_VERIFY_V0 + b)) continue;
    scale_image(other, NSAI_VERIFY_V0 + b, 2);
    if (other->data.buffer[NSAI_VERIFY_V0 + b].device) NSAI_TRY(upload(other, NSAI_VERIFY_V0 + b));
  }
  if (trial->c->layout == NSAI_VERIFY_LAYOUT_PACKED) NSAI_TRY(upload(other, NSAI_VERIFY_Q));
  NSAI_TRY(nsai_trial_run_execute(other));
  for (int b = NSA_SEL; b <= NSA_WIN; b++) {
    if (!nsai_verify_tensors_has(&trial->data, NSAI_VERIFY_O_BRANCH + b)) continue;
    scale_image(trial, NSAI_VERIFY_O_BRANCH + b, 2);
    int64_t row =
        nsai_verify_tensors_difference(&trial->data, &other->data, NSAI_VERIFY_O_BRANCH + b);
    if (row >= 0)
      nsai_verify_fail(result, "o_branch[%d] row %lld is not twice as large with twice the values",
                       b, (long long)row);
  }
  return NSA_OK;
}

/* A gate of zero must have the effect of a branch that does not run. */
static nsa_status check_zero_gate(nsai_trial_run *trial, nsai_trial_run *other,
                                  nsai_verify_result *result) {
  char name[24];
  for (int b = 0; b < NSA_BRANCHES; b++) {
    nsa_tensor gate =
        nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_GATE_VALUE, NSAI_VERIFY_HOST);
    nsa_tensor other_gate =
        nsai_verify_tensors_view(&other->data, NSAI_VERIFY_GATE_VALUE, NSAI_VERIFY_HOST);
    for (int64_t t = 0; t < trial->data.tokens; t++)
      for (int64_t h = 0; h < gate.shape[1]; h++)
        nsai_verify_store(&gate, t * gate.stride[0] + h * gate.stride[1] + b, 0);
    NSAI_TRY(upload(trial, NSAI_VERIFY_GATE_VALUE));
    NSAI_TRY(nsai_trial_run_execute(trial));
    for (int64_t t = 0; t < trial->data.tokens; t++)
      for (int64_t h = 0; h < gate.shape[1]; h++) {
        int64_t at = t * gate.stride[0] + h * gate.stride[1] + b;
        nsai_verify_store(&gate, at, nsai_verify_load(&other_gate, at));
      }
    /* A branch that does not run has no outputs, so only o is requested. */
    nsai_verify_tensors_drop_optional(&other->data);
    NSAI_TRY(nsai_verify_tensors_poison(&other->data));
    NSAI_TRY(nsai_trial_run_enqueue(other, 7u & ~(1u << b), NULL));
    NSAI_TRY(nsai_verify_device_wait(other->data.device, NULL));
    NSAI_TRY(nsai_verify_tensors_fetch(&other->data));
    nsa_tensor with = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_O, NSAI_VERIFY_HOST),
               without = nsai_verify_tensors_view(&other->data, NSAI_VERIFY_O, NSAI_VERIFY_HOST);
    snprintf(name, sizeof name, "without %d", b);
    with.shape[0] = without.shape[0] = trial->data.tokens;
    nsai_verify_compare_tensors(name,
                                nsai_verify_tolerance_of(NSAI_VERIFY_STAGE, trial->c->model.dtype),
                                &with, &without, result);
  }
  return NSA_OK;
}

/* Sets column `dim` of every head in the first `rows` of a [T, H, D] image. */
static void set_column(const nsa_tensor *t, int64_t rows, int64_t dim, float value) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t h = 0; h < t->shape[1]; h++)
      nsai_verify_store(t, r * t->stride[0] + h * t->stride[1] + dim, value);
}

/* The first row of o with a finite column `dim` that is not all zero; -1: none. */
static int64_t find_finite(const nsai_trial_run *trial, const nsa_tensor *o, int64_t dim) {
  for (int64_t r = 0; r < trial->data.tokens; r++)
    for (int64_t h = 0; h < o->shape[1]; h++) {
      int64_t at = r * o->stride[0] + h * o->stride[1];
      double largest = 0;
      for (int64_t i = 0; i < o->shape[2]; i++)
        largest = fmax(largest, i == dim ? 0 : fabs(nsai_verify_load(o, at + i)));
      if (largest > 0 && isfinite(nsai_verify_load(o, at + dim))) return r;
    }
  return -1;
}

/* Values of inf in one column must appear there and leave the other columns unchanged. */
static nsa_status check_infinite(nsai_trial_run *trial, nsai_trial_run *other,
                                 nsai_verify_result *result) {
  const int64_t dim = trial->c->model.head_dim_v / 2 + 1;
  NSAI_TRY(nsai_trial_run_execute(trial));
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!nsai_verify_tensors_has(&other->data, NSAI_VERIFY_V0 + b)) continue;
    nsa_tensor v = nsai_verify_tensors_view(&other->data, NSAI_VERIFY_V0 + b, NSAI_VERIFY_HOST);
    set_column(&v, other->data.kv_tokens, dim, INFINITY);
    if (other->data.buffer[NSAI_VERIFY_V0 + b].device) NSAI_TRY(upload(other, NSAI_VERIFY_V0 + b));
  }
  NSAI_TRY(nsai_trial_run_execute(other));
  nsa_tensor want = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_O, NSAI_VERIFY_HOST),
             got = nsai_verify_tensors_view(&other->data, NSAI_VERIFY_O, NSAI_VERIFY_HOST);
  int64_t row = find_finite(other, &got, dim);
  if (row >= 0)
    nsai_verify_fail(result, "o row %lld has a finite mean of infinite values", (long long)row);
  want.shape[0] = got.shape[0] = trial->data.tokens;
  set_column(&want, trial->data.tokens, dim, 0);
  set_column(&got, trial->data.tokens, dim, 0);
  nsai_verify_compare_tensors("others",
                              nsai_verify_tolerance_of(NSAI_VERIFY_WHOLE, trial->c->model.dtype),
                              &got, &want, result);
  return NSA_OK;
}

/* ---- special cases of the maths -------------------------------------------------------------- */

/* A branch that sees every token must equal dense attention. */
static nsa_status check_is_dense(nsai_trial_run *trial, int branch, nsai_verify_result *result) {
  nsai_verify_case dense = *trial->c;
  nsai_trial_run other;
  nsa_status status;
  dense.kind = NSAI_VERIFY_DENSE;
  NSAI_TRY(nsai_trial_run_execute(trial));
  status = twin(trial, &dense, &other);
  if (!status) status = nsai_trial_run_execute(&other);
  if (!status) {
    nsa_tensor got = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_O_BRANCH + branch,
                                              NSAI_VERIFY_HOST),
               want = nsai_verify_tensors_view(&other.data, NSAI_VERIFY_O, NSAI_VERIFY_HOST);
    nsai_verify_tolerance tolerance =
        nsai_verify_tolerance_of(NSAI_VERIFY_STAGE, dense.model.dtype);
    /* Both sides have rounding errors. */
    tolerance.relative *= 2;
    tolerance.mean_abs *= 2;
    got.shape[0] = want.shape[0] = trial->data.tokens;
    nsai_verify_compare_tensors("dense", tolerance, &got, &want, result);
  }
  nsai_trial_run_destroy(&other);
  return status;
}

/* A sequence's last `rest` tokens alone, over all its KV, must give the rows of the complete
 * run. */
static nsa_status check_split_at(nsai_trial_run *trial, int64_t rest, nsai_verify_result *result) {
  nsai_verify_case tail = *trial->c;
  nsai_trial_run other;
  int64_t shift = trial->data.tokens - rest, apart = 0;
  tail.q_len[0] = rest;
  tail.slack = shift; /* capacity for the whole sequence, as in a serving loop */
  nsa_status status = twin(trial, &tail, &other);
  if (status) goto done;
  /* The same sequence: K and V, index keys, and the last rows of q, of index queries and of the gates. */
  for (int slot = NSAI_VERIFY_Q; slot <= NSAI_VERIFY_K_IDX; slot++) {
    if (slot > NSAI_VERIFY_GATE_VALUE && slot < NSAI_VERIFY_INDEX_Q) continue;
    nsa_tensor from = nsai_verify_tensors_view(&trial->data, slot, NSAI_VERIFY_HOST),
               to = nsai_verify_tensors_view(&other.data, slot, NSAI_VERIFY_HOST);
    const bool of_queries = slot == NSAI_VERIFY_Q || slot == NSAI_VERIFY_INDEX_Q;
    int64_t skip = of_queries || slot == NSAI_VERIFY_GATE_VALUE ? shift : 0;
    if (!from.data || from.ndim != 3) continue;
    int64_t rows = skip ? rest : from.shape[0] < to.shape[0] ? from.shape[0] : to.shape[0];
    nsai_verify_copy_rows(&to, &from, skip, rows);
    NSAI_TRY_TO(done, upload(&other, slot));
  }
  NSAI_TRY_TO(done, nsai_trial_run_execute(&other));
  nsa_tensor whole = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_INDEX, NSAI_VERIFY_HOST),
             part = nsai_verify_tensors_view(&other.data, NSAI_VERIFY_INDEX, NSAI_VERIFY_HOST);
  for (int64_t r = 0; r < rest; r++)
    apart += memcmp((int32_t *)whole.data + (r + shift) * whole.stride[0],
                    (int32_t *)part.data + r * part.stride[0],
                    (size_t)(part.shape[1] * part.shape[2]) * sizeof(int32_t)) != 0;
  /* On a GPU, rows near the cut may select other blocks; all other outputs must agree. */
  int64_t allowed = trial->data.device->driver ? rest / 32 + 1 : 0;
  if (apart > allowed)
    nsai_verify_fail(result, "the last %lld tokens alone choose other blocks in %lld rows",
                     (long long)rest, (long long)apart);
  nsa_tensor got = nsai_verify_tensors_view(&other.data, NSAI_VERIFY_O, NSAI_VERIFY_HOST),
             want = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_O, NSAI_VERIFY_HOST);
  want.data = (uint8_t *)want.data + shift * want.stride[0] * 2;
  got.shape[0] = want.shape[0] = rest;
  nsai_verify_tolerance tolerance = nsai_verify_tolerance_of(NSAI_VERIFY_WHOLE, tail.model.dtype);
  if (!apart) nsai_verify_compare_tensors("split", tolerance, &got, &want, result);
done:
  nsai_trial_run_destroy(&other);
  return status;
}

static nsa_status check_split(nsai_trial_run *trial, nsai_verify_result *result) {
  NSAI_TRY(nsai_trial_run_execute(trial));
  for (int64_t rest = 1; rest < trial->data.tokens && result->outcome != NSAI_VERIFY_FAILED; rest++)
    NSAI_TRY(check_split_at(trial, rest, result));
  return NSA_OK;
}

/* ---- CUDA graphs ----------------------------------------------------------------------------- */

static nsa_status enqueue_case(void *user) {
  const nsai_trial_run *trial = user;
  return nsai_trial_run_enqueue(trial, trial->c->branches, NULL);
}

/* A graph replay must give the bits of a plain run, also after the lengths change on the device. */
static nsa_status check_graph(nsai_trial_run *trial, nsai_trial_run *other,
                              nsai_verify_result *result) {
  const nsai_verify_device *device = trial->data.device;
  nsai_cu_graph_exec graph = NULL;
  nsa_status status;
  if (!device->driver) {
    nsai_verify_skip(result, "the CPU device has no graphs");
    return NSA_OK;
  }
  NSAI_TRY(nsai_verify_device_capture(device, enqueue_case, other, &graph));
  for (int round = 0; round < 3; round++) {
    if (round == 2) {
      /* The last sequence becomes one token shorter in both; the packed rows do not change. */
      const int slots[] = { NSAI_VERIFY_CU_Q, NSAI_VERIFY_CU_KV };
      nsai_trial_run *both[2] = { trial, other };
      for (int i = 0; i < 4; i++) {
        nsa_tensor cu =
            nsai_verify_tensors_view(&both[i / 2]->data, slots[i % 2], NSAI_VERIFY_HOST);
        if (!cu.data) continue;
        ((int32_t *)cu.data)[trial->c->num_seqs]--;
        NSAI_TRY_TO(done, upload(both[i / 2], slots[i % 2]));
      }
    }
    NSAI_TRY_TO(done, nsai_trial_run_execute(trial));
    NSAI_TRY_TO(done, nsai_verify_tensors_poison(&other->data));
    NSAI_TRY_TO(done, NSAI_CUDA(device->driver, cuGraphLaunch(graph, device->stream)));
    NSAI_TRY_TO(done, nsai_verify_device_wait(device, NULL));
    NSAI_TRY_TO(done, nsai_verify_tensors_fetch(&other->data));
    same_outputs(trial, other, result, round == 2 ? "replay, other lengths" : "replay");
  }
done:
  device->driver->cuGraphExecDestroy(graph);
  return status;
}

nsa_status chk_check_property(nsai_trial_run *trial, nsai_verify_result *result) {
  const nsai_verify_case *c = trial->c;
  nsai_trial_run other;
  if (c->kind == NSAI_VERIFY_ALL_BLOCKS) return check_is_dense(trial, NSA_SEL, result);
  if (c->kind == NSAI_VERIFY_WIDE_WINDOW) return check_is_dense(trial, NSA_WIN, result);
  if (c->kind == NSAI_VERIFY_SPLIT) return check_split(trial, result);
  nsa_status status = twin(trial, c, &other);
  if (!status) {
    switch (c->kind) {
    case NSAI_VERIFY_REPEAT: status = check_repeat(trial, &other, result); break;
    case NSAI_VERIFY_STREAMS: status = check_streams(trial, &other, result); break;
    case NSAI_VERIFY_FUTURE: status = check_future(trial, &other, result); break;
    case NSAI_VERIFY_PERMUTE: status = check_permute(trial, &other, result); break;
    case NSAI_VERIFY_SCALE_V: status = check_scale_v(trial, &other, result); break;
    case NSAI_VERIFY_ZERO_GATE: status = check_zero_gate(trial, &other, result); break;
    case NSAI_VERIFY_INFINITE: status = check_infinite(trial, &other, result); break;
    case NSAI_VERIFY_GRAPH: status = check_graph(trial, &other, result); break;
    default: status = nsai_fail(NSA_E_INTERNAL, "no check of kind %d", (int)c->kind);
    }
  }
  nsai_trial_run_destroy(&other);
  return status;
}
