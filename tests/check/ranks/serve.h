/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A KV cache over ranks (nsa/ranks.h) and the same cache of one rank, through the same calls: appends
 * in chunks, decode steps, rejected drafts, sequences that end. Each rank has pools, tables and page
 * numbers of its own. All memory that a rank need not read is NaN: pages that no sequence has, and
 * pages of other ranks' units that sequences have left behind.
 *
 * A script draws the calls from the seed, and each rank draws the same; so one rank alone can run
 * first and leave a record, with which every rank then compares itself.
 */
#ifndef CHK_RANKS_SERVE_H
#define CHK_RANKS_SERVE_H

#include "ranks/fault.h"
#include "ranks/rank.h"
#include "ranks/shard.h"
#include "verify/cache_tensors.h"
#include "verify/parallel.h"

#define CHK_SERVE_SEQS 4 /* most sequences */

/* What a problem runs. */
typedef struct chk_serve {
  chk_cache_options o; /* as its case draws it, as far as ranks have that */
  uint64_t seed;
  int32_t ranks;
  int32_t unit_tokens; /* U */
  int32_t given_unit;  /* nsa_problem.unit_tokens: U, or 0 where that is the default */
  int32_t reach;       /* tokens before the new ones that every rank holds, too */
  int32_t chunk;       /* most new tokens of a sequence in an append */
  int64_t ring;        /* tokens of a ring */
  int64_t most_tokens; /* of an append, or of a step */
  int64_t table_pages; /* columns of a table */
} chk_serve;

/* Returns false when the model has no pages: its stride divides none. */
bool chk_serve_make(const chk_ranks_problem *p, chk_serve *out);

/* `ranks` 0: of one rank alone. */
nsa_problem chk_serve_problem(const chk_serve *s, int32_t op, int32_t ranks);

/* ---- the script ---- */

/* The next call. Lengths are those behind it; a sequence of length 0 is padding. */
typedef struct chk_script {
  const chk_serve *s;
  nsai_verify_random random;
  int64_t call; /* its number */
  bool decodes; /* an append and a decode; else an append, and a prefill where there is a plan */
  bool packed;  /* cu_q is given */
  uint32_t branches;
  int32_t len[CHK_SERVE_SEQS], q_len[CHK_SERVE_SEQS];
  int64_t tokens;                /* new ones of all sequences */
  bool ended[CHK_SERVE_SEQS];    /* before the call this sequence ended, and its row began anew */
  int64_t begun[CHK_SERVE_SEQS]; /* how many sequences this row has had */

  /* the script's own */
  int32_t step, goal[CHK_SERVE_SEQS], before[CHK_SERVE_SEQS];
  bool begins;
} chk_script;

void chk_script_begin(const chk_serve *s, chk_script *out);
/* Draws the next call; false: there is none. */
bool chk_script_next(chk_script *script);

/* ---- the memory of one rank ---- */

/* Outputs of a decode step. */
enum {
  CHK_SERVE_IDX, /* up to SAME: one rank's bits */
  CHK_SERVE_INDEX_LSE,
  CHK_SERVE_LSE_CMP,
  CHK_SERVE_SAME, /* from here on: to rounding */
  CHK_SERVE_LSE_SEL = CHK_SERVE_SAME,
  CHK_SERVE_LSE_WIN,
  CHK_SERVE_O_BRANCH,
  CHK_SERVE_O = CHK_SERVE_O_BRANCH + NSA_BRANCHES,
  CHK_SERVE_OUTPUTS
};
extern const char *const chk_serve_names[CHK_SERVE_OUTPUTS];

/* Inputs of a call and weights, in the order in which numbers are drawn. */
enum {
  CHK_SERVE_Q = CHK_SERVE_OUTPUTS,
  CHK_SERVE_INDEX_Q,
  CHK_SERVE_GATE, /* or the input of a gate MLP */
  CHK_SERVE_NEW_K,
  CHK_SERVE_NEW_V = CHK_SERVE_NEW_K + NSA_BRANCHES,
  CHK_SERVE_NEW_INDEX = CHK_SERVE_NEW_V + NSA_BRANCHES,
  CHK_SERVE_BLOCKS, /* selected by the caller */
  CHK_SERVE_CU_Q,
  CHK_SERVE_KV_LEN,
  CHK_SERVE_SLOTS,
  CHK_SERVE_MAPPING,
  CHK_SERVE_TABLE,
  CHK_SERVE_ENTRY_TABLE,
  CHK_SERVE_WEIGHTS, /* phi: six of K, six of V, as nsa_phi_side; gate MLP: w1, b1, w2, b2 */
  CHK_SERVE_SCALES = CHK_SERVE_WEIGHTS + 16, /* as the tensors of the cache */
  CHK_SERVE_TENSORS = CHK_SERVE_SCALES + NSAI_VERIFY_CACHE_TENSORS
};

