/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The GPU architectures that kernels are compiled for. NVRTC lists bare numbers only. This table
 * knows which of them need the suffix "a" for instructions of exactly one architecture (wgmma,
 * tcgen05).
 */
#ifndef NSAI_DRIVER_ARCH_H
#define NSAI_DRIVER_ARCH_H

#include <nsa/base.h>
#include <stdint.h>

typedef struct nsai_arch {
  const char *name;     /* "sm_90a": the value of --gpu-architecture */
  int32_t major, minor; /* compute capability */
  int32_t shared_bytes; /* most dynamic shared memory of one block, by opt-in */
  int32_t fewest_sms;   /* of the smallest device, or part of one by MIG */
} nsai_arch;

/* By name; NULL when unknown. */
const nsai_arch *nsai_arch_find(const char *name);

/* The same; a name that is unknown is NSA_E_UNSUPPORTED, with the architecture that was probably
 * meant and all that there are in the error text. */
nsa_status nsai_arch_demand(const char *name, const nsai_arch **out);

/* The architecture to compile for on a device of this compute capability: the entry itself, or
 * the nearest lower one of the same major version without a suffix, whose cubins run there too.
 * NULL: not supported. */
const nsai_arch *nsai_arch_of_capability(int32_t major, int32_t minor);

/* The architecture that another spelling means: a number ("90", "9.0"), one without its suffix
 * ("sm_90"), a device's name ("h100", "NVIDIA GeForce RTX 4090"), or a misspelt name. NULL: none. */
const char *nsai_arch_meant(const char *name);

/* "sm_80, sm_86, ...", for messages. */
const char *nsai_arch_names(void);

/* The entry at `index`; NULL after the last. */
const nsai_arch *nsai_arch_at(int32_t index);

#endif /* NSAI_DRIVER_ARCH_H */
