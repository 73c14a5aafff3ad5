/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * NVML without hardware: one GPU, 0000:11:00.0, the fake driver's Hopper. FAKE_NVML_FAIL is what
 * fails: init, sm, memory, temperature or power.
 */
#include "driver/cuda_types.h"

#include <stdlib.h>
#include <string.h>

enum { NOT_SUPPORTED = 3, NOT_FOUND = 6 }; /* nvmlReturn_t */

static int inits; /* calls of nvmlInit without their nvmlShutdown */
static int gpu;

int fake_nvml_inits(void) { return inits; }

/* Fails when told to, and where a figure is asked for uninitialised or of another device. */
static nsai_nvml_result give(const char *what, nsai_nvml_device device, unsigned figure,
                             unsigned *out) {
  const char *fails = getenv("FAKE_NVML_FAIL");
  *out = 4000000000u; /* what a failing call leaves is not to be used */
  if (!inits || device != (nsai_nvml_device)(void *)&gpu) return NOT_FOUND;
  if (fails && strcmp(fails, what) == 0) return NOT_SUPPORTED;
  *out = figure;
  return NSAI_NVML_SUCCESS;
}

const char *nvmlErrorString(nsai_nvml_result result) {
  return result == NOT_FOUND ? "Not Found" : "Not Supported";
}

nsai_nvml_result nvmlInit_v2(void) {
  const char *fails = getenv("FAKE_NVML_FAIL");
  if (fails && strcmp(fails, "init") == 0) return NOT_SUPPORTED;
  inits++;
  return NSAI_NVML_SUCCESS;
}

nsai_nvml_result nvmlShutdown(void) {
  inits--;
  return NSAI_NVML_SUCCESS;
}

nsai_nvml_result nvmlDeviceGetHandleByPciBusId_v2(const char *id, nsai_nvml_device *out) {
  if (strcmp(id, "0000:11:00.0") != 0) return NOT_FOUND;
  *out = (nsai_nvml_device)(void *)&gpu;
  return NSAI_NVML_SUCCESS;
}

nsai_nvml_result nvmlDeviceGetClockInfo(nsai_nvml_device device, int32_t clock, unsigned *mhz) {
  if (clock == NSAI_NVML_CLOCK_SM) return give("sm", device, 1980, mhz);
  return clock == NSAI_NVML_CLOCK_MEM ? give("memory", device, 3201, mhz) : NOT_SUPPORTED;
}

nsai_nvml_result nvmlDeviceGetTemperature(nsai_nvml_device device, int32_t sensor,
                                          unsigned *celsius) {
  if (sensor != NSAI_NVML_TEMPERATURE_GPU) return NOT_SUPPORTED;
  return give("temperature", device, 41, celsius);
}

nsai_nvml_result nvmlDeviceGetPowerUsage(nsai_nvml_device device, unsigned *milliwatts) {
  return give("power", device, 118900, milliwatts);
}
