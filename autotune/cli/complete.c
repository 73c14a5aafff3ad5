/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The candidates come from the argp tables. What an option's value may be is decided by the name
 * that its table gives the value: "OP", "ARCH".
 */
#include "cli/complete.h"

#include "cli/cli.h"
#include "config/schema.h"
#include "driver/arch.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static char **words; /* of the subcommand; NULL: nothing is completed */
static int word_count;

void nsai_complete_begin(char **new_words, int count) {
  words = new_words;
  word_count = count;
}

bool nsai_complete_active(void) { return words != NULL; }

void nsai_complete_offer(const char *typed, const char *text, const char *help) {
  if (!strncmp(text, typed, strlen(typed))) printf("%s\t%s\n", text, help ? help : "");
}

/* ---- values of options ---- */

/* A value that is being typed. `before` is what precedes it in its word, as "--op=". */
typedef struct place {
  int before_length;
  const char *before, *typed;
} place;

static void offer_value(const place *at, const char *text, const char *help) {
  if (!strncmp(text, at->typed, strlen(at->typed)))
    printf("%.*s%s\t%s\n", at->before_length, at->before, text, help ? help : "");
}

static void offer_ops(const place *at) {
  for (int i = 0; nsai_cli_ops[i]; i++) offer_value(at, nsai_cli_ops[i], NULL);
}

/* Appending and the loss of an index have no candidates to measure. */
static void offer_tuned_ops(const place *at) {
  for (int i = 0; nsai_cli_ops[i]; i++)
    if (NSA_OP_FORWARD + i != NSA_OP_APPEND && NSA_OP_FORWARD + i != NSA_OP_INDEX_KL)
      offer_value(at, nsai_cli_ops[i], NULL);
  offer_value(at, "all", "Every operation");
}

static void offer_selections(const place *at) {
  for (int i = 0; nsai_cli_selections[i]; i++) offer_value(at, nsai_cli_selections[i], NULL);
}

static void offer_levels(const place *at) {
  for (int32_t level = 0; nsai_level_name(level); level++)
    offer_value(at, nsai_level_name(level), NULL);
}

static void offer_archs(const place *at) {
  for (int32_t i = 0; nsai_arch_at(i); i++) offer_value(at, nsai_arch_at(i)->name, NULL);
}

/* Names with commas between; only the last one is being typed. */
static void offer_arch_list(const place *at) {
  const char *comma = strrchr(at->typed, ',');
  if (!comma) {
    offer_value(at, "all", "Every architecture");
    offer_archs(at);
    return;
  }
  int length = at->before_length + (int)(comma + 1 - at->typed);
  offer_archs(&(place){ length, at->typed - at->before_length, comma + 1 });
}

static void offer_devices(const place *at) {
  offer_value(at, "auto", "The first GPU, or the CPU");
  offer_value(at, "cpu", "The CPU device");
}

/* Names with commas between cannot be known here. */
static void offer_gpus(const place *at) {
  offer_value(at, "all", "Every GPU of this host");
  offer_value(at, "auto", "The first GPU");
}

static void offer_key_values(const place *at, const nsai_key *key) {
  if (key->type == NSAI_TYPE_BOOL) {
    offer_value(at, "false", NULL);
    offer_value(at, "true", NULL);
  }
  if (key->type == NSAI_TYPE_DEVICE) offer_devices(at);
  for (const nsai_word *word = key->words; word && word->text; word++)
    offer_value(at, word->text, NULL);
}

/* "runtime.device=cpu": a key first, then one of its values. */
static void offer_settings(const place *at) {
  const char *equals = strchr(at->typed, '=');
  if (equals) {
    nsai_key_id id = nsai_key_find(at->typed, (size_t)(equals - at->typed));
    int length = at->before_length + (int)(equals + 1 - at->typed);
    if (id != NSAI_KEY_COUNT)
      offer_key_values(&(place){ length, at->typed - at->before_length, equals + 1 },
                       &nsai_keys[id]);
    return;
  }
  for (int id = 0; id < NSAI_KEY_COUNT; id++) {
    char text[128];
    snprintf(text, sizeof text, "%s=", nsai_keys[id].path);
    offer_value(at, text, nsai_keys[id].help);
  }
}

static void offer_dtypes(const place *at) {
  offer_key_values(at, &nsai_keys[NSAI_KEY_MODEL_DTYPE]);
}

static void offer_sharing(const place *at) {
  offer_key_values(at, &nsai_keys[NSAI_KEY_MODEL_KV_SHARING]);
}

static void ask_for_files(const place *at) {
  (void)at;
  puts(":files");
}

static void ask_for_folders(const place *at) {
  (void)at;
  puts(":folders");
}

