/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the files of the records share: schema.c (the keys of the text), text.c (writing),
 * parse.c and reader.c (reading), store.c (folders, lookup), save.c (changes), export.c (export,
 * import).
 */
#ifndef NSAI_RECORDS_INTERNAL_H
#define NSAI_RECORDS_INTERNAL_H

#include "cache/dirs.h"
#include "records/record.h"

/* ---- the keys of the text ---- */

typedef enum nsai_record_type {
  NSAI_RECORD_TEXT,  /* char[size] */
  NSAI_RECORD_TOKEN, /* the same without spaces */
  NSAI_RECORD_INT,   /* int32_t */
  NSAI_RECORD_LONG,  /* int64_t */
  NSAI_RECORD_PAIR,  /* int32_t[2] */
  NSAI_RECORD_REAL,  /* double */
  NSAI_RECORD_BOOL,  /* bool */
  NSAI_RECORD_STATE, /* int32_t: nsai_timing_state */
} nsai_record_type;

/* One key and where its value is stored: in the record, a baseline, or a timing. */
typedef struct nsai_record_field {
  const char *key; /* NULL: end of the list */
  nsai_record_type type;
  size_t offset, size;
  bool needed;      /* must be present; text must not be empty and must be UTF-8 */
  int64_t min, max; /* of numbers */
} nsai_record_field;

/* A mapping at the record's top level. */
typedef struct nsai_record_section {
  const char *key; /* NULL: end of the list */
  const nsai_record_field *fields;
} nsai_record_section;

extern const nsai_record_section nsai_record_sections[];
extern const nsai_record_field nsai_record_baseline_fields[];
extern const nsai_record_field nsai_record_timing_fields[]; /* all fields except the stage */

/* A clause that says what is wrong. */
#define NSAI_RECORD_FAULT_CHARS 256

/* Whether the fields at `base` have values that the text can represent. False: `fault` names the
 * key. */
bool nsai_record_check_fields(const nsai_record_field *fields, const void *base,
                              char fault[NSAI_RECORD_FAULT_CHARS]);

/* The same for a stage's name. */
bool nsai_record_check_stage(const char stage[32], char fault[NSAI_RECORD_FAULT_CHARS]);

/* Whether each stage has at most one winner and one default. */
bool nsai_record_check_flags(const nsai_record *record, char fault[NSAI_RECORD_FAULT_CHARS]);

/* ---- the text ---- */

/* The first keys of a document with one record, and of a document with many. */
#define NSAI_RECORD_KEY "nsa_record"
#define NSAI_RECORDS_KEY "nsa_records"
#define NSAI_RECORD_VERSION 1

/* Writes a record's keys. Each line except the first is indented by `indent` spaces. */
void nsai_record_write_keys(const nsai_record *record, int indent, nsai_writer *writer);

/* The last line: "# checksum: ", hexadecimal digits, newline. */
#define NSAI_RECORD_CHECKSUM "# checksum: "
#define NSAI_RECORD_CHECKSUM_BYTES                                                                 \
  (sizeof NSAI_RECORD_CHECKSUM - 1 + NSAI_DIGEST_CHARS - 1 + 1) /* including the newline */

/* Writes the last line for what the writer received from byte `begin` on. */
void nsai_record_write_checksum(nsai_writer *writer, size_t begin);

typedef enum nsai_record_seal {
  NSAI_SEAL_GOOD,
  NSAI_SEAL_MISSING, /* the last line is not a checksum */
  NSAI_SEAL_WRONG
} nsai_record_seal;

/* Compares the checksum of the last line with the text before it. */
nsai_record_seal nsai_record_check_seal(const char *text, size_t size);

/* A document that was read. */
typedef struct nsai_record_document {
  nsai_record **records; /* owned */
  int32_t count;
  bool ended; /* it ends with a line "..." */
} nsai_record_document;

