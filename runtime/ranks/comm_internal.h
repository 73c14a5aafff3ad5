/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the files of communicators share.
 *
 * Lock rule: `lock` guards everything behind it in nsa_comm, because nsa_comm_check may be
 * called by any thread. It is never held while a function of the transport runs. Everything else
 * belongs to the one thread that uses the communicator.
 */
#ifndef NSAI_RANKS_COMM_INTERNAL_H
#define NSAI_RANKS_COMM_INTERNAL_H

#include "ranks/comm.h"
#include "ranks/peers.h"

#include <pthread.h>

#define NSAI_COMM_REASON_CHARS 1024

/* A table of functions and what the library knows about it. */
typedef struct nsai_transport {
  nsa_comm_ops ops; /* of this library's size */
  const char *name; /* "loopback", "NCCL", "the host's transport" */
  /* The host made the connection and is the only one who may end it; `how` says by which call. NULL: the
   * library, or ops.abort, ends it. */
  const char *host_ends_by;
  bool explains; /* a function that fails leaves a sentence in nsa_last_error */
  /* In the place of ops.abort: other ranks of this process are told the reason. NULL: ops.abort */
  void (*give_up)(void *user, const char *reason);
  /* How long a function may wait on the host from now on. NULL: it waits as long as it likes */
  void (*set_timeout)(void *user, int32_t ms);
  void (*destroy)(void *user); /* NULL: `user` is not the library's */
} nsai_transport;

/* A run that may not have finished. */
typedef struct nsai_enqueued {
  nsai_cu_event event;
  double
      since; /* seconds of the clock when it was enqueued, or when the run before was seen to finish */
} nsai_enqueued;

/* More runs than this are not watched one by one: a new one takes the place of the newest, so that the
 * oldest keeps its age. CUDA itself holds about 1024 launches of a stream. */
#define NSAI_COMM_RUNS 256

/* Plans or shards that were agreed upon, that of the last agreement last. The oldest make room
 * for new ones, on all ranks alike. */
typedef struct nsai_agreed {
  unsigned char digest[NSAI_COMM_AGREED][NSAI_DIGEST_BYTES];
  int32_t count;
} nsai_agreed;

/* Memory of messages, on the host, pinned, and on the device; on the CPU device both are the same. */
typedef struct nsai_agree_memory {
  char *host, *data;
} nsai_agree_memory;

#define NSAI_AGREE_GROWTHS 24 /* of slots of at least 256 bytes: then they have passed 2 GB */

/* What nsa_comm_agree exchanges messages with; made by its first call. */
typedef struct nsai_agree_room {
  char *host;    /* [size + 1, slot]: this rank's message, then those of all */
  char *data;    /* the same on the device */
  uint64_t slot; /* bytes; at least doubles when it grows */
  /* `host` and `data`, the last ones, and the smaller ones of before. These live until the communicator is
   * destroyed: cuMemFree waits for the device, where a kernel may wait for a lost rank. */
  nsai_agree_memory memory[NSAI_AGREE_GROWTHS];
  int32_t growths;
  nsai_cu_stream stream; /* these are NULL on the CPU device */
  nsai_cu_event event;
  int32_t calls;      /* of nsa_comm_agree so far */
  const char *caller; /* whose rounds they are; NULL: nsa_comm_agree's */
} nsai_agree_room;

/* The communicator's own stream, for exchanges and copies that overlap with a run's kernels. */
typedef struct nsai_side_stream {
  int32_t sms;           /* options.overlap_sms */
  nsai_cu_stream stream; /* NULL until nsa_comm_agree, and on the CPU device */
  nsai_cu_event forked, joined;
} nsai_side_stream;

/* A process on a host. Containers may give the same pid twice, in namespaces of their own; and virtual
 * machines that start from one image may have everything alike but what a process draws. */
typedef struct nsai_process {
  uint64_t pid, space[2];
  uint64_t number; /* random; 0: none could be drawn, and no two ranks count as of one process */
} nsai_process;

struct nsa_comm {
  nsai_transport transport;
  nsai_comm_place place;
  int32_t timeout_ms;
  int32_t host_ranks; /* successive ranks that share a host; 0: nsa_comm_agree has not found them */
  uint64_t host_id;   /* nsai_host_id, by which it does */
  nsai_process process;
  nsa_part *parts; /* room for the parts of one exchange that travel */
  int32_t parts_room;
  nsai_agreed plans, shards;
  nsai_agree_room agree;
  nsai_peers peers;
  nsai_side_stream side;

