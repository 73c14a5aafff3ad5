/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Lock rule: `open_lock` guards the lists of opened tables below and is held while a library is
 * opened, so that two threads do not initialise the driver at once. A published table is never
 * written again and is read without the lock.
 */
#include "cuda_api.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is known about each library ---- */

static const char *const driver_names[] = { "libcuda.so.1", NULL };
static const char *const driver_folders[] = {
  "/usr/local/nvidia/lib64", /* containers of the older runtime */
  "/usr/lib/wsl/lib", "/run/opengl-driver/lib", NULL
};
static const char *const nvrtc_names[] = { "libnvrtc.so.13", "libnvrtc.so.12", NULL };
static const char *const cublaslt_names[] = { "libcublasLt.so.13", "libcublasLt.so.12", NULL };

/* The vendor's wheels: nvidia/cuda_nvrtc/lib, nvidia/cublas/lib (CUDA 12), nvidia/cu13/lib; conda
 * puts libraries into lib itself. */
static const char *const wheel_folders[] = { "/lib/python3.*/site-packages/nvidia/*/lib", "/lib",
                                             NULL };
static const char *const toolkit_folders[] = { "/usr/local/cuda/lib64",
                                               "/usr/local/cuda/targets/*/lib",
                                               "/usr/local/cuda-1[0-9]*/lib64",
                                               "/usr/local/lib/python3.*/*-packages/nvidia/*/lib",
                                               "/usr/lib/python3*/*-packages/nvidia/*/lib",
                                               NULL };
static const char *const no_folders[] = { NULL };

const nsai_library_spec nsai_driver_spec = {
  "the NVIDIA driver library",
  driver_names,
  "NSA_DRIVER_PATH",
  "runtime.driver_path",
  driver_folders,
  no_folders,
  NSA_E_NO_DRIVER,
  "install the NVIDIA driver (in a container: pass the GPU through), or use `runtime.device: cpu`",
};

const nsai_library_spec nsai_nvrtc_spec = {
  "the CUDA compiler library NVRTC",
  nvrtc_names,
  "NSA_NVRTC_PATH",
  "runtime.nvrtc_path",
  toolkit_folders,
  wheel_folders,
  NSA_E_NO_COMPILER,
  "install the CUDA toolkit's NVRTC package of the driver's major version",
};

const nsai_library_spec nsai_cublaslt_spec = {
  "cuBLASLt",          cublaslt_names,
  "NSA_CUBLASLT_PATH", "runtime.cublaslt_path",
  toolkit_folders,     wheel_folders,
  NSA_E_NO_CUBLASLT,   "install the CUDA toolkit's cuBLAS package of the driver's major version",
};

/* ---- opened tables ---- */

typedef struct driver_node {
  nsai_driver api;
  struct driver_node *next;
} driver_node;
typedef struct nvrtc_node {
  nsai_nvrtc api;
  struct nvrtc_node *next;
} nvrtc_node;
typedef struct cublaslt_node {
  nsai_cublaslt api;
  struct cublaslt_node *next;
} cublaslt_node;

/* One node per library file that was ever opened: usually one each. */
static struct {
  pthread_mutex_t lock;
  driver_node *drivers;
  nvrtc_node *nvrtcs;
  cublaslt_node *cublaslts;
} opened = { PTHREAD_MUTEX_INITIALIZER, NULL, NULL, NULL };

static void log_tried(nsai_logger *logger, const nsai_tried *tried) {
  for (int32_t i = 0; i < tried->count; i++)
    nsai_log(logger, NSA_LOG_TRACE, "cuda_api", "%s: %s", tried->item[i].path,
             tried->item[i].outcome);
}

/* ---- resolving symbols ---- */

typedef nsai_cu_result (*get_proc_fn)(const char *, void **, int, uint64_t, int32_t *);
enum { PROC_LEGACY_STREAM = 1 }; /* NULL streams mean the legacy default stream everywhere */
enum { REQUIRED = 1, OPTIONAL = 0 };

