/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Runs of Native Sparse Attention (arXiv 2502.11089, Eq. 5 to 12).
 *
 * A run enqueues the kernels of a plan, which problem.h makes, on a stream.
 *
 *   nsa_problem problem = NSA_PROBLEM_INIT;
 *   problem.max_tokens = T;
 *   nsa_plan_create(ctx, &problem, NULL, NULL, &plan); // slow: chooses, compiles, loads
 *   nsa_plan_caps(plan, &caps);                        // caps.workspace_bytes
 *   nsa_forward(plan, &exec, NULL, &io);               // enqueues; again and again
 *
 * Letters. Tokens T (of all sequences of a batch together), query heads Hq, KV heads Hkv, group G
 * = Hq / Hkv, head dimensions Dk and Dv, compression block l and stride d, selection block l',
 * selected blocks n, window w. All but T come from the model. Shapes are written [T, Hq, Dk].
 * "dtype" is the model's.
 *
 * What is computed. A query at position t of its sequence attends to
 *   compressed (NSA_CMP)  block i, which is phi of the tokens [i*d, i*d + l), if i*d + l - 1 <= t
 *   selected (NSA_SEL)    the tokens p <= t of n blocks of l' tokens, those of the greatest
 *                         importance, which follows from the compressed branch's probabilities or
 *                         from an index's scores
 *   window (NSA_WIN)      the tokens t - w < p <= t
 * and o is the sum over these branches of gate * branch output. docs/algorithm.md has all rules.
 *
 * q, k, v, index_q and k_idx must be finite in every row that belongs to a sequence: a masked key
 * has the weight 0, and 0 * inf is NaN. Rows at or behind the end of a sequence may hold anything.
 * Memory behind a tensor is never read.
 */
#ifndef NSA_ATTENTION_H
#define NSA_ATTENTION_H

#include <nsa/base.h>
#include <nsa/problem.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- run ---- */

/* Branches: the index of k, v, o_branch and lse, and the bits of nsa_exec.branches. */
enum { NSA_CMP = 0, NSA_SEL = 1, NSA_WIN = 2, NSA_BRANCHES = 3 };

struct nsa_comm;

/* Where a run works. */
typedef struct nsa_exec {
  uint32_t struct_size;
  uint32_t branches;        /* 1 << NSA_CMP | ...; gates of other branches count as 0 [0: all] */
  void *workspace;          /* device memory, aligned to caps.workspace_align; overwritten */
  uint64_t workspace_bytes; /* its size, at least caps.workspace_bytes */
  nsa_stream stream;
  struct nsa_comm *comm; /* of a plan with problem.ranks, see ranks.h */
} nsa_exec;
#define NSA_EXEC_INIT NSA_INIT(nsa_exec)

struct nsa_shard;

/* How tokens fall into sequences. The arrays lie in device memory, on the CPU device in host
 * memory. A run reads them there, so a captured graph follows new values. A NULL batch means one
 * sequence: q_len = T, and kv_len is the first dimension of K.
 *
 * Query i of a sequence stands at position t = kv_len - q_len + i. A row with t < 0 is padding:
 * its output is zeros and its LSE -inf. Rows at or behind cu_q[num_seqs] are not written.
 *
 * On a GPU a sequence is cut at the plan's max_kv_len, and at the last page that its list has, so
 * that no memory is outgrown. Attention over such a sequence is undefined. */
