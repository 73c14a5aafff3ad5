/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "base/digest.h"

#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(nsai_digest_state), "the state must hold XXH3's");

static XXH3_state_t *inner(nsai_digest_state *state) { return (XXH3_state_t *)state->opaque; }

static void to_hex(const unsigned char *bytes, char hex[NSAI_DIGEST_CHARS]) {
  static const char digits[] = "0123456789abcdef";
  for (int i = 0; i < NSAI_DIGEST_BYTES; i++) {
    hex[2 * i] = digits[bytes[i] >> 4];
    hex[2 * i + 1] = digits[bytes[i] & 15];
  }
  hex[2 * NSAI_DIGEST_BYTES] = '\0';
}

void nsai_digest_begin(nsai_digest_state *state) { XXH3_128bits_reset(inner(state)); }

void nsai_digest_field(nsai_digest_state *state, const char *tag, const void *data, size_t size) {
  /* Lengths are hashed as little-endian bytes, so that the digest is the same on every host. */
  unsigned char length[8];
  for (int i = 0; i < 8; i++) length[i] = (unsigned char)((uint64_t)size >> (8 * i));
  XXH3_128bits_update(inner(state), tag, strlen(tag) + 1);
  XXH3_128bits_update(inner(state), length, sizeof length);
  if (size) XXH3_128bits_update(inner(state), data, size);
}

void nsai_digest_end(nsai_digest_state *state, char hex[NSAI_DIGEST_CHARS]) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(inner(state)));
  to_hex(canonical.digest, hex);
}

void nsai_digest_bytes(const void *data, size_t size, unsigned char out[NSAI_DIGEST_BYTES]) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, size));
  memcpy(out, canonical.digest, NSAI_DIGEST_BYTES);
}

void nsai_digest_hex(const void *data, size_t size, char hex[NSAI_DIGEST_CHARS]) {
  unsigned char bytes[NSAI_DIGEST_BYTES];
  nsai_digest_bytes(data, size, bytes);
  to_hex(bytes, hex);
}
