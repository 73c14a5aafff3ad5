/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * decode_pipelined: one launch, a CTA or a cluster for each sequence and KV head, on Hopper; for
 * plans of one new token a sequence.
 */
#include "base/math.h"
#include "variants/decode/batch.h"
#include "variants/decode/params.h"
#include "variants/decode/stream.h"

#include <math.h>

enum { PIPELINED, KERNELS };
enum {
  POOLED, /* f32 [items, blocks, 16]: where shared memory does not hold them */
  BUFFERS
};

#define ROWS NSAI_DECODE_ROWS
#define MOST_FREE 32 /* core/topn_warp.cuh */

/* Whether the stages hold codes alone. */
static bool holds_codes(const nsai_problem *p) { return p->cmp_dtype == NSA_E4M3; }

/* Stages of a consumer's pipeline. Of codes they hold half as much, and so there are twice as many. */
static int32_t stages_of(const nsai_problem *p) { return holds_codes(p) ? 4 : 2; }

/* Selection blocks of a CTA whose pooled values lie in shared memory, where it has the room. */
#define KEPT_BLOCKS 256

/* Registers of a consumer for O and Q of an m16 tile, and columns of O: it takes 190 at 128/128,
 * and has 192. (NVRTC 13.0; nor do 144/128, 208/96 and 256/64 spill.) */
#define MOST_ROW_REGISTERS 100
#define MOST_COLUMNS 128

/* Room for the selection blocks of a CTA: its warps' runs, which are multiples of the
 * granularity, and one without compressed keys behind the last one. Plans of many lengths have
 * the same. */
#define LEAST_BLOCKS 256
#define SLACK_BLOCKS 16
static int32_t most_blocks(const nsai_problem *p, int32_t warps, int32_t cluster) {
  const nsai_model *m = &p->model;
  /* No CTA has shared memory for a run of 2^20. */
  const int64_t run = nsai_smaller(nsai_decode_run_blocks(p, warps * cluster), 1 << 20);
  int32_t most = m->select_count ? LEAST_BLOCKS : 1;
  while (m->select_count && most + SLACK_BLOCKS < warps * run + 1) most *= 2;
  return most + SLACK_BLOCKS;
}

/* Output vectors: four columns of a row of O each. The CTAs of a cluster get equally many. */
static int64_t output_vectors(const nsai_model *m) {
  return (int64_t)(m->heads / m->kv_heads) * m->head_dim_v / 4;
}

static uint32_t shared_bytes(const nsai_problem *p, int32_t warps, int32_t cluster, int32_t kept) {
  const nsai_model *m = &p->model;
  return nsai_smem_decode_pipelined(m->head_dim_qk, m->head_dim_v, m->heads / m->kv_heads, warps,
                                    stages_of(p), cluster, nsai_free_blocks(m), m->select_count,
                                    kept, most_blocks(p, warps, cluster), holds_codes(p));
}

/* The last selection blocks, which are always chosen, where they lie in the window: its keys are
 * theirs. (Rings are their own pair's, and there `per_branch` holds as well.) */
static int32_t window_selected_blocks(const nsai_problem *p) {
  const nsai_model *m = &p->model;
  const bool both = m->select_count && !m->per_branch && !p->window_ring &&
                    m->select_local * m->select_block <= m->window;
  return both ? m->select_local : 0;
}

static bool holds(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s, int32_t kept) {
  uint32_t bytes = shared_bytes(p, s->of[NSAI_TILE_WARPS], s->of[NSAI_TILE_CLUSTER], kept);
  return bytes <= t->shared_bytes && nsai_holds_ctas(t, bytes, s->of[NSAI_TILE_CTAS]);
}

/* As many as fit, halved until they do. */
static int32_t kept_blocks(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  int32_t kept = KEPT_BLOCKS;
  while (kept && !holds(p, t, s, kept)) kept = kept < 16 ? 0 : kept / 2;
  return kept;
}

static nsai_tiles pipelined_tiles(int32_t warps, int32_t ctas, int32_t cluster) {
  return (nsai_tiles){
    { [NSAI_TILE_WARPS] = warps, [NSAI_TILE_CTAS] = ctas, [NSAI_TILE_CLUSTER] = cluster }
  };
}

/* In the order of the items that they suit, the fewest first. Registers are divided for eight
 * warps of a multiprocessor that attend. Where two CTAs of four fit, one of eight does: it has
 * at most as much. */
