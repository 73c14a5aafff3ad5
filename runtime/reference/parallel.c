/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Threads of one call: they are started, take items from a counter, and are joined. Nothing
 * persists between calls, so a host may fork or unload the library between them.
 */
#include "reference/internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#define MAX_WORKERS 256 /* bounds an array on the stack; more threads bring no gain */

typedef struct job {
  nsai_ref_item_fn run;
  void *context;
  int64_t items;
  _Atomic int64_t next;
} job;

typedef struct worker {
  job *job;
  int index;
  pthread_t thread;
} worker;

int nsai_ref_worker_count(int threads, int64_t items) {
  int64_t count = threads < 1 ? sysconf(_SC_NPROCESSORS_ONLN) : threads;
  if (count > MAX_WORKERS) count = MAX_WORKERS;
  if (count > items) count = items;
  return count < 1 ? 1 : (int)count;
}

static void *work(void *argument) {
  worker *self = argument;
  job *shared = self->job;
  for (;;) {
    int64_t item = atomic_fetch_add(&shared->next, 1);
    if (item >= shared->items) return NULL;
    shared->run(shared->context, self->index, item);
  }
}

void nsai_ref_parallel(int workers, int64_t items, nsai_ref_item_fn run, void *context) {
  job shared = { run, context, items, 0 };
  worker pool[MAX_WORKERS];
  int started = 1;
  /* The host's signal handlers must not run on these threads. */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (; started < workers; started++) {
    pool[started] = (worker){ .job = &shared, .index = started };
    /* If the system allows no more threads, those that run do all the work. */
    if (pthread_create(&pool[started].thread, NULL, work, &pool[started])) break;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pool[0] = (worker){ .job = &shared, .index = 0 };
  work(&pool[0]);
  for (int i = 1; i < started; i++) pthread_join(pool[i].thread, NULL);
}
