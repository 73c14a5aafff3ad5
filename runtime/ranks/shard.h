/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The division of sequences among ranks (include/nsa/ranks.h).
 */
#ifndef NSAI_RANKS_SHARD_H
#define NSAI_RANKS_SHARD_H

#include "base/digest.h"

#include <nsa/ranks.h>

struct nsa_shard {
  int32_t ranks, num_seqs, max_pieces; /* max_pieces: the most that a rank has */
  int64_t total_tokens, max_tokens;    /* of all sequences; of the rank with the most */
  int64_t alignment;
  int64_t *seq_begin;   /* [num_seqs + 1]: rows of the sequences in gathered memory */
  nsa_piece *pieces;    /* by rank, then in the order of the rank's tokens */
  int32_t *rank_begin;  /* [ranks + 1]: into pieces */
  int64_t *rank_tokens; /* [ranks] */
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

#endif /* NSAI_RANKS_SHARD_H */
