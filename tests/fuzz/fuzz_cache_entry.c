/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A cache entry of any bytes: refused, or taken apart into pieces that lie inside it. Every input
 * is tried as it is, and once more with the checksum put right, so that what stands behind the
 * checksum is reached too.
 */
#include "cache/entry.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

enum { CHECKSUM_AT = 80, HEADER_BYTES = 96 };

static void try_entry(const uint8_t *data, size_t size) {
  nsai_cache_entry entry;
  if (nsai_cache_entry_decode(data, size, &entry) != NULL) return;
  const uint8_t *key = (const uint8_t *)entry.key, *cubin = entry.cubin, *end = data + size;
  if (key < data + HEADER_BYTES || key > end || entry.key_length > (size_t)(end - key)) abort();
  if (cubin < key + entry.key_length || cubin > end || entry.cubin_size != (size_t)(end - cubin))
    abort();
  if (strlen(entry.entry) >= sizeof entry.entry || strlen(entry.arch) >= sizeof entry.arch ||
      strlen(entry.compiler_id) >= sizeof entry.compiler_id || entry.used_at < 0)
    abort();
  /* What decodes encodes to the same bytes. */
  const nsai_kernel_image image = { (void *)entry.cubin,
                                    entry.cubin_size,
                                    entry.registers,
                                    entry.spill_bytes,
                                    entry.stack_bytes,
                                    entry.shared_bytes,
                                    entry.serial_wgmma,
                                    0,
                                    NULL,
                                    { 0 } };
  nsai_kernel_image copy = image;
  nsai_kernel_key whole = { .text = (char *)entry.key, .length = entry.key_length };
  unsigned char *again;
  size_t length;
  memcpy(copy.compiler_id, entry.compiler_id, sizeof copy.compiler_id);
  memcpy(whole.entry, entry.entry, sizeof whole.entry);
  memcpy(whole.arch, entry.arch, sizeof whole.arch);
  if (nsai_cache_entry_encode(&whole, &copy, entry.used_at, &again, &length) != NSA_OK) return;
  if (length != size || memcmp(again, data, NSAI_CACHE_STAMP_AT) != 0 ||
      memcmp(again + NSAI_CACHE_STAMP_AT + NSAI_CACHE_STAMP_BYTES,
             data + NSAI_CACHE_STAMP_AT + NSAI_CACHE_STAMP_BYTES,
             size - NSAI_CACHE_STAMP_AT - NSAI_CACHE_STAMP_BYTES) != 0)
    abort();
  free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  try_entry(data, size);
  if (size < HEADER_BYTES) return 0;
  enum { STAMP_END = NSAI_CACHE_STAMP_AT + NSAI_CACHE_STAMP_BYTES };
  unsigned char parts[3 * NSAI_DIGEST_BYTES];
  uint8_t *fixed = malloc(size);
  if (!fixed) return 0;
  memcpy(fixed, data, size);
  nsai_digest_bytes(fixed, NSAI_CACHE_STAMP_AT, parts);
  nsai_digest_bytes(fixed + STAMP_END, CHECKSUM_AT - STAMP_END, parts + NSAI_DIGEST_BYTES);
  nsai_digest_bytes(fixed + HEADER_BYTES, size - HEADER_BYTES, parts + 2 * NSAI_DIGEST_BYTES);
  nsai_digest_bytes(parts, sizeof parts, fixed + CHECKSUM_AT);
  try_entry(fixed, size);
  free(fixed);
  return 0;
}
