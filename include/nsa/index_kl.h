/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Training of an index branch (model.select.by index): the loss that pulls the index's distribution
 * over the chosen tokens towards the attention's, and its gradients.
 *
 *   nsa_forward(forward_plan, &exec, batch, &io);             // writes io.block_idx and io.lse[NSA_SEL]
 *   nsa_index_kl(index_kl_plan, &exec, batch, &io, &grads);   // the same batch and inputs
 *
 * Formulas. Of a query t and an index head r, J(t, r) is the tokens p <= t of the blocks chosen for
 * KV head r. With c the coefficient, si = Di^-1/2, T query tokens, Hi index heads, and the G query
 * heads h of KV head r:
 *   Pi = softmax over J of si qi[t,r].ki[p]              what the index says
 *   Pm = 1/G sum over h of exp(scale q[t,h].k[p,r] - lse[t,h])        what the attention does
 *   loss = c / (T Hi) sum over t, r and J of Pm log(Pm / Pi)
 *   dS = c / (T Hi) (Pi - Pm)   d_index_q = si sum over J of dS ki   d_k_idx = si sum over t, r of dS qi
 * Pm is a constant: no gradient passes to q and k, nor through the choice of blocks.
 *
 * Warm-up. Before the index is good enough to choose, J is every token p <= t, and the main attention is
 * dense. A plan with problem.selection NSA_SELECT_ALL computes that, of what nsa_dense reads and writes:
 *
 *   nsa_dense(dense_plan, &exec, batch, &io);                 // writes io.lse[0]
 *   io.index_q = ..., io.k_idx = ...;                         // which nsa_dense refuses
 *   nsa_index_kl(warm_up_plan, &exec, batch, &io, &grads);    // quadratic in the length, as nsa_dense is
 *
 * The CPU device computes in float64, and its results do not depend on the number of threads. On a GPU
 * dS is rounded to the model's dtype before it is multiplied; every run gives the same bits.
 */
#ifndef NSA_INDEX_KL_H
#define NSA_INDEX_KL_H

#include <nsa/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The loss and the gradients. The three tensors are outputs on request: an absent one is not
 * computed. */
typedef struct nsa_index_grads {
  uint32_t struct_size;
  uint32_t accumulate;  /* 1: adds to the outputs, and rounds the sum once [0: overwrites] */
  double coefficient;   /* c, greater than 0 [1] */
  nsa_tensor loss;      /* f32 [1] */
  nsa_tensor d_index_q; /* the model's dtype or f32, [T, Hi, Di] */
  nsa_tensor d_k_idx;   /* the model's dtype or f32, [KV tokens, 1, Di] */
} nsa_index_grads;
#define NSA_INDEX_GRADS_INIT NSA_INIT(nsa_index_grads)

/* Computes the loss of an index branch and its gradients.
 *
 * plan   of NSA_OP_INDEX_KL, whose model has select.by index; NSA_SELECT_TOPN, NSA_SELECT_BLOCKS or, for
 *        a warm-up, NSA_SELECT_ALL.
 * exec   `branches` must be 0.
 * batch  as in the forward. T counts the rows of all its sequences, cu_q[num_seqs]; without a batch
 *        it is the first dimension of q.
 * io     in: q; K of the selected branch, kv.k[1], or kv.k[0] with NSA_KV_SHARED; index_q, k_idx;
 *        lse[NSA_SEL] and block_idx. With NSA_SELECT_TOPN block_idx is [T, Hkv, n], as the forward
 *        wrote it; otherwise the caller's blocks. lse[NSA_SEL] must be of the same blocks, keys and
 *        softmax_scale: it normalises Pm. With NSA_SELECT_ALL instead of these: kv.k[0], and lse[0] of
 *        dense attention; block_idx is not read. Nothing else of io is read, V neither.
 * grads  required.
 *
 * Rows at or behind the last sequence's end are not written, and what they hold does not matter. A
 * row with t < 0, or without a block, gets 0 and adds nothing. A key that no query has chosen gets 0.
 * Every other row of q, k, index_q, k_idx and lse must be finite.
 *
 * Behaves as nsa_forward. */
NSA_API nsa_status nsa_index_kl(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                                const nsa_io *io, const nsa_index_grads *grads);

#ifdef __cplusplus
}
#endif
#endif /* NSA_INDEX_KL_H */
