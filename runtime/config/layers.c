/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "config/layers.h"

#include "base/text.h"
#include "driver/arch.h"

#include <string.h>

#define PATH_BYTES 320 /* "profiles[4999]." + a known section + an excerpt */
#define WHY_BYTES 640

typedef struct reader {
  nsai_config *config;
  nsai_layer layer;
  nsai_diag *diag;
  nsai_profile *profile; /* receives the values; NULL: the configuration receives them */
  char shown[32];        /* the start of paths in messages: "profiles[0]." or "" */
  bool model_file;
} reader;

void nsai_assign(nsai_config *config, const nsai_origin *origin, nsai_key_id id,
                 const nsai_value *value) {
  if (config->origin[id].layer > origin->layer) return;
  config->origin[id] = *origin;
  if (!origin->broken) nsai_value_store(config, id, value);
}

/* Passes a value, valid or refused, to the profile or the configuration. */
static void put(reader *r, nsai_key_id id, nsai_mark mark, const nsai_value *value) {
  if (nsai_keys[id].type == NSAI_TYPE_ALIAS) {
    put(r, (nsai_key_id)(id + 1), mark, value);
    put(r, (nsai_key_id)(id + 2), mark, value);
    return;
  }
  if (!r->profile) {
    nsai_assign(r->config, &(nsai_origin){ r->layer, mark, !value }, id, value);
    return;
  }
  nsai_setting *setting = nsai_arena_alloc(&r->config->arena, sizeof *setting);
  if (!setting) return;
  *setting = (nsai_setting){ r->profile->settings, id, mark, !value, { 0 } };
  if (value) setting->value = *value;
  r->profile->settings = setting;
}

static void put_broken(reader *r, nsai_key_id id, nsai_mark mark) { put(r, id, mark, NULL); }

static void put_section_broken(reader *r, const char *prefix, nsai_mark mark) {
  const char *step;
  for (int id = 0; id < NSAI_KEY_COUNT; id++)
    if (nsai_key_step((nsai_key_id)id, prefix, &step)) put_broken(r, (nsai_key_id)id, mark);
}

static void complain(reader *r, nsai_mark mark, const char *path, const char *text) {
  char shown[PATH_BYTES];
  nsai_writer w = nsai_writer_open(shown, sizeof shown);
  nsai_write(&w, "%s%s", r->shown, path);
  nsai_diag_add(r->diag, NSAI_ERROR, mark, shown, "%s", text);
}

static void read_value(reader *r, nsai_key_id id, const nsai_node *node) {
  if (r->profile && (id == NSAI_KEY_DEVICE || id == NSAI_KEY_DRIVER_PATH)) {
    complain(r, node->mark, nsai_keys[id].path,
             "a profile is found by the device, so it cannot say how to find the device: move the "
             "key to the file's own runtime section");
    return;
  }
  if (r->profile && id == NSAI_KEY_TRUSTED_KEYS) {
    complain(
        r, node->mark, nsai_keys[id].path,
        "an import looks for no device, so that a profile cannot say whose packs it takes: move "
        "the key to the file's own runtime section");
    return;
  }
  char why[WHY_BYTES];
  nsai_writer w = nsai_writer_open(why, sizeof why);
  nsai_value value;
  if (nsai_value_read(id, node, &r->config->arena, &value, &w)) {
    put(r, id, node->mark, &value);
    return;
  }
  if (w.used) complain(r, value.mark, nsai_keys[id].path, why);
  put_broken(r, id, node->mark);
}

static void report_unknown(reader *r, nsai_mark mark, const char *path) {
  nsai_suggestion suggestion;
  nsai_key_suggest(path, &suggestion);
  complain(r, mark, path, suggestion.text);
  if (suggestion.key != NSAI_KEY_COUNT) put_broken(r, suggestion.key, mark);
}

static void read_section(reader *r, const char *prefix, const nsai_node *node);

/* Reads one key of a mapping. `prefix` is the mapping's path; "" for the root. */
static void read_entry(reader *r, const char *prefix, const nsai_node *node) {
  const nsai_node *key = node->key;
  nsai_excerpt_text excerpt;
  char path[PATH_BYTES];
  nsai_writer w = nsai_writer_open(path, sizeof path);
  nsai_excerpt(key->text, key->length, &excerpt); /* leaves every known key unchanged */
  nsai_write(&w, "%s%s%s", prefix, *prefix ? "." : "", excerpt.text);
  if (strncmp(key->text, "x-", 2) == 0) return;
  if (strchr(key->text, '.')) {
    complain(r, key->mark, path, "unknown key; write sections as nested mappings, without dots");
    return;
  }
  nsai_key_id id = nsai_key_find(path, strlen(path));
  if (id != NSAI_KEY_COUNT)
    read_value(r, id, node);
  else if (nsai_section_exists(path, strlen(path)))
    read_section(r, path, node);
  else
    report_unknown(r, key->mark, path);
}

