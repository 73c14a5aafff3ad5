/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any text as the name of a device: an ordinal, a PCI bus id, a UUID or a part of one. Opened on
 * three devices of a driver without hardware, it is refused with a sentence, or opens the device that
 * has this name; and any text as the name of an architecture.
 *
 * Input: a byte for the number of devices, then the text.
 */
#include "config/config.h"
#include "driver/arch.h"
#include "driver/device.h"
#include "fuzz.h"
#include "plan/variant.h"

#include <strings.h>

enum { DEVICES = 3, NOT_FOUND = 101 };

static int devices;

static nsai_cu_result get_count(int *count) { return *count = devices, NSAI_CUDA_SUCCESS; }

static nsai_cu_result get(nsai_cu_device *out, int ordinal) {
  FUZZ_REQUIRE(ordinal >= 0 && ordinal < devices);
  return *out = ordinal, NSAI_CUDA_SUCCESS;
}

static nsai_cu_result get_attribute(int *value, int attribute, nsai_cu_device device) {
  (void)device;
  *value = attribute == NSAI_CU_DEVICE_CC_MAJOR   ? 9
           : attribute == NSAI_CU_DEVICE_SM_COUNT ? 132
                                                  : 0;
  return NSAI_CUDA_SUCCESS;
}

static nsai_cu_result get_name(char *name, int size, nsai_cu_device device) {
  snprintf(name, (size_t)size, "GPU %d", device);
  return NSAI_CUDA_SUCCESS;
}

/* Devices 0 and 1 differ in the last byte alone. */
static nsai_cu_result get_uuid(nsai_cu_uuid *uuid, nsai_cu_device device) {
  memset(uuid->bytes, device == 2 ? 0xab : 0x12, sizeof uuid->bytes);
  uuid->bytes[15] = (unsigned char)device;
  return NSAI_CUDA_SUCCESS;
}

static nsai_cu_result get_bus_id(char *id, int size, nsai_cu_device device) {
  snprintf(id, (size_t)size, "0000:%02x:00.0", 0x1b + device);
  return NSAI_CUDA_SUCCESS;
}

static nsai_cu_result find_bus_id(nsai_cu_device *out, const char *id) {
  char known[32];
  for (*out = 0; *out < devices; ++*out) {
    get_bus_id(known, sizeof known, *out);
    if (!strcasecmp(id, known)) return NSAI_CUDA_SUCCESS;
  }
  return NOT_FOUND;
}

static nsai_cu_result get_memory(size_t *bytes, nsai_cu_device device) {
  (void)device;
  return *bytes = (size_t)1 << 30, NSAI_CUDA_SUCCESS;
}

static nsai_cu_result get_current(nsai_cu_context *out) { return *out = NULL, NSAI_CUDA_SUCCESS; }

static nsai_cu_result get_text(nsai_cu_result result, const char **out) {
  (void)result;
  return *out = "refused", NSAI_CUDA_SUCCESS;
}

static nsai_cu_result retain(nsai_cu_context *out, nsai_cu_device device) {
  static int context;
  (void)device;
  return *out = (nsai_cu_context)&context, NSAI_CUDA_SUCCESS;
}

static nsai_cu_result release(nsai_cu_device device) {
  (void)device;
  return NSAI_CUDA_SUCCESS;
}

static const nsai_driver driver = { .cuGetErrorName = get_text,
                                    .cuGetErrorString = get_text,
                                    .cuDeviceGetCount = get_count,
                                    .cuDeviceGet = get,
                                    .cuDeviceGetName = get_name,
                                    .cuDeviceGetUuid = get_uuid,
                                    .cuDeviceGetPCIBusId = get_bus_id,
                                    .cuDeviceGetByPCIBusId = find_bus_id,
                                    .cuDeviceGetAttribute = get_attribute,
                                    .cuDeviceTotalMem = get_memory,
                                    .cuDevicePrimaryCtxRetain = retain,
                                    .cuDevicePrimaryCtxRelease = release,
                                    .cuCtxGetCurrent = get_current };

/* What the driver calls the device is what was asked for. */
static void check_opened(const char *which, const nsai_device *device) {
  if (!*which || !strcmp(which, "auto")) return;
  char ordinal[16], named[32];
  snprintf(ordinal, sizeof ordinal, "%d", device->ordinal);
  snprintf(named, sizeof named, "cuda:%d", device->ordinal);
  const char *digits = strncmp(which, "cuda:", 5) ? which : which + 5;
  bool is_ordinal = strspn(digits, "0123456789-") == strlen(digits);
  FUZZ_REQUIRE((is_ordinal && atoi(digits) == device->ordinal) || !strcmp(which, named) ||
               !strcasecmp(which, device->pci_id) ||
               !strncasecmp(device->uuid, which, strlen(which)));
}

/* Whether runtime.device takes it. */
static bool is_accepted(const char *which) {
  nsai_config *config;
  const nsai_config_request request = { .device = which,
                                        .variant = nsai_variant_name_at,
                                        .skip_system_file = true,
                                        .skip_environment = true };
  nsa_status status = nsai_config_load(&request, &config);
  if (status == NSA_OK) FUZZ_REQUIRE(strcmp(config->runtime.device, which) == 0);
  if (status != NSA_OK) FUZZ_REQUIRE(strstr(nsa_last_error(), "runtime.device"));
  nsai_config_destroy(config);
  return status == NSA_OK;
}

static void try_device(const char *which) {
  static const nsai_device none;
  nsai_device device;
  bool accepted = is_accepted(which);
  if (!strcmp(which, "cpu")) return; /* opened by no driver */
  nsa_status status = nsai_device_init(&driver, which, &device);
  if (status == NSA_OK) {
    check_opened(which, &device);
    nsai_device_fini(&device);
  } else {
    FUZZ_REQUIRE(status == NSA_E_NO_DEVICE);
    fuzz_check_message(nsa_last_error());
    /* What passes the configuration and is a number is explained as one. */
    if (accepted && devices && strspn(which, "0123456789") == strlen(which))
      FUZZ_REQUIRE(strstr(nsa_last_error(), "the visible GPUs are 0 to"));
  }
  FUZZ_REQUIRE(memcmp(&device, &none, sizeof none) == 0);
}

static void try_arch(const char *name) {
  nsai_device device;
  const nsai_arch *arch = nsai_arch_find(name);
  FUZZ_REQUIRE(!arch || !strcmp(arch->name, name));
  nsa_status status = nsai_device_init_arch(name, &device);
  FUZZ_REQUIRE((status == NSA_OK) == (arch != NULL));
  if (status != NSA_OK) fuzz_check_message(nsa_last_error());
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!size) return 0;
  char *text = fuzz_text(data + 1, size - 1);
  devices = data[0] % (DEVICES + 1);
  try_device(text);
  try_arch(text);
  free(text);
  return 0;
}
