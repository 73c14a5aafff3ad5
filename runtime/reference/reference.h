/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The CPU device: every stage and the complete forward in plain C and float64. It is the oracle
 * of the tests, the backend of `device: cpu`, and the reference for the tuner's verification. It
 * shares no code with the kernels.
 *
 * Rules for all functions:
 * - Tensors and the batch's arrays are in host memory; float tensors may be f32, bf16 or fp16, those
 *   of a cache e4m3 with io's scales, with any outer strides. Values are widened exactly, everything is
 *   computed in float64, and a stored result is rounded once.
 * - Shapes are assumed valid: the API layer checks them.
 * - `threads` < 1 means one per processor. Results do not depend on it, bit for bit.
 * - NSA_OK, or NSA_E_NOMEM with nothing written (an append may have written, and can be
 *   repeated). Thread-safe: no state outlives a call.
 * - Memory: the compressed K and V in float64, and per thread the scores of one token and KV
 *   group over the keys of one branch. Nothing is quadratic in the length.
 * - model.phi = NSAI_PHI_EXTERNAL makes io.kv.k_cmp and v_cmp inputs. To verify a kernel's later
 *   stages on its own compressed keys, pass these.
 * - kv_len of a NULL batch is the first dimension of the first tensor present in io.kv.k.
 */
#ifndef NSAI_REFERENCE_REFERENCE_H
#define NSAI_REFERENCE_REFERENCE_H

#include "model/model.h"

#include <nsa/attention.h>
#include <nsa/backward.h>
#include <nsa/index_kl.h>
#include <stdbool.h>

/* How a KV cache is laid out in memory: include/nsa/kv_cache.h. */
typedef struct nsai_reference_cache {
  int32_t page_size; /* tokens; 0: no pages, one row of the tensors for each sequence */
  bool window_ring;  /* the window's pair is stored in rings */
  const struct nsai_reference_ranks
      *ranks; /* of a decode whose raw pages lie on ranks; NULL: on none */
} nsai_reference_cache;

/* Where raw tokens lie: the one at position p on rank (p / unit_tokens) mod count. Whether entries have a
 * table of their own, batch->entry_table says. */
typedef struct nsai_reference_ranks {
  int32_t count, rank;
  int32_t unit_tokens;
  /* Gathers `bytes` of every rank, in the order of ranks, to recv. `send` is this rank's place in it. */
  nsa_status (*gather)(void *user, const void *send, void *recv, uint64_t bytes);
  void *user;
} nsai_reference_ranks;

/* A list of (token, head) rows and the memory for their float64 results. Adjacent rows of one
 * token and KV group are computed together: sort by token, then head. */
typedef struct nsai_reference_rows {
  int64_t count;
  const int64_t *token; /* [count]: rows of q, over all sequences */
  const int32_t *head;  /* [count]: query heads */
  /* [count, Dv], or NULL: not wanted, and then the gates are not read */
  double *o;
  double *o_branch[NSA_BRANCHES]; /* [count, Dv] each, ungated, or NULL */
  double *lse[NSA_BRANCHES];      /* [count] each, or NULL */
} nsai_reference_rows;

/* Computes the whole forward into io's output tensors, as nsa_forward documents them.
 *
 * selection  NSA_SELECT_*
 * branches   bit b: run branch b; 0: all. The others give zeros and lse -inf, and their gates count
 *            as 0. The importance is computed all the same where selection needs it. */
nsa_status nsai_reference_forward(const nsai_model *model, int32_t selection, uint32_t branches,
                                  const nsa_batch *batch, const nsa_io *io, int threads);

/* Computes the same for a list of rows, in float64, and writes no tensor of io. With
 * NSA_SELECT_BLOCKS the blocks are io->block_idx, so that a kernel can be verified on the blocks
 * it selected. */
nsa_status nsai_reference_forward_rows(const nsai_model *model, int32_t selection,
                                       uint32_t branches, const nsa_batch *batch, const nsa_io *io,
                                       const nsai_reference_rows *rows, int threads);

/* Computes io.index_lse of the blocks that io.block_idx names, whoever chose them. cache NULL: packed keys. */
nsa_status nsai_reference_index_lse(const nsai_model *model, const nsai_reference_cache *cache,
                                    const nsa_batch *batch, const nsa_io *io, int threads);

