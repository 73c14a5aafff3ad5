/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * How a decode step falls into CTAs. Few sequences are cut into as many parts as the device
 * holds at once; many into parts that are long beside what each costs: its partial result is
 * written and read again, 1/16 of 256 keys' bytes.
 */
#include "variants/decode/split.h"

#include "base/math.h"

#include <string.h>

/* CTAs of decode_split_kv_compressed and decode_split_kv_attend that a multiprocessor holds, but
 * of more than 256 threads. */
#define CTAS_PER_SM 2
#define PAIRED_THREADS 256

/* Sequences of different lengths share the device evenly when none is longer than this many
 * compressed keys in one piece; but few parts of a sequence are ever empty. (A guess.) */
#define LONGEST_SCAN 2048
#define MOST_EVEN_SPLITS 16

/* Fewest compressed keys of a part where there are blocks enough without. */
#define SHORTEST_SCAN 256

/* Most steps of 16 keys of a part of decode_split_kv_attend, where windows are long: 2048 keys. */
#define LONGEST_ATTEND 128

/* Of a tile of several tokens: steps of a part for which another part's result is worth its
 * cost; and that parts may be as many times as long as half its tokens, since they are of many
 * rows. (Guesses.) */
#define SHORTEST_ATTEND 8

/* Warps of decode_split_kv_combine for a row, and how many warps of it a multiprocessor holds. */
#define MOST_ROW_WARPS 8
#define COMBINE_WARPS_PER_SM 16

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
  int64_t quanta = nsai_ceil_div(nsai_block_count(&p->model, p->max_kv_len), granularity);
  return nsai_ceil_div(quanta, warps) * (granularity / (p->model.select_block / p->model.stride));
}

int64_t nsai_decode_pooled_blocks(const nsai_problem *p) { return nsai_decode_run_blocks(p, 1); }

int64_t nsai_decode_pooled_bytes(const nsai_problem *p, int64_t tiles, int64_t rows) {
  const bool selects = p->model.select_count && p->selection == NSA_SELECT_TOPN;
  if (!selects) return 0;
  return NSAI_PRODUCT(tiles, p->model.kv_heads, nsai_decode_pooled_blocks(p), rows, 4);
}

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
  return nsai_smaller(nsai_larger(nsai_ceil_div(keys, LONGEST_SCAN), 1), MOST_EVEN_SPLITS);
}

/* CTAs of a kernel that the device holds at once. */
static int64_t room_for(const nsai_kernel_spec *spec, int32_t sms) {
  int64_t ctas = spec->threads > PAIRED_THREADS ? 1 : CTAS_PER_SM;
  for (int i = 0; i < spec->constant_count; i++)
    if (!strcmp(spec->constants[i].name, "kMinBlocks"))
      ctas = nsai_larger(ctas, spec->constants[i].value);
  return sms * ctas;
}

/* A tile's tokens attend to all their blocks together; but each to its ranges. */
static bool unites_lists(const nsai_problem *p) { return p->selection != NSA_SELECT_RANGES; }

/* New tokens of a tile that a sequence can have. */
static int64_t tile_tokens(const nsai_problem *p, const nsai_kernel_spec *scan) {
  return nsai_smaller(scan->tile_tokens, p->max_q_len);
}

/* Steps that a list has at most, or a tile's window; of a caller's ranges, which may be longer
 * than so many blocks, a guess: parts take whatever there is in equal shares. */
static int64_t selected_steps(const nsai_problem *p, const nsai_kernel_spec *scan) {
  int64_t keys = (int64_t)p->model.select_count * p->model.select_block;
  return nsai_ceil_div(keys * (unites_lists(p) ? tile_tokens(p, scan) : 1), NSAI_DECODE_STEP);
}
static int64_t window_steps(const nsai_model *m) {
  return nsai_ceil_div(m->window, NSAI_DECODE_STEP);
}

/* Parts of `steps`: as many as wanted, or as have `least` of them; none without keys. */
static int32_t attend_splits(int64_t steps, int64_t wanted, int64_t least) {
  if (!steps) return 0;
  int64_t parts = nsai_larger(nsai_larger(wanted, 1), nsai_ceil_div(steps, LONGEST_ATTEND));
  int64_t each = nsai_ceil_div(steps, parts * least);
  return (int32_t)nsai_ceil_div(steps, each * least);
}

static const nsai_kernel_spec *attend_of(const nsai_decode_sizes *s) {
  return s->attend ? s->attend : s->scan;
}

/* Steps of a part of decode_split_kv_attend that has a stage for every consumer group, of `rows`
 * rows. */
static int64_t least_steps(const nsai_decode_sizes *s, int32_t rows) {
  int64_t groups = attend_of(s)->threads / 32 / nsai_ceil_div(rows, NSAI_DECODE_ROWS);
  return groups * nsai_decode_stage_steps(&s->problem->model, rows);
}

