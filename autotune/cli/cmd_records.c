/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The --records option: nsa-autotune list, export and import of tuning records, and the parts of
 * verify and gc that concern them.
 */
#include "cli/cli.h"

#include "base/json.h"
#include "tune/tune.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Opens the records of the cache's folders. A folder that cannot be used, other than one that does not
 * exist, must not pass for an empty one. Must be closed after a failure, too. */
static nsa_status open_records(const nsai_cli_cache *cache, nsai_records **records) {
  nsai_cache_tier_info tier;
  NSAI_TRY(nsai_records_open(&cache->options, records));
  for (int32_t i = 0; nsai_records_tier(*records, i, &tier); i++)
    if (!tier.used && !tier.missing)
      return nsai_fail(NSA_E_CACHE, "the folder of tuning records in %s cannot be used: %s",
                       tier.path, tier.state);
  return NSA_OK;
}

/* Opens the cache's folders and their records. Both must be closed after a failure, too. */
static nsa_status open_both(const nsai_cli_settings *settings, nsai_cache_mode mode,
                            nsai_cli_cache *cache, nsai_records **records) {
  *records = NULL;
  const int32_t level = mode == NSAI_CACHE_READ_WRITE ? NSA_LOG_WARN : NSA_LOG_ERROR;
  NSAI_TRY(nsai_cli_cache_open(settings, level, mode, cache));
  return open_records(cache, records);
}

static int close_both(nsa_status status, nsai_cli_cache *cache, nsai_records *records) {
  int code = nsai_cli_exit(status);
  nsai_records_close(records);
  nsai_cli_cache_close(cache);
  return code;
}

static bool count_unreadable(void *user, const nsai_record_item *item) {
  *(int64_t *)user += item->unreadable;
  return true;
}

/* The digits of nsa_records_digest. What could not be read may choose something: then there is no
 * digest, and the text is empty. */
