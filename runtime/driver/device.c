/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "driver/device.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static void write_uuid(const nsai_cu_uuid *uuid, char *out, size_t size) {
  const unsigned char *b = uuid->bytes;
  snprintf(out, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
           b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
           b[14], b[15]);
}

nsa_status nsai_device_describe(const nsai_driver *driver, nsai_cu_device ordinal,
                                nsai_device *out) {
  nsai_cu_uuid uuid;
  size_t memory = 0;
  int l2 = 0, prohibited = 0;
  memset(out, 0, sizeof *out);
  out->driver = driver;
  out->ordinal = ordinal;
  out->driver_version = driver->version;
  const struct {
    int attribute;
    int *value;
  } attributes[] = {
    { NSAI_CU_DEVICE_CC_MAJOR, &out->cc_major },
    { NSAI_CU_DEVICE_CC_MINOR, &out->cc_minor },
    { NSAI_CU_DEVICE_SM_COUNT, &out->sm_count },
    { NSAI_CU_DEVICE_MAX_SHARED_PER_BLOCK_OPTIN, &out->shared_bytes },
    { NSAI_CU_DEVICE_L2_BYTES, &l2 },
    { NSAI_CU_DEVICE_COMPUTE_MODE, &prohibited },
  };
  for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++)
    NSAI_TRY(NSAI_CUDA(driver, cuDeviceGetAttribute(attributes[i].value, attributes[i].attribute,
                                                    ordinal)));
  NSAI_TRY(NSAI_CUDA(driver, cuDeviceGetName(out->name, (int)sizeof out->name, ordinal)));
  NSAI_TRY(NSAI_CUDA(driver, cuDeviceGetUuid(&uuid, ordinal)));
  NSAI_TRY(NSAI_CUDA(driver, cuDeviceGetPCIBusId(out->pci_id, (int)sizeof out->pci_id, ordinal)));
  NSAI_TRY(NSAI_CUDA(driver, cuDeviceTotalMem(&memory, ordinal)));
  write_uuid(&uuid, out->uuid, sizeof out->uuid);
  out->l2_bytes = l2;
  out->memory_bytes = memory;
  out->arch = nsai_arch_of_capability(out->cc_major, out->cc_minor);
  if (!out->arch)
    return nsai_fail(NSA_E_UNSUPPORTED,
                     "GPU %d (%s) has compute capability %d.%d; this library has "
                     "kernels for %s.",
                     (int)ordinal, out->name, (int)out->cc_major, (int)out->cc_minor,
                     nsai_arch_names());
  if (prohibited == NSAI_CU_COMPUTEMODE_PROHIBITED)
    return nsai_fail(NSA_E_NO_DEVICE,
                     "GPU %d (%s) is in compute mode \"prohibited\"; an administrator "
                     "can change that with nvidia-smi -c.",
                     (int)ordinal, out->name);
  return NSA_OK;
}

/* ---- choosing ---- */

/* "3" or "cuda:3": an ordinal. */
static bool parse_ordinal(const char *which, int *ordinal) {
  int64_t value;
  if (!strncmp(which, "cuda:", 5)) which += 5;
  if (!nsai_parse_integer(which, 0, INT32_MAX, &value)) return false;
  *ordinal = (int)value;
  return true;
}

static nsa_status choose_uuid(const nsai_driver *driver, const char *which, int count,
                              nsai_cu_device *out) {
  int matches = 0;
  for (int i = 0; i < count; i++) {
    nsai_cu_device candidate;
    nsai_cu_uuid uuid;
    char text[48];
    NSAI_TRY(NSAI_CUDA(driver, cuDeviceGet(&candidate, i)));
    NSAI_TRY(NSAI_CUDA(driver, cuDeviceGetUuid(&uuid, candidate)));
    write_uuid(&uuid, text, sizeof text);
    if (strncasecmp(text, which, strlen(which)) != 0) continue;
    *out = candidate;
    matches++;
  }
  if (matches == 1) return NSA_OK;
  return nsai_fail(NSA_E_NO_DEVICE,
                   "runtime.device: %s names %s of the %d visible GPUs; nvidia-smi "
                   "-L lists them.",
                   which, matches ? "more than one" : "none", count);
}

/* The device of the thread's current context: a host that has set up CUDA has already chosen. */
static bool current_device(const nsai_driver *driver, nsai_cu_device *out) {
  nsai_cu_context context = NULL;
  return driver->cuCtxGetCurrent(&context) == NSAI_CUDA_SUCCESS && context &&
         driver->cuCtxGetDevice(out) == NSAI_CUDA_SUCCESS;
}

