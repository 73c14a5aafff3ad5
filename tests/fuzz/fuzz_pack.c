/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any bytes as a kernel pack that `nsa-autotune import` reads into an empty cache: refused with a
 * sentence, and nothing is stored; or taken, and then every file of the cache is good, exporting it
 * gives a pack, and importing that changes nothing.
 *
 * Input: a byte, then the pack. With an odd byte what follows is not a whole pack but its entries,
 * each behind a 16-bit length: their checksums and the pack's are put right, so that what stands
 * behind the checksums is reached.
 */
#include "cache/entry.h"
#include "capture.h"
#include "cli/cli.h"

#include <dirent.h>
#include <endian.h>
#include <fcntl.h>
#include <sys/stat.h>

#define MAGIC "NSAPACK1"

enum {
  CHECKSUM_AT = 80,
  HEADER_BYTES = 96,
  STAMP_END = NSAI_CACHE_STAMP_AT + NSAI_CACHE_STAMP_BYTES
};

static char folder[FUZZ_FOLDER_CHARS], kernels[FUZZ_FOLDER_CHARS + 16];

/* Counts the entries, and removes them. */
static int empty_cache(bool removes) {
  DIR *dir = opendir(kernels); /* which the first import makes */
  int entries = 0;
  for (const struct dirent *item; dir && (item = readdir(dir)) != NULL;) {
    if (item->d_name[0] == '.') continue;
    entries += strstr(item->d_name, ".nsak") != NULL;
    if (removes) unlinkat(dirfd(dir), item->d_name, 0);
  }
  if (dir) closedir(dir);
  return entries;
}

static void remove_folder(void) {
  empty_cache(true);
  rmdir(kernels);
  rmdir(folder);
}

static void make_folder(void) {
  if (*folder) return;
  fuzz_make_folder(folder);
  snprintf(kernels, sizeof kernels, "%s/kernels", folder);
  FUZZ_REQUIRE(setenv("NSA_CACHE_DIR", folder, 1) == 0);
  atexit(remove_folder);
}

/* ---- an input as a pack ---- */

static void seal_entry(uint8_t *entry, size_t size) {
  unsigned char parts[3 * NSAI_DIGEST_BYTES];
  if (size < HEADER_BYTES) return;
  nsai_digest_bytes(entry, NSAI_CACHE_STAMP_AT, parts);
  nsai_digest_bytes(entry + STAMP_END, CHECKSUM_AT - STAMP_END, parts + NSAI_DIGEST_BYTES);
  nsai_digest_bytes(entry + HEADER_BYTES, size - HEADER_BYTES, parts + 2 * NSAI_DIGEST_BYTES);
  nsai_digest_bytes(parts, sizeof parts, entry + CHECKSUM_AT);
}

static void put(FILE *out, const void *data, size_t size) {
  FUZZ_REQUIRE(!size || fwrite(data, size, 1, out) == 1);
}

static void put_number(FILE *out, uint64_t number) {
  number = htole64(number);
  put(out, &number, sizeof number);
}

/* The caller frees it. */
static char *make_pack(const uint8_t *data, size_t size, size_t *length) {
  char *pack = NULL, digits[NSAI_DIGEST_CHARS];
  FILE *out = open_memstream(&pack, length);
  nsai_digest_state digest;
  uint64_t entries = 0;
  FUZZ_REQUIRE(out != NULL);
  nsai_digest_begin(&digest);
  put(out, MAGIC, sizeof MAGIC - 1);
  for (size_t bytes; size > 2; data += bytes, size -= bytes) {
    bytes = (size_t)data[0] | (size_t)data[1] << 8;
    data += 2, size -= 2;
    if (bytes > size) bytes = size;
    if (!bytes) continue;
    uint8_t *entry = malloc(bytes);
    FUZZ_REQUIRE(entry != NULL);
    memcpy(entry, data, bytes);
    seal_entry(entry, bytes);
    put_number(out, bytes);
    put(out, entry, bytes);
    nsai_digest_field(&digest, "entry", entry, bytes);
    free(entry);
    entries++;
  }
  nsai_digest_end(&digest, digits);
  put_number(out, 0);
  put_number(out, entries);
  put(out, digits, NSAI_DIGEST_CHARS - 1);
  FUZZ_REQUIRE(fclose(out) == 0);
  return pack;
}

/* ---- the commands ---- */

/* Runs one command and returns its exit status; a failure says why. */
static int run(nsai_command_fn command, const char *name, const char *path) {
  fuzz_capture capture;
  char *argv[] = { (char[32]){ 0 }, (char[FUZZ_FOLDER_CHARS + 16]){ 0 }, NULL };
  strcpy(argv[0], name);
  strcpy(argv[1], path);
  fuzz_capture_begin(&capture);
  int status = command(2, argv);
  fuzz_capture_end(&capture);
  FUZZ_REQUIRE(status == NSAI_EXIT_OK || strstr(capture.text[1], "error: "));
  fuzz_capture_fini(&capture);
  return status;
}

static void check_taken(void) {
  char path[FUZZ_FOLDER_CHARS + 16];
  int entries = empty_cache(false);
  snprintf(path, sizeof path, "%s/.exported", folder);
  FUZZ_REQUIRE(run(nsai_cmd_export, "nsa-autotune export", path) == NSAI_EXIT_OK);
  FUZZ_REQUIRE(run(nsai_cmd_import, "nsa-autotune import", path) == NSAI_EXIT_OK);
  FUZZ_REQUIRE(empty_cache(true) == entries);
  FUZZ_REQUIRE(run(nsai_cmd_import, "nsa-autotune import", path) == NSAI_EXIT_OK);
  FUZZ_REQUIRE(empty_cache(false) == entries && unlink(path) == 0);
}

static void try_pack(const void *data, size_t size) {
  int status = run(nsai_cmd_import, "nsa-autotune import", fuzz_file(data, size));
  if (status == NSAI_EXIT_OK)
    check_taken();
  else
    FUZZ_REQUIRE(status == NSAI_EXIT_CACHE && empty_cache(false) == 0);
  empty_cache(true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!size) return 0;
  make_folder();
  if (data[0] % 2 == 0) {
    try_pack(data + 1, size - 1);
    return 0;
  }
  size_t length;
  char *pack = make_pack(data + 1, size - 1, &length);
  try_pack(pack, length);
  free(pack);
  return 0;
}
