/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What `nsa-autotune doctor` prints: what was found on this machine, where it was looked for, and
 * one sentence on what a run would use. Looks at the machine afresh; never fails.
 */
#ifndef NSAI_API_REPORT_H
#define NSAI_API_REPORT_H

#include "cache/cache.h"
#include "config/config.h"
#include "driver/cuda_api.h"
#include "driver/device.h"

/* All members may be zero: the machine is then looked at without a configuration. */
typedef struct nsai_report_inputs {
  const char *device;      /* runtime.device; NULL: "auto". "cpu": no GPU is wanted */
  const char *driver_path; /* explicit paths of the configuration */
  const char *nvrtc_path;
  const char *cublaslt_path;
  const char *cache_dir;
  nsai_cache *cache;        /* the context's, when there is one; else `cache_dir` is opened */
  const nsai_device *found; /* the context's device; NULL: chosen by `device` */
} nsai_report_inputs;

/* What a configuration says of them; strings are borrowed. */
nsai_report_inputs nsai_report_inputs_of(const nsai_config *config);

/* Appends the report: as one JSON object, or for people. */
void nsai_report_write(const nsai_report_inputs *inputs, bool json, nsai_writer *out);

#endif /* NSAI_API_REPORT_H */
