/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The counters of a decode step (nsa_io.kv_reads) against what follows from lengths and chosen
 * blocks.
 */
#include "base/math.h"
#include "plan/plan.h"
#include "scenario.h"

#include <stdlib.h>
#include <string.h>

static bool runs(const chk_scenario *sc, int branch) { return sc->branches >> branch & 1; }

/* Initial value of counter i: all are different. */
static int64_t start_of(int64_t i) { return 1000003 * i; }

void chk_cache_start_reads(chk_scenario *sc) {
  chk_cache_tensor *t = &sc->tensor[CHK_CACHE_READS];
  for (int64_t i = 0; t->host && i < (int64_t)(t->bytes / sizeof(int64_t)); i++)
    ((int64_t *)(void *)t->host)[i] = start_of(i);
}

/* New tokens per CTA; they share compressed entries and windows. */
static int64_t tile_tokens(const chk_scenario *sc) {
  const nsa_plan *plan = sc->gpu_attend;
  int64_t most = 1;
  for (int i = 0; i < plan->choice.form_count; i++)
    if (plan->forms[i].variant->stage == NSAI_STAGE_DECODE)
      most = nsai_larger(most, plan->forms[i].spec[0].tile_tokens);
  return most;
}

/* What a counter has to report. */
typedef struct expected_reads {
  int64_t tokens, bytes;
} expected_reads;

static void add_reads(expected_reads *to, int64_t tokens, int64_t row_bytes) {
  to->tokens += tokens;
  to->bytes += tokens * row_bytes;
}

/* Blocks of `block` tokens, `stride` apart, read for a sequence: for each tile of tokens, those up to
 * its last token. */
static int64_t blocks_read(const chk_scenario *sc, int s, int64_t tile, int32_t block,
                           int32_t stride) {
  const nsai_model blocks = { .block = block, .stride = stride };
  int64_t sum = 0;
  for (int64_t first = 0; first < sc->q_len[s]; first += tile)
    sum += nsai_block_count(&blocks,
                            sc->len[s] - sc->q_len[s] + nsai_smaller(first + tile, sc->q_len[s]));
  return sum;
}

static int64_t element_bytes(const chk_scenario *sc, int part) {
  return chk_cache_dtype(&sc->options, part) == NSA_E4M3 ? 1 : 2;
}

/* On the CPU device: entries once for all tokens, without V where the branch does not run, and coarse
 * keys. */
static expected_reads entries_read_by_cpu(const chk_scenario *sc, int s, bool ranks) {
  const nsai_model *g = &sc->options.model;
  const int64_t dims = g->head_dim_qk + (runs(sc, NSA_CMP) ? g->head_dim_v : 0);
  expected_reads sum = { 0 };
  add_reads(&sum, nsai_block_count(g, sc->len[s]), dims * element_bytes(sc, CHK_CACHE_K_CMP));
  if (ranks) add_reads(&sum, nsai_norm_count(g, sc->len[s]), 2 * g->head_dim_qk);
  return sum;
}

/* The index keys of a sequence, which all heads share: those of KV head 0. On a GPU each tile of tokens
 * has read what its last token sees, and probed rows are not counted. */
static expected_reads index_read(const chk_scenario *sc, int s, int32_t head, bool ranks) {
  const nsai_kernel_spec *scores =
      sc->device->driver ? nsai_choice_kernel(&sc->gpu_attend->choice, "select_index_scores")
                         : NULL;
  const bool selects = sc->options.selection == NSA_SELECT_TOPN;
  expected_reads sum = { 0 };
  if (head || (sc->device->driver ? !selects : !ranks)) return sum;
  add_reads(&sum, scores ? blocks_read(sc, s, scores->tile_tokens, 1, 1) : sc->len[s],
            element_bytes(sc, CHK_CACHE_K_IDX) * sc->options.model.index_dim);
  return sum;
}

/* Where blocks are not ranked by what decode_split_kv_compressed pools: keys for the LSE, and compressed
 * keys for importance, unless every block is chosen. */