static nsa_status fail_symbol(const nsai_library_spec *spec, const nsai_library *library,
                              const char *name) {
  return nsai_fail(spec->missing,
                   "%s at %s has no function %s: it is too old or broken; %s, or "
                   "set `%s` or $%s.",
                   spec->what, library->path, name, spec->remedy, spec->config_key, spec->env);
}

static nsa_status resolve_driver(nsai_driver *api) {
  get_proc_fn get_proc;
  /* memcpy, because ISO C has no cast from object to function pointers. */
  void *symbol = dlsym(api->library.handle, "cuGetProcAddress_v2");
  if (!symbol)
    return nsai_fail(NSA_E_NO_DRIVER,
                     "the NVIDIA driver library at %s is older than CUDA 12.0 "
                     "(no cuGetProcAddress_v2); install driver 525 or newer.",
                     api->library.path);
  memcpy(&get_proc, &symbol, sizeof get_proc);
  /* `found` tells a symbol that is there in an older form only (2) from one that is missing (1);
   * either way the form asked for cannot be called. */
#define RESOLVE(need, name, version, params)                                                       \
  {                                                                                                \
    int32_t found = 0;                                                                             \
    symbol = NULL;                                                                                 \
    if (get_proc(#name, &symbol, version, PROC_LEGACY_STREAM, &found) != 0 || found != 0)          \
      symbol = NULL;                                                                               \
    if (!symbol && need == REQUIRED) return fail_symbol(&nsai_driver_spec, &api->library, #name);  \
    memcpy(&api->name, &symbol, sizeof api->name);                                                 \
  }
  NSAI_DRIVER_TABLE(RESOLVE)
#undef RESOLVE
  return NSA_OK;
}

#define RESOLVE(need, result, name, params)                                                        \
  {                                                                                                \
    void *symbol = dlsym(api->library.handle, #name);                                              \
    if (!symbol && need == REQUIRED) return fail_symbol(spec, &api->library, #name);               \
    memcpy(&api->name, &symbol, sizeof api->name);                                                 \
  }
static nsa_status resolve_nvrtc(const nsai_library_spec *spec, nsai_nvrtc *api) {
  NSAI_NVRTC_TABLE(RESOLVE)
  return NSA_OK;
}

static nsa_status resolve_cublaslt(const nsai_library_spec *spec, nsai_cublaslt *api) {
  NSAI_CUBLASLT_TABLE(RESOLVE)
  return NSA_OK;
}
#undef RESOLVE

/* ---- foreign codes ---- */

/* The length of the name in the text "cuMemFree(p)". */
static int name_length(const char *call) { return (int)strcspn(call, "("); }

nsa_status nsai_driver_status(const nsai_driver *driver, nsai_cu_result result, const char *call) {
  if (result == NSAI_CUDA_SUCCESS) return NSA_OK;
  const char *name = NULL, *text = NULL;
  if (driver->cuGetErrorName(result, &name) != 0 || !name) name = "unknown error";
  if (driver->cuGetErrorString(result, &text) != 0 || !text) text = "no description";
  return nsai_fail(NSA_E_CUDA, "%.*s: %s (%d): %s", name_length(call), call, name, (int)result,
                   text);
}

nsa_status nsai_nvrtc_status(const nsai_nvrtc *nvrtc, nsai_nvrtc_result result, const char *call) {
  if (result == NSAI_NVRTC_SUCCESS) return NSA_OK;
  /* NVRTC's only allocations are host memory: a distinct cause with a status of its own. */
  return nsai_fail(result == NSAI_NVRTC_OUT_OF_MEMORY ? NSA_E_NOMEM : NSA_E_COMPILE,
                   "%.*s: %s (%d)", name_length(call), call, nvrtc->nvrtcGetErrorString(result),
                   (int)result);
}

nsa_status nsai_cublaslt_status(const nsai_cublaslt *lt, nsai_cublas_status result,
                                const char *call) {
  if (result == 0) return NSA_OK;
  return nsai_fail(NSA_E_CUDA, "%.*s: %s (%d): %s", name_length(call), call,
                   lt->cublasLtGetStatusName(result), (int)result,
                   lt->cublasLtGetStatusString(result));
}

nsa_status nsai_driver_check_major(int32_t driver_version, int32_t toolkit_major) {
  int32_t driver_major = driver_version / 1000;
  if (driver_major >= toolkit_major) return NSA_OK;
  return nsai_fail(NSA_E_NO_DRIVER,
                   "the NVIDIA driver serves CUDA %d.%d and cannot load kernels compiled by NVRTC "
                   "%d: install a driver for CUDA %d, or NVRTC %d (`%s` or $%s).",
                   (int)driver_major, (int)(driver_version % 1000 / 10), (int)toolkit_major,
                   (int)toolkit_major, (int)driver_major, nsai_nvrtc_spec.config_key,
                   nsai_nvrtc_spec.env);
}

/* ---- opening ---- */

/* cuInit's failures are told apart: a machine without a GPU, a stub for linking, a broken driver.
 */
static nsa_status init_driver(nsai_driver *api) {
  nsai_cu_result result = api->cuInit(0);
  if (result == NSAI_CUDA_ERROR_NO_DEVICE)
    return nsai_fail(NSA_E_NO_DEVICE,
                     "the NVIDIA driver at %s sees no GPU: check nvidia-smi and "
                     "CUDA_VISIBLE_DEVICES, or use `runtime.device: cpu`.",
                     api->library.path);
  if (result == NSAI_CUDA_ERROR_STUB_LIBRARY)
    return nsai_fail(NSA_E_NO_DRIVER,
                     "%s is the toolkit's stub for linking, not a driver: install "
                     "the NVIDIA driver or take the stubs folder out of LD_LIBRARY_PATH.",
                     api->library.path);
  if (result != NSAI_CUDA_SUCCESS) {
    const char *name = NULL;
    if (api->cuGetErrorName(result, &name) != 0 || !name) name = "unknown error";
    return nsai_fail(NSA_E_NO_DRIVER,
                     "the NVIDIA driver at %s does not start: cuInit: %s (%d); "
                     "check that the kernel module is loaded and of the same version.",
                     api->library.path, name, (int)result);
  }
  int version = 0;
  NSAI_TRY(NSAI_CUDA(api, cuDriverGetVersion(&version)));
  api->version = version;
  return NSA_OK;
}

nsa_status nsai_driver_open(const char *path, nsai_logger *logger, const nsai_driver **out) {
  nsa_status status = NSA_OK;
  nsai_library_query query = { path, 0 };
  *out = NULL;
  driver_node *node = calloc(1, sizeof *node);
  if (!node) return nsai_fail_nomem("the driver's functions", sizeof *node);
  pthread_mutex_lock(&opened.lock);
  NSAI_TRY_TO(fail,
              nsai_library_open(&nsai_driver_spec, &query, &node->api.tried, &node->api.library));
  for (driver_node *known = opened.drivers; known; known = known->next) {
    if (known->api.library.handle != node->api.library.handle) continue;
    *out = &known->api;
    goto fail; /* nothing failed: the handle's second reference and the node go */
  }
  NSAI_TRY_TO(fail, resolve_driver(&node->api));
  NSAI_TRY_TO(fail, init_driver(&node->api));
  node->next = opened.drivers;
  opened.drivers = node;
  *out = &node->api;
  log_tried(logger, &node->api.tried);
  pthread_mutex_unlock(&opened.lock);
  return NSA_OK;
fail:
  pthread_mutex_unlock(&opened.lock);
  if (status != NSA_OK) log_tried(logger, &node->api.tried);
  if (node->api.library.handle) dlclose(node->api.library.handle);
  free(node);
  return status;
}

/* NVRTC opens libnvrtc-builtins by its bare name, which the loader cannot find when NVRTC itself
 * came from a folder the loader does not know (a wheel). A library that is already loaded answers
 * to its name. Failing here is not final: NVRTC may still find it. */
static void preload_builtins(const char *nvrtc_path, nsai_tried *tried) {
  char pattern[PATH_MAX + 32];
  const char *slash = strrchr(nvrtc_path, '/');
  if (!slash) return;
  snprintf(pattern, sizeof pattern, "%.*s/libnvrtc-builtins.so.[0-9]*.[0-9]",
           (int)(slash - nvrtc_path), nvrtc_path);
  glob_t found;
  if (glob(pattern, 0, NULL, &found) != 0) {
    nsai_tried_add(tried, pattern, "no such file");
    return;
  }
  for (size_t i = 0; i < found.gl_pathc; i++) {
    void *handle = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
    const char *why = handle ? "opened" : dlerror();
    nsai_tried_add(tried, found.gl_pathv[i], why ? why : "dlopen failed without a reason");
  }
  globfree(&found);
}

nsa_status nsai_nvrtc_open(const nsai_library_query *query, nsai_logger *logger,
                           const nsai_nvrtc **out) {
  nsa_status status = NSA_OK;
  int major = 0, minor = 0;
  *out = NULL;
  nvrtc_node *node = calloc(1, sizeof *node);
  if (!node) return nsai_fail_nomem("NVRTC's functions", sizeof *node);
  pthread_mutex_lock(&opened.lock);
  NSAI_TRY_TO(fail,
              nsai_library_open(&nsai_nvrtc_spec, query, &node->api.tried, &node->api.library));
  for (nvrtc_node *known = opened.nvrtcs; known; known = known->next) {
    if (known->api.library.handle != node->api.library.handle) continue;
    *out = &known->api;
    goto fail;
  }
  preload_builtins(node->api.library.path, &node->api.tried);
  NSAI_TRY_TO(fail, resolve_nvrtc(&nsai_nvrtc_spec, &node->api));
  NSAI_TRY_TO(fail, NSAI_NVRTC(&node->api, nvrtcVersion(&major, &minor)));
  node->api.major = major;
  node->api.minor = minor;
  node->next = opened.nvrtcs;
  opened.nvrtcs = node;
  *out = &node->api;
  log_tried(logger, &node->api.tried);
  pthread_mutex_unlock(&opened.lock);
  return NSA_OK;
fail:
  pthread_mutex_unlock(&opened.lock);
  if (status != NSA_OK) log_tried(logger, &node->api.tried);
  if (node->api.library.handle) dlclose(node->api.library.handle);
  free(node);
  return status;
}

nsa_status nsai_cublaslt_open(const nsai_library_query *query, nsai_logger *logger,
                              const nsai_cublaslt **out) {
  nsa_status status = NSA_OK;
  *out = NULL;
  cublaslt_node *node = calloc(1, sizeof *node);
  if (!node) return nsai_fail_nomem("cuBLASLt's functions", sizeof *node);
  pthread_mutex_lock(&opened.lock);
  NSAI_TRY_TO(fail,
              nsai_library_open(&nsai_cublaslt_spec, query, &node->api.tried, &node->api.library));
  for (cublaslt_node *known = opened.cublaslts; known; known = known->next) {
    if (known->api.library.handle != node->api.library.handle) continue;
    *out = &known->api;
    goto fail;
  }
  NSAI_TRY_TO(fail, resolve_cublaslt(&nsai_cublaslt_spec, &node->api));
  node->api.version = (int64_t)node->api.cublasLtGetVersion();
  node->next = opened.cublaslts;
  opened.cublaslts = node;
  *out = &node->api;
  log_tried(logger, &node->api.tried);
  pthread_mutex_unlock(&opened.lock);
  return NSA_OK;
fail:
  pthread_mutex_unlock(&opened.lock);
  if (status != NSA_OK) log_tried(logger, &node->api.tried);
  if (node->api.library.handle) dlclose(node->api.library.handle);
  free(node);
  return status;
}
