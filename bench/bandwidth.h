/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Measures how fast the device reads its memory: the reference of all bandwidth percentages.
 */
#ifndef BENCH_BANDWIDTH_H
#define BENCH_BANDWIDTH_H

#include "plan/context.h"
#include "verify/device.h"

/* The text of stream_read.cuh. */
extern const char bench_stream_read_text[];

/* Reads 4 GiB (or a quarter of the device's memory if that is less) several times by
 * stream_read. *gbps: 1e9 bytes per second of the median time, 0 on the CPU device. `ctx`
 * compiles the kernel in 0.1 s and keeps nothing of it. Waits for the device.
 *
 * Returns errors of compiling, loading and launching; NSA_E_NOMEM or NSA_E_CUDA without memory. */
nsa_status bench_bandwidth_measure(const nsai_verify_device *device, nsa_ctx *ctx, double *gbps);

#endif /* BENCH_BANDWIDTH_H */
