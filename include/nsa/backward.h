/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The backward pass: from the gradient of the output to the gradients of everything that the
 * forward reads.
 *
 *   nsa_forward(forward_plan, &exec, batch, &io);           // writes io.block_idx, read below
 *   nsa_backward(backward_plan, &exec, batch, &io, &grads); // the same batch and inputs
 *
 * Formulas. dO is the gradient of o. With g the gate of a branch, o_b its output, and P its
 * probabilities:
 *   dg = dO . o_b         delta = g dg               dV = P^T (g dO)
 *   dP = (g dO) V^T       dS = P * (dP - delta)      dQ += scale dS K      dK = scale dS^T Q
 * dK and dV of the compressed branch go on through phi to the raw tokens and to the weights of
 * phi. The gates' gradients go on through the sigmoid and the gate MLP. The selection is a
 * constant: no gradient passes through the top-n. The slope of relu at 0 is 0.
 *
 * Precision. The CPU device computes in float64. On a GPU every run gives the same bits. Sums are
 * fp32. What enters a matrix product is rounded to the model's dtype once: P, dS, a d_o that
 * comes in f32, and the gradients of compressed entries and hidden layers. In fp16 these must
 * stay below 65504, and what is below 6e-8 is lost. Scale the loss.
 *
 * What a host keeps from the forward: its inputs, and io.block_idx (4 n Hkv bytes a token). It
 * may also keep o_branch and lse of a branch (Hq (2 Dv + 4) bytes a token), which a GPU otherwise
 * computes again. They must be this forward's; d_q, d_k and the gates' gradients then contain the
 * rounding of o_branch. `runtime.recompute` decides:
 *   auto    reads o_branch and lse of the branches for which they are given
 *   always  reads none, so that none need be kept
 *   never   requires those of all branches that run (else NSA_E_ARG, on every device), and does
 *           not compile the kernel that computes them
 * nsa_explain prints the bytes.
 *
 * The workspace of a plan on a GPU, in bytes, for T query tokens, S KV tokens and B = S / l' +
 * max_seqs blocks:
 *   48 Hq T                       statistics of the rows
 *   12 n Hkv T + about 16 Hkv B   lists of blocks and of tokens; of a caller's ranges 8 n Hkv T
 *   2 (Dk + Dv) Hkv (S / d + 1)   compressed K and V
 *   4 (Dk + Dv) x (S + c (S / d + 1) + l' (n T / i + B))
 *                                 partial sums of dK and dV, of x KV heads at a time
 *   4 Dk (Hq T + 64 Hkv max_seqs) dQ of the compressed branch, of the rows backward_q_kv_sm90 and
 *                                 backward_q_kv_slots_sm90
 *   (2 Dk + 4) n (Hq / Hkv) x T   dQ of each selected block, of backward_q_kv_slots_sm90
 * i is 1024; where nsa_explain names the kernel backward_dkv_selected_persistent 256 if T is below 32k, 512
 * below 128k.
 * x is as many KV heads as fit into 1.125 GiB, at least one; of backward_q_kv_slots_sm90 no more than
 * have 1 GiB of dQ of selected blocks, and c (S / d + 1) is for other KV heads, of 1.125 GiB, too. c is
 * at most 32 and decreases as S grows. Of the partial sums, S is missing without a window, and
 * l' (n T / i + B) without a selection; of a caller's ranges the latter is r S, with r from 4 to 32.
 *
 * phi linear and mlp add, with N = S / d + 2 and H = phi_hidden (0: linear)
 *   4 l (Dk + Dv) x N + 2 max(Dk, Dv) x N + 4 l max(Dk, Dv) max(H, Dk, Dv) x + 8 H x N
 *   2 l max(Dk, Dv) Hkv N + 4 max(H, Dk, Dv) Hkv N + 4 H Hkv N      as the forward has
 * the gate MLP of C features and H hidden ones adds
 *   30 Hq T + 14 H T + 4 C max(H, 3 Hq) + at most 256 MiB
 * and both need 32 MiB for cuBLASLt. nsa_query gives the sum. A d_o in f32 takes 2 Hq Dv T more,
 * for the T of the run: exec.workspace_bytes must then be caps.workspace_bytes and that.
 */
#ifndef NSA_BACKWARD_H
#define NSA_BACKWARD_H

#include <nsa/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The gradients of a run. Each has the shape of the tensor that it belongs to, in the model's
 * dtype or in f32. All but d_o are outputs on request: an absent one is not computed.
 *
 * - A gradient of something that the model does not read is refused. If the model could read it,
 *   but the caller left it out (pe, a bias), it is the gradient at zero.
 * - No two elements of the outputs may share memory (nsa_io). If heads of K and V lie on each
 *   other in the input (a stride of 0), the gradients of each head are returned separately; the
 *   caller adds them up. */
typedef struct nsa_grads {
  uint32_t struct_size;
  uint32_t accumulate; /* 1: adds to the outputs, and rounds the sum once [0: overwrites] */
  nsa_tensor d_o;      /* in: [T, Hq, Dv]; required */
  nsa_tensor d_q;      /* [T, Hq, Dk] */

  /* With NSA_KV_SHARED k[0] and v[0], the sum over the branches; otherwise each pair that the
   * model reads. With phi external also k_cmp and v_cmp, where rows without a block get 0; they
   * do not exist with another phi. */
  nsa_kv d_kv;

  nsa_phi d_phi;
  nsa_gate d_gate; /* `value` of weights or logits; x, w1, b1, w2, b2 of an MLP */
} nsa_grads;
#define NSA_GRADS_INIT NSA_INIT(nsa_grads)

/* Enqueues a backward pass.
 *
 * plan   of NSA_OP_BACKWARD.
 * exec   `branches` as in the forward. The gates, K and V of other branches get gradients of 0.
 * batch  as in the forward.
 * io     the inputs of the forward, and its selection: with NSA_SELECT_TOPN block_idx [T, Hkv, n]
 *        is an input here, as the forward wrote it; otherwise the caller's blocks or ranges. On
 *        request o_branch and lse, of a branch both or neither, and with a phi that is not
 *        external k_cmp and v_cmp: a GPU then does not compute them again. The CPU device does
 *        not read these. Nothing reads o. There is no probe.
 * grads  required.
 *
 * Rows at or behind the last sequence's end are not written, and what they hold does not matter.
 * A row with t < 0 gets 0 and adds nothing, but its io.gate.x must be finite. Every row of d_o
 * with t >= 0 must be finite, and q, k and v as in the forward. On the CPU device the result does
 * not depend on the number of threads.
 *
 * Behaves as nsa_forward. Returns NSA_E_WORKSPACE also for a d_o in f32 without room for its
 * rounding. */
NSA_API nsa_status nsa_backward(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                                const nsa_io *io, const nsa_grads *grads);

#ifdef __cplusplus
}
#endif
#endif /* NSA_BACKWARD_H */
