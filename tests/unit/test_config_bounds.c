/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Integers at and beyond the bounds of every key, as the schema declares them: in YAML, as overrides
 * and in the environment, as digits and with every unit. What is within the bounds is taken or
 * refused by a rule between keys; what is outside is refused; both name the key. A configuration
 * that is taken goes on to plans on the CPU device, and to what an H200 would run.
 */
#include "support/cmocka_all.h"

#include "base/text.h"
#include "config/env.h"
#include "config/schema.h"

#include <nsa/nsa.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_fixture.h"

__extension__ typedef __int128 wide;

enum { MAX_VALUES = 64, TEXT = 512 };

/* ---- values ---- */

static const struct {
  const char *name;
  int64_t factor;
} units[] = { { "", 1 },
              { "k", 1000 },
              { "M", 1000000 },
              { "G", 1000000000 },
              { "T", INT64_C(1000000000000) },
              { "Ki", INT64_C(1) << 10 },
              { "Mi", INT64_C(1) << 20 },
              { "Gi", INT64_C(1) << 30 },
              { "Ti", INT64_C(1) << 40 } };
enum { UNITS = sizeof units / sizeof *units };

/* A number as it is written, and what it is. */
typedef struct spelling {
  char text[32];
  wide value;
} spelling;

typedef struct spellings {
  spelling item[MAX_VALUES];
  int count;
} spellings;

static void add(spellings *list, int64_t digits, int unit) {
  assert_in_range(list->count, 0, MAX_VALUES - 1);
  spelling *s = &list->item[list->count++];
  snprintf(s->text, sizeof s->text, "%lld%s", (long long)digits, units[unit].name);
  s->value = (wide)digits * units[unit].factor;
}

/* Around both bounds, and the extremes; with a unit the multiples around the upper bound, and what
 * that unit makes exceed 64 bits. */
static spellings spellings_of(const nsai_key *key) {
  const int64_t plain[] = { key->min, key->min + 1, key->max,  key->max - 1,
                            0,        INT64_MIN,    INT64_MAX, -1 };
  spellings list = { .count = 0 };
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) add(&list, plain[i], 0);
  if (key->min > INT64_MIN) add(&list, key->min - 1, 0);
  if (key->max < INT64_MAX) add(&list, key->max + 1, 0);
  for (int unit = 1; unit < UNITS; unit++) {
    add(&list, key->max / units[unit].factor, unit);
    add(&list, key->max / units[unit].factor + 1, unit);
    add(&list, INT64_MAX, unit);
    add(&list, INT64_MIN, unit);
  }
  return list;
}

static bool is_within(const nsai_key *key, wide value) {
  return value >= key->min && value <= key->max && (!key->step || value % key->step == 0);
}

static bool has_integers(const nsai_key *key) {
  return key->type == NSAI_TYPE_INT || key->type == NSAI_TYPE_LONG || key->type == NSAI_TYPE_SIZE ||
         key->type == NSAI_TYPE_ALIAS || key->type == NSAI_TYPE_COUNTS;
}

static int64_t stored_value(const nsai_config *config, nsai_key_id id) {
  if (nsai_keys[id].type == NSAI_TYPE_ALIAS) id = (nsai_key_id)(id + 1);
  const void *place = (const char *)config + nsai_keys[id].offset;
  switch (nsai_keys[id].type) {
  case NSAI_TYPE_INT: return *(const int32_t *)place;
  case NSAI_TYPE_COUNTS: return ((const nsai_counts *)place)->items[0];
  default: return *(const int64_t *)place;
  }
}

/* ---- plans ---- */

/* Sizes that `serving` gives are the problem's, too. */
static nsa_problem problem_of(const nsai_config *config, int32_t op) {
  nsa_problem p = NSA_PROBLEM_INIT;
  p.op = op;
  if (!config->serving.max_tokens) p.max_tokens = 256;
  if (!config->serving.max_kv_len) p.max_kv_len = 4096;
  return p;
}

/* Whatever the outcome, it has a reason; the sanitizers see the way there. */
static void make_plans(const nsai_config *config, nsa_options options) {
  static const int32_t ops[] = { NSA_OP_FORWARD, NSA_OP_DENSE,  NSA_OP_PREFILL,
                                 NSA_OP_DECODE,  NSA_OP_APPEND, NSA_OP_BACKWARD };
  nsa_ctx *ctx;
  nsa_status status = nsa_create(file_path, &options, &ctx);
  if (status != NSA_OK) fail_msg("nsa_create: %s", nsa_last_error());
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
    const nsa_problem problem = problem_of(config, ops[i]);
    nsa_caps caps = NSA_CAPS_INIT;
    nsa_plan *plan = NULL;
    status = nsa_query(ctx, &problem, &caps);
    if (status != NSA_OK && !*nsa_last_error()) fail_msg("op %d: no reason", ops[i]);
    if (options.arch) continue; /* its plans would be compiled */
    status = nsa_plan_create(ctx, &problem, NULL, NULL, &plan);
    if (status != NSA_OK && !*nsa_last_error()) fail_msg("op %d: no reason", ops[i]);
    assert_int_equal(plan != NULL, status == NSA_OK);
    nsa_plan_destroy(plan);
  }
  nsa_destroy(ctx);
}

