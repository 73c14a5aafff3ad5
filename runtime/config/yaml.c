/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * libyaml's event API drives a small stack machine. Parsing stops at the depth limit at once,
 * because libyaml 0.2.5 needs quadratic time for nested brackets.
 */
#include "config/yaml.h"

#include "base/text.h"

#include <string.h>
#include <yaml.h>

typedef struct builder {
  yaml_parser_t parser;
  const nsai_source *source;
  size_t offset;
  nsai_arena *arena;
  nsai_diag *diag;
  nsai_node *open[NSAI_YAML_MAX_DEPTH]; /* collections that have begun and not ended */
  /* for each open mapping, the key whose value comes next */
  nsai_node *pending[NSAI_YAML_MAX_DEPTH];
  int depth; /* number of entries in `open` */
  int events;
  int documents;
  nsai_node *root;
  bool stop; /* a problem after which parsing further is useless */
} builder;

static nsai_mark mark_at(const builder *b, yaml_mark_t mark) {
  int32_t shift = mark.line == 0 ? (int32_t)b->offset : 0;
  return (nsai_mark){ b->source, (int32_t)mark.line + 1, (int32_t)mark.column + 1 + shift };
}

static void stop_at(builder *b, yaml_mark_t mark, const char *message) {
  nsai_diag_add(b->diag, NSAI_ERROR, mark_at(b, mark), NULL, "%s", message);
  b->stop = true;
}

/* Reports properties of a node beyond plain data (anchor, tag, alias). */
static bool is_refused(builder *b, yaml_mark_t mark, const yaml_char_t *anchor,
                       const yaml_char_t *tag) {
  nsai_excerpt_text excerpt;
  const char *name = anchor ? (const char *)anchor : (const char *)tag;
  if (!name) return false;
  nsai_excerpt(name, strlen(name), &excerpt);
  if (anchor)
    nsai_diag_add(b->diag, NSAI_ERROR, mark_at(b, mark), NULL,
                  "anchors are not allowed: write the value out and remove '&%s'", excerpt.text);
  else
    nsai_diag_add(b->diag, NSAI_ERROR, mark_at(b, mark), NULL,
                  "tags are not allowed: each key has its type; remove '%s'", excerpt.text);
  return true;
}

static const nsai_node *find_key(const nsai_node *mapping, const nsai_node *key) {
  for (const nsai_node *value = mapping->first; value; value = value->next)
    if (value->key->length == key->length && memcmp(value->key->text, key->text, key->length) == 0)
      return value->key;
  return NULL;
}

static void append(nsai_node *parent, nsai_node *node) {
  if (parent->last)
    parent->last->next = node;
  else
    parent->first = node;
  parent->last = node;
}

/* Assigns a value to the pending key of the innermost mapping, unless that key was refused. */
static void append_value(builder *b, nsai_node *mapping, nsai_node *node) {
  nsai_node *key = b->pending[b->depth - 1];
  b->pending[b->depth - 1] = NULL;
  const nsai_node *earlier = find_key(mapping, key);
  if (key->plain && strcmp(key->text, "<<") == 0) {
    nsai_diag_add(b->diag, NSAI_ERROR, key->mark, NULL,
                  "merge keys are not allowed: write the keys out and remove '<<'");
  } else if (earlier) {
    nsai_excerpt_text excerpt;
    nsai_diag_add(b->diag, NSAI_ERROR, key->mark, NULL,
                  "'%s' is given twice, on line %d and on line %d: remove one",
                  nsai_excerpt(key->text, key->length, &excerpt), earlier->mark.line,
                  key->mark.line);
  } else {
    node->key = key;
    append(mapping, node);
  }
}

/* Attaches a scalar, or a collection that begins, to its parent. */
static void place(builder *b, nsai_node *node, yaml_mark_t mark) {
  nsai_node *parent = b->depth ? b->open[b->depth - 1] : NULL;
  if (!parent) {
    b->root = node;
  } else if (parent->kind == NSAI_NODE_SEQUENCE) {
    append(parent, node);
  } else if (b->pending[b->depth - 1]) {
    append_value(b, parent, node);
  } else if (node->kind == NSAI_NODE_SCALAR) {
    b->pending[b->depth - 1] = node;
  } else {
    stop_at(b, mark, "a key must be a word: a list, mapping or alias cannot be one");
  }
}

