/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Adds records that come from elsewhere, all or none. They must not undo later measurements of this
 * machine. All new files are written first, which finds a full disk, then they replace those before
 * them, each under its lock.
 */
#include "records/internal.h"

#include "base/file_set.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* One record that is added. */
typedef struct addition {
  char file[NSAI_RECORD_NAME_CHARS];
  nsai_record *merged; /* with what is here already */
  nsai_record
      *kept; /* a newer record of another environment, which stays; NULL: `merged` is saved */
  struct stat before; /* the user's file that was merged; zero: none */
  int32_t index;      /* in the set of files */
} addition;

typedef struct import_state {
  nsai_records *records;
  const nsai_record *const *added;
  addition *list;
  int32_t count;
  bool writable; /* else they are kept in memory */
  nsai_file_set set;
} import_state;

/* ---- what becomes of a record ---- */

/* The record in effect, from the user's file or the index, for the caller to destroy; NULL:
 * none. */
static nsa_status find_standing(nsai_records *records, const char *file, nsai_record *in_file,
                                nsai_record **out) {
  *out = NULL;
  if (in_file) return nsai_record_copy(in_file, out);
  pthread_mutex_lock(&records->lock);
  nsa_status status = nsai_records_load(records);
  const nsai_record_entry *entry = status ? NULL : nsai_records_visible(records, file);
  if (entry) status = nsai_record_copy(entry->record, out);
  pthread_mutex_unlock(&records->lock);
  return status;
}

/* Dates are ISO 8601 in UTC, so their texts sort in order of time. */
static bool is_newer(const nsai_record *a, const nsai_record *b) {
  return a->date[0] && b->date[0] && strcmp(a->date, b->date) > 0;
}

/* If a newer record exists here, `*record` is added to it and replaced by it; if they cannot be
 * merged, the newer one goes into `*kept`. */
static nsa_status yield_to_newer(nsai_records *records, const char *file, nsai_record *in_file,
                                 nsai_record **record, nsai_record **kept) {
  nsai_record *here;
  nsa_status status = NSA_OK;
  NSAI_TRY(find_standing(records, file, in_file, &here));
  if (here && is_newer(here, *record)) {
    bool merges = nsai_record_same_environment(here, *record);
    nsai_record **folders = merges ? record : kept, *before = *folders;
    if (merges) status = nsai_record_merge(here, *record);
    *folders = here;
    here = before;
  }
  nsai_record_destroy(here);
  return status;
}

static void look(const import_state *m, const char *file, struct stat *st) {
  if (!m->writable || fstatat(m->records->folders.fd[0], file, st, AT_SYMLINK_NOFOLLOW) != 0)
    memset(st, 0, sizeof *st);
}

static nsa_status fail_unreadable(const import_state *m, const char *file) {
  return nsai_fail(NSA_E_CACHE,
                   "nothing was imported: the tuning record %s in %s/%s cannot be read; make it "
                   "readable, or remove it",
                   file, m->records->folders.info[0].path, m->records->folders.kind->folder);
}

/* Merges with what is in the folders and in memory. */
static nsa_status merge(const import_state *m, addition *a, nsai_record *in_file) {
  NSAI_TRY(yield_to_newer(m->records, a->file, in_file, &a->merged, &a->kept));
  if (a->kept) return NSA_OK;
  if (in_file) NSAI_TRY(nsai_record_merge(a->merged, in_file));
  pthread_mutex_lock(&m->records->lock);
  nsa_status status = nsai_records_merge_index(m->records, a->file, m->writable, a->merged);
  pthread_mutex_unlock(&m->records->lock);
  return status;
}

static void forget(addition *a) {
  nsai_record_destroy(a->merged);
  nsai_record_destroy(a->kept);
  a->merged = a->kept = NULL;
}

static nsa_status prepare(const import_state *m, int32_t i) {
  addition *a = &m->list[i];
  nsai_record *in_file = NULL;
  bool readable = true;
  nsa_status status = NSA_OK;
  forget(a);
  nsai_record_name(m->added[i], a->file);
  NSAI_TRY(nsai_record_copy(m->added[i], &a->merged));
  look(m, a->file, &a->before);
  if (m->writable) {
    NSAI_TRY(nsai_records_read_file(m->records, a->file, &readable, &in_file));
    if (!readable) return fail_unreadable(m, a->file);
  }
  status = merge(m, a, in_file);
  nsai_record_destroy(in_file);
  return status;
}

/* ---- files ---- */

/* A failed write: says that nothing was imported. */
static nsa_status fail_write(const import_state *m, nsa_status status) {
  if (status != NSA_E_IO) return status;
  return nsai_fail(NSA_E_CACHE, "nothing was imported: a record cannot be written into %s/%s: %s",
                   m->records->folders.info[0].path, m->records->folders.kind->folder,
                   strerror(errno));
}

/* Writes a record's new file, which is not visible yet: a further one, or that of `a->index`
 * anew. */
