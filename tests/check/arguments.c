/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "arguments.h"

#include "base/math.h"
#include "base/text.h"
#include "cases.h"
#include "config/config.h"
#include "option.h"
#include "program.h"

#include <argp.h>
#include <string.h>
#include <unistd.h>

enum {
  OPT_SELF_TEST = 256,
  OPT_MODEL,
  OPT_CACHE_DIR,
  OPT_TIME_LIMIT,
  OPT_STOP,
  OPT_SHORT,
  OPT_ROWS,
  OPT_TAP,
  OPT_FORCE,
  OPT_OP,
  OPT_LONGEST,
  OPT_LARGE,
  OPT_SEARCHED,
  OPT_SPREAD,
  OPT_SOAK,
  OPT_EVERY,
  OPT_CODES,
  OPT_STEPS,
  OPT_REPEATS
};

static const struct argp_option options[] = {
  { "list", 'l', 0, 0, "Print the problems that would be checked", 0 },
  { "filter", 'f', "GLOB", 0, "Only problems that match", 0 },
  { "problem", 'p', "STR", 0, "Only this problem, as printed by a failure", 0 },
  { "seed", 's', "N", 0, "Seed of the random problems (1)", 0 },
  { "count", 'n', "N", 0,
    "Number of random problems: forward and backward (300; on the CPU device 40), and of the cache "
    "(60; on the CPU device 12)",
    0 },
  { "model", OPT_MODEL, "N|FILE", 0,
    "Random problems of random model N (from 1) only, or of a configuration's: --count (20) "
    "forward and backward, and as many scenarios of the cache",
    0 },
  { "short", OPT_SHORT, 0, 0, "The short list only, no random problems unless --count", 0 },
  { "rows", OPT_ROWS, 0, 0,
    "Problems that force each row of the variant table by its name; a row without any is a failure",
    0 },
  { "force", OPT_FORCE, "NAME", 0,
    "Force this row of the variant table; problems that it cannot serve are skipped", 0 },
  { "device", 'd', "DEVICE", 0, "auto, cpu, or an ordinal, as 1 or cuda:1", 0 },
  { "config", 'c', "FILE", 0, "A configuration below each problem's own", 0 },
  { "set", 'S', "KEY=VALUE", 0, "Override a key: variants.force.select=NAME", 0 },
  { "cache-dir", OPT_CACHE_DIR, "DIR", 0, "Keep compiled kernels there (default: in memory)", 0 },
  { "threads", 't', "N", 0, "Threads of the reference and of plan creation (all processors)", 0 },
  { "time-limit", OPT_TIME_LIMIT, "SECONDS", 0, "Start no further problem after this time", 0 },
  { "stop-on-failure", OPT_STOP, 0, 0, "Stop at the first failure", 0 },
  { "json", 'j', 0, 0, "One JSON document on stdout", 0 },
  { "tap", OPT_TAP, 0, 0, "A result of the Test Anything Protocol for each problem", 0 },
  { "self-test", OPT_SELF_TEST, 0, OPTION_HIDDEN, "Damage results and demand failures", 0 },
  { 0, 0, 0, 0, "Random scenarios of the KV cache:", 1 },
  { "op", OPT_OP, "OP", 0,
    "Steps of decode or of prefill, or split: one prefill against any pieces of it (all in turn)",
    1 },
  { "longest", OPT_LONGEST, "N", 0,
    "Tokens of the longest sequences (1500, or twice those that a --model FILE chooses; on the CPU "
    "device 400)",
    1 },
  { "large", OPT_LARGE, 0, 0,
    "Scenarios of 256 and 1024 sequences, and of 128k and 1M tokens: 28 by their seeds from 1 on",
    1 },
  { "searched", OPT_SEARCHED, 0, 0,
    "Models that search up to 32 blocks, in contexts of some thousands of tokens", 1 },
  { "spread", OPT_SPREAD, 0, 0,
    "Pages far apart, up to 2^31 elements and more: 4.3 GB a tensor, up to eight tensors", 1 },
  { "codes", OPT_CODES, "WHAT", 0,
    "Store kv (raw K and V), cmp (compressed entries) or both in e4m3; any: each scenario draws "
    "(none)",
    1 },
  { "steps", OPT_STEPS, "N", 0, "Steps of a scenario; 1 for compute-sanitizer (6, large ones 3)",
    1 },
  { "repeats", OPT_REPEATS, "N", 0,
    "How often a GPU repeats a step, which must give the same bits (4)", 1 },
  { "soak", OPT_SOAK, "STEPS", 0, "One scenario of this many steps, in which sequences come and go",
    1 },
  { "every", OPT_EVERY, "N", 0, "Steps of a soak between two checks (250)", 1 },
  { 0 }
};

