/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * For which numbers of work items each single-launch row is the fastest. A work item is a tile of
 * tokens of one KV head.
 */
#ifndef NSAI_VARIANTS_DECODE_BATCH_H
#define NSAI_VARIANTS_DECODE_BATCH_H

#include "plan/forms.h"

/* How many multiprocessors an item takes. */
typedef enum nsai_decode_share {
  NSAI_DECODE_FOUR_SMS, /* a cluster of four CTAs, each with a multiprocessor of its own */
  NSAI_DECODE_TWO_SMS,
  NSAI_DECODE_ONE_SM,
  NSAI_DECODE_HALF_SM
} nsai_decode_share;

/* That of a form, by its CTAs and their cluster. */
nsai_decode_share nsai_decode_share_of(const nsai_tiles *tiles);

/* Whether this share is the fastest for so many items; and whether it is for some number up to
 * `items`. `cluster_2`: clusters of two take what is too little for a multiprocessor each. */
bool nsai_decode_suits(const nsai_problem *problem, int32_t sms, nsai_decode_share share,
                       bool cluster_2, int64_t items);
bool nsai_decode_reaches(const nsai_problem *problem, int32_t sms, nsai_decode_share share,
                         bool cluster_2, int64_t items);

/* Most raw keys that a token attends to: of its window and of its chosen blocks; and the number up to which
 * waits, and not bytes, are what a step is bound by. (A guess. On an H200 clusters pay at 2048 and 6144.) */
#define NSAI_DECODE_MOST_RAW_KEYS 8192
int64_t nsai_decode_raw_keys(const nsai_problem *problem);

/* Whether the items are no more than half the multiprocessors. */
bool nsai_decode_leaves_half(int32_t sms, int64_t items);

/* Most items of a plan, in tiles of so many tokens. */
int64_t nsai_decode_most_items(const nsai_problem *problem, int32_t tile_tokens);

/* The largest cluster that the device takes; and CTAs that run at once in clusters of this size, with one
 * CTA on a multiprocessor. */
int32_t nsai_decode_largest_cluster(const nsai_target *target);
int64_t nsai_decode_ctas_at_once(int32_t cluster);

#endif /* NSAI_VARIANTS_DECODE_BATCH_H */