typedef struct chk_serve_tensor {
  nsa_tensor view;           /* data NULL */
  nsai_verify_buffer memory; /* device NULL: there is no such tensor */
} chk_serve_tensor;

/* Pages that sequences take and give back. */
typedef struct chk_pool {
  int32_t *free_page, free_count, pages;
  int32_t *held[CHK_SERVE_SEQS]; /* the page of each of a sequence's, or -1 */
  int32_t count[CHK_SERVE_SEQS]; /* how many it has had, those given back included */
} chk_pool;

typedef struct chk_memory {
  const chk_serve *s;
  int32_t rank; /* -1: one rank alone, whose entries have the pages of raw tokens */
  const nsai_verify_device *device;
  nsai_trial_plan append, decode, prefill; /* prefill: plan NULL where there is none */
  nsa_exec exec;
  nsai_verify_buffer workspace;
  chk_serve_tensor cache[NSAI_VERIFY_CACHE_TENSORS], tensor[CHK_SERVE_TENSORS];
  chk_pool raw, entries;
} chk_memory;

/* Makes memory and weights; the plans are set. chk_memory_destroy also after a failure. */
nsa_status chk_memory_create(chk_memory *m);
void chk_memory_destroy(chk_memory *m);

/* Whether a tensor of the cache lies in pages of raw tokens, in pages of entries, or in rings. */
typedef enum chk_kind { CHK_KIND_RAW, CHK_KIND_ENTRIES, CHK_KIND_RING } chk_kind;
chk_kind chk_memory_kind(const chk_memory *m, int what);
const chk_pool *chk_memory_pool(const chk_memory *m, int what); /* NULL: rings */

/* Before a call: ends sequences, takes and gives back pages, poisons what is given back. */
nsa_status chk_memory_move_pages(chk_memory *m, const chk_script *call);
/* Inputs and tables of a call. */
nsa_status chk_memory_fill(chk_memory *m, const chk_script *call);
/* The two calls; the first poisons outputs and the workspace before. */
nsa_status chk_memory_append(chk_memory *m, const chk_script *call, nsa_comm *comm);
nsa_status chk_memory_decode(chk_memory *m, const chk_script *call, nsa_comm *comm);
nsa_status chk_memory_prefill(chk_memory *m, const chk_script *call, nsa_comm *comm,
                              nsa_shard *shard);
/* Waits, and fetches outputs and the cache. */
nsa_status chk_memory_fetch(chk_memory *m, const chk_script *call, nsa_comm *comm);

/* Bytes of a row of an output or an input. */
size_t chk_serve_row_bytes(const chk_serve_tensor *t);

/* ---- prefills ---- */

/* Whether calls without a decode have a prefill. */
bool chk_serve_prefills(const chk_serve *s);
nsa_status chk_prefill_shard(const chk_memory *m, const chk_script *call, nsa_shard **out);
/* Copies the rows of a rank's pieces. */
void chk_prefill_take_rows(const nsa_shard *shard, int32_t rank, const uint8_t *from, size_t row,
                           uint8_t *to);
/* Leaves those of the inputs. */
nsa_status chk_prefill_keep_rows(chk_memory *m, const nsa_shard *shard);

/* serve_fill.c, internal */
nsa_status chk_memory_make_inputs(chk_memory *m);
nsa_status chk_memory_fill_page(chk_memory *m, int what, int64_t sequence, int64_t index,
                                int32_t page);
nsa_status chk_memory_make(chk_memory *m, chk_serve_tensor *t, int32_t dtype, int32_t ndim,
                           const int64_t *shape);
nsa_tensor chk_serve_view(const chk_serve_tensor *t);  /* in device memory */
nsa_tensor chk_serve_image(const chk_serve_tensor *t); /* in the host's image */

/* ---- the comparison ---- */

