/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "base/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* ---- reading ---- */

/* Reads exactly `size` bytes. False with errno set; ENODATA when the file ends early. */
static bool read_exactly(int fd, char *data, size_t size) {
  size_t done = 0;
  while (done < size) {
    ssize_t got = read(fd, data + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = ENODATA;
    if (got <= 0) return false;
    done += (size_t)got;
  }
  return true;
}

static bool owner_allowed(const struct stat *st, nsai_files_owner owner) {
  return st->st_uid == geteuid() || (owner == NSAI_FILES_OWN_OR_ROOT && st->st_uid == 0);
}

/* Never NSAI_FILES_MISSING. A file that ends early was cut off meanwhile: the next reader will see
 * what became of it. */
static nsai_files_outcome read_open_file(int fd, size_t limit, char **data, struct stat *st,
                                         char *fault) {
  nsai_files_outcome outcome = NSAI_FILES_UNREADABLE;
  int cause = 0;
  if (fstat(fd, st) != 0) {
    cause = errno;
    snprintf(fault, NSAI_FILES_FAULT_CHARS, "cannot be examined: %s", strerror(cause));
  } else if (!S_ISREG(st->st_mode)) {
    outcome = NSAI_FILES_DAMAGED;
    snprintf(fault, NSAI_FILES_FAULT_CHARS, "is not a regular file");
  } else if ((uint64_t)st->st_size > limit) {
    outcome = NSAI_FILES_DAMAGED;
    snprintf(fault, NSAI_FILES_FAULT_CHARS, "has %lld bytes, more than the %zu allowed",
             (long long)st->st_size, limit);
  } else if ((*data = malloc((size_t)st->st_size + 1)) == NULL) {
    cause = ENOMEM;
    snprintf(fault, NSAI_FILES_FAULT_CHARS, "needs more memory than there is");
  } else if (!read_exactly(fd, *data, (size_t)st->st_size)) {
    cause = errno;
    snprintf(fault, NSAI_FILES_FAULT_CHARS, "cannot be read: %s", strerror(cause));
    free(*data);
    *data = NULL;
  } else {
    (*data)[st->st_size] = '\0';
    outcome = NSAI_FILES_PRESENT;
  }
  errno = cause;
  return outcome;
}

nsa_status nsai_files_read(int folder, const char *path, size_t limit, char **data, size_t *size) {
  struct stat st;
  char fault[NSAI_FILES_FAULT_CHARS];
  *data = NULL;
  /* O_NONBLOCK: opening must not block when the file is a FIFO, which is refused afterwards. */
  int fd = openat(folder, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return nsai_fail(NSA_E_IO, "%s cannot be opened: %s", path, strerror(errno));
  nsai_files_outcome outcome = read_open_file(fd, limit, data, &st, fault);
  bool no_memory = errno == ENOMEM;
  close(fd);
  if (outcome == NSAI_FILES_UNREADABLE && no_memory) return nsai_fail_nomem(path, limit);
  if (outcome != NSAI_FILES_PRESENT) return nsai_fail(NSA_E_IO, "%s %s", path, fault);
  *size = (size_t)st.st_size;
  return NSA_OK;
}

/* Why a file could not be opened. Links are not followed, and sockets cannot be opened at all. */
static nsai_files_outcome outcome_of_open(int folder, const char *name, struct stat *st,
                                          char *fault) {
  const int cause = errno;
  nsai_files_outcome outcome = cause == ENOENT ? NSAI_FILES_MISSING : NSAI_FILES_UNREADABLE;
  snprintf(fault, NSAI_FILES_FAULT_CHARS, "cannot be opened: %s", strerror(cause));
  if ((cause == ELOOP || cause == ENXIO) && fstatat(folder, name, st, AT_SYMLINK_NOFOLLOW) == 0 &&
      !S_ISREG(st->st_mode))
    outcome = NSAI_FILES_DAMAGED;
  errno = cause;
  return outcome;
}

nsai_files_outcome nsai_files_read_trusted(int folder, const char *name, size_t limit, char **data,
                                           struct stat *st, char fault[NSAI_FILES_FAULT_CHARS]) {
  *data = NULL;
  *fault = '\0';
  memset(st, 0, sizeof *st);
  int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW);
  if (fd < 0) return outcome_of_open(folder, name, st, fault);
  nsai_files_outcome outcome = read_open_file(fd, limit, data, st, fault);
  const int cause = errno;
  close(fd);
  if (outcome == NSAI_FILES_PRESENT &&
      (!owner_allowed(st, NSAI_FILES_OWN_OR_ROOT) || st->st_mode & 022)) {
    free(*data);
    *data = NULL;
    snprintf(fault, NSAI_FILES_FAULT_CHARS, "belongs to another user or is writable by others");
    outcome = NSAI_FILES_DAMAGED;
  }
  if (outcome == NSAI_FILES_UNREADABLE) memset(st, 0, sizeof *st);
  errno = cause;
  return outcome;
}

/* ---- folders ---- */

int nsai_files_open_folder(int parent, const char *path, nsai_files_owner owner, char *why,
                           size_t size) {
  struct stat st;
  int fd = openat(parent, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    int cause = errno;
    snprintf(why, size, "%s",
             cause == ELOOP || cause == ENOTDIR ? "it is a symbolic link or not a folder"
                                                : strerror(cause));
    errno = cause;
    return -1;
  }
  const char *fault = NULL;
  if (fstat(fd, &st) != 0)
    fault = "it cannot be examined";
  else if (!owner_allowed(&st, owner))
    fault = owner == NSAI_FILES_OWN ? "it belongs to another user"
                                    : "it belongs neither to root nor to this user";
  else if (st.st_mode & 022)
    fault = "group or others may write to it (chmod go-w)";
  if (!fault) return fd;
  snprintf(why, size, "%s", fault);
  close(fd);
  errno = EPERM;
  return -1;
}

/* Some file systems sync no folders (EINVAL); nothing more can be done there. */
bool nsai_files_sync_folder(int folder) { return fsync(folder) == 0 || errno == EINVAL; }

void nsai_files_make_folder(int folder, const char *name) {
  if (mkdirat(folder, name, 0700) == 0) nsai_files_sync_folder(folder);
}

/* Brings a new folder's name to the disk. */
static void sync_parent(char *path) {
  char *slash = strrchr(path, '/');
  if (slash && slash != path) *slash = '\0';
  int parent = open(!slash ? "." : slash == path ? "/" : path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (slash && slash != path) *slash = '/';
  if (parent < 0) return;
  nsai_files_sync_folder(parent);
  close(parent);
}

bool nsai_files_make_folders(const char *path) {
  char part[PATH_MAX];
  size_t length = strlen(path);
  if (length == 0 || length >= sizeof part) {
    errno = length ? ENAMETOOLONG : ENOENT;
    return false;
  }
  for (size_t i = 1; i <= length; i++) {
    if (path[i] != '/' && path[i] != '\0') continue;
    memcpy(part, path, i);
    part[i] = '\0';
    /* For an existing part mkdir may return another code than EEXIST (read-only, automounted).
     * Opening the last part shows whether it is a folder. */
    if (mkdir(part, 0700) == 0)
      sync_parent(part);
    else if (errno != EEXIST && access(part, F_OK) != 0)
      return false;
  }
  return true;
}

bool nsai_files_is_network(int folder) {
  /* f_type of linux/magic.h and of file systems outside the kernel. */
  static const uint32_t types[] = {
    0x6969,     /* NFS */
    0x517b,     /* SMB */
    0xff534d42, /* CIFS */
    0xfe534d42, /* SMB 2 */
    0x5346414f, /* AFS */
    0x01021997, /* 9P */
    0x00c36400, /* Ceph */
    0x0bd00bd0, /* Lustre */
    0x47504653, /* GPFS */
    0x19830326, /* BeeGFS */
    0xaad7aaea, /* PanFS */
    0x7461636f, /* OCFS2 */
    0x01161970, /* GFS2 */
    0x20030528, /* OrangeFS */
    0x65735546, /* FUSE: sshfs, glusterfs and similar */
  };
  struct statfs fs;
  if (fstatfs(folder, &fs) != 0) return true;
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
    if ((uint32_t)fs.f_type == types[i]) return true;
  return false;
}

/* ---- publishing ---- */

/* A write beyond RLIMIT_FSIZE raises SIGXFSZ, which ends the process by default. The signal is
 * blocked and consumed here, so that the write fails with EFBIG and the host's handler never
 * runs. */
typedef struct signal_guard {
  sigset_t before;
  bool was_pending;
} signal_guard;

static void guard_begin(signal_guard *guard) {
  sigset_t xfsz, pending;
  sigemptyset(&xfsz);
  sigaddset(&xfsz, SIGXFSZ);
  guard->was_pending = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
  pthread_sigmask(SIG_BLOCK, &xfsz, &guard->before);
}

static void guard_end(const signal_guard *guard) {
  sigset_t xfsz;
  const struct timespec now = { 0, 0 };
  int saved = errno;
  sigemptyset(&xfsz);
  sigaddset(&xfsz, SIGXFSZ);
  if (!guard->was_pending)
    while (sigtimedwait(&xfsz, NULL, &now) < 0 && errno == EINTR) {}
  pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
  errno = saved;
}

bool nsai_files_write_synced(int fd, const void *data, size_t size) {
  const char *bytes = data;
  signal_guard guard;
  size_t done = 0;
  guard_begin(&guard);
  while (done < size) {
    ssize_t put = write(fd, bytes + done, size - done);
    if (put < 0 && errno == EINTR) continue;
    if (put == 0) errno = ENOSPC;
    if (put <= 0) break;
    done += (size_t)put;
  }
  guard_end(&guard);
  return done == size && fsync(fd) == 0;
}

/* Publishes through a file without a name, so that nothing remains if this process dies. 1:
 * published, 0: failed with errno, -1: not possible on this file system (or without /proc). */
static int publish_by_link(int folder, const char *name, const void *data, size_t size) {
  char path[64];
  int fd = openat(folder, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) return errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL ? -1 : 0;
  int result = nsai_files_write_synced(fd, data, size);
  if (result) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, path, folder, name, AT_SYMLINK_FOLLOW) != 0 && errno != EEXIST)
      result = errno == ENOENT ? -1 : 0;
    /* Also if another process was faster: it may not have come so far. */
    if (result == 1 && !nsai_files_sync_folder(folder)) result = 0;
  }
  int cause = errno;
  /* The data has been on disk since fsync; closing cannot fail on local file systems. */
  close(fd);
  errno = cause;
  return result;
}

