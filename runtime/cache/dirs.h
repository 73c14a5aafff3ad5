/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The folders of the kernel cache and of the tuning records: a subfolder of the same name
 * ("kernels" or "tuning") in each cache folder, the user's first, then the read-only ones of the
 * system.
 *
 * All functions except open and close are thread-safe.
 */
#ifndef NSAI_CACHE_DIRS_H
#define NSAI_CACHE_DIRS_H

#include "base/file_set.h"
#include "cache/cache.h"

#include <pthread.h>

#define NSAI_DIRS_TIERS_MAX 4

/* Each kind of trouble is reported once per set of folders; repetitions are logged at DEBUG. */
enum {
  NSAI_WARNED_DIRS = 1,  /* no folder, or a refused one */
  NSAI_WARNED_BAD = 2,   /* an invalid file */
  NSAI_WARNED_WRITE = 4, /* a write failed */
  NSAI_WARNED_UNFIT = 8, /* a valid entry whose image the driver does not load */
  NSAI_WARNED_STAYS = 16 /* temporary files that cannot be removed */
};

/* What the folders contain, and what messages call it. */
typedef struct nsai_dirs_kind {
  const char *folder;    /* "kernels" */
  const char *component; /* of log lines: "cache" */
  const char *things;    /* "compiled kernels" */
  const char *new_things;
} nsai_dirs_kind;

/* Lock rule: `lock` protects info[].state, info[].writable and warned. Descriptors and paths do
 * not change after open. */
typedef struct nsai_dirs {
  const nsai_dirs_kind *kind;
  nsai_logger *logger;
  nsai_cache_mode mode;
  bool look; /* create no folder */
  int32_t tiers;
  nsai_cache_tier_info info[NSAI_DIRS_TIERS_MAX];
  int fd[NSAI_DIRS_TIERS_MAX]; /* kind->folder in the tier's folder; -1: not used */
  pthread_mutex_t lock;
  unsigned warned;
} nsai_dirs;

/* Finds and opens the folders; a folder that cannot be used is a warning. */
void nsai_dirs_open(nsai_dirs *folders, const nsai_cache_options *options,
                    const nsai_dirs_kind *kind);
void nsai_dirs_close(nsai_dirs *folders);

/* The folder at `index`; false after the last. */
bool nsai_dirs_tier(nsai_dirs *folders, int32_t index, nsai_cache_tier_info *out);

/* Warns once per kind of trouble. */
void nsai_dirs_warn(nsai_dirs *folders, unsigned trouble, const char *format, ...)
    NSAI_PRINTF(3, 4);

/* Whether the user's folder may be written now. */
bool nsai_dirs_writable(nsai_dirs *folders);

/* Called after a failed write: disables further attempts. */
void nsai_dirs_stop_writing(nsai_dirs *folders, const char *why);

/* Ends a set of files in the user's folder. Warns of temporary files that stay, which are lost
 * space, but no reason to fail. Keeps errno. */
void nsai_dirs_end_set(nsai_dirs *folders, nsai_file_set *set);

/* Locks are shared by all files whose digests begin with the same hexadecimal digits: 256 lock
 * files are enough for all, since they are never removed and their number must stay bounded.
 * Does not wait. Returns a token for nsai_files_unlock; -1: no lock. `*busy`: somebody else holds it. Where
 * no lock can be taken (network folder, no folder), `*busy` is false. */
#define NSAI_DIRS_LOCK_CHARS 2
int nsai_dirs_lock(nsai_dirs *folders, const char *digest, bool *busy);

/* The sorted names of a folder's files with the given ending; with `all`, temporary files as
 * well. nsai_dirs_free_list frees the list. NSA_E_CACHE, NSA_E_NOMEM. */
nsa_status nsai_dirs_list(int folder, const char *ending, bool all, char ***names, size_t *count);
void nsai_dirs_free_list(char **names, size_t count);

/* Whether the name is one of nsai_files_publish's temporary files. */
bool nsai_dirs_is_temporary(const char *name);

#endif /* NSAI_CACHE_DIRS_H */
