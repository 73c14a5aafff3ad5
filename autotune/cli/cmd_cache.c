/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-autotune list, verify and gc: the kernel cache on disk.
 */
#include "cli/cli.h"

#include "base/json.h"
#include "cache/cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct arguments {
  nsai_cli_settings settings;
  bool json, records, verbose, digest;
  char limit[64]; /* the override that --limit sets */
} arguments;

static error_t parse(int key, char *value, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
  case 'j': a->json = true; break;
  case 'r': a->records = true; break;
  case 'v': a->verbose = true; break;
  case 'd': a->digest = true; break;
  case 'l':
    snprintf(a->limit, sizeof a->limit, "runtime.cache_limit=%s", value);
    nsai_cli_override(&a->settings, a->limit, state);
    break;
  case ARGP_KEY_ARG: argp_error(state, "unexpected argument \"%s\"", value); break;
  case ARGP_KEY_END:
    if (a->verbose && !a->records) argp_error(state, "--verbose is for --records");
    if (a->digest && !a->records) argp_error(state, "--digest is for --records");
    if (a->digest && (a->json || a->verbose))
      argp_error(state, "--digest prints nothing else: leave --json and --verbose out");
    break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

void nsai_cli_cache_close(nsai_cli_cache *o) {
  nsai_cache_close(o->cache);
  nsai_config_destroy(o->config);
  nsai_logger_fini(&o->logger);
}

nsa_status nsai_cli_cache_open(const nsai_cli_settings *settings, int32_t log_level,
                               nsai_cache_mode mode, nsai_cli_cache *o) {
  memset(o, 0, sizeof *o);
  nsai_logger_init(&o->logger, nsai_cli_log, &o->progress, log_level);
  NSAI_TRY(nsai_cli_config(NULL, settings, false, &o->config));
  o->options = (nsai_cache_options){ .dir = o->config->runtime.cache_dir,
                                     .mode = mode,
                                     .limit = o->config->runtime.cache_limit,
                                     .logger = &o->logger };
  NSAI_TRY(nsai_cache_open(&o->options, &o->cache));
  nsai_cache_tier_info tier;
  if (nsai_cache_tier(o->cache, 0, &tier) && !tier.used && !tier.missing)
    return nsai_fail(NSA_E_CACHE, "the cache folder %s is refused: %s", tier.path, tier.state);
  return NSA_OK;
}

nsa_status nsai_cli_demand_readable(int64_t unreadable) {
  if (!unreadable) return NSA_OK;
  return nsai_fail(NSA_E_CACHE, "%" PRId64 " %s could not be read: make %s readable, or remove %s",
                   unreadable, unreadable == 1 ? "file" : "files", unreadable == 1 ? "it" : "them",
                   unreadable == 1 ? "it" : "them");
}

/* Fails when a folder of the system was left out, which may hold entries. */
static nsa_status demand_folders(nsai_cache *cache) {
  nsai_cache_tier_info tier;
  for (int32_t i = 1; nsai_cache_tier(cache, i, &tier); i++)
    if (!tier.used && !tier.missing)
      return nsai_fail(NSA_E_CACHE, "the cache folder %s was left out: %s", tier.path, tier.state);
  return NSA_OK;
}

/* ---- list ---- */

typedef struct listing {
  nsai_writer *json; /* NULL: text on stdout */
  int64_t files;     /* all that follow */
  int64_t entries;   /* valid ones, whose size is `bytes` */
  int64_t bad, foreign;
  int64_t unreadable; /* of the bad ones */
  uint64_t bytes;
} listing;

/* "2026-01-31T12:00:00Z". */
static void format_time(int64_t seconds, char out[32]) {
  time_t when = (time_t)seconds;
  struct tm tm;
  if (!seconds || !gmtime_r(&when, &tm) || !strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm))
    snprintf(out, 32, "-");
}

static void list_text(const nsai_cache_item *item, const char *used) {
  char size[32];
  if (item->problem)
    printf("%s/%s: %s\n", item->folder, item->file, item->problem);
  else
    printf("%-36s %-8s %4d registers %10s  %s  %.16s\n", item->entry, item->arch, item->registers,
           nsai_cli_bytes(item->bytes, size), used, item->file);
}

