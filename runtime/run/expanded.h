/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Raw tokens of a cache in codes that a prefill expands into the workspace (plan/expand.h): rows of
 * 16-bit elements, [sequences, Hkv, rows, D] for K and V of a pair, whatever the cache is like. A
 * sequence lies in the row of its number, or in a ring where the cache has one.
 */
#ifndef NSAI_RUN_EXPANDED_H
#define NSAI_RUN_EXPANDED_H

#include "run/params.h"

/* Whether this run has the tokens of the pair that a branch reads expanded. */
bool nsai_run_expands(const nsai_run *run, int branch);

/* Most tokens of a sequence that are. */
int64_t nsai_expanded_length(const nsai_run *run, int branch);

/* Where they lie. */
NsaiCachePair nsai_expanded_pair(const nsai_run *run, int branch);

/* The raw tokens that a branch reads, as kernels take them: of the cache or, `expanded`, those in the
 * workspace, which have no pages. */
typedef struct nsai_cache_source {
  NsaiCacheBatch batch;
  NsaiCachePair pair;
  int branch;
  int page_rows; /* tokens of a page; 0: none. Rings have none either, whatever this says. */
  bool expanded;
} nsai_cache_source;

nsai_cache_source nsai_find_source(const nsai_run *run, int branch, bool expanded);

/* Their tensor maps. */
nsa_status nsai_map_source(const nsai_run *run, const nsai_cache_source *source, int32_t box_rows,
                           NsaiTensorMap *k_map, NsaiTensorMap *v_map);

#endif /* NSAI_RUN_EXPANDED_H */
