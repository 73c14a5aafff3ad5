/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Lookup and storage. There is one file per entry (entry.h), named by digests. A file is used
 * only after its checksum, its full key and its compiler id match. A truncated file, a collision
 * of names or a file copied to another name is thus a miss.
 *
 * The compiler id is in the name beside the key's digest, because it can be unknown: a machine
 * with a filled cache need not have NVRTC. Then any entry of the key is accepted.
 */
#include "cache/internal.h"

#include "base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A plan has about ten kernels of 40 to 160 KB, so this holds the kernels of dozens of plans. */
#define MEMORY_LIMIT ((uint64_t)32 << 20)

/* Uses are recorded to the hour: enough to distinguish old from new, and few hits cause a write. */
#define STAMP_SECONDS 3600

/* Entries have a subfolder of their own; tuning records have another one beside it. */
static const nsai_dirs_kind kernels = { "kernels", "cache", "compiled kernels", "new kernels" };

/* ---- open, close ---- */

nsa_status nsai_cache_open(const nsai_cache_options *options, nsai_cache **out) {
  *out = NULL;
  nsai_cache *cache = calloc(1, sizeof *cache);
  if (!cache) return nsai_fail_nomem("the kernel cache", sizeof *cache);
  pthread_mutex_init(&cache->lock, NULL);
  cache->logger = options->logger;
  cache->limit = options->limit;
  nsai_dirs_open(&cache->folders, options, &kernels);
  *out = cache;
  return NSA_OK;
}

static void free_memory(memory_entry *entry) {
  while (entry) {
    memory_entry *next = entry->next;
    nsai_kernel_image_fini(&entry->image);
    free(entry);
    entry = next;
  }
}

void nsai_cache_close(nsai_cache *cache) {
  if (!cache) return;
  nsai_dirs_close(&cache->folders);
  if (!nsai_lock_is_free(&cache->lock)) return;
  free_memory(cache->memory);
  pthread_mutex_destroy(&cache->lock);
  free(cache);
}

bool nsai_cache_tier(nsai_cache *cache, int32_t index, nsai_cache_tier_info *out) {
  return nsai_dirs_tier(&cache->folders, index, out);
}

/* ---- memory ---- */

static bool compiler_fits(const nsai_kernel_key *key, const char *compiler_id) {
  return key->compiler_id[0] == '\0' || strcmp(key->compiler_id, compiler_id) == 0;
}

/* Moves the entry to the front and copies its image. */
static bool find_in_memory(nsai_cache *cache, const nsai_kernel_key *key, nsai_kernel_image *out) {
  bool found = false;
  pthread_mutex_lock(&cache->lock);
  for (memory_entry **link = &cache->memory; *link; link = &(*link)->next) {
    memory_entry *entry = *link;
    if (strcmp(entry->digest, key->digest) != 0 || !compiler_fits(key, entry->image.compiler_id))
      continue;
    *link = entry->next;
    entry->next = cache->memory;
    cache->memory = entry;
    found = nsai_kernel_image_copy(out, &entry->image) == NSA_OK;
    break;
  }
  pthread_mutex_unlock(&cache->lock);
  return found;
}

/* Removes entries from the tail until the list fits; the newest entry always stays. Lock held. */
static void shrink_memory(nsai_cache *cache) {
  uint64_t kept = 0;
  for (memory_entry *entry = cache->memory; entry; entry = entry->next) {
    kept += entry->image.size;
    if (!entry->next || kept + entry->next->image.size <= MEMORY_LIMIT) continue;
    free_memory(entry->next);
    entry->next = NULL;
  }
  cache->memory_bytes = kept;
}

/* Lock held. */
static bool is_in_memory(const nsai_cache *cache, const char *digest, const char *compiler_id) {
  for (const memory_entry *entry = cache->memory; entry; entry = entry->next)
    if (strcmp(entry->digest, digest) == 0 && strcmp(entry->image.compiler_id, compiler_id) == 0)
      return true;
  return false;
}

/* If memory is exhausted, the entry is not kept. */
static void keep_in_memory(nsai_cache *cache, const nsai_kernel_key *key,
                           const nsai_kernel_image *image) {
  memory_entry *entry = calloc(1, sizeof *entry);
  if (!entry || nsai_kernel_image_copy(&entry->image, image) != NSA_OK) {
    free(entry);
    return;
  }
  memcpy(entry->digest, key->digest, sizeof entry->digest);
  pthread_mutex_lock(&cache->lock);
  if (!is_in_memory(cache, key->digest, image->compiler_id)) {
    entry->next = cache->memory;
    cache->memory = entry;
    cache->memory_bytes += image->size;
    if (cache->memory_bytes > MEMORY_LIMIT) shrink_memory(cache);
    entry = NULL;
  }
  pthread_mutex_unlock(&cache->lock);
  free_memory(entry); /* another thread was faster */
}

/* ---- disk ---- */

