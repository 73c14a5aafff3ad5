/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A decode step on the GPU: how it is split over blocks of threads, by sizes that the host knows. What
 * each of them really finds follows from lengths in device memory: kernel_templates/decode/work.cuh.
 */
#ifndef NSAI_VARIANTS_DECODE_DECODE_H
#define NSAI_VARIANTS_DECODE_DECODE_H

#include "plan/problem.h"
#include "plan/variant.h"

/* Keys of one step of a team of warps, and rows of one of its warps: an mma's. */
#define NSAI_DECODE_STEP 16
#define NSAI_DECODE_ROWS 16

/* Keys that teams of decode_split_kv_compressed divide among themselves by, and their selection blocks. */
int64_t nsai_decode_split_granularity(const nsai_model *model);

/* One launch of the chain. */
typedef struct nsai_decode_split {
  nsai_role single;      /* one launch of it does it all, by `tiles`; NSAI_ROLES: the chain does */
  int64_t tiles;         /* of tokens, of decode_split_kv_compressed */
  int64_t seq_tiles;     /* of every sequence; 0: tiles follow from cu_q */
  int64_t attend_items;  /* blocks of threads of decode_split_kv_attend, over KV heads */
  int32_t scan_splits;   /* of every tile's keys */
  int32_t scan_least;    /* quanta of a team at least */
  int32_t window_splits; /* of every tile's window; 0: the branch does not run */
  int32_t selected_splits; /* the same of a tile's blocks, or a token's ranges */
  int32_t row_warps;       /* of decode_split_kv_combine */
} nsai_decode_split;

/* What a split follows from. */
typedef struct nsai_decode_sizes {
  const nsai_problem *problem;
  const nsai_kernel_spec *scan; /* nsai_decode_scan_spec() */
  const nsai_kernel_spec
      *attend; /* NULL: as many blocks of threads fit a multiprocessor as of `scan` */
  /* What the plan has: decode_split_kv_compressed and what follows, NSAI_KERNEL_DECODE_TWO_PER_SM, _WIDE, _PAIR, _QUAD. */
  bool split_kv, two_per_sm, one_per_sm, cluster_2, cluster_4;
  int32_t sms; /* 0: unknown */
  int64_t tokens;
  int32_t num_seqs;
  bool packed; /* cu_q is given */
  uint32_t branches;
} nsai_decode_sizes;

/* The spec of the kernel that scans: decode_split_kv_compressed's or, where the plan has none, decode_single_cta's. */
const nsai_kernel_spec *nsai_decode_scan_spec(const nsai_kernel_spec specs[NSAI_ROLES]);

/* decode_split_kv_attend's, or NULL. */
const nsai_kernel_spec *nsai_decode_attend_spec(const nsai_kernel_spec specs[NSAI_ROLES]);

/* Whether one launch is the fastest for `units` (tile of tokens, KV head) pairs: of decode_single_cta or decode_pipelined
 * with two blocks of threads on a multiprocessor, with one wide one, with a cluster of two or four wide ones. And
 * whether it is for some number up to `units`. `flows`: the wide one is decode_pipelined's, as those of a plan with
 * pairs are. */
bool nsai_decode_suits_two_per_sm(const nsai_problem *problem, int32_t sms, int64_t items);
bool nsai_decode_suits_one_per_sm(const nsai_problem *problem, int32_t sms, int64_t items,
                                  bool pipelined);
bool nsai_decode_suits_cluster_2(const nsai_problem *problem, int32_t sms, int64_t items);
bool nsai_decode_suits_cluster_4(const nsai_problem *problem, int32_t sms, int64_t items);
bool nsai_decode_reaches_two_per_sm(const nsai_problem *problem, int32_t sms, int64_t items);
bool nsai_decode_reaches_one_per_sm(const nsai_problem *problem, int32_t sms, int64_t items,
                                    bool pipelined);
bool nsai_decode_reaches_cluster_2(const nsai_problem *problem, int32_t sms, int64_t items);
bool nsai_decode_reaches_cluster_4(const nsai_problem *problem, int32_t sms, int64_t items);

/* Most raw keys that a token attends to: of its window and of its chosen blocks. */
int64_t nsai_decode_raw_keys(const nsai_problem *problem);

/* Whether `units` are no more than half the multiprocessors. */
bool nsai_decode_leaves_half(int32_t sms, int64_t items);

nsai_decode_split nsai_decode_split_make(const nsai_decode_sizes *sizes);

/* Writes for nsa_explain which numbers of sequences with one new token go by which kernel, where a plan has
 * several ways: "  steps of one token: 1 to 7 sequences by decode_pipelined of 4 x 512 threads, 8 to 16 by decode_pipelined
 * of 2 x 512 threads, ...". */
void nsai_decode_write_forms(const nsai_problem *problem, const nsai_kernel_spec specs[NSAI_ROLES],
                             int32_t sms, nsai_writer *text);

/* Most (unit, part) places that any run of the plan has in decode_split_kv_compressed's and decode_split_kv_attend's partial
 * results, and most tiles. */
typedef struct nsai_decode_most {
  int64_t tiles, scan_results, attend_results;
} nsai_decode_most;
nsai_decode_most nsai_decode_most_of(const nsai_problem *problem, const nsai_kernel_spec *scan,
                                     const nsai_kernel_spec *attend, int32_t sms);

/* Numbers of selection blocks that decode_split_kv_compressed may pool, rounded up to whole quanta. */
int64_t nsai_decode_pooled_blocks(const nsai_problem *problem);

/* Selection blocks of a warp's run, where so many warps (>= 1) share the longest sequence's compressed keys in
 * whole quanta; 0 where it has none. */
int64_t nsai_decode_run_blocks(const nsai_problem *problem, int64_t warps);

/* Rows of a warp of decode_split_kv_combine: two share the work of finding them, where registers allow. */
int32_t nsai_decode_warp_rows(const nsai_model *model);

/* kWideHeads of decode/work.cuh. */
bool nsai_decode_has_wide_heads(const nsai_model *model);

/* Steps of a stage of a team of `rows` rows: kAtOnce of decode/consumer_groups.cuh. */
int32_t nsai_decode_stage_steps(const nsai_model *model, int32_t rows);

/* Teams of decode_split_kv_compressed's block of threads, and its rows. */
int32_t nsai_decode_scan_rows(const nsai_problem *problem, const nsai_kernel_spec *scan);
int32_t nsai_decode_scan_groups(const nsai_problem *problem, const nsai_kernel_spec *scan);

#endif /* NSAI_VARIANTS_DECODE_DECODE_H */
