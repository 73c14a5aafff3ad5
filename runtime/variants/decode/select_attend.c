/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * decode_select_attend: a cluster of CTAs for each token and KV head selects, attends and adds up in one
 * launch. Importance comes from the kernels of a prefill before it, or from the cluster itself.
 */
#include "base/math.h"
#include "plan/context.h"
#include "variants/decode/batch.h"
#include "variants/decode/params.h"
#include "variants/decode/ranking.h"
#include "variants/decode/stream.h"
#include "variants/select/normalizer.h"

#include <math.h>

enum {
  ATTEND, /* the first: forms are described by it */
  SCORES,
  NORMALIZER,
  KERNELS = NORMALIZER + NSAI_NORMALIZER_KERNELS
};
enum {
  NORMALIZED, /* those of select_normalizer */
  BUFFERS = NORMALIZED + NSAI_NORMALIZER_BUFFERS
};

#define ROWS NSAI_DECODE_ROWS
#define MOST_FREE 128 /* groups of candidates of decode/rank_blocks.cuh */

/* Most candidates of a token. A power of two, so that contexts of other lengths have the same kernel. */
static int32_t most_blocks(const nsai_problem *p) {
  const int64_t blocks = nsai_select_block_count(&p->model, p->max_kv_len);
  int32_t most = 256;
  while (most < blocks) most *= 2;
  return most;
}

#define STEP_KEYS 16            /* of decode/score_blocks.cuh */
#define MOST_SCORED_BLOCKS 4096 /* 16 KB of shared memory */

/* Whether the cluster computes importance: by compressed keys in 16 bits that one token reads; drafts share
 * theirs in the kernels of a prefill. Two stages of raw K and V hold two of these keys' tiles. */
static bool scores(const nsai_problem *p) {
  const nsai_model *m = &p->model;
  return m->by != NSAI_BY_INDEX && p->max_q_len == 1 && !p->cmp_dtype &&
         (!p->kv_dtype || m->head_dim_v >= m->head_dim_qk) &&
         STEP_KEYS % (m->select_block / m->stride) == 0 && nsai_row_registers(m) <= 144 &&
         most_blocks(p) <= MOST_SCORED_BLOCKS;
}

static uint32_t shared_bytes(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  const nsai_model *m = &p->model;
  const int32_t cluster = s->of[NSAI_TILE_CLUSTER], warps = s->of[NSAI_TILE_WARPS];
  const int attend =
      nsai_smem_select_attend(nsai_decode_stream_bytes(p, t, ROWS, s, p->kv_dtype),
                              nsai_free_blocks(m), most_blocks(p), cluster, m->heads / m->kv_heads,
                              m->head_dim_v, m->select_count);
  if (!scores(p)) return (uint32_t)attend;
  return (uint32_t)(nsai_smem_block_scores(most_blocks(p), cluster, warps) +
                    nsai_smem_aligned(attend, 128));
}

static nsai_tiles tiles_of(int32_t cluster, int32_t warps, int32_t stages) {
  return (nsai_tiles){ { [NSAI_TILE_WARPS] = warps,
                         [NSAI_TILE_STAGES] = stages,
                         [NSAI_TILE_CTAS] = 1,
                         [NSAI_TILE_CLUSTER] = cluster } };
}

static bool fits(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  const uint32_t bytes = shared_bytes(p, t, s);
  return bytes <= t->shared_bytes && nsai_holds_ctas(t, bytes, s->of[NSAI_TILE_CTAS]);
}

/* Four warps and three stages take 96 KB at D 128, which a multiprocessor has beside the CTAs that
 * compute importance of few sequences: the kernel attends to the forced blocks meanwhile. (With a
 * stage more for those CTAs, so that it has not, one sequence of MiniMax-M3 takes 17.4 us for 15.5.
 * H200, 64k.) A CTA that scores, alone on a multiprocessor, has eight warps, of which six score
 * while two attend: H200, MiniCPM4, 64k tokens, one sequence 15.3 us. Each in a session of its own:
 * four warps that score and then attend 20.1, four of eight that score 15.9 (six 15.6), three
 * stages in place of two 16.1 (16.0). Tried without gain: forced blocks prefetched into L2 while
 * coarse keys are read. */
