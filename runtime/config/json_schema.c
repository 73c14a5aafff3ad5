/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The JSON Schema of the format, for editors. It describes the values of single keys; rules.c
 * checks rules between keys.
 */
#include "config/value.h"

#include <inttypes.h>
#include <string.h>

/* Numbers may carry a unit, which makes them strings in JSON. */
#define COUNT_PATTERN "^(0|[1-9][0-9]*)([kMGT]|[KMGT]i)?$"

/* The backslashes are those of JSON. The look-ahead rejects the empty text, which the other
 * parts of the pattern allow. */
#define DECIMAL "[0-9]+(\\\\.[0-9]{1,3})?"
#define DURATION_PATTERN "^(?=.)(" DECIMAL "h)?(" DECIMAL "m)?(" DECIMAL "s)?([0-9]+ms)?$"

static void write_line(nsai_writer *w, int depth) { nsai_write(w, "\n%*s", 2 * depth, ""); }

static void write_words(const nsai_key *key, nsai_writer *w) {
  nsai_write(w, "\"enum\": [");
  for (const nsai_word *word = key->words; word->text; word++)
    nsai_write(w, "%s\"%s\"", word == key->words ? "" : ", ", word->text);
  nsai_write(w, "]");
}

/* The sizes of pages are powers of two, which no step describes. A quoted number is one, too. */
static void write_page_sizes(const nsai_key *key, nsai_writer *w) {
  nsai_write(w, "\"enum\": [0, \"0\"");
  for (int64_t size = 1; size <= key->max; size++)
    if (nsai_page_size_exists((int32_t)size))
      nsai_write(w, ", %" PRId64 ", \"%" PRId64 "\"", size, size);
  nsai_write(w, "]");
}

static void write_count(const nsai_key *key, nsai_writer *w) {
  if (key == &nsai_keys[NSAI_KEY_PAGE_SIZE]) {
    write_page_sizes(key, w);
    return;
  }
  nsai_write(w,
             "\"anyOf\": [{\"type\": \"integer\", \"minimum\": %" PRId64 ", \"maximum\": %" PRId64,
             key->min, key->max);
  if (key->step) nsai_write(w, ", \"multipleOf\": %" PRId64, key->step);
  nsai_write(w, "}, {\"type\": \"string\", \"pattern\": \"" COUNT_PATTERN "\"}");
  if (key->words) {
    nsai_write(w, ", {");
    write_words(key, w);
    nsai_write(w, "}");
  }
  nsai_write(w, "]");
}

static void write_type(const nsai_key *key, nsai_writer *w) {
  switch (key->type) {
  case NSAI_TYPE_BOOL: nsai_write(w, "\"type\": \"boolean\""); break;
  case NSAI_TYPE_INT:
  case NSAI_TYPE_LONG:
  case NSAI_TYPE_SIZE:
  case NSAI_TYPE_ALIAS: write_count(key, w); break;
  case NSAI_TYPE_NUMBER:
    nsai_write(w, "\"type\": \"number\", \"minimum\": 0, \"maximum\": %" PRId64, key->max);
    break;
  case NSAI_TYPE_SHARE:
    nsai_write(w, "\"type\": \"number\", \"minimum\": 0, \"maximum\": %" PRId64 ".%02" PRId64,
               key->max / 100, key->max % 100);
    break;
  case NSAI_TYPE_DURATION:
    nsai_write(w, "\"type\": \"string\", \"pattern\": \"" DURATION_PATTERN "\"");
    break;
  case NSAI_TYPE_WORD: write_words(key, w); break;
  case NSAI_TYPE_TEXT: nsai_write(w, "\"type\": [\"string\", \"null\"]"); break;
  case NSAI_TYPE_PATH:
    nsai_write(w, "\"type\": [\"string\", \"null\"], \"pattern\": \"^/\"");
    break;
  case NSAI_TYPE_DEVICE: nsai_write(w, "\"type\": [\"string\", \"integer\"]"); break;
  case NSAI_TYPE_VARIANT:
    nsai_write(w, "\"type\": [\"string\", \"null\"], \"pattern\": \"^[a-z0-9_]+$\"");
    break;
  case NSAI_TYPE_GLOBS:
    nsai_write(w, "\"type\": [\"array\", \"null\"], \"items\": {\"type\": \"string\", \"pattern\": "
                  "\"^[a-z_*?]+\\\\.[a-z0-9_*?]+$\"}");
    break;
  case NSAI_TYPE_KEYS:
    nsai_write(w, "\"type\": [\"array\", \"null\"], \"items\": {\"type\": \"string\", \"pattern\": "
                  "\"^(/|[0-9a-fA-F]{64}$)\"}");
    break;
  case NSAI_TYPE_COUNTS:
    nsai_write(w,
               "\"type\": [\"array\", \"null\"], \"minItems\": 1, \"maxItems\": %d, \"items\": {",
               NSAI_MAX_COUNTS);
    write_count(key, w);
    nsai_write(w, "}");
    break;
  }
}

