/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Variants of the stage decode: the chain of kernels, decode_split_kv, and decode_single_cta. decode_cluster and
 * decode_pipelined have files of their own.
 */
#include "plan/spec.h"

#include "variants/decode/decode.h"
#include "variants/select/importance.h"
#include "variants/select/sort.h"

#include <math.h>
#include <string.h>

#define PANEL_ROWS 64       /* of a warpgroup: what one wgmma takes */
#define SELECT_THREADS 192  /* six warps search 171 of a 64k context's 1024 blocks each */
#define COMBINE_THREADS 256 /* what decode_split_kv_combine asserts */

/* Products of a warpgroup. */
static bool has_wgmma(const nsai_target *t) { return !strcmp(t->arch, "sm_90a"); }

/* What takes few registers of decode_split_kv_compressed: rows of a lane are one token's, stages begin and end on selection blocks,
 * and nothing is counted. */
static bool is_plain(const nsai_problem *p) {
  const nsai_model *m = &p->model;
  return !p->count_reads && nsai_padded_group(m) % NSAI_DECODE_ROWS == 0 &&
         NSAI_DECODE_STEP % (m->select_block / m->stride) == 0;
}

/* Whether four warpgroups of a multiprocessor hold all of it in 128 registers a thread: decode_split_kv_attend's stages begin
 * and end on selection blocks, too. (NVRTC 13.0.) */
static bool has_narrow_panels(const nsai_problem *p, const nsai_target *t) {
  const nsai_model *m = &p->model;
  return has_wgmma(t) && !t->register_fallback && m->head_dim_qk == 128 && m->head_dim_v == 128 &&
         is_plain(p) && m->select_block % (2 * NSAI_DECODE_STEP) == 0;
}

/* Rows of decode_split_kv_compressed's tile: all heads of as many drafts as fit 64 rows, or 128 of two warpgroups. Of wide heads
 * 32, so that two warps hold them: two stages of four fit no block of 99 KB. A warpgroup takes 64, whoever is
 * there of more than a warp's. With caution wide heads have a warp's 16, whose tokens each attend alone: those of
 * many take all registers. */
static int32_t scan_rows(const nsai_problem *p, const nsai_target *t) {
  bool wide = nsai_decode_has_wide_heads(&p->model);
  bool pairs = has_narrow_panels(p, t) && p->selection != NSA_SELECT_RANGES;
  int32_t rows = NSAI_DECODE_ROWS, group = nsai_padded_group(&p->model);
  int32_t most = (wide ? t->register_fallback ? 1 : 2 : pairs ? 8 : 4) * NSAI_DECODE_ROWS;
  while (rows < group || (rows < p->max_q_len * group && rows < most)) rows *= 2;
  return rows == 2 * NSAI_DECODE_ROWS && has_wgmma(t) && !wide ? PANEL_ROWS : rows;
}

static int32_t attend_rows(const nsai_problem *p) {
  int32_t group = nsai_padded_group(&p->model);
  return group < NSAI_DECODE_ROWS ? NSAI_DECODE_ROWS : group;
}

/* kSharedQ of decode/consumer_groups.cuh: O leaves a thread no registers for Q. */
static bool has_shared_q(const nsai_model *m) { return nsai_row_registers(m) > 144; }

/* kDrafts of decode/consumer_groups.cuh: a team takes two steps at once, with Q in shared memory. */
static bool has_drafts(const nsai_model *m, int32_t rows) {
  return nsai_decode_stage_steps(m, rows) > 1;
}

