/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "plan/problem.h"

#include "base/math.h"
#include "base/struct.h"
#include "plan/forms.h"
#include "plan/ranks_memory.h"

#include <nsa/ranks.h>
#include <string.h>

static const nsai_struct_type problem_type = { "problem", "NSA_PROBLEM_INIT", sizeof(nsa_problem) };

nsa_status nsai_problem_check_array(const nsa_problem *problems, size_t count) {
  return nsai_struct_check_array(&problem_type, problems, count);
}

static nsa_status check_capacity(const char *name, const char *serving_key, int64_t value,
                                 int64_t limit) {
  if (value < 1)
    return nsai_fail(NSA_E_ARG,
                     "problem.%s is %lld: give at least 1, or set serving.%s in the configuration",
                     name, (long long)value, serving_key);
  if (value > limit)
    return nsai_fail(NSA_E_ARG, "problem.%s is %lld: at most %lld are supported", name,
                     (long long)value, (long long)limit);
  return NSA_OK;
}

static nsa_status check_choice(const char *name, int32_t value, int32_t low, int32_t high) {
  if (value < low || value > high)
    return nsai_fail(NSA_E_ARG, "problem.%s is %d: expected %d to %d, see include/nsa/problem.h",
                     name, value, low, high);
  return NSA_OK;
}

/* A capacity that `serving` has, too: 0 takes it from there, NSA_NONE does not. */
static int64_t or_serving(int64_t value, int64_t serving) {
  return value == NSA_NONE ? 0 : value ? value : serving;
}

const char *nsai_op_name(int32_t op) {
  static const char *const names[] = { "NSA_OP_FORWARD", "NSA_OP_DENSE",  "NSA_OP_PREFILL",
                                       "NSA_OP_DECODE",  "NSA_OP_APPEND", "NSA_OP_BACKWARD",
                                       "NSA_OP_INDEX_KL" };
  return op >= NSA_OP_FORWARD && op <= NSA_OP_INDEX_KL ? names[op - NSA_OP_FORWARD]
                                                       : "no operation";
}

/* Capacities of packed K and V. */
static nsa_status resolve_packed(const nsai_config *config, const nsa_problem *problem,
                                 nsai_problem *out) {
  const struct {
    const char *name;
    int32_t value;
  } cache_only[] = { { "page_size", problem->page_size },
                     { "max_q_len", problem->max_q_len },
                     { "window_ring", problem->window_ring },
                     { "kv_dtype", problem->kv_dtype },
                     { "cmp_dtype", problem->cmp_dtype } };
  for (size_t i = 0; i < sizeof cache_only / sizeof *cache_only; i++)
    if (cache_only[i].value)
      return nsai_fail(NSA_E_ARG, "problem.%s is %d, but %s has no cache: leave it 0",
                       cache_only[i].name, cache_only[i].value, nsai_op_name(out->op));
  const bool local = problem->max_tokens && !out->ranks;
  out->max_kv_tokens = or_serving(problem->max_kv_tokens,
                                  local ? problem->max_tokens : config->serving.max_kv_tokens);
  if (!out->max_kv_tokens && out->ranks)
    return nsai_fail(NSA_E_ARG,
                     "problem.ranks is %d, but problem.max_kv_tokens is 0: give the tokens of all "
                     "ranks together",
                     out->ranks);
  if (!out->max_kv_tokens) out->max_kv_tokens = out->max_tokens;
  NSAI_TRY(check_capacity("max_kv_tokens", "max_kv_tokens", out->max_kv_tokens, NSAI_MAX_ROWS));
  if (!out->max_kv_len || out->max_kv_len > out->max_kv_tokens)
    out->max_kv_len = out->max_kv_tokens;
  return NSA_OK;
}

static nsa_status resolve_page_size(const nsai_config *config, const nsa_problem *problem,
                                    nsai_problem *out) {
  out->page_size = (int32_t)or_serving(problem->page_size, config->serving.page_size);
  if (!nsai_page_size_exists(out->page_size))
    return nsai_fail(NSA_E_ARG,
                     "problem.page_size is %d: expected 16, 32, 64, 128, NSA_NONE, or 0 for "
                     "serving.page_size",
                     out->page_size);
  if (nsai_compresses(&config->model) && out->page_size % config->model.stride)
    return nsai_fail(
        NSA_E_ARG,
        "problem.page_size is %d: expected a multiple of model.compress.stride (%d), so "
        "that compressed blocks end in pages evenly",
        out->page_size, config->model.stride);
  if (config->model.norm_stride && out->page_size % config->model.norm_stride)
    return nsai_fail(NSA_E_ARG,
                     "problem.page_size is %d: expected a multiple of "
                     "model.select.normalizer.stride (%d), so that coarse keys end in pages evenly",
                     out->page_size, config->model.norm_stride);
  return NSA_OK;
}

