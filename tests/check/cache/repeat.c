/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The same append and attention once more: caches and outputs must have the same bits. On a GPU several times,
 * where blocks of threads meet in another order each time.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

static bool is_written(int what) {
  return what <= CHK_KV_V_CMP || (what >= CHK_KV_READS && what < CHK_KV_PROBE_ROWS);
}

static nsa_status fetch(chk_kv_scenario *w) {
  for (int what = 0; what < CHK_KV_PROBE_ROWS; what++)
    if (is_written(what) && w->tensor[what].host) NSAI_TRY(chk_kv_fetch(w, what));
  return NSA_OK;
}

static nsa_status keep(chk_kv_scenario *w, uint8_t *kept[]) {
  NSAI_TRY(fetch(w));
  for (int what = 0; what < CHK_KV_PROBE_ROWS; what++) {
    const chk_kv_tensor *t = &w->tensor[what];
    if (!is_written(what) || !t->host) continue;
    kept[what] = malloc(t->bytes + 1);
    if (!kept[what]) return nsai_fail_nomem("what a step wrote", t->bytes);
    memcpy(kept[what], chk_kv_fetched(t), t->bytes);
  }
  return NSA_OK;
}

/* The caches stay as the last run left them: what it appended lies there already. */
static nsa_status run_again(chk_kv_scenario *w) {
  NSAI_TRY(chk_kv_poison_outputs(w));
  if (w->opts.counted) NSAI_TRY(chk_kv_upload(w, CHK_KV_READS));
  NSAI_TRY(chk_kv_run_gpu(w));
  return fetch(w);
}

static void compare(chk_kv_scenario *w, int repeat, int what, const uint8_t *kept) {
  const chk_kv_tensor *t = &w->tensor[what];
  const uint8_t *got = chk_kv_fetched(t);
  size_t at = 0;
  if (w->result->failure[0] || !memcmp(got, kept, t->bytes)) return;
  while (got[at] == kept[at]) at++;
  snprintf(w->result->failure, sizeof w->result->failure,
           "repeat %d: tensor %d differs from the first run at byte %zu (row %zu): %02x, was %02x",
           repeat, what, at, at / (t->bytes / (size_t)t->view.shape[0]), got[at], kept[at]);
}

nsa_status chk_kv_repeat(chk_kv_scenario *w) {
  uint8_t *kept[CHK_KV_PROBE_ROWS] = { 0 };
  const int repeats = w->device->driver ? w->opts.repeats : 1;
  nsa_status status = keep(w, kept);
  for (int i = 1; !status && !w->result->failure[0] && i <= repeats; i++) {
    status = run_again(w);
    if (!status) chk_kv_inject_repeat(w);
    for (int what = 0; !status && what < CHK_KV_PROBE_ROWS; what++)
      if (kept[what]) compare(w, i, what, kept[what]);
  }
  for (int what = 0; what < CHK_KV_PROBE_ROWS; what++) free(kept[what]);
  return status;
}
