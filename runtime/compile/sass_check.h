/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What an assembler gets wrong, found in a kernel's machine code before it runs.
 */
#ifndef NSAI_COMPILE_SASS_CHECK_H
#define NSAI_COMPILE_SASS_CHECK_H

#include <stddef.h>
#include <stdint.h>

/* The first copy from global to shared memory, in bytes from the begin of its function, whose uniform
 * register was lost; -1: there is none. `cubin`: of sm_90 or a later architecture; bytes that are no
 * ELF image have none.
 *
 * cp.async with a cache policy may take its address in shared memory as the sum of a lane's register
 * and a uniform one, beside which the next uniform register holds the policy. ptxas 12.9 to
 * 13.3 leave that register's number 0, so that whatever lies in UR0 is added, and UR1 is the policy:
 * the H200 reports an illegal instruction. ptxas 13.4 writes the number. */
int64_t nsai_find_lost_register(const void *cubin, size_t size);

#endif /* NSAI_COMPILE_SASS_CHECK_H */
