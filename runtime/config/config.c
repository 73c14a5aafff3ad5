/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Layers: which texts are read, in which order, and how diagnostics become an error or warnings.
 * All memory of a configuration belongs to its arena.
 */
#include "config/config.h"

#include "base/text.h"
#include "config/env.h"
#include "config/from_model.h"
#include "config/layers.h"
#include "config/rules.h"

#include <errno.h>
#include <fcntl.h>
#include <nsa/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct loader {
  const nsai_config_request *request;
  nsai_config *config;
  nsai_diag diag;
  int32_t sources; /* number of sources so far */
  nsai_mark main;  /* the first text: a missing section is reported there */
} loader;

static bool is_printable(const char *name) {
  for (size_t left = strlen(name); left;) {
    uint32_t code;
    size_t step = nsai_utf8_step(name, left, &code);
    if (!nsai_printable(code)) return false;
    name += step;
    left -= step;
  }
  return true;
}

/* `text` must be in the arena. A byte order mark at its start is skipped. */
static nsai_source *add_source(loader *l, const char *name, const char *text, size_t length) {
  nsai_arena *arena = &l->config->arena;
  nsai_source *source = nsai_arena_alloc(arena, sizeof *source);
  if (!source) return NULL;
  if (length >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
    text += 3;
    length -= 3;
  }
  nsai_excerpt_text excerpt;
  if (!is_printable(name)) name = nsai_excerpt(name, strlen(name), &excerpt);
  *source = (nsai_source){ nsai_arena_copy(arena, name, strlen(name)), text, length, l->sources++ };
  return source->name ? source : NULL;
}

static void read_layer(loader *l, nsai_layer layer, const char *name, const char *text,
                       size_t length) {
  nsai_source *source = add_source(l, name, text, length);
  if (!source) return;
  if (layer != NSAI_LAYER_SYSTEM && !l->main.source) l->main = (nsai_mark){ source, 1, 1 };
  bool model_file = layer == NSAI_LAYER_FILE && l->request->model_file;
  nsai_read_text(l->config, layer, source, model_file, &l->diag);
}

static nsa_status fail_io(const char *path, int error) {
  char text[NSAI_ERRNO_BYTES];
  return nsai_fail(NSA_E_IO, "%s: the configuration cannot be read: %s", path,
                   nsai_errno_text(error, text, sizeof text));
}

/* Reads an open file into the arena: at most one byte more than allowed, so that the parser
 * detects and reports a file that is too long. */
static nsa_status read_file(loader *l, int fd, const char *path, nsai_layer layer) {
  const size_t limit = NSAI_YAML_MAX_BYTES + 1;
  char *text = nsai_arena_alloc(&l->config->arena, limit);
  if (!text) return nsai_fail_nomem("a configuration file", limit);
  size_t length = 0;
  while (length < limit) {
    ssize_t count = read(fd, text + length, limit - length);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail_io(path, errno);
    if (count == 0) break;
    length += (size_t)count;
  }
  read_layer(l, layer, path, text, length);
  return NSA_OK;
}

/* Opening a pipe could block forever, so the file is opened non-blocking, and only regular files
 * are read. */
static nsa_status load_file(loader *l) {
  const char *path = l->request->path;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat st;
  nsa_status status = NSA_OK;
  if (fd < 0) return fail_io(path, errno);
  if (fstat(fd, &st) != 0)
    status = fail_io(path, errno);
  else if (S_ISDIR(st.st_mode))
    status = fail_io(path, EISDIR);
  else if (!S_ISREG(st.st_mode))
    status = nsai_fail(NSA_E_IO,
                       "%s: the configuration cannot be read: it is no regular file; give the text "
                       "of a pipe as nsa_options.yaml_text, or to a command as standard input, -",
                       path);
  else
    status = read_file(l, fd, path, NSAI_LAYER_FILE);
  close(fd);
  return status;
}

static void ignore_system_file(loader *l, const char *path, const char *why) {
  nsai_source *source = add_source(l, path, "", 0);
  if (source)
    nsai_diag_add(&l->diag, NSAI_WARNING, (nsai_mark){ source, 0, 0 }, NULL, "ignored: %s", why);
}

/* The system file is used only when nobody but root can have written it; otherwise it is skipped
 * with a warning. */
