/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * attend_selected_kv_stationary_sm90. For each chunk of tokens the lists of blocks become lists of
 * tokens. Then, for as many query heads at a time as the workspace has rows for, each block is
 * attended by its tokens, and the partial results of each token are combined. Nothing depends on
 * what the lists hold.
 *
 * attend_selected_window_kv_stationary_sm90: the same for all tokens at once, with the window in the
 * kernel that combines.
 */
#include "base/math.h"
#include "variants/attend/flash_sm90.h"
#include "variants/attend/invert.h"
#include "variants/attend/selected.h"

#include <math.h>
#include <string.h>

enum { INVERT = NSAI_SELECTED_KERNELS, COMBINE = INVERT + NSAI_INVERT_KERNELS, KERNELS };
enum {
  PARTIAL = NSAI_INVERT_BUFFERS, /* dtype [rows, Dv] of a (head, token, slot) each */
  PARTIAL_LSE,                   /* f32 [rows] */
  BUFFERS
};
enum { CHUNK_TOKENS, ROWS, NUMBERS };

/* Partial results: a row of Dv for every head, token and slot would be 17 GB at 64k tokens and 64
 * heads. In pieces of this many bytes the launches last milliseconds, which is enough. */
#define SLOT_CHUNK_BYTES ((int64_t)1 << 30)

static nsai_tiles kv_tiles(int32_t rows, int32_t warps, int32_t blocks) {
  return (nsai_tiles){
    { [NSAI_TILE_ROWS] = rows, [NSAI_TILE_WARPS] = warps, [NSAI_TILE_CTAS] = blocks }
  };
}

static uint32_t kv_shared(const nsai_model *m, const nsai_tiles *s) {
  return nsai_smem_kv_stationary(m->select_block, s->of[NSAI_TILE_ROWS], s->of[NSAI_TILE_WARPS],
                                 m->head_dim_qk, m->head_dim_v);
}

/* Q beside the scores, then P beside O; and what else the loop holds, more of it where rows that
 * are no multiple of 128 bytes lie unswizzled, most where those of V are long, too. */
static int32_t kv_registers(const nsai_model *m) {
  int32_t keys = m->select_block, p = keys / 4, o = nsai_padded_dim(m->head_dim_v) / 2;
  bool split = m->dtype == NSA_BF16 && m->head_dim_v < 128; /* kSplitBlockP */
  if (split) p *= 2;
  int32_t scores = nsai_padded_dim(m->head_dim_qk) / 4 + keys / 2;
  /* Measured: Dv 224 and 240 spill beside Dk 160 to 208, and do not beside 128 and less, and
   * 256. With a split P, Dk 104 to 240 that are no multiples of 64 spill with up to 100 registers
   * beside Dv 64 to 112; a few of them would do with 56. */
  bool odd_wide = nsai_padded_dim(m->head_dim_v) > 192 && nsai_padded_dim(m->head_dim_v) % 64 &&
                  m->head_dim_qk > 128 && m->head_dim_qk < 256;
  int32_t rest = m->head_dim_qk % 64 == 0 && m->head_dim_v % 64 == 0 ? 40
                 : odd_wide                                          ? 128
                 : split                                             ? 104
                 : m->head_dim_v > 128                               ? 72
                                                                     : 56;
  return (scores > p + o ? scores : p + o) + rest;
}

static bool kv_holds(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  int32_t threads = 32 * s->of[NSAI_TILE_WARPS] * s->of[NSAI_TILE_CTAS];
  return kv_registers(&p->model) <= nsai_register_limit(threads) &&
         nsai_holds_ctas(t, kv_shared(&p->model, s), s->of[NSAI_TILE_CTAS]);
}

/* As many warpgroups on a multiprocessor as registers and shared memory hold: each waits for its
 * rows, products and softmax in turn. (H200, D 128: 7.79 ms with four, 7.85 with three.) */
