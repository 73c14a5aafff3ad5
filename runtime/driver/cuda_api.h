/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * NVIDIA's libraries (the driver, NVRTC, cuBLASLt and NVML), opened at run time. One table per
 * library declares each function once: X(need, result, name, version, parameters). All other
 * code calls through the tables and never uses the loader.
 *
 * An opened table lives as long as the process and does not change: other threads may be running
 * its functions, and unloading a driver is not safe. A failed open has no side effects and may
 * be repeated with another path.
 */
#ifndef NSAI_DRIVER_CUDA_API_H
#define NSAI_DRIVER_CUDA_API_H

#include "base/log.h"
#include "driver/cuda_types.h"
#include "driver/library.h"

/* clang-format off */

/* `version` is the CUDA version that introduced this form of the function, as cuGetProcAddress
 * expects it. Thus a newer driver does not return a newer form with other parameters. */
#define NSAI_DRIVER_TABLE(X)                                                                       \
  X(REQUIRED, cuGetErrorName, 6000, (nsai_cu_result, const char **))                               \
  X(REQUIRED, cuGetErrorString, 6000, (nsai_cu_result, const char **))                             \
  X(REQUIRED, cuInit, 2000, (unsigned flags))                                                      \
  X(REQUIRED, cuDriverGetVersion, 2020, (int *version))                                            \
  X(REQUIRED, cuDeviceGetCount, 2000, (int *count))                                                \
  X(REQUIRED, cuDeviceGet, 2000, (nsai_cu_device *, int ordinal))                                  \
  X(REQUIRED, cuDeviceGetName, 2000, (char *name, int size, nsai_cu_device))                       \
  X(REQUIRED, cuDeviceGetUuid, 11040, (nsai_cu_uuid *, nsai_cu_device))                            \
  X(REQUIRED, cuDeviceGetPCIBusId, 4010, (char *id, int size, nsai_cu_device))                     \
  X(REQUIRED, cuDeviceGetByPCIBusId, 4010, (nsai_cu_device *, const char *id))                     \
  X(REQUIRED, cuDeviceGetAttribute, 2000, (int *value, int attribute, nsai_cu_device))             \
  X(REQUIRED, cuDeviceTotalMem, 3020, (size_t *bytes, nsai_cu_device))                             \
  X(REQUIRED, cuDevicePrimaryCtxRetain, 7000, (nsai_cu_context *, nsai_cu_device))                 \
  X(REQUIRED, cuDevicePrimaryCtxRelease, 11000, (nsai_cu_device))                                  \
  X(REQUIRED, cuCtxGetCurrent, 4000, (nsai_cu_context *))                                          \
  X(OPTIONAL, cuCtxSetCurrent, 4000, (nsai_cu_context))                                            \
  X(REQUIRED, cuCtxPushCurrent, 4000, (nsai_cu_context))                                           \
  X(REQUIRED, cuCtxPopCurrent, 4000, (nsai_cu_context *))                                          \
  X(REQUIRED, cuCtxGetDevice, 2000, (nsai_cu_device *))                                            \
  X(REQUIRED, cuLibraryLoadData, 12000,                                                            \
    (nsai_cu_library *, const void *image, void *jit_options, void **jit_values,                   \
     unsigned jit_count, void *options, void **values, unsigned count))                            \
  X(REQUIRED, cuLibraryUnload, 12000, (nsai_cu_library))                                           \
  X(REQUIRED, cuLibraryGetKernel, 12000, (nsai_cu_kernel *, nsai_cu_library, const char *name))    \
  X(REQUIRED, cuKernelGetFunction, 12000, (nsai_cu_function *, nsai_cu_kernel))                    \
  X(REQUIRED, cuKernelSetAttribute, 12000,                                                         \
    (int attribute, int value, nsai_cu_kernel, nsai_cu_device))                                    \
  X(REQUIRED, cuLaunchKernelEx, 11060,                                                             \
    (const nsai_cu_launch_config *, nsai_cu_function, void **params, void **extra))                \
  X(REQUIRED, cuTensorMapEncodeTiled, 12000,                                                       \
    (void *map, int32_t type, uint32_t rank, void *address, const uint64_t *extents,               \
     const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int32_t interleave,      \
     int32_t swizzle, int32_t promotion, int32_t fill))                                            \
  X(REQUIRED, cuMemAlloc, 3020, (nsai_cu_ptr *, size_t bytes))                                     \
  X(REQUIRED, cuMemFree, 3020, (nsai_cu_ptr))                                                      \
  X(REQUIRED, cuMemcpyHtoDAsync, 3020,                                                             \
    (nsai_cu_ptr dst, const void *src, size_t bytes, nsai_cu_stream))                              \
  X(REQUIRED, cuMemcpyDtoHAsync, 3020,                                                             \
    (void *dst, nsai_cu_ptr src, size_t bytes, nsai_cu_stream))                                    \
  X(REQUIRED, cuMemHostAlloc, 2020, (void **, size_t bytes, unsigned flags))                       \
  X(REQUIRED, cuMemFreeHost, 2000, (void *))                                                       \
  X(REQUIRED, cuMemcpyDtoDAsync, 3020,                                                             \
    (nsai_cu_ptr dst, nsai_cu_ptr src, size_t bytes, nsai_cu_stream))                              \
  X(REQUIRED, cuMemcpy2DAsync, 3020, (const nsai_cu_copy_2d *, nsai_cu_stream))                    \
  X(OPTIONAL, cuMemsetD8Async, 3020,                                                               \
    (nsai_cu_ptr, unsigned char value, size_t count, nsai_cu_stream))                              \
  X(OPTIONAL, cuDeviceCanAccessPeer, 4000, (int *can, nsai_cu_device, nsai_cu_device peer))        \
  X(OPTIONAL, cuCtxEnablePeerAccess, 4000, (nsai_cu_context peer, unsigned flags))                 \
  X(OPTIONAL, cuIpcGetMemHandle, 4010, (nsai_cu_ipc_handle *, nsai_cu_ptr))                        \
  X(OPTIONAL, cuIpcOpenMemHandle, 11000,                                                           \
    (nsai_cu_ptr *, nsai_cu_ipc_handle, unsigned flags))                                           \
  X(OPTIONAL, cuIpcCloseMemHandle, 4010, (nsai_cu_ptr))                                            \
  X(REQUIRED, cuPointerGetAttribute, 4000, (void *value, int attribute, nsai_cu_ptr))              \
  X(REQUIRED, cuStreamCreate, 2000, (nsai_cu_stream *, unsigned flags))                            \
  X(OPTIONAL, cuStreamCreateWithPriority, 5050, (nsai_cu_stream *, unsigned flags, int priority))  \
  X(OPTIONAL, cuCtxGetStreamPriorityRange, 5050, (int *least, int *greatest))                      \
  X(REQUIRED, cuStreamDestroy, 4000, (nsai_cu_stream))                                             \
  X(REQUIRED, cuStreamSynchronize, 2000, (nsai_cu_stream))                                         \
  X(REQUIRED, cuStreamWaitEvent, 3020, (nsai_cu_stream, nsai_cu_event, unsigned flags))            \
  X(REQUIRED, cuStreamQuery, 2000, (nsai_cu_stream))                                               \
  X(REQUIRED, cuStreamIsCapturing, 10000, (nsai_cu_stream, int32_t *status))                       \
  X(OPTIONAL, cuStreamBeginCapture, 10010, (nsai_cu_stream, int32_t mode))                         \
  X(OPTIONAL, cuStreamEndCapture, 10000, (nsai_cu_stream, nsai_cu_graph *))                        \
  X(REQUIRED, cuEventCreate, 2000, (nsai_cu_event *, unsigned flags))                              \
  X(REQUIRED, cuEventDestroy, 4000, (nsai_cu_event))                                               \
  X(REQUIRED, cuEventRecord, 2000, (nsai_cu_event, nsai_cu_stream))                                \
  X(REQUIRED, cuEventQuery, 2000, (nsai_cu_event))                                                 \
  X(REQUIRED, cuEventSynchronize, 2000, (nsai_cu_event))                                           \
  X(REQUIRED, cuEventElapsedTime, 2000, (float *ms, nsai_cu_event start, nsai_cu_event end))       \
  X(OPTIONAL, cuGraphInstantiateWithFlags, 11040,                                                  \
    (nsai_cu_graph_exec *, nsai_cu_graph, unsigned long long flags))                               \
  X(OPTIONAL, cuGraphLaunch, 10000, (nsai_cu_graph_exec, nsai_cu_stream))                          \
  X(OPTIONAL, cuGraphExecDestroy, 10000, (nsai_cu_graph_exec))                                     \
  X(OPTIONAL, cuGraphDestroy, 10000, (nsai_cu_graph))                                              \
  X(REQUIRED, cuThreadExchangeStreamCaptureMode, 10010, (int32_t *mode))

