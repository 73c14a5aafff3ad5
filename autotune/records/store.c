/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The store: an index of all records in memory, read from the folders once. Records of several
 * folders with the same key are adjacent, and the first valid one is in effect.
 */
#include "records/internal.h"

#include "base/files.h"
#include "base/lock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const nsai_dirs_kind tuning = { "tuning", "tuning", "tuning records", "new tuning records" };

nsa_status nsai_records_open(const nsai_cache_options *options, nsai_records **out) {
  *out = NULL;
  nsai_records *records = calloc(1, sizeof *records);
  if (!records) return nsai_fail_nomem("the store of tuning records", sizeof *records);
  pthread_mutex_init(&records->saving, NULL);
  pthread_mutex_init(&records->lock, NULL);
  nsai_dirs_open(&records->folders, options, &tuning);
  *out = records;
  return NSA_OK;
}

void nsai_records_close(nsai_records *records) {
  if (!records || !nsai_lock_is_free(&records->lock)) return;
  for (int32_t i = 0; i < records->count; i++) nsai_record_destroy(records->entries[i].record);
  free(records->entries);
  nsai_dirs_close(&records->folders);
  pthread_mutex_destroy(&records->saving);
  pthread_mutex_destroy(&records->lock);
  free(records);
}

bool nsai_records_tier(nsai_records *records, int32_t index, nsai_cache_tier_info *out) {
  return nsai_dirs_tier(&records->folders, index, out);
}

/* ---- the index ---- */

