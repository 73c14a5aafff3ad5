/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What all communicators have in common: life and death, exchanges through the transport's table,
 * and the age of runs. The transports are comm_loopback.c and comm_nccl.c; nsa_comm_agree is
 * agree.c.
 */
#include "ranks/comm_internal.h"

#include "base/duration.h"
#include "base/struct.h"
#include "ranks/shard.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEFAULT_TIMEOUT_MS 60000

/* ---- making ---- */

static nsa_status check_host_ranks(const char *name, int32_t host_ranks, int32_t size) {
  if (host_ranks >= 0 && (!host_ranks || size % host_ranks == 0)) return NSA_OK;
  return nsai_fail(NSA_E_ARG,
                   "%s is %d: give a divisor of the number of ranks, which is %d, or 0 to let "
                   "nsa_comm_agree find the hosts",
                   name, host_ranks, size);
}

nsa_status nsai_comm_options_read(const nsa_comm_options *options, int32_t size,
                                  nsa_comm_options *out) {
  static const nsai_struct_type type = { "options", "NSA_COMM_OPTIONS_INIT",
                                         sizeof(nsa_comm_options) };
  static const nsa_comm_options defaults = NSA_COMM_OPTIONS_INIT;
  nsa_comm_options room;
  const void *read;
  NSAI_TRY(nsai_struct_in(&type, options ? options : &defaults, &room, &read));
  *out = *(const nsa_comm_options *)read;
  if (out->timeout_ms < 0)
    return nsai_fail(NSA_E_ARG, "options.timeout_ms is %d: give milliseconds, or 0 for %d",
                     out->timeout_ms, DEFAULT_TIMEOUT_MS);
  if (!out->timeout_ms) out->timeout_ms = DEFAULT_TIMEOUT_MS;
  NSAI_TRY(nsai_peers_check_option(out->peer_bytes));
  NSAI_TRY(nsai_copies_check_options(out));
  NSAI_TRY(nsai_side_stream_check_option(out->overlap_sms));
  return size ? check_host_ranks("options.host_ranks", out->host_ranks, size) : NSA_OK;
}

nsa_status nsai_comm_make(const nsai_comm_place *place, const nsai_transport *transport,
                          const nsa_comm_options *options, nsa_comm **out) {
  nsa_status status = NSA_OK;
  nsa_comm_options read = NSA_COMM_OPTIONS_INIT;
  nsa_comm *comm = NULL;
  *out = NULL;
  NSAI_TRY_TO(fail, nsai_comm_options_read(options, transport->ops.size, &read));
  comm = calloc(1, sizeof *comm);
  if (!comm) NSAI_TRY_TO(fail, nsai_fail_nomem("a communicator", sizeof *comm));
  comm->transport = *transport;
  comm->place = *place;
  comm->timeout_ms = comm->call_ms = read.timeout_ms;
  comm->host_ranks = read.host_ranks ? read.host_ranks : transport->ops.host_ranks;
  comm->host_id = nsai_host_id();
  comm->process = nsai_this_process();
  comm->peers.most_bytes = nsai_peers_most_bytes(&read);
  comm->peers.copy_bytes = read.copy_bytes;
  comm->side.sms = read.overlap_sms;
  pthread_mutex_init(&comm->lock, NULL);
  pthread_cond_init(&comm->end, NULL);
  nsai_log(place->logger, NSA_LOG_DEBUG, "ranks", "rank %d of %d by %s, timeout %d ms",
           transport->ops.rank, transport->ops.size, transport->name, read.timeout_ms);
  *out = comm;
  return NSA_OK;
fail:
  if (transport->destroy) transport->destroy(transport->ops.user);
  return status;
}

