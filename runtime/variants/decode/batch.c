/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/decode/batch.h"

#include "base/math.h"
#include "plan/spec.h"

/* Multiprocessors where their number is unknown: kernels are compiled for another machine. */
#define USUAL_SMS 128

/* decode_single_cta, H200: with 64k tokens 16 sequences of 4 KV heads take 71 us by
 * decode_split_kv, 76 by one CTA of 8 warps each; 32 take 119 and 102 us, and 118 by two
 * CTAs on a multiprocessor; 64 take 222, 205 and 184. So a CTA of 8 warps is the fastest from
 * 3/5 of the multiprocessors up to all, and two on a multiprocessor behind; but a last wave, of
 * however few, takes at least 9/16 of a full one, and decode_split_kv 9/8 of full ones. */
#define FEWEST_ONE_PER_SM_FIFTHS 3

/* decode_pipelined, H200, sequences of 4 KV heads, us of a step by four CTAs for each item, by
 * a cluster of two, by one, and by decode_split_kv:
 *              4k                       16k                       64k
 *    1   14.1              18.0   15.6              19.2   22.3              27.0
 *    2   14.3              19.2   15.9              21.6   22.6              28.7
 *    4   14.9              21.3   16.7              25.4   24.0              33.5
 *    7   16.8              24.5   19.5              28.8   30.8              42.5
 *    8   28.3  17.1        24.6   32.8  20.8        30.2   50.0  35.8        44.5
 *   12         19.2  20.3  28.1         25.0  26.9  33.4         45.5  53.2  54.4
 *   14         20.8  20.5               26.2  27.1               48.1  53.6
 *   16         21.8  20.9               27.9  27.5               53.0  55.7
 *   17         33.4  21.2  31.9         44.4  28.1  38.7         82.2  57.0  67.9
 *   20         35.6  22.5  32.0         47.3  31.0  38.0         84.5  65.3  71.3
 * (8 by four and 17 and 20 by clusters of two by an older build; 128k: 1 and 3 sequences 31.6
 * and 32.7, decode_split_kv 39.2 and 47.4.) So four while all clusters run at once, of which an
 * H200 holds 30, but not for a few items of many heads, which leave nearly all multiprocessors;
 * clusters of two behind that up to half of them, of short sequences up to 3/7, and where more
 * compressed keys may come than 64k tokens', which half of them would read too slowly, from 2/5
 * on; then one. */
#define FEWEST_CLUSTER_4_PART 33 /* of the multiprocessors */
#define FEWEST_CLUSTER_2_FIFTHS 1
#define FEWEST_LONG_FIFTHS 2
#define LONGEST_CLUSTER_2 4096
#define LONGEST_SHORT 1024 /* 16k tokens */

/* Many raw keys of a token, which 16 multiprocessors would read too slowly: where they are more
 * than so many, four CTAs from 1/9 of the multiprocessors on. (H200, attention over all keys
 * of 1, 2 and 4 sequences of 64k by four CTAs 105, 105 and 126 us, by decode_split_kv 40.1,
 * 68.4 and 131; of 1 and 4 of 16k 32.0 and 37.4, 17.2 and 39.2. That both take as long for one
 * sequence at about 4k follows from these.) */
#define MOST_CLUSTER_4_RAW_KEYS 4096
#define FEWEST_RAW_CLUSTER_4_PART 9

/* Most compressed keys of an item that one CTA takes alone: 256k tokens. */
#define LONGEST_TWO_PER_SM 16384

/* CTAs of decode_single_cta, and of decode_pipelined, that share a multiprocessor. */
#define CTAS_PER_SM 2

static int64_t known_sms(int32_t sms) { return sms > 0 ? sms : USUAL_SMS; }

static int64_t compressed_keys(const nsai_problem *p) {
  return nsai_block_count(&p->model, p->max_kv_len);
}

int64_t nsai_decode_raw_keys(const nsai_problem *p) {
  int64_t chosen = (int64_t)p->model.select_count * p->model.select_block;
  return nsai_smaller(p->model.window, p->max_kv_len) + nsai_smaller(chosen, p->max_kv_len);
}

bool nsai_decode_leaves_half(int32_t sms, int64_t items) { return items * 2 <= known_sms(sms); }