int32_t nsai_records_lower_bound(const nsai_records *records, const char *file) {
  int32_t begin = 0, end = records->count;
  while (begin < end) {
    int32_t middle = begin + (end - begin) / 2;
    if (strcmp(records->entries[middle].file, file) < 0)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

/* Whether the entry at `index` has this file name. */
static bool is_of(const nsai_records *records, int32_t index, const char *file) {
  return index < records->count && strcmp(records->entries[index].file, file) == 0;
}

const nsai_record_entry *nsai_records_visible(const nsai_records *records, const char *file) {
  for (int32_t i = nsai_records_lower_bound(records, file); is_of(records, i, file); i++)
    if (records->entries[i].record) return &records->entries[i];
  return NULL;
}

nsa_status nsai_records_reserve(nsai_records *records, int32_t more) {
  int32_t capacity = records->capacity ? records->capacity : 16;
  while (capacity < records->count + more) capacity *= 2;
  size_t bytes = (size_t)capacity * sizeof *records->entries;
  if (capacity == records->capacity) return NSA_OK;
  nsai_record_entry *entries = realloc(records->entries, bytes);
  if (!entries) return nsai_fail_nomem("the index of tuning records", bytes);
  records->entries = entries;
  records->capacity = capacity;
  return NSA_OK;
}

nsa_status nsai_records_put(nsai_records *records, const nsai_record_entry *entry) {
  int32_t at = nsai_records_lower_bound(records, entry->file);
  while (is_of(records, at, entry->file) && records->entries[at].tier < entry->tier) at++;
  if (is_of(records, at, entry->file) && records->entries[at].tier == entry->tier) {
    nsai_record_destroy(records->entries[at].record);
    records->entries[at] = *entry;
    return NSA_OK;
  }
  nsa_status status = nsai_records_reserve(records, 1);
  if (status != NSA_OK) {
    nsai_record_destroy(entry->record);
    return status;
  }
  memmove(records->entries + at + 1, records->entries + at,
          (size_t)(records->count - at) * sizeof *records->entries);
  records->entries[at] = *entry;
  records->count++;
  return NSA_OK;
}

void nsai_records_take_out(nsai_records *records, int32_t index) {
  nsai_record_destroy(records->entries[index].record);
  records->count--;
  memmove(records->entries + index, records->entries + index + 1,
          (size_t)(records->count - index) * sizeof *records->entries);
}

/* ---- loading ---- */

/* Loads one file, valid or not, into the index. A file that no longer exists is no error. */
static nsa_status load_file(nsai_records *records, int32_t tier, const char *file) {
  struct stat st;
  nsai_record_entry entry = { .tier = tier };
  char *data, name[NSAI_RECORD_NAME_CHARS], fault[NSAI_FILES_FAULT_CHARS];
  nsa_status status = NSA_OK;
  snprintf(entry.file, sizeof entry.file, "%s", file);
  switch (nsai_files_read_trusted(records->folders.fd[tier], file, NSAI_RECORD_MAX_BYTES, &data,
                                  &st, fault)) {
  case NSAI_FILES_MISSING: return NSA_OK;
  case NSAI_FILES_UNREADABLE:
    if (errno == ENOMEM) return nsai_fail_nomem(file, NSAI_RECORD_MAX_BYTES);
    entry.unreadable = true; /* fall through */
  case NSAI_FILES_DAMAGED: snprintf(entry.problem, sizeof entry.problem, "%s", fault); break;
  case NSAI_FILES_PRESENT:
    status = nsai_record_decode(data, (size_t)st.st_size, &entry.record, entry.problem);
    free(data);
    if (status == NSA_E_NOMEM) return nsai_fail_nomem(file, (size_t)st.st_size);
  }
  if (entry.record) {
    nsai_record_name(entry.record, name);
    if (strcmp(name, file) != 0) {
      nsai_record_destroy(entry.record);
      entry.record = NULL;
      snprintf(entry.problem, sizeof entry.problem, "holds another record than its name says");
    }
  }
  if (!entry.record)
    nsai_dirs_warn(&records->folders, NSAI_WARNED_BAD,
                   "the tuning record %s in %s/%s %s%s%s and not used; it stays there to be looked "
                   "at, or removed",
                   file, records->folders.info[tier].path, records->folders.kind->folder,
                   entry.unreadable ? "" : "is bad (", entry.problem, entry.unreadable ? "," : ")");
  return nsai_records_put(records, &entry);
}

static nsa_status load_tier(nsai_records *records, int32_t tier) {
  char **names;
  size_t count;
  bool own = tier == 0 && nsai_dirs_writable(&records->folders);
  nsa_status status =
      nsai_dirs_list(records->folders.fd[tier], NSAI_RECORD_ENDING, own, &names, &count);
  if (status == NSA_E_CACHE) {
    nsai_dirs_warn(&records->folders, NSAI_WARNED_DIRS, "no tuning records are read from %s: %s",
                   records->folders.info[tier].path, nsa_last_error());
    records->loaded = false;
    return NSA_OK;
  }
  NSAI_TRY(status);
  for (size_t i = 0; i < count && status == NSA_OK; i++) {
    if (nsai_dirs_is_temporary(names[i]))
      (void)nsai_files_remove_abandoned(records->folders.fd[tier], names[i]); /* gc reports it */
    else
      status = load_file(records, tier, names[i]);
  }
  nsai_dirs_free_list(names, count);
  return status;
}

nsa_status nsai_records_load(nsai_records *records) {
  if (records->loaded) return NSA_OK;
  for (int32_t i = records->count - 1; i >= 0; i--)
    if (records->entries[i].tier != NSAI_RECORD_IN_MEMORY) nsai_records_take_out(records, i);
  records->loaded = true;
  nsa_status status = NSA_OK;
  for (int32_t tier = 0; tier < records->folders.tiers && status == NSA_OK; tier++)
    if (records->folders.fd[tier] >= 0) status = load_tier(records, tier);
  if (status != NSA_OK) records->loaded = false;
  return status;
}

nsa_status nsai_records_gc(nsai_records *records) {
  nsai_cache_tier_info tier;
  char **names;
  size_t count;
  if (!nsai_dirs_tier(&records->folders, 0, &tier) || tier.missing) return NSA_OK;
  if (!tier.writable)
    return nsai_fail(NSA_E_CACHE, "the tuning records in %s cannot be cleaned: %s", tier.path,
                     tier.state);
  NSAI_TRY(nsai_dirs_list(records->folders.fd[0], NSAI_RECORD_ENDING, true, &names, &count));
  nsa_status status = NSA_OK;
  for (size_t i = 0; i < count; i++)
    if (nsai_dirs_is_temporary(names[i]) &&
        !nsai_files_remove_abandoned(records->folders.fd[0], names[i]))
      status = nsai_fail(NSA_E_CACHE, "the temporary file %s in %s/%s cannot be removed: %s",
                         names[i], tier.path, records->folders.kind->folder, strerror(errno));
  nsai_dirs_free_list(names, count);
  return status;
}

nsa_status nsai_records_load_all(nsai_records *records) {
  NSAI_TRY(nsai_records_load(records));
  if (records->loaded) return NSA_OK;
  return nsai_fail(NSA_E_CACHE, "a folder of tuning records cannot be listed, so that some may be "
                                "missing; make it readable, or name another in $NSA_CACHE_DIR");
}

void nsai_records_reload(nsai_records *records) {
  pthread_mutex_lock(&records->lock);
  records->loaded = false;
  pthread_mutex_unlock(&records->lock);
}

/* ---- looking up ---- */

/* Copies a key's text; false when it is longer than any record's. */
static bool take_key(char *out, size_t size, const char *text) {
  return snprintf(out, size, "%s", text) < (int)size;
}

bool nsai_records_find(nsai_records *records, const char *device, const char *arch, int32_t sms,
                       const char *problem, nsai_record **out) {
  nsai_record key = { .sms = sms };
  char file[NSAI_RECORD_NAME_CHARS];
  *out = NULL;
  if (!take_key(key.device, sizeof key.device, device) ||
      !take_key(key.arch, sizeof key.arch, arch) ||
      !take_key(key.problem, sizeof key.problem, problem))
    return false;
  nsai_record_name(&key, file);
  pthread_mutex_lock(&records->lock);
  const nsai_record_entry *entry =
      nsai_records_load(records) == NSA_OK ? nsai_records_visible(records, file) : NULL;
  bool found = entry && nsai_record_same_key(entry->record, &key) &&
               nsai_record_copy(entry->record, out) == NSA_OK;
  pthread_mutex_unlock(&records->lock);
  return found;
}

/* ---- visiting ---- */

/* Lock held. */
static void visit(const nsai_records *records, nsai_record_item_fn fn, void *user) {
  const char *good = ""; /* the last file name with a valid record */
  bool go_on = true;
  for (int32_t i = 0; i < records->count && go_on; i++) {
    const nsai_record_entry *entry = &records->entries[i];
    bool memory = entry->tier == NSAI_RECORD_IN_MEMORY;
    const nsai_record_item item = {
      .folder = memory ? "" : records->folders.info[entry->tier].path,
      .file = entry->file,
      .problem = entry->record ? NULL : entry->problem,
      .unreadable = entry->unreadable,
      .record = entry->record,
      .hidden = entry->record && strcmp(good, entry->file) == 0,
    };
    if (entry->record) good = entry->file;
    go_on = fn(user, &item);
  }
}

nsa_status nsai_records_each(nsai_records *records, nsai_record_item_fn fn, void *user) {
  pthread_mutex_lock(&records->lock);
  nsa_status status = nsai_records_load_all(records);
  if (status == NSA_OK) visit(records, fn, user);
  pthread_mutex_unlock(&records->lock);
  return status;
}

/* ---- the digest ---- */

static void digest_record(const nsai_record *record, nsai_digest_state *state) {
  char file[NSAI_RECORD_NAME_CHARS];
  nsai_record_name(record, file); /* the file name is a digest of the key */
  nsai_digest_field(state, "record", file, strlen(file));
  for (int32_t i = 0; i < record->timing_count; i++) {
    const nsai_timing *timing = &record->timings[i];
    if (!timing->chosen) continue;
    nsai_digest_field(state, "stage", timing->stage, strlen(timing->stage));
    nsai_digest_field(state, "candidate", timing->candidate, strlen(timing->candidate));
  }
}

nsa_status nsai_records_digest(nsai_records *records, unsigned char out[NSAI_DIGEST_BYTES]) {
  nsai_digest_state state;
  char digits[NSAI_DIGEST_CHARS];
  nsai_digest_begin(&state);
  pthread_mutex_lock(&records->lock);
  nsa_status status = nsai_records_load_all(records);
  for (int32_t i = 0; i < records->count && status == NSA_OK; i++)
    if (&records->entries[i] == nsai_records_visible(records, records->entries[i].file))
      digest_record(records->entries[i].record, &state);
  pthread_mutex_unlock(&records->lock);
  NSAI_TRY(status);
  nsai_digest_end(&state, digits);
  nsai_digest_bytes(digits, NSAI_DIGEST_CHARS - 1, out);
  return NSA_OK;
}
