/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the rows of backward_kv share: kernels, workspace and launches. dK and dV of each branch are
 * partial sums per tile of keys (dkv.c). The gradients of a pair are their sums in a fixed order
 * (dkv_sum.c), so that every run gives the same bits. All of it works on as many KV heads at a time
 * as the workspace has partial sums for.
 */
#ifndef NSAI_VARIANTS_BACKWARD_KV_H
#define NSAI_VARIANTS_BACKWARD_KV_H

#include "variants/attend/invert.h"
#include "variants/backward/layers.h"

enum {
  NSAI_DKV_SORT,
  NSAI_DKV_INVERT,
  NSAI_DKV_ORDER = NSAI_DKV_INVERT + NSAI_INVERT_KERNELS, /* of the items, for persistent CTAs */
  NSAI_DKV_COMPRESSED,
  NSAI_DKV_WINDOW,
  NSAI_DKV_SELECTED, /* by inverted lists, or by a caller's ranges */
  NSAI_DKV_SUM,
  NSAI_DKV_CLEAR, /* of the persistent kernels' tickets */
  NSAI_DKV_RANKS_SUM,
  NSAI_DKV_LAYERS,
  NSAI_DKV_KERNELS = NSAI_DKV_LAYERS + NSAI_LAYERS_KERNELS
};

/* The inverted lists lie first. Partial sums have dK and dV side by side. B: nsai_kv_blocks. */
enum {
  NSAI_DKV_ITEM_STARTS = NSAI_INVERT_BUFFERS, /* i32 [Hkv, B]: each block's first item */
  NSAI_DKV_ITEM_ORDER,                        /* i32 [Hkv, items of a head]: by first token */
  NSAI_DKV_COMPRESSED_SUMS,                   /* f32 [its heads, splits, R, Dk + Dv] */
  NSAI_DKV_SELECTED_SUMS, /* f32 [heads, items of a head, l', Dk + Dv]; of ranges
                             [heads, range splits, KV tokens, Dk + Dv] */
  NSAI_DKV_WINDOW_SUMS,   /* f32 [heads, KV tokens, Dk + Dv] */
  NSAI_DKV_COUNTERS,      /* i32 [groups of KV heads, NSAI_DKV_TICKETS] */
  NSAI_DKV_LAYERS_BUFFERS,
  NSAI_DKV_BUFFERS = NSAI_DKV_LAYERS_BUFFERS + NSAI_LAYERS_BUFFERS
};

enum {
  NSAI_DKV_HEADS,            /* KV heads at a time */
  NSAI_DKV_COMPRESSED_HEADS, /* those of the compressed branch, a multiple */
  NSAI_DKV_SPLITS,           /* runs that the query rows of compressed blocks are cut into */
  NSAI_DKV_RANGE_SPLITS,     /* those of a caller's ranges */
  NSAI_DKV_GATE_TOKENS,      /* tokens through the gate's first layer at once */
  NSAI_DKV_NUMBERS
};

/* ---- rows of the table ---- */

void nsai_dkv_specify(const nsai_request *request, bool wgmma,
                      nsai_kernel_spec kernel[NSAI_DKV_KERNELS]);
void nsai_dkv_workspace(const nsai_request *request, const nsai_kernel_spec kernel[],
                        nsai_form_sizes *out);
/* The same for at most `most` KV heads at a time, and a compressed branch that adds up dQ in order. */
void nsai_dkv_workspace_ordered(const nsai_request *request, const nsai_kernel_spec kernel[],
                                int64_t most, nsai_form_sizes *out);
nsa_status nsai_dkv_enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span);

/* ---- kernels of the branches ---- */

/* Tokens of an item of the inverted lists: so many that a block of average length is one item, so few
 * that the blocks that every token selects are spread over the device. backward_dkv_selected_persistent
 * has fewer where the problem has few tokens (item_tokens() of kv.c). */
#define NSAI_DKV_ITEM_TOKENS 1024
#define NSAI_DKV_TILE_KEYS 64 /* of a CTA without tensor maps at most; all that wgmma takes */
#define NSAI_DKV_COST 550     /* compile_cost */

/* What one of the kernels is for. */
typedef struct nsai_dkv_use {
  const char *entry;
  int32_t keys;    /* of a tile, at most */
  int32_t entries; /* words of shared memory for the query rows of a tile */
  bool joins;      /* it does the selected branch within the window as well */
  bool persistent; /* backward/pipelines/dkv_items.cuh; else dkv.cuh, or without tensor maps */
} nsai_dkv_use;

