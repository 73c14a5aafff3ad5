/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernel cache on a healthy machine: tiers, keys, places, eviction, upkeep. What happens on a
 * sick one is in tests/fault.
 */
#include "../cache_fixture.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

static void test_round_trip(void **state) {
  fixture *f = *state;
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  assert_false(fixture_find(cache, 1, 5000, FIXTURE_COMPILER));
  assert_true(fixture_store(cache, 1, 5000));
  assert_true(fixture_store(cache, 1, 5000)); /* a second store is no error */
  assert_true(fixture_find(cache, 1, 5000, FIXTURE_COMPILER));
  assert_false(fixture_find(cache, 2, 5000, FIXTURE_COMPILER));
  nsai_cache_close(cache);
  assert_true(fixture_on_disk(f, 1, 5000));
  assert_int_equal(f->warnings, 0);
  assert_int_equal(fixture_count(f, ""), 1);
  assert_int_equal(fixture_count(f, ".tmp-"), 0);
}

/* Without a compiler, any compiler's image will do; with one, only its own. */
static void test_unknown_compiler(void **state) {
  fixture *f = *state;
  fixture_store_on_disk(f, 1, 300);
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  assert_false(fixture_find(cache, 1, 300, "build-id:another"));
  assert_true(fixture_find(cache, 1, 300, ""));
  assert_false(fixture_find(cache, 2, 300, ""));
  nsai_cache_close(cache);
}

static void test_modes(void **state) {
  fixture *f = *state;
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_ONLY, 0);
  assert_false(fixture_store(cache, 1, 300));
  assert_true(fixture_find(cache, 1, 300, FIXTURE_COMPILER)); /* from memory */
  nsai_cache_close(cache);
  assert_false(fixture_on_disk(f, 1, 300));
  fixture_store_on_disk(f, 1, 300);
  cache = fixture_open(f, NSAI_CACHE_READ_ONLY, 0);
  assert_true(fixture_find(cache, 1, 300, FIXTURE_COMPILER));
  nsai_cache_close(cache);
  cache = fixture_open(f, NSAI_CACHE_OFF, 0);
  assert_false(fixture_find(cache, 1, 300, FIXTURE_COMPILER));
  assert_false(fixture_store(cache, 1, 300));
  assert_true(fixture_find(cache, 1, 300, FIXTURE_COMPILER));
  nsai_cache_close(cache);
  assert_int_equal(f->warnings, 0);
}

/* A folder filled by somebody else serves as a read-only tier and is never written. */
static void test_system_tier(void **state) {
  fixture *f = *state, filled;
  fixture_begin(&filled);
  fixture_store_on_disk(&filled, 1, 300);
  const char *const dirs[] = { "/nonexistent/nsa", filled.dir, NULL };
  nsai_cache_options options = fixture_options(f, NSAI_CACHE_READ_WRITE);
  nsai_cache *cache;
  options.system_dirs = dirs;
  assert_int_equal(nsai_cache_open(&options, &cache), NSA_OK);
  assert_true(fixture_find(cache, 1, 300, FIXTURE_COMPILER));
  assert_true(fixture_store(cache, 2, 300));
  nsai_cache_tier_info tier;
  assert_true(nsai_cache_tier(cache, 0, &tier));
  assert_true(tier.used && tier.writable);
  assert_true(nsai_cache_tier(cache, 1, &tier));
  assert_false(tier.used);
  assert_true(nsai_cache_tier(cache, 2, &tier));
  assert_true(tier.used && !tier.writable);
  assert_false(nsai_cache_tier(cache, 3, &tier));
  nsai_cache_close(cache);
  assert_int_equal(fixture_count(&filled, ""), 1);
  assert_int_equal(f->warnings, 0);
  fixture_end(&filled);
}

