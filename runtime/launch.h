/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Launching kernels. The only file that launches, so that no launch can forget its stream.
 */
#ifndef NSAI_LAUNCH_H
#define NSAI_LAUNCH_H

#include "cuda_api.h"

struct nsai_loaded; /* kernels.c: a kernel in the device's memory */

/* A loaded kernel. */
typedef struct nsai_kernel {
  nsai_cu_function function;
  struct nsai_loaded *loaded; /* where the function lies; held by this struct */
  const char *name;
  int32_t threads;
  uint32_t shared_bytes;
  int32_t tokens;      /* query tokens a block takes; 0: not tiled by tokens */
  int32_t most_blocks; /* of a persistent kernel, tiled by tokens; 0: a block for each tile */
  int32_t box_heads, box_tokens, box_keys; /* of its tensor maps: nsai_kernel_spec */
  bool spread_keys;
} nsai_kernel;

/* Enqueues one kernel whose only parameter is the struct at `params`. A grid of 0 blocks is no
 * launch. */
nsa_status nsai_launch(const nsai_driver *driver, const nsai_kernel *kernel, uint64_t grid_x,
                       uint32_t grid_y, const void *params, nsa_stream stream);

#endif /* NSAI_LAUNCH_H */
