/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsacheck: holds every stage and the whole forward against the float64 reference.
 */
#include "cases.h"
#include "check.h"
#include "option.h"

#include <argp.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXIT_SKIP 77 /* meson's word for "cannot be tried here" */
#define MAX_OVERRIDES 32

typedef struct arguments {
  chk_plans_options plans;
  const char *overrides[MAX_OVERRIDES + 1];
  int override_count;
  const char *filter, *problem;
  uint64_t seed;
  int64_t count; /* random cases; -1: the default */
  double time_limit;
  int list, json, stop_on_failure, self_test, brief;
  char repeat[512]; /* what a reproduction needs beside the problem */
} arguments;

enum { OPT_SELF_TEST = 256, OPT_CACHE_DIR, OPT_TIME_LIMIT, OPT_STOP, OPT_SHORT };

static const struct argp_option options[] = {
  { "list", 'l', 0, 0, "Print the problems that would be checked", 0 },
  { "filter", 'f', "GLOB", 0, "Only problems that match", 0 },
  { "problem", 'p', "STR", 0, "Only this problem, as printed by a failure", 0 },
  { "seed", 's', "N", 0, "Seed of the random problems (1)", 0 },
  { "count", 'n', "N", 0, "How many random problems (300; on the CPU device 40)", 0 },
  { "short", OPT_SHORT, 0, 0, "The short list only, no random problems unless --count", 0 },
  { "device", 'd', "DEVICE", 0, "auto, cpu, or an ordinal", 0 },
  { "config", 'c', "FILE", 0, "A configuration below each problem's own", 0 },
  { "set", 'S', "KEY=VALUE", 0, "Override a key: variants.force.select=NAME", 0 },
  { "cache-dir", OPT_CACHE_DIR, "DIR", 0, "Keep compiled kernels there (default: in memory)", 0 },
  { "threads", 't', "N", 0, "Threads of the reference and of plan creation (all processors)", 0 },
  { "time-limit", OPT_TIME_LIMIT, "SECONDS", 0, "Start no further problem after this time", 0 },
  { "stop-on-failure", OPT_STOP, 0, 0, "Stop at the first failure", 0 },
  { "json", 'j', 0, 0, "One JSON document on stdout", 0 },
  { "self-test", OPT_SELF_TEST, 0, OPTION_HIDDEN, "Inject errors into results and demand failures",
    0 },
  { 0 }
};

/* Remembers an option that changes what a problem means, for the reproduction line. */
static void remember(arguments *a, const char *option, const char *value) {
  size_t used = strlen(a->repeat);
  snprintf(a->repeat + used, sizeof a->repeat - used, " %s %s", option, value);
}

