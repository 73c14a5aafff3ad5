/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A cache in a temporary folder, and kernels with known bytes, for the cache's tests.
 */
#ifndef NSA_TEST_CACHE_FIXTURE_H
#define NSA_TEST_CACHE_FIXTURE_H

#include "support/cmocka_all.h"

#include "cache/cache.h"
#include "cache/entry.h"
#include "support/elf_cubin.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIXTURE_COMPILER "build-id:0123456789abcdef"
#define FIXTURE_ENTRY "attend_window_sm80"

typedef struct fixture {
  char dir[64];     /* the cache's folder, removed at the end */
  char kernels[80]; /* folder of the entries */
  nsai_logger logger;
  int warnings;    /* lines logged at WARN so far */
  char last[2048]; /* the last one */
} fixture;

static inline void fixture_log(void *user, int32_t level, const char *component, const char *text) {
  fixture *f = user;
  (void)component;
  if (level > NSA_LOG_WARN) return;
  f->warnings++;
  snprintf(f->last, sizeof f->last, "%s", text);
}

static inline void fixture_begin(fixture *f) {
  memset(f, 0, sizeof *f);
  snprintf(f->dir, sizeof f->dir, "/tmp/nsa-test-cache-XXXXXX");
  if (!mkdtemp(f->dir)) abort();
  snprintf(f->kernels, sizeof f->kernels, "%s/kernels", f->dir);
  nsai_logger_init(&f->logger, fixture_log, f, NSA_LOG_WARN);
}

/* Removes everything below `path`. */
static inline void fixture_remove(const char *path) {
  DIR *dir = opendir(path);
  for (const struct dirent *item; dir && (item = readdir(dir)) != NULL;) {
    char inner[PATH_MAX];
    struct stat st;
    if (!strcmp(item->d_name, ".") || !strcmp(item->d_name, "..")) continue;
    if (snprintf(inner, sizeof inner, "%s/%s", path, item->d_name) >= (int)sizeof inner) continue;
    if (lstat(inner, &st) == 0 && S_ISDIR(st.st_mode))
      fixture_remove(inner);
    else
      unlink(inner);
  }
  if (dir) closedir(dir);
  rmdir(path);
}

static inline void fixture_end(fixture *f) {
  fixture_remove(f->dir);
  nsai_logger_fini(&f->logger);
}

/* A test whose *state is a fixture. */
#define FIXTURE_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

static inline int fixture_setup(void **state) {
  static fixture f;
  fixture_begin(&f);
  *state = &f;
  return 0;
}

static inline int fixture_teardown(void **state) {
  fixture_end(*state);
  return 0;
}

#define FIXTURE_LIMIT ((uint64_t)1 << 30) /* far more than any test stores */

/* Of the fixture's folder alone. */
static inline nsai_cache_options fixture_options(fixture *f, nsai_cache_mode mode) {
  static const char *const none[] = { NULL };
  return (nsai_cache_options){ f->dir, mode, FIXTURE_LIMIT, none, &f->logger };
}

/* `limit` 0: FIXTURE_LIMIT. */
static inline nsai_cache *fixture_open(fixture *f, nsai_cache_mode mode, uint64_t limit) {
  nsai_cache_options options = fixture_options(f, mode);
  if (limit) options.limit = limit;
  nsai_cache *cache;
  if (nsai_cache_open(&options, &cache) != NSA_OK) abort();
  return cache;
}

/* The key of kernel `n`. */
static inline void fixture_key(int n, const char *compiler, nsai_kernel_key *key) {
  char source[64];
  snprintf(source, sizeof source, "kernel number %d", n);
  const nsai_kernel_key_parts parts = { FIXTURE_ENTRY,         source,  "--std=c++17", "sm_90a",
                                        "digest of templates", compiler };
  if (nsai_kernel_key_init(key, &parts) != NSA_OK) abort();
}

