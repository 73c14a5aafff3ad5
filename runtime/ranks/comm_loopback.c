/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Ranks that are threads of one process: the loopback communicator.
 *
 * An exchange has two meetings on the host. At the first each rank shows what it sends; then each
 * copies what it receives, on its own stream; at the second all copies are enqueued. On a GPU the
 * streams wait for each other by events:
 *
 *   sender     ready: its data are written       ... waits for done: its memory may be reused
 *   receiver   waits for ready of its senders, copies, records done
 *
 * Nobody waits for a lost rank at the first meeting for longer than the timeout. The second one has no
 * timeout: all ranks are inside, where nothing waits, and whoever left early would free memory that
 * others read.
 *
 * Lock rule: `lock` guards everything in the room but the lists, streams and events of seats. These
 * belong to their rank, and between the two meetings all ranks read them.
 */
#include "ranks/comm_internal.h"

#include "base/duration.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct seat {
  const nsa_part *send;
  int32_t send_count;
  nsa_stream stream;
  nsai_cu_event ready, done; /* NULL: the CPU device */
  bool inside;               /* arrived at the first meeting, and has not left the second */
  bool left;                 /* the communicator was destroyed */
} seat;

typedef struct room {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  nsai_comm_place place;
  int32_t size;
  int32_t users;      /* communicators that exist */
  int32_t arrived;    /* at the meeting that comes next */
  uint64_t met;       /* meetings that have taken place */
  uint64_t failed_at; /* the second meeting of the last exchange that failed: `met` behind it */
  bool over;          /* a rank gave up */
  char reason[NSAI_COMM_REASON_CHARS];
  seat seats[NSA_MAX_RANKS];
} room;

/* `user` of a communicator's table. */
typedef struct member {
  room *room;
  int32_t rank, timeout_ms;
} member;

/* ---- meetings ---- */

/* Lock held. The others say why they gave up, once. */
static void end_room(room *r, const char *reason) {
  if (!r->over) {
    nsai_writer text = nsai_writer_open(r->reason, sizeof r->reason);
    nsai_write(&text, "%s", reason);
    r->over = true;
  }
  pthread_cond_broadcast(&r->changed);
}

/* Lock held. The ranks for which `missing` is true: "rank 1", "ranks 1, 4". */
static void write_ranks(const room *r, bool (*missing)(const seat *), nsai_writer *out) {
  const char *before = "rank ";
  int32_t count = 0;
  for (int32_t i = 0; i < r->size; i++) count += missing(&r->seats[i]);
  if (count > 1) before = "ranks ";
  for (int32_t i = 0; i < r->size; i++) {
    if (!missing(&r->seats[i])) continue;
    nsai_write(out, "%s%d", before, i);
    before = ", ";
  }
}

static bool is_outside(const seat *s) { return !s->inside; }
static bool has_left(const seat *s) { return s->left; }

/* Lock held. */
static bool somebody_left(const room *r) {
  for (int32_t i = 0; i < r->size; i++)
    if (r->seats[i].left) return true;
  return false;
}

/* Lock held. The meeting cannot take place any more. */
static nsa_status fail_meeting(const member *m, double waited, bool timed_out) {
  const room *r = m->room;
  const int32_t rank = m->rank;
  char text[NSAI_COMM_REASON_CHARS / 2];
  nsai_writer ranks = nsai_writer_open(text, sizeof text);
  if (r->over)
    return nsai_fail(NSA_E_RANKS, "rank %d of %d: another rank gave up: %s", rank, r->size,
                     r->reason);
  if (timed_out) {
    write_ranks(r, is_outside, &ranks);
    return nsai_fail(
        NSA_E_RANKS,
        "rank %d of %d waited %.2f s for %s to make the same call (the timeout is %d ms): "
        "look for a thread that failed, or that makes other calls",
        rank, r->size, waited, text, m->timeout_ms);
  }
  write_ranks(r, has_left, &ranks);
  return nsai_fail(NSA_E_RANKS,
                   "rank %d of %d waited %.2f s for %s, whose communicator has been destroyed",
                   rank, r->size, waited, text);
}

static struct timespec in_ms(int32_t ms) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  t.tv_sec += ms / 1000;
  t.tv_nsec += (long)(ms % 1000) * 1000000;
  if (t.tv_nsec >= 1000000000) {
    t.tv_sec++;
    t.tv_nsec -= 1000000000;
  }
  return t;
}

/* Lock held. Counts this rank; the last one lets all go on. Returns whether it was the last. */
static bool arrive(room *r) {
  if (++r->arrived < r->size) return false;
  r->arrived = 0;
  r->met++;
  pthread_cond_broadcast(&r->changed);
  return true;
}

