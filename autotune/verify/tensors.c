/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The tensors of a case: which exist, where they are stored, and what must not change.
 * tensors_fill.c fills them.
 */
#include "verify/tensors.h"

#include "run/check_tensor.h"
#include "verify/tensors_fill.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INT_FILL 0xa5 /* a large negative number; not -1, which is a legal index */

const char *nsai_verify_slot_name(int slot) {
  /* In the order of nsai_verify_slot. */
  static const char names[] = "cu_q\0cu_kv\0cu_cmp\0q\0"
                              "k[0]\0k[1]\0k[2]\0v[0]\0v[1]\0v[2]\0"
                              "phi.k.pe\0phi.k.w\0phi.k.w1\0phi.k.b1\0phi.k.w2\0phi.k.b2\0"
                              "phi.v.pe\0phi.v.w\0phi.v.w1\0phi.v.b1\0phi.v.w2\0phi.v.b2\0"
                              "gate.value\0gate.x\0gate.w1\0gate.b1\0gate.w2\0gate.b2\0"
                              "block_idx (in)\0ranges\0k_cmp (in)\0v_cmp (in)\0"
                              "probe_rows\0importance\0d_o\0"
                              "o_branch[0] (in)\0o_branch[1] (in)\0o_branch[2] (in)\0"
                              "lse[0] (in)\0lse[1] (in)\0lse[2] (in)\0index_q\0k_idx\0"
                              "o\0o_branch[0]\0o_branch[1]\0o_branch[2]\0lse[0]\0lse[1]\0lse[2]\0"
                              "index_lse\0block_idx\0k_cmp\0v_cmp\0probe_importance\0d_q\0"
                              "d_kv.k[0]\0d_kv.k[1]\0d_kv.k[2]\0"
                              "d_kv.v[0]\0d_kv.v[1]\0d_kv.v[2]\0d_kv.k_cmp\0d_kv.v_cmp\0"
                              "d_phi.k.pe\0d_phi.k.w\0d_phi.k.w1\0d_phi.k.b1\0d_phi.k.w2\0"
                              "d_phi.k.b2\0d_phi.v.pe\0d_phi.v.w\0d_phi.v.w1\0d_phi.v.b1\0"
                              "d_phi.v.w2\0d_phi.v.b2\0d_gate.value\0d_gate.x\0d_gate.w1\0"
                              "d_gate.b1\0d_gate.w2\0d_gate.b2";
  const char *name = names;
  while (slot-- > 0) name += strlen(name) + 1;
  return name;
}

void nsai_verify_tensors_locate(const nsai_verify_case *c, int64_t t, int32_t *sequence,
                                int64_t *position) {
  int32_t s = 0;
  for (; s < c->num_seqs - 1 && t >= c->q_len[s]; s++) t -= c->q_len[s];
  *sequence = s;
  *position = c->kv_len[s] - c->q_len[s] + t;
}

/* ---- which slots, and their shapes ----------------------------------------------------------- */

/* Declares a contiguous slot of `ndim` dimensions. */
static void declare(nsai_verify_tensors *d, int slot, int32_t dtype, int32_t ndim,
                    const int64_t *shape) {
  d->view[slot] = nsai_verify_tensor(dtype, ndim, shape);
}

static void declare1(nsai_verify_tensors *d, int slot, int32_t dtype, int64_t n) {
  declare(d, slot, dtype, 1, &n);
}

static void declare2(nsai_verify_tensors *d, int slot, int32_t dtype, int64_t rows, int64_t width) {
  int64_t shape[2] = { rows, width };
  declare(d, slot, dtype, 2, shape);
  /* A gap of 3 elements: tensors of 4-byte types may have any outer stride. */
  if (d->c->layout == NSAI_VERIFY_LAYOUT_STRIDED && (size_t)nsai_dtype_bytes(dtype) == 4)
    d->view[slot].stride[0] = width + 3;
}