nsa_status nsai_comm_create(const nsai_comm_place *place, const nsa_comm_ops *ops,
                            const nsa_comm_options *options, nsa_comm **out) {
  static const nsai_struct_type type = { "ops", "NSA_COMM_OPS_INIT", sizeof(nsa_comm_ops) };
  nsa_comm_ops room;
  const void *read;
  *out = NULL;
  NSAI_TRY(nsai_struct_in(&type, ops, &room, &read));
  nsai_transport transport = { .ops = *(const nsa_comm_ops *)read, .name = "the host's transport" };
  nsa_comm_ops *o = &transport.ops;
  if (o->size < 1 || o->size > NSA_MAX_RANKS)
    return nsai_fail(NSA_E_ARG, "ops.size is %d: give the number of ranks, 1 to %d", o->size,
                     NSA_MAX_RANKS);
  if (o->rank < 0 || o->rank >= o->size)
    return nsai_fail(NSA_E_ARG, "ops.rank is %d: give this rank, 0 to ops.size - 1 = %d", o->rank,
                     o->size - 1);
  NSAI_TRY(check_host_ranks("ops.host_ranks", o->host_ranks, o->size));
  if (o->flags & ~(uint32_t)NSA_COMM_CAPTURES)
    return nsai_fail(NSA_E_ARG, "ops.flags is 0x%x: this library knows NSA_COMM_CAPTURES alone",
                     o->flags);
  if (o->reserved) return nsai_fail(NSA_E_ARG, "ops.reserved is %u: it must be 0", o->reserved);
  if (!o->exchange)
    return nsai_fail(NSA_E_ARG,
                     "ops.exchange is NULL: a transport needs grouped sends and receives");
  return nsai_comm_make(place, &transport, options, out);
}

static void destroy_events(nsa_comm *comm) {
  nsai_comm_entered entered;
  if (!comm->place.device || (!comm->run_count && !comm->spare_count)) return;
  if (nsai_comm_enter(&comm->place, &entered) != NSA_OK) return;
  const nsai_driver *driver = comm->place.device->driver;
  for (int32_t i = 0; i < comm->run_count; i++)
    driver->cuEventDestroy(comm->runs[(comm->first_run + i) % NSAI_COMM_RUNS].event);
  for (int32_t i = 0; i < comm->spare_count; i++) driver->cuEventDestroy(comm->spare[i]);
  nsai_comm_leave(&comm->place, &entered);
}

/* Closing handles of peer memory waits for the device, and a kernel of the transport that waits for a lost rank
 * ends only when the transport is aborted. So runs that are still in flight finish first, or the communicator
 * dies of their age. Those that a graph replays have none. */
static void finish_runs(nsa_comm *comm) {
  const double since = nsai_seconds();
  while (comm->peers.on && nsai_comm_check(comm) == NSA_OK && comm->run_count) nsai_comm_nap(since);
}

void nsai_comm_destroy(nsa_comm *comm) {
  if (!comm) return;
  comm->agree.caller = "nsa_comm_destroy";
  finish_runs(comm);
  if (!comm->dead) nsai_peers_close(comm); /* may wait for other ranks, which looks at runs */
  destroy_events(comm);
  nsai_side_stream_close(comm);
  if (comm->transport.destroy) comm->transport.destroy(comm->transport.ops.user);
  nsai_agree_room_fini(comm); /* waits for the device: kernels of a dead one have ended behind it */
  nsai_peers_close(comm);
  pthread_cond_destroy(&comm->end);
  pthread_mutex_destroy(&comm->lock);
  free(comm->parts);
  free(comm);
}

int32_t nsai_comm_rank(const nsa_comm *comm) { return comm->transport.ops.rank; }
int32_t nsai_comm_size(const nsa_comm *comm) { return comm->transport.ops.size; }

int32_t nsai_comm_host_ranks(const nsa_comm *comm) {
  return comm->host_ranks > 1 ? comm->host_ranks : nsai_comm_size(comm);
}

nsa_ctx *nsai_comm_context(const nsa_comm *comm) { return comm->place.ctx; }

/* ---- the device ---- */

nsa_status nsai_comm_enter(const nsai_comm_place *place, nsai_comm_entered *entered) {
  *entered = (nsai_comm_entered){ false, NSAI_CU_CAPTURE_RELAXED };
  if (!place->device) return NSA_OK;
  NSAI_TRY(nsai_device_enter(place->device, &entered->pushed));
  place->device->driver->cuThreadExchangeStreamCaptureMode(&entered->mode);
  return NSA_OK;
}

