/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Which folders are used, and what lies in them. A cubin runs with the rights of the process that
 * loads it, so a folder into which somebody else could plant one is refused, and /tmp is never
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

/* The first place that is set. False when none is. */
static bool choose_place(const char *given, char *path, size_t size) {
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
    /* From the environment absolute paths only: a relative one would move with the host's working
     * directory. */
    if (i > 0 && root[0] != '/') continue;
    return snprintf(path, size, "%s%s", root, places[i].below) < (int)size;
  }
  return false;
}

/* Opens <path>/<folder> of one tier; fills the tier's state. False: not usable, `missing` tells
 * whether it just is not there. */
static bool open_tier(nsai_place *place, const char *path, bool own, bool *missing) {
  nsai_cache_tier_info *tier = &place->info[place->tiers];
  int *fd = &place->fd[place->tiers];
  nsai_fs_owner owner = own ? NSAI_FS_OWN : NSAI_FS_OWN_OR_ROOT;
  bool write = own && place->mode == NSAI_CACHE_READ_WRITE;
  snprintf(tier->path, sizeof tier->path, "%s", path);
  *missing = false;
  *fd = -1;
  place->tiers++;
  if (write && !place->look && !nsai_fs_make_folders(path)) {
    snprintf(tier->state, sizeof tier->state, "cannot be made: %s", strerror(errno));
    return false;
  }
  int folder = nsai_fs_open_folder(AT_FDCWD, path, owner, tier->state, sizeof tier->state);
  if (folder >= 0) {
    if (write && !place->look)
      mkdirat(folder, place->kind->folder, 0700); /* a failure shows in the open below */
    *fd = nsai_fs_open_folder(folder, place->kind->folder, owner, tier->state, sizeof tier->state);
  }
  *missing = *fd < 0 && errno == ENOENT;
  tier->missing = *missing;
  if (*missing) snprintf(tier->state, sizeof tier->state, "does not exist");
  if (folder >= 0) close(folder);
  if (*fd < 0) return false;
  tier->used = true;
  tier->network = nsai_fs_is_network(*fd);
  tier->writable = write && faccessat(*fd, ".", W_OK, AT_EACCESS) == 0;
  snprintf(tier->state, sizeof tier->state, "%s", tier->writable ? "read-write" : "read-only");
  return true;
}

static void place_own(nsai_place *place, const nsai_cache_options *options) {
  nsai_cache_tier_info *tier = &place->info[0];
  char path[sizeof tier->path];
  bool missing;
  if (!choose_place(options->dir, path, sizeof path)) {
    nsai_place_warn(place, NSAI_WARNED_PLACE,
                    "no folder for %s (HOME is not set): they are kept in memory only; set "
                    "`runtime.cache_dir` or $NSA_CACHE_DIR",
                    place->kind->things);
    return;
  }
  if (!open_tier(place, path, true, &missing)) {
    if (!(missing && (place->look || place->mode == NSAI_CACHE_READ_ONLY)))
      nsai_place_warn(place, NSAI_WARNED_PLACE,
                      "the cache folder %s is not used: %s; %s are kept in memory only", path,
                      tier->state, place->kind->things);
  } else if (place->mode == NSAI_CACHE_READ_WRITE && !tier->writable) {
    nsai_place_warn(place, NSAI_WARNED_PLACE,
                    "the cache folder %s is read-only: %s are kept in memory only", path,
                    place->kind->new_things);
  } else {
    nsai_log(place->logger, NSA_LOG_INFO, place->kind->component, "%s (%s%s)", path, tier->state,
             tier->network ? ", network file system" : "");
  }
}

static void find_places(nsai_place *place, const nsai_cache_options *options) {
  if (place->mode == NSAI_CACHE_OFF) return;
  place_own(place, options);
  const char *const *dirs = options->system_dirs ? options->system_dirs : usual_system_dirs;
  for (; *dirs && place->tiers < NSAI_PLACE_TIERS_MAX; dirs++) {
    bool missing;
    int32_t index = place->tiers;
    if (!open_tier(place, *dirs, false, &missing) && !missing)
      nsai_place_warn(place, NSAI_WARNED_PLACE, "the read-only cache folder %s is not used: %s",
                      *dirs, place->info[index].state);
  }
}

