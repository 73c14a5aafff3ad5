/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A driver without hardware, for the tests of opening and choosing: GPU 0 is too old, GPU 1 is a
 * Hopper. FAKE_CUDA_INIT is what cuInit returns; FAKE_CUDA_HIDE names a function that is missing;
 * FAKE_CUDA_CURRENT is the device of the current context.
 */
#include "cuda_types.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int retained, host_context;

static int number(const char *variable, int otherwise) {
  const char *text = getenv(variable);
  return text ? atoi(text) : otherwise;
}

static nsai_cu_result init(unsigned flags) {
  (void)flags;
  return number("FAKE_CUDA_INIT", 0);
}

static nsai_cu_result get_version(int *version) {
  *version = 13000;
  return 0;
}

static nsai_cu_result get_error(nsai_cu_result result, const char **text) {
  *text = result == 801 ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_FAKE";
  return 0;
}

static nsai_cu_result get_count(int *count) {
  *count = 2;
  return 0;
}

static nsai_cu_result get_device(nsai_cu_device *device, int ordinal) {
  *device = ordinal;
  return 0;
}

static nsai_cu_result get_name(char *name, int size, nsai_cu_device device) {
  snprintf(name, (size_t)size, device ? "Fake H200" : "Fake T4");
  return 0;
}

static nsai_cu_result get_uuid(nsai_cu_uuid *uuid, nsai_cu_device device) {
  memset(uuid->bytes, device ? 0xab : 0xac, sizeof uuid->bytes);
  return 0;
}

static nsai_cu_result get_pci(char *id, int size, nsai_cu_device device) {
  snprintf(id, (size_t)size, "0000:%02x:00.0", (unsigned)device + 16);
  return 0;
}

static nsai_cu_result by_pci(nsai_cu_device *device, const char *id) {
  if (strcmp(id, "0000:11:00.0") != 0) return 101;
  *device = 1;
  return 0;
}

static nsai_cu_result get_attribute(int *value, int attribute, nsai_cu_device device) {
  switch (attribute) {
  case NSAI_CU_DEVICE_CC_MAJOR: *value = device ? 9 : 7; break;
  case NSAI_CU_DEVICE_CC_MINOR: *value = device ? 0 : 5; break;
  case NSAI_CU_DEVICE_SM_COUNT: *value = 132; break;
  case NSAI_CU_DEVICE_MAX_SHARED_PER_BLOCK_OPTIN: *value = 232448; break;
  case NSAI_CU_DEVICE_L2_BYTES: *value = 60 << 20; break;
  default: *value = 0;
  }
  return 0;
}

static nsai_cu_result total_memory(size_t *bytes, nsai_cu_device device) {
  (void)device;
  *bytes = (size_t)139 << 30;
  return 0;
}

static nsai_cu_result retain(nsai_cu_context *context, nsai_cu_device device) {
  (void)device;
  retained++;
  *context = (nsai_cu_context)&retained;
  return 0;
}

static nsai_cu_result release(nsai_cu_device device) {
  (void)device;
  return --retained < 0 ? 1 : 0;
}

static nsai_cu_result get_current(nsai_cu_context *context) {
  *context = getenv("FAKE_CUDA_CURRENT") ? (nsai_cu_context)&host_context : NULL;
  return 0;
}

static nsai_cu_result current_device(nsai_cu_device *device) {
  *device = number("FAKE_CUDA_CURRENT", -1);
  return 0;
}

static nsai_cu_result unsupported(void) { return 801; }

nsai_cu_result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                   int32_t *found);

nsai_cu_result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                   int32_t *found) {
  typedef void (*any)(void);
  static const struct {
    const char *name;
    any function;
  } table[] = {
    { "cuInit", (any)init },
    { "cuDriverGetVersion", (any)get_version },
    { "cuGetErrorName", (any)get_error },
    { "cuGetErrorString", (any)get_error },
    { "cuDeviceGetCount", (any)get_count },
    { "cuDeviceGet", (any)get_device },
    { "cuDeviceGetName", (any)get_name },
    { "cuDeviceGetUuid", (any)get_uuid },
    { "cuDeviceGetPCIBusId", (any)get_pci },
    { "cuDeviceGetByPCIBusId", (any)by_pci },
    { "cuDeviceGetAttribute", (any)get_attribute },
    { "cuDeviceTotalMem", (any)total_memory },
    { "cuDevicePrimaryCtxRetain", (any)retain },
    { "cuDevicePrimaryCtxRelease", (any)release },
    { "cuCtxGetCurrent", (any)get_current },
    { "cuCtxGetDevice", (any)current_device },
  };
  any result = (any)unsupported;
  const char *hidden = getenv("FAKE_CUDA_HIDE");
  (void)version, (void)flags;
  *found = hidden && strcmp(hidden, name) == 0;
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
    if (strcmp(table[i].name, name) == 0) result = table[i].function;
  memcpy(function, &result, sizeof result);
  return 0;
}