bool nsai_files_was_swept(int fd) {
  struct stat st;
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return true;
  return fstat(fd, &st) == 0 && st.st_nlink == 0;
}

void nsai_files_temporary_name(char name[NSAI_FILES_TEMPORARY_CHARS]) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  snprintf(name, NSAI_FILES_TEMPORARY_CHARS, ".tmp-%ld-%lx-%lx", (long)getpid(), (long)now.tv_nsec,
           (long)((uintptr_t)&now >> 4)); /* pid, time and a stack address: unique per thread */
}

/* Publishes through a named temporary file. Its lock marks it as in use, so that a cleaner does
 * not remove it. The duplicated descriptor holds the lock while the first one is closed and
 * checked: network file systems report write errors on close. ENOENT: a cleaner has removed the
 * file. */
static bool rename_once(int folder, const char *name, const void *data, size_t size) {
  char temporary[NSAI_FILES_TEMPORARY_CHARS];
  nsai_files_temporary_name(temporary);
  int fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  int alive = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  int cause = errno;
  bool good = alive >= 0;
  if (good && nsai_files_was_swept(fd)) {
    good = false;
    cause = ENOENT;
  }
  if (good && !nsai_files_write_synced(fd, data, size)) {
    good = false;
    cause = errno;
  }
  if (close(fd) != 0 && good) {
    good = false;
    cause = errno;
  }
  if (good && (renameat(folder, temporary, folder, name) != 0 || !nsai_files_sync_folder(folder))) {
    good = false;
    cause = errno;
  }
  if (!good) unlinkat(folder, temporary, 0);
  if (alive >= 0) close(alive);
  errno = cause;
  return good;
}

