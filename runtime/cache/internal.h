/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the files of the cache share: cache.c (find, store), evict.c (visiting, eviction),
 * import.c.
 */
#ifndef NSAI_CACHE_INTERNAL_H
#define NSAI_CACHE_INTERNAL_H

#include "base/files.h"
#include "cache/cache.h"
#include "cache/dirs.h"
#include "cache/entry.h"

#include <pthread.h>

/* Ending of the entries' file names. */
#define CACHE_ENDING ".nsak"

typedef struct memory_entry {
  struct memory_entry *next;
  char digest[NSAI_DIGEST_CHARS];
  nsai_kernel_image image;
} memory_entry;

/* Lock rule: `lock` protects memory, memory_bytes, disk_bytes, scanned; `dirs` has its own lock.
 * File operations hold neither. */
struct nsai_cache {
  nsai_dirs folders;
  nsai_logger *logger;
  uint64_t limit;
  pthread_mutex_t lock;
  memory_entry *memory; /* most recently used first */
  uint64_t memory_bytes;
  /* estimated size of the user's folder: counted once, then own stores are added */
  uint64_t disk_bytes;
  bool scanned;
};

/* Verifies the bytes of a file without knowing its key: the entry must be complete and match the
 * file's name, which may be NULL. Returns NULL, or what is wrong. */
const char *nsai_cache_check_file(const char *name, const void *data, size_t size,
                                  nsai_cache_entry *entry);

/* Evicts entries before `bytes` more are written. */
void nsai_cache_make_room(nsai_cache *cache, uint64_t bytes);

#endif /* NSAI_CACHE_INTERNAL_H */
