/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "run/check_tensor.h"

static const char *dtype_name(int32_t dtype) {
  static const char *const names[] = { "none", "f16", "bf16", "f32", "i32", "i64", "e4m3" };
  return dtype >= 0 && dtype <= NSA_E4M3 ? names[dtype] : "unknown";
}

int64_t nsai_dtype_bytes(int32_t dtype) {
  switch (dtype) {
  case NSA_E4M3: return 1;
  case NSA_F32:
  case NSA_I32: return 4;
  case NSA_I64: return 8;
  default: return 2;
  }
}

static nsa_status check_dtype(const nsai_check *check, const nsa_tensor *t,
                              const nsai_tensor_spec *e) {
  int32_t model = check->problem->model.dtype;
  bool fits = ((e->types & NSAI_DTYPE_MODEL) && t->dtype == model) ||
              ((e->types & NSAI_DTYPE_F32) && t->dtype == NSA_F32) ||
              ((e->types & NSAI_DTYPE_I32) && t->dtype == NSA_I32) ||
              ((e->types & NSAI_DTYPE_I64) && t->dtype == NSA_I64) ||
              ((e->types & NSAI_DTYPE_E4M3) && t->dtype == NSA_E4M3);
  if (fits) return NSA_OK;
  const char *wanted = e->types & NSAI_DTYPE_I32     ? "i32"
                       : e->types & NSAI_DTYPE_I64   ? "i64"
                       : e->types & NSAI_DTYPE_E4M3  ? "e4m3"
                       : e->types & NSAI_DTYPE_MODEL ? dtype_name(model)
                                                     : "f32";
  return nsai_fail(NSA_E_ARG, "%s has dtype %s, expected %s%s", e->name, dtype_name(t->dtype),
                   wanted,
                   (e->types & NSAI_DTYPE_MODEL) && (e->types & NSAI_DTYPE_F32) ? " or f32" : "");
}

/* The shape of a message: "16, any, 128". */
static const char *print_shape(const nsai_tensor_spec *e, char *text, size_t size) {
  nsai_writer w = nsai_writer_open(text, size);
  for (int i = 0; i < e->ndim; i++) {
    if (e->shape[i] == NSAI_ANY)
      nsai_write(&w, "%sany", i ? ", " : "");
    else
      nsai_write(&w, "%s%lld", i ? ", " : "", (long long)e->shape[i]);
  }
  return text;
}

/* What every other check, and every kernel, takes for granted. */
static nsa_status check_dimensions(const nsa_tensor *t, const nsai_tensor_spec *e) {
  char wanted[128];
  if (t->ndim != e->ndim)
    return nsai_fail(NSA_E_ARG, "%s has %d dimensions, expected %d: [%s]", e->name, t->ndim,
                     e->ndim, print_shape(e, wanted, sizeof wanted));
  for (int i = 0; i < e->ndim; i++)
    if (t->shape[i] < 0)
      return nsai_fail(NSA_E_ARG, "%s has shape[%d] = %lld, expected [%s]", e->name, i,
                       (long long)t->shape[i], print_shape(e, wanted, sizeof wanted));
  return NSA_OK;
}

static nsa_status check_shape(const nsa_tensor *t, const nsai_tensor_spec *e) {
  char wanted[128];
  for (int i = 0; i < e->ndim; i++)
    if (e->shape[i] != NSAI_ANY && t->shape[i] != e->shape[i])
      return nsai_fail(NSA_E_ARG, "%s has shape[%d] = %lld, expected [%s]", e->name, i,
                       (long long)t->shape[i], print_shape(e, wanted, sizeof wanted));
  return NSA_OK;
}

/* The last stride is 1. Kernels copy tensors of rows, of 16-bit elements and of codes, in units of 16
 * bytes; the CPU device could do without, but what it accepts must run on a GPU as well. Its f32 has no
 * such kernels. */
