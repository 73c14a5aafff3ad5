/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Chooses the folders and lists their files. A cubin runs with the rights of the process that
 * loads it, so a folder in which somebody else could put one is refused, and /tmp is never
 * chosen.
 */
#include "cache/dirs.h"

#include "base/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char temporary_prefix[] = ".tmp-";
static const char *const usual_system_dirs[] = { "/var/cache/nsa", "/usr/share/nsa/cache", NULL };

/* Takes the first location that is set. False when none is. */
static bool choose_dirs(const char *given, char *path, size_t size) {
  const struct {
    const char *root, *below;
  } places[] = {
    { given, "" },
    { secure_getenv("NSA_CACHE_DIR"), "" },
    { secure_getenv("XDG_CACHE_HOME"), "/nsa" },
    { secure_getenv("HOME"), "/.cache/nsa" },
  };
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    const char *root = places[i].root;
    if (!root || !root[0]) continue;
    /* The environment may give absolute paths only: a relative one would depend on the host's
     * working directory. */
    if (i > 0 && root[0] != '/') continue;
    return snprintf(path, size, "%s%s", root, places[i].below) < (int)size;
  }
  return false;
}

/* Opens <path>/<folder> of one tier and fills the tier's state. False: not usable; `missing`
 * says whether it merely does not exist. */
static bool open_tier(nsai_dirs *folders, const char *path, bool own, bool *missing) {
  nsai_cache_tier_info *tier = &folders->info[folders->tiers];
  int *fd = &folders->fd[folders->tiers];
  nsai_files_owner owner = own ? NSAI_FILES_OWN : NSAI_FILES_OWN_OR_ROOT;
  bool write = own && folders->mode == NSAI_CACHE_READ_WRITE;
  snprintf(tier->path, sizeof tier->path, "%s", path);
  *missing = false;
  *fd = -1;
  folders->tiers++;
  if (write && !folders->look && !nsai_files_make_folders(path)) {
    snprintf(tier->state, sizeof tier->state, "cannot be made: %s", strerror(errno));
    return false;
  }
  int folder = nsai_files_open_folder(AT_FDCWD, path, owner, tier->state, sizeof tier->state);
  if (folder >= 0) {
    if (write && !folders->look) nsai_files_make_folder(folder, folders->kind->folder);
    *fd = nsai_files_open_folder(folder, folders->kind->folder, owner, tier->state,
                                 sizeof tier->state);
  }
  *missing = *fd < 0 && errno == ENOENT;
  tier->missing = *missing;
  if (*missing) snprintf(tier->state, sizeof tier->state, "does not exist");
  if (folder >= 0) close(folder);
  if (*fd < 0) return false;
  tier->used = true;
  tier->network = nsai_files_is_network(*fd);
  tier->writable = write && faccessat(*fd, ".", W_OK, AT_EACCESS) == 0;
  snprintf(tier->state, sizeof tier->state, "%s", tier->writable ? "read-write" : "read-only");
  return true;
}

static void open_own(nsai_dirs *folders, const nsai_cache_options *options) {
  nsai_cache_tier_info *tier = &folders->info[0];
  char path[sizeof tier->path];
  bool missing;
  if (!choose_dirs(options->dir, path, sizeof path)) {
    nsai_dirs_warn(folders, NSAI_WARNED_DIRS,
                   "no folder for %s (HOME is not set): they are kept in memory only; set "
                   "`runtime.cache_dir` or $NSA_CACHE_DIR",
                   folders->kind->things);
    return;
  }
  if (!open_tier(folders, path, true, &missing)) {
    if (!(missing && (folders->look || folders->mode == NSAI_CACHE_READ_ONLY)))
      nsai_dirs_warn(folders, NSAI_WARNED_DIRS,
                     "the cache folder %s is not used: %s; %s are kept in memory only", path,
                     tier->state, folders->kind->things);
  } else if (folders->mode == NSAI_CACHE_READ_WRITE && !tier->writable) {
    nsai_dirs_warn(folders, NSAI_WARNED_DIRS,
                   "the cache folder %s is read-only: %s are kept in memory only", path,
                   folders->kind->new_things);
  } else {
    nsai_log(folders->logger, NSA_LOG_INFO, folders->kind->component, "%s (%s%s)", path,
             tier->state, tier->network ? ", network file system" : "");
  }
}

static void find_dirs(nsai_dirs *folders, const nsai_cache_options *options) {
  if (folders->mode == NSAI_CACHE_OFF) return;
  open_own(folders, options);
  const char *const *dirs = options->system_dirs ? options->system_dirs : usual_system_dirs;
  for (; *dirs && folders->tiers < NSAI_DIRS_TIERS_MAX; dirs++) {
    bool missing;
    int32_t index = folders->tiers;
    if (!open_tier(folders, *dirs, false, &missing) && !missing)
      nsai_dirs_warn(folders, NSAI_WARNED_DIRS, "the read-only cache folder %s is not used: %s",
                     *dirs, folders->info[index].state);
  }
}

void nsai_dirs_open(nsai_dirs *folders, const nsai_cache_options *options,
                    const nsai_dirs_kind *kind) {
  pthread_mutex_init(&folders->lock, NULL);
  folders->kind = kind;
  folders->logger = options->logger;
  folders->mode = options->mode;
  folders->look = options->look;
  find_dirs(folders, options);
}

