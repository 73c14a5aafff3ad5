/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * File operations that do not trust what they find: regular files only, bounded sizes, private
 * folders, publication in one step. All work relative to a folder's descriptor.
 */
#ifndef NSAI_FS_H
#define NSAI_FS_H

#include "status.h"

#include <stdbool.h>

/* Reads a whole regular file of at most `limit` bytes; follows symbolic links. `*data` gets a NUL
 * behind it; the caller frees it. NSA_E_IO (names the file and the cause), NSA_E_NOMEM. */
nsa_status nsai_fs_read_file(int folder, const char *path, size_t limit, char **data, size_t *size);

#endif /* NSAI_FS_H */
