/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The tensors of one case: on the device inside guarded buffers, and as host images for the
 * reference. Rows beyond the sequences, gaps between strided rows and the guard bands of inputs
 * hold NaN, so that a kernel that reads them gives NaN. Those of outputs must come back
 * unchanged.
 */
#ifndef NSAI_VERIFY_TENSORS_H
#define NSAI_VERIFY_TENSORS_H

#include "verify/case.h"
#include "verify/device.h"
#include "verify/inputs.h"

#include <nsa/backward.h>

/* Inputs first: everything from NSAI_VERIFY_FIRST_OUTPUT on is written by runs. */
typedef enum nsai_verify_slot {
  NSAI_VERIFY_CU_Q,
  NSAI_VERIFY_CU_KV,
  NSAI_VERIFY_CU_CMP,
  NSAI_VERIFY_Q,
  NSAI_VERIFY_K0,
  NSAI_VERIFY_K1,
  NSAI_VERIFY_K2,
  NSAI_VERIFY_V0,
  NSAI_VERIFY_V1,
  NSAI_VERIFY_V2,
  NSAI_VERIFY_PHI_K, /* pe, w, w1, b1, w2, b2 */
  NSAI_VERIFY_PHI_V = NSAI_VERIFY_PHI_K + 6,
  NSAI_VERIFY_GATE_VALUE = NSAI_VERIFY_PHI_V + 6,
  NSAI_VERIFY_GATE_X,
  NSAI_VERIFY_GATE_W1,
  NSAI_VERIFY_GATE_B1,
  NSAI_VERIFY_GATE_W2,
  NSAI_VERIFY_GATE_B2,
  NSAI_VERIFY_INDEX_IN,
  NSAI_VERIFY_RANGES,
  NSAI_VERIFY_K_CMP_IN,
  NSAI_VERIFY_V_CMP_IN,
  NSAI_VERIFY_PROBE_ROWS,
  NSAI_VERIFY_IMPORTANCE_IN,
  NSAI_VERIFY_D_O,
  NSAI_VERIFY_O_BRANCH_IN, /* outputs of a forward: bwd with `saved` */
  NSAI_VERIFY_LSE_IN = NSAI_VERIFY_O_BRANCH_IN + NSA_BRANCHES,
  NSAI_VERIFY_INDEX_Q = NSAI_VERIFY_LSE_IN + NSA_BRANCHES,
  NSAI_VERIFY_K_IDX,
  NSAI_VERIFY_FIRST_OUTPUT,
  NSAI_VERIFY_O = NSAI_VERIFY_FIRST_OUTPUT,
  NSAI_VERIFY_O_BRANCH,
  NSAI_VERIFY_LSE = NSAI_VERIFY_O_BRANCH + NSA_BRANCHES,
  NSAI_VERIFY_INDEX_LSE = NSAI_VERIFY_LSE + NSA_BRANCHES,
  NSAI_VERIFY_INDEX,
  NSAI_VERIFY_K_CMP,
  NSAI_VERIFY_V_CMP,
  NSAI_VERIFY_PROBE,
  NSAI_VERIFY_FIRST_GRADIENT,
  NSAI_VERIFY_D_Q = NSAI_VERIFY_FIRST_GRADIENT,
  NSAI_VERIFY_D_K0,
  NSAI_VERIFY_D_V0 = NSAI_VERIFY_D_K0 + NSA_BRANCHES,
  NSAI_VERIFY_D_K_CMP = NSAI_VERIFY_D_V0 + NSA_BRANCHES,
  NSAI_VERIFY_D_V_CMP,
  NSAI_VERIFY_D_PHI_K, /* pe, w, w1, b1, w2, b2 */
  NSAI_VERIFY_D_PHI_V = NSAI_VERIFY_D_PHI_K + 6,
  NSAI_VERIFY_D_GATE_VALUE = NSAI_VERIFY_D_PHI_V + 6,
  NSAI_VERIFY_D_GATE_X,
  NSAI_VERIFY_D_GATE_W1,
  NSAI_VERIFY_D_GATE_B1,
  NSAI_VERIFY_D_GATE_W2,
  NSAI_VERIFY_D_GATE_B2,
  NSAI_VERIFY_SLOTS
} nsai_verify_slot;

