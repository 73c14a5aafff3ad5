/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A plan: the problem, the choice of variants, the loaded kernels, where everything lies in the
 * workspace. Immutable once made; run calls only read it.
 */
#ifndef NSAI_PLAN_PLAN_H
#define NSAI_PLAN_PLAN_H

#include "driver/gemm.h"
#include "driver/launch.h"
#include "plan/problem.h"
#include "plan/variant.h"

/* Inverted lists; B numbers of blocks: data/inverted_lists.cuh. */
typedef struct nsai_kv_workspace {
  nsai_buffer counts;        /* i32 [Hkv, parts, B] */
  nsai_buffer starts;        /* i32 [Hkv, B] */
  nsai_buffer entries;       /* u32 [Hkv, chunk_tokens * n] */
  nsai_buffer entry_indices; /* i32 [Hkv, chunk_tokens, n] */
  nsai_buffer items;         /* NsaiKvItem [Hkv, items of a head] */
  nsai_buffer item_counts;   /* i32 [Hkv] */
  int64_t chunk_tokens;      /* query tokens whose lists are inverted at once */
} nsai_kv_workspace;

/* Of the backward pass through the layers of phi linear or mlp, and of the gate MLP, one after the other.
 * Rows m: R + 1, the last of them the sums of the others, in a batch of `heads`; or T. Columns of
 * operands are padded to a multiple of NSAI_OPERAND_STEP. */
typedef struct nsai_layers_workspace {
  nsai_buffer d_logits;  /* f32 [T, Hq*3] */
  nsai_buffer d_out;     /* dtype [heads, m, D or Hq*3]: of the last layer's result */
  nsai_buffer d_hidden;  /* f32 [heads, m, H]: before rounding */
  nsai_buffer d_inner;   /* dtype [heads, m, H]: before the activation */
  nsai_buffer hidden;    /* dtype [heads, m, H]: behind it */
  nsai_buffer d_weights; /* f32 [heads, in, out] of the largest layer */
  nsai_buffer k_rows;    /* f32 [heads, R + 1, l*Dk]; the last row: of pe */
  nsai_buffer v_rows;    /* f32 [heads, R + 1, l*Dv] */
  nsai_buffer x;         /* dtype [gate_tokens, C]: the gate's features, of tokens that exist */
  nsai_buffer d_x;       /* f32 [gate_tokens, C] */
  nsai_buffer parts,
      sums;            /* f32 [heads, parts, columns] and [heads, columns]: backward_column_sums */
  int64_t gate_tokens; /* through the gate's first layer at once */
} nsai_layers_workspace;

#define NSAI_OPERAND_STEP 8 /* elements: 16 bytes, below which cuBLASLt has slower algorithms */
#define NSAI_COLUMN_SUM_ROWS 256 /* of a part: enough to fill the device from 64k rows on */

/* Of the backward pass: partial sums of dK and dV side by side, for `heads` KV heads at a time. */
typedef struct nsai_backward_workspace {
  nsai_buffer statistics; /* f32 [3, T, Hq, 4]: RowStatistics */
  nsai_buffer compressed; /* f32 [heads, splits, R, Dk + Dv] */
  nsai_buffer selected;   /* f32 [heads, items of a head, l', Dk + Dv] */
  nsai_buffer window;     /* f32 [heads, KV tokens, Dk + Dv] */
  nsai_buffer starts;     /* i32 [Hkv, B]: each block's first item */
  int32_t heads;          /* 0: the plan has no backward pass */
  int32_t splits;         /* runs that the query rows of compressed blocks are cut into */
  int32_t range_splits;   /* of ranges: selected is [heads, range_splits, KV tokens, Dk + Dv] */
  nsai_layers_workspace layers;
} nsai_backward_workspace;

/* Of a decode step; units and parts: decode/work.cuh. */
typedef struct nsai_decode_workspace {
  nsai_buffer scan_o;       /* f32 [units, parts, rows, Dv] */
  nsai_buffer scan_stats;   /* f32 [units, parts, rows, 2] */
  nsai_buffer pooled;       /* f32 [units, blocks, rows] */
  nsai_buffer carries;      /* f32 [units, parts, teams, rows] */
  nsai_buffer attend_o;     /* f32 [T, Hkv, parts, G, Dv] */
  nsai_buffer attend_stats; /* f32 [T, Hkv, parts, G, 2] */
} nsai_decode_workspace;