/* ---- one value in one form ---- */

typedef struct form {
  const char *text;      /* YAML; NULL: none */
  const char *overrides; /* one; NULL: none */
} form;

static nsai_config *try_value(nsai_key_id id, const spelling *s, const form *f) {
  const nsai_key *key = &nsai_keys[id];
  const char *const overrides[] = { f->overrides, NULL };
  const char *what = f->text ? f->text : f->overrides ? f->overrides : "environment";
  const nsai_config_request request = {
    .path = file_path, .text = f->text, .overrides = overrides, .skip_system_file = true
  };
  nsai_config *config;
  nsa_status status = nsai_config_load(&request, &config);
  if (status == NSA_OK) {
    if (!is_within(key, s->value)) fail_msg("%s was taken", what);
    if (stored_value(config, id) != (int64_t)s->value) fail_msg("%s became another number", what);
    return config;
  }
  assert_int_equal(status, NSA_E_CONFIG);
  const char *error = nsa_last_error();
  if (!strstr(error, key->path)) fail_msg("%s: the key is not named in\n%s", what, error);
  if (!is_within(key, s->value) && !strstr(error, "out of range") && !strstr(error, "multiple of"))
    fail_msg("%s: the bounds are not named in\n%s", what, error);
  return NULL;
}

static void try_both(nsai_key_id id, const spelling *s, const form *f, bool plans) {
  nsai_config *config = try_value(id, s, f);
  if (config && plans) {
    char base[64] = "runtime.cache_mode=off";
    const char *const overrides[] = { base, f->overrides, NULL };
    nsa_options options = NSA_OPTIONS_INIT;
    options.log_level = NSA_LOG_ERROR;
    options.yaml_text = f->text;
    options.overrides = overrides;
    options.arch = "sm_90a";
    make_plans(config, options);
    options.arch = NULL;
    options.device = "cpu";
    make_plans(config, options);
  }
  nsai_config_destroy(config);
}

/* "model.select.count" and "4" to "nsa: 1\nmodel: {select: {count: 4}}\n". */
static void write_yaml(const nsai_key *key, const char *value, char out[TEXT]) {
  nsai_writer w = nsai_writer_open(out, TEXT);
  int depth = 0;
  nsai_write(&w, "nsa: 1\n");
  for (const char *at = key->path; *at; depth++) {
    size_t length = strcspn(at, ".");
    nsai_write(&w, "%s%.*s: ", depth ? "{" : "", (int)length, at);
    at += length + (at[length] == '.');
  }
  nsai_write(&w, "%s%.*s\n", value, depth - 1, "}}}}");
}

static void try_environment(nsai_key_id id, const spelling *s) {
  const nsai_env_var *var;
  for (size_t i = 0; (var = nsai_env_at(i)) != NULL; i++) {
    if (var->key != id) continue;
    assert_int_equal(setenv(var->name, s->text, 1), 0);
    try_both(id, s, &(form){ 0 }, false);
    unsetenv(var->name);
  }
}

static void try_key(nsai_key_id id) {
  const nsai_key *key = &nsai_keys[id];
  const spellings list = spellings_of(key);
  char yaml[TEXT], override[TEXT], value[64];
  for (int i = 0; i < list.count; i++) {
    const spelling *s = &list.item[i];
    bool is_list = key->type == NSAI_TYPE_COUNTS;
    snprintf(value, sizeof value, is_list ? "[%s]" : "%s", s->text);
    write_yaml(key, value, yaml);
    snprintf(override, sizeof override, "%s=%s", key->path, value);
    try_both(id, s, &(form){ .text = yaml }, false);
    try_both(id, s, &(form){ .overrides = override }, true);
    if (!is_list) try_environment(id, s);
  }
}

static void test_bounds(void **state) {
  int keys = 0;
  write_file("nsa: 1\nmodel: {heads: 4, kv_heads: 2, head_dim: 64}\n", 0600);
  for (size_t i = 0; nsai_env_at(i); i++) unsetenv(nsai_env_at(i)->name);
  for (int id = 0; id < NSAI_KEY_COUNT; id++) {
    if (!has_integers(&nsai_keys[id])) continue;
    try_key((nsai_key_id)id);
    keys++;
  }
  remove_file();
  /* the keys of the model, of serving and of the device: fewer would mean that a type is left out */
  assert_in_range(keys, 25, NSAI_KEY_COUNT);
}

int main(void) {
  const struct CMUnitTest tests[] = { cmocka_unit_test(test_bounds) };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
