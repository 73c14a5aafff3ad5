/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The bytes of one cache entry. No file access here.
 *
 *    0  8  magic "NSAKERN\n"
 *    8  4  format version
 *   12  4  bytes of this header: 96
 *   16  8  last use, seconds since 1970     not covered by the checksum: rewritten in place; a torn
 *   24  8  its complement                   or foreign pair reads as "never used"
 *   32  20 registers, spill, stack, shared bytes, serial wgmma
 *   52  4  0
 *   56  16 lengths of key, entry name, architecture, compiler id
 *   72  8  length of the cubin
 *   80  16 checksum (XXH3-128) over all bytes but 16..31 and its own
 *   96     key, entry name, architecture, compiler id, cubin
 *
 * Numbers are little-endian. Code and launch figures are in one file, so that they cannot be
 * mixed up.
 */
#ifndef NSAI_CACHE_ENTRY_H
#define NSAI_CACHE_ENTRY_H

#include "cache/kernel_image.h"

/* Far above any cubin (the largest measured has 162 KB); bounds the reading of unknown files. */
#define NSAI_CACHE_ENTRY_MAX ((size_t)64 << 20)

#define NSAI_CACHE_STAMP_AT 16
#define NSAI_CACHE_STAMP_BYTES 16

/* A parsed entry; the pointers point into its bytes. */
typedef struct nsai_cache_entry {
  const char *key;
  size_t key_length;
  char entry[128], arch[16], compiler_id[NSAI_COMPILER_ID_CHARS];
  int32_t registers, spill_bytes, stack_bytes, shared_bytes, serial_wgmma;
  const void *cubin;
  size_t cubin_size;
  int64_t used_at; /* 0: unknown */
} nsai_cache_entry;

/* Makes the bytes of an entry; the caller frees them. NSA_E_NOMEM. */
nsa_status nsai_cache_entry_encode(const nsai_kernel_key *key, const nsai_kernel_image *image,
                                   int64_t used_at, unsigned char **data, size_t *size);

/* Checks and parses the bytes. Returns NULL, or what is wrong ("checksum mismatch"). */
const char *nsai_cache_entry_decode(const void *data, size_t size, nsai_cache_entry *out);

/* Checks what a machine must not take on trust from another one: that the names in the entry are
 * those in its key, and that its cubin is machine code (cubin.h) of that architecture and kernel.
 * Returns NULL, or what is wrong. The entries that this machine made itself need no such check. */
const char *nsai_cache_entry_check_code(const nsai_cache_entry *entry);

/* The file name of an entry: digest of the key, digest of the compiler id. */
#define NSAI_CACHE_NAME_CHARS 64
void nsai_cache_entry_name(const char *key_digest, const char *compiler_id,
                           char name[NSAI_CACHE_NAME_CHARS]);

/* Whether a name has the form of such names. Other files of a cache's folder are somebody
 * else's. */
bool nsai_cache_is_entry_name(const char *name);

/* Encodes the two numbers of the time stamp. */
void nsai_cache_stamp_encode(int64_t used_at, unsigned char out[NSAI_CACHE_STAMP_BYTES]);
int64_t nsai_cache_stamp_decode(const unsigned char in[NSAI_CACHE_STAMP_BYTES]);

#endif /* NSAI_CACHE_ENTRY_H */
