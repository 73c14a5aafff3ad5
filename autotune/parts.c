/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Puts the library together: the variants, and the tuner that measures and remembers them.
 */
#include "plan/parts.h"
#include "records/decide.h"
#include "tune/tune.h"

static const nsai_tuning tuning = {
  .open = nsai_records_attach,
  .close = nsai_records_detach,
  .decide = nsai_records_decide,
  .first_use = nsai_tune_first_use,
};

const nsai_parts nsai_library_parts = { .variants = nsai_variants, .tuning = &tuning };