static uint32_t greater(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* kPanels of decode/consumer_groups.cuh. */
static bool has_panels(const nsai_model *m, const nsai_target *t, int32_t rows) {
  return has_wgmma(t) && has_drafts(m, rows) && rows % PANEL_ROWS == 0;
}

/* Rows in shared memory, as tiles or as panels of 64 columns. */
static uint32_t rows_bytes(int32_t rows, int32_t dim, bool panels) {
  return panels ? nsai_panel_bytes(rows, dim) : nsai_tile_bytes(rows, dim);
}

/* Bytes of KeyStream::Shared: Q and the rings of all teams or, in the same memory, their O and
 * stats. */
static uint32_t stream_shared(const nsai_model *m, const nsai_target *t, int32_t rows,
                              const nsai_tiles *s) {
  const bool panels = has_panels(m, t, rows);
  uint32_t groups = (uint32_t)(s->of[NSAI_TILE_WARPS] / (rows / NSAI_DECODE_ROWS));
  int32_t keys = NSAI_DECODE_STEP * (has_drafts(m, rows) ? 2 : 1); /* of a stage */
  uint32_t stage =
      rows_bytes(keys, m->head_dim_qk, panels) + rows_bytes(keys, m->head_dim_v, panels);
  uint32_t ring = groups * (uint32_t)s->of[NSAI_TILE_STAGES] * stage;
  if (has_shared_q(m) || has_drafts(m, rows)) ring += rows_bytes(rows, m->head_dim_qk, panels);
  uint32_t o = groups * (uint32_t)rows * ((uint32_t)(nsai_padded_dim(m->head_dim_v) + 8) * 4 + 8);
  return greater(ring, o);
}

/* Of `warps`, of each 16 rows of a stage's keys and 4 floats, but where blocks are pooled in registers: ScanPool
 * of decode/compressed_scan.cuh. */
static uint32_t pool_shared(const nsai_model *m, int32_t keys, int32_t warps) {
  const bool quads = m->select_block / m->stride == 4 && m->block / m->stride <= 2;
  return quads ? 0 : (uint32_t)(warps * 16 * (keys + 4) * 4);
}

static uint32_t scan_shared(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  const int32_t keys = NSAI_DECODE_STEP * (has_drafts(&p->model, scan_rows(p, t)) ? 2 : 1);
  return stream_shared(&p->model, t, scan_rows(p, t), s) +
         pool_shared(&p->model, keys, s->of[NSAI_TILE_WARPS]);
}

/* New tokens of a tile that a sequence can have. */
static uint32_t tile_tokens(const nsai_problem *p, const nsai_target *t) {
  int32_t tokens = scan_rows(p, t) / nsai_padded_group(&p->model);
  return (uint32_t)(tokens < p->max_q_len ? tokens : p->max_q_len);
}

/* The blocks of a tile's tokens: MergedListStorage of decode/merged_keys.cuh. */
static uint32_t selected_shared(uint32_t tokens, uint32_t count) {
  return tokens * (count * 8 + (count + 31) / 32 * 4 + 4);
}

/* And these, or two ints of every range of a token and of their end. */
static uint32_t attend_shared(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  const uint32_t count = p->model.select_count ? (uint32_t)p->model.select_count : 1;
  const uint32_t tokens = tile_tokens(p, t);
  uint32_t tile = stream_shared(&p->model, t, scan_rows(p, t), s);
  if (p->selection == NSA_SELECT_RANGES)
    return greater(tile, stream_shared(&p->model, t, attend_rows(p), s)) + 8 * (count + 1);
  return (greater(tile, tokens * count * 4) + selected_shared(tokens, count) + 7) / 8 * 8;
}

static int32_t most_rows(const nsai_problem *p, const nsai_target *t) {
  return scan_rows(p, t) > attend_rows(p) ? scan_rows(p, t) : attend_rows(p);
}

static uint32_t decode_shared(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  return greater(scan_shared(p, t, s), attend_shared(p, t, s));
}

void nsai_legal_decode_split_kv(const nsai_problem *p, const nsai_target *t,
                                nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

/* Registers of a thread: O and Q of an m16 tile, scores, and what else the loop holds. (189 at D 128,
 * NVRTC 13.0.) */
static int32_t decode_registers(const nsai_model *m) {
  if (has_shared_q(m)) return nsai_padded_dim(m->head_dim_v) / 2 + 100;
  return nsai_row_registers(m) + 96;
}

static nsai_tiles decode_tiles(int32_t warps, int32_t stages, int32_t blocks) {
  return (nsai_tiles){
    { [NSAI_TILE_WARPS] = warps, [NSAI_TILE_STAGES] = stages, [NSAI_TILE_CTAS] = blocks }
  };
}

/* Two blocks of four warps, of drafts three, of 128 rows two of eight warps, and as many stages as their shared memory
 * holds, four at most; else fewer blocks; else one of fewer warps. */
static nsai_tiles choose_decode(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  *by = NSAI_BY_DEFAULT;
  int32_t wanted = t->register_fallback || decode_registers(&p->model) > 224 ? 1 : 2;
  int32_t least = most_rows(p, t) / NSAI_DECODE_ROWS, warps = least > 4 ? 8 : 4;
  /* Registers: warps that do mma.sync, and those of a token's ranges, leave none for a third. */
  if (wanted == 2 && warps == 4 && has_panels(&p->model, t, scan_rows(p, t)) &&
      p->selection != NSA_SELECT_RANGES)
    wanted = 3;
  for (int32_t blocks = wanted; blocks >= 1; blocks--)
    for (int32_t stages = 4; stages >= 2; stages--) {
      nsai_tiles tiles = decode_tiles(warps, stages, blocks);
      if (nsai_holds_blocks(t, decode_shared(p, t, &tiles), blocks)) return tiles;
    }
  return decode_tiles(least < 2 ? 2 : least, 2, 1);
}

static void fit_decode(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                       nsai_reasons *reasons) {
  int32_t rows = most_rows(p, t);
  uint32_t bytes = decode_shared(p, t, s);
  if (s->of[NSAI_TILE_WARPS] < rows / NSAI_DECODE_ROWS)
    nsai_refuse(reasons, "%d warps do not hold %d rows", s->of[NSAI_TILE_WARPS], rows);
  nsai_fit_block(t, bytes, reasons);
  nsai_fit_threads(s, reasons);
}

/* Bound by memory: what matters are bytes on their way. */
static double cost_decode(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  int32_t warps = s->of[NSAI_TILE_WARPS], blocks = s->of[NSAI_TILE_CTAS];
  if (decode_registers(&p->model) > nsai_register_limit(32 * warps * blocks) ||
      !nsai_holds_blocks(t, decode_shared(p, t, s), blocks))
    return INFINITY;
  return 1 + 4.0 / (warps * blocks * (s->of[NSAI_TILE_STAGES] - 1));
}

const nsai_space nsai_space_decode_split_kv = {
  3,
  { { NSAI_TILE_WARPS,
      { 4, 8 },
      "each streams keys of its own, or shares them with its rows' team" },
    { NSAI_TILE_STAGES, { 2, 3, 4, 6 }, "bytes on their way against shared memory" },
    { NSAI_TILE_CTAS, { 1, 2, 3 }, "others fill the waits of one; registers are divided" } },
  choose_decode,
  fit_decode,
  cost_decode,
};

/* The constants that the kernels of the chain agree on: decode/work.cuh. kWarps, which says how runs fall, is
 * decode_split_kv_compressed's and decode_split_kv_select's together; the others have their own. */
static void add_decode(nsai_kernel_spec *spec, const nsai_problem *p, const nsai_target *t,
                       const nsai_tiles *s) {
  const nsai_model *m = &p->model;
  nsai_group_add(spec, p);
  nsai_constant_add(spec, "kBlock", m->block);
  nsai_constant_add(spec, "kStride", m->stride);
  nsai_constant_add(spec, "kSelectBlock", m->select_block);
  nsai_constant_add(spec, "kScanRows", scan_rows(p, t));
  nsai_constant_add(spec, "kWarps", s->of[NSAI_TILE_WARPS]);
}

static void specify_stream(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                           nsai_kernel_spec *spec) {
  spec->dtype = p->model.dtype;
  spec->threads = 32 * s->of[NSAI_TILE_WARPS];
  add_decode(spec, p, t, s);
  nsai_constant_add(spec, "kHeadDimQk", p->model.head_dim_qk);
  nsai_constant_add(spec, "kHeadDimV", p->model.head_dim_v);
  nsai_constant_add(spec, "kPageSize", p->page_size);
  nsai_constant_add(spec, "kStages", s->of[NSAI_TILE_STAGES]);
  nsai_constant_add(spec, "kMinBlocks", s->of[NSAI_TILE_CTAS]);
  nsai_constant_add(spec, "kWgmma", has_wgmma(t));
  nsai_constant_add(spec, "kCountReads", p->count_reads);
}

static void specify_select(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                           nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = "decode_split_kv_select",
                              .dtype = p->model.dtype,
                              .threads = SELECT_THREADS };
  add_decode(spec, p, t, s);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kSelectInit", p->model.select_init);
  nsai_constant_add(spec, "kSelectLocal", p->model.select_local);
  /* All tokens of a batch at once, as far as registers go: the best of more blocks take more. */
  nsai_constant_add(spec, "kMinBlocks", p->model.select_count > 64 ? 2 : 4);
}

/* ---- decode_single_cta ---- */

/* What its search keeps of all blocks, and for each warp: decode/topn_token.cuh. */
#define SEARCH_KEPT 4096
#define SEARCH_QUEUE 159

/* Whether a thread has the registers: at Dk 192 and Dv 128 O and Q take 112, and the rest spills. (NVRTC 13.0.) */
static bool has_single_cta_registers(const nsai_problem *p) {
  return nsai_row_registers(&p->model) <= 96;
}

static uint32_t round16(uint32_t bytes) { return (bytes + 15) / 16 * 16; }

/* The larger stream's or the search's, rows that pool or blocks, and of every row the sum, its gates and
 * lse. */
static uint32_t single_cta_shared(const nsai_problem *p, const nsai_target *t,
                                  const nsai_tiles *s) {
  const nsai_model *m = &p->model;
  uint32_t rows = (uint32_t)scan_rows(p, t), warps = (uint32_t)s->of[NSAI_TILE_WARPS];
  uint32_t streams =
      greater(stream_shared(m, t, scan_rows(p, t), s), stream_shared(m, t, attend_rows(p), s));
  uint32_t free = (uint32_t)nsai_free_blocks(m);
  uint32_t search = m->select_count
                        ? SEARCH_KEPT * 4 + warps * (SEARCH_QUEUE * 8 + (33 + greater(free, 1)) * 4)
                        : 0;
  uint32_t pool = pool_shared(m, NSAI_DECODE_STEP, s->of[NSAI_TILE_WARPS]);
  uint32_t count = (uint32_t)(m->select_count ? m->select_count : 1);
  uint32_t blocks = selected_shared(tile_tokens(p, t), count);
  return round16(greater(streams, search)) + round16(greater(pool, blocks)) +
         rows * ((uint32_t)m->head_dim_v + 4) * 4;
}

/* As many stages as the shared memory of so many blocks holds; none where it does not hold two. */
static nsai_tiles single_cta_tiles(const nsai_problem *p, const nsai_target *t, int32_t warps,
                                   int32_t blocks) {
  for (int32_t stages = 4; stages >= 2; stages--) {
    nsai_tiles tiles = decode_tiles(warps, stages, blocks);
    uint32_t bytes = single_cta_shared(p, t, &tiles);
    if (bytes <= t->shared_bytes && nsai_holds_blocks(t, bytes, blocks)) return tiles;
  }
  return decode_tiles(0, 0, 0);
}

/* Two blocks of four warps for units that fill the device so, a block of eight for fewer. */
static nsai_tiles two_per_sm_tiles(const nsai_problem *p, const nsai_target *t) {
  return single_cta_tiles(p, t, 4, 2);
}
static nsai_tiles one_per_sm_tiles(const nsai_problem *p, const nsai_target *t) {
  return single_cta_tiles(p, t, 8, 1);
}

/* Lists are the library's own, and nobody asks for importance. */
static bool selects_alone(const nsai_problem *p) {
  return p->selection == NSA_SELECT_OWN && !p->max_probe_rows;
}

void nsai_legal_decode_single_cta(const nsai_problem *p, const nsai_target *t,
                                  nsai_reasons *reasons) {
  const nsai_tiles least = decode_tiles(4, 2, 1);
  nsai_legal_common(p, reasons);
  if (!selects_alone(p))
    nsai_refuse(reasons,
                "problem.selection is a caller's or rows are probed: decode_split_kv does that");
  if (scan_rows(p, t) > NSAI_DECODE_ROWS)
    nsai_refuse(reasons, "%d new tokens of %d heads a group are more than the %d rows of a warp",
                p->max_q_len, p->model.heads / p->model.kv_heads, NSAI_DECODE_ROWS);
  if (!has_single_cta_registers(p))
    nsai_refuse(reasons, "O of Dv %d and Q of Dk %d leave a thread no registers",
                p->model.head_dim_v, p->model.head_dim_qk);
  nsai_fit_block(t, single_cta_shared(p, t, &least), reasons);
}

static int64_t most_items(const nsai_problem *p, const nsai_kernel_spec *scan, int32_t sms) {
  return nsai_decode_most_of(p, scan, NULL, sms).tiles * p->model.kv_heads;
}

static nsai_tiles choose_single_cta(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  const nsai_kernel_spec scan = { .tile_tokens = scan_rows(p, t) / nsai_padded_group(&p->model) };
  const nsai_tiles wide = one_per_sm_tiles(p, t), narrow = two_per_sm_tiles(p, t);
  *by = NSAI_BY_DEFAULT;
  if (wide.of[NSAI_TILE_CTAS] &&
      !nsai_decode_reaches_two_per_sm(p, t->sms, most_items(p, &scan, t->sms)))
    return wide;
  return narrow.of[NSAI_TILE_CTAS] ? narrow : decode_tiles(4, 2, 1);
}

static void fit_single_cta(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                           nsai_reasons *reasons) {
  uint32_t bytes = single_cta_shared(p, t, s);
  nsai_fit_block(t, bytes, reasons);
  nsai_fit_threads(s, reasons);
}

/* Blocks of 128 threads have the registers twice on a multiprocessor, of 256 once. */
static double cost_single_cta(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  int32_t warps = s->of[NSAI_TILE_WARPS], blocks = s->of[NSAI_TILE_CTAS];
  if (warps * blocks > 8 || !nsai_holds_blocks(t, single_cta_shared(p, t, s), blocks))
    return INFINITY;
  return 1 + 4.0 / (warps * blocks * (s->of[NSAI_TILE_STAGES] - 1));
}

const nsai_space nsai_space_decode_single_cta = {
  3,
  { { NSAI_TILE_WARPS,
      { 4, 8 },
      "each streams keys of its own; more for a unit, or more units at once" },
    { NSAI_TILE_STAGES, { 2, 3, 4, 6 }, "bytes on their way against shared memory" },
    { NSAI_TILE_CTAS, { 1, 2 }, "others stream while one searches; registers are divided" } },
  choose_single_cta,
  fit_single_cta,
  cost_single_cta,
};

static void specify_single_cta(const nsai_problem *p, const nsai_target *t, const nsai_tiles *tiles,
                               nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = "decode_single_cta",
                              .shared_bytes = single_cta_shared(p, t, tiles),
                              .tile_tokens = scan_rows(p, t) / nsai_padded_group(&p->model) };
  specify_stream(p, t, tiles, spec);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kSelectInit", p->model.select_init);
  nsai_constant_add(spec, "kSelectLocal", p->model.select_local);
  nsai_constant_add(spec, "kWindow", p->model.window);
  nsai_constant_add(spec, "kMaxQLen", p->max_q_len);
  nsai_constant_add(spec, "kRing", p->window_ring);
  nsai_gate_add(spec, p);
}

