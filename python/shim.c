/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One call from Python for one run of a plan: describes tensors through DLPack's exchange table and
 * calls the library. ctypes alone needs 40 us for the seven tensors of a forward, this 2 us.
 *
 * Python.h is not needed, so that one build serves every CPython from 3.9 on: objects are opaque, and
 * the few functions below belong to the stable ABI. Called with the GIL (ctypes.PyDLL). The GIL is
 * released during a run that may take long before it returns: on the CPU device, which computes, and
 * over ranks, where the transport may wait for a lost one while other threads ask what is wrong.
 */
#include "frame.h"

#include <stdbool.h>
#include <string.h>

/* ---- CPython */

typedef struct python_object python_object;
#define WEAK __attribute__((weak)) /* the process has them */
WEAK extern intptr_t PyTuple_Size(python_object *tuple);
WEAK extern python_object *PyTuple_GetItem(python_object *tuple, intptr_t index);
WEAK extern void *PyEval_SaveThread(void);
WEAK extern void PyEval_RestoreThread(void *state);

/* ---- DLPack 1.x (https://dmlc.github.io/dlpack): what of its tables is read here */

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };
enum { DL_INT = 0, DL_FLOAT = 2, DL_BFLOAT = 4, DL_FLOAT8_E4M3FN = 10 };

typedef struct dl_tensor {
  void *data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides; /* strides NULL: contiguous */
  uint64_t byte_offset;
} dl_tensor;

typedef struct dl_exchange {
  uint32_t major, minor;
  struct dl_exchange *previous;
  void *allocate, *managed_from_object, *managed_to_object;
  int (*tensor_from_object)(void *object,
                            dl_tensor *out); /* borrowed; not 0: an exception is set */
  int (*current_stream)(int32_t device_type, int32_t device_id, void **out);
} dl_exchange;

/* ---- a run */

NSA_API int32_t nsapy_run(const nsapy_run_args *args, python_object *tensors);
NSA_API size_t nsapy_frame_size(void);
NSA_API nsa_status nsapy_exchange(void *user, const nsa_part *send, int32_t sends,
                                  const nsa_part *recv, int32_t recvs, nsa_stream stream);
NSA_API int nsapy_program(int argc, char **argv);

/* main() of nsa-autotune, which is built into this library under another name. */
int nsapy_main(int argc, char **argv);
int nsapy_program(int argc, char **argv) { return nsapy_main(argc, argv); }

/* The size of both structs that Python lays out, by which it knows a library of another version. */
size_t nsapy_frame_size(void) { return sizeof(nsapy_frame) + sizeof(nsapy_run_args); }

/* nsa_comm_ops.exchange of a function of Python, which `user` points at. ctypes returns 0 for a function
 * that an exception ended, as Ctrl-C does before its first statement: here success is NSAPY_DONE. */
typedef int32_t (*python_exchange)(void *user, const nsa_part *send, int32_t sends,
                                   const nsa_part *recv, int32_t recvs, nsa_stream stream);
nsa_status nsapy_exchange(void *user, const nsa_part *send, int32_t sends, const nsa_part *recv,
                          int32_t recvs, nsa_stream stream) {
  const python_exchange *function = user;
  return (*function)(NULL, send, sends, recv, recvs, stream) == NSAPY_DONE ? NSA_OK : NSA_E_RANKS;
}

static int32_t dtype_of(const dl_tensor *t) {
  switch (t->lanes == 1 ? t->code << 8 | t->bits : 0) {
  case DL_FLOAT << 8 | 16: return NSA_F16;
  case DL_BFLOAT << 8 | 16: return NSA_BF16;
  case DL_FLOAT << 8 | 32: return NSA_F32;
  case DL_INT << 8 | 32: return NSA_I32;
  case DL_INT << 8 | 64: return NSA_I64;
  case DL_FLOAT8_E4M3FN << 8 | 8: return NSA_E4M3;
  default: return 0; /* the library refuses it by name */
  }
}

static void view(const dl_tensor *from, nsa_tensor *to) {
  int64_t next = 1;
  to->data = from->data ? (char *)from->data + from->byte_offset : NULL;
  to->ndim = from->ndim;
  to->dtype = dtype_of(from);
  for (int i = from->ndim - 1; i >= 0; i--) {
    if (i < NSA_MAX_DIMS) {
      to->shape[i] = from->shape[i];
      to->stride[i] = from->strides ? from->strides[i] : next;
    }
    next *= from->shape[i];
  }
  /* A dimension of one element may have any stride in other projects. */
  if (to->ndim > 0 && to->ndim <= NSA_MAX_DIMS && to->shape[to->ndim - 1] == 1)
    to->stride[to->ndim - 1] = 1;
}

static void set_workspace(const dl_tensor *t, uint32_t align, nsa_exec *exec) {
  nsapy_set_workspace(t->data ? (char *)t->data + t->byte_offset : NULL,
                      t->ndim == 1 ? (uint64_t)t->shape[0] : 0, align, exec);
}

/* Runs a plan on the device and the current stream of the first tensor. `tensors` is a tuple. All that
 * stays the same from call to call is in `args`: ctypes needs 0.1 us for each further argument. Returns
 * an nsa_status, NSAPY_PYTHON_ERROR with an exception set, or NSAPY_NO_EXCHANGE where the table is of an
 * unknown version. */
int32_t nsapy_run(const nsapy_run_args *args, python_object *tensors) {
  const dl_exchange *exchange = args->exchange;
  const int32_t *offsets = args->offsets;
  const nsapy_frame empty = { .io = NSA_IO_INIT,
                              .grads = NSA_GRADS_INIT,
                              .batch = NSA_BATCH_INIT,
                              .exec = NSA_EXEC_INIT,
                              .index_grads = NSA_INDEX_GRADS_INIT };
  nsapy_frame f = empty;
  dl_tensor t;
  intptr_t count = PyTuple_Size(tensors);
  void *state = NULL, *stream = NULL;
  bool gpu = false, known = false;
  if (!exchange || exchange->major != 1) return NSAPY_NO_EXCHANGE;
  if (count != args->tensors) return NSA_E_INTERNAL;
  for (intptr_t i = 0; i < count; i++) {
    if (offsets[i] == NSAPY_UNUSED) continue;
    if (exchange->tensor_from_object(PyTuple_GetItem(tensors, i), &t)) return NSAPY_PYTHON_ERROR;
    if (!known) {
      known = true;
      gpu = t.device_type != DL_CPU && t.device_type != DL_CUDA_HOST;
      if (gpu && exchange->current_stream(DL_CUDA, t.device_id, &stream)) return NSAPY_PYTHON_ERROR;
    }
    if (offsets[i] == NSAPY_WORKSPACE)
      set_workspace(&t, (uint32_t)args->workspace_align, &f.exec);
    else
      view(&t, (nsa_tensor *)((char *)&f + offsets[i]));
  }
  f.io.softmax_scale = args->scale;
  f.batch.num_seqs = args->num_seqs;
  f.batch.shard = args->shard;
  f.exec.branches = args->branches;
  f.exec.comm = args->comm;
  f.grads.accumulate = args->accumulate;
  f.exec.stream = (nsa_stream)stream;
  const bool waits = !gpu || args->comm;
  if (waits) state = PyEval_SaveThread();
  int32_t status = nsapy_call(args, args->plan, &f);
  if (waits) PyEval_RestoreThread(state);
  return status;
}
