/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A sequence that outgrows the plan: an append gives its tokens their places up to max_kv_len and the others
 * none, and nothing else is written. The CPU device refuses it.
 */
#include "kv_world_impl.h"

#include <stdio.h>
#include <string.h>

/* Any number of new tokens of the last sequence, and how many of them have a place. */
typedef struct overrun {
  int last;
  int32_t count, placed, kv_len;
} overrun;

static overrun choose(chk_kv_world *w) {
  const int32_t most = w->form.max_kv_len, chunk = w->chunk < most ? w->chunk : most;
  overrun o = { .last = w->form.seqs - 1 };
  o.count = 1 + (int32_t)(chk_kv_next(w) % (uint64_t)chunk);
  o.placed = chk_kv_next(w) % 4 ? (int32_t)(chk_kv_next(w) % (uint64_t)o.count) : 0;
  o.kv_len = o.placed || chk_kv_next(w) % 2 ? most + o.count - o.placed : INT32_MAX;
  return o;
}

/* The call's sequence with so many new tokens, up to the plan's longest. */
static void make_call(chk_kv_world *w, const overrun *o, int32_t tokens) {
  memset(w->q_len, 0, sizeof w->q_len);
  w->packed = true;
  w->q_len[o->last] = tokens;
  w->len[o->last] = w->form.max_kv_len;
}

/* From the call of the tokens that have a place to that of all. */
static nsa_status overrun_call(chk_kv_world *w, const overrun *o) {
  int64_t *mapping = (int64_t *)(void *)w->tensor[CHK_KV_MAPPING].host;
  ((int32_t *)(void *)w->tensor[CHK_KV_LEN].host)[o->last] = o->kv_len;
  ((int32_t *)(void *)w->tensor[CHK_KV_CU_Q].host)[w->form.seqs] = o->count;
  for (int32_t i = o->placed; i < o->count; i++) mapping[i] = 0; /* it is to be written */
  w->rows = o->count;
  NSAI_TRY(chk_kv_upload(w, CHK_KV_LEN));
  NSAI_TRY(chk_kv_upload(w, CHK_KV_CU_Q));
  return chk_kv_upload(w, CHK_KV_MAPPING);
}

nsa_status chk_kv_overrun(chk_kv_world *w) {
  const overrun o = choose(w);
  make_call(w, &o, o.count);
  NSAI_TRY(chk_kv_prepare_append(w));
  make_call(w, &o, o.placed);
  chk_kv_write_call(w);
  if (o.placed) NSAI_TRY(chk_kv_append(w, false));
  NSAI_TRY(overrun_call(w, &o));
  nsa_status status = chk_kv_append(w, true);
  if (w->device->driver) return status ? status : chk_kv_compare_cache(w);
  if (status != NSA_E_ARG)
    snprintf(w->result->failure, sizeof w->result->failure,
             "the CPU device takes a sequence of %d tokens, the plan %d", o.kv_len,
             w->form.max_kv_len);
  return NSA_OK;
}