void nsai_comm_leave(const nsai_comm_place *place, const nsai_comm_entered *entered) {
  int32_t mode = entered->mode;
  if (!place->device) return;
  place->device->driver->cuThreadExchangeStreamCaptureMode(&mode);
  nsai_device_leave(place->device, entered->pushed);
}

/* NCCL enqueues an exchange in some 50 us on a thread of its own, and one over NVLink takes as long. A
 * sleep takes 60 us more than it is asked for (timer slack), so the first looks only yield. */
void nsai_comm_nap(double since) {
  const double waited = nsai_seconds() - since;
  const struct timespec pause = { 0, waited < 0.1 ? 50000 : 1000000 };
  if (waited < 0.0005)
    sched_yield();
  else
    nanosleep(&pause, NULL);
}

/* ---- death ---- */

static nsa_status fail_dead(const nsa_comm *comm) {
  return nsai_fail(NSA_E_RANKS, "%s", comm->reason);
}

/* Lock held. Until the thread that found the failure has ended the transport: whoever hears of
 * it may end, or free, what the transport uses. That thread itself does not wait, if ops.abort
 * comes back here. */
static void wait_for_end(nsa_comm *comm) {
  while (!comm->ended && !pthread_equal(comm->ender, pthread_self()))
    pthread_cond_wait(&comm->end, &comm->lock);
}

nsa_status nsai_comm_check_alive(nsa_comm *comm) {
  pthread_mutex_lock(&comm->lock);
  const bool dead = comm->dead;
  if (dead) wait_for_end(comm);
  pthread_mutex_unlock(&comm->lock);
  /* The reason does not change any more. */
  if (dead)
    return nsai_fail(NSA_E_RANKS, "the communicator has ended, destroy it and make another: %s",
                     comm->reason);
  return NSA_OK;
}

/* Ends what is enqueued. */
static void abort_transport(nsa_comm *comm) {
  const nsai_transport *t = &comm->transport;
  nsai_peers_stop(comm);
  if (t->give_up) {
    t->give_up(t->ops.user, comm->reason);
  } else if (t->ops.abort) {
    nsa_status status = t->ops.abort(t->ops.user);
    if (status != NSA_OK)
      nsai_log(comm->place.logger, NSA_LOG_WARN, "ranks",
               "rank %d of %d: ops.abort returned %s: what waits for other ranks may go on waiting",
               t->ops.rank, t->ops.size, nsa_status_name(status));
  }
}

nsa_status nsai_comm_die(nsa_comm *comm, const char *format, ...) {
  const nsai_transport *t = &comm->transport;
  va_list args;
  pthread_mutex_lock(&comm->lock);
  const bool first = !comm->dead;
  if (first) {
    nsai_writer text = nsai_writer_open(comm->reason, sizeof comm->reason);
    va_start(args, format);
    nsai_write_args(&text, format, args);
    va_end(args);
    if (t->host_ends_by)
      nsai_write(&text, "; the connection is the host's, who ends it by %s", t->host_ends_by);
    comm->dead = true;
    comm->ender = pthread_self();
  } else {
    wait_for_end(comm);
  }
  pthread_mutex_unlock(&comm->lock);
  if (first) {
    nsai_log(comm->place.logger, NSA_LOG_ERROR, "ranks", "%s", comm->reason);
    abort_transport(comm);
    pthread_mutex_lock(&comm->lock);
    comm->ended = true;
    pthread_cond_broadcast(&comm->end);
    pthread_mutex_unlock(&comm->lock);
  }
  return fail_dead(comm);
}

void nsai_comm_fail(nsa_comm *comm, const char *reason) {
  nsai_comm_die(comm, "rank %d of %d gave up: %s", nsai_comm_rank(comm), nsai_comm_size(comm),
                reason);
}

/* ---- calls of the transport ---- */