static void add_ranking(const chk_scenario *sc, int s, bool selects, expected_reads *sum) {
  const nsai_model *g = &sc->options.model;
  const nsai_choice *choice = &sc->gpu_attend->choice;
  const nsai_kernel_spec *lse = nsai_choice_kernel(choice, "select_normalizer");
  const int64_t entry = element_bytes(sc, CHK_CACHE_K_CMP) * g->head_dim_qk;
  const bool ranks = selects && sc->gpu_attend->workspace.importance.bytes;
  if (lse && g->norm_block && (ranks || sc->options.probed))
    add_reads(sum, blocks_read(sc, s, lse->tile_tokens, g->norm_block, g->norm_stride),
              2 * g->head_dim_qk);
  else if (lse && (ranks || sc->options.probed))
    add_reads(sum, blocks_read(sc, s, lse->tile_tokens, g->block, g->stride), entry);
  if (ranks)
    add_reads(sum,
              blocks_read(sc, s, nsai_choice_kernel(choice, "select_importance")->tile_tokens,
                          g->block, g->stride),
              entry);
}

/* Compressed entries, and coarse keys or index keys, read for a sequence. */
static expected_reads entries_read(const chk_scenario *sc, int s, int32_t head) {
  const nsai_model *g = &sc->options.model;
  const bool selects = g->select_count && sc->options.selection == NSA_SELECT_TOPN;
  const bool ranks = selects || sc->options.probed, pools = nsai_ranks_by_branch(g);
  expected_reads sum = { 0 };
  if (g->by == NSAI_BY_INDEX) return index_read(sc, s, head, ranks);
  if (!runs(sc, NSA_CMP) && !ranks) return sum;
  if (!sc->device->driver) return entries_read_by_cpu(sc, s, ranks);
  if (runs(sc, NSA_CMP) || pools)
    add_reads(&sum, blocks_read(sc, s, tile_tokens(sc), g->block, g->stride),
              element_bytes(sc, CHK_CACHE_K_CMP) * (g->head_dim_qk + g->head_dim_v));
  if (!pools) add_ranking(sc, s, selects, &sum);
  return sum;
}

/* Window tokens read for a sequence: for each tile, from the first key of its first token; on
 * the CPU device for each token. */
static int64_t windows_read(const chk_scenario *sc, int s) {
  const int64_t tile = sc->device->driver ? tile_tokens(sc) : 1;
  int64_t sum = 0;
  for (int64_t first = 0; runs(sc, NSA_WIN) && first < sc->q_len[s]; first += tile) {
    int64_t begin = sc->len[s] - sc->q_len[s] + first + 1 - sc->options.model.window;
    int64_t end = sc->len[s] - sc->q_len[s] + nsai_smaller(first + tile, sc->q_len[s]);
    if (end > 0) sum += end - (begin > 0 ? begin : 0);
  }
  return sum;
}

/* Entries of a row's list, selected or supplied, as tokens [begin, end). */
typedef struct entries {
  const int32_t *at;
  int width; /* 2: ranges */
  int64_t block;
} entries;

static entries entries_of(const chk_scenario *sc, int64_t token, int32_t head) {
  const bool own = sc->options.selection == NSA_SELECT_TOPN;
  const chk_cache_tensor *t = &sc->tensor[own ? CHK_CACHE_IDX : CHK_CACHE_SELECTION];
  const int64_t heads = own || !sc->options.shared_lists ? head * t->view.stride[1] : 0;
  return (entries){ (const int32_t *)(const void *)(own ? chk_cache_fetched(t) : t->host) +
                        token * t->view.stride[0] + heads,
                    sc->options.selection == NSA_SELECT_RANGES ? 2 : 1,
                    sc->options.model.select_block };
}

/* Tokens in the lists of rows [first, first + count) of q that have not been counted yet: of
 * ranges those up to the row's position; of blocks that the row may select, those up to position
 * `last`. */
