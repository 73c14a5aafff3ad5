/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Launching kernels. The only file that launches, so that no launch can forget its stream, or what
 * it stands behind.
 *
 * From sm_90 on a kernel may begin before the one right before it has ended (programmatic dependent
 * launch); the kernels know what they have to wait for: core/launch.cuh. That holds among the
 * kernels of one run alone: its first one, and one behind a product of cuBLASLt or an event, begin
 * when all before them has ended.
 */
#ifndef NSAI_DRIVER_LAUNCH_H
#define NSAI_DRIVER_LAUNCH_H

#include "driver/device.h"

struct nsai_loaded; /* plan/kernel_set.c: a kernel in the device's memory */

/* A loaded kernel. */
typedef struct nsai_kernel {
  nsai_cu_function function;
  struct nsai_loaded *loaded; /* where the function lies; held by this struct */
  const char *name;
  int32_t threads;
  uint32_t shared_bytes;
  int32_t tile_tokens; /* query tokens a block takes; 0: not tiled by tokens */
  int32_t most_blocks; /* of a persistent kernel, tiled by tokens; 0: a block for each tile */
  int32_t tma_box_heads, tma_box_tokens, tma_box_keys; /* of its tensor maps: nsai_kernel_spec */
  bool interleaved_keys;
} nsai_kernel;

/* Where one run enqueues. */
typedef struct nsai_queue {
  const nsai_driver *driver;
  nsa_stream stream;
  bool overlaps; /* whether kernels may */
  const nsai_kernel
      *last; /* the kernel that was enqueued last; NULL: none, or something else since */
} nsai_queue;

nsai_queue nsai_queue_open(const nsai_device *device, nsa_stream stream);

/* Something else than a kernel was enqueued. */
static inline void nsai_queue_break(nsai_queue *queue) { queue->last = NULL; }

/* Enqueues one kernel whose only parameter is the struct at `params`. A grid of 0 blocks is no
 * launch. */
nsa_status nsai_launch(nsai_queue *queue, const nsai_kernel *kernel, uint64_t grid_x,
                       uint32_t grid_y, const void *params);

#endif /* NSAI_DRIVER_LAUNCH_H */
