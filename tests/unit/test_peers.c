/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Gathers through peer memory. On the fake driver: what turns them on and off, and what they leave behind. On the
 * emulator (tests/emulator), where kernels run and wait for each other's threads, also their data and faults.
 */
#include "support/cmocka_all.h"
#include "support/init.h"

#include "base/duration.h"
#include "params/ranks.h"
#include "ranks/comm_internal.h"

#include "comm_fixture.h" /* its `rank` is a type */

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PEER_BYTES = 40000, MOST = NSAI_GATHER_RANKS };

/* A context on the GPU, and the ranks of the test that runs. */
typedef struct world {
  nsa_ctx *ctx;
  char dir[64];
  char log[1024]; /* the last message about peer memory */
  rank ranks[MOST_RANKS];
  int32_t size;
} world;

static void keep_log(void *user, int32_t level, const char *component, const char *text) {
  world *w = user;
  if (level <= NSA_LOG_INFO && strstr(text, "peer memory"))
    snprintf(w->log, sizeof w->log, "%s", text);
}

static void world_init(world *w, const char *extra) {
  const machine_request request = { .gpu = true };
  char yaml[2048];
  memset(w, 0, sizeof *w);
  machine_yaml(&request, yaml, sizeof yaml);
  const machine_reopening how = {
    .yaml = yaml, .extra = extra ? extra : "runtime.log_level=info", .log = keep_log, .log_user = w
  };
  machine_reopen(&w->ctx, w->dir, &how);
}

static void world_free(world *w) {
  nsa_destroy(w->ctx);
  machine_remove(w->dir);
}

static void open_ranks(world *w, int32_t size, int32_t timeout_ms, int32_t peer_bytes,
                       void (*work)(rank *)) {
  nsa_comm *comms[MOST_RANKS];
  const nsa_comm_options options =
      INIT(nsa_comm_options, .timeout_ms = timeout_ms, .peer_bytes = peer_bytes);
  machine_expect("loopback", nsa_comm_loopback(w->ctx, size, &options, comms), NSA_OK, NULL);
  memset(w->ranks, 0, sizeof w->ranks);
  w->size = size;
  for (int32_t i = 0; i < size; i++)
    w->ranks[i] = (rank){ .comm = comms[i],
                          .number = i,
                          .size = size,
                          .repeats = 1,
                          .timeout_ms = timeout_ms,
                          .work = work };
}

/* All ranks do something else, on a thread each. */
static void run_work(world *w, void (*work)(rank *)) {
  for (int32_t i = 0; i < w->size; i++) w->ranks[i].work = work;
  ranks_run(w->ranks, w->size);
}

static void agrees(rank *r) { rank_note(r, nsa_comm_agree(r->comm, NULL, 0, NULL, 0)); }

static void expect_peer_bytes(const world *w, int32_t bytes) {
  ranks_expect_ok(w->ranks, w->size);
  for (int32_t i = 0; i < w->size; i++)
    if (nsai_comm_peer_bytes(w->ranks[i].comm) != bytes)
      fail_msg("rank %d of %d: %d bytes: %s", i, w->size, nsai_comm_peer_bytes(w->ranks[i].comm),
               w->log);
}

/* ---- on and off ---- */

static void test_options(void **state) {
  world w;
  nsa_comm *comms[2];
  world_init(&w, NULL);
  static const int32_t bad[] = { -2, NSAI_GATHER_MOST + 1, INT32_MIN, INT32_MAX };
  for (int i = 0; i < 4; i++) {
    const nsa_comm_options options = INIT(nsa_comm_options, .peer_bytes = bad[i]);
    machine_expect("bad", nsa_comm_loopback(w.ctx, 2, &options, comms), NSA_E_ARG,
                   "options.peer_bytes is");
  }
  for (int32_t off = -1; off <= 0; off++) {
    open_ranks(&w, 2, 20000, off, agrees);
    ranks_run(w.ranks, 2);
    expect_peer_bytes(&w, 0);
    ranks_destroy(w.ranks, 2);
  }
  nsa_comm_options older = INIT(nsa_comm_options, .peer_bytes = 77);
  older.struct_size = offsetof(nsa_comm_options, peer_bytes);
  machine_expect("older", nsa_comm_loopback(w.ctx, 2, &older, comms), NSA_OK, NULL);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(comms[i]->peers.most_bytes, 0);
    nsa_comm_destroy(comms[i]);
  }
  world_free(&w);
}

