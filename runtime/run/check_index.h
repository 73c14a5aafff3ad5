/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The checks of an index branch: io.index_q, and io.k_idx where there is no cache (check_cache.h).
 */
#ifndef NSAI_RUN_CHECK_INDEX_H
#define NSAI_RUN_CHECK_INDEX_H

#include "run/check_run.h"

/* Refuses the tensors of an index where the model has none, or the operation no use for them. */
nsa_status nsai_check_no_index(const nsai_check *check, const nsa_io *io);

/* Whether the call ranks blocks by the index: it selects or probes, or its loss is that of the scores.
 * A caller's selection needs no ranking. What a backward pass is given was ranked by its forward. */
bool nsai_check_ranks(const nsai_check *check, const nsa_io *io);

/* The queries, and without a cache the keys: both required where the call ranks blocks by them, and
 * otherwise of the same form where they are given. Over ranks nsai_check_ranks_io asks for keys that a
 * call brings for others. */
nsa_status nsai_check_index(const nsai_check *check, const nsa_io *io, const nsai_run_sizes *sizes);

/* The LSE of the index, where it is wanted: by calls that choose blocks, of plans that have it. */
nsa_status nsai_check_index_lse(const nsai_check *check, const nsa_io *io, int64_t tokens);

#endif /* NSAI_RUN_CHECK_INDEX_H */
