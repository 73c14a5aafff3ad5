/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "options.h"

#include "base/math.h"
#include "models.h"
#include "verify/parallel.h"

#include <string.h>

static uint64_t next(uint64_t *state) {
  return nsai_verify_mix(*state += 0x9e3779b97f4a7c15u); /* splitmix64 */
}

#define PICK(state, list) ((list)[next(state) % (sizeof(list) / sizeof *(list))])

static void random_model(uint64_t *random, nsai_model *g) {
  static const int32_t groups[] = { 1, 2, 3, 4, 5, 7, 8, 16, 16, 16, 24, 32, 64 };
  static const int32_t dims[] = { 16, 32, 64, 72, 96, 128, 128, 128, 128, 192, 256 };
  static const int32_t strides[] = { 1, 2, 4, 8, 16, 16, 16 };
  static const int32_t overlaps[] = { 1, 2, 2, 2, 4 };
  static const int32_t counts[] = { 0, 1, 4, 8, 16, 16, 20, 40 };
  static const int32_t windows[] = { 0, 1, 5, 33, 64, 100, 512 };
  static const nsai_gate_kind gates[] = { NSAI_GATE_WEIGHTS, NSAI_GATE_LOGITS, NSAI_GATE_WEIGHTS,
                                          NSAI_GATE_LOGITS, NSAI_GATE_NONE };
  g->kv_heads = (int32_t)(1 + next(random) % 3);
  g->heads = g->kv_heads * PICK(random, groups);
  g->head_dim_qk = PICK(random, dims);
  g->head_dim_v = next(random) % 3 ? g->head_dim_qk : PICK(random, dims);
  g->stride = PICK(random, strides);
  g->block = g->stride * PICK(random, overlaps);
  g->select_block = g->block;
  while (next(random) % 4 && g->select_block < 128) g->select_block += g->stride;
  if (next(random) % 2 && g->block <= 64 && 64 % g->stride == 0) g->select_block = 64;
  g->select_count = PICK(random, counts);
  g->select_init = g->select_count > 2 ? (int32_t)(next(random) % 3) : 0;
  g->select_local = g->select_count > 4 ? (int32_t)(next(random) % 3) : g->select_count > 0;
  g->window = PICK(random, windows);
  g->per_branch = next(random) % 2;
  g->dtype = next(random) % 3 ? NSA_BF16 : NSA_F16;
  g->phi = next(random) % 8 ? NSAI_PHI_MEAN : NSAI_PHI_EXTERNAL;
  if (g->block * g->head_dim_qk <= 2048 && next(random) % 4 == 0)
    g->phi = next(random) % 2 ? NSAI_PHI_LINEAR : NSAI_PHI_MLP;
  g->phi_hidden = g->phi == NSAI_PHI_MLP ? 48 : 0;
  g->phi_activation = NSAI_ACT_SILU;
  g->gate = PICK(random, gates);
  g->gate_channels = 64;
  g->gate_hidden = 32;
  g->gate_activation = NSAI_ACT_SILU;
}

/* If a check can afford it: more selection blocks than decode_split_kv_select keeps the
 * importance of, and as many compressed ones. */
#define LONG_FROM 1000
#define LONG_BLOCKS 4096
static void make_long(chk_cache_options *out) {
  nsai_model *g = &out->model;
  g->block = g->stride = g->select_block = 4;
  g->heads = g->heads / g->kv_heads < 8 ? g->heads / g->kv_heads : 8;
  g->kv_heads = 1;
  if (g->head_dim_qk > 64) g->head_dim_qk = 64;
  if (g->head_dim_v > 64) g->head_dim_v = 64;
  out->max_kv_len = 4 * LONG_BLOCKS * 2; /* sequences have any fraction of this length */
  out->chunk = LONG_BLOCKS;
  if (out->seqs > 2) out->seqs = 2;
  if (out->max_q_len > 2) out->max_q_len = 2;
  out->ring = out->probed = false;
  if (out->page_size > 0) out->slots = false; /* slots belonged to the rings */
  if (!g->select_count) g->select_count = 16;
}

static bool has_probed_rows(const chk_cache_options *o) {
  return o->seqs * o->max_q_len >= CHK_CACHE_PROBES;
}

/* More blocks to search than half a warp has lanes, in contexts with few more blocks than are
 * selected. Some threads that share a search then have few blocks or none. */