typedef struct nsa_batch {
  uint32_t struct_size;
  int32_t num_seqs; /* [1] */

  /* i32 [num_seqs + 1], ascending from 0: sequence s has the rows cu_q[s] to cu_q[s + 1] - 1 of
   * q. With a cache it may be absent: then every sequence has T / num_seqs rows. */
  nsa_tensor cu_q;
  nsa_tensor cu_kv; /* the same of K and V [cu_q] */
  /* The same of io.kv.k_cmp and v_cmp; required when these are given and num_seqs > 1. */
  nsa_tensor cu_cmp;

  /* The rest belongs to a cache, which has neither cu_kv nor cu_cmp. kv_cache.h explains pages,
   * rows and rings. */

  nsa_tensor kv_len; /* i32 [num_seqs]: tokens of each sequence, the new ones included; required */
  /* i32 [num_seqs, any]: the pages of each sequence, in order. Instead of this table, two lists: */
  nsa_tensor block_table;
  nsa_tensor page_indptr; /* i32 [num_seqs + 1], ascending from 0: where a sequence's pages begin */
  nsa_tensor page_indices; /* i32 [any]: the pages of all sequences */
  /* i32 [num_seqs]: the row of each sequence in a cache without pages, and in rings [row s]. Of a
   * padded row any value. */
  nsa_tensor slots;
  /* i64 [T], of an append: page * P + offset of each new token, as the pages have it, or -1: the
   * token is not written [all are]. */
  nsa_tensor slot_mapping;

  /* Of a plan with problem.ranks, in the place of cu_q and cu_kv, see ranks.h: all other tensors are then
   * those of this rank's tokens, in the order of its pieces. Of a prefill: its queries and outputs. */
  const struct nsa_shard *shard;

  /* i32 [num_seqs, any], of a cache over ranks: the pages of compressed entries, coarse keys and index
   * keys, as block_table has those of raw tokens; see ranks.h. */
  nsa_tensor entry_table;
} nsa_batch;
#define NSA_BATCH_INIT NSA_INIT(nsa_batch)

/* Keys and values: a pair for each branch, or with NSA_KV_SHARED k[0] and v[0] for all. Pairs of
 * a branch that the model does not have are ignored. kv_cache.h has the shapes of a cache. */
typedef struct nsa_kv {
  nsa_tensor k[NSA_BRANCHES]; /* dtype [KV tokens, Hkv, Dk] */
  nsa_tensor v[NSA_BRANCHES]; /* dtype [KV tokens, Hkv, Dv] */

  /* Compressed keys and values, dtype [compressed blocks, Hkv, Dk] and [..., Dv]. With phi
   * external an input, otherwise an output on request. */
  nsa_tensor k_cmp, v_cmp;
} nsa_kv;

/* The weights of phi, for K (D = Dk) or for V (D = Dv), of dtype. phi mean and external have
 * none. */
typedef struct nsa_phi_side {
  nsa_tensor pe; /* [Hkv, l, D] position code [zeros] */
  nsa_tensor w;  /* linear: [Hkv, l*D, D] */
  nsa_tensor w1; /* mlp: [Hkv, l*D, H], H = phi_hidden */
  nsa_tensor b1; /* mlp: [Hkv, H] [zeros] */
  nsa_tensor w2; /* mlp: [Hkv, H, D] */
  nsa_tensor b2; /* mlp: [Hkv, D] [zeros] */
} nsa_phi_side;
typedef struct nsa_phi {
  nsa_phi_side k, v;
} nsa_phi;

/* The gates. */
typedef struct nsa_gate {
  nsa_tensor value; /* weights and logits: dtype or f32 [T, Hq, 3] */
  nsa_tensor x;     /* mlp: dtype [T, C], C = gate_channels */
  nsa_tensor w1;    /* mlp with a hidden layer: dtype [C, H], H = gate_hidden */
  nsa_tensor b1;    /* dtype [H] [zeros] */
  nsa_tensor w2;    /* mlp: dtype [H, Hq*3], one layer: [C, Hq*3]; a head's three side by side */
  nsa_tensor b2;    /* mlp: dtype [Hq*3] [zeros] */
} nsa_gate;

/* The tensors of a run. Each call reads and writes only those that its comment names; the others
 * may stay as they are, so that one nsa_io can serve several calls. Outputs other than `o` are
 * computed on request: an absent one is not written.
 *
 * No output may share bytes with another tensor of the call; the workspace counts as an output.
 * Such a call is refused with NSA_E_ARG, on the CPU device, too. Tensors may lie in one buffer as
 * slices of its columns: then their outer strides are equal and their columns disjoint, as of a
 * packed [T, Wq + Wk + Wv], or of K and V in the pages [N, 2, P, Hkv, D]. Inputs may share
 * memory. */
