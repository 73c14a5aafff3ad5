/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A GPU on a CPU: NVRTC and the driver of tests/unit with kernels that run. What NVRTC compiles is
 * translate.py's library for this machine; an image is a small cubin whose code is the library's path. Kernels
 * run one after the other, at once; products of cuBLASLt are computed here.
 *
 * EMULATOR_GPU is the architecture, sm_90 without it. EMULATOR_DIR keeps the libraries, by the hash of their
 * source. EMULATOR_PYTHON runs translate.py, python3 without it.
 */
#include "../support/elf_cubin.h"
#include "../unit/fake_cuda.h"
#include "base/float16.h"
#include "shape.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 512, IMAGE_BYTES = CUBIN_LEAST + PATH_BYTES, LOG_BYTES = 1 << 16 };

static const char *folder(void) {
  const char *given = getenv("EMULATOR_DIR");
  return given ? given : "/tmp/nsa-emulator";
}

/* ---- NVRTC */

typedef struct program {
  char source[PATH_BYTES], library[PATH_BYTES], entry[100];
  char *log;
  unsigned sm;
} program;

nsai_nvrtc_result nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = 0, 0; }

static const int archs[] = { 80, 86, 87, 89, 90, 100, 103, 120 };

nsai_nvrtc_result nvrtcGetNumSupportedArchs(int *count) {
  return *count = sizeof archs / sizeof *archs, 0;
}

nsai_nvrtc_result nvrtcGetSupportedArchs(int *out) { return memcpy(out, archs, sizeof archs), 0; }

const char *nvrtcGetErrorString(nsai_nvrtc_result result) {
  return result == NSAI_NVRTC_COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_EMULATOR";
}

/* All files in one, as translate.py reads it. */
static bool write_source(char *path, const char *unit, int headers, const char *const *texts,
                         const char *const *names) {
  const int fd = mkstemp(path);
  FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
  if (!file) return false;
  fprintf(file, "unit.cu %zu\n%s", strlen(unit), unit);
  for (int i = 0; i < headers; i++)
    fprintf(file, "%s %zu\n%s", names[i], strlen(texts[i]), texts[i]);
  const bool good = !ferror(file);
  return !fclose(file) && good;
}

nsai_nvrtc_result nvrtcDestroyProgram(nsai_nvrtc_program *handle) {
  program *p = (program *)(void *)*handle;
  char log[PATH_BYTES + 16];
  snprintf(log, sizeof log, "%s.log", p->source);
  unlink(log);
  unlink(p->source);
  free(p->log);
  free(p);
  *handle = NULL;
  return 0;
}

nsai_nvrtc_result nvrtcCreateProgram(nsai_nvrtc_program *out, const char *source, const char *name,
                                     int headers, const char *const *texts,
                                     const char *const *names) {
  program *p = calloc(1, sizeof *p);
  (void)name;
  if (!p || !(p->log = calloc(1, LOG_BYTES))) return free(p), NSAI_NVRTC_OUT_OF_MEMORY;
  mkdir(folder(), 0777);
  snprintf(p->source, sizeof p->source, "%s/source.XXXXXX", folder());
  *out = (nsai_nvrtc_program)(void *)p;
  if (write_source(p->source, source, headers, texts, names)) return 0;
  fprintf(stderr, "emulator: %s: %s\n", p->source, strerror(errno));
  return nvrtcDestroyProgram(out), NSAI_NVRTC_OUT_OF_MEMORY;
}

nsai_nvrtc_result nvrtcCompileProgram(nsai_nvrtc_program handle, int count,
                                      const char *const *options) {
  program *p = (program *)(void *)handle;
  char command[4 * PATH_BYTES];
  const char *python = getenv("EMULATOR_PYTHON");
  for (int i = 0; i < count; i++) sscanf(options[i], "--gpu-architecture=sm_%u", &p->sm);
  snprintf(command, sizeof command, "'%s' -S '%s/translate.py' '%s' %u '%s' 2>'%s.log'",
           python ? python : "python3", EMULATOR_SOURCE, p->source, p->sm, folder(), p->source);
  FILE *output = popen(command, "r");
  const bool found = output && fgets(p->library, sizeof p->library, output);
  const int status = output ? pclose(output) : 1;
  snprintf(command, sizeof command, "%s.log", p->source);
  FILE *log = fopen(command, "r");
  if (log) {
    p->log[fread(p->log, 1, LOG_BYTES - 1, log)] = '\0';
    fclose(log);
  }
  if (!found || status) return NSAI_NVRTC_COMPILATION;
  p->library[strcspn(p->library, "\n")] = '\0';
  snprintf(p->log, LOG_BYTES, "ptxas info    : Used 10 registers\n");
  return 0;
}

nsai_nvrtc_result nvrtcGetPTXSize(nsai_nvrtc_program p, size_t *size) {
  return (void)p, *size = 1, 0;
}
nsai_nvrtc_result nvrtcGetPTX(nsai_nvrtc_program p, char *out) { return (void)p, *out = '\0', 0; }
nsai_nvrtc_result nvrtcGetCUBINSize(nsai_nvrtc_program p, size_t *size) {
  return (void)p, *size = IMAGE_BYTES, 0;
}

nsai_nvrtc_result nvrtcGetCUBIN(nsai_nvrtc_program handle, char *out) {
  const program *p = (const program *)(const void *)handle;
  memset(out, 0, IMAGE_BYTES);
  cubin_write(out, IMAGE_BYTES, p->sm, true, "kernel");
  memcpy(out + CUBIN_LEAST, p->library, strlen(p->library) + 1);
  return 0;
}