static nsa_status check_strides(const nsa_tensor *t, const nsai_tensor_spec *e) {
  int last = e->ndim - 1;
  if (t->shape[last] > 1 && t->stride[last] != 1)
    return nsai_fail(NSA_E_ARG,
                     "%s has stride[%d] = %lld, expected 1: make the last dimension contiguous",
                     e->name, last, (long long)t->stride[last]);
  bool rows =
      e->types == NSAI_DTYPE_MODEL || e->types == NSAI_DTYPE_ROWS || e->types == NSAI_DTYPE_E4M3;
  bool chunks = rows && t->dtype != NSA_F32;
  uintptr_t unit = chunks ? 16 : (uintptr_t)nsai_dtype_bytes(t->dtype);
  if ((uintptr_t)t->data % unit)
    return nsai_fail(NSA_E_ARG, "%s.data is not aligned to %u bytes", e->name, (unsigned)unit);
  const int unit_elements = 16 / (int)nsai_dtype_bytes(t->dtype);
  for (int i = 0; chunks && i < last; i++)
    if (t->shape[i] > 1 && t->stride[i] % unit_elements)
      return nsai_fail(NSA_E_ARG,
                       "%s has stride[%d] = %lld, expected a multiple of %d elements (16 bytes)",
                       e->name, i, (long long)t->stride[i], unit_elements);
  return NSA_OK;
}

/* Frameworks give no memory to a tensor without elements. */
static bool is_empty(const nsa_tensor *t) {
  for (int i = 0; i < t->ndim && i < NSA_MAX_DIMS; i++)
    if (t->shape[i] == 0) return true;
  return false;
}

/* The distance of the two outermost elements of a dimension, in bytes. False: beyond all memory. */
static bool find_reach(const nsa_tensor *t, int dim, int64_t *bytes) {
  return !__builtin_mul_overflow(t->stride[dim], t->shape[dim] - 1, bytes) &&
         !__builtin_mul_overflow(*bytes, nsai_dtype_bytes(t->dtype), bytes);
}

/* From its first to its last byte a tensor lies within the address space. Kernels compute addresses
 * without looking: what wrapped would be read or written elsewhere. */
static nsa_status find_range(const nsa_tensor *t, const nsai_tensor_spec *e,
                             nsai_address_range *range) {
  int64_t least = 0, greatest = nsai_dtype_bytes(t->dtype), reach;
  for (int i = 0; i < e->ndim; i++) {
    int64_t *end = t->stride[i] < 0 ? &least : &greatest;
    if (t->shape[i] > 1 && (!find_reach(t, i, &reach) || __builtin_add_overflow(*end, reach, end)))
      return nsai_fail(NSA_E_ARG,
                       "%s has stride[%d] = %lld: its %lld elements of that dimension reach beyond "
                       "the address space",
                       e->name, i, (long long)t->stride[i], (long long)t->shape[i]);
  }
  const uintptr_t data = (uintptr_t)t->data;
  if (data < -(uintptr_t)least || data > UINTPTR_MAX - (uintptr_t)greatest)
    return nsai_fail(NSA_E_ARG,
                     "%s.data (%p) and its strides reach beyond the address space: from %lld to "
                     "%lld bytes behind it",
                     e->name, t->data, (long long)least, (long long)greatest);
  *range = (nsai_address_range){ data - -(uintptr_t)least, data + (uintptr_t)greatest };
  return NSA_OK;
}

/* runtime.check_inputs: full asks the driver whose memory it is. */
static nsa_status check_memory(const nsai_check *check, const nsa_tensor *t,
                               const nsai_tensor_spec *e) {
  if (!check->driver || !nsai_present(t) || check->level != NSAI_CHECK_FULL) return NSA_OK;
  uint32_t type = 0;
  nsai_cu_result result =
      check->driver->cuPointerGetAttribute(&type, NSAI_CU_POINTER_MEMORY_TYPE, (uintptr_t)t->data);
  if (result != NSAI_CUDA_SUCCESS || type == NSAI_CU_MEMORY_HOST)
    return nsai_fail(NSA_E_ARG, "%s.data (%p) is not device memory: copy the tensor to the GPU",
                     e->name, t->data);
  return NSA_OK;
}

