/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks/fork.h"

#include "base/duration.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What became of a process that has ended. `ended`: by this program. */
static void note_end(chk_shared *shared, int32_t rank, int state, bool ended) {
  if (WIFEXITED(state) && !WEXITSTATUS(state) && shared->passed[rank]) return;
  atomic_store(&shared->broken, 1);
  if (!shared->status[rank] && WIFSIGNALED(state) && !ended)
    nsai_verify_fail(&shared->result[rank], "rank %d: its process ended by signal %d", rank,
                     WTERMSIG(state));
}

static void wait_all(chk_shared *shared, pid_t *pids, int32_t killed, double seconds) {
  const double start = nsai_seconds();
  const struct timespec nap = { 0, 5000000 };
  int32_t left = shared->size;
  bool ended = false;
  while (left > 0) {
    for (int32_t i = 0; i < shared->size; i++) {
      int state = 0;
      if (!pids[i] || waitpid(pids[i], &state, WNOHANG) != pids[i]) continue;
      pids[i] = 0;
      left--;
      if (i != killed) note_end(shared, i, state, ended);
    }
    if (left && !ended && nsai_seconds() - start > seconds) {
      ended = true;
      for (int32_t i = 0; i < shared->size; i++) {
        if (!pids[i]) continue;
        nsai_verify_fail(&shared->result[i], "rank %d: hung, and was ended after %.0f s", i,
                         seconds);
        kill(pids[i], SIGKILL);
      }
    }
    nanosleep(&nap, NULL);
  }
}

/* A rank that waits for others may wait long: it ends with the program that would end it. The
 * parent may be gone before the signal is asked for. */
static void end_with(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
}

/* The parent writes nothing of a process' output, and does not see that it was lost. */
static void flush_all(chk_shared *shared, int32_t rank) {
  if (!shared->status[rank] && (fflush(NULL) || ferror(stdout)))
    chk_shared_stop(shared, rank, nsai_fail(NSA_E_IO, "cannot write: %s", strerror(errno)));
}

nsa_status chk_fork_ranks(chk_shared *shared, void (*live)(void *user, int32_t rank), void *user,
                          int32_t killed, double seconds) {
  pid_t pids[NSA_MAX_RANKS] = { 0 };
  const pid_t parent = getpid();
  fflush(NULL);
  for (int32_t i = 0; i < shared->size; i++) {
    pids[i] = fork();
    if (pids[i] == 0) {
      end_with(parent);
      live(user, i);
      flush_all(shared, i);
      _exit(0);
    }
    if (pids[i] < 0) {
      const int error = errno;
      for (int32_t k = 0; k < i; k++) kill(pids[k], SIGKILL);
      for (int32_t k = 0; k < i; k++) waitpid(pids[k], NULL, 0);
      return nsai_fail(NSA_E_INTERNAL, "cannot fork: %s", strerror(error));
    }
  }
  wait_all(shared, pids, killed, seconds);
  return chk_shared_status(shared);
}

bool chk_fork_plans(chk_shared *shared, int32_t rank, const chk_plans_options *options,
                    chk_plans **out) {
  chk_plans_options own = *options;
  own.device = (own.device < 0 ? 0 : own.device) + rank;
  *out = NULL;
  shared->status[rank] = chk_plans_create(&own, out);
  if (shared->status[rank])
    nsai_verify_skip(&shared->result[rank], "rank %d: %s", rank, nsa_last_error());
  return chk_shared_all_well(shared, rank, shared->status[rank]);
}