static nsa_status load_system_file(loader *l) {
  const char *path = l->request->system_path ? l->request->system_path : NSAI_SYSTEM_CONFIG;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    char text[NSAI_ERRNO_BYTES];
    if (errno != ENOENT && errno != ENOTDIR)
      ignore_system_file(l, path, nsai_errno_text(errno, text, sizeof text));
    return NSA_OK;
  }
  struct stat st;
  nsa_status status = NSA_OK;
  bool trusted = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == 0 &&
                 !(st.st_mode & (S_IWGRP | S_IWOTH));
  if (trusted)
    status = read_file(l, fd, path, NSAI_LAYER_SYSTEM);
  else
    ignore_system_file(l, path,
                       "the system's configuration must be a file that root owns and nobody else "
                       "can write");
  close(fd);
  return status;
}

static void load_text(loader *l) {
  const nsai_config_request *request = l->request;
  size_t length = request->length ? request->length : strlen(request->text);
  /* A text that is too long is refused by its length alone, so it need not be copied completely. */
  if (length > NSAI_YAML_MAX_BYTES) length = NSAI_YAML_MAX_BYTES + 1;
  char *text = nsai_arena_copy(&l->config->arena, request->text, length);
  const char *name = request->name ? request->name : "<text>";
  if (text) read_layer(l, NSAI_LAYER_TEXT, name, text, length);
}

/* What files and texts said about the model no longer counts; what is wrong in them stays
 * reported. */
static nsa_status load_model(loader *l) {
  nsai_writer count = nsai_writer_open(NULL, 0);
  NSAI_TRY(nsai_model_write(l->request->model, &count));
  char *text = nsai_arena_alloc(&l->config->arena, count.used + 1);
  if (!text) return NSA_OK; /* the arena has failed, which is seen at the end */
  nsai_writer writer = nsai_writer_open(text, count.used + 1);
  NSAI_TRY(nsai_model_write(l->request->model, &writer));
  nsai_read_builtin(l->config, "model");
  read_layer(l, NSAI_LAYER_MODEL, "options.model", text, count.used);
  return NSA_OK;
}

/* Once in a process: a host may make many contexts. A value is not shown, since a variable that is
 * not of this library may hold a secret. */
static void report_strangers(loader *l) {
  static bool reported;
  nsai_env_stranger stranger = { 0 };
  if (__atomic_exchange_n(&reported, true, __ATOMIC_RELAXED)) return;
  nsai_source *source = add_source(l, "environment", "", 0);
  while (source && nsai_env_next_stranger(&stranger)) {
    nsai_excerpt_text name;
    nsai_excerpt(stranger.name, stranger.length, &name);
    nsai_mark mark = { source, 0, 0 };
    if (stranger.nearest)
      nsai_diag_add(&l->diag, NSAI_WARNING, mark, name.text,
                    "unknown variable, which changes nothing; did you mean %s?", stranger.nearest);
    else
      nsai_diag_add(&l->diag, NSAI_WARNING, mark, name.text,
                    "unknown variable, which changes nothing; `nsa-autotune show env` lists those "
                    "of libnsa");
  }
}

static void load_environment(loader *l) {
  const nsai_env_var *var;
  report_strangers(l);
  for (size_t i = 0; (var = nsai_env_at(i)); i++) {
    const char *value = nsai_env_get(var);
    if (!value) continue;
    size_t size = strlen(var->name) + 1 + strlen(value) + 1;
    char *text = nsai_arena_alloc(&l->config->arena, size);
    if (!text) return;
    snprintf(text, size, "%s=%s", var->name, value);
    nsai_source *source = add_source(l, "environment", text, size - 1);
    if (source) nsai_read_variable(l->config, var->key, source, &l->diag);
  }
}

/* Overrides are read later and take precedence. */
static void load_device(loader *l) {
  static const char key[] = "runtime.device=";
  const char *device = l->request->device;
  size_t size = sizeof key + strlen(device);
  char *text = nsai_arena_alloc(&l->config->arena, size);
  if (!text) return;
  snprintf(text, size, "%s%s", key, device);
  nsai_source *source = add_source(l, "options.device", text, size - 1);
  if (source) nsai_read_override(l->config, source, &l->diag);
}

static void load_overrides(loader *l) {
  const char *const *list = l->request->overrides;
  for (; list && *list; list++) {
    size_t length = strlen(*list);
    char *text = nsai_arena_copy(&l->config->arena, *list, length);
    nsai_source *source = text ? add_source(l, "override", text, length) : NULL;
    if (source) nsai_read_override(l->config, source, &l->diag);
  }
}

