/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-autotune export and import: the kernel cache as one file, which carries kernels from the
 * machine that compiled them to those that run them.
 *
 *   "NSAPACK1", or "NSAPACK2" in a signed pack
 *   for each entry: its length, then the bytes of its cache file, which contain their own checksum
 *   0, the number of entries, a digest of all entries as hexadecimal digits
 *   in a signed pack: the public key, and the signature of all bytes before it (signature.h)
 *
 * Numbers are 64-bit and little-endian. Import checks everything before it stores anything.
 */
#include "cli/cli.h"
#include "cli/signature.h"

#include "base/digest.h"
#include "cache/cache.h"
#include "cache/entry.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NUMBER_BYTES sizeof(uint64_t)
static const char magic[8] = { 'N', 'S', 'A', 'P', 'A', 'C', 'K', '1' };
static const char signed_magic[8] = { 'N', 'S', 'A', 'P', 'A', 'C', 'K', '2' };

typedef struct arguments {
  nsai_cli_settings settings;
  const char *path; /* "-": standard output or input */
  bool records;
  const char *key;    /* file of the secret key; NULL: no signature */
  const char *digest; /* that the records must have; NULL: any */
} arguments;

enum { OPTION_SIGN = 256, OPTION_DIGEST };

static const struct argp_option import_options[] = {
  { "records", 'r', 0, 0, "The tuning records, as YAML, in place of the kernels", 0 },
  { "digest", OPTION_DIGEST, "DIGEST", 0,
    "Of records: fail unless this host's then have the digest that export printed elsewhere", 0 },
  { 0 }
};
static const struct argp_option export_options[] = {
  { "records", 'r', 0, 0, "The tuning records, as YAML, in place of the kernels", 0 },
  { "sign", OPTION_SIGN, "KEYFILE", 0, "Sign with a secret key that `nsa-autotune keygen` made",
    0 },
  { 0 }
};

static const char *parse_digest(const char *value, struct argp_state *state) {
  if (strlen(value) != NSAI_DIGEST_CHARS - 1 || value[strspn(value, "0123456789abcdefABCDEF")])
    argp_error(state, "--digest: \"%s\" is not %d hexadecimal digits", value,
               NSAI_DIGEST_CHARS - 1);
  return value;
}

