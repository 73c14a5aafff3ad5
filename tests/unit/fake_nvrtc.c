/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * NVRTC without a compiler, in the same module as the fake driver: every unit becomes an image at
 * once, a cubin without instructions, so that tests of plans need no time. FAKE_NVRTC_BAD names a
 * kernel that does not compile; FAKE_NVRTC_FAT one that spills registers, as often as the record's
 * `spills` says, or whose wgmma are serialised, as `serial` says; FAKE_NVRTC_MS lets every compilation
 * take so long; FAKE_NVRTC_BYTES fills images with zeros up to this size. FAKE_NVRTC_VERSION is
 * another version than 13.0.
 */
#include "../support/elf_cubin.h"
#include "fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char ptx[] = "// PTX, but in name only";
static const char good_log[] = "ptxas info    : Used 10 registers\n";
static const char fat_log[] =
    "ptxas         .     8 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n"
    "ptxas info    : Used 255 registers\n";

static const char serial_log[] =
    "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
    "serialized due to insufficient register resources\n"
    "ptxas info    : Used 255 registers\n";

typedef struct program {
  int bad;
  const char *log;
  char entry[100]; /* of the kernel */
  unsigned sm;
} program;

const char *nvrtcGetErrorString(nsai_nvrtc_result result) {
  return result == NSAI_NVRTC_COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_FAKE";
}

nsai_nvrtc_result nvrtcVersion(int *major, int *minor) {
  const char *version = getenv("FAKE_NVRTC_VERSION");
  *major = 13;
  *minor = 0;
  if (version) sscanf(version, "%d.%d", major, minor);
  return 0;
}

static const int archs[] = { 80, 86, 87, 89, 90, 100, 103, 120 };

nsai_nvrtc_result nvrtcGetNumSupportedArchs(int *count) {
  *count = sizeof archs / sizeof *archs;
  return 0;
}

nsai_nvrtc_result nvrtcGetSupportedArchs(int *out) {
  memcpy(out, archs, sizeof archs);
  return 0;
}

/* The kernel of a unit has the name of its template, "family/kernel.cuh", which is its last include. */
static void find_entry(const char *source, char entry[100]) {
  static const char include[] = "#include \"";
  const char *file = "";
  for (const char *at = source; (at = strstr(at, include)) != NULL;) file = at += strlen(include);
  snprintf(entry, 100, "%.*s", (int)strcspn(file, ".\""), file);
  for (char *c = entry; *c; c++)
    if (*c == '/') *c = '_';
}

/* Whether the environment variable names the kernel. */
static int is_named_by(const char *variable, const char *entry) {
  const char *kernel = getenv(variable);
  return kernel && *entry && !strcmp(kernel, entry);
}

nsai_nvrtc_result nvrtcCreateProgram(nsai_nvrtc_program *out, const char *source, const char *name,
                                     int headers, const char *const *texts,
                                     const char *const *names) {
  program *p = malloc(sizeof *p);
  (void)name, (void)headers, (void)texts, (void)names;
  if (!p) return NSAI_NVRTC_OUT_OF_MEMORY;
  p->sm = 0;
  find_entry(source, p->entry);
  p->bad = is_named_by("FAKE_NVRTC_BAD", p->entry);
  const bool fat = is_named_by("FAKE_NVRTC_FAT", p->entry) && fake_cuda_record()->spills-- > 0;
  p->log = !fat ? good_log : fake_cuda_record()->serial ? serial_log : fat_log;
  *out = (nsai_nvrtc_program)(void *)p;
  return 0;
}

nsai_nvrtc_result nvrtcDestroyProgram(nsai_nvrtc_program *p) {
  free(*p);
  *p = NULL;
  return 0;
}

nsai_nvrtc_result nvrtcCompileProgram(nsai_nvrtc_program p, int count, const char *const *options) {
  program *self = (program *)(void *)p;
  const char *ms = getenv("FAKE_NVRTC_MS");
  for (int i = 0; i < count; i++) sscanf(options[i], "--gpu-architecture=sm_%u", &self->sm);
  if (ms) usleep((useconds_t)atoi(ms) * 1000);
  __atomic_fetch_add(&fake_cuda_record()->compilations, 1, __ATOMIC_RELAXED);
  return self->bad ? NSAI_NVRTC_COMPILATION : 0;
}

nsai_nvrtc_result nvrtcGetPTXSize(nsai_nvrtc_program p, size_t *size) {
  (void)p;
  *size = sizeof ptx;
  return 0;
}

nsai_nvrtc_result nvrtcGetPTX(nsai_nvrtc_program p, char *out) {
  (void)p;
  memcpy(out, ptx, sizeof ptx);
  return 0;
}

nsai_nvrtc_result nvrtcGetCUBINSize(nsai_nvrtc_program p, size_t *size) {
  const char *bytes = getenv("FAKE_NVRTC_BYTES");
  (void)p;
  *size = bytes && atoll(bytes) > CUBIN_LEAST ? (size_t)atoll(bytes) : CUBIN_LEAST;
  return 0;
}

nsai_nvrtc_result nvrtcGetCUBIN(nsai_nvrtc_program p, char *out) {
  const program *self = (const program *)(const void *)p;
  size_t size;
  nvrtcGetCUBINSize(p, &size);
  memset(out, 0, size);
  cubin_write(out, size, self->sm, true, self->entry);
  return 0;
}

nsai_nvrtc_result nvrtcGetProgramLogSize(nsai_nvrtc_program p, size_t *size) {
  *size = strlen(((const program *)(const void *)p)->log) + 1;
  return 0;
}

nsai_nvrtc_result nvrtcGetProgramLog(nsai_nvrtc_program p, char *out) {
  strcpy(out, ((const program *)(const void *)p)->log);
  return 0;
}