/* An image of `size` bytes that depend on `n`; with CUBIN_LEAST bytes or more a cubin. */
static inline void fixture_image(int n, size_t size, nsai_kernel_image *image) {
  memset(image, 0, sizeof *image);
  image->cubin = malloc(size);
  if (!image->cubin) abort();
  image->size = size;
  for (size_t i = 0; i < size; i++)
    ((unsigned char *)image->cubin)[i] = (unsigned char)(i * 7 + (size_t)n);
  if (size >= CUBIN_LEAST) cubin_write(image->cubin, size, 90, true, FIXTURE_ENTRY);
  image->registers = 100 + n;
  image->shared_bytes = 1024;
  snprintf(image->compiler_id, sizeof image->compiler_id, "%s", FIXTURE_COMPILER);
}

static inline bool fixture_store(nsai_cache *cache, int n, size_t size) {
  nsai_kernel_key key;
  nsai_kernel_image image;
  fixture_key(n, FIXTURE_COMPILER, &key);
  fixture_image(n, size, &image);
  bool stored = nsai_cache_store(cache, &key, &image);
  nsai_kernel_image_fini(&image);
  nsai_kernel_key_fini(&key);
  return stored;
}

/* Looks up kernel `n`; aborts on an image with other bytes. */
static inline bool fixture_find(nsai_cache *cache, int n, size_t size, const char *compiler) {
  nsai_kernel_key key;
  nsai_kernel_image image, wanted;
  fixture_key(n, compiler, &key);
  bool found = nsai_cache_find(cache, &key, &image);
  if (found) {
    fixture_image(n, size, &wanted);
    if (image.size != size || memcmp(image.cubin, wanted.cubin, size) != 0 ||
        image.registers != wanted.registers || image.shared_bytes != wanted.shared_bytes ||
        strcmp(image.compiler_id, FIXTURE_COMPILER) != 0)
      abort();
    nsai_kernel_image_fini(&wanted);
  }
  nsai_kernel_image_fini(&image);
  nsai_kernel_key_fini(&key);
  return found;
}

/* Stores kernel `n` in a cache of its own, as another process would. */
static inline void fixture_store_on_disk(fixture *f, int n, size_t size) {
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  if (!fixture_store(cache, n, size)) abort();
  nsai_cache_close(cache);
}

/* Whether a new process would find kernel `n`: uses another cache, without the memory of the
 * first. */
static inline bool fixture_on_disk(fixture *f, int n, size_t size) {
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  bool found = fixture_find(cache, n, size, FIXTURE_COMPILER);
  nsai_cache_close(cache);
  return found;
}

/* The path of kernel `n`'s entry. */
static inline void fixture_path(const fixture *f, int n, char path[PATH_MAX]) {
  char name[NSAI_CACHE_NAME_CHARS];
  nsai_kernel_key key;
  fixture_key(n, FIXTURE_COMPILER, &key);
  nsai_cache_entry_name(key.digest, FIXTURE_COMPILER, name);
  snprintf(path, PATH_MAX, "%s/%s", f->kernels, name);
  nsai_kernel_key_fini(&key);
}

/* Replaces a file's bytes. */
static inline void fixture_write(const char *path, const void *data, size_t size) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
  close(fd);
}

/* Reads a file that is smaller than `room`; returns its size. */
static inline size_t fixture_read(const char *path, void *data, size_t room) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t size = read(fd, data, room);
  if (size < 0 || (size_t)size >= room) abort();
  close(fd);
  return (size_t)size;
}

/* Files in the kernels' folder whose names start with `prefix`. */
static inline int fixture_count(const fixture *f, const char *prefix) {
  int count = 0;
  DIR *dir = opendir(f->kernels);
  for (const struct dirent *item; dir && (item = readdir(dir)) != NULL;)
    count += strncmp(item->d_name, prefix, strlen(prefix)) == 0 && item->d_name[strlen(prefix)] &&
             strcmp(item->d_name, "..") != 0 && (prefix[0] || item->d_name[0] != '.');
  if (dir) closedir(dir);
  return count;
}

#endif /* NSA_TEST_CACHE_FIXTURE_H */
