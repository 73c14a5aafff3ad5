/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A selection that the caller brings, and probed rows.
 */
#include "internal.h"

#include <math.h>

/* Of a probed row in the norm: sums of products of 16-bit elements in fp32, exponentials of 2 ulp. */
#define PROBE_TOLERANCE 1e-4

/* Blocks or ranges of every kind: before, within and behind what may be seen, twice, none. */
static void choose_lists(chk_kv_scenario *w, chk_kv_tensor *t) {
  const nsai_model *g = &w->opts.model;
  int32_t *out = (int32_t *)(void *)t->host;
  uint64_t blocks = (uint64_t)nsai_select_block_count(g, w->opts.max_kv_len);
  size_t count = t->bytes / sizeof *out;
  for (size_t i = 0; w->opts.selection == NSA_SELECT_BLOCKS && i < count; i++)
    out[i] = (int32_t)(chk_kv_next(w) % (blocks + 2)) - 1;
  for (size_t i = 0; w->opts.selection == NSA_SELECT_RANGES && i < count; i += 2) {
    /* every eighth of any length: more keys than so many blocks have, which splits are made for */
    uint64_t most = chk_kv_next(w) % 8 ? 60 : (uint64_t)w->opts.max_kv_len;
    out[i] = (int32_t)(chk_kv_next(w) % (uint64_t)w->opts.max_kv_len);
    out[i + 1] = out[i] + (int32_t)(chk_kv_next(w) % most) - 5;
  }
}

void chk_kv_choose_selection(chk_kv_scenario *w) {
  chk_kv_tensor *lists = &w->tensor[CHK_KV_SELECTION], *rows = &w->tensor[CHK_KV_SOME_ROWS];
  if (lists->host) choose_lists(w, lists);
  for (int i = 0; rows->host && w->tokens && i < CHK_KV_PROBES; i++)
    ((int32_t *)(void *)rows->host)[i] = (int32_t)(chk_kv_next(w) % (uint64_t)w->tokens);
}

void chk_kv_compare_probes(chk_kv_scenario *w) {
  const chk_kv_tensor *rows = &w->tensor[CHK_KV_SOME_ROWS], *some = &w->tensor[CHK_KV_SOME];
  const float *all = (const float *)(const void *)w->tensor[CHK_KV_PROBE].host;
  const float *got = (const float *)(const void *)chk_kv_fetched(some);
  int64_t width = some->view.stride[0];
  double error = 0, norm = 0;
  for (int64_t i = 0; i < CHK_KV_PROBES; i++) {
    int64_t token = ((const int32_t *)(const void *)rows->host)[i];
    for (int64_t x = 0; x < width; x++) {
      double want = (double)all[token * width + x];
      error += pow((double)got[i * width + x] - want, 2);
      norm += want * want;
    }
  }
  double ratio = (norm > 0 ? sqrt(error / norm) : error) / PROBE_TOLERANCE;
  if (ratio > w->result->importance) w->result->importance = ratio;
  if (!(ratio <= 1) && !w->result->failure[0])
    snprintf(w->result->failure, sizeof w->result->failure,
             "importance: error %.3g times its limit", ratio);
}
