/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Signatures of packs: Ed25519ph by libsodium. Keys are files of text.
 *
 *   secret key   "nsa-secret-key:" and 64 hexadecimal digits, the seed; for its owner's eyes only
 *   public keys  64 hexadecimal digits each; a line that begins with # is a comment
 *
 * Built with -Dsignatures=enabled (signature.c). Without (signature_none.c) every function that would
 * need libsodium fails and says so.
 */
#ifndef NSAI_CLI_SIGNATURE_H
#define NSAI_CLI_SIGNATURE_H

#include "config/config.h"

enum { NSAI_PUBLIC_KEY_BYTES = 32, NSAI_SIGNATURE_BYTES = 64 };
#define NSAI_PUBLIC_KEY_CHARS (2 * NSAI_PUBLIC_KEY_BYTES + 1)

/* Makes a key pair: the file `path` for the secret key, "<path>.pub" for the public key, neither of
 * which may exist. `public_key` receives the digits. NSA_E_IO, NSA_E_UNSUPPORTED: not in this build. */
nsa_status nsai_signature_new_key(const char *path, char public_key[NSAI_PUBLIC_KEY_CHARS]);

typedef struct nsai_signing nsai_signing;

/* Begins the signature of bytes that nsai_signing_add receives, by the secret key in the file `path`.
 * NSA_E_IO (the file is no secret key, or others can read it), NSA_E_NOMEM, NSA_E_UNSUPPORTED. */
nsa_status nsai_signing_begin(const char *path, nsai_signing **out);
void nsai_signing_add(nsai_signing *signing, const void *data, size_t size);
const unsigned char *nsai_signing_public_key(const nsai_signing *signing);

/* Ends and frees; `signature` may be NULL. NULL is fine. */
void nsai_signing_end(nsai_signing *signing, unsigned char signature[NSAI_SIGNATURE_BYTES]);

/* Checks that `signature` is one of the `size` bytes by the public key, and that `trusted` (the value
 * of runtime.trusted_keys) names that key. Nobody is named: any key is taken, and a line on stderr
 * says whose it is. `name` is what messages call the bytes. NSA_E_CACHE: the signature does not fit,
 * or its key is not trusted; NSA_E_IO: a file of keys cannot be read. */
nsa_status nsai_signature_check(const char *name, const void *data, size_t size,
                                const unsigned char public_key[NSAI_PUBLIC_KEY_BYTES],
                                const unsigned char signature[NSAI_SIGNATURE_BYTES],
                                const nsai_list *trusted);

#endif /* NSAI_CLI_SIGNATURE_H */
