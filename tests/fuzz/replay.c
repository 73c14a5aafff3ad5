/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Runs a fuzz target over files, and over the files of folders, without libFuzzer.
 */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int replay_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) {
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return 1;
  }
  size_t size = 0, room = 4096;
  uint8_t *data = malloc(room);
  while (data) {
    size_t count = fread(data + size, 1, room - size, file);
    size += count;
    if (size < room) break;
    room *= 2;
    uint8_t *larger = realloc(data, room);
    if (!larger) free(data);
    data = larger;
  }
  fclose(file);
  if (!data) return 1;
  /* An exact copy, so that a read beyond the input is a read beyond an allocation. */
  uint8_t *exact = malloc(size ? size : 1);
  if (exact) {
    memcpy(exact, data, size);
    printf("%s: %zu bytes\n", path, size);
    LLVMFuzzerTestOneInput(exact, size);
  }
  free(exact);
  free(data);
  return !exact;
}

static int replay(const char *path) {
  struct dirent **entries;
  int count = scandir(path, &entries, NULL, alphasort);
  if (count < 0) return replay_file(path);
  int failed = 0;
  for (int i = 0; i < count; i++) {
    char inner[4096];
    if (entries[i]->d_name[0] != '.') {
      snprintf(inner, sizeof inner, "%s/%s", path, entries[i]->d_name);
      failed |= replay_file(inner);
    }
    free(entries[i]);
  }
  free(entries);
  return failed;
}

int main(int argc, char **argv) {
  int failed = 0;
  for (int i = 1; i < argc; i++) failed |= replay(argv[i]);
  return failed;
}
