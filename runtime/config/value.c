/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "config/value.h"

#include "base/duration.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define MAX_TEXT_BYTES 4096 /* PATH_MAX of Linux; a longer text is a mistake for any key */
/* few enough that a number and its text round-trip exactly in a double */
#define FRACTION_DIGITS 6
#define FRACTION_ONE 1e6 /* 10 ^ FRACTION_DIGITS */
#define MS_PER_SECOND 1000.0

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_null(const nsai_node *node) {
  if (!node->plain) return false;
  return !*node->text || strcmp(node->text, "~") == 0 || strcmp(node->text, "null") == 0;
}

void nsai_type_write(const nsai_key *key, nsai_writer *writer) {
  static const char *const phrases[] = {
    [NSAI_TYPE_BOOL] = "true | false",
    [NSAI_TYPE_LONG] = "a whole number like 4096, 64k or 64Ki",
    [NSAI_TYPE_SIZE] = "a size in bytes like 512Mi or 1Gi",
    [NSAI_TYPE_NUMBER] = "a number like 4280 or 781.5",
    [NSAI_TYPE_SHARE] = "a share like 0.02",
    [NSAI_TYPE_DURATION] = "a duration like 90s, 10m or 1h30m",
    [NSAI_TYPE_WORD] = "",
    [NSAI_TYPE_TEXT] = "text, or null",
    [NSAI_TYPE_PATH] = "an absolute path, or null",
    [NSAI_TYPE_DEVICE] =
        "auto, cpu, an ordinal (cuda:1), a PCI bus id (0000:3b:00.0) or a UUID (GPU-...)",
    [NSAI_TYPE_VARIANT] = "a variant's name, or null",
    [NSAI_TYPE_GLOBS] = "a list of globs like [dense.*_gemm]",
    [NSAI_TYPE_KEYS] = "a list of public keys (64 hexadecimal digits) and absolute paths",
    [NSAI_TYPE_COUNTS] = "a list of ascending numbers like [4Ki, 16Ki], or null",
  };
  if (key->type == NSAI_TYPE_INT || key->type == NSAI_TYPE_ALIAS) {
    nsai_write(writer, "a whole number from %" PRId64 " to %" PRId64, key->min, key->max);
    return;
  }
  nsai_write(writer, "%s", phrases[key->type]);
  for (const nsai_word *word = key->words; word && word->text; word++) {
    bool first = word == key->words && key->type == NSAI_TYPE_WORD;
    nsai_write(writer, "%s%s", first ? "" : " | ", word->text);
  }
}

/* Writes "expected X, found Y". Returns false, as the readers do. */
static bool refuse(const nsai_key *key, const nsai_node *node, nsai_writer *why) {
  nsai_excerpt_text excerpt;
  nsai_write(why, "expected ");
  nsai_type_write(key, why);
  if (node->kind == NSAI_NODE_SEQUENCE)
    nsai_write(why, "; found a list");
  else if (node->kind == NSAI_NODE_MAPPING)
    nsai_write(why, "; found a mapping");
  else if (!node->length)
    nsai_write(why, "; found nothing");
  else
    nsai_write(why, "; found '%s'", nsai_excerpt(node->text, node->length, &excerpt));
  return false;
}

/* The factor of "", k, M, G, T, Ki, Mi, Gi, Ti; 0: unknown unit. */
static int64_t unit_factor(const char *unit) {
  static const char letters[] = "kMGT";
  if (!*unit) return 1;
  bool binary = unit[1] == 'i';
  const char *letter = strchr(letters, *unit == 'K' && binary ? 'k' : *unit);
  if (!letter || (*unit == 'k' && binary) || strlen(unit) != (binary ? 2 : 1)) return 0;
  int64_t factor = 1;
  for (const char *l = letters; l <= letter; l++) factor *= binary ? 1024 : 1000;
  return factor;
}

/* Explains why a text is not a whole number, for mistakes that other notations suggest. */
static bool refuse_integer(const nsai_key *key, const nsai_node *node, nsai_writer *why) {
  const char *text = node->text;
  refuse(key, node, why);
  if (text[0] == '0' && (text[1] == 'x' || text[1] == 'o' || is_digit(text[1])))
    nsai_write(why, ": numbers are decimal, without a leading 0");
  else if (is_digit(text[0]) && strpbrk(text, "_,"))
    nsai_write(why, ": write the digits without '_' or ','");
  else if (is_digit(text[0]) && strpbrk(text, ".eE"))
    nsai_write(why, ": write it without '.' and exponent, as 1500 for 1.5k");
  else if (is_digit(text[0]) && strpbrk(text, "KBb"))
    nsai_write(why, ": units are k, M, G, T (1000) and Ki, Mi, Gi, Ti (1024)");
  return false;
}

