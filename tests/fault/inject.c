/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A library for LD_PRELOAD that lets calls of the C library fail. tests/fault/sweep.py drives it.
 *
 * Only calls count whose return address lies in one of the modules of FAULT_MODULES, a list of parts
 * of file names ("program" is the executable itself). Thus the C library, NVRTC and the driver work
 * undisturbed. FAULT_CALL names a function, FAULT_AT says which of its calls fails (the first is 0),
 * FAULT_MODE whether that one alone fails ("once") or all from there on ("from"), and FAULT_ERRNO how.
 * A call fails as the kernel lets it fail: close() gives the descriptor back all the same, and the
 * functions of stdio set the error flag of their stream.
 *
 * With FAULT_PROGRAM only the program of that name is disturbed, and none that it starts.
 *
 * At the end each process appends one line to the file FAULT_REPORT: the faults that were injected, the
 * descriptors and blocks of memory that it holds more than at the beginning, and the calls of each
 * function. A forked process goes on with its parent's counts. FAULT_LEAKS adds where the blocks were
 * allocated.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* The allocators of the C library behind the names that are replaced here. They serve before dlsym can
 * be called, which allocates itself. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *block);

/* One row for each function that may fail; the 64-bit names are the same function. */
#define CALLS(X)                                                                                   \
  X(open)                                                                                          \
  X(openat)                                                                                        \
  X(read)                                                                                          \
  X(pread)                                                                                         \
  X(fstat)                                                                                         \
  X(stat)                                                                                          \
  X(fstatat)                                                                                       \
  X(fstatfs)                                                                                       \
  X(readlink)                                                                                      \
  X(fdopendir)                                                                                     \
  X(readdir)                                                                                       \
  X(write)                                                                                         \
  X(pwrite)                                                                                        \
  X(fsync)                                                                                         \
  X(linkat)                                                                                        \
  X(renameat)                                                                                      \
  X(unlinkat)                                                                                      \
  X(mkdir)                                                                                         \
  X(mkdirat)                                                                                       \
  X(close)                                                                                         \
  X(mmap)                                                                                          \
  X(fcntl)                                                                                         \
  X(flock)                                                                                         \
  X(memfd_create)                                                                                  \
  X(fork)                                                                                          \
  X(fopen)                                                                                         \
  X(fdopen)                                                                                        \
  X(fread)                                                                                         \
  X(fwrite)                                                                                        \
  X(fflush)                                                                                        \
  X(fclose)                                                                                        \
  X(pthread_create)                                                                                \
  X(malloc)                                                                                        \
  X(calloc)                                                                                        \
  X(realloc)                                                                                       \
  X(strdup)                                                                                        \
  X(aligned_alloc)

enum {
#define ROW(name) CALL_##name,
  CALLS(ROW)
#undef ROW
      CALL_COUNT
};

static const char *const call_names[] = {
#define ROW(name) #name,
  CALLS(ROW)
#undef ROW
};

static _Atomic long counts[CALL_COUNT];
static _Atomic long fired;

static struct {
  bool ready, from;
  int call, cause;
  long at;
  int descriptors; /* open at the beginning */
} fault = { .call = -1 };

/* ---- modules ---- */

static struct { uintptr_t begin, end; } ranges[64];
static int range_count;

static bool is_named(const char *path) {
  const char *list = getenv("FAULT_MODULES");
  if (!list) list = "program";
  while (*list) {
    const size_t length = strcspn(list, ",");
    char part[128] = "";
    memcpy(part, list, length < sizeof part ? length : sizeof part - 1);
    if (*path ? strstr(path, part) != NULL : !strcmp(part, "program")) return true;
    list += length + (list[length] == ',');
  }
  return false;
}

static int add_module(struct dl_phdr_info *info, size_t size, void *user) {
  (void)size, (void)user;
  if (!is_named(info->dlpi_name)) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    if (part->p_type != PT_LOAD || !(part->p_flags & PF_X) || range_count == 64) continue;
    ranges[range_count].begin = info->dlpi_addr + part->p_vaddr;
    ranges[range_count++].end = info->dlpi_addr + part->p_vaddr + part->p_memsz;
  }
  return 0;
}

