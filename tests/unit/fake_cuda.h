/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the driver without hardware (fake_cuda.c) records. A test finds the record with
 * fake_cuda_record, in the very module that the library has opened.
 */
#ifndef TEST_FAKE_CUDA_H
#define TEST_FAKE_CUDA_H

#include "driver/cuda_types.h"

#include <stdbool.h>

#define FAKE_CUDA_LAUNCHES 64

/* A kernel launch, or a product of the fake cuBLASLt (name "matmul", the rest 0 but the stream). */
typedef struct fake_cuda_launch {
  char name[64];
  uint32_t grid_x, grid_y, threads, shared_bytes;
  nsai_cu_stream stream;
  int overlaps; /* it may begin before the one before it has ended */
} fake_cuda_launch;

/* A matrix of a product; `stride`: from one of its batch to the next, in elements. */
typedef struct fake_matrix {
  const void *data;
  uint64_t rows, columns;
  int64_t leading, stride;
  int32_t type, batch, transposed;
} fake_matrix;

/* What the last product was told: d = alpha a b + beta c. */
typedef struct fake_product {
  fake_matrix a, b, c, d;
  float alpha, beta;
  const void *workspace;
  uint64_t workspace_bytes;
} fake_product;

/* What a launch does, in place of nothing, and the milliseconds that it takes, in place of 1.
 * `params` is the kernel's struct; NULL for products. Memory is the host's, so it may be written. */
typedef double (*fake_cuda_kernel)(const fake_cuda_launch *launch, const void *params);

typedef struct fake_cuda_state {
  fake_cuda_launch launch[FAKE_CUDA_LAUNCHES]; /* the first ones */
  int launches;
  fake_product product;    /* the last one */
  int waits;               /* calls that wait for the device, or would break a capture */
  int memory_calls;        /* allocations, copies, fills */
  int loads, unloads;      /* libraries */
  int handles;             /* of cuBLASLt, made and not destroyed */
  int retained;            /* primary contexts held */
  int wrong_context;       /* calls that need a current context and found none, or another */
  int fail_launch;         /* the n-th launch from now fails; 0: none */
  int refuse_threads;      /* blocks of so many threads are not launched; 0: none */
  int refuse_spare;        /* but for the next so many */
  int break_threads;       /* blocks of so many threads run into an illegal address; 0: none */
  int broken;              /* what every call on the device returns since then */
  uint64_t most_bytes;     /* there is no room for larger allocations; 0: for any */
  int refusal;             /* what these return; 0: that memory is out */
  int fail_loads;          /* so many loads from now find no code for the GPU */
  int capture_relaxed;     /* loads while the thread's capture mode was relaxed */
  int large_clusters;      /* kernels that asked for clusters of more than 8 blocks */
  int compilations;        /* of NVRTC */
  int spills;              /* so many compilations of FAKE_NVRTC_FAT from now on spill */
  fake_cuda_kernel kernel; /* NULL: launches do nothing */
  double clock_ms;         /* of the device: the sum of what was launched; events read it */
  bool capturing;          /* launches do their work at once, but their time is the graph's */
  double captured_ms;
  int graphs; /* captured, or made of it, and not destroyed */
  int graph_launches;
  int blocks;          /* of memory, allocated and not freed */
  int streams, events; /* created and not destroyed */
} fake_cuda_state;

/* Exported by the module. */
fake_cuda_state *fake_cuda_record(void);

/* A launch happens: it is recorded, and the clock goes on. */
void fake_cuda_enqueue(const fake_cuda_launch *launch, const void *params);

/* Exported by the module: a current context on this thread that is not the device's, as a host
 * that works on another GPU has it; NULL: none. Returns the one that was current. */
nsai_cu_context fake_cuda_set_current(nsai_cu_context context);

#endif /* TEST_FAKE_CUDA_H */