/* Whether a CTA each makes dK and dV of a tile of keys. The 16 keys of a warp have (Dk + Dv) / 2
 * floats in every thread; up to 128 of them fit beside the scores. */
static inline bool nsai_dkv_is_split(const nsai_model *m) {
  return m->head_dim_qk + m->head_dim_v > 256;
}

/* By backward/dkv_mainloop.cuh. */
void nsai_dkv_mainloop_specify(const nsai_request *request, bool wgmma, const nsai_dkv_use *use,
                               nsai_kernel_spec *spec);

/* Through tensor maps, the compressed branch by backward/pipelines/dkv.cuh and the others by dkv_items.cuh:
 * whether the model and the target, with its registers, allow that, and the kernel. */
bool nsai_dkv_tma_fits(const nsai_request *request, const nsai_dkv_use *use);
void nsai_dkv_tma_specify(const nsai_request *request, const nsai_dkv_use *use,
                          nsai_kernel_spec *spec);

/* Whether the window's kernel may do the selected branch within the window: kJoins of
 * backward/pipelines/dkv_items.cuh. */
bool nsai_dkv_may_join(const nsai_model *model);

void nsai_dkv_sum_specify(const nsai_problem *problem, nsai_kernel_spec *spec);

/* Adds up the parts of ranks; specified where the problem has ranks (ranks_sum.c). */
void nsai_ranks_sum_specify(const nsai_problem *problem, nsai_kernel_spec *spec);
nsa_status nsai_ranks_sum_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                                  const NsaiRanksSum *sum);

/* ---- launches ---- */

/* Where the kernels over keys leave dQ as well. */
typedef struct nsai_dkv_dq {
  float *sums; /* of all KV heads: NsaiBackwardDkvDq; NULL: the compressed branch's leaves none */
  int *order;
  int64_t blocks;
  void *slots; /* of one group of KV heads: NsaiBackwardDkvSlots; NULL: the selected branch's leaves
                  none */
  float *slot_steps;
  const nsai_kernel *add_slots; /* backward_dq_slots */
} nsai_dkv_dq;

/* Counters of the persistent kernels of a group of KV heads: NsaiBackwardDkvPersistent. */
enum { NSAI_DKV_WINDOW_TICKETS, NSAI_DKV_SELECTED_TICKETS, NSAI_DKV_TICKETS };

/* One group of KV heads. */
typedef struct nsai_dkv_pass {
  const nsai_run *run;
  const nsai_form *form;
  NsaiAttendSelected selected; /* seq and lists */
  NsaiInvert index;            /* inverted lists of the selected branch; zero: it needs none */
  int *item_order;             /* of the lists; NULL: by their numbers */
  nsai_dkv_dq dq;
  int head, heads;     /* KV heads [head, head + heads) */
  int compressed_head; /* the first KV head of the compressed branch's sums */
  int *tickets;        /* i32 [NSAI_DKV_TICKETS]; NULL: no kernel is persistent */
} nsai_dkv_pass;

/* The caller's lists, sorted, and the inverted lists, if a gradient needs them. `makes_dq`: dQ of
 * the selected branch does. */
nsa_status nsai_dkv_lists_enqueue(const nsai_run *run, const nsai_form *form, bool makes_dq);

/* Partial sums and sums of all heads; dq NULL: no dQ. */
nsa_status nsai_dkv_heads_enqueue(const nsai_run *run, const nsai_form *form,
                                  const nsai_dkv_dq *dq);

/* Whether an output depends on the branch's dK and dV. */
bool nsai_dkv_needs(const nsai_run *run, int branch);

/* Adds up dQ that the selected branch's kernel has left. */
nsa_status nsai_dkv_slots_enqueue(const nsai_dkv_pass *pass);

/* Partial sums of a branch. */
nsa_status nsai_dkv_compressed_enqueue(const nsai_dkv_pass *pass);
nsa_status nsai_dkv_window_enqueue(const nsai_dkv_pass *pass);
nsa_status nsai_dkv_selected_enqueue(const nsai_dkv_pass *pass);

/* The gradients of every pair of K and V, and of the caller's compressed blocks. */
nsa_status nsai_dkv_sum_enqueue(const nsai_dkv_pass *pass);

/* Where the compressed branch's sums of the pass begin. */
nsai_buffer nsai_dkv_compressed_sums(const nsai_dkv_pass *pass);

/* Rows that compressed blocks of this run's sequences take: packed_block_row of
 * data/sequence.cuh. */
static inline int64_t nsai_dkv_block_rows(const nsai_run *run) {
  return run->sizes.kv_tokens / run->plan->problem.model.stride + 1;
}

#endif /* NSAI_VARIANTS_BACKWARD_KV_H */