static bool read_integer(const nsai_key *key, const nsai_node *node, nsai_value *value,
                         nsai_writer *why) {
  const char *text = node->text;
  bool negative = *text == '-';
  if (negative) text++;
  if (!is_digit(*text) || (*text == '0' && is_digit(text[1])))
    return refuse_integer(key, node, why);
  int64_t integer = 0;
  bool overflow = false;
  for (; is_digit(*text); text++) {
    overflow |= __builtin_mul_overflow(integer, (int64_t)10, &integer);
    overflow |= __builtin_add_overflow(integer, (int64_t)(*text - '0'), &integer);
  }
  int64_t factor = unit_factor(text);
  if (!factor) return refuse_integer(key, node, why);
  overflow |= __builtin_mul_overflow(integer, factor, &integer);
  /* What overflowed may have become the least of all, which has no opposite. */
  if (negative) overflow |= __builtin_sub_overflow((int64_t)0, integer, &integer);
  if (overflow || integer < key->min || integer > key->max) {
    nsai_excerpt_text excerpt;
    nsai_write(why, "%s is out of range: %" PRId64 " to %" PRId64,
               nsai_excerpt(node->text, node->length, &excerpt), key->min, key->max);
    return false;
  }
  if (key->step && integer % key->step) {
    int64_t below = integer / key->step * key->step;
    nsai_write(why, "%" PRId64 " is not a multiple of %" PRId64 ": use %" PRId64 " or %" PRId64,
               integer, key->step, below, below + key->step);
    return false;
  }
  value->integer = integer;
  return true;
}

static void write_number(double number, nsai_writer *writer) {
  int64_t scaled = llround(number * FRACTION_ONE);
  int64_t one = (int64_t)FRACTION_ONE, fraction = scaled % one;
  nsai_write(writer, "%" PRId64, scaled / one);
  if (!fraction) return;
  int digits = FRACTION_DIGITS;
  for (; fraction % 10 == 0; fraction /= 10) digits--;
  nsai_write(writer, ".%0*" PRId64, digits, fraction);
}

static bool read_number(const nsai_key *key, const nsai_node *node, nsai_value *value,
                        nsai_writer *why) {
  const char *text = node->text;
  int64_t scaled = 0; /* the number in units of 10 ^ -FRACTION_DIGITS */
  int digits = 0, fraction = 0;
  for (; is_digit(*text) && digits <= 9; text++, digits++) scaled = scaled * 10 + (*text - '0');
  if (digits && *text == '.' && is_digit(text[1])) {
    text++;
    for (; is_digit(*text) && fraction < FRACTION_DIGITS; text++, fraction++)
      scaled = scaled * 10 + (*text - '0');
  }
  if (!digits || text != node->text + node->length) {
    refuse(key, node, why);
    if (digits && key->type == NSAI_TYPE_SHARE && *text == '%')
      nsai_write(why, ": a share of 1 is all, 0.02 is 2%%");
    else if (digits)
      nsai_write(why, ": write plain digits, at most %d after the point", FRACTION_DIGITS);
    return false;
  }
  for (; fraction < FRACTION_DIGITS; fraction++) scaled *= 10;
  value->number = (double)scaled / FRACTION_ONE;
  double max = key->type == NSAI_TYPE_SHARE ? (double)key->max / 100 : (double)key->max;
  if (value->number <= max) return true;
  nsai_write(why, "%s is out of range: 0 to ", node->text);
  write_number(max, why);
  return false;
}

static bool read_duration(const nsai_key *key, const nsai_node *node, nsai_value *value,
                          nsai_writer *why) {
  const char *remedy = nsai_duration_read(node->text, &value->integer);
  if (remedy) {
    refuse(key, node, why);
    if (node->length) nsai_write(why, ": %s", remedy);
    return false;
  }
  if (value->integer >= key->min && value->integer <= key->max) return true;
  nsai_excerpt_text excerpt;
  nsai_write(why, "%s is out of range: ", nsai_excerpt(node->text, node->length, &excerpt));
  nsai_duration_write(key->min, why);
  nsai_write(why, " to ");
  nsai_duration_write(key->max, why);
  return false;
}

