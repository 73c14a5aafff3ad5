/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What a run must leave alone: inputs, guard bands, and the parts of outputs that it does not
 * write.
 */
#include "run/check_tensor.h"
#include "verify/tensors.h"
#include "verify/tensors_fill.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Larger inputs are not checked for changes: fetching them would take longer than the run. */
#define INPUT_CHECK_BYTES ((size_t)64 << 20)

/* Rows of the first dimension that a run writes. */
static int64_t written_rows(const nsai_verify_tensors *d, int slot) {
  if (slot == NSAI_VERIFY_D_K_CMP || slot == NSAI_VERIFY_D_V_CMP) return d->view[slot].shape[0];
  if (slot >= NSAI_VERIFY_D_K0 && slot < NSAI_VERIFY_D_K_CMP) return d->kv_tokens;
  if (slot == NSAI_VERIFY_K_CMP || slot == NSAI_VERIFY_V_CMP) return d->blocks;
  if (slot == NSAI_VERIFY_PROBE) return d->probe_count;
  bool weights = (slot >= NSAI_VERIFY_D_PHI_K && slot < NSAI_VERIFY_D_GATE_VALUE) ||
                 slot > NSAI_VERIFY_D_GATE_X;
  if (weights) return d->view[slot].shape[0];
  return d->tokens;
}

/* Contiguous runs of the last dimension among the written rows: their number, and the offset of
 * run i in bytes from the image's start. */
static int64_t run_count(const nsai_verify_tensors *d, int slot) {
  const nsa_tensor *v = &d->view[slot];
  int64_t count = v->ndim == 1 ? 1 : written_rows(d, slot);
  for (int32_t i = 1; i < v->ndim - 1; i++) count *= v->shape[i];
  return count;
}

static size_t run_offset(const nsai_verify_tensors *d, int slot, int64_t run) {
  const nsa_tensor *v = &d->view[slot];
  int64_t offset = 0;
  for (int32_t i = v->ndim - 2; i > 0; i--) {
    offset += run % v->shape[i] * v->stride[i];
    run /= v->shape[i];
  }
  offset += run * v->stride[0];
  return NSAI_VERIFY_GUARD + (uintptr_t)v->data +
         (size_t)offset * (size_t)nsai_dtype_bytes(v->dtype);
}

static size_t run_bytes(const nsai_verify_tensors *d, int slot) {
  const nsa_tensor *v = &d->view[slot];
  return (size_t)v->shape[v->ndim - 1] * (size_t)nsai_dtype_bytes(v->dtype);
}

static int is_filled(const uint8_t *bytes, size_t count, int fill) {
  return !count || (bytes[0] == fill && !memcmp(bytes, bytes + 1, count - 1));
}

/* The offset of run i, with runs ordered by address. */
static size_t ascending_offset(const nsai_verify_tensors *d, int slot, int64_t i) {
  const nsa_tensor *v = &d->view[slot];
  int64_t rows = written_rows(d, slot);
  if (v->ndim == 3 && v->stride[1] > v->stride[0]) i = i % rows * v->shape[1] + i / rows;
  return run_offset(d, slot, i);
}

/* Whether an output's image still has the fill everywhere except in the written elements. */
static int output_intact(const nsai_verify_tensors *d, int slot) {
  const nsai_verify_buffer *buffer = &d->buffer[slot];
  size_t whole = buffer->bytes + 2 * (size_t)NSAI_VERIFY_GUARD, width = run_bytes(d, slot), end = 0;
  int64_t count = run_count(d, slot);
  for (int64_t i = 0; i < count; i++) {
    size_t begin = ascending_offset(d, slot, i);
    if (begin < end || !is_filled(buffer->image + end, begin - end, buffer->fill)) return 0;
    end = begin + width;
  }
  return is_filled(buffer->image + end, whole - end, buffer->fill);
}

static int input_intact(const nsai_verify_tensors *d, int slot) {
  const nsai_verify_buffer *buffer = &d->buffer[slot];
  size_t whole = buffer->bytes + 2 * (size_t)NSAI_VERIFY_GUARD;
  if (whole > INPUT_CHECK_BYTES) return 1;
  uint8_t *copy = malloc(whole);
  int intact = copy && !nsai_verify_device_download(d->device, copy, buffer->device, whole) &&
               !memcmp(copy, buffer->image, whole);
  free(copy);
  return intact;
}

static int workspace_intact(const nsai_verify_tensors *d) {
  uint8_t band[NSAI_VERIFY_GUARD];
  const uint8_t *ends[2] = { d->guarded, (const uint8_t *)d->workspace + d->workspace_bytes };
  for (int i = 0; d->guarded && i < 2; i++) {
    if (nsai_verify_device_download(d->device, band, ends[i], sizeof band)) return 0;
    for (size_t j = 0; j < sizeof band; j++)
      if (band[j] != NSAI_VERIFY_FLOAT_FILL) return 0;
  }
  return 1;
}

const char *nsai_verify_tensors_damaged(nsai_verify_tensors *d) {
  for (int slot = 0; slot < NSAI_VERIFY_SLOTS; slot++) {
    if (!d->buffer[slot].device) continue;
    if (slot < NSAI_VERIFY_FIRST_OUTPUT ? !input_intact(d, slot) : !output_intact(d, slot))
      return nsai_verify_slot_name(slot);
  }
  return workspace_intact(d) ? NULL : "workspace";
}

int64_t nsai_verify_tensors_difference(const nsai_verify_tensors *a, const nsai_verify_tensors *b,
                                       int slot) {
  size_t width = run_bytes(a, slot);
  int64_t runs = run_count(a, slot), per_row = written_rows(a, slot);
  per_row = per_row ? runs / per_row : 1;
  for (int64_t run = 0; run < runs; run++)
    if (memcmp(a->buffer[slot].image + run_offset(a, slot, run),
               b->buffer[slot].image + run_offset(b, slot, run), width))
      return run / per_row;
  return -1;
}

nsa_status nsai_verify_tensors_begin_sums(nsai_verify_tensors *d, uint64_t seed) {
  nsai_verify_inputs in = { &d->c->model, NSAI_VERIFY_FILL_RANDOM, seed, 1 };
  for (int slot = NSAI_VERIFY_FIRST_GRADIENT; slot < NSAI_VERIFY_SLOTS; slot++) {
    nsai_verify_buffer *buffer = &d->buffer[slot];
    if (!buffer->device) continue;
    if (!nsai_verify_buffer_image(buffer)) return nsai_fail_nomem("a host image", buffer->bytes);
    memset(buffer->image, buffer->fill, buffer->bytes + 2 * (size_t)NSAI_VERIFY_GUARD);
    nsa_tensor view = nsai_verify_tensors_view(d, slot, NSAI_VERIFY_HOST);
    view.shape[0] = written_rows(d, slot);
    nsai_verify_fill_normal(&in, (uint64_t)slot, 1, &view);
    NSAI_TRY(nsai_verify_buffer_upload(d->device, buffer));
  }
  return NSA_OK;
}
