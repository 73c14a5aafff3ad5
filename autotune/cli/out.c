/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Files that a command writes. A regular file is written beside its place and renamed, so that a full
 * disk or an error costs nothing that was there. Devices, pipes, and files in a folder that takes no new
 * ones are written in place.
 */
#include "cli/cli.h"
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ENDING ".XXXXXX"

/* The permissions of a new file. One thread runs. */
static mode_t usual_mode(void) {
  mode_t mask = umask(0);
  umask(mask);
  return 0666 & ~mask;
}

static void forget(nsai_cli_out *out) {
  free(out->staged);
  free(out->target);
  out->staged = out->target = NULL;
}

/* Opens a file beside `path`, through links beside what they lead to. False: write `path` itself. */
static bool stage(nsai_cli_out *out) {
  struct stat st;
  bool there = stat(out->path, &st) == 0;
  if (there ? !S_ISREG(st.st_mode) : errno != ENOENT) return false;
  out->target = there ? realpath(out->path, NULL) : strdup(out->path);
  if (!out->target) return false;
  size_t size = strlen(out->target) + sizeof ENDING;
  out->staged = malloc(size);
  if (!out->staged) return false;
  snprintf(out->staged, size, "%s" ENDING, out->target);
  int fd = mkostemp(out->staged, O_CLOEXEC);
  if (fd < 0) return false;
  if (fchmod(fd, there ? st.st_mode & 0777 : usual_mode()) == 0) out->file = fdopen(fd, "wb");
  if (out->file) return true;
  close(fd);
  unlink(out->staged);
  return false;
}

nsa_status nsai_cli_open_out(const char *path, nsai_cli_out *out) {
  *out = (nsai_cli_out){ .path = path };
  if (!strcmp(path, "-")) {
    out->file = stdout;
  } else if (!stage(out)) {
    forget(out);
    out->file = fopen(path, "wbe");
  }
  if (!out->file) return nsai_cli_fail_io(path, "cannot be written", errno);
  errno = 0; /* a write that fails sets it */
  return NSA_OK;
}

/* Returns 0 or an error number. */
static int end_file(nsai_cli_out *out) {
  int error = ferror(out->file) ? errno ? errno : EIO : 0;
  if (fflush(out->file)) error = errno;
  if (!error && out->staged && fsync(fileno(out->file))) error = errno;
  if (fclose(out->file) && !error) error = errno;
  return error;
}

nsa_status nsai_cli_close_out(nsai_cli_out *out, nsa_status status) {
  if (out->file == stdout) {
    int error = nsai_program_flush();
    if (status || !error) return status;
    return nsai_cli_fail_io("standard output", "cannot be written", error);
  }
  int error = end_file(out);
  if (out->staged && (status || error))
    unlink(out->staged);
  else if (out->staged && rename(out->staged, out->target)) {
    error = errno;
    unlink(out->staged);
  }
  forget(out);
  if (status || !error) return status;
  return nsai_cli_fail_io(out->path, "cannot be written", error);
}

nsa_status nsai_cli_write_file(const char *path, const char *text) {
  nsai_cli_out out;
  NSAI_TRY(nsai_cli_open_out(path, &out));
  fputs(text, out.file);
  return nsai_cli_close_out(&out, NSA_OK);
}
