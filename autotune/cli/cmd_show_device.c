/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-autotune show device: limits and speeds of the GPU as the library knows them: its own
 * attributes beside the figures of the configuration's `device` section.
 */
#include "cli/cli.h"

#include "base/json.h"
#include "driver/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* One figure from both sources; 0: unknown. */
typedef struct figure {
  const char *what, *key, *unit;
  double device, config, scale; /* printed: value / scale */
} figure;

#define FIGURES 5

typedef struct subject {
  const nsai_config *config;
  const nsai_device *device;
  bool json;
} subject;

static void collect(const subject *s, figure out[FIGURES]) {
  const nsai_config *c = s->config;
  const nsai_device *d = s->device;
  const figure figures[FIGURES] = {
    { "multiprocessors", "sms", "", d->sm_count, c->device.sms, 1 },
    { "shared memory a block", "smem_per_block", " KiB", d->shared_bytes,
      (double)c->device.smem_per_block, 1024 },
    { "L2 cache", "l2", " MiB", (double)d->l2_bytes, (double)c->device.l2, 1024 * 1024 },
    { "memory bandwidth", "hbm_gbps", " GB/s", 0, c->device.hbm_gbps, 1 },
    { "bf16 matrix product", "bf16_tflops", " TFLOPS", 0, c->device.bf16_tflops, 1 },
  };
  for (int i = 0; i < FIGURES; i++) out[i] = figures[i];
}

/* A device's own attributes are used; without a device, those of the configuration. */
static void write_text_figure(nsai_writer *out, const figure *f, bool deviceless) {
  bool own = f->device > 0 && !(deviceless && f->config > 0);
  double value = own ? f->device : f->config;
  nsai_write(out, "%-22s ", f->what);
  if (!(value > 0)) {
    nsai_write(out, "unknown: device.%s is not given\n", f->key);
    return;
  }
  nsai_write(out, "%.7g%s, %s", value / f->scale, f->unit,
             !own         ? "the configuration's"
             : deviceless ? "the architecture's"
                          : "the device's own");
  if (own && f->config > 0 && fabs(f->device - f->config) >= 1)
    nsai_write(out, "; device.%s says %.7g%s", f->key, f->config / f->scale, f->unit);
  nsai_write(out, "\n");
}

static void write_text(nsai_writer *out, const subject *s) {
  const nsai_config *c = s->config;
  figure figures[FIGURES];
  collect(s, figures);
  nsai_write(out, "%-22s %s, %s\n", "device", s->device->name, s->device->arch->name);
  for (int i = 0; i < FIGURES; i++) write_text_figure(out, &figures[i], !s->device->driver);
  if (c->device.hbm_gbps > 0 || c->device.bf16_tflops > 0)
    nsai_write(out, "%-22s %s\n", "bandwidth and rate",
               c->device.measured ? "measured" : "not measured: bounds that no kernel reaches");
  nsai_write(out, "%-22s %s\n", "source", c->device.source ? c->device.source : "not said");
}

static void write_json(nsai_writer *out, const subject *s) {
  figure figures[FIGURES];
  collect(s, figures);
  nsai_write_json_member(out, "{", "name", s->device->name);
  nsai_write_json_member(out, ", ", "arch", s->device->arch->name);
  for (int i = 0; i < FIGURES; i++)
    nsai_write(out, ",\n \"%s\": {\"device\": %.15g, \"configuration\": %.15g}", figures[i].key,
               figures[i].device, figures[i].config);
  nsai_write(out, ",\n \"measured\": %s", s->config->device.measured ? "true" : "false");
  nsai_write_json_member(out, ", ", "source", s->config->device.source);
  nsai_write(out, "}\n");
}

static nsa_status write_subject(const void *user, nsai_writer *out) {
  const subject *s = user;
  if (s->json)
    write_json(out, s);
  else
    write_text(out, s);
  return NSA_OK;
}

static nsa_status open_device(nsai_config *config, const char *arch, nsai_device *device) {
  const nsai_driver *driver;
  if (arch) {
    NSAI_TRY(nsai_device_init_arch(arch, device));
  } else {
    NSAI_TRY(nsai_driver_open(config->runtime.driver_path, NULL, &driver));
    NSAI_TRY(nsai_device_init(driver, config->runtime.device, device));
  }
  return nsai_config_apply_device(config, device->arch->name, arch ? NULL : device->name,
                                  arch ? NULL : device->uuid);
}

nsa_status nsai_show_device(const char *file, const char *arch, const nsai_cli_settings *settings,
                            bool json) {
  nsai_config *config = NULL;
  nsai_device device = { 0 };
  nsa_status status = NSA_OK;
  NSAI_TRY(nsai_cli_config(file, settings, false, &config));
  NSAI_TRY_TO(done, open_device(config, arch, &device));
  const subject s = { config, &device, json };
  status = nsai_cli_print(write_subject, &s);
done:
  nsai_device_fini(&device);
  nsai_config_destroy(config);
  return status;
}