/* The most new tokens of a sequence, and of all. */
static nsa_status resolve_new_tokens(const nsai_config *config, const nsa_problem *problem,
                                     nsai_problem *out) {
  bool decodes = out->op == NSA_OP_DECODE;
  out->max_q_len = (int32_t)or_serving(problem->max_q_len, decodes ? config->serving.max_q_len : 0);
  if (decodes && !out->max_q_len) out->max_q_len = 1;
  if (decodes && (out->max_q_len < 1 || out->max_q_len > NSA_MAX_DECODE_LEN))
    return nsai_fail(NSA_E_ARG,
                     "problem.max_q_len is %d: NSA_OP_DECODE takes 1 to %d new tokens of a "
                     "sequence; more are NSA_OP_PREFILL's",
                     out->max_q_len, NSA_MAX_DECODE_LEN);
  if (decodes && !problem->max_tokens) out->max_tokens = (int64_t)out->max_seqs * out->max_q_len;
  NSAI_TRY(check_capacity("max_tokens", "max_tokens", out->max_tokens, NSAI_MAX_ROWS));
  /* A prefill over ranks has max_tokens of each rank. */
  const bool divided = out->op == NSA_OP_PREFILL && out->ranks;
  const int64_t all =
      nsai_smaller(divided ? out->max_tokens * out->ranks : out->max_tokens, NSAI_MAX_ROWS);
  if (!out->max_q_len) out->max_q_len = (int32_t)all;
  if (out->max_q_len < 1 || out->max_q_len > all)
    return nsai_fail(NSA_E_ARG, "%s.max_q_len is %d: expected 1 to problem.max_tokens%s (%lld)",
                     problem->max_q_len ? "problem" : "serving", out->max_q_len,
                     divided ? " of all ranks" : "", (long long)all);
  return NSA_OK;
}

static nsa_status resolve_ring(const nsai_config *config, const nsa_problem *problem,
                               nsai_problem *out) {
  NSAI_TRY(check_choice("window_ring", problem->window_ring, 0, 1));
  out->window_ring = problem->window_ring;
  if (out->window_ring && (!config->model.per_branch || !config->model.window))
    return nsai_fail(
        NSA_E_ARG, "problem.window_ring is 1, but %s",
        config->model.window
            ? "model.kv_sharing is shared: the selected branch reads every token of the "
              "window's K and V"
            : "model.window is 0: the window branch is off");
  return NSA_OK;
}

/* What a part of the cache is stored in: `asked` by problem.`name`, else by serving.`name`. */
static nsa_status resolve_dtype(const char *name, int32_t asked, int32_t serving,
                                const nsai_model *m, int32_t *out) {
  const bool given = asked != 0;
  if (given && asked != NSA_E4M3 && asked != NSA_NONE)
    return nsai_fail(
        NSA_E_ARG,
        "problem.%s is %d: expected NSA_E4M3 (%d), NSA_NONE for the model's dtype, or 0 "
        "for serving.%s",
        name, asked, NSA_E4M3, name);
  *out = asked == NSA_NONE ? 0 : given ? asked : serving;
  if (!*out) return NSA_OK;
  if (!strcmp(name, "cmp_dtype") && m->by == NSAI_BY_INDEX) {
    if (m->index_dim % NSAI_CODES_DIM_STEP == 0) return NSA_OK;
    return nsai_fail(
        NSA_E_ARG,
        "%s.cmp_dtype is e4m3, but model.index.dim is %d: kernels copy rows of codes in "
        "units of 16 bytes, so it must be a multiple of %d",
        given ? "problem" : "serving", m->index_dim, NSAI_CODES_DIM_STEP);
  }
  const bool narrow = m->head_dim_qk % NSAI_CODES_DIM_STEP != 0;
  if (!narrow && m->head_dim_v % NSAI_CODES_DIM_STEP == 0) return NSA_OK;
  return nsai_fail(
      NSA_E_ARG,
      "%s.%s is e4m3, but model.head_dim_%s is %d: kernels copy rows of codes in units "
      "of 16 bytes, so both head dims must be multiples of %d",
      given ? "problem" : "serving", name, narrow ? "qk" : "v",
      narrow ? m->head_dim_qk : m->head_dim_v, NSAI_CODES_DIM_STEP);
}

