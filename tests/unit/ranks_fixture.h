/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Ranks that are threads on the CPU device, beside one run of all tokens in one place: a model and its
 * tensors, each rank's rows of them, its runs, and what must be the same.
 */
#ifndef TEST_RANKS_FIXTURE_H
#define TEST_RANKS_FIXTURE_H

#include "gradients.h"

#include <nsa/ranks.h>

#define MOST_RANKS 16
#define MOST_OWNED 128

/* The sequences of every world. */
#define SEQS 5
#define TOKENS 373
#define LONGEST 203

/* A transport between a rank and its loopback communicator, which counts, and at some call fails. */
enum { WIRE_FAILS = 1, WIRE_STALLS = 2 };
typedef struct wire {
  nsa_comm *inner;
  int32_t rank;
  int32_t host_ranks; /* by which it counts */
  int32_t calls;
  bool runs;                /* not nsa_comm_agree, in which each rank tells all others */
  uint64_t inside, between; /* bytes sent */
  bool strays;              /* sends to another index on another host */
  int32_t fault, at_call;   /* WIRE_*, in this call, from 1 on */
} wire;

/* A model, and what is cut into ranks. */
typedef struct world {
  machine_request request;
  nsa_ctx *ctx;
  toy toy; /* all tokens in one place */
  nsa_grads grads;
  nsa_shard *shard;
  int32_t ranks, layout, alignment;
  nsa_plan *forward, *backward;
  const nsa_piece *given; /* with NSA_SHARD_GIVEN */
  int64_t given_count;
  nsa_comm *comms[MOST_RANKS];
  int32_t host_ranks; /* 0: found; all share this host */
  bool wired;         /* by wires */
  int32_t counted;    /* which take so many ranks for a host */
  wire wires[MOST_RANKS];
  int32_t timeout_ms; /* 0: long */
  bool accumulate;
} world;

/* One rank: a thread. */
typedef struct rank_state {
  world *w;
  int32_t rank;
  nsa_io io;
  nsa_grads grads;
  void *owned[MOST_OWNED];
  int owned_count;
  nsa_status status;
  char error[256];
} rank_state;

/* Makes a model and its tensors, and runs it in one place. */
void world_init(world *w, const machine_request *request);
void world_free(world *w);

/* Runs ranks twice. Outputs and gradients of query rows must have the bits of the run in one place, other
 * gradients be within 1e-6, and both runs have the same bits. */
void world_check(world *w, int32_t ranks, int32_t layout);

/* Steps of it. With w->ranks and w->layout: the shard, plans, and communicators. */
void world_open(world *w);
void world_close(world *w);

/* Makes the tensors of all ranks, and runs each on a thread; frees the tensors. */
void world_run(world *w, rank_state ranks[MOST_RANKS]);
void world_release(world *w, rank_state ranks[MOST_RANKS]);

/* The problem of the run in one place, and of a rank's, with the world's shard. */
nsa_problem world_problem(const world *w, int32_t op);
nsa_problem world_problem_over(const world *w, int32_t op);

/* This rank's rows of all inputs and outputs; memory that the rank keeps in `owned`. */
void rank_cut_io(rank_state *s);
void *rank_own(rank_state *s, size_t bytes);

#endif /* TEST_RANKS_FIXTURE_H */
