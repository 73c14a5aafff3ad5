/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsakvcheck: nsa_kv_append, nsa_decode and nsa_prefill on a GPU against the CPU device, in random
 * scenarios.
 */
#include "cache/scenario.h"
#include "option.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_SKIP 77 /* meson's word for "cannot be tried here" */

#define OP_SPLIT 100 /* no operation of the library's */

typedef struct arguments {
  uint64_t seed;
  int64_t count, soak, every;
  int32_t longest, device, op; /* op 0: one after the other */
  int32_t steps, repeats;      /* -1: the scenario's */
  double time_limit;
  const char *cache_dir, *variant;
  bool verbose, self_test, spread, searched, large;
} arguments;

enum {
  OPT_CACHE_DIR = 256,
  OPT_TIME_LIMIT,
  OPT_OP,
  OPT_SELF_TEST,
  OPT_SOAK,
  OPT_EVERY,
  OPT_SPREAD,
  OPT_SEARCHED,
  OPT_LARGE,
  OPT_VARIANT,
  OPT_STEPS,
  OPT_REPEATS
};

static const struct argp_option argp_options[] = {
  { "seed", 's', "N", 0, "Seed of the first scenario; the others follow (1)", 0 },
  { "count", 'n', "N", 0, "How many scenarios (60)", 0 },
  { "op", OPT_OP, "OP", 0,
    "Steps of decode or of prefill, or split: one prefill against any pieces; without it all in "
    "turn",
    0 },
  { "variant", OPT_VARIANT, "NAME", 0,
    "Decode by this variant, without counters, probes and selections of the caller's; scenarios "
    "that "
    "it "
    "cannot serve are skipped",
    0 },
  { "spread", OPT_SPREAD, 0, 0,
    "Pages far apart, up to 2^31 elements and more: 4.3 GB a tensor, up to eight", 0 },
  { "searched", OPT_SEARCHED, 0, 0,
    "Models alone that search up to 32 blocks of some thousands of tokens", 0 },
  { "large", OPT_LARGE, 0, 0,
    "Scenarios alone of 256 and 1024 sequences, and of 128k and 1M tokens: 28 by their seeds from "
    "1 "
    "on",
    0 },
  { "self-test", OPT_SELF_TEST, 0, OPTION_HIDDEN, "Inject errors into results and demand failures",
    0 },
  { "soak", OPT_SOAK, "STEPS", 0, "So many steps of one scenario of sequences that come and go",
    0 },
  { "every", OPT_EVERY, "N", 0, "Steps of a soak from check to check (250)", 0 },
  { "steps", OPT_STEPS, "N", 0,
    "Steps of a scenario that splits nothing; 1 for compute-sanitizer (6, large ones 3)", 0 },
  { "repeats", OPT_REPEATS, "N", 0, "How often a GPU takes a step again, for the same bits (4)",
    0 },
  { "longest", 'l', "N", 0, "Tokens of the longest sequences (1500)", 0 },
  { "device", 'd', "DEVICE", 0, "auto, an ordinal, or cpu: the CPU device with itself", 0 },
  { "cache-dir", OPT_CACHE_DIR, "DIR", 0, "Keep compiled kernels there (default: in memory)", 0 },
  { "time-limit", OPT_TIME_LIMIT, "SECONDS", 0, "Start no further scenario after this time", 0 },
  { "verbose", 'v', 0, 0, "A line for each scenario, not for failures alone", 0 },
  { 0 }
};

