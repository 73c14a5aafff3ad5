/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Injects damage into what was fetched from the GPU. Every kind must be reported.
 */
#include "scenario.h"

/* The last token of the call that has a key, or -1. */
static int64_t last_token(const chk_scenario *sc, int64_t position) {
  int64_t token = sc->tokens - 1;
  while (token >= 0 && chk_cache_position_of(sc, token) < position) token--;
  return token;
}

/* Changes the sign of a row's first head. */
static bool turn(chk_scenario *sc, int what, int64_t token) {
  const chk_cache_tensor *t = &sc->tensor[what];
  if (token < 0) return false;
  uint16_t *row = (uint16_t *)(void *)chk_cache_fetched(t) + token * t->view.stride[0];
  for (int32_t i = 0; i < sc->options.model.head_dim_v; i++) row[i] ^= 0x8000;
  return true;
}

static bool inject_lse(chk_scenario *sc) {
  const chk_cache_tensor *t = &sc->tensor[CHK_CACHE_LSE];
  int64_t token = last_token(sc, sc->options.model.block);
  if (token < 0) return false;
  ((float *)(void *)chk_cache_fetched(t))[token * t->view.stride[0]] += 0.01f;
  return true;
}

/* Writes an invalid index, or another selection: the lowest block that was not selected replaces
 * a free one. */
static bool inject_list(chk_scenario *sc, bool malformed) {
  const nsai_model *g = &sc->options.model;
  const chk_cache_tensor *t = &sc->tensor[CHK_CACHE_IDX];
  for (int64_t token = sc->tokens - 1; t->host && token >= 0; token--) {
    int32_t *list = (int32_t *)(void *)chk_cache_fetched(t) + token * t->view.stride[0];
    int64_t blocks = chk_cache_position_of(sc, token) / g->select_block + 1;
    int32_t free = g->select_init;
    if (malformed) return list[0] = 1 << 20, true;
    if (g->select_count <= g->select_init + g->select_local || blocks < 2 * g->select_count ||
        list[free] == free)
      continue;
    return list[free] = free, true;
  }
  return false;
}

static bool inject_importance(chk_scenario *sc) {
  if (!sc->options.probed || !sc->tokens) return false;
  ((float *)(void *)chk_cache_fetched(&sc->tensor[CHK_CACHE_SOME]))[0] += 0.1f;
  return true;
}

static bool inject_reads(chk_scenario *sc) {
  const chk_cache_tensor *t = &sc->tensor[CHK_CACHE_READS];
  if (!t->host || !sc->tokens) return false;
  ((int64_t *)(void *)chk_cache_fetched(t))[0]++;
  return true;
}

static bool inject_behind(chk_scenario *sc) {
  const chk_cache_tensor *t = &sc->tensor[CHK_CACHE_O];
  if (sc->tokens == t->view.shape[0]) return false;
  chk_cache_fetched(t)[t->bytes - 1] = 0;
  return true;
}

static bool inject_step(chk_scenario *sc, int kind) {
  switch (kind) {
  case CHK_CACHE_INJECT_O: return turn(sc, CHK_CACHE_O, last_token(sc, sc->options.model.block));
  case CHK_CACHE_INJECT_NAN:
    ((uint16_t *)(void *)chk_cache_fetched(&sc->tensor[CHK_CACHE_O]))[0] = 0x7fff;
    return true;
  case CHK_CACHE_INJECT_BRANCH:
    return turn(sc, CHK_CACHE_O_BRANCH, last_token(sc, sc->options.model.block));
  case CHK_CACHE_INJECT_LSE: return inject_lse(sc);
  case CHK_CACHE_INJECT_LIST: return inject_list(sc, true);
  case CHK_CACHE_INJECT_CHOICE: return inject_list(sc, false);
  case CHK_CACHE_INJECT_IMPORTANCE: return inject_importance(sc);
  case CHK_CACHE_INJECT_READS: return inject_reads(sc);
  case CHK_CACHE_INJECT_GUARD: sc->tensor[CHK_CACHE_O].gpu.image[0] = 0; return true;
  case CHK_CACHE_INJECT_BEHIND: return inject_behind(sc);
  case CHK_CACHE_INJECT_WORKSPACE: sc->workspace.image[0] = 0; return true;
  default: return false;
  }
}

void chk_cache_inject_step(chk_scenario *sc) {
  if (sc->inject && inject_step(sc, *sc->inject)) *sc->inject = CHK_CACHE_INJECTED;
}

void chk_cache_inject_cache(chk_scenario *sc) {
  bool entry = sc->inject && *sc->inject == CHK_CACHE_INJECT_ENTRY;
  if (!entry && !(sc->inject && *sc->inject == CHK_CACHE_INJECT_CACHE)) return;
  for (int what = entry ? CHK_CACHE_K_CMP : CHK_CACHE_K; what <= CHK_CACHE_K_NORM; what++) {
    chk_cache_tensor *t = &sc->tensor[what];
    if (!t->host) continue;
    chk_cache_fetched(t)[t->gpu.bytes - 1] ^= 0x40;
    *sc->inject = CHK_CACHE_INJECTED;
    return;
  }
}

void chk_cache_inject_repeat(chk_scenario *sc) {
  bool cache = sc->inject && *sc->inject == CHK_CACHE_INJECT_CACHE_AGAIN;
  if (!cache && !(sc->inject && *sc->inject == CHK_CACHE_INJECT_AGAIN)) return;
  chk_cache_fetched(&sc->tensor[cache ? CHK_CACHE_K : CHK_CACHE_O])[0] ^= 1;
  *sc->inject = CHK_CACHE_INJECTED;
}
