/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The device under test: a GPU through the driver table, or the CPU device. Memory comes with red
 * zones. Everything is synchronous except chk_device_record and what runs enqueue.
 */
#ifndef CHK_DEVICE_H
#define CHK_DEVICE_H

#include "cuda_api.h"

typedef struct chk_device {
  const nsai_driver *driver; /* NULL: the CPU device */
  nsai_cu_context context;
  nsai_cu_stream stream; /* where everything runs that asks for no other */
  int32_t ordinal;
  char name[96];
} chk_device;

enum { CHK_DEVICE_CPU = -2, CHK_DEVICE_AUTO = -1 };

/* Reads "auto", "cpu" or an ordinal. Returns 0, or -1. */
int chk_device_parse(const char *text, int32_t *ordinal);

/* Opens GPU `ordinal` (CHK_DEVICE_AUTO: the first) or the CPU device. NSA_E_NO_DRIVER and
 * NSA_E_NO_DEVICE mean that there is no GPU to check. */
nsa_status chk_device_open(int32_t ordinal, chk_device *device);
void chk_device_close(chk_device *device);

/* Makes the device current on the calling thread; a no-op for the CPU. */
nsa_status chk_device_enter(const chk_device *device);

nsa_status chk_device_alloc(const chk_device *device, size_t bytes, void **out);
void chk_device_free(const chk_device *device, void *memory);
nsa_status chk_device_upload(const chk_device *device, void *to, const void *from, size_t bytes);
nsa_status chk_device_download(const chk_device *device, void *to, const void *from, size_t bytes);
nsa_status chk_device_set(const chk_device *device, void *memory, int value, size_t bytes);

/* Waits for `stream` (NULL: the device's own). */
nsa_status chk_device_wait(const chk_device *device, nsa_stream stream);

/* Memory between two guard bands. The host image holds what was uploaded or fetched last. */
#define CHK_GUARD 4096u /* bytes on each side: more than any tile's row */

typedef struct chk_buffer {
  uint8_t *device; /* guard, data, guard */
  uint8_t *image;  /* host copy of the same; NULL until needed */
  size_t bytes;    /* data alone */
  int fill;        /* the byte of guards, gaps and poison */
} chk_buffer;

/* `fill` is what nobody may read or must overwrite: 0xff is NaN in every float type. */
nsa_status chk_buffer_create(const chk_device *device, size_t bytes, int fill, chk_buffer *out);
void chk_buffer_destroy(const chk_device *device, chk_buffer *buffer);

/* The host image, filled with `fill` when it is new; NULL when memory is out. */
uint8_t *chk_buffer_image(chk_buffer *buffer);

nsa_status chk_buffer_upload(const chk_device *device, chk_buffer *buffer);
nsa_status chk_buffer_fetch(const chk_device *device, chk_buffer *buffer);
nsa_status chk_buffer_poison(const chk_device *device, chk_buffer *buffer);

/* Milliseconds on the device between two points of a stream; on the CPU by the monotonic clock. */
typedef struct chk_timer {
  nsai_cu_event start, stop;
  double cpu_start, cpu_stop;
} chk_timer;

nsa_status chk_timer_create(const chk_device *device, chk_timer *timer);
void chk_timer_destroy(const chk_device *device, chk_timer *timer);
nsa_status chk_timer_start(const chk_device *device, chk_timer *timer);
nsa_status chk_timer_stop(const chk_device *device, chk_timer *timer);

/* Waits for `stop`. */
nsa_status chk_timer_read(const chk_device *device, chk_timer *timer, double *ms);

/* Seconds of the monotonic clock. */
double chk_now(void);

#endif /* CHK_DEVICE_H */
