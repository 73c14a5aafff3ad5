/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The workspace of a run over ranks beside that of one piece: K and V of all tokens, and in the
 * backward pass fp32 sums of their gradients. A rank gathers each tensor whole, in the order of
 * sequences and positions, computes its pieces, and sends the sums to the ranks that own the tokens.
 */
#ifndef NSAI_PLAN_RANKS_MEMORY_H
#define NSAI_PLAN_RANKS_MEMORY_H

#include "plan/problem.h"
#include "plan/variant.h"

/* The tensors that travel. */
enum {
  NSAI_RANKS_K,                        /* K of pair 0, 1, 2 */
  NSAI_RANKS_V = NSAI_RANKS_K + 3,     /* V of pair 0, 1, 2 */
  NSAI_RANKS_K_CMP = NSAI_RANKS_V + 3, /* compressed keys and values of phi external */
  NSAI_RANKS_V_CMP,
  NSAI_RANKS_K_IDX, /* keys of the index */
  NSAI_RANKS_TENSORS
};

typedef struct nsai_ranks_tensor {
  bool exists;
  bool entries;       /* a row is a compressed entry; else a token */
  int32_t heads, dim; /* of a row */
  nsai_buffer whole;  /* dtype [rows of all ranks, heads, dim] */
  nsai_buffer sums;   /* f32, likewise: this rank's part of the gradient; bytes 0: none */
  /* f32 [ranks - 1, local_rows, heads, dim]: other ranks' parts of the sums. On one host they are those of
   * this rank's rows. With hosts of H ranks there are (H - 1) ranks/H blocks inside the host, and then
   * ranks/H - 1 between hosts, in the same place: both at most ranks - 1. */
  nsai_buffer received;
  int64_t local_rows; /* most rows of a rank */
} nsai_ranks_tensor;

typedef struct nsai_ranks_memory {
  nsai_ranks_tensor tensor[NSAI_RANKS_TENSORS];
  nsai_buffer offsets; /* i32: of a batch of the rank's pieces, nsai_shard_offsets */
  nsai_buffer weights; /* f32: gradients of weights, by nsai_ranks_weights */
} nsai_ranks_memory;

/* Fills everything but the buffers' offsets. */
void nsai_ranks_memory_size(const nsai_problem *problem, nsai_ranks_memory *out);

/* Bytes of the tensors that travel and of the sums of their gradients. */
int64_t nsai_ranks_memory_bytes(const nsai_problem *problem);

/* ---- a prefill over a cache ---- */

/* The raw pages of all ranks, in an order that follows from capacities and the number of sequences alone:
 * lengths are on the device. A sequence has `rounds` units on each rank:
 *
 *   page i of sequence s  u = i / unit_pages, r = u mod ranks: page
 *                         (r * num_seqs + s) * rank_pages + u / ranks * unit_pages + i mod unit_pages */
enum { NSAI_RANKS_PAGED = 6 }; /* K and V of pair 0, 1, 2 */

typedef struct nsai_ranks_pages {
  int64_t rank_pages; /* of a sequence on a rank */
  int64_t columns;    /* of a piece's tables: pages of problem.max_kv_len tokens */
  int64_t page_bytes[NSAI_RANKS_PAGED]; /* 0: the tensor does not travel */
  nsai_buffer pool[NSAI_RANKS_PAGED];   /* K and V alternate */
  nsai_buffer uploaded;                 /* i32, of nsai_shard_places */
  nsai_buffer
      tables; /* i32: kv_len, slots [pieces], raw pages, pages of entries [pieces, columns] */
} nsai_ranks_pages;

/* Fills everything but the buffers' offsets. */
void nsai_ranks_pages_size(const nsai_problem *problem, nsai_ranks_pages *out);

/* A gradient of weights: a rank's pieces add to it one after the other. */
typedef struct nsai_ranks_weight {
  size_t tensor;    /* offset in nsa_grads */
  int64_t shape[3]; /* of 1 to 3 dimensions, right-aligned: 1 before */
  int32_t ndim;
  uint64_t offset; /* in nsai_ranks_memory.weights */
} nsai_ranks_weight;

#define NSAI_RANKS_MOST_WEIGHTS 16

/* The weights of phi and the gate MLP that the model has. Returns their number; *bytes: of all, f32. */
int nsai_ranks_weights(const nsai_model *model, nsai_ranks_weight out[NSAI_RANKS_MOST_WEIGHTS],
                       int64_t *bytes);

#endif /* NSAI_PLAN_RANKS_MEMORY_H */