/* [rows, heads, width] in the case's layout. Strides are multiples of `step` elements. */
static void declare3(nsai_verify_tensors *d, int slot, int32_t dtype, const int64_t *shape,
                     int64_t step) {
  declare(d, slot, dtype, 3, shape);
  nsa_tensor *v = &d->view[slot];
  if (d->c->layout == NSAI_VERIFY_LAYOUT_STRIDED) {
    v->stride[1] = shape[2] + step;
    v->stride[0] = shape[1] * v->stride[1] + 2 * step;
  }
  if (d->c->layout == NSAI_VERIFY_LAYOUT_HEADS && shape[0] > 0) {
    v->stride[0] = shape[2];
    v->stride[1] = shape[0] * shape[2];
  }
}

/* Elements in 16 bytes: the API requires strides of bf16 and fp16 to be multiples of it. */
#define HALF_STEP 8

static void declare_heads(nsai_verify_tensors *d, int slot, int64_t rows, int64_t heads,
                          int64_t width) {
  int64_t shape[3] = { rows, heads, width };
  declare3(d, slot, d->c->model.dtype, shape, HALF_STEP);
}

static void declare_qkv(nsai_verify_tensors *d) {
  const nsai_model *g = &d->c->model;
  int dense = d->c->kind == NSAI_VERIFY_DENSE || d->c->kind == NSAI_VERIFY_COMPRESS ||
              d->c->kind == NSAI_VERIFY_SELECT;
  declare_heads(d, NSAI_VERIFY_Q, d->token_capacity, g->heads, g->head_dim_qk);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    int off = (b == NSA_SEL && !g->select_count) || (b == NSA_WIN && !g->window);
    if (b && (dense || !g->per_branch || off)) continue;
    declare_heads(d, NSAI_VERIFY_K0 + b, d->kv_capacity, g->kv_heads, g->head_dim_qk);
    declare_heads(d, NSAI_VERIFY_V0 + b, d->kv_capacity, g->kv_heads, g->head_dim_v);
    if (d->c->layout != NSAI_VERIFY_LAYOUT_SHARED) continue;
    d->view[NSAI_VERIFY_K0 + b].stride[1] = d->view[NSAI_VERIFY_V0 + b].stride[1] = 0;
  }
  if (d->c->layout != NSAI_VERIFY_LAYOUT_PACKED) return;
  int64_t k_at = (int64_t)g->heads * g->head_dim_qk;
  int64_t v_at = k_at + (int64_t)g->kv_heads * g->head_dim_qk;
  int64_t row = v_at + (int64_t)g->kv_heads * g->head_dim_v;
  d->view[NSAI_VERIFY_Q].stride[0] = d->view[NSAI_VERIFY_K0].stride[0] =
      d->view[NSAI_VERIFY_V0].stride[0] = row;
  d->view[NSAI_VERIFY_K0].data = (void *)(uintptr_t)(2 * k_at);
  d->view[NSAI_VERIFY_V0].data = (void *)(uintptr_t)(2 * v_at);
}

static void declare_phi(nsai_verify_tensors *d, int first, int32_t dim) {
  const nsai_model *g = &d->c->model;
  int64_t heads = g->kv_heads, flat = (int64_t)g->block * dim, hidden = g->phi_hidden;
  int64_t pe[3] = { heads, g->block, dim }, w[3] = { heads, flat, dim };
  int64_t w1[3] = { heads, flat, hidden }, w2[3] = { heads, hidden, dim };
  /* pe and the biases are optional: cases with odd seeds leave them out. */
  int optional = d->c->seed % 2 == 0;
  if (!nsai_phi_has_weights(g)) return;
  if (optional) declare(d, first, g->dtype, 3, pe);
  if (g->phi == NSAI_PHI_LINEAR) {
    declare(d, first + 1, g->dtype, 3, w);
    return;
  }
  declare(d, first + 2, g->dtype, 3, w1);
  declare(d, first + 4, g->dtype, 3, w2);
  if (!optional) return;
  declare(d, first + 3, g->dtype, 2, (int64_t[2]){ heads, hidden });
  declare(d, first + 5, g->dtype, 2, (int64_t[2]){ heads, dim });
}

