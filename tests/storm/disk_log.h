/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A log of everything that the library does to the files below one folder. The test's program is
 * linked so that these calls of the C library come here first; they happen, and are noted.
 *
 * Files and folders have numbers, since the system gives the inode of a removed file to the next one.
 * For one thread.
 */
#ifndef NSA_TEST_DISK_LOG_H
#define NSA_TEST_DISK_LOG_H

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum disk_kind {
  DISK_CREATE, /* an empty file; name "": without a name */
  DISK_FOLDER, /* an empty folder */
  DISK_WRITE,
  DISK_SYNC, /* fsync of a file or a folder */
  DISK_LINK,
  DISK_RENAME, /* from `old_name` */
  DISK_UNLINK,
  DISK_DONE /* the caller was told that its change is made */
} disk_kind;

#define DISK_NAME_CHARS 80

typedef struct disk_op {
  disk_kind kind;
  int file;   /* the number of the file or folder that is made, written, synced or named */
  int folder; /* the number of the folder in which a name changes */
  char name[DISK_NAME_CHARS], old_name[DISK_NAME_CHARS];
  size_t at, size;
  unsigned char *data; /* of a write; owned */
} disk_op;

#define DISK_OPS 1024
#define DISK_ROOT 0 /* the number of the folder itself */

static struct {
  bool on;
  bool no_unnamed_files; /* as on a file system that has none */
  bool lies;             /* fsync returns before anything is on the disk */
  disk_op op[DISK_OPS];
  int count;
  ino_t inode[DISK_OPS]; /* of each number; the last one counts */
  int numbers;
} disk;

static void disk_must(bool good, const char *what) {
  if (good) return;
  fprintf(stderr, "the log of the disk: %s\n", what);
  abort();
}

/* -1: not below the folder. */
static int disk_number(ino_t inode) {
  for (int i = disk.numbers - 1; i >= 0; i--)
    if (disk.inode[i] == inode) return i;
  return -1;
}

static int disk_number_of(int fd) {
  struct stat st;
  return fstat(fd, &st) == 0 ? disk_number(st.st_ino) : -1;
}

static int disk_number_at(int folder, const char *name) {
  struct stat st;
  return fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? disk_number(st.st_ino) : -1;
}

static int disk_new_number(ino_t inode) {
  disk_must(disk.numbers < DISK_OPS, "too many files");
  disk.inode[disk.numbers] = inode;
  return disk.numbers++;
}

static disk_op *disk_note(disk_kind kind, int file, int folder, const char *name) {
  disk_must(disk.count < DISK_OPS, "too many calls");
  disk_op *op = &disk.op[disk.count++];
  *op = (disk_op){ .kind = kind, .file = file, .folder = folder };
  disk_must(snprintf(op->name, sizeof op->name, "%s", name) < DISK_NAME_CHARS, "a long name");
  return op;
}

static void disk_note_write(int fd, const void *data, size_t at, size_t size) {
  const int file = disk_number_of(fd);
  if (file < 0) return;
  disk_op *op = disk_note(DISK_WRITE, file, 0, "");
  op->at = at;
  op->size = size;
  op->data = malloc(size);
  disk_must(op->data != NULL, "memory");
  memcpy(op->data, data, size);
}

/* ---- the calls ---- */

int __real_openat64(int folder, const char *path, int flags, ...);
int __wrap_openat64(int folder, const char *path, int flags, ...);
int __wrap_openat64(int folder, const char *path, int flags, ...) {
  va_list rest;
  mode_t mode = 0;
  struct stat st;
  const bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
  va_start(rest, flags);
  if (flags & O_CREAT || unnamed) mode = va_arg(rest, mode_t);
  va_end(rest);
  if (unnamed && disk.no_unnamed_files) {
    errno = EOPNOTSUPP;
    return -1;
  }
  const bool is_new =
      unnamed || (flags & O_CREAT && fstatat(folder, path, &st, AT_SYMLINK_NOFOLLOW) != 0);
  int fd = __real_openat64(folder, path, flags, mode);
  if (!disk.on || fd < 0 || !is_new || disk_number_of(folder) < 0) return fd;
  disk_must(fstat(fd, &st) == 0 && !(flags & O_TRUNC), "a new file");
  disk_note(DISK_CREATE, disk_new_number(st.st_ino), disk_number_of(folder), unnamed ? "" : path);
  return fd;
}

