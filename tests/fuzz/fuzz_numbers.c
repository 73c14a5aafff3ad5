/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any text as a whole number, a duration, a size, seconds, and as the value of one key of the
 * configuration. Whole numbers and their units are compared with arithmetic in 128 bits; what is
 * accepted is written as a text that reads as the same; what is refused says why.
 *
 * Input: a byte for the key, then the text.
 */
#include "base/duration.h"
#include "config/value.h"
#include "fuzz.h"
#include "verify/device.h"

#include <inttypes.h>
#include <math.h>

#define UNTOUCHED INT64_C(-77)

__extension__ typedef __int128 wide;

static const wide limit = (wide)1 << 100; /* beyond any range, and far from overflow */

/* Reads a sign and digits and moves past them; false: there are none. */
static bool take_digits(const char **text, wide *out) {
  bool negative = **text == '-';
  const char *at = *text + negative;
  if (*at < '0' || *at > '9') return false;
  for (*out = 0; *at >= '0' && *at <= '9'; at++)
    if (*out < limit) *out = 10 * *out + (*at - '0');
  if (negative) *out = -*out;
  *text = at;
  return true;
}

static void try_integer(const char *text) {
  static const int64_t limits[][2] = { { INT64_MIN, INT64_MAX }, { 0, INT32_MAX }, { 1, 1 } };
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    const char *rest = text;
    wide expected = 0;
    int64_t got;
    bool good = take_digits(&rest, &expected) && !*rest && expected >= limits[i][0] &&
                expected <= limits[i][1];
    FUZZ_REQUIRE(nsai_parse_integer(text, limits[i][0], limits[i][1], &got) == good);
    FUZZ_REQUIRE(!good || got == expected);
  }
}

static void try_duration(const char *text) {
  int64_t ms = UNTOUCHED, again;
  char written[64];
  const char *advice = nsai_duration_read(text, &ms);
  if (advice) {
    FUZZ_REQUIRE(*advice && ms == UNTOUCHED);
    return;
  }
  FUZZ_REQUIRE(ms >= 0);
  nsai_writer writer = nsai_writer_open(written, sizeof written);
  nsai_duration_write(ms, &writer);
  FUZZ_REQUIRE(writer.used < sizeof written);
  FUZZ_REQUIRE(!nsai_duration_read(written, &again) && again == ms);
}

static void try_seconds(const char *text) {
  double seconds;
  int32_t ordinal;
  if (nsai_verify_seconds_parse(text, &seconds) == 0)
    FUZZ_REQUIRE(isfinite(seconds) && seconds > 0);
  if (nsai_verify_device_parse(text, &ordinal) == 0 && strcmp(text, "auto") && strcmp(text, "cpu"))
    FUZZ_REQUIRE(ordinal >= 0);
}

static bool is_integer(const nsai_key *key) {
  return key->type == NSAI_TYPE_INT || key->type == NSAI_TYPE_LONG || key->type == NSAI_TYPE_SIZE ||
         key->type == NSAI_TYPE_ALIAS;
}

/* Whether a key takes a text as a whole number, and the number. */
static bool expected_integer(const nsai_key *key, const char *text, wide *out) {
  static const struct {
    const char *name;
    int64_t factor;
  } units[] = { { "", 1 },
                { "k", 1000 },
                { "M", 1000000 },
                { "G", 1000000000 },
                { "T", INT64_C(1000000000000) },
                { "Ki", 1 << 10 },
                { "Mi", 1 << 20 },
                { "Gi", 1 << 30 },
                { "Ti", INT64_C(1) << 40 } };
  const char *digits = text + (*text == '-');
  if (digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9') return false;
  if (!take_digits(&text, out)) return false;
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    if (strcmp(units[i].name, text) != 0) continue;
    if (*out > limit / units[i].factor || *out < -limit / units[i].factor) return false;
    *out *= units[i].factor;
    return *out >= key->min && *out <= key->max && (!key->step || *out % key->step == 0);
  }
  return false;
}

static bool read_value(nsai_key_id id, const char *text, nsai_arena *arena, nsai_value *value) {
  const nsai_source source = { "text", text, strlen(text), 0 };
  const nsai_node node = { .kind = NSAI_NODE_SCALAR,
                           .plain = true,
                           .mark = { &source, 1, 1 },
                           .text = text,
                           .length = strlen(text) };
  char why[1024];
  nsai_writer writer = nsai_writer_open(why, sizeof why);
  bool good = nsai_value_read(id, &node, arena, value, &writer);
  FUZZ_REQUIRE(good == !writer.used);
  FUZZ_REQUIRE(writer.used < sizeof why && nsai_utf8_valid(why, writer.used));
  return good;
}

static void check_written(nsai_key_id id, const nsai_value *value, nsai_arena *arena) {
  static nsai_config config[2];
  char text[2][32 * 1024]; /* a path of 4096 characters, each written as \U00000000 at worst */
  nsai_value again;
  for (int i = 0; i < 2; i++) {
    nsai_writer writer = nsai_writer_open(text[i], sizeof text[i]);
    nsai_value_store(&config[i], id, i ? &again : value);
    nsai_value_write(&config[i], id, &writer);
    FUZZ_REQUIRE(writer.used < sizeof text[i]);
    /* Quotes would have to be read as YAML: fuzz_layers does. */
    if (strchr(text[i], '"') || strchr(text[i], '[')) return;
    if (!i) FUZZ_REQUIRE(read_value(id, text[0], arena, &again));
  }
  FUZZ_REQUIRE(strcmp(text[0], text[1]) == 0);
}

static void try_key(nsai_key_id id, const char *text) {
  const nsai_key *key = &nsai_keys[id];
  nsai_arena arena = { 0 };
  nsai_value value;
  wide expected = 0;
  bool good = read_value(id, text, &arena, &value);
  if (is_integer(key) && !(good && nsai_word_text(key->words, value.integer))) {
    FUZZ_REQUIRE(good == expected_integer(key, text, &expected));
    FUZZ_REQUIRE(!good || value.integer == expected);
  }
  if (good && key->type != NSAI_TYPE_ALIAS) check_written(id, &value, &arena);
  nsai_arena_fini(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!size) return 0;
  char *text = fuzz_text(data + 1, size - 1);
  try_integer(text);
  try_duration(text);
  try_seconds(text);
  if (nsai_utf8_valid(text, strlen(text))) try_key((nsai_key_id)(data[0] % NSAI_KEY_COUNT), text);
  free(text);
  return 0;
}