static void test_setup(void **state) {
  world w;
  world_init(&w, NULL);
  fake_cuda_state *record = machine_record();
  const int blocks = record->blocks, events = record->events, streams = record->streams;
  for (int32_t size = 1; size <= MOST + 1; size++) {
    open_ranks(&w, size, 20000, PEER_BYTES, agrees);
    ranks_run(w.ranks, size);
    expect_peer_bytes(&w, size > 1 && size <= MOST ? PEER_BYTES : 0);
    if (size > MOST) assert_non_null(strstr(w.log, "at most 8 ranks, here are 9"));
    const int all = record->blocks;
    run_work(&w, agrees); /* again: nothing more */
    ranks_expect_ok(w.ranks, size);
    assert_int_equal(record->blocks, all);
    for (int32_t i = 0; i < size; i++) nsa_comm_destroy(w.ranks[(i + 1) % size].comm);
    assert_int_equal(record->blocks, blocks);
    assert_int_equal(record->events, events);
    assert_int_equal(record->streams, streams);
  }
  world_free(&w);
}

/* The parts of a mailbox follow each other, and end within its memory. */
static void expect_layout(int ranks, int chunks, int32_t most_bytes) {
  const int chunk_bytes = nsai_mailbox_chunk_bytes(most_bytes, chunks);
  const uint64_t room = nsai_mailbox_bytes(ranks, most_bytes);
  int64_t end = 0; /* an offset is an int: it would wrap */
  for (int round = 0; round < 2; round++)
    for (int r = 0; r < ranks; r++)
      for (int c = 0; c < chunks; c++) {
        assert_int_equal(nsai_gather_data(round, r, c, ranks, chunks, chunk_bytes), end);
        end += chunk_bytes;
      }
  assert_int_equal(nsai_gather_flag(0, 0, ranks, chunks, chunk_bytes), end);
  end += ranks * chunks * NSAI_GATHER_SECTOR;
  assert_int_equal(nsai_gather_round(0, 0, ranks, chunks, chunk_bytes), end);
  assert_int_equal(nsai_gather_round(ranks - 1, chunks - 1, ranks, chunks, chunk_bytes),
                   end + 4 * (ranks * chunks - 1));
  end += 4 * ranks * chunks;
  if ((uint64_t)end > room || end > INT32_MAX || chunk_bytes % 16)
    fail_msg("%d ranks, %d chunks of %d bytes for messages of %d: they end at %lld of %llu", ranks,
             chunks, chunk_bytes, most_bytes, (long long)end, (unsigned long long)room);
}

/* A message's pieces fit their chunks, and there are enough of these. */
static void expect_pieces(int chunks, int32_t most_bytes, int64_t bytes) {
  if (bytes < 1 || bytes > most_bytes) return;
  const int32_t piece = nsai_mailbox_piece(bytes, chunks);
  if (piece < 1 || piece % 16 || piece > nsai_mailbox_chunk_bytes(most_bytes, chunks) ||
      (int64_t)piece * chunks < bytes)
    fail_msg("%d chunks for messages of %d bytes: pieces of %lld are of %d bytes", chunks,
             most_bytes, (long long)bytes, piece);
}

static void test_layout(void **state) {
  static const int32_t most[] = { 1, 2047, 2048, 2049, 40000, NSAI_GATHER_MOST };
  for (size_t m = 0; m < sizeof most / sizeof *most; m++) {
    const int32_t most_chunks = nsai_mailbox_most_chunks(most[m]);
    assert_in_range(most_chunks, 1, NSAI_GATHER_CHUNKS);
    for (int chunks = 1; chunks <= most_chunks; chunks++) {
      for (int ranks = 2; ranks <= MOST; ranks++) expect_layout(ranks, chunks, most[m]);
      for (size_t i = 0; i < sizeof most / sizeof *most; i++)
        for (int off = -1; off <= 1; off++) expect_pieces(chunks, most[m], most[i] + off);
    }
  }
}

static void test_disagree(void **state) {
  world w;
  world_init(&w, NULL);
  open_ranks(&w, 3, 20000, PEER_BYTES, agrees);
  w.ranks[2].comm->peers.most_bytes = 5;
  ranks_run(w.ranks, 3);
  ranks_expect_lost(w.ranks, 3, -1, "peer_bytes of the communicator: rank 0 has 40000, rank 2 5");
  w.ranks[2].comm->peers.most_bytes = PEER_BYTES;
  for (int32_t i = 0; i < 3; i++) w.ranks[i].status = NSA_OK; /* they live */
  ranks_run(w.ranks, 3);
  expect_peer_bytes(&w, PEER_BYTES);
  ranks_destroy(w.ranks, 3);
  world_free(&w);
}

