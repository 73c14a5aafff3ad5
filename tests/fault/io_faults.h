/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Calls of the C library that open and read, and fail: the test's program is linked so that these come here first.
 */
#ifndef NSA_TEST_IO_FAULTS_H
#define NSA_TEST_IO_FAULTS_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

/* The call that fails, by its name; how many of them come before; errno. */
static const char *io_fault_call = "";
static long io_fault_countdown = -1;
static int io_fault_cause;

static bool io_fails(const char *call) {
  if (io_fault_countdown < 0 || strcmp(call, io_fault_call) != 0) return false;
  if (io_fault_countdown-- > 0) return false;
  errno = io_fault_cause;
  return true;
}

int __real_openat64(int folder, const char *path, int flags, ...);
int __wrap_openat64(int folder, const char *path, int flags, ...);
int __wrap_openat64(int folder, const char *path, int flags, ...) {
  va_list rest;
  mode_t mode = 0;
  va_start(rest, flags);
  if (flags & (O_CREAT | __O_TMPFILE)) mode = va_arg(rest, mode_t);
  va_end(rest);
  return io_fails("openat") ? -1 : __real_openat64(folder, path, flags, mode);
}

int __real_fstat64(int fd, struct stat *st);
int __wrap_fstat64(int fd, struct stat *st);
int __wrap_fstat64(int fd, struct stat *st) {
  return io_fails("fstat") ? -1 : __real_fstat64(fd, st);
}

ssize_t __real_pread64(int fd, void *data, size_t size, off_t at);
ssize_t __wrap_pread64(int fd, void *data, size_t size, off_t at);
ssize_t __wrap_pread64(int fd, void *data, size_t size, off_t at) {
  return io_fails("pread") ? -1 : __real_pread64(fd, data, size, at);
}

int __real_fstatat64(int folder, const char *path, struct stat *st, int flags);
int __wrap_fstatat64(int folder, const char *path, struct stat *st, int flags);
int __wrap_fstatat64(int folder, const char *path, struct stat *st, int flags) {
  return io_fails("fstatat") ? -1 : __real_fstatat64(folder, path, st, flags);
}

int __real_unlinkat(int folder, const char *path, int flags);
int __wrap_unlinkat(int folder, const char *path, int flags);
int __wrap_unlinkat(int folder, const char *path, int flags) {
  return io_fails("unlinkat") ? -1 : __real_unlinkat(folder, path, flags);
}

ssize_t __real_read(int fd, void *data, size_t size);
ssize_t __wrap_read(int fd, void *data, size_t size);
ssize_t __wrap_read(int fd, void *data, size_t size) {
  return io_fails("read") ? -1 : __real_read(fd, data, size);
}

struct dirent *__real_readdir64(DIR *dir);
struct dirent *__wrap_readdir64(DIR *dir);
struct dirent *__wrap_readdir64(DIR *dir) {
  return io_fails("readdir") ? NULL : __real_readdir64(dir);
}

/* Lets the call fail, once, that has `n` of its kind before it. */
static inline void io_fault_after(const char *call, long n, int cause) {
  io_fault_call = call, io_fault_countdown = n, io_fault_cause = cause;
}

/* Ends that; whether there were so many. */
static inline bool io_faulted(void) {
  const bool reached = io_fault_countdown < 0;
  io_fault_countdown = -1;
  return reached;
}

#endif /* NSA_TEST_IO_FAULTS_H */
