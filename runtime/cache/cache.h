/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernel cache: compiled kernels in memory, in the user's folder, and in read-only folders
 * of the system. It never fails a run: trouble with a folder, a file or the disk gives one
 * warning, and the kernel is compiled again.
 *
 * All functions except close are thread-safe. Several processes may share a folder; correctness
 * needs no lock.
 */
#ifndef NSAI_CACHE_CACHE_H
#define NSAI_CACHE_CACHE_H

#include "base/log.h"
#include "cache/kernel_image.h"

#include <stdbool.h>

typedef struct nsai_cache nsai_cache;

typedef enum nsai_cache_mode {
  NSAI_CACHE_READ_WRITE,
  /* entries on disk are used, but none is written, removed, or marked as used */
  NSAI_CACHE_READ_ONLY,
  NSAI_CACHE_OFF /* memory only */
} nsai_cache_mode;

typedef struct nsai_cache_options {
  const char *dir; /* NULL or "": $NSA_CACHE_DIR, $XDG_CACHE_HOME/nsa, $HOME/.cache/nsa */
  nsai_cache_mode mode;
  uint64_t limit;                 /* bytes in the user's folder: runtime.cache_limit */
  const char *const *system_dirs; /* read-only folders, NULL-terminated; NULL: the default two */
  nsai_logger *logger;            /* borrowed; NULL: silent */
  bool look;                      /* create no folder: only report what a run would find */
} nsai_cache_options;

/* Opens the folders and creates the user's if it is missing. A folder that cannot be used is a
 * warning, not a failure. NSA_E_NOMEM only. */
nsa_status nsai_cache_open(const nsai_cache_options *options, nsai_cache **out);

/* NULL is fine. */
void nsai_cache_close(nsai_cache *cache);

/* Looks in memory, in the user's folder, then in the read-only folders. True: `out` holds a copy
 * that the caller frees. Reads one file and does not open the compiler. A key whose compiler is
 * "" takes the image of any compiler; of several, the one whose file name sorts first. */
bool nsai_cache_find(nsai_cache *cache, const nsai_kernel_key *key, nsai_kernel_image *out);

/* Stores an image under the key and the image's compiler id, in memory and on disk. True when it
 * is on disk, also when another process has stored it first. */
bool nsai_cache_store(nsai_cache *cache, const nsai_kernel_key *key,
                      const nsai_kernel_image *image);

/* Removes an image that matches its key but does not load: from memory, and from disk if this
 * cache may write and the file still holds the same image. Warns; `why` is one clause. */
void nsai_cache_drop(nsai_cache *cache, const nsai_kernel_key *key, const nsai_kernel_image *image,
                     const char *why);

/* Avoids compiling a key twice: tells other threads and processes that it is being compiled
 * here. Does not wait. Returns a token for unlock. `*busy`: another thread or process holds the
 * lock, so waiting is worthwhile. The lock is only advisory: where no lock can be taken (network
 * folder, no folder), `*busy` is false. Call nsai_cache_find again once you hold it. */
int nsai_cache_lock(nsai_cache *cache, const nsai_kernel_key *key, bool *busy);
void nsai_cache_unlock(int token);

/* Whether two keys share a lock. A thread that holds it for one must not wait for the other. */
bool nsai_cache_same_lock(const nsai_kernel_key *a, const nsai_kernel_key *b);

/* One folder, for reports. */
typedef struct nsai_cache_tier_info {
  char path[4096];
  char state[256]; /* "read-write", "read-only", or why it is not used */
  bool used, writable, network;
  bool missing; /* not used because it does not exist */
} nsai_cache_tier_info;

/* The folder at `index`, the user's first; false after the last. */
bool nsai_cache_tier(nsai_cache *cache, int32_t index, nsai_cache_tier_info *out);

/* One file of a folder, for `ls`, `verify`, `export`. Valid during the callback. */
typedef struct nsai_cache_item {
  const char *folder, *file;
  /* NULL: valid; else what is wrong, and only folder, file, bytes and unreadable are set */
  const char *problem;
  bool unreadable; /* what is wrong may pass: the file may be whole */
  bool foreign;    /* no entry at all: its name is no kernel's. It stays as it is */
  uint64_t bytes;  /* of the file */
  int64_t used_at; /* seconds since 1970; 0: unknown */
  const char *entry, *arch, *compiler_id;
  const char *key; /* full key text */
  size_t key_length;
  int32_t registers, shared_bytes;
  const void *data; /* the file's bytes, for export */
} nsai_cache_item;

/* Return false to stop. */
typedef bool (*nsai_cache_item_fn)(void *user, const nsai_cache_item *item);

/* Visits and verifies every entry of all folders, ordered by name, and foreign files with the
 * ending of entries. An entry is a regular file whose name is that of its key. NSA_E_NOMEM;
 * NSA_E_CACHE: a folder cannot be listed completely. */
nsa_status nsai_cache_each(nsai_cache *cache, nsai_cache_item_fn fn, void *user);

/* Verifies every entry and removes damaged ones from the user's folder. `*bad` counts unreadable
 * ones, too, which stay. Foreign files are named in the log, and not counted. The same errors. */
nsa_status nsai_cache_verify(nsai_cache *cache, int64_t *good, int64_t *bad);

/* Removes temporary files of dead processes, and the least recently used entries of the user's
 * folder until at most `limit` bytes remain. Counts and removes nothing else. An entry whose last use
 * cannot be read stays. NSA_E_CACHE: the folder is not writable, or files could be neither examined nor
 * removed; the others were. */
nsa_status nsai_cache_gc(nsai_cache *cache, uint64_t limit, int64_t *removed, uint64_t *bytes_left);

/* The bytes of an exported entry. */
typedef struct nsai_cache_bytes {
  const void *data;
  size_t size;
} nsai_cache_bytes;

/* Checks exported entries, their machine code included (nsai_cache_entry_check_code), and adds them
 * to the user's folder, all or none, in the place of damaged files of their names, too. Older
 * entries may have been evicted for them, also after a failure. If the process dies meanwhile, some
 * may be there, each complete. NSA_E_CACHE, NSA_E_NOMEM. */
nsa_status nsai_cache_import(nsai_cache *cache, const nsai_cache_bytes *entries, int64_t count);

#endif /* NSAI_CACHE_CACHE_H */