/* Stores an option that changes the meaning of a problem, for the reproduction line. */
static void remember(chk_arguments *a, const char *option, const char *value) {
  size_t used = strlen(a->repeat);
  snprintf(a->repeat + used, sizeof a->repeat - used, " %s %s", option, value);
}

static void add_override(chk_arguments *a, const char *value, struct argp_state *state) {
  if (a->override_count == CHK_MOST_OVERRIDES) argp_error(state, "too many --set");
  a->overrides[a->override_count++] = value;
  a->plans.overrides = a->overrides;
  remember(a, "--set", value);
}

static void choose_area(chk_arguments *a, const char *name, struct argp_state *state) {
  static const char *const names[] = { "forward", "backward", "cache", NULL };
  if (a->areas) argp_error(state, "unexpected argument '%s'", name);
  a->areas = 1u << nsai_program_word("argument", name, names, state);
}

/* Parses the options of the cache. */
static error_t parse_cache(int key, const char *value, struct argp_state *state) {
  static const char *const ops[] = { "decode", "prefill", "split", NULL };
  chk_arguments *a = state->input;
  chk_cache_case *c = &a->cache;
  switch (key) {
  case OPT_OP:
    if (c->kind == CHK_CACHE_SOAK) argp_error(state, "--soak has an --op of its own");
    c->kind = chk_cache_kind_find(ops[nsai_program_word("--op", value, ops, state)]);
    break;
  case OPT_LONGEST:
    c->longest =
        (int32_t)chk_option_number("longest", value, CHK_CACHE_LEAST_LONGEST, 1 << 20, state);
    break;
  case OPT_LARGE: c->large = true; break;
  case OPT_SEARCHED: c->searched = true; break;
  case OPT_SPREAD: c->spread = true; break;
  case OPT_STEPS:
    if (c->kind == CHK_CACHE_SOAK) argp_error(state, "--soak says its --steps");
    c->steps = chk_option_number("steps", value, 1, CHK_CACHE_MOST_STEPS, state);
    break;
  case OPT_REPEATS:
    c->repeats = (int32_t)chk_option_number("repeats", value, 0, 1000, state);
    break;
  case OPT_SOAK:
    if (c->kind != CHK_CACHE_KINDS || c->steps >= 0)
      argp_error(state, "--soak has an --op of its own and says its --steps");
    c->kind = CHK_CACHE_SOAK;
    c->steps = chk_option_number("soak", value, 1, INT64_MAX, state);
    break;
  case OPT_CODES:
    c->codes = (chk_cache_codes)nsai_program_word("--codes", value, chk_cache_codes_names, state);
    break;
  case OPT_EVERY: c->every = chk_option_number("every", value, 1, INT32_MAX, state); break;
  default: return ARGP_ERR_UNKNOWN;
  }
  a->of_cache = true;
  return 0;
}

/* A number is the seed of a random model. Anything else is a configuration that has one. */
static void choose_model(chk_arguments *a, const char *value, struct argp_state *state) {
  int64_t seed = 0;
  if (nsai_parse_integer(value, 1, INT64_MAX, &seed)) {
    a->model = (uint64_t)seed;
    return;
  }
  a->given = chk_option_model(value, "neither a number from 1 nor a configuration", state);
  a->cache.given = &a->given;
  remember(a, "--model", value);
}