typedef struct nsa_io {
  uint32_t struct_size;
  float softmax_scale; /* [Dk^-1/2] */
  nsa_tensor q;        /* dtype [T, Hq, Dk] */
  nsa_tensor o;        /* out: dtype [T, Hq, Dv] */
  nsa_kv kv;           /* K and V, or the cache */
  nsa_kv new_kv;       /* nsa_kv_append: K and V of the new tokens */
  nsa_phi phi;
  nsa_gate gate;

  /* i32 [T, Hkv, n], selected blocks. NSA_SELECT_TOPN: out, ascending, then -1.
   * NSA_SELECT_BLOCKS: in, also [T, n] for all KV heads, in any order; -1 and blocks in the
   * future are skipped, repeated ones count once. */
  nsa_tensor block_idx;

  /* NSA_SELECT_RANGES: in, i32 [T, Hkv, n, 2] or [T, n, 2]: half-open ranges of the sequence's
   * tokens. */
  nsa_tensor ranges;

  nsa_tensor importance;             /* nsa_select: in, f32 [T, Hkv, >= ceil(max_kv_len / l')] */
  nsa_tensor o_branch[NSA_BRANCHES]; /* out: dtype [T, Hq, Dv], before the gates */

  /* out: f32 [T, Hq], natural logarithm; -inf in rows that see nothing. NSA_OP_DENSE has lse[0]
   * alone. */
  nsa_tensor lse[NSA_BRANCHES];

  nsa_tensor probe_rows; /* in: i32 [R], R <= max_probe_rows: rows of q that are probed */
  /* out: their importance, f32 [R, Hkv, >= ceil(max_kv_len / l')]; 0 for blocks that are no
   * candidates. */
  nsa_tensor probe_importance;

  nsa_tensor kv_reads; /* nsa_decode: in and out, i64 [num_seqs, Hkv, 3, 2], see kv_cache.h */

  /* The scales of a cache in NSA_E4M3, f32 [1] or [Hkv], greater than 0: of each pair that the model
   * reads [1], where problem.kv_dtype says so, and of the compressed entries, where problem.cmp_dtype
   * does [k_cmp_scale: k_scale[0], v_cmp_scale: v_scale[0]]. */
  nsa_tensor k_scale[NSA_BRANCHES], v_scale[NSA_BRANCHES];
  nsa_tensor k_cmp_scale, v_cmp_scale;

  /* The coarse keys of a cache, where the model has a select.normalizer of stride s: dtype [N, P/s,
   * Hkv, Dk], see kv_cache.h. An append writes them. Without a cache they are computed inside. */
  nsa_tensor k_norm;

  /* The index branch of a model with select.by index, which chooses the blocks: dtype [T, Hi, Di],
   * one query head for each KV head, and dtype [KV tokens, 1, Di], one key for each token, normalised
   * and rotated as the model has it. The keys of a cache are [N, P, 1, Di], also in NSA_E4M3, see
   * kv_cache.h. nsa_dense refuses them. A call that neither selects nor probes needs neither, and
   * checks them where given. */
  nsa_tensor index_q, k_idx;
  /* nsa_kv_append: the index keys of the new tokens, dtype [T, 1, Di]. Calls without a cache refuse it. */
  nsa_tensor new_k_idx;

  /* The scale of k_idx in a cache where problem.cmp_dtype is NSA_E4M3: f32 [1], > 0; absent: 1. */
  nsa_tensor k_idx_scale;

  /* out: f32 [T, Hi], of nsa_forward, nsa_prefill and nsa_decode where problem.index_lse is 1: the log-sum-exp
   * of the index over the blocks of block_idx, log of the sum of exp(Di^-1/2 qi[t, r].ki[p]) over the
   * tokens p <= t of the blocks of KV head r; -inf in rows that see none. Needs block_idx, index_q and
   * k_idx. */
  nsa_tensor index_lse;
} nsa_io;
#define NSA_IO_INIT NSA_INIT(nsa_io)

