/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The tensors of one case: on the device inside guarded buffers, and as host images for the
 * reference. Rows beyond the sequences, gaps between strided rows and guard bands of inputs hold
 * NaN, so that whoever reads them shows it; those of outputs must come back untouched.
 */
#ifndef NSAI_VERIFY_TENSORS_H
#define NSAI_VERIFY_TENSORS_H

#include "verify/case.h"
#include "verify/device.h"
#include "verify/inputs.h"

#include <nsa/backward.h>

/* Inputs first: everything from NSAI_TRIAL_FIRST_OUTPUT on is written by runs. */
typedef enum nsai_trial_slot {
  NSAI_TRIAL_CU_Q,
  NSAI_TRIAL_CU_KV,
  NSAI_TRIAL_CU_BLOCKS,
  NSAI_TRIAL_Q,
  NSAI_TRIAL_K0,
  NSAI_TRIAL_K1,
  NSAI_TRIAL_K2,
  NSAI_TRIAL_V0,
  NSAI_TRIAL_V1,
  NSAI_TRIAL_V2,
  NSAI_TRIAL_PHI_K, /* pe, w, w1, b1, w2, b2 */
  NSAI_TRIAL_PHI_V = NSAI_TRIAL_PHI_K + 6,
  NSAI_TRIAL_GATE_VALUE = NSAI_TRIAL_PHI_V + 6,
  NSAI_TRIAL_GATE_X,
  NSAI_TRIAL_GATE_W1,
  NSAI_TRIAL_GATE_B1,
  NSAI_TRIAL_GATE_W2,
  NSAI_TRIAL_GATE_B2,
  NSAI_TRIAL_INDEX_IN,
  NSAI_TRIAL_RANGES,
  NSAI_TRIAL_K_CMP_IN,
  NSAI_TRIAL_V_CMP_IN,
  NSAI_TRIAL_PROBE_ROWS,
  NSAI_TRIAL_IMPORTANCE_IN,
  NSAI_TRIAL_D_O,
  NSAI_TRIAL_O_BRANCH_IN, /* what a forward has left: bwd with `saved` */
  NSAI_TRIAL_LSE_IN = NSAI_TRIAL_O_BRANCH_IN + NSA_BRANCHES,
  NSAI_TRIAL_FIRST_OUTPUT = NSAI_TRIAL_LSE_IN + NSA_BRANCHES,
  NSAI_TRIAL_O = NSAI_TRIAL_FIRST_OUTPUT,
  NSAI_TRIAL_O_BRANCH,
  NSAI_TRIAL_LSE = NSAI_TRIAL_O_BRANCH + NSA_BRANCHES,
  NSAI_TRIAL_INDEX = NSAI_TRIAL_LSE + NSA_BRANCHES,
  NSAI_TRIAL_K_CMP,
  NSAI_TRIAL_V_CMP,
  NSAI_TRIAL_PROBE,
  NSAI_TRIAL_FIRST_GRADIENT,
  NSAI_TRIAL_D_Q = NSAI_TRIAL_FIRST_GRADIENT,
  NSAI_TRIAL_D_K0,
  NSAI_TRIAL_D_V0 = NSAI_TRIAL_D_K0 + NSA_BRANCHES,
  NSAI_TRIAL_D_K_CMP = NSAI_TRIAL_D_V0 + NSA_BRANCHES,
  NSAI_TRIAL_D_V_CMP,
  NSAI_TRIAL_D_PHI_K, /* pe, w, w1, b1, w2, b2 */
  NSAI_TRIAL_D_PHI_V = NSAI_TRIAL_D_PHI_K + 6,
  NSAI_TRIAL_D_GATE_VALUE = NSAI_TRIAL_D_PHI_V + 6,
  NSAI_TRIAL_D_GATE_X,
  NSAI_TRIAL_D_GATE_W1,
  NSAI_TRIAL_D_GATE_B1,
  NSAI_TRIAL_D_GATE_W2,
  NSAI_TRIAL_D_GATE_B2,
  NSAI_TRIAL_SLOTS
} nsai_trial_slot;