static void declare_gate(nsai_verify_tensors *d) {
  const nsai_model *g = &d->c->model;
  int64_t out = (int64_t)g->heads * NSA_BRANCHES;
  if (g->gate == NSAI_GATE_NONE) return;
  if (g->gate != NSAI_GATE_MLP) {
    int64_t shape[3] = { d->token_capacity, g->heads, NSA_BRANCHES };
    declare(d, NSAI_VERIFY_GATE_VALUE, d->c->gate_f32 ? NSA_F32 : g->dtype, 3, shape);
    return;
  }
  int optional = d->c->seed % 2 == 0;
  declare(d, NSAI_VERIFY_GATE_X, g->dtype, 2, (int64_t[2]){ d->token_capacity, g->gate_channels });
  if (g->gate_hidden) {
    declare(d, NSAI_VERIFY_GATE_W1, g->dtype, 2, (int64_t[2]){ g->gate_channels, g->gate_hidden });
    if (optional) declare1(d, NSAI_VERIFY_GATE_B1, g->dtype, g->gate_hidden);
  }
  declare(d, NSAI_VERIFY_GATE_W2, g->dtype, 2,
          (int64_t[2]){ g->gate_hidden ? g->gate_hidden : g->gate_channels, out });
  d->view[NSAI_VERIFY_GATE_W2].stride[0] = (out + HALF_STEP - 1) / HALF_STEP * HALF_STEP;
  if (optional) declare1(d, NSAI_VERIFY_GATE_B2, g->dtype, out);
}

uint32_t nsai_verify_branches(const nsai_verify_case *c) {
  const uint32_t has = nsai_branches(&c->model);
  return c->branches ? has & c->branches : has;
}

static void declare_indices(nsai_verify_tensors *d) {
  const nsai_verify_case *c = d->c;
  const nsai_model *g = &c->model;
  int64_t n = g->select_count, t = d->token_capacity;
  int64_t shape[3] = { t, g->kv_heads, n };
  if (!n) return;
  if (c->selection == NSA_SELECT_BLOCKS && c->index_shared)
    declare2(d, NSAI_VERIFY_INDEX_IN, NSA_I32, t, n);
  if (c->selection == NSA_SELECT_BLOCKS && !c->index_shared)
    declare3(d, NSAI_VERIFY_INDEX_IN, NSA_I32, shape, 1);
  if (c->selection == NSA_SELECT_RANGES && c->index_shared)
    declare(d, NSAI_VERIFY_RANGES, NSA_I32, 3, (int64_t[3]){ t, n, 2 });
  if (c->selection == NSA_SELECT_RANGES && !c->index_shared)
    declare(d, NSAI_VERIFY_RANGES, NSA_I32, 4, (int64_t[4]){ t, g->kv_heads, n, 2 });
  if (c->selection == NSA_SELECT_TOPN &&
      c->kind == NSAI_VERIFY_BACKWARD) /* chosen by the forward */
    declare3(d, NSAI_VERIFY_INDEX_IN, NSA_I32, shape, 1);
  if (c->selection != NSA_SELECT_TOPN || c->kind == NSAI_VERIFY_BACKWARD ||
      !(nsai_verify_branches(c) >> NSA_SEL & 1))
    return;
  declare3(d, NSAI_VERIFY_INDEX, NSA_I32, shape, 1);
  if (!d->probe_count) return;
  declare1(d, NSAI_VERIFY_PROBE_ROWS, NSA_I32, d->probe_count);
  declare(d, NSAI_VERIFY_PROBE, NSA_F32, 3,
          (int64_t[3]){ d->probe_count, g->kv_heads, d->select_blocks });
}

/* What ranks the blocks that the library chooses. */
static void declare_index(nsai_verify_tensors *d) {
  const nsai_model *g = &d->c->model;
  if (g->by != NSAI_BY_INDEX || d->c->kind == NSAI_VERIFY_BACKWARD ||
      (d->c->selection != NSA_SELECT_TOPN && d->c->kind != NSAI_VERIFY_INDEX_KL &&
       !d->c->index_lse))
    return;
  declare_heads(d, NSAI_VERIFY_INDEX_Q, d->token_capacity, g->index_heads, g->index_dim);
  declare_heads(d, NSAI_VERIFY_K_IDX, d->kv_capacity, 1, g->index_dim);
  if (d->c->index_lse && (d->view[NSAI_VERIFY_INDEX].ndim || d->view[NSAI_VERIFY_INDEX_IN].ndim))
    declare2(d, NSAI_VERIFY_INDEX_LSE, NSA_F32, d->token_capacity, g->index_heads);
}