static bool is_counted(const void *caller) {
  const uintptr_t at = (uintptr_t)caller;
  for (int i = 0; i < range_count; i++)
    if (at >= ranges[i].begin && at < ranges[i].end) return true;
  return false;
}

/* ---- the fault ---- */

static bool fails(int call, const void *caller) {
  if (!fault.ready || !is_counted(caller)) return false;
  const long number = atomic_fetch_add(&counts[call], 1);
  if (call != fault.call || number < fault.at || (number > fault.at && !fault.from)) return false;
  atomic_fetch_add(&fired, 1);
  errno = fault.cause;
  return true;
}

#define CALLER __builtin_return_address(0)
#define FAILS(name) fails(CALL_##name, CALLER)

/* ---- blocks of memory that counted callers hold ---- */

#define SLOTS (1u << 18)
#define REMOVED ((void *)-1)

static struct {
  void *block;
  const void *caller;
} slots[SLOTS];
static long blocks;
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned slot_of(const void *block) {
  return (unsigned)((uintptr_t)block / 16 * 2654435761u) & (SLOTS - 1);
}

static void remember(void *block, const void *caller) {
  if (!block || !fault.ready || !is_counted(caller)) return;
  pthread_mutex_lock(&slots_lock);
  unsigned i = slot_of(block);
  while (slots[i].block && slots[i].block != REMOVED) i = (i + 1) & (SLOTS - 1);
  slots[i].block = block;
  slots[i].caller = caller;
  blocks++;
  pthread_mutex_unlock(&slots_lock);
}

static void forget(const void *block) {
  if (!block || !fault.ready) return;
  pthread_mutex_lock(&slots_lock);
  unsigned i = slot_of(block);
  while (slots[i].block && slots[i].block != block) i = (i + 1) & (SLOTS - 1);
  if (slots[i].block) {
    slots[i].block = REMOVED;
    blocks--;
  }
  pthread_mutex_unlock(&slots_lock);
}

void *malloc(size_t size) {
  void *block = FAILS(malloc) ? NULL : __libc_malloc(size);
  remember(block, CALLER);
  return block;
}

void *calloc(size_t count, size_t size) {
  void *block = FAILS(calloc) ? NULL : __libc_calloc(count, size);
  remember(block, CALLER);
  return block;
}

void *realloc(void *old, size_t size) {
  if (FAILS(realloc)) return NULL;
  forget(old);
  void *block = __libc_realloc(old, size);
  remember(block ? block : old, CALLER);
  return block;
}

void *aligned_alloc(size_t alignment, size_t size) {
  void *block = FAILS(aligned_alloc) ? NULL : __libc_memalign(alignment, size);
  remember(block, CALLER);
  return block;
}

char *strdup(const char *text) {
  const size_t size = strlen(text) + 1;
  char *copy = FAILS(strdup) ? NULL : __libc_malloc(size);
  if (copy) memcpy(copy, text, size);
  remember(copy, CALLER);
  return copy;
}

void free(void *block) {
  forget(block);
  __libc_free(block);
}

/* ---- begin and end ---- */

static int open_descriptors(void) {
  int count = 0;
  for (int fd = 0; fd < 256; fd++) count += syscall(SYS_fcntl, fd, F_GETFD) >= 0;
  return count;
}

static char report_path[512];
static pid_t reporter; /* a child that it forks does not report */