static void list_json(nsai_writer *out, const nsai_cache_item *item, const char *used) {
  nsai_write(out, "{\"bytes\": %" PRIu64, item->bytes);
  nsai_write_json_member(out, ", ", "folder", item->folder);
  nsai_write_json_member(out, ", ", "file", item->file);
  nsai_write_json_member(out, ", ", "problem", item->problem);
  nsai_write(out, ", \"foreign\": %s", item->foreign ? "true" : "false");
  if (!item->problem) {
    nsai_write_json_member(out, ", ", "kernel", item->entry);
    nsai_write_json_member(out, ", ", "arch", item->arch);
    nsai_write_json_member(out, ", ", "compiler", item->compiler_id);
    nsai_write_json_member(out, ", ", "used_at", item->used_at ? used : NULL);
    nsai_write(out, ", \"registers\": %d, \"shared_bytes\": %d", item->registers,
               item->shared_bytes);
  }
  nsai_write(out, "}");
}

static bool list_item(void *user, const nsai_cache_item *item) {
  listing *l = user;
  char used[32];
  format_time(item->used_at, used);
  if (l->json) {
    nsai_write(l->json, "%s\n  ", l->files ? "," : "");
    list_json(l->json, item, used);
  } else {
    list_text(item, used);
  }
  l->files++;
  l->entries += !item->problem;
  l->foreign += item->foreign;
  l->bad += item->problem && !item->foreign;
  l->unreadable += item->unreadable;
  if (!item->problem) l->bytes += item->bytes;
  return true;
}

typedef struct list_subject {
  nsai_cache *cache;
  int64_t *unreadable;
} list_subject;

static nsa_status write_json(const void *subject, nsai_writer *out) {
  const list_subject *s = subject;
  listing l = { .json = out };
  nsai_write(out, "{\"entries\": [");
  NSAI_TRY(nsai_cache_each(s->cache, list_item, &l));
  *s->unreadable = l.unreadable;
  nsai_write(out,
             "],\n \"count\": %" PRId64 ", \"bad\": %" PRId64 ", \"foreign\": %" PRId64
             ", \"bytes\": %" PRIu64 "}\n",
             l.entries, l.bad, l.foreign, l.bytes);
  return NSA_OK;
}

static nsa_status print_list(nsai_cache *cache, int64_t *unreadable) {
  listing l = { 0 };
  nsai_cache_tier_info tier;
  char size[32];
  NSAI_TRY(nsai_cache_each(cache, list_item, &l));
  *unreadable = l.unreadable;
  printf("%" PRId64 " %s, %s", l.entries, l.entries == 1 ? "entry" : "entries",
         nsai_cli_bytes(l.bytes, size));
  if (l.bad) printf(", %" PRId64 " bad (`nsa-autotune verify` removes damaged ones)", l.bad);
  if (l.foreign) printf(", %" PRId64 " foreign", l.foreign);
  for (int32_t i = 0; nsai_cache_tier(cache, i, &tier); i++)
    printf("%s %s%s%s", i ? "," : " in", tier.path, tier.used ? "" : ": ",
           tier.used ? "" : tier.state);
  printf("\n");
  return NSA_OK;
}

int nsai_cmd_list(int argc, char **argv) {
  static const struct argp_option options[] = {
    { "json", 'j', 0, 0, "Print one JSON object", 0 },
    { "records", 'r', 0, 0, "List the tuning records instead", 0 },
    { "verbose", 'v', 0, 0, "With --records: print each record's own text", 0 },
    { "digest", 'd', 0, 0,
      "With --records: print only a digest, equal on hosts whose records choose alike", 0 },
    { 0 }
  };
  static const char help[] =
      "Lists the entries of the kernel cache, all folders of it, or the tuning records in the same "
      "folders: device, length, level, date, and what was chosen for each stage.\vExit status 6 "
      "when a folder is refused, or something in the folders could not be read.";
  arguments a = { 0 };
  nsai_cli_cache o;
  int64_t unreadable = 0;
  nsai_cli_parse(argc, argv, options, parse, NULL, help, &a);
  if (a.digest) return nsai_print_records_digest(&a.settings);
  if (a.records) return nsai_list_records(&a.settings, a.json, a.verbose);
  nsa_status status = nsai_cli_cache_open(&a.settings, NSA_LOG_ERROR, NSAI_CACHE_READ_ONLY, &o);
  if (status == NSA_OK)
    status = a.json ? nsai_cli_print(write_json, &(list_subject){ o.cache, &unreadable })
                    : print_list(o.cache, &unreadable);
  if (status == NSA_OK) status = nsai_cli_demand_readable(unreadable);
  if (status == NSA_OK) status = demand_folders(o.cache);
  int code = nsai_cli_exit(status);
  nsai_cli_cache_close(&o);
  return code;
}

