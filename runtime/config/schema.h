/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The declared keys of the configuration, and suggestions for unknown words.
 */
#ifndef NSAI_CONFIG_SCHEMA_H
#define NSAI_CONFIG_SCHEMA_H

#include "config/config.h"

#define NSAI_SCHEMA_VERSION "1" /* the value of the first key, `nsa` */

typedef enum nsai_type {
  NSAI_TYPE_BOOL,     /* bool */
  NSAI_TYPE_INT,      /* int32_t; min, max, step */
  NSAI_TYPE_LONG,     /* int64_t; min, max, or one of words */
  NSAI_TYPE_SIZE,     /* uint64_t bytes; min, max */
  NSAI_TYPE_NUMBER,   /* double, not negative, at most max */
  NSAI_TYPE_SHARE,    /* double, not negative, at most max hundredths */
  NSAI_TYPE_DURATION, /* double: seconds; min, max in milliseconds */
  NSAI_TYPE_WORD,     /* int32_t: one of words */
  NSAI_TYPE_TEXT,     /* char *; may be null */
  NSAI_TYPE_PATH,     /* char *: absolute; may be null */
  NSAI_TYPE_DEVICE,   /* char *: auto, cpu, ordinal, PCI bus id, UUID */
  NSAI_TYPE_VARIANT,  /* char *: the name of a variant; may be null */
  NSAI_TYPE_GLOBS,    /* nsai_list: globs over "stage.variant" */
  NSAI_TYPE_KEYS,     /* nsai_list: public keys, absolute paths of files of them */
  NSAI_TYPE_COUNTS,   /* nsai_counts: ascending, each min to max; may be null */
  NSAI_TYPE_ALIAS     /* an integer that sets the two keys that follow it */
} nsai_type;

typedef struct nsai_word {
  const char *text; /* NULL ends a list */
  int32_t value;
} nsai_word;

typedef struct nsai_key {
  const char *path; /* "model.select.count" */
  nsai_type type;
  size_t offset; /* byte offset of the value in nsai_config; unused for NSAI_TYPE_ALIAS */
  int64_t min, max;
  int64_t step;           /* values are multiples of it; 0: any value */
  const nsai_word *words; /* NULL: none */
  const char *fallback;   /* the built-in value as text; NULL: the key must be given */
  const char *help;       /* one phrase, without a full stop */
} nsai_key;

/* Indexed by nsai_key_id. */
extern const nsai_key nsai_keys[NSAI_KEY_COUNT];

/* Whether values of this type are lists. */
static inline bool nsai_type_is_list(nsai_type type) {
  return type == NSAI_TYPE_GLOBS || type == NSAI_TYPE_KEYS || type == NSAI_TYPE_COUNTS;
}

/* The key with this path, given by its first `length` bytes, or NSAI_KEY_COUNT. */
nsai_key_id nsai_key_find(const char *path, size_t length);

/* Whether the first `length` bytes of `path` name a mapping that contains keys ("model.select"). */
bool nsai_section_exists(const char *path, size_t length);

/* The part of key `id`'s path after the section `prefix` ("" is the root), up to the next dot.
 * Returns its length; 0 when the key is not in that section. */
size_t nsai_key_step(nsai_key_id id, const char *prefix, const char **step);

/* What the author of an unknown path may have meant. */
typedef struct nsai_suggestion {
  nsai_key_id key; /* the key; NSAI_KEY_COUNT: none, or a section */
  char text[512];  /* text for the user; the longest one lists the keys of `runtime` */
} nsai_suggestion;
void nsai_key_suggest(const char *path, nsai_suggestion *suggestion);

/* The word of `words` that `text` may mean, by similar spelling or because other projects write
 * it so; NULL: none. */
const char *nsai_word_suggest(const nsai_word *words, const char *text);

/* Writes what `text`, which names no device, may mean: ": did you mean 'cpu'?"; nothing without a
 * guess. */
void nsai_device_suggest(const char *text, nsai_writer *out);

/* A sentence on what to do about a key `word` of multi-head latent attention, which other projects'
 * configurations have; NULL: it is none. */
const char *nsai_latent_advice(const char *word);

/* A sentence about a value `text` that other projects support and no kernel here does; NULL:
 * none. */
const char *nsai_word_missing(const char *text);

/* The text of `value` in `words`; NULL: there is none. */
const char *nsai_word_text(const nsai_word *words, int64_t value);

#endif /* NSAI_CONFIG_SCHEMA_H */