/* What one rank alone computed: a hash of each page of each sequence behind each call, in the order
 * in which they are asked for, and the outputs. */
typedef struct chk_serve_record {
  uint64_t *page;
  int64_t pages, page_capacity;
  uint8_t **output; /* [decode steps and prefills, CHK_SERVE_OUTPUTS]; NULL: there is none */
  size_t output_bytes[CHK_SERVE_OUTPUTS];
  int64_t outputs;
} chk_serve_record;

/* Runs the script on one rank alone. chk_serve_record_destroy also after a failure. */
nsa_status chk_serve_record_create(chk_plans *plans, const nsai_verify_device *device,
                                   const chk_ranks_problem *p, chk_serve_record *record,
                                   nsai_verify_result *result);
void chk_serve_record_destroy(chk_serve_record *record);

/* Damage to rank 0, in the first step that allows it, which the comparison must find. */
enum {
  CHK_SERVE_DAMAGE_NONE,
  CHK_SERVE_DAMAGE_INPUT, /* NaN in a page of its own unit, behind the appends */
  CHK_SERVE_DAMAGE_IDX,
  CHK_SERVE_DAMAGE_LSE_CMP, /* by one bit */
  CHK_SERVE_DAMAGE_LSE_SEL,
  CHK_SERVE_DAMAGE_BRANCH,
  CHK_SERVE_DAMAGE_O,
  CHK_SERVE_DAMAGE_BIT,   /* the last bit of an element of o, as one rank alone may have it */
  CHK_SERVE_DAMAGE_AGAIN, /* the same, in a repetition alone */
  CHK_SERVE_DAMAGE_BEHIND,
  CHK_SERVE_DAMAGE_RAW, /* a byte of a page of raw tokens */
  CHK_SERVE_DAMAGE_ENTRY,
  CHK_SERVE_DAMAGE_FREE, /* of a page that no sequence has */
  CHK_SERVE_DAMAGE_GUARD,
  CHK_SERVE_DAMAGE_PREFILL, /* the last bit of an element of o of a prefill */
  CHK_SERVE_DAMAGES
};

/* Does every kind of damage, and demands that it is reported. Returns how often it was not. */
int chk_serve_self_test(const chk_plans_options *plans, FILE *out);

/* serve_damage.c, internal: damage to memory before a decode; to what was fetched. True: it is done. */
bool chk_serve_damage_inputs(chk_memory *m, const chk_script *call, int kind);
bool chk_serve_damage_prefill(chk_memory *m, const chk_script *call, int kind);
bool chk_serve_damage_results(chk_memory *m, const chk_script *call, int kind);

/* A context of the problem's plans, for its communicators. The plans own it. */
nsa_status chk_serve_context(chk_plans *plans, const chk_ranks_problem *p, nsa_ctx **ctx);

/* Everything of one rank; every rank calls it. r->record is the record of one rank alone. */
void chk_serve_check(chk_rank *r);

/* ---- faults (fault.h) ---- */

/* The first random scenario that has a prefill and a decode in which ranks exchange something; false: there is
 * none among the first 300. */
bool chk_serve_find_faults(uint64_t seed, int32_t ranks, int32_t longest, chk_cache_codes codes,
                           chk_ranks_problem *out);

/* One rank's part of a fault; every rank calls it. A killed process does not return. */
void chk_serve_fault(chk_rank *r, const chk_fault *fault);

/* After a fault: one rank alone writes the pages and the outputs of the record in the same context. */
void chk_serve_context_lives(chk_plans *plans, const nsai_verify_device *device,
                             const chk_ranks_problem *p, const chk_serve_record *record,
                             nsai_verify_result *result);

/* serve_check.c, internal: the plans of m->rank */
nsa_status chk_serve_make_plans(chk_plans *plans, const chk_serve *s, chk_memory *m);
/* Likewise: compares what was fetched of a decode, or with `shard` of the rank's rows of a prefill, with r->record,
 * from this one of its outputs on. */
nsa_status chk_serve_compare_call(const chk_rank *r, chk_memory *m, const chk_script *call,
                                  const nsa_shard *shard, int64_t output);

/* Behind chk_serve_check of all ranks: their outputs must have the same bits. */
void chk_serve_compare_ranks(const chk_shared *shared, const chk_serve_record *record,
                             nsai_verify_result *result);

#endif /* CHK_RANKS_SERVE_H */
