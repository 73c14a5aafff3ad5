/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The facts are gathered once into one struct; two writers turn it into JSON and text.
 */
#include "api/report.h"

#include "base/json.h"
#include "compile/templates.h"
#include "driver/sensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIERS_MAX 8

/* One library: what was opened, or why not. */
typedef struct library_facts {
  bool open;
  char version[32];
  nsai_library library;
  nsai_tried tried;
  char error[2048]; /* first line of the failure */
} library_facts;

typedef struct facts {
  library_facts driver, nvrtc, cublaslt;
  bool have_device, wants_cpu;
  nsai_device device;
  nsai_reading reading;
  char device_error[2048];
  nsai_cache_tier_info tier[TIERS_MAX];
  int32_t tiers;
  char verdict[4096];
} facts;

/* ---- gathering ---- */

/* The search is repeated for its record when opening failed before the table could keep it. */
static void keep_search(library_facts *f, const nsai_library_spec *spec,
                        const nsai_library_query *query) {
  nsai_library located;
  snprintf(f->error, sizeof f->error, "%s", nsa_last_error());
  if (nsai_library_locate(spec, query, &f->tried, &located) == NSA_OK) f->library = located;
}

static void keep_library(library_facts *f, const nsai_library *library, const nsai_tried *tried) {
  f->open = true;
  f->library = *library;
  f->tried = *tried;
}

static const nsai_driver *gather_driver(const nsai_report_inputs *in, library_facts *f) {
  const nsai_driver *driver;
  const nsai_library_query query = { in->driver_path, 0 };
  if (nsai_driver_open(in->driver_path, NULL, &driver) != NSA_OK) {
    keep_search(f, &nsai_driver_spec, &query);
    return NULL;
  }
  keep_library(f, &driver->library, &driver->tried);
  snprintf(f->version, sizeof f->version, "%d.%d", (int)(driver->version / 1000),
           (int)(driver->version % 1000 / 10));
  return driver;
}

static void gather_nvrtc(const nsai_report_inputs *in, int32_t max_major, library_facts *f) {
  const nsai_nvrtc *nvrtc;
  const nsai_library_query query = { in->nvrtc_path, max_major };
  if (nsai_nvrtc_open(&query, NULL, &nvrtc) != NSA_OK) {
    keep_search(f, &nsai_nvrtc_spec, &query);
    return;
  }
  keep_library(f, &nvrtc->library, &nvrtc->tried);
  snprintf(f->version, sizeof f->version, "%d.%d", (int)nvrtc->major, (int)nvrtc->minor);
}

static void gather_cublaslt(const nsai_report_inputs *in, int32_t max_major, library_facts *f) {
  const nsai_cublaslt *lt;
  const nsai_library_query query = { in->cublaslt_path, max_major };
  if (nsai_cublaslt_open(&query, NULL, &lt) != NSA_OK) {
    keep_search(f, &nsai_cublaslt_spec, &query);
    return;
  }
  keep_library(f, &lt->library, &lt->tried);
  snprintf(f->version, sizeof f->version, "%lld", (long long)lt->version);
}

static void gather_device(const nsai_report_inputs *in, const nsai_driver *driver, facts *f) {
  if (in->found && in->found->driver) {
    f->device = *in->found;
    f->have_device = true;
  } else if (driver) {
    f->have_device = nsai_device_init(driver, in->device, &f->device) == NSA_OK;
    if (f->have_device) {
      nsai_device copy = f->device; /* the description stays, the context goes back */
      nsai_device_fini(&copy);
    } else {
      snprintf(f->device_error, sizeof f->device_error, "%s", nsa_last_error());
    }
  }
}

static void gather_reading(facts *f) {
  nsai_sensors *sensors = nsai_sensors_open(f->device.pci_id, NULL);
  f->reading = nsai_sensors_read(sensors);
  nsai_sensors_close(sensors);
}

static void gather_cache(const nsai_report_inputs *in, facts *f) {
  const nsai_cache_options options = { .dir = in->cache_dir, .look = true };
  nsai_cache *own = NULL, *cache = in->cache;
  if (!cache && nsai_cache_open(&options, &own) == NSA_OK) cache = own;
  while (cache && f->tiers < TIERS_MAX && nsai_cache_tier(cache, f->tiers, &f->tier[f->tiers]))
    f->tiers++;
  nsai_cache_close(own);
}