static nsai_tiles choose_kv(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  const nsai_tiles in_order[] = { kv_tiles(2048, 8, 2), kv_tiles(1024, 4, 3),
                                  kv_tiles(1024, 4, 2) };
  *by = NSAI_BY_DEFAULT;
  for (size_t i = (size_t)t->register_fallback; i < sizeof in_order / sizeof *in_order; i++)
    if (kv_holds(p, t, &in_order[i])) return in_order[i];
  return kv_tiles(1024, 4, 1);
}

static void fit_kv(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                   nsai_reasons *reasons) {
  uint32_t bytes = kv_shared(&p->model, s);
  nsai_fit_cta(t, bytes, reasons);
}

static double cost_kv(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  if (!kv_holds(p, t, s)) return INFINITY;
  double tiles = s->of[NSAI_TILE_WARPS] / 4.0 * s->of[NSAI_TILE_CTAS];
  return 1 + 2 / tiles + 64.0 / s->of[NSAI_TILE_ROWS];
}

static const nsai_space space = {
  3,
  { { NSAI_TILE_ROWS, { 256, 512, 1024, 2048 }, "what a block's keys are copied for, and balance" },
    { NSAI_TILE_WARPS, { 4, 8, 12 }, "warpgroups that share a block's keys" },
    { NSAI_TILE_CTAS, { 1, 2, 3, 4 }, "others fill the waits of one; registers are divided" } },
  choose_kv,
  fit_kv,
  cost_kv,
};

/* One row of 16 columns has been off by 4.8e-3 where blocks nearly cancel; 4e-3 is allowed. */
#define LEAST_BF16_COLUMNS 64

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  const nsai_model *m = &p->model;
  nsai_legal_common(p, reasons);
  nsai_legal_packed(p, reasons);
  if (strcmp(t->arch, "sm_90a")) nsai_refuse(reasons, "%s has no wgmma, sm_90a has", t->arch);
  if (p->selection == NSA_SELECT_RANGES)
    nsai_refuse(reasons, "the caller brings ranges: only blocks have lists of tokens");
  if (m->dtype == NSA_BF16 && m->head_dim_v < LEAST_BF16_COLUMNS)
    nsai_refuse(
        reasons,
        "model.head_dim_v is %d: results of blocks are rounded to bf16, of which less than %d "
        "columns do not average the errors",
        m->head_dim_v, LEAST_BF16_COLUMNS);
  if (m->select_block % 16 || m->select_block > 128)
    nsai_refuse(reasons, "model.select.block is %d: it takes multiples of 16 up to 128",
                m->select_block);
}

/* Every (head, token, block) costs the same here, whatever the group and the lists: 13.6 to 14.7 ms
 * at 64k tokens, 64 heads, D 128 and 16 blocks (H200, groups of 4 to 1). A query-stationary tile of
 * 64 rows costs 0.22 ms there for every block in the union of the lists of 64 / G tokens, of which
 * there are n up to 64 n / G, and never more than the sequence has: 41 ms at G 4 and 11 at G 16
 * with random inputs, so that 20 are to be expected at G 8. With correlated ones
 * attend_selected_sm90_mma takes 16.8 ms at G 2, 11.4 at G 4. */
#define BREAK_EVEN_BLOCKS 64

static bool sensible(const nsai_problem *p, const nsai_target *t) {
  const nsai_model *m = &p->model;
  int32_t group = m->heads / m->kv_heads;
  if (t->register_fallback >= NSAI_SMALLEST_TILES)
    return false; /* registers: the portable kernel serves */
  if (p->max_kv_len <= (int64_t)BREAK_EVEN_BLOCKS * m->select_block) return false;
  if (kv_registers(m) > nsai_register_limit(32 * 4)) return false;
  return group <= 2 || (group <= 8 && p->overlap == NSA_OVERLAP_LOW);
}

