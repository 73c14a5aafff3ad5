/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A GPU's clocks, temperature and power through NVML, as context for measured times. Nothing
 * that the library computes depends on them.
 */
#ifndef NSAI_DRIVER_SENSORS_H
#define NSAI_DRIVER_SENSORS_H

#include "base/log.h"

#include <stdint.h>

typedef struct nsai_sensors nsai_sensors;

/* The figures at one moment; 0: unknown. */
typedef struct nsai_reading {
  int32_t sm_mhz, memory_mhz; /* current clocks */
  int32_t temperature_c;      /* of the GPU's die */
  int32_t power_w;            /* of the whole board */
} nsai_reading;

/* Opens NVML for a GPU; nsai_sensors_close releases it.
 *
 * pci_bus_id  nsai_device's: "0000:1b:00.0"; NULL or "": no GPU, and no library is opened.
 * logger      may be NULL; is told at DEBUG why figures are unknown, at TRACE the paths tried.
 *
 * Never fails: without NVML, or where it does not know the GPU, all figures are unknown. NULL only
 * when memory is out. Thread-safe. */
nsai_sensors *nsai_sensors_open(const char *pci_bus_id, nsai_logger *logger);

/* NULL is fine. */
void nsai_sensors_close(nsai_sensors *sensors);

/* Reads all figures. A figure that the GPU does not report is unknown; the others are still
 * read. NULL is fine: all unknown. Takes about 5 ms, or microseconds soon after another reading;
 * opening takes 12 ms (measured on an idle H200, through the same calls). Thread-safe. */
nsai_reading nsai_sensors_read(const nsai_sensors *sensors);

#endif /* NSAI_DRIVER_SENSORS_H */
