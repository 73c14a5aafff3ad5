/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsacheck: compares every stage, the forward, the backward pass and the KV cache with
 * references.
 */
#include "cache/run_case.h"
#include "check.h"
#include "list.h"
#include "program.h"
#include "result.h"

#include "base/duration.h"

#define EXIT_SKIP 77 /* meson's exit status for a skipped test */

static void print_list(const chk_list *list) {
  char text[CHK_PROBLEM_TEXT];
  for (int64_t i = 0; i < list->count + list->cache_count; i++) {
    chk_list_text(list, i, text, sizeof text);
    puts(text);
  }
}

/* Runs one problem and prints the result. Returns its outcome. */
static nsai_verify_outcome run(chk_plans *plans, const chk_arguments *a, const chk_list *list,
                               int64_t i) {
  char text[CHK_PROBLEM_TEXT];
  nsai_verify_result result;
  chk_list_text(list, i, text, sizeof text);
  if (i < list->count)
    chk_check(plans, &list->cases[i], &result);
  else
    chk_cache_check(plans, &list->cache[i - list->count], &result);
  if (a->json) {
    printf("%s\n", i ? "," : "");
    chk_result_json(stdout, text, &result);
  } else if (a->tap) {
    chk_result_tap(stdout, i + 1, text, &result);
  } else {
    chk_result_print(stdout, text, &result, "nsacheck", a->repeat);
  }
  fflush(stdout);
  return result.outcome;
}

/* Runs the list; returns the exit status. */
static int run_list(chk_plans *plans, const chk_arguments *a, const chk_list *list) {
  long long outcomes[3] = { 0, 0, 0 };
  const int64_t count = list->count + list->cache_count;
  int64_t done = 0;
  const char *device = chk_plans_device(plans)->name;
  double start = nsai_seconds();
  if (a->json) {
    printf("{\"device\": ");
    nsai_verify_json_string(stdout, device);
    printf(", \"seed\": %llu, \"cases\": [", (unsigned long long)a->seed);
  }
  chk_plans_prefetch(plans, list->cases, list->count);
  for (; done < count; done++) {
    if (a->time_limit > 0 && nsai_seconds() - start > a->time_limit) break;
    nsai_verify_outcome outcome = run(plans, a, list, done);
    outcomes[outcome]++;
    if (a->stop_on_failure && outcome == NSAI_VERIFY_FAILED) break;
  }
  if (a->json)
    printf("],\n \"passed\": %lld, \"failed\": %lld, \"skipped\": %lld}\n",
           outcomes[NSAI_VERIFY_PASSED], outcomes[NSAI_VERIFY_FAILED],
           outcomes[NSAI_VERIFY_SKIPPED]);
  if (a->tap) printf("1..%lld\n", (long long)done);
  FILE *out = a->json || a->tap ? stderr : stdout;
  if (done < count && !outcomes[NSAI_VERIFY_FAILED])
    fprintf(out, "time limit: %lld problems were not started\n", (long long)(count - done));
  fprintf(out, "%lld passed, %lld failed, %lld skipped (%s, %.1f s)\n",
          outcomes[NSAI_VERIFY_PASSED], outcomes[NSAI_VERIFY_FAILED], outcomes[NSAI_VERIFY_SKIPPED],
          device, nsai_seconds() - start);
  if (outcomes[NSAI_VERIFY_FAILED]) return 1;
  return !a->tap && outcomes[NSAI_VERIFY_SKIPPED] && !outcomes[NSAI_VERIFY_PASSED] ? EXIT_SKIP : 0;
}

static int self_test(chk_plans *plans, const chk_arguments *a) {
  int unnoticed = 0;
  if (a->areas & (CHK_FORWARD | CHK_BACKWARD)) unnoticed += chk_self_test(plans, stdout);
  if (a->areas & CHK_CACHE) unnoticed += chk_cache_self_test(plans, a->cache.longest, stdout);
  return unnoticed ? 1 : 0;
}

int main(int argc, char **argv) {
  chk_arguments a;
  chk_plans *plans = NULL;
  chk_list list = { 0 };
  int exit_code = 2;
  nsai_program_begin("nsacheck");
  chk_arguments_read(argc, argv, &a);
  if (a.rows ? a.list && chk_list_make_rows(&a, &list) : chk_list_make(&a, &list)) goto done;
  if (a.list) {
    print_list(&list);
    exit_code = 0;
    goto done;
  }
  nsa_status status = chk_plans_create(&a.plans, &plans);
  if (status) {
    fprintf(stderr, "nsacheck: %s\n", nsa_last_error());
    exit_code = status == NSA_E_NO_DRIVER || status == NSA_E_NO_DEVICE ? EXIT_SKIP : 1;
    if (a.tap && exit_code == EXIT_SKIP) {
      puts("1..0 # SKIP no GPU");
      exit_code = 0;
    }
    goto done;
  }
  exit_code = 1;
  if (a.rows && chk_list_make_rows(&a, &list)) goto done;
  exit_code = a.self_test ? self_test(plans, &a) : run_list(plans, &a, &list);
done:
  chk_plans_destroy(plans);
  chk_list_fini(&list);
  return exit_code;
}