void nsai_dirs_close(nsai_dirs *folders) {
  for (int32_t i = 0; i < folders->tiers; i++)
    if (folders->fd[i] >= 0) close(folders->fd[i]);
  pthread_mutex_destroy(&folders->lock);
}

/* ---- state ---- */

bool nsai_dirs_tier(nsai_dirs *folders, int32_t index, nsai_cache_tier_info *out) {
  if (index < 0 || index >= folders->tiers) return false;
  pthread_mutex_lock(&folders->lock);
  *out = folders->info[index];
  pthread_mutex_unlock(&folders->lock);
  return true;
}

void nsai_dirs_warn(nsai_dirs *folders, unsigned trouble, const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  pthread_mutex_lock(&folders->lock);
  bool repeated = folders->warned & trouble;
  folders->warned |= trouble;
  pthread_mutex_unlock(&folders->lock);
  nsai_log(folders->logger, repeated ? NSA_LOG_DEBUG : NSA_LOG_WARN, folders->kind->component, "%s",
           text);
}

void nsai_dirs_end_set(nsai_dirs *folders, nsai_file_set *set) {
  int before = errno;
  if (!nsai_file_set_end(set)) {
    const char *cause = strerror(errno);
    nsai_dirs_warn(folders, NSAI_WARNED_STAYS,
                   "%s/%s/%s cannot be removed: %s; `nsa-autotune gc` removes it later",
                   folders->info[0].path, folders->kind->folder, set->stage_name, cause);
  }
  errno = before;
}

bool nsai_dirs_writable(nsai_dirs *folders) {
  pthread_mutex_lock(&folders->lock);
  bool writable = folders->tiers > 0 && folders->info[0].writable;
  pthread_mutex_unlock(&folders->lock);
  return writable;
}

void nsai_dirs_stop_writing(nsai_dirs *folders, const char *why) {
  pthread_mutex_lock(&folders->lock);
  folders->info[0].writable = false;
  snprintf(folders->info[0].state, sizeof folders->info[0].state,
           "read-only after a failed write: %s", why);
  pthread_mutex_unlock(&folders->lock);
  nsai_dirs_warn(folders, NSAI_WARNED_WRITE,
                 "%s cannot be written (%s): %s are kept in memory only", folders->info[0].path,
                 why, folders->kind->new_things);
}

int nsai_dirs_lock(nsai_dirs *folders, const char *digest, bool *busy) {
  char name[16];
  *busy = false;
  if (!nsai_dirs_writable(folders) || folders->info[0].network) return -1;
  snprintf(name, sizeof name, ".lock-%.*s", NSAI_DIRS_LOCK_CHARS, digest);
  int token = nsai_files_lock(folders->fd[0], name);
  *busy = token < 0 && errno == EWOULDBLOCK;
  return token;
}

/* ---- listing ---- */

static bool has_ending(const char *name, const char *ending) {
  size_t length = strlen(name), tail = strlen(ending);
  return length > tail && name[0] != '.' && strcmp(name + length - tail, ending) == 0;
}

bool nsai_dirs_is_temporary(const char *name) {
  return strncmp(name, temporary_prefix, sizeof temporary_prefix - 1) == 0;
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

void nsai_dirs_free_list(char **names, size_t count) {
  for (size_t i = 0; i < count; i++) free(names[i]);
  free(names);
}

static nsa_status append_name(char ***names, size_t *count, size_t *room, const char *name) {
  if (*count == *room) {
    size_t bigger = *room ? *room * 2 : 64;
    char **grown = realloc(*names, bigger * sizeof *grown);
    if (!grown) return nsai_fail_nomem("the list of cache files", bigger * sizeof *grown);
    *names = grown;
    *room = bigger;
  }
  (*names)[*count] = strdup(name);
  if (!(*names)[*count]) return nsai_fail_nomem("the name of a cache file", strlen(name) + 1);
  (*count)++;
  return NSA_OK;
}

nsa_status nsai_dirs_list(int folder, const char *ending, bool all, char ***names, size_t *count) {
  nsa_status status = NSA_OK;
  size_t room = 0;
  *names = NULL;
  *count = 0;
  /* Opens the folder again: readers of the shared descriptor would share its position. */
  int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
  if (!dir) {
    status = nsai_fail(NSA_E_CACHE, "the cache folder cannot be listed: %s", strerror(errno));
    if (fd >= 0) close(fd);
    return status;
  }
  for (const struct dirent *item; errno = 0, (item = readdir(dir)) != NULL;)
    if (has_ending(item->d_name, ending) || (all && nsai_dirs_is_temporary(item->d_name)))
      NSAI_TRY_TO(fail, append_name(names, count, &room, item->d_name));
  if (errno) {
    status =
        nsai_fail(NSA_E_CACHE, "the cache folder cannot be listed completely: %s", strerror(errno));
    goto fail;
  }
  closedir(dir);
  if (*count) qsort(*names, *count, sizeof **names, compare_names);
  return NSA_OK;
fail:
  closedir(dir);
  nsai_dirs_free_list(*names, *count);
  *names = NULL;
  *count = 0;
  return status;
}
