/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Checks of a run over ranks. What all ranks have agreed upon is checked first, so that either all of
 * them refuse a run or none does.
 */
#ifndef NSAI_RUN_CHECK_RANKS_H
#define NSAI_RUN_CHECK_RANKS_H

#include "plan/plan.h"
#include "run/check_run.h"

#include <nsa/ranks.h>

/* Whether exec.comm and batch.shard are there if and only if the plan has problem.ranks, and fit its
 * capacities. A cache over ranks has a shard in a prefill alone, and an append into it no
 * communicator. `batch` may be NULL. NSA_E_ARG. */
nsa_status nsai_check_shard(const nsa_plan *plan, const nsa_comm *comm, const nsa_batch *batch);

/* Whether there are as many query tokens as the shard gives the rank. NSA_E_ARG. */
nsa_status nsai_check_rank_tokens(const nsa_shard *shard, int32_t rank, int64_t tokens);

/* This rank's tensors, behind nsai_check_run: they have the rows of its pieces. NSA_E_ARG. */
nsa_status nsai_check_ranks_io(const nsai_problem *problem, const nsa_shard *shard, int32_t rank,
                               const nsa_io *io, const nsai_run_sizes *sizes);

#endif /* NSAI_RUN_CHECK_RANKS_H */
