/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The backward pass: from the gradient of the output to those of everything that the forward reads.
 *
 *   nsa_forward(forward_plan, exec, batch, &io);           // io.block_idx given: it is needed here
 *   nsa_backward(backward_plan, exec, batch, &io, &grads); // the same batch and inputs
 *
 * With dO the gradient of o, and per branch b its gate g, output o_b and probabilities P:
 *   dg_b = dO . o_b      delta = g_b dg_b            dV = P^T (g_b dO)
 *   dP = (g_b dO) V^T    dS = P * (dP - delta)       dQ += scale dS K      dK = scale dS^T Q
 * The compressed branch's dK and dV go on through phi to the raw tokens and to phi's weights, the
 * gates' through the sigmoid and the gate MLP. The selection is a constant: nothing passes through
 * the top-n. relu has the slope 0 at 0.
 *
 * The CPU device computes in float64. On a GPU the results are the same bits in every run. Sums are fp32;
 * what enters a product is rounded to the model's dtype once: P', dS, the gradients of compressed entries
 * and of hidden layers before the products of phi and of the gate MLP (as their values are in the forward),
 * and a d_o that comes in f32.
 *
 * Nothing but the inputs and block_idx has to be kept from the forward: 4 n Hkv bytes a token. Of a
 * branch whose o_branch and lse are kept, Hq (2 Dv + 4) bytes a token, the GPU need not find out again
 * what they say. They are trusted to be this forward's; and d_q, d_k and the gates' gradients then have
 * the rounding of o_branch in them, as is usual elsewhere. runtime.recompute of the configuration decides:
 * auto reads of the branches those that are given; always reads none, so that nothing need be kept; with
 * never all that run must be given (else NSA_E_ARG, on every device), and the kernel that would find them
 * out is not compiled. nsa_explain has the bytes.
 *
 * The workspace of a plan on a GPU, in bytes, for T query and S KV tokens of B = S / l' + max_seqs blocks:
 *   48 Hq T                                  statistics of the rows
 *   12 n Hkv T and some 16 Hkv B             lists of blocks and of tokens
 *   2 (Dk + Dv) Hkv (S / d + 1)              compressed K and V
 *   4 (Dk + Dv) x (S + c (S / d + 1) + l' (n T / 1024 + B))   partial sums of dK and dV of x KV heads
 * The last without S where there is no window, without the last term where nothing is selected; c is 32 or
 * less, the fewer the longer S is; x is as many as 1 GiB holds, at least one: a head of many large blocks
 * takes more (nsa_query says how much). With a caller's ranges the lists are 8 n Hkv T, and the last term is
 * r S, r from 4 to 32, the fewer the longer S is. With N = S / d + 2, phi linear and mlp add
 *   4 l (Dk + Dv) x N + 2 max(Dk, Dv) x N + 4 l max(Dk, Dv) max(H, Dk, Dv) x   (H 0: linear)
 *   2 l max(Dk, Dv) Hkv N + 4 max(H, Dk, Dv) Hkv N + 4 H Hkv N                as the forward has
 *   8 H x N
 * the gate MLP of C features and H hidden ones 30 Hq T + 14 H T + 4 C max(H, 3 Hq) + at most 256 MiB, and
 * both 32 MiB for cuBLASLt. A d_o in f32 takes 2 Hq Dv T behind all that, for the T of the run: exec's
 * workspace must be so much larger than caps.workspace_bytes, which does not know of it.
 *
 * In fp16 dS = g P (dO . v - u) is rounded to fp16 as it is: it must stay below 65504, and what is below
 * 6e-8 is lost; the gradients of compressed entries and hidden layers likewise. Scale the loss.
 */
#ifndef NSA_BACKWARD_H
#define NSA_BACKWARD_H

#include <nsa/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The gradients of a run. Each has the shape of what it is the gradient of, and the model's dtype or
 * f32. All but d_o are outputs and optional: what is absent is not computed. What the model does not
 * read has no gradient, and is refused. What it could read, but the caller left out (pe, a bias), has
 * the gradient at zero. No two of them may share memory, nor two elements of one: where heads of K and V
 * lie on each other (a stride of 0), or weights do, their gradients come apart, and the caller sums them. */
typedef struct nsa_grads {
  uint32_t struct_size;
  uint32_t accumulate; /* 1: adds to what the outputs hold, rounding the sum once; 0: overwrites */
  nsa_tensor d_o;      /* in: [T, Hq, Dv]; on a GPU, one in f32 takes more workspace, see above */
  nsa_tensor d_q;      /* [T, Hq, Dk] */
  nsa_kv d_kv; /* kv_sharing shared: k[0] and v[0], the sum over the branches; per_branch: each
                          pair that the model reads. phi external: k_cmp and v_cmp, too, of which rows
                          that hold no block get 0; with another phi there are none */
  nsa_phi d_phi;
  nsa_gate d_gate; /* `value`: of the weights or the logits; else x, w1, b1, w2, b2 */
} nsa_grads;
#define NSA_GRADS_INIT NSA_INIT(nsa_grads)

/* Enqueues the backward pass.
 *
 * plan   of NSA_OP_BACKWARD.
 * exec   its `branches` as in the forward: the others' gates and their K and V get gradients of 0.
 * batch  as in the forward; NULL: one sequence.
 * io     the inputs of the forward, and what it chose: with NSA_SELECT_TOPN, block_idx is an input here,
 *        [T, Hkv, n] as the forward wrote it; blocks or ranges of the caller are given as they were.
 *        Optional are what the forward wrote to o_branch and lse, of a branch both or neither, and, where
 *        phi is not external, to k_cmp and v_cmp: on a GPU it is not computed again. The CPU device does
 *        not read them, it computes all in float64; nothing reads o. There is no probe.
 * grads  required.
 *
 * Rows of tensors at or beyond the last sequence's end are not written, and what they hold does not matter.
 * A row with t < 0 gets 0 and adds nothing, but its io.gate.x must be finite, as must be every row of d_o
 * with t >= 0, and q, k and v as in the forward. d_o and gradients in 16 bits are aligned to 16 bytes, as are
 * their strides but for those of d_gate and d_phi; f32 ones to 4 bytes.
 * On the CPU device the results do not depend on the number of threads.
 *
 * Errors and behaviour as nsa_forward; NSA_E_WORKSPACE for d_o in f32 without room for its rounding. */
NSA_API nsa_status nsa_backward(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                                const nsa_io *io, const nsa_grads *grads);

#ifdef __cplusplus
}
#endif
#endif /* NSA_BACKWARD_H */
