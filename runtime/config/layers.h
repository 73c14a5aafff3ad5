/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One layer into the configuration: a YAML text, an environment variable, an override. Also the
 * `profiles` list, whose settings wait until the device is known.
 */
#ifndef NSAI_CONFIG_LAYERS_H
#define NSAI_CONFIG_LAYERS_H

#include "config/value.h"

/* A value that waits in a profile. */
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
  const char *arch, *name, *uuid; /* NULL: not asked for */
  nsai_setting *settings;         /* newest first */
} nsai_profile;

/* Reads a whole text as a layer: must begin with `nsa: 1`. `model_file`: sections other than
 * `model` are refused. */
void nsai_read_text(nsai_config *config, nsai_layer layer, const nsai_source *source,
                    bool model_file, nsai_diag *diag);

/* Reads "path=value", the value being YAML. */
void nsai_read_override(nsai_config *config, const nsai_source *source, nsai_diag *diag);

/* Reads "NAME=value" as the value of key `id`, taken as it is. */
void nsai_read_variable(nsai_config *config, nsai_key_id id, const nsai_source *source,
                        nsai_diag *diag);

/* Gives every key of a section, "" the root, its built-in value, or zero where it has none. */
void nsai_read_builtin(nsai_config *config, const char *section);

/* Sets a key unless a stronger layer did. */
void nsai_assign(nsai_config *config, const nsai_origin *origin, nsai_key_id id,
                 const nsai_value *value);

#endif /* NSAI_CONFIG_LAYERS_H */
