/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Ed25519ph hashes the pack once, from the beginning, so that an export can be signed while it is
 * written into a pipe.
 */
#include "cli/signature.h"

#include "base/files.h"
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECRET_PREFIX "nsa-secret-key:"
#define PREFIX_LENGTH (sizeof SECRET_PREFIX - 1)
#define HEX_DIGITS ((size_t)2 * NSAI_PUBLIC_KEY_BYTES)
#define SECRET_CHARS (PREFIX_LENGTH + HEX_DIGITS + 1 + 1) /* a line and its NUL */

#define KEY_FILE_MAX ((size_t)64 << 10) /* bytes: a thousand keys */

_Static_assert(NSAI_PUBLIC_KEY_BYTES == crypto_sign_PUBLICKEYBYTES, "of libsodium");
_Static_assert(NSAI_PUBLIC_KEY_BYTES == crypto_sign_SEEDBYTES, "of libsodium");
_Static_assert(NSAI_SIGNATURE_BYTES == crypto_sign_BYTES, "of libsodium");

static nsa_status start(void) {
  if (sodium_init() >= 0) return NSA_OK;
  return nsai_fail(NSA_E_INTERNAL, "libsodium cannot be used: it finds no random numbers");
}

/* ---- keys ---- */

/* Creates a file, which must not exist; a failure removes it again. */
static nsa_status write_new(const char *path, mode_t mode, const char *text) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (fd < 0 && errno == EEXIST)
    return nsai_fail(NSA_E_IO, "%s: exists already, and a key is not overwritten", path);
  if (fd < 0) return nsai_cli_fail_io(path, "cannot be created", errno);
  const size_t length = strlen(text);
  const ssize_t written = write(fd, text, length);
  int error = written == (ssize_t)length ? 0 : written < 0 ? errno : ENOSPC;
  if (!error && fsync(fd) && errno != EINVAL) error = errno;
  if (close(fd) && !error) error = errno;
  if (!error) return NSA_OK;
  unlink(path);
  return nsai_cli_fail_io(path, "cannot be written", error);
}

nsa_status nsai_signature_new_key(const char *path, char public_key[NSAI_PUBLIC_KEY_CHARS]) {
  unsigned char seed[crypto_sign_SEEDBYTES], public[crypto_sign_PUBLICKEYBYTES],
      secret[crypto_sign_SECRETKEYBYTES];
  char text[SECRET_CHARS] = SECRET_PREFIX, line[NSAI_PUBLIC_KEY_CHARS + 1], name[4096];
  NSAI_TRY(start());
  if (snprintf(name, sizeof name, "%s.pub", path) >= (int)sizeof name)
    return nsai_fail(NSA_E_IO, "%.64s...: the name is too long", path);
  randombytes_buf(seed, sizeof seed);
  crypto_sign_seed_keypair(public, secret, seed);
  sodium_bin2hex(public_key, NSAI_PUBLIC_KEY_CHARS, public, sizeof public);
  sodium_bin2hex(text + PREFIX_LENGTH, HEX_DIGITS + 1, seed, sizeof seed);
  strcat(text, "\n");
  snprintf(line, sizeof line, "%s\n", public_key);
  nsa_status status = write_new(path, 0600, text);
  if (status == NSA_OK) {
    status = write_new(name, 0644, line);
    if (status != NSA_OK) unlink(path);
  }
  sodium_memzero(seed, sizeof seed);
  sodium_memzero(secret, sizeof secret);
  sodium_memzero(text, sizeof text);
  return status;
}

/* Reads a file of keys, which nobody else may write. The caller frees the text. */
static nsa_status read_keys(const char *path, const char *what, struct stat *st, char **text) {
  char fault[NSAI_FILES_FAULT_CHARS];
  switch (nsai_files_read_trusted(AT_FDCWD, path, KEY_FILE_MAX, text, st, fault)) {
  case NSAI_FILES_PRESENT: return NSA_OK;
  case NSAI_FILES_MISSING: return nsai_fail(NSA_E_IO, "%s: %s: there is no such file", path, what);
  default: return nsai_fail(NSA_E_IO, "%s: %s: the file %s", path, what, fault);
  }
}

/* Reads the digits of a public key or a seed, both of which have 32 bytes; false: the `length` bytes
 * at `digits` are something else. */
static bool read_hex(const char *digits, size_t length, unsigned char out[NSAI_PUBLIC_KEY_BYTES]) {
  size_t bytes;
  const char *end;
  return length == HEX_DIGITS &&
         sodium_hex2bin(out, NSAI_PUBLIC_KEY_BYTES, digits, length, NULL, &bytes, &end) == 0 &&
         bytes == NSAI_PUBLIC_KEY_BYTES && end == digits + length;
}

/* ---- signing ---- */

struct nsai_signing {
  crypto_sign_state state;
  unsigned char secret[crypto_sign_SECRETKEYBYTES], public[crypto_sign_PUBLICKEYBYTES];
};