static void specify_combine(const nsai_problem *p, nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = "attend_selected_combine",
                              .dtype = p->model.dtype,
                              .threads = 256 };
  nsai_constant_add(spec, "kSelectBlock", p->model.select_block);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kMinBlocks", 1);
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  nsai_kernel_spec *spec = &kernel[NSAI_SELECTED];
  int32_t warps = r->tiles->of[NSAI_TILE_WARPS], rows = r->tiles->of[NSAI_TILE_ROWS];
  *spec = (nsai_kernel_spec){ .entry = "attend_selected_kv_stationary_sm90",
                              .dtype = p->model.dtype,
                              .threads = 32 * warps,
                              .shared_bytes = kv_shared(&p->model, r->tiles),
                              .tile_tokens = rows,
                              .compile_cost = 400 };
  nsai_heads_add(spec, p);
  nsai_selected_add_lists(p, kernel);
  nsai_constant_add(spec, "kRows", rows);
  nsai_constant_add(spec, "kWarps", warps);
  nsai_constant_add(spec, "kMinBlocks", r->tiles->of[NSAI_TILE_CTAS]);
  nsai_invert_specify(p, rows, &kernel[INVERT]);
  specify_combine(p, &kernel[COMBINE]);
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  const int64_t fit = SLOT_CHUNK_BYTES / (m->head_dim_v * 2), n = m->select_count;
  const int64_t chunk =
      nsai_smaller(nsai_larger(fit / n, 1), nsai_smaller(p->max_tokens, NSAI_KV_MOST_TOKENS));
  const int64_t rows =
      nsai_larger(nsai_smaller(fit, NSAI_PRODUCT(p->max_tokens, n, m->heads)), chunk * n);
  out->number[CHUNK_TOKENS] = chunk;
  out->number[ROWS] = rows;
  nsai_invert_workspace(p, chunk, kernel[NSAI_SELECTED].tile_tokens, out->bytes);
  out->bytes[PARTIAL] = NSAI_PRODUCT(rows, m->head_dim_v, 2);
  out->bytes[PARTIAL_LSE] = NSAI_PRODUCT(rows, 4);
}

/* The query heads [begin, end). */
typedef struct head_range {
  int32_t begin, end;
} head_range;

/* Attention of the heads over each block. */
static NsaiAttendKv attend_params(const nsai_run *run, const nsai_form *form,
                                  const NsaiAttendSelected *s, const NsaiInvert *index,
                                  head_range heads) {
  return (NsaiAttendKv){ .q = s->q,
                         .k = s->k,
                         .v = s->v,
                         .items = index->items,
                         .item_counts = index->item_counts,
                         .entries = index->entries,
                         .partial = nsai_buffer_at(run, form->buffer[PARTIAL]),
                         .partial_lse = nsai_buffer_at(run, form->buffer[PARTIAL_LSE]),
                         .entry_capacity = index->entry_capacity,
                         .item_capacity = index->item_capacity,
                         .shared_lists = !index->list_head_stride,
                         .token_begin = index->token_begin,
                         .chunk_tokens = index->token_end - index->token_begin,
                         .head_begin = heads.begin,
                         .heads = heads.end - heads.begin,
                         .scale_log2 = s->scale_log2 };
}

/* The sum of what that attention finds. */
static NsaiCombine combine_params(const NsaiAttendKv *attend, const NsaiAttendSelected *s,
                                  const NsaiInvert *index) {
  return (NsaiCombine){ .entry_indices = index->entry_indices,
                        .partial = attend->partial,
                        .partial_lse = attend->partial_lse,
                        .out = s->out,
                        .entry_capacity = attend->entry_capacity,
                        .shared_lists = attend->shared_lists,
                        .token_begin = attend->token_begin,
                        .chunk_tokens = attend->chunk_tokens,
                        .head_begin = attend->head_begin,
                        .heads = attend->heads,
                        .kv_heads = s->kv_heads };
}

static nsa_status launch_attend(const nsai_run *run, const nsai_form *form,
                                const NsaiAttendKv *attend) {
  const int64_t items = (int64_t)attend->heads * attend->item_capacity;
  return nsai_launch(run->queue, &form->kernel[NSAI_SELECTED], (uint64_t)items, 1, attend);
}

