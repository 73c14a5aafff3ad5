/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One rank's end of a communicator, and the exchanges that runs over ranks make
 * (include/nsa/ranks.h).
 *
 * A communicator dies of its first failure: it keeps a sentence, aborts its transport, and refuses
 * every further call. This folder does not know contexts and plans: the api passes their place and
 * their digests.
 */
#ifndef NSAI_RANKS_COMM_H
#define NSAI_RANKS_COMM_H

#include "base/digest.h"
#include "base/log.h"
#include "driver/launch.h"

#include <nsa/ranks.h>
#include <stdbool.h>

/* Where communicators work. Everything is borrowed and outlives them. */
typedef struct nsai_comm_place {
  nsa_ctx *ctx; /* of the caller, for nsai_comm_context */
  nsai_logger *logger;
  const nsai_device *device; /* NULL: the CPU device */
} nsai_comm_place;

/* ---- making: `options` NULL or of any version; *out is NULL on failure ---- */

/* A communicator of a host's table of functions, of any version. */
nsa_status nsai_comm_create(const nsai_comm_place *place, const nsa_comm_ops *ops,
                            const nsa_comm_options *options, nsa_comm **out);

/* `size` communicators of threads. All of out[] are NULL before the call, and after one that
 * failed. */
nsa_status nsai_comm_loopback(const nsai_comm_place *place, int32_t size,
                              const nsa_comm_options *options, nsa_comm **out);

/* By NCCL: `path` is runtime.nccl_path, or NULL. The first borrows the host's communicator; the last waits
 * for all ranks. */
nsa_status nsai_comm_nccl(const nsai_comm_place *place, const char *path, struct ncclComm *comm,
                          const nsa_comm_options *options, nsa_comm **out);
nsa_status nsai_comm_nccl_id(const nsai_comm_place *place, const char *path,
                             char id[NSA_NCCL_ID_BYTES]);
nsa_status nsai_comm_nccl_init(const nsai_comm_place *place, const char *path,
                               const char id[NSA_NCCL_ID_BYTES], int32_t rank, int32_t size,
                               const nsa_comm_options *options, nsa_comm **out);

/* NULL is fine. */
void nsai_comm_destroy(nsa_comm *comm);

/* ---- what runs use ---- */

int32_t nsai_comm_rank(const nsa_comm *comm);
int32_t nsai_comm_size(const nsa_comm *comm);

/* Successive ranks that share a host, where exchanges go in two levels: more than 1 and fewer than all
 * ranks. Else the number of ranks, also before nsa_comm_agree has found hosts. */
int32_t nsai_comm_host_ranks(const nsa_comm *comm);

/* The context that the communicator was made with. */
nsa_ctx *nsai_comm_context(const nsa_comm *comm);

/* Before a run enqueues anything: NSA_E_RANKS when the communicator is dead, NSA_E_ARG when this plan
 * or this shard was not agreed upon, NSA_E_UNSUPPORTED when the stream is being captured and the
 * transport cannot be. None of these ends the communicator. From here on the run has an age, for
 * nsa_comm_check: call nsai_comm_end, or nsai_comm_fail.
 *
 * plan   the plan's digest (nsa_plan.digest)
 * shard  NULL: none */
nsa_status nsai_comm_begin(nsa_comm *comm, const unsigned char plan[NSAI_DIGEST_BYTES],
                           const nsa_shard *shard, nsa_stream stream);

/* Enqueues sends and receives, ordered by the stream. The device's context is current. Parts of 0
 * bytes do not travel. A rank may send to itself. Between two ranks parts arrive in the order in which
 * they were sent. NSA_E_RANKS, which the communicator does not survive. */
nsa_status nsai_comm_exchange(nsa_comm *comm, const nsa_part *send, int32_t send_count,
                              const nsa_part *recv, int32_t recv_count, nsa_stream stream);

/* Enqueues a gather of `bytes` of every rank, in the order of ranks, to recv[size * bytes]. `send` may
 * be this rank's place in `recv`, and lies nowhere else in it. Otherwise as nsai_comm_exchange. Up to
 * nsai_comm_peer_bytes it is one launch of ranks_gather. */
nsa_status nsai_comm_all_gather(nsa_comm *comm, const void *send, void *recv, uint64_t bytes,
                                nsa_stream stream);

/* The largest message of a rank, in bytes, whose gather goes through memory that the ranks map of each
 * other; 0: all go by the transport, as before nsa_comm_agree. */
int32_t nsai_comm_peer_bytes(const nsa_comm *comm);