#define NSAI_NVRTC_TABLE(X)                                                                        \
  X(REQUIRED, const char *, nvrtcGetErrorString, (nsai_nvrtc_result))                              \
  X(REQUIRED, nsai_nvrtc_result, nvrtcVersion, (int *major, int *minor))                           \
  X(REQUIRED, nsai_nvrtc_result, nvrtcGetNumSupportedArchs, (int *count))                          \
  X(REQUIRED, nsai_nvrtc_result, nvrtcGetSupportedArchs, (int *archs))                             \
  X(REQUIRED, nsai_nvrtc_result, nvrtcCreateProgram,                                               \
    (nsai_nvrtc_program *, const char *source, const char *name, int headers,                      \
     const char *const *texts, const char *const *names))                                          \
  X(REQUIRED, nsai_nvrtc_result, nvrtcDestroyProgram, (nsai_nvrtc_program *))                      \
  X(REQUIRED, nsai_nvrtc_result, nvrtcCompileProgram,                                              \
    (nsai_nvrtc_program, int count, const char *const *options))                                   \
  X(REQUIRED, nsai_nvrtc_result, nvrtcGetCUBINSize, (nsai_nvrtc_program, size_t *))                \
  X(REQUIRED, nsai_nvrtc_result, nvrtcGetCUBIN, (nsai_nvrtc_program, char *))                      \
  X(REQUIRED, nsai_nvrtc_result, nvrtcGetPTXSize, (nsai_nvrtc_program, size_t *))                  \
  X(REQUIRED, nsai_nvrtc_result, nvrtcGetPTX, (nsai_nvrtc_program, char *))                        \
  X(REQUIRED, nsai_nvrtc_result, nvrtcGetProgramLogSize, (nsai_nvrtc_program, size_t *))           \
  X(REQUIRED, nsai_nvrtc_result, nvrtcGetProgramLog, (nsai_nvrtc_program, char *))

