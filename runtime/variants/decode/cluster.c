/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * decode_cluster: one launch, a cluster for each token and KV head.
 *
 * Tried without gain: the statistics of the last two to eight steps of compressed keys go out before their
 * values are read, so that these arrive while CTAs exchange and search. (H200, bf16, 64/4 heads, D 128, 64k
 * tokens, us of a step of 1, 2, 4 and 7 sequences: 12.5, 16.5, 22.7 and 29.3; so 13.5, 18.1, 25.2 and 31.8.) The
 * warps that search are those that issue the copies, and a pair of tiles costs them about as much as the memory
 * time that it hides. Copies that cost no warp, by TMA over pages, were not tried.
 */
#include "base/math.h"
#include "variants/decode/batch.h"
#include "variants/decode/params.h"
#include "variants/decode/stream.h"

#include <math.h>

enum { CLUSTER, KERNELS };
enum {
  POOLED, /* f32 [items, blocks, 16]: where shared memory does not hold them */
  BUFFERS
};

#define ROWS NSAI_DECODE_ROWS
#define MOST_FREE 32 /* core/topn_cta.cuh */

/* Registers of a thread for O and Q of an m16 tile, and columns of O: of 255, which a CTA of 4
 * warps leaves a thread, 128 (192/160) and 192 columns (96/192) spill, 120 (160/160) does not.
 * Those that fit as 8 warps have 168, of which 256/48 takes 167 and 256/32 168: .ci/run compiles
 * the former. (NVRTC 13.0.) */
#define MOST_ROW_REGISTERS 120
#define MOST_COLUMNS 160

/* Selection blocks of a CTA whose pooled values lie in shared memory: 64k tokens of 6 blocks have
 * 192. Those of more lie in the workspace. */
#define KEPT_BLOCKS 256

/* Pages of a sequence whose list lies in shared memory. */
#define LIST_PAGES 1024

/* Selection blocks of a CTA: 2^20 tokens of 16 blocks, fewer where two are to fit a
 * multiprocessor of 228 KB. */
static int32_t most_blocks(const nsai_tiles *s) { return s->of[NSAI_TILE_CTAS] > 1 ? 480 : 1152; }

/* Of warps that attend, and of half as many that copy. */
static int32_t threads_of(const nsai_tiles *s) { return 48 * s->of[NSAI_TILE_WARPS]; }

static uint32_t shared_bytes(const nsai_problem *p, const nsai_tiles *s) {
  const nsai_model *m = &p->model;
  const bool codes = p->cmp_dtype == NSA_E4M3; /* in the stages */
  /* kSplitP; products with codes are fp16. */
  const int32_t terms = m->dtype == NSA_BF16 && m->head_dim_v < 64 && !codes ? 2 : 1;
  return nsai_smem_decode_cluster(m->head_dim_qk, m->head_dim_v, m->heads / m->kv_heads,
                                  s->of[NSAI_TILE_WARPS], s->of[NSAI_TILE_STAGES],
                                  s->of[NSAI_TILE_CLUSTER], nsai_free_blocks(m), m->select_count,
                                  KEPT_BLOCKS, most_blocks(s), terms, LIST_PAGES, codes);
}

/* Selection blocks that one CTA has, at most: ClusterBlockRange of decode/cluster/ranges.cuh. */
static int64_t longest_range(const nsai_problem *p, const nsai_tiles *s) {
  int64_t warps = s->of[NSAI_TILE_WARPS];
  /* And one that consists of a carry alone. */
  return warps * nsai_decode_run_blocks(p, warps * s->of[NSAI_TILE_CLUSTER]) + 1;
}

static nsai_tiles cluster_tiles(int32_t cluster, int32_t warps, int32_t stages, int32_t ctas) {
  return (nsai_tiles){ { [NSAI_TILE_WARPS] = warps,
                         [NSAI_TILE_STAGES] = stages,
                         [NSAI_TILE_CTAS] = ctas,
                         [NSAI_TILE_CLUSTER] = cluster } };
}