/* Reads a document with one record or, when `many`, with a list. The caller checks the checksum.
 * NSA_E_CACHE with `fault` ("line 3: ..."), NSA_E_NOMEM with `fault`. The thread's error text
 * does not change. */
nsa_status nsai_record_read(const char *text, size_t size, bool many, nsai_record_document *out,
                            char fault[NSAI_RECORD_FAULT_CHARS]);
void nsai_record_document_fini(nsai_record_document *document);

/* nsai_record_parse that does not set the thread's error text. */
nsa_status nsai_record_decode(const char *text, size_t size, nsai_record **out,
                              char fault[NSAI_RECORD_FAULT_CHARS]);

/* ---- the store ---- */

#define NSAI_RECORD_ENDING ".yaml"
#define NSAI_RECORD_FILE_CHARS 256 /* NAME_MAX and the final NUL */

/* A record or an invalid file. */
typedef struct nsai_record_entry {
  char file[NSAI_RECORD_FILE_CHARS];
  int32_t tier;        /* index of its folder; NSAI_RECORD_IN_MEMORY: it could not be written */
  nsai_record *record; /* NULL: an invalid file */
  char problem[NSAI_RECORD_FAULT_CHARS];
  bool unreadable; /* the problem may pass: the file may hold a record */
} nsai_record_entry;
#define NSAI_RECORD_IN_MEMORY (-1)

/* Lock rule: `saving` is held during a complete change, including waits. `lock` protects all
 * other fields except the folders, and is taken after `saving`. */
struct nsai_records {
  nsai_dirs folders;
  pthread_mutex_t saving, lock;
  bool loaded;
  /* sorted by file name, then tier, so that the entry in effect comes first */
  nsai_record_entry *entries;
  int32_t count, capacity;
};

/* Reads the folders unless they have been read. A folder that cannot be listed gives a warning, and
 * is read again the next time. Lock held. NSA_E_NOMEM: try again later. */
nsa_status nsai_records_load(nsai_records *records);

/* The same for whoever needs all of them. NSA_E_CACHE: a folder cannot be listed. */
nsa_status nsai_records_load_all(nsai_records *records);

/* Index of the first entry with this file name, or the index at which it would be inserted. Lock
 * held. */
int32_t nsai_records_lower_bound(const nsai_records *records, const char *file);

/* The entry in effect for a file name, or NULL. Lock held. */
const nsai_record_entry *nsai_records_visible(const nsai_records *records, const char *file);

/* Makes room for so many further entries. Lock held. NSA_E_NOMEM. */
nsa_status nsai_records_reserve(nsai_records *records, int32_t more);

/* Inserts an entry or replaces the one with the same file name and tier. Takes ownership of its
 * record, also on failure. Lock held. NSA_E_NOMEM. */
nsa_status nsai_records_put(nsai_records *records, const nsai_record_entry *entry);

/* ---- changing the store; `saving` is held ---- */

/* Locks a record's file. Returns a token for nsai_files_unlock, or -1: no lock. The wait starts
 * again whenever another process has saved, so that no measurement is lost while the queue
 * moves. */
int nsai_records_wait_for_lock(nsai_records *records, const char *file);

/* The content of the user's file, for the caller to destroy; NULL: nothing. The index warns of
 * damaged files. `*writable` becomes false if the file cannot be read: replacing it could lose
 * what it holds. */
nsa_status nsai_records_read_file(nsai_records *records, const char *file, bool *writable,
                                  nsai_record **out);

/* Merges the records in memory and in the read-only folders. Lock held. */
nsa_status nsai_records_merge_index(nsai_records *records, const char *file, bool writable,
                                    nsai_record *record);

/* Puts a saved record into the index and removes a copy that was in memory only. Takes ownership of
 * `record`, also on failure. */
nsa_status nsai_records_keep(nsai_records *records, const char *file, nsai_record *record,
                             bool stored);

/* Removes the entry at `index`. Lock held. */
void nsai_records_take_out(nsai_records *records, int32_t index);

#endif /* NSAI_RECORDS_INTERNAL_H */
