/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * decode_split_kv: a chain of launches. Keys are split over as many CTAs as the device holds;
 * partial results are combined. It serves every problem, and any number of items.
 *
 * Where blocks are ranked otherwise than by the sum of the compressed branch's own probabilities, the
 * kernels of a prefill rank them: select_normalizer, select_importance and select_topn take the place
 * of decode_split_kv_select, and decode_split_kv_compressed runs for the branch's output alone. Of an
 * index select_index_scores and select_topn do, and there is no compressed branch.
 *
 * Over ranks every rank does all of this with the same queries but for the selected branch, of which it
 * attends to the blocks that it holds: decode_split_kv_partial, an exchange, and decode_split_kv_combine
 * bring the ranks' results together.
 */
#include "base/math.h"
#include "plan/context.h"
#include "ranks/comm.h"
#include "variants/decode/batch.h"
#include "variants/decode/params.h"
#include "variants/decode/ranking.h"
#include "variants/decode/stream.h"
#include "variants/select/importance.h"
#include "variants/select/index_scores.h"
#include "variants/select/normalizer.h"
#include "variants/select/sort.h"
#include "variants/select/topn.h"

#include <math.h>

enum {
  COMPRESSED,
  SELECT,
  SORT,
  ATTEND,
  COMBINE,
  PROBE,
  IMPORTANCE, /* or index scores, as PROBE */
  TOPN,
  PARTIAL,
  NORMALIZER,
  KERNELS = NORMALIZER + NSAI_NORMALIZER_KERNELS
};
enum {
  SCAN_O,       /* f32 [items, splits, rows, Dv] */
  SCAN_STATS,   /* f32 [items, splits, rows, 2] */
  POOLED,       /* f32 [items, blocks, rows] */
  CARRIES,      /* f32 [items, splits, consumer groups, rows] */
  ATTEND_O,     /* f32 [T, Hkv, splits, G, Dv] */
  ATTEND_STATS, /* f32 [T, Hkv, splits, G, 2] */
  GATHERED,     /* f32 [ranks, exchanged_floats] */
  NORMALIZED,   /* those of select_normalizer */
  BUFFERS = NORMALIZED + NSAI_NORMALIZER_BUFFERS
};

#define COMBINE_THREADS 256 /* what decode/sum_splits.cuh asserts */

static uint32_t scan_shared(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  const int32_t rows = nsai_decode_tile_rows(p, t);
  const int32_t keys = NSAI_DECODE_STEP * nsai_decode_stage_steps(&p->model, rows);
  return nsai_decode_stream_bytes(p, t, rows, s, p->cmp_dtype) +
         nsai_decode_pool_bytes(&p->model, keys, s->of[NSAI_TILE_WARPS]);
}

static uint32_t attend_shared(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  const nsai_model *m = &p->model;
  const int32_t count = nsai_smem_larger(m->select_count, 1);
  const int32_t tile = nsai_decode_stream_bytes(p, t, nsai_decode_tile_rows(p, t), s, p->kv_dtype);
  if (p->selection != NSA_SELECT_RANGES)
    return nsai_smem_split_kv_attend(tile, nsai_decode_tile_tokens(p, t), count);
  const int32_t token = nsai_decode_stream_bytes(p, t, nsai_decode_token_rows(p), s, p->kv_dtype);
  return nsai_smem_split_kv_ranges(nsai_smem_larger(tile, token), count);
}

static int32_t most_rows(const nsai_problem *p, const nsai_target *t) {
  return (int32_t)nsai_larger(nsai_decode_tile_rows(p, t), nsai_decode_token_rows(p));
}

static uint32_t step_shared(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  return (uint32_t)nsai_larger(scan_shared(p, t, s), attend_shared(p, t, s));
}

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

/* Registers of a thread: O and Q of an m16 tile, scores, and what else the loop holds. (189 at D
 * 128, NVRTC 13.0.) */
static int32_t row_registers(const nsai_model *m) {
  if (nsai_decode_has_shared_q(m)) return nsai_padded_dim(m->head_dim_v) / 2 + 100;
  return nsai_row_registers(m) + 96;
}

/* Two CTAs of four warps, of drafts three, of 128 rows two of eight warps, and as many stages as
 * their shared memory holds, four at most; else fewer CTAs; else one of fewer warps. */
