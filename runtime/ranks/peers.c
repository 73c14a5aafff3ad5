/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Mailboxes: how ranks exchange and map them, and the gather that uses them.
 *
 * Rounds of messages, behind those of nsa_comm_agree:
 *
 *   offers  where a rank's mailbox lies, and how to map it
 *   votes   whether the rank has mapped all others, or why not
 *   closed  whether the rank has closed its handles: where ranks are several processes, when the communicator
 *           is destroyed, or at once if a vote was against it
 *
 * All ranks read the same votes, so that all turn the gathers on, or none.
 *
 * A rank looks whether the processes of the others live before it enqueues a gather, not while it waits: those
 * that have computed all their runs may end before this one has.
 *
 * Ranks of one process share addresses; each holds the others' mailboxes by a count. Ranks of other
 * processes open them by an IPC handle. CUDA does not define what happens when memory is freed that another
 * process still has open: so a rank frees its own mailbox only when all have closed their handles.
 */
#include "ranks/peers.h"

#include "base/duration.h"
#include "base/math.h"
#include "params/ranks.h"
#include "ranks/comm_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* of Linux 5.3, on every architecture that the library is built for */
#endif

_Static_assert(NSAI_PEERS == NSAI_GATHER_RANKS, "one number of ranks");

/* Off unless the host asks: memory mapped by cuIpcOpenMemHandle ends with the process that allocated it, and
 * CUDA does not define what a gather does then. nsai_peers_check_processes() refuses it, where the kernel shows
 * other processes. On two H200 the others of a killed or stalled rank return in time
 * (`nsarankcheck --comm nccl --fault kill,stall --peer-bytes 1000000`). */
#define DEFAULT_PEER_BYTES 0

/* A small allocation shares a block of this size with others, and IPC opens whole blocks. */
#define BLOCK_BYTES ((uint64_t)2 << 20)

/* Of a multiprocessor, for CTAs that wait: half of what most architectures have, and all have more. */
#define SM_THREADS 1024

#define TEXT_CHARS 256

struct nsai_mailbox {
  int32_t users; /* ranks of this process */
  const nsai_driver *driver;
  nsai_cu_ptr memory;
  NsaiGatherControl *control; /* pinned memory of the host */
};

typedef struct offer {
  uint64_t host;
  nsai_process process;
  uint64_t box, address, context; /* of use in the same process alone */
  int32_t device;                 /* ordinal, likewise */
  int32_t sm_count;
  int32_t has_handle;
  int32_t usable; /* it has a mailbox and a kernel */
  char uuid[48];
  nsai_cu_ipc_handle handle;
  char text[TEXT_CHARS]; /* why it is not usable */
} offer;

typedef struct vote {
  int32_t usable;
  char text[TEXT_CHARS];
} vote;

nsa_status nsai_peers_check_option(int32_t peer_bytes) {
  if (peer_bytes >= -1 && peer_bytes <= NSAI_GATHER_MOST) return NSA_OK;
  return nsai_fail(NSA_E_ARG,
                   "options.peer_bytes is %d: give bytes up to %d, -1 for never, or 0 for the "
                   "library's choice",
                   peer_bytes, NSAI_GATHER_MOST);
}

int32_t nsai_peers_most_bytes(const nsa_comm_options *options) {
  const int32_t bytes = options->peer_bytes;
  if (options->copy_bytes && !bytes) return NSAI_GATHER_LEAST;
  return bytes < 0 ? 0 : bytes ? bytes : DEFAULT_PEER_BYTES;
}

/* ---- the own mailbox ---- */

