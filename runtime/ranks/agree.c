/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_comm_agree. Rounds of messages through the transport itself, on a stream of their own:
 *
 *   heads    64 bytes of every rank, by exchange: each rank's arrives by itself, so that one knows
 *            who did not answer. They say how long the bodies are, and on which host the rank is.
 *   bodies   a digest of every field, by all_gather
 *   peers    up to three rounds of the first call that finds the ranks alike, by all_gather: peers.c
 *
 * nsa_comm_destroy may make one more (nsai_peers_close), and a run over a cache one where its lengths are
 * compared (run/ranks_lengths.c).
 *
 * Every rank compares the same messages in the same way, and so comes to the same result.
 */
#include "base/duration.h"
#include "ranks/comm_internal.h"
#include "ranks/shard.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC UINT64_C(0x534b4e415241534e) /* "NSARANKS" */
#define PROTOCOL 3
#define ALIGNMENT 256    /* bytes, of slots */
#define PEEK_SECONDS 0.2 /* for a copy of some KB while other streams stand still */
#define MAX_NAMED 4      /* fields in an error's text */

/* The first message. A rank's is complete when it ends with the number of the call. */
typedef struct head {
  uint64_t magic;
  int32_t protocol;
  int32_t rank, size;
  int32_t plan_count, plan_fields, common_count;
  int32_t has_shard;
  int32_t host_ranks; /* 0: to be found */
  uint32_t host[2];   /* nsai_host_id */
  int32_t peer_bytes; /* 0: no peer memory */
  int32_t overlap_sms;
  int32_t rounds; /* calls of nsa_comm_agree, this one included */
  uint32_t end;   /* low half of the magic number */
} head;
_Static_assert(sizeof(head) == 64, "a head is the same for all versions");

/* The second ends with these 16 bytes. */
typedef struct tail {
  uint64_t magic;
  int32_t rounds, reserved;
} tail;

/* ---- the room ---- */

static nsa_status create_stream(nsa_comm *comm) {
  const nsai_driver *driver = comm->place.device->driver;
  nsai_agree_room *room = &comm->agree;
  if (!room->stream)
    NSAI_TRY(NSAI_CUDA(driver, cuStreamCreate(&room->stream, NSAI_CU_STREAM_NON_BLOCKING)));
  if (!room->event)
    NSAI_TRY(NSAI_CUDA(driver, cuEventCreate(&room->event, NSAI_CU_EVENT_NO_TIMING)));
  return NSA_OK;
}

static void free_memory(const nsa_comm *comm, const nsai_agree_memory *memory) {
  if (!comm->place.device) {
    free(memory->host);
    return;
  }
  const nsai_driver *driver = comm->place.device->driver;
  if (memory->data) driver->cuMemFree((nsai_cu_ptr)(uintptr_t)memory->data);
  if (memory->host) driver->cuMemFreeHost(memory->host);
}

static nsa_status allocate(nsa_comm *comm, uint64_t bytes, nsai_agree_memory *memory) {
  nsai_cu_ptr data = 0;
  void *host = NULL;
  if (!comm->place.device) {
    memory->host = memory->data = malloc(bytes);
    return memory->host ? NSA_OK : nsai_fail_nomem("messages between ranks", bytes);
  }
  const nsai_driver *driver = comm->place.device->driver;
  NSAI_TRY(create_stream(comm));
  NSAI_TRY(NSAI_CUDA(driver, cuMemHostAlloc(&host, bytes, 0)));
  memory->host = host;
  NSAI_TRY(NSAI_CUDA(driver, cuMemAlloc(&data, bytes)));
  memory->data = (char *)(uintptr_t)data;
  return NSA_OK;
}

/* Room for messages of so many bytes. Every rank asks for the same, so that slots are equally long. */
static nsa_status reserve(nsa_comm *comm, uint64_t bytes) {
  nsai_agree_room *room = &comm->agree;
  uint64_t slot = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (slot <= room->slot) return NSA_OK;
  if (slot < 2 * room->slot) slot = 2 * room->slot;
  const uint64_t all = (uint64_t)(nsai_comm_size(comm) + 1) * slot;
  if (room->growths == NSAI_AGREE_GROWTHS) return nsai_fail_nomem("messages between ranks", all);
  nsai_agree_memory *memory = &room->memory[room->growths++];
  NSAI_TRY(allocate(comm, all, memory));
  room->host = memory->host;
  room->data = memory->data;
  room->slot = slot;
  return NSA_OK;
}

