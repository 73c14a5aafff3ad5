/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Compiles generated units with NVRTC, one kernel per unit, in parallel. Owns the templates and
 * the choice of the compiler; knows nothing about devices, plans or the cache.
 */
#ifndef NSAI_COMPILE_COMPILER_H
#define NSAI_COMPILE_COMPILER_H

#include "cache/kernel_image.h"
#include "compile/templates.h"
#include "driver/cuda_api.h"

#include <nsa/log.h>

typedef struct nsai_compiler nsai_compiler;

typedef struct nsai_compiler_options {
  const char *nvrtc_path;    /* file or folder; NULL: search */
  const char *templates_dir; /* replaces the embedded templates; NULL: none */
  const char *dump_dir;      /* receives source, log, PTX and cubin of every unit; NULL: none */
  /* 13000 is CUDA 13.0: excludes NVRTC of a newer major version; 0: no limit */
  int32_t driver_version;
  nsai_logger *logger; /* borrowed; NULL: silent */
} nsai_compiler_options;

/* Checks the paths and reads the templates; NVRTC is opened by the first compilation. The strings
 * are copied. NSA_E_IO, NSA_E_NOMEM. */
nsa_status nsai_compiler_create(const nsai_compiler_options *options, nsai_compiler **out);

/* NULL is fine. No compilation may be running. */
void nsai_compiler_destroy(nsai_compiler *compiler);

typedef struct nsai_compile_request {
  const char *name;   /* kernel entry, declared extern "C" in the source; also names dumps */
  const char *source; /* the generated unit; includes templates by name, "core/mma.cuh" */
  const char *arch;   /* "sm_90a", see driver/arch.h */
  bool line_info;     /* source lines in the cubin, for profilers; part of the cache key */
  bool last_resort;   /* takes a kernel that spills or serialises its wgmma, with a warning */
} nsai_compile_request;

/* Compiles one unit to a cubin. Blocks for 0.1 to 1 s; the first call also opens NVRTC (up to
 * 0.2 s). Thread-safe. After a failure `out` owns nothing, and only out->refused is valid.
 *
 * NSA_E_COMPILE: the compiler's first errors with file and line. With out->refused, the kernel
 * compiled but cannot be used: it spills registers or its wgmma instructions are serialised (either
 * makes a variant too slow, and smaller tiles may help; a last resort is taken all the same), or
 * its machine code is wrong (sass_check.h). NSA_E_UNSUPPORTED (this library or this NVRTC does not
 * know the architecture), NSA_E_NO_COMPILER, NSA_E_NO_DRIVER (a given NVRTC is newer than the
 * driver), NSA_E_NOMEM. */
nsa_status nsai_compile(nsai_compiler *compiler, const nsai_compile_request *request,
                        nsai_kernel_image *out);

typedef struct nsai_compile_job {
  nsai_compile_request request;
  nsai_kernel_image image; /* out; the caller frees it */
  nsa_status status;       /* out; NSA_E_CANCELLED when it was not reached */
  /* out: error text, to be freed with free(); NULL: none, or out of memory */
  char *error;
  size_t finished; /* jobs[i].finished is the index of the job that finished as the i-th */
} nsai_compile_job;

typedef struct nsai_compile_many_options {
  int32_t threads;          /* 0: the cores this process may use, at most 4 */
  bool keep_going;          /* compile the others when one fails (the tuner) */
  nsa_progress_fn progress; /* called on the calling thread, between jobs; NULL: none */
  void *user;               /* passed to `progress` and `finished` */
  bool past_refused;        /* compile the others when one is refused */
  /* Called on the calling thread with each job that has been compiled, or failed, while others are
   * being compiled; before `progress` hears of it. NULL: none. */
  void (*finished)(void *user, nsai_compile_job *job);
} nsai_compile_many_options;

/* Compiles all jobs. Returns the first failure in the jobs' order, with its text as
 * nsa_last_error. A refused kernel is returned only when no job failed for another reason, since
 * smaller tiles would not help then. NSA_E_CANCELLED when `progress` asked for it; jobs that
 * were running are finished and kept. `run` NULL: defaults. */
nsa_status nsai_compile_many(nsai_compiler *compiler, nsai_compile_job *jobs, size_t count,
                             const nsai_compile_many_options *run);

/* The digest of the templates that units include. Valid as long as `compiler`. */
const char *nsai_compiler_templates_digest(const nsai_compiler *compiler);

/* The cache key of a request. Does not open the compiler: finds NVRTC's file and reads its
 * build-id, once. After NVRTC has been opened, the key has the build-id of the opened one. If
 * there is no NVRTC, the key's compiler is "" (any). The caller frees the key with
 * nsai_kernel_key_fini. NSA_E_NOMEM, NSA_E_INTERNAL. Thread-safe. */
nsa_status nsai_compiler_key(nsai_compiler *compiler, const nsai_compile_request *request,
                             nsai_kernel_key *out);

#endif /* NSAI_COMPILE_COMPILER_H */