#define NSAI_CUBLASLT_TABLE(X)                                                                     \
  X(REQUIRED, size_t, cublasLtGetVersion, (void))                                                  \
  X(REQUIRED, const char *, cublasLtGetStatusName, (nsai_cublas_status))                           \
  X(REQUIRED, const char *, cublasLtGetStatusString, (nsai_cublas_status))                         \
  X(REQUIRED, nsai_cublas_status, cublasLtCreate, (nsai_cublaslt_handle *))                        \
  X(REQUIRED, nsai_cublas_status, cublasLtDestroy, (nsai_cublaslt_handle))                         \
  X(REQUIRED, nsai_cublas_status, cublasLtMatmul,                                                  \
    (nsai_cublaslt_handle, nsai_cublaslt_desc, const void *alpha, const void *a,                   \
     nsai_cublaslt_layout, const void *b, nsai_cublaslt_layout, const void *beta, const void *c,   \
     nsai_cublaslt_layout, void *d, nsai_cublaslt_layout, const nsai_cublaslt_algo *,              \
     void *workspace, size_t workspace_bytes, nsai_cu_stream))                                     \
  X(REQUIRED, nsai_cublas_status, cublasLtMatmulAlgoGetHeuristic,                                  \
    (nsai_cublaslt_handle, nsai_cublaslt_desc, nsai_cublaslt_layout a, nsai_cublaslt_layout b,     \
     nsai_cublaslt_layout c, nsai_cublaslt_layout d, nsai_cublaslt_pref, int wanted,               \
     nsai_cublaslt_heuristic *, int *found))                                                       \
  X(REQUIRED, nsai_cublas_status, cublasLtMatmulDescCreate,                                        \
    (nsai_cublaslt_desc *, int32_t compute_type, int32_t scale_type))                              \
  X(REQUIRED, nsai_cublas_status, cublasLtMatmulDescDestroy, (nsai_cublaslt_desc))                 \
  X(REQUIRED, nsai_cublas_status, cublasLtMatmulDescSetAttribute,                                  \
    (nsai_cublaslt_desc, int32_t attribute, const void *value, size_t bytes))                      \
  X(REQUIRED, nsai_cublas_status, cublasLtMatrixLayoutCreate,                                      \
    (nsai_cublaslt_layout *, int32_t type, uint64_t rows, uint64_t columns, int64_t leading))      \
  X(REQUIRED, nsai_cublas_status, cublasLtMatrixLayoutDestroy, (nsai_cublaslt_layout))             \
  X(REQUIRED, nsai_cublas_status, cublasLtMatrixLayoutSetAttribute,                                \
    (nsai_cublaslt_layout, int32_t attribute, const void *value, size_t bytes))                    \
  X(REQUIRED, nsai_cublas_status, cublasLtMatmulPreferenceCreate, (nsai_cublaslt_pref *))          \
  X(REQUIRED, nsai_cublas_status, cublasLtMatmulPreferenceDestroy, (nsai_cublaslt_pref))           \
  X(REQUIRED, nsai_cublas_status, cublasLtMatmulPreferenceSetAttribute,                            \
    (nsai_cublaslt_pref, int32_t attribute, const void *value, size_t bytes))

