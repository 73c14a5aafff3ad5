/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Visiting, verifying and evicting entries. Other processes may add and remove files meanwhile,
 * so a file that has disappeared is no error.
 */
#include "cache/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- visiting ---- */

const char *nsai_cache_check_file(const char *name, const void *data, size_t size,
                                  nsai_cache_entry *entry) {
  char digest[NSAI_DIGEST_CHARS], expected[NSAI_CACHE_NAME_CHARS];
  const char *problem = nsai_cache_entry_decode(data, size, entry);
  if (problem) return problem;
  nsai_digest_hex(entry->key, entry->key_length, digest);
  nsai_cache_entry_name(digest, entry->compiler_id, expected);
  return !name || strcmp(name, expected) == 0 ? NULL : "holds another kernel than its name says";
}

/* Visits one file; `*go_on` false: the callback wants no more. */
static nsa_status visit_file(nsai_cache *cache, int32_t tier, const char *name,
                             nsai_cache_item_fn fn, void *user, bool *go_on) {
  struct stat st;
  nsai_cache_entry entry = { 0 };
  nsai_cache_item item = { .folder = cache->folders.info[tier].path, .file = name };
  char *data, fault[NSAI_FILES_FAULT_CHARS];
  if (!nsai_cache_is_entry_name(name)) {
    item.foreign = true;
    item.problem = "is no entry: it has the name of no kernel";
    *go_on = fn(user, &item);
    return NSA_OK;
  }
  switch (nsai_files_read_trusted(cache->folders.fd[tier], name, NSAI_CACHE_ENTRY_MAX, &data, &st,
                                  fault)) {
  case NSAI_FILES_MISSING: return NSA_OK;
  case NSAI_FILES_UNREADABLE:
    if (errno == ENOMEM) return nsai_fail_nomem(name, NSAI_CACHE_ENTRY_MAX);
    item.unreadable = true; /* fall through */
  case NSAI_FILES_DAMAGED: item.problem = fault; break;
  case NSAI_FILES_PRESENT:
    item.problem = nsai_cache_check_file(name, data, (size_t)st.st_size, &entry);
  }
  item.bytes = (uint64_t)st.st_size;
  if (!item.problem) {
    item.used_at = entry.used_at;
    item.entry = entry.entry;
    item.arch = entry.arch;
    item.compiler_id = entry.compiler_id;
    item.key = entry.key;
    item.key_length = entry.key_length;
    item.registers = entry.registers;
    item.shared_bytes = entry.shared_bytes;
    item.data = data;
  }
  *go_on = fn(user, &item);
  free(data);
  return NSA_OK;
}

static nsa_status visit_tier(nsai_cache *cache, int32_t tier, nsai_cache_item_fn fn, void *user,
                             bool *go_on) {
  char **names;
  size_t count;
  NSAI_TRY(nsai_dirs_list(cache->folders.fd[tier], CACHE_ENDING, false, &names, &count));
  nsa_status status = NSA_OK;
  for (size_t i = 0; i < count && *go_on && status == NSA_OK; i++)
    status = visit_file(cache, tier, names[i], fn, user, go_on);
  nsai_dirs_free_list(names, count);
  return status;
}

nsa_status nsai_cache_each(nsai_cache *cache, nsai_cache_item_fn fn, void *user) {
  bool go_on = true;
  for (int32_t tier = 0; tier < cache->folders.tiers && go_on; tier++)
    if (cache->folders.fd[tier] >= 0) NSAI_TRY(visit_tier(cache, tier, fn, user, &go_on));
  return NSA_OK;
}

typedef struct verify_counts {
  nsai_cache *cache;
  int64_t good, bad;
} verify_counts;

