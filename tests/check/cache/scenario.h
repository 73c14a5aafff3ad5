/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A KV cache on the GPU and one on the CPU device, through the same calls: random layouts,
 * growing lengths, rejected drafts, sequences that end and leave their pages poisoned. All
 * memory that was not written is NaN, and entries of page lists that must not be read are
 * invalid.
 */
#ifndef CHK_CACHE_SCENARIO_H
#define CHK_CACHE_SCENARIO_H

#include "../plans.h"
#include "options.h"

/* The findings of a scenario. */
typedef struct chk_cache_result {
  double o, branch, lse;  /* largest error divided by its limit */
  double entry;           /* the same of compressed entries */
  int64_t rows, near_cut; /* rows compared; rows whose blocks differ near the cut */
  double importance;      /* largest error of probed rows divided by its limit */
  int64_t counted;        /* tokens that the counters had to report */
  char failure[256];      /* "": none */
  char variants[512];     /* of the GPU's plans, as in nsa_caps */
} chk_cache_result;

/* Damage that a self-test injects into the first step that allows it; CHK_CACHE_INJECTED: it has
 * been injected. */
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
  CHK_CACHE_INJECT_AGAIN,       /* a bit of o, only in a repetition of a step */
  CHK_CACHE_INJECT_CACHE_AGAIN, /* a bit of the cache, likewise */
  CHK_CACHE_INJECT_KINDS,
  CHK_CACHE_INJECTED = CHK_CACHE_INJECT_KINDS
};

/* Runs a scenario; the GPU executes every step more than once. `inject`: the damage to inject,
 * and whether that happened; NULL: none. `given`: configuration, overrides and cache folder of
 * the GPU's context. A status other than NSA_OK: something could not be tried at all. */
nsa_status chk_cache_walk(const nsai_verify_device *device, const chk_cache_options *options,
                          const chk_plans_options *given, int *inject, chk_cache_result *result);

/* split.c: complete sequences in one call compared with the same in pieces; arguments and status
 * as for chk_cache_walk. */
nsa_status chk_cache_split(const nsai_verify_device *device, const chk_cache_options *options,
                           const chk_plans_options *given, int *inject, chk_cache_result *result);

/* soak.c: what a soak has executed. */
typedef struct chk_soak_counts {
  int64_t steps, checks, tokens;
  int64_t arrivals, exits, forks, rollbacks, copies, poisoned; /* the last two count pages */
} chk_soak_counts;

typedef struct chk_soak_request {
  const chk_cache_options *options;
  const chk_plans_options *given;
  /* after every so many steps it waits for the device and compares everything */
  int64_t steps, every;
  int inject; /* CHK_SOAK_INJECT_* */
} chk_soak_request;

/* Damage that a self-test injects. */
enum {
  CHK_SOAK_INJECT_NOTHING,
  CHK_SOAK_INJECT_COPY,  /* shared pages are written to without a copy */
  CHK_SOAK_INJECT_FREE,  /* a byte of a free page */
  CHK_SOAK_INJECT_LEN,   /* a sequence's length on the device */
  CHK_SOAK_INJECT_AGAIN, /* a bit of o, only in a repetition of a step */
  CHK_SOAK_INJECT_KINDS
};

/* Runs many steps of appends, drafts and rollbacks, with sequences that begin, end and share
 * prefixes. It waits for the device only after every `every`-th step. The GPU then repeats the
 * step bit by bit, and the CPU device up to rounding. A status other than NSA_OK: it could not
 * be tried; result->failure: a fault was found. */
nsa_status chk_cache_soak(const nsai_verify_device *device, const chk_soak_request *request,
                          chk_soak_counts *counts, chk_cache_result *result);

/* ---- shared by the files of this folder ---- */

