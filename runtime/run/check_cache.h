/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Checks of what a run over a KV cache brings: the cache's tensors, the lists of its pages, the
 * lengths. The layout: include/nsa/kv_cache.h.
 */
#ifndef NSAI_RUN_CHECK_CACHE_H
#define NSAI_RUN_CHECK_CACHE_H

#include "run/check_run.h"

/* The batch and the cache of nsa_prefill and nsa_decode; sizes->tokens is known. On the CPU device
 * the values of the batch's arrays, too. */
nsa_status nsai_check_cached(const nsai_check *check, const nsa_batch *batch, const nsa_io *io,
                             nsai_run_sizes *sizes);

/* Everything that nsa_kv_append reads of the batch and `io`. */
nsa_status nsai_check_append(const nsai_check *check, const nsa_batch *batch, const nsa_io *io,
                             nsai_run_sizes *sizes);

/* Bytes that a page of the cache takes in one layer, by the layout of include/nsa/kv_cache.h;
 * without pages, those of one sequence. The problem has a cache. */
uint64_t nsai_cache_page_bytes(const nsai_problem *problem);

#endif /* NSAI_RUN_CHECK_CACHE_H */