#define NO_PID (1 << 30) /* beyond any of Linux */

/* Other processes, as far as the ranks can tell; `gpus`: each on a GPU of its own. */
static void pretend_processes(world *w, nsai_device devices[MOST_RANKS], bool gpus) {
  for (int32_t i = 0; i < w->size; i++) {
    nsa_comm *comm = w->ranks[i].comm;
    comm->process.pid = (uint64_t)(NO_PID + i);
    devices[i] = *comm->place.device;
    if (gpus) snprintf(devices[i].uuid, sizeof devices[i].uuid, "GPU-%d", i);
    comm->place.device = &devices[i];
  }
}

/* Everything goes on without peer memory, and the log says why. */
static void expect_off(world *w, int blocks, const char *why) {
  ranks_run(w->ranks, w->size);
  expect_peer_bytes(w, 0);
  if (!strstr(w->log, why)) fail_msg("no \"%s\": %s", why, w->log);
  run_work(w, rank_exchanges);
  ranks_expect_ok(w->ranks, w->size);
  ranks_destroy(w->ranks, w->size);
  assert_int_equal(machine_record()->blocks, blocks);
  assert_int_equal(machine_record()->ipc_opened, 0);
  w->log[0] = '\0';
}

static void test_refusals(void **state) {
  nsai_device devices[MOST_RANKS];
  world w;
  world_init(&w, NULL);
  fake_cuda_state *record = machine_record();
  const int blocks = record->blocks;
  open_ranks(&w, 4, 20000, PEER_BYTES, agrees);
  w.ranks[2].comm->host_id++;
  expect_off(&w, blocks, "rank 0 says: rank 2 is on another host than rank 0");
  open_ranks(&w, 2, 20000, PEER_BYTES, agrees);
  pretend_processes(&w, devices, false);
  expect_off(&w, blocks, "rank 0 says: ranks 0 and 1 are processes that share a GPU");
  for (int one = 0; one < 2; one++) { /* everything alike but the number; no numbers */
    open_ranks(&w, 2, 20000, PEER_BYTES, agrees);
    assert_true(w.ranks[0].comm->process.number != 0);
    assert_memory_equal(&w.ranks[0].comm->process, &w.ranks[1].comm->process, sizeof(nsai_process));
    for (int i = 0; i < 2; i++) w.ranks[i].comm->process.number = one ? (uint64_t)i + 1 : 0;
    expect_off(&w, blocks, "rank 0 says: ranks 0 and 1 are processes that share a GPU");
  }
  open_ranks(&w, 3, 20000, PEER_BYTES, agrees);
  pretend_processes(&w, devices, true);
  record->refuse_ipc = true;
  expect_off(&w, blocks, "cuIpcOpenMemHandle");
  record->refuse_ipc = false;
  open_ranks(&w, 3, 20000, PEER_BYTES, agrees);
  pretend_processes(&w, devices, true);
  w.ranks[2].comm->host_id++; /* ranks 0 and 1 may have mapped each other */
  expect_off(&w, blocks, "is on another host than rank");
  open_ranks(&w, 2, 20000, PEER_BYTES, agrees);
  record->most_bytes = 100000;
  expect_off(&w, blocks, "cuMemAlloc");
  record->most_bytes = 0;
  open_ranks(&w, 4, 20000, PEER_BYTES, agrees);
  for (int32_t i = 0; i < 4; i++) {
    devices[i] = *w.ranks[i].comm->place.device;
    devices[i].sm_count = 1;
    w.ranks[i].comm->place.device = &devices[i];
  }
  expect_off(&w, blocks, "too few multiprocessors for 4 ranks");
  world_free(&w);
  world_init(&w, "runtime={jit: never, log_level: info}");
  open_ranks(&w, 2, 20000, PEER_BYTES, agrees);
  expect_off(&w, machine_record()->blocks, "runtime.jit is never and no cache has: ranks_gather");
  world_free(&w);
}

