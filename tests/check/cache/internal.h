/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A world of kv_world.h between its two files: memory and walk, and what is compared.
 */
#ifndef CHK_KV_SCENARIO_IMPL_H
#define CHK_KV_SCENARIO_IMPL_H

#include "scenario.h"

enum {
  CHK_KV_K,
  CHK_KV_V = CHK_KV_K + NSA_BRANCHES,
  CHK_KV_K_CMP = CHK_KV_V + NSA_BRANCHES,
  CHK_KV_V_CMP,
  CHK_KV_CU_Q, /* from here on: what a call brings */
  CHK_KV_LEN,
  CHK_KV_TABLE,
  CHK_KV_STARTS,
  CHK_KV_LISTS,
  CHK_KV_SLOTS,
  CHK_KV_MAPPING,
  CHK_KV_Q,
  CHK_KV_GATE, /* or what a gate MLP reads */
  CHK_KV_NEW_K,
  CHK_KV_NEW_V = CHK_KV_NEW_K + NSA_BRANCHES,
  CHK_KV_SELECTION = CHK_KV_NEW_V + NSA_BRANCHES, /* that the caller brings */
  CHK_KV_SOME_ROWS,                               /* whose importance the GPU tells */
  CHK_KV_READS,                                   /* counters, which a step adds to */
  CHK_KV_FIRST_OUTPUT,
  CHK_KV_O = CHK_KV_FIRST_OUTPUT,
  CHK_KV_IDX,
  CHK_KV_LSE,
  CHK_KV_O_BRANCH = CHK_KV_LSE + NSA_BRANCHES,
  CHK_KV_SOME = CHK_KV_O_BRANCH + NSA_BRANCHES,
  CHK_KV_PROBE_ROWS, /* of the CPU device alone: every row */
  CHK_KV_PROBE,
  CHK_KV_OUTPUTS_END,
  CHK_KV_WEIGHTS = CHK_KV_OUTPUTS_END, /* as below; written once */
  CHK_KV_PHI_K = CHK_KV_WEIGHTS,
  CHK_KV_PHI_V = CHK_KV_PHI_K + 6,
  CHK_KV_GATE_W1 = CHK_KV_PHI_V + 6, /* and behind each its bias */
  CHK_KV_GATE_W2 = CHK_KV_GATE_W1 + 2,
  CHK_KV_TENSORS = CHK_KV_GATE_W2 + 2
};

/* Of one of K and V. */
enum { CHK_KV_PE, CHK_KV_W, CHK_KV_W1, CHK_KV_B1, CHK_KV_W2, CHK_KV_B2 };

/* The CPU device's memory, and the GPU's with guards and an image. */
typedef struct chk_kv_tensor {
  nsa_tensor view; /* data NULL */
  size_t bytes;
  uint8_t *host;
  nsai_verify_buffer gpu;
  uint8_t *far; /* where the GPU's pages lie, page_stride elements apart; NULL: in `gpu` */
  int64_t page_stride;
} chk_kv_tensor;

/* Sums of squares: of errors, of references, of a plain computation's errors; of so many rows. */
typedef struct chk_kv_sums {
  double error, norm, plain;
  int64_t rows;
} chk_kv_sums;

typedef struct chk_kv_scenario {
  chk_kv_options opts;
  const nsai_verify_device *device;
  uint64_t random;
  nsa_ctx *gpu, *cpu;
  nsa_plan *gpu_append, *gpu_attend, *cpu_append;
  nsa_plan *cpu_select; /* with the importance of every row */
  nsa_plan *cpu_attend; /* on the GPU's own blocks, or the caller's selection */
  nsa_exec gpu_exec, cpu_exec;
  nsai_verify_buffer workspace;
  nsai_cu_graph_exec graph;
  chk_kv_tensor tensor[CHK_KV_TENSORS];
  int32_t chunk; /* new tokens of a sequence in one append */
  int64_t ring, most_tokens, most_pages;
  int32_t pages, *page[CHK_KV_MOST_SEQS], page_count[CHK_KV_MOST_SEQS], *free_page, free_count;
  uint32_t branches; /* of the call */
  /* of the call */
  int32_t len[CHK_KV_MOST_SEQS], q_len[CHK_KV_MOST_SEQS];
  int64_t tokens;
  int64_t rows;                        /* of q; those behind the tokens must stay untouched */
  bool packed;                         /* cu_q is given */
  int *inject;                         /* CHK_KV_SPOIL_*; NULL: nothing */
  chk_kv_sums *sums[NSA_BRANCHES + 1]; /* of branches and o: [seqs, heads] */
  chk_kv_result *result;
} chk_kv_scenario;

uint64_t chk_kv_next(chk_kv_scenario *w);
/* Memory, contexts and plans of a world of which form, device, random, spoil and result are set. */
nsa_status chk_kv_create(chk_kv_scenario *w, const char *cache_dir);
void chk_kv_destroy(chk_kv_scenario *w);
/* A tensor of NaN on both sides. */
nsa_status chk_kv_make(chk_kv_scenario *w, int what, int32_t dtype, int32_t ndim,
                       const int64_t *shape);