static bool read_word(const nsai_key *key, const nsai_node *node, nsai_value *value,
                      nsai_writer *why) {
  for (const nsai_word *word = key->words; word->text; word++) {
    if (strcmp(word->text, node->text) != 0) continue;
    value->integer = word->value;
    return true;
  }
  const char *suggestion = nsai_word_suggest(key->words, node->text);
  refuse(key, node, why);
  const char *missing = suggestion ? NULL : nsai_word_missing(node->text);
  if (suggestion) nsai_write(why, ": did you mean '%s'?", suggestion);
  if (missing) nsai_write(why, ": %s", missing);
  return false;
}

static bool read_bool(const nsai_key *key, const nsai_node *node, nsai_value *value,
                      nsai_writer *why) {
  static const struct {
    const char *text, *word;
  } habits[] = { { "yes", "true" }, { "on", "true" },   { "1", "true" },  { "True", "true" },
                 { "no", "false" }, { "off", "false" }, { "0", "false" }, { "False", "false" } };
  value->integer = strcmp(node->text, "true") == 0;
  if (value->integer || strcmp(node->text, "false") == 0) return true;
  refuse(key, node, why);
  for (size_t i = 0; i < sizeof habits / sizeof habits[0]; i++)
    if (strcmp(habits[i].text, node->text) == 0)
      nsai_write(why, ": did you mean '%s'?", habits[i].word);
  return false;
}

/* [[hhhh]hhhh:]hh:hh[.h], as the driver prints it. */
static bool is_bus_id(const char *text) {
  size_t run[3], runs = 0;
  do {
    size_t length = 0;
    while (is_hex(text[length])) length++;
    run[runs++] = length;
    text += length;
  } while (*text == ':' && runs < 3 && text++);
  if (*text == '.' && is_hex(text[1])) text += 2;
  if (*text || runs < 2 || run[runs - 1] != 2 || run[runs - 2] != 2) return false;
  return runs == 2 || run[0] == 4 || run[0] == 8;
}

static bool is_device(const char *text) {
  if (strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0) return true;
  const char *ordinal = strncmp(text, "cuda:", 5) ? text : text + 5;
  size_t digits = strspn(ordinal, "0123456789");
  if (digits && digits <= 4 && !ordinal[digits]) return true; /* no machine has 10000 devices */
  if (strncmp(text, "GPU-", 4) == 0) {
    size_t length = strspn(text + 4, "0123456789abcdefABCDEF-");
    return length >= 8 && !text[4 + length];
  }
  return is_bus_id(text);
}

static bool is_name(const char *text) {
  return *text && !text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_")];
}

static bool read_text(const nsai_key *key, const nsai_node *node, nsai_arena *arena,
                      nsai_value *value, nsai_writer *why) {
  bool nullable = key->type != NSAI_TYPE_DEVICE;
  if (nullable && is_null(node)) return true;
  if (node->length > MAX_TEXT_BYTES) {
    nsai_write(why, "longer than %d bytes", MAX_TEXT_BYTES);
    return false;
  }
  if (key->type == NSAI_TYPE_PATH && node->text[0] != '/') {
    refuse(key, node, why);
    if (node->text[0] == '~')
      nsai_write(why, ": '~' is not expanded, write the home folder out");
    else if (node->length)
      nsai_write(why, ", which would depend on the working directory");
    return false;
  }
  if (key->type == NSAI_TYPE_DEVICE && !is_device(node->text)) {
    refuse(key, node, why);
    if (strncmp(node->text, "MIG-", 4) == 0)
      nsai_write(why, ": choose a MIG instance by CUDA_VISIBLE_DEVICES, and write auto here");
    else
      nsai_device_suggest(node->text, why);
    return false;
  }
  if (key->type == NSAI_TYPE_VARIANT && !is_name(node->text)) return refuse(key, node, why);
  value->text = nsai_arena_copy(arena, node->text, node->length);
  return value->text != NULL;
}

/* A glob must be able to match a variant of at least one stage. */
static bool is_variant_glob(const char *text) {
  size_t dot = strcspn(text, ".");
  char stage[64];
  if (!text[dot] || !text[dot + 1] || dot >= sizeof stage) return false;
  if (text[dot + 1 + strspn(text + dot + 1, "abcdefghijklmnopqrstuvwxyz0123456789_*?")])
    return false;
  memcpy(stage, text, dot);
  stage[dot] = '\0';
  for (int i = 0; i < NSAI_STAGE_COUNT; i++)
    if (nsai_glob_match(stage, nsai_stage_name((nsai_stage)i))) return true;
  return false;
}