enum { CLUSTER_4, CLUSTER_2, ONE_PER_SM, TWO_PER_SM, SHAPES };
static nsai_tiles shape(int index) {
  return pipelined_tiles(index == TWO_PER_SM ? 4 : 8, index == TWO_PER_SM ? 2 : 1,
                         index == CLUSTER_4   ? 4
                         : index == CLUSTER_2 ? 2
                                              : 1);
}

static bool fits(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  return output_vectors(&p->model) % s->of[NSAI_TILE_CLUSTER] == 0 && holds(p, t, s, 0);
}

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  const nsai_model *m = &p->model;
  const nsai_tiles one = shape(ONE_PER_SM);
  nsai_legal_common(p, reasons);
  nsai_decode_legal_ranks(p, reasons);
  nsai_legal_ranking(p, "decode_split_kv", reasons);
  nsai_decode_legal_codes(p, reasons);
  if (nsai_target_major(t) != 9)
    nsai_refuse(reasons, "it was made for sm_90: take decode_split_kv");
  if (p->max_q_len > 1)
    nsai_refuse(reasons, "problem.max_q_len is %d, and it takes one new token a sequence",
                p->max_q_len);
  if (p->selection != NSA_SELECT_TOPN || p->max_probe_rows)
    nsai_refuse(reasons,
                "problem.selection is a caller's or rows are probed: decode_split_kv does that");
  if (p->count_reads)
    nsai_refuse(reasons,
                "runtime.count_reads is true, and it does not count: take decode_split_kv");
  if (nsai_padded_group(m) > ROWS)
    nsai_refuse(reasons, "a KV head has %d heads, and it takes %d at most: take decode_split_kv",
                m->heads / m->kv_heads, ROWS);
  if (m->head_dim_v > MOST_COLUMNS || nsai_row_registers(m) > MOST_ROW_REGISTERS)
    nsai_refuse(reasons, "O of Dv %d and Q of Dk %d leave a thread no registers", m->head_dim_v,
                m->head_dim_qk);
  if (nsai_free_blocks(m) > MOST_FREE)
    nsai_refuse(reasons, "model.select leaves %d blocks to the search, and it takes %d at most",
                nsai_free_blocks(m), MOST_FREE);
  if (!holds(p, t, &one, 0))
    nsai_refuse(reasons, "needs %u bytes of shared memory, a CTA has %u here",
                shared_bytes(p, 8, 1, 0), t->shared_bytes);
}

static int64_t most_items(const nsai_problem *p) {
  return nsai_decode_most_items(p, ROWS / nsai_padded_group(&p->model));
}

/* Where clusters of two fit, CTAs by themselves begin where those end. */
static bool has_cluster_2(const nsai_problem *p, const nsai_target *t) {
  const nsai_tiles cluster_2 = shape(CLUSTER_2);
  return fits(p, t, &cluster_2);
}

static bool reaches(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  return nsai_decode_reaches(p, t->sms, nsai_decode_share_of(s), has_cluster_2(p, t),
                             most_items(p));
}

/* What suits the most items of the plan. */
static nsai_tiles choose(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  *by = NSAI_BY_ARCHITECTURE;
  for (int i = TWO_PER_SM; i >= CLUSTER_4; i--) {
    const nsai_tiles tiles = shape(i);
    if (fits(p, t, &tiles) && reaches(p, t, &tiles)) return tiles;
  }
  return shape(ONE_PER_SM);
}

static void fit(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                nsai_reasons *reasons) {
  const int32_t warps = s->of[NSAI_TILE_WARPS], cluster = s->of[NSAI_TILE_CLUSTER];
  const uint32_t bytes = shared_bytes(p, warps, cluster, 0);
  if (warps * s->of[NSAI_TILE_CTAS] != 8)
    nsai_refuse(reasons, "registers are divided for eight warps of a multiprocessor, not %d",
                warps * s->of[NSAI_TILE_CTAS]);
  if (cluster > 1 && s->of[NSAI_TILE_CTAS] > 1)
    nsai_refuse(reasons, "CTAs of a cluster have a multiprocessor each");
  if (output_vectors(&p->model) % cluster)
    nsai_refuse(reasons, "%d CTAs do not share a row of O of %d heads evenly", cluster,
                p->model.heads / p->model.kv_heads);
  nsai_fit_cta(t, bytes, reasons);
  if (bytes <= t->shared_bytes && !nsai_holds_ctas(t, bytes, s->of[NSAI_TILE_CTAS]))
    nsai_refuse(reasons, "a multiprocessor does not hold %d CTAs of %u bytes",
                s->of[NSAI_TILE_CTAS], bytes);
}