static void report(void) {
  char text[4096];
  size_t used =
      (size_t)snprintf(text, sizeof text, "fired=%ld descriptors=%d blocks=%ld",
                       atomic_load(&fired), open_descriptors() - fault.descriptors, blocks);
  for (int i = 0; i < CALL_COUNT; i++)
    used += (size_t)snprintf(text + used, sizeof text - used, " %s=%ld", call_names[i],
                             atomic_load(&counts[i]));
  for (unsigned i = 0; getenv("FAULT_LEAKS") && i < SLOTS && used < 3800; i++)
    if (slots[i].block && slots[i].block != REMOVED)
      used += (size_t)snprintf(text + used, sizeof text - used, " leak=%#lx",
                               (unsigned long)((uintptr_t)slots[i].caller - ranges[0].begin));
  text[used++] = '\n';
  const long fd = syscall(SYS_openat, AT_FDCWD, report_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (fd < 0 || syscall(SYS_write, fd, text, used) != (long)used)
    fprintf(stderr, "inject: no report can be written into %s\n", report_path);
  if (fd >= 0) syscall(SYS_close, fd);
}

/* A program that cannot write its output ends without running the handlers that are left. */
void _exit(int status) {
  if (fault.ready && getpid() == reporter) report();
  for (;;) syscall(SYS_exit_group, status);
}

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FAULT_REPORT"), *call = getenv("FAULT_CALL");
  const char *at = getenv("FAULT_AT"), *cause = getenv("FAULT_ERRNO"), *mode = getenv("FAULT_MODE");
  const char *program = getenv("FAULT_PROGRAM");
  if (!path || (program && strcmp(program, program_invocation_short_name))) return;
  snprintf(report_path, sizeof report_path, "%s", path);
  for (int i = 0; call && i < CALL_COUNT; i++)
    if (!strcmp(call, call_names[i])) fault.call = i;
  if (call && (fault.call < 0 || !at || !cause || !mode)) {
    fprintf(stderr, "inject: no function %s, or FAULT_AT, _ERRNO or _MODE is missing\n", call);
    _exit(99);
  }
  fault.at = at ? atol(at) : 0;
  fault.cause = cause ? atoi(cause) : 0;
  fault.from = mode && !strcmp(mode, "from");
  fault.descriptors = open_descriptors();
  dl_iterate_phdr(add_module, NULL);
  /* Handlers run in reverse order: this one runs after those of the program. */
  atexit(report);
  reporter = getpid();
  fault.ready = true;
}

/* ---- files ---- */

/* Stores the function of the C library behind the name at `next`. A void * is no function in C. */
static void find_next(const char *name, void *next) {
  void *address = dlsym(RTLD_NEXT, name);
  memcpy(next, &address, sizeof address);
}

#define NEXT(name)                                                                                 \
  __typeof__(&name) next;                                                                          \
  find_next(#name, &next)

#define MODE_OF(flags, mode)                                                                       \
  mode_t mode = 0;                                                                                 \
  if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                         \
    va_list rest;                                                                                  \
    va_start(rest, flags);                                                                         \
    mode = va_arg(rest, mode_t);                                                                   \
    va_end(rest);                                                                                  \
  }

#define OPEN(name)                                                                                 \
  int name(const char *path, int flags, ...) {                                                     \
    MODE_OF(flags, mode)                                                                           \
    return FAILS(open) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);               \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                               \
  int name(int folder, const char *path, int flags, ...) {                                         \
    MODE_OF(flags, mode)                                                                           \
    return FAILS(openat) ? -1 : (int)syscall(SYS_openat, folder, path, flags, mode);               \
  }
OPENAT(openat)
OPENAT(openat64)

/* A function of its own name, or of a 64-bit one, that returns `failure`. */
#define PLAIN(call, type, name, failure, parameters, arguments)                                    \
  type name parameters {                                                                           \
    NEXT(name);                                                                                    \
    if (FAILS(call)) return failure;                                                               \
    return next arguments;                                                                         \
  }

