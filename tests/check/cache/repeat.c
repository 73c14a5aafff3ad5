/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Repeats an append and attention: caches and outputs must have the same bits. On a GPU it
 * repeats several times, because CTAs run in another order each time.
 */
#include "scenario.h"

#include <stdlib.h>
#include <string.h>

static bool is_written(int what) {
  return what <= CHK_CACHE_K_NORM || (what >= CHK_CACHE_READS && what < CHK_CACHE_PROBE_ROWS);
}

static nsa_status fetch(chk_scenario *sc) {
  for (int what = 0; what < CHK_CACHE_PROBE_ROWS; what++)
    if (is_written(what) && sc->tensor[what].host) NSAI_TRY(chk_cache_fetch(sc, what));
  return NSA_OK;
}

static nsa_status keep(chk_scenario *sc, uint8_t *kept[]) {
  NSAI_TRY(fetch(sc));
  for (int what = 0; what < CHK_CACHE_PROBE_ROWS; what++) {
    const chk_cache_tensor *t = &sc->tensor[what];
    if (!is_written(what) || !t->host) continue;
    kept[what] = malloc(t->gpu.bytes + 1);
    if (!kept[what]) return nsai_fail_nomem("what a step wrote", t->gpu.bytes);
    memcpy(kept[what], chk_cache_fetched(t), t->gpu.bytes);
  }
  return NSA_OK;
}

/* The caches stay as the last run left them: they already contain the appended tokens. */
static nsa_status run_again(chk_scenario *sc) {
  NSAI_TRY(chk_cache_poison_outputs(sc));
  if (sc->options.counted) NSAI_TRY(chk_cache_upload(sc, CHK_CACHE_READS));
  NSAI_TRY(chk_cache_run_gpu(sc));
  return fetch(sc);
}

static void compare(chk_scenario *sc, int repeat, int what, const uint8_t *kept) {
  const chk_cache_tensor *t = &sc->tensor[what];
  const uint8_t *got = chk_cache_fetched(t);
  size_t at = 0;
  if (sc->result->failure[0] || !memcmp(got, kept, t->gpu.bytes)) return;
  while (got[at] == kept[at]) at++;
  snprintf(sc->result->failure, sizeof sc->result->failure,
           "repeat %d: tensor %d differs from the first run at byte %zu (row %zu): %02x, was %02x",
           repeat, what, at, at / (t->gpu.bytes / (size_t)t->view.shape[0]), got[at], kept[at]);
}

nsa_status chk_cache_repeat(chk_scenario *sc) {
  uint8_t *kept[CHK_CACHE_PROBE_ROWS] = { 0 };
  const int repeats = sc->device->driver ? sc->options.repeats : 1;
  nsa_status status = keep(sc, kept);
  for (int i = 1; !status && !sc->result->failure[0] && i <= repeats; i++) {
    status = run_again(sc);
    if (!status) chk_cache_inject_repeat(sc);
    for (int what = 0; !status && what < CHK_CACHE_PROBE_ROWS; what++)
      if (kept[what]) compare(sc, i, what, kept[what]);
  }
  for (int what = 0; what < CHK_CACHE_PROBE_ROWS; what++) free(kept[what]);
  return status;
}