int64_t nsai_decode_most_items(const nsai_problem *p, int32_t tile_tokens) {
  return nsai_most_step_tiles(p, tile_tokens) * p->model.kv_heads;
}

nsai_decode_share nsai_decode_share_of(const nsai_tiles *s) {
  if (s->of[NSAI_TILE_CLUSTER] > 2) return NSAI_DECODE_FOUR_SMS;
  if (s->of[NSAI_TILE_CLUSTER] == 2) return NSAI_DECODE_TWO_SMS;
  return s->of[NSAI_TILE_CTAS] > 1 ? NSAI_DECODE_HALF_SM : NSAI_DECODE_ONE_SM;
}

static bool cluster_2_suffices(const nsai_problem *p, int32_t sms, int64_t items) {
  const bool is_short = compressed_keys(p) <= LONGEST_SHORT;
  return is_short ? items * 7 <= known_sms(sms) * 3 : nsai_decode_leaves_half(sms, items);
}

static bool fills_cluster_4(const nsai_problem *p, int32_t sms, int64_t items) {
  const bool many = nsai_decode_raw_keys(p) > MOST_CLUSTER_4_RAW_KEYS;
  return items * (many ? FEWEST_RAW_CLUSTER_4_PART : FEWEST_CLUSTER_4_PART) >= known_sms(sms);
}

static bool fills_cluster_2(const nsai_problem *p, int32_t sms, int64_t items) {
  const bool is_long = compressed_keys(p) > LONGEST_CLUSTER_2;
  return items * 5 >= known_sms(sms) * (is_long ? FEWEST_LONG_FIFTHS : FEWEST_CLUSTER_2_FIFTHS);
}

bool nsai_decode_reaches(const nsai_problem *p, int32_t sms, nsai_decode_share share,
                         bool cluster_2, int64_t items) {
  /* Else one item may take much longer than all others together. */
  if (compressed_keys(p) > LONGEST_TWO_PER_SM) return false;
  switch (share) {
  case NSAI_DECODE_FOUR_SMS: return fills_cluster_4(p, sms, items);
  case NSAI_DECODE_TWO_SMS: return fills_cluster_2(p, sms, items);
  case NSAI_DECODE_ONE_SM:
    return cluster_2 ? !cluster_2_suffices(p, sms, items)
                     : items * 5 >= known_sms(sms) * FEWEST_ONE_PER_SM_FIFTHS;
  case NSAI_DECODE_HALF_SM: return items > known_sms(sms);
  }
  return false;
}

/* Whether waves of CTAs are full enough. */
static bool fills_waves(int32_t sms, int64_t items) {
  const int64_t room = known_sms(sms) * CTAS_PER_SM, rest = items % room;
  const int64_t took = items - rest + (rest ? nsai_larger(rest, room * 9 / 16) : 0);
  return took * 8 <= items * 9;
}

bool nsai_decode_suits(const nsai_problem *p, int32_t sms, nsai_decode_share share, bool cluster_2,
                       int64_t items) {
  if (!nsai_decode_reaches(p, sms, share, cluster_2, items)) return false;
  switch (share) {
  case NSAI_DECODE_FOUR_SMS: return items * 44 <= known_sms(sms) * 10; /* 30 clusters on 132 */
  case NSAI_DECODE_TWO_SMS: return cluster_2_suffices(p, sms, items);
  case NSAI_DECODE_ONE_SM: return items <= known_sms(sms);
  case NSAI_DECODE_HALF_SM: return fills_waves(sms, items);
  }
  return false;
}

/* Clusters of 16 are more than all devices take. */
int32_t nsai_decode_largest_cluster(const nsai_target *t) {
  return nsai_target_is(t, NSAI_H200) ? 16 : 8;
}

/* 7 clusters of 16, 15 of 8, 17 of 6, 30 of 4, 66 of 2. (H200: cudaOccupancyMaxActiveClusters.) */
int64_t nsai_decode_ctas_at_once(int32_t cluster) {
  static const struct {
    int32_t cluster, ctas;
  } sizes[] = { { 16, 112 }, { 8, 120 }, { 6, 102 }, { 4, 120 }, { 2, 132 }, { 1, 132 } };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (sizes[i].cluster <= cluster) return sizes[i].ctas;
  return 0;
}
