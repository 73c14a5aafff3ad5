/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The checks of an index branch: io.index_q, and io.k_idx where there is no cache (check_cache.h).
 */
#ifndef NSAI_RUN_CHECK_INDEX_H
#define NSAI_RUN_CHECK_INDEX_H

#include "run/check_run.h"

/* Refuses the tensors of an index where the model has none. */
nsa_status nsai_check_no_index(const nsai_check *check, const nsa_io *io);

/* The queries, and without a cache the keys, where the call ranks blocks by them. */
nsa_status nsai_check_index(const nsai_check *check, const nsa_io *io, const nsai_run_sizes *sizes);

#endif /* NSAI_RUN_CHECK_INDEX_H */
