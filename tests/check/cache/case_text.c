/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "base/text.h"
#include "options.h"

#include <string.h>

#define PREFIX "cache:"

static const char *const kind_names[] = { "decode", "prefill", "split", "soak" };

chk_cache_kind chk_cache_kind_find(const char *name) {
  int kind = 0;
  while (kind < CHK_CACHE_KINDS && strcmp(kind_names[kind], name) != 0) kind++;
  return (chk_cache_kind)kind;
}

bool chk_cache_case_is(const char *text) { return !strncmp(text, PREFIX, strlen(PREFIX)); }

static int parse_flag(const char *field, chk_cache_case *c) {
  bool *flag = !strcmp(field, "searched") ? &c->searched
               : !strcmp(field, "large")  ? &c->large
               : !strcmp(field, "spread") ? &c->spread
                                          : NULL;
  if (flag) *flag = true;
  return flag ? 0 : -1;
}

const char *const chk_cache_codes_names[] = { "none", "kv", "cmp", "both", "any", NULL };

static int parse_codes(const char *value, chk_cache_case *c) {
  int i = 0;
  while (chk_cache_codes_names[i] && strcmp(chk_cache_codes_names[i], value) != 0) i++;
  c->codes = (chk_cache_codes)i;
  return chk_cache_codes_names[i] ? 0 : -1;
}

static int parse_named(const char *name, const char *value, chk_cache_case *c) {
  int64_t number = 0;
  if (!strcmp(name, "codes")) return parse_codes(value, c);
  if (!strcmp(name, "force")) return (c->force = nsai_variant_find(value)) ? 0 : -1;
  if (!nsai_parse_integer(value, 0, INT64_MAX, &number)) return -1;
  if (!strcmp(name, "seed")) return c->seed = (uint64_t)number, 0;
  if (!strcmp(name, "model") && number) return c->model = (uint64_t)number, 0;
  if (!strcmp(name, "steps")) return c->steps = number, 0;
  if (!strcmp(name, "every") && number) return c->every = number, 0;
  if (number > 1 << 20) return -1;
  if (!strcmp(name, "longest") && number >= CHK_CACHE_LEAST_LONGEST)
    return c->longest = (int32_t)number, 0;
  if (!strcmp(name, "repeats")) return c->repeats = (int32_t)number, 0;
  return -1;
}

int chk_cache_case_parse(const char *text, chk_cache_case *c, char *error, size_t size) {
  char copy[CHK_CACHE_CASE_TEXT], *save = NULL;
  *c = CHK_CACHE_CASE_INIT;
  c->kind = CHK_CACHE_KINDS;
  if (strlen(text) >= sizeof copy) return snprintf(error, size, "the problem is too long"), -1;
  strcpy(copy, text);
  char *field = strtok_r(copy, ":", &save); /* the prefix */
  while ((field = strtok_r(NULL, ":", &save))) {
    char *equals = strchr(field, '=');
    int status;
    if (c->kind == CHK_CACHE_KINDS) {
      c->kind = chk_cache_kind_find(field);
      status = c->kind == CHK_CACHE_KINDS ? -1 : 0;
    } else if (equals) {
      *equals = 0;
      status = parse_named(field, equals + 1, c);
      *equals = '=';
    } else {
      status = parse_flag(field, c);
    }
    if (status) return snprintf(error, size, "'%s' is not understood", field), -1;
  }
  if (c->kind == CHK_CACHE_KINDS) return snprintf(error, size, "a kind is missing"), -1;
  if (c->kind == CHK_CACHE_SOAK && c->steps < 1)
    return snprintf(error, size, "a soak needs steps"), -1;
  if (c->kind != CHK_CACHE_SOAK && c->steps > CHK_CACHE_MOST_STEPS)
    return snprintf(error, size, "a scenario has at most %d steps, a soak any number",
                    CHK_CACHE_MOST_STEPS),
           -1;
  if (c->kind == CHK_CACHE_SOAK && (c->spread || c->searched || c->large))
    return snprintf(error, size, "a soak has a scenario of its own"), -1;
  if (c->model && (c->kind == CHK_CACHE_SOAK || c->searched || c->large))
    return snprintf(error, size, "a soak, searched and large have models of their own"), -1;
  return 0;
}

void chk_cache_case_print(const chk_cache_case *c, char *text, size_t size) {
  FILE *out = fmemopen(text, size, "w");
  if (!out) {
    snprintf(text, size, "(out of memory)");
    return;
  }
  fprintf(out, PREFIX "%s:seed=%llu:longest=%d", kind_names[c->kind], (unsigned long long)c->seed,
          c->longest);
  if (c->model) fprintf(out, ":model=%llu", (unsigned long long)c->model);
  if (c->searched) fprintf(out, ":searched");
  if (c->large) fprintf(out, ":large");
  if (c->spread) fprintf(out, ":spread");
  if (c->steps >= 0) fprintf(out, ":steps=%lld", (long long)c->steps);
  if (c->kind == CHK_CACHE_SOAK) fprintf(out, ":every=%lld", (long long)c->every);
  if (c->repeats >= 0) fprintf(out, ":repeats=%d", c->repeats);
  if (c->codes) fprintf(out, ":codes=%s", chk_cache_codes_names[c->codes]);
  if (c->force) fprintf(out, ":force=%s", c->force->name);
  fclose(out);
}
