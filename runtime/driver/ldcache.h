/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Finds the file that the dynamic loader would use for a library, without loading it.
 */
#ifndef NSAI_DRIVER_LDCACHE_H
#define NSAI_DRIVER_LDCACHE_H

#include <stdbool.h>
#include <stddef.h>

/* Searches `name` ("libnvrtc.so.13") in the folders of LD_LIBRARY_PATH, then in
 * /etc/ld.so.cache. Writes the path of an existing file. */
bool nsai_ldcache_find(const char *name, char *path, size_t size);

/* The same lookup in the bytes of a cache file; the path need not exist. `path` is written only where
 * it is found and fits. */
bool nsai_ldcache_lookup(const unsigned char *data, size_t length, const char *name, char *path,
                         size_t size);

#endif /* NSAI_DRIVER_LDCACHE_H */
