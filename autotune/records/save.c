/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Changes of the store. A save reads the current file, merges, and replaces the file by rename,
 * so that readers see either the old record or the new one. A lock between reading and replacing
 * keeps what several processes measure at once. Without the lock, on network folders, the last
 * writer wins.
 */
#include "records/internal.h"

#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A save takes some milliseconds, on slow disks some ten. A process that holds the lock for
 * longer is stopped or hangs; do not wait for it. */
#define LOCK_WAIT_MS 2000
#define LOCK_STEP_MS 2

/* Whether the file has been replaced since `*last`, which becomes its current state. */
static bool has_changed(nsai_records *records, const char *file, struct stat *last) {
  struct stat before = *last;
  if (fstatat(records->folders.fd[0], file, last, AT_SYMLINK_NOFOLLOW) != 0)
    memset(last, 0, sizeof *last);
  return before.st_ino != last->st_ino || before.st_ctim.tv_sec != last->st_ctim.tv_sec ||
         before.st_ctim.tv_nsec != last->st_ctim.tv_nsec;
}

int nsai_records_wait_for_lock(nsai_records *records, const char *file) {
  const struct timespec step = { 0, LOCK_STEP_MS * 1000000L };
  struct stat last = { 0 };
  bool busy;
  int token = nsai_dirs_lock(&records->folders, file, &busy);
  for (int waited = 0; busy && waited < LOCK_WAIT_MS; waited += LOCK_STEP_MS) {
    if (has_changed(records, file, &last)) waited = 0;
    nanosleep(&step, NULL);
    token = nsai_dirs_lock(&records->folders, file, &busy);
  }
  return token;
}

nsa_status nsai_records_read_file(nsai_records *records, const char *file, bool *writable,
                                  nsai_record **out) {
  struct stat st;
  char *data, reason[NSAI_FILES_FAULT_CHARS], fault[NSAI_RECORD_FAULT_CHARS];
  *out = NULL;
  switch (nsai_files_read_trusted(records->folders.fd[0], file, NSAI_RECORD_MAX_BYTES, &data, &st,
                                  reason)) {
  case NSAI_FILES_MISSING:
  case NSAI_FILES_DAMAGED: return NSA_OK;
  case NSAI_FILES_UNREADABLE:
    if (errno == ENOMEM) return nsai_fail_nomem(file, NSAI_RECORD_MAX_BYTES);
    *writable = false;
    nsai_dirs_warn(&records->folders, NSAI_WARNED_WRITE,
                   "the tuning record %s in %s/%s %s: it stays as it is, and what was measured is "
                   "kept in memory only; make it readable, or remove it",
                   file, records->folders.info[0].path, records->folders.kind->folder, reason);
    return NSA_OK;
  case NSAI_FILES_PRESENT: break;
  }
  nsa_status status = nsai_record_decode(data, (size_t)st.st_size, out, fault);
  free(data);
  if (status == NSA_E_NOMEM) return nsai_fail_nomem(file, (size_t)st.st_size);
  return status == NSA_E_CACHE ? NSA_OK : status;
}

nsa_status nsai_records_merge_index(nsai_records *records, const char *file, bool writable,
                                    nsai_record *record) {
  NSAI_TRY(nsai_records_load(records));
  for (int32_t i = nsai_records_lower_bound(records, file);
       i < records->count && strcmp(records->entries[i].file, file) == 0; i++) {
    const nsai_record_entry *entry = &records->entries[i];
    if (entry->record && !(writable && entry->tier == 0))
      NSAI_TRY(nsai_record_merge(record, entry->record));
  }
  return NSA_OK;
}

/* Writes the user's file. `*stored` says whether that succeeded. */
static nsa_status write_file(nsai_records *records, const char *file, const nsai_record *record,
                             bool *stored) {
  nsai_writer writer = nsai_writer_open(NULL, 0);
  *stored = false;
  nsai_record_write(record, &writer);
  size_t size = writer.used + 1;
  if (writer.used > NSAI_RECORD_MAX_BYTES) {
    nsai_dirs_warn(&records->folders, NSAI_WARNED_WRITE,
                   "a tuning record of %zu bytes is larger than any that is read: kept in memory "
                   "only",
                   writer.used);
    return NSA_OK;
  }
  char *text = malloc(size);
  if (!text) return nsai_fail_nomem("the text of a tuning record", size);
  writer = nsai_writer_open(text, size);
  nsai_record_write(record, &writer);
  *stored = nsai_files_publish(records->folders.fd[0], file, text, writer.used, true) == NSA_OK;
  if (!*stored) nsai_dirs_stop_writing(&records->folders, strerror(errno));
  free(text);
  return NSA_OK;
}