static void test_place_chain(void **state) {
  fixture *f = *state;
  nsai_cache_options options = fixture_options(f, NSAI_CACHE_READ_WRITE);
  static const char *const variables[] = { "HOME", "XDG_CACHE_HOME", "NSA_CACHE_DIR" };
  static const char *const below[] = { "/.cache/nsa", "/nsa", "" };
  char value[3][128], expected[256];
  nsai_cache *cache;
  nsai_cache_tier_info tier;
  options.dir = NULL;
  for (int i = 0; i < 3; i++) unsetenv(variables[i]);
  assert_int_equal(nsai_cache_open(&options, &cache), NSA_OK);
  assert_false(nsai_cache_tier(cache, 0, &tier));
  assert_int_equal(f->warnings, 1);
  assert_non_null(strstr(f->last, "NSA_CACHE_DIR"));
  fixture_store(cache, 1, 300);
  assert_true(fixture_find(cache, 1, 300, FIXTURE_COMPILER));
  nsai_cache_close(cache);
  for (int i = 0; i < 3; i++) { /* each one is stronger than those before */
    snprintf(value[i], sizeof value[i], "%s/place%d", f->dir, i);
    snprintf(expected, sizeof expected, "%s%s", value[i], below[i]);
    setenv(variables[i], value[i], 1);
    assert_int_equal(nsai_cache_open(&options, &cache), NSA_OK);
    assert_true(nsai_cache_tier(cache, 0, &tier));
    assert_string_equal(tier.path, expected);
    assert_string_equal(tier.state, "read-write");
    nsai_cache_close(cache);
    struct stat st;
    assert_int_equal(stat(expected, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
  }
  assert_int_equal(f->warnings, 1);
}

/* The cap holds, and the entry that was used last survives. */
static void test_eviction(void **state) {
  enum { SIZE = 10000, LIMIT = 105000 };
  fixture *f = *state;
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, LIMIT);
  for (int n = 0; n < 8; n++) assert_true(fixture_store(cache, n, SIZE));
  /* Age them: number 0 was used last, 1 is the oldest. */
  for (int n = 0; n < 8; n++) {
    char path[PATH_MAX];
    unsigned char stamp[NSAI_CACHE_STAMP_BYTES];
    fixture_path(f, n, path);
    nsai_cache_stamp_encode(n ? 1000 + n : 5000, stamp);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, stamp, sizeof stamp, NSAI_CACHE_STAMP_AT), sizeof stamp);
    close(fd);
  }
  for (int n = 8; n < 12; n++) assert_true(fixture_store(cache, n, SIZE));
  assert_in_range(fixture_count(f, ""), 8, 10);
  nsai_cache_close(cache);
  assert_true(fixture_on_disk(f, 0, SIZE));
  assert_false(fixture_on_disk(f, 1, SIZE));
  assert_true(fixture_on_disk(f, 11, SIZE));
  assert_int_equal(f->warnings, 0);
}

/* A hit on an old entry notes the use; the entry stays valid. */
static void test_use_is_noted(void **state) {
  fixture *f = *state;
  char path[PATH_MAX];
  unsigned char stamp[NSAI_CACHE_STAMP_BYTES] = { 0 };
  fixture_store_on_disk(f, 1, 300);
  fixture_path(f, 1, path);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  assert_int_equal(pwrite(fd, stamp, sizeof stamp, NSAI_CACHE_STAMP_AT), sizeof stamp);
  assert_true(fixture_on_disk(f, 1, 300));
  assert_int_equal(pread(fd, stamp, sizeof stamp, NSAI_CACHE_STAMP_AT), sizeof stamp);
  close(fd);
  assert_true(nsai_cache_stamp_decode(stamp) > 1000000000);
  assert_true(fixture_on_disk(f, 1, 300));
}

typedef struct seen {
  int good, bad;
  char *data;
  size_t size;
} seen;

static bool see(void *user, const nsai_cache_item *item) {
  seen *s = user;
  if (item->problem) {
    s->bad++;
    return true;
  }
  s->good++;
  assert_string_equal(item->entry, "attend_window_sm80");
  assert_string_equal(item->arch, "sm_90a");
  assert_non_null(memmem(item->key, item->key_length, "kernel number", 13));
  free(s->data);
  s->size = item->bytes;
  s->data = malloc(s->size);
  assert_non_null(s->data);
  memcpy(s->data, item->data, s->size);
  return true;
}