static void declare_compressed(nsai_verify_tensors *d) {
  const nsai_model *g = &d->c->model;
  if (!nsai_compresses(g)) return;
  int in = g->phi == NSAI_PHI_EXTERNAL;
  int64_t rows = d->blocks + (d->c->no_batch ? 0 : d->c->slack / g->stride);
  uint32_t run = nsai_verify_branches(d->c);
  int own = d->c->selection == NSA_SELECT_TOPN && (run >> NSA_SEL & 1);
  /* Where nothing needs compressed blocks, nobody makes them; a backward pass makes its own. */
  if (!in && d->c->kind == NSAI_VERIFY_BACKWARD && !(d->c->saved && (run & 1))) return;
  in |= d->c->kind == NSAI_VERIFY_BACKWARD;
  if (!in && !(run >> NSA_CMP & 1) && !own) return;
  declare_heads(d, in ? NSAI_VERIFY_K_CMP_IN : NSAI_VERIFY_K_CMP, rows, g->kv_heads,
                g->head_dim_qk);
  if (g->keys_only) return;
  declare_heads(d, in ? NSAI_VERIFY_V_CMP_IN : NSAI_VERIFY_V_CMP, rows, g->kv_heads, g->head_dim_v);
}

static void declare_outputs(nsai_verify_tensors *d) {
  const nsai_model *g = &d->c->model;
  const bool dense = d->c->kind == NSAI_VERIFY_DENSE || d->c->selection == NSA_SELECT_ALL;
  uint32_t run = dense ? 1u : nsai_verify_branches(d->c);
  declare_heads(d, NSAI_VERIFY_O, d->token_capacity, g->heads, g->head_dim_v);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!(run >> b & 1)) continue;
    if (!dense)
      declare_heads(d, NSAI_VERIFY_O_BRANCH + b, d->token_capacity, g->heads, g->head_dim_v);
    declare2(d, NSAI_VERIFY_LSE + b, NSA_F32, d->token_capacity, g->heads);
  }
}

/* The bit of a gradient in the case's `wanted`. */
static uint32_t wanted_bit(int slot) {
  if (slot == NSAI_VERIFY_D_Q) return 1;
  if (slot >= NSAI_VERIFY_D_GATE_VALUE) return 8;
  if (slot >= NSAI_VERIFY_D_PHI_K) return 16;
  return slot < NSAI_VERIFY_D_V0 || slot == NSAI_VERIFY_D_K_CMP ? 2 : 4;
}

static bool wants(const nsai_verify_tensors *d, int slot) {
  return !d->c->wanted || (d->c->wanted & wanted_bit(slot));
}

static void declare_gradient(nsai_verify_tensors *d, int slot, int64_t rows, int64_t heads,
                             int64_t width) {
  if (!wants(d, slot)) return;
  int32_t dtype = d->c->grads_f32 ? NSA_F32 : d->c->model.dtype;
  declare3(d, slot, dtype, (int64_t[3]){ rows, heads, width }, dtype == NSA_F32 ? 1 : HALF_STEP);
}

static void declare_saved(nsai_verify_tensors *d) {
  const nsai_model *g = &d->c->model;
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!(nsai_verify_branches(d->c) >> b & 1)) continue;
    declare_heads(d, NSAI_VERIFY_O_BRANCH_IN + b, d->token_capacity, g->heads, g->head_dim_v);
    declare2(d, NSAI_VERIFY_LSE_IN + b, NSA_F32, d->token_capacity, g->heads);
  }
}