/* Capacities of a cache. */
static nsa_status resolve_cached(const nsai_config *config, const nsa_problem *problem,
                                 nsai_problem *out) {
  if (problem->max_kv_tokens)
    return nsai_fail(
        NSA_E_ARG,
        "problem.max_kv_tokens is %lld, but %s reads a cache of any size: leave it 0 and "
        "give max_kv_len",
        (long long)problem->max_kv_tokens, nsai_op_name(out->op));
  bool given = out->selection != NSA_SELECT_TOPN;
  if (out->op == NSA_OP_APPEND && (given || problem->max_probe_rows))
    return nsai_fail(NSA_E_ARG, "problem.%s is %lld, but NSA_OP_APPEND selects nothing: leave it 0",
                     given ? "selection" : "max_probe_rows",
                     (long long)(given ? out->selection : problem->max_probe_rows));
  NSAI_TRY(resolve_page_size(config, problem, out));
  NSAI_TRY(resolve_new_tokens(config, problem, out));
  NSAI_TRY(resolve_dtype("kv_dtype", problem->kv_dtype, config->serving.kv_dtype, &out->model,
                         &out->kv_dtype));
  NSAI_TRY(resolve_dtype("cmp_dtype", problem->cmp_dtype, config->serving.cmp_dtype, &out->model,
                         &out->cmp_dtype));
  return resolve_ring(config, problem, out);
}

/* Whether the configuration says which rows a prefill, or a decode step, has. */
static bool names_rows(const nsai_config *config) {
  static const nsai_stage stages[] = {
    NSAI_STAGE_ATTEND_COMPRESSED, NSAI_STAGE_IMPORTANCE,    NSAI_STAGE_SELECT,
    NSAI_STAGE_ATTEND_SELECTED,   NSAI_STAGE_ATTEND_WINDOW, NSAI_STAGE_DECODE
  };
  for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
    if (config->variants.force[stages[i]]) return true;
  return config->variants.disable.count > 0;
}

/* The context from which a prefill of few tokens is split, where that is left to the library. (H200,
 * random inputs, a chunk of 64 tokens, us, and split: over 8k 109 and 87, over 64k 153 and 118.) */
#define SPLIT_FROM 8192

static int64_t split_from(const nsai_config *config, int32_t op) {
  const int64_t wanted = config->thresholds.prefill_split_from;
  if (op != NSA_OP_PREFILL || names_rows(config)) return 0;
  return wanted < 0 ? SPLIT_FROM : wanted;
}

/* What trains an index: there is one, and blocks that it has chosen. */
static nsa_status check_index_kl(const nsai_problem *p) {
  if (p->model.by != NSAI_BY_INDEX)
    return nsai_fail(NSA_E_ARG, "problem.op is NSA_OP_INDEX_KL, but model.select.by is compressed: "
                                "there is no index to train; set model.select.by to index");
  if (p->selection == NSA_SELECT_RANGES)
    return nsai_fail(NSA_E_ARG, "problem.selection is NSA_SELECT_RANGES, but an index chooses "
                                "blocks: give NSA_SELECT_TOPN or NSA_SELECT_BLOCKS");
  return NSA_OK;
}

/* index_lse needs a model with an index, and an operation that selects blocks by it. */
static nsa_status resolve_index_lse(const nsa_problem *problem, nsai_problem *out) {
  NSAI_TRY(check_choice("index_lse", problem->index_lse, 0, 1));
  out->index_lse = problem->index_lse;
  if (!out->index_lse) return NSA_OK;
  if (out->model.by != NSAI_BY_INDEX)
    return nsai_fail(NSA_E_ARG,
                     "problem.index_lse is 1, but model.select.by is compressed: there is "
                     "no index; leave it 0, or set model.select.by to index");
  if (out->op != NSA_OP_FORWARD && out->op != NSA_OP_PREFILL && out->op != NSA_OP_DECODE)
    return nsai_fail(NSA_E_ARG,
                     "problem.index_lse is 1, but %s does not compute it: leave it 0; "
                     "NSA_OP_FORWARD, NSA_OP_PREFILL and NSA_OP_DECODE do",
                     nsai_op_name(out->op));
  if (out->selection == NSA_SELECT_RANGES)
    return nsai_fail(NSA_E_ARG,
                     "problem.index_lse is 1 and problem.selection is NSA_SELECT_RANGES, "
                     "but an index chooses blocks: give NSA_SELECT_TOPN or "
                     "NSA_SELECT_BLOCKS");
  return NSA_OK;
}