static nsai_tiles choose(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  *by = NSAI_BY_DEFAULT;
  int32_t wanted = t->register_fallback || row_registers(&p->model) > 224 ? 1 : 2;
  int32_t least = most_rows(p, t) / NSAI_DECODE_ROWS, warps = least > 4 ? 8 : 4;
  /* Registers: warps that do mma.sync, and those of a token's ranges, leave none for a third. */
  if (wanted == 2 && warps == 4 && nsai_decode_has_panels(p, t, nsai_decode_tile_rows(p, t)) &&
      p->selection != NSA_SELECT_RANGES)
    wanted = 3;
  for (int32_t ctas = wanted; ctas >= 1; ctas--)
    for (int32_t stages = 4; stages >= 2; stages--) {
      nsai_tiles tiles = nsai_decode_stream_tiles(warps, stages, ctas);
      if (nsai_holds_ctas(t, step_shared(p, t, &tiles), ctas)) return tiles;
    }
  return nsai_decode_stream_tiles(least < 2 ? 2 : least, 2, 1);
}

static void fit(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                nsai_reasons *reasons) {
  int32_t rows = most_rows(p, t);
  uint32_t bytes = step_shared(p, t, s);
  if (s->of[NSAI_TILE_WARPS] < rows / NSAI_DECODE_ROWS)
    nsai_refuse(reasons, "%d warps do not hold %d rows", s->of[NSAI_TILE_WARPS], rows);
  nsai_fit_cta(t, bytes, reasons);
  nsai_fit_threads(s, reasons);
}

/* Bound by memory: what matters are bytes on their way. */
static double cost(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  int32_t warps = s->of[NSAI_TILE_WARPS], ctas = s->of[NSAI_TILE_CTAS];
  if (row_registers(&p->model) > nsai_register_limit(32 * warps * ctas) ||
      !nsai_holds_ctas(t, step_shared(p, t, s), ctas))
    return INFINITY;
  return 1 + 4.0 / (warps * ctas * (s->of[NSAI_TILE_STAGES] - 1));
}

static const nsai_space space = {
  3,
  { { NSAI_TILE_WARPS,
      { 4, 8 },
      "each streams keys of its own, or shares them with its consumer group" },
    { NSAI_TILE_STAGES, { 2, 3, 4, 6 }, "bytes on their way against shared memory" },
    { NSAI_TILE_CTAS, { 1, 2, 3 }, "others fill the waits of one; registers are divided" } },
  choose,
  fit,
  cost,
};

/* Shared memory that tiles take. */
typedef uint32_t shared_fn(const nsai_problem *, const nsai_target *, const nsai_tiles *);

/* Whether a thread of decode_split_kv_compressed has the registers where two consumer groups are
 * a CTA. Of more than 128 columns of O some spill (64/160, 96/160, 32/192); where Q is short, of
 * more than 96 (16/104, 48/112, 32/128). (NVRTC 13.0.) */
static bool has_group_registers(const nsai_problem *p) {
  const int32_t columns = nsai_padded_dim(p->model.head_dim_v);
  return columns <= 64 ||
         (nsai_decode_is_plain(p) && columns <= (p->model.head_dim_qk > 48 ? 128 : 96));
}

/* Two consumer groups of a CTA share Q, and so four fit a multiprocessor in the place of three
 * CTAs of one. (H200, 32 sequences of 64k, 4 new tokens, 16 heads a group, us of a step,
 * decode_split_kv_compressed alone so: D 32 131 -> 128, 64 162 -> 139, 96 191 -> 165, 128 227 ->
 * 179. Tried later without gain, where a step of D 128 takes 166: one CTA of three groups with four
 * stages, one fence for two stages and tiles that are not split, 176; all four kernels in one
 * launch, a CTA of three groups for each tile, 185; mma.sync 203. Without the fence between cp.async
 * and wgmma, which would be wrong, a step takes as long: 165.
 *
 * All four kernels in one launch were tried again, by a cluster for each tile whose CTAs are its
 * splits. Every other cluster attends to its window before the scan, the others behind their search.
 * 32 sequences take 138.5 -> 136.5 us with correlated lists, 164.6 -> 164 with random ones; if all
 * windows follow the search, 147 and 175. Fewer sequences, clusters of up to 8, correlated: 2 take
 * 38.9 -> 42.3, 4 45.2 -> 51.2, 8 58.2 -> 71.6, 16 83.1 -> 88.8, 24 117.6 -> 118.4. Launches are thus
 * not what a step waits for. Clocks read in the clusters of the slower order, 4 tokens that select
 * alike, us: scan 64, which is the rate of memory; its result stored 3; barrier 1; search 10, which
 * reads 33 MB of pooled values; window 17, of which memory takes 8; barrier and merged list 3;
 * queries, pages and first keys requested 6; pooled values discarded 3; blocks 17; stored 3; barrier
 * 1; combine 6. Also without gain: even shares of the blocks behind the window, 139.7 and 166.1, and
 * a window that all splits share, 142.2 and 169.5.) */
