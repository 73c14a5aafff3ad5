/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Sequences in caches on the device, as many copies as keep a step's reads out of L2, and the tensors of
 * a step.
 */
#ifndef BENCH_DECODE_WORLD_H
#define BENCH_DECODE_WORLD_H

#include "decode.h"

typedef struct decode_world {
  const nsai_trial_device *device;
  const nsai_geometry *geometry;
  int64_t context, batch, copies;
  int32_t q_len, page_size;
  int64_t pages; /* of one sequence; 1 without pages */
  nsa_kv cache;  /* of all copies */
  nsa_io io;     /* of a step; its kv is the cache */
  nsa_kv fresh;  /* of a step: the first rows of the prompt */
  nsa_tensor lengths,
      tables; /* i32 [batch], i32 [copies * batch, pages] or slots [copies * batch] */
  void *owned[32];
  int owned_count;
} decode_world;

/* Makes the caches and fills them by nsa_kv_append with `append`, a plan for whole sequences. `copies` is
 * what would be good to have; fewer are made where memory is short.
 *
 * NSA_E_NOMEM or NSA_E_CUDA when not even one fits. The world is to be destroyed in any case. */
nsa_status decode_world_create(chk_session *session, const bench_decode_options *options,
                               const nsai_geometry *g, const nsa_plan *fill,
                               const bench_decode_cell *cell, int64_t copies, decode_world *out);
void decode_world_destroy(decode_world *world);

/* The batch of a step over one of the copies. */
nsa_batch decode_world_batch(const decode_world *world, int64_t copy);

/* Device memory that lives as long as the world. */
nsa_status decode_world_alloc(decode_world *world, size_t bytes, void **out);

#endif /* BENCH_DECODE_WORLD_H */
