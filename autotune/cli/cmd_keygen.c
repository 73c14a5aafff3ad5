/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-autotune keygen: a key pair for `nsa-autotune export --sign`.
 */
#include "cli/cli.h"
#include "cli/signature.h"

#include <stdio.h>

typedef struct arguments {
  nsai_cli_settings settings;
  const char *path;
} arguments;

static error_t parse(int key, char *value, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
  case ARGP_KEY_ARG:
    if (state->arg_num) argp_error(state, "one FILE only");
    a->path = value;
    break;
  case ARGP_KEY_NO_ARGS: argp_usage(state); break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

int nsai_cmd_keygen(int argc, char **argv) {
  static const char help[] =
      "Makes a key pair for `nsa-autotune export --sign`: writes the secret key into FILE, which "
      "only its owner can read, and the public key into FILE.pub, and prints the public key. "
      "Machines that import name the public key, or a file of such keys, in runtime.trusted_keys.";
  arguments a = { 0 };
  char public_key[NSAI_PUBLIC_KEY_CHARS];
  nsai_cli_parse(argc, argv, NULL, parse, "FILE", help, &a);
  nsa_status status = nsai_signature_new_key(a.path, public_key);
  if (status == NSA_OK) printf("%s\n", public_key);
  return nsai_cli_exit(status);
}