/* The first meeting. */
static nsa_status meet(const member *m, const seat *shown) {
  const double since = nsai_seconds();
  const struct timespec end = in_ms(m->timeout_ms);
  room *r = m->room;
  nsa_status status = NSA_OK;
  seat *own = &r->seats[m->rank];
  pthread_mutex_lock(&r->lock);
  own->send = shown->send;
  own->send_count = shown->send_count;
  own->stream = shown->stream;
  own->inside = true;
  const uint64_t met = r->met;
  bool timed_out = false;
  if (!r->over && !arrive(r)) {
    while (r->met == met && !r->over && !timed_out && !somebody_left(r))
      timed_out = pthread_cond_timedwait(&r->changed, &r->lock, &end) == ETIMEDOUT;
  }
  if (r->met == met) {
    status = fail_meeting(m, nsai_seconds() - since, timed_out);
    if (!r->over) end_room(r, nsa_last_error());
    own->inside = false;
  }
  pthread_mutex_unlock(&r->lock);
  return status;
}

/* The second meeting: behind it all copies of the exchange are enqueued. `status`: of this rank's. */
static nsa_status part(room *r, int32_t rank, nsa_status status) {
  pthread_mutex_lock(&r->lock);
  const uint64_t met = r->met;
  if (status != NSA_OK) {
    r->failed_at = met + 1;
    end_room(r, nsa_last_error());
  }
  if (!arrive(r))
    while (r->met == met) pthread_cond_wait(&r->changed, &r->lock);
  r->seats[rank].inside = false;
  if (status == NSA_OK && r->failed_at == met + 1)
    status =
        nsai_fail(NSA_E_RANKS, "rank %d of %d: another rank gave up: %s", rank, r->size, r->reason);
  pthread_mutex_unlock(&r->lock);
  return status;
}

/* ---- copies ---- */

/* The next part that goes to `rank`, at `*at` or behind; NULL: none. */
static const nsa_part *next_part(const nsa_part *parts, int32_t count, int32_t rank, int32_t *at) {
  while (*at < count) {
    const nsa_part *p = &parts[(*at)++];
    if (p->rank == rank) return p;
  }
  return NULL;
}

static nsa_status copy_part(const room *r, const nsa_part *to, const nsa_part *from,
                            nsa_stream stream) {
  if (!r->place.device) {
    memcpy(to->data, from->data, to->bytes);
    return NSA_OK;
  }
  return NSAI_CUDA(r->place.device->driver,
                   cuMemcpyDtoDAsync((nsai_cu_ptr)(uintptr_t)to->data,
                                     (nsai_cu_ptr)(uintptr_t)from->data, to->bytes, stream));
}

static uint64_t bytes_of(const nsa_part *part) { return part ? part->bytes : 0; }

/* Receives all parts of one sender. */
static nsa_status receive_from(room *r, int32_t rank, int32_t sender, const nsa_part *recv,
                               int32_t recv_count) {
  const seat *own = &r->seats[rank], *theirs = &r->seats[sender];
  int32_t out = 0, in = 0;
  for (int32_t number = 1;; number++) {
    const nsa_part *from = next_part(theirs->send, theirs->send_count, rank, &out);
    const nsa_part *to = next_part(recv, recv_count, sender, &in);
    if (!from && !to) return NSA_OK;
    if (bytes_of(from) != bytes_of(to))
      return nsai_fail(
          NSA_E_RANKS,
          "rank %d of %d expects %llu bytes as part %d of rank %d, which sends %llu (0: "
          "no such part): the ranks run different calls",
          rank, r->size, (unsigned long long)bytes_of(to), number, sender,
          (unsigned long long)bytes_of(from));
    if (number == 1 && r->place.device)
      NSAI_TRY(
          NSAI_CUDA(r->place.device->driver, cuStreamWaitEvent(own->stream, theirs->ready, 0)));
    NSAI_TRY(copy_part(r, to, from, own->stream));
  }
}

static nsa_status receive_all(room *r, int32_t rank, const nsa_part *recv, int32_t recv_count) {
  for (int32_t i = 1; i < r->size; i++) /* all ranks begin with another sender */
    NSAI_TRY(receive_from(r, rank, (rank + i) % r->size, recv, recv_count));
  if (!r->place.device) return NSA_OK;
  const seat *own = &r->seats[rank];
  return NSAI_CUDA(r->place.device->driver, cuEventRecord(own->done, own->stream));
}

/* The stream goes on when the receivers have read this rank's parts. */
static nsa_status wait_for_receivers(room *r, int32_t rank, const nsa_part *send,
                                     int32_t send_count, nsa_stream stream) {
  for (int32_t i = 0; r->place.device && i < r->size; i++) {
    int32_t at = 0;
    if (i != rank && next_part(send, send_count, i, &at))
      NSAI_TRY(NSAI_CUDA(r->place.device->driver, cuStreamWaitEvent(stream, r->seats[i].done, 0)));
  }
  return NSA_OK;
}

/* ---- the table ---- */

static nsa_status exchange(void *user, const nsa_part *send, int32_t send_count,
                           const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  const member *m = user;
  room *r = m->room;
  const seat shown = { .send = send, .send_count = send_count, .stream = stream };
  if (r->place.device)
    NSAI_TRY(NSAI_CUDA(r->place.device->driver, cuEventRecord(r->seats[m->rank].ready, stream)));
  NSAI_TRY(meet(m, &shown));
  NSAI_TRY(part(r, m->rank, receive_all(r, m->rank, recv, recv_count)));
  /* A rank records `done` again behind the next first meeting, which needs this rank. */
  return wait_for_receivers(r, m->rank, send, send_count, stream);
}