#define SEARCHED_FROM 2100
#define SEARCHED_TO 4096
static void make_searched(chk_cache_options *out) {
  static const int32_t counts[][3] = { { 32, 1, 2 }, { 16, 0, 1 }, { 18, 1, 2 }, { 34, 1, 1 } };
  nsai_model *g = &out->model;
  uint64_t random = out->seed * 0x9fb21c651e98df25ull + 1;
  const int32_t *count = PICK(&random, counts), group = g->heads / g->kv_heads;
  g->kv_heads = g->kv_heads < 2 ? g->kv_heads : 2;
  g->heads = g->kv_heads * (group < 16 ? group : 16);
  if (g->head_dim_qk > 128) g->head_dim_qk = 128;
  if (g->head_dim_v > 128) g->head_dim_v = 128;
  if (g->phi != NSAI_PHI_EXTERNAL)
    g->phi = NSAI_PHI_MEAN;           /* products of blocks of 32 are slow here */
  g->norm_block = g->norm_stride = 0; /* of other strides */
  g->stride = next(&random) % 2 ? 16 : 32;
  g->block = 32;
  g->select_block = 64;
  g->select_count = count[0];
  g->select_init = count[1];
  g->select_local = count[2];
  if (out->page_size == 16 && g->stride == 32) out->page_size = 32;
  if (out->seqs > 4) out->seqs = 4;
  if (out->max_q_len > 4) out->max_q_len = 4;
  out->probed = out->probed && has_probed_rows(out);
  out->least_kv_len = SEARCHED_FROM;
  out->max_kv_len = SEARCHED_TO;
}

/* One scenario in five has a selection of the caller; half of the others have probes. */
static void choose_lists(uint64_t *random, chk_cache_options *out) {
  bool selects = out->model.select_count > 0;
  out->shared_lists = next(random) % 2;
  out->selection = NSA_SELECT_TOPN;
  if (selects && next(random) % 5 == 0)
    out->selection = next(random) % 2 ? NSA_SELECT_BLOCKS : NSA_SELECT_RANGES;
  out->probed =
      selects && out->selection == NSA_SELECT_TOPN && next(random) % 2 && has_probed_rows(out);
}

/* The pages of a cache hold a whole number of strides, those of coarse keys included; a model of
 * another stride has rows. */
static int32_t fit_page(const nsai_model *g, int32_t page_size) {
  const int32_t stride = g->norm_block ? g->norm_stride : g->stride; /* a multiple of the other */
  while (page_size > 0 && page_size < NSAI_MAX_PAGE_SIZE && page_size % stride) page_size *= 2;
  return page_size > 0 && page_size % stride ? NSA_NONE : page_size;
}

/* Whether the scenario has a model that it does not draw. */
static bool has_model(const chk_cache_case *c) { return c->model || c->given; }

static void make_random(const chk_cache_case *c, chk_cache_options *out) {
  static const int32_t pages[] = { NSA_NONE, 16, 32, 64, 64, 128 };
  static const int32_t q_lens[] = { 1, 1, 2, 4, 5, 16 };
  const int32_t longest = c->longest;
  uint64_t random = (c->seed ^ c->model << 32) * 0x2545f4914f6cdd1dull + 1;
  memset(out, 0, sizeof *out);
  out->seed = c->seed;
  random_model(&random, &out->model);
  if (c->model) chk_model_random(c->model, &out->model);
  if (c->given) out->model = *c->given;
  out->page_size = fit_page(&out->model, PICK(&random, pages));
  out->hnd = next(&random) % 2;
  out->lists = out->page_size > 0 && next(&random) % 2;
  out->ring = out->model.per_branch && out->model.window && next(&random) % 2;
  out->slots = (out->page_size < 0 || out->ring) && next(&random) % 2;
  out->mapping = out->page_size > 0 && next(&random) % 3 == 0;
  out->graph = next(&random) % 2;
  out->ragged = !out->graph && next(&random) % 2;
  out->seqs = (int32_t)(1 + next(&random) % CHK_CACHE_SEQS);
  out->max_q_len = PICK(&random, q_lens);
  out->op = NSA_OP_DECODE;
  out->max_kv_len = (int32_t)(longest / 4 + (int64_t)(next(&random) % (uint64_t)longest));
  out->steps = 6;
  out->repeats = 4;
  out->softmax_scale = next(&random) % 4 ? 0 : 0.02f + 0.01f * (float)(next(&random) % 20);
  out->masks = !out->graph && next(&random) % 4 == 0;
  choose_lists(&random, out);
  out->counted = next(&random) % 2;
  if (has_model(c)) return;
  if (next(&random) % 5 == 0) out->model.gate = NSAI_GATE_MLP;
  bool takes_long = longest >= LONG_FROM, is_long = takes_long && next(&random) % 20 == 0;
  if (is_long)
    make_long(out);
  else if (takes_long && next(&random) % 12 == 0)
    make_searched(out);
}