/* Shaped like the weights that have been declared, in the gradients' dtype. */
static void declare_weights(nsai_verify_tensors *d, int slot, int input) {
  const nsa_tensor *like = &d->view[input];
  int32_t dtype = d->c->grads_f32 ? NSA_F32 : d->c->model.dtype;
  if (!like->ndim || !wants(d, slot)) return;
  if (like->ndim == 3)
    declare3(d, slot, dtype, like->shape, 1);
  else
    declare(d, slot, dtype, like->ndim, like->shape);
}

static void declare_gradients(nsai_verify_tensors *d) {
  const nsai_model *g = &d->c->model;
  if (d->c->saved) declare_saved(d);
  int64_t d_o[3] = { d->token_capacity, g->heads, g->head_dim_v };
  declare3(d, NSAI_VERIFY_D_O, d->c->d_o_f32 ? NSA_F32 : g->dtype, d_o,
           d->c->d_o_f32 ? 1 : HALF_STEP);
  declare_gradient(d, NSAI_VERIFY_D_Q, d->token_capacity, g->heads, g->head_dim_qk);
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    if (!nsai_reads_pair(g, pair)) continue;
    declare_gradient(d, NSAI_VERIFY_D_K0 + pair, d->kv_capacity, g->kv_heads, g->head_dim_qk);
    declare_gradient(d, NSAI_VERIFY_D_V0 + pair, d->kv_capacity, g->kv_heads, g->head_dim_v);
  }
  if (g->phi == NSAI_PHI_EXTERNAL) {
    int64_t rows = d->view[NSAI_VERIFY_K_CMP_IN].shape[0];
    declare_gradient(d, NSAI_VERIFY_D_K_CMP, rows, g->kv_heads, g->head_dim_qk);
    if (!g->keys_only) declare_gradient(d, NSAI_VERIFY_D_V_CMP, rows, g->kv_heads, g->head_dim_v);
  }
  for (int i = 0; i < 6; i++) {
    declare_weights(d, NSAI_VERIFY_D_PHI_K + i, NSAI_VERIFY_PHI_K + i);
    declare_weights(d, NSAI_VERIFY_D_PHI_V + i, NSAI_VERIFY_PHI_V + i);
  }
  for (int i = 0; i < 5; i++) declare_weights(d, NSAI_VERIFY_D_GATE_X + i, NSAI_VERIFY_GATE_X + i);
  if (!nsai_gate_is_given(g) || !wants(d, NSAI_VERIFY_D_GATE_VALUE)) return;
  int64_t gates[3] = { d->token_capacity, g->heads, NSA_BRANCHES };
  declare(d, NSAI_VERIFY_D_GATE_VALUE, d->c->grads_f32 ? NSA_F32 : g->dtype, 3, gates);
}

static void declare_all(nsai_verify_tensors *d) {
  const nsai_verify_case *c = d->c;
  const nsai_model *g = &c->model;
  if (!c->no_batch) {
    int same = !memcmp(c->q_len, c->kv_len, sizeof c->q_len) && c->seed % 2;
    declare1(d, NSAI_VERIFY_CU_Q, NSA_I32, c->num_seqs + 1);
    if (!same) declare1(d, NSAI_VERIFY_CU_KV, NSA_I32, c->num_seqs + 1);
    declare1(d, NSAI_VERIFY_CU_CMP, NSA_I32, c->num_seqs + 1);
  }
  declare_qkv(d);
  if (c->kind == NSAI_VERIFY_SELECT) {
    int64_t importance[3] = { d->token_capacity, g->kv_heads, d->select_blocks };
    int64_t index[3] = { d->token_capacity, g->kv_heads, g->select_count };
    declare3(d, NSAI_VERIFY_IMPORTANCE_IN, NSA_F32, importance, 1);
    declare3(d, NSAI_VERIFY_INDEX, NSA_I32, index, 1);
    return;
  }
  if (c->kind != NSAI_VERIFY_DENSE) {
    declare_phi(d, NSAI_VERIFY_PHI_K, g->head_dim_qk);
    if (!g->keys_only) declare_phi(d, NSAI_VERIFY_PHI_V, g->head_dim_v);
    declare_compressed(d);
    declare_index(d);
  }
  if (c->kind == NSAI_VERIFY_COMPRESS) return;
  if (c->kind != NSAI_VERIFY_DENSE) {
    declare_gate(d);
    declare_indices(d);
  }
  if (c->kind == NSAI_VERIFY_BACKWARD)
    declare_gradients(d);
  else
    declare_outputs(d);
}

