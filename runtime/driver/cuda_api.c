/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Lock rule: `opened.lock` protects the list of opened tables below. It is held while a library
 * is opened, so that two threads do not initialise the driver at once. A published table is
 * never written again and is read without the lock.
 *
 * fork(): CUDA does not survive it, and a thread that does not exist in the child may have held
 * the lock. A handler gives the child a new lock and notes that CUDA was in use. The child's
 * list is intact, because a single store adds an entry.
 */
#include "driver/cuda_api.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the libraries ---- */

static const char *const driver_names[] = { "libcuda.so.1", NULL };
static const char *const driver_folders[] = {
  "/usr/local/nvidia/lib64", /* containers of the older runtime */
  "/usr/lib/wsl/lib", "/run/opengl-driver/lib", NULL
};
static const char *const nvml_names[] = { "libnvidia-ml.so.1", NULL };
static const char *const nvrtc_names[] = { "libnvrtc.so.13", "libnvrtc.so.12", NULL };
static const char *const cublaslt_names[] = { "libcublasLt.so.13", "libcublasLt.so.12", NULL };

/* NVIDIA's Python wheels: nvidia/cuda_nvrtc/lib, nvidia/cublas/lib (CUDA 12), nvidia/cu13/lib.
 * Conda puts libraries directly into lib. */
const char *const nsai_wheel_folders[] = { "/lib/python3.*/site-packages/nvidia/*/lib", "/lib",
                                           NULL };
const char *const nsai_toolkit_folders[] = { "/usr/local/cuda/lib64",
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
  nsai_toolkit_folders,
  nsai_wheel_folders,
  NSA_E_NO_COMPILER,
  "install the CUDA toolkit's NVRTC package of the driver's major version",
};

const nsai_library_spec nsai_cublaslt_spec = {
  "cuBLASLt",           cublaslt_names,
  "NSA_CUBLASLT_PATH",  "runtime.cublaslt_path",
  nsai_toolkit_folders, nsai_wheel_folders,
  NSA_E_NO_CUBLASLT,    "install the CUDA toolkit's cuBLAS package of the driver's major version",
};

/* NVML belongs to the driver and is in the same folders. It only supplies figures, so there is
 * no setting for its path. */
static const nsai_library_spec nvml_spec = {
  "the NVIDIA management library NVML",
  nvml_names,
  NULL,
  NULL,
  driver_folders,
  no_folders,
  NSA_E_NO_DRIVER,
  "it comes with the NVIDIA driver (in a container: with the driver capability \"utility\")",
};

/* ---- opened tables ---- */

/* One table. There is one per library file that was opened, usually one of each kind. */
typedef struct node {
  struct node *next;
  const nsai_library_kind *kind;
  _Alignas(max_align_t) unsigned char api[]; /* nsai_driver, nsai_nvrtc, ... */
} node;

static struct {
  pthread_mutex_t lock;
  node *first;
  bool started; /* a cuInit is running or has succeeded */
  bool forked;  /* this process is the child of one that had called it */
  pthread_once_t watched;
} opened = { .lock = PTHREAD_MUTEX_INITIALIZER, .watched = PTHREAD_ONCE_INIT };

static void after_fork(void) {
  pthread_mutex_init(&opened.lock, NULL);
  opened.forked = opened.forked || opened.started;
}

/* If there is no memory for the handler, only a fork in the middle of an open is at risk: cuInit
 * itself refuses to start in a child. */
static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }

static void log_tried(nsai_logger *logger, const nsai_tried *tried) {
  for (int32_t i = 0; i < tried->count; i++)
    nsai_log(logger, NSA_LOG_TRACE, "cuda_api", "%s: %s", tried->item[i].path,
             tried->item[i].outcome);
}

/* ---- resolving symbols ---- */

typedef nsai_cu_result (*get_proc_fn)(const char *, void **, int, uint64_t, int32_t *);
enum { PROC_LEGACY_STREAM = 1 }; /* NULL streams mean the legacy default stream everywhere */
enum { REQUIRED = 1, OPTIONAL = 0 };

