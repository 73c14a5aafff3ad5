/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Damage for the self-test.
 */
#include "ranks/serve.h"
#include "run/check_tensor.h"

#include <math.h>
#include <string.h>

static uint8_t *data_of(chk_serve_tensor *t) {
  return t->memory.device ? t->memory.image + NSAI_VERIFY_GUARD : NULL;
}

/* The element of the largest finite magnitude among the call's rows; -1: none above 0. */
static int64_t largest(const nsa_tensor *t, int64_t rows) {
  int64_t found = -1;
  double most = 0;
  for (int64_t i = 0; i < rows * t->stride[0]; i++) {
    const double x = fabs((double)nsai_verify_load(t, i));
    if (!(x > most) || isinf(x)) continue;
    most = x;
    found = i;
  }
  return found;
}

static bool scale_element(chk_memory *m, const chk_script *call, int what, float factor) {
  const nsa_tensor t = chk_serve_image(&m->tensor[what]);
  const int64_t at = t.data ? largest(&t, call->tokens) : -1;
  if (at >= 0) nsai_verify_store(&t, at, factor * nsai_verify_load(&t, at));
  return at >= 0;
}

static bool flip_bit(chk_memory *m, const chk_script *call, int what) {
  const nsa_tensor t = chk_serve_image(&m->tensor[what]);
  const int64_t at = t.data ? largest(&t, call->tokens) : -1;
  if (at >= 0) ((uint8_t *)t.data)[at * nsai_dtype_bytes(t.dtype)] ^= 1; /* the lowest */
  return at >= 0;
}

/* A page of the first sequence that has tokens, of raw tokens or of entries. */
static bool flip_page(chk_memory *m, const chk_script *call, chk_kind kind) {
  for (int what = 0; what < NSAI_VERIFY_CACHE_TENSORS; what++) {
    const chk_pool *pool = chk_memory_pool(m, what);
    chk_serve_tensor *t = &m->cache[what];
    const int64_t bytes = t->view.stride[0] * nsai_dtype_bytes(t->view.dtype);
    if (!t->memory.device || chk_memory_kind(m, what) != kind) continue;
    for (int s = 0; s < m->s->o.seqs; s++)
      for (int32_t i = 0; call->len[s] && i < pool->count[s]; i++)
        if (pool->held[s][i] >= 0) {
          data_of(t)[pool->held[s][i] * bytes + bytes / 2] ^= 1;
          return true;
        }
  }
  return false;
}

static bool write_free_page(chk_memory *m) {
  const chk_pool *pool = chk_memory_pool(m, 0);
  chk_serve_tensor *t = &m->cache[0];
  if (!t->memory.device || !pool || !pool->free_count) return false;
  data_of(t)[pool->free_page[0] * t->view.stride[0] * nsai_dtype_bytes(t->view.dtype)] = 0;
  return true;
}

bool chk_serve_damage_prefill(chk_memory *m, const chk_script *call, int kind) {
  return kind == CHK_SERVE_DAMAGE_PREFILL && flip_bit(m, call, CHK_SERVE_O);
}

bool chk_serve_damage_results(chk_memory *m, const chk_script *call, int kind) {
  uint8_t *o = data_of(&m->tensor[CHK_SERVE_O]), *idx = data_of(&m->tensor[CHK_SERVE_IDX]);
  if (!call->decodes || !call->tokens) return false;
  switch (kind) {
  case CHK_SERVE_DAMAGE_IDX:
    if (idx) idx[0] ^= 1;
    return idx != NULL;
  case CHK_SERVE_DAMAGE_LSE_CMP: return flip_bit(m, call, CHK_SERVE_LSE_CMP);
  case CHK_SERVE_DAMAGE_LSE_SEL: return scale_element(m, call, CHK_SERVE_LSE_SEL, 1.00001f);
  case CHK_SERVE_DAMAGE_BRANCH: return scale_element(m, call, CHK_SERVE_O_BRANCH + 1, 1.02f);
  case CHK_SERVE_DAMAGE_O: return scale_element(m, call, CHK_SERVE_O, 1.02f);
  case CHK_SERVE_DAMAGE_BIT:
  case CHK_SERVE_DAMAGE_AGAIN: return flip_bit(m, call, CHK_SERVE_O);
  case CHK_SERVE_DAMAGE_BEHIND:
    o[m->tensor[CHK_SERVE_O].memory.bytes - 1] = 0; /* steps have fewer tokens than appends */
    return true;
  case CHK_SERVE_DAMAGE_RAW: return flip_page(m, call, CHK_KIND_RAW);
  case CHK_SERVE_DAMAGE_ENTRY: return flip_page(m, call, CHK_KIND_ENTRIES);
  case CHK_SERVE_DAMAGE_FREE: return write_free_page(m);
  case CHK_SERVE_DAMAGE_GUARD:
    if (m->cache[0].memory.device) m->cache[0].memory.image[0] = 0;
    return m->cache[0].memory.device != NULL;
  default: return false;
  }
}

/* The first page of a sequence is of rank 0. Where all blocks are selected, the step reads it. */
bool chk_serve_damage_inputs(chk_memory *m, const chk_script *call, int kind) {
  const int32_t n = m->s->o.model.select_count, size = m->s->o.model.select_block;
  if (kind != CHK_SERVE_DAMAGE_INPUT || !call->decodes) return false;
  for (int what = 0; what < 2 * NSA_BRANCHES; what++) {
    chk_serve_tensor *t = &m->cache[what];
    const size_t bytes = (size_t)t->view.stride[0] * (size_t)nsai_dtype_bytes(t->view.dtype);
    if (!t->memory.device || (m->s->o.model.per_branch && what % NSA_BRANCHES != NSA_SEL)) continue;
    for (int s = 0; s < m->s->o.seqs; s++)
      if (call->q_len[s] && call->len[s] > m->s->o.page_size && call->len[s] <= n * size)
        return !nsai_verify_device_set(m->device,
                                       t->memory.device + NSAI_VERIFY_GUARD +
                                           (size_t)m->raw.held[s][0] * bytes,
                                       0xff, bytes);
  }
  return false;
}
