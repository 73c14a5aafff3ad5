/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Digests for cache keys and checksums: XXH3-128. Every field is hashed with its tag and its
 * length, so that different lists of fields never give the same bytes.
 */
#ifndef NSAI_BASE_DIGEST_H
#define NSAI_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define NSAI_DIGEST_BYTES 16
#define NSAI_DIGEST_CHARS 33 /* hex digits and NUL */

/* The state of a running digest: 576 bytes with 64-byte alignment, as XXH3 requires. */
typedef struct nsai_digest_state {
  _Alignas(64) unsigned char opaque[640];
} nsai_digest_state;

void nsai_digest_begin(nsai_digest_state *state);
void nsai_digest_field(nsai_digest_state *state, const char *tag, const void *data, size_t size);
void nsai_digest_end(nsai_digest_state *state, char hex[NSAI_DIGEST_CHARS]);

/* The digest of one block of bytes, in canonical (big-endian) order. */
void nsai_digest_bytes(const void *data, size_t size, unsigned char out[NSAI_DIGEST_BYTES]);

/* The same as hexadecimal digits. */
void nsai_digest_hex(const void *data, size_t size, char hex[NSAI_DIGEST_CHARS]);

#endif /* NSAI_BASE_DIGEST_H */