static nsai_tiles two_groups(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                             shared_fn *shared) {
  if (!nsai_decode_has_panels(p, t, nsai_decode_tile_rows(p, t)) ||
      nsai_decode_tile_rows(p, t) != NSAI_DECODE_PANEL_ROWS || s->of[NSAI_TILE_WARPS] != 4 ||
      s->of[NSAI_TILE_CTAS] != 3)
    return *s;
  for (int32_t stages = 3; stages >= 2; stages--) {
    const nsai_tiles two = nsai_decode_stream_tiles(8, stages, 2);
    if (nsai_holds_ctas(t, shared(p, t, &two), 2)) return two;
  }
  return *s;
}

/* Two CTAs of two consumer groups as one of four, where the tiles of every step leave room for
 * two of these: they share Q, and half as many partial results are stored and added up. (H200, 4
 * new tokens of 4 and 16 sequences of 64k, 16 of 16k, us of a step: 52.1 -> 47.9, 100.7 -> 97.1,
 * 68.7 -> 65.7; 32 of 64k, which fill the device: 170 -> 186. 128 rows were not timed where
 * there is room.) */
static nsai_tiles four_groups(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                              shared_fn *shared) {
  const int64_t items = nsai_decode_most_items(p, nsai_decode_tile_room(p, t));
  if (!nsai_decode_has_narrow_panels(p, t) ||
      nsai_decode_tile_rows(p, t) != NSAI_DECODE_PANEL_ROWS || s->of[NSAI_TILE_WARPS] != 8 ||
      s->of[NSAI_TILE_CTAS] != 2 || !nsai_decode_leaves_half(t->sms, items))
    return *s;
  for (int32_t stages = 4; stages >= 2; stages--) {
    const nsai_tiles four = nsai_decode_stream_tiles(16, stages, 1);
    if (nsai_holds_ctas(t, shared(p, t, &four), 1)) return four;
  }
  return *s;
}

static nsai_tiles most_groups(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                              shared_fn *shared) {
  const nsai_tiles two = two_groups(p, t, s, shared);
  return four_groups(p, t, &two, shared);
}

/* Whether decode_split_kv_compressed pools what decode_split_kv_select ranks. */
static bool pools(const nsai_problem *p) {
  return p->model.select_count && p->selection == NSA_SELECT_TOPN &&
         nsai_ranks_by_branch(&p->model);
}

static void specify_compressed(const nsai_request *r, nsai_kernel_spec *spec) {
  const nsai_problem *p = r->problem;
  *spec = (nsai_kernel_spec){ .entry = "decode_split_kv_compressed",
                              .shared_bytes = scan_shared(p, r->target, r->tiles),
                              .tile_tokens = nsai_decode_tile_room(p, r->target),
                              .compile_cost = 350 };
  nsai_decode_stream_add(spec, r);
  nsai_decode_entry_codes_add(spec, p);
  nsai_constant_add(spec, "kSelectCount", pools(p) ? p->model.select_count : 0);
}

/* Of decode_split_kv_select: its warps, and the blocks whose importance it keeps in shared memory. Six
 * warps search 171 of a 64k context's 1024 blocks each; in static memory they keep those of 256k
 * tokens of blocks of 64. A longer row of blocks takes more warps, whose loads are in flight together,
 * and memory that portable kernels have: with 13 free blocks it keeps 19,200, and what is beyond them is
 * computed again. */
#define FEW_BLOCKS 4096
#define FEW_WARPS 6
#define MANY_WARPS 16

static int32_t select_shared(const nsai_model *m, int32_t kept) {
  return nsai_smem_split_kv_select(MANY_WARPS, nsai_padded_group(m), nsai_free_blocks(m), kept);
}

