/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_shard_create, nsa_shard_pieces, nsa_shard_tokens, nsa_shard_max_pieces, nsa_shard_destroy.
 */
#include "ranks/shard.h"

#include "base/math.h"
#include "base/struct.h"
#include "plan/context.h"
#include "plan/spec.h"
#include "variants/select/index_scores.h"

#include <stdlib.h>

/* A multiple of the rows of every query tile of the kernels of a forward pass and of dQ: powers of two
 * up to 256, and 192. Rows are heads of a group, padded to a power of two, of successive tokens.
 *
 * Tiles of attend_selected may have other sizes, for example 80 rows. Their borders do not matter: a
 * row's keys are cut on a fixed grid, and keys that other rows of its tile chose add exact zeros. */
#define TILE_ROWS 768

/* Pieces that begin at multiples of it are cut into the tiles that their sequence is cut into on one
 * GPU. */
static int64_t alignment_of(const nsai_model *m) {
  int64_t tokens = TILE_ROWS / nsai_padded_group(m);
  if (m->index_heads) tokens = nsai_common_multiple(tokens, TILE_ROWS / nsai_index_padded_heads(m));
  if (m->select_count) return nsai_common_multiple(tokens, m->select_block);
  return nsai_compresses(m) ? nsai_common_multiple(tokens, m->stride) : tokens;
}

nsa_status nsa_shard_create(nsa_ctx *ctx, const nsa_shard_options *options, nsa_shard **shard) {
  static const nsai_struct_type type = { "options", "NSA_SHARD_OPTIONS_INIT",
                                         sizeof(nsa_shard_options) };
  nsa_shard_options room;
  const void *read;
  if (!shard) return nsai_fail(NSA_E_ARG, "nsa_shard_create: shard is NULL: give a place for it");
  *shard = NULL;
  NSAI_TRY(nsai_context_check(ctx));
  NSAI_TRY(nsai_struct_in(&type, options, &room, &read));
  const nsai_model *m = &ctx->config->model;
  return nsai_shard_create(read, nsai_compresses(m) ? m->stride : 1, alignment_of(m), shard);
}

static bool has_rank(const nsa_shard *shard, int32_t rank) {
  return rank >= 0 && rank < shard->ranks;
}

nsa_status nsa_shard_pieces(const nsa_shard *shard, int32_t rank, const nsa_piece **pieces,
                            int32_t *count) {
  if (!shard || !pieces || !count)
    return nsai_fail(NSA_E_ARG, "nsa_shard_pieces: %s is NULL",
                     !shard    ? "shard"
                     : !pieces ? "pieces"
                               : "count");
  if (!has_rank(shard, rank))
    return nsai_fail(NSA_E_ARG, "nsa_shard_pieces: rank is %d: the shard has the ranks 0 to %d",
                     rank, shard->ranks - 1);
  *pieces = shard->pieces + shard->rank_begin[rank];
  *count = shard->rank_begin[rank + 1] - shard->rank_begin[rank];
  return NSA_OK;
}

int64_t nsa_shard_tokens(const nsa_shard *shard, int32_t rank) {
  if (!shard || (rank != -1 && !has_rank(shard, rank))) return -1;
  return rank == -1 ? shard->max_tokens : shard->rank_tokens[rank];
}

int32_t nsa_shard_max_pieces(const nsa_shard *shard) { return shard ? shard->max_pieces : -1; }

void nsa_shard_destroy(nsa_shard *shard) { free(shard); }
