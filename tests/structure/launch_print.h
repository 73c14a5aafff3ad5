/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Buffers without memory, whose addresses tell their names, and launches as text. How many bytes the
 * parameters of a kernel have is read from the kernel templates: the type of the entry's parameter, and
 * NSAI_SIZE_IS.
 */
#ifndef TEST_LAUNCH_PRINT_H
#define TEST_LAUNCH_PRINT_H

#include "fake_cuda.h"

#define BUFFER_BYTES                                                                               \
  ((UINT64_C(1) << 40) - 1) /* that an address may lie behind its buffer's first */

/* The address of a new buffer, and the name of one. */
void *buffer_new(const char *name);
const char *buffer_name(const void *address);
void buffers_forget(void); /* all of them */

/* Whether the launches to come are of a run over a KV cache: some kernels then have other parameters. */
extern bool print_cached;

/* A fake_cuda_kernel: prints the launch and its parameters, those words that are not 0. */
double print_launch(const fake_cuda_launch *launch, const void *params);

#endif /* TEST_LAUNCH_PRINT_H */