static int32_t kept_blocks(const nsai_problem *p) {
  const nsai_model *m = &p->model;
  const int64_t blocks = nsai_select_block_count(m, p->max_kv_len);
  const int32_t step = 16 * MANY_WARPS;
  if (blocks <= FEW_BLOCKS) return FEW_BLOCKS;
  int32_t most = FEW_BLOCKS;
  while (most < blocks && select_shared(m, most + step) <= (int32_t)NSAI_PORTABLE_SHARED_BYTES)
    most += step;
  return most;
}

static void specify_select(const nsai_request *r, nsai_kernel_spec *spec) {
  const nsai_model *m = &r->problem->model;
  const int32_t kept = kept_blocks(r->problem);
  const bool many = kept > FEW_BLOCKS;
  *spec = (nsai_kernel_spec){ .entry = "decode_split_kv_select",
                              .dtype = m->dtype,
                              .threads = 32 * (many ? MANY_WARPS : FEW_WARPS),
                              .shared_bytes = many ? (uint32_t)select_shared(m, kept) : 0,
                              .compile_cost = 900 };
  nsai_decode_work_add(spec, r);
  nsai_constant_add(spec, "kSelectCount", m->select_count);
  nsai_constant_add(spec, "kSelectInit", m->select_init);
  nsai_constant_add(spec, "kSelectLocal", m->select_local);
  nsai_constant_add(spec, "kKeptBlocks", kept);
  /* All tokens of a batch at once, as far as registers go: the best of more blocks take more, and
   * so does importance where a selected block is many compressed ones (128 / 16, groups of 6). */
  nsai_constant_add(spec, "kMinBlocks",
                    many                                                   ? 1
                    : m->select_count > 64 || r->target->register_fallback ? 2
                                                                           : 4);
}

/* The kernels that take an NsaiRanksDecode. */
static void add_ranks(nsai_kernel_spec *spec, const nsai_problem *p) {
  if (p->ranks) nsai_constant_add(spec, "kRanks", 1);
}

static void specify_attend(const nsai_request *r, nsai_kernel_spec *spec) {
  const nsai_problem *p = r->problem;
  *spec = (nsai_kernel_spec){ .entry = "decode_split_kv_attend",
                              .shared_bytes = attend_shared(p, r->target, r->tiles),
                              .compile_cost = 800 };
  nsai_decode_stream_add(spec, r);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kRanges", p->selection == NSA_SELECT_RANGES);
  nsai_constant_add(spec, "kPooled",
                    p->selection == NSA_SELECT_TOPN && nsai_ranks_by_branch(&p->model));
  nsai_constant_add(spec, "kMaxQLen", p->max_q_len);
  nsai_constant_add(spec, "kWindow", p->model.window);
  nsai_constant_add(spec, "kRing", p->window_ring);
  nsai_decode_raw_codes_add(spec, p);
  add_ranks(spec, p);
}

/* CTAs of decode_split_kv_combine on a multiprocessor. Four leave 64 registers, which are too few
 * for O of 128 columns where a group is no power of two (NVRTC 13.0, sm_90a, bf16: groups of 9 to
 * 14, 20, 24, 28, 40, 48 and 56 spill 8 bytes; widths of 40 to 120, 192 and 256 do not). Over ranks the
 * places of their results take registers as well: with 128 columns groups of 16 would spill 104 bytes, and
 * on sm_120, where it is three, groups of 4 16 bytes. */
static int32_t combine_ctas(const nsai_problem *p, const nsai_target *t) {
  const nsai_model *m = &p->model;
  if (t->register_fallback) return 2;
  const bool whole = m->heads / m->kv_heads == nsai_padded_group(m);
  const bool four = nsai_decode_has_wgmma(p, t) && (whole || m->head_dim_v != 128);
  return (four ? 4 : 3) - (p->ranks > 0);
}

static void specify_combine(const nsai_request *r, nsai_kernel_spec *spec) {
  const nsai_model *m = &r->problem->model;
  *spec = (nsai_kernel_spec){ .entry = "decode_split_kv_combine",
                              .dtype = m->dtype,
                              .threads = COMBINE_THREADS,
                              .compile_cost = 450 };
  nsai_decode_work_add(spec, r);
  nsai_constant_add(spec, "kHeadDimV", m->head_dim_v);
  nsai_gate_add(spec, r->problem);
  nsai_constant_add(spec, "kRowLanes", 32 / nsai_decode_warp_rows(m));
  nsai_constant_add(spec, "kMinBlocks", combine_ctas(r->problem, r->target));
  add_ranks(spec, r->problem);
}

