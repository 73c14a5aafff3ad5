/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A folder of templates in which one is anything: a file of any bytes, one that is too large, a
 * folder, a pipe, a link to itself, or missing. It is refused by its name, or has the file's bytes.
 * And any text as the folder's path.
 *
 * Input: a byte for the template, one for what it is, then its bytes or the path.
 */
#include "compile/templates.h"
#include "fuzz.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>

enum { FILE_OF_BYTES, TOO_LARGE, FOLDER, PIPE, LINK_TO_ITSELF, MISSING, UNREADABLE_PATH, KINDS };

static char folder[FUZZ_FOLDER_CHARS];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
  (void)st, (void)type, (void)ftw;
  return remove(path);
}

static void remove_folder(void) { nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

static void path_of(size_t index, char *path, size_t size) {
  snprintf(path, size, "%s/%s", folder, nsai_embedded_templates[index].name);
}

static void write_file(const char *path, const void *data, size_t size) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  FUZZ_REQUIRE(fd >= 0 && write(fd, data, size) == (ssize_t)size && close(fd) == 0);
}

/* All templates, empty. */
static void make_folder(void) {
  char path[512];
  if (*folder) return;
  fuzz_make_folder(folder);
  atexit(remove_folder);
  for (size_t i = 0; i < nsai_embedded_template_count; i++) {
    path_of(i, path, sizeof path);
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
      *slash = '\0';
      mkdir(path, 0700);
      *slash = '/';
    }
    write_file(path, "", 0);
  }
}

static void make_kind(int kind, const char *path, const void *data, size_t size) {
  FUZZ_REQUIRE(remove(path) == 0);
  switch (kind) {
  case FILE_OF_BYTES: write_file(path, data, size); break;
  case TOO_LARGE:
    write_file(path, data, size);
    FUZZ_REQUIRE(truncate(path, (1 << 20) + 1) == 0);
    break;
  case FOLDER: FUZZ_REQUIRE(mkdir(path, 0700) == 0); break;
  case PIPE: FUZZ_REQUIRE(mkfifo(path, 0600) == 0); break;
  case LINK_TO_ITSELF: FUZZ_REQUIRE(symlink(path, path) == 0); break;
  }
}

static void check_refused(nsa_status status, const nsai_templates *templates, const char *name) {
  static const nsai_templates none;
  FUZZ_REQUIRE(status == NSA_E_IO && strstr(nsa_last_error(), name));
  FUZZ_REQUIRE(memcmp(templates, &none, sizeof none) == 0);
}

static void try_kind(int kind, size_t index, const uint8_t *data, size_t size) {
  nsai_templates templates;
  char path[512];
  path_of(index, path, sizeof path);
  make_kind(kind, path, data, size);
  nsa_status status = nsai_templates_init(&templates, folder);
  if (kind == FILE_OF_BYTES && !memchr(data, '\0', size)) {
    FUZZ_REQUIRE(status == NSA_OK && templates.count == nsai_embedded_template_count);
    FUZZ_REQUIRE(strcmp(templates.digest, nsai_embedded_digest) != 0);
    const nsai_template *item = &templates.item[index];
    FUZZ_REQUIRE(item->length == size && strlen(item->text) == size);
    FUZZ_REQUIRE(memcmp(item->text, data, size) == 0);
  } else {
    check_refused(status, &templates, nsai_embedded_templates[index].name);
  }
  nsai_templates_fini(&templates);
  if (kind != MISSING) FUZZ_REQUIRE(remove(path) == 0);
  write_file(path, "", 0);
}

static void try_path(const uint8_t *data, size_t size) {
  nsai_templates templates;
  char *path = fuzz_text(data, size);
  nsa_status status = nsai_templates_init(&templates, path);
  if (!*path)
    FUZZ_REQUIRE(status == NSA_OK && templates.item == nsai_embedded_templates);
  else if (status != NSA_OK)
    check_refused(status, &templates, nsai_embedded_templates[0].name);
  nsai_templates_fini(&templates);
  free(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 2) return 0;
  make_folder();
  size_t index = data[0] % nsai_embedded_template_count;
  int kind = data[1] % KINDS;
  if (kind == UNREADABLE_PATH)
    try_path(data + 2, size - 2);
  else
    try_kind(kind, index, data + 2, size - 2);
  return 0;
}
