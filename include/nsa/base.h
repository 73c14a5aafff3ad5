/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Version, status codes, tensors and streams, and the rules that hold for every header of libnsa.
 *
 * Handles. A handle is a pointer to an opaque struct. A `_create` function gives it to the
 * caller, and the matching `_destroy` function takes it back. `_destroy` accepts NULL.
 *
 * Structs. Initialise every struct that has a `struct_size` with its macro, as in
 *   nsa_io io = NSA_IO_INIT;
 * The macro sets the size and leaves everything else zero.
 * - Zero is the default of every field. Enumerations therefore begin at 1; status codes, branches
 *   and log levels are the exceptions. NSA_NONE says zero where zero itself is a meaningful
 *   value.
 * - The library reads a parameter struct during the call only.
 * - A struct with `struct_size` may grow at its end in a later version. The library reads a
 *   smaller struct, of an older header, as if the missing fields were zero. It reads a larger
 *   struct, of a newer header, if the fields that it does not know are zero; otherwise the call
 *   fails with NSA_E_VERSION. The library writes a result as far as the caller's struct reaches.
 *   All elements of an array have the same size.
 * - A struct without `struct_size` never changes.
 *
 * Memory. The library never owns a tensor. The memory of a tensor must stay valid until the call
 * returns; for a run call on a GPU, until the stream has passed it.
 *
 * Texts. A function that takes `buf` and `size` follows the rule of snprintf: it writes at most
 * `size` bytes, always with a NUL, and returns the length of the whole text. `buf` may be NULL
 * with size 0.
 *
 * Errors. Every function that can fail returns an nsa_status, and nsa_last_error() returns the
 * sentence. Nothing exits or aborts the process. Nothing prints, except the log to stderr when
 * the host gave no callback. Every function may return NSA_E_INTERNAL, which is a bug of the
 * library: please report it with nsa_last_trace().
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

/* Zero, in a field whose 0 stands for another default. These fields accept it:
 *   nsa_model    select_count, select_init, select_local, window
 *   nsa_problem  max_kv_tokens, max_kv_len, max_seqs, max_q_len, page_size
 *   nsa_options  log_level
 */
#define NSA_NONE (-1)

/* A struct with its size set and every other field zero. The *_INIT macros of the structs use it.
 */
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

/* The result of a call; 0 is success. It has a fixed width, so that C, Rust, Go and Python agree.
 */
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
  X(NSA_E_RANKS, 19, "another rank failed, disagrees or does not answer")                          \
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

/* Describes this thread's last failed call: what was wrong, where, and what to do about it. The
 * text is mostly one sentence; the diagnostics of a configuration and compiler logs have several
 * lines.
 *
 * Returns "" when nothing has failed yet, never NULL. The text is valid until this thread's next
 * call into the library. Read it right after the failure: a call that succeeds may have met and
 * overcome a failure of its own, and leaves that failure's text here. */
NSA_API const char *nsa_last_error(void);

/* Lists the internal functions that the last failure passed through, innermost first, one line
 * "at file:line function" each. Meant for bug reports. Returns "" when there are none, never
 * NULL. Valid as long as the text of nsa_last_error. */
NSA_API const char *nsa_last_trace(void);

/* The version of the library that is loaded, in the form of NSA_VERSION. */
NSA_API uint32_t nsa_version(void);

/* Describes the build as one JSON object: version, compiler, optimisation, and the digest of the
 * embedded kernel templates. Static storage. Thread-safe. */
NSA_API const char *nsa_build_info(void);

/* A CUDA stream. The tag is that of the driver's CUstream and of the runtime's cudaStream_t, so
 * that both can be passed without a cast, and without a CUDA header here. NULL is the default
 * stream. The CPU device ignores it. */
typedef struct CUstream_st *nsa_stream;

/* Element types. f16 and bf16 have 16 bits. e4m3 has 8: a sign, 4 bits of exponent and 3 of mantissa,
 * greatest value 448, NaN but no infinity (FP8 E4M3FN). Only a KV cache may have it, see kv_cache.h. */
enum { NSA_F16 = 1, NSA_BF16 = 2, NSA_F32 = 3, NSA_I32 = 4, NSA_I64 = 5, NSA_E4M3 = 6 };

#define NSA_MAX_DIMS 5

/* A view of memory that belongs to the caller.
 *
 * Strides count elements, as in DLPack. The last stride is 1; the other strides are free, also
 * negative. An input may repeat itself by a stride of 0. The elements of an output must not
 * overlap: its dimensions must nest, in any order.
 *
 * Alignment: in f16 and bf16 the rows that kernels copy (q, k, v, o, o_branch, k_cmp, v_cmp, pe,
 * d_o, d_q and the gradients of k and v) need `data` and every stride but the last to be
 * multiples of 16 bytes; so do the tensors of a cache in e4m3. This holds on the CPU device, too. All
 * other tensors are aligned to their elements: gates, weights, biases, indices, and everything in f32.
 *
 * Kernels for sm_90a read q, k, v, k_cmp and v_cmp through the copy engine. They need positive
 * strides where a dimension has more than one element; but one head of k, v, k_cmp or v_cmp may
 * stand for all heads (stride 0). A call that they cannot serve is refused by name. */
typedef struct nsa_tensor {
  void *data; /* device memory, on the CPU device host memory; NULL: the tensor is absent */
  int64_t shape[NSA_MAX_DIMS];  /* elements; the first `ndim` count */
  int64_t stride[NSA_MAX_DIMS]; /* elements */
  int32_t ndim;
  int32_t dtype; /* NSA_F16 ... */
} nsa_tensor;

#ifdef __cplusplus
}
#endif
#endif /* NSA_BASE_H */
