/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "check.h"

#include "rows.h"

#include <stdlib.h>
#include <string.h>

/* Up to CHK_MAX_PROBES of the compared rows, evenly spread, the last among them. */
static int64_t pick_probes(const chk_bench *bench, int64_t *probes) {
  int64_t count = bench->token_count < CHK_MAX_PROBES ? bench->token_count : CHK_MAX_PROBES;
  for (int64_t i = 0; i < count; i++)
    probes[i] = bench->tokens[count > 1 ? i * (bench->token_count - 1) / (count - 1) : 0];
  return count;
}

nsa_status chk_bench_create(chk_session *session, const chk_case *c, chk_bench *bench) {
  int64_t probes[CHK_MAX_PROBES];
  const chk_device *device = chk_session_device(session);
  *bench = (chk_bench){ .session = session, .c = c };
  /* The plan first: what it refuses needs no tensors. */
  NSAI_TRY(chk_session_plan(session, c, chk_case_op(c), &bench->plan));
  bench->token_count = chk_sample_tokens(c, &bench->tokens);
  int64_t probe_count = pick_probes(bench, probes);
  NSAI_TRY(chk_data_create(device, c, chk_session_opts(session)->threads, probes, probe_count,
                           &bench->data));
  NSAI_TRY(chk_data_workspace(&bench->data, bench->plan.caps.workspace_bytes));
  return chk_device_wait(device, NULL);
}

void chk_bench_destroy(chk_bench *bench) {
  if (bench->data.device) chk_data_destroy(&bench->data);
  free(bench->tokens);
  *bench = (chk_bench){ 0 };
}

nsa_status chk_bench_enqueue(const chk_bench *bench, uint32_t branches, nsa_stream stream) {
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_batch batch;
  nsa_io io;
  exec.branches = branches;
  exec.workspace = bench->data.workspace;
  exec.workspace_bytes = bench->data.workspace_bytes;
  exec.stream = stream ? stream : bench->data.device->stream;
  chk_data_io(&bench->data, CHK_ON_DEVICE, &batch, &io);
  const nsa_batch *given = chk_data_batch(&bench->data, &batch);
  nsa_tensor importance = chk_data_view(&bench->data, CHK_IMPORTANCE_IN, CHK_ON_DEVICE);
  switch (bench->c->kind) {
  case CHK_COMPRESS: return nsa_compress(bench->plan.plan, &exec, given, &io);
  case CHK_SELECT: return nsa_select(bench->plan.plan, &exec, given, &io, &importance);
  case CHK_DENSE: return nsa_dense(bench->plan.plan, &exec, given, &io);
  default: return nsa_forward(bench->plan.plan, &exec, given, &io);
  }
}

nsa_status chk_bench_run(chk_bench *bench) {
  NSAI_TRY(chk_data_poison(&bench->data));
  NSAI_TRY(chk_bench_enqueue(bench, bench->c->branches, NULL));
  NSAI_TRY(chk_device_wait(bench->data.device, NULL));
  return chk_data_fetch(&bench->data);
}

nsa_status chk_run_intact(chk_bench *bench, chk_result *result) {
  NSAI_TRY(chk_bench_run(bench));
  const char *damaged = chk_data_damaged(&bench->data);
  if (damaged) chk_fail(result, "%s: memory outside the written rows changed", damaged);
  return NSA_OK;
}

/* Statuses that say the machine lacks something, not that the library is wrong. */
static int is_missing(nsa_status status) {
  return status == NSA_E_NO_CUBLASLT || status == NSA_E_NO_COMPILER || status == NSA_E_NO_DRIVER ||
         status == NSA_E_NO_DEVICE;
}

/* Multiply-adds that the CPU device may take for a case: some seconds of one core. */
#define CPU_COST 1e10

void chk_check(chk_session *session, const chk_case *c, chk_result *result) {
  chk_bench bench;
  double start = chk_now();
  *result = (chk_result){ .outcome = CHK_PASSED };
  if (!chk_session_device(session)->driver && chk_case_cost(c) > CPU_COST) {
    chk_skip(result, "too large for the CPU device");
    return;
  }
  nsa_status status = chk_bench_create(session, c, &bench);
  if (!status) {
    memcpy(result->variants, bench.plan.caps.variants, sizeof result->variants);
    switch (c->kind) {
    case CHK_FORWARD: status = chk_check_forward(&bench, result); break;
    case CHK_COMPRESS: status = chk_check_compress(&bench, result); break;
    case CHK_SELECT: status = chk_check_select(&bench, result); break;
    case CHK_DENSE: status = chk_check_dense(&bench, result); break;
    case CHK_NEEDLE: status = chk_check_needle(&bench, result); break;
    default: status = chk_check_property(&bench, result);
    }
  }
  int forced = chk_session_opts(session)->overrides != NULL;
  if (status && (is_missing(status) || (forced && status == NSA_E_UNSUPPORTED)))
    chk_skip(result, "%s: %s", nsa_status_name(status), nsa_last_error());
  else if (status)
    chk_fail(result, "%s: %s", nsa_status_name(status), nsa_last_error());
  chk_bench_destroy(&bench);
  result->seconds = chk_now() - start;
}