/* The failure in short: that a search found nothing, or why what it found is no good. */
static void write_failure(const library_facts *f, const nsai_library_spec *spec, char *out,
                          size_t size) {
  if (f->library.path[0])
    snprintf(out, size, "%s", f->error);
  else
    snprintf(out, size, "%s was found at none of the %d places tried; %s.", spec->names[0],
             (int)(f->tried.count + f->tried.dropped), spec->remedy);
}

/* One or two sentences: what a run would use, or what is missing and the remedy. */
static void conclude(facts *f) {
  size_t size = sizeof f->verdict;
  char why[2560];
  if (f->wants_cpu) {
    snprintf(f->verdict, size, "The CPU device is used, slowly, as `runtime.device: cpu` says.");
  } else if (!f->driver.open) {
    write_failure(&f->driver, &nsai_driver_spec, why, sizeof why);
    snprintf(f->verdict, size, "No usable NVIDIA driver: %s", why);
  } else if (!f->have_device) {
    snprintf(f->verdict, size, "No usable GPU: %s", f->device_error);
  } else if (!f->nvrtc.open) {
    write_failure(&f->nvrtc, &nsai_nvrtc_spec, why, sizeof why);
    snprintf(f->verdict, size, "%s runs cached kernels only, since none can be compiled: %s",
             f->device.name, why);
  } else {
    snprintf(f->verdict, size, "%s is used, with kernels for %s compiled by NVRTC %s%s.",
             f->device.name, f->device.arch->name, f->nvrtc.version,
             f->cublaslt.open ? "" : "; without cuBLASLt, phi linear and mlp are not available");
  }
}

static void gather(const nsai_report_inputs *in, facts *f) {
  f->wants_cpu = in->device && strcmp(in->device, "cpu") == 0;
  const nsai_driver *driver = gather_driver(in, &f->driver);
  int32_t max_major = driver ? driver->version / 1000 : 0;
  gather_nvrtc(in, max_major, &f->nvrtc);
  gather_cublaslt(in, max_major, &f->cublaslt);
  if (!f->wants_cpu) gather_device(in, driver, f);
  if (f->have_device) gather_reading(f);
  gather_cache(in, f);
  conclude(f);
}

/* ---- JSON ---- */

static void json_library(nsai_writer *out, const char *name, const library_facts *f) {
  nsai_write(out, ", \"%s\": {\"opened\": %s", name, f->open ? "true" : "false");
  nsai_write_json_member(out, ", ", "version", f->open ? f->version : NULL);
  nsai_write_json_member(out, ", ", "path", f->library.path[0] ? f->library.path : NULL);
  nsai_write_json_member(out, ", ", "build_id",
                         f->library.build_id[0] ? f->library.build_id : NULL);
  nsai_write_json_member(out, ", ", "error", f->open ? NULL : f->error);
  nsai_write(out, ", \"tried\": [");
  for (int32_t i = 0; i < f->tried.count; i++) {
    nsai_write_json_member(out, i ? ", {" : "{", "path", f->tried.item[i].path);
    nsai_write_json_member(out, ", ", "outcome", f->tried.item[i].outcome);
    nsai_write(out, "}");
  }
  nsai_write(out, "], \"tried_beyond\": %d}", (int)f->tried.dropped);
}

static void json_device(nsai_writer *out, const facts *f) {
  nsai_write(out, ", \"device\": ");
  if (!f->have_device) {
    nsai_write(out, "null");
    return;
  }
  const nsai_device *d = &f->device;
  nsai_write(out, "{\"ordinal\": %d", (int)d->ordinal);
  nsai_write_json_member(out, ", ", "name", d->name);
  nsai_write_json_member(out, ", ", "uuid", d->uuid);
  nsai_write_json_member(out, ", ", "pci_id", d->pci_id);
  nsai_write_json_member(out, ", ", "arch", d->arch->name);
  nsai_write(out,
             ", \"compute_capability\": \"%d.%d\", \"sm_count\": %d, \"shared_bytes\": %d, "
             "\"l2_bytes\": %lld, \"memory_bytes\": %llu",
             (int)d->cc_major, (int)d->cc_minor, (int)d->sm_count, (int)d->shared_bytes,
             (long long)d->l2_bytes, (unsigned long long)d->memory_bytes);
  /* Of fixed width: a caller asks for the size first, and figures change from call to call. */
  nsai_write(out,
             ", \"sm_mhz\": %5d, \"memory_mhz\": %5d, \"temperature_c\": %3d, "
             "\"power_w\": %5d}",
             (int)f->reading.sm_mhz, (int)f->reading.memory_mhz, (int)f->reading.temperature_c,
             (int)f->reading.power_w);
}