#define NSAI_NVML_TABLE(X)                                                                         \
  X(REQUIRED, const char *, nvmlErrorString, (nsai_nvml_result))                                   \
  X(REQUIRED, nsai_nvml_result, nvmlInit_v2, (void))                                               \
  X(REQUIRED, nsai_nvml_result, nvmlShutdown, (void))                                              \
  X(REQUIRED, nsai_nvml_result, nvmlDeviceGetHandleByPciBusId_v2,                                  \
    (const char *id, nsai_nvml_device *))                                                          \
  X(REQUIRED, nsai_nvml_result, nvmlDeviceGetClockInfo,                                            \
    (nsai_nvml_device, int32_t clock, unsigned *mhz))                                              \
  X(REQUIRED, nsai_nvml_result, nvmlDeviceGetTemperature,                                          \
    (nsai_nvml_device, int32_t sensor, unsigned *celsius))                                         \
  X(REQUIRED, nsai_nvml_result, nvmlDeviceGetPowerUsage, (nsai_nvml_device, unsigned *milliwatts))

/* clang-format on */

#define NSAI_DRIVER_MEMBER(need, name, version, params) nsai_cu_result(*name) params;
#define NSAI_LIBRARY_MEMBER(need, result, name, params) result(*name) params;

/* Functions marked OPTIONAL may be NULL: tests and benchmarks call them, and ranks/peers.c, which does
 * without. `version` is in the vendor's notation: 13000 is CUDA 13.0. */
typedef struct nsai_driver {
  NSAI_DRIVER_TABLE(NSAI_DRIVER_MEMBER)
  nsai_library library;
  nsai_tried tried;
  int32_t version; /* the newest CUDA version that the driver supports */
} nsai_driver;

typedef struct nsai_nvrtc {
  NSAI_NVRTC_TABLE(NSAI_LIBRARY_MEMBER)
  nsai_library library;
  nsai_tried tried;
  int32_t major, minor;
} nsai_nvrtc;

typedef struct nsai_cublaslt {
  NSAI_CUBLASLT_TABLE(NSAI_LIBRARY_MEMBER)
  nsai_library library;
  nsai_tried tried;
  int64_t version; /* 130000 is 13.0.0 */
} nsai_cublaslt;

typedef struct nsai_nvml {
  NSAI_NVML_TABLE(NSAI_LIBRARY_MEMBER)
  nsai_library library;
  nsai_tried tried;
} nsai_nvml;

