/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Which rank holds which tokens of a run over several GPUs (ranks.h): a shard divides sequences into
 * pieces, on the host, without any communication.
 */
#ifndef NSA_SHARD_H
#define NSA_SHARD_H

#include <nsa/context.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NSA_MAX_RANKS 64

/* How the tokens of each sequence are divided. */
enum {
  /* 2R parts; rank r has the parts r and 2R-1-r, so that the work of causal attention is the same on
   * all ranks. A sequence of fewer than 2R * alignment tokens goes whole to one rank: the longest
   * first, to the rank that has the least to compute. */
  NSA_SHARD_ZIGZAG = 1,
  NSA_SHARD_CONTIGUOUS = 2, /* R parts; the last rank has the most work */
  NSA_SHARD_GIVEN = 3       /* the caller's list of pieces */
};

/* Successive tokens of one sequence on one rank.
 *
 * Parts begin at multiples of the shard's alignment, and their lengths differ by at most one alignment.
 * The last part of a sequence may be shorter. Parts of one rank that follow each other are one piece, as
 * the middle parts of a zigzag are, and parts without tokens are none. */
typedef struct nsa_piece {
  int32_t rank;
  int32_t sequence;
  int64_t begin;  /* the position of its first token in the sequence */
  int64_t length; /* tokens */
} nsa_piece;

/* What a shard is made of. Every rank passes the same. The arrays lie in host memory and are read
 * during the call only. */
typedef struct nsa_shard_options {
  uint32_t struct_size;
  int32_t layout;         /* NSA_SHARD_* [NSA_SHARD_ZIGZAG] */
  int32_t ranks;          /* R, 1 to NSA_MAX_RANKS; required */
  int32_t num_seqs;       /* sequences [1] */
  const int64_t *lengths; /* [num_seqs]: tokens of each sequence, 0 or more; required */
  /* Pieces begin at multiples of so many tokens; itself a multiple of the model's d, unless phi is none
   * and there are no compressed entries. [the least common multiple of l' and of the tokens that a query
   * tile of any kernel may hold: results are then those of one GPU with the same variants, bit for bit.
   * 192 tokens for groups of 16 query heads, 768 for groups of one. A smaller alignment balances short
   * sequences better; results are then equal to rounding] */
  int64_t alignment;
  /* NSA_SHARD_GIVEN: `given_count` pieces in any order, which cover each token exactly once and begin
   * at multiples of `alignment` [d; 1 where phi is none] */
  const nsa_piece *given;
  int64_t given_count;
} nsa_shard_options;
#define NSA_SHARD_OPTIONS_INIT NSA_INIT(nsa_shard_options)

/* A division of sequences among ranks. It never changes, and threads may share it. */
typedef struct nsa_shard nsa_shard;

/* Makes a shard. Blocking, host only. Thread-safe.
 *
 * ctx    of the model whose d and l' the alignment follows; the shard does not keep it.
 * shard  receives the shard, which the caller owns; NULL on failure.
 *
 * Returns NSA_OK, NSA_E_ARG, NSA_E_VERSION, NSA_E_NOMEM or NSA_E_FORKED. */
NSA_API nsa_status nsa_shard_create(nsa_ctx *ctx, const nsa_shard_options *options,
                                    nsa_shard **shard);

/* The pieces of a rank, in the order of its local tokens: by sequence, then by position. Row 0 of
 * its tensors is the first token of the first piece. Thread-safe.
 *
 * pieces  receives memory of the shard, valid as long as it.
 * count   receives their number, which may be 0.
 *
 * Returns NSA_OK or NSA_E_ARG. */
NSA_API nsa_status nsa_shard_pieces(const nsa_shard *shard, int32_t rank, const nsa_piece **pieces,
                                    int32_t *count);

/* The number of tokens of a rank, or with rank -1 the largest of any rank, which is what
 * problem.max_tokens must allow; and the most pieces that a rank has, for problem.max_pieces. -1: the
 * shard is NULL, or it has no such rank. Thread-safe. */
NSA_API int64_t nsa_shard_tokens(const nsa_shard *shard, int32_t rank);
NSA_API int32_t nsa_shard_max_pieces(const nsa_shard *shard);

/* Destroys a shard. NULL is fine. Runs that were enqueued with it need it no more. A captured graph of
 * such runs reads the shard at every launch, so destroy the graph before. */
NSA_API void nsa_shard_destroy(nsa_shard *shard);

#ifdef __cplusplus
}
#endif
#endif /* NSA_SHARD_H */
