/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What each run call enqueues on the GPU: the order of stages. The variants launch the kernels.
 * Arguments have been checked.
 */
#ifndef NSAI_RUN_RUN_H
#define NSAI_RUN_RUN_H

#include "params/attention.h"
#include "plan/plan.h"
#include "run/check_run.h"

#include <nsa/backward.h>
#include <nsa/index_kl.h>
#include <nsa/ranks.h>

/* Called before and after what each stage enqueues; several times where it works in chunks. */
typedef struct nsai_stage_callbacks {
  nsa_status (*on_stage)(void *user, nsai_stage stage, bool begins);
  void *user;
} nsai_stage_callbacks;

/* nsa_forward, nsa_dense, nsa_prefill or nsa_backward, by the plan's problem, with callbacks;
 * NSA_E_INTERNAL with a plan of another. `grads`: of nsa_backward, else NULL. */
nsa_status nsai_run_with_callbacks(const nsa_plan *plan, const nsa_exec *exec,
                                   const nsa_batch *batch, const nsa_io *io, const nsa_grads *grads,
                                   const nsai_stage_callbacks *callbacks);

/* Raw K and V that a rank has yet to receive. In a forward those of its pieces, and of the tokens before them that a
 * window's own kernel reads, are there; in a backward pass nothing is, nor are entries. */
typedef struct nsai_awaited_keys {
  nsa_status (*receive)(void *user); /* then the run's stream waits for them */
  void *user;
  int32_t spare_sms; /* that persistent kernels leave to the transport until then */
  bool received;     /* `receive` was called */
} nsai_awaited_keys;

/* Sums of dK and dV for which other ranks wait. */
typedef struct nsai_made_sums {
  nsa_status (*send)(void *user);
  void *user;
} nsai_made_sums;

/* One piece of a run over ranks, which is a run of its own over the rank's query rows and all keys up
 * to their end. Its compressed entries are there, or awaited: no stage makes them. */
typedef struct nsai_run_piece {
  bool adds_kv;      /* gradients of K and V: adds to those of earlier pieces; else overwrites */
  bool adds_weights; /* likewise, of weights */
  nsai_awaited_keys *awaited; /* NULL: raw K and V are there */
  const nsai_made_sums *sums; /* NULL: nobody waits for them */
} nsai_run_piece;

/* One run, resolved: where everything lies. */
typedef struct nsai_run {
  const nsa_plan *plan;
  const nsai_driver *driver;
  const nsa_batch *batch; /* NULL: one sequence */
  const nsa_io *io;
  const nsa_tensor *importance;       /* nsa_select's; NULL: the workspace's */
  const nsa_grads *grads;             /* of nsa_backward */
  const nsa_index_grads *index_grads; /* of nsa_index_kl */
  char *workspace;
  uint64_t workspace_bytes;
  nsai_queue *queue;          /* changes with every launch */
  nsai_call_tensors *tensors; /* its tensors, for the checks alone */
  uint32_t branches;
  nsai_run_sizes sizes;
  const nsai_stage_callbacks *callbacks; /* NULL: none */
  bool pushed;                           /* the device was made current by this run */
  const nsai_problem *all_heads; /* the plan's problem, with all heads of the caller's tensors */
  nsa_comm *comm;                /* of a run over ranks, as the next */
  const nsa_shard *shard;
  struct nsai_batch_values *values; /* what its check has read (check_values.h) */
  const nsai_run_piece *piece;      /* NULL: the run is no piece */
} nsai_run;

nsa_status nsai_enqueue_forward(const nsai_run *run);
nsa_status nsai_enqueue_dense(const nsai_run *run);
nsa_status nsai_enqueue_compress(const nsai_run *run);
nsa_status nsai_enqueue_select(const nsai_run *run);
nsa_status nsai_enqueue_append(const nsai_run *run);
nsa_status nsai_enqueue_decode(const nsai_run *run);
nsa_status nsai_enqueue_backward(const nsai_run *run);
nsa_status nsai_enqueue_index_kl(const nsai_run *run);

/* The logits of the gate MLP, where the model has one. */
nsa_status nsai_enqueue_gates(const nsai_run *run);

/* Enqueues a part of a stage between its events. */
nsa_status nsai_enqueue_stage(const nsai_run *run, nsai_stage stage, const nsai_span *span);

/* Calls the run's callback, if it has one. */
nsa_status nsai_run_stage_event(const nsai_run *run, nsai_stage stage, bool begins);

#endif /* NSAI_RUN_RUN_H */
