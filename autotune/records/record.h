/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tuning records: what was measured for one problem on one kind of device, and what was chosen.
 *
 * A record is a plain struct. Its file is readable YAML that ends with a checksum. A store keeps
 * records in memory, in the user's folder and in read-only folders of the system. These are the
 * folders of the kernel cache (cache/cache.h), and the same rules apply. Like the cache it never
 * fails a run: trouble with a folder, a file or the disk gives one warning.
 */
#ifndef NSAI_RECORDS_RECORD_H
#define NSAI_RECORDS_RECORD_H

#include "base/digest.h"
#include "base/writer.h"
#include "cache/cache.h"

/* ---- one record ---- */

typedef enum nsai_timing_state {
  NSAI_TIMING_OK,
  NSAI_TIMING_REFUSED, /* does not compile, spills registers, or does not run */
  NSAI_TIMING_WRONG,   /* failed verification */
  NSAI_TIMING_DROPPED, /* so slow that it was not measured further */
  NSAI_TIMING_STATES
} nsai_timing_state;

/* "ok", "refused", "wrong", "dropped"; "?" for any other value. */
const char *nsai_timing_state_name(int32_t state);

/* One candidate of one stage with its measurements. */
typedef struct nsai_timing {
  char stage[32];      /* "attend_window" */
  char candidate[128]; /* variant, then its constants: "attend_window_sm80 rows=128 keys=64" */
  int32_t state;       /* nsai_timing_state */
  /* ms: median over the rounds, including the stages that it fuses; spread: half the
   * interquartile range, relative */
  double ms, spread;
  int32_t rounds;  /* 0: not measured; ms and spread are 0 too */
  bool chosen;     /* the winner; at most one per stage */
  bool is_default; /* the heuristic's choice; at most one per stage */
  char note[96];   /* why it was refused or is wrong; else the stages that it fuses, or "" */
} nsai_timing;

/* A time that the choice is compared with. */
typedef struct nsai_baseline {
  char name[32]; /* "forward", "forward.default", "dense", "dense_gemm" */
  double ms, spread;
} nsai_baseline;

#define NSAI_BASELINES_MAX 8

/* Fields may be set directly, except `timings`: nsai_record_add keeps their order. Numbers are
 * finite and, except temperatures, not negative. Text is UTF-8. Invalid UTF-8 is written as '?';
 * in device, arch, problem and the names of stages, candidates and baselines it is refused. */
typedef struct nsai_record {
  /* What the record is for: used only on an exact match. */
  char device[128]; /* "NVIDIA H200" */
  char arch[16];    /* "sm_90a" */
  int32_t sms;
  char problem[384]; /* the tuner's key: one word without spaces */
  int64_t bucket;    /* length at which it was measured, in tokens */
  /* The environment: on a mismatch the record is still used. */
  char library[32], templates[40], driver[32], compiler[64];
  /* How it was measured. */
  char date[32];  /* ISO 8601, UTC */
  char level[16]; /* quick, normal, exhaustive */
  bool complete;  /* the search was completed; otherwise a later call can resume it */
  double overlap_r, union4, union8;
  int32_t clock_mhz[2];     /* lowest and highest seen; 0: unknown */
  int32_t temperature_c[2]; /* the same */
  nsai_baseline baselines[NSAI_BASELINES_MAX];
  int32_t baseline_count;
  nsai_timing *timings; /* sorted by stage, then candidate; owned */
  int32_t timing_count, timing_capacity;
} nsai_record;

/* Makes an empty record. The caller destroys it. NSA_E_NOMEM. */
nsa_status nsai_record_create(nsai_record **out);

/* NULL is fine. */
void nsai_record_destroy(nsai_record *record);

/* Makes a copy with its own timings. The caller destroys it. NSA_E_NOMEM. */
nsa_status nsai_record_copy(const nsai_record *record, nsai_record **out);

/* Adds a copy of the timing, or replaces the timing of the same stage and candidate. Invalidates
 * pointers into `timings`. NSA_E_NOMEM (the record does not change). */
