/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A sequence that outgrows the plan, or its list of pages: an append gives its tokens their places up to
 * max_kv_len or the list's end and the others none, and nothing else is written; what attends to it leaves the
 * other sequences' results right. The CPU device refuses it.
 */
#include "internal.h"

#include <stdio.h>
#include <string.h>

/* Any number of new tokens of the last sequence, and how many of them have a place. */
typedef struct overrun {
  int last;
  int32_t room; /* tokens of the sequence that have a place */
  int32_t count, placed, kv_len;
} overrun;

/* The plan's longest sequence, or what the pages of its list hold. */
static int32_t choose_room(chk_kv_scenario *w, int s) {
  const int32_t most = w->opts.max_kv_len;
  if (w->opts.page_size < 0 || !w->opts.lists || chk_kv_next(w) % 4 == 0) return most;
  const int64_t listed = (int64_t)w->page_count[s] * w->opts.page_size;
  return listed && listed < most ? (int32_t)listed : most;
}

static overrun choose(chk_kv_scenario *w) {
  overrun o = { .last = w->opts.seqs - 1 };
  o.room = choose_room(w, o.last);
  const int32_t chunk = w->chunk < o.room ? w->chunk : o.room;
  o.count = 1 + (int32_t)(chk_kv_next(w) % (uint64_t)chunk);
  o.placed = chk_kv_next(w) % 4 ? (int32_t)(chk_kv_next(w) % (uint64_t)o.count) : 0;
  o.kv_len = o.placed || chk_kv_next(w) % 2 ? o.room + o.count - o.placed : INT32_MAX;
  return o;
}

/* The call's sequence with so many new tokens, up to the last place. */
static void make_call(chk_kv_scenario *w, const overrun *o, int32_t tokens) {
  memset(w->q_len, 0, sizeof w->q_len);
  w->packed = true;
  w->q_len[o->last] = tokens;
  w->len[o->last] = o->room;
}

/* Whoever reads the last list beyond its end finds pages of others, or free ones. */
static nsa_status lead_on(chk_kv_scenario *w) {
  const chk_kv_tensor *t = &w->tensor[CHK_KV_LISTS];
  const int32_t used = ((int32_t *)(void *)w->tensor[CHK_KV_STARTS].host)[w->opts.seqs];
  int32_t *pages = (int32_t *)(void *)t->host;
  for (int32_t i = used, free = w->free_count; i < (int32_t)(t->bytes / sizeof *pages); i++)
    pages[i] = free ? w->free_page[--free] : pages[i - used];
  return chk_kv_upload(w, CHK_KV_LISTS);
}

static int32_t *lengths(chk_kv_scenario *w) {
  return (int32_t *)(void *)w->tensor[CHK_KV_LEN].host;
}

/* From the call of the tokens that have a place to that of all. */
static nsa_status overrun_call(chk_kv_scenario *w, const overrun *o) {
  int64_t *mapping = (int64_t *)(void *)w->tensor[CHK_KV_MAPPING].host;
  lengths(w)[o->last] = o->kv_len;
  ((int32_t *)(void *)w->tensor[CHK_KV_CU_Q].host)[w->opts.seqs] = o->count;
  for (int32_t i = o->placed; i < o->count; i++) mapping[i] = 0; /* it is to be written */
  w->rows = o->count;
  NSAI_TRY(lead_on(w));
  NSAI_TRY(chk_kv_upload(w, CHK_KV_LEN));
  NSAI_TRY(chk_kv_upload(w, CHK_KV_CU_Q));
  return chk_kv_upload(w, CHK_KV_MAPPING);
}

/* All sequences' last tokens attend once more, on the CPU device without that of the overrun. */
static nsa_status attend_beside(chk_kv_scenario *w, const overrun *o) {
  w->opts.probed = w->opts.counted = false; /* they tell of all sequences */
  for (int s = 0; s < w->opts.seqs; s++) w->q_len[s] = w->opts.max_q_len;
  NSAI_TRY(chk_kv_prepare_call(w));
  lengths(w)[o->last] = o->kv_len;
  NSAI_TRY(lead_on(w));
  NSAI_TRY(chk_kv_upload(w, CHK_KV_LEN));
  nsa_batch batch = chk_kv_batch(w, true, false);
  nsa_io io = chk_kv_io(w, true);
  nsa_exec exec = w->gpu_exec;
  exec.branches = w->branches;
  NSAI_TRY(chk_kv_attend(w, w->gpu_attend, &exec, &batch, &io));
  lengths(w)[o->last] = 0;
  w->tokens -= w->q_len[o->last];
  return chk_kv_compare_rows(w);
}

nsa_status chk_kv_overrun(chk_kv_scenario *w) {
  const overrun o = choose(w);
  make_call(w, &o, o.count);
  NSAI_TRY(chk_kv_prepare_append(w));
  make_call(w, &o, o.placed);
  chk_kv_write_call(w);
  if (o.placed) NSAI_TRY(chk_kv_append(w, false));
  NSAI_TRY(overrun_call(w, &o));
  nsa_status status = chk_kv_append(w, true);
  if (w->device->driver) {
    NSAI_TRY(status);
    NSAI_TRY(chk_kv_compare_cache(w));
    return w->result->failure[0] ? NSA_OK : attend_beside(w, &o);
  }
  if (status != NSA_E_ARG)
    snprintf(w->result->failure, sizeof w->result->failure,
             "the CPU device takes a sequence of %d tokens, of which %d have a place", o.kv_len,
             o.room);
  return NSA_OK;
}