static void specify_partial(const nsai_request *r, nsai_kernel_spec *spec) {
  const nsai_model *m = &r->problem->model;
  *spec = (nsai_kernel_spec){ .entry = "decode_split_kv_partial",
                              .dtype = m->dtype,
                              .threads = COMBINE_THREADS,
                              .compile_cost = 250 };
  nsai_decode_work_add(spec, r);
  nsai_constant_add(spec, "kHeadDimV", m->head_dim_v);
  nsai_constant_add(spec, "kRowLanes", 32 / nsai_decode_warp_rows(m));
  nsai_constant_add(spec, "kMinBlocks", combine_ctas(r->problem, r->target));
  add_ranks(spec, r->problem);
}

static bool has_index(const nsai_problem *p) { return p->model.by == NSAI_BY_INDEX; }

/* The kernels that rank blocks in the place of decode_split_kv_select. */
static void specify_ranking(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const nsai_tiles rows = nsai_topn_cta_tiles();
  const nsai_request topn = { p, r->target, &rows, r->standalone };
  const bool selects = p->model.select_count && p->selection == NSA_SELECT_TOPN;
  if (selects) nsai_topn_specify(&topn, "select_topn_cta", &kernel[TOPN]);
  if (selects) nsai_step_scores_specify(r, false, &kernel[IMPORTANCE]);
  if (!has_index(p) && (selects || p->max_probe_rows))
    nsai_normalizer_specify(p, r->target, 0, &kernel[NORMALIZER]);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const nsai_target *t = r->target;
  const nsai_model *m = &p->model;
  /* Rows of one token take registers of their own. */
  const bool narrow = nsai_decode_has_narrow_panels(p, t) && nsai_decode_tile_tokens(p, t) > 1;
  const nsai_tiles scan_tiles =
      has_group_registers(p) ? most_groups(p, t, r->tiles, scan_shared) : *r->tiles;
  const nsai_tiles attend_tiles = narrow ? most_groups(p, t, r->tiles, attend_shared) : *r->tiles;
  const nsai_request scan = { p, t, &scan_tiles, r->standalone };
  const nsai_request attend = { p, t, &attend_tiles, r->standalone };
  specify_compressed(&scan, &kernel[COMPRESSED]);
  /* The split of a step follows from its sizes even where it does not run. */
  if (!nsai_compresses_values(m)) kernel[COMPRESSED].entry = NULL;
  if (!nsai_ranks_by_branch(m)) specify_ranking(r, kernel);
  if (p->selection != NSA_SELECT_TOPN)
    nsai_sort_specify(p, &kernel[SORT]);
  else if (pools(p))
    specify_select(&scan, &kernel[SELECT]);
  if (m->select_count || m->window) specify_attend(&attend, &kernel[ATTEND]);
  specify_combine(r, &kernel[COMBINE]);
  if (p->ranks && m->select_count) specify_partial(r, &kernel[PARTIAL]);
  if (p->max_probe_rows) nsai_step_scores_specify(r, true, &kernel[PROBE]);
}

static const nsai_kernel_spec *present(const nsai_kernel_spec *spec) {
  return spec->entry ? spec : NULL;
}

/* Floats of a rank's result of the selected branch; the next rank's begins on 16 bytes. */
static int64_t exchanged_floats(const nsai_problem *p, int64_t tokens) {
  return nsai_round_up(NSAI_PRODUCT(tokens, p->model.heads, p->model.head_dim_v + 2), 4);
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  const nsai_kernel_spec *scan = &kernel[COMPRESSED];
  const nsai_decode_most most =
      nsai_decode_most_of(p, scan, present(&kernel[ATTEND]), r->target->sms);
  const int64_t rows = nsai_decode_scan_rows(p, scan), group = m->heads / m->kv_heads;
  if (kernel[NORMALIZER].entry)
    nsai_normalizer_workspace(r, &kernel[NORMALIZER], &out->bytes[NORMALIZED]);
  if (scan->entry) {
    out->bytes[SCAN_O] = NSAI_PRODUCT(most.scan_results, rows, m->head_dim_v, 4);
    out->bytes[SCAN_STATS] = NSAI_PRODUCT(most.scan_results, rows, 2, 4);
  }
  if (pools(p)) out->bytes[POOLED] = nsai_decode_pooled_bytes(p, most.tiles, rows);
  if (out->bytes[POOLED])
    out->bytes[CARRIES] =
        NSAI_PRODUCT(most.scan_results, nsai_decode_scan_groups(p, scan), rows, 4);
  if (kernel[PARTIAL].entry)
    out->bytes[GATHERED] = NSAI_PRODUCT(p->ranks, exchanged_floats(p, p->max_tokens), 4);
  if (!m->select_count && !m->window) return;
  out->bytes[ATTEND_O] = NSAI_PRODUCT(most.attend_results, group, m->head_dim_v, 4);
  out->bytes[ATTEND_STATS] = NSAI_PRODUCT(most.attend_results, group, 2, 4);
}