static error_t parse(int key, char *value, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
  case 's': a->seed = (uint64_t)chk_option_number("seed", value, 0, INT64_MAX, state); break;
  case 'n': a->count = chk_option_number("count", value, 1, INT64_MAX, state); break;
  case 'l': a->longest = (int32_t)chk_option_number("longest", value, 64, 1 << 20, state); break;
  case 'd':
    if (nsai_verify_device_parse(value, &a->device))
      argp_error(state, "--device: '%s' is neither auto, cpu nor an ordinal", value);
    break;
  case OPT_OP:
    a->op = !strcmp(value, "decode")    ? NSA_OP_DECODE
            : !strcmp(value, "prefill") ? NSA_OP_PREFILL
            : !strcmp(value, "split")   ? OP_SPLIT
                                        : -1;
    if (a->op < 0) argp_error(state, "--op: '%s' is none of decode, prefill, split", value);
    break;
  case OPT_VARIANT: a->variant = value; break;
  case OPT_STEPS: a->steps = (int32_t)chk_option_number("steps", value, 1, 1000, state); break;
  case OPT_REPEATS:
    a->repeats = (int32_t)chk_option_number("repeats", value, 0, 1000, state);
    break;
  case OPT_SELF_TEST: a->self_test = true; break;
  case OPT_SEARCHED: a->searched = true; break;
  case OPT_LARGE: a->large = true; break;
  case OPT_SPREAD: a->spread = true; break;
  case OPT_SOAK: a->soak = chk_option_number("soak", value, 1, INT64_MAX, state); break;
  case OPT_EVERY: a->every = chk_option_number("every", value, 1, INT32_MAX, state); break;
  case OPT_CACHE_DIR: a->cache_dir = value; break;
  case OPT_TIME_LIMIT:
    if (nsai_verify_seconds_parse(value, &a->time_limit))
      argp_error(state, "--time-limit: '%s' is no number of seconds above 0", value);
    break;
  case 'v': a->verbose = true; break;
  case ARGP_KEY_ARG: argp_error(state, "unexpected argument '%s'", value); break;
  case ARGP_KEY_END:
    if (a->soak &&
        (a->op || a->spread || a->searched || a->large || a->steps >= 0 || a->time_limit > 0))
      argp_error(state, "--soak has a scenario and an end of its own: leave out --op, --spread, "
                        "--searched, --large, --steps and --time-limit");
    if (a->op == OP_SPLIT && (a->steps >= 0 || a->repeats >= 0))
      argp_error(state, "--op split has one walk, in any pieces: leave out --steps and --repeats");
    if (a->large && (a->searched || a->op == OP_SPLIT))
      argp_error(state, "--large says of its own what is searched, and splits nothing");
    break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

/* The caller's numbers in place of the scenario's. */
static void shorten(const arguments *a, chk_cache_options *options) {
  if (a->steps >= 0) options->steps = a->steps;
  if (a->repeats >= 0) options->repeats = a->repeats;
}

/* What a reproduction needs of these. */
static void print_shortened(const arguments *a) {
  if (a->steps >= 0) printf(" --steps %d", a->steps);
  if (a->repeats >= 0) printf(" --repeats %d", a->repeats);
  printf("\n");
}

static void make_options(const arguments *a, uint64_t seed, chk_cache_options *options) {
  chk_cache_options_random(seed, a->longest, options);
  if (a->searched) chk_cache_options_searched(options);
  if (a->large)
    chk_cache_options_large(a->op, options);
  else if (a->op ? a->op == OP_SPLIT : seed % 7 == 0)
    chk_cache_options_split(options);
  else if (a->op ? a->op == NSA_OP_PREFILL : seed % 2 == 0)
    chk_cache_options_prefill(options);
  options->spread = a->spread;
  options->variant = a->variant;
  if (a->variant) chk_cache_options_plain(options);
  shorten(a, options);
}

typedef struct counts {
  int64_t passed, failed, skipped, rows, counted;
} counts;

/* One scenario. A plan that the library refuses by name is no failure. */
static void check(const arguments *a, const nsai_verify_device *device, uint64_t seed,
                  counts *all) {
  chk_cache_options options;
  chk_cache_result r;
  make_options(a, seed, &options);
  nsa_status status =
      (options.split ? chk_cache_split : chk_cache_walk)(device, &options, a->cache_dir, NULL, &r);
  bool skipped = status == NSA_E_UNSUPPORTED;
  if (status) snprintf(r.failure, sizeof r.failure, "%.200s", nsa_last_error());
  bool failed = r.failure[0] && !skipped;
  all->rows += r.rows;
  all->counted += r.counted;
  *(skipped ? &all->skipped : failed ? &all->failed : &all->passed) += 1;
  if (!failed && !a->verbose) return;
  printf("%s: ", skipped ? "skipped" : failed ? "FAILED" : "passed");
  chk_cache_options_print(&options, stdout);
  printf(": o %.2f branch %.2f lse %.2f entry %.2f importance %.2f near_cut %lld rows %lld%s%s\n",
         r.o, r.branch, r.lse, r.entry, r.importance, (long long)r.near_cut, (long long)r.rows,
         r.failure[0] ? ": " : "", r.failure);
  if (failed) {
    printf("  again: nsakvcheck --op %s --seed %llu --count 1 --longest %d%s%s%s%s%s",
           options.split                  ? "split"
           : options.op == NSA_OP_PREFILL ? "prefill"
                                          : "decode",
           (unsigned long long)seed, a->longest, a->searched ? " --searched" : "",
           a->large ? " --large" : "", a->spread ? " --spread" : "",
           a->variant ? " --variant " : "", a->variant ? a->variant : "");
    print_shortened(a);
  }
  fflush(stdout);
}

static nsa_status run_soak(const arguments *a, const nsai_verify_device *device, int inject,
                           chk_cache_options *options, chk_soak_counts *n, chk_cache_result *r) {
  chk_soak_request request = { .options = options,
                               .cache_dir = a->cache_dir,
                               .steps = a->soak,
                               .every = a->every,
                               .inject = inject };
  chk_cache_options_random(a->seed, a->longest, options);
  chk_cache_options_soak(options, a->longest);
  shorten(a, options);
  return chk_cache_soak(device, &request, n, r);
}

static int soak(const arguments *a, const nsai_verify_device *device) {
  chk_cache_options options;
  chk_soak_counts n;
  chk_cache_result r;
  double start = nsai_verify_seconds();
  nsa_status status = run_soak(a, device, CHK_SOAK_INJECT_NOTHING, &options, &n, &r);
  if (status) snprintf(r.failure, sizeof r.failure, "%.200s", nsa_last_error());
  printf("soak of ");
  chk_cache_options_print(&options, stdout);
  printf(": %lld of %lld steps (%s, %.1f s), %lld checks of %lld rows: o %.2f branch %.2f lse %.2f "
         "entry "
         "%.2f near_cut %lld; %lld tokens, %lld arrivals, %lld exits, %lld shared prefixes, %lld "
         "rollbacks, %lld pages copied, %lld poisoned: %s\n",
         (long long)n.steps, (long long)a->soak, device->name, nsai_verify_seconds() - start,
         (long long)n.checks, (long long)r.rows, r.o, r.branch, r.lse, r.entry,
         (long long)r.near_cut, (long long)n.tokens, (long long)n.arrivals, (long long)n.exits,
         (long long)n.forks, (long long)n.rollbacks, (long long)n.copies, (long long)n.poisoned,
         r.failure[0] ? r.failure : "passed");
  if (!r.failure[0]) return 0;
  printf("  again: nsakvcheck --soak %lld --every %lld --seed %llu --longest %d",
         (long long)a->soak, (long long)a->every, (unsigned long long)a->seed, a->longest);
  print_shortened(a);
  return 1;
}

/* What a piece has other than the whole. Returns how many were not found. */
static int split_self_test(const arguments *a, const nsai_verify_device *device) {
  static const int kinds[] = { CHK_CACHE_INJECT_O, CHK_CACHE_INJECT_NAN, CHK_CACHE_INJECT_BRANCH,
                               CHK_CACHE_INJECT_LSE, CHK_CACHE_INJECT_CHOICE };
  int failed = 0;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    int inject = kinds[i];
    chk_cache_result r = { 0 };
    nsa_status status = NSA_OK;
    for (uint64_t seed = a->seed; !status && inject != CHK_CACHE_INJECTED && seed < a->seed + 50;
         seed++) {
      chk_cache_options options;
      chk_cache_options_random(seed, 100, &options);
      chk_cache_options_split(&options);
      status = chk_cache_split(device, &options, a->cache_dir, &inject, &r);
    }
    bool found = !status && inject == CHK_CACHE_INJECTED && r.failure[0];
    printf("%s: damage %d of a whole: %s\n", found ? "ok" : "FAILED", kinds[i],
           status                         ? nsa_last_error()
           : inject != CHK_CACHE_INJECTED ? "no scenario has it"
                                          : r.failure);
    failed += !found;
  }
  return failed;
}