void nsai_comm_limit_calls(nsa_comm *comm, int32_t ms) {
  const nsai_transport *t = &comm->transport;
  pthread_mutex_lock(&comm->lock);
  comm->call_ms = ms;
  pthread_mutex_unlock(&comm->lock);
  if (t->set_timeout) t->set_timeout(t->ops.user, ms);
}

static void note_call(nsa_comm *comm, const char *name) {
  pthread_mutex_lock(&comm->lock);
  const double now = nsai_seconds();
  comm->calling = name;
  comm->called_at = now;
  if (comm->run_began_at > 0) comm->run_began_at = now; /* the run has come further */
  pthread_mutex_unlock(&comm->lock);
}

/* What follows of a function's status. A function that a dying communicator aborts may fail, or not. */
static nsa_status judge(nsa_comm *comm, const char *name, double since, nsa_status status) {
  const nsai_transport *t = &comm->transport;
  NSAI_TRY(nsai_comm_check_alive(comm));
  if (status == NSA_OK) return NSA_OK;
  if (t->explains) {
    char text[NSAI_COMM_REASON_CHARS];
    snprintf(text, sizeof text, "%s", nsa_last_error());
    return nsai_comm_die(comm, "%s", text);
  }
  return nsai_comm_die(comm, "rank %d of %d: %s of %s returned %s (%s) after %.2f s", t->ops.rank,
                       t->ops.size, name, t->name, nsa_status_name(status), nsa_status_text(status),
                       nsai_seconds() - since);
}

static nsa_status call_exchange(nsa_comm *comm, const nsa_part *send, int32_t send_count,
                                const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  const nsa_comm_ops *ops = &comm->transport.ops;
  const double since = nsai_seconds();
  note_call(comm, "exchange");
  nsa_status status = ops->exchange(ops->user, send, send_count, recv, recv_count, stream);
  note_call(comm, NULL);
  return judge(comm, "exchange", since, status);
}

/* ---- exchanges ---- */

static nsa_status copy_bytes(const nsa_comm *comm, void *to, const void *from, uint64_t bytes,
                             nsa_stream stream) {
  if (to == from || !bytes) return NSA_OK;
  if (!comm->place.device) {
    memmove(to, from, bytes);
    return NSA_OK;
  }
  return NSAI_CUDA(comm->place.device->driver,
                   cuMemcpyDtoDAsync((nsai_cu_ptr)(uintptr_t)to, (nsai_cu_ptr)(uintptr_t)from,
                                     bytes, stream));
}

/* Copies the parts that a rank sends to itself. */
static nsa_status copy_own(nsa_comm *comm, const nsa_part *send, int32_t send_count,
                           const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  const int32_t rank = nsai_comm_rank(comm);
  int32_t r = 0;
  for (int32_t s = 0; s < send_count; s++) {
    if (send[s].rank != rank || !send[s].bytes) continue;
    while (r < recv_count && (recv[r].rank != rank || !recv[r].bytes)) r++;
    if (r == recv_count || recv[r].bytes != send[s].bytes)
      return nsai_fail(NSA_E_INTERNAL, "a rank sends itself %llu bytes and expects others",
                       (unsigned long long)send[s].bytes);
    NSAI_TRY(copy_bytes(comm, recv[r++].data, send[s].data, send[s].bytes, stream));
  }
  return NSA_OK;
}

/* Appends the parts that travel to another rank; returns how many there are. */
static int32_t take_travelling(const nsa_comm *comm, const nsa_part *parts, int32_t count,
                               nsa_part *out) {
  int32_t taken = 0;
  for (int32_t i = 0; i < count; i++)
    if (parts[i].bytes && parts[i].rank != nsai_comm_rank(comm)) out[taken++] = parts[i];
  return taken;
}

static nsa_status reserve_parts(nsa_comm *comm, int32_t count) {
  if (count < 1) count = 1; /* a list without parts has an address, too */
  if (count <= comm->parts_room) return NSA_OK;
  nsa_part *parts = realloc(comm->parts, (size_t)count * sizeof *parts);
  if (!parts) return nsai_fail_nomem("the parts of an exchange", (size_t)count * sizeof *parts);
  comm->parts = parts;
  comm->parts_room = count;
  return NSA_OK;
}