nsa_status nsai_check_tensor(const nsai_check *check, const nsa_tensor *t,
                             const nsai_tensor_spec *e) {
  if (!nsai_present(t) && !is_empty(t))
    return nsai_fail(NSA_E_ARG, "%s is missing (data is NULL)", e->name);
  NSAI_TRY(check_dimensions(t, e));
  NSAI_TRY(check_dtype(check, t, e));
  if (check->level != NSAI_CHECK_OFF) {
    NSAI_TRY(check_shape(t, e));
    NSAI_TRY(check_strides(t, e));
    NSAI_TRY(check_memory(check, t, e));
  }
  nsai_address_range range;
  if (is_empty(t)) return NSA_OK;
  NSAI_TRY(find_range(t, e, &range));
  return check->tensors ? nsai_call_tensors_add(check->tensors, t, range, e->name) : NSA_OK;
}

nsa_status nsai_check_optional_tensor(const nsai_check *check, const nsa_tensor *t,
                                      const nsai_tensor_spec *e) {
  return nsai_present(t) ? nsai_check_tensor(check, t, e) : NSA_OK;
}

static uint64_t distance(int64_t stride) {
  return stride < 0 ? -(uint64_t)stride : (uint64_t)stride;
}

/* The dimension with the least stride above those in the set `done`; -1: there is none. Dimensions
 * of one element have no stride. */
static int next_dimension(const nsa_tensor *t, unsigned done) {
  int next = -1;
  for (int i = t->ndim - 1; i >= 0; i--)
    if (!(done >> i & 1) && t->shape[i] > 1 &&
        (next < 0 || distance(t->stride[i]) < distance(t->stride[next])))
      next = i;
  return next;
}

nsa_status nsai_check_tensor_memory(const nsai_check *check, const nsa_tensor *t,
                                    const char *name) {
  if (!nsai_present(t) || is_empty(t)) return NSA_OK;
  if (check->tensors) nsai_call_tensors_mark_written(check->tensors, t);
  uint64_t extent = 1; /* elements from the first to the last of the dimensions in `done` */
  unsigned done = 0;
  for (int i; (i = next_dimension(t, done)) >= 0; done |= 1u << i) {
    uint64_t stride = distance(t->stride[i]);
    if (stride < extent)
      return nsai_fail(
          NSA_E_ARG,
          "%s has stride[%d] = %lld, and its elements lie on or between each other: give "
          "each of the %lld a place of its own",
          name, i, (long long)t->stride[i], (long long)t->shape[i]);
    extent +=
        stride * ((uint64_t)t->shape[i] - 1); /* within the address range, which has been checked */
  }
  return NSA_OK;
}

nsa_status nsai_check_offsets(const nsa_tensor *t, int32_t num_seqs,
                              const nsai_offset_limits *limits) {
  const int32_t *at = t->data;
  if (!at) return NSA_OK;
  if (at[0] != 0) return nsai_fail(NSA_E_ARG, "%s[0] is %d, expected 0", limits->name, at[0]);
  for (int32_t s = 0; s < num_seqs; s++) {
    if (at[s + 1] < at[s] || at[s + 1] > limits->rows)
      return nsai_fail(NSA_E_ARG, "%s[%d] is %d, expected %d (the one before) to %lld (the rows)",
                       limits->name, s + 1, at[s + 1], at[s], (long long)limits->rows);
    if (at[s + 1] - at[s] > limits->length)
      return nsai_fail(NSA_E_ARG,
                       "%s gives sequence %d %d tokens, the plan was made for at most %lld: raise "
                       "problem.%s",
                       limits->name, s, at[s + 1] - at[s], (long long)limits->length,
                       limits->capacity);
  }
  return NSA_OK;
}