static nsa_status stage(import_state *m, addition *a, bool anew) {
  nsai_writer writer = nsai_writer_open(NULL, 0);
  nsai_record_write(a->merged, &writer);
  size_t size = writer.used + 1;
  if (writer.used > NSAI_RECORD_MAX_BYTES)
    return nsai_fail(NSA_E_CACHE,
                     "nothing was imported: with what is here, the tuning record %s has %zu bytes, "
                     "more than any that is read",
                     a->file, writer.used);
  char *text = malloc(size);
  if (!text) return nsai_fail_nomem("the text of a tuning record", size);
  writer = nsai_writer_open(text, size);
  nsai_record_write(a->merged, &writer);
  nsa_status status = NSA_OK;
  if (anew) {
    status = nsai_file_set_rewrite(&m->set, a->index, text, writer.used);
  } else {
    a->index = m->set.count;
    status = nsai_file_set_add(&m->set, a->file, true, text, writer.used);
  }
  status = fail_write(m, status);
  free(text);
  return status;
}

static bool has_changed(const import_state *m, const addition *a) {
  struct stat now;
  look(m, a->file, &now);
  return now.st_ino != a->before.st_ino || now.st_ctim.tv_sec != a->before.st_ctim.tv_sec ||
         now.st_ctim.tv_nsec != a->before.st_ctim.tv_nsec;
}

/* Another process may have saved the record meanwhile: then both are merged. */
static nsa_status publish_locked(import_state *m, int32_t i) {
  addition *a = &m->list[i];
  if (has_changed(m, a)) {
    bool staged = a->index >= 0;
    NSAI_TRY(prepare(m, i));
    if (!a->kept) NSAI_TRY(stage(m, a, staged));
  }
  return a->kept ? NSA_OK : fail_write(m, nsai_file_set_publish(&m->set, a->index));
}

static nsa_status publish(import_state *m) {
  nsa_status status = NSA_OK;
  for (int32_t i = 0; i < m->count && status == NSA_OK; i++) {
    int token = nsai_records_wait_for_lock(m->records, m->list[i].file);
    status = publish_locked(m, i);
    int cause = errno;
    nsai_files_unlock(token);
    errno = cause;
  }
  if (status == NSA_OK) status = fail_write(m, nsai_file_set_sync(&m->set));
  if (status != NSA_OK) nsai_file_set_take_back(&m->set);
  return status;
}

static nsa_status store(import_state *m) {
  nsa_status status = fail_write(m, nsai_file_set_begin(m->records->folders.fd[0], &m->set));
  for (int32_t i = 0; i < m->count && status == NSA_OK; i++)
    if (!m->list[i].kept) status = stage(m, &m->list[i], false);
  if (status == NSA_OK) status = publish(m);
  nsai_dirs_end_set(&m->records->folders, &m->set);
  return status;
}

/* ---- memory ---- */

/* Makes room in the index first, so that nothing fails between two records. */
static nsa_status keep_in_memory(import_state *m) {
  pthread_mutex_lock(&m->records->lock);
  nsa_status status = nsai_records_reserve(m->records, m->count);
  for (int32_t i = 0; i < m->count && status == NSA_OK; i++) {
    addition *a = &m->list[i];
    nsai_record_entry entry = { .tier = NSAI_RECORD_IN_MEMORY, .record = a->merged };
    if (a->kept) continue;
    memcpy(entry.file, a->file, strlen(a->file) + 1);
    a->merged = NULL;
    status = nsai_records_put(m->records, &entry);
  }
  pthread_mutex_unlock(&m->records->lock);
  return status;
}

/* What the files hold is read again where there is no memory for it now. */
static void index_stored(import_state *m) {
  for (int32_t i = 0; i < m->count; i++) {
    addition *a = &m->list[i];
    nsai_record *record = a->merged;
    if (a->kept) continue;
    a->merged = NULL;
    if (nsai_records_keep(m->records, a->file, record, true) != NSA_OK)
      nsai_records_reload(m->records);
  }
}

/* ---- the import ---- */

static void report(const import_state *m, nsai_import *out) {
  for (int32_t i = 0; i < m->count; i++) {
    const nsai_record *kept = m->list[i].kept;
    out->saved += !kept;
    out->kept += kept != NULL;
    if (kept && out->on_kept) out->on_kept(out->user, m->added[i], kept);
  }
}

/* Runs while `saving` is held. */
static nsa_status add_all(import_state *m) {
  for (int32_t i = 0; i < m->count; i++) {
    m->list[i].index = -1;
    NSAI_TRY(prepare(m, i));
  }
  if (!m->writable) return keep_in_memory(m);
  NSAI_TRY(store(m));
  index_stored(m);
  return NSA_OK;
}

nsa_status nsai_records_add(nsai_records *records, const nsai_record *const *added, int32_t count,
                            nsai_import *out) {
  out->saved = out->kept = 0;
  for (int32_t i = 0; i < count; i++) NSAI_TRY(nsai_record_check(added[i]));
  size_t bytes = ((size_t)count + 1) * sizeof(addition);
  import_state m = {
    .records = records,
    .added = added,
    .list = calloc(1, bytes),
    .count = count,
    .writable = nsai_dirs_writable(&records->folders),
  };
  if (!m.list) return nsai_fail_nomem("the list of records to import", bytes);
  pthread_mutex_lock(&records->saving);
  nsa_status status = add_all(&m);
  pthread_mutex_unlock(&records->saving);
  if (status == NSA_OK) report(&m, out);
  for (int32_t i = 0; i < count; i++) forget(&m.list[i]);
  free(m.list);
  return status;
}