/* nsa_decode and nsa_prefill: the complete forward over a cache, using the compressed keys
 * stored there. phi is not read. Over ranks it gathers once where the selected branch runs and there are
 * tokens, and may return what `gather` returns. */
nsa_status nsai_reference_cached(const nsai_model *model, const nsai_reference_cache *cache,
                                 int32_t selection, uint32_t branches, const nsa_batch *batch,
                                 const nsa_io *io, int threads);

/* nsa_kv_append: writes io->new_kv into io->kv, and every compressed block that these tokens
 * complete. Where batch->slot_mapping is not -1, it must agree with the page lists. */
nsa_status nsai_reference_append(const nsai_model *model, const nsai_reference_cache *cache,
                                 const nsa_batch *batch, const nsa_io *io, int threads);

/* nsa_backward. With NSA_SELECT_TOPN io->block_idx holds what the forward chose. Other memory than
 * the forward's: the gradients of K and V in float64, and per thread of phi its weights and their
 * gradients. */
nsa_status nsai_reference_backward(const nsai_model *model, int32_t selection, uint32_t branches,
                                   const nsa_batch *batch, const nsa_io *io, const nsa_grads *grads,
                                   int threads);

/* The same with the roundings of every implementation on tensor cores. Rounded to the model's dtype:
 * compressed keys and values, the hidden layers of phi and the gate MLP, the gradients of their
 * layers, and P' = g P and dS as operands of products. Scores and dP are float32 sums. io->o_branch
 * and io->lse are read where they are present. What differs from nsai_reference_backward is the error
 * of all that. draw: 0 rounds to nearest; any other number
 * up or down at random, and each number otherwise (nsai_ref_rounding). */
nsa_status nsai_reference_backward_stored(const nsai_model *model, int32_t selection,
                                          uint32_t branches, const nsa_batch *batch,
                                          const nsa_io *io, const nsa_grads *grads, uint32_t draw,
                                          int threads);

/* nsa_index_kl: of the blocks in io->block_idx or, with NSA_SELECT_ALL, of all that a token sees.
 * Other memory than the forward's: the gradients of the index keys in float64, for each KV head. */
nsa_status nsai_reference_index_kl(const nsai_model *model, int32_t selection,
                                   const nsa_batch *batch, const nsa_io *io,
                                   const nsa_index_grads *grads, int threads);

/* Computes the importance of `count` token rows, before forcing.
 *
 * tokens  [count]: rows of q
 * out     [count, Hkv, blocks]: 0 for blocks that are no candidates */
nsa_status nsai_reference_importance(const nsai_model *model, const nsa_batch *batch,
                                     const nsa_io *io, int64_t count, const int64_t *tokens,
                                     int64_t blocks, double *out, int threads);

/* Chooses the top-n of the query at position t, with forced blocks and the tie rule. NaN ranks
 * last.
 *
 * importance  [t / l' + 1] (not read when t < 0)
 * idx         out, [n]: ascending, then -1 */
void nsai_reference_select_row(const nsai_model *model, int64_t t, const double *importance,
                               int32_t *idx);

/* nsa_select: from a given importance [T, Hkv, blocks] to io->block_idx. */
nsa_status nsai_reference_select(const nsai_model *model, const nsa_batch *batch, const nsa_io *io,
                                 const nsa_tensor *importance, int threads);

/* nsa_compress: phi of io's k[0], v[0] to those of io.kv.k_cmp, v_cmp that are present. */
nsa_status nsai_reference_compress(const nsai_model *model, const nsa_batch *batch,
                                   const nsa_io *io, int threads);

/* nsa_dense: causal attention over k[0], v[0] into io's o and lse[0]. */
nsa_status nsai_reference_dense(const nsai_model *model, const nsa_batch *batch, const nsa_io *io,
                                int threads);

/* The same for a list of rows into rows' o and lse[0], in float64. */
nsa_status nsai_reference_dense_rows(const nsai_model *model, const nsa_batch *batch,
                                     const nsa_io *io, const nsai_reference_rows *rows,
                                     int threads);

#endif /* NSAI_REFERENCE_REFERENCE_H */
