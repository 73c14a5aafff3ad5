/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The variant table. To add a variant: a kernel file and one row here, with its functions in the
 * file of its stage (attend.c, attend_wgmma.c, selected_hopper.c, selection.c, compress.c). A row
 * of a variant that covers further stages ends with their bits. Nothing else stands in this file, so
 * that a test may bring a table of its own.
 */
#include "stages.h"

const nsai_variant nsai_variants[] = {
  { "compress_mean", NSAI_STAGE_COMPRESS, "phi mean in one pass over K and V", true, true,
    nsai_legal_compress_mean, NULL, nsai_specify_compress_mean, &nsai_space_compress_mean },
  { "compress_gemm", NSAI_STAGE_COMPRESS, "phi linear and mlp: gathered rows through cuBLASLt",
    true, true, nsai_legal_compress_gemm, NULL, nsai_specify_compress_gemm, NULL },
  { "compressed_topn_wgmma", NSAI_STAGE_ATTEND_COMPRESSED,
    "compressed branch, importance and top-n in one pass, wgmma and tensor maps", true, true,
    nsai_legal_compressed_topn_wgmma, nsai_sensible_compressed_topn_wgmma,
    nsai_specify_compressed_topn_wgmma, NULL, 1 << NSAI_STAGE_IMPORTANCE | 1 << NSAI_STAGE_SELECT },
  { "attend_compressed_wgmma", NSAI_STAGE_ATTEND_COMPRESSED,
    "flash attention over compressed tokens, wgmma and tensor maps", true, true,
    nsai_legal_attend_compressed_wgmma, NULL, nsai_specify_attend_compressed_wgmma,
    &nsai_space_flash_wgmma },
  { "attend_compressed_mma", NSAI_STAGE_ATTEND_COMPRESSED,
    "flash attention over compressed tokens, mma.sync", true, true,
    nsai_legal_attend_compressed_mma, NULL, nsai_specify_attend_compressed_mma, &nsai_space_flash },
  { "importance_mma", NSAI_STAGE_IMPORTANCE,
    "second pass over q k^T with the known LSE, exact in fp32", true, true,
    nsai_legal_importance_mma, NULL, nsai_specify_importance_mma, &nsai_space_importance },
  { "select_topn", NSAI_STAGE_SELECT, "one warp a row, running best in registers", true, true,
    nsai_legal_select_topn, NULL, nsai_specify_select_topn, &nsai_space_select },
  { "selected_dense_wgmma", NSAI_STAGE_ATTEND_SELECTED,
    "dense causal attention, exact while every block is chosen, wgmma", true, true,
    nsai_legal_selected_dense_wgmma, NULL, nsai_specify_selected_dense_wgmma,
    &nsai_space_flash_wgmma },
  { "selected_dense_mma", NSAI_STAGE_ATTEND_SELECTED,
    "dense causal attention, exact while every block is chosen", true, true,
    nsai_legal_selected_dense_mma, NULL, nsai_specify_selected_dense_mma, &nsai_space_flash },
  { "attend_selected_kv", NSAI_STAGE_ATTEND_SELECTED,
    "KV-stationary over inverted lists, wgmma: small groups, lists that differ", true, true,
    nsai_legal_attend_selected_kv, nsai_sensible_attend_selected_kv,
    nsai_specify_attend_selected_kv, &nsai_space_selected_kv },
  { "attend_selected_wgmma", NSAI_STAGE_ATTEND_SELECTED,
    "union of adjacent tokens' blocks, wgmma and tensor maps", true, true,
    nsai_legal_attend_selected_wgmma, nsai_sensible_attend_selected_wgmma,
    nsai_specify_attend_selected_wgmma, &nsai_space_selected_wgmma },
  { "attend_selected_tma", NSAI_STAGE_ATTEND_SELECTED,
    "union of adjacent tokens' blocks, mma.sync and tensor maps", true, true,
    nsai_legal_attend_selected_tma, nsai_sensible_attend_selected_tma,
    nsai_specify_attend_selected_tma, &nsai_space_selected_tma },
  { "attend_selected_mma", NSAI_STAGE_ATTEND_SELECTED, "union of adjacent tokens' blocks, mma.sync",
    true, true, nsai_legal_attend_selected_mma, NULL, nsai_specify_attend_selected_mma,
    &nsai_space_union },
  { "attend_window_wgmma", NSAI_STAGE_ATTEND_WINDOW,
    "flash attention over a sliding window, wgmma and tensor maps", true, true,
    nsai_legal_attend_window_wgmma, NULL, nsai_specify_attend_window_wgmma,
    &nsai_space_flash_wgmma },
  { "attend_window_mma", NSAI_STAGE_ATTEND_WINDOW,
    "flash attention over a sliding window, mma.sync", true, true, nsai_legal_attend_window_mma,
    NULL, nsai_specify_attend_window_mma, &nsai_space_flash },
  { "dense_wgmma", NSAI_STAGE_DENSE,
    "flash attention over all earlier tokens, wgmma and tensor maps", true, true,
    nsai_legal_dense_wgmma, NULL, nsai_specify_dense_wgmma, &nsai_space_flash_wgmma },
  { "dense_mma", NSAI_STAGE_DENSE, "flash attention over all earlier tokens, mma.sync", true, true,
    nsai_legal_dense_mma, NULL, nsai_specify_dense_mma, &nsai_space_flash },
  { "sdpa_gemm", NSAI_STAGE_DENSE, "unfused baseline: q k^T, softmax and p v through cuBLASLt",
    true, true, nsai_legal_sdpa_gemm, nsai_sensible_sdpa_gemm, nsai_specify_sdpa_gemm, NULL },
};
const int nsai_variant_count = sizeof nsai_variants / sizeof *nsai_variants;
