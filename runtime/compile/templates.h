/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernel templates: CUDA source text by name. They are embedded at build time; during
 * development a folder can replace them without a rebuild.
 */
#ifndef NSAI_COMPILE_TEMPLATES_H
#define NSAI_COMPILE_TEMPLATES_H

#include "base/error.h"

#include <stdbool.h>

typedef struct nsai_template {
  const char *name; /* relative to kernel_templates: "core/mma.cuh" */
  const char *text; /* NUL-terminated */
  size_t length;    /* bytes without the NUL */
} nsai_template;

/* Written by kernel_templates/embed.py, sorted by name; an empty entry ends the array. */
extern const nsai_template nsai_embedded_templates[];
extern const size_t nsai_embedded_template_count;
extern const char nsai_embedded_digest[]; /* SHA-256 over names and contents, hex */

/* The embedded template of a kernel: the one whose path without its ending, with '_' for '/', is
 * the kernel's name. NULL: none. */
const nsai_template *nsai_template_of(const char *kernel);

typedef struct nsai_templates {
  const nsai_template *item; /* sorted by name */
  size_t count;
  char digest[80];      /* part of every kernel's cache key */
  nsai_template *owned; /* NULL: the embedded ones */
} nsai_templates;

/* Initialises `out`. folder NULL or "": the embedded templates. Otherwise reads the files of the
 * same names from `folder`. Their digest differs even when their contents do not, so that the
 * cache keeps experiments separate. NSA_E_IO (names the file), NSA_E_NOMEM. */
nsa_status nsai_templates_init(nsai_templates *out, const char *folder);

/* Frees what init allocated; a zeroed struct is fine. */
void nsai_templates_fini(nsai_templates *templates);

#endif /* NSAI_COMPILE_TEMPLATES_H */
