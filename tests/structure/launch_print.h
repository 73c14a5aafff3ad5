/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Buffers without memory whose addresses encode their names, and launches as text. The size of a
 * kernel's parameters is read from the kernel templates: the type of the entry's parameter, and
 * NSAI_SIZE_IS.
 */
#ifndef TEST_LAUNCH_PRINT_H
#define TEST_LAUNCH_PRINT_H

#include "fake_cuda.h"

#define BUFFER_BYTES                                                                               \
  ((UINT64_C(1) << 40) - 1) /* largest offset of an address from its buffer's begin */

/* Makes a new buffer and returns its address. */
void *buffer_new(const char *name);
const char *buffer_name(const void *address);
void buffers_forget(void); /* all of them */

/* Whether the following launches belong to a run over a KV cache: some kernels then have other
 * parameters. */
extern bool print_cached;

/* A fake_cuda_kernel: prints the launch and those words of its parameters that are not 0. */
double print_launch(const fake_cuda_launch *launch, const void *params);

#endif /* TEST_LAUNCH_PRINT_H */
