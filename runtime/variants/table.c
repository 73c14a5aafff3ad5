/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The variant table. Its rows are defined in the files of their variants. Nothing else stands in
 * this file, so that a test may bring a table of its own.
 */
#include "plan/variant.h"

/* By stage, then preference. */
/* clang-format off */
#define ROWS(row) \
  row(gate_gemm) \
  row(compress_mean) \
  row(compress_gemm) \
  row(attend_compressed_topn_expanded_sm90) \
  row(attend_compressed_topn_sm90) \
  row(attend_compressed_expanded_sm90) \
  row(attend_compressed_sm90) \
  row(attend_compressed_sm80) \
  row(importance_sm90) \
  row(importance_sm80) \
  row(index_scores_sm90) \
  row(index_scores_sm80) \
  row(select_topn_cta) \
  row(select_topn) \
  row(attend_selected_dense_sm90) \
  row(attend_selected_dense_sm80) \
  row(attend_selected_window_kv_stationary_sm90) \
  row(attend_selected_kv_stationary_sm90) \
  row(attend_selected_window_expanded_sm90) \
  row(attend_selected_window_sm90) \
  row(attend_selected_expanded_sm90) \
  row(attend_selected_sm90) \
  row(attend_selected_expanded_sm90_mma) \
  row(attend_selected_sm90_mma) \
  row(attend_selected_sm80) \
  row(attend_window_expanded_sm90) \
  row(attend_window_sm90) \
  row(attend_window_sm80) \
  row(dense_sm90) \
  row(dense_sm80) \
  row(dense_gemm) \
  row(append_mean) \
  row(append_gemm) \
  row(decode_cluster) \
  row(decode_pipelined) \
  row(decode_single_cta) \
  row(decode_select_attend) \
  row(decode_split_kv) \
  row(backward_q_kv_slots_sm90) \
  row(backward_q_kv_sm90) \
  row(backward_q_sm90_tma) \
  row(backward_q_sm90) \
  row(backward_q_sm80) \
  row(backward_kv_sm90) \
  row(backward_kv_sm80) \
  row(index_kl_sm90) \
  row(index_kl_sm80) \
  row(index_lse_kv_stationary_sm80) \
  row(index_lse_sm80) \
  row(gather_pages)
/* clang-format on */

#define DECLARE(name) extern const nsai_variant nsai_##name;
ROWS(DECLARE)

#define ADDRESS(name) &nsai_##name,
const nsai_variant *const nsai_variants[] = { ROWS(ADDRESS) NULL };
