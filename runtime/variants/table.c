/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The variant table. Its rows are defined in the files of their variants. Nothing else stands in this
 * file, so that a test may bring a table of its own.
 */
#include "plan/spec.h"

static const nsai_variant nsai_decode_cluster = {
  .name = "decode_cluster",
  .stage = NSAI_STAGE_DECODE,
  .why = "one launch, a cluster of CTAs for each token and KV head, mma.sync",
  .legal = nsai_legal_decode_cluster,
  .sensible = nsai_sensible_decode_cluster,
  .specify_roles = nsai_specify_decode_cluster,
  .space = &nsai_space_decode_cluster
};
static const nsai_variant nsai_decode_split_kv = {
  .name = "decode_split_kv",
  .stage = NSAI_STAGE_DECODE,
  .why = "scan, select, attend, combine: split over keys, mma.sync",
  .legal = nsai_legal_decode_split_kv,
  .specify_roles = nsai_specify_decode_split_kv,
  .space = &nsai_space_decode_split_kv
};
static const nsai_variant nsai_decode_single_cta = {
  .name = "decode_single_cta",
  .stage = NSAI_STAGE_DECODE,
  .why = "a CTA for each token and KV head: for batches that leave split-KV without gain",
  .legal = nsai_legal_decode_single_cta,
  .specify_roles = nsai_specify_decode_single_cta,
  .space = &nsai_space_decode_single_cta
};
/* The rows by stage, then preference. */
#define ROWS(row)                                                                                  \
  row(gate_gemm) row(compress_mean) row(compress_gemm) row(attend_compressed_topn_sm90)            \
      row(attend_compressed_sm90) row(attend_compressed_sm80) row(importance_sm80)                 \
          row(select_topn) row(attend_selected_dense_sm90) row(attend_selected_dense_sm80)         \
              row(attend_selected_kv_stationary_sm90) row(attend_selected_window_sm90)             \
                  row(attend_selected_sm90) row(attend_selected_sm90_mma)                          \
                      row(attend_selected_sm80) row(attend_window_sm90) row(attend_window_sm80)    \
                          row(dense_sm90) row(dense_sm80) row(dense_gemm) row(append_mean)         \
                              row(append_gemm)

#define BACKWARD_ROWS(row)                                                                         \
  row(backward_q_sm90_tma) row(backward_q_sm90) row(backward_q_sm80) row(backward_kv_sm90)         \
      row(backward_kv_sm80)

#define DECLARE(name) extern const nsai_variant nsai_##name;
ROWS(DECLARE)
BACKWARD_ROWS(DECLARE)

#define ADDRESS(name) &nsai_##name,
const nsai_variant *const nsai_variants[] = { ROWS(ADDRESS) & nsai_decode_cluster,
                                              &nsai_decode_split_kv, &nsai_decode_single_cta,
                                              BACKWARD_ROWS(ADDRESS) NULL };
