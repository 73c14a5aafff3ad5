/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Children in which a test may go without room, rights or descriptors.
 */
#ifndef NSA_TEST_CHILD_H
#define NSA_TEST_CHILD_H

#include "../cache_fixture.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define NOBODY 65534 /* a user that is not root */

#define CHILD_ASSERT(condition)                                                                    \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                              \
      _exit(1);                                                                                    \
    }                                                                                              \
  } while (0)

/* Runs `body` in a child, so that limits, users and mounts stay there. Returns its exit status. */
static inline int in_child(void (*body)(fixture *), fixture *f) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    body(f);
    _exit(0);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The same of a fixture of its own, where the body has to succeed, or to end with 77 for a skip. */
static inline void expect_child(void (*body)(fixture *)) {
  fixture f;
  fixture_begin(&f);
  int status = in_child(body, &f);
  fixture_end(&f);
  if (status == 77) skip();
  assert_int_equal(status, 0);
}

/* Waits for children, which have to succeed. */
static inline void expect_children(const pid_t *children, int count) {
  for (int i = 0; i < count; i++) {
    int status;
    assert_int_equal(waitpid(children[i], &status, 0), children[i]);
    assert_int_equal(status, 0);
  }
}

/* In a child: files may have so many bytes. Beyond the limit a write raises SIGXFSZ, which would
 * end the host. */
static inline void limit_files(rlim_t bytes) {
  const struct rlimit limit = { bytes, bytes };
  CHILD_ASSERT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* In a child: the fixture's folder becomes a disk of 128 KiB. Ends the child with 77, a skip, where
 * that is not allowed. */
static inline void use_small_disk(const fixture *f) {
  if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
      mount("tmpfs", f->dir, "tmpfs", 0, "size=128k,mode=0700") != 0)
    _exit(77);
}

#endif /* NSA_TEST_CHILD_H */
