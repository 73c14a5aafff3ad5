/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-autotune check and config.
 */
#include "cli/cli.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- check ---- */

typedef struct check_arguments {
  nsai_cli_settings settings;
  bool no_model; /* the files may be without one */
  bool json;
  const char **files;
  int file_count;
} check_arguments;

static const struct argp_option check_options[] = {
  { "no-model", 'm', 0, 0,
    "A file may be without `model`: that of a machine, or of a host which gives nsa_options.model",
    0 },
  { "json", 'j', 0, 0, "Print one JSON object, with every problem", 0 },
  { 0 },
};

/* What was found in a file. */
typedef struct checked {
  const char *name;
  nsa_status status;
  bool has_model;
  char *diagnostics; /* members of a JSON object; NULL: the file could not be read */
} checked;

/* Checks one file by the rule of nsa_create. The caller frees the diagnostics. */
static checked check_file(const char *file, const check_arguments *a) {
  nsai_config *config = NULL;
  checked c = { .name = nsai_cli_file_name(file) };
  if (a->json)
    c.status = nsai_cli_load(file, &a->settings, !a->no_model, &c.diagnostics, &config);
  else
    c.status = nsai_cli_config(file, &a->settings, !a->no_model, &config);
  c.has_model = config && config->has_model;
  nsai_config_destroy(config);
  return c;
}

static void print_checked(const checked *c) {
  if (c->status == NSA_OK)
    printf("%s: ok%s\n", c->name,
           c->has_model ? "" : ", for hosts that give the model: it has no section `model`");
}

static nsa_status write_checked(const void *subject, nsai_writer *out) {
  const checked *c = subject;
  nsai_write_json_member(out, "{", "file", c->name);
  nsai_write(out, ", \"ok\": %s", c->status == NSA_OK ? "true" : "false");
  if (c->diagnostics)
    nsai_write(out, ", \"model\": %s, %s}", c->has_model ? "true" : "false", c->diagnostics);
  else
    nsai_write_json_member(out, ", ", "failure", nsa_last_error()), nsai_write(out, "}");
  return NSA_OK;
}

/* One element of the list of files. */
static nsa_status print_json(const checked *c, bool first) {
  char *text;
  NSAI_TRY(nsai_cli_text(write_checked, c, &text));
  printf("%s\n  %s", first ? "{\"files\": [" : ",", text);
  free(text);
  return NSA_OK;
}

static error_t parse_check(int key, char *value, struct argp_state *state) {
  check_arguments *a = state->input;
  (void)value;
  switch (key) {
  case 'j': a->json = true; break;
  case 'm': a->no_model = true; break;
  case ARGP_KEY_ARGS:
    a->files = (const char **)state->argv + state->next;
    a->file_count = state->argc - state->next;
    break;
  case ARGP_KEY_NO_ARGS: argp_usage(state); break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

int nsai_cmd_check(int argc, char **argv) {
  static const char help[] =
      "Checks configuration files as nsa_create does: every problem with file, line and column to "
      "stderr, or with --json to stdout. FILE may be -, standard input.\vExit status 3 when a file "
      "is wrong.";
  check_arguments a = { 0 };
  int code = NSAI_EXIT_OK;
  nsai_cli_parse(argc, argv, check_options, parse_check, "FILE...", help, &a);
  for (int i = 0; i < a.file_count; i++) {
    checked c = check_file(a.files[i], &a);
    nsa_status printed = NSA_OK;
    if (a.json)
      printed = print_json(&c, !i);
    else
      print_checked(&c);
    free(c.diagnostics);
    if (printed != NSA_OK) return nsai_cli_fail(printed);
    if (c.status != NSA_OK) code = a.json ? nsai_cli_exit_code(c.status) : nsai_cli_fail(c.status);
  }
  if (a.json) printf("\n ], \"ok\": %s}\n", code ? "false" : "true");
  return code;
}

/* ---- config ---- */

typedef struct config_arguments {
  nsai_cli_settings settings;
  const char *file;
  bool origin, schema;
} config_arguments;

enum { OPT_SCHEMA = 256 };
static const struct argp_option config_options[] = {
  { "origin", 'o', 0, 0, "Say for every line where its value came from", 0 },
  { "schema", OPT_SCHEMA, 0, 0, "Print the JSON Schema of the format instead, for editors", 0 },
  { 0 },
};

static error_t parse_config(int key, char *value, struct argp_state *state) {
  config_arguments *a = state->input;
  switch (key) {
  case 'o': a->origin = true; break;
  case OPT_SCHEMA: a->schema = true; break;
  case ARGP_KEY_ARG:
    if (state->arg_num) argp_error(state, "one FILE only");
    a->file = value;
    break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

static nsa_status write_plain(const void *config, nsai_writer *out) {
  nsai_config_dump(config, false, out);
  return NSA_OK;
}

static nsa_status write_origin(const void *config, nsai_writer *out) {
  nsai_config_dump(config, true, out);
  return NSA_OK;
}

static nsa_status write_schema(const void *nothing, nsai_writer *out) {
  (void)nothing;
  nsai_config_json_schema(out);
  return NSA_OK;
}

int nsai_cmd_config(int argc, char **argv) {
  static const char help[] =
      "Prints the effective configuration as YAML that loads again: built-in values, "
      "/etc/nsa/nsa.yaml, FILE (- is standard input), the environment, overrides. Profiles wait "
      "for a device and are not "
      "laid over.";
  config_arguments a = { 0 };
  nsai_config *config = NULL;
  nsai_cli_parse(argc, argv, config_options, parse_config, "[FILE]", help, &a);
  nsa_status status = NSA_OK;
  if (a.schema) {
    status = nsai_cli_print(write_schema, NULL);
  } else {
    status = nsai_cli_config(a.file, &a.settings, false, &config);
    if (status == NSA_OK) status = nsai_cli_print(a.origin ? write_origin : write_plain, config);
  }
  nsai_config_destroy(config);
  return nsai_cli_exit(status);
}
