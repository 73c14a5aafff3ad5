/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tuning records: what was measured for one problem on one kind of device, and what was chosen.
 *
 * A record is plain memory. Its text is YAML that a person can read, closed by a checksum. A store
 * keeps records in memory, in the user's folder and in read-only folders of the system: the folders
 * of the kernel cache (cache/cache.h), under the same rules. Like the cache it never fails a run: trouble
 * with a folder, a file or the disk is one warning.
 */
#ifndef NSAI_RECORDS_RECORD_H
#define NSAI_RECORDS_RECORD_H

#include "base/digest.h"
#include "base/writer.h"
#include "cache/cache.h"

/* ---- one record ---- */

typedef enum nsai_timing_state {
  NSAI_TIMING_OK,
  NSAI_TIMING_REFUSED, /* does not compile, spills, or does not run */
  NSAI_TIMING_WRONG,   /* failed verification */
  NSAI_TIMING_DROPPED, /* so slow that it was not measured further */
  NSAI_TIMING_STATES
} nsai_timing_state;

/* "ok", "refused", "wrong", "dropped"; "?" for what is no state. */
const char *nsai_timing_state_name(int32_t state);

/* One candidate of one stage, as it was measured. */
typedef struct nsai_timing {
  char stage[32];      /* "attend_window" */
  char candidate[128]; /* variant, then its constants: "attend_window_sm80 rows=128 keys=64" */
  int32_t state;       /* nsai_timing_state */
  double ms, spread;   /* of its own stage, with what it covers: median of the rounds; half the
                          distance of the quartiles, relative */
  int32_t rounds;      /* 0: not measured, as ms and spread */
  bool chosen;         /* the winner of its stage: at most one */
  bool is_default;     /* what the heuristic says: at most one of a stage */
  char note[96];       /* why it was refused or is wrong; else which stages it covers, or "" */
} nsai_timing;

/* Something that the choice is compared with. */
typedef struct nsai_baseline {
  char name[32]; /* "forward", "forward.default", "dense", "dense_gemm" */
  double ms, spread;
} nsai_baseline;

#define NSAI_BASELINES_MAX 8

/* Fields may be set directly, but `timings`: nsai_record_add keeps their order. Numbers are finite
 * and, but for temperatures, not negative. Text is UTF-8; where it is not, '?' is written, and in
 * device, arch, problem and the names of stages, candidates and baselines it is refused. */
typedef struct nsai_record {
  /* What it is for; a mismatch is hard. */
  char device[128]; /* "NVIDIA H200" */
  char arch[16];    /* "sm_90a" */
  int32_t sms;
  char problem[384]; /* the tuner's key: one token without spaces */
  int64_t bucket;    /* tokens it was measured at */
  /* The environment; a mismatch is soft. */
  char library[32], templates[40], driver[32], compiler[64];
  /* How it was measured. */
  char date[32];  /* ISO 8601, UTC */
  char level[16]; /* quick, normal, exhaustive */
  bool complete;  /* the search came to its end; else it can be resumed */
  double overlap_r, union4, union8;
  int32_t clock_mhz[2];     /* lowest and highest seen; 0: unknown */
  int32_t temperature_c[2]; /* the same */
  nsai_baseline baselines[NSAI_BASELINES_MAX];
  int32_t baseline_count;
  nsai_timing *timings; /* sorted by stage, then candidate; owned */
  int32_t timing_count, timing_capacity;
} nsai_record;

/* Makes an empty record, the caller's to destroy. NSA_E_NOMEM. */
nsa_status nsai_record_create(nsai_record **out);

/* NULL is fine. */
void nsai_record_destroy(nsai_record *record);

/* Makes a copy with timings of its own, the caller's to destroy. NSA_E_NOMEM. */
nsa_status nsai_record_copy(const nsai_record *record, nsai_record **out);

/* Adds a copy of the timing, in place of an earlier one of the same stage and candidate. Pointers
 * into `timings` end here. NSA_E_NOMEM (the record is as it was). */
nsa_status nsai_record_add(nsai_record *record, const nsai_timing *timing);

/* The timing of a candidate, or NULL. Valid until the next nsai_record_add. */
nsai_timing *nsai_record_find(const nsai_record *record, const char *stage, const char *candidate);

/* The timings of a stage, which lie side by side; NULL with `*count` 0: none. Valid until the next
 * nsai_record_add. */
nsai_timing *nsai_record_stage(const nsai_record *record, const char *stage, int32_t *count);

/* The winner of a stage, or NULL. Valid until the next nsai_record_add. */
const nsai_timing *nsai_record_chosen(const nsai_record *record, const char *stage);

/* Makes the candidate the winner of its stage, and no other. False: there is no such candidate. */
bool nsai_record_choose(nsai_record *record, const char *stage, const char *candidate);

/* Sets a baseline by name. False: all NSAI_BASELINES_MAX are taken. */
bool nsai_record_set_baseline(nsai_record *record, const char *name, double ms, double spread);

/* Whether two records are for the same device and problem. */
bool nsai_record_same_key(const nsai_record *a, const nsai_record *b);

/* Whether library, templates, driver and compiler are the same. */
bool nsai_record_same_environment(const nsai_record *a, const nsai_record *b);

/* Adds to `record` what `older` knows beyond it: timings, baselines, ranges, completeness. Where
 * both know a candidate, `record` wins; the winner and the default of a stage come from `older`
 * only where `record` has none, a winner only if `record` does not know it to fail. Does nothing
 * when key or environment differ. NSA_E_NOMEM (some may have been added). */
