/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The few types and constants of NVIDIA's binary interfaces that the library uses, declared here
 * so that it builds without CUDA headers. Names are the vendor's: types in lower case with
 * nsai_cu_, constants with the prefix NSAI_. Assertions check the sizes that the drivers rely
 * on.
 */
#ifndef NSAI_DRIVER_CUDA_TYPES_H
#define NSAI_DRIVER_CUDA_TYPES_H

#include <nsa/base.h>

/* ---- driver ---- */

typedef int32_t nsai_cu_result; /* CUresult; 0 is success */
typedef int32_t nsai_cu_device; /* ordinal after CUDA_VISIBLE_DEVICES */
typedef uint64_t nsai_cu_ptr;   /* device address */
typedef struct CUctx_st *nsai_cu_context;
typedef struct CUfunc_st *nsai_cu_function;
typedef struct CUkern_st *nsai_cu_kernel;
typedef struct CUlib_st *nsai_cu_library;
typedef struct CUevent_st *nsai_cu_event;
typedef struct CUgraph_st *nsai_cu_graph;
typedef struct CUgraphExec_st *nsai_cu_graph_exec;
typedef nsa_stream nsai_cu_stream;

enum {
  NSAI_CUDA_SUCCESS = 0,
  NSAI_CUDA_ERROR_OUT_OF_MEMORY = 2,
  NSAI_CUDA_ERROR_NOT_INITIALIZED = 3,
  NSAI_CUDA_ERROR_STUB_LIBRARY = 34,
  NSAI_CUDA_ERROR_NO_DEVICE = 100,
  NSAI_CUDA_ERROR_INVALID_IMAGE = 200,
  NSAI_CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  NSAI_CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  NSAI_CUDA_ERROR_INVALID_SOURCE = 300,
  NSAI_CUDA_ERROR_NOT_FOUND = 500,
  NSAI_CUDA_ERROR_NOT_READY = 600,
  NSAI_CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704
};

/* CUdevice_attribute */
enum {
  NSAI_CU_DEVICE_SM_COUNT = 16,
  NSAI_CU_DEVICE_COMPUTE_MODE = 20,
  NSAI_CU_DEVICE_L2_BYTES = 38,
  NSAI_CU_DEVICE_CC_MAJOR = 75,
  NSAI_CU_DEVICE_CC_MINOR = 76,
  NSAI_CU_DEVICE_MAX_SHARED_PER_BLOCK_OPTIN = 97
};
enum { NSAI_CU_COMPUTEMODE_PROHIBITED = 2 };

/* CUfunction_attribute */
enum { NSAI_CU_FUNC_MAX_DYNAMIC_SHARED_BYTES = 8, NSAI_CU_FUNC_NON_PORTABLE_CLUSTER = 14 };

/* CUpointer_attribute, CUmemorytype */
enum { NSAI_CU_POINTER_MEMORY_TYPE = 2 };
enum { NSAI_CU_MEMORY_HOST = 1, NSAI_CU_MEMORY_DEVICE = 2 };

/* CUDA_MEMCPY2D: one side of the copy, and its extent in bytes and rows */
typedef struct nsai_cu_copy_side {
  size_t x, y;
  int32_t type; /* NSAI_CU_MEMORY_DEVICE */
  int32_t reserved;
  void *host;
  nsai_cu_ptr device;
  void *array;
  size_t pitch;
} nsai_cu_copy_side;
typedef struct nsai_cu_copy_2d {
  nsai_cu_copy_side from, to;
  size_t width, height;
} nsai_cu_copy_2d;
_Static_assert(sizeof(nsai_cu_copy_2d) == 128, "CUDA_MEMCPY2D");

/* CUipcMemHandle; CUipcMem_flags */
typedef struct nsai_cu_ipc_handle {
  char bytes[64];
} nsai_cu_ipc_handle;
enum { NSAI_CU_IPC_LAZY_PEER_ACCESS = 1 };

enum { NSAI_CU_STREAM_NON_BLOCKING = 1 };
enum { NSAI_CU_EVENT_DEFAULT = 0, NSAI_CU_EVENT_NO_TIMING = 2 };

/* CUstreamCaptureMode */
enum { NSAI_CU_CAPTURE_THREAD_LOCAL = 1, NSAI_CU_CAPTURE_RELAXED = 2 };

/* CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
 * CUtensorMapFloatOOBfill */
