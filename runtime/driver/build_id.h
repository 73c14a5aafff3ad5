/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The GNU build-id of an ELF library, from its file or from its loaded image. It names the exact
 * compiler build in cache keys: NVRTC's own version call gives major.minor only.
 */
#ifndef NSAI_DRIVER_BUILD_ID_H
#define NSAI_DRIVER_BUILD_ID_H

#include <stdbool.h>
#include <stddef.h>

/* Hex digits of the longest supported build-id (SHA-1 has 20 bytes, some linkers write 32), and
 * NUL. */
#define NSAI_BUILD_ID_CHARS 65

/* Reads the note from the file at `path` without loading the library. False when the file cannot be
 * read or has no such note. */
bool nsai_build_id_of_file(const char *path, char id[NSAI_BUILD_ID_CHARS]);

/* Reads the note of the library that dlopen returned as `handle`. */
bool nsai_build_id_of_loaded(void *handle, char id[NSAI_BUILD_ID_CHARS]);

/* A digest of the file's size, head and tail, for libraries without a build-id. The head has the
 * addresses of all segments, and the tail has the section table: two builds whose sizes differ
 * anywhere differ there. Unlike a time stamp it is the same on every machine. */
bool nsai_build_sample_of_file(const char *path, char id[NSAI_BUILD_ID_CHARS]);

/* Finds the note in the `size` bytes of a PT_NOTE segment. */
bool nsai_build_id_in_notes(const unsigned char *notes, size_t size, char id[NSAI_BUILD_ID_CHARS]);

#endif /* NSAI_DRIVER_BUILD_ID_H */
