/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

nsa_status nsai_fs_read_file(int folder, const char *path, size_t limit, char **data,
                             size_t *size) {
  nsa_status status = NSA_OK;
  struct stat st;
  *data = NULL;
  /* O_NONBLOCK: a FIFO in the file's place must not hang the open; it is refused below. */
  int fd = openat(folder, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return nsai_fail(NSA_E_IO, "%s cannot be opened: %s", path, strerror(errno));
  if (fstat(fd, &st) != 0) {
    status = nsai_fail(NSA_E_IO, "%s cannot be examined: %s", path, strerror(errno));
  } else if (!S_ISREG(st.st_mode)) {
    status = nsai_fail(NSA_E_IO, "%s is not a regular file", path);
  } else if ((uint64_t)st.st_size > limit) {
    status = nsai_fail(NSA_E_IO, "%s has %lld bytes, more than the %zu allowed", path,
                       (long long)st.st_size, limit);
  } else if (!(*data = malloc((size_t)st.st_size + 1))) {
    status = nsai_fail_nomem(path, (size_t)st.st_size + 1);
  } else if (!read_exactly(fd, *data, (size_t)st.st_size)) {
    status = nsai_fail(NSA_E_IO, "%s cannot be read: %s", path, strerror(errno));
  } else {
    (*data)[st.st_size] = '\0';
    *size = (size_t)st.st_size;
  }
  close(fd);
  if (status != NSA_OK) {
    free(*data);
    *data = NULL;
  }
  return status;
}