static nsai_tiles shape(const nsai_problem *p, const nsai_target *t, int32_t cluster,
                        int32_t ctas) {
  const nsai_tiles eight = tiles_of(cluster, 8, 2);
  if (scores(p) && ctas == 1 && cluster > 1 && fits(p, t, &eight)) return eight;
  nsai_tiles three = tiles_of(cluster, 4, 3);
  three.of[NSAI_TILE_CTAS] = ctas;
  return fits(p, t, &three) || ctas > 1 ? three : tiles_of(cluster, 4, 2);
}

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  const nsai_model *m = &p->model;
  const int before = reasons->count;
  const nsai_tiles least = tiles_of(1, 4, 2);
  nsai_legal_common(p, reasons);
  nsai_decode_legal_ranks(p, reasons);
  if (nsai_ranks_by_branch(m) || nsai_compresses_values(m) || m->window)
    nsai_refuse(reasons,
                "the model has branches beside the selected one, or ranks blocks by its compressed "
                "branch: take decode_split_kv");
  if (!m->select_count || p->selection != NSA_SELECT_TOPN || p->max_probe_rows)
    nsai_refuse(reasons,
                "problem.selection is a caller's, nothing is selected, or rows are probed: take "
                "decode_split_kv");
  if (p->count_reads)
    nsai_refuse(reasons,
                "runtime.count_reads is true, and it does not count: take decode_split_kv");
  if (nsai_target_major(t) < 9)
    nsai_refuse(reasons, "clusters of CTAs need sm_90 or later: take decode_split_kv");
  if (nsai_padded_group(m) > ROWS)
    nsai_refuse(reasons, "a KV head has %d heads, and it takes %d at most: take decode_split_kv",
                m->heads / m->kv_heads, ROWS);
  if (nsai_free_blocks(m) > MOST_FREE)
    nsai_refuse(reasons,
                "model.select leaves %d blocks to the search, and it takes %d at most: take "
                "decode_split_kv",
                nsai_free_blocks(m), MOST_FREE);
  if (reasons->count == before) nsai_fit_cta(t, shared_bytes(p, t, &least), reasons);
}

/* ---- sizes of clusters */

static const int32_t clusters[] = { 16, 8, 4, 2, 1 };
#define CLUSTERS (int)(sizeof clusters / sizeof *clusters)

static int64_t most_items(const nsai_problem *p) { return nsai_decode_most_items(p, 1); }

/* The largest clusters that all run at once, by two CTAs to a multiprocessor where they fit; the largest of all
 * alone, if they can. False where those of one CTA do not run at once: decode_split_kv takes such steps. Where the
 * cluster scores blocks, CTAs of one take any number. (H200, 64k tokens, us of decode_split_kv, and of this:
 * MiniMax-M3, 1, 2, 4 and 64 sequences 21.6 and 14.1, 27.6 and 20.9, 39.3 and 31.7, 344 and 330; MiniCPM4, 1, 4,
 * 16, 32 and 64 38.2 and 15.3, 46.8 and 24.5, 92.3 and 55.8, 160.5 and 91.3, 353 and 142. With one CTA on a
 * multiprocessor alone MiniCPM4, 4, 16 and 64: 30.2, 73.4, 151.) */
static bool tiles_for(const nsai_problem *p, const nsai_target *t, int64_t items, nsai_tiles *out) {
  const int32_t largest = nsai_decode_largest_cluster(t);
  for (int i = 0; i < CLUSTERS; i++) {
    const int32_t cluster = clusters[i];
    const nsai_tiles two = shape(p, t, cluster, 2);
    if (cluster > largest) continue;
    *out = shape(p, t, cluster, 1);
    if ((cluster == largest || !fits(p, t, &two)) && fits(p, t, out) &&
        items * cluster <= nsai_decode_ctas_at_once(cluster))
      return true;
    *out = two;
    if (fits(p, t, out) && items * cluster <= 2 * nsai_decode_ctas_at_once(cluster)) return true;
  }
  *out = shape(p, t, 1, 2);
  if (!fits(p, t, out)) *out = shape(p, t, 1, 1);
  return scores(p) && fits(p, t, out);
}