/* This rank's room of a communicator with options.copy_bytes, device memory that other ranks copy into, if it has
 * so many bytes; the same answer on all ranks. NULL too before nsa_comm_agree, where ranks cannot map each
 * other's memory, and with exchanges in two levels. And whether there is any. */
char *nsai_comm_room(const nsa_comm *comm, uint64_t bytes);
bool nsai_comm_copies(const nsa_comm *comm);

/* A run that uses rooms opens them: behind that no kernel reads what other ranks may now write to. `copy` brings
 * parts from[] to the rooms of from[].rank, where they lie as at[].data does in the own room. All ranks then meet
 * in the same stream; or they announce their copies in the side stream and await all others' in the run's stream:
 * once behind each opening at most, all or none. The device's context is current. NSA_E_RANKS, which the
 * communicator does not survive. */
nsa_status nsai_comm_open_rooms(nsa_comm *comm, nsa_stream stream);
nsa_status nsai_comm_copy(nsa_comm *comm, const nsa_part *from, const nsa_part *at, int32_t count,
                          nsa_stream stream);
nsa_status nsai_comm_meet(nsa_comm *comm, nsa_stream stream);
nsa_status nsai_comm_announce_copies(nsa_comm *comm, nsa_stream stream);
nsa_status nsai_comm_await_copies(nsa_comm *comm, nsa_stream stream);

/* SMs that a forward leaves to the transport (options.overlap_sms); 0: nothing overlaps, as on the CPU device
 * and before nsa_comm_agree. */
int32_t nsai_comm_overlap_sms(const nsa_comm *comm);

/* Of a communicator with overlap_sms or copy_bytes. Fork: *side is the communicator's own stream, which waits for
 * what `stream` has been given so far. Join: `stream` waits for what that one has been given since. A run that
 * forks joins, also after a failure. The device's context is current. NSA_E_CUDA. */
nsa_status nsai_comm_fork(nsa_comm *comm, nsa_stream stream, nsa_stream *side);
nsa_status nsai_comm_join(nsa_comm *comm, nsa_stream stream);

/* After a run has enqueued everything: remembers when, for nsa_comm_check. NSA_E_RANKS. */
nsa_status nsai_comm_end(nsa_comm *comm, nsa_stream stream);

/* A rank that fails after others may have begun to wait for it: ends the communicator and aborts the
 * transport, so that they get an error and no hang. */
void nsai_comm_fail(nsa_comm *comm, const char *reason);

/* ---- behind the public functions of the same names ---- */

nsa_status nsai_comm_check(nsa_comm *comm);
nsa_status nsai_comm_wait(nsa_comm *comm, nsa_stream stream, int32_t timeout_ms);

/* Something that all ranks must have alike. */
typedef struct nsai_agree_field {
  const char *name; /* "problem.max_tokens"; static storage */
  bool is_number;   /* `digest` begins with the value, an int64_t; zeros behind it */
  unsigned char digest[NSAI_DIGEST_BYTES];
} nsai_agree_field;

/* What a rank is about to run. */
typedef struct nsai_agreement {
  const nsai_agree_field *common; /* [common_count]: of the library and the device */
  int32_t common_count;
  int32_t plan_count;
  int32_t plan_fields;                               /* fields of a plan */
  const nsai_agree_field *plans;                     /* [plan_count, plan_fields] */
  const unsigned char (*digests)[NSAI_DIGEST_BYTES]; /* [plan_count]: nsai_comm_begin's */
  const nsa_shard *shard;                            /* NULL: none */
  const char *no_gather; /* why nsai_comm_give_gather was not called, where a kernel is wanted */
} nsai_agreement;

/* options.copy_bytes. */
nsai_agree_field nsai_comm_copy_field(const nsa_comm *comm);

/* Whether nsai_comm_agree needs the kernel ranks_gather, for gathers through peer memory. */
bool nsai_comm_wants_gather(const nsa_comm *comm);

/* Gives it the loaded kernel, and asks for it: NULL without one. It is the caller's to release, when the
 * communicator has been destroyed. */
void nsai_comm_give_gather(nsa_comm *comm, const nsai_kernel *kernel);
const nsai_kernel *nsai_comm_gather(const nsa_comm *comm);

/* A communicator remembers so many plans and so many shards; more plans in one call would push
 * each other out. */
#define NSAI_COMM_AGREED 256

/* A disagreement does not end the communicator, since all ranks find the same. */
nsa_status nsai_comm_agree(nsa_comm *comm, const nsai_agreement *mine, int32_t timeout_ms);

#endif /* NSAI_RANKS_COMM_H */