/* The workspace of a plan: what crosses stages, then what each form asked for. Letters as in
 * include/nsa/attention.h; R rows of compressed storage. */
typedef struct nsai_workspace {
  nsai_buffer k_cmp, v_cmp;  /* dtype [R, Hkv, D] */
  nsai_buffer lse;           /* f32 [T, Hq] of the compressed branch */
  nsai_buffer partial;       /* fp16 [T, Hq, Dv]: gated sum of the branches, in units of its row */
  nsai_buffer partial_units; /* f32 [T, Hq] */
  nsai_buffer importance;    /* f32 [chunk_tokens, Hkv, importance_columns]; none where the stage is
                                fused */
  nsai_buffer idx;           /* i32 [T, Hkv, n] */
  nsai_buffer lists;         /* i32 [T, Hkv, n or 2n]: a caller's selection, sorted */
  nsai_buffer gate_logits;   /* f32 [T, Hq*3] */
  nsai_buffer gemm;          /* cuBLASLt's own */
  nsai_kv_workspace kv;      /* lists of the backward pass */
  nsai_backward_workspace backward;
  nsai_decode_workspace decode;
  int64_t cmp_rows;     /* R */
  int64_t chunk_tokens; /* query tokens whose importance exists at once */
  int64_t importance_columns;
  nsai_buffer buffers[NSAI_MAX_BUFFERS]; /* of the choice's forms */
  int64_t numbers[NSAI_MAX_NUMBERS];
  uint64_t total;
} nsai_workspace;

#define NSAI_WORKSPACE_ALIGN 256u /* what cuBLASLt and 16-byte copies are happiest with */

nsai_workspace nsai_workspace_make(const nsai_problem *problem, const nsai_choice *choice,
                                   const nsai_target *target);

/* Query tokens whose data fit `budget` bytes, at `bytes` for each token: whole tiles, and at least one. */
int64_t nsai_chunk_tokens(int64_t budget, int64_t bytes, int64_t tokens);

struct nsa_plan {
  nsa_ctx *ctx;
  nsai_problem problem;
  nsai_choice choice;
  nsai_workspace workspace;
  nsai_kernel kernels[NSAI_MAX_KERNELS]; /* of specs that have an entry; GPU only */
  nsai_form forms[NSAI_MAX_FORMS];       /* of the choice, complete */
  const nsai_cublaslt *lt;               /* NULL: no product */
  nsai_cublaslt_handle lt_handle;        /* the context's */
};

/* The form that does the stage, or that stands alone for it; NULL: none. */
const nsai_form *nsai_plan_form(const nsa_plan *plan, nsai_stage stage);

/* Numbers of blocks that sequences of `kv_tokens` keys in all have: data/inverted_lists.cuh. */
static inline int64_t nsai_kv_blocks(const nsai_model *m, int64_t kv_tokens, int64_t num_seqs) {
  return kv_tokens / m->select_block + num_seqs;
}

/* Most items of one head: runs of at most item_rows entries. */
static inline int64_t nsai_kv_items(const nsai_model *m, int64_t tokens, int64_t blocks,
                                    int64_t item_rows) {
  return tokens * m->select_count / item_rows + blocks;
}

/* Tokens whose blocks are counted together: enough that the table of counts is no larger than the
 * lists, few enough for 16-bit counters. */
#define NSAI_KV_LEAST_PART 1024
#define NSAI_KV_MOST_PART 32768
static inline int64_t nsai_kv_part_tokens(int64_t blocks) {
  if (blocks < NSAI_KV_LEAST_PART) return NSAI_KV_LEAST_PART;
  return blocks < NSAI_KV_MOST_PART ? blocks : NSAI_KV_MOST_PART;
}

/* Workspace that a run takes behind the plan's where d_o is f32. */
static inline uint64_t nsai_d_o_bytes(const nsai_model *m, int64_t tokens) {
  return (uint64_t)(tokens * m->heads * m->head_dim_v) * 2;
}

/* Makes a plan of a resolved problem by these decisions, and no others: what the tuner times. Its
 * kernels are loaded on trial (kernel_set.h). */
nsa_status nsai_plan_make(nsa_ctx *ctx, const nsai_problem *problem,
                          const nsai_decisions *decisions, nsa_plan **out);

/* Whether the plan runs products through cuBLASLt. */
bool nsai_needs_gemm(const nsai_choice *choice);

#endif /* NSAI_PLAN_PLAN_H */
