/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "compile/templates.h"

#include "base/digest.h"
#include "base/files.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Templates have at most 450 lines; a larger file is no template. */
#define TEMPLATE_BYTES_MAX (1u << 20)

static bool names_kernel(const char *path, const char *kernel) {
  size_t i = 0;
  while (kernel[i] && kernel[i] == (path[i] == '/' ? '_' : path[i])) i++;
  return !kernel[i] && !strcmp(path + i, ".cuh");
}

const nsai_template *nsai_template_of(const char *kernel) {
  for (size_t i = 0; i < nsai_embedded_template_count; i++)
    if (names_kernel(nsai_embedded_templates[i].name, kernel)) return &nsai_embedded_templates[i];
  return NULL;
}

static nsa_status read_templates(nsai_templates *out, const char *folder) {
  nsai_digest_state digest;
  nsai_digest_begin(&digest);
  for (size_t i = 0; i < out->count; i++) {
    nsai_template *item = &out->owned[i];
    char path[PATH_MAX];
    char *text;
    item->name = nsai_embedded_templates[i].name;
    if (snprintf(path, sizeof path, "%s/%s", folder, item->name) >= (int)sizeof path)
      return nsai_fail(NSA_E_IO, "runtime.templates_dir: the path %s/%s is too long", folder,
                       item->name);
    NSAI_TRY(nsai_files_read(AT_FDCWD, path, TEMPLATE_BYTES_MAX, &text, &item->length));
    item->text = text;
    if (strlen(text) != item->length)
      return nsai_fail(NSA_E_IO,
                       "%s has a NUL byte, behind which the compiler would read nothing: remove it",
                       path);
    nsai_digest_field(&digest, "name", item->name, strlen(item->name));
    nsai_digest_field(&digest, "text", item->text, item->length);
  }
  char hex[NSAI_DIGEST_CHARS];
  nsai_digest_end(&digest, hex);
  snprintf(out->digest, sizeof out->digest, "folder-%s", hex);
  return NSA_OK;
}

nsa_status nsai_templates_init(nsai_templates *out, const char *folder) {
  nsa_status status = NSA_OK;
  memset(out, 0, sizeof *out);
  out->count = nsai_embedded_template_count;
  if (!folder || !folder[0]) {
    out->item = nsai_embedded_templates;
    snprintf(out->digest, sizeof out->digest, "%s", nsai_embedded_digest);
    return NSA_OK;
  }
  size_t bytes = (out->count + 1) * sizeof *out->owned;
  out->owned = calloc(1, bytes);
  if (!out->owned) return nsai_fail_nomem("kernel templates", bytes);
  out->item = out->owned;
  NSAI_TRY_TO(fail, read_templates(out, folder));
  return NSA_OK;
fail:
  nsai_templates_fini(out);
  return status;
}

void nsai_templates_fini(nsai_templates *templates) {
  for (size_t i = 0; templates->owned && i < templates->count; i++)
    free((char *)templates->owned[i].text);
  free(templates->owned);
  memset(templates, 0, sizeof *templates);
}
