/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The format of /etc/ld.so.cache (glibc 2.2 and later): a header with this magic and the number
 * of entries, then entries of 24 bytes whose name and path are offsets from the header. Old
 * files have another table before it, so the magic is searched for. A file of another format
 * yields nothing, and the caller continues with the next location.
 */
#include "driver/ldcache.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[] = "glibc-ld.so.cache1.1";

enum { HEADER_BYTES = 48, ENTRY_BYTES = 24, COUNT_AT = 20, NAME_AT = 4, PATH_AT = 8 };

static uint32_t load_u32(const unsigned char *at) {
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

/* The NUL-terminated string at `offset`; NULL when it exceeds the file. */
static const char *string_at(const unsigned char *data, size_t length, uint32_t offset) {
  if (offset >= length || !memchr(data + offset, '\0', length - offset)) return NULL;
  return (const char *)data + offset;
}

/* Compares only as many bytes as `text` has: a hostile file repeats one long string in every entry,
 * and finding its end each time would take quadratic time. */
static bool holds_at(const unsigned char *data, size_t length, uint32_t offset, const char *text) {
  size_t size = strlen(text) + 1;
  return offset <= length && size <= length - offset && memcmp(data + offset, text, size) == 0;
}

bool nsai_ldcache_lookup(const unsigned char *data, size_t length, const char *name, char *path,
                         size_t size) {
  const unsigned char *table = memmem(data, length, magic, sizeof magic - 1);
  if (!table) return false;
  length -= (size_t)(table - data);
  if (length < HEADER_BYTES) return false;
  uint32_t count = load_u32(table + COUNT_AT);
  if (count > (length - HEADER_BYTES) / ENTRY_BYTES) return false;
  for (uint32_t i = 0; i < count; i++) {
    const unsigned char *entry = table + HEADER_BYTES + (size_t)i * ENTRY_BYTES;
    if (!holds_at(table, length, load_u32(entry + NAME_AT), name)) continue;
    const char *value = string_at(table, length, load_u32(entry + PATH_AT));
    if (!value) continue;
    if (strlen(value) >= size) return false;
    strcpy(path, value);
    return true;
  }
  return false;
}

static bool find_in_path_list(const char *list, const char *name, char *path, size_t size) {
  while (list && *list) {
    size_t length = strcspn(list, ":;");
    if (length && snprintf(path, size, "%.*s/%s", (int)length, list, name) < (int)size &&
        access(path, F_OK) == 0)
      return true;
    list += length + (list[length] != '\0');
  }
  return false;
}

bool nsai_ldcache_find(const char *name, char *path, size_t size) {
  if (find_in_path_list(secure_getenv("LD_LIBRARY_PATH"), name, path, size)) return true;
  int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  struct stat st;
  bool found = false;
  if (fstat(fd, &st) == 0 && st.st_size > 0) {
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data != MAP_FAILED) {
      found = nsai_ldcache_lookup(data, (size_t)st.st_size, name, path, size) &&
              access(path, F_OK) == 0;
      munmap(data, (size_t)st.st_size);
    }
  }
  close(fd);
  return found;
}