static const nsai_node *find(const nsai_node *mapping, const char *name) {
  for (const nsai_node *node = mapping->first; node; node = node->next)
    if (strcmp(node->key->text, name) == 0) return node;
  return NULL;
}

static void check_head_dims(reader *r, const nsai_node *model) {
  const nsai_node *both = find(model, "head_dim");
  const nsai_node *one = find(model, "head_dim_qk");
  if (!one) one = find(model, "head_dim_v");
  if (both && one)
    nsai_diag_add(r->diag, NSAI_ERROR, both->key->mark, "model.head_dim",
                  "sets head_dim_qk and head_dim_v, and %s is given too, on line %d: give either "
                  "head_dim, or head_dim_qk and head_dim_v",
                  one->key->text, one->key->mark.line);
}

static bool is_empty(const nsai_node *node) {
  return node->kind == NSAI_NODE_SCALAR && node->plain &&
         (!node->length || strcmp(node->text, "null") == 0 || strcmp(node->text, "~") == 0);
}

/* `compress: none` is short for `compress: {phi: none}`. */
static bool is_no_compression(const char *prefix, const nsai_node *node) {
  return !strcmp(prefix, "model.compress") && node->kind == NSAI_NODE_SCALAR &&
         !strcmp(node->text, "none");
}

static void read_section(reader *r, const char *prefix, const nsai_node *node) {
  if (is_empty(node)) return;
  if (is_no_compression(prefix, node)) {
    read_value(r, NSAI_KEY_COMPRESS_PHI, node);
    return;
  }
  if (node->kind != NSAI_NODE_MAPPING) {
    if (node->kind != NSAI_NODE_REFUSED)
      complain(r, node->mark, prefix,
               strcmp(prefix, "model.compress") != 0
                   ? "expected a mapping of keys to values"
                   : "expected a mapping of keys to values, or none");
    put_section_broken(r, prefix, node->mark);
    return;
  }
  if (strcmp(prefix, "model") == 0) check_head_dims(r, node);
  for (const nsai_node *entry = node->first; entry; entry = entry->next)
    read_entry(r, prefix, entry);
}

/* ---- profiles ---- */

static bool is_arch(const char *text) {
  if (strncmp(text, "sm_", 3) != 0) return false;
  size_t digits = strspn(text + 3, "0123456789");
  const char *suffix = text + 3 + digits;
  return digits >= 2 && digits <= 3 &&
         (!*suffix || strcmp(suffix, "a") == 0 || strcmp(suffix, "f") == 0);
}

static void complain_arch(reader *r, const nsai_node *node, const char *path) {
  const char *meant = nsai_arch_meant(node->text);
  char why[WHY_BYTES];
  nsai_writer w = nsai_writer_open(why, sizeof why);
  nsai_write(&w, "expected an architecture like sm_90 or sm_90a");
  if (meant) nsai_write(&w, ": did you mean '%s'?", meant);
  complain(r, node->mark, path, why);
}

/* Reads one of match.arch, match.name, match.uuid. */
static void read_criterion(reader *r, const nsai_node *node) {
  const char *name = node->key->text;
  nsai_profile *profile = r->profile;
  const char **place = strcmp(name, "arch") == 0   ? &profile->arch
                       : strcmp(name, "name") == 0 ? &profile->name
                       : strcmp(name, "uuid") == 0 ? &profile->uuid
                                                   : NULL;
  nsai_excerpt_text excerpt;
  char path[PATH_BYTES];
  nsai_writer w = nsai_writer_open(path, sizeof path);
  nsai_write(&w, "match.%s", nsai_excerpt(name, node->key->length, &excerpt));
  if (strncmp(name, "x-", 2) == 0 || node->kind == NSAI_NODE_REFUSED || is_empty(node)) return;
  if (!place)
    complain(r, node->key->mark, path, "unknown key; match has arch, name, uuid");
  else if (node->kind != NSAI_NODE_SCALAR)
    complain(r, node->mark, path, "expected one word; a profile for several devices is repeated");
  else if (place == &profile->arch && !is_arch(node->text))
    complain_arch(r, node, path);
  else if (place == &profile->uuid && strncmp(node->text, "MIG-", 4) == 0)
    complain(r, node->mark, path,
             "a MIG instance is not told from its GPU: match the GPU's own UUID, GPU-..., or use "
             "match.name");
  else if (place == &profile->uuid && strncmp(node->text, "GPU-", 4) != 0)
    complain(r, node->mark, path, "expected a UUID as nvidia-smi -L prints it, GPU-...");
  else
    *place = node->text;
}