typedef struct nsai_verify_tensors {
  const nsai_verify_case *c;
  const nsai_verify_device *device;
  nsai_verify_buffer
      buffer[NSAI_VERIFY_SLOTS];      /* bytes 0: absent, or a slice of NSAI_VERIFY_Q's buffer */
  nsa_tensor view[NSAI_VERIFY_SLOTS]; /* shape, strides, dtype; `data` holds the offset in bytes */
  int64_t tokens, kv_tokens, blocks;  /* totals of the actual lengths */
  int64_t token_capacity, kv_capacity;
  int64_t max_kv_len, select_blocks; /* longest sequence; its number of selection blocks */
  int64_t probe_count;
  /* `guarded` contains the workspace between two guard bands */
  void *workspace, *guarded;
  uint64_t workspace_bytes, workspace_room; /* size that runs get; capacity of `guarded` */
} nsai_verify_tensors;

enum { NSAI_VERIFY_HOST = 0, NSAI_VERIFY_ON_DEVICE = 1 };

/* Makes, fills and uploads everything that the case's kind needs. `probes` (probe_count token
 * rows, ascending) may be NULL. nsai_verify_tensors_destroy must be called even after a failure. */
nsa_status nsai_verify_tensors_create(const nsai_verify_device *device, const nsai_verify_case *c,
                                      int threads, const int64_t *probes, int64_t probe_count,
                                      nsai_verify_tensors *data);
void nsai_verify_tensors_destroy(nsai_verify_tensors *data);

/* The branches that run, as bits: those the model has and the case asks for. */
uint32_t nsai_verify_branches(const nsai_verify_case *c);

int nsai_verify_tensors_has(const nsai_verify_tensors *data, int slot);

/* A slot as the library or the reference takes it; absent slots give data NULL. Host views need
 * the image: inputs always have it, outputs have it after nsai_verify_tensors_fetch. */
nsa_tensor nsai_verify_tensors_view(const nsai_verify_tensors *data, int slot, int where);

/* The structs of a run. An output slot appears only if it exists. INDEX_IN and INDEX share
 * io.block_idx, according to the case's selection. */
void nsai_verify_tensors_io(const nsai_verify_tensors *data, int where, nsa_batch *batch,
                            nsa_io *io);

/* Dense attention over the tensors of a run with an index: nsa_dense refuses what chooses blocks. */
void nsai_verify_leave_out_index(nsa_io *io);

/* The gradients of a backward pass, in the same way: those of `data`, or those of `slot`
 * [NSAI_VERIFY_SLOTS]. */
void nsai_verify_tensors_grads(const nsai_verify_tensors *data, int where, nsa_grads *grads);
void nsai_verify_set_grads(const nsa_tensor *slot, nsa_grads *grads);

/* Writes random numbers of `seed` into the gradients' written elements, on the device and in
 * their images: an accumulating run adds to them. */
nsa_status nsai_verify_tensors_begin_sums(nsai_verify_tensors *data, uint64_t seed);

/* A batch for calls: NULL when the case has none. */
const nsa_batch *nsai_verify_tensors_batch(const nsai_verify_tensors *data, const nsa_batch *batch);

/* Gives the data a workspace of at least `bytes`, filled with NaN. */
nsa_status nsai_verify_tensors_workspace(nsai_verify_tensors *data, uint64_t bytes);

/* Replaces the workspace by one of exactly `bytes`, filled with NaN and directly followed by a
 * guard band, so that results of an earlier run there cannot be mistaken for this one's. No run
 * may be in progress. */
nsa_status nsai_verify_tensors_workspace_anew(nsai_verify_tensors *data, uint64_t bytes);

/* From now on runs produce o alone: other outputs cost time, and a branch that does not run has
 * none. */
void nsai_verify_tensors_drop_optional(nsai_verify_tensors *data);

/* Poisons all outputs; fetches all outputs into their host images. */
nsa_status nsai_verify_tensors_poison(nsai_verify_tensors *data);
nsa_status nsai_verify_tensors_fetch(nsai_verify_tensors *data);

/* After a fetch: whether guard bands, gaps, rows beyond the sequences, inputs and the
 * workspace's guards are unchanged. Returns the name of the damaged slot, or NULL. */
const char *nsai_verify_tensors_damaged(nsai_verify_tensors *data);

/* Compares the valid elements of two fetched outputs of the same shape. Returns -1 when no byte
 * differs, else the row. */
int64_t nsai_verify_tensors_difference(const nsai_verify_tensors *a, const nsai_verify_tensors *b,
                                       int slot);

const char *nsai_verify_slot_name(int slot);

/* The sequence that token row `t` belongs to, and its position (may be negative). */
void nsai_verify_tensors_locate(const nsai_verify_case *c, int64_t t, int32_t *sequence,
                                int64_t *position);

#endif /* NSAI_VERIFY_TENSORS_H */
