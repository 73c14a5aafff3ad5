/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "run/check_overlap.h"

#include "run/check_tensor.h"

#include <string.h>

/* Bytes between neighbours of a dimension; UINT64_MAX where it overflows. */
static uint64_t step_of(const nsa_tensor *t, int dim) {
  uint64_t stride = t->stride[dim] < 0 ? -(uint64_t)t->stride[dim] : (uint64_t)t->stride[dim], step;
  if (__builtin_mul_overflow(stride, (uint64_t)nsai_dtype_bytes(t->dtype), &step))
    step = UINT64_MAX;
  return step;
}

/* Bytes from the first to the last of a dimension; beyond all memory where it overflows. */
static uint64_t reach_of(const nsa_tensor *t, int dim) {
  uint64_t reach;
  if (__builtin_mul_overflow(step_of(t, dim), (uint64_t)t->shape[dim] - 1, &reach))
    reach = UINT64_MAX;
  return reach;
}

static uint64_t sum(uint64_t a, uint64_t b) {
  uint64_t all;
  return __builtin_add_overflow(a, b, &all) ? UINT64_MAX : all;
}

static nsa_status take(nsai_call_tensors *tensors, const char *name, nsai_call_tensor **out) {
  if (tensors->count == NSAI_MAX_CALL_TENSORS)
    return nsai_fail(NSA_E_INTERNAL, "%s is tensor %d of a call", name, NSAI_MAX_CALL_TENSORS + 1);
  nsai_call_tensor *o = *out = &tensors->item[tensors->count++];
  if (!memccpy(o->name, name, 0, sizeof o->name)) o->name[sizeof o->name - 1] = '\0';
  return NSA_OK;
}

nsa_status nsai_call_tensors_add(nsai_call_tensors *tensors, const nsa_tensor *t,
                                 const char *name) {
  uint64_t below = 0, above = (uint64_t)nsai_dtype_bytes(t->dtype);
  uintptr_t data = (uintptr_t)t->data;
  nsai_call_tensor *o = NULL;
  if (!data) return NSA_OK;
  for (int i = 0; i < t->ndim; i++) {
    if (!t->shape[i]) return NSA_OK;
    if (t->stride[i] < 0)
      below = sum(below, reach_of(t, i));
    else
      above = sum(above, reach_of(t, i));
  }
  NSAI_TRY(take(tensors, name, &o));
  o->tensor = t;
  o->begin = data > below ? data - below : 0;
  o->end = sum(data, above);
  o->written = false;
  return NSA_OK;
}

void nsai_call_tensors_mark_written(nsai_call_tensors *tensors, const nsa_tensor *tensor) {
  for (int32_t i = tensors->count; i-- > 0;)
    if (tensors->item[i].tensor == tensor) {
      tensors->item[i].written = true;
      return;
    }
}

nsa_status nsai_call_tensors_add_workspace(nsai_call_tensors *tensors, const void *workspace,
                                           uint64_t bytes) {
  nsai_call_tensor *o = NULL;
  if (!workspace || !bytes) return NSA_OK;
  NSAI_TRY(take(tensors, "exec.workspace", &o));
  o->tensor = NULL;
  o->begin = (uintptr_t)workspace;
  o->end = sum(o->begin, bytes);
  o->written = true;
  return NSA_OK;
}

/* Whether the tensor repeats at a step of bytes: in each step it has `*width` bytes, all from the
 * same offset on. */
static bool repeats(const nsai_call_tensor *o, uint64_t step, uint64_t *width) {
  const nsa_tensor *t = o->tensor;
  *width = (uint64_t)nsai_dtype_bytes(t->dtype);
  for (int i = 0; i < t->ndim; i++) {
    if (t->shape[i] < 2) continue;
    if (step_of(t, i) < step)
      *width = sum(*width, reach_of(t, i));
    else if (step_of(t, i) % step || step_of(t, i) == UINT64_MAX)
      return false;
  }
  return *width <= step;
}

/* Whether both repeat at one of a's steps, and lie apart within it. */
static bool lie_apart(const nsai_call_tensor *a, const nsai_call_tensor *b) {
  for (int i = 0; i < a->tensor->ndim; i++) {
    uint64_t step = step_of(a->tensor, i), width_a, width_b;
    if (a->tensor->shape[i] < 2 || !step) continue;
    if (!repeats(a, step, &width_a) || !repeats(b, step, &width_b)) continue;
    /* Offset of b behind a, round the step. */
    uint64_t behind = (b->begin % step + step - a->begin % step) % step;
    if (width_a <= behind && behind + width_b <= step) return true;
  }
  return false;
}

static bool overlap(const nsai_call_tensor *a, const nsai_call_tensor *b) {
  if (a->end <= b->begin || b->end <= a->begin) return false;
  if (!a->tensor || !b->tensor) return true;
  return !lie_apart(a, b) && !lie_apart(b, a);
}

nsa_status nsai_check_overlap(const nsai_call_tensors *tensors) {
  for (int32_t i = 0; i < tensors->count; i++) {
    const nsai_call_tensor *out = &tensors->item[i];
    for (int32_t k = 0; out->written && k < tensors->count; k++) {
      const nsai_call_tensor *other = &tensors->item[k];
      if (k == i || (other->written && k < i) || !overlap(out, other)) continue;
      return nsai_fail(NSA_E_ARG,
                       "%s is written, and shares memory with %s: give each its own, or lay both "
                       "into one buffer "
                       "as slices of its columns, with the same outer strides",
                       out->name, other->name);
    }
  }
  return NSA_OK;
}
