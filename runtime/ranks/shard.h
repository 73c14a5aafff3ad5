/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The division of sequences among ranks (include/nsa/shard.h).
 */
#ifndef NSAI_RANKS_SHARD_H
#define NSAI_RANKS_SHARD_H

#include "base/digest.h"

#include <nsa/shard.h>

/* A token at position p costs 2 p + NSAI_SHARD_FIXED_COST units, so n tokens from the start of a sequence cost
 * n^2 + n NSAI_SHARD_FIXED_COST. Of 128k tokens on an H200, 36 ms are quadratic and 19 ms are linear (bf16, 64
 * heads in groups of 16, head dim 128): NSAI_SHARD_FIXED_COST = 19 / 36 * 128k. The sum over any shard fits in
 * int64, as NSAI_MAX_ROWS squared does. */
#define NSAI_SHARD_FIXED_COST 69177

struct nsa_shard {
  int32_t ranks, num_seqs, max_pieces; /* max_pieces: the most that a rank has */
  int64_t total_tokens, max_tokens;    /* of all sequences; of the rank with the most */
  int64_t alignment;
  int64_t *seq_begin;   /* [num_seqs + 1]: rows of the sequences in gathered memory */
  nsa_piece *pieces;    /* by rank, then in the order of the rank's tokens */
  int32_t *rank_begin;  /* [ranks + 1]: into pieces */
  int64_t *rank_tokens; /* [ranks] */
  int32_t *offsets;     /* of nsai_shard_offsets, by rank */
  int32_t *places;      /* of nsai_shard_places, by rank */
  /* Of ranks, alignment, lengths and pieces: equal shards have equal ones. */
  unsigned char digest[NSAI_DIGEST_BYTES];
};

/* Makes a shard. `options` has this library's size.
 *
 * stride     d, of which explicit alignments must be multiples.
 * alignment  of ZIGZAG and CONTIGUOUS where the options give none.
 *
 * NSA_E_ARG, NSA_E_NOMEM; *out is NULL then. */
nsa_status nsai_shard_create(const nsa_shard_options *options, int64_t stride, int64_t alignment,
                             nsa_shard **out);

/* A batch whose rows are a rank's local tokens, and whose keys are all tokens in the order of sequences
 * and positions. The pieces of one sequence share its keys:
 *
 *   sequence 2i      piece i: the keys from the begin of its sequence to its own end
 *   sequence 2i + 1  no rows: it leads from the end of these keys to the begin of the next
 *
 * So cu_kv does not ascend. Kernels that look up the sequence of a row of queries never come upon the
 * sequences without rows; kernels that look up the sequence of a key cannot use it. The arrays are of
 * the shard and lie one behind the other. */
typedef struct nsai_shard_batch {
  int32_t num_seqs;            /* 2 pieces - 1; -1: the rank has no piece */
  const int32_t *cu_q, *cu_kv; /* [num_seqs + 1] */
} nsai_shard_batch;
nsai_shard_batch nsai_shard_offsets(const nsa_shard *shard, int32_t rank);

/* A rank's pieces of the new tokens of a cache, in one array: cu_q [pieces + 1], sequence [pieces], and
 * behind [pieces], the new tokens of the sequence behind the piece. The array is of the shard. */
const int32_t *nsai_shard_places(const nsa_shard *shard, int32_t rank);

#endif /* NSAI_RANKS_SHARD_H */
