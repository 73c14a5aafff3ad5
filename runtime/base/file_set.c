/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "base/file_set.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum item_state {
  STAGED,   /* not visible yet */
  PRESENT,  /* somebody else's file was there, and stays */
  ADDED,    /* there was no file before */
  REPLACED, /* the file before is in the temporary folder, too */
  FINAL     /* replaced a file that could not be linked */
} item_state;

struct nsai_file_set_item {
  char name[256]; /* NAME_MAX and the final NUL */
  bool replace;
  item_state state;
  struct stat st; /* of the new file */
};

#define STAGED_CHARS 24

static void name_in_stage(const char *kind, int32_t index, char name[STAGED_CHARS]) {
  snprintf(name, STAGED_CHARS, "%s-%d", kind, index);
}

static nsa_status fail_io(const char *name) {
  int cause = errno;
  nsa_status status = nsai_fail(NSA_E_IO, "%s cannot be written: %s", name, strerror(cause));
  errno = cause;
  return status;
}

/* A cleaner may take the folder for abandoned before it is locked; then ENOENT. */
static bool begin_once(nsai_file_set *set) {
  nsai_files_temporary_name(set->stage_name);
  if (mkdirat(set->folder, set->stage_name, 0700) != 0) return false;
  set->stage =
      openat(set->folder, set->stage_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  int cause = errno;
  if (set->stage >= 0 && !nsai_files_was_swept(set->stage)) return true;
  if (set->stage >= 0) {
    close(set->stage);
    set->stage = -1;
    cause = ENOENT;
  }
  unlinkat(set->folder, set->stage_name, AT_REMOVEDIR);
  errno = cause;
  return false;
}

nsa_status nsai_file_set_begin(int folder, nsai_file_set *set) {
  enum { TRIES = 20, PAUSE_US = 200 };
  *set = (nsai_file_set){ .folder = folder, .stage = -1 };
  for (int i = 0; i < TRIES; i++) {
    if (begin_once(set)) return NSA_OK;
    if (errno != ENOENT) break;
    usleep((useconds_t)(PAUSE_US * i));
  }
  return fail_io(set->stage_name);
}

nsa_status nsai_file_set_rewrite(nsai_file_set *set, int32_t index, const void *data, size_t size) {
  char staged[STAGED_CHARS];
  name_in_stage("new", index, staged);
  if (unlinkat(set->stage, staged, 0) != 0 && errno != ENOENT)
    return fail_io(set->items[index].name);
  int fd = openat(set->stage, staged, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return fail_io(set->items[index].name);
  bool good = nsai_files_write_synced(fd, data, size);
  int cause = errno;
  /* Network file systems report write errors on close. */
  if (close(fd) != 0 && good) {
    good = false;
    cause = errno;
  }
  if (good && fstatat(set->stage, staged, &set->items[index].st, AT_SYMLINK_NOFOLLOW) == 0)
    return NSA_OK;
  if (!good) errno = cause;
  return fail_io(set->items[index].name);
}

nsa_status nsai_file_set_add(nsai_file_set *set, const char *name, bool replace, const void *data,
                             size_t size) {
  if (set->count == set->capacity) {
    int32_t capacity = set->capacity ? 2 * set->capacity : 16;
    size_t bytes = (size_t)capacity * sizeof *set->items;
    nsai_file_set_item *items = realloc(set->items, bytes);
    if (!items) return nsai_fail_nomem("the list of files to write", bytes);
    set->items = items;
    set->capacity = capacity;
  }
  nsai_file_set_item *item = &set->items[set->count];
  *item = (nsai_file_set_item){ .replace = replace };
  snprintf(item->name, sizeof item->name, "%s", name);
  return nsai_file_set_rewrite(set, set->count++, data, size);
}

static bool rename_item(nsai_file_set *set, const char *staged, nsai_file_set_item *item,
                        item_state state) {
  if (renameat(set->stage, staged, set->folder, item->name) != 0) return false;
  item->state = state;
  return true;
}

/* FAT, and some network file systems, have no hard links. */
static bool links_are_missing(void) {
  return errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK;
}

nsa_status nsai_file_set_publish(nsai_file_set *set, int32_t index) {
  nsai_file_set_item *item = &set->items[index];
  char staged[STAGED_CHARS], old[STAGED_CHARS];
  bool good = true;
  name_in_stage("new", index, staged);
  name_in_stage("old", index, old);
  if (!item->replace) {
    if (linkat(set->stage, staged, set->folder, item->name, 0) == 0)
      item->state = ADDED;
    else if (errno == EEXIST)
      item->state = PRESENT;
    else
      good = links_are_missing() && rename_item(set, staged, item, ADDED);
  } else if (linkat(set->folder, item->name, set->stage, old, 0) == 0) {
    good = rename_item(set, staged, item, REPLACED);
  } else if (errno == ENOENT) {
    good = rename_item(set, staged, item, ADDED);
  } else {
    good = links_are_missing() && rename_item(set, staged, item, FINAL);
  }
  return good ? NSA_OK : fail_io(item->name);
}

nsa_status nsai_file_set_sync(const nsai_file_set *set) {
  return nsai_files_sync_folder(set->folder) ? NSA_OK : fail_io("the folder");
}

/* Whether the file is still the one of this set. */
static bool is_ours(const nsai_file_set *set, const nsai_file_set_item *item) {
  struct stat now;
  return fstatat(set->folder, item->name, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
         now.st_dev == item->st.st_dev && now.st_ino == item->st.st_ino;
}

void nsai_file_set_take_back(nsai_file_set *set) {
  int cause = errno;
  for (int32_t i = set->count - 1; i >= 0; i--) {
    nsai_file_set_item *item = &set->items[i];
    char old[STAGED_CHARS];
    name_in_stage("old", i, old);
    if (item->state == ADDED && is_ours(set, item)) unlinkat(set->folder, item->name, 0);
    if (item->state == REPLACED && is_ours(set, item))
      renameat(set->stage, old, set->folder, item->name);
    item->state = STAGED;
  }
  nsai_files_sync_folder(set->folder);
  errno = cause;
}

/* Removes the temporary folder and its files, by their names: listing the folder needs a
 * descriptor and memory, and may fail. Returns 0, or the first errno. */
static int remove_stage(const nsai_file_set *set) {
  static const char *const kinds[] = { "new", "old" };
  int cause = 0;
  for (int32_t i = 0; i < 2 * set->count; i++) {
    char staged[STAGED_CHARS];
    name_in_stage(kinds[i % 2], i / 2, staged);
    if (unlinkat(set->stage, staged, 0) != 0 && errno != ENOENT && !cause) cause = errno;
  }
  if (unlinkat(set->folder, set->stage_name, AT_REMOVEDIR) == 0 || errno == ENOENT) return 0;
  return cause ? cause : errno;
}

bool nsai_file_set_end(nsai_file_set *set) {
  const int before = errno;
  int cause = 0;
  if (set->stage >= 0) {
    cause = remove_stage(set);
    if (cause) cause = remove_stage(set); /* what failed once may succeed now */
    nsai_files_unlock(set->stage);
  }
  set->stage = -1;
  set->count = set->capacity = 0;
  free(set->items);
  set->items = NULL;
  errno = cause ? cause : before;
  return !cause;
}
