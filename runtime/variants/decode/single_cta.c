/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * decode_single_cta: one launch, a CTA for each tile of tokens and KV head.
 */
#include "base/math.h"
#include "variants/decode/batch.h"
#include "variants/decode/params.h"
#include "variants/decode/stream.h"

#include <math.h>

enum { SINGLE_CTA, KERNELS };
enum {
  POOLED,  /* f32 [items, blocks, rows] */
  CARRIES, /* f32 [items, consumer groups, rows] */
  BUFFERS
};

/* O and Q of a row, in registers of a thread: at Dk 192 and Dv 128 they take 112, and the rest
 * spills. (NVRTC 13.0.) */
#define MOST_ROW_REGISTERS 96

#define KEPT_BLOCKS 4096 /* whose importance lies in shared memory: 256k tokens of blocks of 64 */

static uint32_t shared_bytes(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  const nsai_model *m = &p->model;
  const int32_t rows = nsai_decode_tile_rows(p, t);
  const int32_t warps = s->of[NSAI_TILE_WARPS];
  const int32_t scan = nsai_decode_stream_bytes(p, t, rows, s, p->cmp_dtype);
  const int32_t window = nsai_decode_stream_bytes(p, t, rows, s, p->kv_dtype);
  const int32_t token = nsai_decode_stream_bytes(p, t, nsai_decode_token_rows(p), s, p->kv_dtype);
  const int32_t stream = nsai_smem_larger(nsai_smem_larger(scan, window), token);
  const int32_t search =
      m->select_count ? nsai_smem_topn_token(warps, nsai_free_blocks(m), KEPT_BLOCKS) : 0;
  const int32_t list =
      nsai_smem_merged_list(nsai_decode_tile_tokens(p, t), nsai_smem_larger(m->select_count, 1));
  return nsai_smem_single_cta(stream, search, nsai_decode_pool_bytes(m, NSAI_DECODE_STEP, warps),
                              list, rows, m->head_dim_v);
}

/* As many stages as the shared memory of so many CTAs holds; no CTA where it does not hold two. */
static nsai_tiles most_stages(const nsai_problem *p, const nsai_target *t, int32_t warps,
                              int32_t ctas) {
  for (int32_t stages = 4; stages >= 2; stages--) {
    nsai_tiles tiles = nsai_decode_stream_tiles(warps, stages, ctas);
    uint32_t bytes = shared_bytes(p, t, &tiles);
    if (bytes <= t->shared_bytes && nsai_holds_ctas(t, bytes, ctas)) return tiles;
  }
  return (nsai_tiles){ { 0 } };
}

/* Two CTAs of four warps for items that fill the device so, a CTA of eight for fewer. */
static nsai_tiles two_per_sm(const nsai_problem *p, const nsai_target *t) {
  return most_stages(p, t, 4, 2);
}
static nsai_tiles one_per_sm(const nsai_problem *p, const nsai_target *t) {
  return most_stages(p, t, 8, 1);
}

static int64_t most_items(const nsai_problem *p, const nsai_target *t) {
  return nsai_decode_most_items(p, nsai_decode_tile_room(p, t));
}

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  const nsai_tiles least = nsai_decode_stream_tiles(4, 2, 1);
  nsai_legal_common(p, reasons);
  nsai_decode_legal_ranks(p, reasons);
  nsai_legal_ranking(p, "decode_split_kv", reasons);
  if (p->selection != NSA_SELECT_TOPN || p->max_probe_rows)
    nsai_refuse(reasons,
                "problem.selection is a caller's or rows are probed: decode_split_kv does that");
  if (nsai_decode_tile_rows(p, t) > NSAI_DECODE_ROWS)
    nsai_refuse(reasons, "%d new tokens of %d heads a group are more than the %d rows of a warp",
                p->max_q_len, p->model.heads / p->model.kv_heads, NSAI_DECODE_ROWS);
  if (nsai_row_registers(&p->model) > MOST_ROW_REGISTERS)
    nsai_refuse(reasons, "O of Dv %d and Q of Dk %d leave a thread no registers",
                p->model.head_dim_v, p->model.head_dim_qk);
  nsai_fit_cta(t, shared_bytes(p, t, &least), reasons);
}

static nsai_tiles choose(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  const nsai_tiles one = one_per_sm(p, t), two = two_per_sm(p, t);
  *by = NSAI_BY_DEFAULT;
  if (one.of[NSAI_TILE_CTAS] &&
      !nsai_decode_reaches(p, t->sms, NSAI_DECODE_HALF_SM, false, most_items(p, t)))
    return one;
  return two.of[NSAI_TILE_CTAS] ? two : nsai_decode_stream_tiles(4, 2, 1);
}

static void fit(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                nsai_reasons *reasons) {
  nsai_fit_cta(t, shared_bytes(p, t, s), reasons);
  nsai_fit_threads(s, reasons);
}