/* Rank 0 leaves while the others still have its mailbox open, which it must not free. */
static void expect_kept(world *w, nsai_device devices[MOST_RANKS]) {
  fake_cuda_state *record = machine_record();
  const int blocks = record->blocks;
  open_ranks(w, 3, 50, PEER_BYTES, agrees);
  pretend_processes(w, devices, true);
  ranks_run(w->ranks, 3);
  expect_peer_bytes(w, PEER_BYTES);
  nsai_mailbox *kept[3];
  for (int32_t i = 0; i < 3; i++) kept[i] = w->ranks[i].comm->peers.box[i];
  const double since = nsai_seconds();
  nsa_comm_destroy(w->ranks[0].comm);
  assert_true(nsai_seconds() - since < GRACE);
  assert_int_equal(record->ipc_opened, 4);
  assert_non_null(strstr(w->log, "stay allocated"));
  if (!strstr(nsa_last_error(), "waited")) fail_msg("no wait: %s", nsa_last_error());
  nsai_comm_fail(w->ranks[1].comm,
                 "a test"); /* a dead one does not wait, and frees nothing either */
  nsa_comm_destroy(w->ranks[1].comm);
  nsa_comm_destroy(w->ranks[2].comm);
  assert_int_equal(record->ipc_opened, 0);
  assert_int_equal(record->blocks, blocks + 3);
  for (int i = 0; i < 3; i++) nsai_mailbox_release(kept[i]);
  assert_int_equal(record->blocks, blocks);
}

static void test_processes(void **state) {
  nsai_device devices[MOST_RANKS];
  world w;
  world_init(&w, NULL);
  fake_cuda_state *record = machine_record();
  const int blocks = record->blocks;
  for (int32_t size = 2; size <= MOST; size++) {
    open_ranks(&w, size, 20000, PEER_BYTES, agrees);
    pretend_processes(&w, devices, true);
    ranks_run(w.ranks, size);
    expect_peer_bytes(&w, PEER_BYTES);
    assert_int_equal(record->ipc_opened, size * (size - 1));
    run_work(&w, rank_leaves); /* each waits until all have */
    for (int32_t i = 0; i < size; i++)
      if (w.ranks[i].seconds > GRACE) fail_msg("rank %d left after %f s", i, w.ranks[i].seconds);
    assert_int_equal(record->ipc_opened, 0);
    assert_int_equal(record->blocks, blocks);
  }
  open_ranks(&w, 4, 20000, PEER_BYTES, agrees); /* two processes of two ranks */
  pretend_processes(&w, devices, true);
  for (int32_t i = 0; i < 4; i++) w.ranks[i].comm->process.pid = (uint64_t)(NO_PID + i / 2);
  ranks_run(w.ranks, 4);
  expect_peer_bytes(&w, PEER_BYTES);
  assert_int_equal(record->ipc_opened, 4 * 2);
  run_work(&w, rank_leaves);
  assert_int_equal(record->ipc_opened, 0);
  assert_int_equal(record->blocks, blocks);
  expect_kept(&w, devices);
  world_free(&w);
}

static nsa_status move_nothing(void *user, const void *send, void *recv, uint64_t bytes,
                               nsa_stream stream) {
  (void)user, (void)send, (void)recv, (void)bytes, (void)stream;
  return NSA_OK;
}

/* A process whose end another rank sees before its next gather. */
static void test_ended(void **state) {
  nsai_device devices[MOST_RANKS];
  world w;
  world_init(&w, NULL);
  fake_cuda_state *record = machine_record();
  const int blocks = record->blocks;
  const pid_t child = fork();
  if (!child) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pause();
    _exit(0);
  }
  assert_true(child > 0);
  const int fd = (int)syscall(434, child, 0); /* pidfd_open */
  if (fd < 0) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    world_free(&w);
    skip(); /* this kernel, or a sandbox, does not show processes */
  }
  close(fd);
  open_ranks(&w, 2, 20000, PEER_BYTES, agrees);
  pretend_processes(&w, devices, true);
  w.ranks[1].comm->process.pid = (uint64_t)child;
  ranks_run(w.ranks, 2);
  expect_peer_bytes(&w, PEER_BYTES);
  nsa_comm *comm = w.ranks[0].comm;
  assert_int_equal(comm->peers.watched_count, 1);
  assert_int_equal(w.ranks[1].comm->peers.watched_count, 0); /* there is no process NO_PID */
  machine_expect("alive", nsai_peers_check_processes(comm), NSA_OK, NULL);
  kill(child, SIGKILL);
  assert_int_equal(waitpid(child, NULL, 0), child);
  char message[64] = { 0 }, all[2 * sizeof message];
  const int launches = record->launches;
  machine_expect("ended", nsai_comm_all_gather(comm, message, all, sizeof message, NULL),
                 NSA_E_RANKS, "the process of rank 1 has ended");
  assert_int_equal(record->launches, launches);
  nsai_mailbox *kept[2];
  for (int32_t i = 0; i < 2; i++) kept[i] = w.ranks[i].comm->peers.box[i];
  ranks_destroy(w.ranks, 2);
  for (int32_t i = 0; i < 2; i++) nsai_mailbox_release(kept[i]);
  assert_int_equal(record->ipc_opened, 0);
  assert_int_equal(record->blocks, blocks);
  world_free(&w);
}