nsai_nvrtc_result nvrtcGetProgramLogSize(nsai_nvrtc_program handle, size_t *size) {
  return *size = strlen(((program *)(void *)handle)->log) + 1, 0;
}

nsai_nvrtc_result nvrtcGetProgramLog(nsai_nvrtc_program handle, char *out) {
  return strcpy(out, ((program *)(void *)handle)->log), 0;
}

/* ---- the driver */

static void *load(const void *image) {
  const char *path = (const char *)image + CUBIN_LEAST;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "emulator: %s\n", dlerror());
  return library;
}

static size_t params_bytes(const void *code) {
  const unsigned *bytes = dlsym((void *)(uintptr_t)code, "emulator_params_bytes");
  return bytes ? *bytes : 0;
}

static float element(const void *data, int32_t type, int64_t i) {
  if (type == NSAI_CUDA_R_32F) return ((const float *)data)[i];
  const uint16_t bits = ((const uint16_t *)data)[i];
  return type == NSAI_CUDA_R_16F ? nsai_float_from_f16(bits) : nsai_float_from_bf16(bits);
}

static void set_element(void *data, int32_t type, int64_t i, float x) {
  if (type == NSAI_CUDA_R_32F)
    ((float *)data)[i] = x;
  else
    ((uint16_t *)data)[i] =
        type == NSAI_CUDA_R_16F ? nsai_f16_from_float(x) : nsai_bf16_from_float(x);
}

static int64_t place(const fake_matrix *m, int batch, int64_t row, int64_t column) {
  return batch * m->stride +
         (m->transposed ? column + row * m->leading : row + column * m->leading);
}

static void multiply(const fake_product *p) {
  const int64_t inner = (int64_t)(p->a.transposed ? p->a.rows : p->a.columns);
  for (int batch = 0; batch < (p->d.batch ? p->d.batch : 1); batch++)
    for (int64_t i = 0; i < (int64_t)p->d.rows; i++)
      for (int64_t j = 0; j < (int64_t)p->d.columns; j++) {
        float sum = 0;
        for (int64_t k = 0; k < inner; k++)
          sum += element(p->a.data, p->a.type, place(&p->a, batch, i, k)) *
                 element(p->b.data, p->b.type, place(&p->b, batch, k, j));
        sum *= p->alpha;
        if (p->beta != 0) sum += p->beta * element(p->c.data, p->c.type, place(&p->c, batch, i, j));
        set_element((void *)(uintptr_t)p->d.data, p->d.type, place(&p->d, batch, i, j), sum);
      }
}

static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;

/* A launch waits for those of other threads. */
static void pause_running(void) {
  pthread_mutex_unlock(&running);
  usleep(20);
  pthread_mutex_lock(&running);
}

/* The windows of shared memory, which all launches use in turn. */
static void map_shared(void) {
  static bool mapped;
  const size_t bytes = (size_t)EMULATOR_SHARED_EACH * EMULATOR_MOST_CLUSTER;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  void *at = (void *)(uintptr_t)EMULATOR_SHARED_AT;
  if (!mapped && mmap(at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) != at) abort();
  mapped = true;
}

/* Stacks of a launch, which belong to the thread that launches: others run while it waits. */
static pthread_key_t stacks_key;
static pthread_once_t stacks_once = PTHREAD_ONCE_INIT;
#define STACKS_BYTES ((size_t)EMULATOR_STACK_BYTES * EMULATOR_MOST_THREADS * EMULATOR_MOST_CLUSTER)

static void unmap_stacks(void *stacks) { munmap(stacks, STACKS_BYTES); }
static void make_stacks_key(void) {
  if (pthread_key_create(&stacks_key, unmap_stacks)) abort();
}

static void *stacks_of_thread(void) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  pthread_once(&stacks_once, make_stacks_key);
  void *stacks = pthread_getspecific(stacks_key);
  if (stacks) return stacks;
  stacks = mmap(NULL, STACKS_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (stacks == MAP_FAILED || pthread_setspecific(stacks_key, stacks)) abort();
  return stacks;
}

static double run(const fake_cuda_launch *launch, const void *params) {
  pthread_mutex_lock(&running);
  if (!params) {
    multiply(fake_cuda_product());
  } else {
    emulator_launch_fn start;
    void *symbol = dlsym(launch->code, "emulator_launch");
    memcpy(&start, &symbol, sizeof start);
    map_shared();
    start(params, launch->grid_x, launch->grid_y, (int)launch->threads, launch->shared_bytes,
          stacks_of_thread(), pause_running);
  }
  pthread_mutex_unlock(&running);
  return 1;
}

/* The GPUs, as FAKE_CUDA_GPU describes them. */
static const struct {
  const char *arch, *gpu;
} gpus[] = {
  { "sm_80", "80 8 166912 Emulator" },   { "sm_89", "89 8 101376 Emulator" },
  { "sm_90", "90 8 232448 Emulator" },   { "sm_100", "100 8 232448 Emulator" },
  { "sm_120", "120 8 101376 Emulator" },
};

static void choose_gpu(void) {
  const char *arch = getenv("EMULATOR_GPU");
  for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
    if (!strcmp(arch ? arch : "sm_90", gpus[i].arch)) {
      setenv("FAKE_CUDA_GPU", gpus[i].gpu, 1);
      return;
    }
  fprintf(stderr,
          "emulator: EMULATOR_GPU is %s: sm_80, sm_89, sm_90, sm_100 and sm_120 are there\n", arch);
  abort();
}

__attribute__((constructor)) static void begin(void) {
  choose_gpu();
  fake_cuda_state *state = fake_cuda_record();
  state->kernel = run;
  state->load = load;
  state->params_bytes = params_bytes;
  state->fills = true;
}