#undef NSAI_DRIVER_MEMBER
#undef NSAI_LIBRARY_MEMBER

/* How libraries differ: where the table keeps its members, and what follows once the file is
 * open. */
typedef struct nsai_library_kind {
  const nsai_library_spec *spec;
  size_t size, library_at, tried_at; /* of the table; offsets of members in it */
  nsa_status (*start)(void *api);    /* resolves the symbols and queries the version */
} nsai_library_kind;

/* Opens the table of a library, once for each file: for the functions below, and nccl.c. */
nsa_status nsai_library_open_kind(const nsai_library_kind *kind, const nsai_library_query *query,
                                  nsai_logger *logger, const void **out);

/* A library has no function of this name. */
nsa_status nsai_library_fail_symbol(const nsai_library_spec *spec, const nsai_library *library,
                                    const char *name);

/* Where Python's wheels and the toolkit have their libraries: members of nsai_library_spec. */
extern const char *const nsai_wheel_folders[];
extern const char *const nsai_toolkit_folders[];

extern const nsai_library_spec nsai_driver_spec, nsai_nvrtc_spec, nsai_cublaslt_spec;

/* Opens the driver and initialises it (cuInit, about 130 ms the first time).
 *
 * path    explicit path of libcuda, or NULL.
 * logger  may be NULL; receives the paths tried at TRACE.
 * out     static storage of the process, never freed.
 *
 * NSA_E_NO_DRIVER (missing, too old, a stub, a symbol missing), NSA_E_NO_DEVICE (the driver sees no
 * GPU), NSA_E_FORKED (this is a child of a process that had initialised CUDA), NSA_E_NOMEM.
 * Thread-safe, as are the three below, which work in a child, too. */
nsa_status nsai_driver_open(const char *path, nsai_logger *logger, const nsai_driver **out);

/* Opens NVRTC, and its builtins library first. `query->max_major` excludes an NVRTC whose cubins
 * the driver could not load. NSA_E_NO_COMPILER, NSA_E_NOMEM. */
nsa_status nsai_nvrtc_open(const nsai_library_query *query, nsai_logger *logger,
                           const nsai_nvrtc **out);

/* Opens cuBLASLt. NSA_E_NO_CUBLASLT, NSA_E_NOMEM. */
nsa_status nsai_cublaslt_open(const nsai_library_query *query, nsai_logger *logger,
                              const nsai_cublaslt **out);

/* Opens NVML, which comes with the driver; does not initialise it. NSA_E_NO_DRIVER, NSA_E_NOMEM. */
nsa_status nsai_nvml_open(nsai_logger *logger, const nsai_nvml **out);

/* Refuses a driver that cannot load cubins of a toolkit of this major version: a cubin needs a
 * driver of the same major version or newer. NSA_E_NO_DRIVER. */
nsa_status nsai_driver_check_major(int32_t driver_version, int32_t toolkit_major);

/* Converts a foreign code to a status with the call's name and the vendor's text. No other code
 * does this. `call` is the text of the call; its name ends at the parenthesis. */
nsa_status nsai_driver_status(const nsai_driver *driver, nsai_cu_result result, const char *call);
nsa_status nsai_nvrtc_status(const nsai_nvrtc *nvrtc, nsai_nvrtc_result result, const char *call);
nsa_status nsai_cublaslt_status(const nsai_cublaslt *lt, nsai_cublas_status result,
                                const char *call);
nsa_status nsai_nvml_status(const nsai_nvml *nvml, nsai_nvml_result result, const char *call);

/* NSAI_TRY(NSAI_CUDA(driver, cuMemFree(p))) */
#define NSAI_CUDA(driver, call) nsai_driver_status((driver), (driver)->call, #call)
#define NSAI_NVRTC(nvrtc, call) nsai_nvrtc_status((nvrtc), (nvrtc)->call, #call)
#define NSAI_CUBLASLT(lt, call) nsai_cublaslt_status((lt), (lt)->call, #call)
#define NSAI_NVML(nvml, call) nsai_nvml_status((nvml), (nvml)->call, #call)

#endif /* NSAI_DRIVER_CUDA_API_H */
