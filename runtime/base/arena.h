/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * An arena: many small allocations with one life and one release. A failed allocation is
 * remembered, so that a long piece of work checks once at its end. Not thread-safe.
 */
#ifndef NSAI_BASE_ARENA_H
#define NSAI_BASE_ARENA_H

#include <stddef.h>

struct nsai_arena_chunk;

/* All zero is an empty arena. */
typedef struct nsai_arena {
  struct nsai_arena_chunk *chunks; /* newest first */
  size_t failed;                   /* bytes of the last request that was refused; 0: none was */
} nsai_arena;

/* `size` zeroed bytes, aligned for any type. NULL without memory; then arena->failed is set. */
void *nsai_arena_alloc(nsai_arena *arena, size_t size);

/* A NUL-terminated copy of `length` bytes. NULL as nsai_arena_alloc. */
char *nsai_arena_copy(nsai_arena *arena, const char *text, size_t length);

/* Releases everything; the arena is empty again. */
void nsai_arena_fini(nsai_arena *arena);

#endif /* NSAI_BASE_ARENA_H */