nsa_status nsai_records_keep(nsai_records *records, const char *file, nsai_record *record,
                             bool stored) {
  nsai_record_entry entry = { .tier = stored ? 0 : NSAI_RECORD_IN_MEMORY, .record = record };
  memcpy(entry.file, file, strlen(file) + 1);
  pthread_mutex_lock(&records->lock);
  nsa_status status = nsai_records_put(records, &entry);
  int32_t first = nsai_records_lower_bound(records, file);
  if (status == NSA_OK && stored && records->entries[first].tier == NSAI_RECORD_IN_MEMORY)
    nsai_records_take_out(records, first);
  pthread_mutex_unlock(&records->lock);
  return status;
}

/* Runs while `saving` is held. Takes ownership of `merged`; existing records have lower
 * precedence. */
static nsa_status save(nsai_records *records, const char *file, nsai_record *merged) {
  nsa_status status = NSA_OK;
  nsai_record *in_file = NULL;
  bool stored = false;
  int token = nsai_records_wait_for_lock(records, file);
  bool writable = nsai_dirs_writable(&records->folders);
  if (writable) NSAI_TRY_TO(fail, nsai_records_read_file(records, file, &writable, &in_file));
  if (in_file) NSAI_TRY_TO(fail, nsai_record_merge(merged, in_file));
  pthread_mutex_lock(&records->lock);
  status = nsai_records_merge_index(records, file, writable, merged);
  pthread_mutex_unlock(&records->lock);
  NSAI_TRY_TO(fail, status);
  if (writable) NSAI_TRY_TO(fail, write_file(records, file, merged, &stored));
  status = nsai_records_keep(records, file, merged, stored);
  merged = NULL;
fail:
  nsai_files_unlock(token);
  nsai_record_destroy(in_file);
  nsai_record_destroy(merged);
  return status;
}

nsa_status nsai_records_save(nsai_records *records, const nsai_record *record) {
  char file[NSAI_RECORD_NAME_CHARS];
  nsai_record *merged;
  NSAI_TRY(nsai_record_check(record));
  NSAI_TRY(nsai_record_copy(record, &merged));
  nsai_record_name(record, file);
  pthread_mutex_lock(&records->saving);
  nsa_status status = save(records, file, merged);
  pthread_mutex_unlock(&records->saving);
  return status;
}

/* ---- removing ---- */

/* Removes from the index what can be removed. Lock held. */
static nsa_status forget(nsai_records *records, const char *file, bool writable) {
  NSAI_TRY(nsai_records_load(records));
  for (int32_t i = nsai_records_lower_bound(records, file);
       i < records->count && strcmp(records->entries[i].file, file) == 0;) {
    int32_t tier = records->entries[i].tier;
    if (tier == NSAI_RECORD_IN_MEMORY || (tier == 0 && writable))
      nsai_records_take_out(records, i);
    else
      i++;
  }
  const nsai_record_entry *left = nsai_records_visible(records, file);
  if (!left) return NSA_OK;
  return nsai_fail(NSA_E_CACHE,
                   "the tuning record %s stays in %s/%s, which is read-only: remove the file, or "
                   "tune again, which takes its place",
                   file, records->folders.info[left->tier].path, records->folders.kind->folder);
}

nsa_status nsai_records_remove(nsai_records *records, const nsai_record *record) {
  char file[NSAI_RECORD_NAME_CHARS];
  nsa_status status = NSA_OK;
  nsai_record_name(record, file);
  pthread_mutex_lock(&records->saving);
  int token = nsai_records_wait_for_lock(records, file);
  bool writable = nsai_dirs_writable(&records->folders);
  if (writable && unlinkat(records->folders.fd[0], file, 0) != 0 && errno != ENOENT)
    status =
        nsai_fail(NSA_E_CACHE, "the tuning record %s cannot be removed from %s/%s: %s", file,
                  records->folders.info[0].path, records->folders.kind->folder, strerror(errno));
  if (status == NSA_OK) {
    pthread_mutex_lock(&records->lock);
    status = forget(records, file, writable);
    pthread_mutex_unlock(&records->lock);
  }
  nsai_files_unlock(token);
  pthread_mutex_unlock(&records->saving);
  return status;
}
