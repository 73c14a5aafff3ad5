/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the doors to Python share: the structs of a run in one frame, where a tensor's place is a byte
 * offset that Python computes.
 */
#ifndef NSAPY_FRAME_H
#define NSAPY_FRAME_H

#include <nsa/nsa.h>

/* The structs of a run, which Python addresses by byte offsets. */
typedef struct nsapy_frame {
  nsa_io io;
  nsa_grads grads;
  nsa_batch batch;
  nsa_exec exec;
  nsa_index_grads index_grads;
} nsapy_frame;

enum {
  NSAPY_FORWARD,
  NSAPY_DENSE,
  NSAPY_BACKWARD,
  NSAPY_APPEND,
  NSAPY_DECODE,
  NSAPY_PREFILL,
  NSAPY_INDEX_KL
};
enum { NSAPY_WORKSPACE = -1, NSAPY_UNUSED = -2 };         /* instead of offsets */
enum { NSAPY_PYTHON_ERROR = -1, NSAPY_NO_EXCHANGE = -2 }; /* instead of a status */
enum { NSAPY_DONE = 1 }; /* what a Python function returns that moved all bytes */

typedef struct nsapy_run_args {
  int32_t call, num_seqs; /* num_seqs 0: no batch */
  uint32_t branches, accumulate;
  float scale;
  int32_t workspace_align;
  int32_t tensors; /* their number, and that of offsets */
  /* Of PyTorch's door: its table of DLPack functions, and where tensor i belongs in nsapy_frame. */
  const void *exchange;
  const nsa_plan *plan;
  const int32_t *offsets;
  /* Of a run over ranks; else NULL. */
  nsa_comm *comm;
  const nsa_shard *shard;
} nsapy_run_args;

static inline void nsapy_set_workspace(void *data, uint64_t bytes, uint32_t align, nsa_exec *exec) {
  uintptr_t begin = (uintptr_t)data, skip = align ? (align - begin % align) % align : 0;
  exec->workspace = data ? (void *)(begin + skip) : NULL;
  exec->workspace_bytes = bytes > skip ? bytes - skip : 0;
}

static inline int32_t nsapy_call(const nsapy_run_args *args, const nsa_plan *plan,
                                 const nsapy_frame *f) {
  const nsa_batch *batch = args->num_seqs ? &f->batch : NULL;
  switch (args->call) {
  case NSAPY_FORWARD: return nsa_forward(plan, &f->exec, batch, &f->io);
  case NSAPY_DENSE: return nsa_dense(plan, &f->exec, batch, &f->io);
  case NSAPY_BACKWARD: return nsa_backward(plan, &f->exec, batch, &f->io, &f->grads);
  case NSAPY_APPEND: return nsa_kv_append(plan, &f->exec, batch, &f->io);
  case NSAPY_DECODE: return nsa_decode(plan, &f->exec, batch, &f->io);
  case NSAPY_PREFILL: return nsa_prefill(plan, &f->exec, batch, &f->io);
  case NSAPY_INDEX_KL: return nsa_index_kl(plan, &f->exec, batch, &f->io, &f->index_grads);
  default: return NSA_E_ARG;
  }
}

#endif /* NSAPY_FRAME_H */