/* Waves of all items' CTAs, each of which shares a multiprocessor's bytes and waits by itself.
 * (A guess.) */
static double cost(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  const int32_t ctas = s->of[NSAI_TILE_CTAS], cluster = s->of[NSAI_TILE_CLUSTER];
  if (!fits(p, t, s)) return INFINITY;
  const int64_t room = nsai_larger(t->sms, 1) * ctas;
  return (double)nsai_ceil_div(most_items(p) * cluster, room) * (0.25 + (double)ctas / cluster);
}

static const nsai_space space = {
  3,
  { { NSAI_TILE_WARPS, { 4, 8 }, "each streams keys of its own" },
    { NSAI_TILE_CTAS, { 1, 2 }, "others stream while one searches; registers are divided" },
    { NSAI_TILE_CLUSTER, { 1, 2, 4 }, "CTAs that share an item's keys, against waits" } },
  choose,
  fit,
  cost,
};

/* Registers of a row beside decode_split_kv: of longer ones, which fit, no batch size was timed. */
#define MOST_TIMED_REGISTERS 96

static int forms(const nsai_problem *p, const nsai_target *t, const nsai_choice *before,
                 nsai_tiles out[NSAI_MAX_STAGE_FORMS]) {
  int count = 0;
  (void)before;
  if (t->register_fallback || nsai_row_registers(&p->model) > MOST_TIMED_REGISTERS) return 0;
  for (int i = 0; i < SHAPES; i++) {
    out[count] = shape(i);
    if (fits(p, t, &out[count]) && reaches(p, t, &out[count])) count++;
  }
  return count;
}

static bool suits(const nsai_request *r, int64_t items) {
  return nsai_decode_suits(r->problem, r->target->sms, nsai_decode_share_of(r->tiles),
                           has_cluster_2(r->problem, r->target), items);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  const int32_t warps = r->tiles->of[NSAI_TILE_WARPS], cluster = r->tiles->of[NSAI_TILE_CLUSTER];
  const int32_t kept = kept_blocks(p, r->target, r->tiles);
  nsai_kernel_spec *spec = &kernel[PIPELINED];
  *spec = (nsai_kernel_spec){ .entry = "decode_pipelined",
                              .dtype = m->dtype,
                              .threads = 64 * warps,
                              .tile_tokens = ROWS / nsai_padded_group(m),
                              .cluster = cluster > 1 ? cluster : 0,
                              .shared_bytes = shared_bytes(p, warps, cluster, kept),
                              .compile_cost = 1200 };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_blocks_add(spec, m);
  nsai_constant_add(spec, "kWindow", m->window);
  nsai_constant_add(spec, "kRing", p->window_ring);
  nsai_constant_add(spec, "kWindowSelectedBlocks", window_selected_blocks(p));
  nsai_constant_add(spec, "kKvHeads", m->kv_heads);
  nsai_constant_add(spec, "kPageSize", p->page_size);
  nsai_decode_entry_codes_add(spec, p);
  nsai_decode_raw_codes_add(spec, p);
  nsai_constant_add(spec, "kScanRows", ROWS);
  nsai_constant_add(spec, "kWarps", warps);
  nsai_constant_add(spec, "kStages", stages_of(p));
  nsai_constant_add(spec, "kWgmma", 0);
  nsai_constant_add(spec, "kCluster", cluster);
  nsai_constant_add(spec, "kKeptBlocks", kept);
  nsai_constant_add(spec, "kMostBlocks", most_blocks(p, warps, cluster));
  nsai_constant_add(spec, "kMinBlocks", r->tiles->of[NSAI_TILE_CTAS]);
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  const int64_t tiles = nsai_most_step_tiles(r->problem, kernel[PIPELINED].tile_tokens);
  out->bytes[POOLED] = nsai_decode_pooled_bytes(r->problem, tiles, ROWS);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *kernel = &form->kernel[PIPELINED];
  const nsai_decode_split split = nsai_decode_unsplit(run, kernel);
  NsaiCodedDecode coded = nsai_decode_params(run, &split);
  NsaiDecode *p = &coded.decode;
  (void)span;
  p->pooled = nsai_decode_at(run, form->buffer[POOLED]);
  return nsai_decode_launch_items(run, kernel, &form->spec[PIPELINED], p);
}

const nsai_variant nsai_decode_pipelined = {
  .name = "decode_pipelined",
  .stage = NSAI_STAGE_DECODE,
  .why = "copies, products and search beside each other, a CTA or a cluster for each token and KV "
         "head",
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