/* ---- buffers --------------------------------------------------------------------------------- */

int nsai_verify_tensors_has(const nsai_verify_tensors *data, int slot) {
  return data->view[slot].ndim > 0;
}

/* The slot whose buffer contains a slot: slices of a packed QKV are in q's buffer. */
static int owner(const nsai_verify_tensors *d, int slot) {
  int slice = slot == NSAI_VERIFY_K0 || slot == NSAI_VERIFY_V0;
  return slice && d->c->layout == NSAI_VERIFY_LAYOUT_PACKED ? NSAI_VERIFY_Q : slot;
}

/* Bytes from a view's first element to its end. */
static size_t view_bytes(const nsa_tensor *v) {
  int64_t last = 0;
  for (int32_t i = 0; i < v->ndim; i++) {
    if (v->shape[i] == 0) return 0;
    last += (v->shape[i] - 1) * v->stride[i];
  }
  return (size_t)(last + 1) * (size_t)nsai_dtype_bytes(v->dtype) + (uintptr_t)v->data;
}

static nsa_status create_buffers(nsai_verify_tensors *d) {
  for (int slot = 0; slot < NSAI_VERIFY_SLOTS; slot++) {
    if (!nsai_verify_tensors_has(d, slot) || owner(d, slot) != slot) continue;
    size_t bytes = view_bytes(&d->view[slot]);
    if (slot == NSAI_VERIFY_Q && d->c->layout == NSAI_VERIFY_LAYOUT_PACKED)
      bytes = view_bytes(&d->view[NSAI_VERIFY_V0]);
    int32_t dtype = d->view[slot].dtype;
    NSAI_TRY(nsai_verify_buffer_create(d->device, bytes,
                                       dtype == NSA_I32 ? INT_FILL : NSAI_VERIFY_FLOAT_FILL,
                                       &d->buffer[slot]));
    if (slot < NSAI_VERIFY_FIRST_OUTPUT && !nsai_verify_buffer_image(&d->buffer[slot]))
      return nsai_fail_nomem("an input's host image", bytes);
  }
  return NSA_OK;
}

nsa_status nsai_verify_tensors_create(const nsai_verify_device *device, const nsai_verify_case *c,
                                      int threads, const int64_t *probes, int64_t probe_count,
                                      nsai_verify_tensors *d) {
  int64_t slack = c->no_batch ? 0 : c->slack;
  *d = (nsai_verify_tensors){ .c = c, .device = device, .probe_count = probe_count };
  d->tokens = nsai_verify_total(c->q_len, c->num_seqs);
  d->kv_tokens = nsai_verify_total(c->kv_len, c->num_seqs);
  d->token_capacity = d->tokens + slack;
  d->kv_capacity = d->kv_tokens + slack;
  for (int32_t s = 0; s < c->num_seqs; s++) {
    d->blocks += nsai_block_count(&c->model, c->kv_len[s]);
    if (c->kv_len[s] > d->max_kv_len) d->max_kv_len = c->kv_len[s];
  }
  if (d->max_kv_len < 1) d->max_kv_len = 1;
  d->select_blocks = nsai_select_block_count(&c->model, d->max_kv_len);
  declare_all(d);
  NSAI_TRY(create_buffers(d));
  nsai_verify_tensors_fill(d, threads, probes);
  for (int slot = 0; slot < NSAI_VERIFY_FIRST_OUTPUT; slot++)
    if (d->buffer[slot].device) NSAI_TRY(nsai_verify_buffer_upload(device, &d->buffer[slot]));
  return NSA_OK;
}

void nsai_verify_tensors_destroy(nsai_verify_tensors *d) {
  for (int slot = 0; slot < NSAI_VERIFY_SLOTS; slot++)
    if (d->buffer[slot].device) nsai_verify_buffer_destroy(d->device, &d->buffer[slot]);
  nsai_verify_device_free(d->device, d->guarded);
  *d = (nsai_verify_tensors){ 0 };
}