/* As many parts as the device holds at once, shared out by keys; at least one of each branch. */
static void split_keys(const nsai_decode_sizes *s, int64_t selected, int64_t window,
                       nsai_decode_split *out) {
  const nsai_model *m = &s->problem->model;
  const int32_t rows = nsai_decode_scan_rows(s->problem, s->scan);
  const int32_t list_rows = unites_lists(s->problem) ? rows : nsai_padded_group(m);
  int64_t items = unites_lists(s->problem) ? out->tiles : nsai_larger(s->step.tokens, 1);
  int64_t lists = items * m->kv_heads, tiles = out->tiles * m->kv_heads;
  int64_t room = room_for(attend_of(s), s->sms), all = selected * lists + window * tiles;
  int64_t of_selected = (room * selected * 2 + all) / (all * 2);
  if (window) of_selected = nsai_smaller(of_selected, (room - tiles) / lists);
  out->selected_splits = attend_splits(selected, of_selected, least_steps(s, list_rows));
  int64_t of_window = nsai_smaller((room - out->selected_splits * lists) / tiles, room / lists);
  out->window_splits = attend_splits(window, of_window, least_steps(s, rows));
  out->attend_items = items * out->selected_splits + out->tiles * out->window_splits;
}

/* CTAs that have both: as many of them take the window as would each take as much of it as all
 * take of the blocks, where a tile's tokens choose alike. */
static void split_together(const nsai_decode_sizes *s, int64_t selected, int64_t window,
                           nsai_decode_split *out) {
  int64_t items = out->tiles * s->problem->model.kv_heads,
          alike = selected / tile_tokens(s->problem, s->scan);
  int64_t longest = LONGEST_ATTEND * nsai_larger(tile_tokens(s->problem, s->scan) / 2, 1);
  int64_t parts = nsai_larger(room_for(attend_of(s), s->sms) / items,
                              nsai_ceil_div(selected + window, longest));
  parts = nsai_larger(nsai_smaller(parts, (selected + window) / SHORTEST_ATTEND), 1);
  if (window) out->window_splits = (int32_t)nsai_ceil_div(parts * window, window + alike);
  if (selected) out->selected_splits = (int32_t)parts;
  out->attend_items = out->tiles * nsai_larger(out->selected_splits, out->window_splits);
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
  int64_t rows = s->step.tokens * s->problem->model.heads,
          room = (int64_t)s->sms * COMBINE_WARPS_PER_SM;
  int32_t warps = MOST_ROW_WARPS;
  room *= nsai_decode_warp_rows(&s->problem->model);
  while (warps > 1 && rows * warps > room) warps /= 2;
  return warps;
}

nsai_decode_split nsai_decode_split_make(const nsai_decode_sizes *s) {
  const nsai_problem *p = s->problem;
  nsai_decode_split out = { 0 };
  const nsai_step_tiles cover = nsai_step_tiles_of(p, &s->step, s->scan->tile_tokens);
  out.tiles = cover.tiles;
  out.seq_tiles = cover.seq_tiles;
  int64_t items = nsai_larger(out.tiles * p->model.kv_heads, 1),
          granularity = nsai_decode_split_granularity(&p->model);
  int64_t room = room_for(s->scan, s->sms), groups = nsai_decode_scan_groups(p, s->scan);
  int64_t quanta =
      nsai_larger(nsai_ceil_div(nsai_block_count(&p->model, p->max_kv_len), granularity), 1);
  bool full = items * even_splits(p) >= room;
  int64_t parts = nsai_larger(room / items, even_splits(p));
  out.scan_splits = (int32_t)nsai_smaller(parts, nsai_ceil_div(quanta, groups));
  out.scan_least = (int32_t)(full ? nsai_larger(SHORTEST_SCAN / (granularity * groups), 1) : 1);
  out.row_warps = row_warps(s);
  split_attend(s, &out);
  return out;
}

nsai_decode_most nsai_decode_most_of(const nsai_problem *p, const nsai_kernel_spec *scan,
                                     const nsai_kernel_spec *attend, int32_t sms) {
  const nsai_model *m = &p->model;
  int64_t room = room_for(scan, sms), attends = room_for(attend ? attend : scan, sms);
  int64_t tiles = nsai_most_step_tiles(p, scan->tile_tokens);
  int64_t items = p->max_tokens * m->kv_heads;
  int64_t steps = selected_steps(p, scan) + window_steps(m);
  return (nsai_decode_most){
    .tiles = tiles,
    .scan_results = nsai_larger(room, NSAI_PRODUCT(tiles, m->kv_heads, even_splits(p))),
    /* Parts of either branch round up; a tile's are all its tokens'. */
    .attend_results = nsai_size_add(NSAI_PRODUCT(2, attends, tile_tokens(p, scan)),
                                    NSAI_PRODUCT(items, 2 + nsai_ceil_div(steps, LONGEST_ATTEND)))
  };
}
