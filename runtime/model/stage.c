/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "model/stage.h"

#include <stddef.h>

static const char *const names[NSAI_STAGE_COUNT] = {
  [NSAI_STAGE_GATE] = "gate",
  [NSAI_STAGE_COMPRESS] = "compress",
  [NSAI_STAGE_ATTEND_COMPRESSED] = "attend_compressed",
  [NSAI_STAGE_IMPORTANCE] = "importance",
  [NSAI_STAGE_SELECT] = "select",
  [NSAI_STAGE_ATTEND_SELECTED] = "attend_selected",
  [NSAI_STAGE_ATTEND_WINDOW] = "attend_window",
  [NSAI_STAGE_DENSE] = "dense",
  [NSAI_STAGE_APPEND] = "append",
  [NSAI_STAGE_DECODE] = "decode",
  [NSAI_STAGE_BACKWARD_Q] = "backward_q",
  [NSAI_STAGE_BACKWARD_KV] = "backward_kv",
  [NSAI_STAGE_INDEX_KL] = "index_kl",
  [NSAI_STAGE_INDEX_LSE] = "index_lse",
  [NSAI_STAGE_GATHER_PAGES] = "gather_pages",
};

const char *nsai_stage_name(nsai_stage stage) {
  return (unsigned)stage < NSAI_STAGE_COUNT ? names[stage] : NULL;
}
