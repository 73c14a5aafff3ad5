/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "config/value.h"

#include <string.h>

/* The column at which the comments with the origins begin. */
#define ORIGIN_COLUMN 48

static void write_place(const nsai_mark *mark, nsai_writer *writer) {
  nsai_write(writer, "%s:%d", mark->source->name, mark->line);
}

static void write_origin(const nsai_origin *origin, nsai_writer *writer) {
  const char *text = origin->mark.source ? origin->mark.source->text : "";
  switch (origin->layer) {
  case NSAI_LAYER_BUILTIN: nsai_write(writer, "built-in"); break;
  case NSAI_LAYER_PROFILE:
    nsai_write(writer, "profile ");
    write_place(&origin->mark, writer);
    break;
  case NSAI_LAYER_ENVIRONMENT: nsai_write(writer, "env %.*s", (int)strcspn(text, "="), text); break;
  case NSAI_LAYER_OVERRIDE:
    nsai_write(writer, "%s %.*s", origin->mark.source->name, (int)strcspn(text, "="), text);
    break;
  default: write_place(&origin->mark, writer); break;
  }
}

/* Writes the sections that contain this key and did not contain the key before it. Returns the
 * key's depth. */
static int open_sections(nsai_key_id id, const char *before, nsai_writer *writer) {
  const char *path = nsai_keys[id].path;
  int depth = 0;
  for (const char *dot; (dot = strchr(path, '.')); path = dot + 1, depth++) {
    size_t length = (size_t)(dot + 1 - nsai_keys[id].path);
    if (strncmp(before, nsai_keys[id].path, length) != 0)
      nsai_write(writer, "%*s%.*s:\n", 2 * depth, "", (int)(dot - path), path);
  }
  return depth;
}

static void write_key(const nsai_config *config, nsai_key_id id, const char *before,
                      bool with_origin, nsai_writer *writer) {
  int depth = open_sections(id, before, writer);
  size_t start = writer->used;
  nsai_write(writer, "%*s%s: ", 2 * depth, "", strrchr(nsai_keys[id].path, '.') + 1);
  nsai_value_write(config, id, writer);
  if (with_origin) {
    size_t width = writer->used - start;
    int pad = width < ORIGIN_COLUMN ? (int)(ORIGIN_COLUMN - width) : 1;
    nsai_write(writer, "%*s# ", pad, "");
    write_origin(&config->origin[id], writer);
  }
  nsai_write(writer, "\n");
}

/* Whether the key describes compressed keys, which the model does not have: given, it is an error. */
static bool is_void(const nsai_config *config, nsai_key_id id) {
  return config->has_model && !nsai_compresses(&config->model) &&
         strncmp(nsai_keys[id].path, "model.compress.", strlen("model.compress.")) == 0 &&
         id != NSAI_KEY_COMPRESS_PHI;
}

void nsai_config_dump(const nsai_config *config, bool with_origin, nsai_writer *writer) {
  const char *before = "";
  nsai_write(writer, "nsa: " NSAI_SCHEMA_VERSION "\n");
  if (with_origin && config->profile.source) {
    nsai_write(writer, "# profile: ");
    write_place(&config->profile, writer);
    nsai_write(writer, "\n");
  }
  for (int id = 0; id < NSAI_KEY_COUNT; id++) {
    bool is_model = strncmp(nsai_keys[id].path, "model.", strlen("model.")) == 0;
    if (nsai_keys[id].type == NSAI_TYPE_ALIAS || (is_model && !config->has_model)) continue;
    if (is_void(config, (nsai_key_id)id)) continue;
    write_key(config, (nsai_key_id)id, before, with_origin, writer);
    before = nsai_keys[id].path;
  }
}

/* ---- with comments ---- */

#define COMMENT_WIDTH 100 /* columns */

/* Writes `text` as comments at this depth, broken at spaces. */
static void write_comment(const char *text, int depth, nsai_writer *writer) {
  size_t room = (size_t)(COMMENT_WIDTH - 2 * depth - 2);
  while (*text) {
    size_t length = strlen(text);
    if (length > room) {
      for (length = room; length && text[length] != ' ';) length--;
      if (!length) length = strcspn(text, " "); /* a word that is longer than a line */
    }
    nsai_write(writer, "%*s# %.*s\n", 2 * depth, "", (int)length, text);
    text += length;
    text += strspn(text, " ");
  }
}

/* Whether a key is written as it is, and not as a comment. Of head_dim and the two keys that it
 * stands for, one form counts. */
static bool is_active(const nsai_config *config, nsai_key_id id) {
  bool one = config->model.head_dim_qk == config->model.head_dim_v;
  if (id == NSAI_KEY_MODEL_HEAD_DIM) return config->has_model && one;
  if (id == NSAI_KEY_MODEL_HEAD_DIM_QK || id == NSAI_KEY_MODEL_HEAD_DIM_V)
    return config->has_model && !one;
  if (is_void(config, id)) return false;
  if (strncmp(nsai_keys[id].path, "model.", strlen("model.")) == 0) return config->has_model;
  return config->origin[id].layer != NSAI_LAYER_BUILTIN;
}

static void write_commented_key(const nsai_config *config, nsai_key_id id, const char *before,
                                nsai_writer *writer) {
  const nsai_key *key = &nsai_keys[id];
  size_t section = strcspn(key->path, ".") + 1;
  char comment[1024]; /* longer than every help and type */
  nsai_writer text = nsai_writer_open(comment, sizeof comment);
  if (strncmp(before, key->path, section) != 0) nsai_write(writer, "\n");
  int depth = open_sections(id, before, writer);
  nsai_write(&text, "%s. Values: ", key->help);
  nsai_type_write(key, &text);
  write_comment(comment, depth, writer);
  nsai_write(writer, "%*s%s%s: ", 2 * depth, "", is_active(config, id) ? "" : "#",
             strrchr(key->path, '.') + 1);
  nsai_value_write(config, id == NSAI_KEY_MODEL_HEAD_DIM ? NSAI_KEY_MODEL_HEAD_DIM_QK : id, writer);
  nsai_write(writer, "\n");
}

void nsai_config_write_commented(const nsai_config *config, nsai_writer *writer) {
  const char *before = "";
  write_comment("A configuration of libnsa. A key behind a # has the built-in value that is shown. "
                "Sizes of `model` belong to a model's weights: those of compress, select, window "
                "and gate are the paper's unless they were given, and have to be the ones that the "
                "model is trained with. `nsa-autotune check` finds what is wrong in a file.",
                0, writer);
  nsai_write(writer, "nsa: " NSAI_SCHEMA_VERSION "\n");
  for (int id = 0; id < NSAI_KEY_COUNT; before = nsai_keys[id++].path)
    write_commented_key(config, (nsai_key_id)id, before, writer);
}
