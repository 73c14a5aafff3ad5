/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "run/check_values.h"

/* Copies an array, rows one behind the other. One without elements stays as it is. */
static nsa_status copy_array(const nsai_check *check, nsai_arena *memory, nsa_tensor *t) {
  const size_t size = t->dtype == NSA_I64 ? 8 : 4;
  if (!nsai_present(t) || !t->shape[0] || !t->shape[t->ndim - 1]) return NSA_OK;
  size_t rows = t->ndim > 1 ? (size_t)t->shape[0] : 1, all;
  size_t width = (size_t)t->shape[t->ndim - 1] * size, pitch = (size_t)t->stride[0] * size;
  if (__builtin_mul_overflow(rows, width, &all)) all = SIZE_MAX;
  char *to = nsai_arena_alloc(memory, all);
  if (!to) return nsai_fail_nomem("a copy of a batch's array (runtime.check_inputs: full)", all);
  for (size_t row = 0; row < rows; row++)
    NSAI_TRY(NSAI_CUDA(check->driver,
                       cuMemcpyDtoHAsync(to + row * width, (uintptr_t)t->data + row * pitch, width,
                                         check->stream)));
  t->data = to;
  if (t->ndim > 1) t->stride[0] = t->shape[1];
  return NSA_OK;
}

static nsa_status copy_arrays(const nsai_check *check, nsai_batch_values *values) {
  nsa_batch *b = &values->copy;
  nsa_tensor *all[] = { &b->cu_q,         &b->cu_kv,       &b->cu_cmp,       &b->kv_len,
                        &b->block_table,  &b->page_indptr, &b->page_indices, &b->slots,
                        &b->slot_mapping, &b->entry_table };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    NSAI_TRY(copy_array(check, &values->memory, all[i]));
  return NSAI_CUDA(check->driver, cuStreamSynchronize(check->stream));
}

/* A wait would break the capture. The default stream cannot say while others are being captured. */
static bool is_captured(const nsai_check *check) {
  int32_t status = 0;
  return check->driver->cuStreamIsCapturing(check->stream, &status) != NSAI_CUDA_SUCCESS || status;
}

nsa_status nsai_batch_values_read(const nsai_check *check, const nsa_batch *batch,
                                  nsai_batch_values *values) {
  nsa_status status;
  *values = (nsai_batch_values){ 0 };
  if (!batch || check->level == NSAI_CHECK_OFF) return NSA_OK;
  if (!check->driver) values->batch = batch;
  if (!check->driver || check->level != NSAI_CHECK_FULL || is_captured(check)) return NSA_OK;
  int32_t mode = NSAI_CU_CAPTURE_RELAXED; /* another stream may be captured */
  check->driver->cuThreadExchangeStreamCaptureMode(&mode);
  values->copy = *batch;
  status = copy_arrays(check, values);
  check->driver->cuThreadExchangeStreamCaptureMode(&mode);
  NSAI_TRY_TO(fail, status);
  values->batch = &values->copy;
  return NSA_OK;
fail:
  nsai_batch_values_fini(values);
  return status;
}

void nsai_batch_values_fini(nsai_batch_values *values) { nsai_arena_fini(&values->memory); }