static int64_t listed_tokens(const chk_scenario *sc, int64_t first, int64_t count, int32_t head,
                             int64_t last, char *seen) {
  int64_t sum = 0;
  for (int64_t token = first; token < first + count; token++) {
    const int64_t t = chk_cache_position_of(sc, token);
    const entries e = entries_of(sc, token, head);
    for (int32_t i = 0; i < sc->options.model.select_count; i++) {
      const int32_t *at = e.at + i * e.width;
      int64_t begin = e.width == 2 ? at[0] : at[0] * e.block;
      int64_t end =
          e.width == 2 ? nsai_smaller(at[1], t + 1) : nsai_smaller(begin + e.block, last + 1);
      if (e.width == 1 && (at[0] < 0 || begin > t)) continue;
      for (int64_t p = begin < 0 ? 0 : begin; p < end; p++) sum += !seen[p], seen[p] = 1;
    }
  }
  if (last >= 0) memset(seen, 0, (size_t)last + 1);
  return sum;
}

/* Selected tokens read for a sequence: blocks for each tile of tokens; ranges, and all on the
 * CPU device, for each token. */
static int64_t chosen_read(const chk_scenario *sc, int s, int64_t first, int32_t head, char *seen) {
  const bool tiles = sc->device->driver && sc->options.selection != NSA_SELECT_RANGES;
  const int64_t tile = tiles ? tile_tokens(sc) : 1;
  int64_t sum = 0;
  for (int64_t i = 0; runs(sc, NSA_SEL) && i < sc->q_len[s]; i += tile) {
    const int64_t count = nsai_smaller(tile, sc->q_len[s] - i);
    const int64_t last = chk_cache_position_of(sc, first + i + count - 1);
    sum += listed_tokens(sc, first + i, count, head, last, seen);
  }
  return sum;
}

/* What is read for a sequence's new tokens, from row `first` of q on, for one head and branch. */
static expected_reads expect(const chk_scenario *sc, int s, int64_t first, int32_t head, int branch,
                             char *seen) {
  const nsai_model *g = &sc->options.model;
  expected_reads sum = { 0 };
  if (branch == NSA_CMP) return entries_read(sc, s, head);
  add_reads(&sum, branch == NSA_WIN ? windows_read(sc, s) : chosen_read(sc, s, first, head, seen),
            element_bytes(sc, CHK_CACHE_K) * (g->head_dim_qk + g->head_dim_v));
  return sum;
}

void chk_cache_compare_reads(chk_scenario *sc) {
  const chk_cache_tensor *t = &sc->tensor[CHK_CACHE_READS];
  const int64_t *got = (const int64_t *)(const void *)chk_cache_fetched(t);
  int64_t first = 0, i = 0;
  char *seen = calloc((size_t)sc->options.max_kv_len + 1, 1);
  if (!seen) {
    snprintf(sc->result->failure, sizeof sc->result->failure, "no memory to verify reads");
    return;
  }
  for (int s = 0; s < sc->options.seqs; first += sc->q_len[s++])
    for (int32_t head = 0; head < sc->options.model.kv_heads; head++)
      for (int branch = 0; branch < NSA_BRANCHES; branch++, i += 2) {
        int64_t tokens = got[i] - start_of(i), bytes = got[i + 1] - start_of(i + 1);
        const expected_reads want = expect(sc, s, first, head, branch, seen);
        sc->result->counted += want.tokens;
        if ((tokens == want.tokens && bytes == want.bytes) || sc->result->failure[0]) continue;
        snprintf(sc->result->failure, sizeof sc->result->failure,
                 "reads of sequence %d (%d of %d tokens new), head %d, branch %d: %lld tokens, "
                 "%lld bytes, expected %lld, %lld",
                 s, sc->q_len[s], sc->len[s], head, branch, (long long)tokens, (long long)bytes,
                 (long long)want.tokens, (long long)want.bytes);
      }
  free(seen);
}