nsa_tensor nsai_verify_tensors_view(const nsai_verify_tensors *d, int slot, int where) {
  nsa_tensor view = d->view[slot];
  if (!view.ndim) return (nsa_tensor){ 0 };
  const nsai_verify_buffer *buffer = &d->buffer[owner(d, slot)];
  uint8_t *base = where == NSAI_VERIFY_HOST ? buffer->image : buffer->device;
  view.data = base ? base + NSAI_VERIFY_GUARD + (uintptr_t)view.data : NULL;
  return view;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Slots of weights, and those of gradients, have the order of the public structs' fields. */
_Static_assert(sizeof(nsa_phi) == 12 * sizeof(nsa_tensor), "slots from NSAI_VERIFY_PHI_K on");
_Static_assert(sizeof(nsa_gate) == 6 * sizeof(nsa_tensor), "slots from NSAI_VERIFY_GATE_VALUE on");
_Static_assert(sizeof(nsa_kv) == 8 * sizeof(nsa_tensor), "slots from NSAI_VERIFY_D_K0 on");

void nsai_verify_tensors_io(const nsai_verify_tensors *d, int where, nsa_batch *batch, nsa_io *io) {
  nsa_tensor view[NSAI_VERIFY_FIRST_GRADIENT];
  for (int slot = 0; slot < NSAI_VERIFY_FIRST_GRADIENT; slot++)
    view[slot] = nsai_verify_tensors_view(d, slot, where);
  bool external = nsai_verify_tensors_has(d, NSAI_VERIFY_K_CMP_IN);
  bool chosen = nsai_verify_tensors_has(d, NSAI_VERIFY_INDEX_IN);
  *batch = (nsa_batch)NSA_BATCH_INIT;
  *io = (nsa_io)NSA_IO_INIT;
  batch->num_seqs = d->c->num_seqs;
  batch->cu_q = view[NSAI_VERIFY_CU_Q];
  batch->cu_kv = view[NSAI_VERIFY_CU_KV];
  batch->cu_cmp = view[NSAI_VERIFY_CU_CMP];
  io->softmax_scale = d->c->softmax_scale;
  io->q = view[NSAI_VERIFY_Q];
  io->o = view[NSAI_VERIFY_O];
  for (int b = 0; b < NSA_BRANCHES; b++) {
    bool given = nsai_verify_tensors_has(d, NSAI_VERIFY_LSE_IN + b);
    io->kv.k[b] = view[NSAI_VERIFY_K0 + b];
    io->kv.v[b] = view[NSAI_VERIFY_V0 + b];
    io->o_branch[b] = view[(given ? NSAI_VERIFY_O_BRANCH_IN : NSAI_VERIFY_O_BRANCH) + b];
    io->lse[b] = view[(given ? NSAI_VERIFY_LSE_IN : NSAI_VERIFY_LSE) + b];
  }
  memcpy(&io->phi, &view[NSAI_VERIFY_PHI_K], sizeof io->phi);
  memcpy(&io->gate, &view[NSAI_VERIFY_GATE_VALUE], sizeof io->gate);
  io->kv.k_cmp = view[external ? NSAI_VERIFY_K_CMP_IN : NSAI_VERIFY_K_CMP];
  io->index_q = view[NSAI_VERIFY_INDEX_Q];
  io->k_idx = view[NSAI_VERIFY_K_IDX];
  io->kv.v_cmp = view[external ? NSAI_VERIFY_V_CMP_IN : NSAI_VERIFY_V_CMP];
  io->block_idx = view[chosen ? NSAI_VERIFY_INDEX_IN : NSAI_VERIFY_INDEX];
  io->ranges = view[NSAI_VERIFY_RANGES];
  io->index_lse = view[NSAI_VERIFY_INDEX_LSE];
  io->probe_rows = view[NSAI_VERIFY_PROBE_ROWS];
  io->probe_importance = view[NSAI_VERIFY_PROBE];
}

void nsai_verify_leave_out_index(nsa_io *io) { io->index_q = io->k_idx = (nsa_tensor){ 0 }; }

void nsai_verify_set_grads(const nsa_tensor *slot, nsa_grads *grads) {
  grads->d_q = slot[NSAI_VERIFY_D_Q];
  memcpy(&grads->d_kv, &slot[NSAI_VERIFY_D_K0], sizeof grads->d_kv);
  memcpy(&grads->d_phi, &slot[NSAI_VERIFY_D_PHI_K], sizeof grads->d_phi);
  memcpy(&grads->d_gate, &slot[NSAI_VERIFY_D_GATE_VALUE], sizeof grads->d_gate);
}

void nsai_verify_tensors_grads(const nsai_verify_tensors *d, int where, nsa_grads *grads) {
  nsa_tensor slot[NSAI_VERIFY_SLOTS] = { 0 };
  *grads = (nsa_grads)NSA_GRADS_INIT;
  grads->accumulate = (uint32_t)d->c->accumulate;
  grads->d_o = nsai_verify_tensors_view(d, NSAI_VERIFY_D_O, where);
  for (int i = NSAI_VERIFY_FIRST_GRADIENT; i < NSAI_VERIFY_SLOTS; i++)
    slot[i] = nsai_verify_tensors_view(d, i, where);
  nsai_verify_set_grads(slot, grads);
}

const nsa_batch *nsai_verify_tensors_batch(const nsai_verify_tensors *d, const nsa_batch *batch) {
  return d->c->no_batch ? NULL : batch;
}

nsa_status nsai_verify_tensors_workspace(nsai_verify_tensors *d, uint64_t bytes) {
  return d->guarded && d->workspace_bytes >= bytes ? NSA_OK
                                                   : nsai_verify_tensors_workspace_anew(d, bytes);
}

nsa_status nsai_verify_tensors_workspace_anew(nsai_verify_tensors *d, uint64_t bytes) {
  if (!d->guarded || d->workspace_room < bytes) {
    nsai_verify_device_free(d->device, d->guarded);
    d->workspace_bytes = d->workspace_room = 0;
    NSAI_TRY(
        nsai_verify_device_alloc(d->device, bytes + 2 * (size_t)NSAI_VERIFY_GUARD, &d->guarded));
    d->workspace_room = bytes;
  }
  d->workspace = (uint8_t *)d->guarded + NSAI_VERIFY_GUARD;
  d->workspace_bytes = bytes;
  return nsai_verify_device_set(d->device, d->guarded, NSAI_VERIFY_FLOAT_FILL,
                                bytes + 2 * (size_t)NSAI_VERIFY_GUARD);
}

void nsai_verify_tensors_drop_optional(nsai_verify_tensors *d) {
  for (int slot = NSAI_VERIFY_PROBE_ROWS; slot < NSAI_VERIFY_SLOTS; slot++) {
    if (slot == NSAI_VERIFY_O || slot == NSAI_VERIFY_IMPORTANCE_IN) continue;
    if (slot == NSAI_VERIFY_INDEX_Q || slot == NSAI_VERIFY_K_IDX) continue;
    if (d->buffer[slot].device) nsai_verify_buffer_destroy(d->device, &d->buffer[slot]);
    d->view[slot].ndim = 0;
  }
}

nsa_status nsai_verify_tensors_poison(nsai_verify_tensors *d) {
  for (int slot = NSAI_VERIFY_FIRST_OUTPUT; slot < NSAI_VERIFY_SLOTS; slot++)
    if (d->buffer[slot].device) NSAI_TRY(nsai_verify_buffer_poison(d->device, &d->buffer[slot]));
  return NSA_OK;
}

nsa_status nsai_verify_tensors_fetch(nsai_verify_tensors *d) {
  for (int slot = NSAI_VERIFY_FIRST_OUTPUT; slot < NSAI_VERIFY_SLOTS; slot++)
    if (d->buffer[slot].device) NSAI_TRY(nsai_verify_buffer_fetch(d->device, &d->buffer[slot]));
  return NSA_OK;
}
