/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * How a decode step falls into blocks of threads. Few sequences are cut into as many parts as the device
 * holds at once; many into parts that are long beside what each costs: its partial result is written
 * and read again, 1/16 of 256 keys' bytes.
 */
#include "variants/decode/decode.h"

#include "plan/spec.h"

#include <string.h>

/* Blocks of threads of decode_split_kv_compressed and decode_split_kv_attend that a multiprocessor holds, but of more than 256 threads. */
#define BLOCKS_PER_SM 2
#define PAIRED_THREADS 256

/* Sequences of different lengths share the device evenly when none is longer than this many compressed
 * keys in one piece; but few parts of a sequence are ever empty. (A guess.) */
#define LONGEST_SCAN 2048
#define MOST_EVEN_SPLITS 16

/* Fewest compressed keys of a part where there are blocks enough without. */
#define SHORTEST_SCAN 256

/* Multiprocessors where their number is unknown: kernels are compiled for another machine. */
#define USUAL_SMS 128

/* decode_single_cta, H200: with 64k tokens 16 sequences of 4 KV heads take 71 us by the chain, 76 by one wide block of
 * threads each; 32 take 119 and 102 us, and 118 by two blocks on a multiprocessor; 64 take 222, 205 and 184.
 * So a wide block is the fastest from 3/5 of the multiprocessors up to all, and two of them behind; but a last
 * wave, of however few, takes at least 9/16 of a full one, and the chain 9/8 of full ones. */
#define FEWEST_ONE_PER_SM_FIFTHS 3

/* decode_pipelined, H200, sequences of 4 KV heads, us of a step by four blocks for each unit, by a pair, by one, and by the
 * chain:
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
 * (8 by four and 17 and 20 by pairs by an older build; 128k: 1 and 3 sequences 31.6 and 32.7, the chain 39.2 and 47.4.)
 * So four while all clusters run at once, of which an H200 holds 30, but not for a few units of many heads, which leave
 * nearly all multiprocessors; pairs behind that up to half of them, of short sequences up to 3/7, and where more
 * compressed keys may come than 64k tokens', which half of them would read too slowly, from 2/5 on; then one. */
#define FEWEST_CLUSTER_4_PART 33 /* of the multiprocessors */
#define FEWEST_CLUSTER_2_FIFTHS 1
#define FEWEST_LONG_FIFTHS 2
#define LONGEST_CLUSTER_2 4096
#define LONGEST_SHORT 1024 /* 16k tokens */

/* Many raw keys of a token, which 16 multiprocessors would read too slowly: where they are more than so many, four
 * blocks from 1/9 of the multiprocessors on. (H200, attention over all keys of 1, 2 and 4 sequences of 64k by four
 * blocks 105, 105 and 126 us, by the chain 40.1, 68.4 and 131; of 1 and 4 of 16k 32.0 and 37.4, 17.2 and 39.2. That
 * both take as long for one sequence at about 4k follows from these.) */
#define MOST_CLUSTER_4_RAW_KEYS 4096
#define FEWEST_RAW_CLUSTER_4_PART 9

/* Most compressed keys of a unit that one block of threads takes alone: 256k tokens. */
#define LONGEST_TWO_PER_SM 16384

/* Most steps of 16 keys of a part of decode_split_kv_attend, where windows are long: 2048 keys. */
#define LONGEST_ATTEND 128

/* Of a tile of several tokens: steps of a part for which another part's result is worth its cost; and that parts
 * may be as many times as long as half its tokens, since they are of many rows. (Guesses.) */
#define SHORTEST_ATTEND 8

