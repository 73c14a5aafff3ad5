/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The parts a library is made of. The levels up to `plan` know neither the variants nor who
 * measures them: both come in here.
 */
#ifndef NSAI_PLAN_PARTS_H
#define NSAI_PLAN_PARTS_H

#include "cache/cache.h"
#include "plan/variant.h"

#include <nsa/context.h>

/* Whoever remembers measurements and decides by them. `state` is its own, one for each context. */
typedef struct nsai_tuning {
  /* Opens the records beside the kernel cache. Trouble with a folder is a warning. NSA_E_NOMEM. */
  nsa_status (*open)(nsa_ctx *ctx, const nsai_cache_options *folders, void **state);
  /* NULL is fine. */
  void (*close)(void *state);
  /* What is known about a problem. Never fails: where nothing is known nothing is decided, and
   * `why` says so. Thread-safe. */
  void (*decide)(nsa_ctx *ctx, const nsai_problem *problem, nsai_decisions *out);
  /* Measures a problem at its first use, where the configuration asks for it. NSA_E_CANCELLED by
   * `progress`, NSA_E_VERIFY. Thread-safe. */
  nsa_status (*first_use)(nsa_ctx *ctx, const nsai_problem *problem, nsa_progress_fn progress,
                          void *user);
} nsai_tuning;

typedef struct nsai_parts {
  const nsai_variant *const *variants; /* by stage, then preference; NULL ends them */
  const nsai_tuning *tuning;           /* NULL: heuristics alone */
} nsai_parts;

/* The library's own; tests bring others. */
extern const nsai_parts nsai_library_parts;

#endif /* NSAI_PLAN_PARTS_H */