/* Attention and sum. */
static nsa_status attend_heads(const nsai_run *run, const nsai_form *form,
                               const NsaiAttendSelected *s, const NsaiInvert *index,
                               head_range heads) {
  const NsaiAttendKv attend = attend_params(run, form, s, index, heads);
  const NsaiCombine combine = combine_params(&attend, s, index);
  const int64_t rows = (int64_t)combine.heads * combine.chunk_tokens; /* a warp each */
  NSAI_TRY(launch_attend(run, form, &attend));
  return nsai_launch_elements(run, &form->kernel[COMBINE], 32 * rows, &combine);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_model *m = &run->plan->problem.model;
  const nsai_kernel *kernel = &form->kernel[NSAI_SELECTED];
  NsaiAttendSelected selected = nsai_selected_params(run, kernel);
  (void)span;
  NSAI_TRY(nsai_selected_find_lists(run, form, &selected));
  for (int64_t begin = 0; begin < run->sizes.tokens; begin += form->number[CHUNK_TOKENS]) {
    int64_t end = nsai_smaller(begin + form->number[CHUNK_TOKENS], run->sizes.tokens);
    int64_t heads = nsai_smaller(form->number[ROWS] / ((end - begin) * m->select_count), m->heads);
    NsaiInvert index =
        nsai_invert_params(run, &selected, begin, end, kernel->tile_tokens, form->buffer);
    NSAI_TRY(nsai_invert_enqueue(run, &form->kernel[INVERT], index));
    for (int64_t head = 0; head < m->heads; head += heads) {
      const head_range some = { (int32_t)head, (int32_t)nsai_smaller(head + heads, m->heads) };
      NSAI_TRY(attend_heads(run, form, &selected, &index, some));
    }
  }
  return NSA_OK;
}

static void describe(const nsai_form *form, nsai_writer *text) {
  nsai_write(text, "  %s: %llu bytes of partial results at a time, of %lld tokens' lists\n",
             form->variant->name, (unsigned long long)form->buffer[PARTIAL].bytes,
             (long long)form->number[CHUNK_TOKENS]);
}

const nsai_variant nsai_attend_selected_kv_stationary_sm90 = {
  .name = "attend_selected_kv_stationary_sm90",
  .stage = NSAI_STAGE_ATTEND_SELECTED,
  .why = "KV-stationary over inverted lists, wgmma: small groups, lists that differ",
  .kernels = KERNELS,
  .buffers = BUFFERS,
  .numbers = NUMBERS,
  .finds_sequences_of_keys = true,
  .legal = legal,
  .sensible = sensible,
  .space = &space,
  .specify = specify,
  .workspace = workspace,
  .enqueue = enqueue,
  .describe = describe,
};

/* ---- the row that does the window as well ---- */

/* The place of attend_selected_combine is attend_window_combine_sm90's. */
enum { WINDOW = COMBINE };

#define WINDOW_ROWS 128
#define WINDOW_THREADS 640
#define WINDOW_STAGES 2
#define MOST_QUERIES 2 /* tiles: one that is computed, one that arrives */
#define MOST_RING 16   /* rows of partial results on their way: 64 KB of 16 blocks, D 128 */
#define LEAST_RING 8   /* a row for each warp that combines */
#define MOST_SLOTS 32  /* one a lane, found by compiling (NVRTC 13.0) */
#define MOST_HEAD_DIM_V 128
#define CONSUMER_REGISTERS 160 /* KernelTraits::kConsumerRegisters */

/* What the window's part has in shared memory. */
typedef struct window_shape {
  int32_t keys, queries, ring;
} window_shape;

static uint32_t window_shared(const nsai_model *m, const window_shape *s) {
  return nsai_smem_window_combine(s->keys, s->queries, s->ring, m->select_count, m->head_dim_qk,
                                  m->head_dim_v);
}

/* As registers_do() of flash_sm90.c. */
static bool window_registers_do(const nsai_model *m, int32_t keys) {
  int32_t parts = m->dtype == NSA_BF16 && m->head_dim_v < 64 ? 2 : 1;
  return (nsai_padded_dim(m->head_dim_v) + keys) / 2 + parts * keys / 4 + 32 <= CONSUMER_REGISTERS;
}