static uint64_t all_bytes(const nsa_comm *comm) {
  return (uint64_t)(nsai_comm_size(comm) + 1) * comm->agree.slot;
}

static void free_messages(nsa_comm *comm) {
  nsai_agree_room *room = &comm->agree;
  const double since = nsai_seconds();
  /* The host may be able to end a transport's kernel only when nsa_comm_destroy has returned. */
  while (comm->peers.close_failed &&
         comm->place.device->driver->cuStreamQuery(room->stream) == NSAI_CUDA_ERROR_NOT_READY) {
    if (nsai_seconds() - since >= PEEK_SECONDS) {
      nsai_log(comm->place.logger, NSA_LOG_WARN, "ranks",
               "rank %d of %d: %llu KiB of messages stay allocated until the process ends, because "
               "the transport has not ended",
               nsai_comm_rank(comm), nsai_comm_size(comm),
               (unsigned long long)all_bytes(comm) >> 10);
      return;
    }
    nsai_comm_nap(since);
  }
  for (int32_t i = 0; i < room->growths; i++) free_memory(comm, &room->memory[i]);
}

void nsai_agree_room_fini(nsa_comm *comm) {
  nsai_agree_room *room = &comm->agree;
  nsai_comm_entered entered;
  if (comm->place.device && !room->stream) return;
  if (nsai_comm_enter(&comm->place, &entered) != NSA_OK) return;
  free_messages(comm);
  if (room->event) comm->place.device->driver->cuEventDestroy(room->event);
  if (room->stream) comm->place.device->driver->cuStreamDestroy(room->stream);
  nsai_comm_leave(&comm->place, &entered);
}

/* ---- moving messages ---- */

/* Messages lie on the host from here on, that of rank r at (1 + r) * slot. */
static char *message_of(const nsa_comm *comm, int32_t rank) {
  return comm->agree.host + (uint64_t)(1 + rank) * comm->agree.slot;
}

static nsa_status upload(nsa_comm *comm) {
  nsai_agree_room *room = &comm->agree;
  if (!comm->place.device) return NSA_OK;
  return NSAI_CUDA(comm->place.device->driver,
                   cuMemcpyHtoDAsync((nsai_cu_ptr)(uintptr_t)room->data, room->host,
                                     all_bytes(comm), room->stream));
}

static nsa_status download(nsa_comm *comm, nsai_cu_stream stream, nsai_cu_event event) {
  const nsai_agree_room *room = &comm->agree;
  const nsai_driver *driver = comm->place.device->driver;
  NSAI_TRY(NSAI_CUDA(driver, cuMemcpyDtoHAsync(room->host, (nsai_cu_ptr)(uintptr_t)room->data,
                                               all_bytes(comm), stream)));
  return NSAI_CUDA(driver, cuEventRecord(event, stream));
}

/* Whether the event has been reached. */
static nsa_status query(const nsa_comm *comm, nsai_cu_event event, bool *reached) {
  const nsai_driver *driver = comm->place.device->driver;
  const nsai_cu_result result = driver->cuEventQuery(event);
  *reached = result != NSAI_CUDA_ERROR_NOT_READY;
  return *reached ? nsai_driver_status(driver, result, "cuEventQuery") : NSA_OK;
}

/* Copies what has arrived by a stream of its own, past one that waits for a lost rank. */
static void peek(nsa_comm *comm) {
  const nsai_driver *driver = comm->place.device->driver;
  const double since = nsai_seconds();
  nsai_cu_stream stream = NULL;
  nsai_cu_event event = NULL;
  bool reached = false;
  if (driver->cuStreamCreate(&stream, NSAI_CU_STREAM_NON_BLOCKING) != 0) return;
  if (driver->cuEventCreate(&event, NSAI_CU_EVENT_NO_TIMING) == 0 &&
      download(comm, stream, event) == NSA_OK)
    while (query(comm, event, &reached) == NSA_OK && !reached &&
           nsai_seconds() - since < PEEK_SECONDS)
      nsai_comm_nap(since);
  if (event) driver->cuEventDestroy(event);
  driver->cuStreamDestroy(stream);
}

