/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the cache's files share: cache.c (find, store), cache_place.c (which folders),
 * cache_upkeep.c (visiting, eviction).
 */
#ifndef NSAI_CACHE_IMPL_H
#define NSAI_CACHE_IMPL_H

#include "cache.h"
#include "cache_entry.h"
#include "fs.h"

#include <pthread.h>

#define CACHE_TIERS_MAX 4

/* Each kind of trouble is reported once per cache; repeats go to DEBUG. */
enum {
  WARNED_PLACE = 1, /* no folder, or a refused one */
  WARNED_BAD = 2,   /* a bad entry */
  WARNED_WRITE = 4, /* writing failed */
  WARNED_UNFIT = 8  /* a good entry whose image the driver does not load */
};

typedef struct memory_entry {
  struct memory_entry *next;
  char digest[NSAI_DIGEST_CHARS];
  nsai_kernel_image image;
} memory_entry;

/* Lock rule: `lock` guards info[].state and .writable, warned, memory, memory_bytes, disk_bytes,
 * scanned. Descriptors and paths are constant after open. File operations run without it. */
struct nsai_cache {
  nsai_logger *logger;
  nsai_cache_mode mode;
  bool look; /* no folder is made */
  uint64_t limit;
  int32_t tiers;
  nsai_cache_tier_info info[CACHE_TIERS_MAX];
  int fd[CACHE_TIERS_MAX]; /* "kernels" in the tier's folder; -1: not used */
  pthread_mutex_t lock;
  unsigned warned;
  memory_entry *memory; /* most recently used first */
  uint64_t memory_bytes;
  uint64_t disk_bytes; /* estimate of the user's folder: counted once, own stores added */
  bool scanned;
};

/* Warns once per kind. */
void nsai_cache_warn(nsai_cache *cache, unsigned kind, const char *format, ...) NSAI_PRINTF(3, 4);

/* Finds and opens the folders. */
void nsai_cache_place(nsai_cache *cache, const nsai_cache_options *options);

/* Whether the user's folder may be written now. */
bool nsai_cache_writable(nsai_cache *cache);

/* After a failed write: no more attempts by this cache. */
void nsai_cache_stop_writing(nsai_cache *cache, const char *why);

/* The names of a folder's entries, sorted; temporary files too when `all`. The caller frees each
 * and the list. */
nsa_status nsai_cache_list(int folder, bool all, char ***names, size_t *count);
void nsai_cache_free_list(char **names, size_t count);

/* Makes room before `bytes` more are written. */
void nsai_cache_make_room(nsai_cache *cache, uint64_t bytes);

#endif /* NSAI_CACHE_IMPL_H */