nsa_status nsai_record_add(nsai_record *record, const nsai_timing *timing);

/* The timing of a candidate, or NULL. Valid until the next nsai_record_add. */
nsai_timing *nsai_record_find(const nsai_record *record, const char *stage, const char *candidate);

/* The timings of a stage, which are contiguous; NULL with `*count` 0: none. Valid until the next
 * nsai_record_add. */
nsai_timing *nsai_record_stage(const nsai_record *record, const char *stage, int32_t *count);

/* The winner of a stage, or NULL. Valid until the next nsai_record_add. */
const nsai_timing *nsai_record_chosen(const nsai_record *record, const char *stage);

/* Sets a baseline by name. False: all NSAI_BASELINES_MAX entries are in use. */
bool nsai_record_set_baseline(nsai_record *record, const char *name, double ms, double spread);

/* Whether two records are for the same device and problem. */
bool nsai_record_same_key(const nsai_record *a, const nsai_record *b);

/* Whether library, templates, driver and compiler are the same. */
bool nsai_record_same_environment(const nsai_record *a, const nsai_record *b);

/* Adds to `record` what only `older` has: timings, baselines, ranges, completeness. If both have
 * a candidate, `record` takes precedence. The winner and the default of a stage come from
 * `older` only if `record` has none; a winner also only if `record` does not have it as failed.
 * Does nothing when key or environment differ. NSA_E_NOMEM (a part may have been added). */
nsa_status nsai_record_merge(nsai_record *record, const nsai_record *older);

/* Checks that the record can be written and read again. NSA_E_ARG: names the field. */
nsa_status nsai_record_check(const nsai_record *record);

/* The name of the record's file, a digest of device, arch, sms and problem: "<digest>.yaml". */
#define NSAI_RECORD_NAME_CHARS 40
void nsai_record_name(const nsai_record *record, char name[NSAI_RECORD_NAME_CHARS]);

/* ---- its text ---- */

/* some thousand candidates; a larger file is a mistake */
#define NSAI_RECORD_MAX_BYTES ((size_t)1 << 20)
#define NSAI_RECORDS_MAX_BYTES ((size_t)64 << 20) /* the same for an export of many records */

/* Writes the record as YAML. Equal content gives equal bytes. The last line is "# checksum: "
 * and the digest of all bytes before it. */
void nsai_record_write(const nsai_record *record, nsai_writer *writer);

/* Reads the text of nsai_record_write. The layout may differ, but the checksum must match. The
 * caller destroys `*out`. NSA_E_CACHE: names the line and what is wrong; NSA_E_NOMEM. */
nsa_status nsai_record_parse(const char *text, size_t size, nsai_record **out);

/* ---- the store ---- */

/* All functions except close are thread-safe. Several processes may share a folder. */
typedef struct nsai_records nsai_records;

/* Opens the folders and creates the user's if it is missing. Reads no record yet. `limit` of the
 * options is not used. A folder that cannot be used gives a warning. NSA_E_NOMEM only. */
nsa_status nsai_records_open(const nsai_cache_options *options, nsai_records **out);

/* NULL is fine. */
void nsai_records_close(nsai_records *records);

/* The folder at `index`, the user's first; false after the last. */
bool nsai_records_tier(nsai_records *records, int32_t index, nsai_cache_tier_info *out);

/* Saves a record in memory and in the user's folder, merged (nsai_record_merge) with the record
 * there and in the later folders. Waits while other processes that save the same record make
 * progress; after 2 seconds without progress it continues without the lock. A damaged file is
 * replaced. A file that cannot be read, and disk trouble, give one warning, and the record stays in
 * memory. The caller keeps ownership of `record`. NSA_E_ARG as nsai_record_check; NSA_E_NOMEM. */
nsa_status nsai_records_save(nsai_records *records, const nsai_record *record);