static error_t parse(int key, char *value, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
  case 'l': a->list = 1; break;
  case 'f': a->filter = value; break;
  case 'p': a->problem = value; break;
  case 's': a->seed = (uint64_t)chk_option_number("seed", value, 0, INT64_MAX, state); break;
  case 'n': a->count = chk_option_number("count", value, 0, INT64_MAX, state); break;
  case 't':
    a->plans.threads = (int)chk_option_number("threads", value, 1, CHK_MAX_THREADS, state);
    break;
  case 'j': a->json = 1; break;
  case 'd':
    if (nsai_verify_device_parse(value, &a->plans.device))
      argp_error(state, "--device: '%s' is neither auto, cpu nor an ordinal", value);
    remember(a, "--device", value);
    break;
  case 'c':
    a->plans.config = value;
    remember(a, "--config", value);
    break;
  case 'S':
    if (a->override_count == MAX_OVERRIDES) argp_error(state, "too many --set");
    a->overrides[a->override_count++] = value;
    a->plans.overrides = a->overrides;
    remember(a, "--set", value);
    break;
  case OPT_CACHE_DIR: a->plans.cache_dir = value; break;
  case OPT_TIME_LIMIT:
    if (nsai_verify_seconds_parse(value, &a->time_limit))
      argp_error(state, "--time-limit: '%s' is no number of seconds above 0", value);
    break;
  case OPT_STOP: a->stop_on_failure = 1; break;
  case OPT_SHORT: a->brief = 1; break;
  case OPT_SELF_TEST: a->self_test = 1; break;
  case ARGP_KEY_ARG: argp_error(state, "unexpected argument '%s'", value); break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

/* ---- the list -------------------------------------------------------------------------------- */

typedef struct case_list {
  nsai_verify_case *cases;
  int64_t count;
} case_list;

/* Adds a case if the filter lets it pass. Returns 0, or -1 when memory is out. */
static int add_case(case_list *list, const nsai_verify_case *c, const char *filter) {
  char text[NSAI_VERIFY_CASE_TEXT];
  nsai_verify_case_print(c, text, sizeof text);
  if (filter && fnmatch(filter, text, 0)) return 0;
  nsai_verify_case *grown = realloc(list->cases, (size_t)(list->count + 1) * sizeof *grown);
  if (!grown) return -1;
  list->cases = grown;
  list->cases[list->count++] = *c;
  return 0;
}

static int add_text(case_list *list, const char *text, const char *filter) {
  char error[256];
  nsai_verify_case c;
  if (nsai_verify_case_parse(text, &c, error, sizeof error)) {
    fprintf(stderr, "nsacheck: %s: %s\n", text, error);
    return -1;
  }
  return add_case(list, &c, filter);
}

static int make_list(const arguments *a, case_list *list) {
  if (a->problem) return add_text(list, a->problem, a->filter);
  int64_t count = a->count;
  if (count < 0) count = a->brief ? 0 : a->plans.device == NSAI_VERIFY_DEVICE_CPU ? 40 : 300;
  const char *const *texts = a->brief ? chk_short_cases : chk_fixed_cases;
  for (; *texts; texts++)
    if (add_text(list, *texts, a->filter)) return -1;
  for (int64_t i = 0; i < count; i++) {
    nsai_verify_case c;
    chk_case_random(a->seed, i, &c);
    if (add_case(list, &c, a->filter)) return -1;
  }
  return 0;
}

static void print_list(const case_list *list) {
  char text[NSAI_VERIFY_CASE_TEXT];
  for (int64_t i = 0; i < list->count; i++) {
    nsai_verify_case_print(&list->cases[i], text, sizeof text);
    puts(text);
  }
}

/* ---- running --------------------------------------------------------------------------------- */

/* Runs the list; returns the number of failures. */
static int64_t run_list(chk_plans *plans, const arguments *a, const case_list *list) {
  int64_t outcomes[3] = { 0, 0, 0 }, done = 0;
  double start = nsai_verify_seconds();
  if (a->json) {
    printf("{\"device\": ");
    nsai_verify_json_string(stdout, chk_plans_device(plans)->name);
    printf(", \"seed\": %llu, \"cases\": [", (unsigned long long)a->seed);
  }
  chk_plans_prefetch(plans, list->cases, list->count);
  for (; done < list->count; done++) {
    nsai_verify_result result;
    if (a->time_limit > 0 && nsai_verify_seconds() - start > a->time_limit) break;
    chk_check(plans, &list->cases[done], &result);
    outcomes[result.outcome]++;
    if (a->json) {
      printf("%s\n", done ? "," : "");
      nsai_verify_result_json(stdout, &list->cases[done], &result);
    } else {
      nsai_verify_result_print(stdout, &list->cases[done], &result, a->repeat);
    }
    fflush(stdout);
    if (a->stop_on_failure && result.outcome == NSAI_VERIFY_FAILED) break;
  }
  if (a->json)
    printf("],\n \"passed\": %lld, \"failed\": %lld, \"skipped\": %lld}\n",
           (long long)outcomes[NSAI_VERIFY_PASSED], (long long)outcomes[NSAI_VERIFY_FAILED],
           (long long)outcomes[NSAI_VERIFY_SKIPPED]);
  FILE *out = a->json ? stderr : stdout;
  if (done < list->count && !outcomes[NSAI_VERIFY_FAILED])
    fprintf(out, "time limit: %lld problems were not started\n", (long long)(list->count - done));
  fprintf(out, "%lld passed, %lld failed, %lld skipped (%s, %.1f s)\n",
          (long long)outcomes[NSAI_VERIFY_PASSED], (long long)outcomes[NSAI_VERIFY_FAILED],
          (long long)outcomes[NSAI_VERIFY_SKIPPED], chk_plans_device(plans)->name,
          nsai_verify_seconds() - start);
  return outcomes[NSAI_VERIFY_FAILED];
}

int main(int argc, char **argv) {
  static const struct argp argp = { options,
                                    parse,
                                    NULL,
                                    "Check libnsa's stages against a float64 reference.\v"
                                    "A problem is one line of text; autotune/verify/case.h "
                                    "describes it. Exit status: 0 all passed, "
                                    "1 "
                                    "failures, 2 usage, 77 no GPU.",
                                    NULL,
                                    NULL,
                                    NULL };
  arguments a = { .seed = 1, .count = -1 };
  a.plans.device = NSAI_VERIFY_DEVICE_AUTO;
  a.plans.threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
  chk_plans *plans = NULL;
  case_list list = { 0 };
  int exit_code = 2;
  argp_err_exit_status = 2;
  argp_parse(&argp, argc, argv, 0, NULL, &a);
  if (make_list(&a, &list)) goto done;
  if (a.list) {
    print_list(&list);
    exit_code = 0;
    goto done;
  }
  nsa_status status = chk_plans_create(&a.plans, &plans);
  if (status) {
    fprintf(stderr, "nsacheck: %s\n", nsa_last_error());
    exit_code = status == NSA_E_NO_DRIVER || status == NSA_E_NO_DEVICE ? EXIT_SKIP : 1;
    goto done;
  }
  if (a.self_test) {
    exit_code = chk_self_test(plans, stdout) ? 1 : 0;
  } else {
    exit_code = run_list(plans, &a, &list) ? 1 : 0;
  }
done:
  chk_plans_destroy(plans);
  free(list.cases);
  return exit_code;
}