/* Enqueues a whole forward: compress, attend_compressed, select, attend_selected, attend_window,
 * and the gated sum.
 *
 * plan   of NSA_OP_FORWARD.
 * batch  NULL: one sequence.
 * io     in: q, kv (k_cmp and v_cmp with phi external), phi, gate, and the caller's selection. With
 *        compress.output false v_cmp, o_branch[0] and lse[0] must be absent, and phi.v is not read.
 *        With select.by index, where the library selects (for the selected branch, where it runs, or
 *        for block_idx) or probes: index_q and k_idx; there are no compressed keys and values.
 *        Out: o, and on request block_idx, o_branch, lse, probe_importance, and k_cmp and v_cmp
 *        with another phi.
 *
 * Stream behaviour of this and every other run call: it enqueues kernels on exec->stream and
 * returns. It allocates no device memory, waits for nothing and compiles nothing. A run can be
 * captured into a CUDA graph; replays read the lengths that the batch's memory then holds. Matrix
 * products (phi linear and mlp, the gate MLP, dense_gemm) go through cuBLASLt, which makes small
 * allocations on the host; otherwise there are none. The CPU device computes before it returns.
 * Thread-safe.
 *
 * Checks. Shapes, strides, alignment, overlap and the workspace are checked, and nothing is enqueued
 * when one is wrong. The CPU device has the same rules, so that what runs there is well-formed on a
 * GPU, too, but for the strides below that the copy engine of sm_90a does not take. (Tensors in f32,
 * which no kernel takes, need the alignment of an element only.) The values of the batch's arrays
 * are checked on the CPU device. On a GPU they are not: an invalid value causes undefined memory
 * access. `runtime.check_inputs: full` (or NSA_CHECK_INPUTS=full) checks them there, too, to find a
 * bug of the host; it waits for the stream, except during a capture. `runtime.check_inputs: off`
 * still checks that tensors are there, fit the plan's capacities and the address space, and do not
 * overlap.
 *
 * Returns NSA_OK or
 *   NSA_E_ARG          the message names the tensor, says what it is and what it should be
 *   NSA_E_WORKSPACE    the workspace is missing, too small or misaligned
 *   NSA_E_UNSUPPORTED  the run needs more than 2^31 CTAs: split the batch; cuBLASLt has no
 *                      algorithm for a product; or, on sm_90a, the copy engine does not take a
 *                      stride: negative, 2^35 elements or more, or 0 but for the heads of k and v
 *   NSA_E_NOMEM        host memory, on the CPU device or with `check_inputs: full`
 *   NSA_E_VERSION, NSA_E_CUDA, NSA_E_FORKED
 * After NSA_E_CUDA and NSA_E_UNSUPPORTED a part of the kernels may have been enqueued. */
NSA_API nsa_status nsa_forward(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                               const nsa_io *io);

/* Enqueues ordinary causal attention: o = softmax(scale * q k^T) v.
 *
 * plan  of NSA_OP_DENSE.
 * io    in: q, kv.k[0], kv.v[0]. Out: o, and on request lse[0].
 *
 * Behaves as nsa_forward. */
NSA_API nsa_status nsa_dense(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                             const nsa_io *io);

/* Enqueues phi alone, for hosts that bring other stages of their own.
 *
 * plan  of NSA_OP_FORWARD, whose phi is neither external nor none.
 * io    in: kv.k[0], kv.v[0], phi. Out: kv.k_cmp, kv.v_cmp.
 *
 * Behaves as nsa_forward. */
NSA_API nsa_status nsa_compress(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                                const nsa_io *io);

/* Enqueues the top-n alone, by a given importance, with the forced blocks and the tie rule of a
 * forward.
 *
 * plan  of NSA_OP_FORWARD with NSA_SELECT_TOPN.
 * io    in: importance; the first dimension of q is T, and without a batch that of kv.k[0] is
 *       kv_len. Out: block_idx.
 *
 * Behaves as nsa_forward. */
NSA_API nsa_status nsa_select(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                              const nsa_io *io);

#ifdef __cplusplus
}
#endif
#endif /* NSA_ATTENTION_H */