static void make_plain(chk_cache_options *out) {
  out->selection = NSA_SELECT_TOPN;
  out->probed = out->counted = false;
}

static void make_prefill(chk_cache_options *out) {
  uint64_t random = out->seed * 0xd1342543de82ef95ull + 1;
  out->op = NSA_OP_PREFILL;
  out->counted = false;
  out->max_q_len = (int32_t)(1 + next(&random) % (out->model.heads > 16 ? 70 : 300));
  out->ragged = next(&random) % 4 > 0;
  choose_lists(&random, out);
  if (out->max_kv_len < 8 * out->max_q_len) out->max_kv_len = 8 * out->max_q_len;
}

static void make_soak(chk_cache_options *out, int32_t longest) {
  nsai_model *g = &out->model;
  int32_t group = g->heads / g->kv_heads;
  g->kv_heads = g->kv_heads < 2 ? g->kv_heads : 2;
  g->heads = g->kv_heads * (group < 8 ? group : 8);
  if (g->head_dim_qk > 128) g->head_dim_qk = 128;
  if (g->head_dim_v > 128) g->head_dim_v = 128;
  if (g->phi == NSAI_PHI_EXTERNAL) g->phi = NSAI_PHI_MEAN;
  if (!g->select_count) { /* every branch must run, and there must be blocks to select */
    g->select_count = 4;
    g->select_init = g->select_local = 1;
  }
  if (!g->window) g->window = 100;
  if (out->page_size < 0) out->page_size = 32;
  out->ring = out->slots = out->masks = out->probed = out->counted = false;
  out->graph = out->ragged = true;
  out->selection = NSA_SELECT_TOPN;
  out->seqs = CHK_CACHE_SEQS;
  out->max_q_len = 16;
  out->chunk = 128;
  out->least_kv_len = 0; /* of a searched scenario, and perhaps above what is the longest here */
  out->max_kv_len = longest;
}

static void make_split(bool given, chk_cache_options *out) {
  nsai_model *g = &out->model;
  int32_t group = g->heads / g->kv_heads;
  make_prefill(out);
  if (!given) {
    g->kv_heads = g->kv_heads < 2 ? g->kv_heads : 2;
    g->heads = g->kv_heads * (group < 16 ? group : 16);
  }
  if (nsai_compresses(g))
    g->phi = NSAI_PHI_MEAN; /* products of other shapes may round differently */
  if (out->seqs > 3) out->seqs = 3;
  out->masks = out->probed = out->graph = false;
  out->selection = NSA_SELECT_TOPN;
  out->max_q_len = out->ring && out->max_q_len > 40 ? 40 : out->max_q_len;
  out->chunk = out->max_q_len;
}

/* Scenarios that random ones do not include: hundreds of sequences, long ones, and plans for
 * many sequences of maximal length, whose intermediate results exceed 2^31 elements. */
typedef struct large_scenario {
  int32_t seqs, least, most; /* tokens of a sequence */
  int32_t chunk, q_len;      /* new tokens in an append; the most in a step */
  int32_t kv_heads, group, dim;
  int32_t block, stride, select_block, count, window;
  int32_t longest; /* 0: the same as `most` */
} large_scenario;
static const large_scenario large_scenarios[] = {
  { 1024, 0, 300, 40, 4, 2, 4, 64, 16, 8, 16, 6, 33 },
  { 256, 0, 2000, 500, 4, 2, 8, 32, 32, 16, 64, 16, 512 },
  { 2, 3 << 18, 1 << 20, 1 << 17, 16, 1, 4, 16, 32, 16, 64, 16, 512 },
  { 2, 3 << 15, 1 << 17, 1 << 14, 16, 1, 16, 128, 32, 16, 64, 16, 512 },
  { 1024, 0, 1 << 20, 100, 1, 9, 2, 16, 32, 16, 64, 6, 33, .longest = 700 },
  /* fewer work items than half of an H200's multiprocessors; the next one: fewer than all */
  { 14, 0, 6000, 1500, 1, 4, 16, 128, 32, 16, 64, 16, 512 },
  { 28, 0, 3000, 40, 1, 4, 8, 96, 32, 16, 64, 12, 200 }, /* some with a ring */
};
#define LARGE_SCENARIOS (sizeof large_scenarios / sizeof *large_scenarios)

