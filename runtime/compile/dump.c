/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "compile/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void nsai_compiler_log_source(nsai_logger *logger, const nsai_compile_request *request) {
  if (!nsai_log_enabled(logger, NSA_LOG_ERROR)) return;
  int number = 1;
  for (const char *line = request->source; *line; number++) {
    size_t length = strcspn(line, "\n");
    nsai_log(logger, NSA_LOG_ERROR, "jit", "%5d  %.*s", number, (int)length, line);
    line += length + (line[length] == '\n');
  }
}

typedef struct dump_target {
  nsai_logger *logger;
  const char *folder;
  const nsai_compile_request *request;
} dump_target;

/* Others may be able to write to the folder: do not follow a link that was planted there, and do
 * not let a FIFO block the compilation. */
static int open_dump(const char *path) {
  return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666);
}

static void write_file(const dump_target *target, const char *ending, const void *data,
                       size_t size) {
  char path[PATH_MAX];
  int length = snprintf(path, sizeof path, "%s/%s.%s.%s", target->folder, target->request->name,
                        target->request->arch, ending);
  errno = ENAMETOOLONG;
  int fd = length < (int)sizeof path ? open_dump(path) : -1;
  FILE *file = fd >= 0 ? fdopen(fd, "wb") : NULL;
  if (fd >= 0 && !file) close(fd);
  bool good = file && fwrite(data, 1, size, file) == size;
  if (file) good = fclose(file) == 0 && good;
  if (!good)
    nsai_log(target->logger, NSA_LOG_WARN, "jit", "runtime.dump_dir: %s cannot be written: %s",
             path, strerror(errno));
}

typedef nsai_nvrtc_result (*size_fn)(nsai_nvrtc_program, size_t *);
typedef nsai_nvrtc_result (*data_fn)(nsai_nvrtc_program, char *);

static void dump_part(const dump_target *target, nsai_nvrtc_program program, const char *ending,
                      size_fn get_size, data_fn get_data) {
  size_t size = 0;
  /* For output that it does not have, NVRTC returns a size of 0 or 1 (a NUL). */
  if (get_size(program, &size) != NSAI_NVRTC_SUCCESS || size <= 1) return;
  char *data = malloc(size);
  if (!data) {
    nsai_log(target->logger, NSA_LOG_WARN, "jit", "runtime.dump_dir: no memory for the %s of %s",
             ending, target->request->name);
    return;
  }
  if (get_data(program, data) == NSAI_NVRTC_SUCCESS) write_file(target, ending, data, size);
  free(data);
}

void nsai_compiler_dump(nsai_logger *logger, const char *folder,
                        const nsai_compile_request *request, const nsai_nvrtc *nvrtc,
                        nsai_nvrtc_program program) {
  const dump_target target = { logger, folder, request };
  write_file(&target, "cu", request->source, strlen(request->source));
  dump_part(&target, program, "log", nvrtc->nvrtcGetProgramLogSize, nvrtc->nvrtcGetProgramLog);
  dump_part(&target, program, "ptx", nvrtc->nvrtcGetPTXSize, nvrtc->nvrtcGetPTX);
  dump_part(&target, program, "cubin", nvrtc->nvrtcGetCUBINSize, nvrtc->nvrtcGetCUBIN);
}