/* Writes the path of an entry into `user` [PATH_MAX]. */
static bool name_of(void *user, const nsai_cache_item *item) {
  snprintf(user, PATH_MAX, "%s/kernels/%s", item->folder, item->file);
  return true;
}

static void test_upkeep(void **state) {
  fixture *f = *state, g;
  char path[PATH_MAX];
  int64_t good, bad, removed;
  uint64_t left;
  fixture_begin(&g);
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  for (int n = 0; n < 4; n++) fixture_store(cache, n, CUBIN_LEAST);
  fixture_path(f, 3, path);
  fixture_write(path, "NSAKERN\nrubbish", 15);
  seen s = { 0 };
  assert_int_equal(nsai_cache_each(cache, see, &s), NSA_OK);
  assert_int_equal(s.good, 3);
  assert_int_equal(s.bad, 1);
  assert_int_equal(nsai_cache_verify(cache, &good, &bad), NSA_OK);
  assert_int_equal(good, 3);
  assert_int_equal(bad, 1);
  assert_int_equal(nsai_cache_verify(cache, &good, &bad), NSA_OK);
  assert_int_equal(bad, 0);
  /* Export and import: the bytes travel, rubbish does not. */
  nsai_cache *other = fixture_open(&g, NSAI_CACHE_READ_WRITE, 0);
  assert_int_equal(nsai_cache_import(other, &(nsai_cache_bytes){ s.data, s.size }, 1), NSA_OK);
  assert_int_equal(fixture_count(&g, ""), 1);
  /* A damaged file in the way is replaced. */
  assert_int_equal(nsai_cache_each(other, name_of, path), NSA_OK);
  fixture_write(path, "NSAKERN\nrubbish", 15);
  assert_int_equal(nsai_cache_import(other, &(nsai_cache_bytes){ s.data, s.size }, 1), NSA_OK);
  assert_int_equal(nsai_cache_verify(other, &good, &bad), NSA_OK);
  assert_true(good == 1 && bad == 0);
  s.data[s.size - 1] ^= 1;
  assert_int_equal(nsai_cache_import(other, &(nsai_cache_bytes){ s.data, s.size }, 1), NSA_E_CACHE);
  assert_non_null(strstr(nsa_last_error(), "checksum"));
  nsai_cache_close(other);
  snprintf(path, sizeof path, "%s/.tmp-1-2-3", f->kernels);
  fixture_write(path, "left by a dead process", 22);
  assert_int_equal(nsai_cache_gc(cache, 1000, &removed, &left), NSA_OK);
  assert_true(removed >= 1 && left <= 1000);
  assert_int_equal(fixture_count(f, ".tmp-"), 0);
  assert_int_equal(nsai_cache_gc(cache, 0, &removed, &left), NSA_OK);
  assert_int_equal(left, 0);
  assert_int_equal(fixture_count(f, ""), 0);
  nsai_cache_close(cache);
  free(s.data);
  fixture_end(&g);
}

static void make_socket(const char *folder, const char *name) {
  struct sockaddr_un address = { .sun_family = AF_UNIX };
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", folder, name) <
              (int)sizeof address.sun_path);
  assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
  close(fd);
}

static bool count_item(void *user, const nsai_cache_item *item) {
  int *counts = user; /* of entries, bad ones, foreign files */
  counts[item->foreign ? 2 : item->problem ? 1 : 0]++;
  return true;
}

static void expect_counts(nsai_cache *cache, int entries, int bad, int foreign) {
  int counts[3] = { 0 };
  assert_int_equal(nsai_cache_each(cache, count_item, counts), NSA_OK);
  assert_int_equal(counts[0], entries);
  assert_int_equal(counts[1], bad);
  assert_int_equal(counts[2], foreign);
}