/* Rejects combinations that make no sense, then sets the defaults. */
static void finish(chk_arguments *a, struct argp_state *state) {
  chk_cache_case *c = &a->cache;
  if (c->kind == CHK_CACHE_SPLIT && (c->steps >= 0 || c->repeats >= 0))
    argp_error(state, "--op split has one walk, in any pieces: leave out --steps and --repeats");
  if (c->kind == CHK_CACHE_SOAK && (c->spread || c->searched || c->large))
    argp_error(state, "--soak has a scenario of its own: leave out --spread, --searched, --large");
  if (c->large && (c->searched || c->kind == CHK_CACHE_SPLIT))
    argp_error(state, "--large decides what is searched, and splits nothing");
  if (a->model && c->given)
    argp_error(state, "--model is one model: a number or a configuration, not both");
  /* The text of a problem names the first, and needs the second. */
  if ((a->model && a->problem) || ((a->model || c->given) && (a->brief || a->rows)))
    argp_error(state, "--model has random problems only: leave out --problem, --short, --rows");
  if ((a->model || c->given) && (c->large || c->searched || c->kind == CHK_CACHE_SOAK))
    argp_error(state, "--large, --searched and --soak have models of their own: leave out --model");
  const bool cpu = a->plans.device == NSAI_VERIFY_DEVICE_CPU;
  if (a->rows && cpu && !a->list) argp_error(state, "--rows needs a GPU, or --list");
  if (a->of_cache && a->areas & (CHK_FORWARD | CHK_BACKWARD))
    argp_error(state, "options of scenarios belong to `nsacheck cache`");
  if (!a->areas && a->of_cache) a->areas = CHK_CACHE;
  if (!a->areas) a->areas = CHK_FORWARD | CHK_BACKWARD | CHK_CACHE;
  /* A given model gets contexts from which it has to choose. */
  if (!c->longest)
    c->longest = cpu || a->brief ? 400 : (int32_t)nsai_larger(1500, chk_longest_of(&a->given));
  c->force = a->force;
}

static error_t parse(int key, char *value, struct argp_state *state) {
  chk_arguments *a = state->input;
  switch (key) {
  case 'l': a->list = true; break;
  case 'f': a->filter = value; break;
  case 'p': a->problem = value; break;
  case 's': a->seed = (uint64_t)chk_option_number("seed", value, 0, INT64_MAX, state); break;
  case 'n': a->count = chk_option_number("count", value, 0, INT64_MAX, state); break;
  case OPT_MODEL: choose_model(a, value, state); break;
  case 't':
    a->plans.threads = (int)chk_option_number("threads", value, 1, CHK_MAX_THREADS, state);
    break;
  case 'j': a->json = true; break;
  case 'd':
    a->plans.device = chk_option_device(value, state);
    remember(a, "--device", value);
    break;
  case 'c':
    a->plans.config = value;
    remember(a, "--config", value);
    break;
  case 'S': add_override(a, value, state); break;
  case OPT_CACHE_DIR: a->plans.cache_dir = value; break;
  case OPT_TIME_LIMIT:
    if (nsai_verify_seconds_parse(value, &a->time_limit))
      argp_error(state, "--time-limit: '%s' is no number of seconds above 0", value);
    break;
  case OPT_STOP: a->stop_on_failure = true; break;
  case OPT_SHORT: a->brief = true; break;
  case OPT_TAP: a->tap = true; break;
  case OPT_ROWS: a->rows = true; break;
  case OPT_FORCE:
    a->force = nsai_variant_find(value);
    if (!a->force) argp_error(state, "--force: there is no row '%s'", value);
    break;
  case OPT_SELF_TEST: a->self_test = true; break;
  case ARGP_KEY_ARG: choose_area(a, value, state); break;
  case ARGP_KEY_END: finish(a, state); break;
  default: return parse_cache(key, value, state);
  }
  return 0;
}

void chk_arguments_read(int argc, char **argv, chk_arguments *out) {
  static const struct argp argp = {
    options,
    parse,
    "[forward|backward|cache]",
    "Check libnsa on a GPU: the stages, the forward and the backward pass against a float64 "
    "reference, and the KV cache (append, prefill, decode) against the CPU device.\v"
    "A problem is one line of text, which autotune/verify/case.h and tests/check/cache/options.h "
    "describe. Without forward, backward or cache all three are checked. Exit status: 0 all "
    "passed, 1 failures, 2 usage, 77 no GPU, or nothing but skips (0 with --tap).",
    NULL,
    NULL,
    NULL
  };
  *out = (chk_arguments){ .seed = 1, .count = -1, .cache = CHK_CACHE_CASE_INIT };
  out->cache.kind = CHK_CACHE_KINDS;
  out->cache.longest = 0; /* until the device is known */
  out->plans.device = NSAI_VERIFY_DEVICE_AUTO;
  out->plans.threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
  argp_err_exit_status = 2;
  argp_program_version = NSAI_PROGRAM_VERSION("nsacheck");
  nsai_program_parse(&argp, argc, argv, out);
}
