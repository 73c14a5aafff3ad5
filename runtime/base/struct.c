/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "base/struct.h"

#include <string.h>

/* A struct_size far beyond what this library knows is uninitialised memory, so its tail is not
 * read. The bound is a guess: no struct of the API is as large, and none may become so in a
 * minor version. */
#define MAX_GROWTH 16384

/* `given` may be at any address: the caller chooses the element size of an array. */
static uint32_t size_of(const void *given) {
  uint32_t size;
  memcpy(&size, given, sizeof size);
  return size;
}

nsa_status nsai_struct_check(const nsai_struct_type *type, const void *given) {
  const unsigned char *bytes = given;
  if (!given) return nsai_fail(NSA_E_ARG, "%s is NULL", type->name);
  size_t size = size_of(given);
  if (size < sizeof(uint32_t) || size > type->size + MAX_GROWTH)
    return nsai_fail(NSA_E_VERSION, "%s.struct_size is %zu, this library knows %zu bytes: use %s",
                     type->name, size, type->size, type->init);
  for (size_t i = type->size; i < size; i++)
    if (bytes[i])
      return nsai_fail(
          NSA_E_VERSION,
          "%s.struct_size is %zu, this library (version %d.%d.%d) knows %zu bytes, and "
          "byte %zu is not zero: leave the newer field zero, or load the library "
          "whose header the program was compiled with",
          type->name, size, NSA_VERSION_MAJOR, NSA_VERSION_MINOR, NSA_VERSION_PATCH, type->size, i);
  return NSA_OK;
}

nsa_status nsai_struct_in(const nsai_struct_type *type, const void *given, void *room,
                          const void **out) {
  *out = given;
  NSAI_TRY(nsai_struct_check(type, given));
  size_t size = size_of(given);
  if (size == type->size) return NSA_OK;
  size_t known = size < type->size ? size : type->size;
  memcpy(room, given, known);
  memset((char *)room + known, 0, type->size - known);
  *out = room;
  return NSA_OK;
}

void nsai_struct_out(const void *result, size_t size, void *given) {
  uint32_t theirs = size_of(given);
  size_t known = theirs < size ? theirs : size;
  memcpy(given, result, known);
  memset((char *)given + known, 0, theirs - known);
  memcpy(given, &theirs, sizeof theirs);
}

const void *nsai_struct_at(const void *first, size_t index) {
  return index ? (const char *)first + index * size_of(first) : first;
}

nsa_status nsai_struct_check_array(const nsai_struct_type *type, const void *first, size_t count) {
  if (!count) return NSA_OK;
  if (!first) return nsai_fail(NSA_E_ARG, "%ss is NULL, count is %zu", type->name, count);
  NSAI_TRY(nsai_struct_check(type, first));
  for (size_t i = 1; i < count; i++) {
    const void *each = nsai_struct_at(first, i);
    if (size_of(each) != size_of(first))
      return nsai_fail(NSA_E_VERSION,
                       "%ss[%zu].struct_size is %u, but %ss[0] has %u: use %s for every element",
                       type->name, i, size_of(each), type->name, size_of(first), type->init);
  }
  return NSA_OK;
}