static nsa_status exchange(nsa_comm *comm, const nsa_part *send, int32_t send_count,
                           const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  NSAI_TRY(reserve_parts(comm, send_count + recv_count));
  NSAI_TRY(copy_own(comm, send, send_count, recv, recv_count, stream));
  const int32_t sent = take_travelling(comm, send, send_count, comm->parts);
  const int32_t received = take_travelling(comm, recv, recv_count, comm->parts + sent);
  /* Also with nothing to move: all ranks make the same calls. */
  return call_exchange(comm, comm->parts, sent, comm->parts + sent, received, stream);
}

nsa_status nsai_comm_end_if_failed(nsa_comm *comm, const char *what, nsa_status status) {
  if (status == NSA_OK || status == NSA_E_RANKS) return status;
  char text[NSAI_COMM_REASON_CHARS / 2];
  snprintf(text, sizeof text, "%s", nsa_last_error());
  return nsai_comm_die(comm, "rank %d of %d: %s failed: %s", nsai_comm_rank(comm),
                       nsai_comm_size(comm), what, text);
}

nsa_status nsai_comm_exchange(nsa_comm *comm, const nsa_part *send, int32_t send_count,
                              const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  NSAI_TRY(nsai_comm_check_alive(comm));
  return nsai_comm_end_if_failed(comm, "an exchange",
                                 exchange(comm, send, send_count, recv, recv_count, stream));
}

static nsa_status gather_by_exchange(nsa_comm *comm, const void *send, void *recv, uint64_t bytes,
                                     nsa_stream stream) {
  nsa_part out[NSA_MAX_RANKS], in[NSA_MAX_RANKS];
  const int32_t size = nsai_comm_size(comm);
  for (int32_t r = 0; r < size; r++) {
    out[r] = (nsa_part){ (void *)(uintptr_t)send, bytes, r };
    in[r] = (nsa_part){ (char *)recv + (uint64_t)r * bytes, bytes, r };
  }
  return exchange(comm, out, size, in, size, stream);
}

static nsa_status all_gather(nsa_comm *comm, const void *send, void *recv, uint64_t bytes,
                             nsa_stream stream) {
  const nsa_comm_ops *ops = &comm->transport.ops;
  if (!ops->all_gather) return gather_by_exchange(comm, send, recv, bytes, stream);
  const double since = nsai_seconds();
  note_call(comm, "all_gather");
  nsa_status status = ops->all_gather(ops->user, send, recv, bytes, stream);
  note_call(comm, NULL);
  return judge(comm, "all_gather", since, status);
}

nsa_status nsai_comm_gather_by_transport(nsa_comm *comm, const void *send, void *recv,
                                         uint64_t bytes, nsa_stream stream) {
  NSAI_TRY(nsai_comm_check_alive(comm));
  if (!bytes) return NSA_OK;
  return nsai_comm_end_if_failed(comm, "a gather", all_gather(comm, send, recv, bytes, stream));
}

nsa_status nsai_comm_all_gather(nsa_comm *comm, const void *send, void *recv, uint64_t bytes,
                                nsa_stream stream) {
  if (!bytes || !nsai_peers_take(comm, bytes))
    return nsai_comm_gather_by_transport(comm, send, recv, bytes, stream);
  NSAI_TRY(nsai_comm_check_alive(comm));
  NSAI_TRY(nsai_peers_check(comm));
  NSAI_TRY(nsai_peers_check_processes(comm));
  return nsai_comm_end_if_failed(comm, "a gather through peer memory",
                                 nsai_peers_gather(comm, send, recv, bytes, stream));
}

/* ---- what was agreed upon ---- */

/* -1: it was not agreed upon, or too many others were since. */
static int32_t find_agreed(const nsai_agreed *agreed,
                           const unsigned char digest[NSAI_DIGEST_BYTES]) {
  int32_t at = agreed->count - 1; /* the newest first */
  while (at >= 0 && memcmp(agreed->digest[at], digest, NSAI_DIGEST_BYTES)) at--;
  return at;
}