/* Turns the diagnostics into a status. Errors go into the error text; if there are only
 * warnings, they go into the configuration. */
static nsa_status conclude(nsai_config *config, const nsai_diag *diag) {
  nsai_writer count = nsai_writer_open(NULL, 0);
  nsai_diag_write(diag, &count);
  char *text = nsai_arena_alloc(&config->arena, count.used + 1);
  if (config->arena.failed || !text)
    return nsai_fail_nomem("the configuration", config->arena.failed);
  nsai_writer writer = nsai_writer_open(text, count.used + 1);
  nsai_diag_write(diag, &writer);
  if (diag->errors) return nsai_fail_text(NSA_E_CONFIG, text);
  config->warnings = text;
  return NSA_OK;
}

/* NULL without memory. */
static char *make_json(const nsai_diag *diag) {
  nsai_writer count = nsai_writer_open(NULL, 0);
  nsai_diag_write_json(diag, &count);
  char *json = malloc(count.used + 1);
  nsai_writer writer = nsai_writer_open(json, json ? count.used + 1 : 0);
  if (json) nsai_diag_write_json(diag, &writer);
  return json;
}

static nsa_status load_layers(loader *l) {
  const nsai_config_request *request = l->request;
  nsai_read_builtin(l->config, "");
  if (!request->skip_system_file) NSAI_TRY(load_system_file(l));
  if (request->path) NSAI_TRY(load_file(l));
  if (request->text) load_text(l);
  if (request->model) NSAI_TRY(load_model(l));
  if (!request->skip_environment) load_environment(l);
  if (request->device) load_device(l);
  load_overrides(l);
  l->config->has_model = l->config->model_mark.source != NULL;
  l->config->model.keys_only = !l->config->compress_output;
  /* Without memory some values are missing, and diagnostics about them would mislead. */
  if (!l->config->arena.failed) nsai_config_check_rules(l->config, l->main, &l->diag);
  nsa_status status = conclude(l->config, &l->diag);
  if (request->diagnostics) nsai_diag_write(&l->diag, request->diagnostics);
  if (request->json) *request->json = make_json(&l->diag);
  return status;
}

nsa_status nsai_config_load(const nsai_config_request *request, nsai_config **out) {
  *out = NULL;
  if (request->json) *request->json = NULL;
  nsai_config *config = calloc(1, sizeof *config);
  if (!config) return nsai_fail_nomem("the configuration", sizeof *config);
  config->warnings = "";
  config->need_model = request->need_model;
  config->variant = request->variant;
  loader l = { .request = request, .config = config, .diag = { .arena = &config->arena } };
  nsa_status status = load_layers(&l);
  if (status != NSA_OK) {
    nsai_config_destroy(config);
    return status;
  }
  *out = config;
  return NSA_OK;
}

void nsai_config_destroy(nsai_config *config) {
  if (!config) return;
  nsai_arena_fini(&config->arena);
  free(config);
}

/* "sm_90" matches sm_90 and sm_90a; "sm_90a" only itself. */
static bool matches_arch(const char *wanted, const char *arch) {
  size_t length = strlen(wanted);
  if (!arch || strncmp(wanted, arch, length) != 0) return false;
  return !arch[length] || strspn(arch + length, "af") == strlen(arch + length);
}

static bool matches(const nsai_profile *p, const char *arch, const char *name, const char *uuid) {
  if (p->arch && !matches_arch(p->arch, arch)) return false;
  if (p->name && (!name || !nsai_glob_match(p->name, name))) return false;
  return !p->uuid || (uuid && strcasecmp(p->uuid, uuid) == 0);
}

nsa_status nsai_config_apply_device(nsai_config *config, const char *arch, const char *name,
                                    const char *uuid) {
  const nsai_profile *profile = config->profiles;
  while (profile && !matches(profile, arch, name, uuid)) profile = profile->next;
  if (!profile) return NSA_OK;
  config->profile = profile->mark;
  for (const nsai_setting *s = profile->settings; s; s = s->next)
    nsai_assign(config, &(nsai_origin){ NSAI_LAYER_PROFILE, s->mark, s->broken }, s->key,
                &s->value);
  nsai_diag diag = { .arena = &config->arena };
  nsai_config_check_rules(config, config->model_mark, &diag);
  return conclude(config, &diag);
}
