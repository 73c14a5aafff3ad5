/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Candidates that fail on the device. CUDA has two kinds of errors. A launch that is refused
 * changes nothing: only the candidate is dropped. An error of a kernel that ran (for example an
 * illegal address) is sticky: every later call of the process in this context returns it.
 */
#include "tune/internal.h"

#include <string.h>

/* Sticky errors come back from every call. The thread's error text keeps the first one. */
bool nsai_tune_survived(const tuner *t) {
  return t->device.driver->cuStreamSynchronize(t->device.stream) == NSAI_CUDA_SUCCESS;
}

nsa_status nsai_tune_room(tuner *t, nsa_status status) {
  bool full = status == NSA_E_CUDA && nsai_last_foreign() == NSAI_CUDA_ERROR_OUT_OF_MEMORY;
  t->no_room = full && nsai_tune_survived(t);
  return status;
}

void nsai_tune_refuse(tuner *t, tune_task *task, measured_candidate *c, const char *why) {
  nsai_timing *timing = &c->timing;
  c->alive = false;
  c->rounds = 0;
  timing->state = NSAI_TIMING_REFUSED;
  timing->ms = timing->spread = 0;
  timing->rounds = 0;
  timing->chosen = false;
  snprintf(timing->note, sizeof timing->note, "%.*s", (int)strcspn(why, "\n"), why);
  nsai_tune_emit(t, NSA_TUNE_REFUSED, task, c, timing->note);
}

nsa_status nsai_tune_lost(tuner *t, tune_task *task,
                          measured_candidate *const suspects[NSAI_STAGE_COUNT]) {
  char why[512], names[1024];
  nsai_writer list = nsai_writer_open(names, sizeof names);
  const char *text = nsa_last_error();
  snprintf(why, sizeof why, "%.*s", (int)strcspn(text, "\n"), text);
  for (int i = 0; i < task->stage_count; i++) {
    if (!suspects[i]) continue;
    nsai_write(&list, "%s%s", list.used ? ", " : "", suspects[i]->timing.candidate);
    if (suspects[i] != &task->candidates[i].item[0]) nsai_tune_refuse(t, task, suspects[i], why);
  }
  return nsai_fail(NSA_E_CUDA,
                   "the device failed in a run with %s: %s; this process's CUDA context is lost "
                   "with it. Another process goes on from here without what is no heuristic's "
                   "choice of these; please report it with the output of `nsa-autotune doctor`",
                   names, why);
}
