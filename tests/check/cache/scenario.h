/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A KV cache twice, on the GPU and on the CPU device, through the same calls: random layouts, lengths that
 * grow, drafts that are rejected, sequences that end and leave their pages poisoned to others.
 * Everything that nothing was written to is NaN, and entries of page lists that must not be read lead
 * nowhere.
 */
#ifndef CHK_CACHE_SCENARIO_H
#define CHK_CACHE_SCENARIO_H

#include "../plans.h"
#include "options.h"

/* What a scenario has found. */
typedef struct chk_cache_result {
  double o, branch, lse;  /* worst error over its limit */
  double entry;           /* the same of compressed entries */
  int64_t rows, near_cut; /* rows compared; of those with other blocks, near the cut */
  double importance;      /* worst error of probed rows over its limit */
  int64_t counted;        /* tokens that counters had to have */
  char failure[256];      /* "": none */
  char variants[512];     /* of the GPU's plans, as in nsa_caps */
} chk_cache_result;

/* What a self-test does to the first step that has it; CHK_CACHE_INJECTED: it has been done. */
enum {
  CHK_CACHE_INJECT_NOTHING,
  CHK_CACHE_INJECT_O,
  CHK_CACHE_INJECT_NAN,
  CHK_CACHE_INJECT_BRANCH,
  CHK_CACHE_INJECT_LSE,
  CHK_CACHE_INJECT_LIST,
  CHK_CACHE_INJECT_CHOICE,
  CHK_CACHE_INJECT_IMPORTANCE,
  CHK_CACHE_INJECT_READS,
  CHK_CACHE_INJECT_CACHE,
  CHK_CACHE_INJECT_ENTRY,
  CHK_CACHE_INJECT_GUARD,
  CHK_CACHE_INJECT_BEHIND,
  CHK_CACHE_INJECT_WORKSPACE,
  CHK_CACHE_INJECT_AGAIN,       /* a bit of o, of a repeated step alone */
  CHK_CACHE_INJECT_CACHE_AGAIN, /* of the cache */
  CHK_CACHE_INJECT_KINDS,
  CHK_CACHE_INJECTED = CHK_CACHE_INJECT_KINDS
};

/* Walks through a scenario; the GPU takes every step more than once. `inject`: what to damage, and whether it
 * was; NULL: nothing. `given`: configuration, overrides and cache folder of the GPU's context. Not NSA_OK: something
 * could not be tried at all. */
nsa_status chk_cache_walk(const nsai_verify_device *device, const chk_cache_options *options,
                          const chk_plans_options *given, int *inject, chk_cache_result *result);

/* split.c: whole sequences in one call, and the same in pieces; arguments and status as chk_cache_walk. */
nsa_status chk_cache_split(const nsai_verify_device *device, const chk_cache_options *options,
                           const chk_plans_options *given, int *inject, chk_cache_result *result);

/* soak.c: what a soak has done. */
typedef struct chk_soak_counts {
  int64_t steps, checks, tokens;
  int64_t arrivals, exits, forks, rollbacks, copies, poisoned; /* the last two: of pages */
} chk_soak_counts;

typedef struct chk_soak_request {
  const chk_cache_options *options;
  const chk_plans_options *given;
  int64_t steps, every; /* every so many of them the device is waited for, and all is compared */
  int inject;           /* CHK_SOAK_INJECT_* */
} chk_soak_request;

/* What a self-test damages. */
enum {
  CHK_SOAK_INJECT_NOTHING,
  CHK_SOAK_INJECT_COPY,  /* shared pages are written to without a copy */
  CHK_SOAK_INJECT_FREE,  /* a byte of a free page */
  CHK_SOAK_INJECT_LEN,   /* a sequence's length on the device */
  CHK_SOAK_INJECT_AGAIN, /* a bit of o, of a repeated step alone */
  CHK_SOAK_INJECT_KINDS
};

/* Walks through a long course of appends, drafts, rollbacks, sequences that come, go and share prefixes.
 * Nothing waits for the device but every `every`-th step, which the GPU then repeats bit by bit and the CPU
 * device to rounding. Not NSA_OK: it could not be tried; result->failure: what was found. */
nsa_status chk_cache_soak(const nsai_verify_device *device, const chk_soak_request *request,
                          chk_soak_counts *counts, chk_cache_result *result);

/* ---- between the files of this folder ---- */

