/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-autotune init: writes a commented configuration. Its values are overrides of the built-in
 * ones: those of a model's config.json, then the options', --set, and the answers of a user.
 */
#include "cli/cli.h"
#include "cli/hf_config.h"

#include "base/text.h"
#include "config/value.h"
#include "plan/variant.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_FILE "nsa.yaml"

enum { OPT_FROM = 256, OPT_FORCE, OPT_VALUE };

/* The keys that have an option, and what a question offers. */
static const struct {
  nsai_key_id key;
  const char *name, *argument, *offer; /* offer NULL: no question */
} values[] = {
  { NSAI_KEY_MODEL_HEADS, "heads", "N", "64" },
  { NSAI_KEY_MODEL_KV_HEADS, "kv-heads", "N", "4" },
  { NSAI_KEY_MODEL_HEAD_DIM, "head-dim", "N", "128" },
  { NSAI_KEY_MODEL_DTYPE, "dtype", "TYPE", "bf16" },
  { NSAI_KEY_MODEL_KV_SHARING, "kv-sharing", "WORD", "per_branch" },
  { NSAI_KEY_MAX_TOKENS, "max-tokens", "N", "8Ki" },
  { NSAI_KEY_MAX_KV_LEN, "max-kv-len", "N", "32Ki" },
  { NSAI_KEY_MAX_SEQS, "max-seqs", "N", "1" },
  { NSAI_KEY_PAGE_SIZE, "page-size", "N", "0" },
  { NSAI_KEY_DEVICE, "device", "DEVICE", NULL },
};
#define VALUES ((int)(sizeof values / sizeof values[0]))

#define OVERRIDE_BYTES 192 /* a path, and the longest UUID of a device */

typedef struct arguments {
  nsai_cli_settings settings; /* options that give values, --set, and answers */
  const char *from, *file;    /* file NULL: DEFAULT_FILE */
  bool force;
  char overrides[VALUES][OVERRIDE_BYTES]; /* of options and answers */
} arguments;

/* Makes "model.heads=64" of a value's option or answer; NULL: it is too long. */
static const char *make_override(arguments *a, int value, const char *text) {
  const char *path = nsai_keys[values[value].key].path;
  int length = snprintf(a->overrides[value], OVERRIDE_BYTES, "%s=%s", path, text);
  return length < OVERRIDE_BYTES ? a->overrides[value] : NULL;
}