static nsai_decode_split split_of(const nsai_run *run, const nsai_form *form) {
  const nsai_decode_sizes sizes = { .problem = &run->plan->problem,
                                    .scan = &form->spec[COMPRESSED],
                                    .attend = present(&form->spec[ATTEND]),
                                    .sms = run->plan->ctx->target.sms,
                                    .step = nsai_run_step(run),
                                    .branches = run->branches };
  return nsai_decode_split_make(&sizes);
}

/* `p` is the first member of an NsaiCodedDecode, which kernels with codes take, and that is the first of an
 * NsaiRanksDecode. */
static nsa_status launch(const nsai_run *run, const nsai_kernel *kernel, int64_t grid,
                         const NsaiDecode *p) {
  return nsai_launch(run->queue, kernel, (uint64_t)grid, 1, p);
}

/* A caller's lists, sorted. */
static nsa_status sort_lists(const nsai_run *run, const nsai_kernel *kernel, NsaiDecode *p) {
  NsaiAttendSelected sorted;
  NSAI_TRY(nsai_sort_enqueue(run, kernel, &sorted));
  p->idx = (int *)sorted.lists;
  p->idx_token_stride = sorted.list_token_stride;
  p->idx_head_stride = sorted.list_head_stride;
  return NSA_OK;
}

/* decode_split_kv_combine, or decode_split_kv_partial. */
static nsa_status combine(const nsai_run *run, const nsai_kernel *kernel, const NsaiDecode *p) {
  const nsai_model *m = &run->plan->problem.model;
  const int64_t rows = kernel->threads / 32 * nsai_decode_warp_rows(m) / p->row_warps;
  return launch(run, kernel, nsai_ceil_div(run->sizes.tokens * m->heads, rows), p);
}

/* Brings the ranks' results of the selected branch to every rank. */
static nsa_status exchange(const nsai_run *run, const nsai_kernel *kernel,
                           const NsaiRanksDecode *p) {
  const float *mine = p->gathered + p->rank * p->rank_stride;
  NSAI_TRY(combine(run, kernel, &p->coded.decode));
  nsai_queue_break(run->queue); /* the next kernel waits for the gather */
  return nsai_comm_all_gather(run->comm, mine, p->gathered, (uint64_t)p->rank_stride * 4,
                              run->queue->stream);
}

static NsaiRanksDecode params_of(const nsai_run *run, const nsai_form *form,
                                 const nsai_decode_split *split) {
  const nsai_problem *problem = &run->plan->problem;
  NsaiRanksDecode ranks = { .coded = nsai_decode_params(run, split) };
  NsaiDecode *p = &ranks.coded.decode;
  if (problem->ranks && nsai_run_has(run, NSA_SEL)) {
    ranks.gathered = nsai_decode_at(run, form->buffer[GATHERED]);
    ranks.rank_stride = exchanged_floats(problem, run->sizes.tokens);
    ranks.rank = nsai_comm_rank(run->comm);
    ranks.ranks = problem->ranks;
    ranks.unit_blocks = problem->unit_tokens / problem->model.select_block;
  }
  p->scan.o = nsai_decode_at(run, form->buffer[SCAN_O]);
  p->scan.stats = nsai_decode_at(run, form->buffer[SCAN_STATS]);
  p->attend.o = nsai_decode_at(run, form->buffer[ATTEND_O]);
  p->attend.stats = nsai_decode_at(run, form->buffer[ATTEND_STATS]);
  p->pooled = nsai_decode_at(run, form->buffer[POOLED]);
  p->carries = nsai_decode_at(run, form->buffer[CARRIES]);
  return ranks;
}

