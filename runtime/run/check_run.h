/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Checks of a run's tensors against the plan: everything a caller can get wrong is refused here, by
 * name, before anything is enqueued.
 */
#ifndef NSAI_RUN_CHECK_RUN_H
#define NSAI_RUN_CHECK_RUN_H

#include "driver/cuda_api.h"
#include "plan/problem.h"
#include "run/check_overlap.h"

/* The sizes of one run, from its tensors. */
typedef struct nsai_run_sizes {
  int64_t tokens;    /* T: rows of q */
  int64_t kv_tokens; /* rows of k; 0 with a cache */
  int64_t cmp_rows;  /* rows of io.kv.k_cmp; 0 when absent */
  int32_t num_seqs;
  bool packed; /* the batch brings cu_q, or lies over a cache: tiles are numbered by sequence */
} nsai_run_sizes;

typedef struct nsai_check {
  const nsai_problem *problem;
  const nsai_driver *driver;     /* NULL: the CPU device */
  nsa_stream stream;             /* of a GPU's run */
  int32_t level;                 /* NSAI_CHECK_* of runtime.check_inputs */
  uint32_t branches;             /* that will run */
  int32_t rank;                  /* over ranks: this one; -1: the call has no communicator */
  const struct nsa_shard *shard; /* of a run over ranks that divides its tokens; else NULL */
  nsai_call_tensors *tensors;    /* receives every tensor that passes; NULL: nobody asks */
  /* Keeps what is read of a cache's batch (check_values.h) until its owner gives it back; or NULL. */
  struct nsai_batch_values *values;
} nsai_check;

static inline bool nsai_present(const nsa_tensor *tensor) { return tensor->data != NULL; }

/* Which of the wanted branches (0: all) the model has. NSA_E_ARG when none is left. */
nsa_status nsai_check_branches(const nsai_problem *problem, uint32_t wanted, uint32_t *branches);

/* All tensors of nsa_forward, nsa_dense, nsa_prefill or nsa_decode, by the plan's operation. */
nsa_status nsai_check_run(const nsai_check *check, const nsa_batch *batch, const nsa_io *io,
                          nsai_run_sizes *sizes);

/* The name of an array of the batch that only a cache has, and that is given; NULL: there is none. */
const char *nsai_array_of_cache(const nsa_batch *batch);

/* Refuses `t`, which belongs to compressed keys or, with `values`, to compressed values, where the model
 * has none. */
nsa_status nsai_check_no_entries(const nsai_model *model, const nsa_tensor *t, bool values,
                                 const char *name);

/* The weights of phi, io.phi, where it has some; those of V only where there are compressed values. */
nsa_status nsai_check_phi(const nsai_check *check, const nsa_phi *phi);

/* The tensors of io of nsa_index_kl; check_gradients.h has its outputs. */
nsa_status nsai_check_index_kl(const nsai_check *check, const nsa_batch *batch, const nsa_io *io,
                               nsai_run_sizes *sizes);

/* Those of nsa_compress. */
nsa_status nsai_check_compress(const nsai_check *check, const nsa_batch *batch, const nsa_io *io,
                               nsai_run_sizes *sizes);

/* Those of nsa_select. */
nsa_status nsai_check_select(const nsai_check *check, const nsa_batch *batch, const nsa_io *io,
                             nsai_run_sizes *sizes);

#endif /* NSAI_RUN_CHECK_RUN_H */
