/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Gathers through memory that the ranks of a host map of each other, beside the transport:
 * kernel_templates/ranks/gather.cuh moves small messages in one launch. Params of mailboxes:
 * params/ranks.h.
 */
#ifndef NSAI_RANKS_PEERS_H
#define NSAI_RANKS_PEERS_H

#include "driver/launch.h"

#include <nsa/ranks.h>
#include <poll.h>
#include <stdbool.h>

#define NSAI_PEERS 8 /* ranks, at most: NSAI_GATHER_RANKS of the kernel */

/* A rank's mailbox, with its control words: freed with its last user, because ranks of one process write
 * to it without a handle of their own. */
typedef struct nsai_mailbox nsai_mailbox;

/* One user less; NULL is fine. The device is entered. */
void nsai_mailbox_release(nsai_mailbox *box);

/* What a communicator has of it. `on` is guarded by the communicator's lock, because nsa_comm_check
 * reads the control words; the rest belongs to the thread that uses the communicator. */
typedef struct nsai_peers {
  int32_t most_bytes; /* of a message, as all ranks were given it; 0: never */
  int64_t copy_bytes; /* of the room behind the mailbox (copies.c), likewise; 0: there is none */
  bool exchanged;     /* the ranks have told each other what they can map */
  bool on;
  bool other_process;             /* some ranks are other processes; the same on all ranks */
  bool close_failed;              /* ranks of other processes did not come to nsai_peers_close */
  nsai_kernel kernel;             /* its function is NULL: none */
  nsai_mailbox *box[NSAI_PEERS];  /* the own one, and those of ranks of this process */
  nsai_cu_ptr opened[NSAI_PEERS]; /* of other processes */
  char *mapped[NSAI_PEERS];       /* all of them, on this device */
  struct pollfd
      watched[NSAI_PEERS]; /* [watched_count]: other processes, readable when they have ended */
  int32_t watched_rank[NSAI_PEERS], watched_count;
  int32_t chunks, chunk_bytes; /* of the layout */
} nsai_peers;

/* Device memory of a mailbox for messages of up to `most_bytes`. */
uint64_t nsai_mailbox_bytes(int32_t ranks, int32_t most_bytes);

/* The most chunks that its layout has, and how long these are. */
int32_t nsai_mailbox_most_chunks(int32_t most_bytes);
int32_t nsai_mailbox_chunk_bytes(int32_t most_bytes, int32_t chunks);

/* How many bytes of a message lie in a chunk, where the layout has so many. bytes > 0. */
int32_t nsai_mailbox_piece(int64_t bytes, int32_t chunks);

/* Of nsa_comm_options.peer_bytes: whether it is one, NSA_E_ARG; and what it means, 0 for never. Copies need
 * small gathers. */
nsa_status nsai_peers_check_option(int32_t peer_bytes);
int32_t nsai_peers_most_bytes(const nsa_comm_options *options);

/* Exchanges mailboxes with all ranks by two rounds of nsa_comm_agree, which has agreed upon everything
 * else, and turns gathers through them on where every rank maps every other one. That it cannot is no
 * failure, but takes a third round where ranks are several processes. The device is entered. Not
 * NSA_OK: the transport has failed.
 *
 * why         why there is no kernel, if there is none
 * since       seconds of the clock, when nsa_comm_agree began
 * timeout_ms  of the whole call */
nsa_status nsai_peers_open(nsa_comm *comm, const char *why, double since, int32_t timeout_ms);

/* Whether a gather of so many bytes goes this way: the same on all ranks. */
bool nsai_peers_take(const nsa_comm *comm, uint64_t bytes);

/* Ends the communicator when the process of another rank has ended, where this one can see it. */
nsa_status nsai_peers_check_processes(nsa_comm *comm);

struct NsaiRanksGather;

/* Enqueues the gather; and the same in two steps, between which the params may change. NSA_E_CUDA. */
nsa_status nsai_peers_gather(nsa_comm *comm, const void *send, void *recv, uint64_t bytes,
                             nsa_stream stream);
struct NsaiRanksGather nsai_peers_gather_params(const nsa_comm *comm, const void *send, void *recv,
                                                uint64_t bytes);
nsa_status nsai_peers_launch(const nsa_comm *comm, const struct NsaiRanksGather *p,
                             nsa_stream stream);

/* Ends the communicator when a kernel has waited too long, and names the ranks. Thread-safe. */
nsa_status nsai_peers_check(nsa_comm *comm);

/* Lets kernels that wait go on. Thread-safe. */
void nsai_peers_stop(nsa_comm *comm);

/* Releases what nsai_peers_open made; does nothing at a second call. No kernel of this rank uses it any
 * more. Where ranks are several processes and the communicator is alive, all ranks exchange messages by its
 * transport: the call waits for the others, at most for options.timeout_ms, and their failure ends the
 * communicator. A mailbox that another process may still have open is not freed. */
void nsai_peers_close(nsa_comm *comm);

#endif /* NSAI_RANKS_PEERS_H */