static nsa_status write_digest(nsai_records *records, char hex[NSAI_DIGEST_CHARS],
                               int64_t *unreadable) {
  unsigned char digest[NSAI_DIGEST_BYTES];
  hex[0] = '\0';
  *unreadable = 0;
  NSAI_TRY(nsai_records_each(records, count_unreadable, unreadable));
  if (*unreadable) return NSA_OK;
  NSAI_TRY(nsai_records_digest(records, digest));
  for (size_t i = 0; i < sizeof digest; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
  return NSA_OK;
}

static nsa_status demand_digest(nsai_records *records, char hex[NSAI_DIGEST_CHARS]) {
  int64_t unreadable;
  NSAI_TRY(write_digest(records, hex, &unreadable));
  return nsai_cli_demand_readable(unreadable);
}

static const char *plural(int64_t count) { return count == 1 ? "" : "s"; }

/* ---- list ---- */

typedef struct listing {
  nsai_writer *out;
  bool json, verbose;
  int64_t records, bad; /* valid records, and invalid files */
  int64_t *unreadable;  /* of the invalid ones */
} listing;

static void list_text(nsai_writer *out, const nsai_record *r) {
  const char *comma = " ";
  nsai_write(out, "%s: %s (%s, %d SMs), %" PRId64 " tokens, %s, %s, %s:", r->problem, r->device,
             r->arch, r->sms, r->bucket, r->level, r->date, r->complete ? "complete" : "not ended");
  for (int32_t i = 0; i < r->timing_count; i++) {
    if (!r->timings[i].chosen || nsai_record_is_fused(r, r->timings[i].stage)) continue;
    nsai_write(out, "%s%s = %s", comma, r->timings[i].stage, r->timings[i].candidate);
    comma = "; ";
  }
}

/* All numbers of a record are finite. */
static void list_json(nsai_writer *out, const nsai_record *r) {
  bool first = true;
  nsai_write_json_member(out, ", ", "device", r->device);
  nsai_write_json_member(out, ", ", "arch", r->arch);
  nsai_write(out, ", \"sms\": %d", r->sms);
  nsai_write_json_member(out, ", ", "key", r->problem);
  nsai_write(out, ", \"tokens\": %" PRId64, r->bucket);
  nsai_write_json_member(out, ", ", "level", r->level);
  nsai_write_json_member(out, ", ", "date", r->date);
  nsai_write_json_member(out, ", ", "library", r->library);
  nsai_write_json_member(out, ", ", "driver", r->driver);
  nsai_write_json_member(out, ", ", "compiler", r->compiler);
  nsai_write(out, ", \"complete\": %s, \"candidates\": %d, \"chosen\": {",
             r->complete ? "true" : "false", r->timing_count);
  for (int32_t i = 0; i < r->timing_count; i++) {
    if (!r->timings[i].chosen) continue;
    nsai_write(out, "%s", first ? "" : ", ");
    nsai_write_json(out, r->timings[i].stage);
    nsai_write(out, ": ");
    nsai_write_json(out, r->timings[i].candidate);
    first = false;
  }
  nsai_write(out, "}, \"baselines\": {");
  for (int32_t i = 0; i < r->baseline_count; i++) {
    nsai_write(out, "%s", i ? ", " : "");
    nsai_write_json(out, r->baselines[i].name);
    nsai_write(out, ": {\"ms\": %.6g, \"spread\": %.6g}", r->baselines[i].ms,
               r->baselines[i].spread);
  }
  nsai_write(out, "}");
}

static void list_item_json(listing *l, const nsai_record_item *item) {
  nsai_write(l->out, "%s\n  ", l->records + l->bad ? "," : "");
  nsai_write_json_member(l->out, "{", "folder", item->folder);
  nsai_write_json_member(l->out, ", ", "file", item->file);
  nsai_write_json_member(l->out, ", ", "problem", item->problem);
  nsai_write(l->out, ", \"hidden\": %s", item->hidden ? "true" : "false");
  if (item->record) list_json(l->out, item->record);
  nsai_write(l->out, "}");
}

static bool list_item(void *user, const nsai_record_item *item) {
  listing *l = user;
  if (l->json) {
    list_item_json(l, item);
  } else if (!item->record) {
    nsai_write(l->out, "%s/%s: %s\n", item->folder, item->file, item->problem);
  } else if (l->verbose) {
    nsai_write(l->out, "# %s/%s%s\n", item->folder, item->file, item->hidden ? " (hidden)" : "");
    nsai_record_write(item->record, l->out);
  } else {
    list_text(l->out, item->record);
    nsai_write(l->out, "%s\n", item->hidden ? " (hidden by one of an earlier folder)" : "");
  }
  l->records += item->record != NULL;
  l->bad += item->record == NULL;
  *l->unreadable += item->unreadable;
  return true;
}

typedef struct list_subject {
  nsai_records *records;
  bool json, verbose;
  int64_t *unreadable;
} list_subject;

static nsa_status write_end_json(const listing *l, nsai_records *records) {
  char digest[NSAI_DIGEST_CHARS];
  NSAI_TRY(write_digest(records, digest, l->unreadable));
  nsai_write(l->out, "],\n \"count\": %" PRId64 ", \"bad\": %" PRId64, l->records, l->bad);
  if (*digest)
    nsai_write_json_member(l->out, ", ", "digest", digest);
  else
    nsai_write(l->out, ", \"digest\": null");
  nsai_write(l->out, "}\n");
  return NSA_OK;
}

static nsa_status write_list(const void *subject, nsai_writer *out) {
  const list_subject *s = subject;
  listing l = { .out = out, .json = s->json, .verbose = s->verbose, .unreadable = s->unreadable };
  *l.unreadable = 0; /* the text may be written twice */
  if (s->json) nsai_write(out, "{\"records\": [");
  NSAI_TRY(nsai_records_each(s->records, list_item, &l));
  if (s->json) return write_end_json(&l, s->records);
  if (!s->verbose)
    nsai_write(out, "%" PRId64 " record%s, %" PRId64 " bad\n", l.records, plural(l.records), l.bad);
  return NSA_OK;
}

int nsai_list_records(const nsai_cli_settings *settings, bool json, bool verbose) {
  nsai_cli_cache cache;
  int64_t unreadable = 0;
  list_subject s = { .json = json, .verbose = verbose, .unreadable = &unreadable };
  nsa_status status = open_both(settings, NSAI_CACHE_READ_ONLY, &cache, &s.records);
  if (status == NSA_OK) status = nsai_cli_print(write_list, &s);
  if (status == NSA_OK) status = nsai_cli_demand_readable(unreadable);
  return close_both(status, &cache, s.records);
}

/* ---- the digest ---- */

static nsa_status print_digest(nsai_records *records) {
  char digest[NSAI_DIGEST_CHARS];
  NSAI_TRY(demand_digest(records, digest));
  puts(digest);
  return NSA_OK;
}

int nsai_print_records_digest(const nsai_cli_settings *settings) {
  nsai_cli_cache cache;
  nsai_records *records;
  nsa_status status = open_both(settings, NSAI_CACHE_READ_ONLY, &cache, &records);
  if (status == NSA_OK) status = print_digest(records);
  return close_both(status, &cache, records);
}

/* ---- verify ---- */

typedef struct counts {
  /* hidden: valid, but another record of the same key takes precedence */
  int64_t good, hidden, bad;
} counts;

static bool count_item(void *user, const nsai_record_item *item) {
  counts *c = user;
  c->good += item->record && !item->hidden;
  c->hidden += item->record && item->hidden;
  c->bad += !item->record;
  if (!item->record)
    fprintf(stderr, "bad record: %s/%s: %s\n", item->folder, item->file, item->problem);
  return true;
}

nsa_status nsai_verify_records(const nsai_cli_cache *cache, int64_t *good, int64_t *bad) {
  counts c = { 0 };
  nsai_records *records = NULL;
  nsa_status status = open_records(cache, &records);
  if (status == NSA_OK) status = nsai_records_each(records, count_item, &c);
  nsai_records_close(records);
  *good = c.good + c.hidden;
  *bad = c.bad;
  return status;
}

/* ---- gc ---- */

nsa_status nsai_gc_records(const nsai_cli_cache *cache) {
  nsai_records *records = NULL;
  NSAI_TRY(nsai_records_open(&cache->options, &records));
  nsa_status status = nsai_records_gc(records);
  nsai_records_close(records);
  return status;
}

/* ---- export ---- */

static nsa_status write_export(const void *subject, nsai_writer *out) {
  nsai_records *const *records = subject;
  return nsai_records_export(*records, out);
}

static nsa_status export_to(nsai_records *records, const char *path) {
  counts c = { 0 };
  char *text, digest[NSAI_DIGEST_CHARS];
  int64_t unreadable;
  NSAI_TRY(nsai_records_each(records, count_item, &c));
  NSAI_TRY(write_digest(records, digest, &unreadable));
  NSAI_TRY(nsai_cli_text(write_export, &records, &text));
  nsa_status status = nsai_cli_write_file(path, text);
  free(text);
  NSAI_TRY(status);
  fprintf(stderr, "%" PRId64 " record%s%s%s\n", c.good, plural(c.good), *digest ? ", digest " : "",
          digest);
  if (!c.bad) return NSA_OK;
  return nsai_fail(NSA_E_CACHE,
                   "%" PRId64 " bad record%s left out; tune anew, or remove the file%s", c.bad,
                   c.bad == 1 ? " was" : "s were", plural(c.bad));
}

int nsai_export_records(const nsai_cli_settings *settings, const char *path) {
  nsai_cli_cache cache;
  nsai_records *records;
  nsa_status status = open_both(settings, NSAI_CACHE_READ_ONLY, &cache, &records);
  if (status == NSA_OK) status = export_to(records, path);
  return close_both(status, &cache, records);
}

/* ---- import ---- */

/* Reads to the end. The caller frees `*text`, also after a failure. */
static nsa_status read_text(FILE *in, const char *name, char **text, size_t *size) {
  size_t room = 0;
  for (*size = 0;;) {
    if (*size == room) {
      room = room ? 2 * room : 1 << 16;
      char *grown = realloc(*text, room);
      if (!grown) return nsai_fail_nomem("the records to import", room);
      *text = grown;
    }
    size_t count = fread(*text + *size, 1, room - *size, in);
    *size += count;
    if (ferror(in)) return nsai_cli_fail_io(name, "cannot be read", errno);
    if (!count) break;
    if (*size > NSAI_RECORDS_MAX_BYTES)
      return nsai_fail(NSA_E_CACHE, "%s: more than %zu bytes, which no export of records has", name,
                       NSAI_RECORDS_MAX_BYTES);
  }
  if (*size) return NSA_OK;
  return nsai_fail(NSA_E_CACHE, "%s: empty, which no export of records is", name);
}

/* The records' diagnostics name lines; this adds the file's name. */
static nsa_status import_text(nsai_records *records, const char *name, const char *text,
                              size_t size, nsai_import *import) {
  nsa_status status = nsai_records_import(records, text, size, import);
  if (status != NSA_E_CACHE) return status;
  char *reason = strdup(nsa_last_error());
  if (!reason) return nsai_fail_nomem("the error text", 0);
  nsai_fail(status, "%s: %s", name, reason);
  free(reason);
  return status;
}

static nsa_status import_from(nsai_records *records, const char *path, nsai_import *import) {
  bool piped = !strcmp(path, "-");
  const char *name = piped ? "standard input" : path;
  FILE *in = piped ? stdin : fopen(path, "rbe");
  char *text = NULL;
  size_t size = 0;
  if (!in) return nsai_cli_fail_io(name, "cannot be read", errno);
  nsa_status status = read_text(in, name, &text, &size);
  if (!piped) fclose(in);
  if (status == NSA_OK) status = import_text(records, name, text, size, import);
  free(text);
  return status;
}

static void print_kept(void *user, const nsai_record *record, const nsai_record *here) {
  (void)user;
  printf("kept: %s, %s: the record here is of %s, library %s, driver %s; that of the file of %s, "
         "library %s, driver %s\n",
         here->device, here->problem, here->date, here->library, here->driver, record->date,
         record->library, record->driver);
}

/* Records that are only in memory would be lost when this process ends. */
static nsa_status import_and_store(nsai_records *records, const char *path) {
  nsai_cache_tier_info tier;
  nsai_import import = { .on_kept = print_kept };
  if (!nsai_records_tier(records, 0, &tier))
    return nsai_fail(NSA_E_CACHE, "no folder for records: set runtime.cache_dir or $NSA_CACHE_DIR");
  if (!tier.used || !tier.writable)
    return nsai_fail(NSA_E_CACHE, "records cannot be stored in %s: %s", tier.path, tier.state);
  NSAI_TRY(import_from(records, path, &import));
  printf("%d record%s imported into %s", import.saved, plural(import.saved), tier.path);
  if (import.kept) printf(", %d older than those there", import.kept);
  printf("\n");
  return NSA_OK;
}

/* Other ranks choose alike where they have the same digest. */
static nsa_status compare_digest(nsai_records *records, const char *wanted) {
  char digest[NSAI_DIGEST_CHARS];
  NSAI_TRY(demand_digest(records, digest));
  if (!strcasecmp(digest, wanted)) return NSA_OK;
  return nsai_fail(
      NSA_E_CACHE,
      "with the imported records the digest is %s, not %s: the file is another one, or "
      "this host has further or newer records, which `nsa-autotune list --records` "
      "names",
      digest, wanted);
}

int nsai_import_records(const nsai_cli_settings *settings, const char *path, const char *digest) {
  nsai_cli_cache cache;
  nsai_records *records;
  nsa_status status = open_both(settings, NSAI_CACHE_READ_WRITE, &cache, &records);
  if (status == NSA_OK) status = import_and_store(records, path);
  if (status == NSA_OK && digest) status = compare_digest(records, digest);
  return close_both(status, &cache, records);
}
