/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Launches kernels. This is the only file that launches, so that no launch can forget its stream
 * or its dependence on earlier work.
 *
 * From sm_90 on a kernel may begin before the previous one has ended (programmatic dependent
 * launch); core/launch.cuh shows how kernels wait for their inputs. This applies only among the
 * kernels of one run. Its first kernel, and a kernel after a cuBLASLt product or an event, begin
 * when all earlier work has ended.
 */
#ifndef NSAI_DRIVER_LAUNCH_H
#define NSAI_DRIVER_LAUNCH_H

#include "driver/device.h"

struct nsai_loaded; /* plan/kernel_set.c: a kernel in device memory */

/* A loaded kernel. */
typedef struct nsai_kernel {
  nsai_cu_function function;
  struct nsai_loaded *loaded; /* owns the function; referenced by this struct */
  const char *name;
  int32_t threads;
  uint32_t shared_bytes;
  int32_t tile_tokens; /* query tokens per CTA; 0: not tiled by tokens */
  /* largest grid of a persistent kernel that is tiled by tokens; 0: one CTA per tile */
  int32_t most_ctas;
  /* boxes of its tensor maps: nsai_kernel_spec */
  int32_t tma_box_heads, tma_box_tokens, tma_box_keys;
  bool interleaved_keys;
} nsai_kernel;

/* The stream of one run and its state. */
typedef struct nsai_queue {
  const nsai_driver *driver;
  nsa_stream stream;
  bool overlaps; /* whether kernels may overlap */
  const nsai_kernel
      /* the kernel that was enqueued last; NULL: none, or something else was enqueued since */
      *last;
} nsai_queue;

nsai_queue nsai_queue_open(const nsai_device *device, nsa_stream stream);

/* To be called when something other than a kernel was enqueued. */
static inline void nsai_queue_break(nsai_queue *queue) { queue->last = NULL; }

/* Enqueues one kernel whose only parameter is the struct at `params`. A grid of 0 CTAs launches
 * nothing. */
nsa_status nsai_launch(nsai_queue *queue, const nsai_kernel *kernel, uint64_t grid_x,
                       uint32_t grid_y, const void *params);

#endif /* NSAI_DRIVER_LAUNCH_H */
