/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any bytes as a file that nsa-bench reads: a CSV of times, of decode steps or of peers, or a list
 * of problems. A refusal names the file; times that were read are written as a file that reads as the
 * same.
 */
#include "csv.h"
#include "decode/decode.h"
#include "fuzz.h"
#include "peers.h"
#include "problems.h"

#include <math.h>

static void check_refused(nsa_status status, const char *path) {
  FUZZ_REQUIRE(status == NSA_E_ARG && strstr(nsa_last_error(), path));
}

static char *write_times(const bench_results *results, size_t *size) {
  char *text = NULL;
  FILE *out = open_memstream(&text, size);
  FUZZ_REQUIRE(out != NULL);
  bench_csv_header(out);
  for (int64_t i = 0; i < results->count; i++) bench_csv_problem(out, &results->problem[i]);
  FUZZ_REQUIRE(fclose(out) == 0);
  return text;
}

static void check_times(const bench_problem *p) {
  for (int i = 0; i < BENCH_PARTS; i++) {
    const bench_time *t = &p->part[i];
    const double figures[] = { t->burst_ms,     t->sustained_ms, t->tflops,     t->gbps,
                               t->roofline,     p->overlap.r,    p->overlap.u4, p->overlap.u8,
                               p->plan_cold_ms, p->plan_warm_ms };
    for (size_t k = 0; k < sizeof figures / sizeof *figures; k++)
      FUZZ_REQUIRE(isfinite(figures[k]) && figures[k] >= 0);
  }
}

static void try_times(const void *data, size_t size) {
  bench_results results = { 0 }, again = { 0 }, third = { 0 };
  const char *path = fuzz_file(data, size);
  nsa_status status = bench_csv_load(path, &results);
  if (status != NSA_OK) {
    check_refused(status, path);
  } else {
    FUZZ_REQUIRE(results.count > 0);
    for (int64_t i = 0; i < results.count; i++) check_times(&results.problem[i]);
    size_t lengths[2];
    char *text[2];
    text[0] = write_times(&results, &lengths[0]);
    FUZZ_REQUIRE(bench_csv_load(fuzz_file(text[0], lengths[0]), &again) == NSA_OK);
    FUZZ_REQUIRE(again.count == results.count);
    /* A ratio may change with the last digit of the times that it is made of, but only once. */
    text[1] = write_times(&again, &lengths[1]);
    FUZZ_REQUIRE(bench_csv_load(fuzz_file(text[1], lengths[1]), &third) == NSA_OK);
    FUZZ_REQUIRE(third.count == again.count);
    free(text[0]);
    free(text[1]);
  }
  bench_results_free(&results);
  bench_results_free(&again);
  bench_results_free(&third);
}

static void try_steps(const void *data, size_t size) {
  bench_decode_sheet sheet;
  const char *path = fuzz_file(data, size);
  nsa_status status = bench_decode_csv_load(path, &sheet);
  if (status != NSA_OK) {
    check_refused(status, path);
  } else {
    FUZZ_REQUIRE(sheet.count > 0 && sheet.options.context_count <= BENCH_SIZES);
    FUZZ_REQUIRE(bench_decode_csv_is(path));
    for (int i = 0; i < sheet.count; i++) {
      const bench_decode_cell *cell = &sheet.cells[i];
      FUZZ_REQUIRE(cell->context > 0 && cell->batch > 0 && cell->expected.bytes >= 0);
      FUZZ_REQUIRE(isfinite(cell->us[BENCH_DECODE_TOTAL]) && isfinite(cell->bandwidth));
      FUZZ_REQUIRE(bench_decode_find(sheet.cells, sheet.count, cell->context, cell->batch));
    }
    for (int i = 1; i < sheet.options.context_count; i++)
      FUZZ_REQUIRE(sheet.options.contexts[i - 1] < sheet.options.contexts[i]);
  }
  free(sheet.cells);
}

static void try_peers(const void *data, size_t size) {
  bench_peers peers = { 0 };
  const char *path = fuzz_file(data, size);
  nsa_status status = bench_peers_csv_load(path, &peers);
  if (status != NSA_OK)
    check_refused(status, path);
  else
    FUZZ_REQUIRE(peers.count > 0 && bench_peers_csv_is(path));
  for (int64_t i = 0; i < peers.count; i++) {
    const bench_peer *p = &peers.peer[i];
    FUZZ_REQUIRE(p->part < BENCH_PEER_PARTS && p->dtype && isfinite(p->ms) && p->ms >= 0);
    FUZZ_REQUIRE(p->heads > 0 && p->kv_heads > 0 && p->head_dim > 0 && p->batch > 0 &&
                 p->tokens > 0);
  }
  free(peers.peer);
}

static void try_problems(const void *data, size_t size) {
  bench_cases list = { 0 }, again = { 0 };
  const char *path = fuzz_file(data, size);
  nsa_status status = bench_cases_load(&list, path, NULL);
  if (status != NSA_OK) check_refused(status, path);
  for (int64_t i = 0; i < list.count; i++) {
    char text[NSAI_VERIFY_CASE_TEXT];
    nsai_verify_case_print(&list.cases[i], text, sizeof text);
    FUZZ_REQUIRE(bench_cases_add(&again, text, NULL) == NSA_OK);
  }
  FUZZ_REQUIRE(again.count == list.count);
  bench_cases_free(&list);
  bench_cases_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  try_times(data, size);
  try_steps(data, size);
  try_peers(data, size);
  try_problems(data, size);
  return 0;
}
