/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * All records as one document, which carries decisions to other machines.
 *
 *   nsa_records: 1
 *   records:
 *     - device:
 *   ...
 *   ...
 *   # checksum: 0123456789abcdef0123456789abcdef
 *
 * The line of three dots is YAML's end of a document. It distinguishes a file whose checksum was
 * removed on purpose from one that was truncated.
 */
#include "records/internal.h"

#include <stdio.h>
#include <string.h>

nsa_status nsai_records_export(nsai_records *records, nsai_writer *writer) {
  size_t begin = writer->used;
  bool any = false;
  nsai_write(writer, NSAI_RECORDS_KEY ": %d\nrecords:", NSAI_RECORD_VERSION);
  pthread_mutex_lock(&records->lock);
  nsa_status status = nsai_records_load_all(records);
  for (int32_t i = 0; i < records->count && status == NSA_OK; i++) {
    const nsai_record_entry *entry = &records->entries[i];
    if (entry != nsai_records_visible(records, entry->file)) continue;
    nsai_write(writer, "%s  - ", any ? "" : "\n");
    nsai_record_write_keys(entry->record, 4, writer);
    any = true;
  }
  pthread_mutex_unlock(&records->lock);
  NSAI_TRY(status);
  nsai_write(writer, "%s...\n", any ? "" : " []\n");
  nsai_record_write_checksum(writer, begin);
  return NSA_OK;
}

/* Reads and checks everything. */
static nsa_status read_pack(const char *text, size_t size, nsai_record_document *out) {
  char fault[NSAI_RECORD_FAULT_CHARS];
  *out = (nsai_record_document){ 0 };
  if (size > NSAI_RECORDS_MAX_BYTES)
    return nsai_fail(NSA_E_CACHE, "the tuning records are not imported: more than %zu bytes",
                     NSAI_RECORDS_MAX_BYTES);
  nsai_record_seal seal = nsai_record_check_seal(text, size);
  if (seal == NSAI_SEAL_WRONG)
    return nsai_fail(NSA_E_CACHE,
                     "the tuning records are not imported: the checksum of the last line does not "
                     "fit; the file was damaged, export it again; or it was edited, then remove "
                     "the line");
  nsa_status status = nsai_record_read(text, size, true, out, fault);
  if (status == NSA_E_NOMEM) return nsai_fail(status, "the tuning records: %s", fault);
  if (status != NSA_OK)
    return nsai_fail(status,
                     "the tuning records are not imported: %s; correct it, or export them again",
                     fault);
  if (seal == NSAI_SEAL_GOOD || out->ended) return NSA_OK;
  nsai_record_document_fini(out);
  return nsai_fail(NSA_E_CACHE,
                   "the tuning records are not imported: the end of the file is missing; export "
                   "it again, or close what was written by hand with a line `...`");
}

nsa_status nsai_records_import(nsai_records *records, const char *text, size_t size,
                               nsai_import *import) {
  nsai_record_document document;
  import->saved = import->kept = 0;
  NSAI_TRY(read_pack(text, size, &document));
  nsa_status status = nsai_records_add(records, (const nsai_record *const *)document.records,
                                       document.count, import);
  nsai_record_document_fini(&document);
  return status;
}
