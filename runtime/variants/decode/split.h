/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * How decode_split_kv splits a step over CTAs, from sizes that the host knows, and the parts of it
 * that other decode rows use. The actual work of a CTA follows from lengths in device memory:
 * kernel_templates/decode/work.cuh.
 */
#ifndef NSAI_VARIANTS_DECODE_SPLIT_H
#define NSAI_VARIANTS_DECODE_SPLIT_H

#include "plan/forms.h"
#include "plan/spec.h"

/* Keys of one step of a consumer group, and rows of one of its warps: those of an mma. */
#define NSAI_DECODE_STEP 16
#define NSAI_DECODE_ROWS 16

/* Compressed keys by which runs are split among consumer groups: whole selection blocks. */
int64_t nsai_decode_split_granularity(const nsai_model *model);

/* The launches of a step. */
typedef struct nsai_decode_split {
  int64_t tiles;           /* of tokens, of decode_split_kv_compressed */
  int64_t seq_tiles;       /* of every sequence; 0: tiles follow from cu_q */
  int64_t attend_items;    /* CTAs of decode_split_kv_attend for each KV head */
  int32_t scan_splits;     /* of every tile's keys */
  int32_t scan_least;      /* fewest multiples of the granularity that a consumer group takes */
  int32_t window_splits;   /* of every tile's window; 0: the branch does not run */
  int32_t selected_splits; /* of every tile's blocks, or of every token's ranges; 0 likewise */
  int32_t row_warps;       /* of decode_split_kv_combine */
} nsai_decode_split;

/* What a split follows from. */
typedef struct nsai_decode_sizes {
  const nsai_problem *problem;
  const nsai_kernel_spec *scan;   /* of decode_split_kv_compressed */
  const nsai_kernel_spec *attend; /* of decode_split_kv_attend; NULL: a multiprocessor holds as many
                                     CTAs of it as of `scan` */
  int32_t sms;                    /* 0: unknown */
  nsai_step step;
  uint32_t branches;
} nsai_decode_sizes;

nsai_decode_split nsai_decode_split_make(const nsai_decode_sizes *sizes);

/* Most tiles of a run of the plan, and most partial results that decode_split_kv_compressed and
 * decode_split_kv_attend store. */
typedef struct nsai_decode_most {
  int64_t tiles, scan_results, attend_results;
} nsai_decode_most;
nsai_decode_most nsai_decode_most_of(const nsai_problem *problem, const nsai_kernel_spec *scan,
                                     const nsai_kernel_spec *attend, int32_t sms);

/* Numbers of selection blocks whose pooled values a tile may have in the workspace. */
int64_t nsai_decode_pooled_blocks(const nsai_problem *problem);

/* Bytes of the pooled values of a plan whose tiles have `rows` rows; 0: nothing is selected. */
int64_t nsai_decode_pooled_bytes(const nsai_problem *problem, int64_t tiles, int64_t rows);

/* Selection blocks of a warp's run, where `warps` (at least 1) share the longest sequence's
 * compressed keys in multiples of the granularity; 0 where it has none. */
int64_t nsai_decode_run_blocks(const nsai_problem *problem, int64_t warps);

/* Rows of a warp of decode_split_kv_combine: two share the work of finding them, where registers
 * allow. */
int32_t nsai_decode_warp_rows(const nsai_model *model);

/* kWideHeads of decode/work.cuh. */
bool nsai_decode_has_wide_heads(const nsai_model *model);

/* Steps of a stage of a consumer group of `rows` rows: kAtOnce of decode/consumer_groups.cuh. */
int32_t nsai_decode_stage_steps(const nsai_model *model, int32_t rows);

/* Rows of a CTA of decode_split_kv_compressed, and its consumer groups. */
int32_t nsai_decode_scan_rows(const nsai_problem *problem, const nsai_kernel_spec *scan);
int32_t nsai_decode_scan_groups(const nsai_problem *problem, const nsai_kernel_spec *scan);

#endif /* NSAI_VARIANTS_DECODE_SPLIT_H */
