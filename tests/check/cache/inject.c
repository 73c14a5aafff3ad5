/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Damage on purpose, to what was fetched from the GPU: every kind must be reported.
 */
#include "internal.h"

/* The last token of the call that has a key, or -1. */
static int64_t last_token(const chk_kv_scenario *w, int64_t position) {
  int64_t token = w->tokens - 1;
  while (token >= 0 && chk_kv_position_of(w, token) < position) token--;
  return token;
}

/* Turns the sign of a row's first head. */
static bool turn(chk_kv_scenario *w, int what, int64_t token) {
  const chk_kv_tensor *t = &w->tensor[what];
  if (token < 0) return false;
  uint16_t *row = (uint16_t *)(void *)chk_kv_fetched(t) + token * t->view.stride[0];
  for (int32_t i = 0; i < w->opts.model.head_dim_v; i++) row[i] ^= 0x8000;
  return true;
}

static bool inject_lse(chk_kv_scenario *w) {
  const chk_kv_tensor *t = &w->tensor[CHK_KV_LSE];
  int64_t token = last_token(w, w->opts.model.block);
  if (token < 0) return false;
  ((float *)(void *)chk_kv_fetched(t))[token * t->view.stride[0]] += 0.01f;
  return true;
}

/* An index that is none, or another choice: the least block that was left out in place of a free one. */
static bool inject_list(chk_kv_scenario *w, bool malformed) {
  const nsai_model *g = &w->opts.model;
  const chk_kv_tensor *t = &w->tensor[CHK_KV_IDX];
  for (int64_t token = w->tokens - 1; t->host && token >= 0; token--) {
    int32_t *list = (int32_t *)(void *)chk_kv_fetched(t) + token * t->view.stride[0];
    int64_t blocks = chk_kv_position_of(w, token) / g->select_block + 1;
    int32_t free = g->select_init;
    if (malformed) return list[0] = 1 << 20, true;
    if (g->select_count <= g->select_init + g->select_local || blocks < 2 * g->select_count ||
        list[free] == free)
      continue;
    return list[free] = free, true;
  }
  return false;
}

static bool inject_importance(chk_kv_scenario *w) {
  if (!w->opts.probed || !w->tokens) return false;
  ((float *)(void *)chk_kv_fetched(&w->tensor[CHK_KV_SOME]))[0] += 0.1f;
  return true;
}

static bool inject_reads(chk_kv_scenario *w) {
  const chk_kv_tensor *t = &w->tensor[CHK_KV_READS];
  if (!t->host || !w->tokens) return false;
  ((int64_t *)(void *)chk_kv_fetched(t))[0]++;
  return true;
}

static bool inject_behind(chk_kv_scenario *w) {
  const chk_kv_tensor *t = &w->tensor[CHK_KV_O];
  if (w->tokens == t->view.shape[0]) return false;
  chk_kv_fetched(t)[t->bytes - 1] = 0;
  return true;
}

static bool inject_step(chk_kv_scenario *w, int kind) {
  switch (kind) {
  case CHK_KV_INJECT_O: return turn(w, CHK_KV_O, last_token(w, w->opts.model.block));
  case CHK_KV_INJECT_NAN:
    ((uint16_t *)(void *)chk_kv_fetched(&w->tensor[CHK_KV_O]))[0] = 0x7fff;
    return true;
  case CHK_KV_INJECT_BRANCH: return turn(w, CHK_KV_O_BRANCH, last_token(w, w->opts.model.block));
  case CHK_KV_INJECT_LSE: return inject_lse(w);
  case CHK_KV_INJECT_LIST: return inject_list(w, true);
  case CHK_KV_INJECT_CHOICE: return inject_list(w, false);
  case CHK_KV_INJECT_IMPORTANCE: return inject_importance(w);
  case CHK_KV_INJECT_READS: return inject_reads(w);
  case CHK_KV_INJECT_GUARD: w->tensor[CHK_KV_O].gpu.image[0] = 0; return true;
  case CHK_KV_INJECT_BEHIND: return inject_behind(w);
  case CHK_KV_INJECT_WORKSPACE: w->workspace.image[0] = 0; return true;
  default: return false;
  }
}

void chk_kv_inject_step(chk_kv_scenario *w) {
  if (w->inject && inject_step(w, *w->inject)) *w->inject = CHK_KV_INJECTED;
}

void chk_kv_inject_cache(chk_kv_scenario *w) {
  bool entry = w->inject && *w->inject == CHK_KV_INJECT_ENTRY;
  if (!entry && !(w->inject && *w->inject == CHK_KV_INJECT_CACHE)) return;
  for (int what = entry ? CHK_KV_K_CMP : CHK_KV_K; what <= CHK_KV_V_CMP; what++) {
    chk_kv_tensor *t = &w->tensor[what];
    if (!t->host) continue;
    chk_kv_fetched(t)[t->bytes - 1] ^= 0x40;
    *w->inject = CHK_KV_INJECTED;
    return;
  }
}

void chk_kv_inject_repeat(chk_kv_scenario *w) {
  bool cache = w->inject && *w->inject == CHK_KV_INJECT_CACHE_AGAIN;
  if (!cache && !(w->inject && *w->inject == CHK_KV_INJECT_AGAIN)) return;
  chk_kv_fetched(&w->tensor[cache ? CHK_KV_K : CHK_KV_O])[0] ^= 1;
  *w->inject = CHK_KV_INJECTED;
}
