/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "trial/bench.h"

#include "trial/rows.h"

#include <stdlib.h>

/* Up to CHK_MAX_PROBES of the compared rows, evenly spread, the last among them. */
static int64_t pick_probes(const chk_bench *bench, int64_t *probes) {
  int64_t count = bench->token_count < CHK_MAX_PROBES ? bench->token_count : CHK_MAX_PROBES;
  for (int64_t i = 0; i < count; i++)
    probes[i] = bench->tokens[count > 1 ? i * (bench->token_count - 1) / (count - 1) : 0];
  return count;
}

nsa_status chk_bench_prepare(const chk_device *device, const chk_case *c, const chk_plan *plan,
                             int threads, chk_bench *bench) {
  int64_t probes[CHK_MAX_PROBES];
  *bench = (chk_bench){ .c = c, .plan = *plan, .threads = threads };
  bench->token_count = chk_sample_tokens(c, &bench->tokens);
  int64_t probe_count = pick_probes(bench, probes);
  NSAI_TRY(chk_data_create(device, c, threads, probes, probe_count, &bench->data));
  NSAI_TRY(chk_data_workspace(&bench->data, plan->caps.workspace_bytes));
  return chk_device_wait(device, NULL);
}

void chk_bench_destroy(chk_bench *bench) {
  if (bench->data.device) chk_data_destroy(&bench->data);
  free(bench->tokens);
  *bench = (chk_bench){ 0 };
}

nsa_status chk_bench_use(chk_bench *bench, const chk_plan *plan) {
  bench->plan = *plan;
  NSAI_TRY(chk_data_workspace_anew(&bench->data, plan->caps.workspace_bytes));
  return chk_device_wait(bench->data.device, NULL);
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