/* ---- waiting ---- */

/* One call of nsa_comm_agree. */
typedef struct talk {
  nsa_comm *comm;
  const nsai_agreement *mine;
  double since;                                       /* seconds, when the first round began */
  int32_t timeout_ms;                                 /* of all rounds */
  uint64_t bytes;                                     /* of this round's messages */
  bool (*arrived)(const struct talk *, int32_t rank); /* whether a rank's message is complete */
} talk;

static bool head_arrived(const talk *t, int32_t rank) {
  head h;
  memcpy(&h, message_of(t->comm, rank), sizeof h);
  return h.magic == MAGIC && h.end == (uint32_t)MAGIC;
}

static bool body_arrived(const talk *t, int32_t rank) {
  tail end;
  memcpy(&end, message_of(t->comm, rank) + t->bytes - sizeof end, sizeof end);
  return end.magic == MAGIC && end.rounds == t->comm->agree.calls;
}

/* "rank 1", "ranks 1, 4", or "the other ranks" when everything, or nothing, has arrived. */
static void write_silent(const talk *t, nsai_writer *out) {
  const int32_t size = nsai_comm_size(t->comm);
  int32_t silent = 0;
  for (int32_t r = 0; r < size; r++) silent += !t->arrived(t, r);
  if (!silent) nsai_write(out, "the other ranks");
  const char *before = silent > 1 ? "ranks " : "rank ";
  for (int32_t r = 0; r < size; r++) {
    if (t->arrived(t, r)) continue;
    nsai_write(out, "%s%d", before, r);
    before = ", ";
  }
}

static nsa_status give_up(const talk *t, const char *what) {
  char text[512];
  nsai_writer silent = nsai_writer_open(text, sizeof text);
  write_silent(t, &silent);
  return nsai_comm_die(t->comm, "rank %d of %d: %s waited %.2f s for %s%s", nsai_comm_rank(t->comm),
                       nsai_comm_size(t->comm),
                       t->comm->agree.caller ? t->comm->agree.caller : "nsa_comm_agree",
                       nsai_seconds() - t->since, text, what);
}

/* Until the messages lie on the host. */
static nsa_status wait_for_messages(const talk *t) {
  nsa_comm *comm = t->comm;
  bool reached = false;
  for (;;) {
    NSAI_TRY(query(comm, comm->agree.event, &reached));
    if (reached) return NSA_OK;
    NSAI_TRY(nsai_comm_check(comm));
    if ((nsai_seconds() - t->since) * 1000 >= t->timeout_ms) {
      peek(comm);
      return give_up(t, ": look for a rank that failed, or that did not call it");
    }
    nsai_comm_nap(t->since);
  }
}

/* Moves this rank's message, which lies at `host`, to all ranks. */
static nsa_status talk_round(const talk *t, bool gathers) {
  nsa_comm *comm = t->comm;
  const nsai_agree_room *room = &comm->agree;
  const int32_t size = nsai_comm_size(comm);
  nsa_part out[NSA_MAX_RANKS], in[NSA_MAX_RANKS];
  memset(room->host + room->slot, 0, (size_t)size * room->slot);
  NSAI_TRY(upload(comm));
  for (int32_t r = 0; r < size; r++) {
    out[r] = (nsa_part){ room->data, t->bytes, r };
    in[r] = (nsa_part){ room->data + (uint64_t)(1 + r) * room->slot, t->bytes, r };
  }
  NSAI_TRY(gathers ? nsai_comm_gather_by_transport(comm, room->data, room->data + room->slot,
                                                   room->slot, room->stream)
                   : nsai_comm_exchange(comm, out, size, in, size, room->stream));
  if (comm->place.device) {
    NSAI_TRY(download(comm, room->stream, room->event));
    NSAI_TRY(wait_for_messages(t));
  }
  for (int32_t r = 0; r < size; r++)
    if (!t->arrived(t, r))
      return give_up(t, ": the transport's functions returned, but did not move the bytes");
  return NSA_OK;
}