static void json_cache(nsai_writer *out, const facts *f) {
  nsai_write(out, ", \"cache\": [");
  for (int32_t i = 0; i < f->tiers; i++) {
    nsai_write_json_member(out, i ? ", {" : "{", "path", f->tier[i].path);
    nsai_write_json_member(out, ", ", "state", f->tier[i].state);
    nsai_write(out, ", \"used\": %s, \"writable\": %s, \"network\": %s}",
               f->tier[i].used ? "true" : "false", f->tier[i].writable ? "true" : "false",
               f->tier[i].network ? "true" : "false");
  }
  nsai_write(out, "]");
}

static void json_facts(nsai_writer *out, const facts *f) {
  nsai_write_json_member(out, ", ", "verdict", f->verdict);
  json_device(out, f);
  json_library(out, "driver", &f->driver);
  json_library(out, "nvrtc", &f->nvrtc);
  json_library(out, "cublaslt", &f->cublaslt);
  json_cache(out, f);
}

/* ---- text ---- */

static void text_library(nsai_writer *out, const char *title, const library_facts *f) {
  if (f->open)
    nsai_write(out, "%-10s %s, %s%s%s\n", title, f->version, f->library.path,
               f->library.build_id[0] ? ", build " : "", f->library.build_id);
  else
    nsai_write(out, "%-10s %s\n", title, f->library.path[0] ? f->error : "not found");
  for (int32_t i = 0; i < f->tried.count; i++)
    nsai_write(out, "           tried %s: %s\n", f->tried.item[i].path, f->tried.item[i].outcome);
  if (f->tried.dropped) nsai_write(out, "           and %d more places\n", (int)f->tried.dropped);
}

static void text_facts(nsai_writer *out, const facts *f) {
  nsai_write(out, "%s\n\n", f->verdict);
  if (f->have_device)
    nsai_write(out, "device     %d: %s, %s, %s, %s, %d SMs, %d bytes of shared memory a block\n",
               (int)f->device.ordinal, f->device.name, f->device.arch->name, f->device.pci_id,
               f->device.uuid, (int)f->device.sm_count, (int)f->device.shared_bytes);
  if (f->reading.sm_mhz)
    nsai_write(out, "now        SM %d MHz, memory %d MHz, %d C, %d W\n", (int)f->reading.sm_mhz,
               (int)f->reading.memory_mhz, (int)f->reading.temperature_c, (int)f->reading.power_w);
  text_library(out, "driver", &f->driver);
  text_library(out, "NVRTC", &f->nvrtc);
  text_library(out, "cuBLASLt", &f->cublaslt);
  for (int32_t i = 0; i < f->tiers; i++)
    nsai_write(out, "cache      %s: %s%s%s\n", f->tier[i].path,
               f->tier[i].used ? "" : "not used: ", f->tier[i].state,
               f->tier[i].network ? ", network file system" : "");
  if (f->tiers == 0) nsai_write(out, "cache      memory only\n");
}

/* ---- both ---- */

void nsai_report_write(const nsai_report_inputs *inputs, bool json, nsai_writer *out) {
  static const char no_memory[] = "out of host memory: no report";
  facts *f = calloc(1, sizeof *f); /* about 140 KB, with every path tried */
  if (f) gather(inputs, f);
  if (json) {
    nsai_write(out, "{\"version\": \"%d.%d.%d\"", NSA_VERSION_MAJOR, NSA_VERSION_MINOR,
               NSA_VERSION_PATCH);
    nsai_write_json_member(out, ", ", "templates", nsai_embedded_digest);
    if (f)
      json_facts(out, f);
    else
      nsai_write_json_member(out, ", ", "verdict", no_memory);
    nsai_write(out, "}\n");
  } else if (f) {
    nsai_write(out, "libnsa %d.%d.%d\n", NSA_VERSION_MAJOR, NSA_VERSION_MINOR, NSA_VERSION_PATCH);
    text_facts(out, f);
  } else {
    nsai_write(out, "%s\n", no_memory);
  }
  free(f);
}

nsai_report_inputs nsai_report_inputs_of(const nsai_config *config) {
  return (nsai_report_inputs){ .device = config->runtime.device,
                               .driver_path = config->runtime.driver_path,
                               .nvrtc_path = config->runtime.nvrtc_path,
                               .cublaslt_path = config->runtime.cublaslt_path,
                               .cache_dir = config->runtime.cache_dir };
}