/* Sizes to choose from, and how many there are. */
static const int32_t sizes[] = { 16, 8, 6, 4, 2 };
#define SIZES (int)(sizeof sizes / sizeof *sizes)

static bool fits(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  uint32_t bytes = shared_bytes(p, s);
  return bytes <= t->shared_bytes && nsai_holds_ctas(t, bytes, s->of[NSAI_TILE_CTAS]) &&
         longest_range(p, s) <= most_blocks(s);
}

/* Clusters, token by token and KV head by KV head, that a step has at most. */
static int64_t items_of(const nsai_problem *p) { return p->max_tokens * p->model.kv_heads; }

static bool run_at_once(const nsai_problem *p, int32_t cluster) {
  return nsai_larger(items_of(p), 1) * cluster <= nsai_decode_ctas_at_once(cluster);
}

/* The largest clusters that run at once; CTAs of four warps and twice the stages were slower
 * when all warps copied (H200, 1 and 4 sequences of 64k: 20.5 and 35.6 us, 17.9 and 29.8). Where
 * they do not fit or do not hold the longest sequence, whatever does. */
static nsai_tiles choose_cluster(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  *by = nsai_target_is(t, NSAI_H200) ? NSAI_BY_DEVICE : NSAI_BY_ARCHITECTURE;
  for (int i = 0; i < SIZES; i++) {
    nsai_tiles tiles = cluster_tiles(sizes[i], 8, 2, 1);
    if (sizes[i] <= nsai_decode_largest_cluster(t) && run_at_once(p, sizes[i]) &&
        fits(p, t, &tiles))
      return tiles;
  }
  for (int i = SIZES - 1; i >= 0; i--)
    for (int32_t warps = 8; warps >= 4; warps -= 4) {
      nsai_tiles tiles = cluster_tiles(sizes[i], warps, 2, 1);
      if (sizes[i] <= nsai_decode_largest_cluster(t) && fits(p, t, &tiles)) return tiles;
    }
  return cluster_tiles(nsai_decode_largest_cluster(t), 4, 2, 1);
}

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  const nsai_model *m = &p->model;
  nsai_decider by;
  int before = reasons->count;
  nsai_legal_common(p, reasons);
  nsai_decode_legal_ranks(p, reasons);
  nsai_legal_ranking(p, "decode_split_kv", reasons);
  nsai_decode_legal_codes(p, reasons);
  if (nsai_target_major(t) < 9)
    nsai_refuse(reasons, "clusters of CTAs need sm_90 or later: take decode_split_kv");
  if (nsai_padded_group(m) > ROWS)
    nsai_refuse(reasons, "a KV head has %d heads, and it takes 16 at most: take decode_split_kv",
                m->heads / m->kv_heads);
  if (m->head_dim_v > MOST_COLUMNS || nsai_row_registers(m) > MOST_ROW_REGISTERS)
    nsai_refuse(reasons,
                "O of Dv %d and Q of Dk %d leave a thread no registers: take decode_split_kv",
                m->head_dim_v, m->head_dim_qk);
  if (nsai_free_blocks(m) > MOST_FREE)
    nsai_refuse(reasons,
                "model.select leaves %d blocks to the search, and it takes %d at most: take "
                "decode_split_kv",
                nsai_free_blocks(m), MOST_FREE);
  if (p->selection != NSA_SELECT_TOPN)
    nsai_refuse(reasons,
                "problem.selection is a caller's, which it does not sort: take decode_split_kv");
  if (p->max_probe_rows)
    nsai_refuse(reasons,
                "problem.max_probe_rows is %d, and it has no importance of single rows: take "
                "decode_split_kv",
                p->max_probe_rows);
  if (p->count_reads)
    nsai_refuse(reasons,
                "runtime.count_reads is true, and it does not count: take decode_split_kv");
  if (reasons->count != before) return;
  nsai_tiles tiles = choose_cluster(p, t, &by);
  uint32_t bytes = shared_bytes(p, &tiles);
  if (bytes > t->shared_bytes)
    nsai_refuse(reasons, "needs %u bytes of shared memory, a CTA has %u here: take decode_split_kv",
                bytes, t->shared_bytes);
  else if (longest_range(p, &tiles) > most_blocks(&tiles))
    nsai_refuse(reasons,
                "problem.max_kv_len is %lld: %lld selection blocks of a CTA, which keeps "
                "%d at most: take decode_split_kv",
                (long long)p->max_kv_len, (long long)longest_range(p, &tiles), most_blocks(&tiles));
}