enum {
  CHK_CACHE_K,
  CHK_CACHE_V = CHK_CACHE_K + NSA_BRANCHES,
  CHK_CACHE_K_CMP = CHK_CACHE_V + NSA_BRANCHES,
  CHK_CACHE_V_CMP,
  CHK_CACHE_CU_Q, /* from here on: what a call brings */
  CHK_CACHE_LEN,
  CHK_CACHE_TABLE,
  CHK_CACHE_STARTS,
  CHK_CACHE_LISTS,
  CHK_CACHE_SLOTS,
  CHK_CACHE_MAPPING,
  CHK_CACHE_Q,
  CHK_CACHE_GATE, /* or what a gate MLP reads */
  CHK_CACHE_FRESH_K,
  CHK_CACHE_FRESH_V = CHK_CACHE_FRESH_K + NSA_BRANCHES,
  CHK_CACHE_SELECTION = CHK_CACHE_FRESH_V + NSA_BRANCHES, /* that the caller brings */
  CHK_CACHE_SOME_ROWS,                                    /* whose importance the GPU tells */
  CHK_CACHE_READS,                                        /* counters, which a step adds to */
  CHK_CACHE_FIRST_OUTPUT,
  CHK_CACHE_O = CHK_CACHE_FIRST_OUTPUT,
  CHK_CACHE_IDX,
  CHK_CACHE_LSE,
  CHK_CACHE_O_BRANCH = CHK_CACHE_LSE + NSA_BRANCHES,
  CHK_CACHE_SOME = CHK_CACHE_O_BRANCH + NSA_BRANCHES,
  CHK_CACHE_PROBE_ROWS, /* of the CPU device alone: every row */
  CHK_CACHE_PROBE,
  CHK_CACHE_OUTPUTS_END,
  CHK_CACHE_WEIGHTS = CHK_CACHE_OUTPUTS_END, /* as below; written once */
  CHK_CACHE_PHI_K = CHK_CACHE_WEIGHTS,
  CHK_CACHE_PHI_V = CHK_CACHE_PHI_K + 6,
  CHK_CACHE_GATE_W1 = CHK_CACHE_PHI_V + 6, /* and behind each its bias */
  CHK_CACHE_GATE_W2 = CHK_CACHE_GATE_W1 + 2,
  CHK_CACHE_TENSORS = CHK_CACHE_GATE_W2 + 2
};

/* Of one of K and V. */
enum { CHK_CACHE_PE, CHK_CACHE_W, CHK_CACHE_W1, CHK_CACHE_B1, CHK_CACHE_W2, CHK_CACHE_B2 };

/* The CPU device's memory, and the GPU's with guards and an image. */
typedef struct chk_cache_tensor {
  nsa_tensor view; /* data NULL */
  size_t bytes;
  uint8_t *host;
  nsai_verify_buffer gpu;
  uint8_t *far; /* where the GPU's pages lie, page_stride elements apart; NULL: in `gpu` */
  int64_t page_stride;
} chk_cache_tensor;

/* Sums of squares: of errors, of references, of a plain computation's errors; of so many rows. */
typedef struct chk_cache_sums {
  double error, norm, plain;
  int64_t rows;
} chk_cache_sums;

typedef struct chk_scenario {
  chk_cache_options options;
  const nsai_verify_device *device;
  uint64_t random;
  nsa_ctx *gpu, *cpu;
  nsa_plan *gpu_append, *gpu_attend, *cpu_append;
  nsa_plan *cpu_select; /* with the importance of every row */
  nsa_plan *cpu_attend; /* on the GPU's own blocks, or the caller's selection */
  nsa_exec gpu_exec, cpu_exec;
  nsai_verify_buffer workspace;
  nsai_cu_graph_exec graph;
  chk_cache_tensor tensor[CHK_CACHE_TENSORS];
  int32_t chunk; /* new tokens of a sequence in one append */
  int64_t ring, most_tokens, most_pages;
  int32_t pages, *page[CHK_CACHE_MOST_SEQS], page_count[CHK_CACHE_MOST_SEQS], *free_page,
      free_count;
  uint32_t branches; /* of the call */
  /* of the call */
  int32_t len[CHK_CACHE_MOST_SEQS], q_len[CHK_CACHE_MOST_SEQS];
  int64_t tokens;
  int64_t rows;                           /* of q; those behind the tokens must stay untouched */
  bool packed;                            /* cu_q is given */
  int *inject;                            /* CHK_CACHE_INJECT_*; NULL: nothing */
  chk_cache_sums *sums[NSA_BRANCHES + 1]; /* of branches and o: [seqs, heads] */
  chk_cache_result *result;
} chk_scenario;

uint64_t chk_cache_next(chk_scenario *sc);
/* The configuration of a scenario up to its section `runtime`, and its problem of an operation. */
void chk_cache_yaml(const chk_cache_options *o, int32_t device, char *text, size_t size);
nsa_problem chk_cache_problem(const chk_cache_options *options, int32_t op);
/* Memory, contexts and plans of a scenario of which options, device, random, inject and result are set. */
nsa_status chk_cache_create(chk_scenario *sc, const chk_plans_options *given);
void chk_cache_destroy(chk_scenario *sc);
/* A tensor of NaN on both sides. */
nsa_status chk_cache_make(chk_scenario *sc, int what, int32_t dtype, int32_t ndim,
                          const int64_t *shape);
