/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * NVML counts calls of nvmlInit and nvmlShutdown: each open is paired with one close, whatever
 * the host does.
 */
#include "driver/sensors.h"

#include "driver/cuda_api.h"

#include <stdlib.h>
#include <string.h>

struct nsai_sensors {
  const nsai_nvml *nvml; /* initialised; NULL: all figures are unknown */
  nsai_nvml_device device;
};

static nsa_status find_device(nsai_sensors *sensors, const char *pci_bus_id, nsai_logger *logger) {
  nsa_status status = NSA_OK;
  const nsai_nvml *nvml;
  NSAI_TRY(nsai_nvml_open(logger, &nvml));
  NSAI_TRY(NSAI_NVML(nvml, nvmlInit_v2()));
  NSAI_TRY_TO(fail,
              NSAI_NVML(nvml, nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id, &sensors->device)));
  sensors->nvml = nvml;
  return NSA_OK;
fail:
  nvml->nvmlShutdown();
  return status;
}

nsai_sensors *nsai_sensors_open(const char *pci_bus_id, nsai_logger *logger) {
  nsai_sensors *sensors = calloc(1, sizeof *sensors);
  if (!sensors || !pci_bus_id || !pci_bus_id[0]) return sensors;
  if (find_device(sensors, pci_bus_id, logger) != NSA_OK)
    nsai_log(logger, NSA_LOG_DEBUG, "sensors", "clocks and temperature of %s are unknown: %.*s",
             pci_bus_id, (int)strcspn(nsa_last_error(), "\n"), nsa_last_error());
  return sensors;
}

void nsai_sensors_close(nsai_sensors *sensors) {
  if (sensors && sensors->nvml) sensors->nvml->nvmlShutdown();
  free(sensors);
}

static int32_t known(nsai_nvml_result result, unsigned value) {
  return result == NSAI_NVML_SUCCESS && value <= INT32_MAX ? (int32_t)value : 0;
}

static int32_t read_clock(const nsai_sensors *sensors, int32_t clock) {
  unsigned mhz = 0;
  nsai_nvml_result result = sensors->nvml->nvmlDeviceGetClockInfo(sensors->device, clock, &mhz);
  return known(result, mhz);
}

static int32_t read_temperature(const nsai_sensors *sensors) {
  unsigned celsius = 0;
  nsai_nvml_result result =
      sensors->nvml->nvmlDeviceGetTemperature(sensors->device, NSAI_NVML_TEMPERATURE_GPU, &celsius);
  return known(result, celsius);
}

static int32_t read_power(const nsai_sensors *sensors) {
  unsigned milliwatts = 0;
  nsai_nvml_result result = sensors->nvml->nvmlDeviceGetPowerUsage(sensors->device, &milliwatts);
  return known(result, milliwatts / 1000);
}

nsai_reading nsai_sensors_read(const nsai_sensors *sensors) {
  if (!sensors || !sensors->nvml) return (nsai_reading){ 0 };
  return (nsai_reading){ .sm_mhz = read_clock(sensors, NSAI_NVML_CLOCK_SM),
                         .memory_mhz = read_clock(sensors, NSAI_NVML_CLOCK_MEM),
                         .temperature_c = read_temperature(sensors),
                         .power_w = read_power(sensors) };
}
