/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "cache/kernel_image.h"

#include "base/writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nsai_kernel_image_fini(nsai_kernel_image *image) {
  free(image->cubin);
  free(image->log);
  memset(image, 0, sizeof *image);
}

nsa_status nsai_kernel_image_copy(nsai_kernel_image *out, const nsai_kernel_image *image) {
  *out = *image;
  out->log = NULL;
  out->cubin = malloc(image->size ? image->size : 1);
  if (!out->cubin) {
    memset(out, 0, sizeof *out);
    return nsai_fail_nomem("a kernel image", image->size);
  }
  if (image->size) memcpy(out->cubin, image->cubin, image->size);
  return NSA_OK;
}

/* The key text, one field after the other: "tag length\nvalue\n". It is readable in a pager and
 * unambiguous, because every length is given. */
static size_t write_key(const nsai_kernel_key_parts *parts, char *text, size_t size) {
  char version[32];
  snprintf(version, sizeof version, "%d.%d.%d", NSA_VERSION_MAJOR, NSA_VERSION_MINOR,
           NSA_VERSION_PATCH);
  const struct {
    const char *tag, *value;
  } fields[] = {
    { "nsa-kernel", "1" },       { "library", version },
    { "arch", parts->arch },     { "options", parts->options },
    { "entry", parts->entry },   { "templates", parts->templates_digest },
    { "source", parts->source },
  };
  nsai_writer out = nsai_writer_open(text, size);
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    const size_t length = strlen(fields[i].value);
    nsai_write(&out, "%s %zu\n", fields[i].tag, length);
    nsai_write_bytes(&out, fields[i].value, length); /* the source is long for a format */
    nsai_write_bytes(&out, "\n", 1);
  }
  return out.used;
}

nsa_status nsai_kernel_key_init(nsai_kernel_key *key, const nsai_kernel_key_parts *parts) {
  memset(key, 0, sizeof *key);
  if (strlen(parts->entry) >= sizeof key->entry || strlen(parts->arch) >= sizeof key->arch ||
      strlen(parts->compiler_id) >= sizeof key->compiler_id)
    return nsai_fail(NSA_E_INTERNAL,
                     "the name of kernel %s, its architecture %s or the compiler's "
                     "id is too long for a cache key",
                     parts->entry, parts->arch);
  key->length = write_key(parts, NULL, 0);
  key->text = malloc(key->length + 1);
  if (!key->text) return nsai_fail_nomem("a kernel's cache key", key->length + 1);
  write_key(parts, key->text, key->length + 1);
  nsai_digest_hex(key->text, key->length, key->digest);
  snprintf(key->entry, sizeof key->entry, "%s", parts->entry);
  snprintf(key->arch, sizeof key->arch, "%s", parts->arch);
  snprintf(key->compiler_id, sizeof key->compiler_id, "%s", parts->compiler_id);
  return NSA_OK;
}

void nsai_kernel_key_fini(nsai_kernel_key *key) {
  free(key->text);
  memset(key, 0, sizeof *key);
}
