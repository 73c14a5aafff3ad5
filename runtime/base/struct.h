/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Structs that callers fill and that grow between versions. Each begins with a uint32_t
 * `struct_size`, the size that it had in the header the caller was compiled with. New fields are
 * only appended, and a zero field means its default, so structs of other sizes can be read and
 * written:
 *
 *   smaller  an older caller: the fields that it does not know are zero
 *   larger   a newer caller: accepted if the bytes that this library does not know are zero
 *
 * Such structs have no padding at their end (runtime/api/layout.c): an appended field would
 * occupy it, and an older caller may have left any bytes there.
 */
#ifndef NSAI_BASE_STRUCT_H
#define NSAI_BASE_STRUCT_H

#include "base/error.h"

#include <stddef.h>

/* A struct as this library knows it. */
typedef struct nsai_struct_type {
  const char *name; /* of the parameter, in messages: "exec" */
  const char *init; /* the macro that sets its size: "NSA_EXEC_INIT" */
  size_t size;      /* bytes */
} nsai_struct_type;

/* Checks that `given` is a struct whose size is set, and whose tail is zero if it is larger than
 * `type->size`. NSA_E_ARG for NULL, else NSA_E_VERSION. */
nsa_status nsai_struct_check(const nsai_struct_type *type, const void *given);

/* Makes a parameter readable at this library's size: `*out` is `given` itself, or `room`, which
 * must hold `type->size` bytes and gets a copy. Fails as nsai_struct_check does. */
nsa_status nsai_struct_in(const nsai_struct_type *type, const void *given, void *room,
                          const void **out);

/* Writes a result of `size` bytes to `given`, which has passed nsai_struct_check: as many bytes
 * as the caller knows. Bytes that only the caller knows become zero. The caller's struct_size
 * does not change. */
void nsai_struct_out(const void *result, size_t size, void *given);

/* Element `index` of an array of structs. The first one's size is the distance between them. */
const void *nsai_struct_at(const void *first, size_t index);

/* Checks that all `count` structs of an array have the same size: with mixed sizes the second
 * element cannot be located. NSA_E_ARG for NULL with a count, else NSA_E_VERSION. */
nsa_status nsai_struct_check_array(const nsai_struct_type *type, const void *first, size_t count);

#endif /* NSAI_BASE_STRUCT_H */
