/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Values of keys: read from a node by the key's type, stored in the configuration, written as
 * text. Independent of the locale. The key's type decides how a value is read, not its look:
 * quotes do not change it, except that a quoted null is text.
 */
#ifndef NSAI_CONFIG_VALUE_H
#define NSAI_CONFIG_VALUE_H

#include "config/schema.h"
#include "config/yaml.h"

typedef struct nsai_value {
  int64_t integer; /* bool, int, long, size, word; duration: milliseconds */
  double number;
  char *text; /* NULL: null */
  nsai_list list;
  nsai_counts counts;
  /* position of the error in a refused value: the value itself or an item of its list */
  nsai_mark mark;
} nsai_value;

/* Reads the value of key `id`; strings are allocated in `arena`. False: `why` says what is wrong
 * and what would be right (nothing if the node was refused before or memory is exhausted). */
bool nsai_value_read(nsai_key_id id, const nsai_node *node, nsai_arena *arena, nsai_value *value,
                     nsai_writer *why);

/* Stores a value in the configuration. Not for NSAI_TYPE_ALIAS. */
void nsai_value_store(nsai_config *config, nsai_key_id id, const nsai_value *value);

/* Writes the stored value as YAML that reads as the same value. Not for NSAI_TYPE_ALIAS. */
void nsai_value_write(const nsai_config *config, nsai_key_id id, nsai_writer *writer);

/* Writes which values a key accepts: "true | false", "a whole number from 1 to 256", "mean |
 * linear | ...". */
void nsai_type_write(const nsai_key *key, nsai_writer *writer);

#endif /* NSAI_CONFIG_VALUE_H */
