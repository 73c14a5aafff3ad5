/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "bandwidth.h"

#include "driver/launch.h"
#include "time_launch.h"

#include <stdlib.h>

#define MOST_BYTES ((size_t)4 << 30) /* so much that an L2 of 60 MB holds only a negligible part */
#define THREADS 256                  /* CTA size of stream_read */
#define BLOCKS_PER_SM 8
#define LAUNCHES 9
/* of noise, repeated: memory buses use more power when their lines toggle */
#define PIECE ((size_t)16 << 20)
#define EVERY_BIT 0xffffffffu /* at least one word contains it */

/* The parameters of stream_read.cuh. */
typedef struct stream_read {
  void *from;
  unsigned long long count; /* in units of 16 bytes */
  unsigned *seen;
} stream_read;

typedef struct stream {
  const nsai_verify_device *device;
  nsa_ctx *ctx;
  nsai_cu_library library;
  nsai_kernel kernel;
  stream_read params;
} stream;

static nsa_status load(stream *s) {
  const nsai_driver *driver = s->device->driver;
  nsai_compile_request request = { .name = "stream_read",
                                   .source = bench_stream_read_text,
                                   .arch = s->ctx->target.arch };
  nsai_kernel_image image = { 0 };
  nsai_cu_kernel kernel = NULL;
  NSAI_TRY(nsai_compile(s->ctx->compiler, &request, &image));
  nsa_status status =
      NSAI_CUDA(driver, cuLibraryLoadData(&s->library, image.cubin, NULL, NULL, 0, NULL, NULL, 0));
  nsai_kernel_image_fini(&image);
  NSAI_TRY(status);
  NSAI_TRY(NSAI_CUDA(driver, cuLibraryGetKernel(&kernel, s->library, request.name)));
  s->kernel = (nsai_kernel){ .name = request.name, .threads = THREADS };
  return NSAI_CUDA(driver, cuKernelGetFunction(&s->kernel.function, kernel));
}

/* Fills with noise, which is what K and V look like to memory. */
static nsa_status fill(const stream *s, size_t bytes) {
  uint64_t *noise = malloc(PIECE), x = 1;
  nsa_status status = NSA_OK;
  if (!noise) return nsai_fail_nomem("noise", PIECE);
  for (size_t i = 0; i < PIECE / sizeof *noise; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17; /* xorshift64 */
    noise[i] = x;
  }
  for (size_t at = 0; at < bytes && !status; at += PIECE)
    status = nsai_verify_device_upload(s->device, (char *)s->params.from + at, noise,
                                       bytes - at < PIECE ? bytes - at : PIECE);
  free(noise);
  return status;
}

static nsa_status allocate(stream *s) {
  nsai_cu_device ordinal;
  size_t all;
  NSAI_TRY(NSAI_CUDA(s->device->driver, cuDeviceGet(&ordinal, s->device->ordinal)));
  NSAI_TRY(NSAI_CUDA(s->device->driver, cuDeviceTotalMem(&all, ordinal)));
  const size_t bytes = (all / 4 < MOST_BYTES ? all / 4 : MOST_BYTES) / 16 * 16;
  s->params.count = bytes / 16;
  NSAI_TRY(nsai_verify_device_alloc(s->device, bytes, &s->params.from));
  NSAI_TRY(fill(s, bytes));
  NSAI_TRY(nsai_verify_device_alloc(s->device, sizeof(unsigned), (void **)&s->params.seen));
  return nsai_verify_device_set(s->device, s->params.seen, 0, sizeof(unsigned));
}

static nsa_status launch(const stream *s, nsai_verify_timer *timer, double *ms) {
  nsai_queue queue = nsai_queue_open(&s->ctx->device, (nsa_stream)s->device->stream);
  NSAI_TRY(nsai_verify_timer_start(s->device, timer));
  NSAI_TRY(
      nsai_launch(&queue, &s->kernel, (uint64_t)s->ctx->target.sms * BLOCKS_PER_SM, 1, &s->params));
  NSAI_TRY(nsai_verify_timer_stop(s->device, timer));
  return nsai_verify_timer_read(s->device, timer, ms);
}

/* The first launch warms up. */
static nsa_status time_launches(const stream *s, double *gbps) {
  nsai_verify_timer timer;
  nsa_status status = NSA_OK;
  double ms[LAUNCHES];
  unsigned seen = 0;
  NSAI_TRY(nsai_verify_timer_create(s->device, &timer));
  for (int i = -1; i < LAUNCHES && !status; i++) status = launch(s, &timer, &ms[i < 0 ? 0 : i]);
  nsai_verify_timer_destroy(s->device, &timer);
  NSAI_TRY(status);
  NSAI_TRY(nsai_verify_device_download(s->device, &seen, s->params.seen, sizeof seen));
  if (seen != EVERY_BIT)
    return nsai_fail(NSA_E_INTERNAL, "stream_read has seen 0x%08x, not what the memory holds",
                     seen);
  *gbps = 16e-6 * (double)s->params.count / chk_median(ms, LAUNCHES);
  return NSA_OK;
}

nsa_status bench_bandwidth_measure(const nsai_verify_device *device, nsa_ctx *ctx, double *gbps) {
  stream s = { .device = device, .ctx = ctx };
  nsa_status status;
  *gbps = 0;
  if (!device->driver) return NSA_OK;
  NSAI_TRY(nsai_verify_device_enter(device));
  NSAI_TRY_TO(done, load(&s));
  NSAI_TRY_TO(done, allocate(&s));
  NSAI_TRY_TO(done, time_launches(&s, gbps));
done:
  if (s.params.seen) nsai_verify_device_free(device, s.params.seen);
  if (s.params.from) nsai_verify_device_free(device, s.params.from);
  if (s.library) device->driver->cuLibraryUnload(s.library);
  return status;
}