/* ---- comparing ---- */

/* Where a field lies in a body: the common ones, those of the plans, the shard. */
static int32_t count_fields(const nsai_agreement *a) {
  return a->common_count + a->plan_count * a->plan_fields + (a->shard != NULL);
}

static nsai_agree_field field_at(const nsai_agreement *a, int32_t index) {
  if (index < a->common_count) return a->common[index];
  index -= a->common_count;
  if (index < a->plan_count * a->plan_fields) return a->plans[index];
  nsai_agree_field shard = { .name = "the shard" };
  memcpy(shard.digest, a->shard->digest, NSAI_DIGEST_BYTES);
  return shard;
}

/* The plan that a field belongs to; -1: none. */
static int32_t plan_of(const nsai_agreement *a, int32_t index) {
  index -= a->common_count;
  return index >= 0 && index < a->plan_count * a->plan_fields ? index / a->plan_fields : -1;
}

static const char *value_of(const talk *t, int32_t rank, int32_t index) {
  return message_of(t->comm, rank) + (size_t)index * NSAI_DIGEST_BYTES;
}

static bool differs(const talk *t, int32_t rank, int32_t index) {
  return memcmp(value_of(t, rank, index), value_of(t, 0, index), NSAI_DIGEST_BYTES) != 0;
}

static bool anybody_differs(const talk *t, int32_t index) {
  for (int32_t r = 1; r < nsai_comm_size(t->comm); r++)
    if (differs(t, r, index)) return true;
  return false;
}

/* "problem.max_tokens of plan 0 (rank 0: 4096; rank 2: 8192)", "the shard (ranks 1, 3)" */
static void write_difference(const talk *t, int32_t index, nsai_writer *out) {
  const nsai_agree_field field = field_at(t->mine, index);
  const int32_t size = nsai_comm_size(t->comm), plan = plan_of(t->mine, index);
  int64_t value;
  nsai_write(out, "%s", field.name);
  if (plan >= 0) nsai_write(out, " of plan %d", plan);
  memcpy(&value, value_of(t, 0, index), sizeof value);
  if (field.is_number)
    nsai_write(out, " (rank 0 has %lld", (long long)value);
  else
    nsai_write(out, " (not as on rank 0: rank");
  const char *before = field.is_number ? ", " : " ";
  for (int32_t r = 1; r < size; r++) {
    if (!differs(t, r, index)) continue;
    memcpy(&value, value_of(t, r, index), sizeof value);
    if (field.is_number)
      nsai_write(out, "%srank %d %lld", before, r, (long long)value);
    else
      nsai_write(out, "%s%d", before, r);
    before = ", ";
  }
  nsai_write(out, ")");
}

static nsa_status compare_bodies(const talk *t) {
  char text[NSAI_COMM_REASON_CHARS / 2];
  nsai_writer out = nsai_writer_open(text, sizeof text);
  int32_t found = 0;
  for (int32_t i = 0; i < count_fields(t->mine); i++) {
    if (!anybody_differs(t, i)) continue;
    if (found++ >= MAX_NAMED) continue;
    nsai_write(&out, "%s", found > 1 ? "; " : "");
    write_difference(t, i, &out);
  }
  if (!found) return NSA_OK;
  if (found > MAX_NAMED) nsai_write(&out, "; and %d more", found - MAX_NAMED);
  return nsai_fail(
      NSA_E_RANKS,
      "the ranks differ in %s. Use one configuration and one problem, make the shard of "
      "the same options, tune on one rank and import its records on the others; nsa_explain "
      "shows what a rank chooses",
      text);
}