static nsai_tiles choose(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  nsai_tiles tiles;
  *by = nsai_target_is(t, NSAI_H200) ? NSAI_BY_DEVICE : NSAI_BY_ARCHITECTURE;
  if (!tiles_for(p, t, most_items(p), &tiles)) tiles = shape(p, t, 1, 1);
  return fits(p, t, &tiles) ? tiles : tiles_of(1, 4, 2);
}

static void fit(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                nsai_reasons *reasons) {
  nsai_fit_cta(t, shared_bytes(p, t, s), reasons);
  nsai_fit_threads(s, reasons);
  if (s->of[NSAI_TILE_CLUSTER] > nsai_decode_largest_cluster(t))
    nsai_refuse(reasons, "clusters of %d are more than every device takes",
                s->of[NSAI_TILE_CLUSTER]);
}

/* Waves of all items' clusters, and the steps that one of their warps takes after the other. */
static double cost(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  const int32_t ctas = s->of[NSAI_TILE_CTAS], cluster = s->of[NSAI_TILE_CLUSTER];
  const int32_t warps = s->of[NSAI_TILE_WARPS];
  if (!fits(p, t, s) || warps * ctas > 8) return INFINITY;
  const int64_t room = ctas * nsai_decode_ctas_at_once(cluster);
  const int64_t steps = nsai_ceil_div(nsai_decode_raw_keys(p), NSAI_DECODE_STEP);
  return (double)nsai_ceil_div(nsai_larger(most_items(p), 1) * cluster, room) *
         (1 + (double)steps / (32.0 * cluster * warps) + 1.0 / s->of[NSAI_TILE_STAGES]);
}

static const nsai_space space = {
  4,
  { { NSAI_TILE_WARPS, { 4, 8 }, "each streams keys of its own; more search faster" },
    { NSAI_TILE_STAGES, { 2, 3, 4 }, "bytes on their way against shared memory" },
    { NSAI_TILE_CTAS, { 1, 2 }, "others stream while one searches; registers are divided" },
    { NSAI_TILE_CLUSTER,
      { 1, 2, 4, 8, 16 },
      "CTAs that share a token's keys, against waits for each other" } },
  choose,
  fit,
  cost,
};

/* ---- forms */

static bool is_same(const nsai_tiles *a, const nsai_tiles *b) {
  return a->of[NSAI_TILE_CLUSTER] == b->of[NSAI_TILE_CLUSTER] &&
         a->of[NSAI_TILE_CTAS] == b->of[NSAI_TILE_CTAS];
}

/* Those that some step of the plan takes, the largest clusters first. */
static int forms(const nsai_problem *p, const nsai_target *t, const nsai_choice *before,
                 nsai_tiles out[NSAI_MAX_STAGE_FORMS]) {
  const int64_t heads = p->model.kv_heads;
  int count = 0;
  nsai_tiles tiles;
  (void)before;
  if (t->register_fallback || nsai_target_major(t) != 9 ||
      nsai_decode_raw_keys(p) > NSAI_DECODE_MOST_RAW_KEYS)
    return 0;
  for (int64_t items = heads; items <= most_items(p) && tiles_for(p, t, items, &tiles);
       items += heads)
    if ((!count || !is_same(&tiles, &out[count - 1])) && count < NSAI_MAX_STAGE_FORMS)
      out[count++] = tiles;
  return count;
}

static bool suits(const nsai_request *r, int64_t items) {
  nsai_tiles tiles;
  return tiles_for(r->problem, r->target, items, &tiles) && is_same(&tiles, r->tiles);
}