static nsa_status choose_first_usable(const nsai_driver *driver, int count, nsai_cu_device *out) {
  nsa_status status = NSA_E_NO_DEVICE;
  for (int i = 0; i < count; i++) {
    nsai_device candidate;
    NSAI_TRY(NSAI_CUDA(driver, cuDeviceGet(out, i)));
    status = nsai_device_describe(driver, *out, &candidate);
    if (status == NSA_OK) return NSA_OK;
  }
  NSAI_TRY(status); /* the text of the last one: with a single GPU it is the reason */
  return NSA_OK;
}

nsa_status nsai_device_find(const nsai_driver *driver, const char *which, nsai_cu_device *out) {
  int count = 0, ordinal = 0;
  NSAI_TRY(NSAI_CUDA(driver, cuDeviceGetCount(&count)));
  if (count == 0)
    return nsai_fail(NSA_E_NO_DEVICE, "the NVIDIA driver sees no GPU: check nvidia-smi and "
                                      "CUDA_VISIBLE_DEVICES, or use `runtime.device: cpu`.");
  if (!which || !which[0] || strcmp(which, "auto") == 0)
    return current_device(driver, out) ? NSA_OK : choose_first_usable(driver, count, out);
  if (parse_ordinal(which, &ordinal)) {
    if (ordinal < count) return NSAI_CUDA(driver, cuDeviceGet(out, ordinal));
    return nsai_fail(NSA_E_NO_DEVICE, "runtime.device: %d, but the visible GPUs are 0 to %d.",
                     ordinal, count - 1);
  }
  if (strncasecmp(which, "GPU-", 4) == 0) return choose_uuid(driver, which, count, out);
  if (driver->cuDeviceGetByPCIBusId(out, which) == NSAI_CUDA_SUCCESS) return NSA_OK;
  return nsai_fail(NSA_E_NO_DEVICE,
                   "runtime.device: \"%s\" is no visible GPU: give auto, cpu, an "
                   "ordinal (cuda:0 to cuda:%d), a PCI bus id (0000:1b:00.0) or a UUID (GPU-...).",
                   which, count - 1);
}

/* ---- init, fini ---- */

/* Shares a current context of the same device, so that the host's pointers and streams belong to
 * the context into which kernels are loaded; otherwise retains the primary one. */
static nsa_status take_context(nsai_device *device) {
  const nsai_driver *driver = device->driver;
  nsai_cu_device current = -1;
  if (current_device(driver, &current) && current == device->ordinal)
    return NSAI_CUDA(driver, cuCtxGetCurrent(&device->context));
  NSAI_TRY(NSAI_CUDA(driver, cuDevicePrimaryCtxRetain(&device->context, device->ordinal)));
  device->retained = true;
  return NSA_OK;
}

nsa_status nsai_device_init(const nsai_driver *driver, const char *which, nsai_device *out) {
  nsa_status status = NSA_OK;
  nsai_cu_device ordinal;
  memset(out, 0, sizeof *out);
  NSAI_TRY(nsai_device_find(driver, which, &ordinal));
  NSAI_TRY_TO(fail, nsai_device_describe(driver, ordinal, out));
  NSAI_TRY_TO(fail, take_context(out));
  return NSA_OK;
fail:
  memset(out, 0, sizeof *out);
  return status;
}

nsa_status nsai_device_init_arch(const char *arch, nsai_device *out) {
  memset(out, 0, sizeof *out);
  out->ordinal = -1;
  NSAI_TRY(nsai_arch_demand(arch, &out->arch));
  snprintf(out->name, sizeof out->name, "%s (no device)", arch);
  out->cc_major = out->arch->major;
  out->cc_minor = out->arch->minor;
  out->shared_bytes = out->arch->shared_bytes;
  return NSA_OK;
}

void nsai_device_fini(nsai_device *device) {
  if (device->retained) device->driver->cuDevicePrimaryCtxRelease(device->ordinal);
  memset(device, 0, sizeof *device);
}

/* ---- entering ---- */

nsa_status nsai_device_enter(const nsai_device *device, bool *pushed) {
  nsai_cu_context current = NULL;
  *pushed = false;
  NSAI_TRY(NSAI_CUDA(device->driver, cuCtxGetCurrent(&current)));
  if (current == device->context) return NSA_OK;
  NSAI_TRY(NSAI_CUDA(device->driver, cuCtxPushCurrent(device->context)));
  *pushed = true;
  return NSA_OK;
}

void nsai_device_leave(const nsai_device *device, bool pushed) {
  nsai_cu_context popped = NULL;
  if (pushed) device->driver->cuCtxPopCurrent(&popped);
}