bool nsai_agreed_has(const nsai_agreed *agreed, const unsigned char digest[NSAI_DIGEST_BYTES]) {
  return find_agreed(agreed, digest) >= 0;
}

void nsai_agreed_add(nsai_agreed *agreed, const unsigned char digest[NSAI_DIGEST_BYTES]) {
  int32_t at = find_agreed(agreed, digest);
  if (at < 0 && agreed->count == NSAI_COMM_AGREED) at = 0; /* the oldest makes room */
  if (at >= 0) {
    agreed->count--;
    memmove(agreed->digest[at], agreed->digest[at + 1],
            (size_t)(agreed->count - at) * NSAI_DIGEST_BYTES);
  }
  memcpy(agreed->digest[agreed->count++], digest, NSAI_DIGEST_BYTES);
}

/* ---- runs ---- */

static nsa_status is_capturing(const nsa_comm *comm, nsa_stream stream, bool *capturing) {
  int32_t state = 0;
  *capturing = false;
  if (!comm->place.device) return NSA_OK;
  NSAI_TRY(NSAI_CUDA(comm->place.device->driver, cuStreamIsCapturing(stream, &state)));
  *capturing = state != 0;
  return NSA_OK;
}

/* While a capture that has runs of the communicator is open, its own stream belongs to that capture. */
static nsa_status check_side_stream(const nsa_comm *comm, bool capturing) {
  bool side = false;
  if (capturing || !comm->side.stream) return NSA_OK;
  NSAI_TRY(is_capturing(comm, comm->side.stream, &side));
  if (!side) return NSA_OK;
  return nsai_fail(NSA_E_UNSUPPORTED,
                   "a CUDA graph with runs of exec.comm is being captured, and this run is not "
                   "captured (nsa_comm_options.overlap_sms or copy_bytes): end the capture before");
}

nsa_status nsai_comm_begin(nsa_comm *comm, const unsigned char plan[NSAI_DIGEST_BYTES],
                           const nsa_shard *shard, nsa_stream stream) {
  bool capturing;
  NSAI_TRY(nsai_comm_check_alive(comm));
  if (!nsai_agreed_has(&comm->plans, plan))
    return nsai_fail(
        NSA_E_ARG, "exec.comm: the ranks have not agreed upon this plan: call nsa_comm_agree with "
                   "it on every rank, after making the plan and before its first run");
  if (shard && !nsai_agreed_has(&comm->shards, shard->digest))
    return nsai_fail(NSA_E_ARG,
                     "batch.shard: the ranks have not agreed upon this shard: call nsa_comm_agree "
                     "with it on every rank before its first run");
  NSAI_TRY(is_capturing(comm, stream, &capturing));
  if (capturing && !(comm->transport.ops.flags & NSA_COMM_CAPTURES))
    return nsai_fail(NSA_E_UNSUPPORTED,
                     "exec.stream is being captured into a CUDA graph, which %s does not allow "
                     "(nsa_comm_ops.flags has no NSA_COMM_CAPTURES): run over ranks outside of the "
                     "capture",
                     comm->transport.name);
  NSAI_TRY(check_side_stream(comm, capturing));
  /* On the CPU device a run waits for others in functions of the transport alone, and may
   * compute long. */
  if (comm->place.device && !capturing) {
    pthread_mutex_lock(&comm->lock);
    comm->run_began_at = nsai_seconds();
    pthread_mutex_unlock(&comm->lock);
  }
  return NSA_OK;
}

/* Takes the runs that have finished out of the ring: what comes next begins to be waited for.
 * Lock held, device entered. */