/* Only regular files with the name that their key demands are entries. What has another name is
 * left alone; what has the name of a kernel and is none goes. */
static void test_other_files(void **state) {
  fixture *f = *state;
  char path[PATH_MAX], other[PATH_MAX], copy[PATH_MAX], folder[PATH_MAX];
  int64_t good, bad, removed;
  uint64_t left, alone;
  nsai_kernel_key any;
  nsai_kernel_image image;
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  fixture_store(cache, 1, 300);
  assert_int_equal(nsai_cache_gc(cache, FIXTURE_LIMIT, &removed, &alone), NSA_OK);
  fixture_path(f, 1, path);
  fixture_path(f, 2, other);
  snprintf(copy, sizeof copy, "%s/copy.nsak", f->kernels);
  snprintf(folder, sizeof folder, "%s/folder.nsak", f->kernels);
  assert_int_equal(link(path, copy), 0);
  assert_int_equal(link(path, other), 0);
  assert_int_equal(mkdir(folder, 0700), 0);
  make_socket(f->kernels, "socket.nsak");
  fixture_path(f, 3, path);
  make_socket(f->kernels, strrchr(path, '/') + 1);
  /* A key without a compiler looks at every name that begins with its digest. */
  fixture_key(1, "", &any);
  snprintf(path, sizeof path, "%s/%s-copy.nsak", f->kernels, any.digest);
  assert_int_equal(link(copy, path), 0);
  expect_counts(cache, 1, 2, 4);
  /* The bytes of an entry with three names count once, and those names do not make room. */
  assert_int_equal(nsai_cache_gc(cache, FIXTURE_LIMIT, &removed, &left), NSA_OK);
  assert_true(left == alone && removed == 0);
  nsai_cache *fresh = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  assert_true(nsai_cache_find(fresh, &any, &image));
  nsai_kernel_image_fini(&image);
  nsai_kernel_key_fini(&any);
  nsai_cache_close(fresh);
  assert_int_equal(nsai_cache_verify(cache, &good, &bad), NSA_OK);
  assert_true(good == 1 && bad == 2);
  expect_counts(cache, 1, 0, 4);
  assert_int_equal(nsai_cache_gc(cache, 0, &removed, &left), NSA_OK);
  assert_true(left == 0 && removed == 1);
  expect_counts(cache, 0, 0, 4);
  assert_int_equal(access(copy, F_OK), 0);
  nsai_cache_close(cache);
}

/* A key that differs in one part has another digest, and parts cannot run into each other. */
static void test_keys(void **state) {
  const nsai_kernel_key_parts base = { "entry", "source", "options", "sm_80", "templates", "id" };
  nsai_kernel_key_parts parts[7] = { base, base, base, base, base, base, base };
  parts[1].entry = "entry2";
  parts[2].source = "source ";
  parts[3].options = "options2";
  parts[4].arch = "sm_86";
  parts[5].templates_digest = "";
  parts[6].options = "optionsentry 5\n";
  nsai_kernel_key keys[7];
  for (int i = 0; i < 7; i++) {
    assert_int_equal(nsai_kernel_key_init(&keys[i], &parts[i]), NSA_OK);
    for (int j = 0; j < i; j++) assert_string_not_equal(keys[i].digest, keys[j].digest);
  }
  assert_non_null(strstr(keys[0].text, "source 6\nsource\n"));
  assert_non_null(strstr(keys[0].text, "library "));
  for (int i = 0; i < 7; i++) nsai_kernel_key_fini(&keys[i]);
}

static void test_lock(void **state) {
  fixture *f = *state;
  nsai_kernel_key key;
  fixture_key(1, FIXTURE_COMPILER, &key);
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  bool busy;
  int first = nsai_cache_lock(cache, &key, &busy);
  assert_true(first >= 0 && !busy);
  assert_int_equal(nsai_cache_lock(cache, &key, &busy), -1);
  assert_true(busy);
  nsai_cache_unlock(first);
  int second = nsai_cache_lock(cache, &key, &busy);
  assert_true(second >= 0 && !busy);
  nsai_cache_unlock(second);
  nsai_cache_unlock(-1);
  assert_int_equal(fixture_count(f, ".lock-"), 1);
  nsai_cache_close(cache);
  nsai_kernel_key_fini(&key);
}

