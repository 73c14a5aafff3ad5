/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One GPU: chosen by the host, queried once, with its primary CUDA context retained. Or no GPU,
 * only an architecture to compile for ("deviceless").
 */
#ifndef NSAI_DRIVER_DEVICE_H
#define NSAI_DRIVER_DEVICE_H

#include "driver/arch.h"
#include "driver/cuda_api.h"

typedef struct nsai_device {
  const nsai_driver *driver; /* NULL: deviceless */
  nsai_cu_device ordinal;    /* -1: deviceless */
  /* the current context if it belongs to this device, else the retained primary one */
  nsai_cu_context context;
  bool retained;              /* nsai_device_fini must release the primary context */
  const nsai_arch *arch;      /* what kernels are compiled for */
  char name[128];             /* "NVIDIA H200"; "sm_90a (no device)" */
  char uuid[48];              /* "GPU-xxxxxxxx-xxxx-...", as nvidia-smi prints it */
  char pci_id[16];            /* "0000:1b:00.0" */
  int32_t cc_major, cc_minor; /* compute capability */
  int32_t sm_count;           /* 0: deviceless */
  int32_t shared_bytes;       /* most dynamic shared memory of a CTA, by opt-in */
  int64_t l2_bytes;           /* 0: deviceless */
  uint64_t memory_bytes;      /* device memory; 0: deviceless */
  int32_t driver_version;     /* 13000 is CUDA 13.0; 0: deviceless */
} nsai_device;

/* Chooses, describes and holds a GPU.
 *
 * driver  opened; borrowed.
 * which   "auto" or NULL: the device of the thread's current CUDA context, else the first usable
 *         one; or an ordinal "0"; a PCI bus id "0000:1b:00.0" or "1b:00.0"; a UUID "GPU-...", or
 *         its beginning where that is unique.
 * out     filled; nsai_device_fini releases it.
 *
 * The current context is left as it was. NSA_E_NO_DEVICE (names what there is), NSA_E_UNSUPPORTED
 * (architecture), NSA_E_CUDA. */
nsa_status nsai_device_init(const nsai_driver *driver, const char *which, nsai_device *out);

/* Finds the GPU that `which` names, as above, and takes no context of it. Unless `which` is "auto", it
 * may be a GPU that nsai_device_init refuses. NSA_E_NO_DEVICE, NSA_E_CUDA; "auto": NSA_E_UNSUPPORTED. */
nsa_status nsai_device_find(const nsai_driver *driver, const char *which, nsai_cu_device *out);

/* Describes an architecture to compile for; nothing is opened. NSA_E_UNSUPPORTED. */
nsa_status nsai_device_init_arch(const char *arch, nsai_device *out);

/* Releases the context; a zeroed or deviceless struct is fine. */
void nsai_device_fini(nsai_device *device);

/* Fills everything except the context, for lists of devices. NSA_E_UNSUPPORTED, NSA_E_CUDA. */
nsa_status nsai_device_describe(const nsai_driver *driver, nsai_cu_device ordinal,
                                nsai_device *out);

/* Makes the device's context current on this thread when it is not; `*pushed` says whether leave must
 * undo it. NSA_E_CUDA. */
nsa_status nsai_device_enter(const nsai_device *device, bool *pushed);
void nsai_device_leave(const nsai_device *device, bool pushed);

#endif /* NSAI_DRIVER_DEVICE_H */