/* The most of each that fits, keys first; `keys` 0: nothing fits. */
static window_shape window_shape_of(const nsai_model *m, const nsai_target *t) {
  for (int32_t keys = 112; keys >= 64; keys -= 16) {
    if (!window_registers_do(m, keys)) continue;
    for (int32_t queries = MOST_QUERIES; queries >= 1; queries--)
      for (int32_t ring = MOST_RING; ring >= LEAST_RING; ring -= LEAST_RING) {
        const window_shape shape = { keys, queries, ring };
        if (window_shared(m, &shape) <= t->shared_bytes) return shape;
      }
  }
  return (window_shape){ 0 };
}

/* Whether the partial results of a KV head's query heads, of so many tokens, fit at once. */
static bool group_fits(const nsai_problem *p, int64_t tokens) {
  const nsai_model *m = &p->model;
  return NSAI_PRODUCT(tokens, m->select_count, m->heads / m->kv_heads) <=
         SLOT_CHUNK_BYTES / (m->head_dim_v * 2);
}

static void legal_window(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  const nsai_model *m = &p->model;
  legal(p, t, reasons);
  if (p->max_tokens > NSAI_KV_MOST_TOKENS || !group_fits(p, p->max_tokens))
    nsai_refuse(reasons, "the partial results of a KV head's query heads take more than %lld bytes",
                (long long)SLOT_CHUNK_BYTES);
  if (m->select_count > MOST_SLOTS || m->head_dim_v > MOST_HEAD_DIM_V)
    nsai_refuse(
        reasons,
        "%d blocks and head_dim_v %d: registers hold the slots of at most %d and %d columns",
        m->select_count, m->head_dim_v, MOST_SLOTS, MOST_HEAD_DIM_V);
  else if (!window_shape_of(m, t).keys)
    nsai_refuse(reasons,
                "head dims %d and %d with %d blocks: the window beside the partial results of %d "
                "rows takes more registers or shared memory than there are",
                m->head_dim_qk, m->head_dim_v, m->select_count, LEAST_RING);
}

#define MOST_WINDOW_GROUP 2 /* beyond, with lists that differ, it was not timed */

/* H200, forwards of 64 heads, D 128, two kernels / this: G 1 64k 32.4 / 30.9 ms, 16k 6.09 / 5.72; G 2
 * 64k 36.6 / 36.1, 16k 5.78 / 5.63, which is within the spread. It has no smaller tiles for other
 * compilers. Ranks choose what one GPU with all tokens would, so that they add the branches in its
 * order. */
static bool sensible_window(const nsai_problem *p, const nsai_target *t) {
  return !t->register_fallback && p->model.heads / p->model.kv_heads <= MOST_WINDOW_GROUP &&
         group_fits(p, p->ranks ? p->max_kv_tokens : p->max_tokens) && sensible(p, t);
}

static void specify_window(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  const window_shape shape = window_shape_of(m, r->target);
  const int32_t group = nsai_padded_group(m);
  nsai_kernel_spec *spec = &kernel[WINDOW];
  specify(r, kernel);
  *spec = (nsai_kernel_spec){ .entry = "attend_window_combine_sm90",
                              .dtype = m->dtype,
                              .threads = WINDOW_THREADS,
                              .shared_bytes = window_shared(m, &shape),
                              .tile_tokens = WINDOW_ROWS / group,
                              .ctas_per_sm = 1,
                              .tma_box_heads = group,
                              .tma_box_tokens = WINDOW_ROWS / 2 / group,
                              .tma_box_keys = shape.keys,
                              .compile_cost = 900 };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_window_source_add(spec, p);
  nsai_constant_add(spec, "kWindow", m->window);
  nsai_constant_add(spec, "kSelectCount", m->select_count);
  nsai_constant_add(spec, "kRows", WINDOW_ROWS);
  nsai_constant_add(spec, "kKeys", shape.keys);
  nsai_constant_add(spec, "kStages", WINDOW_STAGES);
  nsai_constant_add(spec, "kQueryStages", shape.queries);
  nsai_constant_add(spec, "kRing", shape.ring);
  nsai_constant_add(spec, "kMinBlocks", 1);
}

/* In the order of the branches' sum, the kernel has the window last: it takes what the host meant for
 * the last branch, and the selected branch what was meant for the window. */