static void touch(nsai_cache *cache, const char *name, int64_t used_at) {
  int64_t now = (int64_t)time(NULL);
  if (used_at <= now && now - used_at < STAMP_SECONDS) return;
  unsigned char stamp[NSAI_CACHE_STAMP_BYTES];
  nsai_cache_stamp_encode(now, stamp);
  int fd = openat(cache->folders.fd[0], name, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return;
  /* If this fails, the entry only loses its rank in the order of eviction. */
  if (pwrite(fd, stamp, sizeof stamp, NSAI_CACHE_STAMP_AT) != (ssize_t)sizeof stamp)
    nsai_log(cache->logger, NSA_LOG_DEBUG, "cache", "the use of %s is not noted", name);
  close(fd);
}

/* NULL when the entry belongs to the key; else what is wrong. */
static const char *check_entry(const nsai_kernel_key *key, const nsai_cache_entry *entry,
                               const char *name) {
  char expected[NSAI_CACHE_NAME_CHARS];
  nsai_cache_entry_name(key->digest, entry->compiler_id, expected);
  if (strcmp(name, expected) != 0 || !compiler_fits(key, entry->compiler_id))
    return "made by another compiler than its name says";
  if (entry->key_length != key->length || memcmp(entry->key, key->text, key->length) != 0 ||
      strcmp(entry->entry, key->entry) != 0 || strcmp(entry->arch, key->arch) != 0)
    return "holds another kernel than its name says";
  return NULL;
}

static bool image_of_entry(const nsai_cache_entry *entry, nsai_kernel_image *out) {
  const nsai_kernel_image image = {
    .cubin = (void *)entry->cubin,
    .size = entry->cubin_size,
    .registers = entry->registers,
    .spill_bytes = entry->spill_bytes,
    .stack_bytes = entry->stack_bytes,
    .shared_bytes = entry->shared_bytes,
    .serial_wgmma = entry->serial_wgmma,
  };
  if (nsai_kernel_image_copy(out, &image) != NSA_OK) return false;
  memcpy(out->compiler_id, entry->compiler_id, sizeof out->compiler_id);
  return true;
}

/* Says that a file cannot be used, and what becomes of it. */
static void warn_of(nsai_cache *cache, int32_t tier, const char *name, const char *problem,
                    const char *fate) {
  nsai_dirs_warn(&cache->folders, NSAI_WARNED_BAD,
                 "the entry %s in %s %s and %s; the kernel is compiled again", name,
                 cache->folders.info[tier].path, problem, fate);
}

/* Reads, verifies and copies one entry. Removes a damaged one if this cache may write. */
static bool load_entry(nsai_cache *cache, int32_t tier, const char *name,
                       const nsai_kernel_key *key, nsai_kernel_image *out) {
  struct stat st;
  nsai_cache_entry entry;
  char *data, fault[NSAI_FILES_FAULT_CHARS];
  const char *problem = fault;
  bool writable = tier == 0 && nsai_dirs_writable(&cache->folders);
  switch (nsai_files_read_trusted(cache->folders.fd[tier], name, NSAI_CACHE_ENTRY_MAX, &data, &st,
                                  fault)) {
  case NSAI_FILES_MISSING: return false;
  case NSAI_FILES_UNREADABLE:
    if (errno != ENOMEM) warn_of(cache, tier, name, fault, "stays there");
    return false;
  case NSAI_FILES_DAMAGED: break;
  case NSAI_FILES_PRESENT:
    problem = nsai_cache_entry_decode(data, (size_t)st.st_size, &entry);
    if (!problem) problem = check_entry(key, &entry, name);
  }
  if (problem) {
    bool gone = writable && nsai_files_unlink_same(cache->folders.fd[tier], name, &st);
    char bad[NSAI_FILES_FAULT_CHARS + 16];
    snprintf(bad, sizeof bad, "is bad (%s)", problem);
    warn_of(cache, tier, name, bad, gone ? "was removed" : "stays there");
    free(data);
    return false;
  }
  bool copied = image_of_entry(&entry, out);
  if (copied && writable) touch(cache, name, entry.used_at);
  free(data);
  return copied;
}

/* Loads an entry of the key made by any compiler. */
static bool load_any(nsai_cache *cache, int32_t tier, const nsai_kernel_key *key,
                     nsai_kernel_image *out) {
  char **names;
  size_t count, prefix = strlen(key->digest);
  bool found = false;
  if (nsai_dirs_list(cache->folders.fd[tier], CACHE_ENDING, false, &names, &count) != NSA_OK)
    return false;
  for (size_t i = 0; i < count && !found; i++)
    if (strncmp(names[i], key->digest, prefix) == 0 && nsai_cache_is_entry_name(names[i]))
      found = load_entry(cache, tier, names[i], key, out);
  nsai_dirs_free_list(names, count);
  return found;
}

bool nsai_cache_find(nsai_cache *cache, const nsai_kernel_key *key, nsai_kernel_image *out) {
  memset(out, 0, sizeof *out);
  if (find_in_memory(cache, key, out)) return true;
  for (int32_t tier = 0; tier < cache->folders.tiers; tier++) {
    char name[NSAI_CACHE_NAME_CHARS];
    if (cache->folders.fd[tier] < 0) continue;
    nsai_cache_entry_name(key->digest, key->compiler_id, name);
    bool found = key->compiler_id[0] ? load_entry(cache, tier, name, key, out)
                                     : load_any(cache, tier, key, out);
    if (!found) continue;
    nsai_log(cache->logger, NSA_LOG_DEBUG, "cache", "hit %s %s in %s", key->entry, key->arch,
             cache->folders.info[tier].path);
    keep_in_memory(cache, key, out);
    return true;
  }
  nsai_log(cache->logger, NSA_LOG_DEBUG, "cache", "miss %s %s", key->entry, key->arch);
  return false;
}

bool nsai_cache_store(nsai_cache *cache, const nsai_kernel_key *key,
                      const nsai_kernel_image *image) {
  char name[NSAI_CACHE_NAME_CHARS];
  unsigned char *data;
  size_t size;
  keep_in_memory(cache, key, image);
  if (!nsai_dirs_writable(&cache->folders)) return false;
  if (nsai_cache_entry_encode(key, image, (int64_t)time(NULL), &data, &size) != NSA_OK) {
    nsai_dirs_warn(&cache->folders, NSAI_WARNED_WRITE, "kernel %s is kept in memory only: %s",
                   key->entry, nsa_last_error());
    return false;
  }
  bool stored = false;
  if (size <= NSAI_CACHE_ENTRY_MAX && size <= cache->limit) {
    nsai_cache_make_room(cache, size);
    nsai_cache_entry_name(key->digest, image->compiler_id, name);
    stored = nsai_files_publish(cache->folders.fd[0], name, data, size,
                                cache->folders.info[0].network) == NSA_OK;
    if (!stored) nsai_dirs_stop_writing(&cache->folders, strerror(errno));
  } else {
    nsai_dirs_warn(&cache->folders, NSAI_WARNED_WRITE,
                   "kernel %s has %zu bytes, more than the cache's limit: kept "
                   "in memory only",
                   key->entry, size);
  }
  free(data);
  return stored;
}

/* ---- images that do not load ---- */

static void drop_from_memory(nsai_cache *cache, const char *digest, const char *compiler_id) {
  memory_entry *dropped = NULL;
  pthread_mutex_lock(&cache->lock);
  for (memory_entry **link = &cache->memory; *link && !dropped; link = &(*link)->next) {
    if (strcmp((*link)->digest, digest) || strcmp((*link)->image.compiler_id, compiler_id))
      continue;
    dropped = *link;
    *link = dropped->next;
    dropped->next = NULL;
    cache->memory_bytes -= dropped->image.size;
    break;
  }
  pthread_mutex_unlock(&cache->lock);
  free_memory(dropped);
}

/* Another process may have replaced the file by a good image, which must stay. */
static bool drop_from_disk(nsai_cache *cache, const char *name, const nsai_kernel_key *key,
                           const nsai_kernel_image *image) {
  struct stat st;
  nsai_kernel_image there;
  if (!nsai_dirs_writable(&cache->folders) ||
      fstatat(cache->folders.fd[0], name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
      !load_entry(cache, 0, name, key, &there))
    return false;
  bool same = there.size == image->size && memcmp(there.cubin, image->cubin, image->size) == 0;
  nsai_kernel_image_fini(&there);
  return same && nsai_files_unlink_same(cache->folders.fd[0], name, &st);
}

void nsai_cache_drop(nsai_cache *cache, const nsai_kernel_key *key, const nsai_kernel_image *image,
                     const char *why) {
  char name[NSAI_CACHE_NAME_CHARS];
  nsai_cache_entry_name(key->digest, image->compiler_id, name);
  drop_from_memory(cache, key->digest, image->compiler_id);
  bool gone = drop_from_disk(cache, name, key, image);
  nsai_dirs_warn(&cache->folders, NSAI_WARNED_UNFIT,
                 "kernel %s of the cache does not load (%s); its entry %s %s", key->entry, why,
                 name, gone ? "was removed" : "stays where it is");
}

/* ---- the advisory lock ---- */

/* Two keys with the same lock sometimes wait for each other. */
bool nsai_cache_same_lock(const nsai_kernel_key *a, const nsai_kernel_key *b) {
  return !strncmp(a->digest, b->digest, NSAI_DIRS_LOCK_CHARS);
}

int nsai_cache_lock(nsai_cache *cache, const nsai_kernel_key *key, bool *busy) {
  return nsai_dirs_lock(&cache->folders, key->digest, busy);
}

void nsai_cache_unlock(int token) { nsai_files_unlock(token); }
