/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Kernels whose consumer groups stream keys through shared memory (decode/mainloop.cuh): those
 * of decode_split_kv, and decode_single_cta. Their tiles, shared memory and constants.
 */
#ifndef NSAI_VARIANTS_DECODE_STREAM_H
#define NSAI_VARIANTS_DECODE_STREAM_H

#include "variants/decode/split.h"

#define NSAI_DECODE_PANEL_ROWS 64 /* of a warpgroup: what one wgmma takes */

/* Products of a warpgroup, which reads elements from shared memory, and no codes. */
bool nsai_decode_has_wgmma(const nsai_problem *problem, const nsai_target *target);

/* What takes few registers of decode_split_kv_compressed: rows of a lane are one token's, stages
 * begin and end on selection blocks, and nothing is counted. */
bool nsai_decode_is_plain(const nsai_problem *problem);

/* Whether four warpgroups of a multiprocessor hold all of it in 128 registers a thread:
 * decode_split_kv_attend's stages begin and end on selection blocks, too. (NVRTC 13.0.) */
bool nsai_decode_has_narrow_panels(const nsai_problem *problem, const nsai_target *target);

/* kPanels of decode/consumer_groups.cuh. */
bool nsai_decode_has_panels(const nsai_problem *problem, const nsai_target *target, int32_t rows);

/* kSharedQ of decode/consumer_groups.cuh: O leaves a thread no registers for Q. */
static inline bool nsai_decode_has_shared_q(const nsai_model *m) {
  return nsai_row_registers(m) > 144;
}

/* Rows of a tile; tokens that it has room for; and new tokens of it that a sequence can have. */
int32_t nsai_decode_tile_rows(const nsai_problem *problem, const nsai_target *target);
int32_t nsai_decode_tile_room(const nsai_problem *problem, const nsai_target *target);
int32_t nsai_decode_tile_tokens(const nsai_problem *problem, const nsai_target *target);

/* Rows of a token by itself. */
int32_t nsai_decode_token_rows(const nsai_problem *problem);

nsai_tiles nsai_decode_stream_tiles(int32_t warps, int32_t stages, int32_t ctas);

/* Bytes of the key streams of a tile of so many rows: nsai_smem_key_stream(). `dtype`: the problem's
 * kv_dtype or cmp_dtype. */
int32_t nsai_decode_stream_bytes(const nsai_problem *problem, const nsai_target *target,
                                 int32_t rows, const nsai_tiles *tiles, int32_t dtype);

/* Bytes in which `warps` pool a stage of so many keys; 0: they pool blocks in registers. */
int32_t nsai_decode_pool_bytes(const nsai_model *model, int32_t keys, int32_t warps);

/* Adds the constants that the kernels of decode_split_kv agree on: decode/work.cuh. kWarps,
 * which says how runs fall, is decode_split_kv_compressed's and decode_split_kv_select's
 * together; the others have their own. */
void nsai_decode_work_add(nsai_kernel_spec *spec, const nsai_request *request);

/* Adds what every kernel that streams keys has, but for which of them are codes. */
void nsai_decode_stream_add(nsai_kernel_spec *spec, const nsai_request *request);

/* Adds Config::kEntryCodes, and Config::kRawCodes. */
void nsai_decode_entry_codes_add(nsai_kernel_spec *spec, const nsai_problem *problem);
void nsai_decode_raw_codes_add(nsai_kernel_spec *spec, const nsai_problem *problem);

/* Adds a reason against entries in codes beside raw pairs that are not, in a kernel whose pipeline all
 * branches share. */
void nsai_decode_legal_codes(const nsai_problem *problem, nsai_reasons *reasons);

/* Refuses a cache whose raw tokens lie on several ranks. */
void nsai_decode_legal_ranks(const nsai_problem *problem, nsai_reasons *reasons);

#endif /* NSAI_VARIANTS_DECODE_STREAM_H */