static bool is_trusted_key(const nsai_node *item) {
  size_t digits = 0;
  if (item->text[0] == '/') return item->length <= MAX_TEXT_BYTES;
  while (is_hex(item->text[digits])) digits++;
  return digits == item->length && digits == 64; /* 32 bytes, of Ed25519 */
}

static bool refuse_item(const nsai_key *key, const nsai_node *item, nsai_writer *why) {
  refuse(key, item, why);
  if (key->type == NSAI_TYPE_KEYS) {
    nsai_write(why, ": `nsa-autotune keygen` prints a key and writes a file of it");
    return false;
  }
  nsai_write(why, ": write stage.variant; stages are");
  for (int i = 0; i < NSAI_STAGE_COUNT; i++)
    nsai_write(why, "%s %s", i ? "," : "", nsai_stage_name((nsai_stage)i));
  return false;
}

static bool read_list(const nsai_key *key, const nsai_node *node, nsai_arena *arena,
                      nsai_value *value, nsai_writer *why) {
  if (node->kind == NSAI_NODE_SCALAR && is_null(node)) return true;
  if (node->kind != NSAI_NODE_SEQUENCE) return refuse(key, node, why);
  size_t count = 0;
  for (const nsai_node *item = node->first; item; item = item->next) count++;
  const char **items = nsai_arena_alloc(arena, count * sizeof *items);
  nsai_mark *marks = nsai_arena_alloc(arena, count * sizeof *marks);
  if (!items || !marks) return false;
  value->list = (nsai_list){ items, marks, count };
  for (const nsai_node *item = node->first; item; item = item->next) {
    value->mark = item->mark;
    if (item->kind == NSAI_NODE_REFUSED) return false;
    if (item->kind != NSAI_NODE_SCALAR ||
        !(key->type == NSAI_TYPE_KEYS ? is_trusted_key(item) : is_variant_glob(item->text)))
      return refuse_item(key, item, why);
    *items = nsai_arena_copy(arena, item->text, item->length);
    if (!*items++) return false;
    *marks++ = item->mark;
  }
  return true;
}

static bool read_counts(const nsai_key *key, const nsai_node *node, nsai_arena *arena,
                        nsai_value *value, nsai_writer *why) {
  if (node->kind == NSAI_NODE_SCALAR && is_null(node)) return true;
  if (node->kind != NSAI_NODE_SEQUENCE) return refuse(key, node, why);
  if (!node->first) {
    nsai_write(why, "an empty list: give at least one number, or write null");
    return false;
  }
  nsai_key item_key = *key; /* an item is read, and refused, like a single number */
  item_key.type = NSAI_TYPE_LONG;
  int64_t *items = nsai_arena_alloc(arena, NSAI_MAX_COUNTS * sizeof *items);
  if (!items) return false;
  size_t count = 0;
  for (const nsai_node *item = node->first; item; item = item->next) {
    value->mark = item->mark;
    if (item->kind == NSAI_NODE_REFUSED) return false;
    if (item->kind != NSAI_NODE_SCALAR) return refuse(&item_key, item, why);
    if (!read_integer(&item_key, item, value, why)) return false;
    if (count == NSAI_MAX_COUNTS) {
      nsai_write(why, "more than %d numbers, and each is timed for itself: choose fewer",
                 NSAI_MAX_COUNTS);
      return false;
    }
    if (count && value->integer <= items[count - 1]) {
      nsai_write(why, "%" PRId64 " after %" PRId64 ": write the numbers ascending, each once",
                 value->integer, items[count - 1]);
      return false;
    }
    items[count++] = value->integer;
  }
  value->counts = (nsai_counts){ items, count };
  return true;
}

bool nsai_value_read(nsai_key_id id, const nsai_node *node, nsai_arena *arena, nsai_value *value,
                     nsai_writer *why) {
  const nsai_key *key = &nsai_keys[id];
  *value = (nsai_value){ .mark = node->mark };
  if (node->kind == NSAI_NODE_REFUSED) return false;
  if (key->type == NSAI_TYPE_GLOBS || key->type == NSAI_TYPE_KEYS)
    return read_list(key, node, arena, value, why);
  if (key->type == NSAI_TYPE_COUNTS) return read_counts(key, node, arena, value, why);
  if (node->kind != NSAI_NODE_SCALAR) return refuse(key, node, why);
  switch (key->type) {
  case NSAI_TYPE_BOOL: return read_bool(key, node, value, why);
  case NSAI_TYPE_WORD: return read_word(key, node, value, why);
  case NSAI_TYPE_NUMBER:
  case NSAI_TYPE_SHARE: return read_number(key, node, value, why);
  case NSAI_TYPE_DURATION: return read_duration(key, node, value, why);
  case NSAI_TYPE_LONG:
    if (key->words && !is_digit(*node->text) && *node->text != '-')
      return read_word(key, node, value, why);
    return read_integer(key, node, value, why);
  case NSAI_TYPE_INT:
  case NSAI_TYPE_SIZE:
  case NSAI_TYPE_ALIAS: return read_integer(key, node, value, why);
  default: return read_text(key, node, arena, value, why);
  }
}

