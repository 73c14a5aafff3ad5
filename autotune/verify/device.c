/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/device.h"

#include "base/duration.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CPU_ALIGN 256 /* as cuMemAlloc aligns */

int nsai_verify_device_parse(const char *text, int32_t *ordinal) {
  int64_t value;
  if (!strcmp(text, "auto")) return *ordinal = NSAI_VERIFY_DEVICE_AUTO, 0;
  if (!strcmp(text, "cpu")) return *ordinal = NSAI_VERIFY_DEVICE_CPU, 0;
  if (!strncmp(text, "cuda:", 5)) text += 5;
  if (!nsai_parse_integer(text, 0, INT32_MAX, &value)) return -1;
  *ordinal = (int32_t)value;
  return 0;
}

int nsai_verify_seconds_parse(const char *text, double *seconds) {
  char *end;
  *seconds = strtod(text, &end);
  bool good = !*end && end == text + strspn(text, "0123456789.");
  return good && *seconds > 0 && isfinite(*seconds) ? 0 : -1;
}

nsa_status nsai_verify_device_open(int32_t ordinal, nsai_verify_device *device) {
  *device = (nsai_verify_device){ .ordinal = ordinal };
  if (ordinal == NSAI_VERIFY_DEVICE_CPU) {
    snprintf(device->name, sizeof device->name, "cpu");
    return NSA_OK;
  }
  const nsai_driver *driver;
  nsai_cu_device id;
  int count = 0;
  if (ordinal == NSAI_VERIFY_DEVICE_AUTO) device->ordinal = 0;
  NSAI_TRY(nsai_driver_open(NULL, NULL, &driver));
  NSAI_TRY(NSAI_CUDA(driver, cuDeviceGetCount(&count)));
  if (device->ordinal >= count)
    return nsai_fail(NSA_E_NO_DEVICE, "GPU %d: the driver sees %d", device->ordinal, count);
  NSAI_TRY(NSAI_CUDA(driver, cuDeviceGet(&id, device->ordinal)));
  NSAI_TRY(NSAI_CUDA(driver, cuDeviceGetName(device->name, (int)sizeof device->name, id)));
  NSAI_TRY(NSAI_CUDA(driver, cuDevicePrimaryCtxRetain(&device->context, id)));
  device->driver = driver;
  NSAI_TRY(nsai_verify_device_enter(device));
  return NSAI_CUDA(driver, cuStreamCreate(&device->stream, NSAI_CU_STREAM_NON_BLOCKING));
}

void nsai_verify_device_close(nsai_verify_device *device) {
  if (device->driver && device->stream) device->driver->cuStreamDestroy(device->stream);
  if (device->driver && device->context) device->driver->cuDevicePrimaryCtxRelease(device->ordinal);
  *device = (nsai_verify_device){ 0 };
}

nsa_status nsai_verify_device_enter(const nsai_verify_device *device) {
  if (!device->driver) return NSA_OK;
  return NSAI_CUDA(device->driver, cuCtxSetCurrent(device->context));
}

/* ---- memory ---------------------------------------------------------------------------------- */

