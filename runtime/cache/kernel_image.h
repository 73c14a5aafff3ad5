/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The image of one kernel, which the compiler makes and the cache stores, and the key that names
 * it.
 */
#ifndef NSAI_CACHE_KERNEL_IMAGE_H
#define NSAI_CACHE_KERNEL_IMAGE_H

#include "base/digest.h"
#include "base/error.h"

#include <stdbool.h>

/* Identifies the compiler build: NVRTC's build-id, or a replacement for it. */
#define NSAI_COMPILER_ID_CHARS 128

/* One compiled kernel. The owner of the struct owns its contents; nsai_kernel_image_fini frees
 * them. */
typedef struct nsai_kernel_image {
  void *cubin;
  size_t size;          /* bytes of cubin */
  int32_t registers;    /* per thread */
  int32_t spill_bytes;  /* bytes of register spill stores and loads; 0 but in last resorts */
  int32_t stack_bytes;  /* local stack frame per thread */
  int32_t shared_bytes; /* static shared memory per block */
  int32_t serial_wgmma; /* 1: ptxas serialised wgmma (C75xx); 0 but in last resorts */
  double compile_ms;    /* 0 when the image came from the disk cache */
  char *log;            /* the compiler's log; NULL when the image came from the cache */
  char compiler_id[NSAI_COMPILER_ID_CHARS];
  bool refused; /* it compiled, but is not usable: see compile/compiler.h */
} nsai_kernel_image;

/* Whether the kernel is right, but so slow that it only serves where nothing else does. */
static inline bool nsai_is_last_resort(const nsai_kernel_image *image) {
  return image->spill_bytes || image->serial_wgmma;
}

/* Frees the contents and zeroes the struct; a zeroed struct is allowed. */
void nsai_kernel_image_fini(nsai_kernel_image *image);

/* Copies everything except the log. NSA_E_NOMEM. */
nsa_status nsai_kernel_image_copy(nsai_kernel_image *out, const nsai_kernel_image *image);

/* Everything that determines the bytes of a cubin. Lengths of sequences are never part of it. */
typedef struct nsai_kernel_key_parts {
  const char *entry;            /* kernel entry, extern "C" */
  const char *source;           /* the generated unit */
  const char *options;          /* the requested compiler options, in canonical order */
  const char *arch;             /* "sm_90a" */
  const char *templates_digest; /* digest of the templates that the unit includes */
  const char *compiler_id;      /* "": accept an image of any compiler (none is installed here) */
} nsai_kernel_key_parts;

/* The key of one image. The compiler id is stored beside the digest of all other parts, because
 * it is the only part that may be unknown: a machine without NVRTC can use a filled cache. */
typedef struct nsai_kernel_key {
  char digest[NSAI_DIGEST_CHARS]; /* over `text` */
  char *text;                     /* all parts except the compiler id, tagged and length-prefixed */
  size_t length;
  char entry[128];
  char arch[16];
  char compiler_id[NSAI_COMPILER_ID_CHARS];
} nsai_kernel_key;

/* NSA_E_NOMEM, NSA_E_INTERNAL (an entry or architecture name that does not fit). */
nsa_status nsai_kernel_key_init(nsai_kernel_key *key, const nsai_kernel_key_parts *parts);
void nsai_kernel_key_fini(nsai_kernel_key *key);

#endif /* NSAI_CACHE_KERNEL_IMAGE_H */