static bool verify_item(void *user, const nsai_cache_item *item) {
  verify_counts *counts = user;
  nsai_cache *cache = counts->cache;
  struct stat st;
  if (!item->problem) {
    counts->good++;
    return true;
  }
  counts->bad += !item->foreign;
  bool gone = !item->foreign && !item->unreadable && item->folder == cache->folders.info[0].path &&
              nsai_dirs_writable(&cache->folders) &&
              fstatat(cache->folders.fd[0], item->file, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
              nsai_files_unlink_same(cache->folders.fd[0], item->file, &st);
  nsai_log(cache->logger, NSA_LOG_INFO, "cache", "%s/%s: %s%s", item->folder, item->file,
           item->problem, gone ? "; removed" : "");
  return true;
}

nsa_status nsai_cache_verify(nsai_cache *cache, int64_t *good, int64_t *bad) {
  verify_counts counts = { cache, 0, 0 };
  NSAI_TRY(nsai_cache_each(cache, verify_item, &counts));
  *good = counts.good;
  *bad = counts.bad;
  return NSA_OK;
}

/* ---- eviction ---- */

typedef struct aged_file {
  char *name; /* borrowed from the list */
  uint64_t bytes;
  int64_t used_at;
} aged_file;

/* What a collection did. */
typedef struct collection {
  int64_t removed;
  uint64_t left;
  int64_t stuck; /* files that could be neither examined nor removed */
  char why[256]; /* of the first of them */
} collection;

/* Notes a file that stays although it should be looked at, or go. */
static void note_stuck(collection *c, const char *name) {
  if (c->stuck++ == 0) snprintf(c->why, sizeof c->why, "%s: %s", name, strerror(errno));
}

/* The time of the last use; 0 for a file that is no entry. False with errno: the file cannot be read
 * now. */
static bool read_stamp(int folder, const char *name, int64_t *used_at) {
  unsigned char stamp[NSAI_CACHE_STAMP_BYTES];
  *used_at = 0;
  int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno == ENOENT || errno == ELOOP || errno == ENXIO;
  ssize_t got = pread(fd, stamp, sizeof stamp, NSAI_CACHE_STAMP_AT);
  int cause = errno;
  if (got == (ssize_t)sizeof stamp) *used_at = nsai_cache_stamp_decode(stamp);
  close(fd);
  errno = cause;
  return got >= 0;
}

/* Oldest first; equal stamps are ordered by name, so that all processes agree. */
static int compare_age(const void *a, const void *b) {
  const aged_file *x = a, *y = b;
  if (x->used_at != y->used_at) return x->used_at < y->used_at ? -1 : 1;
  return strcmp(x->name, y->name);
}

/* Whether a file with the name of an entry is one, as far as that can be seen without reading all of
 * them: a regular file. Of an entry with several names only its own counts, so that its bytes count once, and
 * that evicting it makes room. */
static bool is_entry(int folder, const char *name, const struct stat *st) {
  nsai_cache_entry entry;
  struct stat opened;
  char *data, fault[NSAI_FILES_FAULT_CHARS];
  if (!S_ISREG(st->st_mode)) return false;
  if (st->st_nlink < 2) return true;
  /* What cannot be read, or is damaged, takes room under one of its names at least. */
  if (nsai_files_read_trusted(folder, name, NSAI_CACHE_ENTRY_MAX, &data, &opened, fault) !=
      NSAI_FILES_PRESENT)
    return true;
  bool other = nsai_cache_entry_decode(data, (size_t)opened.st_size, &entry) == NULL &&
               nsai_cache_check_file(name, data, (size_t)opened.st_size, &entry) != NULL;
  free(data);
  return !other;
}

/* Sums the sizes into `c->left`; with `aged`, lists what may be evicted. Also removes temporary files
 * of dead processes. */
static void measure(int folder, char **names, size_t count, aged_file *aged, size_t *files,
                    collection *c) {
  c->left = 0;
  c->stuck = 0;
  *files = 0;
  for (size_t i = 0; i < count; i++) {
    struct stat st;
    aged_file file = { .name = names[i] };
    if (nsai_dirs_is_temporary(names[i])) {
      if (!nsai_files_remove_abandoned(folder, names[i])) note_stuck(c, names[i]);
      continue;
    }
    if (!nsai_cache_is_entry_name(names[i])) continue;
    if (fstatat(folder, names[i], &st, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno != ENOENT) note_stuck(c, names[i]);
      continue;
    }
    if (!is_entry(folder, names[i], &st)) continue;
    file.bytes = (uint64_t)st.st_size;
    c->left += file.bytes;
    if (!aged) continue;
    if (read_stamp(folder, names[i], &file.used_at))
      aged[(*files)++] = file;
    else
      note_stuck(c, names[i]); /* it may be the one that was used last */
  }
}

static void evict(int folder, aged_file *aged, size_t files, uint64_t limit, collection *c) {
  qsort(aged, files, sizeof *aged, compare_age);
  for (size_t i = 0; i < files && c->left > limit; i++) {
    if (unlinkat(folder, aged[i].name, 0) == 0) {
      c->removed++;
    } else if (errno != ENOENT) {
      note_stuck(c, aged[i].name);
      continue;
    }
    c->left -= aged[i].bytes;
  }
}

/* Reduces the user's folder to `limit` bytes. Reads the time stamps only when there is something
 * to evict. */
static nsa_status collect(nsai_cache *cache, uint64_t limit, collection *c) {
  char **names;
  size_t count, files;
  memset(c, 0, sizeof *c);
  NSAI_TRY(nsai_dirs_list(cache->folders.fd[0], CACHE_ENDING, true, &names, &count));
  measure(cache->folders.fd[0], names, count, NULL, &files, c);
  if (c->left > limit) {
    aged_file *aged = malloc(count * sizeof *aged);
    if (!aged) {
      nsai_dirs_free_list(names, count);
      return nsai_fail_nomem("the list of cache entries by age", count * sizeof *aged);
    }
    measure(cache->folders.fd[0], names, count, aged, &files, c);
    evict(cache->folders.fd[0], aged, files, limit, c);
    free(aged);
  }
  nsai_dirs_free_list(names, count);
  pthread_mutex_lock(&cache->lock);
  cache->disk_bytes = c->left;
  cache->scanned = true;
  pthread_mutex_unlock(&cache->lock);
  return NSA_OK;
}

nsa_status nsai_cache_gc(nsai_cache *cache, uint64_t limit, int64_t *removed,
                         uint64_t *bytes_left) {
  collection c;
  *removed = 0;
  *bytes_left = 0;
  if (!nsai_dirs_writable(&cache->folders))
    return nsai_fail(NSA_E_CACHE, "the cache folder %s cannot be cleaned: %s",
                     cache->folders.tiers ? cache->folders.info[0].path : "(none)",
                     cache->folders.tiers ? cache->folders.info[0].state : "no folder");
  NSAI_TRY(collect(cache, limit, &c));
  *removed = c.removed;
  *bytes_left = c.left;
  if (!c.stuck) return NSA_OK;
  return nsai_fail(NSA_E_CACHE,
                   "%" PRId64 " %s in %s can be neither examined nor removed (%s): make the folder "
                   "and its files readable and writable",
                   c.stuck, c.stuck == 1 ? "file" : "files", cache->folders.info[0].path, c.why);
}

void nsai_cache_make_room(nsai_cache *cache, uint64_t bytes) {
  collection c;
  pthread_mutex_lock(&cache->lock);
  cache->disk_bytes += bytes;
  bool full = !cache->scanned || cache->disk_bytes > cache->limit;
  pthread_mutex_unlock(&cache->lock);
  if (!full) return;
  /* Frees a tenth more than needed, so that a full cache is not listed again at every store. */
  uint64_t target = cache->limit > bytes ? cache->limit - bytes : 0;
  if (collect(cache, target, &c) == NSA_OK && c.removed > 0)
    collect(cache, target - target / 10, &c);
  pthread_mutex_lock(&cache->lock);
  cache->disk_bytes += bytes;
  pthread_mutex_unlock(&cache->lock);
}
