/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Communicators by NCCL: one that the host made, or one of the library's own.
 *
 * The library's own never blocks (ncclConfig_t.blocking 0): each call returns at once, and
 * ncclCommGetAsyncError says when it has been enqueued. So a rank that waits for a lost one, while
 * NCCL connects for the first time, keeps its timeout. NCCL then enqueues on a thread that it starts
 * for every group: an exchange takes 92 us of the host, one by a communicator that blocks 18 us (two
 * H200, 2026-11-27). A communicator of the host that blocks may wait inside NCCL as long as the host
 * lets it.
 *
 * Lock rule: `lock` guards `comm` and is held for every call of NCCL that does not block, because
 * nsa_comm_check may end the communicator on another thread, and the library's own or the host's
 * abort frees it. Sends and receives within a group only queue. It is never held while waiting:
 * ncclGroupEnd on a host's communicator may block, and goes without. The host, which is told by
 * nsa_comm_check, aborts it then, and NCCL returns. What no lock can close: a check that ends the
 * communicator after the lock is released and before NCCL has entered ncclGroupEnd. The call has an
 * age of options.timeout_ms by then, or NCCL has reported an error.
 */
#include "driver/nccl.h"

#include "base/duration.h"
#include "ranks/comm_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct connection {
  const nsai_nccl *nccl;
  nsai_comm_place place;
  nsai_nccl_comm comm; /* NULL: ended */
  bool own;
  int32_t rank, size, timeout_ms;
  pthread_mutex_t lock;
} connection;

/* ---- waiting until a call has been done ---- */

static nsa_status fail_ended(void) {
  return nsai_fail(NSA_E_RANKS, "the communicator was ended on another thread");
}

/* The state of the communicator: NSAI_NCCL_IN_PROGRESS is NSA_OK with *done false. */
static nsa_status ask(connection *c, bool *done) {
  nsai_nccl_result state = NSAI_NCCL_SUCCESS;
  nsa_status status;
  pthread_mutex_lock(&c->lock);
  if (!c->comm) {
    status = fail_ended();
  } else {
    status = NSAI_NCCL(c->nccl, ncclCommGetAsyncError(c->comm, &state));
    if (status == NSA_OK) status = nsai_nccl_status(c->nccl, state, "ncclCommGetAsyncError");
  }
  pthread_mutex_unlock(&c->lock);
  *done = state != NSAI_NCCL_IN_PROGRESS;
  return status;
}

/* Puts "rank 1 of 2: " before a failure's text. */
static nsa_status name_rank(const connection *c, nsa_status status) {
  char text[NSAI_COMM_REASON_CHARS / 2];
  if (status == NSA_OK) return NSA_OK;
  nsai_writer copy = nsai_writer_open(text, sizeof text);
  nsai_write(&copy, "%s", nsa_last_error());
  return nsai_fail(NSA_E_RANKS, "rank %d of %d: %s", c->rank, c->size, text);
}

static nsa_status finish(connection *c, const char *what) {
  const double since = nsai_seconds();
  bool done;
  for (;;) {
    NSAI_TRY(name_rank(c, ask(c, &done)));
    if (done) return NSA_OK;
    const double waited = nsai_seconds() - since;
    if (waited * 1000 >= c->timeout_ms)
      return nsai_fail(
          NSA_E_RANKS,
          "rank %d of %d: NCCL has waited %.2f s for the other ranks in %s (the timeout is "
          "%d ms): look for a rank that failed, or that makes other calls",
          c->rank, c->size, waited, what, c->timeout_ms);
    nsai_comm_nap(since);
  }
}

/* ---- the table ---- */

/* What a group consists of: sends and receives, or a gather of `bytes`. */
typedef struct group {
  const nsa_part *send, *recv;
  int32_t send_count, recv_count;
  const void *gather_from; /* NULL: none */
  void *gather_to;
  uint64_t bytes;
  nsa_stream stream;
} group;