static const struct {
  const char *name;
  void (*offer)(const place *at); /* NULL: there is nothing to offer */
} values[] = {
  { "ARCH", offer_archs },
  { "CONFIG.JSON", ask_for_files },
  { "DEVICE", offer_devices },
  { "DEVICES", offer_gpus },
  { "DIGEST", NULL },
  { "DIR", ask_for_folders },
  { "DURATION", NULL },
  { "HASH", NULL },
  { "KEY=VALUE", offer_settings },
  { "KEYFILE", ask_for_files },
  { "KIND", offer_selections },
  { "LEVEL", offer_levels },
  { "LIST", offer_arch_list },
  { "N", NULL },
  { "OP", offer_ops },
  { "OP|all", offer_tuned_ops },
  { "SIZE", NULL },
  { "TYPE", offer_dtypes },
  { "WORD", offer_sharing },
};

/* Prints what `option` may be given; `typed` stands behind the first `before_length` bytes. */
static void offer_values(const struct argp_option *option, int before_length, const char *typed) {
  place at = { before_length, typed - before_length, typed };
  for (size_t i = 0; i < sizeof values / sizeof *values; i++)
    if (!strcmp(values[i].name, option->arg) && values[i].offer) values[i].offer(&at);
}

/* ---- options ---- */

/* The option with this long name, or, where `name` is NULL, with this letter; NULL: none. */
static const struct argp_option *find_option(const struct argp_option *const *tables,
                                             const char *name, size_t length, int letter) {
  for (; *tables; tables++) {
    for (const struct argp_option *o = *tables; o->name; o++) {
      if (name ? !strncmp(o->name, name, length) && !o->name[length] : o->key == letter) return o;
    }
  }
  return NULL;
}

/* The option in `word` that takes a value, NULL: none. `*value` is the value if `word` contains
 * it, else NULL: it is the next word. */
static const struct argp_option *find_valued(const struct argp_option *const *tables,
                                             const char *word, const char **value) {
  const struct argp_option *option = NULL;
  *value = NULL;
  if (word[0] != '-' || !word[1]) return NULL;
  if (word[1] == '-') {
    size_t length = strcspn(word + 2, "=");
    option = find_option(tables, word + 2, length, 0);
    if (word[2 + length]) *value = word + 2 + length + 1;
    return option && option->arg ? option : NULL;
  }
  /* "-vo": letters, of which the first that takes a value takes what follows */
  for (const char *letter = word + 1; *letter; letter++) {
    option = find_option(tables, NULL, 0, *letter);
    if (!option || !option->arg) continue;
    if (letter[1]) *value = letter + 1;
    return option;
  }
  return NULL;
}

static void offer_options(const struct argp_option *const *tables, const char *typed) {
  char text[64];
  for (; *tables; tables++) {
    for (const struct argp_option *o = *tables; o->name; o++) {
      if (o->flags & OPTION_HIDDEN) continue;
      snprintf(text, sizeof text, "--%s", o->name);
      nsai_complete_offer(typed, text, o->doc);
    }
  }
  /* argp's own */
  nsai_complete_offer(typed, "--help", "Give this help list");
  nsai_complete_offer(typed, "--usage", "Give a short usage message");
}

/* ---- other arguments ---- */

/* `usage` has the arguments' names in capitals, and words to choose from in small letters:
 * "[keys|env|FILE]". Those words can only be the first argument. */
static void offer_arguments(const char *usage, const char *typed, bool first) {
  char text[32];
  while (usage && *usage) {
    size_t length = 0;
    while (isalpha((unsigned char)usage[length])) length++;
    snprintf(text, sizeof text, "%.*s", (int)length, usage);
    if (first && islower((unsigned char)*text)) nsai_complete_offer(typed, text, NULL);
    usage += length ? length : 1;
  }
}

void nsai_complete_print(const struct argp_option *const *tables, const char *usage) {
  const char *last = words[word_count - 1], *value = NULL;
  bool only_arguments = false; /* behind "--" */
  int arguments = 0;
  for (int i = 0; i < word_count - 1; i++) {
    const struct argp_option *option =
        only_arguments ? NULL : find_valued(tables, words[i], &value);
    if (option && !value && i + 1 == word_count - 1) {
      offer_values(option, 0, last);
      return;
    }
    if (option && !value)
      i++;
    else if (!strcmp(words[i], "--"))
      only_arguments = true;
    else if (only_arguments || words[i][0] != '-')
      arguments++;
  }
  const struct argp_option *option = only_arguments ? NULL : find_valued(tables, last, &value);
  if (option && value) {
    offer_values(option, (int)(value - last), value);
  } else if (*last == '-' && !only_arguments) {
    offer_options(tables, last);
  } else {
    offer_arguments(usage, last, arguments == 0);
    if (usage && strstr(usage, "FILE")) puts(":files");
  }
}
