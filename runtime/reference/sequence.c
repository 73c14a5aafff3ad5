/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Maps rows to sequences: one packed view of a batch, a NULL batch, stored compressed keys, and
 * a cache.
 */
#include "base/math.h"
#include "reference/internal.h"
#include "reference/tensor.h"

#include <stdlib.h>

/* KV tokens of a NULL batch. With phi external and a pair per branch the first pair may be absent.
 */
static int64_t single_kv_len(const nsa_io *io) {
  for (int b = 0; b < NSA_BRANCHES; b++)
    if (io->kv.k[b].data) return io->kv.k[b].shape[0];
  return io->q.shape[0];
}

/* Compressed blocks of sequence s. External ones exist as far as the caller supplied them. */
static int64_t count_blocks(const nsai_model *model, const nsa_batch *batch, const nsa_io *io,
                            const nsai_ref_sequences *sequences, int64_t s) {
  int64_t count = nsai_block_count(model, sequences->kv[s + 1] - sequences->kv[s]);
  if (model->phi != NSAI_PHI_EXTERNAL) return count;
  int64_t begin = sequences->stored[s];
  int64_t end = batch && batch->cu_cmp.data ? nsai_ref_load_i32(&batch->cu_cmp, s + 1)
                                            : io->kv.k_cmp.shape[0];
  return end - begin < count ? nsai_larger(end - begin, 0) : count;
}

/* Allocates all arrays, zeroed. */
static nsa_status allocate(nsai_ref_sequences *sequences, int64_t count) {
  size_t bytes = (size_t)(count + 1) * 7 * sizeof(int64_t);
  int64_t *memory = calloc(1, bytes);
  if (!memory) return nsai_fail_nomem("the sequences of a batch", bytes);
  *sequences = (nsai_ref_sequences){ .count = count,
                                     .q = memory,
                                     .kv = memory + (count + 1),
                                     .blocks = memory + 2 * (count + 1),
                                     .first = memory + 3 * (count + 1),
                                     .stored = memory + 4 * (count + 1),
                                     .norms = memory + 5 * (count + 1),
                                     .first_norm = memory + 6 * (count + 1) };
  return NSA_OK;
}

/* Counts `blocks`, and coarse keys, for sequence s, whose kv and first_norm are filled. */
static void add_blocks(const nsai_model *model, nsai_ref_sequences *sequences, int64_t s,
                       int64_t blocks) {
  const int64_t coarse = nsai_norm_count(model, sequences->kv[s + 1] - sequences->kv[s]);
  sequences->norms[s + 1] = sequences->norms[s] + coarse - sequences->first_norm[s];
  sequences->max_norm = nsai_larger(sequences->max_norm, coarse);
  sequences->blocks[s + 1] = sequences->blocks[s] + blocks;
  sequences->max_cmp = nsai_larger(sequences->max_cmp, blocks);
  sequences->max_kv = nsai_larger(sequences->max_kv, sequences->kv[s + 1] - sequences->kv[s]);
}

nsa_status nsai_ref_sequences_init(nsai_ref_sequences *sequences, const nsai_model *model,
                                   const nsa_batch *batch, const nsa_io *io) {
  int64_t count = batch ? batch->num_seqs : 1;
  NSAI_TRY(allocate(sequences, count));
  const nsa_tensor *cu_kv = batch && batch->cu_kv.data ? &batch->cu_kv : NULL;
  for (int64_t s = 0; s < count; s++) {
    int64_t q_end = batch ? nsai_ref_load_i32(&batch->cu_q, s + 1) : io->q.shape[0];
    sequences->q[s + 1] = q_end;
    if (!batch)
      sequences->kv[s + 1] = single_kv_len(io);
    else
      sequences->kv[s + 1] = cu_kv ? nsai_ref_load_i32(cu_kv, s + 1) : q_end;
    sequences->stored[s] =
        batch && batch->cu_cmp.data ? nsai_ref_load_i32(&batch->cu_cmp, s) : sequences->blocks[s];
    add_blocks(model, sequences, s, count_blocks(model, batch, io, sequences, s));
  }
  return NSA_OK;
}

nsa_status nsai_ref_sequences_init_cached(nsai_ref_sequences *sequences, const nsai_model *model,
                                          const nsa_batch *batch, int64_t tokens, bool appends) {
  int64_t count = batch->num_seqs;
  NSAI_TRY(allocate(sequences, count));
  for (int64_t s = 0; s < count; s++) {
    int64_t *q = sequences->q, kv_len = nsai_ref_load_i32(&batch->kv_len, s);
    q[s + 1] =
        batch->cu_q.data ? nsai_ref_load_i32(&batch->cu_q, s + 1) : (s + 1) * (tokens / count);
    int64_t old =
        /* rows may come before the sequence's first token */
        nsai_larger(kv_len - (q[s + 1] - q[s]), 0);
    sequences->kv[s + 1] = sequences->kv[s] + kv_len;
    if (appends) sequences->first[s] = nsai_block_count(model, old);
    if (appends) sequences->first_norm[s] = nsai_norm_count(model, old);
    add_blocks(model, sequences, s, nsai_block_count(model, kv_len) - sequences->first[s]);
  }
  return NSA_OK;
}

void nsai_ref_sequences_fini(nsai_ref_sequences *sequences) { free(sequences->q); }

int64_t nsai_ref_sequence_of(const int64_t *starts, int64_t count, int64_t at) {
  int64_t low = 0, high = count; /* starts[low] <= at < starts[high] */
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (starts[middle] <= at)
      low = middle;
    else
      high = middle;
  }
  return low;
}

nsai_ref_position nsai_ref_sequences_find(const nsai_ref_sequences *sequences, int64_t token) {
  nsai_ref_position position = { 0, -1 };
  if (token < 0 || token >= sequences->q[sequences->count]) return position;
  int64_t s = nsai_ref_sequence_of(sequences->q, sequences->count, token);
  position.sequence = s;
  position.t = sequences->kv[s + 1] - sequences->kv[s] - sequences->q[s + 1] + token;
  return position;
}
