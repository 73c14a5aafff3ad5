/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A resolved problem: the model and the capacities, every zero replaced by what the
 * configuration says.
 */
#ifndef NSAI_PLAN_PROBLEM_H
#define NSAI_PLAN_PROBLEM_H

#include "base/writer.h"
#include "config/config.h"

#include <nsa/attention.h>
#include <stdbool.h>

typedef struct nsai_problem {
  nsai_model model;
  int32_t op;
  int32_t selection;
  int32_t overlap; /* of adjacent tokens' lists: variants of attend_selected are chosen by it */
  int32_t max_seqs;
  int32_t max_probe_rows;
  /* A problem that gives max_tokens has as many KV tokens unless it gives max_kv_tokens too;
   * serving.max_kv_tokens counts where it gives neither. */
  int64_t max_tokens, max_kv_tokens, max_kv_len; /* max_kv_tokens 0 with a cache */
  int32_t page_size;                             /* of the cache; 0: none, or without pages */
  int32_t max_q_len;                             /* with a cache */
  bool window_ring;
  bool index_lse; /* runs may ask for io.index_lse */
  /* Of raw pairs; of entries, or of the keys of an index: NSA_E4M3, or 0: the model's. */
  int32_t kv_dtype, cmp_dtype;
  int64_t split_from; /* of a prefill: max_kv_len from which few new tokens are split; 0: never */
  /* Of a prefill over raw tokens or index keys in codes: bytes of workspace in which K and V of a pair, or
   * the keys, are expanded, at most; 0: none are. */
  int64_t expand_bytes;
  int64_t select_dense_below; /* the selected branch is exact dense attention up to this kv_len */
  bool count_reads;           /* of a decode step: its kernels count what they read */
  int32_t recompute;          /* NSAI_RECOMPUTE_*; of NSA_OP_BACKWARD */
  /* Over ranks: their number, and most pieces of one; 0: no ranks. max_tokens counts the tokens of a
   * rank, the capacities of K and V count those of all. Kernels are those of one piece. */
  int32_t ranks, max_pieces;
  /* Of a cache over ranks: the token at position p lies on rank (p / unit_tokens) mod ranks; 0: no such
   * cache. Only its prefill has pieces, of the new tokens. */
  int32_t unit_tokens;
  /* Over ranks: the model has 1 / head_groups of the KV heads, of the index heads and of the query heads,
   * which a run takes group by group; 0: no ranks */
  int32_t head_groups;
} nsai_problem;

/* Checks an array of callers' problems, which may have another size than this library's:
 * nsai_struct_at steps through it. NSA_E_ARG, NSA_E_VERSION. */
nsa_status nsai_problem_check_array(const nsa_problem *problems, size_t count);

/* Fills `out` from the caller's problem, of any version, and the configuration; refuses what no
 * plan could mean (NSA_E_ARG, NSA_E_VERSION), naming the field. */
nsa_status nsai_problem_resolve(const nsai_config *config, const nsa_problem *problem,
                                nsai_problem *out);

/* Whether K and V lie in a cache. */
static inline bool nsai_problem_is_cached(const nsai_problem *problem) {
  return problem->op == NSA_OP_PREFILL || problem->op == NSA_OP_DECODE ||
         problem->op == NSA_OP_APPEND;
}

/* Whether the kernels of a decode step serve: of a decode step, and of a prefill of so few new tokens
 * over so long a context that its own kernels, which give a tile of queries to a CTA, would leave half
 * of the device idle. */
bool nsai_problem_splits(const nsai_problem *problem);

/* Whether the raw pages of a cache lie on several ranks. */
static inline bool nsai_problem_divides_cache(const nsai_problem *problem) {
  return problem->unit_tokens > 0;
}

/* Whether runs gather the raw pages of all ranks: a prefill over a cache that lies on several. */
static inline bool nsai_problem_gathers_pages(const nsai_problem *problem) {
  return problem->op == NSA_OP_PREFILL && problem->ranks;
}

/* Most sequences of a batch that kernels see: of a prefill over ranks, pieces. */
static inline int32_t nsai_problem_most_seqs(const nsai_problem *problem) {
  return nsai_problem_gathers_pages(problem) ? problem->max_pieces : problem->max_seqs;
}

/* Of a cache over ranks: so many tokens before the new ones of a sequence lie on every rank, since an entry,
 * a coarse key or a window that ends among the new tokens reaches back to them. */
int64_t nsai_problem_kept_tokens(const nsai_problem *problem);

/* Whether some of the cache is stored in codes, NSA_E4M3. */
static inline bool nsai_problem_has_codes(const nsai_problem *problem) {
  return problem->kv_dtype || problem->cmp_dtype;
}

/* Whether the tuner times the problem: it has inputs for it, and there is something to choose. The
 * others' plans follow the heuristics. */
static inline bool nsai_problem_is_tunable(const nsai_problem *problem) {
  if (problem->op == NSA_OP_APPEND || problem->op == NSA_OP_INDEX_KL) return false;
  return problem->selection == NSA_SELECT_TOPN || !nsai_problem_is_cached(problem);
}

/* Whether the three branches run over packed K and V. */
static inline bool nsai_problem_is_packed(const nsai_problem *problem) {
  return problem->op == NSA_OP_FORWARD || problem->op == NSA_OP_BACKWARD;
}

/* Whether the operation ranks no blocks, so that there is nothing to probe. */
static inline bool nsai_problem_has_no_importance(const nsai_problem *problem) {
  return problem->op == NSA_OP_DENSE || problem->op == NSA_OP_BACKWARD ||
         problem->op == NSA_OP_INDEX_KL;
}

/* The problem with all heads, as the caller's tensors have them. */
nsai_problem nsai_problem_all_heads(const nsai_problem *problem);

/* The problem of one rank by itself, with the K and V of all in its memory: what is timed, and what
 * records are looked up for. */
nsai_problem nsai_problem_without_ranks(const nsai_problem *problem);

/* "NSA_OP_DECODE". Static storage. */
const char *nsai_op_name(int32_t op);

/* Appends the part of the problem string that kernels depend on: operation and model, no
 * capacities. */
void nsai_problem_add_model(nsai_writer *text, const nsai_problem *problem);

/* Appends the whole problem string. */
void nsai_problem_add_string(nsai_writer *text, const nsai_problem *problem);

/* Whether the selected branch of this problem is ordinary causal attention: every block of every
 * row is chosen. */
bool nsai_problem_selects_all(const nsai_problem *problem);

#endif /* NSAI_PLAN_PROBLEM_H */