/* Lock held. */
static nsa_status queue(const connection *c, const group *g) {
  const nsai_nccl *nccl = c->nccl;
  for (int32_t i = 0; i < g->send_count; i++)
    NSAI_TRY(NSAI_NCCL(nccl, ncclSend(g->send[i].data, g->send[i].bytes, NSAI_NCCL_UINT8,
                                      g->send[i].rank, c->comm, g->stream)));
  for (int32_t i = 0; i < g->recv_count; i++)
    NSAI_TRY(NSAI_NCCL(nccl, ncclRecv(g->recv[i].data, g->recv[i].bytes, NSAI_NCCL_UINT8,
                                      g->recv[i].rank, c->comm, g->stream)));
  if (!g->gather_from) return NSA_OK;
  return NSAI_NCCL(nccl, ncclAllGather(g->gather_from, g->gather_to, g->bytes, NSAI_NCCL_UINT8,
                                       c->comm, g->stream));
}

/* Lock held, but not by the time that it returns. */
static nsa_status enqueue_locked(connection *c, const group *g) {
  const nsai_nccl *nccl = c->nccl;
  nsa_status status = c->comm ? NSAI_NCCL(nccl, ncclGroupStart()) : fail_ended();
  if (status != NSA_OK) {
    pthread_mutex_unlock(&c->lock);
    return status;
  }
  status = queue(c, g);
  if (!c->own) pthread_mutex_unlock(&c->lock);
  const nsai_nccl_result ended = nccl->ncclGroupEnd();
  if (c->own) pthread_mutex_unlock(&c->lock);
  NSAI_TRY(status); /* of the first failure; the end of a broken group fails as well */
  return nsai_nccl_status(nccl, ended, "ncclGroupEnd");
}

static nsa_status enqueue(connection *c, const group *g) {
  pthread_mutex_lock(&c->lock);
  return name_rank(c, enqueue_locked(c, g));
}

static nsa_status exchange(void *user, const nsa_part *send, int32_t send_count,
                           const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  const group parts = {
    .send = send, .recv = recv, .send_count = send_count, .recv_count = recv_count, .stream = stream
  };
  if (!send_count && !recv_count) return NSA_OK;
  NSAI_TRY(enqueue(user, &parts));
  return finish(user, "an exchange");
}

static nsa_status all_gather(void *user, const void *send, void *recv, uint64_t bytes,
                             nsa_stream stream) {
  const group gather = { .gather_from = send, .gather_to = recv, .bytes = bytes, .stream = stream };
  NSAI_TRY(enqueue(user, &gather));
  return finish(user, "a gather");
}

static nsa_status poll_connection(void *user) {
  connection *c = user;
  bool done;
  return name_rank(c, ask(c, &done));
}

static void abort_own(connection *c) {
  nsai_comm_entered entered;
  const bool inside = nsai_comm_enter(&c->place, &entered) == NSA_OK;
  pthread_mutex_lock(&c->lock);
  if (c->comm) c->nccl->ncclCommAbort(c->comm);
  c->comm = NULL;
  pthread_mutex_unlock(&c->lock);
  if (inside) nsai_comm_leave(&c->place, &entered);
}

static void give_up(void *user, const char *reason) {
  connection *c = user;
  (void)reason; /* other processes see an aborted connection, or their timeout */
  if (c->own) {
    abort_own(c);
    return;
  }
  pthread_mutex_lock(&c->lock);
  c->comm = NULL; /* the host may abort it from now on */
  pthread_mutex_unlock(&c->lock);
}

static void set_timeout(void *user, int32_t ms) { ((connection *)user)->timeout_ms = ms; }

/* ---- making and destroying ---- */

/* Ends the connection in good order, at the latest after the timeout. */
static void end_own(connection *c) {
  nsai_comm_entered entered;
  if (!c->comm || nsai_comm_enter(&c->place, &entered) != NSA_OK) return;
  if (NSAI_NCCL(c->nccl, ncclCommFinalize(c->comm)) == NSA_OK &&
      finish(c, "ncclCommFinalize") == NSA_OK) {
    c->nccl->ncclCommDestroy(c->comm);
    c->comm = NULL;
  }
  nsai_comm_leave(&c->place, &entered);
  abort_own(c); /* unless it is destroyed */
}

