/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The device under test: a GPU through the driver table, or the CPU device. Memory comes with
 * guard bands. Everything is synchronous except the functions that say otherwise,
 * nsai_verify_device_set, and what runs enqueue.
 */
#ifndef NSAI_VERIFY_DEVICE_H
#define NSAI_VERIFY_DEVICE_H

#include "driver/cuda_api.h"

typedef struct nsai_verify_device {
  const nsai_driver *driver; /* NULL: the CPU device */
  nsai_cu_context context;
  nsai_cu_stream stream; /* used by everything that does not take another stream */
  int32_t ordinal;
  char name[96];
} nsai_verify_device;

enum { NSAI_VERIFY_DEVICE_CPU = -2, NSAI_VERIFY_DEVICE_AUTO = -1 };

/* Reads "auto", "cpu" or an ordinal, "1" or "cuda:1". Returns 0, or -1. */
int nsai_verify_device_parse(const char *text, int32_t *ordinal);

/* Reads a decimal number above 0, as 90 or 0.5. Returns 0, or -1. */
int nsai_verify_seconds_parse(const char *text, double *seconds);

/* Opens GPU `ordinal` (NSAI_VERIFY_DEVICE_AUTO: the first) or the CPU device. NSA_E_NO_DRIVER
 * and NSA_E_NO_DEVICE mean that there is no GPU to test. */
nsa_status nsai_verify_device_open(int32_t ordinal, nsai_verify_device *device);
void nsai_verify_device_close(nsai_verify_device *device);

/* Makes the device current on the calling thread; a no-op for the CPU. */
nsa_status nsai_verify_device_enter(const nsai_verify_device *device);

nsa_status nsai_verify_device_alloc(const nsai_verify_device *device, size_t bytes, void **out);
void nsai_verify_device_free(const nsai_verify_device *device, void *memory);
nsa_status nsai_verify_device_upload(const nsai_verify_device *device, void *to, const void *from,
                                     size_t bytes);
nsa_status nsai_verify_device_download(const nsai_verify_device *device, void *to, const void *from,
                                       size_t bytes);
/* Only enqueue on the device's stream: a copy within the device, and one from host memory. The
 * host memory must come from nsai_verify_device_alloc_host and must not change until the stream
 * has been waited for. */
nsa_status nsai_verify_device_copy(const nsai_verify_device *device, void *to, const void *from,
                                   size_t bytes);
nsa_status nsai_verify_device_send(const nsai_verify_device *device, void *to, const void *from,
                                   size_t bytes);

/* Pinned host memory. */
nsa_status nsai_verify_device_alloc_host(const nsai_verify_device *device, size_t bytes,
                                         void **out);
void nsai_verify_device_free_host(const nsai_verify_device *device, void *memory);

nsa_status nsai_verify_device_set(const nsai_verify_device *device, void *memory, int value,
                                  size_t bytes);

/* Captures what `enqueue` puts on the device's stream (not on the CPU device). The caller
 * destroys *out. */
nsa_status nsai_verify_device_capture(const nsai_verify_device *device,
                                      nsa_status (*enqueue)(void *user), void *user,
                                      nsai_cu_graph_exec *out);

/* Bytes that are written to empty the L2: four times the largest L2 so far (60 MB). */
#define NSAI_VERIFY_FLUSH_BYTES ((size_t)256 << 20)

/* Waits for `stream` (NULL: the device's own). */
nsa_status nsai_verify_device_wait(const nsai_verify_device *device, nsa_stream stream);

/* Memory between two guard bands. The host image holds what was uploaded or fetched last. */
#define NSAI_VERIFY_GUARD 4096u /* bytes on each side: more than a row of any tile */

typedef struct nsai_verify_buffer {
  uint8_t *device; /* guard, data, guard */
  uint8_t *image;  /* host copy of all three; NULL until needed */
  size_t bytes;    /* of the data alone */
  int fill;        /* the byte that fills guards, gaps and poisoned outputs */
} nsai_verify_buffer;

/* `fill` marks memory that nobody may read or that must be overwritten: 0xff is NaN in every
 * float type. */
nsa_status nsai_verify_buffer_create(const nsai_verify_device *device, size_t bytes, int fill,
                                     nsai_verify_buffer *out);
void nsai_verify_buffer_destroy(const nsai_verify_device *device, nsai_verify_buffer *buffer);

/* The host image; a new one is filled with `fill`. NULL when memory is exhausted. */
uint8_t *nsai_verify_buffer_image(nsai_verify_buffer *buffer);

nsa_status nsai_verify_buffer_upload(const nsai_verify_device *device, nsai_verify_buffer *buffer);
nsa_status nsai_verify_buffer_fetch(const nsai_verify_device *device, nsai_verify_buffer *buffer);
/* Fetches only the guards; the image's bytes between them are undefined. */
nsa_status nsai_verify_buffer_fetch_guards(const nsai_verify_device *device,
                                           nsai_verify_buffer *buffer);
nsa_status nsai_verify_buffer_poison(const nsai_verify_device *device, nsai_verify_buffer *buffer);

/* Milliseconds on the device between two points of a stream; on the CPU by the monotonic clock. */
typedef struct nsai_verify_timer {
  nsai_cu_event start, stop;
  double cpu_start, cpu_stop;
} nsai_verify_timer;

nsa_status nsai_verify_timer_create(const nsai_verify_device *device, nsai_verify_timer *timer);
void nsai_verify_timer_destroy(const nsai_verify_device *device, nsai_verify_timer *timer);
nsa_status nsai_verify_timer_start(const nsai_verify_device *device, nsai_verify_timer *timer);
nsa_status nsai_verify_timer_stop(const nsai_verify_device *device, nsai_verify_timer *timer);

/* Waits for `stop`. */
nsa_status nsai_verify_timer_read(const nsai_verify_device *device, nsai_verify_timer *timer,
                                  double *ms);

#endif /* NSAI_VERIFY_DEVICE_H */