uint64_t nsai_mailbox_bytes(int32_t ranks, int32_t most_bytes) {
  const uint64_t slot = (uint64_t)most_bytes + NSAI_GATHER_LEAST + 16 * NSAI_GATHER_CHUNKS;
  const uint64_t words = (uint64_t)nsai_gather_round(ranks, 0, ranks, NSAI_GATHER_CHUNKS, 0);
  /* Enough for any number of chunks: fewer than NSAI_GATHER_CHUNKS have larger ones. */
  return (2 * (uint64_t)ranks * slot + words + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

static uint64_t own_bytes(const nsa_comm *comm) {
  const uint64_t bytes = nsai_mailbox_bytes(nsai_comm_size(comm), comm->peers.most_bytes) +
                         nsai_copies_bytes(comm->peers.copy_bytes);
  return (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

void nsai_mailbox_release(nsai_mailbox *box) {
  if (!box || __atomic_sub_fetch(&box->users, 1, __ATOMIC_ACQ_REL)) return;
  if (box->memory) box->driver->cuMemFree(box->memory); /* waits for kernels that end */
  if (box->control) box->driver->cuMemFreeHost(box->control);
  free(box);
}

static nsa_status wait_for_stream(const nsai_driver *driver, nsai_cu_stream stream) {
  return NSAI_CUDA(driver, cuStreamSynchronize(stream));
}

static nsa_status fill_mailbox(nsa_comm *comm, nsai_mailbox *box) {
  const nsai_driver *driver = box->driver;
  const uint64_t bytes = own_bytes(comm);
  void *control = NULL;
  if (!driver->cuMemsetD8Async)
    return nsai_fail(NSA_E_UNSUPPORTED, "the driver has no cuMemsetD8Async");
  NSAI_TRY(NSAI_CUDA(driver, cuMemHostAlloc(&control, sizeof *box->control, 0)));
  box->control = control;
  memset(control, 0, sizeof *box->control);
  NSAI_TRY(NSAI_CUDA(driver, cuMemAlloc(&box->memory, bytes)));
  NSAI_TRY(NSAI_CUDA(driver, cuMemsetD8Async(box->memory, 0, bytes, comm->agree.stream)));
  return wait_for_stream(driver, comm->agree.stream);
}

static nsa_status make_mailbox(nsa_comm *comm) {
  nsai_mailbox *box = calloc(1, sizeof *box);
  if (!box) return nsai_fail_nomem("a mailbox", sizeof *box);
  comm->peers.box[nsai_comm_rank(comm)] = box;
  box->users = 1;
  box->driver = comm->place.device->driver;
  return fill_mailbox(comm, box);
}

static nsa_status prepare(nsa_comm *comm, const char *why) {
  if (!comm->peers.kernel.function) return nsai_fail(NSA_E_UNSUPPORTED, "%s", why);
  return make_mailbox(comm);
}

static void copy_reason(char text[TEXT_CHARS]) {
  nsai_writer out = nsai_writer_open(text, TEXT_CHARS);
  nsai_write(&out, "%.*s", (int)strcspn(nsa_last_error(), "\n"), nsa_last_error());
}

static void write_offer(nsa_comm *comm, const char *why, offer *out) {
  const nsai_device *device = comm->place.device;
  *out = (offer){ .host = comm->host_id,
                  .process = comm->process,
                  .context = (uint64_t)(uintptr_t)device->context,
                  .device = device->ordinal,
                  .sm_count = device->sm_count };
  memcpy(out->uuid, device->uuid, sizeof out->uuid);
  out->usable = prepare(comm, why) == NSA_OK;
  if (!out->usable) {
    copy_reason(out->text);
    return;
  }
  const nsai_mailbox *box = comm->peers.box[nsai_comm_rank(comm)];
  out->box = (uint64_t)(uintptr_t)box;
  out->address = box->memory;
  out->has_handle = device->driver->cuIpcGetMemHandle &&
                    !device->driver->cuIpcGetMemHandle(&out->handle, box->memory);
}

/* ---- mapping ---- */

/* Only then may one follow the other's pointers. */
static bool same_process(const offer *a, const offer *b) {
  return a->process.number && a->host == b->host &&
         !memcmp(&a->process, &b->process, sizeof a->process);
}

static bool same_device(const offer *a, const offer *b) {
  return !strncmp(a->uuid, b->uuid, sizeof a->uuid);
}

int32_t nsai_mailbox_most_chunks(int32_t most_bytes) {
  const int32_t most = (int32_t)nsai_ceil_div(most_bytes, NSAI_GATHER_LEAST);
  return most < NSAI_GATHER_CHUNKS ? most : NSAI_GATHER_CHUNKS;
}

int32_t nsai_mailbox_chunk_bytes(int32_t most_bytes, int32_t chunks) {
  const int32_t bytes = nsai_mailbox_piece(most_bytes, chunks);
  return bytes < NSAI_GATHER_LEAST ? NSAI_GATHER_LEAST : bytes;
}

int32_t nsai_mailbox_piece(int64_t bytes, int32_t chunks) {
  const int64_t least = nsai_ceil_div(bytes, NSAI_GATHER_LEAST);
  if (least < chunks) chunks = (int32_t)least;
  return (int32_t)nsai_ceil_div(nsai_ceil_div(bytes, chunks), 16) * 16;
}

/* Chunks for which all CTAs of all ranks that share a GPU are resident at once; 0: too few. */
static int32_t count_chunks(const offer *offers, int32_t ranks, int32_t most_bytes) {
  int32_t most = nsai_mailbox_most_chunks(most_bytes);
  for (int32_t r = 0; r < ranks; r++) {
    int32_t sharing = 0;
    for (int32_t i = 0; i < ranks; i++) sharing += same_device(&offers[r], &offers[i]);
    const int32_t fit = offers[r].sm_count * SM_THREADS / (sharing * ranks * NSAI_GATHER_THREADS);
    if (fit < most) most = fit;
  }
  return most;
}

static nsa_status map_in_process(nsa_comm *comm, int32_t rank, const offer *theirs) {
  const nsai_device *device = comm->place.device;
  const nsai_driver *driver = device->driver;
  int can = 0;
  if (theirs->context != (uint64_t)(uintptr_t)device->context) {
    if (!driver->cuDeviceCanAccessPeer || !driver->cuCtxEnablePeerAccess)
      return nsai_fail(NSA_E_UNSUPPORTED, "the driver has no cuCtxEnablePeerAccess");
    NSAI_TRY(NSAI_CUDA(driver, cuDeviceCanAccessPeer(&can, device->ordinal, theirs->device)));
    if (!can)
      return nsai_fail(NSA_E_UNSUPPORTED, "GPU %d cannot access the memory of GPU %d",
                       device->ordinal, theirs->device);
    const nsai_cu_result result =
        driver->cuCtxEnablePeerAccess((nsai_cu_context)(uintptr_t)theirs->context, 0);
    if (result != NSAI_CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
      NSAI_TRY(nsai_driver_status(driver, result, "cuCtxEnablePeerAccess"));
  }
  comm->peers.box[rank] = (nsai_mailbox *)(uintptr_t)theirs->box;
  __atomic_add_fetch(&comm->peers.box[rank]->users, 1, __ATOMIC_ACQ_REL);
  comm->peers.mapped[rank] = (char *)(uintptr_t)theirs->address;
  return NSA_OK;
}

/* Process ids of another namespace would name other processes. */
static void watch_process(nsa_comm *comm, int32_t rank, const nsai_process *theirs) {
  nsai_peers *peers = &comm->peers;
  const nsai_process *own = &comm->process;
  const int kept = errno;
  int fd = -1;
  if (own->space[1] && !memcmp(own->space, theirs->space, sizeof own->space))
    fd = (int)syscall(SYS_pidfd_open, (pid_t)theirs->pid, 0); /* closed by exec */
  if (fd >= 0) {
    peers->watched[peers->watched_count] = (struct pollfd){ .fd = fd, .events = POLLIN };
    peers->watched_rank[peers->watched_count++] = rank;
  } else {
    nsai_log(
        comm->place.logger, NSA_LOG_DEBUG, "ranks",
        "rank %d of %d: the process of rank %d cannot be watched: a gather after its end may hang",
        nsai_comm_rank(comm), nsai_comm_size(comm), rank);
  }
  errno = kept;
}

static void watch_none(nsai_peers *peers) {
  for (int32_t i = 0; i < peers->watched_count; i++)
    if (peers->watched[i].fd >= 0) close(peers->watched[i].fd);
  peers->watched_count = 0;
}

nsa_status nsai_peers_check_processes(nsa_comm *comm) {
  nsai_peers *peers = &comm->peers;
  const int kept = errno;
  const int changed =
      peers->watched_count ? poll(peers->watched, (nfds_t)peers->watched_count, 0) : 0;
  errno = kept;
  for (int32_t i = 0; changed > 0 && i < peers->watched_count; i++) {
    struct pollfd *watched = &peers->watched[i];
    if (watched->revents & POLLNVAL) watched->fd = -1; /* the host has closed it: poll skips it */
    if (watched->revents & POLLIN)
      return nsai_comm_die(comm,
                           "rank %d of %d: the process of rank %d has ended, and its peer memory "
                           "with it: look why, and make a communicator of the ranks that are left",
                           nsai_comm_rank(comm), nsai_comm_size(comm), peers->watched_rank[i]);
  }
  return NSA_OK;
}

static nsa_status map_other_process(nsa_comm *comm, int32_t rank, const offer *theirs) {
  const nsai_driver *driver = comm->place.device->driver;
  if (!theirs->has_handle || !driver->cuIpcOpenMemHandle || !driver->cuIpcCloseMemHandle)
    return nsai_fail(NSA_E_UNSUPPORTED, "there is no IPC handle of the memory of rank %d", rank);
  NSAI_TRY(NSAI_CUDA(driver, cuIpcOpenMemHandle(&comm->peers.opened[rank], theirs->handle,
                                                NSAI_CU_IPC_LAZY_PEER_ACCESS)));
  watch_process(comm, rank, &theirs->process);
  comm->peers.mapped[rank] = (char *)(uintptr_t)comm->peers.opened[rank];
  return NSA_OK;
}

static nsa_status map_one(nsa_comm *comm, const offer *offers, int32_t rank) {
  const int32_t mine = nsai_comm_rank(comm);
  const offer *own = &offers[mine], *theirs = &offers[rank];
  if (rank == mine) {
    comm->peers.mapped[rank] = (char *)(uintptr_t)own->address;
    return NSA_OK;
  }
  if (theirs->host != own->host)
    return nsai_fail(NSA_E_UNSUPPORTED, "rank %d is on another host than rank %d", rank, mine);
  if (same_process(own, theirs)) return map_in_process(comm, rank, theirs);
  if (same_device(own, theirs)) /* they take turns, and each would wait in vain in its own */
    return nsai_fail(NSA_E_UNSUPPORTED, "ranks %d and %d are processes that share a GPU", mine,
                     rank);
  return map_other_process(comm, rank, theirs);
}

static nsa_status map_all(nsa_comm *comm, const offer *offers) {
  const int32_t size = nsai_comm_size(comm);
  for (int32_t r = 0; r < size; r++)
    if (!offers[r].usable) return nsai_fail(NSA_E_UNSUPPORTED, "%s (rank %d)", offers[r].text, r);
  const int32_t chunks = count_chunks(offers, size, comm->peers.most_bytes);
  if (chunks < 1)
    return nsai_fail(NSA_E_UNSUPPORTED,
                     "a GPU has too few multiprocessors for %d ranks that wait for each other",
                     size);
  comm->peers.chunks = chunks;
  comm->peers.chunk_bytes = nsai_mailbox_chunk_bytes(comm->peers.most_bytes, chunks);
  for (int32_t r = 0; r < size; r++) NSAI_TRY(map_one(comm, offers, r));
  return NSA_OK;
}

/* Whether some rank is another process: the same on all ranks, because a process has the same ranks for
 * each of them. */
static bool find_other_process(const nsa_comm *comm, const offer *offers) {
  for (int32_t r = 0; r < nsai_comm_size(comm); r++)
    if (r != nsai_comm_rank(comm) && !same_process(&offers[nsai_comm_rank(comm)], &offers[r]))
      return true;
  return false;
}

/* ---- unmapping ---- */

/* Whether all handles are closed. The device is entered. */
static bool unmap_all(nsa_comm *comm) {
  nsai_peers *peers = &comm->peers;
  bool closed = true;
  watch_none(peers);
  for (int32_t r = 0; r < NSAI_GATHER_RANKS; r++) {
    if (peers->opened[r])
      closed &= !comm->place.device->driver->cuIpcCloseMemHandle(peers->opened[r]);
    peers->opened[r] = 0;
    peers->mapped[r] = NULL;
    if (r == nsai_comm_rank(comm)) continue;
    nsai_mailbox_release(peers->box[r]);
    peers->box[r] = NULL;
  }
  return closed;
}

static void drop_own(nsa_comm *comm) {
  nsai_mailbox **own = &comm->peers.box[nsai_comm_rank(comm)];
  nsai_mailbox_release(*own);
  *own = NULL;
}

/* Another rank may still have it open, or be about to open it. */
static void keep_own(nsa_comm *comm) {
  const nsai_mailbox *own = comm->peers.box[nsai_comm_rank(comm)];
  if (!own || !own->memory) return;
  nsai_log(comm->place.logger, NSA_LOG_WARN, "ranks",
           "rank %d of %d: %llu KiB of peer memory stay allocated until the process ends, because "
           "another rank may still have them mapped",
           nsai_comm_rank(comm), nsai_comm_size(comm), (unsigned long long)own_bytes(comm) >> 10);
}

/* The round behind which no rank has a handle open. A rank that fails in it leaves the others waiting, and
 * so ends the communicator. */
static bool all_closed(nsa_comm *comm, bool closed, double since, int32_t timeout_ms) {
  int32_t word = closed;
  const nsa_status status = nsai_agree_round(comm, &word, sizeof word, since, timeout_ms);
  if (status != NSA_OK) {
    if (status != NSA_E_RANKS) nsai_comm_fail(comm, nsa_last_error());
    return false;
  }
  for (int32_t r = 0; r < nsai_comm_size(comm); r++) {
    memcpy(&word, nsai_agree_message(comm, r), sizeof word);
    if (word != 1) return false;
  }
  return true;
}

/* Unmaps all mailboxes, and frees the own one when no rank has it mapped any more. Returns whether it has
 * been freed. A dead communicator cannot ask the others. */
static bool release_mailboxes(nsa_comm *comm, double since, int32_t timeout_ms) {
  bool may_free = unmap_all(comm);
  if (comm->peers.other_process)
    may_free =
        nsai_comm_check_alive(comm) == NSA_OK && all_closed(comm, may_free, since, timeout_ms);
  if (may_free)
    drop_own(comm);
  else
    keep_own(comm);
  return may_free;
}

/* ---- opening ---- */

static void set_on(nsa_comm *comm, bool on) {
  pthread_mutex_lock(&comm->lock);
  comm->peers.on = on;
  pthread_mutex_unlock(&comm->lock);
}

static void read_offers(const nsa_comm *comm, offer out[NSAI_GATHER_RANKS]) {
  for (int32_t r = 0; r < nsai_comm_size(comm); r++)
    memcpy(&out[r], nsai_agree_message(comm, r), sizeof *out);
}

/* The first rank that cannot; -1: none. */
static int32_t find_refusal(const nsa_comm *comm, vote *out) {
  for (int32_t r = 0; r < nsai_comm_size(comm); r++) {
    memcpy(out, nsai_agree_message(comm, r), sizeof *out);
    if (!out->usable) return r;
  }
  return -1;
}

static nsa_status open_mailboxes(nsa_comm *comm, const char *why, double since,
                                 int32_t timeout_ms) {
  offer mine, offers[NSAI_GATHER_RANKS];
  vote v = { 0 };
  write_offer(comm, why, &mine);
  NSAI_TRY(nsai_agree_round(comm, &mine, sizeof mine, since, timeout_ms));
  read_offers(comm, offers);
  comm->peers.other_process = find_other_process(comm, offers);
  v.usable = map_all(comm, offers) == NSA_OK;
  if (!v.usable) copy_reason(v.text);
  NSAI_TRY(nsai_agree_round(comm, &v, sizeof v, since, timeout_ms));
  const int32_t refusal = find_refusal(comm, &v);
  if (refusal >= 0) {
    nsai_log(comm->place.logger, NSA_LOG_INFO, "ranks",
             "rank %d of %d: no peer memory, all gathers go by %s: rank %d says: %s",
             nsai_comm_rank(comm), nsai_comm_size(comm), comm->transport.name, refusal, v.text);
    return NSA_OK;
  }
  set_on(comm, true);
  nsai_log(comm->place.logger, NSA_LOG_INFO, "ranks",
           "rank %d of %d: gathers of up to %d bytes and copies of up to %lld go through peer "
           "memory, %llu KiB",
           nsai_comm_rank(comm), nsai_comm_size(comm), comm->peers.most_bytes,
           (long long)comm->peers.copy_bytes, (unsigned long long)own_bytes(comm) >> 10);
  return NSA_OK;
}

nsa_status nsai_peers_open(nsa_comm *comm, const char *why, double since, int32_t timeout_ms) {
  nsai_peers *peers = &comm->peers;
  const int32_t size = nsai_comm_size(comm);
  if (!peers->most_bytes || peers->exchanged || !comm->place.device || size < 2) return NSA_OK;
  if (size > NSAI_GATHER_RANKS) {
    peers->exchanged = true;
    nsai_log(comm->place.logger, NSA_LOG_INFO, "ranks",
             "no peer memory, all gathers go by %s: it serves at most %d ranks, here are %d",
             comm->transport.name, NSAI_GATHER_RANKS, size);
    return NSA_OK;
  }
  const nsa_status status = open_mailboxes(comm, why, since, timeout_ms);
  peers->exchanged = true;
  if (peers->on) return NSA_OK;
  if (status == NSA_OK) {
    release_mailboxes(comm, since, timeout_ms);
    return nsai_comm_check_alive(comm);
  }
  /* Another rank may still be about to map this mailbox. */
  unmap_all(comm);
  keep_own(comm);
  return status;
}

int32_t nsai_comm_peer_bytes(const nsa_comm *comm) {
  return comm->peers.on ? comm->peers.most_bytes : 0;
}

bool nsai_comm_wants_gather(const nsa_comm *comm) {
  return comm->peers.most_bytes && !comm->peers.exchanged && comm->place.device &&
         !comm->peers.kernel.function && nsai_comm_size(comm) > 1 &&
         nsai_comm_size(comm) <= NSAI_GATHER_RANKS;
}

void nsai_comm_give_gather(nsa_comm *comm, const nsai_kernel *kernel) {
  comm->peers.kernel = *kernel;
}

const nsai_kernel *nsai_comm_gather(const nsa_comm *comm) {
  return comm->peers.kernel.function ? &comm->peers.kernel : NULL;
}

/* ---- gathers ---- */

bool nsai_peers_take(const nsa_comm *comm, uint64_t bytes) {
  return comm->peers.on && bytes <= (uint64_t)comm->peers.most_bytes;
}

NsaiRanksGather nsai_peers_gather_params(const nsa_comm *comm, const void *send, void *recv,
                                         uint64_t bytes) {
  const nsai_peers *peers = &comm->peers;
  const int32_t rank = nsai_comm_rank(comm), ranks = nsai_comm_size(comm);
  NsaiRanksGather p = {
    .send = send,
    .recv = recv,
    .control = peers->box[rank]->control,
    .timeout_ns = (long long)comm->timeout_ms * 1000000,
    .bytes = (int)bytes,
    .rank = rank,
    .ranks = ranks,
    .piece = nsai_mailbox_piece((int64_t)bytes, peers->chunks),
    .chunks = peers->chunks,
    .room = peers->chunk_bytes,
  };
  memcpy(p.mailbox, peers->mapped, sizeof p.mailbox);
  return p;
}

nsa_status nsai_peers_launch(const nsa_comm *comm, const NsaiRanksGather *p, nsa_stream stream) {
  nsai_queue queue = nsai_queue_open(comm->place.device, stream);
  /* The last chunks may be empty, by rounding to 16 bytes: they are left out, on all ranks alike. */
  const int64_t chunks = p->bytes ? nsai_ceil_div(p->bytes, p->piece) : 1;
  return nsai_launch(&queue, &comm->peers.kernel, (uint64_t)chunks, (uint32_t)p->ranks, p);
}

nsa_status nsai_peers_gather(nsa_comm *comm, const void *send, void *recv, uint64_t bytes,
                             nsa_stream stream) {
  const NsaiRanksGather p = nsai_peers_gather_params(comm, send, recv, bytes);
  return nsai_peers_launch(comm, &p, stream);
}

/* NULL: off. */
static NsaiGatherControl *control_of(nsa_comm *comm) {
  pthread_mutex_lock(&comm->lock);
  const bool on = comm->peers.on;
  pthread_mutex_unlock(&comm->lock);
  return on ? comm->peers.box[nsai_comm_rank(comm)]->control : NULL;
}

nsa_status nsai_peers_check(nsa_comm *comm) {
  const NsaiGatherControl *control = control_of(comm);
  char text[TEXT_CHARS];
  nsai_writer ranks = nsai_writer_open(text, sizeof text);
  int32_t count = 0;
  for (int32_t r = 0; control && r < nsai_comm_size(comm); r++)
    if (__atomic_load_n(&control->missing[r], __ATOMIC_ACQUIRE))
      nsai_write(&ranks, "%s%d", count++ ? ", " : "", r);
  if (!count) return NSA_OK;
  return nsai_comm_die(
      comm,
      "rank %d of %d: a gather through peer memory has waited for rank%s %s longer "
      "than options.timeout_ms, which is %d: look for a rank that failed, or that "
      "runs something else",
      nsai_comm_rank(comm), nsai_comm_size(comm), count > 1 ? "s" : "", text, comm->timeout_ms);
}

void nsai_peers_stop(nsa_comm *comm) {
  NsaiGatherControl *control = control_of(comm);
  if (control) __atomic_store_n(&control->stop, 1, __ATOMIC_RELEASE);
}

/* ---- closing ---- */

void nsai_peers_close(nsa_comm *comm) {
  nsai_peers *peers = &comm->peers;
  nsai_comm_entered entered;
  if (!peers->on || nsai_comm_enter(&comm->place, &entered) != NSA_OK) return;
  set_on(comm, false);
  peers->close_failed = !release_mailboxes(comm, nsai_seconds(), comm->timeout_ms);
  nsai_comm_leave(&comm->place, &entered);
}
