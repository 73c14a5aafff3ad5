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
#include "plan/context.h"
#include "ranks/comm_internal.h"
#include "run/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_SEQS, TOKENS, KV_LEN }; /* cu_q: behind max_seqs of kv_len */

static int32_t number_of_sequences(const nsai_run *run) {
  return run->shard ? run->shard->num_seqs : run->batch->num_seqs;
}

/* Whether lengths can be looked at. A wait would break a capture. */
static nsa_status can_read(const nsai_run *run, bool *out) {
  int32_t capturing = 0;
  *out = !run->driver;
  if (*out || run->plan->ctx->config->runtime.check_inputs != NSAI_CHECK_FULL) return NSA_OK;
  NSAI_TRY(NSAI_CUDA(run->driver, cuStreamIsCapturing(run->queue->stream, &capturing)));
  *out = !capturing;
  return NSA_OK;
}

static nsa_status read_ints(const nsai_run *run, const nsa_tensor *from, int32_t count,
                            int32_t *to) {
  const size_t bytes = (size_t)count * sizeof *to;
  if (run->driver)
    return NSAI_CUDA(run->driver,
                     cuMemcpyDtoHAsync(to, (uintptr_t)from->data, bytes, run->queue->stream));
  memcpy(to, from->data, bytes);
  return NSA_OK;
}

static nsa_status read_lengths(const nsai_run *run, int32_t *message) {
  const int32_t seqs = number_of_sequences(run);
  int32_t *cu_q = message + KV_LEN + run->plan->problem.max_seqs;
  message[NUM_SEQS] = seqs;
  NSAI_TRY(read_ints(run, &run->batch->kv_len, seqs, message + KV_LEN));
  if (!run->shard) {
    const int32_t tokens = message[TOKENS] = (int32_t)run->sizes.tokens;
    if (nsai_present(&run->batch->cu_q))
      NSAI_TRY(read_ints(run, &run->batch->cu_q, seqs + 1, cu_q));
    else
      for (int32_t s = 0; s <= seqs && seqs; s++) cu_q[s] = tokens / seqs * s;
  }
  return run->driver ? NSAI_CUDA(run->driver, cuStreamSynchronize(run->queue->stream)) : NSA_OK;
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

static nsa_status exchange(const nsai_run *run, int32_t *message, int32_t count) {
  nsa_comm *comm = run->comm;
  nsai_comm_entered entered;
  NSAI_TRY(nsai_comm_enter(&comm->place, &entered));
  comm->agree.caller = "the comparison of batch.kv_len";
  nsa_status status = read_lengths(run, message);
  if (!status)
    status = nsai_agree_round(comm, message, (uint64_t)count * sizeof *message, nsai_seconds(),
                              comm->timeout_ms);
  nsai_comm_limit_calls(comm, comm->timeout_ms);
  comm->agree.caller = NULL;
  nsai_comm_leave(&comm->place, &entered);
  return status ? status : compare(comm, count, run->plan->problem.max_seqs);
}

nsa_status nsai_compare_lengths(const nsai_run *run) {
  const int32_t count = KV_LEN + 2 * run->plan->problem.max_seqs + 1;
  bool reads = false;
  NSAI_TRY(can_read(run, &reads));
  if (!reads) return NSA_OK;
  int32_t *message = calloc((size_t)count, sizeof *message);
  if (!message) return nsai_fail_nomem("lengths of a run over ranks", (size_t)count * 4);
  const nsa_status status = exchange(run, message, count);
  free(message);
  return status;
}
