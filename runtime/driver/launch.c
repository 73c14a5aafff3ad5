/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "driver/launch.h"

#include <stdio.h>

#define MAX_GRID_X ((uint64_t)INT32_MAX) /* CUDA's limit on the first grid dimension */

/* The first major version whose kernels wait for each other (programmatic dependent launch).
 * Before CUDA 12.3 the driver does not capture the overlap into a graph. */
#define OVERLAP_MAJOR 9
#define OVERLAP_DRIVER 12030

nsai_queue nsai_queue_open(const nsai_device *device, nsa_stream stream) {
  return (nsai_queue){ .driver = device->driver,
                       .stream = stream,
                       .overlaps = device->arch->major >= OVERLAP_MAJOR &&
                                   device->driver_version >= OVERLAP_DRIVER };
}

nsa_status nsai_launch(nsai_queue *queue, const nsai_kernel *kernel, uint64_t grid_x,
                       uint32_t grid_y, const void *params) {
  if (!grid_x || !grid_y) return NSA_OK;
  if (grid_x > MAX_GRID_X)
    return nsai_fail(NSA_E_UNSUPPORTED,
                     "%s would need %llu blocks, CUDA launches at most %llu: split the batch",
                     kernel->name, (unsigned long long)grid_x, (unsigned long long)MAX_GRID_X);
  nsai_cu_launch_attribute overlap = { .id = NSAI_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION,
                                       .value.allowed = 1 };
  nsai_cu_launch_config config = {
    .grid_x = (uint32_t)grid_x,
    .grid_y = grid_y,
    .grid_z = 1,
    .block_x = (uint32_t)kernel->threads,
    .block_y = 1,
    .block_z = 1,
    .shared_bytes = kernel->shared_bytes,
    .stream = queue->stream,
    .attributes = &overlap,
    .attribute_count = queue->overlaps && queue->last,
  };
  void *arguments[] = { (void *)(uintptr_t)params };
  nsai_cu_result result =
      queue->driver->cuLaunchKernelEx(&config, kernel->function, arguments, NULL);
  queue->last = kernel;
  if (result == NSAI_CUDA_SUCCESS) return NSA_OK;
  char call[96];
  snprintf(call, sizeof call, "cuLaunchKernelEx of %s", kernel->name);
  return nsai_driver_status(queue->driver, result, call);
}
