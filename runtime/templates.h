/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernel templates: CUDA source text by name. Embedded at build time; while developing, a
 * folder replaces them without a rebuild.
 */
#ifndef NSAI_TEMPLATES_H
#define NSAI_TEMPLATES_H

#include "status.h"

#include <stdbool.h>

typedef struct nsai_template {
  const char *name; /* relative to kernel_templates: "common/mma.cuh" */
  const char *text; /* NUL-terminated */
  size_t length;    /* bytes without the NUL */
} nsai_template;

/* Written by kernel_templates/embed.py, sorted by name, closed by an empty entry. */
extern const nsai_template nsai_embedded_templates[];
extern const size_t nsai_embedded_template_count;
extern const char nsai_embedded_digest[]; /* SHA-256 over names and contents, hex */

typedef struct nsai_templates {
  const nsai_template *item; /* sorted by name */
  size_t count;
  char digest[80];      /* part of every kernel's cache key */
  nsai_template *owned; /* NULL: the embedded ones */
} nsai_templates;

/* Fills `out`. folder NULL or "": the embedded templates. Otherwise the files of the same names are
 * read from `folder` now; their digest differs even when their contents do not, so that
 * experiments stay apart in the cache. NSA_E_IO (names the file), NSA_E_NOMEM. */
nsa_status nsai_templates_init(nsai_templates *out, const char *folder);

/* Frees what init allocated; a zeroed struct is fine. */
void nsai_templates_fini(nsai_templates *templates);

#endif /* NSAI_TEMPLATES_H */
