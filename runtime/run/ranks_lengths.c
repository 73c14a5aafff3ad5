/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Whether a decode or a prefill over a cache has the same lengths on all ranks. Ranks with other lengths
 * would select other blocks, or gather pages that their owner has not filled: what they exchange has the same
 * size in any case, so nothing else would notice.
 *
 * A message has num_seqs, the new tokens of a decode, kv_len and, of a decode, cu_q, at the size of the plan's
 * capacity, which the ranks have agreed upon.
 */
#include "base/duration.h"
#include "ranks/comm_internal.h"
#include "run/check_values.h"
#include "run/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_SEQS, TOKENS, KV_LEN }; /* cu_q: behind max_seqs of kv_len */

static int32_t number_of_sequences(const nsai_run *run) {
  return run->shard ? run->shard->num_seqs : run->batch->num_seqs;
}

/* The batch with arrays in host memory; NULL: its values cannot be looked at. On the CPU device they can at
 * each level of runtime.check_inputs, on a GPU if the check of the arguments has read them. */
static const nsa_batch *readable(const nsai_run *run) {
  return run->driver ? run->values->batch : run->batch;
}

static void write_lengths(const nsai_run *run, const nsa_batch *batch, int32_t *message) {
  const int32_t seqs = number_of_sequences(run);
  int32_t *cu_q = message + KV_LEN + run->plan->problem.max_seqs;
  message[NUM_SEQS] = seqs;
  memcpy(message + KV_LEN, batch->kv_len.data, (size_t)seqs * sizeof *message);
  if (run->shard) return;
  const int32_t tokens = message[TOKENS] = (int32_t)run->sizes.tokens;
  if (nsai_present(&batch->cu_q))
    memcpy(cu_q, batch->cu_q.data, (size_t)(seqs + 1) * sizeof *cu_q);
  else
    for (int32_t s = 0; s <= seqs && seqs; s++) cu_q[s] = tokens / seqs * s;
}

static nsa_status compare(const nsa_comm *comm, int32_t count, int32_t max_seqs) {
  const int32_t *first = (const int32_t *)nsai_agree_message(comm, 0);
  for (int32_t r = 1; r < nsai_comm_size(comm); r++) {
    const int32_t *other = (const int32_t *)nsai_agree_message(comm, r);
    char name[64] = "batch.num_seqs";
    int32_t i = 0;
    while (i < count && first[i] == other[i]) i++;
    if (i == count) continue;
    if (i == TOKENS) snprintf(name, sizeof name, "the number of new tokens");
    if (i >= KV_LEN) snprintf(name, sizeof name, "batch.kv_len[%d]", i - KV_LEN);
    if (i >= KV_LEN + max_seqs)
      snprintf(name, sizeof name, "batch.cu_q[%d]", i - KV_LEN - max_seqs);
    return nsai_fail(NSA_E_RANKS,
                     "%s is %d on rank 0 and %d on rank %d: give every rank the same lengths", name,
                     first[i], other[i], r);
  }
  return NSA_OK;
}

static nsa_status exchange(const nsai_run *run, const int32_t *message, int32_t count) {
  nsa_comm *comm = run->comm;
  nsai_comm_entered entered;
  NSAI_TRY(nsai_comm_enter(&comm->place, &entered));
  comm->agree.caller = "the comparison of batch.kv_len";
  const nsa_status status = nsai_agree_round(comm, message, (uint64_t)count * sizeof *message,
                                             nsai_seconds(), comm->timeout_ms);
  nsai_comm_limit_calls(comm, comm->timeout_ms);
  comm->agree.caller = NULL;
  nsai_comm_leave(&comm->place, &entered);
  return status ? status : compare(comm, count, run->plan->problem.max_seqs);
}

nsa_status nsai_compare_lengths(const nsai_run *run) {
  const int32_t count = KV_LEN + 2 * run->plan->problem.max_seqs + 1;
  const nsa_batch *batch = readable(run);
  if (!batch) return NSA_OK;
  int32_t *message = calloc((size_t)count, sizeof *message);
  if (!message) return nsai_fail_nomem("lengths of a run over ranks", (size_t)count * 4);
  write_lengths(run, batch, message);
  const nsa_status status = exchange(run, message, count);
  free(message);
  return status;
}