/* Shards may cut each sequence twice; more pieces than this would not fit a run's lists. */
#define MOST_PIECES (2 * NSAI_MAX_SEQS)

/* Of a cache over ranks: tokens of a sequence that lie on one rank, whole pages and whole selection blocks. */
#define LEAST_UNIT_TOKENS 1024

static nsa_status resolve_unit(const nsa_problem *problem, nsai_problem *out) {
  const int32_t block = out->model.select_count ? out->model.select_block : 1;
  const int64_t both = nsai_common_multiple(out->page_size, block);
  const int64_t unit =
      problem->unit_tokens ? problem->unit_tokens : nsai_round_up(LEAST_UNIT_TOKENS, both);
  if (unit < 1 || unit % both || unit > INT32_MAX)
    return nsai_fail(NSA_E_ARG,
                     "problem.unit_tokens is %lld: expected a multiple of %lld, so that pages and "
                     "selection blocks lie whole on a rank, or 0",
                     (long long)unit, (long long)both);
  out->unit_tokens = (int32_t)unit;
  return NSA_OK;
}

/* A cache whose raw pages lie on several ranks; its other capacities are known. */
static nsa_status resolve_ranks_of_cache(const nsa_problem *problem, nsai_problem *out) {
  if (!out->ranks) return NSA_OK;
  if (problem->max_pieces && out->op != NSA_OP_PREFILL)
    return nsai_fail(NSA_E_ARG,
                     "problem.max_pieces is %d, but %s over ranks has no shard: leave it 0",
                     problem->max_pieces, nsai_op_name(out->op));
  if (!out->page_size)
    return nsai_fail(NSA_E_ARG,
                     "problem.ranks is %d, but the cache has no pages, which could lie on several "
                     "ranks: give problem.page_size, or leave problem.ranks 0",
                     problem->ranks);
  if (out->selection == NSA_SELECT_RANGES)
    return nsai_fail(NSA_E_ARG,
                     "problem.ranks is %d and problem.selection is NSA_SELECT_RANGES, but ranges "
                     "of a cache over ranks have no owner: give NSA_SELECT_BLOCKS or leave "
                     "problem.ranks 0",
                     problem->ranks);
  if (out->count_reads)
    return nsai_fail(NSA_E_ARG,
                     "problem.ranks is %d and runtime.count_reads is true, but reads are not "
                     "counted over ranks: set one of them off",
                     problem->ranks);
  out->head_groups = 1;
  return resolve_unit(problem, out);
}

/* The number of ranks, and of pieces or of tokens of a unit; out->max_seqs is known. */
static nsa_status resolve_ranks(const nsa_problem *problem, nsai_problem *out) {
  NSAI_TRY(check_choice("ranks", problem->ranks, 0, NSA_MAX_RANKS));
  if (!problem->ranks && problem->max_pieces)
    return nsai_fail(NSA_E_ARG,
                     "problem.max_pieces is %d, but problem.ranks is 0: leave it 0, or give the "
                     "number of ranks",
                     problem->max_pieces);
  if (problem->unit_tokens && !(problem->ranks && nsai_problem_is_cached(out)))
    return nsai_fail(
        NSA_E_ARG,
        "problem.unit_tokens is %d, but the problem is of no cache over ranks: leave "
        "it 0, or give problem.ranks with NSA_OP_PREFILL, NSA_OP_DECODE or NSA_OP_APPEND",
        problem->unit_tokens);
  if (!problem->ranks) return NSA_OK;
  if (problem->max_probe_rows)
    return nsai_fail(
        NSA_E_ARG,
        "problem.max_probe_rows is %lld and problem.ranks is %d, but no run over ranks "
        "probes: leave one of them 0",
        (long long)problem->max_probe_rows, problem->ranks);
  out->ranks = problem->ranks;
  if (out->op == NSA_OP_DECODE || out->op == NSA_OP_APPEND) return NSA_OK;
  if (!nsai_problem_is_packed(out) && out->op != NSA_OP_PREFILL)
    return nsai_fail(NSA_E_ARG,
                     "problem.ranks is %d, but %s does not run over ranks: NSA_OP_FORWARD, "
                     "NSA_OP_BACKWARD and those of a cache do; leave it 0",
                     problem->ranks, nsai_op_name(out->op));
  out->max_pieces = problem->max_pieces ? problem->max_pieces : 2 * out->max_seqs;
  return check_choice("max_pieces", out->max_pieces, 1, MOST_PIECES);
}