PLAIN(read, ssize_t, read, -1, (int fd, void *data, size_t size), (fd, data, size))
PLAIN(pread, ssize_t, pread, -1, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
PLAIN(pread, ssize_t, pread64, -1, (int fd, void *data, size_t size, off64_t at),
      (fd, data, size, at))
PLAIN(fstat, int, fstat, -1, (int fd, struct stat *st), (fd, st))
PLAIN(fstat, int, fstat64, -1, (int fd, struct stat64 *st), (fd, st))
PLAIN(fstatat, int, fstatat, -1, (int folder, const char *path, struct stat *st, int flags),
      (folder, path, st, flags))
PLAIN(fstatat, int, fstatat64, -1, (int folder, const char *path, struct stat64 *st, int flags),
      (folder, path, st, flags))
PLAIN(fstatfs, int, fstatfs, -1, (int fd, struct statfs *fs), (fd, fs))
PLAIN(fstatfs, int, fstatfs64, -1, (int fd, struct statfs64 *fs), (fd, fs))
PLAIN(readlink, ssize_t, readlink, -1, (const char *path, char *text, size_t size),
      (path, text, size))
PLAIN(stat, int, stat, -1, (const char *path, struct stat *st), (path, st))
PLAIN(stat, int, stat64, -1, (const char *path, struct stat64 *st), (path, st))
PLAIN(fdopendir, DIR *, fdopendir, NULL, (int fd), (fd))
PLAIN(readdir, struct dirent *, readdir, NULL, (DIR * dir), (dir))
PLAIN(readdir, struct dirent64 *, readdir64, NULL, (DIR * dir), (dir))
PLAIN(write, ssize_t, write, -1, (int fd, const void *data, size_t size), (fd, data, size))
PLAIN(pwrite, ssize_t, pwrite, -1, (int fd, const void *data, size_t size, off_t at),
      (fd, data, size, at))
PLAIN(pwrite, ssize_t, pwrite64, -1, (int fd, const void *data, size_t size, off64_t at),
      (fd, data, size, at))
PLAIN(fsync, int, fsync, -1, (int fd), (fd))
PLAIN(linkat, int, linkat, -1,
      (int from, const char *old_path, int to, const char *new_path, int flags),
      (from, old_path, to, new_path, flags))
PLAIN(renameat, int, renameat, -1, (int from, const char *old_path, int to, const char *new_path),
      (from, old_path, to, new_path))
PLAIN(unlinkat, int, unlinkat, -1, (int folder, const char *path, int flags), (folder, path, flags))
PLAIN(mkdir, int, mkdir, -1, (const char *path, mode_t mode), (path, mode))
PLAIN(mkdirat, int, mkdirat, -1, (int folder, const char *path, mode_t mode), (folder, path, mode))
PLAIN(mmap, void *, mmap, MAP_FAILED,
      (void *address, size_t size, int rights, int flags, int fd, off_t at),
      (address, size, rights, flags, fd, at))
PLAIN(mmap, void *, mmap64, MAP_FAILED,
      (void *address, size_t size, int rights, int flags, int fd, off64_t at),
      (address, size, rights, flags, fd, at))
PLAIN(flock, int, flock, -1, (int fd, int operation), (fd, operation))
PLAIN(memfd_create, int, memfd_create, -1, (const char *name, unsigned flags), (name, flags))
PLAIN(fork, pid_t, fork, -1, (void), ())
PLAIN(fopen, FILE *, fopen, NULL, (const char *path, const char *mode), (path, mode))
PLAIN(fopen, FILE *, fopen64, NULL, (const char *path, const char *mode), (path, mode))
PLAIN(fdopen, FILE *, fdopen, NULL, (int fd, const char *mode), (fd, mode))

/* Commands of fcntl take nothing or an integer here. */
#define FCNTL(name)                                                                                \
  int name(int fd, int command, ...) {                                                             \
    va_list rest;                                                                                  \
    va_start(rest, command);                                                                       \
    const long value = va_arg(rest, long);                                                         \
    va_end(rest);                                                                                  \
    return FAILS(fcntl) ? -1 : (int)syscall(SYS_fcntl, fd, command, value);                        \
  }
FCNTL(fcntl)
FCNTL(fcntl64)

int close(int fd) {
  const bool failed = FAILS(close);
  const int cause = errno;
  const int result = (int)syscall(SYS_close, fd);
  if (!failed) return result;
  errno = cause;
  return -1;
}

/* ---- stdio ---- */

/* What the C library notes when a system call behind the stream fails. */
static void set_error(FILE *file) { file->_flags |= 0x20; }

size_t fread(void *data, size_t size, size_t count, FILE *file) {
  NEXT(fread);
  if (!FAILS(fread)) return next(data, size, count, file);
  set_error(file);
  return 0;
}

size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
  NEXT(fwrite);
  if (!FAILS(fwrite)) return next(data, size, count, file);
  set_error(file);
  return 0;
}

int fflush(FILE *file) {
  NEXT(fflush);
  if (!FAILS(fflush)) return next(file);
  if (file) set_error(file);
  return EOF;
}

int fclose(FILE *file) {
  NEXT(fclose);
  const bool failed = FAILS(fclose);
  const int cause = errno;
  const int result = next(file);
  if (!failed) return result;
  errno = cause;
  return EOF;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument) {
  NEXT(pthread_create);
  return FAILS(pthread_create) ? EAGAIN : next(thread, attributes, run, argument);
}