static void write_key(const nsai_key *key, nsai_writer *w) {
  nsai_write(w, "{\"description\": \"%s", key->help);
  if (key->fallback) nsai_write(w, " [%s]", key->fallback);
  nsai_write(w, "\", ");
  write_type(key, w);
  nsai_write(w, "}");
}

static void write_mapping(int first, const char *prefix, int depth, nsai_writer *w);

/* Writes one key or section of the mapping `prefix`. Its name is the `length` bytes at `step`. */
static void write_member(int id, const char *step, size_t length, int depth, nsai_writer *w) {
  write_line(w, depth);
  nsai_write(w, "\"%.*s\": ", (int)length, step);
  if (!step[length]) {
    write_key(&nsai_keys[id], w);
    return;
  }
  char prefix[64]; /* longer than any section's path */
  nsai_writer p = nsai_writer_open(prefix, sizeof prefix);
  nsai_write_bytes(&p, nsai_keys[id].path, (size_t)(step + length - nsai_keys[id].path));
  write_mapping(id, prefix, depth, w);
}

/* The schema of the section `prefix`, whose keys begin at `first`. */
static void write_mapping(int first, const char *prefix, int depth, nsai_writer *w) {
  const char *before = "", *step;
  size_t before_length = 0;
  /* `compress: none` is a word where others are mappings. */
  const bool none = !strcmp(prefix, "model.compress");
  nsai_write(w,
             "{\"type\": [\"object\", \"null\"%s, \"additionalProperties\": false, "
             "\"patternProperties\": {\"^x-\": {}}, \"properties\": {",
             none ? ", \"string\"], \"pattern\": \"^none$\"" : "]");
  for (int id = first; id < NSAI_KEY_COUNT; id++) {
    size_t length = nsai_key_step((nsai_key_id)id, prefix, &step);
    if (!length || (length == before_length && memcmp(step, before, length) == 0)) continue;
    if (before_length) nsai_write(w, ",");
    write_member(id, step, length, depth + 1, w);
    before = step;
    before_length = length;
  }
  write_line(w, depth);
  nsai_write(w, "}}");
}

/* References to the sections, as properties of the root and of a profile. */
static void write_references(bool with_model, int depth, nsai_writer *w) {
  const char *before = "", *step;
  for (int id = 0; id < NSAI_KEY_COUNT; before = nsai_keys[id++].path) {
    size_t length = nsai_key_step((nsai_key_id)id, "", &step);
    if (strncmp(step, before, length + 1) == 0) continue;
    if (!with_model && strncmp(step, "model.", length + 1) == 0) continue;
    nsai_write(w, ",");
    write_line(w, depth);
    nsai_write(w, "\"%.*s\": {\"$ref\": \"#/definitions/%.*s\"}", (int)length, step, (int)length,
               step);
  }
}

static void write_profiles(nsai_writer *w) {
  nsai_write(w,
             ",\n    \"profiles\": {\"description\": \"the first that matches the device is laid "
             "over the file\", \"type\": [\"array\", \"null\"],\n"
             "      \"items\": {\"type\": \"object\", \"required\": [\"match\"], "
             "\"additionalProperties\": false,\n"
             "        \"patternProperties\": {\"^x-\": {}}, \"properties\": {\n"
             "          \"match\": {\"type\": [\"object\", \"null\"], "
             "\"additionalProperties\": false,\n"
             "            \"patternProperties\": {\"^x-\": {}}, \"properties\": {\n"
             "            \"arch\": {\"description\": \"sm_90 matches sm_90a too\", \"type\": "
             "[\"string\", \"null\"], \"pattern\": \"^sm_[0-9]{2,3}[af]?$\"},\n"
             "            \"name\": {\"description\": \"glob over the device's name\", \"type\": "
             "[\"string\", \"null\"]},\n"
             "            \"uuid\": {\"description\": \"as nvidia-smi -L prints it\", \"type\": "
             "[\"string\", \"null\"], \"pattern\": \"^GPU-\"}\n"
             "          }}");
  write_references(false, 5, w);
  nsai_write(w, "\n        }}\n    }");
}

void nsai_config_json_schema(nsai_writer *w) {
  nsai_write(w, "{\n  \"$schema\": \"http://json-schema.org/draft-07/schema#\",\n"
                "  \"title\": \"libnsa configuration\",\n"
                "  \"type\": \"object\",\n  \"required\": [\"nsa\"],\n"
                "  \"additionalProperties\": false,\n  \"patternProperties\": {\"^x-\": {}},\n"
                "  \"properties\": {\n"
                "    \"nsa\": {\"description\": \"version of the format; the first key\", "
                "\"const\": " NSAI_SCHEMA_VERSION "}");
  write_references(true, 2, w);
  write_profiles(w);
  nsai_write(w, "\n  },\n  \"definitions\": {");
  const char *before = "", *step;
  for (int id = 0; id < NSAI_KEY_COUNT; before = nsai_keys[id++].path) {
    size_t length = nsai_key_step((nsai_key_id)id, "", &step);
    if (strncmp(step, before, length + 1) == 0) continue;
    if (id) nsai_write(w, ",");
    write_member(id, step, length, 2, w);
  }
  nsai_write(w, "\n  }\n}\n");
}