/* Two ranks that take each other for processes and have agreed, and their mailboxes. */
static void open_processes(world *w, nsai_device devices[MOST_RANKS], nsai_mailbox *box[2]) {
  open_ranks(w, 2, 50, PEER_BYTES, agrees);
  pretend_processes(w, devices, true);
  ranks_run(w->ranks, 2);
  expect_peer_bytes(w, PEER_BYTES);
  for (int32_t i = 0; i < 2; i++) box[i] = w->ranks[i].comm->peers.box[i];
}

/* A transport whose kernel does not end: nsa_comm_destroy ends all the same, and frees nothing that the kernel
 * or another process uses. */
static void test_stalled(void **state) {
  nsai_device devices[MOST_RANKS];
  world w;
  world_init(&w, NULL);
  fake_cuda_state *record = machine_record();
  const int blocks = record->blocks;
  nsai_mailbox *kept[2];
  open_processes(&w, devices, kept);
  const nsai_agree_room messages = w.ranks[0].comm->agree;
  const nsai_driver *driver = w.ranks[0].comm->place.device->driver;
  w.ranks[0].comm->transport.ops.all_gather = move_nothing;
  record->stalls = 1;
  const double since = nsai_seconds();
  nsa_comm_destroy(w.ranks[0].comm);
  assert_true(nsai_seconds() - since < GRACE);
  record->stalls = 0;
  if (!strstr(nsa_last_error(), "rank 0 of 2: nsa_comm_destroy waited"))
    fail_msg("no wait: %s", nsa_last_error());
  nsa_comm_destroy(w.ranks[1].comm); /* the loopback has told it */
  assert_int_equal(record->ipc_opened, 0);
  assert_int_equal(record->blocks, blocks + 2 + messages.growths);
  for (int32_t i = 0; i < 2; i++) nsai_mailbox_release(kept[i]);
  for (int32_t i = 0; i < messages.growths; i++) {
    driver->cuMemFree((nsai_cu_ptr)(uintptr_t)messages.memory[i].data);
    driver->cuMemFreeHost(messages.memory[i].host);
  }
  assert_int_equal(record->blocks, blocks);
  world_free(&w);
}

/* Aborting a transport ends its kernels. */
static void end_kernels(void *user, const char *reason) {
  (void)user, (void)reason;
  __atomic_store_n(&machine_record()->stalls, 0, __ATOMIC_RELAXED);
}

/* A run waits for a lost rank, and nobody has looked at it: nsa_comm_destroy ends the transport before it closes
 * handles, which waits for the device. */
static void test_in_flight(void **state) {
  nsai_device devices[MOST_RANKS];
  world w;
  world_init(&w, NULL);
  fake_cuda_state *record = machine_record();
  const int blocks = record->blocks, hangs = record->ipc_hangs;
  nsai_mailbox *kept[2];
  open_processes(&w, devices, kept);
  w.ranks[0].comm->transport.give_up = end_kernels;
  record->stalls = 1;
  machine_expect("run", nsai_comm_end(w.ranks[0].comm, NULL), NSA_OK, NULL);
  const double since = nsai_seconds();
  nsa_comm_destroy(w.ranks[0].comm);
  assert_true(nsai_seconds() - since < GRACE);
  if (!strstr(nsa_last_error(), "the oldest of 1 runs has not finished"))
    fail_msg("no wait: %s", nsa_last_error());
  assert_int_equal(record->stalls, 0);
  assert_int_equal(record->ipc_hangs, hangs);
  nsa_comm_destroy(w.ranks[1].comm);
  assert_int_equal(record->ipc_opened, 0);
  for (int32_t i = 0; i < 2; i++) nsai_mailbox_release(kept[i]);
  assert_int_equal(record->blocks, blocks);
  world_free(&w);
}

/* nsa_prepare compiles the kernel beside those of the plan, which do not need it. */
static void test_prepare(void **state) {
  world w;
  world_init(&w, NULL);
  const nsa_problem p = INIT(nsa_problem, .op = NSA_OP_DECODE, .max_kv_len = 1000, .max_seqs = 1,
                             .max_q_len = 1, .page_size = 16, .ranks = 2);
  setenv("FAKE_NVRTC_BAD", "ranks_gather", 1);
  machine_expect("prepare", nsa_prepare(w.ctx, &p, 1, NULL, NULL), NSA_OK, NULL);
  unsetenv("FAKE_NVRTC_BAD");
  assert_non_null(strstr(w.log, "no kernel for peer memory"));
  const int before = machine_record()->compilations;
  machine_expect("again", nsa_prepare(w.ctx, &p, 1, NULL, NULL), NSA_OK, NULL);
  assert_int_equal(machine_record()->compilations, before + 1);
  world_free(&w);
}

