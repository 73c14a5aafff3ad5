/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Which ranks share a host, and a process.
 *
 * Hosts: a wrong answer costs time and nothing else, as long as all ranks have the same. Runs then exchange in
 * one level where two would be faster, or the other way about.
 *
 * Processes: ranks of one process follow each other's pointers (peers.c), so that a wrong answer would be
 * undefined behaviour. Hence the random number in nsai_process.
 */
#include "ranks/comm_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_ID_BYTES 255

/* Linux draws it anew when a host boots. Its containers have the same, whatever their names are. */
static size_t read_boot_id(char *id, size_t room) {
  const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t got = read(fd, id, room);
  close(fd);
  return got > 0 ? (size_t)got : 0;
}

uint64_t nsai_host_id(void) {
  const int kept = errno;
  char id[MOST_ID_BYTES + 1] = { 0 };
  unsigned char digest[NSAI_DIGEST_BYTES];
  uint64_t out;
  size_t bytes = read_boot_id(id, MOST_ID_BYTES);
  if (!bytes && gethostname(id, MOST_ID_BYTES) == 0) bytes = strlen(id);
  nsai_digest_bytes(id, bytes, digest);
  memcpy(&out, digest, sizeof out);
  errno = kept;
  return out;
}

/* Of this process. Written before another thread may read it: once, and in the only thread of a child. */
static uint64_t number;

static void draw_number(void) {
  if (getrandom(&number, sizeof number, GRND_NONBLOCK) != (ssize_t)sizeof number) number = 0;
}

static void begin_process(void) {
  if (pthread_atfork(NULL, NULL, draw_number) == 0) draw_number();
}

nsai_process nsai_this_process(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  struct stat space;
  const int kept = errno;
  pthread_once(&once, begin_process);
  nsai_process p = { .pid = (uint64_t)getpid(), .number = number };
  if (stat("/proc/self/ns/pid", &space) == 0) {
    p.space[0] = (uint64_t)space.st_dev;
    p.space[1] = (uint64_t)space.st_ino;
  }
  errno = kept;
  return p;
}

int32_t nsai_find_host_ranks(const uint64_t *host, int32_t size) {
  int32_t each = 1;
  while (each < size && host[each] == host[0]) each++;
  if (size % each) return size;
  for (int32_t r = 0; r < size; r++)
    for (int32_t other = 0; other < size; other++)
      if ((host[r] == host[other]) != (r / each == other / each)) return size;
  return each;
}