static nsai_node *make_node(builder *b, nsai_node_kind kind, yaml_mark_t mark) {
  nsai_node *node = nsai_arena_alloc(b->arena, sizeof *node);
  if (!node) {
    b->stop = true;
    return NULL;
  }
  node->kind = kind;
  node->mark = mark_at(b, mark);
  return node;
}

static void take_scalar(builder *b, const yaml_event_t *event) {
  const char *value = (const char *)event->data.scalar.value;
  nsai_node *node = make_node(b, NSAI_NODE_SCALAR, event->start_mark);
  if (!node) return;
  /* A refused scalar that is a key stays a word; otherwise keys and values of its mapping would
   * be confused. */
  bool is_key =
      b->depth && b->open[b->depth - 1]->kind == NSAI_NODE_MAPPING && !b->pending[b->depth - 1];
  bool refused =
      is_refused(b, event->start_mark, event->data.scalar.anchor, event->data.scalar.tag);
  if (refused && !is_key) node->kind = NSAI_NODE_REFUSED;
  node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
  node->length = strlen(value);
  if (node->length != event->data.scalar.length)
    nsai_diag_add(b->diag, NSAI_ERROR, node->mark, NULL, "NUL characters are not allowed");
  node->text = nsai_arena_copy(b->arena, value, node->length);
  if (node->text)
    place(b, node, event->start_mark);
  else
    b->stop = true;
}

static void begin_collection(builder *b, nsai_node_kind kind, const yaml_event_t *event,
                             const yaml_char_t *anchor, const yaml_char_t *tag) {
  if (b->depth == NSAI_YAML_MAX_DEPTH) {
    stop_at(b, event->start_mark, "nested deeper than 16 levels: no configuration needs that");
    return;
  }
  is_refused(b, event->start_mark, anchor, tag);
  nsai_node *node = make_node(b, kind, event->start_mark);
  if (!node) return;
  place(b, node, event->start_mark);
  b->pending[b->depth] = NULL;
  b->open[b->depth++] = node;
}

static void take_alias(builder *b, const yaml_event_t *event) {
  const char *name = (const char *)event->data.alias.anchor;
  nsai_excerpt_text excerpt;
  nsai_diag_add(b->diag, NSAI_ERROR, mark_at(b, event->start_mark), NULL,
                "aliases are not allowed: write the value out instead of '*%s'",
                nsai_excerpt(name, strlen(name), &excerpt));
  nsai_node *node = make_node(b, NSAI_NODE_REFUSED, event->start_mark);
  if (node) place(b, node, event->start_mark);
}

static void begin_document(builder *b, const yaml_event_t *event) {
  if (++b->documents > 1)
    stop_at(b, event->start_mark, "a second document begins here: one file holds one document");
  else if (event->data.document_start.tag_directives.start !=
           event->data.document_start.tag_directives.end)
    stop_at(b, event->start_mark, "tags are not allowed: remove the %TAG line");
}

/* Returns whether more events follow. */
static bool take_event(builder *b, const yaml_event_t *event) {
  if (++b->events > NSAI_YAML_MAX_EVENTS) {
    stop_at(b, event->start_mark,
            "more than 10000 keys, values and brackets: no configuration needs that");
    return false;
  }
  switch (event->type) {
  case YAML_DOCUMENT_START_EVENT: begin_document(b, event); break;
  case YAML_SCALAR_EVENT: take_scalar(b, event); break;
  case YAML_ALIAS_EVENT: take_alias(b, event); break;
  case YAML_SEQUENCE_START_EVENT:
    begin_collection(b, NSAI_NODE_SEQUENCE, event, event->data.sequence_start.anchor,
                     event->data.sequence_start.tag);
    break;
  case YAML_MAPPING_START_EVENT:
    begin_collection(b, NSAI_NODE_MAPPING, event, event->data.mapping_start.anchor,
                     event->data.mapping_start.tag);
    break;
  case YAML_SEQUENCE_END_EVENT:
  case YAML_MAPPING_END_EVENT: b->depth--; break;
  case YAML_STREAM_END_EVENT: return false;
  default: break; /* stream start and document end carry no data */
  }
  return !b->stop;
}

