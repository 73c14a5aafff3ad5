/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "time_launch.h"

#include "base/duration.h"

#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BURSTS 7
#define PAUSE_NS 40000000 /* after 30 ms or more the clocks recover from a power cap */
#define SUSTAINED_MS 300.0
#define MOST_LAUNCHES 3000 /* events of one sustained series, at most */
#define LEAST_LAUNCHES 9   /* so that the last third has a median */
_Static_assert(1 + BURSTS + LEAST_LAUNCHES == CHK_LEAST_TIMED, "the header's figure");

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double chk_median(double *values, int64_t count) {
  qsort(values, (size_t)count, sizeof *values, ascending);
  return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

void chk_pause(const nsai_verify_device *device) {
  const struct timespec pause = { 0, PAUSE_NS };
  if (device->driver) nanosleep(&pause, NULL);
}

/* One launch after an L2 flush and a pause. */
static nsa_status burst(const nsai_trial_run *trial, uint32_t branches, void *flush,
                        nsai_verify_timer *timer, double *ms) {
  const nsai_verify_device *device = trial->data.device;
  if (flush) NSAI_TRY(nsai_verify_device_set(device, flush, 0, NSAI_VERIFY_FLUSH_BYTES));
  NSAI_TRY(nsai_verify_device_wait(device, NULL));
  chk_pause(device);
  NSAI_TRY(nsai_verify_timer_start(device, timer));
  NSAI_TRY(nsai_trial_run_enqueue(trial, branches, NULL));
  NSAI_TRY(nsai_verify_timer_stop(device, timer));
  return nsai_verify_timer_read(device, timer, ms);
}

/* `count` launches back to back, each between two events. */
static nsa_status sustained(const nsai_trial_run *trial, uint32_t branches, int64_t count,
                            double *ms) {
  const nsai_verify_device *device = trial->data.device;
  nsai_verify_timer *timers = calloc((size_t)count, sizeof *timers);
  double *values = calloc((size_t)count, sizeof *values);
  nsa_status status = NSA_OK;
  if (!timers || !values) NSAI_TRY_TO(done, nsai_fail_nomem("timers", (size_t)count * 64));
  for (int64_t i = 0; i < count; i++)
    NSAI_TRY_TO(done, nsai_verify_timer_create(device, &timers[i]));
  for (int64_t i = 0; i < count; i++) {
    NSAI_TRY_TO(done, nsai_verify_timer_start(device, &timers[i]));
    NSAI_TRY_TO(done, nsai_trial_run_enqueue(trial, branches, NULL));
    NSAI_TRY_TO(done, nsai_verify_timer_stop(device, &timers[i]));
  }
  int64_t kept = count / 3;
  for (int64_t i = 0; i < kept; i++)
    NSAI_TRY_TO(done, nsai_verify_timer_read(device, &timers[count - kept + i], &values[i]));
  *ms = chk_median(values, kept);
done:
  for (int64_t i = 0; timers && i < count; i++) nsai_verify_timer_destroy(device, &timers[i]);
  free(timers);
  free(values);
  return status;
}

nsa_status chk_time_launch(const nsai_trial_run *trial, uint32_t branches, void *flush,
                           chk_times *times) {
  const nsai_verify_device *device = trial->data.device;
  double values[BURSTS], first;
  nsai_verify_timer timer;
  nsa_status status;
  NSAI_TRY(nsai_verify_timer_create(device, &timer));
  /* The first launch loads kernels and is not counted. */
  NSAI_TRY_TO(done, burst(trial, branches, flush, &timer, &first));
  for (int i = 0; i < BURSTS; i++)
    NSAI_TRY_TO(done, burst(trial, branches, flush, &timer, &values[i]));
  times->burst_ms = chk_median(values, BURSTS);
  int64_t count = (int64_t)(SUSTAINED_MS / (times->burst_ms + 1e-3));
  if (count > MOST_LAUNCHES) count = MOST_LAUNCHES;
  if (count < LEAST_LAUNCHES) count = LEAST_LAUNCHES;
  NSAI_TRY_TO(done, sustained(trial, branches, count, &times->sustained_ms));
done:
  nsai_verify_timer_destroy(device, &timer);
  return status;
}

/* ---- plans ----------------------------------------------------------------------------------- */

#define MAX_OVERRIDES 40

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where) {
  (void)info;
  (void)type;
  (void)where;
  return remove(path);
}

/* Uses a fresh context on the cache folder; times only the plan's creation. */
static nsa_status create_once(const chk_plans *plans, const nsai_verify_case *c, const char *yaml,
                              const char *const *overrides, double *ms) {
  nsa_options options = NSA_OPTIONS_INIT;
  nsa_problem problem = chk_case_problem(c, chk_case_op(c));
  nsa_ctx *ctx = NULL;
  nsa_plan *plan = NULL;
  options.yaml_text = yaml;
  options.overrides = overrides;
  NSAI_TRY(nsa_create(chk_plans_opts(plans)->config, &options, &ctx));
  double start = nsai_seconds();
  nsa_status status = nsa_plan_create(ctx, &problem, NULL, NULL, &plan);
  *ms = 1e3 * (nsai_seconds() - start);
  nsa_plan_destroy(plan);
  nsa_destroy(ctx);
  return status;
}

nsa_status chk_time_plan(const chk_plans *plans, const nsai_verify_case *c, double *cold_ms,
                         double *warm_ms) {
  const char *base = getenv("TMPDIR"), *const *given = chk_plans_opts(plans)->overrides;
  const char *overrides[MAX_OVERRIDES] = { "runtime.cache_mode=read_write", NULL };
  char folder[512], setting[600];
  int count = 1;
  snprintf(folder, sizeof folder, "%s/nsa-bench-XXXXXX", base ? base : "/tmp");
  if (!mkdtemp(folder)) return nsai_fail(NSA_E_IO, "cannot make %s: set TMPDIR", folder);
  snprintf(setting, sizeof setting, "runtime.cache_dir=%s", folder);
  overrides[count++] = setting;
  for (; given && *given && count < MAX_OVERRIDES - 1; given++) overrides[count++] = *given;
  overrides[count] = NULL;
  char *yaml = chk_plans_yaml(plans, c);
  nsa_status status = yaml ? NSA_OK : nsai_fail_nomem("a configuration", 1024);
  if (!status) status = create_once(plans, c, yaml, overrides, cold_ms);
  if (!status) status = create_once(plans, c, yaml, overrides, warm_ms);
  free(yaml);
  /* What cannot be removed stays in the temporary folder; the times are still right. */
  (void)nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
  return status;
}