void nsai_specify_decode_single_cta(const nsai_problem *p, const nsai_target *t,
                                    const nsai_tiles *s, nsai_kernel_spec specs[NSAI_ROLES]) {
  specify_single_cta(p, t, s, &specs[NSAI_KERNEL_DECODE_TWO_PER_SM]);
}

/* Beside the chain what serves more units, where a run of the plan can have so many. */
static void specify_many(const nsai_problem *p, const nsai_target *t,
                         nsai_kernel_spec specs[NSAI_ROLES]) {
  const int64_t items = most_items(p, &specs[NSAI_KERNEL_DECODE_SCAN], t->sms);
  const nsai_tiles wide = one_per_sm_tiles(p, t), narrow = two_per_sm_tiles(p, t);
  if (t->register_fallback || !selects_alone(p) || scan_rows(p, t) > NSAI_DECODE_ROWS ||
      !has_single_cta_registers(p))
    return;
  nsai_kernel_spec pipelined = { 0 };
  const bool has_pipelined = nsai_specify_decode_pipelined(p, t, 8, 1, 1, &pipelined);
  const bool pairs =
      has_pipelined && nsai_decode_reaches_cluster_2(p, t->sms, items) &&
      nsai_specify_decode_pipelined(p, t, 8, 1, 2, &specs[NSAI_KERNEL_DECODE_CLUSTER_2]);
  if (has_pipelined && nsai_decode_reaches_cluster_4(p, t->sms, items))
    nsai_specify_decode_pipelined(p, t, 8, 1, 4, &specs[NSAI_KERNEL_DECODE_CLUSTER_4]);
  if (nsai_decode_reaches_one_per_sm(p, t->sms, items, pairs)) {
    if (has_pipelined)
      specs[NSAI_KERNEL_DECODE_ONE_PER_SM] = pipelined;
    else if (wide.of[NSAI_TILE_CTAS])
      specify_single_cta(p, t, &wide, &specs[NSAI_KERNEL_DECODE_ONE_PER_SM]);
  }
  if (nsai_decode_reaches_two_per_sm(p, t->sms, items) &&
      !nsai_specify_decode_pipelined(p, t, 4, 2, 1, &specs[NSAI_KERNEL_DECODE_TWO_PER_SM]) &&
      narrow.of[NSAI_TILE_CTAS])
    specify_single_cta(p, t, &narrow, &specs[NSAI_KERNEL_DECODE_TWO_PER_SM]);
}

