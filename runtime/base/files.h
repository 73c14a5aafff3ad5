/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * File operations that do not trust what they find: private folders, regular files of bounded
 * size, publication in one step. Paths are relative to a folder's descriptor wherever a folder
 * has been checked.
 */
#ifndef NSAI_BASE_FILES_H
#define NSAI_BASE_FILES_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/stat.h>

/* Reads a complete regular file of at most `limit` bytes; follows symbolic links. `*data` ends
 * with an additional NUL; the caller frees it. NSA_E_IO (names the file and the cause),
 * NSA_E_NOMEM. */
nsa_status nsai_files_read(int folder, const char *path, size_t limit, char **data, size_t *size);

/* What became of reading a file. What cannot be read now may be whole, and readable a moment later:
 * only a damaged file may be removed or replaced. */
typedef enum nsai_files_outcome {
  NSAI_FILES_PRESENT,    /* it was read */
  NSAI_FILES_MISSING,    /* there is no file of this name */
  NSAI_FILES_UNREADABLE, /* the system refused; errno says why (EACCES, EIO, EMFILE, ENOMEM, ...) */
  NSAI_FILES_DAMAGED     /* nothing that may be used under this name */
} nsai_files_outcome;

/* One clause about a file: "is not a regular file". */
#define NSAI_FILES_FAULT_CHARS 160

/* The same for a file in a checked folder. It is damaged if it is a symbolic link or no regular
 * file, larger than `limit`, neither this user's nor root's, or writable by others. `*data` is
 * NULL unless it is present. `*st` describes the file that was read or is damaged, and is all
 * zero otherwise. `fault` says why a file is unreadable or damaged. All of this happens in
 * normal use, so the thread's error text does not change. */
nsai_files_outcome nsai_files_read_trusted(int folder, const char *name, size_t limit, char **data,
                                           struct stat *st, char fault[NSAI_FILES_FAULT_CHARS]);

typedef enum nsai_files_owner {
  NSAI_FILES_OWN,        /* this user's: may be written */
  NSAI_FILES_OWN_OR_ROOT /* this user's or root's: read only */
} nsai_files_owner;

/* Opens a folder and checks that it is not a symbolic link, has the given owner, and is writable
 * by neither group nor others. Returns the descriptor, or -1 with one clause in `why`; errno
 * ENOENT: missing. */
int nsai_files_open_folder(int parent, const char *path, nsai_files_owner owner, char *why,
                           size_t size);

/* Creates a folder and its missing parents with mode 0700, and brings them to the disk. False with
 * errno. */
bool nsai_files_make_folders(const char *path);

/* The same of one folder in a folder that is open. Opening it shows whether it is there. */
void nsai_files_make_folder(int folder, const char *name);

/* Writes a file and makes it visible under `name` in one step, complete and on disk: a reader
 * sees all of it or nothing, even if this process dies; after NSA_OK it outlives a loss of
 * power. An existing file of that name is kept (`by_rename`: replaced). Without unnamed files,
 * temporary files are named ".tmp-*". NSA_E_IO with errno. */
nsa_status nsai_files_publish(int folder, const char *name, const void *data, size_t size,
                              bool by_rename);

/* Removes `name` if it still is the file that `st` describes. */
bool nsai_files_unlink_same(int folder, const char *name, const struct stat *st);

/* Takes an exclusive lock on the file `name`, which is created if missing and never removed
 * (otherwise two processes could lock two files). Does not wait. Returns a descriptor that holds
 * the lock until nsai_files_unlock, or -1 with errno; EWOULDBLOCK: somebody else holds it. */
int nsai_files_lock(int folder, const char *name);

/* Gives the lock back, also if a process that was forked meanwhile has a copy of the descriptor.
 * -1 is fine. */
void nsai_files_unlock(int lock);

/* Removes the temporary file or folder `name` unless its writer is alive. False with errno: it stays,
 * and may be abandoned. */
bool nsai_files_remove_abandoned(int folder, const char *name);

/* A name that no other thread or process uses now. */
#define NSAI_FILES_TEMPORARY_CHARS 64
void nsai_files_temporary_name(char name[NSAI_FILES_TEMPORARY_CHARS]);

/* Locks a new temporary file or folder. True: a cleaner took it for abandoned before, and holds
 * the lock or has removed it. Undetectable where locks do not work. */
bool nsai_files_was_swept(int fd);

/* Writes all bytes and forces them to the disk. Also beyond RLIMIT_FSIZE no signal reaches the
 * host. False with errno. */
bool nsai_files_write_synced(int fd, const void *data, size_t size);

/* A name that was made in the folder is on the disk only when the folder is. False with errno. */
bool nsai_files_sync_folder(int folder);

/* Whether the folder is on a network or user-space file system, where locks may hang or have no
 * effect. */
bool nsai_files_is_network(int folder);

#endif /* NSAI_BASE_FILES_H */