/* A miss is an everyday answer: the thread's error text stays. */
static void test_miss_is_no_failure(void **state) {
  fixture *f = *state;
  nsai_kernel_key key;
  nsai_kernel_image image;
  fixture_key(1, FIXTURE_COMPILER, &key);
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  nsai_fail(NSA_E_ARG, "an earlier failure");
  assert_false(nsai_cache_find(cache, &key, &image));
  assert_string_equal(nsa_last_error(), "an earlier failure");
  nsai_cache_close(cache);
  nsai_kernel_key_fini(&key);
}

/* What does not load is dropped from memory and disk, unless the file holds something else by now.
 */
static void test_drop(void **state) {
  fixture *f = *state;
  nsai_kernel_key key;
  nsai_kernel_image image;
  fixture_key(1, FIXTURE_COMPILER, &key);
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  fixture_store(cache, 1, 100);
  assert_true(nsai_cache_find(cache, &key, &image));
  ((char *)image.cubin)[50] ^= 1; /* as if another process had replaced the file meanwhile */
  nsai_cache_drop(cache, &key, &image, "of a test");
  assert_int_equal(fixture_count(f, key.digest), 1);
  assert_non_null(strstr(f->last, "does not load (of a test)"));
  assert_non_null(strstr(f->last, "stays where it is"));
  nsai_kernel_image_fini(&image);
  assert_true(nsai_cache_find(cache, &key, &image));
  nsai_cache_drop(cache, &key, &image, "of a test");
  nsai_kernel_image_fini(&image);
  assert_int_equal(fixture_count(f, key.digest), 0);
  assert_int_equal(f->warnings, 1); /* repeats are not worth a line */
  assert_false(nsai_cache_find(cache, &key, &image));
  nsai_cache_close(cache);
  nsai_kernel_key_fini(&key);
}

/* Memory is capped; the newest images stay. */
static void test_memory_cap(void **state) {
  fixture *f = *state;
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_OFF, 0);
  for (int n = 0; n < 20; n++) fixture_store(cache, n, (size_t)4 << 20);
  assert_true(fixture_find(cache, 19, (size_t)4 << 20, FIXTURE_COMPILER));
  assert_true(fixture_find(cache, 13, (size_t)4 << 20, FIXTURE_COMPILER));
  assert_false(fixture_find(cache, 0, (size_t)4 << 20, FIXTURE_COMPILER));
  nsai_cache_close(cache);
}

static void *use_cache(void *user) {
  for (int round = 0; round < 30; round++)
    for (int n = 0; n < 4; n++)
      if (!fixture_find(user, n, 2000, FIXTURE_COMPILER)) fixture_store(user, n, 2000);
  return NULL;
}

static void test_threads(void **state) {
  fixture *f = *state;
  pthread_t threads[4];
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, use_cache, cache), 0);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  assert_int_equal(fixture_count(f, ""), 4);
  assert_int_equal(f->warnings, 0);
  nsai_cache_close(cache);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    FIXTURE_TEST(test_round_trip),
    FIXTURE_TEST(test_unknown_compiler),
    FIXTURE_TEST(test_modes),
    FIXTURE_TEST(test_system_tier),
    FIXTURE_TEST(test_place_chain),
    FIXTURE_TEST(test_eviction),
    FIXTURE_TEST(test_use_is_noted),
    FIXTURE_TEST(test_upkeep),
    FIXTURE_TEST(test_other_files),
    cmocka_unit_test(test_keys),
    FIXTURE_TEST(test_lock),
    FIXTURE_TEST(test_drop),
    FIXTURE_TEST(test_miss_is_no_failure),
    FIXTURE_TEST(test_memory_cap),
    FIXTURE_TEST(test_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
