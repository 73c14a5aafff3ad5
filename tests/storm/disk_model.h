/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What may be on a disk after the power has failed, for every prefix of a log (disk_log.h):
 *
 * - A name that was made, moved or removed is on the disk for certain only after its folder was synced.
 *   Of the changes since then, any first ones may be there, or all but one. A rename is there as a
 *   whole or not at all.
 * - The data of a file is there for certain only after the file was synced. What was written since may
 *   be missing; be there by half; or the file has its full size, with zeros, somebody else's old data, or
 *   the first half of its own.
 *
 * This is less than any journalling file system keeps. Of a disk that lies, nothing is certain.
 */
#ifndef NSA_TEST_DISK_MODEL_H
#define NSA_TEST_DISK_MODEL_H

#include "disk_log.h"

/* What becomes of data that was not synced. */
typedef enum disk_loss {
  DISK_KEPT,
  DISK_LOST,
  DISK_ZEROS,
  DISK_HALF,
  DISK_STALE,
  DISK_TORN,
  DISK_LOSSES
} disk_loss;

typedef struct disk_crash {
  int prefix;          /* calls before the power fails */
  int done;            /* changes that have to be there: they were reported as made */
  disk_loss loss;      /* of all files */
  bool kept[DISK_OPS]; /* which changes of names are on the disk */
} disk_crash;

typedef void (*disk_check)(void *user, const disk_crash *crash);

static bool disk_changes_names(const disk_op *op) {
  return (op->kind == DISK_CREATE && op->name[0]) || op->kind == DISK_FOLDER ||
         op->kind == DISK_LINK || op->kind == DISK_RENAME || op->kind == DISK_UNLINK;
}

/* Whether file or folder `number` is synced between the calls `from` and `to`. */
static bool disk_is_synced(int number, int from, int to) {
  if (disk.lies) return false;
  for (int i = from; i < to; i++)
    if (disk.op[i].kind == DISK_SYNC && disk.op[i].file == number) return true;
  return false;
}

/* ---- writing what is left into a real folder ---- */

#define DISK_FILE_BYTES ((size_t)1 << 16)

/* The bytes of a file; returns their number. */
static size_t disk_contents(const disk_crash *crash, int file, unsigned char *data) {
  size_t size = 0;
  for (int i = 0; i < crash->prefix; i++) {
    const disk_op *op = &disk.op[i];
    if (op->kind != DISK_WRITE || op->file != file) continue;
    size_t count = op->size;
    disk_must(op->at + count <= DISK_FILE_BYTES, "a large file");
    const disk_loss loss = disk_is_synced(file, i + 1, crash->prefix) ? DISK_KEPT : crash->loss;
    if (loss == DISK_LOST) continue;
    if (loss == DISK_HALF) count /= 2;
    if (op->at + count > size) {
      memset(data + size, 0, op->at + count - size);
      size = op->at + count;
    }
    if (loss == DISK_ZEROS || loss == DISK_STALE)
      memset(data + op->at, loss == DISK_ZEROS ? 0 : 0xa5, count);
    else
      memcpy(data + op->at, op->data, loss == DISK_TORN ? count / 2 : count);
  }
  return size;
}

/* A name, and the file or folder that has it; 0, the root: removed. */
typedef struct disk_entry {
  int folder, file;
  bool is_folder;
  const char *name;
} disk_entry;

static disk_entry *disk_find(disk_entry *entries, int count, int folder, const char *name) {
  for (int i = 0; i < count; i++)
    if (entries[i].file && entries[i].folder == folder && !strcmp(entries[i].name, name))
      return &entries[i];
  return NULL;
}

static int disk_entries(const disk_crash *crash, disk_entry *entries) {
  int count = 0;
  for (int i = 0; i < crash->prefix; i++) {
    const disk_op *op = &disk.op[i];
    if (!disk_changes_names(op) || !crash->kept[i]) continue;
    disk_entry *old = disk_find(entries, count, op->folder, op->name);
    if (old) old->file = 0;
    if (op->kind == DISK_UNLINK) continue;
    old = op->kind == DISK_RENAME ? disk_find(entries, count, op->folder, op->old_name) : NULL;
    if (old) old->file = 0;
    entries[count++] = (disk_entry){ op->folder, op->file, op->kind == DISK_FOLDER, op->name };
  }
  return count;
}

static void disk_make_folder(const disk_crash *crash, const disk_entry *entries, int count,
                             int folder, const char *path) {
  static unsigned char data[DISK_FILE_BYTES];
  char inner[PATH_MAX];
  for (int i = 0; i < count; i++) {
    if (!entries[i].file || entries[i].folder != folder) continue;
    disk_must(snprintf(inner, sizeof inner, "%s/%s", path, entries[i].name) < PATH_MAX, "a path");
    if (entries[i].is_folder) {
      disk_must(mkdir(inner, 0700) == 0, "a folder");
      disk_make_folder(crash, entries, count, entries[i].file, inner);
      continue;
    }
    const size_t size = disk_contents(crash, entries[i].file, data);
    int fd = open(inner, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    disk_must(fd >= 0 && write(fd, data, size) == (ssize_t)size, "a file");
    close(fd);
  }
}

/* Makes the empty folder `path` what is left of the log's folder. */
static inline void disk_restore(const disk_crash *crash, const char *path) {
  static disk_entry entries[DISK_OPS];
  disk_make_folder(crash, entries, disk_entries(crash, entries), DISK_ROOT, path);
}

/* ---- every crash ---- */

/* Whether the prefix ends with data that a loss may change. */
static bool disk_can_lose_data(int prefix) {
  for (int i = 0; i < prefix; i++)
    if (disk.op[i].kind == DISK_WRITE && !disk_is_synced(disk.op[i].file, i + 1, prefix))
      return true;
  return false;
}

static int disk_try_losses(disk_crash *crash, disk_check check, void *user) {
  const int losses = disk_can_lose_data(crash->prefix) ? DISK_LOSSES : 1;
  for (int loss = 0; loss < losses; loss++) {
    crash->loss = (disk_loss)loss;
    check(user, crash);
  }
  return losses;
}

static int disk_try_prefix(disk_crash *crash, disk_check check, void *user) {
  int unsure[DISK_OPS], count = 0, tried = 0;
  for (int i = 0; i < crash->prefix; i++) {
    const disk_op *op = &disk.op[i];
    if (!disk_changes_names(op)) continue;
    crash->kept[i] = true;
    if (!disk_is_synced(op->folder, i + 1, crash->prefix)) unsure[count++] = i;
  }
  for (int first = count; first >= 0; first--) {
    if (first < count) crash->kept[unsure[first]] = false;
    tried += disk_try_losses(crash, check, user);
  }
  for (int i = 0; i < count; i++) crash->kept[unsure[i]] = true;
  for (int i = 0; i + 1 < count; i++) { /* all but the last is among the first ones */
    crash->kept[unsure[i]] = false;
    tried += disk_try_losses(crash, check, user);
    crash->kept[unsure[i]] = true;
  }
  return tried;
}

/* Checks every state in which the power may leave the disk; returns how many there are. */
static inline int disk_try_all(disk_check check, void *user) {
  static disk_crash crash;
  int tried = 0;
  memset(&crash, 0, sizeof crash);
  for (; crash.prefix <= disk.count; crash.prefix++) {
    if (crash.prefix && !disk.lies) crash.done += disk.op[crash.prefix - 1].kind == DISK_DONE;
    tried += disk_try_prefix(&crash, check, user);
  }
  return tried;
}

#endif /* NSA_TEST_DISK_MODEL_H */