/* Warps of decode_split_kv_combine for a row, and how many warps of it a multiprocessor holds. */
#define MOST_ROW_WARPS 8
#define COMBINE_WARPS_PER_SM 16

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t greatest_divisor(int64_t a, int64_t b) {
  while (b) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

int64_t nsai_decode_split_granularity(const nsai_model *m) {
  int64_t ratio = m->select_block / m->stride;
  return ratio / greatest_divisor(NSAI_DECODE_STEP, ratio) * NSAI_DECODE_STEP;
}

int64_t nsai_decode_run_blocks(const nsai_problem *p, int64_t warps) {
  int64_t granularity = nsai_decode_split_granularity(&p->model);
  int64_t quanta = ceil_div(nsai_block_count(&p->model, p->max_kv_len), granularity);
  return ceil_div(quanta, warps) * (granularity / (p->model.select_block / p->model.stride));
}

int64_t nsai_decode_pooled_blocks(const nsai_problem *p) { return nsai_decode_run_blocks(p, 1); }

int32_t nsai_decode_warp_rows(const nsai_model *m) { return m->head_dim_v > 128 ? 1 : 2; }

bool nsai_decode_has_wide_heads(const nsai_model *m) {
  return m->head_dim_qk + m->head_dim_v > 256;
}

int32_t nsai_decode_stage_steps(const nsai_model *m, int32_t rows) {
  return rows >= 4 * NSAI_DECODE_ROWS && !nsai_decode_has_wide_heads(m) ? 2 : 1;
}

int32_t nsai_decode_scan_rows(const nsai_problem *p, const nsai_kernel_spec *scan) {
  return scan->tile_tokens * nsai_padded_group(&p->model);
}

int32_t nsai_decode_scan_groups(const nsai_problem *p, const nsai_kernel_spec *scan) {
  return scan->threads / 32 / (nsai_decode_scan_rows(p, scan) / NSAI_DECODE_ROWS);
}

/* Parts of the longest sequence's keys that a part is not longer than LONGEST_SCAN for. */
static int64_t even_splits(const nsai_problem *p) {
  int64_t keys = nsai_block_count(&p->model, p->max_kv_len);
  return smaller(larger(ceil_div(keys, LONGEST_SCAN), 1), MOST_EVEN_SPLITS);
}

/* Blocks of threads of a kernel that the device holds at once. */
static int64_t room_for(const nsai_kernel_spec *spec, int32_t sms) {
  int64_t blocks = spec->threads > PAIRED_THREADS ? 1 : BLOCKS_PER_SM;
  for (int i = 0; i < spec->constant_count; i++)
    if (!strcmp(spec->constants[i].name, "kMinBlocks"))
      blocks = larger(blocks, spec->constants[i].value);
  return sms * blocks;
}

/* Most tiles of `each` tokens that follow from cu_q. */
static int64_t packed_tiles(int64_t tokens, int64_t seqs, int64_t each) {
  return each == 1 ? tokens : tokens / each + seqs;
}

/* As many tiles for every sequence as the longest may have, where that is no more in all. */
static void count_tiles(const nsai_decode_sizes *s, nsai_decode_split *out) {
  int64_t each = s->scan->tile_tokens, packed = packed_tiles(s->tokens, s->num_seqs, each);
  int64_t longest = s->packed ? s->problem->max_q_len : s->tokens / s->num_seqs;
  out->seq_tiles = ceil_div(longest, each);
  out->tiles = s->num_seqs * out->seq_tiles;
  if (!s->packed || out->tiles <= packed) return;
  out->seq_tiles = 0;
  out->tiles = packed;
}

/* A tile's tokens attend to all their blocks together; but each to its ranges. */
static bool unites_lists(const nsai_problem *p) { return p->selection != NSA_SELECT_RANGES; }

/* New tokens of a tile that a sequence can have. */
static int64_t tile_tokens(const nsai_problem *p, const nsai_kernel_spec *scan) {
  return smaller(scan->tile_tokens, p->max_q_len);
}

/* Steps that a list has at most, or a tile's window; of a caller's ranges, which may be longer than so many
 * blocks, a guess: parts take whatever there is in equal shares. */
static int64_t selected_steps(const nsai_problem *p, const nsai_kernel_spec *scan) {
  int64_t keys = (int64_t)p->model.select_count * p->model.select_block;
  return ceil_div(keys * (unites_lists(p) ? tile_tokens(p, scan) : 1), NSAI_DECODE_STEP);
}
static int64_t window_steps(const nsai_model *m) { return ceil_div(m->window, NSAI_DECODE_STEP); }

/* Parts of `steps`: as many as wanted, or as have `least` of them; none without keys. */
static int32_t attend_splits(int64_t steps, int64_t wanted, int64_t least) {
  if (!steps) return 0;
  int64_t parts = larger(larger(wanted, 1), ceil_div(steps, LONGEST_ATTEND));
  int64_t each = ceil_div(steps, parts * least);
  return (int32_t)ceil_div(steps, each * least);
}

static const nsai_kernel_spec *attend_of(const nsai_decode_sizes *s) {
  return s->attend ? s->attend : s->scan;
}

/* Steps of a part of decode_split_kv_attend that has a stage for every team, of `rows` rows. */
static int64_t least_steps(const nsai_decode_sizes *s, int32_t rows) {
  int64_t groups = attend_of(s)->threads / 32 / ceil_div(rows, NSAI_DECODE_ROWS);
  return groups * nsai_decode_stage_steps(&s->problem->model, rows);
}

/* As many parts as the device holds at once, shared out by keys; at least one of each branch. */
static void split_keys(const nsai_decode_sizes *s, int64_t selected, int64_t window,
                       nsai_decode_split *out) {
  const nsai_model *m = &s->problem->model;
  const int32_t rows = nsai_decode_scan_rows(s->problem, s->scan);
  const int32_t list_rows = unites_lists(s->problem) ? rows : nsai_padded_group(m);
  int64_t items = unites_lists(s->problem) ? out->tiles : larger(s->tokens, 1);
  int64_t lists = items * m->kv_heads, tiles = out->tiles * m->kv_heads;
  int64_t room = room_for(attend_of(s), s->sms), all = selected * lists + window * tiles;
  int64_t of_selected = (room * selected * 2 + all) / (all * 2);
  if (window) of_selected = smaller(of_selected, (room - tiles) / lists);
  out->selected_splits = attend_splits(selected, of_selected, least_steps(s, list_rows));
  int64_t of_window = smaller((room - out->selected_splits * lists) / tiles, room / lists);
  out->window_splits = attend_splits(window, of_window, least_steps(s, rows));
  out->attend_items = items * out->selected_splits + out->tiles * out->window_splits;
}

/* Blocks of threads that have both: as many of them take the window as would each take as much of it as all
 * take of the blocks, where a tile's tokens choose alike. */
static void split_together(const nsai_decode_sizes *s, int64_t selected, int64_t window,
                           nsai_decode_split *out) {
  int64_t items = out->tiles * s->problem->model.kv_heads,
          alike = selected / tile_tokens(s->problem, s->scan);
  int64_t longest = LONGEST_ATTEND * larger(tile_tokens(s->problem, s->scan) / 2, 1);
  int64_t parts =
      larger(room_for(attend_of(s), s->sms) / items, ceil_div(selected + window, longest));
  parts = larger(smaller(parts, (selected + window) / SHORTEST_ATTEND), 1);
  if (window) out->window_splits = (int32_t)ceil_div(parts * window, window + alike);
  if (selected) out->selected_splits = (int32_t)parts;
  out->attend_items = out->tiles * larger(out->selected_splits, out->window_splits);
}

static void split_attend(const nsai_decode_sizes *s, nsai_decode_split *out) {
  int64_t selected = s->branches >> NSA_SEL & 1 ? selected_steps(s->problem, s->scan) : 0;
  int64_t window = s->branches >> NSA_WIN & 1 ? window_steps(&s->problem->model) : 0;
  if (!selected && !window) return;
  if (tile_tokens(s->problem, s->scan) > 1 && unites_lists(s->problem) &&
      s->problem->model.select_count)
    split_together(s, selected, window, out);
  else
    split_keys(s, selected, window, out);
}

/* As many as all rows find room for at once. */
static int32_t row_warps(const nsai_decode_sizes *s) {
  int64_t rows = s->tokens * s->problem->model.heads, room = (int64_t)s->sms * COMBINE_WARPS_PER_SM;
  int32_t warps = MOST_ROW_WARPS;
  room *= nsai_decode_warp_rows(&s->problem->model);
  while (warps > 1 && rows * warps > room) warps /= 2;
  return warps;
}

const nsai_kernel_spec *nsai_decode_scan_spec(const nsai_kernel_spec specs[NSAI_ROLES]) {
  const nsai_kernel_spec *scan = &specs[NSAI_KERNEL_DECODE_SCAN];
  return scan->entry ? scan : &specs[NSAI_KERNEL_DECODE_TWO_PER_SM];
}

const nsai_kernel_spec *nsai_decode_attend_spec(const nsai_kernel_spec specs[NSAI_ROLES]) {
  const nsai_kernel_spec *attend = &specs[NSAI_KERNEL_DECODE_ATTEND];
  return attend->entry ? attend : NULL;
}

static int64_t known_sms(int32_t sms) { return sms > 0 ? sms : USUAL_SMS; }

/* No unit can take much longer than all others together. */
static bool is_even(const nsai_problem *p) {
  return nsai_block_count(&p->model, p->max_kv_len) <= LONGEST_TWO_PER_SM;
}

int64_t nsai_decode_raw_keys(const nsai_problem *p) {
  int64_t chosen = (int64_t)p->model.select_count * p->model.select_block;
  return smaller(p->model.window, p->max_kv_len) + smaller(chosen, p->max_kv_len);
}

bool nsai_decode_leaves_half(int32_t sms, int64_t items) { return items * 2 <= known_sms(sms); }

bool nsai_decode_reaches_two_per_sm(const nsai_problem *p, int32_t sms, int64_t items) {
  return items > known_sms(sms) && is_even(p);
}

static bool pairs_suffice(const nsai_problem *p, int32_t sms, int64_t items) {
  bool is_short = nsai_block_count(&p->model, p->max_kv_len) <= LONGEST_SHORT;
  return is_short ? items * 7 <= known_sms(sms) * 3 : nsai_decode_leaves_half(sms, items);
}

bool nsai_decode_reaches_one_per_sm(const nsai_problem *p, int32_t sms, int64_t items,
                                    bool pipelined) {
  bool enough = pipelined ? !pairs_suffice(p, sms, items)
                          : items * 5 >= known_sms(sms) * FEWEST_ONE_PER_SM_FIFTHS;
  return enough && is_even(p);
}

bool nsai_decode_reaches_cluster_2(const nsai_problem *p, int32_t sms, int64_t items) {
  bool is_long = nsai_block_count(&p->model, p->max_kv_len) > LONGEST_CLUSTER_2;
  return items * 5 >= known_sms(sms) * (is_long ? FEWEST_LONG_FIFTHS : FEWEST_CLUSTER_2_FIFTHS) &&
         is_even(p);
}

bool nsai_decode_reaches_cluster_4(const nsai_problem *p, int32_t sms, int64_t items) {
  bool many = nsai_decode_raw_keys(p) > MOST_CLUSTER_4_RAW_KEYS;
  int32_t part = many ? FEWEST_RAW_CLUSTER_4_PART : FEWEST_CLUSTER_4_PART;
  return items * part >= known_sms(sms) && is_even(p);
}

bool nsai_decode_suits_cluster_4(const nsai_problem *p, int32_t sms, int64_t items) {
  bool run_at_once = items * 44 <= known_sms(sms) * 10; /* 30 clusters on 132 */
  return nsai_decode_reaches_cluster_4(p, sms, items) && run_at_once;
}

bool nsai_decode_suits_cluster_2(const nsai_problem *p, int32_t sms, int64_t items) {
  return nsai_decode_reaches_cluster_2(p, sms, items) && pairs_suffice(p, sms, items);
}

bool nsai_decode_suits_one_per_sm(const nsai_problem *p, int32_t sms, int64_t items,
                                  bool pipelined) {
  return nsai_decode_reaches_one_per_sm(p, sms, items, pipelined) && items <= known_sms(sms);
}

bool nsai_decode_suits_two_per_sm(const nsai_problem *p, int32_t sms, int64_t items) {
  int64_t room = known_sms(sms) * BLOCKS_PER_SM, rest = items % room;
  int64_t took = items - rest + (rest ? larger(rest, room * 9 / 16) : 0);
  return nsai_decode_reaches_two_per_sm(p, sms, items) && took * 8 <= items * 9;
}

static nsai_role single_kernel(const nsai_decode_sizes *s, int64_t items) {
  if (s->cluster_4 && nsai_decode_suits_cluster_4(s->problem, s->sms, items))
    return NSAI_KERNEL_DECODE_CLUSTER_4;
  if (s->cluster_2 && nsai_decode_suits_cluster_2(s->problem, s->sms, items))
    return NSAI_KERNEL_DECODE_CLUSTER_2;
  if (s->one_per_sm && nsai_decode_suits_one_per_sm(s->problem, s->sms, items, s->cluster_2))
    return NSAI_KERNEL_DECODE_ONE_PER_SM;
  if (s->two_per_sm && nsai_decode_suits_two_per_sm(s->problem, s->sms, items))
    return NSAI_KERNEL_DECODE_TWO_PER_SM;
  return s->split_kv ? NSAI_ROLES : NSAI_KERNEL_DECODE_TWO_PER_SM;
}

nsai_decode_split nsai_decode_split_make(const nsai_decode_sizes *s) {
  const nsai_problem *p = s->problem;
  nsai_decode_split out = { 0 };
  count_tiles(s, &out);
  int64_t items = larger(out.tiles * p->model.kv_heads, 1),
          granularity = nsai_decode_split_granularity(&p->model);
  int64_t room = room_for(s->scan, s->sms), groups = nsai_decode_scan_groups(p, s->scan);
  int64_t quanta = larger(ceil_div(nsai_block_count(&p->model, p->max_kv_len), granularity), 1);
  out.single = single_kernel(s, items);
  if (out.single != NSAI_ROLES) {
    out.scan_splits = out.scan_least = 1;
    return out;
  }
  bool full = items * even_splits(p) >= room;
  int64_t parts = larger(room / items, even_splits(p));
  out.scan_splits = (int32_t)smaller(parts, ceil_div(quanta, groups));
  out.scan_least = (int32_t)(full ? larger(SHORTEST_SCAN / (granularity * groups), 1) : 1);
  out.row_warps = row_warps(s);
  split_attend(s, &out);
  return out;
}

static nsai_role form_of(const nsai_problem *p, const nsai_kernel_spec specs[NSAI_ROLES],
                         int32_t sms, int32_t seqs) {
  nsai_decode_sizes sizes = { .problem = p,
                              .scan = nsai_decode_scan_spec(specs),
                              .split_kv = specs[NSAI_KERNEL_DECODE_SCAN].entry,
                              .two_per_sm = specs[NSAI_KERNEL_DECODE_TWO_PER_SM].entry,
                              .one_per_sm = specs[NSAI_KERNEL_DECODE_ONE_PER_SM].entry,
                              .cluster_2 = specs[NSAI_KERNEL_DECODE_CLUSTER_2].entry,
                              .cluster_4 = specs[NSAI_KERNEL_DECODE_CLUSTER_4].entry,
                              .sms = sms,
                              .tokens = seqs,
                              .num_seqs = seqs };
  return nsai_decode_split_make(&sizes).single;
}

void nsai_decode_write_forms(const nsai_problem *p, const nsai_kernel_spec specs[NSAI_ROLES],
                             int32_t sms, nsai_writer *text) {
  int32_t most = (int32_t)smaller(p->max_seqs, p->max_tokens), forms = 0;
  bool single =
      specs[NSAI_KERNEL_DECODE_TWO_PER_SM].entry || specs[NSAI_KERNEL_DECODE_ONE_PER_SM].entry ||
      specs[NSAI_KERNEL_DECODE_CLUSTER_2].entry || specs[NSAI_KERNEL_DECODE_CLUSTER_4].entry;
  if (!specs[NSAI_KERNEL_DECODE_SCAN].entry || !single) return;
  nsai_write(text, "  steps of one token:");
  for (int32_t seqs = 1, end; seqs <= most; seqs = end + 1) {
    nsai_role form = form_of(p, specs, sms, seqs);
    for (end = seqs; end < most && form_of(p, specs, sms, end + 1) == form;) end++;
    nsai_write(text, "%s %d", forms ? "," : "", seqs);
    if (end > seqs) nsai_write(text, " to %d", end);
    if (!forms++) nsai_write(text, most > 1 ? " sequences" : " sequence");
    nsai_write(text, " by %s", form == NSAI_ROLES ? "decode_split_kv" : specs[form].entry);
    if (form == NSAI_ROLES) continue;
    nsai_write(text, " of ");
    if (specs[form].cluster > 1) nsai_write(text, "%d x ", specs[form].cluster);
    nsai_write(text, "%d threads", specs[form].threads);
  }
  nsai_write(text, "\n");
}

nsai_decode_most nsai_decode_most_of(const nsai_problem *p, const nsai_kernel_spec *scan,
                                     const nsai_kernel_spec *attend, int32_t sms) {
  const nsai_model *m = &p->model;
  int64_t room = room_for(scan, sms), attends = room_for(attend ? attend : scan, sms);
  int64_t tiles = smaller(p->max_seqs * ceil_div(p->max_q_len, scan->tile_tokens),
                          packed_tiles(p->max_tokens, p->max_seqs, scan->tile_tokens));
  int64_t items = p->max_tokens * m->kv_heads;
  int64_t steps = selected_steps(p, scan) + window_steps(m);
  return (nsai_decode_most){ .tiles = tiles,
                             .scan_results = larger(room, tiles * m->kv_heads * even_splits(p)),
                             /* Parts of either branch round up; a tile's are all its tokens'. */
                             .attend_results = 2 * attends * tile_tokens(p, scan) +
                                               items * (2 + ceil_div(steps, LONGEST_ATTEND)) };
}
