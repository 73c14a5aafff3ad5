/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Detects a known error of the assembler in a kernel's machine code before the kernel runs.
 */
#ifndef NSAI_COMPILE_SASS_CHECK_H
#define NSAI_COMPILE_SASS_CHECK_H

#include <stddef.h>
#include <stdint.h>

/* The first copy from global to shared memory whose uniform register was lost, in bytes from the
 * start of its function; -1: there is none. `cubin` is for sm_90 or a later architecture; bytes
 * that are no ELF image have none.
 *
 * cp.async with a cache policy may use as its shared-memory address the sum of a lane's register
 * and a uniform register; the next uniform register holds the policy. ptxas 12.9 to 13.3 encode
 * 0 as the number of the uniform register, so that UR0 is added whatever it contains, and UR1 is
 * the policy: the H200 reports an illegal instruction. ptxas 13.4 encodes the number. */
int64_t nsai_find_lost_register(const void *cubin, size_t size);

#endif /* NSAI_COMPILE_SASS_CHECK_H */
