/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Inputs, weights, scales and tables. Numbers depend on the seed, the call and the tensor alone, so that
 * they are the same on every rank.
 */
#include "base/math.h"
#include "ranks/serve.h"
#include "run/check_tensor.h"

#include <math.h>
#include <string.h>

#define SHAPE(...) ((const int64_t[]){ __VA_ARGS__ })
#define NOWHERE 0x7ffffff0 /* a page that must not be looked up */

/* Streams of random numbers: of calls, below them of what is drawn once. */
#define FIRST_CALL 1000

static uint64_t key_of(const chk_memory *m, int64_t stream, int what) {
  return nsai_verify_key(nsai_verify_key(m->s->seed, (uint64_t)stream), (uint64_t)what);
}

/* Fills `count` elements from the beginning of a contiguous image. */
static void fill(const nsa_tensor *t, uint64_t key, int64_t count, float deviation) {
  for (int64_t i = 0; i < count; i++)
    nsai_verify_store(t, i, deviation * nsai_verify_normal(key, (uint64_t)i));
}

static nsa_status upload(const chk_memory *m, chk_serve_tensor *t) {
  return nsai_verify_buffer_upload(m->device, &t->memory);
}

/* ---- what is made once ----------------------------------------------------------------------- */

static nsa_status make(chk_memory *m, int what, int32_t dtype, int32_t ndim, const int64_t *shape) {
  return chk_memory_make(m, &m->tensor[what], dtype, ndim, shape);
}

/* A weight whose products with `in` elements have unit variance. */
static nsa_status make_weight(chk_memory *m, int what, int64_t in, int32_t ndim,
                              const int64_t *shape) {
  NSAI_TRY(make(m, what, m->s->o.model.dtype, ndim, shape));
  const nsa_tensor t = chk_serve_image(&m->tensor[what]);
  int64_t count = 1;
  for (int32_t i = 0; i < ndim; i++) count *= shape[i];
  fill(&t, key_of(m, 0, what), count, (float)(1 / sqrt((double)in)));
  return upload(m, &m->tensor[what]);
}

/* As nsa_phi_side has them: pe, w, w1, b1, w2, b2. */
static nsa_status make_side(chk_memory *m, int first, int64_t dim) {
  const nsai_model *g = &m->s->o.model;
  const int64_t heads = g->kv_heads, all = g->block * dim, h = g->phi_hidden;
  NSAI_TRY(make_weight(m, first, g->block, 3, SHAPE(heads, g->block, dim)));
  if (g->phi == NSAI_PHI_LINEAR) return make_weight(m, first + 1, all, 3, SHAPE(heads, all, dim));
  NSAI_TRY(make_weight(m, first + 2, all, 3, SHAPE(heads, all, h)));
  NSAI_TRY(make_weight(m, first + 3, 16, 2, SHAPE(heads, h)));
  NSAI_TRY(make_weight(m, first + 4, h, 3, SHAPE(heads, h, dim)));
  return make_weight(m, first + 5, 16, 2, SHAPE(heads, dim));
}

static nsa_status make_weights(chk_memory *m) {
  const nsai_model *g = &m->s->o.model;
  const int first = CHK_SERVE_WEIGHTS, gate = first + 12;
  const int64_t out = (int64_t)g->heads * NSA_BRANCHES, in = g->gate_channels, h = g->gate_hidden;
  if (nsai_phi_has_weights(g)) {
    NSAI_TRY(make_side(m, first, g->head_dim_qk));
    NSAI_TRY(make_side(m, first + 6, g->head_dim_v));
  }
  if (g->gate != NSAI_GATE_MLP) return NSA_OK;
  if (h) NSAI_TRY(make_weight(m, gate, in, 2, SHAPE(in, h)));
  if (h) NSAI_TRY(make_weight(m, gate + 1, 16, 1, SHAPE(h)));
  NSAI_TRY(make_weight(m, gate + 2, h ? h : in, 2, SHAPE(h ? h : in, out)));
  return make_weight(m, gate + 3, 16, 1, SHAPE(out));
}

static bool has_scale(const chk_memory *m, int what) {
  const chk_cache_options *o = &m->s->o;
  if (!m->cache[what].memory.device || m->cache[what].view.dtype != NSA_E4M3) return false;
  return o->scales == CHK_CACHE_SCALES_ALL ||
         (o->scales == CHK_CACHE_SCALES_RAW && what < 2 * NSA_BRANCHES);
}

static nsa_status make_scales(chk_memory *m) {
  for (int what = 0; what < NSAI_VERIFY_CACHE_TENSORS; what++) {
    chk_serve_tensor *t = &m->tensor[CHK_SERVE_SCALES + what];
    if (!has_scale(m, what)) continue;
    const bool each = m->s->o.head_scales && what != 2 * NSA_BRANCHES;
    NSAI_TRY(chk_memory_make(m, t, NSA_F32, 1, SHAPE(each ? m->s->o.model.kv_heads : 1)));
    const nsa_tensor image = chk_serve_image(t);
    for (int64_t i = 0; i < image.shape[0]; i++) {
      const uint64_t bits = nsai_verify_bits(key_of(m, 1, what), (uint64_t)i);
      nsai_verify_store(&image, i, ldexpf((float)(8 + bits % 8), -11 + (int)(bits >> 8) % 5));
    }
    NSAI_TRY(upload(m, t));
  }
  return NSA_OK;
}

