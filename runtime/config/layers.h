/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Reads one layer into the configuration: a YAML text, an environment variable or an override.
 * Also reads the `profiles` list; its settings are stored until the device is known.
 */
#ifndef NSAI_CONFIG_LAYERS_H
#define NSAI_CONFIG_LAYERS_H

#include "config/value.h"

/* A value stored in a profile. */
typedef struct nsai_setting {
  struct nsai_setting *next;
  nsai_key_id key;
  nsai_mark mark;
  bool broken;
  nsai_value value;
} nsai_setting;

typedef struct nsai_profile {
  struct nsai_profile *next;
  nsai_mark mark;
  const char *arch, *name, *uuid; /* NULL: not a criterion */
  nsai_setting *settings;         /* newest first */
} nsai_profile;

/* Reads a complete text as a layer. It must begin with `nsa: 1`. `model_file`: sections other
 * than `model` are refused. */
void nsai_read_text(nsai_config *config, nsai_layer layer, const nsai_source *source,
                    bool model_file, nsai_diag *diag);

/* Reads "path=value", where the value is YAML. */
void nsai_read_override(nsai_config *config, const nsai_source *source, nsai_diag *diag);

/* Reads "NAME=value" as the value of key `id`, without parsing it as YAML. */
void nsai_read_variable(nsai_config *config, nsai_key_id id, const nsai_source *source,
                        nsai_diag *diag);

/* Gives every key of a section, "" the root, its built-in value, or zero where it has none. */
void nsai_read_builtin(nsai_config *config, const char *section);

/* Sets a key unless a layer of higher precedence has set it. */
void nsai_assign(nsai_config *config, const nsai_origin *origin, nsai_key_id id,
                 const nsai_value *value);

#endif /* NSAI_CONFIG_LAYERS_H */