/* weights.c: makes and uploads what the model has; views of it. `rows`: of the call. */
nsa_status chk_cache_make_weights(chk_scenario *sc);
nsa_gate chk_cache_gate(const chk_scenario *sc, bool gpu, int64_t rows);
nsa_phi chk_cache_phi(const chk_scenario *sc, bool gpu);
/* Random rows [0, rows) of a tensor on the host, about normal; of inputs, as the model wants them. */
void chk_cache_fill_scaled(chk_scenario *sc, int what, int64_t rows, double deviation);
void chk_cache_fill(chk_scenario *sc, int what, int64_t rows);
/* What a call's integers follow from len, q_len and the pages, on the host; sets tokens and rows. */
void chk_cache_write_call(chk_scenario *sc);
/* That, pages, random inputs, all uploaded, and outputs poisoned; of an append alone, what it reads. */
nsa_status chk_cache_prepare_call(chk_scenario *sc);
nsa_status chk_cache_prepare_append(chk_scenario *sc);
nsa_status chk_cache_poison_outputs(chk_scenario *sc);
/* Gives every sequence the pages that its tokens need. */
void chk_cache_take_pages(chk_scenario *sc);
/* An element of a fetched tensor. */
double chk_cache_value(const chk_cache_tensor *t, int64_t at);
nsa_status chk_cache_upload(chk_scenario *sc, int what);
nsa_status chk_cache_fetch(chk_scenario *sc, int what);
uint8_t *chk_cache_fetched(const chk_cache_tensor *t);
nsa_tensor chk_cache_view(const chk_scenario *sc, int what, bool gpu);
nsa_batch chk_cache_batch(const chk_scenario *sc, bool gpu, bool append);
nsa_io chk_cache_io(const chk_scenario *sc, bool gpu);
nsa_status chk_cache_append(chk_scenario *sc, bool gpu);

/* The attention of the options' steps. */
static inline nsa_status chk_cache_attend(const chk_scenario *sc, const nsa_plan *plan,
                                          const nsa_exec *exec, const nsa_batch *batch,
                                          const nsa_io *io) {
  return sc->options.op == NSA_OP_PREFILL ? nsa_prefill(plan, exec, batch, io)
                                          : nsa_decode(plan, exec, batch, io);
}

/* Sequence of a token of the call, and its position; below 0 for padded sequences. */
int chk_cache_sequence_of(const chk_scenario *sc, int64_t token);
int64_t chk_cache_position_of(const chk_scenario *sc, int64_t token);

/* lists.c: a selection of the caller's, and the rows to be probed, for the call. */
void chk_cache_choose_selection(chk_scenario *sc);

/* What the GPU tells of the probed rows' importance, by what the CPU device does of all. */
void chk_cache_compare_probes(chk_scenario *sc);

/* overrun.c: append and attention with a sequence that is longer than the plan's. */
nsa_status chk_cache_overrun(chk_scenario *sc);

/* reads.c: what counters begin with, and what a step has added to them. */
void chk_cache_start_reads(chk_scenario *sc);
void chk_cache_compare_reads(chk_scenario *sc);

/* repeat.c: after chk_cache_run_gpu, the same some times more, of the call's rows and the caches bit by bit. */
nsa_status chk_cache_repeat(chk_scenario *sc);

/* inject.c: damages what the GPU gave. */
void chk_cache_inject_cache(chk_scenario *sc);
void chk_cache_inject_step(chk_scenario *sc);
void chk_cache_inject_repeat(chk_scenario *sc);

/* compare.c: append and attention on the GPU, by a captured graph where the options say so. */
nsa_status chk_cache_run_gpu(chk_scenario *sc);

/* The caches: raw tokens bit by bit, entries to one rounding; the CPU's entries become the GPU's. */
nsa_status chk_cache_compare_cache(chk_scenario *sc);

/* The step's outputs: by the CPU device on the GPU's blocks, which are verified by themselves. */
nsa_status chk_cache_compare_step(chk_scenario *sc);

/* The same of the first sc->tokens rows, whatever else was written. */
nsa_status chk_cache_compare_rows(chk_scenario *sc);

/* Guards of a fetched tensor. */
void chk_cache_check_guards(chk_scenario *sc, const nsai_verify_buffer *b, const char *name);

/* Elements [first, first + count) of fetched entries, by the host's; the host's become the GPU's. */
void chk_cache_compare_entries(chk_scenario *sc, int what, int64_t first, int64_t count);

/* At the end: every sequence's and head's norm. */
void chk_cache_verify(chk_scenario *sc);

#endif /* CHK_CACHE_SCENARIO_H */
