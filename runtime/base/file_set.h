/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Publishes several files of one folder together, all or none. All are first written, and
 * brought to the disk, in a temporary folder inside the folder: a full disk is found before
 * anything is visible. Then each becomes visible complete, in one step. If one of these steps
 * fails, those before it are taken back.
 *
 * If the process dies between two steps, the files before stay, each complete. The temporary
 * folder is locked, so that nsai_files_remove_abandoned removes it only then.
 */
#ifndef NSAI_BASE_FILE_SET_H
#define NSAI_BASE_FILE_SET_H

#include "base/files.h"

typedef struct nsai_file_set_item nsai_file_set_item;

typedef struct nsai_file_set {
  int folder; /* borrowed */
  int stage;  /* the temporary folder, -1: none */
  char stage_name[NSAI_FILES_TEMPORARY_CHARS];
  nsai_file_set_item *items;
  int32_t count, capacity;
} nsai_file_set;

/* Begins; nsai_file_set_end must follow, also after a failure. NSA_E_IO with errno. */
nsa_status nsai_file_set_begin(int folder, nsai_file_set *set);

/* Writes the next file; its index is the number of files before it. `replace`: it takes the
 * place of a file of its name; else a file that is there stays, and counts as published by
 * somebody else. NSA_E_IO with errno, NSA_E_NOMEM. */
nsa_status nsai_file_set_add(nsai_file_set *set, const char *name, bool replace, const void *data,
                             size_t size);

/* Writes other data for a file that is not published yet. NSA_E_IO with errno. */
nsa_status nsai_file_set_rewrite(nsai_file_set *set, int32_t index, const void *data, size_t size);

/* Makes a file visible. NSA_E_IO with errno. */
nsa_status nsai_file_set_publish(nsai_file_set *set, int32_t index);

/* Brings what was published to the disk. NSA_E_IO with errno. */
nsa_status nsai_file_set_sync(const nsai_file_set *set);

/* Removes what was published, and brings back what it replaced, except where another process has
 * replaced it since. On a file system without hard links what was replaced cannot come back:
 * there the new file stays. */
void nsai_file_set_take_back(nsai_file_set *set);

/* Removes the temporary folder. False: it stays, and errno says why; set->stage_name names it. */
bool nsai_file_set_end(nsai_file_set *set);

#endif /* NSAI_BASE_FILE_SET_H */