static void swap_sums(NsaiEpilogue *a, NsaiEpilogue *b) {
  const NsaiEpilogue of_a = *a;
  a->o = b->o, b->o = of_a.o;
  a->partial = b->partial, b->partial = of_a.partial;
  a->partial_units = b->partial_units, b->partial_units = of_a.partial_units;
  a->add_partial = b->add_partial, b->add_partial = of_a.add_partial;
}

/* Launches attend_window_combine_sm90 for the heads of p->combine. */
static nsa_status launch_window(const nsai_run *run, const nsai_form *form, NsaiWindowCombine *p) {
  const nsai_model *m = &run->plan->problem.model;
  const nsai_kernel *kernel = &form->kernel[WINDOW];
  const int32_t kv_heads = p->combine.heads / (m->heads / m->kv_heads);
  const uint64_t tiles = nsai_tile_count(run, kernel->tile_tokens) * (uint64_t)kv_heads;
  const uint64_t most = (uint64_t)kernel->most_ctas;
  p->window.attend.kv_heads = kv_heads;
  p->window.attend.tiles = (int)tiles;
  return nsai_launch(run->queue, kernel, most < tiles ? most : tiles, 1, p);
}

static nsa_status enqueue_window(const nsai_run *run, const nsai_form *form,
                                 const nsai_span *span) {
  const nsai_model *m = &run->plan->problem.model;
  const nsai_kernel *kernel = &form->kernel[NSAI_SELECTED];
  const int32_t tokens = (int32_t)run->sizes.tokens, group = m->heads / m->kv_heads;
  NsaiAttendSelected selected = nsai_selected_params(run, kernel);
  NsaiWindowCombine p = { .runs_window = nsai_run_has(run, NSA_WIN),
                          .runs_selected = nsai_run_has(run, NSA_SEL) };
  (void)span;
  p.window.attend = nsai_attend_params(run, NSA_WIN, &form->kernel[WINDOW]);
  NSAI_TRY(nsai_map_attend(run, &form->kernel[WINDOW], run->sizes.kv_tokens, &p.window));
  if (!p.runs_selected) {
    p.combine = (NsaiCombine){ .heads = m->heads, .kv_heads = m->kv_heads };
    return launch_window(run, form, &p);
  }
  if (p.runs_window) swap_sums(&p.window.attend.out, &selected.out);
  p.window.attend.early = 1; /* the kernel before writes partial results alone */
  NSAI_TRY(nsai_selected_find_lists(run, form, &selected));
  const NsaiInvert index =
      nsai_invert_params(run, &selected, 0, tokens, kernel->tile_tokens, form->buffer);
  NSAI_TRY(nsai_invert_enqueue(run, &form->kernel[INVERT], index));
  const int64_t rows = nsai_larger((int64_t)tokens * m->select_count * group, 1);
  const int32_t heads = (int32_t)nsai_smaller(form->number[ROWS] / rows * group, m->heads);
  for (int32_t head = 0; head < m->heads; head += heads) {
    const head_range some = { head, (int32_t)nsai_smaller(head + heads, m->heads) };
    const NsaiAttendKv attend = attend_params(run, form, &selected, &index, some);
    p.combine = combine_params(&attend, &selected, &index);
    NSAI_TRY(launch_attend(run, form, &attend));
    NSAI_TRY(launch_window(run, form, &p));
  }
  return NSA_OK;
}

const nsai_variant nsai_attend_selected_window_kv_stationary_sm90 = {
  .name = "attend_selected_window_kv_stationary_sm90",
  .stage = NSAI_STAGE_ATTEND_SELECTED,
  .why = "KV-stationary over inverted lists, partial results combined beside the window's products",
  .fuses = 1u << NSAI_STAGE_ATTEND_WINDOW,
  .kernels = KERNELS,
  .buffers = BUFFERS,
  .numbers = NUMBERS,
  .finds_sequences_of_keys = true,
  .legal = legal_window,
  .sensible = sensible_window,
  .space = &space,
  .specify = specify_window,
  .workspace = workspace,
  .enqueue = enqueue_window,
  .describe = describe,
};
