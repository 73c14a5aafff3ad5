/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The tensors of one case: on the device inside guarded buffers, and as host images for the
 * reference. Rows beyond the sequences, gaps between strided rows and guard bands of inputs hold
 * NaN, so that whoever reads them shows it; those of outputs must come back untouched.
 */
#ifndef CHK_DATA_H
#define CHK_DATA_H

#include "trial/case.h"
#include "trial/device.h"
#include "trial/inputs.h"

/* Inputs first: everything from CHK_FIRST_OUTPUT on is written by runs. */
typedef enum chk_slot {
  CHK_CU_Q,
  CHK_CU_KV,
  CHK_CU_BLOCKS,
  CHK_Q,
  CHK_K0,
  CHK_K1,
  CHK_K2,
  CHK_V0,
  CHK_V1,
  CHK_V2,
  CHK_PHI_K, /* pe, w, w1, b1, w2, b2 */
  CHK_PHI_V = CHK_PHI_K + 6,
  CHK_GATE_VALUE = CHK_PHI_V + 6,
  CHK_GATE_X,
  CHK_GATE_W1,
  CHK_GATE_B1,
  CHK_GATE_W2,
  CHK_GATE_B2,
  CHK_INDEX_IN,
  CHK_RANGES,
  CHK_K_CMP_IN,
  CHK_V_CMP_IN,
  CHK_PROBE_ROWS,
  CHK_IMPORTANCE_IN,
  CHK_FIRST_OUTPUT,
  CHK_O = CHK_FIRST_OUTPUT,
  CHK_O_BRANCH,
  CHK_LSE = CHK_O_BRANCH + NSA_BRANCHES,
  CHK_INDEX = CHK_LSE + NSA_BRANCHES,
  CHK_K_CMP,
  CHK_V_CMP,
  CHK_PROBE,
  CHK_SLOTS
} chk_slot;

typedef struct chk_data {
  const chk_case *c;
  const chk_device *device;
  chk_buffer buffer[CHK_SLOTS];      /* bytes 0: absent, or a slice of CHK_Q's buffer */
  nsa_tensor view[CHK_SLOTS];        /* shape, strides, dtype; `data` holds the offset in bytes */
  int64_t tokens, kv_tokens, blocks; /* true totals */
  int64_t token_capacity, kv_capacity;
  int64_t max_kv_len, select_blocks; /* longest sequence; selection blocks of it */
  int64_t probe_count;
  void *workspace, *guarded;                /* with guard bands on both sides, inside `guarded` */
  uint64_t workspace_bytes, workspace_room; /* as runs get it; what `guarded` can hold */
} chk_data;

enum { CHK_HOST = 0, CHK_ON_DEVICE = 1 };

/* Makes, fills and uploads everything that the case's kind needs. `probes` (probe_count token rows,
 * ascending) may be NULL. On failure chk_data_destroy still has to be called. */
nsa_status chk_data_create(const chk_device *device, const chk_case *c, int threads,
                           const int64_t *probes, int64_t probe_count, chk_data *data);
void chk_data_destroy(chk_data *data);

int chk_data_has(const chk_data *data, int slot);

/* A slot as the library or the reference takes it; absent slots give data NULL. Host views need the
 * image: inputs have it, outputs after chk_data_fetch. */
nsa_tensor chk_data_view(const chk_data *data, int slot, int where);

/* The structs of a run. An output slot appears only if it exists; INDEX_IN and INDEX share
 * io.block_idx by the case's selection. */
void chk_data_io(const chk_data *data, int where, nsa_batch *batch, nsa_io *io);

/* A batch for calls: NULL when the case has none. */
const nsa_batch *chk_data_batch(const chk_data *data, const nsa_batch *batch);

/* Gives the data a workspace of at least `bytes`, filled with NaN. */
nsa_status chk_data_workspace(chk_data *data, uint64_t bytes);

/* Gives it one of exactly `bytes`, a guard band right behind them, again filled with NaN: nothing
 * that an earlier run left there can be taken for this one's. No run may be under way. */
nsa_status chk_data_workspace_anew(chk_data *data, uint64_t bytes);

/* From now on runs ask for o alone: other outputs cost time, and a branch that does not run has
 * none. */
void chk_data_drop_optional(chk_data *data);

/* Poisons all outputs; fetches all outputs into their host images. */
nsa_status chk_data_poison(chk_data *data);
nsa_status chk_data_fetch(chk_data *data);

/* After a fetch: whether guard bands, gaps, rows beyond the sequences, inputs and the workspace's
 * guards are what they were. Returns the name of the damaged slot, or NULL. */
const char *chk_data_damaged(chk_data *data);

/* Bytes that differ between the valid elements of two fetched outputs of the same shape; -1 when
 * none, else the row. */
int64_t chk_data_difference(const chk_data *a, const chk_data *b, int slot);

const char *chk_slot_name(int slot);

/* The blocks of a token row and KV head in host block indices [T, Hkv, n]. */
const int32_t *chk_index_row(const nsa_tensor *index, int64_t t, int32_t head);

/* The sequence that token row `t` belongs to, and its position (may be negative). */
void chk_data_locate(const chk_case *c, int64_t t, int32_t *sequence, int64_t *position);

#endif /* CHK_DATA_H */
