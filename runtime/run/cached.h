/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A cache as the kernels see it (data/cache_rows.cuh), from what the caller brings. Arguments have been
 * checked.
 */
#ifndef NSAI_RUN_CACHED_H
#define NSAI_RUN_CACHED_H

#include "params/kv_cache.h"
#include "run/run.h"

/* The run's sequences and where they lie. */
NsaiCacheBatch nsai_cache_batch(const nsai_run *run);

/* A tensor of the cache: k, v, k_cmp or v_cmp. */
NsaiCacheTensor nsai_cache_tensor(const nsa_tensor *tensor);

/* K and V that a branch reads: its own pair, or the one that all share. */
NsaiCachePair nsai_cache_pair(const nsai_run *run, const nsa_kv *kv, int branch);

/* The compressed entries, under the same pages. */
NsaiCachePair nsai_cache_entries(const nsa_kv *kv);

/* variants/compress/phi.c: compressed entries of what has been appended, through phi's products. */
nsa_status nsai_enqueue_phi_append(const nsai_run *run, const nsa_kv *cache, const nsa_phi *phi,
                                   const NsaiAppend *append);

#endif /* NSAI_RUN_CACHED_H */