/* libyaml reports the end of a text on a line of its own. The user sees the end of the last line
 * with content, so that is reported. */
static nsai_mark visible_mark(const builder *b, yaml_mark_t mark) {
  size_t length = b->source->length;
  while (length && strchr("\r\n", b->source->text[length - 1])) length--;
  nsai_mark end = nsai_source_mark(b->source, length);
  nsai_mark at = mark_at(b, mark);
  return at.line > end.line ? end : at;
}

/* Whether libyaml stopped at a tab: of that it only says that no token can begin there. */
static bool is_tab(const builder *b, yaml_mark_t mark) {
  const char *at = b->source->text + b->offset, *end = b->source->text + b->source->length;
  for (size_t line = 0; line < mark.line && at < end; line++) {
    const char *next = memchr(at, '\n', (size_t)(end - at));
    at = next ? next + 1 : end;
  }
  at += strspn(at, " \t") < mark.column ? strspn(at, " \t") : mark.column;
  return at < end && *at == '\t';
}

static void report_syntax(builder *b) {
  const yaml_parser_t *p = &b->parser;
  const char *problem = p->problem ? p->problem : "cannot be read";
  if (p->error == YAML_MEMORY_ERROR) {
    b->arena->failed = sizeof(yaml_parser_t);
  } else if (p->error == YAML_READER_ERROR) {
    nsai_diag_add(b->diag, NSAI_ERROR, nsai_source_mark(b->source, b->offset + p->problem_offset),
                  NULL, "not YAML: %s; the text must be UTF-8 without control characters", problem);
  } else if (p->error == YAML_SCANNER_ERROR && is_tab(b, p->problem_mark)) {
    nsai_diag_add(b->diag, NSAI_ERROR, visible_mark(b, p->problem_mark), NULL,
                  "not YAML: a tab cannot indent: use spaces");
  } else if (p->context && p->context_mark.line != p->problem_mark.line) {
    nsai_diag_add(b->diag, NSAI_ERROR, visible_mark(b, p->problem_mark), NULL,
                  "not YAML: %s (%s that begins on line %zu)", problem, p->context,
                  p->context_mark.line + 1);
  } else {
    nsai_diag_add(b->diag, NSAI_ERROR, visible_mark(b, p->problem_mark), NULL, "not YAML: %s%s%s%s",
                  problem, p->context ? " (" : "", p->context ? p->context : "",
                  p->context ? ")" : "");
  }
  b->stop = true;
}

nsai_node *nsai_yaml_parse(const nsai_source *source, size_t offset, nsai_arena *arena,
                           nsai_diag *diag) {
  builder b = { .source = source, .offset = offset, .arena = arena, .diag = diag };
  if (source->length - offset > NSAI_YAML_MAX_BYTES) {
    nsai_diag_add(diag, NSAI_ERROR, (nsai_mark){ source, 0, 0 }, NULL,
                  "more than 256 KiB: no configuration needs that");
    return NULL;
  }
  if (!yaml_parser_initialize(&b.parser)) {
    arena->failed = sizeof b.parser;
    return NULL;
  }
  yaml_parser_set_encoding(&b.parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(&b.parser, (const unsigned char *)source->text + offset,
                               source->length - offset);
  for (bool more = true; more;) {
    yaml_event_t event;
    if (!yaml_parser_parse(&b.parser, &event)) {
      report_syntax(&b);
      break;
    }
    more = take_event(&b, &event);
    yaml_event_delete(&event);
  }
  yaml_parser_delete(&b.parser);
  return b.stop ? NULL : b.root;
}
