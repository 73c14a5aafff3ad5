/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A configuration of a hundred lines fits into two chunks. */
#define CHUNK_BYTES 16384

struct nsai_arena_chunk {
  struct nsai_arena_chunk *next;
  size_t used, size; /* bytes of `data` */
  alignas(max_align_t) char data[];
};

static struct nsai_arena_chunk *add_chunk(nsai_arena *arena, size_t size) {
  size_t bytes = size > CHUNK_BYTES ? size : CHUNK_BYTES;
  struct nsai_arena_chunk *chunk = calloc(1, sizeof *chunk + bytes);
  if (!chunk) {
    arena->failed = size;
    return NULL;
  }
  chunk->size = bytes;
  chunk->next = arena->chunks;
  arena->chunks = chunk;
  return chunk;
}

void *nsai_arena_alloc(nsai_arena *arena, size_t size) {
  const size_t align = alignof(max_align_t);
  if (size > SIZE_MAX / 2) {
    arena->failed = size;
    return NULL;
  }
  size_t rounded = (size + align - 1) / align * align;
  struct nsai_arena_chunk *chunk = arena->chunks;
  if (!chunk || chunk->size - chunk->used < rounded) chunk = add_chunk(arena, rounded);
  if (!chunk) return NULL;
  void *memory = chunk->data + chunk->used;
  chunk->used += rounded;
  return memory;
}

char *nsai_arena_copy(nsai_arena *arena, const char *text, size_t length) {
  char *copy = nsai_arena_alloc(arena, length + 1);
  if (copy && length) memcpy(copy, text, length);
  return copy;
}

void nsai_arena_fini(nsai_arena *arena) {
  struct nsai_arena_chunk *chunk = arena->chunks;
  while (chunk) {
    struct nsai_arena_chunk *next = chunk->next;
    free(chunk);
    chunk = next;
  }
  *arena = (nsai_arena){ 0 };
}
