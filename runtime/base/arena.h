/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * An arena: many small allocations that live equally long and are released together. The arena
 * remembers a failed allocation, so that a long computation checks once at its end. Not
 * thread-safe.
 */
#ifndef NSAI_BASE_ARENA_H
#define NSAI_BASE_ARENA_H

#include <stddef.h>

struct nsai_arena_chunk;

/* A zeroed struct is an empty arena. */
typedef struct nsai_arena {
  struct nsai_arena_chunk *chunks; /* newest first */
  size_t failed;                   /* bytes of the last request that failed; 0: none failed */
} nsai_arena;

/* Returns `size` zeroed bytes, aligned for any type. Without memory: returns NULL and sets
 * arena->failed. */
void *nsai_arena_alloc(nsai_arena *arena, size_t size);

/* A NUL-terminated copy of `length` bytes. NULL as in nsai_arena_alloc. */
char *nsai_arena_copy(nsai_arena *arena, const char *text, size_t length);

/* Releases everything; the arena is empty again. */
void nsai_arena_fini(nsai_arena *arena);

#endif /* NSAI_BASE_ARENA_H */