static bool read_secret(const char *text, nsai_signing *s) {
  unsigned char seed[crypto_sign_SEEDBYTES];
  if (strncmp(text, SECRET_PREFIX, PREFIX_LENGTH) != 0) return false;
  const char *digits = text + PREFIX_LENGTH;
  if (!read_hex(digits, strcspn(digits, "\r\n"), seed)) return false;
  crypto_sign_seed_keypair(s->public, s->secret, seed);
  sodium_memzero(seed, sizeof seed);
  return true;
}

nsa_status nsai_signing_begin(const char *path, nsai_signing **out) {
  struct stat st;
  char *text;
  *out = NULL;
  NSAI_TRY(start());
  NSAI_TRY(read_keys(path, "the secret key cannot be read", &st, &text));
  nsai_signing *s = calloc(1, sizeof *s);
  nsa_status status = NSA_OK;
  if (!s)
    status = nsai_fail_nomem("a signature", sizeof *s);
  else if (st.st_mode & 077)
    status = nsai_fail(NSA_E_IO,
                       "%s: others can read this secret key: chmod 600, or make a new one", path);
  else if (!read_secret(text, s))
    status = nsai_fail(NSA_E_IO, "%s: no secret key; `nsa-autotune keygen` makes one", path);
  else
    crypto_sign_init(&s->state);
  sodium_memzero(text, (size_t)st.st_size);
  free(text);
  if (status == NSA_OK)
    *out = s;
  else
    nsai_signing_end(s, NULL);
  return status;
}

void nsai_signing_add(nsai_signing *signing, const void *data, size_t size) {
  crypto_sign_update(&signing->state, data, size);
}

const unsigned char *nsai_signing_public_key(const nsai_signing *signing) {
  return signing->public;
}

void nsai_signing_end(nsai_signing *signing, unsigned char signature[NSAI_SIGNATURE_BYTES]) {
  if (!signing) return;
  if (signature) crypto_sign_final_create(&signing->state, signature, NULL, signing->secret);
  sodium_memzero(signing, sizeof *signing);
  free(signing);
}

/* ---- checking ---- */

/* Whether one of the lines of a file is the key. A line that is no key makes the file wrong. */
static nsa_status find_in_file(const char *path, const unsigned char *wanted, bool *found) {
  struct stat st;
  char *text;
  nsa_status status = NSA_OK;
  NSAI_TRY(read_keys(path, "runtime.trusted_keys names it", &st, &text));
  int32_t number = 1;
  for (char *line = text; *line && status == NSA_OK; number++) {
    const size_t length = strcspn(line, "\n");
    size_t used = strcspn(line, "#\n");
    unsigned char key[NSAI_PUBLIC_KEY_BYTES];
    while (used && strchr(" \t\r", line[used - 1])) used--;
    if (read_hex(line, used, key))
      *found |= !memcmp(key, wanted, sizeof key);
    else if (used)
      status =
          nsai_fail(NSA_E_IO, "%s:%d: no public key: it has 64 hexadecimal digits", path, number);
    line += length + (line[length] == '\n');
  }
  free(text);
  return status;
}

static nsa_status is_trusted(const unsigned char *public_key, const nsai_list *trusted,
                             bool *found) {
  *found = false;
  for (size_t i = 0; i < trusted->count; i++) {
    unsigned char key[NSAI_PUBLIC_KEY_BYTES];
    const char *item = trusted->items[i];
    if (*item == '/')
      NSAI_TRY(find_in_file(item, public_key, found));
    else
      *found |= read_hex(item, strlen(item), key) && !memcmp(key, public_key, sizeof key);
  }
  return NSA_OK;
}

nsa_status nsai_signature_check(const char *name, const void *data, size_t size,
                                const unsigned char public_key[NSAI_PUBLIC_KEY_BYTES],
                                const unsigned char signature[NSAI_SIGNATURE_BYTES],
                                const nsai_list *trusted) {
  char digits[NSAI_PUBLIC_KEY_CHARS];
  bool found;
  crypto_sign_state state;
  NSAI_TRY(start());
  NSAI_TRY(is_trusted(public_key, trusted, &found));
  sodium_bin2hex(digits, sizeof digits, public_key, NSAI_PUBLIC_KEY_BYTES);
  if (trusted->count && !found)
    return nsai_fail(NSA_E_CACHE,
                     "%s: signed by the key %s, which runtime.trusted_keys does not name", name,
                     digits);
  unsigned char copy[NSAI_SIGNATURE_BYTES];
  memcpy(copy, signature, sizeof copy); /* older versions of libsodium take no const */
  crypto_sign_init(&state);
  crypto_sign_update(&state, data, size);
  if (crypto_sign_final_verify(&state, copy, public_key) != 0)
    return nsai_fail(NSA_E_CACHE,
                     "%s: the signature does not fit: the file was changed after it was signed",
                     name);
  if (!trusted->count)
    fprintf(stderr,
            "%s is signed by the key %s; runtime.trusted_keys is empty, so that any key is taken\n",
            name, digits);
  return NSA_OK;
}
