/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Configurations that a command is given: a file, or standard input as "-". The library reads
 * regular files only, because a pipe may block; a command waits for one, and gives its text.
 */
#include "cli/cli.h"

#include "config/yaml.h"
#include "plan/context.h"
#include "plan/variant.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_stdin(const char *file) { return file && !strcmp(file, "-"); }

const char *nsai_cli_file_name(const char *file) { return is_stdin(file) ? "<stdin>" : file; }

/* Reads until the end, and at most one byte more than a configuration may have, so that what reads
 * the text reports one that is too long. Returns 0 or an error number. */
static int read_limited(int fd, char *text, size_t *length) {
  const size_t limit = NSAI_YAML_MAX_BYTES + 1;
  for (*length = 0; *length < limit;) {
    ssize_t count = read(fd, text + *length, limit - *length);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (!count) break;
    *length += (size_t)count;
  }
  text[*length] = '\0';
  return 0;
}

nsa_status nsai_cli_read(const char *file, char **text, size_t *length) {
  const size_t size = NSAI_YAML_MAX_BYTES + 2;
  int fd = is_stdin(file) ? STDIN_FILENO : open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return nsai_cli_fail_io(file, "cannot be read", errno);
  *text = malloc(size);
  int error = *text ? read_limited(fd, *text, length) : ENOMEM;
  if (fd != STDIN_FILENO) close(fd);
  if (!error) return NSA_OK;
  bool no_memory = !*text;
  free(*text);
  *text = NULL;
  if (no_memory) return nsai_fail_nomem("a text", size);
  return nsai_cli_fail_io(is_stdin(file) ? "standard input" : file, "cannot be read", error);
}

/* The text of standard input. It can be read once only, and some commands make several contexts of
 * it, so it stays until the program ends. One thread asks. */
static nsa_status read_stdin(const char **text, size_t *length) {
  static char *kept;
  static size_t kept_length;
  if (!kept) NSAI_TRY(nsai_cli_read("-", &kept, &kept_length));
  *text = kept;
  *length = kept_length;
  return NSA_OK;
}

nsa_status nsai_cli_load(const char *file, const nsai_cli_settings *settings, bool need_model,
                         char **json, nsai_config **out) {
  nsai_config_request request = { .path = is_stdin(file) ? NULL : file,
                                  .overrides = settings->overrides,
                                  .variant = nsai_variant_name_at,
                                  .need_model = need_model,
                                  .json = json };
  *out = NULL;
  if (is_stdin(file)) {
    NSAI_TRY(read_stdin(&request.text, &request.length));
    request.name = nsai_cli_file_name(file);
  }
  return nsai_config_load(&request, out);
}

nsa_status nsai_cli_config(const char *file, const nsai_cli_settings *settings, bool need_model,
                           nsai_config **out) {
  NSAI_TRY(nsai_cli_load(file, settings, need_model, NULL, out));
  if (*(*out)->warnings) fprintf(stderr, "%s\n", (*out)->warnings);
  return NSA_OK;
}

nsa_status nsai_cli_create(const char *file, const nsa_options *options, nsa_ctx **out) {
  nsa_options o = *options;
  *out = NULL;
  if (!is_stdin(file)) return nsa_create(file, options, out);
  NSAI_TRY(read_stdin(&o.yaml_text, &o.yaml_len));
  return nsai_context_create(NULL, nsai_cli_file_name(file), &o, out);
}