/* The soak's own kinds of damage, of one that passes without. Returns how many were not found. */
static int soak_self_test(const arguments *a, const nsai_verify_device *device) {
  int failed = 0;
  arguments own = *a;
  own.soak = 600;
  own.every = 20;
  for (int kind = CHK_SOAK_INJECT_NOTHING; kind < CHK_SOAK_INJECT_KINDS; kind++) {
    chk_cache_options options;
    chk_soak_counts n;
    chk_cache_result r;
    nsa_status status = run_soak(&own, device, kind, &options, &n, &r);
    bool found = r.failure[0] || status == NSA_E_ARG; /* the CPU device reads a batch */
    bool good = kind == CHK_SOAK_INJECT_NOTHING ? !status && !found : found;
    printf("%s: damage %d of a soak: %s\n", good ? "ok" : "FAILED", kind,
           status ? nsa_last_error() : r.failure);
    failed += !good;
  }
  return failed;
}

/* Damage of every kind, in the first scenario that has it. Returns what was not found. */
static int self_test(const arguments *a, const nsai_verify_device *device) {
  int failed = 0;
  for (int kind = CHK_CACHE_INJECT_NOTHING + 1; kind < CHK_CACHE_INJECT_KINDS; kind++) {
    int inject = kind;
    chk_cache_result r = { 0 };
    for (uint64_t seed = a->seed; inject != CHK_CACHE_INJECTED && seed < a->seed + 400; seed++) {
      chk_cache_options options;
      make_options(a, seed, &options);
      if (options.model.heads > 16) continue;                               /* small ones will do */
      if (kind == CHK_CACHE_INJECT_IMPORTANCE && !options.probed) continue; /* few scenarios are */
      nsa_status status = chk_cache_walk(device, &options, a->cache_dir, &inject, &r);
      if (status && status != NSA_E_UNSUPPORTED)
        printf("seed %llu: %s\n", (unsigned long long)seed, nsa_last_error());
    }
    bool found = inject == CHK_CACHE_INJECTED && r.failure[0];
    printf("%s: damage %d: %s\n", found ? "ok" : "FAILED", kind,
           inject != CHK_CACHE_INJECTED ? "no scenario has it" : r.failure);
    failed += !found;
  }
  return failed;
}

