/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#ifndef NSAI_BASE_LOCK_H
#define NSAI_BASE_LOCK_H

#include <pthread.h>
#include <stdbool.h>

/* Whether nobody holds a lock. Whoever destroys what a lock guards is alone, but for a child of
 * fork(): where another thread of its parent held the lock, what it guards is half changed, and may
 * point to memory that has been given back. The child leaves it as it is. */
static inline bool nsai_lock_is_free(pthread_mutex_t *lock) {
  if (pthread_mutex_trylock(lock)) return false;
  pthread_mutex_unlock(lock);
  return true;
}

#endif /* NSAI_BASE_LOCK_H */