  pthread_mutex_t lock;
  bool dead;
  pthread_t ender;                     /* of a dead one: the thread that ends the transport */
  bool ended;                          /* it has done so */
  pthread_cond_t end;                  /* `ended` has become true */
  char reason[NSAI_COMM_REASON_CHARS]; /* of its death */
  const char *calling; /* the function of the transport that is running; NULL: none */
  double called_at;    /* seconds */
  int32_t call_ms;     /* that a function of the transport may take */
  nsai_enqueued runs[NSAI_COMM_RUNS]; /* a ring; on the CPU device always empty */
  int32_t first_run, run_count;
  double run_began_at; /* seconds, when the run that is being enqueued came further; 0: none is */
  nsai_cu_event spare[NSAI_COMM_RUNS]; /* events that are not in use */
  int32_t spare_count;
};

/* Makes a communicator that owns the transport's `user` if it has a `destroy`: on failure, too.
 * `options` as in comm.h. */
nsa_status nsai_comm_make(const nsai_comm_place *place, const nsai_transport *transport,
                          const nsa_comm_options *options, nsa_comm **out);

/* Reads options of any version, of so many ranks; 0: not known yet. NSA_E_ARG, NSA_E_VERSION. */
nsa_status nsai_comm_options_read(const nsa_comm_options *options, int32_t size,
                                  nsa_comm_options *out);

/* Ends the communicator with this sentence, unless it has ended: aborts the transport and logs
 * the reason. If another thread is doing that, waits until the transport has been aborted.
 * Returns NSA_E_RANKS with the reason that the communicator died of first. Thread-safe. */
nsa_status nsai_comm_die(nsa_comm *comm, const char *format, ...) NSAI_PRINTF(2, 3);

/* Other ranks are waiting: a failure of `what` ends the communicator. Returns `status` if it is none. */
nsa_status nsai_comm_end_if_failed(nsa_comm *comm, const char *what, nsa_status status);

/* NSA_E_RANKS when it has died, and its transport has been aborted. Thread-safe. */
nsa_status nsai_comm_check_alive(nsa_comm *comm);

/* How long a function of the transport may take from now on: options.timeout_ms, or what is left of
 * another timeout. */
void nsai_comm_limit_calls(nsa_comm *comm, int32_t ms);

/* Makes the place's device current and allows calls that a capture on another thread forbids;
 * nothing on the CPU device. */
typedef struct nsai_comm_entered {
  bool pushed;
  int32_t mode;
} nsai_comm_entered;
nsa_status nsai_comm_enter(const nsai_comm_place *place, nsai_comm_entered *entered);
void nsai_comm_leave(const nsai_comm_place *place, const nsai_comm_entered *entered);

/* Sleeps between two looks at something that another rank or the device is to do: short at first.
 * `since` is when the waiting began, in seconds. */
void nsai_comm_nap(double since);

/* A number that all processes of this host have alike, and hardly any of another host. */
uint64_t nsai_host_id(void);

nsai_process nsai_this_process(void);

/* How many ranks share a host, from the number of each rank's host: if ranks of a host are neighbours and all
 * hosts have as many. Else `size`. */
int32_t nsai_find_host_ranks(const uint64_t *host, int32_t size);

/* Enqueues a gather by the transport, whatever its size. */
nsa_status nsai_comm_gather_by_transport(nsa_comm *comm, const void *send, void *recv,
                                         uint64_t bytes, nsa_stream stream);

/* A round of messages of the same length, within nsa_comm_agree and behind its first round, or, behind a call of
 * it, of agree.caller: brings all ranks' to all. `since`, `timeout_ms`: of the whole call. NSA_E_RANKS, and the
 * communicator has ended; another failure leaves that to the caller. */
nsa_status nsai_agree_round(nsa_comm *comm, const void *mine, uint64_t bytes, double since,
                            int32_t timeout_ms);

/* A rank's message of the last round. */
const char *nsai_agree_message(const nsa_comm *comm, int32_t rank);

/* Frees the room. The transport has ended: nothing uses it. */
void nsai_agree_room_fini(nsa_comm *comm);

/* Of nsa_comm_options.copy_bytes: NSA_E_ARG, and what lies behind a mailbox. */
nsa_status nsai_copies_check_options(const nsa_comm_options *options);
uint64_t nsai_copies_bytes(int64_t copy_bytes);

/* NSA_E_ARG: no value of options.overlap_sms. */
nsa_status nsai_side_stream_check_option(int32_t overlap_sms);

/* Makes the stream, where options ask for overlap and it is not there; the device's context is current. And
 * destroys it. */
nsa_status nsai_side_stream_open(nsa_comm *comm);
void nsai_side_stream_close(nsa_comm *comm);

bool nsai_agreed_has(const nsai_agreed *agreed, const unsigned char digest[NSAI_DIGEST_BYTES]);
/* Makes it the newest, also if it was agreed upon before. */
void nsai_agreed_add(nsai_agreed *agreed, const unsigned char digest[NSAI_DIGEST_BYTES]);

#endif /* NSAI_RANKS_COMM_INTERNAL_H */