/* CTAs of 128 threads have the registers twice on a multiprocessor, of 256 once. */
static double cost(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  int32_t warps = s->of[NSAI_TILE_WARPS], ctas = s->of[NSAI_TILE_CTAS];
  if (warps * ctas > 8 || !nsai_holds_ctas(t, shared_bytes(p, t, s), ctas)) return INFINITY;
  return 1 + 4.0 / (warps * ctas * (s->of[NSAI_TILE_STAGES] - 1));
}

static const nsai_space space = {
  3,
  { { NSAI_TILE_WARPS,
      { 4, 8 },
      "each streams keys of its own; more for an item, or more items at once" },
    { NSAI_TILE_STAGES, { 2, 3, 4, 6 }, "bytes on their way against shared memory" },
    { NSAI_TILE_CTAS, { 1, 2 }, "others stream while one searches; registers are divided" } },
  choose,
  fit,
  cost,
};

/* Whether a form before these takes the same share of the device. */
static bool is_taken(const nsai_choice *before, nsai_decode_share share) {
  for (int i = 0; i < before->form_count; i++)
    if (before->forms[i].variant->stage == NSAI_STAGE_DECODE &&
        nsai_decode_share_of(&before->forms[i].tiles) == share)
      return true;
  return false;
}

static int forms(const nsai_problem *p, const nsai_target *t, const nsai_choice *before,
                 nsai_tiles out[NSAI_MAX_STAGE_FORMS]) {
  const nsai_tiles wanted[] = { one_per_sm(p, t), two_per_sm(p, t) };
  int count = 0;
  for (int i = 0; i < 2 && !t->register_fallback; i++) {
    const nsai_decode_share share = nsai_decode_share_of(&wanted[i]);
    if (wanted[i].of[NSAI_TILE_CTAS] && !is_taken(before, share) &&
        nsai_decode_reaches(p, t->sms, share, false, most_items(p, t)))
      out[count++] = wanted[i];
  }
  return count;
}

static bool suits(const nsai_request *r, int64_t items) {
  return nsai_decode_suits(r->problem, r->target->sms, nsai_decode_share_of(r->tiles), false,
                           items);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  nsai_kernel_spec *spec = &kernel[SINGLE_CTA];
  *spec = (nsai_kernel_spec){ .entry = "decode_single_cta",
                              .shared_bytes = shared_bytes(p, r->target, r->tiles),
                              .tile_tokens = nsai_decode_tile_room(p, r->target),
                              .compile_cost = 800 };
  nsai_decode_stream_add(spec, r);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kSelectInit", p->model.select_init);
  nsai_constant_add(spec, "kSelectLocal", p->model.select_local);
  nsai_constant_add(spec, "kKeptBlocks", KEPT_BLOCKS);
  nsai_constant_add(spec, "kWindow", p->model.window);
  nsai_constant_add(spec, "kMaxQLen", p->max_q_len);
  nsai_constant_add(spec, "kRing", p->window_ring);
  nsai_decode_entry_codes_add(spec, p);
  nsai_decode_raw_codes_add(spec, p);
  nsai_gate_add(spec, p);
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  const nsai_problem *p = r->problem;
  const int64_t rows = nsai_decode_scan_rows(p, &kernel[SINGLE_CTA]);
  const int64_t tiles = nsai_most_step_tiles(p, kernel[SINGLE_CTA].tile_tokens);
  const int64_t groups = nsai_decode_scan_groups(p, &kernel[SINGLE_CTA]);
  out->bytes[POOLED] = nsai_decode_pooled_bytes(p, tiles, rows);
  if (p->model.select_count)
    out->bytes[CARRIES] = NSAI_PRODUCT(tiles, p->model.kv_heads, groups, rows, 4);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *kernel = &form->kernel[SINGLE_CTA];
  const nsai_decode_split split = nsai_decode_unsplit(run, kernel);
  NsaiCodedDecode coded = nsai_decode_params(run, &split);
  NsaiDecode *p = &coded.decode;
  (void)span;
  p->pooled = nsai_decode_at(run, form->buffer[POOLED]);
  p->carries = nsai_decode_at(run, form->buffer[CARRIES]);
  return nsai_decode_launch_items(run, kernel, &form->spec[SINGLE_CTA], p);
}

const nsai_variant nsai_decode_single_cta = {
  .name = "decode_single_cta",
  .stage = NSAI_STAGE_DECODE,
  .why = "a CTA for each token and KV head: for batches that leave split-KV without gain",
  .kernels = KERNELS,
  .buffers = BUFFERS,
  .takes_codes = true,
  .legal = legal,
  .space = &space,
  .forms = forms,
  .suits = suits,
  .specify = specify,
  .workspace = workspace,
  .enqueue = enqueue,
};
