/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "cache/entry.h"

#include "cache/cubin.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char magic[8] = { 'N', 'S', 'A', 'K', 'E', 'R', 'N', '\n' };

enum {
  FORMAT_VERSION = 1,
  VERSION_AT = 8,
  HEADER_AT = 12,
  FIGURES_AT = 32,
  ZERO_AT = 52,
  LENGTHS_AT = 56,
  CUBIN_LENGTH_AT = 72,
  CHECKSUM_AT = 80,
  HEADER_BYTES = 96
};

static void put_u32(unsigned char *at, uint32_t value) {
  for (int i = 0; i < 4; i++) at[i] = (unsigned char)(value >> (8 * i));
}

static void put_u64(unsigned char *at, uint64_t value) {
  put_u32(at, (uint32_t)value);
  put_u32(at + 4, (uint32_t)(value >> 32));
}

static uint32_t get_u32(const unsigned char *at) {
  return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get_u64(const unsigned char *at) {
  return get_u32(at) | (uint64_t)get_u32(at + 4) << 32;
}

void nsai_cache_stamp_encode(int64_t used_at, unsigned char out[NSAI_CACHE_STAMP_BYTES]) {
  put_u64(out, (uint64_t)used_at);
  put_u64(out + 8, ~(uint64_t)used_at);
}

int64_t nsai_cache_stamp_decode(const unsigned char in[NSAI_CACHE_STAMP_BYTES]) {
  uint64_t value = get_u64(in);
  return value == ~get_u64(in + 8) && value <= INT64_MAX ? (int64_t)value : 0;
}

static void checksum(const unsigned char *data, size_t size, unsigned char out[NSAI_DIGEST_BYTES]) {
  enum { STAMP_END = NSAI_CACHE_STAMP_AT + NSAI_CACHE_STAMP_BYTES };
  unsigned char parts[3 * NSAI_DIGEST_BYTES];
  nsai_digest_bytes(data, NSAI_CACHE_STAMP_AT, parts);
  nsai_digest_bytes(data + STAMP_END, CHECKSUM_AT - STAMP_END, parts + NSAI_DIGEST_BYTES);
  nsai_digest_bytes(data + HEADER_BYTES, size - HEADER_BYTES, parts + 2 * NSAI_DIGEST_BYTES);
  nsai_digest_bytes(parts, sizeof parts, out);
}

nsa_status nsai_cache_entry_encode(const nsai_kernel_key *key, const nsai_kernel_image *image,
                                   int64_t used_at, unsigned char **data, size_t *size) {
  const struct {
    const void *bytes;
    size_t length;
  } parts[] = {
    { key->text, key->length },       { key->entry, strlen(key->entry) },
    { key->arch, strlen(key->arch) }, { image->compiler_id, strlen(image->compiler_id) },
    { image->cubin, image->size },
  };
  enum { PARTS = sizeof parts / sizeof parts[0] };
  *size = HEADER_BYTES;
  for (int i = 0; i < PARTS; i++) *size += parts[i].length;
  unsigned char *out = *data = calloc(1, *size);
  if (!out) return nsai_fail_nomem("a cache entry", *size);
  const int32_t figures[] = { image->registers, image->spill_bytes, image->stack_bytes,
                              image->shared_bytes, image->serial_wgmma };
  memcpy(out, magic, sizeof magic);
  put_u32(out + VERSION_AT, FORMAT_VERSION);
  put_u32(out + HEADER_AT, HEADER_BYTES);
  nsai_cache_stamp_encode(used_at, out + NSAI_CACHE_STAMP_AT);
  for (int i = 0; i < 5; i++) put_u32(out + FIGURES_AT + 4 * i, (uint32_t)figures[i]);
  size_t at = HEADER_BYTES;
  for (int i = 0; i < PARTS; i++) {
    if (i < PARTS - 1)
      put_u32(out + LENGTHS_AT + 4 * i, (uint32_t)parts[i].length);
    else
      put_u64(out + CUBIN_LENGTH_AT, parts[i].length);
    if (parts[i].length) memcpy(out + at, parts[i].bytes, parts[i].length);
    at += parts[i].length;
  }
  checksum(out, *size, out + CHECKSUM_AT);
  return NSA_OK;
}

/* Copies a name from the entry; false when it does not fit or contains a NUL. */
static bool take_name(const unsigned char **at, size_t length, char *out, size_t size) {
  if (length >= size || memchr(*at, '\0', length)) return false;
  memcpy(out, *at, length);
  out[length] = '\0';
  *at += length;
  return true;
}

const char *nsai_cache_entry_decode(const void *bytes, size_t size, nsai_cache_entry *out) {
  const unsigned char *data = bytes;
  unsigned char sum[NSAI_DIGEST_BYTES];
  memset(out, 0, sizeof *out);
  if (size < HEADER_BYTES) return "shorter than its header";
  if (memcmp(data, magic, sizeof magic) != 0) return "not a cache entry";
  if (get_u32(data + VERSION_AT) != FORMAT_VERSION || get_u32(data + HEADER_AT) != HEADER_BYTES)
    return "written in another format";
  uint64_t cubin = get_u64(data + CUBIN_LENGTH_AT), total = HEADER_BYTES;
  uint32_t lengths[4];
  for (int i = 0; i < 4; i++) total += lengths[i] = get_u32(data + LENGTHS_AT + 4 * i);
  /* Four 32-bit numbers and 96 cannot overflow; the cubin's 64 bits are compared, not added. */
  if (total > size || cubin != size - total) return "cut off or padded";
  checksum(data, size, sum);
  if (memcmp(sum, data + CHECKSUM_AT, sizeof sum) != 0) return "checksum mismatch";
  if (get_u32(data + ZERO_AT) != 0) return "unknown fields";
  int32_t *const figures[] = { &out->registers, &out->spill_bytes, &out->stack_bytes,
                               &out->shared_bytes, &out->serial_wgmma };
  for (int i = 0; i < 5; i++) *figures[i] = (int32_t)get_u32(data + FIGURES_AT + 4 * i);
  const unsigned char *at = data + HEADER_BYTES;
  out->key = (const char *)at;
  out->key_length = lengths[0];
  at += lengths[0];
  if (!take_name(&at, lengths[1], out->entry, sizeof out->entry) ||
      !take_name(&at, lengths[2], out->arch, sizeof out->arch) ||
      !take_name(&at, lengths[3], out->compiler_id, sizeof out->compiler_id))
    return "names too long";
  out->cubin = at;
  out->cubin_size = (size_t)cubin;
  out->used_at = nsai_cache_stamp_decode(data + NSAI_CACHE_STAMP_AT);
  return NULL;
}

#define COMPILER_DIGITS 16 /* of the compiler id's digest */

/* The number of hexadecimal digits, as digests have them, that a text begins with. */
static size_t count_digits(const char *text) { return strspn(text, "0123456789abcdef"); }

bool nsai_cache_is_entry_name(const char *name) {
  if (count_digits(name) != NSAI_DIGEST_CHARS - 1 || name[NSAI_DIGEST_CHARS - 1] != '-')
    return false;
  name += NSAI_DIGEST_CHARS;
  return count_digits(name) == COMPILER_DIGITS && !strcmp(name + COMPILER_DIGITS, ".nsak");
}

/* Whether the key's field `tag` is `value`; see write_key in kernel_image.c. */
static bool key_says(const nsai_cache_entry *entry, const char *tag, const char *value) {
  char field[160]; /* of a name of the entry, at most 127 characters, and its tag */
  const size_t length =
      (size_t)snprintf(field, sizeof field, "%s %zu\n%s\n", tag, strlen(value), value);
  const char *at = entry->key, *end = at + entry->key_length;
  while (at < end) {
    if ((size_t)(end - at) >= length && !memcmp(at, field, length)) return true;
    const char *line = memchr(at, '\n', (size_t)(end - at)), *digit;
    uint64_t bytes = 0;
    if (!line) return false;
    for (digit = line; digit > at && digit[-1] >= '0' && digit[-1] <= '9';) digit--;
    if (digit == line || line - digit > 9) return false; /* no number, or beyond any entry */
    for (; digit < line; digit++) bytes = 10 * bytes + (uint64_t)(*digit - '0');
    if (bytes >= (uint64_t)(end - line - 1)) return false;
    at = line + 1 + bytes + 1;
  }
  return false;
}

const char *nsai_cache_entry_check_code(const nsai_cache_entry *entry) {
  if (!key_says(entry, "arch", entry->arch) || !key_says(entry, "entry", entry->entry))
    return "names another kernel or architecture than its key";
  return nsai_cubin_check(entry->cubin, entry->cubin_size, entry->arch, entry->entry);
}

void nsai_cache_entry_name(const char *key_digest, const char *compiler_id,
                           char name[NSAI_CACHE_NAME_CHARS]) {
  char compiler[NSAI_DIGEST_CHARS];
  nsai_digest_hex(compiler_id, strlen(compiler_id), compiler);
  /* Half of the second digest is enough: a key meets few compilers, and the entry contains the
   * full id. */
  snprintf(name, NSAI_CACHE_NAME_CHARS, "%s-%.*s.nsak", key_digest, COMPILER_DIGITS, compiler);
}