/* The context of a host, as another GPU of this process has it. */
static nsai_cu_context other_context(const world *w) {
  nsai_cu_context found = NULL;
  setenv("FAKE_CUDA_CURRENT", "1", 1);
  w->ranks[0].comm->place.device->driver->cuCtxGetCurrent(&found);
  unsetenv("FAKE_CUDA_CURRENT");
  assert_non_null(found);
  return found;
}

/* Ranks of one process on two GPUs, each of which is given access to the other. */
static void test_contexts(void **state) {
  nsai_device other;
  world w;
  world_init(&w, NULL);
  fake_cuda_state *record = machine_record();
  const int blocks = record->blocks, before = record->peer_contexts;
  for (int can = 0; can < 2; can++) {
    open_ranks(&w, 3, 20000, PEER_BYTES, agrees);
    other = *w.ranks[1].comm->place.device;
    other.context = other_context(&w);
    other.ordinal = 2;
    snprintf(other.uuid, sizeof other.uuid, "GPU-other");
    w.ranks[1].comm->place.device = &other;
    if (!can) {
      setenv("FAKE_CUDA_NO_PEERS", "1", 1);
      expect_off(&w, blocks, "GPU 1 cannot access the memory of GPU 2");
      unsetenv("FAKE_CUDA_NO_PEERS");
      assert_int_equal(record->peer_contexts, before);
      continue;
    }
    ranks_run(w.ranks, 3);
    expect_peer_bytes(&w, PEER_BYTES);
    assert_int_equal(record->peer_contexts, before + 4); /* 0 and 2 to 1, 1 to both */
    ranks_destroy(w.ranks, 3);
    assert_int_equal(record->blocks, blocks);
  }
  world_free(&w);
}

/* ---- gathers, on the emulator ---- */

/* What all ranks do; the same numbers on each. */
static struct {
  uint64_t seed;
  int32_t rounds;
  int32_t most; /* bytes */
  bool slow;    /* ranks wait now and then */
} task;

static uint64_t mix(uint64_t x) {
  x ^= x >> 31;
  x *= UINT64_C(0x9e3779b97f4a7c15);
  return x ^ x >> 29;
}

static unsigned char byte_of(int32_t from, int32_t round, uint64_t at) {
  return (unsigned char)mix((uint64_t)from * 7919 + (uint64_t)round * 104729 + at * 31 + 1);
}

/* Sizes that all ranks draw alike, and addresses that each draws by itself. */
static uint64_t draw_bytes(int32_t round) {
  const uint64_t x = mix(task.seed + (uint64_t)round);
  static const uint64_t edges[] = {
    0, 1, 3, 15, 16, 17, 2047, 2048, 2049, 4096, 33024, PEER_BYTES
  };
  const uint64_t bytes =
      x % 3 ? mix(x) % (uint64_t)(task.most + 1) : edges[mix(x) % (sizeof edges / sizeof *edges)];
  return bytes < (uint64_t)task.most ? bytes : (uint64_t)task.most;
}

static void gather_once(rank *r, int32_t round, unsigned char *memory, nsa_stream stream) {
  const uint64_t bytes = draw_bytes(round), all = bytes * (uint64_t)r->size;
  const uint64_t own = mix(task.seed + (uint64_t)(round * MOST_RANKS + r->number));
  static const uint64_t shifts[] = { 0, 0, 0, 4, 8, 1, 6, 15 };
  unsigned char *recv = memory + 16 + shifts[own % 8], *mine = recv + bytes * (uint64_t)r->number;
  unsigned char *send = recv + all + 32 + shifts[own / 8 % 8];
  if (own / 64 % 2) send = mine;
  memset(memory, 0xa5, all + 64);
  for (uint64_t i = 0; i < bytes; i++) send[i] = byte_of(r->number, round, i);
  if (task.slow && own / 128 % 4 == 0) usleep((useconds_t)(own / 512 % 3000));
  rank_note(r, nsai_comm_all_gather(r->comm, send, recv, bytes, stream));
  for (int32_t from = 0; from < r->size; from++)
    for (uint64_t i = 0; i < bytes; i++)
      r->wrong |= recv[(uint64_t)from * bytes + i] != byte_of(from, round, i);
  r->wrong |= recv[-1] != 0xa5 || (send != recv + all && recv[all] != 0xa5);
}