/* The numbers in heads that give the bodies their sizes. */
static nsa_status compare_heads(const talk *t) {
  static const struct {
    const char *name;
    size_t at;
  } members[] = {
    { "the protocol of the library", offsetof(head, protocol) },
    { "the number of ranks", offsetof(head, size) },
    { "the calls of nsa_comm_agree so far", offsetof(head, rounds) },
    { "count", offsetof(head, plan_count) },
    { "the library's fields of a plan", offsetof(head, plan_fields) },
    { "the library's common fields", offsetof(head, common_count) },
    { "whether a shard is given", offsetof(head, has_shard) },
    { "host_ranks of the communicator", offsetof(head, host_ranks) },
    { "peer_bytes of the communicator", offsetof(head, peer_bytes) },
    { "overlap_sms of the communicator", offsetof(head, overlap_sms) },
  };
  for (size_t i = 0; i < sizeof members / sizeof *members; i++)
    for (int32_t r = 1; r < nsai_comm_size(t->comm); r++) {
      int32_t first, other;
      memcpy(&first, message_of(t->comm, 0) + members[i].at, sizeof first);
      memcpy(&other, message_of(t->comm, r) + members[i].at, sizeof other);
      if (first != other)
        return nsai_fail(
            NSA_E_RANKS,
            "the ranks differ in %s: rank 0 has %d, rank %d %d. Every rank calls "
            "nsa_comm_agree with the same list, on communicators of the same options, by the "
            "same version of the library",
            members[i].name, first, r, other);
    }
  for (int32_t r = 0; r < nsai_comm_size(t->comm); r++) {
    int32_t rank;
    memcpy(&rank, message_of(t->comm, r) + offsetof(head, rank), sizeof rank);
    if (rank != r)
      return nsai_fail(
          NSA_E_RANKS,
          "the message of rank %d came in the place of rank %d's: the transport's ranks "
          "are not those of the communicators",
          rank, r);
  }
  return NSA_OK;
}

/* Which ranks share a host, from the same heads on every rank. */
static void find_hosts(nsa_comm *comm) {
  const int32_t size = nsai_comm_size(comm);
  uint64_t host[NSA_MAX_RANKS];
  for (int32_t r = 0; r < size; r++)
    memcpy(&host[r], message_of(comm, r) + offsetof(head, host), sizeof host[r]);
  comm->host_ranks = nsai_find_host_ranks(host, size);
  nsai_log(comm->place.logger, NSA_LOG_DEBUG, "ranks", "%d of %d ranks share a host",
           comm->host_ranks, size);
}

/* ---- the call ---- */

static nsa_status exchange_heads(talk *t) {
  nsa_comm *comm = t->comm;
  head h = { .magic = MAGIC,
             .protocol = PROTOCOL,
             .rank = nsai_comm_rank(comm),
             .size = nsai_comm_size(comm),
             .plan_count = t->mine->plan_count,
             .plan_fields = t->mine->plan_fields,
             .common_count = t->mine->common_count,
             .has_shard = t->mine->shard != NULL,
             .host_ranks = comm->host_ranks,
             .peer_bytes = comm->peers.most_bytes,
             .overlap_sms = comm->side.sms,
             .rounds = comm->agree.calls,
             .end = (uint32_t)MAGIC };
  memcpy(h.host, &comm->host_id, sizeof h.host);
  NSAI_TRY(reserve(comm, sizeof h));
  t->since = nsai_seconds();
  nsai_comm_limit_calls(comm, t->timeout_ms);
  memset(comm->agree.host, 0, comm->agree.slot);
  memcpy(comm->agree.host, &h, sizeof h);
  t->bytes = sizeof h;
  t->arrived = head_arrived;
  NSAI_TRY(talk_round(t, false));
  NSAI_TRY(compare_heads(t));
  if (!comm->host_ranks) find_hosts(comm);
  return NSA_OK;
}

/* What the first round left of the timeout; at least 1, with which nobody waits to speak of. */
static int32_t remaining_ms(const talk *t) {
  const double ms = t->timeout_ms - (nsai_seconds() - t->since) * 1000;
  return ms > 1 ? (int32_t)ms : 1;
}

