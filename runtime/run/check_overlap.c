/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "run/check_overlap.h"

#include "run/check_tensor.h"

#include <string.h>

/* Bytes between neighbours of a dimension that has two. No overflow: both lie in the tensor's range. */
static uint64_t step_of(const nsa_tensor *t, int dim) {
  const uint64_t stride = t->stride[dim] < 0 ? -(uint64_t)t->stride[dim] : (uint64_t)t->stride[dim];
  return stride * (uint64_t)nsai_dtype_bytes(t->dtype);
}

static nsa_status take(nsai_call_tensors *tensors, const char *name, nsai_call_tensor **out) {
  if (tensors->count == NSAI_MAX_CALL_TENSORS)
    return nsai_fail(NSA_E_INTERNAL, "%s is tensor %d of a call", name, NSAI_MAX_CALL_TENSORS + 1);
  nsai_call_tensor *o = *out = &tensors->item[tensors->count++];
  if (!memccpy(o->name, name, 0, sizeof o->name)) o->name[sizeof o->name - 1] = '\0';
  return NSA_OK;
}

nsa_status nsai_call_tensors_add(nsai_call_tensors *tensors, const nsa_tensor *t,
                                 nsai_address_range range, const char *name) {
  nsai_call_tensor *o = NULL;
  NSAI_TRY(take(tensors, name, &o));
  o->tensor = t;
  o->range = range;
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
  nsai_address_range range = { (uintptr_t)workspace, 0 };
  if (!workspace || !bytes) return NSA_OK;
  if (__builtin_add_overflow(range.begin, bytes, &range.end))
    return nsai_fail(
        NSA_E_ARG,
        "exec.workspace (%p) of exec.workspace_bytes = %llu reaches beyond the address "
        "space",
        workspace, (unsigned long long)bytes);
  NSAI_TRY(take(tensors, "exec.workspace", &o));
  o->tensor = NULL;
  o->range = range;
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
      *width += step_of(t, i) * ((uint64_t)t->shape[i] - 1);
    else if (step_of(t, i) % step)
      return false;
  }
  return *width <= step;
}

/* Whether both repeat at one of a's steps, and lie apart within it. */
static bool lie_apart(const nsai_call_tensor *a, const nsai_call_tensor *b) {
  for (int i = 0; i < a->tensor->ndim; i++) {
    uint64_t step = a->tensor->shape[i] < 2 ? 0 : step_of(a->tensor, i), width_a, width_b;
    if (!step) continue;
    if (!repeats(a, step, &width_a) || !repeats(b, step, &width_b)) continue;
    /* Offset of b behind a, round the step. */
    uint64_t behind = (b->range.begin % step + step - a->range.begin % step) % step;
    if (width_a <= behind && behind + width_b <= step) return true;
  }
  return false;
}

static bool overlap(const nsai_call_tensor *a, const nsai_call_tensor *b) {
  if (a->range.end <= b->range.begin || b->range.end <= a->range.begin) return false;
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
