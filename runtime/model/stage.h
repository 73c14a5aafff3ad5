/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The stages of a problem. Each is done by one variant, or by a variant of an earlier stage that
 * fuses it.
 */
#ifndef NSAI_MODEL_STAGE_H
#define NSAI_MODEL_STAGE_H

typedef enum nsai_stage {
  NSAI_STAGE_GATE, /* logits of the gate MLP */
  NSAI_STAGE_COMPRESS,
  NSAI_STAGE_ATTEND_COMPRESSED,
  NSAI_STAGE_IMPORTANCE,
  NSAI_STAGE_SELECT,
  NSAI_STAGE_ATTEND_SELECTED,
  NSAI_STAGE_ATTEND_WINDOW,
  NSAI_STAGE_DENSE,
  NSAI_STAGE_APPEND,
  NSAI_STAGE_DECODE,
  NSAI_STAGE_BACKWARD_Q,
  NSAI_STAGE_BACKWARD_KV,
  NSAI_STAGE_INDEX_KL,
  NSAI_STAGE_INDEX_LSE,
  NSAI_STAGE_GATHER_PAGES, /* of a prefill over ranks, before all others */
  NSAI_STAGE_COUNT
} nsai_stage;

/* "attend_selected"; NULL for an unknown stage. Static storage. */
const char *nsai_stage_name(nsai_stage stage);

#endif /* NSAI_MODEL_STAGE_H */