static nsa_status poll_room(void *user) {
  const member *m = user;
  room *r = m->room;
  nsa_status status = NSA_OK;
  pthread_mutex_lock(&r->lock);
  if (r->over)
    status = nsai_fail(NSA_E_RANKS, "rank %d of %d: another rank gave up: %s", m->rank, r->size,
                       r->reason);
  pthread_mutex_unlock(&r->lock);
  return status;
}

static void give_up(void *user, const char *reason) {
  const member *m = user;
  pthread_mutex_lock(&m->room->lock);
  end_room(m->room, reason);
  pthread_mutex_unlock(&m->room->lock);
}

static void set_timeout(void *user, int32_t ms) { ((member *)user)->timeout_ms = ms; }

/* ---- making and destroying ---- */

static void destroy_events(const room *r) {
  nsai_comm_entered entered;
  if (!r->place.device || nsai_comm_enter(&r->place, &entered) != NSA_OK) return;
  for (int32_t i = 0; i < r->size; i++) {
    const seat *s = &r->seats[i];
    if (s->ready) r->place.device->driver->cuEventDestroy(s->ready);
    if (s->done) r->place.device->driver->cuEventDestroy(s->done);
  }
  nsai_comm_leave(&r->place, &entered);
}

static void destroy_room(room *r) {
  destroy_events(r);
  pthread_cond_destroy(&r->changed);
  pthread_mutex_destroy(&r->lock);
  free(r);
}

static void leave_room(void *user) {
  member *m = user;
  room *r = m->room;
  pthread_mutex_lock(&r->lock);
  r->seats[m->rank].left = true;
  pthread_cond_broadcast(&r->changed);
  const bool last = !--r->users;
  pthread_mutex_unlock(&r->lock);
  if (last) destroy_room(r);
  free(m);
}

static nsa_status create_events(room *r) {
  const nsai_driver *driver = r->place.device->driver;
  nsai_comm_entered entered;
  nsa_status status = NSA_OK;
  NSAI_TRY(nsai_comm_enter(&r->place, &entered));
  for (int32_t i = 0; i < r->size && status == NSA_OK; i++) {
    seat *s = &r->seats[i];
    status = NSAI_CUDA(driver, cuEventCreate(&s->ready, NSAI_CU_EVENT_NO_TIMING));
    if (status == NSA_OK)
      status = NSAI_CUDA(driver, cuEventCreate(&s->done, NSAI_CU_EVENT_NO_TIMING));
  }
  nsai_comm_leave(&r->place, &entered);
  return status;
}

static nsa_status create_room(const nsai_comm_place *place, int32_t size, room **out) {
  pthread_condattr_t clock;
  room *r = calloc(1, sizeof *r);
  *out = NULL;
  if (!r) return nsai_fail_nomem("a loopback communicator", sizeof *r);
  r->place = *place;
  r->size = size;
  pthread_mutex_init(&r->lock, NULL);
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&r->changed, &clock);
  pthread_condattr_destroy(&clock);
  const nsa_status status = place->device ? create_events(r) : NSA_OK;
  if (status != NSA_OK)
    destroy_room(r);
  else
    *out = r;
  return status;
}

/* Makes one rank's end, which from here on counts as a user of the room. `options` are complete. */
static nsa_status join(room *r, int32_t rank, const nsa_comm_options *options, nsa_comm **out) {
  member *m = calloc(1, sizeof *m);
  if (!m) return nsai_fail_nomem("a loopback communicator", sizeof *m);
  *m = (member){ r, rank, options->timeout_ms };
  const nsai_transport transport = { .ops = { .struct_size = sizeof(nsa_comm_ops),
                                              .rank = rank,
                                              .size = r->size,
                                              .user = m,
                                              .exchange = exchange,
                                              .poll = poll_room },
                                     .name = "the loopback",
                                     .explains = true,
                                     .give_up = give_up,
                                     .set_timeout = set_timeout,
                                     .destroy = leave_room };
  r->users++;
  return nsai_comm_make(&r->place, &transport, options, out);
}

nsa_status nsai_comm_loopback(const nsai_comm_place *place, int32_t size,
                              const nsa_comm_options *options, nsa_comm **out) {
  nsa_comm_options read;
  room *r;
  nsa_status status = NSA_OK;
  if (size < 1 || size > NSA_MAX_RANKS)
    return nsai_fail(NSA_E_ARG, "size is %d: give the number of ranks, 1 to %d", size,
                     NSA_MAX_RANKS);
  NSAI_TRY(nsai_comm_options_read(options, size, &read));
  NSAI_TRY(create_room(place, size, &r));
  r->users++; /* of this function */
  for (int32_t i = 0; i < size; i++) out[i] = NULL;
  for (int32_t i = 0; i < size && status == NSA_OK; i++) status = join(r, i, &read, &out[i]);
  if (status != NSA_OK)
    for (int32_t i = 0; i < size; i++) {
      nsai_comm_destroy(out[i]);
      out[i] = NULL;
    }
  if (!--r->users) destroy_room(r);
  return status;
}