static void destroy_link(void *user) {
  connection *c = user;
  if (c->own) end_own(c);
  pthread_mutex_destroy(&c->lock);
  free(c);
}

static nsa_status make_link(const nsai_comm_place *place, const nsai_nccl *nccl,
                            const nsa_comm_options *options, connection **out) {
  connection *c = calloc(1, sizeof *c);
  *out = c;
  if (!c) return nsai_fail_nomem("a communicator", sizeof *c);
  c->nccl = nccl;
  c->place = *place;
  c->timeout_ms = options->timeout_ms;
  pthread_mutex_init(&c->lock, NULL);
  return NSA_OK;
}

/* Hands the connection over to a communicator, whatever happens. */
static nsa_status make_comm(connection *c, const nsa_comm_options *options, nsa_comm **out) {
  const nsai_transport transport = { .ops = { .struct_size = sizeof(nsa_comm_ops),
                                              .rank = c->rank,
                                              .size = c->size,
                                              .flags = NSA_COMM_CAPTURES,
                                              .user = c,
                                              .exchange = exchange,
                                              .all_gather = all_gather,
                                              .poll = poll_connection },
                                     .name = "NCCL",
                                     .host_ends_by = c->own ? NULL : "ncclCommAbort",
                                     .explains = true,
                                     .give_up = give_up,
                                     .set_timeout = set_timeout,
                                     .destroy = destroy_link };
  return nsai_comm_make(&c->place, &transport, options, out);
}

static nsa_status check_size(int32_t rank, int32_t size) {
  if (size < 1 || size > NSA_MAX_RANKS)
    return nsai_fail(NSA_E_ARG, "size is %d: give the number of ranks, 1 to %d", size,
                     NSA_MAX_RANKS);
  if (rank < 0 || rank >= size)
    return nsai_fail(NSA_E_ARG, "rank is %d: give 0 to size - 1, which is %d", rank, size - 1);
  return NSA_OK;
}

static nsa_status check_device(const nsai_comm_place *place) {
  if (!place->device)
    return nsai_fail(NSA_E_UNSUPPORTED,
                     "NCCL needs a GPU, and the context is on the CPU device: use "
                     "nsa_comm_loopback, or nsa_comm_create with a transport");
  return NSA_OK;
}

/* What the host's communicator says about itself. */
static nsa_status ask_host(connection *c) {
  int device = 0, size = 0, rank = 0;
  NSAI_TRY(NSAI_NCCL(c->nccl, ncclCommCount(c->comm, &size)));
  NSAI_TRY(NSAI_NCCL(c->nccl, ncclCommUserRank(c->comm, &rank)));
  NSAI_TRY(NSAI_NCCL(c->nccl, ncclCommCuDevice(c->comm, &device)));
  c->rank = rank;
  c->size = size;
  NSAI_TRY(check_size(rank, size));
  if (device != c->place.device->ordinal)
    return nsai_fail(NSA_E_ARG,
                     "nccl is a communicator of GPU %d, and the context is on GPU %d: make them on "
                     "the same device (runtime.device)",
                     device, (int)c->place.device->ordinal);
  return NSA_OK;
}

nsa_status nsai_comm_nccl(const nsai_comm_place *place, const char *path, struct ncclComm *comm,
                          const nsa_comm_options *options, nsa_comm **out) {
  nsa_comm_options read;
  const nsai_nccl *nccl;
  connection *c;
  *out = NULL;
  NSAI_TRY(check_device(place));
  if (!comm) return nsai_fail(NSA_E_ARG, "nccl is NULL: give the host's ncclComm_t");
  NSAI_TRY(nsai_comm_options_read(options, 0, &read));
  NSAI_TRY(nsai_nccl_open(path, place->logger, &nccl));
  NSAI_TRY(make_link(place, nccl, &read, &c));
  c->comm = comm;
  const nsa_status status = ask_host(c);
  if (status != NSA_OK) {
    destroy_link(c);
    return status == NSA_E_RANKS
               ? nsai_fail(NSA_E_ARG, "nccl is no communicator that works: %s", nsa_last_error())
               : status;
  }
  return make_comm(c, options, out);
}

