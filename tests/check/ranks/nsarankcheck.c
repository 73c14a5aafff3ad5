/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsarankcheck: compares runs over ranks (include/nsa/ranks.h) with the run of one rank on the same
 * device, and ends, stalls and confuses ranks.
 */
#include "ranks/options.h"

#include "base/duration.h"
#include "ranks/self_test.h"
#include "result.h"

#include <stdlib.h>
#include <string.h>

#define EXIT_SKIP 77 /* meson's exit status for a skipped test */

typedef struct report {
  const chk_ranks_options *o;
  int64_t printed;
} report;

static void print_result(void *user, int64_t number, const char *text,
                         const nsai_verify_result *result) {
  report *at = user;
  (void)number;
  at->printed++;
  if (at->o->tap)
    chk_result_tap(stdout, at->printed, text, result);
  else
    chk_result_print(stdout, text, result, "nsarankcheck", at->o->again);
  if (at->o->verbose)
    for (int i = 0; i < result->figures; i++)
      printf("        %s %.3g of %.3g\n", result->figure[i].name, result->figure[i].value,
             result->figure[i].limit);
  fflush(stdout);
}

static void print_fault(const chk_ranks_options *o, const chk_ranks_problem *p,
                        const chk_fault *fault, int64_t number, const nsai_verify_result *result) {
  char text[CHK_RANKS_TEXT];
  chk_fault_print(fault, p, text, sizeof text);
  if (o->tap) {
    chk_result_tap(stdout, number, text, result);
  } else {
    static const char *const words[] = { "passed", "failed", "skipped" };
    printf("%-7s %6.2f s  %s\n", words[result->outcome], result->seconds, text);
    if (result->text[0]) printf("        %s\n", result->text);
    if (result->outcome == NSAI_VERIFY_FAILED && p->is_cache)
      printf("        repeat: nsarankcheck cache%s --ranks %d --seed %llu --longest %d --codes %s "
             "--fault %s "
             "--timeout %g\n",
             o->again, p->ranks, (unsigned long long)o->seed, o->longest,
             chk_cache_codes_names[o->codes], chk_fault_names[fault->kind],
             fault->timeout_ms / 1e3);
    else if (result->outcome == NSAI_VERIFY_FAILED)
      printf("        repeat: nsarankcheck%s --ranks %d --hosts %d --fault %s --timeout %g\n",
             o->again, p->ranks, p->hosts ? p->hosts : 1, chk_fault_names[fault->kind],
             fault->timeout_ms / 1e3);
  }
  fflush(stdout);
}

/* Every fault, at both of its places, of the first and of the last rank. */
static nsa_status run_faults(const chk_runner *runner, const chk_ranks_options *o,
                             const chk_ranks_problem *p, long long outcomes[3]) {
  for (int kind = CHK_FAULT_KILL; kind < CHK_FAULTS; kind++)
    for (int place = 0; place < 4 && o->faults >> kind & 1; place++) {
      nsai_verify_result result = { .outcome = NSAI_VERIFY_PASSED };
      const chk_fault fault = { .kind = (chk_fault_kind)kind,
                                .in_agree = place & 1,
                                .is_process = o->nccl,
                                .sent = o->nccl && kind == CHK_FAULT_STALL,
                                .bad = place & 2 ? p->ranks - 1 : 0,
                                .timeout_ms = o->rank.timeout_ms };
      NSAI_TRY(o->nccl ? chk_fault_processes(runner, p, &fault, &result)
                       : chk_fault_threads(runner, p, &fault, &result));
      outcomes[result.outcome]++;
      print_fault(o, p, &fault, outcomes[0] + outcomes[1] + outcomes[2], &result);
    }
  return NSA_OK;
}

static nsa_status run(const chk_ranks_options *o, const chk_ranks_list *list,
                      long long outcomes[3]) {
  report at = { o, 0 };
  const chk_runner runner = { o->plans, o->rank, print_result, &at };
  nsa_status status = NSA_OK;
  if (o->nccl)
    status = chk_run_processes(&runner, list->problems, list->count, outcomes);
  else
    status = chk_run_threads(&runner, list->problems, list->count, outcomes);
  for (int64_t i = 0; !status && i < list->fault_count; i++)
    status = run_faults(&runner, o, &list->faults[i], outcomes);
  return status;
}

/* The plan behind the results. What the GPUs were too few for is one more, skipped. */
static void end_tap(long long results, bool too_few) {
  if (too_few && !results) {
    puts("1..0 # SKIP too few GPUs");
    return;
  }
  if (too_few) printf("ok %lld - the rest # SKIP too few GPUs\n", ++results);
  printf("1..%lld\n", results);
}

/* Results up to a lack of GPUs count. */
static int conclude(const chk_ranks_options *o, nsa_status status, const long long outcomes[3],
                    double seconds) {
  const bool too_few = status == NSA_E_NO_DRIVER || status == NSA_E_NO_DEVICE;
  if (status) fprintf(stderr, "nsarankcheck: %s\n", nsa_last_error());
  if (status && !too_few) return 1; /* with --tap the missing plan is an error, too */
  if (o->tap) end_tap(outcomes[0] + outcomes[1] + outcomes[2], too_few);
  fprintf(o->tap ? stderr : stdout, "%lld passed, %lld failed, %lld skipped (%s, %.1f s)\n",
          outcomes[NSAI_VERIFY_PASSED], outcomes[NSAI_VERIFY_FAILED],
          outcomes[NSAI_VERIFY_SKIPPED] + too_few, o->nccl ? "nccl" : "loopback", seconds);
  if (outcomes[NSAI_VERIFY_FAILED]) return 1;
  if (!too_few && (outcomes[NSAI_VERIFY_PASSED] || !outcomes[NSAI_VERIFY_SKIPPED])) return 0;
  return o->tap ? 0 : EXIT_SKIP;
}

int main(int argc, char **argv) {
  chk_ranks_options o;
  chk_ranks_list list = { 0 };
  long long outcomes[3] = { 0, 0, 0 };
  nsai_program_begin("nsarankcheck");
  chk_ranks_options_read(argc, argv, &o);
  if (chk_ranks_list_make(&o, &list)) return 2;
  if (o.list) {
    char text[CHK_RANKS_TEXT];
    for (int64_t i = 0; i < list.count; i++) {
      chk_ranks_print(&list.problems[i], text, sizeof text);
      puts(text);
    }
    chk_ranks_list_fini(&list);
    return 0;
  }
  const double start = nsai_seconds();
  if (o.self_test) {
    const int unnoticed = chk_ranks_self_test(&o.plans, stdout);
    chk_ranks_list_fini(&list);
    return unnoticed ? 1 : 0;
  }
  nsa_status status = run(&o, &list, outcomes);
  chk_ranks_list_fini(&list);
  return conclude(&o, status, outcomes, nsai_seconds() - start);
}
