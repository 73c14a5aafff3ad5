/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/parallel.h"

#include <pthread.h>
#include <stdatomic.h>

#define MAX_THREADS 64 /* more than a process gets on any machine that runs the checks */

typedef struct loop {
  void (*fn)(void *user, int64_t index);
  void *user;
  int64_t count;
  atomic_llong next;
} loop;

static void *work(void *argument) {
  loop *l = argument;
  for (;;) {
    int64_t index = atomic_fetch_add(&l->next, 1);
    if (index >= l->count) return NULL;
    l->fn(l->user, index);
  }
}

void nsai_verify_parallel(int threads, int64_t count, void (*fn)(void *user, int64_t index),
                          void *user) {
  loop l = { .fn = fn, .user = user, .count = count };
  pthread_t id[MAX_THREADS];
  int started = 0;
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  /* The caller works too, so a thread that cannot be started leaves its work to the others. */
  while (started < threads - 1 && started + 1 < count)
    if (pthread_create(&id[started], NULL, work, &l) == 0)
      started++;
    else
      break;
  work(&l);
  for (int i = 0; i < started; i++) pthread_join(id[i], NULL);
}