/* The heads of 1 / groups of the model. */
static nsai_problem with_groups(const nsai_problem *p, int32_t groups) {
  nsai_problem part = *p;
  part.head_groups = groups;
  part.model.heads /= groups;
  part.model.kv_heads /= groups;
  part.model.index_heads /= groups;
  return part;
}

/* Takes as many KV heads at a time as thresholds.ranks_buffer_bytes has room for. A gate MLP makes the
 * gates of all heads together. */
static void group_heads(const nsai_config *config, nsai_problem *p) {
  const nsai_problem all = *p;
  const int64_t most = (int64_t)config->thresholds.ranks_buffer_bytes;
  *p = with_groups(&all, 1);
  if (all.model.gate == NSAI_GATE_MLP) return;
  for (int32_t groups = 2; groups <= all.model.kv_heads && nsai_ranks_memory_bytes(p) > most;
       groups++)
    if (all.model.kv_heads % groups == 0) *p = with_groups(&all, groups);
}

static nsa_status resolve(const nsai_config *config, const nsa_problem *problem,
                          nsai_problem *out) {
  const nsai_model *m = &config->model;
  *out = (nsai_problem){
    .model = *m,
    .op = problem->op ? problem->op : NSA_OP_FORWARD,
    .selection = problem->selection ? problem->selection : NSA_SELECT_TOPN,
    .overlap = problem->overlap ? problem->overlap : NSA_OVERLAP_LOW,
    .max_seqs = (int32_t)or_serving(problem->max_seqs, config->serving.max_seqs),
    .max_tokens = problem->max_tokens ? problem->max_tokens : config->serving.max_tokens,
    .max_kv_len = or_serving(problem->max_kv_len, config->serving.max_kv_len),
    .recompute = config->runtime.recompute,
  };
  if (!out->max_seqs) out->max_seqs = 1;
  /* Where there are no compressed blocks, kernels take a selected block for one: what they divide by
   * their sizes stays whole. */
  if (!nsai_compresses(m)) out->model.block = out->model.stride = m->select_block;
  out->count_reads = config->runtime.count_reads && out->op == NSA_OP_DECODE;
  NSAI_TRY(check_choice("op", out->op, NSA_OP_FORWARD, NSA_OP_INDEX_KL));
  NSAI_TRY(check_choice("selection", out->selection, NSA_SELECT_TOPN, NSA_SELECT_ALL));
  NSAI_TRY(check_choice("overlap", out->overlap, NSA_OVERLAP_LOW, NSA_OVERLAP_HIGH));
  NSAI_TRY(check_capacity("max_seqs", "max_seqs", out->max_seqs, NSAI_MAX_SEQS));
  NSAI_TRY(resolve_ranks(problem, out));
  if (nsai_problem_is_cached(out)) {
    NSAI_TRY(resolve_cached(config, problem, out));
    NSAI_TRY(resolve_ranks_of_cache(problem, out));
  } else {
    NSAI_TRY(check_capacity("max_tokens", "max_tokens", out->max_tokens, NSAI_MAX_ROWS));
    NSAI_TRY(resolve_packed(config, problem, out));
  }
  NSAI_TRY(check_capacity("max_kv_len", "max_kv_len", out->max_kv_len, NSAI_MAX_ROWS));
  if (problem->max_probe_rows < 0 || problem->max_probe_rows > out->max_tokens)
    return nsai_fail(NSA_E_ARG, "problem.max_probe_rows is %lld: expected 0 to max_tokens (%lld)",
                     (long long)problem->max_probe_rows, (long long)out->max_tokens);
  out->max_probe_rows = (int32_t)problem->max_probe_rows; /* tokens are counted in int32 */
  if (out->op == NSA_OP_INDEX_KL) NSAI_TRY(check_index_kl(out));
  if (out->selection == NSA_SELECT_ALL) {
    if (out->op != NSA_OP_INDEX_KL)
      return nsai_fail(
          NSA_E_ARG,
          "problem.selection is NSA_SELECT_ALL, which is the warm-up of NSA_OP_INDEX_KL, "
          "but problem.op is %s: give another selection; NSA_OP_DENSE attends to all",
          nsai_op_name(out->op));
    /* Lists have a slot for each block that a sequence can have. */
    out->model.select_count = (int32_t)nsai_select_block_count(m, out->max_kv_len);
  }
  NSAI_TRY(resolve_index_lse(problem, out));
  if (nsai_problem_has_no_importance(out) && out->max_probe_rows)
    return nsai_fail(NSA_E_ARG,
                     "problem.max_probe_rows is %d, but %s has no importance: leave it 0",
                     out->max_probe_rows, nsai_op_name(out->op));
  if (out->selection != NSA_SELECT_TOPN && !m->select_count)
    return nsai_fail(
        NSA_E_ARG,
        "problem.selection is %d, but model.select.count is 0: the selected branch is off",
        out->selection);
  /* count * block tokens are at most `count` blocks, so every block is chosen. A larger threshold
   * would not be exact. */
  int64_t exact = (int64_t)m->select_count * m->select_block;
  int64_t wanted = config->thresholds.select_dense_below;
  out->select_dense_below = wanted < 0 || wanted > exact ? exact : wanted;
  /* Over ranks the kernels of decode exchange results of their own. */
  out->split_from = out->ranks ? 0 : split_from(config, out->op);
  const bool keys = out->cmp_dtype && m->by == NSAI_BY_INDEX;
  if (out->op == NSA_OP_PREFILL && (out->kv_dtype || keys))
    out->expand_bytes = (int64_t)config->thresholds.prefill_expand_bytes;
  if (out->ranks && nsai_problem_is_packed(out)) group_heads(config, out);
  return NSA_OK;
}

