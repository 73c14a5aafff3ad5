/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Parses YAML text into a tree of nodes: plain data without types. Stricter than YAML: one
 * document; limits on size, depth and events; no anchors, aliases, tags or merge keys; keys are
 * words.
 */
#ifndef NSAI_CONFIG_YAML_H
#define NSAI_CONFIG_YAML_H

#include "config/diag.h"

/* A configuration has some hundred lines; more than these limits is a mistake or an attack. */
#define NSAI_YAML_MAX_BYTES (256 * 1024)
#define NSAI_YAML_MAX_DEPTH 16
#define NSAI_YAML_MAX_EVENTS 10000

typedef enum nsai_node_kind {
  NSAI_NODE_SCALAR,
  NSAI_NODE_SEQUENCE,
  NSAI_NODE_MAPPING,
  NSAI_NODE_REFUSED /* it has been reported already */
} nsai_node_kind;

typedef struct nsai_node {
  nsai_node_kind kind;
  bool plain;                     /* scalar: without quotes */
  nsai_mark mark;                 /* position of its first character */
  const char *text;               /* scalar: the value, NUL-terminated, containing no other NUL */
  size_t length;                  /* scalar: bytes of text */
  struct nsai_node *key;          /* the key of this value; NULL: not in a mapping */
  struct nsai_node *next;         /* the next value or item of the same parent */
  struct nsai_node *first, *last; /* values of a mapping, items of a sequence */
} nsai_node;

/* Parses source->text from byte `offset` on. That byte must be in the first line, and only ASCII
 * characters may come before it.
 *
 * Returns the root, allocated in `arena`, or NULL: an empty text, a syntax error (reported in
 * `diag`), or no memory (arena->failed). Duplicate keys and refused features are reported and
 * left out. */
nsai_node *nsai_yaml_parse(const nsai_source *source, size_t offset, nsai_arena *arena,
                           nsai_diag *diag);

#endif /* NSAI_CONFIG_YAML_H */