static void gathers(rank *r) {
  nsai_comm_entered entered;
  unsigned char *memory =
      aligned_alloc(16, ((size_t)task.most * (size_t)(r->size + 1) + 256) / 16 * 16);
  rank_note(r, nsai_comm_enter(&r->comm->place, &entered));
  for (int32_t i = 0; i < task.rounds && !r->status; i++) gather_once(r, i, memory, (nsa_stream)r);
  nsai_comm_leave(&r->comm->place, &entered);
  rank_note(r, nsa_comm_check(r->comm));
  rank_note(r, nsa_comm_wait(r->comm, NULL, 0));
  free(memory);
}

static int launches_of_gathers(void) { return machine_record()->launches; }

static void test_gathers(void **state) {
  nsai_device devices[MOST_RANKS];
  world w;
  world_init(&w, NULL);
  for (int32_t size = 2; size <= MOST; size++)
    for (int slow = 0; slow < 2; slow++) {
      open_ranks(&w, size, 60000, PEER_BYTES, agrees);
      if (size % 2) pretend_processes(&w, devices, true);
      ranks_run(w.ranks, size);
      expect_peer_bytes(&w, PEER_BYTES);
      task.seed = (uint64_t)(size * 2 + slow);
      task.rounds = slow ? 40 : size == 2 ? 400 : 120;
      task.most = slow        ? PEER_BYTES + 500
                  : size == 2 ? 600
                              : 5000; /* the largest go by the loopback */
      task.slow = slow;
      int expected = 0;
      for (int32_t i = 0; i < task.rounds; i++) {
        const uint64_t bytes = draw_bytes(i);
        expected += bytes > 0 && bytes <= PEER_BYTES;
      }
      const int before = launches_of_gathers();
      run_work(&w, gathers);
      ranks_expect_ok(w.ranks, size);
      assert_int_equal(launches_of_gathers() - before, expected * size);
      run_work(&w, rank_leaves);
    }
  world_free(&w);
}

/* A graph counts rounds as launches do: replayed between other gathers. */
static void *graph[MOST_RANKS];
static unsigned char *graph_memory[MOST_RANKS];
enum { GRAPH_BYTES = 3000, REPLAYS = 30 };

static void replays(rank *r) {
  nsai_comm_entered entered;
  const nsai_driver *driver = r->comm->place.device->driver;
  unsigned char *memory = graph_memory[r->number], *send = memory + GRAPH_BYTES * r->size;
  unsigned char *other =
      aligned_alloc(16, ((size_t)task.most * (size_t)(r->size + 1) + 256) / 16 * 16);
  rank_note(r, nsai_comm_enter(&r->comm->place, &entered));
  for (int32_t n = 0; n < REPLAYS && !r->status; n++) {
    for (uint64_t i = 0; i < GRAPH_BYTES; i++) send[i] = byte_of(r->number, n, i);
    memset(memory, 0, (size_t)GRAPH_BYTES * (size_t)r->size);
    if (driver->cuGraphLaunch(graph[r->number], (nsa_stream)r)) r->wrong = true;
    for (int32_t from = 0; from < r->size; from++)
      for (uint64_t i = 0; i < GRAPH_BYTES; i++)
        r->wrong |= memory[(uint64_t)from * GRAPH_BYTES + i] != byte_of(from, n, i);
    if (n % 3 == 0) gather_once(r, n, other, (nsa_stream)r);
  }
  nsai_comm_leave(&r->comm->place, &entered);
  free(other);
}

static void capture(rank *r) {
  nsai_comm_entered entered;
  nsai_cu_graph made;
  nsai_cu_graph_exec exec;
  const nsai_driver *driver = r->comm->place.device->driver;
  unsigned char *memory =
      aligned_alloc(16, (size_t)GRAPH_BYTES * (size_t)(r->size + 1) / 16 * 16 + 16);
  graph_memory[r->number] = memory;
  assert_int_equal(nsai_comm_enter(&r->comm->place, &entered), NSA_OK);
  assert_int_equal(driver->cuStreamBeginCapture((nsa_stream)r, NSAI_CU_CAPTURE_THREAD_LOCAL), 0);
  machine_expect("captured",
                 nsai_comm_all_gather(r->comm, memory + GRAPH_BYTES * r->size, memory, GRAPH_BYTES,
                                      (nsa_stream)r),
                 NSA_OK, NULL);
  assert_int_equal(driver->cuStreamEndCapture((nsa_stream)r, &made), 0);
  assert_int_equal(driver->cuGraphInstantiateWithFlags(&exec, made, 0), 0);
  driver->cuGraphDestroy(made);
  nsai_comm_leave(&r->comm->place, &entered);
  graph[r->number] = exec;
}

