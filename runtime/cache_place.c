/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Which folders the cache uses. A cubin runs with the rights of the process that loads it, so a
 * folder into which somebody else could plant one is refused, and /tmp is never chosen.
 */
#include "cache_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Entries live in a folder of their own, so that other files (tuning records) may lie beside it. */
static const char kernels_folder[] = "kernels";

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

/* Opens <path>/kernels of one tier; fills the tier's state. False: not usable, `missing` tells
 * whether it just is not there. */
static bool open_tier(nsai_cache *cache, const char *path, bool own, bool *missing) {
  nsai_cache_tier_info *tier = &cache->info[cache->tiers];
  int *fd = &cache->fd[cache->tiers];
  nsai_fs_owner owner = own ? NSAI_FS_OWN : NSAI_FS_OWN_OR_ROOT;
  bool write = own && cache->mode == NSAI_CACHE_READ_WRITE;
  snprintf(tier->path, sizeof tier->path, "%s", path);
  *missing = false;
  *fd = -1;
  cache->tiers++;
  if (write && !cache->look && !nsai_fs_make_folders(path)) {
    snprintf(tier->state, sizeof tier->state, "cannot be made: %s", strerror(errno));
    return false;
  }
  int folder = nsai_fs_open_folder(AT_FDCWD, path, owner, tier->state, sizeof tier->state);
  if (folder >= 0) {
    if (write && !cache->look)
      mkdirat(folder, kernels_folder, 0700); /* a failure shows in the open below */
    *fd = nsai_fs_open_folder(folder, kernels_folder, owner, tier->state, sizeof tier->state);
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

static void place_own(nsai_cache *cache, const nsai_cache_options *options) {
  nsai_cache_tier_info *tier = &cache->info[0];
  char path[sizeof tier->path];
  bool missing;
  if (!choose_place(options->dir, path, sizeof path)) {
    nsai_cache_warn(cache, WARNED_PLACE,
                    "no folder for compiled kernels (HOME is not set): they "
                    "are kept in memory only; set `runtime.cache_dir` or $NSA_CACHE_DIR");
    return;
  }
  if (!open_tier(cache, path, true, &missing)) {
    if (!(missing && (cache->look || cache->mode == NSAI_CACHE_READ_ONLY)))
      nsai_cache_warn(cache, WARNED_PLACE,
                      "the cache folder %s is not used: %s; compiled kernels are "
                      "kept in memory only",
                      path, tier->state);
  } else if (cache->mode == NSAI_CACHE_READ_WRITE && !tier->writable) {
    nsai_cache_warn(cache, WARNED_PLACE,
                    "the cache folder %s is read-only: new kernels are kept in "
                    "memory only",
                    path);
  } else {
    nsai_log(cache->logger, NSA_LOG_INFO, "cache", "%s (%s%s)", path, tier->state,
             tier->network ? ", network file system" : "");
  }
}

void nsai_cache_place(nsai_cache *cache, const nsai_cache_options *options) {
  if (cache->mode == NSAI_CACHE_OFF) return;
  place_own(cache, options);
  const char *const *dirs = options->system_dirs ? options->system_dirs : usual_system_dirs;
  for (; *dirs && cache->tiers < CACHE_TIERS_MAX; dirs++) {
    bool missing;
    int32_t index = cache->tiers;
    if (!open_tier(cache, *dirs, false, &missing) && !missing)
      nsai_cache_warn(cache, WARNED_PLACE, "the read-only cache folder %s is not used: %s", *dirs,
                      cache->info[index].state);
  }
}
