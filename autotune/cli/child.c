/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The JSON goes through a memory file, so that a tool with much output never blocks on its
 * reader.
 */
#include "cli/child.h"

#include "base/duration.h"
#include "cli/cli.h"
#include "cli/json_check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define JSON_FD 3 /* of NSAI_CHILD_FILE */

/* More than a thousand checks print; a longer output is refused. */
#define MAX_OUTPUT ((off_t)64 << 20)

/* ---- the program ---- */

static bool is_program(const char *path) {
  struct stat info;
  return !stat(path, &info) && S_ISREG(info.st_mode) && !access(path, X_OK);
}

static bool find_next_to_program(const char *name, char path[4096]) {
  char self[4096];
  ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length <= 0) return false;
  self[length] = 0;
  char *slash = strrchr(self, '/');
  if (!slash) return false;
  int needed = snprintf(path, 4096, "%.*s/%s", (int)(slash - self), self, name);
  return needed < 4096 && is_program(path);
}

static bool find_in_path(const char *name, char path[4096]) {
  const char *folder = getenv("PATH");
  while (folder && *folder) {
    size_t length = strcspn(folder, ":");
    int needed = snprintf(path, 4096, "%.*s/%s", (int)length, folder, name);
    /* With relative folders the result would depend on the working directory. */
    if (*folder == '/' && needed < 4096 && is_program(path)) return true;
    folder += length + (folder[length] == ':');
  }
  return false;
}

/* ---- the run ---- */

static nsa_status spawn(nsai_child *program, int file, pid_t *child) {
  posix_spawn_file_actions_t actions;
  bool own_file = false;
  for (int i = 1; program->arguments[i]; i++)
    own_file |= !strcmp(program->arguments[i], NSAI_CHILD_FILE);
  int error = posix_spawn_file_actions_init(&actions);
  if (error) return nsai_cli_fail_io(program->path, "cannot be started", error);
  /* `file` is above JSON_FD and is closed by the exec. */
  error =
      posix_spawn_file_actions_adddup2(&actions, own_file ? STDERR_FILENO : file, STDOUT_FILENO);
  if (!error && own_file) error = posix_spawn_file_actions_adddup2(&actions, file, JSON_FD);
  if (!error)
    error = posix_spawn(child, program->path, &actions, NULL, (char *const *)program->arguments,
                        environ);
  posix_spawn_file_actions_destroy(&actions);
  return error ? nsai_cli_fail_io(program->path, "cannot be started", error) : NSA_OK;
}

static nsa_status wait_for(nsai_child *program, pid_t child) {
  int state;
  while (waitpid(child, &state, 0) < 0) {
    if (errno != EINTR) return nsai_cli_fail_io(program->path, "cannot be waited for", errno);
    if (nsai_cli_interrupted()) kill(child, SIGINT);
  }
  program->exit_status = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  return NSA_OK;
}

static nsa_status read_output(nsai_child *program, int file) {
  off_t size = lseek(file, 0, SEEK_END), at = 0;
  if (size <= 0 || size > MAX_OUTPUT) return NSA_OK;
  program->output = malloc((size_t)size + 1);
  if (!program->output) return nsai_fail_nomem("the output of a program", (size_t)size);
  while (at < size) {
    ssize_t count = pread(file, program->output + at, (size_t)(size - at), at);
    if (count <= 0) return nsai_cli_fail_io(program->path, "its output cannot be read", errno);
    at += count;
  }
  program->output[size] = 0;
  if (!nsai_json_valid(program->output, (size_t)size)) nsai_child_fini(program);
  return NSA_OK;
}

/* A memory file whose descriptor is above those that the tool gets. */
static int open_file(void) {
  int low = memfd_create("output", MFD_CLOEXEC);
  if (low < 0) return -1;
  int file = fcntl(low, F_DUPFD_CLOEXEC, JSON_FD + 1);
  int error = errno;
  close(low);
  errno = error;
  return file;
}

nsa_status nsai_child_run(nsai_child *program) {
  const char *name = program->arguments[0];
  double begun = nsai_seconds();
  pid_t child;
  if (!find_next_to_program(name, program->path) && !find_in_path(name, program->path)) {
    program->path[0] = 0;
    return NSA_OK;
  }
  int file = open_file();
  if (file < 0) return nsai_cli_fail_io(name, "no memory file for its output", errno);
  nsa_status status = spawn(program, file, &child);
  if (status == NSA_OK) status = wait_for(program, child);
  if (status == NSA_OK) status = read_output(program, file);
  program->seconds = nsai_seconds() - begun;
  close(file);
  return status;
}

void nsai_child_fini(nsai_child *program) {
  free(program->output);
  program->output = NULL;
}

/* ---- functions ---- */

void *nsai_child_memory(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

nsa_status nsai_child_fork(int (*work)(void *user), void *user, int *exit_status) {
  static const char name[] = "a process of nsa-autotune";
  const pid_t parent = getpid();
  int state;
  NSAI_TRY(nsai_cli_share_interrupt());
  fflush(stdout); /* else both would write what is in the buffers */
  fflush(stderr);
  const pid_t child = fork();
  if (child < 0) return nsai_cli_fail_io(name, "cannot be started", errno);
  if (!child) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(NSAI_EXIT_FAILURE); /* it died before */
    exit(work(user));
  }
  /* SIGINT needs no passing on: the flag is shared, and a second one ends both. */
  while (waitpid(child, &state, 0) < 0)
    if (errno != EINTR) return nsai_cli_fail_io(name, "cannot be waited for", errno);
  *exit_status = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  return NSA_OK;
}