static error_t parse(int key, char *value, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
  case 'r': a->records = true; break;
  case OPTION_SIGN: a->key = value; break;
  case OPTION_DIGEST: a->digest = parse_digest(value, state); break;
  case ARGP_KEY_ARG:
    if (state->arg_num) argp_error(state, "one FILE only");
    a->path = value;
    break;
  case ARGP_KEY_NO_ARGS: argp_usage(state); break;
  case ARGP_KEY_END:
    if (a->digest && !a->records) argp_error(state, "--digest is for --records");
    if (a->records && a->key) argp_error(state, "--sign: kernels are signed, records hold no code");
    break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

/* ---- export ---- */

#define DIGITS (NSAI_DIGEST_CHARS - 1)

typedef struct export_state {
  nsai_cli_out out;
  nsai_signing *signing; /* NULL: no signature */
  nsai_digest_state digest;
  int64_t entries, bad;
  uint64_t bytes;
} export_state;

static void put(export_state *e, const void *data, size_t size) {
  fwrite(data, 1, size, e->out.file);
  if (e->signing) nsai_signing_add(e->signing, data, size);
}

static void put_number(export_state *e, uint64_t value) {
  uint64_t little = htole64(value);
  put(e, &little, NUMBER_BYTES);
}

static bool export_item(void *user, const nsai_cache_item *item) {
  export_state *e = user;
  if (item->problem) {
    fprintf(stderr, "left out: %s/%s: %s\n", item->folder, item->file, item->problem);
    e->bad += !item->foreign;
    return true;
  }
  put_number(e, item->bytes);
  put(e, item->data, item->bytes);
  nsai_digest_field(&e->digest, "entry", item->data, item->bytes);
  e->entries++;
  e->bytes += item->bytes;
  return !ferror(e->out.file);
}

/* Ends the signature, and writes it. */
static void put_signature(export_state *e) {
  unsigned char signature[NSAI_SIGNATURE_BYTES];
  if (!e->signing) return;
  put(e, nsai_signing_public_key(e->signing), NSAI_PUBLIC_KEY_BYTES);
  nsai_signing_end(e->signing, signature);
  e->signing = NULL;
  put(e, signature, sizeof signature);
}

static nsa_status export_all(nsai_cache *cache, export_state *e) {
  char digits[NSAI_DIGEST_CHARS];
  nsai_digest_begin(&e->digest);
  put(e, e->signing ? signed_magic : magic, sizeof magic);
  NSAI_TRY(nsai_cache_each(cache, export_item, e));
  put_number(e, 0);
  put_number(e, (uint64_t)e->entries);
  nsai_digest_end(&e->digest, digits);
  put(e, digits, DIGITS);
  put_signature(e);
  return NSA_OK;
}

static nsa_status export_to(nsai_cache *cache, const char *path, export_state *e) {
  if (!strcmp(path, "-") && isatty(STDOUT_FILENO))
    return nsai_fail(NSA_E_ARG, "standard output is a terminal: give a FILE, or a pipe");
  NSAI_TRY(nsai_cli_open_out(path, &e->out));
  return nsai_cli_close_out(&e->out, export_all(cache, e));
}

int nsai_cmd_export(int argc, char **argv) {
  static const char help[] =
      "Writes every good entry of the kernel cache, all folders of it, into FILE or to standard "
      "output, for `nsa-autotune import`, with --sign signed; with --records every tuning record, "
      "as text that may be "
      "edited.\vExit status 6 when a bad entry was left out.";
  arguments a = { 0 };
  nsai_cli_cache o;
  export_state e = { 0 };
  char size[32];
  nsai_cli_parse(argc, argv, export_options, parse, "FILE|-", help, &a);
  if (a.records) return nsai_export_records(&a.settings, a.path);
  nsa_status status = nsai_cli_cache_open(&a.settings, NSA_LOG_ERROR, NSAI_CACHE_READ_ONLY, &o);
  if (status == NSA_OK && a.key) status = nsai_signing_begin(a.key, &e.signing);
  if (status == NSA_OK) status = export_to(o.cache, a.path, &e);
  if (status == NSA_OK && e.bad)
    status = nsai_fail(NSA_E_CACHE,
                       "%" PRId64 " bad %s left out; `nsa-autotune verify` removes damaged ones",
                       e.bad, e.bad == 1 ? "entry was" : "entries were");
  if (status == NSA_OK)
    fprintf(stderr, "%" PRId64 " %s, %s\n", e.entries, e.entries == 1 ? "entry" : "entries",
            nsai_cli_bytes(e.bytes, size));
  int code = nsai_cli_exit(status);
  nsai_signing_end(e.signing, NULL);
  nsai_cli_cache_close(&o);
  return code;
}

/* ---- import ---- */

/* A whole file in memory. */
typedef struct pack {
  const char *path;
  unsigned char *data;
  size_t size, room;
} pack;

/* Reads to the end, at most `limit` bytes; a file that is no pack is refused by its beginning. */
static nsa_status read_pack(FILE *in, uint64_t limit, pack *p) {
  for (;;) {
    if (p->size == p->room) {
      size_t room = p->room ? 2 * p->room : 1 << 20;
      unsigned char *data = realloc(p->data, room);
      if (!data) return nsai_fail_nomem("the file to import", room);
      p->data = data;
      p->room = room;
    }
    size_t count = fread(p->data + p->size, 1, p->room - p->size, in);
    p->size += count;
    if (ferror(in)) return nsai_cli_fail_io(p->path, "cannot be read", errno);
    if (p->size < sizeof magic ||
        (memcmp(p->data, magic, sizeof magic) && memcmp(p->data, signed_magic, sizeof magic)))
      return nsai_fail(NSA_E_CACHE, "%s: not a file of `nsa-autotune export`", p->path);
    if (!count) return NSA_OK;
    if (p->size > limit)
      return nsai_fail(NSA_E_CACHE,
                       "%s: more than the %" PRIu64 " bytes of runtime.cache_limit: raise it",
                       p->path, limit);
  }
}

/* Reads the number at `*at` and moves past it; false when the file ends before. */
static bool take_number(const pack *p, size_t *at, uint64_t *out) {
  if (p->size - *at < NUMBER_BYTES) return false;
  memcpy(out, p->data + *at, NUMBER_BYTES);
  *out = le64toh(*out);
  *at += NUMBER_BYTES;
  return true;
}

/* Checks the signature, if there is one or has to be one, and takes it off the end. */
static nsa_status check_signature(pack *p, const nsai_list *trusted) {
  enum { BEHIND = NSAI_PUBLIC_KEY_BYTES + NSAI_SIGNATURE_BYTES };
  if (!memcmp(p->data, magic, sizeof magic)) {
    if (!trusted->count) return NSA_OK;
    return nsai_fail(NSA_E_CACHE,
                     "%s: not signed, and runtime.trusted_keys asks for a signature: write it with "
                     "`nsa-autotune export --sign`",
                     p->path);
  }
  if (p->size < sizeof magic + BEHIND)
    return nsai_fail(NSA_E_CACHE, "%s: cut off before its signature", p->path);
  p->size -= BEHIND;
  const unsigned char *key = p->data + p->size;
  return nsai_signature_check(p->path, p->data, p->size + NSAI_PUBLIC_KEY_BYTES, key,
                              key + NSAI_PUBLIC_KEY_BYTES, trusted);
}

/* Checks the entries and counts them. `list`, unless it is NULL, has room for as many. */
static nsa_status walk(const pack *p, nsai_cache_bytes *list, int64_t *entries) {
  size_t at = sizeof magic;
  uint64_t length, count;
  nsai_cache_entry entry;
  nsai_digest_state digest;
  char digits[NSAI_DIGEST_CHARS];
  nsai_digest_begin(&digest);
  for (*entries = 0;; ++*entries, at += length) {
    if (!take_number(p, &at, &length) || length > p->size - at)
      return nsai_fail(NSA_E_CACHE, "%s: cut off in entry %" PRId64 ": copy or export it again",
                       p->path, *entries);
    if (!length) break;
    nsai_digest_field(&digest, "entry", p->data + at, length);
    if (list) list[*entries] = (nsai_cache_bytes){ p->data + at, length };
    const char *problem = nsai_cache_entry_decode(p->data + at, length, &entry);
    if (!problem) problem = nsai_cache_entry_check_code(&entry);
    if (problem)
      return nsai_fail(NSA_E_CACHE, "%s: entry %" PRId64 ": %s", p->path, *entries, problem);
  }
  nsai_digest_end(&digest, digits);
  if (!take_number(p, &at, &count) || count != (uint64_t)*entries || p->size - at != DIGITS ||
      memcmp(p->data + at, digits, DIGITS))
    return nsai_fail(NSA_E_CACHE, "%s: the end does not fit the %" PRId64 " entries before it",
                     p->path, *entries);
  return NSA_OK;
}

static nsa_status import_from(const nsai_cli_cache *o, const char *path, pack *p,
                              int64_t *entries) {
  bool piped = !strcmp(path, "-");
  FILE *in = piped ? stdin : fopen(path, "rbe");
  p->path = piped ? "standard input" : path;
  if (!in) return nsai_cli_fail_io(path, "cannot be read", errno);
  nsa_status status = read_pack(in, o->config->runtime.cache_limit, p);
  if (!piped) fclose(in);
  NSAI_TRY(status);
  NSAI_TRY(check_signature(p, &o->config->runtime.trusted_keys));
  NSAI_TRY(walk(p, NULL, entries));
  size_t bytes = ((size_t)*entries + 1) * sizeof(nsai_cache_bytes);
  nsai_cache_bytes *list = malloc(bytes);
  if (!list) return nsai_fail_nomem("the list of entries", bytes);
  status = walk(p, list, entries);
  if (status == NSA_OK) status = nsai_cache_import(o->cache, list, *entries);
  free(list);
  return status;
}

int nsai_cmd_import(int argc, char **argv) {
  static const char help[] =
      "Adds the entries of a file that `nsa-autotune export` wrote to the user's folder of the "
      "kernel cache. Everything is checked before anything is stored. Import from those only whom "
      "you would let run code on your GPU. With --records FILE is one of `export --records`: ranks "
      "import what one of them has tuned. With runtime.trusted_keys in the configuration kernels "
      "have "
      "to be signed by one of these keys.\vExit status 6 when the file is damaged or the folder "
      "cannot be written.";
  arguments a = { 0 };
  nsai_cli_cache o;
  nsai_cache_tier_info tier;
  pack p = { 0 };
  int64_t entries = 0;
  nsai_cli_parse(argc, argv, import_options, parse, "FILE|-", help, &a);
  if (a.records) return nsai_import_records(&a.settings, a.path, a.digest);
  nsa_status status = nsai_cli_cache_open(&a.settings, NSA_LOG_WARN, NSAI_CACHE_READ_WRITE, &o);
  if (status == NSA_OK) status = import_from(&o, a.path, &p, &entries);
  if (status == NSA_OK && nsai_cache_tier(o.cache, 0, &tier))
    printf("%" PRId64 " %s imported into %s\n", entries, entries == 1 ? "entry" : "entries",
           tier.path);
  int code = nsai_cli_exit(status);
  free(p.data);
  nsai_cli_cache_close(&o);
  return code;
}
