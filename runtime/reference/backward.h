/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the files of the backward pass share. All sums are float64 and have one owner each: a
 * work item is the attention of one (sequence, KV head), or one KV head of K or V in phi. The
 * gate MLP runs on one thread.
 */
#ifndef NSAI_REFERENCE_BACKWARD_H
#define NSAI_REFERENCE_BACKWARD_H

#include "reference/internal.h"
#include "reference/tensor.h"

#include <nsa/backward.h>

/* Sums over K or V: those of the raw pairs, then those of the compressed blocks. */
#define NSAI_REF_SUMS (NSA_BRANCHES + 1)
#define NSAI_REF_CMP_SUM NSA_BRANCHES

/* One thread's memory in addition to nsai_ref_scratch; rows are rounded up to lanes. */
typedef struct nsai_ref_back_scratch {
  double *q;           /* [G, Dk], scaled */
  double *d_o;         /* [G, Dv] */
  double *gated;       /* [G, Dv]: gate * d_o */
  double *gated_lanes; /* [Dv, lanes]: the same, transposed */
  double *d_scores;    /* [most keys of a branch, lanes] */
  double *d_q;         /* [Dk, lanes]: not yet scaled */
} nsai_ref_back_scratch;

typedef struct nsai_ref_back {
  nsai_ref_problem *problem;
  const nsa_grads *grads;
  nsai_ref_scratch *scratch;  /* one per worker */
  nsai_ref_back_scratch *own; /* one per worker */
  double *memory;             /* what `own` points into */
  double *gates, *d_gates;    /* [T, Hq * 3, rounded up to lanes] */
  double *d_k[NSAI_REF_SUMS]; /* [Hkv, rows, Dk rounded up to lanes]; NULL: not needed */
  double *d_v[NSAI_REF_SUMS];
  double *phi;      /* memory of the workers of backward_phi.c */
  int64_t phi_size; /* doubles per worker */
  int phi_workers;
  double *gate; /* memory of backward_gate.c */
} nsai_ref_back;

/* Rows of a sum: KV tokens, or compressed blocks, of all sequences. */
static inline int64_t nsai_ref_sum_rows(const nsai_ref_problem *problem, int sum) {
  const nsai_ref_sequences *s = &problem->sequences;
  return sum == NSAI_REF_CMP_SUM ? s->blocks[s->count] : s->kv[s->count];
}

/* Rounds a result into an output, or adds it to the output's value and rounds. */
static inline void nsai_ref_grad(const nsai_ref_back *back, const nsa_tensor *x, int64_t offset,
                                 double value) {
  nsai_ref_store(x, offset, back->grads->accumulate ? nsai_ref_load(x, offset) + value : value);
}

/* Rounds rows, `row` doubles apart, into the last two dimensions of an output, starting at
 * offset `at`. An absent output is allowed. */
void nsai_ref_grad_rows(const nsai_ref_back *back, const nsa_tensor *x, int64_t at, int64_t rows,
                        const double *values, int64_t row);

/* ---- backward_attend.c ---- */

/* One (token, KV group): adds to the sums and fills its d_gates and d_q. */
void nsai_ref_attend_back(const nsai_ref_back *back, int worker, int64_t token, int64_t group);

/* ---- backward_phi.c ---- */

/* Whether the gradient of the compressed K (side 0) or V (side 1) is needed. */
bool nsai_ref_phi_needs(const nsai_ref_back *back, int side);

nsa_status nsai_ref_phi_back_prepare(nsai_ref_back *back);

/* From the gradients of the compressed blocks to those of the raw tokens and of phi's weights,
 * or to d_kv.k_cmp and v_cmp. */
void nsai_ref_phi_back(nsai_ref_back *back);

/* ---- backward_gate.c ---- */

nsa_status nsai_ref_gate_back_prepare(nsai_ref_back *back);

/* From d_gates to the gradients of the weights, the logits, or the gate MLP. */
void nsai_ref_gate_back(nsai_ref_back *back);

#endif /* NSAI_REFERENCE_BACKWARD_H */