static void test_graph(void **state) {
  world w;
  world_init(&w, NULL);
  open_ranks(&w, 3, 60000, PEER_BYTES, agrees);
  ranks_run(w.ranks, 3);
  expect_peer_bytes(&w, PEER_BYTES);
  task.seed = 5;
  task.most = 5000;
  task.slow = false;
  for (int32_t i = 0; i < 3; i++) capture(&w.ranks[i]);
  run_work(&w, replays);
  ranks_expect_ok(w.ranks, 3);
  for (int32_t i = 0; i < 3; i++) {
    w.ranks[i].comm->place.device->driver->cuGraphExecDestroy(graph[i]);
    free(graph_memory[i]);
  }
  ranks_destroy(w.ranks, 3);
  world_free(&w);
}

/* ---- faults, on the emulator ---- */

enum { LOST = 2, SIZE = 4 };

static void gathers_but_for_one(rank *r) {
  task.rounds = 4;
  if (r->number == LOST) return;
  gathers(r);
}

/* A rank that never comes. The others name it, all at about the same time, and nothing hangs. */
static void test_lost(void **state) {
  world w;
  world_init(&w, NULL);
  const int blocks = machine_record()->blocks;
  open_ranks(&w, SIZE, 300, PEER_BYTES, agrees);
  ranks_run(w.ranks, SIZE);
  expect_peer_bytes(&w, PEER_BYTES);
  task.seed = 3;
  task.most = 4000;
  task.slow = false;
  run_work(&w, gathers_but_for_one);
  int named = 0;
  for (int32_t i = 0; i < SIZE; i++) {
    if (i == LOST) continue;
    rank_expect_lost(&w.ranks[i], "a gather through peer memory has waited for rank");
    assert_true(w.ranks[i].seconds < GRACE);
    named += strstr(w.ranks[i].text, "for rank 2 longer") != NULL;
  }
  assert_true(named > 0);
  for (int32_t i = 0; i < SIZE; i++)
    if (i != LOST)
      machine_expect("dead", nsai_comm_all_gather(w.ranks[i].comm, w.ranks, w.ranks, 1, NULL),
                     NSA_E_RANKS, "rank");
  ranks_destroy(w.ranks, SIZE);
  assert_int_equal(machine_record()->blocks, blocks);
  world_free(&w);
}

/* A communicator that ends lets its kernels go, long before their timeout. */
static void test_stop(void **state) {
  world w;
  world_init(&w, NULL);
  open_ranks(&w, 2, 60000, PEER_BYTES, agrees);
  ranks_run(w.ranks, 2);
  expect_peer_bytes(&w, PEER_BYTES);
  task.rounds = 3;
  task.most = 4000;
  w.ranks[1].work = gathers;
  rank_start(&w.ranks[1]);
  usleep(50000);
  nsai_comm_fail(w.ranks[0].comm, "a test");
  const double since = nsai_seconds();
  machine_expect("check", nsa_comm_check(w.ranks[1].comm), NSA_E_RANKS, "another rank gave up");
  rank_join(&w.ranks[1]);
  assert_true(nsai_seconds() - since < GRACE);
  assert_int_equal(w.ranks[1].status, NSA_E_RANKS);
  ranks_destroy(w.ranks, 2);
  world_free(&w);
}

int main(void) {
  const struct CMUnitTest setup[] = {
    cmocka_unit_test(test_options),   cmocka_unit_test(test_setup),
    cmocka_unit_test(test_layout),    cmocka_unit_test(test_disagree),
    cmocka_unit_test(test_refusals),  cmocka_unit_test(test_processes),
    cmocka_unit_test(test_ended),     cmocka_unit_test(test_stalled),
    cmocka_unit_test(test_in_flight), cmocka_unit_test(test_prepare),
    cmocka_unit_test(test_contexts),
  };
  const struct CMUnitTest runs[] = {
    cmocka_unit_test(test_gathers),
    cmocka_unit_test(test_graph),
    cmocka_unit_test(test_lost),
    cmocka_unit_test(test_stop),
  };
  return getenv("PEERS_RUN") ? cmocka_run_group_tests(runs, NULL, NULL)
                             : cmocka_run_group_tests(setup, NULL, NULL);
}