enum {
  CHK_CACHE_K,
  CHK_CACHE_V = CHK_CACHE_K + NSA_BRANCHES,
  CHK_CACHE_K_IDX = CHK_CACHE_V + NSA_BRANCHES,
  CHK_CACHE_K_CMP,
  CHK_CACHE_V_CMP,
  CHK_CACHE_K_NORM,
  CHK_CACHE_CU_Q, /* from here on: inputs of a call */
  CHK_CACHE_LEN,
  CHK_CACHE_TABLE,
  CHK_CACHE_STARTS,
  CHK_CACHE_LISTS,
  CHK_CACHE_SLOTS,
  CHK_CACHE_MAPPING,
  CHK_CACHE_Q,
  CHK_CACHE_INDEX_Q,
  CHK_CACHE_GATE, /* or the input of a gate MLP */
  CHK_CACHE_FRESH_K,
  CHK_CACHE_FRESH_V = CHK_CACHE_FRESH_K + NSA_BRANCHES,
  CHK_CACHE_FRESH_INDEX = CHK_CACHE_FRESH_V + NSA_BRANCHES,
  CHK_CACHE_SELECTION, /* supplied by the caller */
  /* the rows whose importance the GPU returns */
  CHK_CACHE_SOME_ROWS,
  CHK_CACHE_READS, /* counters, to which a step adds */
  CHK_CACHE_FIRST_OUTPUT,
  CHK_CACHE_O = CHK_CACHE_FIRST_OUTPUT,
  CHK_CACHE_IDX,
  CHK_CACHE_LSE,
  CHK_CACHE_INDEX_LSE = CHK_CACHE_LSE + NSA_BRANCHES,
  CHK_CACHE_O_BRANCH,
  CHK_CACHE_SOME = CHK_CACHE_O_BRANCH + NSA_BRANCHES,
  CHK_CACHE_PROBE_ROWS, /* on the CPU device only: every row */
  CHK_CACHE_PROBE,
  CHK_CACHE_OUTPUTS_END,
  CHK_CACHE_WEIGHTS = CHK_CACHE_OUTPUTS_END, /* as listed below; written once */
  CHK_CACHE_PHI_K = CHK_CACHE_WEIGHTS,
  CHK_CACHE_PHI_V = CHK_CACHE_PHI_K + 6,
  CHK_CACHE_GATE_W1 = CHK_CACHE_PHI_V + 6, /* each is followed by its bias */
  CHK_CACHE_GATE_W2 = CHK_CACHE_GATE_W1 + 2,
  /* Of tensors CHK_CACHE_K to CHK_CACHE_V_CMP in e4m3, in their order. */
  CHK_CACHE_SCALES = CHK_CACHE_GATE_W2 + 2,
  CHK_CACHE_TENSORS = CHK_CACHE_SCALES + CHK_CACHE_V_CMP + 1
};

/* The weights of K or V. */
enum { CHK_CACHE_PE, CHK_CACHE_W, CHK_CACHE_W1, CHK_CACHE_B1, CHK_CACHE_W2, CHK_CACHE_B2 };

/* The CPU device's memory, and the GPU's memory with guards and a host image. */
typedef struct chk_cache_tensor {
  nsa_tensor view; /* data NULL */
  size_t bytes;    /* of `host` */
  uint8_t *host;
  bool codes; /* `gpu` has e4m3, and `host` the values (codes.c) */
  nsai_verify_buffer gpu;
  uint8_t *far; /* memory of the GPU's pages, page_stride elements apart; NULL: they are in `gpu` */
  int64_t page_stride;
} chk_cache_tensor;

/* Sums of squares (of errors, of references, of a plain computation's errors) and the number of
 * rows. */
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
  nsa_plan *cpu_attend; /* uses the GPU's own blocks or the caller's selection */
  nsa_exec gpu_exec, cpu_exec;
  nsai_verify_buffer workspace;
  void *cpu_workspace;
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
  int64_t rows;                           /* of q; those after the tokens must not be written */
  bool packed;                            /* cu_q is given */
  int *inject;                            /* CHK_CACHE_INJECT_*; NULL: nothing */
  chk_cache_sums *sums[NSA_BRANCHES + 1]; /* of branches and o: [seqs, heads] */
  chk_cache_result *result;
} chk_scenario;

uint64_t chk_cache_next(chk_scenario *sc);
/* The configuration of a scenario, which the caller frees (NULL: no memory), and its problem for
 * an operation. */
char *chk_cache_yaml(const chk_cache_options *o, int32_t device, const char *cache_dir,
                     const nsai_variant *force);
nsa_problem chk_cache_problem(const chk_cache_options *options, int32_t op);
/* Makes memory, contexts and plans of a scenario whose options, device, random, inject and
 * result are set. */
nsa_status chk_cache_create(chk_scenario *sc, const chk_plans_options *given);
void chk_cache_destroy(chk_scenario *sc);
/* codes.c: the dtype that a tensor of the cache has on the GPU. */
int32_t chk_cache_dtype(const chk_cache_options *options, int what);
/* Makes, fills and uploads the scales of what is in codes; adds them to an io of the GPU. */
nsa_status chk_cache_make_scales(chk_scenario *sc);
void chk_cache_add_scales(const chk_scenario *sc, nsa_io *io);
/* Writes the codes of the host's tensor into the image of the GPU's, and their values back to the
 * host. */
void chk_cache_encode(const chk_scenario *sc, int what);
/* The value of an element of a fetched tensor of the cache; and that value taken over by the host. */
double chk_cache_stored(const chk_scenario *sc, int what, int64_t at);
void chk_cache_take(chk_scenario *sc, int what, int64_t at);
/* Whether fetched elements [first, first + count) have the host's values, bit by bit; else where not.
 */
bool chk_cache_same(const chk_scenario *sc, int what, int64_t first, int64_t count, int64_t *where);
/* The error of a fetched entry divided by its limit; `least`: an absolute error that is allowed. */
double chk_cache_entry_error(const chk_scenario *sc, int what, int64_t at, double least);
/* With codes: replaces new tokens of K or V, already sent to the GPU, by what their codes will be
 * worth; `rows` of the call's tensors, or all of them. */