void nsai_place_open(nsai_place *place, const nsai_cache_options *options,
                     const nsai_place_kind *kind) {
  pthread_mutex_init(&place->lock, NULL);
  place->kind = kind;
  place->logger = options->logger;
  place->mode = options->mode;
  place->look = options->look;
  find_places(place, options);
}

void nsai_place_close(nsai_place *place) {
  for (int32_t i = 0; i < place->tiers; i++)
    if (place->fd[i] >= 0) close(place->fd[i]);
  pthread_mutex_destroy(&place->lock);
}

/* ---- state ---- */

bool nsai_place_tier(nsai_place *place, int32_t index, nsai_cache_tier_info *out) {
  if (index < 0 || index >= place->tiers) return false;
  pthread_mutex_lock(&place->lock);
  *out = place->info[index];
  pthread_mutex_unlock(&place->lock);
  return true;
}

void nsai_place_warn(nsai_place *place, unsigned trouble, const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  pthread_mutex_lock(&place->lock);
  bool repeated = place->warned & trouble;
  place->warned |= trouble;
  pthread_mutex_unlock(&place->lock);
  nsai_log(place->logger, repeated ? NSA_LOG_DEBUG : NSA_LOG_WARN, place->kind->component, "%s",
           text);
}

bool nsai_place_writable(nsai_place *place) {
  pthread_mutex_lock(&place->lock);
  bool writable = place->tiers > 0 && place->info[0].writable;
  pthread_mutex_unlock(&place->lock);
  return writable;
}

void nsai_place_stop_writing(nsai_place *place, const char *why) {
  pthread_mutex_lock(&place->lock);
  place->info[0].writable = false;
  snprintf(place->info[0].state, sizeof place->info[0].state, "read-only after a failed write: %s",
           why);
  pthread_mutex_unlock(&place->lock);
  nsai_place_warn(place, NSAI_WARNED_WRITE, "%s cannot be written (%s): %s are kept in memory only",
                  place->info[0].path, why, place->kind->new_things);
}

int nsai_place_lock(nsai_place *place, const char *digest, bool *busy) {
  char name[16];
  *busy = false;
  if (!nsai_place_writable(place) || place->info[0].network) return -1;
  snprintf(name, sizeof name, ".lock-%.*s", NSAI_PLACE_LOCK_CHARS, digest);
  int token = nsai_fs_lock(place->fd[0], name);
  *busy = token < 0 && errno == EWOULDBLOCK;
  return token;
}

/* ---- listing ---- */

static bool has_ending(const char *name, const char *ending) {
  size_t length = strlen(name), tail = strlen(ending);
  return length > tail && name[0] != '.' && strcmp(name + length - tail, ending) == 0;
}

bool nsai_place_is_temporary(const char *name) {
  return strncmp(name, temporary_prefix, sizeof temporary_prefix - 1) == 0;
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

void nsai_place_free_list(char **names, size_t count) {
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

nsa_status nsai_place_list(int folder, const char *ending, bool all, char ***names, size_t *count) {
  nsa_status status = NSA_OK;
  size_t room = 0;
  *names = NULL;
  *count = 0;
  /* A descriptor of its own: the folder's shared one has one position for all readers. */
  int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
  if (!dir) {
    status = nsai_fail(NSA_E_CACHE, "the cache folder cannot be listed: %s", strerror(errno));
    if (fd >= 0) close(fd);
    return status;
  }
  for (const struct dirent *item; (item = readdir(dir)) != NULL;)
    if (has_ending(item->d_name, ending) || (all && nsai_place_is_temporary(item->d_name)))
      NSAI_TRY_TO(fail, append_name(names, count, &room, item->d_name));
  closedir(dir);
  if (*count) qsort(*names, *count, sizeof **names, compare_names);
  return NSA_OK;
fail:
  closedir(dir);
  nsai_place_free_list(*names, *count);
  return status;
}
