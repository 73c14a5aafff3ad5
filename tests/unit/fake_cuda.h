/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the driver without hardware (fake_cuda.c) records. fake_cuda_record gives a test the
 * record of the module that the library has opened. Threads may use the driver at once; what a test
 * sets (failures, times, kernels) it sets while no other thread does.
 */
#ifndef TEST_FAKE_CUDA_H
#define TEST_FAKE_CUDA_H

#include "driver/cuda_types.h"

#include <pthread.h>
#include <stdbool.h>

#define FAKE_CUDA_LAUNCHES 64

/* A kernel launch, or a product of the fake cuBLASLt (name "matmul"; the other members except
 * the stream are 0). */
typedef struct fake_cuda_launch {
  char name[64];
  uint32_t grid_x, grid_y, threads, shared_bytes;
  nsai_cu_stream stream;
  int overlaps; /* it may begin before the previous one has ended */
  void *code;   /* what `load` below made of the image */
} fake_cuda_launch;

/* A matrix of a product; `stride`: elements between two of its batch. */
typedef struct fake_matrix {
  const void *data;
  uint64_t rows, columns;
  int64_t leading, stride;
  int32_t type, batch, transposed;
} fake_matrix;

/* The description of the last product: d = alpha a b + beta c. */
typedef struct fake_product {
  fake_matrix a, b, c, d;
  float alpha, beta;
  const void *workspace;
  uint64_t workspace_bytes;
} fake_product;

/* Called for a launch; returns the milliseconds that it takes (1 without such a function).
 * `params` is the kernel's struct; NULL for products. Memory is the host's and may be written. */
typedef double (*fake_cuda_kernel)(const fake_cuda_launch *launch, const void *params);

/* An event that was recorded in a stream, or for which a stream waits. */
#define FAKE_CUDA_EDGES 16
typedef struct fake_cuda_edge {
  nsai_cu_event event;
  nsai_cu_stream stream;
  bool waits;
  int launches; /* before it */
} fake_cuda_edge;

/* A copy between two places of device memory, not of rows. */
#define FAKE_CUDA_COPIES 32
typedef struct fake_cuda_copy {
  const char *to, *from;
  uint64_t bytes;
  nsai_cu_stream stream;
  int launches, edges; /* before it */
} fake_cuda_copy;

typedef struct fake_cuda_state {
  fake_cuda_launch launch[FAKE_CUDA_LAUNCHES]; /* the first ones */
  int launches;
  fake_product product;    /* the last one */
  int waits;               /* calls that wait for the device, or would break a capture */
  int memory_calls;        /* allocations, copies, fills */
  int uploads;             /* copies from the host ... */
  uint64_t most_uploaded;  /* ... and the bytes of the largest */
  int loads, unloads;      /* libraries */
  int handles;             /* handles of cuBLASLt that exist */
  int retained;            /* primary contexts that are retained */
  int wrong_context;       /* calls without the context that they require */
  int fail_launch;         /* the n-th launch from now fails; 0: none */
  int refuse_threads;      /* CTAs of this many threads are refused; 0: none */
  int refuse_spare;        /* except the next so many */
  int break_threads;       /* CTAs of this many threads cause an illegal address; 0: none */
  int broken;              /* error that every call on the device returns since then */
  uint64_t most_bytes;     /* larger allocations fail; 0: none */
  uint64_t most_pitch;     /* copies of rows with a larger pitch fail; 0: above 2^31 - 1 */
  int refusal;             /* error that these return; 0: out of memory */
  bool fills;              /* memory of any size; else not the flush of an L2, which nobody reads */
  int fail_loads;          /* the next so many loads find no code for the GPU */
  int capture_relaxed;     /* loads while the thread's capture mode was relaxed */
  int large_clusters;      /* kernels that asked for clusters of more than 8 CTAs */
  int compilations;        /* of NVRTC */
  int spills;              /* the next so many compilations of FAKE_NVRTC_FAT spill, ... */
  bool serial;             /* ... or, in its place, serialise their wgmma */
  fake_cuda_kernel kernel; /* NULL: launches do nothing */
  /* Of a driver that runs kernels (tests/emulator): makes code of an image, or returns NULL; the bytes of
   * the struct that the code takes. Launches are then captured and run with their graph, and all memory is
   * the device's. */
  void *(*load)(const void *image);
  size_t (*params_bytes)(const void *code);
  double clock_ms; /* time of the device: the sum of all launches; events read it */
  bool
      capturing; /* launches take effect at once (but see `load`), and their time belongs to the graph */
  double captured_ms;
  int graphs; /* graphs and executable graphs that exist */
  int graph_launches;
  int blocks;                           /* allocations that exist */
  int streams, events;                  /* streams and events that exist */
  int stream_waits;                     /* waits of a stream for an event */
  fake_cuda_edge edge[FAKE_CUDA_EDGES]; /* the first records and waits, [edges] of any number */
  int edges;
  fake_cuda_copy copy[FAKE_CUDA_COPIES]; /* the first ones, [copies] of any number */
  int copies;
  int fail_copy;           /* the n-th such copy from now fails; 0: none */
  nsai_cu_stream captured; /* this one belongs to a capture; NULL: as `capturing` says of all */
  int priority;            /* of the newest stream that was made with one; 0: none was */
  int peer_contexts;       /* calls that enable access to another context's memory */
  int ipc_opened;          /* memory of other processes that is open */
  bool refuse_ipc;         /* it cannot be opened */
  int ipc_hangs; /* it was closed while the device stalled, which a driver would wait for */
  int stalls;    /* events and streams are never seen to finish */
  int full;      /* cuEventRecord waits while it is 1, as with a full launch queue */
} fake_cuda_state;

/* Exported by the module. */
fake_cuda_state *fake_cuda_record(void);

/* Within the module: protects the clocks and the last product. */
extern pthread_mutex_t fake_cuda_lock;

/* Within the module: the product that this thread performs. */
fake_product *fake_cuda_product(void);

/* Performs a launch: records it and advances the clock. */
void fake_cuda_enqueue(const fake_cuda_launch *launch, const void *params);

/* Exported by the module: makes a foreign context current on this thread, as a host that works
 * on another GPU does; NULL: none. Returns the previous one. */
nsai_cu_context fake_cuda_set_current(nsai_cu_context context);

#endif /* TEST_FAKE_CUDA_H */
