/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "cached.h"

#include "base/error.h"

nsa_status bench_cached_check(const char *command, const nsai_model *g) {
  if (g->phi != NSAI_PHI_MEAN)
    return nsai_fail(NSA_E_ARG, "%s is timed with phi=mean: the caches are filled by nsa_kv_append",
                     command);
  if (g->gate == NSAI_GATE_MLP)
    return nsai_fail(NSA_E_ARG, "%s is timed with gate=logits or gate=weights", command);
  return NSA_OK;
}