/* ---- decode_split_kv ---- */

/* Whether a thread of decode_split_kv_compressed has the registers where two teams are a block of threads. Of more than 128 columns of
 * O some spill (64/160, 96/160, 32/192); where Q is short, of more than 96 (16/104, 48/112, 32/128). (NVRTC 13.0.) */
static bool has_group_registers(const nsai_problem *p) {
  const int32_t columns = nsai_padded_dim(p->model.head_dim_v);
  return columns <= 64 || (is_plain(p) && columns <= (p->model.head_dim_qk > 48 ? 128 : 96));
}

/* Two teams of a block of threads share Q, and so four fit a multiprocessor in the place of three blocks of one.
 * `shared`: what tiles take. (H200, 32 sequences of 64k, 4 new tokens, 16 heads a group, us of a step, decode_split_kv_compressed
 * alone so: D 32 131 -> 128, 64 162 -> 139, 96 191 -> 165, 128 227 -> 179.) */
static nsai_tiles two_groups(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                             uint32_t (*shared)(const nsai_problem *, const nsai_target *,
                                                const nsai_tiles *)) {
  if (!has_panels(&p->model, t, scan_rows(p, t)) || scan_rows(p, t) != PANEL_ROWS ||
      s->of[NSAI_TILE_WARPS] != 4 || s->of[NSAI_TILE_CTAS] != 3)
    return *s;
  for (int32_t stages = 3; stages >= 2; stages--) {
    const nsai_tiles two = decode_tiles(8, stages, 2);
    if (nsai_holds_blocks(t, shared(p, t, &two), 2)) return two;
  }
  return *s;
}