static error_t parse(int key, char *text, struct argp_state *state) {
  arguments *a = state->input;
  if (key >= OPT_VALUE && key < OPT_VALUE + VALUES) {
    const char *override = make_override(a, key - OPT_VALUE, text);
    if (override)
      nsai_cli_override(&a->settings, override, state);
    else
      argp_error(state, "--%s: a value of more than %d bytes", values[key - OPT_VALUE].name,
                 OVERRIDE_BYTES);
    return 0;
  }
  switch (key) {
  case OPT_FROM: a->from = text; break;
  case OPT_FORCE: a->force = true; break;
  case ARGP_KEY_ARG:
    if (state->arg_num) argp_error(state, "one FILE only");
    a->file = text;
    break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

/* ---- values ---- */

/* Loads the overrides alone: neither this machine's file nor its environment belongs into what is
 * written. `more` come first, so that the settings win. */
static nsa_status load(const arguments *a, const nsai_hf_config *more, nsai_config **out) {
  const char *overrides[NSAI_HF_MOST + NSAI_CLI_MAX_OVERRIDES + 1] = { NULL };
  int count = 0;
  for (int i = 0; i < more->count; i++) overrides[count++] = more->overrides[i];
  for (int i = 0; i < a->settings.count; i++) overrides[count++] = a->settings.overrides[i];
  nsai_config_request request = { .overrides = overrides,
                                  .variant = nsai_variant_name_at,
                                  .need_model = true,
                                  .skip_system_file = true,
                                  .skip_environment = true };
  return nsai_config_load(&request, out);
}

/* Whether an override gives the key. head_dim stands for two keys. */
static bool is_given(const arguments *a, const nsai_hf_config *more, nsai_key_id key) {
  const char *path = nsai_keys[key].path;
  size_t length = strlen(path);
  int count = more->count + a->settings.count;
  for (int i = 0; i < count; i++) {
    const char *given =
        i < more->count ? more->overrides[i] : a->settings.overrides[i - more->count];
    if (strncmp(given, path, length) != 0) continue;
    if (given[length] == '=' || (key == NSAI_KEY_MODEL_HEAD_DIM && given[length] == '_'))
      return true;
  }
  return false;
}

/* Whether all is given that has no built-in value. `--set model={...}` counts, too: what is missing
 * in it is found as in every configuration. */
static bool has_model(const arguments *a, const nsai_hf_config *more) {
  for (int i = 0; i < a->settings.count; i++)
    if (strncmp(a->settings.overrides[i], "model=", strlen("model=")) == 0) return true;
  return is_given(a, more, NSAI_KEY_MODEL_HEADS) && is_given(a, more, NSAI_KEY_MODEL_KV_HEADS) &&
         is_given(a, more, NSAI_KEY_MODEL_HEAD_DIM);
}

/* ---- questions ---- */

/* Whether `text` is a value of the key; says on stderr why it is none. */
static bool is_value(nsai_key_id key, const char *text) {
  nsai_arena arena = { 0 };
  nsai_value value;
  char why[640];
  nsai_writer out = nsai_writer_open(why, sizeof why);
  const nsai_node node = {
    .kind = NSAI_NODE_SCALAR, .plain = true, .text = text, .length = strlen(text)
  };
  bool good = nsai_value_read(key, &node, &arena, &value, &out);
  if (!good) fprintf(stderr, "  %s\n", why);
  nsai_arena_fini(&arena);
  return good;
}

/* Asks until an answer is a value; an empty one takes the offer. */
static nsa_status ask(arguments *a, int value) {
  const nsai_key *key = &nsai_keys[values[value].key];
  char *line = NULL;
  size_t size = 0;
  const char *answer = NULL;
  while (!answer) {
    fprintf(stderr, "%s: %s [%s] ", values[value].name, key->help, values[value].offer);
    ssize_t length = getline(&line, &size, stdin);
    if (length < 0) break;
    line[strcspn(line, "\r\n")] = '\0';
    answer = *line ? line : values[value].offer;
    if (!is_value(values[value].key, answer)) answer = NULL;
  }
  const char *override = answer ? make_override(a, value, answer) : NULL;
  free(line);
  if (!override) return nsai_fail(NSA_E_IO, "standard input ended before the last question");
  if (a->settings.count == NSAI_CLI_MAX_OVERRIDES)
    return nsai_fail(NSA_E_ARG, "more than %d values", NSAI_CLI_MAX_OVERRIDES);
  a->settings.overrides[a->settings.count++] = override;
  return NSA_OK;
}

static nsa_status ask_all(arguments *a) {
  static const nsai_hf_config nothing;
  fputs("An empty answer takes the value in brackets.\n", stderr);
  for (int i = 0; i < VALUES; i++)
    if (values[i].offer && !is_given(a, &nothing, values[i].key)) NSAI_TRY(ask(a, i));
  return NSA_OK;
}

/* ---- writing ---- */

static nsa_status write_commented(const void *config, nsai_writer *out) {
  nsai_config_write_commented(config, out);
  return NSA_OK;
}

static nsa_status check_new(const char *file, bool force) {
  struct stat st;
  if (force || !strcmp(file, "-") || lstat(file, &st) != 0) return NSA_OK;
  return nsai_fail(NSA_E_IO, "%s: there is such a file: --force replaces it, and - as FILE prints",
                   file);
}

static nsa_status write_file(const arguments *a, const nsai_config *config) {
  const char *file = a->file ? a->file : DEFAULT_FILE;
  char *text;
  NSAI_TRY(check_new(file, a->force));
  NSAI_TRY(nsai_cli_text(write_commented, config, &text));
  nsa_status status = nsai_cli_write_file(file, text);
  free(text);
  if (status == NSA_OK && strcmp(file, "-") != 0)
    fprintf(stderr, "%s is written; `nsa-autotune show %s` shows the kernels that would serve it\n",
            file, file);
  return status;
}

static nsa_status init(arguments *a) {
  nsai_arena arena = { 0 };
  nsai_hf_config more = { 0 };
  nsai_config *config = NULL;
  nsa_status status = NSA_OK;
  /* Before any question. */
  NSAI_TRY(check_new(a->file ? a->file : DEFAULT_FILE, a->force));
  if (a->from)
    NSAI_TRY_TO(done, nsai_hf_config_read(a->from, &arena, &more));
  else if (!has_model(a, &more))
    NSAI_TRY_TO(done, ask_all(a));
  if (more.note && !is_given(a, &(nsai_hf_config){ 0 }, NSAI_KEY_MODEL_DTYPE))
    fprintf(stderr, "nsa-autotune: note: %s\n", more.note);
  NSAI_TRY_TO(done, load(a, &more, &config));
  if (*config->warnings) fprintf(stderr, "%s\n", config->warnings);
  status = write_file(a, config);
done:
  nsai_config_destroy(config);
  nsai_arena_fini(&arena);
  return status;
}

static bool may_ask(void) { return isatty(STDIN_FILENO) && isatty(STDERR_FILENO); }

int nsai_cmd_init(int argc, char **argv) {
  static const char help[] =
      "Writes a commented configuration with every key to FILE (" DEFAULT_FILE "; - is standard "
      "output): the values of a model's config.json, or of the options. On a terminal it asks for "
      "those that are not given. Keys with built-in values outside `model` are commented out.\vA "
      "file that exists is kept, unless --force is given. Exit status 2 when the model is not "
      "given and there is no terminal to ask.";
  struct argp_option options[VALUES + 3] = {
    { "from", OPT_FROM, "CONFIG.JSON", 0,
      "Heads, head dimension, dtype and length of a model of Hugging Face's transformers (- is "
      "standard input)",
      0 },
    { "force", OPT_FORCE, 0, 0, "Replace FILE", 0 },
  };
  arguments a = { 0 };
  for (int i = 0; i < VALUES; i++)
    options[2 + i] = (struct argp_option){ .name = values[i].name,
                                           .key = OPT_VALUE + i,
                                           .arg = values[i].argument,
                                           .doc = nsai_keys[values[i].key].help };
  nsai_cli_parse(argc, argv, options, parse, "[FILE]", help, &a);
  if (a.from || has_model(&a, &(nsai_hf_config){ 0 }) || may_ask()) return nsai_cli_exit(init(&a));
  nsai_cli_error(
      "init: give --heads, --kv-heads and --head-dim, or --from config.json: there is no "
      "terminal to ask");
  return NSAI_EXIT_USAGE;
}
