/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A plan: the problem, the choice of variants, the loaded kernels, where everything lies in the
 * workspace. Immutable once made; run calls only read it.
 */
#ifndef NSAI_PLAN_PLAN_H
#define NSAI_PLAN_PLAN_H

#include "base/digest.h"
#include "driver/gemm.h"
#include "driver/launch.h"
#include "plan/problem.h"
#include "plan/ranks_memory.h"
#include "plan/variant.h"

/* The pairs of K and V whose raw tokens are expanded: the shared one or the selected branch's, and the
 * window's own. */
enum { NSAI_RAW_SELECTED, NSAI_RAW_WINDOW, NSAI_RAW_PAIRS };

static inline int nsai_raw_pair(const nsai_model *m, int branch) {
  return m->per_branch && branch == NSA_WIN ? NSAI_RAW_WINDOW : NSAI_RAW_SELECTED;
}

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
  nsai_buffer lists;         /* i32 [T, Hkv, n or 2n]: a given selection, sorted */
  nsai_buffer gate_logits;   /* f32 [T, Hq*3] */
  nsai_buffer gemm;          /* cuBLASLt's own */
  nsai_buffer row_statistics; /* f32 [3, T, Hq, 4]: RowStatistics of backward/products.cuh */
  nsai_buffer d_logits;       /* f32 [T, Hq*3]: gradients of the gate MLP's logits */
  nsai_buffer k_raw[NSAI_RAW_PAIRS],
      v_raw[NSAI_RAW_PAIRS]; /* dtype: expanded tokens (plan/expand.h) */
  int64_t cmp_rows;          /* R */
  int64_t chunk_tokens;      /* query tokens whose importance exists at once */
  int64_t importance_columns;
  nsai_buffer buffers[NSAI_MAX_BUFFERS]; /* of the choice's forms */
  int64_t numbers[NSAI_MAX_NUMBERS];
  nsai_ranks_pages pages;  /* of a prefill over ranks */
  nsai_ranks_memory ranks; /* of a run over ranks; also on the CPU device, which uses it */
  uint64_t total;
  const char *too_large; /* the first buffer beyond NSAI_SIZE_MAX; NULL: there is none */
} nsai_workspace;

#define NSAI_WORKSPACE_ALIGN 256u /* what cuBLASLt and 16-byte copies are happiest with */

/* Lays out the workspace of a choice. NSA_E_UNSUPPORTED when its bytes cannot be counted. */
nsa_status nsai_workspace_make(const nsai_problem *problem, const nsai_choice *choice,
                               const nsai_target *target, nsai_workspace *out);

/* The workspace of a plan on the CPU device, which does not use it: it makes a host query, allocate,
 * align and pass one, as it has to on a GPU. It grows with the plan's query tokens as every GPU plan's
 * does, so that one of another plan is found to be too small. */
nsa_status nsai_workspace_make_cpu(const nsai_problem *problem, nsai_workspace *out);

/* A communicator's room holds the gathered tensors, the entries that a run makes and sums from other ranks, in the
 * place of the workspace. Its bytes; 0: a run of the plan uses none. And where one of these buffers lies in it. */
uint64_t nsai_ranks_room_bytes(const nsai_problem *problem, const nsai_workspace *workspace);
uint64_t nsai_ranks_room_offset(const nsai_problem *problem, const nsai_workspace *workspace,
                                nsai_buffer buffer);

/* Query tokens whose data fit `budget` bytes, at `bytes` for each token: whole tiles, and at least
 * one. */
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
  /* Of the library, the device, problem, variants and tiles: plan/digest.h. Ranks that run the plan
   * together have the same. */
  unsigned char digest[NSAI_DIGEST_BYTES];
};

/* As nsai_choice_form. */
const nsai_form *nsai_plan_form(const nsa_plan *plan, nsai_stage stage);

/* Workspace that a run takes behind the plan's where d_o is f32. */
static inline uint64_t nsai_d_o_bytes(const nsai_model *m, int64_t tokens) {
  return (uint64_t)(tokens * m->heads * m->head_dim_v) * 2;
}

/* A form of the choice with what is known about it. `kernels` may be NULL. */
nsai_form nsai_form_of(const nsai_choice *choice, const nsai_workspace *workspace,
                       const nsai_kernel *kernels, int index);

/* What measurements say about the problem, where somebody remembers them. Never fails. */
void nsai_plan_decide(nsa_ctx *ctx, const nsai_problem *problem, nsai_decisions *out);

/* The context's target with the register fallback of a plan that would be made now, as far as the
 * kernels in memory and on disk tell. NSA_E_UNSUPPORTED where no row can do a stage. */
nsa_status nsai_plan_target(nsa_ctx *ctx, const nsai_problem *problem,
                            const nsai_decisions *decisions, nsai_target *out);

/* The choice of a plan that would be made now, and how many of its kernels would have to be
 * compiled. NSA_E_UNSUPPORTED where no row can do a stage. Not on the CPU device. */
nsa_status nsai_plan_foresee(nsa_ctx *ctx, const nsai_problem *problem, nsai_choice *choice,
                             int32_t *missing);

/* Makes the kernels of a plan without loading them: for a context of an architecture alone, also
 * those of its devices that the library has rules for. Not on the CPU device. */
nsa_status nsai_plan_prepare(nsa_ctx *ctx, const nsai_problem *problem, nsa_progress_fn progress,
                             void *user);

/* Compiles what nsai_plan_prepare of all these problems will ask for, all missing kernels at once,
 * which keeps more threads busy than one problem's kernels do. Leaves to nsai_plan_prepare kernels
 * that are refused or that others are compiling, and all problems behind one that no plan serves.
 * Progress begins anew after NSAI_MAX_KERNELS kernels. Not on the CPU device. */
nsa_status nsai_plan_prepare_ahead(nsa_ctx *ctx, const nsa_problem *problems, size_t count,
                                   nsa_progress_fn progress, void *user);

/* Makes a plan, which retains the context. *out is NULL on failure; nsai_plan_destroy frees it. */
nsa_status nsai_plan_create(nsa_ctx *ctx, const nsai_problem *problem, nsa_progress_fn progress,
                            void *user, nsa_plan **out);

/* Makes a plan by these decisions, and no others: what the tuner times. Its kernels are loaded on
 * trial (kernel_set.h). Otherwise as nsai_plan_create. */
nsa_status nsai_plan_make(nsa_ctx *ctx, const nsai_problem *problem,
                          const nsai_decisions *decisions, nsa_plan **out);

/* NULL is fine. */
void nsai_plan_destroy(nsa_plan *plan);

/* Whether the plan runs products through cuBLASLt. */
bool nsai_needs_gemm(const nsai_choice *choice);

#endif /* NSAI_PLAN_PLAN_H */
