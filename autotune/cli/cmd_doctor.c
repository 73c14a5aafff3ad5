/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-autotune doctor.
 */
#include "cli/cli.h"

#include "api/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct arguments {
  nsai_cli_settings settings;
  const char *file;
  bool json;
} arguments;

static const struct argp_option options[] = {
  { "json", 'j', 0, 0, "Print one JSON object", 0 },
  { 0 },
};

static error_t parse(int key, char *value, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
  case ARGP_KEY_INIT: state->child_inputs[0] = &a->settings; break;
  case 'j': a->json = true; break;
  case ARGP_KEY_ARG:
    if (state->arg_num) argp_error(state, "one FILE only");
    a->file = value;
    break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

static size_t write_json(const void *inputs, char *buf, size_t size) {
  return nsai_report_json(inputs, buf, size);
}

static size_t write_text(const void *inputs, char *buf, size_t size) {
  return nsai_report_text(inputs, buf, size);
}

/* Whether the device that the configuration asks for can be used. */
static int verdict(const nsai_report_inputs *in) {
  const nsai_driver *driver;
  nsai_device device;
  if (!strcmp(in->device, "cpu")) return NSAI_EXIT_OK;
  if (nsai_driver_open(in->driver_path, NULL, &driver) != NSA_OK) return NSAI_EXIT_NO_GPU;
  if (nsai_device_init(driver, in->device, &device) != NSA_OK) return NSAI_EXIT_NO_GPU;
  nsai_device_fini(&device);
  return NSAI_EXIT_OK;
}

int nsai_cmd_doctor(int argc, char **argv) {
  static const struct argp_child children[] = { { &nsai_cli_settings_argp, 0, NULL, 0 }, { 0 } };
  static const struct argp argp = {
    options,
    parse,
    "[FILE]",
    "Prints one sentence on what a run would use here, then the device, the driver, NVRTC and "
    "cuBLASLt with every path tried, and the kernel cache. FILE is a configuration whose "
    "`runtime` section counts.\vExit status 4 when there is no usable GPU.",
    children,
    NULL,
    NULL
  };
  arguments a = { 0 };
  nsai_config *config = NULL;
  argp_parse(&argp, argc, argv, 0, NULL, &a);
  nsa_status status = nsai_cli_config(a.file, &a.settings, false, &config);
  if (status != NSA_OK) return nsai_cli_fail(status);
  nsai_report_inputs in = { .device = config->runtime.device,
                            .driver_path = config->runtime.driver_path,
                            .nvrtc_path = config->runtime.nvrtc_path,
                            .cublaslt_path = config->runtime.cublaslt_path,
                            .cache_dir = config->runtime.cache_dir };
  char *text = nsai_cli_text(a.json ? write_json : write_text, &in);
  int code = text ? verdict(&in) : nsai_cli_fail(nsai_fail_nomem("the report", 0));
  if (text) fputs(text, stdout);
  free(text);
  nsai_config_destroy(config);
  return code;
}