nsa_status nsai_problem_resolve(const nsai_config *config, const nsa_problem *problem,
                                nsai_problem *out) {
  nsa_problem room;
  const void *read;
  NSAI_TRY(nsai_struct_in(&problem_type, problem, &room, &read));
  return resolve(config, read, out);
}

static const char *activation_name(nsai_activation activation) {
  static const char *const names[] = { "relu", "silu", "gelu" };
  return names[activation];
}

void nsai_problem_add_model(nsai_writer *text, const nsai_problem *p) {
  static const char *const phis[] = { "mean", "linear", "mlp", "external", "none" };
  static const char *const gates[] = { "weights", "logits", "mlp", "none" };
  static const char *const selections[] = { "topn", "blocks", "ranges", "all" };
  static const char *const ops[] = { "fwd",    "dense",    "prefill", "decode",
                                     "append", "backward", "index_kl" };
  const nsai_model *m = &p->model;
  nsai_write(text, "%s:%s:h%d/%d:d%d/%d", ops[p->op - NSA_OP_FORWARD],
             m->dtype == NSA_BF16  ? "bf16"
             : m->dtype == NSA_F16 ? "fp16"
                                   : "f32",
             m->heads, m->kv_heads, m->head_dim_qk, m->head_dim_v);
  if (p->op == NSA_OP_DENSE) return;
  if (nsai_compresses(m)) nsai_write(text, ":l%d/%d", m->block, m->stride);
  nsai_write(text, ":s%dx%d+%d+%d:w%d:phi=%s", m->select_block, m->select_count, m->select_init,
             m->select_local, m->window, phis[m->phi]);
  if (m->phi == NSAI_PHI_MLP)
    nsai_write(text, ",%d,%s", m->phi_hidden, activation_name(m->phi_activation));
  nsai_write(text, ":kv=%s:gate=%s", m->per_branch ? "branch" : "shared", gates[m->gate]);
  if (m->gate == NSAI_GATE_MLP)
    nsai_write(text, ",%d,%d,%s", m->gate_channels, m->gate_hidden,
               activation_name(m->gate_activation));
  nsai_write(text, ":sel=%s", selections[p->selection - NSA_SELECT_TOPN]);
  if (m->keys_only) nsai_write(text, ":cmp=keys");
  if (m->pool == NSAI_POOL_MAX) nsai_write(text, ":pool=max");
  if (m->norm_block) nsai_write(text, ":norm=%d/%d", m->norm_block, m->norm_stride);
  if (m->by == NSAI_BY_INDEX) nsai_write(text, ":index=%d", m->index_dim);
  if (p->kv_dtype) nsai_write(text, ":raw=e4m3");
  if (p->cmp_dtype) nsai_write(text, p->model.by == NSAI_BY_INDEX ? ":keys=e4m3" : ":entries=e4m3");
}