/* ---- kernels */

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const nsai_tiles *s = r->tiles;
  const int32_t cluster = s->of[NSAI_TILE_CLUSTER];
  nsai_kernel_spec *spec = &kernel[ATTEND];
  *spec = (nsai_kernel_spec){ .entry = "decode_select_attend",
                              .dtype = p->model.dtype,
                              .threads = 32 * s->of[NSAI_TILE_WARPS],
                              .shared_bytes = shared_bytes(p, r->target, s),
                              .tile_tokens = 1,
                              .cluster = cluster > 1 ? cluster : 0,
                              .compile_cost = 400 };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_blocks_add(spec, &p->model);
  nsai_constant_add(spec, "kSigned", p->model.by == NSAI_BY_INDEX);
  nsai_constant_add(spec, "kMostBlocks", most_blocks(p));
  nsai_constant_add(spec, "kPageSize", p->page_size);
  nsai_decode_raw_codes_add(spec, p);
  nsai_constant_add(spec, "kCountReads", 0);
  nsai_constant_add(spec, "kWgmma", 0);
  nsai_constant_add(spec, "kScanRows", ROWS);
  nsai_constant_add(spec, "kWarps", s->of[NSAI_TILE_WARPS]);
  nsai_constant_add(spec, "kStages", s->of[NSAI_TILE_STAGES]);
  nsai_constant_add(spec, "kCluster", cluster);
  nsai_constant_add(spec, "kMinBlocks", s->of[NSAI_TILE_CTAS]);
  nsai_constant_add(spec, "kScores", scores(p));
  if (scores(p)) {
    const nsai_mean coarse = nsai_normalizer_keys(&p->model);
    nsai_constant_add(spec, "kNormBlock", coarse.block);
    nsai_constant_add(spec, "kNormStride", coarse.stride);
    nsai_constant_add(spec, "kMaxPool", p->model.pool == NSAI_POOL_MAX);
    return;
  }
  nsai_step_scores_specify(r, false, &kernel[SCORES]);
  if (p->model.by != NSAI_BY_INDEX) nsai_normalizer_specify(p, r->target, 0, &kernel[NORMALIZER]);
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  if (kernel[NORMALIZER].entry)
    nsai_normalizer_workspace(r, &kernel[NORMALIZER], &out->bytes[NORMALIZED]);
}

/* ---- launches */

static nsa_status attend(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_workspace *w = &run->plan->workspace;
  const int64_t tokens = span->token_end - span->token_begin;
  const nsai_decode_split split = { .tiles = run->sizes.tokens };
  const nsai_model *m = &run->plan->problem.model;
  /* A kernel that does not score takes the first member alone. */
  NsaiScoredAttend p = { .attend = { .coded = nsai_decode_params(run, &split),
                                     .importance = nsai_decode_at(run, w->importance),
                                     .importance_token_stride = m->kv_heads * w->importance_columns,
                                     .importance_head_stride = w->importance_columns,
                                     .token_begin = (int)span->token_begin,
                                     .token_end = (int)span->token_end } };
  if (scores(&run->plan->problem) && nsai_run_selects(run))
    p.coarse = nsai_cache_tensor(m->norm_block ? &run->io->k_norm : &run->io->kv.k_cmp);
  return nsai_launch(run->queue, &form->kernel[ATTEND],
                     (uint64_t)(tokens * form->tiles.of[NSAI_TILE_CLUSTER]),
                     (uint32_t)run->plan->problem.model.kv_heads, &p);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *kernel = form->kernel;
  const nsai_problem *p = &run->plan->problem;
  const int64_t tokens = run->sizes.tokens, step = run->plan->workspace.chunk_tokens;
  const bool ranks = nsai_run_selects(run);
  nsai_split_lse lse = { .parts = 1 };
  (void)span;
  if (scores(p)) {
    const nsai_span all = { .token_begin = 0, .token_end = tokens };
    return attend(run, form, &all);
  }
  if (ranks && p->model.by != NSAI_BY_INDEX) {
    lse = nsai_normalizer_lse(run, &kernel[NORMALIZER], &form->buffer[NORMALIZED]);
    NSAI_TRY(nsai_normalizer_enqueue(run, &kernel[NORMALIZER], &form->buffer[NORMALIZED]));
  }
  for (int64_t begin = 0; begin < tokens; begin += step) {
    const nsai_span chunk = { .token_begin = begin,
                              .token_end = nsai_smaller(begin + step, tokens) };
    if (ranks) NSAI_TRY(nsai_step_scores_enqueue(run, &kernel[SCORES], &lse, &chunk));
    NSAI_TRY(attend(run, form, &chunk));
  }
  return NSA_OK;
}

const nsai_variant nsai_decode_select_attend = {
  .name = "decode_select_attend",
  .stage = NSAI_STAGE_DECODE,
  .why = "importance, then select and attend in one launch, a cluster of CTAs for each token and "
         "KV head",
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