static nsa_status reap(nsa_comm *comm) {
  const nsai_driver *driver = comm->place.device->driver;
  while (comm->run_count) {
    nsai_cu_event event = comm->runs[comm->first_run].event;
    const nsai_cu_result result = driver->cuEventQuery(event);
    if (result == NSAI_CUDA_ERROR_NOT_READY) return NSA_OK;
    NSAI_TRY(nsai_driver_status(driver, result, "cuEventQuery"));
    comm->spare[comm->spare_count++] = event;
    comm->first_run = (comm->first_run + 1) % NSAI_COMM_RUNS;
    comm->run_count--;
    const double now = nsai_seconds();
    if (comm->run_count) comm->runs[comm->first_run].since = now;
    if (comm->run_began_at > 0) comm->run_began_at = now;
  }
  return NSA_OK;
}

/* An event for a new run: NULL in *event, where one must be made. Device entered. */
static nsa_status take_event(nsa_comm *comm, nsai_cu_event *event) {
  *event = NULL;
  pthread_mutex_lock(&comm->lock);
  const nsa_status status = reap(comm);
  if (status == NSA_OK) {
    if (comm->run_count == NSAI_COMM_RUNS)
      *event = comm->runs[(comm->first_run + --comm->run_count) % NSAI_COMM_RUNS].event;
    else if (comm->spare_count)
      *event = comm->spare[--comm->spare_count];
  }
  pthread_mutex_unlock(&comm->lock);
  return status;
}

/* Recording waits while the launch queue is full, for ever with a lost rank: without the lock,
 * which nsa_comm_check takes. */
static nsa_status watch(nsa_comm *comm, nsa_stream stream) {
  const nsai_driver *driver = comm->place.device->driver;
  nsai_cu_event event;
  NSAI_TRY(take_event(comm, &event));
  if (!event) NSAI_TRY(NSAI_CUDA(driver, cuEventCreate(&event, NSAI_CU_EVENT_NO_TIMING)));
  const nsa_status status = NSAI_CUDA(driver, cuEventRecord(event, stream));
  pthread_mutex_lock(&comm->lock);
  if (status != NSA_OK)
    comm->spare[comm->spare_count++] = event;
  else
    comm->runs[(comm->first_run + comm->run_count++) % NSAI_COMM_RUNS] =
        (nsai_enqueued){ event, nsai_seconds() };
  comm->run_began_at = 0;
  pthread_mutex_unlock(&comm->lock);
  return status;
}

nsa_status nsai_comm_end(nsa_comm *comm, nsa_stream stream) {
  nsai_comm_entered entered;
  bool capturing;
  NSAI_TRY(nsai_comm_check_alive(comm));
  NSAI_TRY(nsai_comm_end_if_failed(comm, "a run", is_capturing(comm, stream, &capturing)));
  if (!comm->place.device || capturing) return NSA_OK;
  NSAI_TRY(nsai_comm_end_if_failed(comm, "a run", nsai_comm_enter(&comm->place, &entered)));
  const nsa_status status = watch(comm, stream);
  nsai_comm_leave(&comm->place, &entered);
  NSAI_TRY(nsai_comm_end_if_failed(comm, "a run", status));
  return nsai_comm_check_alive(comm); /* recording may have waited for the abort */
}

/* ---- nsa_comm_check, nsa_comm_wait ---- */

/* What a check sees: how old is what has not finished, in seconds. */
typedef struct view {
  const char *calling; /* the transport's function that is running; NULL: none */
  double call_age;
  int32_t call_ms;  /* that it may take */
  double begun_age; /* of the run that is being enqueued; 0: none is */
  double run_age;   /* of the oldest run that has been enqueued; 0: there is none */
  int32_t runs;     /* of these */
} view;

static nsa_status look(nsa_comm *comm, view *out) {
  nsai_comm_entered entered;
  nsa_status status = NSA_OK;
  NSAI_TRY(nsai_comm_enter(&comm->place, &entered));
  pthread_mutex_lock(&comm->lock);
  if (comm->place.device) status = reap(comm);
  const double now = nsai_seconds();
  *out = (view){ .calling = comm->calling, .call_ms = comm->call_ms, .runs = comm->run_count };
  if (comm->calling)
    out->call_age = now - comm->called_at;
  else if (comm->run_began_at > 0)
    out->begun_age = now - comm->run_began_at;
  if (comm->run_count) out->run_age = now - comm->runs[comm->first_run].since;
  pthread_mutex_unlock(&comm->lock);
  nsai_comm_leave(&comm->place, &entered);
  return status;
}