/* kv_weights.c: makes and uploads what the model has; views of it. `rows`: of the call. */
nsa_status chk_kv_make_weights(chk_kv_scenario *w);
nsa_gate chk_kv_gate(const chk_kv_scenario *w, bool gpu, int64_t rows);
nsa_phi chk_kv_phi(const chk_kv_scenario *w, bool gpu);
/* Random rows [0, rows) of a tensor on the host, about normal; of inputs, as the model wants them. */
void chk_kv_fill_scaled(chk_kv_scenario *w, int what, int64_t rows, double deviation);
void chk_kv_fill(chk_kv_scenario *w, int what, int64_t rows);
/* What a call's integers follow from len, q_len and the pages, on the host; sets tokens and rows. */
void chk_kv_write_call(chk_kv_scenario *w);
/* That, pages, random inputs, all uploaded, and outputs poisoned; of an append alone, what it reads. */
nsa_status chk_kv_prepare_call(chk_kv_scenario *w);
nsa_status chk_kv_prepare_append(chk_kv_scenario *w);
nsa_status chk_kv_poison_outputs(chk_kv_scenario *w);
/* Gives every sequence the pages that its tokens need. */
void chk_kv_take_pages(chk_kv_scenario *w);
/* An element of a fetched tensor. */
double chk_kv_value(const chk_kv_tensor *t, int64_t at);
nsa_status chk_kv_upload(chk_kv_scenario *w, int what);
nsa_status chk_kv_fetch(chk_kv_scenario *w, int what);
uint8_t *chk_kv_fetched(const chk_kv_tensor *t);
nsa_tensor chk_kv_view(const chk_kv_scenario *w, int what, bool gpu);
nsa_batch chk_kv_batch(const chk_kv_scenario *w, bool gpu, bool append);
nsa_io chk_kv_io(const chk_kv_scenario *w, bool gpu);
nsa_status chk_kv_append(chk_kv_scenario *w, bool gpu);

/* The attention of the form's steps. */
static inline nsa_status chk_kv_attend(const chk_kv_scenario *w, const nsa_plan *plan,
                                       const nsa_exec *exec, const nsa_batch *batch,
                                       const nsa_io *io) {
  return w->opts.op == NSA_OP_PREFILL ? nsa_prefill(plan, exec, batch, io)
                                      : nsa_decode(plan, exec, batch, io);
}

/* Sequence of a token of the call, and its position; below 0 for padded sequences. */
int chk_kv_sequence_of(const chk_kv_scenario *w, int64_t token);
int64_t chk_kv_position_of(const chk_kv_scenario *w, int64_t token);

/* kv_lists.c: a selection of the caller's, and the rows to be probed, for the call. */
void chk_kv_choose_selection(chk_kv_scenario *w);

/* What the GPU tells of the probed rows' importance, by what the CPU device does of all. */
void chk_kv_compare_probes(chk_kv_scenario *w);

/* kv_overrun.c: append and attention with a sequence that is longer than the plan's. */
nsa_status chk_kv_overrun(chk_kv_scenario *w);

/* kv_reads.c: what counters begin with, and what a step has added to them. */
void chk_kv_start_reads(chk_kv_scenario *w);
void chk_kv_compare_reads(chk_kv_scenario *w);

/* kv_repeat.c: after chk_kv_run_gpu, the same some times more, of the call's rows and the caches bit by bit. */
nsa_status chk_kv_repeat(chk_kv_scenario *w);

/* kv_spoil.c: damages what the GPU gave. */
void chk_kv_inject_cache(chk_kv_scenario *w);
void chk_kv_inject_step(chk_kv_scenario *w);
void chk_kv_inject_repeat(chk_kv_scenario *w);

/* kv_compare.c: append and attention on the GPU, by a captured graph where the form says so. */
nsa_status chk_kv_run_gpu(chk_kv_scenario *w);

/* The caches: raw tokens bit by bit, entries to one rounding; the CPU's entries become the GPU's. */
nsa_status chk_kv_compare_cache(chk_kv_scenario *w);

/* The step's outputs: by the CPU device on the GPU's blocks, which are judged by themselves. */
nsa_status chk_kv_compare_step(chk_kv_scenario *w);

/* The same of the first w->tokens rows, whatever else was written. */
nsa_status chk_kv_compare_rows(chk_kv_scenario *w);

/* Guards of a fetched tensor. */
void chk_kv_check_guards(chk_kv_scenario *w, const nsai_verify_buffer *b, const char *name);

/* Elements [first, first + count) of fetched entries, by the host's; the host's become the GPU's. */
void chk_kv_compare_entries(chk_kv_scenario *w, int what, int64_t first, int64_t count);

/* At the end: every sequence's and head's norm. */
void chk_kv_verify(chk_kv_scenario *w);

#endif /* CHK_KV_SCENARIO_IMPL_H */