static void make_large(int32_t op, chk_cache_options *out) {
  const uint64_t number = out->seed - 1, layout = number / LARGE_SCENARIOS;
  const large_scenario *x = &large_scenarios[number % LARGE_SCENARIOS];
  nsai_model *g = &out->model;
  g->kv_heads = x->kv_heads;
  g->heads = x->kv_heads * x->group;
  g->head_dim_qk = g->head_dim_v = x->dim;
  g->block = x->block;
  g->stride = x->stride;
  g->norm_block = g->norm_stride = 0; /* of another model */
  g->select_block = x->select_block;
  g->select_count = x->count;
  g->select_init = 1;
  g->select_local = 2;
  g->window = x->window;
  if (x->dim > 64 && g->phi != NSAI_PHI_EXTERNAL) g->phi = NSAI_PHI_MEAN;
  const int32_t pages = out->page_size > 16 ? out->page_size : 16;
  out->page_size = layout % 2 || x->longest ? pages : NSA_NONE;
  out->lists = out->lists && out->page_size > 0;
  out->mapping = out->mapping && out->page_size > 0;
  /* tokens that the ring holds in addition to the window */
  out->ring = out->ring && g->per_branch && x->chunk <= 40;
  out->slots = out->slots && (out->page_size < 0 || out->ring);
  out->probed = false;
  if (out->selection == NSA_SELECT_RANGES)
    out->selection = NSA_SELECT_BLOCKS; /* ranges of limited length only */
  out->seqs = x->seqs;
  out->least_kv_len = x->least;
  out->max_kv_len = x->most;
  out->short_kv_len = x->longest;
  out->chunk = x->chunk;
  out->op = op;
  if (out->op == NSA_OP_PREFILL) out->counted = false;
  if (out->max_q_len > x->q_len) out->max_q_len = x->q_len;
  if (out->op == NSA_OP_PREFILL) out->max_q_len = 3 * x->q_len;
  out->steps = 3;
}

/* How blocks are ranked, in a third of the scenarios other than by the branch's own sum. Draws nothing
 * that other scenarios draw. */
static void make_ranking(chk_cache_options *out) {
  uint64_t random = out->seed * 0x94d049bb133111ebull + 1;
  nsai_model *g = &out->model;
  if (!g->select_count || next(&random) % 3) return;
  if (next(&random) % 2) g->pool = NSAI_POOL_MAX;
  if (next(&random) % 2 && !g->per_branch) g->keys_only = 1;
  if (next(&random) % 3 == 0 || g->phi == NSAI_PHI_EXTERNAL) return;
  g->norm_stride = g->stride;
  while (next(&random) % 2 && (out->page_size < 0 || out->page_size % (2 * g->norm_stride) == 0))
    g->norm_stride *= 2;
  g->norm_block = g->norm_stride * (int32_t)(1 + next(&random) % 4);
}

/* One scenario in six has an index that chooses its blocks, and no compressed keys. */
static void make_index(chk_cache_options *out) {
  uint64_t random = out->seed * 0xd6e8feb86659fd93ull + 1;
  static const int32_t index_dims[] = { 16, 24, 64, 128, 128, 256 };
  nsai_model *g = &out->model;
  if (!g->select_count || next(&random) % 6) return;
  g->by = NSAI_BY_INDEX;
  g->phi = NSAI_PHI_NONE;
  g->pool = NSAI_POOL_MAX;
  g->keys_only = g->norm_block = g->norm_stride = 0;
  g->index_heads = g->kv_heads;
  g->index_dim = PICK(&random, index_dims);
}

/* Draws nothing that other scenarios draw: without codes a seed's scenario stays what it is. */
static void make_codes(chk_cache_codes codes, chk_cache_options *out) {
  uint64_t random = out->seed * 0xbf58476d1ce4e5b9ull + 1;
  nsai_model *g = &out->model;
  if (codes == CHK_CACHE_CODES_ANY) codes = (chk_cache_codes)(next(&random) % CHK_CACHE_CODES_ANY);
  if (codes == CHK_CACHE_CODES_NONE) return;
  out->kv_codes = codes != CHK_CACHE_CODES_CMP;
  const bool index = g->by == NSAI_BY_INDEX;
  out->cmp_codes = codes != CHK_CACHE_CODES_KV && (nsai_compresses(g) || index);
  out->head_scales = next(&random) % 2;
  out->scales = (chk_cache_scales)(next(&random) % 3);
  g->head_dim_qk = (int32_t)nsai_round_up(g->head_dim_qk, NSAI_CODES_DIM_STEP);
  g->head_dim_v = (int32_t)nsai_round_up(g->head_dim_v, NSAI_CODES_DIM_STEP);
  if (index) g->index_dim = (int32_t)nsai_round_up(g->index_dim, NSAI_CODES_DIM_STEP);
}

