/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernels that turn lists of blocks per token into lists of tokens per block
 * (data/invert_*.cuh), for the rows that walk the keys. A row has them as consecutive kernels, and
 * what they fill as consecutive buffers.
 */
#ifndef NSAI_VARIANTS_ATTEND_INVERT_H
#define NSAI_VARIANTS_ATTEND_INVERT_H

#include "base/math.h"
#include "plan/spec.h"
#include "run/params.h"

/* Blocks whose entries one CTA counts; beyond, other CTAs read the lists again: 73,000 tokens
 * of 64. Four CTAs of 16 warps fit on a multiprocessor. */
#define NSAI_KV_COUNTERS 1152

/* Most tokens whose lists are inverted at once: kEntryTokenBits of data/inverted_lists.cuh. */
#define NSAI_KV_MOST_TOKENS ((int64_t)1 << 24)

/* Numbers of blocks that sequences of `kv_tokens` keys in all have: data/inverted_lists.cuh. */
static inline int64_t nsai_kv_blocks(const nsai_model *m, int64_t kv_tokens, int64_t num_seqs) {
  return kv_tokens / m->select_block + num_seqs;
}

/* Most items of one head: runs of at most item_rows entries. */
static inline int64_t nsai_kv_items(const nsai_model *m, int64_t tokens, int64_t blocks,
                                    int64_t item_rows) {
  return tokens * m->select_count / item_rows + blocks;
}

/* Tokens whose blocks are counted together: enough that the table of counts is no larger than the
 * lists, few enough for 16-bit counters. */
#define NSAI_KV_LEAST_PART 1024
#define NSAI_KV_MOST_PART 32768
static inline int64_t nsai_kv_part_tokens(int64_t blocks) {
  return nsai_smaller(nsai_larger(blocks, NSAI_KV_LEAST_PART), NSAI_KV_MOST_PART);
}

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

/* The same of lists in which every token has every block up to its own. They need no sorted lists. */
void nsai_invert_all_specify(const nsai_problem *problem, int32_t item_rows,
                             nsai_kernel_spec kernel[NSAI_INVERT_KERNELS]);

/* Bytes for the lists of `chunk_tokens` tokens. */
void nsai_invert_workspace(const nsai_problem *problem, int64_t chunk_tokens, int64_t item_rows,
                           int64_t bytes[NSAI_INVERT_BUFFERS]);

/* For the tokens [begin, end). Of `selected` only seq and lists are read. */
NsaiInvert nsai_invert_params(const nsai_run *run, const NsaiAttendSelected *selected,
                              int64_t begin, int64_t end, int64_t item_rows,
                              const nsai_buffer buffer[NSAI_INVERT_BUFFERS]);

nsa_status nsai_invert_all_enqueue(const nsai_run *run,
                                   const nsai_kernel kernel[NSAI_INVERT_KERNELS], NsaiInvert p);

nsa_status nsai_invert_enqueue(const nsai_run *run, const nsai_kernel kernel[NSAI_INVERT_KERNELS],
                               NsaiInvert p);

/* The items of inverted lists by their first tokens, for a kernel that takes them one after the other:
 * data/invert_order.cuh. `order`: i32 [heads, item_capacity]. */
void nsai_invert_order_specify(const nsai_problem *problem, nsai_kernel_spec *spec);
nsa_status nsai_invert_order_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                                     const NsaiInvert *lists, int *order);

#endif /* NSAI_VARIANTS_ATTEND_INVERT_H */