static nsa_status exchange_bodies(talk *t) {
  nsa_comm *comm = t->comm;
  const int32_t fields = count_fields(t->mine);
  const tail end = { MAGIC, comm->agree.calls, 0 };
  t->bytes = (uint64_t)fields * NSAI_DIGEST_BYTES + sizeof end;
  t->arrived = body_arrived;
  NSAI_TRY(reserve(comm, t->bytes));
  nsai_comm_limit_calls(comm, remaining_ms(t));
  memset(comm->agree.host, 0, comm->agree.slot);
  for (int32_t i = 0; i < fields; i++)
    memcpy(comm->agree.host + (size_t)i * NSAI_DIGEST_BYTES, field_at(t->mine, i).digest,
           NSAI_DIGEST_BYTES);
  memcpy(comm->agree.host + t->bytes - sizeof end, &end, sizeof end);
  NSAI_TRY(talk_round(t, true));
  return compare_bodies(t);
}

nsa_status nsai_agree_round(nsa_comm *comm, const void *mine, uint64_t bytes, double since,
                            int32_t timeout_ms) {
  const tail end = { MAGIC, comm->agree.calls, 0 };
  talk t = { .comm = comm,
             .since = since,
             .timeout_ms = timeout_ms,
             .bytes = bytes + sizeof end,
             .arrived = body_arrived };
  NSAI_TRY(reserve(comm, t.bytes));
  nsai_comm_limit_calls(comm, remaining_ms(&t));
  memset(comm->agree.host, 0, comm->agree.slot);
  memcpy(comm->agree.host, mine, bytes);
  memcpy(comm->agree.host + bytes, &end, sizeof end);
  return talk_round(&t, true);
}

const char *nsai_agree_message(const nsa_comm *comm, int32_t rank) {
  return message_of(comm, rank);
}

/* A rank that fails here leaves the others waiting. */
static nsa_status end_unless_ranks(nsa_comm *comm, nsa_status status) {
  char text[NSAI_COMM_REASON_CHARS / 2];
  if (status == NSA_OK || status == NSA_E_RANKS) return status;
  nsai_writer copy = nsai_writer_open(text, sizeof text);
  nsai_write(&copy, "%s", nsa_last_error());
  return nsai_comm_die(comm, "rank %d of %d: nsa_comm_agree failed: %s", nsai_comm_rank(comm),
                       nsai_comm_size(comm), text);
}

static nsa_status agree(talk *t) {
  nsa_comm *comm = t->comm;
  nsai_comm_entered entered;
  NSAI_TRY(nsai_comm_enter(&comm->place, &entered));
  nsa_status status = exchange_heads(t);
  if (status == NSA_OK) status = exchange_bodies(t);
  if (status == NSA_OK) status = nsai_side_stream_open(comm);
  if (status == NSA_OK) status = nsai_peers_open(comm, t->mine->no_gather, t->since, t->timeout_ms);
  nsai_comm_leave(&comm->place, &entered);
  return status;
}

nsa_status nsai_comm_agree(nsa_comm *comm, const nsai_agreement *mine, int32_t timeout_ms) {
  talk t = { .comm = comm, .mine = mine, .timeout_ms = timeout_ms ? timeout_ms : comm->timeout_ms };
  if (timeout_ms < 0)
    return nsai_fail(NSA_E_ARG, "timeout_ms is %d: give milliseconds, or 0 for options.timeout_ms",
                     timeout_ms);
  if (mine->plan_count > NSAI_COMM_AGREED)
    return nsai_fail(NSA_E_ARG,
                     "count is %d: agree upon at most %d plans at once, as many as a communicator "
                     "remembers",
                     mine->plan_count, NSAI_COMM_AGREED);
  NSAI_TRY(nsai_comm_check_alive(comm));
  comm->agree.calls++;
  const nsa_status status = end_unless_ranks(comm, agree(&t));
  nsai_comm_limit_calls(comm, comm->timeout_ms);
  NSAI_TRY(status);
  for (int32_t i = 0; i < mine->plan_count; i++) nsai_agreed_add(&comm->plans, mine->digests[i]);
  if (mine->shard) nsai_agreed_add(&comm->shards, mine->shard->digest);
  nsai_log(comm->place.logger, NSA_LOG_DEBUG, "ranks", "%d ranks agree upon %d plan%s%s",
           nsai_comm_size(comm), mine->plan_count, mine->plan_count == 1 ? "" : "s",
           mine->shard ? " and a shard" : "");
  return NSA_OK;
}