void chk_cache_round_rows(const chk_scenario *sc, int what, uint8_t *rows, int64_t count);
void chk_cache_round_new(const chk_scenario *sc);
/* The dtypes of a plan's cache: on the CPU device the model's. */
void chk_cache_set_dtypes(const chk_cache_options *options, bool gpu, nsa_problem *problem);
/* Whether calls ask for the LSE of an index. */
bool chk_cache_has_index_lse(const chk_scenario *sc);
/* Makes a tensor filled with NaN on both sides. */
nsa_status chk_cache_make(chk_scenario *sc, int what, int32_t dtype, int32_t ndim,
                          const int64_t *shape);
/* weights.c: makes and uploads the model's weights, and views of them. `rows`: of the call. */
nsa_status chk_cache_make_weights(chk_scenario *sc);
nsa_gate chk_cache_gate(const chk_scenario *sc, bool gpu, int64_t rows);
nsa_phi chk_cache_phi(const chk_scenario *sc, bool gpu);
/* Fills rows [0, rows) of a host tensor with nearly normal numbers; inputs get the scale that
 * the model expects. */
void chk_cache_fill_scaled(chk_scenario *sc, int what, int64_t rows, double deviation);
void chk_cache_fill(chk_scenario *sc, int what, int64_t rows);
/* Writes the integers of a call on the host, from len, q_len and the pages; sets tokens and
 * rows. */
void chk_cache_write_call(chk_scenario *sc);
/* chk_cache_write_call, then pages and random inputs; uploads everything and poisons outputs.
 * For an append alone, only what it reads. */
nsa_status chk_cache_prepare_call(chk_scenario *sc);
nsa_status chk_cache_prepare_append(chk_scenario *sc);
nsa_status chk_cache_poison_outputs(chk_scenario *sc);
/* Assigns every sequence the pages that its tokens need. */
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

/* Calls the attention of the scenario's steps. */
static inline nsa_status chk_cache_attend(const chk_scenario *sc, const nsa_plan *plan,
                                          const nsa_exec *exec, const nsa_batch *batch,
                                          const nsa_io *io) {
  return sc->options.op == NSA_OP_PREFILL ? nsa_prefill(plan, exec, batch, io)
                                          : nsa_decode(plan, exec, batch, io);
}

/* The sequence of a token of the call, and its position; below 0 for padded sequences. */
int chk_cache_sequence_of(const chk_scenario *sc, int64_t token);
int64_t chk_cache_position_of(const chk_scenario *sc, int64_t token);

/* lists.c: the caller's selection and the probed rows of the call. */
void chk_cache_choose_selection(chk_scenario *sc);

/* Compares the importance of probed rows on the GPU with that of the CPU device, which has all
 * rows. */
void chk_cache_compare_probes(chk_scenario *sc);

/* overrun.c: append and attention with a sequence longer than the plan's maximum. */
nsa_status chk_cache_overrun(chk_scenario *sc);

/* reads.c: the initial counters, and the check of what a step has added. */
void chk_cache_start_reads(chk_scenario *sc);
void chk_cache_compare_reads(chk_scenario *sc);

/* repeat.c: called after chk_cache_run_gpu; repeats and compares the call's rows and the caches
 * bit by bit. */
nsa_status chk_cache_repeat(chk_scenario *sc);

/* inject.c: damages the GPU's results. */
void chk_cache_inject_cache(chk_scenario *sc);
void chk_cache_inject_step(chk_scenario *sc);
void chk_cache_inject_repeat(chk_scenario *sc);

/* compare.c: append and attention on the GPU, by a captured graph if the options ask for it. */
nsa_status chk_cache_run_gpu(chk_scenario *sc);

/* Compares the caches: raw tokens bit by bit, entries to one rounding. The CPU's entries are
 * then replaced by the GPU's. */
nsa_status chk_cache_compare_cache(chk_scenario *sc);

/* Compares the step's outputs with the CPU device on the GPU's blocks, which are verified
 * separately. */
nsa_status chk_cache_compare_step(chk_scenario *sc);

/* The same for the first sc->tokens rows, whatever else was written. */
nsa_status chk_cache_compare_rows(chk_scenario *sc);

/* Checks the guards of a fetched tensor. */
void chk_cache_check_guards(chk_scenario *sc, const nsai_verify_buffer *b, const char *name);

/* Compares elements [first, first + count) of fetched entries with the host's, which are then
 * replaced by the GPU's. */
void chk_cache_compare_entries(chk_scenario *sc, int what, int64_t first, int64_t count);

/* Called at the end: verifies the norm of every sequence and head. */
void chk_cache_verify(chk_scenario *sc);

#endif /* CHK_CACHE_SCENARIO_H */
