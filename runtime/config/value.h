/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Values of keys: read from a node by the key's type, put into the configuration, written again.
 * Locale-free. The key's type decides, not the look of the value: quotes never change it, but a
 * quoted null is text.
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
  nsai_mark mark; /* where a refused value is wrong: it, or an item of its list */
} nsai_value;

/* Reads the value of key `id`; strings go to `arena`. False: `why` has received what is wrong and
 * what would be right (nothing when the node had been refused before, or without memory). */
bool nsai_value_read(nsai_key_id id, const nsai_node *node, nsai_arena *arena, nsai_value *value,
                     nsai_writer *why);

/* Puts a value into its place. Not for NSAI_TYPE_ALIAS. */
void nsai_value_store(nsai_config *config, nsai_key_id id, const nsai_value *value);

/* Writes the value in its place as YAML that reads as the same value. Not for NSAI_TYPE_ALIAS. */
void nsai_value_write(const nsai_config *config, nsai_key_id id, nsai_writer *writer);

/* Writes what a key takes: "true | false", "a whole number from 1 to 256", "mean | linear | ...".
 */
void nsai_type_write(const nsai_key *key, nsai_writer *writer);

#endif /* NSAI_CONFIG_VALUE_H */
