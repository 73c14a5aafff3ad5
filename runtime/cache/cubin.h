/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Checks that bytes are machine code of NVIDIA's GPUs (a cubin) before they are imported from
 * another machine. Reads the headers, the section table and the symbol table once, within the bytes
 * that are given; instructions are not looked at.
 */
#ifndef NSAI_CACHE_CUBIN_H
#define NSAI_CACHE_CUBIN_H

#include <stddef.h>

/* Checks that `cubin` is an ELF image for NVIDIA's GPUs, made for the architecture `arch`
 * ("sm_90a"), and that it has code for the kernel `entry`. Returns NULL, or what is wrong
 * ("is machine code of another architecture than its key names").
 *
 * CUDA 13 does not mark whether a cubin uses the instructions that the "a" of "sm_90a" stands for.
 * Such a cubin of sm_90 is therefore taken for one of sm_90a. */
const char *nsai_cubin_check(const void *cubin, size_t size, const char *arch, const char *entry);

#endif /* NSAI_CACHE_CUBIN_H */