/* ---- verify and gc ---- */

typedef struct verified {
  int64_t good, bad, good_records, bad_records;
} verified;

static void print_verified(const verified *v, bool json) {
  if (json)
    printf("{\"kernels\": {\"good\": %" PRId64 ", \"bad\": %" PRId64 "},\n"
           " \"records\": {\"good\": %" PRId64 ", \"bad\": %" PRId64 "}}\n",
           v->good, v->bad, v->good_records, v->bad_records);
  else
    printf("kernels: %" PRId64 " good, %" PRId64 " bad\nrecords: %" PRId64 " good, %" PRId64
           " bad\n",
           v->good, v->bad, v->good_records, v->bad_records);
}

int nsai_cmd_verify(int argc, char **argv) {
  static const struct argp_option options[] = { { "json", 'j', 0, 0, "Print one JSON object", 0 },
                                                { 0 } };
  static const char help[] =
      "Verifies every entry of the kernel cache and removes bad ones from the user's folder. Reads "
      "every tuning record; bad ones are named and stay, since they may hold hours of measuring: "
      "tuning the same again replaces them.\vExit status 6 when an entry or a record was bad or "
      "a folder is refused.";
  arguments a = { 0 };
  nsai_cli_cache o;
  verified v = { 0 };
  nsai_cli_parse(argc, argv, options, parse, NULL, help, &a);
  /* At INFO the cache names each invalid entry. */
  nsa_status status = nsai_cli_cache_open(&a.settings, NSA_LOG_INFO, NSAI_CACHE_READ_WRITE, &o);
  if (status == NSA_OK) status = nsai_cache_verify(o.cache, &v.good, &v.bad);
  if (status == NSA_OK) status = nsai_verify_records(&o, &v.good_records, &v.bad_records);
  if (status == NSA_OK) print_verified(&v, a.json);
  if (status == NSA_OK) status = demand_folders(o.cache);
  int code = status != NSA_OK         ? nsai_cli_fail(status)
             : v.bad || v.bad_records ? NSAI_EXIT_CACHE
                                      : NSAI_EXIT_OK;
  nsai_cli_cache_close(&o);
  return code;
}

int nsai_cmd_gc(int argc, char **argv) {
  static const struct argp_option options[] = {
    { "limit", 'l', "SIZE", 0, "Bytes that may stay, as 100Mi (runtime.cache_limit)", 0 }, { 0 }
  };
  static const char help[] =
      "Removes the least recently used entries of the user's folder until it is within the limit, "
      "and temporary files of processes that died. Tuning records stay, and so do entries whose "
      "last "
      "use cannot be read.\vExit status 6 when a folder is refused, or a file could be neither "
      "examined nor removed.";
  arguments a = { 0 };
  nsai_cli_cache o;
  int64_t removed = 0;
  uint64_t left = 0;
  char size[32];
  nsai_cli_parse(argc, argv, options, parse, NULL, help, &a);
  nsa_status status = nsai_cli_cache_open(&a.settings, NSA_LOG_ERROR, NSAI_CACHE_READ_WRITE, &o);
  if (status == NSA_OK)
    status = nsai_cache_gc(o.cache, o.config->runtime.cache_limit, &removed, &left);
  if (status == NSA_OK) status = nsai_gc_records(&o);
  if (status == NSA_OK)
    printf("%" PRId64 " removed, %s left\n", removed, nsai_cli_bytes(left, size));
  int code = nsai_cli_exit(status);
  nsai_cli_cache_close(&o);
  return code;
}
