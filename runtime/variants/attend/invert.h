/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernels that turn lists of blocks per token into lists of tokens per block (data/invert_*.cuh), for
 * the rows that walk the keys. A row has them as consecutive kernels, and what they fill as consecutive
 * buffers.
 */
#ifndef NSAI_VARIANTS_ATTEND_INVERT_H
#define NSAI_VARIANTS_ATTEND_INVERT_H

#include "plan/spec.h"
#include "run/params.h"

enum { NSAI_INVERT_COUNT, NSAI_INVERT_SCAN, NSAI_INVERT_FILL, NSAI_INVERT_KERNELS };

/* B numbers of blocks: nsai_kv_blocks. */
enum {
  NSAI_INVERT_COUNTS,        /* i32 [Hkv, parts, B] */
  NSAI_INVERT_STARTS,        /* i32 [Hkv, B] */
  NSAI_INVERT_ENTRIES,       /* u32 [Hkv, chunk tokens * n] */
  NSAI_INVERT_ENTRY_INDICES, /* i32 [Hkv, chunk tokens, n] */
  NSAI_INVERT_ITEMS,         /* NsaiKvItem [Hkv, items of a head] */
  NSAI_INVERT_ITEM_COUNTS,   /* i32 [Hkv] */
  NSAI_INVERT_BUFFERS
};

/* `item_rows`: entries of an item, at most. */
void nsai_invert_specify(const nsai_problem *problem, int32_t item_rows,
                         nsai_kernel_spec kernel[NSAI_INVERT_KERNELS]);

/* Bytes for the lists of `chunk_tokens` tokens. */
void nsai_invert_workspace(const nsai_problem *problem, int64_t chunk_tokens, int64_t item_rows,
                           int64_t bytes[NSAI_INVERT_BUFFERS]);

/* For the tokens [begin, end). Of `selected` only seq and lists are read. */
NsaiInvert nsai_invert_params(const nsai_run *run, const NsaiAttendSelected *selected,
                              int64_t begin, int64_t end, int64_t item_rows,
                              const nsai_buffer buffer[NSAI_INVERT_BUFFERS]);

nsa_status nsai_invert_enqueue(const nsai_run *run, const nsai_kernel kernel[NSAI_INVERT_KERNELS],
                               NsaiInvert p);

#endif /* NSAI_VARIANTS_ATTEND_INVERT_H */
