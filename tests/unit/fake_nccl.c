/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * NCCL without hardware: ranks are threads of one process, memory is the host's, streams are ignored.
 * Communicators do not block: a call is in progress until ncclCommGetAsyncError finds that the other
 * ranks have done their part.
 */
#include "fake_nccl.h"

#include "driver/nccl.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, MOST = 64, SLOTS = 256 };

/* Bytes on their way from one rank to another. */
typedef struct letter {
  struct letter *next;
  int from, to;
  size_t bytes;
  unsigned char data[];
} letter;

/* All communicators of one id. */
typedef struct world {
  struct world *next;
  nsai_nccl_id id;
  int users, joined;
  letter *letters; /* the oldest first */
} world;

typedef struct wanted {
  void *data;
  size_t bytes;
  int from;
} wanted;

struct ncclComm {
  world *world;
  int rank, size, device;
  bool connected;
  bool busy;            /* a group is in progress: nobody has asked, and heard that it is done */
  bool ended;           /* aborted or destroyed; kept, so that calls on it are seen */
  nsai_nccl_comm next;  /* of those that have ended */
  wanted wanted[SLOTS]; /* receives in progress */
  int first, count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t end_of_one = PTHREAD_COND_INITIALIZER;
static world *worlds;
static int ids;
static fake_nccl_state record;
static nsai_nccl_comm graveyard; /* reachable, so that no leak is reported */
static _Thread_local int depth;
static _Thread_local nsai_nccl_comm grouped; /* that the thread's group sends and receives by */

fake_nccl_state *fake_nccl_record(void) { return &record; }

nsai_nccl_result ncclGetVersion(int *version) {
  *version = 22803;
  return 0;
}

const char *ncclGetErrorString(nsai_nccl_result result) {
  return result == SYSTEM_ERROR ? "unhandled system error" : "fake error";
}

const char *ncclGetLastError(nsai_nccl_comm comm) {
  (void)comm;
  return "a fake cable was pulled";
}

nsai_nccl_result ncclGetUniqueId(nsai_nccl_id *id) {
  memset(id, 0, sizeof *id);
  pthread_mutex_lock(&lock);
  ids++;
  memcpy(id->bytes, &ids, sizeof ids);
  pthread_mutex_unlock(&lock);
  return 0;
}

static world *find_world(const nsai_nccl_id *id) {
  for (world *w = worlds; w; w = w->next)
    if (!memcmp(&w->id, id, sizeof *id)) return w;
  world *w = calloc(1, sizeof *w);
  w->id = *id;
  w->next = worlds;
  worlds = w;
  return w;
}

nsai_nccl_result ncclCommInitRankConfig(nsai_nccl_comm *out, int size, nsai_nccl_id id, int rank,
                                        nsai_nccl_config *config) {
  const bool limits = config->version >= 21700;
  if (config->magic != 0xcafebeef || config->blocking) return INVALID_ARGUMENT;
  if (config->size != (limits ? 32 : 24)) return INVALID_ARGUMENT;
  struct ncclComm *comm = calloc(1, sizeof *comm);
  pthread_mutex_lock(&lock);
  comm->world = find_world(&id);
  comm->world->users++;
  comm->world->joined++;
  comm->rank = rank;
  comm->size = size;
  comm->device = 1;
  record.comms++;
  record.max_ctas = limits ? config->max_ctas : 0;
  pthread_mutex_unlock(&lock);
  *out = comm;
  return NSAI_NCCL_IN_PROGRESS;
}

static letter *take_letter(world *w, int from, int to) {
  for (letter **at = &w->letters; *at; at = &(*at)->next) {
    letter *l = *at;
    if (l->from != from || l->to != to) continue;
    *at = l->next;
    return l;
  }
  return NULL;
}

/* Lock held. Receives what has come. */
static nsai_nccl_result go_on(nsai_nccl_comm comm) {
  if (comm->world->joined < comm->size) return NSAI_NCCL_IN_PROGRESS;
  comm->connected = true;
  for (; comm->count; comm->first = (comm->first + 1) % SLOTS, comm->count--) {
    const wanted *w = &comm->wanted[comm->first];
    letter *l = take_letter(comm->world, w->from, comm->rank);
    if (!l) return NSAI_NCCL_IN_PROGRESS;
    if (l->bytes == w->bytes) memcpy(w->data, l->data, l->bytes);
    const bool fits = l->bytes == w->bytes;
    free(l);
    if (!fits) return INVALID_ARGUMENT;
  }
  comm->busy = false;
  return 0;
}

/* Lock held. Whether the communicator may be used. */
static bool is_alive(nsai_nccl_comm comm) {
  record.wrong_use += comm->ended;
  return !comm->ended;
}

/* As is_alive, without the lock. */
static bool check_alive(nsai_nccl_comm comm) {
  pthread_mutex_lock(&lock);
  const bool alive = is_alive(comm);
  pthread_mutex_unlock(&lock);
  return alive;
}

nsai_nccl_result ncclCommGetAsyncError(nsai_nccl_comm comm, nsai_nccl_result *state) {
  pthread_mutex_lock(&lock);
  const bool alive = is_alive(comm);
  if (alive) *state = record.async_error ? record.async_error : go_on(comm);
  pthread_mutex_unlock(&lock);
  return alive ? 0 : INVALID_ARGUMENT;
}

static nsai_nccl_result end_comm(nsai_nccl_comm comm, int *counter) {
  pthread_mutex_lock(&lock);
  if (!is_alive(comm)) {
    pthread_mutex_unlock(&lock);
    return INVALID_ARGUMENT;
  }
  world *w = comm->world;
  if (!--w->users) {
    world **at = &worlds;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    while (w->letters) {
      letter *l = w->letters;
      w->letters = l->next;
      free(l);
    }
    free(w);
  }
  record.comms--;
  ++*counter;
  comm->ended = true;
  comm->world = NULL;
  comm->next = graveyard;
  graveyard = comm;
  pthread_cond_broadcast(&end_of_one);
  pthread_mutex_unlock(&lock);
  return 0;
}

nsai_nccl_result ncclCommFinalize(nsai_nccl_comm comm) {
  return check_alive(comm) ? NSAI_NCCL_IN_PROGRESS : INVALID_ARGUMENT;
}

nsai_nccl_result ncclCommDestroy(nsai_nccl_comm comm) {
  pthread_mutex_lock(&lock);
  record.wrong_use += !comm->ended && comm->busy;
  pthread_mutex_unlock(&lock);
  return end_comm(comm, &record.destroyed);
}

nsai_nccl_result ncclCommAbort(nsai_nccl_comm comm) {
  const nsai_nccl_result result = end_comm(comm, &record.aborted);
  return result ? result : NSAI_NCCL_IN_PROGRESS;
}

nsai_nccl_result ncclCommCount(nsai_nccl_comm comm, int *count) {
  *count = comm->size;
  return check_alive(comm) ? 0 : INVALID_ARGUMENT;
}

nsai_nccl_result ncclCommUserRank(nsai_nccl_comm comm, int *rank) {
  *rank = comm->rank;
  return check_alive(comm) ? 0 : INVALID_ARGUMENT;
}

nsai_nccl_result ncclCommCuDevice(nsai_nccl_comm comm, int *device) {
  *device = comm->device;
  return check_alive(comm) ? 0 : INVALID_ARGUMENT;
}

nsai_nccl_result ncclGroupStart(void) {
  depth++;
  return 0;
}

nsai_nccl_result ncclGroupEnd(void) {
  if (!depth) return INVALID_ARGUMENT;
  if (--depth) return 0;
  const nsai_nccl_comm comm = grouped;
  grouped = NULL;
  pthread_mutex_lock(&lock);
  const bool fails = record.fail_group && !--record.fail_group;
  if (comm) comm->busy = true;
  while (record.blocks && comm && !comm->ended) pthread_cond_wait(&end_of_one, &lock);
  pthread_mutex_unlock(&lock);
  return fails ? SYSTEM_ERROR : NSAI_NCCL_IN_PROGRESS;
}

/* Lock held. Whether the thread's group may have another part of this communicator. */
static bool join_group(nsai_nccl_comm comm, int32_t type) {
  if (!is_alive(comm)) return false;
  record.wrong_use += !depth || type != NSAI_NCCL_UINT8 || !comm->connected || comm->busy;
  record.wrong_use += grouped && grouped != comm;
  grouped = comm;
  return true;
}

nsai_nccl_result ncclSend(const void *data, size_t bytes, int32_t type, int peer,
                          nsai_nccl_comm comm, nsai_cu_stream stream) {
  (void)stream;
  __atomic_fetch_add(&record.sends, 1, __ATOMIC_ACQ_REL);
  usleep(1000 * (useconds_t)__atomic_load_n(&record.send_ms, __ATOMIC_ACQUIRE));
  pthread_mutex_lock(&lock);
  if (!join_group(comm, type)) {
    pthread_mutex_unlock(&lock);
    return INVALID_ARGUMENT;
  }
  letter *l = malloc(sizeof *l + bytes);
  *l = (letter){ .from = comm->rank, .to = peer, .bytes = bytes };
  memcpy(l->data, data, bytes);
  letter **at = &comm->world->letters;
  while (*at) at = &(*at)->next;
  *at = l;
  pthread_mutex_unlock(&lock);
  return 0;
}

nsai_nccl_result ncclRecv(void *data, size_t bytes, int32_t type, int peer, nsai_nccl_comm comm,
                          nsai_cu_stream stream) {
  (void)stream;
  pthread_mutex_lock(&lock);
  const bool joins = join_group(comm, type);
  if (joins) {
    record.wrong_use += comm->count == SLOTS;
    comm->wanted[(comm->first + comm->count++) % SLOTS] = (wanted){ data, bytes, peer };
  }
  pthread_mutex_unlock(&lock);
  return joins ? 0 : INVALID_ARGUMENT;
}

nsai_nccl_result ncclAllGather(const void *send, void *recv, size_t bytes, int32_t type,
                               nsai_nccl_comm comm, nsai_cu_stream stream) {
  nsai_nccl_result result = ncclGroupStart();
  for (int r = 0; r < comm->size; r++) {
    if (!result) result = ncclSend(send, bytes, type, r, comm, stream);
    if (!result) result = ncclRecv((char *)recv + (size_t)r * bytes, bytes, type, r, comm, stream);
  }
  const nsai_nccl_result ended = ncclGroupEnd();
  return result ? result : ended;
}