/* Compressed keys of all items up to which a step rather waits than streams: behind them
 * decode_split_kv gains, which has all multiprocessors. (H200, us of decode_split_kv, and of
 * this: 5 and 7 sequences of 64k 41.1 and 46.0, 26.3 and 29.5; 1 and 2 of 128k 34.2 and 38.0,
 * 17.6 and 25.5; 4 of 128k 48.5 and, of a build before, 37.7.) */
#define MOST_KEYS (1 << 17)

/* In sequences of more selection blocks a CTA of decode_split_kv searches for long. (H200, 1 sequence
 * of 1M tokens, by a build that computed importance again for each look at it: 221 us, 43 of them the
 * compressed branch. By this row one of 128k takes 17.6, of 256k, by an older build, 26; it was not
 * timed at 1M.) */
#define MOST_SEARCHED_BLOCKS 4096

/* Whether there are few keys, or decode_split_kv would search for long. */
static bool gains_on_split_kv(const nsai_problem *p, const nsai_target *t) {
  const nsai_model *m = &p->model;
  const int64_t keys = items_of(p) * nsai_block_count(m, p->max_kv_len);
  const bool far =
      m->select_count && nsai_ceil_div(p->max_kv_len, m->select_block) > MOST_SEARCHED_BLOCKS;
  nsai_decider by;
  return keys <= MOST_KEYS ||
         (far && run_at_once(p, choose_cluster(p, t, &by).of[NSAI_TILE_CLUSTER]));
}

/* While clusters of four run at once. (H200, 16 sequences of 4k and 16k by clusters of two 23.3
 * and 29.8 us, by decode_pipelined 21.4 and 28.3.) Measured on Hopper alone. */
static bool sensible(const nsai_problem *p, const nsai_target *t) {
  if (t->register_fallback >= NSAI_SMALLEST_TILES) return false; /* decode_split_kv serves */
  return nsai_target_major(t) == 9 && run_at_once(p, 4) && gains_on_split_kv(p, t) &&
         nsai_decode_raw_keys(p) <= NSAI_DECODE_MOST_RAW_KEYS;
}

static void fit_cluster(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                        nsai_reasons *reasons) {
  uint32_t bytes = shared_bytes(p, s);
  int64_t range = longest_range(p, s);
  nsai_fit_cta(t, bytes, reasons);
  if (range > most_blocks(s))
    nsai_refuse(reasons, "%lld selection blocks of a CTA, which keeps %d at most", (long long)range,
                most_blocks(s));
  if (s->of[NSAI_TILE_CLUSTER] > nsai_decode_largest_cluster(t))
    nsai_refuse(reasons, "clusters of %d are more than every device takes",
                s->of[NSAI_TILE_CLUSTER]);
  nsai_fit_threads(s, reasons);
}

/* Registers of a thread below which some models spill: CTAs of 8 warps have 80 where two fit a
 * multiprocessor. (NVRTC 13.0, D 32.) */
#define LEAST_REGISTERS 128

