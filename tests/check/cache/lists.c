/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Selections that the caller supplies, and probed rows.
 */
#include "scenario.h"

#include <math.h>

/* Relative error of a probed row's norm: sums of products of 16-bit elements in fp32,
 * exponentials of 2 ulp. */
#define PROBE_TOLERANCE 1e-4

/* Generates blocks or ranges of every kind: before, within and after the visible part, repeated,
 * and empty. */
static void choose_lists(chk_scenario *sc, chk_cache_tensor *t) {
  const nsai_model *g = &sc->options.model;
  int32_t *out = (int32_t *)(void *)t->host;
  uint64_t blocks = (uint64_t)nsai_select_block_count(g, sc->options.max_kv_len);
  size_t count = t->bytes / sizeof *out;
  for (size_t i = 0; sc->options.selection == NSA_SELECT_BLOCKS && i < count; i++)
    out[i] = (int32_t)(chk_cache_next(sc) % (blocks + 2)) - 1;
  for (size_t i = 0; sc->options.selection == NSA_SELECT_RANGES && i < count; i += 2) {
    /* one in eight has any length: more keys than this many blocks have, as splits are made for */
    uint64_t most = chk_cache_next(sc) % 8 ? 60 : (uint64_t)sc->options.max_kv_len;
    out[i] = (int32_t)(chk_cache_next(sc) % (uint64_t)sc->options.max_kv_len);
    out[i + 1] = out[i] + (int32_t)(chk_cache_next(sc) % most) - 5;
  }
}

void chk_cache_choose_selection(chk_scenario *sc) {
  chk_cache_tensor *lists = &sc->tensor[CHK_CACHE_SELECTION],
                   *rows = &sc->tensor[CHK_CACHE_SOME_ROWS];
  if (lists->host) choose_lists(sc, lists);
  for (int i = 0; rows->host && sc->tokens && i < CHK_CACHE_PROBES; i++)
    ((int32_t *)(void *)rows->host)[i] = (int32_t)(chk_cache_next(sc) % (uint64_t)sc->tokens);
}

void chk_cache_compare_probes(chk_scenario *sc) {
  const chk_cache_tensor *rows = &sc->tensor[CHK_CACHE_SOME_ROWS],
                         *some = &sc->tensor[CHK_CACHE_SOME];
  const float *all = (const float *)(const void *)sc->tensor[CHK_CACHE_PROBE].host;
  const float *got = (const float *)(const void *)chk_cache_fetched(some);
  int64_t width = some->view.stride[0];
  double error = 0, norm = 0;
  for (int64_t i = 0; i < CHK_CACHE_PROBES; i++) {
    int64_t token = ((const int32_t *)(const void *)rows->host)[i];
    for (int64_t x = 0; x < width; x++) {
      double want = (double)all[token * width + x];
      error += pow((double)got[i * width + x] - want, 2);
      norm += want * want;
    }
  }
  double ratio = (norm > 0 ? sqrt(error / norm) : error) / PROBE_TOLERANCE;
  if (ratio > sc->result->importance) sc->result->importance = ratio;
  if (!(ratio <= 1) && !sc->result->failure[0])
    snprintf(sc->result->failure, sizeof sc->result->failure,
             "importance: error %.3g times its limit", ratio);
}