/* Two blocks of two teams as one of four, where the tiles of every step leave room for two of these: they share Q, and
 * half as many partial results are stored and added up. (H200, 4 new tokens of 4 and 16 sequences of 64k, 16 of 16k, us
 * of a step: 52.1 -> 47.9, 100.7 -> 97.1, 68.7 -> 65.7; 32 of 64k, which fill the device: 170 -> 186. 128 rows were not
 * timed where there is room.) */
static nsai_tiles four_groups(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                              uint32_t (*shared)(const nsai_problem *, const nsai_target *,
                                                 const nsai_tiles *)) {
  const nsai_kernel_spec scan = { .tile_tokens = scan_rows(p, t) / nsai_padded_group(&p->model) };
  if (!has_narrow_panels(p, t) || scan_rows(p, t) != PANEL_ROWS || s->of[NSAI_TILE_WARPS] != 8 ||
      s->of[NSAI_TILE_CTAS] != 2 || !nsai_decode_leaves_half(t->sms, most_items(p, &scan, t->sms)))
    return *s;
  for (int32_t stages = 4; stages >= 2; stages--) {
    const nsai_tiles four = decode_tiles(16, stages, 1);
    if (nsai_holds_blocks(t, shared(p, t, &four), 1)) return four;
  }
  return *s;
}