enum { NSAI_CU_TENSOR_MAP_F16 = 6, NSAI_CU_TENSOR_MAP_BF16 = 9 };
enum { NSAI_CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum { NSAI_CU_TENSOR_MAP_SWIZZLE_128B = 3 };
enum { NSAI_CU_TENSOR_MAP_PROMOTE_128B = 2 };
enum { NSAI_CU_TENSOR_MAP_FILL_ZERO = 0 };

/* CUlaunchAttributeID: the kernel may begin before the previous one in the stream has ended. */
enum { NSAI_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6 };

/* CUlaunchAttribute */
typedef struct nsai_cu_launch_attribute {
  int32_t id;
  int32_t reserved;
  union {
    int32_t allowed;
    char bytes[64];
  } value;
} nsai_cu_launch_attribute;
_Static_assert(sizeof(nsai_cu_launch_attribute) == 72, "CUlaunchAttribute is 72 bytes");

typedef struct nsai_cu_launch_config {
  uint32_t grid_x, grid_y, grid_z;    /* blocks */
  uint32_t block_x, block_y, block_z; /* threads */
  uint32_t shared_bytes;              /* dynamic shared memory per block */
  nsai_cu_stream stream;
  nsai_cu_launch_attribute *attributes;
  uint32_t attribute_count;
} nsai_cu_launch_config;
_Static_assert(sizeof(nsai_cu_launch_config) == 56, "CUlaunchConfig is 56 bytes");

typedef struct nsai_cu_uuid {
  unsigned char bytes[16];
} nsai_cu_uuid;

/* ---- NVRTC ---- */

typedef int32_t nsai_nvrtc_result; /* nvrtcResult; 0 is success */
typedef struct _nvrtcProgram *nsai_nvrtc_program;

enum { NSAI_NVRTC_SUCCESS = 0, NSAI_NVRTC_OUT_OF_MEMORY = 1, NSAI_NVRTC_COMPILATION = 6 };

/* ---- NVML ---- */

typedef int32_t nsai_nvml_result; /* nvmlReturn_t */
typedef struct nvmlDevice_st *nsai_nvml_device;

enum { NSAI_NVML_SUCCESS = 0 };
enum { NSAI_NVML_CLOCK_SM = 1, NSAI_NVML_CLOCK_MEM = 2 }; /* nvmlClockType_t */
enum { NSAI_NVML_TEMPERATURE_GPU = 0 };                   /* nvmlTemperatureSensors_t */

/* ---- cuBLASLt ---- */

typedef int32_t nsai_cublas_status; /* cublasStatus_t; 0 is success */
typedef struct cublasLtContext *nsai_cublaslt_handle;
typedef void *nsai_cublaslt_desc;   /* cublasLtMatmulDesc_t */
typedef void *nsai_cublaslt_layout; /* cublasLtMatrixLayout_t */
typedef void *nsai_cublaslt_pref;   /* cublasLtMatmulPreference_t */

typedef struct nsai_cublaslt_algo {
  uint64_t opaque[8];
} nsai_cublaslt_algo;

typedef struct nsai_cublaslt_heuristic {
  nsai_cublaslt_algo algo;
  size_t workspace_bytes;
  nsai_cublas_status state; /* 0: usable */
  float waves;
  int32_t reserved[4];
} nsai_cublaslt_heuristic;
_Static_assert(sizeof(nsai_cublaslt_heuristic) == 96, "cublasLtMatmulHeuristicResult_t is 96 B");

enum { NSAI_CUDA_R_32F = 0, NSAI_CUDA_R_16F = 2, NSAI_CUDA_R_16BF = 14 }; /* cudaDataType */
enum { NSAI_CUBLAS_COMPUTE_32F = 68 };
enum { NSAI_CUBLAS_OP_N = 0, NSAI_CUBLAS_OP_T = 1 };

/* cublasLtMatmulDescAttributes_t */
enum {
  NSAI_CUBLASLT_DESC_TRANSA = 3,
  NSAI_CUBLASLT_DESC_TRANSB = 4,
};

/* cublasLtMatrixLayoutAttribute_t */
enum { NSAI_CUBLASLT_LAYOUT_BATCH_COUNT = 5, NSAI_CUBLASLT_LAYOUT_BATCH_STRIDE = 6 };

/* cublasLtMatmulPreferenceAttributes_t */
enum {
  NSAI_CUBLASLT_PREF_WORKSPACE_BYTES = 1,
  NSAI_CUBLASLT_PREF_REDUCTIONS = 3, /* u32: a mask of reduction schemes */
  NSAI_CUBLASLT_PREF_ALIGN_A = 5,
  NSAI_CUBLASLT_PREF_ALIGN_B = 6,
  NSAI_CUBLASLT_PREF_ALIGN_C = 7,
  NSAI_CUBLASLT_PREF_ALIGN_D = 8
};

/* cublasLtReductionScheme_t: k is not split. */
enum { NSAI_CUBLASLT_REDUCTION_NONE = 0 };

#endif /* NSAI_DRIVER_CUDA_TYPES_H */
