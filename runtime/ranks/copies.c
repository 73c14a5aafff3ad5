/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Copies by copy engines into the rooms of other ranks (nsa_comm_options.copy_bytes). A rank's room lies behind
 * its mailbox, is mapped with it (peers.c), and has the same layout on all ranks: a place in another's room is
 * that in the own one.
 *
 *   open     a gather of 16 bytes: all ranks have finished the kernels that read their rooms before
 *   copy     to the others; nobody else takes part
 *   meet     another gather: all have copied what they copied in this stream
 *   announce copies the epoch to the others, behind the copies of the side stream
 *   await    waits until all have announced this epoch
 *
 * An event is recorded between the copies and the epoch: when it has completed, every GPU sees the copies.
 *
 * A gather waits for the streams of all ranks. Ranks that announce and await do not wait for what others
 * compute meanwhile.
 *
 * Behind the mailbox, in 4 KiB before the room:
 *
 *   epoch    of this rank's copies: the kernel counts, so that a captured graph can be replayed
 *   copied   [ranks] sectors: the epoch of the last copies that a rank has announced
 *   message  [ranks] 16 bytes, that gathers bring
 */
#include "params/ranks.h"
#include "ranks/comm_internal.h"

#include <string.h>

#define WORDS_BYTES 4096
#define MESSAGE_AT 1024
#define MESSAGE_BYTES 16
#define COPIED_AT NSAI_GATHER_SECTOR /* behind the epoch */

_Static_assert(COPIED_AT + NSAI_GATHER_RANKS * NSAI_GATHER_SECTOR <= MESSAGE_AT, "sectors end");
_Static_assert(MESSAGE_AT + NSAI_GATHER_RANKS * MESSAGE_BYTES <= WORDS_BYTES, "words end");

uint64_t nsai_copies_bytes(int64_t copy_bytes) {
  return copy_bytes ? WORDS_BYTES + (uint64_t)copy_bytes : 0;
}

nsa_status nsai_copies_check_options(const nsa_comm_options *options) {
  if (options->copy_bytes < 0)
    return nsai_fail(NSA_E_ARG,
                     "options.copy_bytes is %lld: give the bytes that nsa_explain prints for the "
                     "plans, or 0 for none",
                     (long long)options->copy_bytes);
  if (options->copy_bytes && options->peer_bytes < 0)
    return nsai_fail(NSA_E_ARG,
                     "options.copy_bytes needs peer memory, and options.peer_bytes is %d: give 0",
                     options->peer_bytes);
  return NSA_OK;
}

nsai_agree_field nsai_comm_copy_field(const nsa_comm *comm) {
  nsai_agree_field field = { .name = "copy_bytes of the communicator", .is_number = true };
  memcpy(field.digest, &comm->peers.copy_bytes, sizeof comm->peers.copy_bytes);
  return field;
}

static char *words_of(const nsa_comm *comm, int32_t rank) {
  const nsai_peers *peers = &comm->peers;
  return peers->mapped[rank] + nsai_mailbox_bytes(nsai_comm_size(comm), peers->most_bytes);
}

static char *room_of(const nsa_comm *comm, int32_t rank) {
  return words_of(comm, rank) + WORDS_BYTES;
}

char *nsai_comm_room(const nsa_comm *comm, uint64_t bytes) {
  const nsai_peers *peers = &comm->peers;
  const bool one_host = nsai_comm_host_ranks(comm) == nsai_comm_size(comm);
  return peers->on && one_host && bytes && bytes <= (uint64_t)peers->copy_bytes
             ? room_of(comm, nsai_comm_rank(comm))
             : NULL;
}

bool nsai_comm_copies(const nsa_comm *comm) { return nsai_comm_room(comm, 1) != NULL; }

/* ---- gathers ---- */

static NsaiRanksGather gather_of(const nsa_comm *comm) {
  const int32_t rank = nsai_comm_rank(comm);
  char *words = words_of(comm, rank), *message = words + MESSAGE_AT;
  NsaiRanksGather p =
      nsai_peers_gather_params(comm, message + rank * MESSAGE_BYTES, message, MESSAGE_BYTES);
  p.epoch = (int *)words;
  p.copied = (const int *)(words + COPIED_AT);
  return p;
}

static nsa_status launch(nsa_comm *comm, const NsaiRanksGather *p, nsa_stream stream) {
  NSAI_TRY(nsai_comm_check_alive(comm));
  NSAI_TRY(nsai_peers_check(comm));
  NSAI_TRY(nsai_peers_check_processes(comm));
  return nsai_comm_end_if_failed(comm, "a copy to other ranks", nsai_peers_launch(comm, p, stream));
}

nsa_status nsai_comm_open_rooms(nsa_comm *comm, nsa_stream stream) {
  const NsaiRanksGather p = gather_of(comm);
  return launch(comm, &p, stream);
}

nsa_status nsai_comm_meet(nsa_comm *comm, nsa_stream stream) {
  NsaiRanksGather p = gather_of(comm);
  p.epoch = NULL;
  return launch(comm, &p, stream);
}

nsa_status nsai_comm_await_copies(nsa_comm *comm, nsa_stream stream) {
  NsaiRanksGather p = gather_of(comm);
  p.bytes = 0;
  return launch(comm, &p, stream);
}

/* ---- copies ---- */

static nsa_status copy(const nsa_comm *comm, char *to, const char *from, uint64_t bytes,
                       nsa_stream stream) {
  return NSAI_CUDA(comm->place.device->driver,
                   cuMemcpyDtoDAsync((nsai_cu_ptr)(uintptr_t)to, (nsai_cu_ptr)(uintptr_t)from,
                                     (size_t)bytes, stream));
}

static nsa_status copy_parts(const nsa_comm *comm, const nsa_part *from, const nsa_part *at,
                             int32_t count, nsa_stream stream) {
  const char *own = room_of(comm, nsai_comm_rank(comm));
  for (int32_t i = 0; i < count; i++)
    NSAI_TRY(copy(comm, room_of(comm, from[i].rank) + ((const char *)at[i].data - own),
                  from[i].data, from[i].bytes, stream));
  return NSA_OK;
}

nsa_status nsai_comm_copy(nsa_comm *comm, const nsa_part *from, const nsa_part *at, int32_t count,
                          nsa_stream stream) {
  NSAI_TRY(nsai_comm_check_alive(comm));
  return nsai_comm_end_if_failed(comm, "a copy to other ranks",
                                 copy_parts(comm, from, at, count, stream));
}

static nsa_status announce(const nsa_comm *comm, nsa_stream stream) {
  const int32_t rank = nsai_comm_rank(comm);
  NSAI_TRY(NSAI_CUDA(comm->place.device->driver, cuEventRecord(comm->side.joined, stream)));
  for (int32_t r = 0; r < nsai_comm_size(comm); r++)
    if (r != rank)
      NSAI_TRY(copy(comm, words_of(comm, r) + COPIED_AT + rank * NSAI_GATHER_SECTOR,
                    words_of(comm, rank), sizeof(int), stream));
  return NSA_OK;
}

nsa_status nsai_comm_announce_copies(nsa_comm *comm, nsa_stream stream) {
  return nsai_comm_end_if_failed(comm, "a copy to other ranks", announce(comm, stream));
}