static nsa_status check(nsa_comm *comm, view *seen) {
  const nsai_transport *t = &comm->transport;
  const double since = nsai_seconds();
  *seen = (view){ 0 };
  NSAI_TRY(nsai_comm_check_alive(comm));
  NSAI_TRY(nsai_peers_check(comm));
  if (t->ops.poll) NSAI_TRY(judge(comm, "poll", since, t->ops.poll(t->ops.user)));
  NSAI_TRY(nsai_comm_end_if_failed(comm, "a run", look(comm, seen)));
  if (seen->calling && seen->call_age * 1000 >= seen->call_ms)
    return nsai_comm_die(
        comm,
        "rank %d of %d: %s of %s has waited %.2f s for the other ranks "
        "(the timeout is %d ms): look for a rank that failed, or that makes other calls",
        t->ops.rank, t->ops.size, seen->calling, t->name, seen->call_age, seen->call_ms);
  if (seen->run_age * 1000 < comm->timeout_ms && seen->begun_age * 1000 < comm->timeout_ms)
    return NSA_OK;
  if (!seen->runs)
    return nsai_comm_die(
        comm,
        "rank %d of %d: a run has been waiting for %.2f s to be enqueued, behind its "
        "own launches (options.timeout_ms is %d): look for a rank that failed, or "
        "that runs something else",
        t->ops.rank, t->ops.size, seen->begun_age, comm->timeout_ms);
  return nsai_comm_die(comm,
                       "rank %d of %d: the oldest of %d runs has not finished for %.2f s "
                       "(options.timeout_ms is %d): look for a rank that failed, or that runs "
                       "something else",
                       t->ops.rank, t->ops.size, seen->runs, seen->run_age, comm->timeout_ms);
}

nsa_status nsai_comm_check(nsa_comm *comm) {
  view seen;
  return check(comm, &seen);
}

/* NSAI_CUDA_ERROR_NOT_READY is no failure. */
static nsa_status has_passed(const nsa_comm *comm, nsa_stream stream, bool *passed) {
  nsai_comm_entered entered;
  *passed = true;
  if (!comm->place.device) return NSA_OK;
  NSAI_TRY(nsai_comm_enter(&comm->place, &entered));
  const nsai_cu_result result = comm->place.device->driver->cuStreamQuery(stream);
  nsai_comm_leave(&comm->place, &entered);
  *passed = result != NSAI_CUDA_ERROR_NOT_READY;
  return *passed ? nsai_driver_status(comm->place.device->driver, result, "cuStreamQuery") : NSA_OK;
}

nsa_status nsai_comm_wait(nsa_comm *comm, nsa_stream stream, int32_t timeout_ms) {
  const double since = nsai_seconds();
  double progress = since; /* when a run was seen to finish */
  int32_t runs = -1;
  bool passed;
  view seen;
  if (timeout_ms < 0)
    return nsai_fail(NSA_E_ARG, "timeout_ms is %d: give milliseconds, or 0 for options.timeout_ms",
                     timeout_ms);
  for (;;) {
    NSAI_TRY(check(comm, &seen));
    NSAI_TRY(has_passed(comm, stream, &passed));
    if (passed) {
      NSAI_TRY(nsai_comm_check_alive(comm)); /* another thread's check may have ended the runs, */
      return nsai_peers_check(comm);         /* or their own timeout */
    }
    const double now = nsai_seconds();
    if (seen.runs != runs) progress = now;
    runs = seen.runs;
    const double waited = now - (timeout_ms ? since : progress);
    if (waited * 1000 >= (timeout_ms ? timeout_ms : comm->timeout_ms))
      return nsai_comm_die(
          comm,
          "rank %d of %d: the stream has not finished after %.2f s of "
          "nsa_comm_wait: look for a rank that failed, or that runs something else",
          nsai_comm_rank(comm), nsai_comm_size(comm), waited);
    nsai_comm_nap(since);
  }
}
