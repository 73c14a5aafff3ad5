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
  case 'j': a->json = true; break;
  case ARGP_KEY_ARG:
    if (state->arg_num) argp_error(state, "one FILE only");
    a->file = value;
    break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

static nsa_status write_json(const void *inputs, nsai_writer *out) {
  nsai_report_write(inputs, true, out);
  return NSA_OK;
}

static nsa_status write_text(const void *inputs, nsai_writer *out) {
  nsai_report_write(inputs, false, out);
  return NSA_OK;
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
  static const char help[] =
      "Prints one sentence on what a run would use here, then the device, the driver, NVRTC and "
      "cuBLASLt with every path tried, and the kernel cache. FILE is a configuration whose "
      "`runtime` section counts.\vExit status 4 when there is no usable GPU.";
  arguments a = { 0 };
  nsai_config *config = NULL;
  nsai_cli_parse(argc, argv, options, parse, "[FILE]", help, &a);
  nsa_status status = nsai_cli_config(a.file, &a.settings, false, &config);
  if (status != NSA_OK) return nsai_cli_fail(status);
  nsai_report_inputs in = nsai_report_inputs_of(config);
  status = nsai_cli_print(a.json ? write_json : write_text, &in);
  int code = status == NSA_OK ? verdict(&in) : nsai_cli_fail(status);
  nsai_config_destroy(config);
  return code;
}