static void read_match(reader *r, const nsai_node *profile) {
  const nsai_node *match = find(profile, "match");
  if (match && match->kind == NSAI_NODE_REFUSED) return;
  if (!match || (match->kind != NSAI_NODE_MAPPING && !is_empty(match))) {
    complain(r, match ? match->mark : profile->mark, "match",
             "a profile needs match: {arch: ..., name: ..., uuid: ...}, at least one of them, or "
             "match: {} for every device");
    return;
  }
  for (const nsai_node *entry = match->first; entry; entry = entry->next) read_criterion(r, entry);
}

static void read_profile_entry(reader *r, const nsai_node *node) {
  const char *name = node->key->text;
  if (strcmp(name, "match") == 0) return;
  if (strcmp(name, "model") == 0)
    complain(r, node->key->mark, name,
             "a profile cannot change the model: it belongs to the weights, not to the device");
  else if (strcmp(name, "profiles") == 0 || strcmp(name, "nsa") == 0)
    complain(r, node->key->mark, name, "cannot stand in a profile: move it to the top of the file");
  else
    read_entry(r, "", node);
}

static void read_profiles(const reader *outer, const nsai_node *list) {
  reader r = *outer;
  nsai_config *config = r.config;
  nsai_profile **link = &config->profiles;
  int index = 0;
  if (list->kind == NSAI_NODE_REFUSED) return;
  *link = NULL;
  if (is_empty(list)) return;
  if (list->kind != NSAI_NODE_SEQUENCE) {
    complain(&r, list->mark, "profiles", "expected a list: each item begins with '- match:'");
    return;
  }
  for (const nsai_node *item = list->first; item; item = item->next, index++) {
    nsai_writer w = nsai_writer_open(r.shown, sizeof r.shown);
    nsai_write(&w, "profiles[%d].", index);
    nsai_profile *profile = nsai_arena_alloc(&config->arena, sizeof *profile);
    if (!profile) return;
    profile->mark = item->mark;
    *link = r.profile = profile;
    link = &profile->next;
    if (item->kind != NSAI_NODE_MAPPING) {
      complain(&r, item->mark, "match", "expected a mapping that begins with 'match:'");
      continue;
    }
    read_match(&r, item);
    for (const nsai_node *entry = item->first; entry; entry = entry->next)
      read_profile_entry(&r, entry);
  }
}

/* ---- whole texts ---- */

static void check_version(reader *r, const nsai_node *root) {
  const nsai_node *version = find(root, "nsa");
  nsai_mark mark = root->first ? root->first->key->mark : root->mark;
  if (!version)
    nsai_diag_add(r->diag, NSAI_ERROR, mark, "nsa",
                  "the first key must be 'nsa: 1', the version of the format");
  else if (version != root->first)
    nsai_diag_add(r->diag, NSAI_ERROR, version->key->mark, "nsa", "must be the first key");
  if (!version || version->kind == NSAI_NODE_REFUSED) return;
  if (version->kind != NSAI_NODE_SCALAR || strcmp(version->text, NSAI_SCHEMA_VERSION) != 0)
    nsai_diag_add(r->diag, NSAI_ERROR, version->mark, "nsa",
                  "this library reads version 1 of the format: write 'nsa: 1', or use a library "
                  "that knows the other version");
}

static void read_root_entry(reader *r, const nsai_node *node) {
  const char *name = node->key->text;
  bool is_model = strcmp(name, "model") == 0;
  if (strcmp(name, "nsa") == 0) return;
  if (is_model) r->config->model_mark = node->key->mark;
  if (r->model_file && !is_model && strncmp(name, "x-", 2) != 0) {
    nsai_excerpt_text excerpt;
    nsai_diag_add(r->diag, NSAI_ERROR, node->key->mark,
                  nsai_excerpt(name, node->key->length, &excerpt),
                  "a file that comes with weights may hold 'model' only: what runs on a host is "
                  "said in the host's own configuration");
  } else if (strcmp(name, "profiles") == 0) {
    read_profiles(r, node);
  } else {
    read_entry(r, "", node);
  }
}