/* Looks in memory, in the user's folder, then in the read-only folders. The folders are read
 * once, at the first use of the store. True: `*out` is a copy that the caller destroys. The
 * first invalid file gives a warning; invalid files are not removed. */
bool nsai_records_find(nsai_records *records, const char *device, const char *arch, int32_t sms,
                       const char *problem, nsai_record **out);

/* Reads the folders again at the next use, since other processes may have saved records. Records
 * that could not be written stay in memory. */
void nsai_records_reload(nsai_records *records);

/* Removes temporary files of dead processes from the user's folder, as every process that reads the
 * records and may write does, too. NSA_E_CACHE: the folder cannot be used, or a file
 * cannot be removed. NSA_E_NOMEM. */
nsa_status nsai_records_gc(nsai_records *records);

/* Removes the record of the same key from memory and from the user's folder. It is no error if
 * there is none. NSA_E_CACHE: it remains in a folder that cannot be written. NSA_E_NOMEM. */
nsa_status nsai_records_remove(nsai_records *records, const nsai_record *record);

/* One record of the store. Valid during the callback. */
typedef struct nsai_record_item {
  /* as nsai_records_tier; the file is in its subfolder "tuning". "": memory only */
  const char *folder;
  const char *file;
  const char *problem; /* NULL: valid; else what is wrong, and `record` is NULL */
  bool unreadable;     /* what is wrong may pass: the file may hold a record */
  const nsai_record *record;
  bool hidden; /* an earlier folder has a record of the same key, which takes precedence */
} nsai_record_item;

/* Return false to stop. */
typedef bool (*nsai_record_item_fn)(void *user, const nsai_record_item *item);

/* Visits all records, invalid and unreadable files, ordered by name, then by folder. The store is
 * locked meanwhile, so the callback must not use it. NSA_E_NOMEM; NSA_E_CACHE: a folder cannot be
 * listed. */
nsa_status nsai_records_each(nsai_records *records, nsai_record_item_fn fn, void *user);

/* The digest of all decisions: keys and chosen candidates without dates or timings. Ranks with
 * equal decisions have equal digests, whatever folders their records are in. Errors as
 * nsai_records_each. */
nsa_status nsai_records_digest(nsai_records *records, unsigned char out[NSAI_DIGEST_BYTES]);

/* Writes all records in effect as one YAML document. It ends with a line "..." and a checksum
 * like that of nsai_record_write. Errors as nsai_records_each. */
nsa_status nsai_records_export(nsai_records *records, nsai_writer *writer);

/* The result of an import. */
typedef struct nsai_import {
  int32_t saved,
      kept; /* out; kept: not imported, because a newer record of another environment exists here */
  /* Called for each record that is not imported; `here` is the record that stays. May be NULL. */
  void (*on_kept)(void *user, const nsai_record *record, const nsai_record *here);
  void *user;
} nsai_import;

/* Adds records that come from elsewhere, each with a key of its own, all or none. They must not
 * undo later measurements of this machine. If a newer record of the same environment exists, its
 * timings take precedence over those that are added. A newer record of another environment is
 * kept as it is. A record without a date counts as new. They are merged and saved as by
 * nsai_records_save, but a file that cannot be read or written is a failure, after which the
 * folder is as before; in a folder that is not writable from the start they are kept in memory.
 * If the process dies meanwhile, some may be there, each complete. NSA_E_ARG, NSA_E_CACHE,
 * NSA_E_NOMEM. */
nsa_status nsai_records_add(nsai_records *records, const nsai_record *const *added, int32_t count,
                            nsai_import *out);

/* Checks a document of nsai_records_export, then adds its records (nsai_records_add). A document
 * without its checksum line was written or edited by hand; it is accepted when its last line is
 * "...". NSA_E_CACHE: names the line, what is wrong and the remedy; NSA_E_NOMEM. */
nsa_status nsai_records_import(nsai_records *records, const char *text, size_t size,
                               nsai_import *import);

#endif /* NSAI_RECORDS_RECORD_H */