nsa_status nsai_verify_device_alloc(const nsai_verify_device *device, size_t bytes, void **out) {
  *out = NULL;
  bytes = (bytes + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
  if (!bytes) bytes = CPU_ALIGN;
  if (!device->driver) {
    *out = aligned_alloc(CPU_ALIGN, bytes);
    return *out ? NSA_OK : nsai_fail_nomem("a check's buffer", bytes);
  }
  nsai_cu_ptr address = 0;
  NSAI_TRY(NSAI_CUDA(device->driver, cuMemAlloc(&address, bytes)));
  *out = (void *)(uintptr_t)address;
  return NSA_OK;
}

void nsai_verify_device_free(const nsai_verify_device *device, void *memory) {
  if (!memory) return;
  if (device->driver)
    device->driver->cuMemFree((nsai_cu_ptr)(uintptr_t)memory);
  else
    free(memory);
}

nsa_status nsai_verify_device_wait(const nsai_verify_device *device, nsa_stream stream) {
  if (!device->driver) return NSA_OK;
  return NSAI_CUDA(device->driver, cuStreamSynchronize(stream ? stream : device->stream));
}

nsa_status nsai_verify_device_capture(const nsai_verify_device *device,
                                      nsa_status (*enqueue)(void *user), void *user,
                                      nsai_cu_graph_exec *out) {
  nsai_cu_graph graph = NULL;
  NSAI_TRY(NSAI_CUDA(device->driver,
                     cuStreamBeginCapture(device->stream, NSAI_CU_CAPTURE_THREAD_LOCAL)));
  nsa_status status = enqueue(user);
  nsa_status ended = NSAI_CUDA(device->driver, cuStreamEndCapture(device->stream, &graph));
  if (!status) status = ended;
  if (!status) status = NSAI_CUDA(device->driver, cuGraphInstantiateWithFlags(out, graph, 0));
  if (graph) device->driver->cuGraphDestroy(graph);
  return status;
}

nsa_status nsai_verify_device_upload(const nsai_verify_device *device, void *to, const void *from,
                                     size_t bytes) {
  NSAI_TRY(nsai_verify_device_send(device, to, from, bytes));
  return nsai_verify_device_wait(device, NULL);
}

nsa_status nsai_verify_device_download(const nsai_verify_device *device, void *to, const void *from,
                                       size_t bytes) {
  if (!device->driver) {
    memcpy(to, from, bytes);
    return NSA_OK;
  }
  NSAI_TRY(NSAI_CUDA(device->driver,
                     cuMemcpyDtoHAsync(to, (nsai_cu_ptr)(uintptr_t)from, bytes, device->stream)));
  return nsai_verify_device_wait(device, NULL);
}

nsa_status nsai_verify_device_copy(const nsai_verify_device *device, void *to, const void *from,
                                   size_t bytes) {
  if (!device->driver) {
    memcpy(to, from, bytes);
    return NSA_OK;
  }
  return NSAI_CUDA(device->driver,
                   cuMemcpyDtoDAsync((nsai_cu_ptr)(uintptr_t)to, (nsai_cu_ptr)(uintptr_t)from,
                                     bytes, device->stream));
}

nsa_status nsai_verify_device_send(const nsai_verify_device *device, void *to, const void *from,
                                   size_t bytes) {
  if (!device->driver) {
    memcpy(to, from, bytes);
    return NSA_OK;
  }
  return NSAI_CUDA(device->driver,
                   cuMemcpyHtoDAsync((nsai_cu_ptr)(uintptr_t)to, from, bytes, device->stream));
}

nsa_status nsai_verify_device_alloc_host(const nsai_verify_device *device, size_t bytes,
                                         void **out) {
  if (device->driver) return NSAI_CUDA(device->driver, cuMemHostAlloc(out, bytes, 0));
  *out = malloc(bytes);
  return *out ? NSA_OK : nsai_fail_nomem("a check's host memory", bytes);
}

void nsai_verify_device_free_host(const nsai_verify_device *device, void *memory) {
  if (memory && device->driver)
    device->driver->cuMemFreeHost(memory);
  else
    free(memory);
}

nsa_status nsai_verify_device_set(const nsai_verify_device *device, void *memory, int value,
                                  size_t bytes) {
  if (!device->driver) {
    memset(memory, value, bytes);
    return NSA_OK;
  }
  return NSAI_CUDA(device->driver, cuMemsetD8Async((nsai_cu_ptr)(uintptr_t)memory,
                                                   (unsigned char)value, bytes, device->stream));
}

/* ---- guarded buffers ------------------------------------------------------------------------- */

static size_t whole(const nsai_verify_buffer *buffer) {
  return buffer->bytes + 2 * (size_t)NSAI_VERIFY_GUARD;
}

nsa_status nsai_verify_buffer_create(const nsai_verify_device *device, size_t bytes, int fill,
                                     nsai_verify_buffer *out) {
  void *memory;
  *out = (nsai_verify_buffer){ .bytes = bytes, .fill = fill };
  NSAI_TRY(nsai_verify_device_alloc(device, whole(out), &memory));
  out->device = memory;
  return nsai_verify_device_set(device, memory, fill, whole(out));
}

void nsai_verify_buffer_destroy(const nsai_verify_device *device, nsai_verify_buffer *buffer) {
  nsai_verify_device_free(device, buffer->device);
  free(buffer->image);
  *buffer = (nsai_verify_buffer){ 0 };
}

uint8_t *nsai_verify_buffer_image(nsai_verify_buffer *buffer) {
  if (!buffer->image) {
    buffer->image = malloc(whole(buffer));
    if (buffer->image) memset(buffer->image, buffer->fill, whole(buffer));
  }
  return buffer->image;
}

nsa_status nsai_verify_buffer_upload(const nsai_verify_device *device, nsai_verify_buffer *buffer) {
  return nsai_verify_device_upload(device, buffer->device, buffer->image, whole(buffer));
}

nsa_status nsai_verify_buffer_fetch(const nsai_verify_device *device, nsai_verify_buffer *buffer) {
  if (!nsai_verify_buffer_image(buffer)) return nsai_fail_nomem("a host image", whole(buffer));
  return nsai_verify_device_download(device, buffer->image, buffer->device, whole(buffer));
}

nsa_status nsai_verify_buffer_fetch_guards(const nsai_verify_device *device,
                                           nsai_verify_buffer *buffer) {
  const size_t behind = NSAI_VERIFY_GUARD + buffer->bytes;
  /* avoids writing gigabytes that are never used */
  if (!buffer->image) buffer->image = malloc(whole(buffer));
  if (!buffer->image) return nsai_fail_nomem("a host image", whole(buffer));
  NSAI_TRY(nsai_verify_device_download(device, buffer->image, buffer->device, NSAI_VERIFY_GUARD));
  return nsai_verify_device_download(device, buffer->image + behind, buffer->device + behind,
                                     NSAI_VERIFY_GUARD);
}

nsa_status nsai_verify_buffer_poison(const nsai_verify_device *device, nsai_verify_buffer *buffer) {
  return nsai_verify_device_set(device, buffer->device, buffer->fill, whole(buffer));
}

/* ---- time ------------------------------------------------------------------------------------ */

nsa_status nsai_verify_timer_create(const nsai_verify_device *device, nsai_verify_timer *timer) {
  *timer = (nsai_verify_timer){ 0 };
  if (!device->driver) return NSA_OK;
  NSAI_TRY(NSAI_CUDA(device->driver, cuEventCreate(&timer->start, NSAI_CU_EVENT_DEFAULT)));
  return NSAI_CUDA(device->driver, cuEventCreate(&timer->stop, NSAI_CU_EVENT_DEFAULT));
}

void nsai_verify_timer_destroy(const nsai_verify_device *device, nsai_verify_timer *timer) {
  if (timer->start) device->driver->cuEventDestroy(timer->start);
  if (timer->stop) device->driver->cuEventDestroy(timer->stop);
  *timer = (nsai_verify_timer){ 0 };
}

nsa_status nsai_verify_timer_start(const nsai_verify_device *device, nsai_verify_timer *timer) {
  timer->cpu_start = nsai_seconds();
  if (!device->driver) return NSA_OK;
  return NSAI_CUDA(device->driver, cuEventRecord(timer->start, device->stream));
}

nsa_status nsai_verify_timer_stop(const nsai_verify_device *device, nsai_verify_timer *timer) {
  timer->cpu_stop = nsai_seconds();
  if (!device->driver) return NSA_OK;
  return NSAI_CUDA(device->driver, cuEventRecord(timer->stop, device->stream));
}

nsa_status nsai_verify_timer_read(const nsai_verify_device *device, nsai_verify_timer *timer,
                                  double *ms) {
  *ms = 1e3 * (timer->cpu_stop - timer->cpu_start);
  if (!device->driver) return NSA_OK;
  float elapsed = 0;
  NSAI_TRY(NSAI_CUDA(device->driver, cuEventSynchronize(timer->stop)));
  NSAI_TRY(NSAI_CUDA(device->driver, cuEventElapsedTime(&elapsed, timer->start, timer->stop)));
  *ms = (double)elapsed;
  return NSA_OK;
}