nsa_status nsai_record_merge(nsai_record *record, const nsai_record *older);

/* Checks that the record can be written and read again. NSA_E_ARG: names the field. */
nsa_status nsai_record_check(const nsai_record *record);

/* The name of the record's file, a digest of device, arch, sms and problem: "<digest>.yaml". */
#define NSAI_RECORD_NAME_CHARS 40
void nsai_record_name(const nsai_record *record, char name[NSAI_RECORD_NAME_CHARS]);

/* ---- its text ---- */

#define NSAI_RECORD_MAX_BYTES ((size_t)1 << 20)   /* some thousand candidates; more is a mistake */
#define NSAI_RECORDS_MAX_BYTES ((size_t)64 << 20) /* the same for an export of many records */

/* Writes the record as YAML. The same content gives the same bytes. The last line is
 * "# checksum: " and the digest of all bytes before it. */
void nsai_record_write(const nsai_record *record, nsai_writer *writer);

/* Reads what nsai_record_write wrote, of any layout but with the right checksum; `*out` is the
 * caller's to destroy. NSA_E_CACHE: names the line and what is wrong; NSA_E_NOMEM. */
nsa_status nsai_record_parse(const char *text, size_t size, nsai_record **out);

/* ---- the store ---- */

/* All functions are thread-safe but close. Several processes may share a folder. */
typedef struct nsai_records nsai_records;

/* Opens the folders, making the user's when it is missing; reads no record yet. `limit` of the
 * options is not used. A folder that cannot be used is a warning. NSA_E_NOMEM only. */
nsa_status nsai_records_open(const nsai_cache_options *options, nsai_records **out);

/* NULL is fine. */
void nsai_records_close(nsai_records *records);

/* The folder at `index`, the user's first; false behind the last. */
bool nsai_records_tier(nsai_records *records, int32_t index, nsai_cache_tier_info *out);

/* Keeps a record in memory and in the user's folder, merged (nsai_record_merge) with what stands
 * there and in the folders behind it. Waits for others who save the same, while they get ahead; 2
 * seconds without progress, and it goes on. A bad file in its place is replaced. Disk trouble is
 * one warning, and the record stays in memory. `record` stays the caller's. NSA_E_ARG as
 * nsai_record_check; NSA_E_NOMEM. */
nsa_status nsai_records_save(nsai_records *records, const nsai_record *record);

/* The same with a record that comes from elsewhere, so that what was measured here later does not go
 * back: where a newer one of the same environment stands, its timings go before those that are added;
 * of another environment, it stays as it is, and `*kept` is a copy of it, the caller's to destroy.
 * `*kept` NULL: the record was saved. A record without a date is as good as new. */
nsa_status nsai_records_add(nsai_records *records, const nsai_record *record, nsai_record **kept);

/* Looks in memory, the user's folder, the read-only folders; these are read once, at the first use
 * of the store. True: `*out` is a copy, the caller's to destroy. Of bad files the first is a
 * warning; they stay where they are. */
bool nsai_records_find(nsai_records *records, const char *device, const char *arch, int32_t sms,
                       const char *problem, nsai_record **out);

/* Reads the folders anew at the next use: other processes may have saved. Records that could not be
 * written stay. */
void nsai_records_reload(nsai_records *records);

/* Removes the record of the same key from memory and from the user's folder; no record is no error.
 * NSA_E_CACHE: it stays in a folder that cannot be written. NSA_E_NOMEM. */
nsa_status nsai_records_remove(nsai_records *records, const nsai_record *record);

/* One record of the store. Valid during the callback. */
typedef struct nsai_record_item {
  const char *folder; /* as nsai_records_tier; the file lies in its "tuning". "": memory only */
  const char *file;
  const char *problem; /* NULL: good; else what is wrong, and `record` is NULL */
  const nsai_record *record;
  bool hidden; /* a record of the same key stands before it, and is the one that counts */
} nsai_record_item;

/* Return false to stop. */
typedef bool (*nsai_record_item_fn)(void *user, const nsai_record_item *item);

/* Visits all records and bad files, in the order of names, then folders. The store is locked
 * meanwhile: the callback must not use it. NSA_E_NOMEM. */
nsa_status nsai_records_each(nsai_records *records, nsai_record_item_fn fn, void *user);

/* The digest of all decisions: keys and chosen candidates, not dates or timings. Ranks that decide
 * alike have equal digests, in whatever folders their records stand. NSA_E_NOMEM. */
nsa_status nsai_records_digest(nsai_records *records, unsigned char out[NSAI_DIGEST_BYTES]);

/* Writes all records that count as one YAML document, closed by a line "..." and a checksum as
 * nsai_record_write's. NSA_E_NOMEM. */
nsa_status nsai_records_export(nsai_records *records, nsai_writer *writer);

/* What becomes of a document that is imported. */
typedef struct nsai_import {
  int32_t saved,
      kept; /* out; kept: not imported, since a newer one of another environment is here */
  /* Told of each that is not imported; `here` is the one that stays. NULL: nobody. */
  void (*on_kept)(void *user, const nsai_record *record, const nsai_record *here);
  void *user;
} nsai_import;

/* Checks a document of nsai_records_export, then adds its records (nsai_records_add), all or none. A
 * document without its checksum line was written or edited by hand and is accepted when its last
 * line is "...". NSA_E_CACHE: names the line, what is wrong and the remedy; NSA_E_NOMEM. */
nsa_status nsai_records_import(nsai_records *records, const char *text, size_t size,
                               nsai_import *import);

#endif /* NSAI_RECORDS_RECORD_H */