int main(int argc, char **argv) {
  static const struct argp argp = {
    argp_options,
    parse,
    NULL,
    "Check nsa_kv_append, nsa_decode and nsa_prefill on a GPU against the CPU device.\v"
    "A scenario is a random model, layout and course of sequences; its seed names it. Figures are "
    "worst "
    "errors over their limits. Exit status: 0 all passed, 1 failures, 2 usage, 77 no GPU, or "
    "nothing "
    "but what the library refuses.",
    NULL,
    NULL,
    NULL
  };
  arguments a = { .seed = 1,
                  .count = 60,
                  .every = 250,
                  .longest = 1500,
                  .steps = -1,
                  .repeats = -1,
                  .device = NSAI_VERIFY_DEVICE_AUTO };
  nsai_verify_device device;
  counts all = { 0 };
  argp_err_exit_status = 2;
  argp_parse(&argp, argc, argv, 0, NULL, &a);
  nsa_status status = nsai_verify_device_open(a.device, &device);
  if (status) {
    fprintf(stderr, "nsakvcheck: %s\n", nsa_last_error());
    return status == NSA_E_NO_DRIVER || status == NSA_E_NO_DEVICE ? EXIT_SKIP : 1;
  }
  if (a.self_test) {
    int failed = self_test(&a, &device) + split_self_test(&a, &device);
    failed += soak_self_test(&a, &device);
    nsai_verify_device_close(&device);
    return failed ? 1 : 0;
  }
  if (a.soak) {
    int failed = soak(&a, &device);
    nsai_verify_device_close(&device);
    return failed;
  }
  double start = nsai_verify_seconds();
  for (int64_t i = 0; i < a.count; i++) {
    if (a.time_limit > 0 && nsai_verify_seconds() - start > a.time_limit) break;
    check(&a, &device, a.seed + (uint64_t)i, &all);
  }
  printf("%lld scenarios passed, %lld failed, %lld skipped, of %lld; %lld rows, %lld reads "
         "(%s, %.1f s)\n",
         (long long)all.passed, (long long)all.failed, (long long)all.skipped, (long long)a.count,
         (long long)all.rows, (long long)all.counted, device.name, nsai_verify_seconds() - start);
  nsai_verify_device_close(&device);
  return all.failed ? 1 : all.passed ? 0 : EXIT_SKIP;
}
