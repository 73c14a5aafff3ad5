/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Adds exported entries to the user's folder, all or none.
 */
#include "base/file_set.h"
#include "cache/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What the user's folder has of an entry's name. */
typedef enum presence { MISSING, GOOD, DAMAGED } presence;

/* NSA_E_CACHE: the file there cannot be read, and may be good. */
static nsa_status look(nsai_cache *cache, const char *name, presence *out) {
  struct stat st;
  nsai_cache_entry entry;
  char *data, fault[NSAI_FILES_FAULT_CHARS];
  nsai_files_outcome outcome =
      nsai_files_read_trusted(cache->folders.fd[0], name, NSAI_CACHE_ENTRY_MAX, &data, &st, fault);
  *out = outcome == NSAI_FILES_MISSING ? MISSING
         : outcome == NSAI_FILES_PRESENT &&
                 !nsai_cache_check_file(name, data, (size_t)st.st_size, &entry)
             ? GOOD
             : DAMAGED;
  free(data);
  if (outcome != NSAI_FILES_UNREADABLE) return NSA_OK;
  return nsai_fail(NSA_E_CACHE,
                   "the entry %s is in %s already, and %s: make it readable, or remove it", name,
                   cache->folders.info[0].path, fault);
}

static nsa_status check(const nsai_cache_bytes *bytes, char name[NSAI_CACHE_NAME_CHARS]) {
  char digest[NSAI_DIGEST_CHARS];
  nsai_cache_entry entry;
  const char *problem = bytes->size > NSAI_CACHE_ENTRY_MAX
                            ? "too large"
                            : nsai_cache_check_file(NULL, bytes->data, bytes->size, &entry);
  if (!problem) problem = nsai_cache_entry_check_code(&entry);
  if (problem) return nsai_fail(NSA_E_CACHE, "the entry cannot be imported: %s", problem);
  nsai_digest_hex(entry.key, entry.key_length, digest);
  nsai_cache_entry_name(digest, entry.compiler_id, name);
  return NSA_OK;
}

/* A failed write: says that nothing was imported. */
static nsa_status fail_write(const nsai_cache *cache, nsa_status status) {
  if (status != NSA_E_IO) return status;
  return nsai_fail(NSA_E_CACHE, "nothing was imported: a file cannot be written into %s: %s",
                   cache->folders.info[0].path, strerror(errno));
}

static nsa_status stage(nsai_cache *cache, const nsai_cache_bytes *bytes, nsai_file_set *set) {
  char name[NSAI_CACHE_NAME_CHARS];
  presence there;
  NSAI_TRY(check(bytes, name));
  NSAI_TRY(look(cache, name, &there));
  if (there == GOOD) return NSA_OK;
  return fail_write(cache,
                    nsai_file_set_add(set, name, there == DAMAGED, bytes->data, bytes->size));
}

static nsa_status publish(const nsai_cache *cache, nsai_file_set *set) {
  nsa_status status = NSA_OK;
  for (int32_t i = 0; i < set->count && status == NSA_OK; i++)
    status = nsai_file_set_publish(set, i);
  if (status == NSA_OK) status = nsai_file_set_sync(set);
  if (status != NSA_OK) nsai_file_set_take_back(set);
  return fail_write(cache, status);
}

nsa_status nsai_cache_import(nsai_cache *cache, const nsai_cache_bytes *entries, int64_t count) {
  char name[NSAI_CACHE_NAME_CHARS];
  uint64_t total = 0;
  nsai_file_set set;
  if (!nsai_dirs_writable(&cache->folders))
    return nsai_fail(NSA_E_CACHE, "nothing can be imported: the cache folder %s is %s",
                     cache->folders.tiers ? cache->folders.info[0].path : "(none)",
                     cache->folders.tiers ? cache->folders.info[0].state : "not set");
  for (int64_t i = 0; i < count; i++) {
    NSAI_TRY(check(&entries[i], name));
    total += entries[i].size;
  }
  nsai_cache_make_room(cache, total);
  nsa_status status = fail_write(cache, nsai_file_set_begin(cache->folders.fd[0], &set));
  for (int64_t i = 0; i < count && status == NSA_OK; i++) status = stage(cache, &entries[i], &set);
  if (status == NSA_OK) status = publish(cache, &set);
  nsai_dirs_end_set(&cache->folders, &set);
  return status;
}