void nsai_read_text(nsai_config *config, nsai_layer layer, const nsai_source *source,
                    bool model_file, nsai_diag *diag) {
  reader r = { .config = config, .layer = layer, .diag = diag, .model_file = model_file };
  size_t errors = diag->errors;
  const nsai_node *root = nsai_yaml_parse(source, 0, &config->arena, diag);
  if (!root || root->kind != NSAI_NODE_MAPPING) config->unreadable = true;
  if (!root) {
    if (diag->errors == errors && !config->arena.failed)
      nsai_diag_add(diag, NSAI_ERROR, (nsai_mark){ source, 1, 1 }, NULL,
                    "empty: a configuration begins with 'nsa: 1'");
    return;
  }
  if (root->kind != NSAI_NODE_MAPPING) {
    if (root->kind != NSAI_NODE_REFUSED)
      nsai_diag_add(diag, NSAI_ERROR, root->mark, NULL,
                    "expected keys and values, beginning with 'nsa: 1'");
    return;
  }
  check_version(&r, root);
  for (const nsai_node *entry = root->first; entry; entry = entry->next) read_root_entry(&r, entry);
}

/* The part of "name=value" after the '=', as a scalar. */
static nsai_node rest_as_scalar(const nsai_source *source, size_t at, bool plain) {
  return (nsai_node){ .kind = NSAI_NODE_SCALAR,
                      .plain = plain,
                      .mark = { source, 1, (int32_t)at + 1 },
                      .text = source->text + at,
                      .length = source->length - at };
}

static bool is_utf8(const nsai_source *source, nsai_diag *diag) {
  if (nsai_utf8_valid(source->text, source->length)) return true;
  nsai_diag_add(diag, NSAI_ERROR, (nsai_mark){ source, 1, 1 }, NULL, "not valid UTF-8");
  return false;
}

void nsai_read_override(nsai_config *config, const nsai_source *source, nsai_diag *diag) {
  reader r = { .config = config, .layer = NSAI_LAYER_OVERRIDE, .diag = diag };
  const nsai_mark start = { source, 1, 1 };
  size_t length = strcspn(source->text, "=");
  if (!is_utf8(source, diag)) return;
  if (length == source->length) {
    nsai_diag_add(diag, NSAI_ERROR, start, NULL,
                  "an override is written key=value, like runtime.jit=never");
    return;
  }
  nsai_key_id id = nsai_key_find(source->text, length);
  bool is_section = nsai_section_exists(source->text, length);
  if (id == NSAI_KEY_COUNT && !is_section) {
    nsai_excerpt_text excerpt;
    report_unknown(&r, start, nsai_excerpt(source->text, length, &excerpt));
    return;
  }
  if (strncmp(source->text, "model", strlen("model")) == 0) config->model_mark = start;
  if (id != NSAI_KEY_COUNT && !nsai_type_is_list(nsai_keys[id].type)) {
    nsai_node scalar = rest_as_scalar(source, length + 1, true);
    read_value(&r, id, &scalar);
    return;
  }
  size_t errors = diag->errors;
  const nsai_node *root = nsai_yaml_parse(source, length + 1, &config->arena, diag);
  nsai_node empty = rest_as_scalar(source, source->length, true);
  if (!root && diag->errors != errors) return;
  if (!root) root = &empty;
  char prefix[64]; /* longer than any section's path */
  nsai_writer w = nsai_writer_open(prefix, sizeof prefix);
  nsai_write_bytes(&w, source->text, length);
  if (is_section)
    read_section(&r, prefix, root);
  else
    read_value(&r, id, root);
}

void nsai_read_variable(nsai_config *config, nsai_key_id id, const nsai_source *source,
                        nsai_diag *diag) {
  reader r = { .config = config, .layer = NSAI_LAYER_ENVIRONMENT, .diag = diag };
  if (!is_utf8(source, diag)) return;
  nsai_node scalar = rest_as_scalar(source, strcspn(source->text, "=") + 1, false);
  read_value(&r, id, &scalar);
}

void nsai_read_builtin(nsai_config *config, const char *section) {
  for (int id = 0; id < NSAI_KEY_COUNT; id++) {
    const nsai_key *key = &nsai_keys[id];
    const char *text = key->fallback, *step;
    if (!nsai_key_step((nsai_key_id)id, section, &step) || key->type == NSAI_TYPE_ALIAS) continue;
    nsai_node node = {
      .kind = NSAI_NODE_SCALAR, .plain = true, .text = text, .length = text ? strlen(text) : 0
    };
    nsai_value value = { 0 }; /* lists, and what must be given */
    nsai_writer nowhere = nsai_writer_open(NULL, 0);
    config->origin[id] = (nsai_origin){ 0 };
    bool read = text && !nsai_type_is_list(key->type);
    if (!read || nsai_value_read((nsai_key_id)id, &node, &config->arena, &value, &nowhere))
      nsai_value_store(config, (nsai_key_id)id, &value);
  }
}