void nsai_value_store(nsai_config *config, nsai_key_id id, const nsai_value *value) {
  void *place = (char *)config + nsai_keys[id].offset;
  switch (nsai_keys[id].type) {
  case NSAI_TYPE_BOOL: *(bool *)place = value->integer != 0; break;
  case NSAI_TYPE_INT:
  case NSAI_TYPE_WORD: {
    /* Copied as bytes: the destination may be an enum, which has the same size but another type. */
    int32_t small = (int32_t)value->integer;
    memcpy(place, &small, sizeof small);
    break;
  }
  case NSAI_TYPE_LONG: *(int64_t *)place = value->integer; break;
  case NSAI_TYPE_SIZE: *(uint64_t *)place = (uint64_t)value->integer; break;
  case NSAI_TYPE_NUMBER:
  case NSAI_TYPE_SHARE: *(double *)place = value->number; break;
  case NSAI_TYPE_DURATION: *(double *)place = (double)value->integer / MS_PER_SECOND; break;
  case NSAI_TYPE_GLOBS:
  case NSAI_TYPE_KEYS: *(nsai_list *)place = value->list; break;
  case NSAI_TYPE_COUNTS: *(nsai_counts *)place = value->counts; break;
  default: *(char **)place = value->text; break;
  }
}

static void write_size(uint64_t size, nsai_writer *writer) {
  static const char *const units[] = { "", "Ki", "Mi", "Gi", "Ti" };
  size_t unit = 0;
  for (; size && size % 1024 == 0 && unit < 4; unit++) size /= 1024;
  nsai_write(writer, "%" PRIu64 "%s", size, units[unit]);
}

static void write_list(const nsai_list *list, nsai_writer *writer) {
  nsai_write(writer, "[");
  for (size_t i = 0; i < list->count; i++) {
    nsai_write(writer, "%s", i ? ", " : "");
    nsai_write_quoted(writer, list->items[i]);
  }
  nsai_write(writer, "]");
}

static void write_counts(const nsai_counts *list, nsai_writer *writer) {
  for (size_t i = 0; i < list->count; i++)
    nsai_write(writer, "%s%" PRId64, i ? ", " : "[", list->items[i]);
  nsai_write(writer, list->count ? "]" : "null");
}

static void write_text(const char *text, nsai_writer *writer) {
  if (text)
    nsai_write_quoted(writer, text);
  else
    nsai_write(writer, "null");
}

void nsai_value_write(const nsai_config *config, nsai_key_id id, nsai_writer *writer) {
  const nsai_key *key = &nsai_keys[id];
  const void *place = (const char *)config + key->offset;
  int32_t small;
  int64_t large;
  switch (key->type) {
  case NSAI_TYPE_BOOL: nsai_write(writer, *(const bool *)place ? "true" : "false"); break;
  case NSAI_TYPE_INT:
    memcpy(&small, place, sizeof small);
    nsai_write(writer, "%" PRId32, small);
    break;
  case NSAI_TYPE_WORD:
    memcpy(&small, place, sizeof small);
    nsai_write(writer, "%s", nsai_word_text(key->words, small));
    break;
  case NSAI_TYPE_LONG:
    large = *(const int64_t *)place;
    if (large < 0)
      nsai_write(writer, "%s", nsai_word_text(key->words, large));
    else
      nsai_write(writer, "%" PRId64, large);
    break;
  case NSAI_TYPE_SIZE: write_size(*(const uint64_t *)place, writer); break;
  case NSAI_TYPE_NUMBER:
  case NSAI_TYPE_SHARE: write_number(*(const double *)place, writer); break;
  case NSAI_TYPE_DURATION:
    nsai_duration_write(llround(*(const double *)place * MS_PER_SECOND), writer);
    break;
  case NSAI_TYPE_GLOBS:
  case NSAI_TYPE_KEYS: write_list(place, writer); break;
  case NSAI_TYPE_COUNTS: write_counts(place, writer); break;
  default: write_text(*(char *const *)place, writer); break;
  }
}