ssize_t __real_write(int fd, const void *data, size_t size);
ssize_t __wrap_write(int fd, const void *data, size_t size);
ssize_t __wrap_write(int fd, const void *data, size_t size) {
  const off_t at = disk.on ? lseek(fd, 0, SEEK_CUR) : -1;
  ssize_t done = __real_write(fd, data, size);
  if (at >= 0 && done > 0) disk_note_write(fd, data, (size_t)at, (size_t)done);
  return done;
}

ssize_t __real_pwrite64(int fd, const void *data, size_t size, off64_t at);
ssize_t __wrap_pwrite64(int fd, const void *data, size_t size, off64_t at);
ssize_t __wrap_pwrite64(int fd, const void *data, size_t size, off64_t at) {
  ssize_t done = __real_pwrite64(fd, data, size, at);
  if (disk.on && done > 0) disk_note_write(fd, data, (size_t)at, (size_t)done);
  return done;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
  int result = __real_fsync(fd);
  if (disk.on && result == 0 && disk_number_of(fd) >= 0)
    disk_note(DISK_SYNC, disk_number_of(fd), 0, "");
  return result;
}

int __real_linkat(int from, const char *path, int to, const char *name, int flags);
int __wrap_linkat(int from, const char *path, int to, const char *name, int flags);
int __wrap_linkat(int from, const char *path, int to, const char *name, int flags) {
  int result = __real_linkat(from, path, to, name, flags);
  if (disk.on && result == 0 && disk_number_of(to) >= 0)
    disk_note(DISK_LINK, disk_number_at(to, name), disk_number_of(to), name);
  return result;
}

int __real_renameat(int from, const char *path, int to, const char *name);
int __wrap_renameat(int from, const char *path, int to, const char *name);
int __wrap_renameat(int from, const char *path, int to, const char *name) {
  int result = __real_renameat(from, path, to, name);
  if (!disk.on || result != 0 || disk_number_of(to) < 0) return result;
  disk_must(disk_number_of(from) == disk_number_of(to), "a rename into another folder");
  disk_op *op = disk_note(DISK_RENAME, disk_number_at(to, name), disk_number_of(to), name);
  snprintf(op->old_name, sizeof op->old_name, "%s", path);
  return result;
}

int __real_unlinkat(int folder, const char *name, int flags);
int __wrap_unlinkat(int folder, const char *name, int flags);
int __wrap_unlinkat(int folder, const char *name, int flags) {
  int result = __real_unlinkat(folder, name, flags);
  if (disk.on && result == 0 && disk_number_of(folder) >= 0)
    disk_note(DISK_UNLINK, -1, disk_number_of(folder), name);
  return result;
}

int __real_mkdirat(int folder, const char *name, mode_t mode);
int __wrap_mkdirat(int folder, const char *name, mode_t mode);
int __wrap_mkdirat(int folder, const char *name, mode_t mode) {
  struct stat st;
  int result = __real_mkdirat(folder, name, mode);
  if (!disk.on || result != 0 || disk_number_of(folder) < 0) return result;
  disk_must(fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0, "a new folder");
  disk_note(DISK_FOLDER, disk_new_number(st.st_ino), disk_number_of(folder), name);
  return result;
}

int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode) {
  char parent[PATH_MAX], name[PATH_MAX];
  if (!disk.on) return __real_mkdir(path, mode);
  snprintf(parent, sizeof parent, "%s", path);
  snprintf(name, sizeof name, "%s", path);
  int folder = open(dirname(parent), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int result = folder < 0 ? __real_mkdir(path, mode) : mkdirat(folder, basename(name), mode);
  const int cause = errno;
  if (folder >= 0) close(folder);
  errno = cause;
  return result;
}

/* ---- the test's part ---- */

/* Begins the log of what happens below `root`, which is empty. */
static inline void disk_begin(const char *root) {
  struct stat st;
  for (int i = 0; i < disk.count; i++) free(disk.op[i].data);
  memset(&disk, 0, sizeof disk);
  disk_must(stat(root, &st) == 0, "the folder");
  disk_must(disk_new_number(st.st_ino) == DISK_ROOT, "the folder's number");
  disk.on = true;
}

/* Says that a change has been reported as made. */
static inline void disk_done(void) {
  if (disk.on) disk_note(DISK_DONE, -1, -1, "");
}

static inline void disk_end(void) { disk.on = false; }

#endif /* NSA_TEST_DISK_LOG_H */