typedef struct nsai_trial_data {
  const nsai_trial_case *c;
  const nsai_trial_device *device;
  nsai_trial_buffer
      buffer[NSAI_TRIAL_SLOTS];      /* bytes 0: absent, or a slice of NSAI_TRIAL_Q's buffer */
  nsa_tensor view[NSAI_TRIAL_SLOTS]; /* shape, strides, dtype; `data` holds the offset in bytes */
  int64_t tokens, kv_tokens, blocks; /* true totals */
  int64_t token_capacity, kv_capacity;
  int64_t max_kv_len, select_blocks; /* longest sequence; selection blocks of it */
  int64_t probe_count;
  void *workspace, *guarded;                /* with guard bands on both sides, inside `guarded` */
  uint64_t workspace_bytes, workspace_room; /* as runs get it; what `guarded` can hold */
} nsai_trial_data;

enum { NSAI_TRIAL_HOST = 0, NSAI_TRIAL_ON_DEVICE = 1 };

/* Makes, fills and uploads everything that the case's kind needs. `probes` (probe_count token rows,
 * ascending) may be NULL. On failure nsai_trial_data_destroy still has to be called. */
nsa_status nsai_trial_data_create(const nsai_trial_device *device, const nsai_trial_case *c,
                                  int threads, const int64_t *probes, int64_t probe_count,
                                  nsai_trial_data *data);
void nsai_trial_data_destroy(nsai_trial_data *data);

/* The branches that run, as bits: those the model has and the case asks for. */
uint32_t nsai_trial_branches(const nsai_trial_case *c);

int nsai_trial_data_has(const nsai_trial_data *data, int slot);

/* A slot as the library or the reference takes it; absent slots give data NULL. Host views need the
 * image: inputs have it, outputs after nsai_trial_data_fetch. */
nsa_tensor nsai_trial_data_view(const nsai_trial_data *data, int slot, int where);

/* The structs of a run. An output slot appears only if it exists; INDEX_IN and INDEX share
 * io.block_idx by the case's selection. */
void nsai_trial_data_io(const nsai_trial_data *data, int where, nsa_batch *batch, nsa_io *io);

/* The gradients of a backward pass, in the same way: those of data, or `slot` [NSAI_TRIAL_SLOTS]. */
void nsai_trial_data_grads(const nsai_trial_data *data, int where, nsa_grads *grads);
void nsai_trial_set_grads(const nsa_tensor *slot, nsa_grads *grads);

/* Puts numbers to add to into the gradients' written elements, on the device and in their images: those
 * of `seed`. */
nsa_status nsai_trial_data_begin_sums(nsai_trial_data *data, uint64_t seed);

/* A batch for calls: NULL when the case has none. */
const nsa_batch *nsai_trial_data_batch(const nsai_trial_data *data, const nsa_batch *batch);

/* Gives the data a workspace of at least `bytes`, filled with NaN. */
nsa_status nsai_trial_data_workspace(nsai_trial_data *data, uint64_t bytes);

/* Gives it one of exactly `bytes`, a guard band right behind them, again filled with NaN: nothing
 * that an earlier run left there can be taken for this one's. No run may be under way. */
nsa_status nsai_trial_data_workspace_anew(nsai_trial_data *data, uint64_t bytes);

/* From now on runs ask for o alone: other outputs cost time, and a branch that does not run has
 * none. */
void nsai_trial_data_drop_optional(nsai_trial_data *data);

/* Poisons all outputs; fetches all outputs into their host images. */
nsa_status nsai_trial_data_poison(nsai_trial_data *data);
nsa_status nsai_trial_data_fetch(nsai_trial_data *data);

/* After a fetch: whether guard bands, gaps, rows beyond the sequences, inputs and the workspace's
 * guards are what they were. Returns the name of the damaged slot, or NULL. */
const char *nsai_trial_data_damaged(nsai_trial_data *data);

/* Bytes that differ between the valid elements of two fetched outputs of the same shape; -1 when
 * none, else the row. */
int64_t nsai_trial_data_difference(const nsai_trial_data *a, const nsai_trial_data *b, int slot);

const char *nsai_trial_slot_name(int slot);

/* The blocks of a token row and KV head in host block indices [T, Hkv, n]. */
const int32_t *nsai_trial_index_row(const nsa_tensor *index, int64_t t, int32_t head);

/* The sequence that token row `t` belongs to, and its position (may be negative). */
void nsai_trial_data_locate(const nsai_trial_case *c, int64_t t, int32_t *sequence,
                            int64_t *position);

#endif /* NSAI_VERIFY_TENSORS_H */