/* ---- tensors of a call ----------------------------------------------------------------------- */

static nsa_status make_outputs(chk_memory *m, int64_t t) {
  const nsai_model *g = &m->s->o.model;
  const bool selects = g->select_count > 0, owns = m->s->o.selection == NSA_SELECT_TOPN;
  if (selects)
    NSAI_TRY(make(m, owns ? CHK_SERVE_IDX : CHK_SERVE_BLOCKS, NSA_I32, 3,
                  SHAPE(t, g->kv_heads, g->select_count)));
  if (g->by == NSAI_BY_INDEX)
    NSAI_TRY(make(m, CHK_SERVE_INDEX_LSE, NSA_F32, 2, SHAPE(t, g->index_heads)));
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!nsai_has_branch(g, b)) continue;
    NSAI_TRY(make(m, CHK_SERVE_LSE_CMP + b, NSA_F32, 2, SHAPE(t, g->heads)));
    NSAI_TRY(make(m, CHK_SERVE_O_BRANCH + b, g->dtype, 3, SHAPE(t, g->heads, g->head_dim_v)));
  }
  return make(m, CHK_SERVE_O, g->dtype, 3, SHAPE(t, g->heads, g->head_dim_v));
}

static nsa_status make_new_pairs(chk_memory *m, int64_t t) {
  const nsai_model *g = &m->s->o.model;
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!nsai_reads_pair(g, b)) continue;
    NSAI_TRY(make(m, CHK_SERVE_NEW_K + b, g->dtype, 3, SHAPE(t, g->kv_heads, g->head_dim_qk)));
    NSAI_TRY(make(m, CHK_SERVE_NEW_V + b, g->dtype, 3, SHAPE(t, g->kv_heads, g->head_dim_v)));
  }
  if (g->by != NSAI_BY_INDEX) return NSA_OK;
  NSAI_TRY(make(m, CHK_SERVE_NEW_INDEX, g->dtype, 3, SHAPE(t, 1, g->index_dim)));
  return make(m, CHK_SERVE_INDEX_Q, g->dtype, 3, SHAPE(t, g->index_heads, g->index_dim));
}

nsa_status chk_memory_make_inputs(chk_memory *m) {
  const chk_cache_options *o = &m->s->o;
  const nsai_model *g = &o->model;
  const int64_t t = m->s->most_tokens, seqs = o->seqs, columns = m->s->table_pages;
  NSAI_TRY(make_outputs(m, t));
  NSAI_TRY(make_new_pairs(m, t));
  NSAI_TRY(make(m, CHK_SERVE_Q, g->dtype, 3, SHAPE(t, g->heads, g->head_dim_qk)));
  if (g->gate == NSAI_GATE_MLP)
    NSAI_TRY(make(m, CHK_SERVE_GATE, g->dtype, 2, SHAPE(t, g->gate_channels)));
  else if (g->gate != NSAI_GATE_NONE)
    NSAI_TRY(make(m, CHK_SERVE_GATE, g->dtype, 3, SHAPE(t, g->heads, NSA_BRANCHES)));
  NSAI_TRY(make(m, CHK_SERVE_CU_Q, NSA_I32, 1, SHAPE(seqs + 1)));
  NSAI_TRY(make(m, CHK_SERVE_KV_LEN, NSA_I32, 1, SHAPE(seqs)));
  if (o->slots) NSAI_TRY(make(m, CHK_SERVE_SLOTS, NSA_I32, 1, SHAPE(seqs)));
  if (o->mapping) NSAI_TRY(make(m, CHK_SERVE_MAPPING, NSA_I64, 1, SHAPE(t)));
  NSAI_TRY(make(m, CHK_SERVE_TABLE, NSA_I32, 2, SHAPE(seqs, columns)));
  if (m->rank >= 0) NSAI_TRY(make(m, CHK_SERVE_ENTRY_TABLE, NSA_I32, 2, SHAPE(seqs, columns)));
  NSAI_TRY(make_weights(m));
  return make_scales(m);
}

