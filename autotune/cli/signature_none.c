/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A build without libsodium: it refuses to make keys and to sign, and says of a signed pack that its
 * signature is not checked. The configuration's own rules refuse runtime.trusted_keys.
 */
#include "cli/signature.h"

#include "base/error.h"

#include <stdio.h>

static nsa_status refuse(const char *what) {
  return nsai_fail(NSA_E_UNSUPPORTED,
                   "%s: this nsa-autotune was built without signatures; build it with "
                   "-Dsignatures=enabled, which needs libsodium",
                   what);
}

nsa_status nsai_signature_new_key(const char *path, char public_key[NSAI_PUBLIC_KEY_CHARS]) {
  public_key[0] = '\0';
  return refuse(path);
}

nsa_status nsai_signing_begin(const char *path, nsai_signing **out) {
  *out = NULL;
  return refuse(path);
}

/* nsai_signing_begin makes no object that these could be called with. */
void nsai_signing_add(nsai_signing *signing, const void *data, size_t size) {
  (void)signing, (void)data, (void)size;
}

const unsigned char *nsai_signing_public_key(const nsai_signing *signing) {
  (void)signing;
  return NULL;
}

void nsai_signing_end(nsai_signing *signing, unsigned char signature[NSAI_SIGNATURE_BYTES]) {
  (void)signing, (void)signature;
}

nsa_status nsai_signature_check(const char *name, const void *data, size_t size,
                                const unsigned char public_key[NSAI_PUBLIC_KEY_BYTES],
                                const unsigned char signature[NSAI_SIGNATURE_BYTES],
                                const nsai_list *trusted) {
  (void)data, (void)size, (void)public_key, (void)signature;
  if (trusted->count) return refuse("runtime.trusted_keys"); /* no configuration gets here */
  fprintf(stderr,
          "%s is signed, and the signature is not checked: this nsa-autotune was built without "
          "signatures\n",
          name);
  return NSA_OK;
}