nsa_status nsai_library_fail_symbol(const nsai_library_spec *spec, const nsai_library *library,
                                    const char *name) {
  if (!spec->env)
    return nsai_fail(spec->missing, "%s at %s has no function %s: it is too old or broken.",
                     spec->what, library->path, name);
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
  /* `found` distinguishes a symbol that exists only in an older form (2) from a missing one (1).
   * In both cases the requested form cannot be called. */
#define RESOLVE(need, name, version, params)                                                       \
  {                                                                                                \
    int32_t found = 0;                                                                             \
    symbol = NULL;                                                                                 \
    if (get_proc(#name, &symbol, version, PROC_LEGACY_STREAM, &found) != 0 || found != 0)          \
      symbol = NULL;                                                                               \
    if (!symbol && need == REQUIRED)                                                               \
      return nsai_library_fail_symbol(&nsai_driver_spec, &api->library, #name);                    \
    memcpy(&api->name, &symbol, sizeof api->name);                                                 \
  }
  NSAI_DRIVER_TABLE(RESOLVE)
#undef RESOLVE
  return NSA_OK;
}

#define RESOLVE(need, result, name, params)                                                        \
  {                                                                                                \
    void *symbol = dlsym(api->library.handle, #name);                                              \
    if (!symbol && need == REQUIRED) return nsai_library_fail_symbol(spec, &api->library, #name);  \
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

static nsa_status resolve_nvml(const nsai_library_spec *spec, nsai_nvml *api) {
  NSAI_NVML_TABLE(RESOLVE)
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
  return nsai_fail_foreign(NSA_E_CUDA, (int)result, "%.*s: %s (%d): %s", name_length(call), call,
                           name, (int)result, text);
}

nsa_status nsai_nvrtc_status(const nsai_nvrtc *nvrtc, nsai_nvrtc_result result, const char *call) {
  if (result == NSAI_NVRTC_SUCCESS) return NSA_OK;
  /* NVRTC only allocates host memory: this cause has a status of its own. */
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

nsa_status nsai_nvml_status(const nsai_nvml *nvml, nsai_nvml_result result, const char *call) {
  if (result == NSAI_NVML_SUCCESS) return NSA_OK;
  return nsai_fail(NSA_E_CUDA, "%.*s: %s (%d)", name_length(call), call,
                   nvml->nvmlErrorString(result), (int)result);
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

static nsa_status fail_forked(void) {
  return nsai_fail(NSA_E_FORKED,
                   "CUDA was initialised before fork() and cannot be used in the child: create "
                   "contexts after fork() only, or start the child by exec (multiprocessing: "
                   "\"spawn\"); `runtime.device: cpu` works.");
}

/* Distinguishes the causes of a cuInit failure: a machine without a GPU, a stub library for
 * linking, a broken driver, a child of a process that had initialised CUDA. */
static nsa_status init_driver(nsai_driver *api) {
  const bool before = opened.started;
  opened.started = true; /* a fork while cuInit runs counts, too */
  nsai_cu_result result = api->cuInit(0);
  opened.started = before || result == NSAI_CUDA_SUCCESS;
  if (result == NSAI_CUDA_ERROR_NOT_INITIALIZED) return fail_forked();
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

/* NVRTC opens libnvrtc-builtins by its bare name. The loader cannot find it when NVRTC came from
 * a folder that the loader does not know (a wheel), but finds a library that is already loaded.
 * A failure here is not final: NVRTC may still find the library. */
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

static nsa_status start_driver(void *table) {
  nsai_driver *api = table;
  NSAI_TRY(resolve_driver(api));
  return init_driver(api);
}

static nsa_status start_nvrtc(void *table) {
  nsai_nvrtc *api = table;
  int major = 0, minor = 0;
  preload_builtins(api->library.path, &api->tried);
  NSAI_TRY(resolve_nvrtc(&nsai_nvrtc_spec, api));
  NSAI_TRY(NSAI_NVRTC(api, nvrtcVersion(&major, &minor)));
  api->major = major;
  api->minor = minor;
  return NSA_OK;
}

static nsa_status start_cublaslt(void *table) {
  nsai_cublaslt *api = table;
  NSAI_TRY(resolve_cublaslt(&nsai_cublaslt_spec, api));
  api->version = (int64_t)api->cublasLtGetVersion();
  return NSA_OK;
}

static nsa_status start_nvml(void *table) { return resolve_nvml(&nvml_spec, table); }

static const nsai_library_kind driver_kind = { &nsai_driver_spec, sizeof(nsai_driver),
                                               offsetof(nsai_driver, library),
                                               offsetof(nsai_driver, tried), start_driver };
static const nsai_library_kind nvrtc_kind = { &nsai_nvrtc_spec, sizeof(nsai_nvrtc),
                                              offsetof(nsai_nvrtc, library),
                                              offsetof(nsai_nvrtc, tried), start_nvrtc };
static const nsai_library_kind cublaslt_kind = { &nsai_cublaslt_spec, sizeof(nsai_cublaslt),
                                                 offsetof(nsai_cublaslt, library),
                                                 offsetof(nsai_cublaslt, tried), start_cublaslt };
static const nsai_library_kind nvml_kind = { &nvml_spec, sizeof(nsai_nvml),
                                             offsetof(nsai_nvml, library),
                                             offsetof(nsai_nvml, tried), start_nvml };

static void *handle_of(node *n) {
  return ((nsai_library *)(void *)(n->api + n->kind->library_at))->handle;
}

/* The table of the same file if it was opened before, else NULL. Lock held. */
static node *find_known(node *made) {
  for (node *known = opened.first; known; known = known->next)
    if (known->kind == made->kind && handle_of(known) == handle_of(made)) return known;
  return NULL;
}

nsa_status nsai_library_open_kind(const nsai_library_kind *kind, const nsai_library_query *query,
                                  nsai_logger *logger, const void **out) {
  nsa_status status = NSA_OK;
  *out = NULL;
  node *made = calloc(1, sizeof *made + kind->size);
  if (!made) return nsai_fail_nomem(kind->spec->what, sizeof *made + kind->size);
  made->kind = kind;
  nsai_library *library = (void *)(made->api + kind->library_at);
  nsai_tried *tried = (void *)(made->api + kind->tried_at);
  pthread_once(&opened.watched, watch_forks);
  pthread_mutex_lock(&opened.lock);
  status = nsai_library_open(kind->spec, query, tried, library);
  node *known = status == NSA_OK ? find_known(made) : NULL;
  if (status == NSA_OK && !known) status = kind->start(made->api);
  if (status == NSA_OK && !known) {
    made->next = opened.first;
    opened.first = known = made;
  }
  pthread_mutex_unlock(&opened.lock);
  if (known) *out = known->api;
  if (known != made && library->handle) dlclose(library->handle);
  if (!known || known == made) log_tried(logger, tried);
  if (known != made) free(made);
  NSAI_TRY(status);
  return NSA_OK;
}

nsa_status nsai_driver_open(const char *path, nsai_logger *logger, const nsai_driver **out) {
  const nsai_library_query query = { path, 0 };
  const void *table;
  *out = NULL;
  if (opened.forked) return fail_forked();
  nsa_status status = nsai_library_open_kind(&driver_kind, &query, logger, &table);
  *out = table;
  return status;
}

nsa_status nsai_nvrtc_open(const nsai_library_query *query, nsai_logger *logger,
                           const nsai_nvrtc **out) {
  const void *table;
  nsa_status status = nsai_library_open_kind(&nvrtc_kind, query, logger, &table);
  *out = table;
  return status;
}

nsa_status nsai_cublaslt_open(const nsai_library_query *query, nsai_logger *logger,
                              const nsai_cublaslt **out) {
  const void *table;
  nsa_status status = nsai_library_open_kind(&cublaslt_kind, query, logger, &table);
  *out = table;
  return status;
}

nsa_status nsai_nvml_open(nsai_logger *logger, const nsai_nvml **out) {
  const nsai_library_query query = { 0 };
  const void *table;
  nsa_status status = nsai_library_open_kind(&nvml_kind, &query, logger, &table);
  *out = table;
  return status;
}