nsa_status chk_memory_fill_page(chk_memory *m, int what, int64_t sequence, int64_t index,
                                int32_t page) {
  chk_serve_tensor *t = &m->cache[what];
  const uint64_t key = nsai_verify_key(key_of(m, 2 + sequence, what), (uint64_t)index);
  nsa_tensor at = chk_serve_image(t);
  const size_t bytes = (size_t)at.stride[0] * (size_t)nsai_dtype_bytes(at.dtype);
  at.data = (uint8_t *)at.data + (size_t)page * bytes;
  /* By rows of a head, whatever comes first in memory. */
  for (int64_t i = 0; i < at.shape[1] * at.shape[2] * at.shape[3]; i++)
    nsai_verify_store(&at, i, nsai_verify_normal(key, (uint64_t)i));
  return nsai_verify_device_upload(m->device,
                                   t->memory.device + NSAI_VERIFY_GUARD + (size_t)page * bytes,
                                   at.data, bytes);
}

/* ---- a call ---------------------------------------------------------------------------------- */

static int32_t *ints(const chk_memory *m, int what) {
  return (int32_t *)chk_serve_image(&m->tensor[what]).data;
}

/* Random contents of new rows; those of padding, and those behind the tokens, are NaN. */
static void fill_rows(const chk_memory *m, const chk_script *call, int what) {
  const nsa_tensor t = chk_serve_image(&m->tensor[what]);
  const size_t row = (size_t)t.stride[0] * (size_t)nsai_dtype_bytes(t.dtype);
  int64_t token = 0;
  memset(t.data, 0xff, row * (size_t)t.shape[0]);
  fill(&t, key_of(m, FIRST_CALL + call->call, what), call->tokens * t.stride[0], 1);
  for (int s = 0; s < m->s->o.seqs; token += call->q_len[s++])
    if (!call->len[s])
      memset((char *)t.data + row * (size_t)token, 0xff, row * (size_t)call->q_len[s]);
  for (int64_t i = 0; what == CHK_SERVE_GATE && m->s->o.model.gate == NSAI_GATE_WEIGHTS &&
                      i < call->tokens * t.stride[0];
       i++)
    ((uint16_t *)t.data)[i] &= 0x7fff; /* like a sigmoid's: branches do not cancel */
}

/* Blocks of every kind: chosen, repeated, none, and in the future. */
static void fill_blocks(const chk_memory *m, const chk_script *call) {
  const nsa_tensor t = chk_serve_image(&m->tensor[CHK_SERVE_BLOCKS]);
  const int64_t blocks = nsai_select_block_count(&m->s->o.model, m->s->o.max_kv_len);
  nsai_verify_random random = { key_of(m, FIRST_CALL + call->call, CHK_SERVE_BLOCKS), 0 };
  for (int64_t i = 0; i < call->tokens * t.stride[0]; i++)
    ((int32_t *)t.data)[i] = (int32_t)nsai_verify_pick(&random, -1, blocks);
}

static void fill_table(const chk_memory *m, const chk_script *call, const chk_pool *pool,
                       int what) {
  const int64_t columns = m->s->table_pages;
  for (int s = 0; s < m->s->o.seqs; s++) {
    const int64_t pages = nsai_ceil_div(call->len[s], m->s->o.page_size);
    for (int64_t i = 0; i < columns; i++)
      ints(m, what)[s * columns + i] = i < pages ? pool->held[s][i] : NOWHERE;
  }
}

static void fill_mapping(const chk_memory *m, const chk_script *call) {
  const int64_t size = m->s->o.page_size;
  int64_t *to = (int64_t *)chk_serve_image(&m->tensor[CHK_SERVE_MAPPING]).data;
  for (int s = 0; s < m->s->o.seqs; s++)
    for (int64_t i = 0; i < call->q_len[s]; i++) {
      const int64_t position = (int64_t)call->len[s] - call->q_len[s] + i;
      *to++ = call->len[s] && position >= 0
                  ? m->raw.held[s][position / size] * size + position % size
                  : -1;
    }
}

nsa_status chk_memory_fill(chk_memory *m, const chk_script *call) {
  int32_t begin = 0;
  for (int what = CHK_SERVE_Q; what < CHK_SERVE_BLOCKS; what++)
    if (m->tensor[what].memory.device) fill_rows(m, call, what);
  if (m->tensor[CHK_SERVE_BLOCKS].memory.device) fill_blocks(m, call);
  for (int s = 0; s < m->s->o.seqs; begin += call->q_len[s++]) {
    ints(m, CHK_SERVE_CU_Q)[s] = begin;
    ints(m, CHK_SERVE_KV_LEN)[s] = call->len[s];
    if (m->s->o.slots) ints(m, CHK_SERVE_SLOTS)[s] = m->s->o.seqs - s;
  }
  ints(m, CHK_SERVE_CU_Q)[m->s->o.seqs] = begin;
  fill_table(m, call, &m->raw, CHK_SERVE_TABLE);
  if (m->rank >= 0) fill_table(m, call, &m->entries, CHK_SERVE_ENTRY_TABLE);
  if (m->s->o.mapping) fill_mapping(m, call);
  for (int what = CHK_SERVE_Q; what < CHK_SERVE_WEIGHTS; what++)
    if (m->tensor[what].memory.device) NSAI_TRY(upload(m, &m->tensor[what]));
  return NSA_OK;
}
