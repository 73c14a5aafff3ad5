/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Basic types of libnsa: version, status codes, tensors, streams.
 *
 * Rules that hold for every public header:
 * - Handles are opaque. `_create` gives one, `_destroy` takes it back and accepts NULL.
 * - Parameter structs carry `struct_size`, set by their `*_INIT` macro; a field left zero has its
 *   default. They need to live only during the call. Enumerations begin at 1, so that 0 is free for
 *   the default (but for status codes, branches and log levels). Where the default is not zero and zero
 *   is a value, NSA_NONE says zero; the fields that take it say so.
 * - Structs with `struct_size` grow by appended fields. A struct of an older header is taken with the
 *   fields that it lacks at zero. A struct of a newer header is taken while the fields that the loaded
 *   library lacks are zero; else the call returns NSA_E_VERSION. Results are written as far as the
 *   caller's struct reaches. All elements of an array have one size. Structs without `struct_size`
 *   never change.
 * - Tensors are borrowed for the call (a run call: until the stream has passed it); the library
 *   never owns them.
 * - Every function that can fail returns an nsa_status; nsa_last_error() has the sentence. Nothing
 *   exits or aborts; nothing prints but the log, to stderr, when the host gave no callback. Any
 *   function may return NSA_E_INTERNAL, which is a bug of the library: please report it.
 */
#ifndef NSA_BASE_H
#define NSA_BASE_H

#include <stddef.h>
#include <stdint.h>

/* The version lives here and nowhere else; the build reads it from these lines. */
#define NSA_VERSION_MAJOR 0
#define NSA_VERSION_MINOR 2
#define NSA_VERSION_PATCH 0
#define NSA_VERSION                                                                                \
  (((uint32_t)NSA_VERSION_MAJOR << 16) | ((uint32_t)NSA_VERSION_MINOR << 8) |                      \
   (uint32_t)NSA_VERSION_PATCH)

#if defined(__GNUC__) || defined(__clang__)
#define NSA_API __attribute__((visibility("default")))
#else
#define NSA_API
#endif

/* A real zero in a field whose 0 stands for another default: problem.{max_kv_tokens, max_kv_len, max_seqs,
 * max_q_len, page_size}, options.log_level. */
#define NSA_NONE (-1)

/* A struct with its size set and every other field zero. Each struct has a macro made of this one. */
#ifdef __cplusplus
template <class nsa_struct> inline nsa_struct nsa_sized() {
  nsa_struct empty = nsa_struct();
  empty.struct_size = static_cast<uint32_t>(sizeof(nsa_struct));
  return empty;
}
#define NSA_INIT(type) nsa_sized<type>()
#else
#define NSA_INIT(type)                                                                             \
  { .struct_size = (uint32_t)sizeof(type) }
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Fixed width, so that the ABI is the same for C, Rust, Go and Python. 0 is success. */
typedef int32_t nsa_status;

/* The one list of status codes: X(name, value, meaning). */
#define NSA_STATUS_LIST(X)                                                                         \
  X(NSA_OK, 0, "success")                                                                          \
  X(NSA_E_ARG, 1, "bad argument: pointer, shape, stride or dtype")                                 \
  X(NSA_E_CONFIG, 2, "the configuration is invalid")                                               \
  X(NSA_E_UNSUPPORTED, 3, "a valid request that no kernel can serve")                              \
  X(NSA_E_NO_DRIVER, 4, "no usable NVIDIA driver")                                                 \
  X(NSA_E_NO_DEVICE, 5, "no usable GPU")                                                           \
  X(NSA_E_NO_COMPILER, 6, "NVRTC cannot be opened")                                                \
  X(NSA_E_COMPILE, 7, "a kernel does not compile")                                                 \
  X(NSA_E_CUDA, 8, "a CUDA call failed")                                                           \
  X(NSA_E_NOMEM, 9, "out of host memory")                                                          \
  X(NSA_E_WORKSPACE, 10, "the workspace is missing, too small or misaligned")                      \
  X(NSA_E_CACHE, 11, "a cache operation failed")                                                   \
  X(NSA_E_NOT_PREPARED, 12, "would have to compile, and policy forbids it")                        \
  X(NSA_E_CANCELLED, 13, "cancelled by the progress callback")                                     \
  X(NSA_E_VERIFY, 14, "a kernel computed a wrong result")                                          \
  X(NSA_E_VERSION, 15, "a struct of another version")                                              \
  X(NSA_E_NO_CUBLASLT, 16, "cuBLASLt cannot be opened")                                            \
  X(NSA_E_IO, 17, "a file cannot be read or written")                                              \
  X(NSA_E_FORKED, 18, "the context or CUDA is older than this fork()")                             \
  X(NSA_E_INTERNAL, 99, "internal error")

enum {
#define NSA_STATUS_ENUM(name, value, text) name = value,
  NSA_STATUS_LIST(NSA_STATUS_ENUM)
#undef NSA_STATUS_ENUM
};

/* The name of a status ("NSA_E_ARG"), or "NSA_E_UNKNOWN". Static storage. Thread-safe. */
NSA_API const char *nsa_status_name(nsa_status status);

/* One sentence on what a status means in general. Static storage. Thread-safe. */
NSA_API const char *nsa_status_text(nsa_status status);

/* The detail of this thread's last failed call: what was wrong, where, and the remedy. Mostly one
 * sentence; diagnostics of a configuration and compiler logs have several lines. Valid until this thread's next call into the library, so
 * read it right after the failure: a call that succeeds may have met and overcome a failure of its
 * own, and leaves the sentence here. "" when nothing has failed yet. Never NULL. */
NSA_API const char *nsa_last_error(void);

/* The internal frames that this failure passed, innermost first, a line "at file:line function" each:
 * for reports of a bug. Valid as nsa_last_error's text. "" when there are none. Never NULL. */
NSA_API const char *nsa_last_trace(void);

/* The version of the library that is loaded, as NSA_VERSION. */
NSA_API uint32_t nsa_version(void);

/* One JSON object: version, compiler, build type, digest of the embedded kernel templates. Static
 * storage. */
NSA_API const char *nsa_build_info(void);

/* The same tag as the driver's CUstream and the runtime's cudaStream_t: both can be passed without
 * a cast and without a CUDA header here. NULL is the default stream. Ignored on the CPU device. */
typedef struct CUstream_st *nsa_stream;

enum { NSA_F16 = 1, NSA_BF16 = 2, NSA_F32 = 3, NSA_I32 = 4, NSA_I64 = 5 };

#define NSA_MAX_DIMS 5

/* A borrowed view of memory. `data == NULL` means "absent". Strides count elements, as in DLPack;
 * the last stride is 1, the others are free. f16 and bf16 rows that kernels copy (q, k, v, o, o_branch,
 * k_cmp, v_cmp, pe) need `data` and every stride but the last to be multiples of 16 bytes, on the CPU
 * device too; gates, weights, biases and all f32 tensors are aligned to their elements. Kernels of sm_90a that read q, k, v, k_cmp and v_cmp
 * through the copy engine want strides of theirs to be positive where there is more than one head or
 * token; but one head of k, v, k_cmp or v_cmp may stand for all (stride 0). What they cannot read is
 * refused by name. */
typedef struct nsa_tensor {
  void *data;                   /* device memory; host memory on the CPU device */
  int64_t shape[NSA_MAX_DIMS];  /* elements; the first `ndim` count */
  int64_t stride[NSA_MAX_DIMS]; /* elements */
  int32_t ndim;
  int32_t dtype; /* NSA_F16 ... */
} nsa_tensor;

#ifdef __cplusplus
}
#endif
#endif /* NSA_BASE_H */