static nsai_tiles most_groups(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                              uint32_t (*shared)(const nsai_problem *, const nsai_target *,
                                                 const nsai_tiles *)) {
  const nsai_tiles two = two_groups(p, t, s, shared);
  return four_groups(p, t, &two, shared);
}

void nsai_specify_decode_split_kv(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                                  nsai_kernel_spec specs[NSAI_ROLES]) {
  const nsai_model *m = &p->model;
  bool selects = m->select_count && p->selection == NSA_SELECT_OWN;
  const nsai_tiles scans = has_group_registers(p) ? most_groups(p, t, s, scan_shared) : *s;
  nsai_kernel_spec *scan = &specs[NSAI_KERNEL_DECODE_SCAN];
  *scan = (nsai_kernel_spec){ .entry = "decode_split_kv_compressed",
                              .shared_bytes = scan_shared(p, t, &scans),
                              .tile_tokens = scan_rows(p, t) / nsai_padded_group(m) };
  specify_stream(p, t, &scans, scan);
  nsai_constant_add(scan, "kSelectCount", selects ? m->select_count : 0);
  if (selects) specify_select(p, t, &scans, &specs[NSAI_KERNEL_DECODE_SELECT]);
  if (p->selection != NSA_SELECT_OWN) nsai_sort_specify(p, &specs[NSAI_KERNEL_SORT]);
  if (p->max_probe_rows) nsai_probe_specify(p, t, &specs[NSAI_KERNEL_PROBE]);
  if (m->select_count || m->window) {
    nsai_kernel_spec *attend = &specs[NSAI_KERNEL_DECODE_ATTEND];
    /* Rows of one token take registers of their own. */
    const bool narrow = has_narrow_panels(p, t) && tile_tokens(p, t) > 1;
    const nsai_tiles attends = narrow ? most_groups(p, t, s, attend_shared) : *s;
    *attend = (nsai_kernel_spec){ .entry = "decode_split_kv_attend",
                                  .shared_bytes = attend_shared(p, t, &attends) };
    specify_stream(p, t, &attends, attend);
    nsai_constant_add(attend, "kSelectCount", m->select_count);
    nsai_constant_add(attend, "kRanges", p->selection == NSA_SELECT_RANGES);
    nsai_constant_add(attend, "kPooled", p->selection == NSA_SELECT_OWN);
    nsai_constant_add(attend, "kMaxQLen", p->max_q_len);
    nsai_constant_add(attend, "kWindow", m->window);
    nsai_constant_add(attend, "kRing", p->window_ring);
  }
  specify_many(p, t, specs);
  nsai_kernel_spec *combine = &specs[NSAI_KERNEL_DECODE_COMBINE];
  *combine = (nsai_kernel_spec){ .entry = "decode_split_kv_combine",
                                 .dtype = m->dtype,
                                 .threads = COMBINE_THREADS };
  add_decode(combine, p, t, s);
  nsai_constant_add(combine, "kHeadDimV", m->head_dim_v);
  nsai_gate_add(combine, p);
  nsai_constant_add(combine, "kRowLanes", 32 / nsai_decode_warp_rows(m));
  nsai_constant_add(combine, "kMinBlocks", has_wgmma(t) ? 4 : 3); /* registers */
}