void nsai_problem_add_string(nsai_writer *text, const nsai_problem *p) {
  const nsai_problem all = nsai_problem_all_heads(p);
  nsai_problem_add_model(text, &all);
  nsai_write(text, ":ov=%s:tok%lld", p->overlap == NSA_OVERLAP_HIGH ? "high" : "low",
             (long long)p->max_tokens);
  if (nsai_problem_is_cached(p))
    nsai_write(text, ":q%d:page%d%s", p->max_q_len, p->page_size, p->window_ring ? ":ring" : "");
  else
    nsai_write(text, ":kv%lld", (long long)p->max_kv_tokens);
  nsai_write(text, ":len%lld:seq%d", (long long)p->max_kv_len, p->max_seqs);
  if (p->max_probe_rows) nsai_write(text, ":probe%d", p->max_probe_rows);
  if (p->index_lse) nsai_write(text, ":ilse");
  if (p->count_reads) nsai_write(text, ":reads");
  if (p->ranks)
    nsai_write(text, ":cp%dx%d", p->ranks, p->unit_tokens ? p->unit_tokens : p->max_pieces);
  if (p->ranks && p->op == NSA_OP_PREFILL) nsai_write(text, ":pc%d", p->max_pieces);
  if (p->ranks && p->head_groups > 1) nsai_write(text, ":kvh%d", p->model.kv_heads);
  if (p->op == NSA_OP_BACKWARD && p->recompute)
    nsai_write(text, ":%s", p->recompute == NSAI_RECOMPUTE_ALWAYS ? "again" : "saved");
}

nsai_problem nsai_problem_all_heads(const nsai_problem *problem) {
  nsai_problem all = *problem;
  const int32_t groups = problem->ranks ? problem->head_groups : 1;
  all.model.heads *= groups;
  all.model.kv_heads *= groups;
  all.model.index_heads *= groups;
  return all;
}

nsai_problem nsai_problem_without_ranks(const nsai_problem *problem) {
  nsai_problem one = *problem;
  one.ranks = one.max_pieces = one.unit_tokens = one.head_groups = 0;
  return one;
}

bool nsai_problem_selects_all(const nsai_problem *p) {
  return p->op == NSA_OP_FORWARD && p->selection == NSA_SELECT_TOPN && p->model.select_count &&
         p->max_kv_len <= p->select_dense_below;
}

/* Tiles of queries below which a prefill is split: half the multiprocessors of an H200. A tile has 128
 * rows, as that of attend_compressed_topn_sm90. More tokens lose whatever they share. (H200, a chunk of
 * 128 tokens over 64k: 172 us, split 184.) */
#define FEW_TILES 66
#define TILE_ROWS 128
#define MOST_SPLIT_TOKENS 64

int64_t nsai_problem_kept_tokens(const nsai_problem *p) {
  const nsai_model *m = &p->model;
  int64_t reach = nsai_larger(1, m->norm_block);
  if (nsai_phi_runs(m)) reach = nsai_larger(reach, m->block);
  if (!p->window_ring) reach = nsai_larger(reach, m->window);
  return reach - 1;
}

bool nsai_problem_splits(const nsai_problem *p) {
  const nsai_model *m = &p->model;
  int32_t group = 1;
  if (p->op == NSA_OP_DECODE) return true;
  if (p->op != NSA_OP_PREFILL || !p->split_from || p->max_kv_len < p->split_from) return false;
  if (p->max_tokens > MOST_SPLIT_TOKENS || !nsai_ranks_by_branch(m)) return false;
  while (group < m->heads / m->kv_heads) group *= 2;
  const int32_t tile_tokens = group < TILE_ROWS ? TILE_ROWS / group : 1;
  return nsai_most_step_tiles(p, tile_tokens) * m->kv_heads < FEW_TILES;
}