/* Bound by waits: more CTAs at once are better, as long as there is room for all. */
static double cost_cluster(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  int32_t ctas = s->of[NSAI_TILE_CTAS], cluster = s->of[NSAI_TILE_CLUSTER];
  if (!nsai_holds_ctas(t, shared_bytes(p, s), ctas) ||
      nsai_register_limit(ctas * threads_of(s)) < LEAST_REGISTERS)
    return INFINITY;
  int64_t all = nsai_larger(items_of(p), 1) * cluster,
          room = ctas * nsai_decode_ctas_at_once(cluster);
  return (double)nsai_ceil_div(all, room) *
         (1 + 16.0 / (cluster * s->of[NSAI_TILE_WARPS] * s->of[NSAI_TILE_STAGES]));
}

static const nsai_space space = {
  4,
  { { NSAI_TILE_WARPS, { 4, 8 }, "each streams keys of its own" },
    { NSAI_TILE_STAGES, { 2, 3 }, "bytes on their way against shared memory" },
    { NSAI_TILE_CTAS, { 1, 2 }, "clusters that run at once; registers and memory are divided" },
    { NSAI_TILE_CLUSTER,
      { 2, 4, 6, 8, 16 },
      "CTAs that share a token's keys, against waits for each other" } },
  choose_cluster,
  fit_cluster,
  cost_cluster,
};

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  const nsai_tiles *s = r->tiles;
  nsai_kernel_spec *spec = &kernel[CLUSTER];
  *spec = (nsai_kernel_spec){ .entry = "decode_cluster",
                              .dtype = m->dtype,
                              .threads = threads_of(s),
                              .shared_bytes = shared_bytes(p, s),
                              .cluster = s->of[NSAI_TILE_CLUSTER],
                              .compile_cost = 700 };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_blocks_add(spec, m);
  nsai_constant_add(spec, "kWindow", m->window);
  nsai_constant_add(spec, "kRing", p->window_ring);
  nsai_constant_add(spec, "kPageSize", p->page_size);
  nsai_decode_entry_codes_add(spec, p);
  nsai_decode_raw_codes_add(spec, p);
  nsai_constant_add(spec, "kCountReads", 0);
  nsai_constant_add(spec, "kWgmma", 0);
  nsai_constant_add(spec, "kScanRows", ROWS);
  nsai_constant_add(spec, "kWarps", s->of[NSAI_TILE_WARPS]);
  nsai_constant_add(spec, "kStages", s->of[NSAI_TILE_STAGES]);
  nsai_constant_add(spec, "kCluster", s->of[NSAI_TILE_CLUSTER]);
  nsai_constant_add(spec, "kKeptBlocks", KEPT_BLOCKS);
  nsai_constant_add(spec, "kMostBlocks", most_blocks(s));
  nsai_constant_add(spec, "kListPages", LIST_PAGES);
  nsai_constant_add(spec, "kMinBlocks", s->of[NSAI_TILE_CTAS]);
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  (void)kernel;
  out->bytes[POOLED] = nsai_decode_pooled_bytes(r->problem, r->problem->max_tokens, ROWS);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const int32_t cluster = form->spec[CLUSTER].cluster;
  const nsai_decode_split split = { .tiles = run->sizes.tokens,
                                    .scan_splits = cluster,
                                    .scan_least = 1 };
  NsaiCodedDecode coded = nsai_decode_params(run, &split);
  NsaiDecode *p = &coded.decode;
  (void)span;
  p->pooled = nsai_decode_at(run, form->buffer[POOLED]);
  return nsai_launch(run->queue, &form->kernel[CLUSTER], (uint64_t)(run->sizes.tokens * cluster),
                     (uint32_t)p->kv_heads, p);
}

const nsai_variant nsai_decode_cluster = {
  .name = "decode_cluster",
  .stage = NSAI_STAGE_DECODE,
  .why = "one launch, a cluster of CTAs for each token and KV head, mma.sync",
  .kernels = KERNELS,
  .buffers = BUFFERS,
  .takes_codes = true,
  .legal = legal,
  .sensible = sensible,
  .space = &space,
  .specify = specify,
  .workspace = workspace,
  .enqueue = enqueue,
};