nsa_status nsai_comm_nccl_id(const nsai_comm_place *place, const char *path,
                             char id[NSA_NCCL_ID_BYTES]) {
  nsai_nccl_id made;
  const nsai_nccl *nccl;
  NSAI_TRY(check_device(place));
  NSAI_TRY(nsai_nccl_open(path, place->logger, &nccl));
  NSAI_TRY(NSAI_NCCL(nccl, ncclGetUniqueId(&made)));
  memcpy(id, made.bytes, sizeof made.bytes);
  return NSA_OK;
}

/* NCCL takes the environment before the configuration. */
static nsa_status check_environment(void) {
  const char *blocking = secure_getenv("NCCL_COMM_BLOCKING");
  if (blocking && strtoll(blocking, NULL, 0) == 1)
    return nsai_fail(NSA_E_UNSUPPORTED,
                     "NCCL_COMM_BLOCKING is %s in the environment, by which NCCL waits for a lost "
                     "rank whatever the timeout is: unset it, or pass a communicator of the host's "
                     "to nsa_comm_nccl",
                     blocking);
  return NSA_OK;
}

static nsa_status check_overlap(const nsai_nccl *nccl, int32_t overlap_sms) {
  if (!overlap_sms || nccl->version >= NSAI_NCCL_LIMITS_CTAS) return NSA_OK;
  return nsai_fail(NSA_E_UNSUPPORTED,
                   "options.overlap_sms is %d, and NCCL %d.%d at %s cannot limit its CTAs: give it "
                   "2.17 or newer (runtime.nccl_path), or leave overlap_sms 0",
                   overlap_sms, nccl->version / 10000, nccl->version / 100 % 100,
                   nccl->library.path);
}

/* The device is entered. overlap_sms: the CTAs of an exchange, each of which holds an SM; 0: NCCL's choice. */
static nsa_status connect(connection *c, const char id[NSA_NCCL_ID_BYTES], int32_t overlap_sms) {
  nsai_nccl_config config = NSAI_NCCL_CONFIG_INIT;
  nsai_nccl_id given;
  memcpy(given.bytes, id, sizeof given.bytes);
  config.blocking = 0;
  if (overlap_sms) nsai_nccl_limit_ctas(&config, overlap_sms);
  NSAI_TRY(name_rank(c, NSAI_NCCL(c->nccl, ncclCommInitRankConfig(&c->comm, c->size, given, c->rank,
                                                                  &config))));
  return finish(c, "ncclCommInitRankConfig");
}

nsa_status nsai_comm_nccl_init(const nsai_comm_place *place, const char *path,
                               const char id[NSA_NCCL_ID_BYTES], int32_t rank, int32_t size,
                               const nsa_comm_options *options, nsa_comm **out) {
  nsai_comm_entered entered;
  nsa_comm_options read;
  const nsai_nccl *nccl;
  connection *c;
  *out = NULL;
  NSAI_TRY(check_device(place));
  NSAI_TRY(check_size(rank, size));
  NSAI_TRY(check_environment());
  NSAI_TRY(nsai_comm_options_read(options, size, &read));
  NSAI_TRY(nsai_nccl_open(path, place->logger, &nccl));
  NSAI_TRY(check_overlap(nccl, read.overlap_sms));
  NSAI_TRY(make_link(place, nccl, &read, &c));
  c->own = true;
  c->rank = rank;
  c->size = size;
  nsa_status status = nsai_comm_enter(place, &entered);
  if (status == NSA_OK) {
    status = connect(c, id, read.overlap_sms);
    nsai_comm_leave(place, &entered);
  }
  if (status != NSA_OK) {
    abort_own(c);
    destroy_link(c);
    return status;
  }
  nsai_log(place->logger, NSA_LOG_INFO, "ranks", "NCCL %d.%d.%d at %s", nccl->version / 10000,
           nccl->version / 100 % 100, nccl->version % 100, nccl->library.path);
  return make_comm(c, options, out);
}
