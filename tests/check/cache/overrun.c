/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A sequence that exceeds the plan's max_kv_len or its list of pages. An append must store its
 * tokens up to that limit and write nothing else. Attention over it must leave the results of
 * the other sequences right. The CPU device refuses such a sequence.
 */
#include "scenario.h"

#include <stdio.h>
#include <string.h>

/* New tokens of the last sequence, and how many of them can be stored. */
typedef struct overrun {
  int last;
  int32_t room; /* tokens of the sequence that can be stored */
  int32_t count, placed, kv_len;
} overrun;

/* The plan's longest sequence, or the capacity of its list of pages. */
static int32_t choose_room(chk_scenario *sc, int s) {
  const int32_t most = sc->options.max_kv_len;
  if (sc->options.page_size < 0 || !sc->options.lists || chk_cache_next(sc) % 4 == 0) return most;
  const int64_t listed = (int64_t)sc->page_count[s] * sc->options.page_size;
  return listed && listed < most ? (int32_t)listed : most;
}

static overrun choose(chk_scenario *sc) {
  overrun o = { .last = sc->options.seqs - 1 };
  o.room = choose_room(sc, o.last);
  const int32_t chunk = sc->chunk < o.room ? sc->chunk : o.room;
  o.count = 1 + (int32_t)(chk_cache_next(sc) % (uint64_t)chunk);
  o.placed = chk_cache_next(sc) % 4 ? (int32_t)(chk_cache_next(sc) % (uint64_t)o.count) : 0;
  o.kv_len = o.placed || chk_cache_next(sc) % 2 ? o.room + o.count - o.placed : INT32_MAX;
  return o;
}

/* Makes a call with this many new tokens of the sequence, up to the last one that can be stored. */
static void make_call(chk_scenario *sc, const overrun *o, int32_t tokens) {
  memset(sc->q_len, 0, sizeof sc->q_len);
  sc->packed = true;
  sc->q_len[o->last] = tokens;
  sc->len[o->last] = o->room;
}

/* Extends the last list so that a read beyond its end finds pages of other sequences, or free
 * ones. */
static nsa_status lead_on(chk_scenario *sc) {
  const chk_cache_tensor *t = &sc->tensor[CHK_CACHE_LISTS];
  const int32_t used = ((int32_t *)(void *)sc->tensor[CHK_CACHE_STARTS].host)[sc->options.seqs];
  int32_t *pages = (int32_t *)(void *)t->host;
  for (int32_t i = used, free = sc->free_count; i < (int32_t)(t->bytes / sizeof *pages); i++)
    pages[i] = free ? sc->free_page[--free] : pages[i - used];
  return chk_cache_upload(sc, CHK_CACHE_LISTS);
}

static int32_t *lengths(chk_scenario *sc) {
  return (int32_t *)(void *)sc->tensor[CHK_CACHE_LEN].host;
}

/* Changes the call of the tokens that can be stored into the call of all tokens. */
static nsa_status overrun_call(chk_scenario *sc, const overrun *o) {
  int64_t *mapping = (int64_t *)(void *)sc->tensor[CHK_CACHE_MAPPING].host;
  lengths(sc)[o->last] = o->kv_len;
  ((int32_t *)(void *)sc->tensor[CHK_CACHE_CU_Q].host)[sc->options.seqs] = o->count;
  for (int32_t i = o->placed; i < o->count; i++) mapping[i] = 0; /* requests that it is written */
  sc->rows = o->count;
  NSAI_TRY(lead_on(sc));
  NSAI_TRY(chk_cache_upload(sc, CHK_CACHE_LEN));
  NSAI_TRY(chk_cache_upload(sc, CHK_CACHE_CU_Q));
  return chk_cache_upload(sc, CHK_CACHE_MAPPING);
}

/* The last tokens of all sequences attend once more; on the CPU device without the overrun
 * sequence. */
static nsa_status attend_beside(chk_scenario *sc, const overrun *o) {
  sc->options.probed = sc->options.counted = false; /* they cover all sequences */
  for (int s = 0; s < sc->options.seqs; s++) sc->q_len[s] = sc->options.max_q_len;
  NSAI_TRY(chk_cache_prepare_call(sc));
  lengths(sc)[o->last] = o->kv_len;
  NSAI_TRY(lead_on(sc));
  NSAI_TRY(chk_cache_upload(sc, CHK_CACHE_LEN));
  nsa_batch batch = chk_cache_batch(sc, true, false);
  nsa_io io = chk_cache_io(sc, true);
  nsa_exec exec = sc->gpu_exec;
  exec.branches = sc->branches;
  NSAI_TRY(chk_cache_attend(sc, sc->gpu_attend, &exec, &batch, &io));
  lengths(sc)[o->last] = 0;
  sc->tokens -= sc->q_len[o->last];
  return chk_cache_compare_rows(sc);
}

nsa_status chk_cache_overrun(chk_scenario *sc) {
  const overrun o = choose(sc);
  make_call(sc, &o, o.count);
  NSAI_TRY(chk_cache_prepare_append(sc));
  make_call(sc, &o, o.placed);
  chk_cache_write_call(sc);
  if (o.placed) NSAI_TRY(chk_cache_append(sc, false));
  NSAI_TRY(overrun_call(sc, &o));
  nsa_status status = chk_cache_append(sc, true);
  if (sc->device->driver) {
    NSAI_TRY(status);
    NSAI_TRY(chk_cache_compare_cache(sc));
    return sc->result->failure[0] ? NSA_OK : attend_beside(sc, &o);
  }
  if (status != NSA_E_ARG)
    snprintf(sc->result->failure, sizeof sc->result->failure,
             "the CPU device takes a sequence of %d tokens, of which %d have a place", o.kv_len,
             o.room);
  return NSA_OK;
}