static bool publish_by_rename(int folder, const char *name, const void *data, size_t size) {
  /* A retry is needed only if a cleaner runs within the microseconds between creating and
   * locking. On a busy machine a writer may be preempted there repeatedly. */
  enum { TRIES = 20, PAUSE_US = 200 };
  bool done = false;
  for (int i = 0; i < TRIES && !done; i++) {
    done = rename_once(folder, name, data, size);
    if (!done && errno != ENOENT) break;
    if (!done) usleep((useconds_t)(PAUSE_US * i));
  }
  return done;
}

nsa_status nsai_files_publish(int folder, const char *name, const void *data, size_t size,
                              bool by_rename) {
  int linked = by_rename ? -1 : publish_by_link(folder, name, data, size);
  if (linked == 1 || (linked < 0 && publish_by_rename(folder, name, data, size))) return NSA_OK;
  int cause = errno;
  nsa_status status = nsai_fail(NSA_E_IO, "%s cannot be written: %s", name, strerror(cause));
  errno = cause;
  return status;
}

bool nsai_files_unlink_same(int folder, const char *name, const struct stat *st) {
  struct stat now;
  return fstatat(folder, name, &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_dev == st->st_dev &&
         now.st_ino == st->st_ino && now.st_size == st->st_size && unlinkat(folder, name, 0) == 0;
}

/* ---- locks ---- */

int nsai_files_lock(int folder, const char *name) {
  int fd = openat(folder, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  int cause = errno;
  close(fd);
  errno = cause;
  return -1;
}

void nsai_files_unlock(int lock) {
  if (lock < 0) return;
  flock(lock, LOCK_UN); /* closing alone would leave the lock to the copies of forked children */
  close(lock);
}

/* Removes a temporary folder, open as `fd`, and the files in it. False with errno: it stays. */
static bool remove_folder(int folder, const char *name, int fd) {
  /* Opens it again: the descriptor goes with the listing. */
  int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = again >= 0 ? fdopendir(again) : NULL;
  if (!dir) {
    int cause = errno;
    if (again >= 0) close(again);
    errno = cause;
    return false;
  }
  for (const struct dirent *item; (item = readdir(dir)) != NULL;)
    if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)
      unlinkat(fd, item->d_name, 0);
  closedir(dir);
  return unlinkat(folder, name, AT_REMOVEDIR) == 0 || errno == ENOENT;
}

bool nsai_files_remove_abandoned(int folder, const char *name) {
  struct stat st;
  int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno == ENOENT;
  /* Hold the lock until the file is removed, so that its writer cannot lock it in between. */
  bool settled;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
      settled = remove_folder(folder, name, fd);
    else
      settled = unlinkat(folder, name, 0) == 0 || errno == ENOENT;
  } else {
    settled = errno == EWOULDBLOCK;
  }
  int cause = errno;
  nsai_files_unlock(fd);
  errno = cause;
  return settled;
}