/* Ranks blocks, in chunks of tokens; `lse`: not of an index. */
static nsa_status rank(const nsai_run *run, const nsai_form *form, const nsai_split_lse *lse) {
  const nsai_kernel *kernel = form->kernel;
  const int64_t tokens = run->sizes.tokens, step = run->plan->workspace.chunk_tokens;
  const int32_t heads = run->plan->problem.model.kv_heads;
  for (int64_t begin = 0; begin < tokens; begin += step) {
    const nsai_span span = { .token_begin = begin,
                             .token_end = nsai_smaller(begin + step, tokens) };
    NSAI_TRY(nsai_step_scores_enqueue(run, &kernel[IMPORTANCE], lse, &span));
    NSAI_TRY(nsai_topn_launch(run, &kernel[TOPN], (span.token_end - begin) * heads, &span));
  }
  return NSA_OK;
}

/* The lists of a step that selects. */
static nsa_status select_blocks(const nsai_run *run, const nsai_form *form, const NsaiDecode *p) {
  const nsai_kernel *kernel = form->kernel;
  const bool selects = nsai_run_selects(run), probes = nsai_decode_probes(run);
  if (nsai_ranks_by_branch(&run->plan->problem.model))
    return selects ? launch(run, &kernel[SELECT], run->sizes.tokens * p->kv_heads, p) : NSA_OK;
  if (has_index(&run->plan->problem)) return selects ? rank(run, form, NULL) : NSA_OK;
  if (!selects && !probes) return NSA_OK; /* the plan may have no select_normalizer */
  const nsai_split_lse lse =
      nsai_normalizer_lse(run, &kernel[NORMALIZER], &form->buffer[NORMALIZED]);
  NSAI_TRY(nsai_normalizer_enqueue(run, &kernel[NORMALIZER], &form->buffer[NORMALIZED]));
  return selects ? rank(run, form, &lse) : NSA_OK;
}

static nsa_status probe_rows(const nsai_run *run, const nsai_form *form) {
  if (has_index(&run->plan->problem)) return nsai_index_probe_enqueue(run, &form->kernel[PROBE]);
  const nsai_split_lse lse =
      nsai_ranks_by_branch(&run->plan->problem.model)
          ? nsai_branch_lse(run)
          : nsai_normalizer_lse(run, &form->kernel[NORMALIZER], &form->buffer[NORMALIZED]);
  return nsai_probe_enqueue(run, &form->kernel[PROBE], &lse);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *kernel = form->kernel;
  const nsai_model *m = &run->plan->problem.model;
  const nsai_decode_split split = split_of(run, form);
  const bool ranks = nsai_run_selects(run) || nsai_decode_probes(run);
  const bool brought = run->plan->problem.selection != NSA_SELECT_TOPN;
  NsaiRanksDecode over_ranks = params_of(run, form, &split);
  NsaiDecode *p = &over_ranks.coded.decode;
  (void)span;
  if (!nsai_compresses_values(m))
    p->scan.splits = 0; /* there are no partial results, and no memory for them */
  if (nsai_run_has(run, NSA_CMP) || (ranks && nsai_ranks_by_branch(m))) {
    p->batch = nsai_entry_batch(run);
    NSAI_TRY(launch(run, &kernel[COMPRESSED], split.tiles * p->kv_heads * split.scan_splits, p));
    p->batch = nsai_cache_batch(run);
  }
  NSAI_TRY(select_blocks(run, form, p));
  if (nsai_run_has(run, NSA_SEL) && brought) NSAI_TRY(sort_lists(run, &kernel[SORT], p));
  if (p->attend.splits) NSAI_TRY(launch(run, &kernel[ATTEND], split.attend_items * p->kv_heads, p));
  if (run->plan->problem.ranks && nsai_run_has(run, NSA_SEL))
    NSAI_TRY(exchange(run, &kernel[PARTIAL], &over_ranks));
  NSAI_TRY(combine(run, &kernel[COMBINE], p));
  return nsai_decode_probes(run) ? probe_rows(run, form) : NSA_OK;
}

const nsai_variant nsai_decode_split_kv = {
  .name = "decode_split_kv",
  .stage = NSAI_STAGE_DECODE,
  .why = "scan, select, attend, combine: split over keys, mma.sync",
  .kernels = KERNELS,
  .buffers = BUFFERS,
  .takes_codes = true,
  .legal = legal,
  .space = &space,
  .specify = specify,
  .workspace = workspace,
  .enqueue = enqueue,
};