void chk_cache_options_make(const chk_cache_case *c, chk_cache_options *out) {
  const int32_t op = c->kind == CHK_CACHE_PREFILL ? NSA_OP_PREFILL : NSA_OP_DECODE;
  make_random(c, out);
  if (c->searched) make_searched(out);
  if (c->kind == CHK_CACHE_SOAK)
    make_soak(out, c->longest);
  else if (c->large)
    make_large(op, out);
  else if (c->kind == CHK_CACHE_SPLIT)
    make_split(has_model(c), out);
  else if (c->kind == CHK_CACHE_PREFILL)
    make_prefill(out);
  if (!has_model(c)) make_ranking(out);
  if (!has_model(c)) make_index(out);
  make_codes(c->codes, out);
  out->spread = c->spread;
  out->force = c->force;
  if (c->force && c->force->stage == NSAI_STAGE_DECODE) make_plain(out);
  if (c->steps >= 0 && c->kind != CHK_CACHE_SOAK) out->steps = (int32_t)c->steps;
  if (c->repeats >= 0) out->repeats = c->repeats;
}

chk_cache_kind chk_cache_case_kind(const chk_cache_case *c) {
  if (c->large)
    return (c->seed - 1) / LARGE_SCENARIOS / 2 % 2 ? CHK_CACHE_PREFILL : CHK_CACHE_DECODE;
  nsai_model model = { .phi = NSAI_PHI_MEAN };
  if (c->model) chk_model_random(c->model, &model);
  if (c->given) model = *c->given;
  if (c->seed % 7 == 0 && model.phi == NSAI_PHI_MEAN) return CHK_CACHE_SPLIT;
  return c->seed % 2 == 0 ? CHK_CACHE_PREFILL : CHK_CACHE_DECODE;
}

static const char *const scales_names[] = { "", " raw scales", " no scales" };
static const char *const phi_names[] = { "", " linear", " mlp", " external", "" };

void chk_cache_options_print(const chk_cache_options *o, FILE *out) {
  const nsai_model *g = &o->model;
  char norm[40] = "";
  if (g->norm_block) snprintf(norm, sizeof norm, " norm%d/%d", g->norm_block, g->norm_stride);
  if (g->by == NSAI_BY_INDEX) snprintf(norm, sizeof norm, " index%d", g->index_dim);
  fprintf(out,
          "h%d/%d d%d/%d l%d/%d s%dx%d+%d+%d w%d %s%s%s%s%s%s%s page%d%s%s%s%s%s%s%s%s%s%s%s"
          "%s%s%s%s scale %.2f seq%d q%d len%d",
          g->heads, g->kv_heads, g->head_dim_qk, g->head_dim_v, g->block, g->stride,
          g->select_block, g->select_count, g->select_init, g->select_local, g->window,
          g->dtype == NSA_F16 ? "fp16" : "bf16", g->per_branch ? " branch" : "",
          g->gate == NSAI_GATE_MLP    ? " gates"
          : g->gate == NSAI_GATE_NONE ? " no gates"
                                      : "",
          phi_names[g->phi], g->keys_only ? " keys only" : "",
          g->pool == NSAI_POOL_MAX ? " max" : "", norm, o->page_size, o->hnd ? " hnd" : "",
          o->lists ? " lists" : "", o->ring ? " ring" : "", o->slots ? " slots" : "",
          o->mapping ? " mapping" : "", o->graph ? " graph" : "", o->ragged ? " ragged" : "",
          o->selection == NSA_SELECT_TOPN     ? ""
          : o->selection == NSA_SELECT_BLOCKS ? " blocks"
                                              : " ranges",
          o->probed ? " probed" : "", o->masks ? " masks" : "", o->counted ? " counted" : "",
          o->kv_codes ? " e4m3" : "",
          !o->cmp_codes            ? ""
          : g->by == NSAI_BY_INDEX ? " keys e4m3"
                                   : " entries e4m3",
          o->head_scales ? " head scales" : "", scales_names[o->scales], (double)o->softmax_scale,
          o->seqs, o->max_q_len, o->max_kv_len);
}
